"""What `tasks` promises and its store alone can prove; what all ledgers promise is in the conformance suite.

Columns are read from the table itself, as its users' own SQL sees them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, LiteralString
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from holdfast.apps.tasks.ledger import TASKS
from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.outcomes import Cancel, Crashed, Done, Fail, Retry, Snooze
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Filter, Item, Move, Receipt
from holdfast.errors import ClaimLost, NotFound
from ledgers import NOW, TASKS_SAMPLE, Connection, after, ledger_database

STORE = Store(TASKS)
AT = NOW.replace(tzinfo=None)  # a TIMESTAMP column means UTC

# The seed's own statement.
SEED_ENQUEUE: LiteralString = """
INSERT INTO tasks (type, payload, idempotency_key)
VALUES ('email:send', '{"to":"user@example.com"}', 'email-user-123')
ON CONFLICT (type, idempotency_key)
DO UPDATE SET updated_at = NOW()
RETURNING id;
"""


def at(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


@pytest.fixture(scope="module")
def _database(postgres: str) -> Iterator[Callable[[], str]]:
    with ledger_database(postgres) as emptied:
        yield emptied


@pytest.fixture
def database_url(_database: Callable[[], str]) -> str:
    return _database()


async def columns(conn: Connection, id: UUID) -> dict[str, Any]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute("select * from tasks where id = %s", [id])
        (row,) = await cursor.fetchall()
        return row


async def enqueue(conn: Connection, **item: Any) -> UUID:
    return (await STORE.enqueue(conn, Item(**({"kind": "demo"} | item)), now=NOW)).id


async def run(conn: Connection, owner: str = "w1", seconds: float = 10) -> Claimed:
    """Claims and starts the next task, a second apart."""
    claims = await STORE.claim(conn, owner, 1, now=after(seconds))
    (claim,) = await STORE.start(conn, claims, now=after(seconds + 1))
    return claim


# -- enqueue ---------------------------------------------------------------------------------------------


async def test_a_new_task_is_pending_with_the_columns_own_defaults(conn: Connection) -> None:
    """T-1, T-7: an unknown type is accepted and takes the column's default for max_retries."""
    row = await columns(conn, await enqueue(conn, kind="never:heard", payload={"a": 1}))
    assert {name: value for name, value in row.items() if name != "id"} == {
        "type": "never:heard",
        "payload": {"a": 1},
        "status": "pending",
        "priority": 0,
        "idempotency_key": None,
        "worker_id": None,
        "created_at": AT,
        "claimed_at": None,
        "started_at": None,
        "completed_at": None,
        "updated_at": AT,
        "attempts": 0,
        "max_retries": 3,
        "last_error": None,
        "next_retry_at": None,
        "fence": 0,
        "traceparent": None,
    }


async def test_the_seeds_own_enqueue_and_ours_share_one_key(conn: Connection) -> None:
    """T-1, T-2."""
    cursor = await conn.execute(SEED_ENQUEUE)
    ((theirs,),) = await cursor.fetchall()
    ours = await STORE.enqueue(conn, Item(kind="email:send", key="email-user-123", payload=[]))
    assert (ours.id, ours.created) == (theirs, False)
    assert await (await conn.execute(SEED_ENQUEUE)).fetchall() == [(theirs,)]
    assert (await STORE.get(conn, theirs)).payload == {"to": "user@example.com"}


@pytest.mark.parametrize("state", TASKS.states)
async def test_a_repeated_enqueue_moves_only_updated_at_whatever_the_status(
    conn: Connection, state: str
) -> None:
    """T-2."""
    first = await TASKS_SAMPLE.bring(conn, state, key="k", priority=3, limit=7)
    before = await columns(conn, first)
    again = Item(kind="demo", key="k", payload={"other": 2}, priority=9, limit=1, delay=60)
    receipt = await STORE.enqueue(conn, again)
    assert (receipt.id, receipt.created) == (first, False)
    row = await columns(conn, first)
    assert row.pop("updated_at") != before.pop("updated_at")
    assert row == before
    assert len(await TASKS_SAMPLE.rows(conn)) == 1


