"""The composition root: settings and apps become one application that can enqueue and work.

The only module that knows everything below the command line. A sixth app is one line in `APPS`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any, Self, TypeVar

from psycopg import AsyncConnection

from holdfast.apps.tasks.ledger import TASKS
from holdfast.apps.tasks.tables import tasks as tasks_table
from holdfast.db import migrate
from holdfast.db import settings as settings_module
from holdfast.db.database import Database, open_database
from holdfast.db.pool import current_schema
from holdfast.db.settings import Settings
from holdfast.engine.backoff import BACKOFF, Backoff
from holdfast.engine.intake import payload_text
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Item, Receipt, Row
from holdfast.errors import InvalidInput, LedgerError, SchemaOutdated
from holdfast.runtime.handlers import Handlers, Place, describe
from holdfast.runtime.pump import Share
from holdfast.runtime.worker import Worker, stopping_on_signals

log = logging.getLogger("holdfast")
Function = TypeVar("Function", bound=Callable[..., Any])

APPS: tuple[Ledger, ...] = (TASKS,)
METADATA = tasks_table.metadata
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
        backoff: Backoff = BACKOFF,
        limit: int | None = None,
        place: Place | None = None,
    ) -> Callable[[Function], Function]:
        """Makes a function the handler of a kind of work, in one ledger or in all.

        The payload is read into the type of its first parameter. Sync functions run in threads, or with
        place="process" in processes. `timeout` is in seconds; `limit` is what a row gets at enqueue when
        the caller says nothing.
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

    async def enqueue(
        self,
        ledger: str,
        kind: str | None = None,
        payload: Any = None,
        *,
        key: str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        run_at: datetime | None = None,
        limit: int | None = None,
        queue: str | None = None,
        tenant: Any = None,
        extras: Mapping[str, Any] | None = None,
        by: str | None = None,
        conn: Connection | None = None,
    ) -> Receipt:
        """Adds one row. On `conn` it joins the caller's transaction, else it is committed at once."""
        item = Item(
            kind=kind,
            payload=payload,
            key=key,
            priority=priority,
            delay=delay,
            run_at=run_at,
            limit=limit,
            queue=queue,
            tenant=tenant,
            extras=extras or {},
        )
        item = self._fit(ledger, item)
        if conn is not None:
            await self._must_fit(conn)
            return await self.store(ledger).enqueue(conn, item, by=by)
        async with self.database.connection() as own:
            return await self.store(ledger).enqueue(own, item, by=by)

    async def enqueue_many(
        self, ledger: str, items: Iterable[Item], *, by: str | None = None, conn: Connection | None = None
    ) -> list[Receipt]:
        """Adds many rows, all or none."""
        fitted = [self._fit(ledger, item, f"items[{place}].") for place, item in enumerate(items)]
        if conn is not None:
            await self._must_fit(conn)
            return await self.store(ledger).enqueue_many(conn, fitted, by=by)
        async with self.database.connection() as own, own.transaction():
            return await self.store(ledger).enqueue_many(own, fitted, by=by)

    async def _must_fit(self, conn: Connection) -> None:
        """Refuses a caller's connection on which the row would go elsewhere, or nowhere."""
        if not isinstance(conn, AsyncConnection):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(field="conn", message="must be a psycopg AsyncConnection")
        wanted = self.settings.schema
        if wanted is not None and (found := await current_schema(conn)) != wanted:
            raise InvalidInput(
                field="conn", message=f"leads to the schema {found}, and HOLDFAST_SCHEMA is {wanted}"
            )

    async def get(self, ledger: str, id: Any) -> Row:
        """One row, or `NotFound`."""
        async with self.database.connection() as conn:
            return await self.store(ledger).get(conn, id)

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
            )
            for name in dict.fromkeys(ledgers or self.stores)  # named twice, it is served once
        ]
        return Worker(self.database, shares, self.handlers, stores=list(self.stores.values()))

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


def fit(ledger: Ledger, handlers: Handlers, item: Item, where: str = "") -> Item:
    """The item as its handler wants it: defaults filled in, the payload's shape checked where it is known."""
    handler = handlers.find(ledger.name, item.kind or ledger.name)
    if handler is None:
        return item
    try:
        handler.read(payload_text(item.payload))
    except InvalidInput as error:
        raise InvalidInput(field=f"{where}{error.field}", message=error.fields["message"]) from None
    has_limit = ledger.attempts is not None and isinstance(ledger.attempts.limit, str)
    return replace(item, limit=handler.limit) if has_limit and item.limit is None else item


async def prepare(database: Database) -> None:
    """Brings the schema up to date on the profiles local and test; refuses an old one elsewhere."""
    url, schema = database.direct_url or database.url, database.settings.schema
    if not await asyncio.to_thread(migrate.pending, url, schema):
        return
    if database.settings.profile not in ("local", "test"):
        current = await asyncio.to_thread(migrate.current, url, schema)
        raise SchemaOutdated(current=current or "none", head=migrate.head())
    await asyncio.to_thread(migrate.upgrade, url, "head", schema)


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
