"""What workers did, in numbers: they are those of the rows, they add up, and nobody works for their sake."""

from __future__ import annotations

import asyncio
import doctest
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast import Backoff, Cancel, Context, Edge, Fail, Holdfast, Item, Retry, Settings, Snooze
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db.pool import Connection
from holdfast.engine.decide import LOST
from holdfast.engine.values import Claimed, Move
from holdfast.runtime import duties, presence, pulse
from holdfast.runtime.duties import Patience, reap
from holdfast.runtime.presence import Identity
from holdfast.runtime.pulse import BOUNDS, LABELS, Percentiles, Tally, pace, percentiles, totals
from runtime.jobs import ONE, rows
from runtime.support import add, add_many, column, drain, one, until, until_task, working

AT_ONCE = Backoff(base=0.001, cap=0.002)
SOON = {"job_backoff_base": 0.001, "job_backoff_cap": 0.002}

Numbers = dict[tuple[str, str, str], int]


def everything(_ledger: str, _kind: str) -> bool:
    """A handler for everything."""
    return True


async def counted(conn: Connection, ledger: str, *facts: str) -> Numbers:
    """The numbers since the beginning of some facts, by kind, fact and label."""
    return {
        (one.kind, one.fact, one.label): one.count
        for one in await totals(conn)
        if one.ledger == ledger and one.fact in facts
    }


async def claims(conn: Connection, ledger: str) -> dict[str, int]:
    """How many rows of each kind were taken."""
    found: Counter[str] = Counter()
    for (kind, _, _), count in (await counted(conn, ledger, "waited")).items():
        found[kind] += count
    return found


# -- percentiles -------------------------------------------------------------------------------------


def test_the_examples_are_true() -> None:
    assert doctest.testmod(pulse) == doctest.TestResults(0, 1)


def test_of_nothing_there_are_no_percentiles() -> None:
    assert percentiles({}) == Percentiles(0, None, None, None)


def test_percentiles_lie_evenly_in_their_bucket() -> None:
    assert percentiles({"1": 100}) == Percentiles(100, 0.75, 0.975, 0.995)
    assert percentiles({"0.005": 100}) == Percentiles(100, 0.0025, 0.00475, 0.00495)
    assert percentiles({"0.005": 90, "1": 10}).p95 == 0.75


def test_what_is_beyond_the_last_bound_is_told_as_that_bound() -> None:
    assert percentiles({"+Inf": 3}) == Percentiles(3, 1800.0, 1800.0, 1800.0)
    assert percentiles({"0.005": 97, "+Inf": 3}).p99 == 1800.0


def test_percentiles_of_a_sample_are_right_within_their_buckets() -> None:
    draw = random.Random(4)
    sample = sorted(draw.lognormvariate(0, 2) for _ in range(5000))
    tally: Counter[str] = Counter()
    for value in sample:
        tally[LABELS[next((n for n, bound in enumerate(BOUNDS) if value <= bound), len(BOUNDS))]] += 1
    found = percentiles(tally)
    for share, told in ((0.5, found.p50), (0.95, found.p95), (0.99, found.p99)):
        true = sample[int(share * len(sample))]
        low = max((bound for bound in BOUNDS if bound < true), default=0.0)
        high = min((bound for bound in BOUNDS if bound >= true), default=BOUNDS[-1])
        assert told is not None
        assert low <= told <= high


# -- numbers of real workers -------------------------------------------------------------------------


