"""Whatever goes wrong is one sentence on stderr with its exit code, and nothing is written."""

from __future__ import annotations

import json
from uuid import uuid4

import psycopg
import pytest

from cli.kit import Query, Run, Start
from holdfast.cli import output
from holdfast.cli.program import main

MAIL = ("enqueue", "tasks", "mail")
SOMEBODY = str(uuid4())
WRONG_INPUT: dict[str, tuple[tuple[str, ...], str]] = {
    "no kind": (("enqueue", "tasks"), "missing argument 'KIND'"),
    "an empty kind": (("enqueue", "tasks", ""), "KIND: must not be empty"),
    "a blank kind": (("enqueue", "tasks", "  "), "KIND: must not be empty"),
    "an empty key": ((*MAIL, "--key", ""), "--key: must not be empty"),
    "a negative limit": ((*MAIL, "--limit", "-1"), "--limit: must be 0 or more"),
    "a limit that overflows": ((*MAIL, "--limit", "2147483648"), "--limit: must lie between"),
    "a priority that overflows": ((*MAIL, "--priority", "-2147483649"), "--priority: must lie between"),
    "a priority that is none": ((*MAIL, "--priority", "high"), "--priority"),
    "a payload that is not JSON": ((*MAIL, "{'a': 1}"), "payload: is not JSON"),
    "a payload with NaN": ((*MAIL, "[NaN]"), "payload: is not JSON: it has NaN"),
    "a payload with Infinity": ((*MAIL, "-", "--json"), "payload: is not JSON: it has -Infinity"),
    "a payload with U+0000": ((*MAIL, '"a\\u0000b"'), "payload: must not contain U+0000"),
    "a payload that does not fit": (
        ("enqueue", "tasks", "double", '"x"', "--app", "shop:app"),
        "payload: Expected",
    ),
    "delay and run_at": ((*MAIL, "--delay", "1", "--run-at", "2030-01-01T00:00:00Z"), "not both"),
    "a negative delay": ((*MAIL, "--delay", "-5"), "--delay: must be 0 or more seconds"),
    "a delay that does not parse": ((*MAIL, "--delay", "soon"), "--delay: must be a duration"),
    "a time without a zone": ((*MAIL, "--run-at", "2030-01-01T00:00:00"), "--run-at: must have a time zone"),
    "a time that is none": ((*MAIL, "--run-at", "tomorrow"), "--run-at: must be a time like"),
    "a queue where there is none": ((*MAIL, "--queue", "q"), "--queue: tasks has no queues"),
    "a column that is unknown": ((*MAIL, "--column", "colour=red"), "colour: is not a column"),
    "a ledger that is unknown": (
        ("enqueue", "jobs", "mail"),
        "there is no ledger 'jobs': ledgers are job, tasks",
    ),
    "a state that is unknown": (
        ("cancel", "tasks", "--state", "lost", "--yes"),
        "--state: tasks has no state 'lost'",
    ),
    "an id that is no UUID": (("show", "tasks", "17"), "'17' is not a UUID"),
    "a cursor that is none": (("list", "tasks", "--cursor", "x"), "--cursor: is not one"),
    "a payload and a file": ((*MAIL, "1", "--from", "-"), "--from: has the payloads"),
    "a line that is not JSON": ((*MAIL, "--from", "-"), "line 1: is not JSON: it has -Infinity"),
    "a timeout that is none": (("watch", "tasks", SOMEBODY, "--timeout", "soon"), "--timeout: must be a dur"),
    "looks without a pause": (("top", "--every", "0"), "--every: must be at least 0.1 seconds, not '0'"),
    "a port that is none": (("serve", "--port", "70000"), "--port: must lie between 0 and 65535"),
    "a scope that is none": (
        ("token", "create", "ana", "--scope", "all"),
        "--scope: must be one of read, act",
    ),
    "a token without a name": (("token", "create", " "), "name: must be 1 to 100 letters"),
    "a token that has expired": (
        ("token", "create", "a", "--expires", "0"),
        "--expires: must be more than 0",
    ),
    "a token for too long": (
        ("token", "create", "a", "--expires", "999999999d"),
        "--expires: ends after the year 9999",
    ),
    "a token for longer than any clock": (
        ("token", "create", "a", "--expires", "999999999999d"),
        "--expires: ends after the year 9999",
    ),
    "a host that is empty": (("serve", "--host", ""), "--host: must be an address or a host's name, like"),
    "a host that is none": (("serve", "--host", "a b"), "--host: must be an address or a host's name, like"),
    "a row to watch without its id": (("watch", "tasks"), "ID: is missing: say `holdfast watch tasks ID`"),
    "an admin of one tenant": (
        ("token", "create", "a", "--tenant", "x", "--scope", "admin"),
        "--scope: admin is for operators",
    ),
    "a queue to pause where there is none": (("pause", "tasks", "q"), "queue: tasks has no queues"),
    "all statistics of a tenant": (("stats", "--tenant", "x"), "--tenant: needs a LEDGER"),
    "a shell that is unknown": (("completion", "csh"), "'csh' is not one of"),
    "ids and a filter": (("requeue", "tasks", SOMEBODY, "--kind", "a"), "give ids, or a filter"),
    "an unknown command": (("frobnicate",), "no such command 'frobnicate'"),
}


