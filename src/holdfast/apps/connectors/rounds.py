"""Some connections, scheduled in one transaction: their jobs, and what `metadata.sync` says of them.

A job is never to be seen without its time, nor a time without its job. Connections are locked first, those
that somebody else has locked are passed over, and what is decided is decided about the locked row.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from psycopg import Error
from psycopg.errors import LockNotAvailable
from psycopg.rows import class_row, tuple_row

from holdfast.apps.connectors import tick_queries as queries
from holdfast.apps.connectors.ledger import INCREMENTAL, SCHEDULED_PRIORITY
from holdfast.apps.connectors.schedule import Draw, Due, NotDue, decide
from holdfast.apps.connectors.sync_state import Flaw, SyncState, moment_text, read
from holdfast.db.settings import Settings
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Item

log = logging.getLogger("holdfast.connectors")
T = TypeVar("T")

GRACE = 5.0  # seconds that a transaction which is under way may go on when the tick is stopped
Patch = dict[str, Any]  # keys of `sync`, and what is written there; None: the key is to go


@dataclass(frozen=True, kw_only=True)
class Ticked:
    """What became of connections: given a job; found, but locked, busy or not due; mended; failed."""

    scheduled: int = 0
    skipped: int = 0
    repaired: int = 0
    failed: int = 0

    def __add__(self, other: Ticked) -> Ticked:
        return Ticked(
            scheduled=self.scheduled + other.scheduled,
            skipped=self.skipped + other.skipped,
            repaired=self.repaired + other.repaired,
            failed=self.failed + other.failed,
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """A connection, locked."""

    id: UUID
    tenant_id: UUID
    provider_slug: str
    metadata: Any
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to become of a connection: a job or none, and which of its keys are to be mended."""

    row: Row
    state: SyncState
    flaws: tuple[Flaw, ...]
    answer: Due | NotDue


class Rounds:
    """The transactions of one tick. `clock` is its time, `lent` the same if it is a test's own."""

    def __init__(
        self,
        conn: Connection,
        store: Store,
        settings: Settings,
        clock: datetime,
        lent: datetime | None = None,
        draw: Draw = random.uniform,
    ) -> None:
        self.conn = conn
        self.store = store
        self.settings = settings
        self.clock = clock
        self.lent = lent
        self.draw = draw
        self.jobs: Counter[str] = Counter()  # by provider
        self.jitters: Counter[int] = Counter()  # by seconds

    async def page(self, ids: Sequence[UUID]) -> Ticked:
        """Schedules some connections together; when that fails, each alone."""
        if not ids:
            return Ticked()
        try:
            return await _to_its_end(self.together(ids))
        except Exception:
            if self.conn.closed:
                raise
        ticked = Ticked()
        for one in ids:
            ticked += await self.alone(one)
        return ticked

    async def alone(self, id: UUID) -> Ticked:
        """Schedules one connection; its failure is told and hurts nobody else."""
        try:
            return await _to_its_end(self.together([id]))
        except LockNotAvailable:  # somebody is about to add a job for it
            return Ticked(skipped=1)
        except Exception as error:
            if self.conn.closed:
                raise
            log.error("connection %s could not be scheduled: %s", id, said(error))
            return Ticked(failed=1)

    async def together(self, ids: Sequence[UUID]) -> Ticked:
        """Schedules some connections in one transaction: all that can be locked, or none."""
        async with self.conn.transaction():
            await self.conn.execute(queries.BRIEF)
            plans, scheduled, patches = await self.schedule(ids)
        mended = [plan for plan in plans if plan.flaws and patches[plan.row.id]]
        self._note(plans, scheduled, mended)
        return Ticked(scheduled=len(scheduled), skipped=len(ids) - len(scheduled), repaired=len(mended))

    async def schedule(self, ids: Sequence[UUID]) -> tuple[list[Plan], frozenset[UUID], Mapping[UUID, Patch]]:
        """Write jobs and times in the caller's transaction; return plans, ids that got a job, and patches."""
        plans = await self._plans(await self._lock(ids))
        scheduled = await self._enqueue(plans)
        patches = {plan.row.id: patch_of(plan, plan.row.id in scheduled) for plan in plans}
        await self._write(patches)
        return plans, scheduled, patches

    async def _lock(self, ids: Sequence[UUID]) -> Sequence[Row]:
        async with self.conn.cursor(row_factory=class_row(Row)) as cursor:
            await cursor.execute(queries.LOCK, {"ids": list(ids)})
            return await cursor.fetchall()

    async def _plans(self, rows: Sequence[Row]) -> list[Plan]:
        read_rows = [(row, *read(row.metadata, self.settings)) for row in rows]
        history = await self._history([row.id for row, state, _ in read_rows if state.next_run_at is None])
        plans: list[Plan] = []
        for row, state, flaws in read_rows:
            ever, last_finished = history.get(row.id, (True, None))
            answer = decide(self.clock, state, row.created_at, last_finished, ever, self.settings, self.draw)
            plans.append(Plan(row=row, state=state, flaws=flaws, answer=answer))
        return plans

    async def _history(self, ids: Sequence[UUID]) -> Mapping[UUID, tuple[bool, datetime | None]]:
        """Whether these had an incremental job at all, and when the last one succeeded."""
        if not ids:
            return {}
        found = await rows(self.conn, queries.HISTORY, {"ids": list(ids)})
        return {connection: (ever, last_finished) for connection, ever, last_finished in found}

    async def _enqueue(self, plans: Sequence[Plan]) -> frozenset[UUID]:
        """Adds the jobs; answers with the connections that got one, and had none."""
        items = {plan.row.id: _item(plan.row, plan.answer) for plan in plans if isinstance(plan.answer, Due)}
        if not items:
            return frozenset()
        receipts = await self.store.enqueue_many(self.conn, items.values(), now=self.lent)
        return frozenset(one for one, receipt in zip(items, receipts, strict=True) if receipt.created)

    async def _write(self, patches: Mapping[UUID, Patch]) -> None:
        written = {one: patch for one, patch in patches.items() if patch}
        if not written:
            return
        params = {
            "ids": list(written),
            "patches": [json.dumps(_kept(patch)) for patch in written.values()],
            "gone": [",".join(patch.keys() - _kept(patch).keys()) for patch in written.values()],
        }
        await self.conn.execute(queries.WRITE, params)

    def _note(self, plans: Sequence[Plan], scheduled: frozenset[UUID], mended: Sequence[Plan]) -> None:
        """Counts and tells what was done, now that the transaction has ended well."""
        for plan in plans:
            if plan.row.id in scheduled and isinstance(plan.answer, Due):
                self.jobs[plan.row.provider_slug] += 1
                self.jitters[plan.answer.jitter_seconds] += 1
        for plan in mended:
            log.warning(
                "connection %s: mended what it says of its syncs: %s",
                plan.row.id,
                "; ".join(map(str, plan.flaws)),
            )


