"""The SQL of those who work: what a run must know at its start, token refreshes, and the drained inbox."""

from typing import LiteralString

from holdfast.apps.connectors.sql import DELIVERY

# What the row of a claimed job says, and its provider's; `lost`: the run before died with its worker.
BEGIN: LiteralString = """
select j.connection_id, j.priority,
    case when p.cooldown_until is not null then least(p.cooldown_until, '9999-12-31Z') end as cooldown_until,
    coalesce(j.error ->> 'code' = 'WORKER_LOST', false) as lost, clock_timestamp() as now
from sync_jobs as j
join providers as p on p.slug = j.provider_slug
where j.id = %(id)s
"""

# What tells one loss from another: of which job, and when.
LOSS: LiteralString = """
select id::text || ' ' || coalesce(error ->> 'timestamp', '') from sync_jobs
where id = %(id)s and error ->> 'code' = 'WORKER_LOST'
"""

# Whether the run that holds a connection is still under way: its claim is its id and its fence.
FLYING: LiteralString = """
select exists (
    select from sync_jobs
    where id::text = %(job)s and fence = %(fence)s and connection_id = %(connection)s and status = 'running'
)
"""

CLOCK: LiteralString = "select clock_timestamp()"

STATE: LiteralString = "select status from sync_jobs where id = %(id)s"

# -- tokens ----------------------------------------------------------------------------------------------

# What writes the end of a run is quick. A worker that is frozen in the middle must not keep its locks.
BRIEF: LiteralString = "select set_config('idle_in_transaction_session_timeout', '10s', true)"

# Taken in a statement of its own: the snapshot of the next one is then younger than the wait for the lock.
REFRESHING: LiteralString = """
select pg_advisory_xact_lock(hashtextextended('holdfast token ' || %(id)s::text, 0))
"""

# Tokens that will soon end, the first to end first. Those of a provider that wants no calls now can wait.
ENDING: LiteralString = """
select c.id, c.access_token_ciphertext as access
from connections as c
join providers as p on p.slug = c.provider_slug
where c.status = 'active' and c.refresh_token_ciphertext is not null
    and c.expires_at <= (select clock_timestamp()) + make_interval(secs => %(lead)s)
    and c.provider_slug = any(%(known)s::text[]) and c.id <> all(%(tried)s::uuid[])
    and coalesce(p.cooldown_until, '-infinity') <= clock_timestamp()
order by c.expires_at, c.id
limit %(limit)s
"""

# -- the inbox -------------------------------------------------------------------------------------------

# A delivery that has failed waits; its error says until when, in text of one width (see `sync_state`).
_READY: LiteralString = """
    d.processed_at is null and coalesce(d.error ->> 'retry_after', '') collate "C" <= %(now)s
"""

READY: LiteralString = (
    DELIVERY
    + """ as d
where d.connection_id = %(connection)s and """
    + _READY
    + """
order by d.received_at, d.delivery_id
limit %(limit)s
"""
)

LEFT: LiteralString = (
    """
select exists (select from webhook_delivery as d where d.connection_id = %(connection)s and """
    + _READY
    + ")"
)

# Connections with deliveries that should have been processed by now, and no job that will. Read in the
# order of `idx_webhook_delivery_pending`, which has those that wait and no others.
STRANDED: LiteralString = (
    """
select distinct d.connection_id
from webhook_delivery as d
join connections as c on c.id = d.connection_id
where d.connection_id > %(after)s and d.received_at <= %(before)s
    and c.status = 'active' and c.provider_slug = any(%(known)s::text[])
    and not exists (
        select from sync_jobs as j
        where j.connection_id = c.id and j.job_type = 'webhook' and j.status in ('queued', 'running')
    )
    and """
    + _READY
    + """
order by d.connection_id
limit %(limit)s
"""
)
