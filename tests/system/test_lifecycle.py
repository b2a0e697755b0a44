"""The life of a system job: made, run, tried again, called off, lost. Its executor does what a test asks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Settings
from holdfast.apps.system import actions, duties, executors
from holdfast.apps.system.bench import Run
from holdfast.apps.system.ledger import NAME
from holdfast.db.pool import Connection
from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import Key
from holdfast.engine.values import Item, Move
from holdfast.errors import IdempotencyConflict, IllegalEdge, InvalidInput, NotFound, TargetExists
from runtime.support import not_outliving, until, until_true
from system.kit import stage
from system.program import GATE, nothing

FLUSH = {"ledger": "tasks"}


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, Run], Any]], None]:
    """Says what jobs do from now on."""

    def given(run: Callable[[Any, Run], Any]) -> None:
        executor = SimpleNamespace(target=lambda params: params.ledger, check=nothing, run=run)
        monkeypatch.setattr(executors, "executor_of", lambda _: executor)

    return given


Does = Callable[[Callable[[Any, Run], Any]], None]


async def well(_: Any, __: Run) -> str:
    return "3 rows"


async def badly(_: Any, __: Run) -> str:
    raise OSError("the disk is full")


# -- made ------------------------------------------------------------------------------------------------


async def test_a_job_is_made_new_then_queued_and_the_log_has_a_line_for_each(
    settings: Settings, does: Does
) -> None:
    """Y-1, Y-4, Y-5, Y-18: by the clock of the database, in whole milliseconds."""
    does(well)
    async with stage(settings) as here:
        key = await here.create("Flush", FLUSH)
        job = await here.job(key)
        assert key.startswith("FL-")
        assert (job.kind, job.state, job.limit) == ("flush", "queued", 3)
        assert job.payload == {"ledger": "tasks", "older_than_hours": 24, "batch_rows": 50_000}
        assert here.lines(key) == ["INFO new", "INFO queued by ana"]
        ago = (
            "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint - created_at from system.jobs"
        )
        assert 0 <= await here.one(ago) < 60_000


async def test_a_job_that_ends_well_has_its_summary_and_names_who_ran_it(
    settings: Settings, does: Does
) -> None:
    """Y-7, Y-9: and no error."""
    does(well)
    async with stage(settings) as here:
        job = await here.run("flush", FLUSH)
        assert (job.state, job.columns["message"], job.error) == ("completed", "3 rows", None)
        assert None not in (job.owner, job.started, job.finished)
        assert job.columns["exception_trace"] is None
        assert here.lines(str(job.id))[2:] == [
            f"INFO started on {job.owner} (attempt 1)",
            "INFO completed: 3 rows",
        ]


async def test_a_row_inserted_as_new_by_plain_sql_is_queued_by_the_next_tick(
    settings: Settings, does: Does
) -> None:
    """Y-5."""
    does(well)
    async with stage(settings) as here:
        await here.do(
            "insert into system.jobs (id, job_type, parameters)"
            " values ('FL-bysql001', 'flush', '{\"ledger\": \"job\"}')"
        )
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        async with here.app.database.connection() as conn:
            await until(conn, "select status = 'completed' from system.jobs")
        worker.stop()
        await running
        # A line is written after its commit: a worker that is quick has told its own before.
        assert any("queued" in line for line in here.lines("FL-bysql001"))


async def test_an_id_collision_is_drawn_again_unseen_by_the_caller(settings: Settings, does: Does) -> None:
    """Y-1."""
    does(well)
    async with stage(settings) as here:
        drawn = iter(["FL-taken001", "FL-taken001", "FL-taken001", "FL-free0001"])
        key = replace(here.jobs.ledger.key, make=lambda _: next(drawn))
        object.__setattr__(here.jobs.adder, "ledger", replace_key(here.jobs.ledger, key))
        assert await here.create("flush", FLUSH) == "FL-taken001"
        assert await here.create("flush", FLUSH) == "FL-free0001"


def replace_key(ledger: Ledger, key: Key) -> Ledger:
    """The ledger with keys that a test draws."""
    drawn = copy(ledger)
    object.__setattr__(drawn, "key", key)
    return drawn


@pytest.mark.parametrize(
    ("kind", "given", "options", "field"),
    [
        ("unknown", {}, {}, "job_type"),
        ("compress", {}, {}, "job_type"),
        ("flush", ["tasks"], {}, "parameters"),
        ("flush", "tasks", {}, "parameters"),
        ("flush", 7, {}, "parameters"),
        ("flush", None, {}, "parameters"),
        ("flush", {"ledger": "tasks", "olderthan": 3}, {}, "olderthan"),
        ("flush", {}, {}, "ledger"),
        ("flush", {"ledger": reduce(lambda inner, _: [inner], range(5000), [])}, {}, "parameters"),
        ("flush", {"ledger": 7}, {}, "ledger"),
        ("retention", {"ledger": "tasks", "retention_hours": 0}, {}, "retention_hours"),
        ("retention", {"ledger": "tasks", "retention_hours": 1, "batch_size": 0}, {}, "batch_size"),
        ("stream_eviction", {"table": "signals", "ttl_seconds": -1}, {}, "ttl_seconds"),
        ("compact", {"ledger": "tasks", "target_file_size_mb": 0}, {}, "target_file_size_mb"),
        ("compact", {}, {}, "parameters"),
        ("user_cleanup", {"subject": {}}, {}, "subject"),
        ("user_cleanup", {"subject": {"org_id": "a", "user_id": 1}}, {}, "subject"),
        ("cleanup", {"table": "x", "operation": "truncate"}, {}, "operation"),
        ("flush", FLUSH, {"max_retries": 256}, "max_retries"),
        ("flush", FLUSH, {"max_retries": -1}, "max_retries"),
        ("flush", FLUSH, {"key": ""}, "idempotency_key"),
    ],
)
async def test_bad_input_is_refused_by_its_field_and_nothing_is_written(
    settings: Settings, does: Does, kind: str, given: Any, options: dict[str, Any], field: str
) -> None:
    """Y-1, Y-3, Y-6, Y-11, Y-41: section 3 of the requirements."""
    does(well)
    async with stage(settings) as here:
        with pytest.raises(InvalidInput) as refused:
            await here.create(kind, given, **options)
        assert refused.value.field.startswith(field)
        assert await here.one("select count(*) from system.jobs") == 0
        assert here.lines() == []


async def test_a_malformed_id_is_no_id_and_an_unknown_one_is_not_found(settings: Settings) -> None:
    """Y-1, Y-15: and a job that has ended cannot be called off."""
    async with stage(settings) as here:
        with pytest.raises(InvalidInput):
            await actions.cancel(here.bench, "FL-1")
        with pytest.raises(NotFound):
            await actions.cancel(here.bench, "FL-abcdefgh")


# -- keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["new", "queued", "running", "retrying"])
async def test_a_key_is_refused_while_its_job_is_active_and_free_after_its_end(
    settings: Settings, does: Does, state: str
) -> None:
    """Y-6."""
    does(well)
    async with stage(settings) as here:
        first = await here.create("flush", FLUSH, key="nightly")
        await here.do("update system.jobs set status = %s", state)
        with pytest.raises(IdempotencyConflict) as refused:
            await here.create("retention", {"ledger": "job", "retention_hours": 1}, key="nightly")
        assert refused.value.fields["id"] == first
        assert state in refused.value.fields["detail"]
        for end in ("completed", "failed", "cancelled"):
            await here.do("update system.jobs set status = %s, finished_at = 1", end)
            again = await here.create("flush", FLUSH, key="nightly")
            assert again != first


async def test_one_hundred_racing_creates_of_one_key_make_one_job(settings: Settings, does: Does) -> None:
    """Y-6."""
    does(well)
    async with stage(settings) as here:
        made = await asyncio.gather(
            *(here.create("flush", FLUSH, key="once") for _ in range(100)), return_exceptions=True
        )
        ids = [one for one in made if isinstance(one, str)]
        assert len(ids) == 1
        assert all(isinstance(one, IdempotencyConflict) for one in made if not isinstance(one, str))
        assert await here.one("select count(*) from system.jobs") == 1
        assert len(here.lines()) == 2


# -- runs ------------------------------------------------------------------------------------------------


async def test_a_job_that_always_fails_runs_exactly_four_times_at_the_default_limit(
    settings: Settings, does: Does
) -> None:
    """Y-10, Y-11, Y-18: and ends failed, with retry_count three; each wait is twice the one before."""
    does(badly)
    async with stage(settings) as here:
        key = await here.create("flush", FLUSH)
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        async with here.app.database.connection() as conn:
            await until(conn, "select status = 'failed' from system.jobs")
        worker.stop()
        await running
        job, lines = await here.job(key), here.lines(key)
        assert (job.state, job.attempts, job.error) == ("failed", 3, "OSError: the disk is full")
        assert sum("started" in line for line in lines) == 4
        waits = [
            line.partition(" in ")[2].partition(":")[0] for line in lines if line.startswith("WARN retry")
        ]
        assert waits == ["0.1 s", "0.2 s", "0.4 s"]
        trace = job.columns["exception_trace"]
        assert trace.startswith("Traceback")
        assert trace.rstrip().endswith("OSError: the disk is full")
        assert "ERROR failed: OSError: the disk is full" in lines


@pytest.mark.parametrize("why", ["no retry allowed", "a permanent failure"])
async def test_max_retries_zero_gives_one_run_and_so_does_a_permanent_failure(
    settings: Settings, does: Does, why: str
) -> None:
    """Y-11, Y-13: what can never work is not tried again."""

    async def never(_: Any, __: Run) -> str:
        raise TargetExists(message="it is there already")

    does(badly if why == "no retry allowed" else never)
    async with stage(settings) as here:
        job = await here.run("flush", FLUSH, max_retries=0 if why == "no retry allowed" else 3)
        assert (job.state, job.attempts) == ("failed", 0)
        assert sum("started" in line for line in here.lines(str(job.id))) == 1
        assert "Traceback" in job.columns["exception_trace"]


async def test_a_success_after_two_retries_keeps_retry_count_two_and_clears_the_trace(
    settings: Settings, does: Does
) -> None:
    """Y-9, Y-12: finished_at stays empty while it waits."""
    tries: list[int] = []

    async def third(_: Any, run: Run) -> str:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return "3 rows"

    does(third)
    async with stage(settings) as here:
        key = await here.create("flush", FLUSH)
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        async with here.app.database.connection() as conn:
            await until(conn, "select finished_at is not null from system.jobs")
        worker.stop()
        await running
        job = await here.job(key)
        assert (job.state, job.attempts, job.columns["message"]) == ("completed", 2, "3 rows")
        assert job.columns["exception_trace"] is None


async def test_a_trace_of_a_thousand_lines_is_stored_whole(settings: Settings, does: Does) -> None:
    """Y-10, Y-19: and stands in the log, each line with the id."""
    long = "\n".join(f"line {n} \x00\ud800" for n in range(1000))

    async def fails(_: Any, __: Run) -> str:
        raise OSError(long)

    does(fails)
    async with stage(settings) as here:
        job = await here.run("flush", FLUSH, max_retries=0)
        assert all(f"line {n} " in job.columns["exception_trace"] for n in range(1000))
        assert sum("line" in line for line in here.lines(str(job.id))) >= 1000


async def test_a_type_that_nobody_knows_is_shown_as_it_is_and_fails_when_claimed(settings: Settings) -> None:
    """Y-3: by whoever claims it, and with its reason."""
    async with stage(settings) as here:
        await here.do(
            "insert into system.jobs (id, job_type, status) values ('XX-bysql001', 'vacuum', 'queued')"
        )
        await here.drain()
        job = await here.job("XX-bysql001")
        assert (job.state, job.kind, job.error) == ("failed", "vacuum", "no handler for 'vacuum'")


async def test_priority_comes_first_with_null_last_and_a_null_queue_is_the_default_one(
    settings: Settings, does: Does
) -> None:
    """Y-7."""
    ran: list[str] = []

    async def notes(params: Any, run: Run) -> str:
        ran.append(run.id)
        return "ok"

    does(notes)
    async with stage(settings) as here:
        plain = await here.create("flush", FLUSH)
        low, high = (
            await here.create("flush", FLUSH, priority=-5),
            await here.create("flush", FLUSH, priority=9),
        )
        elsewhere = await here.create("flush", FLUSH, queue="elsewhere", priority=99)
        named = await here.create("flush", FLUSH, queue="default", priority=1)
        await here.drain(concurrency=1)
        assert ran == [high, named, low, plain]
        assert (await here.job(elsewhere)).state == "queued"
        await here.drain(queues=["elsewhere"])
        assert ran[-1] == elsewhere


async def test_twenty_workers_draining_one_thousand_jobs_run_each_exactly_once(
    settings: Settings, connect: Any
) -> None:
    """Y-8."""
    async with stage(settings) as here:
        store, ran = here.jobs, list[str]()
        async with here.app.database.connection() as conn:
            await store.copy(conn, [Item(kind="flush", payload=FLUSH)] * 1000)

        async def works(name: str) -> None:
            conn = await connect()
            while claims := await store.claim(conn, name, 7):
                ran.extend(claim.id for claim in claims)
                moved = await store.move(conn, [Move(verb="finish", claim=claim) for claim in claims])
                assert len(moved) == len(claims)

        await asyncio.gather(*(works(f"w{n}") for n in range(20)))
        assert len(ran) == len(set(ran)) == 1000
        assert (
            await here.one("select count(*) from system.jobs where status = 'completed' and fence = 1")
            == 1000
        )


# -- taken from it ---------------------------------------------------------------------------------------


async def test_a_cancelled_job_stays_cancelled_and_its_executor_stops_and_says_how_far_it_came(
    settings: Settings, does: Does
) -> None:
    """Y-15: in the row at once, with who and why; the late outcome is dropped."""
    begun = asyncio.Event()

    async def endless(_: Any, run: Run) -> str:
        await run.progress(1200, None, "rows")
        begun.set()
        await asyncio.Event().wait()
        return "never"

    does(endless)
    async with stage(settings) as here:
        key = await here.create("flush", FLUSH)
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await begun.wait()
        job = await actions.cancel(here.bench, key, by="bo", reason="not today")
        assert (job.state, job.columns["message"]) == ("cancelled", "cancelled by bo")
        assert job.finished is not None
        await until_true(lambda: any("stopped" in line for line in here.lines(key)))
        worker.stop()
        await running
        assert (await here.job(key)).state == "cancelled"
        assert here.lines(key)[-2:] == ["INFO cancelled by bo: not today", "INFO stopped: 1200 rows"]
        with pytest.raises(IllegalEdge, match="it is cancelled"):
            await actions.cancel(here.bench, key)


async def test_an_executor_that_lost_its_claim_changes_nothing_and_writes_no_log_line(
    settings: Settings, does: Does
) -> None:
    """Y-8: somebody else has failed the row meanwhile."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Any, run: Run) -> str:
        begun.set()
        await go.wait()
        await run.progress(1, 2, "rows")
        return "late"

    does(slow)
    async with stage(settings, heartbeat_interval=20.0) as here:  # nobody looks before the executor itself
        key = await here.create("flush", FLUSH)
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await begun.wait()
        await here.do("update system.jobs set status = 'failed', finished_at = 1, fence = fence + 1")
        before, told = await here.rows("table system.jobs"), here.lines(key)
        go.set()
        pump = worker.pumps[0]
        await until_true(lambda: not pump.running)
        worker.stop()
        await running
        assert await here.rows("table system.jobs") == before
        assert here.lines(key) == told


