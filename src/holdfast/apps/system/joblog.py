"""`jobs.log`: the journal of `system.jobs`, written after each commit by every process that has a part in it.

Owns the file, those that it was rotated into (`jobs.log.1` is the newest of them) and `jobs.log.lock`. Tells
nothing that did not happen, and never breaks a job: a log that cannot be written is told once, by `logging`,
and the rows remain the truth.

An entry is written under the lock, which the kernel lets go however a process ends. So nobody writes into a
file that another is rotating, the lines of a trace stand together, and what a killed process has left of a
line is taken away by the next. One that is stopped while it has the lock holds up nobody for long: the others
append without it. Nothing stays open between entries, so a fork shares nothing.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import AsyncIterator, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.apps.system.joblines import LEVELS, Level, Line, rendered
from holdfast.apps.system.logreading import Reading, read, tail
from holdfast.apps.system.place_folder import make_private
from holdfast.apps.system.types import ID
from holdfast.db.supervisor import open_private
from holdfast.engine.lifecycle import Verb
from holdfast.engine.values import Claimed, Move
from holdfast.engine.witness import Witness

log = logging.getLogger("holdfast.system")

PATIENCE = 0.5  # seconds that an entry waits for the lock
PAUSE = 0.0005  # seconds between two looks at it
CHUNK = 65536  # bytes that are looked through at once for the end of a line


class Entry(NamedTuple):
    """What is to be told of a job; a text of several lines becomes as many physical ones."""

    id: Any
    level: Level
    text: str


class JobLog:
    """The log at `path`; it has `max_bytes` at most, and `files` older ones beside it."""

    def __init__(self, path: Path, max_bytes: int = 10_000_000, files: int = 5) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.files = max(1, files)
        self._lock = path.with_name(f"{path.name}.lock")
        self._hurried = False  # the lock was waited for in vain, and is not waited for again until it is free
        self._told: set[str] = set()  # what does not work, and was told

    def write(self, id: str, level: Level, text: str, at: datetime | None = None) -> None:
        """Appends one entry; `at` is the time by the database where the caller knows it. Never raises."""
        self.write_all([Entry(id, level, text)], at)

    def write_all(self, entries: Iterable[Entry], at: datetime | None = None) -> None:
        """Appends several entries, one after the other and nothing in between. Never raises."""
        try:
            moment = at or datetime.now(UTC)
            if lines := [line for entry in entries for line in _lines_of(entry, moment)]:
                self._append(lines)
                self._works("be written")
        except OSError as error:
            self._fails("be written", error)
        except Exception:
            log.exception("%s lacks lines that nobody could make", self.path)

    def lines(
        self, id: str | None = None, *, after: str | None = None, limit: int | None = None
    ) -> list[Line]:
        """The lines of a job, or all, oldest first, out of the rotated files and the last one."""
        return [*self.read(id, after=after, limit=limit).lines]

    def read(self, id: str | None = None, *, after: str | None = None, limit: int | None = None) -> Reading:
        """The same, with the cursor from which to go on: `after` is that of an earlier reading.

        Blocks for as long as the files are large: within an event loop, call it in a thread.
        """
        return read(self.path, id, after, limit)

    def tail(self, id: str | None = None, *, limit: int = 100) -> Reading:
        """The last lines of a job, or of all, oldest first; its cursor leads to what comes after them."""
        return tail(self.path, id, limit)

    async def follow(
        self, id: str | None = None, *, after: str | None = None, every: float = 0.5
    ) -> AsyncIterator[Line]:
        """Line by line, as they come, for ever; a look every so many seconds."""
        while True:
            reading = await asyncio.to_thread(self.read, id, after=after, limit=1000)
            for line in reading.lines:
                yield line
            after = reading.cursor
            if not reading.lines:
                await asyncio.sleep(every)

    def _append(self, lines: Sequence[bytes]) -> None:
        make_private(self.path.parent)
        with self._turn() as alone:
            if alone:
                self._make_room(sum(map(len, lines)))
            for _ in range(3):
                file = self._open()
                try:
                    for line in lines:
                        _put(file, line, alone)
                    if os.fstat(file).st_nlink:  # else it was removed meanwhile, and the lines with it
                        return
                finally:
                    os.close(file)

    def _open(self) -> int:
        # Without O_NONBLOCK, a pipe that nobody reads would hold up a job for ever.
        file = open_private(self.path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is no file")
        return file

    @contextmanager
    def _turn(self) -> Generator[bool]:
        """Our turn to write: alone, or, if whoever has the lock is stuck, beside the others."""
        descriptor = open_private(self._lock)
        try:
            alone = self._wait(descriptor)
            self._hurried = not alone
            yield alone
        finally:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a copy that a forked child may have
            os.close(descriptor)

    def _wait(self, descriptor: int) -> bool:
        deadline = time.monotonic() + (0 if self._hurried else PATIENCE)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
            except OSError:  # a file system without locks
                return False
            time.sleep(PAUSE)

    def _make_room(self, needed: int) -> None:
        """Takes away what a killed process has left of its line, and rotates a file that is full."""
        file = self._open()
        try:
            size = _mended(file)
        finally:
            os.close(file)
        if size and size + needed > self.max_bytes:
            try:
                self._rotate()
                self._works("be rotated")
            except OSError as error:  # then it grows, and what happens is told
                self._fails("be rotated", error)

    def _rotate(self) -> None:
        """Each file takes the next number, from the first that is free; if none is, the oldest goes.

        A kill in the middle leaves a number free. The next rotation ends there, so it loses nothing.
        """
        last = next((n for n in range(1, self.files + 1) if not self._numbered(n).exists()), self.files)
        for number in range(last, 0, -1):
            self._numbered(number - 1).replace(self._numbered(number))
        beyond = self.files + 1
        while (superfluous := self._numbered(beyond)).exists():  # there were to be more of them once
            superfluous.unlink()
            beyond += 1

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path

    def _fails(self, what: str, error: OSError) -> None:
        if what not in self._told:
            self._told.add(what)
            reason = error.strerror or type(error).__name__
            log.warning("%s cannot %s (%s): jobs go on without it", self.path, what, reason)

    def _works(self, what: str) -> None:
        if what in self._told:
            self._told.discard(what)
            log.info("%s can %s again", self.path, what)


def _lines_of(entry: Entry, at: datetime) -> Iterator[bytes]:
    id, level, text = entry  # noqa: A001
    if not ID.fullmatch(str(id)):  # it would forge a line
        log.warning("jobs.log has no line for what is no id of a job: %a", id)
        return
    yield from rendered(str(id), level if level in LEVELS else "INFO", text, at)


def _put(file: int, line: bytes, alone: bool) -> None:
    """Appends one line by one write; of one that does not fit, nothing stays."""
    written = 0
    try:
        while written < len(line):  # more than one write only where the first was cut short
            written += os.write(file, line[written:])
    except OSError:
        if alone and written:
            os.ftruncate(file, os.fstat(file).st_size - written)
        raise


def _mended(file: int) -> int:
    """The size of the file, after what follows its last end of a line was cut off."""
    size = end = os.fstat(file).st_size
    if not size or os.pread(file, 1, size - 1) == b"\n":
        return size
    while end > 0:
        begin = max(0, end - CHUNK)
        if (found := os.pread(file, end - begin, begin).rfind(b"\n")) >= 0:
            end = begin + found + 1
            break
        end = begin
    os.ftruncate(file, end)
    return end


def witness(log: JobLog) -> Witness:
    """Hears what the engine has committed, and tells it in the log."""
    return Witness(
        added=lambda rows, by: log.write_all(_added(rows, by)),
        began=lambda claims: log.write_all(_began(claims)),
        wrote=lambda moves, by: log.write_all(_wrote(moves, by)),
        ordered=lambda verb, ids, by, reason: log.write_all(_ordered(verb, ids, by, reason)),
    )


def _added(rows: Sequence[tuple[Any, str]], by: str | None) -> Iterator[Entry]:
    for id, _kind in rows:  # noqa: A001
        yield Entry(id, "INFO", "new")
        yield Entry(id, "INFO", f"queued{_by(by)}")


def _began(claims: Sequence[Claimed]) -> Iterator[Entry]:
    for claim in claims:
        yield Entry(claim.id, "INFO", f"started on {claim.owner} (attempt {claim.attempts + 1})")


def _wrote(moves: Sequence[Move], by: str | None) -> Iterator[Entry]:
    for move in moves:
        if told := _told(move, by):
            level, text = told
            trace = move.fault.trace if move.fault else None
            yield Entry(move.claim.id, level, f"{text}\n{trace}" if trace else text)


def _told(move: Move, by: str | None) -> tuple[Level, str] | None:
    claim, reason = move.claim, move.fault.message if move.fault else None
    match move.verb:
        case "finish":
            return "INFO", _because("completed", move.result)
        case "retry":
            count = f"retry {claim.attempts + 1} of {claim.limit} in {_seconds(move.delay)} s"
            return "WARN", _because(count, reason)
        case "exhaust" | "reject":
            return "ERROR", _because("failed", reason)
        case "lose":
            named = reason is not None and reason.startswith("worker lost:")
            return "ERROR", reason if reason and named else f"worker lost: {claim.owner}"
        case "snooze" | "release":
            again = f" in {_seconds(move.delay)} s" if move.delay else ""
            return "INFO", f"queued again{again}{_by(by)}"
        case "cancel":
            return "INFO", _because(f"cancelled{_by(by)}", reason)
        case _:
            return None


def _ordered(verb: Verb, ids: Collection[Any], by: str | None, reason: str | None) -> Iterator[Entry]:
    said = {"cancel": "cancelled", "requeue": "queued again"}.get(verb)
    for id in ids if said else ():  # noqa: A001
        yield Entry(id, "INFO", _because(f"{said}{_by(by)}", reason))


def _by(who: str | None) -> str:
    return f" by {who}" if who else ""


def _because(what: str, why: Any) -> str:
    return what if why is None or why == "" else f"{what}: {why}"


def _seconds(delay: float) -> str:
    return f"{delay:.3f}".rstrip("0").rstrip(".")
