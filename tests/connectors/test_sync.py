"""Full and incremental jobs: signals, cursor, end and follow-up are one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from connectors import kit
from connectors.kit import ACCESS, Stage, Stop, page, signal
from holdfast import Settings
from holdfast.apps.connectors import connections
from holdfast.apps.connectors.protocol import Page
from holdfast.db.pool import Connection
from runtime.jobs import until_blocked
from runtime.support import one, until


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


async def cursor_is(stage: Stage, link: connections.Link, cursor: Any) -> None:
    """Sets the connection's cursor, as a person or another job would."""
    await connections.merge_sync(stage.conn, link.id, {"cursor": cursor})


# -- success ---------------------------------------------------------------------------------------------


async def test_a_page_becomes_signals_and_the_cursor_and_the_job_succeeds(stage: Stage) -> None:
    """C-37: started_at stays, finished_at is set; the connector saw the token in the clear."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs = [page("a", "b", cursor={"since": 7})]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["attempts"], row["error"]) == ("succeeded", 1, None)
    assert row["started_at"] < row["finished_at"]
    assert await stage.keys(link) == ["a", "b"]
    assert (await stage.sync_of(link))["cursor"] == {"since": 7}
    assert stage.script.tokens("sync") == [ACCESS]


async def test_signals_cursor_and_the_end_of_the_job_become_visible_together(
    stage: Stage, connect: Callable[[], Any]
) -> None:
    """C-37: somebody who keeps the connection's row locked sees none of them until he lets go."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs = [page("a", cursor="c1")]
    holder = await connect()
    await holder.execute("begin")
    await connections.lock(holder, link.id)
    async with stage.working():
        await until_blocked(stage.conn, holder)
        assert (await stage.job(job))["status"] == "running"
        assert await stage.keys(link) == []
        await holder.execute("rollback")
        await stage.until_job(job, "succeeded")
        assert await stage.keys(link) == ["a"]
        assert (await stage.sync_of(link))["cursor"] == "c1"


async def test_the_follow_up_starts_where_its_parent_ended(stage: Stage) -> None:
    """C-28, C-37, proofs: same type and priority, due now, after its parent has ended."""
    link = await stage.link()
    await stage.add(link, priority=30)
    stage.script.syncs = [page("a", cursor="c1", more=True), page("b", cursor="c2", more=True), page("c")]
    await stage.work()
    assert stage.script.of("sync") == [None, "c1", "c2"]
    rows = await stage.jobs(link)
    assert [(r["status"], r["priority"], r["cursor"]) for r in rows] == [
        ("succeeded", 30, None),
        ("succeeded", 30, "c1"),
        ("succeeded", 30, "c2"),
    ]
    assert [r["job_type"] for r in rows] == ["incremental"] * 3
    assert await stage.keys(link) == ["a", "b", "c"]
    assert (await stage.sync_of(link))["cursor"] == "c2"


@pytest.mark.parametrize("cursor", ["t1", 0, "", [], {"page": 2}, 1.5, True, ["a", {"b": None}]])
async def test_a_cursor_of_any_shape_is_handed_on_unchanged(stage: Stage, cursor: Any) -> None:
    """C-34: from a page to the stored cursor, to the follow-up, and to the next scheduled job."""
    link = await stage.link()
    await stage.add(link)
    stage.script.syncs = [page("a", cursor=cursor, more=True), page("b")]
    await stage.work()
    await stage.add(link)
    await stage.work()
    assert stage.script.of("sync") == [None, cursor, cursor]
    assert (await stage.sync_of(link))["cursor"] == cursor


async def test_more_without_a_cursor_adds_nothing(stage: Stage) -> None:
    """C-37: only if there is more and a cursor; the stored one stays."""
    link = await stage.link()
    await cursor_is(stage, link, "c1")
    await stage.add(link)
    stage.script.syncs = [Page(signals=(signal("a"),), has_more=True)]
    await stage.work()
    assert len(await stage.jobs(link)) == 1
    assert (await stage.sync_of(link))["cursor"] == "c1"


async def test_a_connector_that_stands_still_and_says_more_does_not_run_for_ever(stage: Stage) -> None:
    """C-37: a follow-up from where its parent began would be the same run again."""
    link = await stage.link()
    await cursor_is(stage, link, "c1")
    await stage.add(link)
    stage.script.syncs = [page("a", cursor="c1", more=True)] * 3
    await stage.work()
    assert len(await stage.jobs(link)) == 1


async def test_a_signal_that_is_known_is_skipped_and_one_that_a_page_repeats_is_stored_once(
    stage: Stage,
) -> None:
    """C-39."""
    link = await stage.link()
    stage.script.syncs = [page("a", "a", "b"), page("b", "c")]
    for _ in range(2):
        await stage.add(link)
        await stage.work()
    assert await stage.keys(link) == ["a", "b", "c"]


