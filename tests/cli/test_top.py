"""`holdfast top` and `holdfast stats`: what there is and how it fares, also where a table is full."""

from __future__ import annotations

import doctest
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from cli.kit import Query, Run, Show, Start
from conftest import Eventually
from holdfast.cli import figures
from holdfast.runtime.pulse import Minute, Pace, Percentiles

LEDGERS = ["job", "tasks", "sync_jobs", "capture_session", "schedule_notification", "system_jobs"]
RUNNING = "select 1 from tasks where status = 'running'"
FULL = """
insert into tasks (type, status, payload, completed_at)
select 'old', 'completed', to_jsonb(repeat('x', 1000)), now() from generate_series(1, 60000);
"""


def test_a_pipe_gets_one_look(holdfast: Run, start: Start, query: Query, eventually: Eventually) -> None:
    query("insert into tasks (type, payload) values ('slow', '30')")
    query("insert into job (org_id, type) values (gen_random_uuid(), 'mine')")
    start("worker", "--app", "shop:app", "--ledger", "tasks")
    eventually(lambda: query(RUNNING))
    done = holdfast("top", "--app", "shop:app")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("job  1 queued  0 running")
    assert "oldest waits" in lines[1]
    assert lines[2].startswith("tasks  0 pending  0 claimed  1 running")
    assert "nothing waits" in lines[3]
    ((worker,),) = query("select id from workers")
    assert any(line.split()[:3] == [worker, "1", "10"] for line in lines)
    assert any(line.startswith("tasks") and "slow" in line and worker in line for line in lines[4:])
    told = holdfast("top", "--json", "--app", "shop:app").data
    assert set(told) == {"now", "leader", "ledgers", "workers", "working"}
    (one,) = told["working"]
    assert set(one) == {"ledger", "id", "kind", "state", "owner", "seconds", "stage", "progress"}
    assert (one["ledger"], one["kind"], one["owner"]) == ("tasks", "slow", worker)
    (present,) = told["workers"]
    assert (present["id"], present["held"], present["pool_size"], present["serves"]) == (
        worker,
        1,
        10,
        ["tasks"],
    )
    assert [view["ledger"] for view in told["ledgers"]] == LEDGERS


@pytest.mark.parametrize("how", ["q", "ctrl-c", "sigterm", "sighup"])
def test_a_terminal_is_shown_everything_until_somebody_quits(
    terminal: Show, query: Query, eventually: Eventually, how: str
) -> None:
    query(
        "insert into tasks (type, status, worker_id, started_at)"
        " values ('odd\x1b[2J', 'running', 'me', now())"
    )
    shown = terminal("top", "--every", "100ms")
    before = shown.settings()
    for words in ("Ledgers", "At work", "odd\\x1b[2J", "by me", "Workers", "q quits", "1 running"):
        shown.until(words)
    query("insert into tasks (type) select 'x' from generate_series(1, 1234)")
    shown.until("1,234 pending")  # it looks again
    match how:
        case "q":
            shown.type(b"q")
        case "ctrl-c":
            shown.type(b"\x03")
        case "sigterm":
            shown.process.send_signal(signal.SIGTERM)
        case _:
            shown.process.send_signal(signal.SIGHUP)
    assert shown.end() == (-signal.SIGHUP if how == "sighup" else 0)
    assert "Traceback" not in shown.text
    assert "\x1b[?1049h" in shown.raw  # the terminal was lent
    assert shown.raw.rindex("\x1b[?1049l") > shown.raw.rindex("Ledgers")  # and is given back
    assert shown.settings() == before


def test_a_database_that_goes_away_is_said_and_waited_for(
    terminal: Show, query: Query, postgres: str
) -> None:
    ((name,),) = query("select current_database()")
    impatient = {"HOLDFAST_DB_ACQUIRE_TIMEOUT_SECONDS": "1s"}
    shown = terminal("top", "--every", "100ms", env=impatient)
    shown.until("Ledgers")
    with psycopg.connect(postgres, autocommit=True) as server:
        allow = SQL("alter database {} allow_connections {}")
        server.execute(allow.format(Identifier(name), SQL("false")))
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        shown.until("the database does not answer; trying again")
        server.execute(allow.format(Identifier(name), SQL("true")))
    shown.until("Ledgers", after=len(shown.text))
    shown.type(b"q")
    assert shown.end() == 0


