"""Sync jobs: what brings an outside account in step. One at a time of each type for each connection."""

from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Attempts, Column, Due, Idempotency, JsonError, Lane, Tenant, Times

FULL, INCREMENTAL, WEBHOOK = "full", "incremental", "webhook"
JOB_TYPES = (FULL, INCREMENTAL, WEBHOOK)

# What an event of the provider began goes first, then what is due, then what somebody asked for by hand.
WEBHOOK_PRIORITY, SCHEDULED_PRIORITY, BY_HAND_PRIORITY = 50, 30, 10

RETRIED = ("priority desc", "retry_after", "id")

SYNC_JOBS = Ledger(
    name="sync_jobs",
    table="sync_jobs",
    kind="job_type",
    payload="cursor",
    states=("queued", "running", "succeeded", "failed", "completed"),
    # `failed` with a `retry_after` is tried again when it is due: others' SQL writes that. `completed` is a
    # word of others' as well.
    ends=("succeeded", "failed", "completed"),
    edges=(
        Edge("enqueue", to="queued"),
        Edge("claim", frm=("queued", "failed"), to="running"),
        Edge("finish", frm=("running",), to="succeeded"),
        Edge("retry", frm=("running",), to="queued"),
        Edge("exhaust", frm=("running",), to="failed"),
        Edge("reject", frm=("running",), to="failed"),
        Edge("snooze", frm=("running",), to="queued"),
        Edge("release", frm=("running",), to="queued"),
        Edge("lose", frm=("running",), to="queued"),
        Edge("cancel", frm=("queued", "running"), to="failed"),
        Edge("requeue", frm=("failed",), to="queued"),
    ),
    # No index can hold "is due by now" for two columns, so each wait has its own.
    lanes=(
        Lane(
            "fresh",
            states=("queued",),
            empty=("retry_after",),
            due="scheduled_at",
            order=("priority desc", "scheduled_at", "id"),
        ),
        Lane("retry", states=("queued",), filled=("retry_after",), due="retry_after", order=RETRIED),
        Lane("failed", states=("failed",), filled=("retry_after",), due="retry_after", order=RETRIED),
    ),
    owner="worker_id",
    owner_kept=True,
    fence="fence",
    priority="priority",
    tenant=Tenant("tenant_id", "uuid", role="holdfast_tenant", setting="holdfast.org_id"),
    extras=(Column("connection_id", "uuid"), Column("provider_slug", "text")),
    due=Due("retry_after", first="scheduled_at"),
    attempts=Attempts("attempts", limit="max_attempts", counts="starts"),
    backoff=Backoff(base=5, cap=900, jitter=0.1),
    errors=JsonError("error", history=10),
    times=Times(created="created_at", updated="updated_at", started="started_at", finished="finished_at"),
    idempotency=Idempotency("job_type", scope=("connection_id",), within=("queued", "running")),
    unknown_kind="reject",
    defaults={"priority": 0, "max_attempts": 10, "cursor": None},
)
