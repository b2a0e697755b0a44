"""Providers that lead one round in circles are not asked for ever; names that nobody knows are told of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from connectors.kit import KEY, page
from holdfast import Holdfast, Settings
from holdfast.apps.connectors.http import Answer
from holdfast.apps.connectors.protocol import Json, Page, Transient
from holdfast.apps.connectors.providers.paging import Cursor, walk
from holdfast.apps.connectors.providers.slack_walk import Walk, resume
from holdfast.apps.connectors.service import Connectors
from holdfast.db import parsers
from holdfast.db.settings import ProviderSettings
from holdfast.db.sync_settings import read_providers

MOST = 50  # requests, after which a provider is said to be asked for ever


class Circle:
    """A listing whose pages lead to one another for ever, after those that do not."""

    def __init__(self, *places: str) -> None:
        self.places, self.asked = places, 0

    async def __call__(self, cursor: Cursor) -> Page:
        self.asked += 1
        assert self.asked < MOST
        before = cursor.get("page")
        number = self.places.index(before) if before else -1
        following = self.places[number + 1] if number + 1 < len(self.places) else self.places[1]
        return page(f"s{before}", cursor={"page": following}, more=True)


@pytest.mark.parametrize("places", [("a", "b"), ("a", "b", "c", "d")])
async def test_a_listing_that_goes_round_keeps_what_it_had_and_then_fails(places: tuple[str, ...]) -> None:
    """C-36: once round and no more; what was read before is kept, and the next call says what is wrong."""
    circle = Circle(*places)
    found = await walk(circle, {}, 1000)
    assert (found.next_cursor, found.has_more) == ({"page": "b"}, True)
    assert circle.asked == len(places) + 1
    with pytest.raises(Transient, match="in circles"):
        await walk(circle, found.next_cursor, 1000)


async def test_a_page_that_leads_to_itself_is_asked_for_once() -> None:
    """C-36"""

    async def same(cursor: Cursor) -> Page:
        return page("s", cursor=cursor, more=True)

    with pytest.raises(Transient, match="in circles"):
        await walk(same, {"page": "a"}, 1000)


# -- Slack -----------------------------------------------------------------------------------------------

Said = Callable[[str, str | None], dict[str, Any]]
CHANNELS = {"ok": True, "channels": [{"id": "C1", "is_member": True}, {"id": "C2", "is_member": True}]}
FORGOTTEN = {"ok": False, "error": "invalid_cursor"}
MESSAGE = {"type": "message", "user": "U1", "text": "x", "ts": "1700000000.000100"}


def more(**data: Json) -> dict[str, Any]:
    return {"ok": True, **data, "response_metadata": {"next_cursor": "X"}}


async def walked(say: Said, cursor: Json = None) -> tuple[list[str], Page | Transient]:
    """What Slack was asked until the walk ended by itself, over as many pages of ours as it wants."""
    asked: list[str] = []

    async def call(
        method: str, arguments: Mapping[str, str | int | None], expect: tuple[str, ...] = ()
    ) -> Answer:
        at = arguments.get("cursor")
        asked.append(method.partition(".")[2])
        assert len(asked) < MOST, asked
        said = say(method.partition(".")[2], None if at is None else str(at))
        return Answer(provider="slack", method="POST", path="/x", status=200, headers={}, data=said)

    while True:
        try:
            found = await Walk(call, resume(cursor), "public_channel", 1000).page()
        except Transient as error:
            return asked, error
        if not found.has_more:
            return asked, found
        cursor = found.next_cursor


async def test_a_channel_whose_cursors_are_always_forgotten_is_left_out_after_a_second_try() -> None:
    """C-36: the others are read."""

    def say(method: str, at: str | None) -> dict[str, Any]:
        if method == "list":
            return CHANNELS
        return FORGOTTEN if at else more(messages=[])

    asked, found = await walked(say)
    assert isinstance(found, Page)
    assert asked == ["list", *["history"] * 8]


async def test_a_thread_whose_cursors_are_always_forgotten_is_left_out_after_a_second_try() -> None:
    """C-36: also while its channel is read once more."""

    def say(method: str, at: str | None) -> dict[str, Any]:
        if method == "list":
            return CHANNELS
        if method == "history":
            return {"ok": True, "messages": [MESSAGE | {"reply_count": 1}]}
        return FORGOTTEN if at else more(messages=[])

    asked, found = await walked(say)
    assert isinstance(found, Page)
    assert asked.count("replies") == 8


@pytest.mark.parametrize("members", [True, False])
async def test_a_list_of_channels_whose_cursors_are_always_forgotten_is_a_failure(members: bool) -> None:
    """C-36: without it nobody knows which channels there are."""

    def say(method: str, at: str | None) -> dict[str, Any]:
        if method == "list":
            return FORGOTTEN if at else CHANNELS | more(channels=CHANNELS["channels"] if members else [])
        return {"ok": True, "messages": []}

    asked, found = await walked(say)
    assert isinstance(found, Transient)
    assert asked.count("list") == 5  # the last one by the next page, which says what is wrong


@pytest.mark.parametrize("method", ["list", "history", "replies"])
async def test_a_cursor_that_is_always_the_same_ends_the_walk(method: str) -> None:
    """C-36"""

    def say(asked: str, at: str | None) -> dict[str, Any]:
        found: dict[str, Any] = {"messages": [MESSAGE | {"reply_count": 1}]}
        found = {"channels": CHANNELS["channels"]} if asked == "list" else found
        return more(**found) if asked == method else {"ok": True, **found}

    _, found = await walked(say)
    assert isinstance(found, Transient)


# -- settings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "https://user@api.example",
        "https://user:secret-word@api.example/v1",
        "https://api.example?key=secret-word",
        "https://api.example/v1?x",
        "https://api.example/v1#part",
        "https://api.example#",
        "ftp://api.example",
        "https://",
        "https://api.example/a b",
    ],
)
def test_an_address_of_a_provider_has_no_user_no_query_and_no_fragment(text: str) -> None:
    """Paths are added to it; what is refused is not repeated, as it may hold a password."""
    with pytest.raises(ValueError, match="without a user") as caught:
        parsers.base_url(text)
    assert "secret-word" not in str(caught.value)
    names = [f"HOLDFAST_CONNECTOR_GITHUB_{name}_URL" for name in ("API", "AUTH")]
    _, problems = read_providers(dict.fromkeys(names, text))
    assert [problem.partition(" ")[0] for problem in problems] == names


@pytest.mark.parametrize(
    "text", ["https://api.example", "http://127.0.0.1:8080/", "https://a.example/v1/@me"]
)
def test_an_address_of_a_provider_may_have_a_path(text: str) -> None:
    assert parsers.base_url(text) == text


def test_settings_for_a_provider_that_has_no_connector_are_told_of_once(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelt name would else be as good as none, without a word."""
    own = {"githbu": ProviderSettings(client_id="x"), "github": ProviderSettings(client_id="x")}
    app = Holdfast(replace(settings, crypto_key=KEY, providers=own))
    with caplog.at_level(logging.WARNING, "holdfast.connectors"):
        for _ in range(3):
            Connectors.of(app)
    told = [line.getMessage() for line in caplog.records]
    assert told == ["there are settings for githbu, which no connector has: is the name misspelt?"]
