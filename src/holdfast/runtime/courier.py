"""One outbox of one worker: a ledger whose claim is a row lock.

Each row is a transaction of its own: lock, call the handler, write the end, commit. So another service may
drain the same table: whoever has the lock tells, and a crash between the call and the commit repeats one row.
An end that cannot be written is kept, and written when the row is ours again: it is not told twice for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.db.database import Database
from holdfast.db.pool import current_worker
from holdfast.engine.backoff import Backoff
from holdfast.engine.decide import decide
from holdfast.engine.intake import absorb
from holdfast.engine.outcomes import Cancel, Crashed, Done, Ending, Fail, Snooze
from holdfast.engine.reading import MESSAGE_LENGTH
from holdfast.engine.store import Connection
from holdfast.engine.values import Claimed, Move
from holdfast.errors import ClaimLost, HoldfastError, NotFound
from holdfast.runtime.context import Context, Finishing
from holdfast.runtime.execute import Places, execute
from holdfast.runtime.handlers import Handler, Handlers
from holdfast.runtime.pauses import Doors
from holdfast.runtime.processes import crash_of
from holdfast.runtime.pulse import Tally
from holdfast.runtime.pump import FIRST_WAIT, LAST_WAIT
from holdfast.runtime.runner import LOSSES, passes
from holdfast.runtime.share import LeftKinds, Share

log = logging.getLogger("holdfast.worker")


REFUSALS = 3  # times that it is tried to write that a row was told; then a person has to decide
REFUSED_WAIT = 1.0  # seconds before the second of them; the next waits are longer, up to REFUSED_MOST times
REFUSED_MOST = 30
STUCK_WAIT = 60.0  # seconds for which a row is left of which nothing can be written
KEPT = ("finish", "snooze")  # what a handler wrote stays when its run ends so
UNWRITTEN = "COMMIT_FAILED"


@dataclass(frozen=True, kw_only=True)
class Unwritten:
    """The end of a run that could not be written, to be written when we have the row again.

    `attempts`: how often it had been tried. Where others have tried it since, this is no longer true of it.
    `until`: when to try, by our clock. `afterwards`: who wants to know when it is written.
    """

    ending: Ending
    attempts: int
    refusals: int
    until: float
    afterwards: list[Callable[[], None]]


@dataclass
class Telling:
    """A row that is being told, in the transaction that has it locked. `task` is the handler's own.

    `ending` is how that ended, and `move` what is written about it, as soon as they are known. `again`: it
    was told before, and only its end is to be written.
    """

    claim: Claimed
    finishing: Finishing
    context: Context
    task: asyncio.Task[Ending] | None = None
    ending: Ending | None = None
    move: Move | None = None
    again: Unwritten | None = None
    cut: bool = False  # whether we have called it off


class Courier:
    """Takes, tells and marks the rows of one outbox, for the worker whose id is `owner`."""

    def __init__(
        self, share: Share, database: Database, handlers: Handlers, places: Places, tally: Tally
    ) -> None:
        self.share = share
        self.left_kinds = LeftKinds(share, handlers)
        self.store = share.store
        self.ledger = share.store.ledger
        self.database = database
        self.handlers = handlers
        self.places = places
        self.tally = tally
        self.poll = share.pace.poll or database.settings.poll_interval
        self.heard = share.pace.heard
        self.owner = ""
        self.running: dict[Any, Telling] = {}
        self._unwritten: dict[Any, Unwritten] = {}
        self.claiming = True
        self.lost = False  # whether the lease is over, and there is no new one yet
        self.barred = False  # set by the heartbeat thread, when the event loop was blocked for too long
        self.idle = asyncio.Event()
        self._idle: set[int] = set()  # the ways on which nothing was found
        self._wakes = [asyncio.Event() for _ in range(share.concurrency)]
        self._doors = [Doors(self.ledger, share.queues, self.poll) for _ in self._wakes]
        self._taken = 0  # rows so far

    # -- what others say to it -----------------------------------------------------------------------

    def ring(self) -> None:
        """There may be something to tell."""
        for wake in self._wakes:
            wake.set()

    def look(self) -> None:
        """Rows may have been called off: one that is locked cannot be."""

    def look_at_pauses(self) -> None:
        """Something may have been paused, or may go on."""
        for doors in self._doors:
            doors.ring()
        self.ring()

    def stop_claiming(self) -> None:
        """The worker stops: what is being told may end, nothing new begins."""
        self.claiming = False
        self.ring()

    def lose(self) -> None:
        """The lease is over: claim nothing. What is locked stays ours as long as its session lives."""
        self.lost = True

    def renew(self, owner: str) -> None:
        """The worker has a new lease: go on as `owner`."""
        self.owner = owner
        self.lost = False
        self.ring()

    async def abandon(self, conn: Connection, worker: str, blocking: Any, crash: Crashed) -> None:
        """Write nothing: the rows are locked by transactions that end with the process."""
        del conn, worker
        if blocking is not None:
            log.error("%s %s: %s; not counted", self.ledger.name, blocking, crash.message)

    async def give_back(self) -> int:
        """Cuts off what is being told. Its locks end with its transactions, and nothing is written."""
        tellings = list(self.running.values())
        for telling in tellings:
            telling.cut = True
            telling.context.cancelled.set()
            if telling.task is not None:
                telling.task.cancel()
        if tellings:
            log.warning("%s: %d handlers did not end in time; cut off", self.ledger.name, len(tellings))
        return len(tellings)

    # -- its life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Tells what there is, on as many ways at once as its share has, until it is asked to stop."""
        async with asyncio.TaskGroup() as group:
            for way, _ in enumerate(self._wakes):
                group.create_task(self._way(way))

    async def _way(self, way: int) -> None:
        wait = FIRST_WAIT
        while self.claiming:
            try:
                owner = self.owner
                current_worker.set(owner)  # of this connection, and of those that handlers open
                async with await self.database.connect_service(f"worker {self.ledger.name}") as conn:
                    self._doors[way].ring()
                    while self.claiming and owner == self.owner:
                        self._wakes[way].clear()
                        told = await self._round(conn, way)
                        wait = FIRST_WAIT
                        await self._rest(way, told)
            except LOSSES as error:
                log.warning("%s: the database is away (%s); trying again", self.ledger.name, error)
                self.heard(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_WAIT)
            except psycopg.Error as error:  # the other ledgers go on, and this one may be mended
                log.error("%s: refused (%s); trying again", self.ledger.name, error)
                self.heard(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_WAIT)

    async def _round(self, conn: Connection, way: int) -> int:
        """Rows one after the other, as many as a round has; answers how many."""
        told = 0
        await self._forget(conn)
        await self.left_kinds.log_new(conn)
        while self._has_room() and (self.share.pace.batch is None or told < self.share.pace.batch):
            queues = await self._doors[way].open(conn)
            if not queues or not await self._tell_one(conn, way, queues):
                break
            told += 1
        self.heard(told)
        return told

    def _has_room(self) -> bool:
        if not self.claiming or self.lost or self.barred:
            return False
        if self.share.most is not None and self._taken >= self.share.most:
            return False
        return len(self.running) + self.places.abandoned[self.ledger.name] < self.share.concurrency

    async def _rest(self, way: int, told: int) -> None:
        """Waits for the bell or the time to look again; after a full round for the time alone."""
        if not self.claiming:
            return
        full = self.share.pace.batch is not None and told >= self.share.pace.batch
        waits = self._waits()
        self._note_idle(way, idle=not full and not waits)
        wait = self.poll if full else min([self.poll, *waits])
        until = asyncio.get_running_loop().time() + wait
        try:
            async with asyncio.timeout_at(until):
                await self._wakes[way].wait()
                while full and self.claiming:
                    self._wakes[way].clear()
                    await self._wakes[way].wait()
        except TimeoutError:
            pass

    def _note_idle(self, way: int, *, idle: bool) -> None:
        self._idle.add(way) if idle else self._idle.discard(way)
        if len(self._idle) == len(self._wakes):
            self.idle.set()
        else:
            self.idle.clear()

    async def _tell_one(self, conn: Connection, way: int, queues: Sequence[str]) -> bool:
        """Takes the first row and calls its handler while it is locked; False: there is none."""
        telling: Telling | None = None
        try:
            async with conn.transaction():
                for claim in await self.store.claim(conn, self.owner, 1, **self._what(queues)):
                    self._note_idle(way, idle=False)
                    telling = self._begin(conn, claim)
                    move = telling.move = await self._end(conn, telling)
                    moved = await self.store.move(conn, [move])
                    if move.then:
                        await self.store.enqueue_many(conn, move.then)
                    self.tally.tell(self.store, [move], moved)
        except (psycopg.Error, HoldfastError) as error:
            if telling is None or telling.ending is None:  # nobody was told anything
                raise
            self._keep(telling, error, lost=conn.closed)
            if conn.closed or isinstance(error, psycopg.Error):
                raise  # the connection may be spoilt
            return True
        finally:
            if telling is not None:
                telling.finishing.over()
                self.running.pop(telling.claim.id, None)
        if telling is None:
            return False
        if telling.move is not None and telling.move.verb in KEPT:
            telling.finishing.tell()
        if telling.finishing.confined is not None:
            await self.database.reset(conn)  # what the handler has set is not for the next one
        return True

    def _what(self, queues: Sequence[str]) -> dict[str, Any]:
        """Which rows to take: none that is still being told, though its lock may be lost."""
        kinds, now = self.share.claimed_kinds(self.handlers), time.monotonic()
        left = [key for key, one in self._unwritten.items() if one.until > now]
        return {"kinds": kinds, "queues": queues, "in_hand": [*self.running, *left]}

    def _begin(self, conn: Connection, claim: Claimed) -> Telling:
        self._taken += 1
        self.tally.claimed(self.ledger.name, claim.kind, claim.waited)
        finishing = Finishing(self.database, self.places.transactions, self.ledger, claim, conn)
        context = Context(self.store, claim, self.database, finishing)
        telling = Telling(claim, finishing, context)
        self.running[claim.id] = telling
        return telling

    def _keep(self, telling: Telling, error: Exception, *, lost: bool) -> None:
        """Its end could not be written: told again and again, its receiver would hear it for ever."""
        claim = telling.claim
        log.error("%s %s: its end cannot be written: %s", self.ledger.name, claim.id, error)
        self._unwritten[claim.id] = _unwritten(telling, error, lost=lost)

    def _waits(self) -> list[float]:
        """Seconds until it may be written of rows that they were told."""
        now, kept = time.monotonic(), self._unwritten.values()
        return [one.until - now for one in kept if one.until > now and isinstance(one.ending, Done)]

    async def _forget(self, conn: Connection) -> None:
        """Others may have ended rows whose end we could not write: then there is nothing to be written."""
        for key in list(self._unwritten):
            try:
                over = (await self.store.get(conn, key)).state in self.ledger.ends
            except NotFound:
                over = True
            if over:
                self._unwritten.pop(key, None)

    async def _end(self, conn: Connection, telling: Telling) -> Move:
        """Calls the handler and says what becomes of the row; what it wrote stays only if it went well."""
        claim = telling.claim
        handler = self.handlers.find(self.ledger.name, claim.kind)
        backoff = (handler and handler.backoff) or self.share.backoff
        before = self._unwritten.pop(claim.id, None)
        if before and before.attempts == claim.attempts:
            telling.again, telling.ending = before, before.ending
            telling.finishing.afterwards = before.afterwards
            return self._decide(claim, before.ending, backoff)
        if handler is None:
            telling.ending = Fail(reason=f"no handler for {claim.kind!r}", code="NO_HANDLER")
            return self._decide(claim, telling.ending, None)
        try:
            async with conn.transaction() as kept:
                telling.ending = await self._run(handler, telling)
                move = self._decide(claim, telling.ending, backoff)
                if move.verb in KEPT and conn.info.transaction_status == TransactionStatus.INERROR:
                    message = "the handler went on in a transaction that had failed"
                    telling.ending = Crashed(code=UNWRITTEN, message=message)
                    move = self._decide(claim, telling.ending, backoff)
                if move.verb not in KEPT:
                    raise psycopg.Rollback(kept)  # also of what it made of its role
                if telling.finishing.confined:
                    await telling.finishing.unconfine()
        except psycopg.Rollback:  # it comes out where there is nothing left to roll back
            raise psycopg.OperationalError("the transaction was lost while the row was told") from None
        return move

    async def _run(self, handler: Handler, telling: Telling) -> Ending:
        """Calls the handler, in a task that it may cancel without any harm to the way that it is told on."""
        began = time.monotonic()
        way = asyncio.current_task()
        assert way
        calling = execute(handler, telling.claim, telling.context, self.places)
        telling.task = asyncio.create_task(calling)
        try:
            return await telling.task
        except ClaimLost as lost:  # it cannot be: the row is locked
            return crash_of(lost)
        except asyncio.CancelledError as error:
            if telling.cut or way.cancelling():
                raise
            return crash_of(error)  # it cancelled itself
        finally:
            self.tally.ran(self.ledger.name, telling.claim.kind, time.monotonic() - began)

    def _decide(self, claim: Claimed, ending: Ending, backoff: Backoff | None) -> Move:
        if isinstance(ending, Crashed):
            said = absorb(ending.message, MESSAGE_LENGTH)  # a log takes no more than a column does
            trace = ending.trace and absorb(ending.trace)
            log.warning("%s %s: %s", self.ledger.name, claim.id, said, extra={"trace": trace})
        waits = self.database.settings.min_retry_seconds
        try:
            return decide(self.ledger, claim, ending, backoff, min_wait=waits)
        except Exception as error:  # an answer that nobody can make sense of is a bad run
            return decide(self.ledger, claim, crash_of(error), backoff, min_wait=waits)


