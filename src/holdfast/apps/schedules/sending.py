"""The senders that speak HTTP. Needs httpx; imported only when such a sender is set.

Addresses and tokens are secrets: a reason names the host and the status, at most. Requests go past the
client of httpx, as that logs the whole address of each.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, cast
from urllib.parse import quote
from urllib.request import getproxies, proxy_bypass

import httpx

from holdfast.apps.schedules.senders import Passing, Permanent, told
from holdfast.apps.schedules.values import Notice

LARGEST = 65536  # bytes of Telegram's answer; what comes after them is not read
LONGEST_WORDS = 200  # characters of what Telegram says
PASSING = (408, 425, 429)
READABLE = "!#$&'()*+,/:;=?@[]~"  # further signs that an id may have in a header


@dataclass(frozen=True)
class Answer:
    """What a receiver said."""

    status: int
    headers: Mapping[str, str]  # any spelling of a name finds it
    body: bytes

    @property
    def good(self) -> bool:
        """Whether it was taken."""
        return 200 <= self.status < 300

    @property
    def passing(self) -> bool:
        """Whether the same may be taken later."""
        return self.status in PASSING or self.status >= 500

    @property
    def retry_after(self) -> float | None:
        """Seconds until it may be asked again, as Retry-After says; a date is seen from its own clock."""
        text = self.headers.get("retry-after", "").strip()
        if re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", text):
            return float(text)
        if (date := _date(text)) is None:
            return None
        return (date - (_date(self.headers.get("date", "")) or datetime.now(UTC))).total_seconds()

    def data(self) -> dict[str, Any]:
        """The object that it sent; empty when there is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class WebhookSender:
    """Posts each message as JSON to one address, with the id of the notification as `Idempotency-Key`.

    With a secret the request is signed as Standard Webhooks has it: HMAC-SHA256 over id, time and body. A
    secret `whsec_…` is the base64 of its bytes.
    """

    def __init__(self, url: str, *, secret: str | None = None, patience: float = 10.0) -> None:
        self._url = address(url)
        self._key = None if secret is None else _key(secret)
        self._patience = patience

    async def send(self, notice: Notice) -> None:
        """Returns for an answer 2xx. 408, 425, 429, 5xx and no answer at all are passing."""
        key, body = header_of(notice.id), _bytes(told(notice))
        headers = {"Idempotency-Key": key}
        if self._key is not None:
            headers |= signed(self._key, key, int(time.time()), body)
        who = f"the webhook at {self._url.host}"
        answer = await post(self._url, body, headers, who=who, patience=self._patience)
        if answer.good:
            return
        reason = f"{who} answered {answer.status}"
        if answer.passing:
            raise Passing(reason, answer.retry_after)
        if 300 <= answer.status < 400:
            reason += ", and redirects are not followed"
        raise Permanent(reason)


class TelegramSender:
    """Says each message to the chat of its user, by a bot; the user must have begun the chat."""

    def __init__(self, token: str, *, url: str = "https://api.telegram.org", patience: float = 10.0) -> None:
        self._token = token
        self._url = address(f"{url.rstrip('/')}/bot{token}/sendMessage")
        self._patience = patience

    async def send(self, notice: Notice) -> None:
        """Returns when Telegram has taken it. Floods, its own faults and no answer at all are passing."""
        body = _bytes({"chat_id": notice.user_id, "text": notice.message})
        headers = {"Idempotency-Key": header_of(notice.id)}
        answer = await post(self._url, body, headers, who="Telegram", patience=self._patience, most=LARGEST)
        data = answer.data()
        if answer.good:
            if data.get("ok") is not True:  # somebody in between answered
                raise Passing(f"Telegram answered {answer.status} with something that nobody can read")
            return
        reason = f"Telegram answered {answer.status}{self._words(data)}"
        if not answer.passing:
            raise Permanent(reason)
        raise Passing(reason, _flood_wait(data) or answer.retry_after)

    def _words(self, data: dict[str, Any]) -> str:
        """Its own words; they do not quote the token, but who knows what stands in between."""
        said = data.get("description")
        return f": {said[:LONGEST_WORDS]}" if isinstance(said, str) and self._token not in said else ""


def _flood_wait(data: dict[str, Any]) -> float | None:
    parameters = data.get("parameters")
    found = cast("dict[str, Any]", parameters).get("retry_after") if isinstance(parameters, dict) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def address(text: str) -> httpx.URL:
    """Where to post to; raises ValueError, without the text, for what is no address."""
    with suppress(httpx.InvalidURL, ValueError):
        url = httpx.URL(text)
        if url.scheme in ("http", "https") and url.host:  # a wrong host is found only now
            return url
    raise ValueError("is no address that can be asked")


def header_of(id: str) -> str:
    """An id as a header can have it: as it is, but for signs that a header cannot have."""
    return quote(id, safe=READABLE)


def signed(key: bytes, id: str, now: int, body: bytes) -> dict[str, str]:
    """The headers by which a receiver knows who has sent it, and when."""
    mac = hmac.new(key, f"{id}.{now}.".encode() + body, hashlib.sha256).digest()
    return {
        "Webhook-Id": id,
        "Webhook-Timestamp": str(now),
        "Webhook-Signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def _key(secret: str) -> bytes:
    if secret.startswith("whsec_"):
        try:
            return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            pass
    return secret.encode()


async def post(
    url: httpx.URL, body: bytes, headers: Mapping[str, str], *, who: str, patience: float, most: int = 0
) -> Answer:
    """Posts JSON and gives the answer, whatever it is; raises `Passing` when there is none.

    No redirect is followed and no cookie kept. `patience` is seconds of silence. At most `most` bytes of the
    body are read; without them the status alone counts, and a receiver that then falls silent has taken it.
    """
    try:
        request = httpx.Request(
            "POST",
            url,
            content=body,
            headers={
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
                "User-Agent": "holdfast",
                **headers,
            },
            extensions={"timeout": httpx.Timeout(patience).as_dict()},
        )
        if url.username or url.password:
            request = next(httpx.BasicAuth(url.username, url.password).sync_auth_flow(request))
        async with httpx.AsyncHTTPTransport(verify=_tls(), proxy=_proxy(url)) as transport:
            response = await transport.handle_async_request(request)
            try:
                return Answer(response.status_code, response.headers, await _read(response, most))
            finally:
                await response.aclose()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, OverflowError) as error:
        # `from None`: what these say, and what they carry, can quote the whole address.
        raise Passing(f"{who} could not be reached ({type(error).__name__})") from None


async def _read(response: httpx.Response, most: int) -> bytes:
    if not most:
        return b""
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) >= most:
            break
    return bytes(body[:most])


def _proxy(url: httpx.URL) -> str | None:
    """The proxy that the environment names for this address."""
    if proxy_bypass(url.netloc.decode("ascii")):
        return None
    proxies = getproxies()
    return proxies.get(url.scheme) or proxies.get("all")


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()  # takes long to make, and all may share it


def _bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _date(text: str) -> datetime | None:
    """An HTTP date."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date
