"""The one door to a ledger's table. Every verb takes a connection and never opens one.

So enqueueing inside the caller's own transaction costs nothing, and a worker may put the finish of one
batch and the claim of the next into one commit. Times come from the database; tests lend a clock by `now`.
"""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from psycopg import AsyncCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, tuple_row
from psycopg.sql import Composed

from holdfast.engine import callers, intake, reading, sql
from holdfast.engine.adding import Adder
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Verb
from holdfast.engine.looks import BATCH, Connection, keys_of
from holdfast.engine.orders import Orders
from holdfast.engine.values import Claimed, Item, Move, Receipt
from holdfast.engine.words import array
from holdfast.errors import ClaimLost, InvalidInput

# Makes the owner token of each claim its own, also when a process comes back under its old worker id.
_claims = itertools.count(secrets.randbelow(10**15))
WAKING: tuple[Verb, ...] = ("release", "lose", "requeue")


class Store(Orders):
    """A ledger and the verbs that may be said about its rows: here those of callers and of workers."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.adder = Adder(ledger, self.sql)

    # -- enqueue -------------------------------------------------------------------------------------

    # On a connection of any library that `callers` knows, in the caller's own transaction.

    async def enqueue(
        self, conn: Any, item: Item, *, by: str | None = None, now: datetime | None = None
    ) -> Receipt:
        """Adds one row, or answers with the row that has its key already."""
        (receipt,) = await callers.run(conn, self.adder.add_one(item, by, now))
        return receipt

    async def enqueue_many(
        self, conn: Any, items: Iterable[Item], *, by: str | None = None, now: datetime | None = None
    ) -> list[Receipt]:
        """Adds all items or none, and answers in their order. A key that comes twice is one row."""
        return await callers.run(conn, self.adder.add_many(items, by, now))

    def enqueue_sync(self, conn: Any, item: Item, *, by: str | None = None) -> Receipt:
        """`enqueue`, on a connection that is not async."""
        (receipt,) = callers.run_sync(conn, self.adder.add_one(item, by, None))
        return receipt

    def enqueue_many_sync(self, conn: Any, items: Iterable[Item], *, by: str | None = None) -> list[Receipt]:
        """`enqueue_many`, on a connection that is not async."""
        return callers.run_sync(conn, self.adder.add_many(items, by, None))

    async def copy(self, conn: Connection, items: Iterable[Item], *, now: datetime | None = None) -> int:
        """Adds very many rows by COPY, all or none, and answers how many. For items without a key."""
        async with conn.transaction():
            count = await self.adder.copy(conn, items, now)
            await self.ring(conn)
        return count

    # -- the worker's verbs --------------------------------------------------------------------------

    async def claim(
        self,
        conn: Connection,
        owner: str,
        limit: int,
        *,
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] = ("default",),
        in_hand: Sequence[Any] = (),
        limits: Composed | None = None,
        now: datetime | None = None,
    ) -> list[Claimed]:
        """Takes up to `limit` rows for `owner`, the best first.

        Where a claim is a lock, they are taken as long as the caller's transaction lasts. `in_hand` are the
        keys of rows that the caller still works on: they are left out, though their lease may be over.
        `limits`, here and below: a statement that sets the timeouts of the transaction, as its first one.
        """
        how = (conn, owner, limit, kinds, queues, in_hand, now)
        async with _together(conn, limits):
            cursor = await self._send_claim(*how)
        claims = await cursor.fetchall()
        while claims and self.ledger.owner is None:
            # What was read beside a row may be older than its lock: it counts what a second look sees.
            locked = {claim.id for claim in claims}
            claims = await (await self._send_claim(*how)).fetchall()
            if sure := [claim for claim in claims if claim.id in locked]:
                return sure
        return claims

    async def _send_claim(
        self,
        conn: Connection,
        owner: str,
        limit: int,
        kinds: Sequence[str] | None,
        queues: Sequence[str],
        in_hand: Sequence[Any],
        now: datetime | None,
    ) -> AsyncCursor[Claimed]:
        token = owner if self.ledger.fence else f"{owner}/{next(_claims)}"
        params = {
            "owner": token,
            "worker": owner,
            "limit": limit,
            "kinds": None if kinds is None else list(dict.fromkeys(kinds)),
            "queues": list(dict.fromkeys(queues)),
            "in_hand": list(in_hand),
            "detail": json.dumps({"worker": owner}),
            "now": now,
        }
        statement = self.sql.claim if kinds is None else self.sql.claim_of_kinds
        return await conn.cursor(row_factory=class_row(Claimed)).execute(statement, params)

    async def turn(
        self,
        conn: Connection,
        moves: Sequence[Move],
        owner: str,
        limit: int,
        *,
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] = ("default",),
        in_hand: Sequence[Any] = (),
        limits: Composed | None = None,
    ) -> tuple[frozenset[Any], list[Claimed]]:
        """The ends of some runs and the next claim in one commit and one round trip.

        Others skip the rows that it locks.
        """
        async with _together(conn, limits, several=True):
            ends = await self._send_moves(conn, moves, None)
            claims = await self._send_claim(conn, owner, limit, kinds, queues, in_hand, None)
        return await keys_of(ends), await claims.fetchall()

    async def start(
        self,
        conn: Connection,
        claims: Sequence[Claimed],
        *,
        limits: Composed | None = None,
        now: datetime | None = None,
    ) -> list[Claimed]:
        """Marks rows whose handlers are about to be called; answers with those that are still ours.

        Where the ledger has no `start` edge a claim is a start, and nothing is written.
        """
        if "start" not in self.sql.moves:
            return list(claims)
        started: set[Claimed] = set()
        rounds = _rounds([Move(verb="start", claim=claim) for claim in claims])
        async with _together(conn, limits, several=len(rounds) > 1):
            cursors = [await self._send(conn, "start", moves, now) for moves in rounds]
        for moves, cursor in zip(rounds, cursors, strict=True):
            moved = await keys_of([cursor])
            started |= {move.claim for move in moves if move.claim.id in moved}
        state = self.ledger.to("start")
        return [msgspec.structs.replace(claim, state=state) for claim in claims if claim in started]

    async def move(
        self,
        conn: Connection,
        moves: Sequence[Move],
        *,
        by: str | None = None,
        limits: Composed | None = None,
        now: datetime | None = None,
    ) -> frozenset[Any]:
        """Writes the ends of some runs; answers with the keys of the rows that were still ours.

        Each row is judged alone: one whose claim is lost stays as it is and does not spoil the others. `by`
        is who writes, where it is not the worker that holds the rows.
        """
        async with _together(conn, limits, several=len({one.verb for one in moves}) > 1):
            ends = await self._send_moves(conn, moves, now, by)
        return await keys_of(ends)

    async def _send_moves(
        self, conn: Connection, moves: Sequence[Move], now: datetime | None, by: str | None = None
    ) -> list[AsyncCursor[Any]]:
        verbs: dict[Verb, list[Move]] = {}
        for one in moves:
            verbs.setdefault(one.verb, []).append(one)
        ends = [
            await self._send(conn, verb, part, now, by)
            for verb, group in verbs.items()
            if verb in self.sql.moves
            for part in _rounds(group)
        ]
        if any(verb in WAKING for verb in verbs):
            await self.ring(conn)
        return ends

    async def move_one(self, conn: Connection, move: Move, *, now: datetime | None = None) -> None:
        """Writes the end of one run, and the work that follows it, or raises `ClaimLost`."""
        if not await self.move(conn, [move], now=now):
            raise ClaimLost(what=self.ledger.name, id=move.claim.id, fence=move.claim.fence)
        if move.then:
            await self.enqueue_many(conn, move.then)

    async def _send(
        self,
        conn: Connection,
        verb: Verb,
        moves: Sequence[Move],
        now: datetime | None,
        by: str | None = None,
    ) -> AsyncCursor[Any]:
        types = self.sql.move_types(verb, fenced=True)
        columns = self._move_columns(moves, types, by)
        params: dict[str, Any] = {array(place): columns[name] for place, name in enumerate(types)}
        return await conn.cursor(row_factory=tuple_row).execute(self.sql.moves[verb], params | {"now": now})

    def _move_columns(
        self, moves: Sequence[Move], types: Mapping[str, str], by: str | None
    ) -> dict[str, Sequence[Any]]:
        """What some moves write, column by column."""
        columns: dict[str, Sequence[Any]] = {
            "key": [move.claim.id for move in moves],
            "owner": [move.claim.owner for move in moves],
            "fence": [move.claim.fence for move in moves],
            "delay": [move.delay for move in moves],
            "result": [move.result if isinstance(move.result, str) else None for move in moves],
            "reason": [move.fault and reading.told_reason(move.fault) for move in moves],
        }
        if "detail" in types:
            columns["detail"] = [json.dumps(reading.detail(self.ledger, move, by)) for move in moves]
        if self.ledger.errors and "error_0" in types:
            errors = [intake.error_values(self.ledger.errors, move.fault) for move in moves]
            columns |= {f"error_{place}": column for place, column in enumerate(zip(*errors, strict=True))}
        return {name: list(column) for name, column in columns.items()}

    async def heartbeat(
        self, conn: Connection, claims: Sequence[Claimed], *, now: datetime | None = None
    ) -> frozenset[Any]:
        """The keys of those claims that still hold. Renews them where the lease lives in the row."""
        return await self._keys(conn, self.sql.still_held, self._guards(claims) | {"now": now})

    def _guards(self, claims: Sequence[Claimed]) -> dict[str, Any]:
        columns = [[c.id for c in claims], [c.owner for c in claims], [c.fence for c in claims]]
        return {array(place): column for place, column in enumerate(columns)}

    async def progress(
        self,
        conn: Connection,
        claim: Claimed,
        percent: float | None = None,
        stage: str | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        """Tells how far a run has come, as an event; without a journal only checks that the claim holds."""
        if percent is not None and not 0 <= percent <= 100:
            raise InvalidInput(field="percent", message=f"must lie between 0 and 100, not {percent}")
        if self.sql.progress is None:
            held = await self.heartbeat(conn, [claim], now=now)
        else:
            told = {"worker": claim.owner, "progress": percent, "stage": stage and intake.absorb(stage)}
            told = {name: value for name, value in told.items() if value is not None}
            place = 3 if self.ledger.fence else 2
            params = self._guards([claim]) | {array(place): [json.dumps(told)], "now": now}
            held = await self._keys(conn, self.sql.progress, params)
        if claim.id not in held:
            raise ClaimLost(what=self.ledger.name, id=claim.id, fence=claim.fence)

    # -- recovery ------------------------------------------------------------------------------------

    async def held_by(
        self, conn: Connection, owners: Sequence[str], *, now: datetime | None = None
    ) -> list[Claimed]:
        """The rows that these workers hold, locked."""
        return await self._claims_of(conn, self.sql.held_by, {"owners": list(owners), "now": now})

    async def orphans(
        self,
        conn: Connection,
        alive: Sequence[str],
        *,
        orphaned: float,
        nameless: float,
        now: datetime | None = None,
    ) -> list[Claimed]:
        """Rows held for `orphaned` seconds by nobody we know, or for `nameless` seconds by nobody at all."""
        params = {
            "alive": list(alive),
            "orphaned": orphaned,
            "nameless": nameless,
            "limit": BATCH,
            "now": now,
        }
        return await self._claims_of(conn, self.sql.orphans, params)

    async def expired(self, conn: Connection, *, now: datetime | None = None) -> list[Claimed]:
        """Rows whose own lease has run out; none where the lease is the worker's."""
        if self.ledger.lease is None:
            return []
        return await self._claims_of(conn, self.sql.expired, {"limit": BATCH, "now": now})

    async def _claims_of(self, conn: Connection, query: bytes, params: Mapping[str, Any]) -> list[Claimed]:
        async with conn.cursor(row_factory=class_row(Claimed)) as cursor:
            await cursor.execute(query, params)
            return await cursor.fetchall()


