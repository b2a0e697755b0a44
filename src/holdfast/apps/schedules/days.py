"""What is known of a person's days: now, at a time, and how it came about. Only `rebuild` and `erase` write.

Every function takes a connection. Where `user_id` may be given, another user's rows do not exist. Whatever
several statements read is read at one moment, unless the caller is in a transaction of his own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any
from uuid import UUID

from psycopg.errors import (
    DeadlockDetected,
    InsufficientPrivilege,
    LockNotAvailable,
    QueryCanceled,
    SerializationFailure,
)

from holdfast.apps.schedules import cursors, looks
from holdfast.apps.schedules import days_queries as queries
from holdfast.apps.schedules.align import aligned
from holdfast.apps.schedules.canonical import canonical, lock_key
from holdfast.apps.schedules.captures import attempts as attempts
from holdfast.apps.schedules.captures import capture as capture
from holdfast.apps.schedules.captures import captures as captures
from holdfast.apps.schedules.captures import notice as notice
from holdfast.apps.schedules.captures import notices as notices
from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.record import (
    CaptureSummary,
    Comparison,
    Day,
    DaySummary,
    History,
    Listed,
    NotificationSummary,
    Version,
)
from holdfast.apps.schedules.replay import ReplayError, replay
from holdfast.apps.schedules.shifts import COMPANY_WORDS, from_json, shifts, to_json
from holdfast.apps.schedules.spelling import with_accents
from holdfast.apps.schedules.values import Event, Json, Payload, Refusal, Shift
from holdfast.apps.schedules.verify import verify as verify
from holdfast.engine import intake, reading
from holdfast.engine.store import Connection
from holdfast.errors import Conflict, NotAllowed, NotFound

MOST = 500  # versions, events or messages of one history
TRIES = 5  # of an erasure that new sessions of the user get in the way of


# -- days ------------------------------------------------------------------------------------------------


async def day(conn: Connection, user_id: int, day: date, *, at: datetime | None = None) -> Day:
    """A day as it is known now, or was known at a time; `NotFound` if it was never seen until then."""
    whose = looks.user(user_id)
    if at is None:
        return await _now(conn, whose, day)
    moment = intake.aware("at", at)
    which = {"user_id": whose, "day": day, "at": moment}
    async with looks.one_moment(conn):
        versions = await looks.rows(conn, Version, queries.VERSION_AT, which)
        events = await looks.events(conn, queries.EVENTS_UNTIL, which)
        origin = await _origin(conn, which)
    if origin.until is not None and moment < origin.until:
        until = origin.until.isoformat().replace("+00:00", "Z")
        message = f"what it was before {until} is not told any more: its events were evicted"
        raise Conflict(what=f"user {whose} on {day}", message=message)
    version, last = next(iter(versions), None), _last(versions, events)
    if last is None:
        raise _unknown(whose, day)
    return Day(
        user_id=whose,
        schedule_date=day,
        at=moment,
        version=version and version.version,
        shifts=_replayed(events, origin),
        session_id=last.session_id,
        updated_at=last.at,
        payload=version and version.payload,
        payload_hash=version and version.payload_hash,
    )


async def days(
    conn: Connection,
    *,
    user_id: int | None = None,
    since: date | None = None,
    until: date | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Listed[DaySummary]:
    """A page of days, the latest date first: one user's, or everybody's. Both ends of the range are in it."""
    reading.must_lie(limit, looks.PAGE)
    whose = None if user_id is None else looks.user(user_id)
    params = looks.given({"user_id": whose, "since": since, "until": until})
    shape = list(params)
    if cursor is not None:
        params["before"], params["before_user"] = cursors.decode(cursor, (cursors.day, cursors.number))
        shape.append("before")
    found = await looks.rows(conn, DaySummary, queries.days(shape), params | {"limit": limit + 1})
    return looks.listed(found, limit, lambda last: cursors.encode(last.schedule_date, last.user_id))


async def count(conn: Connection, *, user_id: int | None = None) -> int:
    """How many days there are, one user's or everybody's. Reads them all."""
    whose = None if user_id is None else looks.user(user_id)
    ((number,),) = await (await conn.execute(queries.COUNT_DAYS, {"user_id": whose})).fetchall()
    return number


async def history(conn: Connection, user_id: int, day: date, *, limit: int = MOST) -> History:
    """The versions, events and messages of a day, and the captures behind them; or `NotFound`."""
    reading.must_lie(limit, MOST)
    whose = looks.user(user_id)
    which: dict[str, Any] = {"user_id": whose, "day": day, "limit": limit + 1}
    async with looks.one_moment(conn):
        versions = await looks.rows(conn, Version, queries.LAST_VERSIONS, which)
        events = await looks.events(conn, queries.LAST_EVENTS, which)
        notes = await looks.rows(conn, NotificationSummary, queries.notices(("user_id", "day")), which)
        if not (versions or events or notes):
            raise _unknown(whose, day)
        behind = {one.session_id for one in (*versions, *events, *notes)}
        behind |= {one.session_id for one in await _stored(conn, whose, day) if one.session_id}
        these = {"ids": list(behind), "user_id": whose, "limit": len(behind)}
        sessions = await looks.rows(conn, CaptureSummary, queries.captures(("ids", "user_id")), these)
    return History(
        user_id=whose,
        schedule_date=day,
        versions=tuple(reversed(versions[:limit])),
        events=events[-limit:],
        notifications=tuple(reversed(notes[:limit])),
        captures=tuple(reversed(sessions)),
        cut=any(len(found) > limit for found in (versions, events, notes)),
    )


async def compare(
    conn: Connection,
    user_id: int,
    day: date,
    one: int,
    other: int,
    *,
    company_words: Sequence[str] = COMPANY_WORDS,
) -> Comparison:
    """Two versions of a day side by side; `NotFound` for one that there is not.

    What the difference means is judged by these two alone: the events have compared each version with the
    day as it was known, where a mere wobble of spelling never enters.
    """
    whose = looks.user(user_id)
    numbers = [intake.typed("version", "integer", number) for number in (one, other)]
    which = {"user_id": whose, "day": day, "versions": numbers}
    found = {row.version: row for row in await looks.rows(conn, Version, queries.VERSIONS, which)}
    for number in numbers:
        if number not in found:
            raise NotFound(what=f"version of user {whose} on {day}", id=number)
    before, after = (_payload(found[number]) for number in numbers)
    old, new = (shifts(payload, company_words) for payload in (before, after))
    return Comparison(
        one=found[numbers[0]],
        other=found[numbers[1]],
        lines=aligned(before["entries"], after["entries"]),
        changes=with_accents(diff(old, new).changes, before, after, company_words),
    )


# -- writing ---------------------------------------------------------------------------------------------


async def rebuild(conn: Connection, user_id: int, day: date) -> Day:
    """Writes the snapshot of a day anew from its events, under the lock by which sessions write it.

    Its source and time stay those of the last observation: one that changed nothing has left no event, but
    an older session must not come after it. `Conflict` where the events contradict one another.
    """
    whose = looks.user(user_id)
    which: dict[str, Any] = {"user_id": whose, "day": day}
    async with conn.transaction():
        await conn.execute(queries.LOCK_DAY, {"key": lock_key(whose, day)})
        events = await looks.events(conn, queries.EVENTS, which)
        versions = await looks.rows(conn, Version, queries.LAST_VERSIONS, which | {"limit": 1})
        last = _last(versions, events)
        for stored in await _stored(conn, whose, day):
            if stored.session_id and stored.updated_at and await _is_of(conn, stored.session_id, whose):
                seen = _Seen(stored.updated_at, stored.session_id)
                last = seen if last is None else max(last, seen, key=lambda one: one.at)
        if last is None:
            raise _unknown(whose, day)
        rebuilt = _replayed(events, await _origin(conn, which))
        snapshot = json.dumps([to_json(shift) for shift in rebuilt])
        row = {"snapshot": snapshot, "session_id": last.session_id, "updated_at": last.at}
        await conn.execute(queries.REBUILD, which | row)
        return await _now(conn, whose, day)


async def erase(conn: Connection, user_id: int) -> dict[str, int]:
    """Removes every row of a user, in one transaction; answers how many, by table.

    What comes in meanwhile makes it begin again; `Conflict` when that does not end, or somebody keeps a row.
    """
    whose = looks.user(user_id)
    for _ in range(TRIES):
        try:
            async with conn.transaction():
                cursor = await conn.execute(queries.ERASE, {"user_id": whose})
                ((counts,),) = await cursor.fetchall()
                return dict(counts)
        except (SerializationFailure, DeadlockDetected):
            continue
        except (LockNotAvailable, QueryCanceled):
            told = "has rows that somebody is writing or sending: nothing was erased, try again in a minute"
            raise Conflict(what=f"user {whose}", message=told) from None
        except InsufficientPrivilege:
            raise NotAllowed(message="only the owner of schedule_ingest.erase(user) may erase") from None
    raise Conflict(what=f"user {whose}", message="is still sending: nothing was erased, try again later")


# -- small pieces ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A day as its rows have it."""

    version: int | None
    payload: Json
    payload_hash: str | None
    snapshot: Json
    session_id: UUID | None
    updated_at: datetime | None


