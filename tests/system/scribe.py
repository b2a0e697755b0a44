"""A process that writes to a jobs.log until it is told to stop or is killed; run by test_joblog.py.

    python scribe.py PATH ID COUNT MAX_BYTES FILES

Begins with the first line of its standard input, and says after each entry that it was written.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.apps.system.joblog import JobLog


def text_of(number: int) -> str:
    """What it writes: short lines, long ones that cross the pages of a file, and some of several lines."""
    tail = "ö" * (number * 37 % 300) if number % 50 else "x" * 9000
    more = "\nsecond\r\nthird" if number % 10 == 0 else ""
    return f"{number} {tail}|{more}"


def main(path: str, id: str, count: str, max_bytes: str, files: str) -> None:
    log = JobLog(Path(path), int(max_bytes), int(files))
    sys.stdin.readline()
    for number in range(int(count)):
        log.write(id, "INFO", text_of(number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
