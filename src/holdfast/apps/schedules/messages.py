"""Words for what has changed: one message for an event, or one summary for many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import assert_never
from uuid import UUID

from holdfast.apps.schedules.canonical import digest
from holdfast.apps.schedules.values import Event, Notice, Shift

LABELS = {"SCHOOL": "School cleaning", "OFFICE": "Office cleaning", "HOME_VISIT": "Home visit"}
NO_TIME = "--:--"
NO_PLACE = "unknown location"
NO_CUSTOMER = "unknown customer"
NO_LABEL = "Unknown job type"


def notices(events: Sequence[Event], *, threshold: int, today: date | None) -> list[Notice]:
    """The messages about the events of one session and day: one each, or one summary from `threshold` on.

    `today` is the user's date, None when nobody knows it. A day that is over is no news.
    """
    if threshold < 1:
        raise ValueError("a summary stands for at least one event")
    ordered = sorted(events, key=order)
    if not ordered:
        return []
    first = ordered[0]
    if len({(event.user_id, event.schedule_date, event.session_id) for event in ordered}) > 1:
        raise ValueError("messages are about one session and one day")
    if today is not None and first.schedule_date < today:
        return []
    if len(ordered) >= threshold:
        return [_summary(ordered, today)]
    return [_single(event, today) for event in ordered]


def text_of(event: Event, today: date | None) -> str:
    """What a user reads about an event.

    The day is called today or tomorrow when it is, which only a known date can tell.
    """
    day = _day(event.schedule_date, today)
    start = day[0].upper() + day[1:]
    shift = event.new or event.old
    city = (shift and shift.city) or NO_PLACE
    match event.type:
        case "shift_added":
            return f"New shift added {day} {_range(event.new)} in {city}"
        case "shift_removed":
            return f"Shift removed {day} {_range(event.old)} in {city}"
        case "shift_time_changed":
            return f"{start} {city} shift {_moved(event.old, event.new)}"
        case "shift_relocated":
            return f"{start} {_start(shift)} shift moved to {city}"
        case "shift_reclassified":
            return f"{start} job updated to {LABELS.get(shift.shift_type if shift else '', NO_LABEL)}"
        case "shift_retitled":
            return f"{start} shift updated for {(shift and shift.customer_name) or NO_CUSTOMER}"
        case _:
            assert_never(event.type)


def summary_text(count: int, day: date, today: date | None) -> str:
    """What a user reads about many events of a day.

    >>> summary_text(3, date(2026, 3, 2), None)
    '3 shifts updated on 2026-03-02'
    >>> summary_text(3, date(2026, 3, 2), date(2026, 3, 1))
    '3 shifts updated for tomorrow'
    """
    word = _near(day, today)
    what = "1 shift" if count == 1 else f"{count} shifts"
    return f"{what} updated {f'for {word}' if word else _day(day, today)}"


def notice_id(user_id: int, day: date, session_id: UUID, parts: Sequence[object]) -> str:
    """The same for the same message, so that a session that runs again adds none."""
    return digest("|".join(str(part) for part in (user_id, day.isoformat(), session_id, *parts)))


def order(event: Event) -> tuple[int, date, str, str, str, str, datetime, str]:
    """The order in which a user reads of events: as the day goes, then place by place."""
    return (
        event.user_id,
        event.schedule_date,
        _start(event.new or event.old),
        event.location_fingerprint,
        event.type,
        str(event.session_id),
        event.detected_at,
        str(event.id),
    )


def _single(event: Event, today: date | None) -> Notice:
    return Notice(
        id=notice_id(event.user_id, event.schedule_date, event.session_id, [event.id]),
        user_id=event.user_id,
        schedule_date=event.schedule_date,
        session_id=event.session_id,
        type="event",
        message=text_of(event, today),
        event_ids=(event.id,),
    )


def _summary(events: Sequence[Event], today: date | None) -> Notice:
    first, ids = events[0], tuple(event.id for event in events)
    return Notice(
        id=notice_id(first.user_id, first.schedule_date, first.session_id, ["summary", *ids]),
        user_id=first.user_id,
        schedule_date=first.schedule_date,
        session_id=first.session_id,
        type="summary",
        message=summary_text(len(events), first.schedule_date, today),
        event_ids=ids,
    )


def _near(day: date, today: date | None) -> str | None:
    if today is None or day < today:
        return None
    return {0: "today", 1: "tomorrow"}.get((day - today).days)


def _day(day: date, today: date | None) -> str:
    return _near(day, today) or f"on {day.isoformat()}"


def _moved(old: Shift | None, new: Shift | None) -> str:
    if _end(old) == _end(new):
        return f"moved {_start(old)} → {_start(new)}"
    if _start(old) == _start(new):
        return f"ends {_end(old)} → {_end(new)}"
    return f"moved {_range(old)} → {_range(new)}"


def _range(shift: Shift | None) -> str:
    return f"{_start(shift)}–{_end(shift)}"  # noqa: RUF001 a range has a dash


def _start(shift: Shift | None) -> str:
    return (shift and shift.start) or NO_TIME


def _end(shift: Shift | None) -> str:
    return (shift and shift.end) or NO_TIME
