"""The HTTP of connectors: one client, and what an answer that is no success means.

A message names the provider, the status and the path; never a query, a token or a body, as all of these can
hold secrets. No cookies are kept, and no redirect leaves the host that was asked.
"""

from __future__ import annotations

import asyncio
import json as jsons
import re
import ssl
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, cast

import httpx

from holdfast.apps.connectors.protocol import (
    LONGEST_LIFE,
    ConnectorError,
    Grant,
    Json,
    Permanent,
    RateLimited,
    Transient,
    Unauthorized,
)

LARGEST = 8 * 1024 * 1024  # bytes of an answer, unpacked
PATIENCE = httpx.Timeout(30.0, connect=10.0)  # seconds of silence
WHOLE = 120.0  # seconds of one request altogether
REDIRECTS = 3
LONGEST_WAIT = 86400.0  # seconds; a longer hint is believed this far
AGENT = "holdfast"

# C-59. The words may stand inside longer ones: Slack says token_revoked, Google "expired or revoked".
REFUSALS = (
    "invalid_grant",
    "invalid_client",
    "unauthorized_client",
    "revoked",
    "forbidden",
    "access_denied",
    "unsupported_grant_type",
)
LIMITS = ("rate_limit", "too_many_requests", "temporarily_unavailable", "quota_exceeded")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a provider said; `data` is None when the body was empty."""

    provider: str
    method: str
    path: str
    status: int
    headers: Mapping[str, str]  # any spelling of a name finds it
    data: Json

    @property
    def moment(self) -> datetime:
        """The provider's own clock: what it sends is to be compared with that, and not with ours."""
        return _date(self.headers.get("date", "")) or datetime.now(UTC)

    @property
    def retry_after(self) -> float | None:
        """Seconds until it may be asked again: Retry-After or, when no calls are left, X-RateLimit-Reset."""
        text = self.headers.get("retry-after", "").strip()
        if re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", text):
            return min(float(text), LONGEST_WAIT)
        if (date := _date(text)) is not None:
            return self._until(date)
        reset = self.headers.get("x-ratelimit-reset", "").strip()
        if self.exhausted and re.fullmatch(r"[0-9]{1,11}", reset):
            return self._until(datetime.fromtimestamp(int(reset), UTC))
        return None

    @property
    def exhausted(self) -> bool:
        """Whether it says that no calls are left."""
        return self.headers.get("x-ratelimit-remaining", "").strip() == "0"

    @property
    def limited(self) -> bool:
        """Whether this is a refusal for asking too often; GitHub says so with 403, too."""
        hint = self.exhausted or "retry-after" in self.headers
        return self.status == 429 or (self.status == 403 and hint)

    def _until(self, date: datetime) -> float:
        return min(max((date - self.moment).total_seconds(), 0.0), LONGEST_WAIT)

    def error(self, why: str = "") -> ConnectorError:
        """What this answer means when it is no success; `why`: the provider's own word for it, if known."""
        said = f"{self.provider} answered {self.status}{why and f' ({why})'} to {self.method} {self.path}"
        if self.limited:
            return RateLimited(message=said, retry_after_seconds=self.retry_after, answered=self.status)
        if self.status == 401:
            return Unauthorized(message=said, answered=self.status)
        kind = Permanent if 300 <= self.status < 500 and self.status != 408 else Transient
        return kind(message=said, answered=self.status)

    def unreadable(self) -> Transient:
        """For data that is not what the provider documents."""
        return Transient(
            message=f"{self.provider} answered {self.method} {self.path} with something that nobody can read",
            answered=self.status,
        )

    def object(self) -> dict[str, Any]:
        """The data, which must be an object."""
        if (data := as_object(self.data)) is None:
            raise self.unreadable()
        return data

    def objects(self) -> list[dict[str, Any]]:
        """The data, which must be a list of objects."""
        return self.each(self.data)

    def each(self, value: Json) -> list[dict[str, Any]]:
        """A part of the data, which must be a list of objects."""
        items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
        if not all(isinstance(item, dict) for item in items):
            raise self.unreadable()
        return items