@pytest.mark.parametrize("what", WRONG_INPUT)
def test_wrong_input_is_refused_with_a_sentence_and_nothing_is_written(
    holdfast: Run, query: Query, what: str
) -> None:
    arguments, sentence = WRONG_INPUT[what]
    done = holdfast(*arguments, feed="[-Infinity]")
    assert (done.code, done.out) == (2, "")
    told = json.loads(done.err)["message"] if "--json" in arguments else done.err
    assert sentence in told
    assert len(done.err.splitlines()) == 1
    assert query("select count(*) from tasks") == [(0,)]


def test_a_payload_above_one_mebibyte_is_refused(holdfast: Run, query: Query) -> None:
    done = holdfast(*MAIL, "-", feed=json.dumps("x" * 2**20))
    assert (done.code, done.err) == (2, "holdfast: payload: has 1048578 bytes: at most 1048576 are allowed\n")
    assert query("select count(*) from tasks") == [(0,)]


def test_an_unknown_id_is_not_found(holdfast: Run) -> None:
    done = holdfast("show", "tasks", SOMEBODY)
    assert (done.code, done.out, done.err) == (4, "", f"holdfast: no tasks with the id {SOMEBODY}\n")


def test_a_verb_that_the_state_does_not_allow_is_refused_with_state_and_verb(
    holdfast: Run, query: Query
) -> None:
    query("insert into tasks (type, status) values ('mail', 'completed')")
    ((row,),) = query("select id::text from tasks")
    done = holdfast("cancel", "tasks", row, "--json")
    problem = json.loads(done.err)
    assert (done.code, done.out) == (5, "")
    assert (problem["code"], problem["verb"], problem["state"]) == ("ILLEGAL_EDGE", "cancel", "completed")
    assert query("select status::text from tasks") == [("completed",)]


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("HOLDFAST_CONCURRENCY", "0", "must be a whole number of at least 1, not '0'"),
        ("HOLDFAST_WORKER_TIMEOUT", "20s", "must be more than twice HOLDFAST_HEARTBEAT_INTERVAL"),
        ("HOLDFAST_LEADER_TERM", "10s", "must be more than HOLDFAST_HEARTBEAT_INTERVAL"),
        ("HOLDFAST_SHUTDOWN_TIMEOUT", "a while", "must be a duration above 0"),
    ],
)
def test_a_worker_does_not_start_with_wrong_settings(
    holdfast: Run, query: Query, name: str, value: str, sentence: str
) -> None:
    done = holdfast("worker", "--app", "shop:app", env={name: value})
    assert (done.code, done.out) == (2, "")
    assert name in done.err
    assert sentence in done.err
    assert query("select count(*) from workers") == [(0,)]


def test_an_unreachable_database_stops_the_start_with_one_sentence(holdfast: Run) -> None:
    secret = {
        "HOLDFAST_DATABASE_URL": "postgresql://ana:sesame@127.0.0.1:1/work",
        "HOLDFAST_DB_STARTUP_SECONDS": "0.3",
    }
    done = holdfast("worker", "--app", "shop:app", bare=True, env=secret)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "holdfast: the database at postgresql://ana:***@127.0.0.1:1/work cannot be reached"
    )
    assert "sesame" not in done.err


def test_an_old_schema_refuses_the_start_on_prod_and_says_what_to_run(
    holdfast: Run, empty_database_url: str
) -> None:
    """C-4, C-5: exit 3."""
    settings = {"HOLDFAST_DATABASE_URL": empty_database_url, "HOLDFAST_PROFILE": "prod"}
    done = holdfast("worker", "--app", "shop:app", bare=True, env=settings)
    assert (done.code, done.out) == (3, "")
    assert "run `holdfast db upgrade`" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_migration_that_fails_stops_the_start_with_one_sentence(
    holdfast: Run, empty_database_url: str
) -> None:
    """§3: exit 1, and what stands in the way is named; nothing of it is changed."""
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute("create table tasks (mine text)")
        settings = {"HOLDFAST_DATABASE_URL": empty_database_url, "HOLDFAST_PROFILE": "local"}
        done = holdfast("worker", "--app", "shop:app", bare=True, env=settings)
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("holdfast: the migration failed and changed nothing: ")
        assert "tasks" in done.err
        assert len(done.err.splitlines()) == 1
        assert db.execute("select to_regclass('workers')").fetchall() == [(None,)]


def test_what_the_database_says_is_passed_on_in_one_sentence(holdfast: Run, query: Query) -> None:
    query("alter table tasks drop column fence")
    done = holdfast("list", "tasks")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "holdfast: the database said: column t.fence does not exist "
        "(`holdfast doctor` tells what a ledger's table lacks)\n"
    )


def test_ctrl_c_is_no_error_and_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "line", interrupt)
    assert main(["version"]) == 130


def test_a_reader_that_goes_away_is_no_error(start: Start, query: Query) -> None:
    query("insert into tasks (type) select repeat('x', 200) from generate_series(1, 1000)")
    process = start("list", "tasks", "--limit", "1000")
    assert process.stdout
    assert process.stdout.readline().startswith("ID")
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read().startswith("there are more") is False


def test_debugging_shows_where_an_error_came_from(holdfast: Run) -> None:
    with pytest.raises(AssertionError, match="Traceback"):
        holdfast("--debug", "show", "jobs", "1", bare=True)
    with pytest.raises(AssertionError, match="Traceback"):
        holdfast("show", "jobs", "1", bare=True, env={"HOLDFAST_LOG_LEVEL": "debug"})
