"""Connections: pinned alike, patient with faults that pass, and quick to tell those that do not."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from holdfast.db import pool
from holdfast.db.settings import Settings
from holdfast.errors import DatabaseAuthError, DatabaseUnavailable

# If one of these is ever waited for, the test runs into its time limit.
NEVER = (60.0,)


@pytest.fixture
def settings(empty_database_url: str) -> Settings:
    return Settings(database_url=empty_database_url, profile="test")


@pytest.fixture
def pooled(settings: Settings) -> Settings:
    return dataclasses.replace(settings, database_pooler="transaction")


@pytest.fixture
async def small_pool(settings: Settings, empty_database_url: str) -> AsyncIterator[pool.Pool]:
    small = dataclasses.replace(settings, db_max_connections=2, db_acquire_timeout_seconds=0.2)
    opened = await pool.open_pool(small, empty_database_url)
    yield opened
    await opened.close()


async def show(connection: pool.Connection, name: str) -> str:
    cursor = await connection.execute("select current_setting(%s)", [name])
    row = await cursor.fetchone()
    assert row
    return row[0]


async def refusal(settings: Settings, url: str) -> str:
    """The sentence of an error that must come at once."""
    async with asyncio.timeout(10):
        with pytest.raises(DatabaseAuthError) as caught:
            await pool.connect(settings, url, purpose="test", waits=NEVER)
    return str(caught.value)


@pytest.fixture
def in_tokyo(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(
            "do $$ begin execute format('alter database %I set timezone to ''Asia/Tokyo''', "
            "current_database()); end $$"
        )


@pytest.mark.usefixtures("in_tokyo")
@pytest.mark.parametrize("pooler", ["none", "transaction"])
async def test_connections_are_in_utc_though_the_database_is_in_tokyo(
    settings: Settings, empty_database_url: str, pooler: str
):
    settings = dataclasses.replace(settings, database_pooler=pooler)
    with psycopg.connect(empty_database_url) as plain:
        assert plain.info.parameter_status("TimeZone") == "Asia/Tokyo"
    async with await pool.connect(settings, empty_database_url, purpose="test") as own:
        assert await show(own, "TimeZone") == "UTC"
    opened = await pool.open_pool(settings, empty_database_url)
    async with opened, pool.acquire(opened) as connection:
        assert await show(connection, "TimeZone") == "UTC"


async def test_a_connection_has_its_timeouts_its_name_and_its_schema(
    settings: Settings, empty_database_url: str
):
    settings = dataclasses.replace(
        settings, db_statement_timeout_seconds=1.5, db_idle_in_transaction_seconds=7.0, schema="work"
    )
    async with await pool.connect(settings, empty_database_url, purpose="heartbeat") as connection:
        assert await show(connection, "statement_timeout") == "1500ms"
        assert await show(connection, "idle_in_transaction_session_timeout") == "7s"
        assert await show(connection, "application_name") == "holdfast heartbeat"
        assert await show(connection, "search_path") == "work"
        assert connection.autocommit
        assert connection.info.get_parameters()["keepalives_idle"] == "30"


async def test_without_a_schema_the_search_path_is_the_databases(settings: Settings, empty_database_url: str):
    async with await pool.connect(settings, empty_database_url, purpose="test") as connection:
        assert await show(connection, "search_path") == '"$user", public'


async def test_options_of_the_url_stay_and_ours_come_after_them(settings: Settings, empty_database_url: str):
    url = f"{empty_database_url}&options=-c%20work_mem%3D5MB%20-c%20TimeZone%3DAsia/Tokyo"
    async with await pool.connect(settings, url, purpose="test", autocommit=False) as connection:
        assert await show(connection, "work_mem") == "5MB"
        assert await show(connection, "TimeZone") == "UTC"
        assert not connection.autocommit


async def test_behind_a_transaction_pooler_nothing_relies_on_the_session(
    pooled: Settings, empty_database_url: str
):
    async with await pool.connect(pooled, empty_database_url, purpose="test") as connection:
        assert "options" not in connection.info.get_parameters()
        assert connection.prepare_threshold is None
        assert await show(connection, "statement_timeout") == "0"
    opened = await pool.open_pool(pooled, empty_database_url)
    async with opened, pool.acquire(opened) as connection:
        assert connection.prepare_threshold is None


async def test_wrong_credentials_stop_at_once_and_name_the_user_but_not_the_password(
    settings: Settings, empty_database_url: str
):
    """C-3: 28P01; for which user, on which host, and what to check."""
    password = psycopg.conninfo.conninfo_to_dict(empty_database_url)["password"]
    url = empty_database_url.replace(f"holdfast:{password}@", "ada:letmein@")
    told = await refusal(settings, url)
    assert "authentication failed for the user ada" in told
    assert "HOLDFAST_DATABASE_URL" in told
    assert str(psycopg.conninfo.conninfo_to_dict(url)["host"]) in told
    assert "letmein" not in told


async def test_a_missing_password_stops_at_once(
    settings: Settings, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
):
    """C-3"""
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    password = psycopg.conninfo.conninfo_to_dict(empty_database_url)["password"]
    assert "authentication failed" in await refusal(
        settings, empty_database_url.replace(f":{password}@", "@")
    )


async def test_an_unknown_database_stops_at_once_with_its_name(settings: Settings, postgres: str):
    """C-3: 3D000."""
    told = await refusal(settings, postgres.replace("@/holdfast?", "@/nowhere?"))
    assert "there is no database nowhere" in told
    assert "HOLDFAST_DATABASE_URL" in told


async def test_a_pool_tells_the_same_at_its_opening(settings: Settings, postgres: str):
    """C-3: no pool goes on trying in the background."""
    with pytest.raises(DatabaseAuthError, match="there is no database nowhere"):
        await pool.open_pool(settings, postgres.replace("@/holdfast?", "@/nowhere?"))


async def test_a_fault_that_may_pass_is_tried_five_times_with_growing_waits(
    settings: Settings,
):
    """C-2: after 100, 200, 400 and 800 ms."""
    tries: list[float] = []
    clock = asyncio.get_running_loop().time

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tries.append(clock())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = f"postgresql://ada:letmein@127.0.0.1:{port}/work?sslmode=disable&gssencmode=disable"
        with pytest.raises(DatabaseUnavailable) as caught:
            await pool.connect(settings, url, purpose="test")
    waits = [after - before for before, after in itertools.pairwise(tries)]
    assert len(tries) == 5
    for wait, least in zip(waits, [0.1, 0.2, 0.4, 0.8], strict=True):
        assert wait >= least
    assert "ada:***@127.0.0.1" in str(caught.value)
    assert "letmein" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://ada:letmein@127.0.0.1:1/work", "postgresql://ada:letmein@/work?host=/nonexistent"]
)
async def test_a_refused_port_and_a_missing_socket_are_tried_again_and_then_told(
    settings: Settings, url: str
):
    """C-2"""
    with pytest.raises(DatabaseUnavailable, match="cannot be reached") as caught:
        await pool.connect(settings, url, purpose="test", waits=(0.01, 0.01))
    assert "letmein" not in str(caught.value)


async def test_a_start_waits_for_a_server_that_is_away_as_long_as_the_setting_says(
    settings: Settings, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
):
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    away = psycopg.conninfo.make_conninfo(empty_database_url, host="/nonexistent")
    with pytest.raises(DatabaseUnavailable, match="cannot be reached"):
        await pool.open_pool(settings, away)
    assert waits[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert sum(waits) == pytest.approx(settings.db_startup_seconds) == 30


async def test_a_start_goes_on_when_the_server_comes_back(settings: Settings, empty_database_url: str):
    """Longer than the second and a half that a connection of a running program is tried for."""
    given = psycopg.conninfo.conninfo_to_dict(empty_database_url)
    server = Path(str(given["host"])) / f".s.PGSQL.{given.get('port') or 5432}"
    with tempfile.TemporaryDirectory(prefix="hf") as folder:
        away = psycopg.conninfo.make_conninfo(empty_database_url, host=folder)
        opening = asyncio.create_task(pool.open_pool(settings, away))
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable):
                await pool.connect(settings, away, purpose="test")
        (Path(folder) / server.name).symlink_to(server)
        opened = await opening
        async with opened, pool.acquire(opened) as connection:
            assert await show(connection, "TimeZone") == "UTC"


async def test_too_many_connections_is_a_fault_that_passes(settings: Settings, empty_database_url: str):
    """C-2"""
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        admin.execute("create role crowd login password 'crowd' connection limit 1")
        try:
            password = psycopg.conninfo.conninfo_to_dict(empty_database_url)["password"]
            url = empty_database_url.replace(f"holdfast:{password}@", "crowd:crowd@")
            async with await pool.connect(settings, url, purpose="first"):
                with pytest.raises(DatabaseUnavailable, match="too many connections"):
                    await pool.connect(settings, url, purpose="second", waits=(0.01,))
        finally:
            admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'crowd'"
            )
            admin.execute("drop role crowd")


async def test_a_pool_with_nothing_free_says_so_in_time(small_pool: pool.Pool):
    """C-1: HOLDFAST_DB_ACQUIRE_TIMEOUT_SECONDS and HOLDFAST_DB_MAX_CONNECTIONS."""
    async with pool.acquire(small_pool), pool.acquire(small_pool):
        with pytest.raises(DatabaseUnavailable, match=r"free within 0\.2 seconds.*all 2 connections"):
            async with pool.acquire(small_pool):
                pass
    async with pool.acquire(small_pool) as connection:
        assert await show(connection, "TimeZone") == "UTC"


async def test_an_error_in_the_body_passes_and_gives_the_connection_back(small_pool: pool.Pool):
    with pytest.raises(ZeroDivisionError):
        async with pool.acquire(small_pool):
            raise ZeroDivisionError
    async with pool.acquire(small_pool), pool.acquire(small_pool):
        pass  # both are free again


async def test_a_dead_connection_is_not_handed_out(small_pool: pool.Pool, empty_database_url: str):
    async with pool.acquire(small_pool) as connection:
        pid = connection.info.backend_pid
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        admin.execute("select pg_terminate_backend(%s, 5000)", [pid])
    async with pool.acquire(small_pool) as connection:
        assert connection.info.backend_pid != pid
        assert await show(connection, "TimeZone") == "UTC"


def test_a_server_that_is_too_old_is_refused_by_name():
    pool.check_version(150000)
    with pytest.raises(DatabaseUnavailable, match=r"PostgreSQL 15 or newer, and this server is 14\.9"):
        pool.check_version(140009)
