"""Slack on loopback: the parts of its Web API and of its OAuth that the connector uses, as documented."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

from connectors.servers.base import Asked, Reply, Server, route

CLIENT = ("21410.69120", "client-secret-33fea")
T0 = 1_772_366_400  # 2026-03-01 12:00 UTC


def ts(seconds: float = 0) -> str:
    """A time in Slack's spelling."""
    return f"{T0 + seconds:.6f}"


def message(seconds: float, text: str = "hello", **more: Any) -> dict[str, Any]:
    """A message as a channel's history has it."""
    return {"type": "message", "user": "U1", "text": text, "ts": ts(seconds), "team": "T1", **more}


def callback(event: dict[str, Any], id: str = "Ev08MFMKH6", **more: Any) -> dict[str, Any]:
    """An event as the Events API wraps it."""
    return {
        "token": "old-verification-token",
        "team_id": "T1",
        "api_app_id": "A1",
        "event": event,
        "type": "event_callback",
        "event_id": id,
        "event_time": T0,
        "authorizations": [
            {"enterprise_id": None, "team_id": "T1", "user_id": "U9", "is_bot": True,
             "is_enterprise_install": False}
        ],
        **more,
    }  # fmt: skip


def signed(payload: Any, secret: str, at: int) -> Any:
    """A request as Slack sends it: its headers and its body."""
    body = json.dumps(payload).encode()
    digest = hmac.new(secret.encode(), f"v0:{at}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "x-slack-request-timestamp": str(at),
        "x-slack-signature": f"v0={digest}",
    }
    return headers, body


class SlackServer(Server):
    """Its data are plain lists that a test may change at any time."""

    prefix = "/api"

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {"xoxb-good"}
        self.refresh_tokens: set[str] = set()
        self.codes: set[str] = set()
        self.rotating = True
        self.made = 0
        self.team: dict[str, Any] | None = {"id": "T1", "name": "Octo Inc."}
        self.enterprise: dict[str, Any] | None = None
        self.channels: list[dict[str, Any]] = []
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.replies: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.cursors: set[str] = set()  # that are still good
        self.lost: list[str] = []  # where one came that is not

    def channel(self, id: str, *messages: dict[str, Any], member: bool = True, private: bool = False) -> None:
        self.channels.append({"id": id, "name": id.lower(), "is_member": member, "is_private": private})
        self.history[id] = list(messages)

    def before(self, request: Asked) -> Reply | None:
        if request.path == "/oauth.v2.access":
            return None
        if request.token is None:
            return _error("not_authed")
        return None if request.token in self.tokens else _error("invalid_auth")

    @route("POST", "/oauth.v2.access")
    def access(self, request: Asked) -> Reply:
        basic = base64.b64encode(":".join(CLIENT).encode()).decode()
        if request.headers.get("authorization") != f"Basic {basic}":
            return _error("bad_client_secret")
        form = request.form
        if "code_verifier" in form:
            return _error("internal_error")  # as Slack answers a client that has a secret
        if form.get("grant_type") == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return _error("invalid_refresh_token")
            self.refresh_tokens.discard(form["refresh_token"])
        elif form.get("code") not in self.codes:
            return _error("invalid_code")
        self.codes.discard(form.get("code", ""))
        self.made += 1
        self.tokens.add(f"xoxe.xoxb-{self.made}")
        data: dict[str, Any] = {
            "ok": True,
            "access_token": f"xoxe.xoxb-{self.made}",
            "token_type": "bot",
            "scope": "channels:read,channels:history,reactions:read",
            "bot_user_id": "U9",
            "app_id": "A1",
            "team": self.team,
            "enterprise": self.enterprise,
            "authed_user": {"id": "U1"},
        }
        if self.rotating:
            self.refresh_tokens.add(f"xoxe-{self.made}")
            data |= {"refresh_token": f"xoxe-{self.made}", "expires_in": 43200}
        return Reply(data)

    @route("POST", "/auth.revoke")
    def revoke(self, request: Asked) -> Reply:
        self.tokens.discard(request.token or "")
        return Reply({"ok": True, "revoked": True})

    @route("POST", "/conversations.list")
    def list_channels(self, request: Asked) -> Reply:
        types = request.form["types"].split(",")
        found = [
            one
            for one in self.channels
            if ("private_channel" if one["is_private"] else "public_channel") in types
        ]
        return self._page(request, "channels", found)

    @route("POST", "/conversations.history")
    def read_history(self, request: Asked) -> Reply:
        channel = request.form["channel"]
        if channel not in self.history:
            return _error("channel_not_found")
        if not any(one["id"] == channel and one["is_member"] for one in self.channels):
            return _error("not_in_channel")
        return self._page(request, "messages", self._span(request, self.history[channel]))

    @route("POST", "/conversations.replies")
    def read_replies(self, request: Asked) -> Reply:
        form = request.form
        found = self.replies.get((form["channel"], form["ts"]))
        if found is None:
            return _error("thread_not_found")
        return self._page(request, "messages", self._span(request, found))

    def _span(self, request: Asked, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        oldest, latest = float(request.form.get("oldest", "0")), float(request.form.get("latest", "inf"))
        found = [one for one in messages if oldest <= float(one["ts"]) <= latest]
        return sorted(found, key=lambda one: float(one["ts"]), reverse=True)

    def _page(self, request: Asked, name: str, items: list[Any]) -> Reply:
        size, cursor = int(request.form["limit"]), request.form.get("cursor", "")
        if cursor and cursor not in self.cursors:
            self.lost.append(request.path)
            return _error("invalid_cursor")
        begin = int(base64.b64decode(cursor).rpartition(b":")[2]) if cursor else 0
        more = begin + size < len(items)
        then = base64.b64encode(f"{name}:{begin + size}".encode()).decode() if more else ""
        self.cursors.add(then)
        shown = items[begin : begin + size]
        return Reply({"ok": True, name: shown, "response_metadata": {"next_cursor": then}})


def _error(word: str) -> Reply:
    return Reply({"ok": False, "error": word})
