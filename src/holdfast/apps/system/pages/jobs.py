"""System jobs: what there is, one of them with its log as it is written, and orders about it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.api.auth import Here
from holdfast.api.caller import Caller
from holdfast.api.reads import Reads
from holdfast.api.site import Site
from holdfast.apps.system import actions, orders
from holdfast.apps.system.answers import orders_of
from holdfast.apps.system.bench import bench_of, log_of
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.legacy import find_jobs, is_legacy
from holdfast.apps.system.orders import must_maintain
from holdfast.apps.system.pages import views
from holdfast.apps.system.routes.common import Acting, Reading
from holdfast.apps.system.tails import TAILS, Tail
from holdfast.apps.system.types import STATUSES, TYPES, JobType, read_status, read_type, stored_type
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, reads, say, url
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of
from holdfast.dashboard.live import Look, shown
from holdfast.engine.values import Filter, Row
from holdfast.errors import InvalidInput
from holdfast.runtime import presence
from holdfast.runtime.explain import Explanation
from holdfast.runtime.overview import clock

router = APIRouter(include_in_schema=False)
RARE = ("key", "queue", "created_after", "created_before")
FILTERS = ("type", "status", *RARE)


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    must_maintain(caller, "read")
    which = _filter(asked)
    async with site.connection() as conn:
        jobs = await find_jobs(site.stores[NAME], conn, which, limit=PAGE, cursor=asked.cursor)
        fleet = await presence.fleet(conn)
        now = await clock(conn)
    timeout = site.settings.worker_timeout
    served = any(NAME in one.serves and one.silent < timeout for one in fleet)
    waiting = [row for row in jobs.rows if row.state in ("queued", "retrying") and not is_legacy(row)]
    unserved = bool(waiting) and not served
    marks = [unserved, *((one.id, one.state, one.attempts) for one in jobs.rows)]
    return Found(now=now, items=jobs.rows, cursor=jobs.cursor, marks=marks, more={"unserved": unserved})


@router.get("/system")
@shown(mark_of(_find))
async def list_jobs(request: Request, caller: Reading, site: Here) -> HTMLResponse:
    """The page of all jobs."""
    return await list_page(
        request,
        "system/jobs.html",
        caller,
        site,
        _find,
        FILTERS,
        rare=RARE,
        ledger=site.stores[NAME].ledger,
        types=[(str(one), views.title(one)) for one in TYPES],
        statuses=[(one, one) for one in STATUSES],
        **views.HELPERS,
    )


def _filter(asked: Asked) -> Filter:
    kind, status = asked.text("type"), asked.text("status")
    return Filter(
        kind=None if kind is None else str(read_type(kind)),
        states=() if status is None else (read_status(status),),
        key=asked.text("key"),
        queue=asked.text("queue"),
        created_after=asked.moment("created_after"),
        created_before=asked.moment("created_before"),
    )


# -- one of them -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A job, why it is where it is, and the end of its story."""

    now: datetime
    row: Row
    changed: str | None
    explanation: Explanation
    tail: Tail

    @property
    def mark(self) -> list[Any]:
        """What the page shows."""
        count = self.tail.earlier + len(self.tail.lines)
        last = self.tail.lines[-1].text if self.tail.lines else None
        return [self.changed, self.explanation.code, count, last]


async def _gather(site: Site, reading: Reads, caller: Caller, id: str) -> Whole:
    row = await actions.show(bench_of(site), id)
    store = site.stores[NAME]
    async with site.connection() as conn:
        now = await clock(conn)
        changed = (await store.marks(conn, [row.id])).get(row.id)
    return Whole(
        now=now,
        row=row,
        changed=changed,
        explanation=await reading.explain(caller, store, row.id),
        tail=await asyncio.to_thread(TAILS.look, log_of(site.settings), str(row.id)),
    )


async def _fingerprint(look: Look) -> Any:
    must_maintain(look.caller, "read")
    return (await _gather(look.site, look.reads, look.caller, look.params["id"])).mark


@router.get("/system/jobs/{id}")
@shown(_fingerprint)
async def show(request: Request, id: str, caller: Reading, site: Here) -> HTMLResponse:
    """The page of a job."""
    whole = await _gather(site, reads(request), caller, id)
    return page(
        request,
        "system/job.html",
        caller,
        shown=whole.mark,
        whole=whole,
        row=whole.row,
        ledger=site.stores[NAME].ledger,
        type=stored_type(whole.row.kind),
        orders=_orders(caller, whole.row),
        here=views.address("jobs", whole.row.id),
        **views.HELPERS,
    )


def _orders(caller: Caller, row: Row) -> list[str]:
    """What this caller may order about a job now."""
    kind = stored_type(row.kind)
    found: list[str] = [*orders_of(row)] if caller.may("act") else []
    again = kind is not JobType.UNKNOWN and caller.may(orders.scope_of(kind))
    return [verb for verb in found if verb == "cancel" or again]


@router.post("/system/jobs/{id}")
async def order(request: Request, id: str, caller: Acting, site: Here) -> RedirectResponse:
    """Calls the job off, or makes it again."""
    form = await request.form()
    match form.get("verb"):
        case "cancel":
            row = await orders.cancel(site, caller, id, reason=forms.text(form, "reason"))
            told = "The job is cancelled."
        case "retry":
            row = await orders.retry(site, caller, id)
            told = f"This is a new job, like {id}."
        case _:
            raise InvalidInput(field="verb", message="must be cancel or retry")
    response = RedirectResponse(url(request, views.address("jobs", row.id)), 303)
    say(request, response, told)
    return response
