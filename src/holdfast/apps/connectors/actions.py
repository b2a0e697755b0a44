"""What people may do about connections: allowed, done and audited here, for API, pages and shell.

Every function takes a connection of the platform itself, who asks, and whose connection is meant: another
tenant's is not found. `tenant_id` None means whosever it is, and is for operators. What is done and its audit
entry are one transaction. Lock order: inbox, connection, job, delivery, signals.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, tuple_row
from psycopg.types.json import Jsonb

from holdfast.api import audit
from holdfast.api.actions import check_tenant_bounds, must, must_operate
from holdfast.api.caller import Caller
from holdfast.apps.connectors import (
    catalogue,
    connections,
    failures,
    inbox,
    listing,
    sql,
    sync_state,
    tenants,
)
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.inbox import Replayed
from holdfast.apps.connectors.ledger import BY_HAND_PRIORITY, FULL, INCREMENTAL, JOB_TYPES
from holdfast.apps.connectors.listing import Job
from holdfast.apps.connectors.protocol import Provider
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.apps.connectors.tenants import Tenant
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.engine.values import Item, Json
from holdfast.errors import Conflict, IllegalEdge, InvalidInput, NotFound

log = logging.getLogger("holdfast.connectors")
PATIENCE = 10.0  # seconds that a provider gets to hear that a token is not needed any more
EXTERNAL_IDS = 100  # that a connection may be called by in webhooks


@dataclass(frozen=True)
class Asked:
    """A job that somebody asked for; not `created`: one was waiting or running already, and this is it."""

    job: Job
    created: bool


# -- syncing ---------------------------------------------------------------------------------------------


async def sync_now(
    service: Connectors,
    conn: Connection,
    caller: Caller,
    tenant_id: UUID | None,
    id: UUID,
    *,
    job_type: str = INCREMENTAL,
    priority: int | None = None,
) -> Asked:
    """Adds a job for a connection, or answers with the one of its type that waits or runs already."""
    _must_act(caller, tenant_id)
    if job_type not in JOB_TYPES:
        known = ", ".join(JOB_TYPES)
        raise InvalidInput(field="job_type", message=f"must be one of {known}, not {job_type!r}")
    if priority is not None and priority not in intake.INT2:
        raise InvalidInput(
            field="priority", message=f"must lie between {intake.INT2.start} and {intake.INT2.stop - 1}"
        )
    check_tenant_bounds(service.settings, caller, Item(priority=priority))
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        if link.status != "active":
            advice = "connect the account anew" if link.status == "revoked" else "resume it first"
            raise Conflict(what="connection", message=f"it is {link.status}: {advice}")
        item = Item(
            kind=job_type,
            tenant=link.tenant_id,
            priority=BY_HAND_PRIORITY if priority is None else priority,
            extras={"connection_id": link.id, "provider_slug": link.provider},
        )
        receipt = await service.store.enqueue(conn, item, by=caller.who)
        job = await listing.job(conn, receipt.id, link.tenant_id)
        detail = {"job": str(job.id), "job_type": job_type, "created": receipt.created}
        await _note(conn, caller, "connection sync", link, detail)
        return Asked(job, receipt.created)


async def full_resync(
    service: Connectors, conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID
) -> Asked:
    """Reads the account once more from its beginning. What is known already is not told twice."""
    return await sync_now(service, conn, caller, tenant_id, id, job_type=FULL)


async def set_interval(
    service: Connectors, conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID, seconds: Json
) -> Link:
    """Sets how often a connection is synced; the next time is not later than that from now."""
    _must_act(caller, tenant_id)
    checked = sync_state.checked_interval(seconds, service.settings)
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        state, _ = sync_state.read(link.metadata, service.settings)
        patch: dict[str, Json] = {"interval_seconds": checked}
        latest = await clock(conn) + timedelta(seconds=checked)
        if state.next_run_at is not None and state.next_run_at > latest:
            patch["next_run_at"] = sync_state.moment_text(latest)
        await connections.merge_sync(conn, link.id, patch)
        await _note(conn, caller, "connection interval", link, {"interval_seconds": checked})
        return await connections.of_tenant(conn, link.id, link.tenant_id)


async def cursor(service: Connectors, conn: Connection, tenant_id: UUID | None, id: UUID) -> Json:
    """Where the next incremental sync of a connection begins; None: at the beginning."""
    link = await find(conn, tenant_id, id)
    return sync_state.read(link.metadata, service.settings)[0].cursor


async def set_cursor(
    conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID, cursor: Json
) -> None:
    """Says where the next incremental sync begins. One that runs now does not undo it."""
    _must_act(caller, tenant_id)
    try:
        intake.payload_text(cursor)
    except InvalidInput as error:
        raise InvalidInput(field="cursor", message=error.fields["message"]) from None
    if cursor is None:
        await reset_cursor(conn, caller, tenant_id, id)
        return
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        await connections.merge_sync(conn, link.id, {"cursor": cursor})
        await _note(conn, caller, "connection cursor", link)


async def reset_cursor(conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID) -> None:
    """Forgets where the last sync ended: the next one begins at the beginning."""
    _must_act(caller, tenant_id)
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        await connections.merge_sync(conn, link.id, {}, ("cursor",))
        await _note(conn, caller, "connection reset cursor", link)


async def set_external_ids(
    conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID, external_ids: Sequence[str]
) -> Link:
    """Says by which names the webhooks of a provider may call a connection, beside its external id."""
    _must_act(caller, tenant_id)
    if len(external_ids) > EXTERNAL_IDS:
        raise InvalidInput(field="external_ids", message=f"must be at most {EXTERNAL_IDS}")
    for one in external_ids:
        intake.clean_text("external_ids", one)
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        ids = list(dict.fromkeys(external_ids))
        await conn.execute(sql.SET_EXTERNAL_IDS, {"id": link.id, "external_ids": Jsonb(ids)})
        await _note(conn, caller, "connection external ids", link, {"external_ids": ids})
        return await connections.of_tenant(conn, link.id, link.tenant_id)


# -- on and off ------------------------------------------------------------------------------------------


async def pause(conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID) -> Link:
    """Syncs a connection no more, until it is resumed. Its webhooks are stored and wait."""
    return await _set_status(conn, caller, tenant_id, id, "pause", "paused", ("active",))


async def resume(
    service: Connectors, conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID
) -> Link:
    """Syncs a connection again that was paused, or in error; what its webhooks have brought is looked at."""
    async with conn.transaction():
        link = await _set_status(conn, caller, tenant_id, id, "resume", "active", ("paused", "error"))
        await inbox.wake_waiting(conn, service.store, link)
        return link


async def _set_status(
    conn: Connection,
    caller: Caller,
    tenant_id: UUID | None,
    id: UUID,
    verb: str,
    status: str,
    allowed: Sequence[str],
) -> Link:
    _must_act(caller, tenant_id)
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        if link.status not in (status, *allowed):
            advice = ": connect the account anew" if link.status == "revoked" else ""
            raise Conflict(what="connection", message=f"it is {link.status} and cannot {verb}{advice}")
        changed = link.status != status
        if changed:
            await connections.update_tokens_status(conn, link.id, status=status)
        await _note(conn, caller, f"connection {verb}", link, {"changed": changed})
        return await connections.of_tenant(conn, link.id, link.tenant_id)


async def disconnect(
    service: Connectors, conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID
) -> Link:
    """Ends a connection: its tokens are removed, its jobs cancelled, and the provider is told if it listens.

    What it has brought stays. Connecting the same account again makes it active again. Who has `conn` from a
    pool says `end` and `tell_provider` instead, and gives it back between the two.
    """
    before, ended = await end(service, conn, caller, tenant_id, id)
    await tell_provider(service, before)
    return ended


async def end(
    service: Connectors, conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID
) -> tuple[Link, Link]:
    """Our side of a disconnect: the connection as it was, which `tell_provider` takes, and as it is now."""
    _must_act(caller, tenant_id)
    async with conn.transaction():
        link = await _locked(conn, tenant_id, id)
        await _cancel_jobs(service, conn, caller, link)
        await connections.update_tokens_status(
            conn, link.id, access=None, refresh=None, key_id=None, expires_at=None, status="revoked"
        )
        await _note(conn, caller, "connection disconnect", link, {"changed": link.status != "revoked"})
        return link, await connections.of_tenant(conn, link.id, link.tenant_id)


async def remove(
    service: Connectors, conn: Connection, caller: Caller, tenant_id: UUID | None, id: UUID
) -> Link:
    """Removes a connection with its jobs, signals and deliveries, for good; `tell_provider` takes it."""
    _must_act(caller, tenant_id)
    async with conn.transaction():
        await inbox.close(conn, id)  # a delete waits for all who store there
        link = await _locked(conn, tenant_id, id)
        await _cancel_jobs(service, conn, caller, link)
        await conn.execute(sql.REMOVE_CONNECTION, {"id": link.id})
        detail = {"provider": link.provider, "external_id": link.external_id}
        await _note(conn, caller, "connection remove", link, detail)
        return link


async def _cancel_jobs(service: Connectors, conn: Connection, caller: Caller, link: Link) -> None:
    async with conn.cursor(row_factory=tuple_row) as found:
        await found.execute(sql.ACTIVE_JOBS, {"connection": link.id})
        active = [row[0] for row in await found.fetchall()]
    for one in active:
        with suppress(IllegalEdge):  # it has ended meanwhile
            await service.store.cancel(conn, one, by=caller.who, reason="the account was disconnected")


async def tell_provider(service: Connectors, link: Link) -> None:
    """Tells the provider that a token is not needed any more, if it can be told: our side is done anyway.

    A connector may be anybody's: whatever it raises is told, and nobody's problem.
    """
    if link.access is None:
        return
    token = None
    try:
        token = service.keyring.open(
            link.access, tenant_id=link.tenant_id, provider=link.provider, external_id=link.external_id
        )
        async with asyncio.timeout(PATIENCE), service.connector(link.provider) as connector:
            await connector.revoke(token)
    except Exception as error:
        told = failures.fault(error, [token])["message"]
        log.warning("%s was not told that connection %s has ended: %s", link.provider, link.id, told)


# -- what is there ---------------------------------------------------------------------------------------


async def find(conn: Connection, tenant_id: UUID | None, id: UUID) -> Link:
    """A connection, or `NotFound`: also for another tenant's."""
    if tenant_id is not None:
        return await connections.of_tenant(conn, id, tenant_id)
    if (link := await connections.get_by_id(conn, id)) is None:
        raise NotFound(what="connection", id=id)
    return link


