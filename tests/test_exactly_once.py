"""Promise 1: what a handler writes in the transaction of its job happens exactly once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import App, Backoff, Cancel, Context, Done, Fail, Holdfast, Item, Retry, Settings, Snooze
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.db.pool import Connection
from runtime.support import (
    PATIENCE,
    Gate,
    Process,
    add,
    add_many,
    column,
    cut,
    drain,
    make_tables,
    one,
    task,
    until,
    until_task,
    until_true,
    worker_of,
    working,
)

AT_ONCE = Backoff(base=0.0001)


@asynccontextmanager
async def opened(settings: Settings, conn: Connection) -> AsyncIterator[Holdfast]:
    await make_tables(conn)
    async with Holdfast(settings) as app:
        yield app


async def write(ctx: Context, note: str = "") -> None:
    conn = await ctx.transaction()
    await conn.execute("insert into effects (task, note) values (%s, %s)", (ctx.job.id, note))


async def test_effect_and_finish_commit_together(settings: Settings, connect: Callable[[], Any]) -> None:
    """T-18: another connection never sees the one without the other."""
    conn, watcher = await connect(), await connect()
    seen: list[tuple[str, int]] = []
    query = "select status::text, (select count(*) from effects where task = tasks.id) from tasks"

    async with opened(settings, conn) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> None:
            await write(ctx)
            seen.extend(await (await watcher.execute(query)).fetchall())

        await add(app, "effect")
        await drain(app)
    seen.extend(await (await conn.execute(query)).fetchall())
    assert seen == [("running", 0), ("completed", 1)]


@pytest.mark.parametrize("ending", [ValueError("broken"), Retry(after=3600), Fail("never"), Cancel()])
async def test_a_run_that_did_not_succeed_leaves_no_effect(
    settings: Settings, conn: Connection, ending: Any
) -> None:
    """T-18: an exception, Retry, Fail and Cancel roll the handler's writes back; the row is still decided."""
    async with opened(settings, conn) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> Any:
            await write(ctx)
            if isinstance(ending, Exception):
                raise ending
            return ending

        task_id = await add(app, "effect", limit=2)
        await drain(app)
    assert await column(conn, "select task from effects") == []
    assert (await task(conn, task_id))["status"] in ("pending", "failed")
    idle = (
        "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%%'"
    )
    assert await one(conn, idle) == 0


async def test_a_snooze_commits_what_was_written_so_far(settings: Settings, conn: Connection) -> None:
    """T-18, T-25: a long job may work in portions."""
    async with opened(settings, conn) as app:

        @app.handler("portions")
        async def portions(ctx: Context) -> Snooze | None:
            await write(ctx, "portion")
            return Snooze(0) if ctx.fence < 3 else None

        task_id = await add(app, "portions")
        async with working(app):
            row = await until_task(conn, task_id, "completed")
    assert len(await column(conn, "select task from effects")) == 3
    assert (row["attempts"], row["fence"]) == (1, 3)


async def test_a_claim_that_is_lost_meanwhile_takes_the_effect_along(
    settings: Settings, conn: Connection
) -> None:
    """T-14, T-18: the row was taken away while the handler ran: both are rolled back."""
    door, wrote = asyncio.Event(), asyncio.Event()
    async with opened(replace(settings, heartbeat_interval=600, worker_timeout=3600), conn) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> None:
            await write(ctx)
            wrote.set()
            await door.wait()

        task_id = await add(app, "effect")
        async with working(app) as worker:
            async with asyncio.timeout(PATIENCE):
                await wrote.wait()
            await conn.execute("update tasks set worker_id = 'another', fence = fence + 1")
            door.set()
            await until_true(lambda: not any(pump.running for pump in worker.pumps))
    row = await task(conn, task_id)
    assert (row["status"], row["worker_id"], row["attempts"]) == ("running", "another", 0)
    assert await column(conn, "select task from effects") == []


async def test_a_constraint_that_fails_at_commit_is_a_bad_run_and_no_lost_row(
    settings: Settings, conn: Connection
) -> None:
    """T-18, T-19: the commit itself is refused: the row gets its retries and its error."""
    async with opened(settings, conn) as app:
        await conn.execute("""
            create table parents (id int primary key);
            create table children (parent int references parents deferrable initially deferred);
        """)

        @app.handler("orphan", backoff=AT_ONCE)
        async def orphan(ctx: Context) -> None:
            await write(ctx)
            await (await ctx.transaction()).execute("insert into children values (7)")

        task_id = await add(app, "orphan")
        async with working(app):
            row = await until_task(conn, task_id, "dead_letter")
    assert row["attempts"] == 3
    assert "did not commit" in row["last_error"]
    assert "children_parent_fkey" in row["last_error"]
    assert await column(conn, "select task from effects") == []


