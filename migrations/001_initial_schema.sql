-- Holdfast 0001: tasks and workers
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
if (select max(version_num) from holdfast_version) is distinct from null then
    return;
end if;

do $$
declare
    labels text;
begin
    create type task_status as enum ('pending', 'claimed', 'running', 'completed', 'failed', 'dead_letter');
    comment on type task_status is 'made by Holdfast';
exception when duplicate_object then
    select string_agg(enumlabel, ' ' order by enumsortorder) into labels from pg_enum
        where enumtypid = to_regtype(quote_ident(current_schema()) || '.task_status');
    if labels is distinct from 'pending claimed running completed failed dead_letter' then
        raise exception using message =
            'the type task_status exists in this schema with other values: '
            'rename it, or give Holdfast a schema of its own';
    end if;
end
$$;

do $$
declare
    existing regprocedure := to_regprocedure(quote_ident(current_schema()) || '.update_updated_at_column()');
    source text;
begin
    if existing is null then
        create function update_updated_at_column() returns trigger language plpgsql as '
begin
    new.updated_at = now();
    return new;
end
';
        comment on function update_updated_at_column() is 'made by Holdfast';
    else
        select lower(regexp_replace(prosrc, '\s', '', 'g')) into source from pg_proc
            where oid = existing and prorettype = 'trigger'::regtype;
        if rtrim(source, ';') is distinct from 'beginnew.updated_at=now();returnnew;end' then
            raise exception using message =
                'the function update_updated_at_column() exists in this schema with another body: '
                'rename it, or give Holdfast a schema of its own';
        end if;
    end if;
end
$$;

create table tasks (
    id uuid not null default gen_random_uuid(),
    type text not null,
    payload jsonb,
    status task_status not null default 'pending',
    priority int not null default 0,
    idempotency_key text,
    worker_id text,
    created_at timestamp not null default now(),
    claimed_at timestamp,
    started_at timestamp,
    completed_at timestamp,
    updated_at timestamp not null default now(),
    attempts int not null default 0,
    max_retries int not null default 3,
    last_error text,
    next_retry_at timestamp,
    fence bigint not null default 0,
    constraint tasks_pkey primary key (id),
    constraint unique_idempotency_key unique (type, idempotency_key)
);

create index idx_tasks_claimable on tasks (priority desc, created_at asc)
where status = 'pending' and next_retry_at is null;

create index idx_tasks_due_retry on tasks (priority desc, next_retry_at)
where status = 'pending' and next_retry_at is not null;

create index idx_tasks_status on tasks (status);

create index idx_tasks_type_status on tasks (type, status);

create index idx_tasks_worker_id on tasks (worker_id) where worker_id is not null;

create index idx_tasks_held on tasks (worker_id) where status in ('claimed', 'running');

create trigger update_tasks_updated_at
before update on tasks
for each row execute function update_updated_at_column();

create table workers (
    id text not null,
    hostname text not null,
    started_at timestamp not null default now(),
    last_heartbeat timestamp not null default now(),
    pool_size int not null,
    version text,
    is_leader boolean not null default false,
    leader_until timestamp,
    serves text[] not null default '{}',
    constraint workers_pkey primary key (id)
);

create index idx_workers_heartbeat on workers (last_heartbeat);

create index idx_workers_leader on workers (is_leader, leader_until) where is_leader = true;

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0001');
end
$holdfast$;
