"""What becomes of a run that went wrong: the wait, the error that is told, and the cool-downs."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from connectors import kit
from connectors.kit import ACCESS, FAKE, Stage, Stop, page
from holdfast import Fail, Retry, Settings
from holdfast.apps.connectors import catalogue, failures
from holdfast.apps.connectors.failures import Pace, TimedOut, wait
from holdfast.apps.connectors.protocol import Permanent, RateLimited, Transient, Unauthorized, Unsupported
from holdfast.apps.connectors.service import NoConnector
from holdfast.apps.connectors.sync_state import read_moment
from holdfast.db.pool import Connection
from holdfast.db.settings import ProviderSettings
from holdfast.errors import DatabaseUnavailable, DecryptionError
from runtime.support import until

COMMON = Pace(base=5, most=900, jitter=0.1)
GITHUB = Pace(base=10, most=900, jitter=0.2)


@pytest.fixture
async def stage(settings: Settings, conn: Connection) -> AsyncIterator[Stage]:
    async with kit.stage(settings, conn) as stage:
        yield stage


# -- the wait --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pace", "prior_failures", "hint", "least", "most"),
    [
        (COMMON, 0, None, 5, 5.5),
        (COMMON, 1, None, 10, 11),
        (COMMON, 2, None, 20, 22),
        (COMMON, 10, None, 900, 990),
        (COMMON, 0, 300.0, 300, 330),
        (COMMON, 3, 2.0, 40, 44),
        (GITHUB, 0, None, 10, 12),
        (COMMON, 100_000, None, 900, 990),
        (COMMON, 0, 0.0, 5, 5.5),
        (COMMON, 0, -3.0, 5, 5.5),
        (COMMON, 0, 1e12, 86_400, 95_040),
    ],
)
def test_each_example_of_the_backoff_holds_at_both_ends_of_its_range(
    pace: Pace, prior_failures: int, hint: float | None, least: float, most: float
) -> None:
    """C-40: attempts are starts, so the first failure is at one; chance only adds."""
    assert wait(pace, prior_failures + 1, hint, draw=lambda: 0.0) == pytest.approx(least)
    assert wait(pace, prior_failures + 1, hint, draw=lambda: 1.0) == pytest.approx(most)


def test_a_provider_has_its_own_pace_where_one_is_set_and_that_of_all_else(settings: Settings) -> None:
    """C-40, section 2.3: each of the three by itself."""
    own = ProviderSettings(backoff_base=10.0, backoff_jitter=0.2)
    settings = replace(settings, providers={"github": own})
    assert Pace.of(settings, "github") == GITHUB
    assert Pace.of(settings, "slack") == Pace.of(settings, None) == COMMON


# -- the error -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (Permanent(message="gone"), "PERMANENT", "permanent"),
        (Unsupported(message="cannot"), "UNSUPPORTED", "unsupported"),
        (NoConnector(slug="nobody"), "NO_CONNECTOR", "no_connector"),
        (Unauthorized(message="no"), "UNAUTHORIZED", "unauthorized"),
        (DecryptionError(), "DECRYPTION", "decryption"),
    ],
)
def test_what_cannot_mend_itself_fails_for_good(error: Exception, code: str, kind: str) -> None:
    """C-42, C-43, C-57: no further run."""
    outcome = failures.outcome(error, COMMON, 1)
    assert isinstance(outcome, Fail)
    assert (outcome.code, outcome.reason) == (code, str(error))
    assert outcome.facts == {"sync_error": {"type": kind}, "is_rate_limited": False}


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (Transient(message="later"), "TRANSIENT", "transient"),
        (TimedOut(seconds=300.0), "TIMEOUT", "timeout"),
        (DatabaseUnavailable(message="away"), "DATABASE_UNAVAILABLE", "database_unavailable"),
    ],
)
def test_what_may_pass_is_tried_again_after_its_wait(error: Exception, code: str, kind: str) -> None:
    """C-33, C-40, C-41."""
    outcome = failures.outcome(error, COMMON, 3, draw=lambda: 0.0)
    assert outcome == Retry(
        str(error), after=20.0, code=code, facts={"sync_error": {"type": kind}, "is_rate_limited": False}
    )


def test_a_rate_limit_waits_for_the_hint_and_says_that_it_was_one() -> None:
    """C-40, C-41."""
    error = RateLimited(message="slow down", retry_after_seconds=300.0, shared=True)
    detail = {"type": "rate_limited", "retry_after_seconds": 300.0, "shared": True}
    facts = {"sync_error": detail, "is_rate_limited": True}
    outcome = failures.outcome(error, COMMON, 1, draw=lambda: 1.0)
    assert outcome == Retry("slow down", after=330.0, code="RATE_LIMITED", facts=facts)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (float("inf"), 86_400.0),
        (1e12, 86_400.0),
        pytest.param(10**400, 86_400.0, id="huge"),
        (float("nan"), None),
        (float("-inf"), 0.0),
        (-3, 0.0),
        ("soon", None),
        (True, None),
        (None, None),
        (7, 7.0),
    ],
)
def test_a_hint_that_no_json_can_hold_is_told_within_bounds(given: Any, told: float | None) -> None:
    """C-41: a connector may be anybody's, and its error must be stored whatever it says."""
    outcome = failures.outcome(RateLimited(message="slow", retry_after_seconds=given), COMMON, 1)
    assert isinstance(outcome, Retry)
    assert outcome.facts
    assert outcome.facts["sync_error"]["retry_after_seconds"] == told
    json.dumps(outcome.facts, allow_nan=False)


