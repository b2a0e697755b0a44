"""The worker: present before it claims, slots full and never more than full, awake when the bell rings."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast import Context, Holdfast, Item, Settings, SyncContext
from holdfast.db.pool import Connection
from holdfast.runtime.worker import Worker
from runtime.support import (
    ERRANDS,
    LISTENING,
    PATIENCE,
    add,
    add_many,
    column,
    drain,
    make_tables,
    one,
    present,
    running,
    task,
    until,
    until_task,
    until_true,
    working,
)

# -- presence ----------------------------------------------------------------------------------------


async def test_a_worker_is_registered_before_its_first_claim_and_by_its_proper_name(
    app: Holdfast, conn: Connection
) -> None:
    """T-31: hostname-pid-random; the row is there when the first claim is made."""
    await conn.execute("""
        create function registered() returns trigger language plpgsql as $$ begin
            if not exists (select from workers where id = new.worker_id) then
                raise exception 'claimed by a stranger';
            end if;
            return new;
        end $$;
        create trigger claims_are_registered before update on tasks for each row
            when (new.status = 'claimed') execute function registered();
    """)
    owners: list[str | None] = []

    @app.handler("note")
    async def note(ctx: Context) -> None:
        owners.append(ctx.job.owner)
        async with app.database.connection() as own:
            owners.extend(await column(own, "select id from workers"))

    task_id = await add(app, "note")
    await drain(app, concurrency=3)
    assert (await task(conn, task_id))["status"] == "completed"
    assert owners[0] == owners[1]
    assert re.fullmatch(r"[A-Za-z0-9.-]+-\d+-[a-z0-9]{6}", owners[0] or "")
    assert await column(conn, "select id from workers") == []


async def test_the_row_of_a_worker_tells_its_size_its_version_and_what_it_serves(
    app: Holdfast, conn: Connection
) -> None:
    """T-31 and §1: pool_size, version, hostname, serves; the first worker leads."""
    app.handler("walk", ledger="errands")(lambda: None)
    async with working(app, ledgers=["tasks", "errands"], concurrency={"tasks": 3, "errands": 2}) as worker:
        await until(conn, "select is_leader from workers where id = %s", worker.id)
        row = await (await conn.execute("select pool_size, serves from workers")).fetchone()
        assert row == (5, ["tasks", "errands"])
        assert await one(conn, "select version is not null and hostname <> '' from workers")


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_handler_that_blocks_does_not_cost_the_worker_its_life(
    settings: Settings, conn: Connection, asynchronous: bool
) -> None:
    """T-31, T-32: the heartbeat goes on while an async handler blocks the event loop past the timeout."""
    long = replace(settings, leader_term=3600)  # so that no election is a sign of life by the way
    leads, blocking, done = threading.Event(), threading.Event(), threading.Event()
    watched: list[Any] = []

    async def lead_and_watch() -> None:
        """Another worker, in a thread with a loop of its own because ours is blocked; it leads and sweeps."""
        only = {"kinds": ["nothing of this test"]}
        async with Holdfast(replace(long, worker_timeout=2.0)) as other, working(other, **only) as leader:
            await lead(leader, other)

    async def lead(leader: Worker, other: Holdfast) -> None:
        async with other.database.connection() as look:
            await until(look, "select is_leader from workers where id = %s", leader.id)
            leads.set()
            await asyncio.to_thread(blocking.wait, PATIENCE)
            query = "select clock_timestamp() at time zone 'UTC' + interval '4 s'"
            past_the_timeout = await one(look, query)
            await until(look, "select clock_timestamp() at time zone 'UTC' > %s", past_the_timeout)
            watched.extend(await column(look, "select status || ' ' || attempts from tasks"))

    def watching() -> None:
        try:
            asyncio.run(lead_and_watch())
        finally:
            done.set()

    thread = threading.Thread(target=watching)
    thread.start()
    assert await asyncio.to_thread(leads.wait, PATIENCE)
    async with Holdfast(long) as app:

        async def in_loop() -> None:
            blocking.set()
            done.wait(PATIENCE)

        def in_thread() -> None:
            blocking.set()
            done.wait(PATIENCE)

        app.handler("block")(in_loop if asynchronous else in_thread)
        worker = app.worker()
        async with running(worker):
            await present(conn, worker)
            task_id = await add(app, "block")
            first = worker.id
            row = await until_task(conn, task_id, "completed")
            assert (row["worker_id"], worker.id) == (first, first)
    thread.join()
    assert watched == ["running 0"]
    assert (row["attempts"], row["fence"]) == (1, 1)


# -- slots -------------------------------------------------------------------------------------------


async def test_no_more_rows_are_claimed_than_there_are_free_slots(app: Holdfast, conn: Connection) -> None:
    """T-10: with concurrency 3 and 20 rows, three are held; each one that ends makes room for one."""
    doors: dict[int, asyncio.Event] = {n: asyncio.Event() for n in range(20)}
    begun: asyncio.Queue[int] = asyncio.Queue()

    @app.handler("gated")
    async def gated(number: int) -> None:
        begun.put_nowait(number)
        await doors[number].wait()

    await conn.execute("""
        create table held (n int);
        create function count_held() returns trigger language plpgsql as $$ begin
            insert into held select count(*) from tasks where status in ('claimed', 'running');
            return null;
        end $$;
        create trigger held after update on tasks for each statement execute function count_held();
    """)
    await add_many(app, "gated", 20)
    async with working(app, ledgers=["tasks"], concurrency=3), asyncio.timeout(PATIENCE):
        going = [await begun.get() for _ in range(3)]
        for ended in range(20):
            assert await one(conn, "select count(*) from tasks where status = 'running'") == len(going)
            assert await one(conn, "select count(*) from tasks where status = 'claimed'") == 0
            doors[going.pop(0)].set()
            if ended < 17:
                going.append(await begun.get())
            query = "select count(*) = %s from tasks where status = 'completed'"
            await until(conn, query, ended + 1)
    assert await one(conn, "select max(n) from held") == 3
    assert await one(conn, "select count(*) from tasks where status = 'completed'") == 20


async def test_each_ledger_has_its_own_slots(app: Holdfast, conn: Connection) -> None:
    """Issue 2: several ledgers at once, a concurrency for each; a full one does not hold up another."""
    door = asyncio.Event()

    @app.handler("wait", ledger="tasks")
    async def wait() -> None:
        await door.wait()

    @app.handler("wait", ledger="errands")
    async def errand(ctx: Context) -> None:
        await door.wait()

    await add_many(app, "wait", 5)
    await app.enqueue_many("errands", [Item(kind="wait") for _ in range(5)])
    async with working(app, concurrency={"tasks": 2, "errands": 3}):
        await until(conn, "select count(*) = 2 from tasks where status = 'running'")
        await until(conn, "select count(*) = 3 from errands where stage = 'doing'")
        assert await one(conn, "select count(*) from tasks where status = 'pending'") == 3
        assert await one(conn, "select count(*) from errands where stage = 'waiting'") == 2
        door.set()
        await until(conn, "select count(*) = 5 from tasks where status = 'completed'")
        await until(conn, "select count(*) = 5 from errands where stage = 'over'")


async def test_a_ledger_that_is_named_twice_is_served_once(app: Holdfast, conn: Connection) -> None:
    """T-10: two pumps of one ledger under one worker id would take each other's rows for strays."""
    fences: list[int] = []
    door = asyncio.Event()

    @app.handler("gated", ledger="tasks")
    async def gated(ctx: Context) -> None:
        fences.append(ctx.fence)
        await door.wait()

    task_id = await add(app, "gated")
    async with working(app, ledgers=["tasks", "tasks"]) as worker:
        await until_task(conn, task_id, "running")
        assert [pump.ledger.name for pump in worker.pumps] == ["tasks"]
        beat = await one(conn, "select last_heartbeat from workers")
        await until(conn, "select last_heartbeat > %s + interval '0.5 s' from workers", beat)
        door.set()
        await until_task(conn, task_id, "completed")
    assert fences == [1]


