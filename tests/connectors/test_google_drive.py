"""Google Drive: consent, the list of files and the feed of changes, and pushes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
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
    check_secret,
    connected,
    delivery,
    golden,
    request_for,
)
from connectors.servers.google import GOOD, T0, at, pushed, refused
from connectors.servers.google_drive import DriveServer, file
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import Permanent, RateLimited
from holdfast.apps.connectors.providers.google_drive import GoogleDrive, signals_of

ADA = account("google_drive", GOOD, external_id="0918")
CHANGES = "/drive/v3/changes"


@pytest.fixture
def server() -> Iterator[DriveServer]:
    with DriveServer() as running:
        yield running


@pytest.fixture
async def drive(server: DriveServer) -> AsyncIterator[GoogleDrive]:
    async with connected(GoogleDrive, server) as connector:
        yield connector


async def baseline(drive: GoogleDrive) -> Any:
    """The cursor after the first sync, as if that had been at the beginning of the server's time."""
    cursor = (await pages(drive, ADA))[-1].next_cursor
    assert abs(moment(cursor["since"]) - datetime.now(UTC)) < timedelta(minutes=5)
    return {**cursor, "since": T0.isoformat()}


def test_its_line_is_that_of_the_catalogue() -> None:
    """C-9: slug, scopes and webhooks are as the catalogue has them."""
    assert GoogleDrive.provider in PROVIDERS


# -- consent ---------------------------------------------------------------------------------------------


async def test_consent_is_asked_offline_and_anew_by_the_long_names_of_scopes() -> None:
    """C-63: without `offline` and `consent` Google gives no refresh token the second time."""
    query = await check_address(GoogleDrive)
    assert query["scope"] == "https://www.googleapis.com/auth/drive.readonly"
    assert (query["access_type"], query["prompt"]) == ("offline", "consent")


