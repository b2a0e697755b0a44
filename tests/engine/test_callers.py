"""What is sent for an enqueue, and how: few statements, a savepoint only where one is needed."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine import callers
from holdfast.engine.callers import KEEP, SAVE, UNDO, Query, all_or_none
from holdfast.engine.roles import Column
from holdfast.errors import IdempotencyConflict, InvalidInput
from ledgers import (
    ERRANDS_SAMPLE,
    JOB_SAMPLE,
    NOW,
    PARCELS_SAMPLE,
    TASKS_SAMPLE,
    Connection,
    Sample,
    after,
)

Sent = list[Query]
OURS = pytest.mark.parametrize("sample", [JOB_SAMPLE, TASKS_SAMPLE], ids=str)


@pytest.fixture
def database_url(ledgers_url: str) -> str:
    return ledgers_url


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Every query that goes to the server."""
    queries: Sent = []
    send = callers._psycopg_async

    async def spy(conn: Any, query: Query) -> Any:
        queries.append(query)
        return await send(conn, query)

    monkeypatch.setattr(callers, "_psycopg_async", spy)
    return queries


# -- how many statements ---------------------------------------------------------------------------------


@OURS
async def test_one_row_without_a_key_is_one_statement_and_no_savepoint(
    conn: Connection, sent: Sent, sample: Sample
) -> None:
    async with conn.transaction():
        await sample.store().enqueue(conn, sample.item(delay=5, priority=1), by="ana")
    assert len(sent) == 1


async def test_a_key_takes_a_savepoint_where_a_repeat_needs_a_second_look(
    conn: Connection, sent: Sent
) -> None:
    """J-4, J-5: `tasks` answers a repeat by the same statement, and needs none."""
    async with conn.transaction():
        await TASKS_SAMPLE.store().enqueue(conn, TASKS_SAMPLE.item(key="k"))
        assert len(sent) == 1
        await JOB_SAMPLE.store().enqueue(conn, JOB_SAMPLE.item(key="k"))
        assert [sent[1], sent[3]] == [SAVE, KEEP]
        await JOB_SAMPLE.store().enqueue(conn, JOB_SAMPLE.item(key="k"))
        assert [sent[4], sent[7]] == [SAVE, KEEP]
    assert len(sent) == 8


def unlike(sample: Sample) -> list[Any]:
    """Items that fill as many different columns as there are."""
    given: list[dict[str, Any]] = [
        {},
        {"delay": 60},
        {"run_at": after(90)},
        {"priority": 7, "payload": None},
        {"limit": 0},
        {"key": "k"},
    ]
    if sample is JOB_SAMPLE:
        given += [{"queue": "slow"}, {"backoff": "none", "delay": 3, "key": "k2"}]
    return [sample.item(**fields) for fields in given]


@OURS
async def test_a_bulk_of_unlike_items_is_one_statement(conn: Connection, sent: Sent, sample: Sample) -> None:
    """J-6."""
    receipts = await sample.store().enqueue_many(conn, unlike(sample), now=NOW)
    assert all(receipt.created for receipt in receipts)
    assert len([query for query in sent if query.params]) == 1
    if sample.ledger.journal:
        assert await sample.events(conn) == [(None, "queued")] * len(receipts)


@OURS
async def test_a_row_of_such_a_bulk_is_like_one_that_came_alone(conn: Connection, sample: Sample) -> None:
    """What the declaration says of the table's defaults is true."""
    store, key = sample.store(), sample.ledger.idempotency.column

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in ("id", key)}

    together = await store.enqueue_many(conn, unlike(sample), by="ana", now=NOW)
    rows = await sample.rows(conn)
    for item, receipt in zip(unlike(sample), together, strict=True):
        key_of_its_own = None if item.key is None else f"{item.key}, alone"
        alone = await store.enqueue(conn, replace(item, key=key_of_its_own), by="ana", now=NOW)
        assert plain(await sample.row(conn, alone.id)) == plain(rows[receipt.id])
        assert rows[receipt.id][key] == item.key


