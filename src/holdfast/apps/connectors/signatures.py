"""How a webhook proves who sent it, over the raw bytes of its body. Never logs; never tells what it expected.

A tenant is shown a secret derived from the operator's own; both verify. All compares take constant time, and
all secrets are tried even when the first one fits.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Literal

from holdfast.apps.connectors.protocol import Transient
from holdfast.errors import HoldfastError, MissingExtra

Scheme = Literal["github", "slack", "bearer", "channel_token", "oidc", "standard"]
Way = Literal["signature", "shared_secret", "oidc"]
Reason = Literal["missing", "malformed", "wrong", "replay"]

SENSITIVE = frozenset(
    {
        "authorization",
        "cookie",
        "set-cookie",
        "proxy-authorization",
        "www-authenticate",
        "authentication-info",
        "x-api-key",
        "x-auth-token",
        "x-csrf-token",
        "x-xsrf-token",
        "x-webhook-secret",
        "x-hub-signature",
        "x-hub-signature-256",
        "x-slack-signature",
        "x-goog-channel-token",
        "webhook-signature",
        "svix-signature",
    }
)
_SECRETIVE = re.compile(r"signature|secret|password|(^|-)token($|-)|api-?key")

GOOGLE_KEYS = "https://www.googleapis.com/oauth2/v3/certs"
GOOGLE = ("accounts.google.com", "https://accounts.google.com")
LEEWAY = 60.0  # seconds by which Google's clock may differ from ours
LONGEST_TOKEN = 8192
CACHED = 3600.0  # seconds that Google's keys are kept
PAUSE = 10.0  # seconds until they are fetched again for a key that is not among them


class InvalidSignature(HoldfastError):
    """the signature is not right

    What was wrong with it is for our own figures only: `reason` is missing, malformed, wrong or replay.
    """

    code: ClassVar[str] = "INVALID_SIGNATURE"
    status = 401
    reason: Reason

    def __init__(self, *, reason: Reason) -> None:
        super().__init__(reason=reason)


def derived_secret(secret: str, tenant_id: object, slug: str) -> str:
    """The secret that a tenant is shown (C-48); from it, nobody gets to another tenant's or to ours."""
    return _hmac(secret.encode(), f"{tenant_id}|{slug}".encode()).hex()


