"""The leader's duties. A duty does its work once and answers with a count; the keeper's loop runs them.

Every duty is harmless when two leaders do it at once: locks and fences decide, not the lead.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, DataError, InterfaceError, OperationalError, ProgrammingError
from psycopg.errors import InsufficientPrivilege

from holdfast.db.pool import session_mark
from holdfast.engine.decide import decide_lost
from holdfast.engine.store import Store
from holdfast.engine.values import Move
from holdfast.runtime import presence, pulse, queries
from holdfast.runtime.pulse import Tally

Connection = AsyncConnection[Any]
log = logging.getLogger("holdfast.leader")

FLUSH_EVERY, FORGET_EVERY = 5.0, 600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Duty:
    """A name, how often (seconds), and the function that does it once.

    `by_all`: not for the leader alone. `at_the_end`: once more when the worker has stopped.
    """

    name: str
    every: float
    run: Callable[[Connection, str], Awaitable[int]]
    by_all: bool = False
    at_the_end: bool = False


def guarded(duty: Duty) -> Duty:
    """A duty of an app: what goes wrong in it is told, and neither ends the worker nor the other duties."""

    async def run(conn: Connection, worker: str) -> int:
        try:
            return await duty.run(conn, worker)
        except (OperationalError, InterfaceError, TimeoutError):
            raise  # the connection is gone, or the term is over: the keeper knows what to do
        except Exception:
            log.exception("the duty %r failed; it is tried again in %g s", duty.name, duty.every)
            return 0

    return replace(duty, run=run)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When a row counts as lost, in seconds: its worker silent, its worker unknown, nobody named.

    `known` has the time of rows that name nobody for ledgers whose runs have a limit of their own.
    """

    timeout: float
    nameless: float
    known: Mapping[str, float] = field(default_factory=dict[str, float])


async def reap(
    conn: Connection,
    stores: Sequence[Store],
    leader: str,
    patience: Patience,
    *,
    now: datetime | None = None,
    tally: Tally | None = None,
) -> int:
    """Removes silent workers and gives their rows back, in every ledger, in one transaction."""
    async with conn.transaction():
        await conn.execute(queries.IMPATIENT)
        dead = await presence.bury(conn, leader, patience.timeout, now=now)  # and when each was last heard
        if dead:
            log.warning("workers gone: %s", ", ".join(dead))
            await _terminate_sessions(conn, list(dead))
        given_back = await _give_back(conn, stores, dead, patience, leader, now)
    return _count(given_back, leader, tally)


async def _terminate_sessions(conn: Connection, workers: Sequence[str]) -> None:
    """End the sessions of removed workers: a machine that died without a word has left its locks there."""
    params = {"marks": [session_mark(worker) for worker in workers]}
    for pid, login, name in await (await conn.execute(queries.SESSIONS, params)).fetchall():
        try:
            async with conn.transaction():
                await conn.execute(queries.LOOK_AGAIN)
                done = await conn.execute(queries.TERMINATE, {"pid": pid, "name": name})
            if await done.fetchone() == (True,):
                log.warning("terminated session %d (%s) of a removed worker", pid, name)
        except InsufficientPrivilege as error:
            log.warning(
                "session %d (%s) of a removed worker keeps its locks: %s; missing is"
                " `grant pg_signal_backend to %s`, or membership in %s",
                *(pid, name, error.diag.message_primary, conn.info.user, login),
            )


async def adopt(
    conn: Connection,
    stores: Sequence[Store],
    worker: str,
    patience: Patience,
    *,
    now: datetime | None = None,
    tally: Tally | None = None,
) -> int:
    """Gives back what no reaping reached: the leader may not know every ledger that others work for."""
    async with conn.transaction():
        await conn.execute(queries.IMPATIENT)
        given_back = await _give_back(conn, stores, {}, patience, worker, now)
    return _count(given_back, worker, tally)


GivenBack = list[tuple[Store, list[Move]]]


def _count(given_back: GivenBack, by: str, tally: Tally | None) -> int:
    """How many rows it were; told, also to the statistics, now that the transaction has ended well."""
    for store, moves in given_back:
        if moves and store.witness:
            store.witness.wrote(moves, by)
        if tally is not None:
            tally.wrote(store.ledger, moves, [move.claim.id for move in moves])
    return sum(len(moves) for _, moves in given_back)


async def _give_back(
    conn: Connection,
    stores: Sequence[Store],
    dead: Mapping[str, str],
    patience: Patience,
    by: str,
    now: datetime | None,
) -> GivenBack:
    """Gives back rows of these workers, of workers without a row, of nobody, and of leases that are over."""
    given_back: GivenBack = []
    living = await presence.alive(conn)
    for store in stores:
        try:
            async with conn.transaction():
                moves = await _give_back_in(conn, store, dead, living, patience, by, now)
            given_back.append((store, moves))
        except ProgrammingError as error:  # one table that is not there must not keep others from recovery
            log.error("%s cannot be swept: %s; see `holdfast doctor`", store.ledger.name, error)
    return given_back


async def _give_back_in(
    conn: Connection,
    store: Store,
    dead: Mapping[str, str],
    living: Sequence[str],
    patience: Patience,
    by: str,
    now: datetime | None,
) -> list[Move]:
    if store.ledger.owner is None:  # a lock ends with its worker
        return []
    lost = {claim.id: claim for claim in await store.expired(conn, now=now)}
    if store.ledger.lifecycle.of("lose"):  # else a lease is all that counts, and the next claim looks at it
        nameless = patience.known.get(store.ledger.name, patience.nameless)
        orphans = await store.orphans(conn, living, orphaned=patience.timeout, nameless=nameless, now=now)
        held = await store.held_by(conn, list(dead), now=now) if dead else []
        lost = {claim.id: claim for claim in (*held, *orphans)} | lost
    if not lost:
        return []
    heard = ((claim, dead.get(str(claim.owner))) for claim in lost.values())
    moves = [move for claim, when in heard if (move := decide_lost(store.ledger, claim, when))]
    if not moves:
        return []
    moved = await store.move(conn, moves, by=by, now=now)
    log.warning("%s: %d rows of lost workers given back", store.ledger.name, len(moved))
    return [move for move in moves if move.claim.id in moved]


def sweeps(
    stores: Sequence[Store], patience: Patience, *, every: float, tally: Tally | None = None
) -> tuple[Duty, ...]:
    """The duties that recover rows: the leader reaps, and everybody adopts."""

    async def reaping(conn: Connection, leader: str) -> int:
        return await reap(conn, stores, leader, patience, tally=tally)

    async def adopting(conn: Connection, worker: str) -> int:
        return await adopt(conn, stores, worker, patience, tally=tally)

    return (
        Duty(name="reap", every=every, run=reaping),
        Duty(name="adopt", every=patience.timeout, run=adopting, by_all=True),
    )


def statistics(tally: Tally) -> tuple[Duty, ...]:
    """The duties of what workers did: everybody tells its numbers, and the leader forgets old ones."""

    async def telling(conn: Connection, _: str) -> int:
        return await _unless_refused(tally.flush(conn))

    async def forgetting(conn: Connection, _: str) -> int:
        return await _unless_refused(pulse.forget(conn))

    return (
        Duty(name="tell", every=FLUSH_EVERY, run=telling, by_all=True, at_the_end=True),
        Duty(name="forget", every=FORGET_EVERY, run=forgetting),
    )


async def _unless_refused(work: Awaitable[int]) -> int:
    """Nobody stops working for the sake of its statistics."""
    try:
        return await work
    except (ProgrammingError, DataError) as error:
        log.warning("the statistics are not kept: %s", error)
        return 0
