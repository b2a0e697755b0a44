"""Workers that die, freeze or lose their claim: no job is lost with them, and none writes too late."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors import kit
from connectors.kit import Stage, Stop, page, signal
from connectors.program import RUNS
from holdfast import Settings
from holdfast.apps.connectors import signals
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.protocol import WebhookResult
from holdfast.db.pool import Connection
from holdfast.runtime.duties import Patience, reap
from runtime.support import PATH, PATIENCE, Gate, Process, one, until, until_true, worker_of

SHORT = {"heartbeat_interval": 0.5, "worker_timeout": 1.1, "leader_term": 1.0, "poll_interval": 0.1}
FAR = {"sync": {"next_run_at": "2100-01-01T00:00:00.000000Z"}}  # the scheduler has nothing to do here
Start = Callable[[], Process]


class Program(Process):
    """A worker process with the connector of `connectors.program`."""

    def __init__(self, url: str, log: Path) -> None:
        variables = {f"HOLDFAST_{name.upper()}": str(value) for name, value in SHORT.items()}
        variables |= {
            "HOLDFAST_DATABASE_URL": url,
            "HOLDFAST_PROFILE": "test",
            "HOLDFAST_CRYPTO_KEY": kit.KEY,
        }
        with log.open("w") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "connectors.program"],
                env=os.environ | {"PYTHONPATH": PATH} | variables,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.log, self.pid = log, self.popen.pid


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


@pytest.fixture
async def calm(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    """A stage whose workers do not notice for long that they were given up."""
    slow = replace(settings, heartbeat_interval=100.0, worker_timeout=300.0, leader_term=300.0)
    async with kit.stage(slow, conn) as stage:
        yield stage


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """`start()`: a worker process; killed at the end."""
    started: list[Process] = []

    def start() -> Process:
        started.append(Program(database_url, tmp_path / f"worker-{len(started)}.log"))
        return started[-1]

    yield start
    for process in started:
        process.kill()


async def bury(stage: Stage) -> int:
    """What the leader does when every worker has been silent for long; answers how many rows came back."""
    later = datetime.now(UTC) + timedelta(hours=1)
    return await reap(stage.conn, [stage.store], "test", Patience(timeout=1, nameless=600), now=later)


# -- death -----------------------------------------------------------------------------------------------


async def test_a_killed_workers_job_is_run_by_another_and_its_connection_is_not_blocked(
    stage: Stage, start: Start, connect: Callable[[], Any]
) -> None:
    """C-33, proofs: kill -9 while the provider is asked; WORKER_LOST counts as a run."""
    await stage.conn.execute(RUNS)
    gate = Gate(await connect())
    await gate.close()
    link = await stage.link(external_id="waits", metadata=FAR)
    job = await stage.add(link)
    victim = start()
    await until(stage.conn, "select true from runs where pid = %s", victim.pid)
    victim.kill()
    other = start()
    row = await stage.until_job(job, "succeeded")
    assert row["attempts"] == 2
    assert await stage.keys(link) == [f"by-{other.pid}"]
    again = await stage.add(link)
    assert again != job
    await stage.until_job(again, "succeeded")


async def test_a_job_that_kills_its_worker_ends_failed(stage: Stage, start: Start) -> None:
    """C-31, C-33, proofs: as many dead workers as it has starts; then the connection is free again."""
    await stage.conn.execute(RUNS)
    link = await stage.link(external_id="kills", metadata=FAR)
    job = await stage.add(link, limit=2)
    for dead in (1, 2):
        assert await start().ended() == -9
        assert await bury(stage) == 1
        assert (await stage.job(job))["status"] == ("queued" if dead == 1 else "failed")
    row = await stage.job(job)
    assert (row["attempts"], row["error"]["code"], row["retry_after"]) == (2, "WORKER_LOST", None)
    assert await one(stage.conn, "select count(*) from runs") == 2
    assert await stage.add(link) != job


async def test_a_delivery_that_kills_its_worker_is_parked_and_the_next_is_handled(
    stage: Stage, start: Start
) -> None:
    """C-54, proofs: a poisoned delivery does not hold up the next."""
    await stage.conn.execute(RUNS)
    link = await stage.link(external_id="kills", metadata=FAR)
    await stage.deliver(link, "d1")
    await stage.deliver(link, "d2")
    await stage.conn.execute("update webhook_delivery set attempts = 3 where delivery_id = 'd1'")
    for _ in range(2):  # the first time nobody could know; the second time it is counted beforehand
        assert await start().ended() == -9
        await bury(stage)
    assert (await stage.delivery("d1"))["attempts"] == 4
    await stage.work()  # here the connector is a harmless one, but the fifth try is the last
    row = await stage.delivery("d1")
    assert (row["attempts"], row["error"]["code"]) == (5, "WORKER_LOST")
    assert await stage.keys(link) == ["d2"]


# -- zombies ---------------------------------------------------------------------------------------------


async def test_a_frozen_worker_whose_job_was_finished_elsewhere_writes_nothing(
    stage: Stage, start: Start, connect: Callable[[], Any]
) -> None:
    """Proofs: SIGSTOP past the lease, another finishes, SIGCONT."""
    await stage.conn.execute(RUNS)
    gate = Gate(await connect())
    await gate.close()
    link = await stage.link(external_id="waits", metadata=FAR)
    job = await stage.add(link)
    zombie = start()
    await until(stage.conn, "select true from runs where pid = %s", zombie.pid)
    old = await worker_of(stage.conn, zombie)
    zombie.freeze()
    other = start()
    row = await stage.until_job(job, "succeeded")
    await gate.open()
    zombie.thaw()
    await worker_of(stage.conn, zombie, other_than=old)
    assert await stage.job(job) == row
    assert await stage.keys(link) == [f"by-{other.pid}"]
    assert (await stage.sync_of(link))["cursor"] == str(other.pid)


async def given_away(stage: Stage, job: Any) -> dict[str, Any]:
    """Takes a running job from its worker, which is busy with it, and gives it to somebody else; its row."""
    assert await bury(stage) == 1
    (claim,) = await stage.store.claim(stage.conn, "another", 1)
    assert (claim.id, claim.fence) == (job, 2)
    return await stage.job(job)


async def test_a_zombie_can_write_neither_signals_nor_cursor_nor_status(calm: Stage) -> None:
    """C-37, proofs: its page comes when the job is another's; it adds no follow-up, either."""
    link = await calm.link()
    job = await calm.add(link)
    stop = Stop()
    calm.script.syncs = [stop.then(page("a", cursor="c1", more=True))]
    async with calm.working(concurrency=1) as worker:
        await stop.reached()
        row = await given_away(calm, job)
        stop.go()
        await until_true(lambda: not worker.pumps[0].running)
        assert await calm.job(job) == row
        assert await calm.keys(link) == []
        assert "cursor" not in await calm.sync_of(link)
        assert len(await calm.jobs(link)) == 1


