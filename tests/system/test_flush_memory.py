"""The memory of a flush does not grow with what its rows have: it is measured in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from runtime.support import PATH
from system.archiving import finish, place, table_rows

MB = 2**20
EVENTS = """
insert into job_event (job_id, prev_status, next_status, detail_json)
select id, 'running', 'failed', jsonb_build_object('text', repeat(md5(n::text), %(words)s))
from job, generate_series(1, %(events)s) as n
"""


async def grown_by(settings: Settings, conn: Connection, folder: Path) -> tuple[str, int]:
    """Flush `job` in a new process; return its message and by how many bytes its peak memory grew."""
    await finish(conn, "tasks", 1)
    told = {"database": settings.database_url, "archive": folder.as_uri()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, json.dumps(told),
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATH},
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0
    message, grown = json.loads(output)
    return message, grown


async def test_a_flush_needs_less_memory_than_what_it_archives(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-25: few rows with many events, which all belong to one batch by their number."""
    await finish(conn, "job", 30)
    await conn.execute(EVENTS, {"words": 64, "events": 1600})  # 48,000 events of 2 KB
    message, grown = await grown_by(settings, conn, tmp_path / "archive")
    assert message.startswith("30 rows and 48060 events to ")
    assert await table_rows(conn, "job_event") == []
    assert grown < 96 * MB, f"{grown / MB:.0f} MB for 96 MB of events"


async def test_a_flush_of_a_single_row_needs_no_more(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-25: a row and its events are never divided between files, and need not be in memory together."""
    await finish(conn, "job", 1)
    await conn.execute(EVENTS, {"words": 32 * 1024, "events": 96})  # of 1 MB each
    message, grown = await grown_by(settings, conn, tmp_path / "archive")
    assert message == "1 row and 98 events to 2 files"
    assert grown < 96 * MB, f"{grown / MB:.0f} MB for 96 MB of events"


@pytest.mark.soak
async def test_a_flush_of_two_million_events_stays_below_200_mb(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """The case that needed 3 GB."""
    await conn.execute("set statement_timeout = 0")
    await finish(conn, "job", 48)
    await conn.execute(EVENTS, {"words": 4, "events": 44_000})
    message, grown = await grown_by(settings, conn, tmp_path / "archive")
    assert message.startswith("48 rows and 2112096 events to ")
    assert grown < 200 * MB, f"{grown / MB:.0f} MB"


async def measure(database: str, archive: str) -> tuple[str, int]:
    """Flush `tasks` first, so that all code is loaded; then `job`."""
    async with place(Settings(database_url=database, profile="test"), archive) as here:
        await here.flush("tasks")
        before = _peak()
        message = await here.flush("job")
        return message, _peak() - before


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(measure(**json.loads(sys.argv[1])))))
