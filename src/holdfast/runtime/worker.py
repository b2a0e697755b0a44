"""The worker: a process that claims and runs. One pump for each ledger, one keeper, one doorbell.

It stops in the order that loses nothing: no more claims; wait for what runs; write it; give the rest back;
give up the lead and leave.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version

from holdfast.db.database import Database
from holdfast.db.listen import listen
from holdfast.engine.store import Store
from holdfast.runtime import pauses, presence
from holdfast.runtime.courier import Courier
from holdfast.runtime.duties import Duty, Patience, statistics, sweeps
from holdfast.runtime.execute import Places
from holdfast.runtime.handlers import Handlers
from holdfast.runtime.keeper import Keeper
from holdfast.runtime.processes import Processes
from holdfast.runtime.pulse import Tally
from holdfast.runtime.pump import Pump
from holdfast.runtime.share import Share

log = logging.getLogger("holdfast.worker")

GRACE = 5.0  # seconds that a cancelled handler has to clean up
UNLIMITED_RUN = 3600.0  # seconds that a run without a time limit may take before a nameless row is given back


class Worker:
    """Takes from several ledgers at once, with a concurrency for each.

    `stores` are all ledgers of the platform: a worker that leads sweeps those that it does not serve, too.
    `longest` is the longest run in seconds, by ledger, where it is known. `bells` are further channels.
    """

    def __init__(
        self,
        database: Database,
        shares: Sequence[Share],
        handlers: Handlers,
        duties: Sequence[Duty] = (),
        stores: Sequence[Store] = (),
        longest: Mapping[str, float] | None = None,
        bells: Sequence[tuple[str, Callable[[], None]]] = (),
    ) -> None:
        self.database = database
        self.bells = bells
        slots = sum(share.concurrency for share in shares)
        self.places = Places(
            threads={
                name: ThreadPoolExecutor(share.concurrency, f"holdfast handler {name}")
                for share in shares
                for name in (share.store.ledger.name,)
            },
            processes=Processes(),
            transactions=asyncio.Semaphore(max(1, database.settings.db_max_connections - 2)),
        )
        self.shares = shares
        self.handlers = handlers
        self.tally = Tally(handlers.find)
        self.pumps = [
            by(share, database, handlers, self.places, self.tally)
            for share in shares
            for by in (Pump if share.store.ledger.owner else Courier,)
        ]
        settings = database.settings
        own = longest or {}
        others = (h.timeout or UNLIMITED_RUN for h in handlers if h.ledger not in own)
        any_run = max(others, default=UNLIMITED_RUN)
        patience = Patience(
            timeout=settings.worker_timeout,
            nameless=2 * any_run,
            known={name: 2 * seconds for name, seconds in own.items()},
        )
        known = stores or [share.store for share in shares]
        recovery = sweeps(known, patience, every=settings.heartbeat_interval / 2, tally=self.tally)
        who = presence.Identity(
            id=presence.new_id(),
            hostname=socket.gethostname(),
            pool_size=slots,
            version=version("holdfast"),
            serves=tuple(share.store.ledger.name for share in shares),
        )
        every = [*recovery, *statistics(self.tally), *duties]
        self.keeper = Keeper(database, who, every, self._given_up, self._keeper_died)
        self.abandoned = 0
        self.last_resort: Callable[[], None] = lambda: None  # for handlers that no cancellation stops
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None
        self._cleaned = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def id(self) -> str:
        """The worker's id now; it changes when the leader has given it up."""
        return self.keeper.who.id

    def stop(self) -> None:
        """Asks for an orderly stop."""
        self._stop.set()

    async def run(self, *, until_idle: bool = False) -> int:
        """Works until stopped, or until there is nothing to do; answers how many handlers were abandoned."""
        self._loop = asyncio.get_running_loop()
        shown = {share.store.ledger.name: share.shown(self.handlers) for share in self.shares}
        self.keeper.who = replace(self.keeper.who, shares=shown)
        for pump in self.pumps:
            pump.owner = self.id
        try:
            await self.keeper.start()
            serves = ", ".join(self.keeper.who.serves)
            log.info("%s works for %s", self.id, serves or "no ledger: it recovers rows, and may lead")
            async with asyncio.TaskGroup() as group:
                bell = group.create_task(self._listen())
                pumping = [group.create_task(pump.run()) for pump in self.pumps]
                await self._until_stopped(until_idle)
                await self._wind_down(pumping)
                bell.cancel()
        except BaseException:
            await asyncio.gather(*(self._give_back(pump) for pump in self.pumps), return_exceptions=True)
            raise
        finally:
            await self._clean_up()
        if self._failure is not None:
            raise self._failure
        return self.abandoned + self.places.abandoned.total()

    async def _until_stopped(self, until_idle: bool) -> None:
        if not until_idle:
            await self._stop.wait()
            return
        stop = asyncio.ensure_future(self._stop.wait())
        idle = asyncio.gather(*(pump.idle.wait() for pump in self.pumps))
        await asyncio.wait([stop, idle], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        idle.cancel()

    async def _listen(self) -> None:
        rings: dict[str, list[Callable[[], None]]] = {presence.CHANNEL: [self.keeper.stand]}
        for pump in self.pumps:  # a ledger of an unlucky name may share a channel with something else
            rings.setdefault(pump.ledger.channel, []).append(pump.ring)
            rings.setdefault(pump.ledger.cancel_channel, []).append(pump.look)
            rings.setdefault(pauses.CHANNEL, []).append(pump.look_at_pauses)
        for channel, bell in self.bells:
            rings.setdefault(channel, []).append(bell)

        def ring(channel: str) -> None:
            for bell in rings[channel]:
                bell()

        await listen(self.database, list(rings), ring, log=log)

    def _given_up(self, new_id: str) -> None:
        assert self._loop
        for pump in self.pumps:
            self._loop.call_soon_threadsafe(pump.give_up, new_id)

    def _keeper_died(self, error: BaseException) -> None:
        """Nobody says any more that we are alive: stop before others take our rows."""
        assert self._loop
        self._failure = error
        self._loop.call_soon_threadsafe(self._stop.set)

    # -- stopping ------------------------------------------------------------------------------------

    async def _wind_down(self, pumping: Sequence[asyncio.Task[None]]) -> None:
        running = sum(len(pump.running) for pump in self.pumps)
        if running:
            log.info("stopping: waiting for %d handlers", running)
        for pump in self.pumps:
            pump.stop_claiming()
        settings = self.database.settings
        waited = await asyncio.wait(pumping, timeout=settings.shutdown_timeout) if pumping else None
        late = waited[1] if waited else set[asyncio.Task[None]]()
        if late:
            await asyncio.gather(*(self._give_back(pump) for pump in self.pumps))
        for task in late:
            task.cancel()
        _, stubborn = await asyncio.wait(late, timeout=GRACE) if late else (late, late)
        if stubborn:
            log.critical("handlers go on although they were cancelled: this process has to be killed")
            await self._clean_up()
            self.last_resort()

    async def _give_back(self, pump: Pump | Courier) -> None:
        """Stops what still runs; its rows go back to others."""
        self.abandoned += await pump.give_back()

    async def _clean_up(self) -> None:
        if self._cleaned:
            return
        self._cleaned = True
        await self.places.processes.close()
        for threads in self.places.threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        await self.keeper.stop()
        log.info("%s has stopped", self.id)


@contextmanager
def stopping_on_signals(
    stop: Callable[[], None], consequence: str = "the leader will give the rows back"
) -> Generator[None]:
    """SIGTERM and SIGINT ask for an orderly stop; a second one ends the process at once, and says so."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal asked
        if asked:
            sys.stderr.write(f"second {number.name}: dying at once; {consequence}\n")
            sys.stderr.flush()
            os._exit(128 + number)
        asked = True
        stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
