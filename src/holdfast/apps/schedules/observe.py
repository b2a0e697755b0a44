"""What one session does to its day, in one transaction: version, events, snapshot, messages, or nothing.

The caller's transaction also ends the session, so that all of it commits, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from psycopg import AsyncConnection
from psycopg.errors import LockNotAvailable, QueryCanceled
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from holdfast.apps.schedules import process_queries as queries
from holdfast.apps.schedules.canonical import canonical_json, day_of, lock_key, payload_hash
from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.events import record
from holdfast.apps.schedules.messages import notices
from holdfast.apps.schedules.shifts import from_json, shifts, to_json
from holdfast.apps.schedules.spelling import with_accents
from holdfast.apps.schedules.values import Event, Image, Json, Notice, Payload, Refusal, Session, Shift, Slot
from holdfast.db.schedule_settings import ScheduleSettings
from holdfast.engine.store import Store
from holdfast.engine.values import Item

Connection = AsyncConnection[Any]
Word = Literal["done", "unchanged", "superseded", "lost", "grown"]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What became of a session: `lost`, it is not ours any more; `grown`, it has pictures that were not read.

    Only `done` and `unchanged` have written anything.
    """

    word: Word
    version: int | None = None
    events: tuple[Event, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Known:
    """The session's pictures, the day before this observation, and the time of it."""

    images: list[UUID]
    snapshot: Json
    version: int | None
    hash: str | None
    payload: Json
    now: datetime
    late: bool


async def observe(
    conn: Connection,
    outbox: Store,
    settings: ScheduleSettings,
    session: Session,
    images: Sequence[Image],
    payload: Payload,
    *,
    owner: str | None,
) -> Observation:
    """Writes what this session saw of its day; `owner` is who holds it, `images` what was read of it."""
    day = day_of(payload)
    place: dict[str, Any] = {"user": session.user_id, "day": day, "session": session.id}
    if not await _hold(conn, lock_key(session.user_id, day), place | {"owner": owner}):
        return Observation(word="lost")
    known = await _known(conn, place)
    if set(known.images) != {image.id for image in images}:
        return Observation(word="grown")
    if known.late:
        return Observation(word="superseded")
    version = await _add_version(conn, place, known, payload)
    company_words = settings.schedules_company_words
    found = diff(_shifts(known.snapshot), shifts(payload, company_words))
    events, missing = record(
        found.changes,
        user_id=session.user_id,
        day=day,
        session_id=session.id,
        detected_at=known.now,
        taken=await _slots(conn, place) if found.changes else {},
    )
    if missing:
        told = Jsonb([_told(event) for event in missing])
        await conn.execute(queries.EVENTS, place | {"events": told, "now": known.now})
    after = {"shifts": Jsonb([to_json(shift) for shift in found.snapshot]), "now": known.now}
    await conn.execute(queries.SNAPSHOT, place | after)
    today = _today(settings, known.now)
    readable = with_accents(events, known.payload, payload, company_words)
    told = notices(readable, threshold=settings.schedules_summary_threshold, today=today)
    for number, notice in enumerate(told):  # each a little later than the one before: that is their order
        await outbox.enqueue(conn, _item(notice), now=known.now + timedelta(microseconds=number))
    changed = version is not None or bool(events)
    return Observation(
        word="done" if changed else "unchanged", version=version, events=tuple(events), notices=tuple(told)
    )


async def _hold(conn: Connection, key: int, whose: Mapping[str, Any]) -> bool:
    """Locks the day, then the session; answers whether it is still ours.

    `LockNotAvailable` where another keeps one of them: also where a statement may not take so long.
    """
    try:
        await conn.execute(queries.LOCK, {"key": key})
        return await (await conn.execute(queries.HOLD, whose)).fetchone() is not None
    except QueryCanceled as error:
        raise LockNotAvailable(f"another keeps the day or the session locked ({error})") from None


async def _add_version(
    conn: Connection, place: Mapping[str, Any], known: Known, payload: Payload
) -> int | None:
    """The number of the new version; None: it reads as the latest does, or the session has one already."""
    digest = payload_hash(payload)
    if digest == known.hash:
        return None
    wanted = (known.version or 0) + 1
    stored = Jsonb(payload, dumps=canonical_json)
    row: dict[str, Any] = {**place, "version": wanted, "payload": stored, "hash": digest, "now": known.now}
    if await (await conn.execute(queries.VERSION, row)).fetchone():
        return wanted
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.STANDING, row)
        standing = await cursor.fetchone()
    if standing and standing["session_id"] == place["session"]:
        return None  # it was written by an earlier run
    told = f"version {wanted} of this day is there already, written by somebody who did not take its lock"
    raise Refusal("version_conflict", told, "db")


async def _slots(conn: Connection, place: Mapping[str, Any]) -> dict[Slot, UUID]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.SLOTS, place)
        return {Slot(**row): session async for row in cursor if (session := row.pop("session"))}


def _told(event: Event) -> dict[str, Any]:
    return {
        "id": str(event.id),
        "type": event.type,
        "location": event.location_fingerprint,
        "customer": event.customer_fingerprint,
        "old_hash": event.old_hash,
        "new_hash": event.new_hash,
        "old": event.old and to_json(event.old),
        "new": event.new and to_json(event.new),
    }


def _shifts(snapshot: Json) -> tuple[Shift, ...]:
    """The day as it was known; a first observation knows nothing."""
    return tuple(from_json(value) for value in snapshot or ())


def _today(settings: ScheduleSettings, now: datetime) -> date | None:
    """The day that it is where the users live, if that is set."""
    zone = settings.schedules_timezone
    return now.astimezone(ZoneInfo(zone)).date() if zone else None


def _item(notice: Notice) -> Item:
    return Item(
        key=notice.id,
        tenant=notice.user_id,
        payload={
            "notification_type": notice.type,
            "message": notice.message,
            "event_ids": [str(event) for event in notice.event_ids],
        },
        extras={"schedule_date": notice.schedule_date, "source_session_id": notice.session_id},
    )


async def _known(conn: Connection, place: Mapping[str, Any]) -> Known:
    async with conn.cursor(row_factory=class_row(Known)) as cursor:
        await cursor.execute(queries.DAY, place)
        found = await cursor.fetchone()
    assert found is not None  # the session is locked by us
    return found
