"""`holdfast sql`: one statement of the console, or a console to type them in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, options, output, record
from holdfast.errors import SyntaxRefused

if TYPE_CHECKING:
    from holdfast.apps.system.console import Answer, Context, Session, Statement
    from holdfast.platform import Holdfast

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST = 65536  # bytes of a statement that are read; the console itself takes fewer characters
GAP = 3  # columns between two of a table


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(metavar="[STATEMENT]", help="Like SHOW JOBS; without one: a console, or stdin."),
    ] = None,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Look after the platform's own data by statements: SHOW JOBS, STORAGE FLUSH, BACKUP and so on."""
    found = application.load(app)
    application.settle(found)
    who = options.doer(by)
    if statement is None and sys.stdin.isatty() and output.terminal():
        from holdfast.cli import sql_console

        sql_console.converse(found, who, json)
        return
    text = _fed() if statement is None else statement
    try:
        answer = application.run(_once(found, text, who))
    except SyntaxRefused as error:
        if not json:
            point(text, error)
        raise
    tell(answer, json)


def _fed() -> str:
    """The statement that comes from standard input; bytes that are no text are the console's to refuse."""
    return sys.stdin.buffer.read(LONGEST).decode("utf-8", "surrogateescape")


async def _once(app: Holdfast, text: str, by: str | None) -> Answer:
    from holdfast.apps.system import console

    statement = console.parse(text)  # what cannot be read needs no database
    async with app:
        return await answered(app, statement, await context(app), by)


async def context(app: Holdfast) -> Context:
    """What statements need of an application that is open."""
    from holdfast.apps.system import console
    from holdfast.apps.system.bench import bench_of

    return await console.context_of(bench_of(app))


async def answered(app: Holdfast, statement: Statement, context: Context, by: str | None) -> Answer:
    """Does what a statement says, and enters it in the audit if it was an order."""
    from holdfast.apps.system import console
    from holdfast.apps.system.ledger import NAME

    answer = await console.perform(session(by), statement, context)
    if not isinstance(statement, console.READS):
        jobs = [str(row[0]) for row in answer.rows if row[0] is not None]
        told: dict[str, Any] = {"statement": type(statement).__name__, "jobs": jobs, "answer": answer.message}
        async with app.database.connection() as conn:
            row_id = jobs[0] if len(jobs) == 1 else None
            await record.note(conn, by, "sql", ledger=NAME, row_id=row_id, rows=len(jobs), detail=told)
    return answer


def session(by: str | None) -> Session:
    """Whoever sits at the shell: an administrator."""
    from holdfast.apps.system.console import Session

    return Session(who=record.who(by), administrator=True)


# -- telling ---------------------------------------------------------------------------------------------


def point(text: str, error: SyntaxRefused) -> None:
    """Shows where in a text the console has stopped to understand."""
    from holdfast.apps.system.console import caret

    output.error(caret(text, error.position))


def tell(answer: Answer, json: bool) -> None:
    """Prints an answer: a table, or JSON; and how many rows there are where somebody looks, or is misled."""
    if json:
        rows = [list(row) for row in answer.rows]
        output.data({"columns": answer.columns, "rows": rows, "message": answer.message, "more": answer.more})
        return
    headings = [name.upper().replace("_", " ") for name in answer.columns]
    rows = [_readable(answer, row) for row in answer.rows]
    if output.terminal() and rows and _width(headings, rows) > output.console().width:
        _one_by_one(answer, rows)
    else:
        output.table(headings, rows)
    if output.terminal():
        output.line(f"({output.readable(answer.message)})")
    elif answer.more:
        output.flush()
        output.error(answer.message)


def _readable(answer: Answer, row: Sequence[Any]) -> list[Any]:
    """A row as people read it: times are moments, states have their colours."""
    return [_cell(answer, place, value) for place, value in enumerate(row)]


def _cell(answer: Answer, place: int, value: Any) -> Any:
    from holdfast.apps.system.ledger import SYSTEM_JOBS

    if place in answer.times and isinstance(value, int):
        return moment(value)
    if answer.columns[place] == "status" and isinstance(value, str):
        return output.shade(SYSTEM_JOBS, value)
    return value


def moment(milliseconds: int) -> datetime | int:
    """A time as people read it; one that no calendar has stays a number.

    >>> moment(1738324800000).isoformat(), moment(10**18)
    ('2025-01-31T12:00:00+00:00', 1000000000000000000)
    """
    try:
        return EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return milliseconds


def _width(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> int:
    """How many columns of a terminal a table would take; its last column may be broken."""
    widths = [len(name) for name in headings]
    for row in rows:
        widths = [max(width, output.cell(value).cell_len) for width, value in zip(widths, row, strict=True)]
    return sum(widths[:-1]) + len(headings[-1]) + GAP * (len(headings) - 1)


def _one_by_one(answer: Answer, rows: Sequence[Sequence[Any]]) -> None:
    """Prints each row by itself, names and values below one another: it is too wide for a line."""
    for number, row in enumerate(rows, start=1):
        output.line(f"— {number} —")
        output.facts(zip(answer.columns, row, strict=True))
