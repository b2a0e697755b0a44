"""Puts an archive in order after whatever was cut off: each row is then in exactly one place.

Of the files that no manifest names, those of a flush are judged by the table: if one of their rows is still
there, the deletion was never committed, and the file goes; if none is, it was, and the file is entered. The
deletion of a batch is one transaction, so that there is nothing between. Where rows of such a file are there
and others are not, the missing ones were taken away since by somebody else (a retention, an erasure, a
person): the file goes as well, as no row may come back that was removed on purpose, and none be kept twice. A
row is the same if its key and the time of its making are: one that was made anew under an old key is another.

Files that were made from other files (by a compaction or an erasure) count by their manifest alone, and go.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
from psycopg.sql import SQL

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.executors import flush_queries as queries
from holdfast.apps.system.manifest import Entry, Manifest
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.apps.system.source import Connection, Source, owner_of
from holdfast.engine.roles import uuid7

ROWS, FILE, MADE = "rows", ".parquet", "made-"
CHUNK = 5000  # keys of one question


@dataclass(frozen=True)
class Settled:
    """What was found: files that were entered, files that were removed, and those that nobody can read."""

    entered: int = 0
    removed: int = 0
    unreadable: tuple[str, ...] = ()


def new_path(table: str, part: str, group: str, *, made: bool = False) -> str:
    """The path of a new file. `group` is shared by the files of one batch; `made`: out of other files."""
    folder, name = manifests.folder_of(table), "rows" if part == table else manifests.folder_of(part)
    return f"{folder}/{MADE if made else ''}{group}.{name}{FILE}"


def new_group() -> str:
    """What the files of a batch have in common in their names; later ones come later in the alphabet."""
    return uuid7().hex


async def settle(conn: Connection, archive: Archive, source: Source, step: Step = unwatched) -> Settled:
    """Enters or removes what no manifest names, and removes what is unfinished or no longer counts."""
    table = source.declared.table
    await manifests.must_be_of(archive, table, await owner_of(conn, source))
    removed = await archive.sweep(manifests.folder_of(table))
    removed += await manifests.remove_gone(archive, table)
    groups = await _unlisted(archive, table)
    if any(group.startswith(MADE) for group in groups):
        # Whoever made them may still be at it, and must not be able to name what we remove.
        await manifests.update(archive, table, _next)
    entered, unreadable = 0, list[str]()
    for group, paths in groups.items():
        await step("settling")
        if group.startswith(MADE) or f"{ROWS}{FILE}" not in {_part(path) for path in paths}:
            removed += await _remove(archive, paths)  # the rows of a batch come last: none was deleted
            continue
        outcome = await _judge(conn, archive, source, paths)
        entered += len(paths) if outcome else 0
        removed += len(paths) if outcome is False else 0
        unreadable += paths if outcome is None else []
    return Settled(entered, removed, tuple(unreadable))


async def _unlisted(archive: Archive, table: str) -> dict[str, list[str]]:
    """The files that no manifest names, by what they have in common."""
    folder = manifests.folder_of(table)
    there = await archive.list(folder)
    known = {entry.path for entry in (await manifests.read(archive, table)).files}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for path in there:
        if path not in known and path.endswith(FILE) and path.count("/") == 1:
            groups[path.removeprefix(f"{folder}/").partition(".")[0]].append(path)
    return dict(groups)


def _part(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[2]


def _next(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, serial=manifest.serial + 1)


async def _remove(archive: Archive, paths: list[str]) -> int:
    return sum([await archive.delete(path) for path in paths])


async def _judge(conn: Connection, archive: Archive, source: Source, paths: list[str]) -> bool | None:
    """True: it was entered. False: it was removed. None: nobody can read it, and it stays."""
    files = {path: await archive.open(path) for path in paths}
    try:
        entries = [await asyncio.to_thread(parquet.entry_of, path, file) for path, file in files.items()]
        known = [entry for entry in entries if entry is not None]
        rows = next((entry for entry in known if entry.kind == "rows"), None)
        if rows is None or len(known) < len(paths):
            return None
        async with conn.transaction():  # its locks are held until we have acted
            await conn.execute(queries.PATIENT)
            if await _any_there(conn, source, rows, files[rows.path]):
                # The rows go last, as they came: a file of events alone is never judged by itself.
                await _remove(archive, sorted(paths, key=lambda path: path == rows.path))
                return False
            await manifests.enter(archive, source.declared.table, known)
            return True
    finally:
        for file in files.values():
            file.close()


async def _any_there(conn: Connection, source: Source, entry: Entry, file: BinaryIO) -> bool:
    """Whether a row of the file is still in the table."""
    part, made = source.rows, source.ledger.times.created
    names = [one.name for one in entry.columns]
    told = [entry.key, *([made] if made in names and _same_type(source, entry, made) else [])]
    chosen = tuple(one for name in told for one in part.columns if one.name == name)
    if len(chosen) < len(told):
        return False  # the table has another key by now
    query = part.render(queries.STILL_THERE, columns=SQL("{}").format(part.reading(chosen)))
    found = await asyncio.to_thread(lambda: list(parquet.rows_of(file, told)))
    written: set[tuple[Any, ...]] = set(found)
    keys = [str(row[0]) for row in found]
    there = False
    for begin in range(0, len(keys), CHUNK):
        cursor = await conn.execute(query, {"keys": keys[begin : begin + CHUNK]})
        there = any(tuple(row) in written for row in await cursor.fetchall()) or there
    return there


def _same_type(source: Source, entry: Entry, column: str) -> bool:
    types = {one.name: one.type for one in source.rows.columns}
    return any(one.name == column and types.get(column) == one.type for one in entry.columns)
