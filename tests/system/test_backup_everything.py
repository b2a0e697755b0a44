"""A database with data of all apps: backed up, dropped, restored; and workers go on (Y-32, Y-33)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import connectors.kit as connecting
import schedules.kit as scheduling
from holdfast import Holdfast, Item, Settings
from holdfast.apps.system.backups import Table
from holdfast.db import migrate
from holdfast.db.pool import Connection
from holdfast.engine.verify import verify
from runtime.support import Process, drain, make_tables, not_outliving, one, running, until, worker_of
from system.kit import Stage, stage
from system.safe import back_up, bring_back, drop, strays, sums

SCHEMAS = ("public", "schedule_ingest", "system")
ORG = uuid.UUID("00000000-0000-4000-8000-000000000001")
Everything = dict[str, dict[str, Table]]


async def nothing() -> None:
    """What handlers do here: nothing goes wrong."""


async def fill(settings: Settings, conn: Connection) -> None:
    """Rows of every app: finished, failed and waiting ones, with their records."""
    await make_tables(conn)
    async with Holdfast(settings) as app:
        app.handler("note")(nothing)
        for ledger, more in (("tasks", {}), ("job", {"tenant": ORG})):
            await app.enqueue_many(ledger, [Item(kind="note", **more) for _ in range(20)])
        await drain(app, ledgers=["tasks", "job"])
        for ledger, more in (("tasks", {}), ("job", {"tenant": ORG})):
            await app.enqueue_many(ledger, [Item(kind="note", **more) for _ in range(10)])
    async with connecting.stage(settings, conn, connecting.Script(syncs=[connecting.page("a", "b")])) as on:
        link = await on.link()
        await on.add(link)
        await on.deliver(link, "d-1", {"text": "ö \U0001f600"})
        await on.work()
        await on.add(link)
    async with scheduling.stage(settings) as on:
        later = scheduling.day(scheduling.entry(end="17:00"))
        await on.observe(scheduling.day(scheduling.entry()), later)
        await on.capture(keys=["picture-1"])


async def everything(conn: Connection) -> Everything:
    """The rows and sums of all tables of all schemas."""
    return {schema: await sums(conn, schema) for schema in SCHEMAS}


def told(found: Everything) -> dict[str, int]:
    """How many rows each table has that has any."""
    return {f"{schema}.{t.name}": t.rows for schema, ts in found.items() for t in ts.values() if t.rows}


@asynccontextmanager
async def filled(settings: Settings, conn: Connection, folder: Path) -> AsyncIterator[Stage]:
    """A stage on a database with data of all apps."""
    await fill(settings, conn)
    async with stage(settings, folder) as on:
        yield on


async def test_backup_drop_everything_restore_and_all_is_as_it_was(
    settings: Settings, conn: Connection, connect: Any, tmp_path: Path
) -> None:
    """Y-32, Y-33: the schemas of all apps; row counts and checksums are equal, and what waited is done."""
    async with filled(settings, conn, tmp_path) as on:
        await on.create("flush", {"ledger": "job"})
        # One that waits would be ended: a system job is not run again by itself.
        await conn.execute("update system.jobs set status = 'failed', finished_at = created_at")
        before = await everything(conn)
        present = told(before)
        for name in ("tasks", "job", "job_event", "connections", "signals", "webhook_delivery", "sync_jobs"):
            assert present.get(f"public.{name}"), name
        for name in (
            "capture_session",
            "schedule_version",
            "schedule_event",
            "day_snapshot",
            "capture_image",
        ):
            assert present.get(f"schedule_ingest.{name}"), name
        assert present["system.jobs"] == 1
        for schema in SCHEMAS:
            await back_up(on.bench, schema, f"all/{schema}")
        assert await everything(conn) == before
        await drop(conn, *SCHEMAS)
        for schema in SCHEMAS:
            await bring_back(on.bench, f"all/{schema}", schema)
        assert await everything(conn) == before
        assert await strays(conn, tmp_path) == []
    assert migrate.check(settings.database_url or "", _metadata()) == []
    async with Holdfast(settings) as app:
        app.handler("note")(nothing)
        await drain(app, ledgers=["tasks", "job"])
        conn = await connect()
        assert await one(conn, "select count(*) from tasks where status = 'completed'") == 30
        assert await one(conn, "select count(*) from job where status = 'succeeded'") == 30


def _metadata() -> Any:
    import holdfast.apps.connectors.tables
    import holdfast.apps.jobs.tables
    import holdfast.apps.schedules.tables
    import holdfast.apps.system.tables
    import holdfast.apps.tasks.tables  # noqa: F401
    from holdfast.db.tables import metadata

    return metadata


async def test_a_new_installation_takes_the_place_of_what_was_lost(
    settings: Settings, conn: Connection, connect: Any, tmp_path: Path
) -> None:
    """Y-33: dropped, installed anew, and restored by jobs over what the installation made."""
    folder = tmp_path
    async with filled(settings, conn, folder) as on:
        before = await everything(conn)
        for schema in SCHEMAS:
            await back_up(on.bench, schema, schema)
    await drop(conn, *SCHEMAS)
    await conn.execute("create schema public")
    await asyncio.to_thread(migrate.upgrade, settings.database_url or "")
    async with stage(settings, folder) as on:
        for schema in SCHEMAS:
            params = {"backup_location": schema, "target_schema": schema, "overwrite": True}
            row = await on.run("restore", params)
            assert row.state == "completed", row.columns
        after = await everything(conn)
        # The last job keeps its own row; presence is that of those who are there.
        assert after["system"].pop("jobs").rows == before["system"].pop("jobs").rows + 1
        assert after["public"].pop("workers").rows == 0
        # What workers count is told when they stop.
        for gone in (before, after):
            gone["public"].pop("holdfast_pulse")
            gone["public"].pop("workers", None)
        assert after == before
        assert await strays(conn, folder) == []


async def test_workers_go_on_while_their_tables_are_replaced(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: a real worker keeps its place and drains what comes after; what it held then is given back."""
    await make_tables(conn)
    set_up = {
        "heartbeat_interval": "0.2",
        "worker_timeout": "20",
        "leader_term": "1",
        "poll_interval": "0.05",
    }
    process = Process(settings.database_url or "", tmp_path / "log", ["--ledgers", "tasks"], set_up)
    with not_outliving(process.popen):
        async with stage(settings, tmp_path, worker_timeout=2.0) as on:
            worker = await worker_of(conn, process)
            for _ in range(30):
                await on.app.enqueue("tasks", "note")
            await until(conn, "select count(*) = 30 from tasks where status = 'completed'")
            # One that the living worker has by its row alone: it ran when the backup was made, no more.
            held = await on.app.enqueue("job", "note", tenant=ORG)
            await conn.execute(
                "update job set status = 'running', worker_id = %s, fence = 1,"
                " started_at = now() - interval '1 hour' where id = %s",
                (worker, held.id),
            )
            await back_up(on.bench, "public", "a")
            await conn.execute(
                "update job set status = 'succeeded', finished_at = now() where id = %s", (held.id,)
            )
            await on.app.enqueue("tasks", "note")
            await until(conn, "select count(*) = 31 from tasks where status = 'completed'")
            row = await on.run(
                "restore", {"backup_location": "a", "target_schema": "public", "overwrite": True}
            )
            assert row.state == "completed", row.columns
            assert await one(conn, "select id from workers where id = %s", worker) == worker
            for _ in range(30):
                await on.app.enqueue("tasks", "note")
            await until(conn, "select count(*) = 60 from tasks where status = 'completed'")
            assert await one(conn, "select count(*) from tasks where status <> 'completed'") == 0
            on.app.handler("note")(nothing)
            async with running(on.app.worker(ledgers=["job"])):
                await until(conn, "select status = 'succeeded' from job where id = %s", held.id)
            assert await one(conn, "select fence from job where id = %s", held.id) == 2
            assert await strays(conn, tmp_path) == []
        process.ask_to_stop()
        assert await process.ended() == 0
    assert "Traceback" not in process.said()


