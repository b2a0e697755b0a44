"""Compact: fewer and larger files, smaller indexes (Y-31); and what erasures ask of archives (Y-28, Y-30)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Connect
from holdfast.apps.system import archive_edits as edits
from holdfast.apps.system import archive_query
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.executors import compact
from holdfast.apps.system.manifest import Entry, Manifest
from holdfast.apps.system.parameters import Compact
from holdfast.apps.system.places import Archive, open_archive
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.errors import Conflict, InvalidInput, NotFound
from runtime.support import until
from system.archiving import ORG, OTHER, Place, digest, finish, place, same, table_rows


@pytest.fixture
async def here(settings: Settings, tmp_path: Path) -> AsyncIterator[Place]:
    async with place(settings, (tmp_path / "archive").as_uri()) as here:
        yield here


# -- files -----------------------------------------------------------------------------------------------


async def test_compact_merges_small_files_and_keeps_every_row(here: Place, conn: Connection) -> None:
    """Y-31: rows before = rows after, of the table and of what went with it."""
    await finish(conn, "job", 40)
    rows, events = await table_rows(conn, "job"), await table_rows(conn, "job_event")
    await here.flush(batch_rows=4)
    assert len((await manifests.read(here.archive, "job")).files) == 20
    assert await here.compact() == "20 files to 2, 120 rows"
    assert digest(await here.rows()) == digest(rows)
    assert digest(await here.rows("job", "job_event")) == digest(events)
    manifest = await manifests.read(here.archive, "job")
    assert {(entry.table, entry.rows) for entry in manifest.files} == {("job", 40), ("job_event", 80)}
    of_rows = next(entry for entry in manifest.files if entry.kind == "rows")
    assert (of_rows.first, of_rows.last) == (
        min(row["finished_at"] for row in rows),
        max(row["finished_at"] for row in rows),
    )
    await here.whole()
    assert await here.compact() == "2 files to 2, 0 rows"


async def test_compact_goes_up_to_the_target_size(here: Place, conn: Connection) -> None:
    """Y-31: no file is larger than wanted, and those that are large enough are left alone."""
    await finish(conn, "tasks", 40)
    await here.flush("tasks", batch_rows=4)
    before = await manifests.read(here.archive, "tasks")
    assert len(before.files) == 10
    size = int(2.5 * max(entry.bytes for entry in before.files))
    await here.compact("tasks", target_file_size_mb=size / compact.MB)
    after = await manifests.read(here.archive, "tasks")
    files = len(after.files)
    # A merger is of two files at least, and makes less than their sum: that may be merged again.
    assert files <= 5
    assert compact.mergers(after, size) == []
    assert all(entry.bytes <= size for entry in after.files)
    assert after.rows == 40
    assert (await here.compact("tasks", target_file_size_mb=0.000001)).startswith(f"{files} files to {files}")
    await here.whole("tasks")


async def test_files_with_other_columns_are_not_merged(here: Place, conn: Connection) -> None:
    """Y-31: a column came between two flushes; both sets are merged, each by itself."""
    await finish(conn, "sync_jobs", 4)
    rows = await table_rows(conn, "sync_jobs")
    await here.flush("sync_jobs", batch_rows=2)
    await conn.execute("alter table sync_jobs add extra text default 'x'")
    await conn.execute("delete from connections; delete from providers; delete from tenants")
    await finish(conn, "sync_jobs", 4)
    rows += await table_rows(conn, "sync_jobs")
    await here.flush("sync_jobs", batch_rows=2)
    assert await here.compact("sync_jobs") == "4 files to 2, 8 rows"
    assert same(await here.rows("sync_jobs"), rows)
    answer = await archive_query.query(here.archive, "select count(*), count(extra) from sync_jobs")
    assert answer.rows == ((8, 4),)


def test_mergers_are_neighbours_in_time_that_fit_together() -> None:
    """Y-31: pure."""

    def entry(path: str, size: int, **other: Any) -> Entry:
        return Entry(
            **{"path": path, "kind": "rows", "table": "t", "key": "id", "rows": 1, "bytes": size, **other},
            sha256="",
            columns=(),
        )

    files = (entry("a", 6), entry("b", 3), entry("c", 4), entry("d", 10), entry("e", 1), entry("f", 9))
    chosen = compact.mergers(Manifest(table="t", files=files), 10)
    assert [[one.path for one in group] for group in chosen] == [["a", "b"], ["c", "e"]]
    events = (entry("a", 1), entry("b", 1, kind="events", table="x"))
    assert compact.mergers(Manifest(table="t", files=events), 10) == []


async def test_compact_halves_a_folder_of_small_files_and_readers_see_a_whole_set(
    here: Place, conn: Connection
) -> None:
    """Y-31: whoever reads during it sees every row, once."""
    await finish(conn, "job", 60)
    await here.flush(batch_rows=2)
    rows = digest(await here.rows())
    done, seen = asyncio.Event(), 0

    async def reads() -> None:
        nonlocal seen
        reader = open_archive(here.bench.settings.system_archive or "")
        while not done.is_set():
            answer = await archive_query.query(reader, "select count(*), count(distinct id) from job")
            assert answer.rows == ((60, 60),)
            seen += 1

    async def compacts() -> None:
        try:
            await here.compact(target_file_size_mb=0.03)
            await here.compact()
        finally:
            done.set()

    await asyncio.gather(reads(), compacts())
    assert seen > 1
    assert digest(await here.rows()) == rows
    assert len((await manifests.read(here.archive, "job")).files) == 2
    await here.whole()


async def test_a_compaction_whose_files_were_swept_meanwhile_names_none_of_them(
    here: Place, conn: Connection
) -> None:
    """Y-31: it was given up, and somebody has put the archive in order since."""
    await finish(conn, "tasks", 6)
    rows = await table_rows(conn, "tasks")
    await here.flush("tasks", batch_rows=2)
    swept = False

    async def step(name: str) -> None:
        nonlocal swept
        if name == "made" and not swept:
            swept = True
            await here.flush("tasks")

    await here.compact("tasks", step)
    assert same(await here.rows("tasks"), rows)
    await here.whole("tasks")


async def test_a_file_that_a_compaction_has_just_named_is_not_swept(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-31: somebody who puts the archive in order has seen it a moment before, when no manifest named it."""
    await finish(conn, "tasks", 6)
    rows = await table_rows(conn, "tasks")
    await here.flush("tasks", batch_rows=2)
    made, looked, removed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def step(name: str) -> None:
        if name == "made":
            made.set()
            await looked.wait()
        if name == "removed":
            removed.set()

    real = manifests.update

    async def update(archive: Archive, table: str, change: Any) -> Manifest:
        if made.is_set() and not looked.is_set():  # all that is unlisted was found by now
            looked.set()
            await removed.wait()
        return await real(archive, table, change)

    late = asyncio.ensure_future(here.compact("tasks", step))
    await made.wait()
    monkeypatch.setattr(manifests, "update", update)
    assert await here.flush("tasks") == "0 rows"
    assert await late == "3 files to 1, 6 rows"
    assert same(await here.rows("tasks"), rows)
    await here.whole("tasks")


