"""Two versions of a day, entry beside entry. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import chain

from holdfast.apps.schedules.record import Line
from holdfast.apps.schedules.values import Entry

FIELDS = ("start", "end", "title", "location", "address")

# What makes two entries the same one, the surest first. Each step uses up what it has matched. One that is
# at another place at another time, too, is another entry: that is how the diff sees it.
_STEPS: tuple[Callable[[Entry], Hashable], ...] = (
    lambda entry: tuple(entry.get(field) for field in FIELDS),
    lambda entry: (_word(entry, "title"), _word(entry, "location")),
    lambda entry: (_word(entry, "title"), entry["start"], entry["end"]),
    lambda entry: (_word(entry, "location"), entry["start"], entry["end"]),
)


def aligned(one: Sequence[Entry], other: Sequence[Entry]) -> tuple[Line, ...]:
    """The entries of both, each beside what it has become, in the order of a day.

    >>> early: Entry = {"start": "09:00", "end": "10:00", "title": "Ada", "location": "Billdal"}
    >>> [(line.mark, line.differs) for line in aligned([early], [{**early, "end": "11:00"}])]
    [('changed', ('end',))]
    """
    left, right, pairs = list(one), list(other), list[tuple[Entry, Entry]]()
    for step in _STEPS:
        places: dict[Hashable, list[Entry]] = {}
        for entry in right:
            places.setdefault(step(entry), []).append(entry)
        rest: list[Entry] = []
        for entry in left:
            if found := places.get(step(entry)):
                pairs.append((entry, found.pop(0)))
            else:
                rest.append(entry)
        left, right = rest, list(chain.from_iterable(places.values()))
    lines = [
        *(Line(before, after, _differing(before, after)) for before, after in pairs),
        *(Line(before, None) for before in left),
        *(Line(None, after) for after in right),
    ]
    return tuple(sorted(lines, key=_order))


def _differing(one: Entry, other: Entry) -> tuple[str, ...]:
    return tuple(field for field in FIELDS if one.get(field) != other.get(field))


def _order(line: Line) -> tuple[str, ...]:
    entry = line.other or line.one
    assert entry is not None
    return (*(str(entry.get(field, "")) for field in FIELDS), line.mark)


def _word(entry: Entry, field: str) -> str:
    return str(entry.get(field, "")).casefold()
