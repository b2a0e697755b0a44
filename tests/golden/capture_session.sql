-- The SQL of the ledger capture_session. Made by tests/engine/test_golden.py; do not edit.

-- enqueue
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."id" as "id", i."user_id" as "user_id", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::uuid[], %(a1)b::bigint[]) with ordinality as i ("id", "user_id", "+place")
),
moved as (
    insert into "schedule_ingest"."capture_session" as t ("id", "user_id", "state", "created_at")
    select i."id", i."user_id", 'pending'::schedule_ingest.capture_session_state, i."+now" from items as i
    order by i."+place"
    returning t."id"
)
select t."id", bell.rung from moved as t, (select pg_notify('holdfast_capture_session', '') as rung) as bell;

-- copy: the clock
select coalesce(%(now)s::timestamptz, clock_timestamp()) as now;

-- copy
copy "schedule_ingest"."capture_session" ("id", "user_id", "state", "created_at") from stdin;

-- claim
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select t."id" as key, t."state"::text as prev, 0 as "rank_turn", t."created_at" as "rank_0", t."id" as "rank_1", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."created_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'pending' and coalesce((
            select max(i.created_at) from schedule_ingest.capture_image as i where i.session_id = t.id
        ), t.created_at) <= (select now from clock) - make_interval(secs => 25.0)
    order by t."created_at", t."id"
    limit %(limit)s
    for no key update of t skip locked
),
"lane_stale" as materialized (
    select t."id" as key, t."state"::text as prev, 1 as "rank_turn", t."created_at" as "rank_0", t."id" as "rank_1", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."created_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'processing' and (
            t.locked_at is null or t.locked_at < (select now from clock) - make_interval(secs => 300.0)
        ) and (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0)) < 5 and t."id" <> all(%(in_hand)s::uuid[])
    order by t."created_at", t."id"
    limit %(limit)s
    for no key update of t skip locked
),
picked as materialized (
    select * from (select * from "lane_pending" union all select * from "lane_stale") as lane
    order by "rank_turn", "rank_0", "rank_1"
    limit %(limit)s
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'processing', "locked_by" = %(owner)s, "locked_at" = m.now
    from picked as m
    where t."id" = m.key
    returning t."id", t."state", t."locked_by", t."user_id"
),
lost as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'lost'
    from moved as t join picked as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
),
known as materialized (
    select t.id, m.now, coalesce((
        select max(a.attempt) from schedule_ingest.capture_attempt as a where a.session_id = t.id
    ), 0) as last, m.prev = 'processing' and not exists (
        select from schedule_ingest.capture_attempt as a where a.session_id = t.id and a.ended_at is null
    ) as theirs
    from moved as t join picked as m on m.key = t.id
),
begun as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select k.id, k.last + 1, '-', k.now, k.now, 'lost' from known as k where k.theirs
    union all
    select k.id, k.last + 1 + k.theirs::int, %(worker)s, k.now, null, null from known as k
)
select t."id" as "id", 'capture_session'::text as "kind", (null::jsonb)::text as "payload", t."state"::text as "state", t."locked_by"::text as "owner", coalesce(substring(t."locked_by" from '/([0-9]{1,18})$')::bigint, 0) as "fence", (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0))::int as "attempts", 5::int as "limit", t."user_id" as "tenant", p.waited
from moved as t join picked as p on p.key = t."id"
order by "rank_turn", "rank_0", "rank_1";

-- finish, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'processing'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "owner", "result")
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'done', "locked_by" = null, "locked_at" = null
    from moves as m
    where t."id" = m.key and t."locked_by" is not distinct from m.owner and t."state" in ('processing')
    returning t."id"
),
ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = coalesce(m.result, 'done')
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)
select t."id" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'processing'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[], %(a3)b::text[]) as m ("key", "owner", "reason", "error_0")
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'failed', "locked_by" = null, "error" = m."error_0", "locked_at" = null
    from moves as m
    where t."id" = m.key and t."locked_by" is not distinct from m.owner and t."state" in ('processing')
    returning t."id"
),
ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'failed'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)
select t."id" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'processing'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[], %(a3)b::text[]) as m ("key", "owner", "reason", "error_0")
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'failed', "locked_by" = null, "error" = m."error_0", "locked_at" = null
    from moves as m
    where t."id" = m.key and t."locked_by" is not distinct from m.owner and t."state" in ('processing')
    returning t."id"
),
ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'failed'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)
select t."id" as key from moved as t;

