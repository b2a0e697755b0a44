"""kill -9 at each step of a flush and of a compaction, then a new run (Y-25, Y-31)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from runtime.support import PATH, until
from system.archiving import Place, digest, finish, place, table_rows
from system.buckets import ACCESS, SECRET, serving

PROGRAM = [sys.executable, str(Path(__file__).parent / "archiving.py")]
ALONE = (
    "select count(*) = 0 from pg_stat_activity where datname = current_database()"
    " and split_part(application_name, ' [', 1)"
    " in ('holdfast flush', 'holdfast compact', 'holdfast system job')"
)
Kill = Callable[..., None]


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An archive of each kind."""
    if request.param == "folder":
        yield (tmp_path / "archive").as_uri()
        return
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with serving() as server:
        yield server.url


@contextmanager
def stopped(settings: Settings, url: str, work: str, step: str, time: int, **params: Any) -> Iterator[None]:
    """A process that has stopped at a step; it is killed at the end."""
    told = {"database": settings.database_url, "archive": url, "work": work, "step": step, "time": time}
    arguments = [*PROGRAM, json.dumps({**told, "params": params})]
    environment = {**os.environ, "PYTHONPATH": PATH}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"at {step}\n"
            yield
        finally:
            process.kill()


async def killed(
    conn: Connection, settings: Settings, url: str, work: str, step: str, time: int, **params: Any
) -> None:
    with stopped(settings, url, work, step, time, **params):
        pass
    await until(conn, ALONE)


async def whole(here: Place, conn: Connection, rows: str, events: str) -> None:
    """No row lost, none twice, no stray file."""
    in_table, archived = await table_rows(conn, "job"), await here.rows()
    assert digest(in_table + archived) == rows
    assert digest(await table_rows(conn, "job_event") + await here.rows("job", "job_event")) == events
    await here.whole()


def both(steps: list[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """The steps in archives of each kind; a bucket takes a file in one step."""
    every = [(kind, step, time) for kind in ("folder", "s3") for step, time in steps]
    return [(kind, step, time) for kind, step, time in every if (kind, step) != ("s3", "written")]


FLUSH = [("locked", 2), ("written", 1), ("written", 2), ("written", 3), ("published", 2), ("deleted", 2)]
FLUSH += [("committed", 1), ("committed", 2), ("entered", 1)]


@pytest.mark.parametrize(("url", "step", "time"), both(FLUSH), indirect=["url"])
async def test_kill_at_each_step_of_a_flush_loses_and_doubles_nothing(
    settings: Settings, conn: Connection, url: str, step: str, time: int
) -> None:
    """Y-25: kill -9, then a new job: no row lost, none twice, no stray file."""
    await finish(conn, "job", 10)
    rows, events = digest(await table_rows(conn, "job")), digest(await table_rows(conn, "job_event"))
    await killed(conn, settings, url, "flush", step, time, batch_rows=4)
    async with place(settings, url) as here:
        assert (await here.flush(batch_rows=4)).split()[1].startswith("row")
        assert await table_rows(conn, "job") == []
        await whole(here, conn, rows, events)


COMPACT = [("written", 1), ("written", 2), ("made", 1), ("made", 2), ("replaced", 1), ("removing", 1)]
COMPACT += [("removing", 3), ("removed", 1), ("removed", 2), ("vacuumed", 1)]


@pytest.mark.parametrize("then", ["compact", "flush"])
@pytest.mark.parametrize(("url", "step", "time"), both(COMPACT), indirect=["url"])
async def test_kill_at_each_step_of_a_compaction_loses_and_doubles_nothing(
    settings: Settings, conn: Connection, url: str, step: str, time: int, then: str
) -> None:
    """Y-31: kill -9, then a new job of either kind: no row lost, none twice, no stray file."""
    await finish(conn, "job", 12)
    rows, events = digest(await table_rows(conn, "job")), digest(await table_rows(conn, "job_event"))
    async with place(settings, url) as here:
        await here.flush(batch_rows=3)
        await killed(conn, settings, url, "compact", step, time, indexes=True)
        if then == "flush":
            assert await here.flush() == "0 rows"
            await whole(here, conn, rows, events)
        assert (await here.compact()).endswith("rows")
        await whole(here, conn, rows, events)
        assert len([key for key in await here.archive.list("job") if key.endswith(".parquet")]) == 2


async def test_a_killed_flush_leaves_its_target_to_the_next(
    settings: Settings, conn: Connection, url: str
) -> None:
    """Y-17: and while it lives, nobody else gets it."""
    from holdfast.apps.system.bench import target_lock

    await finish(conn, "job", 3)
    async with place(settings, url) as here:
        with stopped(settings, url, "flush", "deleted", 1):
            async with target_lock(here.bench, "job") as lock:
                assert lock is None
        await until(conn, ALONE)
        async with target_lock(here.bench, "job") as lock:
            assert lock is not None
