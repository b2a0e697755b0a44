"""Two installations of one database: each has an archive of its own, and neither eats the other's rows."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Settings
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.executors import flush
from holdfast.apps.system.parameters import Flush
from holdfast.db import migrate
from holdfast.db.pool import Connection
from holdfast.db.system_settings import archive_url
from system.archiving import ORG, finish
from system.kit import stage
from system.safe import LooseRun


async def test_the_flush_of_another_schema_leaves_our_files_alone(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-25, Y-27: it would take the rows of a file that is not entered yet for rows that are gone."""
    await asyncio.to_thread(migrate.upgrade, settings.database_url or "", "head", "cell")
    await finish(conn, "job", 6)
    async with stage(settings, tmp_path) as ours, stage(settings, tmp_path, schema="cell") as theirs:
        published, go = asyncio.Event(), asyncio.Event()

        async def step(name: str) -> None:
            if name == "published":
                published.set()
                await go.wait()
                raise RuntimeError("cut off")

        run = LooseRun(ours.bench, "FL-loose000")
        cut = asyncio.ensure_future(flush.run(Flush(ledger="job"), run, step))  # type: ignore[arg-type]
        await published.wait()
        assert (await theirs.run("flush", {"ledger": "job"})).columns["message"] == "0 rows"
        go.set()
        with pytest.raises(RuntimeError, match="cut off"):
            await cut
        assert (await manifests.read(ours.bench.archive, "job")).rows == 0
        done = await ours.run("flush", {"ledger": "job"})
        assert done.columns["message"] == "6 rows and 12 events to 2 files"
        assert await ours.one("select count(*) from job") == 0
        assert (await manifests.read(ours.bench.archive, "job")).rows == 6
        assert (await manifests.read(theirs.bench.archive, "job")).rows == 0


@pytest.mark.parametrize("work", ["flush", "compact", "erase"])
async def test_the_archive_of_another_database_is_refused(
    settings: Settings, conn: Connection, tmp_path: Path, work: str
) -> None:
    """Y-25, Y-27, Y-31: whoever judged files by his own table would take the rows of another's for gone."""
    await finish(conn, "job", 6)
    async with stage(settings, tmp_path) as ours:
        assert (await ours.run("flush", {"ledger": "job"})).state == "completed"
        archive = ours.bench.archive
        manifest = await manifests.read(archive, "job")
        assert re.fullmatch(r"server [0-9]+ database [0-9]+ schema public", manifest.owner or "")
        other = "server 1 database 2 schema cell"
        await manifests.update(archive, "job", lambda seen: msgspec.structs.replace(seen, owner=other))
        await finish(conn, "job", 1)
        before = await archive.list()
        wishes: dict[str, tuple[str, dict[str, Any]]] = {
            "flush": ("flush", {"ledger": "job"}),
            "compact": ("compact", {"ledger": "job"}),
            "erase": ("user_cleanup", {"subject": {"org_id": ORG}, "cascade": True}),
        }
        done = await ours.run(*wishes[work])
        assert (done.state, done.attempts) == ("failed", 0)
        assert (
            "the archive of job: belongs to server 1 database 2 schema cell, and " in done.columns["message"]
        )
        assert await archive.list() == before
        assert await ours.one("select count(*) from job") == 1
        await manifests.update(archive, "job", lambda seen: msgspec.structs.replace(seen, owner=None))
        assert (await ours.run(*wishes[work])).state == "completed"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("file:///srv/archive", "file:///srv/archive/cell"),
        ("file:///srv/archive/", "file:///srv/archive/cell"),
        ("s3://store", "s3://store/cell"),
        (
            "s3://store/a/b?endpoint=https://r2.example/&region=auto",
            "s3://store/a/b/cell?endpoint=https://r2.example/&region=auto",
        ),
        (None, "file:///home/x/archive/cell"),
    ],
)
def test_the_archive_of_a_schema_by_name_is_a_folder_of_that_name(given: str | None, found: str) -> None:
    """Y-27: and without one it is where the setting says."""
    settings = replace(Settings(), system_archive=given, home=Path("/home/x"))
    assert archive_url(replace(settings, schema="cell")) == found
    assert archive_url(settings) == (given or "file:///home/x/archive")
