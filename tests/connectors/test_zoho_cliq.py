"""Zoho Cliq: no consent, nothing to poll, and the messages that its bots send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from connectors.door import TENANT, house
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
from holdfast import Settings
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import Permanent, Signal, Unsupported
from holdfast.apps.connectors.providers.zoho_cliq import ZohoCliq, signals_of
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings
from holdfast.errors import InvalidInput
from test_docs import blocks

DOCS = Path(__file__).parents[2] / "docs"
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
        {"operation": "added", "user": USER},
        participation("thread_closed"),
        {"handler": {"type": "welcome_handler"}, "message": "hello"},
    ],
)
async def test_what_is_no_message_is_no_signal(cliq: ZohoCliq, payload: Any) -> None:
    """C-74: and no failure."""
    assert await told(cliq, payload) == ()


WRONG: dict[str, Any] = {
    "body": [],
    "message": {},
    "data.message": {"operation": "message_sent", "data": {}},
    "params": {"params": 7},
    "chat": {"message": "hello", "chat": "ops"},
    "user": {"params": {"message": "hello", "user": "ada"}},
    "access.organization": {"message": "hello", "access": {"organization": 7}},
    "data.message.sender": {
        "operation": "message_edited",
        "data": {"message": {"text": "x", "sender": "ada"}},
    },
    "data.message.time": {"operation": "message_sent", "data": {"message": {"text": "x", "time": "noon"}}},
    "timestamp": {"message": "hello", "timestamp": "noon"},
    "data.time": {"message": "hello", "data": {"time": 10**30}},
}


@pytest.mark.parametrize("field", WRONG)
async def test_a_body_that_is_not_as_documented_is_refused_with_the_name_of_its_field(
    cliq: ZohoCliq, field: str
) -> None:
    """At the door, and from the inbox, where one of an older version may lie: marked, the others go on."""
    with pytest.raises(InvalidInput) as refused:
        cliq.check_webhook(WRONG[field])
    assert refused.value.field == field
    with pytest.raises(Permanent, match=f"^zoho_cliq: {field}: "):
        await told(cliq, WRONG[field])


async def test_a_wrong_body_is_answered_with_400_and_the_field_and_is_not_stored(
    settings: Settings, conn: Connection
) -> None:
    """The sender is a bot that somebody wrote: it sees what is wrong. The documented body is accepted."""
    own = ProviderSettings(webhook_secret="a secret of cliq")
    async with house(settings, conn, providers={"zoho_cliq": own}) as here:
        client = here.client(Authorization="Bearer a secret of cliq")
        url = f"/api/connectors/webhooks/zoho_cliq/{TENANT}"
        refused = await client.post(url, json={"text": "hello"})
        assert (refused.status_code, refused.json()["field"]) == (400, "message")
        assert await here.count("webhook_delivery") == 0
        (documented,) = (
            json.loads(block) for block in blocks(DOCS / "connectors.md", "json") if "Deployed 1.4" in block
        )
        assert (await client.post(url, json=documented)).status_code == 202
        assert (await client.post(url, content=b"no JSON")).status_code == 202
        assert await here.count("webhook_delivery") == 2
        (signal,) = signals_of(documented, NOON)
        assert (signal.kind, signal.payload["text"]) == ("message_posted", "Deployed 1.4")


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
