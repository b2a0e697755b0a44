"""Zoho Mail on loopback: accounts and the list of messages, as documented; and Zoho's tokens."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

from connectors.provided import CLIENT, REDIRECT
from connectors.servers.base import Asked, Reply, Server, route

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOOD = "1000.good-token"
MAILBOX = "9000000000993"
START = int(T0.timestamp() * 1000)


def ms(seconds: float) -> int:
    """A time in Zoho's spelling, so many seconds after the beginning."""
    return START + int(seconds * 1000)


def message(id: int, seconds: float = 0, changed: float | None = None, **more: Any) -> dict[str, Any]:
    """A message as the list has it."""
    return {
        "messageId": str(1_700_000_000_000 + id),
        "threadId": "0",
        "folderId": "9000000000905",
        "fromAddress": "ben@example.com",
        "sender": "Ben",
        "toAddress": "&lt;ada@example.com&gt;",
        "ccAddress": "Not Provided",
        "subject": f"Message {id}",
        "summary": "Hello Ada",
        "status": "0",
        "hasAttachment": "0",
        "receivedTime": str(ms(seconds)),
        "sentDateInGMT": str(ms(seconds - 2)),
        "lastModifiedTime": str(ms(seconds if changed is None else changed)),
        **more,
    }


def refused(code: str, status: int) -> dict[str, Any]:
    return {"status": {"code": status, "description": "No"}, "data": {"errorCode": code}}


class ZohoMailServer(Server):
    """`messages` is what there is; most errors of the tokens' endpoint come with status 200, as Zoho's do."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {GOOD}
        self.refresh_tokens = {"1000.refresh"}
        self.codes: dict[str, str] = {}
        self.made = 0
        self.messages: list[dict[str, Any]] = []
        self.mailboxes: list[dict[str, Any]] = [
            {
                "accountId": MAILBOX,
                "primaryEmailAddress": "ada@example.com",
                "emailAddress": [{"mailId": "ada@example.com"}, {"mailId": "Support@example.com"}],
                "enabled": True,
            }
        ]

    def before(self, request: Asked) -> Reply | None:
        if request.path.startswith("/oauth/"):
            return None
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind != "Zoho-oauthtoken" or token not in self.tokens:
            return Reply(refused("INVALID_OAUTHTOKEN", 404), 404)
        return None

    @route("POST", "/oauth/v2/token")
    def token(self, request: Asked) -> Reply:
        form = request.form
        if form.get("client_id") != CLIENT[0]:
            return Reply({"error": "invalid_client"})
        if form.get("client_secret") != CLIENT[1]:
            return Reply({"error": "invalid_client_secret"})
        if form.get("grant_type") == "refresh_token":
            known = form["refresh_token"] in self.refresh_tokens
            return Reply(self._made() if known else {"error": "invalid_code"})
        challenge = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if challenge is None or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
            return Reply({"error": "invalid_code"})
        assert form["redirect_uri"] == REDIRECT
        return Reply({**self._made(), "refresh_token": "1000.refresh"})

    def _made(self) -> dict[str, Any]:
        self.made += 1
        self.tokens.add(f"1000.{self.made}")
        return {
            "access_token": f"1000.{self.made}",
            "api_domain": "https://www.zohoapis.com",
            "token_type": "Bearer",
            "expires_in": 3600,
        }

    @route("POST", "/oauth/v2/token/revoke")
    def revoke(self, request: Asked) -> Reply:
        token = request.form["token"]
        if token not in self.tokens:
            return Reply({"error": "invalid_token"}, 400)
        self.tokens.discard(token)
        return Reply({"status": "success"})

    @route("GET", "/api/accounts")
    def accounts(self, request: Asked) -> Reply:
        return Reply({"status": {"code": 200, "description": "success"}, "data": self.mailboxes})

    @route("GET", "/api/accounts/{mailbox}/messages/view")
    def view(self, request: Asked, mailbox: str) -> Reply:
        query = request.query
        assert mailbox == MAILBOX
        assert (query["sortBy"], query["sortorder"], query["includesent"]) == ("date", "false", "true")
        assert 1 <= int(query["limit"]) <= 200
        found = sorted(self.messages, key=lambda one: int(one["receivedTime"]), reverse=True)
        begin = int(query["start"]) - 1
        shown = found[begin : begin + int(query["limit"])]
        return Reply({"status": {"code": 200, "description": "success"}, "data": shown})
