"""Gmail: consent, the history of a mailbox, and pushes of Pub/Sub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.polling import account, keys, pages, signals
from connectors.provided import (
    check_address,
    check_cursors,
    check_faults,
    check_golden,
    check_refresh_errors,
    connected,
    delivery,
    golden,
    request_for,
)
from connectors.servers.gmail import MAILBOX, GmailServer, message, push
from connectors.servers.google import GOOD, T0, refused
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import RateLimited, Signal, Transient
from holdfast.apps.connectors.providers.gmail import Gmail, Record, signals_of

ADA = account("gmail", GOOD, external_id=MAILBOX)
HISTORY = "/gmail/v1/users/me/history"
PROFILE = "/gmail/v1/users/me/profile"
START = {"history": "1000"}


@pytest.fixture
def server() -> Iterator[GmailServer]:
    with GmailServer() as running:
        yield running


@pytest.fixture
async def gmail(server: GmailServer) -> AsyncIterator[Gmail]:
    async with connected(Gmail, server) as connector:
        yield connector


def test_its_line_is_that_of_the_catalogue() -> None:
    """C-9: slug, scopes and webhooks are as the catalogue has them."""
    assert Gmail.provider in PROVIDERS


# -- consent ---------------------------------------------------------------------------------------------


async def test_consent_is_asked_offline_and_anew_by_the_long_names_of_scopes() -> None:
    """C-63: without `offline` and `consent` Google gives no refresh token the second time."""
    query = await check_address(Gmail)
    assert query["scope"] == "https://www.googleapis.com/auth/gmail.readonly"
    assert (query["access_type"], query["prompt"]) == ("offline", "consent")


async def test_a_code_brings_the_mailbox_and_its_tokens(gmail: Gmail, server: GmailServer) -> None:
    """C-35: the account is the mailbox, by the address that pushes name."""
    request = request_for(Gmail)
    server.codes["4/code"] = request.code_challenge
    grant = await gmail.exchange("4/code", request)
    assert (grant.external_id, grant.scopes) == (MAILBOX, ("gmail.readonly",))
    assert grant.refresh_token in server.refresh_tokens


async def test_the_text_of_an_error_decides_what_becomes_of_a_refresh(
    gmail: Gmail, server: GmailServer
) -> None:
    """C-59, C-60: a good one keeps its refresh token, others are refused for good or for now."""
    assert (await gmail.refresh("1//refresh")).refresh_token is None
    await check_refresh_errors(gmail, server, "/token")


# -- polling ---------------------------------------------------------------------------------------------


async def test_the_first_sync_only_sets_the_baseline(gmail: Gmail, server: GmailServer) -> None:
    """C-76: the place in the history, and no message."""
    server.arrive(message("m1"))
    page = await gmail.sync(ADA, None)
    assert (page.signals, page.next_cursor, page.has_more) == ((), {"history": "1007"}, False)


async def test_what_happens_in_a_mailbox_becomes_its_kind(gmail: Gmail, server: GmailServer) -> None:
    """C-74: received, sent, labelled, binned and deleted messages."""
    inbox, sent, doomed = message("m1", seconds=5), message("m2", "SENT", seconds=6), message("m3")
    server.arrive(inbox)
    server.arrive(sent)
    server.label(inbox, removed=("UNREAD",))
    server.label(doomed, added=("TRASH",), removed=("INBOX",))
    server.delete(message("m4", "INBOX"))
    found = await pages(gmail, ADA, START)
    assert [(one.kind, one.payload["id"]) for one in signals(found)] == [
        ("email_received", "m1"),
        ("email_sent", "m2"),
        ("email_updated", "m1"),
        ("email_deleted", "m3"),
        ("email_deleted", "m4"),
    ]
    assert signals(found)[0].occurred_at == T0 + timedelta(seconds=5)
    assert keys(found, "email_received") == ["gmail:email_received:m1:2026-03-01T12:00:05Z"]
    assert keys(found, "email_updated") == ["gmail:email_updated:m1:1021"]
    assert found[-1].next_cursor == {"history": str(server.newest)}
    assert not signals(await pages(gmail, ADA, found[-1].next_cursor))


async def test_drafts_chats_and_the_emptying_of_the_bin_are_not_told(
    gmail: Gmail, server: GmailServer
) -> None:
    """C-74: each save of a draft is a new message to Gmail; what is binned was told of when it went there."""
    for label in ("DRAFT", "CHAT"):
        server.arrive(message(f"m-{label}", label))
        server.delete(message(f"m-{label}", label))
    server.delete(message("old", "TRASH"))
    assert signals(await pages(gmail, ADA, START)) == []


async def test_a_message_to_oneself_is_sent_and_received(gmail: Gmail, server: GmailServer) -> None:
    """C-74: both are true."""
    server.arrive(message("m1", "SENT", "INBOX"))
    assert [one.kind for one in signals(await pages(gmail, ADA, START))] == ["email_sent", "email_received"]


async def test_a_message_that_is_gone_again_is_passed_over(gmail: Gmail, server: GmailServer) -> None:
    """C-36: a 404 of one message holds up no other."""
    server.arrive(message("gone"))
    server.arrive(message("here"))
    del server.messages["gone"]
    assert [one.payload["id"] for one in signals(await pages(gmail, ADA, START))] == ["here"]


async def test_history_comes_page_by_page_and_in_portions(server: GmailServer) -> None:
    """C-37: after `max_items` the rest is for the follow-up, with the same place and a page."""
    for n in range(5):
        server.arrive(message(f"m{n}"))
    server.most = 2
    async with connected(Gmail, server, max_items=2) as gmail:
        found = await pages(gmail, ADA, START)
    assert [len(page.signals) for page in found] == [2, 2, 1]
    assert found[0].next_cursor == {"history": "1000", "page": "page-2"}
    assert found[-1].next_cursor == {"history": "1035"}


async def test_what_was_read_stays_when_a_later_page_fails(gmail: Gmail, server: GmailServer) -> None:
    """C-36: a mailbox that has much to tell gets on, however often Google says that it is too much."""
    for n in range(4):
        server.arrive(message(f"m{n}"))
    server.most = 2
    server.fail_next(403, body=refused(403, "userRateLimitExceeded"), path=HISTORY, skip=1)
    first = await gmail.sync(ADA, START)
    assert (len(first.signals), first.has_more) == (2, True)
    rest = await pages(gmail, ADA, first.next_cursor)
    assert [one.payload["id"] for one in signals(rest)] == ["m2", "m3"]


async def test_a_place_that_google_has_forgotten_leads_to_a_new_baseline(
    gmail: Gmail, server: GmailServer, caplog: pytest.LogCaptureFixture
) -> None:
    """C-76: 404 is no failure, but is logged: what happened meanwhile is lost, what comes after is told."""
    server.arrive(message("missed"))
    server.kept_from = server.newest
    page = await gmail.sync(ADA, START)
    assert (page.signals, page.next_cursor, page.has_more) == ((), {"history": "1007"}, False)
    server.arrive(message("told"))
    (signal,) = signals(await pages(gmail, ADA, page.next_cursor))
    assert signal.payload["id"] == "told"
    assert "Google has forgotten our place" in caplog.text


async def test_a_page_that_is_not_known_any_more_is_read_anew_from_the_first(
    gmail: Gmail, server: GmailServer
) -> None:
    """C-76: what is told twice has the same key."""
    server.arrive(message("m1"))
    server.stale = {"page-77"}
    found = await pages(gmail, ADA, {**START, "page": "page-77"})
    assert len(keys(found)) == 1
    assert found[-1].next_cursor == {"history": "1007"}


# -- faults ----------------------------------------------------------------------------------------------


async def test_each_failure_of_the_api_means_what_is_to_be_done(gmail: Gmail, server: GmailServer) -> None:
    """C-36: 401, 429 by seconds and by date, other 4xx, 5xx, and answers that nobody can read."""
    await check_faults(gmail, server, ADA, START, HISTORY)
    await check_faults(gmail, server, ADA, None, PROFILE)


async def test_a_limit_in_a_403_is_a_limit_and_says_whose(gmail: Gmail, server: GmailServer) -> None:
    """C-36: the project's limit is that of all accounts, a user's is one's own."""
    for reason, shared in (("rateLimitExceeded", True), ("userRateLimitExceeded", False)):
        server.fail_next(403, body=refused(403, reason), path=HISTORY)
        with pytest.raises(RateLimited) as told:
            await gmail.sync(ADA, START)
        assert told.value.shared is shared


