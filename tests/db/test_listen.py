"""The doorbell's wire: rings, comes back after a loss, and says once when there is none."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import psycopg
import pytest

from holdfast.db import listen as wire
from holdfast.db.database import Database, open_database
from holdfast.db.settings import Settings

LOG = logging.getLogger("holdfast.test.listen")
DOORBELLS = "select pid from pg_stat_activity where application_name = 'holdfast doorbell' and datname = %s"


@pytest.fixture
async def database(empty_database_url: str) -> AsyncIterator[Database]:
    async with open_database(Settings(database_url=empty_database_url, poll_interval=0.25)) as opened:
        yield opened


@asynccontextmanager
async def listening(database: Database, *channels: str) -> AsyncIterator[asyncio.Queue[str]]:
    """The rings, as a queue, while a listener runs."""
    rings: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(wire.listen(database, channels, rings.put_nowait, log=LOG))
    try:
        async with asyncio.timeout(20):
            yield rings
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def notify(database: Database, channel: str) -> None:
    async with database.connection() as connection:
        await connection.execute("select pg_notify(%s, '')", [channel])


async def test_every_channel_rings_once_at_the_start_and_then_for_each_notification(database: Database):
    async with listening(database, "jobs", 'Odd "name"') as rings:
        assert [await rings.get(), await rings.get()] == ["jobs", 'Odd "name"']
        await notify(database, 'Odd "name"')
        assert await rings.get() == 'Odd "name"'
        await notify(database, "elsewhere")
        await notify(database, "jobs")
        assert await rings.get() == "jobs"


async def test_a_lost_connection_comes_back_and_rings_because_something_may_be_missed(
    database: Database, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, LOG.name)
    async with listening(database, "jobs") as rings:
        for _ in range(2):
            assert await rings.get() == "jobs"
            async with database.connection() as connection:
                cursor = await connection.execute(DOORBELLS, [connection.info.dbname])
                row = await cursor.fetchone()
                assert row
                await connection.execute("select pg_terminate_backend(%s, 5000)", [row[0]])
        assert await rings.get() == "jobs"
        await notify(database, "jobs")
        assert await rings.get() == "jobs"
    messages = [record.message for record in caplog.records if record.name == LOG.name]
    assert sum("is lost" in message for message in messages) == 2
    assert sum("works again" in message for message in messages) == 2


async def test_an_outage_is_said_once_however_long_it_lasts(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "FIRST_WAIT", 0.01)
    away = dataclasses.replace(database, direct_url="postgresql://ada:letmein@127.0.0.1:1/x")
    tried = asyncio.Event()
    tries = 0
    really = Database.connect_direct

    async def count(self: Database, purpose: str) -> object:
        nonlocal tries
        tries += 1
        if tries == 4:
            tried.set()
        return await really(self, purpose)

    monkeypatch.setattr(Database, "connect_direct", count)
    async with listening(away, "jobs"):
        await tried.wait()
    assert len(caplog.records) == 1
    assert "polling every 0.25 s" in caplog.text
    assert "letmein" not in caplog.text


async def test_without_a_way_past_the_pooler_it_says_once_that_it_polls(
    database: Database, caplog: pytest.LogCaptureFixture
):
    settings = dataclasses.replace(database.settings, database_pooler="transaction")
    pooled = dataclasses.replace(database, settings=settings)
    await wire.listen(pooled, ["jobs"], pytest.fail, log=LOG)
    (record,) = caplog.records
    assert "polling every 0.25 s" in record.message
    assert "HOLDFAST_DATABASE_DIRECT_URL" in record.message


async def test_a_server_that_refuses_listen_is_polled(
    database: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "LISTEN", "lisssten {channel}")  # so that a real server refuses
    await wire.listen(database, ["jobs"], pytest.fail, log=LOG)
    (record,) = caplog.records
    assert "refuses LISTEN" in record.message
    assert "polling every 0.25 s" in record.message


async def test_cancelling_closes_its_connection(
    database: Database, empty_database_url: str, eventually: Callable[[Callable[[], object]], None]
):
    async with listening(database, "jobs") as rings:
        await rings.get()
    with psycopg.connect(empty_database_url, autocommit=True) as admin:  # the server ends it a little later
        eventually(lambda: admin.execute(DOORBELLS, [admin.info.dbname]).fetchone() is None)
