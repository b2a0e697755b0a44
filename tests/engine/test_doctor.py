"""`doctor` on real tables: it names each defect, and what it prints mends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from doctoring import ailing, broken, examine, mend, only, run
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db import migrate
from holdfast.engine.doctor import server
from holdfast.engine.roles import Column, Idempotency, Journal, Key
from holdfast.engine.store import Store
from holdfast.engine.values import Item
from ledgers import DDL, PARCELS, SAMPLES, Sample

Connection = AsyncConnection[Any]


@pytest.fixture
def database_url(empty_database_url: str) -> str:
    """A migrated database of the test's own, to be damaged at will."""
    migrate.upgrade(empty_database_url)
    return empty_database_url


@pytest.fixture
async def parcels(conn: Connection) -> Connection:
    """A connection to a database that also has a healthy `parcels`."""
    await run(conn, *DDL)
    await mend(conn, await examine(conn, PARCELS))
    return conn


# -- healthy tables --------------------------------------------------------------------------------------


async def test_the_migrated_tasks_are_healthy_and_both_lanes_have_their_index(conn: Connection) -> None:
    diagnosis = await examine(conn, TASKS)
    assert diagnosis.healthy
    assert [finding.severity for finding in diagnosis.findings] == ["fine"] * len(diagnosis.findings)
    assert [(lane.lane, lane.plan, lane.served) for lane in diagnosis.lanes] == [
        ("fresh", "Index Scan using idx_tasks_claimable on tasks", True),
        ("fresh by type", "Index Scan using idx_tasks_claimable_by_type on tasks", True),
        ("retry", "Index Scan using idx_tasks_due_retry on tasks", True),
        ("retry by type", "Index Scan using idx_tasks_due_retry_by_type on tasks", True),
    ]
    assert diagnosis.remedy() == ""


async def test_the_indexes_are_found_on_a_full_and_analysed_table_too(conn: Connection) -> None:
    await Store(TASKS).copy(conn, [Item(kind="a", priority=n % 3) for n in range(3000)])
    await conn.execute("update tasks set status = 'completed' where priority > 0")
    await conn.execute("analyze tasks")
    diagnosis = await examine(conn, TASKS)
    assert diagnosis.healthy
    assert all(lane.served for lane in diagnosis.lanes)


async def test_the_index_of_a_lane_is_found_although_an_emptied_table_is_searched_by_another(
    conn: Connection,
) -> None:
    await Store(TASKS).copy(conn, [Item(kind="a") for _ in range(30000)])
    await conn.execute("delete from tasks")
    await conn.execute("create index general on tasks (priority desc, created_at)")
    await conn.execute("analyze tasks")
    diagnosis = await examine(conn, TASKS)
    (fresh,) = [lane for lane in diagnosis.lanes if lane.lane == "fresh"]
    assert fresh.plan.startswith("Index Scan using general on tasks, filtered by")
    assert fresh.plan.endswith(", although idx_tasks_claimable is there")
    assert ailing(diagnosis) == []


async def test_an_index_with_other_keys_or_rows_is_not_the_one_of_the_lane(conn: Connection) -> None:
    await run(
        conn,
        "drop index idx_tasks_claimable",
        "create index general on tasks (priority desc, created_at)",
        "analyze tasks",
    )
    for index in (
        "(priority desc, created_at) where status in ('pending', 'failed') and next_retry_at is null",
        "(priority desc, created_at) where status = 'pending' and next_retry_at is null and type = 'a'",
        "(priority, created_at) where status = 'pending' and next_retry_at is null",
        "(priority desc nulls last, created_at) where status = 'pending' and next_retry_at is null",
        "(created_at) where status = 'pending' and next_retry_at is null",
        "(priority desc, created_at) where status = 'pending' and next_retry_at > '2000-01-01'",
    ):
        await run(conn, f"create index other on tasks {index}")
        found = only(ailing(await examine(conn, TASKS)))
        assert found.what.startswith("no index serves the lane fresh: "), index
        await run(conn, "drop index other")


async def test_an_examination_leaves_no_trace_on_the_connection(conn: Connection) -> None:
    await examine(conn, TASKS)
    assert conn.info.transaction_status.name == "IDLE"
    for setting, value in (("enable_seqscan", "on"), ("transaction_read_only", "off")):
        cursor = await conn.execute("select current_setting(%s)", [setting])
        assert await cursor.fetchone() == (value,)


