"""pauses, pulse, tokens, audit, traces"""

from alembic import op

revision = "0003"
down_revision = "0002"

TRACES = (
    "alter table job add column traceparent text",
    "alter table tasks add column traceparent text",
    "grant insert (traceparent) on job to holdfast_tenant",
)

# Lists are shown newest first, of all states and of all tenants.
NEWEST = (
    "create index idx_job__created_at on job (created_at)",
    "create index idx_tasks_created_at on tasks (created_at)",
)

# What each worker takes from each ledger: slots, queues, and the kinds that it has handlers for.
SHARES = "alter table workers add column shares jsonb not null default '{}'"

# A ledger, or one queue of it, from which nothing is claimed. The empty name means all queues.
PAUSE = """
create table holdfast_pause (
    ledger text not null,
    queue text not null default '',
    since timestamptz not null default now(),
    by text,
    reason text,
    constraint holdfast_pause_pkey primary key (ledger, queue)
)
"""

# What workers did, by the minute for all kinds together, and at -infinity since the beginning for each kind.
PULSE = """
create table holdfast_pulse (
    minute timestamptz not null,
    ledger text not null,
    kind text not null default '',
    fact text not null,
    label text not null default '',
    count bigint not null,
    sum double precision not null default 0,
    constraint holdfast_pulse_pkey primary key (minute, ledger, kind, fact, label)
)
"""

# The secret itself is nowhere: a token is known by the SHA-256 of its random part.
TOKENS = """
create table holdfast_token (
    id text not null,
    name text not null,
    hash bytea not null,
    scope text not null,
    tenant text,
    created_at timestamptz not null default now(),
    created_by text,
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at timestamptz,
    constraint holdfast_token_pkey primary key (id),
    constraint holdfast_token_scope_check check (scope in ('read', 'act', 'admin'))
)
"""

SESSION = """
create table holdfast_session (
    hash bytea not null,
    token_id text,
    who text not null,
    scope text not null,
    tenant text,
    created_at timestamptz not null default now(),
    expires_at timestamptz not null,
    constraint holdfast_session_pkey primary key (hash),
    constraint holdfast_session_token_id_fkey foreign key (token_id) references holdfast_token (id)
        on delete cascade
)
"""

AUDIT = """
create table holdfast_audit (
    id bigint generated always as identity,
    at timestamptz not null default now(),
    who text not null,
    action text not null,
    ledger text,
    row_id text,
    tenant text,
    rows bigint,
    detail jsonb not null default '{}',
    trace_id text,
    constraint holdfast_audit_pkey primary key (id)
)
"""

# Nobody but their owner reads these, also where a platform grants every new table to everybody.
OURS = ("holdfast_pause", "holdfast_pulse", "holdfast_token", "holdfast_session", "holdfast_audit")

# What a worker under a role of its own needs of them.
WORKER = (
    "create policy holdfast_pause_worker on holdfast_pause for select to holdfast_worker using (true)",
    "create policy holdfast_pulse_worker on holdfast_pulse to holdfast_worker using (true) with check (true)",
    "grant select on holdfast_pause to holdfast_worker",
    "grant select, insert, update, delete on holdfast_pulse to holdfast_worker",
)


def upgrade() -> None:
    for statement in (*TRACES, *NEWEST, SHARES, PAUSE, PULSE, TOKENS, SESSION, AUDIT):
        op.execute(statement)
    for table in OURS:
        op.execute(f"alter table {table} enable row level security")
    for statement in WORKER:
        op.execute(statement)


def downgrade() -> None:
    for table in reversed(OURS):
        op.execute(f"drop table {table}")
    op.execute("alter table workers drop column shares")
    op.execute("drop index idx_job__created_at")
    op.execute("drop index idx_tasks_created_at")
    op.execute("alter table job drop column traceparent")
    op.execute("alter table tasks drop column traceparent")
