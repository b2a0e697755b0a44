"""Backup: a schema as a dump with a manifest, of one snapshot, complete or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Settings
from holdfast.apps.system import backups, programs
from holdfast.apps.system.backups import list_backups, read_manifest, resolve_location, verify_backup
from holdfast.apps.system.executors import backup
from holdfast.apps.system.executors.contents import no_step
from holdfast.db.pool import Connection
from holdfast.errors import (
    HoldfastError,
    InvalidBackup,
    InvalidInput,
    MissingExtra,
    NotAllowed,
    NotFound,
    TargetExists,
)
from runtime.support import until
from system.kit import fitted, stage
from system.safe import SHOP, back_up, bring_back, drop, hidden, strays, sums
from system.test_programs import install

# Whether somebody waits for a table of the test's database.
WAITING = (
    "select count(*) > 0 from pg_locks as l join pg_database as d on d.oid = l.database"
    " where not l.granted and d.datname = current_database()"
)


@pytest.fixture
async def shop(conn: Connection) -> None:
    await conn.execute(SHOP)


@pytest.fixture
def plain_role(settings: Settings, postgres: str) -> Iterator[str]:
    """The URL of the test's database for a role that is no superuser, and its password in it."""
    name = f"plain_{os.getpid()}"
    with psycopg.connect(settings.database_url or "", autocommit=True) as server:
        server.execute(f"create role {name} login password 'open-sesame'")
        database = server.info.dbname
        server.execute(f'grant create on database "{database}" to {name}')
        server.execute(f"grant select on holdfast_version to {name}")
    rest = (settings.database_url or "").partition("@")[2]
    yield f"postgresql://{name}:open-sesame@{rest}"
    with psycopg.connect(settings.database_url or "", autocommit=True) as server:
        server.execute(f"drop owned by {name} cascade")
        server.execute(f"drop role {name}")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def written(folder: Path) -> list[str]:
    """Everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) if folder.exists() else []


async def test_a_backup_is_a_dump_and_a_manifest(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-32: versions, tables with their rows, files with bytes and sums; only we may read it."""
    async with stage(settings, tmp_path) as on:
        row = await on.run("backup", {"schema": "shop", "backup_location": "daily/first"})
        assert row.state == "completed"
        place = tmp_path / "backups" / "daily" / "first"
        message = row.columns["message"]
    assert message.startswith("250 rows of 2 tables, ")
    assert message.endswith(f"bytes, in {place}")
    told = read(place / "manifest.json")
    assert told["version"] == 1
    assert told["schema"] == "shop"
    assert told["job"] == row.id
    assert told["server"] == conn.info.server_version
    assert told["revision"] is not None
    assert {table["name"]: table["rows"] for table in told["tables"]} == {"item": 200, "sale": 50}
    (file,) = told["files"]
    data = (place / file["name"]).read_bytes()
    assert file == {
        "name": "shop.dump.zst",
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    assert data.startswith(bytes.fromhex("28b52ffd")), "zstd"
    assert [mode(path) for path in (place, place.parent, *place.iterdir())] == [0o700, 0o700, 0o600, 0o600]
    assert verify_backup(place).rows == 250
    assert hidden(tmp_path) == []


async def test_counts_and_dump_are_of_one_snapshot(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-32, Y-33 "backup and restore of a live schema under load gives the counts of the manifest"."""
    async with stage(settings, tmp_path) as on:
        stop = asyncio.Event()

        async def sell(other: Connection) -> None:
            while not stop.is_set():
                await other.execute(
                    "insert into shop.sale (item) select 1 + n % 200 from generate_series(1, 20) as n"
                )
                await other.execute("update shop.item set price = price + 1 where id % 7 = 0")

        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(sell(await connect()))
            await until(conn, "select count(*) > 500 from shop.sale")
            await back_up(on.bench, "shop", "live")
            at_the_end = await sums(conn, "shop")
            stop.set()
        manifest = verify_backup(tmp_path / "backups" / "live")
        assert manifest.tables != tuple(at_the_end[table.name] for table in manifest.tables)
        await bring_back(on.bench, "live", "copy")
        assert await sums(conn, "copy") == {table.name: table for table in manifest.tables}


@pytest.mark.parametrize(
    "change",
    [
        "alter table shop.item alter column share type numeric",
        "truncate shop.sale",
        "create table shop.newer as select 1 as a",
        "drop table shop.sale cascade",
    ],
)
async def test_a_table_that_is_rewritten_meanwhile_is_not_empty_in_the_backup(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path, change: str
) -> None:
    """Y-32: in a snapshot that is older than a TRUNCATE or a rewrite, the table has no rows at all."""
    other = await connect()
    changing: list[asyncio.Task[Any]] = []

    async def meddle(step: str) -> None:
        if step == "snapshot" and not changing:
            changing.append(asyncio.create_task(other.execute(change)))
            await asyncio.wait(changing, timeout=0.2)
            if not changing[0].done():
                await until(conn, WAITING)

    async with stage(settings, tmp_path) as on:
        before = await sums(conn, "shop")
        await back_up(on.bench, "shop", "a", meddle)
        await changing[0]
        tables = {table.name: table for table in verify_backup(tmp_path / "backups" / "a").tables}
        assert tables in (before, await sums(conn, "shop"))
        assert tables["item"].rows == 200
        await bring_back(on.bench, "a", "copy")
        assert await sums(conn, "copy") == tables


async def test_a_backup_waits_for_whoever_rewrites_a_table_and_has_what_he_leaves(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-32: the lock comes before the snapshot; a table that goes meanwhile is no failure."""
    other = await connect()
    async with stage(settings, tmp_path) as on:
        async with other.transaction():
            await other.execute("drop table shop.sale cascade")
            await other.execute("alter table shop.item alter column share type numeric")
            making = asyncio.create_task(back_up(on.bench, "shop", "a"))
            await until(conn, WAITING)
        await making
        tables = {table.name: table for table in verify_backup(tmp_path / "backups" / "a").tables}
        assert list(tables) == ["item"]
        assert tables == await sums(conn, "shop")


async def test_the_revision_is_that_of_the_snapshot(
    settings: Settings, conn: Connection, connect: Any, tmp_path: Path
) -> None:
    """Y-32: an upgrade for which the backup has waited is told with what it has left."""
    other = await connect()
    async with stage(settings, tmp_path) as on:
        async with asyncio.TaskGroup() as group, other.transaction():
            await other.execute("alter table system.jobs add column of_the_next_revision int")
            await other.execute("update holdfast_version set version_num = '9999'")
            group.create_task(back_up(on.bench, "system", "a"))
            await until(conn, WAITING)
        assert read_manifest(tmp_path / "backups" / "a").revision == "9999"


async def test_without_compression(settings: Settings, conn: Connection, shop: None, tmp_path: Path) -> None:
    """Y-32: the dump as it is, where its reader has no zstd."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "plain", compression="none")
        place = tmp_path / "backups" / "plain"
        assert written(place) == ["manifest.json", "shop.dump"]
        assert (place / "shop.dump").read_bytes().startswith(b"PGDMP")
        await bring_back(on.bench, "plain", "copy")
        assert await sums(conn, "copy") == await sums(conn, "shop")


async def test_an_existing_backup_is_never_overwritten(
    settings: Settings, shop: None, tmp_path: Path
) -> None:
    """Y-32; bad input: `TargetExists`, and what is there stays as it is."""
    params = {"schema": "shop", "backup_location": "once"}
    async with stage(settings, tmp_path) as on:
        await on.run("backup", params)
        before = (tmp_path / "backups" / "once" / "manifest.json").read_bytes()
        with pytest.raises(TargetExists, match="holds a backup"):
            await on.create("backup", params)
        (tmp_path / "backups" / "other").mkdir()
        (tmp_path / "backups" / "other" / "letter").touch()
        with pytest.raises(TargetExists, match="not empty"):
            await on.create("backup", params | {"backup_location": "other"})
        assert await on.one("select count(*) from system.jobs") == 1
        assert (tmp_path / "backups" / "once" / "manifest.json").read_bytes() == before
        (tmp_path / "backups" / "empty").mkdir()
        await on.run("backup", params | {"backup_location": "empty"})
        assert verify_backup(tmp_path / "backups" / "empty")


@pytest.mark.parametrize("kind", ["backup", "restore"])
@pytest.mark.parametrize(
    "location",
    ["/etc/backup", "../out", "a/../../out", "a/..", "link/a", "link", ".", "", " ", "~/a", ".hidden/a"],
)
async def test_a_location_outside_the_roots_is_refused(
    settings: Settings, shop: None, tmp_path: Path, kind: str, location: str
) -> None:
    """Y-34; bad input: outside the roots, with .. or through a link: `NotAllowed`, and nothing is written."""
    root, outside = tmp_path / "backups", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    params = {"schema": "shop"} if kind == "backup" else {"target_schema": "shop"}
    async with stage(settings, tmp_path) as on:
        with pytest.raises((NotAllowed, InvalidInput)) as refused:
            await on.create(kind, params | {"backup_location": location})
        assert isinstance(refused.value, NotAllowed) or not location
        assert await on.one("select count(*) from system.jobs") == 0
    assert written(root) == ["link"]
    assert written(outside) == []


@pytest.mark.parametrize("kind", ["backup", "restore"])
@pytest.mark.parametrize(
    "location",
    [
        "n" * 241,
        "ö" * 121,
        "a/" + "n" * 300,
        "n" * 5000,
        "/".join("n" * 3000),
        "letter/a",
        "letter/a/b",
        "\ud800",
    ],
)
async def test_a_location_that_no_file_system_takes_is_refused(
    settings: Settings, shop: None, tmp_path: Path, kind: str, location: str
) -> None:
    """Y-34; bad input: too long a name, or one below a file: refused at create, and nothing is written."""
    root = tmp_path / "backups"
    root.mkdir()
    (root / "letter").touch()
    params = {"schema": "shop"} if kind == "backup" else {"target_schema": "shop"}
    async with stage(settings, tmp_path) as on:
        with pytest.raises(NotAllowed):
            resolve_location(on.bench.settings, location)
        with pytest.raises((NotAllowed, InvalidInput)):
            await on.create(kind, params | {"backup_location": location})
        assert await on.one("select count(*) from system.jobs") == 0
    assert written(root) == ["letter"]


async def test_a_backup_is_made_where_it_is_found_again(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-34; bad input: inside another backup or deeper than one looks; what is there can be restored."""
    async with stage(settings, tmp_path) as on:
        for location in ("n" * 240, "a/b/c/d"):
            await back_up(on.bench, "shop", location)
        for location in ("a/b/c/d/e", "n" * 240 + "/a", "1/2/3/4/5"):
            with pytest.raises(NotAllowed, match=r"inside another backup|too deep"):
                await on.create("backup", {"schema": "shop", "backup_location": location})
        assert sorted(info.name for info in list_backups(on.bench.settings)) == ["a/b/c/d", "n" * 240]
        # Once such a place was good enough.
        deep = tmp_path / "backups" / "n" / "1" / "2" / "3" / "4"
        deep.mkdir(parents=True)
        (tmp_path / "backups" / "a" / "b" / "c" / "d").rename(deep / "d")
        await bring_back(on.bench, "n/1/2/3/4/d", "copy")
        assert await sums(conn, "copy") == await sums(conn, "shop")


def test_locations_lie_below_a_root(settings: Settings, tmp_path: Path) -> None:
    """Y-34: relative ones below the first; absolute ones below any; roots may be links themselves."""
    real, second = tmp_path / "real", tmp_path / "second"
    real.mkdir()
    (tmp_path / "first").symlink_to(real)
    set_up = fitted(settings, tmp_path, system_backup_roots=(tmp_path / "first", second))
    assert resolve_location(set_up, "a/b") == real / "a" / "b"
    assert resolve_location(set_up, str(tmp_path / "first" / "a")) == real / "a"
    assert resolve_location(set_up, str(real / "a")) == real / "a"
    assert resolve_location(set_up, str(second / "a")) == second / "a"
    with pytest.raises(NotAllowed):
        resolve_location(set_up, str(tmp_path / "seconds" / "a"))
    with pytest.raises(NotAllowed):
        resolve_location(set_up, str(second))


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"schema": "nowhere"}, NotFound, "nowhere"),
        ({"schema": "pg_catalog"}, InvalidInput, "PostgreSQL itself"),
        ({"schema": "information_schema"}, InvalidInput, "PostgreSQL itself"),
        ({"schema": "PG_TOAST"}, InvalidInput, "PostgreSQL itself"),
        ({"schema": "shop", "tables": ["gone"]}, NotFound, "gone"),
        ({"schema": "shop", "tables": []}, InvalidInput, "must name a table"),
        ({"schema": "shop", "tables": ["other.item"]}, InvalidInput, "not in the schema shop"),
        ({"schema": "shop", "tables": ["sale"]}, InvalidInput, "sale refers to item"),
        ({"schema": "shop", "compression": "rar"}, InvalidInput, "compression"),
    ],
)
async def test_a_schema_or_table_that_cannot_be_backed_up_is_refused(
    settings: Settings, shop: None, tmp_path: Path, given: dict[str, Any], error: Any, says: str
) -> None:
    """Y-32; bad input: refused at create, with what is wrong; no job, no file."""
    async with stage(settings, tmp_path) as on:
        with pytest.raises(error, match=says):
            await on.create("backup", {"backup_location": "a"} | given)
        assert await on.one("select count(*) from system.jobs") == 0
    assert written(tmp_path / "backups") == []


