"""Webhook jobs: every delivery is handled once, in order, and none holds up the next or is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from connectors import kit
from connectors.kit import ACCESS, FAKE, NOON, REFRESH, Stage, Stop, grant, page, signal
from holdfast import Settings
from holdfast.apps.connectors import catalogue, connections, drain
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.protocol import (
    Permanent,
    RateLimited,
    Signal,
    Transient,
    Unauthorized,
    WebhookResult,
)
from holdfast.apps.connectors.sync_state import moment_text, read_moment
from holdfast.db.pool import Connection
from runtime.jobs import until_blocked
from runtime.support import one, until

WANTS = WebhookResult(wants_sync=True)


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


async def waiting(stage: Stage) -> list[str]:
    """The deliveries that are not processed, in order of arrival."""
    query = "select delivery_id from webhook_delivery where processed_at is null order by received_at"
    return [row["delivery_id"] for row in await stage.rows(query)]


async def end_pauses(stage: Stage) -> None:
    """Ends the wait of every delivery that has failed."""
    query = "update webhook_delivery set error = error - 'retry_after' where error ? 'retry_after'"
    await stage.conn.execute(query)


# -- success ---------------------------------------------------------------------------------------------


async def test_deliveries_become_signals_in_order_of_arrival_and_no_cursor_moves(stage: Stage) -> None:
    """C-49, C-53: one job for all, of the priority of webhooks."""
    link = await stage.link()
    await connections.merge_sync(stage.conn, link.id, {"cursor": "c1"})
    for name in ("d1", "d2", "d3"):
        assert await stage.deliver(link, name)
    await stage.work()
    assert stage.script.of("webhook") == ["d1", "d2", "d3"]
    assert stage.script.tokens("webhook") == [ACCESS] * 3
    assert await stage.keys(link) == ["d1", "d2", "d3"]
    assert await waiting(stage) == []
    (job,) = await stage.jobs(link)
    assert (job["job_type"], job["status"], job["priority"]) == ("webhook", "succeeded", 50)
    assert await stage.sync_of(link) == {"cursor": "c1"}


async def test_one_job_takes_a_hundred_deliveries_and_a_follow_up_the_rest(stage: Stage) -> None:
    """C-28, C-49: a hundred at a time; the follow-up is as important as its parent."""
    link = await stage.link()
    for n in range(205):
        await stage.deliver(link, f"d{n:03}")
    await stage.work()
    jobs = await stage.jobs(link)
    assert [(job["status"], job["priority"]) for job in jobs] == [("succeeded", 50)] * 3
    assert stage.script.of("webhook") == [f"d{n:03}" for n in range(205)]
    assert len(await stage.keys(link)) == 205


async def test_one_hundred_deliveries_during_a_running_job_are_all_processed_each_once(
    stage: Stage, connect: Callable[[], Any]
) -> None:
    """C-49, proofs: they come by ten connections at once, while the job is in the middle of the first."""
    link = await stage.link()
    stop = Stop()
    stage.script.webhooks["first"] = [stop.then(WebhookResult(signals=(signal("first"),)))]
    await stage.deliver(link, "first")
    conns = [await connect() for _ in range(10)]

    async def ten(n: int) -> None:
        for m in range(10):
            await stage.deliver(link, f"d{n}{m}", conn=conns[n])
            if (n, m) == (5, 5):
                stop.go()  # the rest comes while the job ends and its follow-up begins

    async with stage.working(), asyncio.timeout(60):
        await stop.reached()
        await asyncio.gather(*map(ten, range(10)))
        await until(stage.conn, "select not exists (select from webhook_delivery where processed_at is null)")
        await until(stage.conn, "select not exists (select from sync_jobs where status <> 'succeeded')")
    names = sorted(["first", *(f"d{n}{m}" for n in range(10) for m in range(10))])
    assert sorted(stage.script.of("webhook")) == names
    assert await stage.keys(link) == names


async def test_a_delivery_at_the_moment_of_finish_is_not_stranded(
    stage: Stage, connect: Callable[[], Any]
) -> None:
    """C-49, proofs: stored, but not committed, when the drain wants to end: it waits, looks, and goes on."""
    link = await stage.link()
    stop = Stop()
    stage.script.webhooks["d1"] = [stop.then(WebhookResult(signals=(signal("d1"),)))]
    await stage.deliver(link, "d1")
    door = await connect()
    async with stage.working():
        await stop.reached()
        await door.execute("begin")
        await stage.deliver(link, "d2", conn=door)  # the job is still running: it is this one's twin
        stop.go()
        await until_blocked(stage.conn, door)
        await door.execute("commit")
        await until(stage.conn, "select count(*) = 2 from sync_jobs where status = 'succeeded'")
    assert stage.script.of("webhook") == ["d1", "d2"]
    assert await waiting(stage) == []


async def test_a_delivery_that_comes_while_the_drain_ends_waits_for_it_and_has_a_job_of_its_own(
    stage: Stage, connect: Callable[[], Any]
) -> None:
    """C-49, traps: the other order. The drain has looked for the last time, and is not committed yet."""
    link = await stage.link()
    await stage.conn.execute("""
        create function wait_here() returns trigger language plpgsql as $$ begin
            perform pg_advisory_xact_lock_shared(8);
            return new;
        end $$;
        create trigger wait_here before update on sync_jobs for each row
            when (new.status = 'succeeded') execute function wait_here();
    """)
    holder, door = await connect(), await connect()
    await holder.execute("select pg_advisory_lock(8)")
    await stage.deliver(link, "d1")
    async with stage.working():
        await until_blocked(stage.conn, holder)
        coming = asyncio.create_task(stage.deliver(link, "d2", conn=door))
        await until(
            stage.conn,
            "select count(*) > 0 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'",
            door.info.backend_pid,
        )
        await holder.execute("select pg_advisory_unlock(8)")
        assert await coming
        await until(stage.conn, "select count(*) = 2 from sync_jobs where status = 'succeeded'")
    assert stage.script.of("webhook") == ["d1", "d2"]


async def test_the_same_content_under_a_new_id_yields_no_second_signal(stage: Stage) -> None:
    """C-39, proofs: nor does what a poll has found already."""
    link = await stage.link()
    await stage.add(link)
    stage.script.syncs = [page("a")]
    stage.script.webhooks = {name: [WebhookResult(signals=(signal("a"),))] for name in ("d1", "d2")}
    await stage.work()
    await stage.deliver(link, "d1")
    await stage.deliver(link, "d2")
    await stage.work()
    assert await stage.keys(link) == ["a"]
    assert await waiting(stage) == []


# -- what goes wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Permanent(message="cannot be"), "PERMANENT"),
        (Transient(message="later"), "TRANSIENT"),
        (KeyError("the private letter"), "KeyError"),
        (None, "TypeError"),  # no error, and no answer
    ],
)
async def test_a_poisoned_delivery_does_not_hold_up_the_next(
    stage: Stage, error: Exception | None, code: str
) -> None:
    """C-54, proofs: neither those behind it, nor those that come later; its payload is in no message."""
    link = await stage.link()
    stage.script.webhooks["d2"] = [error] * 9
    for name in ("d1", "d2", "d3"):
        await stage.deliver(link, name)
    await stage.work()
    assert await stage.keys(link) == ["d1", "d3"]
    row = await stage.delivery("d2")
    assert row["error"]["code"] == code
    assert "letter" not in str(row)
    assert (row["processed_at"] is not None) == (code == "PERMANENT")
    await stage.deliver(link, "d4")
    await stage.work()
    assert await stage.keys(link) == ["d1", "d3", "d4"]
    assert stage.script.of("webhook").count("d2") == 1
    assert {job["status"] for job in await stage.jobs(link)} == {"succeeded"}


async def test_a_delivery_that_failed_is_tried_again_later_and_parked_after_the_fifth_time(
    stage: Stage,
) -> None:
    """C-54: a minute, then two, four, eight; after that a person may replay it."""
    link = await stage.link()
    stage.script.webhooks["d1"] = [Transient(message=f"no {n}") for n in range(1, 9)]
    await stage.deliver(link, "d1")
    for times, minutes in ((1, 1), (2, 2), (3, 4), (4, 8)):
        await stage.work()
        row = await stage.delivery("d1")
        assert (row["attempts"], row["processed_at"]) == (times, None)
        assert row["error"]["message"] == f"no {times}"
        again, failed = (read_moment(row["error"][key]) for key in ("retry_after", "timestamp"))
        assert again
        assert failed
        assert again - failed == timedelta(minutes=minutes)
        assert await drain.rescue(stage.service, stage.conn, now=again - timedelta(seconds=1)) == 0
        await end_pauses(stage)
        assert await drain.rescue(stage.service, stage.conn, now=again + timedelta(seconds=61)) == 1
    await stage.work()
    row = await stage.delivery("d1")
    assert row["processed_at"] is not None
    assert (row["attempts"], row["error"]["message"]) == (5, "no 5")
    assert await drain.rescue(stage.service, stage.conn, now=datetime.now(UTC) + timedelta(days=1)) == 0
    assert len(stage.script.of("webhook")) == 5


async def test_a_delivery_that_succeeds_at_last_keeps_no_error(stage: Stage) -> None:
    """C-54."""
    link = await stage.link()
    stage.script.webhooks["d1"] = [Transient(message="later")]
    await stage.deliver(link, "d1")
    await stage.work()
    await end_pauses(stage)
    await stage.deliver(link, "d2")
    await stage.work()
    row = await stage.delivery("d1")
    assert row["processed_at"] is not None
    assert row["error"] is None
    assert await stage.keys(link) == ["d1", "d2"]


async def test_a_delivery_whose_signals_cannot_be_stored_fails_alone(stage: Stage) -> None:
    """C-54: the others of its batch are kept, and so is nothing of it."""
    link = await stage.link()
    zoneless = Signal(kind="issue_created", occurred_at=NOON.replace(tzinfo=None), payload={}, dedupe_key="x")
    stage.script.webhooks["d2"] = [WebhookResult(signals=(signal("half"), zoneless))]
    for name in ("d1", "d2", "d3"):
        await stage.deliver(link, name)
    await stage.work()
    assert await stage.keys(link) == ["d1", "d3"]
    row = await stage.delivery("d2")
    assert (row["attempts"], row["processed_at"]) == (1, None)
    assert row["error"]["sync_error"]["type"] == "unexpected"


async def test_a_delivery_that_hangs_is_stopped_and_the_next_is_handled(
    settings: Settings, conn: Connection
) -> None:
    """C-33, C-54: a quarter of a run's time for each."""

    async def hangs(*_: Any) -> Any:
        await asyncio.Event().wait()

    async with kit.stage(replace(settings, sync_max_run_seconds=6.0), conn) as stage:
        link = await stage.link()
        stage.script.webhooks["d1"] = [hangs]
        await stage.deliver(link, "d1")
        await stage.deliver(link, "d2")
        await stage.work()
        assert await stage.keys(link) == ["d2"]
        assert (await stage.delivery("d1"))["error"]["code"] == "TIMEOUT"


