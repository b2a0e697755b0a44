"""Shifts and events in few words, and random days, for the tests of what schedules mean."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import product
from uuid import UUID

from hypothesis import strategies as st

from holdfast.apps.schedules.canonical import digest
from holdfast.apps.schedules.shifts import customer_fingerprint, location_fingerprint
from holdfast.apps.schedules.values import Change, Event, EventType, Shift

USER = 42
DAY = date(2026, 3, 2)
SESSION = UUID("00000000-0000-4000-8000-000000000001")
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def session(number: int) -> UUID:
    """The id of a session by its number."""
    return UUID(int=SESSION.int + number - 1)


def later(minutes: int) -> datetime:
    """A time after the first observation."""
    return START + timedelta(minutes=minutes)


def shift(
    times: str = "09:00-18:00",
    name: str = "Marie Sjoberg",
    place: str = "Valebergsvagen 316 Billdal",
    kind: str = "HOME_VISIT",
    code: str = "",
) -> Shift:
    """A shift; `place` is street, number and city."""
    start, end = times.split("-")
    street, number, city = place.split(" ")
    return Shift(
        start=start,
        end=end,
        customer_name=name,
        customer_fingerprint=customer_fingerprint(name),
        street=street,
        street_number=number,
        postal_code=code,
        postal_area="",
        city=city,
        location_fingerprint=location_fingerprint(street, number, city),
        shift_type=kind,
    )


def event(
    kind: EventType,
    old: Shift | None,
    new: Shift | None,
    *,
    id: UUID | None = None,
    at: datetime = START,
    by: UUID = SESSION,
    day: date = DAY,
) -> Event:
    """An event whose id follows from its values, unless one is given."""
    side = new or old
    assert side is not None
    name = digest(f"{kind}{old}{new}{at}{by}")
    return Event(
        id=id or UUID(name[:32]),
        user_id=USER,
        schedule_date=day,
        type=kind,
        location_fingerprint=side.location_fingerprint,
        customer_fingerprint=side.customer_fingerprint,
        old_hash="old",
        new_hash="new",
        old=old,
        new=new,
        detected_at=at,
        session_id=by,
    )


def kinds(changes: tuple[Change, ...]) -> list[EventType]:
    """The types of the changes, in their order."""
    return [change.type for change in changes]


# Few values of each, so that shifts meet: twins, moves, spellings of one customer or place, and midnight.
# One pool to draw from: 500 examples have to be quick.
SHIFTS = st.sampled_from(
    [
        shift(*values)
        for values in product(
            ("08:00-10:00", "09:00-18:00", "09:10-18:00", "23:50-06:00", "00:10-06:00", "12:00-12:00"),
            ("Marie Sjoberg", "Sjoberg M", "Anna Lind", "Askims Skola"),
            ("Valebergsvagen 316 Billdal", "Valebergsvagen 3I6 Bi11dal", "Storgatan 3 Askim"),
            ("HOME_VISIT", "UNKNOWN"),
            ("", "431 37"),
        )
    ]
)
DAYS = st.lists(SHIFTS, max_size=6)
HISTORIES = st.lists(DAYS, min_size=1, max_size=6)
