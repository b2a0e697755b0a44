"""Whether it works, for whoever restarts it or sends it traffic. Open to everybody, and says little."""

from __future__ import annotations

import asyncio
import time

import psycopg
from fastapi import APIRouter, Request, Response

from holdfast.api import problems
from holdfast.api.answers import Health
from holdfast.api.site import Site
from holdfast.db.database import head, revision
from holdfast.errors import HoldfastError

router = APIRouter(tags=["health"])
PATIENCE = 1.0  # seconds that the pool may take
KEPT = 1.0  # seconds that an answer is good for everybody: nobody shall tire the database by asking


class Readiness:
    """Whether requests can be answered, as it was found within the last second."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = asyncio.Lock()
        self._found: tuple[float, str | None] | None = None

    async def trouble(self) -> str | None:
        """What stands in the way; None for nothing."""
        async with self._lock:
            if self._found is None or time.monotonic() - self._found[0] > KEPT:
                self._found = (time.monotonic(), await self._look())
            return self._found[1]

    async def _look(self) -> str | None:
        try:
            async with asyncio.timeout(PATIENCE), self._site.connection() as conn:
                at = await revision(conn)
        except (TimeoutError, psycopg.Error, HoldfastError):
            return "the database does not answer"
        if at is None or at < head():
            return f"migrations are pending: the database is at {at}, and {head()} is needed"
        return None


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", summary="Is it alive?")
async def alive() -> Health:
    """Answers for as long as the process can answer at all."""
    return Health(status="ok")


@router.head("/readyz", include_in_schema=False, response_model=Health)
@router.get("/readyz", summary="Can it answer requests?", response_model=Health)
async def ready(request: Request) -> Health | Response:
    """503 while migrations are pending, or the database does not answer within a second."""
    trouble = await request.app.state.readiness.trouble()
    if trouble is None:
        return Health(status="ok")
    return problems.respond(503, "NOT_READY", trouble)
