"""`holdfast connect list`, `show`, `sync`, `pause` and so on: what is connected, and orders about it."""

from __future__ import annotations

import json as jsons
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, connecting, found, options, output
from holdfast.cli.connecting import opened, uuid_of
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.apps.connectors.actions import Asked
    from holdfast.apps.connectors.connections import Link

ConnectionId = Annotated[
    str, typer.Argument(metavar="ID", help="The connection's id; `holdfast connect list`.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


# -- looking ---------------------------------------------------------------------------------------------


def list_connections(
    tenant: found.Tenant = None,
    provider: found.Provider = None,
    status: Annotated[
        str | None, typer.Option("--status", help="Only in this status: active, paused, error, revoked.")
    ] = None,
    limit: found.Limit = found.PAGE,
    cursor: found.Cursor = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List connections, and how they do, the first made first."""
    whose = uuid_of("--tenant", tenant)
    page, rows = application.run(_list(connecting.load(app), whose, provider, status, limit, cursor))
    headings = ("ID", "PROVIDER", "STATUS", "FAILURES", "LAST SUCCESS", "NEXT RUN", "ACCOUNT")
    lines = [
        (
            *(one["id"], one["provider"], one["status"], one["health"]["failures"]),
            *(one["health"]["last_success"], one["health"]["next_run"]),
            one["display_name"] or one["external_id"],
        )
        for one in rows
    ]
    found.show("connections", headings, lines, rows, page, json)


async def _list(
    app: Any, tenant: Any, provider: str | None, status: str | None, limit: int, cursor: str | None
) -> tuple[Any, list[dict[str, Any]]]:
    from holdfast.apps.connectors import actions, connections

    async with opened(app) as (service, conn):
        page = await connections.listing(
            conn,
            tenant,
            provider=found.known(service, provider),
            status=status,
            limit=limit,
            cursor=cursor,
        )
        healths = await actions.healths(service, conn, page.items)
        return page, [connecting.told(link, healths[link.id]) for link in page.items]


def show(
    id: ConnectionId, tenant: found.Tenant = None, app: options.App = None, json: options.Json = False
) -> None:
    """Show a connection, and how it does; its tokens are never shown."""
    told = application.run(_show(connecting.load(app), uuid_of("ID", id), uuid_of("--tenant", tenant)))
    if json:
        output.data(told)
        return
    health, metadata = told.pop("health"), told.pop("metadata")
    error = health.pop("last_error")
    health["last_error"] = error and output.fault(error)
    sync = metadata.pop("sync", None)
    named = {"has_access_token": "access token", "has_refresh_token": "refresh token"}
    facts = [(named.get(name, name), connecting.word(value)) for name, value in told.items()]
    output.facts([*facts, *health.items(), ("sync", sync or None), ("metadata", metadata or None)])


async def _show(app: Any, id: Any, tenant: Any) -> dict[str, Any]:
    from holdfast.apps.connectors import actions

    async with opened(app) as (service, conn):
        link = await actions.find(conn, tenant, id)
        return connecting.told(link, await actions.health(service, conn, link))


# -- orders ----------------------------------------------------------------------------------------------


def sync(
    id: ConnectionId,
    full: Annotated[bool, typer.Option("--full", help="Everything once more, from the beginning.")] = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Ask for a sync now, and print the id of its job."""
    verb = "full_resync" if full else "sync_now"
    asked: Asked = application.run(_order(connecting.load(app), verb, id, by))
    if json:
        output.data({"id": asked.job.id, "job_type": asked.job.job_type, "created": asked.created})
        return
    output.line(str(asked.job.id))
    output.flush()
    if not asked.created:
        output.error("one was waiting or running already: this is it")


def pause(
    id: ConnectionId, by: options.By = None, app: options.App = None, json: options.Json = False
) -> None:
    """Sync a connection no more, until it is resumed; its webhooks are stored and wait."""
    _told(application.run(_order(connecting.load(app), "pause", id, by)), "is paused", json)


def resume(
    id: ConnectionId, by: options.By = None, app: options.App = None, json: options.Json = False
) -> None:
    """Sync a connection again that was paused, or in error."""
    _told(application.run(_order(connecting.load(app), "resume", id, by)), "is active", json)


def disconnect(
    id: ConnectionId,
    yes: Yes = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Remove an account's tokens and cancel its jobs; what it has brought stays."""
    if not yes:
        if json or not sys.stdin.isatty():
            raise InvalidInput(field="--yes", message="is needed here: the tokens are removed for good")
        typer.confirm(f"disconnect {id}, and remove its tokens for good?", abort=True, err=True)
    _told(application.run(_order(connecting.load(app), "disconnect", id, by)), "is disconnected", json)


def interval(
    id: ConnectionId,
    seconds: Annotated[int, typer.Argument(metavar="SECONDS", help="Seconds between two syncs.")],
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Set how often a connection is synced."""
    link = application.run(_order(connecting.load(app), "set_interval", id, by, seconds))
    _told(link, f"is synced every {seconds} s", json)


def cursor(
    id: ConnectionId,
    set: Annotated[
        str | None, typer.Option("--set", metavar="JSON", help="Begin the next sync there; - reads stdin.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Begin the next sync at the beginning.")] = False,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Print where the next sync of a connection begins, or say so."""
    if reset and set is not None:
        raise InvalidInput(field="--reset", message="says the opposite of --set: give one of both")
    wanted = connecting.json_of("--set", set)
    at = application.run(_cursor(connecting.load(app), uuid_of("ID", id), wanted, set is not None, reset, by))
    if json:
        output.data({"id": id, "cursor": at})
    else:
        output.line(jsons.dumps(at, ensure_ascii=False, indent=2))


async def _cursor(app: Any, id: Any, wanted: Any, given: bool, reset: bool, by: str | None) -> Any:
    from holdfast.apps.connectors import actions

    async with opened(app) as (service, conn):
        if given:
            await actions.set_cursor(conn, connecting.caller(by), None, id, wanted)
        elif reset:
            await actions.reset_cursor(conn, connecting.caller(by), None, id)
        return await actions.cursor(service, conn, None, id)


async def _order(app: Any, verb: str, id: str, by: str | None, *more: Any) -> Any:
    """Does what the app's actions have under this name, as an operator."""
    from holdfast.apps.connectors import actions

    async with opened(app) as (service, conn):
        which = (conn, connecting.caller(by), None, uuid_of("ID", id))
        if verb == "pause":
            return await actions.pause(*which)
        return await getattr(actions, verb)(service, *which, *more)


def _told(link: Link, done: str, json: bool) -> None:
    if json:
        output.data({"id": link.id, "status": link.status, "metadata": link.metadata})
    else:
        output.line(f"{link.id} {done}")
