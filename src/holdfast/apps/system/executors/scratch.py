"""The scratch of a restore: a database of its own, and a schema under another name in the real one.

A dump names its schema, and pg_restore cannot give it another name. So it is restored under its own name
where nothing else is, renamed there, and moved over. Database and schema have one name, which a lock guards:
what is found under it by whoever has the lock was left by somebody who is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row
from psycopg.sql import SQL, Composed, Identifier, Literal

from holdfast.apps.system import backups
from holdfast.apps.system.backups import Manifest, Table
from holdfast.apps.system.bench import target_lock
from holdfast.apps.system.executors import backup_queries, contents
from holdfast.apps.system.executors import restore_queries as queries
from holdfast.apps.system.executors.backup import pattern
from holdfast.apps.system.executors.contents import Connection, Progress, Seldom, direct
from holdfast.apps.system.programs import Program, Programs, server_of
from holdfast.db import pool
from holdfast.errors import InvalidBackup

if TYPE_CHECKING:
    from holdfast.apps.system.bench import Bench

PREFIX = "holdfast_restore_"
TIMEOUT_SINCE = 17  # the version of PostgreSQL since which there is a setting transaction_timeout
HEADER = 2**16  # bytes in which a script's settings come
PROVIDERS = {"c": "libc", "i": "icu", "b": "builtin"}


@dataclass(frozen=True, kw_only=True)
class Locale:
    """The real database, as far as the scratch must be like it."""

    number: int
    name: str
    encoding: str
    collate: str
    ctype: str
    provider: str
    locale: str | None


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The scratch of one target. `own`: whether things get the owners that the backup names.

    `server` is libpq's number for the server's version.
    """

    bench: Bench
    name: str
    like: Locale
    programs: Programs
    server: int
    own: bool

    # -- making and removing ---------------------------------------------------------------------

    async def create(self, conn: Connection, manifest: Manifest) -> None:
        """Makes the database, with the extensions that the dump needs."""
        await conn.execute(_create(self.name, self.like))
        async with await self.connect() as inside:
            # A new database has a schema already, whose name may be the one that the dump makes.
            if await contents.schema_exists(inside, manifest.schema):
                await inside.execute(SQL(queries.DROP_SCHEMA).format(name=Identifier(manifest.schema)))
                await inside.execute(queries.OPEN_TO_ALL)
            for extension in manifest.extensions:
                schema, name = Identifier(extension.schema), Identifier(extension.name)
                if not extension.schema.startswith("pg_"):
                    await inside.execute(SQL(queries.CREATE_SCHEMA).format(name=schema))
                await inside.execute(SQL(queries.CREATE_EXTENSION).format(name=name, schema=schema))

    async def clear(self, conn: Connection) -> None:
        """Removes the database and the schema, and whoever still works on them; both may be missing."""
        await _clear(conn, self.name)

    async def connect(self) -> AbstractAsyncContextManager[Connection]:
        """A connection into the scratch database, for `async with await`."""
        database = self.bench.database
        assert database.listen_url is not None
        url = make_conninfo(database.listen_url, dbname=self.name)
        settings = replace(database.settings, database_pooler="none", schema=None)
        return await pool.connect(settings, url, purpose="restore")

    # -- filling -------------------------------------------------------------------------------

    async def fill(self, place: Path, manifest: Manifest, progress: Progress) -> None:
        """Restores the dump into the scratch database, under its own name."""
        (file,) = manifest.files
        chunks = _paced(backups.read_file(place, file, manifest.compression), progress, "bytes read")
        await self._pour(chunks, self.name, "--exit-on-error")
        async for _ in chunks:  # a program may not want the last bytes: the sum does
            pass

    async def rename(self, old: str) -> None:
        """Gives the schema its scratch name, in the scratch database."""
        async with await self.connect() as inside:
            rename = SQL(queries.RENAME).format(name=Identifier(old), new=Identifier(self.name))
            await inside.execute(rename)

    async def move(self, progress: Progress) -> None:
        """Copies the schema into the real database, under its scratch name: whole, or not at all."""
        reading = ["--format=custom", "--compress=0", "--no-password", f"--schema={pattern(self.name)}"]
        async with self._program("pg_dump", reading, self.name) as dumping:
            # Through our hands: when we are killed, neither program can go on to a good end.
            chunks = _counted(dumping.chunks(), progress, "bytes moved")
            await self._pour(chunks, self.like.name, "--single-transaction")
            await dumping.ended()

    async def _pour(self, chunks: AsyncGenerator[bytes], dbname: str, how: str) -> None:
        """Restores a dump into a database; nothing that goes wrong on the way is passed over."""
        arguments = ["--no-password", "--no-tablespaces", *([] if self.own else ["--no-owner"])]
        target = f"--dbname={make_conninfo(dbname=dbname)}"
        if not self.aged:
            async with self._program(
                "pg_restore", [*arguments, how, target], dbname, reads=True
            ) as restoring:
                await restoring.feed(chunks)
                await restoring.ended()
            return
        single = [how] if how == "--single-transaction" else []
        telling = ["--no-psqlrc", "--quiet", "--output=/dev/null", "--set=ON_ERROR_STOP=1", *single, target]
        async with (
            self._program("pg_restore", [*arguments, "--file=-"], dbname, reads=True) as writing,
            self._program("psql", telling, dbname, reads=True) as reading,
        ):
            await _both(writing.feed(chunks), reading.feed(_understood(writing.chunks())))
            await writing.ended()
            await reading.ended()

    @property
    def aged(self) -> bool:
        """Whether the server is older than what its programs write: it does not know their last setting."""
        return self.programs.version >= TIMEOUT_SINCE > self.server // 10_000

    def _program(self, name: str, arguments: list[str], dbname: str, *, reads: bool = False) -> Program:
        server = server_of(self.bench.database, name=self.name, dbname=dbname)
        return Program(self.programs.folder / name, arguments, server, reads=reads)

    # -- comparing -----------------------------------------------------------------------------

    async def compare_inside(self, manifest: Manifest, progress: Progress) -> None:
        """`InvalidBackup` unless the scratch database has what the manifest says."""
        async with await self.connect() as conn:
            await _compare(conn, manifest.schema, manifest, progress)

    async def compare_moved(self, manifest: Manifest, progress: Progress) -> None:
        """`InvalidBackup` unless the scratch schema has what the manifest says.

        The planner gets its numbers, too: workers meet the tables as soon as they are in place.
        """
        async with await direct(self.bench.database, "restore") as conn:
            await conn.execute(queries.UNLIMITED)
            await _compare(conn, self.name, manifest, progress)
            for table in manifest.tables:
                await conn.execute(SQL(queries.ANALYZE).format(table=Identifier(self.name, table.name)))


