"""The database goes away, as a connection or as a whole: nothing is lost and nothing is finished twice."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Context, Holdfast, Settings
from holdfast.db import embedded, pool
from holdfast.db.migrate import upgrade
from holdfast.db.pool import Connection
from runtime.support import (
    AT_A_GATE,
    PATIENCE,
    add,
    add_many,
    column,
    cut,
    make_tables,
    one,
    present,
    task,
    until,
    until_task,
    working,
)


async def test_outcomes_of_runs_that_outlive_their_connection_are_written_once(
    settings: Settings, conn: Connection
) -> None:
    """T-14, T-36: every connection is cut while handlers run; each ran once and each end is written."""
    door = asyncio.Event()
    runs: list[int] = []
    async with Holdfast(replace(settings, worker_timeout=60)) as app:

        @app.handler("gated")
        async def gated(number: int) -> None:
            runs.append(number)
            await door.wait()

        await add_many(app, "gated", 12)
        async with working(app, concurrency=6) as worker:
            first = worker.id
            await until(conn, "select count(*) = 6 from tasks where status = 'running'")
            assert await cut(conn) >= 3
            door.set()
            await until(conn, "select count(*) = 12 from tasks where status = 'completed'")
            assert worker.id == first
    assert sorted(runs) == list(range(12))
    assert await one(conn, "select sum(attempts) from tasks") == 12
    assert await one(conn, "select sum(fence) from tasks") == 12


async def test_rows_that_were_claimed_unheard_are_given_back_after_a_lost_connection(
    app: Holdfast, conn: Connection
) -> None:
    """T-10, T-14: a claim whose answer was lost must not stay with a worker that does not know of it."""
    await _strays_come_back(app, conn, cutting=True)


async def test_rows_that_were_claimed_unheard_are_given_back_even_when_they_turn_up_late(
    app: Holdfast, conn: Connection
) -> None:
    """T-10: a cut-off session may commit its claim after we are back; a later look finds it."""
    await _strays_come_back(app, conn, cutting=False)


async def _strays_come_back(app: Holdfast, conn: Connection, *, cutting: bool) -> None:
    door, begun = asyncio.Event(), asyncio.Event()

    @app.handler("gated")
    async def gated() -> None:
        begun.set()
        await door.wait()

    @app.handler("stray")
    async def stray(ctx: Context) -> None: ...

    mine = await add(app, "gated")
    async with working(app, ledgers=["tasks"]) as worker:
        await until_task(conn, mine, "running")
        claimed, started = await column(
            conn,
            "insert into tasks (type, status, worker_id, claimed_at, fence) values "
            "('stray', 'claimed', %s, now(), 1), ('stray', 'running', %s, now(), 1) returning id",
            worker.id,
            worker.id,
        )
        if cutting:
            await cut(conn, "worker tasks")
        for task_id in (claimed, started):
            row = await until_task(conn, task_id, "completed")
            assert (row["attempts"], row["fence"]) == (1, 2)
        assert (await task(conn, mine))["fence"] == 1
        door.set()
        row = await until_task(conn, mine, "completed")
        assert (row["attempts"], row["fence"]) == (1, 1)


async def test_a_worker_starts_again_to_claim_when_the_database_is_back(
    app: Holdfast, conn: Connection
) -> None:
    """Issue 2: reconnects with backoff, the doorbell too."""
    app.handler("note")(lambda payload: None)
    async with working(app) as worker:
        for _ in range(3):
            await present(conn, worker)
            await cut(conn)
            await until_task(conn, await add(app, "note"), "completed")


async def test_a_worker_that_is_cut_off_in_its_first_election_goes_on(
    app: Holdfast, conn: Connection
) -> None:
    """Issue 2: it is registered, so others may rely on it; the lead is taken with the next connection."""
    lock = "hashtextextended('holdfast leader ' || current_schema(), 0)"
    app.handler("note")(lambda payload: None)
    await conn.execute(f"select pg_advisory_lock({lock})")
    async with working(app) as worker:
        await until(conn, AT_A_GATE)
        await cut(conn)
        await conn.execute(f"select pg_advisory_unlock({lock})")
        await until_task(conn, await add(app, "note"), "completed")
        await until(conn, "select true from workers where is_leader and id = %s", worker.id)


async def test_a_restart_of_the_server_in_the_middle_of_a_drain(temporary_home: Any) -> None:
    """T-18, T-36: stopped and started again under load, every task completes and has its effect once."""
    with temporary_home() as home:
        lease = embedded.acquire(home)
        url = lease.url
        await asyncio.to_thread(upgrade, url)
        settings = Settings(
            database_url=url, profile="test", heartbeat_interval=0.5, worker_timeout=30, leader_term=2
        )
        conn = await pool.connect(settings, url, purpose="test")
        await make_tables(conn)
        async with Holdfast(settings) as app:

            @app.handler("effect")
            async def effect(number: int, ctx: Context) -> None:
                own = await ctx.transaction()
                await own.execute("insert into effects (task) values (%s)", (ctx.job.id,))

            await conn.execute(
                "insert into tasks (type, payload, max_retries) "
                "select 'effect', to_jsonb(n), 1000 from generate_series(1, 600) n"
            )
            async with working(app, concurrency=8):
                await until(conn, "select count(*) >= 100 from effects")
                await conn.close()
                await asyncio.to_thread(_restart, home, lease)
                conn = await pool.connect(settings, url, purpose="test")
                assert await one(conn, "select count(*) from tasks where status = 'completed'") < 600
                await until(conn, "select count(*) = 600 from tasks where status = 'completed'")
        assert await one(conn, "select count(*) from effects") == 600
        assert await one(conn, "select count(distinct task) from effects") == 600
        await conn.close()


def _restart(home: Path, lease: embedded.Lease) -> None:
    lease.release()
    embedded.stop(home)
    again = embedded.acquire(home)
    assert again.url == lease.url
    with psycopg.connect(again.url) as conn:
        conn.execute("select 1")


async def test_a_worker_that_was_given_up_drops_its_runs_and_goes_on_under_a_new_id(
    app: Holdfast, conn: Connection
) -> None:
    """T-36: its heartbeat finds no row: handlers are stopped, claims dropped, a new registration."""
    stopped: asyncio.Queue[str | None] = asyncio.Queue()

    @app.handler("wait")
    async def wait(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.put_nowait(ctx.job.owner)

    app.handler("note")(lambda payload: None)
    task_id = await add(app, "wait")
    async with working(app) as worker:
        await until_task(conn, task_id, "running")
        old = worker.id
        await conn.execute("update tasks set status = 'failed' where id = %s", (task_id,))
        await conn.execute("delete from workers")
        async with asyncio.timeout(PATIENCE):
            assert await stopped.get() == old
        await until(conn, "select true from workers where id <> %s", old)
        assert worker.id != old
        row = await until_task(conn, await add(app, "note"), "completed")
        assert row["worker_id"] == worker.id
    assert await column(conn, "select id from workers") == []
    row = await task(conn, task_id)
    assert (row["status"], row["worker_id"], row["attempts"]) == ("failed", old, 0)