async def test_a_worker_for_some_kinds_leaves_the_others_alone(app: Holdfast, conn: Connection) -> None:
    """T-13: limited to named types."""
    app.handler("mine")(lambda payload: None)
    app.handler("other")(lambda payload: None)
    mine, other, unknown = [await add(app, kind) for kind in ("mine", "other", "unknown")]
    await drain(app, kinds=["mine"])
    states = [(await task(conn, task_id))["status"] for task_id in (mine, other, unknown)]
    assert states == ["completed", "pending", "pending"]


async def test_a_row_of_a_kind_that_is_named_twice_is_claimed_once(app: Holdfast, conn: Connection) -> None:
    rows = [await add(app, "mine") for _ in range(2)]
    claims = await app.store("tasks").claim(conn, "w", 10, kinds=["mine", "mine"])
    assert sorted(claim.id for claim in claims) == sorted(rows)


async def test_a_batch_begins_in_the_order_of_the_claim(app: Holdfast) -> None:
    """T-9, T-11: priority first, then age."""
    begun: list[int] = []

    @app.handler("note")
    async def note(number: int) -> None:
        begun.append(number)

    for number, priority in enumerate((0, 5, 0, 9, 5)):
        await add(app, "note", number, priority=priority)
    await drain(app, concurrency=5)
    assert begun == [3, 1, 4, 0, 2]


