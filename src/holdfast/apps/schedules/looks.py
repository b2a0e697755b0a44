"""How the record is read: rows by name into frozen values, several statements at one moment. Never writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, LiteralString, TypeVar
from uuid import UUID

from psycopg import DataError
from psycopg.abc import Buffer
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row
from psycopg.types.datetime import TimestamptzLoader

from holdfast.apps.schedules import days_queries as queries
from holdfast.apps.schedules.messages import order
from holdfast.apps.schedules.record import Listed
from holdfast.apps.schedules.shifts import from_json
from holdfast.apps.schedules.values import Event, EventType, Json, Refusal, Shift
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.errors import Conflict

T = TypeVar("T")
PAGE = 100  # rows of a page
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class BoundedTime(TimestamptzLoader):
    """Reads a time that no calendar has as the first or the last one: others write here, too."""

    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data)
        except DataError:
            text = bytes(data)
            return FIRST if text.startswith(b"-") or text.endswith(b"BC") else LAST


async def rows(
    conn: Connection, kind: type[T], query: LiteralString, params: Mapping[str, Any] | None = None
) -> list[T]:
    """What a statement answers with, each row as one value; times are bounded."""
    async with conn.cursor(row_factory=class_row(kind)) as cursor:
        cursor.adapters.register_loader("timestamptz", BoundedTime)
        await cursor.execute(query, params)
        return await cursor.fetchall()


@asynccontextmanager
async def one_moment(conn: Connection) -> AsyncGenerator[None]:
    """Lets the statements within read the same moment; in a transaction of the caller's it decides."""
    outermost = conn.info.transaction_status == TransactionStatus.IDLE
    async with conn.transaction():
        if outermost:
            await conn.execute(queries.ONE_MOMENT)
        yield


# -- what is asked for -----------------------------------------------------------------------------------


def user(user_id: Any) -> int:
    """The id of a user, or `InvalidInput`."""
    return intake.typed("user_id", "bigint", user_id)


def given(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters that are set."""
    return {name: value for name, value in filters.items() if value is not None}


def listed(found: Sequence[T], limit: int, place: Callable[[T], str]) -> Listed[T]:
    """A page of what was found: one row more than is shown was read, to know whether another page follows."""
    items = tuple(found[:limit])
    return Listed(items, place(items[-1]) if len(found) > limit else None)


# -- events ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """An event as its row has it: the values are JSON."""

    id: UUID
    user_id: int
    schedule_date: date
    type: EventType
    location_fingerprint: str
    customer_fingerprint: str
    old_hash: str
    new_hash: str
    old: Json
    new: Json
    detected_at: datetime
    session_id: UUID


async def events(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> tuple[Event, ...]:
    """The events that a statement answers with, in their order; `Conflict` for one that nobody can read."""
    found = await rows(conn, StoredEvent, query, params)
    try:
        return in_order(map(read, found))
    except Refusal as error:
        what = f"the events of {found[0].user_id} on {found[0].schedule_date}"
        raise Conflict(what=what, message=f"cannot be read: {error.sentence}") from None


def read(stored: StoredEvent) -> Event:
    """The event of a row; `Refusal` where its values are no shifts."""
    fields: dict[str, Any] = {**vars(stored), "old": _value(stored.old), "new": _value(stored.new)}
    return Event(**fields)


def in_order(events: Iterable[Event]) -> tuple[Event, ...]:
    """Events as they happened, and those of one moment as its user reads of them."""
    return tuple(sorted(events, key=lambda event: (event.detected_at, order(event))))


def _value(value: Json) -> Shift | None:
    return None if value is None else from_json(value)