async def test_a_run_whose_time_is_half_over_keeps_what_it_has_and_leaves_the_rest_to_a_follow_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-33: slow deliveries never come to nothing."""
    monkeypatch.setattr(drain, "ALL", 0.0)
    link = await stage.link()
    for n in range(3):
        await stage.deliver(link, f"d{n}")
    await stage.work()
    assert stage.script.of("webhook") == ["d0", "d1", "d2"]
    assert len(await stage.jobs(link)) == 3


async def test_a_token_that_takes_too_long_costs_no_delivery_that_was_handled(
    settings: Settings, conn: Connection
) -> None:
    """C-33: the refresh counts into the run's time; the rest is for the follow-up, with the new token."""
    async with kit.stage(replace(settings, sync_max_run_seconds=5.0), conn) as stage:
        link = await stage.link()
        stop = Stop()
        stage.script.webhooks["d2"] = [Unauthorized(message="401")]
        stage.script.grants = [stop.then(grant(refresh="rotated-9"))]
        for name in ("d1", "d2", "d3"):
            await stage.deliver(link, name)
        async with stage.working():
            await until(conn, "select count(*) = 1 from webhook_delivery where processed_at is not null")
            assert await stage.keys(link) == ["d1"]
            stop.go()
            await until(conn, "select not exists (select from webhook_delivery where processed_at is null)")
        assert stage.script.of("webhook").count("d1") == 1
        assert await stage.keys(link) == ["d1", "d2", "d3"]
        assert (await stage.delivery("d2"))["attempts"] == 0
        assert stage.script.of("refresh") == [REFRESH]


