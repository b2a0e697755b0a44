"""Google Calendar: consent, the baseline, events by sync tokens, and pushes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from connectors.polling import account, keys, pages, signals
from connectors.provided import (
    check_address,
    check_cursors,
    check_faults,
    check_golden,
    check_refresh_errors,
    check_secret,
    connected,
    delivery,
    golden,
    request_for,
)
from connectors.servers.google import GOOD, T0, at, pushed, refused
from connectors.servers.google_calendar import CalendarServer, event
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import Permanent, RateLimited
from holdfast.apps.connectors.providers.google_calendar import GoogleCalendar, signals_of

ADA = account("google_calendar", GOOD, external_id="ada@example.com")
EVENTS = "/calendar/v3/calendars/ada%40example.com/events"


@pytest.fixture
def server() -> Iterator[CalendarServer]:
    with CalendarServer() as running:
        yield running


@pytest.fixture
async def calendar(server: CalendarServer) -> AsyncIterator[GoogleCalendar]:
    async with connected(GoogleCalendar, server) as connector:
        yield connector


def test_its_line_is_that_of_the_catalogue() -> None:
    """C-9: slug, scopes and webhooks are as the catalogue has them."""
    assert GoogleCalendar.provider in PROVIDERS


# -- consent ---------------------------------------------------------------------------------------------


async def test_consent_is_asked_offline_and_anew_by_the_long_names_of_scopes() -> None:
    """C-63: without `offline` and `consent` Google gives no refresh token the second time."""
    query = await check_address(GoogleCalendar)
    assert query["scope"] == "https://www.googleapis.com/auth/calendar.readonly"
    assert (query["access_type"], query["prompt"]) == ("offline", "consent")


async def test_a_code_brings_the_primary_calendar_and_its_tokens(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-35: the account is the calendar, called by its id."""
    request = request_for(GoogleCalendar)
    server.codes["4/code"] = request.code_challenge
    grant = await calendar.exchange("4/code", request)
    assert (grant.external_id, grant.display_name) == ("ada@example.com", "Ada")
    assert (grant.expires_in, grant.scopes) == (3599, ("calendar.readonly",))
    assert grant.refresh_token in server.refresh_tokens