def test_a_full_table_is_told_by_estimate_and_says_so(holdfast: Run, query: Query) -> None:
    query(FULL)
    query("insert into tasks (type) select 'x' from generate_series(1, 17)")
    query("analyze tasks")
    told = holdfast("stats", "tasks", "--json").data
    states = {one["state"]: one for one in told["states"]}
    assert (told["exact"], states["completed"]["exact"]) == (False, False)
    assert 50_000 < states["completed"]["rows"] < 70_000
    assert (states["pending"]["rows"], states["pending"]["exact"]) == (17, True)
    done = holdfast("stats", "tasks")
    assert "≈" in done.out
    assert "≈ is the planner's estimate; --exact counts every row" in done.out
    assert "≈" in holdfast("top").out
    done = holdfast("stats", "tasks", "--exact")
    assert "≈" not in done.out
    assert any(line.split()[:2] == ["completed", "60,000"] for line in done.out.splitlines())
    told = holdfast("stats", "tasks", "--exact", "--json").data
    assert (told["exact"], told["rows"]) == (True, 60_017)


def test_stats_tell_what_workers_did(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type, payload) values ('double', '4'), ('double', '5'), ('broken', null)")
    assert holdfast("worker", "--app", "shop:app", "--until-idle").code == 0
    told = holdfast("stats", "tasks", "--json").data
    assert set(told) == {
        *("ledger", "rows", "exact", "states", "waiting_since", "oldest_wait", "paused", "held", "trouble"),
        *("finished_per_minute", "last_hour", "latency", "run_time", "failures"),
    }
    assert told["last_hour"] == {"claimed": 3, "finished": 2, "retried": 0, "dead": 1}
    assert (told["latency"]["count"], told["run_time"]["count"]) == (3, 3)
    assert [one["count"] for one in told["failures"]] == [1]
    assert 0 < told["finished_per_minute"] <= 2
    done = holdfast("stats")
    assert (done.code, done.err) == (0, "")
    heading = done.out.splitlines()[1]
    assert heading.split() == ["STATE", "COUNT", "OLDEST", "CREATED", "FIRST", "DUE"]
    for words in (
        "last hour    3 claimed, 2 finished, 0 retried, 1 dead",
        "oldest wait  nothing waits",
        "p95 ",
    ):
        assert words in done.out
    assert [one["ledger"] for one in holdfast("stats", "--json").data] == LEDGERS


def test_a_table_that_is_not_there_does_not_hide_the_others(holdfast: Run, query: Query) -> None:
    query("alter table tasks rename to elsewhere")
    done = holdfast("stats")
    assert (done.code, done.err) == (0, "")
    assert 'cannot be looked at: relation "tasks" does not exist' in done.out
    assert "does not exist" in holdfast("top").out
    done = holdfast("stats", "tasks")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith('holdfast: the database said: relation "tasks" does not exist')


def test_a_tenant_has_statistics_of_its_own(holdfast: Run, query: Query) -> None:
    mine = str(uuid4())
    query("insert into job (org_id, type) values (%s, 'x'), (gen_random_uuid(), 'x')", mine)
    told = holdfast("stats", "job", "--tenant", mine, "--json").data
    assert told["rows"] == 1
    assert "latency" not in told  # that is everybody's
    assert holdfast("stats", "job", "--tenant", mine, "--exact", "--json").data["rows"] == 1


def test_numbers_read_well() -> None:
    assert doctest.testmod(figures).failed == 0
    assert figures.count(12, exact=False) == "≈12"
    assert figures.lasting(None) == "-"
    assert [figures.lasting(s) for s in (0, 0.0999, 59.9, 60, 3601, 90000)] == [
        *("0 ms", "0.1 s", "60 s", "1 min 0 s", "1 h 0 min", "1 d 1 h"),
    ]


def test_the_rate_is_of_the_last_sixty_seconds() -> None:
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    minute = Minute(at=begin, claimed=0, finished=60, retried=0, dead=0)
    later = replace(minute, at=begin + timedelta(minutes=1), finished=10)
    none = Percentiles(0)
    pace = Pace(minutes=(minute, later), latency=none, run_time=none, failures=())
    assert figures.each_minute(pace, begin + timedelta(seconds=60)) == 70
    assert figures.each_minute(pace, begin + timedelta(seconds=90)) == 40
    assert figures.each_minute(pace, begin + timedelta(seconds=120)) == 10
