"""Tokens: refreshed before they end, once after a refusal, by one process at a time; and given up at last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from connectors import kit
from connectors.kit import ACCESS, FAKE, KEY, REFRESH, Script, Stage, Stop, grant, page
from connectors.proxy import losing_response
from holdfast import Settings
from holdfast.apps.connectors import connections, tokens
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.protocol import (
    Account,
    Permanent,
    RateLimited,
    Transient,
    Unauthorized,
    Unsupported,
)
from holdfast.apps.connectors.service import Connectors
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings
from runtime.support import AT_A_GATE, PATIENCE, until

NEW = "new-" + ACCESS
OTHER_KEY = "//////////////////////////////////////////8="
WAITS = AT_A_GATE


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


async def tokens_of(stage: Stage, link: Link) -> tuple[str | None, str | None]:
    """The connection's tokens in the clear, access and refresh, as they are now."""
    now = await stage.now(link)
    return stage.opened(now, now.access), stage.opened(now, now.refresh)


def lasts(link: Link) -> float:
    """Seconds until the connection's token ends."""
    assert link.expires_at
    return (link.expires_at - datetime.now(UTC)).total_seconds()


# -- on use ----------------------------------------------------------------------------------------------


async def test_a_token_with_less_than_a_minute_left_is_refreshed_before_it_is_used(stage: Stage) -> None:
    """C-58: also one that has ended; one with more is used as it is."""
    for left, asked in ((61.0, False), (59.0, True), (-5.0, True), (None, False)):
        link = await stage.link(expires_in=left)
        stage.script.calls.clear()
        account = await stage.account(link)
        assert account.access_token == (NEW if asked else ACCESS)
        assert stage.script.of("refresh") == ([REFRESH] if asked else [])


async def test_a_token_that_ends_soon_and_cannot_be_refreshed_is_used_as_it_is(stage: Stage) -> None:
    """C-58, C-60: without a refresh token; the provider will say what it thinks of it."""
    link = await stage.link(expires_in=5, refresh=None)
    assert (await stage.account(link)).access_token == ACCESS
    assert stage.script.calls == []


async def test_a_connection_without_tokens_is_an_account_without_one(stage: Stage) -> None:
    """C-35: webhook-only providers have none."""
    link = await stage.link(access=None, refresh=None, expires_in=None, display_name="Ada", scopes=["read"])
    account = await stage.account(link)
    assert account == Account(
        id=link.id,
        tenant_id=link.tenant_id,
        provider=FAKE.slug,
        external_id=link.external_id,
        display_name="Ada",
        scopes=("read",),
        metadata=link.metadata,
        access_token=None,
    )


# -- the refresh -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "kept"), [(None, REFRESH), ("rotated-9", "rotated-9")])
async def test_a_refresh_keeps_the_old_refresh_token_where_no_new_one_comes(
    stage: Stage, caplog: pytest.LogCaptureFixture, given: str | None, kept: str
) -> None:
    """C-60: unchanged, else rotated; the log says which, and never shows one."""
    link = await stage.link(expires_in=5)
    stage.script.grants = [grant(refresh=given, expires_in=7200)]
    with caplog.at_level(logging.DEBUG):
        answer = await tokens.refresh(stage.service, link.id, used=link.access)
    assert await tokens_of(stage, link) == (NEW, kept)
    assert 7100 < lasts(answer) <= 7200
    assert answer == await stage.now(link)
    assert ("rotated" if given else "unchanged") in caplog.text
    assert not any(secret in caplog.text for secret in (ACCESS, NEW, REFRESH, "rotated-9"))


async def test_a_grant_without_an_end_has_none(stage: Stage) -> None:
    """C-58, C-65: null; such a token is not refreshed by its age any more."""
    link = await stage.link(expires_in=5)
    stage.script.grants = [grant(expires_in=None)]
    assert (await tokens.refresh(stage.service, link.id, used=link.access)).expires_at is None


