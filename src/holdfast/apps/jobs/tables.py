"""The tables `job` and `job_event`, described for SQLAlchemy Core. Never runs SQL, never names a schema.

Columns, defaults and names are the seed's; `queue`, `run_at`, `payload`, `worker_id`, `fence`, `traceparent`,
`seq` and the indexes `idx_job__claimable`, `idx_job__claimable_by_type`, `idx_job__held` and
`idx_job__created_at` are ours. Triggers, roles and policies are in the migration: Core has no word for them.
"""

from __future__ import annotations

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM, JSONB
from sqlalchemy.schema import conv

from holdfast.db.tables import metadata

job_status = ENUM(
    "queued",
    "running",
    "succeeded",
    "failed",
    "canceled",
    "dead_letter",
    name="job_status",
    metadata=metadata,
)

job_backoff_policy = ENUM("none", "fixed", "exp", name="job_backoff_policy", metadata=metadata)

moment = TIMESTAMP(timezone=True)

job = Table(
    "job",
    metadata,
    Column("id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("org_id", Uuid, nullable=False),
    Column("type", String(100), nullable=False),
    Column[str]("status", job_status, nullable=False, server_default=text("'queued'")),
    Column("attempt", Integer, nullable=False, server_default=text("0")),
    Column("max_attempts", Integer, nullable=False, server_default=text("5")),
    Column[str]("backoff_policy", job_backoff_policy, nullable=False, server_default=text("'exp'")),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("idempotency_key", String(255)),
    Column("requested_by", String(255)),
    Column("created_at", moment, nullable=False, server_default=text("now()")),
    Column("updated_at", moment, nullable=False, server_default=text("now()")),
    Column("started_at", moment),
    Column("finished_at", moment),
    Column("last_error_code", String(64)),
    Column("last_error_message", String(2048)),
    Column("queue", Text, nullable=False, server_default=text("'default'")),
    Column("run_at", moment, nullable=False, server_default=text("now()")),
    Column("payload", JSONB),
    Column("worker_id", Text),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("traceparent", Text),
    PrimaryKeyConstraint("id", name="pk_job"),
    CheckConstraint(
        text("(finished_at is not null) = (status in ('succeeded', 'canceled', 'dead_letter'))"),
        name=conv("ck_job__status_finished_at_consistency"),
    ),
    Index("idx_job__job_org_id", "org_id"),
    Index("idx_job__org_id_created_at_desc", "org_id", text("created_at desc")),
    Index(
        "idx_job__org_id_idempotency_key",
        "org_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key is not null"),
    ),
    Index("idx_job__status_created_at", "status", "created_at"),
    Index("idx_job__created_at", "created_at"),
    Index(
        "idx_job__claimable",
        "queue",
        text("priority desc"),
        "run_at",
        postgresql_where=text("status in ('queued', 'failed')"),
    ),
    Index(
        "idx_job__claimable_by_type",
        "queue",
        "type",
        text("priority desc"),
        "run_at",
        postgresql_where=text("status in ('queued', 'failed')"),
    ),
    Index("idx_job__held", "worker_id", postgresql_where=text("status = 'running'")),
)

job_event = Table(
    "job_event",
    metadata,
    Column("id", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("job_id", Uuid, nullable=False),
    Column("ts", moment, nullable=False, server_default=text("now()")),
    Column("prev_status", String(50)),
    Column("next_status", String(50), nullable=False),
    Column("detail_json", JSONB),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    PrimaryKeyConstraint("id", name="pk_job_event"),
    ForeignKeyConstraint(["job_id"], ["job.id"], name="fk_job_event_job_job_id", ondelete="CASCADE"),
    Index("idx_job_event__job_id_ts", "job_id", "ts"),
    Index("idx_job_event__ts", "ts"),
)
