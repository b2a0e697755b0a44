"""The rules about sessions and images that the database keeps, whoever writes: here plain SQL by the owner.

S-1 to S-4, and the rows about them in the table of bad input.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import LiteralString
from uuid import uuid4

import psycopg
import pytest
from psycopg.errors import (
    CheckViolation,
    ForeignKeyViolation,
    RaiseException,
    UniqueViolation,
)
from psycopg.sql import SQL, Identifier

from conftest import Eventually
from schedules import plain
from schedules.plain import MOVE, STATES, USER, WAITING, Database, scalar

STATE: LiteralString = "select state::text from schedule_ingest.capture_session where id = %s"
ERROR: LiteralString = "select error from schedule_ingest.capture_session where id = %s"

DELETE: LiteralString = "delete from schedule_ingest.capture_image"

# S-1: with the two edges of our own, and every state to itself, as a heartbeat leaves it.
ALLOWED = {
    ("pending", "processing"),
    ("pending", "failed"),
    ("processing", "done"),
    ("processing", "failed"),
    ("processing", "pending"),
    ("failed", "pending"),
    *((state, state) for state in STATES),
}


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def second(database_url: str) -> Iterator[Database]:
    """Another connection, whose transactions are begun and ended by the test."""
    with psycopg.connect(database_url) as connection:
        yield connection


# -- states --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), list(product(STATES, STATES)))
def test_every_allowed_change_of_state_passes_and_every_other_one_is_refused_by_the_database(
    db: Database, old: str, new: str
) -> None:
    """S-1: done is final; a stale session is claimed from processing to processing."""
    key = plain.session(db, old)
    if (old, new) in ALLOWED:
        db.execute(MOVE, [new, key])
        assert scalar(db, STATE, key) == new
        return
    with pytest.raises(RaiseException, match=f"a capture session cannot go from {old} to {new}: ") as caught:
        db.execute(MOVE, [new, key])
    assert caught.value.sqlstate == "P0001"
    assert scalar(db, STATE, key) == old


def test_the_refusal_says_where_a_session_may_go(db: Database) -> None:
    """S-1"""
    with pytest.raises(RaiseException) as caught:
        db.execute(MOVE, ["done", plain.session(db)])
    assert caught.value.diag.message_primary == (
        "a capture session cannot go from pending to done: from pending it goes to processing or failed"
    )
    with pytest.raises(RaiseException) as caught:
        db.execute(MOVE, ["pending", plain.session(db, "done")])
    assert caught.value.diag.message_primary == (
        "a capture session cannot go from done to pending: done is final"
    )


@pytest.mark.parametrize(("old", "new"), list(product(("pending", "sent", "failed"), repeat=2)))
def test_a_message_that_was_sent_stays_sent_and_one_that_failed_may_only_wait_again(
    db: Database, old: str, new: str
) -> None:
    """S-50, S-51: whoever sends."""
    key = plain.notice(db, status=old, sent_at="now" if old == "sent" else None)
    move: LiteralString = (
        "update schedule_ingest.schedule_notification set status = %s, sent_at = %s"
        " where notification_id = %s"
    )
    values = [new, "now" if new == "sent" else None, key]
    if old in ("pending", new) or (old, new) == ("failed", "pending"):
        db.execute(move, values)
        return
    with pytest.raises(RaiseException, match=f"a message cannot go from {old} to {new}: "):
        db.execute(move, values)


def test_a_bulk_change_with_one_that_is_refused_changes_nothing(db: Database) -> None:
    """S-1"""
    keys = [plain.session(db, state) for state in ("processing", "done")]
    with pytest.raises(RaiseException):
        db.execute("update schedule_ingest.capture_session set state = 'pending'")
    assert [scalar(db, STATE, key) for key in keys] == ["processing", "done"]


def test_an_upsert_is_a_change_of_state_too(db: Database) -> None:
    """S-1"""
    key = plain.session(db, "done")
    upsert = plain.SESSION + " on conflict (id) do update set state = 'pending'"
    with pytest.raises(RaiseException, match="done is final"):
        db.execute(upsert, [key, USER, "pending", None, None])


@pytest.mark.parametrize("state", ["pending", "processing", "done"])
def test_error_text_outside_failed_is_refused(db: Database, state: str) -> None:
    """S-2: in a new session, and in one that is there."""
    with pytest.raises(CheckViolation, match="ck_capture_session_error"):
        plain.session(db, state, error="x: y")
    key = plain.session(db, state)
    with pytest.raises(CheckViolation, match="ck_capture_session_error"):
        db.execute("update schedule_ingest.capture_session set error = 'x: y' where id = %s", [key])


def test_a_session_may_fail_without_text_and_leaving_failed_clears_it(db: Database) -> None:
    """S-2: the rule runs one way."""
    assert scalar(db, ERROR, plain.session(db, "failed")) is None
    key = plain.session(db, "failed", error="worker_lost: gave up")
    db.execute(MOVE, ["failed", key])
    assert scalar(db, ERROR, key) == "worker_lost: gave up"
    db.execute(MOVE, ["pending", key])
    assert scalar(db, ERROR, key) is None


def test_a_new_error_of_a_session_that_leaves_failed_is_refused_and_not_swallowed(db: Database) -> None:
    """S-2"""
    key = plain.session(db, "failed", error="a: b")
    again = "update schedule_ingest.capture_session set state = 'pending', error = 'c: d' where id = %s"
    with pytest.raises(CheckViolation, match="ck_capture_session_error"):
        db.execute(again, [key])


# -- images --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", ["sequence = 9", "r2_key = 'other'", "telegram_message_id = 1", "id = id", "created_at = now()"]
)
def test_images_cannot_be_changed(db: Database, change: LiteralString) -> None:
    """S-3"""
    plain.image(db, plain.session(db))
    with pytest.raises(RaiseException, match="an image is never changed: add another one"):
        db.execute("update schedule_ingest.capture_image set " + change)


def test_a_key_or_sequence_cannot_repeat(db: Database) -> None:
    """S-3: the key in the whole table, the sequence in its session."""
    one, two = plain.session(db), plain.session(db)
    plain.image(db, one, 1, "one")
    with pytest.raises(UniqueViolation, match="capture_image_r2_key_key"):
        plain.image(db, two, 1, "one")
    with pytest.raises(UniqueViolation, match="uq_capture_image_session_sequence"):
        plain.image(db, one, 1, "two")
    plain.image(db, two, 1, "two")


@pytest.mark.parametrize("sequence", [0, -1])
def test_a_sequence_begins_at_1(db: Database, sequence: int) -> None:
    """S-3"""
    with pytest.raises(CheckViolation, match="capture_image_sequence_check"):
        plain.image(db, plain.session(db), sequence)


@pytest.mark.parametrize("state", STATES)
def test_an_image_for_a_finished_session_is_refused(db: Database, state: str) -> None:
    """S-3: it would be ignored silently."""
    key = plain.session(db, state)
    if state in ("pending", "processing"):
        plain.image(db, key)
        return
    advice = "begin another session" if state == "done" else "requeue the session first"
    with pytest.raises(RaiseException, match=f"{key} is {state}, and an image would .* read: {advice}"):
        plain.image(db, key)


@pytest.mark.parametrize("state", STATES)
def test_images_of_a_finished_session_cannot_be_deleted(db: Database, state: str) -> None:
    """S-3: not by their owner either; an image of an open session can be withdrawn."""
    key = plain.session(db)
    plain.image(db, key)
    if state == "done":
        db.execute(MOVE, ["processing", key])
    if state != "pending":
        db.execute(MOVE, [state, key])
    if state in ("pending", "processing"):
        assert db.execute(DELETE).rowcount == 1
        return
    advice = "only schedule_ingest.erase" if state == "done" else "requeue the session first"
    with pytest.raises(RaiseException, match=f"{key} is {state}, and its images .* deleted: {advice}"):
        db.execute(DELETE)
    with pytest.raises(RaiseException, match="capture_image is a record, and truncate is refused"):
        db.execute("truncate schedule_ingest.capture_image")
    if state == "failed":
        db.execute(MOVE, ["pending", key])
        assert db.execute(DELETE).rowcount == 1
        return
    assert scalar(db, "select schedule_ingest.erase(%s)", USER)["capture_image"] == 1


def test_a_login_that_is_not_the_owner_cannot_delete_them_by_the_setting_of_erase(db: Database) -> None:
    """S-3, S-57: and needs no right on sessions to be refused."""
    key = plain.session(db, "processing")
    plain.image(db, key)
    db.execute(MOVE, ["done", key])
    role = Identifier(f"deleter_{uuid4().hex}")
    db.execute(SQL("create role {}").format(role))
    try:
        db.execute(SQL("grant usage on schema schedule_ingest to {}").format(role))
        db.execute(SQL("grant select, delete on schedule_ingest.capture_image to {}").format(role))
        db.execute(SQL("set role {}").format(role))
        db.execute("set holdfast.erasing = '7'")
        with pytest.raises(RaiseException, match="its images cannot be deleted"):
            db.execute(DELETE)
    finally:
        db.execute(SQL("reset role; drop owned by {0}; drop role {0}").format(role))


def test_a_session_that_its_owner_deletes_by_a_cascade_takes_its_images_along(db: Database) -> None:
    """S-3: our own foreign key has no cascade; the owner of the tables may have one."""
    db.execute(
        "alter table schedule_ingest.capture_image drop constraint capture_image_session_id_fkey,"
        " add foreign key (session_id) references schedule_ingest.capture_session on delete cascade"
    )
    key = plain.session(db, "processing")
    plain.image(db, key)
    db.execute(MOVE, ["done", key])
    db.execute("delete from schedule_ingest.capture_session where id = %s", [key])
    assert scalar(db, "select count(*) from schedule_ingest.capture_image") == 0


def test_a_delete_that_comes_while_the_session_is_being_finished_waits_and_is_refused(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-3, S-19: what the finish has read stays."""
    key = plain.session(db, "processing")
    plain.image(db, key)
    second.execute(MOVE, ["done", key])
    with ThreadPoolExecutor(1) as pool, psycopg.connect(db.info.dsn, password=db.info.password) as deleter:
        deleting = pool.submit(deleter.execute, DELETE)
        eventually(lambda: deleting.done() or db.execute(WAITING).fetchone() is not None)
        second.commit()
        with pytest.raises(RaiseException, match="is done, and its images cannot be deleted"):
            deleting.result(20)
    assert scalar(db, "select count(*) from schedule_ingest.capture_image") == 1


