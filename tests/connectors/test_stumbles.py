"""What providers and senders write that nobody expects is stored or refused, and never a fault of ours."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from api.kit import A
from connectors.door import TENANT, House, body_of, house, signature
from holdfast import Settings
from holdfast.apps.connectors import doors
from holdfast.apps.connectors.doors import Windows
from holdfast.apps.connectors.http import LONGEST_LIFE, Http, granted
from holdfast.apps.connectors.protocol import Transient
from holdfast.apps.connectors.providers.slack import Slack
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings

URL = "/api/connectors/webhooks/shop/"
BODY = body_of({"account": "acme"})
FORGED = {"x-hub-signature-256": "sha256=" + "0" * 64}


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


# -- how often -------------------------------------------------------------------------------------------


async def test_who_invents_tenants_is_counted_by_address_before_the_body_is_read(
    settings: Settings, conn: Connection
) -> None:
    """C-55: ten times the rate of one tenant; another address is not concerned, nor what proves itself."""
    async with house(settings, conn, webhook_rate_per_minute=2) as here:
        for _ in range(30):
            proved = await here.deliver_to(URL + str(uuid4()), BODY, **signature(BODY))
            assert proved.status_code == 404  # no such tenant
        codes = [(await here.deliver_to(URL + str(uuid4()), BODY, **FORGED)).status_code for _ in range(22)]
        assert codes == [401] * 20 + [429] * 2
        large = {"content-length": "1500000"}
        assert (await here.deliver_to(URL + A, BODY, **FORGED, **large)).status_code == 429
        other = await here.deliver_to(URL + A, BODY, address="203.0.113.10", **signature(BODY))
        assert other.status_code == 202


def test_invented_keys_push_out_no_window_that_has_proved_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-55: else whoever invents enough of them begins anew."""
    monkeypatch.setattr(doors, "KNOWN", 10)
    windows = Windows(1, clock=lambda: 0.0)
    windows.count("shop", A, "x")
    windows.prove("shop", A, "x")
    for number in range(100):
        windows.count("shop", str(number), "x")
    with pytest.raises(doors.TooMany):
        windows.count("shop", A, "x")
    for number in range(100):
        windows.count("ping", str(number), "x")
        windows.prove("ping", str(number), "x")
    assert len(windows._counts) <= 10
    assert len(windows._proved) == 10


# -- what a connector cannot read ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["challenge", "external_ids", "delivery_id"])
async def test_a_delivery_over_which_its_connector_stumbles_is_stored(
    here: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """C-50..C-52: by the hash of its bytes; of the error the class is told, and not what it quotes."""

    def stumble(*_: Any) -> Any:
        raise LookupError("the private letter")

    await here.link(tenant=TENANT, provider="shop", external_id="acme")
    monkeypatch.setattr(here.service.known["shop"], method, stumble)
    with caplog.at_level(logging.WARNING, "holdfast.connectors"):
        assert (await here.deliver_to(URL + A, BODY, **signature(BODY))).status_code == 202
    (row,) = await here.rows("select * from webhook_delivery")
    assert (row["connection_id"] is None) == (method == "external_ids")
    assert row["delivery_id"] == hashlib.sha256(BODY).hexdigest()
    assert "LookupError" in caplog.text
    assert "private" not in caplog.text


@pytest.mark.parametrize("answer", ["\ud800", float("inf"), {"a": [float("nan")]}, object()])
async def test_a_challenge_that_cannot_be_answered_is_stored(
    here: House, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """C-45, C-52"""
    monkeypatch.setattr(here.service.known["shop"], "challenge", lambda *_: answer)
    assert (await here.deliver_to(URL + A, BODY, **signature(BODY))).status_code == 202
    assert len(await here.rows("select * from webhook_delivery")) == 1


@pytest.mark.parametrize("names", [5, [5, None, ["acme"]], None])
async def test_names_that_are_none_match_nothing(
    here: House, monkeypatch: pytest.MonkeyPatch, names: Any
) -> None:
    """C-51: neither when it comes, nor when it is matched once more."""
    await here.link(tenant=TENANT, provider="shop", external_id="acme")
    monkeypatch.setattr(here.service.known["shop"], "external_ids", lambda *_: names)
    assert (await here.deliver_to(URL + A, BODY, **signature(BODY))).status_code == 202
    body = {"provider": "shop", "received_after": "2020-01-01T00:00:00Z"}
    answer = await here.client("actor").post("/api/connectors/deliveries/replay", json=body)
    assert (answer.status_code, answer.json()) == (200, {"deliveries": 0, "unmatched": 1})


@pytest.mark.parametrize("told", [5, "T1", {"team_id": "T1"}, [5, None, {"team_id": 5}]])
def test_slacks_authorizations_may_be_anything(told: Any) -> None:
    """C-51"""
    connector = Slack(None, ProviderSettings())
    found = connector.external_ids({}, {"team_id": "T9", "authorizations": told})
    assert found in (("T9",), ())


# -- tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["access_token", "refresh_token"])
async def test_a_token_that_has_no_bytes_is_an_answer_that_nobody_can_read(name: str) -> None:
    """C-59: JSON can write half a character, which no header and no cipher takes."""
    body = json.dumps({"access_token": "a", "refresh_token": "r", name: "a\ud800"}).encode()
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=body))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(Transient, match="nobody can read"):
            await Http(client, "shop").grant("https://shop.example/token", {})


@pytest.mark.parametrize(
    ("told", "life"),
    [("9" * 5000, LONGEST_LIFE), ("3600", 3600), ("0", None), ("x", None), (1e999, LONGEST_LIFE)],
)
def test_a_life_without_measure_is_bounded(told: Any, life: int | None) -> None:
    """C-65"""
    assert granted({"access_token": "a", "expires_in": told}).expires_in == life