async def test_an_examination_inside_a_transaction_leaves_it_as_it_was(conn: Connection) -> None:
    async with conn.transaction():
        await examine(conn, TASKS)
        await Store(TASKS).enqueue(conn, Item(kind="a"))
    cursor = await conn.execute("select count(*) from tasks")
    assert await cursor.fetchone() == (1,)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_every_sample_is_healthy_and_what_is_warned_of_is_mended(
    conn: Connection, sample: Sample
) -> None:
    await run(conn, *DDL)
    found = await broken(conn, ledger=sample.ledger)
    assert {finding.severity for finding in found} <= {"warning"}


async def test_a_table_without_any_index_gets_all_that_its_ledger_needs(parcels: Connection) -> None:
    damage = [f"drop index parcels_{name}" for name in ("shelf", "later", "moving")]
    found = await broken(
        parcels,
        *damage,
        "alter table parcels drop constraint parcels_barcode_key, drop constraint parcels_pkey",
        ledger=PARCELS,
    )
    assert [(finding.severity, finding.what.split(":")[0].split(",")[0]) for finding in found] == [
        ("missing", "no unique index on parcel_no"),
        ("missing", "no unique index on (barcode)"),
        ("missing", "no index serves the lane shelf"),
        ("missing", "no index serves the lane later"),
        ("warning", "no index leads to the rows that workers hold"),
    ]


async def test_a_missing_fence_column_is_told_honestly_and_offered_but_not_forced(
    parcels: Connection,
) -> None:
    diagnosis = await examine(parcels, PARCELS)
    (told,) = [finding for finding in diagnosis.findings if "no fence column" in finding.what]
    assert told.severity == "fine"
    assert "as long as nobody else writes courier" in told.what
    assert told.remedy_sql == 'alter table "parcels" add column "fence" bigint not null default 0;'
    assert diagnosis.remedy() == ""
    await run(parcels, told.remedy_sql)
    assert (await examine(parcels, replace(PARCELS, fence="fence"))).healthy


# -- the table itself ------------------------------------------------------------------------------------


async def test_a_missing_table_is_made_with_all_its_columns_and_indexes(conn: Connection) -> None:
    found = await broken(conn, ledger=PARCELS)
    assert found[0].what == "there is no table parcels"
    assert (await Store(PARCELS).enqueue(conn, Item(kind="a", payload={"n": 1}, key="b"))).created


async def test_a_table_outside_the_search_path_is_named_with_its_schema(conn: Connection) -> None:
    await conn.execute("create schema elsewhere")
    await conn.execute("alter table tasks set schema elsewhere")
    diagnosis = await examine(conn, TASKS)
    assert not diagnosis.healthy
    assert "declare it as elsewhere.tasks" in only(diagnosis.findings).what
    assert (await examine(conn, replace(TASKS, table="elsewhere.tasks"))).healthy


async def test_a_view_is_no_ledger(conn: Connection) -> None:
    await conn.execute("create view errands as select * from tasks")
    finding = only((await examine(conn, replace(TASKS, table="errands"))).findings)
    assert "errands is not a table" in finding.what


async def test_missing_privileges_are_named_and_granted(conn: Connection, database_url: str) -> None:
    role = Identifier("clerk_" + database_url.split("/")[3].split("?")[0])
    await conn.execute(SQL("create role {}").format(role))
    try:
        await conn.execute(SQL("grant select on tasks to {}").format(role))
        await conn.execute(SQL("set role {}").format(role))
        diagnosis = await examine(conn, TASKS)
        lacking = [finding for finding in diagnosis.findings if finding.severity == "missing"]
        assert "lacks update (status, worker_id, claimed_at," in only(lacking).what
        await conn.execute("reset role")
        await mend(conn, diagnosis)
        await conn.execute(SQL("set role {}").format(role))
        mended = await examine(conn, TASKS)
        assert mended.healthy
        assert mended.findings[0].severity == "fine"
        assert mended.findings[0].what == "this login cannot enqueue: it may not insert into tasks"
        cursor = await conn.execute("select has_column_privilege('tasks', 'payload', 'update')")
        assert await cursor.fetchone() == (False,)
    finally:
        await conn.execute("reset role")
        await conn.execute(SQL("drop owned by {0}; drop role {0}").format(role))


