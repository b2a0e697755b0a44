"""jobs.log: its form, its rotation, its readers, with many processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import fcntl
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from holdfast.apps.system import joblines, joblog
from holdfast.apps.system.joblines import Line
from holdfast.apps.system.joblog import Entry, JobLog
from holdfast.errors import InvalidInput
from system.scribe import text_of

ID, OTHER = "FL-4fK2mZ0q", "BK-00000000"
AT = datetime(2025, 1, 31, 12, tzinfo=UTC)
STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
PHYSICAL = re.compile(rf"\[[A-Z]{{2}}-[0-9A-Za-z]{{6,10}}\] (INFO|WARN|ERROR) {STAMP}( .*)?")
SCRIBE = Path(__file__).with_name("scribe.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "jobs.log"


@pytest.fixture
def log(path: Path) -> JobLog:
    return JobLog(path)


def physical(path: Path) -> list[str]:
    """The physical lines of all files, oldest first; each has its end."""
    rotated = sorted(path.parent.glob(f"{path.name}.[0-9]*"), key=lambda one: -int(one.suffix[1:]))
    raw = b"".join(one.read_bytes() for one in [*rotated, path] if one.exists())
    assert raw == b"" or raw.endswith(b"\n")
    return raw.decode().split("\n")[:-1]


def texts(log: JobLog, id: str | None = None) -> list[str]:
    return [line.text for line in log.lines(id)]


# The form


def test_a_line_is_its_job_its_level_its_time_and_its_text(log: JobLog, path: Path) -> None:
    """Y-18, Y-21: as the form is written down."""
    log.write(ID, "INFO", "queued by ana", AT)
    assert path.read_text() == "[FL-4fK2mZ0q] INFO 2025-01-31T12:00:00.000Z queued by ana\n"
    assert log.lines() == [Line(id=ID, level="INFO", at=AT, text="queued by ana")]


def test_times_are_utc_in_milliseconds_whatever_zone_they_came_in(log: JobLog) -> None:
    """Y-18, Y-20: and now, where the caller has none."""
    log.write(ID, "INFO", "a", AT.replace(microsecond=123999).astimezone(timezone(timedelta(hours=5))))
    log.write(ID, "INFO", "b", AT.replace(tzinfo=None))
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    log.write(ID, "INFO", "c")
    first, second, third = (line.at for line in log.lines())
    assert (first, second) == (AT.replace(microsecond=123000), AT)
    assert before <= third <= datetime.now(UTC)


@pytest.mark.parametrize(
    "ending", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
)
def test_no_kind_of_line_break_can_forge_a_line(log: JobLog, path: Path, ending: str) -> None:
    """Y-19: what follows a break is prefixed, and what is read back has no break."""
    forged = f"[{OTHER}] INFO 2025-01-31T12:00:00.000Z completed"
    log.write(ID, "ERROR", f"failed: x{ending}{forged}{ending}", AT)
    assert [PHYSICAL.fullmatch(line) is not None for line in path.read_text().splitlines()] == [True, True]
    assert {line.id for line in log.lines()} == {ID}
    assert texts(log) == ["failed: x", forged]
    assert log.lines(OTHER) == []


def test_each_line_of_a_trace_is_prefixed_and_keeps_its_indentation(log: JobLog, path: Path) -> None:
    """Y-19: blank lines, too; a trace of a thousand lines is whole."""
    trace = 'Traceback:\n  File "x.py", line 1\n\n\tboom()\n' + "  frame\n" * 1000
    log.write(ID, "ERROR", trace)
    assert all(PHYSICAL.fullmatch(line) for line in physical(path))
    assert texts(log) == trace.splitlines()
    assert {line.level for line in log.lines()} == {"ERROR"}


def test_control_characters_are_escaped_and_what_utf_8_cannot_say_is_absorbed(
    log: JobLog, path: Path
) -> None:
    """Y-19: neither colours nor a turned order hide anything from who reads it in a terminal."""
    log.write(ID, "INFO", "a\x00b\ud800c\x1b[31md\x07\x9be\u202ef\tg\x7f")
    assert texts(log) == ["a\ufffdb\ufffdc\\x1b[31md\\x07\\x9be\\u202ef\tg\\x7f"]
    assert all(line.replace("\t", " ").isprintable() for line in physical(path))


@pytest.mark.parametrize("bad", ["", "FL-1", "FL-4fK2mZ0q] INFO", "FL-4fK2mZ0q\n", None])
def test_what_is_no_id_gets_no_line(
    log: JobLog, path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Y-18: it would forge one; it is told, and the entries beside it are written."""
    log.write_all([Entry(bad, "INFO", "x"), Entry(ID, "INFO", "y")])
    assert texts(log) == ["y"]
    assert "no id of a job" in caplog.text


