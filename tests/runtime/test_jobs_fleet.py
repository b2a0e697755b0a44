"""Many jobs through four worker processes, one of them killed on the way; then the record is verified."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import Holdfast, Item, Settings
from holdfast.db.pool import Connection
from runtime.support import PATH, make_tables, not_outliving, one, shown, until

ORGS = [UUID(int=n) for n in range(1, 6)]
BULK = 1_000
COMMAND = [sys.executable, "-m", "holdfast.cli"]


@pytest.fixture
def environment(database_url: str) -> dict[str, str]:
    quick = {"HEARTBEAT_INTERVAL": "1", "WORKER_TIMEOUT": "4", "LEADER_TERM": "2", "JOB_BACKOFF_BASE": "50ms"}
    known = {"DATABASE_URL": database_url, "PROFILE": "test", "DB_MAX_CONNECTIONS": "12", **quick}
    return os.environ | {"PYTHONPATH": PATH} | {f"HOLDFAST_{name}": value for name, value in known.items()}


@pytest.fixture
def fleet(environment: dict[str, str], tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Four worker processes. All are asked to end before the first is waited for."""
    command = [*COMMAND, "worker", "--ledger", "job", "--app", "runtime.fleet:app", "--concurrency", "20"]
    workers: list[subprocess.Popen[bytes]] = []
    with ExitStack() as stack:
        for number in range(4):
            with (tmp_path / f"worker-{number}.log").open("wb") as log:
                worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            workers.append(stack.enter_context(not_outliving(worker)))
        for worker in workers:
            stack.callback(worker.terminate)
        yield workers


# Both by the index on the status, and no further than needed: the wait must not be what is measured.
MANY_SUCCEEDED = "select exists (select from job where status = 'succeeded' offset %s limit 1)"
ALL_OVER = "select not exists (select from job where status in ('queued', 'running', 'failed'))"


async def test_waiting_for_the_fleet_reads_the_index(conn: Connection) -> None:
    """A look at a hundred thousand jobs, five times a second, must not be a scan of all."""
    await conn.execute("set enable_seqscan = off")  # the table is empty: a scan would be the best
    for query in (MANY_SUCCEEDED.replace("%s", "33333"), ALL_OVER):
        plan = str(await (await conn.execute(f"explain {query}".encode())).fetchall())
        assert "idx_job__status_created_at" in plan, plan


@pytest.mark.parametrize("jobs", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_every_job_of_a_fleet_is_finished_once_and_the_record_is_true(
    settings: Settings,
    conn: Connection,
    environment: dict[str, str],
    jobs: int,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """J-11, J-15, J-18, J-27, J-32, J-34: also when a worker is killed while it works."""
    await make_tables(conn)
    async with Holdfast(settings) as app:
        for start in range(0, jobs, BULK):
            items = [
                Item(kind="effect", payload=number, tenant=ORGS[number % 5], backoff="fixed")
                for number in range(start, min(start + BULK, jobs))
            ]
            await app.enqueue_many("job", items, by="test")
    await conn.execute("analyze job")
    workers: list[subprocess.Popen[bytes]] = request.getfixturevalue("fleet")
    patience = 60 + jobs / 50
    assert await until(conn, MANY_SUCCEEDED, jobs // 3, within=patience, every=0.2)
    workers[0].kill()
    await until(conn, ALL_OVER, within=patience, every=0.2)
    finishes = """select count(*), count(distinct job_id) from job_event where next_status = 'succeeded'"""
    assert await (await conn.execute(finishes)).fetchone() == (jobs, jobs)
    effects = "select count(*), count(distinct task) from effects"
    assert await (await conn.execute(effects)).fetchone() == (jobs, jobs)
    assert await one(conn, "select count(distinct note) from effects") == 4
    began = time.monotonic()
    told = json.loads(await asyncio.to_thread(verified, environment))
    seconds = time.monotonic() - began
    assert (told["rows"], told["lies"]) == (jobs, [])
    if request.node.get_closest_marker("soak"):
        working = await one(conn, WORKING)
        rate = f"{jobs:,} jobs in {working:.1f} s, with a killed worker: {jobs / working:,.0f} jobs/s"
        shown(capsys, f"{rate}; verify: {told['events']:,} events in {seconds:.1f} s")


# From the first claim to the last finish, by the record itself.
WORKING = """
select extract(epoch from max(ts) - min(ts) filter (where next_status = 'running'))::float8 from job_event
"""


def verified(environment: dict[str, str]) -> bytes:
    """What `holdfast job verify --all` tells; it ends badly when it finds a lie."""
    return subprocess.check_output([*COMMAND, "job", "verify", "--all", "--json"], env=environment)