async def test_a_connector_that_raises_leaves_no_signals_of_its_page(stage: Stage) -> None:
    """C-36: what it had found before it raised is not kept, either."""
    link = await stage.link()
    job = await stage.add(link)

    async def half(*_: Any) -> Any:
        raise ExceptionGroup("half of it", [ValueError("x")])

    stage.script.syncs = [half]
    await stage.work()
    assert await stage.keys(link) == []
    assert (await stage.job(job))["error"]["code"] == "ExceptionGroup"


# -- where a job begins ----------------------------------------------------------------------------------


async def test_a_job_begins_at_its_own_cursor_else_at_the_stored_one_and_a_full_one_at_the_beginning(
    stage: Stage,
) -> None:
    """C-34: an object whose only key is `value` is unwrapped."""
    link = await stage.link()
    for stored, kind, own, begins in (
        ("stored", "incremental", None, "stored"),
        ("stored", "incremental", "own", "own"),
        ("stored", "incremental", {"value": 7}, 7),
        ({"value": ["w"]}, "incremental", None, ["w"]),
        ({"value": 1, "page": 2}, "incremental", None, {"value": 1, "page": 2}),
        ("stored", "full", None, None),
        ("stored", "full", "own", "own"),
    ):
        await cursor_is(stage, link, stored)
        stage.script.calls.clear()
        await stage.add(link, kind, own)
        await stage.work()
        assert stage.script.of("sync") == [begins]


# -- the cursor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [None, "by hand"])
async def test_a_reset_cursor_survives_the_running_jobs_finish(stage: Stage, reset: Any) -> None:
    """C-38, proofs: removed, or set to another; the signals of the page are kept all the same."""
    link = await stage.link()
    await cursor_is(stage, link, "c1")
    job = await stage.add(link)
    stop = Stop()
    stage.script.syncs = [stop.then(page("a", cursor="c2"))]
    async with stage.working():
        await stop.reached()
        if reset is None:
            await connections.merge_sync(stage.conn, link.id, {}, remove=("cursor",))
        else:
            await cursor_is(stage, link, reset)
        stop.go()
        await stage.until_job(job, "succeeded")
    assert (await stage.sync_of(link)).get("cursor") == reset
    assert await stage.keys(link) == ["a"]


async def test_a_reset_that_is_under_way_when_the_job_ends_is_waited_for(
    stage: Stage, connect: Callable[[], Any]
) -> None:
    """C-37, C-38: the stored cursor is looked at under the connection's lock."""
    link = await stage.link()
    await cursor_is(stage, link, "c1")
    job = await stage.add(link)
    person, stop = await connect(), Stop()
    stage.script.syncs = [stop.then(page("a", cursor="c2"))]
    async with stage.working():
        await stop.reached()
        await person.execute("begin")
        await connections.merge_sync(person, link.id, {"cursor": "by hand"})
        stop.go()
        await until_blocked(stage.conn, person)
        await person.execute("commit")
        await stage.until_job(job, "succeeded")
    assert (await stage.sync_of(link))["cursor"] == "by hand"


async def test_a_reset_between_a_job_and_its_follow_up_is_not_undone_by_the_follow_up(stage: Stage) -> None:
    """C-38: what the follow-up began at is not the stored cursor any more."""
    link = await stage.link()
    await stage.add(link)
    stop = Stop()
    stage.script.syncs = [page("a", cursor="c1", more=True), stop.then(page("b", cursor="c2"))]
    async with stage.working():
        await stop.reached()
        await connections.merge_sync(stage.conn, link.id, {}, remove=("cursor",))
        stop.go()
        await until(stage.conn, "select count(*) = 2 from sync_jobs where status = 'succeeded'")
    assert "cursor" not in await stage.sync_of(link)
    assert await stage.keys(link) == ["a", "b"]


async def test_a_full_job_writes_the_cursor_with_its_last_page_only(stage: Stage) -> None:
    """C-38: until then an incremental one goes on where it was."""
    link = await stage.link()
    await cursor_is(stage, link, "old")
    await stage.add(link, "full")
    stop = Stop()
    stage.script.syncs = [page("a", cursor="f1", more=True), stop.then(page("b", cursor="f2"))]
    async with stage.working():
        await stop.reached()
        assert (await stage.sync_of(link))["cursor"] == "old"
        stop.go()
        await until(stage.conn, "select count(*) = 2 from sync_jobs where status = 'succeeded'")
    assert (await stage.sync_of(link))["cursor"] == "f2"
    assert stage.script.of("sync") == [None, "f1"]


async def test_an_incremental_job_does_not_undo_a_full_one_that_ended_meanwhile(stage: Stage) -> None:
    """C-32, C-38: both run at the same time."""
    link = await stage.link()
    await cursor_is(stage, link, "old")
    job = await stage.add(link, priority=9)
    stop = Stop()
    stage.script.syncs = [stop.then(page("a", cursor="i1")), page("b", cursor="f1")]
    async with stage.working():
        await stop.reached()
        full = await stage.add(link, "full")
        await stage.until_job(full, "succeeded")
        stop.go()
        await stage.until_job(job, "succeeded")
    assert (await stage.sync_of(link))["cursor"] == "f1"
    assert await stage.keys(link) == ["a", "b"]


