"""Days: which are known, and one of them, now or as it was, with its versions, events and messages."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from psycopg.rows import tuple_row

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.apps.schedules import actions
from holdfast.apps.schedules import days as stored
from holdfast.apps.schedules.actions import confined, user_of
from holdfast.apps.schedules.answers import iso_date
from holdfast.apps.schedules.pages import queries, views
from holdfast.apps.schedules.record import Comparison, Day, History, Report
from holdfast.dashboard.dress import page, say, url
from holdfast.dashboard.lists import PAGE, Asked, Found, list_page, mark_of
from holdfast.dashboard.live import Look, shown
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.runtime.overview import clock

router = APIRouter(include_in_schema=False)
FILTERS = ("user", "since", "until")
OF_DAY = "/schedules/days/{user_id}/{date}"


async def _find(site: Site, caller: Caller, asked: Asked) -> Found:
    user_id = user_of(caller)
    if (wanted := asked.number("user")) is not None:
        user_id = confined(caller, wanted)
    since, until = (_asked_date(asked, name) for name in ("since", "until"))
    async with site.connection() as conn:
        found = await stored.days(
            conn, user_id=user_id, since=since, until=until, limit=PAGE, cursor=asked.cursor
        )
        marks = [(one.user_id, one.schedule_date, one.version, one.updated_at) for one in found.items]
        return Found(now=await clock(conn), items=found.items, cursor=found.cursor, marks=marks)


@router.get("/schedules/days")
@shown(mark_of(_find))
async def list_days(request: Request, caller: Reader, site: Here) -> HTMLResponse:
    """The page of all days."""
    return await list_page(request, "schedules/days.html", caller, site, _find, FILTERS, **views.HELPERS)


def _asked_date(asked: Asked, name: str) -> date | None:
    text = asked.text(name)
    return None if text is None else _date(name, text)


def _date(name: str, text: str) -> date:
    try:
        return iso_date(text)
    except ValueError:
        raise InvalidInput(field=name, message=f"is no date: write 2030-01-31, not {text!r}") from None


# -- one of them -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A day and how it came about. `comparison` is of two versions, `report` where somebody asked for it.

    `wrong` is what was asked wrongly, or why the day cannot be read; `contrary`, why no two versions can be.
    """

    now: datetime
    day: Day
    history: History
    comparison: Comparison | None
    report: Report | None
    mark: list[Any]
    wrong: HoldfastError | None = None
    contrary: Conflict | None = None


def _place(caller: Caller, user_id: str, day: str) -> tuple[int, date]:
    """The day that an address means; one that none can be is not there."""
    try:
        return confined(caller, intake.typed("user", "bigint", user_id)), _date("date", day)
    except InvalidInput:
        raise NotFound(what="day", id=f"{user_id}/{day}"[:100]) from None


async def _glance(conn: Connection, user_id: int, day: date) -> list[Any]:
    """What the page shows, told without reading it."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(queries.GLANCE, {"user_id": user_id, "day": day})
        return [list(row) for row in await cursor.fetchall()]


async def _fingerprint(look: Look) -> Any:
    user_id, day = _place(look.caller, look.params["user_id"], look.params["date"])
    async with look.site.connection() as conn:
        return await _glance(conn, user_id, day)


async def _gather(site: Site, user_id: int, day: date, asked: Asked) -> Whole:
    wrong: HoldfastError | None = None
    contrary: Conflict | None = None
    comparison: Comparison | None = None
    at: datetime | None = None
    pair: tuple[int | None, int | None] = (None, None)
    try:
        at, pair = asked.moment("at"), (asked.number("one"), asked.number("other"))
    except InvalidInput as error:
        wrong = error
    async with site.connection() as conn:
        mark = await _glance(conn, user_id, day)
        try:
            found = await stored.day(conn, user_id, day, at=at)
        except Conflict as error:  # others have written there: what is known of it can be written anew
            found, wrong = _unreadable(user_id, day, at), error
        told = await stored.history(conn, user_id, day)
        try:
            comparison = await _compared(site, conn, told, *pair)
        except Conflict as error:
            contrary = error
        report = await stored.verify(conn, user_id=user_id, day=day) if asked.shown("verify") else None
        return Whole(
            now=await clock(conn),
            day=found,
            history=told,
            comparison=comparison,
            report=report,
            mark=mark,
            wrong=wrong,
            contrary=contrary,
        )


def _unreadable(user_id: int, day: date, at: datetime | None) -> Day:
    return Day(
        user_id=user_id,
        schedule_date=day,
        at=at,
        version=None,
        shifts=(),
        session_id=None,
        updated_at=None,
        payload=None,
        payload_hash=None,
    )


async def _compared(
    site: Site, conn: Connection, told: History, one: int | None, other: int | None
) -> Comparison | None:
    """The two versions that are asked for, or else the last two; None where there are not two."""
    if len(told.versions) < 2:
        return None
    before, last = (version.version for version in told.versions[-2:])
    return await stored.compare(
        conn,
        told.user_id,
        told.schedule_date,
        before if one is None else one,
        last if other is None else other,
        company_words=site.settings.schedules_company_words,
    )


@router.get(OF_DAY)
@shown(_fingerprint)
async def show(request: Request, user_id: str, date: str, caller: Reader, site: Here) -> HTMLResponse:
    """The page of a day."""
    asked = Asked.of(request.query_params.multi_items())
    whole = await _gather(site, *_place(caller, user_id, date), asked)
    return page(
        request,
        "schedules/day.html",
        caller,
        status=whole.wrong.status if whole.wrong else 200,
        shown=whole.mark,
        whole=whole,
        day=whole.day,
        told=whole.history,
        comparison=whole.comparison,
        asked=asked,
        at_text=views.local(whole.day.at),
        here=views.address("days", whole.day.user_id, whole.day.schedule_date),
        **views.HELPERS,
    )


@router.post(OF_DAY)
async def rebuild(request: Request, user_id: str, date: str, caller: Actor, site: Here) -> RedirectResponse:
    """Writes what is known of the day anew, from its events."""
    user, day = _place(caller, user_id, date)
    await actions.rebuild(site, caller, user, day)
    response = RedirectResponse(url(request, views.address("days", user, day)), 303)
    say(request, response, "The day is written anew from its events.")
    return response