async def test_a_file_that_was_changed_is_not_merged(here: Place, conn: Connection, tmp_path: Path) -> None:
    """Y-31: by its sum; everything stays as it is."""
    await finish(conn, "tasks", 4)
    await here.flush("tasks", batch_rows=2)
    before = await manifests.read(here.archive, "tasks")
    path = tmp_path / "archive" / before.files[1].path
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)
    with pytest.raises(Conflict, match="not what its manifest says"):
        await here.compact("tasks")
    assert await manifests.read(here.archive, "tasks") == before


# -- tables ----------------------------------------------------------------------------------------------


async def sizes(conn: Connection, table: str) -> dict[str, int]:
    query = (
        "select i.indexrelid::regclass::text, pg_relation_size(i.indexrelid) from pg_index i"
        " where i.indrelid = %s::regclass"
    )
    return dict(await (await conn.execute(query, [table])).fetchall())


async def test_bloated_indexes_are_rebuilt_and_others_are_not(here: Place, conn: Connection) -> None:
    """Y-31: over twice the size that their rows would fill."""
    insert = "insert into tasks (type, status) select 'x', 'pending' from generate_series(1, %s)"
    await conn.execute(insert, [30_000])
    assert (await here.compact("tasks", indexes=True)).endswith("; 0 indexes rebuilt")
    await conn.execute("delete from tasks where id not in (select id from tasks limit 100)")
    before = await sizes(conn, "tasks")
    told = await here.compact("tasks", indexes=True)
    after = await sizes(conn, "tasks")
    assert int(told.split("; ")[1].split()[0]) >= 1
    assert after["tasks_pkey"] < before["tasks_pkey"] / 4
    assert await here.compact("tasks", indexes=True) == "0 files to 0, 0 rows; 0 indexes rebuilt"
    ((vacuumed,),) = await (
        await conn.execute("select last_vacuum is not null from pg_stat_user_tables where relname = 'tasks'")
    ).fetchall()
    assert vacuumed


