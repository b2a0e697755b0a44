"""system.jobs: maintenance as jobs with short typed ids

The schema is called `system`; where Holdfast is told its own schema by name (HOLDFAST_SCHEMA) it is called
after that one, so that several can live in one database. Whoever migrates says so in the setting
`holdfast.system_schema`.

A `system.jobs` that is there already and not ours becomes `system.jobs_legacy`: it is read, and never changed
or run. A downgrade gives it its name back.

The events of a day may be evicted: `schedule_ingest.day_origin` keeps what they led to, so that replaying the
later ones still gives the day. As before, one `schedule_ingest` serves every Holdfast of a database.
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

# What a day was when its events were evicted, and until when they were. It goes with the day itself.
ORIGIN = """
do $$
begin
    if to_regclass('schedule_ingest.day_origin') is not null then
        if obj_description(to_regclass('schedule_ingest.day_origin'), 'pg_class')
            is distinct from 'made by Holdfast' then
            raise exception 'there is already another schedule_ingest.day_origin: rename it';
        end if;
        return;
    end if;
    create table schedule_ingest.day_origin (
        user_id bigint not null,
        schedule_date date not null,
        shifts jsonb not null,
        until timestamptz not null,
        constraint day_origin_pkey primary key (user_id, schedule_date),
        constraint day_origin_day_fkey foreign key (user_id, schedule_date)
            references schedule_ingest.day_snapshot (user_id, schedule_date) on delete cascade,
        constraint day_origin_shifts_check check (jsonb_typeof(shifts) = 'array')
    );
    comment on table schedule_ingest.day_origin is 'made by Holdfast';
    grant select on schedule_ingest.day_origin to holdfast_worker;
end
$$
"""

# Whether all events of a day are old, and lead to its snapshot: what is not true is not made to look true.
EVICTABLE = """
create or replace function schedule_ingest.holdfast_evictable(who bigint, day date, before timestamptz)
returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $body$
    select coalesce((
        select not exists (
            select from schedule_ingest.schedule_event as e where e.user_id = who and e.schedule_date = day
            and (e.detected_at >= before or e.detected_at > s.updated_at)
        ) and not exists (
            select from (
                select jsonb_array_elements(o.shifts) as shift, 1 as sign
                from schedule_ingest.day_origin as o where o.user_id = who and o.schedule_date = day
                union all select e.new_value, 1 from schedule_ingest.schedule_event as e
                where e.user_id = who and e.schedule_date = day and e.new_value is not null
                union all select e.old_value, -1 from schedule_ingest.schedule_event as e
                where e.user_id = who and e.schedule_date = day and e.old_value is not null
                union all select jsonb_array_elements(s.snapshot_payload), -1
            ) as moved group by shift having sum(sign) <> 0
        )
        from schedule_ingest.day_snapshot as s where s.user_id = who and s.schedule_date = day
    ), false)
$body$
"""

# Day by day, under the lock by which sessions write a day; who is writing one just now is not waited for. The
# gate is that of `erase`, open for one user at a time. No more days than a server has room for locks.
EVICT = """
create or replace function schedule_ingest.evict(before timestamptz, most integer) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $body$
declare
    one record;
    gone bigint;
    total bigint = 0;
    locked integer = 0;
