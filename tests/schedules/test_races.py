"""Races, zombies and crashes: each is made to happen, by a gate that the test holds."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast import Settings
from holdfast.apps.schedules import intake, process_queries
from holdfast.apps.schedules.canonical import lock_key
from holdfast.apps.schedules.intake import Picture
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from runtime.support import cut, until, until_true
from schedules.kit import AT_THE_GATE, DAY, USER, WAITING, Stage, Stop, day, entry, stage
from schedules.loops import loop

DATE = date.fromisoformat(DAY)
GIVEN_BACK = "select true from schedule_ingest.capture_attempt where outcome = 'released'"


async def done(here: Stage, *ids: UUID) -> None:
    """Waits until these sessions are done."""
    async with here.app.database.connection() as conn:
        for session in ids:
            await until(
                conn,
                "select true from schedule_ingest.capture_session where id = %s and state = 'done'",
                session,
            )


async def test_a_slow_worker_whose_lease_was_taken_changes_nothing_and_exactly_one_version_exists(
    settings: Settings,
) -> None:
    """S-11, S-14: it wakes when the other is done."""
    stop = Stop()
    async with stage(settings, heartbeat_seconds=60) as slow, stage(settings) as quick:
        session = await slow.capture(read=stop.then(day(entry("06:00"))))
        worker = slow.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        quick.script.steps[session] = day(entry("10:00"))
        await quick.take_over(session)
        before = (
            await quick.versions(),
            await quick.events(),
            await quick.snapshot(),
            await quick.messages(),
        )
        stop.go()
        await until_true(lambda: not worker.pumps[0].running)
        worker.stop()
        await running
        after = (await quick.versions(), await quick.events(), await quick.snapshot(), await quick.messages())
        assert after == before
        assert [row["payload"]["entries"][0]["start"] for row in await quick.versions()] == ["10:00"]
        assert await quick.outcomes(session) == ["lost", "done"]


async def test_a_slow_worker_whose_lease_was_taken_has_nothing_to_say_of_the_session(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """S-14: it failed to read what another has read, and neither tells nor counts that as a failure."""
    caplog.set_level("INFO")
    stop = Stop()

    async def fails(*_: Any) -> None:
        await stop.wait()
        raise RuntimeError("too late")

    async with stage(settings, heartbeat_seconds=60) as slow, stage(settings) as quick:
        session = await slow.capture(read=fails)
        worker = slow.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        await quick.take_over(session)
        stop.go()
        worker.stop()
        await running
        assert (await quick.session(session))["state"] == "done"
        ended = "select label from holdfast_pulse where ledger = 'capture_session' and fact = 'ended'"
        assert {row["label"] for row in await quick.rows(ended)} == {"done"}
    events = [getattr(record, "event", "") for record in caplog.records]
    assert events.count("session.processed") == 1
    assert "session.failed" not in events
    assert re.search("came too late: done|not ours any more: done", caplog.text)


async def test_a_session_that_killed_its_workers_is_told_as_failed(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """S-15, S-53: whoever fails it."""
    async with stage(settings, max_lost=1, lease_timeout_seconds=1, heartbeat_seconds=0.2) as here:
        session = await here.capture()
        await here.do(
            "update schedule_ingest.capture_session set state = 'processing', locked_by = 'gone/1',"
            " locked_at = now() - interval '1 hour'"
        )
        await here.do(
            "insert into schedule_ingest.capture_attempt values (%s, 1, 'gone', now() - interval '1 hour')",
            session,
        )
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await here.reaches(session, "failed")
        worker.stop()
        await running
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "session.failed"]
    assert (vars(told)["error.type"], vars(told)["error.stage"]) == ("worker_lost", "lifecycle")
    assert vars(told)["session_id"] == str(session)


async def test_two_sessions_of_one_day_at_once_give_versions_1_and_2_with_events_in_order_of_detection(
    settings: Settings,
) -> None:
    """S-30, S-43: both have read their pictures; the lock decides."""
    async with stage(settings) as here:
        one, two = Stop(), Stop()
        first = await here.capture(read=one.then(day(entry("10:00"))))
        second = await here.capture(read=two.then(day(entry("11:00"))))
        worker = here.worker(concurrency=2)
        running = asyncio.create_task(worker.run())
        await one.reached()
        await two.reached()
        one.go()
        two.go()
        await done(here, first, second)
        worker.stop()
        await running
        versions = await here.versions()
        assert [row["version"] for row in versions] == [1, 2]
        events = await here.events()
        assert [row["event_type"] for row in events] == ["shift_added", "shift_time_changed"]
        assert [row["source_session_id"] for row in events] == [row["session_id"] for row in versions]
        assert events[0]["detected_at"] < events[1]["detected_at"]


async def test_two_sessions_of_different_days_do_not_wait_for_each_other(
    settings: Settings, conn: Connection
) -> None:
    """S-30: the lock of one day is held by the test; the other day passes."""
    async with stage(settings) as here:
        async with conn.transaction():
            await conn.execute("select pg_advisory_xact_lock(%s)", (lock_key(USER, DATE),))
            held = await here.capture(read=day(entry()))
            free = await here.capture(read=day(entry(), date="2026-03-03"))
            worker = here.worker(concurrency=2)
            running = asyncio.create_task(worker.run())
            await done(here, free)
            assert (await here.session(held))["state"] == "processing"
        await done(here, held)
        worker.stop()
        await running


@pytest.mark.parametrize("patience", [0.2, 30.0], ids=["a statement's limit", "a lock's limit"])
async def test_a_session_whose_day_stays_locked_is_given_back_and_does_not_fail(
    settings: Settings, conn: Connection, patience: float
) -> None:
    """S-18, S-30: whoever holds the lock may stand still for long; that is no fault of the session."""
    async with stage(replace(settings, db_statement_timeout_seconds=patience)) as here:
        session = await here.capture(read=day(entry()))
        worker = here.worker(concurrency=1)
        async with conn.transaction():
            await conn.execute("select pg_advisory_xact_lock(%s)", (lock_key(USER, DATE),))
            running = asyncio.create_task(worker.run())
            await until(conn, GIVEN_BACK)
        await done(here, session)
        worker.stop()
        await running
        assert set((await here.outcomes(session))[:-1]) == {"released"}
        assert len(await here.versions()) == 1


async def test_a_session_that_somebody_keeps_locked_is_given_back_and_does_not_fail(
    settings: Settings, conn: Connection
) -> None:
    """S-18, S-19: a statement may take less time than a lock; that is no fault of the session either."""
    stop = Stop()
    async with stage(replace(settings, db_statement_timeout_seconds=0.5)) as here:
        session = await here.capture(read=stop.then(day(entry())))
        worker = here.worker(concurrency=1)
        running = asyncio.create_task(worker.run())
        await stop.reached()
        async with conn.transaction():
            await conn.execute(
                "select from schedule_ingest.capture_session where id = %s for key share", (session,)
            )
            stop.go()
            await until(conn, GIVEN_BACK)
        await done(here, session)
        worker.stop()
        await running
        assert set((await here.outcomes(session))[:-1]) == {"released"}
        assert len(await here.versions()) == 1


async def test_a_process_that_stands_still_in_its_last_transaction_loses_it_and_others_go_on(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """S-14, S-30: the server ends its silence, long before its lease is over; thawed, it begins anew."""
    await conn.execute(
        GATE.format(table="day_snapshot", verb="insert", when="new.user_id = 1")  # type: ignore[arg-type]
    )
    (tmp_path / "day.json").write_text(json.dumps(day(entry())))
    async with stage(settings) as here:
        await conn.execute("select pg_advisory_lock(7)")
        held = await here.capture(1)
        assert settings.database_url
        how: dict[str, Any] = {"fixture_path": tmp_path / "day.json", "lease_timeout_seconds": 300}
        with loop(settings.database_url, tmp_path, "frozen", **how) as frozen:
            await until(conn, AT_THE_GATE)
            frozen.freeze()
            await conn.execute("select pg_advisory_unlock(7)")
            waits = "select count(*) = 1 from pg_stat_activity where state = 'idle in transaction'"
            await until(conn, f"{waits} and datname = current_database()")
            try:
                with loop(settings.database_url, tmp_path, "other", **how) as other:
                    behind = await here.capture(1)
                    await done(here, behind)
                    assert other.stop() == 0
            finally:
                frozen.thaw()
            await done(here, held)
            assert frozen.stop() == 0
        *before, last = await here.outcomes(held)
        assert set(before) == {"released"}  # once, or again where it was thought dead as well
        assert last == "unchanged"
        assert (await here.outcomes(behind))[-1] == "done"


async def test_an_image_added_while_processing_is_not_lost(settings: Settings) -> None:
    """S-19: nothing is written, the session is released, and then read whole."""
    stop = Stop()
    async with stage(settings) as here:
        session = await here.capture(
            read=[stop.then(day(entry("06:00"))), day(entry("10:00"))], keys=["a.jpg"]
        )
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        async with here.app.database.connection() as conn:
            await intake.attach(conn, here.sessions, session, [Picture(r2_key="b.jpg")])
        stop.go()
        await done(here, session)
        worker.stop()
        await running
        assert here.script.asked == [(session, ("a.jpg",)), (session, ("a.jpg", "b.jpg"))]
        assert await here.outcomes(session) == ["released", "done"]
        assert [row["payload"]["entries"][0]["start"] for row in await here.versions()] == ["10:00"]


async def test_an_image_in_flight_at_the_finish_is_seen(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-19: it was inserted and not yet committed; the finish waits for it."""
    async with stage(settings) as here:
        watch = await connect()
        stop = Stop()
        session = await here.capture(
            read=[stop.then(day(entry("06:00"))), day(entry("10:00"))], keys=["a.jpg"]
        )
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        async with conn.transaction():
            await conn.execute(
                "insert into schedule_ingest.capture_image (session_id, sequence, r2_key)"
                " values (%s, 2, 'b.jpg')",
                (session,),
            )
            stop.go()
            await until(watch, WAITING)
        await done(here, session)
        worker.stop()
        await running
        assert [keys for _, keys in here.script.asked] == [("a.jpg",), ("a.jpg", "b.jpg")]
        assert await here.outcomes(session) == ["released", "done"]


