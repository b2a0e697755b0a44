"""The tables of the schedules, described for SQLAlchemy Core. Never runs SQL.

They are in the schema `schedule_ingest`, whatever schema the others are in: it is a contract with another
service. Columns and constraints are that contract's; what is ours says ADDED, and none of it is a column.
Triggers, functions and grants are in the migration: Core has no word for them.
"""

from __future__ import annotations

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    CheckConstraint,
    Column,
    Date,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM, JSONB
from sqlalchemy.schema import conv

from holdfast.db.tables import metadata

SCHEMA = "schedule_ingest"

moment = TIMESTAMP(timezone=True)

capture_session_state = ENUM(
    "pending",
    "processing",
    "done",
    "failed",
    name="capture_session_state",
    schema=SCHEMA,
    metadata=metadata,
)

# To `holdfast db check`: the contract does not name the unique constraints, so their names are the owner's.
NAMED_BY_OWNER = {"named_by_owner": True}


def _session(name: str, *, unique: bool = False) -> Column[object]:
    return Column(name, Uuid, ForeignKey(f"{SCHEMA}.capture_session.id"), nullable=False, unique=unique)


capture_session = Table(
    "capture_session",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),  # ADDED: the default
    Column("user_id", BigInteger, nullable=False),
    # ADDED: the default
    Column[str]("state", capture_session_state, nullable=False, server_default=text("'pending'")),
    Column("created_at", moment, nullable=False, server_default=text("now()")),  # ADDED: the default
    Column("error", Text),
    Column("locked_at", moment),
    Column("locked_by", Text),
    CheckConstraint(text("error is null or state = 'failed'"), name=conv("ck_capture_session_error")),
    # ADDED: what a claim reads
    Index("ix_capture_session_pending", "created_at", "id", postgresql_where=text("state = 'pending'")),
    Index("ix_capture_session_stale", "locked_at", postgresql_where=text("state = 'processing'")),
    Index("ix_capture_session_held", "created_at", "id", postgresql_where=text("state = 'processing'")),
    Index("ix_capture_session_worker", "locked_by", postgresql_where=text("state = 'processing'")),
    Index(
        "ix_capture_session_user",
        "user_id",
        "created_at",
        "id",
        postgresql_where=text("state in ('pending', 'processing')"),
    ),
    # ADDED: lists, newest first
    Index("ix_capture_session_listed", "created_at", "id"),
    Index("ix_capture_session_of_user", "user_id", "created_at", "id"),
    Index("ix_capture_session_failed", "created_at", "id", postgresql_where=text("state = 'failed'")),
    schema=SCHEMA,
)

capture_image = Table(
    "capture_image",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),  # ADDED: the default
    _session("session_id"),
    Column("sequence", Integer, nullable=False),
    Column("r2_key", Text, nullable=False, unique=True),
    Column("telegram_message_id", BigInteger),
    Column("created_at", moment, nullable=False, server_default=text("now()")),  # ADDED: the default
    UniqueConstraint("session_id", "sequence", name="uq_capture_image_session_sequence"),
    CheckConstraint(text("sequence > 0"), name="sequence"),
    # ADDED: when the last one came
    Index("ix_capture_image_session_created", "session_id", text("created_at desc")),
    # ADDED: a message that is delivered again adds nothing
    Index(
        "uq_capture_image_message",
        "session_id",
        "telegram_message_id",
        unique=True,
        postgresql_where=text("telegram_message_id is not null"),
    ),
    schema=SCHEMA,
    info=NAMED_BY_OWNER,
)

day_schedule = Table(
    "day_schedule",
    metadata,
    Column("user_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schedule_date", Date, primary_key=True),
    Column("current_version", Integer, nullable=False),
    CheckConstraint(text("current_version > 0"), name="current_version"),
    # ADDED: lists, the latest day first
    Index("ix_day_schedule_listed", "schedule_date", "user_id"),
    schema=SCHEMA,
)

