"""A session becomes a version, events, a snapshot and messages: all of it, or nothing."""

from __future__ import annotations

import unicodedata

import pytest

from holdfast import Settings
from holdfast.apps.schedules import days
from holdfast.apps.schedules.canonical import day_of
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


@pytest.mark.parametrize("form", ["NFC", "NFD"])
async def test_messages_keep_the_accents_of_the_extracted_texts(settings: Settings, form: str) -> None:
    """S-34, S-49: the events, whose values are hashed, have none; what people read is composed."""

    def at(location: str, title: str = "Åsa Sjöberg Städservice", start: str = "09:00") -> dict[str, str]:
        texts = {"title": title, "location": location, "address": f"Kyrkvägen 3 431 37 {location}"}
        return entry(start) | {name: unicodedata.normalize(form, text) for name, text in texts.items()}  # type: ignore[arg-type]

    async with stage(settings) as here:
        molndal = day(at("Mölndal"))
        later = day(at("Mölndal", start="10:00"))
        await here.observe(molndal, later, day(), molndal, day(at("Åre")), day(at("Åre", "Örjan Ek HB")))
        messages = [one["message"] for one in await here.messages()]
        assert messages == [
            "New shift added on 2026-03-02 09:00–18:00 in Mölndal",  # noqa: RUF001
            "On 2026-03-02 Mölndal shift moved 09:00 → 10:00",
            "Shift removed on 2026-03-02 10:00–18:00 in Mölndal",  # noqa: RUF001
            "New shift added on 2026-03-02 09:00–18:00 in Mölndal",  # noqa: RUF001
            "On 2026-03-02 09:00 shift moved to Åre",
            "On 2026-03-02 shift updated for Örjan Ek",
        ]
        values = [
            row[side] for row in await here.events() for side in ("old_value", "new_value") if row[side]
        ]
        assert {value["city"] for value in values} == {"Molndal", "Are"}
        assert {value["customer_name"] for value in values} == {"Asa Sjoberg", "Orjan Ek"}
        async with here.app.database.connection() as conn:
            (change,) = (await days.compare(conn, USER, day_of(molndal), 4, 5)).changes  # type: ignore[arg-type]
            assert (await days.verify(conn)).found == 0
        assert change.old
        assert change.new
        names = ("customer_name", "street", "postal_area", "city")
        told = [tuple(getattr(side, name) for name in names) for side in (change.old, change.new)]
        assert told == [
            ("Åsa Sjöberg", "Kyrkvägen", "Mölndal", "Mölndal"),
            ("Åsa Sjöberg", "Kyrkvägen", "Åre", "Åre"),
        ]
