"""What `sync_jobs` promises and its store alone can prove: lanes, single flight, and the record of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import errors

from conftest import Connect
from holdfast.apps.connectors.ledger import JOB_TYPES, SYNC_JOBS
from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.lifecycle import FENCED, PERSONAL, Verb
from holdfast.engine.outcomes import Crashed, Fail, Retry, Snooze
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Filter, Item, Move
from holdfast.errors import ClaimLost, IdempotencyConflict, IllegalEdge, InvalidInput
from ledgers import FAULT, NOW, Connection, after
from runtime.support import column, one, until

STORE = Store(SYNC_JOBS)
BLOCKED = (
    "select true from pg_locks join pg_stat_activity using (pid) where not granted"
    " and datname = current_database()"
)
LEGAL: Mapping[Verb, tuple[tuple[str, ...], str]] = {
    "finish": (("running",), "succeeded"),
    "retry": (("running",), "queued"),
    "exhaust": (("running",), "failed"),
    "reject": (("running",), "failed"),
    "snooze": (("running",), "queued"),
    "release": (("running",), "queued"),
    "lose": (("running",), "queued"),
    "cancel": (("queued", "running"), "failed"),
    "requeue": (("failed",), "queued"),
}
VERBS: tuple[Verb, ...] = tuple(LEGAL)


@pytest.fixture
async def tenant(conn: Connection) -> UUID:
    return await one(conn, "insert into tenants (id, name) values (%s, 'Acme') returning id", uuid4())


async def connected(conn: Connection, tenant: UUID, provider: str = "github") -> UUID:
    return await one(
        conn,
        "insert into connections (id, tenant_id, provider_slug, external_id) "
        "values (%s, %s, %s, %s) returning id",
        *(uuid4(), tenant, provider, str(uuid4())),
    )


def item(tenant: UUID, connection: UUID, kind: str = "incremental", **more: Any) -> Item:
    where = {"connection_id": connection, "provider_slug": "github"}
    return Item(kind=kind, tenant=tenant, extras=where, **more)


async def job(conn: Connection, tenant: UUID, kind: str = "incremental", **more: Any) -> UUID:
    """A new job of a connection of its own."""
    receipt = await STORE.enqueue(conn, item(tenant, await connected(conn, tenant), kind, **more), now=NOW)
    return receipt.id


async def row(conn: Connection, job_id: UUID) -> dict[str, Any]:
    return await one(conn, "select to_jsonb(j) from sync_jobs as j where id = %s", job_id)


async def claims(conn: Connection, at: float = 1, limit: int = 10, owner: str = "w1") -> list[Claimed]:
    return await STORE.claim(conn, owner, limit, now=after(at))


async def brought(conn: Connection, tenant: UUID, state: str) -> tuple[UUID, Claimed]:
    """A job in this state, and the claim that it was or could be held by."""
    job_id = await job(conn, tenant)
    nobody = Claimed(
        id=job_id, kind="incremental", payload=None, state=state, owner="w1", fence=1, attempts=1, limit=10
    )
    if state == "queued":
        return job_id, nobody
    (claim,) = await claims(conn)
    if state == "succeeded":
        await STORE.move_one(conn, Move(verb="finish", claim=claim), now=after(2))
    if state == "failed":
        await STORE.move_one(conn, Move(verb="reject", claim=claim, fault=FAULT), now=after(2))
    if state == "completed":
        await conn.execute("update sync_jobs set status = 'completed' where id = %s", [job_id])
    return job_id, claim


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", SYNC_JOBS.states)
async def test_every_state_times_every_verb_is_one_change_or_none(
    conn: Connection, tenant: UUID, state: str, verb: Verb
) -> None:
    """C-31, C-44, proofs: every state times every verb of sync jobs is legal with one change or refused."""
    job_id, claim = await brought(conn, tenant, state)
    before = await row(conn, job_id)
    legal, to = LEGAL[verb]
    try:
        if verb in FENCED:
            await STORE.move_one(conn, Move(verb=verb, claim=claim, fault=FAULT, delay=60), now=after(3))
        else:
            assert verb in PERSONAL
            await (STORE.cancel if verb == "cancel" else STORE.requeue)(conn, job_id, now=after(3))
    except (ClaimLost, IllegalEdge):
        assert state not in legal
        assert await row(conn, job_id) == before
    else:
        assert state in legal
        assert (await row(conn, job_id))["status"] == to


async def test_claimable_jobs_come_by_priority_then_by_time(conn: Connection, tenant: UUID) -> None:
    """C-28, scenario: jobs are picked by highest priority then earliest scheduled at."""
    late = await job(conn, tenant, priority=30, run_at=NOW - timedelta(seconds=1))
    early = await job(conn, tenant, priority=30, run_at=NOW - timedelta(seconds=5))
    urgent = await job(conn, tenant, "webhook", priority=50, run_at=NOW)
    await job(conn, tenant, "full", priority=99, run_at=NOW + timedelta(hours=1))
    assert [claim.id for claim in await claims(conn)] == [urgent, early, late]


async def test_the_lanes_are_merged_by_priority_and_by_the_end_of_the_wait(
    conn: Connection, tenant: UUID
) -> None:
    """C-29: among jobs that waited for a retry, the one whose wait ended first is the earlier."""
    fresh = await job(conn, tenant, priority=10, run_at=NOW - timedelta(seconds=60))
    second, first, failed, urgent = [await job(conn, tenant, priority=10) for _ in range(4)]
    waits = {second: (20, "queued", 10), first: (40, "queued", 10), failed: (30, "failed", 10)}
    for job_id, (ago, status, priority) in (waits | {urgent: (1, "queued", 11)}).items():
        await conn.execute(
            "update sync_jobs set status = %s, retry_after = %s, priority = %s where id = %s",
            [status, NOW - timedelta(seconds=ago), priority, job_id],
        )
    assert [claim.id for claim in await claims(conn)] == [urgent, fresh, first, failed, second]


async def test_a_failed_job_is_hidden_until_its_retry_after_has_passed_and_is_picked_then(
    conn: Connection, tenant: UUID
) -> None:
    """C-30, scenario: set by anyone; `failed` without a time is final."""
    job_id, final = await job(conn, tenant), await job(conn, tenant)
    await conn.execute(
        "update sync_jobs set status = 'failed', finished_at = now() where id = any(%s)", [[job_id, final]]
    )
    await conn.execute("update sync_jobs set retry_after = %s where id = %s", [after(100), job_id])
    assert await claims(conn, at=99) == []
    (claim,) = await claims(conn, at=100)
    found = await row(conn, job_id)
    assert (claim.id, found["status"], found["finished_at"], found["retry_after"]) == (
        job_id,
        "running",
        None,
        None,
    )


async def test_a_job_waits_for_both_of_its_times(conn: Connection, tenant: UUID) -> None:
    """C-28: scheduled in the future is not claimable, whatever its retry time says."""
    job_id = await job(conn, tenant, run_at=after(100))
    await conn.execute("update sync_jobs set retry_after = %s where id = %s", [after(1), job_id])
    assert await claims(conn, at=99) == []
    assert [claim.id for claim in await claims(conn, at=100)] == [job_id]


async def test_a_claim_counts_as_a_start_and_snooze_and_release_give_it_back(
    conn: Connection, tenant: UUID
) -> None:
    """C-31: attempts are starts; a lost worker keeps its own."""
    job_id = await job(conn, tenant)
    for verb, attempts in (("snooze", 0), ("release", 0), ("lose", 1)):
        (claim,) = await claims(conn, at=10)
        assert claim.attempts == 1
        await STORE.move_one(conn, Move(verb=verb, claim=claim, fault=FAULT), now=after(1))
        assert (await row(conn, job_id))["attempts"] == attempts


async def test_a_job_that_always_fails_runs_exactly_ten_times(conn: Connection, tenant: UUID) -> None:
    """C-31, proofs: then it is failed, for good."""
    job_id = await job(conn, tenant)
    runs = 0
    while found := await claims(conn, at=1e6 * (runs + 1)):
        runs += 1
        move = decide(SYNC_JOBS, found[0], Crashed("Transient", f"no. {runs}"))
        await STORE.move_one(conn, move, now=after(1e6 * runs))
    ended = await row(conn, job_id)
    assert (runs, ended["status"], ended["attempts"], ended["retry_after"]) == (10, "failed", 10, None)
    assert ended["finished_at"]


async def test_a_job_that_kills_its_worker_ends_failed(conn: Connection, tenant: UUID) -> None:
    """C-33: a lost worker counts as a run; the error says so."""
    job_id = await job(conn, tenant)
    runs = 0
    while found := await claims(conn, at=10 * (runs + 1)):
        runs += 1
        await STORE.move_one(conn, decide_lost(SYNC_JOBS, found[0]), now=after(10 * runs))
    ended = await row(conn, job_id)
    assert (runs, ended["status"], ended["error"]["code"]) == (10, "failed", "WORKER_LOST")


async def test_the_error_tells_when_after_how_many_starts_and_of_the_last_ten_runs(
    conn: Connection, tenant: UUID
) -> None:
    """C-41: code, message, attempts, backoff_seconds, timestamp, what the handler adds, history."""
    job_id = await job(conn, tenant, limit=20)
    for n in range(1, 13):
        (claim,) = await claims(conn, at=1e6 * n)
        again = Retry(
            "too many", after=30.0 + n, code="RATE_LIMITED", facts={"is_rate_limited": True, "n": n}
        )
        await STORE.move_one(conn, decide(SYNC_JOBS, claim, again), now=after(1e6 * n))
    error = (await row(conn, job_id))["error"]
    history = error.pop("history")
    assert error == history[-1]
    assert {name: error[name] for name in ("code", "message", "attempts", "backoff_seconds")} == {
        "code": "RATE_LIMITED",
        "message": "too many",
        "attempts": 12,
        "backoff_seconds": 42,
    }
    assert error["is_rate_limited"] is True
    assert error["timestamp"].startswith("20")
    assert [one["n"] for one in history] == list(range(3, 13))


async def test_facts_of_a_handler_do_not_hide_what_happened(conn: Connection, tenant: UUID) -> None:
    """C-41: code and message are the outcome's, whatever the facts are called."""
    job_id = await job(conn, tenant)
    (claim,) = await claims(conn)
    end = Fail("it is gone", code="GONE", facts={"code": "x", "message": "y", "history": "z", "more": 1})
    await STORE.move_one(conn, decide(SYNC_JOBS, claim, end), now=after(2))
    error = (await row(conn, job_id))["error"]
    assert (error["code"], error["message"], error["more"], len(error["history"])) == (
        "GONE",
        "it is gone",
        1,
        1,
    )


