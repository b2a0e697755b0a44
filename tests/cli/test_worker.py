"""`holdfast worker`: a process that works, and stops in good order, or loudly."""

from __future__ import annotations

import signal
import subprocess

import pytest

from cli.kit import Query, Run, Start
from conftest import Eventually

RUNNING = "select 1 from tasks where status = 'running'"
TASKS = "select type, status::text, attempts from tasks order by type"


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code and what it said."""
    _, said = process.communicate(timeout=30)
    assert "Traceback" not in said
    return process.returncode, said


def test_a_worker_finishes_tasks_with_the_users_handlers_until_idle(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type, payload) values ('double', '4'), ('compute', '9'), ('broken', null)")
    done = holdfast("worker", "--app", "shop:app", "--until-idle", "--concurrency", "tasks=2")
    assert (done.code, done.out) == (0, "")
    assert query(TASKS) == [("broken", "failed", 1), ("compute", "completed", 1), ("double", "completed", 1)]
    assert query("select count(*) from workers") == [(0,)]
    assert "alembic" not in done.err


def test_a_worker_takes_only_the_kinds_that_it_was_told(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type, payload) values ('double', '4'), ('broken', null)")
    json_logs = {"HOLDFAST_LOG_FORMAT": "json", "HOLDFAST_APP": "shop:app"}
    done = holdfast("worker", "--until-idle", "--kind", "double", "--ledger", "tasks", env=json_logs)
    assert done.code == 0
    assert query(TASKS) == [("broken", "pending", 0), ("double", "completed", 1)]
    assert all(line.startswith('{"time": ') for line in done.err.splitlines())


def test_sigterm_waits_for_the_handler_and_leaves_nothing_behind(
    start: Start, query: Query, eventually: Eventually
) -> None:
    query("insert into tasks (type, payload) values ('slow', '0.7')")
    process = start("worker", "--app", "shop:app")
    eventually(lambda: query(RUNNING))
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 0
    assert "waiting for 1 handlers" in said
    assert query(TASKS) == [("slow", "completed", 1)]
    assert query("select count(*) from workers") == [(0,)]


def test_a_second_sigint_dies_loudly(start: Start, query: Query, eventually: Eventually) -> None:
    query("insert into tasks (type, payload) values ('slow', '60')")
    process = start("worker", "--app", "shop:app")
    eventually(lambda: query(RUNNING))
    process.send_signal(signal.SIGINT)
    assert process.stderr
    while "waiting for 1 handlers" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 130
    assert "second SIGINT: dying at once" in said


@pytest.mark.parametrize("kind", ["stuck", "slow", "stubborn"])
def test_a_handler_that_does_not_end_is_abandoned_and_costs_no_attempt(
    start: Start, query: Query, eventually: Eventually, kind: str
) -> None:
    query("insert into tasks (type, payload) values (%s, %s)", kind, "60" if kind == "slow" else None)
    process = start("worker", "--app", "shop:app", env={"HOLDFAST_SHUTDOWN_TIMEOUT": "300ms"})
    eventually(lambda: query(RUNNING))
    process.send_signal(signal.SIGTERM)
    code, said = ended(process)
    assert code == 1
    assert "1 handlers did not end in time" in said
    assert query(TASKS) == [(kind, "pending", 0)]
    assert query("select count(*) from workers") == [(0,)]


def test_a_worker_that_has_nothing_to_run_does_not_start(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type) values ('double')")
    for arguments in ([], ["--app", "shop:bare"]):
        done = holdfast("worker", "--until-idle", *arguments)
        assert (done.code, done.out) == (2, "")
        assert "--app: has no handlers, so nothing would be run" in done.err
    done = holdfast("worker", "--app", "shop:app", "--kind", "triple")
    assert "--kind: there is no handler for 'triple': there are broken, compute," in done.err
    assert query(TASKS) == [("double", "pending", 0)]


def test_a_worker_without_slots_does_not_start(holdfast: Run) -> None:
    for number in ("0", "tasks=0", "many"):
        done = holdfast("worker", "--app", "shop:app", "--concurrency", number, bare=True)
        assert (done.code, done.out) == (2, "")
        assert "--concurrency: must be a whole number of at least 1" in done.err
