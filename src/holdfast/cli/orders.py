"""`holdfast cancel` and `holdfast requeue`: what a person may order, row by row or by a filter."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli import application, options, output
from holdfast.errors import HoldfastError, InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.store import Connection, Store
    from holdfast.engine.values import Filter
    from holdfast.platform import Holdfast

Order = Literal["cancel", "requeue"]
DONE = {"cancel": "cancelled", "requeue": "requeued"}

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The rows; or give a filter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many rows the filter means.")]
Reason = Annotated[str | None, typer.Option("--reason", help="Why, for the journal.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing rows by a filter.")]


@dataclass(frozen=True)
class Wish:
    """What was asked for."""

    verb: Order
    ledger: str
    by: str | None
    reason: str | None
    dry_run: bool
    yes: bool
    json: bool


def cancel(
    ledger: options.LedgerName,
    ids: Ids = None,
    state: options.States = None,
    kind: options.Kind = None,
    owner: options.Owner = None,
    queue: options.Queue = None,
    tenant: options.Tenant = None,
    code: options.Code = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: options.By = None,
    reason: Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Call rows off, at once, also running ones."""
    meant = options.which(state, kind, owner, queue, tenant, code, created_after, created_before)
    _order(Wish("cancel", ledger, options.doer(by), reason, dry_run, yes, json), ids or [], meant, app)


def requeue(
    ledger: options.LedgerName,
    ids: Ids = None,
    state: options.States = None,
    kind: options.Kind = None,
    owner: options.Owner = None,
    queue: options.Queue = None,
    tenant: options.Tenant = None,
    code: options.Code = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: options.By = None,
    reason: Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Let rows that ended badly run again, with all their attempts."""
    meant = options.which(state, kind, owner, queue, tenant, code, created_after, created_before)
    _order(Wish("requeue", ledger, options.doer(by), reason, dry_run, yes, json), ids or [], meant, app)


def _order(wish: Wish, ids: list[str], meant: Filter, app: str | None) -> None:
    from holdfast.engine.reading import key_of
    from holdfast.engine.values import Filter

    filtered = not ids
    others = replace(meant, tenant=None) != Filter()  # ids may be said of one tenant's rows
    if (ids and others) or (filtered and meant == Filter()):
        raise InvalidInput(field="ids", message="give ids, or a filter like --state and --kind: one of both")
    found = application.load(app)
    store = found.store(wish.ledger)
    keys = [
        key_of(store.ledger, text) for text in ids
    ]  # one that is no id stops all, before anything is done
    application.settle(found)
    if filtered:
        application.run(_by_filter(found, store, meant, wish))
    else:
        application.run(_one_by_one(found, store, keys, meant, wish))


async def _one_by_one(app: Holdfast, store: Store, keys: list[Any], meant: Filter, wish: Wish) -> None:
    """Each row is judged alone; the first error decides the exit code, after all have been tried."""
    errors: dict[Any, HoldfastError] = {}
    async with app, app.database.connection() as conn:
        for key in keys:
            try:
                verb = store.cancel if wish.verb == "cancel" else store.requeue
                await verb(conn, key, tenant=meant.tenant, by=wish.by, reason=wish.reason)
            except HoldfastError as error:
                if len(keys) == 1:
                    raise
                errors[key] = error
    done = [key for key in keys if key not in errors]
    if wish.json:
        output.data({"ledger": wish.ledger, "verb": wish.verb, "count": len(done), "ids": done})
    else:
        output.line(f"{len(done)} {DONE[wish.verb]}")
    for error in errors.values():
        told = {"code": error.code, "message": str(error)}
        output.problem(told) if wish.json else output.error(f"holdfast: {error}")
    if errors:
        raise typer.Exit(next(iter(errors.values())).exit_code)


async def _by_filter(app: Holdfast, store: Store, meant: Filter, wish: Wish) -> None:
    async with app, app.database.connection() as conn:
        count = await _count(store, conn, meant, wish.verb)
        if count and not wish.dry_run:
            _ask(wish, count)
            verb = store.cancel_where if wish.verb == "cancel" else store.requeue_where
            count = await verb(conn, meant, by=wish.by, reason=wish.reason)
    if wish.json:
        output.data({"ledger": wish.ledger, "verb": wish.verb, "count": count, "dry_run": wish.dry_run})
    else:
        output.line(f"{count} would be {DONE[wish.verb]}" if wish.dry_run else f"{count} {DONE[wish.verb]}")


async def _count(store: Store, conn: Connection, meant: Filter, verb: Order) -> int:
    """How many rows the filter means whose state allows the verb; refuses a state that there is not."""
    allowed = store.ledger.lifecycle.allowed(verb)
    known = [state for state in meant.states if state in store.ledger.states]
    if len(known) == len(meant.states):
        states = tuple(state for state in meant.states or allowed if state in allowed)
        if not states:
            return 0
        meant = replace(meant, states=states)
    return sum(count.rows for count in await store.count(conn, meant))


def _ask(wish: Wish, count: int) -> None:
    if wish.yes:
        return
    if not sys.stdin.isatty() or wish.json:
        raise InvalidInput(field="--yes", message=f"is needed here to {wish.verb} {count} rows by a filter")
    typer.confirm(f"{wish.verb} {count} rows of {wish.ledger}?", abort=True, err=True)
