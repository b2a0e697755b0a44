"""The first page: all connections of a tenant, or of everybody, and how each of them does."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from holdfast.api.auth import Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.connectors import actions, connections, sync_state
from holdfast.apps.connectors.connections import STATUSES, Link
from holdfast.apps.connectors.pages import common, views
from holdfast.apps.connectors.pages.views import View
from holdfast.apps.connectors.routes.common import Service, provider_filter
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of
from holdfast.dashboard.live import shown
from holdfast.engine.store import Connection

router = APIRouter(include_in_schema=False)
FILTERS = ("provider", "status", "tenant")


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    service = Connectors.of(site)
    # As in the routes, the platform itself reads connections, and names the tenant in every statement.
    async with site.connection() as conn:
        now = await clock(conn)
        found = await connections.listing(
            conn,
            common.whose(caller, asked.text("tenant")),
            provider=provider_filter(service, asked.text("provider")),
            status=asked.text("status"),
            limit=PAGE,
            cursor=asked.cursor,
        )
        items = await viewed(conn, service, found.items, now)
    return Found(now=now, items=items, cursor=found.cursor, marks=[mark(one) for one in items])


@router.get("/connectors")
@shown(mark_of(_find))
async def list_connections(request: Request, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """The page of all connections."""
    return await list_page(
        request,
        "connectors/connections.html",
        caller,
        site,
        _find,
        FILTERS,
        providers=common.provider_choices(service),
        statuses=[(one, one) for one in STATUSES],
        address=common.address,
    )


def mark(one: View) -> list[Any]:
    """What is shown of a connection."""
    return [one.link.id, one.link.updated_at, one.mood.word, one.health.last_success, one.health.failures]


async def viewed(
    conn: Connection, service: Connectors, links: tuple[Link, ...], now: datetime
) -> tuple[View, ...]:
    """Some connections with how they do."""
    if not links:
        return ()
    healths = await actions.healths(service, conn, links)
    names = await common.tenant_names(conn, (link.tenant_id for link in links))
    cooling = await common.cooling(conn)
    return tuple(
        views.view(
            link,
            sync_state.read(link.metadata, service.settings)[0],
            healths[link.id],
            tenant=names.get(link.tenant_id),
            now=now,
            cooling=cooling.get(link.provider),
        )
        for link in links
    )
