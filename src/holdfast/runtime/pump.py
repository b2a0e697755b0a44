"""One ledger of one worker: keeps its slots full, runs handlers, and writes their ends in batches.

A turn writes the ends of the last runs and claims the next rows in one commit. While the database works,
further handlers end; their moves wait for the next turn. So the batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.errors import LockNotAvailable, UniqueViolation
from psycopg.sql import SQL, Composed, Literal

from holdfast.db.database import Database
from holdfast.db.pool import current_worker
from holdfast.db.settings import Settings
from holdfast.engine.decide import decide
from holdfast.engine.outcomes import Crashed, Fail
from holdfast.engine.store import Connection
from holdfast.engine.values import Claimed, Move
from holdfast.runtime import queries
from holdfast.runtime.context import Context, Finishing
from holdfast.runtime.execute import Places
from holdfast.runtime.handlers import Handlers
from holdfast.runtime.pauses import Doors
from holdfast.runtime.pulse import Tally
from holdfast.runtime.runner import LOSSES, Runner, is_loss
from holdfast.runtime.share import LeftKinds, Share

log = logging.getLogger("holdfast.worker")

REFUSALS = (psycopg.Error, TypeError, ValueError)  # of a move that has something no column can take
UNWRITABLE = "UNWRITABLE"
BLOCKED_WAIT = 1.0  # seconds between tries to write about rows that somebody keeps locked
FIRST_WAIT, LAST_WAIT = 0.1, 5.0  # seconds between tries to reach the database
RELEASE_SECONDS = 5.0  # to release, at a stop, the rows of handlers that did not end


def limits_of(settings: Settings) -> Composed | None:
    """The statement that limits each transaction behind a pooler; elsewhere the session is limited."""
    if settings.database_pooler == "none":
        return None
    milliseconds = round(settings.db_statement_timeout_seconds * 1000) or 1
    return SQL(queries.LIMITS).format(statement=Literal(str(milliseconds)))


@dataclass
class Run:
    """A handler at work."""

    claim: Claimed
    context: Context
    finishing: Finishing
    task: asyncio.Task[None]


class Pump:
    """Claims, runs and finishes the rows of one ledger, for the worker whose id is `owner`.

    `tally` counts what it does; it has one of its own where its worker has none.
    """

    def __init__(
        self,
        share: Share,
        database: Database,
        handlers: Handlers,
        places: Places,
        tally: Tally | None = None,
    ) -> None:
        self.share = share
        self.store = share.store
        self.ledger = share.store.ledger
        self.database = database
        self.handlers = handlers
        self.places = places
        self.tally = tally or Tally(handlers.find)
        self.runner = Runner(share, database, handlers, places, self.tally)
        self.poll = share.pace.poll or database.settings.poll_interval
        self.heard = share.pace.heard
        self.doors = Doors(self.ledger, share.queues, self.poll)
        self.left_kinds = LeftKinds(share, handlers)
        self.limits = limits_of(database.settings)
        self._claims = 0  # rows claimed so far
        self.owner = ""
        self.running: dict[Any, Run] = {}
        self.former: list[str] = []  # the ids under which we were given up
        self.moves: list[Move] = []
        self.writing: list[Move] = []  # on their way to the database
        self.blocked: list[Move] = []  # about rows that somebody else keeps locked: written alone, later
        self._tried = 0.0
        self.unwritable: set[Any] = set()  # rows about which nothing can be written: left as they are
        self.claiming = True
        self.lost = False  # whether the lease is over, and there is no new one yet
        self.barred = False  # set by the heartbeat thread, when the event loop was blocked for too long
        self.idle = asyncio.Event()
        self._wake = asyncio.Event()
        self._look = True  # whether to see which of our rows are still ours
        self._looked = time.monotonic()
        self._group: asyncio.TaskGroup | None = None
        self._falls = False  # whether the whole worker ends, by a mistake: runs are cut off by nobody's wish

    # -- what others say to it -----------------------------------------------------------------------

    def ring(self) -> None:
        """There may be something to claim."""
        self._wake.set()

    def look(self) -> None:
        """Rows may have been called off."""
        self._look = True
        self._wake.set()

    def look_at_pauses(self) -> None:
        """Something may have been paused, or may go on."""
        self.doors.ring()
        self._wake.set()

    def stop_claiming(self) -> None:
        """The worker stops: what runs may end, nothing new begins."""
        self.claiming = False
        self._wake.set()

    def lose(self) -> None:
        """The lease is over, and others may take our rows: drop them all, and claim nothing."""
        self.lost = True
        self.former.append(self.owner)
        self._look = True  # what was claimed between the end of the lease and now is still ours to release
        for run in list(self.running.values()):
            handler = self.handlers.find(self.ledger.name, run.claim.kind)
            self._drop(run, cancel=handler is None or handler.cancel_when_lost)

    def renew(self, owner: str) -> None:
        """The worker has a new lease: go on as `owner`."""
        self.owner = owner
        self.lost = False
        self._wake.set()

    # -- its life ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Takes turns until it is told to stop claiming and everything has been written."""
        wait = FIRST_WAIT
        async with asyncio.TaskGroup() as self._group:
            keeping = self._group.create_task(self._keep_transactions(self._group))
            try:
                while self._has_a_reason():
                    try:
                        purpose, owner = f"worker {self.ledger.name}", self.owner
                        async with await self.database.connect_service(purpose, worker=owner) as conn:
                            await self.be_impatient(conn)
                            self._look = True
                            self.doors.ring()
                            await self._turn(conn)
                            wait = FIRST_WAIT
                            await self._turns(conn, owner)
                    except LOSSES as error:
                        log.warning("%s: the database is away (%s); trying again", self.ledger.name, error)
                        self.heard(error)
                        wait = await self._back_off(wait)
                    except psycopg.Error as error:  # the other ledgers go on, and this one may be mended
                        log.error("%s: refused (%s); trying again", self.ledger.name, error)
                        self.heard(error)
                        wait = await self._back_off(wait)
            except BaseException:
                self._falls = True
                raise
            finally:
                keeping.cancel()

    async def _keep_transactions(self, group: asyncio.TaskGroup) -> None:
        """Keep the transactions of handlers that compute for long: see `Finishing.keep_alive`."""
        while True:
            await asyncio.sleep(self.database.settings.worker_timeout / 3)
            for run in self.running.values():
                group.create_task(run.finishing.keep_alive())

    async def _back_off(self, wait: float) -> float:
        await asyncio.sleep(wait)
        return min(wait * 2, LAST_WAIT)

    def _has_a_reason(self) -> bool:
        return bool(self.claiming or self.running or self.moves or self.blocked)

    async def be_impatient(self, conn: Connection) -> None:
        """A row that others keep locked delays itself alone. Behind a pooler, `limits` see to that."""
        if self.database.settings.database_pooler == "none":
            await conn.execute(queries.LOCK_TIMEOUT)

    async def _turns(self, conn: Connection, owner: str) -> None:
        """Take turns while the session has the name of this worker, which changes with its lease."""
        while self._has_a_reason() and owner == self.owner:
            self._wake.clear()
            await self._turn(conn)
            await self._rest()

    async def _rest(self) -> None:
        """Waits until there is a reason for a turn: an end, a ring, or the time to poll."""
        if not self._wake.is_set():
            put_off = time.monotonic() < self.runner.put_off_until + self.poll  # and then a turn
            if not self.running and not self.moves and not self.blocked and not put_off:
                self.idle.set()
            try:
                async with asyncio.timeout(self._until_next()):
                    await self._wake.wait()
            except TimeoutError:
                pass
        await asyncio.sleep(0)  # handlers that are about to end may do so, and join this turn

    def _until_next(self) -> float:
        """Seconds to the next turn: rows in hand are looked after in time, however seldom we poll."""
        if not self.running:
            return self.poll
        return max(0.0, min(self.poll, self._looked + self._look_every() - time.monotonic()))

    def _free(self) -> int:
        if not self.claiming or self.lost or self.barred:
            return 0
        if self.share.most is not None and self._claims >= self.share.most:
            return 0
        taken = len(self.running) + self.places.abandoned[self.ledger.name]
        return max(0, self.share.concurrency - taken)

    async def _turn(self, conn: Connection) -> None:
        """Writes what has ended, claims what there is room for, and starts it."""
        if self.barred:
            await asyncio.sleep(self.poll)
            return
        if self._look or time.monotonic() - self._looked >= self._look_every():
            await self._look_after(conn)
        await self._try_blocked(conn)
        queues = await self.doors.open(conn) if self._free() else ()
        if self.barred:  # the loop was blocked in the middle of this turn
            return
        self.writing, self.moves = self.moves, []
        moves, owner, free = self.writing, self.owner, self._free() if queues else 0
        try:
            claims = await self._write_and_claim(conn, moves, owner, free, queues)
            self.writing = []
            self._claims += len(claims)
            self.heard(len(claims))
            for claim in claims:
                self.tally.claimed(self.ledger.name, claim.kind, claim.waited)
            known = [claim for claim in claims if self._knows(claim)]
            started = await self.store.start(conn, known, limits=self.limits) if known else []
        except (*LOSSES, psycopg.Error):
            self.moves[:0] = moves  # said again later: a move that was written meanwhile finds no row
            raise
        lost = self.lost or self.barred or owner != self.owner
        if lost or not self.claiming:  # the lease was lost, or we were asked to stop, while we claimed
            releases = [Move(verb="release", claim=claim) for claim in started]
            moved = await self.store.move(conn, releases, limits=self.limits)
            self.tally.tell(self.store, releases, moved)
            return
        if started and self.store.witness:
            self.store.witness.began(started)
        for claim in started:
            self._begin(claim)

    def _knows(self, claim: Claimed) -> bool:
        """Whether there is a handler; without one the row is rejected before any run begins."""
        if self.handlers.find(self.ledger.name, claim.kind):
            return True
        nobody = Fail(reason=f"no handler for {claim.kind!r}", code="NO_HANDLER")
        log.warning("%s %s: %s", self.ledger.name, claim.id, nobody.reason)
        self.moves.append(decide(self.ledger, claim, nobody))
        self._wake.set()
        return False

    async def _write_and_claim(
        self, conn: Connection, moves: Sequence[Move], owner: str, free: int, queues: Sequence[str]
    ) -> list[Claimed]:
        limits = self.limits
        what: dict[str, Any] = {
            "kinds": self.share.claimed_kinds(self.handlers),
            "queues": queues,
            "in_hand": list(self.running),
            "limits": limits,
        }
        try:
            if moves and free:
                moved, claims = await self.store.turn(conn, moves, owner, free, **what)
            else:
                moved = await self.store.move(conn, moves, limits=limits) if moves else frozenset[Any]()
                claims = await self.store.claim(conn, owner, free, **what) if free else []
        except (*REFUSALS, RecursionError) as error:
            # Where one row only of some may run, another worker may have been quicker: nothing is claimed.
            # What it writes beside was written, just now, by another that has given the row back already.
            alone = self.store.sql.twin is not None or "claim" in self.ledger.beside
            met = isinstance(error, UniqueViolation) and alone
            lost = is_loss(error) and not isinstance(error, LockNotAvailable)
            if lost or not (moves or met):
                raise
            await self._note_late(conn, moves, await self.write_alone(conn, moves))
            return []
        self.tally.tell(self.store, moves, moved)
        await self._note_late(conn, moves, moved)
        return claims

    async def _note_late(self, conn: Connection, moves: Sequence[Move], moved: frozenset[Any]) -> None:
        for move in moves:
            if move.claim.id not in moved and move not in self.blocked:
                fate = await self.runner.fate(conn, move.claim)
                log.warning("%s %s: %s came too late: %s", self.ledger.name, move.claim.id, move.verb, fate)

    async def _try_blocked(self, conn: Connection) -> None:
        """Tries the moves that had to wait, now and then, until one has still to wait."""
        if not self.blocked or time.monotonic() - self._tried < BLOCKED_WAIT:
            return
        self._tried = time.monotonic()
        waiting, self.blocked = self.blocked, []
        try:
            while waiting and not self.blocked:
                await self._note_late(conn, waiting[:1], await self.write_alone(conn, waiting[:1]))
                del waiting[0]
        finally:
            self.blocked = waiting + self.blocked  # the one that has still to wait comes last

    async def give_back(self) -> int:
        """Stops what still runs and releases its rows, which costs them no attempt; answers how many ran."""
        runs = list(self.running.values())
        for run in runs:
            run.context.cancelled.set()
            run.task.cancel()
        self.running.clear()
        releases = (Move(verb="release", claim=run.claim) for run in runs)
        ends = [*self.writing, *self.moves, *self.blocked, *releases]
        if not ends:
            return 0
        if runs:
            log.warning(
                "%s: %d handlers did not end in time; their rows are given back", self.ledger.name, len(runs)
            )
        try:
            connecting = self.database.connect_service("release", worker=self.owner, within=RELEASE_SECONDS)
            async with await connecting as conn:
                await self.be_impatient(conn)
                await self.write_alone(conn, ends)
        except LOSSES as error:
            log.warning("%s: could not give rows back (%s); the leader will", self.ledger.name, error)
        return len(runs)

    async def abandon(self, conn: Connection, worker: str, blocking: Any, crash: Crashed) -> None:
        """Write what is known of every row that this worker holds, while its event loop is blocked.

        Called from the heartbeat thread, so it only reads what belongs to the loop. The run of the row
        `blocking` ends by `crash`; runs that ended keep their outcome; all others are released.
        """
        await self.be_impatient(conn)
        ended = {move.claim.id: move for move in (*self.writing, *self.moves, *self.blocked)}
        for claim in await self.store.held_by(conn, [self.owner, *self.former, worker]):
            move = ended.get(claim.id) or Move(verb="release", claim=claim)
            if claim.id == blocking:
                handler = self.handlers.find(self.ledger.name, claim.kind)
                move = decide(self.ledger, claim, crash, (handler and handler.backoff) or self.share.backoff)
            try:
                self.tally.tell(self.store, [move], await self.store.move(conn, [move], limits=self.limits))
            except (*REFUSALS, RecursionError) as error:
                if is_loss(error) and not isinstance(error, LockNotAvailable):
                    raise
                log.error("%s %s: %s not written: %s", self.ledger.name, claim.id, move.verb, error)

    async def write_alone(self, conn: Connection, moves: Sequence[Move]) -> frozenset[Any]:
        """Each move by itself, since together they were refused; one that is refused again is a bad run."""
        moved: frozenset[Any] = frozenset()
        for move in moves:
            try:
                written = await self.store.move(conn, [move], limits=self.limits)
                self.tally.tell(self.store, [move], written)
                moved |= written
            except LockNotAvailable:
                log.warning("%s %s: somebody keeps it locked", self.ledger.name, move.claim.id)
                self.blocked.append(move)
            except (*REFUSALS, *LOSSES, RecursionError) as error:
                if is_loss(error):
                    raise
                log.error(
                    "%s %s: %s cannot be written: %s", self.ledger.name, move.claim.id, move.verb, error
                )
                # A row that its table does not let go stays ours until its lease, or we, are over.
                if move.verb == "release" or (move.fault is not None and move.fault.code == UNWRITABLE):
                    self.unwritable.add(move.claim.id)
                else:
                    crash = Crashed(code=UNWRITABLE, message=f"its {move.verb} cannot be written: {error}")
                    waits = self.database.settings.min_retry_seconds
                    self.moves.append(
                        decide(self.ledger, move.claim, crash, self.share.backoff, min_wait=waits)
                    )
        self._wake.set()
        return moved

    def _look_every(self) -> float:
        """Seconds between two looks; a lease in the row has to be renewed well before it ends."""
        every, lease = self.database.settings.heartbeat_interval, self.ledger.lease
        return lease.every or min(every, lease.seconds / 3) if lease else every

    async def _look_after(self, conn: Connection) -> None:
        """Sees which rows are still ours, and stops the handlers of those that are not."""
        self._look, self._looked = False, time.monotonic()
        await self._release_strays(conn)
        await self.left_kinds.log_new(conn)
        runs = list(self.running.values())
        held = await self.store.heartbeat(conn, [run.claim for run in runs]) if runs else frozenset[Any]()
        for run in runs:
            if run.claim.id in held or not self._stands(run):
                continue
            if (finished := run.context.finished) and await self.runner.is_there(conn, finished):
                continue  # it has ended itself, and clears up
            fate = await self.runner.fate(conn, run.claim)
            if self._stands(run):
                log.info("%s %s: not ours any more: %s", self.ledger.name, run.claim.id, fate)
                self._drop(run)

    def _stands(self, run: Run) -> bool:
        """Whether a handler is at work. One whose end is being written may have given its row up itself."""
        return self.running.get(run.claim.id) is run and not run.context.ending

    async def _release_strays(self, conn: Connection) -> None:
        """Gives back rows that we hold without knowing: a claim whose answer was lost on the way."""
        claims = await self.store.held_by(conn, [self.owner, *self.former])
        known = {run.claim.id for run in self.running.values()} | {move.claim.id for move in self.moves}
        known |= self.unwritable | {move.claim.id for move in self.blocked}
        strays = [Move(verb="release", claim=claim) for claim in claims if claim.id not in known]
        if strays:
            log.warning("%s: %d rows were claimed unheard; given back", self.ledger.name, len(strays))
            moved = await self.store.move(conn, strays, limits=self.limits)
            self.tally.tell(self.store, strays, moved)
        self.former = []

    # -- runs ----------------------------------------------------------------------------------------

    def _begin(self, claim: Claimed) -> None:
        assert self._group
        self.idle.clear()
        if earlier := self.running.get(claim.id):  # called off and let run again before we looked
            self._drop(earlier)
        handler = self.handlers.find(self.ledger.name, claim.kind)
        seconds = handler and handler.timeout
        finishing = Finishing(self.database, self.places.transactions, self.ledger, claim, seconds=seconds)
        context = Context(self.store, claim, self.database, finishing)
        task = self._group.create_task(self._run_once(claim, context, finishing))
        self.running[claim.id] = Run(claim, context, finishing, task)

    def _drop(self, run: Run, *, cancel: bool = True) -> None:
        """Stops a handler whose row is not ours any more; its outcome is not wanted."""
        self.running.pop(run.claim.id, None)
        run.context.cancelled.set()
        if cancel:
            run.task.cancel()
        else:  # it goes on, and keeps its slot
            self.places.abandoned[self.ledger.name] += 1
            run.task.add_done_callback(lambda _: self.places.abandoned.subtract([self.ledger.name]))
        self._wake.set()

    async def _run_once(self, claim: Claimed, context: Context, finishing: Finishing) -> None:
        """A run; whatever else than its cancellation comes out of it ends the worker."""
        current_worker.set(self.owner)  # of this task and those that the handler starts
        try:
            await self._run(claim, context, finishing)
        except asyncio.CancelledError:
            raise
        except BaseException:
            self._falls = True
            raise

    async def _run(self, claim: Claimed, context: Context, finishing: Finishing) -> None:
        move: Move | None = None
        try:
            move = await self.runner.run(claim, context, finishing)
        except asyncio.CancelledError as error:
            run = self.running.get(claim.id)
            if run is None or run.context is not context:
                raise  # dropped, or given back: nobody waits for an answer
            if self._falls:  # by no fault of the row's: given back
                move = Move(verb="release", claim=claim)
                raise
            move = self.runner.crashed(claim, error)  # it cancelled itself
        finally:
            try:
                await finishing.close()
            finally:
                self._note_end(claim, context, move)

    def _note_end(self, claim: Claimed, context: Context, move: Move | None) -> None:
        """Frees the slot. A run that was dropped has no say any more."""
        run = self.running.get(claim.id)
        if run is not None and run.context is context:
            del self.running[claim.id]
            if move is not None:
                self.moves.append(move)
        self._wake.set()
