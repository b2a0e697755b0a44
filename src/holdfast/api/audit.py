"""Who did what: one entry for every action of a person or a program, in the action's own transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from holdfast import tracing
from holdfast.api import queries
from holdfast.api.caller import Caller
from holdfast.engine import intake, reading
from holdfast.engine.values import Json

Connection = AsyncConnection[Any]
PAGE = 100
LENGTH = 2048  # characters of a text that an entry tells


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One action. `rows` is how many rows it changed; None while a bulk runs, or when it was cut off."""

    id: int
    at: datetime
    who: str
    action: str
    ledger: str | None
    row_id: str | None
    tenant: str | None
    rows: int | None
    detail: Mapping[str, Json]
    trace_id: str | None


async def note(
    conn: Connection,
    caller: Caller,
    action: str,
    *,
    ledger: str | None = None,
    row_id: Any = None,
    rows: int | None = None,
    detail: Mapping[str, Json] | None = None,
) -> int:
    """Writes an entry, in the transaction of what it tells; answers with its number."""
    entry = {
        "who": intake.absorb(caller.who, LENGTH),
        "action": action,
        "ledger": ledger,
        "row_id": None if row_id is None else intake.absorb(str(row_id), LENGTH),
        "tenant": caller.tenant,
        "rows": rows,
        "detail": Jsonb(_clean(detail or {})),
        "trace_id": tracing.trace_id(),
    }
    ((number,),) = await (await conn.execute(queries.NOTE, entry)).fetchall()
    return number


async def settle(conn: Connection, id: int, rows: int | None, **detail: Json) -> None:
    """Adds to an entry what became of its action."""
    await conn.execute(queries.SETTLE, {"id": id, "rows": rows, "detail": Jsonb(_clean(detail))})


async def entries(conn: Connection, *, limit: int = 50, before: int | None = None) -> Sequence[Entry]:
    """The newest entries, or the newest of those `before` an entry's number."""
    reading.must_lie(limit, PAGE)
    async with conn.cursor(row_factory=class_row(Entry)) as cursor:
        await cursor.execute(queries.ENTRIES, {"limit": limit, "before": before})
        return await cursor.fetchall()


def _clean(detail: Mapping[str, Json]) -> dict[str, Json]:
    """What is known of it, in texts that PostgreSQL can store."""
    return {
        name: intake.absorb(value, LENGTH) if isinstance(value, str) else value
        for name, value in detail.items()
        if value is not None
    }
