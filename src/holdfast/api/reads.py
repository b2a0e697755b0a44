"""What several pages and routes ask alike: the overview, a ledger's numbers, and why a row does not run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.engine.store import Store
from holdfast.engine.values import Filter, Row
from holdfast.runtime import explain as explaining
from holdfast.runtime import overview as look
from holdfast.runtime.explain import Explanation
from holdfast.runtime.overview import LedgerView, Overview

KEPT = 1.0  # seconds that an overview is good for everybody
# What a tenant is told of a reason that lies with others: neither who they are, nor how many.
TO_TENANTS: Mapping[str, str] = {
    "HELD": "a worker has it",
    "HELD_BY_LOST": "the worker that held it is silent: it waits to be given back",
    "NOT_CLAIMABLE": "no worker takes it as it is: ask an operator",
    "PASSED_OVER": "it is not ready yet",
    "DUE": "it is due, and a worker takes it at once",
    "PAUSED": "an operator has paused it",
    "NO_WORKERS": "there is no worker for it at the moment",
    "NO_WORKER_FOR_LEDGER": "there is no worker for it at the moment",
    "NO_WORKER_FOR_QUEUE": "there is no worker for its queue at the moment",
    "NO_WORKER_FOR_KIND": "there is no worker for its kind at the moment",
    "WORKERS_FULL": "all workers are busy: it waits for its turn",
    "BEHIND_OTHERS": "it waits for its turn",
    "LOCKED": "it is being changed",
}
OWN = ("ENDED", "NOT_DUE")  # reasons that lie with the row itself


class Reads:
    """The site's read model, with what may be kept for a moment."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = asyncio.Lock()
        self._overview: tuple[float, Overview] | None = None

    async def overview(self, caller: Caller) -> Overview:
        """Everything at a glance; within a tenant its own rows, and no workers."""
        if caller.tenant is not None:
            return await self._of_tenant(caller)
        return await self.overview_of_all()

    async def overview_of_all(self) -> Overview:
        """Everything at a glance, for operators. A second old at most: a hundred watchers cost one look."""
        async with self._lock:
            if self._overview is None or time.monotonic() - self._overview[0] > KEPT:
                async with self._site.connection() as conn:
                    found = await look.overview(conn, self._site.stores.values())
                self._overview = (time.monotonic(), found)
            return self._overview[1]

    async def _of_tenant(self, caller: Caller) -> Overview:
        stores = self._site.seen_by(caller).values()
        views = [await self._tenant_view(caller, store) for store in stores]
        async with self._site.connection() as conn:
            return Overview(now=await look.clock(conn), ledgers=tuple(views), workers=(), leader=None)

    async def ledger(self, caller: Caller, store: Store) -> tuple[LedgerView, datetime]:
        """One ledger at a glance, and the database's time."""
        if caller.tenant is not None:
            view = await self._tenant_view(caller, store)
            async with self._site.connection() as conn:
                return view, await look.clock(conn)
        async with self._site.connection() as conn:
            return await look.ledger_view(conn, store), await look.clock(conn)

    async def _tenant_view(self, caller: Caller, store: Store) -> LedgerView:
        stats = await self._site.depth(caller, store, Filter())
        async with self._site.connection() as conn:
            return look.rows_view(store.ledger, stats, await look.clock(conn))

    async def row(self, caller: Caller, store: Store, id: Any) -> Row:
        """One row, or `NotFound`."""
        async with self._site.confined(caller, store) as (conn, tenant):
            return await store.get(conn, id, tenant=tenant)

    async def explain(self, caller: Caller, store: Store, id: Any) -> Explanation:
        """Why a row does not run. A tenant is told nothing of others."""
        row = await self.row(caller, store, id)
        async with self._site.connection() as conn:
            found = await explaining.explain(conn, store, row, self._site.settings)
        if not caller.bound or found.code in OWN:
            return found
        sentence = TO_TENANTS.get(found.code, "it waits for its turn")
        return Explanation(code=found.code, sentence=sentence, facts={})
