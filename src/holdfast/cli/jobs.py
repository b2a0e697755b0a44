"""`holdfast job`: what the journal of a ledger tells, and whether it tells the truth."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, options, output
from holdfast.errors import InvalidInput, NotAllowed

if TYPE_CHECKING:
    from holdfast.engine.ledger import Ledger
    from holdfast.engine.store import Store
    from holdfast.engine.values import Event, Stat
    from holdfast.engine.verify import Report
    from holdfast.platform import Holdfast

    Tell = Callable[[int, int], None]

UNTRUE = 6  # exit code
PAGE = 1000  # events
EVERY = 5.0  # seconds between two lines that tell how far we are, where there is no bar

commands = typer.Typer(help="The history of rows: is it true, and what does it tell?", no_args_is_help=True)

LedgerOption = Annotated[str, typer.Option("--ledger", metavar="LEDGER", help="A ledger with a journal.")]


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


@commands.command()
def stats(
    tenant: options.Tenant = None,
    ledger: LedgerOption = "job",
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Count rows by their state, and tell when the oldest of each was made."""
    found = application.load(app)
    store = found.store(ledger)
    application.settle(found)
    stats = application.run(_stats(found, store, tenant))
    if json:
        states = [dataclasses.asdict(stat) for stat in stats]
        output.data({"ledger": ledger, "rows": sum(stat.rows for stat in stats), "states": states})
        return
    lines = [(output.shade(store.ledger, one.state), f"{one.rows:,}", one.oldest, one.due) for one in stats]
    output.table(("STATE", "COUNT", "OLDEST CREATED", "FIRST DUE"), lines)


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
        if quiet:
            return await verify(store, conn, tenant=tenant)
        with _progress(store.ledger, total) as tell:
            return await verify(store, conn, tenant=tenant, tell=tell)


@contextmanager
def _progress(ledger: Ledger, total: int) -> Generator[Tell]:
    """Tells how far a verification has come: a bar for people, a line now and then for logs."""
    if not output.terminal():
        yield _lines(ledger, total)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output.console(), transient=True) as bar:
        task = bar.add_task(_noun(ledger), total=total)

        def tell(rows: int, events: int) -> None:
            bar.update(task, completed=rows, description=f"{_noun(ledger)}, {events:,} events")

        yield tell


def _lines(ledger: Ledger, total: int) -> Tell:
    last = time.monotonic()

    def tell(rows: int, events: int) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            output.error(f"{rows:,} of {total:,} {_noun(ledger)}, {events:,} events")

    return tell


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
    match told.get("error"):
        case {"code": code, "message": message}:
            told_twice = str(message).startswith(f"{code}:")  # a message may begin with its class
            notes.append(str(message) if told_twice else f"{code}: {message}")
        case None:
            pass
        case other:
            notes.append(str(other))
    if told.get("verb") in ("retry", "snooze") and told.get("run_at"):
        notes.append(f"due {told['run_at']}")
    return _one_line("; ".join(notes))


async def _stats(app: Holdfast, store: Store, tenant: str | None) -> list[Stat]:
    from holdfast.engine.values import Filter

    async with app, app.database.connection() as conn:
        return await store.stats(conn, Filter(tenant=tenant))
