"""A small town for the soak: what its people's days look like, and what has to be recorded of them.

Everything that is read in a session is made up before. Which of two sessions of a day comes first, its lock
decides: so the versions tell the order, and all the rest follows from it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from holdfast.apps.schedules.canonical import canonical, payload_hash
from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.events import record
from holdfast.apps.schedules.messages import notices
from holdfast.apps.schedules.shifts import COMPANY_WORDS, shifts, to_json
from holdfast.apps.schedules.spelling import with_accents
from holdfast.apps.schedules.values import Notice, Payload, Shift, Slot

DAYS = ("2030-03-04", "2030-03-05", "2030-03-06")  # far ahead: of each change there is a message
CUSTOMERS = ("Marie Sjöberg Städservice", "Annika Berg", "Hovås skola", "Lars Ek AB", "Kontoret Öst")
STREETS = ("Valebergsvägen 316", "Kyrkogatan 3 431 37 Mölndal", "Skolvägen 1", "Storgatan 12")
TOWNS = ("Billdal", "Mölndal", "Hovås")
THRESHOLD = 3  # events from which on there is one summary
BAD = {  # what nobody can read, by the code that it fails with
    "payload_not_json": '{"schedule_date": ',
    "time_invalid": json.dumps(
        {"schedule_date": DAYS[0], "entries": [{"start": "25:00", "end": "9", "title": "x", "location": "y"}]}
    ),
    "schedule_date_invalid": json.dumps({"schedule_date": "2030-02-30", "entries": []}),
}

Entries = list[dict[str, str]]


@dataclass
class Capture:
    """A session: whose, what is read in it, and `bad`: the code that it fails with until it is mended."""

    id: UUID
    user: int
    read: dict[str, Any]
    images: int
    bad: str | None = None
    mended: bool = False

    @property
    def day(self) -> tuple[int, str]:
        return self.user, self.read["schedule_date"]

    @property
    def payload(self) -> Payload:
        return canonical(self.read)

    def put(self, folder: Path) -> None:
        """Lays down what is read: a file appears whole, or not."""
        text = BAD[self.bad] if self.bad and not self.mended else json.dumps(self.read)
        draft = folder / f"{self.id}.draft"
        draft.write_text(text)
        draft.rename(folder / f"{self.id}.json")


@dataclass
class Town:
    """All captures, in the order in which they come."""

    captures: dict[UUID, Capture] = field(default_factory=dict[UUID, Capture])

    @classmethod
    def settled(cls, chance: Random, sessions: int, users: int) -> Town:
        """Everybody's days go through their changes; one session of fifty is bad."""
        town = cls()
        known: dict[tuple[int, str], Entries] = {}
        for number in range(sessions):
            user, day = 1 + number % users, chance.choice(DAYS)
            entries = known[user, day] = _changed(chance, known.get((user, day), []))
            spelled = [_spelled(chance, entry) for entry in entries]
            chance.shuffle(spelled)
            capture = Capture(
                id=UUID(int=chance.getrandbits(128), version=4),
                user=user,
                read={"schedule_date": day, "entries": spelled},
                images=number % 3,
                bad=chance.choice(list(BAD)) if number % 50 == 17 else None,
            )
            town.captures[capture.id] = capture
        return town

    def by_day(self) -> Mapping[tuple[int, str], list[Capture]]:
        """The captures of each day, in their order."""
        found: defaultdict[tuple[int, str], list[Capture]] = defaultdict(list)
        for capture in self.captures.values():
            found[capture.day].append(capture)
        return found


def _entry(chance: Random) -> dict[str, str]:
    start = chance.randrange(6, 20)
    return {
        "start": f"{start:02}:00",
        "end": f"{start + chance.randrange(1, 4):02}:30",
        "title": chance.choice(CUSTOMERS),
        "location": chance.choice(TOWNS),
        "address": chance.choice(STREETS),
    }


def _changed(chance: Random, entries: Entries) -> Entries:
    """A day as it is captured next: often the same, else with a change or two; now and then free."""
    if not entries:
        return [_entry(chance) for _ in range(chance.randrange(1, 5))]
    after = [dict(entry) for entry in entries]
    match chance.randrange(8):
        case 0 | 1:
            pass
        case 2:
            after.append(_entry(chance))
        case 3:
            after.append(dict(chance.choice(after)))  # a twin
        case 4:
            after.remove(chance.choice(after))
        case 5:
            chance.choice(after)["address"] = chance.choice(STREETS)
        case 6:
            chance.choice(after)["title"] = chance.choice(CUSTOMERS)
        case _:
            for entry in chance.sample(after, min(len(after), 2)):
                entry["start"] = f"{chance.randrange(6, 20):02}:15"
    return after[:6]


def _spelled(chance: Random, entry: Mapping[str, str]) -> dict[str, str]:
    """The same, as another reader might write it."""
    hour, minute = entry["start"].split(":")
    start = chance.choice([entry["start"], f"{int(hour)}.{minute}", f"{hour} {minute}"])
    location = chance.choice([entry["location"], entry["location"].upper(), f" {entry['location'].lower()} "])
    return {**entry, "start": start, "location": location}


# -- what must be recorded -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version as it is stored."""

    session_id: UUID
    version: int
    payload: Payload
    payload_hash: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one session must have left: the ids of its events, and its messages."""

    session_id: UUID
    at: datetime
    events: frozenset[UUID]
    notices: Sequence[Notice]


def told(user: int, day: str, versions: Sequence[Version]) -> tuple[list[Told], list[dict[str, str]]]:
    """What the versions of a day, in this order, must have brought; and the day as it is known at the end."""
    known: tuple[Shift, ...] = ()
    taken: dict[Slot, UUID] = {}
    found: list[Told] = []
    when = date.fromisoformat(day)
    payload: Payload | None = None
    for version in versions:
        change = diff(known, shifts(version.payload))
        events, missing = record(
            change.changes,
            user_id=user,
            day=when,
            session_id=version.session_id,
            detected_at=version.created_at,
            taken=taken,
        )
        assert events == missing
        taken |= {
            Slot(
                location_fingerprint=event.location_fingerprint,
                type=event.type,
                old_hash=event.old_hash,
                new_hash=event.new_hash,
            ): version.session_id
            for event in events
        }
        readable = with_accents(events, payload, version.payload, COMPANY_WORDS)
        known, payload = change.snapshot, version.payload
        found.append(
            Told(
                session_id=version.session_id,
                at=version.created_at,
                events=frozenset(event.id for event in events),
                notices=notices(readable, threshold=THRESHOLD, today=None),
            )
        )
    return found, [to_json(shift) for shift in known]


def one_after_the_other(captures: Sequence[Capture]) -> Iterator[tuple[UUID, str]]:
    """The sessions that make a version, and its hash, when they are processed in their order."""
    hashes = ((capture.id, payload_hash(capture.payload)) for capture in captures)
    for digest, alike in groupby(hashes, key=lambda one: one[1]):
        yield next(alike)[0], digest
