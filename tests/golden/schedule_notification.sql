-- The SQL of the ledger schedule_notification. Made by tests/engine/test_golden.py; do not edit.

-- enqueue, with a payload
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."user_id" as "user_id", i."notification_id" as "notification_id", i."+payload"::jsonb as "+payload", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::bigint[], %(a1)b::text[], %(a2)b::text[]) with ordinality as i ("user_id", "notification_id", "+payload", "+place")
),
moved as (
    insert into "schedule_ingest"."schedule_notification" as t ("user_id", "notification_id", "notification_type", "message", "event_ids", "status", "created_at")
    select i."user_id", i."notification_id", (jsonb_populate_record(null::"schedule_ingest"."schedule_notification", i."+payload"))."notification_type", (jsonb_populate_record(null::"schedule_ingest"."schedule_notification", i."+payload"))."message", (jsonb_populate_record(null::"schedule_ingest"."schedule_notification", i."+payload"))."event_ids", 'pending'::text, i."+now" from items as i
    order by i."+place"
    on conflict ("notification_id") do nothing
    returning t."notification_id", t."notification_id"::text as "+unique_0"
)
select t."notification_id", t."+unique_0", bell.rung from moved as t, (select pg_notify('holdfast_schedule_notification', '') as rung) as bell;

-- enqueue, with a key
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
items as materialized (
    select i."user_id" as "user_id", i."notification_id" as "notification_id", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::bigint[], %(a1)b::text[]) with ordinality as i ("user_id", "notification_id", "+place")
),
moved as (
    insert into "schedule_ingest"."schedule_notification" as t ("user_id", "notification_id", "status", "created_at")
    select i."user_id", i."notification_id", 'pending'::text, i."+now" from items as i
    order by i."+place"
    on conflict ("notification_id") do nothing
    returning t."notification_id", t."notification_id"::text as "+unique_0"
)
select t."notification_id", t."+unique_0", bell.rung from moved as t, (select pg_notify('holdfast_schedule_notification', '') as rung) as bell;

-- enqueue: what stood in the way
select i."+place" as place, t."notification_id" as key, t."status"::text as state, 'schedule_notification'::text as kind
from "schedule_ingest"."schedule_notification" as t
join unnest(%(a0)b::text[]) with ordinality as i ("notification_id", "+place") on t."notification_id" = i."notification_id"
where true;

-- claim
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select t."notification_id" as key, t."status"::text as prev, t."created_at" as "rank_0", t."notification_id" as "rank_1", (select now from clock) as now,
        extract(epoch from (select now from clock) - greatest(least(greatest(t."created_at", t."created_at"), (select now from clock)), 'epoch'))::float8 as waited
    from "schedule_ingest"."schedule_notification" as t
    where t."status" = 'pending' and coalesce((
            select a.next_at from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id order by a.attempt desc limit 1
        ), '-infinity') <= (select now from clock)
        and not exists (
            select from schedule_ingest.schedule_notification as older
            where older.user_id = t.user_id and older.status = 'pending'
                and (older.created_at, older.notification_id) < (t.created_at, t.notification_id)
        ) and t."notification_id" <> all(%(in_hand)s::text[])
    order by t."created_at", t."notification_id"
    limit %(limit)s
    for no key update of t skip locked
),
picked as materialized (
    select * from (select * from "lane_pending") as lane
    order by "rank_0", "rank_1"
    limit %(limit)s
)
select t."notification_id" as "id", 'schedule_notification'::text as "kind", (jsonb_build_object('notification_type', t."notification_type", 'message', t."message", 'event_ids', t."event_ids"))::text as "payload", t."status"::text as "state", null::text as "owner", 0::bigint as "fence", (select count(*) from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.notification_attempt as e
                where e.notification_id = t.notification_id and e.next_at is null
            ), 0))::int as "attempts", 5::int as "limit", t."user_id" as "tenant", p.waited
from "schedule_ingest"."schedule_notification" as t join picked as p on p.key = t."notification_id"
order by "rank_0", "rank_1";

-- finish, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'pending'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[]) as m ("key", "result")
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'sent', "sent_at" = m.now
    from moves as m
    where t."notification_id" = m.key and true and t."status" in ('pending')
    returning t."notification_id"
),
tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now
    from moved as t join moves as m on m.key = t.notification_id
)
select t."notification_id" as key from moved as t;