async def test_a_rate_limit_in_the_middle_keeps_what_was_done_and_waits_with_the_rest(stage: Stage) -> None:
    """C-42: nothing is handled twice, no start is lost, and the connection's other jobs wait, too."""
    link = await stage.link()
    stage.script.webhooks["d2"] = [RateLimited(message="slow", retry_after_seconds=300.0)]
    for name in ("d1", "d2", "d3"):
        await stage.deliver(link, name)
    await stage.work()
    assert await stage.keys(link) == ["d1"]
    assert await waiting(stage) == ["d2", "d3"]
    assert (await stage.delivery("d2"))["attempts"] == 0
    (job,) = await stage.jobs(link)
    assert (job["status"], job["attempts"]) == ("queued", 0)
    until_ = read_moment((await stage.sync_of(link))["cooldown_until"])
    assert until_
    assert timedelta(seconds=290) < until_ - datetime.now(UTC) <= timedelta(seconds=330)

    await connections.merge_sync(stage.conn, link.id, {}, remove=("cooldown_until",))
    await stage.make_due()
    await stage.work()
    assert stage.script.of("webhook") == ["d1", "d2", "d2", "d3"]
    assert await stage.keys(link) == ["d1", "d2", "d3"]


async def test_a_rate_limit_at_once_is_an_ordinary_bad_run(stage: Stage) -> None:
    """C-41, C-42: the job tells of it."""
    link = await stage.link()
    stage.script.webhooks["d1"] = [RateLimited(message="slow", retry_after_seconds=300.0)]
    await stage.deliver(link, "d1")
    await stage.work()
    (job,) = await stage.jobs(link)
    assert (job["status"], job["error"]["code"]) == ("queued", "RATE_LIMITED")
    assert "cooldown_until" in await stage.sync_of(link)


