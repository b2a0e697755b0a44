"""`holdfast job`: what the journal of a ledger tells, and whether it tells the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, completion, options, output, progress, stats
from holdfast.errors import InvalidInput, NotAllowed

if TYPE_CHECKING:
    from holdfast.engine.ledger import Ledger
    from holdfast.engine.store import Store
    from holdfast.engine.values import Event
    from holdfast.engine.verify import Report
    from holdfast.platform import Holdfast

UNTRUE = 6  # exit code
PAGE = 1000  # events

commands = typer.Typer(help="The history of rows: is it true, and what does it tell?", no_args_is_help=True)

LedgerOption = Annotated[
    str,
    typer.Option(
        "--ledger", metavar="LEDGER", help="A ledger with a journal.", autocompletion=completion.ledgers
    ),
]


@commands.command()
def verify(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The row; or give --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All rows that there are.")] = False,
    tenant: options.Tenant = None,
    ledger: LedgerOption = "job",
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Replay the events of rows and compare them with the rows; exit code 6 when they do not agree."""
    if (id is None) != every:
        raise InvalidInput(field="id", message="give one ID, or --all: one of both")
    found, store = _open(app, ledger)
    key = _key(store, id)
    report = application.run(_verify(found, store, key, tenant, quiet=json))
    if json:
        output.data(
            {
                "ledger": ledger,
                "rows": report.rows,
                "events": report.events,
                "true": not report.found,
                "found": report.found,
                "lies": report.lies,
            }
        )
    else:
        _print(store.ledger, report)
    if report.found:
        raise typer.Exit(UNTRUE)


@commands.command()
def timeline(
    id: options.RowId,
    tenant: options.Tenant = None,
    ledger: LedgerOption = "job",
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show the events of one row, the first one first."""
    found, store = _open(app, ledger)
    key = _key(store, id)
    events = application.run(_timeline(found, store, key, tenant))
    if json:
        output.data({"ledger": ledger, "id": key, "events": events})
        return
    headings = ("WHEN", "FROM", "TO", "VERB", "ATTEMPT", "BY", "NOTE")
    output.table(headings, [_cells(store.ledger, event) for event in events])


@commands.command("stats")
def count(
    tenant: options.Tenant = None,
    ledger: LedgerOption = "job",
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Count the rows of one ledger: `holdfast stats LEDGER --exact`."""
    stats.stats(ledger, tenant=tenant, exact=True, app=app, json=json)


def _open(app: str | None, ledger: str) -> tuple[Holdfast, Store]:
    """The application, and the store of a ledger that has a journal."""
    found = application.load(app)
    store = found.store(ledger)
    if store.ledger.journal is None:
        raise InvalidInput(field="--ledger", message=f"{ledger} has no journal: nothing tells its history")
    application.settle(found)
    return found, store


def _key(store: Store, id: str | None) -> Any:
    from holdfast.engine.reading import key_of

    return None if id is None else key_of(store.ledger, id)


async def _verify(app: Holdfast, store: Store, key: Any, tenant: str | None, *, quiet: bool) -> Report:
    from holdfast.engine.values import Filter
    from holdfast.engine.verify import hidden, verify

    async with app, app.database.connection() as conn:
        if key is not None:
            return await verify(store, conn, id=key, tenant=tenant)
        # Exact, as it costs a hundredth of what follows: a row is counted, but its events are all read.
        total = sum(count.rows for count in await store.count(conn, Filter(tenant=tenant)))
        if not total and await hidden(store, conn):
            raise NotAllowed(
                message=f"row level security hides the rows of {store.ledger.name} from this login"
            )
        with progress.told(_noun(store.ledger), total, quiet=quiet) as tell:
            return await verify(
                store, conn, tenant=tenant, tell=lambda rows, events: tell(rows, f"{events:,} events")
            )


def _print(ledger: Ledger, report: Report) -> None:
    for lie in report.lies:
        output.line(_one_line(f"{ledger.name} {lie.id}: {lie.what}"))
    if report.found > len(report.lies):
        output.line(f"… and {report.found - len(report.lies):,} more")
    told = f"{report.rows:,} {_noun(ledger, report.rows)}, {report.events:,} events"
    verdict = f"the record of {report.found:,} is not true" if report.found else "the record is true"
    output.line(f"{told}: {verdict}")


def _noun(ledger: Ledger, count: int = 2) -> str:
    if ledger.name == "job":
        return "job" if count == 1 else "jobs"
    return f"{'row' if count == 1 else 'rows'} of {ledger.name}"


def _one_line(text: str) -> str:
    return output.readable(text).replace("\n", "\\n")


async def _timeline(app: Holdfast, store: Store, key: Any, tenant: str | None) -> list[Event]:
    events: list[Event] = []
    async with app, app.database.connection() as conn:
        while True:
            after = events[-1].seq if events else 0
            page = await store.timeline(conn, key, tenant=tenant, after=after, limit=PAGE)
            events += page
            if len(page) < PAGE:
                return events


def _cells(ledger: Ledger, event: Event) -> tuple[Any, ...]:
    told = event.detail
    by = told.get("by") or told.get("worker")
    when = output.moment(event.at, "milliseconds")
    states = (event.prev, output.shade(ledger, event.next))
    return when, *states, told.get("verb"), told.get("attempt"), by and _one_line(str(by)), _note(event)


def _note(event: Event) -> str:
    """What an event tells beyond its move: how far, why, or until when."""
    told = event.detail
    notes = [str(told[name]) for name in ("stage", "reason") if told.get(name) is not None]
    if (progress := told.get("progress")) is not None:
        notes.append(f"{progress:g} %" if isinstance(progress, int | float) else str(progress))
    if error := output.fault(told.get("error")):
        notes.append(error)
    if told.get("verb") in ("retry", "snooze") and told.get("run_at"):
        notes.append(f"due {told['run_at']}")
    return _one_line("; ".join(notes))
