-- The SQL of the ledger job. Made by tests/engine/test_golden.py; do not edit.

-- enqueue, with a payload
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."type" as "type", i."org_id" as "org_id", i."+payload"::jsonb as "+payload", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::uuid[], %(a3)b::text[]) with ordinality as i ("id", "type", "org_id", "+payload", "+place")
),
moved as (
    insert into "job" as t ("id", "type", "org_id", "payload", "run_at", "status", "created_at", "updated_at")
    select i."id", i."type", i."org_id", i."+payload", i."+now", 'queued'::job_status, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("org_id", "idempotency_key") where "idempotency_key" is not null do nothing
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at", t."type", t."org_id"
),
hops (step, prev, next) as (
    values (0, NULL::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", clock.now, h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'enqueue'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'kind', t."type", 'tenant', t."org_id", 'run_at', t."run_at")) || coalesce(%(detail)s::text::jsonb, '{}')
    from clock, moved as t, hops as h
    order by t."id", h.step
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_job', '') as rung) as bell;

-- enqueue, with a key and a delay
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."type" as "type", i."org_id" as "org_id", i."idempotency_key" as "idempotency_key", i."+delay" as "+delay", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::uuid[], %(a3)b::text[], %(a4)b::float8[]) with ordinality as i ("id", "type", "org_id", "idempotency_key", "+delay", "+place")
),
moved as (
    insert into "job" as t ("id", "type", "org_id", "idempotency_key", "run_at", "status", "created_at", "updated_at")
    select i."id", i."type", i."org_id", i."idempotency_key", coalesce(i."+now" + make_interval(secs => i."+delay"), i."+now"), 'queued'::job_status, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("org_id", "idempotency_key") where "idempotency_key" is not null do nothing
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at", t."type", t."org_id"
),
hops (step, prev, next) as (
    values (0, NULL::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", clock.now, h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'enqueue'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'kind', t."type", 'tenant', t."org_id", 'run_at', t."run_at")) || coalesce(%(detail)s::text::jsonb, '{}')
    from clock, moved as t, hops as h
    order by t."id", h.step
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_job', '') as rung) as bell;

-- enqueue, with a time
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."type" as "type", i."org_id" as "org_id", i."+run_at" as "+run_at", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::uuid[], %(a3)b::timestamptz[]) with ordinality as i ("id", "type", "org_id", "+run_at", "+place")
),
moved as (
    insert into "job" as t ("id", "type", "org_id", "run_at", "status", "created_at", "updated_at")
    select i."id", i."type", i."org_id", coalesce(i."+run_at", i."+now"), 'queued'::job_status, i."+now", i."+now" from items as i
    order by i."+place"
    on conflict ("org_id", "idempotency_key") where "idempotency_key" is not null do nothing
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at", t."type", t."org_id"
),
hops (step, prev, next) as (
    values (0, NULL::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", clock.now, h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'enqueue'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'kind', t."type", 'tenant', t."org_id", 'run_at', t."run_at")) || coalesce(%(detail)s::text::jsonb, '{}')
    from clock, moved as t, hops as h
    order by t."id", h.step
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_job', '') as rung) as bell;

-- enqueue: what stood in the way
select i."+place" as place, t."id" as key, t."status"::text as state, t."type"::text as kind
from "job" as t
join unnest(%(a0)b::uuid[], %(a1)b::text[]) with ordinality as i ("org_id", "idempotency_key", "+place") on t."org_id" = i."org_id" and t."idempotency_key" = i."idempotency_key"
where true and t."idempotency_key" is not null;

-- claim
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_due" as materialized (
    select lane.*
    from unnest(%(queues)s::text[]) as q (name), lateral (
        select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."run_at" as "rank_1", (select now from clock) as now,
            extract(epoch from (select now from clock) - greatest(least(greatest(t."run_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
        from "job" as t
        where t."queue" = q.name and t."status" in ('queued', 'failed') and t."run_at" <= (select now from clock)
        order by t."priority" desc, t."run_at"
        limit %(limit)s
        for no key update of t skip locked
    ) as lane
),
picked as materialized (
    select * from (select * from "lane_due") as lane
    order by "rank_0" desc, "rank_1"
    limit %(limit)s
),
moved as (
    update "job" as t
    set "status" = 'running', "worker_id" = %(owner)s, "fence" = t."fence" + 1, "started_at" = coalesce(t."started_at", greatest(m.now, t."updated_at")), "updated_at" = greatest(m.now, t."updated_at")
    from picked as m
    where t."id" = m.key
    returning t."id", t."type", t."payload", t."status", t."worker_id", t."fence", t."attempt", t."max_attempts", t."backoff_policy", t."org_id", t."traceparent", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('queued'::text, 0, 'queued'::text, 'running'::text), ('failed'::text, 0, 'failed'::text, 'queued'::text), ('failed'::text, 1, 'queued'::text, 'running'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'claim'::text, 'attempt', t."attempt", 'fence', t."fence")) || coalesce(%(detail)s::jsonb, '{}')
    from moved as t
    join picked as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempt" as "attempts", t."max_attempts" as "limit", t."backoff_policy"::text as "policy", t."org_id" as "tenant", t."traceparent" as "trace", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_0" desc, "rank_1";

-- claim of some kinds
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_due" as materialized (
    select lane.*
    from unnest(%(queues)s::text[]) as q (name), unnest(%(kinds)s::text[]) as k (name), lateral (
        select t."id" as key, t."status"::text as prev, t."priority" as "rank_0", t."run_at" as "rank_1", (select now from clock) as now,
            extract(epoch from (select now from clock) - greatest(least(greatest(t."run_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
        from "job" as t
        where t."queue" = q.name and t."type" between k.name and k.name and t."status" in ('queued', 'failed') and t."run_at" <= (select now from clock)
        order by t."type", t."priority" desc, t."run_at"
        limit %(limit)s
        for no key update of t skip locked
    ) as lane
),
picked as materialized (
    select * from (select * from "lane_due") as lane
    order by "rank_0" desc, "rank_1"
    limit %(limit)s
),
moved as (
    update "job" as t
    set "status" = 'running', "worker_id" = %(owner)s, "fence" = t."fence" + 1, "started_at" = coalesce(t."started_at", greatest(m.now, t."updated_at")), "updated_at" = greatest(m.now, t."updated_at")
    from picked as m
    where t."id" = m.key
    returning t."id", t."type", t."payload", t."status", t."worker_id", t."fence", t."attempt", t."max_attempts", t."backoff_policy", t."org_id", t."traceparent", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('queued'::text, 0, 'queued'::text, 'running'::text), ('failed'::text, 0, 'failed'::text, 'queued'::text), ('failed'::text, 1, 'queued'::text, 'running'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'claim'::text, 'attempt', t."attempt", 'fence', t."fence")) || coalesce(%(detail)s::jsonb, '{}')
    from moved as t
    join picked as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempt" as "attempts", t."max_attempts" as "limit", t."backoff_policy"::text as "policy", t."org_id" as "tenant", t."traceparent" as "trace", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_0" desc, "rank_1";

-- finish, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "detail")
),
moved as (
    update "job" as t
    set "status" = 'succeeded', "worker_id" = null, "finished_at" = greatest(m.now, t."updated_at"), "updated_at" = greatest(m.now, t."updated_at"), "last_error_code" = null, "last_error_message" = null
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'succeeded'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'finish'::text, 'attempt', t."attempt", 'fence', t."fence")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- retry, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[], %(a4)b::text[], %(a5)b::text[], %(a6)b::jsonb[]) as m ("key", "owner", "fence", "delay", "error_0", "error_1", "detail")
),
moved as (
    update "job" as t
    set "status" = 'failed', "worker_id" = null, "run_at" = m.due, "finished_at" = null, "updated_at" = greatest(m.now, t."updated_at"), "attempt" = t."attempt" + 1, "last_error_code" = m."error_0", "last_error_message" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'failed'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'retry'::text, 'attempt', t."attempt", 'fence', t."fence", 'run_at', t."run_at")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[], %(a5)b::jsonb[]) as m ("key", "owner", "fence", "error_0", "error_1", "detail")
),
moved as (
    update "job" as t
    set "status" = 'dead_letter', "worker_id" = null, "finished_at" = greatest(m.now, t."updated_at"), "updated_at" = greatest(m.now, t."updated_at"), "last_error_code" = m."error_0", "last_error_message" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'failed'::text), ('running'::text, 1, 'failed'::text, 'dead_letter'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'exhaust'::text, 'attempt', t."attempt", 'fence', t."fence")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[], %(a5)b::jsonb[]) as m ("key", "owner", "fence", "error_0", "error_1", "detail")
),
moved as (
    update "job" as t
    set "status" = 'dead_letter', "worker_id" = null, "finished_at" = greatest(m.now, t."updated_at"), "updated_at" = greatest(m.now, t."updated_at"), "last_error_code" = m."error_0", "last_error_message" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'failed'::text), ('running'::text, 1, 'failed'::text, 'dead_letter'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'reject'::text, 'attempt', t."attempt", 'fence', t."fence")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- snooze, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::float8[], %(a4)b::jsonb[]) as m ("key", "owner", "fence", "delay", "detail")
),
moved as (
    update "job" as t
    set "status" = 'queued', "worker_id" = null, "run_at" = m.due, "finished_at" = null, "updated_at" = greatest(m.now, t."updated_at")
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'snooze'::text, 'attempt', t."attempt", 'fence', t."fence", 'run_at', t."run_at")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- release, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "detail")
),
moved as (
    update "job" as t
    set "status" = 'queued', "worker_id" = null, "run_at" = m.now, "finished_at" = null, "updated_at" = greatest(m.now, t."updated_at")
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'release'::text, 'attempt', t."attempt", 'fence', t."fence", 'run_at', t."run_at")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- lose, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::text[], %(a4)b::text[], %(a5)b::jsonb[]) as m ("key", "owner", "fence", "error_0", "error_1", "detail")
),
moved as (
    update "job" as t
    set "status" = 'failed', "worker_id" = null, "run_at" = m.now, "finished_at" = null, "updated_at" = greatest(m.now, t."updated_at"), "attempt" = t."attempt" + 1, "last_error_code" = m."error_0", "last_error_message" = m."error_1"
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'failed'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'lose'::text, 'attempt', t."attempt", 'fence', t."fence", 'run_at', t."run_at")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- cancel, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "detail")
),
moved as (
    update "job" as t
    set "status" = 'canceled', "worker_id" = null, "finished_at" = greatest(m.now, t."updated_at"), "updated_at" = greatest(m.now, t."updated_at")
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('queued'::text, 0, 'queued'::text, 'canceled'::text), ('failed'::text, 0, 'failed'::text, 'canceled'::text), ('running'::text, 0, 'running'::text, 'canceled'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'cancel'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text)) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::jsonb[]) as m ("key", "detail")
),
moves as materialized (
    select m.*, t."status"::text as prev, t."worker_id" as "before_worker"
    from "job" as t join asked as m on t."id" = m.key
    where true and t."status" in ('queued', 'failed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "job" as t
    set "status" = 'canceled', "worker_id" = null, "finished_at" = greatest(m.now, t."updated_at"), "updated_at" = greatest(m.now, t."updated_at")
    from moves as m
    where t."id" = m.key
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('queued'::text, 0, 'queued'::text, 'canceled'::text), ('failed'::text, 0, 'failed'::text, 'canceled'::text), ('running'::text, 0, 'running'::text, 'canceled'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'cancel'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'worker', m."before_worker")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- requeue, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::jsonb[]) as m ("key", "detail")
),
moves as materialized (
    select m.*, t."status"::text as prev, t."attempt" as "before_attempt_before"
    from "job" as t join asked as m on t."id" = m.key
    where true and t."status" in ('dead_letter', 'failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "job" as t
    set "status" = 'queued', "worker_id" = null, "run_at" = m.now, "started_at" = null, "finished_at" = null, "updated_at" = greatest(m.now, t."updated_at"), "attempt" = 0
    from moves as m
    where t."id" = m.key
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('dead_letter'::text, 0, 'dead_letter'::text, 'queued'::text), ('failed'::text, 0, 'failed'::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'requeue'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'run_at', t."run_at", 'attempt_before', m."before_attempt_before")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- cancel, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::jsonb[]) as m ("key", "detail")
),
moves as materialized (
    select m.*, t."status"::text as prev, t."worker_id" as "before_worker"
    from "job" as t join asked as m on t."id" = m.key
    where t."org_id" = %(tenant)s and t."status" in ('queued', 'failed', 'running')
    order by t."id"
    for no key update of t
),
moved as (
    update "job" as t
    set "status" = 'canceled', "worker_id" = null, "finished_at" = greatest(m.now, t."updated_at"), "updated_at" = greatest(m.now, t."updated_at")
    from moves as m
    where t."id" = m.key
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('queued'::text, 0, 'queued'::text, 'canceled'::text), ('failed'::text, 0, 'failed'::text, 'canceled'::text), ('running'::text, 0, 'running'::text, 'canceled'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'cancel'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'worker', m."before_worker")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- requeue, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::jsonb[]) as m ("key", "detail")
),
moves as materialized (
    select m.*, t."status"::text as prev, t."attempt" as "before_attempt_before"
    from "job" as t join asked as m on t."id" = m.key
    where t."org_id" = %(tenant)s and t."status" in ('dead_letter', 'failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "job" as t
    set "status" = 'queued', "worker_id" = null, "run_at" = m.now, "started_at" = null, "finished_at" = null, "updated_at" = greatest(m.now, t."updated_at"), "attempt" = 0
    from moves as m
    where t."id" = m.key
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('dead_letter'::text, 0, 'dead_letter'::text, 'queued'::text), ('failed'::text, 0, 'failed'::text, 'queued'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'requeue'::text, 'attempt', t."attempt", 'fence', t."fence", 'by', session_user::text, 'run_at', t."run_at", 'attempt_before', m."before_attempt_before")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- progress
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'running'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[], %(a3)b::jsonb[]) as m ("key", "owner", "fence", "detail")
),
moved as (
    update "job" as t
    set "updated_at" = greatest(m.now, t."updated_at")
    from moves as m
    where t."id" = m.key and t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running')
    returning t."id", t."attempt", t."fence", t."run_at", t."updated_at"
),
hops (start, step, prev, next) as (
    values ('running'::text, 0, 'running'::text, 'running'::text)
),
told as (
    insert into "job_event" ("job_id", "ts", "prev_status", "next_status", "detail_json")
    select t."id", t."updated_at", h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object('verb', 'progress'::text, 'attempt', t."attempt", 'fence', t."fence")) || coalesce(m.detail, '{}')
    from moved as t
    join moves as m on m.key = t."id"
    join hops as h on h.start is not distinct from m.prev
    order by t."id", h.step
)
select t."id" as key from moved as t;

