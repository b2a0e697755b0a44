"""The connector of Slack, against a server that speaks its documented API."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from connectors.polling import account, keys, pages, signals
from connectors.provided import check_golden, golden
from connectors.servers.slack import CLIENT, SlackServer, callback, message, ts
from holdfast.apps.connectors.http import opened
from holdfast.apps.connectors.protocol import (
    AuthRequest,
    Delivery,
    Permanent,
    RateLimited,
    Signal,
    Transient,
    Unauthorized,
)
from holdfast.apps.connectors.providers import slack_facts as facts
from holdfast.apps.connectors.providers.slack import Slack
from holdfast.db.settings import ProviderSettings

ME = account("slack", "xoxb-good", external_id="T1")
REQUEST = AuthRequest(
    redirect_uri="https://app.example/back",
    state="some-state",
    scopes=("channels:read", "channels:history"),
    code_challenge="challenge",
    code_verifier="verifier",
)
EARLY = {"since": ts(-60)}


@pytest.fixture
def server() -> Iterator[SlackServer]:
    with SlackServer() as server:
        yield server


@asynccontextmanager
async def slack(server: SlackServer, max_items: int = 1000) -> AsyncIterator[Slack]:
    settings = ProviderSettings(
        client_id=CLIENT[0],
        client_secret=CLIENT[1],
        api_url=server.url,
        auth_url=server.url.removesuffix("/api"),
    )
    async with opened("slack") as http:
        yield Slack(http, settings, max_items)


async def told(connector: Slack, **event: Any) -> tuple[Signal, ...]:
    """What an event becomes."""
    received = datetime(2026, 3, 2, tzinfo=UTC)
    delivery = Delivery(id="1", headers={}, payload=callback(event), received_at=received)
    return (await connector.handle_webhook(ME, delivery)).signals


# -- authorisation ---------------------------------------------------------------------------------------


async def test_the_way_to_authorise_has_state_and_scopes_and_no_pkce(server: SlackServer) -> None:
    """C-63: PKCE is for Slack's clients without a secret; beside a secret Slack refuses it."""
    async with slack(server) as connector:
        url = urlsplit(await connector.authorize_url(REQUEST))
    assert url.path == "/oauth/v2/authorize"
    assert {name: values[0] for name, values in parse_qs(url.query).items()} == {
        "client_id": CLIENT[0],
        "redirect_uri": REQUEST.redirect_uri,
        "scope": "channels:read,channels:history",
        "state": "some-state",
    }


async def test_a_code_becomes_a_workspace_with_its_tokens(server: SlackServer) -> None:
    """C-35: the account is the workspace, or the organisation where the app is installed in all of it."""
    server.codes |= {"code-1", "code-2"}
    async with slack(server) as connector:
        grant = await connector.exchange("code-1", REQUEST)
        assert (grant.external_id, grant.display_name) == ("T1", "Octo Inc.")
        assert (grant.access_token, grant.refresh_token) == ("xoxe.xoxb-1", "xoxe-1")
        assert grant.expires_in == 43200
        assert grant.scopes == ("channels:read", "channels:history", "reactions:read")
        assert grant.metadata == {"app_id": "A1", "bot_user_id": "U9"}
        server.team, server.enterprise, server.rotating = None, {"id": "E1", "name": "Octo"}, False
        whole = await connector.exchange("code-2", REQUEST)
        assert (whole.external_id, whole.refresh_token, whole.expires_in) == ("E1", None, None)
    assert all("client-secret" not in one.body.decode() for one in server.requests)


async def test_a_code_that_is_wrong_and_an_answer_that_is_broken_are_refused(server: SlackServer) -> None:
    """C-59: Slack's own words for a wrong code, and for a passing fault."""
    server.codes.add("code-1")
    async with slack(server) as connector:
        with pytest.raises(Permanent, match="slack gave no token: invalid_grant"):
            await connector.exchange("unknown", REQUEST)
        server.fail_next(200, body={"ok": False, "error": "internal_error"})
        with pytest.raises(Transient):
            await connector.exchange("code-1", REQUEST)
        server.fail_next(200, body={"ok": True, "access_token": "x"})
        with pytest.raises(Transient):
            await connector.exchange("code-1", REQUEST)