async def test_a_refused_token_is_refreshed_once_for_all_deliveries_of_a_run(stage: Stage) -> None:
    """C-43."""
    link = await stage.link()
    stage.script.webhooks["d1"] = [Unauthorized(message="401")]
    await stage.deliver(link, "d1")
    await stage.deliver(link, "d2")
    await stage.work()
    assert stage.script.tokens("webhook") == [ACCESS, "new-" + ACCESS, "new-" + ACCESS]
    assert len(stage.script.of("refresh")) == 1
    assert await stage.keys(link) == ["d1", "d2"]


async def test_a_token_that_is_refused_for_good_fails_the_job_and_no_delivery(stage: Stage) -> None:
    """C-43, C-49: they wait until somebody has connected the account anew."""
    link = await stage.link()
    stage.script.webhooks["d2"] = [Unauthorized(message="401")] * 2
    for name in ("d1", "d2", "d3"):
        await stage.deliver(link, name)
    await stage.work()
    (job,) = await stage.jobs(link)
    assert (job["status"], job["error"]["code"]) == ("failed", "UNAUTHORIZED")
    assert (await stage.now(link)).status == "error"
    assert await waiting(stage) == ["d1", "d2", "d3"]
    assert await drain.rescue(stage.service, stage.conn, now=datetime.now(UTC) + timedelta(hours=1)) == 0

    await connections.update_tokens_status(stage.conn, link.id, status="active")
    assert await drain.rescue(stage.service, stage.conn, now=datetime.now(UTC) + timedelta(hours=1)) == 1
    await stage.work()
    assert await stage.keys(link) == ["d1", "d2", "d3"]


