"""The fixtures that other tests stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import psycopg

from holdfast.db.migrate import current
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings


async def test_a_migrated_database_is_fresh_for_every_test(
    conn: Connection, connect: Callable[[], Awaitable[Connection]], settings: Settings, database_url: str
):
    other = await connect()
    assert current(database_url) is not None
    assert settings.database_url == database_url
    assert other.info.dbname == conn.info.dbname
    assert other.info.backend_pid != conn.info.backend_pid
    assert conn.autocommit
    assert conn.info.parameter_status("TimeZone") == "UTC"


def test_an_empty_database_has_no_table(empty_database_url: str):
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("select from pg_tables where schemaname = 'public'").fetchone() is None
