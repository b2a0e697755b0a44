"""The rules about versions, events and messages that the database keeps, whoever writes: here its owner.

S-5 to S-7, and the rows about them in the table of bad input.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import (
    CheckViolation,
    ForeignKeyViolation,
    InsufficientPrivilege,
    RaiseException,
    UniqueViolation,
)

from conftest import Eventually
from schedules import plain
from schedules.plain import DAY, MOVE, OTHER, STATES, USER, WAITING, Database, scalar

ROOT = Path(__file__).parents[2]

POINTER: LiteralString = "select user_id, schedule_date, current_version from schedule_ingest.day_schedule"


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def second(database_url: str) -> Iterator[Database]:
    """Another connection, whose transactions are begun and ended by the test."""
    with psycopg.connect(database_url) as connection:
        yield connection


# -- versions and the day pointer ----------------------------------------------------------------------


def test_the_first_version_is_1_the_next_is_current_plus_1_and_a_gap_is_refused_by_the_trigger(
    db: Database,
) -> None:
    """S-5, S-6"""
    for number in (None, 0, -1, 2):
        with pytest.raises(RaiseException, match="the next version of this day is 1, not"):
            plain.version(db, number)
    assert db.execute(POINTER).fetchall() == []
    for number in (1, 2, 3):
        plain.version(db, number)
        assert db.execute(POINTER).fetchall() == [(USER, DAY, number)]
    with pytest.raises(RaiseException, match="the next version of this day is 4, not 5"):
        plain.version(db, 5)
    plain.version(db, 1, user=OTHER)
    plain.version(db, 1, day=DAY.replace(day=3))
    with pytest.raises(RaiseException, match="the next version of this day is 2, not 4"):
        plain.version(db, 4, user=OTHER)


def test_one_session_never_has_two_versions(db: Database) -> None:
    """S-6: and who asks not to mind is told that nothing was inserted, as for a number that is taken."""
    by = plain.version(db, 1)
    with pytest.raises(UniqueViolation, match="schedule_version_session_id_key"):
        plain.version(db, 2, by)
    with pytest.raises(UniqueViolation, match="schedule_version_pkey"):
        plain.version(db, 1)
    quiet = plain.VERSION + " on conflict do nothing returning version"
    assert db.execute(quiet, [USER, DAY, 2, by, "{}"]).fetchall() == []
    assert db.execute(quiet, [USER, DAY, 1, plain.session(db, "processing"), "{}"]).fetchall() == []
    assert db.execute(quiet, [USER, DAY, 2, plain.session(db, "processing"), "{}"]).fetchall() == [(2,)]


def test_a_version_of_another_users_session_is_refused(db: Database) -> None:
    """S-6"""
    with pytest.raises(RaiseException, match="is of another user: a version is of its own user"):
        plain.version(db, 1, plain.session(db, "processing", OTHER))


@pytest.mark.parametrize("state", STATES)
def test_a_version_is_made_by_a_session_that_is_processing_or_done(db: Database, state: str) -> None:
    """S-6"""
    key = plain.session(db, state)
    if state in ("processing", "done"):
        plain.version(db, 1, key)
        return
    with pytest.raises(RaiseException, match=f"is {state}: a version is made by one that is processing or"):
        plain.version(db, 1, key)


def test_a_version_of_no_session_is_refused(db: Database) -> None:
    """S-6"""
    with pytest.raises(RaiseException, match="there is no capture session"):
        plain.version(db, 1, uuid4())


def test_a_session_cannot_fail_while_its_version_is_being_written(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-6: the trigger holds what it has read."""
    key = plain.version(second, 1, plain.session(db, "processing"))
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(db.execute, MOVE, ["failed", key])
        eventually(lambda: second.execute(WAITING).fetchone() is not None)
        second.execute(MOVE, ["done", key])
        second.commit()
        with pytest.raises(RaiseException, match="done is final"):
            failing.result(20)


