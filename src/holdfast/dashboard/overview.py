"""The first page: all ledgers at a glance; and the page of the workers."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from holdfast.api.actions import must_operate
from holdfast.api.auth import Here, Operator, Reader
from holdfast.dashboard import gather
from holdfast.dashboard.dress import page, reads
from holdfast.dashboard.live import Look, shown

router = APIRouter(include_in_schema=False)


async def _fingerprint(look: Look) -> Any:
    seen = await look.reads.overview(look.caller)
    return gather.of_overview(seen, look.site.settings.worker_timeout)


@router.get("/")
@shown(_fingerprint)
async def overview(request: Request, caller: Reader, site: Here) -> HTMLResponse:
    """All ledgers, and the workers."""
    seen, timeout = await reads(request).overview(caller), site.settings.worker_timeout
    return page(
        request,
        "overview.html",
        caller,
        shown=gather.of_overview(seen, timeout),
        seen=seen,
        quiet=not any(stat.rows for view in seen.ledgers for stat in view.stats),
        timeout=timeout,
    )


async def _fingerprint_of_workers(look: Look) -> Any:
    must_operate(look.caller, "read")
    return gather.of_overview(await look.reads.overview_of_all(), look.site.settings.worker_timeout)


@router.get("/workers")
@shown(_fingerprint_of_workers)
async def workers(request: Request, caller: Operator, site: Here) -> HTMLResponse:
    """Who is there, what they serve, and how much they have in hand."""
    seen, timeout = await reads(request).overview_of_all(), site.settings.worker_timeout
    fingerprint = gather.of_overview(seen, timeout)
    return page(request, "workers.html", caller, shown=fingerprint, seen=seen, timeout=timeout)