async def test_indexes_false_leaves_the_table_alone(here: Place, conn: Connection) -> None:
    """Y-31."""
    assert await here.compact("tasks", indexes=False) == "0 files to 0, 0 rows"
    query = "select last_vacuum from pg_stat_user_tables where relname = 'tasks'"
    assert await (await conn.execute(query)).fetchall() == [(None,)]


async def test_invalid_indexes_that_a_crash_has_left_are_dropped(
    here: Place, conn: Connection, connect: Connect
) -> None:
    """Y-31: what a REINDEX CONCURRENTLY left that was cut off, and nothing else that is invalid."""
    holder, builder = await connect(), await connect()
    async with holder.transaction():
        await holder.execute("insert into tasks (type, status) values ('x', 'pending')")
        pid = builder.info.backend_pid
        building = asyncio.ensure_future(builder.execute("reindex index concurrently tasks_pkey"))
        await until(conn, "select count(*) > 0 from pg_locks where pid = %s and not granted", pid)
        await conn.execute("select pg_terminate_backend(%s)", [pid])
        with pytest.raises(Exception, match="terminat"):
            await building
    await conn.execute("create index mine on tasks (type)")
    await conn.execute("update pg_index set indisvalid = false where indexrelid = 'mine'::regclass")
    assert "tasks_pkey_ccnew" in await sizes(conn, "tasks")
    await here.compact("tasks", indexes=True)
    left = await sizes(conn, "tasks")
    assert "tasks_pkey_ccnew" not in left
    assert {"tasks_pkey", "mine"} <= left.keys()


async def test_a_compaction_of_what_is_not_declared_is_refused(here: Place, conn: Connection) -> None:
    """Bad input: undeclared, or not there."""
    with pytest.raises(InvalidInput, match="not declared"):
        await compact.check(Compact(table="nothing"), here.bench)
    await conn.execute("drop table tasks")
    with pytest.raises(NotFound):
        await compact.check(Compact(ledger="tasks"), here.bench)


# -- erasing ---------------------------------------------------------------------------------------------


async def test_an_archive_is_rewritten_without_a_subject(here: Place, conn: Connection) -> None:
    """Y-30: its rows, and the events that went with them, from all files in one step."""
    await finish(conn, "job", 20)
    rows, events = await table_rows(conn, "job"), await table_rows(conn, "job_event")
    await here.flush(batch_rows=3)
    assert await edits.count_where(here.archive, "job", "org_id", OTHER) == 10
    assert await edits.rewrite_without(here.archive, "job", "org_id", OTHER.upper()) == 10
    ours = [row for row in rows if str(row["org_id"]) == ORG]
    known = {row["id"] for row in ours}
    assert same(await here.rows(), ours)
    assert same(await here.rows("job", "job_event"), [row for row in events if row["job_id"] in known])
    assert await edits.count_where(here.archive, "job", "org_id", OTHER) == 0
    assert await edits.rewrite_without(here.archive, "job", "org_id", OTHER) == 0
    await here.whole()
    assert await edits.rewrite_without(here.archive, "job", "org_id", ORG) == 10
    assert (await manifests.read(here.archive, "job")).files == ()
    await here.whole()


