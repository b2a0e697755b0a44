"""Tells how a day has changed, as few changes as possible, and what is known of it afterwards. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product

from holdfast.apps.schedules.shifts import name_without_type, sort_key
from holdfast.apps.schedules.values import Change, Difference, EventType, Shift

_TIME = re.compile(r"(?:[01][0-9]|2[0-3]):[0-5][0-9]")
DAY = 24 * 60  # minutes
Time = int | str
Times = tuple[Time, Time]
Pair = tuple[Shift, Shift]
Key = Callable[[Shift], tuple[str, ...]]
Pairing = Callable[[list[Shift], list[Shift]], list[Pair]]


def diff(old: Sequence[Shift], new: Sequence[Shift]) -> Difference:
    """The changes from what was known to what is seen now, and the day as it is known after them.

    Each stage uses up what it pairs. A pair without a change keeps its old value, so that a wobble of
    spelling under equal fingerprints neither is news nor is what the next observation is compared with.
    """
    olds, news = sorted(old, key=sort_key), sorted(new, key=sort_key)
    changes: list[Change] = []
    snapshot: list[Shift] = []
    for known, seen in _take(olds, news, _place_and_customer, _nearest):
        kind = _kind(known, seen)
        snapshot.append(known if kind is None else seen)
        if kind is not None:
            changes.append(Change(kind, known, seen))
    for key, kind in _STAGES:
        for known, seen in _take(olds, news, key, _in_order):
            snapshot.append(seen)
            changes.append(Change(kind, known, seen))
    changes += [Change("shift_removed", known, None) for known in olds]
    changes += [Change("shift_added", None, seen) for seen in news]
    return Difference(tuple(changes), tuple(sorted([*snapshot, *news], key=sort_key)))


def distance(one: Shift, other: Shift) -> int:
    """How far apart two shifts are: the minutes between their starts, and those between their ends.

    On the clock's circle: 23:50 is twenty minutes from 00:10. What is no time is half a day from any other.
    """
    return _between(_times(one), _times(other))


def _kind(known: Shift, seen: Shift) -> EventType | None:
    """What changed between two shifts of one customer at one place."""
    if (known.start, known.end) != (seen.start, seen.end):
        return "shift_time_changed"
    if known.shift_type != seen.shift_type and name_without_type(known) == name_without_type(seen):
        return "shift_reclassified"
    if known.customer_name != seen.customer_name:
        return "shift_retitled"
    return None


def _place_and_customer(shift: Shift) -> tuple[str, ...]:
    return shift.location_fingerprint, shift.customer_fingerprint


def _customer_and_time(shift: Shift) -> tuple[str, ...]:
    return shift.customer_fingerprint, shift.start, shift.end


def _place_and_time(shift: Shift) -> tuple[str, ...]:
    return shift.location_fingerprint, shift.start, shift.end


def _place_time_and_name(shift: Shift) -> tuple[str, ...]:
    return *_place_and_time(shift), name_without_type(shift)


def _place_time_name_and_type(shift: Shift) -> tuple[str, ...]:
    return *_place_time_and_name(shift), shift.shift_type


_STAGES: tuple[tuple[Key, EventType], ...] = (
    (_customer_and_time, "shift_relocated"),
    (_place_time_name_and_type, "shift_retitled"),
    (_place_time_and_name, "shift_reclassified"),
    (_place_and_time, "shift_retitled"),
)


def _take(olds: list[Shift], news: list[Shift], key: Key, pairing: Pairing) -> list[Pair]:
    """Takes the pairs that agree in `key` out of both lists, in the order of what is seen now."""
    left, right = _groups(olds, key), _groups(news, key)
    pairs = [pair for name in left.keys() & right.keys() for pair in pairing(left[name], right[name])]
    olds[:] = _without(olds, (known for known, _ in pairs))
    news[:] = _without(news, (seen for _, seen in pairs))
    return sorted(pairs, key=lambda pair: (sort_key(pair[1]), sort_key(pair[0])))


def _groups(shifts: list[Shift], key: Key) -> dict[tuple[str, ...], list[Shift]]:
    found: dict[tuple[str, ...], list[Shift]] = {}
    for shift in shifts:
        found.setdefault(key(shift), []).append(shift)
    return found


def _without(shifts: Iterable[Shift], taken: Iterable[Shift]) -> list[Shift]:
    """The shifts without those that are taken, each as often as it is taken."""
    left = Counter(taken)
    kept: list[Shift] = []
    for shift in shifts:
        if left[shift]:
            left[shift] -= 1
        else:
            kept.append(shift)
    return kept


def _in_order(olds: list[Shift], news: list[Shift]) -> list[Pair]:
    return list(zip(olds, news, strict=False))


def _nearest(olds: list[Shift], news: list[Shift]) -> list[Pair]:
    """Pairs what is equal, then again and again the two that are nearest in time; ties by their order.

    By distance in buckets, for there are at most a day's minutes of them: many twins must not cost a sort.
    """
    same = list((Counter(olds) & Counter(news)).elements())
    left, right = _without(olds, same), _without(news, same)
    buckets: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for (i, one), (j, other) in product(enumerate(map(_times, left)), enumerate(map(_times, right))):
        buckets[_between(one, other)].append((i, j))
    pairs = [(shift, shift) for shift in same]
    free_left, free_right = set(range(len(left))), set(range(len(right)))
    for i, j in chain.from_iterable(buckets[apart] for apart in sorted(buckets)):
        if i in free_left and j in free_right:
            free_left.remove(i)
            free_right.remove(j)
            pairs.append((left[i], right[j]))
    return pairs


def _between(one: Times, other: Times) -> int:
    return _apart(one[0], other[0]) + _apart(one[1], other[1])


def _apart(one: Time, other: Time) -> int:
    if one == other:
        return 0
    if isinstance(one, str) or isinstance(other, str):
        return DAY // 2
    way = abs(one - other)
    return min(way, DAY - way)


def _times(shift: Shift) -> Times:
    return _time(shift.start), _time(shift.end)


def _time(text: str) -> Time:
    """The minute of the day; the text itself if it is no time, as a snapshot of somebody else's may hold."""
    return int(text[:2]) * 60 + int(text[3:]) if _TIME.fullmatch(text) else text
