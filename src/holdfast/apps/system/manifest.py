"""What was archived of a table: one manifest beside its files. A file counts only when a manifest names it.

The manifest is the commit of every change of an archive, since an object store knows no rename: files come
before the manifest that names them, and go after the one that no longer does. It is replaced as a whole, by
who has seen the version that it replaces.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import BinaryIO, Literal
from urllib.parse import quote, unquote

import msgspec

from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.errors import Conflict

VERSION = 1
NAME = "manifest.json"
TRIES = 100  # at a manifest that others change at the same time


class ColumnType(msgspec.Struct, frozen=True):
    """A column of an archived table, and its type in PostgreSQL's words."""

    name: str
    type: str


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `kind`: rows of the table, or of one that goes with it (events); `table` is whose they are.

    `key` is the column by which the table's rows are told apart; of events the one that names their row.
    `first` and `last` are the times between which its rows were finished, as far as they have any.
    """

    path: str
    kind: Literal["rows", "events"]
    table: str
    key: str
    rows: int
    bytes: int
    sha256: str
    columns: tuple[ColumnType, ...]
    first: datetime | None = None
    last: datetime | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files that count, in the order in which they came.

    `gone` are files that no longer count and may still be there: whoever comes next removes them. `serial`
    grows when something is removed that no manifest has named, so that its writer cannot name it any more.
    `owner` is the database and schema whose rows these are: nobody else may judge by his own table.
    """

    table: str
    version: int = VERSION
    owner: str | None = None
    serial: int = 0
    files: tuple[Entry, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows of the table itself there are."""
        return sum(entry.rows for entry in self.files if entry.kind == "rows")

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(entry.bytes for entry in self.files)


class Seen(msgspec.Struct, frozen=True):
    """A manifest, and the version of it that a replacement takes the place of; None: there is none yet."""

    manifest: Manifest
    version: str | None


def folder_of(table: str) -> str:
    """The folder of a table's files."""
    return quote(table, safe="") if not table.startswith(".") else f"%2E{quote(table[1:], safe='')}"


def key_of(table: str) -> str:
    """Where the manifest of a table is."""
    return f"{folder_of(table)}/{NAME}"


async def tables(archive: Archive) -> list[str]:
    """The tables of which something is archived."""
    found = [key.split("/") for key in await archive.list()]
    return sorted(unquote(parts[0]) for parts in found if len(parts) == 2 and parts[1] == NAME)


async def look(archive: Archive, table: str) -> Seen:
    """The manifest of a table; one without files where there is none."""
    kept = await archive.look(key_of(table))
    if kept is None:
        return Seen(Manifest(table=table), None)
    try:
        manifest = msgspec.json.decode(kept.body, type=Manifest)
    except msgspec.DecodeError as error:
        raise Conflict(what=f"the manifest of {table}", message=f"cannot be read: {error}") from None
    if manifest.version > VERSION:
        raise Conflict(what=f"the manifest of {table}", message="was written by a newer version of Holdfast")
    return Seen(manifest, kept.version)


async def read(archive: Archive, table: str) -> Manifest:
    """The manifest of a table."""
    return (await look(archive, table)).manifest


async def exchange(archive: Archive, seen: Seen, manifest: Manifest) -> bool:
    """Puts a manifest in the place of the one that was seen; False if that is no longer there."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return await archive.replace(key_of(manifest.table), body, seen.version)


async def update(archive: Archive, table: str, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Changes a manifest, again and again until nobody else did at the same time.

    An answer may get lost after the change was made: `change` must be one that can be repeated.
    """
    for _ in range(TRIES):
        seen = await look(archive, table)
        changed = change(seen.manifest)
        if changed == seen.manifest or await exchange(archive, seen, changed):
            return changed
    raise OSError(f"the manifest of {table} is changed by others all the time")


async def must_be_of(archive: Archive, table: str, owner: str | None) -> None:
    """Refuses an archive that is another's, by `Conflict`."""
    _compared(await read(archive, table), owner)


async def claim(archive: Archive, table: str, owner: str | None) -> None:
    """The same, and makes one that is nobody's ours: before the first file is there for others to see."""

    def claimed(manifest: Manifest) -> Manifest:
        _compared(manifest, owner)
        return msgspec.structs.replace(manifest, owner=manifest.owner or owner)

    await update(archive, table, claimed)


def _compared(manifest: Manifest, owner: str | None) -> None:
    if None not in (manifest.owner, owner) and manifest.owner != owner:
        message = (
            f"belongs to {manifest.owner}, and this is {owner}: each needs an archive of its own. If it is"
            f' the same that has moved, take "owner" out of {key_of(manifest.table)}'
        )
        raise Conflict(what=f"the archive of {manifest.table}", message=message)


def entered(manifest: Manifest, entries: Iterable[Entry]) -> Manifest:
    """With further files, each once."""
    known = {entry.path for entry in manifest.files}
    new = tuple(entry for entry in entries if entry.path not in known)
    return msgspec.structs.replace(manifest, files=(*manifest.files, *new))


async def enter(archive: Archive, table: str, entries: Sequence[Entry]) -> None:
    """Names further files. One that went meanwhile is never named again: `Conflict`.

    Others may have entered it, and merged it into another since; or somebody took it away.
    """
    for _ in range(TRIES):
        seen = await look(archive, table)
        known = {entry.path for entry in seen.manifest.files}
        for entry in entries:
            if entry.path not in known and not await _may_be_named(archive, seen.manifest, entry.path):
                raise Conflict(what=f"the archived file {entry.path}", message="is gone, and is not entered")
        changed = entered(seen.manifest, entries)
        if changed == seen.manifest or await exchange(archive, seen, changed):
            return
    raise OSError(f"the manifest of {table} is changed by others all the time")


async def _may_be_named(archive: Archive, manifest: Manifest, path: str) -> bool:
    return path not in manifest.gone and await archive.exists(path)


def exchanged(manifest: Manifest, old: Iterable[Entry], new: Iterable[Entry]) -> Manifest:
    """With new files in the place of old ones, which are gone."""
    paths = {entry.path for entry in old}
    kept = tuple(entry for entry in manifest.files if entry.path not in paths)
    gone = (*manifest.gone, *sorted(paths - set(manifest.gone)))
    return msgspec.structs.replace(manifest, files=(*kept, *new), gone=gone)


async def remove_gone(archive: Archive, table: str, step: Step = unwatched) -> int:
    """Removes the files that no longer count, then what the manifest says of them; answers how many."""
    gone = (await read(archive, table)).gone
    if not gone:
        return 0
    for path in gone:
        await archive.delete(path)
        await step("removing")

    def forgotten(manifest: Manifest) -> Manifest:
        left = tuple(path for path in manifest.gone if path not in gone)
        return msgspec.structs.replace(manifest, gone=left)

    await update(archive, table, forgotten)
    return len(gone)


async def opened(archive: Archive, entry: Entry) -> BinaryIO:
    """The file of an entry, if it is what the entry says, else `Conflict`; or `FileNotFoundError`."""
    file = await archive.open(entry.path)
    try:
        found = await asyncio.to_thread(_sum, file)
        if found != (entry.bytes, entry.sha256):
            raise Conflict(what=f"the archived file {entry.path}", message="is not what its manifest says")
    except BaseException:
        file.close()
        raise
    return file


def _sum(file: BinaryIO) -> tuple[int, str]:
    size, total = 0, hashlib.sha256()
    while piece := file.read(2**20):
        size += len(piece)
        total.update(piece)
    file.seek(0)
    return size, total.hexdigest()
