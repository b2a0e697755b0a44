-- The SQL of the ledger tasks. Made by tests/engine/test_golden.py; do not edit.

-- enqueue, with a payload
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
items as materialized (
    select i."id" as "id", i."type" as "type", i."+payload"::jsonb as "+payload", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[]) with ordinality as i ("id", "type", "+payload", "+place")
),
moved as (
    insert into "tasks" as t ("id", "type", "payload", "status", "created_at", "updated_at")
    select i."id", i."type", i."+payload", 'pending'::task_status, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("type", "idempotency_key") do update set "updated_at" = excluded."updated_at"
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_tasks', '') as rung) as bell;

-- enqueue, with a key and a delay
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
items as materialized (
    select i."id" as "id", i."type" as "type", i."idempotency_key" as "idempotency_key", i."+delay" as "+delay", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[], %(a3)b::float8[]) with ordinality as i ("id", "type", "idempotency_key", "+delay", "+place")
),
moved as (
    insert into "tasks" as t ("id", "type", "idempotency_key", "next_retry_at", "status", "created_at", "updated_at")
    select i."id", i."type", i."idempotency_key", i."+now" + make_interval(secs => i."+delay"), 'pending'::task_status, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("type", "idempotency_key") do update set "updated_at" = excluded."updated_at"
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_tasks', '') as rung) as bell;

-- enqueue, with a time
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
items as materialized (
    select i."id" as "id", i."type" as "type", i."+run_at" as "+run_at", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::timestamptz[]) with ordinality as i ("id", "type", "+run_at", "+place")
),
moved as (
    insert into "tasks" as t ("id", "type", "next_retry_at", "status", "created_at", "updated_at")
    select i."id", i."type", i."+run_at" at time zone 'UTC', 'pending'::task_status, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("type", "idempotency_key") do update set "updated_at" = excluded."updated_at"
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_tasks', '') as rung) as bell;

-- copy: the clock
select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now;

-- copy
copy "tasks" ("id", "type", "status", "created_at") from stdin;

-- claim
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
"lane_fresh" as materialized (
    select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."created_at" as "rank_1", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."updated_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "tasks" as t
    where t."status" = 'pending' and t."next_retry_at" is null
    order by t."priority" desc, t."created_at"
    limit %(limit)s
    for no key update of t skip locked
),
"lane_retry" as materialized (
    select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."next_retry_at" as "rank_1", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."next_retry_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "tasks" as t
    where t."status" = 'pending' and t."next_retry_at" is not null and t."next_retry_at" <= (select now from clock)
    order by t."priority" desc, t."next_retry_at"
    limit %(limit)s
    for no key update of t skip locked
),
picked as materialized (
    select * from (select * from "lane_fresh" union all select * from "lane_retry") as lane
    order by "rank_0" desc, "rank_1"
    limit %(limit)s
),
moved as (
    update "tasks" as t
    set "status" = 'claimed', "worker_id" = %(owner)s, "fence" = t."fence" + 1, "next_retry_at" = null, "claimed_at" = m.now, "updated_at" = m.now
    from picked as m
    where t."id" = m.key
    returning t."id", t."type", t."payload", t."status", t."worker_id", t."fence", t."attempts", t."max_retries", t."traceparent"
)
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_retries" as "limit", t."traceparent" as "trace", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_0" desc, "rank_1";

-- claim of some kinds
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
"lane_fresh" as materialized (
    select lane.*
    from unnest(%(kinds)s::text[]) as k (name), lateral (
        select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."created_at" as "rank_1", (select now from clock) as now,
            extract(epoch from (select now from clock) - greatest(least(greatest(t."updated_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
        from "tasks" as t
        where t."type" between k.name and k.name and t."status" = 'pending' and t."next_retry_at" is null
        order by t."type", t."priority" desc, t."created_at"
        limit %(limit)s
        for no key update of t skip locked
    ) as lane
),
"lane_retry" as materialized (
    select lane.*
    from unnest(%(kinds)s::text[]) as k (name), lateral (
        select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."next_retry_at" as "rank_1", (select now from clock) as now,
            extract(epoch from (select now from clock) - greatest(least(greatest(t."next_retry_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
        from "tasks" as t
        where t."type" between k.name and k.name and t."status" = 'pending' and t."next_retry_at" is not null and t."next_retry_at" <= (select now from clock)
        order by t."type", t."priority" desc, t."next_retry_at"
        limit %(limit)s
        for no key update of t skip locked
    ) as lane
),
picked as materialized (
    select * from (select * from "lane_fresh" union all select * from "lane_retry") as lane
    order by "rank_0" desc, "rank_1"
    limit %(limit)s
),
moved as (
    update "tasks" as t
    set "status" = 'claimed', "worker_id" = %(owner)s, "fence" = t."fence" + 1, "next_retry_at" = null, "claimed_at" = m.now, "updated_at" = m.now
    from picked as m
    where t."id" = m.key
    returning t."id", t."type", t."payload", t."status", t."worker_id", t."fence", t."attempts", t."max_retries", t."traceparent"
)
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_retries" as "limit", t."traceparent" as "trace", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_0" desc, "rank_1";

-- start, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
moves as materialized (
    select m.*, 'claimed'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence")
),
moved as (
    update "tasks" as t
    set "status" = 'running', "started_at" = m.now, "updated_at" = m.now
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('claimed')
    returning t."id"
)
select t."id" as key from moved as t;

-- finish, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence")
),
moved as (
    update "tasks" as t
    set "status" = 'completed', "next_retry_at" = null, "completed_at" = m.now, "updated_at" = m.now, "attempts" = t."attempts" + 1
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- retry, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[], %(a4)b::text[]) as m ("key", "owner", "fence", "delay", "error_0")
),
moved as (
    update "tasks" as t
    set "status" = 'pending', "worker_id" = null, "next_retry_at" = m.due, "claimed_at" = null, "started_at" = null, "completed_at" = null, "updated_at" = m.now, "attempts" = t."attempts" + 1, "last_error" = m."error_0"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[]) as m ("key", "owner", "fence", "error_0")
),
moved as (
    update "tasks" as t
    set "status" = 'dead_letter', "next_retry_at" = null, "completed_at" = m.now, "updated_at" = m.now, "attempts" = t."attempts" + 1, "last_error" = m."error_0"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[]) as m ("key", "owner", "fence", "error_0")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "tasks" as t join asked as m on t."id" = m.key
    where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('claimed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "tasks" as t
    set "status" = 'failed', "next_retry_at" = null, "completed_at" = m.now, "updated_at" = m.now, "attempts" = t."attempts" + (m.prev = 'running')::int, "last_error" = m."error_0"
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- snooze, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[]) as m ("key", "owner", "fence", "delay")
),
moved as (
    update "tasks" as t
    set "status" = 'pending', "worker_id" = null, "next_retry_at" = m.due, "claimed_at" = null, "started_at" = null, "completed_at" = null, "updated_at" = m.now
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id"
)
select t."id" as key from moved as t;

-- release, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "tasks" as t join asked as m on t."id" = m.key
    where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('claimed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "tasks" as t
    set "status" = 'pending', "worker_id" = null, "next_retry_at" = null, "claimed_at" = null, "started_at" = null, "completed_at" = null, "updated_at" = m.now
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- lose, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[]) as m ("key", "owner", "fence", "error_0")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "tasks" as t join asked as m on t."id" = m.key
    where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('claimed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "tasks" as t
    set "status" = 'pending', "worker_id" = null, "next_retry_at" = null, "claimed_at" = null, "started_at" = null, "completed_at" = null, "updated_at" = m.now, "attempts" = t."attempts" + (m.prev = 'running')::int, "last_error" = m."error_0"
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[]) as m ("key", "owner", "fence", "error_0")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "tasks" as t join asked as m on t."id" = m.key
    where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('claimed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "tasks" as t
    set "status" = 'failed', "next_retry_at" = null, "completed_at" = m.now, "updated_at" = m.now, "last_error" = m."error_0"
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[]) as m ("key", "error_0")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "tasks" as t join asked as m on t."id" = m.key
    where true and t."status" in ('pending', 'claimed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "tasks" as t
    set "status" = 'failed', "next_retry_at" = null, "completed_at" = m.now, "updated_at" = m.now, "last_error" = m."error_0"
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- requeue, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "tasks" as t join asked as m on t."id" = m.key
    where true and t."status" in ('dead_letter', 'failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "tasks" as t
    set "status" = 'pending', "worker_id" = null, "next_retry_at" = null, "claimed_at" = null, "started_at" = null, "completed_at" = null, "updated_at" = m.now, "attempts" = 0
    from moves as m
    where t."id" = m.key
    returning t."id"
)
select t."id" as key from moved as t;

-- heartbeat
select t."id" as key
from "tasks" as t join unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence") on t."id" = m.key
where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('claimed', 'running');

-- held by workers that are gone
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_retries" as "limit", t."traceparent" as "trace"
from "tasks" as t
where t."status" in ('claimed', 'running') and t."worker_id"::text = any(%(owners)s::text[])
order by t."id"
for no key update of t skip locked;

-- orphans
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_retries" as "limit", t."traceparent" as "trace"
from "tasks" as t
where t."status" in ('claimed', 'running')
    and (
        t."worker_id" is not null and t."worker_id"::text <> all(%(alive)s::text[])
            and coalesce(t."claimed_at", t."started_at", t."updated_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC') + make_interval(secs => -%(orphaned)s::float8)
        or t."worker_id" is null and coalesce(t."claimed_at", t."started_at", t."updated_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC') + make_interval(secs => -%(nameless)s::float8)
    )
order by t."id"
limit %(limit)s
for no key update of t skip locked;

-- get
with picked as materialized (
    select t."id" as key
    from "tasks" as t
    where t."id" = %(id)s
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."type"::text as "kind", t."status"::text as "state", t."payload" as "payload", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_retries" as "limit", t."last_error" as "error", to_jsonb(t.*) - 'payload' as "columns", null::text as "tenant", t."traceparent" as "trace", case when t."next_retry_at" is not null then greatest(least(t."next_retry_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "created", case when t."updated_at" is not null then greatest(least(t."updated_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "updated", case when t."claimed_at" is not null then greatest(least(t."claimed_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "claimed", case when t."started_at" is not null then greatest(least(t."started_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "started", case when t."completed_at" is not null then greatest(least(t."completed_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "finished"
from picked as p join "tasks" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- find, by state and kind, after a page
with picked as materialized (
    select t."id" as key
    from "tasks" as t
    where t."status" = any(%(states)s::task_status[]) and t."type"::text = %(kind)s and (t."created_at", t."id") < (%(before)s::timestamptz at time zone 'UTC', %(before_key)s::uuid)
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."type"::text as "kind", t."status"::text as "state", t."payload" as "payload", t."worker_id"::text as "owner", t."fence" as "fence", t."attempts" as "attempts", t."max_retries" as "limit", t."last_error" as "error", to_jsonb(t.*) - 'payload' as "columns", null::text as "tenant", t."traceparent" as "trace", case when t."next_retry_at" is not null then greatest(least(t."next_retry_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "created", case when t."updated_at" is not null then greatest(least(t."updated_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "updated", case when t."claimed_at" is not null then greatest(least(t."claimed_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "claimed", case when t."started_at" is not null then greatest(least(t."started_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "started", case when t."completed_at" is not null then greatest(least(t."completed_at", '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as "finished"
from picked as p join "tasks" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- keys, for an order by a filter
select t."id" as key
from "tasks" as t
where t."status" = any(%(states)s::task_status[]) and t."worker_id"::text = %(owner)s and t."id" > %(after_key)s
order by t."id"
limit %(limit)s;

-- count, since a time
select t."status"::text as state, t."type"::text as kind, count(*) as rows
from "tasks" as t
where t."created_at" >= %(created_after)s::timestamptz at time zone 'UTC'
group by 1, 2
order by 1, 2;

-- stats
select t."status"::text as state, count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as oldest, case when (min(coalesce(t."next_retry_at", t."updated_at")) filter (where t."status" = 'pending')) is not null then greatest(least((min(coalesce(t."next_retry_at", t."updated_at")) filter (where t."status" = 'pending')), '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as due
from "tasks" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"tasks"'::regclass) as part),
    pg_relation_size('"tasks"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as oldest, case when (min(coalesce(t."next_retry_at", t."updated_at")) filter (where t."status" = 'pending')) is not null then greatest(least((min(coalesce(t."next_retry_at", t."updated_at")) filter (where t."status" = 'pending')), '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as due
from (select t."status", t."created_at", t."updated_at", t."next_retry_at" from "tasks" as t where t."status" = %(state)s::task_status limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
"lane_fresh" as materialized (
    select greatest(t."updated_at", t."created_at") as since
    from "tasks" as t
    where t."status" = 'pending' and t."next_retry_at" is null
    order by t."priority" desc, t."created_at"
    limit %(limit)s
),
"lane_retry" as materialized (
    select greatest(t."next_retry_at", t."created_at") as since
    from "tasks" as t
    where t."status" = 'pending' and t."next_retry_at" is not null and t."next_retry_at" <= (select now from clock) and t."next_retry_at" >= '-infinity'
    order by t."priority" desc, t."next_retry_at"
    limit %(limit)s
)
select case when min(lane.since) is not null then greatest(least(min(lane.since), '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC' as since from (select * from "lane_fresh" union all select * from "lane_retry") as lane;

-- due kinds
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
"lane_fresh" as materialized (
    select t."type"::text as kind
    from "tasks" as t
    where t."status" = 'pending' and t."next_retry_at" is null
    order by t."priority" desc, t."created_at"
    limit %(limit)s
),
"lane_retry" as materialized (
    select t."type"::text as kind
    from "tasks" as t
    where t."status" = 'pending' and t."next_retry_at" is not null and t."next_retry_at" <= (select now from clock) and t."next_retry_at" >= '-infinity'
    order by t."priority" desc, t."next_retry_at"
    limit %(limit)s
)
select distinct lane.kind from (select * from "lane_fresh" union all select * from "lane_retry") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
"lane_fresh" as materialized (
    select lane.*
    from unnest(%(kinds)s::text[]) as k (name), lateral (
        select t."id" as key, t."priority" as "rank_0", t."created_at" as "rank_1"
        from "tasks" as t
        where t."type" between k.name and k.name and t."status" = 'pending' and t."next_retry_at" is null
        order by t."type", t."priority" desc, t."created_at"
        limit %(limit)s
    ) as lane
),
"lane_retry" as materialized (
    select lane.*
    from unnest(%(kinds)s::text[]) as k (name), lateral (
        select t."id" as key, t."priority" as "rank_0", t."next_retry_at" as "rank_1"
        from "tasks" as t
        where t."type" between k.name and k.name and t."status" = 'pending' and t."next_retry_at" is not null and t."next_retry_at" <= (select now from clock) and t."next_retry_at" >= '-infinity'
        order by t."type", t."priority" desc, t."next_retry_at"
        limit %(limit)s
    ) as lane
),
ranked as (
    select lane.key, row_number() over (order by "rank_0" desc, "rank_1") as place from (select * from "lane_fresh" union all select * from "lane_retry") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."status"::text as state, t.xmax as by from "tasks" as t where t."id" = %(id)s
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
select t."id" as key, concat_ws(' ', t."status", t."worker_id", t."fence", t."updated_at", t."completed_at", t."attempts", t."next_retry_at") as mark
from "tasks" as t
where t."id" = any(%(keys)s::uuid[]);

-- held, by worker
select t."worker_id"::text as holder, count(*) as rows
from "tasks" as t
where t."status" in ('claimed', 'running')
group by 1;
