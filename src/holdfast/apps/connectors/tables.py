"""The tables of the connectors, described for SQLAlchemy Core. Never runs SQL, never names a schema.

Columns, defaults and names are the seed's, and `connections` and `oauth_states` are rebuilt from what its
requirements need. What is ours says ADDED. Triggers, roles and policies are in the migration: Core has no
word for them.
"""

from __future__ import annotations

from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.schema import conv

from holdfast.db.tables import metadata

moment = TIMESTAMP(timezone=True)

# The time of the next sync, as it stands in the JSON; any other spelling counts as none.
NEXT_RUN_AT = r"""(
    case when metadata #>> '{sync,next_run_at}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'
    then metadata #>> '{sync,next_run_at}' end
) collate "C" nulls first"""


def _created() -> Column[object]:
    return Column("created_at", moment, nullable=False, server_default=text("now()"))


def _updated() -> Column[object]:
    return Column("updated_at", moment, nullable=False, server_default=text("now()"))


def _tenant() -> Column[object]:
    return Column("tenant_id", Uuid, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False)


def _provider() -> Column[str]:
    return Column("provider_slug", Text, ForeignKey("providers.slug"), nullable=False)


def _connection() -> Column[object]:
    return Column("connection_id", Uuid, ForeignKey("connections.id", ondelete="CASCADE"), nullable=False)


def _scope(name: str) -> ForeignKeyConstraint:
    """ADDED: a row that names a connection names that connection's tenant and provider, too."""
    return ForeignKeyConstraint(
        ["connection_id", "tenant_id", "provider_slug"],
        ["connections.id", "connections.tenant_id", "connections.provider_slug"],
        name=name,
        ondelete="CASCADE",
    )


tenants = Table(
    "tenants",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("name", Text),
    _created(),
)

providers = Table(
    "providers",
    metadata,
    Column("slug", Text, primary_key=True),
    Column("display_name", Text, nullable=False),
    Column("auth_type", Text, nullable=False),
    _created(),
    _updated(),
    Column("cooldown_until", moment),  # ADDED
)

connections = Table(
    "connections",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    _provider(),
    Column("external_id", Text, nullable=False),
    Column("display_name", Text),
    Column("status", Text, nullable=False, server_default=text("'active'")),
    Column("scopes", ARRAY(Text)),
    Column("access_token_ciphertext", LargeBinary),
    Column("refresh_token_ciphertext", LargeBinary),
    Column("expires_at", moment),
    Column("metadata", JSONB),
    _created(),
    _updated(),
    Column("token_key_id", Text),  # ADDED
    # ADDED: what other rows refer to
    UniqueConstraint("id", "tenant_id", "provider_slug", name="uq_connections_scope"),
    # ADDED
    CheckConstraint(
        text("status in ('active', 'paused', 'revoked', 'error')"), name=conv("ck_connections_status")
    ),
    Index(
        "idx_connections_tenant_provider_external", "tenant_id", "provider_slug", "external_id", unique=True
    ),
    Index("idx_connections_tenant_id", "tenant_id"),
    # ADDED: what the scheduler reads
    Index(
        "idx_connections_due",
        text(NEXT_RUN_AT),
        "created_at",
        "id",
        postgresql_where=text("status = 'active'"),
        info={"unreadable": True},  # to `holdfast db check`; a test compares it
    ),
    # ADDED: what the refresh of tokens reads
    Index(
        "idx_connections_expires_at",
        "expires_at",
        postgresql_where=text("status = 'active' and refresh_token_ciphertext is not null"),
    ),
)

