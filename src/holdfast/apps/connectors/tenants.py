"""Tenants: whom connections, syncs and signals belong to."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.errors import UniqueViolation
from psycopg.rows import class_row

from holdfast.apps.connectors import queries
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.errors import Conflict, InvalidInput, NotFound

LONGEST_NAME = 255  # characters


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A tenant. Others' SQL may make one without a name."""

    id: UUID
    name: str | None
    created_at: datetime


async def create(conn: Connection, name: str, *, id: UUID | None = None) -> Tenant:
    """Makes a tenant, or `Conflict` when the id is taken; the caller's transaction goes on in either case."""
    bare = intake.clean_text("name", name).strip()
    if not bare:
        raise InvalidInput(field="name", message="must not be empty")
    if len(bare) > LONGEST_NAME:
        told = f"must have at most {LONGEST_NAME} characters, and has {len(bare)}"
        raise InvalidInput(field="name", message=told)
    params = {"id": id or uuid.uuid4(), "name": bare}
    try:
        async with conn.transaction(), conn.cursor(row_factory=class_row(Tenant)) as cursor:
            await cursor.execute(queries.ADD_TENANT, params)
            (made,) = await cursor.fetchall()
            return made
    except UniqueViolation:
        raise Conflict(what="tenant", message=f"there is one with the id {params['id']} already") from None


async def get(conn: Connection, id: UUID) -> Tenant:
    """One tenant, or `NotFound`."""
    async with conn.cursor(row_factory=class_row(Tenant)) as cursor:
        await cursor.execute(queries.ONE_TENANT, {"id": id})
        found = await cursor.fetchone()
    if found is None:
        raise NotFound(what="tenant", id=id)
    return found