def test_an_empty_text_is_a_line_as_well(log: JobLog, path: Path) -> None:
    """Y-18."""
    log.write(ID, "INFO", "", AT)
    assert path.read_text() == "[FL-4fK2mZ0q] INFO 2025-01-31T12:00:00.000Z\n"
    assert texts(log) == [""]


def test_the_folder_and_the_files_are_nobody_elses(log: JobLog, path: Path) -> None:
    """Y-21, Y-34: a trace may tell a lot."""
    log.write(ID, "INFO", "x")
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in (path.parent, *path.parent.iterdir())}
    assert modes == {"home": 0o700, "jobs.log": 0o600, "jobs.log.lock": 0o600}


def test_the_examples_of_the_form_are_true() -> None:
    """Y-18."""
    assert doctest.testmod(joblines).failed == 0


# Rotation


def test_a_full_log_is_rotated_and_so_many_files_are_kept(path: Path) -> None:
    """Y-21: five beside the last one by default; what remains is without a gap."""
    log = JobLog(path, max_bytes=500)
    for number in range(100):
        log.write(ID, "INFO", f"{number:03}")
    assert sorted(one.name for one in path.parent.iterdir()) == [
        "jobs.log",
        *(f"jobs.log.{n}" for n in range(1, 6)),
        "jobs.log.lock",
    ]
    assert all(one.stat().st_size <= 500 for one in path.parent.iterdir())
    kept = [int(text) for text in texts(log)]
    assert kept == list(range(kept[0], 100))
    assert len(kept) > 5 * 500 // 50


def test_an_entry_that_is_larger_than_a_file_is_written_whole(path: Path) -> None:
    """Y-19, Y-21."""
    log = JobLog(path, max_bytes=300, files=2)
    log.write(ID, "INFO", "before")
    log.write(ID, "ERROR", "x" * 5000 + "\nend")
    log.write(ID, "INFO", "after")
    assert texts(log) == ["before", "x" * 5000, "end", "after"]


def test_fewer_files_than_before_leave_no_old_ones_behind(path: Path) -> None:
    """Y-21: when the setting was lowered."""
    for files in (6, 2):
        log = JobLog(path, max_bytes=100, files=files)
        for number in range(10):
            log.write(ID, "INFO", f"{number} of {files}")
    assert {one.name for one in path.parent.iterdir()} == {
        "jobs.log",
        "jobs.log.1",
        "jobs.log.2",
        "jobs.log.lock",
    }


DIES = """
import os, signal, sys
from pathlib import Path
from holdfast.apps.system.joblog import JobLog
left, rename = int(sys.argv[2]), os.replace
def replace(*names):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    rename(*names)
os.replace = replace
JobLog(Path(sys.argv[1]), 100, 5).write("FL-4fK2mZ0q", "INFO", "never written")
"""


@pytest.mark.parametrize("renamed", range(5))
@pytest.mark.parametrize("older", [2, 5], ids=["some files", "all files"])
def test_a_kill_in_the_middle_of_a_rotation_leaves_nothing_missing(
    path: Path, older: int, renamed: int
) -> None:
    """Y-21: nor does the next rotation overwrite what the killed one had not moved yet."""
    log = JobLog(path, max_bytes=100, files=5)
    for number in range(older + 1):
        log.write(ID, "INFO", f"{number} " + "x" * 60)
    assert len(texts(log)) == older + 1
    killed = subprocess.run([sys.executable, "-c", DIES, path, str(renamed)], check=False)
    if renamed > older:  # there was nothing left to move
        assert killed.returncode == 0
        return
    assert killed.returncode == -signal.SIGKILL
    gone = 1 if older == 5 and renamed else 0  # the oldest has made room, as it must
    kept = [text.split()[0] for text in texts(log)]
    assert kept == [str(n) for n in range(gone, older + 1)]
    log.write(ID, "INFO", "after " + "x" * 60)
    also = 1 if older == 5 else 0
    assert [text.split()[0] for text in texts(log)] == [*(str(n) for n in range(also, older + 1)), "after"]