async def test_an_empty_key_by_plain_sql_is_a_key_like_any_other(conn: Connection) -> None:
    """T-3 and "Bad input"."""
    await conn.execute("insert into tasks (type, idempotency_key) values ('a', '')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await conn.execute("insert into tasks (type, idempotency_key) values ('a', '')")


async def test_a_delay_is_stored_in_next_retry_at(conn: Connection) -> None:
    """T-6."""
    assert (await columns(conn, await enqueue(conn, delay=90)))["next_retry_at"] == at(90)
    assert (await columns(conn, await enqueue(conn, run_at=after(30))))["next_retry_at"] == at(30)


async def test_a_bulk_is_one_statement_for_items_alike(conn: Connection) -> None:
    """T-7: one transaction and one reading of the clock."""
    await STORE.enqueue_many(conn, [Item(kind="demo", payload=n, key=str(n)) for n in range(500)])
    cursor = await conn.execute(
        "select count(*), count(distinct created_at), count(distinct xmin::text) from tasks"
    )
    assert await cursor.fetchall() == [(500, 1, 1)]


async def test_the_doorbell_rings_once_per_transaction_and_only_when_it_commits(
    conn: Connection, connect: Any
) -> None:
    """T-7, T-13."""
    ear = await connect()
    await ear.execute("listen holdfast_tasks")
    async with conn.transaction(force_rollback=True):
        await STORE.enqueue(conn, Item(kind="demo"))
    async with conn.transaction():
        for _ in range(3):
            await STORE.enqueue_many(conn, [Item(kind="demo")] * 20)
        await STORE.copy(conn, [Item(kind="demo")] * 20)
    await conn.execute("notify holdfast_tasks, 'the end'")
    heard: list[str] = []
    async for note in ear.notifies(timeout=20):
        heard.append(note.payload)
        if note.payload == "the end":
            break
    assert heard == ["", "the end"]


async def test_a_cancelled_task_rings_for_its_worker_and_a_requeued_one_for_all(
    conn: Connection, connect: Any
) -> None:
    """T-27, T-28."""
    ear = await connect()
    await ear.execute("listen holdfast_tasks")
    await ear.execute("listen holdfast_tasks_cancel")
    key = await TASKS_SAMPLE.bring(conn, "running")
    await STORE.cancel(conn, key)
    await STORE.requeue(conn, key)
    heard: list[str] = []
    async for note in ear.notifies(timeout=20):
        heard.append(note.channel)
        if len(heard) == 3:
            break
    assert heard == ["holdfast_tasks", "holdfast_tasks_cancel", "holdfast_tasks"]


# -- claim and start -------------------------------------------------------------------------------------


async def test_a_claim_sets_its_columns_and_clears_the_due_time(conn: Connection) -> None:
    """T-8."""
    key = await enqueue(conn, delay=5)
    before = await columns(conn, key)
    await STORE.claim(conn, "w1", 1, now=after(10))
    row = await columns(conn, key)
    changed = {name: row[name] for name in row if row[name] != before[name] and name != "updated_at"}
    assert changed == {
        "status": "claimed",
        "worker_id": "w1",
        "claimed_at": at(10),
        "fence": 1,
        "next_retry_at": None,
    }


async def test_a_start_sets_started_at_and_a_later_run_overwrites_it(conn: Connection) -> None:
    """T-12."""
    key = await enqueue(conn)
    claim = await run(conn, seconds=10)
    row = await columns(conn, key)
    assert (row["status"], row["claimed_at"], row["started_at"]) == ("running", at(10), at(11))
    await STORE.move_one(conn, Move(verb="release", claim=claim), now=after(12))
    await run(conn, "w2", seconds=20)
    row = await columns(conn, key)
    assert (row["worker_id"], row["claimed_at"], row["started_at"]) == ("w2", at(20), at(21))


async def test_a_start_of_a_lost_claim_finds_no_row(conn: Connection) -> None:
    """T-12: the handler is not called."""
    await enqueue(conn)
    claims = await STORE.claim(conn, "w1", 1, now=after(10))
    await STORE.move_one(conn, Move(verb="lose", claim=claims[0]), now=after(11))
    assert await STORE.start(conn, claims, now=after(12)) == []


async def test_a_claim_of_no_rows_takes_none(conn: Connection) -> None:
    """T-10: at most as many as there are free slots."""
    await STORE.enqueue_many(conn, [Item(kind="demo")] * 5, now=NOW)
    assert await STORE.claim(conn, "w1", 0, now=after(1)) == []
    assert len(await STORE.claim(conn, "w1", 3, now=after(1))) == 3


async def test_equal_priorities_of_the_retry_lane_go_by_due_time(conn: Connection) -> None:
    """T-9."""
    late, soon = await enqueue(conn, delay=8), await enqueue(conn, delay=4)
    assert [claim.id for claim in await STORE.claim(conn, "w1", 2, now=after(10))] == [soon, late]


# -- the end of a run ------------------------------------------------------------------------------------


async def changed_by(conn: Connection, key: UUID, move: Move, seconds: float = 20) -> dict[str, Any]:
    """The columns that one move changes, beside updated_at."""
    before = await columns(conn, key)
    await STORE.move_one(conn, move, now=after(seconds))
    row = await columns(conn, key)
    return {name: row[name] for name in row if row[name] != before[name] and name != "updated_at"}


async def test_done_sets_completed_at_and_keeps_who_ran_it_and_the_last_error(conn: Connection) -> None:
    """T-15, T-16: a task that completes at once has attempts 1."""
    key = await enqueue(conn)
    await conn.execute("update tasks set last_error = 'an older run'")
    claim = await run(conn)
    assert await changed_by(conn, key, decide(TASKS, claim, Done({"result": 1}))) == {
        "status": "completed",
        "completed_at": at(20),
        "attempts": 1,
    }
    row = await columns(conn, key)
    assert (row["worker_id"], row["claimed_at"], row["started_at"], row["last_error"]) == (
        "w1",
        at(10),
        at(11),
        "an older run",
    )


async def test_a_bad_run_with_runs_left_goes_back_and_names_no_worker(conn: Connection) -> None:
    """T-16, T-19."""
    key = await enqueue(conn)
    claim = await run(conn)
    assert await changed_by(conn, key, decide(TASKS, claim, Retry("it broke", after=30))) == {
        "status": "pending",
        "attempts": 1,
        "last_error": "it broke",
        "next_retry_at": at(50),
        "worker_id": None,
        "claimed_at": None,
        "started_at": None,
    }


async def test_the_last_bad_run_ends_in_the_dead_letters(conn: Connection) -> None:
    """T-17, T-21: completed_at is set, next_retry_at is NULL."""
    key = await enqueue(conn, limit=1, delay=1)
    claim = await run(conn)
    assert await changed_by(conn, key, decide(TASKS, claim, Crashed("X", "it broke"))) == {
        "status": "dead_letter",
        "attempts": 1,
        "last_error": "it broke",
        "completed_at": at(20),
    }
    assert (await columns(conn, key))["next_retry_at"] is None


async def test_no_handler_fails_a_claimed_task_without_a_run(conn: Connection) -> None:
    """T-22, T-23: attempts stay, completed_at is set, no retry."""
    key = await enqueue(conn)
    (claim,) = await STORE.claim(conn, "w1", 1, now=after(10))
    move = decide(TASKS, claim, Fail("no handler for 'demo'", code="NO_HANDLER"))
    assert await changed_by(conn, key, move) == {
        "status": "failed",
        "last_error": "no handler for 'demo'",
        "completed_at": at(20),
    }
    assert await STORE.claim(conn, "w1", 1, now=after(10**6)) == []


async def test_a_permanent_error_fails_a_running_task_and_counts_its_run(conn: Connection) -> None:
    """T-16, T-22, T-23."""
    key = await enqueue(conn)
    claim = await run(conn)
    assert await changed_by(conn, key, decide(TASKS, claim, Fail("never"))) == {
        "status": "failed",
        "last_error": "never",
        "completed_at": at(20),
        "attempts": 1,
    }


@pytest.mark.parametrize("verb", ["snooze", "release"])
async def test_snooze_and_release_give_the_task_back_uncounted(conn: Connection, verb: str) -> None:
    """T-16, T-25: a snoozed task waits, a released one is claimable now."""
    key = await enqueue(conn)
    claim = await run(conn)
    move = decide(TASKS, claim, Snooze(60)) if verb == "snooze" else Move(verb="release", claim=claim)
    expected = {"status": "pending", "worker_id": None, "claimed_at": None, "started_at": None}
    waits = {"next_retry_at": at(80)} if verb == "snooze" else {}
    assert await changed_by(conn, key, move) == expected | waits
    assert len(await STORE.claim(conn, "w2", 1, now=after(21))) == (verb == "release")


async def test_an_effect_and_its_finish_commit_together_or_not_at_all(conn: Connection) -> None:
    """T-4, T-14, T-18: a handler that lost its claim leaves no trace in the database."""
    await conn.execute("create temporary table effects (task uuid)")
    await STORE.enqueue_many(conn, [Item(kind="demo")] * 2, now=NOW)
    kept, lost = [await run(conn), await run(conn)]
    await STORE.move_one(conn, Move(verb="lose", claim=lost), now=after(20))

    async def effect(claim: Claimed) -> None:
        async with conn.transaction():
            await conn.execute("insert into effects values (%s)", [claim.id])
            await STORE.move_one(conn, Move(verb="finish", claim=claim), now=after(21))

    await effect(kept)
    with pytest.raises(ClaimLost):
        await effect(lost)
    assert await (await conn.execute("select task from effects")).fetchall() == [(kept.id,)]


async def test_a_timed_out_run_is_an_ordinary_bad_run(conn: Connection) -> None:
    """T-24: what the runtime makes of it is stored as its text."""
    key = await enqueue(conn)
    claim = await run(conn)
    await STORE.move_one(conn, decide(TASKS, claim, Crashed("TIMEOUT", "timed out after 5 s")), now=after(20))
    row = await columns(conn, key)
    assert (row["status"], row["attempts"], row["last_error"]) == ("pending", 1, "timed out after 5 s")


async def test_a_lost_running_task_is_counted_and_a_claimed_one_is_not(conn: Connection) -> None:
    """T-33."""
    running = await enqueue(conn, priority=1)
    claimed = await enqueue(conn)
    await run(conn)
    await STORE.claim(conn, "w1", 1, now=after(10))
    held = await STORE.held_by(conn, ["w1"])
    await STORE.move(conn, [decide_lost(TASKS, claim) for claim in held], now=after(60))
    rows = [await columns(conn, key) for key in (running, claimed)]
    assert [(row["status"], row["attempts"], row["last_error"]) for row in rows] == [
        ("pending", 1, "worker lost"),
        ("pending", 0, "worker lost"),
    ]
    assert [(row["worker_id"], row["next_retry_at"]) for row in rows] == [(None, None)] * 2


# -- people ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "claimed", "running"])
async def test_a_cancel_fails_the_task_at_once_and_keeps_its_key(conn: Connection, state: str) -> None:
    """T-27."""
    key = await TASKS_SAMPLE.bring(conn, state, key="k")
    before = await columns(conn, key)
    await STORE.cancel(conn, key, now=after(20))
    row = await columns(conn, key)
    assert {name: row[name] for name in row if row[name] != before[name] and name != "updated_at"} == {
        "status": "failed",
        "last_error": "cancelled",
        "completed_at": at(20),
    }
    assert (await STORE.enqueue(conn, Item(kind="demo", key="k"))).id == key
    assert await STORE.claim(conn, "w1", 1, now=after(10**6)) == []


async def test_a_handler_may_call_its_own_task_off(conn: Connection) -> None:
    """T-27."""
    key = await enqueue(conn)
    claim = await run(conn)
    assert await changed_by(conn, key, decide(TASKS, claim, Cancel("nobody needs it"))) == {
        "status": "failed",
        "last_error": "nobody needs it",
        "completed_at": at(20),
    }


@pytest.mark.parametrize("state", ["dead_letter", "failed"])
async def test_a_requeue_gives_all_runs_back_and_keeps_the_fence(conn: Connection, state: str) -> None:
    """T-28."""
    key = await enqueue(conn)
    claim = await run(conn)
    verb: Any = "exhaust" if state == "dead_letter" else "reject"
    await STORE.move_one(conn, Move(verb=verb, claim=claim), now=after(20))
    await STORE.requeue(conn, key, now=after(30))
    row = await columns(conn, key)
    names = ("next_retry_at", "completed_at", "claimed_at", "started_at", "worker_id")
    assert [row[name] for name in names] == [None] * 5
    assert (row["status"], row["attempts"], row["fence"]) == ("pending", 0, 1)
    assert (await run(conn, seconds=40)).fence == 2


async def test_a_requeue_by_type_and_by_filter_leaves_the_others(conn: Connection) -> None:
    """T-28."""
    for kind in ("a", "a", "b"):
        await enqueue(conn, kind=kind)
    claims = await STORE.start(conn, await STORE.claim(conn, "w1", 9, now=after(1)), now=after(1))
    await STORE.move(conn, [Move(verb="exhaust", claim=claim) for claim in claims], now=after(2))
    assert await STORE.requeue_where(conn, Filter(kind="a", states=("failed",))) == 0
    assert await STORE.requeue_where(conn, Filter(kind="a", states=("dead_letter",))) == 2
    counted = {(count.state, count.kind): count.rows for count in await STORE.count(conn)}
    assert counted == {("pending", "a"): 2, ("dead_letter", "b"): 1}


async def test_a_task_reads_with_its_times_in_utc(conn: Connection) -> None:
    """T-29."""
    key = await enqueue(conn, payload={"a": 1}, delay=5)
    row = await STORE.get(conn, str(key))
    assert (row.id, row.kind, row.state, row.payload, row.limit) == (key, "demo", "pending", {"a": 1}, 3)
    assert (row.created, row.due) == (NOW, after(5))
    assert row.created.utcoffset() == timedelta(0)
    assert json.loads(json.dumps(row.columns))["next_retry_at"] == "2030-01-01T12:00:05"


async def test_deleting_an_old_task_frees_its_key(conn: Connection) -> None:
    """T-30."""
    first = await enqueue(conn, key="k")
    await conn.execute("delete from tasks")
    second = await STORE.enqueue(conn, Item(kind="demo", key="k"))
    assert second.created
    with pytest.raises(NotFound):
        await STORE.get(conn, first)


# -- time and many at once -------------------------------------------------------------------------------


async def test_under_a_server_default_of_tokyo_every_time_is_utc_and_a_retry_comes_when_due(
    postgres: str, connect: Any, database_url: str
) -> None:
    """T-42, T-43: over our connections, and by the engine's own statements over one that is not in UTC."""
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    async with await AsyncConnection.connect(postgres, autocommit=True) as server:
        await server.execute(f"alter database {name} set timezone = 'Asia/Tokyo'")
        try:
            ours = await connect()
            async with await AsyncConnection.connect(database_url, autocommit=True) as theirs:
                cursor = await theirs.execute("show timezone")
                assert await cursor.fetchall() == [("Asia/Tokyo",)]
                for conn in (ours, theirs):
                    await _times_are_utc(conn, everything=conn is ours)
        finally:
            await server.execute(f"alter database {name} reset timezone")


async def _times_are_utc(conn: Connection, *, everything: bool) -> None:
    before = datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=1)
    key = (await STORE.enqueue(conn, Item(kind="demo"))).id
    await STORE.copy(conn, [Item(kind="copied", priority=-1)])
    await STORE.enqueue(conn, Item(kind="later", delay=3600))
    (claim,) = await STORE.start(conn, await STORE.claim(conn, "w1", 1, kinds=["demo"]))
    rows = [await columns(conn, row) for row in await TASKS_SAMPLE.rows(conn)]
    waits = decide(TASKS, claim, Retry("later", after=60))
    await STORE.move_one(conn, waits)
    row = await columns(conn, key)
    rows.append({name: value for name, value in row.items() if name != "next_retry_at"})
    soon = timedelta(minutes=1) + timedelta(minutes=1)
    assert before + timedelta(minutes=1) < row["next_retry_at"] < before + 2 * soon
    now = datetime.now(UTC)
    assert await STORE.claim(conn, "w1", 9, kinds=["demo"], now=now + timedelta(seconds=50)) == []
    (claim,) = await STORE.claim(conn, "w1", 9, kinds=["demo"], now=now + timedelta(seconds=61))
    (claim,) = await STORE.start(conn, [claim])
    await STORE.move_one(conn, Move(verb="finish", claim=claim))
    rows.append(await columns(conn, key))
    names = ["created_at", "claimed_at", "started_at", "completed_at"]
    # The seed's trigger writes updated_at in the time zone of whoever writes.
    names += ["updated_at"] if everything else []
    times = [row[name] for row in rows for name in names if row[name] is not None]
    assert len(times) >= 8
    assert all(before < moment < before + 2 * soon for moment in times)
    assert all(row["next_retry_at"] > before for row in rows if row.get("next_retry_at"))
    await conn.execute("delete from tasks")