@dataclass(frozen=True, kw_only=True)
class Health:
    """How a connection does. `failures`: bad runs since the last success, if there was one."""

    last_success: datetime | None = None
    last_error: Mapping[str, Json] | None = None
    last_error_at: datetime | None = None
    failures: int = 0
    next_run: datetime | None = None
    cooldown_until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class _Runs:
    connection_id: UUID
    last_success: datetime | None
    last_error: Mapping[str, Json] | None
    last_error_at: datetime | None
    failures: int


async def health(service: Connectors, conn: Connection, link: Link) -> Health:
    """How a connection does."""
    return (await healths(service, conn, [link]))[link.id]


async def healths(service: Connectors, conn: Connection, links: Sequence[Link]) -> dict[UUID, Health]:
    """How some connections do, by their ids."""
    async with conn.cursor(row_factory=class_row(_Runs)) as found:
        await found.execute(sql.HEALTH, {"ids": [link.id for link in links]})
        runs = {one.connection_id: one for one in await found.fetchall()}
    return {link.id: _health(service, link, runs[link.id]) for link in links}


def _health(service: Connectors, link: Link, runs: _Runs) -> Health:
    state, _ = sync_state.read(link.metadata, service.settings)
    return Health(
        last_success=runs.last_success,
        last_error=runs.last_error,
        last_error_at=runs.last_error_at,
        failures=runs.failures,
        next_run=state.next_run_at if link.status == "active" else None,
        cooldown_until=state.cooldown_until,
    )


