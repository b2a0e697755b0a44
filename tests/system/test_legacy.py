"""Old records of `system.jobs`: how they read, whatever shape they have, and that reading changes nothing."""

from __future__ import annotations

import doctest
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.system import legacy
from holdfast.apps.system.legacy import Record, field, legacy_records, read_record
from holdfast.apps.system.types import STATUSES, JobType
from holdfast.db.pool import Connection

AT = 1_738_324_800_123
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
COLUMNS = [
    "id",
    "job_type",
    "status",
    "message",
    "result",
    "error_message",
    "parameters",
    "retry_count",
    "created_at",
    "finished_at",
    "priority",
]


def test_a_record_of_today_reads_as_it_is() -> None:
    """Y-40, Y-42: every field."""
    today = {
        "id": "SE-4fK2mZ0q",
        "job_type": "stream_eviction",
        "status": "retrying",
        "message": "no space",
        "exception_trace": "Traceback:\n  here",
        "parameters": {"table": "signals", "nested": [1, [2]]},
        "idempotency_key": "k",
        "retry_count": 2,
        "max_retries": 5,
        "created_at": AT,
        "updated_at": AT + 1,
        "started_at": AT + 2,
        "finished_at": None,
        "node_id": "host-1",
        "queue": "slow",
        "priority": -4,
    }
    kind = JobType.STREAM_EVICTION
    assert read_record(today) == Record(**(today | {"job_type": kind, "type_word": "stream_eviction"}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"result": "12 rows", "status": "Completed"}, "12 rows"),
        ({"error_message": "no space", "status": "Failed"}, "no space"),
        ({"message": "m", "result": "r", "error_message": "e", "status": "Failed"}, "m"),
        ({"message": "m", "result": "r", "error_message": "e", "status": "Completed"}, "m"),
        ({"result": "r", "error_message": "e", "status": "FAILED"}, "e"),
        ({"result": "r", "error_message": "e", "status": "completed"}, "r"),
        ({"result": "r", "error_message": "e", "status": "Cancelled"}, "r"),
        ({"result": "r", "error_message": None, "status": "Failed"}, "r"),
        ({"result": None, "error_message": "e", "status": "Completed"}, "e"),
        ({"message": "", "error_message": "e", "status": "Failed"}, "e"),
        ({"message": "", "status": "Failed"}, ""),
        ({"message": None, "result": None, "error_message": None, "status": "Failed"}, None),
        ({"status": "Running"}, None),
        ({"result": {"rows": 3}, "status": "Completed"}, '{"rows": 3}'),
        ({"RESULT": "r", "Status": "Completed"}, "r"),
        ({"result": "a\x00\ud800", "status": "Completed"}, "a\ufffd\ufffd"),
    ],
)
def test_result_and_error_message_read_as_message(row: dict[str, Any], message: str | None) -> None:
    """Y-40: the newest field wins, then the one that fits the outcome."""
    assert read_record({"id": "1"} | row).message == message


def test_queries_that_name_an_old_field_mean_message() -> None:
    """Y-40: in any case."""
    assert {field(name) for name in ("result", "error_message", "Result", "ERROR_MESSAGE", "message")} == {
        "message"
    }
    assert field("Status") == "status"
    assert field("results") == "results"


