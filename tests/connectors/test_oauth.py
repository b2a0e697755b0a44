"""Connecting by OAuth: the way there, the way back, and everything that may come back instead."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from api.kit import A
from connectors.door import OTHER, REDIRECT, TENANT, House, given, house
from connectors.servers.github import CLIENT, GitHubServer
from holdfast import Settings
from holdfast.api.caller import Caller
from holdfast.apps.connectors import connections, oauth
from holdfast.apps.connectors.oauth import challenge
from holdfast.apps.connectors.personal import connect_by_token
from holdfast.apps.connectors.protocol import Permanent, RateLimited, Transient, Unsupported
from holdfast.apps.connectors.service import Connectors
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings
from holdfast.errors import InvalidInput, NotFound, NotSupported, ProviderError

START = "/api/connectors/connect/shop"
BACK = "/api/connectors/callback/shop"


@pytest.fixture
async def here(settings: Settings, conn: Connection) -> AsyncIterator[House]:
    async with house(settings, conn) as here:
        yield here


async def state(here: House, tenant: Any = TENANT) -> str:
    """A state that was just given out."""
    url = await oauth.start(here.service, tenant, "shop")
    return httpx.URL(url).params["state"]


async def back(here: House, **params: str) -> httpx.Response:
    return await here.client().get(BACK, params=params)


def wrong(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json().get("details")


# -- there -----------------------------------------------------------------------------------------------


async def test_the_way_there_has_a_state_and_a_challenge(here: House) -> None:
    """C-63: state of 32 random bytes, PKCE by S256, and the row that remembers both for ten minutes."""
    response = await here.client("tenant").post(START)
    url = httpx.URL(response.json()["authorize_url"])
    assert (url.scheme, url.fragment, len(str(url)) <= 2048) == ("https", "", True)
    text = url.params["state"]
    assert len(base64.urlsafe_b64decode(text + "=")) == 32
    (row,) = await here.rows("select *, expires_at - created_at as kept from oauth_states")
    assert (row["tenant_id"], row["provider"], row["state"]) == (TENANT, "shop", text)
    assert (row["kept"].total_seconds(), row["consumed_at"], row["redirect_uri"]) == (600, None, REDIRECT)
    assert url.params["code_challenge"] == challenge(row["code_verifier"])
    assert 43 <= len(row["code_verifier"]) <= 128
    (asked,) = here.trade.asked
    assert (asked.redirect_uri, asked.scopes) == (REDIRECT, ("read", "write"))
    assert row["code_verifier"] not in repr(asked)
    assert await state(here) != text


async def test_a_failure_on_the_way_there_leaves_no_row(here: House) -> None:
    """C-63: the row and the address come from one transaction."""
    bad: list[tuple[Any, type[Exception]]] = [
        (Transient(message="shop is away"), ProviderError),
        (Unsupported(message="shop cannot"), NotSupported),
        ("http://shop.example/authorize", ProviderError),
        ("https://shop.example/authorize#part", ProviderError),
        ("https://shop.example/" + "x" * 2048, ProviderError),
        ("javascript:alert(1)", ProviderError),
    ]
    for url, error in bad:
        here.trade.url = url
        with pytest.raises(error):
            await oauth.start(here.service, TENANT, "shop")
    assert await here.count("oauth_states") == 0


async def test_a_redirect_must_be_in_the_allow_list_to_the_letter(
    settings: Settings, conn: Connection
) -> None:
    """C-63: without one, the one that is made for the provider, else the first."""
    uris = ("https://app.example/one", "https://app.example/callback/shop")
    async with house(settings, conn, oauth_redirect_uris=uris) as here:
        for asked, used in ((None, uris[1]), (uris[0], uris[0])):
            await oauth.start(here.service, TENANT, "shop", asked)
            assert here.trade.asked[-1].redirect_uri == used
        for asked in ("https://app.example/one/", "https://evil.example", "https://app.example/one?x=1", ""):
            with pytest.raises(InvalidInput, match="redirect_uri"):
                await oauth.start(here.service, TENANT, "shop", asked)


async def test_without_an_allow_list_nobody_is_sent_anywhere(settings: Settings, conn: Connection) -> None:
    """C-63: the message says what to set."""
    async with house(settings, conn, oauth_redirect_uris=()) as here:
        with pytest.raises(InvalidInput, match="HOLDFAST_OAUTH_REDIRECT_URIS"):
            await oauth.start(here.service, TENANT, "shop")


async def test_a_provider_that_cannot_be_connected_says_why(settings: Settings, conn: Connection) -> None:
    """C-66: webhook-only is 400 with the way to do it, unknown is 404, not set up is 501."""
    async with house(settings, conn, providers={"shop": ProviderSettings()}) as here:
        for name, status, word in (
            ("ping", 400, "webhook"),
            ("zoho-cliq", 400, "POST /api/connectors/connections"),
            ("nothing", 404, "nothing"),
            ("shop", 501, "HOLDFAST_OAUTH_SHOP_CLIENT_ID"),
        ):
            for method, path in (("POST", "connect"), ("GET", "callback")):
                response = await here.client("tenant").request(method, f"/api/connectors/{path}/{name}")
                assert response.status_code == status, (name, path)
                assert word in response.json()["detail"]


async def test_a_tenant_that_there_is_not_cannot_connect(here: House) -> None:
    """C-63: and nothing is left of it."""
    with pytest.raises(NotFound, match="tenant"):
        await oauth.start(here.service, uuid4(), "shop")
    assert await here.count("oauth_states") == 0


# -- and back --------------------------------------------------------------------------------------------


async def test_the_way_back_stores_sealed_tokens(here: House) -> None:
    """C-65: and answers with the connection; nothing tells a token."""
    response = await back(here, state=await state(here), code="c-1")
    assert response.status_code == 200
    told = response.json()["connection"]
    assert set(told) == {"id", "provider", "expires_at", "metadata"}
    (link,) = (await connections.listing(here.conn, TENANT)).items
    assert (str(link.id), link.provider, link.external_id) == (told["id"], "shop", "shop-1")
    assert here.opened(link, link.access) == "at-4711"
    assert here.opened(link, link.refresh) == "rt-4712"
    (row,) = await here.rows("select expires_at - now() as left from connections")
    assert 3500 < row["left"].total_seconds() <= 3600
    asked_there, asked_back = here.trade.asked
    assert asked_back.code_verifier == asked_there.code_verifier
    assert asked_back.redirect_uri == asked_there.redirect_uri
    assert here.trade.codes == ["c-1"]
    (entry,) = await here.rows("select * from holdfast_audit where action = 'connection connect'")
    assert (entry["tenant"], entry["row_id"]) == (A, told["id"])


async def test_a_token_without_an_end_has_none(here: House) -> None:
    """C-65: `expires_at` is null, and left out of nothing else."""
    here.trade.grants_given = [given(expires_in=None, refresh_token=None)]
    told = (await back(here, state=await state(here), code="c")).json()["connection"]
    assert told["expires_at"] is None
    (link,) = (await connections.listing(here.conn, TENANT)).items
    assert (link.expires_at, link.refresh) == (None, None)


async def test_connecting_again_updates(here: House) -> None:
    """C-65: the same connection, active again, with new tokens; its cursor is kept."""
    first = (await back(here, state=await state(here), code="c")).json()["connection"]
    link = (await connections.listing(here.conn, TENANT)).items[0]
    await connections.merge_sync(here.conn, link.id, {"cursor": {"n": 7}})
    await connections.update_tokens_status(here.conn, link.id, status="revoked", access=None)
    here.trade.grants_given = [given(access_token="at-new", metadata={"login": "ana"})]
    again = (await back(here, state=await state(here), code="c")).json()["connection"]
    assert again["id"] == first["id"]
    now = await here.now(link)
    assert (now.status, here.opened(now, now.access)) == ("active", "at-new")
    assert (now.metadata["sync"]["cursor"], now.metadata["login"]) == ({"n": 7}, "ana")
    assert await here.count("connections") == 1


async def test_two_tenants_may_connect_the_same_account(here: House) -> None:
    """C-11: each has its own connection and its own sealed tokens."""
    for tenant in (TENANT, OTHER):
        assert (await back(here, state=await state(here, tenant), code="c")).status_code == 200
    one, other = (await here.rows("select * from connections"))[:2]
    assert one["access_token_ciphertext"] != other["access_token_ciphertext"]


async def test_used_old_and_unknown_states_are_told_apart(here: House) -> None:
    """C-64: all 400, with an error type for programs."""
    used, old = await state(here), await state(here)
    assert (await back(here, state=used, code="c")).status_code == 200
    await here.conn.execute(
        "update oauth_states set expires_at = now() - interval '1 second' where state = %s", (old,)
    )
    other_provider = await here.client().get(
        "/api/connectors/callback/mute", params={"state": old, "code": "c"}
    )
    assert wrong(other_provider)[1]["error_type"] == "csrf_validation_failed"
    for params, kind in (
        ({"state": used, "code": "c"}, "state_reused"),
        ({"state": old, "code": "c"}, "state_expired"),
        ({"state": old, "code": "c"}, "state_reused"),
        ({"state": "x" * 43, "code": "c"}, "csrf_validation_failed"),
        ({"state": "", "code": "c"}, "csrf_validation_failed"),
        ({"code": "c"}, "csrf_validation_failed"),
        ({"state": "a\x00b", "code": "c"}, "csrf_validation_failed"),
    ):
        status, details = wrong(await back(here, **params))
        assert (status, details["error_type"]) == (400, kind), params
    assert here.trade.codes == ["c"]
    assert await here.count("connections") == 1


async def test_a_state_works_once_even_when_the_provider_reports_an_error(here: House) -> None:
    """C-64: it is used up first; the provider's word comes back, and nothing that is no word."""
    text = await state(here)
    status, details = wrong(await back(here, state=text, error="access_denied"))
    assert (status, details) == (400, {"provider_error": "access_denied"})
    assert wrong(await back(here, state=text, code="c"))[1]["error_type"] == "state_reused"
    odd = await back(here, state=await state(here), error="<script>alert(1)</script>")
    assert odd.json()["details"] == {"provider_error": "unreadable"}
    assert "script" not in odd.text
    assert await here.count("connections") == 0


