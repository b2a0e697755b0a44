"""The SQL of the console: what a SELECT becomes, in parts. Names and values are put in as such."""

from collections.abc import Mapping
from typing import LiteralString

# Both for one transaction only; a question that takes too long is ended by the server.
READ_ONLY: LiteralString = "set transaction read only"
TIMEOUT: LiteralString = "select set_config('statement_timeout', %(milliseconds)s::text, true)"

ROWS: LiteralString = "select {columns} from {table} as t where {condition} order by {order} limit {limit}"
COUNT: LiteralString = "select count(*) from {table} as t where {condition} limit {limit}"

# The jobs, and the old records that were read before and are put in as JSON.
WITH_LEGACY: LiteralString = """
(select id, job_type, status, message, exception_trace, parameters, idempotency_key, retry_count, max_retries,
    created_at, updated_at, started_at, finished_at, node_id, queue, priority, fence, run_at, false as legacy
from {table}
union all
select id, job_type, status, message, exception_trace, parameters, idempotency_key, retry_count, max_retries,
    created_at, updated_at, started_at, finished_at, node_id, queue, priority, 0, null, true
from jsonb_to_recordset({records}::text::jsonb) as r (id text, job_type text, status text, message text,
    exception_trace text, parameters jsonb, idempotency_key text, retry_count integer, max_retries integer,
    created_at bigint, updated_at bigint, started_at bigint, finished_at bigint, node_id text, queue text,
    priority bigint))
"""
LEGACY_COLUMN: LiteralString = "t.legacy"

# The active job of a type and a target; the newest, should there be several.
ACTIVE: LiteralString = """
select t.id, t.status
from {table} as t
where t.job_type = %(type)s and t.status in ('new', 'queued', 'running', 'retrying')
    and (t.parameters ->> 'ledger' = any(%(names)s) or t.parameters ->> 'table' = any(%(names)s))
order by t.created_at desc, t.id desc
limit 1
"""

# -- parts -----------------------------------------------------------------------------------------------

ALWAYS: LiteralString = "true"
COLUMN: LiteralString = "t.{column}"
FIELD: LiteralString = "(t.{column} ->> {field}::text)"

COMPARE: Mapping[str, LiteralString] = {
    "=": "{column} = {value}",
    "<>": "{column} <> {value}",
    "<": "{column} < {value}",
    "<=": "{column} <= {value}",
    ">": "{column} > {value}",
    ">=": "{column} >= {value}",
}
# By whether it is negated.
AMONG: Mapping[bool, LiteralString] = {False: "{column} in ({values})", True: "{column} not in ({values})"}
BETWEEN: Mapping[bool, LiteralString] = {
    False: "{column} between {low} and {high}",
    True: "{column} not between {low} and {high}",
}
IS_NULL: Mapping[bool, LiteralString] = {False: "{column} is null", True: "{column} is not null"}
LIKE: Mapping[tuple[str, bool], LiteralString] = {
    ("LIKE", False): "{column} like {pattern}",
    ("LIKE", True): "{column} not like {pattern}",
    ("ILIKE", False): "{column} ilike {pattern}",
    ("ILIKE", True): "{column} not ilike {pattern}",
}
NOT: LiteralString = "not ({condition})"
ALL: LiteralString = ") and ("
EITHER: LiteralString = ") or ("
GROUP: LiteralString = "({conditions})"

# By whether it descends, and where NULL goes.
ORDER: Mapping[tuple[bool, bool | None], LiteralString] = {
    (False, None): "{column} asc",
    (False, True): "{column} asc nulls first",
    (False, False): "{column} asc nulls last",
    (True, None): "{column} desc",
    (True, True): "{column} desc nulls first",
    (True, False): "{column} desc nulls last",
}
NEWEST: LiteralString = "t.created_at desc, t.id desc"
NEWEST_WITH_LEGACY: LiteralString = "t.legacy, t.created_at desc nulls last, t.id desc"
BETWEEN_ITEMS: LiteralString = ", "