async def test_a_refresh_that_is_refused_spoils_no_delivery_either(stage: Stage) -> None:
    """C-43, C-54: a permanent failure of the token is not one of the delivery."""
    link = await stage.link()
    stage.script.webhooks["d1"] = [Unauthorized(message="401")]
    stage.script.grants = [Permanent(message="revoked")]
    await stage.deliver(link, "d1")
    await stage.work()
    assert await waiting(stage) == ["d1"]
    assert (await stage.delivery("d1"))["error"] is None
    assert (await stage.now(link)).status == "error"


async def test_after_a_lost_worker_the_first_delivery_goes_alone_and_its_try_counts_beforehand(
    stage: Stage,
) -> None:
    """C-33, C-54: a delivery that kills its worker is parked like any other, and an innocent one is not."""
    link = await stage.link()
    for name in ("d1", "d2"):
        await stage.deliver(link, name)
    lost = 'update sync_jobs set error = \'{"code": "WORKER_LOST"}\''
    await stage.conn.execute(lost)
    await stage.conn.execute("update webhook_delivery set attempts = 4 where delivery_id = 'd1'")
    await stage.work()
    row = await stage.delivery("d1")
    assert (row["attempts"], row["error"]["code"]) == (5, "WORKER_LOST")
    assert row["processed_at"] is not None
    assert stage.script.of("webhook") == ["d2"]

    for name in ("d3", "d4"):
        await stage.deliver(link, name)
    await stage.conn.execute(lost + " where status = 'queued'")
    await stage.work()
    assert await stage.keys(link) == ["d2", "d3", "d4"]
    row = await stage.delivery("d3")
    assert (row["attempts"], row["error"]) == (1, None)
    assert len(await stage.jobs(link)) == 4


# -- a sync that is wanted -------------------------------------------------------------------------------


async def test_a_delivery_that_carries_no_data_adds_an_incremental_job(stage: Stage) -> None:
    """C-53: one for all of them, as urgent as a webhook."""
    link = await stage.link()
    stage.script.webhooks = {"d1": [WANTS], "d2": [WANTS]}
    stage.script.syncs = [page("a", cursor="c1")]
    await stage.deliver(link, "d1")
    await stage.deliver(link, "d2")
    await stage.work()
    (job,) = await stage.jobs(link, "incremental")
    assert (job["status"], job["priority"]) == ("succeeded", 50)
    assert await stage.keys(link) == ["a"]
    assert (await stage.sync_of(link))["cursor"] == "c1"


async def test_a_sync_that_waits_already_is_enough(stage: Stage) -> None:
    """C-53: it has not looked yet."""
    link = await stage.link()
    later = datetime.now(UTC) + timedelta(hours=1)
    job = await stage.add(link, run_at=later)
    stage.script.webhooks["d1"] = [WANTS]
    await stage.deliver(link, "d1")
    await stage.work()
    assert [row["id"] for row in await stage.jobs(link, "incremental")] == [job]
    assert "next_run_at" not in await stage.sync_of(link)


@pytest.mark.parametrize("planned", [None, "later", "overdue"])
async def test_a_sync_that_runs_may_have_looked_already_so_the_next_is_pulled_to_now(
    stage: Stage, planned: str | None
) -> None:
    """C-53, traps: one that is overdue stays where it is, and comes all the sooner."""
    now = datetime.now(UTC)
    times = {"later": now + timedelta(hours=1), "overdue": now - timedelta(hours=1)}
    sync = {"next_run_at": moment_text(times[planned])} if planned else {}
    link = await stage.link(metadata={"sync": sync})
    job = await stage.add(link)
    stop = Stop()
    stage.script.syncs = [stop.then(page("a"))]
    stage.script.webhooks["d1"] = [WANTS]
    async with stage.working():
        await stop.reached()
        await stage.deliver(link, "d1")
        await until(stage.conn, "select processed_at is not null from webhook_delivery")
        stop.go()
        await stage.until_job(job, "succeeded")
    assert len(await stage.jobs(link, "incremental")) == 1
    found = read_moment((await stage.sync_of(link))["next_run_at"])
    assert found
    if planned == "overdue":
        assert found == times["overdue"]
    else:
        assert timedelta() <= found - now < timedelta(minutes=1)


