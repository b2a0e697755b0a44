"""The database that the settings mean: a URL's, or the embedded one. Owns its pool and lease while open."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from psycopg.errors import UndefinedTable

from holdfast.db import embedded, queries
from holdfast.db import pool as pools
from holdfast.db.connection import Connection as ServiceConnection
from holdfast.db.settings import Settings
from holdfast.errors import DatabaseUnavailable, SchemaOutdated

CALL_MARGIN = 5.0  # seconds beyond the statement timeout in which the server's response has to arrive

CLOSE_SECONDS = 1.0  # for what the pool does in the background, such as connecting
VERSIONS = Path(__file__).parent / "migrations" / "versions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An open database: where it is, and the ways in."""

    settings: Settings
    url: str = dataclasses.field(repr=False)
    direct_url: str | None = dataclasses.field(repr=False)
    pool: pools.Pool

    @property
    def listen_url(self) -> str | None:
        """Where LISTEN works; None when only a transaction pooler leads to the server."""
        if self.direct_url is not None:
            return self.direct_url
        return self.url if self.settings.database_pooler == "none" else None

    def connection(self) -> AbstractAsyncContextManager[pools.Connection]:
        """A pooled, autocommitting connection, for `async with`."""
        return pools.acquire(self.pool)

    async def reset(self, conn: pools.Connection) -> None:
        """Takes away what a borrower may have left on a pooled connection: role, settings, temporary tables.

        Behind a pooler the session is not ours: there, what lasts longer than a transaction is not for us to
        undo.
        """
        if self.settings.database_pooler == "none":
            await conn.execute(queries.RESET)

    async def connect(self, purpose: str, *, worker: str | None = None) -> pools.Connection:
        """A connection of one's own, autocommitting; the caller closes it. `worker` is whose it is."""
        return await pools.connect(self.settings, self.url, purpose=purpose, worker=worker)

    async def connect_service(
        self,
        purpose: str,
        *,
        worker: str | None = None,
        deadline: float | None = None,
        within: float | None = None,
    ) -> ServiceConnection:
        """A connection for a worker's own calls: one try, and each call on it has a deadline in seconds.

        Without a `deadline` a call may take as long as a statement, and some more. `within`: everything, the
        connecting too, has to be done in so many seconds; then the connection is closed.
        """
        began = time.monotonic()
        try:
            async with asyncio.timeout(within):
                conn = await pools.connect(self.settings, self.url, purpose=purpose, worker=worker, waits=())
        except TimeoutError:
            raise DatabaseUnavailable(message=f"no database connection within {within:g} s") from None
        conn.deadline = deadline or self.settings.db_statement_timeout_seconds + CALL_MARGIN
        if within is not None:
            asyncio.get_running_loop().call_later(within - (time.monotonic() - began), conn.sever)
        return conn

    async def connect_direct(self, purpose: str) -> pools.Connection:
        """A connection past any pooler, to LISTEN on; one try: the listener has its own rhythm."""
        assert self.listen_url is not None
        direct = dataclasses.replace(self.settings, database_pooler="none")
        return await pools.connect(direct, self.listen_url, purpose=purpose, waits=())


@asynccontextmanager
async def open_database(settings: Settings) -> AsyncGenerator[Database]:
    """Open the database for the length of an `async with`; starts the embedded server when no URL is set."""
    async with AsyncExitStack() as stack:
        url = settings.database_url
        if url is None:
            url = await stack.enter_async_context(_embedded(settings.home))
        pool = await pools.open_pool(settings, url)
        stack.push_async_callback(pool.close, CLOSE_SECONDS)
        yield Database(settings=settings, url=url, direct_url=settings.database_direct_url, pool=pool)


@asynccontextmanager
async def _embedded(home: Path) -> AsyncGenerator[str]:
    """The embedded server's URL, for as long as the lease is held.

    A thread cannot be cancelled: when we are while it starts the server, its lease is let go as soon as it
    comes.
    """
    starting = asyncio.ensure_future(asyncio.to_thread(embedded.acquire, home))
    try:
        lease = await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_release)
        raise
    with lease:
        yield lease.url


def _release(starting: asyncio.Future[embedded.Lease]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().release()


@cache
def head() -> str:
    """The revision that this version needs: the last of the migrations, by their names."""
    return max(path.name for path in VERSIONS.glob("[0-9]*.py")).partition("_")[0]


async def revision(conn: pools.Connection) -> str | None:
    """The revision that the database is at; None when Holdfast was never installed there."""
    try:
        ((found,),) = await (await conn.execute(queries.REVISION)).fetchall()
    except UndefinedTable:
        return None
    return found


async def prepare(database: Database) -> None:
    """Brings the schema up to date on the profiles local and test; refuses an old one elsewhere."""
    async with database.connection() as conn:
        if await revision(conn) == head():
            return
    from holdfast.db import migrate  # Alembic takes longer to import than all the rest together

    url, schema = database.direct_url or database.url, database.settings.schema
    if not await asyncio.to_thread(migrate.pending, url, schema):
        return
    if database.settings.profile not in ("local", "test"):
        current = await asyncio.to_thread(migrate.current, url, schema)
        raise SchemaOutdated(current=current or "none", head=migrate.head())
    await asyncio.to_thread(migrate.upgrade, url, "head", schema)
