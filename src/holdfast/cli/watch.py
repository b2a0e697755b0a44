"""`holdfast watch`: what happens to one row, until it has ended."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, completion, options, output
from holdfast.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from holdfast.engine.store import Connection, Store
    from holdfast.engine.values import Event, Row
    from holdfast.platform import Holdfast

ENDED_BADLY, NOT_YET = 1, 8  # exit codes
LOOK_SECONDS = 0.25
EVENTS = 1000  # of one look


@dataclass(frozen=True, kw_only=True)
class News:
    """What a row is like since a moment: its state, how far it has come, and what went wrong."""

    at: datetime
    state: str
    stage: str | None = None
    progress: float | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for; `deadline` is on the monotonic clock."""

    store: Store
    key: Any
    tenant: str | None
    deadline: float | None


def watch(
    ledger: Annotated[
        str,
        typer.Argument(
            metavar="LEDGER|ID",
            help="The ledger; or the id alone, which is then looked for in every ledger.",
            autocompletion=completion.ledgers,
        ),
    ],
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The row's id.")] = None,
    tenant: options.Tenant = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Stop waiting after this long, with exit code 8."),
    ] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Tell every change of a row until it has ended; exit code 0 when it ended well, 1 when badly."""
    seconds = options.seconds_of("--timeout", timeout)
    if seconds is not None and seconds < 0:
        raise InvalidInput(field="--timeout", message="must be 0 or more seconds")
    found = application.load(app)
    deadline = None if seconds is None else time.monotonic() + seconds
    wishes = [
        Wish(store=store, key=key, tenant=tenant, deadline=deadline)
        for store, key in _places(found, ledger, id, tenant)
    ]
    application.settle(found)
    wish, last = application.run(_follow(found, wishes, None if id else ledger, json))
    if not output.heard():
        return
    declared = wish.store.ledger
    if last.state not in declared.ends:
        told = f"{declared.name} {wish.key} is {last.state}: it did not end within {timeout}"
        output.problem({"code": "NOT_YET", "message": told}) if json else output.error(f"holdfast: {told}")
        raise typer.Exit(NOT_YET)
    if last.state != declared.to("finish"):
        raise typer.Exit(ENDED_BADLY)


def _places(app: Holdfast, ledger: str, id: str | None, tenant: str | None) -> list[tuple[Store, Any]]:
    """Where the row may be, and its key there: in the ledger that is named, or in all with such ids."""
    from holdfast.engine.reading import key_of, tenant_of

    if id is not None:
        store = app.store(ledger)
        return [(store, key_of(store.ledger, id))]
    if ledger in app.stores:
        raise InvalidInput(field="ID", message=f"is missing: say `holdfast watch {ledger} ID`")
    places: list[tuple[Store, Any]] = []
    for store in app.stores.values():
        with suppress(InvalidInput):
            tenant_of(store.ledger, tenant)
            places.append((store, key_of(store.ledger, ledger)))
    return places


async def _which(conn: Connection, wishes: Sequence[Wish], alone: str | None) -> Wish:
    """The wish whose ledger has the row; `alone` is its id, if no ledger was named."""
    if alone is None:
        return wishes[0]
    found: list[Wish] = []
    for wish in wishes:
        with suppress(NotFound):
            await wish.store.get(conn, wish.key, tenant=wish.tenant)
            found.append(wish)
    if not found:
        raise NotFound(what="row", id=alone)
    if len(found) > 1:
        names = ", ".join(wish.store.ledger.name for wish in found)
        command = shlex.join(("holdfast", "watch", "LEDGER", alone))
        raise InvalidInput(field="ID", message=f"several ledgers have it ({names}): say `{command}`")
    return found[0]


async def _follow(app: Holdfast, wishes: Sequence[Wish], alone: str | None, json: bool) -> tuple[Wish, News]:
    """Shows what happens until the row has ended, until it is time, or until nobody reads it any more.

    Answers with the row that was meant and what was seen last.
    """
    async with app:
        async with app.database.connection() as conn:
            wish = await _which(conn, wishes, alone)
            seq = await _newest(conn, wish)
            last = _of_row(await wish.store.get(conn, wish.key, tenant=wish.tenant))
        with _shown(wish, json) as show:
            show(last)
            async with aclosing(_changes(app, wish, seq, last)) as changes:
                async for one in changes:
                    last = one
                    show(last)
                    if not output.heard():
                        break
    return wish, last


async def _newest(conn: Connection, wish: Wish) -> int:
    """The number of the row's last event; 0 where there is no journal."""
    seq = 0
    while wish.store.ledger.journal:
        page = await wish.store.timeline(conn, wish.key, tenant=wish.tenant, after=seq, limit=EVENTS)
        seq = page[-1].seq if page else seq
        if len(page) < EVENTS:
            break
    return seq


