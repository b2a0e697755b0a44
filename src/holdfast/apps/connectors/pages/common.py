"""What the pages share: whose rows are meant, filters out of a query, turning pages, and names of things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString
from urllib.parse import quote
from uuid import UUID

from psycopg.rows import tuple_row
from starlette.datastructures import FormData

from holdfast.api.caller import Caller
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.pages import queries
from holdfast.apps.connectors.service import Connectors
from holdfast.dashboard import forms
from holdfast.engine import intake
from holdfast.engine.store import Connection

Pairs = list[tuple[str, str]]
PAGE = 25  # rows of a list
LONGEST = 255  # characters of a text in a filter


@dataclass(frozen=True)
class Asked:
    """What a query asks for: its texts without blanks around them, and none that are empty."""

    pairs: Pairs

    @classmethod
    def of(cls, query: Iterable[tuple[str, str]]) -> Asked:
        return cls([(name, value.strip()) for name, value in query if value.strip()])

    @property
    def cursor(self) -> str | None:
        return dict(self.pairs).get("cursor")

    def text(self, name: str) -> str | None:
        value = forms.text(FormData(dict(self.pairs)), name, LONGEST)
        return None if value is None else intake.clean_text(name, value)

    def moment(self, name: str) -> datetime | None:
        return forms.moment(FormData(dict(self.pairs)), name)

    def uuid(self, name: str) -> UUID | None:
        value = self.text(name)
        return None if value is None else uuid_of(name, value)

    def shown(self, name: str) -> str:
        """As a field of the filter shows it, right or wrong."""
        return dict(self.pairs).get(name, "")

    def only(self, names: Sequence[str]) -> Pairs:
        """What it says of these."""
        return [(name, value) for name, value in self.pairs if name in names]


def uuid_of(name: str, text: str) -> UUID:
    """The UUID that a text means, or `InvalidInput`."""
    return intake.typed(name, "uuid", text)


def whose(caller: Caller, wanted: str | None = None) -> UUID | None:
    """Whose rows a page is about: the caller's own tenant, or the one that an operator asks for, or all's."""
    if caller.tenant is not None:
        return uuid_of("tenant", caller.tenant)
    return None if wanted is None else uuid_of("tenant", wanted)


# -- turning pages ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """The queries of the page before this one and of the page after it; None where there is none."""

    back: Pairs | None
    on: Pairs | None


def turn(asked: Asked, cursor: str | None) -> Turn:
    """How to go on from a page that ended at a cursor, and back: the last pages on the way are remembered."""
    kept = [(name, value) for name, value in asked.pairs if name not in ("cursor", "before")]
    way = forms.trail(asked.pairs)
    here = [asked.cursor] if asked.cursor else []
    on = back = None
    if cursor is not None:
        on = [*kept, ("cursor", cursor), *(("before", one) for one in (way + here)[-forms.TRAIL :])]
    if here:
        *earlier, last = way or [""]
        before = [("before", one) for one in earlier]
        back = [*kept, *([("cursor", last)] if last else []), *before]
    return Turn(back, on)


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
