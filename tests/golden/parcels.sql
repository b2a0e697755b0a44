-- The SQL of the ledger parcels. Made by tests/engine/test_golden.py; do not edit.

-- enqueue, with a payload
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
items as materialized (
    select i."service" as "service", i."+payload"::jsonb as "+payload", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::text[], %(a1)b::text[]) with ordinality as i ("service", "+payload", "+place")
),
moved as (
    insert into "parcels" as t ("service", "slip", "stage", "shelved_ms")
    select i."service", i."+payload", 'shelved'::text, i."+now" from items as i
    order by i."+place"
    on conflict ("barcode") do nothing
    returning t."parcel_no", t."barcode"::text as "+unique_0"
)
select t."parcel_no", t."+unique_0", bell.rung from moved as t, (select pg_notify('holdfast_parcels', '') as rung) as bell;

-- enqueue, with a key and a delay
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
items as materialized (
    select i."service" as "service", i."barcode" as "barcode", i."+delay" as "+delay", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::text[], %(a1)b::text[], %(a2)b::float8[]) with ordinality as i ("service", "barcode", "+delay", "+place")
),
moved as (
    insert into "parcels" as t ("service", "barcode", "not_before", "stage", "shelved_ms")
    select i."service", i."barcode", i."+now" + ceil(i."+delay" * 1000)::bigint, 'shelved'::text, i."+now" from items as i
    order by i."+place"
    on conflict ("barcode") do nothing
    returning t."parcel_no", t."barcode"::text as "+unique_0"
)
select t."parcel_no", t."+unique_0", bell.rung from moved as t, (select pg_notify('holdfast_parcels', '') as rung) as bell;

-- enqueue, with a time
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
items as materialized (
    select i."service" as "service", i."+run_at" as "+run_at", i."+place", clock.now as "+now"
    from clock, unnest(%(a0)b::text[], %(a1)b::timestamptz[]) with ordinality as i ("service", "+run_at", "+place")
),
moved as (
    insert into "parcels" as t ("service", "not_before", "stage", "shelved_ms")
    select i."service", ceil(extract(epoch from i."+run_at") * 1000)::bigint, 'shelved'::text, i."+now" from items as i
    order by i."+place"
    on conflict ("barcode") do nothing
    returning t."parcel_no", t."barcode"::text as "+unique_0"
)
select t."parcel_no", t."+unique_0", bell.rung from moved as t, (select pg_notify('holdfast_parcels', '') as rung) as bell;

-- enqueue: what stood in the way
select i."+place" as place, t."parcel_no" as key, t."stage"::text as state, t."service"::text as kind
from "parcels" as t
join unnest(%(a0)b::text[]) with ordinality as i ("barcode", "+place") on t."barcode" = i."barcode"
where true;

-- copy: the clock
select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now;

-- copy
copy "parcels" ("service", "stage", "shelved_ms") from stdin;

-- claim
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"lane_shelf" as materialized (
    select t."parcel_no" as key, t."stage"::text as prev, t."shelved_ms" as "rank_0", (select now from clock) as now,
        ((select now from clock) - greatest(least(greatest(t."shelved_ms", t."shelved_ms"), (select now from clock)), 0)) / 1000.0::float8 as waited
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is null and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[]))
    order by t."shelved_ms"
    limit %(limit)s
    for no key update of t skip locked
),
"lane_later" as materialized (
    select t."parcel_no" as key, t."stage"::text as prev, t."not_before" as "rank_0", (select now from clock) as now,
        ((select now from clock) - greatest(least(greatest(t."not_before", t."shelved_ms"), (select now from clock)), 0)) / 1000.0::float8 as waited
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is not null and t."not_before" <= (select now from clock) and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[]))
    order by t."not_before"
    limit %(limit)s
    for no key update of t skip locked
),
picked as materialized (
    select * from (select * from "lane_shelf" union all select * from "lane_later") as lane
    order by "rank_0"
    limit %(limit)s
),
moved as (
    update "parcels" as t
    set "stage" = 'moving', "courier" = %(owner)s, "not_before" = null, "moving_ms" = m.now
    from picked as m
    where t."parcel_no" = m.key
    returning t."parcel_no", t."service", t."slip", t."stage", t."courier", t."tries"
)
select t."parcel_no" as "id", t."service"::text as "kind", (t."slip")::text as "payload", t."stage"::text as "state", t."courier"::text as "owner", coalesce(substring(t."courier" from '/([0-9]{1,18})$')::bigint, 0) as "fence", t."tries" as "attempts", 2::int as "limit", p.waited
from moved as t join picked as p on p.key = t."parcel_no"
order by "rank_0";

