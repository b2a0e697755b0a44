"""What the claim of `tasks` costs: every lane by its index and without a sort, also on a full table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from ledgers import ERRANDS, PARCELS, SYNCS, TASKS, ledger_database

Database = psycopg.Connection[Any]
Plan = dict[str, Any]

INDEXES = {
    "tasks": {"lane_fresh": "idx_tasks_claimable", "lane_retry": "idx_tasks_due_retry"},
    "parcels": {"lane_shelf": "parcels_shelf", "lane_later": "parcels_later"},
    "errands": {"lane_due": "errand_claimable"},
    "syncs": {"lane_fresh": "syncs_fresh", "lane_retry": "syncs_retry", "lane_failed": "syncs_failed"},
}

# A million finished tasks, half a million retries of higher priority that are not due for years, and little
# that may be claimed. The indexes are made afterwards, from their own definitions: that is quicker.
FILL = (
    """
    insert into tasks (type, status, priority, created_at, completed_at, attempts, worker_id, fence)
    select 'old', (array['completed', 'failed', 'dead_letter'])[1 + n % 3]::task_status, n % 7,
        now() - make_interval(secs => n), now(), 1, 'w' || n % 50, 1
    from generate_series(1, 1000000) as n
    """,
    """
    insert into tasks (type, priority, next_retry_at, attempts)
    select 'later', 100, now() + interval '10 years' + make_interval(secs => n), 1
    from generate_series(1, 500000) as n
    """,
)
READY = (
    "insert into tasks (type, priority) select 'fresh', n % 5 from generate_series(1, 2000) as n",
    """
    insert into tasks (type, priority, next_retry_at, attempts)
    select 'due', n % 5, now() - make_interval(secs => n), 1 from generate_series(1, 2000) as n
    """,
)
CONSTRAINTS = """
select conname, pg_get_constraintdef(oid) from pg_constraint
where conrelid = 'tasks'::regclass and contype in ('p', 'u')
"""
OTHER_INDEXES = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
where indrelid = 'tasks'::regclass and not exists (select from pg_constraint where conindid = indexrelid)
"""

LIMIT = 10
# Two lanes of ten rows each: to find them, to lock them, to move ten of them in nine indexes; about 300.
MOST_BUFFERS = 600
# The bound means something: a volatile clock walks past all future rows.
WRONG = b"""
select id from tasks where status = 'pending' and next_retry_at is not null
and next_retry_at <= clock_timestamp() order by priority desc, next_retry_at limit 10
"""


def params(limit: int = LIMIT, kinds: list[str] | None = None) -> dict[str, Any]:
    return {"owner": "w1", "limit": limit, "kinds": kinds, "queues": ["default"], "detail": "{}", "now": None}


def explain_custom(db: Database, statement: bytes, values: dict[str, Any], options: str) -> Plan:
    """The plan for these values."""
    (row,) = db.execute(f"explain ({options}, format json) ".encode() + statement, values).fetchall()
    return row[0][0]["Plan"]


def explain_generic(db: Database, statement: bytes, values: dict[str, Any], options: str) -> Plan:
    """The plan for any values, as a prepared statement gets it after a few runs."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement.decode())))
    text = re.sub(r"%\((\w+)\)s", lambda name: f"${names.index(name[1]) + 1}", statement.decode())
    db.execute("set local plan_cache_mode = force_generic_plan")
    db.execute(b"prepare claiming as " + text.encode())
    arguments = SQL(", ").join(Literal(values[name]) for name in names)
    query = SQL("explain ({}, format json) execute claiming ({})").format(SQL(options), arguments)
    (row,) = db.execute(query).fetchall()
    db.execute("deallocate claiming")
    return row[0][0]["Plan"]


EXPLAIN = {"custom": explain_custom, "generic": explain_generic}


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def lanes_of(plan: Plan) -> dict[str, list[Plan]]:
    """The nodes of each lane's own part of the plan."""
    found = {str(node.get("Subplan Name", "")).removeprefix("CTE "): node for node in nodes(plan)}
    return {name: list(nodes(part)) for name, part in found.items() if name.startswith("lane_")}


