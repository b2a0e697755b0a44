"""The SQL of clearing away. Each removes one batch of what is older than a moment.

Whatever somebody holds is left for the next time, where a worker may lock it; nobody changes signals, or
states that ended a day ago. The ids go through an array, so that each is looked up: a join would read the
whole table for a thousand rows.
"""

from typing import LiteralString

# Since a job is not run before its time, what ended long ago was scheduled long ago: there is an index for
# that. A failed job with a time to be tried again has not ended.
JOBS: LiteralString = """
delete from sync_jobs where id = any(array(
    select j.id from sync_jobs as j
    where j.status in ('succeeded', 'failed', 'completed') and j.scheduled_at < %(horizon)s
        and coalesce(j.finished_at, j.updated_at) < %(horizon)s
        and (j.status <> 'failed' or j.retry_after is null)
    limit %(limit)s
    for update skip locked
))
"""

# What is not processed yet is never too old.
DELIVERIES: LiteralString = """
with old as materialized (
    select d.provider_slug, d.tenant_id, d.delivery_id
    from webhook_delivery as d
    where d.processed_at < %(horizon)s
    limit %(limit)s
    for update skip locked
)
delete from webhook_delivery as d using old
where d.provider_slug = old.provider_slug and d.tenant_id = old.tenant_id and d.delivery_id = old.delivery_id
"""

STATES: LiteralString = """
delete from oauth_states where id = any(array(
    select s.id from oauth_states as s where s.expires_at < %(horizon)s limit %(limit)s
))
"""

# By when it came: an account that was just connected brings what happened years ago.
SIGNALS: LiteralString = """
delete from signals where id = any(array(
    select s.id from signals as s where s.received_at < %(horizon)s limit %(limit)s
))
"""
