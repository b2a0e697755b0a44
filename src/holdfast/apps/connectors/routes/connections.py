"""Connections over HTTP: looking, syncing, and switching on and off."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.rows import LOCATION, Responses
from holdfast.apps.connectors import actions
from holdfast.apps.connectors import connections as stored
from holdfast.apps.connectors.answers import (
    Asked,
    Change,
    Connection,
    Connections,
    ConnectionsQuery,
    Cursor,
    NewConnection,
    NewCursor,
    Sync,
)
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.routes.common import (
    TAG,
    ConnectionId,
    Service,
    problems,
    provider_filter,
    tenant_of,
    whose,
)
from holdfast.apps.connectors.service import Connectors
from holdfast.engine import store
from holdfast.errors import InvalidInput

router = APIRouter(prefix="/connectors/connections", tags=[TAG])
MADE: Responses = {201: {"description": "The connection was made.", "headers": LOCATION}}


# Sealed tokens stand in the same row, and a tenant's role may not read them, nor whether there are any. So
# the platform itself reads connections, and names the tenant in every statement.


@router.get("", summary="List connections")
async def list_connections(
    caller: Reader, site: Here, service: Service, query: Annotated[ConnectionsQuery, Query()]
) -> Connections:
    """A tenant's connections with their health, in the order in which they were made."""
    tenant_id = whose(caller, query.all_tenants)
    async with site.connection() as conn:
        page = await stored.listing(
            conn,
            tenant_id,
            provider=provider_filter(service, query.provider),
            status=query.status,
            limit=query.limit,
            cursor=query.cursor,
        )
        healths = await actions.healths(service, conn, page.items)
    told = [Connection.of(link, healths[link.id]) for link in page.items]
    return Connections(connections=told, next_cursor=page.cursor)


@router.post("", summary="Make a connection", status_code=201, responses=MADE | problems(404, 409))
async def create_connection(
    caller: Actor,
    site: Here,
    service: Service,
    body: NewConnection,
    request: Request,
    response: Response,
) -> Connection:
    """Makes the connection of a provider that only sends webhooks. Others are connected by OAuth."""
    async with site.connection() as conn:
        link = await actions.register(
            service,
            conn,
            caller,
            tenant_of(caller),
            provider=body.provider,
            external_id=body.external_id,
            display_name=body.display_name,
        )
        health = await actions.health(service, conn, link)
    root = quote(request.scope.get("root_path", ""))
    response.headers["Location"] = f"{root}/api/connectors/connections/{link.id}"
    return Connection.of(link, health)


@router.get("/{id}", summary="Get a connection")
async def get_connection(id: ConnectionId, caller: Reader, site: Here, service: Service) -> Connection:
    """One connection, and how it does."""
    async with site.connection() as conn:
        link = await stored.of_tenant(conn, id, tenant_of(caller))
        return await _told(service, conn, link)


@router.patch("/{id}", summary="Change a connection")
async def change_connection(
    id: ConnectionId, caller: Actor, site: Here, service: Service, body: Change
) -> Connection:
    """Sets how often it is synced, or by which other names webhooks may call it."""
    tenant_id = tenant_of(caller)
    if body.interval_seconds is None and body.external_ids is None:
        raise InvalidInput(field="interval_seconds", message="give it, or external_ids")
    async with site.connection() as conn, conn.transaction():
        if body.interval_seconds is not None:
            await actions.set_interval(service, conn, caller, tenant_id, id, body.interval_seconds)
        if body.external_ids is not None:
            await actions.set_external_ids(conn, caller, tenant_id, id, body.external_ids)
        link = await stored.of_tenant(conn, id, tenant_id)
        return await _told(service, conn, link)


@router.delete(
    "/{id}", summary="Remove a connection", status_code=204, responses={204: {"description": "It is gone."}}
)
async def remove_connection(id: ConnectionId, caller: Actor, site: Here, service: Service) -> None:
    """Removes it with its jobs, signals and deliveries, for good. `disconnect` keeps what it has brought."""
    async with site.connection() as conn:
        gone = await actions.remove(service, conn, caller, tenant_of(caller), id)
    await actions.tell_provider(service, gone)


