"""tenants, providers, connections, sync_jobs, signals, oauth_states, webhook_delivery"""

from alembic import op

revision = "0004"
down_revision = "0003"

# Common names, so they may be somebody's already. Nothing is guessed about what they hold: the upgrade stops.
FREE = """
do $$
declare
    wanted text[] := array[
        'tenants', 'providers', 'connections', 'sync_jobs', 'signals', 'oauth_states', 'webhook_delivery'
    ];
    here regnamespace := quote_ident(current_schema())::regnamespace;
    taken text;
begin
    select string_agg(name, ', ' order by name) into taken from unnest(wanted) as name where exists (
        select from pg_class where relnamespace = here and relname = name
    ) or exists (
        select from pg_type where typnamespace = here and typname = name
    );
    if taken is not null then
        raise exception using message =
            'in this schema there is already something else of the name ' || taken
            || ': rename it, or give Holdfast a schema of its own (HOLDFAST_SCHEMA)';
    end if;
end
$$
"""

TENANTS = """
create table tenants (
    id uuid not null,
    name text,
    created_at timestamptz not null default now(),
    constraint tenants_pkey primary key (id)
)
"""

# `cooldown_until`: the provider has said that our whole application asks too often.
PROVIDERS = """
create table providers (
    slug text not null,
    display_name text not null,
    auth_type text not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    cooldown_until timestamptz,
    constraint providers_pkey primary key (slug)
)
"""

# `token_key_id` tells which key has sealed the tokens. The unique constraint is what others refer to: so a
# row that names a connection names its tenant and its provider, too.
CONNECTIONS = """
create table connections (
    id uuid not null,
    tenant_id uuid not null,
    provider_slug text not null,
    external_id text not null,
    display_name text,
    status text not null default 'active',
    scopes text[],
    access_token_ciphertext bytea,
    refresh_token_ciphertext bytea,
    expires_at timestamptz,
    metadata jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    token_key_id text,
    constraint connections_pkey primary key (id),
    constraint uq_connections_scope unique (id, tenant_id, provider_slug),
    constraint connections_tenant_id_fkey foreign key (tenant_id) references tenants (id) on delete cascade,
    constraint connections_provider_slug_fkey foreign key (provider_slug) references providers (slug),
    constraint ck_connections_status check (status in ('active', 'paused', 'revoked', 'error'))
)
"""

# The last two are for duties: who must be synced, and whose token will end. The due time stands in JSON as
# text of one width, so that the order of the text is that of time. Any other spelling counts as none, which
# is due first: whoever comes by repairs it.
CONNECTIONS_INDEXES = (
    """
create unique index idx_connections_tenant_provider_external
on connections (tenant_id, provider_slug, external_id)
""",
    "create index idx_connections_tenant_id on connections (tenant_id)",
    r"""
create index idx_connections_due on connections (
    (
        case when metadata #>> '{sync,next_run_at}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'
        then metadata #>> '{sync,next_run_at}' end
    ) collate "C" nulls first,
    created_at, id
) where status = 'active'
""",
    """
create index idx_connections_expires_at on connections (expires_at)
where status = 'active' and refresh_token_ciphertext is not null
""",
)

SYNC_JOBS = """
create table sync_jobs (
    id uuid not null,
    tenant_id uuid not null,
    provider_slug text not null,
    connection_id uuid not null,
    job_type text not null,
    status text not null default 'queued',
    priority smallint not null default 0,
    attempts int not null default 0,
    scheduled_at timestamptz not null default now(),
    retry_after timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    cursor jsonb,
    error jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    worker_id text,
    fence bigint not null default 0,
    max_attempts int not null default 10,
    constraint sync_jobs_pkey primary key (id),
    constraint sync_jobs_tenant_id_fkey foreign key (tenant_id) references tenants (id) on delete cascade,
    constraint sync_jobs_provider_slug_fkey foreign key (provider_slug) references providers (slug),
    constraint sync_jobs_connection_id_fkey foreign key (connection_id) references connections (id)
        on delete cascade,
    constraint fk_sync_jobs_scope foreign key (connection_id, tenant_id, provider_slug)
        references connections (id, tenant_id, provider_slug) on delete cascade,
    constraint ck_sync_jobs_status
        check (status in ('queued', 'running', 'succeeded', 'failed', 'completed')),
    constraint sync_jobs_max_attempts_check check (max_attempts >= 1)
)
"""

