"""Bad input, line by line of the table in the specification: a typed error, and nothing is written."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast.engine import intake
from holdfast.engine.values import Filter, Item
from holdfast.errors import IllegalEdge, InvalidInput, NotFound
from ledgers import (
    ERRANDS_SAMPLE,
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


# (what is wrong, the field that the error names, the item)
BAD: list[tuple[str, str, dict[str, Any]]] = [
    ("type missing", "type", {"kind": None}),
    ("type empty", "type", {"kind": ""}),
    ("type blank", "type", {"kind": " \t\n"}),
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
    ("run_at without a zone", "run_at", {"run_at": datetime(2030, 1, 1)}),  # noqa: DTZ001
    ("run_at not a time", "run_at", {"run_at": "2030-01-01T00:00:00Z"}),
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