async def test_the_numbers_are_those_of_the_rows(app: Holdfast, conn: Connection) -> None:
    @app.handler("good", ledger="tasks")
    async def good() -> None:
        return None

    @app.handler("twice", ledger="tasks", backoff=AT_ONCE)
    async def twice(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ConnectionError

    @app.handler("never", ledger="tasks", backoff=AT_ONCE)
    async def never() -> Retry:
        return Retry("not yet", code="BUSY")

    @app.handler("odd", ledger="tasks")
    def odd(number: int) -> Fail | Snooze | Cancel:
        return (Fail("broken", code="BROKEN"), Cancel("no"))[number % 2]

    await add_many(app, "good", 7)
    await add_many(app, "odd", 4)
    await add(app, "twice", limit=3)
    await add(app, "never", limit=2)
    for n in range(3):
        await add(app, f"unheard of {n}")
    while await one(conn, "select count(*) from tasks where status = 'pending'"):
        await drain(app, ledgers=["tasks"])
    assert await claims(conn, "tasks") == {"good": 7, "odd": 4, "twice": 3, "never": 2, "": 3}
    assert await counted(conn, "tasks", "moved", "dead", "failed") == {
        ("good", "moved", "finish"): 7,
        ("odd", "moved", "reject"): 2,
        ("odd", "moved", "cancel"): 2,
        ("odd", "dead", ""): 2,
        ("odd", "failed", "BROKEN"): 2,
        ("twice", "moved", "retry"): 2,
        ("twice", "moved", "finish"): 1,
        ("twice", "failed", "ConnectionError"): 2,
        ("never", "moved", "retry"): 1,
        ("never", "moved", "exhaust"): 1,
        ("never", "dead", ""): 1,
        ("never", "failed", "BUSY"): 2,
        ("", "moved", "reject"): 3,
        ("", "dead", ""): 3,
        ("", "failed", "NO_HANDLER"): 3,
    }
    now = await pace(conn, "tasks")
    assert sum(minute.claimed for minute in now.minutes) == now.latency.count == 19
    assert sum(minute.finished for minute in now.minutes) == 8
    assert sum(minute.retried for minute in now.minutes) == 3
    assert sum(minute.dead for minute in now.minutes) == 6
    assert now.run_time.count == 16  # what has no handler does not run
    assert now.failures == (("NO_HANDLER", 3), ("BROKEN", 2), ("BUSY", 2), ("ConnectionError", 2))
    assert (await pace(conn, "job")).latency == Percentiles(0)


async def test_the_numbers_are_those_of_the_record(settings: Settings, conn: Connection) -> None:
    """Also of ends that the handler's own transaction wrote: `job` has every move in its journal."""
    async with Holdfast(replace(settings, **SOON)) as app:

        @app.handler("mixed", ledger="job")
        async def mixed(number: int, ctx: Context) -> Snooze | None:
            if number % 2:
                await (await ctx.transaction(confined=False)).execute("select 1")
            if number % 5 == 0:
                raise LookupError(number)
            return Snooze(0) if number % 7 == 0 and ctx.fence == 1 else None

        items = [Item(kind="mixed", payload=n, tenant=ONE, limit=n % 3) for n in range(60)]
        await app.enqueue_many("job", items)
        while await one(conn, "select count(*) from job where status in ('queued', 'failed')"):
            await drain(app, ledgers=["job"], concurrency=7)
    query = """
        select detail_json ->> 'verb' as verb, count(distinct (job_id, detail_json ->> 'fence')) as n
        from job_event group by 1
    """
    told = {row["verb"]: row["n"] for row in await rows(conn, query)}
    del told["enqueue"]
    assert told["snooze"] > 0
    assert (await claims(conn, "job"))["mixed"] == told.pop("claim")
    moved = await counted(conn, "job", "moved")
    assert {verb: count for (_, _, verb), count in moved.items()} == told


async def test_how_long_rows_waited_and_ran_is_measured(app: Holdfast, conn: Connection) -> None:
    @app.handler("slow")
    async def slow() -> None:
        async with app.database.connection() as own:
            await own.execute("select pg_sleep(0.3)")

    await add(app, "slow")
    await conn.execute("""
        update tasks
        set created_at = created_at - interval '300 s', next_retry_at = created_at - interval '200 s'
    """)
    await drain(app, ledgers=["tasks"])
    waited, ran = sorted(
        (one for one in await totals(conn) if one.fact in ("waited", "ran")),
        key=lambda one: one.fact,
        reverse=True,
    )
    assert (waited.label, waited.count, waited.kind) == ("300", 1, "slow")
    assert 200 <= waited.sum < 300
    assert ran.count == 1
    assert 0.3 <= ran.sum < 30


async def test_a_running_worker_tells_its_numbers_now_and_then(
    app: Holdfast, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "FLUSH_EVERY", 0.02)

    @app.handler("note")
    async def note() -> None:
        return None

    finished = (
        "select coalesce(sum(count), 0) = %s from holdfast_pulse where label = 'finish' and kind = 'note'"
    )
    async with working(app, ledgers=["tasks"]):
        await add_many(app, "note", 20)
        await until(conn, finished, 20)
        await add_many(app, "note", 3)
        await until(conn, finished, 23)
    assert await one(conn, finished, 23)  # nothing is told twice at the end


async def test_rows_of_a_lost_worker_are_counted_by_the_leader(app: Holdfast, conn: Connection) -> None:
    tally = Tally(everything)
    who = Identity(id="dead", hostname="host", pool_size=1, version="1", serves=())
    await presence.register(conn, who)
    store = app.store("tasks")
    for limit in (1, 3, 3):
        await add(app, "lost", limit=limit)
    await store.start(conn, await store.claim(conn, "dead", 3))
    later = await one(conn, "select now() + interval '1 hour'")
    patience = Patience(timeout=30, nameless=60)
    assert await reap(conn, [store], "leader", patience, now=later, tally=tally) == 3
    await tally.flush(conn)
    assert await counted(conn, "tasks", "moved", "dead", "failed") == {
        ("lost", "moved", "lose"): 2,
        ("lost", "moved", "exhaust"): 1,
        ("lost", "dead", ""): 1,
        ("lost", "failed", "WORKER_LOST"): 3,
    }


async def test_a_lost_row_that_ends_so_is_a_dead_one(conn: Connection) -> None:
    edges = tuple(edge for edge in TASKS.edges if edge.verb != "lose")
    final = replace(TASKS, edges=(*edges, Edge("lose", frm=("claimed", "running"), to="failed")))
    tally = Tally(everything)
    claim = Claimed(id=1, kind="x", payload=None, state="running", owner="w", fence=1, attempts=0, limit=None)
    moves = [Move(verb="lose", claim=claim, fault=LOST)]
    tally.wrote(final, moves, {1})
    tally.wrote(TASKS, moves, {1})
    tally.wrote(TASKS, moves, {2})  # came too late: nothing was written
    await tally.flush(conn)
    assert await counted(conn, "tasks", "moved", "dead") == {("x", "moved", "lose"): 2, ("x", "dead", ""): 1}


# -- telling -----------------------------------------------------------------------------------------


async def test_a_failed_telling_keeps_its_numbers_for_the_next(
    conn: Connection, connect: Callable[[], Any]
) -> None:
    tally = Tally(everything)
    tally.claimed("tasks", "x", 0.2)
    tally.moved("tasks", "x", "retry", "A")
    gone = await connect()
    await gone.close()
    with pytest.raises(psycopg.OperationalError):
        await tally.flush(gone)
    tally.claimed("tasks", "x", 0.2)
    assert await tally.flush(conn) == 3
    assert await tally.flush(conn) == 0
    assert await counted(conn, "tasks", "waited", "moved", "failed") == {
        ("x", "waited", "0.25"): 2,
        ("x", "moved", "retry"): 1,
        ("x", "failed", "A"): 1,
    }
    assert [one.sum for one in await totals(conn) if one.fact == "waited"] == [pytest.approx(0.4)]


async def test_many_workers_that_tell_at_once_do_not_wait_in_a_circle(
    conn: Connection, connect: Callable[[], Any]
) -> None:
    """Each tells the same numbers in an order of its own."""

    async def tell(own: Connection, seed: int) -> None:
        draw, tally = random.Random(seed), Tally(everything)
        for _ in range(20):
            places = [(ledger, kind) for ledger in ("job", "tasks") for kind in "abcdef"]
            for ledger, kind in draw.sample(places, len(places)):
                tally.moved(ledger, kind, "retry", draw.choice("xyz"))
            await tally.flush(own)

    conns = [await connect() for _ in range(8)]
    await asyncio.gather(*(tell(own, seed) for seed, own in enumerate(conns)))
    found = await counted(conn, "job", "moved")
    assert found == {(kind, "moved", "retry"): 160 for kind in "abcdef"}
    minutes = await one(
        conn, "select sum(count) from holdfast_pulse where minute > '-infinity' and kind = ''"
    )
    assert (
        minutes == await one(conn, "select sum(count) from holdfast_pulse where minute = '-infinity'") == 3840
    )


def test_a_tally_may_be_used_from_many_threads() -> None:
    tally = Tally(everything)

    def count() -> None:
        for _ in range(5000):
            tally.ran("tasks", "x", 0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [number[0] for number in tally._numbers.values()] == [20000]


async def test_neither_kinds_nor_codes_can_fill_the_table(app: Holdfast, conn: Connection) -> None:
    @app.handler("known")
    async def known() -> None:
        return None

    tally = Tally(app.handlers.find)
    for n in range(200):
        tally.moved("tasks", f"kind {n}", "reject", f"code {n}")
    tally.moved("tasks", "known", "reject", "code 0")
    tally.moved("tasks", "known", "reject", "\x00" + "x" * 100)
    tally.moved("tasks", "known", "reject", "")
    await tally.flush(conn)
    found = await counted(conn, "tasks", "failed")
    assert {kind for kind, _, _ in found} == {"", "known"}
    assert len({label for _, _, label in found}) == 65
    assert found["", "failed", "OTHER"] == 136
    assert found["known", "failed", "OTHER"] == 2
    assert found["known", "failed", "code 0"] == 1


async def test_a_code_is_kept_whatever_it_holds(conn: Connection) -> None:
    tally = Tally(everything)
    for code in ("\x00" + "x" * 100, "\ud800"):
        tally.moved("tasks", "k", "retry", code)
    await tally.flush(conn)
    mark = "\N{REPLACEMENT CHARACTER}"
    assert {label for _, _, label in await counted(conn, "tasks", "failed")} == {mark, mark + "x" * 63}


async def test_nobody_stops_working_for_the_sake_of_its_statistics(
    app: Holdfast, conn: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duties, "FLUSH_EVERY", 0.02)
    caplog.set_level(logging.WARNING)

    @app.handler("note")
    async def note() -> None:
        return None

    await conn.execute("alter table holdfast_pulse rename to elsewhere")
    async with working(app, ledgers=["tasks"]) as worker:
        first = worker.id
        await until_task(conn, await add(app, "note"), "completed")
        while "the statistics are not kept" not in caplog.text:
            await until_task(conn, await add(app, "note"), "completed")
        await conn.execute("alter table elsewhere rename to holdfast_pulse")
        await until(conn, "select count(*) > 0 from holdfast_pulse where label = 'finish'")
        assert worker.id == first
    done = await one(conn, "select count(*) from tasks where status = 'completed'")
    assert (await counted(conn, "tasks", "moved"))["note", "moved", "finish"] == done


# -- minutes -----------------------------------------------------------------------------------------


async def test_the_last_hour_has_sixty_minutes_whatever_happened_in_them(conn: Connection) -> None:
    now = await one(conn, "select date_trunc('minute', now()) + interval '30 s'")
    for age, label in ((0, "finish"), (59, "finish"), (60, "finish"), (1, "retry")):
        await conn.execute(
            "insert into holdfast_pulse values (date_trunc('minute', %s) - %s, 'job', '', 'moved', %s, 5)",
            (now, timedelta(minutes=age), label),
        )
    found = await pace(conn, "job", now=now)
    assert len(found.minutes) == 60
    assert [minute.at for minute in found.minutes] == [
        now.replace(second=0) - timedelta(minutes=59 - n) for n in range(60)
    ]
    assert [
        (n, one.finished, one.retried) for n, one in enumerate(found.minutes) if one.finished or one.retried
    ] == [
        (0, 5, 0),
        (58, 0, 5),
        (59, 5, 0),
    ]
    assert len((await pace(conn, "job", minutes=5, now=now)).minutes) == 5
    assert sum(one.finished for one in (await pace(conn, "job", minutes=5, now=now)).minutes) == 5


async def test_the_leader_forgets_old_minutes_and_never_the_totals(
    app: Holdfast, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "FORGET_EVERY", 0.02)
    tally = Tally(everything)
    tally.moved(JOB.name, "x", "finish", None)
    await tally.flush(conn)
    await conn.execute("""
        insert into holdfast_pulse
        select date_trunc('minute', now()) - age, 'job', '', 'moved', 'finish', 1
        from unnest(array['47 h', '49 h', '400 d']::interval[]) as age
    """)
    async with working(app, ledgers=["tasks"]):
        await until(conn, "select count(*) = 3 from holdfast_pulse where ledger = 'job'")
    kept = "select minute = '-infinity' from holdfast_pulse where ledger = 'job' order by minute"
    assert await column(conn, kept) == [True, False, False]


async def test_of_a_ledgers_codes_the_most_frequent_stay(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code may have an id in it: over the lives of many workers they would fill the table."""
    monkeypatch.setattr(pulse, "KEPT_CODES", 2)
    tally = pulse.Tally(lambda ledger, kind: True)
    for code, times in (("RARE", 1), ("OFTEN", 3), ("SOMETIMES", 2)):
        for _ in range(times):
            tally.moved("tasks", "mail", "retry", code)
    await tally.flush(conn)
    assert await pulse.forget(conn) == 1
    kept = [total.label for total in await pulse.totals(conn) if total.fact == "failed"]
    assert kept == ["OFTEN", "SOMETIMES"]
