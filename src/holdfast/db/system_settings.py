"""The settings of the platform's own maintenance: its log, its archive, its backups and its timetable."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from holdfast.db import parsers
from holdfast.db.parsers import setting

Timetable = tuple[tuple[str, float], ...]  # a table or ledger, and a number of seconds or rows

_PREFIXED_BUCKET = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]*)?(\?\S*)?"
_HINT = "must be a folder like file:///srv/archive or a bucket like s3://archive/holdfast?endpoint=https://r2.example"
_NAME = r"[A-Za-z_][A-Za-z0-9_.]{0,126}"
_DAYS = MappingProxyType({"d": 86400.0, "w": 604800.0})
_UNITS = MappingProxyType({"s": 1.0, "m": 60.0, "h": 3600.0, **_DAYS})


def _archive(text: str) -> str:
    """Where the files of an archive are. A refused text is not repeated, as it may hold a password."""
    if not re.fullmatch(_PREFIXED_BUCKET, text) and not re.fullmatch(r"file:///[^?#\0]*", text):
        raise ValueError(_HINT)
    return text


def _folders(text: str) -> tuple[Path, ...]:
    found = tuple(Path(word).expanduser() for word in parsers.words(text))
    if not found or not all(path.is_absolute() for path in found):
        raise ValueError(f"must be folders from the root on, with commas between, not {text!r}")
    return found


def long(text: str) -> float:
    """A duration, also in days or weeks.

    >>> long("30d")
    2592000.0
    """
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([dw])", text)
    return float(match[1]) * _DAYS[match[2]] if match and float(match[1]) else parsers.seconds(text)


def age(text: str) -> float:
    """How old rows must be to be deleted. A number alone is refused: whoever means days would lose all.

    >>> age("12h")
    43200.0
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smhdw])", text)
    if not match or not float(match[1]):
        raise ValueError(f"must be a duration above 0 with its unit, like 90m, 12h, 30d or 2w, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def _rows(text: str) -> float:
    return float(parsers.at_least(1)(text))


def _named(read: Callable[[str], float], example: str) -> Callable[[str], Timetable]:
    """Several names, each with a value: `job=30d, tasks=7d`."""

    def parse(text: str) -> Timetable:
        found: dict[str, float] = {}
        for word in parsers.words(text):
            name, given, value = word.partition("=")
            if not given or not re.fullmatch(_NAME, name.strip()):
                raise ValueError(f"must be like {example}, not {word!r}")
            if name.strip() in found:
                raise ValueError(f"names {name.strip()} twice")
            found[name.strip()] = read(value.strip())
        if not found:
            raise ValueError(f"must be like {example}, not {text!r}")
        return tuple(found.items())

    return parse


@dataclass(frozen=True, kw_only=True)
class SystemSettings:
    """What the platform does for its own data; durations are seconds. All that deletes or copies is off."""

    system_log: Path | None = setting(  # noqa: RUF009 (a Path is immutable)
        parsers.path, None, "the log of system jobs; without it jobs.log under HOLDFAST_HOME"
    )
    system_log_bytes: int = setting(
        parsers.at_least(1024), 10_000_000, "a log that is larger is rotated, in bytes"
    )
    system_log_files: int = setting(parsers.within(1, 1000), 5, "how many rotated logs are kept")
    system_archive: str | None = setting(
        _archive,
        None,
        "where archived rows are: file:///folder or s3://bucket/prefix?endpoint=…&region=…; without it the "
        "folder archive under HOLDFAST_HOME",
    )
    system_backup_roots: tuple[Path, ...] = setting(
        _folders,
        (),
        "the folders in which backups may lie, with commas between; without it backups under HOLDFAST_HOME",
    )
    system_concurrency: int = setting(
        parsers.at_least(1), 4, "how many system jobs a worker runs at once, at least 1"
    )
    system_max_retries: int = setting(
        parsers.within(0, 255), 3, "how often a failed system job is tried again: 0 to 255"
    )
    system_tick_seconds: float = setting(
        parsers.seconds, 60.0, "how often the leader looks whether the timetable asks for a system job"
    )
    system_retention: Timetable = setting(  # noqa: RUF009 (a tuple is immutable)
        _named(age, "job=30d, tasks=7d"),
        (),
        "finished rows of these ledgers are deleted after that time, like job=30d, tasks=7d",
    )
    system_retention_every: float = setting(long, 86400.0, "how often that is done")
    system_eviction: Timetable = setting(  # noqa: RUF009 (a tuple is immutable)
        _named(age, "signals=90d, job_event=365d"),
        (),
        "rows of these streams are deleted after that time, like signals=90d",
    )
    system_eviction_every: float = setting(long, 86400.0, "how often that is done")
    system_flush: Timetable = setting(  # noqa: RUF009 (a tuple is immutable)
        _named(_rows, "job=100000, tasks=1000000"),
        (),
        "a ledger that has so many finished rows is flushed into the archive",
    )
    system_flush_after: float = setting(
        long, 86400.0, "only rows that ended so long ago are flushed by themselves"
    )
    system_backup: tuple[str, ...] = setting(
        parsers.words, (), "the schemas that are backed up by themselves, with commas between"
    )
    system_backup_every: float = setting(long, 86400.0, "how often that is done")


class _Homed(Protocol):
    @property
    def home(self) -> Path: ...
    @property
    def schema(self) -> str | None: ...
    @property
    def system_log(self) -> Path | None: ...
    @property
    def system_archive(self) -> str | None: ...
    @property
    def system_backup_roots(self) -> tuple[Path, ...]: ...


def log_path(settings: _Homed) -> Path:
    """Where jobs.log is."""
    return settings.system_log or settings.home / "jobs.log"


def archive_url(settings: _Homed) -> str:
    """Where the archive is: that of a schema by name is a folder of that name, so that several do not mix."""
    url = settings.system_archive or (settings.home / "archive").absolute().as_uri()
    place, sign, options = url.partition("?")
    return f"{place.rstrip('/')}/{settings.schema}{sign}{options}" if settings.schema else url


def backup_roots(settings: _Homed) -> tuple[Path, ...]:
    """Where backups may lie; a location without a root is in the first."""
    return settings.system_backup_roots or ((settings.home / "backups").absolute(),)


def system_contradictions(settings: SystemSettings, wrong: Collection[str]) -> list[str]:
    """What each setting allows, but not the two together; a setting that is `wrong` anyway is left out."""
    least = 60.0  # seconds: a period is told by its number, and a shorter one makes jobs faster than they end
    names = ("system_retention_every", "system_eviction_every", "system_backup_every")
    problems = [
        f"HOLDFAST_{name.upper()} must be at least {least:g} s"
        for name in names
        if name not in wrong and getattr(settings, name) < least
    ]
    return problems + _forgotten(settings, wrong)


def _forgotten(settings: SystemSettings, wrong: Collection[str]) -> list[str]:
    """A job that is gone before its period is over would be made a second time in it."""
    used = {
        f"system_{what}_every": getattr(settings, f"system_{what}_every")
        for what in ("retention", "eviction", "backup")
        if getattr(settings, f"system_{what}") and not {f"system_{what}", f"system_{what}_every"} & {*wrong}
    }
    if not used:
        return []
    longest = max(used, key=lambda name: used[name])
    kept = {
        "HOLDFAST_SYSTEM_RETENTION": [
            seconds for name, seconds in settings.system_retention if _is_system_jobs(name)
        ],
        "HOLDFAST_SYSTEM_FLUSH_AFTER": [
            settings.system_flush_after for name, _ in settings.system_flush if _is_system_jobs(name)
        ],
    }
    return [
        f"{name} must leave the rows of system_jobs for HOLDFAST_{longest.upper()} ({used[longest]:g} s) at "
        "least, or a job is made twice in its period"
        for name, found in kept.items()
        if found and min(found) < used[longest]
    ]


def _is_system_jobs(name: str) -> bool:
    """Whether it names the ledger of the jobs themselves, or its table, in whichever schema."""
    return name == "system_jobs" or name.endswith("system.jobs")
