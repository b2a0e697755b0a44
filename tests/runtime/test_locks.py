"""Locks that others hold: they delay what needs them, cost no attempt, and spoil no run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Item, Settings, Snooze
from holdfast.db.pool import Connection
from runtime.support import drain, one, until, working

Connect = Callable[[], Awaitable[Connection]]


@asynccontextmanager
async def table_locks(conn: Connection, chance: random.Random) -> AsyncIterator[None]:
    """SHARE locks on `job`, as CREATE INDEX takes them, that come and go for the length of the block."""

    async def come_and_go() -> None:
        while True:
            async with conn.transaction():
                await conn.execute("lock table job in share mode")
                await asyncio.sleep(chance.uniform(0.3, 0.4))  # longer than a turn waits for a lock
            await asyncio.sleep(chance.uniform(0, 0.08))

    locking = asyncio.create_task(come_and_go())
    try:
        yield
    finally:
        locking.cancel()
        await asyncio.wait([locking])


@pytest.mark.parametrize("lives", [1, pytest.param(200, marks=pytest.mark.soak)])
async def test_table_locks_that_come_and_go_spoil_no_run(
    settings: Settings, conn: Connection, connect: Connect, lives: int
) -> None:
    """Each life begins with no statement prepared: some are to be prepared in a turn that fails."""
    runs: Counter[Any] = Counter()
    jobs_per_life = 24
    async with Holdfast(replace(settings, job_backoff_base=0.01)) as app:

        @app.handler("once", ledger="job")
        async def once(ctx: Context) -> None:
            runs[ctx.job.id] += 1

        @app.handler("twice", ledger="job")
        async def twice(ctx: Context) -> Any:
            runs[ctx.job.id] += 1
            if ctx.attempt == 1:
                raise ValueError("the first run fails")

        @app.handler("snoozes", ledger="job")
        async def snoozes(ctx: Context) -> Any:
            runs[ctx.job.id] += 1
            return Snooze(0) if runs[ctx.job.id] == 1 else None

        async with table_locks(await connect(), random.Random(lives)):
            for _ in range(lives):
                kinds = ("once", "twice", "snoozes") * (jobs_per_life // 3)
                items = [Item(kind=kind, tenant=UUID(int=1)) for kind in kinds]
                await app.store("job").enqueue_many(conn, items)
                await drain(app, ledgers=["job"], concurrency=4)
        async with working(app, ledgers=["job"]):
            await until(conn, "select bool_and(status = 'succeeded') from job")
    assert Counter(runs.values()) == {1: lives * jobs_per_life // 3, 2: lives * jobs_per_life // 3 * 2}
    failures = "select count(*) from job_event where detail_json ? 'error'"
    assert await one(conn, failures) == lives * jobs_per_life // 3
