"""`ctx.finish`: a handler that writes its end itself, in a transaction of its own."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest

from holdfast import Backoff, Context, Done, Fail, Holdfast, Item
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput
from runtime.support import add, column, drain, one, task, until_task, until_true, working

EFFECT = "insert into effects (task) values (%s)"
FINISHED = "select distinct label from holdfast_pulse where fact = 'moved' and label = 'finish'"
ONE_COMMIT = (
    "select count(*) = 1 from (select xmin from tasks where id = %s"
    " union select xmin from effects where task = %s) as found"
)


@pytest.mark.parametrize("after", [None, Fail("too late"), ValueError("too late")], ids=repr)
async def test_the_end_and_the_effect_are_one_commit_whatever_comes_after_it(
    app: Holdfast, conn: Connection, after: Any
) -> None:
    """Both have the same transaction's number; what the handler says then changes nothing."""

    @app.handler("send")
    async def send(ctx: Context) -> Any:
        async with app.database.connection() as own, own.transaction():
            await own.execute(EFFECT, (ctx.job.id,))
            await ctx.finish(own)
        if isinstance(after, Exception):
            raise after
        return after

    task_id = await add(app, "send")
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["last_error"]) == ("completed", None)
    assert await one(conn, ONE_COMMIT, task_id, task_id)


async def test_without_the_commit_it_was_a_bad_run(app: Holdfast, conn: Connection) -> None:
    """A handler that says done, and whose transaction was rolled back, has done nothing."""

    @app.handler("send", backoff=Backoff(base=0.0001))
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction(force_rollback=ctx.attempt == 1):
            await own.execute(EFFECT, (ctx.job.id,))
            await ctx.finish(own)

    task_id = await add(app, "send")
    await drain(app)
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"]) == ("completed", 2)
    assert "did not commit" in row["last_error"]
    assert await column(conn, "select task from effects") == [task_id]


async def test_what_was_called_off_is_not_finished(app: Holdfast, conn: Connection) -> None:
    """`ClaimLost` ends the handler's transaction, and with it what it wrote."""
    seen: list[str] = []

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction():
            await own.execute(EFFECT, (ctx.job.id,))
            await conn.execute("update tasks set status = 'failed' where id = %s", (ctx.job.id,))
            try:
                await ctx.finish(own)
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

    task_id = await add(app, "send")
    await drain(app)
    assert seen == ["ClaimLost"]
    assert (await task(conn, task_id))["status"] == "failed"
    assert await column(conn, "select task from effects") == []


async def test_a_run_that_has_ended_is_not_cut_off_before_it_has_cleared_up(
    app: Holdfast, conn: Connection
) -> None:
    """Its row is not ours any more, by its own doing."""
    there, go = asyncio.Event(), asyncio.Event()
    cleared: list[bool] = []

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction():
            await ctx.finish(own)
        there.set()
        await go.wait()
        cleared.append(not ctx.cancelled.is_set())

    @app.handler("note")
    async def note(ctx: Context) -> None:
        return

    await add(app, "send")
    async with working(app) as worker:
        await there.wait()
        worker.pumps[0].look()  # before the turn that takes the next one
        await until_task(conn, await add(app, "note"), "completed")
        go.set()
    assert cleared == [True]


async def test_a_finish_that_was_rolled_back_ends_nothing(app: Holdfast, conn: Connection) -> None:
    """The row is called off between two tries: the handler is stopped, as any other is."""
    there = asyncio.Event()
    stopped: list[bool] = []

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction(force_rollback=True):
            await ctx.finish(own)
        there.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(ctx.cancelled.is_set())

    task_id = await add(app, "send")
    async with working(app) as worker:
        await there.wait()
        await conn.execute("update tasks set status = 'failed' where id = %s", (task_id,))
        worker.pumps[0].look()
        await until_true(lambda: stopped)
    assert stopped == [True]


async def test_the_finish_of_another_claim_is_not_told_as_ours(app: Holdfast, conn: Connection) -> None:
    """Same row, same end, another fence: somebody else has done it."""
    there, go = asyncio.Event(), asyncio.Event()

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction(force_rollback=True):
            await ctx.finish(own)
        there.set()
        await go.wait()

    task_id = await add(app, "send")
    async with working(app):
        await there.wait()
        await conn.execute(
            "update tasks set status = 'completed', fence = fence + 1, completed_at = now() where id = %s",
            (task_id,),
        )
        go.set()
    assert await column(conn, FINISHED) == []


async def test_what_says_that_the_claim_is_gone_after_the_commit_changes_nothing(
    app: Holdfast, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is counted, and nobody is told that something was lost."""

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction():
            await ctx.finish(own)
        await ctx.progress(100, "cleared")

    task_id = await add(app, "send")
    await drain(app)
    assert (await task(conn, task_id))["status"] == "completed"
    assert await column(conn, FINISHED) == ["finish"]
    assert [record.message for record in caplog.records if str(task_id) in record.message] == []


@pytest.mark.parametrize("first", ["transaction", "finish"])
async def test_a_run_has_one_transaction_that_ends_it(app: Holdfast, conn: Connection, first: str) -> None:
    """What was written in the other would be lost: it is refused, and the run was a bad one."""

    @app.handler("send", backoff=Backoff(base=0.0001))
    async def send(ctx: Context) -> None:
        if first == "transaction":
            own = await ctx.transaction()
            await own.execute(EFFECT, (ctx.job.id,))
            await ctx.finish(own)
        else:
            async with app.database.connection() as own, own.transaction():
                await ctx.finish(own)
                await ctx.transaction()

    task_id = await add(app, "send")
    await drain(app)
    row = await task(conn, task_id)
    assert row["status"] == "dead_letter"
    assert "transaction" in row["last_error"]
    assert await column(conn, "select task from effects") == []


async def test_a_result_that_is_no_json_is_refused_before_anything_is_written(
    app: Holdfast, conn: Connection
) -> None:
    """Else the effect would be committed with the row's failure."""
    seen: list[InvalidInput] = []

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction():
            try:
                await ctx.finish(own, Done(object()))  # type: ignore[arg-type]
            except InvalidInput as error:
                seen.append(error)
                raise

    made = await app.enqueue("job", "send", tenant=UUID(int=1))
    await drain(app, ledgers=["job"])
    assert "not JSON" in str(seen[0])
    assert (await app.get("job", made.id)).state == "failed"


async def test_what_follows_is_enqueued_in_the_same_commit(app: Holdfast, conn: Connection) -> None:
    """`Done(then=…)`"""

    @app.handler("first")
    async def first(ctx: Context) -> None:
        async with app.database.connection() as own, own.transaction():
            await ctx.finish(own, Done(then=(Item(kind="second"),)))

    @app.handler("second")
    async def second(ctx: Context) -> None:
        return

    await add(app, "first")
    await drain(app)
    assert await column(conn, "select type from tasks where status = 'completed' order by created_at") == [
        "first",
        "second",
    ]


async def test_outside_of_a_transaction_it_is_refused(app: Holdfast, conn: Connection) -> None:
    """Nothing would be committed together."""
    seen: list[InvalidInput] = []

    @app.handler("send")
    async def send(ctx: Context) -> None:
        async with app.database.connection() as own:
            try:
                await ctx.finish(own)
            except InvalidInput as error:
                seen.append(error)
        assert app.settings.database_url
        async with await psycopg.AsyncConnection.connect(app.settings.database_url) as plain:
            await ctx.finish(plain)  # its first statement begins one

    task_id = await add(app, "send")
    await drain(app)
    assert "in a transaction" in str(seen[0])
    assert (await task(conn, task_id))["status"] == "completed"
