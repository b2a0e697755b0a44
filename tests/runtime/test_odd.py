"""Odd answers, odd moments: a run may go wrong in any way, and the worker and the other rows go on."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pytest

from conftest import Connect
from holdfast import Backoff, Context, Done, Fail, Holdfast, Item, Ledger, Retry, Settings, Snooze
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, LedgerError
from holdfast.runtime.duties import Patience, reap
from runtime.support import (
    ERRANDS,
    PATIENCE,
    add,
    column,
    drain,
    make_tables,
    one,
    running,
    task,
    until,
    working,
)

WAITING = (
    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type='Lock'"
)


@pytest.mark.parametrize(
    "answer",
    [Fail(reason=ValueError("no")), Retry(reason=None), Retry(after="3"), Snooze("5"), Snooze(None)],  # type: ignore[arg-type]
    ids=repr,
)
async def test_an_answer_that_makes_no_sense_ends_its_run_and_not_the_worker(
    app: Holdfast, conn: Connection, answer: Any
) -> None:
    @app.handler("odd", backoff=Backoff(base=0.0001))
    async def odd() -> Any:
        return answer

    @app.handler("plain")
    async def plain() -> None: ...

    odd_id, plain_id = await add(app, "odd", limit=1), await add(app, "plain")
    assert await drain(app) == 0
    assert (await task(conn, odd_id))["status"] in ("failed", "dead_letter", "pending")
    assert (await task(conn, plain_id))["status"] == "completed"


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise RuntimeError("must be positive")


async def test_a_type_that_refuses_in_its_own_way_is_a_permanent_error(
    app: Holdfast, conn: Connection
) -> None:
    @app.handler("picky")
    async def picky(_: Picky) -> None: ...

    with pytest.raises(InvalidInput, match="payload: must be positive"):
        await app.enqueue("tasks", "picky", {"number": 0})
    task_id = await add(app, "picky", {"number": 0})
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["last_error"]) == ("failed", "payload: must be positive")


async def test_a_transaction_that_a_handler_left_open_costs_its_connection_and_nothing_else(
    app: Holdfast, conn: Connection
) -> None:
    kept: list[Any] = []

    @app.handler("careless")
    async def careless(ctx: Context) -> Retry:
        inner = (await ctx.transaction()).transaction()
        kept.append(inner)
        await inner.__aenter__()
        return Retry("forgot to leave")

    @app.handler("careful")
    async def careful(ctx: Context) -> None:
        await (await ctx.transaction()).execute("insert into effects (task) values (%s)", [ctx.job.id])

    careless_id, careful_id = await add(app, "careless", limit=1), await add(app, "careful")
    assert await drain(app) == 0
    assert (await task(conn, careless_id))["status"] == "dead_letter"
    assert await column(conn, "select task from effects") == [careful_id]


async def test_a_ledger_whose_table_is_missing_does_not_keep_others_from_recovery(
    settings: Settings, conn: Connection
) -> None:
    """T-34: the sweep goes on with the ledgers that are there."""
    async with Holdfast(settings, ledgers=[replace(ERRANDS, table="nowhere")]) as app:
        task_id = await add(app, "x")
        (claim,) = await app.store("tasks").claim(conn, "gone", 1)
        await app.store("tasks").start(conn, [claim])
        await conn.execute("update tasks set claimed_at = claimed_at - interval '1 hour'")
        stores = [app.stores["errands"], app.stores["tasks"]]
        assert await reap(conn, stores, "leader", Patience(timeout=30, nameless=60)) == 1
        assert (await task(conn, task_id))["status"] == "pending"


@pytest.mark.parametrize("owner", ["somebody", None])
async def test_a_row_that_foreign_sql_holds_without_a_time_is_given_back(
    app: Holdfast, conn: Connection, owner: str | None
) -> None:
    """T-35: claimed_at is NULL; the row is as old as its last change."""
    task_id = await add(app, "x")
    await conn.execute("update tasks set status = 'running', worker_id = %s", (owner,))
    patience = Patience(timeout=30, nameless=60)
    soon = await one(conn, "select clock_timestamp() + interval '20 seconds'")
    late = await one(conn, "select clock_timestamp() + interval '90 seconds'")
    assert await reap(conn, [app.store("tasks")], "leader", patience, now=soon) == 0
    assert await reap(conn, [app.store("tasks")], "leader", patience, now=late) == 1
    assert (await task(conn, task_id))["status"] == "pending"


async def test_effects_of_an_answer_that_the_ledger_has_no_edge_for_are_rolled_back(
    settings: Settings, conn: Connection
) -> None:
    await make_tables(conn)
    edges = tuple(edge for edge in ERRANDS.edges if edge.verb != "snooze")
    ledger: Ledger = replace(ERRANDS, edges=edges)
    async with Holdfast(settings, ledgers=[ledger]) as app:

        @app.handler("sleepy", ledger="errands")
        async def sleepy(ctx: Context) -> Snooze:
            await (await ctx.transaction()).execute(
                "insert into effects (task, note) values (gen_random_uuid(), 'x')"
            )
            return Snooze(60)

        await app.enqueue_many("errands", [Item(kind="sleepy")])
        await drain(app)
    assert await column(conn, "select note from effects") == []
    assert await column(conn, "select stage from errands") == ["bad"]


async def test_an_outcome_on_its_way_when_the_time_to_stop_is_over_is_still_written(
    settings: Settings, conn: Connection, connect: Connect
) -> None:
    """T-37: outcomes of the waiting time are recorded, also one that waits for a lock."""
    async with Holdfast(replace(settings, shutdown_timeout=0.2)) as app:
        ran = asyncio.Event()

        @app.handler("x")
        async def run() -> Done:
            ran.set()
            await hold.wait()
            return Done()

        hold = asyncio.Event()
        task_id = await add(app, "x")
        worker = app.worker()
        async with running(worker) as work, asyncio.timeout(PATIENCE):
            await ran.wait()
            blocker = await connect()
            async with blocker.transaction():
                await blocker.execute("select from tasks for update")
                hold.set()
                await until(conn, WAITING + " having count(*) = 1")
                worker.stop()
                await until(conn, WAITING + " having count(*) = 2")  # said again, by the stop
            assert await work == 0
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"]) == ("completed", 1)


async def test_a_row_that_was_being_claimed_when_the_stop_came_is_given_back_unrun(
    app: Holdfast, conn: Connection, connect: Connect
) -> None:
    """T-37: no handler begins after the stop."""

    @app.handler("x")
    async def run() -> None:
        raise AssertionError("must not run")

    worker = app.worker()
    async with running(worker) as work, asyncio.timeout(PATIENCE):
        await worker.pumps[0].idle.wait()
        blocker = await connect()
        async with blocker.transaction():
            await blocker.execute("lock table tasks in exclusive mode")
            await blocker.execute("insert into tasks (type) values ('x')")
            await until(conn, WAITING + " having count(*) >= 1")
            worker.stop()
            await asyncio.sleep(0)
        assert await work == 0
    assert await column(conn, "select (status, attempts)::text from tasks") == ["(pending,0)"]


def test_two_ledgers_cannot_share_a_table(settings: Settings) -> None:
    with pytest.raises(LedgerError, match="belongs to another ledger"):
        Holdfast(settings, ledgers=[ERRANDS, replace(ERRANDS, name="others")])


async def test_an_app_is_opened_once(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="is open already"):
        async with app:
            pass


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize("fault", [Unspeakable, KeyboardInterrupt, GeneratorExit, SystemExit, StopIteration])
@pytest.mark.parametrize("sync", [True, False])
async def test_whatever_a_handler_raises_is_a_bad_run(
    app: Holdfast, conn: Connection, fault: type[BaseException], sync: bool
) -> None:
    if sync:

        @app.handler("bad")
        def bad() -> None:
            raise fault

    else:

        @app.handler("bad")
        async def bad_too() -> None:
            raise fault

    task_id = await add(app, "bad", limit=1)
    assert await drain(app) == 0
    assert (await task(conn, task_id))["status"] == "dead_letter"


@pytest.mark.parametrize("answer", [Done, Retry, ValueError("returned, not raised")], ids=repr)
async def test_an_outcome_without_its_parentheses_is_not_done(
    app: Holdfast, conn: Connection, answer: Any
) -> None:
    @app.handler("slip")
    async def slip() -> Any:
        return answer

    task_id = await add(app, "slip", limit=1)
    await drain(app)
    assert (await task(conn, task_id))["status"] == "dead_letter"


async def test_a_savepoint_left_open_undoes_the_effects_and_the_finish(
    app: Holdfast, conn: Connection
) -> None:
    """T-18: both or neither, also when the handler forgot to leave a transaction of its own."""
    kept: list[Any] = []

    @app.handler("dangling", backoff=Backoff(base=0.0001))
    async def dangling(ctx: Context) -> Done:
        own = await ctx.transaction()
        await own.execute("insert into effects (task) values (%s)", [ctx.job.id])
        kept.append(own.transaction())
        await kept[-1].__aenter__()
        return Done()

    task_id = await add(app, "dangling", limit=2)
    await drain(app)
    assert await column(conn, "select task from effects") == []
    assert (await task(conn, task_id))["status"] == "dead_letter"
    assert len(kept) == 2


async def test_a_handler_that_cancels_itself_has_had_a_bad_run(app: Holdfast, conn: Connection) -> None:
    @app.handler("suicidal")
    async def suicidal() -> None:
        me = asyncio.current_task()
        assert me
        me.cancel()
        await asyncio.sleep(0)

    task_id = await add(app, "suicidal", limit=1)
    await drain(app)
    assert (await task(conn, task_id))["status"] == "dead_letter"


async def test_what_a_handler_sets_on_its_connection_is_not_for_the_next_one(
    app: Holdfast, conn: Connection
) -> None:
    seen: list[Any] = []

    @app.handler("sets")
    async def sets(ctx: Context) -> None:
        await (await ctx.transaction()).execute("set timezone to 'Asia/Tokyo'")

    @app.handler("shows")
    async def shows(ctx: Context) -> None:
        seen.append(await one(await ctx.transaction(), "show timezone"))

    for kind in ("sets", "shows") * 3:
        await add(app, kind)
    await drain(app, concurrency=1)
    assert seen == ["UTC"] * 3


async def test_a_table_that_is_away_for_a_moment_does_not_end_the_worker(
    app: Holdfast, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("x")
    async def run() -> None: ...

    async with running(app.worker()):
        await conn.execute("alter table tasks rename to elsewhere")
        await until_logged(caplog, "tasks: refused")
        await conn.execute("alter table elsewhere rename to tasks")
        task_id = await add(app, "x")
        await until(conn, "select true from tasks where id = %s and status = 'completed'", task_id)


async def until_logged(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while words not in caplog.text:  # noqa: ASYNC110  a log has no event to wait for
            await asyncio.sleep(0.01)


async def test_a_key_that_no_index_can_hold_is_refused_with_a_sentence(
    app: Holdfast, conn: Connection
) -> None:
    with pytest.raises(InvalidInput):
        await app.enqueue("tasks", "x", key=secrets.token_hex(9000))
    assert await column(conn, "select id from tasks") == []


async def test_a_connection_that_leads_to_another_schema_is_refused(
    settings: Settings, conn: Connection
) -> None:
    async with Holdfast(replace(settings, schema="cell_7")) as app:
        with pytest.raises(InvalidInput, match="leads to the schema public, and HOLDFAST_SCHEMA is cell_7"):
            await app.enqueue("tasks", "x", conn=conn)
        await app.enqueue("tasks", "x")
    assert await column(conn, "select type from tasks") == []
    assert await column(conn, "select type from cell_7.tasks") == ["x"]


async def test_a_sync_connection_is_refused_with_a_sentence(app: Holdfast, database_url: str) -> None:
    with psycopg.connect(database_url) as sync, pytest.raises(InvalidInput, match="AsyncConnection"):
        await app.enqueue("tasks", "x", conn=sync)  # type: ignore[arg-type]


async def test_a_unique_index_of_the_user_that_refuses_one_end_holds_up_no_other(
    app: Holdfast, conn: Connection
) -> None:
    """One row's move is refused: it is a bad run, and the others of its batch are written."""
    await conn.execute(
        "create unique index on tasks (type, (status = 'completed')) where status = 'completed'"
    )
    app.handler("twin")(lambda payload: None)
    app.handler("lone")(lambda payload: None)
    for kind in ("twin", "twin", "lone"):
        await app.enqueue("tasks", kind, limit=1)
    async with working(app):
        await until(conn, "select count(*) = 2 from tasks where status = 'completed'")
        await until(conn, "select true from tasks where type = 'twin' and status = 'dead_letter'")
    assert "cannot be written" in await one(conn, "select last_error from tasks where status = 'dead_letter'")
