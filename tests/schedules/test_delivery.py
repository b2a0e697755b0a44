"""Messages reach their users: an outbox that another service may drain, too."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast import Done, Settings
from holdfast.apps.schedules import days, senders, work
from holdfast.apps.schedules.ledger import NOTICES
from holdfast.apps.schedules.senders import Passing, Permanent
from holdfast.apps.schedules.values import Notice
from holdfast.db.pool import Connection
from holdfast.engine.values import Filter
from holdfast.errors import IllegalEdge, NotFound
from holdfast.runtime import courier
from runtime.support import PATIENCE, cut, until
from schedules.kit import AT_THE_GATE, USER, Stage, Stop, day, entry, stage
from schedules.loops import loop


@dataclass
class Post:
    """A sender that does as it is told: a step by message, else it sends; and what it sent."""

    steps: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    sent: list[str] = field(default_factory=list[str])
    tried: list[str] = field(default_factory=list[str])
    notices: list[Notice] = field(default_factory=list[Notice])

    async def send(self, notice: Notice) -> None:
        self.tried.append(notice.message)
        steps = self.steps.get(notice.message)
        step = steps.pop(0) if steps else None
        if isinstance(step, BaseException):
            raise step
        if isinstance(step, Stop):
            await step.wait()
        self.sent.append(notice.message)
        self.notices.append(notice)


async def put(here: Stage, *messages: str, user: int = USER) -> None:
    """Messages as the worker writes them, one after the other."""
    for message in messages:
        await here.do(
            "insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date,"
            " source_session_id, notification_type, message, event_ids, created_at)"
            " values (md5(%s), %s, '2026-03-02', gen_random_uuid(), 'event', %s, '[]', clock_timestamp())",
            f"{user} {message}",
            user,
            message,
        )


async def state(here: Stage) -> dict[str, tuple[str, bool]]:
    rows = await here.rows("select message, status, sent_at from schedule_ingest.schedule_notification")
    return {row["message"]: (row["status"], row["sent_at"] is not None) for row in rows}


async def tries(here: Stage) -> list[tuple[int, str | None, bool]]:
    rows = await here.rows(
        "select attempt, error, next_at is not null as again from schedule_ingest.notification_attempt"
        " order by tried_at, attempt"
    )
    return [(row["attempt"], row["error"], row["again"]) for row in rows]


async def deliver(here: Stage) -> None:
    await here.work(ledgers=[NOTICES])


async def hurry(here: Stage) -> None:
    """Lets the time pass that a try waits for."""
    await here.do("update schedule_ingest.notification_attempt set next_at = now() where next_at is not null")


# -- ends ------------------------------------------------------------------------------------------------


async def test_delivery_marks_sent_with_its_time_or_failed(settings: Settings) -> None:
    """S-50, S-51: and writes down each try."""
    post = Post(steps={"bad": [Permanent("nobody lives there")]})
    async with stage(settings, sender=post) as here:
        await put(here, "good", user=1)
        await put(here, "bad", user=2)
        await deliver(here)
        assert await state(here) == {"good": ("sent", True), "bad": ("failed", False)}
        assert await tries(here) == [(1, None, False), (1, "send_refused: nobody lives there", False)]


async def test_the_sender_gets_the_whole_notice(settings: Settings) -> None:
    """S-50: with the id that tells a repetition."""
    post = Post()
    async with stage(settings, sender=post) as here:
        (session,) = await here.observe(day(entry()))
        await deliver(here)
        ((row),) = await here.messages()
        (notice,) = post.notices
        (event,) = await here.events()
        assert (notice.id, notice.user_id, notice.session_id) == (row["notification_id"], USER, session)
        assert (notice.message, notice.event_ids) == (row["message"], (event["event_id"],))


async def test_a_passing_failure_is_tried_again_and_keeps_the_users_order(settings: Settings) -> None:
    """S-51: the later message of the same user waits with it; another user's does not."""
    post = Post(steps={"first": [Passing("busy")]})
    async with stage(settings, sender=post) as here:
        await put(here, "first", "second")
        await put(here, "other", user=7)
        await deliver(here)
        assert (post.tried, post.sent) == (["first", "other"], ["other"])
        assert await state(here) == {
            "first": ("pending", False),
            "second": ("pending", False),
            "other": ("sent", True),
        }
        await deliver(here)
        assert post.tried == ["first", "other"]  # its time has not come
        await hurry(here)
        await deliver(here)
        assert post.sent == ["other", "first", "second"]


