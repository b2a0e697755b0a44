"""Jobs of the type webhook: the deliveries in a connection's inbox become signals, in order of arrival.

One run takes a batch. Its deliveries are handled with no transaction open, and kept in the one that finishes
the job, which closes the inbox and looks once more whether another has come meanwhile. A delivery that fails
is the only one that waits: until another comes, or until the duty finds it.
Lock order: inbox, connection, job, delivery, signals.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

from psycopg import InterfaceError, OperationalError
from psycopg.rows import class_row, tuple_row

from holdfast.apps.connectors import connections, failures, inbox, runs, signals, sync_state, work_queries
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.failures import Pace, TimedOut
from holdfast.apps.connectors.inbox import BATCH, TRIES, Stored
from holdfast.apps.connectors.ledger import INCREMENTAL, WEBHOOK, WEBHOOK_PRIORITY
from holdfast.apps.connectors.protocol import (
    Connector,
    Json,
    Permanent,
    RateLimited,
    Unauthorized,
    WebhookResult,
)
from holdfast.apps.connectors.runs import Run
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.apps.connectors.sync_state import moment_text
from holdfast.engine.outcomes import Cancel, Done, Outcome, Snooze
from holdfast.engine.store import Connection
from holdfast.errors import DecryptionError
from holdfast.runtime.context import Context
from holdfast.runtime.duties import Duty

log = logging.getLogger("holdfast.connectors")

# Shares of a run's time: what one delivery may take; after which no other is begun; and after which what was
# handled is kept, whatever the next one waits for: it may be a new token.
ONE, ALL, LAST = 0.25, 0.5, 0.8
STRANDED_AFTER, STRANDED_EVERY = 60.0, 30.0  # seconds
PAUSES = Pace(base=60.0, most=900.0, jitter=0.0)  # of a delivery that failed: the duty comes no sooner
BEGUN = {"code": "WORKER_LOST", "message": "its worker was lost"}


async def drain(service: Connectors, ctx: Context) -> Outcome:
    """Runs a webhook job."""
    return await runs.run(service, ctx, _drain)


# -- handling --------------------------------------------------------------------------------------------


NOTHING = WebhookResult()


@dataclass(frozen=True, kw_only=True)
class Handled:
    """A delivery and what it came to; `final`: its fault will not go by itself."""

    stored: Stored
    result: WebhookResult = NOTHING
    fault: dict[str, Json] | None = None
    final: bool = False


@dataclass
class Batch:
    """What one run has handled so far. `limit`: the provider wanted no more calls."""

    handled: list[Handled] = field(default_factory=list[Handled])
    limit: RateLimited | None = None


async def _drain(run: Run) -> Outcome:
    async with run.service.database.connection() as conn:
        waiting = await _ready(conn, run.link.id)
        if run.lost and waiting:
            loss: str | None = await _one(conn, work_queries.LOSS, {"id": run.ctx.job.id})
            waiting = await _carefully(conn, waiting[0], loss)
    batch = await _handle(run, waiting)
    if batch.limit is not None and not batch.handled:
        raise batch.limit
    return await _keep(run, batch)


async def _ready(conn: Connection, connection_id: UUID) -> list[Stored]:
    """The deliveries to be handled now, in order of arrival."""
    params = {"connection": connection_id, "now": moment_text(await clock(conn)), "limit": BATCH}
    async with conn.cursor(row_factory=class_row(Stored)) as cursor:
        await cursor.execute(work_queries.READY, params)
        return await cursor.fetchall()


async def _carefully(conn: Connection, first: Stored, loss: str | None) -> list[Stored]:
    """The first delivery alone, its failure counted beforehand: it may be what killed the last worker.

    None, when it has had its last try by that. Each loss counts once: a worker that was stopped in good order
    meanwhile has given the job back with the error that it had.
    """
    if loss is not None and (first.error or {}).get("loss") == loss:
        return [first]
    counted = await inbox.failed_once(conn, first.key, BEGUN | {"loss": loss})
    return [] if counted >= TRIES else [first]


async def _handle(run: Run, waiting: Sequence[Stored]) -> Batch:
    """Handles one delivery after the other for as long as there is time; at least one."""
    batch, began = Batch(), time.monotonic()
    seconds = run.service.settings.sync_max_run_seconds
    async with run.service.connector(run.link.provider) as connector:
        for stored in waiting:
            spent = time.monotonic() - began
            if batch.handled and spent > seconds * ALL:
                break
            timer = asyncio.timeout(seconds * LAST - spent if batch.handled else None)
            try:
                async with timer:
                    handled = await _handle_one(run, connector, stored, seconds * ONE)
            except RateLimited as limit:
                batch.limit = limit
                break
            except TimeoutError:
                if not timer.expired():
                    raise
                break  # it comes first in the next run
            batch.handled.append(handled)
    return batch


async def _handle_one(run: Run, connector: Connector, stored: Stored, seconds: float) -> Handled:
    """Handles a delivery. What is not its own fault, but the connection's, is raised."""
    while True:
        account = await run.access.account()
        timer = asyncio.timeout(seconds)
        try:
            async with timer:
                result = await connector.handle_webhook(account, stored.delivery)
            if not isinstance(result, WebhookResult):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError("handle_webhook must answer with a WebhookResult")
            return Handled(stored=stored, result=result)
        except Unauthorized as error:
            refusal = error
        except (RateLimited, DecryptionError):
            raise
        except Exception as error:
            over = isinstance(error, TimeoutError) and timer.expired()
            failure = TimedOut(seconds=seconds) if over else error
            fault = failures.fault(failure, run.access.secrets)
            final = isinstance(failure, Permanent) and failures.is_final(failure)
            return Handled(stored=stored, fault=fault, final=final)
        await run.access.renew(refusal)


