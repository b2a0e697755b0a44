"""What Zoho's services share: where its accounts are, tokens, times, and how it says what is wrong.

Zoho has several data centres (.com, .eu, .in …) that know nothing of one another's accounts. An installation
is of one: set its accounts' address (HOLDFAST_CONNECTOR_ZOHO_MAIL_AUTH_URL), and the service is looked for in
the same place.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.apps.connectors.http import Answer, as_object, granted
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import (
    AuthRequest,
    Connector,
    ConnectorError,
    Grant,
    RateLimited,
    Unauthorized,
)

ACCOUNTS = "https://accounts.zoho."
# Zoho has its own words for what OAuth calls otherwise.
WORDS = {
    "invalid_code": "invalid_grant",
    "invalid_client_secret": "invalid_client",
    "Access Denied": "too_many_requests",  # what it says after some refreshes within a few minutes
}


class Zoho(Connector):
    """An account at Zoho. Its tokens go by a name of their own instead of Bearer."""

    auth_url = "https://accounts.zoho.com"
    service: str = ""  # its name before the data centre's
    extra_scopes: tuple[str, ...] = ()  # what is needed to find out whose account it is

    @property
    def base(self) -> str:
        """Where the service is: as it is set, or in the data centre of the accounts."""
        if not self.settings.api_url and self.auth.startswith(ACCOUNTS):
            return f"https://{self.service}.zoho.{self.auth.removeprefix(ACCOUNTS)}"
        return self.api

    async def authorize_url(self, request: AuthRequest) -> str:
        client_id, _ = self.client()
        query = {
            "client_id": client_id,
            "redirect_uri": request.redirect_uri,
            "response_type": "code",
            "scope": ",".join(dict.fromkeys((*request.scopes, *self.extra_scopes))),
            "state": request.state,
            "code_challenge": request.code_challenge,
            "code_challenge_method": "S256",
            "access_type": "offline",
            "prompt": "consent",
        }
        return f"{self.auth}/oauth/v2/auth?{urlencode(query, quote_via=quote)}"

    async def refresh(self, refresh_token: str) -> Grant:
        """Zoho keeps the refresh token, and sends none."""
        return granted(await self.grant(grant_type="refresh_token", refresh_token=refresh_token))

    async def revoke(self, access_token: str) -> None:
        form = {"token": access_token}
        await self.http.request("POST", f"{self.auth}/oauth/v2/token/revoke", form=form, expect=(400,))

    async def grant(self, **form: str) -> dict[str, Any]:
        """What the token endpoint says."""
        client_id, client_secret = self.client()
        ours = {"client_id": client_id, "client_secret": client_secret}
        return await self.http.grant(f"{self.auth}/oauth/v2/token", {**ours, **form}, words=WORDS)

    async def ask(self, token: str | None, path: str, params: dict[str, str | int] | None = None) -> Answer:
        """Asks the API. What is wrong is told by a code in the answer, better than by its status."""
        headers = {"Authorization": f"Zoho-oauthtoken {token}"} if token else {}
        url = f"{self.base}{path}"
        answer = await self.http.request("GET", url, params=params, headers=headers, expect=(400, 403, 404))
        if answer.status >= 400:
            raise refusal(answer)
        return answer


def refusal(answer: Answer) -> ConnectorError:
    """What an answer that is no success means."""
    data = as_object((as_object(answer.data) or {}).get("data")) or {}
    code = str(data.get("errorCode", ""))
    said = f"{answer.provider} answered {answer.status} ({code}) to {answer.method} {answer.path}"
    if code in ("INVALID_OAUTHTOKEN", "INVALID_TICKET"):
        return Unauthorized(message=said)
    if "THROTTLE" in code or "LIMIT_EXCEEDED" in code:
        return RateLimited(message=said, retry_after_seconds=answer.retry_after)
    return answer.error(code if code.isidentifier() and len(code) <= 64 else "")


def milliseconds(value: object) -> datetime:
    """Zoho's times, which are milliseconds since 1970, as a number or as its digits."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("this is no time")
    return moment(int(value) / 1000)
