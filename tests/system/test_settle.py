"""What becomes of the files of a flush that was cut off, or has lost its target (Y-25, Y-30, Y-33).

The transaction that was to delete the rows of a file decides: PostgreSQL knows how it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Settings
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.executors import flush
from holdfast.apps.system.parameters import Flush
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.db.pool import Connection
from runtime.support import until
from system.archiving import Place, finish, place, same, table_rows
from system.kit import stage
from system.safe import LooseRun, back_up, bring_back
from system.subjects import ANNA, filled, mentions

FLUSHING = (
    "select count(*) = 0 from pg_stat_activity"
    " where datname = current_database() and split_part(application_name, ' [', 1) = 'holdfast flush'"
)
END = "select pg_terminate_backend(pid) " + FLUSHING[FLUSHING.index("from") :]


@pytest.fixture
async def here(settings: Settings, tmp_path: Path) -> AsyncIterator[Place]:
    async with place(settings, (tmp_path / "archive").as_uri()) as here:
        yield here


class Halt(Exception):
    pass


async def halted(here: Place, ledger: str, wanted: str) -> None:
    """A flush that goes no further than a step."""

    async def step(name: str) -> None:
        if name == wanted:
            raise Halt

    with pytest.raises(Halt):
        await here.flush(ledger, step)


def gate(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """The first flush has published all files but that of the rows (reached), and waits (go)."""
    reached, go, real = asyncio.Event(), asyncio.Event(), archive.put

    async def put(key: str, body: bytes, step: Step = unwatched) -> None:
        if key.endswith(".rows.parquet") and not reached.is_set():
            reached.set()
            await go.wait()
        await real(key, body, step)

    monkeypatch.setattr(archive, "put", put)
    return reached, go


async def ended(conn: Connection) -> None:
    """Ends the connections of all flushes, as a server does that goes away."""
    await conn.execute(END)
    await until(conn, FLUSHING)


async def test_the_files_of_a_flush_that_is_still_at_it_are_left_alone(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-25: it has lost its target, not its transaction; a cascade takes the events whose file is there."""
    await finish(conn, "job", 10)
    rows, events = await table_rows(conn, "job"), await table_rows(conn, "job_event")
    reached, go = gate(here.archive, monkeypatch)
    first = asyncio.ensure_future(here.flush())
    await reached.wait()
    assert await here.flush() == "0 rows"
    go.set()
    assert await first == "10 rows and 20 events to 2 files"
    assert same(await here.rows(), rows)
    assert same(await here.rows("job", "job_event"), events)
    await here.whole()


@pytest.mark.parametrize("wanted", ["published", "deleted"])
async def test_a_flush_that_has_published_all_and_not_committed_is_left_alone(
    here: Place, conn: Connection, wanted: str
) -> None:
    """Y-25: whoever comes in between neither enters its files nor removes them."""
    await finish(conn, "job", 4)
    rows, told = await table_rows(conn, "job"), list[str]()

    async def step(name: str) -> None:
        if name == wanted:
            told.append(await asyncio.wait_for(here.flush(), 20))
            assert len([key for key in await here.archive.list("job") if key.endswith(".parquet")]) == 2
            assert (await manifests.read(here.archive, "job")).files == ()

    assert await here.flush("job", step) == "4 rows and 8 events to 2 files"
    assert told == ["0 rows"]
    assert same(await here.rows(), rows)
    await here.whole()


@pytest.mark.parametrize("wanted", ["published", "deleted"])
async def test_rows_that_were_removed_on_purpose_do_not_come_back_by_a_flush_that_was_rolled_back(
    here: Place, conn: Connection, wanted: str
) -> None:
    """Y-25, Y-27: that none of its rows is there does not tell that they went by its deletion."""
    await finish(conn, "job", 4)
    await halted(here, "job", wanted)
    await conn.execute("delete from job")  # as a retention does
    assert await here.flush() == "0 rows"
    assert await here.rows() == []
    await here.whole()


