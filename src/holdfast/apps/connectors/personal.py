"""Connecting an account by a token that a person has made at the provider, without OAuth."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.api import audit
from holdfast.api.actions import must
from holdfast.api.caller import Caller
from holdfast.apps.connectors import actions, connections, inbox, rounds
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.service import Connectors
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.errors import InvalidInput

LONGEST_TOKEN = 8192  # characters


async def connect_by_token(
    service: Connectors,
    conn: Connection,
    caller: Caller,
    tenant_id: UUID,
    *,
    provider: str,
    external_id: str,
    token: str,
    display_name: str | None = None,
) -> tuple[Link, bool]:
    """Keeps a personal token, sealed; answers whether the connection is new. An old one gets this token.

    Nobody asks the provider whether the token is good: the first sync does. It is not renewed, either.
    """
    must(caller, "act")
    known, bare = service.provider(slug_of(provider)), token.strip()
    service.kind(known.slug)
    if not bare or len(bare) > LONGEST_TOKEN or not bare.isprintable():
        raise InvalidInput(field="token", message=f"must be one line of at most {LONGEST_TOKEN} characters")
    external = intake.clean_text("external_id", external_id)
    place: Any = {"tenant_id": tenant_id, "provider": known.slug, "external_id": external}
    sealed = service.keyring.seal(bare, **place)
    async with conn.transaction():
        await actions.enlist(conn, known)
        link, made = await connections.upsert(
            conn,
            **place,
            display_name=display_name,
            scopes=known.scopes,
            access=sealed.data,
            key_id=sealed.key_id,
        )
        await inbox.wake_waiting(conn, service.store, link)
        if known.auth_type != "webhook-only":
            await rounds.schedule_now(conn, service.store, service.settings, link.id)
        within = Caller(who=caller.who, scope=caller.scope, tenant=str(tenant_id))
        detail = {"provider": known.slug, "created": made, "by": "token"}
        await audit.note(conn, within, "connection connect", row_id=link.id, rows=1, detail=detail)
    return link, made
