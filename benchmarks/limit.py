"""The limit: the least SQL that does the same durable work on the same table, written by hand.

No library, no checks, no types: what somebody would write who knows this table and nothing else. It keeps
what the work is about: every state of the lifecycle is reached and committed (pending, claimed, running,
completed), claims skip what others hold, and every write names the fence.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import psycopg

CLAIM = """
with picked as materialized (
    select id from tasks where status = 'pending' and next_retry_at is null
    order by priority desc, created_at limit %s for no key update skip locked
)
update tasks t set status = 'claimed', worker_id = %s, claimed_at = now(), fence = t.fence + 1
from picked p where t.id = p.id returning t.id, t.type, t.payload::text, t.fence
"""
MOVE = """
update tasks t set {sets}
from unnest(%s::uuid[], %s::bigint[]) as m (id, fence)
where t.id = m.id and t.fence = m.fence and t.worker_id = %s and t.status = {state}
"""
START = MOVE.format(sets="status = 'running', started_at = now()", state="'claimed'")
FINISH = MOVE.format(
    sets="status = 'completed', completed_at = now(), attempts = attempts + 1", state="'running'"
)
INSERT = "insert into tasks (type, payload) values (%s, %s)"
COPY = "copy tasks (type, payload) from stdin"


def payload(number: int) -> dict[str, Any]:
    """About a hundred bytes of JSON."""
    return {"n": number, "to": "someone@example.com", "subject": "your weekly report", "x": "abcdef" * 4}


async def connect(url: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)


async def enqueue_one(url: str, count: int) -> float:
    """Rows a second, one insert and one commit each."""
    async with await connect(url) as conn:
        began = time.perf_counter()
        for number in range(count):
            await conn.execute(INSERT, ("noop", json.dumps(payload(number))))
        return count / (time.perf_counter() - began)


async def enqueue_bulk(url: str, count: int) -> float:
    """Rows a second by COPY, in one transaction."""
    async with await connect(url) as conn, conn.cursor() as cursor:
        began = time.perf_counter()
        async with conn.transaction(), cursor.copy(COPY) as copy:
            for number in range(count):
                await copy.write_row(("noop", json.dumps(payload(number))))
        return count / (time.perf_counter() - began)


async def drain(url: str, count: int, batch: int) -> float:
    """Rows a second from pending to completed, by one connection, in batches."""
    done = 0
    async with await connect(url) as conn, conn.cursor(binary=True) as cursor:
        began = time.perf_counter()
        while True:
            rows = await (await cursor.execute(CLAIM, (batch, "limit"))).fetchall()
            if not rows:
                break
            ids, fences = [row[0] for row in rows], [row[3] for row in rows]
            await cursor.execute(START, (ids, fences, "limit"))
            for row in rows:
                noop(json.loads(row[2]))
            await cursor.execute(FINISH, (ids, fences, "limit"))
            done += len(rows)
        took = time.perf_counter() - began
    assert done == count, f"{done} of {count} rows drained"
    return count / took


def noop(_: Any) -> None:
    """The handler."""


async def latency(url: str, count: int, gap: float) -> list[float]:
    """Seconds from the call of an insert to the start of its handler, one row at a time."""
    samples: list[float] = []
    seen = asyncio.Event()
    async with await connect(url) as bell, await connect(url) as worker, await connect(url) as client:
        await bell.execute("listen limit_bell")
        stamps: dict[int, float] = {}

        async def work() -> None:
            async for _ in bell.notifies():
                rows = await (await worker.execute(CLAIM, (1, "limit"))).fetchall()
                ids, fences = [row[0] for row in rows], [row[3] for row in rows]
                await worker.execute(START, (ids, fences, "limit"))
                for row in rows:
                    samples.append(time.perf_counter() - stamps[json.loads(row[2])["n"]])
                    seen.set()
                await worker.execute(FINISH, (ids, fences, "limit"))

        task = asyncio.create_task(work())
        for number in range(count):
            await asyncio.sleep(gap)
            stamps[number] = time.perf_counter()
            async with client.pipeline(), client.transaction():
                await client.execute(INSERT, ("noop", json.dumps(payload(number))))
                await client.execute("notify limit_bell")
            async with asyncio.timeout(10):
                await seen.wait()
            seen.clear()
        task.cancel()
    return samples
