"""The form of `jobs.log`: `[FL-4fK2mZ0q] INFO 2025-01-31T12:00:00.000Z queued by ana`. Pure.

Every physical line has its job's id, a level and a time, also each line of a trace. Whatever a text holds, it
cannot forge a line, hide one from a terminal, or keep one from being written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, get_args

from holdfast.engine.intake import absorb

Level = Literal["INFO", "WARN", "ERROR"]
LEVELS: tuple[Level, ...] = get_args(Level)

LINE = re.compile(
    r"\[(?P<id>[A-Z]{2}-[0-9A-Za-z]{6,10})\] (?P<level>INFO|WARN|ERROR)"
    r" (?P<at>[0-9-]{10}T[0-9:]{8}\.[0-9]{3}Z)(?: (?P<text>.*))?"
)
# All control characters but the tab, and those that turn the order of what a terminal shows.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One physical line, as it is read back."""

    id: str
    level: Level
    at: datetime
    text: str


def rendered(id: str, level: Level, text: str, at: datetime) -> Iterator[bytes]:
    """The physical lines of one entry, each complete and with its end.

    >>> [*rendered("FL-4fK2mZ0q", "WARN", "a\\nb", datetime(2025, 1, 31, 12, tzinfo=UTC))][1]
    b'[FL-4fK2mZ0q] WARN 2025-01-31T12:00:00.000Z b\\n'
    """
    moment = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    when = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    # splitlines knows every line break there is, also those that only some readers take for one
    for part in absorb(text).splitlines() or [""]:
        yield f"[{id}] {level} {when} {CONTROL.sub(_escaped, part)}".rstrip().encode() + b"\n"


def parsed(raw: bytes) -> Line | None:
    """One physical line as a value; None if it is not of this form."""
    found = LINE.fullmatch(raw.decode(errors="replace").removesuffix("\n"))
    if found is None:
        return None
    try:
        at = datetime.fromisoformat(found["at"])
    except ValueError:  # like a 31st of February
        return None
    level: Level = found["level"]  # pyright: ignore[reportAssignmentType]
    return Line(id=found["id"], level=level, at=at, text=found["text"] or "")


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
