"""The live schema is the contract's and the listed additions, and nothing else.

S-5, S-7, and sections 2.1 and 2.2 of the requirements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from sqlalchemy import Table

from holdfast.apps.schedules import tables
from holdfast.apps.schedules.ledger import CAPTURE_SESSIONS, NOTIFICATIONS
from holdfast.db import migrate, pool
from holdfast.engine.doctor import examine
from holdfast.engine.ledger import Ledger
from holdfast.platform import metadata
from schedules.plain import TABLES, Database, scalar

MOMENT, NOW, NEW_ID = "timestamp with time zone", "now()", "gen_random_uuid()"

COLUMNS: LiteralString = """
select attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
where attrelid = ('schedule_ingest.' || %s)::regclass and attnum > 0
order by attnum
"""

INDEXES: LiteralString = """
select relname, pg_get_indexdef(indexrelid) from pg_index join pg_class on oid = indexrelid
where indrelid = ('schedule_ingest.' || %s)::regclass
and not exists (select from pg_constraint where conindid = indexrelid)
"""

# PostgreSQL 18 lists NOT NULL here, too; COLUMNS has it.
CONSTRAINTS: LiteralString = """
select conname, pg_get_constraintdef(oid), convalidated from pg_constraint
where conrelid = ('schedule_ingest.' || %s)::regclass and contype <> 'n'
"""

TRIGGERS: LiteralString = """
select tgname, pg_get_triggerdef(oid) from pg_trigger
where tgrelid = ('schedule_ingest.' || %s)::regclass and not tgisinternal
"""

FUNCTIONS: LiteralString = """
select oid::regprocedure::text, prosecdef, proconfig,
    has_function_privilege('holdfast_worker', oid, 'execute')
from pg_proc where pronamespace = 'schedule_ingest'::regnamespace
"""

PRIVILEGES: LiteralString = """
select privilege_type from information_schema.table_privileges
where grantee = %s and table_schema = 'schedule_ingest' and table_name = %s order by 1
"""

UPDATES: LiteralString = """
select column_name::text from information_schema.column_privileges
where grantee = 'holdfast_worker' and table_schema = 'schedule_ingest' and table_name = %s
and privilege_type = 'UPDATE'
"""


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def columns(db: Database, table: str) -> list[tuple[Any, ...]]:
    return db.execute(COLUMNS, [table]).fetchall()


def plain(text: str) -> str:
    """Without the schema's name and the casts that PostgreSQL writes."""
    text = re.sub(r"::(text|schedule_ingest\.capture_session_state)(\[\])?", "", text)
    return re.sub(r"\s+", " ", text.replace("schedule_ingest.", ""))


def constraints(db: Database, table: str) -> dict[str, str]:
    found = db.execute(CONSTRAINTS, [table]).fetchall()
    assert all(valid for *_, valid in found), table
    return {name: plain(text) for name, text, _ in found}


def indexes(db: Database, table: str) -> dict[str, str]:
    """Each without its own name and its table's."""
    return {
        name: re.sub(rf"CREATE (UNIQUE )?INDEX {name} ON {table} USING btree ", r"\1", plain(text))
        for name, text in db.execute(INDEXES, [table]).fetchall()
    }


# -- columns, constraints, indexes ---------------------------------------------------------------------


def test_sessions_and_images_have_the_columns_of_the_contract_and_defaults_of_ours(db: Database) -> None:
    """S-1, S-3"""
    assert columns(db, "capture_session") == [
        ("id", "uuid", True, NEW_ID),
        ("user_id", "bigint", True, None),
        (
            *("state", "schedule_ingest.capture_session_state", True),
            "'pending'::schedule_ingest.capture_session_state",
        ),
        ("created_at", MOMENT, True, NOW),
        ("error", "text", False, None),
        ("locked_at", MOMENT, False, None),
        ("locked_by", "text", False, None),
    ]
    states = scalar(db, "select enum_range(null::schedule_ingest.capture_session_state)::text")
    assert states == "{pending,processing,done,failed}"
    assert columns(db, "capture_image") == [
        ("id", "uuid", True, NEW_ID),
        ("session_id", "uuid", True, None),
        ("sequence", "integer", True, None),
        ("r2_key", "text", True, None),
        ("telegram_message_id", "bigint", False, None),
        ("created_at", MOMENT, True, NOW),
    ]


