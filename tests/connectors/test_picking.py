"""Which job is next: the seed's own question, answered by an index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from engine.test_plans import explain_custom, nodes
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.engine.store import Store

Database = psycopg.Connection[Any]

# Two thousand that may be picked, of five priorities; many more that have ended; and some for later.
FILL = """
insert into tenants (id, name) values ('11111111-1111-4111-8111-111111111111', 'Acme');
insert into connections (id, tenant_id, provider_slug, external_id)
select gen_random_uuid(), '11111111-1111-4111-8111-111111111111', 'github', n::text
from generate_series(1, 3000) as n;
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, priority, scheduled_at)
select gen_random_uuid(), tenant_id, provider_slug, id, 'incremental', 'queued', external_id::int % 5,
    now() + make_interval(mins => case when external_id::int <= 2000 then -1 else 1 end * external_id::int)
from connections;
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, priority, scheduled_at)
select gen_random_uuid(), tenant_id, provider_slug, id, 'full', 'succeeded', 9, now() - interval '1 day'
from connections, generate_series(1, 5);
"""

# The seed's words as SQL, as anybody may write them.
NEXT = b"""
select id from sync_jobs
where status = 'queued' and retry_after is null and scheduled_at <= now()
order by priority desc, scheduled_at limit 20
"""
BEST = b"""
select id from sync_jobs as j where status = 'queued' and scheduled_at <= now()
order by (select row(-j.priority, j.scheduled_at)) limit 20
"""


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(FILL)
        db.execute("vacuum (analyze) sync_jobs")
        yield db


def test_jobs_are_picked_by_highest_priority_then_earliest_scheduled_at_through_an_index(
    db: Database,
) -> None:
    """C-28, scenario: in that order, read from an index that has it, and neither sorted nor read through."""
    best = db.execute(BEST).fetchall()
    assert db.execute(NEXT).fetchall() == best
    plan = explain_custom(db, NEXT, {}, "analyze")
    parts = list(nodes(plan))
    assert {part["Node Type"] for part in parts} <= {"Limit", "Index Scan", "Index Only Scan"}
    assert [part["Index Name"] for part in parts if "Index Name" in part] == ["idx_sync_jobs_lane_fresh"]


def test_a_claim_picks_the_same_jobs_in_the_same_order(db: Database) -> None:
    """C-28: ours is the seed's order, whatever else a claim looks at."""
    best = [row[0] for row in db.execute(BEST).fetchall()]
    asked = {"owner": "w1", "limit": 20, "kinds": None, "queues": ["default"], "detail": "{}", "now": None}
    claimed = [row[0] for row in db.execute(Store(SYNC_JOBS).sql.claim, asked).fetchall()]
    assert set(claimed) == set(best)
    mine = "select array_agg(id order by priority desc, scheduled_at) from sync_jobs where worker_id = 'w1'"
    assert db.execute(mine).fetchall() == [(best,)]


def test_without_the_index_the_jobs_would_have_to_be_sorted(db: Database) -> None:
    """What the first test would find if the lane's index were not there: the seed's own three do not help."""
    with db.transaction(force_rollback=True):
        db.execute("drop index idx_sync_jobs_lane_fresh")
        kinds = {part["Node Type"] for part in nodes(explain_custom(db, NEXT, {}, "analyze"))}
        assert "Sort" in kinds