async def test_two_processes_refresh_one_connection_once(settings: Settings, conn: Connection) -> None:
    """Proofs: the second waits for the first, looks again, and asks nobody."""
    stop = Stop()
    script = Script(grants=[stop.then(grant(refresh="rotated-9")), AssertionError("asked twice")])
    async with kit.stage(settings, conn, script) as one, kit.stage(settings, conn, script) as two:
        link = await one.link(expires_in=5)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(one.account(link))
            await stop.reached()
            second = group.create_task(two.account(link))
            await until(conn, WAITS)
            stop.go()
        assert (first.result().access_token, second.result().access_token) == (NEW, NEW)
        assert script.of("refresh") == [REFRESH]


async def test_no_row_is_locked_while_a_token_is_refreshed(stage: Stage) -> None:
    """Traps: no row lock during HTTP; the inbox, the tick and a person can go on."""
    link = await stage.link(expires_in=5)
    stop = Stop()
    stage.script.grants = [stop.then(grant())]
    async with asyncio.TaskGroup() as group:
        group.create_task(stage.account(link))
        await stop.reached()
        async with stage.conn.transaction():
            await stage.conn.execute("set local lock_timeout = '1s'")
            await stage.conn.execute("select from connections where id = %s for update", (link.id,))
        stop.go()


async def test_an_account_that_is_connected_anew_during_a_refresh_keeps_its_new_tokens(stage: Stage) -> None:
    """C-65: the grant of the old authorisation comes too late."""
    link = await stage.link(expires_in=5)
    scope = {"tenant_id": link.tenant_id, "provider": link.provider, "external_id": link.external_id}
    stop = Stop()
    stage.script.grants = [stop.then(grant())]
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(stage.account(link))
        await stop.reached()
        sealed = stage.service.keyring.seal("by-a-person", **scope)
        await connections.update_tokens_status(stage.conn, link.id, access=sealed.data, expires_at=None)
        stop.go()
    assert asked.result().access_token == "by-a-person"
    assert await tokens_of(stage, link) == ("by-a-person", REFRESH)


async def test_a_refusal_that_comes_after_the_account_was_connected_anew_spoils_nothing(stage: Stage) -> None:
    """C-43, C-65: the new tokens are innocent of it."""
    link = await stage.link(expires_in=5)
    scope = {"tenant_id": link.tenant_id, "provider": link.provider, "external_id": link.external_id}
    stop = Stop()
    stage.script.grants = [stop.then(Permanent(message="invalid_grant"))]
    asked = asyncio.create_task(stage.account(link))
    await stop.reached()
    sealed = stage.service.keyring.seal("by-a-person", **scope)
    await connections.update_tokens_status(stage.conn, link.id, access=sealed.data)
    stop.go()
    with pytest.raises(Permanent):
        await asked
    assert (await stage.now(link)).status == "active"


async def test_a_token_that_was_only_sealed_anew_is_still_the_refused_one(stage: Stage) -> None:
    """C-43, C-62: other bytes, the same token: a rekey is no refresh."""
    link = await stage.link()
    scope = {"tenant_id": link.tenant_id, "provider": link.provider, "external_id": link.external_id}
    sealed = stage.service.keyring.seal(ACCESS, **scope)
    await connections.update_tokens_status(stage.conn, link.id, access=sealed.data)
    await tokens.refresh(stage.service, link.id, used=link.access)
    assert stage.script.of("refresh") == [REFRESH]


async def test_after_a_refresh_both_tokens_are_sealed_by_the_key_that_the_row_names(
    settings: Settings, conn: Connection
) -> None:
    """C-62: or a rekey would pass the row by, and the old key could never be thrown away."""
    async with kit.stage(settings, conn) as old:
        link = await old.link(expires_in=5)
    newer = replace(settings, crypto_key=OTHER_KEY, crypto_old_keys=(KEY,))
    async with kit.stage(newer, conn) as both:
        await both.account(link)
        assert (await both.now(link)).key_id == both.service.keyring.current_id != link.key_id
    async with kit.stage(replace(settings, crypto_key=OTHER_KEY), conn) as new:
        assert await tokens_of(new, link) == (NEW, REFRESH)


async def test_a_run_that_is_stopped_in_the_middle_of_a_refresh_still_writes_the_new_token(
    stage: Stage,
) -> None:
    """C-60: a rotated refresh token that is not written down is lost for good."""
    link = await stage.link(expires_in=5)
    stop = Stop()
    stage.script.grants = [stop.then(grant(refresh="rotated-9"))]
    asked = asyncio.create_task(stage.account(link))
    await stop.reached()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    stop.go()
    assert await tokens.settle(PATIENCE) == 1
    assert await tokens_of(stage, link) == (NEW, "rotated-9")
    assert await tokens.settle() == 0