async def test_no_code_is_400_and_the_state_is_used_up(here: House) -> None:
    """Section 4: callback without a code."""
    text = await state(here)
    assert wrong(await back(here, state=text)) == (400, {"error_type": "code_missing"})
    assert wrong(await back(here, state=text, code="c"))[1]["error_type"] == "state_reused"


async def test_a_state_is_used_up_also_where_the_provider_cannot_be_connected_any_more(
    here: House,
) -> None:
    """C-64: before anything else is looked at; the settings were taken away meanwhile."""
    text = await state(here)
    bare: Any = SimpleNamespace(
        settings=replace(here.service.settings, providers={}),
        stores=here.app.stores,
        database=here.app.database,
        apps=here.app.apps,
    )
    with pytest.raises(NotSupported, match="CLIENT_ID"):
        await oauth.finish(Connectors.of(bare), "shop", {"state": text, "code": "c"})
    assert wrong(await back(here, state=text, code="c"))[1]["error_type"] == "state_reused"


@pytest.mark.parametrize(
    ("answer", "status"), [((400, {"error": "invalid_grant"}), 400), ((500, {}), 500), ((429, {}), 429)]
)
async def test_a_refused_code_tells_the_status_of_the_provider(
    settings: Settings, conn: Connection, answer: tuple[int, Any], status: int
) -> None:
    """C-67: PROVIDER_ERROR 502 {provider, status}."""
    with GitHubServer() as server:
        own = ProviderSettings(
            client_id=CLIENT[0], client_secret=CLIENT[1], api_url=server.url, auth_url=server.url
        )
        async with house(settings, conn, providers={"github": own}) as here:
            url = await oauth.start(here.service, TENANT, "github")
            server.fail_next(answer[0], body=answer[1])
            params = {"state": httpx.URL(url).params["state"], "code": "c"}
            response = await here.client().get("/api/connectors/callback/github", params=params)
            assert wrong(response) == (502, {"provider": "github", "status": status})


