"""GitHub and Slack all the way: their servers on one side, the rows of the database on the other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from api.kit import A
from connectors.door import SECRET, TENANT, House, house
from connectors.servers import github, slack
from connectors.servers.github import GitHubServer
from connectors.servers.slack import SlackServer
from holdfast import Settings
from holdfast.apps.connectors.connections import Link
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings

MERGED = github.pull(9001, 1, 8, merged=True)


@pytest.fixture
def hub() -> Iterator[GitHubServer]:
    with GitHubServer() as server:
        server.issues = [github.issue(1), github.as_issue(MERGED, 2)]
        server.pulls["octo/hello"] = [MERGED]
        server.repositories = [github.repository(pushed_at=github.at(9))]
        server.events["octo/hello"] = [github.push_event(9)]
        yield server


@pytest.fixture
def team() -> Iterator[SlackServer]:
    with SlackServer() as server:
        server.channel("C1", slack.message(1, "one"), slack.message(2, "two"))
        yield server


def pointed(hub: GitHubServer | None = None, team: SlackServer | None = None) -> dict[str, ProviderSettings]:
    """The settings that put the test's servers in the providers' places."""
    found: dict[str, ProviderSettings] = {}
    for slug, server, client in (("github", hub, github.CLIENT), ("slack", team, slack.CLIENT)):
        if server is not None:
            found[slug] = ProviderSettings(
                api_url=server.url,
                auth_url=server.url,
                client_id=client[0],
                client_secret=client[1],
                webhook_secret=SECRET,
            )
    return found


async def kinds(here: House, link: Link) -> list[str]:
    rows = await here.rows("select kind from signals where connection_id = %s order by kind", link.id)
    return [row["kind"] for row in rows]


async def test_a_fact_that_came_by_poll_and_by_webhook_is_one_signal(
    settings: Settings, conn: Connection, hub: GitHubServer
) -> None:
    """C-39, C-76: whichever comes first, and also when a captured body comes back under a new id."""
    async with house(settings, conn, providers=pointed(hub)) as here:
        link = await here.link(tenant=TENANT, provider="github", external_id="583231", access="gho_good")
        url = f"/api/connectors/webhooks/github/{A}"

        async def send(name: str, payload: object, delivery: str) -> None:
            headers, body = github.signed(payload, SECRET, name, delivery)
            assert (await here.deliver_to(url, body, **headers)).status_code == 202
            await here.work()

        pushed = {"ref": "refs/heads/main", "before": "b" * 40, "after": "c" * 40}
        await send("push", {**pushed, "repository": github.repository()}, "d1")
        assert await kinds(here, link) == ["code_pushed"]
        await here.add(link, "full")
        await here.work()
        all_kinds = ["code_pushed", "issue_created", "pr_merged", "pr_opened"]
        assert await kinds(here, link) == all_kinds
        merged = {"action": "closed", "pull_request": MERGED, "repository": github.repository()}
        await send("pull_request", merged, "d2")
        await send("pull_request", merged, "d3")
        assert await kinds(here, link) == all_kinds
        assert [row["status"] for row in await here.jobs(link)] == ["succeeded"] * 4
        cursor = (await here.sync_of(link))["cursor"]
        assert list(cursor) == ["since"]
        for one in await here.rows("select headers from webhook_delivery"):
            assert not [name for name in one["headers"] if "signature" in name]


async def test_a_sync_in_small_pages_goes_on_through_its_follow_ups(
    settings: Settings, conn: Connection, hub: GitHubServer
) -> None:
    """C-37: each page is a job, and starts where its parent ended; the cursor goes through the database."""
    hub.issues += [github.issue(number, number) for number in range(10, 40)]
    async with house(settings, conn, providers=pointed(hub), sync_max_items=9) as here:
        link = await here.link(tenant=TENANT, provider="github", external_id="583231", access="gho_good")
        await here.add(link, "incremental", cursor={"since": github.at(-60)})
        await here.work()
        jobs = await here.jobs(link)
        assert len(jobs) > 5
        assert {job["status"] for job in jobs} == {"succeeded"}
        found = await kinds(here, link)
        assert found.count("issue_created") == 31
        assert {"code_pushed", "pr_merged"} <= set(found)


async def test_an_expired_token_is_refreshed_once_and_the_sync_goes_on(
    settings: Settings, conn: Connection, hub: GitHubServer
) -> None:
    """C-43, C-60: GitHub's refresh token rotates; what is stored afterwards is the new pair."""
    hub.refresh_tokens.add("ghr_old")
    async with house(settings, conn, providers=pointed(hub)) as here:
        scope = {"tenant": TENANT, "provider": "github", "external_id": "583231"}
        link = await here.link(**scope, access="gho_revoked", refresh="ghr_old")
        job = await here.add(link)
        await here.work()
        assert (await here.job(job))["status"] == "succeeded"
        now = await here.now(link)
        assert (here.opened(now, now.access), here.opened(now, now.refresh)) == ("ghu_1", "ghr_1")
        assert len(hub.asked("/login/oauth/access_token")) == 1
        hub.tokens.clear()
        hub.refresh_tokens.clear()
        job = await here.add(link)
        await here.work()
        assert (await here.job(job))["status"] == "failed"
        assert (await here.now(link)).status == "error"


async def test_a_limit_of_github_waits_as_long_as_github_says(
    settings: Settings, conn: Connection, hub: GitHubServer
) -> None:
    """C-36, C-40, C-42: 403 with no calls left is a rate limit, and its reset is the hint."""
    hub.left, hub.resets_in = 0, 600
    async with house(settings, conn, providers=pointed(hub)) as here:
        link = await here.link(tenant=TENANT, provider="github", external_id="583231", access="gho_good")
        job = await here.add(link)
        await here.work()
        row = await here.job(job)
        assert row["status"] == "queued"
        assert row["error"]["is_rate_limited"] is True
        assert 590 <= row["error"]["backoff_seconds"] <= 661
        hub.left = None
        await conn.execute("update connections set metadata = metadata #- '{sync,cooldown_until}'")
        await here.make_due()
        await here.work()
        assert (await here.job(job))["status"] == "succeeded"


async def test_slack_is_synced_and_its_events_are_the_same_facts(
    settings: Settings, conn: Connection, team: SlackServer
) -> None:
    """C-45, C-76: a challenge is answered; a message by event that was polled already is no second one."""
    async with house(settings, conn, providers=pointed(team=team)) as here:
        link = await here.link(tenant=TENANT, provider="slack", external_id="T1", access="xoxb-good")
        url = f"/api/connectors/webhooks/slack/{A}"

        async def send(payload: object) -> tuple[int, object]:
            headers, body = slack.signed(payload, SECRET, int(time.time()))
            response = await here.deliver_to(url, body, **headers)
            return response.status_code, response.json()

        asked = {"type": "url_verification", "challenge": "3eZbrw1aBm2r"}
        assert await send(asked) == (200, {"challenge": "3eZbrw1aBm2r"})
        await here.add(link)
        await here.work()
        assert await kinds(here, link) == ["message_posted"] * 2
        for number, message in enumerate((slack.message(2, "two"), slack.message(3, "three"))):
            event = slack.callback({**message, "channel": "C1", "event_ts": message["ts"]}, f"Ev{number}")
            assert (await send(event))[0] == 202
        await here.work()
        assert await kinds(here, link) == ["message_posted"] * 3
        assert await here.keys(link) == [f"slack:message_posted:C1:{slack.ts(n)}" for n in (1, 2, 3)]
