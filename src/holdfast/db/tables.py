"""The tables of the platform itself, described for SQLAlchemy Core. Never runs SQL, never names a schema.

Every app adds its tables to this `metadata`. It describes; the migrations make. A test proves that both
agree. The schema is the connection's search_path, so that one description serves every schema.
"""

from __future__ import annotations

from sqlalchemy import TIMESTAMP, Boolean, Column, Index, Integer, MetaData, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY

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
    Index("idx_workers_heartbeat", "last_heartbeat"),
    Index("idx_workers_leader", "is_leader", "leader_until", postgresql_where=text("is_leader = true")),
)
