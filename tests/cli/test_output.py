"""Logs, times and cells: what is printed cannot lie about time or move anybody's cursor."""

from __future__ import annotations

import doctest
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone

import pytest

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
