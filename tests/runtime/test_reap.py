"""The sweep: what vanished workers held goes back, in every ledger, in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast, Item, Settings
from holdfast.db.pool import Connection
from holdfast.runtime import presence
from holdfast.runtime.duties import Patience, adopt, reap
from holdfast.runtime.presence import Identity
from holdfast.runtime.pump import Share
from holdfast.runtime.worker import Worker
from runtime.support import add, column, one, running, task, until, until_task

TIMEOUT, NAMELESS = 30.0, 3600.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def who(task_id: str) -> Identity:
    return Identity(id=task_id, hostname="host", pool_size=1, version="1", serves=())


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def sweep(conn: Connection, app: Holdfast, now: datetime, leader: str = "leader") -> int:
    stores = list(app.stores.values())
    return await reap(conn, stores, leader, Patience(timeout=TIMEOUT, nameless=NAMELESS), now=now)


async def hold(app: Holdfast, conn: Connection, worker: str, **options: Any) -> tuple[Any, Any]:
    """Two tasks in the hands of a worker: one whose run has begun and one that was only claimed."""
    store = app.store("tasks")
    ids = {await add(app, "x", priority=9, **options), await add(app, "x", priority=9, **options)}
    begun, waiting = await store.claim(conn, worker, 2, now=NOW)
    assert {begun.id, waiting.id} == ids
    assert await store.start(conn, [begun], now=NOW)
    return begun, waiting


async def test_a_silent_worker_is_removed_and_its_rows_go_back_in_every_ledger(
    app: Holdfast, conn: Connection
) -> None:
    """T-32, T-33, T-34: running → pending counts, claimed → pending does not; each ledger by its own edge."""
    await presence.register(conn, who("dead"), now=NOW)
    await presence.register(conn, who("alive"), now=NOW)
    begun, waiting = await hold(app, conn, "dead")
    other, _ = await hold(app, conn, "alive")
    await app.enqueue_many("errands", [Item(kind="y")])
    await conn.execute("update errands set due_at = %s", (NOW,))
    (errand,) = await app.store("errands").claim(conn, "dead", 1, now=NOW)
    await presence.beat(conn, "alive", now=later(29))

    assert await sweep(conn, app, later(30)) == 0  # not yet longer than the timeout
    assert await sweep(conn, app, later(30.001)) == 3

    assert await column(conn, "select id from workers") == ["alive"]
    row = await task(conn, begun.id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 1, "worker lost")
    assert (row["worker_id"], row["claimed_at"], row["started_at"]) == (None, None, None)
    assert (await task(conn, waiting.id))["attempts"] == 0
    assert (await task(conn, waiting.id))["status"] == "pending"
    assert (await task(conn, other.id))["status"] == "running"
    query = "select (stage, tries, holder)::text from errands where number = %s"
    assert await one(conn, query, errand.id) == "(waiting,1,)"


async def test_the_last_run_of_a_lost_worker_ends_in_the_dead_letters(
    app: Holdfast, conn: Connection
) -> None:
    """T-33: dead_letter when the loss reaches the limit; a claim that had not begun is innocent."""
    await presence.register(conn, who("dead"), now=NOW)
    begun, waiting = await hold(app, conn, "dead", limit=1)
    await sweep(conn, app, later(31))
    row = await task(conn, begun.id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("dead_letter", 1, "worker lost")
    assert row["completed_at"] is not None
    assert ((await task(conn, waiting.id))["status"], (await task(conn, waiting.id))["attempts"]) == (
        "pending",
        0,
    )


async def test_rows_of_a_stranger_and_rows_of_nobody_come_back_in_their_time(
    app: Holdfast, conn: Connection
) -> None:
    """T-35: a worker_id without a row: after the timeout; a null worker_id: after `nameless`."""
    stranger, _ = await hold(app, conn, "stranger")
    nobody, _ = await hold(app, conn, "somebody")
    await conn.execute("update tasks set worker_id = null where worker_id = 'somebody'")
    assert await sweep(conn, app, later(30)) == 0
    assert await sweep(conn, app, later(31)) == 2
    assert (await task(conn, stranger.id))["status"] == "pending"
    assert (await task(conn, nobody.id))["status"] == "running"
    assert await sweep(conn, app, later(NAMELESS)) == 0
    assert await sweep(conn, app, later(NAMELESS + 1)) == 2
    assert (await task(conn, nobody.id))["status"] == "pending"


async def test_a_repeated_enqueue_is_no_sign_of_life(app: Holdfast, conn: Connection) -> None:
    """T-43, §4: it moves updated_at, and the rows of the dead come back at the same time all the same."""
    await presence.register(conn, who("dead"), now=NOW)
    item = Item(kind="x", key="once")
    task_id = (await app.store("tasks").enqueue(conn, item, now=NOW)).id
    await app.store("tasks").start(conn, await app.store("tasks").claim(conn, "dead", 1, now=NOW), now=NOW)
    assert not (await app.store("tasks").enqueue(conn, item, now=later(30))).created
    assert await sweep(conn, app, later(31)) == 1
    assert (await task(conn, task_id))["status"] == "pending"


async def test_a_row_of_nobody_is_left_alone_for_twice_the_longest_run_time(
    app: Holdfast, conn: Connection
) -> None:
    """T-35: the handlers' own time limits tell how long that is."""
    app.handler("quick", timeout=1)(lambda payload: None)
    app.handler("long", timeout=600)(lambda payload: None)
    held = """
        insert into tasks (type, status, claimed_at)
        values ('quick', 'running', now() - make_interval(secs => %s)) returning id
    """
    young, old = [await one(conn, held, seconds) for seconds in (1100, 1201)]
    async with running(app.worker(ledgers=["tasks"])):
        await until_task(conn, old, "completed")
        assert (await task(conn, young))["status"] == "running"


