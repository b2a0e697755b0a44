"""The tables of the platform itself, described for SQLAlchemy Core. Never runs SQL, never names a schema.

Every app adds its tables to this `metadata`. It describes; the migrations make. A test proves that both
agree. The schema is the connection's search_path, so that one description serves every schema.
"""

from __future__ import annotations

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

# The names PostgreSQL itself would give, so that a constraint has one name whoever made it.
metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

# Presence: one row per live worker of every ledger, and at most one of them leads. Times are UTC.
workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("hostname", Text, nullable=False),
    Column("started_at", TIMESTAMP, nullable=False, server_default=text("now()")),
    Column("last_heartbeat", TIMESTAMP, nullable=False, server_default=text("now()")),
    Column("pool_size", Integer, nullable=False),
    Column("version", Text),
    Column("is_leader", Boolean, nullable=False, server_default=text("false")),
    Column("leader_until", TIMESTAMP),
    Column("serves", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("shares", JSONB, nullable=False, server_default=text("'{}'")),
    Index("idx_workers_heartbeat", "last_heartbeat"),
    Index("idx_workers_leader", "is_leader", "leader_until", postgresql_where=text("is_leader = true")),
)

moment = TIMESTAMP(timezone=True)

# Ledgers, or queues of them, from which nothing is claimed; the empty name means all queues.
pause = Table(
    "holdfast_pause",
    metadata,
    Column("ledger", Text, primary_key=True),
    Column("queue", Text, primary_key=True, server_default=text("''")),
    Column("since", moment, nullable=False, server_default=text("now()")),
    Column("by", Text),
    Column("reason", Text),
)

# What workers did: by the minute for all kinds together, and at -infinity since the beginning for each kind.
pulse = Table(
    "holdfast_pulse",
    metadata,
    Column("minute", moment, primary_key=True),
    Column("ledger", Text, primary_key=True),
    Column("kind", Text, primary_key=True, server_default=text("''")),
    Column("fact", Text, primary_key=True),
    Column("label", Text, primary_key=True, server_default=text("''")),
    Column("count", BigInteger, nullable=False),
    Column("sum", Double, nullable=False, server_default=text("0")),
)

token = Table(
    "holdfast_token",
    metadata,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Column("scope", Text, nullable=False),
    Column("tenant", Text),
    Column("created_at", moment, nullable=False, server_default=text("now()")),
    Column("created_by", Text),
    Column("expires_at", moment),
    Column("revoked_at", moment),
    Column("used_at", moment),
    CheckConstraint(text("scope in ('read', 'act', 'admin')"), name="scope"),
)

session = Table(
    "holdfast_session",
    metadata,
    Column("hash", LargeBinary, primary_key=True),
    Column("token_id", Text, ForeignKey("holdfast_token.id", ondelete="CASCADE")),
    Column("who", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("tenant", Text),
    Column("created_at", moment, nullable=False, server_default=text("now()")),
    Column("expires_at", moment, nullable=False),
)

audit = Table(
    "holdfast_audit",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", moment, nullable=False, server_default=text("now()")),
    Column("who", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("ledger", Text),
    Column("row_id", Text),
    Column("tenant", Text),
    Column("rows", BigInteger),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'")),
    Column("trace_id", Text),
)