def test_an_image_of_no_session_is_refused(db: Database) -> None:
    """S-3"""
    with pytest.raises(ForeignKeyViolation):
        plain.image(db, uuid4())


def test_the_same_message_twice_in_one_session_is_refused_so_that_an_upload_adds_no_second_image(
    db: Database,
) -> None:
    """S-4: another session may have it, and images without a message are no repetition."""
    one, two = plain.session(db), plain.session(db)
    plain.image(db, one, 1, message=5)
    with pytest.raises(UniqueViolation, match="uq_capture_image_message"):
        plain.image(db, one, 2, message=5)
    plain.image(db, two, 1, message=5)
    plain.image(db, one, 2)
    plain.image(db, one, 3)
    again = plain.IMAGE + " on conflict do nothing"
    assert db.execute(again, [uuid4(), one, 4, "again", 5]).rowcount == 0


def test_an_image_that_comes_while_the_session_is_being_finished_waits_and_is_refused(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-3: an image is either seen by the finish or told that it comes too late."""
    key = plain.session(db, "processing")
    second.execute("select from schedule_ingest.capture_session where id = %s for update", [key])
    with ThreadPoolExecutor(1) as pool, psycopg.connect(db.info.dsn, password=db.info.password) as uploader:
        coming = pool.submit(plain.image, uploader, key)
        eventually(lambda: db.execute(WAITING).fetchone() is not None)
        second.execute(MOVE, ["done", key])
        second.commit()
        with pytest.raises(RaiseException, match="is done, and an image would never be read"):
            coming.result(20)
    assert scalar(db, "select count(*) from schedule_ingest.capture_image") == 0


def test_a_finish_waits_for_an_image_in_flight_and_sees_it(
    db: Database, second: Database, eventually: Eventually
) -> None:
    """S-3: by the lock that the finish takes first; a heartbeat does not wait."""
    key = plain.session(db, "processing")
    plain.image(second, key)
    db.execute("update schedule_ingest.capture_session set locked_at = now() where id = %s", [key])
    hold: LiteralString = "select from schedule_ingest.capture_session where id = %s for update"
    seen: LiteralString = "select count(*) from schedule_ingest.capture_image where session_id = %s"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(db.info.dsn, password=db.info.password) as finisher:
        holding = pool.submit(finisher.execute, hold, [key])
        eventually(lambda: db.execute(WAITING).fetchone() is not None)
        second.commit()
        holding.result(20)
        assert scalar(finisher, seen, key) == 1
