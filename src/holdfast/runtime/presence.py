"""A worker's row in `workers`: being there, saying so, leading, and leaving.

Each function says one thing on a connection that it is given. `keeper` runs them in time.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, LiteralString

from psycopg import AsyncClientCursor, AsyncConnection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from holdfast.runtime import queries

Connection = AsyncConnection[Any]
CHANNEL = "holdfast_lead"  # rung when a leader has resigned
ALPHABET = string.ascii_lowercase + string.digits


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a worker is. A new id for each registration, so that no name ever means two lives.

    `shares` is what it takes, as JSON: {ledger: {"slots": 4, "queues": ["default"], "kinds": ["mail"]}}; the
    kinds are those that it has handlers for and takes.
    """

    id: str
    hostname: str
    pool_size: int
    version: str
    serves: tuple[str, ...]
    shares: Mapping[str, Any] = field(default_factory=dict[str, Any])


def new_id(hostname: str | None = None) -> str:
    """host-pid-random; the host's name is kept to letters, digits, dots and dashes."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", hostname or socket.gethostname())
    tail = "".join(secrets.choice(ALPHABET) for _ in range(6))
    return f"{host}-{os.getpid()}-{tail}"


async def register(
    conn: Connection, who: Identity, *, former: str | None = None, now: datetime | None = None
) -> None:
    """Add the worker's row, and remove that of its former id. Comes before the first claim."""
    await conn.execute(
        queries.REGISTER,
        {
            "id": who.id,
            "former": former,
            "hostname": who.hostname,
            "pool_size": who.pool_size,
            "version": who.version,
            "serves": list(who.serves),
            "shares": Jsonb(who.shares),
            "now": now,
        },
    )


async def beat(conn: Connection, id: str, *, now: datetime | None = None) -> bool:
    """Says that the worker is alive; False when its row is gone, and with it all its claims."""
    cursor = await conn.execute(queries.BEAT, {"id": id, "now": now})
    return cursor.rowcount == 1


async def elect(conn: Connection, id: str, term: float, *, now: datetime | None = None) -> bool:
    """Takes or extends the lead for `term` seconds, unless another leads; a sign of life as well."""
    row = await _under_the_lock(conn, queries.ELECT, {"id": id, "term": term, "now": now})
    return bool(row and row[0])


async def resign(conn: Connection, id: str) -> None:
    """Gives the lead up at once, and rings for the others to elect."""
    await _under_the_lock(conn, queries.RESIGN, {"id": id, "channel": CHANNEL})


async def vacant_in(conn: Connection) -> float:
    """Seconds until the lead falls free if nobody renews it; 0 when nobody leads."""
    row = await (await conn.execute(queries.VACANT)).fetchone()
    return max(0.0, row[0]) if row and row[0] is not None else 0.0


async def _under_the_lock(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> Any:
    """Runs the query in a transaction that has the election's lock; answers with its first row.

    Both statements are one message, bound by the client: the server goes through with them, and a process
    that is frozen half-way cannot keep the lock that all elections need. A pipeline would send them apart.
    """
    async with AsyncClientCursor(conn) as cursor:
        await cursor.execute(queries.ELECTION + query, params)
        cursor.nextset()
        return await cursor.fetchone()


async def deregister(conn: Connection, id: str) -> None:
    """Removes the worker's row; the last thing that it does."""
    await conn.execute(queries.DEREGISTER, {"id": id})


async def bury(
    conn: Connection, leader: str, timeout: float, *, now: datetime | None = None
) -> Mapping[str, str]:
    """Removes the workers that have been silent for `timeout` seconds; their ids, and when each was heard."""
    cursor = await conn.execute(queries.BURY, {"id": leader, "timeout": timeout, "now": now})
    return dict(await cursor.fetchall())


async def alive(conn: Connection) -> Sequence[str]:
    """The ids of all workers that have a row."""
    cursor = await conn.execute(queries.ALIVE)
    return [row[0] for row in await cursor.fetchall()]


@dataclass(frozen=True, kw_only=True)
class Present:
    """A worker as its row has it; `silent` is the age of its heartbeat in seconds.

    `shares` is that of its `Identity`; empty where a worker of an older version registered itself.
    """

    id: str
    hostname: str
    started: datetime
    version: str | None
    pool_size: int
    serves: Sequence[str]
    shares: Mapping[str, Any]
    leads: bool
    silent: float


async def fleet(conn: Connection) -> Sequence[Present]:
    """The workers that there are, the oldest first."""
    async with conn.cursor(row_factory=class_row(Present)) as cursor:
        await cursor.execute(queries.FLEET)
        return await cursor.fetchall()