async def test_a_subject_by_number_and_one_that_is_none(here: Place, conn: Connection) -> None:
    """Y-30."""
    await finish(conn, "capture_session", 5)
    table = "schedule_ingest.capture_session"
    await here.flush("capture_session")
    assert await edits.count_where(here.archive, table, "user_id", "3") == 1
    assert await edits.count_where(here.archive, table, "user_id", "x") == 0
    assert await edits.count_where(here.archive, table, "org_id", ORG) == 0
    assert await edits.count_where(here.archive, "nothing", "org_id", ORG) == 0
    assert await edits.rewrite_without(here.archive, table, "user_id", 3) == 1
    assert sorted(row["user_id"] for row in await here.rows(table)) == [1, 2, 4, 5]


async def test_a_subject_in_other_letters_is_the_same_in_a_file_as_in_a_table(
    here: Place, conn: Connection
) -> None:
    """Y-30: a column of text may have a name in capitals."""
    await finish(conn, "tasks", 4)
    await conn.execute("update tasks set type = 'MAIL' where payload ->> 'n' = '1'")
    await here.flush("tasks")
    assert await edits.count_where(here.archive, "tasks", "type", "Mail") == 4
    assert await edits.rewrite_without(here.archive, "tasks", "type", "maiL") == 4
    assert await here.rows("tasks") == []


@pytest.mark.parametrize("wanted", ["written", "made", "replaced", "removing"])
async def test_an_erasure_that_is_cut_off_has_erased_nothing_or_all(
    here: Place, conn: Connection, wanted: str
) -> None:
    """Y-30: and what is left goes with the next one."""

    class Halt(Exception):
        pass

    async def step(name: str) -> None:
        if name == wanted:
            raise Halt

    await finish(conn, "job", 8)
    await here.flush(batch_rows=3)
    with pytest.raises(Halt):
        await edits.rewrite_without(here.archive, "job", "org_id", OTHER, step)
    left = {str(row["org_id"]) for row in await here.rows()}
    assert left == ({ORG, OTHER} if wanted in ("written", "made") else {ORG})
    await here.flush()
    await edits.rewrite_without(here.archive, "job", "org_id", OTHER)
    assert len(await here.rows()) == 4
    await here.whole()


async def test_what_is_archived_of_another_database_is_not_removed(here: Place, conn: Connection) -> None:
    """Y-28: by the owner that its manifest names."""
    await finish(conn, "tasks", 2)
    await here.flush("tasks")
    before = await here.archive.list()
    with pytest.raises(Conflict, match="belongs to server"):
        await edits.remove_table(here.archive, "tasks", "server 1 database 1 schema public")
    assert await here.archive.list() == before
    assert len(await here.rows("tasks")) == 2


async def test_a_table_is_removed_from_the_archive(here: Place, conn: Connection, tmp_path: Path) -> None:
    """Y-28: files, then the manifest; a second time there is nothing."""
    await finish(conn, "job", 5)
    await finish(conn, "tasks", 5)
    await here.flush(batch_rows=2)
    await here.flush("tasks")
    await here.archive.put("job/stray.rows.parquet", b"")
    (tmp_path / "archive" / "job" / ".x.part").write_bytes(b"half")
    assert await edits.remove_table(here.archive, "job", None) == 7
    assert await edits.remove_table(here.archive, "job", None) == 0
    assert not (tmp_path / "archive" / "job").exists()
    assert await manifests.tables(here.archive) == ["tasks"]
