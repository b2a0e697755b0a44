"""A worker's row in `workers`: being there, saying so, leading, and leaving.

Each function says one thing on a connection that it is given. `keeper` runs them in time.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import string
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection

from holdfast.runtime import queries

Connection = AsyncConnection[Any]
ALPHABET = string.ascii_lowercase + string.digits


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Who a worker is. A new id for each registration, so that no name ever means two lives."""

    id: str
    hostname: str
    pool_size: int
    version: str
    serves: tuple[str, ...]


def new_id(hostname: str | None = None) -> str:
    """host-pid-random; the host's name is kept to letters, digits, dots and dashes."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", hostname or socket.gethostname())
    tail = "".join(secrets.choice(ALPHABET) for _ in range(6))
    return f"{host}-{os.getpid()}-{tail}"


async def register(conn: Connection, who: Identity, *, now: datetime | None = None) -> None:
    """Adds the worker's row. Comes before the first claim."""
    await conn.execute(
        queries.REGISTER,
        {
            "id": who.id,
            "hostname": who.hostname,
            "pool_size": who.pool_size,
            "version": who.version,
            "serves": list(who.serves),
            "now": now,
        },
    )


async def beat(conn: Connection, id: str, *, now: datetime | None = None) -> bool:
    """Says that the worker is alive; False when its row is gone, and with it all its claims."""
    cursor = await conn.execute(queries.BEAT, {"id": id, "now": now})
    return cursor.rowcount == 1


async def elect(conn: Connection, id: str, term: float, *, now: datetime | None = None) -> bool:
    """Takes or extends the lead for `term` seconds, unless another leads; a sign of life as well."""
    # Sent as one: a process that is frozen half-way must not hold the lock that all elections need.
    async with conn.pipeline(), conn.transaction():
        await conn.execute(queries.ELECTION)
        cursor = await conn.execute(queries.ELECT, {"id": id, "term": term, "now": now})
    row = await cursor.fetchone()
    return bool(row and row[0])


async def resign(conn: Connection, id: str) -> None:
    """Gives the lead up at once."""
    async with conn.pipeline(), conn.transaction():
        await conn.execute(queries.ELECTION)
        await conn.execute(queries.RESIGN, {"id": id})


async def deregister(conn: Connection, id: str) -> None:
    """Removes the worker's row; the last thing that it does."""
    await conn.execute(queries.DEREGISTER, {"id": id})


async def bury(
    conn: Connection, leader: str, timeout: float, *, now: datetime | None = None
) -> Sequence[str]:
    """Removes the workers that have been silent for `timeout` seconds; answers with their ids."""
    cursor = await conn.execute(queries.BURY, {"id": leader, "timeout": timeout, "now": now})
    return [row[0] for row in await cursor.fetchall()]


async def alive(conn: Connection) -> Sequence[str]:
    """The ids of all workers that have a row."""
    cursor = await conn.execute(queries.ALIVE)
    return [row[0] for row in await cursor.fetchall()]
