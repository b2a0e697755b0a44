"""The SQL of the doors: the inbox, OAuth states, the health of connections, pages of rows, and metrics."""

from collections.abc import Iterable, Mapping
from typing import LiteralString

from holdfast.apps.connectors.queries import where
from holdfast.apps.connectors.tick_queries import TIMED

# -- inbox -----------------------------------------------------------------------------------------------

# Each is a statement of its own: the snapshot of the next one is then younger than the wait for the lock.
HOLD_INBOX: LiteralString = """
select pg_advisory_xact_lock_shared(hashtextextended('holdfast inbox ' || %(id)s::text, 0))
"""

CLOSE_INBOX: LiteralString = """
select pg_advisory_xact_lock(hashtextextended('holdfast inbox ' || %(id)s::text, 0))
"""

CLOSE_INBOX_NOW: LiteralString = """
select pg_try_advisory_xact_lock(hashtextextended('holdfast inbox ' || %(id)s::text, 0))
"""

RECEIVE: LiteralString = """
insert into webhook_delivery (
    provider_slug, connection_id, tenant_id, delivery_id, headers, payload, body_sha256, verification,
    received_at
)
values (
    %(provider)s, %(connection)s, %(tenant)s, %(delivery)s, %(headers)s, %(payload)s, %(sha256)s,
    %(verification)s, coalesce(%(now)s, now())
)
on conflict (provider_slug, tenant_id, delivery_id) do nothing
returning delivery_id
"""

# Times without end are bounded: others may write here, too. Whoever sorts names the table's own column.
DELIVERY: LiteralString = """
select provider_slug as provider, tenant_id, delivery_id, connection_id, headers, payload, verification,
    greatest(least(received_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as received_at,
    case when processed_at is not null
        then greatest(least(processed_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    end as processed_at, attempts, error
from webhook_delivery
"""

PROCESSED: LiteralString = """
update webhook_delivery
set processed_at = coalesce(%(now)s, now()), error = %(error)s
where provider_slug = %(provider)s and tenant_id = %(tenant)s and delivery_id = %(delivery)s
    and processed_at is null
returning delivery_id
"""

# The last of so many tries parks it: processed, with its error.
FAILED_ONCE: LiteralString = """
update webhook_delivery
set attempts = attempts + 1, error = %(error)s,
    processed_at = case when attempts + 1 >= %(tries)s then coalesce(%(now)s, now()) end
where provider_slug = %(provider)s and tenant_id = %(tenant)s and delivery_id = %(delivery)s
    and processed_at is null
returning attempts
"""

DELIVERY_CONDITIONS: Mapping[str, LiteralString] = {
    "tenant_id": "tenant_id = %(tenant_id)s",
    "provider": "provider_slug = %(provider)s",
    "connection_id": "connection_id = %(connection_id)s",
    "delivery": "delivery_id = %(delivery)s",
    "received_after": "received_at >= %(received_after)s",
    "received_before": "received_at <= %(received_before)s",
    "unmatched": "processed_at is null and connection_id is null",
    "pending": "processed_at is null and connection_id is not null",
    "processed": "processed_at is not null and error is null",
    "failed": "processed_at is not null and error is not null",
    "before": """
(received_at, tenant_id, provider_slug, delivery_id)
    < (%(before)s, %(before_tenant)s, %(before_provider)s, %(before_delivery)s)
""",
    "after": """
(received_at, tenant_id, provider_slug, delivery_id)
    > (%(after)s, %(after_tenant)s, %(provider)s, %(after_delivery)s)
""",
}


def arrivals(given: Iterable[str]) -> LiteralString:
    """Some deliveries, in order of arrival."""
    order: LiteralString = """
order by webhook_delivery.received_at, tenant_id, provider_slug, delivery_id
limit %(limit)s
"""
    return DELIVERY + "where " + where(DELIVERY_CONDITIONS, given) + order


