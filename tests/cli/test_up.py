"""`holdfast up`: everything at once, and nothing left behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from cli.kit import Query, Run, Show, Start
from conftest import Eventually, make_home, remove_home
from holdfast import demo
from holdfast.cli.up import DEMO
from holdfast.db import embedded
from holdfast.demo import ORGANISATIONS


@pytest.fixture
def home() -> Iterator[Path]:
    """A home for an embedded server of the test's own."""
    home = make_home()
    yield home
    remove_home(home)


def test_up_runs_on_an_embedded_server_and_stops_it_again(holdfast: Run, home: Path) -> None:
    env = {"HOLDFAST_HOME": str(home), "HOLDFAST_PORT": "0"}
    done = holdfast("up", "--for", "8", bare=True, env=env)
    assert (done.code, done.err) == (0, "")
    intro = done.out.splitlines()[:16]
    assert "is running: a worker with the handlers of holdfast.demo:app" in intro[0]
    assert "`holdfast db url`" in intro[1]
    assert str(home / "postgres") in intro[2] or "/var/lib/holdfast" in intro[2]
    assert re.fullmatch(r"  dashboard http://127\.0\.0\.1:\d+", intro[4])
    token = (home / "token").read_text().strip()
    assert intro[6] == f"  token     {token}"
    assert "Ctrl-C" in intro[8]
    for command in ("top", "list job", "show job ID", "job timeline ID", "requeue job ID"):
        assert any(line.startswith(f"  holdfast {command}  ") for line in intro[10:])
    assert re.search(r"^\S+Z tasks \S+ email:send completed", done.out, re.MULTILINE)
    assert re.search(r"^\S+Z job \S+ mock_process succeeded", done.out, re.MULTILINE)
    assert re.search(r"^job: .*; tasks: .* · \d+ finished/min · \d workers?$", done.out, re.MULTILINE)
    assert done.out.splitlines()[-1] == "stopped, and PostgreSQL with it; the data stays"
    assert not embedded.status(home).running
    assert "works for job, tasks" in (home / "holdfast.log").read_text()
    again = holdfast("up", "--for", "1", "--no-demo", bare=True, env=env)
    assert again.out.splitlines()[6] == f"  token     is in {home / 'token'}"
    assert token not in again.out


def test_a_demo_job_goes_through_its_stages_or_fails_where_it_is_told_to(
    holdfast: Run, start: Start, query: Query, eventually: Eventually
) -> None:
    for stage in ("null", '"analyzing"'):
        payload = f'{{"source": "drive://bo", "fail_at_stage": {stage}, "seconds": 0.1}}'
        done = holdfast(
            "enqueue", "job", "mock_process", payload, "--tenant", str(ORGANISATIONS[0]), "--app", DEMO
        )
        assert done.code == 0
    start("worker", "--app", DEMO, env={"HOLDFAST_JOB_BACKOFF_BASE": "50ms"})
    eventually(lambda: query("select 1 from job having bool_and(finished_at is not null)"))
    ended = dict(query("select status::text, id::text from job"))
    told = holdfast("show", "job", ended["succeeded"], "--json").data
    assert (told["stage"], told["progress"], told["result"]["stages"]) == ("indexing", 100, 3)
    told = holdfast("show", "job", ended["dead_letter"], "--json").data
    assert (told["stage"], told["progress"], told["attempts"]) == ("analyzing", 33, 2)
    assert "drive://bo failed while analyzing" in told["error"]


def test_demo_jobs_are_of_several_organisations_and_some_must_fail() -> None:
    some = demo.jobs(12)
    assert {item.tenant for item in some} == set(ORGANISATIONS)
    assert sum(item.payload.fail_at_stage is not None for item in some) == 2
    assert {item.priority for item in some} == {0, 10}
    assert sum(item.key is not None for item in some) == 4


def test_a_terminal_gets_one_screen_that_is_redrawn_in_place(terminal: Show, query: Query) -> None:
    query("insert into tasks (type, status, completed_at) values ('odd\x1b[2J', 'failed', now())")
    query(
        "with held as (insert into job (org_id, type, status, worker_id, started_at) "
        "values (gen_random_uuid(), 'mine', 'running', 'somebody', now()) returning id) "
        "insert into job_event (job_id, next_status, detail_json) "
        """select id, 'running', '{"stage": "indexing", "progress": 66}' from held"""
    )
    shown = terminal("up", "--for", "2", env={"HOLDFAST_PROFILE": "local"})
    assert shown.end() == 0
    text = shown.text
    for words in (
        "Ledgers",
        "indexing  66 %  by somebody",
        "list job",
        "At work",
        "Last finished",
        "Workers",
        "finished/min",
        "odd\\x1b[2J",
    ):
        assert words in text
    assert text.count("Holdfast ") == 1
    assert "hf_" not in text  # a database of somebody's own: no token is made there, and none is shown
    assert query("select count(*) from holdfast_token") == [(0,)]
    assert text.count("holdfast token create NAME") > 2  # at the beginning, and whenever it is drawn
    assert text.count("dashboard http://127.0.0.1:") > 2
    assert "works for" not in text  # that is in the log
    assert "WARNING" not in text
    assert text.rstrip().endswith("stopped")


