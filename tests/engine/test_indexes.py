"""Which index serves what, as `doctor` tells it: each missing one is named, and built by what it prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from psycopg import AsyncConnection

from doctoring import ailing, broken, examine, only, run
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db import migrate
from holdfast.engine.roles import Idempotency

Connection = AsyncConnection[Any]


@pytest.fixture
def database_url(empty_database_url: str) -> str:
    """A migrated database of the test's own, to be damaged at will."""
    migrate.upgrade(empty_database_url)
    return empty_database_url


@pytest.mark.parametrize(
    ("index", "lane"), [("idx_tasks_claimable", "fresh"), ("idx_tasks_due_retry", "retry")]
)
async def test_a_lane_without_its_index_is_named_with_the_plan_it_has(
    conn: Connection, index: str, lane: str
) -> None:
    finding = only(await broken(conn, f"drop index {index}"))
    assert finding.what.startswith(f"no index serves the lane {lane}: Sort of Index Scan using ")
    assert finding.remedy_sql is not None
    assert finding.remedy_sql.startswith(
        f'create index concurrently "idx_tasks_{lane}" on "tasks" ("priority"'
    )


async def test_an_index_in_the_right_order_that_reads_finished_rows_does_not_serve(conn: Connection) -> None:
    damage = ["drop index idx_tasks_claimable", "create index broad on tasks (priority desc, created_at)"]
    finding = only(await broken(conn, *damage))
    assert "Index Scan using broad on tasks, filtered by" in finding.what


async def test_an_index_that_has_the_state_behind_the_order_does_not_serve(conn: Connection) -> None:
    index = "create index late on tasks (priority desc, created_at, status) where next_retry_at is null"
    finding = only(await broken(conn, "drop index idx_tasks_claimable", index))
    assert "Index Scan using late on tasks, which is not led by status" in finding.what


async def test_an_index_that_has_the_state_before_the_order_serves(conn: Connection) -> None:
    index = "create index led on tasks (status, priority desc, created_at) where next_retry_at is null"
    await run(conn, "drop index idx_tasks_claimable", index)
    assert ailing(await examine(conn, TASKS)) == []


async def test_the_index_of_a_lane_with_queues_begins_with_the_queue(conn: Connection) -> None:
    ledger = replace(TASKS, queue="queue")
    found = await broken(conn, "alter table tasks add queue text not null default 'default'", ledger=ledger)
    begins = ['("queue", "priority" desc', '("queue", "type", "priority" desc'] * 2  # of both lanes
    assert [start in (finding.remedy_sql or "") for start, finding in zip(begins, found, strict=True)] == [
        True
    ] * 4


async def test_a_missing_primary_key_is_replaced_by_a_unique_index(conn: Connection) -> None:
    finding = only(await broken(conn, "alter table tasks drop constraint tasks_pkey"))
    assert finding.what == "no unique index on id, the key"


async def test_a_missing_idempotency_index_is_made_as_the_rule_needs_it(conn: Connection) -> None:
    finding = only(await broken(conn, "alter table tasks drop constraint unique_idempotency_key"))
    assert "no unique index on (type, idempotency_key)" in finding.what


async def test_the_columns_of_the_idempotency_index_may_stand_in_any_order(conn: Connection) -> None:
    await conn.execute("alter table tasks drop constraint unique_idempotency_key")
    await conn.execute("create unique index turned on tasks (idempotency_key, type)")
    assert (await examine(conn, TASKS)).healthy


async def test_a_partial_idempotency_index_does_not_fit_a_rule_for_all_rows(conn: Connection) -> None:
    part = "create unique index part on tasks (type, idempotency_key) where idempotency_key is not null"
    damage = ["alter table tasks drop constraint unique_idempotency_key", part]
    only(await broken(conn, *damage))
    rule = Idempotency("idempotency_key", scope=("type",), partial=True)
    assert (await examine(conn, replace(TASKS, idempotency=rule))).healthy


async def test_a_rule_for_some_states_does_not_fit_an_index_over_all(conn: Connection) -> None:
    rule = Idempotency("idempotency_key", scope=("type",), within=("pending",), repeat="refuse")
    finding = only(ailing(await examine(conn, replace(TASKS, idempotency=rule))))
    assert "unique_idempotency_key is unique over all states" in finding.what


async def test_without_an_index_for_held_rows_recovery_is_warned_of(conn: Connection) -> None:
    found = await broken(conn, "drop index idx_tasks_held", "drop index idx_tasks_status")
    finding = only(found, "warning")
    assert "no index leads to the rows that workers hold" in finding.what


async def test_an_index_whose_building_failed_is_dropped_before_a_new_one_is_built(conn: Connection) -> None:
    await conn.execute("insert into tasks (type, idempotency_key) values ('a', '1')")
    await conn.execute("drop index idx_tasks_claimable")
    await conn.execute("create index idx_tasks_fresh on tasks (priority)")
    await conn.execute(
        "update pg_index set indisvalid = false where indexrelid = 'idx_tasks_fresh'::regclass"
    )
    invalid, lane = await broken(conn)
    assert "the index idx_tasks_fresh is invalid" in invalid.what
    assert lane.remedy_sql is not None
    assert '"idx_tasks_fresh2"' in lane.remedy_sql
