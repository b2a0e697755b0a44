"""The table `system.jobs`, described for SQLAlchemy Core. Never runs SQL.

Columns up to `priority` are the text's that it comes from; what is ours says ADDED. Where Holdfast has a
schema by name, the schema `system` is called after that one: `holdfast.db.migrate` knows.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import conv

from holdfast.db.tables import metadata

NOW = text("floor(extract(epoch from clock_timestamp()) * 1000)::bigint")  # milliseconds since 1970

jobs = Table(
    "jobs",
    metadata,
    Column("id", Text, nullable=False),
    Column("job_type", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'new'")),
    Column("message", Text),
    Column("exception_trace", Text),
    Column("parameters", JSONB, nullable=False, server_default=text("'{}'")),
    Column("idempotency_key", Text),
    Column("retry_count", SmallInteger, nullable=False, server_default=text("0")),
    Column("max_retries", SmallInteger, nullable=False, server_default=text("3")),
    Column("created_at", BigInteger, nullable=False, server_default=NOW),
    Column("updated_at", BigInteger, nullable=False, server_default=NOW),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("node_id", Text),
    Column("queue", Text),
    Column("priority", Integer),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),  # ADDED
    Column("run_at", BigInteger, nullable=False, server_default=NOW),  # ADDED
    PrimaryKeyConstraint("id", name=conv("jobs_pkey")),
    # ADDED: what the text says in words
    CheckConstraint(text("id ~ '^[A-Z]{2}-[0-9A-Za-z]{6,10}$'"), name=conv("ck_system_jobs__id_format")),
    CheckConstraint(
        text("status in ('new', 'queued', 'running', 'retrying', 'completed', 'failed', 'cancelled')"),
        name=conv("ck_system_jobs__status"),
    ),
    CheckConstraint(
        text("jsonb_typeof(parameters) = 'object'"), name=conv("ck_system_jobs__parameters_object")
    ),
    CheckConstraint(
        text("retry_count between 0 and 255 and max_retries between 0 and 255"),
        name=conv("ck_system_jobs__counts"),
    ),
    CheckConstraint(
        text("(finished_at is not null) = (status in ('completed', 'failed', 'cancelled'))"),
        name=conv("ck_system_jobs__finished_at"),
    ),
    # ADDED: one active job of a key; what a claim reads, what a list shows, what recovery looks for
    Index(
        "uq_system_jobs__active_idempotency_key",
        "idempotency_key",
        unique=True,
        postgresql_where=text(
            "idempotency_key is not null and status in ('new', 'queued', 'running', 'retrying')"
        ),
    ),
    Index(
        "idx_system_jobs__claimable",
        text("priority desc nulls last"),
        "run_at",
        postgresql_where=text("status in ('queued', 'retrying')"),
    ),
    Index("idx_system_jobs__status_created_at", "status", "created_at"),
    Index("idx_system_jobs__held", "node_id", postgresql_where=text("status = 'running'")),
    schema="system",
)
