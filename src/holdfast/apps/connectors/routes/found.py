"""What syncs have found, over HTTP: jobs and signals."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Path, Query

from holdfast.api.auth import Here, Reader
from holdfast.apps.connectors import listing
from holdfast.apps.connectors import signals as stored
from holdfast.apps.connectors.answers import Job, Jobs, JobsQuery, Signal, Signals, SignalsQuery
from holdfast.apps.connectors.routes.common import TAG, Service, provider_filter, reading, tenant_of, whose

router = APIRouter(prefix="/connectors", tags=[TAG])


@router.get("/jobs", summary="List sync jobs")
async def list_jobs(
    caller: Reader, site: Here, service: Service, query: Annotated[JobsQuery, Query()]
) -> Jobs:
    """A tenant's sync jobs, the last scheduled first. Orders about them are those of any ledger."""
    tenant_id, provider = whose(caller, query.all_tenants), provider_filter(service, query.provider)
    async with reading(site, service, caller, tenant_id) as conn:
        page = await listing.jobs(
            conn,
            tenant_id,
            provider=provider,
            connection_id=query.connection_id,
            job_type=query.job_type,
            status=query.status,
            started_after=query.started_after,
            finished_after=query.finished_after,
            limit=query.limit,
            cursor=query.cursor,
        )
    return Jobs(jobs=[Job.model_validate(one) for one in page.items], next_cursor=page.cursor)


@router.get("/jobs/{id}", summary="Get a sync job")
async def get_job(
    id: Annotated[UUID, Path(description="The job's id.")], caller: Reader, site: Here, service: Service
) -> Job:
    """One sync job."""
    tenant_id = tenant_of(caller)
    async with reading(site, service, caller, tenant_id) as conn:
        return Job.model_validate(await listing.job(conn, id, tenant_id))


@router.get("/signals", summary="List signals")
async def list_signals(
    caller: Reader, site: Here, service: Service, query: Annotated[SignalsQuery, Query()]
) -> Signals:
    """What a tenant's accounts have told, the newest first; payloads with `include_payload=true` only."""
    tenant_id, provider = whose(caller, query.all_tenants), provider_filter(service, query.provider)
    async with reading(site, service, caller, tenant_id) as conn:
        page = await stored.find(
            conn,
            tenant_id,
            provider=provider,
            connection_id=query.connection_id,
            kind=query.kind,
            occurred_after=query.occurred_after,
            occurred_before=query.occurred_before,
            limit=query.limit,
            cursor=query.cursor,
            payload=query.include_payload,
        )
    return Signals(signals=[Signal.of(one) for one in page.items], next_cursor=page.cursor)


@router.get("/signals/{id}", summary="Get a signal")
async def get_signal(
    id: Annotated[UUID, Path(description="The signal's id.")], caller: Reader, site: Here, service: Service
) -> Signal:
    """One signal, with its payload."""
    tenant_id = tenant_of(caller)
    async with reading(site, service, caller, tenant_id) as conn:
        return Signal.of(await stored.get(conn, id, tenant_id))