def test_days_versions_and_events_have_the_columns_of_the_contract(db: Database) -> None:
    """S-5, S-6, S-7"""
    day = [("user_id", "bigint", True, None), ("schedule_date", "date", True, None)]
    assert columns(db, "day_schedule") == [*day, ("current_version", "integer", True, None)]
    assert columns(db, "schedule_version") == [
        *day,
        ("version", "integer", True, None),
        ("session_id", "uuid", True, None),
        ("payload", "jsonb", True, None),
        ("payload_hash", "text", True, None),
        ("created_at", MOMENT, True, NOW),
    ]
    assert columns(db, "day_snapshot") == [
        *day,
        ("snapshot_payload", "jsonb", True, None),
        ("source_session_id", "uuid", True, None),
        ("updated_at", MOMENT, True, None),
    ]
    assert columns(db, "schedule_event") == [
        ("event_id", "uuid", True, None),
        *day,
        ("event_type", "text", True, None),
        ("location_fingerprint", "text", True, None),
        ("customer_fingerprint", "text", True, None),
        ("old_value_hash", "text", True, None),
        ("new_value_hash", "text", True, None),
        ("old_value", "jsonb", False, None),
        ("new_value", "jsonb", False, None),
        ("detected_at", MOMENT, True, None),
        ("source_session_id", "uuid", True, None),
    ]


def test_messages_have_the_columns_of_the_contract_and_the_two_journals_are_ours(db: Database) -> None:
    """S-8, S-50, S-51"""
    assert columns(db, "schedule_notification") == [
        ("notification_id", "text", True, None),
        ("user_id", "bigint", True, None),
        ("schedule_date", "date", True, None),
        ("source_session_id", "uuid", True, None),
        ("status", "text", True, "'pending'::text"),
        ("notification_type", "text", True, None),
        ("message", "text", True, None),
        ("event_ids", "jsonb", True, None),
        ("created_at", MOMENT, True, NOW),
        ("sent_at", MOMENT, False, None),
    ]
    assert columns(db, "capture_attempt") == [
        ("session_id", "uuid", True, None),
        ("attempt", "integer", True, None),
        ("worker", "text", True, None),
        ("claimed_at", MOMENT, True, None),
        ("ended_at", MOMENT, False, None),
        ("outcome", "text", False, None),
    ]
    assert columns(db, "notification_attempt") == [
        ("notification_id", "text", True, None),
        ("attempt", "integer", True, None),
        ("tried_at", MOMENT, True, None),
        ("error", "text", False, None),
        ("next_at", MOMENT, False, None),
    ]


