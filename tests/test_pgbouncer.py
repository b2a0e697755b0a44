"""It works through PgBouncer in transaction mode: no session state, no prepared statements, no LISTEN."""

import asyncio
import logging
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from api.kit import api_of, served_app, working
from holdfast import Context, Holdfast, Settings
from holdfast.db import pool
from holdfast.errors import DatabaseAuthError, DatabaseUnavailable
from runtime.support import one, running, until

PGBOUNCER = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin")

pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="needs pgbouncer: apt-get install pgbouncer")

CONFIG = """
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 100
server_idle_timeout = 5
server_login_retry = 1
"""


@pytest.fixture
def pooled(settings: Settings) -> Iterator[Settings]:
    """Settings that lead through a pooler of this test's own."""
    with pooler(settings) as pooled:
        yield pooled


@contextmanager
def pooler(settings: Settings, **instead: str) -> Iterator[Settings]:
    """A pooler before the server of these settings; `instead`: where it looks for that server, as whom."""
    assert settings.database_url
    assert PGBOUNCER
    given = conninfo_to_dict(settings.database_url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-"))
    folder.chmod(0o755)
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(**{"listen": port, **given, **instead}))
    # It needs the server's socket, which only its owner may use; and it refuses to be root.
    owner = pwd.getpwuid(Path(str(given["host"])).stat().st_uid)
    command = [PGBOUNCER, "-q", str(config)]
    process = subprocess.Popen(command, user=owner.pw_uid if os.geteuid() == 0 else None)
    url = f"postgresql://{given['user']}@127.0.0.1:{port}/{given['dbname']}"
    try:
        deadline = time.monotonic() + 20
        while not listens(port):
            assert time.monotonic() < deadline, "pgbouncer does not listen"
            time.sleep(0.02)
        yield replace(settings, database_url=url, database_pooler="transaction", poll_interval=0.1)
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(folder)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_start_behind_a_pooler_waits_for_the_server_to_come_back(
    settings: Settings, database_url: str
) -> None:
    """As in a restart: the pooler knows the server, accepts clients, and lets their first statement wait."""
    given = conninfo_to_dict(database_url)
    server = f"{given['host']}/.s.PGSQL.{given.get('port') or 5432}"
    with tempfile.TemporaryDirectory(prefix="hf") as folder, psycopg.connect(database_url) as direct:
        os.chmod(folder, 0o755)  # noqa: PTH101
        link = Path(folder) / server.rpartition("/")[2]
        link.symlink_to(server)
        with pooler(replace(settings, db_acquire_timeout_seconds=0.5), host=folder) as pooled:
            async with Holdfast(pooled):
                pass
            link.unlink()
            with suppress(DatabaseUnavailable):
                while True:  # the pooler may be opening a session just now, which the first round misses
                    direct.execute(
                        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                        " where pid <> pg_backend_pid() and datname = current_database()"
                    )
                    async with await pool.connect(pooled, str(pooled.database_url), purpose="test"):
                        pass
            app = Holdfast(pooled)
            opening = asyncio.create_task(app.__aenter__())
            with pytest.raises(DatabaseUnavailable):  # for as long as a running program would try
                await pool.connect(pooled, str(pooled.database_url), purpose="test")
            assert not opening.done()
            link.symlink_to(server)
            await opening
            await app.enqueue("tasks", "x")
            await app.__aexit__()


async def test_a_pooler_that_the_server_refuses_stops_the_start_at_once(settings: Settings) -> None:
    with pooler(settings, password="letmein") as pooled:
        async with asyncio.timeout(20):
            with pytest.raises(DatabaseAuthError, match="authentication failed"):
                async with Holdfast(replace(pooled, db_startup_seconds=3600.0)):
                    pytest.fail("it started")


def application(settings: Settings) -> Holdfast:
    app = Holdfast(settings)

    @app.handler("note")
    async def note(text: str, ctx: Context) -> None:
        conn = await ctx.transaction()
        await conn.execute("insert into notes values (%s)", [text])

    return app


