"""The SQL of the engine, as text with holes. Read the filled-in form in tests/golden/.

Habits that every statement keeps:
- One reading of the clock for the whole statement, in the first CTE, in the ledger's own type of time. A
  test lends its own clock as %(now)s. Nothing volatile stands inside an UPDATE.
- Rows are picked in a MATERIALIZED CTE and joined to the UPDATE: a sub-select with LIMIT may be run again
  by the planner and then claims more rows than it should.
- State words are literals: with a parameter a generic plan cannot use a partial index.
- A move names the key, the fence, the owner and the states that it may come from. Rows that do not match
  stay as they are, and the statement answers with the keys of those that did.
- The event of a move is written by the statement that moves.
"""

from typing import LiteralString

# What the statements call their own parts: a table of such a name would be hidden by them.
NAMES = frozenset(
    (
        *("asked", "clock", "hops", "items", "lane", "moved", "moves", "one", "picked", "ranked", "told"),
        *("touched", "touchers", "twin"),
    )
)

CLAIM: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
{lanes},
picked as materialized (
    select * from ({union}) as lane
    order by {rank}
    limit %(limit)s
),
moved as (
    update {table} as t
    set {sets}
    from picked as m
    where t.{key} = m.key
    returning {returning}
){journal}
select {answer}, p.waited
from moved as t join picked as p on p.key = t.{key}
order by {rank}
"""

# The same where a claim is a lock: nothing is written, and the rows are free again when the transaction ends.
TAKE: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
{lanes},
picked as materialized (
    select * from ({union}) as lane
    order by {rank}
    limit %(limit)s
)
select {answer}, p.waited
from {table} as t join picked as p on p.key = t.{key}
order by {rank}
"""

# A claim must not wait for others and must not collide with the key locks of inserts that refer to the row.
LANE: LiteralString = """\
{name} as materialized (
    select t.{key} as key, t.{state}::text as prev, {ranks}, (select now from clock) as now,
        {waited} as waited
    from {table} as t
    where {conditions}
    order by {order}
    limit %(limit)s
    for no key update of t skip locked
)"""

PICKS: LiteralString = "select * from {}"

# Of rows of which one only may run, the best.
PICKS_SINGLY: LiteralString = """(
        select distinct on ({single}) lane.*
        from {lane} as lane join {table} as t on t.{key} = lane.key
        order by {single}, {rank}
    )"""

# That no such row waits or runs already. Another claim may be quicker: then the unique index refuses.
NO_TWIN: LiteralString = "not exists (select from {table} as twin where {same} offset 0)"

# Of some rows that want to wait again, the newest.
SINGLY: LiteralString = """
        and t.{key} in (
            select distinct on ({single}) one.{key}
            from moves as n join {table} as one on one.{key} = n.key
            order by {single}, one.{created} desc, one.{key} desc
        )"""

# The row that stands in the way of another.
TWIN: LiteralString = """\
select twin.{key} as key, {kind} as kind, twin.{state}::text as state
from {table} as t join {table} as twin on {same}
where t.{key} = %(id)s
"""

# The same by one index search for each queue that the worker serves, for each kind that it knows, or both.
LANE_BY_SEARCHES: LiteralString = """\
{name} as materialized (
    select lane.*
    from {searches}, lateral (
        select t.{key} as key, t.{state}::text as prev, {ranks}, (select now from clock) as now,
            {waited} as waited
        from {table} as t
        where {search} and {conditions}
        order by {order}
        limit %(limit)s
        for no key update of t skip locked
    ) as lane
)"""

# A verb with one state to come from: the row tells nothing that we do not know already.
MOVE: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
moves as materialized (
    select m.*, {prev} as prev, clock.now, {due} as due
    from clock, unnest({arrays}) as m ({names})
),
moved as (
    update {table} as t
    set {sets}
    from moves as m
    where t.{key} = m.key and {guard} and t.{state} in ({states})
    returning {returning}
){journal}
select t.{key} as key from moved as t
"""

# A verb with several states to come from: lock first, in the order of the keys, to learn which one it is.
MOVE_LOCKED: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
asked as materialized (
    select m.*, clock.now, {due} as due
    from clock, unnest({arrays}) as m ({names})
),
moves as materialized (
    select m.*, t.{state}::text as prev{before}
    from {table} as t join asked as m on t.{key} = m.key
    where {guard} and t.{state} in ({states})
    order by t.{key}
    for no key update of t
),
moved as (
    update {table} as t
    set {sets}
    from moves as m
    where t.{key} = m.key{singly}
    returning {returning}
){journal}
select t.{key} as key from moved as t
"""

