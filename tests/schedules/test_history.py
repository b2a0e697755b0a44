"""What a day has been through: its versions, events, snapshot and messages, on the database."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import date, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from psycopg.sql import SQL, Identifier

from holdfast import Settings
from holdfast.apps.schedules import days, intake, verify
from holdfast.apps.schedules.canonical import MOST_ENTRIES
from holdfast.apps.schedules.intake import Picture
from holdfast.apps.schedules.noise import noisy
from holdfast.apps.schedules.values import Refusal
from holdfast.db.pool import Connection
from holdfast.errors import Conflict
from runtime.support import until, until_true
from schedules.kit import DAY, USER, WAITING, Stage, Stop, day, entry, stage

COMING = "2099-03-02"  # over nowhere on earth, so that each event must be told
EVICT_ALL = "select schedule_ingest.evict(now() + interval '1 day', 100000)"


async def kinds(here: Stage) -> list[str]:
    return [row["event_type"].removeprefix("shift_") for row in await here.events()]


async def is_true(here: Stage) -> None:
    """Replaying the events gives the snapshot, and all else that can be checked holds."""
    async with here.app.database.connection() as conn:
        report = await verify.verify(conn)
    assert report.problems == ()


# -- versions --------------------------------------------------------------------------------------------


async def test_twenty_noise_seeds_give_one_version_and_a_real_change_under_twenty_more_gives_exactly_two(
    settings: Settings,
) -> None:
    """S-21, S-31."""
    ten = day(
        entry("10:00"), entry("19:00", "20:30", "Annika Berg", "Mölndal", "Kyrkogatan 3 431 37 Mölndal")
    )
    eleven = day(
        entry("11:00"), entry("19:00", "20:30", "Annika Berg", "Mölndal", "Kyrkogatan 3 431 37 Mölndal")
    )
    async with stage(settings) as here:
        await here.observe(*(noisy(ten, seed) for seed in range(20)))
        assert len(await here.versions()) == 1
        await here.observe(*(noisy(eleven, seed) for seed in range(20, 40)))
        assert [row["version"] for row in await here.versions()] == [1, 2]
        assert await kinds(here) == ["added", "added", "time_changed"]
        await is_true(here)


async def test_one_session_never_has_two_versions(settings: Settings) -> None:
    """S-31: the session is looked for first; a version of its own stands already."""
    async with stage(settings) as here:
        (session,) = await here.observe(day(entry()))
        await _undo(here, session)
        here.script.steps[session] = day(entry("10:00"))
        await here.work()
        assert [(row["version"], row["session_id"]) for row in await here.versions()] == [(1, session)]
        assert (await here.session(session))["state"] == "done"


async def test_a_version_written_without_the_lock_is_told(settings: Settings) -> None:
    """S-31, S-30: somebody else's number is there, which the pointer does not know."""
    async with stage(settings) as here:
        (first,) = await here.observe(day(entry()))
        second = await here.capture(read=day(entry("10:00")))
        await here.do("alter table schedule_ingest.schedule_version disable trigger user")
        other = await here.capture(7, day(entry()))
        await here.do(
            "insert into schedule_ingest.schedule_version"
            " (user_id, schedule_date, version, session_id, payload, payload_hash)"
            " values (%s, %s, 2, %s, '{}', 'x')",
            USER,
            DAY,
            other,
        )
        await here.do("alter table schedule_ingest.schedule_version enable trigger user")
        await here.work(concurrency=1)
        assert str((await here.session(second))["error"]).startswith("version_conflict: ")
        assert (await here.session(first))["state"] == "done"


async def test_an_address_change_makes_a_version_and_an_event(settings: Settings) -> None:
    """S-28; a change of case in a title alone makes a version and no event."""
    async with stage(settings) as here:
        await here.observe(
            day(entry(address="Storgatan 3")),
            day(entry(address="Storgatan 5")),
            day(entry(address="Storgatan 5", title="MARIE SJÖBERG STÄDSERVICE")),
        )
        assert len(await here.versions()) == 3
        assert await kinds(here) == ["added", "relocated"]
        await is_true(here)


# -- events ----------------------------------------------------------------------------------------------


