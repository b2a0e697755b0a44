"""`holdfast completion`: the script that teaches a shell our words, and the words that it then asks for."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import application, output

if TYPE_CHECKING:
    from holdfast.engine.store import Store

VARIABLE = "_HOLDFAST_COMPLETE"  # by which the script asks


class Shell(StrEnum):
    """The shells that we have a script for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Your shell: bash, zsh or fish.")],
) -> None:
    """Print the script that teaches your shell our commands, options, ledgers and states."""
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    output.line(get_completion_script(prog_name="holdfast", complete_var=VARIABLE, shell=shell.value))


def ledgers(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The ledgers that begin like this, with their tables."""
    return [(name, store.ledger.table) for name, store in _stores(ctx).items() if name.startswith(incomplete)]


def states(ctx: typer.Context, incomplete: str) -> list[str]:
    """The states of the ledger that was named, else of all, that begin like this."""
    stores = _stores(ctx)
    # A line that is still being typed leaves what stands before its last option among the arguments.
    words = (str(ctx.params.get("ledger")), *ctx.args)
    named = next((stores[word] for word in words if word in stores), None)
    meant = [named] if named else stores.values()
    states = dict.fromkeys(state for store in meant for state in store.ledger.states)
    return [state for state in states if state.startswith(incomplete)]


def _stores(ctx: typer.Context) -> Mapping[str, Store]:
    """The stores of the application that is meant; none where it cannot be loaded: nobody could read why."""
    spec = ctx.params.get("app") or os.environ.get(application.VARIABLE)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        return application.load(spec).stores
    return {}
