"""GitHub on loopback: the parts of its REST API and of its OAuth that the connector uses, as documented."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from connectors.servers.base import Asked, Reply, Server, route

CLIENT = ("Iv1.client", "client-secret-0f1e")
T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
USER = {"id": 583231, "login": "octocat", "name": "The Octocat"}
ZERO = "0" * 40


def at(minutes: float = 0) -> str:
    """A time in GitHub's spelling, so many minutes after the beginning."""
    return (T0 + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def repository(name: str = "octo/hello", id: int = 1296269, **more: Any) -> dict[str, Any]:
    owner = {"id": 583231, "login": name.partition("/")[0]}
    return {"id": id, "full_name": name, "owner": owner, "pushed_at": at(-10_000), **more}


def issue(id: int, created: float = 0, closed: float | None = None, **more: Any) -> dict[str, Any]:
    """An issue as the API lists it; times are minutes."""
    ended = None if closed is None else at(closed)
    return {
        "id": id,
        "number": id,
        "title": f"Issue {id}",
        "body": "It does not work.",
        "state": "open" if closed is None else "closed",
        "state_reason": None if closed is None else "completed",
        "user": {"login": "octocat", "id": 583231},
        "labels": [{"id": 1, "name": "bug"}],
        "assignees": [],
        "html_url": f"https://github.com/octo/hello/issues/{id}",
        "created_at": at(created),
        "updated_at": ended or at(created),
        "closed_at": ended,
        "repository": repository(),
        **more,
    }


def pull(id: int, created: float = 0, closed: float | None = None, merged: bool = False, **more: Any) -> Any:
    """A pull request as the API lists it."""
    ended = None if closed is None else at(closed)
    base = {"ref": "main", "sha": "b" * 40, "repo": repository()}
    return {
        "id": id,
        "number": id % 1000,
        "title": f"Change {id}",
        "body": None,
        "state": "open" if closed is None else "closed",
        "draft": False,
        "user": {"login": "octocat", "id": 583231},
        "html_url": f"https://github.com/octo/hello/pull/{id % 1000}",
        "created_at": at(created),
        "updated_at": ended or at(created),
        "closed_at": ended,
        "merged_at": ended if merged else None,
        "base": base,
        "head": {"ref": "topic", "sha": "a" * 40},
        **more,
    }


def as_issue(pull: Mapping[str, Any], id: int) -> dict[str, Any]:
    """The issue that a pull request also is, under an id of its own."""
    kept = ("number", "title", "body", "state", "user", "html_url", "created_at", "updated_at", "closed_at")
    return {
        **{name: pull[name] for name in kept},
        "id": id,
        "labels": [],
        "assignees": [],
        "pull_request": {"merged_at": pull["merged_at"]},
        "repository": pull["base"]["repo"],
    }


def event(type: str, minutes: float, **payload: Any) -> dict[str, Any]:
    """An entry of a repository's events."""
    return {
        "id": str(int(minutes * 10) + 22249084964),
        "type": type,
        "actor": {"id": 583231, "login": "octocat"},
        "repo": {"id": 1296269, "name": "octo/hello", "url": "https://api.github.com/repos/octo/hello"},
        "payload": payload,
        "public": True,
        "created_at": at(minutes),
    }


def push_event(minutes: float, head: str = "c" * 40) -> dict[str, Any]:
    return event(
        "PushEvent",
        minutes,
        repository_id=1296269,
        push_id=10115855396,
        ref="refs/heads/main",
        head=head,
        before="b" * 40,
    )


def signed(
    payload: Any, secret: str, name: str, delivery: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
) -> Any:
    """A webhook as GitHub sends it: its headers and its body."""
    body = json.dumps(payload).encode()
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/044aadd",
        "x-github-delivery": delivery,
        "x-github-event": name,
        "x-github-hook-id": "292430182",
        "x-hub-signature-256": f"sha256={digest}",
    }
    return headers, body


