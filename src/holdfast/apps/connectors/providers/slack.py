# ruff: noqa: ARG002 (the protocol hands over more than Slack needs)
"""Slack: an app with a bot in a workspace, or in a whole organisation. Tokens may rotate.

An account is the workspace. A call that failed comes with status 200, `ok: false` and a word for the error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast
from urllib.parse import quote, urlencode

from holdfast.apps.connectors.http import Answer, as_object, granted
from holdfast.apps.connectors.normal import ignored, reading
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    ConnectorError,
    Delivery,
    Grant,
    Json,
    Page,
    Permanent,
    Provider,
    RateLimited,
    Transient,
    Unauthorized,
    WebhookResult,
)
from holdfast.apps.connectors.providers import slack_facts as facts
from holdfast.apps.connectors.providers.slack_walk import Walk, resume
from holdfast.apps.connectors.signatures import Scheme

NOT_AUTHORIZED = frozenset(
    {"invalid_auth", "token_revoked", "token_expired", "not_authed", "account_inactive"}
)
LIMITED = frozenset({"ratelimited", "rate_limited"})
PASSING = frozenset({"internal_error", "fatal_error", "service_unavailable", "request_timeout"})
# Slack has its own words for what OAuth calls otherwise.
WORDS = {
    "invalid_refresh_token": "invalid_grant",
    "token_expired": "invalid_grant",
    "invalid_code": "invalid_grant",
    "code_already_used": "invalid_grant",
    "bad_client_secret": "invalid_client",
    "invalid_client_id": "invalid_client",
    "bad_redirect_uri": "invalid_client",
    "account_inactive": "access_denied",
    "invalid_grant_type": "unsupported_grant_type",
    "ratelimited": "rate_limited",
}
LONGEST_ID = 200


class Slack(Connector):
    """Messages of the channels that the app is a member of, and the reactions to them."""

    provider = Provider(
        slug="slack",
        display_name="Slack",
        auth_type="oauth2",
        scopes=("channels:read", "channels:history", "reactions:read"),
        webhooks=True,
    )
    api_url = "https://slack.com/api"
    auth_url = "https://slack.com"
    scheme: ClassVar[Scheme | None] = "slack"

    async def authorize_url(self, request: AuthRequest) -> str:
        """Where a person goes to allow it; no PKCE, see `exchange`."""
        client_id, _ = self.client()
        query = {
            "client_id": client_id,
            "scope": ",".join(request.scopes),
            "redirect_uri": request.redirect_uri,
            "state": request.state,
        }
        return f"{self.auth}/oauth/v2/authorize?{urlencode(query, quote_via=quote)}"

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        """The workspace and the tokens that a code stands for.

        To Slack, PKCE is what a client without a secret does, and an app has to be made such a client, for
        good, before it may; a verifier beside a secret is refused. We have a secret, so the secret it is.
        """
        data = await self._token(code=code, redirect_uri=request.redirect_uri)
        with reading(Transient(message="slack answered oauth.v2.access with something that nobody can read")):
            place = data.get("team") or data["enterprise"]  # a whole organisation has no one workspace
            account, name = str(place["id"]), place.get("name")
        known = {key: data[key] for key in ("app_id", "bot_user_id") if isinstance(data.get(key), str)}
        return granted(data, external_id=account, display_name=name, metadata=known)

    async def refresh(self, refresh_token: str) -> Grant:
        return granted(await self._token(grant_type="refresh_token", refresh_token=refresh_token))

    async def revoke(self, access_token: str) -> None:
        await self._call(access_token, "auth.revoke", {}, tuple(NOT_AUTHORIZED))  # then it is gone already

    async def sync(self, account: Account, cursor: Json) -> Page:
        token = account.access_token
        if token is None:
            raise Unauthorized(message="slack: this connection has no token")

        async def call(
            method: str, arguments: Mapping[str, str | int | None], expect: tuple[str, ...] = ()
        ) -> Answer:
            return await self._call(token, method, arguments, expect)

        private = {"groups:read", "groups:history"} <= set(account.scopes)
        types = "public_channel,private_channel" if private else "public_channel"
        return await Walk(call, resume(cursor), types, self.max_items).page()

    def challenge(self, payload: Json) -> Json | None:
        told = as_object(payload) or {}
        asked = told.get("challenge") if told.get("type") == "url_verification" else None
        return {"challenge": asked} if isinstance(asked, str) else None

    def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
        try:
            given: object = (as_object(json.loads(body)) or {}).get("event_id")
        except (ValueError, RecursionError):
            given = None
        if isinstance(given, str) and 0 < len(given) <= LONGEST_ID:
            return given
        return super().delivery_id(headers, body)

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        """The workspace, or the organisation, for which the app was sent this.

        `authorizations` goes before `team_id`: that one says where it happened, and two companies may share
        a channel.
        """
        told = as_object(payload) or {}
        given = told.get("authorizations")
        each: list[Any] = cast("list[Any]", given) if isinstance(given, list) else []
        installed = [one for one in map(as_object, each) if one]
        ids = [
            one.get("enterprise_id" if one.get("is_enterprise_install") else "team_id") for one in installed
        ]
        ids = ids or [told.get("team_id")]
        return tuple(dict.fromkeys(one for one in ids if isinstance(one, str) and one))

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        told = as_object(delivery.payload) or {}
        event = as_object(told.get("event"))
        if told.get("type") != "event_callback" or event is None:
            ignored("a delivery of Slack", told.get("type"))
            return WebhookResult()
        with reading(Permanent(message="slack: an event is not as documented")):
            return WebhookResult(signals=facts.event(event))

    async def _token(self, **form: str | None) -> dict[str, Json]:
        return await self.http.grant(f"{self.api}/oauth.v2.access", form, auth=self.client(), words=WORDS)

    async def _call(
        self,
        token: str,
        method: str,
        arguments: Mapping[str, str | int | None],
        expect: Sequence[str] = (),
    ) -> Answer:
        """Calls a method; arguments go in the body, as addresses get into logs."""
        form = {name: None if value is None else str(value) for name, value in arguments.items()}
        answer = await self.http.request("POST", f"{self.api}/{method}", token=token, form=form)
        data = answer.object()
        error = data.get("error")
        if data.get("ok") or (error in expect and isinstance(error, str)):
            return answer
        raise _error(answer, method, str(error))


def _error(answer: Answer, method: str, error: str) -> ConnectorError:
    word = error if re.fullmatch(r"[a-z0-9_]{1,64}", error) else "an unreadable error"
    message = f"slack answered {method} with {word}"
    if error in NOT_AUTHORIZED:
        return Unauthorized(message=message)
    if error in LIMITED:
        return RateLimited(message=message, retry_after_seconds=answer.retry_after)
    return (Transient if error in PASSING else Permanent)(message=message)
