"""Signals: what the accounts have told, by filters; the payload of one only when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

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
from holdfast.apps.connectors.signals import Signals
from holdfast.dashboard.dress import page
from holdfast.dashboard.lists import PAGE, Asked, turn, uuid_of
from holdfast.dashboard.live import Look, shown
from holdfast.errors import InvalidInput

router = APIRouter(include_in_schema=False)
FILTERS = ("provider", "kind", "connection", "occurred_after", "occurred_before", "tenant")


@dataclass(frozen=True)
class Listed:
    """A page of signals, with what their connections are called; `wrong`: why there is none."""

    now: datetime | None
    signals: Signals
    names: Mapping[UUID, str]
    wrong: InvalidInput | None = None

    @property
    def mark(self) -> list[Any]:
        """What the page shows."""
        return [[one.id for one in self.signals.items], self.signals.cursor is None]


async def _fingerprint(look: Look) -> Any:
    return (await _gather(look.site, Connectors.of(look.site), look.caller, Asked.of(look.query))).mark


@router.get("/connectors/signals")
@shown(_fingerprint)
async def list_signals(request: Request, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """The page of signals."""
    asked = Asked.of(request.query_params.multi_items())
    found = await _gather(site, service, caller, asked)
    return page(
        request,
        "connectors/signals.html",
        caller,
        status=400 if found.wrong else 200,
        shown=found.mark,
        found=found,
        asked=asked,
        turn=turn(asked, found.signals.cursor),
        filtered=bool(asked.only(FILTERS)),
        providers=common.provider_choices(service),
        kinds=[(one, one) for one in sorted(KINDS)],
        address=common.address,
        everybody=caller.tenant is None,
    )


async def _gather(site: Site, service: Connectors, caller: Caller, asked: Asked) -> Listed:
    try:
        tenant_id = common.whose(caller, asked.text("tenant"))
        filters: dict[str, Any] = {
            "provider": provider_filter(service, asked.text("provider")),
            "kind": asked.text("kind"),
            "connection_id": asked.uuid("connection"),
            "occurred_after": asked.moment("occurred_after"),
            "occurred_before": asked.moment("occurred_before"),
        }
        async with reading(site, service, caller, tenant_id) as conn:
            now = await clock(conn)
            found = await signals.find(
                conn, tenant_id, **filters, limit=PAGE, cursor=asked.cursor, payload=False
            )
            names = await common.account_names(conn, (one.connection_id for one in found.items))
            return Listed(now, found, names)
    except InvalidInput as error:
        return Listed(None, Signals((), None), {}, error)


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
