"""The repository of providers and connections, for programs of yours.

Each method takes a connection to the database and joins the transaction that is open there. Tokens are given
in the clear and encrypted before they are written. `get_by_id` takes no tenant: it is for ids from rows of
your own; what a caller names is read by `list_by_tenant_provider` or `find_by_unique`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast
from uuid import UUID

from holdfast.apps.connectors import catalogue, connections, rounds
from holdfast.apps.connectors.connections import KEEP, Keep, Link, Links
from holdfast.apps.connectors.protocol import Provider
from holdfast.apps.connectors.service import Connectors
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.engine.values import Json
from holdfast.errors import InvalidInput
from holdfast.runtime.app import Ground

MAX_TOKEN_CHARS = 8192


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The tokens of an account, in the clear; no `repr` shows them."""

    access: str = field(repr=False)
    refresh: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, token in (("tokens.access", self.access), ("tokens.refresh", self.refresh)):
            if token is not None and not (0 < len(token) <= MAX_TOKEN_CHARS and token.isprintable()):
                message = f"must be one line of 1 to {MAX_TOKEN_CHARS} characters"
                raise InvalidInput(field=name, message=message)


class Repository:
    """Providers and connections of an open application: `Repository(app)`."""

    def __init__(self, app: Ground) -> None:
        self._service = Connectors.of(app)

    # -- providers -----------------------------------------------------------------------------------

    async def get_by_slug(self, conn: Connection, slug: str) -> Provider:
        """Return one provider; `NotFound` without a row of that slug."""
        return await catalogue.get_by_slug(conn, slug)

    async def list_all(self, conn: Connection) -> list[Provider]:
        """Return every provider, by slug."""
        return await catalogue.list_all(conn)

    async def upsert(self, conn: Connection, slug: str, display_name: str, auth_type: str) -> Provider:
        """Insert a provider, or update its row; return it as it is now."""
        kind = cast("Literal['oauth2', 'webhook-only']", auth_type)  # the column takes any text
        given = Provider(slug=catalogue.slug_of(slug), display_name=display_name, auth_type=kind)
        await catalogue.upsert(conn, given)
        return await catalogue.get_by_slug(conn, given.slug)

    # -- connections ---------------------------------------------------------------------------------

    async def create(
        self,
        conn: Connection,
        *,
        tenant_id: UUID,
        provider: str,
        external_id: str,
        tokens: Tokens | None = None,
        expires_at: datetime | None = None,
        display_name: str | None = None,
        scopes: Sequence[str] | None = None,
        metadata: Mapping[str, Json] | None = None,
        status: str = "active",
    ) -> Link:
        """Create a connection, and the job of its first sync, due at once.

        `Conflict` when the tenant has this account already; `NotFound` without such a tenant or provider.
        """
        slug, external = catalogue.asked_slug(provider), intake.clean_text("external_id", external_id)
        async with conn.transaction():
            link = await connections.create(
                conn,
                tenant_id=tenant_id,
                provider=slug,
                external_id=external,
                display_name=display_name,
                scopes=scopes,
                metadata=metadata,
                expires_at=expires_at,
                status=status,
                **({} if tokens is None else self._sealed(tokens, tenant_id, slug, external)),
            )
            if (await catalogue.get_by_slug(conn, slug)).auth_type != "webhook-only":
                await rounds.schedule_now(conn, self._service.store, self._service.settings, link.id)
        return link

    async def get_by_id(self, conn: Connection, id: UUID) -> Link | None:
        """Return one connection of any tenant, or None."""
        return await connections.get_by_id(conn, id)

    async def find_by_unique(
        self, conn: Connection, tenant_id: UUID, provider: str, external_id: str
    ) -> Link | None:
        """Return the tenant's connection of one account, or None."""
        return await connections.find_by_unique(conn, tenant_id, provider, external_id)

    async def list_by_tenant_provider(
        self, conn: Connection, tenant_id: UUID, provider: str, limit: int, cursor: str | None = None
    ) -> Links:
        """Return a page (`items`, `cursor`) of a tenant's connections at one provider, the oldest first.

        The `cursor` of a page is given to read the next one; None: there is none.
        """
        return await connections.list_by_tenant_provider(conn, tenant_id, provider, limit, cursor)

    async def update_tokens_status(
        self,
        conn: Connection,
        id: UUID,
        *,
        tokens: Tokens | Keep | None = KEEP,
        status: str | Keep = KEEP,
        expires_at: datetime | Keep | None = KEEP,
    ) -> Link | None:
        """Write what is given and nothing else; return the connection, or None when there is none.

        `tokens` replaces both tokens; None removes them.
        """
        given: dict[str, Any] = {"status": status, "expires_at": expires_at}
        async with conn.transaction():
            link = await connections.lock(conn, id)
            if link is None:
                return None
            if tokens is None:
                given |= {"access": None, "refresh": None, "key_id": None}
            elif isinstance(tokens, Tokens):
                given |= self._sealed(tokens, link.tenant_id, link.provider, link.external_id)
            return await connections.update_tokens_status(conn, id, **given)

    def _sealed(self, tokens: Tokens, tenant_id: UUID, provider: str, external_id: str) -> dict[str, Any]:
        place: Any = {"tenant_id": tenant_id, "provider": provider, "external_id": external_id}
        access = self._service.keyring.seal(tokens.access, **place)
        refresh = None if tokens.refresh is None else self._service.keyring.seal(tokens.refresh, **place)
        return {"access": access.data, "refresh": refresh and refresh.data, "key_id": access.key_id}