async def test_a_cancelled_job_says_so_and_is_not_tried_again(conn: Connection, tenant: UUID) -> None:
    """C-44: code CANCELLED, message cancelled, finished; also one that waited for its retry."""
    job_id = await job(conn, tenant)
    (claim,) = await claims(conn)
    await STORE.move_one(conn, decide(SYNC_JOBS, claim, Retry("later", after=5)), now=after(1))
    await STORE.cancel(conn, job_id, now=after(2))
    found = await row(conn, job_id)
    assert (found["error"]["code"], found["error"]["message"]) == ("CANCELLED", "cancelled")
    assert (found["status"], found["retry_after"], bool(found["finished_at"])) == ("failed", None, True)
    assert await claims(conn, at=1e6) == []


# -- single flight -------------------------------------------------------------------------------------------


async def test_a_second_queued_incremental_job_is_refused_by_the_index_and_answers_with_the_first(
    conn: Connection, tenant: UUID
) -> None:
    """Scenario: duplicate interval job prevented; for us a no-op, for foreign SQL a violation."""
    connection = await connected(conn, tenant)
    first = await STORE.enqueue(conn, item(tenant, connection), now=NOW)
    again = await STORE.enqueue(conn, item(tenant, connection), now=NOW)
    assert (again.id, first.created, again.created) == (first.id, True, False)
    many = await STORE.enqueue_many(
        conn, [item(tenant, connection, kind) for kind in ("incremental", "full")]
    )
    assert [receipt.created for receipt in many] == [False, True]
    with pytest.raises(errors.UniqueViolation, match="idx_sync_jobs_connection_type_status"):
        await conn.execute(
            "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type) "
            "values (gen_random_uuid(), %s, 'github', %s, 'incremental')",
            [tenant, connection],
        )


