"""The catalogue of providers: the eight that are known here, and what the database has of them.

The table says which there are and what they are called; what a provider is asked for (its scopes), and
whether it sends webhooks, is a matter of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, cast

from psycopg.errors import UniqueViolation
from psycopg.rows import dict_row

from holdfast.apps.connectors import queries
from holdfast.apps.connectors.protocol import Provider
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.errors import Conflict, InvalidInput, NotFound

SLUG = re.compile(r"[a-z][a-z0-9_]{0,62}")

PROVIDERS: tuple[Provider, ...] = (
    Provider(
        slug="slack",
        display_name="Slack",
        auth_type="oauth2",
        scopes=("channels:read", "channels:history", "reactions:read"),
    ),
    Provider(slug="github", display_name="GitHub", auth_type="oauth2", scopes=("repo", "read:org")),
    Provider(
        slug="jira", display_name="Jira", auth_type="oauth2", scopes=("read:jira-work", "read:jira-user")
    ),
    Provider(
        slug="google_drive", display_name="Google Drive", auth_type="oauth2", scopes=("drive.readonly",)
    ),
    Provider(
        slug="google_calendar",
        display_name="Google Calendar",
        auth_type="oauth2",
        scopes=("calendar.readonly",),
    ),
    Provider(slug="gmail", display_name="Gmail", auth_type="oauth2", scopes=("gmail.readonly",)),
    Provider(slug="zoho_cliq", display_name="Zoho Cliq", auth_type="webhook-only"),
    Provider(
        slug="zoho_mail",
        display_name="Zoho Mail",
        auth_type="oauth2",
        scopes=("ZohoMail.messages.READ",),
        webhooks=False,
    ),
)

_KNOWN = {provider.slug: provider for provider in PROVIDERS}


class UnknownProvider(NotFound):
    """provider {id!r} not found"""


def slug_of(text: str) -> str:
    """The slug as it is stored: people also write it with hyphens.

    >>> slug_of("google-drive")
    'google_drive'
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field="provider", message=f"must be a text, not {text!r}")
    return text.strip().replace("-", "_")


def asked_slug(text: str) -> str:
    """The slug to look for in rows, or `InvalidInput` when no provider could have it."""
    slug = slug_of(text)
    if not SLUG.fullmatch(slug):
        raise InvalidInput(field="provider", message=f"{text!r} is not the slug of a provider")
    return slug


async def get_by_slug(conn: Connection, slug: str) -> Provider:
    """One provider, or `NotFound`."""
    meant = slug_of(slug)
    if SLUG.fullmatch(meant):
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(queries.ONE_PROVIDER, {"slug": meant})
            if (row := await cursor.fetchone()) is not None:
                return _provider(row)
    raise UnknownProvider(what="provider", id=slug)


async def list_all(conn: Connection) -> list[Provider]:
    """Every provider, by its slug."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.PROVIDERS)
        return [_provider(row) for row in await cursor.fetchall()]


async def create(conn: Connection, provider: Provider) -> None:
    """Puts a new provider into the catalogue, or `Conflict`; the caller's transaction goes on either way."""
    params = _params(provider)
    try:
        async with conn.transaction():
            await conn.execute(queries.ADD_PROVIDER, params)
    except UniqueViolation:
        raise Conflict(what="provider", message=f"there is a {provider.slug!r} already") from None


async def upsert(conn: Connection, provider: Provider) -> None:
    """Puts a provider into the catalogue, or brings its row up to date.

    A row that is right already is neither written nor locked: who goes on to a connection from here would
    meet whoever notes a limit, and comes from there.
    """
    params = _params(provider)
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.ONE_PROVIDER, {"slug": provider.slug})
        if await cursor.fetchone() != params:
            await conn.execute(queries.UPSERT_PROVIDER, params)


def _params(provider: Provider) -> dict[str, str]:
    if not SLUG.fullmatch(provider.slug):
        message = f"{provider.slug!r} must be lower case letters, digits and _, at most 63"
        raise InvalidInput(field="slug", message=message)
    params = {"slug": provider.slug}
    for name in ("display_name", "auth_type"):
        params[name] = intake.clean_text(name, getattr(provider, name)).strip()
        if not params[name]:
            raise InvalidInput(field=name, message="must not be empty")
    return params


async def seed(conn: Connection, own: Iterable[Provider] = ()) -> None:
    """Puts the eight into the catalogue, and the user's own; all or none. Again changes nothing."""
    async with conn.transaction():
        for provider in sorted((_KNOWN | {one.slug: one for one in own}).values(), key=lambda p: p.slug):
            await upsert(conn, provider)


async def cool_down(conn: Connection, slug: str, until: datetime) -> None:
    """Notes until when a provider wants no calls from anybody here."""
    await conn.execute(queries.COOL_DOWN, {"slug": slug, "until": intake.aware("until", until)})


def _provider(row: dict[str, Any]) -> Provider:
    known = _KNOWN.get(row["slug"])
    return Provider(
        slug=row["slug"],
        display_name=row["display_name"],
        auth_type=cast("Literal['oauth2', 'webhook-only']", row["auth_type"]),
        scopes=known.scopes if known else (),
        webhooks=known.webhooks if known else True,
    )