# The first four are the seed's. The lanes are what a claim reads: fresh rows, rows that wait for a retry, and
# failed ones that somebody else has given a time to. The last four are for lists, newest first.
SYNC_JOBS_INDEXES = (
    """
create index idx_sync_jobs_status_scheduled_priority on sync_jobs (status, scheduled_at, priority desc)
""",
    """
create index idx_sync_jobs_tenant_provider_status_scheduled
on sync_jobs (tenant_id, provider_slug, status, scheduled_at)
""",
    """
create index idx_sync_jobs_connection_status_scheduled on sync_jobs (connection_id, status, scheduled_at)
""",
    """
create unique index idx_sync_jobs_connection_type_status on sync_jobs (connection_id, job_type)
where status in ('queued', 'running')
""",
    """
create index idx_sync_jobs_lane_fresh on sync_jobs (priority desc, scheduled_at, id)
where status = 'queued' and retry_after is null
""",
    """
create index idx_sync_jobs_lane_retry on sync_jobs (priority desc, retry_after, id)
where status = 'queued' and retry_after is not null
""",
    """
create index idx_sync_jobs_lane_failed on sync_jobs (priority desc, retry_after, id)
where status = 'failed' and retry_after is not null
""",
    "create index idx_sync_jobs_worker on sync_jobs (worker_id) where status = 'running'",
    "create index idx_sync_jobs_created_at on sync_jobs (created_at)",
    "create index idx_sync_jobs_tenant_created on sync_jobs (tenant_id, created_at)",
    "create index idx_sync_jobs_scheduled on sync_jobs (scheduled_at, id)",
    "create index idx_sync_jobs_tenant_scheduled on sync_jobs (tenant_id, scheduled_at, id)",
)

SIGNALS = """
create table signals (
    id uuid not null,
    tenant_id uuid not null,
    provider_slug text not null,
    connection_id uuid not null,
    kind text not null,
    occurred_at timestamptz not null,
    received_at timestamptz not null default now(),
    payload jsonb not null,
    dedupe_key text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    constraint signals_pkey primary key (id),
    constraint signals_tenant_id_fkey foreign key (tenant_id) references tenants (id) on delete cascade,
    constraint signals_provider_slug_fkey foreign key (provider_slug) references providers (slug),
    constraint signals_connection_id_fkey foreign key (connection_id) references connections (id)
        on delete cascade,
    constraint fk_signals_scope foreign key (connection_id, tenant_id, provider_slug)
        references connections (id, tenant_id, provider_slug) on delete cascade
)
"""

# The last three are ours: what is shown without a filter, to all or to a tenant, and what is old.
SIGNALS_INDEXES = (
    """
create index idx_signals_tenant_provider_occurred on signals (tenant_id, provider_slug, occurred_at desc)
""",
    "create index idx_signals_tenant_kind_occurred on signals (tenant_id, kind, occurred_at desc)",
    "create index idx_signals_connection_occurred on signals (connection_id, occurred_at desc)",
    "create index idx_signals_tenant_provider_dedupe on signals (tenant_id, provider_slug, dedupe_key)",
    "create index idx_signals_occurred_at on signals (occurred_at desc)",
    "create index idx_signals_tenant_occurred on signals (tenant_id, occurred_at desc)",
    "create index idx_signals_received_at on signals (received_at)",
)

# `redirect_uri`: the provider wants to hear at the end which one it was given at the beginning.
OAUTH_STATES = """
create table oauth_states (
    id uuid not null,
    tenant_id uuid not null,
    provider text not null,
    state text not null,
    code_verifier text,
    expires_at timestamptz not null,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    consumed_at timestamptz,
    redirect_uri text,
    constraint oauth_states_pkey primary key (id),
    constraint oauth_states_tenant_id_fkey foreign key (tenant_id) references tenants (id) on delete cascade
)
"""