async def test_what_ran_when_the_backup_was_made_is_given_back_on_the_record(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: with an event, by the job that restores, so that the record is true at once."""
    async with stage(settings, tmp_path) as on:
        store = on.app.store("job")
        made = [(await on.app.enqueue("job", "note", tenant=ORG)).id for _ in range(3)]
        held = await store.claim(conn, "somebody", 2)
        await back_up(on.bench, "public", "a")
        params = {"backup_location": "a", "target_schema": "public", "overwrite": True}
        restored = await on.run("restore", params)
        assert restored.state == "completed", restored.columns
        assert (await verify(store, conn)).lies == ()
        assert {(await on.app.get("job", one_of)).owner for one_of in made} == {None}
        (*_, last) = await on.app.timeline("job", held[0].id)
        assert last.detail["by"] == restored.id
        assert last.detail["error"] == {"code": "WORKER_LOST", "message": "worker lost"}
        now = [one["status"] for one in await on.rows("select status::text from job order by 1")]
        assert now == ["failed", "failed", "queued"]  # what had begun has failed once, and is due again


async def test_pooled_sessions_do_not_stumble_over_new_types(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: what was prepared for the old table would be refused for ever: such sessions are renewed."""
    query = b"select * from tasks"
    async with stage(settings, tmp_path, db_max_connections=2) as on:
        await back_up(on.bench, "public", "a")
        for _ in range(20):
            async with on.app.database.connection() as pooled:
                await pooled.execute(query)
        await bring_back(on.bench, "a", "public", overwrite=True)
        for _ in range(20):
            async with on.app.database.connection() as pooled:
                await pooled.execute(query)


async def test_a_schema_of_its_own_name(settings: Settings, conn: Connection, tmp_path: Path) -> None:
    """Y-33: where Holdfast has a schema by name, that one and its own `system` go the same way."""
    url = settings.database_url or ""
    await asyncio.to_thread(migrate.upgrade, url, "head", "cell")
    async with stage(settings, tmp_path, schema="cell") as on:
        await on.app.enqueue("tasks", "note")
        before = {schema: await sums(conn, schema) for schema in ("cell", "cell_system")}
        row = await on.run("backup", {"schema": "cell", "backup_location": "a"})
        assert row.state == "completed"
        await back_up(on.bench, "cell_system", "b")
        await on.app.enqueue("tasks", "note")
        for location, schema in (("a", "cell"), ("b", "cell_system")):
            params = {"backup_location": location, "target_schema": schema, "overwrite": True}
            done = await on.run("restore", params)
            assert done.state == "completed", done.columns
        assert (await sums(conn, "cell"))["tasks"] == before["cell"]["tasks"]
        path = "select proconfig::text from pg_proc where oid = 'cell.job_is_visible(uuid)'::regprocedure"
        assert "search_path=cell, pg_temp" in await one(conn, path)
