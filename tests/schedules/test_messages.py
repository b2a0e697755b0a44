"""What a user is told of a day's changes: in which words, in which order, and when not at all."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, timedelta
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.events import record
from holdfast.apps.schedules.messages import notice_id, notices, order, text_of
from holdfast.apps.schedules.shifts import COMPANY_WORDS
from holdfast.apps.schedules.spelling import with_accents
from holdfast.apps.schedules.values import Change, Event, EventType, Shift
from schedules.meanings import DAY, DAYS, SESSION, START, USER, event, later, session, shift

TEN, ELEVEN = shift("10:00-12:00"), shift("11:00-13:00")
LONGER, ANNA = shift("10:00-14:00"), shift("10:00-12:00", "Anna Lind")
ASKIM = shift("10:00-12:00", place="Storgatan 3 Askim")
NOTHING = msgspec.structs.replace(TEN, start="", end="", city="", customer_name="", shift_type="")

TEXTS: list[tuple[EventType, Shift | None, Shift | None, str]] = [
    ("shift_added", None, TEN, "New shift added {day} 10:00–12:00 in Billdal"),  # noqa: RUF001
    ("shift_added", None, NOTHING, "New shift added {day} --:--–--:-- in unknown location"),  # noqa: RUF001
    ("shift_removed", TEN, None, "Shift removed {day} 10:00–12:00 in Billdal"),  # noqa: RUF001
    ("shift_time_changed", TEN, shift("11:00-12:00"), "{Day} Billdal shift moved 10:00 → 11:00"),
    ("shift_time_changed", TEN, LONGER, "{Day} Billdal shift ends 12:00 → 14:00"),
    ("shift_time_changed", TEN, ELEVEN, "{Day} Billdal shift moved 10:00–12:00 → 11:00–13:00"),  # noqa: RUF001
    ("shift_relocated", TEN, ASKIM, "{Day} 10:00 shift moved to Askim"),
    ("shift_relocated", TEN, NOTHING, "{Day} --:-- shift moved to unknown location"),
    ("shift_reclassified", TEN, shift(kind="SCHOOL"), "{Day} job updated to School cleaning"),
    ("shift_reclassified", TEN, shift(kind="OFFICE"), "{Day} job updated to Office cleaning"),
    ("shift_reclassified", TEN, shift(kind="HOME_VISIT"), "{Day} job updated to Home visit"),
    ("shift_reclassified", TEN, shift(kind="UNKNOWN"), "{Day} job updated to Unknown job type"),
    ("shift_reclassified", TEN, NOTHING, "{Day} job updated to Unknown job type"),
    ("shift_retitled", TEN, ANNA, "{Day} shift updated for Anna Lind"),
    ("shift_retitled", TEN, NOTHING, "{Day} shift updated for unknown customer"),
]
DATES = [
    (None, "on 2026-03-02", "On 2026-03-02"),
    (DAY, "today", "Today"),
    (DAY - timedelta(days=1), "tomorrow", "Tomorrow"),
    (DAY - timedelta(days=2), "on 2026-03-02", "On 2026-03-02"),
    (DAY + timedelta(days=1), "on 2026-03-02", "On 2026-03-02"),
]


def observed(old: list[Shift], new: list[Shift]) -> list[Event]:
    events, _ = record(
        diff(old, new).changes, user_id=USER, day=DAY, session_id=SESSION, detected_at=START, taken={}
    )
    return events


@pytest.mark.parametrize(("today", "day", "start"), DATES)
@pytest.mark.parametrize(("kind", "old", "new", "text"), TEXTS)
def test_each_message_reads_as_its_table_row(
    kind: EventType,
    old: Shift | None,
    new: Shift | None,
    text: str,
    today: date | None,
    day: str,
    start: str,
) -> None:
    """S-49, proof: today and tomorrow only where the date is known, capitalised at the start."""
    assert text_of(event(kind, old, new), today) == text.format(day=day, Day=start)


@pytest.mark.parametrize(
    ("today", "text"),
    [
        (None, "3 shifts updated on 2026-03-02"),
        (DAY, "3 shifts updated for today"),
        (DAY - timedelta(days=1), "3 shifts updated for tomorrow"),
        (DAY - timedelta(days=2), "3 shifts updated on 2026-03-02"),
    ],
)
def test_a_summary_has_two_wordings(today: date | None, text: str) -> None:
    """S-49, proof: each message reads as its table row."""
    (notice,) = notices(observed([], [TEN, ELEVEN, ASKIM]), threshold=3, today=today)
    assert notice.message == text


def test_a_summary_of_one_is_in_the_singular() -> None:
    """S-49: with a threshold of 1 even one event is summed up."""
    (notice,) = notices(observed([], [TEN]), threshold=1, today=None)
    assert (notice.type, notice.message) == ("summary", "1 shift updated on 2026-03-02")


def test_two_events_give_two_messages_and_three_give_one_summary() -> None:
    """S-48, proof: with all ids in the summary, in the order of reading."""
    two = notices(observed([], [TEN, ELEVEN]), threshold=3, today=None)
    assert [(notice.type, notice.message) for notice in two] == [
        ("event", "New shift added on 2026-03-02 10:00–12:00 in Billdal"),  # noqa: RUF001
        ("event", "New shift added on 2026-03-02 11:00–13:00 in Billdal"),  # noqa: RUF001
    ]
    assert [len(notice.event_ids) for notice in two] == [1, 1]
    events = observed([], [TEN, ELEVEN, ASKIM])
    (summary,) = notices(events, threshold=3, today=None)
    assert summary.type == "summary"
    assert summary.event_ids == tuple(one.id for one in sorted(events, key=order))
    assert (summary.user_id, summary.schedule_date, summary.session_id) == (USER, DAY, SESSION)


def test_the_threshold_is_a_setting() -> None:
    """S-48: below it one message each, from it on one summary."""
    events = observed([], [TEN, ELEVEN, ASKIM])
    assert len(notices(events, threshold=4, today=None)) == 3
    assert len(notices(events[:2], threshold=2, today=None)) == 1
    with pytest.raises(ValueError, match="at least one event"):
        notices(events, threshold=0, today=None)


def test_no_event_gives_no_message() -> None:
    """S-48: not even a summary of nothing."""
    assert notices([], threshold=1, today=None) == []


def test_a_notification_id_is_that_of_its_vector() -> None:
    """S-48, part of: every vector of the document holds."""
    (notice,) = notices(observed([], [shift()]), threshold=3, today=None)
    assert str(notice.event_ids[0]) == "0e27eb93-1526-5f09-96bc-81ae5f883ff5"
    assert notice.id == "fb257a52e34f817737f8c34d49b7bf8c4387aa4497d1a20e9b5290b762cf1631"


def test_the_id_of_a_summary_names_all_its_events_in_order() -> None:
    """S-48: user, date, session, `summary` and the ids."""
    (notice,) = notices(observed([], [TEN, ELEVEN, ASKIM]), threshold=3, today=None)
    assert notice.id == notice_id(USER, DAY, SESSION, ["summary", *notice.event_ids])
    assert notice.id != notice_id(USER, DAY, SESSION, ["summary", *reversed(notice.event_ids)])
    assert notice.id != notice_id(USER, DAY, session(2), ["summary", *notice.event_ids])


def test_e1_e3_e2_is_the_order() -> None:
    """S-49, proof: at one place and time by type, then by id."""
    e1, e2, e3 = (UUID(int=number) for number in (1, 2, 3))
    events = [
        event("shift_added", None, TEN, id=e3),
        event("shift_time_changed", ELEVEN, TEN, id=e2),
        event("shift_added", None, TEN, id=e1),
    ]
    (notice,) = notices(events, threshold=3, today=None)
    assert notice.event_ids == (e1, e3, e2)


def test_events_are_told_as_the_day_goes() -> None:
    """S-49: user, date, start of the new else the old shift, place, type, session, time, id."""
    known = event("shift_added", None, TEN, id=UUID(int=5))
    after = [
        replace(known, id=UUID(int=6)),
        replace(known, detected_at=later(1), id=UUID(int=1)),
        replace(known, session_id=session(2), detected_at=later(-1)),
        replace(known, type="shift_retitled", session_id=session(0)),
        replace(known, location_fingerprint="g", type="shift_added"),
        replace(known, type="shift_removed", old=shift("10:30-12:00"), new=None, location_fingerprint="0"),
        replace(known, type="shift_time_changed", old=shift("06:00-07:00"), new=ELEVEN),
        replace(known, schedule_date=DAY + timedelta(days=1), new=shift("01:00-02:00")),
        replace(known, user_id=USER + 1, schedule_date=DAY - timedelta(days=1)),
    ]
    expected = [known, *after]
    backwards = expected[::-1]
    assert sorted(backwards, key=order) == expected


@settings(deadline=None)
@given(DAYS, DAYS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_the_order_of_events_does_not_matter(
    old: list[Shift], new: list[Shift], threshold: int, chance: random.Random
) -> None:
    """S-48, S-49: the same messages with the same ids, each event told exactly once."""
    events = observed(old, new)
    told = notices(events, threshold=threshold, today=None)
    shuffled = list(events)
    chance.shuffle(shuffled)
    assert notices(shuffled, threshold=threshold, today=None) == told
    ids = [event_id for notice in told for event_id in notice.event_ids]
    assert sorted(ids) == sorted(one.id for one in events)
    assert len({notice.id for notice in told}) == len(told)


def test_no_message_is_sent_for_a_day_that_is_over() -> None:
    """S-56: the day itself is not over, and without a known date no day is."""
    events = observed([], [TEN])
    assert notices(events, threshold=3, today=DAY + timedelta(days=1)) == []
    assert len(notices(events, threshold=3, today=DAY)) == 1
    assert len(notices(events, threshold=3, today=None)) == 1


def test_messages_are_about_one_session_and_day() -> None:
    """S-48: events of two would get an id that names one."""
    mixed = [event("shift_added", None, TEN), event("shift_added", None, TEN, by=session(2))]
    with pytest.raises(ValueError, match="one session and one day"):
        notices(mixed, threshold=3, today=None)


def test_each_side_of_a_change_has_the_spelling_of_its_own_payload_or_stays_clean() -> None:
    """S-49: also where no version is stored, or another program's."""

    def spelled(old_payload: object, new_payload: object) -> tuple[str, str]:
        known, seen = shift(name="Asa Oberg"), shift("10:00-12:00", "Asa Oberg")
        changes = [Change("shift_time_changed", known, seen)]
        (found,) = with_accents(changes, old_payload, new_payload, COMPANY_WORDS)
        assert found.old
        assert found.new
        return found.old.customer_name, found.new.customer_name

    def titled(*titles: str) -> dict[str, object]:
        line = {"start": "09:00", "end": "18:00", "location": "Billdal"}
        return {"schedule_date": "2026-03-02", "entries": [line | {"title": title} for title in titles]}

    for nothing in (None, {}, {"entries": "?"}, titled("½ Åsa Öberg")):
        assert spelled(nothing, nothing) == ("Asa Oberg", "Asa Oberg")
        assert spelled(nothing, titled("åsa ÖBERG, AB")) == ("Åsa Öberg", "Åsa Öberg")
    assert spelled(titled("Åsa Öberg"), titled("Ása Oberg")) == ("Åsa Öberg", "Ása Oberg")
    assert spelled(titled("Åsa Öberg", "Asa Oberg"), None) == ("Åsa Öberg", "Åsa Öberg")
