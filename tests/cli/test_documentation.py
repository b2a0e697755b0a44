"""docs/cli.md has every command, every option and every exit code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from holdfast import errors
from holdfast.cli import checkup, jobs, watch
from holdfast.cli.program import program

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def commands(command: Any, path: str = "holdfast") -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its full name."""
    if not hasattr(command, "commands"):
        yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


def section(path: str) -> str:
    """What the document says about a command, up to the next heading."""
    heading = f"\n### `{path}`"
    assert heading in DOCUMENT, f"docs/cli.md has no section {heading.strip()}"
    return DOCUMENT.split(heading, 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]


def test_the_document_has_every_command_with_every_option_and_argument() -> None:
    found = dict(commands(typer.main.get_command(program)))
    assert len(found) > 20
    for path, command in found.items():
        text = section(path)
        for parameter in command.params:
            if getattr(parameter, "hidden", False) or parameter.name == "help":
                continue
            for spelling in parameter.opts if parameter.opts[0].startswith("-") else [parameter.name.upper()]:
                shown = {"FOR_": "--for", "IDS": "ID", "LINES": "--from"}.get(spelling, spelling)
                assert f"`{shown}" in text or f" {shown}" in text or f"[{shown}" in text, (
                    f"{path}: {shown} is not documented"
                )


def test_every_command_that_prints_data_knows_json() -> None:
    # They show what happens, and their logs can be JSON; a script is a script.
    live = {f"holdfast {name}" for name in ("up", "worker", "serve", "completion", "schedules loop")}
    for path, command in commands(typer.main.get_command(program)):
        assert path in live or "--json" in [
            spelling for parameter in command.params for spelling in parameter.opts
        ]


def test_the_document_has_the_exit_codes_of_watch_and_doctor() -> None:
    assert f"| {watch.NOT_YET} | not yet" in DOCUMENT
    assert f"| `NOT_YET` | {watch.NOT_YET} |" in DOCUMENT
    assert f"| {checkup.LOOSENS} | `doctor` proposes" in DOCUMENT
    assert f"| `LOOSENS` | {checkup.LOOSENS} |" in DOCUMENT
    taken = {kind.exit_code for kind in errors.HoldfastError.__subclasses__()} | {jobs.UNTRUE}
    assert not taken & {watch.NOT_YET, checkup.LOOSENS}


def test_the_document_has_every_error_with_its_exit_code() -> None:
    tree = [errors.HoldfastError]
    for kind in tree:
        tree += [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]  # not the API's
    for kind in tree:
        if "code" in vars(kind) and kind is not errors.HoldfastError:
            assert f"| `{kind.code}` | {kind.exit_code} |" in DOCUMENT, f"{kind.code} is not documented"
