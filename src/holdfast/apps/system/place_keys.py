"""What every place of archives shares: keys, versions, and the steps that a test may stop at."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.errors import NotAllowed, SettingsError

Step: TypeAlias = Callable[[str], Awaitable[None]]

NAME = "HOLDFAST_SYSTEM_ARCHIVE"
LONGEST = 1000  # bytes of a key


async def unwatched(step: str) -> None:
    """Nobody waits for the steps of a run: the default."""


@dataclass(frozen=True)
class Kept:
    """What a key has at a moment, and the token by which `replace` knows that it is still so."""

    body: bytes
    version: str


def checked(key: str) -> str:
    """The key, if it names something within an archive, and the same in a folder as in a bucket."""
    if not is_key(key):
        raise NotAllowed(message=f"{key[:200]!a} is no key of an archive")
    return key


def is_key(key: str) -> bool:
    """Whether a text is a key: names between slashes, none of which begins with a dot."""
    parts = key.split("/")
    odd = any(part in ("", "..") or part.startswith(".") for part in parts) or not key.isprintable()
    return not odd and len(key.encode(errors="replace")) <= LONGEST and "\\" not in key


def sum_of(body: bytes) -> str:
    """The SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


def wrong(problem: str) -> SettingsError:
    """The error of an address that is none; what is said of it must repeat no secret."""
    return SettingsError(title="some settings are wrong:", problems=[f"{NAME} {problem}"])
