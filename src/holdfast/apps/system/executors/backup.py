"""Backup: a schema as a dump with a manifest, in a folder that appears complete or not at all.

The dump and the counts see one and the same snapshot of the database, however busy it is. The folder is
written under another name; the manifest comes last, and then the folder gets its name.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg.errors import UndefinedTable
from psycopg.sql import SQL, Identifier, Literal

from holdfast.apps.system import backups
from holdfast.apps.system.backups import File, Manifest
from holdfast.apps.system.bench import must_be_held, target_lock
from holdfast.apps.system.executors import backup_queries as queries
from holdfast.apps.system.executors import contents
from holdfast.apps.system.executors.contents import Connection, Seldom, Step, direct, no_step, scalar
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.parameters import Backup
from holdfast.apps.system.programs import Program, ProgramFailed, Programs, find_programs, server_of
from holdfast.errors import (
    Conflict,
    InvalidBackup,
    InvalidInput,
    NotFound,
    TargetExists,
)

if TYPE_CHECKING:
    from holdfast.apps.system.bench import Bench, Run

TRIES = 5  # at having all tables to oneself, while others alter them
LOCK_WAIT = 300_000  # milliseconds that we wait for a table that somebody has locked
DUMP_WAIT = 2_000  # milliseconds that pg_dump waits: only behind somebody who waits for us, so in vain


def target(params: Backup) -> str:
    """What no other job may work on meanwhile."""
    return f"schema {params.schema}"


async def check(params: Backup, bench: Bench) -> None:
    """Refuses a backup that could not be made, or not be restored; writes nothing."""
    contents.refuse_system("schema", params.schema)
    await _check_place(params, bench)
    if params.compression == "zstd":
        backups.require_zstd()
    server_of(bench.database, name="holdfast backup")
    async with await direct(bench.database, "backup") as conn:
        await asyncio.to_thread(find_programs, conn.info.server_version)
        await _check_schema(conn, params)


async def _check_place(params: Backup, bench: Bench) -> None:
    """The place is free; or taken by a job that goes on, which may be the one that asks: its run knows."""
    try:
        backups.new_location(bench.settings, params.backup_location)
    except TargetExists:
        place = backups.resolve_location(bench.settings, params.backup_location)
        made = _manifest_at(place)
        if made is None:
            raise
        async with bench.database.connection() as conn:
            try:
                job = await bench.stores[NAME].get(conn, made.job)
            except NotFound:
                job = None
        if job is None or job.state in bench.stores[NAME].ledger.ends:
            raise


def _manifest_at(place: Path) -> Manifest | None:
    """What the backup at a place holds; None where there is none that we could use."""
    try:
        return backups.read_manifest(place)
    except InvalidBackup:
        return None


async def _check_schema(conn: Connection, params: Backup) -> None:
    schema = params.schema
    if not await contents.schema_exists(conn, schema):
        raise NotFound(what="schema", id=schema)
    included = await _included(conn, params)
    if params.tables is not None and (missing := await contents.referring(conn, schema, included)):
        raise InvalidInput(
            field="tables", message=f"{'; '.join(missing)}: without those rows these cannot be restored"
        )
    if leading := await contents.outward(conn, schema):
        raise InvalidInput(
            field="schema",
            message=f"{schema} cannot be restored by itself, as it needs what other schemas have: "
            + "; ".join(leading[:10]),
        )
    for extension in await contents.extensions(conn, schema):
        if extension.schema == schema:
            raise InvalidInput(
                field="schema",
                message=f"{schema} uses the extension {extension.name}, which lives in it: give that one a "
                f"schema of its own (alter extension {extension.name} set schema …)",
            )


async def _included(conn: Connection, params: Backup) -> list[str]:
    """The tables whose rows are backed up; all of them, or those named, with or without the schema."""
    present = await contents.tables_of(conn, params.schema)
    if params.tables is None:
        return present
    if not params.tables:
        raise InvalidInput(field="tables", message="must name a table, or be left out for all")
    named: list[str] = []
    for given in params.tables:
        name = given.removeprefix(f"{params.schema}.")
        if name not in present and "." in name:
            raise InvalidInput(field="tables", message=f"{given} is not in the schema {params.schema}")
        if name not in present:
            raise NotFound(what=f"table of {params.schema}", id=name)
        named.append(name)
    return sorted(set(named))


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What the steps of a run share."""

    params: Backup
    run: Run
    programs: Programs
    folder: Path
    step: Step


