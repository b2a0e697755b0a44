-- The SQL of the ledger sync_jobs. Made by tests/engine/test_golden.py; do not edit.

-- enqueue, with a payload
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."job_type" as "job_type", i."tenant_id" as "tenant_id", i."+payload"::jsonb as "+payload", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::uuid[], %(a3)b::text[]) with ordinality as i ("id", "job_type", "tenant_id", "+payload", "+place")
),
moved as (
    insert into "sync_jobs" as t ("id", "job_type", "tenant_id", "cursor", "scheduled_at", "status", "created_at", "updated_at")
    select i."id", i."job_type", i."tenant_id", i."+payload", i."+now", 'queued'::text, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("connection_id", "job_type") where "status" in ('queued', 'running') do nothing
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_sync_jobs', '') as rung) as bell;

-- enqueue, with a key and a delay
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."job_type" as "job_type", i."tenant_id" as "tenant_id", i."job_type" as "job_type", i."+delay" as "+delay", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::uuid[], %(a3)b::float8[]) with ordinality as i ("id", "job_type", "tenant_id", "job_type", "+delay", "+place")
),
moved as (
    insert into "sync_jobs" as t ("id", "job_type", "tenant_id", "scheduled_at", "status", "created_at", "updated_at")
    select i."id", i."job_type", i."tenant_id", coalesce(i."+now" + make_interval(secs => i."+delay"), i."+now"), 'queued'::text, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("connection_id", "job_type") where "status" in ('queued', 'running') do nothing
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_sync_jobs', '') as rung) as bell;

-- enqueue, with a time
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."job_type" as "job_type", i."tenant_id" as "tenant_id", i."+run_at" as "+run_at", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::uuid[], %(a3)b::timestamptz[]) with ordinality as i ("id", "job_type", "tenant_id", "+run_at", "+place")
),
moved as (
    insert into "sync_jobs" as t ("id", "job_type", "tenant_id", "scheduled_at", "status", "created_at", "updated_at")
    select i."id", i."job_type", i."tenant_id", coalesce(i."+run_at", i."+now"), 'queued'::text, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("connection_id", "job_type") where "status" in ('queued', 'running') do nothing
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_sync_jobs', '') as rung) as bell;

-- enqueue: what stood in the way
select i."+place" as place, t."id" as key, t."status"::text as state, t."job_type"::text as kind
from "sync_jobs" as t
join unnest(%(a0)b::uuid[], %(a1)b::text[]) with ordinality as i ("connection_id", "job_type", "+place") on t."connection_id" = i."connection_id" and t."job_type" = i."job_type"
where true and t."status" in ('queued', 'running');

-- copy: the clock
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

-- copy
copy "sync_jobs" ("id", "job_type", "tenant_id", "status", "created_at") from stdin;

-- claim
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_fresh" as materialized (
    select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."scheduled_at" as "rank_1", t."id" as "rank_2", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."scheduled_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is null and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[]))
    order by t."priority" desc, t."scheduled_at", t."id"
    limit %(limit)s
    for no key update of t skip locked
),
"lane_retry" as materialized (
    select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."retry_after" as "rank_1", t."id" as "rank_2", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."retry_after", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[]))
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
    for no key update of t skip locked
),
"lane_failed" as materialized (
    select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."retry_after" as "rank_1", t."id" as "rank_2", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."retry_after", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "sync_jobs" as t
    where t."status" = 'failed' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and not exists (select from "sync_jobs" as twin where twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running') offset 0) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[]))
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
    for no key update of t skip locked
),
picked as materialized (
    select * from (select * from "lane_fresh" union all select * from "lane_retry" union all (
        select distinct on (t."connection_id", t."job_type", (case when t."connection_id" is null or t."job_type" is null then t."id" end)) lane.*
        from "lane_failed" as lane join "sync_jobs" as t on t."id" = lane.key
        order by t."connection_id", t."job_type", (case when t."connection_id" is null or t."job_type" is null then t."id" end), "rank_0" desc, "rank_1", "rank_2"
    )) as lane
    order by "rank_0" desc, "rank_1", "rank_2"
    limit %(limit)s
),
moved as (
    update "sync_jobs" as t
    set "status" = 'running', "worker_id" = %(owner)s, "fence" = t."fence" + 1, "retry_after" = null, "started_at" = m.now, "finished_at" = null, "updated_at" = m.now, "attempts" = least(t."attempts", 2147483646) + 1
    from picked as m
    where t."id" = m.key
    returning t."id", t."job_type", t."cursor", t."status", t."worker_id", t."fence", t."attempts", t."max_attempts", t."tenant_id"
)
select t."id" as "id", t."job_type"::text as "kind", (t."cursor")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_attempts" as "limit", t."tenant_id" as "tenant", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_0" desc, "rank_1", "rank_2";

-- finish, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'succeeded', "retry_after" = null, "finished_at" = m.now, "updated_at" = m.now, "error" = null
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- retry, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[], %(a4)b::jsonb[]) as m ("key", "owner", "fence", "delay", "error_0")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'queued', "worker_id" = null, "retry_after" = m.due, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts", 'backoff_seconds', m.delay)) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts", 'backoff_seconds', m.delay))))
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "error_0")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'failed', "retry_after" = null, "finished_at" = m.now, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts")) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts"))))
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "error_0")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'failed', "retry_after" = null, "finished_at" = m.now, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts")) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts"))))
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- snooze, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[]) as m ("key", "owner", "fence", "delay")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'queued', "worker_id" = null, "retry_after" = m.due, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "attempts" = t."attempts" - 1
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- release, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'queued', "worker_id" = null, "retry_after" = null, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "attempts" = t."attempts" - 1
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- lose, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "error_0")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'queued', "worker_id" = null, "retry_after" = null, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts")) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts"))))
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "error_0")
),
moved as (
    update "sync_jobs" as t
    set "status" = 'failed', "retry_after" = null, "finished_at" = m.now, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts")) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts"))))
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::jsonb[]) as m ("key", "error_0")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "sync_jobs" as t join asked as m on t."id" = m.key
    where true and t."status" in ('queued', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "sync_jobs" as t
    set "status" = 'failed', "retry_after" = null, "finished_at" = m.now, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts")) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts"))))
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- requeue, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "sync_jobs" as t join asked as m on t."id" = m.key
    where true and not exists (select from "sync_jobs" as twin where twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running') offset 0) and t."status" in ('failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "sync_jobs" as t
    set "status" = 'queued', "worker_id" = null, "retry_after" = null, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "attempts" = 0
    from moves as m
    where t."id" = m.key
        and t."id" in (
            select distinct on (one."connection_id", one."job_type", (case when one."connection_id" is null or one."job_type" is null then one."id" end)) one."id"
            from moves as n join "sync_jobs" as one on one."id" = n.key
            order by one."connection_id", one."job_type", (case when one."connection_id" is null or one."job_type" is null then one."id" end), one."created_at" desc, one."id" desc
        )
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::jsonb[]) as m ("key", "error_0")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "sync_jobs" as t join asked as m on t."id" = m.key
    where t."tenant_id" = %(tenant)s and t."status" in ('queued', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "sync_jobs" as t
    set "status" = 'failed', "retry_after" = null, "finished_at" = m.now, "updated_at" = m.now, "error" = (m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts")) || jsonb_build_object('history', jsonb_path_query_array(coalesce(t."error", '{}'), '$.history[last - 8 to last]'::jsonpath) || jsonb_build_array((m."error_0" || jsonb_build_object('timestamp', to_jsonb(m.now), 'attempts', t."attempts"))))
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- requeue, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "sync_jobs" as t join asked as m on t."id" = m.key
    where t."tenant_id" = %(tenant)s and not exists (select from "sync_jobs" as twin where twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running') offset 0) and t."status" in ('failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "sync_jobs" as t
    set "status" = 'queued', "worker_id" = null, "retry_after" = null, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "attempts" = 0
    from moves as m
    where t."id" = m.key
        and t."id" in (
            select distinct on (one."connection_id", one."job_type", (case when one."connection_id" is null or one."job_type" is null then one."id" end)) one."id"
            from moves as n join "sync_jobs" as one on one."id" = n.key
            order by one."connection_id", one."job_type", (case when one."connection_id" is null or one."job_type" is null then one."id" end), one."created_at" desc, one."id" desc
        )
    returning t."id"
)
select t."id" as key from moved as t;

-- what stands in the way of a requeue
select twin."id" as key, twin."job_type"::text as kind, twin."status"::text as state
from "sync_jobs" as t join "sync_jobs" as twin on twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running')
where t."id" = %(id)s;

-- heartbeat
select t."id" as key
from "sync_jobs" as t join unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence") on t."id" = m.key
where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running');

-- held by workers that are gone
select t."id" as "id", t."job_type"::text as "kind", (t."cursor")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_attempts" as "limit", t."tenant_id" as "tenant"
from "sync_jobs" as t
where t."status" in ('running') and t."worker_id"::text = any(%(owners)s::text[])
order by t."id"
for no key update of t skip locked;

-- orphans
select t."id" as "id", t."job_type"::text as "kind", (t."cursor")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_attempts" as "limit", t."tenant_id" as "tenant"
from "sync_jobs" as t
where t."status" in ('running')
    and (
        t."worker_id" is not null and t."worker_id"::text <> all(%(alive)s::text[])
            and coalesce(t."started_at", t."updated_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs => -%(orphaned)s::float8)
        or t."worker_id" is null and coalesce(t."started_at", t."updated_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs => -%(nameless)s::float8)
    )
order by t."id"
limit %(limit)s
for no key update of t skip locked;

-- get
with picked as materialized (
    select t."id" as key
    from "sync_jobs" as t
    where t."id" = %(id)s
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."job_type"::text as "kind", t."status"::text as "state", t."cursor" as "payload", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_attempts" as "limit", t."error" ->> 'message' as "error", to_jsonb(t.*) - 'cursor' as "columns", t."tenant_id" as "tenant", null::text as "trace", case when greatest(t."scheduled_at", t."retry_after") is not null then greatest(least(greatest(t."scheduled_at", t."retry_after"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", case when t."updated_at" is not null then greatest(least(t."updated_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "updated", null::timestamptz as "claimed", case when t."started_at" is not null then greatest(least(t."started_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "started", case when t."finished_at" is not null then greatest(least(t."finished_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "finished"
from picked as p join "sync_jobs" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- find, by state and kind, after a page
with picked as materialized (
    select t."id" as key
    from "sync_jobs" as t
    where t."status" = any(%(states)s::text[]) and t."job_type"::text = %(kind)s and (t."created_at", t."id") < (%(before)s::timestamptz, %(before_key)s::uuid)
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."job_type"::text as "kind", t."status"::text as "state", t."cursor" as "payload", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_attempts" as "limit", t."error" ->> 'message' as "error", to_jsonb(t.*) - 'cursor' as "columns", t."tenant_id" as "tenant", null::text as "trace", case when greatest(t."scheduled_at", t."retry_after") is not null then greatest(least(greatest(t."scheduled_at", t."retry_after"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", case when t."updated_at" is not null then greatest(least(t."updated_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "updated", null::timestamptz as "claimed", case when t."started_at" is not null then greatest(least(t."started_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "started", case when t."finished_at" is not null then greatest(least(t."finished_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "finished"
from picked as p join "sync_jobs" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- keys, for an order by a filter
select t."id" as key
from "sync_jobs" as t
where t."status" = any(%(states)s::text[]) and t."worker_id"::text = %(owner)s and t."id" > %(after_key)s
order by t."id"
limit %(limit)s;

-- count, since a time
select t."status"::text as state, t."job_type"::text as kind, count(*) as rows
from "sync_jobs" as t
where t."created_at" >= %(created_after)s::timestamptz
group by 1, 2
order by 1, 2;

-- stats
select t."status"::text as state, count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, case when (min(greatest(t."scheduled_at", t."retry_after")) filter (where t."status" = 'queued')) is not null then greatest(least((min(greatest(t."scheduled_at", t."retry_after")) filter (where t."status" = 'queued')), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as due
from "sync_jobs" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"sync_jobs"'::regclass) as part),
    pg_relation_size('"sync_jobs"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, case when (min(greatest(t."scheduled_at", t."retry_after")) filter (where t."status" = 'queued')) is not null then greatest(least((min(greatest(t."scheduled_at", t."retry_after")) filter (where t."status" = 'queued')), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as due
from (select t."status", t."created_at", t."updated_at", t."scheduled_at", t."retry_after" from "sync_jobs" as t where t."status" = %(state)s::text limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_fresh" as materialized (
    select greatest(t."scheduled_at", t."created_at") as since
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is null and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."scheduled_at" >= '-infinity'
    order by t."priority" desc, t."scheduled_at", t."id"
    limit %(limit)s
),
"lane_retry" as materialized (
    select greatest(t."retry_after", t."created_at") as since
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."retry_after" >= '-infinity'
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
),
"lane_failed" as materialized (
    select greatest(t."retry_after", t."created_at") as since
    from "sync_jobs" as t
    where t."status" = 'failed' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and not exists (select from "sync_jobs" as twin where twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running') offset 0) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."retry_after" >= '-infinity'
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
)
select case when min(lane.since) is not null then greatest(least(min(lane.since), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as since from (select * from "lane_fresh" union all select * from "lane_retry" union all select * from "lane_failed") as lane;

-- due kinds
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_fresh" as materialized (
    select t."job_type"::text as kind
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is null and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."scheduled_at" >= '-infinity'
    order by t."priority" desc, t."scheduled_at", t."id"
    limit %(limit)s
),
"lane_retry" as materialized (
    select t."job_type"::text as kind
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."retry_after" >= '-infinity'
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
),
"lane_failed" as materialized (
    select t."job_type"::text as kind
    from "sync_jobs" as t
    where t."status" = 'failed' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and not exists (select from "sync_jobs" as twin where twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running') offset 0) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."retry_after" >= '-infinity'
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
)
select distinct lane.kind from (select * from "lane_fresh" union all select * from "lane_retry" union all select * from "lane_failed") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_fresh" as materialized (
    select t."id" as key, t."priority" as "rank_0", t."scheduled_at" as "rank_1", t."id" as "rank_2"
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is null and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."scheduled_at" >= '-infinity'
    order by t."priority" desc, t."scheduled_at", t."id"
    limit %(limit)s
),
"lane_retry" as materialized (
    select t."id" as key, t."priority" as "rank_0", t."retry_after" as "rank_1", t."id" as "rank_2"
    from "sync_jobs" as t
    where t."status" = 'queued' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."retry_after" >= '-infinity'
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
),
"lane_failed" as materialized (
    select t."id" as key, t."priority" as "rank_0", t."retry_after" as "rank_1", t."id" as "rank_2"
    from "sync_jobs" as t
    where t."status" = 'failed' and t."retry_after" is not null and t."retry_after" <= (select now from clock) and t."scheduled_at" <= (select now from clock) and not exists (select from "sync_jobs" as twin where twin."connection_id" = t."connection_id" and twin."job_type" = t."job_type" and twin."status" in ('queued', 'running') offset 0) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."retry_after" >= '-infinity'
    order by t."priority" desc, t."retry_after", t."id"
    limit %(limit)s
),
ranked as (
    select lane.key, row_number() over (order by "rank_0" desc, "rank_1", "rank_2") as place from (select * from "lane_fresh" union all select * from "lane_retry" union all select * from "lane_failed") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."status"::text as state, t.xmax as by from "sync_jobs" as t where t."id" = %(id)s
),
touchers as materialized (
    select by from touched
    union
    select m.xid
    from touched, pg_get_multixact_members(
        case
            when mxid_age(by) between 1 and (select max(mxid_age(datminmxid)) from pg_database) then by
        end
    ) as m (xid, mode)
    where m.mode <> 'keysh'
)
select touched.state, lock.transactionid is not null as locked, lock.pid, a.application_name as program,
    a.usename as login, a.state as session,
    extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds
from touched
left join pg_locks as lock
    on lock.locktype = 'transactionid' and lock.granted and lock.mode = 'ExclusiveLock'
    and lock.transactionid in (select by from touchers) and lock.pid is distinct from pg_backend_pid()
left join pg_stat_activity as a on a.pid = lock.pid
order by a.xact_start nulls last
limit 1;

-- marks
select t."id" as key, concat_ws(' ', t."status", t."worker_id", t."fence", t."updated_at", t."finished_at", t."attempts", t."retry_after") as mark
from "sync_jobs" as t
where t."id" = any(%(keys)s::uuid[]);

-- held, by worker
select t."worker_id"::text as holder, count(*) as rows
from "sync_jobs" as t
where t."status" = 'running'
group by 1;
