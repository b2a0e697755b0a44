"""Finds the shifts of a day in the places of its texts. Pure: boxes in, entries out.

A picture has columns, a column has cards, a card has lines. Every card with a time is a shift.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from statistics import median

from holdfast.apps.schedules.dates import is_heading
from holdfast.apps.schedules.values import Entry

# Two numbers; readers of pictures take O for 0 and I, l or | for 1.
_DIGIT = r"[0-9OoIl|]"
_COLON, _POINT = (
    re.compile(rf"(?<![\w:|])(?<![0-9][.,])({_DIGIT}{{1,2}}){sign}({_DIGIT}{{2}})(?![.,:]?[0-9])")
    for sign in (":", r"\.")
)
_DIGITS = str.maketrans("OoIl|", "00111")
_POSTAL_CODE = re.compile(r"(?<![0-9])[0-9]{3} ?[0-9]{2}(?![0-9])")
# What may stand beside times and is no name: signs, words, and how long it takes.
_WORDS = re.compile(r"\b(kl|klockan|from|från|to|till|until)\b\.?", re.IGNORECASE)
_LASTING = re.compile(r"\(?\b[0-9]+([.,][0-9]+)? ?(h|hrs?|hours?|tim|timmar|min)\b\.?\)?", re.IGNORECASE)
_SIGNS = " -–—−~|•·,.;:()[]→>"  # noqa: RUF001 (dashes of all kinds)


@dataclass(frozen=True)
class Box:
    """A text and where it stands: its left and upper edge, its width and its height, in pixels."""

    text: str
    x: float
    y: float
    w: float
    h: float

    @property
    def middle(self) -> tuple[float, float]:
        """The centre, across and down."""
        return self.x + self.w / 2, self.y + self.h / 2


Line = tuple[Box, ...]


def columns(boxes: Iterable[Box]) -> list[list[Box]]:
    """The boxes by column, from left to right: a new one begins where the centres stand far apart."""
    ordered = sorted(boxes, key=lambda box: (box.middle, box.text))
    if not ordered:
        return []
    far = max(120, 1.8 * median(box.w for box in ordered))
    found = [[ordered[0]]]
    for before, box in pairwise(ordered):
        if box.middle[0] - before.middle[0] > far:
            found.append([])
        found[-1].append(box)
    return found


def lines(boxes: Iterable[Box]) -> list[Line]:
    """The boxes by line, from top to bottom, and from left to right in each.

    A box belongs to a line if its centre is near that of the line's first box: not of its last one, or a
    slanted picture would be one long line.
    """
    ordered = sorted(boxes, key=lambda box: (box.middle[1], box.x, box.text))
    if not ordered:
        return []
    near = max(8, 0.6 * median(box.h for box in ordered))
    found = [[ordered[0]]]
    for box in ordered[1:]:
        if box.middle[1] - found[-1][0].middle[1] > near:
            found.append([])
        found[-1].append(box)
    return [tuple(sorted(line, key=lambda box: (box.x, box.y, box.text))) for line in found]


def cards(boxes: Iterable[Box]) -> list[list[Line]]:
    """The lines of one column by card: a new one begins after a gap."""
    column = list(boxes)
    found: list[list[Line]] = []
    if not column:
        return found
    wide = max(24, 1.8 * median(box.h for box in column))
    bottom = float("-inf")
    for line in lines(column):
        if min(box.y for box in line) - bottom > wide:
            found.append([])
        found[-1].append(line)
        bottom = max(bottom, *(box.y + box.h for box in line))
    return found


def text_of(line: Line) -> str:
    """What a line says, with single blanks."""
    return " ".join(" ".join(box.text for box in line).split())


def entries(boxes: Iterable[Box]) -> list[Entry]:
    """The shifts that a picture shows, column by column and from top to bottom.

    What could not be read of one is empty: another picture may show the rest of it.
    """
    seen = list(boxes)
    top = set(lines(seen)[0]) if seen else set[Box]()
    found: list[Entry] = []
    for column in columns(seen):
        for card in cards(column):
            texts = [text for text in map(text_of, card) if text and not is_heading(text)]
            times = _pattern(texts)
            for part in _parts(texts, times):
                entry = _entry(part, times, first=top.issuperset(card[0]))
                if entry is not None:
                    found.append(entry)
    return found


def _pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """How a card writes times: with a point only if none has a colon, for 2.14 may be a price or a room."""
    return _COLON if any(_times(text, _COLON) for text in texts) else _POINT


def _parts(texts: Sequence[str], times: re.Pattern[str]) -> Iterator[Sequence[str]]:
    """The lines of each shift: cards that stand close together look like one.

    Each line that begins with a start and an end is a shift's own. Whether it is the first line of its shift
    or the last, the first shift tells.
    """
    own = [place for place, text in enumerate(texts) if _begins_with_range(text, times)]
    cuts = own[1:] if own[:1] == [0] else [place + 1 for place in own[:-1]]
    for begin, end in pairwise([0, *cuts, len(texts)]):
        yield texts[begin:end]


def _entry(texts: Sequence[str], pattern: re.Pattern[str], *, first: bool) -> Entry | None:
    """The shift of a card, or None if it shows none: without a time, or only with that of the telephone.

    `first`: nothing stands above it. There a single line with a single time is the clock.
    """
    found = [_times(text, pattern) for text in texts]
    times = next((times for times in found if len(times) > 1), [time for times in found for time in times])
    names = [name for text in texts if (name := _without_times(text, pattern))]
    if not times or (len(times) == 1 and (not names or (first and len(texts) == 1))):
        return None
    address, location = _place(names[1:])
    entry: Entry = {
        "start": times[0],
        "end": times[min(1, len(times) - 1)],
        "title": names[0] if names else "",
        "location": location,
    }
    if address:
        entry["address"] = address
    return entry


def _place(texts: Sequence[str]) -> tuple[str, str]:
    """Address and location out of what stands below the title; empty where there is none.

    The first line with a number is the address; one with a postal code below it belongs to it. The location
    is the town in the address, else the line below it, else the first line of words.
    """
    at = next((place for place, text in enumerate(texts) if _has_digit(text)), None)
    if at is None:
        return "", texts[0] if texts else ""
    address, after = texts[at], list(texts[at + 1 :])
    if after and _POSTAL_CODE.search(after[0]) and not _POSTAL_CODE.search(address):
        address = f"{address} {after.pop(0)}"
    words = [text for text in (*after, *texts[:at]) if not _has_digit(text)]
    return address, _town(address) or (words[0] if words else "")


def _town(address: str) -> str:
    """The town that ends an address: up to two words in capitals, which "2 tr" (second floor) is not.

    >>> _town("Kyrkogatan 3, 2 tr, 431 37 Mölndal"), _town("Storgatan 5, 2 tr")
    ('Mölndal', '')
    """
    behind = re.split(r"\S*[0-9]\S*", address)[-1]
    words = re.sub(r"[^\w\s'-]", " ", behind).split()
    town = takewhile(lambda word: word[0].isupper(), reversed(words[-2:]))
    return " ".join(reversed(list(town)))


def _times(text: str, pattern: re.Pattern[str]) -> list[str]:
    """The times in a line as HH:MM; midnight at the end of a day is 00:00.

    A time with a colon that is none (29:00) is told as it is, so that the day is refused and not read without
    it. With a point it must be a time.
    """
    found: list[str] = []
    for match in pattern.finditer(text):
        hour, minute = (part.translate(_DIGITS) for part in match.groups())
        letters = not any(sign.isdigit() for sign in match[0])
        if letters or (pattern is _POINT and not (int(hour) < 25 and int(minute) < 60)):
            continue
        found.append("00:00" if (hour, minute) == ("24", "00") else f"{hour:0>2}:{minute}")
    return found


def _begins_with_range(text: str, pattern: re.Pattern[str]) -> bool:
    first = pattern.search(text)
    if first is None or len(_times(text, pattern)) < 2:
        return False
    return not _WORDS.sub("", text[: first.start()]).strip(_SIGNS)


def _without_times(text: str, pattern: re.Pattern[str]) -> str:
    """What a line says beside its times, if that has a letter or a digit."""
    if not _times(text, pattern):
        return text
    rest = _LASTING.sub(" ", _WORDS.sub(" ", pattern.sub(" ", text)))
    return " ".join(rest.strip(_SIGNS).split())


def _has_digit(text: str) -> bool:
    return any(sign.isdigit() for sign in text)
