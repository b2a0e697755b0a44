"""Cleanup: a user's table goes with its archive; ours stay, under any name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from holdfast import Settings
from holdfast.apps.system import archive_edits, manifest
from holdfast.apps.system.manifest import Entry, Manifest
from holdfast.apps.system.source import owner_of
from holdfast.errors import InvalidInput
from holdfast.runtime.app import App, Table
from system.kit import Stage, stage

OWN = App(
    name="own",
    tables=(
        Table(name="own.notes", kind="user"),
        Table(name="own.seen", kind="stream", time="at"),
        Table(name="own.kept"),
        Table(name="public.job", kind="user"),
    ),
)
MAKE = "create schema own; create table own.notes (id bigint primary key, text text)"


async def archived(staged: Stage, table: str = "own.notes") -> None:
    """Three files of a table, of which the manifest names two."""
    archive, folder, entries = staged.bench.archive, manifest.folder_of(table), list[Entry]()
    for number in range(3):
        path = f"{folder}/{number}.rows.parquet"
        await archive.put(path, b"rows")
        entries.append(
            Entry(path=path, kind="rows", table=table, key="id", rows=1, bytes=4, sha256="x", columns=())
        )
    await manifest.update(archive, table, lambda seen: manifest.entered(seen, entries[:2]))


async def test_a_users_table_is_dropped_with_its_archive_and_a_second_run_finds_nothing(
    settings: Settings,
) -> None:
    """Y-28: table, then files, then manifest and cache entry; others' archives stay."""
    async with stage(settings, apps=[OWN]) as staged:
        await staged.do(MAKE)
        await archived(staged)
        await archived(staged, "job")
        done = await staged.run("cleanup", {"table": "own.notes"})
        assert (done.state, done.columns["message"]) == (
            "completed",
            "own.notes dropped, with 3 files of its archive",
        )
        assert await staged.one("select to_regclass('own.notes')") is None
        assert await staged.bench.archive.list(manifest.folder_of("own.notes")) == []
        assert await manifest.tables(staged.bench.archive) == ["job"]
        again = await staged.run("cleanup", {"table": "notes", "operation": "drop_table"})
        assert (again.state, again.columns["message"]) == ("completed", "0 tables, 0 files of its archive")


async def test_what_depends_on_a_table_keeps_it_and_its_archive(settings: Settings) -> None:
    """Y-28: nothing of somebody else's goes along."""
    async with stage(settings, apps=[OWN]) as staged:
        await staged.do(MAKE)
        await staged.do("create view own.shown as select * from own.notes")
        await archived(staged)
        done = await staged.run("cleanup", {"table": "notes"})
        assert done.state == "failed"
        assert "own.shown depends on" in done.columns["message"]
        assert await staged.one("select to_regclass('own.notes')") is not None
        assert len(await staged.bench.archive.list(manifest.folder_of("own.notes"))) == 4


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"table": "job"}, "table", "is built in"),
        ({"table": "system_jobs"}, "table", "is built in"),
        ({"table": "schedule_ingest.schedule_event"}, "table", "is built in"),
        ({"table": "holdfast_token"}, "table", "is built in"),
        ({"table": "public.job"}, "table", "is job, and stays"),
        ({"table": "pg_catalog.pg_class"}, "table", "is not declared"),
        ({"table": "own.seen"}, "table", "declared as a stream table"),
        ({"table": "own.kept"}, "table", "declared as a kept table"),
        ({"table": "own.notes; drop table job"}, "table", "is not declared"),
        ({"table": "notes", "operation": "truncate"}, "operation", "truncate"),
        ({"table": "notes", "cascade": True}, "cascade", "is no parameter"),
        ({}, "table", "is needed"),
        ([], "parameters", "must be an object, not an array"),
    ],
)
async def test_what_may_not_be_dropped_makes_no_job(
    settings: Settings, given: Any, field: str, said: str
) -> None:
    """Y-28, section 3: built-in and undeclared tables are refused, whatever they are called."""
    async with stage(settings, apps=[OWN]) as staged:
        await staged.do(MAKE)
        with pytest.raises(InvalidInput) as caught:
            await staged.create("cleanup", given)
        assert caught.value.field == field
        assert said in str(caught.value)
        assert await staged.one("select count(*) from system.jobs") == 0
        assert staged.lines() == []


@pytest.mark.parametrize("there", [True, False], ids=["there", "gone"])
@pytest.mark.parametrize("owner", ["server 1 database 1 schema own", "of another schema"])
async def test_the_archive_of_another_database_or_schema_keeps_the_table_and_itself(
    settings: Settings, there: bool, owner: str
) -> None:
    """Y-28: whether our table is still there or not."""
    async with stage(settings, apps=[OWN]) as staged:
        await staged.do(MAKE)
        async with staged.app.database.connection() as conn:
            ours, other = await owner_of(conn, "own"), await owner_of(conn, "other")
        if not there:
            await staged.do("drop table own.notes")
        await archived(staged)
        archive, named = staged.bench.archive, other if owner == "of another schema" else owner
        await manifest.update(archive, "own.notes", lambda seen: structs.replace(seen, owner=named))
        before = await archive.list()
        done = await staged.run("cleanup", {"table": "notes"})
        assert (done.state, done.attempts) == ("failed", 0)
        assert f"belongs to {named}, and this is {ours}" in done.columns["message"]
        assert await archive.list() == before
        assert (await manifest.read(archive, "own.notes")).rows == 2
        assert await staged.one("select to_regclass('own.notes') is not null") == there
        await manifest.update(archive, "own.notes", lambda seen: structs.replace(seen, owner=ours))
        assert (await staged.run("cleanup", {"table": "notes"})).state == "completed"
        assert await archive.list() == []


async def test_the_archive_of_a_table_that_is_gone_already_goes_all_the_same(settings: Settings) -> None:
    """Y-28: whoever dropped it."""
    async with stage(settings, apps=[OWN]) as staged:
        await archived(staged)
        done = await staged.run("cleanup", {"table": "notes"})
        assert done.columns["message"] == "0 tables, 3 files of its archive"
        seen = await manifest.read(staged.bench.archive, "own.notes")
        assert seen == Manifest(table="own.notes")
        assert await archive_edits.remove_table(staged.bench.archive, "own.notes", None) == 0