async def test_a_zombie_that_drains_marks_no_delivery_and_wants_no_sync(calm: Stage) -> None:
    """C-37, C-49."""
    link = await calm.link()
    await calm.deliver(link, "d1")
    (row,) = await calm.jobs(link)
    stop = Stop()
    calm.script.webhooks["d1"] = [stop.then(WebhookResult(signals=(signal("a"),), wants_sync=True))]
    async with calm.working(concurrency=1) as worker:
        await stop.reached()
        row = await given_away(calm, row["id"])
        stop.go()
        await until_true(lambda: not worker.pumps[0].running)
        assert await calm.jobs(link) == [row]
        assert await calm.keys(link) == []
        assert (await calm.delivery("d1"))["processed_at"] is None


async def test_a_job_that_was_cancelled_while_it_ran_keeps_nothing(calm: Stage) -> None:
    """C-44: the handler is stopped, or comes too late."""
    link = await calm.link()
    job = await calm.add(link)
    stop = Stop()
    calm.script.syncs = [stop.then(page("a", cursor="c1"))]
    async with calm.working(concurrency=1) as worker:
        await stop.reached()
        await calm.store.cancel(calm.conn, job)
        stop.go()
        await until_true(lambda: not worker.pumps[0].running)
    row = await calm.job(job)
    assert (row["status"], row["error"]["code"], row["error"]["message"]) == (
        "failed",
        "CANCELLED",
        "cancelled",
    )
    assert await calm.keys(link) == []


