"""Connecting an account over HTTP: the way to the provider, and the way back."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from holdfast.api import audit
from holdfast.api.auth import Actor, Here
from holdfast.apps.connectors import oauth
from holdfast.apps.connectors.answers import Called, Connect, Connected, Way
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.routes.common import TAG, ProviderName, Service, problems, tenant_of
from holdfast.dashboard import dress
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.connectors")

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
    "/callback/{provider}",
    summary="What a provider sends people back to",
    response_model=Called,
    responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}} | problems(501, 502),
)
async def callback(
    request: Request,
    provider: ProviderName,
    service: Service,
    state: Annotated[str | None, Query(description="What the way there was given.")] = None,
    code: Annotated[str | None, Query(description="What stands for the tokens.")] = None,
    error: Annotated[str | None, Query(description="Why the provider gave none.")] = None,
) -> Any:
    """Takes what the provider sends back; answers with the connection. For everybody: the state proves it.

    A state is used up by the first who brings it, whatever comes with it. What else a provider adds to the
    address is not read. A browser (`Accept: text/html`) gets a page, also when the account was not connected.
    """
    given = {"state": state, "code": code, "error": error}
    params = {name: value for name, value in given.items() if value is not None}
    html = "text/html" in request.headers.get("accept", "")
    try:
        link = await oauth.finish(service, provider, params)
    except HoldfastError as failure:
        if not html or failure.status == 500:
            raise
        title, advice = "The account was not connected", "Start again in the application you came from."
        detail = str(failure)
        if failure.status == 501:  # the missing setting is for the log, not for the public
            log.error("%s: no account can be connected: %s", provider, failure)
            detail, advice = "This provider is not set up", "Ask the operator of the application."
        return _page(request, failure.status, title=title, detail=detail, advice=advice)
    if html:
        name = service.provider(slug_of(provider)).display_name
        detail = f"the account {link.display_name or link.external_id} is connected"
        return _page(
            request, 200, title=f"{name} is connected", detail=detail, advice="You can close this window."
        )
    connected = Connected(
        id=link.id, provider=link.provider, expires_at=link.expires_at, metadata=dict(link.metadata)
    )
    return Called(connection=connected)


def _page(request: Request, status: int, **texts: str) -> Response:
    """Render the callback's page. Its address holds the code, so no other site gets it as the referrer."""
    response = dress.page(request, "connectors/callback.html", None, status=status, **texts)
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Vary"] = "Accept"
    return response