-- release, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'processing'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[]) as m ("key", "owner")
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'pending', "locked_by" = null, "locked_at" = null
    from moves as m
    where t."id" = m.key and t."locked_by" is not distinct from m.owner and t."state" in ('processing')
    returning t."id"
),
ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'released'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
)
select t."id" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "reason", "error_0")
),
moves as materialized (
    select m.*, t."state"::text as prev
    from "schedule_ingest"."capture_session" as t join asked as m on t."id" = m.key
    where true and t."state" in ('pending')
    order by t."id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'failed', "locked_by" = null, "error" = m."error_0", "locked_at" = null
    from moves as m
    where t."id" = m.key
    returning t."id"
),
ended as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select t.id, coalesce((
        select max(a.attempt) from schedule_ingest.capture_attempt as a where a.session_id = t.id
    ), 0) + 1, '-', m.now, m.now, 'failed'
    from moved as t join moves as m on m.key = t.id
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
    select m.*, t."state"::text as prev
    from "schedule_ingest"."capture_session" as t join asked as m on t."id" = m.key
    where true and t."state" in ('failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'pending', "locked_by" = null, "error" = null, "locked_at" = null
    from moves as m
    where t."id" = m.key
    returning t."id"
),
ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'failed'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
),
noted as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select t.id, coalesce(last.attempt, 0) + 1, '-', m.now, m.now, 'failed'
    from moved as t join moves as m on m.key = t.id
    left join lateral (
        select a.attempt, a.ended_at, a.outcome from schedule_ingest.capture_attempt as a
        where a.session_id = t.id order by a.attempt desc limit 1
    ) as last on true
    where last.attempt is null or (last.ended_at is not null and last.outcome is distinct from 'failed')
)
select t."id" as key from moved as t;

-- cancel, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::uuid[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "reason", "error_0")
),
moves as materialized (
    select m.*, t."state"::text as prev
    from "schedule_ingest"."capture_session" as t join asked as m on t."id" = m.key
    where t."user_id" = %(tenant)s and t."state" in ('pending')
    order by t."id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'failed', "locked_by" = null, "error" = m."error_0", "locked_at" = null
    from moves as m
    where t."id" = m.key
    returning t."id"
),
ended as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select t.id, coalesce((
        select max(a.attempt) from schedule_ingest.capture_attempt as a where a.session_id = t.id
    ), 0) + 1, '-', m.now, m.now, 'failed'
    from moved as t join moves as m on m.key = t.id
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
    select m.*, t."state"::text as prev
    from "schedule_ingest"."capture_session" as t join asked as m on t."id" = m.key
    where t."user_id" = %(tenant)s and t."state" in ('failed')
    order by t."id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "state" = 'pending', "locked_by" = null, "error" = null, "locked_at" = null
    from moves as m
    where t."id" = m.key
    returning t."id"
),
ended as (
    update schedule_ingest.capture_attempt as a
    set ended_at = m.now, outcome = 'failed'
    from moved as t join moves as m on m.key = t.id
    where a.session_id = t.id and a.ended_at is null
),
noted as (
    insert into schedule_ingest.capture_attempt (session_id, attempt, worker, claimed_at, ended_at, outcome)
    select t.id, coalesce(last.attempt, 0) + 1, '-', m.now, m.now, 'failed'
    from moved as t join moves as m on m.key = t.id
    left join lateral (
        select a.attempt, a.ended_at, a.outcome from schedule_ingest.capture_attempt as a
        where a.session_id = t.id order by a.attempt desc limit 1
    ) as last on true
    where last.attempt is null or (last.ended_at is not null and last.outcome is distinct from 'failed')
)
select t."id" as key from moved as t;

