"""Jira: consent and sites, the search for what has changed, and webhooks that agree with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
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
from connectors.servers.jira import (
    CLOUD,
    GOOD,
    HOST,
    PARIS,
    T0,
    JiraServer,
    at,
    comment,
    hook,
    issue,
    moved,
    status,
    to,
)
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import moment
from holdfast.apps.connectors.protocol import Permanent, RateLimited, Signal, Transient
from holdfast.apps.connectors.providers import jira_facts
from holdfast.apps.connectors.providers.jira import OVERLAP, Jira

ACME = account("jira", GOOD, external_id=CLOUD)
SEARCH = f"/ex/jira/{CLOUD}/rest/api/3/search/jql"
START = int(T0.timestamp() * 1000)


@pytest.fixture
def server() -> Iterator[JiraServer]:
    with JiraServer() as running:
        yield running


@pytest.fixture
async def jira(server: JiraServer) -> AsyncIterator[Jira]:
    async with connected(Jira, server) as connector:
        yield connector


async def told(jira: Jira, payload: Any) -> tuple[Signal, ...]:
    """What a webhook means."""
    return (await jira.handle_webhook(ACME, delivery(payload))).signals


def test_its_line_is_that_of_the_catalogue() -> None:
    """C-9: slug, scopes and webhooks are as the catalogue has them."""
    assert Jira.provider in PROVIDERS


# -- consent ---------------------------------------------------------------------------------------------


async def test_consent_names_the_audience_and_asks_for_a_refresh_token() -> None:
    """C-63: Atlassian wants audience and prompt; offline_access brings the refresh token."""
    query = await check_address(Jira)
    assert query["audience"] == "api.atlassian.com"
    assert query["prompt"] == "consent"
    assert query["scope"] == "read:jira-work read:jira-user offline_access"


async def test_a_code_brings_the_site_its_tokens_and_how_its_webhooks_name_it(
    jira: Jira, server: JiraServer
) -> None:
    """C-35, C-51: the account is the site by its cloud id; webhooks name its host."""
    request = request_for(Jira)
    server.codes["code-1"] = request.code_challenge
    grant = await jira.exchange("code-1", request)
    assert (grant.external_id, grant.display_name) == (CLOUD, "acme")
    assert (grant.access_token, grant.refresh_token, grant.expires_in) == ("eyJ.1", "refresh-1", 3600)
    assert grant.metadata["webhook"] == {"external_ids": [HOST]}
    with pytest.raises(Permanent):
        await jira.exchange("code-1", request)


async def test_of_several_sites_the_first_with_jira_by_its_name_is_taken(
    jira: Jira, server: JiraServer
) -> None:
    """C-35: the list has no order of its own, so that the same choice is made each time."""
    wiki = {"id": "w", "name": "aaa", "url": "https://a.atlassian.net", "scopes": ["read:confluence"]}
    other = {**server.sites[0], "id": "z", "name": "zebra", "url": "https://zebra.atlassian.net"}
    server.sites = [other, wiki, *server.sites]
    server.codes["code-1"] = request_for(Jira).code_challenge
    grant = await jira.exchange("code-1", request_for(Jira))
    assert grant.external_id == CLOUD
    assert list(grant.metadata["sites"]) == [CLOUD, "z"]
    server.sites = [wiki]
    server.codes["code-2"] = request_for(Jira).code_challenge
    with pytest.raises(Permanent, match="no site"):
        await jira.exchange("code-2", request_for(Jira))


async def test_each_refresh_brings_a_new_refresh_token(jira: Jira, server: JiraServer) -> None:
    """C-60: Atlassian rotates; the old one is good no more."""
    grant = await jira.refresh("refresh-0")
    assert (grant.external_id, grant.refresh_token) == ("", "refresh-1")
    with pytest.raises(Permanent):
        await jira.refresh("refresh-0")


async def test_the_text_of_an_error_decides_what_becomes_of_a_refresh(jira: Jira, server: JiraServer) -> None:
    """C-59: also with Atlassian's 403."""
    await check_refresh_errors(jira, server, "/oauth/token", 403)


# -- polling ---------------------------------------------------------------------------------------------


