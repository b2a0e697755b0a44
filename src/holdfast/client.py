"""What an application can ask and order: enqueue, look, cancel, requeue, pause, explain.

Each on a connection of the caller's, in the caller's transaction, or on one of the pool.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, Unpack

from holdfast import tracing
from holdfast.db import queries
from holdfast.db import settings as settings_module
from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine import callers, reading, tenants
from holdfast.engine.orders import How
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Count, Event, Filter, Item, Options, Page, Receipt, Row, Stat
from holdfast.errors import InvalidInput
from holdfast.runtime import pauses
from holdfast.runtime.explain import Explanation, explain
from holdfast.runtime.handlers import Handlers, fit
from holdfast.runtime.overview import Overview, overview

log = logging.getLogger("holdfast")
READ_ELSEWHERE = ("HOLDFAST_APP",)  # by the command line: no setting, and no slip of the pen


class Client:
    """The ledgers of an application, and the verbs of its callers."""

    def __init__(self, settings: Settings | None, stores: dict[str, Store]) -> None:
        self._settings = settings
        self.stores = stores
        self.handlers = Handlers()
        self._database: Database | None = None

    @property
    def settings(self) -> Settings:
        """The settings, read once, at first use."""
        if self._settings is None:
            self._settings = settings_module.load(known=READ_ELSEWHERE)
            for warning in self._settings.warnings:
                log.warning("%s", warning)
        return self._settings

    @property
    def database(self) -> Database:
        """The open database."""
        if self._database is None:
            raise InvalidInput(field="app", message="is not open: use `async with app:`")
        return self._database

    def store(self, ledger: str) -> Store:
        """The store of a ledger, by its name."""
        if ledger not in self.stores:
            known = ", ".join(self.stores)
            raise InvalidInput(field="ledger", message=f"there is no ledger {ledger!r}: ledgers are {known}")
        return self.stores[ledger]

    # -- enqueue -------------------------------------------------------------------------------------
    # On `conn`, a connection of any library that docs/enqueue.md names, in the caller's transaction.

    async def enqueue(
        self,
        ledger: str,
        kind: str | None = None,
        payload: Any = None,
        *,
        by: str | None = None,
        conn: Any = None,
        **options: Unpack[Options],
    ) -> Receipt:
        """Adds one row. On `conn` it joins the caller's transaction, else it is committed at once."""
        with tracing.enqueuing(ledger, kind) as span:
            item = self._fit(ledger, Item(kind=kind, payload=payload, **options))
            async with self._on_any(conn) as here:
                receipt = await self.store(ledger).enqueue(here, item, by=by)
            span.enqueued(receipt.id)
            return receipt

    async def enqueue_many(
        self, ledger: str, items: Iterable[Item], *, by: str | None = None, conn: Any = None
    ) -> list[Receipt]:
        """Adds many rows, all or none."""
        with tracing.enqueuing(ledger) as span:
            fitted = self._fit_all(ledger, items)
            async with self._on_any(conn) as here:
                receipts = await self.store(ledger).enqueue_many(here, fitted, by=by)
            span.enqueued(count=len(receipts))
            return receipts

    def enqueue_sync(
        self,
        ledger: str,
        kind: str | None = None,
        payload: Any = None,
        *,
        conn: Any,
        by: str | None = None,
        **options: Unpack[Options],
    ) -> Receipt:
        """Adds one row on a connection that is not async. The app need not be open."""
        with tracing.enqueuing(ledger, kind) as span:
            item = self._fit(ledger, Item(kind=kind, payload=payload, **options))
            callers.run_sync(conn, self._must_fit())
            receipt = self.store(ledger).enqueue_sync(conn, item, by=by)
            span.enqueued(receipt.id)
            return receipt

    def enqueue_many_sync(
        self, ledger: str, items: Iterable[Item], *, conn: Any, by: str | None = None
    ) -> list[Receipt]:
        """Adds many rows, all or none, on a connection that is not async. The app need not be open."""
        with tracing.enqueuing(ledger) as span:
            fitted = self._fit_all(ledger, items)
            callers.run_sync(conn, self._must_fit())
            receipts = self.store(ledger).enqueue_many_sync(conn, fitted, by=by)
            span.enqueued(count=len(receipts))
            return receipts

    @asynccontextmanager
    async def _on_any(self, conn: Any) -> AsyncGenerator[Any]:
        if conn is None:
            async with self.database.connection() as own:
                yield own
        else:
            await callers.run(conn, self._must_fit())
            yield conn

    def _must_fit(self) -> callers.Steps[None]:
        """Refuses a caller's connection on which the row would go elsewhere, or nowhere."""
        wanted = self.settings.schema
        if wanted is None:
            return
        (row,) = yield callers.Query(queries.CURRENT_SCHEMA.encode())
        if (found := row["current_schema"]) != wanted:
            raise InvalidInput(
                field="conn", message=f"leads to the schema {found}, and HOLDFAST_SCHEMA is {wanted}"
            )

    def _fit_all(self, ledger: str, items: Iterable[Item]) -> list[Item]:
        return [self._fit(ledger, item, f"items[{place}].") for place, item in enumerate(items)]

    # -- looking and ordering ------------------------------------------------------------------------
    # Each on `conn`, if given, in the caller's transaction. With `tenant`, others' rows are not found.

    async def get(self, ledger: str, id: Any, *, tenant: Any = None, conn: Connection | None = None) -> Row:
        """One row, with its result and how far it has come, or `NotFound`."""
        async with self._on(conn) as here:
            return await self.store(ledger).get(here, id, tenant=tenant)

    async def find(
        self,
        ledger: str,
        which: Filter | None = None,
        *,
        tenant: Any = None,
        limit: int = 50,
        cursor: str | None = None,
        conn: Connection | None = None,
    ) -> Page:
        """A page of rows, newest first. `cursor` is that of the page before."""
        store = self.store(ledger)
        which = reading.within(store.ledger, which or Filter(), tenant)
        async with self._on(conn) as here:
            return await store.find(here, which, limit=limit, cursor=cursor)

    async def count(
        self,
        ledger: str,
        which: Filter | None = None,
        *,
        tenant: Any = None,
        conn: Connection | None = None,
    ) -> list[Count]:
        """How many rows there are, by state and kind."""
        store = self.store(ledger)
        which = reading.within(store.ledger, which or Filter(), tenant)
        async with self._on(conn) as here:
            return await store.count(here, which)

    async def timeline(
        self,
        ledger: str,
        id: Any,
        *,
        tenant: Any = None,
        after: int = 0,
        limit: int = 1000,
        conn: Connection | None = None,
    ) -> list[Event]:
        """What happened to a row, in its order, from the event after `after`; or `NotFound`."""
        async with self._on(conn) as here:
            return await self.store(ledger).timeline(here, id, tenant=tenant, after=after, limit=limit)

    async def stats(
        self,
        ledger: str,
        which: Filter | None = None,
        *,
        tenant: Any = None,
        conn: Connection | None = None,
    ) -> list[Stat]:
        """For every state: how many rows, since when the oldest of them, and since when one is due."""
        store = self.store(ledger)
        which = reading.within(store.ledger, which or Filter(), tenant)
        async with self._on(conn) as here:
            return await store.stats(here, which)

    async def cancel(
        self,
        ledger: str,
        which: Any,
        *,
        tenant: Any = None,
        conn: Connection | None = None,
        **how: Unpack[How],
    ) -> int:
        """Calls off one row by its id, or all that a `Filter` means; answers how many.

        `by` says who orders it and `reason` why, for the record.
        """
        store = self.store(ledger)
        async with self._on(conn) as here:
            if (meant := self._meant(store, which, tenant)) is not None:
                return await store.cancel_where(here, meant, **how)
            await store.cancel(here, which, tenant=tenant, **how)
            return 1

    async def requeue(
        self,
        ledger: str,
        which: Any,
        *,
        tenant: Any = None,
        conn: Connection | None = None,
        **how: Unpack[How],
    ) -> int:
        """Lets one row that ended badly run again, or all that a `Filter` means; answers how many."""
        store = self.store(ledger)
        async with self._on(conn) as here:
            if (meant := self._meant(store, which, tenant)) is not None:
                return await store.requeue_where(here, meant, **how)
            await store.requeue(here, which, tenant=tenant, **how)
            return 1

    def _meant(self, store: Store, which: Any, tenant: Any) -> Filter | None:
        """The filter within a tenant's rows; None where one row is meant by its id."""
        return reading.within(store.ledger, which, tenant) if isinstance(which, Filter) else None

    @asynccontextmanager
    async def as_tenant(self, tenant: Any, ledger: str = "job") -> AsyncGenerator[Connection]:
        """A connection whose transaction the database itself confines to one tenant.

        What is done on it is committed at the end of the `async with`. The role's own policies decide what
        may be seen: not our SQL, and not the caller's.
        """
        declared = self.store(ledger).ledger
        async with self.database.connection() as conn:
            try:
                async with conn.transaction():
                    await tenants.confine(conn, declared, tenant)
                    yield conn
            finally:
                if not conn.closed:
                    await self.database.reset(conn)

    # -- pauses, and what is going on ----------------------------------------------------------------

    async def pause(
        self,
        ledger: str,
        queue: str | None = None,
        *,
        by: str | None = None,
        reason: str | None = None,
        conn: Connection | None = None,
    ) -> bool:
        """Lets no worker claim from a ledger, or from one queue of it; False: it was paused already."""
        async with self._on(conn) as here:
            return await pauses.pause(here, self.store(ledger).ledger, queue, by=by, reason=reason)

    async def resume(self, ledger: str, queue: str | None = None, *, conn: Connection | None = None) -> bool:
        """Lets workers claim again; False: it was not paused."""
        async with self._on(conn) as here:
            return await pauses.resume(here, self.store(ledger).ledger, queue)

    async def explain(self, ledger: str, id: Any, *, tenant: Any = None) -> Explanation:
        """Why a row is not running, or what became of it, in one sentence with the facts; or `NotFound`."""
        store = self.store(ledger)
        async with self.database.connection() as conn:
            row = await store.get(conn, id, tenant=tenant)
            return await explain(conn, store, row, self.settings)

    async def overview(self) -> Overview:
        """All ledgers and all workers at this moment, without counting what is large."""
        async with self.database.connection() as conn:
            return await overview(conn, self.stores.values())

    def _on(self, conn: Connection | None) -> AbstractAsyncContextManager[Connection]:
        return self.database.connection() if conn is None else nullcontext(conn)

    def _fit(self, ledger: str, item: Item, where: str = "") -> Item:
        return fit(self.store(ledger).ledger, self.handlers, item, where)
