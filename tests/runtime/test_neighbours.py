"""What the work of one organisation must not do to another's: stop it, break its worker, see its leavings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Context, Done, Holdfast, Item, Settings
from holdfast.db.pool import Connection
from holdfast.errors import IdempotencyConflict
from runtime.support import drain, one, until, working

ONE, TWO = UUID(int=1), UUID(int=2)
STATUS = "select status::text from job where id = %s"
IS = "select status = %s::job_status from job where id = %s"


async def test_a_row_that_somebody_keeps_locked_delays_only_itself(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """J-11, J-15: its end is written when the lock is gone, and everybody else's work goes on."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.handler("slow", ledger="job")
    async def slow() -> None:
        begun.set()
        await go_on.wait()

    @app.handler("quick", ledger="job")
    async def quick() -> None:
        pass

    locker = await connect()
    async with working(app, ledgers=["job"], concurrency=5):
        locked = (await app.enqueue("job", "slow", tenant=ONE)).id
        await begun.wait()
        async with locker.transaction():
            await locker.execute("select from job where id = %s for update", [locked])
            go_on.set()
            for _ in range(3):
                other = (await app.enqueue("job", "quick", tenant=TWO)).id
                await until(conn, IS, "succeeded", other)
            assert await one(conn, STATUS, locked) == "running"
        await until(conn, IS, "succeeded", locked)
    assert await one(conn, "select count(*) from job_event where job_id = %s", locked) == 3


@pytest.mark.parametrize("depth", [150, 250, 961, 964, 990, 5000])
async def test_a_result_that_is_nested_too_deep_ends_its_job_and_not_the_worker(
    app: Holdfast, conn: Connection, depth: int
) -> None:
    """Bad input: a result that is not JSON, or more than anybody could read, is a permanent failure."""

    @app.handler("deep", ledger="job")
    async def deep() -> Done:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        return Done(value)

    @app.handler("plain", ledger="job")
    async def plain() -> None:
        pass

    hard = (await app.enqueue("job", "deep", tenant=ONE)).id
    easy = (await app.enqueue("job", "plain", tenant=TWO)).id
    await drain(app, ledgers=["job"], concurrency=1)
    assert await one(conn, STATUS, easy) == "succeeded"
    row = await app.get("job", hard)
    if depth <= 200:
        assert row.state == "succeeded"
    else:
        assert (row.state, row.columns["last_error_code"]) == ("dead_letter", "RESULT_NOT_JSON")


LEAVINGS = {
    "a role": ("set role holdfast_worker", "select current_user = session_user"),
    "a setting": ("set my.secret = 'of one'", "select coalesce(current_setting('my.secret', true), '') = ''"),
    "a temporary table": (
        "create temp table scratch as select 'of one' as secret",
        "select to_regclass('pg_temp.scratch') is null",
    ),
    "a cursor": (
        "declare held cursor with hold for select 'of one'",
        "select not exists (select from pg_cursors where is_holdable)",
    ),
    "a lock": (
        "select pg_advisory_lock(4711)",
        "select not exists (select from pg_locks where locktype = 'advisory' and objid = 4711"
        " and database = (select oid from pg_database where datname = current_database()))",
    ),
    "an ear": ("listen secrets", "select not exists (select from pg_listening_channels())"),
}


@pytest.mark.parametrize("what", LEAVINGS)
@pytest.mark.parametrize("way", ["handler", "as_tenant"])
async def test_what_one_leaves_on_a_connection_is_gone_for_the_next(
    app: Holdfast, what: str, way: str
) -> None:
    """J-39: a pooled connection tells nobody who had it before, and what he did there."""
    leave, gone = LEAVINGS[what]

    @app.handler("leave", ledger="job")
    async def leave_something(ctx: Context) -> None:
        conn = await ctx.transaction(confined=what != "a role")
        await conn.execute(leave)

    if way == "handler":
        receipt = await app.enqueue("job", "leave", tenant=ONE)
        await drain(app, ledgers=["job"], concurrency=1)
        assert (await app.get("job", receipt.id)).state == "succeeded"
    else:
        async with app.as_tenant(ONE) as conn:
            if what == "a role":
                await conn.execute("reset role")
            await conn.execute(leave)
    for _ in range(3):
        async with app.database.connection() as conn:
            assert (await (await conn.execute(gone)).fetchone()) == (True,), what


async def test_a_key_of_two_kinds_in_one_bulk_is_a_conflict_and_nothing_is_written(
    app: Holdfast, conn: Connection
) -> None:
    """J-5, J-6"""
    items = [Item(kind="quick", key="same", tenant=ONE), Item(kind="slow", key="same", tenant=ONE)]
    with pytest.raises(IdempotencyConflict, match="same"):
        await app.enqueue_many("job", items)
    assert await one(conn, "select count(*) from job") == 0
    both = await app.enqueue_many("job", [items[0], items[0]])
    assert [receipt.created for receipt in both] == [True, False]


def test_a_handler_sees_no_way_to_end_its_own_transaction() -> None:
    """J-15, J-18: what a handler is given has these names, and none that commits or lifts its tenant."""
    names = {name for name in vars(Context) if not name.startswith("_")}
    told = {"attempt", "cancelled", "ending", "fence", "log"}
    assert names == told | {"finish", "progress", "transaction", "when_committed"}


async def test_a_tenants_own_odd_rows_break_no_list(app: Holdfast, conn: Connection) -> None:
    """J-39, J-43: what raw SQL may write, people can still read."""
    for column, value in (("created_at", "infinity"), ("run_at", "-infinity"), ("updated_at", "infinity")):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            async with app.as_tenant(ONE) as tenant:
                await tenant.execute(
                    f"insert into job (org_id, type, {column}) values (%s, 'odd', %s)", [ONE, value]
                )
    await conn.execute(
        "insert into job (org_id, type, created_at, run_at) values (%s, 'odd', 'infinity', '20000-01-01')",
        [ONE],
    )
    (row,) = (await app.find("job")).rows
    assert (row.created.year, row.due and row.due.year) == (9999, 9999)
    await conn.execute(
        "insert into job_event (job_id, ts, next_status, detail_json)"
        " values (%s, 'infinity', 'queued', '{\"progress\": \"abc\"}')",
        [row.id],
    )
    assert (await app.get("job", row.id)).progress is None
    (event,) = await app.timeline("job", row.id)
    assert event.at.year == 9999


async def test_a_worker_stops_although_somebody_keeps_one_of_its_rows_locked(
    settings: Settings, conn: Connection, connect: Callable[[], Any]
) -> None:
    """J-26, J-27: it does not wait for the lock for ever; the row is recovered as if its worker were lost."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    locker = await connect()
    async with Holdfast(replace(settings, shutdown_timeout=1.0, worker_timeout=3.0)) as app:

        @app.handler("slow", ledger="job")
        async def slow() -> None:
            begun.set()
            await go_on.wait()

        locked = (await app.enqueue("job", "slow", tenant=ONE)).id
        async with asyncio.timeout(30), locker.transaction():
            async with working(app, ledgers=["job"], concurrency=1):
                await begun.wait()
                await locker.execute("select from job where id = %s for update", [locked])
                go_on.set()
            assert await one(conn, STATUS, locked) == "running"
        assert await one(conn, "select count(*) from workers") == 0
        async with working(app, ledgers=["job"], concurrency=1):
            await until(conn, "select attempt + fence > 1 from job where id = %s", locked)