-- heartbeat
select t."id" as key
from "job" as t join unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::int8[]) as m ("key", "owner", "fence") on t."id" = m.key
where t."fence" = m.fence and t."worker_id" is not distinct from m.owner and t."status" in ('running');

-- held by workers that are gone
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempt" as "attempts", t."max_attempts" as "limit", t."backoff_policy"::text as "policy", t."org_id" as "tenant", t."traceparent" as "trace"
from "job" as t
where t."status" in ('running') and t."worker_id"::text = any(%(owners)s::text[])
order by t."id"
for no key update of t skip locked;

-- orphans
select t."id" as "id", t."type"::text as "kind", (t."payload")::text as "payload", t."status"::text as "state", t."worker_id"::text as "owner", t."fence" as "fence", t."attempt" as "attempts", t."max_attempts" as "limit", t."backoff_policy"::text as "policy", t."org_id" as "tenant", t."traceparent" as "trace"
from "job" as t
where t."status" in ('running')
    and (
        t."worker_id" is not null and t."worker_id"::text <> all(%(alive)s::text[])
            and coalesce(t."updated_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs => -%(orphaned)s::float8)
        or t."worker_id" is null and coalesce(t."updated_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs => -%(nameless)s::float8)
    )
order by t."id"
limit %(limit)s
for no key update of t skip locked;

-- get
select t."id" as "id", t."type"::text as "kind", t."status"::text as "state", t."payload" as "payload", t."worker_id"::text as "owner", t."fence" as "fence", t."attempt" as "attempts", t."max_attempts" as "limit", case when starts_with(t."last_error_message", t."last_error_code" || ':') then t."last_error_message"::text else nullif(concat_ws(': ', t."last_error_code", t."last_error_message"), '') end as "error", to_jsonb(t.*) - 'payload' as "columns", t."org_id" as "tenant", t."traceparent" as "trace", case when t."run_at" is not null then greatest(least(t."run_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", case when t."updated_at" is not null then greatest(least(t."updated_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "updated", null::timestamptz as "claimed", case when t."started_at" is not null then greatest(least(t."started_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "started", case when t."finished_at" is not null then greatest(least(t."finished_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "finished",
    case when t."status" = 'succeeded' then (
        select e."detail_json" -> 'result' from "job_event" as e
        where e."job_id" = t."id" and e."next_status" = 'succeeded' order by e."ts" desc, e."seq" desc limit 1
    ) end as result,
    (
        select e."detail_json" ->> 'stage' from "job_event" as e
        where e."job_id" = t."id" and e."detail_json" -> 'stage' is not null order by e."ts" desc, e."seq" desc limit 1
    ) as stage,
    (
        select (e."detail_json" ->> 'progress')::float8 from "job_event" as e
        where e."job_id" = t."id" and jsonb_typeof(e."detail_json"::jsonb -> 'progress') = 'number'
        order by e."ts" desc, e."seq" desc limit 1
    ) as progress
from "job" as t
where t."id" = %(id)s;

-- timeline
select e."seq" as seq, case when e."ts" is not null then greatest(least(e."ts", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as at, e."prev_status" as prev, e."next_status" as next,
    coalesce(e."detail_json", '{}') as detail
from "job_event" as e
where e."job_id" = %(id)s and e."seq" > %(after)s
order by e."seq"
limit %(limit)s;

-- verify, a page of rows with their events
with picked as materialized (
    select t."id" as "key", t."status"::text as "state", t."worker_id"::text as "owner", t."attempt" as "attempts", t."fence" as "fence", t."started_at" as "started", t."finished_at" as "finished", t."last_error_code" as "code", t."last_error_message" as "message", t."type"::text as "kind", t."org_id"::text as "tenant"
    from "job" as t
    where t."id" > %(after_key)s
    order by t."id"
    limit %(limit)s
)
select e.*
from picked as p, lateral (
    select null as seq, null as at, null as prev, null as next, null as detail, p.*
    union all
    select j."seq", j."ts", j."prev_status"::text, j."next_status"::text, j."detail_json"::text, null, null, null, null, null, null, null, null, null, null, null
    from "job_event" as j
    where j."job_id" = p.key
) as e
order by p.key, e.seq nulls first;

-- find, by state and kind, after a page
with picked as materialized (
    select t."id" as key
    from "job" as t
    where t."status" = any(%(states)s::job_status[]) and t."type"::text = %(kind)s and (t."created_at", t."id") < (%(before)s::timestamptz, %(before_key)s::uuid)
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", t."type"::text as "kind", t."status"::text as "state", t."payload" as "payload", t."worker_id"::text as "owner", t."fence" as "fence", t."attempt" as "attempts", t."max_attempts" as "limit", case when starts_with(t."last_error_message", t."last_error_code" || ':') then t."last_error_message"::text else nullif(concat_ws(': ', t."last_error_code", t."last_error_message"), '') end as "error", to_jsonb(t.*) - 'payload' as "columns", t."org_id" as "tenant", t."traceparent" as "trace", case when t."run_at" is not null then greatest(least(t."run_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", case when t."updated_at" is not null then greatest(least(t."updated_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "updated", null::timestamptz as "claimed", case when t."started_at" is not null then greatest(least(t."started_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "started", case when t."finished_at" is not null then greatest(least(t."finished_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "finished"
from picked as p join "job" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- keys, for an order by a filter
select t."id" as key
from "job" as t
where t."status" = any(%(states)s::job_status[]) and t."worker_id"::text = %(owner)s and t."id" > %(after_key)s
order by t."id"
limit %(limit)s;

-- count, since a time
select t."status"::text as state, t."type"::text as kind, count(*) as rows
from "job" as t
where t."created_at" >= %(created_after)s::timestamptz
group by 1, 2
order by 1, 2;

-- stats
select t."status"::text as state, count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, case when (min(t."run_at") filter (where t."status" in ('queued', 'failed'))) is not null then greatest(least((min(t."run_at") filter (where t."status" in ('queued', 'failed'))), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as due
from "job" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"job"'::regclass) as part),
    pg_relation_size('"job"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, case when (min(t."run_at") filter (where t."status" in ('queued', 'failed'))) is not null then greatest(least((min(t."run_at") filter (where t."status" in ('queued', 'failed'))), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as due
from (select t."status", t."created_at", t."updated_at", t."run_at" from "job" as t where t."status" = %(state)s::job_status limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"queues_due" (name) as (
    (select t."queue" from "job" as t where t."status" in ('queued', 'failed') order by t."queue" limit 1)
    union all
    select (
        select t."queue" from "job" as t where t."status" in ('queued', 'failed') and t."queue" > q.name order by t."queue" limit 1
    )
    from "queues_due" as q where q.name is not null
),
"lane_due" as materialized (
    select lane.*
    from "queues_due" as q, lateral (
        select greatest(t."run_at", t."created_at") as since
        from "job" as t
        where t."queue" = q.name and t."status" in ('queued', 'failed') and t."run_at" <= (select now from clock) and t."run_at" >= '-infinity'
        order by t."priority" desc, t."run_at"
        limit %(limit)s
    ) as lane
)
select case when min(lane.since) is not null then greatest(least(min(lane.since), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as since from (select * from "lane_due") as lane;

-- due kinds
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"queues_due" (name) as (
    (select t."queue" from "job" as t where t."status" in ('queued', 'failed') order by t."queue" limit 1)
    union all
    select (
        select t."queue" from "job" as t where t."status" in ('queued', 'failed') and t."queue" > q.name order by t."queue" limit 1
    )
    from "queues_due" as q where q.name is not null
),
"lane_due" as materialized (
    select lane.*
    from "queues_due" as q, lateral (
        select t."type"::text as kind
        from "job" as t
        where t."queue" = q.name and t."status" in ('queued', 'failed') and t."run_at" <= (select now from clock) and t."run_at" >= '-infinity'
        order by t."priority" desc, t."run_at"
        limit %(limit)s
    ) as lane
)
select distinct lane.kind from (select * from "lane_due") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_due" as materialized (
    select lane.*
    from unnest(%(queues)s::text[]) as q (name), unnest(%(kinds)s::text[]) as k (name), lateral (
        select t."id" as key, t."priority" as "rank_0", t."run_at" as "rank_1"
        from "job" as t
        where t."queue" = q.name and t."type" between k.name and k.name and t."status" in ('queued', 'failed') and t."run_at" <= (select now from clock) and t."run_at" >= '-infinity'
        order by t."type", t."priority" desc, t."run_at"
        limit %(limit)s
    ) as lane
),
ranked as (
    select lane.key, row_number() over (order by "rank_0" desc, "rank_1") as place from (select * from "lane_due") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."status"::text as state, t.xmax as by from "job" as t where t."id" = %(id)s
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

-- held since
select case when max(e."ts") is not null then greatest(least(max(e."ts"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as since
from "job_event" as e
where e."job_id" = %(id)s and e."next_status" in ('running') and e."prev_status" is distinct from e."next_status";

-- marks
select t."id" as key, concat_ws(' ', t."status", t."worker_id", t."fence", t."updated_at", t."finished_at", t."attempt", t."run_at", (select max(e."seq") from "job_event" as e where e."job_id" = t."id")) as mark
from "job" as t
where t."id" = any(%(keys)s::uuid[]);

-- held, by worker
select t."worker_id"::text as holder, count(*) as rows
from "job" as t
where t."status" = 'running'
group by 1;

-- changes
select e."job_id" as id, e."seq" as seq, case when e."ts" is not null then greatest(least(e."ts", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as at, e."prev_status" as prev, e."next_status" as next,
    coalesce(e."detail_json", '{}') as detail
from "job_event" as e join "job" as t on t."id" = e."job_id"
where (e."ts", e."seq") > (%(since)s::timestamptz, %(after)s) and true
order by e."ts", e."seq"
limit %(limit)s;
