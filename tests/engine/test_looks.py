"""What is told of a ledger without counting it: depths, the head of its lanes, who holds what, changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import AsyncConnection

from holdfast.engine import looks, tenants
from holdfast.engine.values import Filter, Move
from holdfast.errors import InvalidInput
from holdfast.runtime.overview import tenant_view
from ledgers import JOB_SAMPLE, NOW, ORG, Sample, after, claim_all, every_sample, over

Connection = AsyncConnection[Any]


@pytest.fixture
def database_url(ledgers_url: str) -> str:
    return ledgers_url


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@every_sample
async def test_a_claim_tells_how_long_its_row_could_have_been_taken(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    (claim,) = await store.claim(conn, "w1", 1, now=after(7))
    assert claim.waited == pytest.approx(7, abs=0.002)


@over(lambda sample: sample.ledger.due)
async def test_a_row_that_was_to_wait_is_not_late_before_its_time(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    await store.enqueue(conn, sample.item(delay=60), now=NOW)
    (claim,) = await store.claim(conn, "w1", 1, now=after(65))
    assert claim.waited == pytest.approx(5, abs=0.002)


@over(lambda sample: sample.ledger.due and sample.ledger.times.kind != "epoch_ms")
async def test_a_time_that_no_calendar_has_does_not_stop_a_claim(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    receipt = await store.enqueue(conn, sample.item(), now=NOW)
    created, key = sample.ledger.times.created, sample.ledger.key.column
    query = f"update {sample.ledger.table} set {created} = '-infinity' where {key} = %s"
    await conn.execute(query, [receipt.id])
    (claim,) = await store.claim(conn, "w1", 1, now=after(5))
    assert 0 <= claim.waited < 10**10


@over(lambda sample: sample.ledger.trace)
async def test_the_trace_of_an_enqueue_comes_with_the_claim_and_the_row(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    traced = await store.enqueue(conn, sample.item(trace=TRACE), now=NOW)
    await store.enqueue_many(conn, [sample.item(trace=TRACE), sample.item()], now=NOW)
    claims = await store.claim(conn, "w1", 3, now=after(1))
    assert sorted(claim.trace or "" for claim in claims) == ["", TRACE, TRACE]
    assert (await store.get(conn, traced.id)).trace == TRACE


@over(lambda sample: not sample.ledger.trace)
async def test_a_ledger_without_a_place_for_it_drops_the_trace(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    receipt = await store.enqueue(conn, sample.item(trace=TRACE), now=NOW)
    assert (await store.get(conn, receipt.id)).trace is None


@every_sample
async def test_the_depth_of_a_small_table_is_its_exact_count(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    await store.enqueue_many(conn, [sample.item() for _ in range(5)], now=NOW)
    await claim_all(sample, conn, limit=2)
    assert await store.depth(conn) == await store.stats(conn)
    assert sum(stat.rows for stat in await store.depth(conn)) == 5


@every_sample
async def test_the_depth_of_a_large_table_counts_what_an_index_leads_to_and_estimates_the_rest(
    conn: Connection, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read from end to end: a state without an index is told by the planner's statistics."""
    monkeypatch.setattr(looks, "SMALL", 0)
    store = sample.store()
    await store.enqueue_many(conn, [sample.item() for _ in range(50)], now=NOW)
    await claim_all(sample, conn, limit=10)
    await conn.execute(f"analyze {sample.ledger.table}")
    truth = {stat.state: stat for stat in await store.stats(conn)}
    for stat in await store.depth(conn):
        if stat.exact:
            assert stat == truth[stat.state]
        else:
            assert stat.oldest is None
            assert abs(stat.rows - truth[stat.state].rows) <= 1  # the planner never says none


@over(lambda sample: sample.ledger.name in ("job", "tasks"))
async def test_more_rows_than_are_counted_are_estimated_and_said_so(
    conn: Connection, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "SMALL", 0)
    monkeypatch.setattr(looks, "COUNTED", 20)
    store = sample.store()
    await store.enqueue_many(conn, [sample.item() for _ in range(500)], now=NOW)
    await conn.execute(f"analyze {sample.ledger.table}")
    initial = sample.ledger.lifecycle.initial
    (stat,) = await store.depth(conn, Filter(states=(initial,)))
    assert (stat.rows, stat.exact) == (500, False)