async def test_of_two_callbacks_at_once_one_is_served(here: House) -> None:
    """C-64: atomically and once."""
    text = await state(here)
    answers = await asyncio.gather(*(back(here, state=text, code="c") for _ in range(8)))
    assert sorted(one.status_code for one in answers) == [200, *[400] * 7]
    assert {one.json()["details"]["error_type"] for one in answers if one.status_code == 400} == {
        "state_reused"
    }
    assert here.trade.codes == ["c"]


@pytest.mark.parametrize(
    "error",
    [
        Permanent(message="shop answered 400 to POST /token"),
        Transient(message="shop answered 500 to POST /token"),
        RateLimited(message="shop answered 429 to POST /token", retry_after_seconds=7),
    ],
)
async def test_a_provider_that_refuses_the_code_is_502_and_there_is_no_connection(
    here: House, error: Exception
) -> None:
    """Section 4: PROVIDER_ERROR, which names the provider."""
    here.trade.grants_given = [error]
    response = await back(here, state=await state(here), code="c")
    assert (response.status_code, response.json()["code"]) == (502, "PROVIDER_ERROR")
    assert response.json()["details"]["provider"] == "shop"
    assert await here.count("connections") == 0


async def test_a_grant_without_an_account_is_nonsense(here: House) -> None:
    """Section 4: 502, and no connection."""
    here.trade.grants_given = [given(external_id="")]
    assert (await back(here, state=await state(here), code="c")).status_code == 502
    assert await here.count("connections") == 0