async def test_an_orderly_stop_gives_a_job_back_uncounted(settings: Settings, does: Does) -> None:
    """Y-16."""
    begun = asyncio.Event()

    async def endless(_: Any, __: Run) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    does(endless)
    async with stage(replace(settings, shutdown_timeout=0.1)) as here:
        key = await here.create("flush", FLUSH)
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await begun.wait()
        worker.stop()
        await running
        job = await here.job(key)
        assert (job.state, job.attempts, job.owner) == ("queued", 0, None)
        assert here.lines(key)[-1] == "INFO queued again"


async def test_two_jobs_on_one_target_never_overlap(settings: Settings, does: Does) -> None:
    """Y-17: whatever the target is called; another target does not wait."""
    at_work: list[str] = []
    together: list[int] = []

    async def alone(params: Any, run: Run) -> str:
        at_work.append(run.id)
        together.append(len(at_work))
        await run.progress(1, 1, "rows")
        at_work.remove(run.id)
        return "ok"

    does(alone)
    async with stage(settings) as here:
        ids = [await here.create("flush", {"ledger": name}) for name in ("system_jobs", "system.jobs") * 3]
        worker = here.worker(concurrency=4)
        running = asyncio.create_task(worker.run())
        async with here.app.database.connection() as conn:
            # one that finds its target taken looks again after some seconds
            await until(conn, "select bool_and(status = 'completed') from system.jobs", within=60)
        worker.stop()
        await running
        assert max(together) == 1
        assert [(await here.job(one)).attempts for one in ids] == [0] * 6