def _unwritten(telling: Telling, error: Exception, *, lost: bool) -> Unwritten:
    """What is to be written of a row whose end could not be: by a loss of the connection, or by a refusal.

    The same, where its handler wrote nothing that has gone with the transaction; else it was a bad run. What
    is refused for good must not be told again by itself: it fails, and a person decides.
    """
    ending, before = telling.ending, telling.again
    assert ending is not None
    wrote = telling.finishing.writes and isinstance(ending, Done | Snooze)
    refusals, wait = (before.refusals if before else 0) + (not lost), 0.0
    crash = Crashed(code=UNWRITTEN, message=f"the transaction of the handler did not commit: {error}")
    if lost:
        ending = crash if wrote else ending
    elif isinstance(ending, Done) and not wrote and isinstance(error, psycopg.Error):
        if refusals < REFUSALS or passes(error):
            wait = REFUSED_WAIT * min(2 ** (refusals - 1), REFUSED_MOST)
        else:
            ending = Fail(f"it was told, and that cannot be written: {error}", code=UNWRITTEN)
    else:
        failed = isinstance(ending, Fail | Cancel)
        ending = Fail(f"its end cannot be written: {error}", code=UNWRITTEN) if failed else crash
        wait = STUCK_WAIT if refusals > 1 else 0.0
    return Unwritten(
        ending=ending,
        attempts=telling.claim.attempts,
        refusals=refusals,
        until=time.monotonic() + wait,
        afterwards=telling.finishing.afterwards,
    )
