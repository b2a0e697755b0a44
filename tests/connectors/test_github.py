"""The connector of GitHub, against a server that speaks its documented API."""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from connectors.polling import account, keys, pages, signals
from connectors.provided import check_golden, golden
from connectors.servers.base import Asked, Reply
from connectors.servers.github import (
    CLIENT,
    ZERO,
    GitHubServer,
    as_issue,
    at,
    event,
    issue,
    pull,
    push_event,
    repository,
)
from holdfast.apps.connectors.http import opened
from holdfast.apps.connectors.protocol import (
    AuthRequest,
    Delivery,
    Permanent,
    RateLimited,
    Signal,
    Transient,
    Unauthorized,
    Unsupported,
)
from holdfast.apps.connectors.providers import github_facts as facts
from holdfast.apps.connectors.providers.github import GitHub
from holdfast.db.settings import ProviderSettings

ME = account("github", "gho_good", external_id="583231")
VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
CHALLENGE = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
REQUEST = AuthRequest(
    redirect_uri="https://app.example/back?a=1",
    state="some-state",
    scopes=("repo", "read:org"),
    code_challenge=CHALLENGE,
    code_verifier=VERIFIER,
)
RECEIVED = datetime(2026, 3, 2, tzinfo=UTC)
EARLY = {"since": at(-60)}


@pytest.fixture
def server() -> Iterator[GitHubServer]:
    with GitHubServer() as server:
        yield server


@asynccontextmanager
async def github(server: GitHubServer, max_items: int = 1000) -> AsyncIterator[GitHub]:
    settings = ProviderSettings(
        client_id=CLIENT[0], client_secret=CLIENT[1], api_url=server.url, auth_url=server.url
    )
    async with opened("github") as http:
        yield GitHub(http, settings, max_items)


def delivery(name: str, payload: Any) -> Delivery:
    return Delivery(id="1", headers={"x-github-event": name}, payload=payload, received_at=RECEIVED)


async def told(connector: GitHub, name: str, **payload: Any) -> tuple[Signal, ...]:
    """What a webhook becomes."""
    payload.setdefault("repository", repository())
    return (await connector.handle_webhook(ME, delivery(name, payload))).signals


# -- authorisation ---------------------------------------------------------------------------------------


async def test_the_way_to_authorise_has_state_scopes_and_challenge(server: GitHubServer) -> None:
    """C-63: the address carries everything but the verifier."""
    async with github(server) as connector:
        url = urlsplit(await connector.authorize_url(REQUEST))
    assert url.path == "/login/oauth/authorize"
    assert {name: values[0] for name, values in parse_qs(url.query).items()} == {
        "client_id": CLIENT[0],
        "redirect_uri": REQUEST.redirect_uri,
        "scope": "repo read:org",
        "state": "some-state",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
    }


async def test_a_code_becomes_an_account_with_its_tokens_and_organisations(server: GitHubServer) -> None:
    """C-35, C-51: the account is GitHub's number; webhooks of its organisations are for it as well."""
    server.codes["code-1"] = CHALLENGE
    async with github(server) as connector:
        grant = await connector.exchange("code-1", REQUEST)
    assert (grant.external_id, grant.display_name) == ("583231", "octocat")
    assert (grant.access_token, grant.refresh_token, grant.expires_in) == ("ghu_1", "ghr_1", 28800)
    assert grant.scopes == ("repo", "read:org")
    assert grant.metadata == {"login": "octocat", "webhook": {"external_ids": ["9919"]}}
    assert "ghu_1" not in repr(grant)
    assert "ghr_1" not in repr(grant)


async def test_an_oauth_app_has_tokens_without_an_end(server: GitHubServer) -> None:
    """C-65: no `expires_in` means null."""
    server.codes["code-1"], server.expiring = CHALLENGE, False
    server.fail_next(403, path="/user/orgs")
    async with github(server) as connector:
        grant = await connector.exchange("code-1", REQUEST)
    assert (grant.refresh_token, grant.expires_in) == (None, None)
    assert grant.metadata["webhook"] == {"external_ids": []}


