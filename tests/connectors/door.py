"""What the tests of the doors share: an open app, its API without a network, and everybody's tokens."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx

from api.kit import A, B, api_of, make_tokens
from connectors.kit import KEY, Script, Stage, fake
from holdfast import Holdfast, Settings
from holdfast.apps.connectors import catalogue, tenants
from holdfast.apps.connectors.app import app as connectors_app
from holdfast.apps.connectors.protocol import AuthRequest, Connector, Grant, Json, Provider
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings

TENANT, OTHER = UUID(A), UUID(B)
SECRET, SHOP_SECRET = "a secret of github's webhooks", "a secret of the shop's webhooks"
REDIRECT = "https://app.example/api/connectors/callback/shop"
SHOP = Provider(slug="shop", display_name="Shop", auth_type="oauth2", scopes=("read", "write"))
PING = Provider(slug="ping", display_name="Ping", auth_type="webhook-only")
MUTE = Provider(slug="mute", display_name="Mute", auth_type="oauth2", webhooks=False)
ADDRESS = "203.0.113.9"


class Trade(Script):
    """What the shop does when it is asked for an authorisation."""

    def __init__(self) -> None:
        super().__init__()
        self.grants_given: list[Any] = []  # a Grant to give, or an error to raise
        self.url: Any = None  # instead of the right address
        self.asked: list[AuthRequest] = []
        self.codes: list[str] = []
        self.revoked: list[str] = []


def connectors(trade: Trade) -> Sequence[type[Connector]]:
    """The shop, which can do everything; one that only sends webhooks; one that sends none."""

    class Shop(fake(trade, SHOP)):
        scheme = "github"

        async def authorize_url(self, request: AuthRequest) -> str:
            trade.asked.append(request)
            if isinstance(trade.url, Exception):
                raise trade.url
            shown = httpx.QueryParams(state=request.state, code_challenge=request.code_challenge)
            return trade.url or f"https://shop.example/authorize?{shown}"

        async def exchange(self, code: str, request: AuthRequest) -> Grant:
            trade.codes.append(code)
            trade.asked.append(request)
            step = trade.grants_given.pop(0) if trade.grants_given else given()
            if isinstance(step, Exception):
                raise step
            return step

        async def revoke(self, access_token: str) -> None:
            trade.revoked.append(access_token)

        def challenge(self, payload: Json) -> Json | None:
            asked = isinstance(payload, dict) and payload.get("ping")
            return {"pong": asked} if asked else None

    return Shop, fake(trade, PING), fake(trade, MUTE)


def given(external_id: str = "shop-1", **more: Any) -> Grant:
    """What the shop gives for a code."""
    found = {"access_token": "at-4711", "refresh_token": "rt-4712", "expires_in": 3600, **more}
    return Grant(external_id=external_id, **found)


class House(Stage):
    """A stage with doors: the API of its app, and two tenants that are there already."""

    def __init__(self, app: Holdfast, conn: Connection, trade: Trade, tokens: dict[str, str]) -> None:
        super().__init__(app, conn, trade)
        self.trade, self.tokens = trade, tokens
        self.api = api_of(app)
        self.clients: list[httpx.AsyncClient] = []

    def client(self, who: str | None = None, *, address: str = ADDRESS, **headers: str) -> httpx.AsyncClient:
        """Somebody at the door: with this token, or with none; operators are within tenant A."""
        if who is not None:
            headers["Authorization"] = f"Bearer {self.tokens[who]}"
        if who in ("reader", "actor", "admin"):
            headers.setdefault("X-Tenant-Id", A)
        transport = httpx.ASGITransport(self.api, raise_app_exceptions=False, client=(address, 4711))
        client = httpx.AsyncClient(transport=transport, base_url="http://doors", headers=headers)
        self.clients.append(client)
        return client

    async def deliver_to(
        self, url: str, body: bytes, *, address: str = ADDRESS, **headers: str
    ) -> httpx.Response:
        """A webhook as a provider sends it."""
        return await self.client(address=address).post(url, content=body, headers=headers)

    async def count(self, table: str) -> int:
        (row,) = await self.rows(f"select count(*) as n from {table}")
        return row["n"]


def body_of(payload: Any) -> bytes:
    return json.dumps(payload).encode()


def signature(body: bytes, secret: str = SHOP_SECRET) -> dict[str, str]:
    """The header by which the shop, or GitHub, proves a body."""
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}"}


def outfitted(settings: Settings, **more: Any) -> Settings:
    """Settings with everything that connecting and webhooks need."""
    given = {
        "github": ProviderSettings(webhook_secret=SECRET),
        "slack": ProviderSettings(webhook_secret=SECRET),
        "shop": ProviderSettings(client_id="c-1", client_secret="c-secret-1", webhook_secret=SHOP_SECRET),
        "ping": ProviderSettings(webhook_secret=SHOP_SECRET),
        "mute": ProviderSettings(client_id="c-2"),
    }
    providers = given | dict(settings.providers) | more.pop("providers", {})
    found = {"crypto_key": KEY, "api_rate": 100_000, "oauth_redirect_uris": (REDIRECT,), **more}
    return replace(settings, providers=providers, **found)


@asynccontextmanager
async def house(settings: Settings, conn: Connection, **more: Any) -> AsyncIterator[House]:
    """A house on the test's database."""
    trade, settings = Trade(), outfitted(settings, **more)
    for provider in (SHOP, PING, MUTE):
        await catalogue.upsert(conn, provider)
    for tenant, name in ((TENANT, "A"), (OTHER, "B")):
        await tenants.create(conn, name, id=tenant)
    tokens = await make_tokens(conn)
    async with Holdfast(settings, apps=[connectors_app(*connectors(trade))]) as app:
        found = House(app, conn, trade, tokens)
        try:
            yield found
        finally:
            for client in found.clients:
                await client.aclose()
