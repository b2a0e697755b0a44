"""Messages: which wait, which were sent, which failed; one of them with its tries; and sending it again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.schedules import actions, days
from holdfast.apps.schedules.actions import confined, user_of
from holdfast.apps.schedules.pages import views
from holdfast.apps.schedules.record import Notification
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, safe_path, say, url
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of
from holdfast.dashboard.live import Look, shown
from holdfast.engine import intake
from holdfast.runtime.overview import clock

router = APIRouter(include_in_schema=False)
FILTERS = ("status", "user")
LONGEST_PATH = 2000  # characters of where to go back to


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    user_id = user_of(caller)
    if (wanted := asked.number("user")) is not None:
        user_id = confined(caller, wanted)
    async with site.connection() as conn:
        found = await days.notices(
            conn, user_id=user_id, status=asked.text("status"), limit=PAGE, cursor=asked.cursor
        )
        marks = [(one.id, one.status, one.attempts) for one in found.items]
        return Found(now=await clock(conn), items=found.items, cursor=found.cursor, marks=marks)


@router.get("/schedules/notifications")
@shown(mark_of(_find))
async def list_notifications(request: Request, caller: Reader, site: Here) -> HTMLResponse:
    """The page of all messages."""
    statuses = [(one, one) for one in views.MESSAGES]
    return await list_page(
        request,
        "schedules/notifications.html",
        caller,
        site,
        _find,
        FILTERS,
        statuses=statuses,
        **views.HELPERS,
    )


async def _one(site: Site, caller: Caller, id: str) -> tuple[datetime, Notification]:
    async with site.connection() as conn:
        found = await days.notice(conn, intake.clean_text("id", id), user_id=user_of(caller))
        return await clock(conn), found


def _mark(found: Notification) -> list[Any]:
    return [found.summary.status, len(found.tries)]


async def _fingerprint(look: Look) -> Any:
    return _mark((await _one(look.site, look.caller, look.params["id"]))[1])


@router.get("/schedules/notifications/{id:path}")
@shown(_fingerprint)
async def show(request: Request, id: str, caller: Reader, site: Here) -> HTMLResponse:
    """The page of a message."""
    now, found = await _one(site, caller, id)
    return page(
        request,
        "schedules/notification.html",
        caller,
        shown=_mark(found),
        now=now,
        found=found,
        notice=found.summary,
        **views.HELPERS,
    )


@router.post("/schedules/notifications/{id:path}")
async def resend(request: Request, id: str, caller: Actor, site: Here) -> RedirectResponse:
    """Lets a message that failed be sent again, and goes back to where that was said."""
    form = await request.form()
    back = safe_path(forms.text(form, "back", LONGEST_PATH) or views.address("notifications", id))
    await actions.resend(site, caller, intake.clean_text("id", id), reason=forms.text(form, "reason"))
    response = RedirectResponse(url(request, back), 303)
    say(request, response, "The message is to be sent again.")
    return response