async def test_a_wrong_code_a_wrong_verifier_and_a_broken_answer_are_refused(server: GitHubServer) -> None:
    """C-59: GitHub answers errors with status 200 and words of its own."""
    server.codes |= {"code-1": "another challenge", "code-2": CHALLENGE, "code-3": CHALLENGE}
    async with github(server) as connector:
        for code in ("unknown", "code-1"):
            with pytest.raises(Permanent, match="github gave no token: invalid_grant"):
                await connector.exchange(code, REQUEST)
        server.fail_next(200, body={"id": "no number"}, path="/user")
        with pytest.raises(Transient):
            await connector.exchange("code-2", REQUEST)
        server.fail_next(502)
        with pytest.raises(Transient):
            await connector.exchange("code-3", REQUEST)


async def test_a_refresh_rotates_and_an_old_token_is_dead_for_good(server: GitHubServer) -> None:
    """C-59, C-60: the new refresh token is in the answer; `bad_refresh_token` is permanent."""
    server.refresh_tokens.add("ghr_old")
    async with github(server) as connector:
        grant = await connector.refresh("ghr_old")
        assert (grant.external_id, grant.access_token, grant.refresh_token) == ("", "ghu_1", "ghr_1")
        with pytest.raises(Permanent):
            await connector.refresh("ghr_old")
        server.fail_next(200, body={"error": "temporarily_unavailable"})
        with pytest.raises(RateLimited):
            await connector.refresh("ghr_1")
        assert "ghr_1" in server.refresh_tokens


async def test_revoking_tells_github_and_takes_a_token_that_is_gone_already(server: GitHubServer) -> None:
    """C-70: what is disconnected is of no use to anybody."""
    async with github(server) as connector:
        await connector.revoke("gho_good")
        assert server.tokens == set()
        await connector.revoke("gho_good")


async def test_without_a_client_nothing_can_be_authorised() -> None:
    """C-35: what is not set up says which variables to set."""
    async with opened("github") as http:
        connector = GitHub(http, ProviderSettings())
        with pytest.raises(Unsupported, match="HOLDFAST_OAUTH_GITHUB_CLIENT_ID"):
            await connector.authorize_url(REQUEST)
        assert (connector.api, connector.auth) == ("https://api.github.com", "https://github.com")


# -- polling ---------------------------------------------------------------------------------------------


def stocked(server: GitHubServer) -> None:
    """Two issues, three pull requests, a push, a release, a reopened issue, a comment and a review."""
    merged, closed, opened = pull(9001, 1, 8, merged=True), pull(9002, 2, 7), pull(9003, 3)
    server.issues = [
        issue(1, 0),
        issue(2, 1, 5),
        *(as_issue(one, 100 + number) for number, one in enumerate((merged, closed, opened))),
    ]
    server.pulls["octo/hello"] = [merged, closed, opened]
    server.repositories = [repository(pushed_at=at(9))]
    comment = {"id": 77, "created_at": at(11), "user": {"login": "octocat"}, "body": "Me too"}
    review = {"id": 88, "submitted_at": at(12), "state": "APPROVED", "user": {"login": "octocat"}}
    release = {"id": 99, "tag_name": "v1", "name": "One", "published_at": at(10)}
    server.events["octo/hello"] = [
        push_event(9),
        event("ReleaseEvent", 10, action="published", release=release),
        event("IssueCommentEvent", 11, action="created", comment=comment, issue=issue(1, 0)),
        event("PullRequestReviewEvent", 12, action="created", review=review, pull_request={"number": 1}),
        event("IssuesEvent", 13, action="reopened", issue=issue(1, 0, updated_at=at(13))),
        event("PullRequestEvent", 14, action="reopened", pull_request={"id": 9003, "number": 3}),
        event("WatchEvent", 15, action="started"),
    ]


