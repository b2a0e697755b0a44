"""What the routes of schedules answer and take, as JSON. Moments are UTC, times of day local."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from holdfast.api.answers import Answer
from holdfast.api.models import Body, Text
from holdfast.apps.schedules import record
from holdfast.apps.schedules.values import Change, Event, EventType
from holdfast.engine.intake import INT8
from holdfast.engine.values import Json

ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MOST_IMAGES = 100  # of one session, when it is added here
LONGEST_KEY = 1024  # characters of an image's key in its store
NEXT = "For the next page; null on the last one."
State = Literal["pending", "processing", "done", "failed"]
Status = Literal["pending", "sent", "failed"]


def iso_date(given: Any) -> date:
    """A date as ISO 8601 has it, or `ValueError`: a bare number might be anything."""
    if type(given) is date:
        return given
    if not isinstance(given, str) or not ISO_DATE.fullmatch(given):
        raise ValueError("must be a date, like 2030-01-31")
    return date.fromisoformat(given)


IsoDate = Annotated[date, BeforeValidator(iso_date, json_schema_input_type=date)]
UserNumber = Annotated[int, Field(ge=INT8.start, lt=INT8.stop)]


# -- what may be asked -----------------------------------------------------------------------------------


class DaysQuery(BaseModel):
    """Which days are meant."""

    model_config = ConfigDict(extra="forbid")

    user_id: UserNumber | None = Field(
        default=None, description="Of this user; left out: of all that there are."
    )
    since: IsoDate | None = Field(default=None, description="On this date or later.")
    until: IsoDate | None = Field(default=None, description="On this date or earlier.")
    limit: int = Field(default=50, ge=1, le=100, description="How many at most.")
    cursor: str | None = Field(
        default=None, min_length=1, max_length=1000, description="Goes on where the page before ended."
    )


class NewImage(Body):
    """A picture of a schedule."""

    r2_key: Annotated[Text, Field(max_length=LONGEST_KEY)] = Field(
        description="Where the object store has it. No other picture has the same.",
        examples=["2030/01/31/a.jpg"],
    )
    telegram_message_id: int | None = Field(
        default=None,
        ge=INT8.start,
        lt=INT8.stop,
        description="The message that brought it: the same one twice in a session is refused.",
    )


class NewCapture(Body):
    """A session to be read: pictures of one day of one user."""

    user_id: UserNumber | None = Field(
        default=None, description="Whose schedule it is. A user's own token needs not say it.", examples=[42]
    )
    images: list[NewImage] = Field(
        default_factory=list[NewImage], max_length=MOST_IMAGES, description="The pictures, in their order."
    )


# -- days ------------------------------------------------------------------------------------------------


class ShownShift(Answer):
    """A shift, as it is understood."""

    start: str = Field(description="When it begins, HH:MM.")
    end: str = Field(description="When it ends, HH:MM; before its start: on the day after.")
    customer_name: str = Field(description="For whom.")
    customer_fingerprint: str = Field(description="Equal for spellings of one customer.")
    street: str = Field(description="Where.")
    street_number: str = Field(description="Where.")
    postal_code: str = Field(description="Where.")
    postal_area: str = Field(description="Where.")
    city: str = Field(description="Where.")
    location_fingerprint: str = Field(description="Equal for spellings of one place.")
    shift_type: str = Field(description="SCHOOL, OFFICE, HOME_VISIT or UNKNOWN.")


class ShownDay(Answer):
    """A day as it is known, or was known at a time."""

    user_id: int = Field(description="Whose.")
    schedule_date: date = Field(description="Which.")
    at: datetime | None = Field(description="At which time it was known so; null: now.")
    version: int | None = Field(description="The version that was current; null: none was kept until then.")
    shifts: list[ShownShift] = Field(description="In their order.")
    session_id: UUID | None = Field(description="The session that saw it last.")
    updated_at: datetime | None = Field(description="When that was.")
    payload: Json = Field(description="The version itself: what was read, in its canonical form.")
    payload_hash: str | None = Field(description="SHA-256 of it.")


class ListedDay(Answer):
    """A day in a list."""

    user_id: int = Field(description="Whose.")
    schedule_date: date = Field(description="Which.")
    version: int = Field(description="The current version.")
    shifts: int = Field(description="How many shifts it has.")
    session_id: UUID | None = Field(description="The session that saw it last.")
    updated_at: datetime | None = Field(description="When that was.")


class Days(Answer):
    """Some days, the latest date first."""

    days: list[ListedDay] = Field(description="The days.")
    next_cursor: str | None = Field(description=NEXT)


class ShownVersion(Answer):
    """A payload that was kept."""

    version: int = Field(description="Its number: the first of a day is 1.")
    session_id: UUID = Field(description="The session that brought it.")
    payload: Json = Field(description="What was read, in its canonical form.")
    payload_hash: str = Field(description="SHA-256 of it.")
    created_at: datetime = Field(description="When it was kept.")


class ShownEvent(Answer):
    """Something that has changed in a day."""

    id: UUID = Field(description="Its id: the same change of the same day has always the same.")
    type: EventType = Field(description="What has changed.")
    old: ShownShift | None = Field(description="The shift before; null: there was none.")
    new: ShownShift | None = Field(description="The shift since then; null: there is none.")
    location_fingerprint: str = Field(description="Of the place.")
    customer_fingerprint: str = Field(description="Of the customer.")
    old_value_hash: str = Field(description="Of the shift before.")
    new_value_hash: str = Field(description="Of the shift since then.")
    detected_at: datetime = Field(description="When it was noticed.")
    session_id: UUID = Field(description="By which session.")

    @classmethod
    def of(cls, event: Event) -> ShownEvent:
        names = ("id", "type", "location_fingerprint", "customer_fingerprint", "detected_at", "session_id")
        hashes = {"old_value_hash": event.old_hash, "new_value_hash": event.new_hash}
        told: dict[str, Any] = {name: getattr(event, name) for name in names}
        return cls(**told, **hashes, **_both(event))


class ShownChange(Answer):
    """What one difference between two versions means."""

    type: EventType = Field(description="What has changed.")
    old: ShownShift | None = Field(description="The shift before; null: there was none.")
    new: ShownShift | None = Field(description="The shift after; null: there is none.")

    @classmethod
    def of(cls, change: Change) -> ShownChange:
        return cls(type=change.type, **_both(change))


def _both(change: Change | Event) -> dict[str, Any]:
    sides = {"old": change.old, "new": change.new}
    return {name: one and ShownShift.model_validate(one) for name, one in sides.items()}


class ComparedLine(Answer):
    """An entry of one version beside the one that it has become in the other."""

    mark: record.Mark = Field(description="What has become of it.")
    one: Json = Field(description="The entry in the first version; null: it is not there.")
    other: Json = Field(description="The entry in the second; null: it is not there.")
    differs: list[str] = Field(description="The fields that differ, where both are there.")


class ComparedVersions(Answer):
    """Two versions of a day side by side."""

    one: ShownVersion = Field(description="The first.")
    other: ShownVersion = Field(description="The second.")
    lines: list[ComparedLine] = Field(description="Entry by entry.")
    changes: list[ShownChange] = Field(description="What the difference means.")

    @classmethod
    def of(cls, found: record.Comparison) -> ComparedVersions:
        return cls(
            one=ShownVersion.model_validate(found.one),
            other=ShownVersion.model_validate(found.other),
            lines=[ComparedLine.model_validate(line) for line in found.lines],
            changes=[ShownChange.of(change) for change in found.changes],
        )


class FoundFault(Answer):
    """Something in the record of a day that is not true."""

    user_id: int = Field(description="Whose day.")
    schedule_date: date = Field(description="Which day.")
    what: str = Field(description="As a sentence.")


class VerifiedDay(Answer):
    """What a verification has read and found."""

    true: bool = Field(description="Whether the events give the day, and the versions are whole.")
    versions: int = Field(description="How many versions were read.")
    events: int = Field(description="How many events.")
    notifications: int = Field(description="How many messages.")
    found: int = Field(description="How many faults there are.")
    problems: list[FoundFault] = Field(description="The first of them.")

    @classmethod
    def of(cls, report: record.Report) -> VerifiedDay:
        names = ("versions", "events", "notifications", "found")
        told: dict[str, Any] = {name: getattr(report, name) for name in names}
        problems = [FoundFault.model_validate(one) for one in report.problems]
        return cls(true=not report.found, problems=problems, **told)


# -- captures and messages -------------------------------------------------------------------------------


class ListedCapture(Answer):
    """A capture session, as a list shows it."""

    id: UUID = Field(description="Its id.")
    user_id: int = Field(description="Whose schedule.")
    state: str = Field(description="pending, processing, done or failed.")
    created_at: datetime = Field(description="When it was made.")
    error: str | None = Field(description="Why it failed: a code, and a sentence.")
    locked_at: datetime | None = Field(description="When its worker told last that it is at it.")
    locked_by: str | None = Field(description="Which worker, and which of its claims.")
    images: int = Field(description="How many pictures it has.")
    attempts: int = Field(description="How often it was claimed.")


class CaptureImage(Answer):
    """A picture of a session."""

    id: UUID = Field(description="Its id.")
    sequence: int = Field(description="Its place in the session.")
    r2_key: str = Field(description="Where the object store has it.")
    telegram_message_id: int | None = Field(description="The message that brought it.")
    created_at: datetime = Field(description="When it came.")


class CaptureAttempt(Answer):
    """One claim of a session."""

    attempt: int = Field(description="Its number.")
    worker: str = Field(description="Who claimed it.")
    claimed_at: datetime = Field(description="When.")
    ended_at: datetime | None = Field(description="When it ended; null: it is under way.")
    outcome: str | None = Field(description="done, unchanged, superseded, failed, released or lost.")


class SendTry(Answer):
    """One try to send a message."""

    attempt: int = Field(description="Its number.")
    tried_at: datetime = Field(description="When.")
    error: str | None = Field(description="Why it failed; null: it was sent.")
    next_at: datetime | None = Field(description="When it is tried again; null: it is not.")


class ListedNotification(Answer):
    """A message to a user about a day, with what its last try told."""

    id: str = Field(description="Its id, which goes along with it: the same message has always the same.")
    user_id: int = Field(description="To whom.")
    schedule_date: date = Field(description="About which day.")
    session_id: UUID = Field(description="After which session.")
    status: str = Field(description="pending, sent or failed.")
    type: str = Field(description="`event` for one event, `summary` for many.")
    message: str = Field(description="The text.")
    event_ids: list[str] = Field(description="What it tells.")
    created_at: datetime = Field(description="When it was made.")
    sent_at: datetime | None = Field(description="When it was sent.")
    attempts: int = Field(description="How often it was tried.")
    error: str | None = Field(description="Why the last try failed.")
    next_at: datetime | None = Field(description="When it is tried again.")


class ShownNotification(ListedNotification):
    """A message with all its tries."""

    tries: list[SendTry] = Field(description="In their order.")

    @classmethod
    def of(cls, found: record.Notification) -> ShownNotification:
        told = ListedNotification.model_validate(found.summary).model_dump()
        return cls(**told, tries=[SendTry.model_validate(one) for one in found.tries])


class ShownCapture(ListedCapture):
    """A capture session and all that came of it."""

    schedule_date: date | None = Field(description="Of which day it has brought a version, or events.")
    pictures: list[CaptureImage] = Field(description="Its pictures, in their order.")
    claims: list[CaptureAttempt] = Field(description="Its claims, in their order.")
    version: ShownVersion | None = Field(description="The version it made; null: the day had not changed.")
    events: list[ShownEvent] = Field(description="What it has noticed.")
    notifications: list[ListedNotification] = Field(description="What its user is told.")

    @classmethod
    def of(cls, found: record.Capture) -> ShownCapture:
        told = ListedCapture.model_validate(found.summary).model_dump()
        return cls(
            **told,
            schedule_date=day_of(found),
            pictures=[CaptureImage.model_validate(one) for one in found.images],
            claims=[CaptureAttempt.model_validate(one) for one in found.attempts],
            version=found.version and ShownVersion.model_validate(found.version),
            events=[ShownEvent.of(one) for one in found.events],
            notifications=[ListedNotification.model_validate(one) for one in found.notifications],
        )


def day_of(found: record.Capture) -> date | None:
    """The day that a session has changed, if it has."""
    of_events = next((one.schedule_date for one in found.events), None)
    return found.version.schedule_date if found.version else of_events


class DayHistory(Answer):
    """What has happened to a day, the first thing first."""

    user_id: int = Field(description="Whose.")
    schedule_date: date = Field(description="Which.")
    versions: list[ShownVersion] = Field(description="The payloads that were kept.")
    events: list[ShownEvent] = Field(description="What has changed.")
    notifications: list[ListedNotification] = Field(description="What its user was told.")
    captures: list[ListedCapture] = Field(description="The sessions behind it.")
    cut: bool = Field(description="Whether there is more: then the newest is told.")

    @classmethod
    def of(cls, found: record.History) -> DayHistory:
        return cls(
            user_id=found.user_id,
            schedule_date=found.schedule_date,
            versions=[ShownVersion.model_validate(one) for one in found.versions],
            events=[ShownEvent.of(one) for one in found.events],
            notifications=[ListedNotification.model_validate(one) for one in found.notifications],
            captures=[ListedCapture.model_validate(one) for one in found.captures],
            cut=found.cut,
        )


class Erased(Answer):
    """What was removed of a user."""

    rows: int = Field(description="How many rows.")
    tables: dict[str, int] = Field(description="The same by table.")
