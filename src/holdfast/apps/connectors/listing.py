"""Pages of jobs, deliveries and tenants: by keyset, so that no row is told twice and none is skipped.

A connection that is confined to a tenant sees that tenant's rows alone; the tenant is named as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any, Generic, LiteralString, TypeVar
from uuid import UUID

from psycopg.rows import class_row

from holdfast.apps.connectors import cursors, sql
from holdfast.apps.connectors.inbox import Stored
from holdfast.apps.connectors.tenants import Tenant
from holdfast.engine import reading
from holdfast.engine.store import Connection
from holdfast.engine.values import Json
from holdfast.errors import InvalidInput, NotFound

T = TypeVar("T")
PAGE = 100  # rows of a page
STATES: Mapping[str, Sequence[str]] = {  # by the word that people say
    "queued": ("queued",),
    "running": ("running",),
    "succeeded": ("succeeded", "completed"),
    "failed": ("failed",),
}
DELIVERY_STATES = ("pending", "processed", "failed", "unmatched")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A sync job, as a list shows it."""

    id: UUID
    tenant_id: UUID
    provider: str
    connection_id: UUID
    job_type: str
    status: str
    priority: int
    attempts: int
    max_attempts: int
    scheduled_at: datetime
    retry_after: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    cursor: Json
    error: Json
    created_at: datetime


@dataclass(frozen=True)
class Listed(Generic[T]):
    """Some rows, and the cursor of the next page (None: there is none)."""

    items: tuple[T, ...]
    cursor: str | None


# -- jobs ------------------------------------------------------------------------------------------------


async def job(conn: Connection, id: UUID, tenant_id: UUID | None) -> Job:
    """One job, or `NotFound`: also for another tenant's."""
    params = _given({"id": id, "tenant_id": tenant_id})
    found = await _rows(conn, Job, sql.jobs(params), {**params, "limit": 1})
    if not found:
        raise NotFound(what="job", id=id)
    return found[0]


async def jobs(
    conn: Connection,
    tenant_id: UUID | None,
    *,
    provider: str | None = None,
    connection_id: UUID | None = None,
    job_type: str | None = None,
    status: str | None = None,
    started_after: datetime | None = None,
    finished_after: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Listed[Job]:
    """A page of jobs, the last scheduled first: a tenant's, or with None everybody's."""
    filters = {
        "tenant_id": tenant_id,
        "provider": provider,
        "connection_id": connection_id,
        "job_type": job_type,
        "status": status,
        "started_after": started_after,
        "finished_after": finished_after,
    }
    params = _given(filters)
    conditions = list(params)
    if status is not None:
        params["states"] = list(STATES[_among("status", STATES, status)])
    if cursor is not None:
        keys = cursors.decode(cursor, filters, ("scheduled_at", "id"))
        params |= {"before": keys["scheduled_at"], "before_id": keys["id"]}
        bound = keys["scheduled_at"].year in (MINYEAR, MAXYEAR)
        conditions.append("before_bound" if bound else "before")
    found = await _rows(conn, Job, sql.jobs(conditions), params | {"limit": _size(limit) + 1})
    return _listed(found, limit, filters, lambda last: {"scheduled_at": last.scheduled_at, "id": last.id})


# -- deliveries ------------------------------------------------------------------------------------------


async def delivery(conn: Connection, tenant_id: UUID, provider: str, id: str) -> Stored:
    """One delivery, or `NotFound`: also for another tenant's."""
    params = {"tenant_id": tenant_id, "provider": provider, "delivery": id}
    found = await _rows(conn, Stored, sql.deliveries(params), {**params, "limit": 1})
    if not found:
        raise NotFound(what="delivery", id=id)
    return found[0]


async def deliveries(
    conn: Connection,
    tenant_id: UUID | None,
    *,
    provider: str | None = None,
    connection_id: UUID | None = None,
    status: str | None = None,
    received_after: datetime | None = None,
    received_before: datetime | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Listed[Stored]:
    """A page of the inbox, the newest first: a tenant's, or with None everybody's."""
    filters = {
        "tenant_id": tenant_id,
        "provider": provider,
        "connection_id": connection_id,
        "status": status,
        "received_after": received_after,
        "received_before": received_before,
    }
    params = _given(filters)
    conditions = [name for name in params if name != "status"]
    if status is not None:
        conditions.append(_among("status", DELIVERY_STATES, status))
    if cursor is not None:
        keys = cursors.decode(cursor, filters, ("received_at", "tenant_id", "provider", "delivery"))
        params |= {
            "before": keys["received_at"],
            "before_tenant": keys["tenant_id"],
            "before_provider": keys["provider"],
            "before_delivery": keys["delivery"],
        }
        conditions.append("before")
    found = await _rows(conn, Stored, sql.deliveries(conditions), params | {"limit": _size(limit) + 1})
    return _listed(found, limit, filters, _place_of_delivery)


def _place_of_delivery(last: Stored) -> dict[str, Any]:
    return {
        "received_at": last.received_at,
        "tenant_id": last.tenant_id,
        "provider": last.provider,
        "delivery": last.delivery_id,
    }


# -- tenants ---------------------------------------------------------------------------------------------


async def tenants(conn: Connection, *, limit: int = 50, cursor: str | None = None) -> Listed[Tenant]:
    """A page of tenants, the first made first."""
    params: dict[str, Any] = {}
    if cursor is not None:
        keys = cursors.decode(cursor, {}, ("created_at", "id"))
        params = {"after": keys["created_at"], "after_id": keys["id"]}
    query = sql.tenants(["after"] if params else [])
    found = await _rows(conn, Tenant, query, params | {"limit": _size(limit) + 1})
    return _listed(found, limit, {}, lambda last: {"created_at": last.created_at, "id": last.id})


# -- small pieces ----------------------------------------------------------------------------------------


def _given(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters.items() if value is not None}


def _size(limit: int) -> int:
    reading.must_lie(limit, PAGE)
    return limit


def _among(field: str, words: Iterable[str], word: str) -> str:
    if word not in words:
        raise InvalidInput(field=field, message=f"must be one of {', '.join(words)}, not {word!r}")
    return word


def _listed(
    found: Sequence[T], limit: int, filters: Mapping[str, Any], keys: Callable[[T], Mapping[str, Any]]
) -> Listed[T]:
    """One row more than is shown was read, to know whether a page follows."""
    items = tuple(found[:limit])
    return Listed(items, cursors.encode(keys(items[-1]), filters) if len(found) > limit else None)


async def _rows(conn: Connection, kind: type[T], query: LiteralString, params: Mapping[str, Any]) -> list[T]:
    async with conn.cursor(row_factory=class_row(kind)) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()
