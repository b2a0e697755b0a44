"""What reading costs when the tables are full: pages of an index, and never a walk through the table.

What runs for every session is looked at twice: by a plan for its values, as our own connections ask for, and
by a generic one. Lists are planned for their values alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, LiteralString
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from engine.test_plans import EXPLAIN, Plan, buffers, lanes_of, nodes
from holdfast import Settings
from holdfast.apps.schedules import days_queries, ledger, metrics_queries, process_queries, verify_queries
from holdfast.apps.schedules.pages import queries as page_queries
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from schedules import full

Database = psycopg.Connection[Any]
Values = Mapping[str, Any]

PAGE = 51  # rows of a page, and one more
SMALL = 100  # pages of a table that a planner may well read as a whole
FEW = 40  # pages of the database for what concerns one session or one day
SOME = 700  # for a page of rows: each has its images or attempts counted


@dataclass
class Full:
    """The database."""

    db: Database
    rows: int

    def plans(self, query: LiteralString | bytes, values: Values, *hows: str) -> Iterator[Plan]:
        """The plans of a query: for its values, and, where it has any, for any others."""
        text = query if isinstance(query, bytes) else query.encode()
        for how in hows or EXPLAIN:
            if how == "generic" and b"%(" not in text:
                continue
            with self.db.transaction(force_rollback=True):
                yield EXPLAIN[how](self.db, text, dict(values), "analyze, buffers")


@pytest.fixture(
    scope="module",
    params=[100_000, pytest.param(1_000_000, marks=pytest.mark.soak)],
    ids=["100000 sessions", "1000000 sessions"],
)
def here(request: pytest.FixtureRequest, postgres: str, _migrated: str) -> Iterator[Full]:
    """Made once: filling takes longer than all looks together."""
    word = f"full_{uuid4().hex}"
    name = Identifier(word)
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(SQL("create database {} template {}").format(name, Identifier(_migrated)))
        url = urlsplit(postgres)._replace(path=f"/{word}").geturl()
        with psycopg.connect(url, autocommit=True) as db:
            full.fill_all(db, request.param)
            yield Full(db, request.param)
        server.execute(SQL("drop database {} with (force)").format(name))


def ended(number: int) -> UUID:
    return UUID(int=(1 << 124) + number)


USER, DAY, SESSION = 40, date(2020, 1, 1), ended(5040)  # its sixth version
MIDDLE = datetime(2020, 1, 1, 12, tzinfo=UTC)  # of all that has ended
CLAIM = {
    "owner": "w1/1",
    "worker": "w1",
    "kinds": None,
    "queues": ["default"],
    "detail": "{}",
    "now": None,
    "in_hand": [uuid4()],
}


def indexes(plan: Plan) -> set[str]:
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


def walked(plan: Plan) -> set[str]:
    """The tables of schedules that are read from end to end, but for those whose end is near."""
    scans = (node for node in nodes(plan) if node["Node Type"] == "Seq Scan")
    return {node["Relation Name"] for node in scans if buffers(node) > SMALL}


def most_sorted(plan: Plan) -> int:
    """How many rows went into a sort, at most."""
    sorts = [node for node in nodes(plan) if "Sort" in node["Node Type"]]
    return max((sort["Plans"][0]["Actual Rows"] for sort in sorts), default=0)


def told(plan: Plan) -> str:
    return f"{buffers(plan)} buffers, by {sorted(indexes(plan))}"


# -- claims ----------------------------------------------------------------------------------------------

SETTINGS = Settings()
SESSIONS = {
    "as the loop does": ledger.sessions(SETTINGS),
    "as run-once does": ledger.sessions(SETTINGS, hasty=True),
    "of those with pictures": ledger.sessions(SETTINGS, alone=False),
    "in the order of each user": ledger.sessions(replace(SETTINGS, schedules_user_order=True)),
}


@pytest.mark.parametrize("of", SESSIONS.values(), ids=SESSIONS)
@pytest.mark.parametrize("limit", [1, 4])
def test_a_claim_of_sessions_reads_each_lane_by_its_index(here: Full, of: Ledger, limit: int) -> None:
    """S-8, S-9, S-10: pending ones, and stale ones among those that are held; no lane sorts."""
    claim, values = Store(of).sql.claim, CLAIM | {"limit": limit}
    for _ in here.plans(claim, values):
        pass  # the first claim of a session also reads the catalogs, and dirties what the filling left clean
    for plan in here.plans(claim, values):
        assert plan["Actual Rows"] == limit
        lanes = lanes_of(plan)
        assert lanes.keys() == {"lane_pending", "lane_stale"}
        for name, index in (
            ("lane_pending", "ix_capture_session_pending"),
            ("lane_stale", "ix_capture_session_held"),
        ):
            used = [part["Index Name"] for part in lanes[name] if "Index Name" in part]
            assert used[0] == index, (name, used)
            assert not {"Sort", "Incremental Sort", "Seq Scan"} & {part["Node Type"] for part in lanes[name]}
        assert not walked(plan)
        # In the order of each user, stale sessions are passed over whose user has an older one.
        passed_over = 170 if of is SESSIONS["in the order of each user"] else 0
        assert buffers(plan) < 40 + 55 * limit + passed_over, told(plan)


def test_a_claim_of_messages_reads_those_that_wait(here: Full) -> None:
    """S-50, S-51: it passes two hundred and fifty users whose first message is to be tried later."""
    of = Store(ledger.NOTIFICATIONS).sql
    for plan in here.plans(of.claim, CLAIM | {"limit": 1}):
        assert plan["Actual Rows"] == 1
        (lane,) = lanes_of(plan).values()
        assert {"ix_schedule_notification_pending", "ix_schedule_notification_user"} <= {
            part.get("Index Name") for part in lane
        }
        assert not {"Sort", "Incremental Sort", "Seq Scan"} & {part["Node Type"] for part in lane}
        assert not walked(plan)
        assert buffers(plan) < 250 * 8, told(plan)


def test_to_look_for_work_without_the_lanes_would_cost_much_more(here: Full) -> None:
    """What the claims would cost if they did not know that few rows are open."""
    walk = b"""
        select id from schedule_ingest.capture_session where state::text in ('pending', 'processing')
        order by created_at, id limit 1
    """
    (plan,) = here.plans(walk, {}, "custom")
    assert buffers(plan) > here.rows / 200


HELD: dict[str, Values] = {
    "held": {},
    "held_by": {"owners": ["host-1-a"], "now": None},
    "orphans": {"alive": ["w2"], "orphaned": 30, "nameless": 7200, "limit": 1000, "now": None},
    "expired": {"limit": 1000, "now": None},
}


@pytest.mark.parametrize("name", HELD)
def test_what_looks_after_sessions_reads_those_that_are_held(here: Full, name: str) -> None:
    """S-12, S-15: a hundred and fifty are."""
    for plan in here.plans(getattr(Store(ledger.CAPTURE_SESSIONS).sql, name), HELD[name]):
        assert not walked(plan)
        assert buffers(plan) < 150 * 12, told(plan)


# -- one session, one day --------------------------------------------------------------------------------

PLACE: Values = {
    "session": SESSION,
    "user": USER,
    "day": DAY,
    "version": 3,
    "owner": "host-5-a/2000",
    "worker": "host-1-a",
    "user_id": USER,
    "id": SESSION,
    "session_id": SESSION,
    "at": MIDDLE,
    "versions": [1, 2],
    "limit": PAGE,
}
STEPS = ("SESSION", "HOLD", "DAY", "STANDING", "SLOTS", "OPEN", "PENDING", "TAKEN_BY")
READS = (
    *(
        "DAY",
        "VERSIONS",
        "VERSION_AT",
        "VERSION_OF",
        "LAST_VERSIONS",
        "EVENTS",
        "EVENTS_UNTIL",
        "LAST_EVENTS",
    ),
    *("EVENTS_OF", "IMAGES", "ATTEMPTS", "KNOWN_SESSION"),
)


@pytest.mark.parametrize("name", STEPS)
def test_each_statement_of_a_session_reads_a_few_pages(here: Full, name: str) -> None:
    """S-32, S-47: what is asked under the lock of a day is little."""
    for plan in here.plans(getattr(process_queries, name), PLACE):
        assert not walked(plan)
        assert buffers(plan) < FEW, told(plan)


@pytest.mark.parametrize("name", READS)
def test_a_day_and_its_history_read_a_few_pages(here: Full, name: str) -> None:
    """S-54: now, at a time, its versions and events, and the capture behind them."""
    for plan in here.plans(getattr(days_queries, name), PLACE):
        assert not walked(plan)
        assert buffers(plan) < FEW, told(plan)


def test_the_page_of_a_day_reads_what_belongs_to_it(here: Full) -> None:
    """S-54: whether it has changed, its messages, and the tries of one of them."""
    looks: list[tuple[LiteralString, Values]] = [
        (page_queries.GLANCE, PLACE),
        (days_queries.notices(("user_id", "day")), PLACE),
        (days_queries.notices(("user_id", "day", "session_id")), PLACE),
        (days_queries.TRIES, {"id": "sent 40"}),
    ]
    for query, values in looks:
        for plan in here.plans(query, values):
            assert not walked(plan)
            assert buffers(plan) < 3 * FEW, told(plan)


# -- lists -----------------------------------------------------------------------------------------------

WHOSE: dict[str, dict[str, Any]] = {"of all": {}, "of a user": {"user_id": USER}}
WHERE: dict[str, dict[str, Any]] = {"the first page": {}, "a page far in": {"before": MIDDLE}}
STATES = (None, "pending", "processing", "done", "failed")
STATUSES = (None, "pending", "sent", "failed")


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("whose", WHOSE.values(), ids=WHOSE)
@pytest.mark.parametrize("state", STATES)
def test_a_page_of_captures_reads_a_few_pages_of_an_index(
    here: Full, state: str | None, whose: dict[str, Any], where: dict[str, Any]
) -> None:
    """S-54: the newest first, in any state."""
    given = whose | ({"state": state} if state else {}) | where
    query = days_queries.captures(given)
    (plan,) = here.plans(query, given | {"before_id": uuid4(), "limit": PAGE}, "custom")
    assert not walked(plan)
    assert most_sorted(plan) <= 2 * PAGE
    assert buffers(plan) < SOME, told(plan)


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE)
@pytest.mark.parametrize("whose", WHOSE.values(), ids=WHOSE)
@pytest.mark.parametrize("status", STATUSES)
def test_a_page_of_messages_reads_a_few_pages_of_an_index(
    here: Full, status: str | None, whose: dict[str, Any], where: dict[str, Any]
) -> None:
    """S-54: the newest first, in any status."""
    given = whose | ({"status": status} if status else {}) | where
    query = days_queries.notices(given)
    (plan,) = here.plans(query, given | {"before_id": "x", "limit": PAGE}, "custom")
    assert not walked(plan)
    assert most_sorted(plan) <= 2 * PAGE
    assert buffers(plan) < SOME, told(plan)


DAYS: dict[str, dict[str, Any]] = {
    "of all": {},
    "of a user": {"user_id": USER},
    "of all since a day": {"since": DAY},
    "of all until a day": {"until": DAY},
    "of all, a page far in": {"before": DAY + timedelta(days=5), "before_user": 500},
    "of a user, a page far in": {"user_id": USER, "before": DAY + timedelta(days=5), "before_user": USER},
}


@pytest.mark.parametrize("given", DAYS.values(), ids=DAYS)
def test_a_page_of_days_reads_a_few_pages_of_an_index(here: Full, given: dict[str, Any]) -> None:
    """S-54: the latest first."""
    query = days_queries.days([name for name in given if name != "before_user"])
    (plan,) = here.plans(query, given | {"limit": PAGE}, "custom")
    assert not walked(plan)
    assert buffers(plan) < SOME, told(plan)


ROWS: dict[str, tuple[Ledger, Any]] = {
    "sessions": (ledger.CAPTURE_SESSIONS, SESSION),
    "messages": (ledger.NOTIFICATIONS, "sent 40"),
}
SHAPES = (
    (),
    ("tenant",),
    ("state",),
    ("tenant", "state"),
    ("cursor",),
    ("state", "cursor"),
    ("tenant", "cursor"),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " and ".join(shape) or "of all")
@pytest.mark.parametrize("which", ROWS)
def test_a_page_of_the_ledger_reads_a_few_pages_of_an_index(
    here: Full, which: str, shape: tuple[str, ...]
) -> None:
    """S-54: as every ledger is shown; the tries of each row are counted."""
    of, key = ROWS[which]
    values: Values = {"tenant": USER, "before": MIDDLE, "before_key": key, "limit": PAGE}
    for state in of.states if "state" in shape else (None,):
        (plan,) = here.plans(Store(of).sql.rows(shape), values | {"state": state}, "custom")
        assert not walked(plan)
        assert buffers(plan) < 2 * SOME, (state, told(plan))


# -- what runs again and again ---------------------------------------------------------------------------


def test_a_scrape_reads_what_waits_and_what_was_lost(here: Full) -> None:
    """S-55: the oldest that is pending by one look, and lost attempts by an index of their own."""
    for query, index in (
        (metrics_queries.OLDEST_PENDING, "ix_capture_session_pending"),
        (metrics_queries.LOST, "ix_capture_attempt_lost"),
    ):
        (plan,) = here.plans(query, {"most": 100_000}, "custom")
        assert indexes(plan) == {index}
        assert buffers(plan) < FEW, told(plan)


@pytest.mark.parametrize("which", ROWS)
def test_the_depth_of_a_ledger_is_counted_where_an_index_leads(here: Full, which: str) -> None:
    """S-55: what has ended well is estimated, since nobody counts it at every scrape."""
    of, _ = ROWS[which]
    for state in of.states:
        if state != of.to("finish"):
            (plan,) = here.plans(Store(of).sql.depth(("state",)), {"state": state, "limit": 10_001}, "custom")
            assert not walked(plan)
            assert buffers(plan) < SOME, (state, told(plan))


@pytest.mark.parametrize("whose", [False, True], ids=["of all", "of a user"])
@pytest.mark.parametrize("after", [(-(2**63), "-infinity"), (500, DAY)], ids=["the first", "far in"])
def test_a_step_of_the_verification_reads_the_days_of_that_step(
    here: Full, after: tuple[int, Any], whose: bool
) -> None:
    """S-54: a hundred days, and the thousand versions that they have."""
    values = {"user_id": USER, "limit": 100, "after_user": after[0], "after_day": after[1]}
    for plan in here.plans(verify_queries.keys(of_user=whose), values):
        assert not walked(plan)
        assert buffers(plan) < 500, told(plan)
    these: Values = {
        "users": [USER + n // 10 for n in range(100)],
        "days": [DAY + timedelta(days=n % 10) for n in range(100)],
    }
    for query in (
        verify_queries.POINTERS,
        verify_queries.SNAPSHOTS,
        verify_queries.VERSIONS,
        verify_queries.EVENTS,
        verify_queries.NOTICES,
    ):
        for plan in here.plans(query, these):
            assert not walked(plan)
            assert buffers(plan) < 2000, told(plan)


def test_an_erasure_reads_what_its_user_has(here: Full) -> None:
    """S-57: by the user's index in every table, and by the key in those that refer to his rows."""
    scans = "select relname, seq_scan from pg_stat_xact_user_tables where schemaname = 'schedule_ingest'"
    with here.db.transaction(force_rollback=True):
        before: dict[str, int] = dict(here.db.execute(scans).fetchall())
        ((gone,),) = here.db.execute("select schedule_ingest.erase(%s)", [USER]).fetchall()
        after: dict[str, int] = dict(here.db.execute(scans).fetchall())
    assert gone["schedule_version"] == here.rows / full.USERS
    assert after == before