async def test_a_handler_is_not_called_when_its_start_finds_no_row(app: Holdfast, conn: Connection) -> None:
    """T-12: the first start is lost on the way; the row comes back and only its second claim runs."""
    await conn.execute("""
        create sequence starts;
        create function lose_the_first_start() returns trigger language plpgsql as $$ begin
            return case when nextval('starts') > 1 then new end;
        end $$;
        create trigger lose_the_first_start before update on tasks for each row
            when (new.status = 'running') execute function lose_the_first_start();
    """)
    fences: list[int] = []

    @app.handler("note")
    async def note(ctx: Context) -> None:
        fences.append(ctx.fence)

    task_id = await add(app, "note")
    async with working(app, ledgers=["tasks"]):
        row = await until_task(conn, task_id, "completed")
    assert fences == [2]
    assert (row["attempts"], row["last_error"]) == (1, None)


# -- waking ------------------------------------------------------------------------------------------


async def test_the_doorbell_wakes_a_worker_that_polls_once_an_hour(
    settings: Settings, conn: Connection
) -> None:
    """T-13: it wakes by the doorbell; with such a poll interval nothing else could."""
    async with Holdfast(replace(settings, poll_interval=3600)) as app:
        app.handler("note")(lambda payload: None)
        async with working(app):
            await until(conn, LISTENING, 1)
            first = await add(app, "note")
            await until_task(conn, first, "completed")
            second = await add(app, "note")
            await until_task(conn, second, "completed")


async def test_polling_finds_a_row_that_rang_no_bell(app: Holdfast, conn: Connection) -> None:
    """T-13: a row that plain SQL inserted, without a NOTIFY."""
    app.handler("note")(lambda payload: None)
    async with working(app) as worker:
        await present(conn, worker)
        task_id = await one(conn, "insert into tasks (type) values ('note') returning id")
        await until_task(conn, task_id, "completed")