async def test_a_leader_does_not_bury_itself(app: Holdfast, conn: Connection) -> None:
    """T-32: it is alive, since it does its duty."""
    await presence.register(conn, who("leader"), now=NOW)
    await sweep(conn, app, later(1000))
    assert await column(conn, "select id from workers") == ["leader"]


async def test_nobody_sees_a_removed_worker_whose_rows_are_still_held(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-34, §5: removal and recovery are one transaction; while it waits in the middle, all is as before."""
    await presence.register(conn, who("dead"), now=NOW)
    begun, _ = await hold(app, conn, "dead")
    blocker, sweeper = await connect(), await connect()
    await blocker.execute("begin")
    await blocker.execute("lock table errands in access exclusive mode")  # the sweep's last ledger
    sweeping = asyncio.create_task(sweep(sweeper, app, later(31)))
    await until(
        conn,
        "select true from pg_locks where not granted and pid = %s",
        sweeper.info.backend_pid,
    )
    assert await column(conn, "select id from workers") == ["dead"]
    row = await task(conn, begun.id)
    assert (row["status"], row["worker_id"]) == ("running", "dead")
    await blocker.execute("rollback")
    assert await sweeping == 2
    row = await task(conn, begun.id)
    assert (row["status"], row["worker_id"]) == ("pending", None)


async def test_a_sweep_that_is_cut_off_has_done_nothing(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-34: a leader that dies in the middle leaves the dead worker and its rows for the next."""
    await presence.register(conn, who("dead"), now=NOW)
    begun, _ = await hold(app, conn, "dead")
    blocker, sweeper = await connect(), await connect()
    await blocker.execute("begin")
    await blocker.execute("lock table errands in access exclusive mode")
    sweeping = asyncio.create_task(sweep(sweeper, app, later(31)))
    pid = sweeper.info.backend_pid
    await until(conn, "select true from pg_locks where not granted and pid = %s", pid)
    await conn.execute("select pg_terminate_backend(%s, 20000)", (pid,))
    with pytest.raises(Exception, match="terminat"):
        await sweeping
    await blocker.execute("rollback")
    assert await column(conn, "select id from workers") == ["dead"]
    assert await sweep(conn, app, later(31)) == 2
    assert (await task(conn, begun.id))["attempts"] == 1


async def test_two_sweeps_at_once_count_a_loss_once(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-40: every duty is harmless if run twice at once."""
    sweepers = [await connect() for _ in range(4)]
    for turn in range(10):
        await presence.register(conn, who(f"dead{turn}"), now=NOW)
        begun, waiting = await hold(app, conn, f"dead{turn}")
        barrier = asyncio.Barrier(4)

        async def at_once(own: Connection, barrier: asyncio.Barrier = barrier) -> int:
            await barrier.wait()
            return await sweep(own, app, later(31))

        counts = await asyncio.gather(*(at_once(own) for own in sweepers))
        assert sum(counts) == 2
        assert (await task(conn, begun.id))["attempts"] == 1
        assert (await task(conn, waiting.id))["attempts"] == 0
        await conn.execute("delete from tasks")


async def test_a_worker_that_beats_again_while_it_is_judged_is_not_removed(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-32, T-36: the sweep waits for the beat that is under way, and then sees it."""
    await presence.register(conn, who("late"), now=NOW)
    begun, _ = await hold(app, conn, "late")
    beating, sweeper = await connect(), await connect()
    await beating.execute("begin")
    assert await presence.beat(beating, "late", now=later(31))
    sweeping = asyncio.create_task(sweep(sweeper, app, later(31)))
    pid = sweeper.info.backend_pid
    await until(conn, "select true from pg_locks where not granted and pid = %s", pid)
    await beating.execute("commit")
    assert await sweeping == 0
    assert await column(conn, "select id from workers") == ["late"]
    assert (await task(conn, begun.id))["status"] == "running"


async def test_a_row_that_is_just_being_finished_is_not_waited_for_and_not_lost(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-14: the sweep skips a row that its late worker is writing; whoever comes first has it."""
    await presence.register(conn, who("late"), now=NOW)
    begun, _ = await hold(app, conn, "late")
    finishing = await connect()
    await finishing.execute("begin")
    await finishing.execute("update tasks set status = 'completed' where id = %s", (begun.id,))
    assert await sweep(conn, app, later(31)) == 1  # the other row
    await finishing.execute("rollback")
    assert await sweep(conn, app, later(31)) == 1  # now an orphan
    assert (await task(conn, begun.id))["attempts"] == 1


async def test_a_leader_sweeps_ledgers_that_it_does_not_serve(app: Holdfast, conn: Connection) -> None:
    """T-34: a worker for errands alone leads, and gives the tasks of a dead one back."""
    await presence.register(conn, who("dead"), now=NOW)
    begun, _ = await hold(app, conn, "dead")
    share = Share(store=app.store("errands"), concurrency=1)
    worker = Worker(app.database, [share], app.handlers, stores=list(app.stores.values()))
    async with running(worker):
        row = await until_task(conn, begun.id, "pending")
    assert row["attempts"] == 1


async def test_every_worker_of_an_app_sweeps_all_ledgers_of_the_app(app: Holdfast, conn: Connection) -> None:
    """T-34: the same by the door that users take."""
    await presence.register(conn, who("dead"), now=NOW)
    begun, _ = await hold(app, conn, "dead")
    app.handler("walk", ledger="errands")(lambda: None)
    async with running(app.worker(ledgers=["errands"])):
        row = await until_task(conn, begun.id, "pending")
    assert row["attempts"] == 1


async def test_a_running_fleet_recovers_a_dead_member(app: Holdfast, conn: Connection) -> None:
    """T-32, T-33: end to end: the leader sweeps in its own time, and the task runs to its end."""
    app.handler("x")(lambda payload: None)
    await presence.register(conn, who("dead"), now=NOW)
    begun, waiting = await hold(app, conn, "dead")
    async with running(app.worker()):
        assert (await until_task(conn, begun.id, "completed"))["attempts"] == 2
        assert (await until_task(conn, waiting.id, "completed"))["attempts"] == 1


async def test_rows_of_a_ledger_that_the_leader_does_not_know_are_adopted_by_those_who_do(
    app: Holdfast, conn: Connection
) -> None:
    """T-34, T-35: the leader buries the worker and knows nothing of its errand; another gives it back."""
    await presence.register(conn, who("dead"), now=NOW)
    await app.enqueue_many("errands", [Item(kind="y")])
    await conn.execute("update errands set due_at = %s", (NOW,))
    (errand,) = await app.store("errands").claim(conn, "dead", 1, now=NOW)
    patience = Patience(timeout=TIMEOUT, nameless=NAMELESS)
    query = "select (stage, tries, holder)::text from errands where number = %s"

    assert await reap(conn, [app.store("tasks")], "leader", patience, now=later(31)) == 0
    assert await column(conn, "select id from workers") == []
    assert await one(conn, query, errand.id) == "(doing,0,dead)"

    assert await adopt(conn, [app.store("errands")], "w9", patience, now=later(31)) == 1
    assert await one(conn, query, errand.id) == "(waiting,1,)"
    assert await adopt(conn, [app.store("errands")], "w9", patience, now=later(31)) == 0


async def test_every_worker_adopts_without_leading(settings: Settings, conn: Connection) -> None:
    """T-35: the row of an unknown worker comes back although somebody else leads and does nothing."""
    await presence.register(conn, who("idle-leader"))
    assert await presence.elect(conn, "idle-leader", 3600)
    async with Holdfast(replace(settings, worker_timeout=1.0)) as app:  # it adopts once in that time
        task_id = await add(app, "unhandled")
        (claim,) = await app.store("tasks").claim(conn, "nobody", 1, now=NOW)
        assert claim.id == task_id

        @app.handler("unhandled")
        async def run() -> None: ...

        async with running(app.worker()):
            await until_task(conn, task_id, "completed")
    assert await one(conn, "select id from workers where is_leader") == "idle-leader"
