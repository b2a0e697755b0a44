# ruff: noqa: ARG002 (the protocol hands over more than GitHub needs)
"""GitHub: OAuth apps, and GitHub apps whose users' tokens expire. Works on GitHub Enterprise Server as well.

An account is a person, called by GitHub's number for them. A webhook is about whom the repository belongs to;
the organisations of a person are noted when they connect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote, urlencode

from holdfast.apps.connectors.http import Answer, as_object, granted
from holdfast.apps.connectors.normal import ignored, reading
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    Delivery,
    Grant,
    Json,
    Page,
    Permanent,
    Provider,
    RateLimited,
    Unauthorized,
    WebhookResult,
)
from holdfast.apps.connectors.providers import github_facts as facts
from holdfast.apps.connectors.providers.github_walk import Walk, resume
from holdfast.apps.connectors.signatures import Scheme

HEADERS = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
# GitHub has its own words for what OAuth calls otherwise.
WORDS = {
    "bad_refresh_token": "invalid_grant",
    "bad_verification_code": "invalid_grant",
    "incorrect_client_credentials": "invalid_client",
    "redirect_uri_mismatch": "invalid_client",
    "application_suspended": "unauthorized_client",
    "unverified_user_email": "access_denied",
}
LONGEST_ID = 200
SECONDARY = 60.0  # seconds to wait when GitHub does not say how long, as it advises


class GitHub(Connector):
    """Issues, pull requests, pushes and releases of everything that a person can see."""

    provider = Provider(
        slug="github", display_name="GitHub", auth_type="oauth2", scopes=("repo", "read:org"), webhooks=True
    )
    api_url = "https://api.github.com"
    auth_url = "https://github.com"
    scheme: ClassVar[Scheme | None] = "github"

    async def authorize_url(self, request: AuthRequest) -> str:
        client_id, _ = self.client()
        query = {
            "client_id": client_id,
            "redirect_uri": request.redirect_uri,
            "scope": " ".join(request.scopes),
            "state": request.state,
            "code_challenge": request.code_challenge,
            "code_challenge_method": "S256",
        }
        return f"{self.auth}/login/oauth/authorize?{urlencode(query, quote_via=quote)}"

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        data = await self._token(
            code=code, redirect_uri=request.redirect_uri, code_verifier=request.code_verifier or None
        )
        token = data["access_token"]
        answer = await self._get(token, "/user")
        with reading(answer.unreadable()):
            user = answer.object()
            account, name = str(int(user["id"])), str(user["login"])
        return granted(
            data,
            external_id=account,
            display_name=name,
            metadata={"login": name, "webhook": {"external_ids": await self._organisations(token)}},
        )

    async def refresh(self, refresh_token: str) -> Grant:
        return granted(await self._token(grant_type="refresh_token", refresh_token=refresh_token))

    async def revoke(self, access_token: str) -> None:
        client_id, client_secret = self.client()
        await self.http.request(
            "DELETE",
            f"{self.api}/applications/{quote(client_id, safe='')}/token",
            json={"access_token": access_token},
            headers=HEADERS,
            auth=(client_id, client_secret),
            expect=(404, 422),  # it is gone already
        )

    async def sync(self, account: Account, cursor: Json) -> Page:
        token = account.access_token
        if token is None:
            raise Unauthorized(message="github: this connection has no token")

        async def get(
            path: str, params: Mapping[str, str | int | None], expect: tuple[int, ...] = ()
        ) -> Answer:
            return await self._get(token, path, params, expect)

        return await Walk(get, resume(cursor), self.max_items).page()

    def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
        given = headers.get("x-github-delivery", "").strip()
        return given if 0 < len(given) <= LONGEST_ID else super().delivery_id(headers, body)

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        """Whose repository it is: as a person's or an organisation's number; or the repository itself."""
        told = as_object(payload) or {}
        repo = as_object(told.get("repository")) or {}
        owner, organisation = as_object(repo.get("owner")) or {}, as_object(told.get("organization")) or {}
        installation = as_object(told.get("installation")) or {}
        ids = [
            *(str(one["id"]) for one in (owner, organisation) if _is_number(one.get("id"))),
            *(f"repository:{one['id']}" for one in (repo,) if _is_number(one.get("id"))),
            *(f"installation:{one['id']}" for one in (installation,) if _is_number(one.get("id"))),
        ]
        return tuple(dict.fromkeys(ids))

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        event, payload = delivery.headers.get("x-github-event", ""), as_object(delivery.payload)
        if payload is None or not event:
            ignored("a delivery of GitHub", event or "without a name")
            return WebhookResult()
        with reading(Permanent(message=f"github: a delivery of {event[:64]!r} is not as documented")):
            return WebhookResult(signals=facts.webhook(event, payload, delivery.received_at))

    async def _token(self, **form: str | None) -> dict[str, Json]:
        client_id, client_secret = self.client()
        return await self.http.grant(
            f"{self.auth}/login/oauth/access_token",
            {"client_id": client_id, "client_secret": client_secret, **form},
            words=WORDS,
        )

    async def _organisations(self, token: str) -> list[str]:
        """The numbers of a person's organisations, whose webhooks are for this connection as well."""
        answer = await self._get(token, "/user/orgs", {"per_page": 100}, (403, 404))
        if answer.status != 200:
            return []
        with reading(answer.unreadable()):
            return [str(int(one["id"])) for one in answer.objects()]

    async def _get(
        self,
        token: str,
        path: str,
        params: Mapping[str, str | int | None] | None = None,
        expect: tuple[int, ...] = (),
    ) -> Answer:
        answer = await self.http.request(
            "GET", self.api + path, token=token, params=params, headers=HEADERS, expect=(*expect, 403)
        )
        if answer.status == 403:
            # A limit on too many requests at once may come without any header that says so.
            said = (as_object(answer.data) or {}).get("message")
            if isinstance(said, str) and "rate limit" in said.lower():
                raise RateLimited(message=f"github has enough of GET {path}", retry_after_seconds=SECONDARY)
            if 403 not in expect:
                raise answer.error()
        return answer


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
