"""`holdfast cancel` and `holdfast requeue`: what a person may order, row by row or by a filter."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.cli import application, figures, options, output, progress, record
from holdfast.errors import HoldfastError, InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.store import Connection, Store
    from holdfast.engine.values import Filter
    from holdfast.platform import Holdfast

Order = Literal["cancel", "requeue"]

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The rows; or give a filter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell how many rows the filter means.")]
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
    where: options.Where = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: options.By = None,
    reason: options.Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Call rows off, at once, also running ones."""
    meant = options.which(state, kind, owner, queue, tenant, code, where, created_after, created_before)
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
    where: options.Where = None,
    created_after: options.After = None,
    created_before: options.Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: options.By = None,
    reason: options.Reason = None,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Let rows that ended badly run again, with all their attempts."""
    meant = options.which(state, kind, owner, queue, tenant, code, where, created_after, created_before)
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
    # One that is no id stops all, before anything is done.
    keys = [key_of(store.ledger, text) for text in ids]
    application.settle(found)
    with options.naming(store.ledger):
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
                await _one(conn, store, key, meant.tenant, wish)
            except HoldfastError as error:
                if len(keys) == 1:
                    raise
                errors[key] = error
    done = [key for key in keys if key not in errors]
    if wish.json:
        output.data({"ledger": wish.ledger, "verb": wish.verb, "count": len(done), "ids": done})
    else:
        output.line(f"{len(done):,} {_done(store, wish.verb)}")
    for error in errors.values():
        told = {"code": error.code, "message": str(error)}
        output.problem(told) if wish.json else output.error(f"holdfast: {error}")
    if errors:
        raise typer.Exit(next(iter(errors.values())).exit_code)


async def _one(conn: Connection, store: Store, key: Any, tenant: str | None, wish: Wish) -> None:
    """The order and its entry in the audit, both or none."""
    verb = store.cancel if wish.verb == "cancel" else store.requeue
    async with conn.transaction():
        await verb(conn, key, tenant=tenant, by=wish.by, reason=wish.reason)
        what = {"ledger": wish.ledger, "row_id": key, "rows": 1, "detail": {"reason": wish.reason}}
        await record.note(conn, wish.by, wish.verb, **what)


async def _by_filter(app: Holdfast, store: Store, meant: Filter, wish: Wish) -> None:
    async with app, app.database.connection() as conn:
        count, exact = await _count(store, conn, meant, wish.verb)
        if not wish.dry_run and (count or not exact):
            _ask(wish, figures.count(count, exact=exact))
            count = await _all(conn, store, meant, wish, count)
    if wish.json:
        told = {"ledger": wish.ledger, "verb": wish.verb, "count": count, "dry_run": wish.dry_run}
        output.data(told | {"exact": exact} if wish.dry_run else told)
    elif wish.dry_run:
        output.line(f"{figures.count(count, exact=exact)} would be {_done(store, wish.verb)}")
    else:
        output.line(f"{count:,} {_done(store, wish.verb)}")


async def _all(conn: Connection, store: Store, meant: Filter, wish: Wish, count: int) -> int:
    """All rows of the filter, a thousand in a commit. The audit has it before it begins."""
    from holdfast.engine import reading

    verb = store.cancel_where if wish.verb == "cancel" else store.requeue_where
    detail = {"filter": reading.told_filter(meant), "reason": wish.reason}
    entry = await record.note(conn, wish.by, wish.verb, ledger=wish.ledger, detail=detail)
    with progress.told(f"{_done(store, wish.verb)}", count, quiet=wish.json) as tell:
        rows = await verb(conn, meant, by=wish.by, reason=wish.reason, tell=tell)
    await record.settle(conn, entry, rows)
    return rows


def _done(store: Store, verb: Order) -> str:
    """What has become of the rows, in the ledger's own word where it has one."""
    state = store.ledger.to(verb)
    if verb == "requeue":
        return "requeued"
    return state if state.startswith("cancel") else "cancelled"


async def _count(store: Store, conn: Connection, meant: Filter, verb: Order) -> tuple[int, bool]:
    """How many rows the filter means whose state allows the verb, and whether that is no estimate.

    Refuses a state that there is not.
    """
    allowed = store.ledger.lifecycle.allowed(verb)
    known = [state for state in meant.states if state in store.ledger.states]
    if len(known) == len(meant.states):
        states = tuple(state for state in meant.states or allowed if state in allowed)
        if not states:
            return 0, True
        meant = replace(meant, states=states)
    stats = await store.depth(conn, meant)
    return sum(stat.rows for stat in stats), all(stat.exact for stat in stats)


def _ask(wish: Wish, count: str) -> None:
    if wish.yes:
        return
    if not sys.stdin.isatty() or wish.json:
        raise InvalidInput(field="--yes", message=f"is needed here to {wish.verb} {count} rows by a filter")
    typer.confirm(f"{wish.verb} {count} rows of {wish.ledger}?", abort=True, err=True)
