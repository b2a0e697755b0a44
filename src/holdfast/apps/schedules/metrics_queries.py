"""The SQL of the metrics: what an index leads to, and never more than it may cost at every scrape."""

from typing import LiteralString

OLDEST_PENDING: LiteralString = """
select extract(epoch from clock_timestamp() - s.created_at)::float8 as seconds
from schedule_ingest.capture_session as s
where s.state = 'pending'
order by s.created_at, s.id
limit 1
"""

# Workers are lost rarely, and an index has those attempts alone.
LOST: LiteralString = """
select count(*) as count
from (select from schedule_ingest.capture_attempt as a where a.outcome = 'lost' limit %(most)s) as lost
"""