schedule_version = Table(
    "schedule_version",
    metadata,
    Column("user_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schedule_date", Date, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    _session("session_id", unique=True),
    Column("payload", JSONB, nullable=False),
    Column("payload_hash", Text, nullable=False),
    Column("created_at", moment, nullable=False, server_default=text("now()")),  # ADDED: the default
    CheckConstraint(text("jsonb_typeof(payload) = 'object'"), name="payload"),
    # ADDED
    CheckConstraint(text("version > 0 and payload_hash <> ''"), name=conv("ck_schedule_version")),
    # ADDED: the record of a day
    Index("ix_schedule_version_day", "user_id", "schedule_date", text("created_at desc")),
    schema=SCHEMA,
    info=NAMED_BY_OWNER,
)

day_snapshot = Table(
    "day_snapshot",
    metadata,
    Column("user_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schedule_date", Date, primary_key=True),
    Column("snapshot_payload", JSONB, nullable=False),
    Column("source_session_id", Uuid, nullable=False),
    Column("updated_at", moment, nullable=False),
    CheckConstraint(text("jsonb_typeof(snapshot_payload) = 'array'"), name="snapshot_payload"),
    schema=SCHEMA,
)

# ADDED: what the day was when its events until then were evicted
day_origin = Table(
    "day_origin",
    metadata,
    Column("user_id", BigInteger, primary_key=True, autoincrement=False),
    Column("schedule_date", Date, primary_key=True),
    Column("shifts", JSONB, nullable=False),
    Column("until", moment, nullable=False),
    CheckConstraint(text("jsonb_typeof(shifts) = 'array'"), name="shifts"),
    ForeignKeyConstraint(
        ["user_id", "schedule_date"],
        [f"{SCHEMA}.day_snapshot.user_id", f"{SCHEMA}.day_snapshot.schedule_date"],
        name=conv("day_origin_day_fkey"),
        ondelete="CASCADE",
    ),
    schema=SCHEMA,
)

schedule_event = Table(
    "schedule_event",
    metadata,
    Column("event_id", Uuid, primary_key=True),
    Column("user_id", BigInteger, nullable=False),
    Column("schedule_date", Date, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("location_fingerprint", Text, nullable=False),
    Column("customer_fingerprint", Text, nullable=False),
    Column("old_value_hash", Text, nullable=False),
    Column("new_value_hash", Text, nullable=False),
    Column("old_value", JSONB),
    Column("new_value", JSONB),
    Column("detected_at", moment, nullable=False),
    Column("source_session_id", Uuid, nullable=False),
    UniqueConstraint(
        "user_id",
        "schedule_date",
        "location_fingerprint",
        "event_type",
        "old_value_hash",
        "new_value_hash",
        name="uq_schedule_event_dedupe",
    ),
    CheckConstraint(
        text(
            "event_type in ('shift_added', 'shift_removed', 'shift_time_changed', 'shift_relocated',"
            " 'shift_retitled', 'shift_reclassified')"
        ),
        name="event_type",
    ),
    # ADDED: the record of a day, and what a session has brought
    Index("ix_schedule_event_day", "user_id", "schedule_date", text("detected_at desc")),
    Index("ix_schedule_event_session", "source_session_id"),
    schema=SCHEMA,
    info=NAMED_BY_OWNER,
)

schedule_notification = Table(
    "schedule_notification",
    metadata,
    Column("notification_id", Text, primary_key=True),
    Column("user_id", BigInteger, nullable=False),
    Column("schedule_date", Date, nullable=False),
    Column("source_session_id", Uuid, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'pending'")),  # ADDED: the default
    Column("notification_type", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("event_ids", JSONB, nullable=False),
    Column("created_at", moment, nullable=False, server_default=text("now()")),  # ADDED: the default
    Column("sent_at", moment),
    CheckConstraint(text("status in ('pending', 'sent', 'failed')"), name="status"),
    CheckConstraint(text("notification_type in ('event', 'summary')"), name="notification_type"),
    CheckConstraint(text("jsonb_typeof(event_ids) = 'array'"), name="event_ids"),
    # ADDED
    CheckConstraint(
        text("(status = 'sent') = (sent_at is not null)"), name=conv("ck_schedule_notification_sent")
    ),
    # ADDED: what delivery reads, of all and of one user
    Index(
        "ix_schedule_notification_pending",
        "created_at",
        "notification_id",
        postgresql_where=text("status = 'pending'"),
    ),
    Index(
        "ix_schedule_notification_user",
        "user_id",
        "created_at",
        "notification_id",
        postgresql_where=text("status = 'pending'"),
    ),
    # ADDED: the record of a day and of a session, and lists, newest first
    Index("ix_schedule_notification_day", "user_id", "schedule_date", text("created_at desc")),
    Index("ix_schedule_notification_session", "source_session_id"),
    Index("ix_schedule_notification_listed", "created_at", "notification_id"),
    Index("ix_schedule_notification_of_user", "user_id", "created_at", "notification_id"),
    Index(
        "ix_schedule_notification_failed",
        "created_at",
        "notification_id",
        postgresql_where=text("status = 'failed'"),
    ),
    schema=SCHEMA,
)

# ADDED: the journal of claims. It counts what a session has no column for. The one without an end goes on.
capture_attempt = Table(
    "capture_attempt",
    metadata,
    Column(
        "session_id", Uuid, ForeignKey(f"{SCHEMA}.capture_session.id", ondelete="CASCADE"), primary_key=True
    ),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("worker", Text, nullable=False),
    Column("claimed_at", moment, nullable=False),
    Column("ended_at", moment),
    Column("outcome", Text),
    CheckConstraint(text("attempt > 0"), name="attempt"),
    # what a worker did last, and those that were lost
    Index("ix_capture_attempt_worker", "worker", "claimed_at"),
    Index("ix_capture_attempt_lost", "claimed_at", postgresql_where=text("outcome = 'lost'")),
    schema=SCHEMA,
)

# ADDED: the journal of sends. It has the time of the next try.
notification_attempt = Table(
    "notification_attempt",
    metadata,
    Column(
        "notification_id",
        Text,
        ForeignKey(f"{SCHEMA}.schedule_notification.notification_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("tried_at", moment, nullable=False),
    Column("error", Text),
    Column("next_at", moment),
    CheckConstraint(text("attempt > 0"), name="attempt"),
    schema=SCHEMA,
)