async def test_the_waits_double_and_the_fifth_failure_is_the_last(settings: Settings) -> None:
    """S-51: 5, 10, 20, 40 s; then failed."""
    post = Post(steps={"m": [Passing("busy")] * 5})
    async with stage(settings, sender=post) as here:
        await put(here, "m")
        waits: list[float] = []
        for _ in range(4):
            await deliver(here)
            (row,) = await here.rows(
                "select extract(epoch from next_at - tried_at)::float8 as wait"
                " from schedule_ingest.notification_attempt order by attempt desc limit 1"
            )
            waits.append(row["wait"])
            await hurry(here)
        assert waits == [5, 10, 20, 40]
        await deliver(here)
        assert await state(here) == {"m": ("failed", False)}
        assert [again for _, _, again in await tries(here)] == [True] * 4 + [False]


async def test_a_failed_message_can_be_sent_again_by_a_person(settings: Settings) -> None:
    """S-51: resend is requeue, with all its tries; what was sent stays sent."""
    post = Post(steps={"m": [Permanent("x"), Passing("busy"), Passing("busy")]})
    async with stage(settings, sender=post) as here:
        await put(here, "m")
        await deliver(here)
        (row,) = await here.messages()
        async with here.app.database.connection() as conn:
            await here.notices.requeue(conn, row["notification_id"])
        for _ in range(3):
            await deliver(here)
            await hurry(here)
        assert await state(here) == {"m": ("sent", True)}
        assert [number for number, _, _ in await tries(here)] == [1, 2, 3, 4]
        async with here.app.database.connection() as conn:
            with pytest.raises(IllegalEdge):
                await here.notices.requeue(conn, row["notification_id"])
            with pytest.raises(NotFound):
                await here.notices.requeue(conn, "nobody")


async def test_what_waits_for_its_next_try_is_sent_at_once_when_a_person_asks(settings: Settings) -> None:
    """S-51: cancelled while it waited, then let go again."""
    post = Post(steps={"m": [Passing("busy", after=600)]})
    async with stage(settings, sender=post) as here:
        await put(here, "m")
        await deliver(here)
        (row,) = await here.messages()
        async with here.app.database.connection() as conn:
            await here.notices.cancel(conn, row["notification_id"])
            assert await state(here) == {"m": ("failed", False)}
            await here.notices.requeue(conn, row["notification_id"])
        await deliver(here)
        assert post.sent == ["m"]


async def test_rows_are_not_deleted(settings: Settings) -> None:
    """S-51: what was sent stays as a record."""
    async with stage(settings, sender=Post()) as here:
        await put(here, "a", "b")
        await deliver(here)
        assert len(await here.messages()) == 2


# -- two dispatchers -------------------------------------------------------------------------------------

FOREIGN = """\
select notification_id, message from schedule_ingest.schedule_notification
where status = 'pending' order by created_at, notification_id limit 1 for update skip locked
"""
MARK = """\
update schedule_ingest.schedule_notification set status = 'sent', sent_at = clock_timestamp()
where notification_id = %s
"""


async def foreign(conn: Connection, sent: list[str], stop: Callable[[], bool]) -> None:
    """Another service that drains the same table."""
    while not stop():
        async with conn.transaction():
            row = await (await conn.execute(FOREIGN)).fetchone()
            if row is not None:
                await asyncio.sleep(0)
                sent.append(row[1])
                await conn.execute(MARK, (row[0],))


async def test_holdfast_and_a_foreign_dispatcher_together_send_each_row_once(
    settings: Settings, connect: Any
) -> None:
    """S-50: the claim is a row lock that both respect."""
    post, theirs = Post(), list[str]()
    async with stage(settings, sender=post, delivery_batch=100) as one, stage(settings, sender=post) as two:
        for user in range(60):
            await put(one, f"message {user}", user=user)
        workers = [one.worker(ledgers=[NOTICES]), two.worker(ledgers=[NOTICES])]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        over = False
        other = asyncio.create_task(foreign(await connect(), theirs, lambda: over))
        await until(
            await connect(),
            "select count(*) = 0 from schedule_ingest.schedule_notification where status = 'pending'",
        )
        over = True
        await other
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        assert sorted([*post.sent, *theirs]) == sorted(f"message {user}" for user in range(60))
        assert post.sent
        assert theirs


