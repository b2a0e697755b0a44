"""Keeps a worker present and, when it leads, does the duties: in a thread of its own.

A handler that blocks the event loop for a while must not cost the worker its lease, so heartbeat, election
and duties have their own loop and their own connections. The same thread notices what nothing in the event
loop can: that the loop is blocked for too long, and that the lease has run out because no heartbeat reached
the database.
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
from typing import Protocol

import psycopg

from holdfast.db.database import Database
from holdfast.errors import HoldfastError
from holdfast.runtime import presence
from holdfast.runtime.duties import Connection, Duty
from holdfast.runtime.presence import Identity
from holdfast.runtime.watchdog import Watchdog

log = logging.getLogger("holdfast.worker")

LOSSES = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, HoldfastError, OSError)
FIRST_WAIT, LAST_WAIT = 0.1, 5.0  # seconds between tries to reach the database
SELDOM = 10.0  # seconds between two times of a duty that is worth a new connection each
SOON = 0.05  # seconds: the shortest wait for the next election
MARGIN = 0.9  # a leader stops its duties when this share of its term is over
LEAVE_SECONDS = 2.0  # to resign and to deregister
RELEASE_SECONDS = 10.0  # to release the rows of a worker whose event loop is blocked
LAST_CHANCE_SECONDS = (
    1.0  # in which a blocked loop that claims no more may come back; a claim on its way commits
)
LEAST_GRACE_SECONDS = 5.0  # for a heartbeat after the whole process stood still


class Host(Protocol):
    """The worker, as its keeper knows it. Everything is called from the keeper's thread."""

    def lease_lost(self) -> None:
        """Other workers may take its rows: its handlers stop, and it claims nothing."""
        ...

    def registered(self, worker_id: str) -> None:
        """It has a new lease, under a new id."""
        ...

    def keeper_died(self, error: BaseException) -> None:
        """Nothing renews its lease any more."""
        ...

    def bar(self, barred: bool) -> None:
        """Whether it may claim and write at all."""
        ...

    def log_blocked(self, watchdog: Watchdog) -> None:
        """Its event loop is blocked: log by what."""
        ...

    async def release_blocked(self, conn: Connection, watchdog: Watchdog) -> None:
        """Count the run that blocks the event loop as a bad one, and release all others."""
        ...

    def exit_blocked(self) -> None:
        """End the process: its event loop does not come back."""
        ...


