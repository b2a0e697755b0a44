"""Connections: a tenant's accounts at providers, with their sealed tokens.

`get_by_id` and the locks take no tenant: they are for workers, who have the id from a row of their own.
Whatever a caller names is read by `of_tenant`, to which another tenant's connection does not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, LiteralString
from uuid import UUID

import msgspec
from psycopg.errors import Error, ForeignKeyViolation, UniqueViolation
from psycopg.rows import class_row, dict_row

from holdfast.apps.connectors import cursors, normal, queries
from holdfast.apps.connectors.catalogue import UnknownProvider, asked_slug
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.engine.values import Json
from holdfast.errors import Conflict, HoldfastError, InvalidInput, NotFound

STATUSES = ("active", "paused", "revoked", "error")
LONGEST_ID, LONGEST_NAME = 500, 255  # characters of an external id, which an index must hold, and of a name
MOST = 1000  # connections of one page


class Keep(Enum):
    """What is said of a field that is to stay as it is: None would say that it is to be emptied."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP


@dataclass(frozen=True, kw_only=True)
class Link:
    """A connection as its row has it. The tokens are sealed, and no line of a log shows even that."""

    id: UUID
    tenant_id: UUID
    provider: str
    external_id: str
    display_name: str | None
    status: str
    scopes: tuple[str, ...]
    access: bytes | None = field(repr=False)
    refresh: bytes | None = field(repr=False)
    key_id: str | None
    expires_at: datetime | None
    metadata: Mapping[str, Json]
    created_at: datetime
    updated_at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "scopes", tuple(self.scopes))  # an array comes as a list


@dataclass(frozen=True)
class Links:
    """A page of connections, and the cursor of the next one (None: there is none)."""

    items: tuple[Link, ...]
    cursor: str | None


# -- making ----------------------------------------------------------------------------------------------


async def create(
    conn: Connection,
    *,
    tenant_id: UUID,
    provider: str,
    external_id: str,
    id: UUID | None = None,
    display_name: str | None = None,
    scopes: Sequence[str] | None = None,
    access: bytes | None = None,
    refresh: bytes | None = None,
    key_id: str | None = None,
    expires_at: datetime | None = None,
    metadata: Mapping[str, Json] | None = None,
    status: str = "active",
) -> Link:
    """Makes a connection; `Conflict` when the tenant has this account already, `NotFound` without a tenant or
    provider of that name. The caller's transaction goes on in either case.
    """
    params = _params(
        id=id,
        tenant_id=tenant_id,
        provider=provider,
        external_id=external_id,
        display_name=display_name,
        scopes=scopes,
        access=access,
        refresh=refresh,
        key_id=key_id,
        expires_at=expires_at,
        metadata=metadata,
        status=status,
    )
    link, _ = await _add(conn, queries.ADD_LINK, params)
    return link


async def upsert(
    conn: Connection,
    *,
    tenant_id: UUID,
    provider: str,
    external_id: str,
    id: UUID | None = None,
    display_name: str | None = None,
    scopes: Sequence[str] | None = None,
    access: bytes | None = None,
    refresh: bytes | None = None,
    key_id: str | None = None,
    expires_at: datetime | None = None,
    metadata: Mapping[str, Json] | None = None,
    status: str = "active",
) -> tuple[Link, bool]:
    """Makes a connection, or connects the same account again; answers whether it was made.

    Connecting again replaces the tokens and makes it active. What syncs have noted (`metadata.sync`, with the
    cursor) is kept, other metadata is merged, and so are the names by which webhooks call the account.
    """
    params = _params(
        id=id,
        tenant_id=tenant_id,
        provider=provider,
        external_id=external_id,
        display_name=display_name,
        scopes=scopes,
        access=access,
        refresh=refresh,
        key_id=key_id,
        expires_at=expires_at,
        metadata=metadata,
        status=status,
    )
    return await _add(conn, queries.UPSERT_LINK, params)


