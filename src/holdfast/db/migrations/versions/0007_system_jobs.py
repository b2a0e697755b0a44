"""system.jobs: maintenance as jobs with short typed ids

The schema is called `system`; where Holdfast is told its own schema by name (HOLDFAST_SCHEMA) it is called
after that one, so that several can live in one database. Whoever migrates says so in the setting
`holdfast.system_schema`.

A `system.jobs` that is there already and not ours becomes `system.jobs_legacy`: it is read, and never changed
or run. A downgrade gives it its name back.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

NAMES = """'jobs_pkey', 'uq_system_jobs__active_idempotency_key', 'idx_system_jobs__claimable',
            'idx_system_jobs__status_created_at', 'idx_system_jobs__held'"""

HERE = "coalesce(nullif(current_setting('holdfast.system_schema', true), ''), 'system')"

SCHEMA = """
do $$
declare
    here text := {here};
begin
    if to_regnamespace(quote_ident(here)) is null then
        execute format('create schema %I', here);
        execute format('comment on schema %I is %L', here, 'made by Holdfast');
    end if;
exception when insufficient_privilege then
    raise exception using errcode = 'insufficient_privilege', message =
        'the schema ' || quote_ident(here) || ' is missing and ' || quote_ident(current_user)
        || ' may not create it: an administrator must first run `create schema ' || quote_ident(here)
        || ' authorization ' || quote_ident(current_user) || '`';
end
$$
"""

# Names of indexes are the schema's, so that those of the old table have to make room for ours.
LEGACY = """
do $$
declare
    here text := {here};
    old regclass := to_regclass(format('%I.jobs', here));
    one record;
begin
    if old is null then
        return;
    end if;
    if obj_description(old, 'pg_class') = 'made by Holdfast' then
        raise exception using message = old || ' belongs to another Holdfast of this database: give each one '
            || 'a schema of its own by HOLDFAST_SCHEMA';
    end if;
    if to_regclass(format('%I.jobs_legacy', here)) is not null then
        raise exception using message =
            format('%I.jobs and %I.jobs_legacy are both there already: rename one of them first', here, here);
    end if;
    for one in select c.relname as name from pg_index as i join pg_class as c on c.oid = i.indexrelid
        where i.indrelid = old and c.relname in ({names})
    loop
        execute format('alter index %I.%I rename to %I', here, one.name, 'legacy_' || one.name);
    end loop;
    execute format('alter table %I.jobs rename to jobs_legacy', here);
    raise notice '%.jobs was there already, and is now jobs_legacy', here;
end
$$
"""

NOW = "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

# The columns up to `priority` are those of the text that the table comes from.
TABLE = """
do $$
declare
    here text := {here};
begin
    execute format($table$
create table %I.jobs (
    id text not null,
    job_type text not null,
    status text not null default 'new',
    message text,
    exception_trace text,
    parameters jsonb not null default '{{}}',
    idempotency_key text,
    retry_count smallint not null default 0,
    max_retries smallint not null default 3,
    created_at bigint not null default {now},
    updated_at bigint not null default {now},
    started_at bigint,
    finished_at bigint,
    node_id text,
    queue text,
    priority integer,
    fence bigint not null default 0,
    run_at bigint not null default {now},
    constraint jobs_pkey primary key (id),
    constraint ck_system_jobs__id_format check (id ~ '^[A-Z]{{2}}-[0-9A-Za-z]{{6,10}}$'),
    constraint ck_system_jobs__status check
        (status in ('new', 'queued', 'running', 'retrying', 'completed', 'failed', 'cancelled')),
    constraint ck_system_jobs__parameters_object check (jsonb_typeof(parameters) = 'object'),
    constraint ck_system_jobs__counts check
        (retry_count between 0 and 255 and max_retries between 0 and 255),
    constraint ck_system_jobs__finished_at check
        ((finished_at is not null) = (status in ('completed', 'failed', 'cancelled')))
)$table$, here);
    execute format('comment on table %I.jobs is %L', here, 'made by Holdfast');
    execute format($index$
create unique index uq_system_jobs__active_idempotency_key on %I.jobs (idempotency_key)
where idempotency_key is not null and status in ('new', 'queued', 'running', 'retrying')$index$, here);
    execute format($index$
create index idx_system_jobs__claimable on %I.jobs (priority desc nulls last, run_at)
where status in ('queued', 'retrying')$index$, here);
    execute format('create index idx_system_jobs__status_created_at on %I.jobs (status, created_at)', here);
    execute format($index$
create index idx_system_jobs__held on %I.jobs (node_id) where status = 'running'$index$, here);
end
$$
"""

# A worker that is no owner may run and end jobs; what jobs do needs the owner's rights.
GRANTS = """
do $$
declare
    here text := {here};
begin
    execute format('grant usage on schema %I to holdfast_worker', here);
    execute format('grant select on %I.jobs to holdfast_worker', here);
    execute format($grant$
grant update (status, message, exception_trace, retry_count, updated_at, started_at, finished_at, node_id,
    fence, run_at) on %I.jobs to holdfast_worker$grant$, here);
exception when insufficient_privilege then
    raise notice 'holdfast_worker may need `grant usage on schema %` from its owner', here;
end
$$
"""

LEAVE = """
do $$
declare
    here text := {here};
    old regclass;
    one record;
begin
    if to_regnamespace(quote_ident(here)) is null then
        return;
    end if;
    if obj_description(to_regclass(format('%I.jobs', here)), 'pg_class') = 'made by Holdfast' then
        execute format('drop table %I.jobs', here);
    end if;
    old := to_regclass(format('%I.jobs_legacy', here));
    if old is not null and to_regclass(format('%I.jobs', here)) is null then
        for one in select c.relname as name from pg_index as i join pg_class as c on c.oid = i.indexrelid
            where i.indrelid = old and substr(c.relname, 8) in ({names}) and starts_with(c.relname, 'legacy_')
        loop
            execute format('alter index %I.%I rename to %I', here, one.name, substr(one.name, 8));
        end loop;
        execute format('alter table %I.jobs_legacy rename to jobs', here);
    end if;
    begin
        execute format('revoke all on schema %I from holdfast_worker', here);
    exception when undefined_object or insufficient_privilege then null;
    end;
    if obj_description(to_regnamespace(quote_ident(here)), 'pg_namespace') = 'made by Holdfast' then
        begin
            execute format('drop schema %I', here);
        exception when dependent_objects_still_exist then null;
        end;
    end if;
end
$$
"""


def upgrade() -> None:
    for statement in (SCHEMA, LEGACY, TABLE, GRANTS):
        op.execute(statement.format(here=HERE, names=NAMES, now=NOW))


def downgrade() -> None:
    op.execute(LEAVE.format(here=HERE, names=NAMES))