async def test_a_row_that_is_being_sent_is_locked_and_the_users_next_one_waits(
    settings: Settings, connect: Any
) -> None:
    """S-50, S-51: neither a foreign dispatcher nor a second worker of ours passes it."""
    stop = Stop()
    post = Post(steps={"first": [stop]})
    async with stage(settings, sender=post) as here, stage(settings, sender=post) as second:
        await put(here, "first", "second")
        worker = here.worker(ledgers=[NOTICES])
        running = asyncio.create_task(worker.run())
        await stop.reached()
        other = await connect()
        async with other.transaction():
            found = await (await other.execute(FOREIGN)).fetchall()
            assert [message for _, message in found] == ["second"]
        await second.work(ledgers=[NOTICES])
        assert post.tried == ["first"]
        stop.go()
        await until(
            other, "select count(*) = 2 from schedule_ingest.schedule_notification where status = 'sent'"
        )
        worker.stop()
        await running
        assert post.sent == ["first", "second"]


async def test_a_dispatcher_that_stands_still_keeps_a_persons_rows_for_a_short_while_only(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-50, S-57: the server ends its transaction; then the person can be erased, and others can send."""
    monkeypatch.setattr(work, "SILENCE", 0.2)
    stop = Stop()

    async def frozen(*_: Any) -> Done:  # no time limit of its own: as a process that was stopped has none
        await stop.wait()
        return Done()

    post = Post()
    async with stage(settings, sender=post, delivery_timeout_seconds=0.3) as here:
        await put(here, "first", "second")
        await put(here, "another's", user=7)
        with monkeypatch.context() as first:
            first.setattr(senders, "deliver", frozen)
            worker = here.worker(ledgers=[NOTICES])
            running = asyncio.create_task(worker.run())
            await stop.reached()
        async with asyncio.timeout(PATIENCE):
            assert (await days.erase(conn, USER))["schedule_notification"] == 2
        worker.stop()
        stop.go()
        await running
        await deliver(here)
        assert post.sent == ["another's"]


async def test_a_crash_after_the_send_repeats_one_row_at_most(
    settings: Settings, conn: Connection, connect: Any, tmp_path: Path
) -> None:
    """S-50: kill -9 between the send and its commit; the file has that row twice, with one id."""
    await conn.execute(
        "create function gate() returns trigger language plpgsql as $$ begin"
        " perform pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7); return new; end $$"
    )
    await conn.execute(
        "create trigger zz_gate after update on schedule_ingest.schedule_notification"
        " for each row when (new.status = 'sent' and new.message = 'b') execute function gate()"
    )
    out = tmp_path / "sent.jsonl"
    async with stage(settings) as here:
        for user, message in enumerate("abc"):
            await put(here, message, user=user)
        gate = await connect()
        await gate.execute("select pg_advisory_lock(7)")
        how: dict[str, Any] = {"delivery": "file", "delivery_file": out, "delivery_poll_seconds": 1}
        assert settings.database_url
        with loop(settings.database_url, tmp_path, "killed", **how) as first:
            await until(
                conn,
                AT_THE_GATE,
            )
            first.kill()
        await gate.execute("select pg_advisory_unlock(7)")
        with loop(settings.database_url, tmp_path, "next", **how) as second:
            await until(
                conn, "select count(*) = 3 from schedule_ingest.schedule_notification where status = 'sent'"
            )
            assert second.stop() == 0
    told = [json.loads(line)["message"] for line in out.read_text().splitlines()]
    assert told == ["a", "b", "b", "c"]
    ids = [json.loads(line)["notification_id"] for line in out.read_text().splitlines()]
    assert ids[1] == ids[2]


async def test_a_message_whose_connection_is_lost_during_its_send_is_sent_once(
    settings: Settings, conn: Connection
) -> None:
    """S-50: the worker knows that it was sent, and says so when it has the row again."""
    stop = Stop()
    post = Post(steps={"m": [stop]})
    async with stage(settings, sender=post) as here:
        await put(here, "m")
        worker = here.worker(ledgers=[NOTICES])
        running = asyncio.create_task(worker.run())
        await stop.reached()
        assert await cut(conn, f"worker {NOTICES}")
        stop.go()
        await until(conn, "select true from schedule_ingest.schedule_notification where status = 'sent'")
        worker.stop()
        await running
        assert post.tried == ["m"]
        assert await tries(here) == [(1, None, False)]


@pytest.mark.parametrize(("times", "end"), [(1, ("sent", True)), (3, ("failed", False))])
async def test_a_message_is_sent_once_though_its_mark_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, times: int, end: tuple[str, bool]
) -> None:
    """S-50, S-51: the mark is tried again; refused for good, the message fails, and a person decides."""
    monkeypatch.setattr(courier, "REFUSED_WAIT", 0.02)
    post = Post()
    async with stage(settings, sender=post) as here:
        await here.do("create sequence refusals")
        await here.do(
            "create function refuse() returns trigger language plpgsql as $$ begin"
            f" if nextval('refusals') <= {times} then raise exception 'not now'; end if; return new; end $$"
        )
        await here.do(
            "create trigger zz_refuse before update on schedule_ingest.schedule_notification"
            " for each row when (new.status = 'sent') execute function refuse()"
        )
        await put(here, "m")
        await deliver(here)
        assert post.tried == ["m"]
        assert await state(here) == {"m": end}


# -- the worker ------------------------------------------------------------------------------------------


async def test_without_a_delivery_the_worker_leaves_the_outbox_alone(settings: Settings) -> None:
    """S-50: off is the default; another service delivers."""
    async with stage(settings) as here:
        await here.observe(day(entry()))
        await here.app.worker().run(until_idle=True)
        (row,) = await here.messages()
        assert row["status"] == "pending"
        assert await tries(here) == []


async def test_a_full_round_rests_before_the_next(settings: Settings) -> None:
    """S-50: after `DELIVERY_BATCH` messages a worker rests for `DELIVERY_POLL_SECONDS`."""
    post = Post()
    async with stage(settings, sender=post, delivery_batch=2, delivery_poll_seconds=3600.0) as here:
        for user in range(5):
            await put(here, f"m{user}", user=user)
        worker = here.worker(ledgers=[NOTICES])
        running = asyncio.create_task(worker.run())
        async with here.app.database.connection() as conn:
            await until(
                conn, "select count(*) = 2 from schedule_ingest.schedule_notification where status = 'sent'"
            )
            await here.notices.ring(conn)
            found = await here.notices.count(conn, Filter(states=("pending",)))
        await asyncio.sleep(0.1)
        assert post.sent == ["m0", "m1"]
        assert [count.rows for count in found] == [3]
        worker.stop()
        await running


async def test_a_message_that_nobody_can_read_fails_and_the_others_go_on(settings: Settings) -> None:
    """S-51: ids of events that are no ids, written by somebody else."""
    post = Post()
    async with stage(settings, sender=post) as here:
        await put(here, "odd", user=1)
        await here.do("update schedule_ingest.schedule_notification set event_ids = '[1]'")
        await put(here, "good", user=2)
        await deliver(here)
        assert await state(here) == {"odd": ("failed", False), "good": ("sent", True)}


async def test_a_stop_cuts_off_a_send_that_takes_too_long_and_writes_nothing(settings: Settings) -> None:
    """S-50, S-16: the row stays pending."""
    from dataclasses import replace

    stop = Stop()
    async with stage(replace(settings, shutdown_timeout=0.05), sender=Post(steps={"m": [stop]})) as here:
        await put(here, "m")
        worker = here.worker(ledgers=[NOTICES])
        running = asyncio.create_task(worker.run())
        await stop.reached()
        worker.stop()
        await running
        assert await state(here) == {"m": ("pending", False)}
        assert await tries(here) == []


def test_the_process_has_one_name(settings: Settings) -> None:
    """S-11: host, pid and chance."""
    from holdfast.runtime import presence

    assert f"-{os.getpid()}-" in presence.new_id()
    assert presence.new_id() != presence.new_id()