async def run(params: Backup, run: Run, step: Step = no_step) -> str:
    """Makes the backup; answers with what is in it."""
    bench = run.bench
    place = backups.resolve_location(bench.settings, params.backup_location)
    async with target_lock(bench, f"backup {place}") as mine:
        if mine is None:
            raise TargetExists(message=f"another backup is being written to {place}")
        await _remove_leftovers(bench, place)
        done = _manifest_at(place)
        if done and (done.job, done.schema) == (run.id, params.schema):  # an earlier run could not say so
            manifest = await asyncio.to_thread(backups.verify_backup, place)
        else:
            backups.new_location(bench.settings, params.backup_location)
            manifest = await _make(params, run, place, mine, step)
    return manifest.summary(place)


async def _make(params: Backup, run: Run, place: Path, mine: Connection, step: Step) -> Manifest:
    """Writes the backup into a folder of its own, which then gets its name. `mine` keeps the place ours."""
    with backups.partial(run.bench.settings, place) as folder:
        try:
            await step("folder")
            programs = await asyncio.to_thread(find_programs, mine.info.server_version)
            manifest = await _write(_Job(params=params, run=run, programs=programs, folder=folder, step=step))
            await step("manifest")
            await run.still_ours()
            await must_be_held(mine, str(place))
            await asyncio.to_thread(backups.publish, folder, place)
            await step("published")
            return manifest
        except BaseException:
            await asyncio.shield(asyncio.to_thread(backups.remove, folder))
            raise


async def _remove_leftovers(bench: Bench, place: Path) -> None:
    """Removes what killed runs have left beside the place: folders of nobody who lives or has a lock."""
    for folder in await asyncio.to_thread(backups.partials, place):
        if backups.whole(folder) == place:
            await asyncio.to_thread(_remove_dead, folder)
            continue
        async with target_lock(bench, f"backup {backups.whole(folder)}") as free:
            if free is not None:
                await asyncio.to_thread(_remove_dead, folder)


def _remove_dead(folder: Path) -> None:
    if not backups.is_living(folder):
        with contextlib.suppress(FileNotFoundError):
            backups.remove(folder)


class _InTheWay(Exception):
    """Somebody wants a table for himself that we have locked already, and pg_dump stands behind him."""


async def _write(job: _Job) -> Manifest:
    """Writes dump and manifest into the folder, both of one snapshot."""
    for _ in range(TRIES):
        with contextlib.suppress(_InTheWay):
            manifest = await _look(job)
            await asyncio.to_thread(backups.write_manifest, job.folder, manifest)
            return manifest
    raise Conflict(what=job.params.schema, message="its tables are altered all the time: try again later")


async def _look(job: _Job) -> Manifest:
    params = job.params
    async with _snapshot(job.run.bench, params.schema) as (conn, snapshot, at):
        await job.step("snapshot")
        included = await _included(conn, params)
        if leading := await contents.leading_out(conn, params.schema, included):
            raise InvalidInput(
                field="schema",
                message=f"{params.schema} cannot be restored by itself, as values of {', '.join(leading)} "
                "are names of schemas, or of what other schemas have",
            )
        left_out = [name for name in await contents.tables_of(conn, params.schema) if name not in included]
        ((created_at, dbname),) = await (await conn.execute(queries.CLOCK)).fetchall()
        roles = await contents.roles(conn, params.schema)
        try:
            file = await _dump(job, snapshot, left_out)
        except ProgramFailed:
            if await scalar(conn, queries.AWAITED):
                raise _InTheWay from None
            raise
        await job.step("dumped")
        tables = await contents.count_rows(conn, params.schema, included, job.run.progress)
        await job.step("counted")
        return Manifest(
            version=backups.VERSION,
            created_at=created_at,
            job=job.run.id,
            holdfast=version("holdfast"),
            revision=at,
            server=conn.info.server_version,
            program=job.programs.version,
            database=dbname,
            schema=params.schema,
            compression=params.compression,
            tables=tables,
            without_rows=tuple(left_out),
            files=(file,),
            extensions=await contents.extensions(conn, params.schema),
            owners=roles.owners,
            granted=roles.granted,
            naming=tuple(await contents.naming(conn, params.schema)),
        )


