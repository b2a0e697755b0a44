"""What a command prints: tables for people, plain columns for pipes, JSON for programs, errors on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from holdfast.engine.ledger import Ledger

PLAIN_WIDTH = 100_000  # columns of a pipe: nothing is cut or wrapped there

_debug = False


def set_debug(debug: bool) -> None:
    """Traces of errors are shown from now on, or not."""
    global _debug
    _debug = debug


def debugging() -> bool:
    """Whether somebody wants to see traces."""
    return _debug


def terminal() -> bool:
    """Whether a person looks at what we print."""
    return sys.stdout.isatty()


def data(value: Any) -> None:
    """Prints a value as JSON, and nothing else."""
    text = json.dumps(value, default=plain, ensure_ascii=False, indent=2 if terminal() else None)
    line(text)


def line(text: str) -> None:
    """Prints one line, as it is."""
    sys.stdout.write(text + "\n")


def error(text: str) -> None:
    """Prints to stderr, as it is."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def problem(value: Mapping[str, Any]) -> None:
    """Prints what went wrong as one JSON object, to stderr."""
    error(json.dumps(value, default=plain, ensure_ascii=False))


def flush() -> None:
    """Lets everything out; a reader that has gone is no error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: bool = False) -> None:
    """Prints rows with headings: framed in a terminal, plain columns elsewhere.

    A narrow terminal breaks the lines of the last column only, or cuts them.
    """
    from rich import box
    from rich.table import Table

    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "header_style": "bold"} if terminal() else {"box": None}
    grid = Table(*columns, pad_edge=False, **look)
    lines = [[cell(value) for value in row] for row in rows]
    room = console().width
    for place, column in enumerate(grid.columns[:-1]):
        column.no_wrap = True
        column.min_width = max((len(columns[place]), *(line[place].cell_len for line in lines)))
        room -= column.min_width + 3
    if cut:
        grid.columns[-1].no_wrap, grid.columns[-1].max_width = True, max(room - 2, 8)
    for line in lines:
        grid.add_row(*line)
    show(grid)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Prints names and values below one another; what is None is left out."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for name, value in pairs:
        if value is not None:
            grid.add_row(_text(name, "bold"), cell(value))
    show(grid)


def show(what: RenderableType) -> None:
    """Prints something of Rich's; in a pipe without the spaces that fill its lines up."""
    screen = console()
    if terminal():
        screen.print(what)
        return
    with screen.capture() as printed:
        screen.print(what)
    for text in printed.get().splitlines():
        line(text.rstrip())


def console() -> Console:
    """Standard output for Rich: coloured in a terminal, plain and as wide as needed elsewhere."""
    from rich.console import Console

    if terminal():
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, color_system=None, width=PLAIN_WIDTH)


def cell(value: Any) -> Text:
    """A value as people read it, without anything that would move their cursor."""
    match value:
        case None:
            return _text("")
        case datetime():
            return _text(moment(value, "seconds"))
        case dict() | list() | tuple():
            return _text(json.dumps(value, default=plain, ensure_ascii=False))
        case _ if hasattr(value, "stylize"):  # a Text already
            return value
        case _:
            return _text(str(value))


def shade(ledger: Ledger, state: str) -> Text:
    """A state in the colour of what it means: ended well, ended badly, at work, or waiting."""
    if state == ledger.to("finish"):
        return _text(state, "green")
    if state in ledger.ends:
        return _text(state, "red")
    return _text(state, "cyan" if state in ledger.lifecycle.held else "")


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(readable(text), style=style)


def readable(text: str) -> str:
    """The text with every control character but the line break shown and not obeyed.

    >>> readable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def moment(when: datetime, precision: str = "auto") -> str:
    """A time as ISO 8601 in UTC.

    >>> moment(datetime(2030, 1, 31, 12, tzinfo=UTC))
    '2030-01-31T12:00:00Z'
    """
    aware = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return aware.isoformat(timespec=precision).replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """What JSON has no word for."""
    match value:
        case datetime():
            return moment(value)
        case UUID() | Path():
            return str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case Mapping():
            return dict(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case tuple() | set() | frozenset():
            return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        case _:
            return str(value)
