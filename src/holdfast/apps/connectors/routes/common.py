"""What the routes share: the service at hand, whose rows are meant, and what a problem looks like."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Path, Request

from holdfast.api import description
from holdfast.api.auth import Here
from holdfast.api.caller import Caller
from holdfast.api.rows import Responses
from holdfast.api.site import Site
from holdfast.apps.connectors import actions
from holdfast.apps.connectors.doors import Desk, uuid_of
from holdfast.apps.connectors.service import Connectors
from holdfast.engine.store import Connection
from holdfast.errors import InvalidInput, NotAllowed

TAG = "connectors"
TENANT_HEADER = "X-Tenant-Id"
WORDS = {
    401: "Nobody in particular asks, or the signature is not right",
    404: "There is no such thing, or it is another tenant's",
    409: "Something else has its place, or it is in another state",
    413: "The body is too large",
    429: "Too many requests",
    501: "There is no connector for it, or it is not set up",
    502: "The provider refused, or cannot be understood",
}

ProviderName = Annotated[str, Path(description="The provider's name.", min_length=1, max_length=64)]
ConnectionId = Annotated[UUID, Path(description="The connection's id.")]


def problems(*statuses: int) -> Responses:
    """How an operation may fail, beside what every operation may answer."""
    return description.problems(WORDS, *statuses)


def desk(request: Request, site: Here) -> Desk:
    """The desk of this application; a new one when it was closed and opened again."""
    found: Desk | None = getattr(request.app.state, "connectors_desk", None)
    if found is None or found.service.ground is not site:
        found = Desk(Connectors.of(site))
        request.app.state.connectors_desk = found
    return found


AtDesk = Annotated[Desk, Depends(desk)]


def service(at: AtDesk) -> Connectors:
    """The service of this application."""
    return at.service


Service = Annotated[Connectors, Depends(service)]


def tenant_of(caller: Caller) -> UUID:
    """Whose rows are meant: by the token itself, or by the header; one that is missing is `InvalidInput`."""
    if caller.tenant is None:
        raise InvalidInput(field=TENANT_HEADER, message="is missing: say whose rows are meant")
    return uuid_of(TENANT_HEADER, caller.tenant)


def whose(caller: Caller, everybody: bool) -> UUID | None:
    """Whose rows a list is about; None for everybody's, which only operators may ask for."""
    if not everybody:
        return tenant_of(caller)
    if caller.bound:
        raise NotAllowed(message=f"all_tenants is for operators, and {caller.who} belongs to a tenant")
    return None


@asynccontextmanager
async def reading(
    site: Site, service: Connectors, caller: Caller, tenant_id: UUID | None
) -> AsyncGenerator[Connection]:
    """A connection to read with: within a tenant, the database itself confines it."""
    within = replace(caller, tenant=None if tenant_id is None else str(tenant_id))
    async with site.confined(within, service.store) as (conn, _):
        yield conn


def provider_filter(service: Connectors, name: str | None) -> str | None:
    """The provider that a filter names, if it names one."""
    return None if name is None else actions.named_provider(service, name).slug