async def test_ten_to_eleven_to_ten_to_eleven_gives_three_events_and_three_messages(
    settings: Settings,
) -> None:
    """S-44: beside the first observation's own."""
    async with stage(settings) as here:
        ten, eleven = day(entry("10:00")), day(entry("11:00"))
        await here.observe(ten, eleven, ten, eleven)
        assert await kinds(here) == ["added", *["time_changed"] * 3]
        assert [row["message"] for row in await here.messages()][1:] == [
            "On 2026-03-02 Billdal shift moved 10:00 → 11:00",
            "On 2026-03-02 Billdal shift moved 11:00 → 10:00",
            "On 2026-03-02 Billdal shift moved 10:00 → 11:00",
        ]
        await is_true(here)


async def test_add_remove_add_gives_two_adds(settings: Settings) -> None:
    """S-44; an empty day removes every shift, S-41."""
    async with stage(settings) as here:
        await here.observe(day(entry()), day(), day(entry()))
        assert await kinds(here) == ["added", "removed", "added"]
        snapshot = await here.snapshot()
        assert snapshot
        assert len(snapshot["snapshot_payload"]) == 1
        await is_true(here)


async def test_two_equal_shifts_on_one_day_give_two_events(settings: Settings) -> None:
    """S-44; and one of two equal shifts moved gives one time change."""
    async with stage(settings) as here:
        await here.observe(day(entry(), entry()), day(entry(), entry("10:00")))
        assert await kinds(here) == ["added", "added", "time_changed"]
        assert len(await here.messages()) == 3
        await is_true(here)


async def test_a_spelling_wobble_changes_neither_snapshot_nor_events(settings: Settings) -> None:
    """S-46: `Bi11dal` for `Billdal` makes a version, and nothing else."""
    async with stage(settings) as here:
        await here.observe(day(entry()))
        before, events = await here.snapshot(), await here.events()
        await here.observe(day(entry(location="Bi11dal", address="Valebergsvägen 3I6")))
        after = await here.snapshot()
        assert before
        assert after
        assert after["snapshot_payload"] == before["snapshot_payload"]
        assert await here.events() == events
        assert len(await here.versions()) == 2
        await is_true(here)


async def test_an_unchanged_session_still_moves_the_snapshots_source_and_time(settings: Settings) -> None:
    """S-42, S-43: to a later time than the last."""
    async with stage(settings) as here:
        await here.observe(day(entry()))
        before = await here.snapshot()
        (second,) = await here.observe(day(entry()))
        after = await here.snapshot()
        assert before
        assert after
        assert after["source_session_id"] == second
        assert after["updated_at"] > before["updated_at"]


async def test_the_time_of_detection_never_goes_back(settings: Settings) -> None:
    """S-43: also when the snapshot's time lies ahead of the clock."""
    async with stage(settings) as here:
        await here.observe(day(entry()))
        await here.do("update schedule_ingest.day_snapshot set updated_at = now() + interval '1 hour'")
        ahead = await here.snapshot()
        await here.observe(day(entry("10:00")))
        assert ahead
        assert (await here.events())[-1]["detected_at"] == ahead["updated_at"] + timedelta(milliseconds=1)


async def _undo(here: Stage, session: UUID) -> None:
    """Makes a session pending again that was done, as no rule allows: as after a restore of half the rows."""
    await here.do("alter table schedule_ingest.capture_session disable trigger user")
    await here.do("update schedule_ingest.capture_session set state = 'pending' where id = %s", session)
    await here.do("alter table schedule_ingest.capture_session enable trigger user")
    await here.do("delete from schedule_ingest.capture_attempt where session_id = %s", session)


async def test_a_rerun_of_a_session_adds_no_event_and_no_notification(settings: Settings) -> None:
    """S-44, S-45, S-48: even where the snapshot was lost in between."""
    async with stage(settings) as here:
        (session,) = await here.observe(day(entry(), entry(), entry("19:00", "20:00", "Annika Berg")))
        before = (await here.versions(), await here.events(), await here.messages())
        for lose in ("select 1", "delete from schedule_ingest.day_snapshot"):
            await _undo(here, session)
            await here.do(lose)
            await here.work()
            assert (await here.session(session))["state"] == "done"
            assert (await here.versions(), await here.events(), await here.messages()) == before
        await is_true(here)


