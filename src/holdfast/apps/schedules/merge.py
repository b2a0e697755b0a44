"""Makes one shift of those that several pictures of a day show. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.apps.schedules.shifts import COMPANY_WORDS, customer_fingerprint, location_fingerprint, shifts
from holdfast.apps.schedules.values import Entry, Shift

DAY = 24 * 60  # minutes
NEAR = 5  # minutes by which two readings of one shift may differ, start and end together
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


def merged(pages: Sequence[Sequence[Entry]], company_words: Sequence[str] = COMPANY_WORDS) -> list[Entry]:
    """The shifts of all pages, each once, in the order in which they were seen.

    Within a page nothing is merged: what stands there twice is there twice.

    >>> page = [Entry(start="09:00", end="12:00", title="Sjöberg M.", location="Billdal")]
    >>> merged([page, [Entry(start="09:02", end="12:00", title="Marie Sjöberg", location="Bi11dal")]])
    [{'start': '09:00', 'end': '12:00', 'title': 'Marie Sjöberg', 'location': 'Billdal'}]
    """
    known: list[Entry] = []
    for page in pages:
        known = _joined(known, page, company_words)
    return known


def _joined(known: Sequence[Entry], page: Sequence[Entry], company_words: Sequence[str]) -> list[Entry]:
    """What is known, with a page: each of its shifts is joined to the nearest known one, one to one."""
    old = [_Reading(entry, company_words) for entry in known]
    new = [_Reading(entry, company_words) for entry in page]
    pairs = sorted(
        (distance, there, here)
        for there, one in enumerate(old)
        for here, other in enumerate(new)
        if (distance := one.distance(other)) is not None
    )
    partner: dict[int, int] = {}
    for _, there, here in pairs:
        if there not in partner and here not in partner.values():
            partner[there] = here
    joined = [
        one.joined(new[partner[there]], company_words) if there in partner else one.entry
        for there, one in enumerate(old)
    ]
    return joined + [one.entry for here, one in enumerate(new) if here not in partner.values()]


class _Reading:
    """An entry with what it means; without minutes if its times are none, which a later step refuses."""

    def __init__(self, entry: Entry, company_words: Sequence[str]) -> None:
        self.entry = entry
        self.meaning = _meaning(entry, company_words)
        self.bare = not any(entry.get(name) for name in TEXTS)
        times = [_TIME.fullmatch(entry["start"]), _TIME.fullmatch(entry["end"])]
        minutes = [int(found[1]) * 60 + int(found[2]) for found in times if found]
        self.minutes = (minutes[0], minutes[1]) if len(minutes) == 2 else None

    def distance(self, other: _Reading) -> int | None:
        """How far apart two readings of one shift are, in minutes; None if they are different shifts.

        Of a card that is cut off by the edge of a picture, perhaps only the time was left: that is the shift
        of the same time, after all others.
        """
        if self.minutes is None or other.minutes is None:
            return None
        apart = sum(abs(_turn(*pair)) for pair in zip(self.minutes, other.minutes, strict=True))
        if apart <= NEAR and self._same("location_fingerprint", other, NOWHERE):
            return apart
        if apart <= NEAR and (self.bare or other.bare):
            return apart + DAY
        contained = _contains(self.minutes, other.minutes) or _contains(other.minutes, self.minutes)
        return apart if contained and self._same("customer_fingerprint", other, NOBODY) else None

    def _same(self, name: str, other: _Reading, nothing: str) -> bool:
        mine = getattr(self.meaning, name)
        return mine == getattr(other.meaning, name) != nothing

    def joined(self, other: _Reading, company_words: Sequence[str]) -> Entry:
        """One entry of two readings: the whole time, and of each text the longer one.

        If those together no longer tell the kind of work, the texts of the one that did are kept.
        """
        one, two = self.entry, other.entry
        start, end = _whole(self, other)
        texts = {name: _longer(one.get(name, ""), two.get(name, "")) for name in TEXTS}
        both = _made(start, end, texts)
        if _meaning(both, company_words).shift_type == UNKNOWN:
            for reading in (self, other):
                if reading.meaning.shift_type != UNKNOWN:
                    own = {name: reading.entry.get(name, "") or texts[name] for name in TEXTS}
                    return _made(start, end, own)
        return both


UNKNOWN = "UNKNOWN"
TEXTS = ("title", "location", "address")
NOBODY = customer_fingerprint("")
NOWHERE = location_fingerprint("", "", "")


def _meaning(entry: Entry, company_words: Sequence[str]) -> Shift:
    return shifts({"schedule_date": "", "entries": [entry]}, company_words)[0]


def _made(start: str, end: str, texts: dict[str, str]) -> Entry:
    entry: Entry = {"start": start, "end": end, "title": texts["title"], "location": texts["location"]}
    if texts["address"]:
        entry["address"] = texts["address"]
    return entry


def _whole(one: _Reading, two: _Reading) -> tuple[str, str]:
    """The time that covers both: of the longer one if it contains the other, else the nearer way round."""
    assert one.minutes is not None
    assert two.minutes is not None
    if _contains(one.minutes, two.minutes):
        return one.entry["start"], one.entry["end"]
    if _contains(two.minutes, one.minutes):
        return two.entry["start"], two.entry["end"]
    starts, ends = zip(one.minutes, two.minutes, strict=True)
    return (
        (two if _turn(*starts) < 0 else one).entry["start"],
        (two if _turn(*ends) > 0 else one).entry["end"],
    )


def _contains(outer: tuple[int, int], inner: tuple[int, int]) -> bool:
    """Whether one time is within another; both may go over midnight, and a single moment has no length."""
    length, inside = ((end - start) % DAY for start, end in (outer, inner))
    return (inner[0] - outer[0]) % DAY + inside <= length


def _turn(one: int, two: int) -> int:
    """The minutes from one time to another, the shorter way round the clock."""
    return (two - one + DAY // 2) % DAY - DAY // 2


def _longer(one: str, two: str) -> str:
    return two if len(two) > len(one) else one
