"""One user's rows are taken away, all of them and in one transaction: by `schedule_ingest.erase` alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException, SerializationFailure
from psycopg.sql import SQL, Identifier

from conftest import Eventually
from holdfast.apps.schedules.canonical import lock_key
from schedules import plain
from schedules.plain import DAY, MOVE, OTHER, TABLES, USER, WAITING, Database, scalar

ERASE: LiteralString = "select schedule_ingest.erase(%s)"
COUNTED = tuple(table for table in TABLES if table != "day_origin")  # which goes with its day
NOTHING = dict.fromkeys(COUNTED, 0)


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def second(database_url: str) -> Iterator[Database]:
    """Another connection, whose transactions are begun and ended by the test."""
    with psycopg.connect(database_url) as connection:
        yield connection


def test_erase_leaves_no_row_of_the_user_and_touches_no_other(db: Database) -> None:
    """S-57: and it tells how many went, by table."""
    plain.everything(db, OTHER)
    kept = plain.all_rows(db)
    plain.everything(db, USER)
    plain.everything(db, USER, date(2026, 3, 3))
    plain.session(db, user=USER)
    done = plain.session(db, "processing")
    plain.version(db, 2, done)
    db.execute(MOVE, ["done", done])
    wanted = dict.fromkeys(COUNTED, 2) | {"capture_session": 4, "schedule_version": 3}
    assert scalar(db, ERASE, USER) == wanted
    assert plain.all_rows(db) == kept
    assert scalar(db, ERASE, USER) == NOTHING


def test_a_user_who_was_erased_begins_again_with_version_1(db: Database) -> None:
    """S-57"""
    plain.everything(db, USER)
    db.execute(ERASE, [USER])
    plain.everything(db, USER)


def test_an_erase_that_is_taken_back_has_erased_nothing(db: Database) -> None:
    """S-57: it is one transaction, its caller's."""
    plain.everything(db, USER)
    before = plain.all_rows(db)
    with db.transaction(force_rollback=True):
        assert scalar(db, ERASE, USER)["schedule_version"] == 1
    assert plain.all_rows(db) == before


def test_after_an_erase_the_rest_of_its_transaction_may_delete_nothing(second: Database) -> None:
    """S-6, S-57: the permission ends with the function, also for the same user's rows."""
    plain.everything(second, USER)
    second.execute(ERASE, [USER])
    plain.event(second)
    with pytest.raises(RaiseException, match="schedule_event is a record"):
        second.execute("delete from schedule_ingest.schedule_event")


def test_a_role_that_may_delete_cannot_forge_an_erase(db: Database) -> None:
    """S-6, S-57: the setting that names the user counts only for the owner of the function."""
    plain.everything(db, USER)
    role = Identifier(f"cleaner_{uuid4().hex}")
    db.execute(SQL("create role {}").format(role))
    try:
        db.execute(SQL("grant usage on schema schedule_ingest to {}").format(role))
        tables: LiteralString = "grant select, delete on all tables in schema schedule_ingest to {}"
        db.execute(SQL(tables).format(role))
        db.execute(SQL("set role {}").format(role))
        db.execute("set holdfast.erasing = '7'")
        for table in ("schedule_version", "schedule_event"):
            with pytest.raises(RaiseException, match=f"{table} is a record, and delete is refused"):
                db.execute(SQL("delete from schedule_ingest.{}").format(Identifier(table)))
        with pytest.raises(RaiseException, match="never goes back"):
            db.execute("delete from schedule_ingest.day_schedule")
        with pytest.raises(InsufficientPrivilege, match="permission denied for function erase"):
            db.execute(ERASE, [USER])
        db.execute("reset role")
    finally:
        db.execute(SQL("reset role; drop owned by {0}; drop role {0}").format(role))


def test_the_owner_must_name_the_user_whose_rows_go(db: Database) -> None:
    """S-6: what `erase` itself does under its setting takes one user's rows and no other's."""
    plain.everything(db, USER)
    plain.everything(db, OTHER)
    db.execute("set holdfast.erasing = '7'")
    with pytest.raises(RaiseException, match="schedule_event is a record"):
        db.execute("delete from schedule_ingest.schedule_event")
    with pytest.raises(RaiseException, match="schedule_event is a record"):
        db.execute("update schedule_ingest.schedule_event set detected_at = now() where user_id = 7")
    with pytest.raises(RaiseException, match="schedule_event is a record"):
        db.execute("truncate schedule_ingest.schedule_event")