ALL = [
    f"github:code_pushed:octo/hello:refs/heads/main:{'c' * 40}",
    f"github:issue_closed:2:{at(5)}",
    f"github:issue_comment:77:{at(11)}",
    f"github:issue_created:1:{at(0)}",
    f"github:issue_created:2:{at(1)}",
    f"github:issue_reopened:1:{at(13)}",
    f"github:pr_closed:9002:{at(7)}",
    f"github:pr_merged:9001:{at(8)}",
    f"github:pr_opened:9001:{at(1)}",
    f"github:pr_opened:9002:{at(2)}",
    f"github:pr_opened:9003:{at(3)}",
    f"github:pr_review:88:{at(12)}",
    f"github:release_published:99:{at(10)}",
]


@pytest.mark.parametrize("cursor", [None, EARLY, at(-60)])
@pytest.mark.parametrize("max_items", [1000, 30, 3, 1])
async def test_a_round_finds_every_fact_however_small_its_pages(
    server: GitHubServer, cursor: Any, max_items: int
) -> None:
    """C-35, C-75, C-76: from the beginning and from a time, in pages that are bounded."""
    stocked(server)
    async with github(server, max_items) as connector:
        found = await pages(connector, ME, cursor)
    assert keys(found) == ALL
    assert all(len(page.signals) <= max(max_items, 3) for page in found)
    assert [page.has_more for page in found] == [True] * (len(found) - 1) + [False]
    assert list(found[-1].next_cursor) == ["since"]


async def test_the_next_round_begins_where_this_one_began_and_finds_what_is_new_only(
    server: GitHubServer,
) -> None:
    """C-34, C-76: the cursor is GitHub's own time, a minute early; a quiet round costs two requests."""
    stocked(server)
    async with github(server) as connector:
        first = await pages(connector, ME, None)
        cursor = first[-1].next_cursor
        assert abs((datetime.now(UTC) - datetime.fromisoformat(cursor["since"])).total_seconds() - 60) < 20
        server.forget()
        second = await pages(connector, ME, cursor)
        assert signals(second) == []
        assert [one.path for one in server.requests] == ["/issues", "/user/repos"]
        late = {"since": at(20)}
        server.issues[0] |= {"updated_at": at(30), "title": "Changed"}
        third = await pages(connector, ME, late)
    assert keys(third, "issue_updated") == [f"github:issue_updated:1:{at(30)}"]
    assert [one.kind for one in signals(third) if one.kind.startswith(("issue_cr", "pr_"))] == ["pr_review"]


async def test_facts_of_issues_that_are_older_than_the_last_round_are_not_told_again(
    server: GitHubServer,
) -> None:
    """C-76: an issue that was changed today was not created today; of a pull request all is told again."""
    server.issues = [issue(1, -600, updated_at=at(5)), issue(2, -600, 6, updated_at=at(7))]
    old = pull(9001, -600, -500, merged=True, updated_at=at(8))
    server.issues.append(as_issue(old, 3))
    server.pulls["octo/hello"] = [old]
    async with github(server) as connector:
        found = await pages(connector, ME, EARLY)
    assert keys(found) == [
        f"github:issue_closed:2:{at(6)}",
        f"github:issue_updated:1:{at(5)}",
        f"github:issue_updated:2:{at(7)}",
        f"github:pr_merged:9001:{at(-500)}",
        f"github:pr_opened:9001:{at(-600)}",
        f"github:pr_updated:9001:{at(8)}",
    ]


async def test_an_issue_that_changes_while_it_is_paged_hides_no_other(server: GitHubServer) -> None:
    """C-35: what is changed moves to the end of the list and pulls the rest forward; nothing is skipped."""
    server.issues = [issue(number, number) for number in range(1, 31)]
    async with github(server, max_items=30) as connector:
        cursor, found = None, []
        for turn in range(60):
            page = await connector.sync(ME, cursor)
            found.append(page)
            cursor = page.next_cursor
            if turn < 3:  # the whole first page moves away, after it was read
                for number in range(turn * 10, turn * 10 + 10):
                    server.issues[number] |= {"updated_at": at(100 + number)}
            if not page.has_more:
                break
    created = {signal.payload["id"] for signal in signals(found) if signal.kind == "issue_created"}
    assert created == set(range(1, 31))
    assert not found[-1].has_more


