"""How system jobs look to people: what one is about, sizes of files, and moods of log lines. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.apps.system.joblines import Level
from holdfast.apps.system.legacy import is_legacy
from holdfast.apps.system.types import JobType, stored_type
from holdfast.engine.values import Row

ROOT = "/system"
UNITS = ("bytes", "kB", "MB", "GB", "TB")
LEVELS: Mapping[Level, str] = {"INFO": "", "WARN": "again", "ERROR": "bad"}  # the tone of a line
WORDS: Mapping[JobType, str] = {  # for the button that makes a job
    JobType.FLUSH: "Flush",
    JobType.CLEANUP: "Drop the table",
    JobType.RETENTION: "Delete",
    JobType.STREAM_EVICTION: "Evict",
    JobType.USER_CLEANUP: "Erase",
    JobType.COMPACT: "Compact",
    JobType.BACKUP: "Back up",
    JobType.RESTORE: "Restore",
}
WARNINGS: Mapping[JobType, str] = {
    JobType.CLEANUP: "The table is dropped for good, with all that was archived of it.",
    JobType.RETENTION: "The rows are deleted for good. A flush would archive them first.",
    JobType.STREAM_EVICTION: "The rows are deleted for good.",
    JobType.USER_CLEANUP: "The subject is erased for good: from every ledger, every table and the archive.",
    JobType.RESTORE: "The backup becomes a schema. One that is there is replaced if it may be overwritten.",
}


def address(*parts: Any) -> str:
    """The path of a page."""
    return "/".join((ROOT, *map(str, parts)))


def title(kind: str) -> str:
    """A type as a heading has it.

    >>> title("stream_eviction")
    'Stream eviction'
    """
    return kind.replace("_", " ").capitalize()


def aim(row: Row) -> str:
    """What a job is about, in a few words, as its parameters say."""
    given = _object(row.payload)
    match stored_type(row.kind):
        case JobType.BACKUP:
            return f"{_part(given, 'schema')} → {_part(given, 'backup_location')}"
        case JobType.RESTORE:
            return f"{_part(given, 'backup_location')} → {_part(given, 'target_schema')}"
        case JobType.USER_CLEANUP:
            return ", ".join(f"{name} {value}" for name, value in _object(given.get("subject")).items())
        case _:
            return _part(given, "ledger") or _part(given, "table")


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _part(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    return "" if value is None else str(value)


def size(number: int) -> str:
    """Bytes as people read them.

    >>> size(999), size(1_234_567)
    ('999 bytes', '1.2 MB')
    """
    amount, unit = float(number), 0
    while amount >= 999.5 and unit < len(UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{number:,} bytes" if unit == 0 else f"{amount:.{1 if amount < 99.5 else 0}f} {UNITS[unit]}"


HELPERS: Mapping[str, Any] = {
    "address": address,
    "title_of": title,
    "aim": aim,
    "is_legacy": is_legacy,
    "size": size,
    "levels": LEVELS,
}
