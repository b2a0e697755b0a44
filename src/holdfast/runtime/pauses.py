"""Pauses: ledgers, or queues of them, from which nothing is claimed. What runs already goes on.

Workers hear of a change at once by the bell, and at the latest when they poll: until then one may still take
a row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row, scalar_row

from holdfast.engine import intake
from holdfast.engine.ledger import Ledger
from holdfast.engine.reading import MESSAGE_LENGTH
from holdfast.errors import InvalidInput
from holdfast.runtime import queries

Connection = AsyncConnection[Any]
CHANNEL = "holdfast_pause"  # rung when something was paused or resumed
ALL = ""  # the name that means all queues, in the table
NAME_LENGTH = 255  # characters of who paused it


@dataclass(frozen=True, kw_only=True)
class Pause:
    """One ledger, or one queue of it (None: all of it), that is paused: since when, by whom, and why."""

    ledger: str
    queue: str | None
    since: datetime
    by: str | None
    reason: str | None


async def pause(
    conn: Connection,
    ledger: Ledger,
    queue: str | None = None,
    *,
    by: str | None = None,
    reason: str | None = None,
) -> bool:
    """Stops the claims of a ledger, or of one of its queues. False: it was paused already, and stays so."""
    told = {
        "by": intake.absorb(by, NAME_LENGTH) if by else None,
        "reason": intake.absorb(reason, MESSAGE_LENGTH) if reason else None,
    }
    cursor = await conn.execute(queries.PAUSE, _place(ledger, queue) | told)
    return cursor.rowcount == 1


async def resume(conn: Connection, ledger: Ledger, queue: str | None = None) -> bool:
    """Lets the claims go on. False: it was not paused. A queue that was paused by itself stays paused."""
    cursor = await conn.execute(queries.RESUME, _place(ledger, queue))
    return cursor.rowcount == 1


async def paused(conn: Connection) -> list[Pause]:
    """Everything that is paused: each ledger as a whole before its queues."""
    async with conn.cursor(row_factory=class_row(Pause)) as cursor:
        await cursor.execute(queries.PAUSED)
        return await cursor.fetchall()


async def paused_queues(conn: Connection, ledger: str) -> frozenset[str]:
    """The queues of a ledger that are paused; `ALL` among them when all are."""
    async with conn.cursor(row_factory=scalar_row) as cursor:
        await cursor.execute(queries.PAUSED_QUEUES, {"ledger": ledger})
        return frozenset(await cursor.fetchall())


class Doors:
    """Which queues a worker may claim from, as far as it knows: asked when the bell rang, and regularly."""

    def __init__(self, ledger: Ledger, queues: tuple[str, ...], every: float) -> None:
        self._ledger = ledger
        self._queues = queues
        self._every = every  # seconds
        self._again = 0.0  # on the monotonic clock: when to ask again
        self.known = queues  # what was open when we last asked

    def ring(self) -> None:
        """Something was paused or resumed, or may have been."""
        self._again = 0.0

    async def open(self, conn: Connection) -> tuple[str, ...]:
        """The queues that are not paused; none when the ledger is."""
        if time.monotonic() >= self._again:
            self._again = time.monotonic() + self._every
            shut = await paused_queues(conn, self._ledger.name)
            queues = self._queues if self._ledger.queue else (ALL,)
            self.known = () if ALL in shut else tuple(name for name in queues if name not in shut)
        return self.known


def _place(ledger: Ledger, queue: str | None) -> dict[str, str | None]:
    if queue is not None:
        if ledger.queue is None:
            raise InvalidInput(field="queue", message=f"{ledger.name} has no queues: pause it as a whole")
        if not queue:
            raise InvalidInput(field="queue", message="must not be empty")
        intake.clean_text("queue", queue)
    return {"ledger": ledger.name, "queue": queue or ALL, "channel": CHANNEL}
