"""How system jobs and their log lines are told: as the API's JSON, and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from holdfast.cli import output
from holdfast.cli.sql import moment

if TYPE_CHECKING:
    from rich.text import Text

    from holdfast.apps.system.joblines import Line
    from holdfast.apps.system.legacy import Record
    from holdfast.engine.values import Page, Row

WIDE = 120  # columns of a terminal that has room for all that is told of a job
COLOURS = {
    **dict.fromkeys(("completed",), "green"),
    **dict.fromkeys(("failed", "ERROR"), "red"),
    **dict.fromkeys(("retrying", "WARN"), "yellow"),
    "running": "cyan",
    "cancelled": "magenta",
}


def shaded(word: str) -> Text:
    """A word in the colour of what it means."""
    from rich.text import Text

    return Text(word, style=COLOURS.get(word, ""))


def job(row: Row) -> dict[str, Any]:
    """A job."""
    from holdfast.apps.system.ledger import told

    return told(row)


def whole(row: Row) -> dict[str, Any]:
    """A job with its trace."""
    return {**job(row), "exception_trace": row.columns.get("exception_trace")}


def show_jobs(page: Page) -> None:
    """A page of jobs."""
    wide = output.console().width >= WIDE
    headings = ("ID", "TYPE", "STATUS", *(("RETRIES", "CREATED") if wide else ()), "MESSAGE")
    rows = [
        (
            *(row.id, row.kind, shaded(row.state)),
            *((f"{row.attempts}/{row.limit}", row.created) if wide else ()),
            _note(row),
        )
        for row in page.rows
    ]
    output.table(headings, rows, cut=not wide)


def record(old: Record) -> dict[str, Any]:
    """An old record in the words of today, times as people read them."""
    times = {
        name: None if (when := getattr(old, name)) is None else moment(when)
        for name in ("created_at", "updated_at", "started_at", "finished_at")
    }
    told = {name: value for name, value in asdict(old).items() if name != "job_type"}
    return {**told, "type": str(old.job_type), **times}


def show_records(records: Sequence[Record]) -> None:
    """Old records as a table."""
    rows = [
        (old.id, old.type_word, shaded(old.status), (old.message or "").partition("\n")[0]) for old in records
    ]
    output.table(("ID", "TYPE", "STATUS", "MESSAGE"), rows)


def _note(row: Row) -> str:
    """What is most worth knowing of a job in its state."""
    if row.columns.get("message"):
        return str(row.columns["message"]).partition("\n")[0]
    return f"on {row.owner}" if row.state == "running" else ""


def show_job(row: Row) -> None:
    """All there is to know of a job."""
    told = whole(row)
    left = ("type_word", "parameters", "exception_trace", "retry_count", "max_retries", "status")
    facts = [(name.replace("_", " "), value) for name, value in told.items() if name not in left]
    facts[2:2] = [("status", shaded(row.state)), ("retries", f"{row.attempts} of {row.limit}")]
    output.facts(facts)
    output.line("\nparameters")
    given = cast("dict[str, Any]", row.payload)
    output.facts([(f"  {name}", value) for name, value in given.items()])
    if told["exception_trace"]:
        output.line("\ntrace")
        output.line(output.readable(told["exception_trace"]))


def line(told: Line) -> dict[str, Any]:
    """A line of the log."""
    return {"id": told.id, "level": told.level, "at": told.at, "text": told.text}


def written(told: Line) -> str:
    """A line of the log as the file has it."""
    when = told.at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return output.readable(f"[{told.id}] {told.level} {when} {told.text}").replace("\n", " ")


def show_lines(lines: Sequence[Line]) -> None:
    """Lines of the log, in colours where there are any."""
    for one in lines:
        if not output.terminal():
            output.line(written(one))
            continue
        text = shaded(one.level)
        text.plain = written(one)
        output.console().print(text, soft_wrap=True)