async def test_a_refresh_rotates_and_an_old_token_is_dead_for_good(server: SlackServer) -> None:
    """C-59, C-60: `invalid_refresh_token` and `token_revoked` are permanent, `ratelimited` is not."""
    server.refresh_tokens.add("xoxe-old")
    async with slack(server) as connector:
        grant = await connector.refresh("xoxe-old")
        assert (grant.external_id, grant.refresh_token) == ("", "xoxe-1")
        with pytest.raises(Permanent):
            await connector.refresh("xoxe-old")
        for word, kind in (("token_revoked", Permanent), ("ratelimited", RateLimited)):
            server.fail_next(200, {"Retry-After": "9"}, {"ok": False, "error": word})
            with pytest.raises(kind):
                await connector.refresh("xoxe-1")


async def test_revoking_tells_slack_and_takes_a_token_that_is_gone_already(server: SlackServer) -> None:
    """C-70: what is disconnected is of no use to anybody."""
    async with slack(server) as connector:
        await connector.revoke("xoxb-good")
        assert server.tokens == set()
        await connector.revoke("xoxb-good")


# -- polling ---------------------------------------------------------------------------------------------


def stocked(server: SlackServer) -> None:
    """Two channels with messages, one edited, one with replies, and two that cannot be read."""
    edited = message(3, "better", edited={"user": "U1", "ts": ts(30)})
    parent = message(4, "question", thread_ts=ts(4), reply_count=2, latest_reply=ts(6))
    joined = message(5, "joined", subtype="channel_join")
    bot = message(7, "beep", subtype="bot_message", bot_id="B1", user=None)
    server.channel("C1", message(1), message(2), edited, parent, joined)
    server.channel("C2", bot)
    server.channel("C3", message(8), member=False)
    server.channel("G1", message(9), private=True)
    replies = [message(second, "answer", thread_ts=ts(4)) for second in (5.5, 6)]
    server.replies["C1", ts(4)] = [parent, *replies]


ALL = [
    *(f"slack:message_posted:C1:{ts(second)}" for second in (1, 2, 3, 4, 5.5, 6)),
    f"slack:message_posted:C2:{ts(7)}",
    f"slack:message_updated:C1:{ts(3)}:{ts(30)}",
]


@pytest.mark.parametrize("cursor", [None, EARLY, ts(-60)])
@pytest.mark.parametrize("max_items", [1000, 4, 2, 1])
async def test_a_round_finds_every_message_however_small_its_pages(
    server: SlackServer, cursor: Any, max_items: int
) -> None:
    """C-35, C-75, C-76: from the beginning and from a time, in pages that are bounded."""
    stocked(server)
    async with slack(server, max_items) as connector:
        found = await pages(connector, ME, cursor)
    assert keys(found) == ALL
    assert all(len(page.signals) <= max(max_items, 2) for page in found)
    assert [page.has_more for page in found] == [True] * (len(found) - 1) + [False]
    assert list(found[-1].next_cursor) == ["since"]
    assert all(one.query == {} for one in server.requests), "arguments belong in the body"


async def test_the_next_round_begins_where_this_one_began(server: SlackServer) -> None:
    """C-34: the cursor is Slack's own time, a minute early."""
    stocked(server)
    async with slack(server) as connector:
        first = await pages(connector, ME, None)
        cursor = first[-1].next_cursor
        assert abs(datetime.now(UTC).timestamp() - float(cursor["since"]) - 60) < 20
        server.forget()
        assert signals(await pages(connector, ME, cursor)) == []
        latest = [one.form.get("latest") for one in server.asked("/conversations.history")]
        assert len(latest) == 2
        later = await pages(connector, ME, {"since": ts(6)})
    assert keys(later) == [f"slack:message_posted:C2:{ts(7)}"]


async def test_channels_past_one_page_are_read_too(server: SlackServer) -> None:
    """C-35: the list is paged, and so are histories."""
    for number in range(450):
        server.channel(f"C{number}", message(number))
    async with slack(server) as connector:
        found = await pages(connector, ME, None)
    assert len(keys(found)) == 450
    assert len(server.asked("/conversations.list")) == 3


