"""What the commands of `holdfast connect` share: the app at work, who asks, and how a connection is told."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

from holdfast.cli import application, options, queries, record
from holdfast.errors import InvalidInput, MissingExtra, NotFound

if TYPE_CHECKING:
    from uuid import UUID

    from holdfast.api.caller import Caller
    from holdfast.apps.connectors.actions import Health
    from holdfast.apps.connectors.connections import Link
    from holdfast.apps.connectors.protocol import Provider
    from holdfast.apps.connectors.service import Connectors
    from holdfast.engine.store import Connection
    from holdfast.platform import Holdfast

LONGEST = 65536  # characters of a token that are read


def load(spec: str | None) -> Holdfast:
    """The application that is named, with its own connectors; else the built-in ones."""
    found = application.load(spec)
    application.settle(found)
    return found


@asynccontextmanager
async def opened(app: Holdfast) -> AsyncGenerator[tuple[Connectors, Connection]]:
    """The connectors of an application at work, and a connection."""
    try:
        from holdfast.apps.connectors.service import Connectors
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "holdfast":
            raise
        raise MissingExtra(what="the app connectors", extra="connectors") from error
    async with app, app.database.connection() as conn:
        yield Connectors.of(app), conn


def caller(by: str | None) -> Caller:
    """Whoever sits at the shell: an operator."""
    from holdfast.api.caller import Caller

    return Caller(who=record.who(options.doer(by)), scope="admin")


@overload
def uuid_of(field: str, text: str) -> UUID: ...
@overload
def uuid_of(field: str, text: str | None) -> UUID | None: ...
def uuid_of(field: str, text: str | None) -> UUID | None:
    """The UUID that somebody typed."""
    from holdfast.engine import intake

    return None if text is None else intake.typed(field, "uuid", text)


def token() -> str:
    """A token from standard input: in arguments every user of the machine could read it."""
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("token: ", sys.stderr)
    return sys.stdin.read(LONGEST)


def json_of(field: str, text: str | None) -> Any:
    """JSON that somebody typed, or with `-` what comes from standard input."""
    if text is None:
        return None
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(field=field, message=f"is no JSON: {error}") from None


def word(value: Any) -> Any:
    """Yes or no, for what is one of both."""
    return ("no", "yes")[value] if isinstance(value, bool) else value


# -- telling ---------------------------------------------------------------------------------------------


def told(link: Link, health: Health) -> dict[str, Any]:
    """A connection without its tokens, as the API tells it."""
    return {
        "id": str(link.id),
        "tenant_id": str(link.tenant_id),
        "provider": link.provider,
        "external_id": link.external_id,
        "display_name": link.display_name,
        "status": link.status,
        "scopes": list(link.scopes),
        "expires_at": link.expires_at,
        "has_access_token": link.access is not None,
        "has_refresh_token": link.refresh is not None,
        "created_at": link.created_at,
        "updated_at": link.updated_at,
        "health": {
            "last_success": health.last_success,
            "last_error": health.last_error,
            "last_error_at": health.last_error_at,
            "failures": health.failures,
            "next_run": health.next_run,
            "cooldown_until": health.cooldown_until,
        },
        "metadata": dict(link.metadata),
    }


def told_provider(service: Connectors, provider: Provider) -> dict[str, Any]:
    """A provider as the API tells it."""
    own = service.settings.provider(provider.slug)
    needed = own.client_id if provider.auth_type == "oauth2" else own.webhook_secret
    return {
        "name": provider.slug,
        "display_name": provider.display_name,
        "auth_type": provider.auth_type,
        "scopes": list(provider.scopes),
        "webhooks": provider.webhooks,
        "connectable": provider.slug in service.known and bool(needed),
    }


def secret_of(service: Connectors, provider: str, tenant: UUID) -> dict[str, Any]:
    """The secret of a tenant's webhooks, and where they go."""
    from holdfast.apps.connectors.catalogue import slug_of
    from holdfast.apps.connectors.signatures import derived_secret

    known = service.provider(slug_of(provider))
    kind, own = service.known.get(known.slug), service.settings.provider(known.slug).webhook_secret
    if kind is None or kind.scheme in (None, "oidc") or not own:
        raise NotFound(what="webhook secret", id=known.slug)
    return {
        "provider": known.slug,
        "scheme": kind.scheme,
        "secret": derived_secret(own, tenant, known.slug),
        "path": f"/api/connectors/webhooks/{known.slug}/{tenant}",
    }


async def sealed_otherwise(conn: Connection, key_id: str) -> int:
    """How many connections have tokens that another key has sealed."""
    ((count,),) = await (await conn.execute(queries.SEALED_OTHERWISE, {"key_id": key_id})).fetchall()
    return count
