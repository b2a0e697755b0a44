"""Connecting an account by OAuth: the way to the provider, and the way back.

The state is what ties both together. It is random, kept for some minutes, and used up by the first who brings
it, before anything else is looked at: also when the provider reports an error. PKCE (RFC 7636, S256) proves
that whoever brings the code is who asked for it.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import re
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from psycopg.errors import ForeignKeyViolation
from psycopg.rows import class_row, tuple_row

from holdfast.api import audit
from holdfast.api.caller import Caller
from holdfast.apps.connectors import actions, connections, inbox, rounds, sql
from holdfast.apps.connectors.catalogue import slug_of
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.protocol import (
    AuthRequest,
    ConnectorError,
    Grant,
    Provider,
    Unsupported,
)
from holdfast.apps.connectors.service import Connectors, clock
from holdfast.engine import intake
from holdfast.engine.store import Connection
from holdfast.errors import HoldfastError, InvalidInput, NotFound, NotSupported, ProviderError

log = logging.getLogger("holdfast.connectors")

STATE_BYTES = 32
VERIFIER_BYTES = 64  # 86 characters of the 43 to 128 that RFC 7636 allows
LONGEST_URL = 2048
LONGEST_CODE = 4096
LOOPBACK = ("127.0.0.1", "::1", "localhost")
WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # an error as OAuth spells it: anything else is not repeated
CALLBACK = Caller(who="oauth callback", scope="act")


class Refused(InvalidInput):
    """{field}: {message}

    A callback that proves nothing, or brings a refusal; `details` says which, for programs.
    """

    details: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _State:
    """What was kept between the way there and the way back."""

    tenant_id: UUID
    code_verifier: str | None
    redirect_uri: str | None
    expired: bool


# -- there -----------------------------------------------------------------------------------------------


async def start(service: Connectors, tenant_id: UUID, provider: str, redirect_uri: str | None = None) -> str:
    """Where a person goes to allow it. The state and the address come together, or neither does."""
    known = _connectable(service, provider)
    request = _request(known, redirect=_allowed(service, known, redirect_uri))
    params = {
        "id": uuid.uuid4(),
        "tenant": tenant_id,
        "provider": known.slug,
        "state": request.state,
        "verifier": request.code_verifier,
        "redirect_uri": request.redirect_uri,
        "seconds": service.settings.oauth_state_ttl_seconds,
    }
    async with service.connector(known.slug) as connector, service.database.connection() as conn:
        try:
            async with conn.transaction():
                await conn.execute(sql.ADD_STATE, params)
                return _proper(service, known, await connector.authorize_url(request))
        except ForeignKeyViolation:
            raise NotFound(what="tenant", id=tenant_id) from None
        except ConnectorError as error:
            raise _told(known, error) from None


def _connectable(service: Connectors, provider: str) -> Provider:
    """A provider that can be connected by OAuth, here and now."""
    known = service.provider(slug_of(provider))
    if known.auth_type != "oauth2":
        raise InvalidInput(
            field="provider",
            message=f"{known.display_name} has nothing to authorise. Make its connection by POST "
            "/api/connectors/connections with its external_id, and let it send its webhooks to "
            f"/api/connectors/webhooks/{known.slug}/<your tenant's id>, with the secret of GET "
            f"/api/connectors/webhook-secrets/{known.slug}",
        )
    if known.slug not in service.known:
        raise NotSupported(message=f"there is no connector for {known.slug} yet")
    if not service.settings.provider(known.slug).client_id:
        name = f"HOLDFAST_OAUTH_{known.slug.upper()}_CLIENT_ID"
        raise NotSupported(message=f"{known.slug} is not set up for OAuth: {name} is not set")
    return known


def _allowed(service: Connectors, known: Provider, wanted: str | None) -> str:
    """The address to come back to: one of the allow list, to the letter."""
    allowed = service.settings.oauth_redirect_uris
    if wanted is not None and wanted in allowed:
        return wanted
    if wanted is not None or not allowed:
        message = "is not one of HOLDFAST_OAUTH_REDIRECT_URIS" if allowed else "none is allowed yet"
        raise InvalidInput(
            field="redirect_uri", message=f"{message}: operators set HOLDFAST_OAUTH_REDIRECT_URIS"
        )
    own = [uri for uri in allowed if urlsplit(uri).path.rstrip("/").endswith(f"/callback/{known.slug}")]
    return own[0] if own else allowed[0]


def _request(known: Provider, *, redirect: str) -> AuthRequest:
    verifier = secrets.token_urlsafe(VERIFIER_BYTES)
    return AuthRequest(
        redirect_uri=redirect,
        state=secrets.token_urlsafe(STATE_BYTES),
        scopes=known.scopes,
        code_challenge=challenge(verifier),
        code_verifier=verifier,
    )


def challenge(verifier: str) -> str:
    """What PKCE shows first: the verifier's hash (S256).

    >>> challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk")
    'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM'
    """
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _proper(service: Connectors, known: Provider, url: str) -> str:
    """The address, if a browser may be sent there."""
    parts = urlsplit(url)
    local = service.settings.profile in ("local", "test") and parts.hostname in LOOPBACK
    if (parts.scheme == "https" or local) and not parts.fragment and len(url) <= LONGEST_URL:
        return url
    message = f"the connector of {known.slug} gave an address that is no good"
    raise _provider_error(known, message)


# -- and back --------------------------------------------------------------------------------------------


async def finish(service: Connectors, provider: str, params: Mapping[str, str]) -> Link:
    """Takes what a provider sent back; answers with the connection, new or brought up to date."""
    async with service.database.connection() as conn:
        kept = await _consume(conn, slug_of(provider), params.get("state"))
    known = _connectable(service, provider)  # only now: whatever else is wrong, the state is used up
    if isinstance(kept, Refused):
        raise kept
    if (error := params.get("error")) is not None:
        word = error if WORD.fullmatch(error) else "unreadable"
        raise Refused(field="error", message=f"{known.slug} said {word}", details={"provider_error": word})
    code = params.get("code", "")
    if not 1 <= len(code) <= LONGEST_CODE:
        raise Refused(field="code", message="is missing", details={"error_type": "code_missing"})
    request = AuthRequest(
        redirect_uri=kept.redirect_uri or "",
        state=params["state"],
        scopes=known.scopes,
        code_challenge=challenge(kept.code_verifier or ""),
        code_verifier=kept.code_verifier or "",
    )
    try:
        async with service.connector(known.slug) as connector:
            grant = await connector.exchange(code, request)
    except ConnectorError as error:
        raise _told(known, error) from None
    if not grant.external_id or not grant.access_token:
        raise _provider_error(known, f"{known.slug} did not say whose account it is, or gave no token")
    try:
        async with service.database.connection() as conn:
            return await _store(service, conn, known, kept.tenant_id, grant)
    except InvalidInput:
        raise _provider_error(known, f"{known.slug} told of an account what cannot be stored") from None


async def _consume(conn: Connection, slug: str, state: str | None) -> _State | Refused:
    """What was kept for a state, which is used up from now on whatever comes; or what is wrong with it."""
    params = {"provider": intake.absorb(slug), "state": intake.absorb(state or "", LONGEST_CODE)}
    async with conn.cursor(row_factory=class_row(_State)) as found:
        await found.execute(sql.CONSUME_STATE, params)
        kept = await found.fetchone()
    if kept is not None and not kept.expired:
        return kept
    if kept is not None:
        kind, message = "state_expired", "is too old: begin again"
    else:
        async with conn.cursor(row_factory=tuple_row) as found:
            await found.execute(sql.KNOWN_STATE, params)
            ((used,),) = await found.fetchall()
        kind = "state_reused" if used else "csrf_validation_failed"
        message = "was used already: begin again" if used else "is not one that was given out"
    return Refused(field="state", message=message, details={"error_type": kind})


async def _store(
    service: Connectors, conn: Connection, known: Provider, tenant_id: UUID, grant: Grant
) -> Link:
    """Keeps the tokens, sealed for this account of this tenant and no other."""
    place: Any = {"tenant_id": tenant_id, "provider": known.slug, "external_id": grant.external_id}
    access = service.keyring.seal(grant.access_token, **place)
    refresh = service.keyring.seal(grant.refresh_token, **place) if grant.refresh_token else None
    async with conn.transaction():
        await actions.enlist(conn, known)
        expires = None if grant.lifetime is None else await clock(conn) + grant.lifetime
        link, made = await connections.upsert(
            conn,
            **place,
            display_name=grant.display_name,
            scopes=grant.scopes or known.scopes,
            access=access.data,
            refresh=refresh and refresh.data,
            key_id=access.key_id,
            expires_at=expires,
            metadata=dict(grant.metadata),
        )
        await inbox.wake_waiting(conn, service.store, link)
        await rounds.schedule_now(conn, service.store, service.settings, link.id)
        who = Caller(who=CALLBACK.who, scope=CALLBACK.scope, tenant=str(tenant_id))
        detail = {"provider": known.slug, "created": made}
        await audit.note(conn, who, "connection connect", row_id=link.id, rows=1, detail=detail)
    log.info("connection %s (%s): %s", link.id, known.slug, "connected" if made else "connected again")
    return link


def _told(known: Provider, error: ConnectorError) -> HoldfastError:
    """A connector's error for whoever came over HTTP: its own words name neither codes nor tokens."""
    if isinstance(error, Unsupported):
        return NotSupported(message=str(error))
    return _provider_error(known, str(error), error.answered)


def _provider_error(known: Provider, message: str, answered: int | None = None) -> ProviderError:
    details: dict[str, str | int] = {"provider": known.slug}
    return ProviderError(
        message=message, details=details if answered is None else details | {"status": answered}
    )
