"""What may be asked of a ledger's rows: one row, a page, the timeline, counts. Reads, and never writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, AsyncCursor
from psycopg.rows import class_row, tuple_row

from holdfast.engine import intake, reading, sql
from holdfast.engine.ledger import Ledger
from holdfast.engine.statements import Statements
from holdfast.engine.values import Change, Count, Event, Filter, Page, Row, Stat, Touch
from holdfast.engine.witness import Witness
from holdfast.errors import InvalidInput, NotFound

Connection = AsyncConnection[Any]
BATCH, PAGE = 1000, 100  # rows in one statement of ours, and in one page for people
SMALL = 32 * 2**20  # bytes of a table that is counted through, whoever waits for it
COUNTED = 10_000  # rows of one state that are counted in a larger one


class Looks:
    """A ledger and the questions about its rows."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sql = Statements(ledger)
        self.witness: Witness | None = None  # hears what was committed

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

    async def depth(self, conn: Connection, which: Filter | None = None) -> list[Stat]:
        """The same as `stats` for a page that must not wait: on a large table, states of many rows are told
        by the planner's estimate, and others are counted where an index leads to them.
        """
        which = which or Filter()
        reading.conditions(self.ledger, which)
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.size)
            ((size,),) = await cursor.fetchall()
        if size < SMALL:
            return await self.stats(conn, which)
        states = which.states or self.ledger.states
        return [await self._depth_of(conn, replace(which, states=(state,))) for state in states]

    async def _depth_of(self, conn: Connection, which: Filter) -> Stat:
        (state,) = which.states
        shape, params = reading.conditions(self.ledger, which)
        query, params = self.sql.depth(shape), params | {"limit": COUNTED + 1}
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(sql.EXPLAIN.encode() + query, params)
            (((plan,),),) = await cursor.fetchall()
        scan = _below_limit(plan["Plan"])
        estimate = int(scan["Plan Rows"])
        many = estimate > 2 * COUNTED and state not in self.ledger.lifecycle.waiting
        if many or _scans_all(scan):
            return Stat(state=state, rows=estimate, exact=False)
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query, params)
            ((rows, oldest, due),) = await cursor.fetchall()
        if rows > COUNTED:
            return Stat(state=state, rows=max(rows, estimate), oldest=oldest, due=due, exact=False)
        return Stat(state=state, rows=rows, oldest=oldest, due=due)

    async def head(self, conn: Connection, *, now: datetime | None = None) -> datetime | None:
        """Since when the rows wait that would be claimed next, of all queues; None: nothing is due."""
        params = {"now": now, "kinds": None, "limit": PAGE}
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.head, params)
            ((since,),) = await cursor.fetchall()
        return since

    async def due_kinds(self, conn: Connection, *, now: datetime | None = None) -> list[str]:
        """The kinds among the rows that are due: among the first 1,000 of each lane, and of each queue."""
        params = {"now": now, "kinds": None, "limit": BATCH}
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.due_kinds, params)
            return [kind for (kind,) in await cursor.fetchall()]

    async def ahead(
        self,
        conn: Connection,
        id: Any,
        *,
        kinds: Sequence[str],
        queues: Sequence[str] = ("default",),
        limit: int = BATCH,
        now: datetime | None = None,
    ) -> int | None:
        """How many rows of these kinds and queues would be claimed before this one, counted up to `limit`.

        None: it would not be claimed at all.
        """
        asked = {"id": reading.key_of(self.ledger, id), "kinds": list(kinds), "queues": list(queues)}
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.ahead, asked | {"limit": limit + 1, "now": now})
            ((seen, place),) = await cursor.fetchall()
        if place is None:
            return limit if seen > limit else None
        return min(place - 1, limit)

    async def touched(self, conn: Connection, id: Any) -> Touch | None:
        """The state of a row now, and who has locked it; None: it is gone."""
        async with conn.cursor(row_factory=class_row(Touch)) as cursor:
            await cursor.execute(self.sql.touched, {"id": reading.key_of(self.ledger, id)})
            return await cursor.fetchone()

    async def held_since(self, conn: Connection, row: Row) -> datetime | None:
        """When a row was taken: told by the row itself, by its journal, or by its last change at least."""
        told = row.claimed or (None if self.ledger.times.first_start else row.started)
        if told is not None or self.sql.held_since is None:
            return told or row.updated
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.held_since, {"id": row.id})
            ((since,),) = await cursor.fetchall()
        return since

    async def held(self, conn: Connection) -> dict[str | None, int]:
        """How many rows each worker holds."""
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.held)
            return dict(await cursor.fetchall())

    async def marks(self, conn: Connection, keys: Sequence[Any]) -> dict[Any, str]:
        """A mark for each of these rows that there is: it changes whenever the row does."""
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.marks, {"keys": list(keys)})
            return dict(await cursor.fetchall())

    async def changes(
        self, conn: Connection, since: datetime, *, after: int = -1, tenant: Any = None, limit: int = BATCH
    ) -> list[Change]:
        """What happened to any row since a moment, of that moment itself after event `after`; in order."""
        if self.ledger.journal is None:
            raise InvalidInput(field="ledger", message=f"{self.ledger.name} has no journal")
        reading.must_lie(limit, BATCH)
        shape, params = reading.conditions(self.ledger, Filter(tenant=tenant))
        params |= {"since": intake.aware("since", since), "after": after, "limit": limit}
        async with conn.cursor(row_factory=class_row(Change)) as cursor:
            await cursor.execute(self.sql.changes(shape), params)
            return await cursor.fetchall()

    def _place(self, state: str) -> int:
        states = self.ledger.states
        return states.index(state) if state in states else len(states)

    async def _rows(self, conn: Connection, query: bytes, params: Mapping[str, Any]) -> list[Row]:
        async with conn.cursor(row_factory=class_row(Row)) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall()

    async def _keys(self, conn: Connection, query: bytes, params: Mapping[str, Any]) -> frozenset[Any]:
        return await keys_of([await conn.cursor(row_factory=tuple_row).execute(query, params)])


def _below_limit(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a plan that finds the rows, whose estimate knows of no limit."""
    while plan["Node Type"] in ("Aggregate", "Limit", "Subquery Scan", "Result"):
        parts = [part for part in plan.get("Plans", ()) if part["Parent Relationship"] != "InitPlan"]
        if not parts:  # a condition that never holds is no scan at all
            break
        plan = parts[0]
    return plan


def _scans_all(plan: Mapping[str, Any]) -> bool:
    """Whether a part of the plan reads a table from end to end."""
    return "Seq Scan" in plan["Node Type"] or any(map(_scans_all, plan.get("Plans", ())))


async def keys_of(cursors: Iterable[AsyncCursor[Any]]) -> frozenset[Any]:
    """The keys that some statements answered with."""
    return frozenset([row[0] for cursor in cursors for row in await cursor.fetchall()])