@dataclass(frozen=True)
class _Seen:
    """When a day was observed, and by which session."""

    at: datetime
    session_id: UUID


@dataclass(frozen=True, kw_only=True)
class _Origin:
    """The day before its events, where earlier ones were evicted: what it was, and until when they were."""

    shifts: Json = ()
    until: datetime | None = None


async def _origin(conn: Connection, which: Mapping[str, Any]) -> _Origin:
    return next(iter(await looks.rows(conn, _Origin, queries.ORIGIN, which)), _Origin())


async def _stored(conn: Connection, user_id: int, day: date) -> list[_Stored]:
    return await looks.rows(conn, _Stored, queries.DAY, {"user_id": user_id, "day": day})


async def _now(conn: Connection, user_id: int, day: date) -> Day:
    (found,) = await _stored(conn, user_id, day)
    if found.version is None and found.snapshot is None:
        raise _unknown(user_id, day)
    return Day(
        user_id=user_id,
        schedule_date=day,
        at=None,
        version=found.version,
        shifts=_read(user_id, day, found.snapshot or []),
        session_id=found.session_id,
        updated_at=found.updated_at,
        payload=found.payload,
        payload_hash=found.payload_hash,
    )


def _last(versions: Sequence[Version], events: Sequence[Event]) -> _Seen | None:
    """The last observation of which versions and events know."""
    seen = [_Seen(version.created_at, version.session_id) for version in versions]
    seen += [_Seen(event.detected_at, event.session_id) for event in events[-1:]]
    return max(seen, key=lambda one: one.at, default=None)