async def test_two_hundred_racing_enqueues_of_one_key_make_one_row(conn: Connection, connect: Any) -> None:
    """T-5, section 5: fifty connections, released together, four times each."""
    barrier = asyncio.Barrier(50)

    async def race(own: Connection) -> list[Receipt]:
        await barrier.wait()
        return [await STORE.enqueue(own, Item(kind="demo", key="one")) for _ in range(4)]

    connections = [await connect() for _ in range(50)]
    answers = await asyncio.gather(*(race(own) for own in connections))
    receipts = [receipt for answer in answers for receipt in answer]
    assert len(receipts) == 200
    assert sum(receipt.created for receipt in receipts) == 1
    assert {receipt.id for receipt in receipts} == set(await TASKS_SAMPLE.rows(conn))


async def test_fifty_workers_run_each_of_a_few_thousand_tasks_exactly_once(
    conn: Connection, connect: Any
) -> None:
    """Section 5: claim, start and finish by fifty connections, released together."""
    total = 3000
    await STORE.enqueue_many(conn, [Item(kind="demo", priority=n % 3) for n in range(total)])
    barrier, ran, finished = asyncio.Barrier(50), Counter[UUID](), Counter[UUID]()

    async def work(own: Connection, owner: str) -> None:
        await barrier.wait()
        while finished.total() < total:
            claims = await STORE.start(own, await STORE.claim(own, owner, 20))
            ran.update([claim.id for claim in claims])
            finished.update(await STORE.move(own, [decide(TASKS, claim, Done()) for claim in claims]))

    connections = [await connect() for _ in range(50)]
    await asyncio.gather(*(work(own, f"w{n}") for n, own in enumerate(connections)))
    assert set(ran.values()) == set(finished.values()) == {1}
    cursor = await conn.execute("select status::text, attempts, fence, count(*) from tasks group by 1, 2, 3")
    assert await cursor.fetchall() == [("completed", 1, 1, total)]
