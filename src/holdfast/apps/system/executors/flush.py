"""Flush: finished rows of a ledger that are old enough become Parquet files, and leave the table.

Batch by batch, and in this order: the rows are locked, the files written, synced and published, exactly these
rows deleted and that committed, the files entered in the manifest. Each file tells the number of that
transaction. Wherever it is cut off, the next run asks how the transaction has ended and puts the archive in
order first (`settle`), so that each row is in exactly one place.

A batch is limited by its rows and by their bytes, together with the rows that go along. It is never in memory
as a whole: rows are streamed from the server and written page by page to temporary files.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeVar, cast

from psycopg.errors import ForeignKeyViolation

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.bench import Bench, Run
from holdfast.apps.system.executors import flush_queries as queries
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.manifest import Entry
from holdfast.apps.system.parameters import Flush
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.apps.system.settle import new_group, new_path, settle
from holdfast.apps.system.source import Connection, Part, Source, owner_of, source_of
from holdfast.errors import Conflict, InvalidInput

T = TypeVar("T")

BATCH_BYTES = 32 * 2**20  # of values: a batch that has as many takes no further rows
READ_ROWS = 1000  # rows of the ledger that one statement reads, at most
PAGE_BYTES, PAGE_ROWS = parquet.GROUP_BYTES, parquet.GROUP
LONGEST = 50_000_000  # hours, which is before any calendar of the database begins


@dataclass
class Draft:
    """The file of one part of a batch, in a temporary file without a name: it goes with the process."""

    part: Part
    file: BinaryIO
    writer: Any
    rows: int = 0
    bytes: int = 0

    def write(self, rows: list[Any]) -> None:
        """Append a page of rows."""
        batch = parquet.batch_of(self.part.about, rows)
        self.writer.write_batch(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def close(self, path: str) -> Entry:
        """Complete the file; return its entry for the manifest."""
        self.writer.close()
        entry = parquet.entry_of(path, self.file)
        assert entry is not None
        assert entry.rows == self.rows
        return entry


@dataclass(frozen=True)
class Batch:
    """What a batch has moved."""

    rows: int
    events: int
    entries: tuple[Entry, ...]


def target(params: Flush) -> str:
    """The ledger, of which there is one maintainer at a time."""
    return params.ledger


async def check(params: Flush, bench: Bench) -> None:
    """Refuses what is no ledger, whose table is not there, or where nobody could write an archive."""
    declared = bench.registry.ledger(params.ledger)
    parquet.pyarrow()
    _ = bench.archive  # an address that is none is told now
    async with bench.database.connection() as conn:
        source = await source_of(conn, bench.registry, declared)
    if not source.states:
        told = f"every end of {declared.name} waits for a person: there is nothing that may be flushed"
        raise InvalidInput(field="ledger", message=told)


async def run(params: Flush, run: Run, step: Step = unwatched) -> str:
    """Moves everything that was finished before the limit; answers how many rows went into how many files."""
    bench = run.bench
    declared = bench.registry.ledger(params.ledger)
    rows = events = files = 0
    conn = await bench.database.connect("flush")
    try:
        source = await source_of(conn, bench.registry, declared)
        found = await settle(conn, bench.archive, source, step)
        for path in found.unreadable:
            run.note(f"{path} is no file that anybody can read, and stays where it is", "WARN")
        if found.entered or found.removed:
            run.note(f"put in order: {found.entered} files entered, {found.removed} removed")
        until = await _until(conn, source, params)
        while batch := await _batch(conn, bench, source, params, until, run.id, step):
            rows, events, files = rows + batch.rows, events + batch.events, files + len(batch.entries)
            await run.progress(rows, None, "rows")
    finally:
        await asyncio.shield(conn.close())
    return _told(rows, events, files)


async def count(conn: Connection, bench: Bench, params: Flush, most: int) -> int:
    """How many rows a flush would move, counted up to `most`."""
    source = await source_of(conn, bench.registry, bench.registry.ledger(params.ledger))
    given = {"states": list(source.states), "until": await _until(conn, source, params), "rows": most}
    ((found,),) = await (await conn.execute(source.count(), given)).fetchall()
    return found


def _told(rows: int, events: int, files: int) -> str:
    if not rows:
        return "0 rows"
    beside = f" and {_count(events, 'event')}" if events else ""
    return f"{_count(rows, 'row')}{beside} to {_count(files, 'file')}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


async def _until(conn: Connection, source: Source, params: Flush) -> str:
    seconds = min(params.older_than_hours, LONGEST) * 3600.0
    cursor = await conn.execute(queries.UNTIL[source.ledger.times.kind], {"seconds": seconds})
    ((until,),) = await cursor.fetchall()
    return until


async def _batch(
    conn: Connection, bench: Bench, source: Source, params: Flush, until: str, job: str, step: Step
) -> Batch | None:
    """Moves one batch; None when nothing is left."""
    table, archive = source.declared.table, bench.archive
    owner = await owner_of(conn, source.schema)
    try:
        async with conn.transaction():
            await conn.execute(queries.PATIENT)
            keys = await _pick(conn, source, params, until, job)
            if not keys:
                return None
            await step("locked")
            ours = {"xid": await _xid(conn, bench), "owner": owner}
            with ExitStack() as files:
                drafts = [_draft(files, part, ours) for part in source.parts]
                keys = await _read(conn, drafts, keys)
                for part in source.parts:  # under locks that hold off whoever wants to change the tables
                    await bench.registry.must_be(conn, part.declared, part.definition)
                await manifests.claim(archive, table, owner)
                entries = await _publish(archive, table, drafts, step)
            await step("published")
            deleted = (await conn.execute(source.rows.render(queries.DELETE), {"keys": keys})).rowcount
            if deleted != len(keys):
                raise RuntimeError(f"{deleted} rows of {table} went and {len(keys)} were written: none goes")
            await step("deleted")
    except ForeignKeyViolation as error:
        message = f"its rows are referred to: {error.diag.message_primary}"
        raise Conflict(what=table, message=message) from None
    await step("committed")
    await _to_its_end(manifests.enter(archive, table, entries))  # the rows have left the table
    await step("entered")
    events = sum(entry.rows for entry in entries if entry.kind == "events")
    return Batch(len(keys), events, tuple(entries))


async def _pick(conn: Connection, source: Source, params: Flush, until: str, job: str) -> list[str]:
    """Locks the rows of a batch, and leaves out those to which somebody has come to refer until then."""
    given = {
        "states": list(source.states),
        "until": until,
        "rows": params.batch_rows,
        "running": job if source.declared.name == NAME else None,
    }
    while picked := await (await conn.execute(source.pick(), given)).fetchall():
        keys = {"keys": [key for (key,) in picked]}
        found = await (await conn.execute(source.still_picked(), given | keys)).fetchall()
        if found:
            return [key for (key,) in found]
    return []


def _draft(files: ExitStack, part: Part, ours: dict[str, str | None]) -> Draft:
    own = replace(part, about=replace(part.about, **ours))
    file = cast("BinaryIO", files.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115
    return Draft(own, file, files.enter_context(parquet.writer(file, own.about)))


async def _read(conn: Connection, drafts: list[Draft], keys: list[str]) -> list[str]:
    """Write the rows of these keys, and what goes along, until they are many bytes; return whose that were.

    Each statement reads twice as many rows as the one before: large ones are noticed early.
    """
    taken, ahead = 0, 1
    while taken < len(keys) and sum(draft.bytes for draft in drafts) < BATCH_BYTES:
        chosen = keys[taken : taken + ahead]
        for draft in drafts:
            await _read_part(conn, draft, chosen)
        taken, ahead = taken + len(chosen), min(2 * ahead, READ_ROWS)
    return keys[:taken]


async def _read_part(conn: Connection, draft: Draft, keys: list[str]) -> None:
    query = draft.part.render(queries.READ, columns=draft.part.reading())
    page, size = list[Any](), 0
    async with conn.cursor() as cursor:
        stream = cast("AsyncGenerator[Any]", cursor.stream(query, {"keys": keys}))
        async with aclosing(stream):  # an error must not leave the connection with rows to come
            async for row in stream:
                page.append(row)
                size += sum(len(value) for value in row if isinstance(value, str | bytes))
                if size >= PAGE_BYTES or len(page) >= PAGE_ROWS:
                    await _to_its_end(asyncio.to_thread(draft.write, page))  # else it is closed meanwhile
                    page, size = [], 0
    if page:
        await _to_its_end(asyncio.to_thread(draft.write, page))


async def _xid(conn: Connection, bench: Bench) -> str:
    """The number of the transaction; it is written out, as a crash of the server would give it to another."""
    ((xid,),) = await (await conn.execute(queries.XID)).fetchall()
    async with bench.database.connection() as other:
        await other.execute(queries.WRITE_OUT)
    return xid


async def _publish(archive: Archive, table: str, drafts: list[Draft], step: Step) -> list[Entry]:
    """Publishes the files of a batch, that of the ledger's own rows last: it tells that all are there."""
    group, entries = new_group(), list[Entry]()
    for draft in drafts:
        if draft.rows:
            path = new_path(table, draft.part.about.table, group)
            entry = await _to_its_end(asyncio.to_thread(draft.close, path))
            await archive.put(entry.path, draft.file, step)
            entries.append(entry)
    return entries


async def _to_its_end(work: Awaitable[T]) -> T:
    """Wait for the end of this also if the job is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
