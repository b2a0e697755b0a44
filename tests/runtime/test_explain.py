"""Why a row is not running: every reason, made to hold on a real database, and told with its facts."""

from __future__ import annotations

import asyncio
import doctest
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from holdfast import Backoff, Context, Holdfast, Item, Ledger, Settings
from holdfast.apps.jobs.ledger import JOB
from holdfast.db.pool import Connection
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Lane, RowLease
from holdfast.engine.store import Store
from holdfast.runtime import explain as module
from holdfast.runtime import inquiry, presence
from holdfast.runtime.explain import Explanation, explain
from holdfast.runtime.pauses import pause
from holdfast.runtime.presence import Identity
from ledgers import PARCELS, TASKS
from runtime.jobs import ONE, wait_for
from runtime.support import ERRANDS, add, drain, one, until, until_task, working

Ask = Callable[..., Any]
LATE = Backoff(base=3600, cap=3600, jitter=0)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Workers that only a test makes silent."""
    return replace(settings, worker_timeout=600.0, heartbeat_interval=100.0, leader_term=300.0)


@pytest.fixture
def ask(app: Holdfast, conn: Connection, settings: Settings) -> Ask:
    """`await ask("tasks", id)`: why?"""

    async def ask(ledger: str, id: Any) -> Explanation:
        store = app.store(ledger)
        return await explain(conn, store, await store.get(conn, id), settings)

    return ask


async def joins(
    conn: Connection, id: str, kinds: list[str], *, ledger: str = "tasks", slots: int = 2, **more: Any
) -> None:
    """A worker that says what it takes, and does nothing."""
    share = {"slots": slots, "queues": [], "kinds": kinds} | more
    who = Identity(
        id=id, hostname="h", pool_size=slots, version="1", serves=(ledger,), shares={ledger: share}
    )
    await presence.register(conn, who)


def matches(why: Explanation, pattern: str) -> None:
    assert re.fullmatch(pattern, why.sentence), why.sentence


def test_the_examples_are_true() -> None:
    assert doctest.testmod(module) == doctest.TestResults(0, 2)


# -- rows that have ended ----------------------------------------------------------------------------


async def test_a_row_that_is_done_has_nothing_left_to_do(app: Holdfast, ask: Ask) -> None:
    @app.handler("good")
    async def good() -> None:
        return None

    task_id = await add(app, "good")
    await drain(app, ledgers=["tasks"])
    why = await ask("tasks", task_id)
    matches(why, r"it ended as completed [\d.]+ s ago; nothing is left to do")
    assert (why.code, why.facts["state"], why.facts["may"]) == ("ENDED", "completed", [])
    assert datetime.fromisoformat(why.facts["ended"]).tzinfo


async def test_a_dead_letter_tells_its_error_and_that_it_may_run_again(app: Holdfast, ask: Ask) -> None:
    @app.handler("bad")
    async def bad() -> None:
        raise ConnectionError("refused\nby " + "x" * 500)

    job_id = (await app.enqueue("job", "bad", tenant=ONE, limit=0)).id
    await drain(app, ledgers=["job"])
    why = await ask("job", job_id)
    matches(
        why,
        r"it ended as dead_letter [\d.]+ s ago: ConnectionError: refused by x+…; "
        rf"`holdfast requeue job {job_id}` lets it run again",
    )
    assert len(why.sentence) < 400
    assert (why.code, why.facts["may"]) == ("ENDED", ["requeue"])


async def test_where_no_requeue_leads_on_it_says_so(
    app: Holdfast, conn: Connection, settings: Settings
) -> None:
    final = replace(ERRANDS, edges=tuple(edge for edge in ERRANDS.edges if edge.verb != "requeue"))
    store = Store(final)
    receipt = await store.enqueue(conn, Item(kind="x"))
    await store.cancel(conn, receipt.id)
    why = await explain(conn, store, await store.get(conn, receipt.id), settings)
    assert why.code == "ENDED"
    matches(why, r"it ended as bad: cancelled; no requeue leads from there: enqueue it anew")


async def test_a_state_that_is_neither_an_end_nor_claimable_is_told_as_that(
    app: Holdfast, conn: Connection, settings: Settings
) -> None:
    edges = (*ERRANDS.edges, Edge("cancel", frm=("parked",), to="bad"))
    store = Store(replace(ERRANDS, states=(*ERRANDS.states, "parked"), edges=edges))
    receipt = await store.enqueue(conn, Item(kind="x"))
    await conn.execute("update errands set stage = 'parked'")
    why = await explain(conn, store, await store.get(conn, receipt.id), settings)
    assert (why.code, why.facts["may"]) == ("NOT_CLAIMABLE", ["cancel"])
    assert why.sentence == "nothing is claimed from parked: cancel may happen to it there"


# -- rows that are held ------------------------------------------------------------------------------


async def test_a_row_that_runs_names_its_worker_and_how_far_it_is(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    begun, door = asyncio.Event(), asyncio.Event()

    @app.handler("long")
    async def long(ctx: Context) -> None:
        await ctx.progress(40, "copying")
        begun.set()
        await door.wait()

    task_id = await add(app, "long")
    job_id = (await app.enqueue("job", "long", tenant=ONE)).id
    async with working(app, ledgers=["tasks"]) as worker:
        await wait_for(begun)
        held = await ask("tasks", task_id)
        door.set()
    begun.clear()
    door.clear()
    async with working(app, ledgers=["job"]) as other:
        await wait_for(begun)
        told = await ask("job", job_id)
        claimed = await one(conn, "select max(ts) from job_event where detail_json ->> 'verb' = 'claim'")
        door.set()
    alive = r"said [\d.]+ s ago that it is alive"
    assert (held.code, held.facts["worker"]) == ("HELD", worker.id)
    matches(held, rf"{worker.id} has held it for [\d.]+ s, and {alive}")
    matches(told, rf"{other.id} has held it for [\d.]+ s, copying, 40%, and {alive}")
    assert told.facts["since"] == claimed.isoformat()  # neither its first start nor its last news
    assert 0 <= told.facts["heartbeat_seconds"] < 60


async def test_a_row_of_a_worker_that_is_gone_comes_back(
    app: Holdfast, conn: Connection, ask: Ask, settings: Settings
) -> None:
    task_id = await add(app, "x")
    await app.store("tasks").claim(conn, "ghost-1-abc", 1)
    lonely = await ask("tasks", task_id)
    assert (lonely.code, lonely.facts["worker"]) == ("HELD_BY_LOST", "ghost-1-abc")
    assert lonely.sentence == (
        "its worker ghost-1-abc is gone; no worker is alive to give it back: `holdfast worker` starts one"
    )
    await joins(conn, "other", [])
    # 600 s until an unknown worker's rows are looked at, 300 s for an election, 50 s for the next sweep
    matches(
        await ask("tasks", task_id),
        r"its worker ghost-1-abc is gone; the leader gives the row back within 16 min",
    )
    assert await presence.elect(conn, "other", settings.leader_term)
    await conn.execute("update tasks set claimed_at = claimed_at - interval '1 h'")
    matches(
        await ask("tasks", task_id),
        r"its worker ghost-1-abc is gone; the leader gives the row back within 50 s",
    )


async def test_a_row_of_a_worker_that_is_silent_comes_back(
    app: Holdfast, conn: Connection, ask: Ask, settings: Settings
) -> None:
    task_id = await add(app, "x")
    await joins(conn, "quiet", ["x"])
    await joins(conn, "leader", [])
    await presence.elect(conn, "leader", settings.leader_term)
    await app.store("tasks").claim(conn, "quiet", 1)
    assert (await ask("tasks", task_id)).code == "HELD"
    await conn.execute(
        "update workers set last_heartbeat = last_heartbeat - interval '20 min' where id = 'quiet'"
    )
    why = await ask("tasks", task_id)
    assert why.code == "HELD_BY_LOST"
    matches(why, r"its worker quiet has been silent for 20 min; the leader gives the row back within 50 s")


async def test_a_row_that_names_nobody_comes_back_after_long(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    task_id = await add(app, "x")
    await joins(conn, "w", ["x"])
    await conn.execute("update tasks set status = 'running', worker_id = null")
    why = await ask("tasks", task_id)
    assert (why.code, "worker" in why.facts) == ("HELD_BY_LOST", False)
    assert why.sentence.startswith("it stands as running and names no worker; the leader gives it back after")


async def test_a_lease_that_was_not_renewed_is_a_lost_one(
    app: Holdfast, conn: Connection, settings: Settings
) -> None:
    """Also where the owner is the fence: a claim has a number behind the worker's name."""
    leased = replace(ERRANDS, fence=None, lease=RowLease("leased_at", 60.0))
    await conn.execute("alter table errands add column leased_at timestamptz")
    store = Store(leased)
    receipt = await store.enqueue(conn, Item(kind="x"))
    await store.claim(conn, "w", 1)
    await joins(conn, "w", ["x"], ledger="errands")
    row = await store.get(conn, receipt.id)
    assert re.fullmatch(r"w/\d+", row.owner or "")
    why = await explain(conn, store, row, settings)
    assert (why.code, why.facts["worker"]) == ("HELD", "w")
    await conn.execute("update errands set leased_at = leased_at - interval '2 min'")
    why = await explain(conn, store, await store.get(conn, receipt.id), settings)
    assert why.code == "HELD_BY_LOST"
    assert why.sentence.startswith("the lease of w was not renewed for more than 60 s; the leader gives")


