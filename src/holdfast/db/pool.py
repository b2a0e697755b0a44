"""Opens connections, all pinned to the same habits. May use psycopg, psycopg-pool. Never shows a password.

Start-up options pin time zone, timeouts and search_path. A pooler in transaction mode takes no such
options and gives a session to somebody else after each transaction: there, only the time zone is set,
because PgBouncer follows that one, and no statement is prepared.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from holdfast.db import connection as connections
from holdfast.db.parsers import redacted
from holdfast.db.settings import Settings
from holdfast.errors import DatabaseAuthError, DatabaseUnavailable

Connection: TypeAlias = psycopg.AsyncConnection[TupleRow]
Pool: TypeAlias = AsyncConnectionPool[Connection]

log = logging.getLogger("holdfast.db")

OLDEST_SERVER = 15
RETRY_WAITS = (0.1, 0.2, 0.4, 0.8)  # seconds between the tries of a connection that is needed now
STARTUP_FIRST_WAIT, STARTUP_LAST_WAIT = 0.1, 2.0  # seconds between the tries of a start
SET_TIME_ZONE = "set time zone 'UTC'"
KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
SERVER_KEEPALIVES = ("keepalives_idle", "keepalives_interval", "keepalives_count")

SESSION_NAME_BYTES = 63  # what the server keeps of an application_name
WORKER_ID_CHARS = (
    28  # the end of a worker's id, which is unique; a host's name may be longer than all the rest
)

# The worker whose handler opens connections in this task; None outside a run.
current_worker: ContextVar[str | None] = ContextVar("current_worker", default=None)

# What a server says that was reached and will not have us. libpq hands no code on, only words.
_REFUSED_USER = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects connection",
    "is not permitted to log in",
    "permission denied for database",
    "no such user",  # PgBouncer's words
)


async def open_pool(settings: Settings, url: str) -> Pool:
    """Open a pool of pinned, autocommitting connections; a first one proves that the server will have us.

    A server that cannot be reached is waited for, as long as HOLDFAST_DB_STARTUP_SECONDS says.
    """
    waits = startup_waits(settings.db_startup_seconds)
    first = await connect(settings, url, purpose="pool", waits=waits)
    await first.close()
    pool: Pool = AsyncConnectionPool(
        _conninfo(settings, url, "pool"),
        connection_class=connections.Connection,
        kwargs=_arguments(settings, autocommit=True),
        min_size=1,
        max_size=settings.db_max_connections,
        timeout=settings.db_acquire_timeout_seconds,
        max_idle=settings.db_idle_seconds,
        max_lifetime=settings.db_max_lifetime_seconds,
        configure=_configure if settings.database_pooler == "transaction" else None,
        check=AsyncConnectionPool[Connection].check_connection,
        open=False,
        name="holdfast",
    )
    try:
        await pool.open()
    except BaseException:
        await pool.close()
        raise
    return pool


@asynccontextmanager
async def acquire(pool: Pool) -> AsyncGenerator[Connection]:
    """A connection of the pool; DatabaseUnavailable when none is free in time."""
    try:
        connection = await pool.getconn()
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            message=f"no database connection was free within {pool.timeout:g} seconds: the server is away, "
            f"or all {pool.max_size} connections are in use (HOLDFAST_DB_MAX_CONNECTIONS)"
        ) from error
    try:
        async with connection:
            yield connection
    finally:
        await pool.putconn(connection)


def startup_waits(seconds: float) -> Iterator[float]:
    """Return the waits between the tries of a start: growing, and until `seconds` from now are over."""
    deadline = time.monotonic() + seconds

    def waits() -> Iterator[float]:
        wait = STARTUP_FIRST_WAIT
        while (left := deadline - time.monotonic()) > 0:
            yield min(wait, left)
            wait = min(2 * wait, STARTUP_LAST_WAIT)

    return waits()


async def connect(
    settings: Settings,
    url: str,
    *,
    purpose: str,
    worker: str | None = None,
    autocommit: bool = True,
    waits: Iterable[float] = RETRY_WAITS,
) -> connections.Connection:
    """Open one pinned connection; transient failures are tried again after each of `waits`, in seconds.

    `worker` is the id of the worker that it belongs to; by default the one whose handler is running.
    """
    conninfo = _conninfo(settings, url, purpose, worker or current_worker.get())
    left, logged = iter(waits), False
    while True:
        try:
            return await _connect_once(settings, conninfo, autocommit)
        except psycopg.Error as error:
            failure = explain(error, url)
        wait = None if isinstance(failure, DatabaseAuthError) else next(left, None)
        if wait is None:
            raise failure from None  # the original may quote what it was given
        if not logged and wait >= 1:  # a failure of a moment is not worth a line
            log.warning("database connection failed (%s); trying again", failure)
            logged = True
        await asyncio.sleep(wait)


async def _connect_once(settings: Settings, conninfo: str, autocommit: bool) -> connections.Connection:
    connection = await connections.Connection.connect(conninfo, **_arguments(settings, autocommit=autocommit))
    try:
        check_version(connection.info.server_version)
        if settings.database_pooler == "transaction":
            connection.deadline = settings.db_acquire_timeout_seconds  # a pooler accepts us without a server
            await _configure(connection)
            connection.deadline = None
    except BaseException:
        await connection.close()
        raise
    return connection


def check_version(number: int) -> None:
    """Refuse a server that is too old; `number` is libpq's, 180004 for 18.4."""
    if number < OLDEST_SERVER * 10_000:
        raise DatabaseUnavailable(
            message=f"Holdfast needs PostgreSQL {OLDEST_SERVER} or newer, and this server is "
            f"{number // 10_000}.{number % 10_000}"
        )


