"""The words of `system.jobs`: its types, its states, and the ids whose prefix tells the type. Pure.

Stored in lower snake case as in every ledger; read in any case, with `-`, `_`, a blank or nothing between the
words, and in both spellings of cancelled, because people, old records and other tools write them so.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from enum import StrEnum

from holdfast.errors import InvalidInput


class JobType(StrEnum):
    """What a job does.

    UNKNOWN is how a stored type reads that this version does not know; nobody can create one.
    """

    FLUSH = "flush"
    CLEANUP = "cleanup"
    RETENTION = "retention"
    STREAM_EVICTION = "stream_eviction"
    USER_CLEANUP = "user_cleanup"
    COMPACT = "compact"
    BACKUP = "backup"
    RESTORE = "restore"
    UNKNOWN = "unknown"

    @property
    def short_prefix(self) -> str | None:
        """The two capitals that its ids begin with; UNKNOWN has none."""
        return PREFIXES.get(self)


PREFIXES: Mapping[JobType, str] = {
    JobType.FLUSH: "FL",
    JobType.CLEANUP: "CL",
    JobType.RETENTION: "RT",
    JobType.STREAM_EVICTION: "SE",
    JobType.USER_CLEANUP: "UC",
    JobType.COMPACT: "CO",
    JobType.BACKUP: "BK",
    JobType.RESTORE: "RS",
}
TYPES = tuple(PREFIXES)  # that can be created
STATUSES = ("new", "queued", "running", "retrying", "completed", "failed", "cancelled")

ID = re.compile(r"[A-Z]{2}-[0-9A-Za-z]{6,10}")  # for fullmatch: $ would let a newline pass
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
DRAWN = 8  # characters of a new id


def read_type(text: object) -> JobType:
    """The type that a person means, however it is written.

    >>> read_type("StreamEviction")
    <JobType.STREAM_EVICTION: 'stream_eviction'>
    """
    if (found := stored_type(text)) is JobType.UNKNOWN:
        raise InvalidInput(field="job_type", message=f"is one of {', '.join(TYPES)}, not {_shown(text)}")
    return found


def stored_type(text: object) -> JobType:
    """The type that a record has, or UNKNOWN: a record of a later version, or an old one, must be readable.

    >>> stored_type("vacuum_full")
    <JobType.UNKNOWN: 'unknown'>
    """
    return _TYPES.get(_bare(text), JobType.UNKNOWN)


def read_status(text: object) -> str:
    """The state that a person means, however it is written.

    >>> read_status("Canceled")
    'cancelled'
    """
    if (found := _STATUSES.get(_bare(text))) is None:
        raise InvalidInput(field="status", message=f"is one of {', '.join(STATUSES)}, not {_shown(text)}")
    return found


def new_id(kind: str) -> str:
    """A new id for a job of this type: its prefix and 8 random characters.

    It is one unbiased draw out of 62**8 (about 2 * 10**14). Two draws may agree: the primary key is the
    judge, and whoever inserts draws again.
    """
    number, drawn = secrets.randbelow(len(ALPHABET) ** DRAWN), ""
    for _ in range(DRAWN):
        number, place = divmod(number, len(ALPHABET))
        drawn += ALPHABET[place]
    return f"{PREFIXES[read_type(kind)]}-{drawn}"


def read_id(text: object) -> str:
    """The id that a person wrote: bare, or in one pair of single or double quotes.

    >>> read_id(" 'FL-4fK2mZ0q' ")
    'FL-4fK2mZ0q'
    """
    bare = text.strip() if isinstance(text, str) else ""
    if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "'\"":
        bare = bare[1:-1].strip()
    if not ID.fullmatch(bare):
        raise InvalidInput(field="id", message=f"must be like FL-4fK2mZ0q, not {_shown(text)}")
    return bare


def type_of_id(id: str) -> JobType:
    """The type that the prefix of an id tells; UNKNOWN for a prefix that no type has.

    >>> type_of_id("SE-4fK2mZ0q")
    <JobType.STREAM_EVICTION: 'stream_eviction'>
    """
    return _BY_PREFIX.get(read_id(id)[:2], JobType.UNKNOWN)


_BETWEEN = re.compile(r"[ _-]")
_TYPES: Mapping[str, JobType] = {kind.replace("_", ""): kind for kind in TYPES}
_STATUSES: Mapping[str, str] = {**{status: status for status in STATUSES}, "canceled": "cancelled"}
_BY_PREFIX: Mapping[str, JobType] = {prefix: kind for kind, prefix in PREFIXES.items()}


def _bare(text: object) -> str:
    """A word without its case and its joints; of other alphabets nothing is taken for a letter of ours."""
    if not isinstance(text, str) or not text.isascii():
        return ""
    return _BETWEEN.sub("", text.strip()).lower()


def _shown(text: object) -> str:
    """What was given instead, as an error may repeat it."""
    told = ascii(text)
    return told if len(told) <= 60 else f"{told[:57]}..."