sync_jobs = Table(
    "sync_jobs",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    _provider(),
    _connection(),
    Column("job_type", Text, nullable=False),
    Column("status", Text, nullable=False, server_default=text("'queued'")),
    Column("priority", SmallInteger, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("scheduled_at", moment, nullable=False, server_default=text("now()")),
    Column("retry_after", moment),
    Column("started_at", moment),
    Column("finished_at", moment),
    Column("cursor", JSONB),
    Column("error", JSONB),
    _created(),
    _updated(),
    Column("worker_id", Text),  # ADDED
    Column("fence", BigInteger, nullable=False, server_default=text("0")),  # ADDED
    Column("max_attempts", Integer, nullable=False, server_default=text("10")),  # ADDED
    _scope("fk_sync_jobs_scope"),
    # ADDED. `completed` is a word of the seed's for `succeeded`; nothing of ours writes it.
    CheckConstraint(
        text("status in ('queued', 'running', 'succeeded', 'failed', 'completed')"),
        name=conv("ck_sync_jobs_status"),
    ),
    CheckConstraint(text("max_attempts >= 1"), name="max_attempts"),  # ADDED
    Index("idx_sync_jobs_status_scheduled_priority", "status", "scheduled_at", text("priority desc")),
    Index(
        "idx_sync_jobs_tenant_provider_status_scheduled",
        "tenant_id",
        "provider_slug",
        "status",
        "scheduled_at",
    ),
    Index("idx_sync_jobs_connection_status_scheduled", "connection_id", "status", "scheduled_at"),
    Index(
        "idx_sync_jobs_connection_type_status",
        "connection_id",
        "job_type",
        unique=True,
        postgresql_where=text("status in ('queued', 'running')"),
    ),
    # ADDED: the lanes
    Index(
        "idx_sync_jobs_lane_fresh",
        text("priority desc"),
        "scheduled_at",
        "id",
        postgresql_where=text("status = 'queued' and retry_after is null"),
    ),
    Index(
        "idx_sync_jobs_lane_retry",
        text("priority desc"),
        "retry_after",
        "id",
        postgresql_where=text("status = 'queued' and retry_after is not null"),
    ),
    Index(
        "idx_sync_jobs_lane_failed",
        text("priority desc"),
        "retry_after",
        "id",
        postgresql_where=text("status = 'failed' and retry_after is not null"),
    ),
    Index("idx_sync_jobs_worker", "worker_id", postgresql_where=text("status = 'running'")),
    # ADDED: lists, newest first
    Index("idx_sync_jobs_created_at", "created_at"),
    Index("idx_sync_jobs_tenant_created", "tenant_id", "created_at"),
    Index("idx_sync_jobs_scheduled", "scheduled_at", "id"),
    Index("idx_sync_jobs_tenant_scheduled", "tenant_id", "scheduled_at", "id"),
)

signals = Table(
    "signals",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    _provider(),
    _connection(),
    Column("kind", Text, nullable=False),
    Column("occurred_at", moment, nullable=False),
    Column("received_at", moment, nullable=False, server_default=text("now()")),
    Column("payload", JSONB, nullable=False),
    Column("dedupe_key", Text),
    _created(),
    _updated(),
    _scope("fk_signals_scope"),
    Index("idx_signals_tenant_provider_occurred", "tenant_id", "provider_slug", text("occurred_at desc")),
    Index("idx_signals_tenant_kind_occurred", "tenant_id", "kind", text("occurred_at desc")),
    Index("idx_signals_connection_occurred", "connection_id", text("occurred_at desc")),
    Index("idx_signals_tenant_provider_dedupe", "tenant_id", "provider_slug", "dedupe_key"),
    # ADDED: what is shown without a filter, to all and to a tenant, and what is old enough to go
    Index("idx_signals_occurred_at", text("occurred_at desc")),
    Index("idx_signals_tenant_occurred", "tenant_id", text("occurred_at desc")),
    Index("idx_signals_received_at", "received_at"),
)

oauth_states = Table(
    "oauth_states",
    metadata,
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("provider", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("code_verifier", Text),
    Column("expires_at", moment, nullable=False),
    _created(),
    _updated(),
    Column("consumed_at", moment),  # ADDED
    Column("redirect_uri", Text),  # ADDED
    Index("idx_oauth_states_tenant_provider_state", "tenant_id", "provider", "state", unique=True),
    Index("idx_oauth_states_expires_at", "expires_at"),
    # ADDED: the callback knows no tenant
    Index("idx_oauth_states_provider_state", "provider", "state"),
)

# ADDED: the inbox. Without a connection: none matched, or several.
webhook_delivery = Table(
    "webhook_delivery",
    metadata,
    Column("provider_slug", Text, ForeignKey("providers.slug"), primary_key=True),
    Column("connection_id", Uuid),
    Column("tenant_id", Uuid, ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True),
    Column("delivery_id", Text, primary_key=True),
    Column("headers", JSONB, nullable=False, server_default=text("'{}'")),
    Column("payload", JSONB),
    Column("body_sha256", Text, nullable=False),
    Column("verification", Text, nullable=False),
    Column("received_at", moment, nullable=False, server_default=text("now()")),
    Column("processed_at", moment),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("error", JSONB),
    _scope("fk_webhook_delivery_scope"),
    CheckConstraint(
        text("verification in ('operator', 'signature', 'shared_secret', 'oidc')"), name="verification"
    ),
    Index(
        "idx_webhook_delivery_pending",
        "connection_id",
        "received_at",
        postgresql_where=text("processed_at is null"),
    ),
    Index("idx_webhook_delivery_received_at", "received_at"),
    Index("idx_webhook_delivery_tenant_received", "tenant_id", "received_at"),
    Index(
        "idx_webhook_delivery_processed_at",
        "processed_at",
        postgresql_where=text("processed_at is not null"),
    ),
)
