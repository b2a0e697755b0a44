"""Capture sessions: what has come and what has become of it, one of them, and orders about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.api import actions as orders
from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.reads import Reads
from holdfast.api.site import Site
from holdfast.apps.schedules import days
from holdfast.apps.schedules.actions import confined, user_of
from holdfast.apps.schedules.answers import day_of
from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.apps.schedules.pages import views
from holdfast.apps.schedules.record import Capture
from holdfast.dashboard import forms, phrases
from holdfast.dashboard.dress import page, reads, say, url
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of, uuid_of
from holdfast.dashboard.live import Look, shown
from holdfast.dashboard.row import orders as orders_of
from holdfast.engine.lifecycle import MEANING
from holdfast.engine.values import Row
from holdfast.errors import InvalidInput
from holdfast.runtime.explain import Explanation
from holdfast.runtime.overview import clock

router = APIRouter(include_in_schema=False)
FILTERS = ("state", "user")


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    user_id = user_of(caller)
    if (wanted := asked.number("user")) is not None:
        user_id = confined(caller, wanted)
    async with site.connection() as conn:
        found = await days.captures(
            conn, user_id=user_id, state=asked.text("state"), limit=PAGE, cursor=asked.cursor
        )
        marks = [(one.id, one.state, one.images, one.attempts) for one in found.items]
        return Found(now=await clock(conn), items=found.items, cursor=found.cursor, marks=marks)


@router.get("/schedules")
@shown(mark_of(_find))
async def list_captures(request: Request, caller: Reader, site: Here) -> HTMLResponse:
    """The page of all sessions."""
    states = [(one, one) for one in views.CAPTURES]
    return await list_page(
        request, "schedules/captures.html", caller, site, _find, FILTERS, states=states, **views.HELPERS
    )


# -- one of them -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A session, its row, and all that came of it."""

    now: datetime
    capture: Capture
    row: Row
    explanation: Explanation

    @property
    def mark(self) -> list[Any]:
        """What the page shows."""
        one = self.capture
        return [
            one.summary.state,
            one.summary.images,
            [(claim.attempt, claim.outcome) for claim in one.attempts],
            [(notice.id, notice.status, notice.attempts) for notice in one.notifications],
            self.explanation.code,
        ]


async def _gather(site: Site, reading: Reads, caller: Caller, id: UUID) -> Whole:
    user_id, store = user_of(caller), site.store(caller, SESSIONS)
    async with site.connection() as conn:
        now = await clock(conn)
        found = await days.capture(conn, id, user_id=user_id)
    return Whole(
        now=now,
        capture=found,
        row=await reading.row(caller, store, id),
        explanation=await reading.explain(caller, store, id),
    )


async def _fingerprint(look: Look) -> Any:
    key = uuid_of("id", look.params["id"])
    return (await _gather(look.site, look.reads, look.caller, key)).mark


@router.get("/schedules/captures/{id}")
@shown(_fingerprint)
async def show(request: Request, id: str, caller: Reader, site: Here) -> HTMLResponse:
    """The page of a session."""
    whole = await _gather(site, reads(request), caller, uuid_of("id", id))
    ledger = site.store(caller, SESSIONS).ledger
    return page(
        request,
        "schedules/capture.html",
        caller,
        shown=whole.mark,
        whole=whole,
        capture=whole.capture,
        summary=whole.capture.summary,
        day=day_of(whole.capture),
        fault=views.fault(whole.capture.summary.error),
        orders=orders_of(ledger, whole.row) if caller.may("act") else (),
        meanings=MEANING,
        **views.HELPERS,
    )


@router.post("/schedules/captures/{id}")
async def order(request: Request, id: str, caller: Actor, site: Here) -> RedirectResponse:
    """Cancels the session or requeues it."""
    form = await request.form()
    key, verb, reason = uuid_of("id", id), form.get("verb"), forms.text(form, "reason")
    user_of(caller)
    match verb:
        case "cancel":
            await orders.cancel(site, caller, SESSIONS, key, reason=reason)
        case "requeue":
            await orders.requeue(site, caller, SESSIONS, key, reason=reason)
        case _:
            raise InvalidInput(field="verb", message="must be cancel or requeue")
    response = RedirectResponse(url(request, views.address("captures", key)), 303)
    say(request, response, f"The session is {phrases.VERBS_DONE[verb]}.")
    return response