def test_a_worker_may_not_erase(db: Database) -> None:
    """S-57"""
    db.execute("set role holdfast_worker")
    with pytest.raises(InsufficientPrivilege, match="permission denied for function erase"):
        db.execute(ERASE, [USER])


def test_nobody_is_no_user(db: Database) -> None:
    """S-57"""
    with pytest.raises(RaiseException, match="erase needs a user"):
        db.execute(ERASE, [None])


@pytest.mark.parametrize(
    "level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]
)
def test_an_erase_that_cannot_see_what_has_just_come_is_refused(
    second: Database, level: psycopg.IsolationLevel
) -> None:
    """S-57"""
    second.isolation_level = level
    with pytest.raises(RaiseException, match="use READ COMMITTED"):
        second.execute(ERASE, [USER])


# -- beside others at work -----------------------------------------------------------------------------


def test_erase_waits_for_the_day_that_is_being_written_and_takes_that_too(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-57: by the lock that serialises the writers of a day, which is taken before the session's."""
    plain.everything(db, USER)
    key = plain.session(db, "processing")
    second.execute("select pg_advisory_xact_lock(%s)", [lock_key(USER, DAY)])
    with ThreadPoolExecutor(1) as pool:
        erasing = pool.submit(scalar, db, ERASE, USER)
        eventually(lambda: second.execute(WAITING).fetchone() is not None)
        second.execute("select from schedule_ingest.capture_session where id = %s for update", [key])
        plain.version(second, 2, key)
        second.execute(MOVE, ["done", key])
        second.commit()
        assert erasing.result(20)["schedule_version"] == 2
    assert all(rows == [] for rows in plain.all_rows(db).values())


def test_a_day_that_comes_in_while_erase_waits_makes_it_begin_again(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-57: its writers were not held, so nothing is erased and the caller tries again."""
    plain.everything(db, USER)
    key = plain.session(db, "processing")
    before = plain.all_rows(db)
    second.execute("select from schedule_ingest.capture_session where id = %s for update", [key])
    with ThreadPoolExecutor(1) as pool:
        erasing = pool.submit(scalar, db, ERASE, USER)
        eventually(lambda: second.execute(WAITING).fetchone() is not None)
        plain.version(second, 1, key, day=date(2026, 3, 4))
        second.commit()
        with pytest.raises(SerializationFailure, match="a day of user 7 has come in meanwhile"):
            erasing.result(20)
    assert plain.all_rows(db)["schedule_event"] == before["schedule_event"]
    assert scalar(db, ERASE, USER)["schedule_version"] == 2


def test_a_session_that_comes_in_while_erase_waits_makes_it_begin_again(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-57: here while it waits for a message that is being sent."""
    plain.everything(db, USER)
    told = plain.notice(second)
    second.commit()
    second.execute(
        "select from schedule_ingest.schedule_notification where notification_id = %s for update", [told]
    )
    with ThreadPoolExecutor(1) as pool:
        erasing = pool.submit(scalar, db, ERASE, USER)
        eventually(lambda: second.execute(WAITING).fetchone() is not None)
        plain.session(second)
        second.commit()
        with pytest.raises(SerializationFailure, match="a session of user 7 has come in meanwhile"):
            erasing.result(20)
    assert scalar(db, "select count(*) from schedule_ingest.schedule_version") == 1
    assert scalar(db, ERASE, USER)["capture_session"] == 2


def test_an_image_that_comes_while_its_session_is_erased_is_refused(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-57: and leaves nothing behind."""
    key = plain.session(db)
    second.execute(ERASE, [USER])
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(plain.image, db, key)
        eventually(lambda: second.execute(WAITING).fetchone() is not None)
        second.commit()
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            coming.result(20)
    assert all(rows == [] for rows in plain.all_rows(db).values())


def test_other_users_do_not_wait_for_an_erase(db: Database, second: Database) -> None:
    """S-57"""
    plain.everything(db, USER)
    second.execute(ERASE, [USER])
    db.execute("set lock_timeout = '5s'")
    key = plain.everything(db, OTHER)
    db.execute(MOVE, ["done", key])