STEPS = {
    "version": ("schedule_version", "insert", "true"),
    "event": ("schedule_event", "insert", "true"),
    "snapshot": ("day_snapshot", "insert", "true"),
    "message": ("schedule_notification", "insert", "true"),
    "finish": ("capture_session", "update", "new.state = 'done'"),
    "attempt": ("capture_attempt", "update", "new.outcome = 'done'"),
}
GATE = """
create function gate() returns trigger language plpgsql as $$
begin
    if {when} then perform pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7); end if;
    return new;
end $$;
create trigger zz_gate after {verb} on schedule_ingest.{table} for each row execute function gate();
"""
TABLES = ("schedule_version", "day_schedule", "schedule_event", "day_snapshot", "schedule_notification")


async def counts(conn: Connection) -> list[int]:
    return [
        (await (await conn.execute(f"select count(*) from schedule_ingest.{name}")).fetchall())[0][0]  # type: ignore[arg-type]
        for name in TABLES
    ]


@pytest.mark.parametrize("step", list(STEPS))
async def test_a_kill_at_each_step_leaves_nothing_and_the_next_worker_completes_it_once(
    settings: Settings, conn: Connection, connect: Any, tmp_path: Path, step: str
) -> None:
    """S-32, S-9: kill -9 of a real process that stands in the middle of its transaction."""
    table, verb, when = STEPS[step]
    await conn.execute(GATE.format(table=table, verb=verb, when=when))  # type: ignore[arg-type]
    (tmp_path / "day.json").write_text(json.dumps(day(entry(), entry("19:00", "20:00", "Annika Berg"))))
    async with stage(settings) as here:
        session = await here.capture()
        gate = await connect()
        await gate.execute("select pg_advisory_lock(7)")
        assert settings.database_url
        with loop(settings.database_url, tmp_path, "killed", fixture_path=tmp_path / "day.json") as first:
            await until(
                conn,
                AT_THE_GATE,
            )
            first.kill()
        await gate.execute("select pg_advisory_unlock(7)")
        await until(
            conn,
            "select count(*) = 0 from pg_stat_activity where datname = current_database()"
            " and application_name like 'holdfast%%' and state = 'active' and wait_event_type = 'Lock'",
        )
        await cut(conn)  # whoever is left over of the dead process
        assert await counts(conn) == [0, 0, 0, 0, 0]
        assert (await here.session(session))["state"] == "processing"
        with loop(settings.database_url, tmp_path, "next", fixture_path=tmp_path / "day.json") as second:
            await done(here, session)
            assert second.stop() == 0
        assert await counts(conn) == [1, 1, 2, 1, 2]
        assert await here.outcomes(session) == ["lost", "done"]


