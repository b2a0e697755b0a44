"""Locks that others hold: they delay what needs them, cost no attempt, and spoil no run."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Holdfast, Item, Settings, Snooze
from holdfast.db import pool
from holdfast.db.pool import Connection
from holdfast.runtime import runner
from holdfast.runtime.duties import Patience, reap
from runtime.conftest import Start
from runtime.support import Gate, column, drain, one, shown, until, until_true, worker_of, working

Connect = Callable[[], Awaitable[Connection]]


@asynccontextmanager
async def table_locks(conn: Connection, chance: random.Random) -> AsyncIterator[None]:
    """SHARE locks on `job`, as CREATE INDEX takes them, that come and go for the length of the block."""

    async def come_and_go() -> None:
        while True:
            async with conn.transaction():
                await conn.execute("lock table job in share mode")
                await asyncio.sleep(chance.uniform(0.3, 0.4))  # longer than a turn waits for a lock
            await asyncio.sleep(chance.uniform(0, 0.08))

    locking = asyncio.create_task(come_and_go())
    try:
        yield
    finally:
        locking.cancel()
        await asyncio.wait([locking])


@pytest.mark.parametrize("lives", [1, pytest.param(200, marks=pytest.mark.soak)])
async def test_table_locks_that_come_and_go_spoil_no_run(
    settings: Settings, conn: Connection, connect: Connect, lives: int
) -> None:
    """Each life begins with no statement prepared: some are to be prepared in a turn that fails."""
    runs: Counter[Any] = Counter()
    jobs_per_life = 24
    async with Holdfast(replace(settings, job_backoff_base=0.01)) as app:

        @app.handler("once", ledger="job")
        async def once(ctx: Context) -> None:
            runs[ctx.job.id] += 1

        @app.handler("twice", ledger="job")
        async def twice(ctx: Context) -> Any:
            runs[ctx.job.id] += 1
            if ctx.attempt == 1:
                raise ValueError("the first run fails")

        @app.handler("snoozes", ledger="job")
        async def snoozes(ctx: Context) -> Any:
            runs[ctx.job.id] += 1
            return Snooze(0) if runs[ctx.job.id] == 1 else None

        async with table_locks(await connect(), random.Random(lives)):
            for _ in range(lives):
                kinds = ("once", "twice", "snoozes") * (jobs_per_life // 3)
                items = [Item(kind=kind, tenant=UUID(int=1)) for kind in kinds]
                await app.store("job").enqueue_many(conn, items)
                await drain(app, ledgers=["job"], concurrency=4)
        async with working(app, ledgers=["job"]):
            await until(conn, "select bool_and(status = 'succeeded') from job")
    assert Counter(runs.values()) == {1: lives * jobs_per_life // 3, 2: lives * jobs_per_life // 3 * 2}
    failures = "select count(*) from job_event where detail_json ? 'error'"
    assert await one(conn, failures) == lives * jobs_per_life // 3


# -- a worker that dies with locks held --------------------------------------------------------------

DEFAULTS = {
    "heartbeat_interval": 10,
    "worker_timeout": 30,
    "leader_term": 30,
    "shutdown_timeout": 30,
    "poll_interval": 1,
}


@pytest.mark.parametrize("options", [{}, pytest.param(DEFAULTS, marks=pytest.mark.soak, id="defaults")])
async def test_locks_of_a_frozen_worker_are_released_and_cost_other_rows_no_attempt(
    traces: None,
    start: Start,
    conn: Connection,
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
    options: Mapping[str, Any],
) -> None:
    """The leader that removes a worker ends its sessions: the server would wait for the frozen process."""
    await conn.execute("create table counter (n int); insert into counter values (0)")
    insert = "insert into tasks (type, payload) values ('counts', %s) returning id"
    frozen = start("--ledgers", "tasks", **options)
    held = await one(conn, insert, "true")
    await until(conn, "select count(*) = 1 from runs where event = 'counted'")
    before = await worker_of(conn, frozen)
    other = start("--ledgers", "tasks", **options)
    await worker_of(conn, other)
    frozen.freeze()
    began = time.monotonic()
    for _ in range(3):
        await conn.execute(insert, ("false",))
    await until(conn, "select count(*) = 4 from tasks where status = 'completed'", within=300)
    shown(
        capsys, f"a worker froze with a row lock: all rows completed after {time.monotonic() - began:.1f} s"
    )
    assert await column(conn, "select attempts from tasks order by id = %s, attempts", held) == [1, 1, 1, 2]
    assert "terminated session" in other.said()
    await gate.open()
    frozen.thaw()
    await worker_of(conn, frozen, other_than=before)
    assert await one(conn, "select n from counter") == 4


async def test_only_the_sessions_of_removed_workers_are_terminated(
    settings: Settings, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """And where the login may not, the log says which grant is missing."""
    assert settings.database_url
    long_ago = (
        "insert into workers (id, hostname, pool_size, last_heartbeat) values (%s, 'h', 1, '2001-01-01')"
    )
    ghost, namesake = f"{'long-host-name.' * 4}-4711-abcdef", "pool"
    patience = Patience(timeout=30, nameless=60)
    sessions: dict[str, Connection] = {}
    for name, purpose, worker in (
        ("ghost's", "worker of a ledger with a very long name, longer than the server keeps", ghost),
        ("another worker's", "pool", ghost.replace("abcdef", "ghijkl")),
        ("nobody's", "pool", None),
    ):
        sessions[name] = await pool.connect(settings, settings.database_url, purpose=purpose, worker=worker)

    async def alive() -> set[str]:
        pids = {name: session.info.backend_pid for name, session in sessions.items()}
        query = "select pid from pg_stat_activity where pid = any(%s)"
        found = await column(conn, query, list(pids.values()))
        return {name for name, pid in pids.items() if pid in found}

    async def remove(worker: str) -> None:
        await conn.execute(long_ago, (worker,))
        await conn.execute("set role powerless")
        await reap(conn, [], "leader", patience)
        await conn.execute("reset role")

    await conn.execute("create role powerless; grant select, update, delete on workers to powerless")
    try:
        await remove(ghost)
        await remove(namesake)
        (warning,) = [record.message for record in caplog.records if "grant" in record.message]
        assert "grant pg_signal_backend to" in warning
        assert len(await alive()) == 3
        await conn.execute(long_ago, (ghost,))
        await reap(conn, [], "leader", patience)
        gone = "select not exists (select from pg_stat_activity where pid = %s)"
        await until(conn, gone, sessions["ghost's"].info.backend_pid)
        assert await alive() == {"another worker's", "nobody's"}
    finally:
        await conn.execute("drop owned by powerless; drop role powerless")
        for session in sessions.values():
            await session.close()


# -- lock conflicts of handlers ----------------------------------------------------------------------

ERRORS = "select count(*) from job_event where detail_json ? 'error'"
SUCCEEDED = "select bool_and(status = 'succeeded') from job"
RELEASED = "released without counting the attempt"


@pytest.mark.parametrize("place", ["handler", "finish"])
async def test_waiting_for_a_lock_costs_no_attempt(
    settings: Settings,
    conn: Connection,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
) -> None:
    """The row is released after a pause, and run again."""
    monkeypatch.setattr(runner, "FIRST_PAUSE", 0.05)
    await conn.execute("create table counter (n int); insert into counter values (0)")
    begun, locked, other = asyncio.Event(), asyncio.Event(), await connect()
    async with Holdfast(replace(settings, db_statement_timeout_seconds=1.0)) as app:

        @app.handler("plain", ledger="job")
        async def plain(ctx: Context) -> None:
            await ctx.transaction(confined=False)

        @app.handler("counts", ledger="job")
        async def counts(ctx: Context) -> None:
            own = await ctx.transaction(confined=False)
            begun.set()
            await locked.wait()
            await own.execute("update counter set n = n + 1")

        await app.enqueue("job", "plain", tenant=UUID(int=1))
        await app.enqueue("job", "counts", tenant=UUID(int=1))
        async with working(app, ledgers=["job"]):
            await begun.wait()
            async with other.transaction():
                table = "counter" if place == "handler" else "job"
                await other.execute(f"select from {table} for update")
                locked.set()
                await until_true(lambda: RELEASED in caplog.text)
            await until(conn, SUCCEEDED)
    assert await one(conn, "select n from counter") == 1
    assert await one(conn, "select count(distinct attempt) from job") == 1
    assert await one(conn, ERRORS) == 0
    why = (
        "select count(*) > 0 from job_event where next_status = 'queued' and detail_json ->> 'reason' like %s"
    )
    assert await one(conn, why, "LockNotAvailable:%")


async def test_a_deadlock_of_two_handlers_costs_neither_an_attempt(
    settings: Settings, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await conn.execute("create table counter (id int, n int); insert into counter values (0, 0), (1, 0)")
    both = asyncio.Barrier(2)
    met: set[Any] = set()
    async with Holdfast(settings) as app:

        @app.handler("counts", ledger="job")
        async def counts(first: int, ctx: Context) -> None:
            own = await ctx.transaction(confined=False)
            for place in (first, 1 - first):
                await own.execute("update counter set n = n + 1 where id = %s", (place,))
                if first not in met:
                    met.add(first)
                    await both.wait()

        for first in range(2):
            await app.enqueue("job", "counts", first, tenant=UUID(int=1))
        async with working(app, ledgers=["job"]):
            await until(conn, SUCCEEDED)
    assert await column(conn, "select n from counter") == [2, 2]
    assert await one(conn, "select count(distinct attempt) from job") == 1
    assert await one(conn, ERRORS) == 0
    assert f"{RELEASED}: DeadlockDetected" in caplog.text


async def test_rows_in_conflict_hold_no_slot_and_count_after_a_while(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other rows run meanwhile, and a row whose every run meets a conflict ends like any bad one."""
    monkeypatch.setattr(runner, "FIRST_PAUSE", 60.0)
    runs: Counter[str] = Counter()
    async with Holdfast(settings) as app:

        @app.handler("conflicts", ledger="job")
        async def conflicts() -> None:
            runs["conflicts"] += 1
            raise psycopg.errors.LockNotAvailable

        @app.handler("plain", ledger="job")
        async def plain() -> None: ...

        await app.enqueue("job", "conflicts", tenant=UUID(int=1), limit=0, priority=9)
        await app.enqueue("job", "plain", tenant=UUID(int=1))
        async with working(app, ledgers=["job"], concurrency=1):
            await until(conn, "select true from job where type = 'plain' and status = 'succeeded'")
        assert await one(conn, "select attempt = 0 and run_at > now() from job where status = 'queued'")
        monkeypatch.setattr(runner, "FIRST_PAUSE", 0.0)
        monkeypatch.setattr(runner, "MAX_CONFLICTS", 2)
        await conn.execute("update job set run_at = now() where type = 'conflicts'")
        async with working(app, ledgers=["job"], concurrency=1):
            await until(conn, "select true from job where status = 'dead_letter'")
    assert runs["conflicts"] == 1 + 3
    assert await one(conn, "select last_error_code from job where type = 'conflicts'") == "LockNotAvailable"


