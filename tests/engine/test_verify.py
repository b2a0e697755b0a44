"""Replaying the events gives the row, and where it does not, the first lie is named (J-32, J-34 to J-36)."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg.sql import SQL, Identifier

import test_pgbouncer
from holdfast import Holdfast, Settings
from holdfast.engine import verify as module
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import PERSONAL, Verb
from holdfast.engine.replay import Detail, Facts, Replay, Rules
from holdfast.engine.roles import Journal
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Filter, Item, Move
from holdfast.engine.verify import Lie, Report, verify
from holdfast.errors import InvalidInput, NotFound
from ledgers import (
    ERRANDS,
    ERRANDS_SAMPLE,
    FAULT,
    JOB,
    JOB_SAMPLE,
    ORG,
    PARCELS,
    SYNCS,
    TASKS,
    Connection,
    Sample,
    after,
)

pooled = test_pgbouncer.pooled  # a fixture
STORE = Store(ERRANDS)
LONG = Fault(code="C" * 100, message="ü" * 5000)


@pytest.fixture
def database_url(ledgers_url: str) -> str:
    return ledgers_url


@pytest.fixture(autouse=True)
async def _index(conn: Connection) -> None:
    """As on `job_event`; without it every row would read the whole journal."""
    await conn.execute("create index if not exists errand_event_job on town.errand_event (job_id, ts)")


# -- a true history ---------------------------------------------------------------------------------------

# What the events of `full_life` are, by their place; the breaks below speak of these.
LIFE = (
    "enqueue",
    "claim",
    "progress",
    "retry",
    "claim, first hop",
    "claim, second hop",
    "exhaust, first hop",
    "exhaust, second hop",
    "requeue",
    "claim again",
    "finish",
)


STORES = {ERRANDS.name: STORE, JOB.name: Store(JOB)}


async def claimed(conn: Connection, at: float, worker: str = "w1", store: Store = STORE) -> Claimed:
    (claim,) = await store.claim(conn, worker, 1, now=after(at))
    return claim


async def say(
    conn: Connection,
    verb: Verb,
    claim: Claimed,
    at: float,
    fault: Fault | None = FAULT,
    store: Store = STORE,
) -> None:
    await store.move_one(conn, Move(verb=verb, claim=claim, fault=fault, result={"n": 1}), now=after(at))


async def full_life(conn: Connection, store: Store = STORE) -> Any:
    """One row that was enqueued, failed twice, was let run again, and succeeded."""
    receipt = await store.enqueue(conn, ERRANDS_SAMPLE.item(), by="ana", now=after(0))
    first = await claimed(conn, 1, store=store)
    await store.progress(conn, first, 50, "half", now=after(2))
    await say(conn, "retry", first, 3, LONG, store)
    await say(conn, "exhaust", await claimed(conn, 10, "w2", store), 11, store=store)
    await store.requeue(conn, receipt.id, by="ana", now=after(12))
    await say(conn, "finish", await claimed(conn, 13, store=store), 14, None, store)
    return receipt.id


async def lie_of(conn: Connection, key: Any, store: Store = STORE) -> Lie | None:
    """What is said of one row; the same when all rows are verified."""
    report = await verify(store, conn, id=key)
    assert (report.rows, report.found, len(report.lies)) == (1, len(report.lies), report.found)
    assert [lie for lie in (await verify(store, conn)).lies if lie.id == key] == list(report.lies)
    return report.lies[0] if report.lies else None


async def seqs_of(conn: Connection, key: Any, sample: Sample = ERRANDS_SAMPLE) -> list[int]:
    return [event["seq"] for event in await sample.told(conn, key)]


async def tamper(conn: Connection, sample: Sample, query: str, **params: Any) -> None:
    """Writes past the engine, and past the trigger that keeps `job_event` as it is: a superuser can."""
    text = query.replace("town.errand", sample.ledger.table).encode()
    async with conn.transaction():
        await conn.execute("set local session_replication_role = replica")
        await conn.execute(text, params if b"%" in text else None)


both_ledgers = pytest.mark.parametrize("sample", [ERRANDS_SAMPLE, JOB_SAMPLE], ids=str)


@both_ledgers
async def test_a_true_history_passes(conn: Connection, sample: Sample) -> None:
    """J-34."""
    store = STORES[sample.ledger.name]
    key = await full_life(conn, store)
    assert len(await seqs_of(conn, key, sample)) == len(LIFE)
    assert await verify(store, conn, id=key) == Report(rows=1, events=len(LIFE), found=0, lies=())


async def test_every_state_and_every_verb_of_a_real_ledger_passes(conn: Connection) -> None:
    """J-32: each way into each state, by every legal verb from there."""
    for verb, (states, _) in ERRANDS_SAMPLE.legal.items():
        for state in states:
            if verb in ("enqueue", "claim"):
                continue
            key = await ERRANDS_SAMPLE.bring(conn, state, priority=1)
            match verb:
                case "cancel":
                    await STORE.cancel(conn, key, by="ana", now=after(50))
                case "requeue":
                    await STORE.requeue(conn, key, by="ana", now=after(50))
                case _:
                    await say(conn, verb, await ERRANDS_SAMPLE.held(conn, key), 50)
            assert await lie_of(conn, key) is None, f"{verb} from {state}"
            await ERRANDS_SAMPLE.update(conn, key, priority=-1, queue="elsewhere")


async def test_a_clock_that_steps_back_writes_no_lie(conn: Connection) -> None:
    """J-35."""
    receipt = await STORE.enqueue(conn, ERRANDS_SAMPLE.item(), now=after(0))
    claim = await claimed(conn, 10)
    await STORE.progress(conn, claim, 1, now=after(5))
    await say(conn, "finish", claim, 4)
    assert await lie_of(conn, receipt.id) is None


async def test_what_people_may_change_by_sql_is_no_lie(conn: Connection) -> None:
    key = await full_life(conn)
    await ERRANDS_SAMPLE.update(conn, key, run_at="2031-01-01", updated_at="2031-01-01", priority=9)
    assert await lie_of(conn, key) is None


# -- lies -------------------------------------------------------------------------------------------------

EVENT = "update town.errand_event set {} where seq = %(seq)s"
DETAIL = EVENT.format("detail_json = detail_json || '{}'")
SAYS = "event {seq} says "

# What is done to the event in this place of LIFE, the place of the event that is named, and the words.
BROKEN_EVENTS: dict[str, tuple[int, str, int, str]] = {
    "an event is gone": (
        *(1, "delete from town.errand_event where seq = %(seq)s", 2),
        SAYS + "running → running, but the row was queued",
    ),
    "the first event is gone": (
        *(0, "delete from town.errand_event where seq = %(seq)s", 1),
        SAYS + "queued → running, but the row had no event before",
    ),
    "half a move is gone": (
        *(7, "delete from town.errand_event where seq = %(seq)s", 8),
        SAYS + "dead_letter → queued, but the row was failed",
    ),
    "it comes from elsewhere": (
        *(3, EVENT.format("prev_status = 'queued'"), 3),
        SAYS + "queued → failed, but the row was running",
    ),
    "it comes from nothing": (
        *(3, EVENT.format("prev_status = null"), 3),
        SAYS + "nothing → failed, but the row was running",
    ),
    "it goes elsewhere": (
        *(10, EVENT.format("next_status = 'canceled'"), 10),
        SAYS + "finish: running → canceled, but finish leads from running to succeeded",
    ),
    "a state that there is not": (
        *(10, EVENT.format("next_status = 'so la la\n'"), 10),
        SAYS + r"finish: running → 'so la la\n', but finish leads from running to succeeded",
    ),
    "a verb that there is not": (
        *(3, DETAIL.format('{"verb": "frob"}'), 3),
        SAYS + "frob: running → failed, but there is no such verb",
    ),
    "a verb that is not allowed": (
        *(1, DETAIL.format('{"verb": "finish"}'), 1),
        SAYS + "finish: queued → running, but finish is not allowed from queued",
    ),
    "a progress of a row that waits": (
        *(1, DETAIL.format('{"verb": "progress"}'), 1),
        SAYS + "progress: queued → running, but progress is not allowed from queued",
    ),
    "a first event that is no enqueue": (
        *(0, DETAIL.format('{"verb": "claim"}'), 0),
        SAYS + "claim: nothing → queued, but claim is not allowed from nothing",
    ),
    "a move that another interrupts": (
        *(7, DETAIL.format('{"verb": "cancel"}'), 7),
        SAYS + "cancel: failed → dead_letter, but the exhaust of event {before} must go on to dead_letter",
    ),
    "a move that goes on elsewhere": (
        *(7, EVENT.format("next_status = 'canceled'"), 7),
        SAYS + "exhaust: failed → canceled, but the exhaust of event {before} must go on to dead_letter",
    ),
    "a move at two times": (
        *(5, EVENT.format("ts = ts + interval '1 us'"), 5),
        "event {seq} is dated 2030-01-01T12:00:10.000001Z, and belongs to the claim of event {before} "
        "(2030-01-01T12:00:10Z)",
    ),
    "a time before the last": (
        *(3, EVENT.format("ts = ts - interval '1 h'"), 3),
        "event {seq} is dated 2030-01-01T11:00:03Z, before event {before} (2030-01-01T12:00:02Z)",
    ),
    "a time beyond all": (
        *(3, EVENT.format("ts = 'infinity'"), 4),
        "event {seq} is dated 2030-01-01T12:00:10Z, before event {before} (infinity)",
    ),
    "a claim without a new fence": (
        *(1, DETAIL.format('{"fence": 0}'), 1),
        SAYS + "fence 0, but 1 is what the events before it lead to",
    ),
    "a new fence without a claim": (
        *(3, DETAIL.format('{"fence": 2}'), 3),
        SAYS + "fence 2, but 1 is what the events before it lead to",
    ),
    "a fence that is missing": (
        *(10, EVENT.format("detail_json = detail_json - 'fence'"), 10),
        SAYS + "fence nothing, but 3 is what the events before it lead to",
    ),
    "a progress with another fence": (
        *(2, DETAIL.format('{"fence": 7}'), 2),
        SAYS + "fence 7, but 1 is what the events before it lead to",
    ),
    "a second hop with another fence": (
        *(5, DETAIL.format('{"fence": 7}'), 5),
        SAYS + "fence 7, but 2 is what the events before it lead to",
    ),
    "an attempt too many": (
        *(3, DETAIL.format('{"attempt": 2}'), 3),
        SAYS + "attempt 2, but 1 is what the events before it lead to",
    ),
    "a requeue that keeps the attempts": (
        *(8, DETAIL.format('{"attempt": 1}'), 8),
        SAYS + "attempt 1, but 0 is what the events before it lead to",
    ),
    "a new row with attempts": (
        *(0, DETAIL.format('{"attempt": 1}'), 0),
        SAYS + "attempt 1, but 0 is what the events before it lead to",
    ),
    "a claim by nobody": (
        *(1, EVENT.format("detail_json = detail_json - 'worker'"), 1),
        "event {seq} is a claim that names no worker",
    ),
    "a worker that did not hold the row": (
        *(10, DETAIL.format('{"worker": "w9"}'), 10),
        "event {seq} was written by w9, but the row was held by w1",
    ),
    "no detail": (5, EVENT.format("detail_json = null"), 5, "event {seq} has no detail"),
    "a detail that is none": (
        *(5, EVENT.format("detail_json = '[]'"), 5),
        "event {seq} has a detail that cannot be read: Expected `object`, got `array`",
    ),
    "a detail without a verb": (
        *(5, EVENT.format("detail_json = '{}'"), 5),
        "event {seq} has a detail that cannot be read: Object missing required field `verb`",
    ),
    "a detail with odd values": (
        *(5, DETAIL.format('{"fence": "two"}'), 5),
        "event {seq} has a detail that cannot be read: Expected `int | null`, got `str` - at `$.fence`",
    ),
}


@both_ledgers
@pytest.mark.parametrize("name", BROKEN_EVENTS)
async def test_an_event_that_lies_is_named(conn: Connection, name: str, sample: Sample) -> None:
    """J-32, J-34, J-35, J-36."""
    place, query, told_of, words = BROKEN_EVENTS[name]
    store = STORES[sample.ledger.name]
    true = await full_life(conn, store)
    key = await full_life(conn, store)
    seqs = await seqs_of(conn, key, sample)
    await tamper(conn, sample, query, seq=seqs[place])
    lie = await lie_of(conn, key, store)
    assert lie == Lie(key, seqs[told_of], words.format(seq=seqs[told_of], before=seqs[told_of - 1]))
    assert await lie_of(conn, true, store) is None


ROW = "update town.errand set {} where id = %(id)s"
LAST = "delete from town.errand_event where seq = (select max(seq) from town.errand_event)"

# What is done to a row in this state, and the words.
BROKEN_ROWS: dict[str, tuple[str, str, str]] = {
    "another state": (
        *("succeeded", ROW.format("status = 'canceled'")),
        "the row says canceled, its events end in succeeded",
    ),
    "an event too few": ("running", LAST, "the row says running, its events end in queued"),
    "half a move": (
        *("dead_letter", LAST),
        "the exhaust of event {last} never came to dead_letter: the events end in failed",
    ),
    "no event": (
        *("queued", "delete from town.errand_event"),
        "the row is queued, and has no event at all",
    ),
    "attempts": (
        *("failed", ROW.format("attempt = 0")),
        "the count of attempts of the row is 0, its events say 1",
    ),
    "fence": ("running", ROW.format("fence = 9"), "the fence of the row is 9, its events say 1"),
    "owner": (
        *("running", ROW.format("worker_id = 'somebody else'")),
        "the owner of the row is 'somebody else', its events say w1",
    ),
    "start": (
        *("running", ROW.format("started_at = null")),
        "the start of the row is never, its events say 2030-01-01T12:00:01Z",
    ),
    "end": (
        *("succeeded", ROW.format("finished_at = 'infinity'")),
        "the end of the row is infinity, its events say 2030-01-01T12:00:02Z",
    ),
    "class of error": (
        *("failed", ROW.format("last_error_code = 'OTHER'")),
        "the class of error of the row is OTHER, its events say BROKEN",
    ),
    "error": (
        *("dead_letter", ROW.format("last_error_message = repeat('x', 100)")),
        "the error of the row is '" + "x" * 80 + "…', its events say 'it broke'",
    ),
    "error of a row that went well": (
        *("succeeded", ROW.format("last_error_message = 'oh'")),
        "the error of the row is oh, its events say nothing",
    ),
}


@both_ledgers
@pytest.mark.parametrize("name", BROKEN_ROWS)
async def test_a_row_that_its_events_do_not_lead_to_is_named(
    conn: Connection, name: str, sample: Sample
) -> None:
    """J-34, J-35."""
    state, query, words = BROKEN_ROWS[name]
    store = STORES[sample.ledger.name]
    key = await sample.bring(conn, state)
    assert await lie_of(conn, key, store) is None
    await tamper(conn, sample, query, id=key)
    last = (await seqs_of(conn, key, sample) or [0])[-1]
    assert await lie_of(conn, key, store) == Lie(key, None, words.format(last=last))


def test_events_whose_numbers_do_not_grow_are_named() -> None:
    """The database hands them out in order; only the pure core can be told otherwise."""
    replay = Replay(Rules(ERRANDS), Facts(key=1, state="running"))
    assert replay.fold(5, 10, None, "queued", '{"verb": "enqueue", "attempt": 0, "fence": 0}') is None
    claim = '{"verb": "claim", "attempt": 0, "fence": 1, "worker": "w"}'
    assert replay.fold(5, 11, "queued", "running", claim) == Lie(
        1, 5, "event 5 follows event 5, and its number is not greater"
    )


RESTORED = '{{"verb": "restore", "attempt": {attempt}, "fence": {fence}, "by": "RS-12345678"}}'
LIFTED = RESTORED.format(attempt=0, fence=7)


@pytest.mark.parametrize(
    ("prev", "next", "detail", "words"),
    [
        ("queued", "queued", LIFTED, None),
        ("queued", "queued", RESTORED.format(attempt=0, fence=3), "takes the fence from 3 to 3"),
        ("queued", "queued", RESTORED.format(attempt=0, fence=2), "takes the fence from 3 to 2"),
        ("queued", "queued", RESTORED.format(attempt=0, fence="null"), "says fence nothing, but 3"),
        ("queued", "queued", RESTORED.format(attempt=1, fence=7), "says attempt 1, but 0"),
        ("queued", "running", LIFTED, "restore leads from queued to queued"),
        ("failed", "failed", LIFTED, "but the row was queued"),
    ],
)
def test_a_restore_raises_the_fence_and_says_nothing_else(
    prev: str, next: str, detail: str, words: str | None
) -> None:
    """Y-33: the row is where it was; the next claim goes on from the fence that is told."""
    replay = Replay(Rules(ERRANDS), Facts(key=1, state="running", owner="w", fence=8, attempts=0, started=13))
    assert replay.fold(1, 10, None, "queued", '{"verb": "enqueue", "attempt": 0, "fence": 0}') is None
    replay.fence = 3
    lie = replay.fold(2, 12, prev, next, detail)
    if words:
        assert lie
        assert words in lie.what
        return
    assert lie is None
    claim = '{"verb": "claim", "attempt": 0, "fence": 8, "worker": "w"}'
    assert replay.fold(3, 13, "queued", "running", claim) is None
    assert replay.compare() is None


def test_a_restore_begins_no_record_but_that_of_a_row_that_has_ended() -> None:
    """Y-29: of a row that has ended an eviction leaves the last event, which may be that of a restore."""
    ended = Replay(Rules(ERRANDS), Facts(key=1, state="dead_letter", fence=7, attempts=0, finished=5))
    assert ended.fold(2, 12, "dead_letter", "dead_letter", LIFTED) is None
    assert ended.compare() is None
    forged = Replay(Rules(ERRANDS), Facts(key=1, state="queued", fence=7, attempts=0))
    assert forged.fold(2, 12, "queued", "queued", LIFTED) == Lie(
        1, 2, "event 2 says queued → queued, but the row had no event before"
    )


async def test_a_report_lists_a_hundred_lies_and_counts_all(conn: Connection) -> None:
    items = [ERRANDS_SAMPLE.item() for _ in range(250)]
    receipts = await STORE.enqueue_many(conn, items)
    await conn.execute("delete from town.errand_event")
    report = await verify(STORE, conn)
    assert (report.rows, report.events, report.found, len(report.lies)) == (250, 0, 250, 100)
    assert [lie.id for lie in report.lies] == sorted(receipt.id for receipt in receipts)[:100]


# -- which rows -------------------------------------------------------------------------------------------


async def test_only_the_rows_of_a_tenant_are_verified(conn: Connection) -> None:
    other = uuid4()
    mine = await STORE.enqueue(conn, ERRANDS_SAMPLE.item())
    theirs = await STORE.enqueue(conn, ERRANDS_SAMPLE.item(tenant=other))
    await conn.execute("delete from town.errand_event where job_id = %s", [theirs.id])
    assert (await verify(STORE, conn, tenant=ORG)).found == 0
    assert [lie.id for lie in (await verify(STORE, conn, tenant=str(other))).lies] == [theirs.id]
    assert (await verify(STORE, conn, id=mine.id, tenant=ORG)).rows == 1
    with pytest.raises(NotFound):
        await verify(STORE, conn, id=mine.id, tenant=other)
    with pytest.raises(InvalidInput, match="not a UUID"):
        await verify(STORE, conn, tenant="nobody")


async def test_what_cannot_be_verified_is_refused(conn: Connection) -> None:
    with pytest.raises(NotFound):
        await verify(STORE, conn, id=uuid4())
    with pytest.raises(InvalidInput, match="UUID"):
        await verify(STORE, conn, id="17")
    with pytest.raises(InvalidInput, match="tasks has no journal"):
        await verify(Store(TASKS), conn)
    assert await verify(STORE, conn) == Report(rows=0, events=0, found=0, lies=())


# -- ten thousand random histories ------------------------------------------------------------------------

HISTORIES = 10_000
EVENTS_DDL = """
create table if not exists {events} (
    seq bigint generated always as identity,
    of {type} not null references {table} on delete cascade,
    at {moment} not null,
    before text,
    after text not null,
    facts jsonb not null
);
create index if not exists {index} on {events} (of, at);
"""
MOMENTS = {"timestamptz": "timestamptz", "timestamp": "timestamp", "epoch_ms": "bigint"}


async def audited(conn: Connection, ledger: Ledger, **changes: Any) -> Ledger:
    """A ledger that is like this one, and has a journal."""
    if ledger.journal:
        return ledger
    events = ledger.table + "_history"
    names = {
        "events": Identifier(*events.split(".")),
        "table": Identifier(*ledger.table.split(".")),
        "index": Identifier(events.split(".")[-1] + "_of"),
        "type": SQL(ledger.key.type),
        "moment": SQL(MOMENTS[ledger.times.kind]),
    }
    await conn.execute(SQL(EVENTS_DDL).format(**names))
    journal = Journal(table=events, row="of", seq="seq", at="at", prev="before", next="after", detail="facts")
    changes["journal"] = journal
    if ledger is TASKS:  # a trigger of its table dates `updated` by a clock that no test can lend
        changes |= {"idempotency": None, "times": replace(ledger.times, updated=None)}
    return replace(ledger, **changes)


class Walk:
    """Rows of a ledger that live at random, by the real store, in batches; the seed is the test's."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.store, self.ledger = Store(ledger), ledger
        self.random = random.Random(seed)
        self.clock = 0.0
        self.running: list[Claimed] = []

    def now(self) -> datetime:
        """Mostly later, seldom much earlier: the clock of a server that was set."""
        step = self.random.choice((0.0, 0.001, 1.0, 100.0))
        back = self.ledger.times.updated and self.random.random() < 0.1
        self.clock = self.clock - 50 if back else self.clock + step
        return after(self.clock)

    async def enqueue(self, conn: Connection, count: int) -> None:
        tenant = ORG if self.ledger.tenant else None
        items = [Item(kind=f"k{n % 50}", payload={"n": n}, tenant=tenant) for n in range(count)]
        await self.store.enqueue_many(conn, items, by="ana", now=self.now())

    async def round(self, conn: Connection) -> None:
        """A worker claims; some begin, some tell how far they are, most end; people meddle."""
        worker = self.random.choice(("w1", "w2", "w3"))
        claims = await self.store.claim(conn, worker, 2000, now=self.now())
        lifecycle = self.ledger.lifecycle
        if lifecycle.of("start"):
            self.random.shuffle(claims)
            self.running += claims[::5]
            del claims[::5]
            claims = await self.store.start(conn, claims, now=self.now())
        for claim in claims[:10]:
            await self.store.progress(conn, claim, self.random.uniform(0, 100), "some", now=self.now())
        moves: list[Move] = []
        for claim in (*self.running, *claims):
            verbs = [verb for verb in lifecycle.verbs(claim.state) if verb not in ("start", *PERSONAL)]
            fault = self.random.choice((FAULT,) * 15 + (None,) * 4 + (LONG,))
            delay = self.random.choice((0.0, 1.0, 1000.0))
            moves.append(Move(verb=self.random.choice(verbs), claim=claim, fault=fault, delay=delay))
        self.random.shuffle(moves)
        keep = len(moves) // 4
        self.running = [move.claim for move in moves[:keep]]
        await self.store.move(conn, moves[keep:], now=self.now())
        for order in (self.store.cancel_where, self.store.requeue_where, self.store.requeue_where):
            await order(conn, Filter(kind=f"k{self.random.randrange(50)}"), by="ana", now=self.now())


