"""The door of webhooks: what must be passed, in which order, and what nobody may learn there."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import jwt
import pytest

from api.kit import A, B
from connectors.door import ADDRESS, OTHER, SECRET, SHOP_SECRET, TENANT, House, body_of, house, signature
from connectors.servers import github, slack
from holdfast import Settings
from holdfast.apps.connectors import doors, signatures
from holdfast.apps.connectors.doors import Windows, came_from
from holdfast.apps.connectors.metrics import METERS
from holdfast.apps.connectors.signatures import derived_secret
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings

SHOP_URL = f"/api/connectors/webhooks/shop/{A}"
BODY = body_of({"account": "acme", "n": 1})
ACCEPTED = {"status": "accepted"}


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


def said(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.json().get("code")


# -- two ways in -----------------------------------------------------------------------------------------


async def test_a_signed_webhook_comes_in_and_becomes_a_signal(here: House) -> None:
    """C-45: 202, one delivery, one job, and it is processed."""
    link = await here.link(tenant=TENANT, provider="shop", external_id="acme")
    response = await here.deliver_to(SHOP_URL, BODY, **signature(BODY), **{"x-fake-delivery": "d1"})
    assert (response.status_code, response.json()) == (202, ACCEPTED)
    row = await here.delivery("d1")
    assert (row["connection_id"], row["tenant_id"], row["verification"]) == (link.id, TENANT, "signature")
    assert row["payload"] == {"account": "acme", "n": 1}
    await here.work()
    assert await here.keys(link) == ["d1"]


async def test_an_operator_passes_a_webhook_on_without_a_signature(here: House) -> None:
    """C-45: for the tenant of X-Tenant-Id, and the connection of X-Connection-Id if there is one."""
    link = await here.link(tenant=TENANT, provider="shop", external_id="other name")
    operator = here.client("actor")
    for number, headers in enumerate(({}, {"X-Connection-Id": str(link.id)})):
        response = await operator.post(
            "/api/connectors/webhooks/shop",
            json={"n": number},
            headers=headers | {"x-fake-delivery": str(number)},
        )
        assert (response.status_code, response.json()) == (202, ACCEPTED)
    rows = [await here.delivery(str(number)) for number in range(2)]
    assert [row["connection_id"] for row in rows] == [None, link.id]
    assert {row["verification"] for row in rows} == {"operator"}


async def test_an_operators_token_opens_the_public_door_too(here: House) -> None:
    """C-46: before any secret is asked for."""
    link = await here.link(tenant=TENANT, provider="shop")
    operator = here.client("actor")
    response = await operator.post(SHOP_URL, json={}, headers={"X-Connection-Id": str(link.id)})
    assert response.status_code == 202
    (row,) = await here.rows("select * from webhook_delivery")
    assert (row["verification"], row["connection_id"]) == ("operator", link.id)


@pytest.mark.parametrize("who", ["reader", "tenant", "tenant reader", "expired", "revoked"])
async def test_no_other_token_opens_it(here: House, who: str) -> None:
    """C-46: a reader may not act, a tenant is no operator, and what is over is over."""
    assert said(await here.client(who).post(SHOP_URL, json={})) == (401, "INVALID_SIGNATURE")
    status = (await here.client(who).post("/api/connectors/webhooks/shop", json={})).status_code
    assert status == (401 if who in ("expired", "revoked") else 403)
    assert await here.count("webhook_delivery") == 0


async def test_guessing_tokens_at_the_door_is_slowed_down(here: House) -> None:
    """C-72: a wrong token of ours is counted like everywhere else; a shared secret of a provider is not."""
    guesses = [
        await here.client(Authorization=f"Bearer hf_{'x' * 8}_{'x' * 43}").post(SHOP_URL) for _ in range(11)
    ]
    assert [one.status_code for one in guesses] == [401] * 10 + [429]
    others = [await here.client(Authorization="Bearer a-shared-secret").post(SHOP_URL) for _ in range(11)]
    assert {said(one) for one in others} == {(401, "INVALID_SIGNATURE")}


async def test_the_header_that_names_a_connection_is_looked_at(here: House) -> None:
    """C-51: no UUID is 400; an unknown one, another tenant's and another provider's are 404."""
    theirs = await here.link(tenant=OTHER, provider="shop")
    elsewhere = await here.link(tenant=TENANT, provider="ping")
    operator = here.client("actor")
    for text, status in (("x", 400), (str(uuid4()), 404), (str(theirs.id), 404), (str(elsewhere.id), 404)):
        for url in ("/api/connectors/webhooks/shop", SHOP_URL):
            response = await operator.post(url, json={}, headers={"X-Connection-Id": text})
            assert response.status_code == status, (text, url)
            assert status != 400 or response.json()["field"] == "X-Connection-Id"
    assert await here.count("webhook_delivery") == 0


async def test_who_only_signs_cannot_name_a_connection(here: House) -> None:
    """C-51: a provider signs the body, and no header of ours."""
    link = await here.link(tenant=TENANT, provider="shop")
    headers = signature(BODY) | {"X-Connection-Id": str(link.id)}
    assert (await here.deliver_to(SHOP_URL, BODY, **headers)).status_code == 202
    (row,) = await here.rows("select connection_id from webhook_delivery")
    assert row["connection_id"] is None


async def test_a_challenge_is_answered_after_the_signature_check(here: House) -> None:
    """C-45: 200 with the answer, nothing is stored; without a signature nothing is answered."""
    body = body_of({"ping": "hello"})
    assert said(await here.deliver_to(SHOP_URL, body)) == (401, "INVALID_SIGNATURE")
    response = await here.deliver_to(SHOP_URL, body, **signature(body))
    assert (response.status_code, response.json()) == (200, {"pong": "hello"})
    assert await here.count("webhook_delivery") == 0


# -- the order of the checks -----------------------------------------------------------------------------


async def test_the_checks_come_in_their_order(settings: Settings, conn: Connection) -> None:
    """C-46: each request is wrong in everything that comes later, too."""
    secrets = {"github": ProviderSettings(), "slack": ProviderSettings(webhook_secret=SECRET)}
    async with house(
        settings, conn, providers=secrets, webhook_max_bytes=1024, webhook_rate_per_minute=2
    ) as here:
        large, small = b"x" * 1025, b"x"

        async def ask(path: str, body: bytes = large, **headers: str) -> tuple[int, str | None]:
            return said(await here.deliver_to(f"/api/connectors/webhooks/{path}", body, **headers))

        assert await ask("nothing/no-uuid") == (400, "INVALID_INPUT")
        assert await ask(f"nothing/{A}") == (404, "NOT_FOUND")
        assert await ask(f"mute/{A}") == (404, "NOT_FOUND")
        assert await ask(f"zoho-mail/{A}") == (404, "NOT_FOUND")
        operator = {"Authorization": f"Bearer {here.tokens['actor']}"}
        assert await ask(f"github/{A}", small, **operator) == (202, None)
        assert await ask(f"github/{A}") == (401, "NOT_ALLOWED")
        assert await ask(f"slack/{A}") == (413, "TOO_LARGE")
        for _ in range(2):
            assert await ask(f"slack/{A}", small) == (401, "INVALID_SIGNATURE")
        assert await ask(f"slack/{A}", small) == (429, "TOO_MANY_REQUESTS")
        assert await ask(f"slack/{A}", small, **operator) == (202, None)


async def test_a_connector_that_is_not_in_yet_is_501(here: House) -> None:
    """C-46: told before any secret, token or body is looked at."""
    known = {slug: kind for slug, kind in here.service.known.items() if slug != "jira"}
    await here.client().get("/api/connectors/providers")  # makes the desk
    object.__setattr__(here.api.state.connectors_desk.service, "known", known)
    for url in (f"/api/connectors/webhooks/jira/{A}", "/api/connectors/webhooks/jira"):
        response = await here.client("actor").post(url, json={})
        assert said(response) == (501, "WEBHOOKS_NOT_SUPPORTED")
    response = await here.client("actor").post("/api/connectors/connect/jira")
    assert response.status_code == 501


async def test_a_body_over_the_limit_is_413_told_or_counted(settings: Settings, conn: Connection) -> None:
    """C-46: by what it says of itself, and by what comes; for operators as well."""
    async with house(settings, conn, webhook_max_bytes=1024) as here:
        large, fitting = b"x" * 1025, b"x" * 1024

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(41):
                yield b"x" * 25

        for who in (None, "actor"):
            client = here.client(who)
            assert (await client.post(SHOP_URL, content=large)).status_code == 413
            assert (await client.post(SHOP_URL, content=pieces())).status_code == 413
        assert (await here.deliver_to(SHOP_URL, fitting, **signature(fitting))).status_code == 202


def test_gmail_sends_less_than_others(settings: Settings) -> None:
    """2.3: 262144 bytes, unless it is set."""
    assert doors.largest(settings, "gmail") == 262_144
    assert doors.largest(settings, "github") == 1_048_576


async def test_an_unknown_tenant_is_not_found_by_whoever_may_sign(here: House) -> None:
    """C-46: who cannot sign does not learn whether a tenant is there."""
    nobody = uuid4()
    url = f"/api/connectors/webhooks/shop/{nobody}"
    assert said(await here.deliver_to(url, BODY)) == (401, "INVALID_SIGNATURE")
    assert said(await here.deliver_to(url, BODY, **signature(BODY))) == (404, "NOT_FOUND")
    response = await here.client("actor", **{"X-Tenant-Id": str(nobody)}).post(
        "/api/connectors/webhooks/shop", content=BODY
    )
    assert said(response) == (404, "NOT_FOUND")
    assert await here.count("webhook_delivery") == 0


# -- signatures ------------------------------------------------------------------------------------------


async def test_one_changed_byte_of_a_github_body_is_refused(here: House) -> None:
    """C-47: any of them; the right one passes."""
    payload = {"action": "opened", "repository": github.repository()}
    headers, body = github.signed(payload, SECRET, "issues")
    url = f"/api/connectors/webhooks/github/{A}"
    for place in range(0, len(body), 7):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert said(await here.deliver_to(url, changed, **headers)) == (401, "INVALID_SIGNATURE"), place
    assert (await here.deliver_to(url, body, **headers)).status_code == 202
    assert (await here.delivery(headers["x-github-delivery"]))["headers"]["x-github-event"] == "issues"


async def test_one_changed_byte_of_a_slack_body_is_refused(here: House) -> None:
    """C-47: any of them, and of its time."""
    headers, body = slack.signed(slack.callback(slack.message(0)), SECRET, int(time.time()))
    url = f"/api/connectors/webhooks/slack/{A}"
    for place in range(0, len(body), 7):
        changed = body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
        assert said(await here.deliver_to(url, changed, **headers)) == (401, "INVALID_SIGNATURE"), place
    later = headers | {"x-slack-request-timestamp": str(int(headers["x-slack-request-timestamp"]) + 1)}
    assert (await here.deliver_to(url, body, **later)).status_code == 401
    assert (await here.deliver_to(url, body, **headers)).status_code == 202


@pytest.mark.parametrize(("off", "status"), [(-301, 401), (-300, 202), (300, 202), (301, 401)])
async def test_a_slack_request_300_s_old_passes_and_one_of_301_s_does_not(
    here: House, monkeypatch: pytest.MonkeyPatch, off: int, status: int
) -> None:
    """C-47: the bound is included."""
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now

    monkeypatch.setattr(doors, "datetime", Clock)
    headers, body = slack.signed(slack.callback(slack.message(0)), SECRET, int(now.timestamp()) + off)
    response = await here.deliver_to(f"/api/connectors/webhooks/slack/{A}", body, **headers)
    assert response.status_code == status


async def test_slack_asks_whether_anybody_is_there(here: House) -> None:
    """C-45: its challenge comes back, if it is signed."""
    challenge = {
        "type": "url_verification",
        "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
    }
    url = f"/api/connectors/webhooks/slack/{A}"
    headers, body = slack.signed(challenge, SECRET, int(time.time()))
    assert (await here.deliver_to(url, body)).status_code == 401
    response = await here.deliver_to(url, body, **headers)
    assert response.status_code == 200
    assert challenge["challenge"] in response.text


async def test_a_tenant_is_shown_a_secret_that_signs_for_itself_alone(here: House) -> None:
    """C-48: derived from the operator's own, and both verify."""
    mine = (await here.client("tenant").get("/api/connectors/webhook-secrets/shop")).json()
    theirs = (await here.client("other tenant").get("/api/connectors/webhook-secrets/shop")).json()
    assert mine["secret"] == derived_secret(SHOP_SECRET, TENANT, "shop")
    assert mine["path"] == SHOP_URL
    assert (mine["scheme"], mine["secret"] != theirs["secret"]) == ("github", True)
    for secret, status in ((mine["secret"], 202), (SHOP_SECRET, 202), (theirs["secret"], 401)):
        response = await here.deliver_to(SHOP_URL, BODY, **signature(BODY, secret))
        assert response.status_code == status
    (entry,) = await here.rows(
        "select * from holdfast_audit where action = 'webhook secret' and tenant = %s", A
    )
    assert mine["secret"] not in str(entry)


