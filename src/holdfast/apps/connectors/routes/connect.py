"""Connecting an account over HTTP: the way to the provider, and the way back."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api import audit
from holdfast.api.auth import Actor, Here
from holdfast.apps.connectors import oauth
from holdfast.apps.connectors.answers import Called, Connect, Connected, Way
from holdfast.apps.connectors.routes.common import TAG, ProviderName, Service, problems, tenant_of

router = APIRouter(prefix="/connectors", tags=[TAG])
open_router = APIRouter(prefix="/api/connectors", tags=[TAG])


@router.post("/connect/{provider}", summary="Connect an account", responses=problems(501, 502))
async def connect(
    provider: ProviderName, caller: Actor, site: Here, service: Service, body: Connect | None = None
) -> Way:
    """Answers with the address at the provider where a person allows it; good for ten minutes, and once."""
    tenant_id = tenant_of(caller)
    url = await oauth.start(service, tenant_id, provider, body and body.redirect_uri)
    async with site.connection() as conn:
        await audit.note(conn, caller, "connection begin", detail={"provider": provider})
    return Way(authorize_url=url)


@open_router.get(
    "/callback/{provider}", summary="What a provider sends people back to", responses=problems(501, 502)
)
async def callback(
    provider: ProviderName,
    service: Service,
    state: Annotated[str | None, Query(description="What the way there was given.")] = None,
    code: Annotated[str | None, Query(description="What stands for the tokens.")] = None,
    error: Annotated[str | None, Query(description="Why the provider gave none.")] = None,
) -> Called:
    """Takes what the provider sends back; answers with the connection. For everybody: the state proves it.

    A state is used up by the first who brings it, whatever comes with it. What else a provider adds to the
    address is not read.
    """
    given = {"state": state, "code": code, "error": error}
    params = {name: value for name, value in given.items() if value is not None}
    link = await oauth.finish(service, provider, params)
    connected = Connected(
        id=link.id, provider=link.provider, expires_at=link.expires_at, metadata=dict(link.metadata)
    )
    return Called(connection=connected)
