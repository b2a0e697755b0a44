"""Gets pictures by their keys: out of a local folder, or out of a bucket that speaks S3.

Credentials come from the standard AWS variables or from the machine's role. Neither they nor what a store
says in an error are told, as some stores repeat there what they were sent.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.apps.schedules.values import Refusal
from holdfast.errors import SettingsError
from holdfast.runtime.buckets import open_bucket

log = logging.getLogger("holdfast.schedules")

WAITS = (1.0, 4.0, 16.0)  # seconds before the second, third and fourth try
LARGEST = 25 * 2**20  # bytes of a picture
NAME = "HOLDFAST_SCHEDULES_OBJECT_STORE"


class Objects(Protocol):
    """Where the pictures are."""

    async def get(self, key: str) -> bytes:
        """The bytes of a picture; `Refusal` if the key is none, or nothing is there."""
        ...


class Passing(Exception):
    """A fault that may be over at the next try; says what kind it is."""


def open_store(url: str, waits: Sequence[float] = WAITS) -> Objects:
    """The store at `file:///folder` or `s3://bucket?endpoint=…&region=…`; nothing is asked of it yet.

    `waits`: the seconds before each further try after a passing fault. `anonymous=true` reads a public bucket
    without credentials.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not (parts.netloc or parts.query or parts.fragment):
        return Folder(Path(unquote(parts.path)), waits)
    plain = parts.netloc and "@" not in parts.netloc and ":" not in parts.netloc
    if parts.scheme != "s3" or not plain or parts.path not in ("", "/") or parts.fragment:
        raise _wrong("must be like file:///folder or s3://bucket?endpoint=https://host&region=auto")
    return Bucket(parts.netloc, dict(parse_qsl(parts.query, keep_blank_values=True)), waits)


class Folder:
    """A local folder; a key is a path within it."""

    def __init__(self, root: Path, waits: Sequence[float] = WAITS) -> None:
        if not root.is_absolute():
            raise _wrong("must name its folder from the root on: file:///folder")
        self.root = root
        self.waits = waits

    async def get(self, key: str) -> bytes:
        """The bytes of a file; one that a link leads to outside of the folder is refused, too."""
        return await _patiently(lambda: asyncio.to_thread(self._read, checked(key)), key, self.waits)

    def _read(self, key: str) -> bytes:
        try:
            root = self.root.resolve(strict=True)
        except OSError as error:  # perhaps it is not mounted yet
            raise Passing(f"its folder is not there: {_reason(error)}") from None
        try:
            path = (root / key).resolve(strict=True)
            if not path.is_relative_to(root):
                raise _leaving(key)
            # Without O_NONBLOCK, a pipe that nobody writes to would hold up this thread for ever.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode):
                    raise _missing(key)
                return file.read() if found.st_size <= LARGEST else _too_large(key)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise _missing(key) from None
        except PermissionError:
            raise _refused(key) from None
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO):
                raise _missing(key) from None
            raise Passing(_reason(error)) from None
        except RuntimeError:  # a link that leads to itself
            raise _missing(key) from None


class Bucket:
    """A bucket of a store that speaks S3."""

    def __init__(self, name: str, options: dict[str, str], waits: Sequence[float] = WAITS) -> None:
        self.waits = waits
        self._store = open_bucket(name, options, what="a bucket of pictures", extra="schedules", wrong=_wrong)

    async def get(self, key: str) -> bytes:
        """The bytes of an object."""
        return await _patiently(lambda: self._get(checked(key)), key, self.waits)

    async def _get(self, key: str) -> bytes:
        import obstore
        from obstore import exceptions

        try:
            answer = await obstore.get_async(self._store, key)
            if answer.meta["size"] > LARGEST:
                return _too_large(key)
            return bytes(await answer.bytes_async())
        except FileNotFoundError:
            raise _missing(key) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            raise _refused(key) from None
        except (exceptions.InvalidPathError, ValueError):
            raise _leaving(key) from None
        except (exceptions.BaseError, OSError) as error:
            raise Passing(type(error).__name__) from None


def checked(key: str) -> str:
    """The key, if it names something within a store, and the same in a folder as in a bucket."""
    parts = key.split("/")
    odd = any(part in ("", ".", "..") for part in parts) or not key.isprintable()
    if odd or len(key.encode(errors="replace")) > 1024:
        raise Refusal("image_key_invalid", f"{key[:200]!a} is no key of a picture")
    return key


async def _patiently(get: Callable[[], Awaitable[bytes]], key: str, waits: Sequence[float]) -> bytes:
    """Tries again after each of the waits, as long as the fault is a passing one."""
    for tried, wait in enumerate((*waits, None), 1):
        try:
            return await get()
        except Passing as fault:
            if wait is None:
                sentence = f"the object store did not give {key!a} in {tried} tries ({fault})"
                raise Refusal("store_unavailable", sentence) from None
            log.warning("the object store did not give %a (%s): next try in %g s", key, fault, wait)
            await asyncio.sleep(wait)
    raise AssertionError("the last try answers or raises")


def _missing(key: str) -> Refusal:
    return Refusal("image_not_found", f"the object store has no {key!a}")


def _leaving(key: str) -> Refusal:
    return Refusal("image_key_invalid", f"{key!a} leads out of the object store")


def _refused(key: str) -> Refusal:
    return Refusal(
        "store_refused", f"the object store does not let us read {key!a}, or hides that it has none"
    )


def _too_large(key: str) -> bytes:
    raise Refusal("image_unreadable", f"{key!a} is larger than {LARGEST // 2**20} MB")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _wrong(problem: str) -> SettingsError:
    return SettingsError(title="some settings are wrong:", problems=[f"{NAME} {problem}"])
