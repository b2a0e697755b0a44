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

# A terminal with fewer columns is not told when rows were made, nor how often they ran: notes matter more.
NARROW, NARROWER = 120, 100
MOST = 1000  # rows of one list
# The fields of a row in the order in which `show` tells them; the rest has a form of its own.
FACTS = ("id", "kind", "tenant", "state", "stage", "progress", "attempts", "owner", "fence", "due")
TIMES = ("created", "updated", "claimed", "started", "finished")


def list_rows(
    ledger: options.LedgerName,
    state: options.States = None,
    kind: options.Kind = None,
    owner: options.Owner = None,
    queue: options.Queue = None,
    tenant: options.Tenant = None,
    code: options.Code = None,
    where: options.Where = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    limit: Annotated[int, typer.Option(help="How many rows at most, up to 1000.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on where the page before ended.")] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List rows, the newest first."""
    meant = options.which(state, kind, owner, queue, tenant, code, where, created_after, created_before)
    found = application.load(app)
    declared = found.store(ledger).ledger
    application.settle(found)
    with options.naming(declared):
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
    tenant: options.Tenant = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show all there is to know of one row."""
    found = application.load(app)
    declared = found.store(ledger).ledger
    application.settle(found)
    with options.naming(declared):
        row = application.run(_row(found, ledger, id, tenant))
    allowed = [verb for verb in ("cancel", "requeue") if verb in declared.lifecycle.verbs(row.state)]
    if json:
        output.data({"ledger": ledger, **_whole(row), "allowed": allowed})
        return
    facts = {name: getattr(row, name) for name in (*FACTS, *TIMES, "error")}
    facts["due"] = None if row.state in declared.ends else row.due
    facts["progress"] = None if row.progress is None else f"{row.progress:g} %"
    facts["attempts"] = f"{_runs(row)} {_counted(declared)}" if row.attempts is not None else None
    told = _told(declared)
    output.facts([("ledger", ledger), *facts.items(), ("allowed", ", ".join(allowed) or None)])
    output.facts([(name, value) for name, value in row.columns.items() if name not in told])
    for name, value in (("payload", row.payload), ("result", row.result)):
        if value is not None:
            output.line(name)
            output.line(output.readable(json_module.dumps(value, ensure_ascii=False, indent=2)))


def _print(ledger: Ledger, page: Page) -> None:
    headings = ("ID", "KIND", "STATE", _counted(ledger).upper(), "CREATED", "NOTE")
    width = output.console().width
    left_out = {*((4,) if width < NARROW else ()), *((3,) if width < NARROWER else ())}
    lines = [headings, *(_cells(ledger, row) for row in page.rows)]
    headings, *rows = [[cell for n, cell in enumerate(line) if n not in left_out] for line in lines]
    output.table(headings, rows, cut=bool(left_out))


async def _page(app: Holdfast, ledger: str, meant: Filter, limit: int, cursor: str | None) -> Page:
    """As many rows as are wanted, page by page of the store's."""
    from holdfast.engine.looks import PAGE
    from holdfast.engine.reading import must_lie
    from holdfast.engine.values import Page

    must_lie(limit, MOST)
    rows: list[Row] = []
    async with app, app.database.connection() as conn:
        while True:
            wanted = min(PAGE, limit - len(rows))
            page = await app.store(ledger).find(conn, meant, limit=wanted, cursor=cursor)
            rows += page.rows
            cursor = page.cursor
            if cursor is None or len(rows) == limit:
                return Page(tuple(rows), cursor)


async def _row(app: Holdfast, ledger: str, id: str, tenant: str | None) -> Row:
    async with app:
        return await app.get(ledger, id, tenant=tenant)


def _whole(row: Row) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def _short(row: Row) -> dict[str, Any]:
    return {name: value for name, value in _whole(row).items() if name != "columns"}


def _cells(ledger: Ledger, row: Row) -> tuple[Any, ...]:
    return row.id, row.kind, output.shade(ledger, row.state), _runs(row), row.created, _note(ledger, row)


def _counted(ledger: Ledger) -> str:
    """What the count of attempts counts."""
    return "retries" if ledger.attempts and ledger.attempts.counts == "retries" else "runs"


def _runs(row: Row) -> str:
    """How many runs, or retries, were counted, of how many."""
    if row.attempts is None:
        return ""
    return str(row.attempts) if row.limit is None else f"{row.attempts}/{row.limit}"


def _note(ledger: Ledger, row: Row) -> str:
    """What is most worth knowing of a row in its state."""
    if row.state in ledger.lifecycle.held:
        return f"by {row.owner}"
    waits = row.due and row.due > row.created and row.state not in ledger.ends
    notes = [f"due {output.moment(row.due, 'seconds')}"] if row.due and waits else []
    if row.error and row.state != ledger.to("finish"):
        notes.append(row.error.splitlines()[0])
    elif row.finished:
        notes.append(f"ended {output.moment(row.finished, 'seconds')}")
    return "; ".join(notes)


def _told(ledger: Ledger) -> set[str]:
    """The columns that the fields of a row have told already."""
    from holdfast.engine.roles import CodeError, TextError, TraceError

    roles = {
        "key",
        "kind",
        "tenant",
        "state",
        "attempts",
        "limit",
        "owner",
        "fence",
        "due",
        *TIMES,
        "payload",
    }
    told = {column for role, column in ledger.columns() if role in roles}
    match ledger.errors:
        case TextError(column=message) | TraceError(message=message):
            return told | {message}
        case CodeError(code=code, message=message):
            return told | {code, message}
        case _:  # none, or one that says more in its column
            return told