async def test_the_text_of_an_error_decides_what_becomes_of_a_refresh(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-59, C-60: a good one keeps its refresh token, others are refused for good or for now."""
    assert (await calendar.refresh("1//refresh")).refresh_token is None
    await check_refresh_errors(calendar, server, "/token")


# -- polling ---------------------------------------------------------------------------------------------


async def test_the_first_sync_only_sets_the_baseline(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-76: what is there before is read to its end, for the token, and not told."""
    for n in range(7):
        server.put(event(f"e{n}", -9000 + n))
    server.most = 3
    found = await pages(calendar, ADA)
    assert signals(found) == []
    assert found[-1].next_cursor == {"sync": "sync-7", "since": server.updated}
    assert len(server.asked(EVENTS)) == 3
    assert all("items" not in asked.query["fields"] for asked in server.asked(EVENTS))


async def test_what_happens_after_the_baseline_becomes_its_kind(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-74: made, changed and cancelled events, each with the time of the fact itself."""
    server.put(event("old", -9000))
    server.put(event("doomed", -8000))
    cursor = (await pages(calendar, ADA))[-1].next_cursor
    server.put(event("new", 60))
    server.put(event("old", -9000, 70))
    server.put(event("doomed", -8000, 80, status="cancelled"))
    found = await pages(calendar, ADA, cursor)
    assert [(one.kind, one.occurred_at - T0) for one in signals(found)] == [
        ("calendar_event_created", timedelta(seconds=60)),
        ("calendar_event_updated", timedelta(seconds=70)),
        ("calendar_event_deleted", timedelta(seconds=80)),
    ]
    assert keys(found, "calendar_event_created") == [
        "google_calendar:calendar_event_created:ada@example.com:new:2026-03-01T12:01:00Z"
    ]
    assert not signals(await pages(calendar, ADA, found[-1].next_cursor))


async def test_an_event_that_was_made_and_changed_between_two_looks_tells_both(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-76: its times say that it is new and that it was changed."""
    cursor = (await pages(calendar, ADA))[-1].next_cursor
    server.put(event("e", 60, 300))
    found = await pages(calendar, ADA, cursor)
    assert [one.kind for one in signals(found)] == ["calendar_event_created", "calendar_event_updated"]


async def test_a_cancelled_event_may_be_little_more_than_its_id(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-36: Google promises no more of it; the calendar's own time stands in."""
    cursor = (await pages(calendar, ADA))[-1].next_cursor
    server.updated = at(500)
    server.put({"id": "gone", "status": "cancelled"})
    (signal,) = signals(await pages(calendar, ADA, cursor))
    assert (signal.kind, signal.occurred_at) == ("calendar_event_deleted", T0 + timedelta(seconds=500))


async def test_changes_come_page_by_page_and_in_portions(server: CalendarServer) -> None:
    """C-37: after `max_items` the rest is for the follow-up, with the same token and a page."""
    async with connected(GoogleCalendar, server, max_items=2) as calendar:
        cursor = (await pages(calendar, ADA))[-1].next_cursor
        for n in range(5):
            server.put(event(f"e{n}", 60 + n))
        server.most = 2
        found = await pages(calendar, ADA, cursor)
    assert [len(page.signals) for page in found] == [2, 2, 1]
    assert found[0].next_cursor == {**cursor, "page": "page-2"}
    assert found[-1].next_cursor == {"sync": "sync-5", "since": at(64)}


async def test_a_token_that_google_has_given_up_leads_to_a_new_baseline(
    calendar: GoogleCalendar, server: CalendarServer, caplog: pytest.LogCaptureFixture
) -> None:
    """C-76: 410 is no failure, but is logged: what happened meanwhile is lost, what comes after is told."""
    cursor = (await pages(calendar, ADA))[-1].next_cursor
    server.put(event("missed", 60))
    server.kept_from = server.number
    found = await pages(calendar, ADA, cursor)
    assert signals(found) == []
    assert found[-1].next_cursor == {"sync": "sync-1", "since": at(60)}
    server.put(event("told", 120))
    (signal,) = signals(await pages(calendar, ADA, found[-1].next_cursor))
    assert signal.payload["id"] == "told"
    assert "Google has forgotten our place" in caplog.text


async def test_a_page_that_is_not_known_any_more_is_read_anew_from_the_first(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-76: by the same sync token; what is told twice has the same key."""
    cursor = (await pages(calendar, ADA))[-1].next_cursor
    for n in range(3):
        server.put(event(f"e{n}", 60 + n))
    server.stale = {"page-77"}
    found = await pages(calendar, ADA, {**cursor, "page": "page-77"})
    assert len(keys(found)) == 3
    assert found[-1].next_cursor == {"sync": "sync-3", "since": at(62)}


# -- faults ----------------------------------------------------------------------------------------------


async def test_each_failure_of_the_api_means_what_is_to_be_done(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-36: 401, 429 by seconds and by date, other 4xx, 5xx, and answers that nobody can read."""
    await check_faults(calendar, server, ADA, None, EVENTS)
    await check_faults(calendar, server, ADA, {"sync": "sync-0", "since": at(0)}, EVENTS)


async def test_a_limit_in_a_403_is_a_limit_and_says_whose(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-36: the project's limit is that of all accounts, a user's is one's own."""
    for reason, shared in (("rateLimitExceeded", True), ("userRateLimitExceeded", False)):
        server.fail_next(403, body=refused(403, reason), path=EVENTS)
        with pytest.raises(RateLimited) as told:
            await calendar.sync(ADA, None)
        assert told.value.shared is shared


async def test_an_answer_without_a_token_or_with_odd_events_is_unreadable(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-36: nothing is guessed, and the cursor stays where it was."""
    cursor = {"sync": "sync-0", "since": at(0)}
    for body in (
        {"updated": at(1)},
        {"updated": at(1), "nextSyncToken": 7},
        {"updated": "yesterday", "nextSyncToken": "sync-1"},
        {"updated": at(1), "nextSyncToken": "sync-1", "items": [7]},
        {"updated": at(1), "nextSyncToken": "sync-1", "items": [{"id": "e", "status": "confirmed"}, {}]},
        {"updated": at(1), "nextSyncToken": "sync-1", "items": [{**event("e"), "attendees": "all"}]},
    ):
        server.fail_next(200, body=body, path=EVENTS)
        with pytest.raises(Exception, match="nobody can read"):
            await calendar.sync(ADA, cursor)


async def test_a_cursor_that_is_none_of_ours_is_refused(calendar: GoogleCalendar) -> None:
    """C-34: a person may write a cursor; a wrong one says what to do."""
    await check_cursors(calendar, ADA, ["x", 7, [], {"page": 7}, {"sync": 7}, {"since": 7}, {"since": "x"}])


async def test_a_calendar_that_is_gone_is_a_permanent_failure(
    calendar: GoogleCalendar, server: CalendarServer
) -> None:
    """C-36: 404."""
    server.fail_next(404, body=refused(404, "notFound", "global"), path=EVENTS)
    with pytest.raises(Permanent):
        await calendar.sync(ADA, None)


# -- pushes ----------------------------------------------------------------------------------------------


async def test_a_push_wants_a_sync_and_the_opening_of_a_channel_does_not(calendar: GoogleCalendar) -> None:
    """C-53: a push carries no data."""
    for state in ("exists", "not_exists"):
        assert (await calendar.handle_webhook(ADA, delivery(None, pushed(state)))).wants_sync
    assert not (await calendar.handle_webhook(ADA, delivery(None, pushed("sync")))).wants_sync


def test_a_push_is_called_by_its_channel_and_number_and_names_its_calendar(calendar: GoogleCalendar) -> None:
    """C-50, C-51: by the channel's id, that of what is watched, or the calendar in its address."""
    uri = "https://www.googleapis.com/calendar/v3/calendars/ada%40example.com/events?alt=json"
    headers = pushed("exists", number=9, **{"x-goog-resource-uri": uri})
    assert calendar.delivery_id(headers, b"") == "channel-1:9"
    assert calendar.external_ids(headers, None) == ["channel-1", "ret08u3rv24htgh289g", "ada@example.com"]
    assert calendar.external_ids({"x-goog-resource-uri": "https://[oops"}, None) == []


def test_a_push_proves_itself_by_the_token_of_its_channel() -> None:
    """C-47: which is the operator's secret or the tenant's own."""
    check_secret(GoogleCalendar, lambda secret: {"x-goog-channel-token": secret})


@pytest.mark.parametrize("file", golden("google_calendar"))
def test_each_kind_has_a_golden_file(file: Path) -> None:
    """C-77: through the function that production uses."""
    check_golden(file, lambda given: signals_of(given["event"], given["calendar"], moment(given["since"])))


def test_there_is_a_golden_file_for_everything_that_google_calendar_can_mean() -> None:
    """C-77: one for each kind, and no other."""
    named = {f"calendar_event_{what}" for what in ("created", "updated", "deleted")}
    assert {param.id for param in golden("google_calendar")} == named
