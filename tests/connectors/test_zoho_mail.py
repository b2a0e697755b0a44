"""Zoho Mail: consent, the baseline, and the list of messages with its overlap."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.polling import account, keys, pages, signals
from connectors.provided import (
    CLIENT,
    check_address,
    check_cursors,
    check_faults,
    check_golden,
    check_refresh_errors,
    connected,
    golden,
    request_for,
)
from connectors.servers.zoho_mail import GOOD, MAILBOX, ZohoMailServer, message, ms, refused
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.http import opened
from holdfast.apps.connectors.protocol import Permanent, RateLimited, Signal, Transient, Unauthorized
from holdfast.apps.connectors.providers.zoho_mail import Message, ZohoMail
from holdfast.db.settings import ProviderSettings

ADA = account(
    "zoho_mail", GOOD, external_id=MAILBOX, metadata={"addresses": ["ada@example.com", "support@example.com"]}
)
VIEW = f"/api/accounts/{MAILBOX}/messages/view"


@pytest.fixture
def server() -> Iterator[ZohoMailServer]:
    with ZohoMailServer() as running:
        yield running


@pytest.fixture
async def zoho(server: ZohoMailServer) -> AsyncIterator[ZohoMail]:
    async with connected(ZohoMail, server) as connector:
        yield connector


def test_its_line_is_that_of_the_catalogue() -> None:
    """C-9: slug, scopes and that it takes no webhooks are as the catalogue has them."""
    assert ZohoMail.provider in PROVIDERS
    assert ZohoMail.scheme is None


# -- consent ---------------------------------------------------------------------------------------------


async def test_consent_is_asked_offline_and_also_for_whose_mailbox_it_is() -> None:
    """C-63: Zoho's scopes have commas; without ZohoMail.accounts.READ nobody knows the mailbox's id."""
    query = await check_address(ZohoMail)
    assert query["scope"] == "ZohoMail.messages.READ,ZohoMail.accounts.READ"
    assert (query["access_type"], query["prompt"]) == ("offline", "consent")


async def test_a_code_brings_the_mailbox_its_tokens_and_its_own_addresses(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-35: the account is the mailbox; by its addresses one knows later what was sent from it."""
    request = request_for(ZohoMail)
    server.codes["1000.code"] = request.code_challenge
    grant = await zoho.exchange("1000.code", request)
    assert (grant.external_id, grant.display_name) == (MAILBOX, "ada@example.com")
    assert (grant.refresh_token, grant.expires_in) == ("1000.refresh", 3600)
    assert grant.metadata == {"addresses": ["ada@example.com", "support@example.com"]}
    with pytest.raises(Permanent):
        await zoho.exchange("1000.code", request)
    server.mailboxes = [{**server.mailboxes[0], "enabled": False}]
    server.codes["1000.code"] = request.code_challenge
    with pytest.raises(Permanent, match="no mailbox"):
        await zoho.exchange("1000.code", request)


async def test_a_refresh_keeps_the_refresh_token(zoho: ZohoMail) -> None:
    """C-60: Zoho sends none."""
    grant = await zoho.refresh("1000.refresh")
    assert (grant.external_id, grant.refresh_token, grant.expires_in) == ("", None, 3600)


