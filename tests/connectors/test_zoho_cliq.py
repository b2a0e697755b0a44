"""Zoho Cliq: no consent, nothing to poll, and the messages that its bots send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.polling import account
from connectors.provided import (
    NOON,
    check_golden,
    check_secret,
    connected,
    delivery,
    golden,
    request_for,
)
from connectors.servers.zoho_cliq import CHANNEL, CHAT, ORGANISATION, SENT, USER, participation, to_the_bot
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import Permanent, Signal, Unsupported
from holdfast.apps.connectors.providers.zoho_cliq import ZohoCliq, signals_of

OPS = account("zoho_cliq", None, external_id=CHANNEL)


@pytest.fixture
async def cliq() -> AsyncIterator[ZohoCliq]:
    async with connected(ZohoCliq) as connector:
        yield connector


async def told(cliq: ZohoCliq, payload: Any) -> tuple[Signal, ...]:
    return (await cliq.handle_webhook(OPS, delivery(payload))).signals


def test_its_line_is_that_of_the_catalogue() -> None:
    """C-9: it is the one that is webhook-only."""
    assert ZohoCliq.provider in PROVIDERS
    assert ZohoCliq.provider.auth_type == "webhook-only"


async def test_it_cannot_be_authorised_and_says_how_to_connect_it_instead(cliq: ZohoCliq) -> None:
    """C-66: both ways of OAuth answer with a sentence that helps."""
    for asked in (
        cliq.authorize_url(request_for(ZohoCliq)),
        cliq.exchange("code", request_for(ZohoCliq)),
    ):
        with pytest.raises(Unsupported, match="/api/connectors/webhooks/zoho_cliq/"):
            await asked
    with pytest.raises(Unsupported):
        await cliq.refresh("x")


async def test_a_look_finds_nothing_and_leaves_the_cursor(cliq: ZohoCliq) -> None:
    """C-35: a connection that only listens is not broken."""
    page = await cliq.sync(OPS, {"any": "thing"})
    assert (page.signals, page.next_cursor, page.has_more) == ((), {"any": "thing"}, False)


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("message_sent", "message_posted"),
        ("message_edited", "message_updated"),
        ("message_deleted", "message_deleted"),
    ],
)
async def test_what_a_bot_in_a_channel_sees_becomes_its_kind(
    cliq: ZohoCliq, operation: str, kind: str
) -> None:
    """C-74: with the message's own time, chat and author."""
    (signal,) = await told(cliq, participation(operation))
    assert signal.kind == kind
    assert signal.occurred_at == NOON + timedelta(milliseconds=123)
    assert signal.payload["chat_id"] == CHAT
    assert signal.payload["author"] == {"id": USER["id"], "name": "Ada Byron", "email": USER["email"]}
    assert signal.payload["text"] == "Deployed 1.4"


async def test_a_message_to_the_bot_is_its_text_alone(cliq: ZohoCliq) -> None:
    """C-76: without an id, its chat, author and time tell it from another."""
    (signal,) = await told(cliq, to_the_bot())
    assert (signal.kind, signal.payload["text"]) == ("message_posted", "status please")
    assert signal.dedupe_key == f"zoho_cliq:message_posted:{CHAT}:{USER['id']}:2026-03-01T12:00:00.123000Z"


async def test_a_message_is_posted_once_and_each_edit_is_a_fact_of_its_own(cliq: ZohoCliq) -> None:
    """C-76: a delivery that is sent again has the same key, whatever its id."""
    (posted,) = await told(cliq, participation("message_sent"))
    (again,) = await told(cliq, participation("message_sent", time=SENT + 9000))
    assert (
        posted.dedupe_key == again.dedupe_key == f"zoho_cliq:message_posted:{CHAT}:1772366400123_51531973059"
    )
    (one,) = await told(cliq, participation("message_edited"))
    (other,) = await told(cliq, participation("message_edited", time=SENT + 9000))
    assert one.dedupe_key != other.dedupe_key


async def test_a_message_without_any_time_is_of_when_it_came_and_has_no_key(cliq: ZohoCliq) -> None:
    """C-76: nothing tells it from another, so that it is not taken for another either."""
    (signal,) = await told(cliq, {"message": "hello", "chat": {"id": CHAT}})
    assert (signal.occurred_at, signal.dedupe_key) == (NOON, None)


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        {},
        {"operation": "added", "user": USER},
        participation("thread_closed"),
        {"handler": {"type": "welcome_handler"}, "message": "hello"},
        {"operation": "message_sent", "data": {}},
    ],
)
async def test_what_is_no_message_is_no_signal(cliq: ZohoCliq, payload: Any) -> None:
    """C-74: and no failure."""
    assert await told(cliq, payload) == ()


@pytest.mark.parametrize(
    "payload",
    [
        {"params": 7},
        {"message": "hello", "chat": "ops"},
        {"message": "hello", "timestamp": "noon"},
        {"message": "hello", "timestamp": 10**30},
    ],
)
async def test_a_delivery_that_is_not_as_documented_is_refused_for_good(cliq: ZohoCliq, payload: Any) -> None:
    """C-54: it is marked and the others go on."""
    with pytest.raises(Permanent):
        await told(cliq, payload)


def test_a_delivery_is_for_its_organisation_its_chat_or_its_channel(cliq: ZohoCliq) -> None:
    """C-50, C-51: it has no id of its own, so it is called by the hash of its body."""
    assert cliq.external_ids({}, participation("message_sent")) == [ORGANISATION, CHAT, CHANNEL]
    assert cliq.external_ids({}, to_the_bot()) == [ORGANISATION, CHAT]
    for odd in (None, [], {}, {"chat": 7}, {"params": 7}):
        assert cliq.external_ids({}, odd) == []
    assert len(cliq.delivery_id({}, b"{}")) == 64


def test_a_delivery_proves_itself_by_a_shared_secret() -> None:
    """C-47: as a bearer token."""
    check_secret(ZohoCliq, lambda secret: {"authorization": f"Bearer {secret}"})


@pytest.mark.parametrize("file", golden("zoho_cliq"))
def test_each_kind_has_a_golden_file(file: Path) -> None:
    """C-77: through the function that production uses."""
    check_golden(file, lambda given: signals_of(given["payload"], moment(given["received_at"])))


def test_there_is_a_golden_file_for_everything_that_zoho_cliq_can_mean() -> None:
    """C-77: one for each kind, and no other."""
    named = {f"message_{what}" for what in ("posted", "updated", "deleted")}
    assert {param.id for param in golden("zoho_cliq")} == named
