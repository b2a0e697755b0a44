"""One look at everything: ledgers, workers, and who leads. What the dashboard, the API and `top` show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, ProgrammingError
from psycopg.rows import scalar_row

from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.engine.values import Filter, Stat
from holdfast.runtime import pauses, presence, pulse, queries
from holdfast.runtime.pauses import Pause
from holdfast.runtime.presence import Present
from holdfast.runtime.pulse import Pace

Connection = AsyncConnection[Any]
MAX_KINDS = 100  # without a handler, of one ledger


@dataclass(frozen=True, kw_only=True)
class LedgerView:
    """A ledger at a glance.

    `waiting_since`: since when a row is due; None: nothing is, as far as rows were looked at. `held`: how
    many rows each worker holds, under "" those that name nobody. `trouble`: why the table cannot be looked
    at, None when it can. `kinds_without_handler`: kinds of due rows that no worker takes.
    """

    ledger: Ledger
    stats: tuple[Stat, ...]
    waiting_since: datetime | None = None
    pace: Pace | None = None
    paused: tuple[Pause, ...] = ()
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    trouble: str | None = None
    kinds_without_handler: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether all rows were counted, and none of the numbers is an estimate."""
        return all(stat.exact for stat in self.stats)

    def oldest_wait(self, now: datetime) -> float | None:
        """How long the row that is next has been due, in seconds; None: nothing is due."""
        if self.waiting_since is None:
            return None
        return max(0.0, (now - self.waiting_since).total_seconds())


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All ledgers, all workers, and the id of the one that leads. `now` is the database's."""

    now: datetime
    ledgers: tuple[LedgerView, ...]
    workers: tuple[Present, ...]
    leader: str | None

    @property
    def load(self) -> Mapping[str, int]:
        """How many rows each worker holds, over all ledgers."""
        held: Counter[str] = Counter({worker.id: 0 for worker in self.workers})
        for view in self.ledgers:
            held.update(view.held)
        return held


async def overview(conn: Connection, stores: Iterable[Store]) -> Overview:
    """Everything at a glance. Never reads a large table from end to end."""
    workers, everything = await presence.fleet(conn), await pauses.paused(conn)
    now = await clock(conn)
    views = [await _view(conn, store, everything, now, workers) for store in stores]
    return Overview(
        now=now,
        ledgers=tuple(views),
        workers=tuple(workers),
        leader=next((worker.id for worker in workers if worker.leads), None),
    )


async def ledger_view(conn: Connection, store: Store) -> LedgerView:
    """One ledger at a glance."""
    return await _view(conn, store, await pauses.paused(conn), await clock(conn), await presence.fleet(conn))


async def kinds_without_handler(
    conn: Connection, store: Store, workers: Sequence[Present]
) -> tuple[str, ...]:
    """The kinds of due rows that none of these workers takes. A worker that does not say takes all."""
    name = store.ledger.name
    shares = [one.shares.get(name, {}) for one in workers if name in (*one.serves, *one.shares)]
    if not all("kinds" in share for share in shares):
        return ()
    taken = {kind for share in shares for kind in share["kinds"]}
    return tuple(kind for kind in await store.due_kinds(conn) if kind not in taken)[:MAX_KINDS]


async def tenant_view(conn: Connection, store: Store, tenant: Any) -> LedgerView:
    """A tenant's rows at a glance, and nothing of what workers do for others."""
    return rows_view(store.ledger, await store.depth(conn, Filter(tenant=tenant)), await clock(conn))


def rows_view(ledger: Ledger, stats: Sequence[Stat], now: datetime) -> LedgerView:
    """What some counts alone tell of a ledger."""
    return LedgerView(ledger=ledger, stats=tuple(stats), waiting_since=_first_due(stats, now))


async def waiting_since(
    conn: Connection, store: Store, stats: Sequence[Stat], now: datetime
) -> datetime | None:
    """Since when a row is due: of those that were looked at, and where that was not all, of the next ones."""
    first = _first_due(stats, now)
    waiting = store.ledger.lifecycle.waiting
    if store.ledger.due and all(stat.exact for stat in stats if stat.state in waiting):
        return first
    return min((moment for moment in (first, await store.head(conn)) if moment), default=None)


def _first_due(stats: Iterable[Stat], now: datetime) -> datetime | None:
    return min((stat.due for stat in stats if stat.due is not None and stat.due <= now), default=None)


async def clock(conn: Connection) -> datetime:
    """The database's time."""
    async with conn.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(queries.NOW)
        return await anext(cursor)


async def _view(
    conn: Connection, store: Store, everything: Sequence[Pause], now: datetime, workers: Sequence[Present]
) -> LedgerView:
    name, paused = store.ledger.name, _of(store.ledger, everything)
    try:
        async with conn.transaction():
            held, stats = await store.held(conn), await store.depth(conn)
            return LedgerView(
                ledger=store.ledger,
                stats=tuple(stats),
                waiting_since=await waiting_since(conn, store, stats, now),
                pace=await pulse.pace(conn, name),
                paused=paused,
                held={holder or "": rows for holder, rows in held.items()},
                kinds_without_handler=await kinds_without_handler(conn, store, workers),
            )
    except ProgrammingError as error:  # one table that is not there must not hide the others
        return LedgerView(ledger=store.ledger, stats=(), paused=paused, trouble=str(error))


def _of(ledger: Ledger, everything: Iterable[Pause]) -> tuple[Pause, ...]:
    return tuple(one for one in everything if one.ledger == ledger.name)