def _read(user_id: int, day: date, snapshot: Json) -> tuple[Shift, ...]:
    try:
        return tuple(from_json(value) for value in snapshot)
    except Refusal as error:
        message = f"cannot be read ({error.sentence}): rebuild it from its events"
        raise Conflict(what=f"the snapshot of user {user_id} on {day}", message=message) from None


def _replayed(events: Sequence[Event], origin: _Origin) -> tuple[Shift, ...]:
    try:
        return replay(events, [from_json(value) for value in origin.shifts])
    except ReplayError as error:
        what = f"the events of user {events[0].user_id} on {events[0].schedule_date}"
        raise Conflict(what=what, message=f"cannot be replayed: {error}") from None


def _payload(version: Version) -> Payload:
    """The payload in its canonical form; that of another program might have none."""
    try:
        return canonical(version.payload)
    except Refusal as error:
        what = f"version {version.version} of user {version.user_id} on {version.schedule_date}"
        raise Conflict(what=what, message=f"cannot be compared: {error}") from None


async def _is_of(conn: Connection, session_id: UUID, user_id: int) -> bool:
    cursor = await conn.execute(queries.KNOWN_SESSION, {"id": session_id, "user_id": user_id})
    ((known,),) = await cursor.fetchall()
    return known


def _unknown(user_id: int, day: date) -> NotFound:
    return NotFound(what=f"day of user {user_id}", id=day)
