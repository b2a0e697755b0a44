"""`holdfast enqueue`: one row of work, or one for each line of a file, from the shell."""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from holdfast.cli import application, options, output, progress
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.values import Item, Options, Receipt
    from holdfast.platform import Holdfast

BATCH = 1000  # lines of one statement
ITEM = re.compile(r"items\[(\d+)\]\.?")  # how the engine names the place of what is wrong

KindName = Annotated[str, typer.Argument(metavar="KIND", help="The kind of work, like email:send.")]
Payload = Annotated[
    str | None, typer.Argument(metavar="[PAYLOAD]", help="The payload as JSON; - reads standard input.")
]
Lines = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="FILE", help="Add a row for each line, a payload as JSON; - reads standard input."
    ),
]
Key = Annotated[
    str | None,
    typer.Option(help="Idempotency key: a second enqueue makes no row. With --from, KEY:1, KEY:2 and so on."),
]
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
    lines: Lines = None,
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
    """Add one row of work and print its id, or add a row for each line of a file, all or none."""
    if lines is not None and payload is not None:
        raise InvalidInput(field="--from", message="has the payloads: give it, or PAYLOAD, not both")
    how: Options = {
        "key": key,
        "priority": priority,
        "delay": options.seconds_of("--delay", delay),
        "run_at": options.time_of("--run-at", run_at),
        "limit": limit,
        "backoff": backoff,
        "queue": queue,
        "tenant": tenant,
        "extras": _columns(column or []),
    }
    body = payload_of(payload)
    items = None if lines is None else list(_items(lines, kind, how))
    found = application.load(app)
    declared = found.store(ledger).ledger
    application.settle(found)
    with options.naming(declared, kind="KIND"):
        if items is None:
            receipt = application.run(_add(found, ledger, kind, body, how, options.doer(by)))
            _tell_one(ledger, receipt, json)
        else:
            added = application.run(_add_all(found, ledger, items, options.doer(by), quiet=json))
            _tell_all(ledger, len(items), added, json)


def _tell_one(ledger: str, receipt: Receipt, json: bool) -> None:
    if json:
        output.data({"ledger": ledger, "id": receipt.id, "created": receipt.created})
        return
    output.line(str(receipt.id or ""))
    if not receipt.created:
        output.error(f"{ledger} has this key already: nothing was added")


def _tell_all(ledger: str, lines: int, added: int, json: bool) -> None:
    if json:
        output.data({"ledger": ledger, "lines": lines, "created": added})
        return
    there = lines - added
    output.line(f"{added:,} added" + (f"; {there:,} were there already" if there else ""))


async def _add(app: Holdfast, ledger: str, kind: str, payload: Any, how: Options, by: str | None) -> Receipt:
    async with app:
        return await app.enqueue(ledger, kind, payload, by=by, **how)


async def _add_all(
    app: Holdfast, ledger: str, items: list[tuple[int, Item]], by: str | None, *, quiet: bool
) -> int:
    """Adds all items, each with the number of its line, in one transaction; answers how many were new."""
    added = 0
    async with app, app.database.connection() as conn, conn.transaction():
        with progress.told("rows", len(items), quiet=quiet) as tell:
            for begin in range(0, len(items), BATCH):
                batch = items[begin : begin + BATCH]
                with _naming_lines(batch):
                    receipts = await app.enqueue_many(ledger, [item for _, item in batch], by=by, conn=conn)
                added += sum(receipt.created for receipt in receipts)
                tell(begin + len(batch))
    return added


def _items(name: str, kind: str, how: Options) -> Iterator[tuple[int, Item]]:
    """An item for each line that is not blank, with the line's number."""
    from holdfast.engine.values import Item

    template, key = Item(kind=kind, **how), how.get("key")
    with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as source:
        for number, line in enumerate(source, 1):
            if not line.strip():
                continue
            try:
                body = payload_of(line)
            except InvalidInput as error:
                raise InvalidInput(field=f"line {number}", message=error.fields["message"]) from None
            yield number, replace(template, payload=body, key=f"{key}:{number}" if key else key)


@contextmanager
def _naming_lines(batch: list[tuple[int, Item]]) -> Generator[None]:
    """What is wrong with an item is told with the number of its line."""
    try:
        yield
    except InvalidInput as error:
        place = ITEM.match(error.field)
        if place is None:
            raise
        field = f"line {batch[int(place[1])][0]}: {error.field[place.end() :]}".removesuffix(": ")
        raise InvalidInput(field=field, message=error.fields["message"]) from None


def payload_of(text: str | bytes | None) -> Any:
    """The payload that a text means; `-` is what standard input has."""
    if text is None:
        return None
    try:
        body = sys.stdin.buffer.read() if text == "-" else text
        body = body.decode() if isinstance(body, bytes) else body
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
            raise InvalidInput(field="--column", message=f"must be like name=value, not {pair!r}")
        found[name] = value
    return found