async def test_many_changes_in_the_same_second_are_paged_through(server: GitHubServer) -> None:
    """C-35: where time does not get on, page numbers do."""
    server.issues = [issue(number, 0) for number in range(1, 41)]
    async with github(server, max_items=30) as connector:
        found = await pages(connector, ME, None)
    assert len(keys(found, "issue_created")) == 40


async def test_all_repositories_are_looked_at_in_the_first_round(server: GitHubServer) -> None:
    """C-35: also those past one page, and more than are remembered at once."""
    server.repositories = [repository(f"octo/r{number}", number + 1) for number in range(130)]
    for number in range(130):
        base = {"ref": "main", "sha": "b" * 40, "repo": server.repositories[number]}
        server.pulls[f"octo/r{number}"] = [pull(9000 + number, 1, base=base)]
    async with github(server) as connector:
        found = await pages(connector, ME, None)
    assert len(keys(found, "pr_opened")) == 130
    names = [one.path for one in server.requests if one.path.endswith("/pulls")]
    assert len(names) == len(set(names)) == 130


async def test_only_repositories_with_news_are_looked_at_later(server: GitHubServer) -> None:
    """C-35: a push in the last hours, or an issue that has changed."""
    server.repositories = [
        repository("octo/pushed", 1, pushed_at=at(-100)),
        repository("octo/quiet", 2, pushed_at=at(-1000)),
        repository("octo/empty", 3, pushed_at=None),
        repository("octo/talked", 4, pushed_at=at(-1000)),
    ]
    server.issues = [issue(1, 0, repository=repository("octo/talked", 4))]
    async with github(server) as connector:
        await pages(connector, ME, EARLY)
    asked = [one.path for one in server.requests if one.path.startswith("/repos/")]
    assert asked == ["/repos/octo/talked/events", "/repos/octo/pushed/events"]


async def test_a_repository_that_cannot_be_read_does_not_hold_up_the_others(server: GitHubServer) -> None:
    """C-36: 404 for one repository is no reason to fail for ever."""
    stocked(server)
    for status, path in ((404, "/repos/octo/hello/pulls"), (451, "/repos/octo/hello/events")):
        server.fail_next(status, path=path)
    async with github(server) as connector:
        found = await pages(connector, ME, None)
    assert keys(found) == [key for key in ALL if "issue_created" in key or "issue_closed" in key]


async def test_a_limit_in_the_middle_keeps_what_was_found(server: GitHubServer) -> None:
    """C-36: the page ends there; the next one meets the limit with its first request and raises."""
    stocked(server)
    server.left = 3
    async with github(server) as connector:
        page = await connector.sync(ME, None)
        assert page.has_more
        assert len(page.signals) > 0
        with pytest.raises(RateLimited) as caught:
            await connector.sync(ME, page.next_cursor)
        assert caught.value.retry_after_seconds is not None
        assert 100 < caught.value.retry_after_seconds <= 121
        assert not caught.value.shared
        server.left = None
        rest = await pages(connector, ME, page.next_cursor)
    assert keys([page, *rest]) == ALL


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (401, {}, {"message": "Bad credentials"}, Unauthorized),
        (429, {"Retry-After": "5"}, {}, RateLimited),
        (403, {"Retry-After": "60"}, {"message": "secondary rate limit"}, RateLimited),
        (403, {}, {"message": "You have exceeded a secondary rate limit."}, RateLimited),
        (403, {}, {"message": "Forbidden"}, Permanent),
        (403, {}, b"<html>", Permanent),
        (500, {}, {}, Transient),
        (200, {}, b"{oops", Transient),
        (200, {}, {"message": "not a list"}, Transient),
        (200, {}, [{"id": 1}], Transient),
        (200, {}, ["text"], Transient),
        (200, {}, [{**issue(1), "created_at": "yesterday"}], Transient),
    ],
)
async def test_a_first_request_that_fails_leaves_no_page(
    server: GitHubServer, status: int, headers: dict[str, str], body: Any, kind: type[Exception]
) -> None:
    """C-36: each fault of GitHub has its error, and no signals."""
    stocked(server)
    server.fail_next(status, headers, body)
    async with github(server) as connector:
        with pytest.raises(kind):
            await connector.sync(ME, None)
        assert keys(await pages(connector, ME, None)) == ALL


