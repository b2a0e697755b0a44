"""What is served: the ledgers, the handlers, and the database behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.api.caller import Caller
from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine import reading, tenants
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Filter, Stat
from holdfast.errors import InvalidInput, NotFound
from holdfast.runtime.app import App
from holdfast.runtime.handlers import Handlers


@dataclass(frozen=True, kw_only=True)
class Site:
    """Everything that an answer may need. `open` finds the open database."""

    settings: Settings
    stores: Mapping[str, Store]
    handlers: Handlers
    apps: tuple[App, ...]
    open: Callable[[], Database]

    @property
    def database(self) -> Database:
        return self.open()

    def seen_by(self, caller: Caller) -> Mapping[str, Store]:
        """The ledgers that there are for this caller: to a tenant, one without its rows does not exist."""
        if caller.tenant is None:
            return self.stores
        return {name: store for name, store in self.stores.items() if _has_place(store, caller.tenant)}

    def store(self, caller: Caller, name: str) -> Store:
        """The store of a ledger, or `NotFound`. What is asked of it refuses a tenant that no row can have."""
        found = self.stores.get(name)
        if found is None or (caller.tenant is not None and found.ledger.tenant is None):
            raise NotFound(what="ledger", id=name)
        return found

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of the platform itself, which sees everything."""
        return self.database.connection()

    @asynccontextmanager
    async def confined(self, caller: Caller, store: Store) -> AsyncGenerator[tuple[Connection, Any]]:
        """A connection for what the caller wants of a ledger, and the tenant to name in every call.

        Where the tenants of the ledger have a role, the database itself confines the transaction.
        """
        rule = store.ledger.tenant
        async with self.database.connection() as conn:
            if caller.tenant is None or rule is None or rule.setting is None:
                yield conn, caller.tenant
                return
            try:
                async with conn.transaction():
                    await tenants.confine(conn, store.ledger, caller.tenant)
                    yield conn, caller.tenant
            finally:
                if not conn.closed:
                    await self.database.reset(conn)

    async def depth(self, caller: Caller, store: Store, which: Filter) -> list[Stat]:
        """How many rows there are for the caller, by state; see `Store.depth`.

        Under row level security the planner may not look at its own statistics. So what a tenant could only
        be told by a guess is looked at again by the platform itself, within the tenant by our own condition.
        """
        meant = reading.within(store.ledger, which, caller.tenant)
        async with self.confined(caller, store) as (conn, _):
            stats = await store.depth(conn, meant)
        if caller.tenant is None or all(stat.exact for stat in stats):
            return stats
        async with self.connection() as conn:
            return await store.depth(conn, meant)


def _has_place(store: Store, tenant: str) -> bool:
    """Whether a ledger can have rows of a tenant: where tenants are UUIDs, one named by a number has none."""
    try:
        return reading.tenant_of(store.ledger, tenant) is not None
    except InvalidInput:
        return False