async def test_private_channels_are_read_only_when_that_was_allowed(server: SlackServer) -> None:
    """C-9: asking for what was not granted would fail the whole list."""
    stocked(server)
    scopes = ("channels:read", "channels:history", "groups:read", "groups:history")
    async with slack(server) as connector:
        found = await pages(connector, account("slack", "xoxb-good", scopes=scopes), None)
    assert f"slack:message_posted:G1:{ts(9)}" in keys(found)


async def test_a_channel_that_cannot_be_read_does_not_hold_up_the_others(server: SlackServer) -> None:
    """C-36: the app was removed from it between the list and the history."""
    stocked(server)
    del server.history["C1"]
    async with slack(server) as connector:
        found = await pages(connector, ME, None)
        assert keys(found) == [f"slack:message_posted:C2:{ts(7)}"]
        stocked_thread = message(1, thread_ts=ts(1), reply_count=1)
        server.history["C1"] = [stocked_thread]  # and its thread is gone meanwhile
        found = await pages(connector, ME, None)
    assert keys(found) == [f"slack:message_posted:C1:{ts(1)}", f"slack:message_posted:C2:{ts(7)}"]


async def test_a_place_that_slack_has_forgotten_is_begun_anew(server: SlackServer) -> None:
    """C-35: Slack's cursors do not live for ever; ours goes on."""
    for number in range(3):
        server.channel(f"C{number}", *(message(second) for second in range(number * 10, number * 10 + 10)))
    parent = message(100, thread_ts=ts(100), reply_count=5, latest_reply=ts(105))
    server.history["C2"].append(parent)
    server.replies["C2", ts(100)] = [parent, *(message(100 + n, thread_ts=ts(100)) for n in range(1, 6))]
    async with slack(server, max_items=4) as connector:
        found = [await connector.sync(ME, None)]
        forgotten: set[str] = set()
        while found[-1].has_more and len(found) < 200:
            cursor = found[-1].next_cursor
            for place in {"history_at", "thread_at"} - forgotten:
                if cursor[place] and len(found) > 5:
                    forgotten.add(place)
                    server.cursors.clear()
            found.append(await connector.sync(ME, cursor))
    assert not found[-1].has_more
    assert len(keys(found)) == 36
    assert {"/conversations.history", "/conversations.replies"} == set(server.lost)


async def test_a_list_of_channels_that_slack_has_forgotten_is_begun_anew(server: SlackServer) -> None:
    """C-35: channels are read twice rather than not at all."""
    for number in range(250):
        server.channel(f"C{number}", message(number))
    async with slack(server, max_items=120) as connector:
        first = await connector.sync(ME, None)
        server.cursors.clear()
        rest = await pages(connector, ME, first.next_cursor)
    assert len(keys([first, *rest])) == 250
    assert server.lost == ["/conversations.list"]


async def test_a_limit_in_the_middle_keeps_what_was_found(server: SlackServer) -> None:
    """C-36: the page ends there; the next one meets the limit with its first request and raises."""
    stocked(server)
    server.fail_next(429, {"Retry-After": "30"}, path="/conversations.replies", times=2)
    async with slack(server) as connector:
        page = await connector.sync(ME, None)
        assert page.has_more
        assert len(page.signals) == 5
        with pytest.raises(RateLimited) as caught:
            await connector.sync(ME, page.next_cursor)
        assert caught.value.retry_after_seconds == 30
        rest = await pages(connector, ME, page.next_cursor)
    assert keys([page, *rest]) == ALL


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (200, {}, {"ok": False, "error": "invalid_auth"}, Unauthorized),
        (200, {}, {"ok": False, "error": "token_revoked"}, Unauthorized),
        (200, {}, {"ok": False, "error": "token_expired"}, Unauthorized),
        (200, {"Retry-After": "3"}, {"ok": False, "error": "ratelimited"}, RateLimited),
        (200, {}, {"ok": False, "error": "internal_error"}, Transient),
        (200, {}, {"ok": False, "error": "missing_scope", "needed": "channels:read"}, Permanent),
        (200, {}, {"ok": False, "error": "a secret sentence"}, Permanent),
        (200, {}, {"ok": False}, Permanent),
        (401, {}, {}, Unauthorized),
        (429, {"Retry-After": "3"}, {}, RateLimited),
        (500, {}, {}, Transient),
        (200, {}, b"{oops", Transient),
        (200, {}, [], Transient),
        (200, {}, {"ok": True}, Transient),
        (200, {}, {"ok": True, "channels": [1]}, Transient),
        (200, {}, {"ok": True, "channels": [{"is_member": True}]}, Transient),
    ],
)
async def test_a_first_request_that_fails_leaves_no_page(
    server: SlackServer, status: int, headers: dict[str, str], body: Any, kind: type[Exception]
) -> None:
    """C-36: `ok: false` with invalid_auth or token_revoked is Unauthorized; other faults have theirs."""
    stocked(server)
    server.fail_next(status, headers, body)
    async with slack(server) as connector:
        with pytest.raises(kind) as caught:
            await connector.sync(ME, None)
        assert type(caught.value) is kind
        assert "sentence" not in str(caught.value)
        assert keys(await pages(connector, ME, None)) == ALL


