"""`holdfast doctor`: whether the tables are what the ledgers' declarations say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, options, output

if TYPE_CHECKING:
    from holdfast.engine.doctor import Diagnosis
    from holdfast.engine.queries import ShippedTable
    from holdfast.engine.store import Store
    from holdfast.platform import Holdfast

LOOSENS = 9  # exit code: the proposed SQL loosens a constraint or changes a type
SIGNS = {"missing": "✗", "warning": "!", "fine": "✓"}


def doctor(
    ledger: options.SomeLedger = None,
    sql: Annotated[
        bool, typer.Option("--sql", help="Print only the SQL that mends what is missing.")
    ] = False,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Compare ledgers with their live tables, and print what is missing and the SQL that mends it.

    Exit code 1 when something is missing; 9 when the SQL loosens a constraint or changes a type.
    """
    found = application.load(app)
    names = [ledger] if ledger else list(found.stores)
    for name in names:
        found.store(name)
    application.settle(found)
    diagnoses = application.run(_examine(found, names))
    if sql:
        scripts = [script for one in diagnoses if (script := one.remedy())]
        if scripts:
            output.line("\n".join(scripts).rstrip())
    elif json:
        output.data([_told(one) for one in diagnoses])
    else:
        for one in diagnoses:
            _print(one)
    if any(one.loosens for one in diagnoses):
        raise typer.Exit(LOOSENS)
    if not all(one.healthy for one in diagnoses):
        raise typer.Exit(1)


async def _examine(app: Holdfast, names: list[str]) -> list[Diagnosis]:
    from holdfast.engine.doctor import examine

    async with app, app.database.connection() as conn:
        shipped = _shipped(app.settings.schema)
        stores = [app.store(name) for name in names]
        return [await _with_kinds(conn, one, await examine(conn, one.ledger, shipped)) for one in stores]


async def _with_kinds(conn: Any, store: Store, diagnosis: Diagnosis) -> Diagnosis:
    """Adds a warning where rows are due that no worker takes."""
    from psycopg import ProgrammingError

    from holdfast.engine.needs import Finding
    from holdfast.runtime import presence
    from holdfast.runtime.overview import kinds_without_handler

    try:
        async with conn.transaction():
            kinds = await kinds_without_handler(conn, store, await presence.fleet(conn))
    except ProgrammingError:  # the diagnosis says what is missing
        return diagnosis
    finding = Finding(
        severity="warning",
        what=f"kinds without a handler: {', '.join(kinds)}",
        promise_lost="no running worker takes their rows, which are due: start one that has a handler",
    )
    return replace(diagnosis, findings=(*diagnosis.findings, finding)) if kinds else diagnosis


def _shipped(schema: str | None) -> dict[str, ShippedTable]:
    """The built-in tables as our migrations make them, named as with this HOLDFAST_SCHEMA."""
    from sqlalchemy import CheckConstraint
    from sqlalchemy.dialects import postgresql

    from holdfast.db.migrate import within
    from holdfast.engine.queries import ShippedColumn, ShippedTable
    from holdfast.platform import metadata

    dialect = postgresql.dialect()
    return {
        name: ShippedTable(
            columns={
                column.name: ShippedColumn(
                    type=column.type.compile(dialect),
                    length=getattr(column.type, "length", None),
                    not_null=not column.nullable,
                    fills_itself=column.server_default is not None,
                )
                for column in table.columns
            },
            checks=frozenset(str(one.name) for one in table.constraints if isinstance(one, CheckConstraint)),
        )
        for name, table in within(metadata(), schema).tables.items()
    }


def _told(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "ledger": diagnosis.ledger,
        "healthy": diagnosis.healthy,
        "findings": diagnosis.findings,
        "lanes": diagnosis.lanes,
        "remedy": diagnosis.remedy(),
        "loosens": diagnosis.loosens,
    }


def _print(diagnosis: Diagnosis) -> None:
    output.line(f"{diagnosis.ledger}: {'healthy' if diagnosis.healthy else 'something is missing'}")
    for finding in diagnosis.findings:
        output.line(f"  {SIGNS.get(finding.severity, '·')} {output.readable(finding.what)}")
        if finding.promise_lost:
            output.line(f"    without it: {output.readable(finding.promise_lost)}")
    for lane in diagnosis.lanes:
        output.line(f"  {SIGNS['fine' if lane.served else 'warning']} lane {lane.lane}: {lane.plan}")
    if remedy := diagnosis.remedy():
        output.line("\n" + remedy.rstrip() + "\n")