async def test_a_refresh_whose_run_is_gone_has_the_worker_wait_for_it_at_its_end(stage: Stage) -> None:
    """C-60: the duty is done in another loop than the refresh, and comes to its end after that."""
    link = await stage.link(expires_in=5)
    stop = Stop()
    stage.script.grants = [stop.then(grant(refresh="rotated-9"))]
    asked = asyncio.create_task(stage.account(link))
    await stop.reached()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    duty = tokens.last_duty()
    assert (duty.by_all, duty.at_the_end) == (True, True)
    nobody: Any = None
    ending = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(duty.run(nobody, "worker"))))
    stop.go()
    assert await ending == 1
    assert await tokens_of(stage, link) == (NEW, "rotated-9")


async def test_a_provider_that_never_answers_to_a_refresh_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C-33, C-59: a connector may be anybody's; also when its run is gone. The lock is free again."""
    monkeypatch.setattr(tokens, "LONGEST", 0.05)
    link = await stage.link(expires_in=5)
    stop = Stop()
    stage.script.grants = [Stop().then(grant()), stop.then(grant()), grant()]
    with pytest.raises(Transient, match="took too long"):
        await stage.account(link)
    asked = asyncio.create_task(stage.account(link))
    await stop.reached()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await tokens.settle(PATIENCE) == 1
    assert f"connection {link.id}: its token could not be refreshed: Fake took too long" in caplog.text
    monkeypatch.undo()
    assert (await stage.account(link)).access_token == NEW


@pytest.mark.parametrize("how", ["ended", "idle"])
async def test_new_tokens_are_written_also_when_the_connection_to_the_database_is_gone_by_then(
    settings: Settings, conn: Connection, how: str
) -> None:
    """C-60: it sat idle while the provider was asked; a rotated token would be lost for good."""
    idle = settings.db_idle_in_transaction_seconds if how == "ended" else 0.05
    ours = "from pg_stat_activity where datname = current_database() and application_name"
    gone = f"select count(*) = 0 {ours} = 'holdfast token refresh'"
    end = f"select pg_terminate_backend(pid) {ours} like %s"

    async def breaks(_: str) -> Any:
        if how == "ended":
            await conn.execute(end, ("holdfast token refresh",))
        await until(conn, gone)
        return grant(refresh="rotated-9")

    async with kit.stage(replace(settings, db_idle_in_transaction_seconds=idle), conn) as stage:
        link = await stage.link(expires_in=5)
        stage.script.grants = [breaks]
        assert (await stage.account(link)).access_token == NEW
        assert await tokens_of(stage, link) == (NEW, "rotated-9")
        assert stage.script.of("refresh") == [REFRESH]


SESSIONS = "from pg_stat_activity where datname = current_database() and application_name = %s"
REFRESHING = "holdfast token refresh"
TERMINATE = f"select pg_terminate_backend(pid) {SESSIONS}"


async def test_a_session_lost_before_the_write_leaves_new_tokens_and_an_active_connection(
    settings: Settings, conn: Connection
) -> None:
    """Its advisory lock is gone, too: another process presents the old refresh token and is refused."""
    answered = Stop()
    script = Script(grants=[answered.then(grant(refresh="rotated-9")), Permanent(message="invalid_grant")])
    async with kit.stage(settings, conn, script) as one, kit.stage(settings, conn, script) as two:
        link = await one.link(expires_in=5)
        first = asyncio.create_task(one.account(link))
        await answered.reached()
        await conn.execute(TERMINATE, (REFRESHING,))
        await until(conn, f"select count(*) = 0 {SESSIONS}", REFRESHING)
        with pytest.raises(Permanent):
            await two.account(link)
        assert (await one.now(link)).status == "error"
        answered.go()
        assert (await first).access_token == NEW
        assert await tokens_of(one, link) == (NEW, "rotated-9")
        assert (await one.now(link)).status == "active"