async def test_an_error_that_the_handler_swallowed_still_spoils_its_transaction(
    settings: Settings, conn: Connection
) -> None:
    """T-18: after a failed statement nothing of the transaction can commit, whatever the handler says."""
    async with opened(settings, conn) as app:

        @app.handler("swallow")
        async def swallow(ctx: Context) -> None:
            await write(ctx)
            with suppress(psycopg.errors.DivisionByZero):
                await (await ctx.transaction()).execute("select 1 / 0")

        task_id = await add(app, "swallow", limit=1)
        await drain(app)
    assert (await task(conn, task_id))["status"] == "dead_letter"
    assert await column(conn, "select task from effects") == []


async def test_two_tasks_of_one_handler_share_its_one_transaction(
    settings: Settings, conn: Connection
) -> None:
    """T-18: asked for at once from several sides, it is one transaction and everything in it commits."""
    async with opened(settings, conn) as app:

        @app.handler("both")
        async def both(ctx: Context) -> None:
            first, second = await asyncio.gather(ctx.transaction(), ctx.transaction())
            assert first is second
            await write(ctx, "a")
            await write(ctx, "b")

        await add(app, "both")
        await drain(app)
    assert await column(conn, "select note from effects order by 1") == ["a", "b"]


async def test_more_handlers_than_connections_do_not_fail_each_other(
    settings: Settings, conn: Connection
) -> None:
    """T-18: with two connections in the pool, eight handlers with a transaction wait their turn."""
    tight = replace(settings, db_max_connections=2, db_acquire_timeout_seconds=1)
    async with opened(tight, conn) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> None:
            await write(ctx)
            await ctx.progress(50)
            await (await ctx.transaction()).execute("select pg_sleep(0.02)")

        await add_many(app, "effect", 40)
        async with working(app, concurrency=8):
            await until(conn, "select count(*) = 40 from tasks where status = 'completed'")
    assert await one(conn, "select count(*) from effects") == 40
    assert await one(conn, "select sum(attempts) from tasks") == 40


async def test_a_lost_connection_is_a_bad_run_and_the_next_run_writes_once(
    settings: Settings, conn: Connection
) -> None:
    """T-18: cut after its write; the effect is there once, from the second run."""
    async with opened(settings, conn) as app:

        @app.handler("effect", backoff=AT_ONCE)
        async def effect(ctx: Context) -> None:
            await write(ctx, f"run {ctx.attempt}")
            if ctx.attempt == 1:
                own = await ctx.transaction()
                await conn.execute("select pg_terminate_backend(%s, 20000)", (own.info.backend_pid,))

        task_id = await add(app, "effect")
        async with working(app):
            row = await until_task(conn, task_id, "completed")
    assert row["attempts"] == 2
    assert await column(conn, "select note from effects") == ["run 2"]


async def test_every_connection_cut_again_and_again_and_every_effect_once(
    settings: Settings, connect: Callable[[], Any]
) -> None:
    """T-14, T-18: outcomes whose answer was lost are told again; none counts twice."""
    conn = await connect()
    await make_tables(conn)
    patient = replace(settings, worker_timeout=60, heartbeat_interval=1)
    async with Holdfast(patient) as app:

        @app.handler("effect", backoff=AT_ONCE)
        async def effect(number: int, ctx: Context) -> None:
            await write(ctx, str(number))

        async with app.database.connection() as own:
            await own.execute(
                "insert into tasks (type, payload, max_retries) "
                "select 'effect', to_jsonb(n), 1000 from generate_series(1, 400) n"
            )
        async with working(app, concurrency=8):
            done = 0
            while done < 400:
                query = "select count(*) filter (where status = 'completed') > %s from tasks"
                await until(conn, query, done + 39)
                done = await one(conn, "select count(*) from tasks where status = 'completed'")
                if done < 400:
                    await cut(conn)
                    done = min(done, 360)
    assert await one(conn, "select count(*) from effects") == 400
    assert await one(conn, "select count(distinct task) from effects") == 400


async def test_killed_between_write_and_finish_neither_is_there(
    database_url: str, connect: Callable[[], Any], tmp_path: Path
) -> None:
    """T-18: kill -9 of a real process after its write; a second process then does it once."""
    conn = await connect()
    await make_tables(conn)
    gate = Gate(await connect())
    await gate.close()
    task_id = await one(conn, "insert into tasks (type) values ('gated effect') returning id")
    beats = {"heartbeat_interval": 0.5, "worker_timeout": 1.1, "leader_term": 1}
    first = Process(database_url, tmp_path / "first.log", [], beats)
    try:
        await worker_of(conn, first)
        await until(conn, "select true from runs where event = 'written' and pid = %s", first.pid)
        first.kill()
        assert await column(conn, "select task from effects") == []
        assert (await task(conn, task_id))["status"] == "running"
    finally:
        first.kill()
    second = Process(database_url, tmp_path / "second.log", [], beats)
    try:
        await until(conn, "select true from runs where event = 'written' and pid = %s", second.pid)
        assert await column(conn, "select task from effects") == []
        await gate.open()
        row = await until_task(conn, task_id, "completed")
        assert (row["attempts"], await one(conn, "select count(*) from effects")) == (2, 1)
        assert row["worker_id"] == await one(conn, "select note from effects")
    finally:
        second.kill()


