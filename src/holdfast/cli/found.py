"""`holdfast connect signals`, `inbox` and `replay`: what accounts have told, and the webhooks that came."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, connecting, options, output
from holdfast.cli.connecting import opened, uuid_of
from holdfast.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from holdfast.apps.connectors.inbox import Stored
    from holdfast.apps.connectors.service import Connectors

PAGE = 50
Limit = Annotated[int, typer.Option("--limit", min=1, max=100, help="How many at most, up to 100.")]
Cursor = Annotated[str | None, typer.Option("--cursor", help="Go on where the page before ended.")]
Provider = Annotated[str | None, typer.Option("--provider", help="Only of this provider.")]
Connection = Annotated[
    str | None, typer.Option("--connection", metavar="ID", help="Only of this connection.")
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="ID", help="Only this tenant's; default: everybody's.")
]
After = Annotated[str | None, typer.Option("--after", metavar="TIME", help="Only at this time or later.")]
Before = Annotated[str | None, typer.Option("--before", metavar="TIME", help="Only at this time or before.")]


def signals(
    tenant: Tenant = None,
    provider: Provider = None,
    connection: Connection = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only of this kind, like issue_created.")] = None,
    after: After = None,
    before: Before = None,
    payload: Annotated[bool, typer.Option("--payload", help="Tell the payloads as well.")] = False,
    limit: Limit = PAGE,
    cursor: Cursor = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List what the accounts have told, the newest first."""
    which: dict[str, Any] = {
        "connection_id": uuid_of("--connection", connection),
        "kind": kind,
        "occurred_after": _moment("--after", after),
        "occurred_before": _moment("--before", before),
        "limit": limit,
        "cursor": cursor,
    }
    whose = uuid_of("--tenant", tenant)
    page = application.run(_signals(connecting.load(app), whose, provider, which, payload))
    headings = ("ID", "HAPPENED", "PROVIDER", "KIND", "DEDUPE KEY", *(("PAYLOAD",) if payload else ()))
    rows = [
        (
            *(one.id, one.occurred_at, one.provider, one.kind, one.dedupe_key),
            *((one.payload,) if payload else ()),
        )
        for one in page.items
    ]
    told = [_without(output.plain(one), () if payload else ("payload",)) for one in page.items]
    show("signals", headings, rows, told, page, json)


async def _signals(app: Any, tenant: Any, provider: str | None, which: dict[str, Any], payload: bool) -> Any:
    from holdfast.apps.connectors import signals as stored

    async with opened(app) as (service, conn):
        return await stored.find(conn, tenant, provider=known(service, provider), payload=payload, **which)


def inbox(
    tenant: Tenant = None,
    provider: Provider = None,
    connection: Connection = None,
    status: Annotated[
        str | None,
        typer.Option("--status", help="Only in this state: pending, processed, failed, unmatched."),
    ] = None,
    after: After = None,
    before: Before = None,
    limit: Limit = PAGE,
    cursor: Cursor = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """List the webhooks that came, and what has become of them, the newest first."""
    which: dict[str, Any] = {
        "connection_id": uuid_of("--connection", connection),
        "status": status,
        "received_after": _moment("--after", after),
        "received_before": _moment("--before", before),
        "limit": limit,
        "cursor": cursor,
    }
    whose = uuid_of("--tenant", tenant)
    page = application.run(_inbox(connecting.load(app), whose, provider, which))
    told = [_told(one) for one in page.items]
    headings = ("CAME", "PROVIDER", "STATE", "TRIES", "DELIVERY", "ERROR")
    rows = [
        (
            *(one.received_at, one.provider, state["status"], one.attempts, one.delivery_id),
            output.fault(one.error),
        )
        for one, state in zip(page.items, told, strict=True)
    ]
    show("deliveries", headings, rows, told, page, json)


async def _inbox(app: Any, tenant: Any, provider: str | None, which: dict[str, Any]) -> Any:
    from holdfast.apps.connectors import listing

    async with opened(app) as (service, conn):
        return await listing.deliveries(conn, tenant, provider=known(service, provider), **which)


def replay(
    provider: Annotated[
        str, typer.Argument(metavar="PROVIDER", help="The provider; `holdfast connect providers`.")
    ],
    delivery: Annotated[
        str | None, typer.Option("--delivery", metavar="ID", help="This one; `holdfast connect inbox`.")
    ] = None,
    after: After = None,
    before: Before = None,
    tenant: Tenant = None,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Let a webhook, or all that came in a time, be processed once more."""
    if delivery is None and after is None and before is None:
        raise InvalidInput(field="--delivery", message="give one, or a time by --after and --before")
    which: dict[str, Any] = {
        "provider": provider,
        "delivery_id": delivery,
        "received_after": _moment("--after", after),
        "received_before": _moment("--before", before),
    }
    whose = uuid_of("--tenant", tenant)
    done = application.run(_replay(connecting.load(app), whose, which, by))
    if json:
        output.data({"deliveries": done.deliveries, "unmatched": done.unmatched})
        return
    output.line(f"{done.deliveries:,} to be processed once more")
    if done.unmatched:
        output.error(f"{done.unmatched:,} still fit no connection")


async def _replay(app: Any, tenant: Any, which: dict[str, Any], by: str | None) -> Any:
    from holdfast.apps.connectors import actions

    async with opened(app) as (service, conn):
        return await actions.replay(service, conn, connecting.caller(by), tenant, **which)


# -- shared ----------------------------------------------------------------------------------------------


def show(
    noun: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    told: Sequence[Any],
    page: Any,
    json: bool,
) -> None:
    """Prints a page of a list: a table, or JSON; and where the next one begins."""
    if json:
        output.data({noun: list(told), "cursor": page.cursor})
        return
    output.table(headings, rows)
    if page.cursor is not None:
        output.flush()
        output.error(f"there are more: --cursor {page.cursor}")


def known(service: Connectors, provider: str | None) -> str | None:
    """The provider that a filter names; an unknown one is a mistake, and not just nothing."""
    from holdfast.apps.connectors.catalogue import slug_of

    if provider is None:
        return None
    try:
        return service.provider(slug_of(provider)).slug
    except NotFound:
        raise InvalidInput(field="--provider", message=f"there is no provider {provider!r}") from None


def _moment(field: str, text: str | None) -> datetime | None:
    from holdfast.engine import intake

    when = options.time_of(field, text)
    return None if when is None else intake.aware(field, when)


def _told(stored: Stored) -> dict[str, Any]:
    """A delivery without its headers and its payload, and what has become of it."""
    status = "unmatched" if stored.connection_id is None else "pending"
    if stored.processed_at is not None:
        status = "processed" if stored.error is None else "failed"
    return {**_without(output.plain(stored), ("headers", "payload")), "status": status}


def _without(told: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in told.items() if name not in names}