async def test_new_tokens_are_written_again_until_a_session_lasts(stage: Stage, connect: Any) -> None:
    """Each session of the refresh is terminated while it waits to write; the third one is not."""
    link = await stage.link(expires_in=5)
    stage.script.grants = [grant(refresh="rotated-9")]
    holder = await connect()
    waiting = f"select pid {SESSIONS} and wait_event_type = 'Lock'"
    async with holder.transaction():
        await holder.execute("select from connections where id = %s for update", (link.id,))
        asked = asyncio.create_task(stage.account(link))
        for _ in range(2):
            pid = await until(stage.conn, waiting, REFRESHING)
            await stage.conn.execute("select pg_terminate_backend(%s)", (pid,))
            await until(stage.conn, f"select count(*) = 0 {SESSIONS} and pid = %s", REFRESHING, pid)
    assert (await asked).access_token == NEW
    assert await tokens_of(stage, link) == (NEW, "rotated-9")
    assert (await stage.now(link)).status == "active"
    assert stage.script.of("refresh") == [REFRESH]


async def test_a_refresh_whose_commit_response_is_lost_returns_the_tokens_that_it_wrote(
    settings: Settings, conn: Connection
) -> None:
    """The outcome of the commit is unknown, and writing again finds the tokens there."""
    assert settings.database_url
    cutting = losing_response(settings.database_url, session=REFRESHING.encode(), statement=b"COMMIT")
    async with cutting as (url, lost), kit.stage(replace(settings, database_url=url), conn) as stage:
        link = await stage.link(expires_in=5)
        stage.script.grants = [grant(refresh="rotated-9")]
        assert (await stage.account(link)).access_token == NEW
        assert lost.is_set()
        assert await tokens_of(stage, link) == (NEW, "rotated-9")
        assert (await stage.now(link)).status == "active"
        assert stage.script.of("refresh") == [REFRESH]


@pytest.mark.parametrize(
    "nonsense", [10**20, -5, 0, float("inf"), float("nan"), "3600", True], ids=lambda given: str(given)
)
async def test_a_life_that_cannot_be_is_none_and_costs_no_token(stage: Stage, nonsense: Any) -> None:
    """C-60, C-65: the tokens are kept, and their end is unknown."""
    link = await stage.link(expires_in=5)
    stage.script.grants = [grant(refresh="rotated-9", expires_in=nonsense)]
    assert (await stage.account(link)).access_token == NEW
    assert (await stage.now(link)).expires_at is None
    assert await tokens_of(stage, link) == (NEW, "rotated-9")