async def test_what_follows_is_enqueued_with_the_finish_or_not_at_all(
    settings: Settings, conn: Connection
) -> None:
    """Promise 1: `Done(then=…)` with and without a transaction of the handler, and with a lost claim."""
    async with opened(settings, conn) as app:

        @app.handler("chain")
        async def chain(left: int, ctx: Context) -> Done:
            if left % 2:
                await write(ctx, "linked")
            return Done(then=(Item(kind="chain", payload=left - 1),) if left else ())

        @app.handler("stolen")
        async def stolen(ctx: Context) -> Done:
            async with await psycopg.AsyncConnection.connect(str(settings.database_url)) as other:
                await other.execute("update tasks set fence = fence + 1 where id = %s", [ctx.job.id])
            return Done(then=(Item(kind="never"),))

        @app.handler("refused")
        async def refused() -> Done:
            return Done(then=(Item(kind="blank", payload=None, priority=2**40),))

        for kind, payload in (("chain", 4), ("stolen", None), ("refused", None)):
            await app.enqueue("tasks", kind, payload, limit=1)
        async with working(app):
            await until(conn, "select count(*) = 5 from tasks where type = 'chain' and status = 'completed'")
            await until(conn, "select true from tasks where type = 'refused' and status = 'dead_letter'")
        assert await column(conn, "select payload from tasks where type = 'chain' order by 1") == [
            0,
            1,
            2,
            3,
            4,
        ]
        assert await one(conn, "select count(*) from effects") == 2
        assert await one(conn, "select count(*) from tasks where type in ('never', 'blank')") == 0
        assert "priority" in await one(conn, "select last_error from tasks where type = 'refused'")


async def test_what_follows_has_the_key_of_what_has_ended(settings: Settings, conn: Connection) -> None:
    """The row has ended when its follower comes in: the next sync of a connection is no twin of the last."""
    connection, tenant = uuid4(), uuid4()
    await conn.execute("insert into tenants (id) values (%s)", [tenant])
    await conn.execute(
        "insert into connections (id, tenant_id, provider_slug, external_id) values (%s, %s, 'github', 'me')",
        [connection, tenant],
    )
    where = {"connection_id": connection, "provider_slug": "github"}
    own = App(name="connectors", ledgers=(SYNC_JOBS,))
    async with Holdfast(settings, apps=[own]) as app:

        @app.handler("incremental")
        async def incremental(page: int) -> Done:
            follower = Item(kind="incremental", tenant=tenant, extras=where, payload=page + 1)
            return Done(then=(follower,) if page < 3 else ())

        await app.enqueue("sync_jobs", "incremental", 1, tenant=tenant, extras=where)
        async with working(app):
            await until(conn, "select count(*) = 3 from sync_jobs where status = 'succeeded'")
    assert await column(conn, 'select "cursor" from sync_jobs order by created_at') == [1, 2, 3]


async def test_what_follows_waits_for_a_database_that_has_no_connection_left(
    settings: Settings, conn: Connection
) -> None:
    """A pool that is empty makes it a bad run: neither the finish nor what follows is lost or halved."""
    scant = replace(settings, db_max_connections=2, db_acquire_timeout_seconds=0.2)
    async with opened(scant, conn) as app:
        tries: list[int] = []

        @app.handler("first", backoff=AT_ONCE)
        async def first(ctx: Context) -> Done:
            tries.append(ctx.attempt)
            if len(tries) == 1:
                await taken.wait()
            return Done(then=(Item(kind="second"),))

        @app.handler("second")
        async def second() -> None: ...

        taken, given_back = asyncio.Event(), asyncio.Event()

        async def hoard() -> None:
            async with app.database.connection(), app.database.connection():
                taken.set()
                await until_true(lambda: len(tries) > 1)
            given_back.set()

        await app.enqueue("tasks", "first", limit=5)
        async with working(app):
            hoarding = asyncio.create_task(hoard())
            await until(conn, "select true from tasks where type = 'second' and status = 'completed'")
            await hoarding
    assert given_back.is_set()
    assert tries[:2] == [1, 2]
    assert await column(conn, "select type from tasks where status = 'completed' order by 1") == [
        "first",
        "second",
    ]