# What goes wrong


def test_a_log_that_cannot_be_written_breaks_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Y-20: when it can be written again that is told, too."""
    caplog.set_level(logging.INFO, "holdfast.system")
    (tmp_path / "home").write_text("a file, where a folder is needed")
    log = JobLog(tmp_path / "home" / "jobs.log")
    for _ in range(3):
        log.write(ID, "INFO", "lost")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "cannot be written" in caplog.text
    (tmp_path / "home").unlink()
    log.write(ID, "INFO", "kept")
    log.write(ID, "INFO", "kept")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert texts(log) == ["kept", "kept"]


@pytest.mark.parametrize("kind", ["folder", "pipe", "link"])
def test_what_is_no_file_is_not_written_and_holds_up_nobody(
    path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Y-20: a pipe that nobody reads would block for ever."""
    path.parent.mkdir()
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to("elsewhere")
    JobLog(path).write(ID, "INFO", "x")
    assert "cannot be written" in caplog.text
    assert not (path.parent / "elsewhere").exists()


FULL = """
import resource, sys
from pathlib import Path
from holdfast.apps.system.joblog import JobLog
log = JobLog(Path(sys.argv[1]))
log.write("FL-4fK2mZ0q", "INFO", "fits")
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
log.write("FL-4fK2mZ0q", "INFO", "x" * 200)
log.write("FL-4fK2mZ0q", "INFO", "short")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write("FL-4fK2mZ0q", "INFO", "room again")
"""


def test_of_a_line_that_does_not_fit_nothing_stays(path: Path) -> None:
    """Y-20, Y-21: the kernel writes as much as there is room for; the next line is whole nevertheless."""
    done = subprocess.run([sys.executable, "-c", FULL, path], check=True, capture_output=True, text=True)
    assert texts(JobLog(path)) == ["fits", "short", "room again"]
    assert all(PHYSICAL.fullmatch(line) for line in physical(path))
    assert done.stderr.count("cannot be written") == 1


@pytest.mark.parametrize(
    "torn", [b"[FL-4fK", b"[FL-4fK2mZ0q] INFO 2025-01-31T12:00:00.000Z " + b"x" * 200_000]
)
def test_what_a_killed_process_left_of_a_line_is_taken_away(log: JobLog, path: Path, torn: bytes) -> None:
    """Y-18, Y-21: a write may be cut where a page ends; readers pass over it meanwhile."""
    log.write(ID, "INFO", "whole")
    with path.open("ab") as file:
        file.write(torn)
    reading = log.read()
    assert [line.text for line in reading.lines] == ["whole"]
    log.write(ID, "INFO", "next")
    assert texts(log) == ["whole", "next"]
    assert [line.text for line in log.read(after=reading.cursor).lines] == ["next"]
    assert len(physical(path)) == 2


def test_a_log_that_is_only_a_torn_line_begins_anew(log: JobLog, path: Path) -> None:
    """Y-18."""
    path.parent.mkdir()
    path.write_bytes(b"[FL")
    assert log.lines() == []
    log.write(ID, "INFO", "first")
    assert texts(log) == ["first"]
    assert len(physical(path)) == 1


