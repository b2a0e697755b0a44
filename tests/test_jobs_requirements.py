"""Every requirement of `job` is named by the docstring of a test, here by its number and in a few words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent

REQUIREMENTS = {
    # enqueue
    1: "a new job is queued",
    2: "row and first event together",
    3: "one key is one job",
    4: "a repeat answers the existing",
    5: "another type is a conflict",
    6: "in the caller's own transaction",
    7: "run_at, queue, checked payload, any type",
    # claim
    8: "priority first, then run_at",
    9: "retry passes queued to running",
    10: "a claim is one statement",
    11: "none twice and none skipped",
    12: "no more than free slots",
    13: "named queues and named types",
    14: "started_at is the first start",
    # the end of a run
    15: "a lost claim changes nothing",
    16: "done succeeds and clears errors",
    17: "results live in the event",
    18: "effects and finish commit together",
    19: "a bad run is retried",
    20: "failed waits, not yet finished",
    21: "exhausted ends in dead letters",
    22: "six runs at the default",
    23: "the policy names the wait",
    24: "own delays and permanent failures",
    25: "errors are cleaned and cut",
    26: "snooze and release cost nothing",
    27: "a lost worker's run counts",
    28: "terminal states are for good",
    # people
    29: "cancel is in the row",
    30: "requeue begins all over",
    31: "other verbs are illegal edges",
    # events
    32: "one event for each hop",
    33: "the record is append-only",
    34: "the record folds into rows",
    35: "times never go backwards",
    36: "progress is a fenced event",
    37: "every statement sets updated_at",
    # tenants
    38: "row security everywhere, not forced",
    39: "a tenant sees its own",
    40: "events follow their own jobs",
    41: "the worker serves all tenants",
    42: "both roles own nothing",
    # reading
    43: "lists, timelines, counts, next retries",
    44: "another's job is not found",
    # migration
    45: "Alembic is the source",
    46: "an old jobs table survives",
    47: "upgrading twice changes nothing",
    48: "later work is not built",
}


def docstrings(folder: Path) -> Iterator[tuple[str, str]]:
    """(test, docstring) of every test function under a folder, those of classes too."""
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                yield f"{path.relative_to(folder)}::{node.name}", ast.get_docstring(node) or ""


def proofs(folder: Path) -> dict[int, list[str]]:
    """The tests of each requirement."""
    found: dict[int, list[str]] = {}
    for test, text in docstrings(folder):
        for number in re.findall(r"\bJ-(\d+)\b", text):
            found.setdefault(int(number), []).append(test)
    return found


def test_every_requirement_of_job_is_proven_by_a_test() -> None:
    proven = proofs(TESTS)
    missing = [f"J-{number}: {title}" for number, title in REQUIREMENTS.items() if number not in proven]
    assert not missing, "no test names\n" + "\n".join(missing)


def test_no_test_names_a_requirement_that_does_not_exist() -> None:
    assert list(REQUIREMENTS) == list(range(1, 49))
    unknown = {number: tests for number, tests in proofs(TESTS).items() if number not in REQUIREMENTS}
    assert not unknown
