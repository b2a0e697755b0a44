"""Old records of `system.jobs`, read as today's: a pure mapping, and a look at `system.jobs_legacy`.

Nothing here refuses a record: what it holds is all that is left of it. And nothing writes: an old record is
never changed and never run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from psycopg import errors
from psycopg.sql import SQL, Identifier

from holdfast.apps.system import legacy_queries as queries
from holdfast.apps.system.types import JobType, read_status, stored_type
from holdfast.engine.intake import absorb
from holdfast.engine.store import Connection, Store
from holdfast.engine.values import Filter, Page, Row
from holdfast.errors import InvalidInput

ALIASES: Mapping[str, str] = {"result": "message", "error_message": "message"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MAX_LISTED = 1000  # old records in a list, the newest ones
CURSOR = "legacy-"  # begins the cursor of a page of old records


@dataclass(frozen=True, kw_only=True)
class Record:
    """A job as `system.jobs` has it. Times are milliseconds since 1970; None where the record has none.

    `type_word` is the type as it was stored, which tells more than Unknown does.
    """

    id: str
    job_type: JobType
    type_word: str
    status: str
    message: str | None
    exception_trace: str | None
    parameters: Mapping[str, Any]
    idempotency_key: str | None
    retry_count: int
    max_retries: int
    created_at: int | None
    updated_at: int | None
    started_at: int | None
    finished_at: int | None
    node_id: str | None
    queue: str | None
    priority: int | None


def field(name: str) -> str:
    """The name that a column has today, in queries that name it by an old one; in lower case.

    >>> field("Error_Message"), field("status")
    ('message', 'status')
    """
    return ALIASES.get(name.lower(), name.lower())


def read_record(row: Mapping[str, Any]) -> Record:
    """An old record, by the names of its columns, as today's. Reads whatever it holds.

    >>> read_record({"id": "1", "status": "Failed", "result": "", "error_message": "no"}).message
    'no'
    """
    told = {str(name).lower(): value for name, value in row.items()}
    type_word = _text(told.get("job_type")) or ""
    status = _status(told.get("status"))
    return Record(
        id=_text(told.get("id")) or _text(told.get("job_id")) or "",
        job_type=stored_type(type_word),
        type_word=type_word,
        status=status,
        message=_message(told, status),
        exception_trace=_text(told.get("exception_trace")),
        parameters=_parameters(told.get("parameters")),
        idempotency_key=_text(told.get("idempotency_key")),
        retry_count=_count(told.get("retry_count"), 0),
        max_retries=_count(told.get("max_retries"), 3),
        created_at=_moment(told.get("created_at")),
        updated_at=_moment(told.get("updated_at")),
        started_at=_moment(told.get("started_at")),
        finished_at=_moment(told.get("finished_at", told.get("completed_at"))),
        node_id=_text(told.get("node_id")),
        queue=_text(told.get("queue")),
        priority=_number(told.get("priority")),
    )


async def legacy_records(
    conn: Connection, limit: int = 100, id: str | None = None, *, schema: str = "system"
) -> list[Record]:
    """The old records, newest first, or the one with this id; none where no old table was found."""
    records = SQL(queries.RECORDS).format(table=Identifier(schema, "jobs_legacy"))
    try:
        async with conn.transaction():  # a savepoint, if the caller is in a transaction: it stays usable
            there = await (await conn.execute(queries.EXISTS, {"schema": schema})).fetchone()
            if not (there and there[0]):
                return []
            found = await conn.execute(records, {"id": id, "limit": limit})
            return [read_record(record) for (record,) in await found.fetchall()]
    except errors.UndefinedTable:  # dropped between the two
        return []


async def find_jobs(
    store: Store, conn: Connection, which: Filter, *, limit: int = 50, cursor: str | None = None
) -> Page:
    """A page of jobs, the newest first; after the last one come the old records that fit, as legacy."""
    rows, after = tuple[Row, ...](), 0
    if cursor and cursor.startswith(CURSOR) and cursor.removeprefix(CURSOR).isdecimal():
        after = int(cursor.removeprefix(CURSOR))
    else:
        page = await store.find(conn, which, limit=limit, cursor=cursor)
        if page.cursor is not None:
            return page
        rows = page.rows
    schema = store.ledger.table.partition(".")[0]
    records = [one for one in await legacy_records(conn, MAX_LISTED, schema=schema) if _fits(one, which)]
    end = after + limit - len(rows)
    shown = tuple(map(as_row, records[after:end]))
    return Page((*rows, *shown), f"{CURSOR}{end}" if end < len(records) else None)


def as_row(record: Record) -> Row:
    """An old record as a row of today's table, with `legacy` among its columns."""
    columns = {
        name: getattr(record, name) for name in ("message", "exception_trace", "node_id", "queue", "priority")
    }
    return Row(
        id=record.id,
        kind=record.type_word or str(record.job_type),
        state=record.status,
        payload=dict(record.parameters),
        owner=None,
        fence=None,
        attempts=record.retry_count,
        limit=record.max_retries,
        due=None,
        created=cast("datetime", _calendar(record.created_at)),  # None where the record has none
        updated=_calendar(record.updated_at),
        claimed=None,
        started=_calendar(record.started_at),
        finished=_calendar(record.finished_at),
        error=None,
        columns={**columns, "idempotency_key": record.idempotency_key, "legacy": True},
    )


