"""The SQL of the platform's own tables: presence and leadership, pauses, and what workers did.

The times of `workers` are UTC, zoneless; all others are moments.
"""

from typing import LiteralString

# Said again when the first response was lost.
# The row of a former life goes with it: a leader that removed it would terminate the sessions of this one.
REGISTER: LiteralString = """
with former as (
    delete from workers where id = %(former)s
)
insert into workers (id, hostname, started_at, last_heartbeat, pool_size, version, serves, shares)
select %(id)s, %(hostname)s, clock.now, clock.now, %(pool_size)s, %(version)s, %(serves)s, %(shares)s
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now) as clock
on conflict (id) do update set last_heartbeat = excluded.last_heartbeat
"""

BEAT: LiteralString = """
update workers as w
set last_heartbeat = clock.now
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now) as clock
where w.id = %(id)s
returning w.id
"""

DEREGISTER: LiteralString = "delete from workers where id = %(id)s"

# Taken in a statement of its own: the snapshot of the next one is then younger than the wait for the lock.
# One lock for each place where a `workers` table lives.
ELECTION: LiteralString = """
select pg_advisory_xact_lock(hashtextextended('holdfast leader ' || current_schema(), 0));
"""

# Takes or extends the lease unless another live leader has it, and clears every stale flag.
ELECT: LiteralString = """
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now
),
lease as materialized (
    select clock.now, clock.now + make_interval(secs => %(term)s) as until,
        not exists (
            select from workers as other
            where other.is_leader and other.leader_until > clock.now and other.id <> %(id)s
        ) as free
    from clock
),
elected as (
    update workers as w
    set is_leader = w.id = %(id)s and lease.free,
        leader_until = case when w.id = %(id)s and lease.free then lease.until end,
        last_heartbeat = case when w.id = %(id)s then lease.now else w.last_heartbeat end
    from lease
    where w.id = %(id)s or (w.is_leader and (w.leader_until is null or w.leader_until <= lease.now))
    returning w.id, w.is_leader
)
select is_leader from elected where id = %(id)s
"""

# Seconds until the lead falls free, if nobody renews it.
VACANT: LiteralString = """
select extract(epoch from max(leader_until) - (clock_timestamp() at time zone 'UTC'))::float8
from workers where is_leader
"""

# Gives the lead up and calls for an election.
RESIGN: LiteralString = """
with resigned as (
    update workers set is_leader = false, leader_until = null where id = %(id)s and is_leader
    returning id
)
select pg_notify(%(channel)s, '') from resigned
"""

# A worker that is silent for too long. The leader that looks is alive by having been elected.
BURY: LiteralString = """
with clock as materialized (
    select (coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC')
        - make_interval(secs => %(timeout)s) as horizon
)
delete from workers as w
using clock
where w.last_heartbeat < clock.horizon and w.id <> %(id)s
returning w.id, to_char(w.last_heartbeat, 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
"""

# The sessions of removed workers, by how their names end. Every login may see these columns.
SESSIONS: LiteralString = """
select a.pid, a.usename::text as login, a.application_name as name
from pg_stat_activity as a
join unnest(%(marks)s::text[]) as m (mark) on right(a.application_name, length(m.mark)) = m.mark
where a.datname = current_database() and a.pid <> pg_backend_pid()
    and starts_with(a.application_name, 'holdfast ')
order by a.pid
"""

# So that the next statement sees the sessions as they are now, and not as they were at the first look.
LOOK_AGAIN: LiteralString = "select pg_stat_clear_snapshot()"

# Without a wait for its end, which is asked for every 100 ms only.
TERMINATE: LiteralString = """
select pg_terminate_backend(pid) from pg_stat_activity where pid = %(pid)s and application_name = %(name)s
"""

ALIVE: LiteralString = "select id from workers"

# A leader that is frozen in the middle of a duty must not keep its locks from the next one.
IMPATIENT: LiteralString = "set local idle_in_transaction_session_timeout = '5s'"

# Who is there; `silent` is the age of the heartbeat in seconds.
FLEET: LiteralString = """
select w.id, w.hostname, w.started_at at time zone 'UTC' as started, w.version, w.pool_size, w.serves,
    w.shares,
    coalesce(w.is_leader and w.leader_until > clock.now, false) as leads,
    extract(epoch from clock.now - w.last_heartbeat)::float8 as silent
from workers as w, (select clock_timestamp() at time zone 'UTC' as now) as clock
order by w.started_at, w.id
"""

# The transaction of a handler: whose it is, how long it may sit idle, and how long it waits for a lock. SET
# and not set_config(): the handler may still choose its isolation level, which has to come before any query.
HANDLER_LIMITS: LiteralString = """
set local application_name = {name};
set local idle_in_transaction_session_timeout = {idle};
set local lock_timeout = {lock}
"""

# Gives an old transaction the limit of other sessions, unless its handler has set one of its own.
RELAX: LiteralString = """
select set_config('idle_in_transaction_session_timeout', %(relaxed)s, true)
where exists (
    select from pg_settings where name = 'idle_in_transaction_session_timeout' and setting = %(limit)s
)
"""

# How long a worker's turn waits for a row that somebody else has locked, before it goes on without it.
LOCK_TIMEOUT: LiteralString = "set lock_timeout = '300ms'"