def test_two_at_once_cannot_both_write_the_next_version(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-5, S-6: without any lock of ours."""
    plain.version(second, 1)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(plain.version, db, 1)
        eventually(lambda: second.execute(WAITING).fetchone() is not None)
        second.commit()
        with pytest.raises(UniqueViolation, match="schedule_version_pkey"):
            other.result(20)
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 1)]


@pytest.mark.parametrize(
    "statement",
    [
        "update schedule_ingest.schedule_version set payload_hash = 'x'",
        "update schedule_ingest.schedule_event set detected_at = now()",
        "delete from schedule_ingest.schedule_version",
        "delete from schedule_ingest.schedule_event",
        "truncate schedule_ingest.schedule_version",
        "truncate schedule_ingest.schedule_event",
        "truncate schedule_ingest.capture_session cascade",
    ],
)
def test_versions_and_events_can_be_neither_updated_nor_deleted(
    db: Database, statement: LiteralString
) -> None:
    """S-6: not even by their owner."""
    plain.everything(db, USER)
    before = plain.all_rows(db)
    with pytest.raises(RaiseException, match=r"is a record, and \w+ is refused"):
        db.execute(statement)
    assert plain.all_rows(db) == before


def test_a_session_with_a_version_or_an_image_cannot_be_deleted(db: Database) -> None:
    """S-3, S-6"""
    plain.version(db, 1)
    plain.image(db, plain.session(db))
    for state in ("processing", "pending"):
        with pytest.raises(ForeignKeyViolation):
            db.execute("delete from schedule_ingest.capture_session where state = %s", [state])


@pytest.mark.parametrize(
    "statement",
    [
        "update schedule_ingest.day_schedule set current_version = 1",
        "update schedule_ingest.day_schedule set user_id = 99",
        "update schedule_ingest.day_schedule set schedule_date = '2030-01-01'",
        "delete from schedule_ingest.day_schedule",
        "truncate schedule_ingest.day_schedule",
    ],
)
def test_the_day_pointer_never_falls(db: Database, statement: LiteralString) -> None:
    """S-5: whoever tries."""
    plain.version(db, 1)
    plain.version(db, 2)
    with pytest.raises(RaiseException, match="day_schedule follows the versions and never goes back"):
        db.execute(statement)
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 2)]


@pytest.mark.parametrize(
    "statement",
    [
        "update schedule_ingest.day_schedule set current_version = 7",
        "insert into schedule_ingest.day_schedule values (8, '2026-03-02', 1)",
        "insert into schedule_ingest.day_schedule values (8, '2026-03-02', 5)",
        "insert into schedule_ingest.day_schedule values (7, '2026-03-02', 3)"
        " on conflict (user_id, schedule_date) do update set current_version = excluded.current_version",
    ],
)
def test_the_day_pointer_goes_nowhere_but_to_the_last_version_so_that_versions_have_no_gap(
    db: Database, statement: LiteralString
) -> None:
    """S-5, S-6: whoever tries; the next version follows the last."""
    plain.version(db, 1)
    plain.version(db, 2)
    with pytest.raises(RaiseException, match="day_schedule follows the versions and never goes back"):
        db.execute(statement)
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 2)]
    plain.version(db, 3)
    plain.version(db, 1, user=OTHER)


def test_a_pointer_that_was_lost_may_be_set_to_the_last_version_and_to_no_other(db: Database) -> None:
    """S-5: as after a restore of half the rows."""
    plain.version(db, 1)
    plain.version(db, 2)
    db.execute("set session_replication_role = replica")
    db.execute("delete from schedule_ingest.day_schedule")
    db.execute("reset session_replication_role")
    put: LiteralString = "insert into schedule_ingest.day_schedule values (%s, %s, %s)"
    with pytest.raises(RaiseException, match="day_schedule follows the versions"):
        db.execute(put, [USER, DAY, 1])
    db.execute(put, [USER, DAY, 2])
    plain.version(db, 3)


def test_the_pointer_goes_to_the_greater_of_old_and_new_beside_a_trigger_of_the_owners(
    db: Database,
) -> None:
    """S-5: the other service may have one that has moved it already; but none moves it further."""
    plain.version(db, 1)
    db.execute("""
        create function schedule_ingest.theirs() returns trigger language plpgsql as $$
        begin
            update schedule_ingest.day_schedule set current_version = new.version + new.version / 3
            where user_id = new.user_id and schedule_date = new.schedule_date;
            return null;
        end $$
    """)
    db.execute(
        "create trigger a_first after insert on schedule_ingest.schedule_version"
        " for each row execute function schedule_ingest.theirs()"
    )
    plain.version(db, 2)  # theirs has moved it already
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 2)]
    with pytest.raises(RaiseException, match="day_schedule follows the versions"):
        plain.version(db, 3)
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 2)]


def test_no_statement_of_holdfast_writes_day_schedule_and_the_worker_role_may_not(db: Database) -> None:
    """S-5: the trigger does, with its owner's rights, also for a worker's insert."""
    writes = re.compile(
        r"\b(insert\s+into|update|delete\s+from|merge\s+into|truncate|copy)\s+(only\s+)?"
        r"(schedule_ingest\.)?\"?day_schedule\b",
        re.IGNORECASE,
    )
    sources = [path for path in (ROOT / "src").rglob("*.py") if "migrations" not in path.parts]
    assert len(sources) > 100
    assert [path.name for path in sources if writes.search(path.read_text())] == []
    assert writes.search("insert into schedule_ingest.day_schedule as known")
    key = plain.session(db, "processing")
    db.execute("set role holdfast_worker")
    plain.version(db, 1, key)
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 1)]
    for statement in (
        "insert into schedule_ingest.day_schedule values (1, '2026-03-02', 1)",
        "update schedule_ingest.day_schedule set current_version = 2",
        "delete from schedule_ingest.day_schedule",
        "truncate schedule_ingest.day_schedule",
        "select from schedule_ingest.day_schedule for update",
    ):
        with pytest.raises(InsufficientPrivilege, match="permission denied for table day_schedule"):
            db.execute(statement)


def test_a_temporary_table_of_the_callers_does_not_stand_in_for_the_pointer(db: Database) -> None:
    """S-5: the search path of the functions is fixed."""
    db.execute("create temporary table day_schedule (like schedule_ingest.day_schedule including all)")
    db.execute("create temporary table capture_session (id uuid, user_id bigint, state text)")
    db.execute("set search_path = pg_temp, schedule_ingest")
    plain.version(db, 1)
    assert db.execute(POINTER).fetchall() == [(USER, DAY, 1)]


# -- words and shapes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("add", "values", "constraint"),
    [
        (plain.version, {"number": 1, "payload": "[]"}, "schedule_version_payload_check"),
        (plain.snapshot, {"payload": "{}"}, "day_snapshot_snapshot_payload_check"),
        (plain.notice, {"event_ids": "{}"}, "schedule_notification_event_ids_check"),
        (plain.notice, {"type": "letter"}, "schedule_notification_notification_type_check"),
        (plain.notice, {"status": "gone"}, "schedule_notification_status_check"),
        (plain.event, {"type": "shift_moved"}, "schedule_event_event_type_check"),
        (plain.notice, {"status": "sent"}, "ck_schedule_notification_sent"),
        (plain.notice, {"sent_at": "now"}, "ck_schedule_notification_sent"),
        (plain.notice, {"status": "failed", "sent_at": "now"}, "ck_schedule_notification_sent"),
    ],
)
def test_a_shape_or_word_that_the_contract_does_not_know_is_a_check_violation(
    db: Database, add: Callable[..., object], values: dict[str, object], constraint: str
) -> None:
    """S-7 and the last rows of the table of bad input."""
    with pytest.raises(CheckViolation, match=constraint) as caught:
        add(db, **values)
    assert caught.value.sqlstate == "23514"


def test_a_version_without_a_hash_is_refused(db: Database) -> None:
    """S-6"""
    with pytest.raises(CheckViolation, match="ck_schedule_version"):
        db.execute(plain.VERSION.replace("'hash'", "''"), [USER, DAY, 1, plain.session(db, "done"), "{}"])


def test_the_dedupe_key_of_events_is_the_contracts(db: Database) -> None:
    """S-7: with no session and no time in it."""
    plain.event(db)
    with pytest.raises(UniqueViolation, match="uq_schedule_event_dedupe"):
        plain.event(db)
    plain.event(db, new="other")
    plain.event(db, type="shift_removed")
    plain.event(db, user=OTHER)
    plain.event(db, day=DAY.replace(day=3))
    assert (
        db.execute(
            plain.EVENT + " on conflict do nothing", [uuid4(), USER, DAY, "shift_added", "new", uuid4()]
        ).rowcount
        == 0
    )


def test_the_sessions_behind_a_day_an_event_and_a_message_need_not_be_there(db: Database) -> None:
    """S-7: the contract names no reference."""
    plain.event(db)
    plain.snapshot(db)
    plain.notice(db)
    assert scalar(db, "select count(*) from schedule_ingest.capture_session") == 0
