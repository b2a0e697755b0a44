"""System jobs over HTTP: making one, looking at it, calling it off, making it again."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from holdfast.api.auth import Here
from holdfast.api.description import problems
from holdfast.api.models import Why
from holdfast.api.rows import LOCATION, Responses
from holdfast.api.site import Site
from holdfast.apps.system import actions, orders
from holdfast.apps.system.answers import JobsQuery, ListedJob, NewJob, ShownJob, ShownType, SystemJobs, Types
from holdfast.apps.system.bench import bench_of, log_of
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.legacy import find_jobs
from holdfast.apps.system.routes.common import TAG, WORDS, Acting, JobId, Reading, detailed
from holdfast.apps.system.tails import TAILS
from holdfast.apps.system.types import TYPES
from holdfast.engine.values import Row

router = APIRouter(prefix="/system", tags=[TAG])
MADE: Responses = {201: {"description": "The job was made.", "headers": LOCATION}}


@router.get("/types", summary="The types of jobs")
async def list_types(_: Reading) -> Types:
    """What can be done, and what each type needs to know, as JSON schemas."""
    return Types(types=[ShownType.of(kind) for kind in TYPES])


@router.post(
    "/jobs", summary="Make a system job", status_code=201, responses=MADE | problems(WORDS, 404, 409)
)
async def create_job(
    caller: Acting, site: Here, body: NewJob, request: Request, response: Response
) -> ShownJob:
    """Checks what is asked for, and makes a job of it. A worker does it.

    What cannot be taken back is for administrators: cleanup, retention, stream_eviction, user_cleanup and
    restore.
    """
    with detailed():
        row = await orders.create(site, caller, body.wish())
    _locate(request, response, row)
    return ShownJob.of(row)


@router.get("/jobs", summary="List system jobs")
async def list_jobs(_: Reading, site: Here, query: Annotated[JobsQuery, Query()]) -> SystemJobs:
    """The jobs, the newest first. `status` can be repeated. After the last one come up to 1,000 records of a
    `system.jobs` that was there before Holdfast, with `legacy` true.
    """
    which = query.filter()
    async with site.connection() as conn:
        page = await find_jobs(site.stores[NAME], conn, which, limit=query.limit, cursor=query.cursor)
    return SystemJobs(jobs=[ListedJob.of(row) for row in page.rows], next_cursor=page.cursor)


@router.get("/jobs/{id}", summary="Get a system job")
async def get_job(id: JobId, _: Reading, site: Here) -> ShownJob:
    """One job, with its message, its whole trace, and how far it has come."""
    return await _shown(site, await actions.show(bench_of(site), id))


@router.post("/jobs/{id}/cancel", summary="Call a system job off", responses=problems(WORDS, 404, 409))
async def cancel_job(id: JobId, caller: Acting, site: Here, body: Why | None = None) -> ShownJob:
    """Calls a job off at once. One that runs is told, and stops at its next safe point; what it has
    committed stays.
    """
    return ShownJob.of(await orders.cancel(site, caller, id, reason=body and body.reason))


@router.post(
    "/jobs/{id}/retry",
    summary="Make a system job again",
    status_code=201,
    responses=MADE | problems(WORDS, 404, 409),
)
async def retry_job(id: JobId, caller: Acting, site: Here, request: Request, response: Response) -> ShownJob:
    """Makes a new job with the type and the parameters of one that has ended. Answers with the new one."""
    row = await orders.retry(site, caller, id)
    _locate(request, response, row)
    return ShownJob.of(row)


async def _shown(site: Site, row: Row) -> ShownJob:
    if row.state != "running":
        return ShownJob.of(row)
    tail = await asyncio.to_thread(TAILS.look, log_of(site.settings), str(row.id))
    return ShownJob.of(row, tail.progress)


def _locate(request: Request, response: Response, row: Row) -> None:
    root = quote(request.scope.get("root_path", ""))
    response.headers["Location"] = f"{root}/api/system/jobs/{row.id}"