async def test_a_schema_that_needs_another_is_refused(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-32: what leads out of a schema is not in its dump, and such a backup could never be restored."""
    await conn.execute("create schema depot")
    await conn.execute("create table depot.shelf (item bigint references shop.item (id), size shop.size)")
    async with stage(settings, tmp_path) as on:
        with pytest.raises(InvalidInput, match=r"table depot\.shelf needs type shop\.size"):
            await on.create("backup", {"schema": "depot", "backup_location": "a"})
        await on.run("backup", {"schema": "shop", "backup_location": "b"})
    assert verify_backup(tmp_path / "backups" / "b")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regnamespace", "shop"),
        ("regclass", "depot.shelf"),
        ("regtype[]", "{int,depot.shelf}"),
        ("regprocedure", "depot.shelves()"),
    ],
)
async def test_values_that_name_what_is_elsewhere_are_refused(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, kind: str, value: str
) -> None:
    """Y-32; bad input: regclass and its like; where the dump is restored there is no such thing."""
    await conn.execute("create schema depot; create table depot.shelf (n int)")
    await conn.execute("create function depot.shelves() returns int language sql as 'select 1'")
    await conn.execute("create table shop.about (good regclass, named text)")
    await conn.execute("insert into shop.about values ('shop.item', 'depot.shelf')")
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await conn.execute(f"alter table shop.about add bad {kind}")
        await conn.execute(f"update shop.about set bad = '{value}'")
        with pytest.raises(InvalidInput, match=r"values of about\.bad are names"):
            await back_up(on.bench, "shop", "b")
        assert written(tmp_path / "backups") == ["a", "a/manifest.json", "a/shop.dump.zst"]


async def test_some_tables_bring_the_types_and_functions_that_they_need(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-32, and the trap of `pg_dump -t`: the whole schema, without the rows of the other tables."""
    async with stage(settings, tmp_path) as on:
        row = await on.run(
            "backup", {"schema": "shop", "tables": ["item", "shop.item"], "backup_location": "items"}
        )
        assert row.columns["message"].startswith("200 rows of 1 tables")
        await bring_back(on.bench, "items", "copy")
        before, after = await sums(conn, "shop"), await sums(conn, "copy")
        assert after["item"] == before["item"]
        assert after["sale"].rows == 0
        with pytest.raises(InvalidInput, match="would lose those of all others"):
            await on.create(
                "restore", {"backup_location": "items", "target_schema": "shop", "overwrite": True}
            )
        assert await sums(conn, "shop") == before


async def test_without_zstd_a_backup_says_what_to_install(
    settings: Settings, shop: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input: `MissingExtra`; without compression it goes."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    async with stage(settings, tmp_path) as on:
        with pytest.raises(MissingExtra, match=r"holdfast\[system\]"):
            await on.create("backup", {"schema": "shop", "backup_location": "a"})
        await on.run("backup", {"schema": "shop", "backup_location": "a", "compression": "none"})
    assert verify_backup(tmp_path / "backups" / "a")


async def test_without_its_programs_a_backup_says_what_to_install(
    settings: Settings, shop: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bad input: missing, or older than the server: `MissingExtra` at create, for backup and restore."""
    async with stage(settings, tmp_path) as on:
        await on.run("backup", {"schema": "shop", "backup_location": "a"})
        monkeypatch.setattr(programs, "_folders", lambda: [install(tmp_path / "bin", "9.6.1")])
        for kind, params in {
            "backup": {"schema": "shop", "backup_location": "b"},
            "restore": {"backup_location": "a", "target_schema": "copy"},
        }.items():
            with pytest.raises(MissingExtra, match="the newest here are 9"):
                await on.create(kind, params)
    assert written(tmp_path / "backups") == ["a", "a/manifest.json", "a/shop.dump.zst"]


async def test_programs_newer_than_the_server_do(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-32, Y-33: where only newer ones are there; what they write beyond the server's words is left out."""
    found = [one for folder in programs._folders() if (one := programs._version(folder))]
    newest = [folder for folder in programs._folders() if programs._version(folder) == max(found)]
    monkeypatch.setattr(programs, "_folders", lambda: newest)
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
        await bring_back(on.bench, "a", "copy")
        assert await sums(conn, "copy") == await sums(conn, "shop")
        await bring_back(on.bench, "a", "shop", overwrite=True)
        assert await sums(conn, "copy") == await sums(conn, "shop")

        # They are as strict: with a byte that flips, and with a statement that fails.
        async def meddle(step: str) -> None:
            dump = tmp_path / "backups" / "b" / "shop.dump"
            if step == "database":
                dump.write_bytes(dump.read_bytes().replace(b"thing 77", b"thing 7\x00"))

        await back_up(on.bench, "shop", "b", compression="none")
        with pytest.raises((InvalidBackup, programs.ProgramFailed)):
            await bring_back(on.bench, "b", "shop", meddle, overwrite=True)
        assert await sums(conn, "copy") == await sums(conn, "shop")
        assert await strays(conn, tmp_path) == []


async def test_behind_a_pooler_a_backup_needs_a_way_past_it(
    settings: Settings, shop: None, tmp_path: Path
) -> None:
    """Bad input: a transaction pooler lends no session for as long as a dump takes."""
    url = settings.database_url
    async with stage(settings, tmp_path, database_pooler="transaction") as on:
        with pytest.raises(MissingExtra, match="HOLDFAST_DATABASE_DIRECT_URL"):
            await on.create("backup", {"schema": "shop", "backup_location": "a"})
    async with stage(settings, tmp_path, database_pooler="transaction", database_direct_url=url) as on:
        await back_up(on.bench, "shop", "a")
        await bring_back(on.bench, "a", "copy")


async def test_called_off_it_leaves_nothing(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-15: pg_dump is ended, the unfinished folder is gone."""
    async with stage(settings, tmp_path) as on:
        job = await on.create("backup", {"schema": "shop", "backup_location": "a"})
        other = await connect()
        async with other.transaction():
            await other.execute("lock table pg_catalog.pg_seclabel in access exclusive mode")
            worker = on.worker()
            working = asyncio.create_task(worker.run())
            waiting = "select count(*) > 0 from pg_stat_activity where application_name = 'holdfast backup'"
            await until(conn, f"{waiting} and wait_event_type = 'Lock' and datname = current_database()")
            assert hidden(tmp_path)
            await on.jobs.cancel(conn, job)
            await until(
                conn, f"select not exists ({waiting} and datname = current_database() having count(*) > 0)"
            )
        await until(conn, "select status = 'cancelled' from system.jobs where id = %s", job)
        worker.stop()
        await working
        assert written(tmp_path / "backups") == []


async def test_what_killed_runs_left_is_removed_and_what_others_write_is_not(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path
) -> None:
    """Y-16: the leftovers of the same place, and of others beside it whose run is gone."""
    root = tmp_path / "backups"
    for name in (".a.partial", ".a.0f1e2.partial", ".gone.partial", ".gone.0f1e2.partial"):
        (root / name).mkdir(parents=True)
        (root / name / "shop.dump.zst").write_bytes(b"half")
    async with stage(settings, tmp_path) as on:
        going_on = asyncio.Event()
        finish = asyncio.Event()

        async def wait(step: str) -> None:
            if step == "dumped":
                going_on.set()
                await finish.wait()

        await conn.execute("create schema depot; create table depot.shelf (n int)")
        async with asyncio.TaskGroup() as group:
            group.create_task(back_up(on.bench, "depot", "b", wait))
            await going_on.wait()
            await back_up(on.bench, "shop", "a")
            assert [Path(name).name[:3] for name in hidden(root)] == [".b."]
            with pytest.raises(TargetExists, match="is being written"):
                await back_up(on.bench, "shop", "b")
            finish.set()
    assert sorted(path.name for path in root.iterdir()) == ["a", "b"]
    assert verify_backup(root / "b")


Steps = dict[str, Callable[[str], Awaitable[None]]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """What happens at the steps of backups that jobs make, by their schema."""
    real, told = backup.run, Steps()

    async def run(params: Any, run: Any) -> str:
        return await real(params, run, told.get(params.schema, no_step))

    monkeypatch.setattr(backup, "run", run)
    return told


# Ends the connections that hold the place of a backup, and nothing else: they ask for nothing meanwhile.
CUT_OFF = """
select pg_terminate_backend(a.pid, 5000)
from pg_stat_activity as a join pg_locks as l on l.pid = a.pid and l.locktype = 'advisory' and l.granted
where a.datname = current_database() and l.database = a.datid
    and (l.classid::bigint << 32) + l.objid::bigint = hashtextextended('holdfast system backup ' || %s, 0)
"""


async def test_a_place_whose_lock_is_lost_is_not_written_to(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, steps: Steps
) -> None:
    """Y-16, Y-32: it is asked before the backup gets its name; the job makes it at its next try."""
    place, met = tmp_path / "backups" / "a", list[str]()

    async def cut(step: str) -> None:
        met.append(step)
        if met == ["folder", "snapshot", "dumped"]:
            assert (await (await conn.execute(CUT_OFF, (str(place),))).fetchall()) == [(True,)]

    steps["shop"] = cut
    async with stage(settings, tmp_path) as on:
        job = await on.create("backup", {"schema": "shop", "backup_location": "a"})
        await on.drain()
        assert met[-1] == "manifest"
        row = await on.job(job)
        assert (row.state, row.attempts) == ("retrying", 1)
        assert "the connection is lost that kept" in row.columns["message"]
        assert written(tmp_path / "backups") == []
        await on.do("update system.jobs set run_at = 0")
        await on.drain()
        assert (await on.job(job)).state == "completed"
    assert verify_backup(place).job == job


@pytest.mark.parametrize("end", ["stopped", "cut off"])
async def test_a_backup_that_was_made_and_not_told_is_done(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, steps: Steps, end: str
) -> None:
    """Y-16, Y-32: the manifest names its job, so the next run of that one, and of no other, knows it."""
    place, there = tmp_path / "backups" / "a", asyncio.Event()

    async def stop(step: str) -> None:
        if step == "published":
            steps.clear()
            there.set()
            if end == "stopped":
                await asyncio.Event().wait()
            await conn.execute(CUT_OFF, (str(place),))

    steps["shop"] = stop
    params = {"schema": "shop", "backup_location": "a"}
    async with stage(settings, tmp_path, shutdown_timeout=0.1, system_concurrency=1) as on:
        job = await on.create("backup", params)
        worker = on.worker()
        working = asyncio.create_task(worker.run())
        await there.wait()
        if end == "cut off":
            await until(conn, "select status = 'retrying' from system.jobs")
        worker.stop()
        await working
        made = (place / "manifest.json").read_bytes()
        other = await on.create("backup", params, max_retries=0, priority=-1)  # it cannot know yet
        await on.do("update system.jobs set run_at = 0")
        await on.drain()
        row = await on.job(job)
        assert row.state == "completed", row.columns["message"]
        assert row.columns["message"].startswith("250 rows of 2 tables")
        refused = await on.job(other)
        assert refused.state == "failed"
        assert "no backup is overwritten" in refused.columns["message"]
        with pytest.raises(TargetExists, match="holds a backup"):
            await on.create("backup", params)
    assert (place / "manifest.json").read_bytes() == made
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["a"]


async def test_two_backups_never_share_a_folder(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, steps: Steps
) -> None:
    """Y-16, Y-32: the first has lost the lock of its place, and does not know it."""
    await conn.execute("create schema depot; create table depot.shelf (n int)")
    place, reached, going = tmp_path / "backups" / "a", asyncio.Event(), asyncio.Event()
    folders: list[list[str]] = []

    async def first(step: str) -> None:
        if step == "dumped":
            await conn.execute(CUT_OFF, (str(place),))
            reached.set()
            await going.wait()

    async def second(step: str) -> None:
        if step == "dumped":
            folders.append(sorted(hidden(tmp_path)))
            going.set()
            await until(conn, "select count(*) = 1 from system.jobs where status = 'failed'")

    steps.update(shop=first, depot=second)
    async with stage(settings, tmp_path, system_concurrency=2) as on:
        late = await on.create("backup", {"schema": "shop", "backup_location": "a"}, max_retries=0)
        worker = on.worker()
        working = asyncio.create_task(worker.run())
        await reached.wait()
        job = await on.create("backup", {"schema": "depot", "backup_location": "a"}, max_retries=0)
        await until(conn, "select count(*) = 0 from system.jobs where status not in ('completed', 'failed')")
        worker.stop()
        await working
        assert [(await on.job(one)).state for one in (late, job)] == ["failed", "completed"]
        assert [len(found) for found in folders] == [2]
        assert [(info.name, info.problem) for info in list_backups(on.bench.settings)] == [("a", None)]
    assert (verify_backup(place).job, written(place)) == (job, ["depot.dump.zst", "manifest.json"])
    assert [path.name for path in (tmp_path / "backups").iterdir()] == ["a"]


async def test_backups_are_listed_the_newest_first(settings: Settings, shop: None, tmp_path: Path) -> None:
    """Y-38: with what each holds, and what is wrong with it; unfinished ones and links are none."""
    async with stage(settings, tmp_path) as on:
        for location in ("one", "days/two", "three"):
            await back_up(on.bench, "shop", location)
        listed = list_backups(on.bench.settings)
        assert [info.name for info in listed] == ["three", "days/two", "one"]
        assert {info.manifest.rows for info in listed if info.manifest} == {250}
        root = tmp_path / "backups"
        (root / "link").symlink_to(root / "one")
        (root / ".x.partial").mkdir()
        (root / "three" / "manifest.json").write_text("{}")
        listed = list_backups(on.bench.settings)
        assert [(info.name, info.manifest is None) for info in listed] == [
            ("days/two", False),
            ("one", False),
            ("three", True),
        ]
        assert "has changed" in (listed[2].problem or "")
    assert list_backups(fitted(settings, tmp_path / "nowhere")) == []


async def test_odd_names_are_names(settings: Settings, conn: Connection, tmp_path: Path) -> None:
    """Names are no patterns: not for pg_dump, not for SQL, not for the file system."""
    odd = 'Odd "sch.*" ü; --'
    quoted = '"' + odd.replace('"', '""') + '"'
    await conn.execute(f'create schema {quoted}; create table {quoted}."T t.*" ("holdfast row" int, t text)')
    await conn.execute(f"""insert into {quoted}."T t.*" values (1, 'x''y'), (null, null)""")
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, odd, "a")
        before = await sums(conn, odd)
        assert before["T t.*"].rows == 2
        await drop(conn, odd)
        await bring_back(on.bench, "a", odd)
        assert await sums(conn, odd) == before
        await bring_back(on.bench, "a", "plain")
        await bring_back(on.bench, "a", odd + "2")
        assert await strays(conn, tmp_path) == []


async def test_rows_hidden_from_us_are_an_error_and_no_shorter_backup(
    settings: Settings, conn: Connection, plain_role: str, tmp_path: Path
) -> None:
    """The trap of `--enable-row-security`: it fails loudly, without the password."""
    async with await psycopg.AsyncConnection.connect(plain_role, autocommit=True) as own:
        await own.execute(
            "create schema safe; create table safe.row (n int); insert into safe.row values (1)"
        )
        await own.execute("alter table safe.row enable row level security, force row level security")
    async with stage(settings, tmp_path) as on:
        async with stage(settings, tmp_path, database_url=plain_role) as plain:
            with pytest.raises(
                (programs.ProgramFailed, psycopg.Error), match="row-level security"
            ) as failure:
                await back_up(plain.bench, "safe", "a")
            assert "open-sesame" not in str(failure.value)
        assert written(tmp_path / "backups") == []
        await back_up(on.bench, "safe", "a")


async def test_no_password_is_in_parameters_log_or_message(
    settings: Settings, conn: Connection, plain_role: str, shop: None, tmp_path: Path
) -> None:
    """Y-34 "no password is in parameters, log, message or process list", also when all goes wrong."""
    told: list[str] = []
    async with stage(settings, tmp_path) as on:
        row = await on.run("backup", {"schema": "shop", "backup_location": "a"})
        assert row.state == "completed"
        password = (settings.database_url or "").partition("@")[0].rpartition(":")[2]
        told += [
            str(row),
            (tmp_path / "jobs.log").read_text(),
            (tmp_path / "backups/a/manifest.json").read_text(),
        ]
        assert password not in "".join(told) or password.endswith("holdfast")
    async with stage(settings, tmp_path, database_url=plain_role) as on:
        with pytest.raises((HoldfastError, psycopg.Error, programs.ProgramFailed)) as failure:
            await back_up(on.bench, "shop", "b")  # not its own, and not to read
    assert "open-sesame" not in "".join([str(failure.value), (tmp_path / "jobs.log").read_text()])


def test_every_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    """Y-33: not one can change unseen, and it is no question of luck which."""
    manifest = backups.Manifest(
        version=1,
        created_at="2025-01-31T12:00:00.000Z",
        job="BK-4fK2mZ0q",
        holdfast="1",
        revision="0007",
        server=180000,
        program=18,
        database="work",
        schema="shop",
        compression="none",
        tables=(backups.Table(name="item", rows=1, checksum="7"),),
        without_rows=(),
        files=(),
    )
    backups.write_manifest(tmp_path, manifest)
    path = tmp_path / "manifest.json"
    raw = path.read_bytes()
    assert backups.read_manifest(tmp_path) == manifest
    for position in range(len(raw)):
        for bit in (1, 32):
            flipped = bytearray(raw)
            flipped[position] ^= bit
            path.write_bytes(flipped)
            with pytest.raises(backups.InvalidBackup):
                backups.read_manifest(tmp_path)