def session_name(purpose: str, worker: str | None = None) -> str:
    """The application_name of a session: what it is for, and the id of the worker that it belongs to.

    >>> session_name("pool", "host-4711-x7k2pq")
    'holdfast pool [host-4711-x7k2pq]'
    """
    mark = session_mark(worker) if worker else ""
    name = f"holdfast {purpose}".encode("ascii", "replace").decode()  # the server would write it longer
    return name[: SESSION_NAME_BYTES - len(mark)] + mark


def session_mark(worker: str) -> str:
    """How the names of all sessions of a worker end."""
    return f" [{worker[-WORKER_ID_CHARS:]}]"


def _conninfo(settings: Settings, url: str, purpose: str, worker: str | None = None) -> str:
    """The URL with our pins; what it says itself about timeouts and keepalives stands."""
    given = conninfo_to_dict(url)
    wait = max(2, math.ceil(settings.db_acquire_timeout_seconds))  # libpq counts whole seconds, from 2
    pins: dict[str, Any] = {"connect_timeout": wait, **KEEPALIVES, **given}
    pins["application_name"] = session_name(purpose, worker)
    pins["client_encoding"] = "UTF8"
    if settings.database_pooler == "none":
        pins["options"] = " ".join([str(given.get("options", "")), *_options(settings)]).strip()
    return make_conninfo("", **pins)


def _options(settings: Settings) -> list[str]:
    pins = {
        "TimeZone": "UTC",
        "default_transaction_isolation": "read\\ committed",  # what is read after a lock is younger than it
        # A plan that was made while a table was small must not be used when it is large.
        "plan_cache_mode": "force_custom_plan",
        "statement_timeout": round(settings.db_statement_timeout_seconds * 1000) or 1,
        "idle_in_transaction_session_timeout": round(settings.db_idle_in_transaction_seconds * 1000) or 1,
        # The server notices, too, that the other end is gone, and releases what the session has locked.
        **{f"tcp_{name}": KEEPALIVES[name] for name in SERVER_KEEPALIVES},
    }
    if settings.schema:
        pins["search_path"] = settings.schema
    return [f"-c {name}={value}" for name, value in pins.items()]


def _arguments(settings: Settings, *, autocommit: bool) -> dict[str, Any]:
    pooled = settings.database_pooler == "transaction"
    return {"autocommit": autocommit, "prepare_threshold": None if pooled else 5}


async def _configure(connection: Connection) -> None:
    await connection.execute(SET_TIME_ZONE)
    if not connection.autocommit:
        await connection.commit()


def explain(error: psycopg.Error, url: str) -> DatabaseUnavailable | DatabaseAuthError:
    """Our error for a failed connection: what happened, to whom, where, and what to look at."""
    given = conninfo_to_dict(url)
    user, host = given.get("user") or "the default user", given.get("host") or "the local socket"
    said = " ".join(str(error).split())  # libpq writes several lines
    if any(words in said for words in _REFUSED_USER) or ('role "' in said and "does not exist" in said):
        return DatabaseAuthError(
            message=f"authentication failed for the user {user} on {host}: check the user and the password "
            "in HOLDFAST_DATABASE_URL, and that the server lets this user in from here"
        )
    if ('database "' in said and "does not exist" in said) or "no such database" in said:
        return DatabaseAuthError(
            message=f"there is no database {given.get('dbname') or user} on {host}: create it, or correct "
            "the name in HOLDFAST_DATABASE_URL"
        )
    password = given.get("password")
    if password:
        said = said.replace(str(password), "***")
    return DatabaseUnavailable(message=f"the database at {redacted(url)} cannot be reached: {said}")
