"""What the engine has committed, as it is told in jobs.log."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.apps.system.joblog import JobLog, witness
from holdfast.engine.values import Claimed, Fault, Move

ID, OTHER = "FL-4fK2mZ0q", "BK-00000000"


@pytest.fixture
def log(tmp_path: Path) -> JobLog:
    return JobLog(tmp_path / "jobs.log")


def texts(log: JobLog) -> list[str]:
    return [line.text for line in log.lines()]


def claim(**changes: object) -> Claimed:
    told: dict[str, object] = {
        "id": ID,
        "kind": "flush",
        "payload": "{}",
        "state": "running",
        "owner": "host-1",
        "fence": 1,
        "attempts": 0,
        "limit": 3,
    }
    return Claimed(**(told | changes))  # type: ignore[arg-type]


def said(log: JobLog) -> list[tuple[str, str]]:
    return [(line.level, line.text) for line in log.lines()]


def test_a_new_job_is_told_with_one_line_for_each_state_and_who_asked(log: JobLog) -> None:
    """Y-5, Y-18: in the same order for several at once."""
    witness(log).added([(ID, "flush"), (OTHER, "backup")], "ana")
    witness(log).added([(ID, "flush")], None)
    assert [(line.id, line.level, line.text) for line in log.lines()] == [
        (ID, "INFO", "new"),
        (ID, "INFO", "queued by ana"),
        (OTHER, "INFO", "new"),
        (OTHER, "INFO", "queued by ana"),
        (ID, "INFO", "new"),
        (ID, "INFO", "queued"),
    ]


def test_a_start_tells_the_node_and_which_attempt_it_is(log: JobLog) -> None:
    """Y-7, Y-18."""
    witness(log).began([claim(), claim(attempts=2)])
    assert [text for _, text in said(log)] == [
        "started on host-1 (attempt 1)",
        "started on host-1 (attempt 3)",
    ]


FAULT = Fault(code="E", message="no space", trace="Traceback:\n  here\nE: no space\n")
ENDS = {
    "done": (Move(verb="finish", claim=claim(), result="12 rows"), [("INFO", "completed: 12 rows")]),
    "done, silently": (Move(verb="finish", claim=claim()), [("INFO", "completed")]),
    "retry": (
        Move(verb="retry", claim=claim(), delay=0.1, fault=FAULT),
        [
            ("WARN", "retry 1 of 3 in 0.1 s: no space"),
            ("WARN", "Traceback:"),
            ("WARN", "  here"),
            ("WARN", "E: no space"),
        ],
    ),
    "last retry": (
        Move(verb="retry", claim=claim(attempts=2), delay=60, fault=Fault(code="E", message="again")),
        [("WARN", "retry 3 of 3 in 60 s: again")],
    ),
    "exhausted": (
        Move(verb="exhaust", claim=claim(attempts=3), fault=FAULT),
        [
            ("ERROR", "failed: no space"),
            ("ERROR", "Traceback:"),
            ("ERROR", "  here"),
            ("ERROR", "E: no space"),
        ],
    ),
    "refused": (
        Move(verb="reject", claim=claim(), fault=Fault(code="E", message="a\nb")),
        [("ERROR", "failed: a"), ("ERROR", "b")],
    ),
    "lost": (
        Move(verb="lose", claim=claim(), fault=Fault(code="WORKER_LOST", message="worker lost")),
        [("ERROR", "worker lost: host-1")],
    ),
    "lost, as told": (
        Move(
            verb="lose",
            claim=claim(owner=None),
            fault=Fault(code="WORKER_LOST", message="worker lost: host-2", trace="last answered then"),
        ),
        [("ERROR", "worker lost: host-2"), ("ERROR", "last answered then")],
    ),
    "snoozed": (Move(verb="snooze", claim=claim(), delay=5.0), [("INFO", "queued again in 5 s")]),
    "given back": (Move(verb="release", claim=claim()), [("INFO", "queued again")]),
    "called off by itself": (
        Move(verb="cancel", claim=claim(), fault=Fault(code="CANCELLED", message="enough")),
        [("INFO", "cancelled: enough")],
    ),
    "no end": (Move(verb="start", claim=claim()), []),
}


@pytest.mark.parametrize(("move", "lines"), ENDS.values(), ids=[*ENDS])
def test_an_end_is_told_with_its_level_its_summary_and_its_trace(
    log: JobLog, move: Move, lines: list[tuple[str, str]]
) -> None:
    """Y-9..Y-11, Y-14, Y-16, Y-18, Y-19."""
    witness(log).wrote([move], None)
    assert said(log) == lines


def test_an_order_is_told_with_who_said_it_and_why(log: JobLog) -> None:
    """Y-15, Y-18, Y-37."""
    heard = witness(log)
    heard.ordered("cancel", [ID, OTHER], "ana", "wrong ledger")
    heard.ordered("cancel", [ID], None, None)
    heard.ordered("requeue", {ID}, "ana", None)
    heard.ordered("claim", {ID}, "ana", None)
    assert said(log) == [
        ("INFO", "cancelled by ana: wrong ledger"),
        ("INFO", "cancelled by ana: wrong ledger"),
        ("INFO", "cancelled"),
        ("INFO", "queued again by ana"),
    ]


def test_a_witness_never_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Y-20: neither when the log cannot be written nor when nobody can tell what happened."""
    (tmp_path / "file").touch()
    for heard in (witness(JobLog(tmp_path / "file" / "jobs.log")), witness(JobLog(tmp_path / "jobs.log"))):
        heard.added([(ID, "flush")], "ana")
        heard.began([claim(id=None)])
        heard.wrote([None], None)  # type: ignore[list-item]
        heard.ordered("cancel", [ID], "a\nb", "c\ud800")
    assert "cannot be written" in caplog.text
    assert "nobody could make" in caplog.text
    assert texts(JobLog(tmp_path / "jobs.log"))[-2:] == ["cancelled by a", "b: c\ufffd"]
