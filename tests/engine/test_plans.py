"""What the claims of `tasks` and `job` cost: every lane by its index, without a sort, on a full table too."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.engine.values import Stat
from ledgers import ERRANDS, JOB, ORG, PARCELS, SYNCS, TASKS, ledger_database

Database = psycopg.Connection[Any]
Plan = dict[str, Any]

INDEXES = {
    "job": {"lane_due": "idx_job__claimable"},
    "tasks": {"lane_fresh": "idx_tasks_claimable", "lane_retry": "idx_tasks_due_retry"},
    "parcels": {"lane_shelf": "parcels_shelf", "lane_later": "parcels_later"},
    "errands": {"lane_due": "errand_claimable"},
    "syncs": {"lane_fresh": "syncs_fresh", "lane_retry": "syncs_retry", "lane_failed": "syncs_failed"},
}

BY_KIND = {
    "job": {"lane_due": "idx_job__claimable_by_type"},
    "tasks": {"lane_fresh": "idx_tasks_claimable_by_type", "lane_retry": "idx_tasks_due_retry_by_type"},
}

# Where one row only may run: the search for another one.
TWINS = {("syncs", "lane_failed"): "syncs_active"}

LIMIT = 10


@dataclass(frozen=True, kw_only=True)
class Full:
    """A table with a million finished rows and half a million that are not due for years.

    `ready`: little that may be claimed. `most`: the bound of a claim, in buffers. `wrong`: shows that the
    bound means something, as a volatile clock walks past all future rows. `held`: rows for the reaper.
    """

    ledger: Ledger
    fill: tuple[str, ...]
    ready: tuple[str, ...]
    most: int
    wrong: bytes
    held: str
    held_index: str


FULL_TASKS = Full(
    ledger=TASKS,
    fill=(
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
    ),
    ready=(
        "insert into tasks (type, priority) select 'fresh', n % 5 from generate_series(1, 2000) as n",
        """
        insert into tasks (type, priority, next_retry_at, attempts)
        select 'due', n % 5, now() - make_interval(secs => n), 1 from generate_series(1, 2000) as n
        """,
    ),
    # Two lanes of ten rows each: to find them, to lock them, to move ten of them in nine indexes; about 300.
    most=600,
    wrong=b"""
        select id from tasks where status = 'pending' and next_retry_at is not null
        and next_retry_at <= clock_timestamp() order by priority desc, next_retry_at limit 10
    """,
    held="insert into tasks (type, status, worker_id) select 'x', 'running', 'w1' from generate_series(1, 5)",
    held_index="idx_tasks_held",
)

# New jobs for later and failed ones that wait, of several priorities and in two queues.
FULL_JOB = Full(
    ledger=JOB,
    fill=(
        """
        insert into job (org_id, type, status, priority, created_at, finished_at, fence)
        select md5((n % 100)::text)::uuid, 'old',
            (array['succeeded', 'canceled', 'dead_letter'])[1 + n % 3]::job_status, n % 7,
            now() - make_interval(secs => n), now(), 1
        from generate_series(1, 1000000) as n
        """,
        """
        insert into job (org_id, type, status, queue, priority, attempt, run_at)
        select md5((n % 100)::text)::uuid, 'later', (array['queued', 'failed'])[1 + n % 2]::job_status,
            (array['default', 'mail'])[1 + n % 4 / 3], 100 + n % 3, n % 2,
            now() + interval '10 years' + make_interval(secs => n)
        from generate_series(1, 500000) as n
        """,
    ),
    ready=(
        """
        insert into job (org_id, type, queue, priority, run_at)
        select md5((n % 100)::text)::uuid, 'fresh', (array['default', 'mail'])[1 + n % 2], n % 5,
            now() - make_interval(secs => n)
        from generate_series(1, 2000) as n
        """,
        """
        insert into job (org_id, type, status, priority, attempt, run_at)
        select md5((n % 100)::text)::uuid, 'due', 'failed', n % 5, 1, now() - make_interval(secs => n)
        from generate_series(1, 2000) as n
        """,
    ),
    # Two queues of ten rows each, of which ten move, with one or two events each in three indexes; about 290.
    most=600,
    wrong=b"""
        select id from job where queue = 'default' and status in ('queued', 'failed')
        and run_at <= clock_timestamp() order by priority desc, run_at limit 10
    """,
    held="""
        insert into job (org_id, type, status, worker_id)
        select md5('1')::uuid, 'x', 'running', 'w1' from generate_series(1, 5)
    """,
    held_index="idx_job__held",
)
FULL = (FULL_TASKS, FULL_JOB)

CONSTRAINTS = """
select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint
where conrelid = {0}::regclass and contype in ('p', 'u') or confrelid = {0}::regclass
order by contype
"""
OTHER_INDEXES = """
select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index
where indrelid = {0}::regclass and not exists (select from pg_constraint where conindid = indexrelid)
"""
JOURNALS = """
select conrelid::regclass::text from pg_constraint where confrelid = {0}::regclass
"""


def params(limit: int = LIMIT, kinds: list[str] | None = None) -> dict[str, Any]:
    queues = ["default", "mail"]
    return {"owner": "w1", "limit": limit, "kinds": kinds, "queues": queues, "detail": "{}", "now": None}


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


def each_lane_is_its_index(ledger: Ledger, plan: Plan, indexes: dict[str, dict[str, str]] = INDEXES) -> None:
    lanes = lanes_of(plan)
    expected = indexes[ledger.name]
    assert lanes.keys() == expected.keys()
    for name, parts in lanes.items():
        searched = [expected[name], TWINS.get((ledger.name, name))]
        assert [part.get("Index Name") for part in parts if "Index Name" in part] == [
            *filter(None, searched)
        ], name
        kinds = {part["Node Type"] for part in parts}
        assert not {"Sort", "Incremental Sort", "Seq Scan"} & kinds, (name, kinds)


def buffers(plan: Plan) -> int:
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] + plan["Shared Dirtied Blocks"]


@pytest.mark.parametrize("how", EXPLAIN)
@pytest.mark.parametrize("ledger", [TASKS, JOB, PARCELS, ERRANDS, SYNCS], ids=lambda ledger: ledger.name)
def test_every_lane_is_read_by_its_index_and_without_a_sort(
    ledgers_url: str, ledger: Ledger, how: str
) -> None:
    """J-8: the index has the order of the claim."""
    with psycopg.connect(ledgers_url) as db:
        # On tables that are nearly empty anything is as good as the index; a sort is what the index saves.
        for other in ("seqscan", "bitmapscan", "sort", "incremental_sort"):
            db.execute(f"set local enable_{other} = off")
        plan = EXPLAIN[how](db, Store(ledger).sql.claim, params(), "costs off")
        each_lane_is_its_index(ledger, plan)


FOREIGN = {
    "job": """
        insert into job (org_id, type, priority) select md5('1')::uuid, {}, {} from generate_series(1, {})
    """,
    "tasks": "insert into tasks (type, priority) select {}, {} from generate_series(1, {})",
}


@pytest.mark.parametrize("ledger", [TASKS, JOB], ids=lambda ledger: ledger.name)
def test_rows_of_other_kinds_do_not_slow_a_claim_down(postgres: str, ledger: Ledger) -> None:
    """Two hundred thousand before the rows of one's own, whatever the statistics know of them.

    The same holds for how many rows of some kinds stand before one.
    """
    sql = Store(ledger).sql
    with ledger_database(postgres) as emptied, psycopg.connect(emptied(), autocommit=True) as db:

        def claims_are_quick(rows: int) -> None:
            for how, explain in EXPLAIN.items():
                with db.transaction(force_rollback=True):
                    plan = explain(db, sql.claim_of_kinds, params(kinds=["mine", "rare"]), "analyze, buffers")
                assert plan["Actual Rows"] == rows
                assert buffers(plan) < 600, (how, buffers(plan))
                each_lane_is_its_index(ledger, plan, BY_KIND)
            asked = params(kinds=["mine"]) | {"id": uuid4()}
            plan = explain_custom(db, sql.ahead, asked, "analyze, buffers")
            assert buffers(plan) < 600, buffers(plan)

        def add(kind: str, priority: int, rows: int) -> None:
            db.execute(SQL(FOREIGN[ledger.name]).format(kind, priority, rows))

        add("mine", 0, 1000)
        db.execute(f"vacuum analyze {ledger.table}")
        add("foreign", 9, 200_000)
        claims_are_quick(LIMIT)  # by statistics that know of one's own kind alone
        db.execute(f"delete from {ledger.table} where type = 'mine'")
        db.execute(f"vacuum analyze {ledger.table}")
        claims_are_quick(0)  # by statistics that know of the other kind alone
        add("mine", 0, 1000)
        claims_are_quick(LIMIT)


@pytest.mark.parametrize("full", FULL, ids=lambda full: full.ledger.name)
def test_a_claim_on_a_full_table_reads_a_bounded_number_of_buffers(postgres: str, full: Full) -> None:
    """Section 5, J-8, J-11: a million finished rows, half a million future ones of higher priority.

    By a plan for its values and by a generic one; with rows to claim, with none, and for some kinds only.
    """
    sql = Store(full.ledger).sql
    with ledger_database(postgres) as emptied, psycopg.connect(emptied(), autocommit=True) as db:
        fill(db, full)
        for filling in ((), full.ready):
            for statement in filling:
                db.execute(statement)
            for how, explain in EXPLAIN.items():
                for kinds in (None, ["fresh", "due"]):
                    claim = sql.claim_of_kinds if kinds else sql.claim
                    with db.transaction(force_rollback=True):
                        plan = explain(db, claim, params(kinds=kinds), "analyze, buffers")
                    assert plan["Actual Rows"] == (LIMIT if filling else 0)
                    if db.info.server_version >= 180000:  # the first with a skip scan
                        assert buffers(plan) < full.most, (how, kinds, buffers(plan))
                    each_lane_is_its_index(full.ledger, plan, BY_KIND if kinds else INDEXES)
        assert buffers(explain_custom(db, full.wrong, {}, "analyze, buffers")) > 5 * full.most
        recovery_reads_held_rows_only(db, full)
        looks_read_little(db, full)


def looks_read_little(db: Database, full: Full) -> None:
    """What pages show of a ledger: nothing from end to end, whatever is in it."""
    sql, values = Store(full.ledger).sql, params(kinds=["fresh", "due"]) | {"limit": 51, "id": uuid4()}
    for query in (sql.head, sql.due_kinds, sql.ahead, sql.held, sql.touched, sql.rows(())):
        plan = explain_custom(db, query, values, "analyze, buffers")
        scans = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert full.ledger.table not in scans
        if db.info.server_version >= 180000:
            assert buffers(plan) < full.most, (query, buffers(plan))
    url = db.info.dsn + f" password={db.info.password}"
    table = full.ledger.table
    stats = {stat.state: stat for stat in asyncio.run(depth_and_scans(url, full.ledger, table))}
    counted = f"select {full.ledger.state}::text, count(*) from {table} group by 1"
    exact: dict[str, int] = dict(db.execute(counted).fetchall())
    assert {state for state, stat in stats.items() if stat.exact} == {
        state for state in full.ledger.states if exact.get(state, 0) <= 10_000
    }
    for state, stat in stats.items():
        assert stat.rows == pytest.approx(exact.get(state, 0), rel=0.15), state


async def depth_and_scans(url: str, ledger: Ledger, table: str) -> list[Stat]:
    """The depth of a ledger, which must not make the server read the table from end to end."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        scans = f"select seq_scan from pg_stat_xact_user_tables where relname = '{table}'"
        async with conn.transaction():
            found = await Store(ledger).depth(conn)
            assert await (await conn.execute(scans)).fetchone() == (0,)
        return found


