"""tasks and workers"""

from alembic import op

revision = "0001"
down_revision = None

# The enum and the function have common names, so they may be there before us. One that is the same serves
# us too; one that is different stops the upgrade. Ours carry a comment, and a downgrade drops only those.
STATUS = """
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
$$
"""

TOUCH = """
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
        select lower(regexp_replace(prosrc, '\\s', '', 'g')) into source from pg_proc
            where oid = existing and prorettype = 'trigger'::regtype;
        if rtrim(source, ';') is distinct from 'beginnew.updated_at=now();returnnew;end' then
            raise exception using message =
                'the function update_updated_at_column() exists in this schema with another body: '
                'rename it, or give Holdfast a schema of its own';
        end if;
    end if;
end
$$
"""

TASKS = """
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
)
"""

# Two lanes: rows never delayed, and rows with a due time. One index for both would need now().
CLAIMABLE = """
create index idx_tasks_claimable on tasks (priority desc, created_at asc)
where status = 'pending' and next_retry_at is null
"""

DUE_RETRY = """
create index idx_tasks_due_retry on tasks (priority desc, next_retry_at)
where status = 'pending' and next_retry_at is not null
"""

STATUS_INDEX = "create index idx_tasks_status on tasks (status)"

TYPE_STATUS = "create index idx_tasks_type_status on tasks (type, status)"

WORKER_ID = "create index idx_tasks_worker_id on tasks (worker_id) where worker_id is not null"

HELD = "create index idx_tasks_held on tasks (worker_id) where status in ('claimed', 'running')"

TRIGGER = """
create trigger update_tasks_updated_at
before update on tasks
for each row execute function update_updated_at_column()
"""

WORKERS = """
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
)
"""

HEARTBEAT = "create index idx_workers_heartbeat on workers (last_heartbeat)"

LEADER = "create index idx_workers_leader on workers (is_leader, leader_until) where is_leader = true"

# What a user's own tables have come to depend on stays.
DROP_SHARED = """
do $$
begin
    if obj_description(to_regprocedure('update_updated_at_column()'), 'pg_proc') = 'made by Holdfast' then
        begin
            drop function update_updated_at_column();
        exception when dependent_objects_still_exist then null;
        end;
    end if;
    if obj_description(to_regtype('task_status'), 'pg_type') = 'made by Holdfast' then
        begin
            drop type task_status;
        exception when dependent_objects_still_exist then null;
        end;
    end if;
end
$$
"""


def upgrade() -> None:
    op.execute(STATUS)
    op.execute(TOUCH)
    op.execute(TASKS)
    op.execute(CLAIMABLE)
    op.execute(DUE_RETRY)
    op.execute(STATUS_INDEX)
    op.execute(TYPE_STATUS)
    op.execute(WORKER_ID)
    op.execute(HELD)
    op.execute(TRIGGER)
    op.execute(WORKERS)
    op.execute(HEARTBEAT)
    op.execute(LEADER)


def downgrade() -> None:
    op.execute("drop table workers")
    op.execute("drop table tasks")
    op.execute(DROP_SHARED)
