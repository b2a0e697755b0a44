"""What captures, days, changes and messages mean to somebody who looks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

from holdfast.apps.schedules.record import Attempt, CaptureSummary, NotificationSummary
from holdfast.apps.schedules.values import EventType, Shift
from holdfast.dashboard.phrases import NOTHING
from holdfast.dashboard.tones import Mood

CAPTURES: Mapping[str, Mood] = {
    "pending": Mood("pending", "waiting", "it waits for a worker"),
    "processing": Mood("processing", "held", "a worker reads it"),
    "done": Mood("done", "good", "it was read, and what it told is recorded"),
    "failed": Mood("failed", "bad", "it could not be read, and is not tried again by itself"),
}
CLAIMS: Mapping[str | None, Mood] = {
    None: Mood("under way", "held", "a worker is at it"),
    "done": Mood("done", "good", "it brought a new version of its day"),
    "unchanged": Mood("unchanged", "good", "the day is as it was known already"),
    "superseded": Mood(
        "superseded", "off", "a newer session had told of the day meanwhile: it changed nothing"
    ),
    "failed": Mood("failed", "bad", "it could not be read"),
    "released": Mood("released", "waiting", "its worker gave it back"),
    "lost": Mood("lost", "again", "its worker fell silent, and the session was taken from it"),
}
MESSAGES: Mapping[str, Mood] = {
    "pending": Mood("pending", "waiting", "it waits to be sent"),
    "sent": Mood("sent", "good", "it was sent"),
    "failed": Mood("failed", "bad", "it could not be sent, and is not tried again by itself"),
}
AGAIN = Mood("tried again", "again", "it could not be sent yet, and is tried again")
EVENTS: Mapping[EventType, Mood] = {
    "shift_added": Mood("added", "good", "a shift that was not there before"),
    "shift_removed": Mood("removed", "bad", "a shift that is not there any more"),
    "shift_time_changed": Mood("time changed", "again", "the same shift at another time"),
    "shift_relocated": Mood("relocated", "held", "the same shift at another place"),
    "shift_retitled": Mood("retitled", "held", "the same shift under another name"),
    "shift_reclassified": Mood("reclassified", "held", "the same shift, of another kind"),
}
MARKS: Mapping[str, Mood] = {
    "same": Mood("same", "waiting", "nothing has changed"),
    "changed": Mood("changed", "again", "what differs is marked"),
    "removed": Mood("removed", "bad", "it is in the first version only"),
    "added": Mood("added", "good", "it is in the second version only"),
}
UNKNOWN = "--:--"  # where a time is missing
TYPES: Mapping[str, str] = {
    "SCHOOL": "school",
    "OFFICE": "office",
    "HOME_VISIT": "home visit",
    "UNKNOWN": "unknown kind",
}


@dataclass(frozen=True)
class Difference:
    """One thing about a shift, before and after; equal where it has not changed."""

    before: str
    after: str

    @property
    def changed(self) -> bool:
        return self.before != self.after


def title(day: date) -> str:
    """A day for people.

    >>> title(date(2026, 3, 2))
    'Monday 2 March 2026'
    """
    return f"{day:%A} {day.day} {day:%B} {day.year:04}"


def hours(shift: Shift) -> str:
    """From when until when; past midnight it says so."""
    past = " (+1 day)" if shift.end < shift.start else ""
    return f"{shift.start or UNKNOWN}{NOTHING}{shift.end or UNKNOWN}{past}"


def place(shift: Shift) -> str:
    """Where, on one line."""
    area = shift.postal_area or shift.city
    city = shift.city if shift.city != area else ""
    street = f"{shift.street} {shift.street_number}".strip()
    parts = (street, f"{shift.postal_code} {area}".strip(), city)
    return ", ".join(part for part in parts if part) or NOTHING


def customer(shift: Shift) -> str:
    """For whom."""
    return shift.customer_name or "unknown customer"


def kind(shift: Shift) -> str:
    """Of which kind it is."""
    return TYPES.get(shift.shift_type, shift.shift_type)


def differences(old: Shift | None, new: Shift | None) -> tuple[Difference, ...]:
    """When, for whom, where and what: before and after."""
    told = (hours, customer, place, kind)
    return tuple(Difference(one(old) if old else "", one(new) if new else "") for one in told)


def message_mood(one: NotificationSummary) -> Mood:
    """How a message does: pending after a failed try is not the same as pending."""
    return AGAIN if one.status == "pending" and one.next_at else MESSAGES[one.status]


def claim_mood(one: Attempt) -> Mood:
    """How a claim has ended; others may have written anything there."""
    known = CLAIMS.get(one.outcome)
    return known or Mood(str(one.outcome), "off", "another program's word")


def capture_note(one: CaptureSummary) -> str:
    """What else is to know of a session in a list."""
    if one.error:
        return one.error
    if one.locked_by and one.state == "processing":
        return f"by {one.locked_by}"
    return ""


def fault(error: str | None) -> tuple[str | None, str] | None:
    """The code and the sentence of an error, which is `code: sentence`; others may have written anything."""
    if not error:
        return None
    code, colon, sentence = error.partition(": ")
    known = colon and code.replace("_", "").isalnum() and code == code.lower()
    return (code, sentence) if known else (None, error)


def local(at: datetime | None) -> str:
    """A moment as a field of type datetime-local has it, in UTC."""
    return "" if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds")


def address(*parts: Any) -> str:
    """The path of a page of ours."""
    return "/schedules" + "".join(f"/{quote(str(part), safe='')}" for part in parts)


HELPERS: Mapping[str, Any] = {
    "address": address,
    "moods": {"captures": CAPTURES, "events": EVENTS, "marks": MARKS},
    "message_mood": message_mood,
    "claim_mood": claim_mood,
    "capture_note": capture_note,
    "differences": differences,
    "hours": hours,
    "place": place,
    "kind": kind,
    "day_title": title,
}
