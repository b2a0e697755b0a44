"""The leader's duties. A duty does its work once and answers with a count; the keeper's loop runs them.

Every duty is harmless when two leaders do it at once: locks and fences decide, not the lead.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection

from holdfast.engine.decide import decide_lost
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed
from holdfast.runtime import presence, queries

Connection = AsyncConnection[Any]
log = logging.getLogger("holdfast.leader")


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A name, how often (seconds), and the function that does it once."""

    name: str
    every: float
    run: Callable[[Connection, str], Awaitable[int]]


async def reap(
    conn: Connection,
    stores: Sequence[Store],
    leader: str,
    *,
    timeout: float,
    nameless: float,
    now: datetime | None = None,
) -> int:
    """Removes silent workers and gives their rows back, in every ledger, in one transaction.

    Also gives back rows that name a worker without a row for longer than `timeout`, rows that name nobody
    for longer than `nameless`, and rows whose own lease has run out.
    """
    given_back = 0
    async with conn.transaction():
        await conn.execute(queries.IMPATIENT)
        dead = await presence.bury(conn, leader, timeout, now=now)
        if dead:
            log.warning("workers gone: %s", ", ".join(dead))
        living = await presence.alive(conn)
        for store in stores:
            lost: dict[Any, Claimed] = {}
            for claim in await store.held_by(conn, dead, now=now) if dead else []:
                lost[claim.id] = claim
            orphans = await store.orphans(conn, living, orphaned=timeout, nameless=nameless, now=now)
            for claim in (*orphans, *await store.expired(conn, now=now)):
                lost[claim.id] = claim
            if lost:
                moves = [decide_lost(store.ledger, claim) for claim in lost.values()]
                moved = await store.move(conn, moves, now=now)
                log.warning("%s: %d rows of lost workers given back", store.ledger.name, len(moved))
                given_back += len(moved)
    return given_back


def reaping(stores: Sequence[Store], *, every: float, timeout: float, nameless: float) -> Duty:
    """The duty `reap` for these ledgers."""

    async def run(conn: Connection, leader: str) -> int:
        return await reap(conn, stores, leader, timeout=timeout, nameless=nameless)

    return Duty(name="reap", every=every, run=run)