# -- late sessions ---------------------------------------------------------------------------------------


async def test_an_older_session_that_is_requeued_does_not_turn_the_day_back(settings: Settings) -> None:
    """S-47: failed, or cancelled before anybody took it; attempt `superseded`, nothing changed."""
    async with stage(settings) as here:
        failed = await here.capture(read=[RuntimeError("x"), day(entry("06:00"))])
        await here.work()
        cancelled = await here.capture(read=day(entry("07:00")))
        async with here.app.database.connection() as conn:
            await here.sessions.cancel(conn, cancelled)
        await here.observe(day(entry("10:00")))
        before = (await here.versions(), await here.events(), await here.snapshot(), await here.messages())
        async with here.app.database.connection() as conn:
            await here.sessions.requeue(conn, failed)
            await here.sessions.requeue(conn, cancelled)
        await here.work()
        after = (await here.versions(), await here.events(), await here.snapshot(), await here.messages())
        assert after == before
        assert await here.outcomes(failed) == ["failed", "superseded"]
        assert await here.outcomes(cancelled) == ["failed", "superseded"]
        assert (await here.session(failed))["state"] == "done"


async def test_an_older_session_that_is_reclaimed_does_not_turn_the_day_back(settings: Settings) -> None:
    """S-47."""
    stop = Stop()
    async with stage(settings, heartbeat_seconds=60) as slow, stage(settings) as quick:
        session = await slow.capture(read=stop.then(day(entry("06:00"))))
        worker = slow.worker(concurrency=1)
        running = asyncio.create_task(worker.run())
        await stop.reached()
        await quick.observe(day(entry("10:00")))
        quick.script.steps[session] = day(entry("06:00"))
        await quick.take_over(session)
        assert await quick.outcomes(session) == ["lost", "superseded"]
        stop.go()
        worker.stop()
        await running
        assert len(await quick.versions()) == 1


async def test_an_older_session_that_another_service_lost_does_not_turn_the_day_back(
    settings: Settings,
) -> None:
    """S-47, S-8: whoever held it was a worker, too, and is noted as one that was lost."""
    async with stage(settings) as here:
        older = await here.capture(read=day(entry("06:00")))
        await here.do(
            "update schedule_ingest.capture_session"
            " set state = 'processing', locked_by = 'bot', locked_at = now()"
        )
        await here.observe(day(entry("10:00")))
        await here.do("update schedule_ingest.capture_session set locked_at = null where id = %s", older)
        await here.work()
        assert await here.outcomes(older) == ["lost", "superseded"]
        assert [row["payload"]["entries"][0]["start"] for row in await here.versions()] == ["10:00"]


RETURNS = "update schedule_ingest.capture_session set state = 'pending' where id = %s"


@pytest.mark.parametrize("who", ["a person", "the other service"])
async def test_an_older_session_that_another_service_called_off_does_not_turn_the_day_back(
    settings: Settings, who: str
) -> None:
    """S-47: it was never claimed, and no attempt told that it had ended; whoever lets it run again."""
    async with stage(settings) as here:
        older = await here.capture(read=day(entry("06:00")))
        await here.do("update schedule_ingest.capture_session set state = 'failed' where id = %s", older)
        await here.observe(day(entry("10:00")))
        if who == "a person":
            async with here.app.database.connection() as conn:
                await here.sessions.requeue(conn, older)
        else:
            await here.do(RETURNS, older)
        await here.work()
        assert await here.outcomes(older) == ["failed", "superseded"]
        assert [row["payload"]["entries"][0]["start"] for row in await here.versions()] == ["10:00"]


@pytest.mark.parametrize("who", ["a person", "the other service"])
async def test_whoever_requeues_a_session_the_count_of_lost_workers_begins_anew(
    settings: Settings, who: str
) -> None:
    """S-15, S-16: also where the last attempt was a release, which ends no row of lost ones."""
    async with stage(settings, max_lost=3) as here:
        session = await here.capture()
        for number, outcome in enumerate(("lost", "lost", "released"), start=1):
            await here.do(
                "insert into schedule_ingest.capture_attempt values (%s, %s, 'w', now(), now(), %s)",
                session,
                number,
                outcome,
            )
        await here.do("update schedule_ingest.capture_session set state = 'failed'")
        if who == "a person":
            async with here.app.database.connection() as conn:
                await here.sessions.requeue(conn, session)
        else:
            await here.do(RETURNS, session)
        await here.do("update schedule_ingest.capture_session set state = 'processing', locked_by = 'bot'")
        await here.work()
        assert await here.outcomes(session) == ["lost", "lost", "released", "failed", "lost", "done"]