async def test_a_run_with_a_hint_that_no_json_can_hold_ends_as_any_other(stage: Stage) -> None:
    """C-41, C-42."""
    job = await stage.add(await stage.link())
    stage.script.syncs = [RateLimited(message="slow", retry_after_seconds=float("inf"))]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"]) == ("queued", "RATE_LIMITED")


def test_of_an_error_that_nobody_foresaw_only_its_class_and_place_are_told() -> None:
    """C-41: its text may quote what the provider sent."""
    try:
        {}["the private letter"]
    except KeyError as error:
        outcome = failures.outcome(error, COMMON, 1, draw=lambda: 0.0)
    assert isinstance(outcome, Retry)
    assert (outcome.code, outcome.after) == ("KeyError", 5.0)
    assert outcome.reason.startswith("KeyError at connectors/test_failures.py:")
    assert "letter" not in repr(outcome)


def test_a_secret_in_a_connectors_message_is_struck_out_and_long_ones_are_cut() -> None:
    """C-57: a connector may be anybody's."""
    error = Transient(message=f"GET /me?token={ACCESS} " + "x" * 9999)
    told = failures.fault(error, [None, "", ACCESS])
    assert ACCESS not in told["message"]
    assert told["message"].startswith("GET /me?token=*** xxx")
    assert len(told["message"]) == failures.LONGEST_MESSAGE


# -- through a worker ------------------------------------------------------------------------------------


