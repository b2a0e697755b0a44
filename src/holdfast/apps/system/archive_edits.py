"""Makes files of an archive out of others: merged, or without some of their rows; and removes whole tables.

New files are published first, then the manifest names them in the place of the old ones, in one step and only
if nobody has changed it meanwhile; then the old ones go. Readers see the old set or the new one. What was cut
off is put in order by `settle`, or by the same call made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias
from uuid import UUID

import msgspec

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.manifest import Entry, Manifest, Seen
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.apps.system.settle import new_group, new_path

Sieve: TypeAlias = Callable[[Any], Any]  # a batch of Arrow's, and what is left of it
TRIES = 20  # at an archive that somebody else changes at the same time


@dataclass(frozen=True)
class Change:
    """What rows become: `made_of` gets their values of some columns, and answers with what they are then."""

    columns: tuple[str, ...]
    made_of: Callable[[tuple[Any, ...]], tuple[Any, ...]]


async def exchange(
    archive: Archive,
    seen: Seen,
    old: Sequence[Entry],
    made: Sequence[Entry],
    step: Step = unwatched,
) -> bool:
    """Lets the manifest name new files for old ones, and removes the old; False if it has changed since.

    Then nobody names the new files, and they are removed instead.
    """
    table = seen.manifest.table
    await step("made")
    if not await manifests.exchange(archive, seen, manifests.exchanged(seen.manifest, old, made)):
        known = {entry.path for entry in (await manifests.read(archive, table)).files}
        lost = {entry.path for entry in old} & known or {entry.path for entry in made} - known
        if lost:  # else it was done, and the answer did not come
            for entry in made:
                await archive.delete(entry.path)
            return False
    await step("replaced")
    await manifests.remove_gone(archive, table, step)
    await step("removed")
    return True


async def remake(
    archive: Archive, table: str, old: Sequence[Entry], sieve: Sieve | None = None, step: Step = unwatched
) -> Entry | None:
    """One new file of the rows of others, or of those that a sieve leaves; None where none is left.

    It is published, and named by no manifest yet. The files must have the same columns.
    """
    path = new_path(table, old[0].table, new_group(), made=True)
    with tempfile.TemporaryFile() as sink:  # without a name: it goes with the process
        rows = 0
        with _writing(sink, old[0]) as write:
            for entry in old:
                with await manifests.opened(archive, entry) as file:
                    rows += await asyncio.to_thread(_pour, file, write, sieve)
        expected = sum(entry.rows for entry in old)
        if sieve is None and rows != expected:
            raise RuntimeError(f"{rows} rows were merged and {expected} are in the manifest of {table}")
        if not rows:
            return None
        made = await asyncio.to_thread(parquet.entry_of, path, sink)
        assert made is not None
        await archive.put(path, sink, step)
        return made


@contextlib.contextmanager
def _writing(sink: BinaryIO, like: Entry) -> Generator[Callable[[Any], None]]:
    """A writer of batches; what is written is like the file of an entry, but for the times of its rows."""
    writers: list[Any] = []

    def write(batch: Any) -> None:
        if not writers:
            writers.append(parquet.pyarrow().parquet.ParquetWriter(sink, batch.schema, compression="zstd"))
        elif not batch.schema.equals(writers[0].schema):
            raise RuntimeError(f"the columns of {like.table} are not the same in all files")
        writers[0].write_batch(batch)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()


def _pour(file: BinaryIO, write: Callable[[Any], None], sieve: Sieve | None) -> int:
    rows = 0
    for batch in parquet.batches(file):
        left = batch if sieve is None else sieve(batch)
        if left.num_rows:
            write(left)
            rows += left.num_rows
    return rows


# -- what others ask of archives -------------------------------------------------------------------------


async def count_where(archive: Archive, table: str, column: str, value: str | int) -> int:
    """How many archived rows of a table have this in a column."""
    found = 0
    for entry in (await manifests.read(archive, table)).files:
        if entry.kind == "rows" and (wanted := _as_stored(entry, column, value)) is not None:
            with await manifests.opened(archive, entry) as file:
                found += await asyncio.to_thread(_count, file, column, wanted)
    return found


async def rewrite_without(
    archive: Archive, table: str, column: str, value: str | int, step: Step = unwatched
) -> int:
    """Takes the rows with this in a column out of a table's archive, and what went with them.

    Answers how many rows of the table itself that were. All files are exchanged in one step: an erasure that
    was cut off has erased nothing, or all; old files that are still there go with the next call.
    """
    for _ in range(TRIES):
        await manifests.remove_gone(archive, table)
        seen = await manifests.look(archive, table)
        keys = await _keys_where(archive, seen.manifest, column, value)
        if not keys:
            return 0
        old, made = await _without(archive, seen.manifest, keys, step)
        if await exchange(archive, seen, old, made, step):
            return sum(map(len, keys.values()))
    raise OSError(f"the archive of {table} is changed by others all the time")


async def rewrite_with(archive: Archive, table: str, change: Change, step: Step = unwatched) -> int:
    """Changes rows of a table's archive, all files in one step; answers how many rows that were."""
    for _ in range(TRIES):
        await manifests.remove_gone(archive, table)
        seen = await manifests.look(archive, table)
        old, made, changed = list[Entry](), list[Entry](), 0
        for entry in seen.manifest.files:
            columns = [one.name for one in entry.columns if one.name in change.columns]
            if entry.kind != "rows" or len(columns) < len(change.columns):
                continue
            with await manifests.opened(archive, entry) as file:
                found = await asyncio.to_thread(_count_changes, file, change)
            if found:
                new = await remake(archive, table, [entry], _changing(change), step)
                assert new is not None
                old.append(entry)
                made.append(new)
                changed += found
        if not old or await exchange(archive, seen, old, made, step):
            return changed
    raise OSError(f"the archive of {table} is changed by others all the time")


