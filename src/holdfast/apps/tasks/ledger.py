"""The lean, high-throughput queue: one table, no journal, and the words and columns of its users' own SQL."""

from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Attempts, Due, Idempotency, Lane, TextError, Times

TASKS = Ledger(
    name="tasks",
    table="tasks",
    state="status",
    state_type="task_status",
    states=("pending", "claimed", "running", "completed", "failed", "dead_letter"),
    ends=("completed", "failed", "dead_letter"),
    edges=(
        Edge("enqueue", to="pending"),
        Edge("claim", frm=("pending",), to="claimed"),
        Edge("start", frm=("claimed",), to="running"),
        Edge("finish", frm=("running",), to="completed"),
        Edge("retry", frm=("running",), to="pending"),
        Edge("exhaust", frm=("running",), to="dead_letter"),
        Edge("reject", frm=("claimed", "running"), to="failed"),
        Edge("snooze", frm=("running",), to="pending"),
        Edge("release", frm=("claimed", "running"), to="pending"),
        Edge("lose", frm=("claimed", "running"), to="pending"),
        Edge("cancel", frm=("pending", "claimed", "running"), to="failed"),
        Edge("requeue", frm=("dead_letter", "failed"), to="pending"),
    ),
    # Never-delayed rows and due retries need an index each: no index can hold "is due by now".
    lanes=(
        Lane("fresh", empty=("next_retry_at",), order=("priority desc", "created_at")),
        Lane(
            "retry", filled=("next_retry_at",), due="next_retry_at", order=("priority desc", "next_retry_at")
        ),
    ),
    owner="worker_id",
    owner_kept=True,
    fence="fence",
    priority="priority",
    trace="traceparent",
    due=Due("next_retry_at"),
    attempts=Attempts("attempts", limit="max_retries", counts="runs"),
    errors=TextError("last_error"),
    times=Times(
        created="created_at",
        updated="updated_at",
        claimed="claimed_at",
        started="started_at",
        finished="completed_at",
        kind="timestamp",
    ),
    idempotency=Idempotency("idempotency_key", scope=("type",), repeat="touch"),
    unknown_kind="reject",
    kind_indexed=True,
    defaults={"priority": 0, "max_retries": 3, "payload": None, "idempotency_key": None, "traceparent": None},
)
