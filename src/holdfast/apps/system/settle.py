"""Puts an archive in order after whatever was cut off: each row is then in exactly one place.

Of the files that no manifest names, those of a flush tell the transaction that was to delete their rows, and
PostgreSQL knows how that has ended. If it was committed, the files are entered, whatever is in the table now:
a restore may have brought rows back. If it was rolled back, they go, also if none of their rows is there any
more: a retention, an erasure or another flush has taken them since. If it is still going on, they are left to
whoever is at it. A transaction ends once and for all, so that nobody has to hold anything meanwhile.

Where PostgreSQL does not know it any more, or never has (it was another server's), the table is asked: if one
row of the files is still there, the deletion was never committed, and they go; if none is, it was, and they
are entered. A row is the same if its key and the time of its making are: one that was made anew under an old
key is another.

Files that were made from other files (by a compaction or an erasure) count by their manifest alone, and go.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec
from psycopg.errors import DataError
from psycopg.sql import SQL

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.executors import flush_queries as queries
from holdfast.apps.system.manifest import Manifest
from holdfast.apps.system.parquet import About
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.apps.system.source import Connection, Source, owner_of
from holdfast.engine.roles import uuid7

ROWS, FILE, MADE = "rows", ".parquet", "made-"
CHUNK = 5000  # keys of one question
Ended: TypeAlias = Literal["committed", "aborted", "in progress"]


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
    table, owner = source.declared.table, await owner_of(conn, source.schema)
    await manifests.must_be_of(archive, table, owner)
    removed = await archive.sweep(manifests.folder_of(table))
    removed += await manifests.remove_gone(archive, table)
    groups = await _unlisted(archive, table)
    if any(group.startswith(MADE) for group in groups):
        # Whoever made them may still be at it, and must not be able to name what we remove. What he has named
        # since we have looked stays.
        groups = _without(groups, _known(await manifests.update(archive, table, _next)))
    entered, unreadable = 0, list[str]()
    for group, paths in groups.items():
        await step("settling")
        ended = "aborted" if group.startswith(MADE) else await _judge(conn, archive, source, owner, paths)
        entered += len(paths) if ended == "committed" else 0
        removed += await _remove(archive, paths) if ended == "aborted" else 0
        unreadable += paths if ended is None else []
    return Settled(entered, removed, tuple(unreadable))


async def _unlisted(archive: Archive, table: str) -> dict[str, list[str]]:
    """The files that no manifest names, by what they have in common."""
    folder = manifests.folder_of(table)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for path in await archive.list(folder):
        if path.endswith(FILE) and path.count("/") == 1:
            groups[path.removeprefix(f"{folder}/").partition(".")[0]].append(path)
    return _without(groups, _known(await manifests.read(archive, table)))


def _known(manifest: Manifest) -> set[str]:
    """What a manifest names, also as gone: whoever has put it there removes it."""
    return {*(entry.path for entry in manifest.files), *manifest.gone}


def _without(groups: Mapping[str, list[str]], known: set[str]) -> dict[str, list[str]]:
    left = {group: [path for path in paths if path not in known] for group, paths in groups.items()}
    return {group: paths for group, paths in left.items() if paths}


def _next(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, serial=manifest.serial + 1)


async def _remove(archive: Archive, paths: list[str]) -> int:
    """Removes the files of a batch, that of the rows last, as it came: without it the others go, too."""
    return sum([await archive.delete(path) for path in sorted(paths, key=_is_of_rows)])


def _is_of_rows(path: str) -> bool:
    return path.rpartition("/")[2].partition(".")[2] == f"{ROWS}{FILE}"


async def _judge(
    conn: Connection, archive: Archive, source: Source, owner: str | None, paths: list[str]
) -> Ended | None:
    """How the flush of these files has ended; if well, they are entered. None: nobody can read them.

    They were listed before that is asked, so that it is true of all of them.
    """
    files = {path: await archive.open(path) for path in paths}
    try:
        ended = await _asked(conn, owner, files) or await _seen(conn, source, files)
        if ended != "committed":
            return ended
        entries = [await asyncio.to_thread(parquet.entry_of, path, file) for path, file in files.items()]
        known = [entry for entry in entries if entry is not None]
        if len(known) < len(paths):
            return None
        await manifests.enter(archive, source.declared.table, known)
        return ended
    finally:
        for file in files.values():
            file.close()


async def _asked(conn: Connection, owner: str | None, files: Mapping[str, BinaryIO]) -> Ended | None:
    """What PostgreSQL says of the transaction that these files name; None if it does not know."""
    for file in files.values():
        _, about = await asyncio.to_thread(parquet.opened, file)
        if about is not None and about.xid is not None and about.owner == owner:
            try:
                ((ended,),) = await (await conn.execute(queries.ENDED, {"xid": about.xid})).fetchall()
            except DataError:  # a number that is yet to come: the server has gone back to an older state
                return None
            return ended
    return None


async def _seen(conn: Connection, source: Source, files: Mapping[str, BinaryIO]) -> Ended | None:
    """The same by what the table has; None if nobody can read the file of the rows."""
    path = next(filter(_is_of_rows, files), None)
    if path is None:
        return "aborted"  # the rows of a batch come last: none was deleted
    _, about = await asyncio.to_thread(parquet.opened, files[path])
    if about is None:
        return None
    async with conn.transaction():
        await conn.execute(queries.PATIENT)
        return "aborted" if await _any_there(conn, source, about, files[path]) else "committed"


async def _any_there(conn: Connection, source: Source, about: About, file: BinaryIO) -> bool:
    """Whether a row of the file is still in the table."""
    part, made = source.rows, source.ledger.times.created
    names = [one.name for one in about.columns]
    told = [about.key, *([made] if made in names and _same_type(source, about, made) else [])]
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


def _same_type(source: Source, about: About, column: str) -> bool:
    types = {one.name: one.type for one in source.rows.columns}
    return any(one.name == column and types.get(column) == one.type for one in about.columns)
