"""What a caller may do: the one place where actions are allowed, done and audited, for API and dashboard.

Every function takes the site, the caller and the name of a ledger. One action and its audit entry are one
transaction. A bulk may take long: its entry is committed before it begins, and gets its count at the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from holdfast import tracing
from holdfast.api import audit
from holdfast.api.caller import Caller, Scope
from holdfast.api.site import Site
from holdfast.db.settings import Settings
from holdfast.engine import reading, tenants
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Filter, Item, Json, Receipt, Row
from holdfast.errors import InvalidInput, NotAllowed
from holdfast.runtime import pauses
from holdfast.runtime.handlers import fit

Order = Literal["cancel", "requeue"]
BulkOrder = Callable[..., Awaitable["Bulk"]]
BATCH = 1000  # items of one enqueue


@dataclass(frozen=True)
class Bulk:
    """How many rows a bulk changed, or would change."""

    rows: int
    exact: bool = True


# -- enqueue ---------------------------------------------------------------------------------------------


async def enqueue(site: Site, caller: Caller, ledger: str, item: Item) -> Receipt:
    """Adds one row, or answers with the row that has its key already. The row's own record tells who."""
    must(caller, "act")
    store = site.store(caller, ledger)
    with tracing.enqueuing(ledger, item.kind) as span:
        item = _prepared(site, caller, store, item)
        async with site.confined(caller, store) as (conn, _):
            receipt = await store.enqueue(conn, item, by=caller.who)
        span.enqueued(receipt.id)
        return receipt


async def enqueue_many(site: Site, caller: Caller, ledger: str, items: Sequence[Item]) -> list[Receipt]:
    """Adds all items or none, and answers in their order."""
    must(caller, "act")
    if not 1 <= len(items) <= BATCH:
        raise InvalidInput(field="items", message=f"must be 1 to {BATCH}, not {len(items)}")
    store = site.store(caller, ledger)
    with tracing.enqueuing(ledger) as span:
        prepared = [_prepared(site, caller, store, item, f"items[{n}].") for n, item in enumerate(items)]
        async with site.confined(caller, store) as (conn, _):
            receipts = await store.enqueue_many(conn, prepared, by=caller.who)
        span.enqueued(count=len(receipts))
        return receipts


def _prepared(site: Site, caller: Caller, store: Store, item: Item, where: str = "") -> Item:
    """The item as the ledger wants it: its tenant, its trace, and what its handler asks for."""
    if caller.tenant is not None:
        if item.tenant is not None and not _same_tenant(store, item.tenant, caller.tenant):
            raise NotAllowed(message=f"{where}tenant: {item.tenant} is not yours")
        item = replace(item, tenant=caller.tenant)
    check_tenant_bounds(site.settings, caller, item, where)
    return fit(store.ledger, site.handlers, item, where)


def check_tenant_bounds(settings: Settings, caller: Caller, item: Item, where: str = "") -> None:
    """Refuse what would let one tenant's rows crowd out everyone else's; operators have the full range."""
    if not caller.bound:
        return
    whose = "with a tenant's token"
    most = settings.tenant_max_priority
    if item.priority is not None and not -most <= item.priority <= most:
        message = f"must lie between {-most} and {most} {whose}, not {item.priority}"
        raise InvalidInput(field=f"{where}priority", message=message)
    most = settings.tenant_max_attempts
    if item.limit is not None and item.limit > most:
        raise InvalidInput(field=f"{where}limit", message=f"must be at most {most} {whose}, not {item.limit}")
    if item.backoff == "none" and not settings.min_retry_seconds:
        message = f"must be fixed or exp {whose}: HOLDFAST_MIN_RETRY_SECONDS is 0, and none would not wait"
        raise InvalidInput(field=f"{where}backoff", message=message)


def _same_tenant(store: Store, one: Any, other: Any) -> bool:
    return reading.tenant_of(store.ledger, one) == reading.tenant_of(store.ledger, other)


# -- one row ---------------------------------------------------------------------------------------------


async def cancel(site: Site, caller: Caller, ledger: str, id: Any, *, reason: str | None = None) -> Row:
    """Calls a row off, and answers with it as it is then."""
    return await _order(site, caller, ledger, "cancel", id, reason)


async def requeue(site: Site, caller: Caller, ledger: str, id: Any, *, reason: str | None = None) -> Row:
    """Lets a row that ended badly run again, and answers with it as it is then."""
    return await _order(site, caller, ledger, "requeue", id, reason)


async def _order(site: Site, caller: Caller, ledger: str, verb: Order, id: Any, reason: str | None) -> Row:
    must(caller, "act")
    store = site.store(caller, ledger)
    do = store.cancel if verb == "cancel" else store.requeue
    async with site.confined(caller, store) as (conn, tenant), conn.transaction():
        await do(conn, id, tenant=tenant, by=caller.who, reason=reason)
        row = await store.get(conn, id, tenant=tenant)
        await tenants.unconfine(conn)  # a tenant's role must not write the audit; we do
        await audit.note(conn, caller, verb, ledger=ledger, row_id=row.id, rows=1, detail={"reason": reason})
    store.ordered(verb, [row.id], caller.who, reason)
    return row