async def locale_of(conn: Connection) -> Locale:
    """The database that the connection leads to."""
    async with conn.cursor(row_factory=class_row(Locale)) as cursor:
        await cursor.execute(queries.LOCALE)
        found = await cursor.fetchone()
    assert found
    return found


def scratch_name(like: Locale, target: str) -> str:
    """The name of the scratch of a target: the same for every restore into it, and no other's."""
    return f"{PREFIX}{like.number}_{hashlib.sha256(target.encode()).hexdigest()[:12]}"


async def remove_leftovers(bench: Bench, conn: Connection, like: Locale, mine: str) -> None:
    """Removes the scratch of restores that were killed: ours, and any whose lock nobody holds."""
    await _clear(conn, mine)
    prefix = f"{PREFIX}{like.number}_"
    for (name,) in await (await conn.execute(queries.LEFTOVERS, {"prefix": prefix})).fetchall():
        async with target_lock(bench, name) as free:
            if free is not None:
                await _clear(conn, name)


async def _clear(conn: Connection, name: str) -> None:
    await conn.execute(queries.END_PROGRAMS, {"name": name})
    await conn.execute(SQL(queries.DROP_DATABASE).format(name=Identifier(name)))
    await conn.execute(SQL(queries.DROP_SCHEMA).format(name=Identifier(name)))


def _create(name: str, like: Locale) -> Composed:
    query = SQL(queries.CREATE_DATABASE).format(
        name=Identifier(name),
        encoding=Literal(like.encoding),
        collate=Literal(like.collate),
        ctype=Literal(like.ctype),
        provider=Identifier(PROVIDERS[like.provider]),
    )
    match like.provider:
        case "i":
            return query + SQL(queries.ICU).format(locale=Literal(like.locale))
        case "b":
            return query + SQL(queries.BUILTIN).format(locale=Literal(like.locale))
        case _:
            return query


async def _compare(conn: Connection, schema: str, manifest: Manifest, progress: Progress) -> None:
    async with conn.transaction():
        await conn.execute(backup_queries.LASTING)
        present = set(await contents.tables_of(conn, schema))
        if missing := [table.name for table in manifest.tables if table.name not in present]:
            raise InvalidBackup(message=f"the dump lacks what its manifest names: {', '.join(missing)}")
        names = [table.name for table in manifest.tables]
        found = await contents.count_rows(conn, schema, names, progress)
    if amiss := [_tell(*pair) for pair in zip(manifest.tables, found, strict=True) if pair[0] != pair[1]]:
        raise InvalidBackup(message=f"what was restored is not what was backed up: {'; '.join(amiss)}")


def _tell(wanted: Table, found: Table) -> str:
    if wanted.rows != found.rows:
        return f"{wanted.name} has {found.rows} rows, and had {wanted.rows}"
    return f"{wanted.name} has other values"


async def _paced(chunks: Iterator[bytes], progress: Progress, what: str) -> AsyncGenerator[bytes]:
    """What a blocking reader reads, in a thread, told now and then."""
    done, seldom = 0, Seldom()
    while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
        yield chunk
        done += len(chunk)
        if seldom:
            await progress(done, None, what)


async def _counted(chunks: AsyncGenerator[bytes], progress: Progress, what: str) -> AsyncGenerator[bytes]:
    done, seldom = 0, Seldom()
    async for chunk in chunks:
        yield chunk
        done += len(chunk)
        if seldom:
            await progress(done, None, what)


async def _both(*works: Coroutine[Any, Any, None]) -> None:
    """Does several things at once; the first that fails ends the others, and is what is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _understood(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """A script without the setting that old servers do not know. It is in the script's first lines."""
    first: bytes | None = b""
    async for chunk in chunks:
        if first is not None:
            first += chunk
            if len(first) < HEADER and b"SET client_encoding" not in first:
                continue
            chunk, first = first.replace(b"SET transaction_timeout = 0;\n", b"", 1), None
        yield chunk
    if first:
        yield first
