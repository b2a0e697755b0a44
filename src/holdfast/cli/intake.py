"""`holdfast enqueue`: one row of work, from the shell."""

from __future__ import annotations

import json as json_module
import sys
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from holdfast.cli import application, options, output
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.values import Receipt
    from holdfast.platform import Holdfast


KindName = Annotated[str, typer.Argument(metavar="KIND", help="The kind of work, like email:send.")]
Payload = Annotated[
    str | None, typer.Argument(metavar="[PAYLOAD]", help="The payload as JSON; - reads standard input.")
]
Key = Annotated[str | None, typer.Option(help="Idempotency key: a second enqueue makes no row.")]
Priority = Annotated[int | None, typer.Option(help="The row's priority; higher is sooner.")]
Delay = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Run after this long: 10, 500ms, 10s, 2m, 1h, 7d.")
]
RunAt = Annotated[str | None, typer.Option(metavar="TIME", help="Run at this time: 2030-01-31T12:00:00Z.")]
Limit = Annotated[int | None, typer.Option(help="The row's own limit of attempts.")]
Backoff = Annotated[
    str | None, typer.Option(help="How it waits between bad runs, where it can say: none, fixed, exp.")
]
QueueName = Annotated[str | None, typer.Option(help="The queue, where the ledger has queues.")]
TenantName = Annotated[str | None, typer.Option(help="The tenant, where the ledger has tenants.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A further column of the ledger; may be repeated."),
]


def enqueue(
    ledger: options.LedgerName,
    kind: KindName,
    payload: Payload = None,
    key: Key = None,
    priority: Priority = None,
    delay: Delay = None,
    run_at: RunAt = None,
    limit: Limit = None,
    backoff: Backoff = None,
    queue: QueueName = None,
    tenant: TenantName = None,
    column: Columns = None,
    by: options.By = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Add one row of work, and print its id."""
    waits = {"delay": options.seconds_of("delay", delay), "run_at": options.time_of("run_at", run_at)}
    place = {"queue": queue, "tenant": tenant, "extras": _columns(column or [])}
    run = {"priority": priority, "limit": limit, "backoff": backoff}
    fields = {"kind": kind, "key": key, **run, **waits, **place}
    body = payload_of(payload)
    found = application.load(app)
    found.store(ledger)
    application.settle(found)
    receipt = application.run(_add(found, ledger, {**fields, "payload": body}, options.doer(by)))
    if json:
        output.data({"ledger": ledger, "id": receipt.id, "created": receipt.created})
    elif receipt.created:
        output.line(str(receipt.id))
    else:
        output.line(str(receipt.id or ""))
        output.error(f"{ledger} has this key already: nothing was added")


async def _add(app: Holdfast, ledger: str, fields: dict[str, Any], by: str | None) -> Receipt:
    from holdfast.engine.values import Item
    from holdfast.runtime.handlers import fit

    store = app.store(ledger)
    item = fit(store.ledger, app.handlers, Item(**fields))
    async with app, app.database.connection() as conn:
        return await store.enqueue(conn, item, by=by)


def payload_of(text: str | None) -> Any:
    """The payload that a text means; `-` is what standard input has."""
    if text is None:
        return None
    try:
        body = sys.stdin.buffer.read().decode() if text == "-" else text
        return json_module.loads(body, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise InvalidInput(field="payload", message=f"is not UTF-8: {error.reason}") from None
    except ValueError as error:
        raise InvalidInput(field="payload", message=f"is not JSON: {error}") from None
    except RecursionError:
        raise InvalidInput(field="payload", message="is not JSON: it is nested too deeply") from None


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"it has {word}")


def _columns(pairs: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise InvalidInput(field="column", message=f"must be like name=value, not {pair!r}")
        found[name] = value
    return found
