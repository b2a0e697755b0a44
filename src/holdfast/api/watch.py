"""Waits for changes: each thing is looked at once for everybody who waits, and not at all while nobody does.

A waiter has a `Box`. Nobody holds a connection while waiting: a look takes one, and gives it back.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.engine.looks import BATCH
from holdfast.engine.store import Store
from holdfast.engine.values import Change, Filter, Stat
from holdfast.runtime.overview import clock

log = logging.getLogger("holdfast.api")
ROWS, EVENTS, COUNTS = 0.25, 0.5, 1.0  # seconds between two looks, at most
TROUBLE = 2.0  # seconds until the next look after one that failed
ROOM = 10_000  # messages that a slow reader may leave in its box; all boxes share them
WINDOW = timedelta(seconds=10)  # within which commits may come out of order


class Full(Exception):
    """A reader is too slow: what it has missed is not in its box."""


class Box:
    """What one waiter has not read yet. `keys` are the rows that it waits for, where it waits for rows."""

    def __init__(self, keys: Iterable[Any] = ()) -> None:
        self.keys = frozenset(keys)
        self.fresh = True  # has not been told yet where things stand
        self._messages: asyncio.Queue[Any] = asyncio.Queue(ROOM)
        self._full = False

    def put(self, message: Any) -> None:
        """Leaves a message, if there is room."""
        if self._messages.full():
            self._full = True
        else:
            self._messages.put_nowait(message)

    async def get(self, seconds: float) -> Any:
        """The next message; None when none comes within so many seconds. `Full` when some are missing."""
        if self._full and self._messages.empty():
            raise Full
        try:
            return await asyncio.wait_for(self._messages.get(), seconds)
        except TimeoutError:
            return None


class Shared(ABC):
    """Something that is looked at every `interval` seconds while there are boxes."""

    def __init__(self, interval: float, on_empty: Callable[[], object] = lambda: None) -> None:
        self._interval = interval
        self._on_empty = on_empty
        self._looked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.boxes: set[Box] = set()

    @abstractmethod
    async def look(self) -> None:
        """Looks once, and tells the boxes."""

    @contextmanager
    def box(self, keys: Iterable[Any] = ()) -> Generator[Box]:
        """A box for the length of a `with`."""
        box = Box(keys)
        self.boxes.add(box)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield box
        finally:
            self.boxes.discard(box)
            if not self.boxes:
                self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None
        self._looked.clear()
        self._on_empty()

    async def ready(self) -> None:
        """Waits until somebody has looked: what happens from then on is told."""
        await self._looked.wait()

    async def _run(self) -> None:
        while True:
            wait = self._interval
            try:
                await self.look()
                self._looked.set()
            except Exception as error:  # the next look may be luckier
                log.warning("a look at what changed failed: %s: %s", type(error).__name__, error)
                wait = TROUBLE
            await asyncio.sleep(wait)


class Rows(Shared):
    """Some rows of a ledger. A message is the set of keys that have changed, first of all: all of them.

    It looks as the platform itself, and tells nothing but that something changed: who waits may see the row.
    """

    def __init__(self, site: Site, store: Store, interval: float, on_empty: Callable[[], object]) -> None:
        super().__init__(interval, on_empty)
        self._site, self._store = site, store
        self._known: dict[Any, str | None] = {}

    async def look(self) -> None:
        wanted = sorted({key for box in self.boxes for key in box.keys}, key=str)
        marks: dict[Any, str | None] = dict.fromkeys(wanted)
        async with self._site.connection() as conn:
            for first in range(0, len(wanted), BATCH):
                marks.update(await self._store.marks(conn, wanted[first : first + BATCH]))
        changed = {key for key, mark in marks.items() if key not in self._known or self._known[key] != mark}
        for box in self.boxes:
            if told := box.keys if box.fresh else box.keys & changed:
                box.put(told)
            box.fresh = False
        self._known = marks


class Events(Shared):
    """What is written to a ledger's journal. A message is a `Change`.

    A transaction that began earlier may commit later: a window is read again and again, and what was told
    is left out.
    """

    def __init__(
        self, site: Site, store: Store, tenant: str | None, interval: float, on_empty: Callable[[], object]
    ) -> None:
        super().__init__(interval, on_empty)
        self._site, self._store, self._caller = site, store, _as_tenant(tenant)
        self.since = datetime.min.replace(tzinfo=UTC)  # the window's beginning
        self._told: dict[int, datetime] = {}  # the events of the window

    async def look(self) -> None:
        async with self._site.confined(self._caller, self._store) as (conn, tenant):
            self.since = max(self.since, await clock(conn) - WINDOW)
            since, after = self.since, -1
            while page := await self._store.changes(conn, since, after=after, tenant=tenant, limit=BATCH):
                self._tell(page, quietly=not self._looked.is_set())
                since, after = page[-1].at, page[-1].seq
        self._told = {seq: at for seq, at in self._told.items() if at >= self.since}

    def _tell(self, page: list[Change], *, quietly: bool) -> None:
        for change in page:
            if change.seq not in self._told:
                self._told[change.seq] = change.at
                for box in self.boxes if not quietly else ():
                    box.put(change)


class Counts(Shared):
    """How many rows are in each state. A message is the new counts."""

    def __init__(
        self, site: Site, store: Store, tenant: str | None, interval: float, on_empty: Callable[[], object]
    ) -> None:
        super().__init__(interval, on_empty)
        self._site, self._store, self._caller = site, store, _as_tenant(tenant)
        self._known: list[Stat] | None = None

    async def look(self) -> None:
        stats = await self._site.depth(self._caller, self._store, Filter())
        for box in self.boxes:
            if box.fresh or stats != self._known:
                box.put(stats)
            box.fresh = False
        self._known = stats


def _as_tenant(tenant: str | None) -> Caller:
    return Caller(who="holdfast", scope="read", tenant=tenant, bound=tenant is not None)


Kind = TypeVar("Kind", bound=Shared)


class Watch:
    """Everything that somebody waits for, in one process."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._shared: dict[tuple[Any, ...], Shared] = {}

    def rows(self, store: Store) -> Rows:
        """Some rows of a ledger."""
        place = ("rows", store.ledger.name)
        return self._find(place, lambda gone: Rows(self._site, store, self._every(ROWS), gone))

    def events(self, store: Store, tenant: str | None) -> Events:
        """A ledger's events, or one tenant's of them."""
        place = ("events", store.ledger.name, tenant)
        return self._find(place, lambda gone: Events(self._site, store, tenant, self._every(EVENTS), gone))

    def counts(self, store: Store, tenant: str | None) -> Counts:
        """A ledger's counts, or one tenant's."""
        place = ("counts", store.ledger.name, tenant)
        return self._find(place, lambda gone: Counts(self._site, store, tenant, self._every(COUNTS), gone))

    def _every(self, most: float) -> float:
        return min(most, self._site.settings.poll_interval)

    def _find(self, place: tuple[Any, ...], make: Callable[[Callable[[], object]], Kind]) -> Kind:
        found: Any = self._shared.get(place)
        if found is None:
            found = self._shared[place] = make(lambda: self._shared.pop(place, None))
        return found