@asynccontextmanager
async def _snapshot(bench: Bench, schema: str) -> AsyncGenerator[tuple[Connection, str, str | None]]:
    """A transaction that sees the database as it is now while it lasts, its snapshot's name and its revision.

    The tables are locked before, against whoever would truncate or rewrite them: in an older snapshot such a
    table is empty, for the dump and for the counts alike.
    """
    async with await direct(bench.database, "backup") as conn:
        for _ in range(TRIES):
            if await _begun(conn, schema):
                at = await contents.revision_of(conn)  # as the dump sees it, and while its name can be found
                await conn.execute(queries.LASTING)
                yield conn, await scalar(conn, queries.SNAPSHOT), at
                await conn.execute(queries.END)
                return
            await conn.execute(queries.END)
    raise Conflict(what=schema, message="its tables come and go all the time: try again later")


async def _begun(conn: Connection, schema: str) -> bool:
    """Begins, with all tables locked; False when they are others by then."""
    tables = await contents.lockable(conn, schema)
    await conn.execute(queries.BEGIN)
    await conn.execute(queries.PATIENT)
    await conn.execute(SQL(queries.LOCK_WAIT).format(wait=Literal(LOCK_WAIT)))
    if tables:
        names = SQL(", ").join(Identifier(schema, name) for name in tables)
        try:
            await conn.execute(SQL(queries.LOCK).format(tables=names))
        except UndefinedTable:
            return False
    return await contents.lockable(conn, schema) == tables


async def _dump(job: _Job, snapshot: str, left_out: list[str]) -> File:
    """Streams pg_dump into the file."""
    params, run, seldom = job.params, job.run, Seldom()
    schema = pattern(params.schema)
    suffix = ".zst" if params.compression == "zstd" else ""
    arguments = [
        "--format=custom",
        "--compress=0",  # what pg_dump can compress depends on its version: we do
        "--no-password",
        "--no-publications",
        "--no-subscriptions",
        "--strict-names",
        f"--lock-wait-timeout={DUMP_WAIT}",
        f"--snapshot={snapshot}",
        f"--schema={schema}",
        *(f"--exclude-table-data={schema}.{pattern(name)}" for name in left_out),
    ]
    writer = backups.Writer(job.folder, f"{file_name(params.schema)}.dump{suffix}", params.compression)
    try:
        server = server_of(run.bench.database, name="holdfast backup")
        async with Program(job.programs.folder / "pg_dump", arguments, server) as program:
            async for chunk in program.chunks():
                await asyncio.to_thread(writer.write, chunk)
                if seldom:
                    await run.progress(writer.taken, None, "bytes dumped")
            await program.ended()
        return await asyncio.to_thread(writer.close)
    except ProgramFailed:
        await asyncio.to_thread(backups.remove, job.folder / writer.name)
        raise
    finally:
        writer.abandon()


def pattern(name: str) -> str:
    """A name as PostgreSQL's programs take it: exactly this one.

    >>> pattern('Odd "name".*')
    '"Odd ""name"".*"'
    """
    return '"' + name.replace('"', '""') + '"'


def file_name(schema: str) -> str:
    """The schema's name as that of a file.

    >>> file_name("schedule_ingest"), file_name("../a b")
    ('schedule_ingest', '___a_b')
    """
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in schema)
