"""Pauses: nothing is claimed from what is paused, what runs goes on, and a resume is heard at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Holdfast, Item, Settings
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput
from holdfast.runtime import pauses
from holdfast.runtime.pauses import Doors, pause, paused, resume
from holdfast.runtime.worker import Worker
from runtime.jobs import ONE, until_job
from runtime.support import (
    ERRANDS,
    add,
    column,
    drain,
    make_tables,
    one,
    until,
    until_task,
    until_true,
    working,
)

HOUR = 3600.0  # a poll interval that no test waits for: what happens earlier was heard by the bell
QUEUES = ("default", "slow")


async def add_job(app: Holdfast, queue: str = "default", kind: str = "note") -> Any:
    return (await app.enqueue("job", kind, tenant=ONE, queue=queue)).id


async def knows(worker: Worker, ledger: str, *queues: str) -> None:
    """Waits until a worker knows that just these queues are open."""
    (pump,) = (pump for pump in worker.pumps if pump.ledger.name == ledger)
    await until_true(lambda: pump.doors.known == queues)


@pytest.fixture
async def patient(settings: Settings, conn: Connection) -> AsyncIterator[Holdfast]:
    """An app whose workers practically never poll."""
    await make_tables(conn)
    async with Holdfast(replace(settings, poll_interval=HOUR), ledgers=[ERRANDS]) as app:
        yield app


# -- the table ---------------------------------------------------------------------------------------


async def test_the_first_who_pauses_is_remembered_and_the_first_who_resumes_ends_it(conn: Connection) -> None:
    assert await pause(conn, JOB, by="ana", reason="deploy")
    assert not await pause(conn, JOB, by="ben", reason="another")
    assert await pause(conn, JOB, "slow", by="ben")
    whole, slow = await paused(conn)
    assert (whole.ledger, whole.queue, whole.by, whole.reason) == ("job", None, "ana", "deploy")
    assert (slow.ledger, slow.queue, slow.by, slow.reason) == ("job", "slow", "ben", None)
    assert await one(conn, "select now() - %s < interval '1 minute'", whole.since)
    assert await resume(conn, JOB)
    assert not await resume(conn, JOB)
    assert [(one.ledger, one.queue) for one in await paused(conn)] == [("job", "slow")]
    assert not await resume(conn, TASKS)


async def test_of_many_who_pause_at_once_one_has_done_it(
    conn: Connection, connect: Callable[[], Any]
) -> None:
    conns = [await connect() for _ in range(8)]
    answers = await asyncio.gather(*(pause(one, JOB, by=f"w{n}") for n, one in enumerate(conns)))
    assert sorted(answers) == [False] * 7 + [True]
    (there,) = await paused(conn)
    assert there.by == f"w{answers.index(True)}"
    answers = await asyncio.gather(*(resume(one, JOB) for one in conns))
    assert sorted(answers) == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("ledger", "queue"), [(TASKS, "default"), (JOB, ""), (JOB, "a\x00b"), (JOB, "\ud800")]
)
async def test_a_queue_that_cannot_be_is_refused(conn: Connection, ledger: Any, queue: str) -> None:
    for order in (pause, resume):
        with pytest.raises(InvalidInput) as refusal:
            await order(conn, ledger, queue)
        assert refusal.value.field == "queue"
    assert await paused(conn) == []


async def test_a_name_and_a_reason_are_kept_whatever_they_hold(conn: Connection) -> None:
    await pause(conn, JOB, "x" * 300, by="\x00" + "b" * 300, reason="\ud800")
    (there,) = await paused(conn)
    assert there.by == "\N{REPLACEMENT CHARACTER}" + "b" * 254
    assert there.reason == "\N{REPLACEMENT CHARACTER}"


async def test_a_pause_that_is_rolled_back_was_none_and_rings_nobody(
    conn: Connection, connect: Callable[[], Any]
) -> None:
    listener = await connect()
    await listener.execute("listen holdfast_pause")
    try:
        async with conn.transaction():
            await pause(conn, JOB, by="nobody")
            raise LookupError
    except LookupError:
        pass
    await pause(conn, JOB)
    await pause(conn, JOB)  # nothing changes
    await resume(conn, JOB)
    await resume(conn, JOB)
    await conn.execute("select pg_notify('holdfast_pause', 'last')")
    rung: list[str] = []
    async for notification in listener.notifies(timeout=20):
        rung.append(notification.payload)
        if notification.payload:
            break
    assert rung == ["", "", "last"]


async def test_a_worker_asks_only_when_it_has_a_reason_to(conn: Connection) -> None:
    doors = Doors(JOB, QUEUES, HOUR)
    assert await doors.open(conn) == QUEUES
    await pause(conn, JOB, "slow")
    assert await doors.open(conn) == QUEUES  # as it knew it
    doors.ring()
    assert await doors.open(conn) == ("default",)
    await pause(conn, JOB)
    doors.ring()
    assert await doors.open(conn) == ()
    polling = Doors(JOB, QUEUES, 0.0)
    assert await polling.open(conn) == ()
    await resume(conn, JOB)
    assert await polling.open(conn) == ("default",)
    await resume(conn, JOB, "slow")
    assert await polling.open(conn) == QUEUES


# -- workers -----------------------------------------------------------------------------------------


async def test_nothing_is_claimed_from_a_queue_that_was_paused_while_the_worker_ran(
    patient: Holdfast, conn: Connection
) -> None:
    """Both rows are added at once: the claim that took the one would have taken the other."""
    app = patient

    @app.handler("note")
    async def note() -> None:
        return None

    async with working(app, ledgers=["job"], queues=QUEUES, concurrency=5) as worker:
        await until_job(conn, await add_job(app, "slow"), "succeeded")
        assert await pause(conn, JOB, "slow")
        await knows(worker, "job", "default")
        items = [Item(kind="note", tenant=ONE, queue=queue) for queue in ("slow", "default", "slow")]
        first, second, third = await app.enqueue_many("job", items)
        await until_job(conn, second.id, "succeeded")
        slow = await column(conn, "select status::text from job where queue = 'slow' order by id")
        assert slow == ["succeeded", "queued", "queued"]
        assert await resume(conn, JOB, "slow")  # the bell alone wakes it: it polls once an hour
        await until_job(conn, first.id, "succeeded")
        await until_job(conn, third.id, "succeeded")


async def test_what_runs_goes_on_and_what_comes_waits(patient: Holdfast, conn: Connection) -> None:
    app, begun, door = patient, asyncio.Event(), asyncio.Event()

    @app.handler("long")
    async def long() -> None:
        begun.set()
        await door.wait()

    async with working(app, ledgers=["tasks"], concurrency=5) as worker:
        running = await add(app, "long")
        await begun.wait()
        await pause(conn, TASKS, by="ana")
        await knows(worker, "tasks")
        waiting = await add(app, "long")
        door.set()
        await until_task(conn, running, "completed")
        assert await one(conn, "select status::text from tasks where id = %s", waiting) == "pending"
        await resume(conn, TASKS)
        await until_task(conn, waiting, "completed")


async def test_a_paused_ledger_does_not_hold_up_another(patient: Holdfast, conn: Connection) -> None:
    app = patient

    @app.handler("note")
    async def note() -> None:
        return None

    await pause(conn, TASKS)
    async with working(app, ledgers=["tasks", "errands"]):
        waiting = await add(app, "note")
        await app.enqueue("errands", "note")
        await until(conn, "select true from errands where stage = 'over'")
        assert await one(conn, "select status::text from tasks where id = %s", waiting) == "pending"


async def test_a_worker_that_works_until_idle_ends_with_a_pause(app: Holdfast, conn: Connection) -> None:
    @app.handler("note")
    async def note() -> None:
        return None

    await pause(conn, TASKS)
    await pause(conn, JOB, "slow")
    await add(app, "note")
    await add_job(app, "slow")
    await add_job(app)
    assert await drain(app, queues=QUEUES) == 0
    assert await column(conn, "select status::text from tasks") == ["pending"]
    assert await column(conn, "select status::text from job order by queue") == ["succeeded", "queued"]


async def test_where_no_bell_can_be_heard_polling_is_enough(
    settings: Settings, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a transaction pooler without a direct URL."""
    caplog.set_level(logging.WARNING)
    async with Holdfast(replace(settings, database_pooler="transaction")) as app:

        @app.handler("note")
        async def note() -> None:
            return None

        async with working(app, ledgers=["tasks"]) as worker:
            await until_task(conn, await add(app, "note"), "completed")
            await pause(conn, TASKS)
            await knows(worker, "tasks")
            waiting = await add(app, "note")
            await resume(conn, TASKS)
            await until_task(conn, waiting, "completed")
    assert "no LISTEN through a transaction pooler" in caplog.text