def is_legacy(row: Row) -> bool:
    """Whether a row stands for an old record."""
    return bool(row.columns.get("legacy"))


def _fits(record: Record, which: Filter) -> bool:
    made = _calendar(record.created_at)
    return (
        (not which.states or record.status in which.states)
        and which.kind in (None, str(record.job_type))
        and which.key in (None, record.idempotency_key)
        and which.queue in (None, record.queue or "default")
        and (which.created_after is None or (made is not None and made >= which.created_after))
        and (which.created_before is None or (made is not None and made < which.created_before))
    )


def _calendar(milliseconds: int | None) -> datetime | None:
    """A time; None also for one that no calendar has."""
    try:
        return None if milliseconds is None else EPOCH + milliseconds * MILLISECOND
    except OverflowError:
        return None


def _status(value: Any) -> str:
    """Today's word; one that nobody knows stays as it is, in lower case."""
    try:
        return read_status(value)
    except InvalidInput:
        return (_text(value) or "").strip().lower() or "unknown"


def _message(told: Mapping[str, Any], status: str) -> str | None:
    """The newest field wins, then the one that fits the outcome; an empty one says nothing."""
    by_outcome = ("error_message", "result") if status == "failed" else ("result", "error_message")
    texts = [_text(told.get(name)) for name in ("message", *by_outcome)]
    said = [text for text in texts if text is not None]
    return next((text for text in said if text.strip()), said[0] if said else None)


def _parameters(value: Any) -> dict[str, Any]:
    """Parameters as an object: those that were told by place alone are arg0, arg1 and so on."""
    found = _parsed(value)
    if found is None or found == "":
        return {}
    if isinstance(found, Mapping):
        return {str(name): one for name, one in cast("Mapping[Any, Any]", found).items()}
    placed = cast("Sequence[Any]", found) if isinstance(found, (list, tuple)) else [found]
    return {f"arg{place}": one for place, one in enumerate(placed)}


def _parsed(value: Any) -> Any:
    """What a text of JSON holds. One that is JSON within JSON is opened for an object or an array alone."""
    if not isinstance(value, str):
        return value
    found = _json(value)
    if isinstance(found, str) and isinstance(inner := _json(found), (dict, list)):
        return cast("Any", inner)
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return absorb(text.strip())


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are no JSON, and nobody could answer with them


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value if value is None else absorb(value)
    try:
        return absorb(json.dumps(value, ensure_ascii=False, default=str))
    except (ValueError, RecursionError):
        return "(unreadable)"


def _number(value: Any) -> int | None:
    """A whole number, also one that is told as a text."""
    if isinstance(value, bool):
        return None
    try:
        return int(value) if not isinstance(value, float) or math.isfinite(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _count(value: Any, default: int) -> int:
    found = _number(value)
    return found if found is not None and 0 <= found <= 255 else default


def _moment(value: Any) -> int | None:
    """Milliseconds since 1970, as they were stored or of a time; one without a zone is in UTC."""
    if (found := _number(value)) is not None:
        return found
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND
    except (TypeError, ValueError, OverflowError):
        return None