@pytest.mark.parametrize(
    "cursor",
    [
        7,
        [],
        {},
        "yesterday",
        {"since": None},
        {"since": 5, "step": "issues"},
        {"step": "nowhere"},
        {"step": "repos"},
        {"step": "issues", "page": 0},
        {"step": "issues", "page": "1"},
        *({"step": "end", "until": at(0), "queue": [[name, True]]} for name in ("../../user", "a/..", "a")),
        {"step": "issues", "unknown": 1},
    ],
)
async def test_a_cursor_that_is_none_says_so(server: GitHubServer, cursor: Any) -> None:
    """C-42: it will not get better by itself; a person can reset it."""
    async with github(server) as connector:
        with pytest.raises(Permanent, match="reset it"):
            await connector.sync(ME, cursor)
    assert server.requests == []


async def test_a_connection_without_a_token_is_not_authorised(server: GitHubServer) -> None:
    """C-43: what has no token must be authorised again."""
    async with github(server) as connector:
        with pytest.raises(Unauthorized):
            await connector.sync(account("github", None), None)
        with pytest.raises(Unauthorized):
            await connector.sync(account("github", "gho_wrong"), None)


async def test_nobody_follows_an_address_of_a_link_header(server: GitHubServer) -> None:
    """C-57: the token goes to GitHub's own address only; the test's server links to another one."""
    server.issues = [issue(number, number) for number in range(1, 250)]
    async with github(server) as connector:
        found = await pages(connector, ME, None)
    assert len(keys(found, "issue_created")) == 249
    assert {one.token for one in server.requests} == {"gho_good"}


# -- webhooks --------------------------------------------------------------------------------------------


async def test_each_webhook_becomes_its_signal(server: GitHubServer) -> None:
    """C-75: the table of GitHub."""
    edited = issue(1, 0, updated_at=at(3))
    release = {"id": 99, "tag_name": "v1", "published_at": at(10)}
    push = {"ref": "refs/heads/main", "before": "b" * 40, "after": "c" * 40, "sender": {"login": "octocat"}}
    table = [
        ("issues", {"action": "opened", "issue": issue(1)}, f"issue_created:1:{at(0)}"),
        ("issues", {"action": "closed", "issue": issue(1, 0, 2)}, f"issue_closed:1:{at(2)}"),
        ("issues", {"action": "reopened", "issue": edited}, f"issue_reopened:1:{at(3)}"),
        ("issues", {"action": "edited", "issue": edited}, f"issue_updated:1:{at(3)}"),
        ("pull_request", {"action": "opened", "pull_request": pull(5)}, f"pr_opened:5:{at(0)}"),
        ("pull_request", {"action": "closed", "pull_request": pull(5, 0, 4)}, f"pr_closed:5:{at(4)}"),
        (
            "pull_request",
            {"action": "closed", "pull_request": pull(5, 0, 4, merged=True)},
            f"pr_merged:5:{at(4)}",
        ),
        (
            "pull_request",
            {"action": "reopened", "pull_request": pull(5, updated_at=at(6))},
            f"pr_reopened:5:{at(6)}",
        ),
        (
            "pull_request",
            {"action": "synchronize", "pull_request": pull(5, updated_at=at(6))},
            f"pr_updated:5:{at(6)}",
        ),
        ("push", push, f"code_pushed:octo/hello:refs/heads/main:{'c' * 40}"),
        ("release", {"action": "published", "release": release}, f"release_published:99:{at(10)}"),
    ]
    async with github(server) as connector:
        for name, payload, key in table:
            (signal,) = await told(connector, name, **payload)
            assert signal.dedupe_key == f"github:{key}"
            assert signal.kind == key.partition(":")[0]
            assert signal.payload["repository"] == "octo/hello"


