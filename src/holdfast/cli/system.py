"""`holdfast system`: jobs that look after the platform's own data, and what they tell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from json import JSONDecodeError
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import (
    application,
    options,
    output,
    record,
    system_lost,
    system_shown,
    system_told,
    system_waiting,
)
from holdfast.cli.system_shown import JobId, load, opened
from holdfast.cli.system_waiting import Unserved
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.values import Row
    from holdfast.platform import Holdfast

commands = typer.Typer(help="Maintenance: archive, delete, back up, restore.", no_args_is_help=True)
commands.command("list")(system_shown.list_jobs)
commands.command("legacy")(system_shown.legacy)
commands.command("show")(system_shown.show)
commands.command("types")(system_shown.types)
commands.command("logs")(system_shown.logs)

Here = Annotated[
    bool, typer.Option("--here", help="Wait for its end; this process does it, unless a worker is quicker.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# -- ordering --------------------------------------------------------------------------------------------


@commands.command()
def run(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="What is to be done; `holdfast system types`.")],
    parameters: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="What it needs to know.")
    ] = None,
    json_params: Annotated[
        str | None, typer.Option("--json-params", metavar="JSON", help="The same as one JSON object.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Refuse it while another job of this key goes on.")
    ] = None,
    max_retries: Annotated[
        int | None, typer.Option("--max-retries", help="How often it is tried again, 0 to 255.")
    ] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Which queue; default: default.")] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher ones are taken first.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and tell how far it is.")] = False,
    here: Here = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Make a job; with --wait the exit code says how it ended."""
    from holdfast.apps.system.types import read_type

    kind = read_type(type)
    given = _given(kind, parameters or [], json_params)
    more = {"key": key, "max_retries": max_retries, "queue": queue, "priority": priority}
    _made(load(app), [(kind, given, more)], options.doer(by), wait or here, here, json)


def _given(kind: Any, pairs: Sequence[str], text: str | None) -> Any:
    """The parameters that were typed: by name, or as JSON."""
    from holdfast.apps.system.fields import fields_of, parsed

    if text is not None:
        if pairs:
            raise InvalidInput(field="--json-params", message="give this, or NAME=VALUE: one of both")
        try:
            return parsed(text)
        except ValueError as error:
            said = f"is not JSON: {error}" if isinstance(error, JSONDecodeError) else str(error)
            raise InvalidInput(field="--json-params", message=said) from None
    known = {one.name: one for one in fields_of(kind)}
    found: dict[str, Any] = {}
    parts: dict[str, dict[str, str]] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        whole, dot, part = name.partition(".")
        if not (name and sign):
            raise InvalidInput(field="NAME=VALUE", message=f"is like ledger=job, not {pair!r}")
        if dot:  # subject.org_id=42
            parts.setdefault(whole, {})[part] = value
        else:
            found[name] = known[name].read(value) if name in known else value
    for name in parts.keys() & found.keys():
        raise InvalidInput(field=name, message="is given twice: as a whole, and by a part")
    return {**found, **parts}


def _made(
    app: Holdfast,
    wishes: Sequence[tuple[Any, Any, dict[str, Any]]],
    by: str | None,
    wait: bool,
    here: bool | None,
    json: bool,
) -> None:
    """Makes jobs, and waits for them if that is wanted."""
    try:
        rows = application.run(_make(app, wishes, by, wait, here, json))
    except Unserved as lonely:
        system_waiting.unserved(lonely, json)
        return
    if wait:
        system_waiting.finish(rows, json)
    elif json:
        output.data(system_told.whole(rows[0]))
    else:
        output.line(str(rows[0].id))


async def _make(
    app: Holdfast,
    wishes: Sequence[tuple[Any, Any, dict[str, Any]]],
    by: str | None,
    wait: bool,
    here: bool | None,
    json: bool,
) -> list[Row]:
    from holdfast.apps.system import actions, executors, parameters

    async with opened(app) as bench:
        for kind, given, _ in wishes if len(wishes) > 1 else ():  # all, or none
            await executors.check(kind, parameters.read(kind, given), bench)
        ids: list[str] = []
        for kind, given, more in wishes:
            noted = _noting(by, "system run", type=str(kind), parameters=given)
            ids.append((await actions.create(bench, kind, given, by=by, noted=noted, **more)).id)
        if not wait:
            return [await actions.show(bench, one) for one in ids]
        try:
            return await system_waiting.until_ended(app, bench, ids, here, quiet=json)
        except asyncio.CancelledError:
            output.error(f"left as it is: `holdfast system kill {' '.join(ids)}` calls it off")
            raise


def _noting(by: str | None, action: str, **detail: Any) -> Callable[[Any, str], Any]:
    """What writes the entry of a new job into the audit, in its transaction."""
    from holdfast.apps.system.ledger import NAME

    async def noted(conn: Any, id: str) -> None:
        await record.note(conn, by, action, ledger=NAME, row_id=id, rows=1, detail=detail)

    return noted


