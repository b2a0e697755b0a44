"""`holdfast up`: everything at once, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cli.kit import COMMAND, Query, Run, Start
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
    done = holdfast("up", "--for", "8", bare=True, env={"HOLDFAST_HOME": str(home)})
    assert (done.code, done.err) == (0, "")
    intro = done.out.splitlines()[:10]
    assert "is running: a worker with the handlers of holdfast.demo:app" in intro[0]
    assert "`holdfast db url`" in intro[1]
    assert str(home / "postgres") in intro[2] or "/var/lib/holdfast" in intro[2]
    assert "Ctrl-C" in intro[4]
    for command in ("list job", "show job ID", "job timeline ID", "requeue job ID"):
        assert any(line.startswith(f"  holdfast {command}  ") for line in intro[6:])
    assert re.search(r"^\S+Z tasks \S+ email:send completed", done.out, re.MULTILINE)
    assert re.search(r"^\S+Z job \S+ mock_process succeeded", done.out, re.MULTILINE)
    assert re.search(r"^job: .*; tasks: .* · \d+\.\d/s · \d workers?$", done.out, re.MULTILINE)
    assert done.out.splitlines()[-1] == "stopped, and PostgreSQL with it; the data stays"
    assert not embedded.status(home).running
    assert "works for job, tasks" in (home / "holdfast.log").read_text()


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


def test_a_terminal_gets_one_screen_that_is_redrawn_in_place(
    folder: Path, environment: dict[str, str], query: Query
) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    settings = environment | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    query("insert into tasks (type, status, completed_at) values ('odd\x1b[2J', 'failed', now())")
    query(
        "with held as (insert into job (org_id, type, status, worker_id, started_at) "
        "values (gen_random_uuid(), 'mine', 'running', 'somebody', now()) returning id) "
        "insert into job_event (job_id, next_status, detail_json) "
        """select id, 'running', '{"stage": "indexing", "progress": 66}' from held"""
    )
    process = subprocess.Popen(
        [*COMMAND, "up", "--for", "2"], stdin=theirs, stdout=theirs, stderr=theirs, env=settings, cwd=folder
    )
    os.close(theirs)
    printed = b""
    with suppress(OSError), os.fdopen(ours, "rb", buffering=0) as screen:  # EIO: nobody is left to write
        while part := screen.read(65536):
            printed += part
    assert process.wait(30) == 0
    text = printed.decode()
    for words in (
        "Ledgers",
        "indexing  66 %",
        "list job",
        "At work",
        "Last finished",
        "Workers",
        "finished/s",
        "odd\\x1b[2J",
    ):
        assert words in text
    assert text.count("Holdfast ") == 1
    assert "works for" not in text  # that is in the log
    assert "WARNING" not in text
    assert text.rstrip().endswith("stopped")


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
    assert "the worker ended by itself, with exit code -9" in err
    assert out.splitlines()[-1] == "stopped"
