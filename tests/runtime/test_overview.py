"""One look at everything: rows, workers and their load, what is paused, and what happened lately."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Holdfast, Item, Settings
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db.pool import Connection
from holdfast.engine import looks
from holdfast.runtime import presence
from holdfast.runtime.overview import LedgerView, Overview, clock, ledger_view, overview, tenant_view
from holdfast.runtime.pauses import pause
from runtime.jobs import ONE, TWO, wait_for
from runtime.support import ERRANDS, add, add_many, column, drain, one, until, working

LEDGERS = ("job", "tasks", "sync_jobs", "capture_session", "schedule_notification", "system_jobs")


def view_of(seen: Overview, ledger: str) -> LedgerView:
    (view,) = (view for view in seen.ledgers if view.ledger.name == ledger)
    return view


def rows_in(view: LedgerView) -> dict[str, int]:
    return {stat.state: stat.rows for stat in view.stats if stat.rows}


async def test_an_overview_tells_rows_workers_load_and_who_leads(app: Holdfast, conn: Connection) -> None:
    door, begun = asyncio.Event(), asyncio.Event()

    @app.handler("good")
    async def good() -> None:
        return None

    @app.handler("long")
    async def long() -> None:
        begun.set()
        await door.wait()

    await add_many(app, "good", 3)
    await drain(app, ledgers=["tasks"])
    options: dict[str, Any] = {"ledgers": ["tasks", "errands"], "concurrency": {"tasks": 3, "errands": 1}}
    async with working(app, **options, kinds=["long"]) as worker:
        await until(conn, "select is_leader from workers")
        await app.enqueue("errands", "long")
        for _ in range(2):
            await add(app, "long")
        await until(conn, "select count(*) = 2 from tasks where status = 'running'")
        await until(conn, "select count(*) = 1 from errands where stage = 'doing'")
        await add_many(app, "good", 4)
        await pause(conn, TASKS, by="ana")
        seen = await overview(conn, app.stores.values())
        door.set()
    assert [view.ledger.name for view in seen.ledgers] == [*LEDGERS, "errands"]
    tasks = view_of(seen, "tasks")
    assert rows_in(tasks) == {"pending": 4, "running": 2, "completed": 3}
    assert tasks.exact
    assert tasks.held == {worker.id: 2}
    assert [one.by for one in tasks.paused] == ["ana"]
    assert tasks.pace
    assert sum(minute.finished for minute in tasks.pace.minutes) == 3
    assert tasks.waiting_since == (
        await one(conn, "select min(created_at) from tasks where status = 'pending'")
    ).replace(tzinfo=seen.now.tzinfo)
    assert 0 <= (tasks.oldest_wait(seen.now) or -1) < 60
    job = view_of(seen, "job")
    assert (job.waiting_since, job.oldest_wait(seen.now), job.held, job.paused) == (None, None, {}, ())
    (there,) = seen.workers
    assert (there.id, there.leads, seen.leader) == (worker.id, True, worker.id)
    assert seen.load == {worker.id: 3}
    assert there.shares == {
        "tasks": {"slots": 3, "queues": [], "kinds": ["long"]},
        "errands": {"slots": 1, "queues": [], "kinds": ["long"]},
    }
    assert there.hostname
    assert there.version
    assert there.started <= seen.now


async def test_the_share_of_a_worker_tells_what_it_can_run(app: Holdfast, conn: Connection) -> None:
    async def nothing() -> None:
        return None

    app.handler("a")(nothing)
    worker = app.worker(ledgers=["job", "tasks"], queues=["default", "mail"], concurrency=2)
    for kind, ledger in (("b", "job"), ("c", "tasks")):  # also what came after the worker
        app.handler(kind, ledger=ledger)(nothing)
    work = asyncio.create_task(worker.run())
    await until(conn, "select true from workers")
    (there,) = await presence.fleet(conn)
    worker.stop()
    await work
    assert there.shares == {
        "job": {"slots": 2, "queues": ["default", "mail"], "kinds": ["a", "b"]},
        "tasks": {"slots": 2, "queues": [], "kinds": ["a", "c"]},
    }


async def test_a_worker_that_was_given_up_says_again_what_it_takes(app: Holdfast, conn: Connection) -> None:
    async with working(app, ledgers=["tasks"], concurrency=2) as worker:
        await until(conn, "select true from workers")
        (before,) = await presence.fleet(conn)
        await conn.execute("delete from workers")
        await until(conn, "select true from workers where id <> %s", before.id)
        (after,) = await presence.fleet(conn)
        assert (after.id, after.shares) == (worker.id, before.shares)


async def test_rows_in_a_queue_that_nobody_serves_wait_as_well(
    app: Holdfast, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted or not: this is what is stuck, and somebody has to hear of it."""
    await app.enqueue("job", "note", tenant=ONE, queue="typo")
    await conn.execute(
        "update job set run_at = run_at - interval '1 h', created_at = created_at - interval '1 h'"
    )
    due = await one(conn, "select run_at from job where queue = %s", "typo")
    for small in (looks.SMALL, 0):
        monkeypatch.setattr(looks, "SMALL", small)
        for counted in (looks.COUNTED, 0):
            monkeypatch.setattr(looks, "COUNTED", counted)
            view = view_of(await overview(conn, [app.store("job")]), "job")
            assert view.waiting_since == due, (small, counted)
            assert 3600 <= (view.oldest_wait(await clock(conn)) or 0) < 3700


