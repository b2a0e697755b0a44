"""`--app module:name` finds the user's application, or says in one sentence why not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.kit import Run
from holdfast.cli.application import find, load
from holdfast.errors import InvalidInput, LedgerError


@pytest.fixture(autouse=True)
def _in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def why_not(spec: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        find(spec)
    return str(caught.value)


def test_an_application_is_found_in_the_working_folder(folder: Path) -> None:
    assert find("shop:app").handlers.kinds("tasks")
    (folder / ".env").write_text("HOLDFAST_APP=shop:app\n")
    assert load(None) is find("shop:app")


def test_what_cannot_be_found_is_told_in_a_sentence(folder: Path) -> None:
    assert why_not("shop") == "--app: must be like module:name, not 'shop'"
    assert why_not("shap:app") == f"--app: there is no module 'shap' in {folder} or among the packages"
    assert why_not("shop:apple") == "--app: shop has no 'apple'; its applications are: app, bare"
    assert why_not("json:app") == "--app: json has no 'app', and no Holdfast application at all"
    assert why_not("shop:text") == "--app: shop:text is a str, not a Holdfast application"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\nraise ValueError('boom')", "ValueError: boom ({file}:2)"),
        (
            "import nowhere_to_be_found",
            "ModuleNotFoundError: No module named 'nowhere_to_be_found' ({file}:1)",
        ),
        ("def f(:", "SyntaxError: invalid syntax ({file}:1)"),
        ("import sys\n\nsys.exit('no')", "SystemExit: no ({file}:3)"),
        ("import json\njson.loads('{')", "JSONDecodeError: Expecting property name"),
    ],
)
def test_what_breaks_at_import_is_told_with_its_place(folder: Path, code: str, said: str) -> None:
    (folder / "faulty.py").write_text(code)
    message = why_not("faulty:app")
    assert message.startswith("--app: faulty cannot be imported: " + said.format(file=folder / "faulty.py"))
    assert str(folder / "faulty.py") in message


def test_an_error_of_ours_at_import_speaks_for_itself(folder: Path) -> None:
    (folder / "faulty.py").write_text(
        "from holdfast import Holdfast\nfrom holdfast.apps.jobs.ledger import JOB\nHoldfast(ledgers=[JOB])"
    )
    with pytest.raises(LedgerError, match="there is a ledger 'job' already"):
        find("faulty:app")


def test_a_broken_application_ends_a_command_with_one_sentence(holdfast: Run, folder: Path) -> None:
    (folder / "faulty.py").write_text("raise ValueError('boom')")
    done = holdfast("enqueue", "tasks", "mail", "--app", "faulty:app", bare=True)
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == f"holdfast: --app: faulty cannot be imported: ValueError: boom ({folder / 'faulty.py'}:1)\n"
    )
