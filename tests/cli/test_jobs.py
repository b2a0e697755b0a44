"""The history of rows from the shell: verify, timeline, stats (J-32, J-34).

Most of it on a user's own table, with an application; what `job` itself is like, without a word about it, at
the end.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from rich.console import Console

from cli.kit import Done, Query, Run
from holdfast.cli import output, progress
from holdfast.engine.store import Store
from holdfast.engine.values import Fault, Move
from ledgers import ERRANDS, ERRANDS_DDL, ERRANDS_SAMPLE, JOB, ORG, after

STORE = Store(ERRANDS)
APP = """
from holdfast import Holdfast
from ledgers import ERRANDS

app = Holdfast(ledgers=[ERRANDS])
"""

Job = Callable[..., Done]


@pytest.fixture
def job(holdfast: Run, folder: Path, query: Query) -> Job:
    """`job("verify", "--all")`: a command on the errands, whose table is there."""
    (folder / "town.py").write_text(APP)
    query(ERRANDS_DDL)
    return lambda *arguments: holdfast("job", *arguments, "--ledger", "errands", "--app", "town:app")


async def _live(url: str, store: Store = STORE) -> UUID:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        receipt = await store.enqueue(conn, ERRANDS_SAMPLE.item(), by="ana\x1b[2J", now=after(0))
        (claim,) = await store.claim(conn, "w1", 1, now=after(1))
        await store.progress(conn, claim, 50, "half [bold]way", now=after(2))
        fault = Fault(code="BOOM", message="it broke\nbadly")
        await store.move_one(conn, Move(verb="exhaust", claim=claim, fault=fault), now=after(3))
        return receipt.id


@pytest.fixture
def row(job: Job, database_url: str) -> UUID:
    """A row that has lived: it was enqueued, claimed, told how far it was, and ended badly."""
    return asyncio.run(_live(database_url))


# -- verify -----------------------------------------------------------------------------------------------


def test_a_true_record_is_said_to_be_true(job: Job, row: UUID) -> None:
    done = job("verify", str(row))
    assert (done.code, done.out, done.err) == (0, "1 row of errands, 5 events: the record is true\n", "")
    done = job("verify", "--all")
    assert (done.code, done.out, done.err) == (0, "1 row of errands, 5 events: the record is true\n", "")
    done = job("verify", "--all", "--tenant", str(ORG), "--json")
    assert (done.code, done.err) == (0, "")
    assert done.data == {"ledger": "errands", "rows": 1, "events": 5, "true": True, "found": 0, "lies": []}


def test_every_lie_is_a_line_of_its_own_and_the_exit_code_is_6(job: Job, row: UUID, query: Query) -> None:
    (seqs,) = zip(*query("select seq from town.errand_event order by seq"), strict=True)
    query("update town.errand_event set prev_status = E'no\nwhere\x1b[2J' where seq = %s", seqs[2])
    query("insert into town.errand (id, org_id, type) values (%s, %s, 'bare')", uuid4(), ORG)
    what = rf"event {seqs[2]} says 'no\nwhere\x1b[2J' → running, but the row was running"
    done = job("verify", str(row))
    told, verdict = done.out.splitlines()
    assert (done.code, told, done.err) == (6, f"errands {row}: {what}", "")
    assert verdict == "1 row of errands, 5 events: the record of 1 is not true"
    done = job("verify", "--all")
    assert done.code == 6
    assert len(done.out.splitlines()) == 3
    assert done.out.endswith("2 rows of errands, 5 events: the record of 2 is not true\n")
    done = job("verify", "--all", "--json")
    assert (done.code, done.err, done.data["true"], done.data["found"]) == (6, "", False, 2)
    assert {"id": str(row), "seq": seqs[2], "what": what} in done.data["lies"]
    assert {"the row is queued, and has no event at all"} == {
        lie["what"] for lie in done.data["lies"] if lie["seq"] is None
    }


def test_verify_needs_one_id_or_all(job: Job, row: UUID) -> None:
    for arguments in ((), (str(row), "--all")):
        done = job("verify", *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err == "holdfast: id: give one ID, or --all: one of both\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("verify", "17"), 2, "id: '17' is not a UUID"),
        (("verify", str(uuid4())), 4, "no errands with the id"),
        (("verify", "--all", "--tenant", "x"), 2, "org_id: 'x' is not a UUID"),
        (("timeline", "17"), 2, "id: '17' is not a UUID"),
        (("timeline", str(uuid4())), 4, "no errands with the id"),
        (("stats", "--tenant", "x"), 2, "org_id: 'x' is not a UUID"),
    ],
)
def test_wrong_input_is_one_sentence(job: Job, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = job(*arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err
    problem = job(*arguments, "--json")
    assert (problem.code, problem.out) == (code, "")
    assert words in json.loads(problem.err)["message"]


def test_the_row_of_another_tenant_is_not_found(job: Job, row: UUID) -> None:
    """J-44."""
    for command in ("verify", "timeline"):
        done = job(command, str(row), "--tenant", str(uuid4()))
        assert (done.code, done.err) == (4, f"holdfast: no errands with the id {row}\n")


def test_a_ledger_without_a_journal_has_nothing_to_verify(holdfast: Run) -> None:
    for arguments in (("verify", "--all"), ("timeline", str(uuid4()))):
        done = holdfast("job", *arguments, "--ledger", "tasks")
        assert (done.code, done.out) == (2, "")
        assert done.err == "holdfast: --ledger: tasks has no journal: nothing tells its history\n"


def test_a_long_verification_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0)
    with progress.told("rows of errands", 2000) as tell:
        tell(1000, "12,345 events")
    assert capsys.readouterr() == ("", "1,000 of 2,000 rows of errands, 12,345 events\n")
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(output, "terminal", lambda: True)
    monkeypatch.setattr(output, "console", lambda: screen)
    with progress.told("rows of errands", 2000) as tell:
        tell(1000, "12,345 events")
    shown: Any = screen.file
    assert "12,345 events" in shown.getvalue()
    assert "1000/2000" in shown.getvalue()


# -- timeline ---------------------------------------------------------------------------------------------


def test_a_timeline_tells_every_event_in_its_order(job: Job, row: UUID) -> None:
    done = job("timeline", str(row))
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    heading, *lines = (re.split(r"\s{2,}|(?<=Z) ", line.strip()) for line in done.out.splitlines())
    assert " ".join(heading).split() == ["WHEN", "FROM", "TO", "VERB", "ATTEMPT", "BY", "NOTE"]
    assert [line[0] for line in lines] == [f"2030-01-01T12:00:0{n}.000Z" for n in (0, 1, 2, 3, 3)]
    told = [" ".join(" ".join(line).split()[1:]) for line in lines]
    assert told == [
        r"queued enqueue 0 ana\x1b[2J",
        "queued running claim 0 w1",
        "running running progress 0 w1 half [bold]way; 50 %",
        r"running failed exhaust 0 w1 BOOM: it broke\nbadly",
        r"failed dead_letter exhaust 0 w1 BOOM: it broke\nbadly",
    ]


def test_a_long_timeline_is_read_in_pages(job: Job, row: UUID, query: Query) -> None:
    query(
        "insert into town.errand_event (job_id, ts, prev_status, next_status, detail_json)"
        " select id, updated_at, 'dead_letter', 'dead_letter', '{}'"
        " from town.errand, generate_series(1, 2500)"
    )
    told = job("timeline", str(row), "--tenant", str(ORG), "--json").data
    assert (told["ledger"], told["id"], len(told["events"])) == ("errands", str(row), 2505)
    assert [event["seq"] for event in told["events"]] == sorted({event["seq"] for event in told["events"]})
    first = told["events"][0]
    assert (first["prev"], first["next"], first["at"]) == (None, "queued", "2030-01-01T12:00:00Z")
    assert first["detail"]["verb"] == "enqueue"


# -- stats ------------------------------------------------------------------------------------------------


def test_stats_count_rows_by_state(job: Job, row: UUID, query: Query) -> None:
    oldest = datetime(2029, 1, 1, tzinfo=UTC)
    query(
        "insert into town.errand (org_id, type, created_at, run_at)"
        " select %s, 'x', made, made + interval '1 d'"
        " from generate_series(0, 1233) as n, lateral (select %s + make_interval(hours => n)) as m (made)",
        ORG,
        oldest,
    )
    query("insert into town.errand (org_id, type) values (%s, 'theirs')", uuid4())
    told = job("stats", "--tenant", str(ORG), "--json").data
    states = {one["state"]: (one["rows"], one["oldest"], one["due"]) for one in told["states"]}
    assert (told["ledger"], told["rows"]) == ("errands", 1235)
    assert list(states) == list(ERRANDS.states)
    assert states["queued"] == (1234, "2029-01-01T00:00:00Z", "2029-01-02T00:00:00Z")
    assert states["dead_letter"][:2] == (1, "2030-01-01T12:00:00Z")
    assert states["running"] == (0, None, None)
    assert job("stats", "--json").data["rows"] == 1236
    done = job("stats", "--tenant", str(ORG))
    heading, first, *_ = done.out.splitlines()
    assert heading.split() == ["STATE", "COUNT", "OLDEST", "CREATED", "FIRST", "DUE"]
    assert first.split() == ["queued", "1,234", "2029-01-01T00:00:00Z", "2029-01-02T00:00:00Z"]


# -- job, which is what is meant where no ledger is named ---------------------------------------------------


@pytest.fixture
def a_job(holdfast: Run, database_url: str) -> UUID:
    """A job that has lived like `row`."""
    return asyncio.run(_live(database_url, Store(JOB)))


def test_the_record_of_job_is_verified_where_no_ledger_is_named(holdfast: Run, a_job: UUID) -> None:
    """J-32, J-34."""
    for arguments in ((str(a_job),), ("--all",), ("--all", "--tenant", str(ORG))):
        done = holdfast("job", "verify", *arguments)
        assert (done.code, done.out, done.err) == (0, "1 job, 5 events: the record is true\n", "")
    done = holdfast("job", "verify", "--all", "--json")
    assert done.data == {"ledger": "job", "rows": 1, "events": 5, "true": True, "found": 0, "lies": []}
    done = holdfast("job", "verify", "--all", "--tenant", str(uuid4()))
    assert (done.code, done.out) == (0, "0 jobs, 0 events: the record is true\n")


def test_a_lie_of_job_is_told_and_the_exit_code_is_6(holdfast: Run, a_job: UUID, query: Query) -> None:
    """J-32, J-33, J-34: a superuser has written past the trigger."""
    query("set session_replication_role = replica")
    query("update job_event set next_status = 'canceled' where next_status = 'dead_letter'")
    (((seq,),), ((before,),)) = (
        query("select max(seq) from job_event"),
        query("select max(seq) from job_event where next_status = 'failed'"),
    )
    what = f"event {seq} says exhaust: failed → canceled, but the exhaust of event {before} must go on to"
    done = holdfast("job", "verify", str(a_job))
    assert (done.code, done.err) == (6, "")
    assert done.out.splitlines() == [
        f"job {a_job}: {what} dead_letter",
        "1 job, 5 events: the record of 1 is not true",
    ]
    query("delete from job_event")
    query("insert into job (org_id, type) values (%s, 'bare')", ORG)
    done = holdfast("job", "verify", "--all", "--json")
    assert (done.code, done.data["found"]) == (6, 2)
    assert {(lie["seq"], lie["what"]) for lie in done.data["lies"]} == {
        (None, f"the row is {state}, and has no event at all") for state in ("queued", "dead_letter")
    }


def test_the_timeline_of_a_job_and_the_stats_of_all(holdfast: Run, a_job: UUID) -> None:
    """J-43, J-44."""
    told = holdfast("job", "timeline", str(a_job), "--json").data
    assert (told["ledger"], told["id"]) == ("job", str(a_job))
    hops = [(event["prev"], event["next"], event["detail"]["verb"]) for event in told["events"]]
    assert hops == [
        (None, "queued", "enqueue"),
        ("queued", "running", "claim"),
        ("running", "running", "progress"),
        ("running", "failed", "exhaust"),
        ("failed", "dead_letter", "exhaust"),
    ]
    assert "half [bold]way; 50 %" in holdfast("job", "timeline", str(a_job), "--tenant", str(ORG)).out
    for command in ("verify", "timeline"):
        done = holdfast("job", command, str(a_job), "--tenant", str(uuid4()))
        assert (done.code, done.out, done.err) == (4, "", f"holdfast: no job with the id {a_job}\n")
    told = holdfast("job", "stats", "--json").data
    assert (told["ledger"], told["rows"]) == ("job", 1)
    assert {one["state"]: one["rows"] for one in told["states"]} == dict.fromkeys(JOB.states, 0) | {
        "dead_letter": 1
    }
    assert holdfast("job", "stats", "--tenant", str(uuid4()), "--json").data["rows"] == 0
