"""The leader's duties. A duty does its work once and answers with a count; the keeper's loop runs them.

Every duty is harmless when two leaders do it at once: locks and fences decide, not the lead.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, ProgrammingError

from holdfast.engine.decide import decide_lost
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed
from holdfast.runtime import presence, queries

Connection = AsyncConnection[Any]
log = logging.getLogger("holdfast.leader")


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A name, how often (seconds), and the function that does it once. `by_all`: not for the leader alone."""

    name: str
    every: float
    run: Callable[[Connection, str], Awaitable[int]]
    by_all: bool = False


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When a row counts as lost, in seconds: its worker silent, its worker unknown, nobody named."""

    timeout: float
    nameless: float


async def reap(
    conn: Connection,
    stores: Sequence[Store],
    leader: str,
    patience: Patience,
    *,
    now: datetime | None = None,
) -> int:
    """Removes silent workers and gives their rows back, in every ledger, in one transaction."""
    async with conn.transaction():
        await conn.execute(queries.IMPATIENT)
        dead = await presence.bury(conn, leader, patience.timeout, now=now)
        if dead:
            log.warning("workers gone: %s", ", ".join(dead))
        return await _give_back(conn, stores, dead, patience, leader, now)


async def adopt(
    conn: Connection,
    stores: Sequence[Store],
    worker: str,
    patience: Patience,
    *,
    now: datetime | None = None,
) -> int:
    """Gives back what no reaping reached: the leader may not know every ledger that others work for."""
    async with conn.transaction():
        await conn.execute(queries.IMPATIENT)
        return await _give_back(conn, stores, (), patience, worker, now)


async def _give_back(
    conn: Connection,
    stores: Sequence[Store],
    dead: Sequence[str],
    patience: Patience,
    by: str,
    now: datetime | None,
) -> int:
    """Gives back rows of these workers, of workers without a row, of nobody, and of leases that are over."""
    given_back = 0
    living = await presence.alive(conn)
    for store in stores:
        try:
            async with conn.transaction():
                given_back += await _give_back_in(conn, store, dead, living, patience, by, now)
        except ProgrammingError as error:  # one table that is not there must not keep others from recovery
            log.error("%s cannot be swept: %s; see `holdfast doctor`", store.ledger.name, error)
    return given_back


async def _give_back_in(
    conn: Connection,
    store: Store,
    dead: Sequence[str],
    living: Sequence[str],
    patience: Patience,
    by: str,
    now: datetime | None,
) -> int:
    lost: dict[Any, Claimed] = {}
    for claim in await store.held_by(conn, dead, now=now) if dead else []:
        lost[claim.id] = claim
    orphans = await store.orphans(
        conn, living, orphaned=patience.timeout, nameless=patience.nameless, now=now
    )
    for claim in (*orphans, *await store.expired(conn, now=now)):
        lost[claim.id] = claim
    if not lost:
        return 0
    moves = [decide_lost(store.ledger, claim) for claim in lost.values()]
    moved = await store.move(conn, moves, by=by, now=now)
    log.warning("%s: %d rows of lost workers given back", store.ledger.name, len(moved))
    return len(moved)


def sweeps(stores: Sequence[Store], patience: Patience, *, every: float) -> tuple[Duty, ...]:
    """The duties that recover rows: the leader reaps, and everybody adopts."""

    async def reaping(conn: Connection, leader: str) -> int:
        return await reap(conn, stores, leader, patience)

    async def adopting(conn: Connection, worker: str) -> int:
        return await adopt(conn, stores, worker, patience)

    return (
        Duty(name="reap", every=every, run=reaping),
        Duty(name="adopt", every=patience.timeout, run=adopting, by_all=True),
    )