async def test_the_view_of_a_tenant_has_its_rows_and_nothing_of_what_workers_do(
    app: Holdfast, conn: Connection
) -> None:
    begun, door = asyncio.Event(), asyncio.Event()

    @app.handler("long")
    async def long() -> None:
        begun.set()
        await door.wait()

    later = {"delay": 3600.0}
    items = [Item(kind="long", tenant=ONE), *(Item(kind="long", tenant=TWO, **later) for _ in range(3))]
    await app.enqueue_many("job", items)
    store = app.store("job")
    async with working(app, ledgers=["job"]):
        await wait_for(begun)
        mine = await tenant_view(conn, store, ONE)
        theirs = await tenant_view(conn, store, TWO)
        every = await ledger_view(conn, store)
        door.set()
    assert (rows_in(mine), mine.pace, mine.held) == ({"running": 1}, None, {})
    assert (rows_in(theirs), theirs.waiting_since) == ({"queued": 3}, None)
    assert rows_in(every) == {"running": 1, "queued": 3}
    assert sum(every.held.values()) == 1
    assert every.pace
    await conn.execute("update job set run_at = now() - interval '1 min' where org_id = %s", (TWO,))
    theirs = await tenant_view(conn, store, TWO)
    assert 60 <= (theirs.oldest_wait(await clock(conn)) or 0) < 120


async def test_a_table_that_is_not_there_does_not_hide_the_others(
    settings: Settings, conn: Connection
) -> None:
    async with Holdfast(settings, ledgers=[ERRANDS]) as app:
        await add(app, "note")
        seen = await overview(conn, app.stores.values())
        async with conn.transaction():  # nor in a transaction of the caller's
            again = await overview(conn, app.stores.values())
    for one_look in (seen, again):
        errands = view_of(one_look, "errands")
        assert "errands" in (errands.trouble or "")
        assert errands.stats == ()
        assert rows_in(view_of(one_look, "tasks")) == {"pending": 1}
        assert view_of(one_look, "tasks").trouble is None


async def test_an_overview_writes_nothing_and_waits_for_nobody(app: Holdfast, conn: Connection) -> None:
    await add(app, "note")
    async with conn.transaction():
        await conn.execute("select * from tasks for update")
        await conn.execute("select * from workers for update")
        async with app.database.connection() as other, other.transaction():
            await other.execute("set transaction read only")
            seen = await overview(other, app.stores.values())
    assert rows_in(view_of(seen, "tasks")) == {"pending": 1}
    assert await column(conn, "select id from workers") == []
    assert (seen.workers, seen.leader, seen.load) == ((), None, {})
