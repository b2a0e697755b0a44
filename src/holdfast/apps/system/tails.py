"""The end of a job's story in `jobs.log`: its last lines, and how far it has come.

What was read is kept, so that whoever looks again and again reads only what is new.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from holdfast.apps.system.joblines import Line
from holdfast.apps.system.joblog import JobLog

LINES = 200  # that are kept of a job
JOBS = 64  # that are kept at all
PROGRESS = re.compile(r"progress(?: [0-9.]+%)? ([0-9]+)(?: of ([0-9]+))? (.*)")


@dataclass(frozen=True)
class Progress:
    """How far a run has come; without a `total` nobody knows how far it has to go."""

    done: int
    total: int | None
    what: str

    @property
    def percent(self) -> float | None:
        """The share that is done, 0 to 100."""
        return min(100.0, 100 * self.done / self.total) if self.total else None


@dataclass(frozen=True, kw_only=True)
class Tail:
    """The last lines of a job, oldest first; `earlier` are left out. `progress` is that of its last run."""

    lines: tuple[Line, ...]
    earlier: int
    progress: Progress | None
    cursor: str | None


def progress_of(text: str) -> Progress | None:
    """How far a line says that a run has come; None for any other line.

    >>> progress_of("progress 40% 4000 of 10000 rows")
    Progress(done=4000, total=10000, what='rows')
    """
    found = PROGRESS.fullmatch(text)
    return Progress(int(found[1]), int(found[2]) if found[2] else None, found[3]) if found else None


@dataclass
class Kept:
    """What was read of one job so far."""

    cursor: str | None = None
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=LINES))
    count: int = 0
    progress: Progress | None = None

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self.count += 1
        if line.text.startswith("started"):  # a new run begins at nothing
            self.progress = None
        self.progress = progress_of(line.text) or self.progress


class Tails:
    """The ends of the stories that somebody looks at."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, log: JobLog, id: str) -> Tail:
        """The end of a job's story as it is now. Blocks: within an event loop, call it in a thread."""
        place = (str(log.path), id)
        with self._lock:
            kept = self._kept.setdefault(place, Kept())
            self._kept.move_to_end(place)
            while len(self._kept) > JOBS:
                self._kept.popitem(last=False)
            reading = log.read(id, after=kept.cursor)
            for line in reading.lines:
                kept.add(line)
            kept.cursor = reading.cursor
            lines = tuple(kept.lines)
            return Tail(
                lines=lines, earlier=kept.count - len(lines), progress=kept.progress, cursor=kept.cursor
            )


TAILS = Tails()