# -- all rows that a filter means ------------------------------------------------------------------------


async def cancel_where(
    site: Site,
    caller: Caller,
    ledger: str,
    which: Filter,
    *,
    reason: str | None = None,
    dry_run: bool = False,
    everything: bool = False,
) -> Bulk:
    """Calls off every row that the filter means and whose state allows it; a dry run only counts them.

    A filter that means every row is refused unless `everything` says that this is meant.
    """
    return await _order_where(site, caller, ledger, "cancel", which, reason, dry_run, everything)


async def requeue_where(
    site: Site,
    caller: Caller,
    ledger: str,
    which: Filter,
    *,
    reason: str | None = None,
    dry_run: bool = False,
    everything: bool = False,
) -> Bulk:
    """Lets every row that the filter means and whose state allows it run again; a dry run only counts."""
    return await _order_where(site, caller, ledger, "requeue", which, reason, dry_run, everything)


async def _order_where(
    site: Site,
    caller: Caller,
    ledger: str,
    verb: Order,
    which: Filter,
    reason: str | None,
    dry_run: bool,
    everything: bool,
) -> Bulk:
    must(caller, "act")
    store = site.store(caller, ledger)
    if which == Filter() and not everything:
        raise InvalidInput(field="filter", message='is empty: say {"all": true} if every row is meant')
    meant = reading.within(store.ledger, which, caller.tenant)
    reading.conditions(store.ledger, meant)  # a filter that fits nothing is refused before it is noted
    if dry_run:
        return await _count(site, caller, store, verb, meant)
    detail: dict[str, Json] = {"filter": reading.told_filter(which), "reason": reason}
    async with site.connection() as conn:
        entry = await audit.note(conn, caller, verb, ledger=ledger, detail=detail)
    try:
        async with site.confined(caller, store) as (conn, _):
            do = store.cancel_where if verb == "cancel" else store.requeue_where
            rows = await do(conn, meant, by=caller.who, reason=reason)
    except Exception as error:
        async with site.connection() as conn:
            await audit.settle(conn, entry, None, error=type(error).__name__)
        raise
    async with site.connection() as conn:
        await audit.settle(conn, entry, rows)
    return Bulk(rows)


async def _count(site: Site, caller: Caller, store: Store, verb: Order, which: Filter) -> Bulk:
    allowed = store.ledger.lifecycle.allowed(verb)
    states = tuple(state for state in which.states or allowed if state in allowed)
    if not states:
        return Bulk(0)
    stats = await site.depth(caller, store, replace(which, states=states))
    return Bulk(sum(stat.rows for stat in stats), all(stat.exact for stat in stats))


# -- pause and resume ------------------------------------------------------------------------------------


async def pause(
    site: Site, caller: Caller, ledger: str, queue: str | None = None, *, reason: str | None = None
) -> bool:
    """Lets nothing more be claimed from a ledger, or one of its queues; False when it was so already."""
    must_operate(caller, "act")
    store = _whole(site, caller, ledger)
    async with site.connection() as conn, conn.transaction():
        changed = await pauses.pause(conn, store.ledger, queue, by=caller.who, reason=reason)
        await _note_pause(conn, caller, "pause", ledger, queue, reason, changed)
        return changed


async def resume(
    site: Site, caller: Caller, ledger: str, queue: str | None = None, *, reason: str | None = None
) -> bool:
    """Lets rows be claimed again; False when nothing was paused."""
    must_operate(caller, "act")
    store = _whole(site, caller, ledger)
    async with site.connection() as conn, conn.transaction():
        changed = await pauses.resume(conn, store.ledger, queue)
        await _note_pause(conn, caller, "resume", ledger, queue, reason, changed)
        return changed


def _whole(site: Site, caller: Caller, ledger: str) -> Store:
    if caller.tenant is not None:
        raise NotAllowed(message="a pause is everybody's: leave X-Tenant-Id out")
    return site.store(caller, ledger)


async def _note_pause(
    conn: Connection,
    caller: Caller,
    action: str,
    ledger: str,
    queue: str | None,
    reason: str | None,
    changed: bool,
) -> None:
    detail: dict[str, Json] = {"queue": queue, "reason": reason, "changed": changed}
    await audit.note(conn, caller, action, ledger=ledger, detail=detail)


# -- who may ---------------------------------------------------------------------------------------------


def must(caller: Caller, scope: Scope) -> None:
    """Refuses a caller whose scope is too small."""
    if not caller.may(scope):
        raise NotAllowed(message=f"this needs the scope {scope}, and {caller.who} has {caller.scope}")


def must_operate(caller: Caller, scope: Scope) -> None:
    """Refuses a tenant's caller as well: this is about everybody's work."""
    must(caller, scope)
    if caller.bound:
        raise NotAllowed(message=f"this is for operators, and {caller.who} belongs to a tenant")