def as_object(value: object) -> dict[str, Any] | None:
    """A JSON object as such; None when it is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


class Http:
    """Asks one provider."""

    def __init__(self, client: httpx.AsyncClient, provider: str) -> None:
        self._client, self.provider = client, provider

    async def request(
        self,
        method: str,
        url: str,
        *,
        token: str | None = None,
        params: Mapping[str, str | int | None] | None = None,
        json: Json = None,
        form: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        expect: Collection[int] = (),
    ) -> Answer:
        """Asks, and gives the answer. What is no success is raised, but for statuses that one may `expect`.

        What is None among `params` and `form` is left out. A rate limit is always raised.
        """
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            request = self._client.build_request(
                method,
                url,
                params=_present(params) if params else None,
                json=json,
                data=_present(form) if form is not None else None,
                headers=sent,
            )
        except (httpx.InvalidURL, ValueError):
            raise Permanent(message=f"{self.provider} has an address that is none") from None
        try:
            async with asyncio.timeout(WHOLE):
                answer = await self._ask(request, auth)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, UnicodeError) as error:
            # `from None`: what these say, and what they carry, can quote the whole address.
            why = type(error).__name__
            message = f"{self.provider} could not be asked {method} {request.url.path} ({why})"
            raise Transient(message=message) from None
        if answer.limited or not (200 <= answer.status < 300 or answer.status in expect):
            raise answer.error()
        return answer

    async def grant(
        self,
        url: str,
        form: Mapping[str, str | None],
        *,
        headers: Mapping[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        words: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Asks a token endpoint, and answers with its object, which has an access token.

        Its errors are read by C-59; some come with status 200. `words` translates a provider's own words for
        an error into those of OAuth.
        """
        answer = await self.request(
            "POST",
            url,
            form=form,
            headers={"Accept": "application/json", **(headers or {})},
            auth=auth,
            expect=(400, 401, 403),
        )
        data = as_object(answer.data) or {}
        said = data.get("error")
        if said or answer.status >= 400:
            text = str(said or "")
            text = (words or {}).get(text, text)
            raise oauth_error(
                text, provider=self.provider, retry_after=answer.retry_after, answered=answer.status
            )
        refresh = data.get("refresh_token")
        if not _sendable(data.get("access_token")) or (isinstance(refresh, str) and not _sendable(refresh)):
            raise answer.unreadable()
        return data

    async def _ask(self, request: httpx.Request, auth: tuple[str, str] | None) -> Answer:
        method, path = request.method, request.url.path
        for _ in range(REDIRECTS + 1):
            response = await self._client.send(request, auth=auth, stream=True)
            try:
                follow = response.next_request if method == "GET" else None
                if follow is None or not _same_host(request.url, follow.url):
                    return await self._read(response, method, path)
            finally:
                await response.aclose()
            request = follow
        raise Transient(message=f"{self.provider} sends {method} {path} round in circles")

    async def _read(self, response: httpx.Response, method: str, path: str) -> Answer:
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > LARGEST:
                raise Transient(message=f"{self.provider} answered {method} {path} with too much")
        data, readable = _parse(bytes(body))
        answer = Answer(
            provider=self.provider,
            method=method,
            path=path,
            status=response.status_code,
            headers=response.headers,
            data=data,
        )
        if not readable and answer.status < 300:
            raise answer.unreadable()
        return answer


def oauth_error(
    text: str,
    *,
    provider: str = "the provider",
    retry_after: float | None = None,
    answered: int | None = None,
) -> ConnectorError:
    """What the error text of a token endpoint means.

    >>> type(oauth_error("invalid_grant")).__name__
    'Permanent'
    >>> type(oauth_error("temporarily_unavailable")).__name__
    'RateLimited'
    >>> type(oauth_error("server_error")).__name__
    'Transient'
    """
    # Only a word is repeated: a sentence may quote what we have sent.
    word = text if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) else "no reason that can be told"
    message = f"{provider} gave no token: {word}"
    low = text.lower()
    if any(refusal in low for refusal in REFUSALS):
        return Permanent(message=message, answered=answered)
    if any(limit in low for limit in LIMITS):
        return RateLimited(message=message, retry_after_seconds=retry_after, answered=answered)
    return Transient(message=message, answered=answered)


def granted(data: Mapping[str, Any], **more: Any) -> Grant:
    """The tokens that a token endpoint has answered with; `more`: what is known of the account."""
    expires, refresh, scope = data.get("expires_in"), data.get("refresh_token"), data.get("scope")
    if isinstance(expires, str) and expires.isascii() and expires.isdigit():
        expires = int(expires) if len(expires) < 20 else LONGEST_LIFE
    if not isinstance(expires, int | float) or isinstance(expires, bool) or expires <= 0:
        expires = None
    if isinstance(scope, str):
        more.setdefault("scopes", tuple(word for word in re.split(r"[\s,]+", scope) if word))
    return Grant(
        external_id=more.pop("external_id", ""),
        access_token=data["access_token"],
        refresh_token=refresh if isinstance(refresh, str) and refresh else None,
        expires_in=None if expires is None else int(min(expires, LONGEST_LIFE)),
        **more,
    )


@asynccontextmanager
async def opened(slug: str) -> AsyncGenerator[Http]:
    """The HTTP for one provider, for as long as it is needed."""
    async with httpx.AsyncClient(
        verify=_tls(),
        timeout=PATIENCE,
        follow_redirects=False,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        headers={"User-Agent": AGENT},
    ) as client:
        yield Http(client, slug)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # takes long to make, and all may share it


def _present(values: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _sendable(token: object) -> bool:
    """Whether it is a text that has bytes: JSON can also write halves of characters."""
    return isinstance(token, str) and not re.search(r"[\ud800-\udfff]", token)


def _same_host(asked: httpx.URL, next: httpx.URL) -> bool:
    return (asked.scheme, asked.host, asked.port) == (next.scheme, next.host, next.port)


def _parse(body: bytes) -> tuple[Json, bool]:
    """The JSON of a body, and whether it could be read; an empty one is None."""
    if not body.strip():
        return None, True
    try:
        return jsons.loads(body, parse_constant=_refuse), True
    except (ValueError, RecursionError):
        return None, False


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def _date(text: str) -> datetime | None:
    """An HTTP date."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