def deliveries(given: Iterable[str]) -> LiteralString:
    """A page of deliveries, the newest first."""
    order: LiteralString = """
order by webhook_delivery.received_at desc, tenant_id desc, provider_slug desc, delivery_id desc
limit %(limit)s
"""
    return DELIVERY + "where " + where(DELIVERY_CONDITIONS, given) + order


REPLAY: LiteralString = """
update webhook_delivery as d
set connection_id = m.connection_id, processed_at = null, attempts = 0, error = null
from unnest(%(tenants)s::uuid[], %(deliveries)s::text[], %(connections)s::uuid[])
    as m (tenant_id, delivery_id, connection_id)
where d.provider_slug = %(provider)s and d.tenant_id = m.tenant_id and d.delivery_id = m.delivery_id
"""

# -- jobs ------------------------------------------------------------------------------------------------

# `completed` is another's word for succeeded, and times are bounded to what a calendar has: others write
# here, too. Whoever sorts names the table's own column.
JOB: LiteralString = """
select id, tenant_id, provider_slug as provider, connection_id, job_type,
    case status when 'completed' then 'succeeded' else status end as status,
    priority, attempts, max_attempts,
    greatest(least(scheduled_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as scheduled_at,
    case when isfinite(retry_after)
        then greatest(least(retry_after, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    end as retry_after,
    case when isfinite(started_at)
        then greatest(least(started_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    end as started_at,
    case when isfinite(finished_at)
        then greatest(least(finished_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    end as finished_at,
    cursor, error,
    greatest(least(created_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as created_at
from sync_jobs
"""

JOB_CONDITIONS: Mapping[str, LiteralString] = {
    "id": "id = %(id)s",
    "tenant_id": "tenant_id = %(tenant_id)s",
    "provider": "provider_slug = %(provider)s",
    "connection_id": "connection_id = %(connection_id)s",
    "job_type": "job_type = %(job_type)s",
    "status": "status = any(%(states)s)",
    "started_after": "started_at >= %(started_after)s",
    "finished_after": "finished_at >= %(finished_after)s",
    "before": "(scheduled_at, id) < (%(before)s, %(before_id)s)",
    # The time that was told of the last row is a bound: its place is what the row itself says.
    "before_bound": """
(scheduled_at, id) < (
    coalesce((
        select last.scheduled_at from sync_jobs as last
        where last.id = %(before_id)s and greatest(
            least(last.scheduled_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z'
        ) = %(before)s
    ), %(before)s),
    %(before_id)s
)
""",
}


def jobs(given: Iterable[str]) -> LiteralString:
    """A page of jobs, the last scheduled first."""
    order: LiteralString = " order by sync_jobs.scheduled_at desc, id desc limit %(limit)s"
    return JOB + "where " + where(JOB_CONDITIONS, given) + order


ACTIVE_JOBS: LiteralString = """
select id from sync_jobs where connection_id = %(connection)s and status in ('queued', 'running') order by id
"""

# -- tenants ---------------------------------------------------------------------------------------------

TENANT_CONDITIONS: Mapping[str, LiteralString] = {"after": "(created_at, id) > (%(after)s, %(after_id)s)"}


def tenants(given: Iterable[str]) -> LiteralString:
    """A page of tenants, the first made first."""
    shown: LiteralString = """
select id, name,
    greatest(least(created_at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') as created_at
from tenants
where """
    return shown + where(TENANT_CONDITIONS, given) + " order by created_at, id limit %(limit)s"


# -- connections -----------------------------------------------------------------------------------------