-- retry, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'pending'::text as prev, clock.now, clock.now + make_interval(secs => m.delay) as due
    from clock, unnest(%(a0)b::text[], %(a1)b::float8[], %(a2)b::text[]) as m ("key", "delay", "reason")
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'pending', "sent_at" = null
    from moves as m
    where t."notification_id" = m.key and true and t."status" in ('pending')
    returning t."notification_id"
),
tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error, next_at)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now, m.reason, m.due
    from moved as t join moves as m on m.key = t.notification_id
)
select t."notification_id" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'pending'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[]) as m ("key", "reason")
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'failed'
    from moves as m
    where t."notification_id" = m.key and true and t."status" in ('pending')
    returning t."notification_id"
),
tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now, m.reason
    from moved as t join moves as m on m.key = t.notification_id
)
select t."notification_id" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'pending'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[], %(a1)b::text[]) as m ("key", "reason")
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'failed'
    from moves as m
    where t."notification_id" = m.key and true and t."status" in ('pending')
    returning t."notification_id"
),
tried as (
    insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at, error)
    select t.notification_id, coalesce((
        select max(a.attempt) from schedule_ingest.notification_attempt as a
        where a.notification_id = t.notification_id
    ), 0) + 1, m.now, m.reason
    from moved as t join moves as m on m.key = t.notification_id
)
select t."notification_id" as key from moved as t;

-- cancel, by the worker
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
moves as materialized (
    select m.*, 'pending'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[]) as m ("key")
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'failed'
    from moves as m
    where t."notification_id" = m.key and true and t."status" in ('pending')
    returning t."notification_id"
)
select t."notification_id" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "schedule_ingest"."schedule_notification" as t join asked as m on t."notification_id" = m.key
    where true and t."status" in ('pending')
    order by t."notification_id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'failed'
    from moves as m
    where t."notification_id" = m.key
    returning t."notification_id"
)
select t."notification_id" as key from moved as t;

-- requeue, by a person
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "schedule_ingest"."schedule_notification" as t join asked as m on t."notification_id" = m.key
    where true and t."status" in ('failed')
    order by t."notification_id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'pending', "sent_at" = null
    from moves as m
    where t."notification_id" = m.key
    returning t."notification_id"
),
tried as (
    update schedule_ingest.notification_attempt as a
    set next_at = null
    from moved as t
    where a.notification_id = t.notification_id and a.next_at is not null
)
select t."notification_id" as key from moved as t;

-- cancel, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "schedule_ingest"."schedule_notification" as t join asked as m on t."notification_id" = m.key
    where t."user_id" = %(tenant)s and t."status" in ('pending')
    order by t."notification_id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'failed'
    from moves as m
    where t."notification_id" = m.key
    returning t."notification_id"
)
select t."notification_id" as key from moved as t;

-- requeue, by a person of one tenant
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::text[]) as m ("key")
),
moves as materialized (
    select m.*, t."status"::text as prev
    from "schedule_ingest"."schedule_notification" as t join asked as m on t."notification_id" = m.key
    where t."user_id" = %(tenant)s and t."status" in ('failed')
    order by t."notification_id"
    for no key update of t
),
moved as (
    update "schedule_ingest"."schedule_notification" as t
    set "status" = 'pending', "sent_at" = null
    from moves as m
    where t."notification_id" = m.key
    returning t."notification_id"
),
tried as (
    update schedule_ingest.notification_attempt as a
    set next_at = null
    from moved as t
    where a.notification_id = t.notification_id and a.next_at is not null
)
select t."notification_id" as key from moved as t;

-- heartbeat
select t."notification_id" as key
from "schedule_ingest"."schedule_notification" as t join unnest(%(a0)b::text[]) as m ("key") on t."notification_id" = m.key
where true and t."status" in ('pending');

-- get
with picked as materialized (
    select t."notification_id" as key
    from "schedule_ingest"."schedule_notification" as t
    where t."notification_id" = %(id)s
    order by t."created_at" desc, t."notification_id" desc
    limit %(limit)s
)
select t."notification_id" as "id", 'schedule_notification'::text as "kind", t."status"::text as "state", jsonb_build_object('notification_type', t."notification_type", 'message', t."message", 'event_ids', t."event_ids") as "payload", null::text as "owner", null::bigint as "fence", (select count(*) from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.notification_attempt as e
                where e.notification_id = t.notification_id and e.next_at is null
            ), 0))::int as "attempts", 5::int as "limit", null::text as "error", to_jsonb(t.*) as "columns", t."user_id" as "tenant", null::text as "trace", null::timestamptz as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", null::timestamptz as "updated", null::timestamptz as "claimed", null::timestamptz as "started", case when t."sent_at" is not null then greatest(least(t."sent_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "finished"
from picked as p join "schedule_ingest"."schedule_notification" as t on t."notification_id" = p.key
order by t."created_at" desc, t."notification_id" desc;

