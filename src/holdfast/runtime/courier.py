"""One outbox of one worker: a ledger whose claim is a row lock.

Each row is a transaction of its own: lock, call the handler, write the end, commit. So another service may
drain the same table: whoever has the lock tells, and a crash between the call and the commit repeats one row.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import psycopg

from holdfast.db.database import Database
from holdfast.engine.decide import decide
from holdfast.engine.outcomes import Crashed, Done, Ending, Fail
from holdfast.engine.store import Connection
from holdfast.engine.values import Claimed, Move
from holdfast.runtime.context import Context, Finishing
from holdfast.runtime.execute import Places, execute
from holdfast.runtime.handlers import Handlers
from holdfast.runtime.pauses import Doors
from holdfast.runtime.processes import crash_of
from holdfast.runtime.pulse import Tally
from holdfast.runtime.pump import FIRST_WAIT, LAST_WAIT, LOSSES
from holdfast.runtime.share import Share

log = logging.getLogger("holdfast.worker")


class Courier:
    """Takes, tells and marks the rows of one outbox, for the worker whose id is `owner`."""

    def __init__(
        self, share: Share, database: Database, handlers: Handlers, places: Places, tally: Tally
    ) -> None:
        self.share = share
        self.store = share.store
        self.ledger = share.store.ledger
        self.database = database
        self.handlers = handlers
        self.places = places
        self.tally = tally
        self.poll = share.pace.poll or database.settings.poll_interval
        self.heard = share.pace.heard
        self.owner = ""
        self.running: dict[Any, asyncio.Task[None] | None] = {}
        self.claiming = True
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

    def give_up(self, owner: str) -> None:
        """The worker was thought dead and has a new name; its locks are still its own."""
        self.owner = owner

    async def give_back(self) -> int:
        """Cuts off what is being told. Its locks end with its transactions, and nothing is written."""
        tasks = [task for task in self.running.values() if task is not None]
        for task in tasks:
            task.cancel()
        return len(tasks)

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
                async with await self.database.connect(f"worker {self.ledger.name}") as conn:
                    self._doors[way].ring()
                    while self.claiming:
                        self._wakes[way].clear()
                        told = await self._round(conn, way)
                        wait = FIRST_WAIT
                        await self._rest(way, told)
            except LOSSES as error:
                log.warning("%s: the database is away (%s); trying again", self.ledger.name, error)
                self.heard(None)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_WAIT)
            except psycopg.Error as error:  # the other ledgers go on, and this one may be mended
                log.error("%s: refused (%s); trying again", self.ledger.name, error)
                self.heard(None)
                await asyncio.sleep(wait)
                wait = min(wait * 2, LAST_WAIT)

    async def _round(self, conn: Connection, way: int) -> int:
        """Rows one after the other, as many as a round has; answers how many."""
        told = 0
        while self.claiming and (self.share.pace.batch is None or told < self.share.pace.batch):
            if self.share.most is not None and self._taken >= self.share.most:
                break
            if not await self._doors[way].open(conn) or not await self._tell_one(conn, way):
                break
            told += 1
        self.heard(told)
        return told

    async def _rest(self, way: int, told: int) -> None:
        """Waits for the bell or the time to look again; after a full round for the time alone."""
        if not self.claiming:
            return
        full = self.share.pace.batch is not None and told >= self.share.pace.batch
        self._note_idle(way, idle=not full)
        until = asyncio.get_running_loop().time() + self.poll
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

    async def _tell_one(self, conn: Connection, way: int) -> bool:
        """Takes the first row and calls its handler while it is locked; False: there is none."""
        async with conn.transaction():
            claims = await self.store.claim(conn, self.owner, 1, kinds=self.share.kinds)
            if not claims:
                return False
            (claim,) = claims
            self._note_idle(way, idle=False)
            self._taken += 1
            self.tally.claimed(self.ledger.name, claim.kind, claim.waited)
            self.running[claim.id] = asyncio.current_task()
            try:
                move = await self._move(conn, claim)
                self.tally.wrote(self.ledger, [move], await self.store.move(conn, [move]))
            finally:
                self.running.pop(claim.id, None)
        return True

    async def _move(self, conn: Connection, claim: Claimed) -> Move:
        """The end of a run; what its handler wrote stays only if it went well."""
        handler = self.handlers.find(self.ledger.name, claim.kind)
        if handler is None:
            nobody = Fail(reason=f"no handler for {claim.kind!r}", code="NO_HANDLER")
            return decide(self.ledger, claim, nobody)
        began, backoff = time.monotonic(), handler.backoff or self.share.backoff
        finishing = Finishing(self.database, self.places.transactions, self.ledger, claim, conn)
        ending: Ending | None = None
        try:
            async with conn.transaction() as kept:
                ending = await execute(
                    handler, claim, Context(self.store, claim, self.database, finishing), self.places
                )
                if finishing.confined:
                    await finishing.unconfine()
                if not isinstance(ending, Done):
                    raise psycopg.Rollback(kept)
        except psycopg.errors.ProgrammingError as error:  # the handler left a transaction of its own open
            ending = Crashed(code="COMMIT_FAILED", message=str(error))
        finally:
            self.tally.ran(self.ledger.name, claim.kind, time.monotonic() - began)
        assert ending is not None
        if isinstance(ending, Crashed):
            told = {"trace": ending.trace}
            log.warning("%s %s: %s", self.ledger.name, claim.id, ending.message, extra=told)
        try:
            return decide(self.ledger, claim, ending, backoff)
        except Exception as error:  # an answer that nobody can make sense of is a bad run
            return decide(self.ledger, claim, crash_of(error), backoff)