async def test_the_text_of_an_error_decides_also_with_status_200_and_in_zohos_own_words(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-59: invalid_code is what OAuth calls invalid_grant; too many refreshes are an "Access Denied"."""
    await check_refresh_errors(zoho, server, "/oauth/v2/token", 200)
    with pytest.raises(Permanent):
        await zoho.refresh("1000.unknown")
    zoho.settings = replace(zoho.settings, client_secret="wrong")
    with pytest.raises(Permanent):
        await zoho.refresh("1000.refresh")
    zoho.settings = replace(zoho.settings, client_secret=CLIENT[1])
    server.fail_next(400, body={"error": "Access Denied"}, path="/oauth/v2/token")
    with pytest.raises(RateLimited):
        await zoho.refresh("1000.refresh")


async def test_a_token_is_revoked_and_one_that_is_gone_hurts_nobody(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-70: a disconnect tells Zoho."""
    await zoho.revoke(GOOD)
    assert GOOD not in server.tokens
    await zoho.revoke(GOOD)


@pytest.mark.parametrize(
    ("auth", "api", "base"),
    [
        (None, None, "https://mail.zoho.com"),
        ("https://accounts.zoho.eu", None, "https://mail.zoho.eu"),
        ("https://accounts.zoho.com.au/", None, "https://mail.zoho.com.au"),
        ("https://accounts.zoho.eu", "https://mail.example", "https://mail.example"),
        ("https://accounts.example", None, "https://mail.zoho.com"),
    ],
)
async def test_the_mail_is_looked_for_in_the_data_centre_of_the_accounts(
    auth: str | None, api: str | None, base: str
) -> None:
    """C-35: one setting moves both."""
    async with opened("zoho_mail") as http:
        assert ZohoMail(http, ProviderSettings(auth_url=auth, api_url=api)).base == base


# -- polling ---------------------------------------------------------------------------------------------


async def test_the_first_sync_only_sets_the_baseline(zoho: ZohoMail, server: ZohoMailServer) -> None:
    """C-76: nothing that was there before is ever told, not even by the overlap."""
    server.messages = [message(1, -60), message(2, -10)]
    (page,) = await pages(zoho, ADA)
    assert (page.signals, page.next_cursor) == ((), {"since": ms(-10), "floor": ms(-10), "seen": {}})
    assert signals(await pages(zoho, ADA, page.next_cursor)) == []


async def test_after_an_empty_mailbox_everything_is_new(zoho: ZohoMail, server: ZohoMailServer) -> None:
    """C-76: no message at all is a baseline, too."""
    (page,) = await pages(zoho, ADA)
    server.messages = [message(1, -5000)]
    assert len(signals(await pages(zoho, ADA, page.next_cursor))) == 1


async def test_messages_are_received_or_sent_by_who_they_are_from(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-74, C-76: the key is a hash of the id and of when it was changed last."""
    server.messages = [message(1, 10), message(2, 20, fromAddress="Support@example.com")]
    found = await pages(zoho, ADA, {"since": ms(0), "floor": ms(0), "seen": {}})
    assert {one.payload["subject"]: one.kind for one in signals(found)} == {
        "Message 1": "email_received",
        "Message 2": "email_sent",
    }
    digest = hashlib.sha256(f"1700000000001:{ms(10)}".encode()).hexdigest()
    assert keys(found, "email_received") == [digest]


async def test_a_message_that_came_late_is_found_within_300_seconds(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-76: the bound included; what was told before is not told again."""
    server.messages = [message(1, 1000)]
    cursor = (await pages(zoho, ADA, {"since": ms(0), "floor": ms(0), "seen": {}}))[-1].next_cursor
    server.messages += [message(2, 700), message(3, 699.9)]
    found = signals(await pages(zoho, ADA, cursor))
    assert [(one.kind, one.payload["subject"]) for one in found] == [("email_received", "Message 2")]


async def test_a_message_of_the_last_minutes_that_changes_is_told_as_changed(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-74, C-76: it has another key; and one that was read before we first saw it was still received."""
    server.messages = [message(1, 1000), message(2, 990, changed=1100)]
    first = await pages(zoho, ADA, {"since": ms(0), "floor": ms(0), "seen": {}})
    assert {one.kind for one in signals(first)} == {"email_received"}
    server.messages[0] = message(1, 1000, changed=1500, status="1")
    (again,) = signals(await pages(zoho, ADA, first[-1].next_cursor))
    assert (again.kind, again.payload["unread"]) == ("email_updated", False)
    assert again.dedupe_key not in keys(first)


async def test_the_list_is_read_page_by_page_down_to_the_last_time(server: ZohoMailServer) -> None:
    """C-36, C-37: by start and limit, in portions; every message once, the newest is the next cursor."""
    server.messages = [message(n, n) for n in range(1, 451)]
    async with connected(ZohoMail, server, max_items=300) as zoho:
        found = await pages(zoho, ADA, {"since": ms(50), "floor": ms(0), "seen": {}})
    assert len(keys(found)) == 450
    assert [len(page.signals) >= 1 for page in found] == [True, True]
    last = found[-1].next_cursor
    assert (last["since"], last["floor"], set(last)) == (ms(450), ms(0), {"since", "floor", "seen"})
    assert len(last["seen"]) == 301


async def test_what_is_deleted_meanwhile_pulls_nothing_past_us(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-36: pages overlap a little."""
    server.messages = [message(n, 1000 + n) for n in range(1, 301)]
    server.fail_next(503, path=VIEW, skip=1)
    first = await zoho.sync(ADA, {"since": ms(1000), "floor": ms(1000), "seen": {}})
    assert (len(first.signals), first.has_more) == (200, True)
    server.messages = server.messages[:-5]  # the newest five
    rest = await pages(zoho, ADA, first.next_cursor)
    assert len(set(keys([first])) | set(keys(rest))) == 300


# -- faults ----------------------------------------------------------------------------------------------


async def test_each_failure_of_the_api_means_what_is_to_be_done(
    zoho: ZohoMail, server: ZohoMailServer
) -> None:
    """C-36: 401, 429 by seconds and by date, other 4xx, 5xx, and answers that nobody can read."""
    await check_faults(zoho, server, ADA, None, VIEW)
    await check_faults(zoho, server, ADA, {"since": 0, "floor": 0, "seen": {}}, VIEW)


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("INVALID_OAUTHTOKEN", 404, Unauthorized),
        ("INVALID_OAUTHTOKEN", 400, Unauthorized),
        ("URL_ROLLING_THROTTLES_LIMIT_EXCEEDED", 400, RateLimited),
        ("EXTRA_PARAM_FOUND", 404, Permanent),
        ("not a word ?", 403, Permanent),
    ],
)
async def test_the_code_in_an_answer_says_more_than_its_status(
    zoho: ZohoMail, server: ZohoMailServer, code: str, status: int, error: type[Exception]
) -> None:
    """C-36: Zoho refuses a token with 404."""
    server.fail_next(status, body=refused(code, status), path=VIEW)
    with pytest.raises(error) as told:
        await zoho.sync(ADA, None)
    assert type(told.value) is error
    assert "?" not in str(told.value)


@pytest.mark.parametrize(
    "odd",
    [
        {"data": 7},
        {"data": [7]},
        {"data": [{}]},
        {"data": [{**message(1), "receivedTime": "noon"}]},
        {"data": [{**message(1), "receivedTime": True}]},
        {"data": [{**message(1), "lastModifiedTime": "noon"}]},
        {"data": [{**message(1), "receivedTime": str(10**30)}]},
    ],
)
async def test_odd_messages_are_unreadable(zoho: ZohoMail, server: ZohoMailServer, odd: Any) -> None:
    """C-36: nothing is guessed, and the cursor stays where it was."""
    server.fail_next(200, body=odd, path=VIEW)
    with pytest.raises(Transient):
        await zoho.sync(ADA, None)


async def test_a_cursor_that_is_none_of_ours_is_refused(zoho: ZohoMail) -> None:
    """C-34: a person may write a cursor; a wrong one says what to do."""
    good = {"since": 1, "floor": 1, "seen": {}}
    wrong = [{**good, "since": "1"}, {**good, "seen": []}, {**good, "start": "x"}, {"since": 1}]
    await check_cursors(zoho, ADA, ["x", 7, [], {}, *wrong])


async def test_odd_addresses_of_a_connection_are_told_to_a_person(zoho: ZohoMail) -> None:
    """C-36: somebody wrote them; no retry mends that."""
    with pytest.raises(Permanent, match="no list of texts"):
        await zoho.sync(replace(ADA, metadata={"addresses": "ada"}), {"since": 0, "floor": 0, "seen": {}})


@pytest.mark.parametrize("file", golden("zoho_mail"))
def test_each_kind_has_a_golden_file(file: Path) -> None:
    """C-77: through the function that production uses."""

    def read(given: Any) -> list[Signal]:
        return [Message.of(given["message"]).signal(given["own"], given["seen"])]

    check_golden(file, read)


def test_there_is_a_golden_file_for_everything_that_zoho_mail_can_mean() -> None:
    """C-77: one for each kind, and no other."""
    named = {"email_received", "email_sent", "email_updated"}
    assert {param.id for param in golden("zoho_mail")} == named
