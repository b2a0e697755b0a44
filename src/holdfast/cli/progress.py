"""How far long work has come: a bar for people, a line now and then for logs. On stderr where it is lines."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from holdfast.cli import output

EVERY = 5.0  # seconds between two lines, where there is no bar


class Tell(Protocol):
    """Called now and then with how much is done; `note` says more about it."""

    def __call__(self, done: int, note: str = "") -> None: ...


@contextmanager
def told(noun: str, total: int, *, quiet: bool = False) -> Generator[Tell]:
    """Shows what the callback is told, against `total`; `quiet`: nowhere."""
    if quiet:
        yield _nobody
    elif output.terminal():
        with _bar(noun, total) as tell:
            yield tell
    else:
        yield _lines(noun, total)


def _nobody(done: int, note: str = "") -> None:
    """Nobody wants to know."""


@contextmanager
def _bar(noun: str, total: int) -> Generator[Tell]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(), transient=True) as bar:
        task = bar.add_task(noun, total=total)

        def tell(done: int, note: str = "") -> None:
            bar.update(task, completed=done, description=f"{noun}, {note}" if note else noun)

        yield tell


def _lines(noun: str, total: int) -> Tell:
    last = time.monotonic()

    def tell(done: int, note: str = "") -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            output.error(f"{done:,} of {total:,} {noun}" + (f", {note}" if note else ""))

    return tell