@pytest.mark.parametrize("ahead", ["infinity", "20000-01-01", "9999-12-31 23:59:59.999999"])
async def test_a_snapshot_of_no_calendar_does_not_stop_its_day(settings: Settings, ahead: str) -> None:
    """S-43: a time that is days ahead is nobody's clock."""
    async with stage(settings) as here:
        await here.observe(day(entry()))
        await here.do(f"update schedule_ingest.day_snapshot set updated_at = '{ahead}'")
        await here.do("update schedule_ingest.capture_session set created_at = '-infinity'")
        (session,) = await here.observe(day(entry("10:00")))
        assert (await here.session(session))["state"] == "done"
        assert await kinds(here) == ["added", "time_changed"]


async def test_what_is_noticed_after_a_clock_was_days_ahead_is_replayed_after_it(settings: Settings) -> None:
    """S-43, S-46: events stay as they are, so those of today come later, however early it is now."""
    async with stage(settings) as here:
        await here.observe(day(entry("09:00")))
        for table, column in (
            ("schedule_event", "detected_at"),
            ("schedule_version", "created_at"),
            ("day_snapshot", "updated_at"),
        ):
            await here.do(f"alter table schedule_ingest.{table} disable trigger user")
            await here.do(f"update schedule_ingest.{table} set {column} = {column} + interval '3 days'")
            await here.do(f"alter table schedule_ingest.{table} enable trigger user")
        times = [row["detected_at"] for row in await here.events()]
        for start in ("10:00", "10:00", "11:00"):
            await here.observe(day(entry(start)))
            snapshot = await here.snapshot()
            assert snapshot
            times.append(snapshot["updated_at"])
        assert times == sorted(set(times))
        await is_true(here)


@pytest.mark.parametrize("created", ["infinity", "-infinity", "20000-01-01", "0001-01-01 BC"])
async def test_a_session_of_no_calendar_is_processed(settings: Settings, created: str) -> None:
    """S-10: rows of others may have such times."""
    async with stage(settings) as here:
        session = await here.capture(read=day(entry()))
        await here.do(f"update schedule_ingest.capture_session set created_at = '{created}'")
        await here.app.worker(ledgers=["capture_session"], stores=here.hasty).run(until_idle=True)
        (found,) = await here.rows("select id, state::text, error from schedule_ingest.capture_session")
        assert found == {"id": session, "state": "done", "error": None}


async def test_a_session_that_was_only_released_is_not_late(settings: Settings) -> None:
    """S-47, S-16: an orderly stop in between does not count."""
    stop = Stop()
    async with stage(replace(settings, shutdown_timeout=0.05)) as here:
        older = await here.capture(read=[stop.then(day(entry("06:00"))), day(entry("06:00"))])
        worker = here.worker(concurrency=1)
        running = asyncio.create_task(worker.run())
        await stop.reached()
        worker.stop()
        await running
        await here.do("update schedule_ingest.capture_session set state = 'processing', locked_at = now()")
        await here.observe(day(entry("10:00")))
        await here.do(
            "update schedule_ingest.capture_session set state = 'pending', locked_at = null where id = %s",
            older,
        )
        await here.work()
        assert await here.outcomes(older) == ["released", "done"]
        assert [row["payload"]["entries"][0]["start"] for row in await here.versions()] == ["10:00", "06:00"]


async def test_among_first_attempts_the_lock_decides(settings: Settings) -> None:
    """S-47: a slow older session that was never tried before is an observation like any other."""
    stop = Stop()
    async with stage(settings) as here:
        older = await here.capture(read=stop.then(day(entry("06:00"))))
        younger = await here.capture(read=day(entry("10:00")))
        worker = here.worker(concurrency=2)
        running = asyncio.create_task(worker.run())
        await stop.reached()
        await here.reaches(younger, "done")
        stop.go()
        await here.reaches(older, "done")
        worker.stop()
        await running
        assert [row["session_id"] for row in await here.versions()] == [younger, older]