def recovery_reads_held_rows_only(db: Database, full: Full) -> None:
    """T-33, J-27, section 4: by the index of held rows, however many a long-lived worker has finished."""
    db.execute(full.held)
    store = Store(full.ledger)
    asked = {"owners": ["w1"], "alive": ["w2"], "orphaned": 30, "nameless": 7200, "limit": 1000, "now": None}
    for query in (store.sql.held_by, store.sql.orphans):
        plan = explain_custom(db, query, asked, "analyze, buffers")
        assert {node["Index Name"] for node in nodes(plan) if "Index Name" in node} == {full.held_index}
        assert buffers(plan) < full.most


def fill(db: Database, full: Full) -> None:
    """Fills the table without its indexes, which are made afterwards, from their own definitions: quicker."""
    table, word = full.ledger.table, Literal(full.ledger.table)
    journals = [name for (name,) in db.execute(SQL(JOURNALS).format(word)).fetchall()]
    for name in (*journals, table):  # what refers to a table that is not logged is not logged either
        db.execute(f"alter table {name} set unlogged")
    db.execute("set maintenance_work_mem = '256MB'")
    constraints = db.execute(SQL(CONSTRAINTS).format(word)).fetchall()
    indexes = db.execute(SQL(OTHER_INDEXES).format(word)).fetchall()
    for owner, name, _ in constraints:  # foreign keys first, as `f` comes before `p`
        db.execute(f"alter table {owner} drop constraint {name}")
    for name, _ in indexes:
        db.execute(f"drop index {name}")
    for statement in full.fill:
        db.execute(statement)
    for owner, name, definition in reversed(constraints):
        db.execute(f"alter table {owner} add constraint {name} {definition}")
    for _, definition in indexes:
        db.execute(definition)
    db.execute(f"vacuum (analyze, index_cleanup off) {table}")