-- finish, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[]) as m ("key", "owner")
),
moved as (
    update "parcels" as t
    set "stage" = 'handed_over', "courier" = null, "not_before" = null, "done_ms" = m.now, "tries" = t."tries" + 1, "complaint" = null
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- retry, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now + ceil(m.delay * 1000)::bigint as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[], %(a2)b::float8[], %(a3)b::text[]) as m ("key", "owner", "delay", "error_0")
),
moved as (
    update "parcels" as t
    set "stage" = 'shelved', "courier" = null, "not_before" = m.due, "moving_ms" = null, "done_ms" = null, "tries" = t."tries" + 1, "complaint" = m."error_0"
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- exhaust, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "owner", "error_0")
),
moved as (
    update "parcels" as t
    set "stage" = 'returned', "courier" = null, "not_before" = null, "done_ms" = m.now, "tries" = t."tries" + 1, "complaint" = m."error_0"
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- reject, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "owner", "error_0")
),
moved as (
    update "parcels" as t
    set "stage" = 'returned', "courier" = null, "not_before" = null, "done_ms" = m.now, "tries" = t."tries" + 1, "complaint" = m."error_0"
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- snooze, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now + ceil(m.delay * 1000)::bigint as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[], %(a2)b::float8[]) as m ("key", "owner", "delay")
),
moved as (
    update "parcels" as t
    set "stage" = 'shelved', "courier" = null, "not_before" = m.due, "moving_ms" = null, "done_ms" = null
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- release, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[]) as m ("key", "owner")
),
moved as (
    update "parcels" as t
    set "stage" = 'shelved', "courier" = null, "not_before" = null, "moving_ms" = null, "done_ms" = null
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- lose, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "owner", "error_0")
),
moved as (
    update "parcels" as t
    set "stage" = 'shelved', "courier" = null, "not_before" = null, "moving_ms" = null, "done_ms" = null, "tries" = t."tries" + 1, "complaint" = m."error_0"
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- cancel, by the worker
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
moves as materialized (
    select m.*, 'moving'::text as prev, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[], %(a2)b::text[]) as m ("key", "owner", "error_0")
),
moved as (
    update "parcels" as t
    set "stage" = 'returned', "courier" = null, "not_before" = null, "done_ms" = m.now, "complaint" = m."error_0"
    from moves as m
    where t."parcel_no" = m.key and t."courier" is not distinct from m.owner and t."stage" in ('moving')
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- cancel, by a person
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[], %(a1)b::text[]) as m ("key", "error_0")
),
moves as materialized (
    select m.*, t."stage"::text as prev
    from "parcels" as t join asked as m on t."parcel_no" = m.key
    where true and t."stage" in ('shelved', 'moving')
    order by t."parcel_no"
    for no key update of t
),
moved as (
    update "parcels" as t
    set "stage" = 'returned', "courier" = null, "not_before" = null, "done_ms" = m.now, "complaint" = m."error_0"
    from moves as m
    where t."parcel_no" = m.key
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- requeue, by a person
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
asked as materialized (
    select m.*, clock.now, clock.now as due
    from clock, unnest(%(a0)b::integer[]) as m ("key")
),
moves as materialized (
    select m.*, t."stage"::text as prev
    from "parcels" as t join asked as m on t."parcel_no" = m.key
    where true and t."stage" in ('returned')
    order by t."parcel_no"
    for no key update of t
),
moved as (
    update "parcels" as t
    set "stage" = 'shelved', "courier" = null, "not_before" = null, "moving_ms" = null, "done_ms" = null, "tries" = 0
    from moves as m
    where t."parcel_no" = m.key
    returning t."parcel_no"
)
select t."parcel_no" as key from moved as t;

-- heartbeat
select t."parcel_no" as key
from "parcels" as t join unnest(%(a0)b::integer[], %(a1)b::text[]) as m ("key", "owner") on t."parcel_no" = m.key
where t."courier" is not distinct from m.owner and t."stage" in ('moving');

-- held by workers that are gone
select t."parcel_no" as "id", t."service"::text as "kind", (t."slip")::text as "payload", t."stage"::text as "state", t."courier"::text as "owner", coalesce(substring(t."courier" from '/([0-9]{1,18})$')::bigint, 0) as "fence", t."tries" as "attempts", 2::int as "limit"
from "parcels" as t
where t."stage" in ('moving') and regexp_replace(t."courier", '/[0-9]+$', '') = any(%(owners)s::text[])
order by t."parcel_no"
for no key update of t skip locked;

-- orphans
select t."parcel_no" as "id", t."service"::text as "kind", (t."slip")::text as "payload", t."stage"::text as "state", t."courier"::text as "owner", coalesce(substring(t."courier" from '/([0-9]{1,18})$')::bigint, 0) as "fence", t."tries" as "attempts", 2::int as "limit"
from "parcels" as t
where t."stage" in ('moving')
    and (
        t."courier" is not null and regexp_replace(t."courier", '/[0-9]+$', '') <> all(%(alive)s::text[])
            and coalesce(t."moving_ms", t."shelved_ms") < (select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint) + ceil(-%(orphaned)s::float8 * 1000)::bigint
        or t."courier" is null and coalesce(t."moving_ms", t."shelved_ms") < (select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint) + ceil(-%(nameless)s::float8 * 1000)::bigint
    )
order by t."parcel_no"
limit %(limit)s
for no key update of t skip locked;

-- get
with picked as materialized (
    select t."parcel_no" as key
    from "parcels" as t
    where t."parcel_no" = %(id)s
    order by t."shelved_ms" desc, t."parcel_no" desc
    limit %(limit)s
)
select t."parcel_no" as "id", t."service"::text as "kind", t."stage"::text as "state", t."slip" as "payload", t."courier"::text as "owner", null::bigint as "fence", t."tries" as "attempts", 2::int as "limit", t."complaint" as "error", to_jsonb(t.*) - 'slip' as "columns", null::text as "tenant", null::text as "trace", case when t."not_before" is not null then to_timestamp(greatest(least(t."not_before", 253402300799999), -62135596800000) / 1000.0) end as "due", case when t."shelved_ms" is not null then to_timestamp(greatest(least(t."shelved_ms", 253402300799999), -62135596800000) / 1000.0) end as "created", null::timestamptz as "updated", null::timestamptz as "claimed", case when t."moving_ms" is not null then to_timestamp(greatest(least(t."moving_ms", 253402300799999), -62135596800000) / 1000.0) end as "started", case when t."done_ms" is not null then to_timestamp(greatest(least(t."done_ms", 253402300799999), -62135596800000) / 1000.0) end as "finished"
from picked as p join "parcels" as t on t."parcel_no" = p.key
order by t."shelved_ms" desc, t."parcel_no" desc;

-- find, by state and kind, after a page
with picked as materialized (
    select t."parcel_no" as key
    from "parcels" as t
    where t."stage" = any(%(states)s::text[]) and t."service"::text = %(kind)s and (t."shelved_ms", t."parcel_no") < (ceil(extract(epoch from %(before)s::timestamptz) * 1000)::bigint, %(before_key)s::integer)
    order by t."shelved_ms" desc, t."parcel_no" desc
    limit %(limit)s
)
select t."parcel_no" as "id", t."service"::text as "kind", t."stage"::text as "state", t."slip" as "payload", t."courier"::text as "owner", null::bigint as "fence", t."tries" as "attempts", 2::int as "limit", t."complaint" as "error", to_jsonb(t.*) - 'slip' as "columns", null::text as "tenant", null::text as "trace", case when t."not_before" is not null then to_timestamp(greatest(least(t."not_before", 253402300799999), -62135596800000) / 1000.0) end as "due", case when t."shelved_ms" is not null then to_timestamp(greatest(least(t."shelved_ms", 253402300799999), -62135596800000) / 1000.0) end as "created", null::timestamptz as "updated", null::timestamptz as "claimed", case when t."moving_ms" is not null then to_timestamp(greatest(least(t."moving_ms", 253402300799999), -62135596800000) / 1000.0) end as "started", case when t."done_ms" is not null then to_timestamp(greatest(least(t."done_ms", 253402300799999), -62135596800000) / 1000.0) end as "finished"
from picked as p join "parcels" as t on t."parcel_no" = p.key
order by t."shelved_ms" desc, t."parcel_no" desc;

-- keys, for an order by a filter
select t."parcel_no" as key
from "parcels" as t
where t."stage" = any(%(states)s::text[]) and regexp_replace(t."courier", '/[0-9]+$', '') = %(owner)s and t."parcel_no" > %(after_key)s
order by t."parcel_no"
limit %(limit)s;

-- count, since a time
select t."stage"::text as state, t."service"::text as kind, count(*) as rows
from "parcels" as t
where t."shelved_ms" >= ceil(extract(epoch from %(created_after)s::timestamptz) * 1000)::bigint
group by 1, 2
order by 1, 2;

-- stats
select t."stage"::text as state, count(*) as rows, case when min(t."shelved_ms") is not null then to_timestamp(greatest(least(min(t."shelved_ms"), 253402300799999), -62135596800000) / 1000.0) end as oldest, case when (min(coalesce(t."not_before", t."shelved_ms")) filter (where t."stage" = 'shelved')) is not null then to_timestamp(greatest(least((min(coalesce(t."not_before", t."shelved_ms")) filter (where t."stage" = 'shelved')), 253402300799999), -62135596800000) / 1000.0) end as due
from "parcels" as t
where true
group by 1;

-- depth: the size of the table
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree('"parcels"'::regclass) as part),
    pg_relation_size('"parcels"'::regclass)
)::bigint;

