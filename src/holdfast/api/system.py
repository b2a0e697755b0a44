"""Everything beside the ledgers over HTTP: who asks, the overview, workers, the record, tokens, metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.api import audit, metrics, tokens
from holdfast.api.answers import Entries, Entry, MadeToken, Me, Token, Tokens
from holdfast.api.auth import Admin, Here, Operator, Reader
from holdfast.api.figures import Fleet, Overview
from holdfast.api.models import NewToken
from holdfast.api.rows import Responses
from holdfast.engine.intake import INT8

router = APIRouter(prefix="/api")
scraped = APIRouter(tags=["system"])

METRICS: Responses = {200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}}}


@router.get("/me", summary="Who am I?", tags=["system"])
async def me(caller: Reader) -> Me:
    """Who asks, as the record would name them, and what they may do."""
    return Me.of(caller)


@router.get("/overview", summary="Everything at a glance", tags=["system"])
async def overview(caller: Reader, request: Request) -> Overview:
    """Every ledger, every worker, and who leads; at most a second old. Within a tenant: its own rows."""
    return Overview.of(await request.app.state.reads.overview(caller))


@router.get("/workers", summary="The workers and their leader", tags=["system"])
async def workers(_: Operator, request: Request) -> Fleet:
    """Who is there, what they serve, and how many rows they hold. For operators."""
    found = Overview.of(await request.app.state.reads.overview_of_all())
    return Fleet(workers=found.workers, leader=found.leader)


@router.get("/audit", summary="What was done, and by whom", tags=["record"])
async def entries(
    _: Operator,
    site: Here,
    limit: Annotated[int, Query(ge=1, le=audit.PAGE, description="How many at most.")] = 50,
    before: Annotated[
        int | None, Query(ge=1, lt=INT8.stop, description="Those before this entry's number.")
    ] = None,
) -> Entries:
    """Every action of a person or a program, the newest first. For operators."""
    async with site.connection() as conn:
        found = await audit.entries(conn, limit=limit, before=before)
    more = found[-1].id if len(found) == limit else None
    return Entries(entries=[Entry.model_validate(entry) for entry in found], before=more)


@router.get("/tokens", summary="List tokens", tags=["tokens"])
async def listing(_: Admin, site: Here) -> Tokens:
    """Every token, also revoked and expired ones, without their secrets. For admins."""
    async with site.connection() as conn:
        return Tokens(tokens=[Token.model_validate(token) for token in await tokens.every(conn)])


@router.post("/tokens", summary="Make a token", status_code=201, tags=["tokens"])
async def create(caller: Admin, site: Here, body: NewToken) -> MadeToken:
    """Makes a token. Its text is in this answer, and nowhere else. For admins."""
    async with site.connection() as conn, conn.transaction():
        made, text = await tokens.create(
            conn, body.name, body.scope, tenant=body.tenant, expires=body.expires, by=caller.who
        )
        detail = {"name": made.name, "scope": made.scope, "of": made.tenant}
        await audit.note(conn, caller, "token create", row_id=made.id, detail=detail)
    return MadeToken(**Token.model_validate(made).model_dump(), token=text)


@router.delete("/tokens/{id}", summary="Revoke a token", tags=["tokens"])
async def revoke(
    id: Annotated[str, Path(description="The token's id: the part after `hf_`.")], caller: Admin, site: Here
) -> Token:
    """Ends a token for good, and with it its sessions and streams. For admins."""
    async with site.connection() as conn, conn.transaction():
        changed = await tokens.revoke(conn, id)
        await audit.note(conn, caller, "token revoke", row_id=id, detail={"changed": changed})
        return Token.model_validate(await tokens.find(conn, id))


@scraped.get("/metrics", summary="Metrics for Prometheus", responses=METRICS, response_class=Response)
async def scrape(_: Operator, site: Here) -> Response:
    """Depth and age by state, claims, finishes, retries, dead letters, run times, pool, leader."""
    return Response(await metrics.collect(site), media_type=metrics.CONTENT_TYPE)