@pytest.mark.parametrize(("state", "pulled"), [("succeeded", True), ("failed", True), ("queued", False)])
async def test_a_sync_that_has_ended_since_it_was_found_is_not_enough(
    stage: Stage, state: str, pulled: bool
) -> None:
    """C-53: it was the twin a moment ago; the next tick adds another."""
    link = await stage.link()
    job = await stage.add(link)
    await stage.conn.execute("update sync_jobs set status = %s", (state,))

    class Twin:
        async def enqueue(self, *_: Any) -> Any:
            return SimpleNamespace(id=job, created=False)

    service = SimpleNamespace(store=Twin(), settings=stage.service.settings)
    run: Any = SimpleNamespace(service=service, item=lambda *_, **__: None)
    await drain._want_sync(stage.conn, run, link, NOON)
    assert (await stage.sync_of(link)).get("next_run_at") == (moment_text(NOON) if pulled else None)


# -- what is left behind ---------------------------------------------------------------------------------


async def test_the_duty_gives_a_job_to_deliveries_that_waited_for_more_than_a_minute(stage: Stage) -> None:
    """C-49: of active connections with a connector and no job; however often, one job each."""
    await catalogue.upsert(stage.conn, replace(FAKE, slug="nobody"))
    links = [await stage.link() for _ in range(3)]
    others = [
        await stage.link(status="paused"),
        await stage.link(provider="nobody"),
    ]
    for link in (*links, *others):
        await stage.deliver(link, f"d-{link.id}")
    await stage.conn.execute("delete from sync_jobs")
    duty = drain.duty(stage.service)
    assert (duty.name, await duty.run(stage.conn, "leader")) == ("stranded deliveries", 0)
    await stage.conn.execute("update webhook_delivery set received_at = now() - interval '61 s'")
    assert [await duty.run(stage.conn, "leader") for _ in range(2)] == [3, 0]
    await stage.work()
    for link in links:
        assert await stage.keys(link) == [f"d-{link.id}"]
    assert len(await waiting(stage)) == 2


async def test_the_duty_goes_through_more_connections_than_one_look_finds(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-49."""
    monkeypatch.setattr(drain, "BATCH", 2)
    for n in range(5):
        await stage.deliver(await stage.link(), f"d{n}")
    await stage.conn.execute("delete from sync_jobs")
    now = datetime.now(UTC) + timedelta(minutes=2)
    assert await drain.rescue(stage.service, stage.conn, now=now) == 5


async def test_deliveries_of_a_paused_connection_wait_until_it_goes_on(stage: Stage) -> None:
    """C-43, C-49: the job that was there is cancelled, and nothing is lost."""
    link = await stage.link()
    await stage.deliver(link, "d1")
    await connections.update_tokens_status(stage.conn, link.id, status="paused")
    await stage.deliver(link, "d2")
    await stage.work()
    assert [job["error"]["code"] for job in await stage.jobs(link)] == ["CANCELLED"]
    assert await waiting(stage) == ["d1", "d2"]
    await connections.update_tokens_status(stage.conn, link.id, status="active")
    assert await drain.rescue(stage.service, stage.conn, now=datetime.now(UTC) + timedelta(minutes=2)) == 1
    await stage.work()
    assert await stage.keys(link) == ["d1", "d2"]


async def test_a_job_without_any_delivery_has_nothing_to_do(stage: Stage) -> None:
    """C-49: somebody asked for one by hand."""
    link: Link = await stage.link()
    job = await stage.add(link, "webhook")
    await stage.work()
    assert (await stage.job(job))["status"] == "succeeded"
    assert await one(stage.conn, "select count(*) from sync_jobs") == 1
