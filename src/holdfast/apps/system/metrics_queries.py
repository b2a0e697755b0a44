"""The SQL of the metrics: what it costs at every scrape has a limit."""

from __future__ import annotations

from typing import LiteralString

from psycopg.sql import SQL, Composed, Identifier

JOBS: LiteralString = """
select j.job_type as type, j.status, count(*) as count
from (select job_type, status from {jobs} limit %(most)s) as j
group by j.job_type, j.status
"""

# A backup of some tables is none of its schema: it has no target.
COMPLETED: LiteralString = """
select j.job_type as type, left(coalesce(case when j.job_type <> 'backup' then
    coalesce(j.parameters ->> 'ledger', j.parameters ->> 'table')
    when j.parameters ->> 'tables' is null then j.parameters ->> 'schema' end, ''), %(long)s) as target,
    max(j.finished_at) as completed
from (
    select job_type, parameters, finished_at from {jobs}
    where status = 'completed' order by created_at desc limit %(most)s
) as j
group by 1, 2 order by 3 desc nulls last limit %(targets)s
"""

OLDEST: LiteralString = """
select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now, (
    select min(j.created_at) from {jobs} as j where j.status in ('new', 'queued', 'retrying')
) as oldest
"""


def of(query: LiteralString, table: str) -> Composed:
    """A query of ours, over the table of the jobs."""
    return SQL(query).format(jobs=Identifier(*table.split(".")))
