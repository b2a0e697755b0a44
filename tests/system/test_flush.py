"""Flush: finished rows become files and leave the table (Y-25, Y-26, Y-27)."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.errors import LockNotAvailable

from conftest import Connect
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.bench import target_lock
from holdfast.apps.system.executors import flush
from holdfast.apps.system.parameters import Flush
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.values import Item
from holdfast.errors import Conflict, InvalidInput, MissingExtra, NotFound
from runtime.support import until
from system.archiving import LEDGERS, Place, finish, place, same, table_rows
from system.buckets import ACCESS, SECRET, Server, serving

ALONG = {"job": "job_event", "schedule_notification": "schedule_ingest.notification_attempt"}


@pytest.fixture
async def here(settings: Settings, tmp_path: Path) -> AsyncIterator[Place]:
    async with place(settings, (tmp_path / "archive").as_uri()) as here:
        yield here


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with serving() as server:
        yield server


# -- what goes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda ledger: ledger.name)
async def test_flush_then_read_back_gives_rows_equal_to_those_removed_for_every_ledger(
    here: Place, conn: Connection, ledger: Ledger
) -> None:
    """Y-26: events of job included; nothing that a cascade takes along is lost."""
    await finish(conn, ledger.name, 25)
    beside = ALONG.get(ledger.name)
    rows = await table_rows(conn, ledger.table)
    events = await table_rows(conn, beside) if beside else []
    told = await here.flush(ledger.name, batch_rows=10)
    files = 6 if beside else 3
    assert told.startswith("25 rows")
    assert told.endswith(f"to {files} files")
    assert await table_rows(conn, ledger.table) == []
    assert same(await here.rows(ledger.table), rows)
    if beside:
        assert await table_rows(conn, beside) == []
        assert same(await here.rows(ledger.table, beside), events)
    await here.whole(ledger.table)
    assert await here.flush(ledger.name) == "0 rows"


@pytest.mark.parametrize("conditional", [True, False], ids=["conditions", "none"])
async def test_flush_into_a_bucket(
    settings: Settings, conn: Connection, server: Server, conditional: bool
) -> None:
    """Y-26: an object store by its URL, and one that knows no conditions."""
    server.conditional = conditional
    async with place(settings, server.url) as here:
        await finish(conn, "job", 25)
        rows, events = await table_rows(conn, "job"), await table_rows(conn, "job_event")
        assert await here.flush(batch_rows=10) == "25 rows and 50 events to 6 files"
        assert same(await here.rows(), rows)
        assert same(await here.rows("job", "job_event"), events)
        await here.whole()


async def test_the_manifest_tells_of_every_file(here: Place, conn: Connection) -> None:
    """Y-25: path, rows, bytes, sum, first and last time."""
    await finish(conn, "job", 3)
    ((first, last),) = await (
        await conn.execute("select min(finished_at), max(finished_at) from job")
    ).fetchall()
    await here.flush()
    manifest = await manifests.read(here.archive, "job")
    events, rows = manifest.files
    assert (rows.kind, rows.table, rows.key, rows.rows) == ("rows", "job", "id", 3)
    assert (events.kind, events.table, events.key, events.rows) == ("events", "job_event", "job_id", 6)
    assert (rows.first, rows.last) == (first, last)
    assert rows.bytes == len(await here.archive.get(rows.path))
    assert [one.name for one in rows.columns][:3] == ["id", "org_id", "type"]
    for entry in manifest.files:
        (await manifests.opened(here.archive, entry)).close()  # which compares the sum


async def test_unfinished_young_and_dead_rows_stay(here: Place, conn: Connection) -> None:
    """Y-27: dead letters wait for a person."""
    await finish(conn, "job", 6)
    old = "now() - interval '30 days'"
    for status, finished in (
        ("queued", "null"),
        ("running", "null"),
        ("failed", "null"),
        ("dead_letter", old),
        ("succeeded", "now() - interval '23 hours'"),
    ):
        insert = "insert into job (org_id, type, status, finished_at, created_at, updated_at) values"
        values = f"(gen_random_uuid(), 'mail', '{status}', {finished}, {old}, {old})"
        await conn.execute(f"{insert} {values}".encode())
    kept = await table_rows(conn, "job")
    assert await here.flush() == "6 rows and 12 events to 2 files"
    left = await table_rows(conn, "job")
    assert sorted(row["status"] for row in left) == [
        "dead_letter",
        "failed",
        "queued",
        "running",
        "succeeded",
    ]
    assert all(row in kept for row in left)
    assert await here.flush(older_than_hours=22) == "1 row to 1 file"


@pytest.mark.parametrize(
    ("ledger", "states"), [("tasks", ["completed"]), ("sync_jobs", ["completed", "succeeded"])]
)
async def test_a_state_that_somebody_may_requeue_stays(
    here: Place, conn: Connection, ledger: str, states: list[str]
) -> None:
    """Y-27: what failed waits for a person, or is claimed again."""
    await finish(conn, ledger, 8)
    await conn.execute(
        f"update {ledger} set status = 'failed' where ctid in (select ctid from {ledger} limit 4)".encode()
    )
    await here.flush(ledger)
    assert {row["status"] for row in await table_rows(conn, ledger)} == {"failed"}
    assert sorted({row["status"] for row in await here.rows(ledger)}) == states


async def test_a_removed_row_frees_its_idempotency_key(here: Place, conn: Connection) -> None:
    """Y-27."""
    await finish(conn, "tasks", 1)
    await here.flush("tasks")
    store = here.bench.stores["tasks"]
    async with conn.transaction():
        receipt = await store.enqueue(conn, Item(kind="mail", key="k1"))
    assert receipt.created


async def test_the_running_job_itself_never_goes(here: Place, conn: Connection) -> None:
    """Y-27: not even after somebody has called it off."""
    await finish(conn, "system_jobs", 3)
    params = Flush(ledger="system_jobs")
    assert await flush.run(params, here.run("FL-00000002")) == "2 rows to 1 file"
    assert [row["id"] for row in await table_rows(conn, "system.jobs")] == ["FL-00000002"]


async def test_a_row_that_somebody_holds_is_left_for_the_next_run(
    here: Place, conn: Connection, connect: Connect
) -> None:
    """Y-25."""
    await finish(conn, "tasks", 5)
    other = await connect()
    async with other.transaction():
        await other.execute("select from tasks where idempotency_key = 'k3' for update")
        assert await here.flush("tasks") == "4 rows to 1 file"
    assert await here.flush("tasks") == "1 row to 1 file"


async def test_large_rows_make_several_files(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-26: a batch has not more bytes than it may, however many rows it may have."""
    monkeypatch.setattr(flush, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(flush, "READ_ROWS", 2)
    await finish(conn, "tasks", 9)
    await conn.execute("update tasks set payload = jsonb_build_object('x', repeat('y', 4000))")
    rows = await table_rows(conn, "tasks")
    assert await here.flush("tasks") == "9 rows to 3 files"
    assert same(await here.rows("tasks"), rows)


async def test_a_disk_that_is_full_while_rows_are_read_leaves_all_of_them_in_the_table(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-25: the error comes out while the server still has rows to send."""
    await finish(conn, "tasks", 20)
    rows = await table_rows(conn, "tasks")
    monkeypatch.setattr(flush, "PAGE_ROWS", 1)

    original = flush.Draft.write

    def write(draft: flush.Draft, page: list[Any]) -> None:
        if draft.rows:  # the second statement reads two rows
            raise OSError(errno.ENOSPC, "No space left on device")
        original(draft, page)

    with monkeypatch.context() as full:
        full.setattr(flush.Draft, "write", write)
        with pytest.raises(OSError, match="No space left"):
            await asyncio.wait_for(here.flush("tasks"), 60)
    assert same(await table_rows(conn, "tasks"), rows)
    assert await here.archive.list() == []
    assert await here.flush("tasks") == "20 rows to 1 file"
    assert same(await here.rows("tasks"), rows)


# -- what refers to rows -----------------------------------------------------------------------------------


async def test_a_session_that_something_refers_to_stays_and_its_attempts_go_along(
    here: Place, conn: Connection
) -> None:
    """Y-26: a version or a picture keeps its session."""
    await finish(conn, "capture_session", 3)
    sessions = [row["id"] for row in await table_rows(conn, "schedule_ingest.capture_session")]
    await conn.execute("alter table schedule_ingest.capture_image disable trigger user")
    image = "insert into schedule_ingest.capture_image (session_id, sequence, r2_key) values (%s, 1, 'a.png')"
    await conn.execute(image, [sessions[0]])
    attempt = "insert into schedule_ingest.capture_attempt values (%s, 1, 'w', now(), now(), 'processed')"
    for session in sessions:
        await conn.execute(attempt, [session])
    assert await here.flush("capture_session") == "2 rows and 2 events to 2 files"
    assert [row["id"] for row in await table_rows(conn, "schedule_ingest.capture_session")] == sessions[:1]
    tried = await here.rows("schedule_ingest.capture_session", "schedule_ingest.capture_attempt")
    assert {row["session_id"] for row in tried} == set(sessions[1:])


REFERRING = {
    "without a cascade": "create table notes (job_id uuid references job (id))",
    "set null": "create table notes (job_id uuid references job (id) on delete set null)",
    "two ways": "create table notes (job_id uuid references job (id) on delete cascade,"
    " other uuid references job (id) on delete cascade)",
    "deeper": "create table notes (job_id uuid primary key references job (id) on delete cascade);"
    "create table deeper (note uuid references notes (job_id) on delete cascade)",
}


@pytest.mark.parametrize("table", REFERRING.values(), ids=REFERRING.keys())
async def test_nothing_is_lost_by_what_refers_to_a_row(here: Place, conn: Connection, table: str) -> None:
    """Y-26: a row stays if something would go, or be changed, that is not written to a file."""
    await conn.execute(table.encode())
    await finish(conn, "job", 4)
    ((kept,),) = await (
        await conn.execute("insert into notes (job_id) select id from job limit 1 returning job_id")
    ).fetchall()
    assert await here.flush() == "3 rows and 6 events to 2 files"
    assert [row["id"] for row in await table_rows(conn, "job")] == [kept]
    assert [row["job_id"] for row in await table_rows(conn, "notes")] == [kept]


async def test_a_row_that_another_of_its_table_refers_to_stays(here: Place, conn: Connection) -> None:
    """Y-27: a cascade within the table would take unfinished rows along."""
    await conn.execute("alter table job add parent uuid references job (id) on delete cascade")
    await finish(conn, "job", 2)
    query = (
        "insert into job (org_id, type, parent) select org_id, 'child', id from job limit 1 returning parent"
    )
    ((parent,),) = await (await conn.execute(query)).fetchall()
    assert await here.flush() == "1 row and 2 events to 2 files"
    assert {row["id"] for row in await table_rows(conn, "job") if row["type"] == "mail"} == {parent}


# -- what must not be lost -----------------------------------------------------------------------------------


async def test_a_column_that_was_renamed_meanwhile_is_seen_before_rows_go(
    here: Place, conn: Connection
) -> None:
    """Y-24, Y-25: the second batch is not written with the names of the first."""
    await finish(conn, "tasks", 6)

    async def step(name: str) -> None:
        if name == "entered":
            await conn.execute("alter table tasks rename column payload to body")

    with pytest.raises(Exception, match=r"payload|changed"):
        await here.flush("tasks", step, batch_rows=3)
    assert len(await table_rows(conn, "tasks")) == 3
    assert await here.flush("tasks") == "3 rows to 1 file"
    await here.whole("tasks")


async def test_a_delete_that_takes_fewer_rows_than_were_written_takes_none(
    here: Place, conn: Connection
) -> None:
    """Y-25: the counts are compared; the file goes with the next run."""
    await finish(conn, "tasks", 5)
    await conn.execute(
        "create function keep() returns trigger language plpgsql as"
        " 'begin if old.idempotency_key = ''k3'' then return null; end if; return old; end';"
        "create trigger keep before delete on tasks for each row execute function keep()"
    )
    with pytest.raises(RuntimeError, match="4 rows of tasks went and 5 were written"):
        await here.flush("tasks")
    assert len(await table_rows(conn, "tasks")) == 5
    assert await here.rows("tasks") == []
    await conn.execute("drop trigger keep on tasks")
    assert await here.flush("tasks") == "5 rows to 1 file"
    await here.whole("tasks")


async def test_a_flush_that_is_called_off_after_its_commit_still_enters_the_file(
    here: Place, conn: Connection
) -> None:
    """Y-15, Y-25: batches that were committed stay, and count."""
    await finish(conn, "tasks", 6)
    real = here.archive.replace
    begun = asyncio.Event()

    async def slow(key: str, body: bytes, seen: str | None) -> bool:
        if b".rows.parquet" in body:
            begun.set()
            await asyncio.sleep(0.2)
        return await real(key, body, seen)

    here.archive.replace = slow  # type: ignore[method-assign]
    task = asyncio.ensure_future(here.flush("tasks", batch_rows=3))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(await here.rows("tasks")) == 3
    assert len(await table_rows(conn, "tasks")) == 3
    await here.whole("tasks")


async def test_two_flushes_at_once_move_every_row_once(here: Place, conn: Connection) -> None:
    """Y-25: even if a lock on their target had failed."""
    await finish(conn, "job", 60)
    rows = await table_rows(conn, "job")
    await asyncio.gather(*(here.flush(batch_rows=7) for _ in range(2)), return_exceptions=True)
    await here.flush()
    assert same(await here.rows(), rows)
    assert await table_rows(conn, "job") == []
    await here.whole()


async def test_two_jobs_on_one_target_never_overlap(here: Place) -> None:
    """Y-17."""
    async with target_lock(here.bench, "job") as first, target_lock(here.bench, "job") as second:
        assert first is not None
        assert second is None
    async with target_lock(here.bench, "job") as third, target_lock(here.bench, "tasks") as other:
        assert third is not None
        assert other is not None


# -- putting in order ----------------------------------------------------------------------------------------


class Halt(Exception):
    pass


UNKNOWN = {"an older version's": "select null", "of a number yet to come": "select '18000000000000000000'"}


@pytest.fixture(params=["known", *UNKNOWN])
def transaction(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether PostgreSQL knows the transaction that a file names; if not, the table is asked."""
    if request.param in UNKNOWN:
        monkeypatch.setattr(flush.queries, "XID", UNKNOWN[request.param])
    return request.param


async def _until(here: Place, ledger: str, wanted: str, **params: Any) -> None:
    """A flush that goes no further than a step."""

    async def step(name: str) -> None:
        if name == wanted:
            raise Halt

    with pytest.raises(Halt):
        await here.flush(ledger, step, **params)


@pytest.mark.usefixtures("transaction")
async def test_an_unlisted_file_whose_rows_are_gone_in_part_is_removed(here: Place, conn: Connection) -> None:
    """Y-25: the deletion was never committed, so somebody else has removed them, on purpose."""
    await finish(conn, "job", 5)
    await _until(here, "job", "deleted")
    assert len([key for key in await here.archive.list("job") if key.endswith(".parquet")]) == 2
    await conn.execute("delete from job where id in (select id from job limit 2)")
    rows = await table_rows(conn, "job")
    assert await here.flush() == "3 rows and 6 events to 2 files"
    assert same(await here.rows(), rows)
    await here.whole()


@pytest.mark.usefixtures("transaction")
async def test_an_unlisted_file_is_entered_if_its_rows_are_gone(here: Place, conn: Connection) -> None:
    """Y-25: also if one of its keys is in use again."""
    await finish(conn, "schedule_notification", 3)
    table = "schedule_ingest.schedule_notification"
    rows = await table_rows(conn, table)
    await _until(here, "schedule_notification", "committed")
    assert await here.rows(table) == []
    await conn.execute(
        f"insert into {table} (notification_id, user_id, schedule_date, source_session_id, status,"
        " notification_type, message, event_ids)"
        " values ('n2', 7, '2026-03-02', gen_random_uuid(), 'pending', 'event', 'anew', '[]')".encode()
    )
    assert await here.flush("schedule_notification") == "0 rows"
    assert same(await here.rows(table), rows)
    assert [row["message"] for row in await table_rows(conn, table)] == ["anew"]
    await here.whole(table)


WAITING = (
    "select count(*) > 0 from pg_locks join pg_stat_activity using (pid)"
    " where not granted and datname = current_database()"
)


@pytest.mark.parametrize("transaction", UNKNOWN, indirect=True)
@pytest.mark.usefixtures("transaction")
async def test_a_flush_of_which_nobody_knows_is_waited_for(here: Place, conn: Connection) -> None:
    """Y-25: whoever judges by the table holds the rows before."""
    await finish(conn, "tasks", 4)
    rows = await table_rows(conn, "tasks")
    reached, go = asyncio.Event(), asyncio.Event()

    async def step(name: str) -> None:
        if name == "deleted":
            reached.set()
            await go.wait()

    first = asyncio.ensure_future(here.flush("tasks", step))
    await reached.wait()
    second = asyncio.ensure_future(here.flush("tasks"))
    await until(conn, WAITING)
    go.set()
    assert (await first, await second) == ("4 rows to 1 file", "0 rows")
    assert same(await here.rows("tasks"), rows)
    await here.whole("tasks")


async def test_a_late_flush_never_names_a_file_that_others_have_merged_meanwhile(
    here: Place, conn: Connection
) -> None:
    """Y-25, Y-31: it has lost its target after its commit; each row is in the archive once."""
    await finish(conn, "job", 10)
    rows = await table_rows(conn, "job")
    committed, go = asyncio.Event(), asyncio.Event()

    async def step(name: str) -> None:
        if name == "committed":
            committed.set()
            await go.wait()

    late = asyncio.ensure_future(here.flush("job", step, batch_rows=5))
    await committed.wait()
    await here.flush("job")
    await here.compact("job")
    go.set()
    with pytest.raises(Conflict, match="is gone, and is not entered"):
        await late
    assert same(await here.rows("job"), rows)
    await here.whole("job")


async def test_what_goes_along_cannot_be_changed_any_more_once_it_was_read(
    here: Place, conn: Connection
) -> None:
    """Y-25: a change of an event would go with its job, and be in no file."""
    await finish(conn, "job", 3)
    seen: list[str] = []

    async def step(name: str) -> None:
        if name == "published":
            with pytest.raises(LockNotAvailable):
                await conn.execute("select from job_event for no key update nowait")
            seen.append(name)

    assert await here.flush("job", step) == "3 rows and 6 events to 2 files"
    assert seen == ["published"]


async def test_a_file_that_nobody_can_read_is_left_alone_and_told(here: Place, conn: Connection) -> None:
    """Y-25."""
    await here.archive.put("tasks/abc.rows.parquet", b"not of ours")
    run = here.run()
    assert await flush.run(Flush(ledger="tasks"), run) == "0 rows"
    assert any("abc.rows.parquet" in note for note in run.notes)
    assert await here.archive.exists("tasks/abc.rows.parquet")


# -- refusals ------------------------------------------------------------------------------------------


async def test_what_cannot_be_flushed_is_refused_when_the_job_is_made(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-26; bad input: undeclared, not there, or the extra is missing."""
    with pytest.raises(InvalidInput, match="not declared"):
        await flush.check(Flush(ledger="nothing"), here.bench)
    await conn.execute("drop table sync_jobs cascade")
    with pytest.raises(NotFound):
        await flush.check(Flush(ledger="sync_jobs"), here.bench)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[system\]"):
        await flush.check(Flush(ledger="job"), here.bench)


async def test_a_ledger_without_an_end_of_its_own_is_refused(settings: Settings, tmp_path: Path) -> None:
    """Y-27: all of its ends wait for a person."""
    others = (edge for edge in JOB.edges if edge.verb != "requeue")
    patient = replace(JOB, edges=(*others, replace(JOB.edges[-1], frm=JOB.ends)))
    async with place(settings, (tmp_path / "archive").as_uri(), (patient,)) as here:
        with pytest.raises(InvalidInput, match="waits for a person"):
            await flush.check(Flush(ledger="job"), here.bench)
