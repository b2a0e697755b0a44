"""The table `tasks`, described for SQLAlchemy Core. Never runs SQL, never names a schema.

Columns, defaults and names are the seed's; `fence`, `traceparent`, `idx_tasks_due_retry`,
`idx_tasks_held`, `idx_tasks_created_at` and the indexes by type (`idx_tasks_claimable_by_type`,
`idx_tasks_due_retry_by_type`) are ours.
The trigger that moves `updated_at` is in the migration: Core has no word for it. Times are UTC.
"""

from __future__ import annotations

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Column,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM, JSONB

from holdfast.db.tables import metadata

task_status = ENUM(
    "pending",
    "claimed",
    "running",
    "completed",
    "failed",
    "dead_letter",
    name="task_status",
    metadata=metadata,
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=text("gen_random_uuid()")),
    Column("type", Text, nullable=False),
    Column("payload", JSONB),
    Column[str]("status", task_status, nullable=False, server_default=text("'pending'")),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("idempotency_key", Text),
    Column("worker_id", Text),
    Column("created_at", TIMESTAMP, nullable=False, server_default=text("now()")),
    Column("claimed_at", TIMESTAMP),
    Column("started_at", TIMESTAMP),
    Column("completed_at", TIMESTAMP),
    Column("updated_at", TIMESTAMP, nullable=False, server_default=text("now()")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("max_retries", Integer, nullable=False, server_default=text("3")),
    Column("last_error", Text),
    Column("next_retry_at", TIMESTAMP),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("traceparent", Text),
    UniqueConstraint("type", "idempotency_key", name="unique_idempotency_key"),
    Index(
        "idx_tasks_claimable",
        text("priority desc"),
        "created_at",
        postgresql_where=text("status = 'pending' and next_retry_at is null"),
    ),
    Index(
        "idx_tasks_due_retry",
        text("priority desc"),
        "next_retry_at",
        postgresql_where=text("status = 'pending' and next_retry_at is not null"),
    ),
    Index(
        "idx_tasks_claimable_by_type",
        "type",
        text("priority desc"),
        "created_at",
        postgresql_where=text("status = 'pending' and next_retry_at is null"),
    ),
    Index(
        "idx_tasks_due_retry_by_type",
        "type",
        text("priority desc"),
        "next_retry_at",
        postgresql_where=text("status = 'pending' and next_retry_at is not null"),
    ),
    Index("idx_tasks_status", "status"),
    Index("idx_tasks_created_at", "created_at"),
    Index("idx_tasks_type_status", "type", "status"),
    Index("idx_tasks_worker_id", "worker_id", postgresql_where=text("worker_id is not null")),
    Index("idx_tasks_held", "worker_id", postgresql_where=text("status in ('claimed', 'running')")),
)
