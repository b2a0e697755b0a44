"""What the app does by itself: runs jobs, one at a time for each target, and makes those of the timetable."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.apps.system import duties, executors
from holdfast.apps.system.bench import Bench, Run, bench_of, target_lock
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.parameters import TYPES
from holdfast.apps.system.registry import CHANNEL
from holdfast.apps.system.types import JobType
from holdfast.engine.outcomes import Done, Fail, Outcome, Snooze
from holdfast.errors import ClaimLost, DatabaseAuthError, DatabaseUnavailable, HoldfastError
from holdfast.runtime.app import Ground, Work
from holdfast.runtime.context import Context
from holdfast.runtime.handlers import Handler, describe
from holdfast.runtime.share import Pace

TAKEN_WAIT = 5.0  # seconds until a job looks again whether its target is free
PASSING = (DatabaseUnavailable, DatabaseAuthError)


def work(ground: Ground) -> Work:
    """A handler for each type, and the timetable."""
    bench = bench_of(ground)
    return Work(
        handlers=tuple(_handler(kind, bench) for kind in TYPES),
        duties=duties.all_of(bench),
        longest=86400.0,
        paces={NAME: Pace(concurrency=ground.settings.system_concurrency)},
        bells={CHANNEL: bench.registry.forget},
    )


def _handler(kind: JobType, bench: Bench) -> Handler:
    async def runs(params: Any, ctx: Context) -> Outcome:
        return await run_job(kind, params, bench, ctx)

    runs.__annotations__ = {"params": TYPES[kind], "ctx": Context, "return": Outcome}
    function: Callable[..., Coroutine[Any, Any, Outcome]] = runs
    return describe(function, str(kind), place="loop", ledger=NAME)


async def run_job(kind: JobType, params: Any, bench: Bench, ctx: Context) -> Outcome:
    """Does what one job asks for; what can never work is its end, whatever else goes wrong is a bad run."""
    executor = executors.executor_of(kind)
    target = bench.registry.called(executor.target(params))
    async with target_lock(bench, target) as lock:
        if lock is None:
            told = "its target" if kind is JobType.USER_CLEANUP else target  # the log names nobody to erase
            bench.log.write(str(ctx.job.id), "INFO", f"waits: {told} is taken")
            return Snooze(TAKEN_WAIT)
        run = Run(bench=bench, id=str(ctx.job.id), context=ctx, lock=lock)
        try:
            await executors.check(kind, params, bench)
            told = await executor.run(params, run)
            return told if isinstance(told, Snooze) else Done(told)
        except (ClaimLost, *PASSING):
            raise
        except HoldfastError as error:
            return Fail(str(error), code=error.code, trace=traceback.format_exc())
        except asyncio.CancelledError:
            await asyncio.shield(_tell_of_the_end(run))
            raise


async def _tell_of_the_end(run: Run) -> None:
    """How far a job came that was called off. One that has only lost its worker's claim says nothing."""
    async with run.bench.database.connection() as conn:
        row = await run.context.store.get(conn, run.id)
    if row.state == "cancelled":
        run.note(f"stopped: {run.told or 'nothing was done'}")