async def test_a_bell_that_was_missed_is_made_up_for_by_polling(app: Holdfast, conn: Connection) -> None:
    @app.handler("note")
    async def note() -> None:
        return None

    async with working(app, ledgers=["tasks"]) as worker:
        await until_task(conn, await add(app, "note"), "completed")
        await conn.execute("insert into holdfast_pause (ledger) values ('tasks')")  # rings nothing
        await knows(worker, "tasks")
        await conn.execute("delete from holdfast_pause")
        await until_task(conn, await add(app, "note"), "completed")


async def test_a_ledger_whose_bell_is_that_of_the_pauses_hears_both(
    settings: Settings, conn: Connection
) -> None:
    await make_tables(conn)
    unlucky = replace(ERRANDS, name="pause")
    assert unlucky.channel == pauses.CHANNEL
    async with Holdfast(replace(settings, poll_interval=HOUR), ledgers=[unlucky]) as app:

        @app.handler("note")
        async def note() -> None:
            return None

        async with working(app, ledgers=["pause", "tasks"]) as worker:
            await app.enqueue("pause", "note")
            await until(conn, "select count(*) = 1 from errands where stage = 'over'")
            await pause(conn, unlucky)
            await knows(worker, "pause")
            await app.enqueue("pause", "note")
            await until_task(conn, await add(app, "note"), "completed")
            assert await one(conn, "select count(*) from errands where stage = 'waiting'") == 1
            await resume(conn, unlucky)
            await until(conn, "select count(*) = 2 from errands where stage = 'over'")