async def test_the_error_of_a_failed_run_tells_everything_and_the_last_runs(stage: Stage) -> None:
    """C-40, C-41: the keys of the error; the wait is in the row and in the error."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs = [Transient(message="down"), RateLimited(message="slow", retry_after_seconds=100.0)]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["attempts"]) == ("queued", 1)
    assert row["error"] == {
        "code": "TRANSIENT",
        "message": "down",
        "attempts": 1,
        "backoff_seconds": row["error"]["backoff_seconds"],
        "timestamp": row["error"]["timestamp"],
        "sync_error": {"type": "transient"},
        "is_rate_limited": False,
        "history": row["error"]["history"],
    }
    assert 5 <= row["error"]["backoff_seconds"] <= 5.5
    waits = (row["retry_after"] - datetime.now(UTC)).total_seconds()
    assert 0 < waits <= 5.5

    await stage.make_due()
    await stage.work()
    row = await stage.job(job)
    assert (row["error"]["code"], row["error"]["is_rate_limited"], row["attempts"]) == (
        "RATE_LIMITED",
        True,
        2,
    )
    assert 100 <= row["error"]["backoff_seconds"] <= 110
    assert [run["code"] for run in row["error"]["history"]] == ["TRANSIENT", "RATE_LIMITED"]


async def test_a_job_that_always_fails_runs_exactly_ten_times(settings: Settings, conn: Connection) -> None:
    """C-31, proofs: then it is failed, without a further run."""
    settings = replace(settings, sync_backoff_base_seconds=0.001, sync_backoff_max_seconds=0.001)
    async with kit.stage(settings, conn) as stage:
        link = await stage.link()
        job = await stage.add(link)
        stage.script.syncs = [Transient(message="down")] * 20
        async with stage.working():
            row = await stage.until_job(job, "failed")
        await stage.work()
        assert (len(stage.script.of("sync")), row["attempts"], row["retry_after"]) == (10, 10, None)
        assert len(row["error"]["history"]) == 10


async def test_a_permanent_error_fails_the_job_at_once_and_leaves_the_connection_alone(stage: Stage) -> None:
    """C-42: failed, no retry_after."""
    link = await stage.link()
    job = await stage.add(link)
    stage.script.syncs = [Permanent(message="no such repository")]
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["retry_after"], row["attempts"]) == ("failed", None, 1)
    assert (row["error"]["code"], row["error"]["message"]) == ("PERMANENT", "no such repository")
    assert (await stage.now(link)).status == "active"


async def test_a_provider_without_a_connector_rejects_its_jobs(stage: Stage) -> None:
    """C-42, section 7: NO_CONNECTOR, and nothing happens to the connection."""
    await catalogue.upsert(stage.conn, replace(FAKE, slug="nobody"))
    link = await stage.link(provider="nobody")
    ids = [await stage.add(link, kind) for kind in ("full", "incremental", "webhook")]
    await stage.work()
    for job in ids:
        row = await stage.job(job)
        assert (row["status"], row["error"]["code"]) == ("failed", "NO_CONNECTOR")
    assert (await stage.now(link)).status == "active"


async def test_a_type_that_nobody_knows_is_rejected(stage: Stage) -> None:
    """C-42: or no connector for the type."""
    link = await stage.link()
    job = await stage.add(link, "sideways")
    await stage.work()
    assert (await stage.job(job))["status"] == "failed"


async def test_a_bug_in_a_connector_is_an_ordinary_bad_run_and_no_log_quotes_its_data(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """C-36, C-41, proofs: no token in any log; its class is the code."""
    link = await stage.link()
    job = await stage.add(link)

    async def buggy(account: Any, cursor: Any) -> Any:
        raise ValueError(f"the private letter, sent with {account.access_token} as {account!r}")

    stage.script.syncs = [buggy]
    with caplog.at_level(logging.DEBUG):
        await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["error"]["code"]) == ("queued", "ValueError")
    assert row["error"]["sync_error"]["type"] == "unexpected"
    for told in (caplog.text, await stage.everything()):
        assert "private letter" not in told
        assert ACCESS not in told


async def test_a_run_over_its_time_is_stopped_and_tried_again(settings: Settings, conn: Connection) -> None:
    """C-33: TIMEOUT, with the wait of C-40."""
    async with kit.stage(replace(settings, sync_max_run_seconds=2.0), conn) as stage:
        job = await stage.add(await stage.link())
        stopped = asyncio.Event()

        async def hangs(*_: Any) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        stage.script.syncs = [hangs]
        await stage.work()
        row = await stage.job(job)
        assert stopped.is_set()
        assert (row["status"], row["error"]["code"]) == ("queued", "TIMEOUT")
        assert row["error"]["message"] == "timed out after 2 s"
        assert 5 <= row["error"]["backoff_seconds"] <= 5.5


# -- cool-downs ------------------------------------------------------------------------------------------


async def test_one_429_holds_back_the_connections_other_jobs(stage: Stage) -> None:
    """C-42, proofs: they are snoozed until the cool-down is over, and that costs them no start."""
    link = await stage.link()
    other = await stage.link(tenant=link.tenant_id)
    first = await stage.add(link)
    stage.script.syncs = [RateLimited(message="slow", retry_after_seconds=300.0)]
    await stage.work()
    until = read_moment((await stage.sync_of(link))["cooldown_until"])
    assert until is not None
    query = "select count, sum from holdfast_pulse where fact = 'rate_limited' and label = %s"
    assert [(row["count"], 300 <= row["sum"] <= 330) for row in await stage.rows(query, FAKE.slug)] == [
        (1, True),  # this minute, and all in all
        (1, True),
    ]
    retry_after = (await stage.job(first))["retry_after"]
    assert until <= retry_after < until + timedelta(seconds=5)

    held, free = await stage.add(link, "full"), await stage.add(other)
    await stage.work()
    row = await stage.job(held)
    assert (row["status"], row["attempts"], row["error"]) == ("queued", 0, None)
    assert abs((row["retry_after"] - until).total_seconds()) < 1
    assert (await stage.job(free))["status"] == "succeeded"  # the limit was this account's
    assert len(stage.script.of("sync")) == 2

    await stage.conn.execute(
        "update connections set metadata = jsonb_set(metadata, '{sync,cooldown_until}',"
        " '\"2020-01-01T00:00:00.000000Z\"') where id = %s",
        (link.id,),
    )
    await stage.make_due()
    await stage.work()
    assert (await stage.job(held))["status"] == "succeeded"


async def test_a_limit_of_the_installation_holds_back_every_connection_of_the_provider(stage: Stage) -> None:
    """C-42: a limit that all accounts share; they do not all come back at the same moment."""
    link, other = await stage.link(), await stage.link()
    await stage.add(link)
    stage.script.syncs = [RateLimited(message="slow", retry_after_seconds=300.0, shared=True)]
    await stage.work()
    until = await stage.rest()
    assert until is not None
    held = await stage.add(other)
    await stage.work()
    row = await stage.job(held)
    assert (row["status"], row["attempts"]) == ("queued", 0)
    assert until - timedelta(seconds=1) <= row["retry_after"] <= until + timedelta(seconds=34)
    assert len(stage.script.of("sync")) == 1


async def test_a_cool_down_without_end_is_a_long_snooze(stage: Stage) -> None:
    """C-42: by somebody's own SQL; nobody is asked, and nothing breaks."""
    await stage.conn.execute("update providers set cooldown_until = 'infinity'")
    job = await stage.add(await stage.link())
    await stage.work()
    row = await stage.job(job)
    assert (row["status"], row["attempts"], stage.script.calls) == ("queued", 0, [])


