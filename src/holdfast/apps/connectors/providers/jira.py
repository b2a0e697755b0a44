# ruff: noqa: ARG002 (the protocol hands over more than Jira needs)
"""Jira Cloud: OAuth apps of Atlassian ("3LO"). An account is a site, called by its cloud id.

Who consents chooses one site at a time, but Atlassian lists all that were ever allowed, in no order: of
several, the first by its name is taken, and all are noted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from holdfast.apps.connectors.http import Answer, as_object, granted
from holdfast.apps.connectors.normal import cut, moment, reading
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
    WebhookResult,
)
from holdfast.apps.connectors.providers import jira_facts as facts
from holdfast.apps.connectors.providers.paging import Cursor, Outdated, begin, foreign, turned, walk
from holdfast.apps.connectors.providers.shape import parts, words
from holdfast.apps.connectors.signatures import Scheme

OFFLINE = "offline_access"  # the scope that brings a refresh token
NEEDED = "read:jira-work"  # a site without it is another product's
PAGE = 100  # the most that Jira gives at once with fields
OVERLAP = 120_000  # milliseconds; Jira's index is some seconds late, and not in order
LONGEST_ID = 200


class Jira(Connector):
    """Issues of a site: made, changed, closed, resolved, reopened and commented."""

    provider = Provider(
        slug="jira", display_name="Jira", auth_type="oauth2", scopes=("read:jira-work", "read:jira-user")
    )
    api_url = "https://api.atlassian.com"
    auth_url = "https://auth.atlassian.com"
    scheme: ClassVar[Scheme | None] = "bearer"

    async def authorize_url(self, request: AuthRequest) -> str:
        client_id, _ = self.client()
        query = {
            "audience": "api.atlassian.com",
            "client_id": client_id,
            "scope": " ".join(dict.fromkeys((*request.scopes, OFFLINE))),
            "redirect_uri": request.redirect_uri,
            "state": request.state,
            "response_type": "code",
            "prompt": "consent",
            "code_challenge": request.code_challenge,
            "code_challenge_method": "S256",
        }
        return f"{self.auth}/authorize?{urlencode(query, quote_via=quote)}"

    async def exchange(self, code: str, request: AuthRequest) -> Grant:
        data = await self._grant(
            grant_type="authorization_code",
            code=code,
            redirect_uri=request.redirect_uri,
            code_verifier=request.code_verifier,
        )
        sites = await self._sites(data["access_token"])
        cloud, site = next(iter(sites.items()))
        metadata = {
            "site": site["url"],
            "sites": sites,
            "webhook": {"external_ids": [host] if (host := urlsplit(site["url"]).hostname) else []},
        }
        return granted(data, external_id=cloud, display_name=site["name"], metadata=metadata)

    async def refresh(self, refresh_token: str) -> Grant:
        """Atlassian gives a new refresh token each time, and the old one ends."""
        return granted(await self._grant(grant_type="refresh_token", refresh_token=refresh_token))

    async def _grant(self, **form: str) -> dict[str, Any]:
        client_id, client_secret = self.client()
        ours = {"client_id": client_id, "client_secret": client_secret}
        return await self.http.grant(f"{self.auth}/oauth/token", {**ours, **form})

    async def _sites(self, token: str) -> dict[str, dict[str, str]]:
        """The sites with Jira that a token opens, by their cloud ids."""
        answer = await self.http.request("GET", f"{self.api}/oauth/token/accessible-resources", token=token)
        with reading(answer.unreadable()):
            found = [
                (str(site["name"]), str(site["id"]), str(site["url"]))
                for site in answer.objects()
                if NEEDED in words(site, "scopes")
            ]
        if not found:
            raise Permanent(message="jira: no site with Jira was allowed")
        return {cloud: {"name": name, "url": url} for name, cloud, url in sorted(found)}

    # -- polling -----------------------------------------------------------------------------------------

    async def sync(self, account: Account, cursor: Json) -> Page:
        """Cursor: `since`, the newest change that was read, in milliseconds since 1970."""
        start = begin(
            {"since": 0} if cursor is None else cursor, self.provider.slug, since=int, newest=int | None
        )
        with reading(foreign(self.provider.slug)):
            moment(start["since"] / 1000)
        return await walk(partial(self._step, account), start, self.max_items)

    async def _step(self, account: Account, cursor: Cursor) -> Page:
        """One page of the search; `newest` grows while `since` stays, so that all pages are of one query."""
        since = max(cursor["since"] - OVERLAP, 0)
        answer = await self._search(account, since, cursor.get("page"))
        if answer.status == 400:
            raise Outdated(message=str(answer.error())) if "page" in cursor else answer.error()
        with reading(answer.unreadable()):
            issues = parts(answer.object(), "issues")
            found = [signal for issue in issues for signal in facts.polled(issue, moment(since / 1000))]
            times = [facts.updated(issue) for issue in issues]
            newest = max([cursor.get("newest", cursor["since"]), *(int(t.timestamp() * 1000) for t in times)])
        page = answer.object().get("nextPageToken")
        if answer.object().get("isLast") or not isinstance(page, str) or not page:
            return Page(signals=tuple(found), next_cursor={"since": newest})
        following = turned(cursor, page=page, newest=newest)
        return Page(signals=tuple(found), next_cursor=following, has_more=True)

    async def _search(self, account: Account, since: int, page: str | None) -> Answer:
        """Milliseconds, as Jira would read a date by the time zone of whoever has connected it."""
        body = {
            "jql": f"updated >= {since} ORDER BY updated ASC",
            "fields": facts.FIELDS,
            "expand": "changelog",
            "maxResults": PAGE,
            **({"nextPageToken": page} if page else {}),
        }
        url = f"{self.api}/ex/jira/{quote(account.external_id, safe='')}/rest/api/3/search/jql"
        return await self.http.request("POST", url, token=account.access_token, json=body, expect=(400,))

    # -- webhooks ----------------------------------------------------------------------------------------

    def delivery_id(self, headers: Mapping[str, str], body: bytes) -> str:
        given = headers.get("x-atlassian-webhook-identifier", "").strip()
        return given if 0 < len(given) <= LONGEST_ID else super().delivery_id(headers, body)

    def external_ids(self, headers: Mapping[str, str], payload: Json) -> Sequence[str]:
        """The site: by its cloud id or by its host, whichever the address of the issue has."""
        told = as_object(payload) or {}
        for name in ("issue", "comment", "user"):
            url = (as_object(told.get(name)) or {}).get("self")
            if isinstance(url, str) and (ids := _site(url)):
                return ids
        return ()

    async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
        told = as_object(delivery.payload) or {}
        event = cut(told.get("webhookEvent"), 64) or "without a name"
        with reading(Permanent(message=f"jira: a delivery of {event!r} is not as documented")):
            return WebhookResult(signals=facts.webhook(event, told))


def _site(url: str) -> tuple[str, ...]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return ()
    before, _, cloud = parts.path.partition("/ex/jira/")
    if not before and cloud:
        return (cloud.partition("/")[0],)
    return (parts.hostname,) if parts.hostname else ()
