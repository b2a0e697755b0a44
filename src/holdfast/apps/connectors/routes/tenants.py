"""Tenants over HTTP: making one, and looking."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.api.auth import ActingOperator, Here, Operator, Reader
from holdfast.api.rows import LOCATION, Responses
from holdfast.apps.connectors import actions, listing
from holdfast.apps.connectors import tenants as stored
from holdfast.apps.connectors.answers import NewTenant, Tenant, Tenants, TenantsQuery
from holdfast.apps.connectors.routes.common import TAG, problems, tenant_of
from holdfast.errors import NotFound

router = APIRouter(prefix="/connectors/tenants", tags=[TAG])
MADE: Responses = {201: {"description": "The tenant was made.", "headers": LOCATION}}


@router.post("", summary="Make a tenant", status_code=201, responses=MADE | problems(409))
async def create_tenant(
    caller: ActingOperator, site: Here, body: NewTenant, request: Request, response: Response
) -> Tenant:
    """Makes a tenant. For operators."""
    async with site.connection() as conn:
        made = await actions.create_tenant(conn, caller, body.name, body.id)
    root = quote(request.scope.get("root_path", ""))
    response.headers["Location"] = f"{root}/api/connectors/tenants/{made.id}"
    return Tenant.model_validate(made)


@router.get("", summary="List the tenants")
async def list_tenants(_: Operator, site: Here, query: Annotated[TenantsQuery, Query()]) -> Tenants:
    """Every tenant, the first made first. For operators."""
    async with site.connection() as conn:
        page = await listing.tenants(conn, limit=query.limit, cursor=query.cursor)
    return Tenants(tenants=[Tenant.model_validate(one) for one in page.items], next_cursor=page.cursor)


@router.get("/{id}", summary="Get a tenant")
async def get_tenant(
    id: Annotated[UUID, Path(description="The tenant's id.")], caller: Reader, site: Here
) -> Tenant:
    """One tenant; within a tenant, there is no other."""
    if caller.tenant is not None and tenant_of(caller) != id:
        raise NotFound(what="tenant", id=id)
    async with site.connection() as conn:
        return Tenant.model_validate(await stored.get(conn, id))