async def test_the_first_sync_tells_of_every_issue_page_by_page(jira: Jira, server: JiraServer) -> None:
    """C-36: by nextPageToken, oldest change first; the cursor is the newest change."""
    server.issues = [issue(n, created=n) for n in range(1, 8)]
    server.most = 3
    found = await pages(jira, ACME)
    assert [one.kind for one in signals(found)] == ["issue_created"] * 7
    assert found[-1].next_cursor == {"since": START + 7000}
    asked = [request.json for request in server.asked(SEARCH)]
    assert [one.get("nextPageToken") for one in asked] == [None, "page-3", "page-6"]
    assert asked[0]["jql"] == "updated >= 0 ORDER BY updated ASC"


async def test_the_next_sync_begins_a_little_before_the_newest_change(jira: Jira, server: JiraServer) -> None:
    """C-76: Jira's index is late and not in order; what is found again has the same key."""
    server.issues = [issue(1, 0)]
    cursor = (await pages(jira, ACME))[-1].next_cursor
    server.issues = [issue(1, 0), issue(2, -30)]  # indexed late
    found = await pages(jira, ACME, cursor)
    assert keys(found) == [
        "jira:issue_created:1:2026-03-01T12:00:00Z",
        "jira:issue_created:2:2026-03-01T11:59:30Z",
    ]
    assert server.asked(SEARCH)[-1].json["jql"].startswith(f"updated >= {START - OVERLAP} ")


async def test_an_old_issue_tells_only_what_is_new(jira: Jira, server: JiraServer) -> None:
    """C-76: neither its making, nor what happened to it before the cursor."""
    server.issues = [
        issue(
            1,
            -9000,
            60,
            histories=[moved(-5000, "To Do", "Done"), moved(-4000, "Done", "To Do")],
            comments=[comment(5, -3000)],
        )
    ]
    (signal,) = signals(await pages(jira, ACME, {"since": START}))
    assert (signal.kind, signal.dedupe_key) == ("issue_updated", "jira:issue_updated:1:2026-03-01T12:01:00Z")


async def test_an_end_that_was_followed_by_another_change_is_still_told(
    jira: Jira, server: JiraServer
) -> None:
    """C-75: an issue that was resolved and commented between two looks tells both."""
    server.issues = [
        issue(
            1,
            -9000,
            90,
            status=status("Done"),
            histories=[moved(60, "In Progress", "Done")],
            comments=[comment(5, 90)],
        )
    ]
    found = signals(await pages(jira, ACME, {"since": START}))
    assert [one.kind for one in found] == ["issue_resolved", "issue_comment"]


async def test_portions_end_at_the_limit_and_go_on_from_there(server: JiraServer) -> None:
    """C-37: after `max_items` the rest is for the follow-up, within the same query."""
    server.issues = [issue(n, n) for n in range(1, 6)]
    server.most = 2
    async with connected(Jira, server, max_items=2) as jira:
        found = await pages(jira, ACME)
    assert [len(page.signals) for page in found] == [2, 2, 1]
    assert found[0].next_cursor == {"since": 0, "page": "page-2", "newest": START + 2000}


async def test_what_was_read_stays_when_a_later_page_fails(jira: Jira, server: JiraServer) -> None:
    """C-36: the first page is kept with its place, and the next call is the one that raises."""
    server.issues = [issue(n, n) for n in range(1, 5)]
    server.most = 2
    server.fail_next(429, {"Retry-After": "9"}, path=SEARCH, skip=1, times=2)
    first = await jira.sync(ACME, None)
    assert (len(first.signals), first.has_more) == (2, True)
    with pytest.raises(RateLimited):
        await jira.sync(ACME, first.next_cursor)
    assert len(keys(await pages(jira, ACME, first.next_cursor))) == 2


async def test_a_page_that_is_not_known_any_more_is_read_anew_from_the_first(
    jira: Jira, server: JiraServer
) -> None:
    """C-76: a page token ends after seven days; the query begins again, once."""
    server.issues = [issue(n, n) for n in range(1, 4)]
    server.stale = {"page-77"}
    found = await pages(jira, ACME, {"since": 0, "page": "page-77", "newest": 5})
    assert len(keys(found)) == 3
    assert found[-1].next_cursor == {"since": START + 3000}


# -- faults ----------------------------------------------------------------------------------------------