async def test_what_is_no_fact_of_ours_becomes_no_signal_and_one_log_line(
    server: GitHubServer, caplog: pytest.LogCaptureFixture
) -> None:
    """C-74: anything else is dropped, and said so."""
    caplog.set_level("INFO", logger="holdfast.connectors")
    async with github(server) as connector:
        for name, payload in (
            ("ping", {"zen": "Keep it logically awesome."}),
            ("issues", {"action": "labeled", "issue": issue(1)}),
            ("issues", {}),
            ("release", {"action": "created"}),
            ("push", {"ref": "refs/heads/gone", "before": "b" * 40, "after": ZERO}),
            ("", {}),
        ):
            caplog.clear()
            assert await told(connector, name, **payload) == ()
            assert len(caplog.records) == 1
        for payload in (None, [], "text", 7):
            assert (await connector.handle_webhook(ME, delivery("issues", payload))).signals == ()


async def test_a_delivery_that_is_not_as_documented_is_parked(server: GitHubServer) -> None:
    """C-54: a permanent error, which does not quote what was sent."""
    broken = [
        {"action": "opened"},
        {"action": "opened", "issue": []},
        {"action": "opened", "issue": {"id": 1}},
        {"action": "opened", "issue": {**issue(1), "created_at": "secret-word"}},
    ]
    async with github(server) as connector:
        for payload in broken:
            with pytest.raises(Permanent) as caught:
                await told(connector, "issues", **payload)
            assert str(caught.value) == "github: a delivery of 'issues' is not as documented"
            assert caught.value.__cause__ is None


async def test_poll_and_webhook_agree_on_every_key(server: GitHubServer) -> None:
    """C-76: the same fact by both ways has the same key, and the same kind."""
    stocked(server)
    merged = server.pulls["octo/hello"][0]
    push = {"ref": "refs/heads/main", "before": "b" * 40, "after": "c" * 40}
    events = {one["type"]: one["payload"] for one in server.events["octo/hello"]}
    async with github(server) as connector:
        polled = {one.dedupe_key: one.kind for one in signals(await pages(connector, ME, EARLY))}
        for name, payload in (
            ("issues", {"action": "opened", "issue": server.issues[0]}),
            ("issues", {"action": "closed", "issue": server.issues[1]}),
            ("issues", events["IssuesEvent"]),
            ("pull_request", {"action": "opened", "pull_request": merged}),
            ("pull_request", {"action": "closed", "pull_request": merged}),
            ("push", push),
            ("release", events["ReleaseEvent"]),
            ("issue_comment", events["IssueCommentEvent"]),
            ("pull_request_review", {**events["PullRequestReviewEvent"], "action": "submitted"}),
        ):
            (signal,) = await told(connector, name, **payload)
            assert polled[signal.dedupe_key] == signal.kind, name


async def test_a_pushs_time_is_the_pushs_and_not_the_commits(server: GitHubServer) -> None:
    """C-73: `occurred_at` is when it happened at GitHub; a commit may be years old."""
    push = {"ref": "refs/heads/main", "after": "c" * 40, "head_commit": {"timestamp": "2001-01-01T00:00:00Z"}}
    async with github(server) as connector:
        (known,) = await told(connector, "push", **push, repository=repository(pushed_at=1772366400))
        assert known.occurred_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
        (unknown,) = await told(connector, "push", **push, repository=repository(pushed_at=None))
        assert unknown.occurred_at == RECEIVED


