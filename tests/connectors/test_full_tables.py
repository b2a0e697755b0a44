"""What reading costs when the tables are full: pages of an index, and never a walk through the table.

Everything is looked at twice: by a plan for its values, as our own connections ask for, and by a generic one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from connectors import full
from engine.test_plans import EXPLAIN, LIMIT, Plan, buffers, explain_custom, lanes_of, nodes
from holdfast.apps.connectors import queries, sql, work_queries
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.sync_state import moment_text
from holdfast.engine.store import Store

Database = psycopg.Connection[Any]

STORE = Store(SYNC_JOBS).sql
LANES = {
    "lane_fresh": ["idx_sync_jobs_lane_fresh"],
    "lane_retry": ["idx_sync_jobs_lane_retry"],
    "lane_failed": ["idx_sync_jobs_lane_failed", "idx_sync_jobs_connection_type_status"],
}
CLAIM = {"owner": "w1", "limit": LIMIT, "queues": ["default"], "detail": "{}", "now": None}
KINDS = (None, ["webhook", "full"])
JOBS = 100_000
PAGE = 51  # rows of a page, and one more
FEW = 250  # pages of the database, for a page of rows


@dataclass
class Full:
    """The database, and what a claim cost before a hundred thousand jobs were waiting there."""

    db: Database
    signals: int
    claims: dict[str, int] = field(default_factory=dict[str, int])

    def claim(self, how: str, kinds: Sequence[str] | None) -> Plan:
        with self.db.transaction(force_rollback=True):
            return EXPLAIN[how](self.db, STORE.claim, CLAIM | {"kinds": kinds}, "analyze, buffers")

    def plans(
        self, query: LiteralString | bytes, values: dict[str, Any], tenant: UUID | None = None
    ) -> Iterator[Plan]:
        """The plan of a query, both ways; with a tenant, also as somebody who is confined to it."""
        text = query if isinstance(query, bytes) else query.encode()
        for confined in (False, True) if tenant else (False,):
            for explain in EXPLAIN.values():
                with self.db.transaction(force_rollback=True):
                    if confined:
                        self.db.execute("select set_config('holdfast.org_id', %s, true)", [str(tenant)])
                        self.db.execute("set local role holdfast_tenant")
                    yield explain(self.db, text, values, "analyze, buffers")


@pytest.fixture(
    scope="module",
    params=[100_000, pytest.param(1_000_000, marks=pytest.mark.soak)],
    ids=["100000 signals", "1000000 signals"],
)
def here(request: pytest.FixtureRequest, postgres: str, _migrated: str) -> Iterator[Full]:
    """Made once: filling takes longer than all looks together."""
    word = f"full_{uuid4().hex}"
    name = Identifier(word)
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(SQL("create database {} template {}").format(name, Identifier(_migrated)))
        url = urlsplit(postgres)._replace(path=f"/{word}").geturl()
        with psycopg.connect(url, autocommit=True) as db:
            yield filled(Full(db, request.param))
        server.execute(SQL("drop database {} with (force)").format(name))


def filled(found: Full) -> Full:
    db = found.db
    full.fill(db, "connections", full.SETUP)
    full.fill(db, "signals", full.SIGNALS, rows=found.signals)
    full.fill(db, "webhook_delivery", full.DELIVERIES, rows=50_000)
    full.fill(db, "sync_jobs", full.ENDED, full.READY, rows=JOBS)
    found.claims = {how: buffers(found.claim(how, None)) for how in EXPLAIN}
    full.fill(db, "sync_jobs", full.WAITING, rows=JOBS)
    return found


def connection(number: int) -> UUID:
    return UUID(int=(2 << 124) + number)


TENANT, CONNECTION = UUID(int=1 << 124), connection(400)  # of GitHub
AGO = datetime.now(UTC)
DEEP: dict[str, Any] = {"before": AGO - timedelta(hours=5), "before_id": uuid4()}


def indexes(plan: Plan) -> set[str]:
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


def kinds_of(plan: Plan) -> set[str]:
    return {node["Node Type"] for node in nodes(plan)}


def most_sorted(plan: Plan) -> int:
    """How many rows went into a sort, at most."""
    sorts = [node for node in nodes(plan) if "Sort" in node["Node Type"]]
    return max((sort["Plans"][0]["Actual Rows"] for sort in sorts), default=0)


# -- jobs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", KINDS, ids=["of all types", "of some types"])
@pytest.mark.parametrize("how", EXPLAIN)
def test_claims_cost_the_same_with_a_hundred_thousand_backed_off_rows(
    here: Full, how: str, kinds: Sequence[str] | None
) -> None:
    """C-28..C-30, proofs: each lane by its own index and without a sort; the twin by the unique one."""
    plan = here.claim(how, kinds)
    assert plan["Actual Rows"] == LIMIT
    lanes = lanes_of(plan)
    assert lanes.keys() == LANES.keys()
    for name, parts in lanes.items():
        assert [part["Index Name"] for part in parts if "Index Name" in part] == LANES[name]
        assert not {"Sort", "Incremental Sort", "Seq Scan"} & {part["Node Type"] for part in parts}
    more = 0
    if here.db.info.server_version < 180000:  # the first that skips from priority to priority
        size = "select sum(pg_relation_size(lane) / 8192)::int from unnest(%s::regclass[]) as lane"
        lanes_indexes = [one for found in LANES.values() for one in found]
        ((more,),) = here.db.execute(size, [lanes_indexes]).fetchall()
    assert buffers(plan) <= 1.3 * here.claims[how] + more, here.claims


def test_to_walk_past_all_that_wait_would_cost_much_more(here: Full) -> None:
    """What the last test would find if a claim did not know the lanes."""
    walk = b"""
        select id from sync_jobs where status in ('queued', 'failed')
            and coalesce(retry_after, scheduled_at) <= clock_timestamp()
        order by priority desc, scheduled_at limit 10
    """
    plan = explain_custom(here.db, walk, {}, "analyze, buffers")
    assert buffers(plan) > 3 * max(here.claims.values())


def test_the_look_for_an_active_twin_reads_the_unique_index(here: Full) -> None:
    """C-30, C-44: what a requeue asks, and what the scheduler passes over."""
    waiting = "select id from sync_jobs where status = 'failed' and retry_after is not null limit 1"
    ((job,),) = here.db.execute(waiting).fetchall()
    assert STORE.twin
    for plan in here.plans(STORE.twin, {"id": job}):
        assert indexes(plan) == {"sync_jobs_pkey", "idx_sync_jobs_connection_type_status"}
        assert buffers(plan) < 20
    for plan in here.plans(sql.ACTIVE_JOBS, {"connection": CONNECTION}):
        assert indexes(plan) == {"idx_sync_jobs_connection_type_status"}
        assert buffers(plan) < 20


JOB_LISTS: dict[str, dict[str, Any]] = {
    "of a tenant": {"tenant_id": TENANT},
    "of a tenant and a provider": {"tenant_id": TENANT, "provider": "github"},
    "of a tenant, failed": {"tenant_id": TENANT, "states": ["failed"]},
    "of a tenant and a provider, succeeded": {
        "tenant_id": TENANT,
        "provider": "github",
        "states": ["succeeded", "completed"],
    },
    "of a tenant and a type": {"tenant_id": TENANT, "job_type": "incremental"},
    "of a connection": {"tenant_id": TENANT, "connection_id": CONNECTION},
    "of all": {},
    "of all, failed": {"states": ["failed"]},
}


@pytest.mark.parametrize("deep", [{}, DEEP], ids=["the first page", "a page far in"])
@pytest.mark.parametrize("given", JOB_LISTS.values(), ids=JOB_LISTS)
def test_a_page_of_jobs_reads_a_few_pages_of_an_index(
    here: Full, given: dict[str, Any], deep: dict[str, Any]
) -> None:
    """C-68, C-69: the last scheduled first, also for whoever is confined to a tenant."""
    values = given | deep
    names = ["status" if name == "states" else name for name in values if name != "before_id"]
    for plan in here.plans(sql.jobs(names), values | {"limit": PAGE}, given.get("tenant_id")):
        assert "Seq Scan" not in kinds_of(plan)
        assert buffers(plan) < 2 * FEW, (sorted(indexes(plan)), buffers(plan))


# -- signals ---------------------------------------------------------------------------------------------

BY_KIND: LiteralString = """
select * from signals where tenant_id = %(tenant_id)s and kind = %(kind)s order by occurred_at desc limit 50
"""


def test_a_query_by_tenant_and_kind_newest_first_reads_the_composite_index_and_sorts_nothing(
    here: Full,
) -> None:
    """C-73, proofs: with these values and with any, and confined to the tenant."""
    for plan in here.plans(BY_KIND, {"tenant_id": TENANT, "kind": "pr_merged"}, TENANT):
        assert indexes(plan) == {"idx_signals_tenant_kind_occurred"}
        assert not {"Sort", "Incremental Sort", "Seq Scan", "Bitmap Heap Scan"} & kinds_of(plan)
        assert plan["Actual Rows"] == 50
        assert buffers(plan) < FEW


SIGNAL_LISTS: dict[str, dict[str, Any]] = {
    "of a tenant": {"tenant_id": TENANT},
    "of a tenant and a kind": {"tenant_id": TENANT, "kind": "pr_merged"},
    "of a tenant and a kind that there is not": {"tenant_id": TENANT, "kind": "reaction_added"},
    "of a tenant and a provider": {"tenant_id": TENANT, "provider": "github"},
    "of a connection": {"tenant_id": TENANT, "connection_id": CONNECTION},
    "of a tenant in some hours": {
        "tenant_id": TENANT,
        "occurred_after": AGO - timedelta(hours=20),
        "occurred_before": AGO - timedelta(hours=3),
    },
    "of all": {},
}


@pytest.mark.parametrize("deep", [{}, DEEP], ids=["the first page", "a page far in"])
@pytest.mark.parametrize("given", SIGNAL_LISTS.values(), ids=SIGNAL_LISTS)
def test_a_page_of_signals_reads_a_few_pages_of_an_index(
    here: Full, given: dict[str, Any], deep: dict[str, Any]
) -> None:
    """C-68, C-69, C-73: what is sorted is what happened at one moment, or the little that there is."""
    values = given | deep
    names = [name for name in values if name != "before_id"]
    for payload in (False, True):
        query = queries.signals(names, payload=payload)
        for plan in here.plans(query, values | {"limit": PAGE}, given.get("tenant_id")):
            assert "Seq Scan" not in kinds_of(plan)
            assert most_sorted(plan) <= 2 * PAGE
            assert buffers(plan) < FEW, (sorted(indexes(plan)), buffers(plan))


def test_whether_a_signal_is_known_is_looked_up_in_the_index_of_dedupe_keys(here: Full) -> None:
    """C-39: for a page of five hundred that are all known, one search each."""
    known = """
        select dedupe_key from signals where tenant_id = %s and provider_slug = 'github' limit 500
    """
    keys = [key for (key,) in here.db.execute(known, [TENANT])]
    page = {
        "tenant_id": TENANT,
        "provider": "github",
        "connection_id": CONNECTION,
        "ids": [uuid4() for _ in keys],
        "kinds": ["pr_merged" for _ in keys],
        "times": [AGO for _ in keys],
        "payloads": ["{}" for _ in keys],
        "keys": keys,
    }
    for plan in here.plans(queries.ADD_SIGNALS, page):
        assert "idx_signals_tenant_provider_dedupe" in indexes(plan)
        assert "Seq Scan" not in kinds_of(plan)
        assert buffers(plan) < 6 * len(keys)


# -- the inbox and the duties ----------------------------------------------------------------------------


def test_the_deliveries_that_wait_are_read_from_their_own_index(here: Full) -> None:
    """C-49: what a drain takes, whether something is left, and what the duty finds."""
    whose, now = {"connection": connection(10)}, {"now": moment_text(datetime.now(UTC))}
    looks: list[tuple[LiteralString, dict[str, Any]]] = [
        (work_queries.READY, whose | now | {"limit": 100}),
        (work_queries.LEFT, whose | now),
    ]
    for query, values in looks:
        for plan in here.plans(query, values):
            assert indexes(plan) == {"idx_webhook_delivery_pending"}
            assert plan["Actual Rows"] == 1
            assert buffers(plan) < 20
    late = {"known": ["github", "slack"], "before": datetime.now(UTC), "after": UUID(int=0), "limit": 100}
    for plan in here.plans(work_queries.STRANDED, late | now):
        assert {"idx_webhook_delivery_pending", "idx_sync_jobs_connection_type_status"} <= indexes(plan)
        assert "Seq Scan" not in kinds_of(plan)
        assert buffers(plan) < 10 * 200


@pytest.mark.parametrize(("lead", "found"), [(600, 0), (86_400 + 600, 50)])
def test_the_tokens_that_will_soon_end_are_found_without_a_look_at_the_others(
    here: Full, lead: float, found: int
) -> None:
    """C-58: as much as there is to refresh, and no more."""
    values = {"lead": lead, "known": ["github", "slack"], "tried": [], "limit": 50}
    for plan in here.plans(work_queries.ENDING, values):
        assert plan["Actual Rows"] == found
        assert "idx_connections_expires_at" in indexes(plan)
        # The few providers may be read whole.
        scans = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
        assert scans <= {"providers"}
        assert buffers(plan) < 10 + 10 * found, buffers(plan)