async def test_odd_records_and_messages_are_unreadable(gmail: Gmail, server: GmailServer) -> None:
    """C-36: nothing is guessed, and the cursor stays where it was."""
    for body in (
        {"history": 7},
        {"history": [{}]},
        {"history": [{"id": "1", "messagesAdded": [{"message": {}}]}]},
        {"history": [{"id": "1", "labelsAdded": [{"message": {"id": "m"}, "labelIds": [7]}]}]},
        {"historyId": "soon"},
    ):
        server.fail_next(200, body=body, path=HISTORY)
        with pytest.raises(Transient):
            await gmail.sync(ADA, START)
    server.arrive({**message("m1"), "internalDate": "noon"})
    with pytest.raises(Transient):
        await gmail.sync(ADA, START)


async def test_a_cursor_that_is_none_of_ours_is_refused(gmail: Gmail) -> None:
    """C-34: a person may write a cursor; a wrong one says what to do."""
    await check_cursors(gmail, ADA, ["x", 7, [], {}, {"history": 7}, {"history": "1", "page": 7}])


# -- pushes ----------------------------------------------------------------------------------------------


async def test_a_push_names_its_mailbox_and_wants_a_sync(gmail: Gmail) -> None:
    """C-50, C-51, C-53: called by its messageId, for the mailbox inside; it carries no data."""
    body = push()
    assert gmail.delivery_id({}, json.dumps(body).encode()) == "136969346945"
    assert gmail.external_ids({}, body) == [MAILBOX]
    result = await gmail.handle_webhook(ADA, delivery(body))
    assert (result.wants_sync, result.signals) == (True, ())
    assert Gmail.scheme == "oidc"


