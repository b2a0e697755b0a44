"""What the app does by itself: runs sync jobs, schedules them, refreshes tokens, and clears up."""

from __future__ import annotations

from holdfast.apps.connectors import drain, retain, sync, tick, tokens
from holdfast.apps.connectors.ledger import FULL, INCREMENTAL, SYNC_JOBS, WEBHOOK
from holdfast.apps.connectors.service import Connectors
from holdfast.engine.outcomes import Outcome
from holdfast.runtime.app import Ground, Work
from holdfast.runtime.context import Context
from holdfast.runtime.handlers import describe
from holdfast.runtime.share import Pace

MARGIN = 5.0  # seconds: a run ends itself when its time is over; this is for one that does not listen


def work(ground: Ground) -> Work:
    """A handler for each type of job, and the duties."""
    service = Connectors.of(ground)

    async def polls(ctx: Context) -> Outcome:
        return await sync.sync(service, ctx)

    async def drains(ctx: Context) -> Outcome:
        return await drain.drain(service, ctx)

    timeout = ground.settings.sync_max_run_seconds + MARGIN
    by_type = {FULL: polls, INCREMENTAL: polls, WEBHOOK: drains}
    return Work(
        handlers=tuple(
            describe(function, kind, place="loop", ledger=SYNC_JOBS.name, timeout=timeout)
            for kind, function in by_type.items()
        ),
        duties=(
            tick.duty(ground),
            tokens.duty(service),
            tokens.last_duty(),
            retain.duty(ground),
            drain.duty(service),
        ),
        longest=ground.settings.sync_max_run_seconds,
        paces={SYNC_JOBS.name: Pace(concurrency=ground.settings.sync_concurrency)},
    )