# Bad runs are counted since the last success; the run that is on is not one yet. The last success is looked
# for among the newest jobs of the connection, as an index has them.
HEALTH: LiteralString = """
select c.id as connection_id,
    case when good.last_success is not null
        then greatest(least(good.last_success, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    end as last_success,
    case when bad.at is not null
        then greatest(least(bad.at, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z')
    end as last_error_at,
    bad.error as last_error, coalesce(runs.failures, 0) as failures
from unnest(%(ids)s::uuid[]) as c (id)
left join lateral (
    select max(finished_at) filter (where isfinite(finished_at)) as last_success from (
        (
            select finished_at from sync_jobs where connection_id = c.id and status = 'succeeded'
            order by scheduled_at desc limit 10
        ) union all (
            select finished_at from sync_jobs where connection_id = c.id and status = 'completed'
            order by scheduled_at desc limit 10
        )
    ) as newest
) as good on true
left join lateral (
    select error, coalesce(finished_at, updated_at) as at
    from sync_jobs
    where connection_id = c.id and status in ('queued', 'running', 'failed')
        and jsonb_typeof(error) = 'object' and error ->> 'code' is distinct from 'CANCELLED'
    order by coalesce(finished_at, updated_at) desc, id
    limit 1
) as bad on true
left join lateral (
    select least(
        greatest(sum(attempts::bigint - case status when 'running' then 1 else 0 end), 0), 2147483647
    )::bigint as failures
    from sync_jobs
    where connection_id = c.id and status in ('queued', 'running', 'failed') and error is not null
        and error ->> 'code' is distinct from 'CANCELLED'
        and coalesce(finished_at, updated_at) > coalesce(good.last_success, '-infinity')
) as runs on true
"""

# Beside what is there: a key that is missing, or no object, is made.
SET_EXTERNAL_IDS: LiteralString = """
update connections
set metadata = case jsonb_typeof(metadata) when 'object' then metadata else '{}' end || jsonb_build_object(
    'webhook',
    case jsonb_typeof(metadata -> 'webhook') when 'object' then metadata -> 'webhook' else '{}' end
        || jsonb_build_object('external_ids', %(external_ids)s::jsonb)
)
where id = %(id)s
"""

REMOVE_CONNECTION: LiteralString = "delete from connections where id = %(id)s"

# -- OAuth -----------------------------------------------------------------------------------------------

ADD_STATE: LiteralString = """
insert into oauth_states (id, tenant_id, provider, state, code_verifier, redirect_uri, expires_at)
values (
    %(id)s, %(tenant)s, %(provider)s, %(state)s, %(verifier)s, %(redirect_uri)s,
    now() + make_interval(secs => %(seconds)s)
)
"""

# Whoever comes first has it: also an old one is used up.
CONSUME_STATE: LiteralString = """
update oauth_states
set consumed_at = now()
where provider = %(provider)s and state = %(state)s and consumed_at is null
returning tenant_id, code_verifier, redirect_uri, expires_at <= now() as expired
"""

KNOWN_STATE: LiteralString = """
select exists (select from oauth_states where provider = %(provider)s and state = %(state)s)
"""

# -- metrics ---------------------------------------------------------------------------------------------

COUNT_CONNECTIONS: LiteralString = """
select provider_slug as provider, status, count(*) as count from connections group by provider_slug, status
"""

# Due by now, or never scheduled, and without a job that would see to it.
OVERDUE: LiteralString = (
    "select count(*) as count from "  # noqa: S608 (no value is put in here)
    + TIMED
    + """
where (c.due is null or c.due <= to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
    and not exists (
        select from sync_jobs as j
        where j.connection_id = c.id and j.job_type = 'incremental' and j.status in ('queued', 'running')
    )
"""
)

# Whose provider has said that they ask too often, and until when the last of them waits. As texts of one
# width, whose order is that of time: others may have written there what no calendar knows.
COOLING: LiteralString = r"""
select provider_slug as provider, count(*) as count, max(until) as until
from (
    select provider_slug, metadata #>> '{sync,cooldown_until}' collate "C" as until
    from connections
    where status = 'active'
        and metadata #>> '{sync,cooldown_until}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'
) as cooling
where until > to_char(now() at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
group by provider_slug
"""

WAITING: LiteralString = """
select provider_slug as provider, connection_id is null as unmatched, count(*) as count,
    extract(epoch from now() - greatest(least(min(received_at), now()), 'epoch'))::float8 as seconds
from webhook_delivery
where processed_at is null
group by provider_slug, connection_id is null
"""