# -- rows that wait: pauses and times ----------------------------------------------------------------


async def test_a_pause_is_told_with_who_why_and_how_it_ends(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    job_id = (await app.enqueue("job", "x", tenant=ONE, queue="the mail", delay=60)).id
    await pause(conn, JOB, "other")
    assert (await ask("job", job_id)).code == "NOT_DUE"
    await pause(conn, JOB, "the mail", by="ben")
    why = await ask("job", job_id)
    assert (why.code, why.facts["queue"], why.facts["by"]) == ("PAUSED", "the mail", "ben")
    matches(
        why,
        r"the queue the mail of job is paused since \d\d:\d\d UTC by ben; "
        r"`holdfast resume job 'the mail'` lets it run",
    )
    await pause(conn, JOB, by="ana", reason="deploy")
    matches(
        await ask("job", job_id),
        r"the ledger job is paused since \d\d:\d\d UTC by ana \(deploy\), and so is its queue the mail; "
        r"`holdfast resume job` and `holdfast resume job 'the mail'` let it run",
    )
    await conn.execute("update holdfast_pause set since = '2020-02-03 04:05:06Z'")
    assert "is paused since 2020-02-03 04:05 UTC by ana" in (await ask("job", job_id)).sentence


async def test_a_row_that_waits_for_its_time_says_how_long(app: Holdfast, conn: Connection, ask: Ask) -> None:
    task_id = await add(app, "x", delay=10800)
    why = await ask("tasks", task_id)
    assert (why.code, why.sentence) == ("NOT_DUE", "it waits for its time: it is due in 3 h")
    due = (await one(conn, "select next_retry_at at time zone 'UTC' from tasks")).isoformat()
    assert why.facts["due"] == due
    await conn.execute("update tasks set next_retry_at = 'infinity'")
    assert (await ask("tasks", task_id)).sentence == "it waits for its time: it is never due"


@pytest.mark.parametrize("ledger", ["tasks", "job"])
async def test_a_row_that_waits_for_its_retry_says_why(app: Holdfast, ask: Ask, ledger: str) -> None:
    @app.handler("bad", backoff=LATE)
    async def bad() -> None:
        raise ConnectionError("refused")

    job_id = (await app.enqueue(ledger, "bad", tenant=ONE if ledger == "job" else None)).id
    await drain(app, ledgers=[ledger])
    why = await ask(ledger, job_id)
    matches(
        why,
        r"it waits for its retry: the run that failed [\d.]+ s ago said ConnectionError: refused; "
        r"it is due in \d+ min",
    )
    assert (why.code, why.facts["attempts"]) == ("NOT_DUE", 1)


# -- rows that wait: workers -------------------------------------------------------------------------


async def test_without_a_worker_nothing_runs(app: Holdfast, conn: Connection, ask: Ask) -> None:
    task_id = await add(app, "x")
    why = await ask("tasks", task_id)
    assert (why.code, why.sentence) == ("NO_WORKERS", "no worker is alive: `holdfast worker` starts one")
    await joins(conn, "w", ["x"])
    await conn.execute("update workers set last_heartbeat = last_heartbeat - interval '1 h'")
    why = await ask("tasks", task_id)
    assert why.code == "NO_WORKERS"
    assert why.sentence == "no worker is alive (1 is silent): `holdfast worker` starts one"


async def test_each_thing_that_workers_lack_is_named(app: Holdfast, conn: Connection, ask: Ask) -> None:
    job_id = (await app.enqueue("job", "image:resize", tenant=ONE, queue="mail")).id
    await joins(conn, "t", ["x"], ledger="tasks")
    why = await ask("job", job_id)
    assert why.code == "NO_WORKER_FOR_LEDGER"
    assert why.sentence == (
        "no worker serves job: 1 worker serves tasks; `holdfast worker --ledger job` would"
    )
    await joins(conn, "j1", ["email:send"], ledger="job", queues=["default"])
    await joins(conn, "j2", ["report:build"], ledger="job", queues=["default", "slow"])
    why = await ask("job", job_id)
    assert why.code == "NO_WORKER_FOR_QUEUE"
    assert why.sentence == "no worker serves the queue 'mail': 2 workers serve job, with default, slow"
    await joins(conn, "j3", ["email:send", "report:build"], ledger="job", queues=["mail"])
    await joins(conn, "j4", [], ledger="job", queues=["mail"])
    why = await ask("job", job_id)
    assert (why.code, why.facts["kinds"]) == ("NO_WORKER_FOR_KIND", ["email:send", "report:build"])
    assert why.sentence == (
        "no worker has a handler for 'image:resize': 2 workers serve job, with email:send, report:build"
    )
    await joins(conn, "j5", ["image:resize"], ledger="job", queues=["mail"])
    assert (await ask("job", job_id)).code == "DUE"


async def test_a_real_worker_that_leaves_the_kind_to_others_is_no_help(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    async def nothing() -> None:
        return None

    app.handler("a")(nothing)
    app.handler("b")(nothing)
    async with working(app, ledgers=["tasks"], kinds=["a"]):
        await until(conn, "select true from workers")
        why = await ask("tasks", await add(app, "b"))
    assert why.code == "NO_WORKER_FOR_KIND"
    assert why.sentence == "no worker has a handler for 'b': 1 worker serves tasks, with a"


async def test_a_worker_that_does_not_tell_what_it_takes_may_take_it(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    """One of an older version, whose row has no shares."""
    job_id = (await app.enqueue("job", "x", tenant=ONE, queue="mail")).id
    await presence.register(conn, Identity(id="old", hostname="h", pool_size=1, version="0", serves=("job",)))
    assert (await ask("job", job_id)).code == "DUE"


async def test_when_all_slots_are_taken_the_row_waits_for_one(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    door = asyncio.Event()

    @app.handler("long")
    async def long() -> None:
        await door.wait()

    async with working(app, ledgers=["tasks"], concurrency=2):
        for _ in range(2):
            await add(app, "long")
        await until(conn, "select count(*) = 2 from tasks where status = 'running'")
        first = await ask("tasks", await add(app, "long"))
        second_id = await add(app, "long")
        second = await ask("tasks", second_id)
        door.set()
        await until_task(conn, second_id, "completed")
    assert (first.code, first.facts["slots"]) == ("WORKERS_FULL", 2)
    assert first.sentence == "1 worker could take it, but all 2 slots are taken"
    assert second.sentence == (
        "1 worker could take it, but all 2 slots are taken; 1 row that is due stands before it"
    )


# -- rows that wait: other rows ----------------------------------------------------------------------


async def test_rows_that_are_due_before_it_are_counted_as_a_claim_would_take_them(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    """By priority, then time; neither future rows, nor other queues, nor kinds that nobody takes."""
    await joins(conn, "w", ["x"], ledger="job", queues=["default", "mail"])
    items = [
        Item(kind="x", tenant=ONE, priority=5),
        Item(kind="x", tenant=ONE, priority=5, delay=60),
        Item(kind="x", tenant=ONE, priority=5, queue="elsewhere"),
        Item(kind="x", tenant=ONE, priority=5, queue="mail"),
        Item(kind="unheard of", tenant=ONE, priority=5),
        Item(kind="x", tenant=ONE),
        Item(kind="x", tenant=ONE),
        Item(kind="x", tenant=ONE, priority=-1),
    ]
    receipts = [await app.enqueue_many("job", [item]) for item in items]
    why = await ask("job", receipts[6][0].id)
    assert (why.code, why.facts["ahead"]) == ("BEHIND_OTHERS", 3)
    assert why.sentence == "3 rows that are due stand before it; 1 worker takes them"
    taken = await app.store("job").claim(conn, "w", 3, kinds=["x"], queues=["default", "mail"])
    assert receipts[6][0].id not in {claim.id for claim in taken}
    await conn.execute("update job set status = 'queued', worker_id = null where status = 'running'")
    await pause(conn, JOB, "mail")
    assert (await ask("job", receipts[6][0].id)).facts["ahead"] == 2


async def test_both_lanes_of_a_ledger_are_one_row_of_people(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    await joins(conn, "w", ["x"])
    retried = await add(app, "x")
    await add(app, "x")
    last = await add(app, "x")
    await conn.execute("update tasks set next_retry_at = created_at where id = %s", (retried,))
    assert (await ask("tasks", last)).facts["ahead"] == 2
    assert (await ask("tasks", retried)).code == "DUE"


async def test_no_more_than_a_thousand_rows_are_counted(app: Holdfast, conn: Connection, ask: Ask) -> None:
    await joins(conn, "w", ["x"])
    store = app.store("tasks")
    await store.copy(conn, (Item(kind="x") for _ in range(1500)))
    why = await ask("tasks", await add(app, "x"))
    assert (why.code, why.facts["ahead"]) == ("BEHIND_OTHERS", 1000)
    assert why.sentence == "1,000 rows or more that are due stand before it; 1 worker takes them"


async def test_a_row_that_an_open_transaction_has_touched_is_passed_over(
    app: Holdfast, conn: Connection, connect: Callable[[], Any], ask: Ask
) -> None:
    await joins(conn, "w", ["x"])
    task_id, other = await add(app, "x"), await connect()
    for touch in (
        "select * from tasks for update",
        "select * from tasks for share",
        "update tasks set priority = 1",
        "delete from tasks",
    ):
        async with other.transaction(force_rollback=True):
            await other.execute(touch)
            why = await ask("tasks", task_id)
            assert await app.store("tasks").claim(conn, "w", 1) == []
        assert (why.code, why.facts["pid"]) == ("LOCKED", other.info.backend_pid), touch
        matches(
            why,
            rf"an open transaction of pid {other.info.backend_pid} "
            r"\(holdfast test, holdfast, idle in transaction\), begun [\d.]+ s ago, "
            r"has touched it: workers pass over it until that one ends",
        )
        assert (await ask("tasks", task_id)).code == "DUE"


async def test_of_several_who_have_locked_a_row_one_is_named(
    app: Holdfast, conn: Connection, connect: Callable[[], Any], ask: Ask
) -> None:
    """Then the row does not name a transaction, but a group of them."""
    await joins(conn, "w", ["x"], ledger="job", queues=["default"])
    job_id = (await app.enqueue("job", "x", tenant=ONE)).id
    first, second, third = [await connect() for _ in range(3)]
    async with first.transaction(force_rollback=True):
        await first.execute("select * from job for key share")
        async with second.transaction(force_rollback=True), third.transaction(force_rollback=True):
            await second.execute("select * from job for key share")
            assert (await ask("job", job_id)).code == "DUE"  # which stands in nobody's way
            await third.execute("update job set priority = 1")
            why = await ask("job", job_id)
            assert (why.code, why.facts["pid"]) == ("LOCKED", third.info.backend_pid)


async def test_asking_locks_nothing_and_waits_for_nobody(
    app: Holdfast, conn: Connection, settings: Settings
) -> None:
    await joins(conn, "w", ["x"])
    task_id = await add(app, "x")
    store = app.store("tasks")
    async with app.database.connection() as other, other.transaction():
        await other.execute("set transaction read only")
        assert (await explain(other, store, await store.get(other, task_id), settings)).code == "DUE"
        (claim,) = await store.claim(conn, "w", 1)
        assert claim.id == task_id


async def test_a_row_that_was_taken_meanwhile_is_told_as_it_is_now(
    app: Holdfast, conn: Connection, settings: Settings
) -> None:
    await joins(conn, "w", ["x"])
    store = app.store("tasks")
    before = await store.get(conn, await add(app, "x"))
    await store.claim(conn, "w", 1)
    assert (await explain(conn, store, before, settings)).code == "HELD"


async def test_a_row_that_no_lane_leads_to_is_told_as_that(
    conn: Connection, settings: Settings, app: Holdfast
) -> None:
    blind: Ledger = replace(
        ERRANDS, lanes=(Lane("due", due="due_at", order=("due_at",), filled=("trouble",)),)
    )
    store = Store(blind)
    await joins(conn, "w", ["x"], ledger="errands")
    receipt = await store.enqueue(conn, Item(kind="x"))
    why = await explain(conn, store, await store.get(conn, receipt.id), settings)
    assert why.code == "NOT_CLAIMABLE"
    assert why.sentence == "no lane of errands leads to it, although it is waiting: see `holdfast doctor`"


async def test_a_row_in_nobodys_way_is_taken_within_a_moment(
    app: Holdfast, conn: Connection, ask: Ask
) -> None:
    await joins(conn, "w", ["x"])
    why = await ask("tasks", await add(app, "x"))
    assert why.code == "DUE"
    matches(
        why,
        r"nothing stands in its way: it is due since [\d.]+ s, and a worker takes it within 0.1 s",
    )


def test_a_time_that_no_calendar_has_is_none() -> None:
    for ledger, value in ((PARCELS, 10**30), (PARCELS, -(10**30)), (TASKS, "infinity"), (TASKS, None)):
        assert inquiry.moment(ledger, value) is None
