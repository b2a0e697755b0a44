"""An orderly stop: outcomes of the waiting time are recorded, the rest goes back, and nobody stays behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace

from holdfast import Context, Holdfast, Settings
from holdfast.db.pool import Connection
from runtime.support import (
    Gate,
    Process,
    add,
    column,
    drain,
    one,
    present,
    running,
    task,
    until,
    until_task,
    until_true,
    worker_of,
)

Start = Callable[..., Process]
INSERT = "insert into tasks (type) values (%s) returning id"


async def test_outcomes_of_the_waiting_time_are_recorded_and_nothing_new_begins(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """T-37: SIGTERM while a handler runs; it ends well; exit 0, no row in workers, the next row untouched."""
    task_id = await one(conn, INSERT, "gated")
    process = start("--concurrency", "1", shutdown_timeout=60)
    await until(conn, "select true from runs where event = 'begin'")
    waiting = await one(conn, INSERT, "note")
    process.ask_to_stop()
    # Its heartbeat goes on while it waits, so that nobody takes the row.
    beat = await one(conn, "select last_heartbeat from workers")
    await until(conn, "select last_heartbeat > %s + interval '1.5 s' from workers", beat)
    await gate.open()
    assert await process.ended() == 0
    row = await task(conn, task_id)
    assert (row["status"], row["attempts"], row["fence"]) == ("completed", 1, 1)
    assert (await task(conn, waiting))["status"] == "pending"
    assert await column(conn, "select id from workers") == []


async def test_what_does_not_end_in_time_is_given_back_without_a_count(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """T-25, T-37: running → pending, attempts unchanged, claimable at once; exit 1."""
    ids = [await one(conn, INSERT, kind) for kind in ("gated", "gated effect", "sleeps in a thread")]
    process = start(shutdown_timeout=0.5)
    await until(conn, "select count(*) = 3 from runs where event in ('begin', 'written')")
    process.ask_to_stop()
    assert await process.ended() == 1
    for task_id in ids:
        row = await task(conn, task_id)
        assert (row["status"], row["attempts"], row["next_retry_at"]) == ("pending", 0, None)
        assert (row["worker_id"], row["last_error"]) == (None, None)
    assert await column(conn, "select task from effects") == []
    assert await column(conn, "select id from workers") == []


async def test_a_second_signal_ends_the_process_at_once_and_says_so(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """Issue 2: dies loudly on a second signal."""
    await one(conn, INSERT, "gated")
    process = start(shutdown_timeout=600)
    await until(conn, "select true from runs where event = 'begin'")
    process.ask_to_stop()
    await until_true(lambda: "waiting for 1 handlers" in process.said())
    process.popen.send_signal(signal.SIGINT)
    assert await process.ended() == 128 + signal.SIGINT
    assert "second SIGINT: dying at once" in process.said()


async def test_the_steps_of_a_stop_come_in_the_order_that_loses_nothing(
    settings: Settings, conn: Connection, traces: None
) -> None:
    """T-37, §4: outcome, release, then the lead, then the row; deregistering first would give work away."""
    await conn.execute("""
        create table steps (n bigint generated always as identity, step text);
        create function note_step() returns trigger language plpgsql as $$ declare
            made jsonb := to_jsonb(new);
        begin
            insert into steps (step) values (
                case when tg_table_name = 'tasks' then concat_ws(' ', made ->> 'type', made ->> 'status')
                     when tg_op = 'DELETE' then 'row deleted' else 'lead given up' end);
            return null;
        end $$;
        create trigger a after update on tasks for each row
            when (new.status in ('completed', 'pending')) execute function note_step();
        create trigger b after update on workers for each row
            when (old.is_leader and not new.is_leader) execute function note_step();
        create trigger c after delete on workers for each row execute function note_step();
    """)
    door = asyncio.Event()
    async with Holdfast(replace(settings, shutdown_timeout=0.5)) as app:

        @app.handler("ends in time")
        async def ends_in_time() -> None:
            await door.wait()

        @app.handler("never ends")
        async def never_ends() -> None:
            await asyncio.Event().wait()

        await add(app, "ends in time")
        await add(app, "never ends")
        worker = app.worker()
        async with running(worker) as work:
            await until(conn, "select count(*) = 2 from tasks where status = 'running'")
            await until(conn, "select true from workers where is_leader")
            worker.stop()
            door.set()
            assert await work == 1
    steps = await column(conn, "select step from steps order by n")
    assert steps == ["ends in time completed", "never ends pending", "lead given up", "row deleted"]


async def test_an_effect_that_is_just_committing_when_time_is_up_is_not_undone_and_not_repeated(
    settings: Settings, conn: Connection, traces: None
) -> None:
    """T-18, T-37: release and finish meet on one row; whichever commits first has it, with its effect."""
    async with Holdfast(replace(settings, shutdown_timeout=0.2)) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> None:
            own = await ctx.transaction()
            await own.execute("insert into effects (task) values (%s)", (ctx.job.id,))
            await asyncio.sleep(0.001)

        async with app.database.connection() as own:
            await own.execute("insert into tasks (type) select 'effect' from generate_series(1, 100)")
        while await one(conn, "select exists (select from tasks where status <> 'completed')"):
            worker = app.worker(concurrency=4)
            done = await one(conn, "select count(*) from tasks where status = 'completed'")
            async with running(worker):
                await until(conn, "select count(*) >= least(100, %s) from effects", done + 12)
        assert await one(conn, "select count(*) from effects") == 100
        assert await one(conn, "select count(distinct task) from effects") == 100
        assert await one(conn, "select sum(attempts) from tasks") == 100


async def test_a_worker_that_runs_until_idle_leaves_nothing_behind(app: Holdfast, conn: Connection) -> None:
    """T-37: the same order at the end of a drain."""
    app.handler("note")(lambda payload: None)
    ids = [await add(app, "note") for _ in range(25)]
    assert await drain(app, concurrency=4) == 0
    assert {(await task(conn, task_id))["status"] for task_id in ids} == {"completed"}
    assert await column(conn, "select id from workers") == []


async def test_ctrl_c_is_an_orderly_stop(traces: None, start: Start, conn: Connection) -> None:
    """T-37: SIGINT like SIGTERM; an idle worker leaves at once with exit 0."""
    process = start()
    await worker_of(conn, process)
    await until_task(conn, await one(conn, INSERT, "note"), "completed")
    process.popen.send_signal(signal.SIGINT)
    assert await process.ended() == 0
    assert await column(conn, "select id from workers") == []


async def test_the_row_of_a_stopping_worker_outlives_its_handlers(app: Holdfast, conn: Connection) -> None:
    """T-37: it is there until the last outcome is written."""
    door = asyncio.Event()

    @app.handler("gated")
    async def gated() -> None:
        await door.wait()

    task_id = await add(app, "gated")
    worker = app.worker()
    async with running(worker):
        await until_task(conn, task_id, "running")
        worker.stop()
        await present(conn, worker)
        door.set()
    assert (await task(conn, task_id))["status"] == "completed"