async def test_whether_a_token_ends_soon_is_judged_by_the_clock_of_the_database(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-58: a worker whose clock is wrong neither refreshes what is good nor uses what has ended."""

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + timedelta(days=1)

    monkeypatch.setattr(tokens, "datetime", Ahead)
    link = await stage.link(expires_in=3600)
    await stage.add(link)
    await stage.work()
    assert stage.script.tokens("sync") == [ACCESS]
    assert stage.script.of("refresh") == []


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Permanent(message="invalid_grant"), "error"),
        (Unauthorized(message="401"), "error"),
        (Unsupported(message="cannot refresh"), "error"),
        (RateLimited(message="slow"), "active"),
        (Transient(message="down"), "active"),
        (KeyError("access_token"), "active"),
    ],
)
async def test_what_the_provider_says_to_a_refresh_decides(
    stage: Stage, error: Exception, status: str
) -> None:
    """C-59: permanent puts the connection in error; what may pass leaves it and its tokens as they are."""
    link = await stage.link(expires_in=5)
    stage.script.grants = [error]
    with pytest.raises(type(error)):
        await stage.account(link)
    assert (await stage.now(link)).status == status
    assert await tokens_of(stage, link) == (ACCESS, REFRESH)


async def test_without_a_refresh_token_a_refusal_means_that_somebody_must_authorise_again(
    stage: Stage,
) -> None:
    """C-60: Unsupported; the connection is in error, the job failed."""
    link = await stage.link(refresh=None)
    job = await stage.add(link)
    stage.script.syncs = [Unauthorized(message="401")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"]) == ("failed", "UNSUPPORTED")
    assert "authorised again" in row["error"]["message"]
    assert (await stage.now(link)).status == "error"


async def test_a_refused_token_is_refreshed_once_and_the_call_is_repeated_once(stage: Stage) -> None:
    """C-43."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs = [Unauthorized(message="401"), page("a", cursor="c1")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["attempts"]) == ("succeeded", 1)
    assert stage.script.tokens("sync") == [ACCESS, NEW]
    assert await stage.keys(link) == ["a"]


async def test_a_second_401_after_one_refresh_puts_the_connection_in_error(stage: Stage) -> None:
    """C-43, proofs: and the job is failed."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs = [Unauthorized(message="first"), Unauthorized(message="second")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["retry_after"], row["error"]["code"]) == ("failed", None, "UNAUTHORIZED")
    assert row["error"]["message"] == "second"
    assert len(stage.script.of("refresh")) == 1
    assert (await stage.now(link)).status == "error"


async def test_a_permanent_refresh_failure_puts_the_connection_in_error_and_fails_the_job(
    stage: Stage,
) -> None:
    """C-43, C-59."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs, stage.script.grants = [Unauthorized(message="401")], [Permanent(message="revoked")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["message"]) == ("failed", "revoked")
    assert (await stage.now(link)).status == "error"
    assert len(stage.script.of("sync")) == 1


async def test_a_refresh_that_may_pass_is_an_ordinary_bad_run(stage: Stage) -> None:
    """C-59: the connection stays active, and the job is tried again."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs, stage.script.grants = [Unauthorized(message="401")], [Transient(message="down")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"]) == ("queued", "TRANSIENT")
    assert (await stage.now(link)).status == "active"


@pytest.mark.parametrize("how", ["flipped", "cut", "plain", "moved"])
async def test_a_stored_token_that_cannot_be_read_puts_the_connection_in_error_and_fails_the_job(
    stage: Stage, how: str
) -> None:
    """C-57, section 4: only the connection and the job change, and nobody is asked."""
    link, other = await stage.link(), await stage.link()
    assert link.access
    assert other.access
    bad = {
        "flipped": link.access[:-1] + bytes([link.access[-1] ^ 1]),
        "cut": link.access[:20],
        "plain": ACCESS.encode(),
        "moved": other.access,
    }[how]
    await connections.update_tokens_status(stage.conn, link.id, access=bad)
    job = await stage.add(link)
    before = await stage.now(link)
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"]) == ("failed", "DECRYPTION")
    after = await stage.now(link)
    assert after == replace(before, status="error", updated_at=after.updated_at)
    assert (await stage.now(other)).status == "active"
    assert stage.script.calls == []
    assert await stage.keys(link) == []


async def test_a_refresh_token_that_cannot_be_read_does_the_same(stage: Stage) -> None:
    """C-57."""
    link = await stage.link(expires_in=5)
    await connections.update_tokens_status(stage.conn, link.id, refresh=b"refresh")
    job = await stage.add(link)
    await stage.work()
    assert (await stage.job(job))["error"]["code"] == "DECRYPTION"
    assert (await stage.now(link)).status == "error"


async def test_no_token_is_seen_in_a_log_a_row_or_a_repr(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """C-57, proofs: through a refresh, a refusal, and a connector that tells its token."""
    link = await stage.link(expires_in=5)
    said = f"sent {NEW}, then another-{ACCESS}"
    stage.script.grants = [grant(), grant(access=f"another-{ACCESS}"), Transient(message=f"sent {REFRESH}")]
    stage.script.syncs = [Unauthorized(message=said), Transient(message=said)]
    job = await stage.add(link)
    with caplog.at_level(logging.DEBUG):
        await stage.work()
        account = await stage.account(await stage.now(link))
        ending = await stage.link(expires_in=5)
        await tokens.duty(stage.service).run(stage.conn, "leader")
    assert (await stage.job(job))["error"]["message"] == "sent ***, then ***"
    assert f"connection {ending.id}: its token could not be refreshed: sent ***" in caplog.text
    told = [caplog.text, repr(account), repr(link), repr(stage.service), await stage.everything()]
    for secret in (NEW, ACCESS, REFRESH):
        assert not any(secret in text for text in told)


async def test_a_worker_that_does_not_know_our_application_spoils_no_connection(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """C-43: HOLDFAST_OAUTH_FAKE_CLIENT_ID is missing here; another worker may have it."""
    link = await stage.link(expires_in=5)
    kind = stage.service.kind(FAKE.slug)

    def refuses(_: str) -> Any:
        nothing: Any = None
        return kind(nothing, ProviderSettings()).client()

    stage.script.grants = [refuses, refuses]
    job = await stage.add(link)
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"]) == ("queued", "NOT_SET_UP")
    assert "HOLDFAST_OAUTH_FAKE_CLIENT_ID" in row["error"]["message"]
    assert await tokens.duty(stage.service).run(stage.conn, "leader") == 0
    assert (await stage.now(link)).status == "active"


# -- the duty --------------------------------------------------------------------------------------------


async def test_the_duty_refreshes_what_ends_soon_of_active_connections_and_nothing_else(stage: Stage) -> None:
    """C-58: ten minutes ahead; null is skipped; so is what has no refresh token, or no connector."""
    soon, ended = await stage.link(expires_in=595), await stage.link(expires_in=-100)
    others = [
        await stage.link(expires_in=620),
        await stage.link(expires_in=None),
        await stage.link(expires_in=5, refresh=None),
        await stage.link(expires_in=5, status="paused"),
        await stage.link(expires_in=5, status="error"),
    ]
    duty = tokens.duty(stage.service)
    assert (duty.name, await duty.run(stage.conn, "leader")) == ("refresh tokens", 2)
    for link in (soon, ended):
        assert (await tokens_of(stage, link))[0] == NEW
    for link in others:
        assert await stage.now(link) == link


async def test_one_token_that_cannot_be_refreshed_does_not_keep_the_duty_from_the_others(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """C-58, C-59."""
    links = [await stage.link(expires_in=5 + n) for n in range(4)]
    stage.script.grants = [Permanent(message="revoked"), KeyError("secret thing"), Transient(message="down")]
    assert await tokens.duty(stage.service).run(stage.conn, "leader") == 1
    states = [(await stage.now(link)).status for link in links]
    assert sorted(states) == ["active", "active", "active", "error"]
    assert "secret thing" not in caplog.text


async def test_the_duty_refreshes_some_at_once_and_no_more(settings: Settings, conn: Connection) -> None:
    """C-58: HOLDFAST_TOKEN_REFRESH_CONCURRENCY; each connection once."""
    async with kit.stage(replace(settings, token_refresh_concurrency=3), conn) as stage:
        for n in range(6):
            await stage.link(expires_in=n)
        three, at_once, most = asyncio.Barrier(3), 0, 0

        async def step(_: str) -> Any:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await three.wait()
            at_once -= 1
            return grant()

        stage.script.grants = [step] * 6
        async with asyncio.timeout(PATIENCE):
            assert await tokens.duty(stage.service).run(conn, "leader") == 6
        assert most == 3
        assert len(stage.script.of("refresh")) == 6


async def test_the_duty_looks_on_behind_those_that_fail(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-58: failing tokens at the head of the list starve nobody, and are tried once a tick."""
    monkeypatch.setattr(tokens, "BATCH", 2)
    for n in range(5):
        await stage.link(expires_in=n)
    stage.script.grants = [Transient(message="down")] * 4
    assert await tokens.duty(stage.service).run(stage.conn, "leader") == 1
    assert len(stage.script.of("refresh")) == 5


async def test_the_duty_waits_while_the_provider_wants_no_calls(stage: Stage) -> None:
    """C-42, C-58."""
    await stage.link(expires_in=5)
    later = datetime.now(UTC) + timedelta(minutes=5)
    await stage.conn.execute("update providers set cooldown_until = %s", (later,))
    assert await tokens.duty(stage.service).run(stage.conn, "leader") == 0


def test_the_duty_comes_an_hour_apart_give_or_take_a_tenth(settings: Settings) -> None:
    """C-58: 3600 s ± 10 %."""

    class Ground:
        apps = ()
        stores: Any = None
        database: Any = None

        def __init__(self, settings: Settings) -> None:
            self.settings = settings

    def every(drawn: float, settings: Settings) -> float:
        ground: Any = Ground(replace(settings, crypto_key=KEY))
        return tokens.duty(Connectors.of(ground), draw=lambda: drawn).every

    assert every(0.0, settings) == pytest.approx(3240)
    assert every(1.0, settings) == pytest.approx(3960)
    assert every(0.0, replace(settings, token_refresh_jitter=1.0)) >= 1
