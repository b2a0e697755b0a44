-- Holdfast 0002: job and job_event
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
if (select max(version_num) from holdfast_version) is distinct from '0001' then
    return;
end if;

do $$
declare
    mine boolean;
    forced boolean;
    unread boolean;
begin
    if current_schema() is distinct from 'public' then
        return;
    end if;
    -- The second look is under the lock: what the first one saw may have changed while we waited.
    for look in 1..2 loop
        select pg_has_role(relowner, 'USAGE'), relforcerowsecurity into mine, forced from pg_class
            where oid = to_regclass('public.jobs') and relkind = 'r'
            and (
                select array_agg(attname::text order by attname) from pg_attribute
                where attrelid = pg_class.oid and attnum > 0 and not attisdropped
            ) = array['created_at', 'error', 'id', 'progress', 'result', 'stage', 'status', 'updated_at']
            and 2 = (
                select count(*) from pg_attribute where attrelid = pg_class.oid and not attisdropped
                and (attname, atttypid) in (('id', 'uuid'::regtype), ('result', 'jsonb'::regtype))
            );
        if not found then
            return;
        end if;
        if not mine then
            raise notice 'the old table public.jobs belongs to another role and stays as it is';
            return;
        end if;
        if look = 1 then
            lock table public.jobs in access exclusive mode;
        end if;
    end loop;
    -- Rows that this transaction cannot see are rows, too.
    unread := forced or (
        current_setting('transaction_isolation') <> 'read committed'
        and pg_relation_size(to_regclass('public.jobs')) > 0
    );
    if not unread and not exists (select from public.jobs) then
        begin
            drop table public.jobs;
            return;
        exception when dependent_objects_still_exist then null;
        end;
    end if;
    alter table public.jobs rename to jobs_superseded;
exception when duplicate_table or duplicate_object then
    raise notice 'the old table public.jobs stays as it is: the name jobs_superseded is taken';
end
$$;

do $$
declare
    wanted text;
begin
    foreach wanted in array array['holdfast_tenant', 'holdfast_worker'] loop
        if not exists (select from pg_roles where rolname = wanted) then
            begin
                execute 'create role ' || wanted || ' nologin';
            exception
                when duplicate_object or unique_violation then null;
                when insufficient_privilege then
                    raise exception using errcode = 'insufficient_privilege', message =
                        'the role ' || wanted || ' is missing and ' || quote_ident(current_user)
                        || ' may not create roles: an administrator must first run '
                        || '`create role holdfast_tenant nologin; create role holdfast_worker nologin; '
                        || 'grant holdfast_tenant, holdfast_worker to ' || quote_ident(current_user) || '`';
            end;
        end if;
    end loop;
end
$$;

do $$
declare
    apart boolean := current_setting('server_version_num')::int >= 160000;
    needed text := case when apart then 'SET' else 'MEMBER' end;
    wanted text;
begin
    foreach wanted in array array['holdfast_tenant', 'holdfast_worker'] loop
        if not pg_has_role(wanted, needed) then
            begin
                execute 'grant ' || wanted || ' to current_user'
                    || case when apart then ' with inherit false, set true' else '' end;
            exception when insufficient_privilege or unique_violation then null;
            end;
        end if;
        if not pg_has_role(wanted, needed) then
            raise notice using message = quote_ident(current_user) || ' may not act as ' || wanted
                || ': an administrator can run `grant ' || wanted || ' to ' || quote_ident(current_user)
                || '`';
        end if;
    end loop;
end
$$;

do $$
declare
    labels text;
begin
    create type job_status as enum ('queued', 'running', 'succeeded', 'failed', 'canceled', 'dead_letter');
    comment on type job_status is 'made by Holdfast';
exception when duplicate_object then
    select string_agg(enumlabel, ' ' order by enumsortorder) into labels from pg_enum
        where enumtypid = to_regtype(quote_ident(current_schema()) || '.job_status');
    if labels is distinct from 'queued running succeeded failed canceled dead_letter' then
        raise exception using message =
            'the type job_status exists in this schema with other values: '
            'rename it, or give Holdfast a schema of its own';
    end if;
end
$$;

do $$
declare
    labels text;
begin
    create type job_backoff_policy as enum ('none', 'fixed', 'exp');
    comment on type job_backoff_policy is 'made by Holdfast';
exception when duplicate_object then
    select string_agg(enumlabel, ' ' order by enumsortorder) into labels from pg_enum
        where enumtypid = to_regtype(quote_ident(current_schema()) || '.job_backoff_policy');
    if labels is distinct from 'none fixed exp' then
        raise exception using message =
            'the type job_backoff_policy exists in this schema with other values: '
            'rename it, or give Holdfast a schema of its own';
    end if;
end
$$;

create table job (
    id uuid not null default gen_random_uuid(),
    org_id uuid not null,
    type varchar(100) not null,
    status job_status not null default 'queued',
    attempt int not null default 0,
    max_attempts int not null default 5,
    backoff_policy job_backoff_policy not null default 'exp',
    priority int not null default 0,
    idempotency_key varchar(255),
    requested_by varchar(255),
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz,
    last_error_code varchar(64),
    last_error_message varchar(2048),
    queue text not null default 'default',
    run_at timestamptz not null default now(),
    payload jsonb,
    worker_id text,
    fence bigint not null default 0,
    constraint pk_job primary key (id),
    constraint ck_job__status_finished_at_consistency
        check ((finished_at is not null) = (status in ('succeeded', 'canceled', 'dead_letter')))
);