async def test_each_failure_of_the_api_means_what_is_to_be_done(jira: Jira, server: JiraServer) -> None:
    """C-36: 401, 429 by seconds and by date, other 4xx, 5xx, and answers that nobody can read."""
    await check_faults(jira, server, ACME, None, SEARCH)
    server.fail_next(400, body={"errorMessages": ["no"]}, path=SEARCH)
    with pytest.raises(Permanent):
        await jira.sync(ACME, None)


@pytest.mark.parametrize(
    "odd",
    [
        {"issues": 7},
        {"issues": [7]},
        {"issues": [{"id": "1"}]},
        {"issues": [{**issue(1), "changelog": {"histories": "none"}}]},
        {"issues": [issue(1, created=0, labels="none")]},
        {"issues": [{**issue(1), "fields": {**issue(1)["fields"], "updated": "noon"}}]},
    ],
)
async def test_odd_issues_are_unreadable(jira: Jira, server: JiraServer, odd: Any) -> None:
    """C-36: nothing is guessed, and the cursor stays where it was."""
    server.fail_next(200, body=odd, path=SEARCH)
    with pytest.raises(Transient):
        await jira.sync(ACME, None)


async def test_a_cursor_that_is_none_of_ours_is_refused(jira: Jira) -> None:
    """C-34: a person may write a cursor; a wrong one says what to do."""
    await check_cursors(
        jira, ACME, ["x", 7, [], {}, {"since": "x"}, {"since": 10**30}, {"since": 0, "page": 1}]
    )


# -- webhooks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ([to("In Progress", "Done")], "issue_resolved"),
        ([to("In Progress", "Resolved")], "issue_resolved"),
        ([to("In Progress", "Fertig")], "issue_resolved"),
        ([to("Resolved", "Closed")], "issue_closed"),
        ([to("Done", "In Progress")], "issue_reopened"),
        ([to("To Do", "In Progress")], "issue_updated"),
        ([{"field": "resolution", "from": "10000", "to": None}], "issue_reopened"),
        ([{"field": "resolution", "from": None, "to": "10000"}], "issue_updated"),
        ([{"field": "summary", "fromString": "Done", "toString": "Done"}], "issue_updated"),
    ],
)
async def test_what_was_changed_decides_the_kind_by_webhook_and_by_search_alike(
    jira: Jira, server: JiraServer, items: list[dict[str, Any]], kind: str
) -> None:
    """C-75, C-76: into Done or Resolved is resolved, in any language; and both ways have one key."""
    after = next((item["toString"] for item in items if item["field"] == "status"), "To Do")
    one = issue(1, -9000, 60.25, status=status(after))
    by_hook = await told(jira, hook("jira:issue_updated", one, *items))
    # A search has the time in the zone of whoever asks, and the history some milliseconds off.
    history = [{"id": "77", "created": at(60.247), "items": items}]
    server.issues = [issue(1, -9000, 60.25, status=status(after), histories=history, zone=PARIS)]
    by_search = signals(await pages(jira, ACME, {"since": START}))
    assert [signal.kind for signal in by_hook] == [signal.kind for signal in by_search] == [kind]
    assert by_hook[0].dedupe_key == by_search[0].dedupe_key


async def test_a_new_issue_is_the_same_by_both_ways(jira: Jira, server: JiraServer) -> None:
    """C-76: also when it was changed before it was found."""
    (by_hook,) = await told(jira, hook("jira:issue_created", issue(1, 5)))
    server.issues = [issue(1, 5, 500)]
    by_search = signals(await pages(jira, ACME, {"since": START}))
    assert [signal.kind for signal in by_search] == ["issue_created", "issue_updated"]
    assert by_hook.dedupe_key == by_search[0].dedupe_key == "jira:issue_created:1:2026-03-01T12:00:05Z"


