# ruff: noqa: ARG002 (the protocol hands over more than Google needs)
"""What Google's connectors share: consent and tokens, how Google says that it is too much, and its pushes.

A push carries no data: it says that there is some, and its headers say through which channel.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from holdfast.apps.connectors.http import Answer, as_object, granted
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    ConnectorError,
    Delivery,
    Grant,
    Json,
    RateLimited,
    WebhookResult,
)
from holdfast.apps.connectors.providers.shape import Thing, part, parts
from holdfast.apps.connectors.signatures import Scheme

log = logging.getLogger("holdfast.connectors")

SCOPES = "https://www.googleapis.com/auth/"
# Reasons of a 403. The first are about all accounts of this installation, the last is about this one.
OF_ALL = ("rateLimitExceeded", "dailyLimitExceeded", "quotaExceeded")
OF_ONE = "userRateLimitExceeded"
AT_ONCE = timedelta(seconds=1)  # by so much, what is new was changed a little later than it was made


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Whose account a token opens."""

    external_id: str
    display_name: str | None


class Google(Connector):
    """An account at Google. The catalogue's short names of scopes stand for Google's long ones."""

    auth_url = "https://accounts.google.com"
    tokens_url: ClassVar[str] = "https://oauth2.googleapis.com"

    async def authorize_url(self, request: AuthRequest) -> str:
        """`offline` and `consent`: without both, Google gives a refresh token the first time only."""
        client_id, _ = self.client()
        query = {
            "client_id": client_id,
            "redirect_uri": request.redirect_uri,
            "response_type": "code",
            "scope": " ".join(scope if ":" in scope else SCOPES + scope for scope in request.scopes),
            "state": request.state,
            "code_challenge": request.code_challenge,
            "code_challenge_method": "S256",
            "access_type": "offline",
            "prompt": "consent",
        }
        return f"{self.auth}/o/oauth2/v2/auth?{urlencode(query, quote_via=quote)}"

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        data = await self._grant(
            grant_type="authorization_code",
            code=code,
            redirect_uri=request.redirect_uri,
            code_verifier=request.code_verifier,
        )
        owner = await self.owner(data["access_token"])
        return granted(data, external_id=owner.external_id, display_name=owner.display_name)

    async def refresh(self, refresh_token: str) -> Grant:
        return granted(await self._grant(grant_type="refresh_token", refresh_token=refresh_token))

    async def revoke(self, access_token: str) -> None:
        form = {"token": access_token}
        await self.http.request("POST", f"{self._tokens}/revoke", form=form, expect=(400,))  # gone already

    async def owner(self, token: str) -> Owner:
        """Whose token it is, by what the connector's own scope lets one ask."""
        raise self._unsupported("say whose account it is")

    async def ask(
        self,
        token: str | None,
        path: str,
        params: Mapping[str, str | int | None] | None = None,
        expect: Collection[int] = (),
    ) -> Answer:
        """Asks the API. Google says with 403, too, that it was asked too often."""
        url = f"{self.api}{path}"
        answer = await self.http.request("GET", url, token=token, params=params, expect=(403, *expect))
        if answer.status == 403:
            raise refusal(answer)
        return answer

    @property
    def _tokens(self) -> str:
        return (self.settings.auth_url or self.tokens_url).rstrip("/")

    async def _grant(self, **form: str) -> dict[str, Any]:
        """What the token endpoint says, with scopes by their short names."""
        client_id, client_secret = self.client()
        ours = {"client_id": client_id, "client_secret": client_secret}
        data = await self.http.grant(f"{self._tokens}/token", {**ours, **form})
        return {**data, "scope": str(data.get("scope") or "").replace(SCOPES, "")}


class Pushed(Google):
    """A service of Google that tells of changes through a channel which somebody has opened for it.

    The channel's token is the tenant's secret, and its id stands among the connection's
    `metadata.webhook.external_ids`.
    """

    scheme: ClassVar[Scheme | None] = "channel_token"

    def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
        channel, number = headers.get("x-goog-channel-id"), headers.get("x-goog-message-number")
        return f"{channel}:{number}" if channel and number else super().delivery_id(headers, body)

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        names = ("x-goog-channel-id", "x-goog-resource-id")
        return [headers[name] for name in names if headers.get(name)]

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        """`sync` only says that the channel is open; every other state, that something has changed."""
        return WebhookResult(wants_sync=delivery.headers.get("x-goog-resource-state", "sync") != "sync")


def refusal(answer: Answer) -> ConnectorError:
    """What Google's 403 means: that this was too much, or that it is forbidden."""
    try:
        error = part(as_object(answer.data) or {}, "error")
        reasons = [_reason(one) for one in (*parts(error, "errors"), *parts(error, "details"))]
    except ValueError:
        reasons = []
    limit = next((reason for reason in reasons if reason in (*OF_ALL, OF_ONE)), None)
    if limit is None:
        return answer.error(next((reason for reason in reasons if re.fullmatch(r"\w{1,64}", reason)), ""))
    said = f"{answer.provider} answered 403 ({limit}) to {answer.method} {answer.path}"
    return RateLimited(message=said, retry_after_seconds=answer.retry_after, shared=limit in OF_ALL)


def _reason(error: Thing) -> str:
    """A reason in Google's older words; the newer ones say elsewhere whose limit it is."""
    reason = str(error.get("reason", ""))
    if reason != "RATE_LIMIT_EXCEEDED":
        return reason
    return OF_ONE if "PerUser" in str(part(error, "metadata").get("quota_limit")) else OF_ALL[0]


def place(answer: Answer, name: str) -> str | None:
    """A token that says where to go on; None when there is none."""
    token = answer.object().get(name)
    if token is None or isinstance(token, str):
        return token or None
    raise answer.unreadable()


def forgotten(account: Account) -> None:
    """Says that there is a gap: Google does not know our place in its record any more."""
    log.warning(
        "connection %s (%s): Google has forgotten our place; what happened since the last sync is not told",
        account.id,
        account.provider,
    )


def lived(created: datetime, changed: datetime, since: datetime) -> tuple[bool, bool]:
    """Whether a thing that has changed since then was made, and whether it was changed after it was made."""
    fresh = created > since
    return fresh, not fresh or changed - created > AT_ONCE
