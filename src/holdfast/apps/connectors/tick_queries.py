"""The SQL of the scheduler's tick: which connections are due, and what is written about them."""

from typing import LiteralString

CLOCK: LiteralString = "select coalesce(%(now)s::timestamptz, clock_timestamp()) as now"

# Nobody waits for the scheduler, and it waits for nobody: what is locked has its turn in the next tick. A
# leader that is frozen in the middle must not keep its locks, either.
BRIEF: LiteralString = """
select set_config('lock_timeout', '300ms', true),
    set_config('idle_in_transaction_session_timeout', '5s', true)
"""

# Pages come in the order of the index. A planner that knows nothing of a table yet, as after a large import,
# would rather sort all of it for each page.
UNSORTED: LiteralString = "select set_config('enable_sort', 'off', true)"

# Active connections and their times, as `idx_connections_due` has them, word for word. Null comes first
# there: never scheduled, or in a spelling whose order is not that of time. Who only sends is not asked.
TIMED: LiteralString = r"""(
    select id, created_at, (
        case when metadata #>> '{sync,next_run_at}' ~ '^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'
        then metadata #>> '{sync,next_run_at}' end
    ) collate "C" as due
    from connections
    where status = 'active'
        and provider_slug not in (select slug from providers where auth_type = 'webhook-only')
) as c
"""

# A connection that is still busy is passed over. The offset keeps the look for its job what it is, one probe
# of an index for each connection: without it a planner that knows nothing of the jobs yet reads all of them.
IDLE_IN_ORDER: LiteralString = """
    and not exists (
        select from sync_jobs as j
        where j.connection_id = c.id and j.job_type = 'incremental' and j.status in ('queued', 'running')
        offset 0
    )
order by c.due nulls first, c.created_at, c.id
limit %(limit)s
"""

# A page of those that have no time, the oldest connection first. What has been created goes out and comes
# back as text, since infinity has no other word.
NEVER: LiteralString = (
    "select '' as due, c.created_at::text as created, c.id from "  # noqa: S608 (no value is put in here)
    + TIMED
    + "where c.due is null and (c.created_at, c.id) > (%(created)s::timestamptz, %(id)s::uuid)"
    + IDLE_IN_ORDER
)

# A page of those whose time lies behind a place, and not behind `until`.
BETWEEN: LiteralString = (
    "select c.due, c.created_at::text as created, c.id from "  # noqa: S608 (likewise)
    + TIMED
    + "where c.due <= %(until)s"
    + " and (c.due, c.created_at, c.id) > (%(due)s, %(created)s::timestamptz, %(id)s::uuid)"
    + IDLE_IN_ORDER
)

LOCK: LiteralString = """
select c.id, c.tenant_id, c.provider_slug, c.metadata, c.created_at
from connections as c
where c.id = any(%(ids)s::uuid[]) and c.status = 'active'
for no key update skip locked
"""

# For those that have no time. The offset is there for the same reason.
HISTORY: LiteralString = """
select asked.id,
    exists (
        select from sync_jobs as j where j.connection_id = asked.id and j.job_type = 'incremental' offset 0
    ) as ever,
    (
        select max(j.finished_at) from sync_jobs as j
        where j.connection_id = asked.id and j.job_type = 'incremental'
            and j.status in ('succeeded', 'completed') and isfinite(j.finished_at)
    ) as last_finished
from unnest(%(ids)s::uuid[]) as asked (id)
"""

# What others keep in `metadata` and in `sync` stays as it is, to the last digit: only our keys are touched.
WRITE: LiteralString = """
update connections as c
set metadata = (case when jsonb_typeof(c.metadata) = 'object' then c.metadata else '{}' end)
    || jsonb_build_object('sync', (
        (case when jsonb_typeof(c.metadata -> 'sync') = 'object' then c.metadata -> 'sync' else '{}' end)
        - string_to_array(w.gone, ',')
    ) || w.patch::jsonb)
from unnest(%(ids)s::uuid[], %(patches)s::text[], %(gone)s::text[]) as w (id, patch, gone)
where c.id = w.id
"""