async def test_a_comment_is_the_same_by_both_ways_and_is_no_other_change(
    jira: Jira, server: JiraServer
) -> None:
    """C-76: in a webhook as text, in a search as a tree; and the issue that it changed is not told again."""
    tree = {
        "type": "doc",
        "version": 1,
        "content": [
            {"type": "paragraph", "content": [{"type": "text", "text": "Looks "}, {"type": "mention"},
                                              {"type": "text", "text": "good"}]},
            {"type": "paragraph", "content": [{"type": "text", "text": "Thanks"}]},
        ],
    }  # fmt: skip
    short = {
        "id": "1",
        "key": "ACME-1",
        "self": f"https://{HOST}/rest/api/2/issue/1",
        "fields": {"summary": "S"},
    }
    (by_hook,) = await told(jira, hook("comment_created", short, comment=comment(5, 60)))
    (older,) = await told(
        jira,
        hook("jira:issue_updated", issue(1, -9000, 60), comment=comment(5, 60)),
    )
    server.issues = [issue(1, -9000, 60, comments=[comment(5, 60, tree)])]
    (by_search,) = signals(await pages(jira, ACME, {"since": START}))
    assert by_hook.dedupe_key == older.dedupe_key == by_search.dedupe_key
    assert by_hook.kind == older.kind == by_search.kind == "issue_comment"
    assert by_hook.payload["body"] == "Looks good"
    assert by_search.payload["body"] == "Looks good\nThanks"


async def test_a_change_with_a_comment_tells_both(jira: Jira) -> None:
    """C-75: a transition's screen may have one."""
    one = issue(1, -9000, 60, status=status("Done"))
    found = await told(jira, hook("jira:issue_updated", one, to("To Do", "Done"), comment=comment(5, 60)))
    assert [signal.kind for signal in found] == ["issue_comment", "issue_resolved"]


@pytest.mark.parametrize(
    "payload",
    [
        None,
        [],
        {},
        {"webhookEvent": 7},
        hook("jira:issue_deleted", issue(1)),
        hook(
            "jira:issue_updated",
            issue(1),
            comment=comment(5, 1),
            issue_event_type_name="issue_comment_deleted",
        ),
        hook("comment_deleted", issue(1), comment=comment(5, 1)),
        {"webhookEvent": "sprint_started", "sprint": {"id": 1}},
    ],
)
async def test_what_is_no_fact_of_ours_is_no_signal(jira: Jira, payload: Any) -> None:
    """C-74: and no failure."""
    assert await told(jira, payload) == ()


@pytest.mark.parametrize(
    "payload",
    [
        {"webhookEvent": "jira:issue_created"},
        {"webhookEvent": "jira:issue_updated", "issue": 7},
        {"webhookEvent": "comment_created", "issue": {"id": "1"}, "comment": {}},
    ],
)
async def test_a_webhook_that_is_not_as_documented_is_refused_for_good(jira: Jira, payload: Any) -> None:
    """C-54: it is marked and the others go on."""
    with pytest.raises(Permanent):
        await told(jira, payload)


def test_a_webhook_is_called_by_its_identifier_and_names_its_site(jira: Jira) -> None:
    """C-50, C-51: the host or the cloud id, whichever the issue's address has; else the body's hash."""
    assert jira.delivery_id({"x-atlassian-webhook-identifier": "abc-1"}, b"{}") == "abc-1"
    assert len(jira.delivery_id({}, b"{}")) == 64
    assert jira.external_ids({}, hook("jira:issue_created", issue(1))) == (HOST,)
    through = {"issue": {"self": f"https://api.atlassian.com/ex/jira/{CLOUD}/rest/api/2/issue/1"}}
    assert jira.external_ids({}, through) == (CLOUD,)
    assert jira.external_ids({}, {"comment": {"self": f"https://{HOST}/rest"}}) == (HOST,)
    for odd in (None, {}, {"issue": 7}, {"issue": {"self": 7}}, {"issue": {"self": "https://[oops"}}):
        assert jira.external_ids({}, odd) == ()


def test_a_webhook_proves_itself_by_a_shared_secret() -> None:
    """C-47: as a bearer token."""
    check_secret(Jira, lambda secret: {"authorization": f"Bearer {secret}"})


@pytest.mark.parametrize("file", golden("jira"))
def test_each_kind_has_a_golden_file(file: Path) -> None:
    """C-77: through the function that production uses; some are found, some are sent."""

    def read(given: Any) -> tuple[Signal, ...]:
        if "found" in given:
            return jira_facts.polled(given["found"], moment(given["since"]))
        return jira_facts.webhook(given["sent"]["webhookEvent"], given["sent"])

    check_golden(file, read)


def test_there_is_a_golden_file_for_everything_that_jira_can_mean() -> None:
    """C-77: one for each kind, and no other."""
    named = {f"issue_{what}" for what in ("created", "updated", "closed", "reopened", "resolved", "comment")}
    assert {param.id for param in golden("jira")} == named