# One event for each hop: `hops` lists, for every state a row may come from, the stations that it passes.
JOURNAL: LiteralString = """,
hops (start, step, prev, next) as (
    values {hops}
),
told as (
    insert into {journal} ({row}, {at}, {prev}, {next}, {detail})
    select t.{key}, {moment}, h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object({facts})) || coalesce({extra}, '{{}}')
    from moved as t
    join {source} as m on m.key = t.{key}
    join hops as h on h.start is not distinct from m.prev
    order by t.{key}, h.step
)"""

# The event of a new row. One caller, one detail for the whole bulk. JSON goes in as text: a library may have
# been told to make JSON of whatever it is given for a column of that type.
JOURNAL_NEW: LiteralString = """,
hops (step, prev, next) as (
    values {hops}
),
told as (
    insert into {journal} ({row}, {at}, {prev}, {next}, {detail})
    select t.{key}, clock.now, h.prev, h.next,
        jsonb_strip_nulls(jsonb_build_object({facts})) || coalesce(%(detail)s::text::jsonb, '{{}}')
    from clock, moved as t, hops as h
    order by t.{key}, h.step
)"""

ENQUEUE: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
items as materialized (
    select {items}, i."+place", clock.now as "+now"
    from clock, unnest({arrays}) with ordinality as i ({names}, "+place")
),
moved as (
    insert into {table} as t ({columns})
    select {values} from items as i
    order by i."+place"{conflict}
    returning {returning}
){journal}
select {answer}, bell.rung from moved as t, (select pg_notify({channel}, '') as rung) as bell
"""

TOUCH: LiteralString = """
    on conflict ({target}) do update set {updated} = excluded.{updated}"""

NOTHING: LiteralString = """
    on conflict ({target}){predicate} do nothing"""

# The rows that stood in the way of an enqueue.
EXISTING: LiteralString = """\
select i."+place" as place, t.{key} as key, t.{state}::text as state, {kind} as kind
from {table} as t
join unnest({arrays}) with ordinality as i ({names}, "+place") on {match}
where {predicate}
"""

# All or none, inside the caller's transaction; and where there is none. Both undo and stay inside.
SAVE: LiteralString = "savepoint holdfast"
UNDO: LiteralString = "rollback to savepoint holdfast"
KEEP: LiteralString = "release savepoint holdfast"
BEGIN: LiteralString = "begin"
RESTART: LiteralString = "rollback and chain"
COMMIT: LiteralString = "commit"

MOMENT: LiteralString = "select {clock} as now"

COPY: LiteralString = "copy {table} ({columns}) from stdin"

RING: LiteralString = "select pg_notify(%(channel)s, '')"

# Which of these claims still hold? A look only, for a lease that lives in the worker's own row.
STILL_HELD: LiteralString = """\
select t.{key} as key
from {table} as t join unnest({arrays}) as m ({names}) on t.{key} = m.key
where {guard} and t.{state} in ({states})
"""

# The same as a write, for a lease that lives in the row. A row that somebody keeps locked is still held, and
# renewed the next time: it must not keep the others from it.
RENEW: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
asked as materialized (
    select m.*, clock.now from clock, unnest({arrays}) as m ({names})
),
moves as materialized (
    select t.{key} as key, m.now
    from {table} as t join asked as m on t.{key} = m.key
    where {guard} and t.{state} in ({states})
    order by t.{key}
    for no key update of t skip locked
),
moved as (
    update {table} as t
    set {lease} = m.now
    from moves as m
    where t.{key} = m.key
)
select t.{key} as key
from {table} as t join asked as m on t.{key} = m.key
where {guard} and t.{state} in ({states})
"""

