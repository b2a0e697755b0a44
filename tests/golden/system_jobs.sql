-- The SQL of the ledger system_jobs. Made by tests/engine/test_golden.py; do not edit.

-- enqueue, with a payload
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
items as materialized (
    select i."id" as "id", i."job_type" as "job_type", i."+payload"::jsonb as "+payload", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::text[]) with ordinality as i ("id", "job_type", "+payload", "+place")
),
moved as (
    insert into "system"."jobs" as t ("id", "job_type", "parameters", "run_at", "status", "created_at", "updated_at")
    select i."id", i."job_type", i."+payload", i."+now", 'queued'::text, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("idempotency_key") where "idempotency_key" is not null and "status" in ('new', 'queued', 'running', 'retrying') do nothing
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_system_jobs', '') as rung) as bell;

-- enqueue, with a key and a delay
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
items as materialized (
    select i."id" as "id", i."job_type" as "job_type", i."idempotency_key" as "idempotency_key", i."+delay" as "+delay", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::text[], %(a3)b::float8[]) with ordinality as i ("id", "job_type", "idempotency_key", "+delay", "+place")
),
moved as (
    insert into "system"."jobs" as t ("id", "job_type", "idempotency_key", "run_at", "status", "created_at", "updated_at")
    select i."id", i."job_type", i."idempotency_key", coalesce(i."+now" + ceil(i."+delay" * 1000)::bigint, i."+now"), 'queued'::text, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("idempotency_key") where "idempotency_key" is not null and "status" in ('new', 'queued', 'running', 'retrying') do nothing
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_system_jobs', '') as rung) as bell;

-- enqueue, with a time
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
items as materialized (
    select i."id" as "id", i."job_type" as "job_type", i."+run_at" as "+run_at", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::timestamptz[]) with ordinality as i ("id", "job_type", "+run_at", "+place")
),
moved as (
    insert into "system"."jobs" as t ("id", "job_type", "run_at", "status", "created_at", "updated_at")
    select i."id", i."job_type", coalesce(ceil(extract(epoch from i."+run_at") * 1000)::bigint, i."+now"), 'queued'::text, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("idempotency_key") where "idempotency_key" is not null and "status" in ('new', 'queued', 'running', 'retrying') do nothing
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_system_jobs', '') as rung) as bell;

-- enqueue: what stood in the way
select i."+place" as place, t."id" as key, t."status"::text as state, t."job_type"::text as kind
from "system"."jobs" as t
join unnest(%(a0)b::text[]) with ordinality as i ("idempotency_key", "+place") on t."idempotency_key" = i."idempotency_key"
where true and t."idempotency_key" is not null and t."status" in ('new', 'queued', 'running', 'retrying');

-- copy: the clock
select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now;

-- copy
copy "system"."jobs" ("id", "job_type", "status", "created_at") from stdin;

-- claim
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"lane_due" as materialized (
    select lane.*
    from unnest(%(queues)s::text[]) as q (name), lateral (
        select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."run_at" as "rank_1", (select now from clock) as now,
            ((select now from clock) - greatest(least(greatest(t."run_at", t."created_at"), (select now from clock)), 0)) / 1000.0::float8 as waited
        from "system"."jobs" as t
        where coalesce(t."queue", 'default') = q.name and t."status" in ('queued', 'retrying') and t."run_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[]))
        order by t."priority" desc nulls last, t."run_at"
        limit %(limit)s
        for no key update of t skip locked
    ) as lane
),
picked as materialized (
    select * from (select * from "lane_due") as lane
    order by "rank_0" desc nulls last, "rank_1"
    limit %(limit)s
),
moved as (
    update "system"."jobs" as t
    set "status" = 'running', "node_id" = %(owner)s, "fence" = t."fence" + 1, "started_at" = m.now, "updated_at" = m.now
    from picked as m
    where t."id" = m.key
    returning t."id", t."job_type", t."parameters", t."status", t."node_id", t."fence", t."retry_count", t."max_retries"
)
select t."id" as "id", t."job_type"::text as "kind", (t."parameters")::text as "payload", t."status"::text as "state", t."node_id"::text as "owner", t."fence" as "fence", t."retry_count" as "attempts", t."max_retries" as "limit", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_0" desc nulls last, "rank_1";

-- finish, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[]) as m ("key", "owner", "fence", "result")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'completed', "finished_at" = m.now, "updated_at" = m.now, "message" = m.result, "exception_trace" = null
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- retry, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + ceil(m.delay * 1000)::bigint as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[], %(a4)b::text[], %(a5)b::text[]) as m ("key", "owner", "fence", "delay", "error_0", "error_1")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'retrying', "node_id" = null, "run_at" = m.due, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "retry_count" = t."retry_count" + 1, "message" = m."error_0", "exception_trace" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[]) as m ("key", "owner", "fence", "error_0", "error_1")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'failed', "finished_at" = m.now, "updated_at" = m.now, "message" = m."error_0", "exception_trace" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[]) as m ("key", "owner", "fence", "error_0", "error_1")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'failed', "finished_at" = m.now, "updated_at" = m.now, "message" = m."error_0", "exception_trace" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- snooze, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + ceil(m.delay * 1000)::bigint as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[]) as m ("key", "owner", "fence", "delay")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'queued', "node_id" = null, "run_at" = m.due, "started_at" = null, "finished_at" = null, "updated_at" = m.now
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- release, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'queued', "node_id" = null, "run_at" = m.now, "started_at" = null, "finished_at" = null, "updated_at" = m.now
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- lose, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[]) as m ("key", "owner", "fence", "error_0", "error_1")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'failed', "finished_at" = m.now, "updated_at" = m.now, "message" = m."error_0", "exception_trace" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[]) as m ("key", "owner", "fence", "error_0", "error_1")
),
moved as (
    update "system"."jobs" as t
    set "status" = 'cancelled', "finished_at" = m.now, "updated_at" = m.now, "message" = m."error_0", "exception_trace" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "error_0", "error_1")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "system"."jobs" as t join asked as m on t."id" = m.key
    where true and t."status" in ('new', 'queued', 'running', 'retrying')
    order by t."id"
    for no key update of t
),
moved as (
    update "system"."jobs" as t
    set "status" = 'cancelled', "finished_at" = m.now, "updated_at" = m.now, "message" = m."error_0", "exception_trace" = m."error_1"
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- requeue, by a person
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "system"."jobs" as t join asked as m on t."id" = m.key
    where true and t."status" in ('new')
    order by t."id"
    for no key update of t
),
moved as (
    update "system"."jobs" as t
    set "status" = 'queued', "node_id" = null, "run_at" = m.now, "started_at" = null, "finished_at" = null, "updated_at" = m.now, "retry_count" = 0
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- what stands in the way of a requeue
select twin."id" as key, twin."job_type"::text as kind, twin."status"::text as state
from "system"."jobs" as t join "system"."jobs" as twin on twin."idempotency_key" = t."idempotency_key" and twin."status" in ('new', 'queued', 'running', 'retrying')
where t."id" = %(id)s;

-- heartbeat
select t."id" as key
from "system"."jobs" as t join unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence") on t."id" = m.key
where t."fence" = m.fence and t."node_id" is not distinct from m.owner and t."status" in ('running');

-- held by workers that are gone
select t."id" as "id", t."job_type"::text as "kind", (t."parameters")::text as "payload", t."status"::text as "state", t."node_id"::text as "owner", t."fence" as "fence", t."retry_count" as "attempts", t."max_retries" as "limit"
from "system"."jobs" as t
where t."status" in ('running') and t."node_id"::text = any(%(owners)s::text[])
order by t."id"
for no key update of t skip locked;

-- orphans
select t."id" as "id", t."job_type"::text as "kind", (t."parameters")::text as "payload", t."status"::text as "state", t."node_id"::text as "owner", t."fence" as "fence", t."retry_count" as "attempts", t."max_retries" as "limit"
from "system"."jobs" as t
where t."status" in ('running')
    and (
        t."node_id" is not null and t."node_id"::text <> all(%(alive)s::text[])
            and coalesce(t."started_at", t."updated_at", t."created_at") < (select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint) + ceil(-%(orphaned)s::float8 * 1000)::bigint
        or t."node_id" is null and coalesce(t."started_at", t."updated_at", t."created_at") < (select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint) + ceil(-%(nameless)s::float8 * 1000)::bigint
    )
order by t."id"
limit %(limit)s
for no key update of t skip locked;

-- get
with picked as materialized (
    select t."id" as key
    from "system"."jobs" as t
    where t."id" = %(id)s
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."job_type"::text as "kind", t."status"::text as "state", t."parameters" as "payload", t."node_id"::text as "owner", t."fence" as "fence", t."retry_count" as "attempts", t."max_retries" as "limit", case when t."status" <> 'completed' then t."message" end as "error", to_jsonb(t.*) - 'parameters' as "columns", null::text as "tenant", null::text as "trace", case when t."run_at" is not null then to_timestamp(greatest(least(t."run_at", 253402300799999), -62135596800000) / 1000.0) end as "due", case when t."created_at" is not null then to_timestamp(greatest(least(t."created_at", 253402300799999), -62135596800000) / 1000.0) end as "created", case when t."updated_at" is not null then to_timestamp(greatest(least(t."updated_at", 253402300799999), -62135596800000) / 1000.0) end as "updated", null::timestamptz as "claimed", case when t."started_at" is not null then to_timestamp(greatest(least(t."started_at", 253402300799999), -62135596800000) / 1000.0) end as "started", case when t."finished_at" is not null then to_timestamp(greatest(least(t."finished_at", 253402300799999), -62135596800000) / 1000.0) end as "finished"
from picked as p join "system"."jobs" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- find, by state and kind, after a page
with picked as materialized (
    select t."id" as key
    from "system"."jobs" as t
    where t."status" = any(%(states)s::text[]) and t."job_type"::text = %(kind)s and (t."created_at", t."id") < (ceil(extract(epoch from %(before)s::timestamptz) * 1000)::bigint, %(before_key)s::text)
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."job_type"::text as "kind", t."status"::text as "state", t."parameters" as "payload", t."node_id"::text as "owner", t."fence" as "fence", t."retry_count" as "attempts", t."max_retries" as "limit", case when t."status" <> 'completed' then t."message" end as "error", to_jsonb(t.*) - 'parameters' as "columns", null::text as "tenant", null::text as "trace", case when t."run_at" is not null then to_timestamp(greatest(least(t."run_at", 253402300799999), -62135596800000) / 1000.0) end as "due", case when t."created_at" is not null then to_timestamp(greatest(least(t."created_at", 253402300799999), -62135596800000) / 1000.0) end as "created", case when t."updated_at" is not null then to_timestamp(greatest(least(t."updated_at", 253402300799999), -62135596800000) / 1000.0) end as "updated", null::timestamptz as "claimed", case when t."started_at" is not null then to_timestamp(greatest(least(t."started_at", 253402300799999), -62135596800000) / 1000.0) end as "started", case when t."finished_at" is not null then to_timestamp(greatest(least(t."finished_at", 253402300799999), -62135596800000) / 1000.0) end as "finished"
from picked as p join "system"."jobs" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- keys, for an order by a filter
select t."id" as key
from "system"."jobs" as t
where t."status" = any(%(states)s::text[]) and t."node_id"::text = %(owner)s and t."id" > %(after_key)s
order by t."id"
limit %(limit)s;

-- count, since a time
select t."status"::text as state, t."job_type"::text as kind, count(*) as rows
from "system"."jobs" as t
where t."created_at" >= ceil(extract(epoch from %(created_after)s::timestamptz) * 1000)::bigint
group by 1, 2
order by 1, 2;

-- stats
select t."status"::text as state, count(*) as rows, case when min(t."created_at") is not null then to_timestamp(greatest(least(min(t."created_at"), 253402300799999), -62135596800000) / 1000.0) end as oldest, case when (min(t."run_at") filter (where t."status" in ('queued', 'retrying'))) is not null then to_timestamp(greatest(least((min(t."run_at") filter (where t."status" in ('queued', 'retrying'))), 253402300799999), -62135596800000) / 1000.0) end as due
from "system"."jobs" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"system"."jobs"'::regclass) as part),
    pg_relation_size('"system"."jobs"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."created_at") is not null then to_timestamp(greatest(least(min(t."created_at"), 253402300799999), -62135596800000) / 1000.0) end as oldest, case when (min(t."run_at") filter (where t."status" in ('queued', 'retrying'))) is not null then to_timestamp(greatest(least((min(t."run_at") filter (where t."status" in ('queued', 'retrying'))), 253402300799999), -62135596800000) / 1000.0) end as due
from (select t."status", t."created_at", t."updated_at", t."run_at" from "system"."jobs" as t where t."status" = %(state)s::text limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"queues_due" (name) as (
    (select coalesce(t."queue", 'default') from "system"."jobs" as t where t."status" in ('queued', 'retrying') order by coalesce(t."queue", 'default') limit 1)
    union all
    select (
        select coalesce(t."queue", 'default') from "system"."jobs" as t where t."status" in ('queued', 'retrying') and coalesce(t."queue", 'default') > q.name order by coalesce(t."queue", 'default') limit 1
    )
    from "queues_due" as q where q.name is not null
),
"lane_due" as materialized (
    select lane.*
    from "queues_due" as q, lateral (
        select greatest(t."run_at", t."created_at") as since
        from "system"."jobs" as t
        where coalesce(t."queue", 'default') = q.name and t."status" in ('queued', 'retrying') and t."run_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."run_at" >= -9223372036854775807
        order by t."priority" desc nulls last, t."run_at"
        limit %(limit)s
    ) as lane
)
select case when min(lane.since) is not null then to_timestamp(greatest(least(min(lane.since), 253402300799999), -62135596800000) / 1000.0) end as since from (select * from "lane_due") as lane;

-- due kinds
with recursive clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"queues_due" (name) as (
    (select coalesce(t."queue", 'default') from "system"."jobs" as t where t."status" in ('queued', 'retrying') order by coalesce(t."queue", 'default') limit 1)
    union all
    select (
        select coalesce(t."queue", 'default') from "system"."jobs" as t where t."status" in ('queued', 'retrying') and coalesce(t."queue", 'default') > q.name order by coalesce(t."queue", 'default') limit 1
    )
    from "queues_due" as q where q.name is not null
),
"lane_due" as materialized (
    select lane.*
    from "queues_due" as q, lateral (
        select t."job_type"::text as kind
        from "system"."jobs" as t
        where coalesce(t."queue", 'default') = q.name and t."status" in ('queued', 'retrying') and t."run_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."run_at" >= -9223372036854775807
        order by t."priority" desc nulls last, t."run_at"
        limit %(limit)s
    ) as lane
)
select distinct lane.kind from (select * from "lane_due") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"lane_due" as materialized (
    select lane.*
    from unnest(%(queues)s::text[]) as q (name), lateral (
        select t."id" as key, t."priority" as "rank_0", t."run_at" as "rank_1"
        from "system"."jobs" as t
        where coalesce(t."queue", 'default') = q.name and t."status" in ('queued', 'retrying') and t."run_at" <= (select now from clock) and (%(kinds)s::text[] is null or t."job_type" = any(%(kinds)s::text[])) and t."run_at" >= -9223372036854775807
        order by t."priority" desc nulls last, t."run_at"
        limit %(limit)s
    ) as lane
),
ranked as (
    select lane.key, row_number() over (order by "rank_0" desc nulls last, "rank_1") as place from (select * from "lane_due") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."status"::text as state, t.xmax as by from "system"."jobs" as t where t."id" = %(id)s
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
select t."id" as key, concat_ws(' ', t."status", t."node_id", t."fence", t."updated_at", t."finished_at", t."retry_count", t."run_at") as mark
from "system"."jobs" as t
where t."id" = any(%(keys)s::text[]);

-- held, by worker
select t."node_id"::text as holder, count(*) as rows
from "system"."jobs" as t
where t."status" = 'running'
group by 1;
