"""The closed list of kinds that a signal may have, and the plain values that signals are made of."""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from holdfast.apps.connectors.protocol import ConnectorError, Json, Signal

log = logging.getLogger("holdfast.connectors")

KINDS = frozenset(
    {
        *(f"issue_{what}" for what in ("created", "updated", "closed", "reopened", "resolved", "comment")),
        *(f"pr_{what}" for what in ("opened", "closed", "merged", "reopened", "updated", "review")),
        "code_pushed",
        "release_published",
        *(f"message_{what}" for what in ("posted", "updated", "deleted")),
        "reaction_added",
        *(f"file_{what}" for what in ("created", "updated", "deleted", "moved")),
        *(f"calendar_event_{what}" for what in ("created", "updated", "deleted")),
        *(f"email_{what}" for what in ("received", "sent", "updated", "deleted")),
    }
)
MOST_TEXT = 10_000  # characters of one text in a payload
DEEPEST = 64  # levels of a payload


def known(signals: Iterable[Signal]) -> tuple[Signal, ...]:
    """The signals of known kinds, in values that the database can store; others are dropped with a log line.

    A payload comes from outside: PostgreSQL's JSON has no NUL, no half of a surrogate pair and no NaN, and
    one message with such a thing in it must not hold up all that come after.
    """
    kept: list[Signal] = []
    for signal in signals:
        if signal.kind not in KINDS:
            ignored("a signal", signal.kind)
            continue
        key = signal.dedupe_key and _text(signal.dedupe_key)
        kept.append(replace(signal, payload=storable(signal.payload), dedupe_key=key))
    return tuple(kept)


def ignored(what: str, kind: object) -> None:
    """Says that something was read and means no signal."""
    log.info("%s of the kind %.64r is no signal", what, kind)


def storable(value: Json, depth: int = 0) -> Json:
    """A JSON value without what PostgreSQL cannot store; a lone value stays as it is.

    >>> storable({"a": "x\\x00y", "b": [float("nan")]})
    {'a': 'xy', 'b': [None]}
    """
    if depth > DEEPEST:
        return None
    match value:
        case str():
            return _text(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {_text(str(name)): storable(item, depth + 1) for name, item in items}
        case list() | tuple():
            return [storable(item, depth + 1) for item in cast("list[Any]", value)]
        case _:
            return value


def _text(text: str) -> str:
    if text.isascii():  # nearly always, and then there is no surrogate to look for
        return text.replace("\x00", "")
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def moment(value: object) -> datetime:
    """A provider's time, as text by RFC 3339 or as seconds since 1970; ValueError when it is neither.

    >>> moment("2024-05-01T10:00:00Z").isoformat()
    '2024-05-01T10:00:00+00:00'
    >>> moment("2024-05-01T12:00:00.5+0200").isoformat()
    '2024-05-01T10:00:00.500000+00:00'
    """
    if isinstance(value, str | datetime):
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC)
        except (OverflowError, OSError):
            raise ValueError("this time is in no calendar") from None
    raise ValueError("this is no time")


def stamp(value: object) -> str:
    """A provider's time in the one spelling that dedupe keys use.

    >>> stamp("2024-05-01T12:00:00+02:00")
    '2024-05-01T10:00:00Z'
    """
    return moment(value).isoformat().replace("+00:00", "Z")


def cut(value: object, most: int = MOST_TEXT) -> str | None:
    """A text for a payload, not longer than `most` characters; None when it is no text."""
    return value[:most] if isinstance(value, str) else None


@contextmanager
def reading(error: ConnectorError) -> Generator[None]:
    """Raises `error` when something inside turns out not to be shaped as documented."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        # `from None`: what these say quotes what was read.
        raise error from None