@pytest.mark.parametrize(
    "body",
    [
        None,
        7,
        {},
        {"message": 7},
        {"message": {"data": 7, "messageId": 7}},
        {"message": {"data": "!!", "messageId": ""}},
        {"message": {"data": "bm8gSlNPTg=="}},
        {"message": {"data": "Wzdd"}},
    ],
)
async def test_what_is_no_push_names_nobody_and_wants_nothing(gmail: Gmail, body: Any) -> None:
    """C-54: it is put aside without a failure, and called by its own hash."""
    assert len(gmail.delivery_id({}, json.dumps(body).encode())) == 64
    assert gmail.external_ids({}, body) == []
    assert not (await gmail.handle_webhook(ADA, delivery(body))).wants_sync


@pytest.mark.parametrize("file", golden("gmail"))
def test_each_kind_has_a_golden_file(file: Path) -> None:
    """C-77: through the function that production uses."""

    def read(given: Any) -> list[Signal]:
        return signals_of(Record.of(given["record"]), given["messages"], moment(given["now"]))

    check_golden(file, read)


def test_there_is_a_golden_file_for_everything_that_gmail_can_mean() -> None:
    """C-77: one for each kind, and no other."""
    named = {f"email_{what}" for what in ("received", "sent", "updated", "deleted")}
    assert {param.id for param in golden("gmail")} == named
