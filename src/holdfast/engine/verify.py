"""Replays the events of rows and names the first lie: what a journal tells must lead to the row, hop by hop.

Reads pages of rows in the order of their keys, each row with its events in one snapshot, streamed, so that
neither memory nor the length of a transaction grows with a history. `replay` is the pure core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncCursor, capabilities
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryLoader

from holdfast.engine import reading
from holdfast.engine.replay import Facts, Lie, Replay, Rules
from holdfast.engine.store import Connection, Store
from holdfast.errors import InvalidInput, NotFound

FIRST_PAGE, LARGEST_PAGE = 100, 1000  # rows
PAGE_EVENTS = 50_000  # how many events a page should have: a third of a second, and one snapshot
CHUNK = 500  # records that are in memory at once
TELL_EVERY = 10_000  # events
MOST_LIES = 100  # that a report lists; it counts all

Tell = Callable[[int, int], None]  # rows and events so far


@dataclass(frozen=True)
class Report:
    """What a verification found: at most one lie for each row, of which the first hundred are listed."""

    rows: int
    events: int
    found: int
    lies: tuple[Lie, ...]


async def verify(
    store: Store, conn: Connection, *, id: Any = None, tenant: Any = None, tell: Tell | None = None
) -> Report:
    """Replays the events of one row, or of all that there are now, and compares them with the rows.

    Reads in pages, each one statement: outside a transaction nothing is held longer than a page takes. `tell`
    hears from time to time how far it has come, as (rows, events).
    """
    ledger = store.ledger
    if ledger.journal is None:
        raise InvalidInput(
            field="ledger", message=f"{ledger.name} has no journal: there is nothing to verify"
        )
    reader = Reader(store, conn, tell)
    if id is not None:
        shape, params = reading.one(ledger, id, tenant)
        if not await reader.page(shape, params | {"limit": 1}):
            raise NotFound(what=ledger.name, id=params["id"])
    else:
        await reader.all(tenant)
    return Report(reader.rows, reader.events, reader.found, tuple(reader.lies))


async def hidden(store: Store, conn: Connection) -> bool:
    """Whether row level security decides which rows this login sees: it may see none, and know of nothing."""
    (row,) = await (await conn.execute(store.sql.hidden)).fetchall()
    return row[0]


class Reader:
    """One verification on its way: how far it has come, and what it has found."""

    def __init__(self, store: Store, conn: Connection, tell: Tell | None) -> None:
        self.store, self.conn, self.tell = store, conn, tell
        self.rules = Rules(store.ledger)
        self.rows = self.events = self.found = 0
        self.lies: list[Lie] = []
        self.last: Any = None  # the key of the last row

    async def all(self, tenant: Any) -> None:
        """Page after page; small ones where rows have many events."""
        whose = reading.tenant_of(self.store.ledger, tenant)
        params: dict[str, Any] = {} if whose is None else {"tenant": whose}
        cursor = await self.conn.cursor(row_factory=tuple_row).execute(
            self.store.sql.last_key(tuple(params)), params
        )
        for (end,) in await cursor.fetchall():
            params["until_key"] = end
            limit = FIRST_PAGE
            while True:
                events = self.events
                if await self.page(tuple(params), params | {"limit": limit}) < limit:
                    return
                params["after_key"] = self.last
                fitting = limit * PAGE_EVENTS // max(1, self.events - events)
                limit = max(1, min(LARGEST_PAGE, fitting))

    async def page(self, shape: tuple[str, ...], params: Mapping[str, Any]) -> int:
        """Verifies some rows, and answers how many there were."""
        before, events, replay, lie = self.rows, self.events, None, None
        size = CHUNK if capabilities.has_stream_chunked() else 1
        records = self._cursor().stream(self.store.sql.verify(shape), params, binary=True, size=size)
        async with aclosing(records):  # pyright: ignore[reportArgumentType]  (it is a generator)
            async for seq, at, prev, then, detail, *row in records:
                if replay is None or seq is None:
                    if replay is not None:
                        self._end(replay, lie)
                    replay, lie = Replay(self.rules, Facts(*row)), None
                    continue
                if lie is None:
                    lie = replay.fold(seq, at, prev, then, detail)
                events += 1
                if not events % TELL_EVERY and self.tell:
                    self.tell(self.rows, events)
        if replay is not None:
            self._end(replay, lie)
        self.events = events
        if self.tell:
            self.tell(self.rows, self.events)
        return self.rows - before

    def _end(self, replay: Replay, lie: Lie | None) -> None:
        """All events of a row have been told."""
        self.rows, self.last = self.rows + 1, replay.row.key
        if (lie := lie or replay.compare()) is not None:
            self.found += 1
            if self.found <= MOST_LIES:
                self.lies.append(lie)

    def _cursor(self) -> AsyncCursor[tuple[Any, ...]]:
        """A cursor that reads times as the numbers which they are on the wire: quick, and none is too odd."""
        cursor = self.conn.cursor(row_factory=tuple_row)
        for kind in ("timestamptz", "timestamp"):
            cursor.adapters.register_loader(kind, Int8BinaryLoader)
        return cursor