async def _changes(app: Holdfast, wish: Wish, seq: int, last: News) -> AsyncGenerator[News]:
    """Every change after the event `seq`. It stops at an end, and when it is time."""
    while last.state not in wish.store.ledger.ends:
        news: list[News] = []
        try:
            async with app.database.connection() as conn:
                news, seq = await _since(conn, wish, seq, last)
        except application.losses():
            output.error("the database does not answer; trying again")
        changed = False
        for one in news:
            if (one.state, one.stage, one.progress) != (last.state, last.stage, last.progress):
                changed = True
                yield (last := one)
        rest = LOOK_SECONDS if wish.deadline is None else wish.deadline - time.monotonic()
        if rest <= 0:
            return
        if not changed:
            await asyncio.sleep(min(LOOK_SECONDS, rest))


async def _since(conn: Connection, wish: Wish, seq: int, last: News) -> tuple[list[News], int]:
    """What the journal has noted: a look at the row would miss what is over already, and is all there is
    where there is no journal.
    """
    if wish.store.ledger.journal is None:
        return [_of_row(await wish.store.get(conn, wish.key, tenant=wish.tenant))], seq
    events = await wish.store.timeline(conn, wish.key, tenant=wish.tenant, after=seq, limit=EVENTS)
    news: list[News] = []
    for event in events:
        news.append(_of_event(event, news[-1] if news else last))
    return news, events[-1].seq if events else seq


def _of_event(event: Event, last: News) -> News:
    """An event as news. How far it was stays known, until the row is taken again."""
    told = event.detail
    anew = told.get("verb") == "claim"
    return News(
        at=event.at,
        state=event.next,
        stage=told.get("stage") or (None if anew else last.stage),
        progress=told.get("progress", None if anew else last.progress),
        error=output.fault(told.get("error")),
    )


def _of_row(row: Row) -> News:
    times = (row.created, row.claimed, row.started, row.finished, row.updated)
    return News(
        at=max(when for when in times if when),
        state=row.state,
        stage=row.stage,
        progress=row.progress,
        error=row.error,
    )


# -- showing ---------------------------------------------------------------------------------------------


@contextmanager
def _shown(wish: Wish, json: bool) -> Generator[Callable[[News], None]]:
    """How news is shown: JSON or words, a line each; in a terminal with a bar below them."""
    ledger = wish.store.ledger
    if json:
        yield lambda news: output.record(
            {"ledger": ledger.name, "id": wish.key, **asdict(news), "ended": news.state in ledger.ends}
        )
    elif not output.terminal():
        yield lambda news: output.said(_line(news))
    else:
        with _bar() as show:
            yield show


def _line(news: News) -> str:
    far = "" if news.progress is None else f"{news.progress:g} %"
    trouble = news.error.splitlines()[0] if news.error else ""
    words = (output.moment(news.at, "milliseconds"), news.state, far, news.stage, trouble)
    return output.readable(" ".join(word for word in words if word))


@contextmanager
def _bar() -> Generator[Callable[[News], None]]:
    """A bar for how far it is, above it a line for each new state."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[state]}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[stage]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=output.console(), transient=True) as bar:
        task = bar.add_task("", total=None, state="", stage="")
        last = ""

        def show(news: News) -> None:
            nonlocal last
            if news.state != last:
                last = news.state
                bar.console.print(_line(replace(news, stage=None, progress=None)))
            stage = output.readable(news.stage or "")
            total = None if news.progress is None else 100
            bar.update(task, completed=news.progress or 0, total=total, state=news.state, stage=stage)
            bar.refresh()

        yield show