async def test_a_connection_that_was_deleted_while_it_was_synced_takes_everything_with_it(
    calm: Stage,
) -> None:
    """C-15: and the worker goes on."""
    link, other = await calm.link(), await calm.link()
    await calm.add(link)
    stop = Stop()
    calm.script.syncs = [stop.then(page("a"))]
    async with calm.working(concurrency=1) as worker:
        await stop.reached()
        await calm.conn.execute("delete from connections where id = %s", (link.id,))
        stop.go()
        await until_true(lambda: not worker.pumps[0].running)
        await calm.until_job(await calm.add(other), "succeeded")
    assert await calm.jobs(link) == []
    assert await calm.keys(link) == []


# -- between two writes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "crash", ["raise exception 'not now'", "perform pg_terminate_backend(pg_backend_pid())"]
)
async def test_a_crash_between_signals_and_finish_leaves_no_signal(stage: Stage, crash: str) -> None:
    """C-37, proofs: refused at the last moment, or cut off there; the next run does it all."""
    link = await stage.link()
    job = await stage.add(link)
    await stage.conn.execute(f"""
        create function crash() returns trigger language plpgsql as $$ begin
            if (select count(*) from signals) = 1 then {crash}; end if;
            return new;
        end $$;
        create trigger crash before update on sync_jobs for each row
            when (new.status = 'succeeded') execute function crash();
    """)
    stage.script.syncs = [page("a", cursor="c1", more=True), page("a", cursor="c1")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["attempts"], row["error"]["code"]) == ("queued", 1, "COMMIT_FAILED")
    assert await stage.keys(link) == []
    assert "cursor" not in await stage.sync_of(link)
    assert len(await stage.jobs(link)) == 1

    await stage.conn.execute("drop trigger crash on sync_jobs")
    await stage.make_due()
    await stage.work()
    assert (await stage.job(job))["status"] == "succeeded"
    assert await stage.keys(link) == ["a"]
    assert (await stage.sync_of(link))["cursor"] == "c1"


async def test_a_worker_that_stops_gives_its_job_back_and_the_start_with_it(
    settings: Settings, conn: Connection
) -> None:
    """C-31: release; the next worker runs it as if nothing had been."""
    async with kit.stage(replace(settings, shutdown_timeout=0.05), conn) as stage:
        link: Link = await stage.link()
        job = await stage.add(link)
        stop = Stop()
        stage.script.syncs = [stop.then(page("a")), page("b")]
        async with stage.working():
            await stop.reached()
        row = await stage.job(job)
        assert (row["status"], row["attempts"], row["error"]) == ("queued", 0, None)
        await stage.work()
        assert await stage.keys(link) == ["b"]
        assert (await stage.job(job))["attempts"] == 1


async def test_many_workers_run_every_job_once(settings: Settings, conn: Connection) -> None:
    """C-31: three workers, forty connections, two types each; they share a pool, and wait for it."""
    async with kit.stage(replace(settings, db_acquire_timeout_seconds=60), conn) as stage:
        tenant = await stage.tenant()
        links = [await stage.link(tenant=tenant) for _ in range(40)]
        for link in links:
            await stage.add(link)
            await stage.add(link, "full")
        workers = [stage.worker(concurrency=4) for _ in range(3)]
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(until_idle=True))
        rows = await stage.rows("select status, attempts, count(*) from sync_jobs group by 1, 2")
        assert rows == [{"status": "succeeded", "attempts": 1, "count": 80}]
        assert len(stage.script.of("sync")) == 80


async def test_a_worker_that_is_frozen_while_it_writes_keeps_its_locks_for_seconds_only(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-33, C-49: it holds the connection's row; deliveries wait for that, and its job is not given back."""
    seen: list[float] = []
    store = signals.store

    async def storing(conn: Connection, *arguments: object) -> int:
        query = "select extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval)"
        seen.append(float(await one(conn, query)))
        return await store(conn, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(signals, "store", storing)
    link = await stage.link()
    stage.script.syncs = [kit.page("a", cursor="c1")]
    await stage.add(link)
    await stage.work()
    assert await stage.keys(link) == ["a"]
    assert max(seen) <= 15
