"""Bad input, line by line of the table in the specification: a typed error, and nothing is written."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import asyncpg
import msgspec
import pydantic
import pytest

from holdfast.engine import intake
from holdfast.engine.roles import Column
from holdfast.engine.values import Filter, Item
from holdfast.errors import IllegalEdge, InvalidInput, NotFound
from ledgers import (
    ERRANDS_SAMPLE,
    JOB_SAMPLE,
    NOW,
    PARCELS_SAMPLE,
    PERMITS_SAMPLE,
    TASKS_SAMPLE,
    Connection,
    Sample,
    after,
)


@pytest.fixture
def database_url(ledgers_url: str) -> str:
    return ledgers_url


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


EAST, WEST = timezone(timedelta(hours=9)), timezone(timedelta(hours=-9))

# (what is wrong, the field that the error names, the item)
BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("type missing", "type", {"kind": None}),
    ("type empty", "type", {"kind": ""}),
    ("type blank", "type", {"kind": " \t\n"}),
    ("type with a blank before it", "type", {"kind": " mail"}),
    ("type with a line break after it", "type", {"kind": "mail\n"}),
    ("type with U+0000", "type", {"kind": "a\x00b"}),
    ("type with half a surrogate", "type", {"kind": "a\ud800"}),
    ("type not a text", "type", {"kind": 5}),
    ("key empty", "idempotency_key", {"key": ""}),
    ("key with U+0000", "idempotency_key", {"key": "\x00"}),
    ("key not a text", "idempotency_key", {"key": 7}),
    ("max_retries below 0", "max_retries", {"limit": -1}),
    ("max_retries above int4", "max_retries", {"limit": 2**31}),
    ("max_retries not a whole number", "max_retries", {"limit": 1.5}),
    ("max_retries a truth value", "max_retries", {"limit": True}),
    ("priority above int4", "priority", {"priority": 2**31}),
    ("priority below int4", "priority", {"priority": -(2**31) - 1}),
    ("priority a text", "priority", {"priority": "1"}),
    ("payload not JSON", "payload", {"payload": object()}),
    ("payload with keys that JSON has not", "payload", {"payload": {(1, 2): 3}}),
    ("payload with NaN", "payload", {"payload": {"a": [float("nan")]}}),
    ("payload with Infinity", "payload", {"payload": float("inf")}),
    ("payload with U+0000", "payload", {"payload": {"a": ["b\x00"]}}),
    ("payload with U+0000 in a key", "payload", {"payload": {"a\x00": 1}}),
    ("payload with half a surrogate", "payload", {"payload": "\udfff"}),
    ("payload that contains itself", "payload", {"payload": circle()}),
    ("payload nested too deep", "payload", {"payload": deep(100_000)}),
    ("payload with a number of too many digits", "payload", {"payload": 10**5000}),
    ("payload above 1 MiB", "payload", {"payload": "x" * (1024 * 1024 - 1)}),
    ("payload above 1 MiB in bytes, not in characters", "payload", {"payload": "é" * (512 * 1024)}),
    ("both delay and run_at", "delay", {"delay": 1, "run_at": NOW}),
    ("delay negative", "delay", {"delay": -0.001}),
    ("delay NaN", "delay", {"delay": float("nan")}),
    ("delay infinite", "delay", {"delay": float("inf")}),
    ("delay beyond what a time can hold", "delay", {"delay": 1e300}),
    ("delay not a number", "delay", {"delay": "5"}),
    ("delay a truth value", "delay", {"delay": True}),
    ("run_at without a zone", "run_at", {"run_at": datetime(2030, 1, 1)}),  # noqa: DTZ001
    ("run_at not a time", "run_at", {"run_at": "2030-01-01T00:00:00Z"}),
    ("run_at after the year 9999", "run_at", {"run_at": datetime.max.replace(tzinfo=WEST)}),
    ("run_at before the year 1", "run_at", {"run_at": datetime.min.replace(tzinfo=EAST)}),
    ("a backoff where there is none", "backoff", {"backoff": "exp"}),
    ("a queue where there are none", "queue", {"queue": "x"}),
    ("a tenant where there are none", "tenant", {"tenant": "x"}),
    ("a column that nobody declared", "worker_id", {"extras": {"worker_id": "me"}}),
]


@pytest.mark.parametrize(("field", "bad"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_bad_input_is_refused_by_name_and_writes_nothing(
    conn: Connection, field: str, bad: dict[str, Any]
) -> None:
    """The table "Bad input": alone and, with its place, as one of a bulk of which nothing is written."""
    store = TASKS_SAMPLE.store()
    with pytest.raises(InvalidInput) as refused:
        await store.enqueue(conn, TASKS_SAMPLE.item(**bad))
    assert refused.value.field == field
    good = TASKS_SAMPLE.item(key="good")
    with pytest.raises(InvalidInput) as refused:
        await store.enqueue_many(conn, [good, good, TASKS_SAMPLE.item(**bad), good])
    assert refused.value.field == f"items[2].{field}"
    assert await TASKS_SAMPLE.rows(conn) == {}


@pytest.mark.parametrize(
    ("sample", "field", "bad"),
    [
        (ERRANDS_SAMPLE, "org_id", {"tenant": None}),
        (ERRANDS_SAMPLE, "org_id", {"tenant": "not a uuid"}),
        (ERRANDS_SAMPLE, "queue", {"queue": " "}),
        (ERRANDS_SAMPLE, "item", {"kind": "x" * 101}),
        (ERRANDS_SAMPLE, "item", {"extras": {"requested_by": "x" * 256}}),
        (PARCELS_SAMPLE, "priority", {"priority": 1}),
        (PARCELS_SAMPLE, "limit", {"limit": 1}),
        (PERMITS_SAMPLE, "kind", {"kind": "another"}),
        (PERMITS_SAMPLE, "delay", {"delay": 1}),
        (PERMITS_SAMPLE, "payload", {"payload": [1]}),
        (PERMITS_SAMPLE, "payload", {"payload": {"unknown": 1}}),
        (PERMITS_SAMPLE, "item", {"payload": {"floors": "many"}}),
        (PERMITS_SAMPLE, "item", {"payload": {"drawn_on": "yesterday, or so"}}),
    ],
    ids=str,
)
async def test_what_a_ledger_has_no_place_for_is_refused_and_writes_nothing(
    conn: Connection, sample: Sample, field: str, bad: dict[str, Any]
) -> None:
    store = sample.store()
    with pytest.raises(InvalidInput) as refused:
        await store.enqueue_many(conn, [sample.item(), sample.item(**bad)])
    assert refused.value.field.removeprefix("items[1].") == field
    assert await sample.rows(conn) == {}
    assert await sample.told(conn) == []


# The same for `job`, whose columns have lengths and words of their own.
BAD_JOB: list[tuple[str, str, dict[str, Any]]] = [
    ("type missing", "type", {"kind": None}),
    ("type empty", "type", {"kind": ""}),
    ("type over 100 characters", "type", {"kind": "x" * 101}),
    ("org_id missing", "org_id", {"tenant": None}),
    ("org_id not a UUID", "org_id", {"tenant": "acme"}),
    ("idempotency_key empty", "idempotency_key", {"key": ""}),
    ("idempotency_key over 255 characters", "idempotency_key", {"key": "é" * 256}),
    ("max_attempts below 0", "max_attempts", {"limit": -1}),
    ("max_attempts outside int4", "max_attempts", {"limit": 2**31}),
    ("priority outside int4", "priority", {"priority": 2**31}),
    ("backoff_policy unknown", "backoff_policy", {"backoff": "linear"}),
    ("backoff_policy in capitals", "backoff_policy", {"backoff": "EXP"}),
    ("backoff_policy not a word", "backoff_policy", {"backoff": ["exp"]}),
    ("queue empty", "queue", {"queue": ""}),
    ("queue blank", "queue", {"queue": " \u2003"}),
    ("run_at without a zone", "run_at", {"run_at": datetime(2030, 1, 1)}),  # noqa: DTZ001
    ("payload not JSON", "payload", {"payload": object()}),
    ("payload above 1 MiB", "payload", {"payload": "x" * 1024 * 1024}),
    ("requested_by among the extras", "requested_by", {"extras": {"requested_by": "ana"}}),
    ("worker_id among the extras", "worker_id", {"extras": {"worker_id": "w"}}),
]


@pytest.mark.parametrize(("field", "bad"), [case[1:] for case in BAD_JOB], ids=[case[0] for case in BAD_JOB])
async def test_a_bad_job_is_refused_by_name_and_writes_nothing(
    conn: Connection, field: str, bad: dict[str, Any]
) -> None:
    """The table "Bad input": alone and, with its place, as one of a bulk of which nothing is written."""
    store = JOB_SAMPLE.store()
    with pytest.raises(InvalidInput) as refused:
        await store.enqueue(conn, JOB_SAMPLE.item(**bad))
    assert refused.value.field == field
    with pytest.raises(InvalidInput) as refused:
        await store.enqueue_many(conn, [JOB_SAMPLE.item(key="good"), JOB_SAMPLE.item(**bad)])
    assert refused.value.field == f"items[1].{field}"
    assert await JOB_SAMPLE.rows(conn) == {}
    assert await JOB_SAMPLE.told(conn) == []


@pytest.mark.parametrize("by", ["x" * 256, "ana\x00", "\ud800", 5])
async def test_who_asked_is_refused_where_it_does_not_fit_its_column(conn: Connection, by: Any) -> None:
    """The table "Bad input": requested_by is never cut."""
    for enqueue, what in (
        (JOB_SAMPLE.store().enqueue, JOB_SAMPLE.item()),
        (JOB_SAMPLE.store().enqueue_many, [JOB_SAMPLE.item()]),
    ):
        with pytest.raises(InvalidInput) as refused:
            await enqueue(conn, what, by=by)
        assert refused.value.field == "requested_by"
    assert await JOB_SAMPLE.rows(conn) == {}


async def test_a_text_that_is_too_long_is_told_its_length_and_the_limit(conn: Connection) -> None:
    with pytest.raises(InvalidInput) as refused:
        await JOB_SAMPLE.store().enqueue(conn, JOB_SAMPLE.item(kind="x" * 120))
    assert str(refused.value) == "type: must have at most 100 characters, and has 120"


async def test_the_longest_texts_that_are_allowed_are_stored(conn: Connection) -> None:
    """Counted in characters, as PostgreSQL counts them."""
    item = JOB_SAMPLE.item(kind="é" * 100, key="\U0001f600" * 255, queue="q" * 255)
    receipt = await JOB_SAMPLE.store().enqueue(conn, item, by="é" * 255)
    row = await JOB_SAMPLE.row(conn, receipt.id)
    assert (row["type"], row["idempotency_key"]) == (item.kind, item.key)
    assert (row["requested_by"], row["queue"]) == ("é" * 255, item.queue)


async def test_the_first_and_the_last_moment_are_stored(conn: Connection) -> None:
    """J-7."""
    store = JOB_SAMPLE.store()
    for moment in (datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)):
        receipt = await store.enqueue(conn, JOB_SAMPLE.item(run_at=moment))
        assert (await store.get(conn, receipt.id)).due == moment


@pytest.mark.parametrize("wrong", [{"kind": "demo"}, None, "demo", ("demo", 1)])
async def test_what_is_no_item_is_refused_with_its_place(conn: Connection, wrong: Any) -> None:
    store = TASKS_SAMPLE.store()
    for verb in (store.enqueue_many, store.copy):
        with pytest.raises(InvalidInput) as refused:
            await verb(conn, [TASKS_SAMPLE.item(), wrong])
        assert refused.value.field == "items[1]"
    assert await TASKS_SAMPLE.rows(conn) == {}


# -- further columns -------------------------------------------------------------------------------------


def errands(**changes: Any) -> Sample:
    return dataclasses.replace(ERRANDS_SAMPLE, ledger=dataclasses.replace(ERRANDS_SAMPLE.ledger, **changes))


@pytest.mark.parametrize(
    ("sample", "value", "said"),
    [
        (
            errands(extras=(Column("requested_by", "text", choices=("ana", "ben")),)),
            "cleo",
            "must be one of ana, ben, not 'cleo'",
        ),
        (errands(lengths={"requested_by": 3}), "cleo", "must have at most 3 characters, and has 4"),
        (errands(), object, "<class 'object'> is nothing that PostgreSQL can store"),
    ],
    ids=["a word that is not a choice", "too long a text", "no value at all"],
)
async def test_a_further_column_takes_only_what_its_declaration_says(
    conn: Connection, sample: Sample, value: Any, said: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await sample.store().enqueue(conn, sample.item(extras={"requested_by": value}))
    assert str(refused.value) == f"requested_by: {said}"
    receipt = await sample.store().enqueue(conn, sample.item(extras={"requested_by": "ana"}))
    assert (await sample.row(conn, receipt.id))["requested_by"] == "ana"


async def test_a_column_with_a_length_in_its_type_refuses_a_text_and_does_not_cut_it(
    conn: Connection,
) -> None:
    sample = errands(extras=(Column("requested_by", "varchar(255)"),))
    with pytest.raises(InvalidInput, match="too long"):
        await sample.store().enqueue(conn, sample.item(extras={"requested_by": "x" * 256}))


PLACES: list[tuple[str, str, Any, Any]] = [
    ("date", "drawn_on", date(2030, 1, 31), "2030-01-31"),
    ("date", "drawn_on", "2030-01-31", "2030-01-31"),
    ("integer", "floors", "3", 3),
    ("text", "applicant", uuid.UUID(int=5), str(uuid.UUID(int=5)).replace("-", "")),
    ("text", "applicant", Decimal("1.10"), "1.10"),
    ("text", "applicant", True, "t"),
]


@pytest.mark.parametrize(("kind", "name", "value", "stored"), PLACES)
async def test_a_further_column_is_filled_alike_by_every_library(
    conn: Connection, database_url: str, kind: str, name: str, value: Any, stored: Any
) -> None:
    payload = tuple(column for column in PERMITS_SAMPLE.ledger.payload if column != name)
    ledger = dataclasses.replace(PERMITS_SAMPLE.ledger, payload=payload, extras=(Column(name, kind),))
    sample = dataclasses.replace(PERMITS_SAMPLE, ledger=ledger, body={})
    other = await asyncpg.connect(database_url)
    for caller in (conn, other):
        receipt = await sample.store().enqueue(caller, sample.item(extras={name: value}))
        assert (await sample.row(conn, receipt.id))[name] == stored
    await other.close()


@pytest.mark.parametrize(
    "id", ["", "nonsense", "123", 5, None, "00000000-0000-0000-0000-00000000000", "a\x00"]
)
async def test_an_id_that_is_no_uuid_is_refused(conn: Connection, id: Any) -> None:
    store = TASKS_SAMPLE.store()
    for verb in (store.get, store.cancel, store.requeue):
        with pytest.raises(InvalidInput) as refused:
            await verb(conn, id)
        assert refused.value.field == "id"


@pytest.mark.parametrize("id", ["", "five", None, "1.5", float("inf"), 2**70])
async def test_an_id_that_is_no_whole_number_is_refused(conn: Connection, id: Any) -> None:
    store = PARCELS_SAMPLE.store()
    for verb in (store.get, store.cancel, store.requeue):
        with pytest.raises(InvalidInput) as refused:
            await verb(conn, id)
        assert refused.value.field == "parcel_no"


async def test_an_unknown_id_is_not_found_and_a_wrong_verb_is_told_with_state_and_verb(
    conn: Connection,
) -> None:
    store = TASKS_SAMPLE.store()
    with pytest.raises(NotFound, match="no tasks with the id"):
        await store.get(conn, uuid.uuid4())
    key = await TASKS_SAMPLE.bring(conn, "completed")
    with pytest.raises(IllegalEdge) as refused:
        await store.cancel(conn, str(key).upper())
    assert str(refused.value) == (
        f"cannot cancel tasks {key}: it is completed, and cancel is allowed from pending, claimed, running"
    )


@pytest.mark.parametrize("body", [None, "no payload"])
async def test_json_null_and_no_payload_are_accepted_and_the_handler_gets_none(
    conn: Connection, body: Any
) -> None:
    given = {"payload": None} if body is None else {}
    await TASKS_SAMPLE.store().enqueue(conn, Item(kind="demo", **given))
    (claim,) = await TASKS_SAMPLE.store().claim(conn, "w1", 1)
    assert claim.payload is None


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Order:
    number: int
    when: datetime


class Line(msgspec.Struct):
    amount: Decimal


class Letter(pydantic.BaseModel):
    to: str
    on: date


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        (0, 0),
        ("", ""),
        ([], []),
        (False, False),
        ({"é": "\U0001f600", "1": None}, {"é": "\U0001f600", "1": None}),
        ("\\u0000", "\\u0000"),
        (Order(1, datetime(2030, 1, 1, tzinfo=UTC)), {"number": 1, "when": "2030-01-01T00:00:00Z"}),
        ([Line(Decimal("1.10"))], [{"amount": "1.10"}]),
        (Letter(to="ana", on=date(2030, 1, 1)), {"to": "ana", "on": "2030-01-01"}),
        ({"c": Colour.RED, "u": uuid.UUID(int=5)}, {"c": "red", "u": str(uuid.UUID(int=5))}),
        ("x" * (1024 * 1024 - 2), "x" * (1024 * 1024 - 2)),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_has_a_json_form_is_a_payload(conn: Connection, payload: Any, stored: Any) -> None:
    receipt = await TASKS_SAMPLE.store().enqueue(conn, TASKS_SAMPLE.item(payload=payload))
    assert (await TASKS_SAMPLE.store().get(conn, receipt.id)).payload == stored


async def test_the_extremes_of_what_is_allowed_are_stored(conn: Connection) -> None:
    store = TASKS_SAMPLE.store()
    item = TASKS_SAMPLE.item(priority=-(2**31), limit=2**31 - 1, kind="k" * 10_000, delay=intake.LONGEST_WAIT)
    row = await store.get(conn, (await store.enqueue(conn, item, now=NOW)).id)
    assert (row.limit, row.columns["priority"]) == (2**31 - 1, -(2**31))
    assert row.due == after(intake.LONGEST_WAIT)


async def test_a_time_in_any_zone_is_the_same_moment(conn: Connection) -> None:
    """T-6, T-42."""
    store = TASKS_SAMPLE.store()
    tokyo = timezone(timedelta(hours=9))
    receipt = await store.enqueue(conn, TASKS_SAMPLE.item(run_at=after(60).astimezone(tokyo)), now=NOW)
    row = await store.get(conn, receipt.id)
    assert row.due == after(60)
    assert row.columns["next_retry_at"] == "2030-01-01T12:01:00"


async def test_a_delay_of_zero_is_no_delay(conn: Connection) -> None:
    receipt = await TASKS_SAMPLE.store().enqueue(conn, TASKS_SAMPLE.item(delay=0))
    assert (await TASKS_SAMPLE.store().get(conn, receipt.id)).due is None


async def test_a_key_of_an_unclean_tenant_spelling_is_the_same_key(conn: Connection) -> None:
    """A UUID has several spellings and is one tenant: also within one bulk."""
    store, sample = ERRANDS_SAMPLE.store(), ERRANDS_SAMPLE
    tenant = "ABCDEF00-0000-4000-8000-000000000001"
    first, second = await store.enqueue_many(
        conn, [sample.item(key="k", tenant=tenant), sample.item(key="k", tenant=tenant.lower())]
    )
    third = await store.enqueue(conn, sample.item(key="k", tenant=uuid.UUID(tenant)))
    assert {first.id, second.id, third.id} == {first.id}
    assert [first.created, second.created, third.created] == [True, False, False]


@pytest.mark.parametrize(
    ("field", "which"),
    [
        ("state", Filter(states=("pending", "nonsense"))),
        ("kind", Filter(kind="a\x00")),
        ("owner", Filter(owner="\ud800")),
        ("queue", Filter(queue="x")),
        ("tenant", Filter(tenant="x")),
        ("created_after", Filter(created_after=datetime(2030, 1, 1))),  # noqa: DTZ001
        ("created_before", Filter(created_before=datetime(2030, 1, 1))),  # noqa: DTZ001
    ],
)
async def test_a_filter_that_means_nothing_is_refused(conn: Connection, field: str, which: Filter) -> None:
    store = TASKS_SAMPLE.store()
    for verb in (store.find, store.count, store.cancel_where, store.requeue_where):
        with pytest.raises(InvalidInput) as refused:
            await verb(conn, which)
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain é \U0001f600", "plain é \U0001f600"),
        ("\x00", "\ufffd"),
        ("x\ud800yz", "x\ufffdyz"),
        ("y\udc00z", "y\ufffdz"),
        ("\udc00\ud800", "\ufffd\ufffd"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ufefftext", "\ufefftext"),
        ("", ""),
    ],
)
def test_a_text_from_a_failing_run_is_cleaned_and_never_refused(text: str, clean: str) -> None:
    assert intake.absorb(text) == clean
    intake.absorb(text).encode()
    assert intake.absorb(text + "abc", 2) == (clean + "abc")[:2]


async def test_who_asked_is_cleaned_too(conn: Connection) -> None:
    store, by = ERRANDS_SAMPLE.store(), "ana\x00\ud800"
    receipt = await store.enqueue(conn, ERRANDS_SAMPLE.item(), by=by)
    await store.cancel(conn, receipt.id, by=by)
    told = await ERRANDS_SAMPLE.told(conn)
    assert [event["detail_json"]["by"] for event in told] == ["ana\ufffd\ufffd"] * 2
