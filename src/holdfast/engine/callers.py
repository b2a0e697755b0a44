"""Runs an enqueue on a connection of the caller's own, inside the caller's transaction, whatever library it
is from.

An enqueue is a generator that yields what is to be sent and receives the rows. Here it meets a connection.
Of the libraries only psycopg is imported: a connection of another is known by the names of its class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from psycopg import AsyncCursor, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from holdfast.engine import sql
from holdfast.errors import InvalidInput

Answer = TypeVar("Answer")
Found: TypeAlias = Sequence[Mapping[str, Any]]  # rows by the names of their columns


@dataclass(frozen=True, eq=False)
class Query:
    """A statement and its named parameters, in psycopg's spelling. Without `rows` it answers with none."""

    sql: bytes
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rows: bool = True


Steps: TypeAlias = Generator[Query, Found, Answer]

SAVE, UNDO, KEEP = (Query(text.encode(), rows=False) for text in (sql.SAVE, sql.UNDO, sql.KEEP))
# The same where the connection commits each statement by itself: there is nothing to make a savepoint in.
ALONE: Mapping[Query, Query] = {
    SAVE: Query(sql.BEGIN.encode(), rows=False),
    UNDO: Query(sql.RESTART.encode(), rows=False),
    KEEP: Query(sql.COMMIT.encode(), rows=False),
}

# Each is the first part of a module's name, and the name of a class in it: the caller's, or a base of it.
SYNC = {
    ("psycopg", "Connection"): "psycopg's Connection",
    ("psycopg2", "connection"): "psycopg2's connection",
    ("sqlalchemy", "Connection"): "SQLAlchemy's Connection",
    ("sqlalchemy", "Session"): "SQLAlchemy's Session",
    ("sqlalchemy", "scoped_session"): "SQLAlchemy's scoped_session",
    ("django", "BaseDatabaseWrapper"): "Django's connection",
    ("django", "ConnectionProxy"): "Django's connection",
}
ASYNC = {
    ("psycopg", "AsyncConnection"): "psycopg's AsyncConnection",
    ("asyncpg", "Connection"): "asyncpg's Connection",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg's Connection",
    ("sqlalchemy", "AsyncConnection"): "SQLAlchemy's AsyncConnection",
    ("sqlalchemy", "AsyncSession"): "SQLAlchemy's AsyncSession",
    ("sqlalchemy", "async_scoped_session"): "SQLAlchemy's async_scoped_session",
}


def all_or_none(steps: Steps[Answer]) -> Steps[Answer]:
    """The steps as one whole: when they fail, they are undone and the caller's transaction goes on."""
    yield SAVE
    try:
        answer = yield from steps
    except GeneratorExit:
        raise
    except BaseException:
        with suppress(Exception):  # the connection may be gone, and with it what was done
            yield UNDO
            yield KEEP
        raise
    yield KEEP
    return answer


async def run(conn: Any, steps: Steps[Answer]) -> Answer:
    """Takes the steps on an async connection, and answers as they do."""
    library, name = _class_of(conn, ASYNC)
    if library == "sqlalchemy":
        inner = conn if name == "AsyncConnection" else await conn.connection()
        return await inner.run_sync(run_sync, steps)
    send, alone = (_psycopg_async, _psycopg_alone) if library == "psycopg" else (_asyncpg, _asyncpg_alone)
    words: Mapping[Query, Query] = {}
    try:
        query = next(steps)
        while True:
            if query is SAVE and alone(conn):
                words = ALONE
            try:
                found = await send(conn, words.get(query, query))
            except BaseException as error:
                query = steps.throw(error)
            else:
                query = steps.send(found)
    except StopIteration as end:
        return end.value


def run_sync(conn: Any, steps: Steps[Answer]) -> Answer:
    """Takes the steps on a connection that is not async, and answers as they do."""
    send, alone = WAYS[_class_of(conn, SYNC)[0]]
    words: Mapping[Query, Query] = {}
    try:
        query = next(steps)
        while True:
            if query is SAVE and alone(conn):
                words = ALONE
            try:
                found = send(conn, words.get(query, query))
            except BaseException as error:
                query = steps.throw(error)
            else:
                query = steps.send(found)
    except StopIteration as end:
        return end.value


def _class_of(conn: object, wanted: Mapping[tuple[str, str], str]) -> tuple[str, str]:
    """Which of the wanted classes a connection is of, or `InvalidInput`."""
    kind = type(conn)
    found = _known(kind)
    if found is not None and found in wanted:
        return found
    listed = ", ".join(dict.fromkeys(wanted.values()))
    if found is None:
        what = f"is no connection that we know, but {kind.__module__}.{kind.__qualname__}"
    elif wanted is ASYNC:
        what = f"is {SYNC[found]}, which is not async: use enqueue_sync or enqueue_many_sync with it"
    else:
        what = f"is {ASYNC[found]}, which is async: await enqueue or enqueue_many with it"
    raise InvalidInput(field="conn", message=f"{what}; this method takes {listed}")


@cache
def _known(kind: type) -> tuple[str, str] | None:
    names = ((each.__module__.partition(".")[0], each.__name__) for each in kind.__mro__)
    return next((name for name in names if name in SYNC or name in ASYNC), None)


