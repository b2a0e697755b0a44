"""A worker's share of a ledger: what it takes of it. Plain, frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.engine.backoff import Backoff
from holdfast.engine.store import Store
from holdfast.engine.values import Json
from holdfast.runtime.handlers import Handlers


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
    """What a worker takes from one ledger, and how much of it at once; `most`: and how much at all."""

    store: Store
    concurrency: int
    pace: Pace = Pace()
    most: int | None = None
    kinds: tuple[str, ...] | None = None
    queues: tuple[str, ...] = ("default",)
    backoff: Backoff | None = None  # of bad runs whose handler has none; None: the ledger's own

    def shown(self, handlers: Handlers) -> Json:
        """The share as others see it in the worker's row: the kinds are those that it can run."""
        known = handlers.kinds(self.store.ledger.name)
        return {
            "slots": self.concurrency,
            "queues": list(self.queues) if self.store.ledger.queue else [],
            "kinds": [kind for kind in known if self.kinds is None or kind in self.kinds],
        }
