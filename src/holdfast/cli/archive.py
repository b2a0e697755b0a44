"""`holdfast archive`: what was flushed out of the tables, listed and asked in SQL. Needs no database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import application, options, output
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.apps.system.archive_query import Answer, Archived
    from holdfast.platform import Holdfast

commands = typer.Typer(help="Archived rows: what there is, and SQL over it.", no_args_is_help=True)


@commands.command("list")
def list_tables(app: options.App = None, json: options.Json = False) -> None:
    """List the tables of which rows are archived."""
    found = application.run(_list(_settled(app)))
    if json:
        output.data([vars(one) for one in found])
        return
    rows = [(one.table, one.files, one.rows, one.bytes, one.first, one.last) for one in found]
    output.table(("TABLE", "FILES", "ROWS", "BYTES", "FIRST", "LAST"), rows)


@commands.command()
def query(
    sql: Annotated[
        str, typer.Argument(metavar="SQL", help="One SELECT; an archived table has its own name.")
    ],
    limit: Annotated[int, typer.Option(min=1, help="Answer with so many rows at most.")] = 1000,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Give up after this long.")] = "60s",
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Ask the archive in SQL: `holdfast archive query "select status, count(*) from job group by 1"`."""
    seconds = options.seconds_of("--timeout", timeout)
    if not seconds:
        raise InvalidInput(field="--timeout", message="must be longer than 0")
    answer = application.run(_query(_settled(app), sql, limit, seconds))
    if json:
        output.data({"columns": answer.columns, "rows": answer.rows, "cut": answer.cut})
        return
    output.table(answer.columns, answer.rows)
    if answer.cut:
        output.flush()
        output.error(f"there is more: these are the first {limit:,} rows")


def _settled(app: str | None) -> Holdfast:
    found = application.load(app)
    application.settle(found)
    return found


async def _list(app: Holdfast) -> list[Archived]:
    from holdfast.apps.system import archive_query, places

    with places.answering():
        return await archive_query.archived(places.archive_of(app.settings))


async def _query(app: Holdfast, sql: str, limit: int, seconds: float) -> Answer:
    from holdfast.apps.system import archive_query, places

    with places.answering():
        return await archive_query.query(places.archive_of(app.settings), sql, rows=limit, seconds=seconds)
