"""JSON Web Tokens: the second way to say who one is. Each way in has one algorithm, and no other is read.

HS256 with the shared secret of the settings, or RS256 with the keys of a JWKS. What a token says of its own
algorithm chooses between those that are set up, and never what a key is used for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Any, cast

import jwt

from holdfast.api.caller import SCOPES, Caller, Scope
from holdfast.api.problems import Unavailable
from holdfast.db.settings import Settings
from holdfast.errors import SettingsError

log = logging.getLogger("holdfast.api")
LEEWAY = 30.0  # seconds by which clocks may differ
LONGEST = 8192  # characters of a token
SUBJECT = 200  # characters of who it is about
PREFIX = "holdfast:"
CACHED, PATIENCE = 300.0, 5.0  # seconds that keys are kept, and that their server may take
PAUSE = 5.0  # seconds until a server that did not answer is asked again


class Jwts:
    """Reads tokens, as the settings allow. Keeps the public keys that it has fetched."""

    def __init__(self, settings: Settings) -> None:
        self._secret = settings.jwt_secret
        self._issuer, self._audience = settings.jwt_issuer, settings.jwt_audience
        url = settings.jwt_jwks_url
        if url and not (self._issuer and self._audience):  # as `load` refuses it, for settings made in code
            problem = "jwt_jwks_url needs jwt_issuer and jwt_audience"
            raise SettingsError(title="some settings are wrong:", problems=[problem])
        self._away = 0.0  # until when the server of the keys is not asked again
        self._keys = jwt.PyJWKClient(url, lifespan=CACHED, timeout=PATIENCE) if url else None

    async def verify(self, text: str) -> Caller | None:
        """Who a token speaks of; None when it proves nothing. `Unavailable` when no keys can be had."""
        claims = await self._claims(text)
        return None if claims is None else _caller(claims)

    async def expiry(self, text: str) -> datetime | None:
        """Until when a good token is good."""
        claims = await self._claims(text)
        if claims is None:
            return None
        try:
            return datetime.fromtimestamp(claims["exp"], UTC)
        except (OverflowError, ValueError, OSError):  # later than any calendar
            return datetime.max.replace(tzinfo=UTC)

    async def _claims(self, text: str) -> dict[str, Any] | None:
        if len(text) > LONGEST or text.count(".") != 2:
            return None
        try:
            header = jwt.get_unverified_header(text)
            match header.get("alg"):
                case "HS256" if self._secret:
                    return self._read(text, self._secret, "HS256")
                case "RS256" if self._keys:
                    key = await self._key(self._keys, header.get("kid", ""))
                    return key and self._read(text, key.key, "RS256")
                case _:
                    return None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):  # it is whatever somebody sent
            return None

    async def _key(self, keys: jwt.PyJWKClient, kid: str) -> jwt.PyJWK | None:
        """The issuer's public key of that name; None when it has none."""
        if time.monotonic() < self._away:
            raise _away()
        try:
            return await asyncio.to_thread(keys.get_signing_key, kid)
        except (jwt.PyJWKClientConnectionError, jwt.PyJWKSetError, OSError, ValueError) as error:
            self._away = time.monotonic() + PAUSE  # or each wrong token would wait for it again
            raise _away() from error
        except jwt.PyJWTError:
            return None

    def _read(self, text: str, key: Any, algorithm: str) -> dict[str, Any]:
        required = ["exp", "sub", *(["iss"] if self._issuer else []), *(["aud"] if self._audience else [])]
        return jwt.decode(
            text,
            key,
            algorithms=[algorithm],
            issuer=self._issuer,
            audience=self._audience,
            leeway=LEEWAY,
            options={"require": required, "verify_aud": self._audience is not None},
        )


def _away() -> Unavailable:
    return Unavailable(message="the keys of the token's issuer cannot be fetched")


def _caller(claims: dict[str, Any]) -> Caller | None:
    """Return the caller whom the claims describe; None when they give no scope of ours.

    `tenant` names the tenant whose rows are meant, `"operator": true` means every tenant's. A token with
    neither, or with both, is refused: an issuer that forgets a claim must not make an operator.
    """
    subject, tenant, scope = claims.get("sub"), claims.get("tenant"), _scope(claims.get("scope"))
    operator = claims.get("operator", False)
    if not isinstance(subject, str) or not subject.isprintable() or not 1 <= len(subject) <= SUBJECT:
        return None
    if scope is None or not isinstance(operator, bool) or not (tenant is None or _is_name(tenant)):
        return None
    if operator is (tenant is not None):
        log.info('JWT of %s refused: it must have either a "tenant" claim or "operator": true', subject)
        return None
    return Caller(who=f"jwt:{subject}", scope=scope, tenant=tenant, bound=tenant is not None)


def _is_name(tenant: object) -> bool:
    return isinstance(tenant, str) and tenant.isprintable() and 1 <= len(tenant) <= 255


def _scope(claim: object) -> Scope | None:
    """The largest of our scopes that a claim has, as a text with blanks or as a list."""
    words = claim.split() if isinstance(claim, str) else claim
    if not isinstance(words, list):
        return None
    given = {str(word).removeprefix(PREFIX) for word in cast("list[Any]", words)}
    return next((scope for scope in reversed(SCOPES) if scope in given), None)