async def test_a_longer_cool_down_stays_when_a_shorter_one_comes(stage: Stage) -> None:
    """C-42: two runs of one connection were refused at about the same time."""
    link = await stage.link()
    await stage.add(link, "full")
    await stage.add(link)
    stop = Stop()
    long, short = (RateLimited(message="slow", retry_after_seconds=s) for s in (900.0, 30.0))
    stage.script.syncs = [stop.then(short), long]
    async with stage.working():
        await stop.reached()
        await until(stage.conn, "select count(*) = 1 from sync_jobs where retry_after is not null")
        stop.go()
        await until(stage.conn, "select count(*) = 2 from sync_jobs where retry_after is not null")
    found = read_moment((await stage.sync_of(link))["cooldown_until"])
    assert found is not None
    assert found - datetime.now(UTC) > timedelta(seconds=800)


async def test_a_job_of_a_connection_that_is_not_active_is_cancelled_at_start(stage: Stage) -> None:
    """C-43, C-44: nobody is asked; the code is CANCELLED and it is finished."""
    for status in ("paused", "revoked", "error"):
        link = await stage.link(status=status)
        job = await stage.add(link)
        await stage.work()
        row = await stage.job(job)
        assert (row["status"], row["error"]["code"]) == ("failed", "CANCELLED")
        assert row["error"]["message"] == f"cancelled: the connection is {status}"
        assert row["finished_at"] is not None
    assert stage.script.calls == []


async def test_a_connection_that_was_paused_meanwhile_keeps_nothing_of_the_page(stage: Stage) -> None:
    """C-37, C-43: neither signals nor cursor; the page is read again when it goes on."""
    link = await stage.link()
    job = await stage.add(link)
    stop = Stop()
    stage.script.syncs = [stop.then(page("a", cursor="c1"))]
    async with stage.working():
        await stop.reached()
        await stage.conn.execute("update connections set status = 'paused' where id = %s", (link.id,))
        stop.go()
        row = await stage.until_job(job, "failed")
    assert row["error"]["code"] == "CANCELLED"
    assert await stage.keys(link) == []
    assert "cursor" not in await stage.sync_of(link)
