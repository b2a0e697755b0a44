"""job: a change of status that no edge of the lifecycle allows is refused

The condition of the trigger has the edges, so that the function is called for what is refused and for nothing
else: the statements of the engine pay for the comparison alone.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

REFUSE = """
create function job_refuse_status() returns trigger
language plpgsql set search_path = pg_catalog, pg_temp as $body$
begin
    raise exception using errcode = 'check_violation', message =
        'job ' || old.id || ' cannot change from ' || old.status || ' to ' || new.status
        || ': no edge of its lifecycle leads there',
        hint = 'use `holdfast cancel` or `holdfast requeue`, which also write the event';
end
$body$
"""

# The edges, and their single hops where an edge has two: a retry is claimed through `queued`, and a last bad
# run goes through `failed`.
EDGES = """
create trigger trg_job__edges
after update of status on job
for each row when (
    old.status <> new.status and not (
        old.status = 'running' and new.status in ('succeeded', 'failed', 'dead_letter', 'queued', 'canceled')
        or old.status = 'queued' and new.status in ('running', 'canceled')
        or old.status = 'failed' and new.status in ('running', 'queued', 'dead_letter', 'canceled')
        or old.status = 'dead_letter' and new.status = 'queued'
    )
) execute function job_refuse_status()
"""


def upgrade() -> None:
    op.execute(REFUSE)
    op.execute(EDGES)


def downgrade() -> None:
    op.execute("drop trigger if exists trg_job__edges on job")
    op.execute("drop function job_refuse_status()")
