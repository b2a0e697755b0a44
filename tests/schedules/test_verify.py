"""Whether the record is true: each way in which it may not be is found, and nothing else (S-54, S-46)."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pytest

from conftest import Connect
from holdfast.apps.schedules import days, verify
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, NotFound
from schedules.recorded import DAY, all_of, at, entry, forge, observe

ANA, BO = 42, 43
SPECIAL = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


async def some(conn: Connection) -> None:
    """Two days of a user, of which one has changed twice, and one of another."""
    await observe(conn, ANA, [entry("09:00"), entry("12:00", title="Bo Ek")], at=at(0))
    await observe(conn, ANA, [entry("10:00"), entry("12:00", title="Bo Ek")], at=at(1))
    await observe(conn, ANA, [entry("09:00"), entry("12:00", title="Bo Ek")], at=at(2))
    await observe(conn, ANA, [entry("09:00")], at=at(3), day=date(2026, 3, 3))
    await observe(conn, BO, [entry("07:00"), entry("08:00", title="C"), entry("09:00", title="D")])


async def found(conn: Connection) -> list[str]:
    """What is not true, as sentences."""
    report = await days.verify(conn)
    assert report.found == len(report.problems)
    assert {(one.user_id, one.schedule_date) for one in report.problems} <= {(ANA, DAY)}
    return [one.what for one in report.problems]


async def test_a_true_record_is_found_true(conn: Connection) -> None:
    """S-54: and all of it was read."""
    await some(conn)
    report = await days.verify(conn)
    assert (report.days, report.versions, report.events, report.notifications) == (3, 5, 8, 6)
    assert (report.found, report.problems) == (0, ())
    mine = await days.verify(conn, user_id=ANA)
    assert (mine.days, mine.versions, mine.found) == (2, 4, 0)
    one = await days.verify(conn, user_id=ANA, day=DAY)
    assert (one.days, one.versions, one.events, one.found) == (1, 3, 4, 0)


async def test_a_day_without_a_record_is_not_found_and_one_without_a_user_is_refused(
    conn: Connection,
) -> None:
    await some(conn)
    with pytest.raises(NotFound):
        await days.verify(conn, user_id=BO, day=date(2026, 3, 3))
    with pytest.raises(InvalidInput, match="user_id"):
        await days.verify(conn, day=DAY)
    assert (await days.verify(conn, user_id=99)).days == 0


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        (
            "update schedule_ingest.day_snapshot set snapshot_payload = '[]'",
            "the snapshot lacks 09:00 to 18:00 Marie Sjoberg, 12:00 to 18:00 Bo Ek",
        ),
        (
            "update schedule_ingest.day_snapshot"
            " set snapshot_payload = snapshot_payload || (snapshot_payload -> 0)",
            "the snapshot has 09:00 to 18:00 Marie Sjoberg, which no event has brought",
        ),
        ("""update schedule_ingest.day_snapshot set snapshot_payload = '[1]'""", "cannot be read"),
        (
            "update schedule_ingest.day_snapshot set updated_at = updated_at - interval '1 s'",
            "older than the last",
        ),
        ("delete from schedule_ingest.day_snapshot", "there is no snapshot"),
        ("update schedule_ingest.day_schedule set current_version = 2", "points to version 2"),
        ("delete from schedule_ingest.day_schedule", "points to nothing, and its last version is 3"),
    ],
)
async def test_a_snapshot_or_pointer_that_does_not_follow_is_found(
    conn: Connection, forgery: str, said: str
) -> None:
    """S-46, S-5: replaying the events gives exactly the snapshot; the pointer is the last version."""
    await some(conn)
    await forge(conn, forgery + " where user_id = %s and schedule_date = %s", ANA, DAY)
    (sentence,) = await found(conn)
    assert said in sentence


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        ("delete from schedule_ingest.schedule_version", "version 2 is missing: the last one is 3"),
        (
            "update schedule_ingest.schedule_version"
            " set payload = jsonb_set(payload, '{entries,0,start}', '\"11:00\"')",
            "version 2 has another hash than its payload",
        ),
        (
            "update schedule_ingest.schedule_version set payload_hash = repeat('0', 64)",
            "version 2 has another hash than its payload",
        ),
    ],
)
async def test_a_version_that_was_changed_is_found(conn: Connection, forgery: str, said: str) -> None:
    """S-29, S-31: the numbers have no gap and each hash is that of its payload."""
    await some(conn)
    of_second = " where user_id = %s and schedule_date = %s and version = 2"
    await forge(conn, forgery + of_second, ANA, DAY)
    (sentence,) = await found(conn)
    assert sentence == said


async def test_payloads_that_are_not_canonical_or_of_another_day_or_none_are_found(
    conn: Connection,
) -> None:
    """S-26: what is kept is what was hashed."""
    await some(conn)
    change = "update schedule_ingest.schedule_version set payload = payload || %s where version = 2"
    for piece, said in (
        ('{"more": 1}', "is not in its canonical form"),
        ('{"schedule_date": "2026-03-09"}', "is about 2026-03-09"),
        ('{"entries": 1}', "is no day: entries is a number, not a list"),
    ):
        async with conn.transaction(force_rollback=True):
            await forge(conn, change, piece)
            sentences = await found(conn)
        assert sentences[0] == "version 2 has another hash than its payload"
        assert said in sentences[-1]


async def test_a_version_that_repeats_the_one_before_is_found(conn: Connection) -> None:
    """S-31: an equal payload inserts no version; one that comes back after another does."""
    await some(conn)
    await forge(
        conn,
        "update schedule_ingest.schedule_version as v set payload = o.payload, payload_hash = o.payload_hash"
        " from schedule_ingest.schedule_version as o where o.version = 1 and v.version = 2"
        " and (o.user_id, o.schedule_date) = (v.user_id, v.schedule_date)",
    )
    assert await found(conn) == [
        "version 2 is the same as version 1",
        "version 3 is the same as version 2",
    ]


@pytest.mark.parametrize(
    ("forgery", "said"),
    [
        ("delete from schedule_ingest.schedule_event", "takes away 10:00 to 18:00"),
        ("update schedule_ingest.schedule_event set new_value = null", "has not the values of one"),
        ("update schedule_ingest.schedule_event set new_value_hash = 'x'", "other hashes or fingerprints"),
        (
            "update schedule_ingest.schedule_event set customer_fingerprint = 'x'",
            "other hashes or fingerprints",
        ),
        (
            "update schedule_ingest.schedule_event set location_fingerprint = 'x'",
            "other hashes or fingerprints",
        ),
        (
            "update schedule_ingest.schedule_event set event_id = gen_random_uuid()",
            "has not the id of what it tells",
        ),
        ("update schedule_ingest.schedule_event set new_value = '{}'", "an event cannot be read"),
        (
            "update schedule_ingest.schedule_event set detected_at = detected_at - interval '1 d'",
            "takes away 09:00 to 18:00 of Marie Sjoberg, which is not there",
        ),
    ],
)
async def test_an_event_that_was_changed_is_found(conn: Connection, forgery: str, said: str) -> None:
    """S-44, S-45: ids, hashes and fingerprints follow from the values."""
    await some(conn)
    which = " where user_id = %s and detected_at = %s"
    await forge(conn, forgery + which, ANA, at(1))
    assert any(said in sentence for sentence in await found(conn))


async def test_equal_events_have_their_places_in_turn(conn: Connection) -> None:
    """S-44: ten to eleven to ten to eleven gives three events, with the places 0, 0 and 1; true as it is."""
    for minute, start in enumerate(("10:00", "11:00", "10:00", "11:00")):
        await observe(conn, ANA, [entry(start)], at=at(minute))
    assert await found(conn) == []
    await forge(conn, "delete from schedule_ingest.schedule_event where detected_at = %s", at(1))
    assert any("has other hashes" in sentence for sentence in await found(conn))


async def test_events_of_one_session_at_two_times_are_found(conn: Connection) -> None:
    """S-43: one time per observation."""
    await some(conn)
    await forge(
        conn,
        "update schedule_ingest.schedule_event set detected_at = detected_at - interval '1 s'"
        " where detected_at = %s and new_value ->> 'start' = '12:00'",
        at(0),
    )
    (sentence,) = await found(conn)
    assert "has noticed things at 2 times, and not at one" in sentence


async def test_messages_that_tell_what_is_not_so_are_found(conn: Connection) -> None:
    """S-48: each event is told once, under the id that follows from it."""
    await some(conn)
    mine = " where user_id = %s and schedule_date = %s and created_at = %s"
    for forgery, said in (
        ("delete from schedule_ingest.schedule_notification", ["is told by no notification"]),
        (
            "update schedule_ingest.schedule_notification set notification_id = 'x'",
            ["notification x has not the id of what it tells"],
        ),
        (
            "update schedule_ingest.schedule_notification set event_ids = '[\"x\"]'",
            ["has not the id", "tells of event x: there is none such", "is told by no notification"],
        ),
        (
            f"update schedule_ingest.schedule_notification set source_session_id = '{uuid4()}'",
            ["has not the id", "it is of another session"],
        ),
        (
            "insert into schedule_ingest.schedule_notification select 'y', user_id, schedule_date,"
            " source_session_id, status, 'summary', message, event_ids, created_at"
            " from schedule_ingest.schedule_notification",
            ["notification y has not the id", "is told by 2 notifications"],
        ),
    ):
        async with conn.transaction(force_rollback=True):
            await forge(conn, forgery + mine, ANA, DAY, at(1))
            sentences = await found(conn)
        assert len(sentences) == len(said), sentences
        for sentence, words in zip(sentences, said, strict=True):
            assert words in sentence


@pytest.mark.parametrize(
    ("seen", "amiss"),
    [
        (datetime(2026, 3, 2, 9, 59, tzinfo=UTC), True),  # nowhere on earth is it the third
        (datetime(2026, 3, 2, 10, 0, tzinfo=UTC), False),  # on Kiritimati it is
    ],
)
async def test_a_message_is_missed_only_where_the_day_was_not_over_anywhere(
    conn: Connection, seen: datetime, amiss: bool
) -> None:
    """S-56: no message for a day that is over; where the user lives is not on record."""
    await observe(conn, ANA, [entry("09:00")], at=seen, today=date(2026, 3, 3))
    assert await all_of(conn, "select * from schedule_ingest.schedule_notification") == []
    assert bool(await found(conn)) == amiss


async def test_a_snapshot_of_which_nothing_else_knows_is_found(conn: Connection) -> None:
    await forge(
        conn,
        "insert into schedule_ingest.day_snapshot select %s, %s, '[]', gen_random_uuid(), now()",
        ANA,
        DAY,
    )
    assert await found(conn) == []  # an empty day is what no events give
    await forge(conn, "insert into schedule_ingest.day_schedule values (%s, %s, 1)", ANA, DAY)
    assert await found(conn) == ["the day points to version 1, and its last version is none"]


async def test_many_days_are_read_page_by_page(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-54: each day once, whichever table knows of it; the report lists the first lies, and counts all."""
    monkeypatch.setattr(verify, "PAGE", 3)
    monkeypatch.setattr(verify, "MOST_PROBLEMS", 4)
    for number in range(8):
        await observe(conn, number % 2, [entry("09:00")], day=DAY + timedelta(days=number))
    await forge(conn, "delete from schedule_ingest.day_schedule")
    told: list[tuple[int, int]] = []
    report = await days.verify(conn, tell=lambda days, events: told.append((days, events)))
    assert (report.days, report.events, report.found, len(report.problems)) == (8, 8, 8, 4)
    assert told == [(3, 3), (6, 6), (8, 8)]
    assert [one.schedule_date.day for one in report.problems] == [2, 4, 6, 8]
    assert (await days.verify(conn, user_id=1)).days == 4