@pytest.mark.parametrize(
    "cursor",
    [
        7,
        [],
        {},
        "yesterday",
        {"since": None},
        {"since": 5},
        {"since": ts(0), "listed": True},
        {"until": ts(0), "channels": ["../auth.revoke"]},
        {"until": ts(0), "threads": [["C1"]]},
        {"since": ts(0), "unknown": 1},
    ],
)
async def test_a_cursor_that_is_none_says_so(server: SlackServer, cursor: Any) -> None:
    """C-42: it will not get better by itself; a person can reset it."""
    async with slack(server) as connector:
        with pytest.raises(Permanent, match="reset it"):
            await connector.sync(ME, cursor)
    assert server.requests == []


async def test_a_connection_without_a_token_is_not_authorised(server: SlackServer) -> None:
    """C-43: what has no token must be authorised again."""
    async with slack(server) as connector:
        for token in (None, "xoxb-wrong"):
            with pytest.raises(Unauthorized):
                await connector.sync(account("slack", token), None)


# -- events ----------------------------------------------------------------------------------------------


async def test_each_event_becomes_its_signal(server: SlackServer) -> None:
    """C-75: messages and reactions."""
    edited = message(3, "better", edited={"user": "U1", "ts": ts(30)})
    item = {"type": "message", "channel": "C1", "ts": ts(1)}
    reacted = {"type": "reaction_added", "user": "U2", "reaction": "tada", "item": item, "event_ts": ts(50)}
    changed = {"type": "message", "subtype": "message_changed", "channel": "C1", "event_ts": ts(31)}
    deleted = {"type": "message", "subtype": "message_deleted", "channel": "C1", "event_ts": ts(40)}
    table: list[tuple[dict[str, Any], list[str]]] = [
        ({**message(1), "channel": "C1"}, [f"message_posted:C1:{ts(1)}"]),
        ({**message(2, subtype="file_share"), "channel": "C1"}, [f"message_posted:C1:{ts(2)}"]),
        ({**changed, "message": edited}, [f"message_updated:C1:{ts(3)}:{ts(30)}"]),
        ({**changed, "message": message(3)}, []),
        ({**changed, "message": message(3, subtype="tombstone")}, [f"message_deleted:C1:{ts(3)}"]),
        ({**deleted, "deleted_ts": ts(3)}, [f"message_deleted:C1:{ts(3)}"]),
        (reacted, [f"reaction_added:C1:{ts(1)}:tada:U2:{ts(50)}"]),
        ({**message(5, subtype="channel_join"), "channel": "C1"}, []),
        ({**reacted, "item": {"type": "file", "file": "F1"}}, []),
        ({"type": "app_uninstalled"}, []),
    ]
    async with slack(server) as connector:
        for event, expected in table:
            found = await told(connector, **event)
            assert [one.dedupe_key for one in found] == [f"slack:{key}" for key in expected]
            assert [one.kind for one in found] == [key.partition(":")[0] for key in expected]


async def test_poll_and_event_agree_on_every_key(server: SlackServer) -> None:
    """C-76: the same message by both ways has the same key, kind and time."""
    stocked(server)
    changed = {"type": "message", "subtype": "message_changed", "channel": "C1", "event_ts": ts(31)}
    async with slack(server) as connector:
        polled = {one.dedupe_key: one for one in signals(await pages(connector, ME, EARLY))}
        for event in (
            {**server.history["C1"][0], "channel": "C1"},
            {**server.replies["C1", ts(4)][1], "channel": "C1"},
            {**server.history["C2"][0], "channel": "C2"},
            {**changed, "message": server.history["C1"][2]},
        ):
            (signal,) = await told(connector, **event)
            assert signal == polled[signal.dedupe_key]