async def test_a_full_job_is_accepted_while_an_incremental_one_runs_and_both_proceed(
    conn: Connection, tenant: UUID
) -> None:
    """C-32, scenario: different job types."""
    connection = await connected(conn, tenant)
    await STORE.enqueue(conn, item(tenant, connection), now=NOW)
    (running,) = await claims(conn)
    assert (await STORE.enqueue(conn, item(tenant, connection, "full"), now=NOW)).created
    (full,) = await claims(conn)
    moved = await STORE.move(conn, [Move(verb="finish", claim=claim) for claim in (running, full)])
    assert moved == {running.id, full.id}


@pytest.mark.parametrize("status", ["completed", "succeeded", "failed"])
async def test_an_ended_incremental_job_does_not_block_the_next_one(
    conn: Connection, tenant: UUID, status: str
) -> None:
    """Scenario: completed jobs do not block new scheduling."""
    connection = await connected(conn, tenant)
    await STORE.enqueue(conn, item(tenant, connection), now=NOW)
    await conn.execute("update sync_jobs set status = %s", [status])
    assert (await STORE.enqueue(conn, item(tenant, connection), now=NOW)).created


async def failed_pair(conn: Connection, tenant: UUID, connection: UUID) -> list[UUID]:
    """Two jobs of one connection and type that have failed and are due."""
    ids: list[UUID] = []
    for n in range(2):
        ids.append((await STORE.enqueue(conn, item(tenant, connection), now=after(-10 + n))).id)
        await conn.execute(
            "update sync_jobs set status = 'failed', retry_after = %s where id = %s", [after(-n), ids[-1]]
        )
    return ids


