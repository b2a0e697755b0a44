"""A delivery whose worker was lost: each loss counts once, and an orderly stop counts for nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from connectors.kit import Stage, Stop, signal, stage
from holdfast import Settings
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.inbox import TRIES
from holdfast.apps.connectors.protocol import WebhookResult
from holdfast.db.pool import Connection
from runtime.support import PATIENCE


async def lose(here: Stage, moment: str) -> None:
    """As the duty writes it that finds a lost worker's job."""
    query = """
        update sync_jobs set error = jsonb_build_object('code', 'WORKER_LOST', 'timestamp', %s::text)
        where status = 'queued'
    """
    await here.conn.execute(query, (moment,))


async def interrupted(here: Stage) -> None:
    """A worker takes the delivery, and is stopped in the middle of it: it gives its job back."""
    stop, worker = Stop(), here.worker()
    here.script.webhooks["slow"] = [stop.then(WebhookResult(signals=(signal("slow"),)))]
    async with asyncio.timeout(PATIENCE):
        running = asyncio.create_task(worker.run())
        await stop.reached()
        worker.stop()
        await running


async def count(here: Stage, link: Link) -> int:
    row = await here.delivery("slow")
    assert row["processed_at"] is None
    assert [job["status"] for job in await here.jobs(link)] == ["queued"]
    return row["attempts"]


async def test_orderly_stops_after_a_loss_park_no_delivery(settings: Settings, conn: Connection) -> None:
    """C-33, C-54: a rollout that stops one worker after the other is not the delivery's fault."""
    async with stage(replace(settings, shutdown_timeout=0.1), conn) as here:
        link = await here.link()
        await here.deliver(link, "slow")
        await lose(here, "2026-03-01T12:00:00.000000Z")
        for _ in range(TRIES + 1):
            await interrupted(here)
            assert await count(here, link) == 1
        await lose(here, "2026-03-01T13:00:00.000000Z")  # and that was another one
        await interrupted(here)
        assert await count(here, link) == 2
        here.script.webhooks.clear()
        await here.work()
        assert await here.keys(link) == ["slow"]
        assert (await here.delivery("slow"))["error"] is None


async def test_a_delivery_that_loses_every_worker_is_parked(settings: Settings, conn: Connection) -> None:
    """C-33, C-54."""
    async with stage(replace(settings, shutdown_timeout=0.1), conn) as here:
        link = await here.link()
        await here.deliver(link, "slow")
        for hour in range(1, TRIES):
            await lose(here, f"2026-03-01T1{hour}:00:00.000000Z")
            await interrupted(here)
            assert await count(here, link) == hour
        await lose(here, "2026-03-01T19:00:00.000000Z")
        await here.work()
        row = await here.delivery("slow")
        assert (row["attempts"], row["error"]["code"]) == (TRIES, "WORKER_LOST")
        assert row["processed_at"] is not None
