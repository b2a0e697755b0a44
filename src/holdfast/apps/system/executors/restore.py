"""Restore: a backup becomes a schema again, after every byte of it was looked at.

The dump is restored into a scratch database under its own name, gets a scratch name there, is moved into the
real database and compared with the manifest; only then does it take its place, in one transaction. Whatever
goes wrong before that leaves the target as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import Identifier

from holdfast.apps.system import backups
from holdfast.apps.system.backups import Manifest
from holdfast.apps.system.bench import Run, must_be_held, target_lock
from holdfast.apps.system.executors import contents, swap
from holdfast.apps.system.executors import restore_queries as queries
from holdfast.apps.system.executors.contents import Connection, Step, direct, no_step, scalar
from holdfast.apps.system.executors.scratch import Scratch, locale_of, remove_leftovers, scratch_name
from holdfast.apps.system.executors.swap import Swap
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.parameters import Restore
from holdfast.apps.system.programs import find_programs, server_of
from holdfast.apps.system.types import new_id
from holdfast.db.database import head
from holdfast.errors import (
    Conflict,
    HoldfastError,
    InvalidBackup,
    InvalidInput,
    MissingExtra,
    TargetExists,
)

if TYPE_CHECKING:
    from holdfast.apps.system.bench import Bench


def target(params: Restore) -> str:
    """What no other job may work on meanwhile."""
    return f"schema {params.target_schema}"


async def check(params: Restore, bench: Bench) -> None:
    """Refuses a restore that could not be done, and a backup of which one byte differs; writes nothing."""
    contents.refuse_system("target_schema", params.target_schema)
    place = backups.resolve_location(bench.settings, params.backup_location)
    manifest = await asyncio.to_thread(backups.verify_backup, place)
    _check_manifest(params, manifest)
    server_of(bench.database, name="holdfast restore")
    async with await direct(bench.database, "restore") as conn:
        await asyncio.to_thread(find_programs, conn.info.server_version, dumped=manifest.program)
        await _check_target(conn, params, manifest)
        await swap.refuse_other_revision(conn, params.target_schema, manifest, bench)
        await _check_rights(conn)
        await _check_needs(conn, manifest)


def _check_manifest(params: Restore, manifest: Manifest) -> None:
    if manifest.compression == "zstd":
        backups.require_zstd()
    elif manifest.compression != "none":
        raise InvalidBackup(message=f"the backup is compressed in an unknown way, {manifest.compression!r}")
    if len(manifest.files) != 1:
        raise InvalidBackup(message=f"the backup has {len(manifest.files)} dumps, and one is needed")
    if manifest.revision is not None and manifest.revision > head():
        raise InvalidBackup(
            message=f"the backup is of the revision {manifest.revision}, and this Holdfast knows none after "
            f"{head()}"
        )
    if manifest.naming and params.target_schema != manifest.schema:
        raise InvalidInput(
            field="target_schema",
            message=f"must be {manifest.schema}, because functions name it in their text, and would work on "
            f"that one: {', '.join(manifest.naming)}",
        )


async def _check_target(conn: Connection, params: Restore, manifest: Manifest) -> None:
    name = params.target_schema
    async with conn.cursor(row_factory=dict_row) as cursor:
        found = await (await cursor.execute(queries.TARGET, {"schema": name})).fetchone()
    if found is None:
        return
    if not params.overwrite:
        raise TargetExists(message=f"the schema {name} is there already: say `overwrite` to replace it")
    if manifest.without_rows:
        raise InvalidInput(
            field="overwrite",
            message=f"the backup has the rows of {len(manifest.tables)} tables alone, and {name} would lose "
            "those of all others: restore it into another schema",
        )
    if not found["ours"]:
        raise MissingExtra(
            what=f"replacing the schema {name}",
            remedy=f"the rights of its owner: grant {found['owner']} to us",
        )
    await swap.refuse_needed(conn, name)


async def _check_rights(conn: Connection) -> None:
    async with conn.cursor(row_factory=dict_row) as cursor:
        may = await (await cursor.execute(queries.RIGHTS)).fetchone()
    assert may
    if not may["may_create_databases"]:
        raise MissingExtra(
            what="a restore",
            remedy=f"the right to make its scratch database: alter role {may['me']} createdb",
        )
    if not may["may_create_schemas"]:
        raise MissingExtra(
            what="a restore",
            remedy=f"the right to make schemas: grant create on database {may['here']} to {may['me']}",
        )


async def _check_needs(conn: Connection, manifest: Manifest) -> None:
    """The roles and extensions that the dump names must be there; owners are asked for later."""
    names = [extension.name for extension in manifest.extensions]
    missing = await (await conn.execute(queries.EXTENSIONS_MISSING, {"names": names})).fetchall()
    if missing:
        raise MissingExtra(
            what="the backup",
            remedy=f"an extension: create extension {', '.join(name for (name,) in missing)}",
        )
    missing = await (await conn.execute(queries.ROLES_MISSING, {"names": list(manifest.granted)})).fetchall()
    if missing:
        raise MissingExtra(
            what="the backup",
            remedy="the roles that it gives rights to: "
            + "; ".join(queries.ROLE_WANTED.format(name) for (name,) in missing),
        )


# -- where no job can be made ------------------------------------------------------------------------


@dataclass(kw_only=True)
class LooseRun(Run):
    """A run that is nobody's job: there is no row to hold, nor one that could tell its end. The log does."""

    context: Any = None

    async def still_ours(self) -> None:
        """`DatabaseUnavailable` unless we still hold the lock of the target."""
        await must_be_held(self.lock, "its target")

    async def hold(self, conn: Connection) -> None:
        """Nobody else can have it."""

    async def finish(self, conn: Connection, told: str) -> None:
        """There is nothing to write it to."""