class GitHubServer(Server):
    """Its data are plain lists that a test may change at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = {"gho_good"}
        self.refresh_tokens: set[str] = set()
        self.codes: dict[str, str] = {}  # code → the challenge that it was asked for with
        self.expiring = True
        self.scope = "repo,read:org"
        self.made = 0
        self.user: dict[str, Any] = dict(USER)
        self.organisations: list[dict[str, Any]] = [{"id": 9919, "login": "github"}]
        self.repositories: list[dict[str, Any]] = [repository()]
        self.issues: list[dict[str, Any]] = []
        self.pulls: dict[str, list[dict[str, Any]]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.left: int | None = None  # calls until the limit; None: no limit
        self.resets_in = 120

    def before(self, request: Asked) -> Reply | None:
        if request.path.startswith(("/login/", "/applications/")):
            return None
        if request.token not in self.tokens:
            return Reply({"message": "Bad credentials"}, 401)
        if self.left is not None:
            if self.left == 0:
                reset = str(int(time.time()) + self.resets_in)
                headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
                return Reply({"message": "API rate limit exceeded"}, 403, headers)
            self.left -= 1
        return None

    @route("POST", "/login/oauth/access_token")
    def token(self, request: Asked) -> Reply:
        form = request.form
        if (form.get("client_id"), form.get("client_secret")) != CLIENT:
            return Reply({"error": "incorrect_client_credentials", "error_description": "…"})
        if form.get("grant_type") == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return Reply({"error": "bad_refresh_token", "error_description": "…"})
            self.refresh_tokens.discard(form["refresh_token"])
            return self._tokens()
        challenge = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        if challenge is None or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != challenge:
            return Reply({"error": "bad_verification_code", "error_description": "…"})
        return self._tokens()

    def _tokens(self) -> Reply:
        self.made += 1
        self.tokens.add(f"ghu_{self.made}")
        data: dict[str, Any] = {
            "access_token": f"ghu_{self.made}",
            "scope": self.scope,
            "token_type": "bearer",
        }
        if self.expiring:
            self.refresh_tokens.add(f"ghr_{self.made}")
            data |= {
                "expires_in": 28800,
                "refresh_token": f"ghr_{self.made}",
                "refresh_token_expires_in": 15811200,
            }
        return Reply(data)

    @route("DELETE", "/applications/{client}/token")
    def revoke(self, request: Asked, client: str) -> Reply:
        basic = base64.b64encode(":".join(CLIENT).encode()).decode()
        assert request.headers["authorization"] == f"Basic {basic}"
        token = request.json["access_token"]
        if token not in self.tokens:
            return Reply({"message": "Not Found"}, 404)
        self.tokens.discard(token)
        return Reply(None, 204)

    @route("GET", "/user")
    def me(self, request: Asked) -> Reply:
        return Reply(self.user, headers={"X-OAuth-Scopes": "repo, read:org"})

    @route("GET", "/user/orgs")
    def orgs(self, request: Asked) -> Reply:
        return self._page(request, self.organisations)

    @route("GET", "/user/repos")
    def repos(self, request: Asked) -> Reply:
        assert request.query["sort"] == "pushed"
        found = sorted(self.repositories, key=lambda one: one["pushed_at"] or "", reverse=True)
        return self._page(request, found)

    @route("GET", "/issues")
    def list_issues(self, request: Asked) -> Reply:
        asked = dict(request.query)
        assert (asked["filter"], asked["state"], asked["sort"]) == ("all", "all", "updated")
        found = [one for one in self.issues if one["updated_at"] >= asked.get("since", "")]
        return self._page(request, sorted(found, key=lambda one: (one["updated_at"], one["id"])))

    @route("GET", "/repos/{owner}/{name}/pulls")
    def list_pulls(self, request: Asked, owner: str, name: str) -> Reply:
        assert (request.query["state"], request.query["direction"]) == ("all", "desc")
        found = self.pulls.get(f"{owner}/{name}", [])
        return self._page(request, sorted(found, key=lambda one: one["updated_at"], reverse=True))

    @route("GET", "/repos/{owner}/{name}/events")
    def list_events(self, request: Asked, owner: str, name: str) -> Reply:
        found = self.events.get(f"{owner}/{name}", [])
        return self._page(request, sorted(found, key=lambda one: one["created_at"], reverse=True))

    def _page(self, request: Asked, items: list[Any]) -> Reply:
        size, page = min(int(request.query.get("per_page", "30")), 100), int(request.query.get("page", "1"))
        shown, last = items[(page - 1) * size : page * size], -(-len(items) // size)
        links: list[str] = []
        if page < last:
            # An address elsewhere, on purpose: nobody may follow it with a token.
            links += [f'<https://elsewhere.invalid{request.path}?page={n}>; rel="{rel}"' for n, rel in
                      ((page + 1, "next"), (last, "last"))]  # fmt: skip
        return Reply(shown, headers={"Link": ", ".join(links)} if links else {})