# -- keeping ---------------------------------------------------------------------------------------------


async def _keep(run: Run, batch: Batch) -> Outcome:
    """Signals, marks in the inbox, what else is wanted, and the job's end: all of it, or nothing."""
    conn = await run.ctx.transaction(confined=False)
    await inbox.close(conn, run.link.id)
    link = await run.lock(conn)
    if isinstance(link, Cancel):
        return link
    now = await clock(conn)
    if any(one.result.wants_sync for one in batch.handled):
        await _want_sync(conn, run, link, now)
    for one in batch.handled:
        await _keep_one(conn, run, link, one, now)
    if batch.limit is not None:
        seconds = failures.wait(run.pace, run.ctx.attempt, failures.hint(batch.limit))
        await failures.cool_down(conn, run.service.settings, link, batch.limit, seconds)
        return Snooze(seconds)
    then = (run.item(WEBHOOK),) if await inbox.left(conn, link.id, now=now) else ()
    return Done({"deliveries": len(batch.handled)}, then=then)


async def _keep_one(conn: Connection, run: Run, link: Link, one: Handled, now: datetime) -> None:
    """What a delivery came to. One whose signals nobody can store fails alone: the others are kept."""
    fault = one.fault
    if fault is None:
        try:
            async with conn.transaction():
                if await inbox.processed(conn, one.stored.key):
                    await signals.store(conn, link, one.result.signals)
            return
        except (OperationalError, InterfaceError):
            raise  # the database's trouble, not the delivery's
        except Exception as error:
            fault = failures.fault(error)
    run.ctx.log.warning("delivery %s: %s", one.stored.delivery_id, fault["message"])
    fault |= {"timestamp": moment_text(now)}
    if one.final:
        await inbox.processed(conn, one.stored.key, error=fault)
        return
    seconds = failures.wait(PAUSES, one.stored.attempts + 1)
    fault |= {"retry_after": moment_text(now + timedelta(seconds=seconds))}
    await inbox.failed_once(conn, one.stored.key, fault)


async def _want_sync(conn: Connection, run: Run, link: Link, now: datetime) -> None:
    """Sees that an incremental job looks at the provider after this moment.

    One that waits will. One that runs, or has ended by now, may have looked already: then the next tick is
    to add another.
    """
    item = run.item(INCREMENTAL, priority=WEBHOOK_PRIORITY)
    receipt = await run.service.store.enqueue(conn, item)
    if receipt.created or await _one(conn, work_queries.STATE, {"id": receipt.id}) == "queued":
        return
    state, _ = sync_state.read(link.metadata, run.service.settings)
    if state.next_run_at is None or state.next_run_at > now:
        await connections.merge_sync(conn, link.id, {"next_run_at": moment_text(now)})


async def _one(conn: Connection, query: LiteralString, params: dict[str, Any]) -> Any:
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query, params)
        found = await cursor.fetchone()
        return found[0] if found else None


# -- the duty --------------------------------------------------------------------------------------------


async def rescue(service: Connectors, conn: Connection, *, now: datetime | None = None) -> int:
    """Gives each connection whose deliveries have waited too long a job; answers how many it were."""
    rescued, after = 0, UUID(int=0)
    now = now or await clock(conn)
    while True:
        params = {
            "known": list(service.known),
            "before": now - timedelta(seconds=STRANDED_AFTER),
            "now": moment_text(now),
            "after": after,
            "limit": BATCH,
        }
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(work_queries.STRANDED, params)
            found: list[UUID] = [one for (one,) in await cursor.fetchall()]
        for one in found:
            async with conn.transaction():
                if link := (await inbox.hold(conn, [one])).get(one):
                    await inbox.wake(conn, service.store, link)
                    rescued += 1
        if len(found) < BATCH:
            break
        after = found[-1]
    if rescued:
        log.info("deliveries of %d connections had waited too long: they are drained now", rescued)
    return rescued


def duty(service: Connectors) -> Duty:
    """The look for deliveries that nobody handles."""

    async def run(conn: Connection, _: str) -> int:
        return await rescue(service, conn)

    return Duty(name="stranded deliveries", every=STRANDED_EVERY, run=run, by_all=True)
