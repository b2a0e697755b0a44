"""Rows of `schedule_ingest` written by plain SQL, as the other service writes them."""

from __future__ import annotations

from datetime import date
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg

Database = psycopg.Connection[tuple[Any, ...]]

USER, OTHER = 7, 8
DAY = date(2026, 3, 2)
STATES = ("pending", "processing", "done", "failed")
TABLES = (
    "capture_session",
    "capture_image",
    "day_schedule",
    "schedule_version",
    "day_snapshot",
    "schedule_event",
    "schedule_notification",
    "capture_attempt",
    "notification_attempt",
    "day_origin",
)

MOVE: LiteralString = "update schedule_ingest.capture_session set state = %s where id = %s"
WAITING: LiteralString = """
select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
"""
SESSION: LiteralString = """
insert into schedule_ingest.capture_session (id, user_id, state, created_at, error, locked_by)
values (%s, %s, %s, now(), %s, %s)
"""
IMAGE: LiteralString = """
insert into schedule_ingest.capture_image (id, session_id, sequence, r2_key, telegram_message_id, created_at)
values (%s, %s, %s, %s, %s, now())
"""
VERSION: LiteralString = """
insert into schedule_ingest.schedule_version
    (user_id, schedule_date, version, session_id, payload, payload_hash, created_at)
values (%s, %s, %s, %s, %s, 'hash', now())
"""
EVENT: LiteralString = """
insert into schedule_ingest.schedule_event
    (event_id, user_id, schedule_date, event_type, location_fingerprint, customer_fingerprint,
    old_value_hash, new_value_hash, detected_at, source_session_id)
values (%s, %s, %s, %s, 'place', 'customer', 'old', %s, now(), %s)
"""
SNAPSHOT: LiteralString = "insert into schedule_ingest.day_snapshot values (%s, %s, %s, %s, now())"
NOTICE: LiteralString = """
insert into schedule_ingest.schedule_notification
    (notification_id, user_id, schedule_date, source_session_id, status, notification_type, message,
    event_ids, created_at, sent_at)
values (%s, %s, %s, %s, %s, %s, 'New shift', %s, now(), %s)
"""


def session(db: Database, state: str = "pending", user: int = USER, error: str | None = None) -> UUID:
    """A session in this state."""
    made = uuid4()
    db.execute(SESSION, [made, user, state, error, "w/1" if state == "processing" else None])
    return made


def image(
    db: Database, session_id: UUID, sequence: int = 1, key: str | None = None, message: int | None = None
) -> UUID:
    """An image of a session, with a key of its own unless one is said."""
    made = uuid4()
    db.execute(IMAGE, [made, session_id, sequence, key or str(made), message])
    return made


def version(
    db: Database,
    number: int | None,
    session_id: UUID | None = None,
    *,
    user: int = USER,
    day: date = DAY,
    payload: str = "{}",
) -> UUID:
    """A version of the day, by a session that is processing unless one is said."""
    by = session_id or session(db, "processing", user)
    db.execute(VERSION, [user, day, number, by, payload])
    return by


def event(
    db: Database, *, user: int = USER, day: date = DAY, type: str = "shift_added", new: str = "new"
) -> UUID:
    """A recorded change of the day."""
    made = uuid4()
    db.execute(EVENT, [made, user, day, type, new, uuid4()])
    return made


def snapshot(db: Database, *, user: int = USER, day: date = DAY, payload: str = "[]") -> None:
    """What is known of the day."""
    db.execute(SNAPSHOT, [user, day, payload, uuid4()])


def notice(
    db: Database,
    *,
    user: int = USER,
    status: str = "pending",
    type: str = "event",
    event_ids: str = "[]",
    sent_at: str | None = None,
) -> str:
    """A message to the user."""
    made = uuid4().hex
    db.execute(NOTICE, [made, user, DAY, uuid4(), status, type, event_ids, sent_at])
    return made


def everything(db: Database, user: int, day: date = DAY) -> UUID:
    """One row of this user in every table; answers the session."""
    key = session(db, "processing", user)
    image(db, key, message=1)
    version(db, 1, key, user=user, day=day)
    event(db, user=user, day=day)
    snapshot(db, user=user, day=day)
    told = notice(db, user=user)
    db.execute(
        "insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at)"
        " values (%s, 1, 'w', now())",
        [key],
    )
    db.execute(
        "insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at)"
        " values (%s, 1, now())",
        [told],
    )
    db.execute(
        "insert into schedule_ingest.day_origin select user_id, schedule_date, snapshot_payload, updated_at"
        " from schedule_ingest.day_snapshot where user_id = %s and schedule_date = %s",
        [user, day],
    )
    return key


def all_rows(db: Database) -> dict[str, list[tuple[Any, ...]]]:
    """All that is in the tables, in one order."""
    return {
        table: sorted(db.execute(f"select * from schedule_ingest.{table}".encode()).fetchall(), key=repr)
        for table in TABLES
    }


def scalar(db: Database, query: LiteralString, *values: Any) -> Any:
    """The first value of the first row."""
    row = db.execute(query, values).fetchone()
    assert row
    return row[0]
