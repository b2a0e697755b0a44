"""Rows that somebody comes to refer to between the look of a statement and its lock (Y-26, Y-27).

A statement sees what was there when it began. So flush and retention look once more when they hold the rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import Connect
from holdfast import Settings
from holdfast.apps.system.executors import flush_queries, retention_queries
from holdfast.db.pool import Connection
from runtime.support import until
from system.archiving import Place, finish, place, table_rows
from system.kit import stage

GATE = """
create function gate() returns boolean language plpgsql as
'begin perform pg_advisory_xact_lock_shared(4711); return true; end'
"""
BEFORE_IT = (
    "select count(*) > 0 from pg_locks as l join pg_database as d on d.oid = l.database"
    " where d.datname = current_database() and l.locktype = 'advisory' and l.objid = 4711 and not l.granted"
)
REFERRING = {
    "set null": "create table notes (job_id uuid references job (id) on delete set null)",
    "deeper": "create table notes (job_id uuid primary key references job (id) on delete cascade);"
    "create table deeper (note uuid references notes (job_id) on delete cascade)",
}
REFER = "insert into notes (job_id) select id from job order by finished_at limit 1 returning job_id"


@pytest.fixture
async def here(settings: Settings, tmp_path: Path) -> AsyncIterator[Place]:
    async with place(settings, (tmp_path / "archive").as_uri()) as here:
        yield here


@pytest.fixture(autouse=True)
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever picks rows has looked, and stops at a gate before he locks them, the oldest first."""
    for queries in (flush_queries, retention_queries):
        stops = "and gate() order by t.finished_at limit %("
        monkeypatch.setattr(queries, "PICK", queries.PICK.replace("limit %(", stops))


@asynccontextmanager
async def at_the_gate(conn: Connection, connect: Connect, work: Any) -> AsyncGenerator[asyncio.Future[Any]]:
    """Within it somebody who picks rows has looked and not locked."""
    await conn.execute(GATE)
    holder = await connect()
    async with holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(4711)")
        working = asyncio.ensure_future(work)
        await until(conn, BEFORE_IT)
        yield working


@pytest.mark.parametrize("table", REFERRING.values(), ids=REFERRING.keys())
async def test_a_flush_leaves_a_row_that_somebody_came_to_refer_to_before_it_was_locked(
    here: Place, conn: Connection, connect: Connect, table: str
) -> None:
    """Y-26: and whatever refers to it is as it was."""
    await conn.execute(table.encode())
    await finish(conn, "job", 4)
    async with at_the_gate(conn, connect, here.flush()) as flushing:
        ((kept,),) = await (await conn.execute(REFER)).fetchall()
    assert await flushing == "3 rows and 6 events to 2 files"
    assert [row["id"] for row in await table_rows(conn, "job")] == [kept]
    assert [row["job_id"] for row in await table_rows(conn, "notes")] == [kept]
    assert kept not in {row["id"] for row in await here.rows()}


async def test_a_batch_of_a_flush_of_which_no_row_may_go_is_not_the_last(
    here: Place, conn: Connection, connect: Connect
) -> None:
    """Y-26: somebody came to refer to the only row of it."""
    await conn.execute(REFERRING["set null"].encode())
    await finish(conn, "job", 3)
    async with at_the_gate(conn, connect, here.flush(batch_rows=1)) as flushing:
        ((kept,),) = await (await conn.execute(REFER)).fetchall()
    assert await flushing == "2 rows and 4 events to 4 files"
    assert [row["id"] for row in await table_rows(conn, "job")] == [kept]


@pytest.mark.parametrize("batch", [1, 1000])
async def test_a_retention_leaves_a_row_that_somebody_came_to_refer_to_before_it_was_locked(
    settings: Settings, conn: Connection, connect: Connect, batch: int
) -> None:
    """Y-27: also if it was the only one of a batch, which is not the last then."""
    await conn.execute(REFERRING["set null"].encode())
    await finish(conn, "job", 3)
    async with stage(settings) as on:
        given = {"ledger": "job", "retention_hours": 24, "batch_size": batch}
        async with at_the_gate(conn, connect, on.run("retention", given)) as working:
            ((kept,),) = await (await conn.execute(REFER)).fetchall()
        done = await working
        assert done.columns["message"] == "2 rows; 1 stay, as others refer to them"
        assert [row["id"] for row in await table_rows(conn, "job")] == [kept]
        assert [row["job_id"] for row in await table_rows(conn, "notes")] == [kept]


async def test_a_retention_takes_no_unfinished_row_along_that_has_just_begun_to_refer(
    settings: Settings, conn: Connection, connect: Connect
) -> None:
    """Y-27: a cascade within the table."""
    await conn.execute("alter table job add parent uuid references job (id) on delete cascade")
    await finish(conn, "job", 2)
    async with stage(settings) as on:
        given = {"ledger": "job", "retention_hours": 24}
        async with at_the_gate(conn, connect, on.run("retention", given)) as working:
            await conn.execute(
                "insert into job (org_id, type, parent) select org_id, 'child', id from job limit 1"
            )
        assert (await working).columns["message"] == "1 row; 1 stay, as others refer to them"
        assert sorted(row["type"] for row in await table_rows(conn, "job")) == ["child", "mail"]
