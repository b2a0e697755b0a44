"""The SQL of presence and leadership, on the platform's own table `workers`: its times are UTC, zoneless."""

from typing import LiteralString

REGISTER: LiteralString = """
insert into workers (id, hostname, started_at, last_heartbeat, pool_size, version, serves)
select %(id)s, %(hostname)s, clock.now, clock.now, %(pool_size)s, %(version)s, %(serves)s
from (select coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC' as now) as clock
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
returning w.id
"""

ALIVE: LiteralString = "select id from workers"

# A leader that is frozen in the middle of a duty must not keep its locks from the next one.
IMPATIENT: LiteralString = "set local idle_in_transaction_session_timeout = '5s'"

# Who is there; `silent` is the age of the heartbeat in seconds.
FLEET: LiteralString = """
select w.id, w.pool_size, w.serves,
    w.is_leader and w.leader_until > clock.now as leads,
    extract(epoch from clock.now - w.last_heartbeat)::float8 as silent
from workers as w, (select clock_timestamp() at time zone 'UTC' as now) as clock
order by w.started_at, w.id
"""

# How long a worker's turn waits for a row that somebody else has locked, before it goes on without it.
LOCK_TIMEOUT: LiteralString = "set lock_timeout = '300ms'"