async def test_a_secret_that_is_not_set_is_not_found_and_readers_see_none(here: House) -> None:
    """C-48: a secret is a right to sign, so it is for those who may act."""
    assert (await here.client("tenant").get("/api/connectors/webhook-secrets/jira")).status_code == 404
    assert (await here.client("tenant").get("/api/connectors/webhook-secrets/nothing")).status_code == 404
    assert (await here.client("tenant reader").get("/api/connectors/webhook-secrets/shop")).status_code == 403


async def test_old_secrets_are_accepted_while_they_are_listed(settings: Settings, conn: Connection) -> None:
    """C-48: a secret can be changed without losing what is signed with the one before."""
    own = ProviderSettings(webhook_secret="the new secret", webhook_old_secrets=(SHOP_SECRET,))
    async with house(settings, conn, providers={"shop": own}) as here:
        for secret in ("the new secret", SHOP_SECRET, derived_secret(SHOP_SECRET, TENANT, "shop")):
            assert (await here.deliver_to(SHOP_URL, BODY, **signature(BODY, secret))).status_code == 202
        shown = (await here.client("tenant").get("/api/connectors/webhook-secrets/shop")).json()["secret"]
        assert shown == derived_secret("the new secret", TENANT, "shop")


async def test_a_shared_secret_of_a_provider_is_not_taken_for_a_token_of_ours(
    settings: Settings, conn: Connection
) -> None:
    """C-47: Jira and Zoho Cliq bring theirs in the same header."""
    own = {slug: ProviderSettings(webhook_secret="jira-secret-77") for slug in ("jira", "zoho_cliq")}
    async with house(settings, conn, providers=own) as here:
        for slug in ("jira", "zoho-cliq"):
            url = f"/api/connectors/webhooks/{slug}/{A}"
            for secret, status in (("jira-secret-77", 202), ("jira-secret-78", 401)):
                headers = {"Authorization": f"Bearer {secret}"}
                body = body_of({"message": "hello"})  # what both accept
                assert (await here.deliver_to(url, body, **headers)).status_code == status
        assert {row["verification"] for row in await here.rows("select * from webhook_delivery")} == {
            "shared_secret"
        }
        assert "jira-secret" not in await here.everything()


