"""A worker as a process of its own: what the tests freeze, kill and stop.

Each handler leaves a line in `runs` as soon as it begins, on a connection that no transaction of the job
holds back; the gated ones then wait at the test's gate.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time

import psycopg

from holdfast import Backoff, Context, Holdfast, SyncContext
from runtime.support import ERRANDS, Gate

app = Holdfast(ledgers=[ERRANDS])
AT_ONCE = Backoff(base=0.001)


async def leave(ctx: Context, event: str, gate: bool = False) -> None:
    async with await psycopg.AsyncConnection.connect(
        app.settings.database_url or "", autocommit=True
    ) as conn:
        await conn.execute(
            "insert into runs (task, event, worker, pid) values (%s, %s, %s, %s)",
            (ctx.job.id if ctx.store.ledger.name == "tasks" else None, event, ctx.job.owner, os.getpid()),
        )
        if gate:
            await conn.execute(Gate.WAIT)


@app.handler("note")
async def note(ctx: Context) -> None:
    await leave(ctx, "begin")


@app.handler("gated")
async def gated(ctx: Context) -> None:
    await leave(ctx, "begin", gate=True)
    await leave(ctx, "end")


@app.handler("effect")
async def effect(ctx: Context) -> None:
    conn = await ctx.transaction()
    await conn.execute("insert into effects (task, note) values (%s, %s)", (ctx.job.id, ctx.job.owner))


@app.handler("gated effect")
async def gated_effect(ctx: Context) -> None:
    await effect(ctx)
    await leave(ctx, "written", gate=True)


@app.handler("sleeps after its effect")
async def sleeps_after_its_effect(ctx: Context) -> None:
    await effect(ctx)
    await leave(ctx, "written")
    await asyncio.sleep(3600)


@app.handler("first run waits")
async def first_run_waits(ctx: Context) -> None:
    await leave(ctx, "begin", gate=ctx.attempt == 1)
    await leave(ctx, "end")


@app.handler("first run waits after its effect")
async def first_run_waits_after_its_effect(ctx: Context) -> None:
    await effect(ctx)
    await leave(ctx, "written", gate=ctx.attempt == 1)


@app.handler("counts")
async def counts(gated: bool, ctx: Context) -> None:
    """Locks a row that all its runs need; with `gated`, the first run waits while it has it."""
    conn = await ctx.transaction()
    await conn.execute("update counter set n = n + 1")
    await leave(ctx, "counted", gate=gated and ctx.attempt == 1)


@app.handler("kills its worker", backoff=AT_ONCE)
async def kills_its_worker(ctx: Context) -> None:
    await leave(ctx, "begin")
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler("sleeps in a thread")
def sleeps_in_a_thread(ctx: SyncContext) -> None:
    asyncio.run_coroutine_threadsafe(leave(ctx._context, "begin"), ctx._loop).result()
    time.sleep(3600)


@app.handler("blocks the loop", backoff=AT_ONCE)
async def blocks_the_loop(ctx: Context) -> None:
    await leave(ctx, "begin")
    time.sleep(3600)  # noqa: ASYNC251


@app.handler("blocks the loop in a task", backoff=AT_ONCE)
async def blocks_the_loop_in_a_task(ctx: Context) -> None:
    await asyncio.create_task(blocks_the_loop(ctx))


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ledgers", nargs="*")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--until-idle", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s")
    async with app:
        return await app.work(
            ledgers=options.ledgers, concurrency=options.concurrency, until_idle=options.until_idle
        )


if __name__ == "__main__":
    abandoned = asyncio.run(main())
    sys.stdout.flush()
    os._exit(1 if abandoned else 0)  # a thread that does not end would keep the process
