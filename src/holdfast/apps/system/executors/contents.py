"""What a schema holds and needs, asked of the catalogue: tables, rows and their sums, roles, extensions."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row
from psycopg.sql import SQL, Identifier

from holdfast.apps.system.backups import Extension, Table
from holdfast.apps.system.executors import backup_queries as queries
from holdfast.db.database import Database, revision
from holdfast.errors import InvalidInput

Connection = AsyncConnection[Any]
Progress = Callable[[int, int | None, str], Awaitable[None]]
Step = Callable[[str], Awaitable[None]]


EVERY = 1.0  # seconds


async def no_step(_: str) -> None:
    """Nothing happens between two steps; a test may want something to."""


class Seldom:
    """True once a second: what is done for every piece of a stream need not be told for every piece."""

    def __init__(self) -> None:
        self._next = time.monotonic() + EVERY

    def __bool__(self) -> bool:
        now = time.monotonic()
        due = now >= self._next
        if due:
            self._next = now + EVERY
        return due


def direct(database: Database, purpose: str) -> Awaitable[AbstractAsyncContextManager[Connection]]:
    """A connection of one's own, past any pooler, for `async with await`."""
    return database.connect_direct(purpose)


def refuse_system(field: str, schema: str) -> None:
    """`InvalidInput` for a schema that is the server's own, or our scratch."""
    if not schema.strip() or "\0" in schema or len(schema.encode()) > 63:
        raise InvalidInput(field=field, message=f"{schema!r} cannot be the name of a schema")
    if schema.lower().startswith("pg_") or schema.lower() == "information_schema":
        raise InvalidInput(field=field, message=f"{schema} is a schema of PostgreSQL itself")
    if schema.startswith("holdfast_restore_"):
        raise InvalidInput(field=field, message=f"{schema} is what an unfinished restore has left")


async def schema_exists(conn: Connection, schema: str) -> bool:
    """Whether there is such a schema."""
    return bool(await scalar(conn, queries.SCHEMA_EXISTS, schema=schema))


async def revision_of(conn: Connection) -> str | None:
    """The revision that Holdfast is at here, also within a transaction; None where it is not installed."""
    return await revision(conn) if await scalar(conn, queries.INSTALLED) else None


async def tables_of(conn: Connection, schema: str) -> list[str]:
    """The tables of a schema that have rows of their own."""
    return await _column(conn, queries.TABLES, schema=schema)


async def lockable(conn: Connection, schema: str) -> list[str]:
    """The same, and those that are made of partitions."""
    return await _column(conn, queries.LOCKABLE, schema=schema)


async def outward(conn: Connection, schema: str) -> list[str]:
    """What of the schema needs something outside of it, as sentences."""
    return await _column(conn, queries.OUTWARD, schema=schema)


async def inward(conn: Connection, schema: str) -> list[str]:
    """What outside of the schema needs something in it, as sentences."""
    return await _column(conn, queries.INWARD, schema=schema)


async def naming(conn: Connection, schema: str) -> list[str]:
    """The functions, none of ours, whose text names their schema."""
    return await _column(conn, queries.NAMING, schema=schema, naming=naming_pattern(schema))


def naming_pattern(schema: str) -> str:
    """What finds a text that names the schema: before a dot, or as a text of its own."""
    name = re.escape(schema)
    return rf"""(^|[^A-Za-z0-9_])"?{name}"?\s*\.|'{name}'"""


async def referring(conn: Connection, schema: str, tables: Sequence[str]) -> list[str]:
    """Which of these tables refer to others than these, as sentences."""
    return await _column(conn, queries.REFERRING, schema=schema, tables=list(tables))


async def leading_out(conn: Connection, schema: str, tables: Sequence[str]) -> list[str]:
    """The columns of these tables that name (as regclass does) schemas, or what is in another schema.

    The transaction must have been made lasting.
    """
    found: list[str] = []
    await conn.execute(queries.PATH, {"path": Identifier(schema).as_string(conn)})
    for table, column, schemas in await (await conn.execute(queries.OF_NAMES, {"schema": schema})).fetchall():
        names = {"table": Identifier(schema, table), "column": Identifier(column)}
        if table in tables and (schemas or await scalar(conn, SQL(queries.ELSEWHERE).format(**names))):
            found.append(f"{table}.{column}")
    await conn.execute(queries.PATH, {"path": "pg_catalog"})
    return found


async def extensions(conn: Connection, schema: str) -> tuple[Extension, ...]:
    """The extensions that the schema uses."""
    async with conn.cursor(row_factory=class_row(Extension)) as cursor:
        await cursor.execute(queries.EXTENSIONS, {"schema": schema})
        return tuple(await cursor.fetchall())


@dataclass(frozen=True)
class Roles:
    """The roles that own something of a schema, and those that may do something with it."""

    owners: tuple[str, ...]
    granted: tuple[str, ...]


async def roles(conn: Connection, schema: str) -> Roles:
    """The roles that a schema's dump will name."""
    found = await (await conn.execute(queries.ROLES, {"schema": schema})).fetchall()
    owners = tuple(name for name, owns, _ in found if owns)
    return Roles(owners, tuple(name for name, _, may in found if may))


async def count_rows(
    conn: Connection, schema: str, tables: Sequence[str], progress: Progress | None = None
) -> tuple[Table, ...]:
    """The rows of these tables and their sums, as the connection's transaction sees them.

    The transaction must have been made lasting (`queries.LASTING`), or values may look otherwise.
    """
    counted: list[Table] = []
    await conn.execute(queries.PATH, {"path": Identifier(schema).as_string(conn)})
    for name in tables:
        query = SQL(queries.COUNT).format(table=Identifier(schema, name))
        ((rows, checksum),) = await (await conn.execute(query)).fetchall()
        counted.append(Table(name=name, rows=rows, checksum=checksum))
        if progress:
            await progress(len(counted), len(tables), "tables counted")
    await conn.execute(queries.PATH, {"path": "pg_catalog"})
    return tuple(counted)


async def scalar(conn: Connection, query: Any, **params: Any) -> Any:
    """The first column of the first row."""
    row = await (await conn.execute(query, params)).fetchone()
    return row[0] if row else None


async def _column(conn: Connection, query: Any, **params: Any) -> list[str]:
    return [row[0] for row in await (await conn.execute(query, params)).fetchall()]
