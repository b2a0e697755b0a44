"""Keeps a worker present and, when it leads, does the duties: in a thread of its own.

A handler that blocks the event loop must not cost the worker its life, so heartbeat, election and duties
have their own loop and their own connections. The worker is told of what matters by two callbacks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import psycopg

from holdfast.db.database import Database
from holdfast.errors import HoldfastError
from holdfast.runtime import presence
from holdfast.runtime.duties import Connection, Duty
from holdfast.runtime.presence import Identity

log = logging.getLogger("holdfast.worker")

LOSSES = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, HoldfastError, OSError)
FIRST_WAIT, LAST_WAIT = 0.1, 5.0  # seconds between tries to reach the database
SELDOM = 10.0  # seconds between two times of a duty that is worth a new connection each
SOON = 0.05  # seconds: the shortest wait for the next election
MARGIN = 0.9  # a leader stops its duties when this share of its term is over


class Keeper:
    """One worker's presence.

    `given_up(new id)` is called when its row was gone and it has a new one; `died(error)` when it can go on
    no longer. Both are called from the keeper's thread.
    """

    def __init__(
        self,
        database: Database,
        who: Identity,
        duties: Sequence[Duty],
        given_up: Callable[[str], None],
        died: Callable[[BaseException], None],
    ) -> None:
        self.database = database
        self.who = who
        self.duties = duties
        self.given_up = given_up
        self.died = died
        self.leads = False
        self._until = 0.0  # on the monotonic clock: when to stop the duties
        self._terms: set[asyncio.Timeout] = set()  # of the duties that are being done
        self._calm_at = 0.0
        self._elected = asyncio.Event()
        self._vacant = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ready: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def stand(self) -> None:
        """The leader has resigned: try at once. May be called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the keeper has ended, and its loop with it
                self._loop.call_soon_threadsafe(self._vacant.set)

    # -- the thread ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Registers the worker and keeps it present from now on."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._thread = threading.Thread(target=self._live, args=(loop,), name="holdfast keeper", daemon=True)
        self._thread.start()
        await asyncio.shield(self._ready)

    async def stop(self) -> None:
        """Gives the lead up and removes the worker's row."""
        thread, loop = self._thread, self._loop
        if thread is None:
            return
        if loop is None:  # it has hardly begun: nobody waits for this event yet
            self._stopped.set()
        else:
            with suppress(RuntimeError):  # it has ended already, and its loop with it
                loop.call_soon_threadsafe(self._stopped.set)
        await asyncio.to_thread(thread.join)

    def _live(self, caller: asyncio.AbstractEventLoop) -> None:
        ready = self._ready
        assert ready

        def answer(error: BaseException | None) -> None:
            if not ready.done():
                ready.set_result(None) if error is None else ready.set_exception(error)
            elif error is not None:
                log.critical("the worker cannot be kept present: %s", error)
                self.died(error)

        def tell(error: BaseException | None = None) -> None:
            caller.call_soon_threadsafe(answer, error)

        try:
            asyncio.run(self.run(tell))
        except BaseException as error:
            tell(error)

    # -- the life ------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Registers, beats, leads when it can, until stopped; then leaves."""
        self._loop = asyncio.get_running_loop()
        async with self._connection("presence") as conn:
            await presence.register(conn, self.who)
            try:
                await self._elect(conn)
            except LOSSES as error:  # it is registered, so it has begun: the rounds take new connections
                log.warning("election: %s; trying again", error)
        ready()
        rounds = {"heartbeat": self._beating, "election": self._electing}
        often = [duty for duty in self.duties if not duty.by_all or duty.every < SELDOM]
        rounds |= {f"duty {duty.name}": partial(self._doing, duty) for duty in often}
        works = [self._connected(purpose, work) for purpose, work in rounds.items()]
        works += [self._now_and_then(duty) for duty in self.duties if duty not in often]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            await self._stopped.wait()
            for task in tasks:
                task.cancel()
        await self._leave()

    async def _beating(self, conn: Connection) -> None:
        while not await self._pause(self.database.settings.heartbeat_interval):
            await self._beat(conn)

    async def _electing(self, conn: Connection) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(await self._next_try(conn)):
                    await self._vacant.wait()
            self._vacant.clear()
            await self._elect(conn)

    async def _next_try(self, conn: Connection) -> float:
        """A third of a term, or as soon as the leader's term ends unrenewed."""
        third = self.database.settings.leader_term / 3
        return third if self.leads else min(third, await presence.vacant_in(conn) + SOON)

    async def _beat(self, conn: Connection) -> None:
        """Says that we are alive. A worker without a row was given up: it goes on under a new id."""
        if await presence.beat(conn, self.who.id):
            return
        old, self.who = self.who.id, replace(self.who, id=presence.new_id())
        log.warning("%s was given up by the leader; going on as %s", old, self.who.id)
        self._note(False)
        await presence.register(conn, self.who)
        self.given_up(self.who.id)

    async def _elect(self, conn: Connection) -> None:
        asked = time.monotonic()
        term = self.database.settings.leader_term
        leads = await presence.elect(conn, self.who.id, term)
        self._until = asked + term * MARGIN if leads else 0.0
        self._note(leads)
        if leads:  # what the last term began, this one goes on with
            left = self._until - time.monotonic()
            for duty in self._terms:
                if not duty.expired():  # one whose time has just run out stays cut off
                    duty.reschedule(asyncio.get_running_loop().time() + left)

    def _note(self, leads: bool) -> None:
        if leads != self.leads:
            log.info("%s %s", self.who.id, "leads" if leads else "no longer leads")
        self.leads = leads
        if leads:
            self._elected.set()
        else:
            self._elected.clear()

    async def _doing(self, duty: Duty, conn: Connection) -> None:
        if duty.by_all:
            while not await self._pause(duty.every):
                await duty.run(conn, self.who.id)
            return
        while not await self._pause(self._calm_at - time.monotonic()):
            await self._elected.wait()
            left = self._until - time.monotonic()
            if left <= 0:  # could not renew in time: somebody else may lead by now
                self._note(False)
                continue
            async with asyncio.timeout(left) as term:
                self._terms.add(term)
                try:
                    await duty.run(conn, self.who.id)
                finally:
                    self._terms.discard(term)
            if await self._pause(duty.every):
                return

    async def _now_and_then(self, duty: Duty) -> None:
        """A duty that comes seldom has a connection while it is done, and none while it waits."""
        while not await self._pause(duty.every):
            try:
                async with self._connection(f"duty {duty.name}") as conn:
                    await duty.run(conn, self.who.id)
            except LOSSES as error:
                log.warning("duty %s: %s; trying again in %g s", duty.name, error, duty.every)

    async def _connected(self, purpose: str, work: Callable[[Connection], Awaitable[None]]) -> None:
        """Does the work on a connection of its own; takes a new one, after a pause, when it fails."""
        wait = FIRST_WAIT
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                async with self._connection(purpose) as conn:
                    await work(conn)
            except (*LOSSES, TimeoutError) as error:
                log.warning("%s: %s; trying again", purpose, error or "cut off at the end of the term")
                # If the database was away it was so for all: let the others come back before judging them.
                self._calm_at = time.monotonic() + 2 * self.database.settings.heartbeat_interval
            if time.monotonic() - began > LAST_WAIT:
                wait = FIRST_WAIT
            if await self._pause(wait):
                return
            wait = min(wait * 2, LAST_WAIT)

    @asynccontextmanager
    async def _connection(self, purpose: str) -> AsyncGenerator[Connection]:
        conn = await self.database.connect(purpose)
        try:
            yield conn
        finally:
            await conn.close()

    async def _pause(self, seconds: float) -> bool:
        """Waits; True when it is time to stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True

    async def _leave(self) -> None:
        try:
            async with self._connection("presence") as conn:
                await presence.resign(conn, self.who.id)
                await presence.deregister(conn, self.who.id)
                for duty in self.duties:
                    if duty.at_the_end:
                        await duty.run(conn, self.who.id)
        except LOSSES as error:
            log.warning("could not say goodbye: %s; the leader will notice", error)