async def test_a_database_that_goes_away_in_the_final_transaction_costs_the_session_nothing(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-32: the connection is cut while it stands at the snapshot; the session is given back, not failed."""
    await conn.execute(GATE.format(table="day_snapshot", verb="insert", when="true"))  # type: ignore[arg-type]
    async with stage(settings) as here:
        gate = await connect()
        await gate.execute("select pg_advisory_lock(7)")
        session = await here.capture()
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        waiting = AT_THE_GATE
        pid = await until(conn, waiting)
        await conn.execute("select pg_terminate_backend(%s)", (pid,))
        await gate.execute("select pg_advisory_unlock(7)")
        await done(here, session)
        worker.stop()
        await running
        assert await here.outcomes(session) == ["released", "done"]
        assert len(await here.versions()) == 1


async def test_a_database_that_goes_away_at_the_finish_costs_the_session_nothing(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-32: the connection is cut while it writes that the session is done, after all else."""
    await conn.execute(GATE.format(table="capture_session", verb="update", when="new.state = 'done'"))  # type: ignore[arg-type]
    async with stage(settings) as here:
        gate = await connect()
        await gate.execute("select pg_advisory_lock(7)")
        session = await here.capture()
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        pid = await until(conn, AT_THE_GATE)
        await conn.execute("select pg_terminate_backend(%s)", (pid,))
        await gate.execute("select pg_advisory_unlock(7)")
        await done(here, session)
        worker.stop()
        await running
        assert await here.outcomes(session) == ["released", "done"]
        assert await counts(conn) == [1, 1, 1, 1, 1]


async def falls_silent(own: Connection, watch: Connection) -> None:
    """Says nothing until the server has ended the connection for it."""
    pid = own.info.backend_pid
    await until(watch, "select count(*) = 0 from pg_stat_activity where pid = %s", pid)


async def only_reads(own: Connection, _: Connection) -> None:
    """As it is with a server that has just become a standby."""
    await own.execute("set transaction read only")


@pytest.mark.parametrize("trouble", [falls_silent, only_reads])
async def test_a_process_that_stands_still_just_before_the_finish_costs_the_session_nothing(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch, trouble: Any
) -> None:
    """S-18, S-32: all was written but the end; the session is given back, not failed."""
    monkeypatch.setattr(process_queries, "LOCK", process_queries.LOCK.replace("10s", "200ms"))
    move_one, met = Store.move_one, list[str]()

    async def meets_trouble(self: Store, own: Any, move: Any) -> None:
        if not met:
            met.append(move.verb)
            await trouble(own, conn)
        await move_one(self, own, move)

    monkeypatch.setattr(Store, "move_one", meets_trouble)
    async with stage(settings) as here:
        session = await here.capture()
        await here.work()
        await here.work()
        assert met == ["finish"]
        assert await here.outcomes(session) == ["released", "done"]
        assert await counts(conn) == [1, 1, 1, 1, 1]
