"""The app `jobs`: the audited, multi-tenant ledger."""

from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.jobs.queries import EVICTABLE
from holdfast.runtime.app import App, Table

APP = App(
    name="jobs",
    ledgers=(JOB,),
    tables=(
        Table(
            name="job_event",
            kind="stream",
            time="ts",
            where=EVICTABLE,
            gate="holdfast.evict",
            whole=("job_id",),
        ),
    ),
)