create index idx_job__job_org_id on job (org_id);

create index idx_job__org_id_created_at_desc on job (org_id, created_at desc);

create unique index idx_job__org_id_idempotency_key on job (org_id, idempotency_key)
where idempotency_key is not null;

create index idx_job__status_created_at on job (status, created_at);

create index idx_job__claimable on job (queue, priority desc, run_at)
where status in ('queued', 'failed');

create index idx_job__held on job (worker_id) where status = 'running';

create table job_event (
    id uuid not null default gen_random_uuid(),
    job_id uuid not null,
    ts timestamptz not null default now(),
    prev_status varchar(50),
    next_status varchar(50) not null,
    detail_json jsonb,
    seq bigint not null generated always as identity,
    constraint pk_job_event primary key (id),
    constraint fk_job_event_job_job_id foreign key (job_id) references job (id) on delete cascade
);

create index idx_job_event__job_id_ts on job_event (job_id, ts);

create index idx_job_event__ts on job_event (ts);

create function job_event_append_only() returns trigger
language plpgsql security definer set row_security = off as $body$
begin
    if tg_op = 'DELETE' then
        -- The eviction job has said so, for its transaction; or the job is gone, and this is its cascade.
        if current_setting('holdfast.evict', true) = 'on' then
            return old;
        end if;
        if not exists (select from job where id = old.job_id) then
            return old;
        end if;
    end if;
    raise exception using errcode = 'restrict_violation', message =
        'job_event is append-only: ' || lower(tg_op) || ' is refused';
end
$body$;

create trigger trg_job_event__append_only
before update or delete on job_event
for each row execute function job_event_append_only();

create trigger trg_job_event__no_truncate
before truncate on job_event
for each statement execute function job_event_append_only();

create function job_is_visible(wanted uuid) returns boolean
language plpgsql volatile security invoker as $body$
begin
    return exists (select from job where id = wanted);
end
$body$;

do $$
declare
    signature text;
begin
    foreach signature in array array['job_event_append_only()', 'job_is_visible(uuid)'] loop
        execute 'alter function ' || signature || ' set search_path = '
            || quote_ident(current_schema()) || ', pg_temp';
        execute 'revoke all on function ' || signature || ' from public';
    end loop;
    grant execute on function job_is_visible(uuid) to holdfast_tenant;
end
$$;

alter table job enable row level security;

alter table job_event enable row level security;

create policy job_tenant_select on job for select to holdfast_tenant
using (org_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid));

create policy job_tenant_insert on job for insert to holdfast_tenant
with check (
    org_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid) and status = 'queued'
    and max_attempts >= 0 and isfinite(created_at) and isfinite(updated_at) and isfinite(run_at)
);

create policy job_tenant_update on job for update to holdfast_tenant
using (
    org_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid)
    and status in ('queued', 'failed', 'running', 'dead_letter')
)
with check (
    org_id = (select nullif(current_setting('holdfast.org_id', true), '')::uuid)
    and status in ('queued', 'canceled')
);

create policy job_event_tenant_select on job_event for select to holdfast_tenant
using (exists (select from job where job.id = job_event.job_id));

create policy job_event_tenant_insert on job_event for insert to holdfast_tenant
with check (next_status in ('queued', 'canceled') and isfinite(ts) and job_is_visible(job_id));

grant select on job, job_event to holdfast_tenant;

grant insert (
    id, org_id, type, status, max_attempts, backoff_policy, priority, idempotency_key, requested_by,
    created_at, updated_at, queue, run_at, payload
) on job to holdfast_tenant;

grant update (status, attempt, run_at, started_at, finished_at, updated_at, worker_id)
on job to holdfast_tenant;

grant insert (job_id, ts, prev_status, next_status, detail_json) on job_event to holdfast_tenant;

create policy job_worker_select on job for select to holdfast_worker using (true);

create policy job_worker_update on job for update to holdfast_worker using (true) with check (true);

create policy job_event_worker_select on job_event for select to holdfast_worker using (true);

create policy job_event_worker_insert on job_event for insert to holdfast_worker with check (true);

grant select on job, job_event to holdfast_worker;

grant update (
    status, attempt, run_at, started_at, finished_at, updated_at, last_error_code, last_error_message,
    worker_id, fence
) on job to holdfast_worker;

grant insert (job_id, ts, prev_status, next_status, detail_json) on job_event to holdfast_worker;

grant select, insert, update, delete on workers to holdfast_worker;

grant select, update on tasks to holdfast_worker;

grant select on holdfast_version to holdfast_tenant, holdfast_worker;

do $$
begin
    execute 'grant usage on schema ' || quote_ident(current_schema())
        || ' to holdfast_tenant, holdfast_worker';
exception when insufficient_privilege then
    raise notice using message = 'holdfast_tenant and holdfast_worker may need `grant usage on schema '
        || quote_ident(current_schema()) || '` from its owner';
end
$$;

delete from holdfast_version;
insert into holdfast_version (version_num) values ('0002');
end
$holdfast$;
