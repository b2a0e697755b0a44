"""What a command prints: tables for people, plain columns for pipes, JSON for programs, errors on stderr."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from uuid import UUID

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from holdfast.engine.ledger import Ledger

PLAIN_WIDTH = 100_000  # columns of a pipe: nothing is cut or wrapped there

_debug = False
_heard = True


def set_debug(debug: bool) -> None:
    """Traces of errors are shown from now on, or not."""
    global _debug
    _debug = debug


def debugging() -> bool:
    """Whether somebody wants to see traces."""
    return _debug


def begin() -> None:
    """Opens a standard stream that we were started without: nobody else must ask whether it is there.

    The lowest free number is its own, so that no connection gets it, and children have it, too.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))


def heard() -> bool:
    """Whether, as far as we know, somebody still reads what we print."""
    return _heard


def terminal() -> bool:
    """Whether a person looks at what we print."""
    return sys.stdout.isatty()


def data(value: Any) -> None:
    """Prints a value as JSON, and nothing else."""
    text = json.dumps(value, default=plain, ensure_ascii=False, indent=2 if terminal() else None)
    line(text)


def record(value: Any) -> None:
    """Prints a value as one line of JSON, at once: for what goes on and on."""
    said(json.dumps(value, default=plain, ensure_ascii=False))


def said(text: str) -> None:
    """Prints one line, as it is and at once."""
    line(text)
    flush()


def line(text: str) -> None:
    """Prints one line, as it is."""
    try:
        sys.stdout.write(text + "\n")
    except OSError as error:
        _unsaid(error)


def error(text: str) -> None:
    """Prints to stderr, as it is; where that fails, there is nobody left to tell."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def problem(value: Mapping[str, Any]) -> None:
    """Prints what went wrong as one JSON object, to stderr."""
    error(json.dumps(value, default=plain, ensure_ascii=False))


def flush() -> None:
    """Lets everything out; a reader that has gone is no error."""
    try:
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)
    try:
        sys.stdout.flush()
    except OSError as error:
        _unsaid(error)


def _unsaid(error: OSError) -> None:
    """Standard output takes no more: a reader that has gone is no error, a full disk is."""
    global _heard
    _drop(sys.stdout)
    if not isinstance(error, BrokenPipeError):
        raise OSError(error.errno, error.strerror, "standard output") from None
    _heard = False


def _drop(stream: TextIO) -> None:
    """Lets what is left, and all that follows, go nowhere: Python tries once more at its end."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


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
    if terminal():
        console().print(what)
        return
    printed = io.StringIO()  # not Rich's own capture: it writes to the pipe, and leaves when that is broken
    console(printed).print(what)
    for text in printed.getvalue().splitlines():
        line(text.rstrip())


def console(file: TextIO | None = None) -> Console:
    """Standard output for Rich: coloured in a terminal, plain and as wide as needed elsewhere."""
    from rich.console import Console

    if terminal():
        return Console(highlight=False, markup=False)
    return Console(file=file, highlight=False, markup=False, color_system=None, width=PLAIN_WIDTH)


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


def fault(told: Any) -> str | None:
    """What an event tells of an error: its class, unless the message begins with it, and the message.

    >>> fault({"code": "TIMEOUT", "message": "10 s"}), fault({"code": "OSError", "message": "OSError: no"})
    ('TIMEOUT: 10 s', 'OSError: no')
    """
    match told:
        case {"code": code, "message": message}:
            return str(message) if str(message).startswith(f"{code}:") else f"{code}: {message}"
        case None:
            return None
        case other:
            return str(other)


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