@pytest.mark.parametrize(
    ("ledger", "rows"),
    [(JOB, HISTORIES), (ERRANDS, 1000), (PARCELS, 1000), (SYNCS, 1000), (TASKS, 1000)],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_the_folded_events_of_random_histories_equal_the_rows(
    conn: Connection, ledger: Ledger, rows: int
) -> None:
    """J-32, J-34, J-35: ten thousand histories of `job`, a thousand of every other way to count and date."""
    walk = Walk(await audited(conn, ledger), seed=20300101)
    await walk.enqueue(conn, rows)
    for _ in range(8):
        await walk.round(conn)
    heard: list[tuple[int, int]] = []
    report = await verify(walk.store, conn, tell=lambda rows, events: heard.append((rows, events)))
    assert report.lies == ()
    assert report.rows == rows
    assert report.events > 3 * rows
    assert heard[-1] == (report.rows, report.events)
    assert heard == sorted(heard)
    counts = {count.state for count in await walk.store.count(conn)}
    assert counts == set(ledger.states), "the walk has been everywhere"


@pytest.mark.parametrize("ledger", [PARCELS, SYNCS, TASKS], ids=lambda ledger: ledger.name)
async def test_a_cancel_that_writes_an_error_tells_it_to_the_journal(
    conn: Connection, ledger: Ledger
) -> None:
    """J-34: the error is in the detail exactly when it is in the row."""
    store = Store(await audited(conn, ledger))
    receipt = await store.enqueue(conn, Item(kind="x"), now=after(0))
    await store.cancel(conn, receipt.id, by="ana", now=after(1))
    assert (await verify(store, conn)).lies == ()


async def test_rows_that_move_while_they_are_verified_never_seem_to_lie(
    conn: Connection, connect: Callable[[], Any]
) -> None:
    """A row and its events are read in one snapshot."""
    walk, other = Walk(ERRANDS, seed=7), await connect()
    await walk.enqueue(conn, 500)
    moving = asyncio.create_task(_move(walk, other))
    verified = 0
    while not moving.done():
        report = await verify(STORE, conn)
        assert report.lies == ()
        verified += report.rows
    await moving
    assert verified >= 1000


async def _move(walk: Walk, conn: Connection) -> None:
    for _ in range(15):
        await walk.round(conn)


# -- how it reads -----------------------------------------------------------------------------------------

MANY_EVENTS = """
insert into town.errand_event (job_id, ts, prev_status, next_status, detail_json)
select id, updated_at, 'running', 'running', '{"verb": "progress", "attempt": 0, "fence": 1, "worker": "w1"}'
from town.errand, generate_series(1, %(count)s)
"""


def memory(name: str) -> int:
    """What the kernel says of our own memory, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def forget_the_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
async def test_memory_does_not_grow_with_a_history(conn: Connection) -> None:
    """A row with 300,000 events is read in chunks: all of them at once would take more than 100 MiB."""
    key = await ERRANDS_SAMPLE.bring(conn, "running")
    async with conn.transaction():
        await conn.execute("set local session_replication_role = replica")  # no foreign keys: quicker
        await conn.execute(MANY_EVENTS, {"count": 300_000})
    before = memory("VmRSS")
    forget_the_peak()
    assert await verify(STORE, conn, id=key) == Report(rows=1, events=300_002, found=0, lies=())
    assert memory("VmHWM") - before < 16 * 1024


@pytest.mark.skipif(test_pgbouncer.PGBOUNCER is None, reason="needs pgbouncer: apt-get install pgbouncer")
@pytest.mark.skipif("_HOLDFAST_TEST_SERVER" in os.environ, reason="the pooler leads to our own server only")
async def test_it_reads_through_a_transaction_pooler(conn: Connection, pooled: Settings) -> None:
    await STORE.enqueue_many(conn, [ERRANDS_SAMPLE.item() for _ in range(2500)])
    async with Holdfast(pooled) as app, app.database.connection() as other:
        assert await verify(STORE, other) == Report(rows=2500, events=2500, found=0, lies=())


async def test_pages_are_small_where_rows_have_many_events(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no statement, and no snapshot, lasts long."""
    monkeypatch.setattr(module, "FIRST_PAGE", 2)
    monkeypatch.setattr(module, "PAGE_EVENTS", 20)
    await STORE.enqueue_many(conn, [ERRANDS_SAMPLE.item() for _ in range(50)], now=after(0))
    claims = await STORE.claim(conn, "w1", 50, now=after(1))
    await conn.execute(MANY_EVENTS, {"count": 8})
    limits: list[int] = []

    class Listening(module.Reader):
        async def page(self, shape: Sequence[str], params: Any) -> int:
            limits.append(params["limit"])
            return await super().page(tuple(shape), params)

    monkeypatch.setattr(module, "Reader", Listening)
    report = await verify(STORE, conn)
    assert (report.rows, report.events, report.found) == (len(claims), 500, 0)
    assert limits == [2] * 26


async def test_the_journal_is_read_by_its_index_also_before_it_is_analyzed(conn: Connection) -> None:
    await conn.execute("alter table town.errand_event set (autovacuum_enabled = off)")
    await conn.execute("delete from pg_statistic where starelid = 'town.errand_event'::regclass")
    receipts = await STORE.enqueue_many(conn, [ERRANDS_SAMPLE.item() for _ in range(1000)])
    await conn.execute(MANY_EVENTS, {"count": 4})
    key = receipts[0].id
    for _ in range(2):
        query = b"explain (format json) " + STORE.sql.verify(("after_key", "until_key"))
        cursor = await conn.execute(query, {"after_key": key, "until_key": key, "limit": 1000})
        plan = str(await cursor.fetchall())
        assert "errand_event_job" in plan
        assert "Seq Scan" not in plan
        await conn.execute("analyze town.errand_event")


def test_more_may_stand_in_a_detail_than_we_ask_for() -> None:
    told = Rules(ERRANDS).decode('{"verb": "finish", "result": [1], "error": {"code": "C", "trace": "x"}}')
    assert isinstance(told, Detail)
    assert (told.verb, told.attempt, told.error and told.error.code) == ("finish", None, "C")