def test_the_constraints_are_the_contracts_and_two_of_ours(db: Database) -> None:
    """S-2, S-3, S-6, S-7: `source_session_id` refers to nothing."""
    of_session = "FOREIGN KEY (session_id) REFERENCES capture_session(id)"
    types = "shift_added shift_removed shift_time_changed shift_relocated shift_retitled shift_reclassified"
    dedupe = "user_id, schedule_date, location_fingerprint, event_type, old_value_hash, new_value_hash"

    def among(column: str, words: str) -> str:
        listed = ", ".join(f"'{word}'" for word in words.split())
        return f"CHECK (({column} = ANY (ARRAY[{listed}])))"

    assert {table: constraints(db, table) for table in TABLES} == {
        "capture_session": {
            "capture_session_pkey": "PRIMARY KEY (id)",
            "ck_capture_session_error": "CHECK (((error IS NULL) OR (state = 'failed')))",
        },
        "capture_image": {
            "capture_image_pkey": "PRIMARY KEY (id)",
            "capture_image_session_id_fkey": of_session,
            "capture_image_r2_key_key": "UNIQUE (r2_key)",
            "uq_capture_image_session_sequence": "UNIQUE (session_id, sequence)",
            "capture_image_sequence_check": "CHECK ((sequence > 0))",
        },
        "day_schedule": {
            "day_schedule_pkey": "PRIMARY KEY (user_id, schedule_date)",
            "day_schedule_current_version_check": "CHECK ((current_version > 0))",
        },
        "schedule_version": {
            "schedule_version_pkey": "PRIMARY KEY (user_id, schedule_date, version)",
            "schedule_version_session_id_key": "UNIQUE (session_id)",
            "schedule_version_session_id_fkey": of_session,
            "schedule_version_payload_check": "CHECK ((jsonb_typeof(payload) = 'object'))",
            "ck_schedule_version": "CHECK (((version > 0) AND (payload_hash <> '')))",
        },
        "day_snapshot": {
            "day_snapshot_pkey": "PRIMARY KEY (user_id, schedule_date)",
            "day_snapshot_snapshot_payload_check": "CHECK ((jsonb_typeof(snapshot_payload) = 'array'))",
        },
        "schedule_event": {
            "schedule_event_pkey": "PRIMARY KEY (event_id)",
            "uq_schedule_event_dedupe": f"UNIQUE ({dedupe})",
            "schedule_event_event_type_check": among("event_type", types),
        },
        "schedule_notification": {
            "schedule_notification_pkey": "PRIMARY KEY (notification_id)",
            "schedule_notification_status_check": among("status", "pending sent failed"),
            "schedule_notification_notification_type_check": among("notification_type", "event summary"),
            "schedule_notification_event_ids_check": "CHECK ((jsonb_typeof(event_ids) = 'array'))",
            "ck_schedule_notification_sent": "CHECK (((status = 'sent') = (sent_at IS NOT NULL)))",
        },
        "capture_attempt": {
            "capture_attempt_pkey": "PRIMARY KEY (session_id, attempt)",
            "capture_attempt_session_id_fkey": of_session + " ON DELETE CASCADE",
            "capture_attempt_attempt_check": "CHECK ((attempt > 0))",
        },
        "notification_attempt": {
            "notification_attempt_pkey": "PRIMARY KEY (notification_id, attempt)",
            "notification_attempt_notification_id_fkey": "FOREIGN KEY (notification_id)"
            " REFERENCES schedule_notification(notification_id) ON DELETE CASCADE",
            "notification_attempt_attempt_check": "CHECK ((attempt > 0))",
        },
        "day_origin": {
            "day_origin_pkey": "PRIMARY KEY (user_id, schedule_date)",
            "day_origin_day_fkey": "FOREIGN KEY (user_id, schedule_date)"
            " REFERENCES day_snapshot(user_id, schedule_date) ON DELETE CASCADE",
            "day_origin_shifts_check": "CHECK ((jsonb_typeof(shifts) = 'array'))",
        },
    }