@pytest.mark.parametrize(
    ("stored", "parameters"),
    [
        (["a", "b"], {"arg0": "a", "arg1": "b"}),
        ([{"x": 1}, [2], None], {"arg0": {"x": 1}, "arg1": [2], "arg2": None}),
        ([], {}),
        (None, {}),
        ({}, {}),
        ({"ledger": "job"}, {"ledger": "job"}),
        ('["a","b"]', {"arg0": "a", "arg1": "b"}),
        (' {"ledger": "job"} ', {"ledger": "job"}),
        ("[]", {}),
        ("null", {}),
        ("", {}),
        ("  ", {}),
        (json.dumps(json.dumps(["a"])), {"arg0": "a"}),
        ('"plain"', {"arg0": "plain"}),
        ('"7"', {"arg0": "7"}),
        ("not JSON", {"arg0": "not JSON"}),
        ("[NaN]", {"arg0": "[NaN]"}),
        ("[" * 100_000, {"arg0": "[" * 100_000}),
        (7, {"arg0": 7}),
        (False, {"arg0": False}),
        (0, {"arg0": 0}),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_old_parameters_read_as_an_object(stored: Any, parameters: dict[str, Any]) -> None:
    """Y-41: arrays by place, none as none, texts of JSON parsed first."""
    assert read_record({"parameters": stored}).parameters == parameters


def test_old_states_keep_their_meaning_in_any_case() -> None:
    """Y-2, Y-42: one that nobody knows is shown as it is."""
    for status in STATUSES:
        for spelt in (status, status.upper(), status.title()):
            assert read_record({"status": spelt}).status == status
    assert read_record({"status": "Canceled"}).status == "cancelled"
    assert read_record({"status": "Paused"}).status == "paused"
    assert read_record({}).status == "unknown"


@pytest.mark.parametrize("word", ["vacuum", "Unknown", "", None, 7])
def test_an_old_type_that_nobody_knows_reads_as_unknown(word: Any) -> None:
    """Y-3, Y-42: with the word that it had."""
    record = read_record({"job_type": word})
    assert record.job_type is JobType.UNKNOWN
    assert record.type_word == ("" if word is None else str(word))
    assert read_record({"job_type": "StreamEviction"}).job_type is JobType.STREAM_EVICTION


@pytest.mark.parametrize(
    ("stored", "moment"),
    [
        (AT, AT),
        (str(AT), AT),
        (float(AT), AT),
        ("2025-01-31T12:00:00.123456+00:00", AT),
        ("2025-01-31T12:00:00.123", AT),
        ("2025-01-31 13:00:00.123+01", AT),
        (datetime(2025, 1, 31, 12, 0, 0, 123456, tzinfo=UTC), AT),
        (None, None),
        ("yesterday", None),
        (True, None),
        (float("nan"), None),
        ([], None),
    ],
)
def test_old_times_read_as_milliseconds(stored: Any, moment: int | None) -> None:
    """Y-4, Y-42."""
    assert read_record({"created_at": stored}).created_at == moment


def test_what_an_old_record_lacks_has_the_defaults_of_the_seed() -> None:
    """Y-42: an empty one is a record, too."""
    record = read_record({})
    assert (record.retry_count, record.max_retries) == (0, 3)
    assert (record.id, record.parameters, record.priority, record.created_at) == ("", {}, None, None)
    assert read_record({"retry_count": 300, "max_retries": -1}).retry_count == 0


@given(st.dictionaries(st.sampled_from(COLUMNS), ANYTHING))
def test_no_record_is_refused_and_none_is_changed(row: dict[str, Any]) -> None:
    """Y-40..Y-42: whatever stands in it, and reading it twice gives the same."""
    before = repr(row)
    record = read_record(row)
    assert repr(row) == before
    assert isinstance(record.parameters, dict)
    assert repr(read_record(row)) == repr(record)


def test_the_examples_of_old_records_are_true() -> None:
    """Y-40."""
    assert doctest.testmod(legacy).failed == 0


# The table


OLD = """
create schema if not exists system;
create table system.jobs_legacy (
    id text primary key, job_type text, status text, result text, error_message text,
    parameters jsonb, created_at bigint, weight numeric
)
"""


async def snapshot(conn: Connection) -> list[Any]:
    query = "select t.ctid::text, t.xmin::text, t::text from system.jobs_legacy as t order by 1"
    return await (await conn.execute(query)).fetchall()


async def test_legacy_arrays_result_error_message_and_mixed_case_states_read_as_the_mapping_says_and_reading_writes_nothing(  # noqa: E501
    conn: Connection,
) -> None:
    """Y-40..Y-43: newest first; also for somebody who can only read."""
    await conn.execute(OLD)
    await conn.execute(
        """
        insert into system.jobs_legacy values
            ('old-1', 'Flush', 'Completed', '12 rows', null, '["job", 24]', 1000, 'NaN'),
            ('old-2', 'Backup', 'FAILED', 'r', 'no space', '[]', 3000, 1),
            ('old-3', 'Defragment', 'canceled', null, null, null, null, 1),
            ('old-4', 'stream_eviction', 'Running', null, null, '"{\\"table\\": \\"signals\\"}"', 2000, 1e400)
        """
    )
    before = await snapshot(conn)
    records = await legacy_records(conn)
    told = [(r.id, str(r.job_type), r.status, r.message, dict(r.parameters), r.created_at) for r in records]
    assert told == [
        ("old-2", "backup", "failed", "no space", {}, 3000),
        ("old-4", "stream_eviction", "running", None, {"table": "signals"}, 2000),
        ("old-1", "flush", "completed", "12 rows", {"arg0": "job", "arg1": 24}, 1000),
        ("old-3", "unknown", "cancelled", None, {}, None),
    ]
    assert records[-1].type_word == "Defragment"
    assert await snapshot(conn) == before
    async with conn.transaction():
        await conn.execute("set transaction read only")
        assert await legacy_records(conn) == records
        assert await legacy_records(conn, limit=2) == records[:2]
        assert await legacy_records(conn, id="old-1") == [records[2]]
        assert await legacy_records(conn, id="old-9") == []


async def test_records_of_one_time_are_in_the_order_of_their_ids_whatever_the_column_is_called(
    conn: Connection,
) -> None:
    """Y-43: pages are read one by one, and none may repeat a record."""
    await conn.execute("create schema if not exists system")
    await conn.execute("create table system.jobs_legacy (job_id text, created_at bigint)")
    await conn.execute("insert into system.jobs_legacy values ('b', 1), ('c', 1), ('a', 1)")
    assert [record.id for record in await legacy_records(conn)] == ["c", "b", "a"]


async def test_without_an_old_table_there_are_no_old_records(conn: Connection) -> None:
    """Y-43: neither where the schema is there nor where it is not; the caller's transaction goes on."""
    async with conn.transaction():
        assert await legacy_records(conn) == []
        await conn.execute("create schema if not exists system")
        assert await legacy_records(conn) == []


async def test_an_old_table_is_found_in_the_schema_that_holdfast_has(conn: Connection) -> None:
    """Y-43: whatever it is called."""
    await conn.execute('create schema "Odd ""one"')
    await conn.execute('create table "Odd ""one".jobs_legacy as select 7 as id')
    assert [record.id for record in await legacy_records(conn, schema='Odd "one')] == ["7"]
    assert await legacy_records(conn) == []


@pytest.mark.parametrize(
    "definition",
    [
        "create table system.jobs_legacy (job_id uuid, parameters text[], created_at timestamptz)",
        "create table system.jobs_legacy (job_id uuid, parameters text, created_at text)",
        "create table system.jobs_legacy ()",
        "create view system.jobs_legacy as select 1 as id, array['a'] as parameters, now() as created_at",
        "create table system.jobs_legacy (id bytea, record jsonb, status int, t text)",
    ],
    ids=["other types", "texts", "no column", "a view", "odd columns"],
)
async def test_an_old_table_is_read_whatever_columns_it_has(conn: Connection, definition: str) -> None:
    """Y-43: it is somebody else's."""
    await conn.execute("create schema if not exists system")
    await conn.execute(definition)  # type: ignore[arg-type]
    if definition.startswith("create table"):
        await conn.execute("insert into system.jobs_legacy default values")
    (record,) = await legacy_records(conn)
    assert record.job_type is JobType.UNKNOWN
    assert record.status == "unknown"
