"""Real processes that are frozen and killed: a zombie changes nothing, and no job is lost with its worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.db.pool import Connection
from runtime.support import AT_A_GATE, Gate, Process, column, one, task, until, until_task, worker_of

Start = Callable[..., Process]
INSERT = "insert into tasks (type) values (%s) returning id"


async def test_a_frozen_worker_whose_job_was_finished_elsewhere_changes_nothing_and_goes_on_as_another(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """T-14, T-36: SIGSTOP past the lease, another finishes, SIGCONT: the run stops, the row untouched."""
    task_id = await one(conn, INSERT, "first run waits")
    zombie = start()
    old = await worker_of(conn, zombie)
    await until(conn, "select true from runs where event = 'begin' and pid = %s", zombie.pid)
    zombie.freeze()

    other = start()
    new = await worker_of(conn, other)
    row = await until_task(conn, task_id, "completed")
    assert (row["worker_id"], row["attempts"], row["fence"]) == (new, 2, 2)
    assert await column(conn, "select id from workers") == [new]

    zombie.thaw()
    reborn = await worker_of(conn, zombie, other_than=old)
    await gate.open()  # too late: the first run has been called off
    other.ask_to_stop()
    assert await other.ended() == 0
    follow = await one(conn, INSERT, "note")
    assert (await until_task(conn, follow, "completed"))["worker_id"] == reborn
    assert await task(conn, task_id) == row
    assert await column(conn, "select worker from runs where task = %s and event = 'end'", task_id) == [new]


async def test_a_frozen_worker_cannot_commit_its_effect_when_it_wakes(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """T-14, T-18: its transaction was open when it was frozen; the effect there is the other's, once."""
    task_id = await one(conn, INSERT, "first run waits after its effect")
    zombie = start()
    old = await worker_of(conn, zombie)
    await until(conn, "select true from runs where event = 'written' and pid = %s", zombie.pid)
    zombie.freeze()
    other = start()
    new = await worker_of(conn, other)
    row = await until_task(conn, task_id, "completed")
    await gate.open()  # its handler returns as soon as it wakes, and wants to finish
    zombie.thaw()
    await worker_of(conn, zombie, other_than=old)
    left = "select count(*) = 0 from pg_stat_activity where state like 'idle in transaction%%'"
    await until(conn, f"{left} and datname = current_database()")
    assert await column(conn, "select note from effects") == [new]
    assert await task(conn, task_id) == row


@pytest.mark.parametrize("killed", ["leader", "follower"])
async def test_the_job_of_a_killed_worker_runs_again_within_three_heartbeats(
    traces: None, start: Start, conn: Connection, gate: Gate, killed: str
) -> None:
    """T-32, T-33: kill -9; worker timeout 2.2 heartbeats; attempts two, by the other worker."""
    beat = 2.0
    beats = {"heartbeat_interval": beat, "worker_timeout": 2.2 * beat, "leader_term": 1.1 * beat}
    first = start("--concurrency", "1", **beats)
    await until(conn, "select true from workers where is_leader")
    await worker_of(conn, first)
    second = start("--concurrency", "1", **beats)
    await worker_of(conn, second)
    for _ in range(2):  # one for each
        await conn.execute(INSERT, ("first run waits",))
        await conn.execute("select pg_notify('holdfast_tasks', '')")
    await until(conn, "select count(distinct pid) = 2 from runs where event = 'begin'")
    victim, survivor = (first, second) if killed == "leader" else (second, first)
    task_id = await one(conn, "select task from runs where pid = %s", victim.pid)
    victim.kill()
    died = await one(conn, "select clock_timestamp()")
    mine = await one(conn, "select task from runs where pid = %s", survivor.pid)
    # The survivor's only slot is made free without opening the gate for anybody else.
    await conn.execute("update tasks set status = 'failed' where id = %s", (mine,))
    await conn.execute("select pg_notify('holdfast_tasks_cancel', '')")
    again = await until(conn, "select max(at) from runs where task = %s and pid = %s", task_id, survivor.pid)
    assert again - died < timedelta(seconds=3 * beat)
    row = await until_task(conn, task_id, "completed")
    assert (row["attempts"], row["last_error"]) == (2, "worker lost")
    assert row["worker_id"] == await worker_of(conn, survivor)


