"""Many workers on one table: each task runs exactly once."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from holdfast import Holdfast, Settings
from holdfast.db.pool import Connection
from holdfast.runtime.execute import Places
from holdfast.runtime.processes import Processes
from holdfast.runtime.pump import Pump, Share
from runtime.support import add_many, one


@pytest.mark.parametrize("tasks", [5_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_fifty_workers_that_drain_one_table_run_each_task_exactly_once(
    settings: Settings, conn: Connection, tasks: int
) -> None:
    """T-10, §5: fifty pumps, each with a connection of its own; every task has one run and one claim."""
    runs: Counter[int] = Counter()
    async with Holdfast(replace(settings, worker_timeout=3600, heartbeat_interval=600)) as app:

        @app.handler("count")
        async def count(number: int) -> None:
            runs[number] += 1

        await add_many(app, "count", tasks)
        with ThreadPoolExecutor(1) as threads:
            places = Places({"tasks": threads}, Processes(), asyncio.Semaphore(1))
            share = Share(store=app.store("tasks"), concurrency=20)
            pumps = [Pump(share, app.database, app.handlers, places) for _ in range(50)]
            async with asyncio.timeout(600), asyncio.TaskGroup() as group:
                for number, pump in enumerate(pumps):
                    pump.owner = f"worker {number}"
                    group.create_task(pump.run())
                await asyncio.gather(*(pump.idle.wait() for pump in pumps))
                for pump in pumps:
                    pump.stop_claiming()
    assert len(runs) == tasks
    assert set(runs.values()) == {1}
    query = "select count(*) from tasks where status = 'completed' and attempts = 1 and fence = 1"
    assert await one(conn, query) == tasks
    assert await one(conn, "select count(distinct worker_id) from tasks") > 10
