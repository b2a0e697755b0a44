"""Who waits for whom at an inbox: many may store at once, and nobody else is held up by that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from conftest import Connect
from connectors.kit import NOON, Stage, Stop, stage
from holdfast import Settings
from holdfast.apps.connectors import connections, drain, inbox, tick
from holdfast.apps.connectors.protocol import WebhookResult
from holdfast.db.pool import Connection
from runtime.support import PATIENCE, until

WAITS = "select true from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with stage(settings, conn) as here:
        yield here


async def test_who_stores_hinders_no_writer_of_the_connection(here: Stage, connect: Connect) -> None:
    """C-49, C-58: a pause, a token, a cursor and the tick need not wait for the end of any delivery."""
    link = await here.link(metadata={"sync": {"next_run_at": "2020-01-01T00:00:00.000000Z"}})
    coming, writing = await connect(), await connect()
    await writing.execute("set lock_timeout = '100ms'")
    async with coming.transaction():
        await here.deliver(link, "d", conn=coming)
        assert (await tick.tick(writing, here.store, here.service.settings, now=NOON)).scheduled == 1
        async with writing.transaction():
            assert await connections.lock(writing, link.id)
            await connections.update_tokens_status(writing, link.id, status="paused")
    assert (await here.now(link)).status == "paused"


async def test_a_finish_is_the_next_after_those_who_store_already(here: Stage, connect: Connect) -> None:
    """C-49: it waits for the first, and the second, which came after it, waits for it."""
    link = await here.link()
    first, finishing, second = await connect(), await connect(), await connect()
    async with finishing.transaction():
        async with first.transaction():
            await here.deliver(link, "first", conn=first)
            closing = asyncio.create_task(inbox.close(finishing, link.id))
            await until(here.conn, WAITS, finishing.info.backend_pid)
            coming = asyncio.create_task(here.deliver(link, "second", conn=second))
            await until(here.conn, WAITS, second.info.backend_pid)
        await closing
        assert await inbox.left(finishing, link.id)
        assert not coming.done()
    assert await coming


async def test_deliveries_without_end_keep_no_drain_and_no_writer_from_their_turn(
    here: Stage, connect: Connect
) -> None:
    """C-49: counted in deliveries that pass before both have had it, and not in seconds."""
    link, most = await here.link(), 300
    doors = [await connect() for _ in range(6)]
    stop, passed, over = Stop(), 0, asyncio.Event()
    here.script.webhooks["first"] = [stop.then(WebhookResult())]
    await here.deliver(link, "first")

    async def come(place: int) -> None:
        nonlocal passed
        while not over.is_set() and passed < most:
            async with doors[place].transaction():
                await here.deliver(link, f"d{place}-{passed}", conn=doors[place])
                await doors[place].execute("select pg_sleep(0.02)")  # so that there is always one on its way
            passed += 1

    async with here.working(), asyncio.TaskGroup() as group:
        await stop.reached()
        for place in range(len(doors)):
            group.create_task(come(place))
        stop.go()
        async with asyncio.timeout(PATIENCE):
            writer = await connect()
            await connections.merge_sync(writer, link.id, {"note": 1})
            query = (
                "select true from webhook_delivery where delivery_id = 'first' and processed_at is not null"
            )
            await until(writer, query)
        seen = passed
        over.set()
    assert seen < most


@pytest.mark.parametrize("waits", [False, True])
async def test_who_sees_a_connection_paused_that_is_just_resumed_is_not_stranded(
    here: Stage, connect: Connect, waits: bool
) -> None:
    """C-49: stored while it becomes active again, by one who has read that it is not; or who comes later."""
    link = await here.link(status="paused")
    coming, resuming = await connect(), await connect()
    async with resuming.transaction():
        await connections.lock(resuming, link.id)
        active = await connections.update_tokens_status(resuming, link.id, status="active")
        assert active
        if waits:
            await inbox.wake_waiting(resuming, here.store, active)
            task = asyncio.create_task(here.deliver(link, "d", conn=coming))
            await until(here.conn, WAITS, coming.info.backend_pid)
        else:
            await coming.execute("begin")
            await here.deliver(link, "d", conn=coming)
            await inbox.wake_waiting(resuming, here.store, active)
    if waits:
        assert await task
        await here.work()
    else:
        async with here.working():
            await until(here.conn, "select count(*) = 1 from sync_jobs where status = 'running'")
            await coming.execute("commit")
            await until(here.conn, "select true from webhook_delivery where processed_at is not null")
    assert await here.keys(link) == ["d"]


async def test_a_connection_that_becomes_active_with_nothing_in_its_inbox_has_no_job(here: Stage) -> None:
    """C-49."""
    link = await here.link()
    async with here.conn.transaction():
        await inbox.wake_waiting(here.conn, here.store, link)
    assert await here.jobs(link) == []


async def test_the_duty_and_a_replay_wait_for_a_finish_and_then_see_to_a_job(
    here: Stage, connect: Connect
) -> None:
    """C-49, C-54: they too come second."""
    link = await here.link()
    await here.deliver(link, "d", now=NOON)
    await here.conn.execute("delete from sync_jobs")
    finishing, rescuing, replaying = await connect(), await connect(), await connect()
    async with finishing.transaction():
        await inbox.close(finishing, link.id)
        rescue = asyncio.create_task(drain.rescue(here.service, rescuing))
        replay = asyncio.create_task(
            inbox.replay(replaying, here.store, None, provider=link.provider, match=lambda *_: ())
        )
        for one in (rescuing, replaying):
            await until(here.conn, WAITS, one.info.backend_pid)
    assert await rescue == 1
    assert (await replay).deliveries == 1
    assert [job["job_type"] for job in await here.jobs(link)] == ["webhook"]