async def can_be_a_job(bench: Bench) -> bool:
    """Whether the platform is installed, and has the table of its jobs."""
    table = Identifier(*bench.stores[NAME].ledger.table.split("."))
    async with await direct(bench.database, "restore") as conn:
        there = await scalar(conn, queries.THERE, table=table.as_string(conn))
        return bool(there) and await contents.revision_of(conn) is not None


async def without_job(params: Restore, bench: Bench) -> tuple[str, str]:
    """Restores where tables of the platform are lost; the id that the log has for it, and what it told.

    `InvalidInput` where a job can be made: nobody else would know of this, nor could call it off.
    """
    if await can_be_a_job(bench):
        raise InvalidInput(
            field="--without-job", message="is for lost tables of the platform, and here a job can be made"
        )
    async with target_lock(bench, bench.registry.called(target(params))) as lock:
        if lock is None:
            raise Conflict(what=params.target_schema, message="another job works on it")
        await check(params, bench)
        loose = LooseRun(bench=bench, id=new_id("restore"), lock=lock)
        loose.note(f"restores {params.backup_location} into {params.target_schema}, without a job")
        try:
            told = await run(params, loose)
        except BaseException as error:
            loose.note(f"failed: {str(error) or 'interrupted'}", level="ERROR")
            raise
        loose.note(f"completed: {told}")
        return loose.id, told


# -- the restore itself ------------------------------------------------------------------------------


async def run(params: Restore, run: Run, step: Step = no_step) -> str:
    """Restores; answers with what is there now."""
    place = backups.resolve_location(run.bench.settings, params.backup_location)
    manifest = await asyncio.to_thread(backups.read_manifest, place)
    _check_manifest(params, manifest)
    told = (
        f"{manifest.rows} rows of {len(manifest.tables)} tables, as of {manifest.created_at}, in the schema "
        f"{params.target_schema}"
    )
    async with _scratch(params, run, manifest) as scratch:
        await step("locked")
        await _prepare(scratch, place, manifest, run, step)
        putting = Swap(
            run=run,
            scratch=scratch.name,
            target=params.target_schema,
            manifest=manifest,
            overwrite=params.overwrite,
            told=told,
            made=await asyncio.to_thread(_made, run.bench, manifest, place),
            step=step,
        )
        await run.still_ours()
        alive = await swap.take_place(putting)
        await step("swapped")
    if alive:
        async with await direct(run.bench.database, "restore") as conn:
            await swap.renew_sessions(conn)
    return told


def _made(bench: Bench, manifest: Manifest, place: Path) -> dict[str, tuple[str, str]]:
    """The message and the time of every job that made a backup that is there, by the job's id."""
    found = [(info.manifest, info.location) for info in backups.list_backups(bench.settings) if info.manifest]
    found.append((manifest, place))
    return {one.job: (one.summary(where), one.created_at) for one, where in found}


async def _prepare(scratch: Scratch, place: Path, manifest: Manifest, run: Run, step: Step) -> None:
    """Everything before the swap: the target is not touched."""
    async with await direct(run.bench.database, "restore") as conn:
        await conn.execute(queries.UNLIMITED)
        await scratch.create(conn, manifest)
    await step("database")
    await scratch.fill(place, manifest, run.progress)
    await step("filled")
    await scratch.compare_inside(manifest, run.progress)
    await scratch.rename(manifest.schema)
    await step("renamed")
    await scratch.move(run.progress)
    await step("moved")
    await scratch.compare_moved(manifest, run.progress)
    await step("compared")


@asynccontextmanager
async def _scratch(params: Restore, run: Run, manifest: Manifest) -> AsyncGenerator[Scratch]:
    """The scratch, ours alone and empty; it is gone at the end, whatever happens."""
    bench = run.bench
    async with await direct(bench.database, "restore") as conn:
        await conn.execute(queries.UNLIMITED)
        like = await locale_of(conn)
        name = scratch_name(like, params.target_schema)
        async with target_lock(bench, name) as mine:
            if mine is None:
                raise Conflict(what=params.target_schema, message="another restore into it is going on")
            programs = await asyncio.to_thread(
                find_programs, conn.info.server_version, dumped=manifest.program
            )
            own = await _may_own(conn, manifest, run)
            number = conn.info.server_version
            scratch = Scratch(bench=bench, name=name, like=like, programs=programs, server=number, own=own)
            await remove_leftovers(bench, conn, like, name)
            try:
                yield scratch
            finally:
                await asyncio.shield(_cleared(scratch, run))


async def _cleared(scratch: Scratch, run: Run) -> None:
    """On a connection of its own: another may be what broke. What is left, the next restore removes."""
    try:
        async with await direct(scratch.bench.database, "restore") as conn:
            await conn.execute(queries.UNLIMITED)
            await scratch.clear(conn)
    except (psycopg.Error, HoldfastError) as error:
        run.note(f"{scratch.name} is left until the next restore: {error}", level="WARN")


async def _may_own(conn: Connection, manifest: Manifest, run: Run) -> bool:
    """Whether everything can get the owner that it had; else all of it becomes ours, and the log says so."""
    names = {"names": list(manifest.owners)}
    missing = [row[0] for row in await (await conn.execute(queries.ROLES_MISSING, names)).fetchall()]
    others = [row[0] for row in await (await conn.execute(queries.ROLES_NOT_OURS, names)).fetchall()]
    if missing or others:
        told = ", ".join([*missing, *others])
        run.note(f"owners are not restored, as we may not act for all of them: {told}", level="WARN")
    return not missing and not others
