"""What the live views show: the ledgers, the workers and some rows at one moment.

Everything comes from reads that stay quick on a full table: no look counts rows by going through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Filter, Row
from holdfast.errors import NotFound
from holdfast.platform import Holdfast
from holdfast.runtime.overview import Overview, overview

NEWEST = 50  # rows of a ledger that are looked through, of those at work and of those in each end state


@dataclass(frozen=True)
class Seen:
    """A row and the ledger that it is in."""

    ledger: Ledger
    row: Row

    @property
    def trouble(self) -> str:
        """The first line of the error of a row that did not end well."""
        row = self.row
        return row.error.splitlines()[0] if row.error and row.state != self.ledger.to("finish") else ""

    @property
    def took(self) -> float | None:
        """Seconds from its start, the first one where the ledger keeps that, to its end."""
        row = self.row
        return (row.finished - row.started).total_seconds() if row.started and row.finished else None

    def since(self, now: datetime) -> float | None:
        """Seconds for which it has been at work."""
        began = self.row.started or self.row.claimed
        return max(0.0, (now - began).total_seconds()) if began else None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All ledgers and workers, the rows that have been at work for longest, and those that ended last."""

    overview: Overview
    working: Sequence[Seen]
    finished: Sequence[Seen]

    @property
    def now(self) -> datetime:
        """The database's clock."""
        return self.overview.now

    @property
    def waiting(self) -> int:
        """Rows that wait, over all ledgers."""
        return sum(
            stat.rows
            for view in self.overview.ledgers
            for stat in view.stats
            if stat.state in view.ledger.lifecycle.waiting
        )


async def take(app: Holdfast, *, working: int, finished: int) -> Snapshot:
    """Looks once at every ledger, and at so many rows at work and rows that ended."""
    async with app.database.connection() as conn:
        seen = await overview(conn, app.stores.values())
        stores = [app.store(view.ledger.name) for view in seen.ledgers if view.trouble is None]
        holding = [store for store in stores if store.ledger.lifecycle.held]  # not where a claim is a lock
        held = [one for store in holding for one in await _rows(conn, store, store.ledger.lifecycle.held)]
        held.sort(key=lambda one: one.row.started or one.row.claimed or one.row.created)
        near = [await _closer(conn, app.store(one.ledger.name), one) for one in held[:working]]
        ended: list[Seen] = []
        for store in stores if finished else ():
            for state in store.ledger.ends:  # one by one: an index leads to the newest of each state
                ended += await _rows(conn, store, (state,))
    ended.sort(key=lambda one: one.row.finished or one.row.created, reverse=True)
    return Snapshot(overview=seen, working=near, finished=ended[:finished])


async def _rows(conn: Connection, store: Store, states: tuple[str, ...]) -> list[Seen]:
    page = await store.find(conn, Filter(states=states), limit=NEWEST)
    return [Seen(store.ledger, row) for row in page.rows]


async def _closer(conn: Connection, store: Store, seen: Seen) -> Seen:
    """The row with how far it has come, which only a journal knows; unless it is gone meanwhile."""
    if store.ledger.journal is None:
        return seen
    with suppress(NotFound):
        now = await store.get(conn, seen.row.id)
        return Seen(seen.ledger, replace(seen.row, stage=now.stage, progress=now.progress))
    return seen