async def test_a_worker_that_runs_until_it_is_idle_waits_for_rows_that_met_a_conflict(
    settings: Settings, conn: Connection
) -> None:
    async with Holdfast(settings) as app:

        @app.handler("once", ledger="job")
        async def once(ctx: Context) -> None:
            if ctx.fence == 1:
                raise psycopg.errors.LockNotAvailable

        await app.enqueue("job", "once", tenant=UUID(int=1))
        await drain(app, ledgers=["job"])
    assert await column(conn, "select status::text from job") == ["succeeded"]


async def test_an_error_of_another_library_is_no_conflict_by_its_name(
    settings: Settings, conn: Connection
) -> None:
    class LockNotAvailable(Exception):
        pass

    async with Holdfast(settings) as app:

        @app.handler("named", ledger="job")
        async def named() -> None:
            raise LockNotAvailable

        await app.enqueue("job", "named", tenant=UUID(int=1), limit=0)
        await drain(app, ledgers=["job"])
    assert await column(conn, "select status::text from job") == ["dead_letter"]


@pytest.mark.parametrize(("timeout", "lock"), [(5, "2500ms"), (None, "15s")])
async def test_a_run_waits_for_a_lock_for_half_of_its_own_time_at_most(
    settings: Settings, conn: Connection, timeout: float | None, lock: str
) -> None:
    """Else the run would time out first, which counts."""
    limits = list[str]()
    async with Holdfast(settings) as app:

        @app.handler("asks", ledger="job", timeout=timeout)
        async def asks(ctx: Context) -> None:
            own = await ctx.transaction(confined=False)
            limits.append(await one(own, "show lock_timeout"))

        await app.enqueue("job", "asks", tenant=UUID(int=1))
        await drain(app, ledgers=["job"])
    assert limits == [lock]


