"""Shell completion: the scripts, and the words that shells ask us for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cli.kit import COMMAND, Run


def complete(holdfast: Run, line: str, env: dict[str, str] | None = None) -> list[str]:
    """What bash is told when somebody presses Tab at the end of a line."""
    words = line.split(" ")
    asked = {
        "_HOLDFAST_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        **(env or {}),
    }
    done = holdfast(bare=True, env=asked)
    assert (done.code, done.err) == (0, "")
    return done.out.split()


@pytest.mark.parametrize(
    ("shell", "words"),
    [("bash", "complete -o default -F"), ("zsh", "compdef"), ("fish", "complete --command holdfast")],
)
def test_a_script_for_each_shell(holdfast: Run, shell: str, words: str) -> None:
    done = holdfast("completion", shell, bare=True)
    assert (done.code, done.err) == (0, "")
    assert words in done.out
    assert f"_HOLDFAST_COMPLETE=complete_{shell}" in done.out
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=done.out, text=True, check=True)


def test_the_commands_are_completed(holdfast: Run) -> None:
    assert {"serve", "top", "watch", "explain", "token", "completion"} <= set(complete(holdfast, "holdfast "))
    assert complete(holdfast, "holdfast tok") == ["token"]
    assert complete(holdfast, "holdfast token ") == ["create", "list", "revoke"]
    assert complete(holdfast, "holdfast schedules r") == ["run-once", "rebuild", "resend"]
    assert "--reason" in complete(holdfast, "holdfast pause job --")


def test_the_names_of_ledgers_and_their_states_are_completed(holdfast: Run, folder: Path) -> None:
    ledgers = ["job", "tasks", "sync_jobs", "capture_session", "schedule_notification", "system_jobs"]
    assert complete(holdfast, "holdfast list ") == ledgers
    assert complete(holdfast, "holdfast watch ta") == ["tasks"]
    assert complete(holdfast, "holdfast stats j") == ["job"]
    assert complete(holdfast, "holdfast job timeline --ledger t") == ["tasks"]
    assert complete(holdfast, "holdfast list job --state d") == ["dead_letter"]
    assert complete(holdfast, "holdfast list capture_session --state d") == ["done"]
    (folder / "town.py").write_text(
        "print('noise')\n"
        "from holdfast import Holdfast\n"
        "from ledgers import PARCELS\n"
        "app = Holdfast(ledgers=[PARCELS])\n"
    )
    here = {"HOLDFAST_APP": "town:app", "PYTHONPATH": str(Path(__file__).parents[1])}
    assert "parcels" in complete(holdfast, "holdfast list ", here)
    assert complete(holdfast, "holdfast list --app town:app par", {"PYTHONPATH": here["PYTHONPATH"]}) == [
        "parcels"
    ]


def test_an_application_that_cannot_be_loaded_completes_nothing_and_says_nothing(holdfast: Run) -> None:
    assert complete(holdfast, "holdfast list ", {"HOLDFAST_APP": "nowhere:app"}) == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_itself_completes_a_ledger(
    holdfast: Run, folder: Path, bare_environment: dict[str, str]
) -> None:
    script = holdfast("completion", "bash", bare=True).out
    (folder / "holdfast").write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    (folder / "holdfast").chmod(0o755)
    typed = "COMP_WORDS=(holdfast list ta); COMP_CWORD=2; _holdfast_completion holdfast; echo ${COMPREPLY[@]}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{typed}"],
        env={**bare_environment, "PATH": f"{folder}:{bare_environment['PATH']}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "tasks\n"