async def test_what_is_no_event_becomes_no_signal_and_what_is_broken_is_parked(server: SlackServer) -> None:
    """C-54, C-74: other deliveries mean nothing; one that is not as documented is a permanent error."""
    async with slack(server) as connector:
        for payload in (None, [], {"type": "app_rate_limited"}, {"type": "event_callback", "event": 7}):
            delivery = Delivery(id="1", headers={}, payload=payload, received_at=datetime.now(UTC))
            assert (await connector.handle_webhook(ME, delivery)).signals == ()
        for event in (
            {"type": "message", "channel": "C1"},
            {"type": "message", "channel": "C1", "ts": "soon"},
            {"type": "reaction_added"},
            {"type": "message", "subtype": "message_changed", "channel": "C1", "event_ts": ts(0)},
        ):
            with pytest.raises(Permanent, match="slack: an event is not as documented"):
                await told(connector, **event)


async def test_slack_is_told_that_we_are_there(server: SlackServer) -> None:
    """C-45: `url_verification` is answered with its challenge, and nothing else is."""
    async with slack(server) as connector:
        asked = {
            "type": "url_verification",
            "token": "x",
            "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWM",
        }
        assert connector.challenge(asked) == {"challenge": asked["challenge"]}
        for payload in (None, [], {}, callback(message(1)), {"type": "url_verification", "challenge": 7}):
            assert connector.challenge(payload) is None


async def test_a_delivery_is_known_by_slacks_id_or_by_its_bytes(server: SlackServer) -> None:
    """C-50: `event_id`, else the SHA-256 of the body."""
    async with slack(server) as connector:
        assert connector.delivery_id({}, json.dumps(callback({}, "Ev1")).encode()) == "Ev1"
        for body in (b"{}", b"{oops", b"[]", b'{"event_id": 7}', b'{"event_id": ""}', b"[" * 100_000):
            assert connector.delivery_id({}, body) == hashlib.sha256(body).hexdigest()


async def test_a_delivery_names_the_workspace_for_which_it_was_sent(server: SlackServer) -> None:
    """C-51: of a channel that two companies share, it is ours and not where it was said."""
    whole = {"enterprise_id": "E1", "team_id": "T7", "is_enterprise_install": True}
    async with slack(server) as connector:
        assert connector.external_ids({}, callback({})) == ("T1",)
        assert connector.external_ids({}, callback({}, team_id="T2")) == ("T1",)
        assert connector.external_ids({}, callback({}, authorizations=[whole])) == ("E1",)
        assert connector.external_ids({}, {"team_id": "T2"}) == ("T2",)
        for odd in (None, [], {}, {"team_id": 7}, {"authorizations": [7]}, {"authorizations": [{}]}):
            assert connector.external_ids({}, odd) == ()


def read(file: Path) -> Any:
    """What a provider says in a golden file."""
    return json.loads(file.read_text())["given"]


@pytest.mark.parametrize("file", golden("slack"))
async def test_each_kind_has_a_golden_file(server: SlackServer, file: Path) -> None:
    """C-76, C-77: through the functions that production uses, by event and, where it can be, by poll."""
    given = read(file)
    delivery = Delivery(id="1", headers={}, payload=given["webhook"], received_at=datetime.now(UTC))
    async with slack(server) as connector:
        pushed = (await connector.handle_webhook(ME, delivery)).signals
    polled: tuple[Signal, ...] = ()
    if one := given.get("polled"):
        polled = facts.posted(one["channel"], one["message"])
        assert {one.dedupe_key for one in pushed} <= {one.dedupe_key for one in polled}
    check_golden(file, lambda _: [*pushed, *polled])


def test_there_is_a_golden_file_for_everything_that_slack_can_mean() -> None:
    """C-77: one for each kind."""
    kinds = {"message_posted", "message_updated", "message_deleted", "reaction_added"}
    assert {param.id for param in golden("slack")} == kinds
