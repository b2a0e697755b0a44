"""Numbers, times and durations as people read them. Pure; every time is told in UTC."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from holdfast.engine.values import Event, Json

UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))
NOTHING = "\N{EN DASH}"  # where there is no value
VERBS_DONE: Mapping[str, str] = {"cancel": "cancelled", "requeue": "requeued"}


def count(number: int, *, exact: bool = True) -> str:
    """A number of rows, with a sign when it is an estimate.

    >>> count(1234567), count(5000000, exact=False)
    ('1,234,567', '≈ 5,000,000')
    """
    return f"{number:,}" if exact else f"≈ {number:,}"


def short(number: int) -> str:
    """A number where there is little room.

    >>> short(950), short(12_345), short(5_200_000)
    ('950', '12.3k', '5.2M')
    """
    for size, sign in ((10**9, "G"), (10**6, "M"), (10**4, "k")):
        if number >= size:
            unit = 10**3 if sign == "k" else size
            return f"{number / unit:.1f}".removesuffix(".0") + sign
    return f"{number:,}"


def duration(seconds: float | None) -> str:
    """A length of time in at most two units.

    >>> duration(0.0042), duration(0.25), duration(12.34), duration(200), duration(100_000)
    ('4.2 ms', '250 ms', '12.3 s', '3 min 20 s', '1 d 3 h')
    """
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        millis = seconds * 1000
        return f"{millis:.2g} ms" if millis < 10 else f"{millis:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for (size, name), (smaller, below) in pairwise(UNITS):
        if whole >= size:
            many, rest = divmod(whole, int(size))
            rest //= int(smaller)
            return f"{many:,} {name}" + (f" {rest} {below}" if rest else "")
    return f"{whole} s"


def ago(when: datetime, now: datetime) -> str:
    """How long it is from then, or until then."""
    seconds = (now - aware(when)).total_seconds()
    if seconds < 0:
        return f"in {_whole(-seconds)}"
    return "just now" if seconds < 1 else f"{_whole(seconds)} ago"


def moment(when: datetime, *, precise: bool = False) -> str:
    """A time for people.

    >>> moment(datetime(2030, 1, 31, 12, tzinfo=UTC))
    '2030-01-31 12:00:00'
    """
    at = aware(when)
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return f"{text}.{at.microsecond // 1000:03}" if precise else text


def iso(when: datetime) -> str:
    """A time for machines."""
    return aware(when).isoformat().replace("+00:00", "Z")


def aware(when: datetime) -> datetime:
    """The time in UTC; one without a zone is UTC already."""
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def stamp(when: datetime | None, now: datetime | None = None, *, precise: bool = False) -> Markup:
    """A `time` element: how long ago where `now` is given, else when; the rest as its title."""
    if when is None:
        return Markup('<span class="none">{}</span>').format(NOTHING)
    full = f"{moment(when, precise=True)} UTC"
    shown = ago(when, now) if now else moment(when, precise=precise)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso(when), full, shown)


def pretty(value: Json) -> str:
    """JSON for people, one line for each thing."""
    return json.dumps(value, default=str, ensure_ascii=False, indent=2)


def brief(value: Json, length: int = 80) -> str:
    """JSON on one line, cut."""
    if value is None:
        return ""
    plain = not isinstance(value, dict | list | bool)
    return clip(str(value) if plain else json.dumps(value, default=str, ensure_ascii=False), length)


def clip(text: str, length: int = 80) -> str:
    """The first line of a text, cut."""
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= length else f"{line[: length - 1]}…"


def note(event: Event) -> str:
    """What an event tells beyond its move: how far, why, or until when."""
    told = event.detail
    notes = [str(told[name]) for name in ("stage", "reason") if told.get(name) is not None]
    if (progress := told.get("progress")) is not None:
        notes.append(f"{progress:g} %" if isinstance(progress, int | float) else str(progress))
    if (error := told.get("error")) is not None:
        notes.append(_error(error))
    if told.get("verb") in ("retry", "snooze") and told.get("run_at"):
        notes.append(f"due {_when(told['run_at'])}")
    if told.get("result") is not None:
        notes.append(f"result {brief(told['result'])}")
    return "; ".join(notes)


def prose(text: str) -> Markup:
    """A text with `code` and empty lines between its paragraphs, as descriptions of an API have it.

    >>> prose("Say `<b>`.")
    Markup('<p>Say <code>&lt;b&gt;</code>.</p>')
    """
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("").join(Markup("<p>{}</p>").format(_coded(part)) for part in paragraphs)


def breakable(path: str) -> Markup:
    """A path that may go on in the next line before each of its slashes."""
    return Markup("<wbr>/").join(path.split("/"))


def sentence(text: str) -> Markup:
    """A sentence that begins in lower case, as people write one.

    >>> sentence("it waits: run `holdfast worker`")
    Markup('It waits: run <code>holdfast worker</code>.')
    """
    told = text[:1].upper() + text[1:]
    return _coded(told if told.endswith((".", "!", "?")) else f"{told}.")


def _coded(text: str) -> Markup:
    parts = text.split("`")
    even = len(parts) % 2 == 1  # a lone backtick is a backtick
    if not even:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def rows(number: int) -> str:
    """So many rows.

    >>> rows(1), rows(1200)
    ('1 row', '1,200 rows')
    """
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def _error(error: Any) -> str:
    match error:
        case {"code": code, "message": message}:
            told_twice = str(message).startswith(f"{code}:")  # a message may begin with its class
            return str(message) if told_twice else f"{code}: {message}"
        case other:
            return str(other)


def _when(text: Any) -> str:
    try:
        return moment(datetime.fromisoformat(str(text)))
    except ValueError:
        return str(text)


def _whole(seconds: float) -> str:
    """A duration without decimals, where nobody needs them."""
    return duration(float(int(seconds))) if seconds >= 1 else duration(seconds)