async def schedule_now(conn: Connection, store: Store, settings: Settings, id: UUID) -> None:
    """Give a connection that was just made its first job, due at once, in the caller's transaction.

    Without jitter: accounts are connected one by one. Rows that other SQL inserts are left to the tick, which
    spreads them. One that is connected again and is not due yet gets no job.
    """
    ((clock,),) = await rows(conn, queries.CLOCK, {"now": None})
    await Rounds(conn, store, settings, clock, draw=lambda _, __: 0.0).schedule([id])


def patch_of(plan: Plan, scheduled: bool) -> Patch:
    """What is written into `sync`.

    Where a job was refused, because there is one already, the time and the jitter stay as they are.
    """
    patch: Patch = {flaw.key: None for flaw in plan.flaws if flaw.key not in ("metadata", "sync")}
    if "interval_seconds" in patch:
        patch["interval_seconds"] = plan.state.interval_seconds
    if plan.state.first_activated_at is None:
        patch["first_activated_at"] = moment_text(plan.row.created_at)
    match plan.answer:
        case Due() as due if scheduled:
            patch["next_run_at"] = moment_text(due.next_run_at)
            patch["last_jitter_seconds"] = due.jitter_seconds
        case Due():
            patch.pop("next_run_at", None)
            patch.pop("last_jitter_seconds", None)
        case NotDue(until=until, first=first):
            if plan.state.next_run_at is None and not first:  # or each tick would come here first
                patch["next_run_at"] = moment_text(until)
    return patch


def _kept(patch: Patch) -> Patch:
    return {key: value for key, value in patch.items() if value is not None}


def _item(row: Row, due: Due) -> Item:
    return Item(
        kind=INCREMENTAL,
        tenant=row.tenant_id,
        priority=SCHEDULED_PRIORITY,
        run_at=due.scheduled_at,
        extras={"connection_id": row.id, "provider_slug": row.provider_slug},
    )


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Awaits the work. Whoever is stopped meanwhile lets it come to its end first, though not for long."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(Exception, asyncio.CancelledError):
            async with asyncio.timeout(GRACE):
                await task
        raise


async def rows(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What a query finds, as plain tuples, whatever rows the connection gives otherwise."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()


def said(error: Exception) -> str:
    """What went wrong. The details of a database's error quote whole rows: these stay there."""
    words = error.diag.message_primary if isinstance(error, Error) else None
    return words or f"{type(error).__name__}: {error}"