def test_the_indexes_are_those_of_claims_lists_and_records(db: Database) -> None:
    """S-4, S-8, S-10, S-50: by name and by definition."""
    pending, processing = "WHERE (state = 'pending')", "WHERE (state = 'processing')"
    unsent = "WHERE (status = 'pending')"
    assert {table: indexes(db, table) for table in TABLES} == {
        "capture_session": {
            "ix_capture_session_pending": f"(created_at, id) {pending}",
            "ix_capture_session_stale": f"(locked_at) {processing}",
            "ix_capture_session_held": f"(created_at, id) {processing}",
            "ix_capture_session_worker": f"(locked_by) {processing}",
            "ix_capture_session_user": "(user_id, created_at, id)"
            " WHERE (state = ANY (ARRAY['pending', 'processing']))",
            "ix_capture_session_listed": "(created_at, id)",
            "ix_capture_session_of_user": "(user_id, created_at, id)",
            "ix_capture_session_failed": "(created_at, id) WHERE (state = 'failed')",
        },
        "capture_image": {
            "ix_capture_image_session_created": "(session_id, created_at DESC)",
            "uq_capture_image_message": "UNIQUE (session_id, telegram_message_id)"
            " WHERE (telegram_message_id IS NOT NULL)",
        },
        "day_schedule": {"ix_day_schedule_listed": "(schedule_date, user_id)"},
        "schedule_version": {"ix_schedule_version_day": "(user_id, schedule_date, created_at DESC)"},
        "day_snapshot": {},
        "schedule_event": {
            "ix_schedule_event_day": "(user_id, schedule_date, detected_at DESC)",
            "ix_schedule_event_session": "(source_session_id)",
        },
        "schedule_notification": {
            "ix_schedule_notification_pending": f"(created_at, notification_id) {unsent}",
            "ix_schedule_notification_user": f"(user_id, created_at, notification_id) {unsent}",
            "ix_schedule_notification_day": "(user_id, schedule_date, created_at DESC)",
            "ix_schedule_notification_session": "(source_session_id)",
            "ix_schedule_notification_listed": "(created_at, notification_id)",
            "ix_schedule_notification_of_user": "(user_id, created_at, notification_id)",
            "ix_schedule_notification_failed": "(created_at, notification_id) WHERE (status = 'failed')",
        },
        "capture_attempt": {
            "ix_capture_attempt_worker": "(worker, claimed_at)",
            "ix_capture_attempt_lost": "(claimed_at) WHERE (outcome = 'lost')",
        },
        "notification_attempt": {},
        "day_origin": {},
    }


def test_migrations_and_metadata_agree_also_about_the_schema_that_is_not_holdfasts_own(
    db: Database, database_url: str
) -> None:
    """S-7: and a difference there is told."""
    known = metadata()
    described = {name for name in known.tables if name.startswith("schedule_ingest.")}
    assert described == {f"schedule_ingest.{table}" for table in TABLES}
    described = {table.name for table in vars(tables).values() if isinstance(table, Table)}
    assert described == {*TABLES}
    assert migrate.check(database_url, known) == []
    db.execute("comment on table schedule_ingest.day_schedule is 'theirs now'")
    db.execute("create table schedule_ingest.theirs (id int)")
    assert migrate.check(database_url, known) == []
    db.execute("alter table schedule_ingest.capture_session add more int")
    db.execute("drop index schedule_ingest.ix_schedule_event_day")
    db.execute("alter table schedule_ingest.day_snapshot alter updated_at set default now()")
    assert sorted(migrate.check(database_url, known)) == [
        "ix_schedule_event_day on schedule_event is missing or different",
        "the column capture_session.more is not one of Holdfast's",
        "the column day_snapshot.updated_at has another default",
    ]


@pytest.mark.parametrize("ledger", [CAPTURE_SESSIONS, NOTIFICATIONS], ids=lambda one: one.name)
async def test_the_doctor_misses_nothing(conn: pool.Connection, ledger: Ledger) -> None:
    """S-8, S-50: every search of the two ledgers has its index."""
    found = await examine(conn, ledger)
    assert [one for one in found.findings if one.severity == "missing"] == []
    assert [lane for lane in found.lanes if not lane.served] == []


# -- triggers, functions and grants --------------------------------------------------------------------


def kept(function: str) -> dict[str, str]:
    """The two triggers that keep rows from being taken away."""
    return {
        function: f"BEFORE DELETE OR UPDATE FOR EACH ROW {function}()",
        f"{function}_all": f"BEFORE TRUNCATE FOR EACH STATEMENT {function}()",
    }


