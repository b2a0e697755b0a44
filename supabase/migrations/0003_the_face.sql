-- Holdfast 0003: pauses, pulse, tokens, audit, traces
-- Compiled from the migration of that number: change that one, then run `make sql`.
do $holdfast$
begin
perform pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0));
if to_regclass(quote_ident(current_schema()) || '.holdfast_version') is null then
    create table holdfast_version (
        version_num varchar(32) not null,
        constraint holdfast_version_pkc primary key (version_num)
    );
end if;
if (select max(version_num) from holdfast_version) is distinct from '0002' then
    return;
end if;

alter table job add column traceparent text;

alter table tasks add column traceparent text;

grant insert (traceparent) on job to holdfast_tenant;

create index idx_job__created_at on job (created_at);

create index idx_tasks_created_at on tasks (created_at);

alter table workers add column shares jsonb not null default '{}';

create table holdfast_pause (
    ledger text not null,
    queue text not null default '',
    since timestamptz not null default now(),
    by text,
    reason text,
    constraint holdfast_pause_pkey primary key (ledger, queue)
);

create table holdfast_pulse (
    minute timestamptz not null,
    ledger text not null,
    kind text not null default '',
    fact text not null,
    label text not null default '',
    count bigint not null,
    sum double precision not null default 0,
    constraint holdfast_pulse_pkey primary key (minute, ledger, kind, fact, label)
);

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
);

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
);

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
);

alter table holdfast_pause enable row level security;

alter table holdfast_pulse enable row level security;

alter table holdfast_token enable row level security;

alter table holdfast_session enable row level security;

alter table holdfast_audit enable row level security;

create policy holdfast_pause_worker on holdfast_pause for select to holdfast_worker using (true);

create policy holdfast_pulse_worker on holdfast_pulse to holdfast_worker using (true) with check (true);

grant select on holdfast_pause to holdfast_worker;

grant select, insert, update, delete on holdfast_pulse to holdfast_worker;

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0003');
end
$holdfast$;
