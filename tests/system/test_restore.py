"""Restore: every byte is looked at before the database is touched, and the target changes in one step."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from conftest import Connect
from holdfast import Settings
from holdfast.apps.system import backups
from holdfast.apps.system.backups import InvalidBackup, read_manifest, write_manifest
from holdfast.apps.system.bench import Run, target_lock
from holdfast.apps.system.executors import restore, swap
from holdfast.apps.system.parameters import Restore
from holdfast.db.pool import Connection
from holdfast.engine.values import Fault, Move
from holdfast.engine.verify import verify
from holdfast.errors import (
    ClaimLost,
    Conflict,
    DatabaseUnavailable,
    IllegalEdge,
    InvalidInput,
    MissingExtra,
    TargetExists,
)
from holdfast.runtime.context import Context, Finishing
from runtime.support import AT_A_GATE, one, until
from system.kit import Stage, stage
from system.safe import SHOP, back_up, bring_back, drop, strays, sums

ORG = uuid.UUID("00000000-0000-4000-8000-000000000001")


@pytest.fixture
async def shop(conn: Connection) -> None:
    await conn.execute(SHOP)


def flip(path: Path, position: int) -> None:
    """Changes one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def rewrite(place: Path, **changes: Any) -> None:
    """Writes a manifest that says something else, and is sound in itself."""
    manifest = msgspec.structs.replace(read_manifest(place), **changes)
    (place / "manifest.json").unlink()
    write_manifest(place, manifest)


async def refused(on: Stage, error: Any, says: str, **params: Any) -> None:
    """A restore that is refused at create; nothing is written."""
    jobs = await on.one("select count(*) from system.jobs")
    with pytest.raises(error, match=says):
        await on.create("restore", {"backup_location": "a", "target_schema": "shop"} | params)
    assert await on.one("select count(*) from system.jobs") == jobs


# -- what is looked at first -------------------------------------------------------------------------


