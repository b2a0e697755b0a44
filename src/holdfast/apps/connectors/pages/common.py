"""What the pages share: whose rows are meant, and names of things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, LiteralString
from urllib.parse import quote
from uuid import UUID

from psycopg.rows import tuple_row

from holdfast.api.caller import Caller
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.pages import queries
from holdfast.apps.connectors.service import Connectors
from holdfast.dashboard.lists import uuid_of
from holdfast.engine.store import Connection


def whose(caller: Caller, wanted: str | None = None) -> UUID | None:
    """Whose rows a page is about: the caller's own tenant, or the one that an operator asks for, or all's."""
    if caller.tenant is not None:
        return uuid_of("tenant", caller.tenant)
    return None if wanted is None else uuid_of("tenant", wanted)


# -- names -----------------------------------------------------------------------------------------------


async def tenant_names(conn: Connection, ids: Iterable[UUID]) -> dict[UUID, str]:
    """The names of tenants that have one."""
    return await _names(conn, queries.TENANT_NAMES, ids)


async def account_names(conn: Connection, ids: Iterable[UUID | None]) -> dict[UUID, str]:
    """What the accounts of connections are called."""
    return await _names(conn, queries.ACCOUNT_NAMES, [one for one in ids if one is not None])


async def _names(conn: Connection, query: LiteralString, ids: Iterable[UUID]) -> dict[UUID, str]:
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query, {"ids": wanted})
        return {key: name for key, name in await cursor.fetchall() if name}


async def cooling(conn: Connection) -> Mapping[str, datetime]:
    """The providers that want no calls at all, and until when."""
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(queries.COOLING)
        return dict(await cursor.fetchall())


def provider_choices(service: Connectors) -> list[tuple[str, str]]:
    """The providers, as a filter offers them."""
    slugs = sorted({*(one.slug for one in PROVIDERS), *service.known})
    return [(slug, service.provider(slug).display_name) for slug in slugs]


def address(*parts: Any) -> str:
    """The path of a page of ours."""
    return "/connectors" + "".join(f"/{quote(str(part), safe='')}" for part in parts)
