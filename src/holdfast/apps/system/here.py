"""A worker for some jobs and no others: for whoever wants a thing done here and now.

Other jobs may wait, perhaps for good reason: nobody who makes a backup wants to start what somebody queued a
week ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from holdfast.apps.system import here_queries as queries
from holdfast.apps.system.ledger import NAME
from holdfast.engine.store import Store
from holdfast.runtime.app import Ground
from holdfast.runtime.worker import Worker


class Shop(Ground, Protocol):
    """An application that can make a worker."""

    def worker(
        self,
        *,
        ledgers: Sequence[str] | None = None,
        queues: Sequence[str] = ("default",),
        stores: Mapping[str, Store] | None = None,
    ) -> Worker: ...


def worker_for(shop: Shop, ids: Sequence[str], queues: Sequence[str]) -> Worker:
    """A worker that takes these jobs, out of these queues, as often as they are to be tried."""
    return shop.worker(ledgers=[NAME], queues=queues, stores={NAME: only(shop.stores[NAME], ids)})


def only(store: Store, ids: Sequence[str]) -> Store:
    """A store whose claims see these jobs alone."""
    lanes = tuple(replace(lane, where=queries.only(ids)) for lane in store.ledger.lanes)
    found = Store(replace(store.ledger, lanes=lanes))
    found.witness = store.witness
    return found
