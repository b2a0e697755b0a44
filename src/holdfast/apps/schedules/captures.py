"""Capture sessions and messages as they are shown: one with all that belongs to it, or a page of them.

Where `user_id` is given, another user's rows do not exist. Who moves them is the engine.
"""

from __future__ import annotations

from datetime import date
from typing import Any
from uuid import UUID

from holdfast.apps.schedules import cursors, looks
from holdfast.apps.schedules import days_queries as queries
from holdfast.apps.schedules.record import (
    Attempt,
    Capture,
    CaptureSummary,
    Listed,
    Notification,
    NotificationSummary,
    Try,
    Version,
)
from holdfast.apps.schedules.values import Image
from holdfast.engine import intake, reading
from holdfast.engine.store import Connection
from holdfast.errors import InvalidInput, NotFound

STATES = ("pending", "processing", "done", "failed")
STATUSES = ("pending", "sent", "failed")
MOST = 500  # messages of one session: a day has no more shifts


# -- captures --------------------------------------------------------------------------------------------


async def capture(conn: Connection, id: UUID, *, user_id: int | None = None) -> Capture:
    """A capture session, and all that came of it; or `NotFound`."""
    which = {"id": id}
    async with looks.one_moment(conn):
        summary = await _session(conn, id, user_id)
        images = await looks.rows(conn, Image, queries.IMAGES, which)
        claims = await looks.rows(conn, Attempt, queries.ATTEMPTS, which)
        versions = await looks.rows(conn, Version, queries.VERSION_OF, which)
        events = await looks.events(conn, queries.EVENTS_OF, which)
        told: list[NotificationSummary] = []
        if events:  # without one there is nothing to tell
            told = await _told(conn, summary, events[0].schedule_date)
    return Capture(
        summary=summary,
        images=tuple(images),
        attempts=tuple(claims),
        version=next(iter(versions), None),
        events=events,
        notifications=tuple(reversed(told)),
    )


async def captures(
    conn: Connection,
    *,
    user_id: int | None = None,
    state: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Listed[CaptureSummary]:
    """A page of capture sessions, the newest first: one user's, or everybody's."""
    reading.must_lie(limit, looks.PAGE)
    params = looks.given({"user_id": _user(user_id), "state": _among("state", STATES, state)})
    shape = list(params)
    if cursor is not None:
        params["before"], params["before_id"] = cursors.decode(cursor, (cursors.moment, cursors.uuid))
        shape.append("before")
    found = await looks.rows(conn, CaptureSummary, queries.captures(shape), params | {"limit": limit + 1})
    return looks.listed(found, limit, lambda last: cursors.encode(last.created_at, last.id))


async def attempts(conn: Connection, session_id: UUID, *, user_id: int | None = None) -> tuple[Attempt, ...]:
    """The claims of a session, the first one first; or `NotFound`."""
    async with looks.one_moment(conn):
        await _session(conn, session_id, user_id)
        return tuple(await looks.rows(conn, Attempt, queries.ATTEMPTS, {"id": session_id}))


# -- messages --------------------------------------------------------------------------------------------


async def notice(conn: Connection, id: str, *, user_id: int | None = None) -> Notification:
    """A message with all its tries; or `NotFound`."""
    which = looks.given({"id": intake.clean_text("id", id), "user_id": _user(user_id)})
    async with looks.one_moment(conn):
        query = queries.notices(which)
        found = await looks.rows(conn, NotificationSummary, query, which | {"limit": 1})
        if not found:
            raise NotFound(what="notification", id=id)
        tries = await looks.rows(conn, Try, queries.TRIES, which)
    return Notification(summary=found[0], tries=tuple(tries))


async def notices(
    conn: Connection,
    *,
    user_id: int | None = None,
    status: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Listed[NotificationSummary]:
    """A page of messages, the newest first: one user's, or everybody's."""
    reading.must_lie(limit, looks.PAGE)
    params = looks.given({"user_id": _user(user_id), "status": _among("status", STATUSES, status)})
    shape = list(params)
    if cursor is not None:
        params["before"], params["before_id"] = cursors.decode(cursor, (cursors.moment, cursors.words))
        shape.append("before")
    query = queries.notices(shape)
    found = await looks.rows(conn, NotificationSummary, query, params | {"limit": limit + 1})
    return looks.listed(found, limit, lambda last: cursors.encode(last.created_at, last.id))


# -- small pieces ----------------------------------------------------------------------------------------


async def _session(conn: Connection, id: UUID, user_id: int | None) -> CaptureSummary:
    which: dict[str, Any] = looks.given({"id": id, "user_id": _user(user_id)})
    found = await looks.rows(conn, CaptureSummary, queries.captures(which), which | {"limit": 1})
    if not found:
        raise NotFound(what="capture", id=id)
    return found[0]


async def _told(conn: Connection, session: CaptureSummary, day: date) -> list[NotificationSummary]:
    """The messages of a session: by its user and day, for which there is an index."""
    which = {"user_id": session.user_id, "day": day, "session_id": session.id}
    return await looks.rows(conn, NotificationSummary, queries.notices(which), which | {"limit": MOST})


def _user(user_id: int | None) -> int | None:
    return None if user_id is None else looks.user(user_id)


def _among(field: str, words: tuple[str, ...], word: str | None) -> str | None:
    if word is not None and word not in words:
        raise InvalidInput(field=field, message=f"must be one of {', '.join(words)}, not {word!r}")
    return word