async def test_without_listen_a_worker_polls_and_says_so_once(
    settings: Settings, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 2: works, and says so once, when LISTEN is not available."""
    await make_tables(conn)
    pooled = replace(settings, database_pooler="transaction")
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        async with Holdfast(pooled, ledgers=[ERRANDS]) as app:
            app.handler("note")(lambda payload: None)
            async with working(app):
                for _ in range(3):
                    await until_task(conn, await add(app, "note"), "completed")
    assert [r.message for r in caplog.records if "LISTEN" in r.message] == [
        "no LISTEN through a transaction pooler: polling every 0.05 s; "
        "HOLDFAST_DATABASE_DIRECT_URL would help"
    ]


# -- calling off -------------------------------------------------------------------------------------


async def test_cancelling_a_running_task_stops_its_async_handler_at_once(
    settings: Settings, connect: Any
) -> None:
    """T-27: told by the doorbell; the row stays failed, "cancelled", and its key stays taken."""
    conn = await connect()
    slow = replace(
        settings, poll_interval=3600, heartbeat_interval=600, worker_timeout=3600, leader_term=3600
    )
    stopped = asyncio.Event()
    async with Holdfast(slow) as app:

        @app.handler("wait")
        async def wait(ctx: Context) -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert ctx.cancelled.is_set()
                stopped.set()
            return "a late outcome"

        async with working(app):
            await until(conn, LISTENING, 1)
            task_id = await add(app, "wait", key="once")
            await until_task(conn, task_id, "running")
            await app.store("tasks").cancel(await connect(), task_id)
            async with asyncio.timeout(PATIENCE):
                await stopped.wait()
            after = await add(app, "wait", key="once")
    assert after == task_id
    row = await task(conn, task_id)
    assert (row["status"], row["last_error"], row["attempts"]) == ("failed", "cancelled", 0)
    assert row["completed_at"] is not None


async def test_cancelling_tells_a_sync_handler_and_its_late_outcome_is_dropped(
    app: Holdfast, conn: Connection
) -> None:
    """T-14, T-27: a thread sees `ctx.cancelled`; what it answers later changes nothing."""
    answered = threading.Event()

    @app.handler("wait")
    def wait(ctx: SyncContext) -> str:
        assert ctx.cancelled.wait(PATIENCE)
        answered.set()
        return "a late outcome"

    task_id = await add(app, "wait")
    async with working(app) as worker:
        await until_task(conn, task_id, "running")
        await app.store("tasks").cancel(conn, task_id)
        assert await asyncio.to_thread(answered.wait, PATIENCE)
        await until_true(lambda: not worker.places.abandoned.total())
        follower = await add(app, "wait")
        await until_task(conn, follower, "running")
        await app.store("tasks").cancel(conn, follower)
    row = await task(conn, task_id)
    assert (row["status"], row["last_error"], row["attempts"]) == ("failed", "cancelled", 0)


async def test_a_thread_that_does_not_end_keeps_its_slot(app: Holdfast, conn: Connection) -> None:
    """T-10: a called-off thread still takes room, so that the worker never runs more than its slots."""
    door, begun = threading.Event(), threading.Semaphore(0)

    @app.handler("stubborn")
    def stubborn() -> None:
        begun.release()
        door.wait(PATIENCE)

    first = await add(app, "stubborn")
    async with working(app, concurrency=1) as worker:
        await until_task(conn, first, "running")
        assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
        await app.store("tasks").cancel(conn, first)
        await until_true(lambda: worker.places.abandoned.total())
        second = await add(app, "stubborn")
        beat = await one(conn, "select last_heartbeat from workers")
        await until(conn, "select last_heartbeat > %s + interval '0.5 s' from workers", beat)
        assert (await task(conn, second))["status"] == "pending"
        door.set()
        await until_task(conn, second, "completed")


async def test_threads_that_do_not_end_are_missed_by_their_own_ledger_alone(
    app: Holdfast, conn: Connection
) -> None:
    """T-10: another ledger has its slots, and its threads."""
    door = threading.Event()

    @app.handler("stubborn", timeout=0.05)
    def stubborn() -> None:
        door.wait(2 * PATIENCE)

    @app.handler("go", ledger="errands")
    def go() -> None: ...

    for _ in range(3):
        await add(app, "stubborn", limit=1)
    worker = app.worker(ledgers=["tasks", "errands"], concurrency={"tasks": 3, "errands": 1})
    async with running(worker) as work:
        await until_true(lambda: worker.places.abandoned.total() == 3)
        try:
            await app.store("errands").enqueue(conn, Item(kind="go"))
            await until(conn, "select true from errands where stage = 'over'")
            worker.stop()
            assert await work == 3
        finally:
            door.set()


async def test_a_row_that_is_called_off_and_let_run_again_stops_its_first_handler(
    settings: Settings, conn: Connection
) -> None:
    """T-27, T-28: the same worker claims it again before it has looked; only the second run goes on."""
    quiet = replace(settings, heartbeat_interval=600, worker_timeout=3600, leader_term=3600)
    fences: list[int] = []
    stopped: asyncio.Queue[int] = asyncio.Queue()
    async with Holdfast(quiet) as app:

        @app.handler("wait")
        async def wait(ctx: Context) -> None:
            fences.append(ctx.fence)
            try:
                await asyncio.Event().wait()
            finally:
                stopped.put_nowait(ctx.fence)

        task_id = await add(app, "wait")
        async with working(app, concurrency=2):
            await until_task(conn, task_id, "running")
            await conn.execute("update tasks set status = 'pending', worker_id = null")  # rings no bell
            async with asyncio.timeout(PATIENCE):
                assert await stopped.get() == 1
            await until(conn, "select true from tasks where status = 'running' and fence = 2")
            assert stopped.empty()
            await app.store("tasks").cancel(conn, task_id)
            async with asyncio.timeout(PATIENCE):
                assert await stopped.get() == 2
    assert fences == [1, 2]


async def test_time_limits_hold_for_a_poll_interval_of_hours(settings: Settings, conn: Connection) -> None:
    """T-24: the end of a run is written at once, not at the next poll."""
    async with Holdfast(replace(settings, poll_interval=3600)) as app:

        @app.handler("slow", timeout=0.1)
        async def slow() -> None:
            await asyncio.Event().wait()

        task_id = await add(app, "slow", limit=1)
        began = time.monotonic()
        async with working(app):
            await until_task(conn, task_id, "dead_letter")
        assert time.monotonic() - began < PATIENCE


# -- its end by a mistake ----------------------------------------------------------------------------


@pytest.mark.parametrize("culprit", ["a turn", "a run"])
async def test_a_worker_that_falls_gives_the_rows_of_every_ledger_back(
    app: Holdfast, conn: Connection, monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    """Its handlers are cut off by no fault of theirs, so that nothing is counted and nothing fails."""
    falls = asyncio.Event()

    @app.handler("wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    @app.handler("go", ledger="errands")
    async def go() -> None:
        await falls.wait()

    async def turns(_: Any, conn: Any) -> None:
        await falls.wait()
        raise RuntimeError("a mistake of ours")

    async def closes(_: Any) -> None:
        raise RuntimeError("a mistake of ours")

    task_id = await add(app, "wait", limit=1)
    await app.store("errands").enqueue(conn, Item(kind="go"))
    await app.store("errands").enqueue(conn, Item(kind="wait"))
    worker = app.worker(ledgers=["tasks", "errands"])
    work = asyncio.create_task(worker.run())
    await until_task(conn, task_id, "running")
    await until(conn, "select count(*) = 2 from errands where stage = 'doing'")
    if culprit == "a turn":
        (pump,) = (one for one in worker.pumps if one.ledger.name == "errands")
        monkeypatch.setattr(type(pump), "_try_blocked", turns)
        pump.ring()
    else:
        monkeypatch.setattr("holdfast.runtime.context.Finishing.close", closes)
    falls.set()
    with pytest.raises(ExceptionGroup):
        await work
    left = await task(conn, task_id)
    assert (left["status"], left["attempts"], left["worker_id"]) == ("pending", 0, None)
    assert await column(conn, "select trouble from errands where what = 'wait'") == [None]
    assert await column(conn, "select stage from errands where what = 'wait'") == ["waiting"]
