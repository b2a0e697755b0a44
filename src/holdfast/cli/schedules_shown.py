"""`holdfast schedules day`, `days`, `history`, `diff` and so on: what is known, and how it came about."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, found, options, output
from holdfast.cli import schedules_told as told
from holdfast.cli.schedules_asked import OfDay, User, day_of, load, opened, time_of, user_of

if TYPE_CHECKING:
    from holdfast.apps.schedules.record import Comparison, Day
    from holdfast.platform import Holdfast

WIDE = 160  # columns of a terminal that has room for the id of a message and all that is told of it


# -- days ------------------------------------------------------------------------------------------------


def day(
    user: User,
    date: OfDay,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="As it was known then; default: now.")
    ] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show a day as it is known now, or was known at a time."""
    shown = application.run(_day(load(app), user_of(user), day_of(date), time_of(at, "--at")))
    if json:
        output.data(told.day(shown))
        return
    names = ("user_id", "schedule_date", "at", "version", "updated_at", "session_id")
    output.facts([(name.replace("_", " "), getattr(shown, name)) for name in names])
    told.show_shifts(shown.shifts)


async def _day(app: Holdfast, user: int, day: date, at: datetime | None) -> Day:
    from holdfast.apps.schedules import days

    async with opened(app) as conn:
        return await days.day(conn, user, day, at=at)


def days(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Only this user's.")] = None,
    since: Annotated[str | None, typer.Option("--since", metavar="DATE", help="From this day on.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DATE", help="Up to this day.")] = None,
    limit: found.Limit = found.PAGE,
    cursor: found.Cursor = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List the days that are known, the latest first."""
    which: dict[str, Any] = {
        "user_id": None if user is None else user_of(user),
        "since": None if since is None else day_of(since, "--since"),
        "until": None if until is None else day_of(until, "--until"),
        "limit": limit,
        "cursor": cursor,
    }
    page = application.run(_page(load(app), "days", which))
    headings = ("DAY", "USER", "VERSION", "SHIFTS", "SEEN", "SESSION")
    rows = [
        (
            *(str(one.schedule_date), one.user_id, one.version, one.shifts),
            *(one.updated_at, one.session_id),
        )
        for one in page.items
    ]
    found.show("days", headings, rows, page.items, page, json)


def history(user: User, date: OfDay, app: options.App = None, json: options.Json = False) -> None:
    """Show the versions, events and messages of a day, and the captures behind them."""
    shown = application.run(_history(load(app), user_of(user), day_of(date)))
    if json:
        output.data(told.history(shown))
        return
    output.facts([("user id", shown.user_id), ("schedule date", shown.schedule_date)])
    told.show_versions(shown.versions)
    told.show_events(shown.events, sessions=True)
    told.show_notices(shown.notifications)
    told.show_captures(shown.captures)
    if shown.cut:
        output.flush()
        output.error("there is more: these are the newest")


async def _history(app: Holdfast, user: int, day: date) -> Any:
    from holdfast.apps.schedules import days

    async with opened(app) as conn:
        return await days.history(conn, user, day)


def diff(
    user: User,
    date: OfDay,
    one: Annotated[int, typer.Argument(metavar="ONE", help="A version.")],
    other: Annotated[int, typer.Argument(metavar="OTHER", help="The version to hold beside it.")],
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show two versions of a day side by side, and what the difference means."""
    shown = application.run(_diff(load(app), user_of(user), day_of(date), one, other))
    if json:
        output.data(told.comparison(shown))
    else:
        told.show_comparison(shown)


async def _diff(app: Holdfast, user: int, day: date, one: int, other: int) -> Comparison:
    from holdfast.apps.schedules import days

    words = app.settings.schedules_company_words
    async with opened(app) as conn:
        return await days.compare(conn, user, day, one, other, company_words=words)


# -- captures and messages -------------------------------------------------------------------------------


def capture(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The session's id; `holdfast list capture_session`.")
    ],
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show a capture session with its pictures and claims, and all that came of it."""
    from holdfast.engine import intake

    shown = application.run(_one(load(app), "capture", intake.typed("ID", "uuid", id)))
    if json:
        output.data(told.capture(shown))
        return
    names = ("id", "user_id", "state", "created_at", "locked_by", "locked_at", "error")
    made = shown.version and f"{shown.version.version} of {shown.version.schedule_date}"
    facts = [(name.replace("_", " "), getattr(shown.summary, name)) for name in names]
    output.facts([*facts, ("version", made)])
    told.show_images(shown.images)
    told.show_attempts(shown.attempts)
    told.show_events(shown.events, sessions=False)
    told.show_notices(shown.notifications)


def notifications(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Only to this user.")] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="Only in this status: pending, sent, failed.")
    ] = None,
    limit: found.Limit = found.PAGE,
    cursor: found.Cursor = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List the messages to users, the newest first."""
    whose = None if user is None else user_of(user)
    which: dict[str, Any] = {"user_id": whose, "status": status, "limit": limit, "cursor": cursor}
    page = application.run(_page(load(app), "notices", which))
    wide = output.console().width >= WIDE
    headings = ("ID", *(("MADE", "USER", "TRIES") if wide else ()), "STATUS", "MESSAGE")
    rows = [
        (
            *(one.id, *((one.created_at, one.user_id, one.attempts) if wide else ())),
            *(told.shaded(one.status), f"{one.message} ({one.error})" if one.error else one.message),
        )
        for one in page.items
    ]
    found.show("notifications", headings, rows, page.items, page, json)


def notification(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="The message's id; `holdfast schedules notifications`.")
    ],
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show a message with all tries to send it."""
    shown = application.run(_one(load(app), "notice", id))
    if json:
        output.data(told.notification(shown))
        return
    names = ("id", "user_id", "schedule_date", "status", "created_at", "sent_at", "next_at", "message")
    output.facts([(name.replace("_", " "), getattr(shown.summary, name)) for name in names])
    told.show_tries(shown.tries)


async def _page(app: Holdfast, what: str, which: dict[str, Any]) -> Any:
    """A page of what the record has under this name."""
    from holdfast.apps.schedules import days

    async with opened(app) as conn:
        return await getattr(days, what)(conn, **which)


async def _one(app: Holdfast, what: str, id: Any) -> Any:
    from holdfast.apps.schedules import days

    async with opened(app) as conn:
        return await getattr(days, what)(conn, id)