begin
    if before is null or most is null then
        raise exception using message = 'evict needs a time and a number of rows';
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using message = 'evict must see what others have just written: use READ COMMITTED';
    end if;
    for one in
        select e.user_id, e.schedule_date, ('x' || encode(substring(sha256(convert_to(
            e.user_id || ':' || to_char(e.schedule_date, 'YYYY-MM-DD'), 'UTF8')) for 8), 'hex')
            )::bit(64)::bigint as key
        from schedule_ingest.schedule_event as e
        group by e.user_id, e.schedule_date having max(e.detected_at) < before
    loop
        exit when total >= most or locked >= 500;
        continue when not schedule_ingest.holdfast_evictable(one.user_id, one.schedule_date, before);
        continue when not pg_try_advisory_xact_lock(one.key);
        locked = locked + 1;
        continue when not schedule_ingest.holdfast_evictable(one.user_id, one.schedule_date, before);
        insert into schedule_ingest.day_origin (user_id, schedule_date, shifts, until)
        select s.user_id, s.schedule_date, s.snapshot_payload, s.updated_at
        from schedule_ingest.day_snapshot as s
        where s.user_id = one.user_id and s.schedule_date = one.schedule_date
        on conflict (user_id, schedule_date) do update set shifts = excluded.shifts, until = excluded.until;
        perform set_config('holdfast.erasing', one.user_id::text, true);
        delete from schedule_ingest.schedule_event
        where user_id = one.user_id and schedule_date = one.schedule_date;
        get diagnostics gone = row_count;
        perform set_config('holdfast.erasing', '', true);
        total = total + gone;
    end loop;
    return total;
end
$body$
"""

# Nobody but the owner may evict.
CONFINE = """
do $$
declare
    signature text;
begin
    foreach signature in array array[
        'holdfast_evictable(bigint, date, timestamptz)', 'evict(timestamptz, integer)'
    ] loop
        execute 'revoke all on function schedule_ingest.' || signature || ' from public';
        execute 'comment on function schedule_ingest.' || signature || ' is '
            || quote_literal('made by Holdfast');
    end loop;
end
$$
"""

# The gate of `erase` is open to its owner alone. So whoever upgrades gives him what goes through it.
OWNER = """
do $$
declare
    keeper text := (
        select pg_get_userbyid(proowner) from pg_proc
        where oid = to_regprocedure('schedule_ingest.erase(bigint)')
    );
begin
    if keeper = current_user then
        return;
    end if;
    execute format('alter table schedule_ingest.day_origin owner to %I', keeper);
    execute format('alter function schedule_ingest.holdfast_evictable(bigint, date, timestamptz)'
        ' owner to %I', keeper);
    execute format('alter function schedule_ingest.evict(timestamptz, integer) owner to %I', keeper);
exception when insufficient_privilege then
    raise exception using errcode = 'insufficient_privilege', message =
        'schedule_ingest.erase belongs to ' || quote_ident(keeper) || ', and evict must as well: upgrade as '
        || 'its owner, or let an administrator run `grant ' || quote_ident(keeper) || ' to '
        || quote_ident(current_user) || '`';
end
$$
"""

# While another Holdfast of this database is as far as we are, all of this stays. So does an origin that says
# something: the events are gone, and without it their day could not be told from one that was tampered with.
LEAVE_ORIGIN = """
do $$
declare
    other regclass;
    at text;
    one record;
begin
    for other in select oid from pg_class where relname = 'holdfast_version' and relkind = 'r'
        and relnamespace <> quote_ident(current_schema())::regnamespace
    loop
        begin
            execute 'select max(version_num) from ' || other into at;
        exception when insufficient_privilege then
            at := 'unknown';
        end;
        if at >= '0007' then
            return;
        end if;
    end loop;
    for one in select oid::regprocedure as name from pg_proc
        where pronamespace = to_regnamespace('schedule_ingest') and proname in ('evict', 'holdfast_evictable')
        and obj_description(oid, 'pg_proc') = 'made by Holdfast'
    loop
        execute 'drop function ' || one.name;
    end loop;
    if obj_description(to_regclass('schedule_ingest.day_origin'), 'pg_class') = 'made by Holdfast'
        and not exists (select from schedule_ingest.day_origin) then
        drop table schedule_ingest.day_origin;
    end if;
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
    for statement in (ORIGIN, EVICTABLE, EVICT, CONFINE, OWNER):
        op.execute(statement)


def downgrade() -> None:
    op.execute(LEAVE_ORIGIN)
    op.execute(LEAVE.format(here=HERE, names=NAMES))