@commands.command()
def kill(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The jobs.")],
    by: options.By = None,
    reason: options.Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Call jobs off, at once; one that runs stops at its next safe point."""
    from holdfast.apps.system.types import read_id

    rows = application.run(_kill(load(app), [read_id(one) for one in ids], options.doer(by), reason))
    if json:
        output.data({"jobs": [system_told.job(row) for row in rows]})
        return
    for row in rows:
        output.line(f"{row.id} is {row.state}")


async def _kill(app: Holdfast, ids: Sequence[str], by: str | None, reason: str | None) -> list[Row]:
    """Each order and its entry in the audit, both or none; the first that is refused ends it."""
    from holdfast.apps.system.ledger import NAME

    rows: list[Row] = []
    async with app, app.database.connection() as conn:
        store = app.store(NAME)
        for one in ids:
            async with conn.transaction():
                await store.cancel(conn, one, by=by, reason=reason)
                detail = {"reason": reason}
                await record.note(conn, by, "cancel", ledger=NAME, row_id=one, rows=1, detail=detail)
                rows.append(await store.get(conn, one))
            store.ordered("cancel", [one], by, reason)
    return rows


@commands.command()
def retry(
    id: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and tell how far it is.")] = False,
    here: Here = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Make a new job like one that has ended."""
    try:
        row = application.run(_retry(load(app), id, options.doer(by), wait or here, here, json))
    except Unserved as lonely:
        system_waiting.unserved(lonely, json)
        return
    if wait or here:
        system_waiting.finish([row], json)
    else:
        output.data(system_told.whole(row)) if json else output.line(str(row.id))


async def _retry(app: Holdfast, id: str, by: str | None, wait: bool, here: bool, json: bool) -> Row:
    from holdfast.apps.system import actions

    async with opened(app) as bench:
        noted = _noting(by, "system retry", of=id)
        made = await actions.retry(bench, id, by=by, noted=noted)
        if not wait:
            return await actions.show(bench, made.id)
        return (await system_waiting.until_ended(app, bench, [made.id], here, quiet=json))[0]


# -- backups ---------------------------------------------------------------------------------------------


@commands.command()
def backup(
    schemas: Annotated[
        list[str] | None, typer.Argument(metavar="[SCHEMA]...", help="Which; default: all of the platform.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="LOCATION", help="The folder; default: one named after the time."),
    ] = None,
    compression: Annotated[
        str, typer.Option("--compression", help="How it is compressed: zstd or none.")
    ] = "zstd",
    here: Here = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Back schemas up, and wait for it; done in this process where no worker would."""
    from holdfast.apps.system.types import JobType

    found, who = load(app), options.doer(by)
    given = application.run(_places(found, schemas or [], to))
    wishes = [
        (
            JobType.BACKUP,
            {"schema": schema, "backup_location": place, "compression": compression},
            dict[str, Any](),
        )
        for schema, place in given
    ]
    _made(found, wishes, who, True, here or None, json)


async def _places(app: Holdfast, schemas: Sequence[str], to: str | None) -> list[tuple[str, str]]:
    """The schemas, each with the folder that it goes to: one that is named has the location to itself."""
    from holdfast.apps.system.schemas import schemas_of
    from holdfast.runtime.overview import clock

    async with opened(app) as bench, bench.database.connection() as conn:
        meant = list(dict.fromkeys(schemas)) or await schemas_of(conn, bench.registry)
        place = to or f"{await clock(conn):%Y-%m-%dT%H%M%SZ}"
    if len(schemas) == 1 and to is not None:
        return [(meant[0], place)]
    return [(schema, f"{place.rstrip('/')}/{schema}") for schema in meant]


@commands.command()
def restore(
    location: Annotated[
        str, typer.Argument(metavar="LOCATION", help="The backup's folder, as `system backup` was told.")
    ],
    into: Annotated[str, typer.Option("--into", metavar="SCHEMA", help="The schema that it becomes.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Take the place of a schema that is there.")
    ] = False,
    yes: Yes = False,
    here: Here = False,
    without_job: Annotated[
        bool, typer.Option("--without-job", help="Do it here and now, where the tables of jobs are lost.")
    ] = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Restore a backup, and wait for it; done in this process where no worker would."""
    from holdfast.apps.system.types import JobType

    if overwrite and not yes:
        if json or not sys.stdin.isatty():
            raise InvalidInput(field="--yes", message="is needed here: what is there now is replaced")
        typer.confirm(f"replace all that is in the schema {into}?", abort=True, err=True)
    given = {"backup_location": location, "target_schema": into, "overwrite": overwrite}
    found = load(app)
    if without_job:
        system_lost.restore(found, given, json)
        return
    try:
        _made(found, [(JobType.RESTORE, given, {})], options.doer(by), True, here or None, json)
    except Exception as error:
        system_lost.advise(found, error)
        raise