# -- making ----------------------------------------------------------------------------------------------


async def create_tenant(conn: Connection, caller: Caller, name: str, id: UUID | None = None) -> Tenant:
    """Makes a tenant. For operators."""
    must_operate(caller, "act")
    async with conn.transaction():
        made = await tenants.create(conn, name, id=id)
        await audit.note(conn, caller, "tenant create", row_id=made.id, detail={"name": made.name})
        return made


async def enlist(conn: Connection, provider: Provider) -> None:
    """Sees that a provider of one's own stands in the table that all others refer to."""
    if provider.slug not in {one.slug for one in catalogue.PROVIDERS}:
        await catalogue.upsert(conn, provider)


async def register(
    service: Connectors,
    conn: Connection,
    caller: Caller,
    tenant_id: UUID,
    *,
    provider: str,
    external_id: str,
    display_name: str | None = None,
) -> Link:
    """Makes the connection of a provider that only sends webhooks: there is nothing to authorise.

    One that was disconnected is active again, and what its webhooks have brought meanwhile is looked at.
    """
    must(caller, "act")
    known = named_provider(service, provider)
    if known.auth_type != "webhook-only":
        way = f"POST /api/connectors/connect/{known.slug}"
        raise InvalidInput(field="provider", message=f"{known.slug} is connected by OAuth: {way}")
    async with conn.transaction():
        await enlist(conn, known)
        place: Any = {"tenant_id": tenant_id, "provider": known.slug, "external_id": external_id}
        there = await connections.find_by_unique(conn, **place)
        if there is not None and there.status == "revoked":
            link, _ = await connections.upsert(conn, **place, display_name=display_name)
            await inbox.wake_waiting(conn, service.store, link)
        else:
            link = await connections.create(conn, **place, display_name=display_name, scopes=())
        await _note(conn, caller, "connection create", link, {"provider": link.provider})
        return link


