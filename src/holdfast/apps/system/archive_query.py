"""Asks an archive in SQL, by DuckDB: every archived table is a view under its own name. Reads, and no more.

DuckDB sees the listed files as tables of Arrow's and nothing else: no file, no network, no extension and no
setting can be reached from a statement, and what it says in an error names no path. One statement is run, a
SELECT, with a limit of memory, time and rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.apps.system import archive_queries as queries
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.manifest import ColumnType, Entry
from holdfast.apps.system.places import Archive
from holdfast.errors import Conflict, InvalidInput, MissingExtra

MEMORY = "512MB"
SECONDS = 60.0
ROWS = 10_000  # of an answer
TRIES = 20  # at an archive whose files are exchanged while they are read
PINNED = 500  # files that are held open while they are read; where there are more, compact them

Opened: TypeAlias = tuple[Path, Any, tuple[ColumnType, ...]]  # a file, and what is read: it, or its path
Tables: TypeAlias = dict[str, list[Opened]]


@dataclass(frozen=True)
class Answer:
    """What was found. `cut`: there is more than an answer holds."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    cut: bool = False


@dataclass(frozen=True)
class Archived:
    """What is archived of a table."""

    table: str
    files: int
    rows: int
    bytes: int
    first: Any
    last: Any


async def archived(archive: Archive) -> list[Archived]:
    """Every archived table with its counts; what went with its rows is a table of its own."""
    listed: dict[str, list[Entry]] = {}
    for table in await manifests.tables(archive):
        for entry in (await manifests.read(archive, table)).files:
            listed.setdefault(entry.table, []).append(entry)
    return [_summed(table, files) for table, files in sorted(listed.items())]


def _summed(table: str, files: Sequence[Entry]) -> Archived:
    return Archived(
        table=table,
        files=len(files),
        rows=sum(entry.rows for entry in files),
        bytes=sum(entry.bytes for entry in files),
        first=min((entry.first for entry in files if entry.first), default=None),
        last=max((entry.last for entry in files if entry.last), default=None),
    )


async def query(archive: Archive, sql: str, *, rows: int = ROWS, seconds: float = SECONDS) -> Answer:
    """The answer to one SELECT over everything that is archived; `InvalidInput` if it is none, or wrong."""
    duckdb = _duckdb()
    parquet.pyarrow()
    with tempfile.TemporaryDirectory(prefix="holdfast-archive-") as folder:
        for tried in range(1, TRIES + 1):
            try:
                tables = await _tables(archive, Path(folder))
                return await _ask(duckdb, tables, sql, rows, seconds)
            except FileNotFoundError:
                if tried == TRIES:  # else the files were exchanged for others: those are read now
                    raise
    raise AssertionError("the last try answers or raises")


async def _tables(archive: Archive, folder: Path) -> Tables:
    """The files of every table, opened: so a file that is removed while we read it is read to its end."""
    listed = [
        entry
        for table in await manifests.tables(archive)
        for entry in (await manifests.read(archive, table)).files
    ]
    found: Tables = {}
    for entry in listed:
        path = await archive.local(entry.path, folder)
        file = path if len(listed) > PINNED else await asyncio.to_thread(parquet.pyarrow().OSFile, str(path))
        found.setdefault(entry.table, []).append((path, file, entry.columns))
    return found


async def _ask(duckdb: Any, tables: Tables, sql: str, rows: int, seconds: float) -> Answer:
    """In a thread, which is told to stop when its time is over or nobody waits any more."""
    conn = duckdb.connect(":memory:", config={**queries.OPEN, "memory_limit": MEMORY})
    late = threading.Event()

    def stop() -> None:
        late.set()
        with contextlib.suppress(duckdb.Error):  # it has just ended
            conn.interrupt()

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), stop)
    timer.start()
    try:
        return await asyncio.shield(
            asyncio.ensure_future(asyncio.to_thread(_run, duckdb, conn, tables, sql, rows))
        )
    except asyncio.CancelledError:
        stop()
        raise
    except (duckdb.Error, parquet.pyarrow().ArrowException) as error:
        if late.is_set():
            raise InvalidInput(field="sql", message=f"takes longer than {seconds:g} s") from None
        if any(file is path and not path.exists() for files in tables.values() for path, file, _ in files):
            raise FileNotFoundError from None
        if isinstance(error, duckdb.Error):
            raise InvalidInput(field="sql", message=_said(error, sorted(tables))) from None
        raise Conflict(what="the archive", message="has a file that cannot be read") from None
    finally:
        timer.cancel()


