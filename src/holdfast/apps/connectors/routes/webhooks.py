"""Webhooks over HTTP: what providers and operators send, what has come, and the secret that signs it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query, Request
from fastapi.responses import JSONResponse

from holdfast.api import audit
from holdfast.api.auth import ActingOperator, Actor, Here, Reader
from holdfast.apps.connectors import actions, doors, listing
from holdfast.apps.connectors.answers import (
    Accepted,
    Deliveries,
    DeliveriesQuery,
    Delivery,
    Replay,
    Replayed,
    Secret,
    WholeDelivery,
)
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.doors import Arrived, Desk
from holdfast.apps.connectors.routes.common import (
    TAG,
    AtDesk,
    ProviderName,
    Service,
    problems,
    provider_filter,
    reading,
    tenant_of,
    whose,
)
from holdfast.apps.connectors.signatures import derived_secret
from holdfast.errors import NotFound

router = APIRouter(prefix="/connectors", tags=[TAG])
open_router = APIRouter(prefix="/api/connectors", tags=[TAG])

# The body is read raw, so FastAPI knows nothing of it: whatever it is, what counts is the signature.
BODY: dict[str, Any] = {
    "requestBody": {
        "description": "What the provider sends, as it is.",
        "content": {"application/json": {"schema": {}}},
    }
}
ANSWERS = {200: {"description": "What a provider wants to hear that asks whether anybody is there."}}
ConnectionHeader = Annotated[
    str | None,
    Header(alias="X-Connection-Id", description="The connection that it is for; else it is matched."),
]


@router.post(
    "/webhooks/{provider}",
    summary="Pass a webhook on",
    status_code=202,
    response_model=Accepted,
    responses=ANSWERS | problems(501),
    openapi_extra=BODY,
)
async def pass_on(
    provider: ProviderName,
    caller: ActingOperator,
    at: AtDesk,
    request: Request,
    connection: ConnectionHeader = None,
) -> Any:
    """Takes a webhook from an operator, who answers for it, for the tenant of X-Tenant-Id."""
    tenant_id = tenant_of(caller)
    connection_id = None if connection is None else doors.uuid_of("X-Connection-Id", connection)
    arrived = await doors.by_operator(request, at, provider, tenant_id)
    return await _taken(at, arrived, connection_id)


@open_router.post(
    "/webhooks/{provider}/{tenant_id}",
    summary="What a provider sends",
    status_code=202,
    response_model=Accepted,
    responses=ANSWERS | problems(401, 404, 413, 429, 501),
    openapi_extra=BODY,
)
async def receive(
    provider: ProviderName,
    tenant_id: Annotated[str, Path(description="For which tenant: a UUID.", min_length=1, max_length=64)],
    at: AtDesk,
    request: Request,
    connection: ConnectionHeader = None,
) -> Any:
    """Takes a webhook that proves itself by its signature, or by an operator's token. For everybody.

    `X-Connection-Id` counts for operators alone: nobody signs it.
    """
    arrived = await doors.public(request, at, provider, tenant_id)
    named = connection if arrived.verification == "operator" else None
    connection_id = None if named is None else doors.uuid_of("X-Connection-Id", named)
    return await _taken(at, arrived, connection_id)


async def _taken(at: Desk, arrived: Arrived, connection_id: Any) -> Any:
    async with at.service.database.connection() as conn:
        answer = await doors.take_in(at, conn, arrived, connection_id=connection_id)
    return Accepted() if answer is None else JSONResponse(answer)


@router.get("/webhook-secrets/{provider}", summary="The secret of a tenant's webhooks")
async def webhook_secret(provider: ProviderName, caller: Actor, site: Here, service: Service) -> Secret:
    """What a tenant gives the provider to sign with: derived for this tenant, it signs for no other."""
    tenant_id, known = tenant_of(caller), service.provider(slug_of(provider))
    kind, own = service.known.get(known.slug), service.settings.provider(known.slug).webhook_secret
    if kind is None or kind.scheme in (None, "oidc") or not own:
        raise NotFound(what="webhook secret", id=known.slug)
    async with site.connection() as conn:
        await audit.note(conn, caller, "webhook secret", detail={"provider": known.slug})
    return Secret(
        provider=known.slug,
        scheme=kind.scheme,
        secret=derived_secret(own, tenant_id, known.slug),
        path=f"/api/connectors/webhooks/{known.slug}/{tenant_id}",
    )


@router.get("/deliveries", summary="List webhooks that came")
async def list_deliveries(
    caller: Reader, site: Here, service: Service, query: Annotated[DeliveriesQuery, Query()]
) -> Deliveries:
    """A tenant's inbox, the newest first; without headers and payloads."""
    tenant_id, provider = whose(caller, query.all_tenants), provider_filter(service, query.provider)
    async with reading(site, service, caller, tenant_id) as conn:
        page = await listing.deliveries(
            conn,
            tenant_id,
            provider=provider,
            connection_id=query.connection_id,
            status=query.status,
            received_after=query.received_after,
            received_before=query.received_before,
            limit=query.limit,
            cursor=query.cursor,
        )
    return Deliveries(deliveries=[Delivery.of(one) for one in page.items], next_cursor=page.cursor)


@router.post("/deliveries/replay", summary="Process webhooks once more", responses=problems(404, 501))
async def replay(caller: Actor, site: Here, service: Service, body: Replay) -> Replayed:
    """Lets one, or all that came in a time, be processed again; unmatched ones are matched again."""
    tenant_id = whose(caller, body.all_tenants)
    async with site.connection() as conn:
        done = await actions.replay(
            service,
            conn,
            caller,
            tenant_id,
            provider=body.provider,
            delivery_id=body.delivery_id,
            received_after=body.received_after,
            received_before=body.received_before,
        )
    return Replayed(deliveries=done.deliveries, unmatched=done.unmatched)


@router.get("/deliveries/{provider}/{id:path}", summary="Get a webhook that came")
async def get_delivery(
    provider: ProviderName,
    id: Annotated[str, Path(description="The delivery's id.", min_length=1, max_length=255)],
    caller: Reader,
    site: Here,
    service: Service,
) -> WholeDelivery:
    """One webhook with its headers and its payload; what proved it was not kept."""
    tenant_id, known = tenant_of(caller), service.provider(slug_of(provider))
    async with reading(site, service, caller, tenant_id) as conn:
        stored = await listing.delivery(conn, tenant_id, known.slug, id)
    return WholeDelivery.of(stored, headers=stored.headers, payload=stored.payload)