# Rows whose worker is known to be gone. One that is locked is just being written: it is found again later.
HELD_BY: LiteralString = """\
select {answer}
from {table} as t
where t.{state} in ({states}) and {holder} = any(%(owners)s::text[])
order by t.{key}
for no key update of t skip locked
"""

# Rows that a worker nobody knows took long ago, and rows that stand as taken without naming anybody.
ORPHANS: LiteralString = """\
select {answer}
from {table} as t
where t.{state} in ({states})
    and (
        t.{owner} is not null and {holder} <> all(%(alive)s::text[])
            and {since} < {clock_minus_orphaned}
        or t.{owner} is null and {since} < {clock_minus_nameless}
    )
order by t.{key}
limit %(limit)s
for no key update of t skip locked
"""

# Rows whose own lease has run out.
EXPIRED: LiteralString = """\
select {answer}
from {table} as t
where t.{state} in ({states}) and (t.{lease} is null or t.{lease} < {clock_minus_lease})
order by t.{key}
limit %(limit)s
for no key update of t skip locked
"""

ROWS: LiteralString = """\
with picked as materialized (
    select t.{key} as key
    from {table} as t
    where {conditions}
    order by {order}
    limit %(limit)s
)
select {row}
from picked as p join {table} as t on t.{key} = p.key
order by {order}
"""

# The same of one row, with what its journal alone knows.
ROW: LiteralString = """\
select {row},
    case when t.{state} = {finished} then (
        select e.{detail} -> 'result' from {journal} as e
        where e.{of} = t.{key} and e.{next} = {finished} order by {newest} limit 1
    ) end as result,
    (
        select e.{detail} ->> 'stage' from {journal} as e
        where e.{of} = t.{key} and e.{detail} -> 'stage' is not null order by {newest} limit 1
    ) as stage,
    (
        select (e.{detail} ->> 'progress')::float8 from {journal} as e
        where e.{of} = t.{key} and jsonb_typeof(e.{detail}::jsonb -> 'progress') = 'number'
        order by {newest} limit 1
    ) as progress
from {table} as t
where {conditions}
"""

EVENTS: LiteralString = """\
select e.{seq} as seq, {moment} as at, e.{prev} as prev, e.{next} as next,
    coalesce(e.{detail}, '{{}}') as detail
from {journal} as e
where e.{of} = %(id)s and e.{seq} > %(after)s
order by e.{seq}
limit %(limit)s
"""

KEYS: LiteralString = """\
select t.{key} as key
from {table} as t
where {conditions}
order by t.{key}
limit %(limit)s
"""

COUNTS: LiteralString = """\
select t.{state}::text as state, {kind} as kind, count(*) as rows
from {table} as t
where {conditions}
group by 1, 2
order by 1, 2
"""

# Rows in the order of their keys, each followed by its events: one snapshot, so that both must agree. Where
# seq is null stands the row itself. The union makes the planner ask the journal's index row by row.
VERIFY: LiteralString = """\
with picked as materialized (
    select {facts}
    from {table} as t
    where {conditions}
    order by t.{key}
    limit %(limit)s
)
select e.*
from picked as p, lateral (
    select null as seq, null as at, null as prev, null as next, null as detail, p.*
    union all
    select j.{seq}, j.{at}, j.{prev}::text, j.{next}::text, j.{detail}::text, {nothing}
    from {journal} as j
    where j.{of} = p.key
) as e
order by p.key, e.seq nulls first
"""

# Where a verification ends: rows that are added while it runs are left to the next one.
LAST_KEY: LiteralString = """\
select t.{key} as key
from {table} as t
where {conditions}
order by t.{key} desc
limit 1
"""

# Both end with the transaction.
CONFINE: LiteralString = """\
select set_config('role', coalesce(%(role)s, current_setting('role')), true),
    set_config(%(setting)s, %(tenant)s, true)
"""

# Of the session, not of the transaction alone: a role that a handler set must not outlive it.
UNCONFINE: LiteralString = "reset role"

STATS: LiteralString = """\
select t.{state}::text as state, count(*) as rows, {oldest} as oldest, {due} as due
from {table} as t
where {conditions}
group by 1
"""

