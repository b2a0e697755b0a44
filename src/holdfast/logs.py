"""Sets up logging, as text for people or as JSON for collectors. Only a program calls it, never a library."""

from __future__ import annotations

import json
import logging
import re
import sys
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TextIO

from holdfast import tracing

CHATTY = ("alembic", "sqlalchemy", "psycopg", "asyncio")
INDISCREET = ("httpx", "httpcore")  # they tell whole addresses and headers, which may hold secrets
STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
FRAME = re.compile(r'^ *File "(.+)", line (\d+)', re.MULTILINE)


class Run(NamedTuple):
    """What every line says that is logged while a handler runs, whoever logs it."""

    ledger: str
    job: Any
    worker: str | None
    trace_id: str | None


_run: ContextVar[Run | None] = ContextVar("holdfast_run", default=None)


def tell_of(run: Run) -> None:
    """From now on, and to the end of this task, lines are about this run; in what it starts as well."""
    _run.set(run)


def run_in(context: Context) -> Run | None:
    """Return the run that a context belongs to."""
    return context.get(_run)


def configure(level: str, format: Literal["text", "json"] = "text", stream: TextIO | None = None) -> None:
    """Sends every logger to one stream (stderr by default) from `level` on.

    A second call replaces the first. Handlers that the user's own code has set up stay as they are, and
    then nothing of ours is added. Other libraries are heard from WARNING on, unless we debug.
    """
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, Stream):
            root.removeHandler(handler)
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "DEBUG" else logging.WARNING)
    for name in INDISCREET:
        logging.getLogger(name).setLevel(logging.WARNING)
    if root.handlers:
        return
    handler = Stream(stream or sys.stderr)
    handler.addFilter(Origin())
    handler.setFormatter(JsonLines() if format == "json" else TextLines(traces=level == "DEBUG"))
    root.addHandler(handler)
    root.setLevel(level)


class Stream(logging.StreamHandler[TextIO]):
    """A handler that `configure` knows again as its own."""


class Origin(logging.Filter):
    """Adds to a record which job it is about and in which trace it stands, unless it says so itself.

    For handlers that the user has set up: `handler.addFilter(Origin())`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        run = _run.get()
        known = vars(record)
        if run is not None:
            known.setdefault("ledger", run.ledger)
            known.setdefault("job", str(run.job))
            if run.worker:
                known.setdefault("worker", run.worker)
        trace = tracing.trace_id() or (run and run.trace_id)
        if trace:
            known.setdefault("trace_id", trace)
        return True


class TextLines(logging.Formatter):
    """One line a record: time, level, logger, what, and which job it is about.

    A handler's exception is told with the place where it was raised; `traces`: with its whole trace.
    """

    def __init__(self, *, traces: bool) -> None:
        super().__init__()
        self.traces = traces

    def format(self, record: logging.LogRecord) -> str:
        said = record.getMessage()
        line = f"{_when(record)} {record.levelname:<7} {record.name}: {said}"
        if job := getattr(record, "job", None):
            named = f"{getattr(record, 'ledger', '')} {job}"
            line += "" if said.startswith(f"{named}:") else f" [{named}]"
        trace: str | None = getattr(record, "trace", None)
        if trace and self.traces:
            line += "\n" + trace.rstrip()
        elif trace and (place := where(trace)):
            line += f" ({place})"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One JSON object a line, with every extra field of the record."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        told |= {name: value for name, value in vars(record).items() if name not in STANDARD}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str, ensure_ascii=False)


def where(trace: str) -> str | None:
    """The innermost place of a trace, as file:line.

    >>> where('Traceback:\\n  File "/srv/shop/mail.py", line 12, in send\\n    boom()\\n')
    '/srv/shop/mail.py:12'
    """
    frames = FRAME.findall(trace)
    return ":".join(frames[-1]) if frames else None


def _when(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
