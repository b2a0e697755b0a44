"""What the pages show, read for whoever looks; and the fingerprints of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.api.caller import Caller
from holdfast.api.reads import Reads
from holdfast.api.site import Site
from holdfast.engine import reading
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Event, Filter, Page, Row
from holdfast.runtime import overview as viewing
from holdfast.runtime import presence
from holdfast.runtime.explain import Explanation
from holdfast.runtime.overview import LedgerView, Overview
from holdfast.runtime.presence import Present

PAGE = 25  # rows of a list
EVENTS = 1000  # events that are read at once
MOST_EVENTS = 5000  # and at all, for one row


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A row and all that is known about it.

    `mark` changes whenever the row does. `events` is None where there is no journal; `more`: it has further
    ones. `holder` is the worker that has the row, as far as the caller may know.
    """

    now: datetime
    row: Row
    mark: str | None
    events: tuple[Event, ...] | None
    more: bool
    explanation: Explanation
    holder: Present | None


async def rows(site: Site, caller: Caller, store: Store, which: Filter, cursor: str | None) -> Page:
    """A page of a list."""
    async with site.confined(caller, store) as (conn, tenant):
        meant = reading.within(store.ledger, which, tenant)
        return await store.find(conn, meant, limit=PAGE, cursor=cursor)


async def row(site: Site, reads: Reads, caller: Caller, store: Store, id: str) -> Whole:
    """One row with its events, or `NotFound`."""
    async with site.confined(caller, store) as (conn, tenant):
        found = await store.get(conn, id, tenant=tenant)
        mark = await _mark(conn, store, found)
        events = await _events(conn, store, id, tenant) if store.ledger.journal else None
    explanation = await reads.explain(caller, store, id)
    async with site.connection() as conn:
        now = await viewing.clock(conn)
        known = caller.tenant is None and found.owner is not None
        workers: Sequence[Present] = await presence.fleet(conn) if known else ()
    name = worker_of(store.ledger, found.owner)
    return Whole(
        now=now,
        row=found,
        mark=mark,
        events=None if events is None else tuple(events),
        more=len(events or ()) >= MOST_EVENTS,
        explanation=explanation,
        holder=next((worker for worker in workers if worker.id == name), None),
    )


async def glance(site: Site, reads: Reads, caller: Caller, store: Store, id: str) -> list[Any]:
    """The fingerprint of a row's page, without reading all that is on it."""
    async with site.confined(caller, store) as (conn, tenant):
        found = await store.get(conn, id, tenant=tenant)
        mark = await _mark(conn, store, found)
    return [mark, (await reads.explain(caller, store, id)).code]


async def _mark(conn: Connection, store: Store, row: Row) -> str | None:
    return (await store.marks(conn, [row.id])).get(row.id)


async def _events(conn: Connection, store: Store, id: str, tenant: Any) -> list[Event]:
    events: list[Event] = []
    while len(events) < MOST_EVENTS:
        after = events[-1].seq if events else 0
        part = await store.timeline(conn, id, tenant=tenant, after=after, limit=EVENTS)
        events += part
        if len(part) < EVENTS:
            break
    return events


def worker_of(ledger: Ledger, owner: str | None) -> str | None:
    """The id of the worker that an owner names; where the owner is the fence, the part before its token."""
    return owner if owner is None or ledger.fence else re.sub(r"/\d+$", "", owner)


# -- fingerprints ----------------------------------------------------------------------------------------


def of_overview(seen: Overview, timeout: float) -> list[Any]:
    """What the overview shows."""
    return [
        [of_view(view) for view in seen.ledgers],
        of_workers(seen.workers, seen.leader, seen.load, timeout),
    ]


def of_view(view: LedgerView) -> list[Any]:
    """What a ledger shows: its counts, its pauses, its minutes."""
    minutes = view.pace.minutes if view.pace else ()
    return [
        view.ledger.name,
        [(stat.state, stat.rows, stat.exact) for stat in view.stats],
        [(pause.queue, pause.since, pause.by) for pause in view.paused],
        [(m.at, m.finished, m.retried, m.dead) for m in minutes if m.finished or m.retried or m.dead],
        view.waiting_since is None,
        view.trouble,
        view.kinds_without_handler,
    ]


def of_workers(
    workers: Iterable[Present], leader: str | None, load: Mapping[str, int], timeout: float
) -> list[Any]:
    """What the table of workers shows: who, how much they hold, and whether one is silent for long."""
    return [leader, [(one.id, load.get(one.id, 0), one.silent > timeout / 2) for one in workers]]


def of_page(page: Page) -> list[Any]:
    """What a list shows."""
    return [[(str(row.id), row.state, row.attempts) for row in page.rows], page.cursor is None]


def of_row(whole: Whole) -> list[Any]:
    """What the page of a row shows; the same as `glance`."""
    return [whole.mark, whole.explanation.code]
