"""Waiting for system jobs: a bar for each, and a worker of our own where nobody else would do them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import typer

from holdfast.cli import output, system_told
from holdfast.cli.progress import EVERY
from holdfast.cli.watch import NOT_YET

if TYPE_CHECKING:
    from holdfast.apps.system.bench import Bench
    from holdfast.apps.system.tails import Progress
    from holdfast.engine.values import Row
    from holdfast.platform import Holdfast
    from holdfast.runtime.worker import Worker

FAILED = 1  # exit code
LOOK = 0.2  # seconds between two looks at the jobs
WONDER = 5.0  # seconds between two questions why one waits
UNSERVED = ("NO_WORKERS", "NO_WORKER_FOR_LEDGER", "NO_WORKER_FOR_QUEUE", "NO_WORKER_FOR_KIND")


class Unserved(Exception):
    """Nobody does a job, and nobody will; why is told by the explanation."""

    def __init__(self, row: Row, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


class Show(Protocol):
    """Called with every look at the jobs, and how far each has come."""

    def __call__(self, rows: Sequence[Row], far: Mapping[str, Progress | None]) -> None: ...


async def until_ended(
    app: Holdfast, bench: Bench, ids: Sequence[str], here: bool | None, *, quiet: bool
) -> list[Row]:
    """The jobs when all have ended. `here`: a worker of ours does them; None: if nobody else does."""
    wondered = float("-inf")
    with _shown(quiet=quiet) as show:
        async with _worker(app, ids) as work:
            while True:
                rows = await _look(bench, ids, show)
                left = [row for row in rows if row.finished is None]
                if not left:
                    return rows
                if not here and time.monotonic() - wondered >= WONDER:
                    wondered = time.monotonic()
                    if lonely := await _unserved(app, left, quiet=quiet):
                        if here is False:
                            raise lonely
                        here = True
                if here:
                    work(left)
                await asyncio.sleep(LOOK)


async def _look(bench: Bench, ids: Sequence[str], show: Show) -> list[Row]:
    from holdfast.apps.system import actions
    from holdfast.apps.system.tails import TAILS

    rows = [await actions.show(bench, one) for one in ids]
    tails = [await asyncio.to_thread(TAILS.look, bench.log, one) for one in ids]
    show(rows, {one: tail.progress for one, tail in zip(ids, tails, strict=True)})
    return rows


async def _unserved(app: Holdfast, rows: Sequence[Row], *, quiet: bool) -> Unserved | None:
    """The first job that nobody will do as things are. One that only has to wait for a person is told."""
    from holdfast.apps.system.ledger import NAME
    from holdfast.runtime.explain import explain

    async with app.database.connection() as conn:
        for row in rows:
            why = await explain(conn, app.store(NAME), row, app.settings)
            lost = why.code == "HELD_BY_LOST" and "no worker is alive" in why.sentence
            if why.code in UNSERVED or lost:
                return Unserved(row, why.sentence)
            if why.code == "PAUSED" and not quiet:
                output.error(f"{row.id} waits: {why.sentence}")
    return None


@asynccontextmanager
async def _worker(app: Holdfast, ids: Sequence[str]) -> AsyncGenerator[Any]:
    """A function that starts a worker for these jobs, once; it is stopped at the end.

    Whoever interrupts us gets an end at once: what ran is queued again.
    """
    from holdfast.apps.system.here import worker_for

    worker: Worker | None = None
    task: asyncio.Task[int] | None = None

    def start(rows: Sequence[Row]) -> None:
        nonlocal worker, task
        if task is None:
            queues = sorted({str(row.columns.get("queue") or "default") for row in rows})
            worker = worker_for(app, ids, queues)
            task = asyncio.create_task(worker.run())
        elif task.done():
            task.result()

    try:
        yield start
        if worker and task:
            worker.stop()
            await task
    finally:
        if task and not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


# -- what is shown meanwhile -----------------------------------------------------------------------------


@contextmanager
def _shown(*, quiet: bool) -> Generator[Show]:
    if quiet:
        yield _nobody
    elif output.terminal():
        with _bars() as show:
            yield show
    else:
        yield _lines()


def _nobody(rows: Sequence[Row], far: Mapping[str, Any]) -> None:
    """Nobody wants to know."""


@contextmanager
def _bars() -> Generator[Show]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=output.console(), transient=True) as bars:
        tasks = dict[str, Any]()

        def show(rows: Sequence[Row], far: Mapping[str, Any]) -> None:
            for row in rows:
                name = str(row.id)
                if name not in tasks:
                    tasks[name] = bars.add_task(name, total=None)
                told = far[name]
                done = 1 if row.finished else told.done if told and told.total else 0
                total = 1 if row.finished else told.total if told else None
                bars.update(tasks[name], description=_told(row, told), completed=done, total=total)

        yield show


def _lines() -> Show:
    last = time.monotonic()

    def show(rows: Sequence[Row], far: Mapping[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last >= EVERY:
            last = time.monotonic()
            for row in rows:
                output.error(_told(row, far[str(row.id)]))

    return show


def _told(row: Row, far: Progress | None) -> str:
    """A job in a line: what it is, and how far it has come."""
    if row.state != "running" or far is None:
        return f"{row.id} {row.kind} {row.state}"
    share = "" if far.percent is None else f"{far.percent:.0f}%, "
    of = "" if far.total is None else f" of {far.total:,}"
    return f"{row.id} {row.kind} {share}{far.done:,}{of} {far.what}"


# -- the end ---------------------------------------------------------------------------------------------


def finish(rows: Sequence[Row], json: bool) -> None:
    """Tells what became of jobs that have ended; the exit code says whether all ended well."""
    if json:
        told = [system_told.whole(row) for row in rows]
        output.data(told[0] if len(told) == 1 else {"jobs": told})
    else:
        for row in rows:
            message = str(row.columns.get("message") or "").partition("\n")[0]
            output.line(output.readable(f"{row.id} {row.state}{': ' if message else ''}{message}"))
    if any(row.state != "completed" for row in rows):
        raise typer.Exit(FAILED)


def unserved(lonely: Unserved, json: bool) -> None:
    """Tells that nobody does a job, and what would help; the job waits on."""
    message = f"{lonely.row.id} is {lonely.row.state}: {lonely.why}; --here does it in this process"
    output.problem({"code": "NOT_YET", "message": message, "id": lonely.row.id}) if json else output.error(
        f"holdfast: {message}"
    )
    raise typer.Exit(NOT_YET)