# -- columns ---------------------------------------------------------------------------------------------


async def test_a_dropped_column_comes_back(conn: Connection) -> None:
    finding = only(await broken(conn, "alter table tasks drop column last_error"))
    assert "last_error (error) is not there" in finding.what
    assert finding.remedy_sql == 'alter table "tasks" add column "last_error" text;'


async def test_a_dropped_column_of_a_lane_comes_back_with_its_indexes(conn: Connection) -> None:
    due, *lanes = await broken(conn, "alter table tasks drop column next_retry_at")
    assert "next_retry_at (due) is not there" in due.what
    assert [finding.what for finding in lanes] == [
        f"no index serves the lane {lane}: cannot be planned without next_retry_at"
        for lane in ("fresh", "fresh by type", "retry", "retry by type")
    ]


async def test_a_renamed_column_is_missed_and_the_columns_that_are_there_are_listed(conn: Connection) -> None:
    finding = only(await broken(conn, "alter table tasks rename column fence to guard"))
    assert "fence (fence) is not there" in finding.what
    assert "guard" in finding.what
    assert finding.promise_lost == "a worker that lost its claim can still overwrite the row"


@pytest.mark.parametrize(
    ("damage", "severity", "told"),
    [
        ("completed_at type timestamptz", "missing", "completed_at (finished) is timestamp with time zone"),
        ("fence type integer", "warning", "fence (fence) is integer, and should be bigint"),
        ("fence type numeric", "missing", "fence (fence) is numeric"),
        ("attempts type text", "missing", "attempts (attempts) is text"),
        ("payload type json", "warning", "payload (payload) is json, and should be jsonb"),
        ("payload type text", "missing", "payload (payload) is text"),
        ("worker_id type uuid using worker_id::uuid", "missing", "worker_id (owner) is uuid"),
        ("worker_id type varchar(20)", "missing", "worker_id (owner) has room for 20 characters only"),
        ("last_error type varchar(80)", "missing", "last_error (error) has room for 80 characters only"),
        ("next_retry_at set not null", "missing", "next_retry_at (due) is NOT NULL"),
        ("worker_id set not null", "missing", "worker_id (owner) is NOT NULL"),
        ("started_at set not null", "missing", "started_at (started) is NOT NULL"),
        ("payload set not null", "warning", "payload (payload) is NOT NULL without a default"),
        ("fence drop not null", "missing", "fence (fence) may be NULL"),
        ("attempts drop default", "missing", "attempts (attempts) has no default"),
        ("priority drop default", "missing", "priority (priority) has no default"),
        ("status drop default", "warning", "status (state) has no default"),
    ],
)
async def test_a_column_that_does_not_fit_is_named_and_altered(
    conn: Connection, damage: str, severity: str, told: str
) -> None:
    finding = only(await broken(conn, "alter table tasks alter column " + damage), severity)
    assert told in finding.what


async def test_times_of_another_kind_keep_their_moments_when_converted(conn: Connection) -> None:
    zoned = "alter table tasks alter created_at type timestamptz using created_at at time zone 'UTC'"
    await conn.execute("insert into tasks (type, created_at) values ('a', '2030-01-01 12:00')")
    await broken(conn, "set time zone 'Asia/Tokyo'", zoned)
    cursor = await conn.execute("select created_at::text from tasks")
    assert await cursor.fetchone() == ("2030-01-01 12:00:00",)


async def test_epoch_times_are_made_of_timestamps(parcels: Connection) -> None:
    await run(parcels, "insert into parcels (service, done_ms) values ('a', 1500)")
    damage = "alter table parcels alter done_ms type timestamptz using to_timestamp(done_ms / 1000.0)"
    only(await broken(parcels, damage, ledger=PARCELS))
    cursor = await parcels.execute("select done_ms from parcels")
    assert await cursor.fetchone() == (1500,)


async def test_a_key_of_another_type_is_for_the_declaration_to_change(parcels: Connection) -> None:
    finding = only(ailing(await examine(parcels, replace(PARCELS, key=Key("parcel_no", "uuid")))))
    assert "parcel_no (key) is integer, and should be uuid: change the declaration" in finding.what
    assert finding.remedy_sql is None


