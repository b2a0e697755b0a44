"""Logs, times and cells: what is printed cannot lie about time, move anybody's cursor, or be lost unsaid."""

from __future__ import annotations

import doctest
import io
import json
import logging
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from cli.kit import COMMAND, Done, Query, Start
from holdfast import logs
from holdfast.cli import options, output


@contextmanager
def unconfigured() -> Iterator[io.StringIO]:
    """A stream for logs, and a root logger without pytest's own handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        yield io.StringIO()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name in logs.CHATTY:
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize("module", [logs, options, output])
def test_the_examples_in_the_code_are_true(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


def test_times_are_iso_8601_in_utc() -> None:
    assert (
        output.moment(datetime(2030, 1, 31, 13, tzinfo=timezone(timedelta(hours=1))))
        == "2030-01-31T12:00:00Z"
    )
    assert output.moment(datetime(2030, 1, 31, 12, 0, 0, 5, tzinfo=UTC)) == "2030-01-31T12:00:00.000005Z"


def test_a_text_line_names_the_job_and_the_place_of_its_trouble() -> None:
    trace = 'Traceback (most recent call last):\n  File "/srv/mail.py", line 3, in send\nValueError: boom\n'
    with unconfigured() as stream:
        logs.configure("INFO", "text", stream)
        logging.getLogger("holdfast.job").info("page 1", extra={"ledger": "tasks", "job": "17"})
        logging.getLogger("holdfast.worker").warning("ValueError: boom", extra={"trace": trace})
        logging.getLogger("alembic.runtime").info("Running upgrade")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("INFO    holdfast.job: page 1 [tasks 17]")
    assert second.endswith("WARNING holdfast.worker: ValueError: boom (/srv/mail.py:3)")


def test_a_json_line_has_every_field_of_the_record() -> None:
    with unconfigured() as stream:
        logs.configure("INFO", "json", stream)
        logging.getLogger("holdfast.job").info("page %d", 1, extra={"ledger": "tasks", "job": "17"})
    told = json.loads(stream.getvalue())
    assert told.pop("time").endswith("Z")
    named = {"level": "INFO", "logger": "holdfast.job", "message": "page 1"}
    assert told == {**named, "ledger": "tasks", "job": "17"}


def test_logging_that_the_user_has_set_up_stays_as_it_is() -> None:
    with unconfigured() as ours:
        theirs = io.StringIO()
        logging.getLogger().addHandler(logging.StreamHandler(theirs))
        logs.configure("INFO", "text", ours)
        logging.getLogger("holdfast").warning("hello")
    assert (theirs.getvalue(), ours.getvalue()) == ("hello\n", "")


def test_a_second_configuration_replaces_the_first() -> None:
    with unconfigured() as first:
        second = io.StringIO()
        logs.configure("INFO", "text", first)
        logs.configure("INFO", "text", second)
        logging.getLogger("holdfast").warning("hello")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("hello\n")


# -- streams that are closed, full, or no longer read ----------------------------------------------------


@pytest.fixture
def shell(folder: Path, environment: dict[str, str]) -> Callable[[str], Done]:
    """`shell("holdfast stats | head -1")`: a line of bash, with pipefail."""
    command = f'set -o pipefail; holdfast() {{ {shlex.join(COMMAND)} "$@"; }}; '

    def shell(line: str) -> Done:
        done = subprocess.run(
            ["bash", "-c", command + line],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert "Traceback" not in done.stdout + done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    return shell


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("holdfast top --once >&-", 0),
        ("holdfast top --once >&- 2>&- <&-", 0),
        ("holdfast top --once 2>&- >/dev/null", 0),
        ("holdfast stats nope 2>&-", 2),
        ("holdfast stats nope >&- 2>&-", 2),
        ("holdfast stats nope 2>/dev/full", 2),
        ("holdfast requeue tasks --kind x --yes <&-", 0),
    ],
)
def test_a_stream_that_is_closed_or_full_changes_no_exit_code(
    shell: Callable[[str], Done], line: str, code: int
) -> None:
    done = shell(line)
    assert (done.code, done.err) == (code, "")


@pytest.mark.parametrize("line", ["stats --json", "list tasks --limit 1000", "top --once", "version"])
def test_a_full_disk_is_told_of_standard_output(
    shell: Callable[[str], Done], query: Query, line: str
) -> None:
    query("insert into tasks (type) select repeat('x', 200) from generate_series(1, 100)")
    done = shell(f"holdfast {line} >/dev/full")
    assert done.code == 1
    told = json.loads(done.err)["message"] if "--json" in line else done.err
    assert told.removeprefix("holdfast: ").strip() == "standard output: No space left on device"
    if "--json" in line:
        assert json.loads(done.err)["code"] == "SYSTEM"


@pytest.mark.parametrize(
    "line", ["list tasks --limit 1000", "list tasks --limit 1000 --json", "top --once", "stats", "--help"]
)
def test_a_reader_that_has_read_enough_is_no_error(
    shell: Callable[[str], Done], query: Query, line: str
) -> None:
    query("insert into tasks (type) select repeat('x', 200) from generate_series(1, 1000)")
    done = shell(f"holdfast {line} | head -c 1")
    assert (done.code, done.err) == (0, "")


def test_watch_ends_when_nobody_reads_it_any_more(start: Start, query: Query) -> None:
    query("insert into tasks (type) values ('never')")
    ((row,),) = query("select id::text from tasks")
    process = start("watch", "tasks", row)
    assert process.stdout
    assert process.stderr
    assert process.stdout.readline().split()[1:] == ["pending"]
    process.stdout.close()
    query("update tasks set status = 'claimed'")
    assert process.wait(30) == 0
    assert process.stderr.read() == ""
