"""The open database: by URL or embedded, and closed however the block ends."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from holdfast.db import database as database_module
from holdfast.db import embedded, migrate
from holdfast.db.database import Database, open_database
from holdfast.db.settings import Settings
from holdfast.errors import DatabaseUnavailable

Eventually = Callable[[Callable[[], object]], None]


@pytest.fixture
def settings(empty_database_url: str) -> Settings:
    return Settings(database_url=empty_database_url, profile="test")


async def test_a_url_is_opened_and_gives_pooled_and_own_connections(settings: Settings):
    """C-1"""
    async with open_database(settings) as database:
        async with database.connection() as pooled, await database.connect("heartbeat") as own:
            assert pooled.autocommit
            assert pooled.info.backend_pid != own.info.backend_pid
        assert database.url == database.listen_url == settings.database_url
        assert "postgresql://" not in repr(database)
    assert database.pool.closed


async def test_without_a_url_the_embedded_server_is_used(postgres: str):
    """C-6: the run's own server, found by its home: no URL is given."""
    settings = Settings(home=Path(os.environ["_HOLDFAST_TEST_HOME"]))
    async with open_database(settings) as database, database.connection() as connection:
        assert database.url == postgres
        assert connection.info.dbname == "holdfast"


async def test_everything_is_closed_when_the_block_is_cancelled(settings: Settings, empty_database_url: str):
    opened: asyncio.Future[Database] = asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with open_database(settings) as database, database.connection():
            opened.set_result(database)
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    database = await opened
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert database.pool.closed
    with psycopg.connect(empty_database_url) as admin:
        cursor = admin.execute(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and application_name = 'holdfast pool' and state = 'active'"
        )
        assert cursor.fetchone() == (0,)


async def test_a_start_that_is_cancelled_gives_its_lease_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    entered, proceed, released = threading.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class LateLease(embedded.Lease):
        def release(self) -> None:
            super().release()
            loop.call_soon_threadsafe(released.set)

    def acquire_late(home: Path) -> embedded.Lease:
        entered.set()
        proceed.wait(10)
        return LateLease("postgresql:///", os.open(tmp_path, os.O_RDONLY))

    monkeypatch.setattr(embedded, "acquire", acquire_late)

    async def use() -> None:
        async with open_database(Settings(home=tmp_path)):
            pytest.fail("it was cancelled before")

    task = asyncio.create_task(use())
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    proceed.set()
    async with asyncio.timeout(10):
        await released.wait()


async def test_a_pool_that_does_not_open_gives_the_lease_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    released: list[bool] = []

    class Lease(embedded.Lease):
        def release(self) -> None:
            super().release()
            released.append(True)

    def acquire(home: Path) -> embedded.Lease:
        return Lease("postgresql://ada@127.0.0.1:1/x", os.open(tmp_path, os.O_RDONLY))

    monkeypatch.setattr(embedded, "acquire", acquire)
    with pytest.raises(DatabaseUnavailable):
        async with open_database(Settings(home=tmp_path, db_startup_seconds=0.1)):
            pytest.fail("there is no server")
    assert released == [True]


async def test_listen_goes_past_a_pooler_or_nowhere(settings: Settings):
    pooled = dataclasses.replace(settings, database_pooler="transaction")
    direct = dataclasses.replace(pooled, database_direct_url=settings.database_url)
    async with open_database(pooled) as database:
        assert database.listen_url is None
    async with open_database(direct) as database:
        assert database.listen_url == settings.database_url
        async with await database.connect_direct("doorbell") as connection:
            assert "options" in connection.info.get_parameters()


def test_the_newest_migration_is_known_by_its_name() -> None:
    """Without Alembic, which a start with an up-to-date schema needs not import."""
    assert database_module.head() == migrate.head()


def test_a_start_on_an_up_to_date_schema_imports_no_alembic(database_url: str, tmp_path: Path) -> None:
    program = """
import asyncio, sys
from holdfast import Holdfast
async def main():
    async with Holdfast(): pass
asyncio.run(main())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"alembic", "sqlalchemy", "fastapi"}))
"""
    env = {**os.environ, "HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