def accepted(secrets: Sequence[str], tenant_id: object, slug: str) -> tuple[str, ...]:
    """What may have signed for a tenant: the operator's own secrets, and what is derived from each."""
    return tuple(
        text for secret in secrets if secret for text in (secret, derived_secret(secret, tenant_id, slug))
    )


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that may be stored (C-52), by lower-case names."""
    lower = {name.lower(): value for name, value in headers.items()}
    return {
        name: value for name, value in lower.items() if name not in SENSITIVE and not _SECRETIVE.search(name)
    }


def verify(
    scheme: Scheme,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[str],
    *,
    now: datetime,
    tolerance: float,
) -> Way:
    """How the request proved itself; `InvalidSignature` when it did not. Header names are lower case.

    An OIDC token is another matter: `verify_oidc`.
    """
    keys = [secret.encode() for secret in secrets if secret]
    match scheme:
        case "github":
            given = _hex(_header(headers, "x-hub-signature-256"), "sha256=")
            _check(given, [_hmac(key, body) for key in keys])
        case "slack":
            stamp = _header(headers, "x-slack-request-timestamp")
            given = _hex(_header(headers, "x-slack-signature"), "v0=")
            _fresh(stamp, now, tolerance)
            _check(given, [_hmac(key, b"v0:" + stamp.encode() + b":" + body) for key in keys])
        case "standard":
            _standard(headers, body, secrets, now, tolerance)
        case "bearer":
            kind, _, given = _header(headers, "authorization").partition(" ")
            if kind.lower() != "bearer" or not given.strip():
                raise InvalidSignature(reason="malformed")
            _check(_digest(given.strip().encode()), [_digest(key) for key in keys])
            return "shared_secret"
        case "channel_token":
            given = _header(headers, "x-goog-channel-token").encode()
            _check(_digest(given), [_digest(key) for key in keys])
            return "shared_secret"
        case "oidc":
            raise ValueError("a token is verified by verify_oidc")
    return "signature"


def _header(headers: Mapping[str, str], name: str) -> str:
    if not (text := headers.get(name, "").strip()):
        raise InvalidSignature(reason="missing")
    return text


def _hex(text: str, prefix: str) -> bytes:
    """The 32 bytes of a signature that is written in hexadecimal behind its prefix."""
    if not text.startswith(prefix) or not re.fullmatch(r"[0-9a-fA-F]{64}", text[len(prefix) :]):
        raise InvalidSignature(reason="malformed")
    return bytes.fromhex(text[len(prefix) :])


def _fresh(stamp: str, now: datetime, tolerance: float) -> None:
    """Refuses a time that is further away than `tolerance` seconds, which itself is near enough."""
    if not re.fullmatch(r"[0-9]{1,12}", stamp):
        raise InvalidSignature(reason="malformed")
    if abs(int(now.timestamp()) - int(stamp)) > tolerance:
        raise InvalidSignature(reason="replay")


def _standard(
    headers: Mapping[str, str], body: bytes, secrets: Sequence[str], now: datetime, tolerance: float
) -> None:
    """Standard Webhooks: several signatures with blanks between, each `v1,` and base64."""
    name, stamp = _header(headers, "webhook-id"), _header(headers, "webhook-timestamp")
    given: list[bytes] = []
    for part in _header(headers, "webhook-signature").split()[:16]:
        version, _, text = part.partition(",")
        if version == "v1" and (raw := _base64(text)) is not None and len(raw) == 32:
            given.append(raw)
    if not given:
        raise InvalidSignature(reason="malformed")
    _fresh(stamp, now, tolerance)
    content = f"{name}.{stamp}.".encode() + body
    expected = [_hmac(_standard_key(secret), content) for secret in secrets if secret]
    if not sum(_fits(one, expected) for one in given):
        raise InvalidSignature(reason="wrong")


def _standard_key(secret: str) -> bytes:
    """The bytes of a secret `whsec_…`; a secret in any other form is taken as it is."""
    raw = _base64(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else None
    return secret.encode() if raw is None else raw


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None


def _hmac(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _digest(text: bytes) -> bytes:
    """Equal lengths, so that a compare does not even tell the length of a secret."""
    return hashlib.sha256(text).digest()


def _fits(given: bytes, expected: Sequence[bytes]) -> bool:
    return sum(hmac.compare_digest(given, one) for one in expected) > 0  # `any` would stop at the first


def _check(given: bytes, expected: Sequence[bytes]) -> None:
    if not _fits(given, expected):
        raise InvalidSignature(reason="wrong")


class Keys:
    """The public keys of an issuer of tokens, fetched when they are first needed and kept for an hour."""

    def __init__(self, url: str = GOOGLE_KEYS, clock: Callable[[], float] = time.monotonic) -> None:
        self.url, self._clock = url, clock
        self._found: dict[str, Any] = {}
        self._tried = self._fetched = -math.inf
        self._fetching: asyncio.Task[None] | None = None

    async def get(self, kid: str) -> Any | None:
        """The key of that name, None when there is none; `Transient` when the keys cannot be fetched."""
        now = self._clock()
        stale = now - self._fetched > CACHED
        if self._fetching is None and (stale or kid not in self._found) and now - self._tried > PAUSE:
            self._tried = now  # before the answer: wrong tokens must not make us ask once for each of them
            self._fetching = asyncio.create_task(self._renew(now))
        if self._fetching is not None:
            await asyncio.shield(self._fetching)
        elif stale:
            raise Transient(message="the keys of the token's issuer cannot be fetched")
        return self._found.get(kid)

    async def _renew(self, now: float) -> None:
        try:
            self._found, self._fetched = await self._fetch(), now
        finally:
            self._fetching = None

    async def _fetch(self) -> dict[str, Any]:
        import jwt  # an extra, like httpx: whoever takes webhooks has them

        from holdfast.apps.connectors import http

        async with http.opened("google") as client:
            answer = await client.request("GET", self.url)
        try:
            found = jwt.PyJWKSet.from_dict(answer.object())
        except jwt.PyJWTError:
            raise answer.unreadable() from None
        return {key.key_id: key for key in found.keys if key.key_id}


_google = Keys()


async def verify_oidc(headers: Mapping[str, str], *, audience: str | None, keys: Keys | None = None) -> Way:
    """Whether the bearer token is one of Google's for exactly this audience; `InvalidSignature` when not.

    `Transient` when Google's keys cannot be fetched: then nobody knows, and Google will send it again.
    """
    try:
        import jwt
    except ImportError:
        raise MissingExtra(what="a webhook signed by Google", extra="server") from None

    kind, _, token = _header(headers, "authorization").partition(" ")
    if kind.lower() != "bearer" or token.count(".") != 2 or len(token) > LONGEST_TOKEN:
        raise InvalidSignature(reason="malformed")
    if not audience:
        raise InvalidSignature(reason="wrong")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise InvalidSignature(reason="malformed") from None
    kid = header.get("kid")
    if header.get("alg") != "RS256" or not isinstance(kid, str):
        raise InvalidSignature(reason="malformed")
    key = await (keys or _google).get(kid)
    try:
        if key is None:
            raise InvalidSignature(reason="wrong")
        jwt.decode(
            token,
            key.key,
            algorithms=["RS256"],
            audience=audience,
            issuer=GOOGLE,
            leeway=LEEWAY,
            options={"require": ["exp", "iat", "aud", "iss"]},
        )
    except jwt.ExpiredSignatureError:
        raise InvalidSignature(reason="replay") from None
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise InvalidSignature(reason="wrong") from None
    return "oidc"
