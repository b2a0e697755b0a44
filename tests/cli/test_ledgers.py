"""What ledgers there are can be told without a database."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from cli.kit import COMMAND, Run
from holdfast.apps.tasks.ledger import TASKS
from holdfast.engine.lifecycle import mermaid
from holdfast.platform import APPS


def test_ledger_list_names_the_ledgers_and_what_the_application_handles(holdfast: Run) -> None:
    told = holdfast("ledger", "list", "--json", bare=True, env={"HOLDFAST_APP": "shop:app"}).data
    assert [one["name"] for one in told] == [ledger.name for app in APPS for ledger in app.ledgers]
    assert told[0]["handled"] == ["broken", "compute", "double", "slow", "stubborn", "stuck"]
    done = holdfast("ledger", "list", bare=True)
    assert done.code == 0
    assert "dead_letter" in done.out
    assert not done.err


def test_ledger_show_tells_roles_lanes_and_edges(holdfast: Run) -> None:
    told = holdfast("ledger", "show", "tasks", "--json", bare=True).data
    assert told["roles"]["owner"] == "worker_id"
    assert {"verb": "finish", "from": ["running"], "via": [], "to": "completed"} in told["edges"]
    shown = holdfast("ledger", "show", "tasks", bare=True).out
    for words in ("worker_id", "priority desc, next_retry_at", "dead_letter, failed"):
        assert words in shown


def test_ledger_diagram_prints_the_lifecycle_for_mermaid(holdfast: Run) -> None:
    diagram = mermaid(TASKS.lifecycle)
    assert holdfast("ledger", "diagram", "tasks", bare=True).out == diagram
    told = holdfast("ledger", "diagram", "tasks", "--json", bare=True).data
    assert told == {"ledger": "tasks", "mermaid": diagram}


def test_the_program_and_the_module_are_the_same(bare_environment: dict[str, str]) -> None:
    number = version("holdfast")
    for command in ([str(Path(sys.executable).with_name("holdfast"))], COMMAND):
        done = subprocess.run([*command, "version"], capture_output=True, text=True, env=bare_environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, number + "\n", "")


def test_version_prints_a_number_and_nothing_else(holdfast: Run) -> None:
    number = holdfast("version", bare=True).out.strip()
    assert number[0].isdigit()
    assert holdfast("version", "--json", bare=True).data == {"version": number}