def _params(**given: Any) -> dict[str, Any]:
    """What is stored of a new connection; the external id to the letter, as its tokens are sealed with it."""
    external = intake.clean_text("external_id", given["external_id"])
    if not external.strip():
        raise InvalidInput(field="external_id", message="must not be empty")
    if len(external) > LONGEST_ID:
        message = f"must have at most {LONGEST_ID} characters, and has {len(external)}"
        raise InvalidInput(field="external_id", message=message)
    name, scopes, metadata = given["display_name"], given["scopes"], given["metadata"]
    return given | {
        "id": given["id"] or uuid.uuid4(),
        "provider": asked_slug(given["provider"]),
        "display_name": None if name is None else intake.absorb(name, LONGEST_NAME),
        "status": _status(given["status"]),
        "scopes": None if scopes is None else [intake.absorb(scope) for scope in scopes],
        "expires_at": _moment(given["expires_at"]),
        "metadata": None if metadata is None else _text(normal.storable(dict(metadata))),
    }


async def _add(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> tuple[Link, bool]:
    try:
        async with conn.transaction(), conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(query, params)
            (row,) = await cursor.fetchall()
    except (UniqueViolation, ForeignKeyViolation) as error:
        raise _refused(error, params) from None
    made = bool(row.pop("made", True))
    return Link(**row), made


def _refused(error: Error, params: Mapping[str, Any]) -> HoldfastError:
    """What the database had against a new connection, by the constraint that it names."""
    match error.diag.constraint_name:
        case "connections_tenant_id_fkey":
            return NotFound(what="tenant", id=params["tenant_id"])
        case "connections_provider_slug_fkey":
            return UnknownProvider(what="provider", id=params["provider"])
        case "idx_connections_tenant_provider_external":
            told = f"this tenant has the {params['provider']} account {params['external_id']!r} already"
            return Conflict(what="connection", message=told)
        case _:
            return Conflict(what="connection", message=f"there is one with the id {params['id']} already")


# -- reading ---------------------------------------------------------------------------------------------


async def get_by_id(conn: Connection, id: UUID) -> Link | None:
    """One connection of whatever tenant. For workers."""
    return await _one(conn, queries.LINK, {"id": id})


async def of_tenant(conn: Connection, id: UUID, tenant_id: UUID) -> Link:
    """One connection of a tenant, or `NotFound`: also for another tenant's."""
    link = await _one(conn, queries.LINK_OF_TENANT, {"id": id, "tenant_id": tenant_id})
    if link is None:
        raise NotFound(what="connection", id=id)
    return link


async def find_by_unique(conn: Connection, tenant_id: UUID, provider: str, external_id: str) -> Link | None:
    """The connection of one account, if this tenant has it."""
    external = intake.clean_text("external_id", external_id)
    params = {"tenant_id": tenant_id, "provider": asked_slug(provider), "external_id": external}
    return await _one(conn, queries.LINK_BY_UNIQUE, params)


async def by_external_ids(conn: Connection, tenant_id: UUID, provider: str, ids: Sequence[str]) -> list[Link]:
    """The connections of a tenant that one of these ids means, by their own id or by one set for webhooks."""
    sought = sorted({one for one in ids if intake.absorb(one) == one})  # no row has what no row can hold
    params = {"tenant_id": tenant_id, "provider": asked_slug(provider), "ids": sought}
    return await _all(conn, queries.LINKS_BY_EXTERNAL_IDS, params) if sought else []


async def list_by_tenant_provider(
    conn: Connection, tenant_id: UUID, provider: str, limit: int, cursor: str | None = None
) -> Links:
    """A page of a tenant's connections at one provider, the oldest first."""
    return await listing(conn, tenant_id, provider=provider, limit=limit, cursor=cursor)


async def listing(
    conn: Connection,
    tenant_id: UUID | None,
    *,
    provider: str | None = None,
    status: str | None = None,
    limit: int = 50,
    cursor: str | None = None,
) -> Links:
    """A page of connections, the oldest first: a tenant's, or with None everybody's."""
    filters = {
        "tenant_id": tenant_id,
        "provider": None if provider is None else asked_slug(provider),
        "status": None if status is None else _status(status),
    }
    params = {name: value for name, value in filters.items() if value is not None}
    given = list(params)
    if cursor is not None:
        keys = cursors.decode(cursor, filters, ("created_at", "id"))
        params |= {"after": keys["created_at"], "after_id": keys["id"]}
        given.append("after")
    # One more than is shown tells whether a page follows.
    found = await _all(conn, queries.links(given), params | {"limit": page_size(limit) + 1})
    items = found[:limit]
    if not items or len(found) == len(items):
        return Links(tuple(items), None)
    last = items[-1]
    return Links(tuple(items), cursors.encode({"created_at": last.created_at, "id": last.id}, filters))


def page_size(limit: int) -> int:
    """The number, if a page may have so many rows; 0 is an empty page."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= MOST:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field="limit", message=f"must lie between 0 and {MOST}, not {limit!r}")
    return limit


# -- changing --------------------------------------------------------------------------------------------


async def lock(conn: Connection, id: UUID) -> Link | None:
    """The connection as it is now, and as it stays until the transaction ends; None: it is gone."""
    return await _one(conn, queries.LOCK_LINK, {"id": id})


async def lock_shared(conn: Connection, id: UUID) -> Link | None:
    """The same for those who only need it to stay there: others may share it, and change what it says."""
    return await _one(conn, queries.LOCK_LINK_SHARED, {"id": id})


async def update_tokens_status(
    conn: Connection,
    id: UUID,
    *,
    access: bytes | Keep | None = KEEP,
    refresh: bytes | Keep | None = KEEP,
    key_id: str | Keep | None = KEEP,
    status: str | Keep = KEEP,
    expires_at: datetime | Keep | None = KEEP,
) -> Link | None:
    """Writes what is given and touches nothing else; None when the connection is gone.

    Both tokens are sealed by the key that `key_id` names: who writes one seals the other again.
    """
    every = {
        "access": access,
        "refresh": refresh,
        "key_id": key_id,
        "status": status if isinstance(status, Keep) else _status(status),
        "expires_at": expires_at if isinstance(expires_at, Keep) else _moment(expires_at),
    }
    given = [name for name, value in every.items() if value is not KEEP]
    if not given:
        return await get_by_id(conn, id)
    values = {name: None if value is KEEP else value for name, value in every.items()}
    return await _one(conn, queries.UPDATE_LINK, {"id": id, "given": given, **values})


async def merge_sync(
    conn: Connection, id: UUID, patch: Mapping[str, Json], remove: Sequence[str] = ()
) -> None:
    """Writes keys of `metadata.sync`, and removes others; all that is not named stays as it is.

    The one way to write there: null metadata, or a `sync` that is no object, is made one.
    """
    try:
        text = intake.payload_text(dict(patch))
    except InvalidInput as error:
        raise InvalidInput(field="sync", message=error.fields["message"]) from None
    await conn.execute(queries.MERGE_SYNC, {"id": id, "patch": text, "remove": list(remove)})


# -- small pieces ----------------------------------------------------------------------------------------


def _status(status: str) -> str:
    if status not in STATUSES:
        raise InvalidInput(field="status", message=f"must be one of {', '.join(STATUSES)}, not {status!r}")
    return status


def _moment(moment: datetime | None) -> datetime | None:
    return None if moment is None else intake.aware("expires_at", moment)


def _text(value: Json) -> str:
    return msgspec.json.encode(value).decode()


async def _one(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> Link | None:
    async with conn.cursor(row_factory=class_row(Link)) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchone()


async def _all(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> list[Link]:
    async with conn.cursor(row_factory=class_row(Link)) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()
