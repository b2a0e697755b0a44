"""kill -9 at each step of a backup and of a restore, then a new run (Y-16, Y-32, Y-33)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Settings
from holdfast.apps.system.backups import list_backups, verify_backup
from holdfast.db.pool import Connection
from holdfast.errors import TargetExists
from runtime.support import PATH, PATIENCE, until
from system.kit import stage
from system.safe import SHOP, back_up, bring_back, hidden, strays, sums

PROGRAM = [sys.executable, str(Path(__file__).parent / "crashing.py")]
# The programs and connections of whoever was killed: the server notices a moment later.
ALONE = (
    "select count(*) = 0 from pg_stat_activity where datname = current_database()"
    " and split_part(application_name, ' [', 1)"
    " in ('holdfast backup', 'holdfast restore', 'holdfast system job')"
)


@pytest.fixture
async def shop(conn: Connection) -> None:
    await conn.execute(SHOP)


@asynccontextmanager
async def started(settings: Settings, folder: Path, **told: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Such a process; killed at the end."""
    told |= {"database": settings.database_url, "folder": str(folder), "schema": "shop", "location": "a"}
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, json.dumps(told), stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATH}
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def killed(settings: Settings, conn: Connection, folder: Path, step: str, **told: Any) -> None:
    """Runs a process up to a step, and kills it there."""
    async with started(settings, folder, step=step, **told) as process:
        assert process.stdout
        async with asyncio.timeout(PATIENCE):
            assert (await process.stdout.readline()).decode() == f"at {step}\n"
    await until(conn, ALONE)


@pytest.mark.parametrize("step", ["folder", "snapshot", "dumped", "counted", "manifest", "published"])
async def test_a_backup_killed_at_each_step_is_made_by_the_next_run(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, step: str
) -> None:
    """Y-16, Y-32: what is not complete is no backup; the next run leaves one, and nothing else."""
    await killed(settings, conn, tmp_path, step, work="backup")
    root = tmp_path / "backups"
    async with stage(settings, tmp_path) as on:
        if step == "published":  # it was done, only nobody said so
            with pytest.raises(TargetExists):
                await back_up(on.bench, "shop", "a")
        else:
            assert list_backups(on.bench.settings) == []
            assert hidden(root)
            await back_up(on.bench, "shop", "a")
        assert hidden(root) == []
        assert verify_backup(root / "a").rows == 250
        await bring_back(on.bench, "a", "copy")
        assert await sums(conn, "copy") == await sums(conn, "shop")


async def test_a_backup_killed_amid_the_dump_leaves_no_program(
    settings: Settings, conn: Connection, shop: None, connect: Any, tmp_path: Path
) -> None:
    """Y-16: pg_dump ends when nobody reads it any more."""
    other = await connect()
    async with other.transaction():
        # Nobody but pg_dump reads it, not even a connection that finds its cache of the catalogue outdated.
        await other.execute("lock table pg_catalog.pg_seclabel in access exclusive mode")
        async with started(settings, tmp_path, step="", work="backup"):
            waiting = "select count(*) > 0 from pg_stat_activity where application_name = 'holdfast backup'"
            await until(conn, f"{waiting} and wait_event_type = 'Lock' and datname = current_database()")
    await until(conn, ALONE)
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
    assert hidden(tmp_path) == []
    assert verify_backup(tmp_path / "backups" / "a").rows == 250


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    "step", ["locked", "database", "filled", "renamed", "moved", "compared", "swapping", "swapped"]
)
async def test_a_restore_killed_at_each_step_is_done_by_the_next_run(
    settings: Settings, conn: Connection, shop: None, tmp_path: Path, step: str, overwrite: bool
) -> None:
    """Y-16, Y-33: before the swap the target is as it was, after it new; the next run ends, and clears up."""
    async with stage(settings, tmp_path) as on:
        await back_up(on.bench, "shop", "a")
    restored = await sums(conn, "shop")
    if overwrite:
        await conn.execute("delete from shop.sale where id > 20; insert into shop.sale (item) values (7)")
    else:
        await conn.execute("drop schema shop cascade")
    before = await sums(conn, "shop")
    await killed(settings, conn, tmp_path, step, work="restore", overwrite=overwrite)
    assert await sums(conn, "shop") == (restored if step == "swapped" else before)
    async with stage(settings, tmp_path) as on:
        if step == "swapped" and not overwrite:  # it was done, only nobody said so
            with pytest.raises(TargetExists):
                await bring_back(on.bench, "a", "shop")
        # Of a target that is another's business, what was left goes as well.
        await bring_back(on.bench, "a", "other")
        assert await strays(conn, tmp_path) == []
        await bring_back(on.bench, "a", "shop", overwrite=True)
        assert await strays(conn, tmp_path) == []
    assert await sums(conn, "shop") == restored == await sums(conn, "other")
