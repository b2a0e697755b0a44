"""Whether the record of a day is true: versions, events, snapshot and messages must agree. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from uuid import UUID

from holdfast.apps.schedules.canonical import canonical, canonical_json, digest
from holdfast.apps.schedules.events import event_id, slot_of
from holdfast.apps.schedules.looks import StoredEvent, read
from holdfast.apps.schedules.messages import notice_id
from holdfast.apps.schedules.record import Version
from holdfast.apps.schedules.replay import ReplayError, replay
from holdfast.apps.schedules.shifts import from_json
from holdfast.apps.schedules.values import Change, Event, Json, Refusal, Shift, Slot

EARLIEST_ZONE = timedelta(hours=14)  # where a day begins first on earth
MESSAGES = timedelta(milliseconds=1)  # those of an observation come within it, and the next one after it
MOST_TOLD = 3  # shifts that one sentence names
SIDES = {"shift_added": (False, True), "shift_removed": (True, False)}  # old, new; all others have both


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The day as it is known, as its row has it."""

    user_id: int
    schedule_date: date
    shifts: Json
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The day when its events until then were evicted, as its row has it."""

    user_id: int
    schedule_date: date
    shifts: Json
    until: datetime


@dataclass(frozen=True, kw_only=True)
class Told:
    """A message, as far as it can be proven."""

    id: str
    user_id: int
    schedule_date: date
    session_id: UUID
    type: str
    event_ids: Json
    created_at: datetime


@dataclass(kw_only=True)
class Kept:
    """All that is recorded of one day."""

    user_id: int
    schedule_date: date
    pointer: int | None = None
    snapshot: Snapshot | None = None
    origin: Origin | None = None
    versions: list[Version] = field(default_factory=list[Version])
    events: list[StoredEvent] = field(default_factory=list[StoredEvent])
    notices: list[Told] = field(default_factory=list[Told])

    @property
    def empty(self) -> bool:
        """Whether nobody has ever seen this day."""
        return not (self.pointer or self.snapshot or self.versions or self.events or self.notices)


def problems(kept: Kept) -> Iterator[str]:
    """What is not true, as sentences; nothing, if the record of the day holds."""
    yield from _numbers(kept)
    for version in kept.versions:
        yield from _version(kept, version)
    for before, after in zip(kept.versions, kept.versions[1:], strict=False):
        if (after.version, after.payload_hash) == (before.version + 1, before.payload_hash):
            yield f"version {after.version} is the same as version {before.version}"
    try:
        events = [read(event) for event in kept.events]
    except Refusal as error:
        yield f"an event cannot be read: {error.sentence}"
        return
    yield from _events(kept, events)
    yield from _snapshot(kept, events)
    yield from _messages(kept, events)


# -- versions --------------------------------------------------------------------------------------------


def _numbers(kept: Kept) -> Iterator[str]:
    numbers = [version.version for version in kept.versions]
    if missing := sorted(set(range(1, max(numbers, default=0) + 1)).difference(numbers)):
        yield f"version {missing[0]} is missing: the last one is {numbers[-1]}"
    last = max(numbers, default=None)
    if kept.pointer != last:
        pointed = "nothing" if kept.pointer is None else f"version {kept.pointer}"
        yield f"the day points to {pointed}, and its last version is {'none' if last is None else last}"


def _version(kept: Kept, version: Version) -> Iterator[str]:
    name = f"version {version.version}"
    if digest(canonical_json(version.payload)) != version.payload_hash:
        yield f"{name} has another hash than its payload"
    try:
        payload = canonical(version.payload)
    except Refusal as error:
        yield f"{name} is no day: {error.sentence}"
        return
    if payload != version.payload:
        yield f"{name} is not in its canonical form"
    if payload["schedule_date"] != kept.schedule_date.isoformat():
        yield f"{name} is about {payload['schedule_date']}"


# -- events and snapshot ---------------------------------------------------------------------------------


def _events(kept: Kept, events: Sequence[Event]) -> Iterator[str]:
    equal: defaultdict[tuple[str, Shift | None, Shift | None], list[Event]] = defaultdict(list)
    times: defaultdict[UUID, set[datetime]] = defaultdict(set)
    for event in events:
        if SIDES.get(event.type, (True, True)) != (event.old is not None, event.new is not None):
            yield f"event {event.id} is a {event.type}, and has not the values of one"
            continue
        equal[event.type, event.old, event.new].append(event)
        times[event.session_id].add(event.detected_at)
    for alike in equal.values():
        yield from _alike(kept, alike)
    for session, moments in times.items():
        if len(moments) > 1:
            yield f"session {session} has noticed things at {len(moments)} times, and not at one"


def _alike(kept: Kept, events: Sequence[Event]) -> Iterator[str]:
    """Equal events have the places 0, 1, 2 … of one change, and each the id of its place."""
    change = Change(events[0].type, events[0].old, events[0].new)
    side = change.new or change.old
    places = {slot_of(change, occurrence) for occurrence in range(len(events))}
    for event in events:
        slot = Slot(
            location_fingerprint=event.location_fingerprint,
            type=event.type,
            old_hash=event.old_hash,
            new_hash=event.new_hash,
        )
        if slot not in places or (side and event.customer_fingerprint != side.customer_fingerprint):
            yield f"event {event.id} has other hashes or fingerprints than its values"
        elif event.id != event_id(kept.user_id, kept.schedule_date, slot):
            yield f"event {event.id} has not the id of what it tells"


def _snapshot(kept: Kept, events: Sequence[Event]) -> Iterator[str]:
    if kept.snapshot is None:
        if kept.versions or events:
            yield "there is no snapshot"
        return
    try:
        known = Counter(from_json(value) for value in kept.snapshot.shifts)
        origin = [from_json(value) for value in kept.origin.shifts] if kept.origin else []
    except Refusal as error:
        yield f"the snapshot cannot be read: {error.sentence}"
        return
    try:
        replayed = Counter(replay(events, origin))
    except ReplayError as error:
        yield str(error)
        return
    if lacking := replayed - known:
        yield f"the snapshot lacks {_shifts(lacking)}, which the events have brought"
    if further := known - replayed:
        yield f"the snapshot has {_shifts(further)}, which no event has brought"
    if events and kept.snapshot.updated_at < max(event.detected_at for event in events):
        yield "the snapshot is older than the last event"
    if kept.origin and any(event.detected_at <= kept.origin.until for event in events):
        yield "there is an event that is as old as those that were evicted"


def _shifts(shifts: Counter[Shift]) -> str:
    some = [f"{one.start} to {one.end} {one.customer_name}".rstrip() for one in shifts.elements()]
    more = f" and {len(some) - MOST_TOLD} more" if len(some) > MOST_TOLD else ""
    return ", ".join(some[:MOST_TOLD]) + more


# -- messages --------------------------------------------------------------------------------------------


def _messages(kept: Kept, events: Sequence[Event]) -> Iterator[str]:
    sessions = {str(event.id): event.session_id for event in events}
    times: Counter[str] = Counter()
    for notice in kept.notices:
        ids = [str(one) for one in notice.event_ids]
        parts = ids if notice.type == "event" else ["summary", *ids]
        if notice.id != notice_id(kept.user_id, kept.schedule_date, notice.session_id, parts):
            yield f"notification {notice.id} has not the id of what it tells"
        if kept.origin and notice.created_at < kept.origin.until + MESSAGES:
            continue  # its events were evicted; a later one may have the id of one of them
        times.update(ids)
        for one in ids:
            if sessions.get(one) != notice.session_id:
                whose = "it is of another session" if one in sessions else "there is none such"
                yield f"notification {notice.id} tells of event {one}: {whose}"
    for event in events:
        if times[str(event.id)] > 1:
            yield f"event {event.id} is told by {times[str(event.id)]} notifications"
        elif not times[str(event.id)] and not _perhaps_over(kept.schedule_date, event.detected_at):
            yield f"event {event.id} is told by no notification"


def _perhaps_over(day: date, at: datetime) -> bool:
    """Whether the day was over somewhere on earth: nobody is told any more, and no row has the time zone."""
    try:
        return day < (at + EARLIEST_ZONE).date()
    except OverflowError:
        return True
