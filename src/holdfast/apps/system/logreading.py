"""Reads `jobs.log` and what it was rotated into, while others write and rotate. Never writes, takes no lock.

Files are opened from the newest to the oldest. One rotation meanwhile only moves a file to where it is still
to be looked for, or where it is found a second time and known by its inode. After a second one, files would
be missed, or found in the wrong order. So when the newest file no longer has the name under which it was
opened, all are opened again.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO

from holdfast.apps.system.joblines import Line, parsed
from holdfast.errors import InvalidInput

NAMING = 512  # bytes of a first line, at most, that tell a file from others
CURSOR = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{8})-([0-9a-f]{1,16})")


@dataclass(frozen=True)
class Reading:
    """Lines, oldest first, and the cursor of what comes after them; None while there is no line at all."""

    lines: tuple[Line, ...]
    cursor: str | None


@dataclass(frozen=True)
class Part:
    """One of the files. A later one may get its inode, so its first line names it as well."""

    file: BinaryIO
    name: str

    def cursor(self, offset: int) -> str:
        return f"{self.name}-{offset:x}"

    def found(self, id: str | None, offset: int = 0) -> Iterator[tuple[int, Line | None]]:
        """Where each line ends, and the line if it is of this job; an unfinished one is left for later."""
        mine = f"[{id}]".encode() if id else b"["
        self.file.seek(offset)
        for raw in self.file:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            yield offset, parsed(raw) if raw.startswith(mine) else None


def read(path: Path, id: str | None, after: str | None, limit: int | None) -> Reading:
    """The lines after a cursor: as many as there are, or `limit`."""
    name, offset = _place(after)
    if limit is not None and limit < 1:
        return Reading((), after)
    lines: list[Line] = []
    cursor = after
    with _parts(path) as parts:
        names = [part.name for part in parts]
        # A file that is not there went past the end, and all that is left came after it.
        first = names.index(name) if name in names else None
        for number, part in enumerate(parts[first or 0 :]):
            for end, line in part.found(id, offset if number == 0 and first is not None else 0):
                cursor = part.cursor(end)
                if line:
                    lines.append(line)
                    if len(lines) == limit:
                        return Reading(tuple(lines), cursor)
    return Reading(tuple(lines), cursor)


def tail(path: Path, id: str | None, limit: int) -> Reading:
    """The last lines, out of as many files as it takes."""
    lines: deque[Line] = deque()
    cursor: str | None = None
    with _parts(path) as parts:
        for part in reversed(parts):
            last: deque[Line] = deque(maxlen=max(0, limit - len(lines)))
            end = 0
            for position, line in part.found(id):
                end = position
                if line:
                    last.append(line)
            cursor = cursor or (part.cursor(end) if end else None)
            lines.extendleft(reversed(last))
            if len(lines) >= limit:
                break
    return Reading(tuple(lines), cursor)


@contextmanager
def _parts(path: Path) -> Generator[list[Part]]:
    """All files that have a line, oldest first."""
    while True:
        with ExitStack() as opened:
            files = [(one, opened.enter_context(file)) for one, file in _open_all(path)]
            if files and not _has_name(*files[0]):
                continue  # a rotation was completed meanwhile
            found: dict[str, Part] = {}
            for _, file in files:
                beginning, end, _ = os.pread(file.fileno(), NAMING, 0).partition(b"\n")
                if end or len(beginning) == NAMING:
                    name = f"{os.fstat(file.fileno()).st_ino:x}-{zlib.crc32(beginning):08x}"
                    found.setdefault(name, Part(file, name))
            yield [*reversed(found.values())]
            return


def _open_all(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Open the files by number, up to the last in the folder and on until two numbers in a row are free.

    A rotation leaves one number free while it runs, and the folder's list may lack the file that it moves.
    """
    last, free = _last_number(path), 0
    for number in count():
        one = path.with_name(f"{path.name}.{number}") if number else path
        try:
            yield one, one.open("rb")
            free = 0
        except FileNotFoundError:
            free += 1
            if number > last and free > 1:
                return


def _has_name(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _last_number(path: Path) -> int:
    numbered = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,5})")
    names = (numbered.fullmatch(one.name) for one in path.parent.glob("*")) if path.parent.is_dir() else ()
    return max((int(found[1]) for found in names if found), default=0)


def _place(cursor: str | None) -> tuple[str | None, int]:
    """The file that a cursor is in, and how far."""
    if cursor is None:
        return None, 0
    if not (found := CURSOR.fullmatch(cursor)):
        raise InvalidInput(field="after", message="is no cursor of this log: leave it out to begin anew")
    return f"{found[1]}-{found[2]}", int(found[3], 16)