OAUTH_STATES_INDEXES = (
    """
create unique index idx_oauth_states_tenant_provider_state on oauth_states (tenant_id, provider, state)
""",
    "create index idx_oauth_states_expires_at on oauth_states (expires_at)",
    "create index idx_oauth_states_provider_state on oauth_states (provider, state)",
)

# The inbox. Without a connection: none matched, or several.
WEBHOOK_DELIVERY = """
create table webhook_delivery (
    provider_slug text not null,
    connection_id uuid,
    tenant_id uuid not null,
    delivery_id text not null,
    headers jsonb not null default '{}',
    payload jsonb,
    body_sha256 text not null,
    verification text not null,
    received_at timestamptz not null default now(),
    processed_at timestamptz,
    attempts int not null default 0,
    error jsonb,
    constraint webhook_delivery_pkey primary key (provider_slug, tenant_id, delivery_id),
    constraint webhook_delivery_provider_slug_fkey foreign key (provider_slug) references providers (slug),
    constraint webhook_delivery_tenant_id_fkey foreign key (tenant_id) references tenants (id)
        on delete cascade,
    constraint fk_webhook_delivery_scope foreign key (connection_id, tenant_id, provider_slug)
        references connections (id, tenant_id, provider_slug) on delete cascade,
    constraint webhook_delivery_verification_check
        check (verification in ('operator', 'signature', 'shared_secret', 'oidc'))
)
"""

WEBHOOK_DELIVERY_INDEXES = (
    """
create index idx_webhook_delivery_pending on webhook_delivery (connection_id, received_at)
where processed_at is null
""",
    "create index idx_webhook_delivery_received_at on webhook_delivery (received_at)",
    "create index idx_webhook_delivery_tenant_received on webhook_delivery (tenant_id, received_at)",
    """
create index idx_webhook_delivery_processed_at on webhook_delivery (processed_at)
where processed_at is not null
""",
)

TABLES = (
    "tenants",
    "providers",
    "connections",
    "sync_jobs",
    "signals",
    "oauth_states",
    "webhook_delivery",
)

# Foreign SQL writes here, too.
TOUCHED = ("providers", "connections", "sync_jobs", "signals", "oauth_states")

SEED = """
insert into providers (slug, display_name, auth_type) values
    ('slack', 'Slack', 'oauth2'),
    ('github', 'GitHub', 'oauth2'),
    ('jira', 'Jira', 'oauth2'),
    ('google_drive', 'Google Drive', 'oauth2'),
    ('google_calendar', 'Google Calendar', 'oauth2'),
    ('gmail', 'Gmail', 'oauth2'),
    ('zoho_cliq', 'Zoho Cliq', 'webhook-only'),
    ('zoho_mail', 'Zoho Mail', 'oauth2')
on conflict (slug) do update set display_name = excluded.display_name, auth_type = excluded.auth_type
"""

