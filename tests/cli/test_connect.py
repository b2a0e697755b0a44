"""`holdfast connect`: accounts at providers, from the shell; and that no token is ever an argument."""

from __future__ import annotations

import base64
import getpass
import json
from typing import Any
from uuid import uuid4

import pytest

from cli.kit import Query, Run, Show
from holdfast.apps.connectors.signatures import derived_secret

ME = f"cli:{getpass.getuser()}"
TOKEN = "ghp_never-in-any-output"
SECRET = "a secret of the operator"
OLD, NEW = (base64.b64encode(bytes([n]) * 32).decode() for n in (7, 8))
OAUTH = {
    "HOLDFAST_OAUTH_GITHUB_CLIENT_ID": "client-1",
    "HOLDFAST_OAUTH_GITHUB_CLIENT_SECRET": "client-secret-1",
    "HOLDFAST_OAUTH_REDIRECT_URIS": "https://app.example/api/connectors/callback/github",
}


@pytest.fixture
def tenant(holdfast: Run) -> str:
    """The id of a tenant that was made from the shell."""
    done = holdfast("connect", "tenant", "add", "Ada & Co")
    assert (done.code, done.err) == (0, "")
    return done.out.strip()


@pytest.fixture
def link(holdfast: Run, tenant: str) -> str:
    """The id of a GitHub account that was connected by a personal token."""
    done = add(holdfast, tenant)
    assert (done.code, done.err) == (0, "")
    return done.out.strip()


def add(holdfast: Run, tenant: str, *more: str, token: str = TOKEN, **how: Any) -> Any:
    arguments = ("--tenant", tenant, "--external-id", "583231", "--name", "octocat", "--token-from-stdin")
    return holdfast("connect", "add", "github", *arguments, *more, feed=token + "\n", **how)


def deliver(query: Query, tenant: str, link: str | None, id: str, came: str = "now()") -> None:
    query(
        "insert into webhook_delivery (provider_slug, connection_id, tenant_id, delivery_id, payload,"
        " body_sha256, verification, received_at)"
        f" values ('github', %s, %s, %s, '{{}}', '', 'signature', {came})",
        *(link, tenant, id),
    )


# -- providers and tenants -------------------------------------------------------------------------------


def test_the_providers_are_listed_with_what_they_need(holdfast: Run) -> None:
    """C-9: the eight, by name."""
    done = holdfast("connect", "providers")
    assert done.code == 0
    names = [line.split()[0] for line in done.out.splitlines()]
    assert names == [
        *("PROVIDER", "github", "gmail", "google_calendar", "google_drive", "jira"),
        *("slack", "zoho_cliq", "zoho_mail"),
    ]
    told = {one["name"]: one for one in holdfast("connect", "providers", "--json", env=OAUTH).data}
    assert told["github"]["connectable"] is True
    assert told["slack"]["connectable"] is False
    assert told["zoho_mail"]["webhooks"] is False
    assert told["zoho_cliq"]["auth_type"] == "webhook-only"
    assert told["github"]["scopes"] == ["repo", "read:org"]


