"""A worker's share of a ledger: what it takes of it. Plain, frozen data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.engine.backoff import Backoff
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Json
from holdfast.runtime.handlers import Handlers

log = logging.getLogger("holdfast.worker")

LEFT_KINDS_EVERY_SECONDS = 60.0
MAX_LOGGED_KINDS = 100  # of one ledger, in the life of a worker


def unheard(_: int | Exception) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a ledger is worked on, where its app says so; None is as for all.

    `poll` is seconds between two looks. `batch`: after so many rows of an outbox in a row, its worker rests
    for that time. `heard` is told how many rows were claimed, after each turn, or why it failed.
    """

    concurrency: int | None = None
    poll: float | None = None
    batch: int | None = None
    heard: Callable[[int | Exception], None] = unheard


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a worker takes from one ledger, and how much of it at once; `most`: and how much at all.

    `rejects`: rows of kinds without a handler are claimed and rejected; else they are left.
    """

    store: Store
    concurrency: int
    pace: Pace = Pace()
    most: int | None = None
    kinds: tuple[str, ...] | None = None
    queues: tuple[str, ...] = ("default",)
    backoff: Backoff | None = None  # of bad runs whose handler has none; None: the ledger's own
    rejects: bool = False

    def claimed_kinds(self, handlers: Handlers) -> Sequence[str] | None:
        """The kinds that are claimed; None: all."""
        return self.kinds if self.rejects else self._runnable(handlers)

    def _runnable(self, handlers: Handlers) -> list[str]:
        known = handlers.kinds(self.store.ledger.name)
        return [kind for kind in known if self.kinds is None or kind in self.kinds]

    def shown(self, handlers: Handlers) -> Json:
        """The share as others see it in the worker's row: the kinds are those that it can run."""
        return {
            "slots": self.concurrency,
            "queues": list(self.queues) if self.store.ledger.queue else [],
            "kinds": self._runnable(handlers),
        }


class LeftKinds:
    """Logs the kinds of due rows that a worker leaves because it has no handler for them, each once."""

    def __init__(self, share: Share, handlers: Handlers) -> None:
        self.share = share
        self.handlers = handlers
        self._logged: set[str] = set()
        self._next = 0.0

    async def log_new(self, conn: Connection) -> None:
        """Reads which kinds are due, at most once a minute, and logs those that are new."""
        share, ledger = self.share, self.share.store.ledger
        takes_all = share.rejects or share.kinds is not None or ledger.kind is None
        if takes_all or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LEFT_KINDS_EVERY_SECONDS
        for kind in await share.store.due_kinds(conn):
            new = kind not in self._logged and not self.handlers.find(ledger.name, kind)
            if new and len(self._logged) < MAX_LOGGED_KINDS:
                self._logged.add(kind)
                log.warning(
                    "%s: rows of kind %r are left: this worker has no handler for it", ledger.name, kind
                )
