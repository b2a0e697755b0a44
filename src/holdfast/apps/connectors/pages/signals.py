"""Signals: what the accounts have told, by filters; the payload of one only when it is asked for."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from holdfast.api.auth import Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.connectors import signals
from holdfast.apps.connectors.normal import KINDS
from holdfast.apps.connectors.pages import common
from holdfast.apps.connectors.routes.common import Service, provider_filter, reading
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.dashboard.dress import page
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of, uuid_of
from holdfast.dashboard.live import shown

router = APIRouter(include_in_schema=False)
FILTERS = ("provider", "kind", "connection", "occurred_after", "occurred_before", "tenant")


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    service, tenant_id = Connectors.of(site), common.whose(caller, asked.text("tenant"))
    filters: dict[str, Any] = {
        "provider": provider_filter(service, asked.text("provider")),
        "kind": asked.text("kind"),
        "connection_id": asked.uuid("connection"),
        "occurred_after": asked.moment("occurred_after"),
        "occurred_before": asked.moment("occurred_before"),
    }
    async with reading(site, service, caller, tenant_id) as conn:
        now = await clock(conn)
        found = await signals.find(conn, tenant_id, **filters, limit=PAGE, cursor=asked.cursor, payload=False)
        names = await common.account_names(conn, (one.connection_id for one in found.items))
    marks = [one.id for one in found.items]
    return Found(now=now, items=found.items, cursor=found.cursor, marks=marks, more={"names": names})


@router.get("/connectors/signals")
@shown(mark_of(_find))
async def list_signals(request: Request, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """The page of signals."""
    return await list_page(
        request,
        "connectors/signals.html",
        caller,
        site,
        _find,
        FILTERS,
        providers=common.provider_choices(service),
        kinds=[(one, one) for one in sorted(KINDS)],
        address=common.address,
    )


@router.get("/connectors/signals/{id}")
async def show(request: Request, id: str, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """One signal, with its payload."""
    tenant_id = common.whose(caller)
    async with reading(site, service, caller, tenant_id) as conn:
        found = await signals.get(conn, uuid_of("id", id), tenant_id)
        names = await common.account_names(conn, [found.connection_id])
    return page(
        request,
        "connectors/signal.html",
        caller,
        signal=found,
        name=names.get(found.connection_id),
        address=common.address,
    )