def test_a_process_that_is_stopped_with_the_lock_in_its_hand_holds_up_nobody_for_long(
    log: JobLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-20: the first waits; those after it do not until the lock was free again."""
    monkeypatch.setattr(joblog, "PATIENCE", 0.05)
    log.write(ID, "INFO", "before")
    with (path.parent / "jobs.log.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.write(ID, "INFO", "first")
        monkeypatch.setattr(joblog, "PATIENCE", 3600.0)
        for number in range(100):
            log.write(ID, "INFO", str(number))
    monkeypatch.setattr(joblog, "PATIENCE", 0.05)
    log.write(ID, "INFO", "after")
    assert texts(log) == ["before", "first", *map(str, range(100)), "after"]


def test_a_log_that_somebody_removed_begins_anew(log: JobLog, path: Path) -> None:
    """Y-21: nothing is written into a file that has no name any more."""
    log.write(ID, "INFO", "old")
    reading = log.read()
    path.unlink()
    assert log.lines() == []
    log.write(ID, "INFO", "new")
    assert texts(log) == ["new"]
    assert [line.text for line in log.read(after=reading.cursor).lines] == ["new"]


# Reading


def test_a_log_that_is_not_there_is_empty(log: JobLog, path: Path) -> None:
    """Y-21: and reading makes nothing."""
    assert log.read().lines == log.tail().lines == ()
    assert log.read().cursor is None
    assert not path.parent.exists()


def test_a_job_is_read_across_rotated_files_and_alone(path: Path) -> None:
    """Y-21: lines of others, and lines that are none, are passed over."""
    log = JobLog(path, max_bytes=200, files=50)
    for number in range(30):
        log.write(ID if number % 3 else OTHER, "INFO", str(number))
    with path.open("a") as file:
        file.write("no line of ours\n[FL-4fK2mZ0q] INFO 2025-02-31T12:00:00.000Z no such day\n")
    log.write(OTHER, "INFO", "last")
    assert texts(log) == [*map(str, range(30)), "last"]
    assert texts(log, OTHER) == [*map(str, range(0, 30, 3)), "last"]
    assert [line.text for line in log.lines(OTHER, limit=2)] == ["0", "3"]
    assert log.lines(limit=0) == []


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
def test_a_cursor_leads_on_from_page_to_page_and_over_rotations(path: Path, limit: int) -> None:
    """Y-21: every line once, in order, whatever is rotated between two pages."""
    log = JobLog(path, max_bytes=300, files=50)
    found: list[str] = []
    cursor: str | None = None
    for number in range(40):
        log.write(ID, "INFO", str(number))
        reading = log.read(ID, after=cursor, limit=limit)
        found += [line.text for line in reading.lines]
        cursor = reading.cursor
    while (reading := log.read(after=cursor, limit=limit)).lines:
        found += [line.text for line in reading.lines]
        cursor = reading.cursor
    assert found == [*map(str, range(40))]
    assert log.read(after=cursor).cursor == cursor


@pytest.mark.parametrize("opened", range(4))
@pytest.mark.parametrize("begun", [False, True], ids=["from the beginning", "after a cursor"])
def test_rotations_while_the_files_are_opened_hide_no_line_and_repeat_none(
    path: Path, begun: bool, opened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-21: three rotations come after so many names were tried; each line is read once, in order."""
    log = JobLog(path, max_bytes=100, files=50)  # one line each
    for number in range(3):
        log.write(ID, "INFO", f"{number} " + "x" * 60)
    before = log.read(limit=1) if begun else None
    opening, tried = Path.open, 0

    def slow(self: Path, *how: Any) -> Any:
        nonlocal tried
        if tried == opened:
            for number in range(3, 6):
                log.write(ID, "INFO", f"{number} " + "x" * 60)
        tried += 1
        return opening(self, *how)

    monkeypatch.setattr(Path, "open", slow)
    reading = log.read(after=before.cursor if before else None)
    monkeypatch.undo()
    assert tried > opened
    found = [*(before.lines if before else ()), *reading.lines, *log.read(after=reading.cursor).lines]
    assert found == log.lines()
    assert len(found) == 6


def test_a_cursor_into_a_file_that_went_past_the_end_begins_with_what_is_left(path: Path) -> None:
    """Y-21: also when a new file has got the inode of the old one."""
    log = JobLog(path, max_bytes=100, files=1)
    log.write(ID, "INFO", "0")
    cursor = log.read().cursor
    for number in range(1, 20):
        log.write(ID, "INFO", str(number))
    left = texts(log)
    assert left[-1] == "19"
    assert [line.text for line in log.read(after=cursor).lines] == left


@pytest.mark.parametrize("bad", ["", "x", "1-2-3", "1-00000000-", "../etc-00000000-1", "1-00000000-1\n"])
def test_what_is_no_cursor_is_refused(log: JobLog, bad: str) -> None:
    """Y-21."""
    with pytest.raises(InvalidInput, match="cursor"):
        log.read(after=bad)


def test_the_tail_is_the_last_lines_and_its_cursor_leads_to_the_next(path: Path) -> None:
    """Y-21: out of as many files as it takes."""
    log = JobLog(path, max_bytes=200, files=50)
    for number in range(30):
        log.write(ID if number % 2 else OTHER, "INFO", str(number))
    reading = log.tail(limit=12)
    assert [line.text for line in reading.lines] == [*map(str, range(18, 30))]
    assert [line.text for line in log.tail(OTHER, limit=3).lines] == ["24", "26", "28"]
    assert len(log.tail(limit=1000).lines) == 30
    log.write(ID, "INFO", "30")
    assert [line.text for line in log.read(after=reading.cursor).lines] == ["30"]


async def test_who_follows_gets_each_line_as_it_comes(log: JobLog) -> None:
    """Y-21: from the end of the tail on."""
    log.write(ID, "INFO", "old")
    following = log.follow(ID, after=log.tail().cursor, every=0.01)
    for text in ("a", "b", "c"):
        log.write(OTHER, "INFO", "of another")
        log.write(ID, "INFO", text)
        assert (await asyncio.wait_for(anext(following), 20)).text == text
    await following.aclose()  # type: ignore[attr-defined]


# Many at once


@contextlib.contextmanager
def scribes(
    path: Path, counts: dict[str, int], max_bytes: int, files: int
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each id, all ready to write; they are gone at the end."""
    started = {
        job: subprocess.Popen(
            [sys.executable, SCRIBE, path, job, str(count), str(max_bytes), str(files)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for job, count in counts.items()
    }
    try:
        yield started
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def expected(count: int) -> list[str]:
    return [line for number in range(count) for line in text_of(number).splitlines()]


def test_every_physical_line_of_jobs_log_begins_with_a_job_id_and_has_a_level_with_eight_processes_writing_and_rotating_at_once(  # noqa: E501
    path: Path,
) -> None:
    """Y-18, Y-19, Y-21: one is killed; no line is lost, torn or written twice, and a reader misses none."""
    victim, count = "CO-VICTIM00", 600
    counts = {f"FL-0000000{n}": count for n in range(7)} | {victim: 1_000_000}
    log = JobLog(path, 40_000, 500)
    with scribes(path, counts, 40_000, 500) as processes:
        for process in processes.values():
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        said = processes[victim].stdout
        assert said
        killed = threading.Thread(target=lambda: [said.readline() for _ in range(150)])
        killed.start()
        drains = [threading.Thread(target=processes[job].communicate) for job in counts if job != victim]
        for drain in drains:
            drain.start()
        read: list[Line] = []
        cursor: str | None = None
        while any(drain.is_alive() for drain in drains) or killed.is_alive():
            reading = log.read(after=cursor, limit=200)
            read, cursor = [*read, *reading.lines], reading.cursor
            if not killed.is_alive() and processes[victim].poll() is None:
                processes[victim].send_signal(signal.SIGKILL)
        processes[victim].kill()
        acknowledged = 150 + len(said.read().splitlines())
        assert processes[victim].wait() == -signal.SIGKILL
    log.write("RS-00000000", "INFO", "the last one mends what the killed one left")
    read += log.read(after=cursor).lines
    assert all(PHYSICAL.fullmatch(line) for line in physical(path))
    assert len(physical(path)) == len(log.lines())
    assert read == log.lines()
    assert len([*path.parent.glob("jobs.log.*")]) > 20
    for job in counts:
        if job != victim:
            assert texts(log, job) == expected(count)
    told = texts(log, victim)
    assert len(told) >= len(expected(acknowledged))
    assert told == expected(acknowledged + 2)[: len(told)]


def test_threads_of_one_process_write_whole_lines_too(path: Path) -> None:
    """Y-21."""
    log = JobLog(path, 5_000, 100)
    ids = [f"FL-0000000{n}" for n in range(6)]
    threads = [
        threading.Thread(target=lambda job=job: [log.write(job, "INFO", text_of(n)) for n in range(60)])
        for job in ids
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(PHYSICAL.fullmatch(line) for line in physical(path))
    assert all(texts(log, job) == expected(60) for job in ids)


def test_a_rotation_never_runs_while_another_writes(path: Path) -> None:
    """Y-21: three files of a few lines each, and four processes: what is left has no gap for any of them."""
    counts = {f"FL-0000000{n}": 150 for n in range(4)}
    with scribes(path, counts, 30_000, 3) as processes:
        for process in processes.values():
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes.values():
            process.communicate()
            assert process.returncode == 0
    assert all(PHYSICAL.fullmatch(line) for line in physical(path))
    for job, count in counts.items():
        left = texts(JobLog(path), job)
        assert left == expected(count)[len(expected(count)) - len(left) :]