async def test_a_key_that_nobody_draws_gets_a_source(parcels: Connection) -> None:
    await run(parcels, "insert into parcels (service) values ('a'), ('b')")
    only(await broken(parcels, "alter table parcels alter parcel_no drop identity", ledger=PARCELS))
    assert (await Store(PARCELS).enqueue(parcels, Item(kind="c"))).id == 3


async def test_a_key_that_only_the_database_may_draw_is_opened_for_ours(parcels: Connection) -> None:
    ours = replace(PARCELS, key=Key("parcel_no", "integer", lambda: 77))
    assert "GENERATED ALWAYS" in only(await broken(parcels, ledger=ours)).what
    assert (await Store(ours).enqueue(parcels, Item(kind="c"))).id == 77


async def test_a_strange_column_that_no_enqueue_fills_is_named(conn: Connection) -> None:
    finding = only(await broken(conn, "alter table tasks add column colour text not null"))
    assert "colour is NOT NULL without a default" in finding.what
    await conn.execute("update tasks set colour = ''")
    await conn.execute("alter table tasks alter colour set not null")
    declared = replace(TASKS, extras=(Column("colour", "text"),))
    assert (await examine(conn, declared)).healthy


async def test_a_default_that_is_another_than_the_declared_one_is_warned_of(conn: Connection) -> None:
    await conn.execute("alter table tasks alter max_retries set default 9")
    told = only(ailing(await examine(conn, TASKS)), "warning")
    assert told.what == "the column max_retries has the default 9, and `defaults` says 3: change one of them"
    assert told.promise_lost == "a bulk of unlike items gets 3, a single one 9"
    assert told.remedy_sql is None
    store, stated = Store(TASKS), Item(kind="a", priority=1)
    await store.enqueue(conn, Item(kind="alone"))
    await store.enqueue_many(conn, [Item(kind="a"), stated, Item(kind="a", limit=2)])
    cursor = await conn.execute("select max_retries from tasks order by type desc, priority, max_retries")
    assert await cursor.fetchall() == [(9,), (2,), (3,), (3,)]


@pytest.mark.parametrize(
    ("default", "declared", "single"),
    [("'{}'", "NULL", "{}"), ("jsonb_build_array(1)", "NULL", "[1]")],
)
async def test_a_default_where_none_is_declared_is_warned_of(
    conn: Connection, default: str, declared: str, single: str
) -> None:
    await run(conn, "alter table tasks alter payload set default " + default)
    told = only(ailing(await examine(conn, TASKS)), "warning")
    assert told.promise_lost == f"a bulk of unlike items gets {declared}, a single one {single}"


async def test_a_default_that_means_the_same_is_no_other(conn: Connection) -> None:
    declared = replace(TASKS, defaults={**TASKS.defaults, "payload": {"a": 1, "b": []}})
    spelt = """alter payload set default '{"b": [ ], "a": 1}'"""
    await run(conn, f"alter table tasks {spelt}, alter max_retries set default 1 + 2")
    assert ailing(await examine(conn, declared)) == []


async def test_the_declared_default_is_what_a_column_without_one_gets(conn: Connection) -> None:
    declared = replace(TASKS, defaults={**TASKS.defaults, "max_retries": 7})
    damage = "alter table tasks alter max_retries drop default, alter max_retries drop not null"
    finding = only(await broken(conn, damage, ledger=declared), "warning")
    assert finding.remedy_sql == 'alter table "tasks" alter column "max_retries" set default 7;'


# -- states ----------------------------------------------------------------------------------------------


async def test_a_missing_enum_label_is_added(conn: Connection) -> None:
    states = (*TASKS.states, "parked")
    finding = only(await broken(conn, ledger=replace(TASKS, states=states)))
    assert finding.what == "the type task_status has no value 'parked'"
    assert finding.remedy_sql == (
        "-- changes a type: it gets one more value\nalter type task_status add value 'parked';"
    )
    assert finding.loosens


async def test_a_check_that_refuses_a_declared_state_is_widened_and_keeps_what_it_allowed(
    parcels: Connection,
) -> None:
    check = "check (stage in ('shelved', 'moving', 'on holiday'))"
    damage = "alter table parcels drop constraint parcels_stage_check, add constraint known_stage " + check
    finding = only(await broken(parcels, damage, ledger=PARCELS))
    assert finding.what == "the constraint known_stage refuses handed_over, returned"
    await run(parcels, "insert into parcels (service, stage) values ('a', 'on holiday')")