async def remove_table(archive: Archive, table: str, owner: str | None) -> int:
    """Removes all that is archived of a table: the files, then the manifest; answers how many files went.

    The archive of another owner is refused, by `Conflict`.
    """
    await manifests.must_be_of(archive, table, owner)
    folder = manifests.folder_of(table)
    listed = [key for key in await archive.list(folder) if key.count("/") == 1]  # further down is another's
    there = [key for key in listed if key != manifests.key_of(table)]
    await archive.sweep(folder)
    if await archive.exists(manifests.key_of(table)):
        await manifests.update(archive, table, _all_gone)  # nobody must miss what is removed next
    for key in there:
        await archive.delete(key)
    await archive.delete(manifests.key_of(table))
    return len(there)


def _all_gone(manifest: Manifest) -> Manifest:
    emptied = manifests.exchanged(manifest, manifest.files, ())
    return msgspec.structs.replace(emptied, serial=manifest.serial + 1)


async def _keys_where(
    archive: Archive, manifest: Manifest, column: str, value: str | int
) -> dict[str, set[Any]]:
    """The keys of the rows with this in a column, by the file; files without any are left out."""
    found: dict[str, set[Any]] = {}
    for entry in manifest.files:
        if entry.kind == "rows" and (wanted := _as_stored(entry, column, value)) is not None:
            with await manifests.opened(archive, entry) as file:
                keys = await asyncio.to_thread(_keys, file, entry.key, column, wanted)
            if keys:
                found[entry.path] = keys
    return found


async def _without(
    archive: Archive, manifest: Manifest, found: dict[str, set[Any]], step: Step
) -> tuple[list[Entry], list[Entry]]:
    """The files that have one of these rows or something that went with it, and new ones without."""
    old, made = list[Entry](), list[Entry]()
    everywhere: set[Any] = set[Any]().union(*found.values())
    for entry in manifest.files:
        keys = found.get(entry.path, set[Any]()) if entry.kind == "rows" else everywhere
        if await _has_any(archive, entry, keys):
            new = await remake(archive, manifest.table, [entry], _sieve(entry.key, keys), step)
            old.append(entry)
            made += [] if new is None else [new]
    return old, made


async def _has_any(archive: Archive, entry: Entry, keys: set[Any]) -> bool:
    if not keys:
        return False
    with await manifests.opened(archive, entry) as file:
        rows = parquet.rows_of(file, [entry.key])
        return await asyncio.to_thread(lambda: any(key in keys for (key,) in rows))


def _sieve(column: str, keys: Iterable[Any]) -> Sieve:
    """Lets through what has none of these in a column."""
    pa, listed = parquet.pyarrow(), list(keys)
    compute = parquet.compute()

    def sieve(batch: Any) -> Any:
        values = batch.column(column)
        return batch.filter(compute.invert(compute.is_in(values, value_set=pa.array(listed, values.type))))

    return sieve


def _changing(change: Change) -> Sieve:
    """Lets everything through, changed."""
    pa = parquet.pyarrow()

    def sieve(batch: Any) -> Any:
        if not batch.num_rows:
            return batch
        names = batch.schema.names
        rows = zip(*(batch.column(name).to_pylist() for name in change.columns), strict=True)
        changed = dict(zip(change.columns, zip(*map(change.made_of, rows), strict=True), strict=True))
        arrays = [
            pa.array(changed[name], batch.column(name).type) if name in changed else batch.column(name)
            for name in names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)

    return sieve


def _count_changes(file: BinaryIO, change: Change) -> int:
    return sum(change.made_of(row) != row for row in parquet.rows_of(file, change.columns))


def _keys(file: BinaryIO, key: str, column: str, wanted: str | int) -> set[Any]:
    return {row[0] for row in parquet.rows_of(file, [key, column]) if _same(row[1], wanted)}


def _count(file: BinaryIO, column: str, wanted: str | int) -> int:
    return sum(_same(value, wanted) for (value,) in parquet.rows_of(file, [column]))


def _same(value: Any, wanted: str | int) -> bool:
    """A text may have it in other letters, as in a table."""
    if isinstance(value, str) and isinstance(wanted, str):
        return value.lower() == wanted.lower()
    return value == wanted


def _as_stored(entry: Entry, column: str, value: str | int) -> str | int | None:
    """A value as the file has it; None where there is no such column, or no such value in it."""
    stored = next((one.type for one in entry.columns if one.name == column), None)
    if stored is None:
        return None
    try:
        if parquet.kind_of(stored) in ("smallint", "integer", "bigint"):
            return int(value)
        return str(UUID(str(value))) if stored == "uuid" else str(value)
    except ValueError:
        return None