async def test_two_due_failed_rows_of_one_pair_give_one_claim_and_no_error(
    conn: Connection, tenant: UUID
) -> None:
    """C-30, proofs: one row a pair, and none that has an active sibling; others are free."""
    ids = await failed_pair(conn, tenant, await connected(conn, tenant))
    (other, _) = await failed_pair(conn, tenant, await connected(conn, tenant))
    first = await claims(conn)
    assert len(first) == 2
    assert ids[1] in {claim.id for claim in first}, "its wait ended first"
    assert await claims(conn) == []
    await STORE.move(conn, [Move(verb="finish", claim=claim) for claim in first])
    assert {claim.id for claim in await claims(conn)} == {ids[0], other}


async def test_two_claimers_of_one_pair_of_failed_rows_at_once(
    conn: Connection, connect: Connect, tenant: UUID
) -> None:
    """Trap: the loser waits for the winner's commit, is refused by the index, and takes nothing."""
    await failed_pair(conn, tenant, await connected(conn, tenant))
    other = await connect()
    async with conn.transaction():
        (mine,) = await claims(conn, limit=1)
        losing = asyncio.create_task(claims(other, owner="w2"))
        await until(await connect(), BLOCKED)
    with pytest.raises(errors.UniqueViolation):
        await losing
    assert await column(conn, "select id from sync_jobs where status = 'running'") == [mine.id]
    assert await claims(other, owner="w2") == [], "the next look sees the sibling"