-- depth, of one state
select count(*) as rows, case when min(t."shelved_ms") is not null then to_timestamp(greatest(least(min(t."shelved_ms"), 253402300799999), -62135596800000) / 1000.0) end as oldest, case when (min(coalesce(t."not_before", t."shelved_ms")) filter (where t."stage" = 'shelved')) is not null then to_timestamp(greatest(least((min(coalesce(t."not_before", t."shelved_ms")) filter (where t."stage" = 'shelved')), 253402300799999), -62135596800000) / 1000.0) end as due
from (select t."stage", t."shelved_ms", t."not_before" from "parcels" as t where t."stage" = %(state)s::text limit %(limit)s) as t;

-- head
with recursive clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"lane_shelf" as materialized (
    select greatest(t."shelved_ms", t."shelved_ms") as since
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is null and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[]))
    order by t."shelved_ms"
    limit %(limit)s
),
"lane_later" as materialized (
    select greatest(t."not_before", t."shelved_ms") as since
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is not null and t."not_before" <= (select now from clock) and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[])) and t."not_before" >= -9223372036854775807
    order by t."not_before"
    limit %(limit)s
)
select case when min(lane.since) is not null then to_timestamp(greatest(least(min(lane.since), 253402300799999), -62135596800000) / 1000.0) end as since from (select * from "lane_shelf" union all select * from "lane_later") as lane;