# As with `job`: a tenant is what `holdfast.org_id` says. It reads what is its own, but no token and nothing
# that could end somebody's authorisation; it enqueues, cancels and requeues syncs, and writes nothing else.
TENANT = (
    """
create policy tenants_tenant_select on tenants for select to holdfast_tenant
using (id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid))
""",
    "create policy providers_tenant_select on providers for select to holdfast_tenant using (true)",
    """
create policy connections_tenant_select on connections for select to holdfast_tenant
using (tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid))
""",
    """
create policy sync_jobs_tenant_select on sync_jobs for select to holdfast_tenant
using (tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid))
""",
    """
create policy sync_jobs_tenant_insert on sync_jobs for insert to holdfast_tenant
with check (
    tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid) and status = 'queued'
    and job_type in ('full', 'incremental', 'webhook')
    and isfinite(created_at) and isfinite(updated_at) and isfinite(scheduled_at)
)
""",
    """
create policy sync_jobs_tenant_update on sync_jobs for update to holdfast_tenant
using (
    tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid)
    and status in ('queued', 'running', 'failed')
)
with check (
    tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid)
    and status in ('queued', 'failed') and attempts between 0 and 1000000
)
""",
    """
create policy signals_tenant_select on signals for select to holdfast_tenant
using (tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid))
""",
    """
create policy oauth_states_tenant_select on oauth_states for select to holdfast_tenant
using (tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid))
""",
    """
create policy webhook_delivery_tenant_select on webhook_delivery for select to holdfast_tenant
using (tenant_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid))
""",
    "grant select on tenants, providers, sync_jobs, signals, webhook_delivery to holdfast_tenant",
    """
grant select (
    id, tenant_id, provider_slug, external_id, display_name, status, scopes, expires_at, metadata,
    created_at, updated_at
) on connections to holdfast_tenant
""",
    """
grant select (id, tenant_id, provider, expires_at, created_at, updated_at, consumed_at)
on oauth_states to holdfast_tenant
""",
    """
grant insert (
    id, tenant_id, provider_slug, connection_id, job_type, status, priority, scheduled_at, cursor,
    created_at, updated_at, max_attempts
) on sync_jobs to holdfast_tenant
""",
    """
grant update (
    status, attempts, scheduled_at, retry_after, started_at, finished_at, error, updated_at, worker_id
) on sync_jobs to holdfast_tenant
""",
)

# A worker syncs for every tenant, and its duties schedule, refresh and clear away. To whom a row belongs, and
# which account a connection means, is not for it to change.
WORKER = (
    "create policy tenants_worker on tenants for select to holdfast_worker using (true)",
    "create policy providers_worker on providers to holdfast_worker using (true) with check (true)",
    "create policy connections_worker on connections to holdfast_worker using (true) with check (true)",
    "create policy sync_jobs_worker on sync_jobs to holdfast_worker using (true) with check (true)",
    "create policy signals_worker on signals to holdfast_worker using (true) with check (true)",
    "create policy oauth_states_worker on oauth_states to holdfast_worker using (true) with check (true)",
    """
create policy webhook_delivery_worker on webhook_delivery to holdfast_worker using (true) with check (true)
""",
    """
grant select on tenants, providers, connections, sync_jobs, signals, oauth_states, webhook_delivery
to holdfast_worker
""",
    "grant insert, update on providers to holdfast_worker",
    """
grant update (
    display_name, status, scopes, access_token_ciphertext, refresh_token_ciphertext, token_key_id,
    expires_at, metadata, updated_at
) on connections to holdfast_worker
""",
    "grant insert, delete on sync_jobs to holdfast_worker",
    """
grant update (
    status, priority, attempts, scheduled_at, retry_after, started_at, finished_at, cursor, error,
    updated_at, worker_id, fence, max_attempts
) on sync_jobs to holdfast_worker
""",
    "grant insert, delete on signals to holdfast_worker",
    "grant delete on oauth_states to holdfast_worker",
    "grant insert, delete on webhook_delivery to holdfast_worker",
    """
grant update (connection_id, processed_at, attempts, error) on webhook_delivery to holdfast_worker
""",
)


def upgrade() -> None:
    op.execute(FREE)
    for statement in (TENANTS, PROVIDERS, CONNECTIONS, *CONNECTIONS_INDEXES):
        op.execute(statement)
    for statement in (SYNC_JOBS, *SYNC_JOBS_INDEXES, SIGNALS, *SIGNALS_INDEXES):
        op.execute(statement)
    for statement in (OAUTH_STATES, *OAUTH_STATES_INDEXES, WEBHOOK_DELIVERY, *WEBHOOK_DELIVERY_INDEXES):
        op.execute(statement)
    for table in TOUCHED:
        op.execute(
            f"create trigger update_{table}_updated_at before update on {table}\n"
            "for each row execute function update_updated_at_column()"
        )
    for table in TABLES:
        op.execute(f"alter table {table} enable row level security")
    for statement in (SEED, *TENANT, *WORKER):
        op.execute(statement)


def downgrade() -> None:
    for table in reversed(TABLES):
        op.execute(f"drop table {table}")