async def test_a_worker_behind_a_transaction_pooler_drains_polls_and_says_so_once(
    pooled: Settings, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(database_url, autocommit=True) as direct:
        direct.execute("create table notes (text text)")
        caplog.set_level(logging.WARNING)
        async with application(pooled) as app:
            for number in range(100):
                await app.enqueue("tasks", "note", f"note {number}")
            assert await app.worker(concurrency=8).run(until_idle=True) == 0
        assert direct.execute("select count(*), count(distinct text) from notes").fetchone() == (100, 100)
        rows = direct.execute("select distinct status::text, attempts from tasks").fetchall()
        assert rows == [("completed", 1)]
        assert direct.execute("select count(*) from workers").fetchone() == (0,)
    assert [r.message for r in caplog.records if "LISTEN" in r.message] == [
        "no LISTEN through a transaction pooler: polling every 0.1 s; HOLDFAST_DATABASE_DIRECT_URL would help"
    ]


async def test_behind_a_pooler_a_locked_row_holds_up_no_other_row(
    pooled: Settings, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock timeout is that of each transaction, as the session is not the worker's own."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    app = Holdfast(pooled)

    @app.handler("slow", ledger="tasks")
    async def slow() -> None:
        begun.set()
        await go_on.wait()

    @app.handler("quick", ledger="tasks")
    async def quick() -> None:
        return

    done = "select count(*) filter (where status = 'completed')"
    async with app, await psycopg.AsyncConnection.connect(database_url, autocommit=True) as direct:
        locked = (await app.enqueue("tasks", "slow")).id
        async with running(app.worker(ledgers=["tasks"], concurrency=4)), asyncio.timeout(60):
            await begun.wait()
            async with direct.transaction():
                await direct.execute("select from tasks where id = %s for update", [locked])
                go_on.set()
                for _ in range(20):
                    await app.enqueue("tasks", "quick")
                await until(direct, f"{done} = 20 from tasks")
                assert await one(direct, "select status::text from tasks where id = %s", locked) == "running"
            await until(direct, f"{done} = 21 from tasks")
        assert await one(direct, "select max(attempts) from tasks") == 1
    assert any("locked" in record.message for record in caplog.records)


async def test_with_a_direct_url_the_doorbell_rings_past_the_pooler(
    pooled: Settings, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    ran = asyncio.Event()
    # So long a poll that only the doorbell can be the reason for a run within the time limit.
    app = Holdfast(replace(pooled, database_direct_url=database_url, poll_interval=300))

    @app.handler("ring")
    async def ring() -> None:
        ran.set()

    async with app:
        worker = app.worker()
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(20):
            await worker.pumps[0].idle.wait()
            await app.enqueue("tasks", "ring")
            await ran.wait()
        worker.stop()
        await running
    assert not [r for r in caplog.records if "LISTEN" in r.message]


async def test_times_are_utc_behind_a_pooler_although_the_server_says_otherwise(
    pooled: Settings, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as direct:
        name: Any = conninfo_to_dict(database_url)["dbname"]
        direct.execute(
            psycopg.sql.SQL("alter database {} set timezone = 'Asia/Tokyo'").format(
                psycopg.sql.Identifier(name)
            )
        )
        async with Holdfast(pooled) as app:
            receipt = await app.enqueue("tasks", "x", delay=60)
            await app.enqueue("tasks", "x", key="twice")
            await app.enqueue("tasks", "x", key="twice")
        query = (
            "select abs(extract(epoch from created_at - (clock_timestamp() at time zone 'UTC'))) < 60,"
            " abs(extract(epoch from updated_at - (clock_timestamp() at time zone 'UTC'))) < 60,"
            " extract(epoch from next_retry_at - created_at) = 60 from tasks where id = %s"
        )
        assert direct.execute(query, [receipt.id]).fetchone() == (True, True, True)
        touched = (
            "select abs(extract(epoch from updated_at - (clock_timestamp() at time zone 'UTC'))) < 60"
            " from tasks where idempotency_key = 'twice'"
        )
        assert direct.execute(touched).fetchone() == (True,)


def test_the_api_works_behind_a_transaction_pooler_for_operators_and_tenants(pooled: Settings) -> None:
    """Looks, orders, a tenant's role for one transaction, a long poll, a pause that workers obey."""
    app = Holdfast(pooled)

    @app.handler("quick")
    async def quick() -> str:
        return "done"

    with served_app(pooled, api_of(Holdfast(pooled))) as served:
        operator, tenant, other = (served.client(who) for who in ("admin", "tenant", "other tenant"))
        assert operator.put("/api/ledgers/job/pause").json()["changed"] is True
        key = tenant.post("/api/ledgers/job/rows", json={"kind": "quick"}).json()["id"]
        url = f"/api/ledgers/job/rows/{key}"
        assert (tenant.get(url).status_code, other.get(url).status_code) == (200, 404)
        with working(app, ledgers=["job"]):
            assert tenant.get(f"{url}/explain").json()["code"] == "PAUSED"
            assert operator.delete("/api/ledgers/job/pause").json()["changed"] is True
            assert tenant.get(f"{url}/wait", params={"seconds": 30}).json()["row"]["result"] == "done"
        for path in ("/api/overview", "/api/ledgers/job/stats", "/api/ledgers/job/rows", "/metrics"):
            assert operator.get(path).status_code == 200
        assert other.get("/api/ledgers/job/rows").json()["rows"] == []
        assert [one["action"] for one in operator.get("/api/audit").json()["entries"]] == ["resume", "pause"]