# -- processes that die ----------------------------------------------------------------------------------


@contextmanager
def process(settings: Settings, home: Path, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of one queue of system jobs, which wait at the gate."""
    told = {
        "HOLDFAST_DATABASE_URL": str(settings.database_url),
        "HOLDFAST_PROFILE": "test",
        "HOLDFAST_HOME": str(home),
        "HOLDFAST_HEARTBEAT_INTERVAL": "0.2",
        "HOLDFAST_WORKER_TIMEOUT": "1",
        "HOLDFAST_LEADER_TERM": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, "-m", "system.program", queue]
    popen = subprocess.Popen(command, env=os.environ | told, cwd=home)
    with not_outliving(popen):
        yield popen


async def test_a_killed_workers_job_is_failed_as_lost_and_the_jobs_of_other_nodes_go_on(
    settings: Settings, conn: Connection, tmp_path: Path, does: Does
) -> None:
    """Y-14, Y-18: it is not tried again by itself; queued ones survive."""
    does(well)
    running = "select status = 'running' from system.jobs where id = %s"
    async with stage(settings, tmp_path) as here:
        await conn.execute("select pg_advisory_lock(%s)", (GATE,))
        lost, kept = [await here.create("flush", {"ledger": name}, queue=name) for name in ("tasks", "job")]
        waiting = await here.create("flush", {"ledger": "tasks"}, queue="nobody's")
        with process(settings, tmp_path, "tasks") as victim, process(settings, tmp_path, "job") as other:
            await until(conn, running, lost)
            await until(conn, running, kept)
            owner = (await here.job(lost)).owner
            victim.kill()
            victim.wait()
            await until(conn, "select status = 'failed' from system.jobs where id = %s", lost)
            job = await here.job(lost)
            assert job.error == f"worker lost: {owner}"
            assert f"{owner} last answered at 2" in job.columns["exception_trace"]
            await until_true(lambda: f"ERROR worker lost: {owner}" in here.lines(lost))
            assert (await here.job(kept)).state == "running"
            await conn.execute("select pg_advisory_unlock(%s)", (GATE,))
            await until(conn, "select status = 'completed' from system.jobs where id = %s", kept)
            other.terminate()
            assert other.wait(60) == 0
        assert (await here.job(waiting)).state == "queued"


async def test_a_retrying_job_whose_process_dies_is_run_when_due_by_another(
    settings: Settings, does: Does
) -> None:
    """Y-12: the time of its next run is in its row."""
    does(badly)
    async with stage(settings) as here:
        key = await here.create("flush", FLUSH)
        await here.drain(most=1)
        assert (await here.job(key)).state == "retrying"
        does(well)
        async with here.app.database.connection() as conn:
            await until(
                conn, "select run_at <= extract(epoch from clock_timestamp()) * 1000 from system.jobs"
            )
        await here.drain()
        assert (await here.job(key)).state == "completed"


async def test_a_job_that_loses_the_lock_of_its_target_stops_and_is_tried_again(
    settings: Settings, conn: Connection, does: Does
) -> None:
    """Y-14: somebody else may work on the target by now; the job is still ours, and ends as a bad run."""
    done: list[str] = []

    async def cut_off(params: Any, run: Run) -> str:
        if not done:
            done.append("once")
            await conn.execute("select pg_terminate_backend(%s)", (run.lock.info.backend_pid,))
            await until(
                conn, "select count(*) = 0 from pg_stat_activity where pid = %s", run.lock.info.backend_pid
            )
            await run.progress(1, None, "rows")
        return "done"

    does(cut_off)
    async with stage(settings) as here:
        key = await here.create("flush", FLUSH)
        await here.drain(most=1)
        job = await here.job(key)
        assert (job.state, job.attempts) == ("retrying", 1)
        assert "kept its target" in str(job.error)


# -- again -----------------------------------------------------------------------------------------------


async def test_a_failed_job_is_made_again_with_the_same_parameters(settings: Settings, does: Does) -> None:
    """Y-13: as a new job; one that has not ended is not."""
    does(badly)
    async with stage(settings) as here:
        job = await here.run("flush", {"ledger": "tasks", "batch_rows": 7}, max_retries=0, priority=3)
        again = await actions.retry(here.bench, str(job.id), by="bo")
        new = await here.job(again.id)
        assert again.id != job.id
        assert (new.payload, new.limit, new.columns["priority"]) == (job.payload, 0, 3)
        with pytest.raises(IllegalEdge):
            await actions.retry(here.bench, again.id)


async def test_rows_are_not_added_by_everybodys_enqueue(settings: Settings) -> None:
    """Y-5: what a job is asked to do is checked when it is made."""
    async with stage(settings) as here:
        with pytest.raises(InvalidInput, match="holdfast system run"):
            await here.app.enqueue(NAME, "flush", {"ledger": "nothing"})


async def test_a_tick_moves_what_is_new_and_nothing_else(settings: Settings, does: Does) -> None:
    """Y-5."""
    does(well)
    async with stage(settings) as here, here.app.database.connection() as conn:
        await here.create("flush", FLUSH)
        assert await duties.queue_new(conn, here.bench) == 0
