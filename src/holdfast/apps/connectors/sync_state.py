"""`connections.metadata.sync`: what the scheduler keeps about a connection, and how it is read. Pure.

Anybody may write there. What is not as it should be counts as missing and is told as a `Flaw`; whoever
writes next repairs it. Times are text of one width in UTC, so that their order is that of time.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from holdfast.db.settings import Settings
from holdfast.db.sync_settings import LEAST_INTERVAL
from holdfast.errors import InvalidInput

Json = Any  # what json.loads may give
T = TypeVar("T")
SPELLING = "a time like 2030-01-31T12:00:00.000000Z"


@dataclass(frozen=True, kw_only=True)
class SyncState:
    """What is known of a connection's syncs. What is None was never written, or could not be read.

    `interval_seconds` is the one to use: the connection's own, or the default. `cursor` is whatever the
    connector gave, unchanged.
    """

    interval_seconds: int
    next_run_at: datetime | None = None
    last_jitter_seconds: int | None = None
    first_activated_at: datetime | None = None
    cursor: Json = None
    cooldown_until: datetime | None = None


@dataclass(frozen=True)
class Flaw:
    """A key of `sync` whose value counts as missing, or `sync` or `metadata` itself, and why."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key} {self.message}"


def moment_text(moment: datetime) -> str:
    """The moment as it is stored: 27 characters, in UTC.

    >>> moment_text(datetime(2030, 1, 31, 12, tzinfo=UTC))
    '2030-01-31T12:00:00.000000Z'
    """
    if moment.tzinfo is None:
        raise ValueError("a time without a zone is no moment")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def read_moment(text: Json) -> datetime | None:
    """The moment that was stored; None for any other spelling, however well it reads.

    >>> read_moment("2030-01-31T12:00:00Z") is None
    True
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment_text(moment) == text else None
    except (TypeError, ValueError, OverflowError):
        return None


def checked_interval(value: Json, settings: Settings) -> int:
    """The seconds between two syncs as a caller gave them, or `InvalidInput`."""
    if (fault := _fault_of_interval(value, settings)) is not None:
        raise InvalidInput(field="interval_seconds", message=f"{fault}, not {reprlib.repr(value)}")
    return value


def read(metadata: Json, settings: Settings) -> tuple[SyncState, tuple[Flaw, ...]]:
    """What a connection's metadata say, and what is wrong with them. A null is no flaw: it says nothing."""
    flaws: list[Flaw] = []
    sync = _object("sync", _object("metadata", metadata, flaws).get("sync"), flaws)

    def of(key: str, read_value: Callable[[Json], T | None], wanted: str) -> T | None:
        if (value := sync.get(key)) is None:
            return None
        if (found := read_value(value)) is None:
            flaws.append(Flaw(key, f"must be {wanted}, not {reprlib.repr(value)}"))
        return found

    def interval(value: Json) -> int | None:
        return value if _fault_of_interval(value, settings) is None else None

    own = of("interval_seconds", interval, _wanted_interval(settings))
    state = SyncState(
        interval_seconds=settings.sync_default_interval_seconds if own is None else own,
        next_run_at=of("next_run_at", read_moment, SPELLING),
        last_jitter_seconds=of("last_jitter_seconds", _whole, "a whole number of at least 0"),
        first_activated_at=of("first_activated_at", read_moment, SPELLING),
        cursor=sync.get("cursor"),
        cooldown_until=of("cooldown_until", read_moment, SPELLING),
    )
    return state, tuple(flaws)


def _object(name: str, value: Json, flaws: list[Flaw]) -> Mapping[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        flaws.append(Flaw(name, f"must be an object, not {reprlib.repr(value)}"))
        return {}
    return cast("Mapping[str, Json]", value)


def _whole(value: Json) -> int | None:
    # True is an int to Python, and no number to anybody else.
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _wanted_interval(settings: Settings) -> str:
    return f"a whole number of seconds from {LEAST_INTERVAL} to {settings.sync_max_interval_seconds}"


def _fault_of_interval(value: Json, settings: Settings) -> str | None:
    seconds = _whole(value)
    if seconds is not None and LEAST_INTERVAL <= seconds <= settings.sync_max_interval_seconds:
        return None
    return f"must be {_wanted_interval(settings)}"