async def test_a_ledger_that_tells_no_defaults_gets_a_statement_for_each_set_of_columns(
    conn: Connection, sent: Sent
) -> None:
    sample = PARCELS_SAMPLE
    items = [sample.item(), sample.item(delay=5), sample.item(payload=None), sample.item()]
    receipts = await sample.store().enqueue_many(conn, items, now=NOW)
    assert len([query for query in sent if query.params]) == 3
    waits = [(await sample.store().get(conn, receipt.id)).due for receipt in receipts]
    assert waits == [None, NOW + timedelta(seconds=5), None, None]


async def test_a_column_whose_default_is_not_told_keeps_its_own_statement(
    conn: Connection, sent: Sent
) -> None:
    defaults = {"priority": 0, "max_attempts": 5, "queue": "default", "payload": None}
    extras = (Column("requested_by", "text"),)
    sample = replace(ERRANDS_SAMPLE, ledger=replace(ERRANDS_SAMPLE.ledger, defaults=defaults, extras=extras))
    items = [
        sample.item(priority=1),
        sample.item(queue="slow", delay=1),
        sample.item(extras={"requested_by": "ana"}),
    ]
    await sample.store().enqueue_many(conn, items, now=NOW)
    assert len([query for query in sent if query.params]) == 2
    asked = [row["requested_by"] for row in (await sample.rows(conn)).values()]
    assert sorted(asked, key=str) == [None, None, "ana"]


# -- all or none -----------------------------------------------------------------------------------------


def steps(*failures: type[BaseException]) -> Generator[Query, Any, str]:
    yield Query(b"work")
    for failure in failures:
        raise failure
    return "done"


def test_what_goes_well_is_kept() -> None:
    given = all_or_none(steps())
    assert next(given) is SAVE
    assert given.send([]).sql == b"work"
    assert given.send([]) is KEEP
    with pytest.raises(StopIteration) as end:
        given.send([])
    assert end.value.value == "done"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_what_fails_is_undone_and_the_error_is_its_own(failure: type[BaseException]) -> None:
    given = all_or_none(steps(failure))
    assert next(given) is SAVE
    assert given.send([]).sql == b"work"
    assert given.send([]) is UNDO
    assert given.send([]) is KEEP
    with pytest.raises(failure):
        given.send([])


def test_when_undoing_fails_too_the_first_error_is_told() -> None:
    given = all_or_none(steps(ValueError))
    next(given)
    given.send([])
    assert given.send([]) is UNDO
    with pytest.raises(ValueError):  # noqa: PT011  it has no words
        given.throw(OSError("the connection is gone"))


def test_steps_that_are_left_halfway_end_quietly() -> None:
    given = all_or_none(steps())
    next(given)
    given.send([])
    given.close()


# -- placeholders ----------------------------------------------------------------------------------------


def test_placeholders_get_numbers_in_their_order_and_one_name_one_number() -> None:
    text = b"select %(b)s, %(a)b::text[], %(b)s"
    assert callers._numbered(text) == ("select $1, $2::text[], $1", ("b", "a"))
    assert callers._percent(text) == "select %(b)s, %(a)s::text[], %(b)s"


def test_the_wrong_kind_of_connection_is_told_before_anything_is_sent() -> None:
    with pytest.raises(InvalidInput, match=r"conn: is no connection that we know, but builtins\.str"):
        callers.run_sync("postgresql://", steps())


# -- psycopg's pipeline ----------------------------------------------------------------------------------


async def test_an_enqueue_in_a_pipeline_is_written(conn: Connection) -> None:
    sample = JOB_SAMPLE
    async with conn.pipeline(), conn.transaction():
        first = await sample.store().enqueue(conn, sample.item(key="k"))
        again = await sample.store().enqueue(conn, sample.item(key="k"))
        with pytest.raises(IdempotencyConflict):
            await sample.store().enqueue(conn, sample.item(key="k", kind="another"))
        await sample.store().enqueue(conn, sample.item())
    assert (first.created, again.id, again.created) == (True, first.id, False)
    assert len(await sample.rows(conn)) == 2