-- due kinds
with recursive clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"lane_shelf" as materialized (
    select t."service"::text as kind
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is null and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[]))
    order by t."shelved_ms"
    limit %(limit)s
),
"lane_later" as materialized (
    select t."service"::text as kind
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is not null and t."not_before" <= (select now from clock) and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[])) and t."not_before" >= -9223372036854775807
    order by t."not_before"
    limit %(limit)s
)
select distinct lane.kind from (select * from "lane_shelf" union all select * from "lane_later") as lane order by lane.kind;

-- ahead
with clock as materialized (
    select floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint as now
),
"lane_shelf" as materialized (
    select t."parcel_no" as key, t."shelved_ms" as "rank_0"
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is null and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[]))
    order by t."shelved_ms"
    limit %(limit)s
),
"lane_later" as materialized (
    select t."parcel_no" as key, t."not_before" as "rank_0"
    from "parcels" as t
    where t."stage" = 'shelved' and t."not_before" is not null and t."not_before" <= (select now from clock) and (%(kinds)s::text[] is null or t."service" = any(%(kinds)s::text[])) and t."not_before" >= -9223372036854775807
    order by t."not_before"
    limit %(limit)s
),
ranked as (
    select lane.key, row_number() over (order by "rank_0") as place from (select * from "lane_shelf" union all select * from "lane_later") as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked;

-- touched
with touched as materialized (
    select t."stage"::text as state, t.xmax as by from "parcels" as t where t."parcel_no" = %(id)s
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
select t."parcel_no" as key, concat_ws(' ', t."stage", t."courier", t."done_ms", t."tries", t."not_before") as mark
from "parcels" as t
where t."parcel_no" = any(%(keys)s::integer[]);

-- held, by worker
select regexp_replace(t."courier", '/[0-9]+$', '') as holder, count(*) as rows
from "parcels" as t
where t."stage" = 'moving'
group by 1;