# -- messages --------------------------------------------------------------------------------------------


async def test_three_events_give_one_summary_and_only_pending_rows_are_inserted_by_the_worker(
    settings: Settings,
) -> None:
    """S-48: the threshold is a setting."""
    lines = [entry(f"{hour:02}:00", f"{hour:02}:30", f"Customer {hour}") for hour in (8, 9, 10)]
    async with stage(settings) as here:
        await here.observe(
            day(*lines[:2]), day(*lines[:2], date="2026-03-03"), day(*lines, date="2026-03-04")
        )
        found = await here.messages()
        assert [row["notification_type"] for row in found] == ["event"] * 4 + ["summary"]
        assert found[-1]["message"] == "3 shifts updated on 2026-03-04"
        assert len(found[-1]["event_ids"]) == 3
        assert {(row["status"], row["sent_at"]) for row in found} == {("pending", None)}


async def test_the_messages_of_a_session_come_in_the_order_of_the_day(settings: Settings) -> None:
    """S-49, S-50: delivery goes by their time, which is the order of their events."""
    lines = [entry(f"{hour:02}:00", f"{hour:02}:30", f"Customer {hour}") for hour in range(6, 20)]
    async with stage(settings, summary_threshold=99) as here:
        await here.observe(day(*reversed(lines)))
        told = [row["message"] for row in await here.messages()]
        times = [f"{hour:02}:00\u2013{hour:02}:30" for hour in range(6, 20)]
        assert told == [f"New shift added on {DAY} {time} in Billdal" for time in times]


async def test_a_clock_that_went_back_does_not_mix_the_messages_of_two_sessions(settings: Settings) -> None:
    """S-43, S-51: however many there are; and none is taken for one whose events were evicted."""
    first, second = (
        [
            entry(f"{n // 10:02}:{n % 10:02}", end, f"{title} {n}", f"{title} {n}", None)
            for n in range(MOST_ENTRIES)
        ]
        for end, title in (("22:00", "Customer"), ("23:00", "Another"))
    )
    async with stage(settings, summary_threshold=1000) as here:
        await here.observe(day(date=COMING))
        await here.do("update schedule_ingest.day_snapshot set updated_at = now() + interval '1 hour'")
        sessions = await here.observe(day(*first, date=COMING), day(*second, date=COMING))
        ((gone,),) = [tuple(row.values()) for row in await here.rows(EVICT_ALL)]
        assert gone == 3 * MOST_ENTRIES
        sessions += await here.observe(day(second[0], date=COMING))
        told = [row["source_session_id"] for row in await here.messages()]
        assert [(key, len(list(group))) for key, group in groupby(told)] == [
            (sessions[0], MOST_ENTRIES),
            (sessions[1], 2 * MOST_ENTRIES),
            (sessions[2], MOST_ENTRIES - 1),
        ]
        await is_true(here)


async def test_no_message_for_a_day_that_is_over_and_the_events_are_still_recorded(
    settings: Settings,
) -> None:
    """S-56: by the calendar of the time zone that is set; without one all are told."""
    async with stage(settings, timezone="Pacific/Kiritimati") as here:
        ((today,),) = [
            tuple(row.values())
            for row in await here.rows("select (now() at time zone 'Pacific/Kiritimati')::date as today")
        ]
        for offset in (-1, 0, 1):
            await here.observe(day(entry(), date=(today + timedelta(days=offset)).isoformat()))
        assert [row["message"] for row in await here.messages()] == [
            "New shift added today 09:00–18:00 in Billdal",  # noqa: RUF001
            "New shift added tomorrow 09:00–18:00 in Billdal",  # noqa: RUF001
        ]
        assert len(await here.rows("select 1 from schedule_ingest.schedule_event")) == 3


# -- confinement -----------------------------------------------------------------------------------------