def _run(duckdb: Any, conn: Any, tables: Tables, sql: str, rows: int) -> Answer:
    with conn:
        for number, (table, files) in enumerate(sorted(tables.items())):
            _view(conn, f"holdfast_{number}", table, files)
        for statement in queries.CLOSED:
            conn.execute(statement)
        statements = conn.extract_statements(sql)
        shown = re.match(r"\s*show\b", sql, re.IGNORECASE)  # a SELECT to DuckDB, of names that are its own
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT or shown:
            raise InvalidInput(field="sql", message="must be one SELECT, and nothing else")
        found = conn.sql(sql)
        reader = getattr(found, "to_arrow_reader", None) or found.fetch_record_batch  # the older name
        return _answer(reader(1000), rows)


def _answer(reader: Any, rows: int) -> Answer:
    names = tuple(reader.schema.names)
    found: list[tuple[Any, ...]] = []
    for batch in reader:
        columns = [_shown(batch.column(place)) for place in range(len(names))]
        found += zip(*columns, strict=True)
        if len(found) > rows:
            return Answer(names, tuple(found[:rows]), cut=True)
    return Answer(names, tuple(found))


def _shown(array: Any) -> list[Any]:
    pa = parquet.pyarrow()
    if pa.types.is_timestamp(array.type):
        zoned = "timestamp with time zone" if array.type.tz else "timestamp without time zone"
        return [parquet.natural(zoned, value) for value in parquet.plain_values(array)]
    if pa.types.is_date32(array.type):
        return [parquet.natural("date", value) for value in parquet.plain_values(array)]
    return array.to_pylist()


def _view(conn: Any, name: str, table: str, files: Sequence[Opened]) -> None:
    """The table as a view; a column that came later is NULL in files from before."""
    dataset = import_module("pyarrow.dataset")
    about = parquet.About(kind="rows", table=table, key="", columns=_all_columns(files))
    schema, form = parquet.schema_of(about).remove_metadata(), dataset.ParquetFileFormat()
    local = import_module("pyarrow.fs").LocalFileSystem()
    fragments = [
        form.make_fragment(str(path), local) if file is path else form.make_fragment(file)
        for path, file, _ in files
    ]
    conn.register(name, dataset.FileSystemDataset(fragments, schema, form))
    schema_name, dot, bare = table.rpartition(".")
    if dot:
        conn.execute(queries.SCHEMA.format(schema=_quoted(schema_name)))
    where = f"{_quoted(schema_name)}.{_quoted(bare)}" if dot else _quoted(table)
    conn.execute(queries.VIEW.format(name=where, source=_quoted(name)))


def _all_columns(files: Sequence[Opened]) -> tuple[ColumnType, ...]:
    """Every column that a file has, with the type that the newest gives it."""
    types = {one.name: one for _, _, columns in files for one in columns}
    return tuple(types.values())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _said(error: Exception, known: Sequence[str]) -> str:
    """The first line of what DuckDB says, which repeats the statement below it; of a table our own words."""
    if missing := re.search(r'Table with name "?([^"\s]{1,200}?)"? does not exist', str(error)):
        told = f"there are {', '.join(known)}" if known else "the archive is empty"
        return f"nothing of {missing[1]} is archived yet; {told}"
    return str(error).strip().partition("\n")[0][:500]


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError:
        raise MissingExtra(what="a query of the archive", extra="system") from None