# -- webhooks --------------------------------------------------------------------------------------------


async def replay(
    service: Connectors,
    conn: Connection,
    caller: Caller,
    tenant_id: UUID | None,
    *,
    provider: str,
    delivery_id: str | None = None,
    received_after: datetime | None = None,
    received_before: datetime | None = None,
) -> Replayed:
    """Lets deliveries be processed once more: one by its id, or all that came in a time."""
    _must_act(caller, tenant_id)
    if delivery_id is None and received_after is None and received_before is None:
        raise InvalidInput(field="delivery_id", message="give one, or received_after and received_before")
    slug = named_provider(service, provider).slug
    detail = {
        "provider": slug,
        "delivery": delivery_id,
        "received_after": received_after and received_after.isoformat(),
        "received_before": received_before and received_before.isoformat(),
    }
    # It may be many, in several commits: the entry is there before it begins, and is settled at its end.
    whose = replace(caller, tenant=tenant_id and str(tenant_id))
    entry = await audit.note(conn, whose, "webhook replay", detail=detail)
    try:
        async with service.connector(slug) as connector:
            done = await inbox.replay(
                conn,
                service.store,
                tenant_id,
                provider=slug,
                match=connector.external_ids,
                delivery_id=delivery_id,
                received_after=received_after,
                received_before=received_before,
            )
    except Exception as error:
        await audit.settle(conn, entry, None, error=type(error).__name__)
        raise
    await audit.settle(conn, entry, done.deliveries, unmatched=done.unmatched)
    if delivery_id is not None and done == Replayed():
        raise NotFound(what="delivery", id=delivery_id)
    return done


# -- shared ----------------------------------------------------------------------------------------------


def named_provider(service: Connectors, name: str) -> Provider:
    """The provider that a filter or a body names; an unknown one is a mistake there, and not just nothing."""
    try:
        return service.provider(slug_of(name))
    except NotFound:
        raise InvalidInput(field="provider", message=f"there is no provider {name!r}") from None


def _must_act(caller: Caller, tenant_id: UUID | None) -> None:
    """Refuses whoever may not; and everybody but operators where no tenant is named."""
    if tenant_id is None:
        must_operate(caller, "act")
    must(caller, "act")


async def _locked(conn: Connection, tenant_id: UUID | None, id: UUID) -> Link:
    """The connection with its row locked, as everybody does who is about to change it or its jobs."""
    link = await connections.lock(conn, id)
    if link is None or tenant_id not in (None, link.tenant_id):
        raise NotFound(what="connection", id=id)
    return link


async def _note(
    conn: Connection, caller: Caller, action: str, link: Link, detail: Mapping[str, Json] | None = None
) -> None:
    whose = replace(caller, tenant=str(link.tenant_id))
    await audit.note(conn, whose, action, row_id=link.id, rows=1, detail=detail)