def each_lane_is_its_index(ledger: Ledger, plan: Plan) -> None:
    lanes = lanes_of(plan)
    expected = INDEXES[ledger.name]
    assert lanes.keys() == expected.keys()
    for name, parts in lanes.items():
        assert [part["Index Name"] for part in parts if "Index Name" in part] == [expected[name]], name
        kinds = {part["Node Type"] for part in parts}
        assert not {"Sort", "Incremental Sort", "Seq Scan"} & kinds, (name, kinds)


def buffers(plan: Plan) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] + plan["Shared Dirtied Blocks"]


@pytest.mark.parametrize("how", EXPLAIN)
@pytest.mark.parametrize("ledger", [TASKS, PARCELS, ERRANDS, SYNCS], ids=lambda ledger: ledger.name)
def test_every_lane_is_read_by_its_index_and_without_a_sort(
    ledgers_url: str, ledger: Ledger, how: str
) -> None:
    with psycopg.connect(ledgers_url) as db:
        db.execute("set local enable_seqscan = off; set local enable_bitmapscan = off")
        plan = EXPLAIN[how](db, Store(ledger).sql.claim, params(), "costs off")
        each_lane_is_its_index(ledger, plan)


def test_a_claim_on_a_full_table_reads_a_bounded_number_of_buffers(postgres: str) -> None:
    """Section 5: a million finished tasks, half a million future retries of higher priority.

    By a plan for its values and by a generic one; with rows to claim, with none, and for one kind only.
    """
    claim = Store(TASKS).sql.claim
    with ledger_database(postgres) as emptied, psycopg.connect(emptied(), autocommit=True) as db:
        fill(db)
        for filling in ((), READY):
            for statement in filling:
                db.execute(statement)
            for how, explain in EXPLAIN.items():
                for kinds in (None, ["fresh", "due"]):
                    with db.transaction(force_rollback=True):
                        plan = explain(db, claim, params(kinds=kinds), "analyze, buffers")
                    assert plan["Actual Rows"] == (LIMIT if filling else 0)
                    if db.info.server_version >= 180000:  # the first with a skip scan
                        assert buffers(plan) < MOST_BUFFERS, (how, kinds, buffers(plan))
                    if kinds is None:
                        each_lane_is_its_index(TASKS, plan)
        assert buffers(explain_custom(db, WRONG, {}, "analyze, buffers")) > 5 * MOST_BUFFERS
        recovery_reads_held_rows_only(db)


def recovery_reads_held_rows_only(db: Database) -> None:
    """T-33, section 4: by idx_tasks_held; a long-lived worker has finished twenty thousand of these rows."""
    db.execute(
        "insert into tasks (type, status, worker_id) select 'x', 'running', 'w1' from generate_series(1, 5)"
    )
    asked = {"owners": ["w1"], "alive": ["w2"], "orphaned": 30, "nameless": 7200, "limit": 1000, "now": None}
    for query in (Store(TASKS).sql.held_by, Store(TASKS).sql.orphans):
        plan = explain_custom(db, query, asked, "analyze, buffers")
        assert {node["Index Name"] for node in nodes(plan) if "Index Name" in node} == {"idx_tasks_held"}
        assert buffers(plan) < MOST_BUFFERS


def fill(db: Database) -> None:
    db.execute("alter table tasks set unlogged; set maintenance_work_mem = '256MB'")
    constraints, indexes = db.execute(CONSTRAINTS).fetchall(), db.execute(OTHER_INDEXES).fetchall()
    for name, _ in constraints:
        db.execute(f"alter table tasks drop constraint {name}")
    for name, _ in indexes:
        db.execute(f"drop index {name}")
    for statement in FILL:
        db.execute(statement)
    for name, definition in constraints:
        db.execute(f"alter table tasks add constraint {name} {definition}")
    for _, definition in indexes:
        db.execute(definition)
    db.execute("vacuum (analyze, index_cleanup off) tasks")