# -- transactions that sit idle ----------------------------------------------------------------------

IDLE = """
select pid from pg_stat_activity
where datname = current_database() and state like 'idle in transaction%%'
    and application_name like %s and clock_timestamp() - xact_start > %s::interval
"""


async def test_a_live_worker_keeps_a_transaction_whose_handler_computes_for_long(
    settings: Settings, conn: Connection
) -> None:
    """Though the limit of idle transactions follows the worker timeout."""
    done, limits = asyncio.Event(), list[Any]()
    await conn.execute("create table counter (n int)")
    async with Holdfast(replace(settings, worker_timeout=3.0, heartbeat_interval=0.5)) as app:

        @app.handler("counts", ledger="job")
        async def counts(ctx: Context) -> None:
            own = await ctx.transaction(confined=False)
            await own.execute("insert into counter values (%s)", (ctx.attempt,))
            limits.append(await one(own, "show idle_in_transaction_session_timeout"))
            await done.wait()

        await app.enqueue("job", "counts", tenant=UUID(int=1))
        async with working(app, ledgers=["job"]) as worker:
            await until(conn, IDLE, f"holdfast pool [{worker.id}]", "7 s")
            done.set()
            await until(conn, SUCCEEDED)
    assert limits == ["6s"]
    assert await column(conn, "select n from counter") == [1]


