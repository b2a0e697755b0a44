# ruff: noqa: ARG002 (what every connector is asked with, some do not need)
"""What a connector is: the values that pass between one and its callers, its errors, and its methods.

Nothing here opens a connection: a connector is handed its HTTP, its settings and an account with its token
in the clear, and answers with values. Tokens stay out of every repr.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import UUID

from holdfast.errors import HoldfastError

if TYPE_CHECKING:  # httpx is an extra, and the catalogue does without it
    from holdfast.apps.connectors.http import Http
    from holdfast.apps.connectors.signatures import Scheme
    from holdfast.db.settings import ProviderSettings

Json = Any

LONGEST_LIFE = 10 * 365 * 86400  # seconds of a token: who says more says nonsense


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A line of the catalogue."""

    slug: str
    display_name: str
    auth_type: Literal["oauth2", "webhook-only"]
    scopes: tuple[str, ...] = ()
    webhooks: bool = True


@dataclass(frozen=True, kw_only=True)
class Signal:
    """One normalised fact; `dedupe_key` names the fact and its own time, so that poll and webhook agree."""

    kind: str
    occurred_at: datetime
    payload: Json
    dedupe_key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """What one call of `sync` found, and where the next one begins; `has_more`: that is to be at once."""

    signals: tuple[Signal, ...] = ()
    next_cursor: Json = None
    has_more: bool = False


@dataclass(frozen=True, kw_only=True)
class AuthRequest:
    """One authorisation on its way: what is asked for, and the PKCE pair that proves who asked."""

    redirect_uri: str
    state: str
    scopes: tuple[str, ...]
    code_challenge: str
    code_verifier: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class Grant:
    """An account and its tokens, as a provider gave them; `refresh` leaves `external_id` empty."""

    external_id: str
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_in: int | None = None
    scopes: tuple[str, ...] = ()
    display_name: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])

    @property
    def lifetime(self) -> timedelta | None:
        """How long the access token is good; None when nobody says so, or says what cannot be.

        >>> Grant(external_id="", access_token="t", expires_in=-1).lifetime is None
        True
        """
        seconds: Any = self.expires_in
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            return None
        return timedelta(seconds=seconds) if 0 < seconds <= LONGEST_LIFE else None


@dataclass(frozen=True, kw_only=True)
class Account:
    """A connection as its connector sees it, with the token in the clear."""

    id: UUID
    tenant_id: UUID
    provider: str
    external_id: str
    display_name: str | None
    scopes: tuple[str, ...]
    metadata: Mapping[str, Json]
    access_token: str | None = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One webhook out of the inbox; header names are lower case, `payload` is None when it was no JSON."""

    id: str
    headers: Mapping[str, str]
    payload: Json
    received_at: datetime


@dataclass(frozen=True, kw_only=True)
class WebhookResult:
    """What a delivery meant; `wants_sync`: it carried no data, only that there is some."""

    signals: tuple[Signal, ...] = ()
    wants_sync: bool = False


class ConnectorError(HoldfastError):
    """{message}

    A provider could not be used. The subclass says what to do about it; `answered` is the HTTP status that
    the provider gave, where it gave one.
    """

    code = "PROVIDER_ERROR"
    status = 502
    answered: int | None = None


class Unauthorized(ConnectorError):
    """{message}

    The token is not good any more: refresh it once, and ask again once.
    """

    code = "UNAUTHORIZED"


class RateLimited(ConnectorError):
    """{message}

    Too many calls. `retry_after_seconds` is the provider's own hint, None without one; `shared` means that
    the limit counts for all accounts of this installation, and not for this one alone.
    """

    code = "RATE_LIMITED"
    retry_after_seconds: float | None
    shared: bool

    def __init__(
        self, *, message: str, retry_after_seconds: float | None = None, shared: bool = False, **more: Any
    ) -> None:
        super().__init__(message=message, retry_after_seconds=retry_after_seconds, shared=shared, **more)


class Transient(ConnectorError):
    """{message}

    It may work later, without anybody doing anything.
    """

    code = "TRANSIENT"


class Permanent(ConnectorError):
    """{message}

    It will not work later either.
    """

    code = "PERMANENT"


class Unsupported(Permanent):
    """{message}

    This connector cannot do that.
    """

    code = "UNSUPPORTED"
    status = 501


class NotSetUp(Unsupported):
    """{message}

    Nobody has told this process who we are at the provider. Another may know, so the account is innocent.
    """

    code = "NOT_SET_UP"


class Connector:
    """A provider's account in our words. Each method raises `Unsupported` unless the provider can do it."""

    provider: ClassVar[Provider]
    api_url: ClassVar[str] = ""
    auth_url: ClassVar[str] = ""
    scheme: ClassVar[Scheme | None] = None
    # Whether a sync without a cursor tells all that has happened. Where it does not, a full sync leaves the
    # cursor that is there, or what came since would never be told.
    tells_all: ClassVar[bool] = True

    def __init__(self, http: Http, settings: ProviderSettings, max_items: int = 1000) -> None:
        self.http, self.settings, self.max_items = http, settings, max_items
        self.api = (settings.api_url or self.api_url).rstrip("/")
        self.auth = (settings.auth_url or self.auth_url).rstrip("/")

    async def authorize_url(self, request: AuthRequest) -> str:
        """Where a person goes to allow it."""
        raise self._unsupported("be connected by OAuth")

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        """The account and the tokens that a code stands for."""
        raise self._unsupported("be connected by OAuth")

    async def refresh(self, refresh_token: str) -> Grant:
        """New tokens for the same account; `refresh_token` None in the answer keeps the old one."""
        raise self._unsupported("refresh a token: the account must be authorised again")

    async def revoke(self, access_token: str) -> None:
        """Tells the provider that a token is not needed any more; nothing, where it takes no such word."""

    async def sync(self, account: Account, cursor: Json) -> Page:
        """One page of what has happened since `cursor`; None begins at the beginning."""
        raise self._unsupported("be polled")

    def challenge(self, payload: Json) -> Json | None:
        """What to answer a request that only asks whether we are there; None when it is a real delivery."""
        return None

    def check_webhook(self, payload: Json) -> None:
        """Raise `InvalidInput` for a body that can mean nothing: the sender gets 400 and the field's name.

        For providers whose webhooks are written by hand; a delivery that is refused here is not stored.
        """

    def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
        """What tells one delivery from another; a repeated one has the same."""
        return hashlib.sha256(body).hexdigest()

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        """The accounts that a delivery may be about, as they are called in `connections.external_id`."""
        return ()

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        """What a delivery means."""
        raise self._unsupported("take webhooks")

    def client(self) -> tuple[str, str]:
        """The id and the secret of our application at the provider."""
        if not self.settings.client_id or not self.settings.client_secret:
            name = f"HOLDFAST_OAUTH_{self.provider.slug.upper()}_CLIENT"
            raise NotSetUp(
                message=f"{self.provider.display_name} is not set up: set {name}_ID and {name}_SECRET"
            )
        return self.settings.client_id, self.settings.client_secret

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(message=f"{self.provider.display_name} cannot {what}")
