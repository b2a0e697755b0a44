"""`holdfast list` and `holdfast show`: the rows of a ledger as people read them."""

from __future__ import annotations

import dataclasses
import json as json_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, options, output

if TYPE_CHECKING:
    from holdfast.engine.ledger import Ledger
    from holdfast.engine.values import Filter, Page, Row
    from holdfast.platform import Holdfast

HEADINGS = ("ID", "KIND", "STATE", "RUNS", "CREATED", "NOTE")
NARROW = 120  # columns; a terminal with fewer is not told when rows were made: the note matters more


def list_rows(
    ledger: options.LedgerName,
    state: options.States = None,
    kind: options.Kind = None,
    owner: options.Owner = None,
    queue: options.Queue = None,
    tenant: options.Tenant = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    limit: Annotated[int, typer.Option(help="How many rows at most, up to 1000.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on where the page before ended.")] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List rows, the newest first."""
    meant = options.which(state, kind, owner, queue, tenant, created_after, created_before)
    found = application.load(app)
    declared = found.store(ledger).ledger
    application.settle(found)
    page = application.run(_page(found, ledger, meant, limit, cursor))
    if json:
        output.data({"rows": [_short(row) for row in page.rows], "cursor": page.cursor})
        return
    _print(declared, page)
    if page.cursor:
        output.flush()
        output.error(f"there are more: --cursor {page.cursor}")


def show(
    ledger: options.LedgerName,
    id: options.RowId,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show all there is to know of one row."""
    found = application.load(app)
    declared = found.store(ledger).ledger
    application.settle(found)
    row = application.run(_row(found, ledger, id))
    allowed = [verb for verb in ("cancel", "requeue") if verb in declared.lifecycle.verbs(row.state)]
    if json:
        output.data({"ledger": ledger, **_whole(row), "allowed": allowed})
        return
    named = _whole(row)
    columns: dict[str, Any] = named.pop("columns")
    payload = named.pop("payload")
    named["attempts"] = _runs(row) or None
    del named["limit"]
    told = _told(declared)
    output.facts([("ledger", ledger), *named.items(), ("allowed", ", ".join(allowed) or None)])
    output.facts([(name, value) for name, value in columns.items() if name not in told])
    if payload is not None:
        output.line("payload")
        output.line(output.readable(json_module.dumps(payload, ensure_ascii=False, indent=2)))


def _print(ledger: Ledger, page: Page) -> None:
    narrow = output.terminal() and output.console().width < NARROW
    left_out = HEADINGS.index("CREATED") if narrow else None
    lines = [HEADINGS, *(_cells(ledger, row) for row in page.rows)]
    headings, *rows = [[cell for n, cell in enumerate(line) if n != left_out] for line in lines]
    output.table(headings, rows)


async def _page(app: Holdfast, ledger: str, meant: Filter, limit: int, cursor: str | None) -> Page:
    async with app, app.database.connection() as conn:
        return await app.store(ledger).find(conn, meant, limit=limit, cursor=cursor)


async def _row(app: Holdfast, ledger: str, id: str) -> Row:
    async with app:
        return await app.get(ledger, id)


def _whole(row: Row) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def _short(row: Row) -> dict[str, Any]:
    return {name: value for name, value in _whole(row).items() if name != "columns"}


def _cells(ledger: Ledger, row: Row) -> tuple[Any, ...]:
    return row.id, row.kind, output.shade(ledger, row.state), _runs(row), row.created, _note(ledger, row)


def _runs(row: Row) -> str:
    """How many runs were counted, of how many."""
    if row.attempts is None:
        return ""
    return str(row.attempts) if row.limit is None else f"{row.attempts}/{row.limit}"


def _note(ledger: Ledger, row: Row) -> str:
    """What is most worth knowing of a row in its state."""
    if row.state in ledger.lifecycle.held:
        return f"by {row.owner}"
    notes = [f"due {output.moment(row.due, 'seconds')}"] if row.due and row.state not in ledger.ends else []
    if row.error and row.state != ledger.to("finish"):
        notes.append(row.error.splitlines()[0])
    elif row.finished:
        notes.append(f"ended {output.moment(row.finished, 'seconds')}")
    return "; ".join(notes)


def _told(ledger: Ledger) -> set[str | None]:
    """The columns that the roles of a row have told already."""
    times, attempts = ledger.times, ledger.attempts
    payload = ledger.payload if isinstance(ledger.payload, tuple) else (ledger.payload,)
    limit = attempts.limit if attempts and isinstance(attempts.limit, str) else None
    return {
        *(
            ledger.key.column,
            ledger.state,
            ledger.kind,
            ledger.owner,
            ledger.fence,
            ledger.due and ledger.due.column,
        ),
        *(times.created, times.updated, times.claimed, times.started, times.finished),
        *(attempts and attempts.column, limit, getattr(ledger.errors, "column", None)),
        *payload,
    }
