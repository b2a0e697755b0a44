"""A session becomes a version, events, a snapshot and messages: all of it, or nothing."""

from __future__ import annotations

import pytest

from holdfast import Settings
from schedules.kit import DAY, USER, day, entry, stage


async def test_the_first_observation_adds_every_shift(settings: Settings) -> None:
    """S-42, S-31, S-48: one version, one event a shift, one message an event below the threshold."""
    async with stage(settings) as here:
        (session,) = await here.observe(day(entry(), entry("19:00", "20:00", "Annika Berg")))
        assert (await here.session(session))["state"] == "done"
        assert await here.outcomes(session) == ["done"]
        (version,) = await here.versions()
        assert (version["version"], version["session_id"]) == (1, session)
        assert [event["event_type"] for event in await here.events()] == ["shift_added", "shift_added"]
        assert len(await here.messages()) == 2
        snapshot = await here.snapshot()
        assert snapshot
        assert len(snapshot["snapshot_payload"]) == 2


async def test_an_equal_payload_inserts_no_version_and_the_session_is_done(settings: Settings) -> None:
    """S-31, S-42: also then the snapshot's source and time move."""
    async with stage(settings) as here:
        first, second = await here.observe(day(entry()), day(entry("9.00", "18 00")))
        assert len(await here.versions()) == 1
        assert len(await here.events()) == 1
        assert await here.outcomes(second) == ["unchanged"]
        snapshot = await here.snapshot()
        assert snapshot
        assert snapshot["source_session_id"] == second
        assert snapshot["updated_at"] > (await here.attempts(first))[0]["claimed_at"]


async def test_a_b_a_gives_three_versions(settings: Settings) -> None:
    """S-31, S-44: the latest version alone is compared; ten to eleven to ten to eleven is three events."""
    async with stage(settings) as here:
        ten, eleven = day(entry("10:00")), day(entry("11:00"))
        await here.observe(ten, eleven, ten, eleven)
        assert [row["version"] for row in await here.versions()] == [1, 2, 3, 4]
        assert [row["event_type"] for row in await here.events()] == [
            "shift_added",
            *["shift_time_changed"] * 3,
        ]
        assert len(await here.messages()) == 4
        (pointer,) = await here.rows(
            "select current_version from schedule_ingest.day_schedule"
            " where user_id = %s and schedule_date = %s",
            USER,
            DAY,
        )
        assert pointer["current_version"] == 4


async def test_an_iteration_ends_when_its_sessions_have_been_told(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """S-53: and each says which of its attempts it was, a requeued one, too."""
    caplog.set_level("INFO")
    async with stage(settings) as here:
        session = await here.capture(read=[RuntimeError("x"), day(entry())])
        await here.work()
        async with here.app.database.connection() as conn:
            await here.sessions.requeue(conn, session)
        caplog.clear()
        await here.work()
    told = [record for record in caplog.records if record.name == "holdfast.schedules"]
    events = [vars(record)["event"] for record in told]
    assert events.index("session.processed") < events.index("iteration.end")
    assert [vars(one)["attempt"] for one in told if vars(one)["event"] == "session.finalized"] == [2]
