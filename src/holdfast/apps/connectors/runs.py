"""One run of a sync job: whether it may begin, the time that it has, and what becomes of it when it fails.

What a job of each type does between its begin and its end is in `sync` and `drain`. Both ask the provider
with no transaction open, and write what they found in the transaction that finishes the job.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, tuple_row

from holdfast.apps.connectors import connections, failures, sync_state, tokens, work_queries
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.failures import Pace, TimedOut
from holdfast.apps.connectors.protocol import Json, RateLimited, Unauthorized
from holdfast.apps.connectors.service import Connectors
from holdfast.apps.connectors.tokens import Access
from holdfast.engine.outcomes import Cancel, Outcome, Retry, Snooze
from holdfast.engine.store import Connection
from holdfast.engine.values import Item
from holdfast.errors import ClaimLost, DecryptionError
from holdfast.runtime.context import Context

GONE = Cancel("cancelled: the connection is gone")
FLIGHT = "flight"  # the key of `metadata.sync` that names the claim which holds the connection


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the database knows of a job when it begins."""

    connection_id: UUID
    priority: int
    cooldown_until: datetime | None
    lost: bool
    now: datetime


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has begun. `lost`: the one before it died with its worker."""

    service: Connectors
    ctx: Context
    link: Link
    access: Access
    priority: int
    lost: bool

    @property
    def pace(self) -> Pace:
        """How long it waits when it fails."""
        return Pace.of(self.service.settings, self.link.provider)

    def item(self, kind: str, *, priority: int | None = None, cursor: Any = None) -> Item:
        """Another job for the same connection; as important as this one, unless it says otherwise."""
        return Item(
            kind=kind,
            payload=cursor,
            tenant=self.link.tenant_id,
            priority=self.priority if priority is None else priority,
            extras={"connection_id": self.link.id, "provider_slug": self.link.provider},
        )

    async def lock(self, conn: Connection) -> Link | Cancel:
        """The connection's row, locked; or the end of the run, where nobody wants its answer any more."""
        await conn.execute(work_queries.BRIEF)
        link = await connections.lock(conn, self.link.id)
        return GONE if link is None else called_off(link) or link


def called_off(link: Link) -> Cancel | None:
    """Why a job of this connection is not to run, if so."""
    return None if link.status == "active" else Cancel(f"cancelled: the connection is {link.status}")


async def run(service: Connectors, ctx: Context, body: Callable[[Run], Awaitable[Outcome]]) -> Outcome:
    """Runs a job's body within its time, if it may begin; whatever it raises becomes an outcome."""
    begun: Run | Outcome | None = None
    seconds = service.settings.sync_max_run_seconds
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            begun = await _begin(service, ctx)
            return await body(begun) if isinstance(begun, Run) else begun
    except ClaimLost:
        raise
    except Exception as error:
        over = isinstance(error, TimeoutError) and timer.expired()
        failure = TimedOut(seconds=seconds) if over else error
        return await _ended_badly(service, ctx, begun if isinstance(begun, Run) else None, failure)


# -- the begin -------------------------------------------------------------------------------------------


async def _begin(service: Connectors, ctx: Context) -> Run | Outcome:
    """The run, or why it is none: the connection is not active, or is not to be called now."""
    async with service.database.connection() as conn:
        async with conn.cursor(row_factory=class_row(Facts)) as cursor:
            await cursor.execute(work_queries.BEGIN, {"id": ctx.job.id})
            facts = await cursor.fetchone()
        link = facts and await connections.get_by_id(conn, facts.connection_id)
        if facts is None or link is None:
            return GONE
        if end := called_off(link) or _cooling(service, link, facts):
            return end
        if service.settings.sync_single_flight and not await _take_off(conn, ctx, link):
            return Snooze(service.settings.poll_interval)
    access = Access(service, link, facts.now)
    return Run(service=service, ctx=ctx, link=link, access=access, priority=facts.priority, lost=facts.lost)


def _cooling(service: Connectors, link: Link, facts: Facts) -> Snooze | None:
    """Snoozes until the provider may be called again: for this connection, or for anybody."""
    state, _ = sync_state.read(link.metadata, service.settings)
    own, shared = (
        0.0 if until is None else (until - facts.now).total_seconds()
        for until in (state.cooldown_until, facts.cooldown_until)
    )
    if shared > max(own, 0.0):  # many wait for this one: they must not all call at the same moment
        return Snooze(shared * (1 + random.random() * Pace.of(service.settings, link.provider).jitter))  # noqa: S311
    return Snooze(own) if own > 0 else None


async def _take_off(conn: Connection, ctx: Context, link: Link) -> bool:
    """Whether this run may have the connection for itself; under its lock, one of two is the first.

    The connection names the claim that has it. Such a claim counts for as long as it holds, so a worker that
    dies leaves nothing to be cleared away.
    """
    async with conn.transaction():
        locked = await connections.lock(conn, link.id)
        holder = _holder(locked.metadata) if locked else None
        if holder is not None and holder["job"] != str(ctx.job.id):
            async with conn.cursor(row_factory=tuple_row) as cursor:
                await cursor.execute(work_queries.FLYING, holder | {"connection": link.id})
                ((flying,),) = await cursor.fetchall()
            if flying:
                return False
        mine = {"job": str(ctx.job.id), "fence": ctx.fence}
        await connections.merge_sync(conn, link.id, {FLIGHT: mine})
    return True


def _holder(metadata: Json) -> dict[str, Json] | None:
    """The claim that a connection names, if it can be one: anybody may write there."""
    match metadata:
        case {"sync": {"flight": {"job": str(job), "fence": int(fence)}}} if not isinstance(fence, bool):
            return {"job": job, "fence": fence}
        case _:
            return None


# -- the bad end -----------------------------------------------------------------------------------------


async def _ended_badly(service: Connectors, ctx: Context, begun: Run | None, error: Exception) -> Outcome:
    """The outcome of a run that raised, after what follows from it for the connection was written."""
    slug = begun.link.provider if begun else None
    secrets = begun.access.secrets if begun else ()
    outcome = failures.outcome(error, Pace.of(service.settings, slug), ctx.attempt, secrets=secrets)
    ctx.log.warning("%s: %s", outcome.code, outcome.reason)
    if begun is None:
        return outcome
    try:
        if isinstance(error, RateLimited) and isinstance(outcome, Retry):
            async with service.database.connection() as conn, conn.transaction():
                await failures.cool_down(conn, service.settings, begun.link, error, outcome.after or 0.0)
        elif isinstance(error, Unauthorized | DecryptionError):
            await tokens.spoil(service, begun.access.link, error)
    except Exception as worse:  # then it is not settled, and the next run will find the same
        return failures.outcome(worse, Pace.of(service.settings, slug), ctx.attempt)
    return outcome
