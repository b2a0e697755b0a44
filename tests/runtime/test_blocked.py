"""A handler that blocks the event loop: its run is counted, the others are not, and the process ends."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import Holdfast, Settings
from holdfast.db.pool import Connection
from holdfast.errors import HoldfastError
from holdfast.runtime.worker import EVENT_LOOP_BLOCKED, Worker
from runtime.support import PATIENCE, Gate, Process, add, column, one, task, until, until_task, until_true

Start = Callable[..., Process]
INSERT = "insert into tasks (type) values (%s) returning id"
SHORT = {"worker_timeout": 2.0, "loop_warning_seconds": 0.5}


@pytest.mark.parametrize("kind", ["blocks the loop", "blocks the loop in a task"])
async def test_a_process_whose_loop_is_blocked_ends_and_only_the_run_that_blocks_it_is_counted(
    traces: None, start: Start, conn: Connection, gate: Gate, kind: str
) -> None:
    innocent = [await one(conn, INSERT, "gated") for _ in range(3)]
    process = start(**SHORT)
    await until(conn, "select count(*) = 3 from runs")
    blocking = await one(conn, INSERT, kind)
    assert await process.ended() == EVENT_LOOP_BLOCKED

    row = await task(conn, blocking)
    assert (row["status"], row["attempts"]) == ("pending", 1)
    assert row["last_error"].startswith("the handler blocked the event loop of its worker for ")
    for task_id in innocent:
        row = await task(conn, task_id)
        assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 0, None)
    assert await column(conn, "select id from workers") == []
    assert f"by tasks {blocking}; rows at work: " in process.said()
    assert all(f"tasks {task_id}" in process.said() for task_id in innocent)
    assert "time.sleep(3600)" in process.said()


async def test_a_job_that_blocks_every_worker_ends_in_the_dead_letters(
    traces: None, start: Start, conn: Connection
) -> None:
    blocking = await one(conn, INSERT, "blocks the loop")
    for _ in range(3):
        assert await start(**SHORT).ended() == EVENT_LOOP_BLOCKED
    row = await task(conn, blocking)
    assert (row["status"], row["attempts"]) == ("dead_letter", 3)


async def test_a_loop_that_comes_back_too_late_neither_claims_nor_writes(
    settings: Settings, conn: Connection, connect: Callable[[], asyncio.Future[Connection]]
) -> None:
    """It comes back in the middle of the release: its rows are written, its worker is still registered."""
    unblock, failures = threading.Event(), list[BaseException]()
    workers = list[Worker]()
    app = Holdfast(replace(settings, worker_timeout=2.5, loop_warning_seconds=0.2, shutdown_timeout=0.5))

    @app.handler("blocks")
    async def blocks() -> None:
        unblock.wait(PATIENCE)

    app.handler("note")(lambda payload: None)

    async def work() -> None:
        async with app:
            await add(app, "blocks")
            workers.append(app.worker(ledgers=["tasks"]))
            with pytest.raises(HoldfastError, match="event loop blocked") as caught:
                await workers[0].run()
            failures.append(caught.value)

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    locker = await connect()
    try:
        await until_true(lambda: workers and workers[0].pumps and workers[0].pumps[0].barred)
        await locker.execute("begin")
        await locker.execute("lock table workers in exclusive mode")
        blocked = await until(conn, "select id from tasks where attempts = 1 and status = 'pending'")
        await conn.execute("update tasks set next_retry_at = now() + interval '1 hour'")
        pending = await one(conn, INSERT, "note")
        unblock.set()
        loop = workers[0]._loop
        assert loop
        for _ in range(3):  # it has polled meanwhile
            polled = asyncio.run_coroutine_threadsafe(asyncio.sleep(settings.poll_interval), loop)
            await asyncio.wrap_future(polled)
        assert (await task(conn, pending))["fence"] == 0
    finally:
        unblock.set()
        await locker.execute("rollback")
        await asyncio.to_thread(thread.join, PATIENCE)
    assert len(failures) == 1
    row = await task(conn, blocked)
    assert (row["status"], row["attempts"], row["worker_id"]) == ("pending", 1, None)
    row = await task(conn, pending)
    assert (row["status"], row["fence"]) == ("pending", 0)
    assert await column(conn, "select id from workers") == []


async def test_a_loop_that_comes_back_in_time_goes_on(settings: Settings, conn: Connection) -> None:
    """Blocked beyond the warning, and not beyond the timeout: nothing is counted, and it works on."""
    app = Holdfast(replace(settings, loop_warning_seconds=0.2))
    warned = threading.Event()

    @app.handler("blocks")
    async def blocks() -> None:
        warned.wait(PATIENCE)

    async with app:
        blocking = await add(app, "blocks")
        worker = app.worker(ledgers=["tasks"])
        log_blocked = worker.log_blocked

        def then_come_back(watchdog: object) -> None:
            log_blocked(watchdog)  # type: ignore[arg-type]
            warned.set()

        worker.log_blocked = then_come_back  # type: ignore[method-assign]
        work = asyncio.create_task(worker.run())
        assert (await until_task(conn, blocking, "completed"))["attempts"] == 1
        assert warned.is_set()
        worker.stop()
        assert await work == 0


def _delivered(process: Process) -> bool:
    """Whether no signal is pending for the process."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return all(int(line.split()[1], 16) == 0 for line in lines if line.startswith(("SigPnd", "ShdPnd")))


async def test_a_second_signal_ends_a_process_whose_loop_is_blocked(
    traces: None, start: Start, conn: Connection
) -> None:
    process = start(worker_timeout=600, shutdown_timeout=600)
    await one(conn, INSERT, "blocks the loop")
    await until(conn, "select true from runs where event = 'begin'")
    process.ask_to_stop()
    await until_true(lambda: _delivered(process))
    process.ask_to_stop()
    assert await process.ended() == 128 + signal.SIGTERM
    assert "second SIGTERM: dying at once" in process.said()
