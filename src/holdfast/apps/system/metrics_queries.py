"""The SQL of the metrics: what it costs at every scrape has a limit."""

from __future__ import annotations

from typing import LiteralString

from psycopg.sql import SQL, Composed, Identifier

JOBS: LiteralString = """
select j.job_type as type, j.status, count(*) as count,
    max(j.finished_at) filter (where j.status = 'completed') as completed
from (select job_type, status, finished_at from {jobs} limit %(most)s) as j
group by j.job_type, j.status
"""

OLDEST: LiteralString = """
select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now, (
    select min(j.created_at) from {jobs} as j where j.status in ('new', 'queued', 'retrying')
) as oldest
"""


def of(query: LiteralString, table: str) -> Composed:
    """A query of ours, over the table of the jobs."""
    return SQL(query).format(jobs=Identifier(*table.split(".")))
