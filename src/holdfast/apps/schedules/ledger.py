"""Capture sessions, which a contract with another service fixes, and the outbox of messages."""

from __future__ import annotations

from psycopg.sql import SQL

from holdfast.apps.schedules import queries
from holdfast.db.schedule_settings import ScheduleSettings
from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import (
    UUID_KEY,
    Column,
    Idempotency,
    Key,
    Lane,
    RowLease,
    Tenant,
    TextError,
    Times,
    Tries,
)

SCHEMA = "schedule_ingest"
SESSIONS, NOTICES = "capture_session", "schedule_notification"
ERROR_LENGTH = 4000

USER = Tenant("user_id", "bigint")


def sessions(settings: ScheduleSettings, *, alone: bool = True, hasty: bool = False) -> Ledger:
    """The ledger of sessions: a lease by `locked_by` and `locked_at`, and no column of ours.

    A session is ready when its pictures have stopped coming; `alone`: also one that has none. `hasty`: any
    that is pending.
    """
    lease, lost = settings.schedules_lease_timeout_seconds, SQL(queries.LOST)
    idle = settings.schedules_idle_timeout_seconds
    quiet = SQL(queries.QUIET).format(
        alone=SQL("t.created_at") if alone else SQL("null::timestamptz"), seconds=float(idle)
    )
    in_order = SQL(queries.IN_ORDER).format(
        lease=float(lease), ready=SQL("true") if alone else SQL(queries.SHOWN)
    )
    ready = [*([] if hasty else [quiet]), *([in_order] if settings.schedules_user_order else [])]
    stale = SQL(queries.STALE).format(lease=float(lease), lost=lost, most=settings.schedules_max_lost)
    waits = f"until no picture has come for {idle} s" if not hasty else "while"
    order = " and no older session of its user waits" if settings.schedules_user_order else ""
    return Ledger(
        name=SESSIONS,
        table=f"{SCHEMA}.{SESSIONS}",
        key=UUID_KEY,
        kind=None,
        payload=None,
        state="state",
        state_type=f"{SCHEMA}.capture_session_state",
        states=("pending", "processing", "done", "failed"),
        ends=("done", "failed"),
        edges=(
            Edge("enqueue", to="pending"),
            Edge("claim", frm=("pending",), to="processing"),
            Edge("claim", frm=("processing",), to="processing"),
            Edge("finish", frm=("processing",), to="done"),
            Edge("exhaust", frm=("processing",), to="failed"),
            Edge("reject", frm=("processing",), to="failed"),
            Edge("release", frm=("processing",), to="pending"),
            Edge("cancel", frm=("pending",), to="failed"),
            Edge("requeue", frm=("failed",), to="pending"),
        ),
        lanes=(
            Lane(
                "pending",
                states=("pending",),
                order=("created_at", "id"),
                where=SQL(" and ").join(ready) if ready else None,
                why=waits + order,
            ),
            Lane(
                "stale",
                states=("processing",),
                order=("created_at", "id"),
                turn=1,
                where=SQL(" and ").join([stale, *([in_order] if settings.schedules_user_order else [])]),
            ),
        ),
        owner="locked_by",
        lease=RowLease("locked_at", seconds=lease, every=settings.schedules_heartbeat_seconds),
        tenant=USER,
        tries=Tries(lost, limit=settings.schedules_max_lost),
        errors=TextError("error", length=ERROR_LENGTH, coded=True, cleared_by_requeue=True),
        times=Times(created="created_at"),
        cancelled_text="called off by a person",
        unknown_kind="leave",
        beside={
            "claim": queries.CLAIMED,
            "finish": queries.FINISHED,
            "exhaust": queries.FAILED,
            "reject": queries.FAILED,
            "release": queries.RELEASED,
            "cancel": queries.CANCELLED,
            "requeue": queries.REQUEUED,
        },
    )


def notices(settings: ScheduleSettings) -> Ledger:
    """The outbox of messages, which another service may drain as well: its claim is a row lock."""
    return Ledger(
        name=NOTICES,
        table=f"{SCHEMA}.{NOTICES}",
        key=Key("notification_id", "text"),
        kind=None,
        payload=("notification_type", "message", "event_ids"),
        states=("pending", "sent", "failed"),
        ends=("sent", "failed"),
        edges=(
            Edge("enqueue", to="pending"),
            Edge("claim", frm=("pending",), to="pending"),
            Edge("finish", frm=("pending",), to="sent"),
            Edge("retry", frm=("pending",), to="pending"),
            Edge("exhaust", frm=("pending",), to="failed"),
            Edge("reject", frm=("pending",), to="failed"),
            Edge("cancel", frm=("pending",), to="failed"),
            Edge("requeue", frm=("failed",), to="pending"),
        ),
        lanes=(
            Lane(
                "pending",
                states=("pending",),
                order=("created_at", "notification_id"),
                where=SQL(queries.TIMELY),
                why="until its next try is due, and no earlier message to its user waits",
            ),
        ),
        owner=None,
        tenant=USER,
        extras=(Column("schedule_date", "date"), Column("source_session_id", "uuid")),
        tries=Tries(SQL(queries.TRIED), limit=settings.schedules_delivery_max_attempts),
        backoff=Backoff(base=5, cap=900, jitter=0),
        times=Times(created="created_at", finished="sent_at", finished_well=True),
        idempotency=Idempotency("notification_id", repeat="return"),
        unknown_kind="leave",
        door="the worker that reads sessions: a message follows from what has changed",
        beside={
            "finish": queries.SENT,
            "retry": queries.DELAYED,
            "exhaust": queries.REFUSED,
            "reject": queries.REFUSED,
            "requeue": queries.RESENT,
        },
    )


CAPTURE_SESSIONS = sessions(ScheduleSettings())
NOTIFICATIONS = notices(ScheduleSettings())
