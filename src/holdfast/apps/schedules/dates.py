"""Finds the day that a picture is about in its lines: Swedish and English months, or 2026-03-02. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from holdfast.apps.schedules.shifts import without_accents
from holdfast.apps.schedules.values import Refusal

_MONTHS = (
    "januari january jan",
    "februari february feb febr",
    "mars march mar",
    "april apr",
    "maj may",
    "juni june jun",
    "juli july jul",
    "augusti august aug",
    "september sep sept",
    "oktober october okt oct",
    "november nov",
    "december dec",
)
_WEEKDAYS = (  # without accents
    "mandag monday man mon",
    "tisdag tuesday tis tue tues",
    "onsdag wednesday ons wed",
    "torsdag thursday tor tors thu thur thurs",
    "fredag friday fre fri",
    "lordag saturday lor sat",
    "sondag sunday son sun",
)
MONTHS = {word: number for number, words in enumerate(_MONTHS, 1) for word in words.split()}
WEEKDAYS = {word: number for number, words in enumerate(_WEEKDAYS) for word in words.split()}

HALF_A_YEAR = timedelta(days=184)

_MONTH = "|".join(sorted(MONTHS, key=len, reverse=True))
_DAY = r"(?P<day>[0-9]{1,2})(?:st|nd|rd|th|:?[ae]|\.)?"
_YEAR = r"(?:,? +(?P<year>20[0-9]{2}))?"
_FORMS = tuple(
    re.compile(rf"(?<![\w/.:-]){form}(?![\w/:])")
    for form in (
        rf"{_DAY} *(?:of +)?(?P<month>{_MONTH})\.?{_YEAR}",
        rf"(?P<month>{_MONTH})\.? *{_DAY}{_YEAR}",
        r"(?P<year>20[0-9]{2})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
    )
)
_WORD = re.compile(r"[a-z]+")
# From one day to another, as a week is named (2-8 mars, March 2-8): that names no day.
_BEFORE = re.compile(r"[0-9] *[-–—−] *$")  # noqa: RUF001 (dashes of all kinds)
_BEHIND = re.compile(r" *[-–—−] *[0-9]{1,2} *(,|$|20[0-9]{2})")  # noqa: RUF001
_FULL = {word for words in _WEEKDAYS for word in words.split()[:2]}  # alone, Tor or Son may be a name
_WEEK = {"vecka", "week", "v"}
_BESIDE = _WEEK | {"den", "the", "of", "idag", "today", "imorgon", "tomorrow", "schema", "schedule"}


@dataclass(frozen=True)
class Mention:
    """A day that a line names, with a weekday or not, and alone in its line or within a text."""

    day: date
    weekday: bool
    heading: bool


def date_in(lines: Sequence[str], near: date) -> date | None:
    """The day that the lines of one picture name, or None; `Refusal` dates_disagree if they name several.

    A line with a weekday goes before one without: below the heading there may be other dates. A date without
    a year is the one nearest to `near`, the day of the capture: schedules are pictured within half a year.

    >>> date_in(["Uppdaterad 27 feb", "Måndag 2 mars"], near=date(2026, 3, 1))
    datetime.date(2026, 3, 2)
    """
    return date_of([lines], near)


def date_of(pictures: Iterable[Sequence[str]], near: date) -> date | None:
    """The day that all the pictures of a session are about; one that names none has the day of the others.

    A date within a text counts only if no picture has a heading.
    """
    best = [mention for lines in pictures for mention in _best(lines, near)]
    telling = [mention for mention in best if mention.weekday or mention.heading] or best
    days = sorted({mention.day for mention in telling})
    if len(days) > 1:
        told = " and ".join(day.isoformat() for day in days[:5])
        raise Refusal("dates_disagree", f"the pictures show more than one day: {told}", "layout")
    return days[0] if days else None


def is_heading(line: str) -> bool:
    """Whether a line says nothing but a date or a weekday, and so is no part of a shift.

    >>> is_heading("Måndag 2 mars 2026"), is_heading("Idag"), is_heading("Mars Bergström 12")
    (True, True, False)
    """
    plain = _plain(line)
    rest = plain
    for form in _FORMS:
        rest = form.sub(" ", rest)
    words = re.findall(r"\w+", rest)
    dated, week = rest != plain, not _WEEK.isdisjoint(words)
    names = _BESIDE | (WEEKDAYS.keys() if dated else _FULL)
    return (dated or bool(words)) and all(word in names or (week and word.isdigit()) for word in words)


def _best(lines: Sequence[str], near: date) -> list[Mention]:
    """What the most telling lines of a picture name."""
    found = [mention for line in lines for mention in _mentions(line, near)]
    ranks = [(mention.weekday, mention.heading) for mention in found]
    return [mention for mention, rank in zip(found, ranks, strict=True) if rank == max(ranks)]


def _mentions(line: str, near: date) -> Iterator[Mention]:
    weekdays = {WEEKDAYS[word] for word in _WORD.findall(_plain(line)) if word in WEEKDAYS}
    for day in _days(_plain(line), near):
        # A weekday that does not fit was read wrongly, or the date was: then there is no telling.
        if not weekdays or day.weekday() in weekdays:
            yield Mention(day, weekday=bool(weekdays), heading=is_heading(line))


def _days(plain: str, near: date) -> Iterator[date]:
    for form in _FORMS:
        for found in form.finditer(plain):
            if _BEFORE.search(plain[: found.start()]) or _BEHIND.match(plain, found.end()):
                continue
            month = found["month"]
            number = int(month) if month.isdigit() else MONTHS[month]
            if day := _day(found["year"], number, int(found["day"]), near):
                yield day


def _day(year: str | None, month: int, day: int, near: date) -> date | None:
    """The day in its year; without one, the nearest, if that is near: 29 February may be years away."""
    if year:
        return _calendar(int(year), month, day)
    days = [_calendar(near.year + way, month, day) for way in (1, 0, -1)]
    return min(
        (found for found in days if found and abs(found - near) <= HALF_A_YEAR),
        default=None,
        key=lambda found: abs(found - near),
    )


def _calendar(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def _plain(line: str) -> str:
    return " ".join(without_accents(line).lower().split())