async def test_a_check_that_looks_at_other_columns_is_left_to_the_reader(conn: Connection) -> None:
    await conn.execute("alter table tasks add constraint tied check (status <> 'failed' or type <> 'a')")
    diagnosis = await examine(conn, TASKS)
    assert diagnosis.healthy
    told = only(ailing(diagnosis), "warning")
    assert "the constraint tied ties the state to type" in told.what


FINISHED = "check ((completed_at is null) = (status in ('pending', 'claimed', 'running'{})))"


async def test_a_check_that_ties_the_state_to_the_time_of_the_end_is_tried(conn: Connection) -> None:
    await run(conn, "alter table tasks add constraint ended " + FINISHED.format(""))
    assert ailing(await examine(conn, TASKS)) == []


async def test_a_check_that_refuses_an_end_with_its_time_is_widened(conn: Connection) -> None:
    damage = "alter table tasks add constraint ended " + FINISHED.format(", 'failed'")
    finding = only(await broken(conn, damage))
    assert finding.what == "the constraint ended refuses failed with completed_at as our moves set it"
    row = await Store(TASKS).enqueue(conn, Item(kind="a"))
    await Store(TASKS).cancel(conn, row.id)


async def test_states_that_nobody_declared_are_seen_in_a_sample_of_the_rows(parcels: Connection) -> None:
    await run(
        parcels,
        "alter table parcels drop constraint parcels_stage_check",
        "insert into parcels (service, stage) values ('a', 'on holiday')",
    )
    told = only(ailing(await examine(parcels, PARCELS)), "warning")
    assert "rows are in on holiday, which the declaration does not know (seen among" in told.what


# -- journal, zone, version ------------------------------------------------------------------------------

JOURNAL = Journal("task_event", row="task_id", seq="seq", at="at", prev="prev", next="next", detail="detail")
JOURNALLED = replace(
    TASKS,
    journal=JOURNAL,
    idempotency=Idempotency("idempotency_key", scope=("type",), repeat="return"),
)


async def test_a_missing_journal_is_made(conn: Connection) -> None:
    finding = only(await broken(conn, ledger=JOURNALLED))
    assert finding.what == "there is no table task_event"
    await Store(JOURNALLED).enqueue(conn, Item(kind="a"))
    cursor = await conn.execute("select prev, next from task_event")
    assert await cursor.fetchone() == (None, "pending")


async def test_a_journal_with_columns_that_do_not_fit_is_mended(conn: Connection) -> None:
    await conn.execute(
        "create table task_event"
        " (task_id uuid, at timestamptz, prev text not null, next text, who text not null)"
    )
    await conn.execute("create index on task_event (task_id)")
    found = await broken(conn, ledger=JOURNALLED)
    assert [finding.what.split(" (")[0] for finding in found] == [
        "the column seq",
        "the column at",
        "the column prev",
        "the column detail",
        "the column who is NOT NULL without a default, and no enqueue fills it: give it a default, declare it"
        " among `extras` or the payload, or let it be NULL",
    ]


async def test_a_journal_whose_events_are_not_counted_is_mended(conn: Connection) -> None:
    await conn.execute(
        "create table task_event (task_id uuid, seq bigint, at timestamp, prev text, next text, detail jsonb)"
    )
    uncounted, unsearchable = await broken(conn, ledger=JOURNALLED)
    assert "does not count by itself" in uncounted.what
    assert unsearchable.what == "the journal task_event has no index on task_id"
    await Store(JOURNALLED).enqueue(conn, Item(kind="a"))
    cursor = await conn.execute("select seq from task_event")
    assert await cursor.fetchone() == (1,)


async def test_a_default_zone_that_is_not_utc_is_warned_of_when_times_have_no_zone(
    conn: Connection, database_url: str, connect: Any
) -> None:
    name = Identifier(database_url.split("/")[3].split("?")[0])
    await conn.execute(SQL("alter database {} set timezone = 'Asia/Tokyo'").format(name))
    diagnosis = await examine(await connect(), TASKS)
    told = only(ailing(diagnosis), "warning")
    assert "the database's default zone is Asia/Tokyo" in told.what


def test_an_old_server_is_refused_and_one_without_skip_scan_warned_of() -> None:
    assert [finding.severity for finding in server(140012)] == ["missing"]
    assert [finding.severity for finding in server(170002)] == ["warning"]
    assert list(server(180004)) == []