@router.post("/{id}/sync", summary="Sync a connection now", status_code=202, responses=problems(409))
async def sync_connection(
    id: ConnectionId, caller: Actor, site: Here, service: Service, body: Sync | None = None
) -> Asked:
    """Adds a job; when one of its type waits or runs already, answers with that one."""
    wanted = body or Sync()
    async with site.connection() as conn:
        asked = await actions.sync_now(
            service,
            conn,
            caller,
            tenant_of(caller),
            id,
            job_type=wanted.job_type,
            priority=wanted.priority,
        )
    return Asked.of(asked)


@router.post("/{id}/full-sync", summary="Sync from the beginning", status_code=202, responses=problems(409))
async def full_sync_connection(id: ConnectionId, caller: Actor, site: Here, service: Service) -> Asked:
    """Reads everything once more; what is known already is not told twice."""
    async with site.connection() as conn:
        return Asked.of(await actions.full_resync(service, conn, caller, tenant_of(caller), id))


@router.get("/{id}/cursor", summary="Where the next sync begins")
async def get_cursor(id: ConnectionId, caller: Reader, site: Here, service: Service) -> Cursor:
    """Where the next incremental sync begins; null: at the beginning."""
    async with site.connection() as conn:
        return Cursor(cursor=await actions.cursor(service, conn, tenant_of(caller), id))


@router.put("/{id}/cursor", summary="Say where the next sync begins")
async def set_cursor(
    id: ConnectionId, caller: Actor, site: Here, service: Service, body: NewCursor
) -> Cursor:
    """Sets it. A sync that runs meanwhile does not undo it."""
    tenant_id = tenant_of(caller)
    async with site.connection() as conn:
        await actions.set_cursor(conn, caller, tenant_id, id, body.cursor)
        return Cursor(cursor=await actions.cursor(service, conn, tenant_id, id))


@router.post("/{id}/reset-cursor", summary="Forget where the last sync ended")
async def reset_cursor(id: ConnectionId, caller: Actor, site: Here, service: Service) -> Connection:
    """The next incremental sync begins at the beginning. One that runs meanwhile does not undo it."""
    async with site.connection() as conn:
        await actions.reset_cursor(conn, caller, tenant_of(caller), id)
        return await _told(service, conn, await stored.of_tenant(conn, id, tenant_of(caller)))


@router.post("/{id}/pause", summary="Pause a connection", responses=problems(409))
async def pause_connection(id: ConnectionId, caller: Actor, site: Here, service: Service) -> Connection:
    """It is synced no more until it is resumed. Its webhooks are stored and wait."""
    async with site.connection() as conn:
        return await _told(service, conn, await actions.pause(conn, caller, tenant_of(caller), id))


@router.post("/{id}/resume", summary="Resume a connection", responses=problems(409))
async def resume_connection(id: ConnectionId, caller: Actor, site: Here, service: Service) -> Connection:
    """It is synced again, and what its webhooks have brought meanwhile is processed."""
    async with site.connection() as conn:
        return await _told(service, conn, await actions.resume(service, conn, caller, tenant_of(caller), id))


@router.post("/{id}/disconnect", summary="Disconnect an account")
async def disconnect(id: ConnectionId, caller: Actor, site: Here, service: Service) -> Connection:
    """Removes its tokens and cancels its jobs; what it has brought stays. Connecting again revives it."""
    async with site.connection() as conn:
        before, ended = await actions.end(service, conn, caller, tenant_of(caller), id)
        told = await _told(service, conn, ended)
    await actions.tell_provider(service, before)
    return told


async def _told(service: Connectors, conn: store.Connection, link: Link) -> Connection:
    return Connection.of(link, await actions.health(service, conn, link))
