"""What may be asked of a ledger's rows: one row, a page, the timeline, counts. Reads, and never writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import class_row, tuple_row

from holdfast.engine import reading
from holdfast.engine.ledger import Ledger
from holdfast.engine.statements import Statements
from holdfast.engine.values import Count, Event, Filter, Page, Row, Stat
from holdfast.errors import InvalidInput, NotFound

Connection = AsyncConnection[Any]
BATCH, PAGE = 1000, 100  # rows in one statement of ours, and in one page for people


class Looks:
    """A ledger and the questions about its rows."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sql = Statements(ledger)

    async def get(self, conn: Connection, id: Any, *, tenant: Any = None) -> Row:
        """One row, with its result and how far it has come, or `NotFound`: also for another tenant's."""
        shape, params = reading.one(self.ledger, id, tenant)
        rows = await self._rows(conn, self.sql.row(shape), params | {"limit": 1})
        if not rows:
            raise NotFound(what=self.ledger.name, id=params["id"])
        return rows[0]

    async def timeline(
        self, conn: Connection, id: Any, *, tenant: Any = None, after: int = 0, limit: int = BATCH
    ) -> list[Event]:
        """The events of one row in their order, from the one after `after`; or `NotFound`."""
        if self.sql.events is None:
            raise InvalidInput(field="ledger", message=f"{self.ledger.name} has no journal")
        reading.must_lie(limit, BATCH)
        shape, params = reading.one(self.ledger, id, tenant)
        if not await self._keys(conn, self.sql.keys(shape), params | {"limit": 1}):
            raise NotFound(what=self.ledger.name, id=params["id"])
        async with conn.cursor(row_factory=class_row(Event)) as cursor:
            await cursor.execute(self.sql.events, params | {"after": after, "limit": limit})
            return await cursor.fetchall()

    async def find(
        self, conn: Connection, which: Filter | None = None, *, limit: int = 50, cursor: str | None = None
    ) -> Page:
        """A page of rows, newest first. `cursor` is that of the page before."""
        reading.must_lie(limit, PAGE)
        shape, params = reading.conditions(self.ledger, which or Filter())
        if cursor is not None:
            shape, params = (*shape, "cursor"), params | reading.decode_cursor(self.ledger, cursor)
        rows = await self._rows(conn, self.sql.rows(shape), params | {"limit": limit + 1})
        page = rows[:limit]
        return Page(tuple(page), reading.encode_cursor(page[-1]) if len(rows) > limit else None)

    async def count(self, conn: Connection, which: Filter | None = None) -> list[Count]:
        """How many rows there are, by state and kind. Reads every row that the filter means."""
        shape, params = reading.conditions(self.ledger, which or Filter())
        async with conn.cursor(row_factory=class_row(Count)) as cursor:
            await cursor.execute(self.sql.counts(shape), params)
            return await cursor.fetchall()

    async def stats(self, conn: Connection, which: Filter | None = None) -> list[Stat]:
        """How many rows are in each state, and since when the oldest of them; states without rows, too."""
        shape, params = reading.conditions(self.ledger, which or Filter())
        async with conn.cursor(row_factory=class_row(Stat)) as cursor:
            await cursor.execute(self.sql.stats(shape), params)
            found = {stat.state: stat for stat in await cursor.fetchall()}
        nothing = (Stat(state=state, rows=0) for state in self.ledger.states if state not in found)
        every = found | {stat.state: stat for stat in nothing}
        return sorted(every.values(), key=lambda stat: self._place(stat.state))

    def _place(self, state: str) -> int:
        states = self.ledger.states
        return states.index(state) if state in states else len(states)

    async def _rows(self, conn: Connection, query: bytes, params: Mapping[str, Any]) -> list[Row]:
        async with conn.cursor(row_factory=class_row(Row)) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall()

    async def _keys(self, conn: Connection, query: bytes, params: Mapping[str, Any]) -> frozenset[Any]:
        return await keys_of([await conn.cursor(row_factory=tuple_row).execute(query, params)])


async def keys_of(cursors: Iterable[AsyncCursor[Any]]) -> frozenset[Any]:
    """The keys that some statements answered with."""
    return frozenset([row[0] for cursor in cursors for row in await cursor.fetchall()])