async def test_users_never_see_each_others_days(settings: Settings) -> None:
    """S-57, S-6: two users with the same day have nothing in common."""
    async with stage(settings) as here:
        await here.observe(day(entry("10:00")), user=1)
        await here.observe(day(entry("10:00")), day(entry("11:00")), user=2)
        assert [row["version"] for row in await here.versions(1)] == [1]
        assert [row["version"] for row in await here.versions(2)] == [1, 2]
        async with here.app.database.connection() as conn:
            assert (await days.erase(conn, 2))["schedule_version"] == 2
        for table in (
            "capture_session",
            "schedule_version",
            "day_schedule",
            "day_snapshot",
            "schedule_event",
        ):
            (left,) = await here.rows(
                f"select array_agg(distinct user_id) as who from schedule_ingest.{table}"
            )
            assert left["who"] == [1]
        await is_true(here)


async def test_a_user_that_is_erased_while_a_session_is_read_stays_erased(settings: Settings) -> None:
    """S-57, S-14: the run finds its session gone and writes nothing."""
    stop = Stop()
    async with stage(settings) as here:
        await here.capture(read=stop.then(day(entry())))
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        await stop.reached()
        async with here.app.database.connection() as conn:
            await days.erase(conn, USER)
        stop.go()
        await until_true(lambda: not worker.pumps[0].running)
        worker.stop()
        await running
        for table in (
            "capture_session",
            "capture_attempt",
            "schedule_version",
            "day_snapshot",
            "schedule_event",
        ):
            assert await here.rows(f"select 1 from schedule_ingest.{table}") == []


# -- bad input -------------------------------------------------------------------------------------------

