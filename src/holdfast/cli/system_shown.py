"""`holdfast system list`, `legacy`, `show`, `types` and `logs`: which jobs there are, and what they tell."""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import application, options, output, system_told, system_waiting

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.apps.system.bench import Bench
    from holdfast.apps.system.joblines import Line
    from holdfast.apps.system.joblog import JobLog
    from holdfast.apps.system.legacy import Record
    from holdfast.apps.system.logreading import Reading
    from holdfast.engine.values import Filter, Page, Row
    from holdfast.platform import Holdfast

NEWEST = 50  # lines of the log, where no job is named
MOST = 1000  # jobs of one list
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, like FL-4fK2mZ0q.")]
Type = Annotated[str | None, typer.Option("--type", help="Only jobs of this type; `holdfast system types`.")]
Statuses = Annotated[
    list[str] | None, typer.Option("--status", help="Only jobs in this status; may be repeated.")
]


def load(spec: str | None) -> Holdfast:
    """The application that is named, else the built-in apps."""
    found = application.load(spec)
    application.settle(found)
    return found


@asynccontextmanager
async def opened(app: Holdfast) -> AsyncGenerator[Bench]:
    """The bench of an application at work."""
    from holdfast.apps.system.bench import bench_of

    async with app:
        yield bench_of(app)


def list_jobs(
    type: Type = None,
    status: Statuses = None,
    key: Annotated[str | None, typer.Option("--key", help="Only jobs with this idempotency key.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Only jobs of this queue.")] = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    limit: Annotated[int, typer.Option("--limit", help="How many jobs at most, up to 1000.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where the page before ended.")] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List system jobs, the newest first."""
    from holdfast.apps.system.types import read_status, read_type
    from holdfast.engine.values import Filter

    which = Filter(
        kind=None if type is None else str(read_type(type)),
        states=tuple(dict.fromkeys(map(read_status, status or ()))),
        key=key,
        queue=queue,
        created_after=_moment("--created-after", created_after),
        created_before=_moment("--created-before", created_before),
    )
    page = application.run(_page(load(app), which, limit, cursor))
    if json:
        output.data({"jobs": [system_told.job(row) for row in page.rows], "cursor": page.cursor})
        return
    system_told.show_jobs(page)
    if page.cursor:
        output.flush()
        output.error(f"there are more: --cursor {page.cursor}")


def legacy(
    limit: Annotated[int, typer.Option("--limit", help="How many at most, up to 1000.")] = 50,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List the records of an old system.jobs, as today's are told."""
    records = application.run(_legacy(load(app), limit))
    if json:
        output.data([system_told.record(one) for one in records])
        return
    system_told.show_records(records)


async def _legacy(app: Holdfast, limit: int) -> list[Record]:
    from holdfast.apps.system.ledger import NAME
    from holdfast.apps.system.legacy import legacy_records
    from holdfast.engine.reading import must_lie

    must_lie(limit, MOST)
    async with app, app.database.connection() as conn:
        schema, _, _ = app.store(NAME).ledger.table.partition(".")
        return await legacy_records(conn, limit, schema=schema)


def _moment(field: str, text: str | None) -> datetime | None:
    from holdfast.engine import intake

    when = options.time_of(field, text)
    return None if when is None else intake.aware(field, when)


async def _page(app: Holdfast, which: Filter, limit: int, cursor: str | None) -> Page:
    """As many jobs as are wanted, page by page of the store's."""
    from holdfast.apps.system.ledger import NAME
    from holdfast.engine.looks import PAGE
    from holdfast.engine.reading import must_lie
    from holdfast.engine.values import Page

    must_lie(limit, MOST)
    rows: list[Row] = []
    async with app, app.database.connection() as conn:
        while True:
            page = await app.store(NAME).find(conn, which, limit=min(PAGE, limit - len(rows)), cursor=cursor)
            rows += page.rows
            cursor = page.cursor
            if cursor is None or len(rows) == limit:
                return Page(tuple(rows), cursor)


def show(id: JobId, app: options.App = None, json: options.Json = False) -> None:
    """Show all there is to know of one job."""
    row = application.run(_show(load(app), id))
    if json:
        output.data(system_told.whole(row))
    else:
        system_told.show_job(row)


async def _show(app: Holdfast, id: str) -> Row:
    from holdfast.apps.system import actions

    async with opened(app) as bench:
        return await actions.show(bench, id)


def types(json: options.Json = False) -> None:
    """List the types of jobs, and what each needs to know."""
    from holdfast.apps.system.fields import FINAL, about_type, fields_of, schema_of
    from holdfast.apps.system.types import TYPES

    if json:
        told = [
            {
                "type": kind,
                "prefix": kind.short_prefix,
                "description": about_type(kind),
                "final": kind in FINAL,
                "parameters": schema_of(kind),
            }
            for kind in TYPES
        ]
        output.data({"types": told})
        return
    for place, kind in enumerate(TYPES):
        output.line(f"{chr(10) if place else ''}{kind} ({kind.short_prefix}): {about_type(kind)}")
        rows = [
            (
                f"  {one.name}",
                "needed" if one.needed else json_module.dumps(one.default),
                ", ".join(one.choices) or one.kind,
                one.about,
            )
            for one in fields_of(kind)
        ]
        output.table(("  PARAMETER", "DEFAULT", "KIND", "WHAT"), rows)


def logs(
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Only this job's lines; default: the newest of all.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=1, help="Only the last so many; default: see below.")
    ] = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Read jobs.log: all lines of a job, or the newest 50 of all jobs."""
    from holdfast.apps.system.bench import log_of
    from holdfast.apps.system.types import read_id

    found, job = load(app), None if id is None else read_id(id)
    log = log_of(found.settings)
    wanted = lines or (None if job else NEWEST)
    reading = log.read(job) if wanted is None else log.tail(job, limit=wanted)
    if job and not reading.lines and not follow:
        application.run(_show(found, job))  # there is such a job, and it has told nothing here
    if follow:
        application.run(_follow(found, log, job, reading, json))
    elif json:
        output.data({"lines": [system_told.line(one) for one in reading.lines]})
    else:
        system_told.show_lines(reading.lines)


async def _follow(app: Holdfast, log: JobLog, id: str | None, reading: Reading, json: bool) -> None:
    """Prints line by line, until the job has ended; of all jobs, for ever."""
    from holdfast.apps.system import actions

    def tell(lines: Sequence[Line]) -> None:
        for one in lines if json else ():
            output.record(system_told.line(one))
        if not json:
            system_told.show_lines(lines)
            output.flush()

    tell(reading.lines)
    async with opened(app) as bench:
        while output.heard():
            ended = id is not None and (await actions.show(bench, id)).finished is not None
            more = await asyncio.to_thread(log.read, id, after=reading.cursor)
            tell(more.lines)
            reading = more
            if ended:
                return
            await asyncio.sleep(system_waiting.LOOK)
