"""What maintenance has to know of the record of jobs."""

from typing import LiteralString

# The events of a job that has ended, once all of them are old; never its last one, which holds the result.
# So what is left of a record begins with an end, and can be told from one that was tampered with.
EVICTABLE: LiteralString = """
exists (
    select from job as j where j.id = t.job_id and j.status in ('succeeded', 'canceled', 'dead_letter')
)
and exists (select from job_event as later where later.job_id = t.job_id and later.seq > t.seq)
and not exists (select from job_event as young where young.job_id = t.job_id and young.ts >= %(limit)s)
"""