async def test_a_task_that_kills_its_worker_every_time_ends_in_the_dead_letters(
    traces: None, start: Start, conn: Connection
) -> None:
    """T-33: three runs, three dead workers, then dead_letter; its innocent neighbours complete."""
    beats = {"heartbeat_interval": 0.2, "worker_timeout": 0.7, "leader_term": 0.5, "poll_interval": 0.1}
    killer = await one(conn, INSERT, "kills its worker")
    innocent = [await one(conn, INSERT, "note") for _ in range(5)]
    dead = 0
    process = start("--concurrency", "1", **beats)
    while await one(conn, "select status <> 'dead_letter' from tasks where id = %s", killer):
        if process.popen.poll() is not None:
            assert process.popen.returncode == -9
            dead += 1
            process = start("--concurrency", "1", **beats)
        await until(
            conn,
            "select status = 'dead_letter' or %s < (select count(*) from runs where task = %s)"
            " or %s from tasks where id = %s",
            dead,
            killer,
            process.popen.poll() is not None,
            killer,
        )
        if await one(conn, "select count(*) from runs where task = %s", killer) > dead:
            await process.ended()
    row = await task(conn, killer)
    assert (row["attempts"], row["last_error"]) == (3, "worker lost")
    assert row["completed_at"] is not None
    assert dead == 3
    assert await one(conn, "select count(*) from runs where task = %s", killer) == 3
    for task_id in innocent:
        assert (await until_task(conn, task_id, "completed"))["attempts"] == 1


async def test_what_a_dead_worker_had_only_claimed_costs_no_run(
    traces: None, start: Start, conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-12, T-33: killed between claim and start: back to pending with attempts unchanged, then it runs."""
    # The start waits for a lock that the test holds, so the kill falls into the middle.
    await conn.execute("""
        create function wait_at_start() returns trigger language plpgsql as $$ begin
            perform pg_advisory_xact_lock_shared(8);
            return new;
        end $$;
        create trigger wait_at_start before update on tasks for each row
            when (new.status = 'running') execute function wait_at_start();
    """)
    holder = await connect()
    await holder.execute("select pg_advisory_lock(8)")
    task_id = await one(conn, INSERT, "note")
    victim = start()
    await until_task(conn, task_id, "claimed")
    await until(conn, AT_A_GATE)
    victim.kill()
    await conn.execute(
        "select pg_terminate_backend(pid, 20000) from pg_stat_activity "
        "where application_name like 'holdfast worker tasks %%' and datname = current_database()"
    )
    await holder.execute("select pg_advisory_unlock(8)")
    other = start()
    row = await until_task(conn, task_id, "completed")
    assert (row["attempts"], row["fence"]) == (1, 2)
    assert row["last_error"] == "worker lost"
    assert row["worker_id"] == await worker_of(conn, other)


async def test_a_worker_that_slept_past_its_timeout_and_was_not_removed_has_lost_nothing(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """T-36: a late heartbeat alone is no loss; it wakes under its old id and finishes its one run."""
    task_id = await one(conn, INSERT, "gated")
    sleeper = start()
    worker = await worker_of(conn, sleeper)
    await until(conn, "select true from runs where event = 'begin'")
    sleeper.freeze()
    late = "select last_heartbeat < clock_timestamp() at time zone 'UTC' - interval '3 s' from workers"
    await until(conn, late)
    await gate.open()
    sleeper.thaw()
    row = await until_task(conn, task_id, "completed")
    assert (row["worker_id"], row["attempts"], row["fence"]) == (worker, 1, 1)
    assert await column(conn, "select id from workers") == [worker]
