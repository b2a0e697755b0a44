"""The audited, multi-tenant ledger: who asked for what, for which organisation, and what became of it."""

from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Attempts, CodeError, Due, Idempotency, Journal, Lane, Tenant, Times

JOB = Ledger(
    name="job",
    table="job",
    state="status",
    state_type="job_status",
    states=("queued", "running", "succeeded", "failed", "canceled", "dead_letter"),
    ends=("succeeded", "canceled", "dead_letter"),
    # `failed` waits for its retry; `dead_letter` needs a person. trg_job__edges has the same edges.
    edges=(
        Edge("enqueue", to="queued"),
        Edge("claim", frm=("queued",), to="running"),
        Edge("claim", frm=("failed",), via=("queued",), to="running"),
        Edge("finish", frm=("running",), to="succeeded"),
        Edge("retry", frm=("running",), to="failed"),
        Edge("exhaust", frm=("running",), via=("failed",), to="dead_letter"),
        Edge("reject", frm=("running",), via=("failed",), to="dead_letter"),
        Edge("snooze", frm=("running",), to="queued"),
        Edge("release", frm=("running",), to="queued"),
        Edge("lose", frm=("running",), to="failed"),
        Edge("cancel", frm=("queued", "failed", "running"), to="canceled"),
        Edge("requeue", frm=("dead_letter", "failed"), to="queued"),
    ),
    lanes=(Lane("due", due="run_at", order=("priority desc", "run_at")),),
    owner="worker_id",
    fence="fence",
    priority="priority",
    queue="queue",
    tenant=Tenant("org_id", "uuid", role="holdfast_tenant", setting="holdfast.org_id"),
    requester="requested_by",
    trace="traceparent",
    policy="backoff_policy",
    policy_type="job_backoff_policy",
    due=Due("run_at", cleared=False),
    attempts=Attempts("attempt", limit="max_attempts", counts="retries"),
    backoff=Backoff(base=1, cap=60, jitter=0.1),
    errors=CodeError("last_error_code", "last_error_message", code_length=64, message_length=2048),
    times=Times(
        created="created_at",
        updated="updated_at",
        started="started_at",
        finished="finished_at",
        first_start=True,
    ),
    idempotency=Idempotency("idempotency_key", scope=("org_id",), partial=True, repeat="return"),
    journal=Journal(
        table="job_event",
        row="job_id",
        seq="seq",
        at="ts",
        prev="prev_status",
        next="next_status",
        detail="detail_json",
    ),
    lengths={"type": 100, "idempotency_key": 255, "requested_by": 255, "queue": 255, "traceparent": 255},
    defaults={
        "priority": 0,
        "max_attempts": 5,
        "backoff_policy": "exp",
        "queue": "default",
        "idempotency_key": None,
        "requested_by": None,
        "traceparent": None,
        "payload": None,
    },
    cancelled_text=None,
    kind_indexed=True,
)
