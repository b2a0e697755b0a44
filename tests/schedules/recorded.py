"""Days in the record, written row by row with the times that a test wants, by the rules of the pipeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from holdfast.apps.schedules import canonical, events, messages, shifts
from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.values import Event, Slot
from holdfast.db.pool import Connection

DAY = date(2026, 3, 2)
MORNING = datetime(2026, 3, 1, 8, tzinfo=UTC)  # the day before, everywhere on earth


def entry(start: str, end: str = "18:00", title: str = "Marie Sjöberg", **more: str) -> dict[str, str]:
    """A line of a day, in Billdal unless another place is said."""
    return {"start": start, "end": end, "title": title, "location": "Billdal", **more}


def at(minutes: float) -> datetime:
    """A time of that morning."""
    return MORNING + timedelta(minutes=minutes)


async def session(
    conn: Connection, user_id: int, *, created: datetime = MORNING, images: int = 0, id: UUID | None = None
) -> UUID:
    """A session with its images that a worker has claimed."""
    key = id or uuid4()
    await conn.execute(
        "insert into schedule_ingest.capture_session (id, user_id, created_at) values (%s, %s, %s)",
        (key, user_id, created),
    )
    for sequence in range(1, images + 1):
        await conn.execute(
            "insert into schedule_ingest.capture_image (session_id, sequence, r2_key, created_at)"
            " values (%s, %s, %s, %s)",
            (key, sequence, f"{key}/{sequence}.png", created),
        )
    await conn.execute(
        "update schedule_ingest.capture_session set state = 'processing', locked_by = 'host-1-a/7',"
        " locked_at = now() where id = %s",
        (key,),
    )
    await conn.execute(
        "insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at)"
        " values (%s, 1, 'host-1-a', %s)",
        (key, created),
    )
    return key


async def observe(
    conn: Connection,
    user_id: int,
    entries: Sequence[dict[str, str]],
    *,
    at: datetime = MORNING,
    day: date = DAY,
    images: int = 0,
    today: date | None = None,
    created: datetime | None = None,
) -> UUID:
    """A session that saw the day like this; its version, events, snapshot and messages are there."""
    payload = canonical.canonical({"schedule_date": day.isoformat(), "entries": list(entries)})
    async with conn.transaction():
        key = await session(conn, user_id, created=created or at, images=images)
        changed = await _version(conn, user_id, day, key, payload, at)
        await _events(conn, user_id, day, key, payload, at, today)
        await conn.execute(
            "update schedule_ingest.capture_session set state = 'done', locked_by = null, locked_at = null"
            " where id = %s",
            (key,),
        )
        await conn.execute(
            "update schedule_ingest.capture_attempt set ended_at = %s, outcome = %s where session_id = %s",
            (at, "done" if changed else "unchanged", key),
        )
    return key


async def _version(
    conn: Connection, user_id: int, day: date, session_id: UUID, payload: Any, at: datetime
) -> bool:
    last = await all_of(
        conn,
        "select version, payload_hash from schedule_ingest.schedule_version"
        " where user_id = %s and schedule_date = %s order by version desc limit 1",
        *(user_id, day),
    )
    number, known = last[0] if last else (0, None)
    hashed = canonical.payload_hash(payload)
    if hashed == known:
        return False
    await conn.execute(
        "insert into schedule_ingest.schedule_version"
        " (user_id, schedule_date, version, session_id, payload, payload_hash, created_at)"
        " values (%s, %s, %s, %s, %s, %s, %s)",
        (user_id, day, number + 1, session_id, json.dumps(payload), hashed, at),
    )
    return True


async def _events(
    conn: Connection,
    user_id: int,
    day: date,
    session_id: UUID,
    payload: Any,
    at: datetime,
    today: date | None,
) -> None:
    of_day = (user_id, day)
    ((known,),) = await all_of(
        conn,
        "select coalesce((select snapshot_payload from schedule_ingest.day_snapshot"
        " where user_id = %s and schedule_date = %s), '[]')",
        *of_day,
    )
    found = diff([shifts.from_json(value) for value in known], shifts.shifts(payload))
    rows = await all_of(
        conn,
        "select location_fingerprint, event_type, old_value_hash, new_value_hash, source_session_id"
        " from schedule_ingest.schedule_event where user_id = %s and schedule_date = %s",
        *of_day,
    )
    taken = {
        Slot(location_fingerprint=place, type=kind, old_hash=old, new_hash=new): holder
        for place, kind, old, new, holder in rows
    }
    happened, missing = events.record(
        found.changes, user_id=user_id, day=day, session_id=session_id, detected_at=at, taken=taken
    )
    for event in missing:
        await add_event(conn, event)
    await conn.execute(
        "insert into schedule_ingest.day_snapshot values (%s, %s, %s, %s, %s)"
        " on conflict (user_id, schedule_date) do update set snapshot_payload = excluded.snapshot_payload,"
        " source_session_id = excluded.source_session_id, updated_at = excluded.updated_at",
        (*of_day, json.dumps([shifts.to_json(shift) for shift in found.snapshot]), session_id, at),
    )
    for notice in messages.notices(happened, threshold=3, today=today):
        await conn.execute(
            "insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date,"
            " source_session_id, notification_type, message, event_ids, created_at)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                *(notice.id, user_id, day, session_id, notice.type, notice.message),
                *(json.dumps([str(one) for one in notice.event_ids]), at),
            ),
        )


async def add_event(conn: Connection, event: Event) -> None:
    """The row of an event."""
    old, new = (_json(value) for value in (event.old, event.new))
    await conn.execute(
        "insert into schedule_ingest.schedule_event (event_id, user_id, schedule_date, event_type,"
        " location_fingerprint, customer_fingerprint, old_value_hash, new_value_hash, old_value, new_value,"
        " detected_at, source_session_id) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            *(event.id, event.user_id, event.schedule_date, event.type, event.location_fingerprint),
            *(event.customer_fingerprint, event.old_hash, event.new_hash, old, new),
            *(event.detected_at, event.session_id),
        ),
    )


def _json(shift: Any) -> str | None:
    return None if shift is None else json.dumps(shifts.to_json(shift))


async def all_of(conn: Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """What the database itself says."""
    cursor = await conn.execute(query.encode(), values or None)
    return await cursor.fetchall() if cursor.description else []


async def forge(conn: Connection, statement: str, *values: Any) -> None:
    """Does what no trigger allows, as only a superuser can: the record is not true any more."""
    async with conn.transaction():
        await conn.execute("set local session_replication_role = replica")
        cursor = await conn.execute(statement.encode(), values or None)
        assert cursor.rowcount, "nothing was forged"
