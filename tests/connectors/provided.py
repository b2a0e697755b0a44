"""What the tests of the connectors for Jira, Google and Zoho share: the connector over its loopback server,
the faults that all must read alike, and golden files.

A golden file has what a provider says and the signals that it means. It goes through the function that
production uses; `HOLDFAST_GOLDEN=write` writes the signals anew, for a person to read.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pytest

from connectors.servers.base import Server
from holdfast.apps.connectors import normal, signatures
from holdfast.apps.connectors.http import opened
from holdfast.apps.connectors.protocol import (
    Account,
    AuthRequest,
    Connector,
    Delivery,
    Permanent,
    RateLimited,
    Signal,
    Transient,
    Unauthorized,
)
from holdfast.db.settings import ProviderSettings

C = TypeVar("C", bound=Connector)

CLIENT = ("client-id-51", "client-secret-0f1e")
VERIFIER = "verifier-" + "v" * 60
REDIRECT = "https://app.example/api/connectors/callback"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
GOLDEN = Path(__file__).parent / "golden"


@asynccontextmanager
async def connected(kind: type[C], server: Server | None = None, max_items: int = 1000) -> AsyncIterator[C]:
    """The connector, with its server in the provider's place."""
    url = None if server is None else server.url
    settings = ProviderSettings(api_url=url, auth_url=url, client_id=CLIENT[0], client_secret=CLIENT[1])
    async with opened(kind.provider.slug) as http:
        yield kind(http, settings, max_items)


# -- OAuth -----------------------------------------------------------------------------------------------


def challenge(verifier: str = VERIFIER) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def request_for(kind: type[Connector]) -> AuthRequest:
    """An authorisation on its way, with the scopes of the catalogue."""
    return AuthRequest(
        redirect_uri=REDIRECT,
        state="state-1",
        scopes=kind.provider.scopes,
        code_challenge=challenge(),
        code_verifier=VERIFIER,
    )


def query_of(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))


async def check_address(kind: type[Connector]) -> dict[str, str]:
    """C-63: the consent's real address is https, short, without fragment, with state and challenge."""
    async with connected(kind) as connector:
        url = await connector.authorize_url(request_for(kind))
    parts = urlsplit(url)
    assert parts.scheme == "https"
    assert not parts.fragment
    assert len(url) <= 2048
    query = query_of(url)
    assert query["client_id"] == CLIENT[0]
    assert query["redirect_uri"] == REDIRECT
    assert query["response_type"] == "code"
    assert query["state"] == "state-1"
    assert (query["code_challenge"], query["code_challenge_method"]) == (challenge(), "S256")
    assert VERIFIER not in url
    assert CLIENT[1] not in url
    return query


async def check_refresh_errors(connector: Connector, server: Server, path: str, status: int = 400) -> None:
    """C-59: the provider's error text decides what a refused refresh means."""
    for text in (
        "invalid_grant",
        "invalid_client",
        "unauthorized_client",
        "access_denied",
        "unsupported_grant_type",
    ):
        server.fail_next(status, body={"error": text}, path=path)
        with pytest.raises(Permanent):
            await connector.refresh("refresh-secret-77")
    for text in ("rate_limit", "too_many_requests", "temporarily_unavailable", "quota_exceeded"):
        server.fail_next(status, body={"error": text}, path=path)
        with pytest.raises(RateLimited):
            await connector.refresh("refresh-secret-77")
    server.fail_next(status, body={"error": "server_error"}, path=path)
    with pytest.raises(Transient) as told:
        await connector.refresh("refresh-secret-77")
    assert "refresh-secret-77" not in str(told.value)
    assert CLIENT[1] not in str(told.value)


# -- faults ----------------------------------------------------------------------------------------------


async def check_faults(
    connector: Connector, server: Server, account: Account, cursor: Any, path: str
) -> None:
    """C-36: what each failure of the API means; none of them tells a token or a query."""

    async def fails(kind: type[Exception], *fault: Any, **more: Any) -> Any:
        server.forget()
        server.fail_next(*fault, path=path, **more)
        with pytest.raises(kind) as told:
            await connector.sync(account, cursor)
        assert type(told.value) is kind
        text = str(told.value)
        assert connector.provider.slug in text
        assert account.access_token
        assert account.access_token not in text
        assert "?" not in text
        return told.value

    await fails(Unauthorized, 401, body={"error": "no"})
    assert (await fails(RateLimited, 429, {"Retry-After": "7"})).retry_after_seconds == 7
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 30 < (await fails(RateLimited, 429, {"Retry-After": soon})).retry_after_seconds <= 60
    assert (await fails(RateLimited, 429)).retry_after_seconds is None
    await fails(Permanent, 403, body={"error": {"errors": [{"reason": "forbidden"}]}})
    await fails(Permanent, 405)
    await fails(Transient, 500)
    await fails(Transient, 503, body=b"<html>later</html>")
    await fails(Transient, 200, body=b"{oops")
    await fails(Transient, 200, body=[])
    await fails(Transient, 200, body=b"\xff\xfe")
    server.forget()


async def check_cursors(connector: Connector, account: Account, wrong: Iterable[Any]) -> None:
    """A cursor that somebody wrote by hand and wrongly is refused with what to do, and not guessed at."""
    for cursor in wrong:
        with pytest.raises(Permanent, match="reset it"):
            await connector.sync(account, cursor)


# -- webhooks --------------------------------------------------------------------------------------------


def delivery(payload: Any, headers: dict[str, str] | None = None) -> Delivery:
    return Delivery(id="1", headers=headers or {}, payload=payload, received_at=NOON)


def check_secret(kind: type[Connector], header: Callable[[str], dict[str, str]]) -> None:
    """C-47: the secret that a tenant was shown proves a delivery, and another tenant's does not."""
    assert kind.scheme is not None
    ours, slug = "operator-secret", kind.provider.slug
    secrets = signatures.accepted([ours], "tenant-a", slug)

    def proven(secret: str) -> str:
        return signatures.verify(kind.scheme, header(secret), b"{}", secrets, now=NOON, tolerance=300)  # type: ignore[arg-type]

    assert proven(ours) == "shared_secret"
    assert proven(signatures.derived_secret(ours, "tenant-a", slug)) == "shared_secret"
    for wrong in (signatures.derived_secret(ours, "tenant-b", slug), "guess"):
        with pytest.raises(signatures.InvalidSignature):
            proven(wrong)


# -- golden files ----------------------------------------------------------------------------------------


def golden(slug: str) -> list[Any]:
    """The golden files of a provider, one for each kind, as parameters of a test."""
    files = sorted((GOLDEN / slug).glob("*.json"))
    assert files, f"no golden file for {slug}"
    return [pytest.param(file, id=file.stem) for file in files]


def check_golden(file: Path, signals_of: Callable[[Any], Iterable[Signal]]) -> None:
    """C-77: what a provider says means these signals, the first of them of the file's kind."""
    text = json.loads(file.read_text())
    found = [plain(signal) for signal in normal.known(signals_of(text["given"]))]
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        text["signals"] = found
        file.write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n")
    assert found == text["signals"]
    assert file.stem in [signal["kind"] for signal in found]


def plain(signal: Signal) -> dict[str, Any]:
    """A signal as JSON."""
    return {
        "kind": signal.kind,
        "occurred_at": signal.occurred_at.isoformat(),
        "dedupe_key": signal.dedupe_key,
        "payload": signal.payload,
    }