async def test_a_requeue_with_an_active_sibling_is_a_conflict_that_names_it(
    conn: Connection, tenant: UUID
) -> None:
    """C-44, section 4: nothing is written."""
    connection = await connected(conn, tenant)
    old, newer = await failed_pair(conn, tenant, connection)
    active = (await STORE.enqueue(conn, item(tenant, connection), now=NOW)).id
    before = [await row(conn, job_id) for job_id in (old, newer)]
    with pytest.raises(IdempotencyConflict, match=str(active)):
        await STORE.requeue(conn, old)
    assert await STORE.requeue_where(conn, Filter(extras={"connection_id": connection})) == 0
    assert [await row(conn, job_id) for job_id in (old, newer)] == before


async def test_a_requeue_against_an_enqueue_that_commits_meanwhile_is_a_conflict(
    conn: Connection, connect: Connect, tenant: UUID
) -> None:
    """C-44: the index decides what the first look could not see."""
    connection = await connected(conn, tenant)
    old, _ = await failed_pair(conn, tenant, connection)
    other = await connect()
    async with conn.transaction():
        await STORE.enqueue(conn, item(tenant, connection), now=NOW)
        losing = asyncio.create_task(STORE.requeue(other, old))
        await until(await connect(), BLOCKED)
    with pytest.raises(IdempotencyConflict):
        await losing


async def test_a_bulk_requeue_lets_one_of_each_pair_run_again(conn: Connection, tenant: UUID) -> None:
    """C-44: by provider, connection, error code and time; the newest of each pair."""
    pairs = [await failed_pair(conn, tenant, await connected(conn, tenant)) for _ in range(3)]
    await conn.execute('update sync_jobs set error = \'{"code": "TIMEOUT"}\' where id = any(%s)', [pairs[0]])
    assert await STORE.requeue_where(conn, Filter(code="TIMEOUT")) == 1
    assert await STORE.requeue_where(conn, Filter(extras={"provider_slug": "github"})) == 2
    assert set(await column(conn, "select id from sync_jobs where status = 'queued'")) == {
        p[1] for p in pairs
    }
    with pytest.raises(InvalidInput, match="colour"):
        await STORE.requeue_where(conn, Filter(extras={"colour": "red"}))


async def test_an_enqueue_says_what_is_missing(conn: Connection, tenant: UUID) -> None:
    with pytest.raises(InvalidInput, match="connection_id"):
        await STORE.enqueue(conn, Item(kind="full", tenant=tenant, extras={"provider_slug": "github"}))
    with pytest.raises(InvalidInput, match="key"):
        await STORE.enqueue(conn, item(tenant, uuid4(), key="k"))
    assert await one(conn, "select count(*) from sync_jobs") == 0


async def test_snoozed_jobs_wait_in_the_lane_of_retries(conn: Connection, tenant: UUID) -> None:
    job_id = await job(conn, tenant)
    (claim,) = await claims(conn)
    await STORE.move_one(conn, decide(SYNC_JOBS, claim, Snooze(30)), now=after(1))
    assert await claims(conn, at=30) == []
    assert [claim.id for claim in await claims(conn, at=31)] == [job_id]


def test_the_types_of_jobs_are_the_seeds() -> None:
    assert JOB_TYPES == ("full", "incremental", "webhook")
    assert Fault(code="a", message="b").facts == {}


async def test_a_count_at_the_end_of_its_type_keeps_no_other_job_from_being_claimed(
    conn: Connection, tenant: UUID
) -> None:
    """C-31: whoever may write a row of theirs must not stop everybody's."""
    odd, other = await job(conn, tenant), await job(conn, tenant)
    await conn.execute("update sync_jobs set attempts = 2147483647 where id = %s", [odd])
    found = await claims(conn)
    assert {claim.id for claim in found} == {odd, other}
    await STORE.move(
        conn, [decide(SYNC_JOBS, claim, Crashed("Transient", "no")) for claim in found], now=after(2)
    )
    assert (await row(conn, odd))["status"] == "failed"