async def test_a_delivery_is_known_by_githubs_id_or_by_its_bytes(server: GitHubServer) -> None:
    """C-50: `X-GitHub-Delivery`, else the SHA-256 of the body."""
    async with github(server) as connector:
        assert connector.delivery_id({"x-github-delivery": "72d3162e"}, b"{}") == "72d3162e"
        digest = hashlib.sha256(b"{}").hexdigest()
        for headers in ({}, {"x-github-delivery": " "}, {"x-github-delivery": "x" * 201}):
            assert connector.delivery_id(headers, b"{}") == digest


async def test_a_delivery_names_the_accounts_that_it_may_be_about(server: GitHubServer) -> None:
    """C-51: the owner of the repository and the organisation, never whoever did it."""
    payload = {
        "repository": repository(),
        "organization": {"id": 9919},
        "installation": {"id": 5},
        "sender": {"id": 666},
    }
    async with github(server) as connector:
        assert connector.external_ids({}, payload) == (
            "583231",
            "9919",
            "repository:1296269",
            "installation:5",
        )
        for odd in (None, [], 7, {"repository": None}, {"repository": {"id": "x", "owner": [1]}}):
            assert connector.external_ids({}, odd) == ()


def read(file: Path) -> Any:
    """What a provider says in a golden file."""
    return json.loads(file.read_text())["given"]


@pytest.mark.parametrize("file", golden("github"))
async def test_each_kind_has_a_golden_file(server: GitHubServer, file: Path) -> None:
    """C-76, C-77: through the functions that production uses, by webhook and, where it can be, by poll."""
    given = read(file)
    async with github(server) as connector:
        hook = given["webhook"]
        pushed = (await connector.handle_webhook(ME, delivery(hook["event"], hook["payload"]))).signals
    polled: tuple[Signal, ...] = ()
    match given.get("polled"):
        case {"issue": one}:
            polled = facts.polled_issue(one, None)
        case {"pull": one}:
            polled = facts.polled_pull(one)
        case {"event": one}:
            polled = facts.polled_event(one)
        case _:
            assert file.stem == "pr_reopened", "the one thing that only a webhook tells"
    assert {one.dedupe_key for one in pushed} <= {one.dedupe_key for one in polled or pushed}
    check_golden(file, lambda _: [*pushed, *polled])


def test_there_is_a_golden_file_for_everything_that_github_can_mean() -> None:
    """C-77: one for each kind."""
    named = {kind for kind, _ in (*facts.ISSUES.values(), *facts.PULLS.values())}
    named |= {"pr_closed", "pr_merged", "pr_review", "issue_comment", "code_pushed", "release_published"}
    assert {param.id for param in golden("github")} == named


class Moving(GitHubServer):
    """The older of two pull requests is merged as soon as somebody has read the first page of them."""

    def __init__(self) -> None:
        super().__init__()
        self.repositories = [repository(pushed_at=at(0))]
        self.put(pull(1, 1), pull(2, 2))

    def put(self, *pulls: object) -> None:
        self.pulls["octo/hello"] = list(pulls)
        self.issues = [as_issue(one, one["id"] + 500) for one in pulls]

    def answer(self, request: Asked) -> Reply:
        reply = super().answer(request)
        if request.path.endswith("/pulls") and request.query["page"] == "1" and len(self.asked()) < 6:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ended = {"state": "closed", "updated_at": now, "closed_at": now, "merged_at": now}
            self.put({**pull(1, 1), **ended}, pull(2, 2))
        return reply


async def test_a_pull_request_that_changes_while_the_list_is_read_is_not_passed_over() -> None:
    """C-36, C-76: it jumps from a page that was not read yet to one that was."""
    with Moving() as server:
        async with github(server, max_items=9) as connector:  # one pull request on a page
            first = await pages(connector, ME)
            second = await pages(connector, ME, first[-1].next_cursor)
    assert keys(first + second, "pr_opened") == [
        f"github:pr_opened:1:{at(1)}",
        f"github:pr_opened:2:{at(2)}",
    ]