async def test_googles_token_is_asked_for_its_audience(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-46: without an audience nobody can prove anything (401); with one, the token decides."""
    url = f"/api/connectors/webhooks/gmail/{A}"
    async with house(settings, conn) as here:
        assert said(await here.deliver_to(url, BODY)) == (401, "NOT_ALLOWED")
    await conn.execute("truncate tenants cascade; truncate holdfast_token cascade")
    own = {"gmail": ProviderSettings(webhook_audience="https://app.example")}
    asked: list[str | None] = []

    async def verify(headers: Any, *, audience: str | None, keys: Any = None) -> str:
        asked.append(audience)
        return "oidc"

    async with house(settings, conn, providers=own) as here:
        assert said(await here.deliver_to(url, BODY)) == (401, "INVALID_SIGNATURE")
        monkeypatch.setattr(signatures, "verify_oidc", verify)
        assert (await here.deliver_to(url, BODY)).status_code == 202
        assert asked == ["https://app.example"]


# -- how often -------------------------------------------------------------------------------------------


async def test_the_rate_counts_by_provider_tenant_and_address(settings: Settings, conn: Connection) -> None:
    """C-55: and it is counted before the signature is computed."""
    async with house(settings, conn, webhook_rate_per_minute=3) as here:
        for _ in range(3):
            assert (await here.deliver_to(SHOP_URL, BODY, **signature(BODY))).status_code == 202
        refused = await here.deliver_to(SHOP_URL, BODY, **signature(BODY))
        assert said(refused) == (429, "TOO_MANY_REQUESTS")
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        other = SHOP_URL.replace(A, B)
        assert (await here.deliver_to(other, BODY, **signature(BODY))).status_code == 202
        assert (
            await here.deliver_to(SHOP_URL, BODY, address="203.0.113.10", **signature(BODY))
        ).status_code == 202
        headers, body = github.signed({}, SECRET, "ping")
        assert (await here.deliver_to(SHOP_URL.replace("shop", "github"), body, **headers)).status_code == 202


def test_a_window_is_a_fixed_minute() -> None:
    """C-55: 300 in one, and with the next it begins anew."""
    now = 600.0
    windows = Windows(300, clock=lambda: now)
    for _ in range(300):
        windows.count("shop", A, "x")
    with pytest.raises(doors.TooMany) as caught:
        windows.count("shop", A, "x")
    assert caught.value.wait == 60.0
    now = 659.0
    with pytest.raises(doors.TooMany) as caught:
        windows.count("shop", A, "x")
    assert caught.value.wait == 1.0
    now = 660.0
    windows.count("shop", A, "x")


def test_windows_are_forgotten_not_hoarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """C-55: a thousand addresses fill no memory."""
    monkeypatch.setattr(doors, "KNOWN", 10)
    windows = Windows(1, clock=lambda: 0.0)
    for number in range(100):
        windows.count(str(number))
    assert len(windows._counts) == 10


@pytest.mark.parametrize(
    ("client", "forwarded", "trusted", "found"),
    [
        ("203.0.113.9", ["198.51.100.1"], (), "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.1"], ("10.0.0.0/8",), "203.0.113.9"),
        ("10.0.0.1", ["198.51.100.1"], ("10.0.0.0/8",), "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], ("10.0.0.0/8",), "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1, 10.0.0.2"], ("10.0.0.0/8",), "198.51.100.1"),
        ("10.0.0.1", ["rubbish"], ("10.0.0.0/8",), "rubbish"),
        ("10.0.0.1", [], ("10.0.0.0/8",), "10.0.0.1"),
        ("::1", ["2001:db8::7"], ("::1/128",), "2001:db8::7"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], ("10.0.0.0/8",), "198.51.100.1"),
    ],
)
def test_a_forwarded_address_counts_only_behind_our_proxies(
    client: str, forwarded: list[str], trusted: tuple[str, ...], found: str
) -> None:
    """C-55: read from our side, so that nobody writes an address for himself."""
    headers = [(b"x-forwarded-for", text.encode()) for text in forwarded]
    request = doors.Request({"type": "http", "client": (client, 1), "headers": headers})
    assert came_from(request, trusted) == found


async def test_one_house_of_ipv6_is_one_address(here: House) -> None:
    """C-55: whoever has a network of addresses has no network of rates."""
    desk = doors.Desk(here.service)
    assert desk.hashed("2001:db8::1") == desk.hashed("2001:db8::ffff")
    assert desk.hashed("2001:db8::1") != desk.hashed("2001:db8:0:1::1")
    assert desk.hashed("::ffff:203.0.113.9") == desk.hashed("203.0.113.9")
    assert ADDRESS not in desk.hashed(ADDRESS)
    assert doors.Desk(here.service).hashed(ADDRESS) != desk.hashed(ADDRESS)


# -- what comes in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"", b"not json", b"\xff\xfe", b"{", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
async def test_a_body_that_is_no_json_but_rightly_signed_is_stored_without_a_payload(
    here: House, body: bytes
) -> None:
    """Section 4: 202, payload null, and no signal."""
    await here.link(tenant=TENANT, provider="shop")
    assert (await here.deliver_to(SHOP_URL, body, **signature(body))).status_code == 202
    (row,) = await here.rows("select * from webhook_delivery")
    assert (row["payload"], row["connection_id"]) == (None, None)
    await here.work()
    assert await here.count("signals") == 0


@pytest.mark.parametrize(
    "text",
    ['{"a":"\\u0000b"}', '{"a":"\\ud800"}', '{"a":1e999}', '{"a":NaN}', '{"account":"\\u0000"}', "3", '"x"'],
)
async def test_odd_json_comes_in_and_can_be_shown(here: House, text: str) -> None:
    """C-52: nothing that PostgreSQL or JSON cannot say is in the way."""
    body = text.encode()
    assert (await here.deliver_to(SHOP_URL, body, **signature(body))).status_code == 202
    reader = here.client("tenant")
    (one,) = (await reader.get("/api/connectors/deliveries")).json()["deliveries"]
    whole = await reader.get(f"/api/connectors/deliveries/shop/{one['delivery_id']}")
    assert whole.status_code == 200
    assert json.dumps(whole.json())


async def test_github_may_send_its_payload_as_a_form(here: House) -> None:
    """C-52: as GitHub does unless it is told otherwise; what is signed are the raw bytes."""
    body = httpx.QueryParams(payload='{"account":"acme"}').__str__().encode()
    headers = signature(body) | {"content-type": "application/x-www-form-urlencoded", "x-fake-delivery": "f"}
    assert (await here.deliver_to(SHOP_URL, body, **headers)).status_code == 202
    assert (await here.delivery("f"))["payload"] == {"account": "acme"}


async def test_an_id_that_no_index_can_hold_is_hashed(here: House) -> None:
    """C-50: whoever sends may write what they like there."""
    for name in ("x" * 5000, "a b", 'quote"', "fine-1:2/3"):
        headers = signature(BODY) | {"x-fake-delivery": name}
        assert (await here.deliver_to(SHOP_URL, BODY, **headers)).status_code == 202
    ids = [row["delivery_id"] for row in await here.rows("select delivery_id from webhook_delivery")]
    assert "fine-1:2/3" in ids
    assert sorted(len(one) for one in ids) == [10, 64, 64, 64]


async def test_the_same_webhook_twice_is_told_the_same(here: House) -> None:
    """C-50: 202, and nothing changes."""
    headers = signature(BODY) | {"x-fake-delivery": "d"}
    answers = [await here.deliver_to(SHOP_URL, BODY, **headers) for _ in range(2)]
    assert [(one.status_code, one.json()) for one in answers] == [(202, ACCEPTED)] * 2
    assert await here.count("webhook_delivery") == 1


async def test_two_connections_that_fit_are_none(here: House) -> None:
    """C-51: it is never guessed, and can be matched by metadata.webhook.external_ids."""
    metadata = {"webhook": {"external_ids": ["acme"]}}
    first = await here.link(tenant=TENANT, provider="shop", external_id="one", metadata=metadata)
    await here.deliver_to(SHOP_URL, BODY, **signature(BODY), **{"x-fake-delivery": "d1"})
    await here.link(tenant=TENANT, provider="shop", external_id="acme")
    await here.deliver_to(SHOP_URL, BODY, **signature(BODY), **{"x-fake-delivery": "d2"})
    assert [(await here.delivery(one))["connection_id"] for one in ("d1", "d2")] == [first.id, None]


# -- what nobody may learn -------------------------------------------------------------------------------


async def test_no_secret_signature_or_address_is_logged_stored_or_told(
    here: House, caplog: pytest.LogCaptureFixture
) -> None:
    """C-55: whether it is right or wrong."""
    caplog.set_level(logging.DEBUG)
    right = signature(BODY)
    wrong = signature(BODY, "somebody else's secret")
    answers = [await here.deliver_to(SHOP_URL, BODY, **headers) for headers in (right, wrong, {})]
    answers.append(await here.client("admin").get("/metrics"))
    answers.append(await here.client("tenant").get("/api/connectors/deliveries"))
    words = "\n".join([caplog.text, *(one.text for one in answers), await here.everything()])
    secret = derived_secret(SHOP_SECRET, TENANT, "shop")
    for mark in (
        SHOP_SECRET,
        secret,
        right["x-hub-signature-256"][7:],
        wrong["x-hub-signature-256"][7:],
        ADDRESS,
    ):
        assert mark not in words


async def test_proofs_are_counted_by_provider_and_reason(here: House) -> None:
    """C-55: success, failure, replay and how long it took."""

    async def told() -> dict[str, float]:
        lines = (
            (await here.client("admin")).text if False else (await here.client("admin").get("/metrics")).text
        )
        pairs = (line.rsplit(" ", 1) for line in lines.splitlines() if line.startswith("signature_"))
        return {name: float(value) for name, value in pairs}

    before = await told()
    await here.deliver_to(SHOP_URL, BODY, **signature(BODY))
    await here.deliver_to(SHOP_URL, BODY)
    await here.deliver_to(SHOP_URL, BODY, **{"x-hub-signature-256": "sha256=x"})
    await here.deliver_to(SHOP_URL, BODY, **signature(BODY, "wrong one"))
    headers, body = slack.signed({}, SECRET, int(time.time()) - 1000)
    await here.deliver_to(SHOP_URL.replace("shop", "slack"), body, **headers)
    after = await told()
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    counts = {name: value for name, value in grown.items() if "_total" in name}
    assert counts == {
        'signature_verification_success_total{provider="shop",way="signature"}': 1,
        'signature_verification_failure_total{provider="shop",reason="missing"}': 1,
        'signature_verification_failure_total{provider="shop",reason="malformed"}': 1,
        'signature_verification_failure_total{provider="shop",reason="wrong"}': 1,
        'signature_verification_failure_total{provider="slack",reason="replay"}': 1,
        'signature_verification_replay_reject_total{provider="slack"}': 1,
    }
    assert grown['signature_verification_seconds_count{provider="shop"}'] == 4
    assert METERS.successes["shop", "signature"] >= 1


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(here: House) -> None:
    """C-46: half a body is no body."""

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": SHOP_URL,
        "raw_path": SHOP_URL.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": (ADDRESS, 1),
        "server": ("doors", 80),
        "scheme": "http",
        "app": here.api,
    }
    async with asyncio.timeout(10):
        await here.api(scope, receive, send)
    assert sent[0]["status"] == 400
    assert await here.count("webhook_delivery") == 0


async def test_an_operators_jwt_opens_the_door_where_providers_bring_no_tokens(
    settings: Settings, conn: Connection
) -> None:
    """C-46: where they do, a token in that header is the provider's proof, and nothing of ours is asked."""
    secret = "only operators and the server know it"
    claims = {"sub": "ops", "scope": "act", "operator": True, "exp": int(time.time()) + 3600}
    bearer = {"Authorization": f"Bearer {jwt.encode(claims, secret, 'HS256')}"}
    own = {"jira": ProviderSettings(webhook_secret="jira-secret-77")}
    async with house(settings, conn, jwt_secret=secret, providers=own) as here:
        assert (await here.deliver_to(SHOP_URL, BODY, **bearer)).status_code == 202
        response = await here.deliver_to(SHOP_URL.replace("shop", "jira"), BODY, **bearer)
        assert said(response) == (401, "INVALID_SIGNATURE")
        passed_on = await here.client(None, **bearer, **{"X-Tenant-Id": A}).post(
            "/api/connectors/webhooks/jira", content=BODY
        )
        assert passed_on.status_code == 202