async def test_a_transaction_whose_handler_hangs_is_ended_after_the_limit_of_all_sessions(
    settings: Settings, conn: Connection
) -> None:
    """A worker keeps it for that long, and then leaves it to the server."""
    hangs = asyncio.Event()
    short = replace(settings, worker_timeout=1.5, heartbeat_interval=0.3, db_idle_in_transaction_seconds=2.0)
    async with Holdfast(short) as app:

        @app.handler("counts", ledger="job")
        async def counts(ctx: Context) -> None:
            await ctx.transaction(confined=False)
            if ctx.attempt == 1:
                await hangs.wait()

        await app.enqueue("job", "counts", tenant=UUID(int=1))
        async with working(app, ledgers=["job"]) as worker:
            pid = await until(conn, IDLE, f"holdfast pool [{worker.id}]", "2 s")
            await until(conn, "select not exists (select from pg_stat_activity where pid = %s)", pid)
            hangs.set()
            await until(conn, SUCCEEDED)


async def test_a_session_that_a_handler_opens_belongs_to_its_worker(
    settings: Settings, conn: Connection
) -> None:
    """So it ends with that one."""
    names: list[str] = []
    async with Holdfast(settings) as app:

        @app.handler("connects", ledger="job")
        async def connects() -> None:
            async with await app.database.connect("something") as own:
                names.append(await one(own, "show application_name"))

        await app.enqueue("job", "connects", tenant=UUID(int=1))
        async with working(app, ledgers=["job"]) as worker:
            await until(conn, SUCCEEDED)
            assert names == [f"holdfast something [{worker.id}]"]