async def test_what_others_keep_in_the_metadata_survives_a_sync(stage: Stage) -> None:
    """C-17: unknown keys of metadata and of sync."""
    link = await stage.link(metadata={"mine": [1], "sync": {"theirs": {"x": 1}, "interval_seconds": 300}})
    await stage.add(link)
    stage.script.syncs = [page(cursor="c1")]
    await stage.work()
    assert (await stage.now(link)).metadata == {
        "mine": [1],
        "sync": {"theirs": {"x": 1}, "interval_seconds": 300, "cursor": "c1"},
    }


# -- at the same time ------------------------------------------------------------------------------------


async def test_a_full_and_an_incremental_job_of_one_connection_run_at_the_same_time(stage: Stage) -> None:
    """C-32."""
    link = await stage.link()
    ids = [await stage.add(link), await stage.add(link, "full")]
    both = asyncio.Barrier(2)

    async def together(*_: Any) -> Page:
        await both.wait()
        return Page()

    stage.script.syncs = [together, together]
    await stage.work()
    assert [(await stage.job(job))["status"] for job in ids] == ["succeeded", "succeeded"]


async def test_single_flight_lets_one_job_of_a_connection_run_and_the_others_wait_for_nothing_lost(
    settings: Settings, conn: Connection
) -> None:
    """C-32: also when both were claimed at once; the wait costs no start; another connection is not held."""
    async with kit.stage(replace(settings, sync_single_flight=True), conn) as stage:
        link, other = await stage.link(), await stage.link()
        ids = [await stage.add(link), await stage.add(link, "full")]
        stop = Stop()
        stage.script.syncs = [stop.then(page("a"))]
        async with stage.working():
            await stop.reached()
            free = await stage.add(other)
            await stage.until_job(free, "succeeded")
            await until(conn, "select count(*) = 1 from sync_jobs where retry_after is not null")
            at_work = [call for call in stage.script.calls if call.method == "sync"]
            assert len(at_work) == 2  # the first of ours, and the other connection's
            stop.go()
            for job in ids:
                assert (await stage.until_job(job, "succeeded"))["attempts"] == 1
        assert len(stage.script.of("sync")) == 3


async def test_single_flight_is_not_held_by_a_claim_that_was_lost(
    settings: Settings, conn: Connection
) -> None:
    """C-32, C-33: what a dead worker has left behind holds nobody back."""
    async with kit.stage(replace(settings, sync_single_flight=True), conn) as stage:
        link = await stage.link()
        dead = await stage.add(link)
        flight = {"job": str(dead), "fence": 1}
        await connections.merge_sync(conn, link.id, {"flight": flight})
        await stage.store.claim(conn, "dead", 1)
        job = await stage.add(link, "full")
        async with stage.working():
            await until(conn, "select retry_after is not null from sync_jobs where id = %s", job)
            await conn.execute(
                "update sync_jobs set status = 'failed', finished_at = now() where id = %s", (dead,)
            )
            await stage.until_job(job, "succeeded")


async def test_no_transaction_is_open_while_the_provider_is_asked(stage: Stage) -> None:
    """C-37: nor any row locked."""
    link = await stage.link()
    job = await stage.add(link)
    stop = Stop()
    stage.script.syncs = [stop.then(page("a"))]
    async with stage.working():
        await stop.reached()
        query = "select count(*) from pg_stat_activity where datname = current_database() and state like %s"
        ours = " and split_part(application_name, ' [', 1) in ('holdfast pool', 'holdfast token refresh')"
        assert await one(stage.conn, query + ours, "idle in transaction%") == 0
        async with stage.conn.transaction():
            await stage.conn.execute("set local lock_timeout = '1s'")
            await stage.conn.execute("select from connections where id = %s for update", (link.id,))
        stop.go()
        await stage.until_job(job, "succeeded")


async def test_what_no_column_can_take_fails_the_run_and_not_the_worker(stage: Stage) -> None:
    """C-36: a page with a cursor that is no JSON."""
    link, other = await stage.link(), await stage.link()
    job = await stage.add(link, priority=9)
    stage.script.syncs = [Page(signals=(signal("a"),), next_cursor=object()), page("b")]
    after = await stage.add(other)
    await stage.work(concurrency=1)
    row = await stage.job(job)
    assert (row["status"], row["error"]["sync_error"]["type"]) == ("queued", "unexpected")
    assert await stage.keys(link) == []
    assert (await stage.job(after))["status"] == "succeeded"


async def test_single_flight_takes_nothing_but_a_number_for_the_fence_of_a_claim(
    settings: Settings, conn: Connection
) -> None:
    """C-32: to Python, true is 1, which is the fence of most claims; anybody may write there."""
    async with kit.stage(replace(settings, sync_single_flight=True), conn) as stage:
        link = await stage.link()
        running = await stage.add(link, "full")
        await conn.execute("update sync_jobs set status = 'running', fence = 1, started_at = now()")
        await connections.merge_sync(conn, link.id, {"flight": {"job": str(running), "fence": True}})
        job = await stage.add(link)
        await stage.work()
        assert (await stage.job(job))["status"] == "succeeded"
