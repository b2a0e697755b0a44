"""Compact: fewer and larger files in a table's archive, and smaller indexes of the table itself.

The small files of a table are merged up to the target size, one merger after the other, and each is one
replacement of the manifest. Then the table is vacuumed and its bloated indexes are rebuilt while work goes
on, on a connection of its own, as none of that may be in a transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.sql import SQL, Identifier

from holdfast.apps.system import archive_edits as edits
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.bench import Bench, Run, own_connection
from holdfast.apps.system.executors import compact_queries as queries
from holdfast.apps.system.manifest import Entry, Manifest
from holdfast.apps.system.parameters import Compact
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.apps.system.registry import Declared, Definition
from holdfast.apps.system.settle import settle
from holdfast.apps.system.source import Connection, source_of

LEAST_PAGES = 32  # an index that is smaller is left alone
MB = 1_000_000  # bytes


@dataclass
class Merged:
    """What was merged."""

    before: int = 0
    after: int = 0
    rows: int = 0


def target(params: Compact) -> str:
    """The table or ledger, of which there is one maintainer at a time."""
    return params.target


async def check(params: Compact, bench: Bench) -> None:
    """Refuses what is not declared, or is not there."""
    declared = _declared(params, bench)
    if declared.kind == "ledger":
        parquet.pyarrow()
        _ = bench.archive
    async with bench.database.connection() as conn:
        await bench.registry.definition(conn, declared)


async def run(params: Compact, run: Run, step: Step = unwatched) -> str:
    """Merges files, then looks after the table; answers what there was and what there is."""
    bench = run.bench
    declared = _declared(params, bench)
    conn = await own_connection(bench, "compact")
    try:
        told: list[str] = []
        definitions = [await bench.registry.fresh(conn, declared)]
        if declared.kind == "ledger":
            source = await source_of(conn, bench.registry, declared)
            definitions += [part.definition for part in source.along]
            await settle(conn, bench.archive, source)
            merged = await _merge(
                run, bench.archive, declared.table, int(params.target_file_size_mb * MB), step
            )
            told.append(f"{merged.before} files to {merged.after}, {merged.rows} rows")
        if params.indexes:
            rebuilt = [await _look_after(conn, run, definition, step) for definition in definitions]
            told.append(f"{sum(rebuilt)} indexes rebuilt")
        return "; ".join(told) or "nothing to do"
    finally:
        await asyncio.shield(conn.close())


def _declared(params: Compact, bench: Bench) -> Declared:
    if params.ledger is not None:
        return bench.registry.ledger(params.ledger)
    return bench.registry.table(params.target)


# -- files -----------------------------------------------------------------------------------------------


async def _merge(run: Run, archive: Archive, table: str, size: int, step: Step) -> Merged:
    seen = await manifests.look(archive, table)
    merged = Merged(before=len(seen.manifest.files))
    while True:
        chosen = next(iter(mergers(seen.manifest, size)), None)
        if chosen is None:
            break
        made = await edits.remake(archive, table, chosen, step=step)
        assert made is not None
        if await edits.exchange(archive, seen, chosen, [made], step):
            merged.rows += made.rows
            await run.progress(merged.rows, None, "rows merged")
        seen = await manifests.look(archive, table)
    merged.after = len(seen.manifest.files)
    return merged


def mergers(manifest: Manifest, size: int) -> list[list[Entry]]:
    """Which files become one: neighbours in time with the same columns, together no larger than `size`."""
    groups: dict[object, list[Entry]] = {}
    for entry in manifest.files:
        groups.setdefault((entry.table, entry.kind, entry.key, entry.columns), []).append(entry)
    return [chosen for files in groups.values() for chosen in _packed(files, size) if len(chosen) > 1]


def _packed(files: Sequence[Entry], size: int) -> list[list[Entry]]:
    packed: list[list[Entry]] = []
    filled = size
    for entry in sorted(
        files, key=lambda one: (one.first is None, one.first and one.first.timestamp(), one.path)
    ):
        if entry.bytes >= size:
            continue
        if filled + entry.bytes > size:
            packed.append([])
            filled = 0
        packed[-1].append(entry)
        filled += entry.bytes
    return packed


# -- the table -------------------------------------------------------------------------------------------


async def _look_after(conn: Connection, run: Run, definition: Definition, step: Step) -> int:
    """Drops leftovers, vacuums, and rebuilds what is bloated; answers how many indexes that were."""
    which = {"oid": definition.oid, "least": LEAST_PAGES}
    for schema, name in await (await conn.execute(queries.LEFTOVERS, which)).fetchall():
        await conn.execute(SQL(queries.DROP_INDEX).format(Identifier(schema, name)))
        run.note(f"dropped the invalid index {name}, left by a rebuild that was cut off")
    await conn.execute(SQL(queries.VACUUM).format(Identifier(definition.schema, definition.name)))
    await step("vacuumed")
    bloated = await (await conn.execute(queries.BLOATED, which)).fetchall()
    for done, (schema, name) in enumerate(bloated, 1):
        await conn.execute(SQL(queries.REINDEX).format(Identifier(schema, name)))
        await run.progress(done, len(bloated), f"indexes of {definition.name} rebuilt")
        await step("reindexed")
    return len(bloated)