@every_sample
async def test_the_head_is_since_when_the_next_rows_could_have_been_taken(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    assert await store.head(conn, now=after(10)) is None
    await store.enqueue(conn, sample.item(), now=NOW)
    await store.enqueue(conn, sample.item(), now=after(3))
    assert await store.head(conn, now=after(10)) == NOW
    await claim_all(sample, conn, limit=1)
    assert await store.head(conn, now=after(10)) == after(3)
    await claim_all(sample, conn)
    assert await store.head(conn, now=after(10)) is None


@over(lambda sample: sample.ledger.queue)
async def test_the_head_is_that_of_all_queues_also_of_those_that_nobody_serves(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    for seconds, queue in enumerate(("default", "slow", "typo")):
        await store.enqueue(conn, sample.item(queue=queue), now=after(3 - seconds))
    assert await store.head(conn, now=after(10)) == after(1)


async def test_a_tenant_of_a_large_table_is_told_its_own_depth(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under row level security a plan has further parts; and a backlog that is not counted still waits."""
    monkeypatch.setattr(looks, "SMALL", 0)
    monkeypatch.setattr(looks, "COUNTED", 20)
    store = JOB_SAMPLE.store()
    await store.enqueue_many(conn, [JOB_SAMPLE.item() for _ in range(500)], now=LONG_AGO)
    await conn.execute("analyze job")
    await conn.execute("set enable_seqscan = off")  # as on a table that is really large
    async with conn.transaction():
        await tenants.confine(conn, JOB_SAMPLE.ledger, ORG)
        mine = await store.depth(conn, Filter(tenant=ORG))
        view = await tenant_view(conn, store, ORG)
    assert {stat.state for stat in mine} == set(JOB_SAMPLE.ledger.states)
    (queued,) = (stat for stat in mine if stat.state == "queued")
    assert not queued.exact
    assert queued.rows > 20
    assert view.waiting_since == LONG_AGO


@every_sample
async def test_how_many_rows_stand_before_one_is_what_a_claim_would_take_first(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    receipts = [await store.enqueue(conn, sample.item(), now=after(n)) for n in range(4)]
    asked: dict[str, Any] = {"kinds": [sample.item().kind or sample.ledger.name], "now": after(10)}

    async def ahead(limit: int = 1000) -> list[int | None]:
        return [await store.ahead(conn, receipt.id, limit=limit, **asked) for receipt in receipts]

    assert sorted(await ahead(), key=str) == [0, 1, 2, 3]
    assert sorted(await ahead(limit=2), key=str) == [0, 1, 2, 2]
    order = await ahead()
    (first,) = await store.claim(conn, "w1", 1, now=after(10))
    assert order[[receipt.id for receipt in receipts].index(first.id)] == 0
    assert await store.ahead(conn, first.id, **asked) is None


@every_sample
async def test_since_when_a_row_is_held(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    (claim,) = await claim_all(sample, conn, at=7)
    times = sample.ledger.times
    told = times.claimed or times.started or times.updated or sample.ledger.journal
    assert await store.held_since(conn, await store.get(conn, claim.id)) == (after(7) if told else None)


@every_sample
async def test_who_has_touched_a_row(conn: Connection, connect: Any, sample: Sample) -> None:
    store = sample.store()
    receipt = await store.enqueue(conn, sample.item(), now=NOW)
    other = await connect()
    async with other.transaction():
        await store.claim(other, "w1", 1, now=after(1))
        found = await store.touched(conn, receipt.id)
        assert found
        assert (found.state, found.locked, found.pid) == (
            sample.ledger.lifecycle.initial,
            True,
            other.info.backend_pid,
        )
    found = await store.touched(conn, receipt.id)
    assert found
    assert (found.state, found.locked) == (sample.ledger.to("claim"), False)


@every_sample
async def test_who_holds_how_many_rows(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    await store.enqueue_many(conn, [sample.item() for _ in range(4)], now=NOW)
    mine = await claim_all(sample, conn, "w1", 2)
    await claim_all(sample, conn, "w2", 1)
    assert await store.held(conn) == {"w1": 2, "w2": 1}
    await store.move(conn, [Move(verb="finish", claim=claim) for claim in mine], now=after(20))
    assert await store.held(conn) == {"w2": 1}


@over(lambda sample: sample.ledger.journal)
async def test_changes_are_the_events_of_all_rows_since_a_moment(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    receipt = await store.enqueue(conn, sample.item(), now=NOW)
    (claim,) = await claim_all(sample, conn)
    await store.move(conn, [Move(verb="finish", claim=claim)], now=after(20))
    every = await store.changes(conn, NOW - timedelta(days=1))
    assert [change.seq for change in every] == sorted(change.seq for change in every)
    assert {change.id for change in every} == {receipt.id}
    assert [event.seq for event in await store.timeline(conn, receipt.id)] == [c.seq for c in every]
    assert [change.next for change in await store.changes(conn, after(20))] == [sample.ledger.to("finish")]
    assert await store.changes(conn, after(21)) == []
    with pytest.raises(InvalidInput):
        await store.changes(conn, datetime(2030, 1, 1))  # noqa: DTZ001


@over(lambda sample: sample.ledger.journal)
async def test_changes_of_one_moment_are_read_page_by_page(conn: Connection, sample: Sample) -> None:
    """A bulk is one statement, and all its events have one time."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item() for _ in range(7)], now=NOW)
    every, since, after_ = list[int](), NOW, -1
    while page := await store.changes(conn, since, after=after_, limit=3):
        every += [change.seq for change in page]
        since, after_ = page[-1].at, page[-1].seq
    assert len(every) == len(set(every)) == 7


@every_sample
async def test_the_mark_of_a_row_changes_when_it_does(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    receipts = [await store.enqueue(conn, sample.item(), now=NOW) for _ in range(2)]
    keys = [receipt.id for receipt in receipts]
    first = await store.marks(conn, keys)
    assert set(first) == set(keys)
    assert await store.marks(conn, keys) == first
    (claim,) = await claim_all(sample, conn, limit=1)
    second = await store.marks(conn, keys)
    assert {key for key in keys if first[key] != second[key]} == {claim.id}
    await store.move(conn, [Move(verb="finish", claim=claim)], now=after(20))
    assert (await store.marks(conn, keys))[claim.id] != second[claim.id]


@over(lambda sample: sample.ledger.journal is None)
async def test_a_ledger_without_a_journal_has_no_changes(conn: Connection, sample: Sample) -> None:
    with pytest.raises(InvalidInput, match="has no journal"):
        await sample.store().changes(conn, datetime(2030, 1, 1, tzinfo=UTC))


@over(lambda sample: sample.ledger.lifecycle.of("cancel"))
async def test_an_order_about_many_rows_tells_how_far_it_has_come(
    conn: Connection, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.orders.BATCH", 2)
    store, told = sample.store(), list[int]()
    await store.enqueue_many(conn, [sample.item() for _ in range(5)], now=NOW)
    assert await store.cancel_where(conn, Filter(), tell=told.append, now=after(1)) == 5
    assert told == [2, 4, 5]
