"""The composition root: settings and apps become one application that can enqueue and work.

The only module that knows everything below the command line. A sixth app is one line in `APPS`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Self, TypeVar, Unpack

from holdfast.apps.jobs import tables as jobs_tables
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.tasks import tables as tasks_tables
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db import queries
from holdfast.db import settings as settings_module
from holdfast.db.database import Database, open_database, prepare
from holdfast.db.settings import Settings
from holdfast.engine import callers, reading, tenants
from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.orders import How
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Count, Event, Filter, Item, Options, Page, Receipt, Row, Stat
from holdfast.errors import InvalidInput, LedgerError
from holdfast.runtime.handlers import Handlers, Place, describe, fit
from holdfast.runtime.pump import Share
from holdfast.runtime.worker import Worker, stopping_on_signals

log = logging.getLogger("holdfast")
Function = TypeVar("Function", bound=Callable[..., Any])

APPS: tuple[Ledger, ...] = (JOB, TASKS)
TABLES = (jobs_tables.job, jobs_tables.job_event, tasks_tables.tasks)  # known to the one metadata of all
METADATA = TABLES[0].metadata
READ_ELSEWHERE = ("HOLDFAST_APP",)  # by the command line: no setting, and no slip of the pen


class Holdfast:
    """An application: its ledgers, its handlers, and the database that it is opened on.

    `async with app:` finds the database (starting the embedded one when no URL is set), sees to its schema,
    and closes everything at the end.
    """

    def __init__(self, settings: Settings | None = None, *, ledgers: Iterable[Ledger] = ()) -> None:
        self._settings = settings
        self.stores: Mapping[str, Store] = _stores((*APPS, *ledgers))
        self.handlers = Handlers()
        self._stack = AsyncExitStack()
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

    # -- handlers ------------------------------------------------------------------------------------

    def handler(
        self,
        kind: str,
        *,
        ledger: str | None = None,
        timeout: float | None = None,
        backoff: Backoff | None = None,
        limit: int | None = None,
        place: Place | None = None,
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of a kind of work, in one ledger or in all.

        The payload is read into the type of its first parameter. Sync functions run in threads, or with
        place="process" in processes. `timeout` is in seconds; `backoff` is how long bad runs wait, else the
        ledger's own way; `limit` is what a row gets at enqueue when the caller says nothing.
        """
        if ledger is not None:
            self.store(ledger)
        if limit is not None and limit < 0:
            raise InvalidInput(field="limit", message=f"must be 0 or more, not {limit}")
        if timeout is not None and not timeout > 0:
            raise InvalidInput(field="timeout", message=f"must be more than 0 seconds, not {timeout}")

        def register(function: Function) -> Function:
            self.handlers.add(
                describe(
                    function,
                    kind,
                    place=place,
                    ledger=ledger,
                    timeout=timeout,
                    backoff=backoff,
                    limit=limit,
                )
            )
            return function

        return register

    # -- opening and closing -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._database is not None:
            raise InvalidInput(field="app", message="is open already: use it inside its `async with`")
        database = await self._stack.enter_async_context(open_database(self.settings))
        try:
            await prepare(database)
        except BaseException:
            await self._stack.aclose()
            raise
        self._database = database
        return self

    async def __aexit__(self, *_: object) -> None:
        self._database = None
        await self._stack.aclose()

    # -- work ----------------------------------------------------------------------------------------

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
        item = self._fit(ledger, Item(kind=kind, payload=payload, **options))
        async with self._on_any(conn) as here:
            return await self.store(ledger).enqueue(here, item, by=by)

    async def enqueue_many(
        self, ledger: str, items: Iterable[Item], *, by: str | None = None, conn: Any = None
    ) -> list[Receipt]:
        """Adds many rows, all or none."""
        fitted = self._fit_all(ledger, items)
        async with self._on_any(conn) as here:
            return await self.store(ledger).enqueue_many(here, fitted, by=by)

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
        item = self._fit(ledger, Item(kind=kind, payload=payload, **options))
        callers.run_sync(conn, self._must_fit())
        return self.store(ledger).enqueue_sync(conn, item, by=by)

    def enqueue_many_sync(
        self, ledger: str, items: Iterable[Item], *, conn: Any, by: str | None = None
    ) -> list[Receipt]:
        """Adds many rows, all or none, on a connection that is not async. The app need not be open."""
        fitted = self._fit_all(ledger, items)
        callers.run_sync(conn, self._must_fit())
        return self.store(ledger).enqueue_many_sync(conn, fitted, by=by)

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
            if isinstance(which, Filter):
                return await store.cancel_where(here, reading.within(store.ledger, which, tenant), **how)
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
            if isinstance(which, Filter):
                return await store.requeue_where(here, reading.within(store.ledger, which, tenant), **how)
            await store.requeue(here, which, tenant=tenant, **how)
            return 1

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

    def _on(self, conn: Connection | None) -> AbstractAsyncContextManager[Connection]:
        return self.database.connection() if conn is None else nullcontext(conn)

    def _fit(self, ledger: str, item: Item, where: str = "") -> Item:
        return fit(self.store(ledger).ledger, self.handlers, item, where)

    def worker(
        self,
        *,
        ledgers: Sequence[str] | None = None,
        concurrency: Mapping[str, int] | int | None = None,
        kinds: Sequence[str] | None = None,
        queues: Sequence[str] = ("default",),
    ) -> Worker:
        """A worker for these ledgers (default: all), with a concurrency for each or one for all."""
        if isinstance(concurrency, Mapping):
            for name in concurrency:
                self.store(name)
        shares = [
            Share(
                store=self.store(name),
                concurrency=self._concurrency(name, concurrency),
                kinds=None if kinds is None else tuple(kinds),
                queues=tuple(queues),
                backoff=self._backoff(name),
            )
            for name in dict.fromkeys(ledgers or self.stores)  # named twice, it is served once
        ]
        return Worker(self.database, shares, self.handlers, stores=list(self.stores.values()))

    def _backoff(self, ledger: str) -> Backoff | None:
        """How long bad runs wait, where a setting decides; None leaves it to the ledger."""
        if ledger != JOB.name:
            return None
        settings = self.settings
        return Backoff(
            base=settings.job_backoff_base, cap=settings.job_backoff_cap, jitter=settings.job_backoff_jitter
        )

    def _concurrency(self, ledger: str, given: Mapping[str, int] | int | None) -> int:
        number = given.get(ledger) if isinstance(given, Mapping) else given
        number = self.settings.concurrency if number is None else number
        if number < 1:
            raise InvalidInput(field="concurrency", message=f"must be at least 1, not {number}")
        return number

    async def work(self, *, until_idle: bool = False, **options: Any) -> int:
        """Runs a worker until SIGTERM or SIGINT, or until there is nothing to do.

        Answers how many handlers had to be abandoned at the end. Options are those of `worker`.
        """
        worker = self.worker(**options)
        with stopping_on_signals(worker.stop):
            return await worker.run(until_idle=until_idle)


def _stores(ledgers: Iterable[Ledger]) -> dict[str, Store]:
    stores: dict[str, Store] = {}
    for ledger in ledgers:
        problems: list[str] = []
        if ledger.name in stores:
            problems.append(f"there is a ledger {ledger.name!r} already: give it another name")
        if ledger.table in {store.ledger.table for store in stores.values()}:
            problems.append(
                f"the table {ledger.table!r} belongs to another ledger: a row needs one lifecycle"
            )
        if problems:
            raise LedgerError(title=f"the ledger {ledger.name!r} is declared wrongly:", problems=problems)
        stores[ledger.name] = Store(ledger)
    return stores