async def test_nobody_needs_to_stop_while_the_record_is_verified(conn: Connection, connect: Connect) -> None:
    """S-54: what is written between two statements of one page is not half seen."""
    await observe(conn, ANA, [entry("09:00")], at=at(0))
    other, minute = await connect(), 0
    plain = verify.looks.rows

    async def rows(*arguments: object) -> list[object]:
        nonlocal minute
        minute += 1
        await observe(other, ANA, [entry(f"{minute:02}:00")], at=at(minute))
        return await plain(*arguments)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify.looks, "rows", rows)
        report = await days.verify(conn)
    assert minute > 4
    assert (report.found, report.days) == (0, 1)


async def test_random_days_are_true_and_rebuilding_them_changes_nothing(conn: Connection) -> None:
    """S-46: whatever sessions have seen, the events give the snapshot."""
    chance = random.Random(7)
    names = ("Marie Sjöberg", "Bo Ek", "Cia Lo")
    for minute in range(40):
        seen = [
            entry(f"{chance.randrange(6, 20):02}:00", title=chance.choice(names))
            for _ in range(chance.randrange(5))
        ]
        await observe(conn, ANA, seen, at=at(minute))
    assert await found(conn) == []
    known = await days.day(conn, ANA, DAY)
    assert await days.rebuild(conn, ANA, DAY) == known
    assert (await days.day(conn, ANA, DAY, at=at(40))).shifts == known.shifts
