"""`holdfast watch` and `holdfast explain`: what happens to one row, and why nothing does."""

from __future__ import annotations

import json
import shlex
import signal
import time
from pathlib import Path
from uuid import uuid4

import pytest

from cli.kit import Query, Run, Show, Start
from conftest import Eventually
from holdfast.cli.up import DEMO
from holdfast.demo import ORGANISATIONS

ORG = str(ORGANISATIONS[0])
CHORES = """
from holdfast import Attempts, Due, Edge, Holdfast, Key, Lane, Ledger, TextError, Times

app = Holdfast(ledgers=[Ledger(
    name="chores",
    table="chores",
    key=Key("name", "text"),
    state="stage",
    states=("waiting", "doing", "over", "bad"),
    ends=("over", "bad"),
    edges=(
        Edge("enqueue", to="waiting"),
        Edge("claim", frm=("waiting",), to="doing"),
        Edge("finish", frm=("doing",), to="over"),
        Edge("retry", frm=("doing",), to="waiting"),
        Edge("exhaust", frm=("doing",), to="bad"),
        Edge("reject", frm=("doing",), to="bad"),
        Edge("snooze", frm=("doing",), to="waiting"),
        Edge("release", frm=("doing",), to="waiting"),
        Edge("lose", frm=("doing",), to="waiting"),
        Edge("cancel", frm=("waiting", "doing"), to="bad"),
        Edge("requeue", frm=("bad",), to="waiting"),
    ),
    lanes=(Lane("due", due="due_at", order=("due_at",)),),
    owner="holder",
    fence="fence",
    kind="kind",
    payload="payload",
    due=Due("due_at", cleared=False),
    attempts=Attempts("tries", limit=5),
    errors=TextError("trouble"),
    times=Times(created="made_at"),
)])
"""
CHORES_TABLE = """
create table chores (
    name text primary key, kind text not null, payload jsonb, stage text not null, holder text,
    fence bigint not null default 0, tries int not null default 0, trouble text,
    made_at timestamptz not null default now(), due_at timestamptz not null default now()
)
"""


def enqueue(holdfast: Run, seconds: float, stage: str | None = None, *more: str) -> str:
    """A demo job that takes so long, and fails at a stage."""
    payload = json.dumps({"source": "drive://bo", "fail_at_stage": stage, "seconds": seconds})
    done = holdfast("enqueue", "job", "mock_process", payload, "--tenant", ORG, "--app", DEMO, *more)
    assert done.code == 0
    return done.out.strip()


def test_every_change_of_a_job_is_told_until_it_has_ended_well(holdfast: Run, start: Start) -> None:
    row = enqueue(holdfast, 0.6)
    watching = start("watch", "job", row, "--json", "--app", DEMO)
    assert watching.stdout
    first = json.loads(watching.stdout.readline())
    assert (first["ledger"], first["id"], first["state"], first["ended"]) == ("job", row, "queued", False)
    start("worker", "--app", DEMO)
    out, err = watching.communicate(timeout=30)
    told = [json.loads(line) for line in out.splitlines()]
    assert [(one["state"], one["stage"], one["progress"]) for one in told] == [
        ("running", None, None),
        ("running", "extracting", 0),
        ("running", "analyzing", 33),
        ("running", "indexing", 67),
        ("running", "indexing", 100),
        ("succeeded", "indexing", 100),
    ]
    assert (watching.returncode, err) == (0, "")
    assert told[-1]["ended"]


def test_a_job_that_ends_badly_is_told_with_its_error_and_exit_code_1(holdfast: Run, start: Start) -> None:
    row = enqueue(holdfast, 0.1, "analyzing", "--limit", "0")
    start("worker", "--app", DEMO)
    done = holdfast("watch", "job", row)
    assert (done.code, done.err) == (1, "")
    last = done.out.splitlines()[-1]
    assert " dead_letter 33 % analyzing RuntimeError: drive://bo failed while analyzing" in last
    again = holdfast("watch", "job", row)  # it has ended: told at once
    assert (again.code, len(again.out.splitlines())) == (1, 1)


def test_a_row_without_a_journal_is_watched_by_its_state(
    holdfast: Run, start: Start, query: Query, eventually: Eventually
) -> None:
    query("insert into tasks (type, payload) values ('slow', '1')")
    ((row,),) = query("select id::text from tasks")
    watching = start("watch", "tasks", row, "--app", "shop:app")
    assert watching.stdout
    assert watching.stdout.readline().split()[1:] == ["pending"]
    start("worker", "--app", "shop:app")
    assert watching.stdout.readline().split()[1:] in (["claimed"], ["running"])
    out, _ = watching.communicate(timeout=30)
    assert (watching.returncode, out.splitlines()[-1].split()[1:]) == (0, ["completed"])


