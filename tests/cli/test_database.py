"""`holdfast db`: where the database is, and its schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cli.kit import Run
from conftest import make_home, remove_home
from holdfast.db.migrate import head


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for an embedded server of the test's own."""
    home = make_home()
    yield home
    remove_home(home)


def test_the_embedded_server_is_started_told_of_and_stopped(holdfast: Run, home: Path) -> None:
    env = {"HOLDFAST_HOME": str(home)}
    early = holdfast("db", "url", bare=True, env=env)
    assert (early.code, early.out) == (1, "")
    assert "is not running: `holdfast db start` starts it" in early.err
    down = holdfast("db", "status", "--json", bare=True, env=env)
    assert (down.code, down.data["running"]) == (1, False)

    started = holdfast("db", "start", bare=True, env=env)
    assert (started.code, started.err) == (0, "")
    status = holdfast("db", "status", "--json", bare=True, env=env)
    assert status.code == 0
    told = status.data
    assert (told["kind"], told["running"], told["kept"], told["revision"]) == ("embedded", True, True, None)
    url = holdfast("db", "url", bare=True, env=env).out
    assert url.count("\n") == 1
    with psycopg.connect(url.strip()) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    assert holdfast("db", "upgrade", bare=True, env=env).out == f"none → {head()}\n"

    assert holdfast("db", "stop", bare=True, env=env).out == "stopped\n"
    assert holdfast("db", "stop", "--json", bare=True, env=env).data == {"was_running": False}


def test_a_database_that_is_named_is_told_of_without_its_password(holdfast: Run, database_url: str) -> None:
    status = holdfast("db", "status")
    assert (status.code, status.err) == (0, "")
    assert psycopg.conninfo.conninfo_to_dict(database_url)["password"] not in status.out
    assert holdfast("db", "url").out == database_url + "\n"
    assert holdfast("db", "url", "--json").data == {"url": database_url}


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_database_that_is_named_is_not_ours_to_start_or_stop(holdfast: Run, verb: str) -> None:
    done = holdfast("db", verb, "--json")
    assert (done.code, done.out) == (2, "")
    assert "HOLDFAST_DATABASE_URL: is set" in done.err


def test_the_schema_goes_up_and_down_by_command(holdfast: Run, empty_database_url: str) -> None:
    """C-4: elsewhere than on local and test, this is the only way."""
    env = {"HOLDFAST_DATABASE_URL": empty_database_url, "HOLDFAST_PROFILE": "prod"}
    assert holdfast("db", "current", bare=True, env=env).out == "none\n"
    missing = holdfast("db", "check", bare=True, env=env)
    assert missing.code == 1
    assert "run `holdfast db upgrade`" in missing.out
    up = holdfast("db", "upgrade", "--json", bare=True, env=env)
    assert (up.data, up.err) == ({"before": None, "revision": head()}, "")
    assert holdfast("db", "upgrade", bare=True, env=env).out == f"nothing to do: the schema is at {head()}\n"
    assert holdfast("db", "current", "--json", bare=True, env=env).data == {
        "revision": head(),
        "head": head(),
    }
    assert holdfast("db", "check", "--json", bare=True, env=env).data == {"problems": []}
    unsure = holdfast("db", "downgrade", "base", bare=True, env=env)
    assert (unsure.code, "a downgrade loses data" in unsure.err) == (2, True)
    assert holdfast("db", "downgrade", "base", "--yes", bare=True, env=env).out == f"{head()} → none\n"


def test_db_sql_prints_what_psql_can_run(holdfast: Run, empty_database_url: str) -> None:
    script = holdfast("db", "sql", bare=True).out
    with psycopg.connect(empty_database_url, autocommit=True) as conn:
        conn.execute(script.encode())
        assert conn.execute("select count(*) from tasks").fetchone() == (0,)
    assert holdfast("db", "sql", "--json", bare=True).data["sql"].strip() == script.strip()
    wrong = holdfast("db", "sql", "9999", bare=True)
    assert (wrong.code, wrong.out) == (2, "")
    assert "there is no revision 9999" in wrong.err


def test_every_migration_is_told_as_it_begins(holdfast: Run, empty_database_url: str) -> None:
    env = {"HOLDFAST_DATABASE_URL": empty_database_url}
    done = holdfast("db", "upgrade", "0002", bare=True, env=env)
    assert (done.code, done.out) == (0, "none → 0002\n")
    first, second = done.err.splitlines()
    assert first.startswith("upgrade → 0001, ")
    assert second.startswith("upgrade 0001 → 0002, ")
    done = holdfast("db", "downgrade", "0001", "--yes", bare=True, env=env)
    assert (done.code, len(done.err.splitlines())) == (0, 1)
    assert done.err.startswith("downgrade 0002 → 0001")
    assert holdfast("db", "upgrade", "--json", bare=True, env=env).err == ""