def test_a_tenant_is_made_and_listed(holdfast: Run, query: Query) -> None:
    key = str(uuid4())
    assert holdfast("connect", "tenant", "add", " Ada ", "--id", key, "--by", "ana").out == f"{key}\n"
    other = holdfast("connect", "tenant", "add", "Bo", "--json").data
    assert (other["name"], len(other["id"])) == ("Bo", 36)
    listed = holdfast("connect", "tenant", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == ["ID", key, other["id"]]
    told = holdfast("connect", "tenant", "list", "--json", "--limit", "1").data
    assert [one["name"] for one in told["tenants"]] == ["Ada"]
    more = holdfast("connect", "tenant", "list", "--json", "--cursor", told["cursor"]).data
    assert ([one["name"] for one in more["tenants"]], more["cursor"]) == (["Bo"], None)
    audit = "select who, action from holdfast_audit order by id"
    assert query(audit) == [("cli:ana", "tenant create"), (ME, "tenant create")]


def test_a_tenant_that_cannot_be_is_refused(holdfast: Run) -> None:
    key = str(uuid4())
    assert holdfast("connect", "tenant", "add", "Ada", "--id", key).code == 0
    again = holdfast("connect", "tenant", "add", "Ada", "--id", key, "--json")
    assert (again.code, json.loads(again.err)["code"]) == (5, "CONFLICT")
    for name in ("", " ", "x" * 256):
        wrong = holdfast("connect", "tenant", "add", name)
        assert (wrong.code, "name:" in wrong.err) == (2, True)
    wrong = holdfast("connect", "tenant", "add", "Ada", "--id", "x")
    assert (wrong.code, wrong.err) == (2, "holdfast: --id: 'x' is not a UUID\n")


# -- connecting ------------------------------------------------------------------------------------------


def test_start_prints_where_a_person_allows_it(holdfast: Run, tenant: str, query: Query) -> None:
    """C-63: the address, with state and challenge; the row is there with it."""
    done = holdfast("connect", "start", "github", "--tenant", tenant, env=OAUTH)
    assert done.code == 0
    assert done.out.startswith("https://github.com/login/oauth/authorize?client_id=client-1&")
    assert "state=" in done.out
    assert "code_challenge_method=S256" in done.out
    assert "client-secret-1" not in done.out + done.err
    assert query("select provider, tenant_id::text from oauth_states") == [("github", tenant)]
    told = holdfast("connect", "start", "github", "--tenant", tenant, "--json", env=OAUTH).data
    assert list(told) == ["authorize_url"]
    assert query("select who, action from holdfast_audit where action = 'connection begin'") == [
        *((ME, "connection begin"),) * 2
    ]


@pytest.mark.parametrize(
    ("arguments", "env", "code", "said"),
    [
        (("github",), {}, 2, "HOLDFAST_OAUTH_GITHUB_CLIENT_ID is not set"),
        (("nobody",), OAUTH, 4, "nobody"),
        (("zoho-cliq",), OAUTH, 2, "nothing to authorise"),
        (("github", "--redirect-uri", "https://evil.example/"), OAUTH, 2, "HOLDFAST_OAUTH_REDIRECT_URIS"),
    ],
)
def test_start_says_what_is_missing(
    holdfast: Run,
    tenant: str,
    query: Query,
    arguments: tuple[str, ...],
    env: dict[str, str],
    code: int,
    said: str,
) -> None:
    done = holdfast("connect", "start", *arguments, "--tenant", tenant, env=env)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert query("select * from oauth_states") == []


def test_an_account_is_connected_by_a_token_from_standard_input(
    holdfast: Run, tenant: str, link: str, query: Query
) -> None:
    """C-60: stored sealed, never in the clear, and no output ever tells it."""
    ((stored, status),) = query("select access_token_ciphertext, status from connections")
    assert (status, TOKEN.encode() in bytes(stored)) == ("active", False)
    shown = holdfast("connect", "show", link)
    assert "octocat" in shown.out
    assert "access token" in shown.out
    told = holdfast("connect", "show", link, "--json").data
    assert (told["has_access_token"], told["has_refresh_token"]) == (True, False)
    assert (told["external_id"], told["status"], told["health"]["failures"]) == ("583231", "active", 0)
    assert TOKEN not in shown.out + json.dumps(told)
    query("update connections set status = 'error'")
    again = add(holdfast, tenant, "--json", token="another-token").data
    assert (again["id"], again["status"]) == (link, "active"), "connecting again updates"
    audit = "select who, row_id, detail ->> 'created' from holdfast_audit where action = 'connection connect'"
    assert query(audit) == [(ME, link, "true"), (ME, link, "false")]


def test_an_account_that_only_sends_webhooks_needs_no_token(holdfast: Run, tenant: str) -> None:
    arguments = ("--tenant", tenant, "--external-id", "chat-7")
    done = holdfast("connect", "add", "zoho-cliq", *arguments, "--json")
    assert (done.code, done.data["provider"], done.data["has_access_token"]) == (0, "zoho_cliq", False)
    again = holdfast("connect", "add", "zoho-cliq", *arguments)
    assert (again.code, "already" in again.err) == (5, True)
    wrong = holdfast("connect", "add", "github", *arguments)
    assert wrong.code == 2
    assert (
        "github is connected by OAuth: `holdfast connect start github`, or give --token-from-stdin"
        in wrong.err
    )


@pytest.mark.parametrize("token", ["", "  ", "two\nlines", "x" * 8193])
def test_a_token_that_is_none_is_refused_and_not_repeated(
    holdfast: Run, tenant: str, query: Query, token: str
) -> None:
    done = add(holdfast, tenant, token=token)
    assert (done.code, "token: must be one line" in done.err) == (2, True)
    assert "lines" not in done.err.replace("one line", "")
    assert query("select * from connections") == []


def test_a_token_is_typed_unseen_in_a_terminal(tenant: str, terminal: Show, query: Query) -> None:
    arguments = ("--tenant", tenant, "--external-id", "1", "--token-from-stdin")
    shown = terminal("connect", "add", "github", *arguments)
    shown.until("token:")
    shown.type(TOKEN.encode() + b"\n")
    assert shown.end() == 0
    assert TOKEN not in shown.text
    assert query("select status from connections") == [("active",)]


def test_no_command_takes_a_token_or_a_secret_as_an_argument(holdfast: Run, tenant: str) -> None:
    """What stands in arguments, every user of the machine can read."""
    for option in ("--token", "--secret", "--access-token"):
        done = holdfast("connect", "add", "github", "--tenant", tenant, "--external-id", "1", option, TOKEN)
        assert (done.code, "no such option" in done.err.lower()) == (2, True)


def test_the_secret_of_webhooks_is_derived_for_the_tenant(holdfast: Run, tenant: str) -> None:
    """C-48: what a tenant is shown signs for that tenant alone."""
    env = {"HOLDFAST_WEBHOOK_GITHUB_SECRET": SECRET}
    done = holdfast("connect", "webhook-secret", "github", "--tenant", tenant, env=env)
    assert done.out == derived_secret(SECRET, tenant, "github") + "\n"
    assert f"/api/connectors/webhooks/github/{tenant}" in done.err
    assert SECRET not in done.out + done.err
    told = holdfast("connect", "webhook-secret", "github", "--tenant", tenant, "--json", env=env).data
    assert (told["scheme"], told["secret"]) == ("github", done.out.strip())
    for arguments, settings in (
        (("github", "--tenant", tenant), {}),
        (("gmail", "--tenant", tenant), env),
        (("github", "--tenant", str(uuid4())), env),
    ):
        assert holdfast("connect", "webhook-secret", *arguments, env=settings).code == 4


# -- looking and ordering --------------------------------------------------------------------------------


def test_connections_are_listed_by_tenant_provider_and_status(holdfast: Run, tenant: str, link: str) -> None:
    other = holdfast("connect", "tenant", "add", "Bo").out.strip()
    second = add(holdfast, other).out.strip()

    def ids(*arguments: str) -> list[str]:
        return [one["id"] for one in holdfast("connect", "list", *arguments, "--json").data["connections"]]

    assert ids() == [link, second]
    assert ids("--tenant", other) == [second]
    assert ids("--provider", "google-drive") == []
    assert ids("--status", "paused") == []
    lines = holdfast("connect", "list").out.splitlines()
    assert lines[0].split() == [
        "ID",
        "PROVIDER",
        "STATUS",
        "FAILURES",
        "LAST",
        "SUCCESS",
        "NEXT",
        "RUN",
        "ACCOUNT",
    ]
    shown = lines[1].split()
    assert (shown[:4], shown[-1]) == ([link, "github", "active", "0"], "octocat")
    first = holdfast("connect", "list", "--limit", "1")
    cursor = first.err.split("--cursor ")[1].strip()
    assert ids("--cursor", cursor) == [second]
    assert TOKEN not in first.out + str(holdfast("connect", "list", "--json").data)
    for arguments, said in (
        (("--provider", "nobody"), "--provider: there is no provider 'nobody'"),
        (("--status", "happy"), "--status: must be one of"),
        (("--tenant", "me"), "--tenant: 'me' is not a UUID"),
        (("--cursor", "abc"), "--cursor: is not base64"),
    ):
        done = holdfast("connect", "list", *arguments)
        assert (done.code, said in done.err) == (2, True), done.err


def test_another_tenants_connection_is_not_found(holdfast: Run, link: str) -> None:
    done = holdfast("connect", "show", link, "--tenant", str(uuid4()))
    assert (done.code, done.out) == (4, "")
    assert holdfast("connect", "pause", str(uuid4())).code == 4
    assert holdfast("connect", "pause", "x").code == 2


def test_a_sync_is_asked_for_once(holdfast: Run, link: str, query: Query) -> None:
    """C-70: while one waits, as the first one of a new connection does, it is the answer."""
    done = holdfast("connect", "sync", link)
    assert (done.code, "already" in done.err) == (0, True)
    again = holdfast("connect", "sync", link)
    assert (again.out, "already" in again.err) == (done.out, True)
    told = holdfast("connect", "sync", link, "--full", "--json").data
    assert (told["job_type"], told["created"]) == ("full", True)
    assert query("select id::text from sync_jobs where job_type = 'incremental'") == [(done.out.strip(),)]
    audit = "select who, action from holdfast_audit where action = 'connection sync'"
    assert query(audit) == [(ME, "connection sync")] * 3


def test_a_connection_is_paused_resumed_and_disconnected(holdfast: Run, link: str, query: Query) -> None:
    assert holdfast("connect", "pause", link).out == f"{link} is paused\n"
    refused = holdfast("connect", "sync", link)
    assert (refused.code, "it is paused: resume it first" in refused.err) == (5, True)
    assert holdfast("connect", "resume", link, "--json").data["status"] == "active"
    asked = holdfast("connect", "disconnect", link)
    assert (asked.code, "--yes: is needed here" in asked.err) == (2, True)
    assert query("select status from connections") == [("active",)]
    assert holdfast("connect", "disconnect", link, "--yes").out == f"{link} is disconnected\n"
    assert query("select status, access_token_ciphertext from connections") == [("revoked", None)]
    gone = holdfast("connect", "resume", link)
    assert (gone.code, "connect the account anew" in gone.err) == (5, True)


def test_the_interval_is_set_within_its_range(holdfast: Run, link: str, query: Query) -> None:
    """C-19: 59 and 86401 are refused, and nothing is written."""
    interval = "select metadata #> '{sync,interval_seconds}' from connections"
    for wrong in ("59", "86401", "900.5", "soon"):
        assert holdfast("connect", "interval", link, wrong).code == 2
    assert query(interval) == [(None,)]
    assert holdfast("connect", "interval", link, "120").out == f"{link} is synced every 120 s\n"
    assert query(interval) == [(120,)]


def test_the_cursor_is_printed_set_and_reset(holdfast: Run, link: str) -> None:
    assert holdfast("connect", "cursor", link).out == "null\n"
    assert json.loads(holdfast("connect", "cursor", link, "--set", '{"page": 3}').out) == {"page": 3}
    assert holdfast("connect", "cursor", link, "--json").data == {"id": link, "cursor": {"page": 3}}
    assert holdfast("connect", "cursor", link, "--set", "-", feed='["x"]').data == ["x"]
    for arguments, said in (
        (("--set", "{"), "--set: is no JSON"),
        (("--set", "1", "--reset"), "--reset: says the opposite"),
    ):
        done = holdfast("connect", "cursor", link, *arguments)
        assert (done.code, said in done.err) == (2, True)
    assert holdfast("connect", "cursor", link).data == ["x"]
    assert holdfast("connect", "cursor", link, "--reset").out == "null\n"


# -- what was found --------------------------------------------------------------------------------------


def test_signals_are_listed_without_their_payload_unless_asked(
    holdfast: Run, tenant: str, link: str, query: Query
) -> None:
    for day, kind in ((1, "issue_created"), (2, "code_pushed")):
        query(
            "insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload,"
            " dedupe_key) values (gen_random_uuid(), %s, 'github', %s, %s, %s, '{\"title\": \"leak\"}', %s)",
            *(tenant, link, kind, f"2026-01-0{day}T12:00Z", f"key-{day}"),
        )

    def kinds(*arguments: str) -> list[str]:
        return [one["kind"] for one in holdfast("connect", "signals", *arguments, "--json").data["signals"]]

    assert kinds() == ["code_pushed", "issue_created"]
    assert kinds("--kind", "issue_created", "--connection", link) == ["issue_created"]
    assert kinds("--after", "2026-01-02T00:00:00Z", "--provider", "github") == ["code_pushed"]
    assert kinds("--before", "2026-01-02T00:00:00Z", "--tenant", tenant) == ["issue_created"]
    assert kinds("--tenant", str(uuid4())) == []
    quiet = holdfast("connect", "signals")
    assert ("leak" in quiet.out, "key-2" in quiet.out) == (False, True)
    assert "leak" in holdfast("connect", "signals", "--payload").out
    wrong = holdfast("connect", "signals", "--after", "2026-01-02T00:00:00")
    assert (wrong.code, "--after" in wrong.err) == (2, True), "a time without a zone"


def test_the_inbox_is_listed_and_replayed(holdfast: Run, tenant: str, link: str, query: Query) -> None:
    """C-54: by id, and by range; one that fits nobody is told."""
    deliver(query, tenant, link, "one")
    deliver(query, tenant, link, "two", "now() - interval '2 days'")
    deliver(query, tenant, None, "lost")
    query(
        'update webhook_delivery set processed_at = now(), error = \'{"code": "PERMANENT", "message": "no"}\''
        " where delivery_id in ('one', 'two')"
    )

    def states(*arguments: str) -> dict[str, str]:
        told = holdfast("connect", "inbox", *arguments, "--json").data["deliveries"]
        return {one["delivery_id"]: one["status"] for one in told}

    assert states() == {"one": "failed", "two": "failed", "lost": "unmatched"}
    assert states("--status", "unmatched") == {"lost": "unmatched"}
    assert states("--connection", link, "--after", "2026-01-01T00:00:00Z").keys() == {"one", "two"}
    assert "PERMANENT: no" in holdfast("connect", "inbox").out
    done = holdfast("connect", "replay", "github", "--delivery", "one", "--tenant", tenant)
    assert (done.code, done.out) == (0, "1 to be processed once more\n")
    assert states()["one"] == "pending"
    again = holdfast("connect", "replay", "github", "--before", "2099-01-01T00:00:00Z")
    assert (again.out, again.err) == ("2 to be processed once more\n", "1 still fit no connection\n")
    assert query("select status from sync_jobs where job_type = 'webhook'") == [("queued",)]
    assert holdfast("connect", "replay", "github").code == 2
    assert holdfast("connect", "replay", "github", "--delivery", "gone").code == 4
    told = holdfast("connect", "replay", "github", "--delivery", "one", "--json").data
    assert told == {"deliveries": 1, "unmatched": 0}


# -- keys ------------------------------------------------------------------------------------------------


def test_rekey_seals_every_token_with_the_present_key(holdfast: Run, tenant: str, query: Query) -> None:
    """C-62: afterwards the old key is needed no more."""
    old = {"HOLDFAST_CRYPTO_KEY": OLD}
    both = {"HOLDFAST_CRYPTO_KEY": NEW, "HOLDFAST_CRYPTO_OLD_KEYS": OLD}
    add(holdfast, tenant, env=old)
    ((before, key),) = query("select access_token_ciphertext, token_key_id from connections")
    done = holdfast("connect", "rekey", env=both)
    assert (done.code, done.out, done.err) == (0, "1 connections were sealed anew\n", "")
    ((after, new_key),) = query("select access_token_ciphertext, token_key_id from connections")
    assert (before != after, key != new_key) == (True, True)
    assert holdfast("connect", "rekey", "--json", env={"HOLDFAST_CRYPTO_KEY": NEW}).data == {
        "connections": 0,
        "unreadable": 0,
    }
    lost = holdfast("connect", "rekey", "--json", env=old).data
    assert lost == {"connections": 0, "unreadable": 1}
    assert query("select who, rows from holdfast_audit where action = 'connectors rekey'") == [
        *((ME, 1), (ME, 0), (ME, 0))
    ]


def test_failed_jobs_of_one_connection_are_requeued_from_the_shell(holdfast: Run, query: Query) -> None:
    """C-44: by any column that an enqueue may fill."""
    tenant, connection = uuid4(), uuid4()
    query(f"insert into tenants (id) values ('{tenant}')")
    query(
        "insert into connections (id, tenant_id, provider_slug, external_id) "
        f"values ('{connection}', '{tenant}', 'github', 'me')"
    )
    query(
        "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status) "
        f"values (gen_random_uuid(), '{tenant}', 'github', '{connection}', 'full', 'failed')"
    )
    wrong = holdfast("requeue", "sync_jobs", "--where", "connection_id", "--yes")
    assert (wrong.code, "--where: must be COLUMN=VALUE" in wrong.err) == (2, True)
    none = holdfast("requeue", "sync_jobs", "--where", f"connection_id={tenant}", "--yes", "--json")
    assert none.code == 0
    done = holdfast("requeue", "sync_jobs", "--where", f"connection_id={connection}", "--yes", "--json")
    assert done.code == 0
    assert query("select status from sync_jobs") == [("queued",)]