# The same of one state, of no more rows than a page can wait for.
DEPTH: LiteralString = """\
select count(*) as rows, {oldest} as oldest, {due} as due
from (select {columns} from {table} as t where {conditions} limit %(limit)s) as t
"""

EXPLAIN: LiteralString = "explain (format json) "

# A partitioned table has no size of its own.
SIZE: LiteralString = """\
select coalesce(
    (select sum(pg_relation_size(part.relid)) from pg_partition_tree({name}) as part),
    pg_relation_size({name})
)::bigint
"""

# Since when the rows wait that would be claimed next: the same indexes as a claim, and no locks.
HEAD: LiteralString = """\
with recursive clock as materialized (
    select {clock} as now
),
{lanes}
select {moment} as since from ({union}) as lane
"""

# The kinds of those rows.
DUE_KINDS: LiteralString = """\
with recursive clock as materialized (
    select {clock} as now
),
{lanes}
select distinct lane.kind from ({union}) as lane order by lane.kind
"""

# Which place a row has among them.
AHEAD: LiteralString = """\
with clock as materialized (
    select {clock} as now
),
{lanes},
ranked as (
    select lane.key, row_number() over (order by {rank}) as place from ({union}) as lane
)
select count(*) as seen, min(place) filter (where key = %(id)s) as place from ranked
"""

PEEK: LiteralString = """\
{name} as materialized (
    select {what}
    from {table} as t
    where {conditions}
    order by {order}
    limit %(limit)s
)"""

# Every queue that has such rows, found by one index search each.
PEEK_QUEUES: LiteralString = """\
{queues} (name) as (
    (select {queue} from {table} as t where {standing} order by {queue} limit 1)
    union all
    select (
        select {queue} from {table} as t where {standing} and {queue} > q.name order by {queue} limit 1
    )
    from {queues} as q where q.name is not null
),
{name} as materialized (
    select lane.*
    from {queues} as q, lateral (
        select {what}
        from {table} as t
        where {queue} = q.name and {conditions}
        order by {order}
        limit %(limit)s
    ) as lane
)"""

PEEK_BY_SEARCHES: LiteralString = """\
{name} as materialized (
    select lane.*
    from {searches}, lateral (
        select {what}
        from {table} as t
        where {search} and {conditions}
        order by {order}
        limit %(limit)s
    ) as lane
)"""

# The state of a row now, and the open transaction that has changed or locked it. What several have locked
# has a number of its own, of which those are left out that stand in nobody's way: the lock of a foreign key.
# Where such a lock is the only one it cannot be told from others. A prepared transaction has no process.
TOUCHED: LiteralString = """\
with touched as materialized (
    select t.{state}::text as state, t.xmax as by from {table} as t where t.{key} = %(id)s
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
limit 1
"""

# When the claim was made that a row is held by, where its journal alone knows.
HELD_SINCE: LiteralString = """\
select {moment} as since
from {journal} as e
where e.{of} = %(id)s and e.{next} in ({held}) and e.{prev} is distinct from e.{next}
"""

# How many rows each worker holds.
HELD: LiteralString = """\
select {holder} as holder, count(*) as rows
from {table} as t
where {held}
group by 1
"""

# What happened to the rows of a ledger since a moment, the first event first.
CHANGES: LiteralString = """\
select e.{of} as id, e.{seq} as seq, {moment} as at, e.{prev} as prev, e.{next} as next,
    coalesce(e.{detail}, '{{}}') as detail
from {journal} as e join {table} as t on t.{key} = e.{of}
where (e.{at}, e.{seq}) > ({since}, %(after)s) and {conditions}
order by e.{at}, e.{seq}
limit %(limit)s
"""

# What changes when a row does, in one text.
MARKS: LiteralString = """\
select t.{key} as key, concat_ws(' ', {facts}) as mark
from {table} as t
where t.{key} = any(%(keys)s::{key_type}[])
"""

LAST_EVENT: LiteralString = "(select max(e.{seq}) from {journal} as e where e.{of} = t.{key})"

HIDDEN: LiteralString = "select row_security_active({name}::regclass)"
