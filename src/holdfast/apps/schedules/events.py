"""Gives changes the identity under which they are recorded once, however often their session runs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from uuid import UUID, uuid5

from holdfast.apps.schedules.shifts import value_hash
from holdfast.apps.schedules.values import Change, Event, Shift, Slot

NAMESPACE = UUID("7571be9d-25fa-59c7-94fb-294c7400da0c")


def event_id(user_id: int, day: date, slot: Slot) -> UUID:
    """The same for the same event, so that the ids of messages do not change when a session runs again."""
    parts = (user_id, day.isoformat(), slot.location_fingerprint, slot.type, slot.old_hash, slot.new_hash)
    return uuid5(NAMESPACE, "|".join(str(part) for part in parts))


def slot_of(change: Change, occurrence: int = 0) -> Slot:
    """Where a change is recorded within its day, for the first time or once more."""
    return Slot(
        location_fingerprint=_side(change).location_fingerprint,
        type=change.type,
        old_hash=value_hash(change.old, occurrence),
        new_hash=value_hash(change.new, occurrence),
    )


def record(
    changes: Sequence[Change],
    *,
    user_id: int,
    day: date,
    session_id: UUID,
    detected_at: datetime,
    taken: Mapping[Slot, UUID],
) -> tuple[list[Event], list[Event]]:
    """The events of an observation in the order of its changes, and those of them that are not recorded yet.

    `taken` has the recorded slots of the day, each with the session that holds it. Equal changes walk the
    occurrences: a slot of this session is one of its events already, another session's is an earlier time
    that the same happened and is passed over, and a free one is filled.
    """
    events: list[Event] = []
    missing: list[Event] = []
    following: defaultdict[Slot, int] = defaultdict(int)
    for change in changes:
        first = slot_of(change)
        occurrence = following[first]
        while taken.get(slot := slot_of(change, occurrence), session_id) != session_id:
            occurrence += 1
        following[first] = occurrence + 1
        event = _event(change, slot, user_id, day, session_id, detected_at)
        events.append(event)
        if slot not in taken:
            missing.append(event)
    return events, missing


def _event(
    change: Change, slot: Slot, user_id: int, day: date, session_id: UUID, detected_at: datetime
) -> Event:
    return Event(
        id=event_id(user_id, day, slot),
        user_id=user_id,
        schedule_date=day,
        type=change.type,
        location_fingerprint=slot.location_fingerprint,
        customer_fingerprint=_side(change).customer_fingerprint,
        old_hash=slot.old_hash,
        new_hash=slot.new_hash,
        old=change.old,
        new=change.new,
        detected_at=detected_at,
        session_id=session_id,
    )


def _side(change: Change) -> Shift:
    """The shift that names the change: the new one, or the old one when it is gone."""
    side = change.new or change.old
    if side is None:
        raise ValueError("a change without an old and a new value is none")
    return side