BAD: list[tuple[str, Any, str]] = [
    ("no object", [1], "payload_not_object: "),
    ("no date", {"entries": []}, "schedule_date_invalid: "),
    ("no such date", day(date="2026-02-30"), "schedule_date_invalid: "),
    ("another spelling", day(date="02/03/2026"), "schedule_date_invalid: "),
    ("no list", {"schedule_date": DAY, "entries": {}}, "entries_invalid: "),
    ("no entry", {"schedule_date": DAY, "entries": [3]}, "entries_invalid: "),
    ("no time", day(entry("noon")), "time_invalid: "),
    ("25 hours", day(entry(), entry("09:00", "25:00")), "time_invalid: "),
    ("blank title", day(entry(title="  ")), "field_blank: "),
    ("blank place", day(entry(location="")), "field_blank: "),
    ("raises", ValueError("boom"), "extractor_error: ValueError: boom"),
    ("exits", SystemExit(3), "extractor_error: SystemExit: 3"),
    ("refuses with no text", Refusal(404, None), "404: None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("what", "read", "error"), BAD, ids=[what for what, _, _ in BAD])
async def test_each_bad_input_fails_its_session_writes_nothing_else_and_the_next_is_processed(
    settings: Settings, what: str, read: Any, error: str
) -> None:
    """S-18, S-20, S-13: section 4."""
    async with stage(settings) as here:
        bad = await here.capture(1, read)
        good = await here.capture(2, day(entry()))
        await here.work(concurrency=1)
        found = await here.session(bad)
        assert found["state"] == "failed"
        assert str(found["error"]).startswith(error)
        assert (found["locked_by"], found["locked_at"]) == (None, None)
        assert await here.versions(1) == []
        assert await here.rows("select 1 from schedule_ingest.schedule_event where user_id = 1") == []
        assert (await here.session(good))["state"] == "done"


@pytest.mark.parametrize(
    ("module", "function", "failed"), [("observe", "notices", "diff"), ("process", "canonical", "layout")]
)
async def test_a_mistake_of_ours_fails_the_session_alone_and_is_told(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    function: str,
    failed: str,
) -> None:
    """S-53, S-18: with the stage that failed, and its trace in the log only."""

    def broken(*_: Any, **__: Any) -> None:
        raise ArithmeticError("two and two")

    async with stage(settings) as here:
        monkeypatch.setattr(f"holdfast.apps.schedules.{module}.{function}", broken)
        (session,) = await here.observe(day(entry()))
        assert (await here.session(session))["error"] == "internal_error: ArithmeticError: two and two"
        assert await here.versions() == []
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "session.failed"]
    assert (vars(told)["error.stage"], vars(told)["error.type"]) == (failed, "internal_error")


async def test_a_session_that_is_read_for_too_long_fails(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S-53: the stage is the one at which it was."""
    from holdfast.apps.schedules import process

    monkeypatch.setattr(process, "LONGEST_RUN", 0.05)
    async with stage(settings) as here:
        session = await here.capture(read=Stop().then(day(entry())))
        await here.work()
        assert str((await here.session(session))["error"]).startswith("timed_out: ")
    (told,) = [record for record in caplog.records if getattr(record, "event", "") == "session.failed"]
    assert vars(told)["error.stage"] == "ocr"


@pytest.mark.parametrize("name", ["uq_capture_image_session_sequence", "AK_image_sequence"])
async def test_a_number_that_another_service_takes_at_the_same_time_is_not_ours(
    settings: Settings, conn: Connection, connect: Any, name: str
) -> None:
    """S-3: our picture gets the next one, whatever name the owner has given the constraint."""
    rename = "alter table schedule_ingest.capture_image rename constraint {} to {}"
    own, key = Identifier("uq_capture_image_session_sequence"), Identifier("capture_image_r2_key_key")
    if Identifier(name) != own:
        await conn.execute(SQL(rename).format(own, Identifier(name)))
        await conn.execute(SQL(rename).format(key, Identifier("AK_image_key")))
    async with stage(settings) as here:
        session = await here.capture(keys=["one"])
        watch = await connect()
        async with conn.transaction():
            await conn.execute(
                "insert into schedule_ingest.capture_image (session_id, sequence, r2_key)"
                " values (%s, 2, 'theirs')",
                (session,),
            )

            async def ours() -> None:
                async with here.app.database.connection() as own:
                    await intake.attach(own, here.sessions, session, [Picture(r2_key="ours")])

            adding = asyncio.create_task(ours())
            await until(watch, WAITING)
        await adding
        rows = await here.rows("select sequence, r2_key from schedule_ingest.capture_image order by 1")
        assert [(row["sequence"], row["r2_key"]) for row in rows] == [(1, "one"), (2, "theirs"), (3, "ours")]
        with pytest.raises(Conflict, match="the picture of r2_key 'ours': is there already"):
            await ours()


async def test_what_the_database_refuses_each_time_fails_the_session(settings: Settings) -> None:
    """S-18: a full disk is no passing fault: it would be tried without end."""
    async with stage(settings) as here:
        await here.do(
            "create function full() returns trigger language plpgsql as"
            " $$ begin raise exception 'no space' using errcode = '53100'; end $$"
        )
        await here.do(
            "create trigger zz_full before insert on schedule_ingest.schedule_event"
            " for each row execute function full()"
        )
        (session,) = await here.observe(day(entry()))
        assert str((await here.session(session))["error"]).startswith("db_error: DiskFull: no space")
        assert await here.outcomes(session) == ["failed"]


async def test_a_fixture_that_is_missing_fails_the_session(settings: Settings, tmp_path: Path) -> None:
    """S-20: `fixture_missing`; with the file there the next one passes."""
    path = tmp_path / "day.json"
    async with stage(settings, extractor="fixture", fixture_path=path) as here:
        first = await here.capture()
        await here.work()
        assert str((await here.session(first))["error"]).startswith("fixture_missing: ")
        path.write_text("{")
        second = await here.capture()
        await here.work()
        assert str((await here.session(second))["error"]).startswith("payload_not_json: ")


async def test_random_days_are_replayed_to_their_snapshot_from_the_rows(settings: Settings) -> None:
    """S-46: on the database; `tests/schedules/test_replay.py` has five hundred without one."""
    draw = random.Random(7)
    names = ["Marie Sjöberg", "Annika Berg", "Skolan i Kungsbacka", "Kontor AB"]
    async with stage(replace(settings), summary_threshold=2) as here:
        reads: list[Any] = []
        for _ in range(25):
            lines = [
                entry(f"{draw.randint(6, 12):02}:00", f"{draw.randint(13, 23):02}:00", draw.choice(names))
                for _ in range(draw.randint(0, 4))
            ]
            reads.append(day(*lines))
        await here.observe(*reads)
        await is_true(here)
        async with here.app.database.connection() as conn:
            known = await days.day(conn, USER, date.fromisoformat(DAY))
            rebuilt = await days.rebuild(conn, USER, date.fromisoformat(DAY))
        assert rebuilt.shifts == known.shifts