async def test_one_flipped_byte_is_refused_before_any_change(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33: wherever it is, at create; found at run, the job fails and nothing has changed."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        place = tmp_path / "backups" / "a"
        dump = place / "shop.dump.zst"
        whole = dump.read_bytes()
        for position in (0, 5, len(whole) // 2, len(whole) - 1):
            flip(dump, position)
            await refused(on, InvalidBackup, "its checksum differs", overwrite=True)
            dump.write_bytes(whole)
        dump.write_bytes(whole + b"\0")
        await refused(on, InvalidBackup, "its checksum differs", overwrite=True)
        dump.write_bytes(whole)
        job = await on.create("restore", {"backup_location": "a", "target_schema": "shop", "overwrite": True})
        flip(dump, len(whole) // 3)
        await on.drain()
        row = await on.job(job)
        assert row.state == "failed"
        assert "its checksum differs" in row.columns["message"]
        assert row.columns["retry_count"] == 0
        assert await sums(conn, "shop") == before
        assert await strays(conn, tmp_path) == []


async def test_a_byte_that_flips_after_the_look_is_found_on_the_way(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33: the sum is taken once more from what is really restored."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a", compression="none")
        before = await sums(conn, "shop")
        dump = tmp_path / "backups" / "a" / "shop.dump"
        position = dump.read_bytes().index(b"thing 77")

        async def meddle(step: str) -> None:
            if step == "database":
                flip(dump, position)

        with pytest.raises(InvalidBackup, match="changed while it was read"):
            await bring_back(on.bench, "a", "shop", meddle, overwrite=True)
        assert await sums(conn, "shop") == before
        assert await strays(conn, tmp_path) == []


async def test_what_is_no_backup_is_refused(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Bad input: no manifest, a newer one, a missing file, a link instead of one: `InvalidBackup`."""
    async with stage(settings, tmp_path) as on:
        await refused(on, InvalidBackup, "there is no manifest.json", target_schema="copy")
        await back_up(on.bench, "shop", "a")
        place = tmp_path / "backups" / "a"
        manifest = (place / "manifest.json").read_bytes()
        rewrite(place, version=backups.VERSION + 1)
        await refused(on, InvalidBackup, "newer Holdfast", target_schema="copy")
        (place / "manifest.json").write_bytes(manifest)
        rewrite(place, revision="9999")
        await refused(on, InvalidBackup, "revision 9999", target_schema="copy")
        (place / "manifest.json").write_bytes(manifest)
        rewrite(place, files=(backups.File(name="../../a", bytes=1, sha256="0"),))
        await refused(on, InvalidBackup, "not its own", target_schema="copy")
        (place / "manifest.json").write_bytes(manifest)
        (place / "shop.dump.zst").rename(tmp_path / "elsewhere")
        await refused(on, InvalidBackup, "is missing", target_schema="copy")
        (place / "shop.dump.zst").symlink_to(tmp_path / "elsewhere")
        await refused(on, InvalidBackup, "cannot be read", target_schema="copy")


@pytest.mark.parametrize("name", ["pg_catalog", "pg_toast", "information_schema", "PG_mine", "pg_temp_3"])
async def test_a_system_schema_is_always_refused(
    settings: Settings, shop: None, tmp_path: Path, name: str
) -> None:
    """Y-33: also with overwrite."""
    async with stage(settings, tmp_path) as on:
        await refused(on, InvalidInput, "PostgreSQL itself", target_schema=name, overwrite=True)
        await refused(on, InvalidInput, "unfinished restore", target_schema="holdfast_restore_1_a")


# -- one step ----------------------------------------------------------------------------------------


async def test_restore_refuses_an_existing_schema(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33: at create; and at the last step, when it came into being meanwhile."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        await refused(on, TargetExists, "say `overwrite`")

        async def meddle(step: str) -> None:
            if step == "compared":
                await conn.execute("create schema late; create table late.letter ()")

        with pytest.raises(TargetExists, match="by now"):
            await bring_back(on.bench, "a", "late", meddle)
        assert set(await sums(conn, "late")) == {"letter"}
        assert await sums(conn, "shop") == before
        assert await strays(conn, tmp_path) == []


async def test_with_overwrite_it_replaces_it_in_one_step(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-33: whoever reads meanwhile sees the old or the new, and never nothing; what came since is gone."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        await conn.execute("insert into shop.sale (item) select 1 from generate_series(1, 1000)")
        await conn.execute("create table shop.young ()")
        seen: set[int] = set()
        stop = asyncio.Event()

        async def look(other: Connection) -> None:
            while not stop.is_set():
                seen.add(await one(other, "select count(*) from shop.sale"))

        async with asyncio.TaskGroup() as group:
            group.create_task(look(await connect()))
            row = await on.run(
                "restore", {"backup_location": "a", "target_schema": "shop", "overwrite": True}
            )
            await asyncio.sleep(0)
            stop.set()
        assert row.state == "completed", row.columns["message"]
        assert row.columns["message"].startswith("250 rows of 2 tables, as of 20")
        assert seen <= {1050, 50}
        assert await sums(conn, "shop") == before
        assert await strays(conn, tmp_path) == []
        # What is in place works: identities go on, views and functions look at the new tables.
        assert (
            await one(conn, "insert into shop.item (name, size) values ('new', 'small') returning id") == 201
        )
        assert await one(conn, "select sum(count) from shop.sold") == 50
        assert await one(conn, "select shop.sales()") == 50


async def test_a_failed_one_changes_nothing(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33: other counts or other values than the manifest says are found before the target is touched."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        place = tmp_path / "backups" / "a"
        item, sale = read_manifest(place).tables
        for tables, says in (
            ((item, msgspec.structs.replace(sale, rows=51)), "sale has 50 rows, and had 51"),
            ((msgspec.structs.replace(item, checksum="1"), sale), "item has other values"),
            ((item, sale, msgspec.structs.replace(sale, name="gone")), "lacks.*gone"),
        ):
            rewrite(place, tables=tables)
            with pytest.raises(InvalidBackup, match=says):
                await bring_back(on.bench, "a", "shop", overwrite=True)
            assert await sums(conn, "shop") == before
            assert await strays(conn, tmp_path) == []


@pytest.mark.parametrize("at", ["database", "filled", "moved", "compared", "swapping"])
async def test_called_off_it_leaves_nothing(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, at: str
) -> None:
    """Y-15, Y-33: wherever it is, scratch and all; the target is as it was."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await conn.execute("delete from shop.sale where id > 20")
        before = await sums(conn, "shop")

        async def end(step: str) -> None:
            if step == at:
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await bring_back(on.bench, "a", "shop", end, overwrite=True)
        assert await sums(conn, "shop") == before
        assert await strays(conn, tmp_path) == []


async def claimed(on: Stage, conn: Connection, schema: str, step: Any) -> asyncio.Task[str]:
    """A restore that somebody claimed, as it runs."""
    given = {"backup_location": "a", "target_schema": schema, "overwrite": True}
    await on.create("restore", given)
    (claim,) = await on.jobs.claim(conn, "somebody", 1)
    database = on.app.database
    context = Context(
        on.jobs, claim, database, Finishing(database, asyncio.Semaphore(), on.jobs.ledger, claim)
    )

    async def works() -> str:
        params = Restore(backup_location="a", target_schema=schema, overwrite=True)
        async with target_lock(on.bench, restore.target(params)) as lock:
            assert lock
            return await restore.run(
                params, Run(bench=on.bench, id=claim.id, context=context, lock=lock), step
            )

    return asyncio.create_task(works())


@pytest.mark.parametrize("schema", ["shop", "system"])
@pytest.mark.parametrize(
    "loss",
    [
        "status = 'failed', finished_at = 1, message = 'worker lost'",
        "status = 'cancelled', finished_at = 1",
        "fence = fence + 1",
        "node_id = 'another'",
    ],
)
async def test_a_restore_that_is_no_longer_ours_replaces_nothing(
    settings: Settings,
    conn: Connection,
    shop: None,
    connect: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    schema: str,
    loss: str,
) -> None:
    """Y-15, Y-33: it is asked once more in the very transaction of the swap, whatever was true before it."""
    other = await connect()
    putting = swap.take_place

    async def late(what: Any) -> bool:
        await other.execute(f"update system.jobs set {loss} where status = 'running'")
        return await putting(what)

    monkeypatch.setattr(swap, "take_place", late)
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, schema, "a")
        await conn.execute("delete from shop.sale")
        before = await sums(conn, "shop")
        with pytest.raises(ClaimLost):
            await (await claimed(on, conn, schema, restore.no_step))
        assert await sums(conn, "shop") == before
        assert await on.one("select count(*) from system.jobs") == 1
        assert await strays(conn, tmp_path) == []


async def test_whoever_cancels_a_restore_waits_while_it_takes_its_place(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-15, Y-33: then it is too late: a job that is told to be cancelled has replaced nothing."""
    other, third = await connect(), await connect()
    cancelling: list[asyncio.Task[Any]] = []

    async def meddle(step: str) -> None:
        if step == "swapping":
            job = await one(third, "select id from system.jobs where status = 'running'")
            cancelling.append(asyncio.create_task(on.jobs.cancel(other, job)))
            await until(third, "select cardinality(pg_blocking_pids(%s)) > 0", other.info.backend_pid)
            assert await one(third, "select status from system.jobs where id = %s", job) == "running"

    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        await conn.execute("delete from shop.sale")
        await (await claimed(on, conn, "shop", meddle))
        with pytest.raises(IllegalEdge, match="completed"):
            await cancelling[0]
        assert await sums(conn, "shop") == before
        assert await on.one("select status from system.jobs") == "completed"


async def test_it_waits_for_those_who_use_the_tables(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-33: it asks for the tables again and again, and stands in nobody's way for long."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await conn.execute("delete from shop.sale")
        other, third = await connect(), await connect()
        async with asyncio.TaskGroup() as group, other.transaction():
            await other.execute("select from shop.item")
            restoring = group.create_task(bring_back(on.bench, "a", "shop", overwrite=True))
            waiting = "select count(*) > 0 from pg_locks where not granted and mode = 'AccessExclusiveLock'"
            await until(conn, f"{waiting} and relation = 'shop.item'::regclass")
            async with asyncio.timeout(20):
                await third.execute("select from shop.item")
            assert not restoring.done()
        assert (await sums(conn, "shop"))["sale"].rows == 50


# -- what others need --------------------------------------------------------------------------------


async def test_what_others_need_is_not_replaced(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33: a foreign key, a view or a column elsewhere would go, too: refused with their names."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        for statement, says in (
            ("create table depot.shelf (item bigint references shop.item (id))", "shelf_item_fkey"),
            ("create view depot.shelf as select name from shop.item", "depot.shelf"),
            ("create table depot.shelf (size shop.size)", r"depot\.shelf.*shop\.size"),
        ):
            await conn.execute("create schema depot")
            await conn.execute(statement.encode())
            await refused(on, InvalidInput, says, overwrite=True)
            await drop(conn, "depot")

        async def meddle(step: str) -> None:
            if step == "compared":
                await conn.execute("create schema depot; create table depot.late (item shop.size)")

        with pytest.raises(InvalidInput, match=r"depot\.late"):
            await bring_back(on.bench, "a", "shop", meddle, overwrite=True)
        assert await sums(conn, "shop") == before
        assert await strays(conn, tmp_path) == []


async def test_a_schema_in_which_an_extension_lives_is_not_replaced(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33: it would go with it, and with it the columns of others."""
    if not await one(conn, "select true from pg_available_extensions where name = 'citext'"):
        pytest.skip("this server has no extension citext; Debian's has, and make test-oldest tries it there")
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await conn.execute("create extension citext schema shop")
        await refused(on, InvalidInput, "extensions live in it: citext", overwrite=True)
        await conn.execute("alter table shop.item add nick shop.citext default 'Ada'")
        with pytest.raises(InvalidInput, match="which lives in it"):
            await back_up(on.bench, "shop", "b")
        await conn.execute("create schema kept; alter extension citext set schema kept")
        await back_up(on.bench, "shop", "b")
        await bring_back(on.bench, "b", "copy")
        assert await sums(conn, "copy") == await sums(conn, "shop")
        await drop(conn, "copy", "shop", "kept")
        await refused(on, MissingExtra, "create extension citext", backup_location="b")


@pytest.fixture
def plain(settings: Settings) -> Iterator[str]:
    """The URL of the test's database for a role that may make schemas there, and nothing else."""
    name = f"modest_{os.getpid()}"
    with psycopg.connect(settings.database_url or "", autocommit=True) as server:
        server.execute(f"create role {name} login password 'open-sesame'")
        server.execute(f'grant create on database "{server.info.dbname}" to {name}')
        server.execute(f"grant select on holdfast_version to {name}")
    yield f"postgresql://{name}:open-sesame@{(settings.database_url or '').partition('@')[2]}"
    with psycopg.connect(settings.database_url or "", autocommit=True) as server:
        server.execute(f"drop owned by {name} cascade")
        server.execute(f"drop role {name}")


async def test_without_the_right_to_make_its_scratch_it_says_what_to_grant(
    settings: Settings, conn: Connection, shop: None, plain: str, tmp_path: Path
) -> None:
    """Bad input: `MissingExtra`; once granted, one that is no superuser restores, and owns what it made."""
    role = plain.partition("//")[2].partition(":")[0]
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
    async with stage(settings, tmp_path, database_url=plain) as on:
        with pytest.raises(MissingExtra, match=f"alter role {role} createdb"):
            await bring_back(on.bench, "a", "copy")
        with pytest.raises(MissingExtra, match="the rights of its owner"):
            await bring_back(on.bench, "a", "shop", overwrite=True)
        await conn.execute(f"alter role {role} createdb")
        run = await bring_back(on.bench, "a", "copy")
        assert run.notes == [("WARN", "owners are not restored, as we may not act for all of them: holdfast")]
        assert await sums(conn, "copy") == await sums(conn, "shop")
        assert (
            await one(conn, "select pg_get_userbyid(nspowner) from pg_namespace where nspname = 'copy'")
            == role
        )
        # And again, in the place of what is its own by now.
        await bring_back(on.bench, "a", "copy", overwrite=True)
        assert await strays(conn, tmp_path) == []


async def test_roles_that_have_rights_must_be_there(
    settings: Settings, conn: Connection, shop: None, plain: str, tmp_path: Path
) -> None:
    """Y-33: rights come back; a role that is missing is named. A lost owner is told in the log."""
    role = plain.partition("//")[2].partition(":")[0]
    await conn.execute(f"grant usage on schema shop to {role}; grant select on shop.item to {role}")
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await bring_back(on.bench, "a", "copy")
        assert await one(conn, f"select has_table_privilege('{role}', 'copy.item', 'select')")
        assert await one(conn, f"select has_schema_privilege('{role}', 'copy', 'usage')")
        place = tmp_path / "backups" / "a"
        rewrite(place, granted=(*read_manifest(place).granted, "somebody"))
        await refused(on, MissingExtra, "create role somebody nologin", target_schema="other")
        rewrite(place, granted=(), owners=("nobody_here",))
        run = await bring_back(on.bench, "a", "other")
        assert run.notes[0][0] == "WARN"
        assert "nobody_here" in run.notes[0][1]


@pytest.mark.parametrize("everybody", [True, False])
async def test_everybody_may_use_a_schema_after_a_restore_who_might_before(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, everybody: bool
) -> None:
    """Y-33: that of every new database is open to all, and no dump says so; one of our own is not."""
    if not everybody:
        await conn.execute("revoke usage on schema public from public")
        await conn.execute("grant usage on schema shop to public")
    used = "select has_schema_privilege('pg_monitor', '{}', 'usage')"
    async with stage(settings, tmp_path) as on:
        for schema, may in (("public", everybody), ("shop", not everybody)):
            assert await one(conn, used.format(schema)) is may
            await back_up(on.bench, schema, f"of/{schema}")
            await bring_back(on.bench, f"of/{schema}", schema, overwrite=True)
            assert await one(conn, used.format(schema)) is may
            await bring_back(on.bench, f"of/{schema}", f"{schema}_copy")
            assert await one(conn, used.format(f"{schema}_copy")) is may


# -- another name ------------------------------------------------------------------------------------


async def test_under_another_name_functions_look_at_their_own_tables(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-33, and the trap of ALTER SCHEMA RENAME: the copy must not work on the live tables."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await conn.execute("delete from shop.sale")
        await bring_back(on.bench, "a", "Copy of it")
        assert await one(conn, 'select "Copy of it".sales()') == 50
        assert await one(conn, 'select count(*) from "Copy of it".sold') == 50
        await conn.execute(
            "create function shop.cheat() returns bigint language sql as 'select 1 from shop.item'"
        )
        await back_up(on.bench, "shop", "b")
        await refused(on, InvalidInput, r"shop\.cheat\(\)", backup_location="b", target_schema="copy")
        await bring_back(on.bench, "b", "shop", overwrite=True)
        assert await one(conn, "select count(*) from shop.sale") == 0


async def test_a_copy_of_schedule_ingest_lives_by_itself(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: our own functions name their tables in full, so they are written anew for the copy."""
    session = "11111111-1111-4111-8111-111111111111"
    await conn.execute(
        "insert into schedule_ingest.capture_session (id, user_id, state, created_at)"
        f" values ('{session}', 7, 'processing', now())"
    )
    await conn.execute(
        "insert into schedule_ingest.schedule_version values"
        f" (7, '2026-03-02', 1, '{session}', '{{}}', 'x', now())"
    )
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "schedule_ingest", "a")
        await bring_back(on.bench, "a", "copy")
        assert await sums(conn, "copy") == await sums(conn, "schedule_ingest")
        live = await sums(conn, "schedule_ingest")
        # Its triggers guard it, and its erase takes rows of its own.
        with pytest.raises(psycopg.errors.RaiseException, match=r"copy\.erase"):
            await conn.execute("delete from copy.schedule_version")
        assert (await one(conn, "select copy.erase(7)"))["schedule_version"] == 1
        assert await sums(conn, "schedule_ingest") == live
        texts = "select count(*) from pg_proc where pronamespace = 'copy'::regnamespace and prosrc ~ "
        assert await one(conn, texts + "'schedule_ingest'") == 0


OF_NAMES = """
create table shop.about (a regclass, b regprocedure, c regtype, d regclass[], e regconfig);
insert into shop.about values
    ('shop.item', 'shop.sales()', 'shop.size', '{shop.sale,shop.sold}', 'english'),
    ('pg_class', 'lower(text)', 'int', '{pg_type}', null);
create function shop.convert_to(text, text) returns bytea language sql as $$ select ''::bytea $$;
"""


@pytest.mark.parametrize("target", ["shop", "Other shop"])
async def test_values_that_are_names_come_back(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, target: str
) -> None:
    """Y-33: regclass and its like lead to what is in the schema, by whatever name; no sum depends on that."""
    await conn.execute(OF_NAMES)
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        before = await sums(conn, "shop")
        await conn.execute("delete from shop.about")
        await bring_back(on.bench, "a", target, overwrite=True)
        assert await sums(conn, target) == before
        found = await one(
            conn,
            "select a.a = k.oid from pg_class as k join pg_namespace as n on n.oid = k.relnamespace,"
            f" \"{target}\".about as a where a.c <> 'int'::regtype and k.relname = 'item' and nspname = %s",
            target,
        )
        assert found
        # The schema has a function that would make all rows alike.
        await conn.execute("update shop.item set name = 'another' where id = 1")
        assert (await sums(conn, "shop"))["item"] != before["item"]


async def test_row_security_comes_back_and_looks_at_its_own_tables(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: policies, their functions and the tenants' rights, of the app's own schema under another name."""
    org = "00000000-0000-4000-8000-000000000001"
    insert = "insert into {}job (id, org_id, type) values (gen_random_uuid(), %s, 'note') returning id"
    async with stage(settings, tmp_path) as on:
        await on.app.enqueue("job", "note", 1, tenant=org)
        await back_up(on.bench, "public", "a")
        await bring_back(on.bench, "a", "copy")
        path = "select proconfig::text from pg_proc where oid = 'copy.job_is_visible(uuid)'::regprocedure"
        assert "search_path=copy, pg_temp" in await one(conn, path)
        async with conn.transaction(force_rollback=True):
            await conn.execute("set local role holdfast_tenant")
            assert await one(conn, "select count(*) from copy.job") == 0
            await conn.execute("select set_config('holdfast.org_id', %s, true)", (org,))
            assert await one(conn, "select count(*) from copy.job") == 1
            job = await one(conn, insert.format("copy."), org)
            assert await one(conn, "select count(*) from copy.job where id = %s", job) == 1
            assert await one(conn, "select count(*) from job") == 1


# -- what is alive -----------------------------------------------------------------------------------


async def test_restoring_system_keeps_the_job_that_does_it(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: the table that has its row is replaced; the backup that was made is completed, as it was."""
    async with stage(settings, tmp_path, worker_timeout=1.0) as on:
        first = await on.run("backup", {"schema": "system", "backup_location": "a"})
        later = await on.run("backup", {"schema": "schedule_ingest", "backup_location": "b"})
        row = await on.run("restore", {"backup_location": "a", "target_schema": "system", "overwrite": True})
        assert row.state == "completed", row.columns["message"]
        ids = [one["id"] for one in await on.rows("select id from system.jobs order by created_at")]
        assert ids == [first.id, row.id]
        assert later.id not in ids
        # The backup was running in its own snapshot. Its manifest proves that it was completed.
        ended = await on.job(first.id)
        assert (ended.state, ended.columns["message"]) == ("completed", first.columns["message"])
        assert ended.created <= ended.finished <= first.finished
        assert not [line for line in on.lines(first.id) if "failed" in line]


async def test_a_pooled_session_between_two_statements_is_not_ended(
    conn: Connection, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-33: it is idle for a moment, and in use; one that is idle for longer is renewed."""
    monkeypatch.setattr(swap, "LOOKS", 2)
    client = await connect()
    await client.execute("set application_name = 'holdfast pool'")
    monkeypatch.setattr(swap, "IDLE_SECONDS", 600.0, raising=False)
    await swap.renew_sessions(conn)
    await client.execute("select 1")
    monkeypatch.setattr(swap, "IDLE_SECONDS", 0.0)
    await swap.renew_sessions(conn)
    with pytest.raises(psycopg.OperationalError):
        await client.execute("select 1")


@pytest.mark.parametrize("schema", ["shop", "system"])
async def test_a_restore_ends_in_the_transaction_in_which_it_takes_its_place(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, schema: str
) -> None:
    """Y-16, Y-33: whoever kills its worker finds it done, or not done; nobody calls it lost and is wrong."""
    async with stage(settings, tmp_path) as on:
        await on.run("backup", {"schema": schema, "backup_location": "a"})
        told = {"backup_location": "a", "target_schema": schema, "overwrite": True}
        row = await on.run("restore", told)
        assert row.state == "completed", row.columns["message"]
        commits = await on.rows(
            "select xmin from system.jobs where id = %s"
            " union select xmin from pg_namespace where nspname = %s",
            row.id,
            schema,
        )
        assert len(commits) == 1
        assert [line for line in on.lines(row.id) if "completed" in line] == [
            f"INFO completed: {row.columns['message']}"
        ]


@pytest.mark.parametrize("overwrite", [True, False])
async def test_jobs_that_waited_when_the_backup_was_made_do_not_run_again(
    settings: Settings, conn: Connection, tmp_path: Path, overwrite: bool
) -> None:
    """Y-33: they are destructive, and were done since: they come back as failed, and the log says so."""
    given = "insert into system.jobs (id, job_type, status, parameters, idempotency_key) values "
    async with stage(settings, tmp_path) as on:
        waiting = await on.create("retention", {"ledger": "tasks", "retention_hours": 1})
        await conn.execute(given + "('RT-new00000', 'retention', 'new', '{}', 'k')")
        await conn.execute(given + "('RT-retry000', 'retention', 'retrying', '{}', null)")
        await back_up(on.bench, "system", "a")
        if overwrite:
            await conn.execute("delete from system.jobs")
            row = await on.run(
                "restore", {"backup_location": "a", "target_schema": "system", "overwrite": True}
            )
            assert row.state == "completed"
        else:
            await drop(conn, "system")
            await bring_back(on.bench, "a", "system")
        for job in (waiting, "RT-new00000", "RT-retry000"):
            ended = await on.job(job)
            assert ended.state == "failed"
            assert "unfinished when the backup was made" in ended.columns["message"]
            assert ended.columns["finished_at"] >= ended.columns["created_at"]
            assert on.lines(job)[-1].startswith("ERROR failed: was unfinished")
        await on.drain()
        assert await on.one("select max(fence) from system.jobs where job_type = 'retention'") == 0


async def test_a_fence_never_goes_back(settings: Settings, conn: Connection, tmp_path: Path) -> None:
    """Y-33: whoever was told a later one before the restore is not taken for its holder after it."""
    async with stage(settings, tmp_path) as on:
        job = (await on.app.enqueue("tasks", "note")).id
        other = (await on.app.enqueue("tasks", "note")).id
        await back_up(on.bench, "public", "a")
        await conn.execute("update tasks set fence = 7 where id = %s", (job,))
        await bring_back(on.bench, "a", "public", overwrite=True)
        assert await on.one("select fence from tasks where id = %s", job) == 7
        assert await on.one("select fence from tasks where id = %s", other) == 0


async def test_the_record_is_true_after_a_restore_that_raises_fences(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: an event tells it, by the restore; so it stays true when work goes on, and when it is cut."""
    async with stage(settings, tmp_path) as on:
        store = on.app.stores["job"]
        made = [(await on.app.enqueue("job", "note", tenant=ORG)).id for _ in range(3)]
        (dead, held) = await store.claim(conn, "old", 2)
        await store.move(conn, [Move(verb="reject", claim=dead, fault=Fault(code="X", message="no"))])
        await back_up(on.bench, "public", "a")
        await store.move(conn, [Move(verb="finish", claim=held)])
        await store.requeue(conn, dead.id)
        (late,) = [claim for claim in await store.claim(conn, "old", 2) if claim.id != dead.id]
        await store.move(conn, [Move(verb="release", claim=late)])
        assert {claim.id for claim in await store.claim(conn, "old", 2)} == {late.id}
        told = {"backup_location": "a", "target_schema": "public", "overwrite": True}
        restored = await on.run("restore", told)
        assert restored.state == "completed", restored.columns["message"]
        assert (await verify(store, conn)).lies == ()
        last = {each: (await on.app.timeline("job", each))[-1] for each in made}
        assert {each: event.detail["verb"] for each, event in last.items()} == {
            **dict.fromkeys((dead.id, late.id), "restore"),
            held.id: "lose",
        }
        assert (last[late.id].prev, last[late.id].next) == ("queued", "queued")
        assert last[late.id].detail["by"] == restored.id
        assert last[late.id].detail["fence"] == late.fence + 1
        await conn.execute("update job set run_at = now()")
        for claim in await store.claim(conn, "new", 3):
            await store.move(conn, [Move(verb="finish", claim=claim)])
        await conn.execute("select set_config('holdfast.evict', 'on', false)")
        assert await one(conn, "select count(*) from job_event where job_id = %s", dead.id) > 1
        await conn.execute(
            "delete from job_event where job_id = %s and seq < %s", (dead.id, last[dead.id].seq)
        )
        assert (await verify(store, conn)).lies == ()
        await conn.execute("update job set fence = fence + 1 where id = %s", (late.id,))
        assert [lie.id for lie in (await verify(store, conn)).lies] == [late.id]


async def test_a_long_swap_costs_no_worker_its_life(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: while their table is ours alone nobody can say that he lives; who was silent before stays so."""
    ages = "select id, extract(epoch from now() at time zone 'UTC' - last_heartbeat) > 1000 from workers"
    given = (
        "insert into workers (id, hostname, pool_size, last_heartbeat)"
        " values (%s, 'h', 1, (now() at time zone 'UTC') - make_interval(secs => %s))"
    )
    async with stage(settings, tmp_path, worker_timeout=3600.0) as on:
        await back_up(on.bench, "public", "a")
        for name, age in (("lives", 3000), ("is gone", 4000)):
            await conn.execute(given, (name, age))
        await bring_back(on.bench, "a", "public", overwrite=True)
        assert dict(await (await conn.execute(ages)).fetchall()) == {"lives": False, "is gone": True}


async def test_restoring_system_is_refused_while_other_jobs_run(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-33: their rows would be gone before their end."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "system", "a")
        await conn.execute(
            "insert into system.jobs (id, job_type, status, node_id)"
            " values ('FL-running0', 'flush', 'running', 'x')"
        )
        before = await sums(conn, "system")
        with pytest.raises(Conflict, match="FL-running0"):
            await bring_back(on.bench, "a", "system", overwrite=True)
        assert await sums(conn, "system") == before
        assert await strays(conn, tmp_path) == []


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_an_upgrade_while_a_restore_prepares_is_not_undone(
    settings: Settings, conn: Connection, connect: Any, tmp_path: Path, when: str
) -> None:
    """Y-33: the revision is asked for once more at the last step, behind an upgrade that goes on."""
    upgrade = (
        "alter table system.jobs add column of_the_next_revision int;"
        " update holdfast_version set version_num = '9999'"
    )
    other, waiting = await connect(), asyncio.Event()
    upgrading: list[asyncio.Task[None]] = []

    async def upgrades() -> None:
        async with other.transaction():
            await other.execute("select pg_advisory_xact_lock(hashtextextended('holdfast.migrate', 0))")
            waiting.set()
            await until(conn, AT_A_GATE)
            await other.execute(upgrade)

    async def meddle(step: str) -> None:
        if step == "compared" and when == "before":
            await conn.execute(upgrade)
        elif step == "compared":
            upgrading.append(asyncio.create_task(upgrades()))
            await waiting.wait()

    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "system", "a")
        with pytest.raises(InvalidBackup, match="a platform that is at 9999"):
            await bring_back(on.bench, "a", "system", meddle, overwrite=True)
        await asyncio.gather(*upgrading)
        assert await one(conn, "select count(of_the_next_revision) from system.jobs") == 0
        assert await strays(conn, tmp_path) == []


async def test_without_a_job_it_is_looked_at_in_the_same_way(
    settings: Settings, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-33; bad input: bytes, revision and the lock of its target; the log tells how it ended."""
    params = Restore(backup_location="a", target_schema="system")
    prepare = restore._prepare  # pyright: ignore[reportPrivateUsage]

    async def cut(*given: Any) -> None:
        await prepare(*given)
        await conn.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'holdfast system job' and datname = current_database()"
        )

    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "system", "a")
        with pytest.raises(InvalidInput, match="here a job can be made"):
            await restore.without_job(params, on.bench)
        await drop(conn, "system")
        async with target_lock(on.bench, restore.target(params)):
            with pytest.raises(Conflict, match="another job works on it"):
                await restore.without_job(params, on.bench)
        flip(tmp_path / "backups" / "a" / "system.dump.zst", 9)
        with pytest.raises(InvalidBackup, match="its checksum differs"):
            await restore.without_job(params, on.bench)
        flip(tmp_path / "backups" / "a" / "system.dump.zst", 9)
        monkeypatch.setattr(restore, "_prepare", cut)
        with pytest.raises(DatabaseUnavailable, match="is lost"):
            await restore.without_job(params, on.bench)
        assert on.lines()[-1] == "ERROR failed: the connection is lost that kept its target to us"
        assert await one(conn, "select to_regnamespace('system') is null")
        assert await strays(conn, tmp_path) == []
        monkeypatch.setattr(restore, "_prepare", prepare)
        job, told = await restore.without_job(params, on.bench)
        assert on.lines(job)[-1] == f"INFO completed: {told}"
        assert await on.one("select count(*) from system.jobs") == 0


@pytest.mark.parametrize("schema", ["public", "schedule_ingest", "system"])
async def test_a_backup_of_another_revision_does_not_take_the_place_of_the_platform(
    settings: Settings, conn: Connection, tmp_path: Path, schema: str
) -> None:
    """Y-33; bad input: one schema cannot be older than the others. Under another name it may."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, schema, "a")
        for revision in ("0001", None):
            rewrite(tmp_path / "backups" / "a", revision=revision)
            before = await sums(conn, schema)
            await refused(on, InvalidBackup, "schema of another name", target_schema=schema, overwrite=True)
            assert await sums(conn, schema) == before
        await bring_back(on.bench, "a", "copy")
        assert await sums(conn, "copy") == await sums(conn, schema)
