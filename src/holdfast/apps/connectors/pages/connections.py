"""The first page: all connections of a tenant, or of everybody, and how each of them does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from holdfast.api.auth import Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.connectors import actions, connections, sync_state
from holdfast.apps.connectors.connections import STATUSES, Link, Links
from holdfast.apps.connectors.pages import common, views
from holdfast.apps.connectors.pages.views import View
from holdfast.apps.connectors.routes.common import Service, provider_filter
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.dashboard.dress import page
from holdfast.dashboard.lists import PAGE, Asked, turn
from holdfast.dashboard.live import Look, shown
from holdfast.engine.store import Connection
from holdfast.errors import InvalidInput

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Listed:
    """A page of connections; `wrong`: why there is none."""

    now: datetime
    views: tuple[View, ...]
    cursor: str | None
    wrong: InvalidInput | None

    @property
    def mark(self) -> list[Any]:
        """What the page shows."""
        return [[mark(one) for one in self.views], self.cursor is None]


def mark(one: View) -> list[Any]:
    """What is shown of a connection."""
    return [one.link.id, one.link.updated_at, one.mood.word, one.health.last_success, one.health.failures]


async def _fingerprint(look: Look) -> Any:
    asked = Asked.of(look.query)
    return (await _gather(look.site, Connectors.of(look.site), look.caller, asked)).mark


@router.get("/connectors")
@shown(_fingerprint)
async def list_connections(request: Request, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """The page of all connections."""
    asked = Asked.of(request.query_params.multi_items())
    found = await _gather(site, service, caller, asked)
    return page(
        request,
        "connectors/connections.html",
        caller,
        status=400 if found.wrong else 200,
        shown=found.mark,
        found=found,
        asked=asked,
        turn=turn(asked, found.cursor),
        filtered=bool(asked.only(("provider", "status", "tenant"))),
        providers=common.provider_choices(service),
        statuses=[(one, one) for one in STATUSES],
        address=common.address,
        everybody=caller.tenant is None,
    )


async def _gather(site: Site, service: Connectors, caller: Caller, asked: Asked) -> Listed:
    # As in the routes, the platform itself reads connections, and names the tenant in every statement.
    async with site.connection() as conn:
        now, wrong = await clock(conn), None
        try:
            found = await _find(conn, service, caller, asked)
        except InvalidInput as error:
            found, wrong = Links((), None), error
        return Listed(now, await viewed(conn, service, found.items, now), found.cursor, wrong)


async def _find(conn: Connection, service: Connectors, caller: Caller, asked: Asked) -> Links:
    return await connections.listing(
        conn,
        common.whose(caller, asked.text("tenant")),
        provider=provider_filter(service, asked.text("provider")),
        status=asked.text("status"),
        limit=PAGE,
        cursor=asked.cursor,
    )


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