# -- psycopg -----------------------------------------------------------------------------------------------
# A cursor of our own: that of the connection may be one that reads other placeholders.


async def _psycopg_async(conn: Any, query: Query) -> Found:
    async with AsyncCursor(conn, row_factory=dict_row) as cursor:
        await cursor.execute(query.sql, query.params)
        return await cursor.fetchall() if query.rows else ()


def _psycopg(conn: Any, query: Query) -> Found:
    with Cursor(conn, row_factory=dict_row) as cursor:
        cursor.execute(query.sql, query.params)
        return cursor.fetchall() if query.rows else ()


def _psycopg_alone(conn: Any) -> bool:
    return conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE


# -- asyncpg -----------------------------------------------------------------------------------------------


async def _asyncpg(conn: Any, query: Query) -> Found:
    text, names = _numbered(query.sql)
    return await conn.fetch(text, *(query.params[name] for name in names))


def _asyncpg_alone(conn: Any) -> bool:
    return not conn.is_in_transaction()


# -- SQLAlchemy --------------------------------------------------------------------------------------------
# Its own transaction begins with the first statement that it sees, so all of ours go through it.


def _sqlalchemy(conn: Any, query: Query) -> Found:
    conn = _sqlalchemy_connection(conn)
    if conn.dialect.paramstyle == "numeric_dollar":
        text, names = _numbered(query.sql)
        params: Any = tuple(query.params[name] for name in names)
    else:
        text, params = _percent(query.sql), _as_text(query.params)
    result = conn.exec_driver_sql(text, params or None)
    return result.mappings().all() if query.rows else ()


def _sqlalchemy_connection(conn: Any) -> Any:
    inner = conn if hasattr(conn, "exec_driver_sql") else conn.connection()
    dialect = inner.dialect
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg2", "asyncpg"):
        found = f"{dialect.name}+{dialect.driver}"
        raise InvalidInput(
            field="conn", message=f"leads to {found}: PostgreSQL by psycopg, psycopg2 or asyncpg is needed"
        )
    return inner


def _sqlalchemy_alone(conn: Any) -> bool:
    raw = _sqlalchemy_connection(conn).connection
    if not raw.dbapi_connection.autocommit:
        return False
    driver = raw.driver_connection
    return _asyncpg_alone(driver) if hasattr(driver, "is_in_transaction") else _psycopg_alone(driver)


# -- Django and psycopg2 -----------------------------------------------------------------------------------


def _django(conn: Any, query: Query) -> Found:
    if conn.vendor != "postgresql":
        raise InvalidInput(field="conn", message=f"leads to {conn.vendor}, and PostgreSQL is needed")
    if query is UNDO:
        conn.needs_rollback = False  # what is broken is mended by this very statement
    try:
        with conn.cursor() as cursor:
            cursor.execute(_percent(query.sql), _as_text(query.params) or None)
            return _named(cursor) if query.rows else ()
    except Exception:
        conn.needs_rollback = conn.in_atomic_block  # as after a failed statement of Django's own
        raise


def _django_alone(conn: Any) -> bool:
    return conn.get_autocommit()


def _psycopg2(conn: Any, query: Query) -> Found:
    plain = sys.modules["psycopg2.extensions"].cursor  # that of the connection may give rows of other kinds
    with conn.cursor(cursor_factory=plain) as cursor:
        cursor.execute(_percent(query.sql), _as_text(query.params) or None)
        return _named(cursor) if query.rows else ()


def _named(cursor: Any) -> Found:
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


WAYS: Mapping[str, tuple[Callable[[Any, Query], Found], Callable[[Any], bool]]] = {
    "psycopg": (_psycopg, _psycopg_alone),
    "psycopg2": (_psycopg2, _psycopg_alone),
    "sqlalchemy": (_sqlalchemy, _sqlalchemy_alone),
    "django": (_django, _django_alone),
}


# -- placeholders ------------------------------------------------------------------------------------------


class _Numbers(dict[bytes, bytes]):
    """Gives each name of a parameter its number, the first time that it is asked for."""

    def __missing__(self, name: bytes) -> bytes:
        self[name] = b"$%d" % (len(self) + 1)
        return self[name]


class _Names(dict[bytes, bytes]):
    """Leaves the name of a parameter as it is, without the mark that only psycopg knows."""

    def __missing__(self, name: bytes) -> bytes:
        return b"%%(%b)s" % name


@lru_cache(1000)
def _numbered(text: bytes) -> tuple[str, tuple[str, ...]]:
    """A statement with $1, $2 … for its placeholders, and the names of these in their order."""
    numbers = _Numbers()
    return (text % numbers).decode(), tuple(name.decode() for name in numbers)


@lru_cache(1000)
def _percent(text: bytes) -> str:
    return (text % _Names()).decode()


def _as_text(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with UUIDs as texts: psycopg2 has no other word for them."""

    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, UUID) else value

    return {
        name: [plain(one) for one in value] if isinstance(value, list) else plain(value)  # pyright: ignore[reportUnknownVariableType]
        for name, value in params.items()
    }
