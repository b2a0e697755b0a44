"""Jobs that others' SQL has started: they name no worker, and come back when nobody can be at them now."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from connectors import kit
from connectors.kit import Stage
from holdfast import Settings
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.protocol import Permanent
from holdfast.db.pool import Connection
from holdfast.runtime.worker import UNLIMITED_RUN, Worker
from runtime.support import one, running, until

MOST = 1000.0  # seconds of a run; far from every other time here
FAR = {"sync": {"next_run_at": "2100-01-01T00:00:00.000000Z"}}  # the scheduler has nothing to do here


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(replace(settings, sync_max_run_seconds=MOST), conn) as stage:
        yield stage


async def started(stage: Stage, link: Link, seconds: float, kind: str = "incremental") -> UUID:
    """A job that was started so many seconds ago by somebody who tells no name."""
    job = await stage.add(link, kind)
    await stage.conn.execute(
        "update sync_jobs set status = 'running', started_at = now() - make_interval(secs => %s) "
        "where id = %s",
        (seconds, job),
    )
    return job


async def started_task(conn: Connection, seconds: float) -> UUID:
    """A task of nobody that was claimed so many seconds ago."""
    query = "insert into tasks (type, status, claimed_at) values "
    query += "('x', 'running', now() - make_interval(secs => %s)) returning id"
    return await one(conn, query, seconds)


async def swept(worker: Worker, conn: Connection, duty: str) -> int:
    """What a worker's own duty does, once; how many rows it gave back."""
    (found,) = [one for one in worker.keeper.duties if one.name == duty]
    return await found.run(conn, "leader")


def nothing(payload: Any) -> None:
    """What a handler does here."""


async def states(stage: Stage, *jobs: UUID) -> list[str]:
    return [(await stage.job(job))["status"] for job in jobs]


@pytest.mark.parametrize("duty", ["reap", "adopt"])
async def test_a_job_of_nobody_comes_back_after_twice_the_longest_run_and_not_before(
    stage: Stage, duty: str
) -> None:
    """C-33: by the patience of the worker as the app makes it; the error says why, and the start is kept."""
    links = [await stage.link() for _ in range(3)]
    young = await started(stage, links[0], MOST + 1)
    nearly = await started(stage, links[1], 2 * MOST - 60)
    old = await started(stage, links[2], 2 * MOST + 1)
    worker = stage.app.worker()
    assert await swept(worker, stage.conn, duty) == 1
    assert await states(stage, young, nearly, old) == ["running", "running", "queued"]
    row = await stage.job(old)
    assert (row["error"]["code"], row["worker_id"], row["retry_after"]) == ("WORKER_LOST", None, None)
    assert await swept(worker, stage.conn, duty) == 0


async def test_the_patience_follows_the_setting(settings: Settings, conn: Connection) -> None:
    """C-33: HOLDFAST_SYNC_MAX_RUN_SECONDS, and no fixed number."""
    for most, state in ((900.0, "running"), (300.0, "queued")):
        async with kit.stage(replace(settings, sync_max_run_seconds=most), conn) as stage:
            job = await started(stage, await stage.link(), 700)
            await swept(stage.app.worker(), conn, "reap")
            assert await states(stage, job) == [state]


async def test_a_task_of_nobody_waits_for_its_own_time(stage: Stage) -> None:
    """C-33: what the connectors know of their runs says nothing about anybody else's."""
    job = await started(stage, await stage.link(), 2 * MOST + 1)
    soon, late = (
        await started_task(stage.conn, 3 * MOST),
        await started_task(stage.conn, 2 * UNLIMITED_RUN + 1),
    )
    assert await swept(stage.app.worker(), stage.conn, "reap") == 2
    assert await states(stage, job) == ["queued"]
    query = "select status::text from tasks where id = %s"
    assert await one(stage.conn, query, soon) == "running"
    assert await one(stage.conn, query, late) == "pending"


async def test_a_handler_of_ones_own_with_a_long_time_makes_nobody_wait_longer_for_jobs(
    stage: Stage,
) -> None:
    """C-33: nor a short one shorter: runs of sync jobs have a limit of their own."""
    stage.app.handler("slow", ledger="tasks", timeout=50_000)(nothing)
    stage.app.handler("quick", timeout=1)(nothing)
    links = [await stage.link() for _ in range(2)]
    nearly, old = await started(stage, links[0], 2 * MOST - 60), await started(stage, links[1], 2 * MOST + 1)
    task = await started_task(stage.conn, 90_000)
    await swept(stage.app.worker(), stage.conn, "reap")
    assert await states(stage, nearly, old) == ["running", "queued"]
    assert await one(stage.conn, "select status::text from tasks where id = %s", task) == "running"


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"updated_at": 2 * MOST + 1}, "queued"),
        ({"updated_at": 2 * MOST - 60}, "running"),
        ({"started_at": 2 * MOST - 60, "updated_at": 2 * MOST + 1}, "running"),
        ({"started_at": 2 * MOST + 1, "updated_at": 1}, "queued"),
    ],
    ids=lambda value: str(value),
)
async def test_where_no_start_is_told_the_last_change_is_taken(
    stage: Stage, columns: dict[str, float], state: str
) -> None:
    """C-33: foreign SQL may write the status alone."""
    link = await stage.link()
    ago = {"started_at": None, "updated_at": None, **columns}
    job = await one(
        stage.conn,
        "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, created_at, "
        "scheduled_at, started_at, updated_at) values (gen_random_uuid(), %s, %s, %s, 'full', 'running', "
        "now() - interval '30 days', now() - interval '30 days', now() - make_interval(secs => %s), "
        "now() - make_interval(secs => %s)) returning id",
        *(link.tenant_id, link.provider, link.id, ago["started_at"], ago["updated_at"]),
    )
    await swept(stage.app.worker(), stage.conn, "reap")
    assert await states(stage, job) == [state]


async def test_a_job_that_somebody_else_has_started_is_run_by_a_worker_at_last(stage: Stage) -> None:
    """C-33: nobody asks for it; until then its connection is blocked, and afterwards it is free."""
    link, other = await stage.link(metadata=FAR), await stage.link(metadata=FAR)
    old, young = await started(stage, link, 2 * MOST + 1), await started(stage, other, 2 * MOST - 300)
    task = await started_task(stage.conn, 3 * MOST)
    assert await stage.add(link) == old
    stage.script.syncs = [Permanent(message="not any more")]
    worker = stage.app.worker()
    async with running(worker):
        row: dict[str, Any] = await stage.until_job(old, "failed")
        # The leader has swept since: the lead, and the sweeps of all ledgers, are this worker's alone.
        await until(stage.conn, "select true from workers where id = %s and is_leader", worker.id)
    assert [run["code"] for run in row["error"]["history"]] == ["WORKER_LOST", "PERMANENT"]
    assert row["attempts"] == 1
    assert await states(stage, young) == ["running"]
    assert await one(stage.conn, "select status::text from tasks where id = %s", task) == "running"
    assert await stage.add(other) == young
    assert await stage.add(link) != old


async def test_a_job_of_nobody_that_has_used_up_its_starts_ends_failed(stage: Stage) -> None:
    """C-33: failed when exhausted."""
    job = await started(stage, await stage.link(), 2 * MOST + 1)
    await stage.conn.execute("update sync_jobs set attempts = max_attempts where id = %s", (job,))
    await swept(stage.app.worker(), stage.conn, "reap")
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"], row["retry_after"]) == ("failed", "WORKER_LOST", None)
    assert row["finished_at"] is not None
