"""The inbox of webhooks: what has come, what has become of it, and letting it be processed once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from psycopg.rows import tuple_row

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.connectors import actions, listing
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.inbox import Replayed
from holdfast.apps.connectors.listing import DELIVERY_STATES
from holdfast.apps.connectors.pages import common, queries, views
from holdfast.apps.connectors.routes.common import Service, provider_filter, reading
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, say, url
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of
from holdfast.dashboard.live import shown
from holdfast.engine import intake
from holdfast.errors import InvalidInput, NotFound

router = APIRouter(include_in_schema=False)
RANGE = ("provider", "received_after", "received_before", "tenant")
FILTERS = (*RANGE, "status", "connection")
MOST = 10_001  # deliveries of a range that are counted


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    service, tenant_id = Connectors.of(site), common.whose(caller, asked.text("tenant"))
    filters: dict[str, Any] = {
        "provider": provider_filter(service, asked.text("provider")),
        "connection_id": asked.uuid("connection"),
        "status": asked.text("status"),
        "received_after": asked.moment("received_after"),
        "received_before": asked.moment("received_before"),
    }
    async with reading(site, service, caller, tenant_id) as conn:
        now = await clock(conn)
        found = await listing.deliveries(conn, tenant_id, **filters, limit=PAGE, cursor=asked.cursor)
        names = await common.account_names(conn, (one.connection_id for one in found.items))
    marks = [[*one.key, views.delivery_state(one), one.attempts] for one in found.items]
    return Found(now=now, items=found.items, cursor=found.cursor, marks=marks, more={"names": names})


@router.get("/connectors/inbox")
@shown(mark_of(_find))
async def list_deliveries(request: Request, caller: Reader, site: Here, service: Service) -> HTMLResponse:
    """The page of the inbox."""
    return await list_page(
        request,
        "connectors/inbox.html",
        caller,
        site,
        _find,
        FILTERS,
        ranged=RANGE,
        providers=common.provider_choices(service),
        states=[(one, one) for one in DELIVERY_STATES],
        state_of=views.delivery_state,
        fault_of=views.fault,
        moods=views.DELIVERIES,
        address=common.address,
    )


# -- once more -------------------------------------------------------------------------------------------


@router.get("/connectors/inbox/replay")
async def preview(request: Request, caller: Actor, site: Here, service: Service) -> HTMLResponse:
    """How many deliveries a range has; nothing is changed yet."""
    asked = Asked.of(request.query_params.multi_items())
    count, wrong = None, None
    try:
        count = await _count(site, service, caller, asked)
    except InvalidInput as error:
        wrong = error
    return page(
        request,
        "connectors/replay.html",
        caller,
        status=400 if wrong else 200,
        asked=asked,
        range_pairs=asked.only(RANGE),
        count=count,
        more=count == MOST,
        wrong=wrong,
        providers=common.provider_choices(service),
        everybody=caller.tenant is None,
    )


async def _count(site: Site, service: Connectors, caller: Caller, asked: Asked) -> int | None:
    """How many it would be; None while the range is not said yet."""
    filters: dict[str, Any] = {
        "tenant_id": common.whose(caller, asked.text("tenant")),
        "provider": provider_filter(service, asked.text("provider")),
        "received_after": asked.moment("received_after"),
        "received_before": asked.moment("received_before"),
    }
    given = {name: value for name, value in filters.items() if value is not None}
    if "provider" not in given or not given.keys() & {"received_after", "received_before"}:
        return None
    async with (
        reading(site, service, caller, filters["tenant_id"]) as conn,
        conn.cursor(row_factory=tuple_row) as cursor,
    ):
        await cursor.execute(queries.count_deliveries(given), {**given, "most": MOST})
        ((count,),) = await cursor.fetchall()
        return count


@router.post("/connectors/inbox/replay")
async def replay(request: Request, caller: Actor, site: Here, service: Service) -> RedirectResponse:
    """Lets one delivery, or all of a range, be processed once more."""
    asked = Asked.of(forms.pairs_of(await request.form()))
    provider, delivery = asked.text("provider"), asked.text("delivery")
    if provider is None:
        raise InvalidInput(field="provider", message="is missing")
    tenant_id = common.whose(caller, asked.text("tenant"))
    async with site.connection() as conn:
        done = await actions.replay(
            service,
            conn,
            caller,
            tenant_id,
            provider=provider,
            delivery_id=delivery,
            received_after=asked.moment("received_after"),
            received_before=asked.moment("received_before"),
        )
    back = common.address("inbox")
    if delivery is not None and tenant_id is not None and asked.shown("back") == "delivery":
        back = common.address("inbox", slug_of(provider), tenant_id, delivery)
    response = RedirectResponse(url(request, back), 303)
    say(request, response, _said(done))
    return response


def _said(done: Replayed) -> str:
    again = (
        f"{done.deliveries:,} {'delivery is' if done.deliveries == 1 else 'deliveries are'} to be processed"
    )
    if not done.unmatched:
        return f"{again} once more."
    fits = "fits" if done.unmatched == 1 else "fit"
    return f"{again} once more; {done.unmatched:,} still {fits} no connection."


@router.get("/connectors/inbox/{provider}/{tenant_id}/{id:path}")
async def show(
    request: Request, provider: str, tenant_id: UUID, id: str, caller: Reader, site: Here, service: Service
) -> HTMLResponse:
    """One delivery, with its headers and its payload; what proved it was not kept."""
    slug, delivery = slug_of(intake.clean_text("provider", provider)), intake.clean_text("id", id)
    if common.whose(caller) not in (None, tenant_id):
        raise NotFound(what="delivery", id=delivery)
    async with reading(site, service, caller, tenant_id) as conn:
        found = await listing.delivery(conn, tenant_id, slug, delivery)
        names = await common.account_names(conn, [found.connection_id])
    state = views.delivery_state(found)
    return page(
        request,
        "connectors/delivery.html",
        caller,
        delivery=found,
        fault=views.fault(found.error),
        headers=dict(found.headers) if isinstance(found.headers, Mapping) else {},  # pyright: ignore[reportUnnecessaryIsInstance]
        mood=views.DELIVERIES[state],
        name=found.connection_id and names.get(found.connection_id),
        address=common.address,
    )