-- heartbeat
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now from clock, unnest(%(a0)b::uuid[], %(a1)b::text[]) as m ("key", "owner")
),
moves as materialized (
    select t."id" as key, m.now
    from "schedule_ingest"."capture_session" as t join asked as m on t."id" = m.key
    where t."locked_by" is not distinct from m.owner and t."state" in ('processing')
    order by t."id"
    for no key update of t skip locked
),
moved as (
    update "schedule_ingest"."capture_session" as t
    set "locked_at" = m.now
    from moves as m
    where t."id" = m.key
)
select t."id" as key
from "schedule_ingest"."capture_session" as t join asked as m on t."id" = m.key
where t."locked_by" is not distinct from m.owner and t."state" in ('processing');

-- held by workers that are gone
select t."id" as "id", 'capture_session'::text as "kind", (null::jsonb)::text as "payload", t."state"::text as "state", t."locked_by"::text as "owner", coalesce(substring(t."locked_by" from '/([0-9]{1,18})$')::bigint, 0) as "fence", (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0))::int as "attempts", 5::int as "limit", t."user_id" as "tenant"
from "schedule_ingest"."capture_session" as t
where t."state" in ('processing') and regexp_replace(t."locked_by", '/[0-9]+$', '') = any(%(owners)s::text[])
order by t."id"
for no key update of t skip locked;

-- orphans
select t."id" as "id", 'capture_session'::text as "kind", (null::jsonb)::text as "payload", t."state"::text as "state", t."locked_by"::text as "owner", coalesce(substring(t."locked_by" from '/([0-9]{1,18})$')::bigint, 0) as "fence", (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0))::int as "attempts", 5::int as "limit", t."user_id" as "tenant"
from "schedule_ingest"."capture_session" as t
where t."state" in ('processing')
    and (
        t."locked_by" is not null and regexp_replace(t."locked_by", '/[0-9]+$', '') <> all(%(alive)s::text[])
            and coalesce(t."locked_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs => -%(orphaned)s::float8)
        or t."locked_by" is null and coalesce(t."locked_at", t."created_at") < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs => -%(nameless)s::float8)
    )
order by t."id"
limit %(limit)s
for no key update of t skip locked;

-- leases run out
select t."id" as "id", 'capture_session'::text as "kind", (null::jsonb)::text as "payload", t."state"::text as "state", t."locked_by"::text as "owner", coalesce(substring(t."locked_by" from '/([0-9]{1,18})$')::bigint, 0) as "fence", (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0))::int as "attempts", 5::int as "limit", t."user_id" as "tenant"
from "schedule_ingest"."capture_session" as t
where t."state" in ('processing') and (t."locked_at" is null or t."locked_at" < (select coalesce(%(now)s::timestamptz, clock_timestamp())) + make_interval(secs =>  -300.0))
order by t."id"
limit %(limit)s
for no key update of t skip locked;

-- get
with picked as materialized (
    select t."id" as key
    from "schedule_ingest"."capture_session" as t
    where t."id" = %(id)s
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", 'capture_session'::text as "kind", t."state"::text as "state", null::jsonb as "payload", t."locked_by"::text as "owner", null::bigint as "fence", (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0))::int as "attempts", 5::int as "limit", t."error" as "error", to_jsonb(t.*) as "columns", t."user_id" as "tenant", null::text as "trace", null::timestamptz as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", null::timestamptz as "updated", null::timestamptz as "claimed", null::timestamptz as "started", null::timestamptz as "finished"
from picked as p join "schedule_ingest"."capture_session" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- find, by state and kind, after a page
with picked as materialized (
    select t."id" as key
    from "schedule_ingest"."capture_session" as t
    where t."state" = any(%(states)s::schedule_ingest.capture_session_state[]) and 'capture_session'::text = %(kind)s and (t."created_at", t."id") < (%(before)s::timestamptz, %(before_key)s::uuid)
    order by t."created_at" desc, t."id" desc
    limit %(limit)s
)
select t."id" as "id", 'capture_session'::text as "kind", t."state"::text as "state", null::jsonb as "payload", t."locked_by"::text as "owner", null::bigint as "fence", (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0))::int as "attempts", 5::int as "limit", t."error" as "error", to_jsonb(t.*) as "columns", t."user_id" as "tenant", null::text as "trace", null::timestamptz as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", null::timestamptz as "updated", null::timestamptz as "claimed", null::timestamptz as "started", null::timestamptz as "finished"
from picked as p join "schedule_ingest"."capture_session" as t on t."id" = p.key
order by t."created_at" desc, t."id" desc;

