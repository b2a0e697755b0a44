"""What goes through the pipeline: frozen, named, and without behaviour of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Literal, NotRequired, Protocol, TypedDict
from uuid import UUID

import msgspec

Json = Any  # what json.loads may give

EventType = Literal[
    "shift_added",
    "shift_removed",
    "shift_time_changed",
    "shift_relocated",
    "shift_retitled",
    "shift_reclassified",
]
NoticeType = Literal["event", "summary"]
Stage = Literal["ocr", "layout", "diff", "db", "lifecycle"]


class Refusal(Exception):
    """A session that cannot be processed: a stable code, a sentence for people, and where it happened."""

    def __init__(self, code: str, sentence: str, stage: Stage = "ocr") -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = str(code)  # an extractor of somebody's own may give anything
        self.sentence = str(sentence)
        self.stage: Stage = stage
        self.trace: str | None = None  # for the log alone


@dataclass(frozen=True, kw_only=True)
class Session:
    """A capture session, as its extractor sees it."""

    id: UUID
    user_id: int
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Image:
    """One picture of a session; `r2_key` is where the object store has it."""

    id: UUID
    sequence: int
    r2_key: str
    telegram_message_id: int | None
    created_at: datetime


class Extractor(Protocol):
    """Reads the day out of a session: `{schedule_date, entries: [{start, end, title, location, address?}]}`.

    `needs_images`: a session without any is left alone until it has one.
    """

    @property
    def needs_images(self) -> bool: ...

    async def extract(self, session: Session, images: Sequence[Image]) -> Json:
        """The day as it was read; raises `Refusal` for what cannot be read."""
        ...


class Entry(TypedDict):
    """One line of a day, canonical."""

    start: str
    end: str
    title: str
    location: str
    address: NotRequired[str]


class Payload(TypedDict):
    """A day, canonical: what is hashed and kept as a version."""

    schedule_date: str
    entries: list[Entry]


class Shift(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry means: eleven texts. Equal fingerprints mean the same place, or the same customer."""

    start: str
    end: str
    customer_name: str
    customer_fingerprint: str
    street: str
    street_number: str
    postal_code: str
    postal_area: str
    city: str
    location_fingerprint: str
    shift_type: str


@dataclass(frozen=True)
class Change:
    """One difference between two observations of a day."""

    type: EventType
    old: Shift | None
    new: Shift | None


@dataclass(frozen=True)
class Difference:
    """The changes, in the order of their stages, and the day as it is known after them."""

    changes: tuple[Change, ...]
    snapshot: tuple[Shift, ...]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """What makes an event unique within its day."""

    location_fingerprint: str
    type: EventType
    old_hash: str
    new_hash: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change as it is recorded."""

    id: UUID
    user_id: int
    schedule_date: date
    type: EventType
    location_fingerprint: str
    customer_fingerprint: str
    old_hash: str
    new_hash: str
    old: Shift | None
    new: Shift | None
    detected_at: datetime
    session_id: UUID


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A message to a user about a day."""

    id: str
    user_id: int
    schedule_date: date
    session_id: UUID
    type: NoticeType
    message: str
    event_ids: tuple[UUID, ...]