def _together(
    conn: Connection, limits: Composed | None, *, several: bool = False
) -> AbstractAsyncContextManager[None]:
    """Make one transaction of the statements of a block; not of a single one, nor inside the caller's own."""
    if conn.info.transaction_status is TransactionStatus.IDLE and (several or limits is not None):
        return _pipelined(conn, limits)
    return nullcontext()


@asynccontextmanager
async def _pipelined(conn: Connection, limits: Composed | None) -> AsyncGenerator[None]:
    """Send the statements of a block as one transaction in one round trip; nothing is fetched before its end.

    BEGIN and COMMIT are sent as statements, so that a refusal at the commit is the result of a statement:
    psycopg cannot assign an error at the end of a pipeline that arrives before all of it was sent.
    """
    try:
        async with conn.pipeline():
            await conn.execute(sql.BEGIN, prepare=False)
            if limits is not None:
                await conn.execute(limits)
            yield
            await conn.execute(sql.COMMIT, prepare=False)
    except Exception:
        await _recover(conn)
        raise
    except BaseException:  # cancelled: what was sent and what was answered is unknown
        await conn.close()
        raise


async def _recover(conn: Connection) -> None:
    """Make a connection usable whose pipeline failed, or close it.

    The server skips everything that follows the failed statement, also what should have been prepared, while
    psycopg takes it for prepared from then on. A rollback makes psycopg drop all its prepared statements.
    """
    try:
        if not conn.closed and conn.info.transaction_status is TransactionStatus.IDLE:
            await conn.execute(sql.BEGIN, prepare=False)  # without a transaction, rollback() does nothing
        await conn.rollback()
    except Exception:
        await conn.close()


def _rounds(moves: Iterable[Move]) -> list[list[Move]]:
    """Moves that may go into one statement: each row once, in the order of the keys.

    A row that is named twice, by an old claim beside a new one, is asked about twice, so that each claim is
    judged alone. The order is the one in which others lock, so that two batches seldom wait for each other.
    """
    rounds: list[dict[Any, Move]] = []
    for move in sorted(moves, key=_by_key):
        free = next((part for part in rounds if move.claim.id not in part), None)
        if free is None:
            rounds.append(free := {})
        free[move.claim.id] = move
    return [list(part.values()) for part in rounds]


def _by_key(move: Move) -> Any:
    key = move.claim.id
    return key.int if isinstance(key, UUID) else key  # the same order, and much quicker to compare