# The same for one transaction, behind a pooler: it takes no start-up options, and the session is not ours.
LIMITS: LiteralString = """
select set_config('lock_timeout', '300ms', true), set_config('statement_timeout', {statement}, true)
"""

NOW: LiteralString = "select clock_timestamp() as now"

# -- pauses ----------------------------------------------------------------------------------------------

# Both ring when something has changed, and answer with a row then.
PAUSE: LiteralString = """
with paused as (
    insert into holdfast_pause (ledger, queue, by, reason)
    values (%(ledger)s, %(queue)s, %(by)s, %(reason)s)
    on conflict (ledger, queue) do nothing
    returning ledger
)
select pg_notify(%(channel)s, '') from paused
"""

RESUME: LiteralString = """
with resumed as (
    delete from holdfast_pause where ledger = %(ledger)s and queue = %(queue)s
    returning ledger
)
select pg_notify(%(channel)s, '') from resumed
"""

PAUSED: LiteralString = """
select ledger, nullif(queue, '') as queue, since, by, reason
from holdfast_pause
order by ledger, holdfast_pause.queue
"""

PAUSED_QUEUES: LiteralString = "select queue from holdfast_pause where ledger = %(ledger)s"

# -- what workers did ------------------------------------------------------------------------------------

# The rows are locked in the order of the primary key, by every worker alike: nobody waits in a circle.
PULSE: LiteralString = """
with clock as materialized (
    select date_trunc('minute', clock_timestamp()) as minute
),
told as materialized (
    select * from unnest(
        %(ledgers)s::text[], %(kinds)s::text[], %(facts)s::text[], %(labels)s::text[],
        %(counts)s::bigint[], %(sums)s::float8[]
    ) as t (ledger, kind, fact, label, count, sum)
)
insert into holdfast_pulse as p (minute, ledger, kind, fact, label, count, sum)
select * from (
    select '-infinity'::timestamptz as minute, ledger, kind, fact, label, count, sum from told
    union all
    select clock.minute, ledger, '', fact, label, sum(count)::bigint, sum(sum)
    from told, clock
    group by clock.minute, ledger, fact, label
) as every
order by minute, ledger, kind, fact, label
on conflict (minute, ledger, kind, fact, label)
do update set count = p.count + excluded.count, sum = p.sum + excluded.sum
"""

# The last minutes, the present one as well; those without a row, too.
MINUTES: LiteralString = """
with clock as materialized (
    select date_trunc('minute', coalesce(%(now)s::timestamptz, clock_timestamp())) as minute
),
minutes as materialized (
    select clock.minute - make_interval(mins => place) as at
    from clock, generate_series(0, %(minutes)s::int - 1) as place
),
told as materialized (
    select p.minute, p.fact, p.label, p.count
    from holdfast_pulse as p
    where p.minute >= (select min(at) from minutes) and p.minute <= (select max(at) from minutes)
        and p.ledger = %(ledger)s and p.kind = '' and p.fact in ('waited', 'moved', 'dead')
)
select m.at,
    coalesce(sum(t.count) filter (where t.fact = 'waited'), 0)::bigint as claimed,
    coalesce(sum(t.count) filter (where t.fact = 'moved' and t.label = 'finish'), 0)::bigint as finished,
    coalesce(sum(t.count) filter (where t.fact = 'moved' and t.label = 'retry'), 0)::bigint as retried,
    coalesce(sum(t.count) filter (where t.fact = 'dead'), 0)::bigint as dead
from minutes as m left join told as t on t.minute = m.at
group by m.at
order by m.at
"""

# The same minutes together: how long rows waited and ran, and why runs failed.
FACTS: LiteralString = """
with clock as materialized (
    select date_trunc('minute', coalesce(%(now)s::timestamptz, clock_timestamp())) as minute
)
select p.fact, p.label, sum(p.count)::bigint as count
from clock, holdfast_pulse as p
where p.minute > clock.minute - make_interval(mins => %(minutes)s) and p.minute <= clock.minute
    and p.ledger = %(ledger)s and p.kind = '' and p.fact in ('waited', 'ran', 'failed')
group by p.fact, p.label
order by sum(p.count) desc, p.label
"""

TOTALS: LiteralString = """
select ledger, kind, fact, label, count, sum
from holdfast_pulse
where minute = '-infinity'
order by ledger, kind, fact, label
"""

# Codes may be anybody's words: of a ledger's, those that came most often stay.
FORGET_CODES: LiteralString = """
with ranked as materialized (
    select p.minute, p.ledger, p.kind, p.fact, p.label,
        row_number() over (partition by p.ledger order by p.count desc, p.label) as place
    from holdfast_pulse as p
    where p.minute = '-infinity' and p.fact = 'failed'
)
delete from holdfast_pulse as p
using ranked as r
where r.place > %(most)s and (p.minute, p.ledger, p.kind, p.fact, p.label)
    = (r.minute, r.ledger, r.kind, r.fact, r.label)
"""

FORGET: LiteralString = """
with clock as materialized (
    select coalesce(%(now)s::timestamptz, clock_timestamp()) - make_interval(hours => %(hours)s) as horizon
)
delete from holdfast_pulse as p
using clock
where p.minute > '-infinity' and p.minute < clock.horizon
"""
