"""Connectors at work: over their loopback servers, by a real worker, into the real tables."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from connectors.kit import Stage, stage
from connectors.provided import CLIENT
from connectors.servers.base import Server
from connectors.servers.gmail import MAILBOX, GmailServer, message, push
from connectors.servers.google import GOOD, pushed, refused
from connectors.servers.google_calendar import CalendarServer, event
from connectors.servers.google_drive import DriveServer, file
from connectors.servers.jira import CLOUD, JiraServer, hook, issue, moved, status, to
from connectors.servers.jira import GOOD as JIRA_GOOD
from connectors.servers.zoho_cliq import CHANNEL, participation
from connectors.servers.zoho_mail import GOOD as ZOHO_GOOD
from connectors.servers.zoho_mail import MAILBOX as ZOHO_MAILBOX
from connectors.servers.zoho_mail import ZohoMailServer
from connectors.servers.zoho_mail import message as zoho_message
from holdfast.apps.connectors import inbox
from holdfast.apps.connectors.connections import Link
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings, Settings


@asynccontextmanager
async def at_work(settings: Settings, conn: Connection, **servers: Server) -> AsyncIterator[Stage]:
    """An app whose providers are these servers."""
    async with AsyncExitStack() as stack:
        providers = {
            slug: ProviderSettings(
                api_url=stack.enter_context(server).url,
                auth_url=server.url,
                client_id=CLIENT[0],
                client_secret=CLIENT[1],
            )
            for slug, server in servers.items()
        }
        yield await stack.enter_async_context(stage(replace(settings, providers=providers), conn))


async def deliver(on: Stage, link: Link, id: str, headers: Mapping[str, str], payload: Any) -> None:
    """A webhook that has proven itself."""
    await inbox.receive(
        on.conn,
        on.store,
        provider=link.provider,
        tenant_id=link.tenant_id,
        link=link,
        delivery_id=id,
        headers=headers,
        payload=payload,
        body_sha256="0" * 64,
        verification="shared_secret",
    )


async def kinds(on: Stage, link: Link) -> list[str]:
    query = "select kind from signals where connection_id = %s order by occurred_at, kind"
    return [row["kind"] for row in await on.rows(query, link.id)]


async def test_an_empty_push_of_drive_brings_what_has_changed(settings: Settings, conn: Connection) -> None:
    """C-53: no body, no JSON, no data; and the next sync finds it."""
    server = DriveServer()
    async with at_work(settings, conn, google_drive=server) as on:
        link = await on.link(provider="google_drive", external_id="0918", access=GOOD)
        server.put(file("old"), 0)
        await on.add(link)
        await on.work()
        assert await kinds(on, link) == ["file_created"]
        server.put(file("old", 0, 600), 600)
        await deliver(on, link, "channel-1:2", pushed("change"), None)
        await on.work()
        assert await kinds(on, link) == ["file_created", "file_updated"]
        assert (await on.delivery("channel-1:2"))["error"] is None


async def test_a_calendar_tells_nothing_of_what_was_there_before(
    settings: Settings, conn: Connection
) -> None:
    """C-76: the first sync is the baseline, in as many jobs as it takes."""
    server = CalendarServer()
    server.most = 2
    async with at_work(settings, conn, google_calendar=server) as on:
        link = await on.link(provider="google_calendar", external_id="ada@example.com", access=GOOD)
        for n in range(5):
            server.put(event(f"e{n}", n))
        await on.add(link)
        await on.work()
        assert await kinds(on, link) == []
        server.put(event("new", 100))
        await on.add(link)
        await on.work()
        assert await kinds(on, link) == ["calendar_event_created"]


async def test_a_token_that_gmail_refuses_is_refreshed_and_the_sync_goes_on(
    settings: Settings, conn: Connection
) -> None:
    """C-43, C-60: once, by the refresh token, which stays."""
    server = GmailServer()
    async with at_work(settings, conn, gmail=server) as on:
        link = await on.link(
            provider="gmail", external_id=MAILBOX, access="ya29.expired", refresh="1//refresh"
        )
        server.arrive(message("m1"))
        job = await on.add(link, cursor={"history": "1000"})
        await on.work()
        assert (await on.job(job))["status"] == "succeeded"
        assert await kinds(on, link) == ["email_received"]
        assert on.opened(link, (await on.now(link)).refresh) == "1//refresh"


async def test_a_push_of_gmail_brings_the_new_message(settings: Settings, conn: Connection) -> None:
    """C-53: Pub/Sub says which mailbox, the history says what."""
    server = GmailServer()
    async with at_work(settings, conn, gmail=server) as on:
        link = await on.link(provider="gmail", external_id=MAILBOX, access=GOOD)
        await on.add(link)
        await on.work()
        server.arrive(message("m1"))
        await deliver(on, link, "136969346945", {}, push())
        await on.work()
        assert await kinds(on, link) == ["email_received"]


async def test_the_limit_of_googles_project_holds_back_all_of_its_accounts(
    settings: Settings, conn: Connection
) -> None:
    """C-42: a user's own limit holds back that user alone."""
    server = GmailServer()
    async with at_work(settings, conn, gmail=server) as on:
        link = await on.link(provider="gmail", external_id=MAILBOX, access=GOOD)
        server.fail_next(403, body=refused(403, "userRateLimitExceeded"))
        await on.add(link)
        await on.work()
        assert await on.rest("gmail") is None
        assert "cooldown_until" in await on.sync_of(link)
        other = await on.link(provider="gmail", external_id="ben@example.com", access=GOOD)
        server.fail_next(403, body=refused(403, "rateLimitExceeded"))
        await on.add(other)
        await on.work()
        assert await on.rest("gmail") is not None