def test_the_triggers_are_those_of_the_rules_and_no_others(db: Database) -> None:
    """S-1, S-2, S-3, S-5, S-6"""
    guard, order = "holdfast_session_guard", "holdfast_version_guard"
    returns, back = "holdfast_session_returns", "(old.state = 'failed') AND (new.state = 'pending')"
    image, points = "holdfast_image_guard", "holdfast_version_points"
    pointer, notice = "holdfast_pointer_guard", "holdfast_notice_guard"
    keep, setting = "holdfast_image_keep", "NULLIF(current_setting('holdfast.erasing', true), '')"
    erasing = f"holdfast_erasing(({setting})::bigint)"
    wanted = {
        "capture_session": {
            guard: f"BEFORE UPDATE FOR EACH ROW WHEN ((old.state IS DISTINCT FROM new.state)) {guard}()",
            returns: f"AFTER UPDATE FOR EACH ROW WHEN (({back})) {returns}()",
        },
        "schedule_notification": {
            notice: f"BEFORE UPDATE FOR EACH ROW WHEN ((old.status IS DISTINCT FROM new.status)) {notice}()"
        },
        "capture_image": {
            image: f"BEFORE INSERT OR UPDATE FOR EACH ROW {image}()",
            keep: f"BEFORE DELETE FOR EACH ROW WHEN (({erasing} IS NOT TRUE)) {keep}()",
            f"{keep}_all": f"BEFORE TRUNCATE FOR EACH STATEMENT {keep}()",
        },
        "schedule_version": {
            order: f"BEFORE INSERT FOR EACH ROW {order}()",
            points: f"AFTER INSERT FOR EACH ROW {points}()",
            **kept("holdfast_keep"),
        },
        "schedule_event": kept("holdfast_keep"),
        "day_schedule": {
            **kept(pointer),
            pointer: f"BEFORE INSERT OR DELETE OR UPDATE FOR EACH ROW {pointer}()",
        },
    }
    for table in TABLES:
        found = {
            name: re.sub(rf"CREATE TRIGGER {name} | ON {table}\b|EXECUTE FUNCTION ", "", plain(text))
            for name, text in db.execute(TRIGGERS, [table]).fetchall()
        }
        assert found == wanted.get(table, {}), table


def test_the_functions_have_a_fixed_search_path_and_those_with_their_owners_rights_are_not_everybodys(
    db: Database,
) -> None:
    """S-5, S-57"""
    found = db.execute(FUNCTIONS).fetchall()
    assert {config and tuple(config) for *_, config, _ in found} == {("search_path=pg_catalog, pg_temp",)}
    owners = {name.removeprefix("schedule_ingest.") for name, definer, *_ in found if definer}
    assert owners == {
        "erase(bigint)",
        "evict(timestamp with time zone,integer)",
        "holdfast_image_guard()",
        "holdfast_image_keep()",
        "holdfast_session_returns()",
        "holdfast_version_guard()",
        "holdfast_version_points()",
    }
    assert [name for name, definer, _, granted in found if definer and granted] == []


def test_no_row_security_hides_rows_from_the_service_that_shares_the_tables(db: Database) -> None:
    """S-50: both must be able to run."""
    secured = "select relname from pg_class where relnamespace = 'schedule_ingest'::regnamespace"
    assert db.execute(secured + " and relrowsecurity").fetchall() == []


def test_a_worker_may_do_its_work_and_no_more(db: Database) -> None:
    """S-5, S-6: it reads everything, deletes nothing, and never says whose a row is."""
    writes = "INSERT SELECT"
    wanted = dict.fromkeys(TABLES, writes) | dict.fromkeys(
        ("capture_session", "capture_image", "day_schedule", "day_origin"), "SELECT"
    )
    for table in TABLES:
        found = db.execute(PRIVILEGES, ["holdfast_worker", table]).fetchall()
        assert " ".join(word for (word,) in found) == wanted[table], table
        assert db.execute(PRIVILEGES, ["holdfast_tenant", table]).fetchall() == []
        assert db.execute(PRIVILEGES, ["PUBLIC", table]).fetchall() == []
    changed = {table: {column for (column,) in db.execute(UPDATES, [table])} for table in TABLES}
    assert changed == {table: set[str]() for table in TABLES} | {
        "capture_session": {"state", "error", "locked_at", "locked_by"},
        "day_snapshot": {"snapshot_payload", "source_session_id", "updated_at"},
        "schedule_notification": {"status", "sent_at"},
        "capture_attempt": {"ended_at", "outcome"},
        "notification_attempt": {"error", "next_at"},
    }
    usage: LiteralString = "select has_schema_privilege(%s, 'schedule_ingest', 'usage')"
    assert scalar(db, usage, "holdfast_worker")
    assert not scalar(db, usage, "holdfast_tenant")