-- keys, for an order by a filter
select t."id" as key
from "schedule_ingest"."capture_session" as t
where t."state" = any(%(states)s::schedule_ingest.capture_session_state[]) and regexp_replace(t."locked_by", '/[0-9]+$', '') = %(owner)s and t."id" > %(after_key)s
order by t."id"
limit %(limit)s;

-- count, since a time
select t."state"::text as state, 'capture_session'::text as kind, count(*) as rows
from "schedule_ingest"."capture_session" as t
where t."created_at" >= %(created_after)s::timestamptz
group by 1, 2
order by 1, 2;

-- stats
select t."state"::text as state, count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, null::timestamptz as due
from "schedule_ingest"."capture_session" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"schedule_ingest"."capture_session"'::regclass) as part),
    pg_relation_size('"schedule_ingest"."capture_session"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, null::timestamptz as due
from (select t."state", t."created_at" from "schedule_ingest"."capture_session" as t where t."state" = %(state)s::schedule_ingest.capture_session_state limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select greatest(t."created_at", t."created_at") as since
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'pending' and coalesce((
            select max(i.created_at) from schedule_ingest.capture_image as i where i.session_id = t.id
        ), t.created_at) <= (select now from clock) - make_interval(secs => 25.0)
    order by t."created_at", t."id"
    limit %(limit)s
),
"lane_stale" as materialized (
    select greatest(t."created_at", t."created_at") as since
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'processing' and (
            t.locked_at is null or t.locked_at < (select now from clock) - make_interval(secs => 300.0)
        ) and (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0)) < 5
    order by t."created_at", t."id"
    limit %(limit)s
)
select case when min(lane.since) is not null then greatest(least(min(lane.since), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as since from (select * from "lane_pending" union all select * from "lane_stale") as lane;

-- due kinds
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select 'capture_session'::text as kind
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'pending' and coalesce((
            select max(i.created_at) from schedule_ingest.capture_image as i where i.session_id = t.id
        ), t.created_at) <= (select now from clock) - make_interval(secs => 25.0)
    order by t."created_at", t."id"
    limit %(limit)s
),
"lane_stale" as materialized (
    select 'capture_session'::text as kind
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'processing' and (
            t.locked_at is null or t.locked_at < (select now from clock) - make_interval(secs => 300.0)
        ) and (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0)) < 5
    order by t."created_at", t."id"
    limit %(limit)s
)
select distinct lane.kind from (select * from "lane_pending" union all select * from "lane_stale") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select t."id" as key, 0 as "rank_turn", t."created_at" as "rank_0", t."id" as "rank_1"
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'pending' and coalesce((
            select max(i.created_at) from schedule_ingest.capture_image as i where i.session_id = t.id
        ), t.created_at) <= (select now from clock) - make_interval(secs => 25.0)
    order by t."created_at", t."id"
    limit %(limit)s
),
"lane_stale" as materialized (
    select t."id" as key, 1 as "rank_turn", t."created_at" as "rank_0", t."id" as "rank_1"
    from "schedule_ingest"."capture_session" as t
    where t."state" = 'processing' and (
            t.locked_at is null or t.locked_at < (select now from clock) - make_interval(secs => 300.0)
        ) and (select count(*) from schedule_ingest.capture_attempt as a
            where a.session_id = t.id and coalesce(a.outcome, 'lost') = 'lost' and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.capture_attempt as e
                where e.session_id = t.id and e.outcome not in ('lost', 'released')
            ), 0)) < 5
    order by t."created_at", t."id"
    limit %(limit)s
),
ranked as (
    select lane.key, row_number() over (order by "rank_turn", "rank_0", "rank_1") as place from (select * from "lane_pending" union all select * from "lane_stale") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."state"::text as state, t.xmax as by from "schedule_ingest"."capture_session" as t where t."id" = %(id)s
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
select t."id" as key, concat_ws(' ', t."state", t."locked_by") as mark
from "schedule_ingest"."capture_session" as t
where t."id" = any(%(keys)s::uuid[]);

-- held, by worker
select regexp_replace(t."locked_by", '/[0-9]+$', '') as holder, count(*) as rows
from "schedule_ingest"."capture_session" as t
where t."state" = 'processing'
group by 1;