async def test_a_flush_that_was_rolled_back_and_publishes_late_doubles_nothing(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-25: another has moved the same rows meanwhile."""
    await finish(conn, "job", 10)
    rows, events = await table_rows(conn, "job"), await table_rows(conn, "job_event")
    reached, go = gate(here.archive, monkeypatch)
    late = asyncio.ensure_future(here.flush())
    await reached.wait()
    await ended(conn)
    assert await here.flush() == "10 rows and 20 events to 2 files"
    go.set()
    with pytest.raises(psycopg.OperationalError):
        await late
    assert await here.flush() == "0 rows"
    assert same(await here.rows(), rows)
    assert same(await here.rows("job", "job_event"), events)
    await here.whole()


async def test_an_erased_subject_does_not_come_back_by_a_flush_that_was_rolled_back(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-30: the flush had read its rows, and publishes them when they are erased."""
    async with stage(settings) as on:
        await filled(on, ANNA)
        reached, go = gate(on.bench.archive, monkeypatch)
        run: Any = LooseRun(on.bench, "FL-loose000")
        late = asyncio.ensure_future(flush.run(Flush(ledger="job", older_than_hours=1), run))
        await reached.wait()
        await ended(conn)
        done = await on.run("user_cleanup", {"subject": {"org_id": str(ANNA)}, "cascade": True})
        assert done.state == "completed", done.columns["message"]
        go.set()
        with pytest.raises(psycopg.OperationalError):
            await late
        assert (await on.run("flush", {"ledger": "job", "older_than_hours": 1})).state == "completed"
        assert await mentions(on, ANNA) == {}


async def test_a_file_that_was_committed_counts_also_where_a_restore_has_brought_rows_of_it_back(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-25, Y-33: what came after the backup is in the file alone."""
    async with stage(settings, tmp_path) as on, place(settings, on.app.settings.system_archive or "") as here:
        await finish(conn, "job", 5)
        await back_up(on.bench, "public", "a")
        await finish(conn, "job", 5)
        rows = {row["id"] for row in await table_rows(conn, "job")}
        events = {row["id"] for row in await table_rows(conn, "job_event")}
        await halted(here, "job", "committed")
        await bring_back(on.bench, "a", "public", overwrite=True)
        assert await on.one("select count(*) from job") == 5
        done = await on.run("flush", {"ledger": "job"})
        assert done.columns["message"] == "5 rows and 10 events to 2 files"
        assert {row["id"] for row in await here.rows()} == rows
        assert {row["id"] for row in await here.rows("job", "job_event")} == events
        await here.whole()


async def test_the_events_alone_of_a_transaction_that_nobody_knows_go(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-25: the file of the rows comes last, so that none was deleted."""
    monkeypatch.setattr(flush.queries, "XID", "select null")
    await finish(conn, "job", 3)
    reached, _ = gate(here.archive, monkeypatch)
    cut = asyncio.ensure_future(here.flush())
    await reached.wait()
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert await here.flush() == "3 rows and 6 events to 2 files"
    await here.whole()


async def test_a_file_of_another_server_is_judged_by_the_table(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-25: numbers of transactions are each server's own."""

    async def another(*_: Any) -> None:
        return None

    with suppress(Halt):
        async with conn.transaction():
            ((rolled_back,),) = await (await conn.execute(flush.queries.XID)).fetchall()
            raise Halt
    await finish(conn, "tasks", 3)
    rows = await table_rows(conn, "tasks")
    with monkeypatch.context() as patched:
        patched.setattr(flush, "owner_of", another)
        patched.setattr(flush.queries, "XID", f"select '{rolled_back}'")
        await halted(here, "tasks", "committed")
    assert await here.flush("tasks") == "0 rows"
    assert same(await here.rows("tasks"), rows)


async def test_the_number_of_a_transaction_is_written_out_before_a_file_names_it(
    here: Place, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-25: a server that crashes gives a number that is not written out to another."""
    await finish(conn, "tasks", 1)
    seen, real = dict[str, Any](), here.archive.put

    async def step(name: str) -> None:
        if name == "locked":
            ((seen["locked"],),) = await (await conn.execute("select pg_current_wal_insert_lsn()")).fetchall()

    async def put(key: str, body: bytes, step: Step = unwatched) -> None:
        query = "select pg_current_wal_flush_lsn() >= %s::pg_lsn"
        ((seen["safe"],),) = await (await conn.execute(query, [seen["locked"]])).fetchall()
        await real(key, body, step)

    monkeypatch.setattr(here.archive, "put", put)
    await here.flush("tasks", step)
    assert seen["safe"]
