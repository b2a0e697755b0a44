"""The same work by Holdfast: its public API, its worker, nothing special."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.limit import payload
from holdfast import Holdfast, Item, Settings


def application(url: str) -> Holdfast:
    app = Holdfast(Settings(database_url=url, profile="test", log_level="ERROR"))

    @app.handler("noop")
    async def noop(_: dict[str, Any]) -> None:
        return None

    return app


async def enqueue_one(url: str, count: int) -> float:
    """Rows a second, one call and one commit each."""
    async with application(url) as app, app.database.connection() as conn:
        began = time.perf_counter()
        for number in range(count):
            await app.enqueue("tasks", "noop", payload(number), conn=conn)
        return count / (time.perf_counter() - began)


async def enqueue_bulk(url: str, count: int) -> float:
    """Rows a second by the store's COPY, in one transaction."""
    async with application(url) as app, app.database.connection() as conn:
        began = time.perf_counter()
        await app.store("tasks").copy(conn, (Item(kind="noop", payload=payload(n)) for n in range(count)))
        return count / (time.perf_counter() - began)


async def drain(url: str, count: int, batch: int) -> float:
    """Rows a second from pending to completed, by one worker with `batch` slots."""
    async with application(url) as app:
        worker = app.worker(concurrency=batch)
        async with app.database.connection() as conn:
            began = time.perf_counter()
            await worker.run(until_idle=True)
            took = time.perf_counter() - began
            counted = await conn.execute("select count(*) from tasks where status = 'completed'")
            row = await counted.fetchone()
    assert row == (count,), f"{row} of {count} rows drained"
    return count / took


async def latency(url: str, count: int, gap: float) -> list[float]:
    """Seconds from the call of enqueue to the start of the handler, one row at a time."""
    samples: list[float] = []
    stamps: dict[int, float] = {}
    seen = asyncio.Event()
    app = Holdfast(Settings(database_url=url, profile="test", log_level="ERROR"))

    @app.handler("noop")
    async def noop(body: dict[str, Any]) -> None:
        samples.append(time.perf_counter() - stamps[body["n"]])
        seen.set()

    async with app:
        worker = app.worker(concurrency=10)
        task = asyncio.create_task(worker.run())
        async with app.database.connection() as conn:
            await worker.pumps[0].idle.wait()
            for number in range(count):
                await asyncio.sleep(gap)
                stamps[number] = time.perf_counter()
                await app.enqueue("tasks", "noop", payload(number), conn=conn)
                async with asyncio.timeout(10):
                    await seen.wait()
                seen.clear()
        worker.stop()
        await task
    return samples
