"""Where archives are: a local folder, or a bucket that speaks S3. Knows keys and bytes, never tables.

A file is whole or not there: in a folder it is written and synced under a name that begins with a dot, and
only then gets its own; a bucket takes it in one step. Nothing is ever overwritten but by `replace`, and that
only by who has seen what is there. A fault that may be over at the next try is an `OSError`: whoever runs a
job tries that again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from holdfast.apps.system.place_bucket import WAITS, Bucket
from holdfast.apps.system.place_folder import Folder
from holdfast.apps.system.place_keys import Kept, Step, is_key, unwatched, wrong
from holdfast.db.settings import Settings
from holdfast.db.system_settings import archive_url
from holdfast.errors import HoldfastError

__all__ = [
    "Archive",
    "ArchiveUnavailable",
    "Bucket",
    "Folder",
    "Kept",
    "Step",
    "answering",
    "archive_of",
    "open_archive",
    "unwatched",
]


class ArchiveUnavailable(HoldfastError):
    """the archive does not answer: {message}

    The folder or bucket cannot be reached, or not be read; trying again later may help.
    """

    code = "UNAVAILABLE"
    status = 503


@contextmanager
def answering() -> Generator[None]:
    """For whoever is asked by a person: an archive that is away is told in a sentence."""
    try:
        yield
    except OSError as error:
        raise ArchiveUnavailable(message=error.strerror or str(error) or type(error).__name__) from error


class Archive(Protocol):
    """A store of files by key; a key is a path below it, without `..` and without links that lead out."""

    async def put(self, key: str, body: bytes | BinaryIO, step: Step = unwatched) -> None:
        """Publishes a file under a new key, whole; `FileExistsError` if the key is taken.

        `step` is told "written" as soon as all bytes are safe, where that is before they are published.
        """
        ...

    async def get(self, key: str) -> bytes:
        """The bytes of a file; `FileNotFoundError` if there is none."""
        ...

    async def open(self, key: str) -> BinaryIO:
        """The file, to read from any place of it; the caller closes it."""
        ...

    async def local(self, key: str, folder: Path) -> Path:
        """A path of this machine with the bytes of the file: its own, or that of a copy in `folder`."""
        ...

    async def look(self, key: str) -> Kept | None:
        """The bytes and their version, for a later `replace`."""
        ...

    async def replace(self, key: str, body: bytes, seen: str | None) -> bool:
        """Writes in one step in the place of the version that was seen (None: of nothing).

        False, and nothing is written, where another version is there by now.
        """
        ...

    async def delete(self, key: str) -> bool:
        """Removes a file; False if there was none."""
        ...

    async def list(self, below: str = "") -> list[str]:
        """The keys below a folder, sorted; those of files that are not whole are none."""
        ...

    async def exists(self, key: str) -> bool:
        """Whether there is a file of that key."""
        ...

    async def sweep(self, below: str) -> int:
        """Removes what writers that were ended have left unfinished below a folder; answers how many."""
        ...


def archive_of(settings: Settings) -> Archive:
    """The archive that the settings mean."""
    return open_archive(archive_url(settings))


def open_archive(url: str, waits: Sequence[float] = WAITS) -> Archive:
    """The archive at `file:///folder` or `s3://bucket/prefix?endpoint=…&region=…`; asks nothing of it yet.

    `waits`: the seconds before each further try after a fault of a bucket that may pass.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not (parts.netloc or parts.query or parts.fragment):
        return Folder(Path(unquote(parts.path)))
    plain = parts.netloc and "@" not in parts.netloc and ":" not in parts.netloc
    if parts.scheme != "s3" or not plain or parts.fragment:
        raise wrong("must be like file:///folder or s3://bucket/prefix?endpoint=https://host&region=auto")
    prefix = unquote(parts.path).strip("/")
    if prefix and not is_key(prefix):
        raise wrong("must have a plain path after the bucket's name")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Bucket(parts.netloc, prefix, options, waits)
