"""Signals: what happened in a tenant's accounts, in one shape for all providers. Stored once each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from uuid import UUID

import msgspec
from psycopg.errors import ForeignKeyViolation
from psycopg.rows import class_row

from holdfast.apps.connectors import cursors, normal, queries
from holdfast.apps.connectors.catalogue import asked_slug
from holdfast.apps.connectors.connections import Link, page_size
from holdfast.apps.connectors.protocol import Signal
from holdfast.engine import intake
from holdfast.engine.roles import uuid7
from holdfast.engine.store import Connection
from holdfast.engine.values import Json
from holdfast.errors import NotFound

BATCH = 500  # signals of one statement
LONGEST_KEY = 1000  # bytes of a dedupe key: an index must hold it


@dataclass(frozen=True, kw_only=True)
class StoredSignal:
    """A signal as its row has it; `payload` is None where it was not asked for."""

    id: UUID
    tenant_id: UUID
    provider: str
    connection_id: UUID
    kind: str
    occurred_at: datetime
    received_at: datetime
    payload: Json
    dedupe_key: str | None


@dataclass(frozen=True)
class Signals:
    """A page of signals, and the cursor of the next one (None: there is none)."""

    items: tuple[StoredSignal, ...]
    cursor: str | None


async def store(conn: Connection, link: Link, signals: Sequence[Signal]) -> int:
    """Stores what is new of these signals, and answers how many that are.

    New is what has no dedupe key, or one that this tenant has not got yet from this provider. Call it in the
    transaction that has the connection locked: order of locks is connection, job, delivery, signals.
    """
    fresh = _unrepeated(normal.known(signals))
    if not fresh:
        return 0
    place = {"tenant_id": link.tenant_id, "provider": link.provider, "connection_id": link.id}
    try:
        async with conn.transaction():
            await conn.execute(queries.SIGNALS_LOCK, place)
            return sum(
                [
                    await _add(conn, place, fresh[begin : begin + BATCH])
                    for begin in range(0, len(fresh), BATCH)
                ]
            )
    except ForeignKeyViolation:
        raise NotFound(what="connection", id=link.id) from None


async def _add(conn: Connection, place: Mapping[str, Any], signals: Sequence[Signal]) -> int:
    columns = {
        "ids": [uuid7() for _ in signals],
        "kinds": [signal.kind for signal in signals],
        "times": [intake.aware("occurred_at", signal.occurred_at) for signal in signals],
        "payloads": [msgspec.json.encode(signal.payload).decode() for signal in signals],
        "keys": [_key(signal) for signal in signals],
    }
    return (await conn.execute(queries.ADD_SIGNALS, {**place, **columns})).rowcount


def _unrepeated(signals: Iterable[Signal]) -> list[Signal]:
    """Without those that repeat an earlier one's key."""
    seen: set[str] = set()
    fresh: list[Signal] = []
    for signal in signals:
        key = _key(signal)
        if key is None or key not in seen:
            fresh.append(signal)
        if key is not None:
            seen.add(key)
    return fresh


def _key(signal: Signal) -> str | None:
    """The key, or if it is too long for an index, what stands for it. An empty one would make all one."""
    key = signal.dedupe_key or None
    if key is None or len(data := key.encode()) <= LONGEST_KEY:
        return key
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def get(conn: Connection, id: UUID, tenant_id: UUID | None = None) -> StoredSignal:
    """One signal with its payload, or `NotFound`: also for another tenant's. Without a tenant: whosever."""
    params = {"id": id} if tenant_id is None else {"id": id, "tenant_id": tenant_id}
    found = await _all(conn, queries.signals(params, payload=True), {**params, "limit": 1})
    if not found:
        raise NotFound(what="signal", id=id)
    return found[0]


async def find(
    conn: Connection,
    tenant_id: UUID | None,
    *,
    provider: str | None = None,
    connection_id: UUID | None = None,
    kind: str | None = None,
    occurred_after: datetime | None = None,
    occurred_before: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
    payload: bool = True,
) -> Signals:
    """A page of signals, the newest first: a tenant's, or with None everybody's. Both times are included."""
    filters = {
        "tenant_id": tenant_id,
        "provider": None if provider is None else asked_slug(provider),
        "connection_id": connection_id,
        "kind": None if kind is None else intake.clean_text("kind", kind),
        "occurred_after": _moment("occurred_after", occurred_after),
        "occurred_before": _moment("occurred_before", occurred_before),
    }
    params = {name: value for name, value in filters.items() if value is not None}
    given = list(params)
    if cursor is not None:
        keys = cursors.decode(cursor, filters, ("occurred_at", "id"))
        params |= {"before": keys["occurred_at"], "before_id": keys["id"]}
        given.append("before")
    query = queries.signals(given, payload=payload)
    # One more than is shown tells whether a page follows.
    found = await _all(conn, query, params | {"limit": page_size(limit) + 1})
    items = found[:limit]
    if not items or len(found) == len(items):
        return Signals(tuple(items), None)
    last = items[-1]
    return Signals(tuple(items), cursors.encode({"occurred_at": last.occurred_at, "id": last.id}, filters))


def _moment(field: str, moment: datetime | None) -> datetime | None:
    return None if moment is None else intake.aware(field, moment)


async def _all(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> list[StoredSignal]:
    async with conn.cursor(row_factory=class_row(StoredSignal)) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()
