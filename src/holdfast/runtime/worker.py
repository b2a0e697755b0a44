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
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version

from holdfast import logs
from holdfast.db.database import Database
from holdfast.db.listen import listen
from holdfast.engine.outcomes import Crashed
from holdfast.engine.store import Connection, Store
from holdfast.errors import HoldfastError
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
from holdfast.runtime.watchdog import Watchdog

log = logging.getLogger("holdfast.worker")

GRACE = 5.0  # seconds that a cancelled handler has to clean up
EVENT_LOOP_BLOCKED = 10  # the exit code of a process whose event loop is blocked by a handler
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
        self.keeper = Keeper(database, who, every, self)
        self.abandoned = 0
        self.last_resort: Callable[[], None] = lambda: None  # for handlers that no cancellation stops
        self.exit: Callable[[int], object] | None = None  # ends the process whose event loop is blocked
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
            if not await self._start():
                return 0
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

    async def _start(self) -> bool:
        """Register; False when a stop was asked for before that had an end."""
        starting = asyncio.ensure_future(self.keeper.start())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([starting, stop], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                return True
            log.info("%s stops before it has registered", self.id)
            return False
        finally:
            starting.cancel()
            stop.cancel()

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

    # -- what the keeper reports, from its own thread ------------------------------------------------

    def _in_loop(self, function: Callable[..., object], *args: object) -> None:
        assert self._loop
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *args)

    def lease_lost(self) -> None:
        """Other workers may take its rows: its handlers stop, and it claims nothing."""
        for pump in self.pumps:
            self._in_loop(pump.lose)

    def registered(self, worker_id: str) -> None:
        """It has a new lease: it goes on under this id."""
        for pump in self.pumps:
            self._in_loop(pump.renew, worker_id)

    def keeper_died(self, error: BaseException) -> None:
        """Nothing renews the lease any more: stop before others take our rows."""
        self._failure = error
        self._in_loop(self._stop.set)

    def bar(self, barred: bool) -> None:
        """Whether it may claim and write at all: a loop that comes back too late must not."""
        for pump in self.pumps:
            pump.barred = barred

    def log_blocked(self, watchdog: Watchdog) -> None:
        """Log what blocks the event loop, and which rows wait for it."""
        blocking = self._blocking(watchdog)
        rows = [f"{pump.ledger.name} {key}" for pump in self.pumps for key in list(pump.running)]
        log.error(
            "event loop blocked for %.1f s by %s; rows at work: %s; stack:\n%s",
            watchdog.silent,
            f"{blocking.ledger} {blocking.job}" if blocking else "no handler",
            ", ".join(rows) or "none",
            watchdog.stack(),
        )

    async def release_blocked(self, conn: Connection, watchdog: Watchdog) -> None:
        """Count the run that blocks the event loop as a bad one, and release all others."""
        blocking = self._blocking(watchdog)
        message = f"the handler blocked the event loop of its worker for {watchdog.silent:.0f} s"
        crash = Crashed(code="EVENT_LOOP_BLOCKED", message=message, trace=watchdog.stack())
        for pump in self.pumps:
            if blocking and blocking.ledger == pump.ledger.name:
                await pump.abandon(conn, self.keeper.who.id, blocking.job, crash)
            else:
                await pump.abandon(conn, self.keeper.who.id, None, crash)

    def exit_blocked(self) -> None:
        """End the process, if it is ours to end; else the worker stops as soon as the loop comes back."""
        message = "event loop blocked beyond the worker timeout; worker stopped"
        log.critical("%s", message)
        self.lease_lost()
        self.keeper_died(HoldfastError(message=message))
        if self.exit is not None:
            self.exit(EVENT_LOOP_BLOCKED)

    def _blocking(self, watchdog: Watchdog) -> logs.Run | None:
        """The run that blocks the event loop: the one whose task, or whose task's task, is being stepped."""
        if found := watchdog.run():
            return found
        task = watchdog.task()  # a loop of another make shows no frames of its own
        for pump in self.pumps:
            for key, run in list(pump.running.items()):
                if run.task is not None and run.task is task:
                    return logs.Run(pump.ledger.name, key, self.id, None)
        return None

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
    """SIGTERM and SIGINT ask for an orderly stop; a second one ends the process at once, and says so.

    The second one does so also while a handler blocks the event loop.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal asked
        if asked:
            _die(number, consequence)
        asked = True
        stop()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    loop_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    reading = (receiver, loop_fd, numbers, consequence)
    threading.Thread(target=_count_signals, args=reading, name="holdfast signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(loop_fd)
        sender.close()
        for number in numbers:
            loop.remove_signal_handler(number)


def _count_signals(
    receiver: socket.socket, loop_fd: int, ending: Sequence[signal.Signals], consequence: str
) -> None:
    """Pass each signal on to the loop, and die by the second of `ending`, whatever the loop does."""
    seen = 0
    with receiver:
        while received := receiver.recv(64):
            with suppress(OSError):  # the loop is closed, or has more signals than it can take
                os.write(loop_fd, received)
            for number in (signal.Signals(byte) for byte in received if byte in ending):
                seen += 1
                if seen > 1:
                    _die(number, consequence)


def _die(number: signal.Signals, consequence: str) -> None:
    sys.stderr.write(f"second {number.name}: dying at once; {consequence}\n")
    sys.stderr.flush()
    os._exit(128 + number)