async def test_github_there_and_back(settings: Settings, conn: Connection) -> None:
    """C-63, C-65: against a server that checks the challenge."""
    with GitHubServer() as server:
        own = ProviderSettings(
            client_id=CLIENT[0], client_secret=CLIENT[1], api_url=server.url, auth_url=server.url
        )
        async with house(settings, conn, providers={"github": own}) as here:
            url = (await here.client("tenant").post("/api/connectors/connect/github")).json()["authorize_url"]
            shown = httpx.URL(url).params
            server.codes["c-7"] = shown["code_challenge"]
            answer = await here.client().get(
                "/api/connectors/callback/github", params={"state": shown["state"], "code": "c-7"}
            )
            assert answer.status_code == 200, answer.text
            (link,) = (await connections.listing(conn, TENANT)).items
            assert (link.provider, link.external_id, link.display_name) == ("github", "583231", "octocat")
            assert here.opened(link, link.access) == "ghu_1"
            again = await here.client().get(
                "/api/connectors/callback/github", params={"state": shown["state"], "code": "c-7"}
            )
            assert wrong(again)[1]["error_type"] == "state_reused"


async def test_a_new_connection_syncs_at_once_by_oauth_and_by_token(here: House) -> None:
    """The worker here does no tick. Connected again before its next time, an account gets no second job."""
    here.trade.grants_given = [given(), given(access_token="at-4713")]
    await back(here, state=await state(here), code="c-1")
    actor = Caller(who="ana", scope="act", tenant=str(TENANT))
    await connect_by_token(
        here.service, here.conn, actor, TENANT, provider="shop", external_id="shop-2", token="at-5"
    )
    await here.work()
    ran = "select c.external_id, j.status, j.job_type, j.scheduled_at <= j.started_at as at_once"
    joined = " from sync_jobs as j join connections as c on c.id = j.connection_id order by 1"
    done = {"status": "succeeded", "job_type": "incremental", "at_once": True}
    assert await here.rows(ran + joined) == [{"external_id": f"shop-{n}", **done} for n in (1, 2)]
    (link, _) = (await connections.listing(here.conn, TENANT)).items
    sync = await here.sync_of(link)
    assert datetime.fromisoformat(sync["next_run_at"]) == link.created_at + timedelta(seconds=900)
    assert sync["last_jitter_seconds"] == 0
    await back(here, state=await state(here), code="c-2")
    assert len(await here.jobs(link)) == 1


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def test_a_browser_gets_a_page_from_the_callback_and_a_program_gets_json(here: House) -> None:
    """The same request with another Accept header; the page quotes names as text and no code."""
    here.api = here.app.web()  # pages need the dashboard's templates
    browser = here.client(Accept=BROWSER)
    here.trade.grants_given = [given(display_name="<b>Ada</b>")]
    text = await state(here)
    shown = await browser.get(BACK, params={"state": text, "code": "code-5555"})
    assert (shown.status_code, shown.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "Shop is connected" in shown.text
    assert "&lt;b&gt;Ada&lt;/b&gt;" in shown.text
    assert not any(secret in shown.text for secret in ("code-5555", text, "at-4711", "rt-4712"))
    assert shown.headers["referrer-policy"] == "no-referrer"
    assert await here.count("connections") == 1

    again = await browser.get(BACK, params={"state": text, "code": "code-5555"})
    assert (again.status_code, again.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert "not connected" in again.text
    assert "was used already" in again.text
    unset = await browser.get(BACK.replace("shop", "github"), params={"state": "s", "code": "c"})
    assert (unset.status_code, "HOLDFAST_" in unset.text) == (501, False)
    here.trade.grants_given = [Transient(message="shop answered 500")]
    failed = await browser.get(BACK, params={"state": await state(here), "code": "c"})
    assert (failed.status_code, "answered 500" in failed.text) == (502, True)
    unknown = await browser.get("/api/connectors/callback/nothing", params={"code": "c"})
    assert (unknown.status_code, unknown.headers["content-type"]) == (404, "text/html; charset=utf-8")

    program = await here.client(Accept="*/*").get(BACK, params={"state": await state(here), "code": "c"})
    assert program.json()["connection"]["provider"] == "shop"
    refused = await here.client(Accept="application/json").get(BACK, params={"state": text, "code": "c"})
    assert refused.headers["content-type"] == "application/problem+json"


async def test_no_token_code_or_verifier_is_logged_or_told(
    here: House, caplog: pytest.LogCaptureFixture
) -> None:
    """C-57: in no log line, no answer and no row."""
    caplog.set_level(logging.DEBUG, logger="holdfast")
    answers = [
        await back(here, state=await state(here), code="code-5555"),
        await here.client("tenant").get("/api/connectors/connections"),
        await here.client("admin").get("/api/audit"),
    ]
    words = "\n".join([caplog.text, *(one.text for one in answers), await here.everything()])
    (row,) = await here.rows("select code_verifier, state from oauth_states")
    for mark in ("at-4711", "rt-4712", "code-5555", row["code_verifier"], row["state"], "c-secret-1"):
        assert mark not in words
