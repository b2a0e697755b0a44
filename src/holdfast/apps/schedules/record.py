"""What the record of a person's days answers with: frozen, named, and without behaviour of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Generic, Literal, TypeVar
from uuid import UUID

from holdfast.apps.schedules.values import Change, Entry, Event, Image, Json, Shift

T = TypeVar("T")
Mark = Literal["same", "changed", "removed", "added"]


@dataclass(frozen=True)
class Listed(Generic[T]):
    """Some rows, and the cursor of the next page (None: there is none)."""

    items: tuple[T, ...]
    cursor: str | None


# -- days ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Day:
    """A day as it is known now, or was known at a time.

    `version` is None where no payload was kept until then. `session_id` and `updated_at` tell of the last
    observation; None where the day has versions that another program wrote, and nothing else.
    """

    user_id: int
    schedule_date: date
    at: datetime | None
    version: int | None
    shifts: tuple[Shift, ...]
    session_id: UUID | None
    updated_at: datetime | None
    payload: Json
    payload_hash: str | None


@dataclass(frozen=True, kw_only=True)
class DaySummary:
    """A day as a list shows it."""

    user_id: int
    schedule_date: date
    version: int
    shifts: int
    session_id: UUID | None
    updated_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Version:
    """A payload that was kept."""

    user_id: int
    schedule_date: date
    version: int
    session_id: UUID
    payload: Json
    payload_hash: str
    created_at: datetime


@dataclass(frozen=True)
class Line:
    """An entry of one version beside the one that it has become in another.

    `differs` names the fields, where both are there.
    """

    one: Entry | None
    other: Entry | None
    differs: tuple[str, ...] = ()

    @property
    def mark(self) -> Mark:
        """What has become of the entry."""
        if self.one is None:
            return "added"
        if self.other is None:
            return "removed"
        return "changed" if self.differs else "same"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two versions of a day side by side: entry by entry, and what the difference means."""

    one: Version
    other: Version
    lines: tuple[Line, ...]
    changes: tuple[Change, ...]


# -- captures and messages -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One claim of a session; without `ended_at` it is under way."""

    attempt: int
    worker: str
    claimed_at: datetime
    ended_at: datetime | None
    outcome: str | None


@dataclass(frozen=True, kw_only=True)
class CaptureSummary:
    """A capture session as a list shows it, with the number of its images and of its claims."""

    id: UUID
    user_id: int
    state: str
    created_at: datetime
    error: str | None
    locked_at: datetime | None
    locked_by: str | None
    images: int
    attempts: int


@dataclass(frozen=True, kw_only=True)
class Try:
    """One try to send a message: without `error` it was sent, with `next_at` it is tried again."""

    attempt: int
    tried_at: datetime
    error: str | None
    next_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class NotificationSummary:
    """A message as a list shows it, with what its last try told."""

    id: str
    user_id: int
    schedule_date: date
    session_id: UUID
    status: str
    type: str
    message: str
    event_ids: tuple[str, ...]
    created_at: datetime
    sent_at: datetime | None
    attempts: int
    error: str | None
    next_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "event_ids", tuple(map(str, self.event_ids)))  # an array comes as a list


@dataclass(frozen=True, kw_only=True)
class Notification:
    """A message with all its tries."""

    summary: NotificationSummary
    tries: tuple[Try, ...]


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A capture session and all that came of it; `version` is None where the day had not changed."""

    summary: CaptureSummary
    images: tuple[Image, ...]
    attempts: tuple[Attempt, ...]
    version: Version | None
    events: tuple[Event, ...]
    notifications: tuple[NotificationSummary, ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """What has happened to a day, the first thing first.

    `captures` are the sessions behind it. `cut`: there is more, and the newest is told.
    """

    user_id: int
    schedule_date: date
    versions: tuple[Version, ...]
    events: tuple[Event, ...]
    notifications: tuple[NotificationSummary, ...]
    captures: tuple[CaptureSummary, ...]
    cut: bool


# -- verification ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something in the record of a day that is not true, as a sentence."""

    user_id: int
    schedule_date: date
    what: str


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a verification has read and found; `problems` are the first hundred of `found`."""

    days: int
    versions: int
    events: int
    notifications: int
    found: int
    problems: tuple[Problem, ...]