def test_up_looks_again_soon_after_the_database_was_away(
    terminal: Show, query: Query, postgres: str, eventually: Eventually
) -> None:
    ((name,),) = query("select current_database()")
    env = {"HOLDFAST_APP": "shop:app", "HOLDFAST_DB_ACQUIRE_TIMEOUT_SECONDS": "2s"}
    shown = terminal("up", "--no-demo", env=env)
    eventually(lambda: query("select 1 from workers"))
    shown.until("heartbeat")
    with psycopg.connect(postgres, autocommit=True) as server:
        allow = SQL("alter database {} allow_connections {}")
        server.execute(allow.format(Identifier(name), SQL("false")))
        server.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name])
        shown.until("the database does not answer; trying again")  # at once: connections were broken
        shown.until("the database does not answer; trying again", after=len(shown.text))  # waited in vain
        server.execute(allow.format(Identifier(name), SQL("true")))
    began = time.monotonic()
    shown.until("Ledgers", after=len(shown.text))
    assert time.monotonic() - began < 10  # it slept for ten times the two seconds that the failed look took
    shown.process.send_signal(signal.SIGTERM)
    assert shown.end() == 0


def test_the_dashboard_is_served_beside_the_worker(
    start: Start, holdfast: Run, folder: Path, eventually: Eventually
) -> None:
    token = holdfast("token", "create", "ana").out.strip()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start("up", env={"HOLDFAST_PROFILE": "local", "HOLDFAST_PORT": port})
        assert process.stdout
        told = dict(line.split(maxsplit=1) for line in iter(process.stdout.readline, "  stop      Ctrl-C\n"))
    address, note = told["dashboard"].strip().split(" ", 1)
    assert note == f"(port {port} is taken)"
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
        eventually(lambda: client.get("/api/overview").json()["workers"])
        with client.stream("GET", "/api/ledgers/job/stream") as stream:
            assert stream.status_code == 200
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "stopped"


def test_a_web_server_that_ends_by_itself_ends_up_with_an_error(
    start: Start, folder: Path, query: Query
) -> None:
    (folder / "faulty.py").write_text(
        "from contextlib import asynccontextmanager\n"
        "from holdfast import Holdfast\n"
        "class Faulty(Holdfast):\n"
        "    @asynccontextmanager\n"
        "    async def _lifespan(self, _):\n"
        "        raise RuntimeError('no web today')\n"
        "        yield\n"
        "app = Faulty()\n"
        "@app.handler('x')\n"
        "async def x() -> None: ...\n"
    )
    process = start("up", "--app", "faulty:app")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.startswith("holdfast: the web server could not start (")
    assert out.splitlines()[-1] == "stopped"
    assert "no web today" in (folder / "home" / "holdfast.log").read_text()
    assert query("select count(*) from workers") == [(0,)]


def test_sigterm_stops_up_and_its_worker_in_good_order(
    start: Start, query: Query, eventually: Eventually
) -> None:
    process = start("up", "--no-demo", env={"HOLDFAST_APP": "shop:app"})
    eventually(lambda: query("select 1 from workers"))
    query("insert into tasks (type, payload) values ('slow', '0.7')")
    eventually(lambda: query("select 1 from tasks where status = 'running'"))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert "stopping: the worker ends what it has begun" in out
    assert out.splitlines()[-1] == "stopped"
    assert query("select status::text from tasks") == [("completed",)]
    assert query("select count(*) from workers") == [(0,)]


def test_the_worker_of_a_killed_up_stops_by_itself(
    start: Start, query: Query, eventually: Eventually
) -> None:
    process = start("up", "--no-demo", env={"HOLDFAST_APP": "shop:app"})
    eventually(lambda: query("select 1 from workers"))
    process.kill()
    eventually(lambda: not query("select 1 from workers"))


def test_a_worker_that_dies_ends_up_with_an_error(start: Start, query: Query, eventually: Eventually) -> None:
    process = start("up", "--no-demo", env={"HOLDFAST_APP": "shop:app"})
    eventually(lambda: query("select 1 from workers"))
    ((worker,),) = query("select split_part(id, '-', -2) from workers")
    subprocess.run(["kill", "-9", worker], check=True)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert err.startswith("holdfast: the worker ended by itself, with exit code -9 (")
    assert out.splitlines()[-1] == "stopped"