@pytest.mark.parametrize(
    ("shape", "values", "index"),
    [
        (("tenant",), {"tenant": ORG}, "idx_job__org_id_created_at_desc"),
        (("state",), {"state": "dead_letter"}, "idx_job__status_created_at"),
        ((), {}, "idx_job__created_at"),
    ],
    ids=["of one organisation", "in one status", "of all"],
)
def test_a_page_of_jobs_is_read_in_the_order_of_an_index(
    ledgers_url: str, shape: tuple[str, ...], values: dict[str, Any], index: str
) -> None:
    """J-43: the newest come first without reading all; what is told of a row is made for the page alone."""
    fill = """insert into job (org_id, type, status, created_at, finished_at)
        select (array[%(org)s, gen_random_uuid()])[1 + n %% 2]::uuid, 'old',
            (array['succeeded', 'dead_letter'])[1 + n %% 2]::job_status,
            now() - make_interval(secs => n), now()
        from generate_series(1, 5000) as n"""
    with psycopg.connect(ledgers_url, autocommit=True) as db:
        db.execute("vacuum job")  # of the rows that other tests have rolled back
    with psycopg.connect(ledgers_url) as db:
        db.execute(fill, {"org": ORG})
        db.execute("analyze job")
        query = Store(JOB).sql.rows(shape)
        plan = explain_custom(db, query, values | {"limit": 51}, "analyze, buffers")
        db.rollback()
    scans = {node["Index Name"]: node["Actual Rows"] for node in nodes(plan) if "Index Name" in node}
    used = scans.keys() & {
        index,
        "idx_job__created_at",
    }  # the planner may take either
    assert used
    assert all(scans[name] < 200 for name in used)
    assert buffers(plan) < 600