async def test_a_code_brings_the_account_its_tokens_and_its_short_scopes(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-35: the exchange proves who asked, and says whose Drive it is."""
    request = request_for(GoogleDrive)
    server.codes["4/code"] = request.code_challenge
    grant = await drive.exchange("4/code", request)
    assert (grant.external_id, grant.display_name) == ("0918", "ada@example.com")
    assert (grant.expires_in, grant.scopes) == (3599, ("drive.readonly",))
    assert grant.access_token in server.tokens
    assert grant.refresh_token in server.refresh_tokens
    with pytest.raises(Permanent):
        await drive.exchange("4/code", request)


async def test_a_refresh_without_a_new_refresh_token_keeps_the_old(drive: GoogleDrive) -> None:
    """C-60: Google sends none, and that is no loss."""
    grant = await drive.refresh("1//refresh")
    assert (grant.external_id, grant.refresh_token) == ("", None)
    assert grant.expires_in == 3599


async def test_the_text_of_an_error_decides_what_becomes_of_a_refresh(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-59: invalid_grant is for good, too_many_requests passes."""
    with pytest.raises(Permanent):
        await drive.refresh("1//unknown")
    await check_refresh_errors(drive, server, "/token")


async def test_a_token_is_revoked_and_one_that_is_gone_hurts_nobody(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-70: a disconnect tells Google."""
    await drive.revoke(GOOD)
    assert GOOD not in server.tokens
    await drive.revoke(GOOD)


# -- polling ---------------------------------------------------------------------------------------------


async def test_the_first_sync_lists_what_is_there_page_by_page(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-36: every file that is not in the bin is told once, however many pages it takes."""
    server.files = [file(f"f{n}", -n) for n in range(7)] + [file("binned", trashed=True)]
    server.most = 3
    found = await pages(drive, ADA)
    assert [one.kind for one in signals(found)] == ["file_created"] * 7
    assert len(keys(found)) == 7
    assert set(found[-1].next_cursor) == {"token", "since"}


async def test_a_page_of_ours_holds_no_more_than_it_may(server: DriveServer) -> None:
    """C-37: after `max_items` the rest is for the follow-up."""
    server.files = [file(f"f{n}") for n in range(10)]
    server.most = 2
    async with connected(GoogleDrive, server, max_items=4) as drive:
        found = await pages(drive, ADA)
    assert [len(page.signals) for page in found] == [4, 4, 2]
    assert len(keys(found)) == 10


async def test_the_feed_tells_of_new_changed_binned_and_removed_files(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-74: each becomes its kind, with the time of the fact itself."""
    for name in ("old", "bin", "gone"):
        server.put(file(name, -9000), -9000)
    cursor = await baseline(drive)
    server.put(file("new", 60), 60)
    server.put(file("old", -9000, 70), 70)
    server.put(file("bin", -9000, trashed=True, trashedTime=at(80)), 80)
    server.remove("gone", 90)
    found = await pages(drive, ADA, cursor)
    assert [(one.kind, one.occurred_at - T0) for one in signals(found)] == [
        ("file_created", timedelta(seconds=60)),
        ("file_updated", timedelta(seconds=70)),
        ("file_deleted", timedelta(seconds=80)),
        ("file_deleted", timedelta(seconds=90)),
    ]
    assert keys(found, "file_updated") == ["google_drive:file_updated:old:2026-03-01T12:01:10Z"]
    assert found[-1].next_cursor == {"token": "7", "since": (T0 + timedelta(seconds=90)).isoformat()}
    assert not signals(await pages(drive, ADA, found[-1].next_cursor))


async def test_a_file_that_was_made_and_changed_between_two_looks_tells_both(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-76: the feed has a file once, as it is now; its times say that it is new and that it was changed."""
    cursor = await baseline(drive)
    server.put(file("draft", 60), 60)
    server.put(file("draft", 60, 300), 300)
    found = await pages(drive, ADA, cursor)
    assert [one.kind for one in signals(found)] == ["file_created", "file_updated"]


async def test_all_pages_of_the_feed_agree_on_what_is_new(drive: GoogleDrive, server: DriveServer) -> None:
    """C-37: a page that was read moves the place in the feed, and not the time since when things are new."""
    cursor = await baseline(drive)
    for n in range(6):
        server.put(file(f"f{n}", 100 - n), 100 + n)  # the last is the oldest
    server.most = 2
    found = await pages(drive, ADA, cursor)
    assert [one.kind for one in signals(found)] == ["file_created"] * 6
    assert len(server.asked(CHANGES)) == 3


async def test_what_was_read_stays_when_a_later_page_fails(drive: GoogleDrive, server: DriveServer) -> None:
    """C-36: the first page is kept with its place, and the next call is the one that raises."""
    cursor = await baseline(drive)
    for n in range(4):
        server.put(file(f"f{n}", 60 + n), 60 + n)
    server.most = 2
    server.fail_next(429, {"Retry-After": "5"}, path=CHANGES, skip=1, times=2)
    first = await drive.sync(ADA, cursor)
    assert (len(first.signals), first.has_more) == (2, True)
    with pytest.raises(RateLimited):
        await drive.sync(ADA, first.next_cursor)
    rest = await pages(drive, ADA, first.next_cursor)
    assert [one.payload["id"] for one in signals(rest)] == ["f2", "f3"]


async def test_a_listing_whose_place_is_forgotten_begins_anew_once(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-76: a page token ends after some hours; what is told twice has the same key."""
    server.files = [file(f"f{n}") for n in range(4)]
    server.most = 2
    server.stale = {"page-77"}
    cursor = {"token": "0", "since": T0.isoformat(), "listing": True, "page": "page-77"}
    found = await pages(drive, ADA, cursor)
    assert len(keys(found)) == 4
    assert found[-1].next_cursor == {"token": "0", "since": T0.isoformat()}
    server.stale |= {"page-2"}
    with pytest.raises(Permanent):
        await pages(drive, ADA, cursor)


async def test_a_change_of_a_whole_drive_is_no_signal() -> None:
    """C-74: what is in no closed kind becomes no signal."""
    assert signals_of({"changeType": "drive", "driveId": "d", "time": at(1)}, T0) == ()


# -- faults ----------------------------------------------------------------------------------------------


async def test_each_failure_of_the_api_means_what_is_to_be_done(
    drive: GoogleDrive, server: DriveServer
) -> None:
    """C-36: 401, 429 by seconds and by date, other 4xx, 5xx, and answers that nobody can read."""
    await check_faults(drive, server, ADA, {"token": "0", "since": T0.isoformat()}, CHANGES)


@pytest.mark.parametrize(
    ("body", "shared"),
    [
        (refused(403, "rateLimitExceeded"), True),
        (refused(403, "dailyLimitExceeded"), True),
        (refused(403, "userRateLimitExceeded"), False),
        (
            {"error": {"details": [{"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "Total"}}]}},
            True,
        ),
        (
            {
                "error": {
                    "details": [
                        {"reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota_limit": "PerMinutePerUser"}}
                    ]
                }
            },
            False,
        ),
    ],
)
async def test_a_limit_in_a_403_is_a_limit_and_says_whose(
    drive: GoogleDrive, server: DriveServer, body: Any, shared: bool
) -> None:
    """C-36: the project's limit is that of all accounts, a user's is one's own."""
    server.fail_next(403, body=body, path=CHANGES)
    with pytest.raises(RateLimited) as told:
        await drive.sync(ADA, {"token": "0", "since": T0.isoformat()})
    assert told.value.shared is shared


@pytest.mark.parametrize("body", [b"", b"<html>", {"error": "no"}, {"error": {"errors": ["odd"]}}, [1]])
async def test_any_other_403_is_for_good(drive: GoogleDrive, server: DriveServer, body: Any) -> None:
    """C-36: whatever its body looks like."""
    server.fail_next(403, body=body, path=CHANGES)
    with pytest.raises(Permanent):
        await drive.sync(ADA, {"token": "0", "since": T0.isoformat()})


async def test_a_cursor_that_is_none_of_ours_is_refused(drive: GoogleDrive) -> None:
    """C-34: a person may write a cursor; a wrong one says what to do."""
    await check_cursors(
        drive, ADA, ["x", 7, {}, {"token": 7, "since": "x"}, {"token": "1"}, {"token": "1", "since": "x"}, []]
    )


# -- pushes ----------------------------------------------------------------------------------------------


async def test_a_push_wants_a_sync_and_the_opening_of_a_channel_does_not(drive: GoogleDrive) -> None:
    """C-53: a push carries no data."""
    assert (await drive.handle_webhook(ADA, delivery(None, pushed("change")))).wants_sync
    assert not (await drive.handle_webhook(ADA, delivery(None, pushed("sync")))).wants_sync


def test_a_push_is_called_by_its_channel_and_number(drive: GoogleDrive) -> None:
    """C-50: the body is empty, so it is the headers that tell one push from another."""
    assert drive.delivery_id(pushed("change", number=8), b"") == "channel-1:8"
    assert len(drive.delivery_id({}, b"")) == 64


def test_a_push_is_for_whoever_has_its_channel(drive: GoogleDrive) -> None:
    """C-51: by the channel's id, or that of what is watched."""
    assert drive.external_ids(pushed("change"), None) == ["channel-1", "ret08u3rv24htgh289g"]
    assert drive.external_ids({}, None) == []


def test_a_push_proves_itself_by_the_token_of_its_channel() -> None:
    """C-47: which is the operator's secret or the tenant's own."""
    check_secret(GoogleDrive, lambda secret: {"x-goog-channel-token": secret})


@pytest.mark.parametrize("file", golden("google_drive"))
def test_each_kind_has_a_golden_file(file: Path) -> None:
    """C-77: through the function that production uses."""
    check_golden(file, lambda given: signals_of(given["change"], moment(given["since"])))


def test_there_is_a_golden_file_for_everything_that_google_drive_can_mean() -> None:
    """C-77: one for each kind, and no other."""
    named = {"file_created", "file_updated", "file_deleted"}
    assert {param.id for param in golden("google_drive")} == named