class Keeper:
    """One worker's presence: its registration, its heartbeat and lease, and its lead."""

    def __init__(self, database: Database, who: Identity, duties: Sequence[Duty], host: Host) -> None:
        self.database = database
        self.who = who
        self.duties = duties
        self.host = host
        self.leads = False
        self._registered = False
        self._former: str | None = None  # the id whose lease was lost
        self._lease_until = 0.0  # on the monotonic clock
        self._graced = False  # whether the lease was prolonged, once, because the process stood still
        self._blocked = False  # whether the event loop was given up
        self._watchdog: Watchdog | None = None
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
        self._watchdog = Watchdog()
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
                self.host.keeper_died(error)

        def tell(error: BaseException | None = None) -> None:
            caller.call_soon_threadsafe(answer, error)

        try:
            asyncio.run(self.run(tell))
        except BaseException as error:
            tell(error)
        finally:
            if self._blocked:
                self.host.exit_blocked()

    # -- the life ------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None]) -> None:
        """Registers, beats, leads when it can, until stopped; then leaves."""
        self._loop = asyncio.get_running_loop()
        beginning, stopping = (
            asyncio.ensure_future(self._begin()),
            asyncio.ensure_future(self._stopped.wait()),
        )
        await asyncio.wait([beginning, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not beginning.done():  # the database may be silent: a stop does not wait for it
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
            ready()
            await self._leave()
            return
        stopping.cancel()
        await beginning
        ready()
        rounds = {"election": self._electing}
        often = [duty for duty in self.duties if not duty.by_all or duty.every < SELDOM]
        rounds |= {f"duty {duty.name}": partial(self._doing, duty) for duty in often}
        works = [self._connected(purpose, work) for purpose, work in rounds.items()]
        works += [self._now_and_then(duty) for duty in self.duties if duty not in often]
        soon = max(1.0, self.database.settings.worker_timeout / 3)  # so that another one can be tried in time
        works += [self._connected("heartbeat", self._beating, soon), self._watch()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            await self._stopped.wait()
            for task in tasks:
                task.cancel()
        await self._leave()

    async def _begin(self) -> None:
        async with self._connection("presence") as conn:
            await self._register(conn)
            try:
                await self._elect(conn)
            except LOSSES as error:  # it is registered, so it has begun: the rounds take new connections
                log.warning("election: %s; trying again", error)

    # -- the lease -----------------------------------------------------------------------------------

    async def _register(self, conn: Connection) -> None:
        began, who = time.monotonic(), self.who
        await presence.register(conn, who, former=self._former)
        if self.who is who:
            self._registered = True
            self._renewed(began)

    async def _beating(self, conn: Connection) -> None:
        while True:
            await self._beat(conn)
            if await self._pause(self.database.settings.heartbeat_interval):
                return

    async def _beat(self, conn: Connection) -> None:
        """Renews the lease. A worker that has lost it, or whose row is gone, registers under a new id."""
        began, who = time.monotonic(), self.who
        if self._registered:
            present = await presence.beat(conn, who.id)
            if self.who is who:  # else the lease ran out while this was on its way, and it renews nothing
                if present:
                    self._renewed(began)
                    return
                self._lose("removed by the leader")
        await self._register(conn)
        if self._registered:
            self.host.registered(self.who.id)

    def _renewed(self, began: float) -> None:
        self._lease_until = began + self.database.settings.worker_timeout
        self._graced = False

    def _lose(self, reason: str) -> None:
        """The rows of this worker may be given to others: stops the handlers; goes on under a new id."""
        old, self.who = self.who.id, replace(self.who, id=presence.new_id())
        log.error("lease of %s lost (%s): stopping its handlers; registering as %s", old, reason, self.who.id)
        self._registered, self._former = False, old
        self._until = 0.0
        self._note(False)
        self.host.lease_lost()

    async def _watch(self) -> None:
        """Watches the lease and the worker's event loop, several times a second."""
        settings = self.database.settings
        tick = min(0.5, settings.worker_timeout / 20)
        before = time.monotonic()
        while not await self._pause(tick):
            now = time.monotonic()
            passed, before = now - before, now
            self._check_lease(now, passed, tick)
            if self._is_blocked(min(passed, 2 * tick)):
                self._stopped.set()

    def _check_lease(self, now: float, passed: float, tick: float) -> None:
        timeout = self.database.settings.worker_timeout
        if passed > tick + timeout / 4 and not self._graced:
            # The process stood still. That is no loss if no leader has noticed: one heartbeat will tell.
            self._graced = True
            self._lease_until = max(self._lease_until, now + max(timeout / 3, LEAST_GRACE_SECONDS))
        if self._registered and now + tick >= self._lease_until:
            self._lose(f"no heartbeat has reached the database for {timeout:g} s")

    def _is_blocked(self, passed: float) -> bool:
        """Whether the event loop was silent for as long as a lease, and did not come back."""
        assert self._watchdog
        settings = self.database.settings
        before, silent = self._watchdog.silent, self._watchdog.check(passed)
        warn_at = settings.loop_warning_seconds
        limit = max(settings.worker_timeout, warn_at)
        if before < warn_at <= silent:
            self.host.log_blocked(self._watchdog)
        if (before < limit) is not (silent < limit):
            self.host.bar(silent >= limit)
        self._blocked = silent >= limit + LAST_CHANCE_SECONDS
        return self._blocked

    # -- the lead ------------------------------------------------------------------------------------

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

    async def _elect(self, conn: Connection) -> None:
        asked, who = time.monotonic(), self.who
        term = self.database.settings.leader_term
        leads = await presence.elect(conn, who.id, term) and self.who is who
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

    async def _connected(
        self, purpose: str, work: Callable[[Connection], Awaitable[None]], deadline: float | None = None
    ) -> None:
        """Does the work on a connection of its own; takes a new one, after a pause, when it fails."""
        wait = FIRST_WAIT
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                async with self._connection(purpose, deadline) as conn:
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
    async def _connection(
        self, purpose: str, deadline: float | None = None, within: float | None = None
    ) -> AsyncGenerator[Connection]:
        conn = await self.database.connect_service(purpose, deadline=deadline, within=within)
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
            within = RELEASE_SECONDS if self._blocked else LEAVE_SECONDS
            async with self._connection("presence", within=within) as conn:
                if self._blocked and self._watchdog:
                    await self.host.release_blocked(conn, self._watchdog)
                await presence.resign(conn, self.who.id)
                await presence.deregister(conn, self.who.id)
                for duty in self.duties:
                    if duty.at_the_end:
                        await duty.run(conn, self.who.id)
        except LOSSES as error:
            log.warning("could not deregister worker: %s (it will expire)", error)