-- find, by state and kind, after a page
with picked as materialized (
    select t."notification_id" as key
    from "schedule_ingest"."schedule_notification" as t
    where t."status" = any(%(states)s::text[]) and 'schedule_notification'::text = %(kind)s and (t."created_at", t."notification_id") < (%(before)s::timestamptz, %(before_key)s::text)
    order by t."created_at" desc, t."notification_id" desc
    limit %(limit)s
)
select t."notification_id" as "id", 'schedule_notification'::text as "kind", t."status"::text as "state", jsonb_build_object('notification_type', t."notification_type", 'message', t."message", 'event_ids', t."event_ids") as "payload", null::text as "owner", null::bigint as "fence", (select count(*) from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id and a.attempt > coalesce((
                select max(e.attempt) from schedule_ingest.notification_attempt as e
                where e.notification_id = t.notification_id and e.next_at is null
            ), 0))::int as "attempts", 5::int as "limit", null::text as "error", to_jsonb(t.*) as "columns", t."user_id" as "tenant", null::text as "trace", null::timestamptz as "due", case when t."created_at" is not null then greatest(least(t."created_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "created", null::timestamptz as "updated", null::timestamptz as "claimed", null::timestamptz as "started", case when t."sent_at" is not null then greatest(least(t."sent_at", '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as "finished"
from picked as p join "schedule_ingest"."schedule_notification" as t on t."notification_id" = p.key
order by t."created_at" desc, t."notification_id" desc;

-- keys, for an order by a filter
select t."notification_id" as key
from "schedule_ingest"."schedule_notification" as t
where t."status" = any(%(states)s::text[]) and null::text = %(owner)s and t."notification_id" > %(after_key)s
order by t."notification_id"
limit %(limit)s;

-- count, since a time
select t."status"::text as state, 'schedule_notification'::text as kind, count(*) as rows
from "schedule_ingest"."schedule_notification" as t
where t."created_at" >= %(created_after)s::timestamptz
group by 1, 2
order by 1, 2;

-- stats
select t."status"::text as state, count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, null::timestamptz as due
from "schedule_ingest"."schedule_notification" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"schedule_ingest"."schedule_notification"'::regclass) as part),
    pg_relation_size('"schedule_ingest"."schedule_notification"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."created_at") is not null then greatest(least(min(t."created_at"), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as oldest, null::timestamptz as due
from (select t."status", t."created_at" from "schedule_ingest"."schedule_notification" as t where t."status" = %(state)s::text limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select greatest(t."created_at", t."created_at") as since
    from "schedule_ingest"."schedule_notification" as t
    where t."status" = 'pending' and coalesce((
            select a.next_at from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id order by a.attempt desc limit 1
        ), '-infinity') <= (select now from clock)
        and not exists (
            select from schedule_ingest.schedule_notification as older
            where older.user_id = t.user_id and older.status = 'pending'
                and (older.created_at, older.notification_id) < (t.created_at, t.notification_id)
        )
    order by t."created_at", t."notification_id"
    limit %(limit)s
)
select case when min(lane.since) is not null then greatest(least(min(lane.since), '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end as since from (select * from "lane_pending") as lane;

-- due kinds
with recursive clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select 'schedule_notification'::text as kind
    from "schedule_ingest"."schedule_notification" as t
    where t."status" = 'pending' and coalesce((
            select a.next_at from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id order by a.attempt desc limit 1
        ), '-infinity') <= (select now from clock)
        and not exists (
            select from schedule_ingest.schedule_notification as older
            where older.user_id = t.user_id and older.status = 'pending'
                and (older.created_at, older.notification_id) < (t.created_at, t.notification_id)
        )
    order by t."created_at", t."notification_id"
    limit %(limit)s
)
select distinct lane.kind from (select * from "lane_pending") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) as now
),
"lane_pending" as materialized (
    select t."notification_id" as key, t."created_at" as "rank_0", t."notification_id" as "rank_1"
    from "schedule_ingest"."schedule_notification" as t
    where t."status" = 'pending' and coalesce((
            select a.next_at from schedule_ingest.notification_attempt as a
            where a.notification_id = t.notification_id order by a.attempt desc limit 1
        ), '-infinity') <= (select now from clock)
        and not exists (
            select from schedule_ingest.schedule_notification as older
            where older.user_id = t.user_id and older.status = 'pending'
                and (older.created_at, older.notification_id) < (t.created_at, t.notification_id)
        )
    order by t."created_at", t."notification_id"
    limit %(limit)s
),
ranked as (
    select lane.key, row_number() over (order by "rank_0", "rank_1") as place from (select * from "lane_pending") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."status"::text as state, t.xmax as by from "schedule_ingest"."schedule_notification" as t where t."notification_id" = %(id)s
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
select t."notification_id" as key, concat_ws(' ', t."status", t."sent_at") as mark
from "schedule_ingest"."schedule_notification" as t
where t."notification_id" = any(%(keys)s::text[]);

-- held, by worker
select null::text as holder, count(*) as rows
from "schedule_ingest"."schedule_notification" as t
where false
group by 1;
