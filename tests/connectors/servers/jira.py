"""Jira Cloud on loopback: Atlassian's tokens and sites, and the search by JQL, as documented for v3."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from connectors.provided import CLIENT, REDIRECT
from connectors.servers.base import Asked, Reply, Server, route

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLOUD = "1324a887-45db-1bf4-1e99-ef0ff456d421"
HOST = "acme.atlassian.net"
GOOD = "eyJ.good-token"
ALLOWED = {"jql", "fields", "expand", "maxResults", "nextPageToken", "fieldsByKeys", "properties"}
PARIS = timezone(timedelta(hours=1))


def at(seconds: float = 0, zone: Any = UTC) -> str:
    """A time in Jira's spelling, so many seconds after the beginning."""
    return (T0 + timedelta(seconds=seconds)).astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + (
        datetime.now(zone).strftime("%z")
    )


def status(name: str) -> dict[str, Any]:
    ids = {"To Do": "1", "In Progress": "3", "Done": "10001", "Resolved": "5", "Closed": "6", "Fertig": "9"}
    key = "done" if name in ("Done", "Resolved", "Closed", "Fertig") else "new"
    return {"id": ids[name], "name": name, "statusCategory": {"key": key}}


def issue(id: int, created: float = 0, updated: float | None = None, **more: Any) -> dict[str, Any]:
    """An issue as the API has it; times are seconds after the beginning, `more` are fields."""
    changelog = {"histories": more.pop("histories", [])}
    comments = more.pop("comments", [])
    zone = more.pop("zone", UTC)
    return {
        "id": str(id),
        "key": f"ACME-{id}",
        "self": f"https://{HOST}/rest/api/3/issue/{id}",
        "changelog": changelog,
        "fields": {
            "summary": f"Issue {id}",
            "status": status("To Do"),
            "issuetype": {"name": "Task"},
            "project": {"key": "ACME"},
            "priority": {"name": "Medium"},
            "labels": ["billing"],
            "assignee": None,
            "reporter": {"accountId": "5b10", "displayName": "Ada"},
            "resolution": None,
            "created": at(created, zone),
            "updated": at(created if updated is None else updated, zone),
            "comment": {"comments": comments, "total": len(comments)},
            **more,
        },
    }


def moved(seconds: float, before: str, after: str, id: str = "77") -> dict[str, Any]:
    """An entry of a history: the state of an issue was changed."""
    return {"id": id, "created": at(seconds), "items": [to(before, after)]}


def to(before: str, after: str) -> dict[str, Any]:
    return {
        "field": "status",
        "fieldtype": "jira",
        "from": status(before)["id"],
        "fromString": before,
        "to": status(after)["id"],
        "toString": after,
    }


def comment(id: int, seconds: float, text: Any = "Looks good") -> dict[str, Any]:
    return {
        "id": str(id),
        "self": f"https://{HOST}/rest/api/3/issue/1/comment/{id}",
        "author": {"accountId": "5b11", "displayName": "Ben"},
        "body": text,
        "created": at(seconds),
        "updated": at(seconds),
    }


def hook(event: str, one: dict[str, Any], *items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A webhook as Jira sends it: without the history, and with what was changed just now."""
    shown = {name: value for name, value in one.items() if name != "changelog"}
    told = {"timestamp": 1772366400000, "webhookEvent": event, "issue": shown, **more}
    return {**told, "changelog": {"id": "77", "items": list(items)}} if items else told


class JiraServer(Server):
    """`issues` is what there is; a code is good for the challenge that it was asked for with."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {GOOD}
        self.refresh_tokens = {"refresh-0"}
        self.codes: dict[str, str] = {}
        self.made = 0
        self.most = 100
        self.stale: set[str] = set()  # page tokens that are not known any more
        self.issues: list[dict[str, Any]] = []
        self.sites: list[dict[str, Any]] = [
            {
                "id": CLOUD,
                "name": "acme",
                "url": f"https://{HOST}",
                "scopes": ["read:jira-work", "read:jira-user"],
                "avatarUrl": "https://example.com/flag.png",
            }
        ]

    def before(self, request: Asked) -> Reply | None:
        if request.path == "/oauth/token":
            return None
        if request.token not in self.tokens:
            return Reply({"code": 401, "message": "Unauthorized"}, 401)
        return None

    @route("POST", "/oauth/token")
    def token(self, request: Asked) -> Reply:
        form = request.form
        if (form.get("client_id"), form.get("client_secret")) != CLIENT:
            return Reply({"error": "access_denied", "error_description": "Unauthorized"}, 401)
        if form.get("grant_type") == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return Reply({"error": "invalid_grant", "error_description": "Unknown refresh token."}, 403)
            self.refresh_tokens.discard(form["refresh_token"])  # each is good once
            return self._tokens()
        challenge = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if challenge is None or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
            return Reply({"error": "invalid_grant", "error_description": "Invalid code"}, 403)
        assert form["redirect_uri"] == REDIRECT
        return self._tokens()

    def _tokens(self) -> Reply:
        self.made += 1
        self.tokens.add(f"eyJ.{self.made}")
        self.refresh_tokens.add(f"refresh-{self.made}")
        return Reply(
            {
                "access_token": f"eyJ.{self.made}",
                "refresh_token": f"refresh-{self.made}",
                "expires_in": 3600,
                "token_type": "Bearer",
                "scope": "offline_access read:jira-work read:jira-user",
            }
        )

    @route("GET", "/oauth/token/accessible-resources")
    def resources(self, request: Asked) -> Reply:
        return Reply(self.sites)

    @route("POST", "/ex/jira/{cloud}/rest/api/3/search/jql")
    def search(self, request: Asked, cloud: str) -> Reply:
        body = request.json
        if cloud != CLOUD:
            return Reply({"code": 404, "message": "Not Found"}, 404)
        if set(body) - ALLOWED or body.get("nextPageToken") in self.stale:
            return Reply({"errorMessages": ["Invalid request payload."]}, 400)
        bound = re.fullmatch(r"updated >= (\d+) ORDER BY updated ASC", body["jql"])
        assert bound, "Jira refuses a query without a bound, and reads a date by somebody's time zone"
        since = datetime.fromtimestamp(int(bound[1]) / 1000, UTC)
        found = sorted((one for one in self.issues if _updated(one) >= since), key=_updated)
        begin = int(body.get("nextPageToken", "page-0").removeprefix("page-"))
        size = min(body["maxResults"], self.most)
        shown, rest = found[begin : begin + size], len(found) > begin + size
        assert body["expand"] == "changelog"
        more = {"nextPageToken": f"page-{begin + size}"} if rest else {}
        return Reply({"issues": shown, "isLast": not rest, **more})


def _updated(one: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(one["fields"]["updated"])
