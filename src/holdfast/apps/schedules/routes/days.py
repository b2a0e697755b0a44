"""Days over HTTP: as they are, as they were, how they came about; and mending a snapshot."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from holdfast.api.auth import Actor, Here, Reader
from holdfast.api.description import problems
from holdfast.api.models import Moment
from holdfast.apps.schedules import actions
from holdfast.apps.schedules import days as stored
from holdfast.apps.schedules.actions import confined, user_of
from holdfast.apps.schedules.answers import (
    ComparedVersions,
    DayHistory,
    Days,
    DaysQuery,
    ListedDay,
    ShownDay,
    VerifiedDay,
)
from holdfast.apps.schedules.routes.common import TAG, WORDS, DayDate, UserId
from holdfast.engine.intake import INT4

router = APIRouter(prefix="/schedules/days", tags=[TAG])
OF_DAY = "/{user_id}/{date}"
Number = Annotated[int, Path(description="A version's number.", ge=1, lt=INT4.stop)]


@router.get("", summary="List days", responses=problems(WORDS, 404))
async def list_days(caller: Reader, site: Here, query: Annotated[DaysQuery, Query()]) -> Days:
    """The days that are known, the latest date first."""
    user_id = user_of(caller)
    if query.user_id is not None:
        user_id = confined(caller, query.user_id)
    async with site.connection() as conn:
        page = await stored.days(
            conn,
            user_id=user_id,
            since=query.since,
            until=query.until,
            limit=query.limit,
            cursor=query.cursor,
        )
    return Days(days=[ListedDay.model_validate(one) for one in page.items], next_cursor=page.cursor)


@router.get(OF_DAY, summary="Get a day", responses=problems(WORDS, 409))
async def get_day(
    user_id: UserId,
    date: DayDate,
    caller: Reader,
    site: Here,
    at: Annotated[Moment | None, Query(description="As it was known then; left out: as it is now.")] = None,
) -> ShownDay:
    """A day with its shifts, as it is known now, or was known at a time."""
    async with site.connection() as conn:
        return ShownDay.model_validate(await stored.day(conn, confined(caller, user_id), date, at=at))


@router.get(f"{OF_DAY}/history", summary="What has happened to a day", responses=problems(WORDS, 409))
async def get_history(user_id: UserId, date: DayDate, caller: Reader, site: Here) -> DayHistory:
    """Its versions, events and messages, and the sessions behind them."""
    async with site.connection() as conn:
        return DayHistory.of(await stored.history(conn, confined(caller, user_id), date))


@router.get(f"{OF_DAY}/versions/{{one}}/compare/{{other}}", summary="Compare two versions of a day")
async def compare_versions(
    user_id: UserId, date: DayDate, one: Number, other: Number, caller: Reader, site: Here
) -> ComparedVersions:
    """Side by side: entry by entry, and what the difference means."""
    async with site.connection() as conn:
        found = await stored.compare(
            conn,
            confined(caller, user_id),
            date,
            one,
            other,
            company_words=site.settings.schedules_company_words,
        )
    return ComparedVersions.of(found)


@router.get(f"{OF_DAY}/verify", summary="Verify a day")
async def verify_day(user_id: UserId, date: DayDate, caller: Reader, site: Here) -> VerifiedDay:
    """Whether its events give the day, and its versions are whole. Nothing is changed."""
    async with site.connection() as conn:
        return VerifiedDay.of(await stored.verify(conn, user_id=confined(caller, user_id), day=date))


@router.post(f"{OF_DAY}/rebuild", summary="Rebuild a day", responses=problems(WORDS, 409))
async def rebuild_day(user_id: UserId, date: DayDate, caller: Actor, site: Here) -> ShownDay:
    """Writes what is known of the day anew, from its events. Events and versions stay as they are."""
    return ShownDay.model_validate(await actions.rebuild(site, caller, user_id, date))