def test_what_has_not_ended_in_time_is_exit_code_8(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type) values ('slow')")
    ((row,),) = query("select id::text from tasks")
    began = time.monotonic()
    done = holdfast("watch", "tasks", row, "--timeout", "300ms")
    assert time.monotonic() - began > 0.3
    assert done.code == 8
    assert done.err == f"holdfast: tasks {row} is pending: it did not end within 300ms\n"
    assert len(done.out.splitlines()) == 1
    done = holdfast("watch", "tasks", row, "--timeout", "0", "--json")
    assert (done.code, json.loads(done.err)["code"], done.data["state"]) == (8, "NOT_YET", "pending")


def test_a_terminal_gets_a_bar_with_the_stage(holdfast: Run, terminal: Show, start: Start) -> None:
    row = enqueue(holdfast, 1.5)
    shown = terminal("watch", "job", row)
    shown.until("queued")
    start("worker", "--app", DEMO)
    shown.until("analyzing")
    shown.until("33%")
    assert shown.end() == 0
    assert "succeeded" in shown.text
    assert "━" in shown.text


@pytest.mark.parametrize("command", ["watch", "explain"])
def test_a_row_that_is_not_there_is_not_found(holdfast: Run, query: Query, command: str) -> None:
    done = holdfast(command, "job", str(uuid4()))
    assert (done.code, done.out) == (4, "")
    query("insert into job (org_id, type) values (%s, 'x')", ORG)
    ((row,),) = query("select id::text from job")
    done = holdfast(command, "job", row, "--tenant", str(uuid4()))
    assert (done.code, done.out, done.err) == (4, "", f"holdfast: no job with the id {row}\n")


def test_an_id_alone_is_looked_for_in_every_ledger(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type, status, completed_at) values ('x', 'completed', now())")
    ((row,),) = query("select id::text from tasks")
    done = holdfast("watch", row, "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.data["ledger"], done.data["id"], done.data["state"]) == ("tasks", row, "completed")
    for missing in (str(uuid4()), "no-uuid"):
        done = holdfast("watch", missing)
        assert (done.code, done.out, done.err) == (4, "", f"holdfast: no row with the id {missing}\n")
    query("insert into job (id, org_id, type) values (%s, %s, 'x')", row, ORG)
    done = holdfast("watch", row)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"holdfast: ID: several ledgers have it (job, tasks): say `holdfast watch LEDGER {row}`\n"
    )
    done = holdfast("watch", row, "--tenant", ORG, "--timeout", "0", "--json")  # tasks have no tenants
    assert (done.code, done.data["ledger"]) == (8, "job")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_cursor_back(terminal: Show, query: Query, number: signal.Signals) -> None:
    query("insert into tasks (type) values ('never')")
    ((row,),) = query("select id::text from tasks")
    shown = terminal("watch", "tasks", row)
    shown.until("pending")
    assert "\x1b[?25l" in shown.raw
    shown.process.send_signal(number)
    assert shown.end() == -number
    assert shown.raw.rindex("\x1b[?25h") > shown.raw.rindex("\x1b[?25l")
    assert "Traceback" not in shown.text
    assert "holdfast:" not in shown.text


def test_explain_says_why_in_a_sentence_and_then_the_facts(holdfast: Run, query: Query) -> None:
    query("insert into job (org_id, type) values (%s, 'x')", ORG)
    ((row,),) = query("select id::text from job")
    done = holdfast("explain", "job", row)
    assert (done.code, done.err) == (0, "")
    sentence, *facts = done.out.splitlines()
    assert "worker" in sentence
    told = holdfast("explain", "job", row, "--tenant", ORG, "--json").data
    assert set(told) == {"ledger", "id", "state", "code", "sentence", "facts"}
    assert (told["ledger"], told["id"], told["state"], told["code"]) == ("job", row, "queued", "NO_WORKERS")
    assert told["sentence"] == sentence
    assert len(facts) == len([value for value in told["facts"].values() if value is not None])
    query("update job set run_at = now() + interval '1 hour'")
    assert holdfast("explain", "job", row, "--json").data["code"] == "NOT_DUE"
    assert holdfast("pause", "job").code == 0
    assert holdfast("explain", "job", row, "--json").data["code"] == "PAUSED"


def test_explain_quotes_the_id_in_the_command_that_it_tells(
    holdfast: Run, query: Query, folder: Path
) -> None:
    (folder / "chores.py").write_text(CHORES)
    query(CHORES_TABLE)
    query("insert into chores (name, kind, stage) values ('wash $(up)', 'x', 'bad')")
    done = holdfast("explain", "chores", "wash $(up)", "--app", "chores:app")
    assert (done.code, done.err) == (0, "")
    command = "holdfast requeue chores 'wash $(up)'"
    assert f"`{command}` lets it run again" in done.out
    assert holdfast(*shlex.split(command)[1:], "--app", "chores:app").code == 0
    done = holdfast("watch", "wash $(up)", "--timeout", "0", "--app", "chores:app", "--json")
    assert (done.code, done.data["ledger"], done.data["id"]) == (8, "chores", "wash $(up)")
