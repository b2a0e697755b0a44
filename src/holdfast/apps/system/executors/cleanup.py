"""Cleanup: a user's table is dropped, then its archive goes, then what the registry remembers of it.

In this order, so that no file is missed by a table that is still there. Wherever it is cut off, the same job
made again goes on: what is gone already is nothing to do. Built-in tables are refused, under any name, and so
is a table whose archive is that of another database or schema.
"""

from __future__ import annotations

import asyncio

from psycopg.errors import DependentObjectsStillExist
from psycopg.sql import SQL

from holdfast.apps.system import archive_edits as edits
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import registry_queries
from holdfast.apps.system.bench import Bench, Connection, Run
from holdfast.apps.system.executors import cleanup_queries as queries
from holdfast.apps.system.parameters import Cleanup
from holdfast.apps.system.places import Step, unwatched
from holdfast.apps.system.registry import Declared, Definition
from holdfast.apps.system.source import name, owner_of
from holdfast.errors import Conflict, InvalidInput, NotFound


def target(params: Cleanup) -> str:
    """The table, of which there is one maintainer at a time."""
    return params.table


async def check(params: Cleanup, bench: Bench) -> None:
    """Refuses what is not declared, what is built in, and what is no user's table.

    One that is not there is no mistake: it may be that only its archive is left.
    """
    declared = _declared(params, bench)
    async with bench.database.connection() as conn:
        if definition := await _found(conn, bench, declared):
            await _must_not_be_ours(conn, bench, declared, definition)


async def run(params: Cleanup, run: Run, step: Step = unwatched) -> str:
    """Drops the table and its archive; answers what there was."""
    bench, declared = run.bench, _declared(params, run.bench)
    conn = await bench.database.connect("cleanup")
    try:
        owner = await _owner(conn, bench, declared)
        await manifests.must_be_of(bench.archive, declared.table, owner)  # before anything goes
        dropped = await _drop(conn, bench, declared)
        await step("dropped")
        await run.progress(int(dropped), 1, "tables")
        files = await edits.remove_table(bench.archive, declared.table, owner)
        await step("removed")
        async with conn.transaction():  # also where another run has dropped the table
            await bench.registry.announce(conn)
        await step("announced")
    finally:
        await asyncio.shield(conn.close())
    told = f"{files} file{'' if files == 1 else 's'} of its archive"
    return f"{declared.table} dropped, with {told}" if dropped else f"0 tables, {told}"


async def _owner(conn: Connection, bench: Bench, declared: Declared) -> str | None:
    """Whose archive may go. Of a table that is gone already, by the schema in which it would be."""
    if known := await _found(conn, bench, declared):
        return await owner_of(conn, known.schema)
    ((here,),) = await (await conn.execute(registry_queries.HERE)).fetchall()
    return await owner_of(conn, declared.table.rpartition(".")[0] or here)


async def _drop(conn: Connection, bench: Bench, declared: Declared) -> bool:
    """Drops the table, if it is there and still what it was; tells all processes in the same commit."""
    known = await _found(conn, bench, declared)
    if known is None:
        return False
    await _must_not_be_ours(conn, bench, declared, known)
    table = name(known.schema, known.name)
    try:
        async with conn.transaction():
            await conn.execute(SQL(queries.HOLD).format(table=table))
            await bench.registry.must_be(conn, declared, known)
            await conn.execute(SQL(queries.DROP).format(table=table))
            await bench.registry.announce(conn)
    except DependentObjectsStillExist as error:
        message = f"{error.diag.message_primary}: {error.diag.message_detail}"
        raise Conflict(what=declared.table, message=message) from None
    return True


async def _found(conn: Connection, bench: Bench, declared: Declared) -> Definition | None:
    try:
        return await bench.registry.fresh(conn, declared)
    except NotFound:
        return None


async def _must_not_be_ours(conn: Connection, bench: Bench, declared: Declared, known: Definition) -> None:
    """A declaration can name one of our tables by its schema: the catalogue knows better."""
    for one in bench.registry.declared.values():
        if one is not declared and (one.builtin or one.kind == "ledger"):
            found = await _found(conn, bench, one)
            if found and found.oid == known.oid:
                raise InvalidInput(field="table", message=f"{declared.name!r} is {one.name}, and stays")


def _declared(params: Cleanup, bench: Bench) -> Declared:
    declared = bench.registry.table(params.table)
    if declared.builtin:
        raise InvalidInput(field="table", message=f"{params.table!r} is built in, and stays")
    if declared.kind != "user":
        message = f"{params.table!r} is declared as a {declared.kind} table: only a user's table is dropped"
        raise InvalidInput(field="table", message=message)
    return declared
