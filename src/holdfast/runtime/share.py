"""A worker's share of a ledger: what it takes of it. Plain, frozen data."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.backoff import Backoff
from holdfast.engine.store import Store
from holdfast.engine.values import Json
from holdfast.runtime.handlers import Handlers


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a worker takes from one ledger, and how much of it at once."""

    store: Store
    concurrency: int
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
