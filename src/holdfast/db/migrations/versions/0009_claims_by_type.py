"""indexes for workers that claim some types only

A worker leaves rows of types that it has no handler for. These indexes lead it past them: one search for each
type that it knows, however many rows of others wait.
"""

from alembic import op

revision = "0009"
down_revision = "0008"

INDEXES = {
    "idx_job__claimable_by_type": (
        "job (queue, type, priority desc, run_at) where status in ('queued', 'failed')"
    ),
    "idx_tasks_claimable_by_type": (
        "tasks (type, priority desc, created_at) where status = 'pending' and next_retry_at is null"
    ),
    "idx_tasks_due_retry_by_type": (
        "tasks (type, priority desc, next_retry_at) where status = 'pending' and next_retry_at is not null"
    ),
}


def upgrade() -> None:
    for name, definition in INDEXES.items():
        op.execute(f"create index {name} on {definition}")


def downgrade() -> None:
    for name in INDEXES:
        op.execute(f"drop index {name}")
