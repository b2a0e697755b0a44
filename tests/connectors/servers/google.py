"""What Google's services on loopback share: consent's other end, tokens, and the shape of their errors."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from connectors.provided import CLIENT, REDIRECT
from connectors.servers.base import Asked, Reply, Server, route

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD = "ya29.good-token"


def at(seconds: float = 0) -> str:
    """A time in Google's spelling, so many seconds after the beginning."""
    return (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def refused(status: int, reason: str, domain: str = "usageLimits") -> dict[str, Any]:
    """The body of an error, as Google's older services write it."""
    error = {"domain": domain, "reason": reason, "message": "It is so."}
    return {"error": {"code": status, "message": "It is so.", "errors": [error]}}


class GoogleServer(Server):
    """Its tokens; a code is good for the challenge that it was asked for with."""

    scope = ""
    most: int | None = None  # items on a page, when a test wants fewer than are asked for

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {GOOD}
        self.refresh_tokens = {"1//refresh"}
        self.codes: dict[str, str] = {}
        self.made = 0

    def before(self, request: Asked) -> Reply | None:
        if request.path in ("/token", "/revoke"):
            return None
        if request.token not in self.tokens:
            return Reply(refused(401, "authError", "global"), 401)
        return None

    @route("POST", "/token")
    def token(self, request: Asked) -> Reply:
        form = request.form
        if (form.get("client_id"), form.get("client_secret")) != CLIENT:
            return Reply({"error": "invalid_client"}, 401)
        if form.get("grant_type") == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return Reply({"error": "invalid_grant", "error_description": "Token has been revoked."}, 400)
            return Reply(self._made())
        challenge = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if challenge is None or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
            return Reply({"error": "invalid_grant", "error_description": "Malformed auth code."}, 400)
        assert form["redirect_uri"] == REDIRECT
        self.refresh_tokens.add(f"1//refresh-{self.made}")
        return Reply({**self._made(), "refresh_token": f"1//refresh-{self.made - 1}"})

    def _made(self) -> dict[str, Any]:
        self.made += 1
        self.tokens.add(f"ya29.{self.made}")
        scope = f"https://www.googleapis.com/auth/{self.scope}"
        return {
            "access_token": f"ya29.{self.made}",
            "expires_in": 3599,
            "scope": scope,
            "token_type": "Bearer",
        }

    @route("POST", "/revoke")
    def revoke(self, request: Asked) -> Reply:
        token = request.form["token"]
        if token not in self.tokens:
            return Reply({"error": "invalid_token"}, 400)
        self.tokens.discard(token)
        return Reply({})

    def page(self, request: Asked, items: list[Any], asked: str) -> tuple[list[Any], str | None]:
        """The part of the items that a page token stands for, and the next token."""
        size = min(int(request.query[asked]), self.most or 10_000)
        token = request.query.get("pageToken", "page-0")
        begin = int(token.removeprefix("page-"))
        rest = begin + size < len(items)
        return items[begin : begin + size], f"page-{begin + size}" if rest else None


def pushed(state: str, channel: str = "channel-1", number: int = 1, **more: str) -> dict[str, str]:
    """The headers of a push, as they reach the connector; its body is empty."""
    return {
        "x-goog-channel-id": channel,
        "x-goog-message-number": str(number),
        "x-goog-resource-id": "ret08u3rv24htgh289g",
        "x-goog-resource-state": state,
        "x-goog-channel-expiration": "Tue, 10 Mar 2026 12:00:00 GMT",
        **more,
    }
