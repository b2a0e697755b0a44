"""System jobs: what looks after the platform's own data. Their journal is a file, `jobs.log`."""

from __future__ import annotations

from typing import Any

from holdfast.apps.system.types import new_id, stored_type
from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Attempts, Due, Idempotency, Key, Lane, Times, TraceError
from holdfast.engine.values import Row

NAME = "system_jobs"
ACTIVE = ("new", "queued", "running", "retrying")


def system_jobs(schema: str = "system") -> Ledger:
    """The ledger, with its table in the schema of that name."""
    return Ledger(
        name=NAME,
        table=f"{schema}.jobs",
        key=Key("id", "text", new_id, by_kind=True),
        kind="job_type",
        payload="parameters",
        states=("new", "queued", "running", "retrying", "completed", "failed", "cancelled"),
        ends=("completed", "failed", "cancelled"),
        edges=(
            Edge("enqueue", via=("new",), to="queued"),
            Edge("claim", frm=("queued", "retrying"), to="running"),
            Edge("finish", frm=("running",), to="completed"),
            Edge("retry", frm=("running",), to="retrying"),
            Edge("exhaust", frm=("running",), to="failed"),
            Edge("reject", frm=("running",), to="failed"),
            Edge("snooze", frm=("running",), to="queued"),
            Edge("release", frm=("running",), to="queued"),
            # Half-done maintenance deserves a look: whoever wants it again makes a new job.
            Edge("lose", frm=("running",), to="failed"),
            Edge("cancel", frm=ACTIVE, to="cancelled"),
            # For rows that plain SQL has put in: the next tick lets them run.
            Edge("requeue", frm=("new",), to="queued"),
        ),
        lanes=(Lane("due", due="run_at", order=("priority desc nulls last", "run_at")),),
        owner="node_id",
        owner_kept=True,
        fence="fence",
        priority="priority",
        queue="queue",
        queue_null=True,
        due=Due("run_at", cleared=False),
        attempts=Attempts("retry_count", limit="max_retries", counts="retries"),
        backoff=Backoff(base=0.1, cap=60, jitter=0),
        errors=TraceError("message", "exception_trace", summary=True),
        times=Times(
            created="created_at",
            updated="updated_at",
            started="started_at",
            finished="finished_at",
            kind="epoch_ms",
        ),
        idempotency=Idempotency("idempotency_key", partial=True, within=ACTIVE, repeat="refuse"),
        cancelled_text="cancelled by {by}",
        unknown_kind="reject",
        door="`holdfast system run` and POST /api/system/jobs, which check what a job is asked to do",
    )


SYSTEM_JOBS = system_jobs()


def told(row: Row) -> dict[str, Any]:
    """A job by the names that people know: those of the API, and of the command line's JSON."""
    columns = row.columns
    return {
        "id": row.id,
        "type": stored_type(row.kind),
        "type_word": row.kind,
        "status": row.state,
        "message": columns.get("message"),
        "parameters": row.payload,
        "key": columns.get("idempotency_key"),
        "retry_count": row.attempts,
        "max_retries": row.limit,
        "created_at": row.created,
        "updated_at": row.updated,
        "started_at": row.started,
        "finished_at": row.finished,
        "run_at": row.due if row.state in ("new", "queued", "retrying") else None,
        "node_id": columns.get("node_id"),
        "queue": columns.get("queue"),
        "priority": columns.get("priority"),
    }