async def test_what_jira_sends_and_what_a_search_finds_is_stored_once(
    settings: Settings, conn: Connection
) -> None:
    """C-39, C-76: poll and webhook agree, whichever comes first."""
    server = JiraServer()
    resolved = issue(1, 0, 60.25, status=status("Done"))
    async with at_work(settings, conn, jira=server) as on:
        link = await on.link(provider="jira", external_id=CLOUD, access=JIRA_GOOD)
        await deliver(on, link, "a", {}, hook("jira:issue_created", issue(1)))
        await deliver(on, link, "b", {}, hook("jira:issue_updated", resolved, to("To Do", "Done")))
        await on.work()
        history = [moved(60.249, "To Do", "Done")]
        server.issues = [{**resolved, "changelog": {"histories": history}}, issue(2, 90)]
        await on.add(link)
        await on.work()
        await deliver(on, link, "c", {}, hook("jira:issue_created", issue(2, 90)))
        await on.work()
        assert await kinds(on, link) == ["issue_created", "issue_resolved", "issue_created"]


async def test_a_message_of_cliq_is_stored_and_its_connection_stays_well(
    settings: Settings, conn: Connection
) -> None:
    """C-66: it has no token and nothing to poll, and neither is a failure."""
    async with at_work(settings, conn) as on:
        link = await on.link(provider="zoho_cliq", external_id=CHANNEL, access=None, refresh=None)
        await deliver(on, link, "a", {}, participation("message_sent"))
        await deliver(on, link, "b", {}, participation("message_sent"))
        job = await on.add(link)
        await on.work()
        assert await kinds(on, link) == ["message_posted"]
        assert (await on.job(job))["status"] == "succeeded"
        assert (await on.now(link)).status == "active"


async def test_a_mailbox_of_zoho_is_read_with_its_overlap_and_nothing_twice(
    settings: Settings, conn: Connection
) -> None:
    """C-76: the baseline, a message, the same again, and one that came late."""
    server = ZohoMailServer()
    async with at_work(settings, conn, zoho_mail=server) as on:
        link = await on.link(provider="zoho_mail", external_id=ZOHO_MAILBOX, access=ZOHO_GOOD)
        server.messages = [zoho_message(1, 0)]
        for new in ((), (zoho_message(2, 1000),), (zoho_message(3, 900),)):
            server.messages += new
            await on.add(link)
            await on.work()
        assert await kinds(on, link) == ["email_received", "email_received"]


async def test_a_full_sync_of_a_mailbox_loses_nothing_that_came_since_the_last(
    settings: Settings, conn: Connection
) -> None:
    """C-38, C-76: a baseline does not replace the cursor that is there."""
    server = GmailServer()
    async with at_work(settings, conn, gmail=server) as on:
        link = await on.link(provider="gmail", external_id=MAILBOX, access=GOOD)
        await on.add(link)
        await on.work()
        server.arrive(message("m1", seconds=5))
        server.arrive(message("m2", seconds=6))
        await on.add(link, "full")
        await on.work()
        await on.add(link)
        await on.work()
        assert await kinds(on, link) == ["email_received", "email_received"]


async def test_a_full_sync_of_a_drive_loses_no_change(settings: Settings, conn: Connection) -> None:
    """C-38: its list tells what is there, and not what has changed since the cursor."""
    server = DriveServer()
    async with at_work(settings, conn, google_drive=server) as on:
        link = await on.link(provider="google_drive", external_id="0918", access=GOOD)
        server.put(file("old"), 0)
        await on.add(link)
        await on.work()
        server.put(file("old", 0, 600), 600)
        await on.add(link, "full")
        await on.work()
        await on.add(link)
        await on.work()
        assert await kinds(on, link) == ["file_created", "file_updated"]
