"""Many jobs through four worker processes, one of them killed on the way; then the record is verified."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import Holdfast, Item, Settings
from holdfast.db.pool import Connection
from runtime.support import PATH, make_tables, one, until

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
    command = [*COMMAND, "worker", "--ledger", "job", "--app", "runtime.fleet:app", "--concurrency", "20"]
    workers: list[subprocess.Popen[bytes]] = []
    for number in range(4):
        with (tmp_path / f"worker-{number}.log").open("wb") as log:
            workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    yield workers
    for worker in workers:
        if worker.poll() is None:
            worker.terminate()
            worker.wait(60)


@pytest.mark.parametrize("jobs", [2_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_every_job_of_a_fleet_is_finished_once_and_the_record_is_true(
    settings: Settings,
    conn: Connection,
    environment: dict[str, str],
    jobs: int,
    request: pytest.FixtureRequest,
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
    workers: list[subprocess.Popen[bytes]] = request.getfixturevalue("fleet")
    patience = 60 + jobs / 50
    third = "select count(*) > %s from job where status = 'succeeded'"
    assert await until(conn, third, jobs // 3, within=patience)
    workers[0].kill()
    await until(conn, "select not exists (select from job where status <> 'succeeded')", within=patience)
    finishes = """select count(*), count(distinct job_id) from job_event where next_status = 'succeeded'"""
    assert await (await conn.execute(finishes)).fetchone() == (jobs, jobs)
    effects = "select count(*), count(distinct task) from effects"
    assert await (await conn.execute(effects)).fetchone() == (jobs, jobs)
    assert await one(conn, "select count(distinct note) from effects") == 4
    told = json.loads(await asyncio.to_thread(verified, environment))
    assert (told["rows"], told["lies"]) == (jobs, [])


def verified(environment: dict[str, str]) -> bytes:
    """What `holdfast job verify --all` tells; it ends badly when it finds a lie."""
    return subprocess.check_output([*COMMAND, "job", "verify", "--all", "--json"], env=environment)
