"""What `job` promises and its store alone can prove; what all ledgers promise is in the conformance suite.

Columns and events are read from the tables themselves. At the end of every test each job must be what its
events tell.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast.apps.jobs.ledger import JOB
from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.lifecycle import Verb
from holdfast.engine.outcomes import Cancel, Crashed, Done, Ending, Fail, Retry, Snooze
from holdfast.engine.values import Claimed, Fault, Filter, Item, Move, Receipt, Row
from holdfast.errors import ClaimLost, IdempotencyConflict, IllegalEdge, InvalidInput, NotFound
from ledgers import FAULT, JOB_SAMPLE, NOW, SAMPLES, Connection, after, ledger_database
from runtime.jobs import (
    EVENT_WRITERS,
    JOB_WRITER,
    ONE,
    TWO,
    agree,
    answer,
    everything,
    hops,
    job,
    rows,
    told,
    until_blocked,
    verbs,
)
from runtime.support import column, one

STORE = JOB_SAMPLE.store()
MOMENT = timedelta(microseconds=1)
STEADY = replace(JOB.backoff, jitter=0.0)
TERMINAL = ("succeeded", "canceled", "dead_letter")
WORKERS: tuple[Verb, ...] = ("finish", "retry", "exhaust", "reject", "snooze", "release", "lose", "cancel")
BROKEN = Crashed("ValueError", "it broke")


@pytest.fixture(scope="module")
def _database(postgres: str) -> Iterator[Callable[[], str]]:
    with ledger_database(postgres) as emptied:
        yield emptied


@pytest.fixture
def database_url(_database: Callable[[], str]) -> str:
    return _database()


@pytest.fixture(autouse=True)
async def _the_record_agrees(conn: Connection) -> AsyncIterator[None]:
    """J-32, J-34, J-35: whatever a test did, the events tell the rows."""
    yield
    await agree(conn)


def item(**changes: Any) -> Item:
    return Item(**({"kind": "demo", "tenant": ONE} | changes))


async def enqueue(conn: Connection, **changes: Any) -> UUID:
    return (await STORE.enqueue(conn, item(**changes), now=NOW)).id


async def claim(conn: Connection, owner: str = "w1", seconds: float = 10) -> Claimed:
    """Claims the next job; a second of the lent clock later than anything that `enqueue` wrote."""
    (claimed,) = await STORE.claim(conn, owner, 1, now=after(seconds))
    return claimed


async def begin(conn: Connection, **changes: Any) -> Claimed:
    """A new job in the hands of w1."""
    await enqueue(conn, **changes)
    return await claim(conn)


async def end(conn: Connection, claimed: Claimed, ending: Ending, seconds: float = 20) -> None:
    """Ends a run, without jitter."""
    await STORE.move_one(conn, decide(JOB, claimed, ending, STEADY), now=after(seconds))


async def changed_by(conn: Connection, claimed: Claimed, move: Move, seconds: float = 20) -> dict[str, Any]:
    """The columns that one move changes. `updated_at` is among them each time, and left out."""
    before = await job(conn, claimed.id)
    await STORE.move_one(conn, move, now=after(seconds))
    row = await job(conn, claimed.id)
    changed = {name: value for name, value in row.items() if value != before[name]}
    assert changed.pop("updated_at") == after(seconds)
    return changed


# -- enqueue ---------------------------------------------------------------------------------------------


async def test_a_new_job_is_queued_with_the_columns_own_defaults(conn: Connection) -> None:
    """J-1, J-7: no type is unknown at enqueue."""
    row = await job(conn, await enqueue(conn, kind="never:heard", payload={"a": 1}))
    assert {name: value for name, value in row.items() if name != "id"} == {
        "org_id": ONE,
        "type": "never:heard",
        "status": "queued",
        "attempt": 0,
        "max_attempts": 5,
        "backoff_policy": "exp",
        "priority": 0,
        "idempotency_key": None,
        "requested_by": None,
        "created_at": NOW,
        "updated_at": NOW,
        "started_at": None,
        "finished_at": None,
        "last_error_code": None,
        "last_error_message": None,
        "queue": "default",
        "run_at": NOW,
        "payload": {"a": 1},
        "worker_id": None,
        "fence": 0,
        "traceparent": None,
    }


async def test_a_job_and_its_first_event_are_one_statement(conn: Connection) -> None:
    """J-2, J-32, J-35: and one reading of the clock."""
    async with conn.transaction():
        key = (await STORE.enqueue(conn, item(), by="ana")).id
        await conn.execute("select 1")
    assert await column(conn, EVENT_WRITERS, key) == [await one(conn, JOB_WRITER, key)]
    row, (event,) = await job(conn, key), await told(conn, key)
    assert (event["prev_status"], event["next_status"]) == (None, "queued")
    assert event["ts"] == row["created_at"] == row["updated_at"] == row["run_at"]
    assert row["requested_by"] == event["detail_json"]["by"] == "ana"


async def test_after_a_rollback_neither_the_job_nor_its_event_exists(conn: Connection, connect: Any) -> None:
    """J-2, J-6: and before the commit nobody else sees either."""
    other = await connect()
    async with conn.transaction(force_rollback=True):
        await STORE.enqueue(conn, item(key="k"))
        await STORE.enqueue_many(conn, [item()] * 3)
        assert await everything(other) == ([], [])
        assert await one(conn, "select count(*) from job") == 4
    assert await everything(conn) == ([], [])


@pytest.mark.parametrize("state", JOB.states)
async def test_a_repeated_enqueue_answers_with_the_job_whatever_its_status_and_writes_nothing(
    conn: Connection, state: str
) -> None:
    """J-3, J-4, J-5: another payload, priority and limit are not looked at."""
    first = await JOB_SAMPLE.bring(conn, state, key="k", tenant=ONE)
    before = await everything(conn)
    again = item(key="k", payload={"other": 2}, priority=9, limit=1, delay=60)
    assert await STORE.enqueue(conn, again) == Receipt(first, created=False)
    assert await STORE.enqueue_many(conn, [again, again]) == [Receipt(first, created=False)] * 2
    assert await everything(conn) == before


async def test_a_key_is_one_job_within_one_organisation_and_as_long_as_the_row_exists(
    conn: Connection,
) -> None:
    """J-3"""
    first = await enqueue(conn, key="k")
    elsewhere = await enqueue(conn, key="k", tenant=TWO)
    nameless = {await enqueue(conn), await enqueue(conn)}
    assert len({first, elsewhere} | nameless) == 4
    await conn.execute("delete from job where id = %s", [first])
    again = await STORE.enqueue(conn, item(key="k"), now=NOW)
    assert (again.created, again.id == first) == (True, False)


async def test_a_repeat_with_another_type_is_a_conflict_that_names_the_job(conn: Connection) -> None:
    """J-5: alone and in a bulk, of which then no row is written."""
    first = await enqueue(conn, key="k")
    before = await everything(conn)
    for asked in ([item(kind="other", key="k")], [item(), item(kind="other", key="k"), item()]):
        with pytest.raises(IdempotencyConflict) as conflict:
            await STORE.enqueue_many(conn, asked)
        assert conflict.value.fields["id"] == first
    with pytest.raises(IdempotencyConflict) as conflict:
        await STORE.enqueue(conn, item(kind="other", key="k"))
    assert conflict.value.fields["id"] == first
    assert await everything(conn) == before


async def test_two_hundred_racing_enqueues_of_one_key_make_one_job_and_one_event(
    conn: Connection, connect: Any
) -> None:
    """J-3, J-4: fifty connections, released together, four times each; all get its id."""
    barrier = asyncio.Barrier(50)

    async def race(own: Connection) -> list[Receipt]:
        await barrier.wait()
        return [await STORE.enqueue(own, item(key="one")) for _ in range(4)]

    connections = [await connect() for _ in range(50)]
    answers = await asyncio.gather(*(race(own) for own in connections))
    receipts = [receipt for part in answers for receipt in part]
    assert (len(receipts), sum(receipt.created for receipt in receipts)) == (200, 1)
    assert {receipt.id for receipt in receipts} == set(await column(conn, "select id from job"))
    assert await one(conn, "select count(*) from job_event") == 1


async def test_a_bulk_of_unlike_jobs_and_all_its_events_are_one_statement(conn: Connection) -> None:
    """J-6"""
    bulk = [
        item(payload={"n": 1}),
        item(key="k", priority=3),
        item(tenant=TWO, queue="other", delay=60),
        item(limit=0, kind="else"),
    ] * 50
    await STORE.enqueue_many(conn, [replace(one, key=one.key and f"k{n}") for n, one in enumerate(bulk)])
    writers = "select xmin::text, cmin::text from job union all select xmin::text, cmin::text from job_event"
    assert await rows(conn, f"select count(*), count(distinct (w.*)) as ways from ({writers}) as w") == [
        {"count": 400, "ways": 1}
    ]


async def test_a_bulk_with_one_bad_row_writes_nothing(conn: Connection) -> None:
    """J-6: the answer names the row by its place."""
    for bad in (item(kind=""), item(tenant=None), item(limit=-1), item(queue=" ")):
        with pytest.raises(InvalidInput, match=r"^items\[2\]\."):
            await STORE.enqueue_many(conn, [item(), item(), bad, item()])
    assert await everything(conn) == ([], [])


async def test_the_doorbell_rings_once_per_transaction_and_only_when_it_commits(
    conn: Connection, connect: Any
) -> None:
    """J-6"""
    ear = await connect()
    await ear.execute("listen holdfast_job")
    async with conn.transaction(force_rollback=True):
        await STORE.enqueue(conn, item())
    async with conn.transaction():
        await STORE.enqueue(conn, item(key="k"))
        for _ in range(3):
            await STORE.enqueue_many(conn, [item()] * 20)
    await conn.execute("notify holdfast_job, 'the end'")
    heard: list[str] = []
    async for note in ear.notifies(timeout=20):
        heard.append(note.payload)
        if note.payload == "the end":
            break
    assert heard == ["", "the end"]


@pytest.mark.parametrize("when", [{"run_at": after(90)}, {"delay": 90}])
async def test_a_job_for_later_is_not_claimed_a_moment_early(conn: Connection, when: Any) -> None:
    """J-7"""
    key = await enqueue(conn, **when)
    assert (await job(conn, key))["run_at"] == after(90)
    assert await STORE.claim(conn, "w1", 1, now=after(90) - MOMENT) == []
    assert [one.id for one in await STORE.claim(conn, "w1", 1, now=after(90))] == [key]


# -- claim -----------------------------------------------------------------------------------------------


async def test_higher_priority_goes_first_then_run_at_across_all_queues_of_a_worker(
    conn: Connection,
) -> None:
    """J-8: a retry that is due stands in the same row as the new ones."""
    retried = await begin(conn, priority=5, queue="default")
    await end(conn, retried, Retry("later", after=10), 20)  # due at 30
    asked = [
        ("low early", {"priority": -1, "queue": "a", "run_at": after(1)}),
        ("zero late", {"queue": "b", "run_at": after(9)}),
        ("zero early", {"queue": "a", "run_at": after(2)}),
        ("high late", {"priority": 5, "queue": "b", "run_at": after(31)}),
        ("high early", {"priority": 5, "queue": "a", "run_at": after(29)}),
        ("highest, not due", {"priority": 99, "queue": "a", "run_at": after(99)}),
        ("highest, not served", {"priority": 99, "queue": "c"}),
    ]
    ids = {name: await enqueue(conn, **changes) for name, changes in asked} | {"retry": retried.id}
    names = {key: name for name, key in ids.items()}
    served = ("a", "b", "default")

    async def taken(limit: int) -> list[str]:
        claims = await STORE.claim(conn, "w1", limit, queues=served, now=after(40))
        return [names[one.id] for one in claims]

    assert await taken(1) == ["high early"]
    assert await taken(2) == ["retry", "high late"]
    assert await taken(9) == ["zero early", "zero late", "low early"]
    assert await taken(9) == []


async def test_a_due_retry_passes_queued_on_its_way_to_running(conn: Connection) -> None:
    """J-9, J-32: one update, two events, written by one statement."""
    first = await begin(conn)
    await end(conn, first, BROKEN)
    before = await job(conn, first.id)
    async with conn.transaction():
        second = await claim(conn, "w2", seconds=30)
        await conn.execute("select 1")
    row = await job(conn, first.id)
    assert {name for name in row if row[name] != before[name]} == {
        "status",
        "worker_id",
        "fence",
        "updated_at",
    }
    assert (second.id, second.state, second.attempts, second.fence) == (first.id, "running", 1, 2)
    assert (await hops(conn, first.id))[-2:] == [("failed", "queued"), ("queued", "running")]
    events = (await told(conn, first.id))[-2:]
    assert {event["ts"] for event in events} == {after(30)}
    for event in events:
        assert event["detail_json"] == {"verb": "claim", "attempt": 1, "fence": 2, "worker": "w2"}
    writer = await one(conn, JOB_WRITER, first.id)
    assert (await column(conn, EVENT_WRITERS, first.id))[-2:] == [writer, writer]


async def test_a_claim_sets_its_columns_and_no_others(conn: Connection) -> None:
    """J-10"""
    key = await enqueue(conn, payload={"n": 1}, key="k", priority=3)
    before = await job(conn, key)
    claimed = await claim(conn)
    row = await job(conn, key)
    assert {name: row[name] for name in row if row[name] != before[name]} == {
        "status": "running",
        "worker_id": "w1",
        "fence": 1,
        "started_at": after(10),
        "updated_at": after(10),
    }
    assert await hops(conn, key) == [(None, "queued"), ("queued", "running")]
    assert (await told(conn, key))[-1]["detail_json"] == {
        "verb": "claim",
        "attempt": 0,
        "fence": 1,
        "worker": "w1",
    }
    assert (claimed.tenant, claimed.policy, claimed.limit, claimed.attempts) == (ONE, "exp", 5, 0)


async def test_started_at_is_the_first_start_whatever_brought_the_job_back(conn: Connection) -> None:
    """J-14: only a person's requeue begins anew."""
    claimed = await begin(conn)
    for place, verb in enumerate(("retry", "snooze", "release", "lose"), start=1):
        await STORE.move_one(conn, Move(verb=verb, claim=claimed, fault=FAULT), now=after(20 * place))
        assert (await job(conn, claimed.id))["started_at"] == after(10)
        claimed = await claim(conn, seconds=20 * place + 5)
        assert (await job(conn, claimed.id))["started_at"] == after(10)
    await STORE.move_one(conn, Move(verb="exhaust", claim=claimed, fault=FAULT), now=after(100))
    await STORE.requeue(conn, claimed.id, now=after(110))
    assert (await job(conn, claimed.id))["started_at"] is None
    await claim(conn, seconds=120)
    assert (await job(conn, claimed.id))["started_at"] == after(120)


async def test_fifty_claimers_at_once_take_each_of_ten_thousand_jobs_once_and_leave_none(
    conn: Connection, connect: Any
) -> None:
    """J-11: new jobs and due retries of three queues, claimed and finished by fifty connections."""
    total = 10_000
    bulk = [item(priority=n % 3, queue=f"q{n % 3}", tenant=(ONE, TWO)[n % 2]) for n in range(total)]
    await STORE.enqueue_many(conn, bulk, now=NOW)
    queues = ("q0", "q1", "q2")
    early = await STORE.claim(conn, "w0", 500, queues=queues, now=NOW)
    await STORE.move(conn, [Move(verb="lose", claim=one, fault=FAULT) for one in early], now=NOW)
    barrier, ran, finished = asyncio.Barrier(50), Counter[UUID](), Counter[UUID]()

    async def work(own: Connection, owner: str) -> None:
        await barrier.wait()
        while finished.total() < total:
            claims = await STORE.claim(own, owner, 40, queues=queues, now=after(1))
            ran.update([one.id for one in claims])
            finished.update(await STORE.move(own, [decide(JOB, one, Done()) for one in claims], now=after(2)))

    connections = [await connect() for _ in range(50)]
    await asyncio.gather(*(work(own, f"w{n}") for n, own in enumerate(connections)))
    assert set(ran.values()) == set(finished.values()) == {1}
    found = await rows(conn, "select status::text, fence, count(*) from job group by 1, 2 order by 2")
    assert [tuple(row.values()) for row in found] == [("succeeded", 1, total - 500), ("succeeded", 2, 500)]


async def test_a_claim_takes_no_more_than_it_asked_for(conn: Connection) -> None:
    """J-12: also when the best are spread over several queues."""
    await STORE.enqueue_many(conn, [item(queue=f"q{n % 2}") for n in range(8)], now=NOW)
    queues = ("q0", "q1", "q0")
    assert await STORE.claim(conn, "w1", 0, queues=queues, now=after(1)) == []
    assert len(await STORE.claim(conn, "w1", 3, queues=queues, now=after(1))) == 3
    assert await one(conn, "select count(*) from job where status = 'running'") == 3
    assert len(await STORE.claim(conn, "w1", 9, queues=queues, now=after(1))) == 5


async def test_a_claim_serves_its_queues_and_its_types_only(conn: Connection) -> None:
    """J-7, J-13: without a word the queue is `default` and every type is served."""
    ids = {
        (queue, kind): await enqueue(conn, queue=queue, kind=kind)
        for queue in ("default", "mail")
        for kind in ("a", "b")
    }

    async def taken(**how: Any) -> set[UUID]:
        async with conn.transaction(force_rollback=True):
            return {one.id for one in await STORE.claim(conn, "w1", 9, now=after(1), **how)}

    assert await taken() == {ids["default", "a"], ids["default", "b"]}
    assert await taken(queues=("mail",)) == {ids["mail", "a"], ids["mail", "b"]}
    assert await taken(queues=("mail", "default"), kinds=["b"]) == {ids["mail", "b"], ids["default", "b"]}
    assert await taken(queues=("mail",), kinds=["c"]) == await taken(queues=()) == set()
    assert await taken(kinds=[]) == set()


# -- zombies ---------------------------------------------------------------------------------------------


async def _to_another(conn: Connection, old: Claimed) -> None:
    await STORE.move_one(conn, Move(verb="lose", claim=old, fault=FAULT), now=after(20))
    assert (await claim(conn, "w2", seconds=30)).fence == 2


async def _back_to_the_same(conn: Connection, old: Claimed) -> None:
    await STORE.move_one(conn, Move(verb="release", claim=old), now=after(20))
    assert (await claim(conn, str(old.owner), seconds=30)).fence == 2


async def _back_to_the_queue(conn: Connection, old: Claimed) -> None:
    await STORE.move_one(conn, Move(verb="release", claim=old), now=after(20))


async def _to_its_retry(conn: Connection, old: Claimed) -> None:
    await STORE.move_one(conn, Move(verb="lose", claim=old, fault=FAULT), now=after(20))


async def _to_its_end(conn: Connection, old: Claimed) -> None:
    await _to_another(conn, old)
    (held,) = await STORE.held_by(conn, ["w2"])
    await end(conn, held, Done("theirs"), 40)


async def _called_off(conn: Connection, old: Claimed) -> None:
    await STORE.cancel(conn, old.id, now=after(20))


async def _through_the_dead_letters(conn: Connection, old: Claimed) -> None:
    """Requeued and claimed by the same worker: attempt is 0 again, and only the fence is not."""
    await STORE.move_one(conn, Move(verb="exhaust", claim=old, fault=FAULT), now=after(20))
    await STORE.requeue(conn, old.id, now=after(25))
    again = await claim(conn, str(old.owner), seconds=30)
    assert (again.attempts, again.owner) == (old.attempts, old.owner)


@pytest.mark.parametrize(
    "gone",
    [
        _to_another,
        _back_to_the_same,
        _back_to_the_queue,
        _to_its_retry,
        _to_its_end,
        _called_off,
        _through_the_dead_letters,
    ],
)
async def test_a_zombie_changes_no_column_and_tells_nothing_by_any_verb(
    conn: Connection, gone: Callable[[Connection, Claimed], Any]
) -> None:
    """J-15, J-29: finish, retry, exhaust, reject, snooze, release, lose, cancel and progress."""
    old = await begin(conn)
    await gone(conn, old)
    before = await everything(conn)
    for verb in WORKERS:
        with pytest.raises(ClaimLost) as lost:
            await STORE.move_one(conn, Move(verb=verb, claim=old, fault=FAULT, delay=5, result={"n": 1}))
        assert (lost.value.fields["id"], lost.value.fields["fence"]) == (old.id, 1)
    with pytest.raises(ClaimLost):
        await STORE.progress(conn, old, 50, "half")
    assert await STORE.move(conn, [Move(verb=verb, claim=old) for verb in WORKERS]) == frozenset()
    assert await STORE.heartbeat(conn, [old]) == frozenset()
    assert await everything(conn) == before


@pytest.mark.parametrize("verb", WORKERS)
async def test_a_claim_with_one_wrong_word_is_no_claim(conn: Connection, verb: Verb) -> None:
    """J-15: every write names id, fence, worker_id and status running."""
    held = await begin(conn)
    other = await enqueue(conn)
    before = await everything(conn)
    for wrong in ({"id": other}, {"fence": 0}, {"fence": 2}, {"owner": "w2"}, {"owner": None}):
        named = {"id": held.id, "owner": held.owner, "fence": held.fence} | wrong
        forged = await JOB_SAMPLE.held(conn, held.id)
        forged = Claimed(kind=forged.kind, payload=None, state="running", attempts=0, limit=None, **named)
        with pytest.raises(ClaimLost):
            await STORE.move_one(conn, Move(verb=verb, claim=forged, fault=FAULT))
    assert await everything(conn) == before


# -- the end of a run ------------------------------------------------------------------------------------


async def test_done_succeeds_and_clears_the_last_error_which_the_events_keep(conn: Connection) -> None:
    """J-16, J-17: the result is in the event, and read with the job."""
    first = await begin(conn)
    await end(conn, first, BROKEN)
    second = await claim(conn, "w2", seconds=30)
    move = decide(JOB, second, Done({"sent": [1, 2]}))
    assert await changed_by(conn, second, move, 40) == {
        "status": "succeeded",
        "finished_at": after(40),
        "worker_id": None,
        "last_error_code": None,
        "last_error_message": None,
    }
    events = await told(conn, first.id)
    assert events[-1]["detail_json"] == {
        "verb": "finish",
        "attempt": 1,
        "fence": 2,
        "worker": "w2",
        "result": {"sent": [1, 2]},
    }
    assert [event["detail_json"].get("error") for event in events if event["verb"] == "retry"] == [
        {"code": "ValueError", "message": "it broke"}
    ]
    assert (await STORE.get(conn, first.id)).result == {"sent": [1, 2]}


@pytest.mark.parametrize("result", [0, False, "", [], {}, {"a": None}, "ünïcode", [{"deep": [1.5]}], None])
async def test_a_result_comes_back_as_it_went_in(conn: Connection, result: Any) -> None:
    """J-17"""
    held = await begin(conn)
    await end(conn, held, Done(result))
    row = await STORE.get(conn, held.id)
    assert (row.state, row.result, type(row.result)) == ("succeeded", result, type(result))


@pytest.mark.parametrize(
    "result", [float("nan"), {"a": float("inf")}, {1, 2, object()}, "a\x00b", "\ud800", "x" * 2_000_000]
)
async def test_a_result_that_is_not_json_is_a_permanent_failure(conn: Connection, result: Any) -> None:
    """J-17, J-24: also one that PostgreSQL could not store; its neighbour in the batch is finished."""
    held, neighbour = await begin(conn), await begin(conn)
    moves = [decide(JOB, held, Done(result)), decide(JOB, neighbour, Done("fine"))]
    assert await STORE.move(conn, moves, now=after(20)) == {held.id, neighbour.id}
    row = await job(conn, held.id)
    assert (row["status"], row["last_error_code"]) == ("dead_letter", "RESULT_NOT_JSON")
    assert (await job(conn, neighbour.id))["status"] == "succeeded"


async def test_a_bad_run_with_a_retry_left_fails_and_waits(conn: Connection) -> None:
    """J-19, J-20: attempt is written once, finished_at stays NULL, the job is not claimed before run_at."""
    held = await begin(conn)
    assert await changed_by(conn, held, decide(JOB, held, BROKEN, STEADY)) == {
        "status": "failed",
        "attempt": 1,
        "run_at": after(21),
        "worker_id": None,
        "last_error_code": "ValueError",
        "last_error_message": "it broke",
    }
    assert (await job(conn, held.id))["finished_at"] is None
    (*_, event) = await told(conn, held.id)
    assert (event["prev_status"], event["next_status"]) == ("running", "failed")
    detail = event["detail_json"]
    assert datetime.fromisoformat(detail.pop("run_at")) == after(21)
    assert detail == {
        "verb": "retry",
        "attempt": 1,
        "fence": 1,
        "worker": "w1",
        "error": {"code": "ValueError", "message": "it broke"},
    }
    again = await claim(conn, seconds=21)
    assert (again.attempts, again.fence) == (1, 2)  # the second run shows its own number


async def test_the_last_bad_run_ends_in_the_dead_letters_by_one_update_and_two_events(
    conn: Connection,
) -> None:
    """J-21, J-32: attempt stays, as no retry was granted."""
    held = await begin(conn, limit=0)
    async with conn.transaction():
        assert await changed_by(conn, held, decide(JOB, held, BROKEN)) == {
            "status": "dead_letter",
            "finished_at": after(20),
            "worker_id": None,
            "last_error_code": "ValueError",
            "last_error_message": "it broke",
        }
    assert (await hops(conn, held.id))[-2:] == [("running", "failed"), ("failed", "dead_letter")]
    first, second = (await told(conn, held.id))[-2:]
    assert first["detail_json"] == second["detail_json"]
    assert first["ts"] == second["ts"] == after(20)
    writer = await one(conn, JOB_WRITER, held.id)
    assert (await column(conn, EVENT_WRITERS, held.id))[-2:] == [writer, writer]


async def _drive(conn: Connection, **changes: Any) -> list[float]:
    """Runs a job badly until it ends; answers how long it waited each time, to the microsecond."""
    held, now, waits = await begin(conn, **changes), after(10), []
    while True:
        await STORE.move_one(conn, decide(JOB, held, BROKEN, STEADY), now=now)
        row = await job(conn, held.id)
        if row["status"] == "dead_letter":
            return waits
        assert row["status"] == "failed"
        waits.append((row["run_at"] - now).total_seconds())
        now = row["run_at"]
        if waits[-1]:
            assert await STORE.claim(conn, "w1", 1, now=now - MOMENT) == []
        (held,) = await STORE.claim(conn, "w1", 1, now=now)


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        ("exp", [1, 2, 4, 8, 16]),
        ("fixed", [1, 1, 1, 1, 1]),
        ("none", [0, 0, 0, 0, 0]),
        (None, [1, 2, 4, 8, 16]),
    ],
)
async def test_the_policy_names_the_wait_and_the_limit_the_count(
    conn: Connection, policy: str | None, waits: list[float]
) -> None:
    """J-19, J-21, J-22, J-23: six runs by any policy, and never claimed a moment early."""
    assert await _drive(conn, backoff=policy) == waits
    (row,) = await rows(conn, "select * from job")
    assert (row["attempt"], row["fence"]) == (5, 6)
    assert (await verbs(conn, row["id"])).count("retry") == 5


@pytest.mark.parametrize(("limit", "waits"), [(0, []), (1, [1]), (9, [1, 2, 4, 8, 16, 32, 60, 60, 60])])
async def test_a_wait_never_exceeds_the_cap_and_a_limit_of_zero_is_one_run(
    conn: Connection, limit: int, waits: list[float]
) -> None:
    """J-22, J-23"""
    assert await _drive(conn, limit=limit) == waits
    assert await one(conn, "select fence from job") == len(waits) + 1


async def test_jitter_moves_a_wait_by_a_tenth_at_most_and_never_past_the_cap(conn: Connection) -> None:
    """J-23: by the default that the ledger declares; the same bounds by chance."""
    held = await begin(conn, limit=100)
    for attempts, bound in enumerate((1, 2, 4, 8, 16, 32, 60, 60)):
        claimed = replace_attempts(held, attempts)
        drawn = [decide(JOB, claimed, BROKEN, draw=lambda d=d: d).delay for d in (0.0, 0.5, 1 - 1e-9)]
        expected = [0.9 * bound, bound, min(60, 1.1 * bound)]
        assert drawn == pytest.approx(expected)
        by_chance = [decide(JOB, claimed, BROKEN).delay for _ in range(200)]
        assert 0.9 * bound <= min(by_chance) < max(by_chance) <= min(60, 1.1 * bound)
    for policy, delay in (("none", 0), ("fixed", 1.1)):
        claimed = replace_attempts(held, 7, policy)
        assert decide(JOB, claimed, BROKEN, draw=lambda: 1.0).delay == pytest.approx(delay)


def replace_attempts(held: Claimed, attempts: int, policy: str = "exp") -> Claimed:
    named = {name: getattr(held, name) for name in held.__struct_fields__}
    return Claimed(**(named | {"attempts": attempts, "policy": policy}))


async def test_the_database_adds_the_delay_to_its_own_clock(conn: Connection) -> None:
    """J-23, J-35: run_at and the event's time are one reading."""
    key = (await STORE.enqueue(conn, item())).id
    (held,) = await STORE.claim(conn, "w1", 1)
    await STORE.move_one(conn, decide(JOB, held, BROKEN, STEADY))
    assert await one(conn, "select run_at - updated_at from job") == timedelta(seconds=1)
    assert await one(conn, "select updated_at between now() - interval '1 min' and now() from job")
    assert (await told(conn, key))[-1]["ts"] == (await job(conn, key))["updated_at"]


@pytest.mark.parametrize("after_seconds", [0, 0.5, 7, 86400])
async def test_a_retry_may_name_its_own_delay(conn: Connection, after_seconds: float) -> None:
    """J-24: whatever the policy; past the cap as well."""
    for policy in ("none", "exp"):
        held = await begin(conn, backoff=policy)
        await end(conn, held, Retry("busy", after=after_seconds, code="BUSY"))
        row = await job(conn, held.id)
        assert (row["status"], row["run_at"]) == ("failed", after(20 + after_seconds))
        assert (row["attempt"], row["last_error_code"]) == (1, "BUSY")
        await conn.execute("update job set priority = -9, run_at = '2999-01-01Z'")


async def test_a_retry_with_its_own_delay_is_no_way_around_the_limit(conn: Connection) -> None:
    """J-21, J-24"""
    held = await begin(conn, limit=0)
    await end(conn, held, Retry("busy", after=5))
    assert (await job(conn, held.id))["status"] == "dead_letter"


@pytest.mark.parametrize("attempt", [0, 3, 5])
async def test_a_permanent_failure_is_a_dead_letter_at_once(conn: Connection, attempt: int) -> None:
    """J-24: whatever attempt says; two events."""
    held = await begin(conn)
    for run in range(attempt):
        await STORE.move_one(conn, Move(verb="retry", claim=held, fault=FAULT), now=after(20 + run))
        held = await claim(conn, seconds=20 + run)
    told_before = len(await told(conn, held.id))
    await end(conn, held, Fail("never", code="NEVER"), 90)
    row = await job(conn, held.id)
    assert (row["status"], row["attempt"], row["last_error_code"]) == ("dead_letter", attempt, "NEVER")
    assert (await hops(conn, held.id))[told_before:] == [("running", "failed"), ("failed", "dead_letter")]
    assert await STORE.claim(conn, "w1", 1, now=after(10**8)) == []


@pytest.mark.parametrize("last", [True, False])
async def test_an_error_of_a_million_characters_is_stored_as_2048_clean_ones(
    conn: Connection, last: bool
) -> None:
    """J-25: cut by characters, not by bytes; the run fails all the same."""
    held = await begin(conn, limit=0 if last else 5)
    text = ("ä\x00\ud800€" * 250_000)[:1_000_000]
    await end(conn, held, Crashed("Ü" * 100 + "\x00", text))
    row = await job(conn, held.id)
    assert row["last_error_message"] == ("ä��€" * 512)
    assert (len(row["last_error_message"]), row["last_error_code"]) == (2048, "Ü" * 64)
    (*_, event) = await told(conn, held.id)
    assert event["detail_json"]["error"] == {
        "code": row["last_error_code"],
        "message": row["last_error_message"],
    }


@pytest.mark.parametrize("verb", ["snooze", "release"])
async def test_snooze_and_release_give_the_job_back_uncounted(conn: Connection, verb: Verb) -> None:
    """J-26: a snoozed job waits, a released one is claimable now; the fence still grows."""
    held = await begin(conn)
    move = decide(JOB, held, Snooze(60)) if verb == "snooze" else Move(verb="release", claim=held)
    due = after(80) if verb == "snooze" else after(20)
    expected = {"status": "queued", "worker_id": None, "run_at": due}
    assert await changed_by(conn, held, move) == expected
    assert (await hops(conn, held.id))[-1] == ("running", "queued")
    assert await STORE.claim(conn, "w1", 1, now=due - MOMENT) == []
    (again,) = await STORE.claim(conn, "w1", 1, now=due)
    assert (again.attempts, again.fence) == (0, 2)


async def test_a_snooze_never_uses_a_job_up(conn: Connection) -> None:
    """J-22, J-26: twenty of them, and then still the one run that was allowed."""
    held = await begin(conn, limit=0)
    for place in range(20):
        await end(conn, held, Snooze(1), 20 + place)
        held = await claim(conn, seconds=21 + place)
    await end(conn, held, Done(), 60)
    row = await job(conn, held.id)
    assert (row["status"], row["attempt"], row["fence"]) == ("succeeded", 0, 21)


async def test_a_lost_run_counts_and_is_due_at_once(conn: Connection) -> None:
    """J-27: the event says whose it was and who gave it back."""
    held = await begin(conn)
    before = await job(conn, held.id)
    await STORE.move(conn, [decide_lost(JOB, held)], by="leader-1", now=after(60))
    row = await job(conn, held.id)
    assert {name: row[name] for name in row if row[name] != before[name]} == {
        "status": "failed",
        "attempt": 1,
        "run_at": after(60),
        "worker_id": None,
        "updated_at": after(60),
        "last_error_code": "WORKER_LOST",
        "last_error_message": "worker lost",
    }
    (*_, event) = await told(conn, held.id)
    detail = event["detail_json"]
    assert (detail["verb"], detail["worker"], detail["by"]) == ("lose", "w1", "leader-1")
    assert (await claim(conn, "w2", seconds=60)).attempts == 1


async def test_a_job_that_loses_every_worker_comes_to_an_end(conn: Connection) -> None:
    """J-21, J-22, J-27: six runs, then the dead letters, by two events."""
    held = await begin(conn)
    for place in range(6):
        assert (held.attempts, held.fence) == (place, place + 1)
        await STORE.move(conn, [decide_lost(JOB, held)], by="leader", now=after(60 + place))
        if place < 5:
            held = await claim(conn, f"w{place}", seconds=60 + place)
    row = await job(conn, held.id)
    assert (row["status"], row["attempt"], row["last_error_code"]) == ("dead_letter", 5, "WORKER_LOST")
    assert (await hops(conn, held.id))[-2:] == [("running", "failed"), ("failed", "dead_letter")]
    assert [event["detail_json"]["by"] for event in (await told(conn, held.id))[-2:]] == ["leader"] * 2


async def test_a_handler_may_call_its_own_job_off(conn: Connection) -> None:
    """J-29: canceled, with the reason in the event; the last error is that of the run before."""
    held = await begin(conn)
    await end(conn, held, BROKEN)
    held = await claim(conn, seconds=30)
    assert await changed_by(conn, held, decide(JOB, held, Cancel("nobody needs it")), 40) == {
        "status": "canceled",
        "finished_at": after(40),
        "worker_id": None,
    }
    (*_, event) = await told(conn, held.id)
    assert event["detail_json"]["reason"] == "nobody needs it"
    assert (await job(conn, held.id))["last_error_message"] == "it broke"


@pytest.mark.parametrize("state", TERMINAL)
async def test_no_worker_verb_leaves_a_terminal_state(conn: Connection, state: str) -> None:
    """J-28: nor does a claim, however late; a forged claim that names the row's own fence finds nothing."""
    key = await JOB_SAMPLE.bring(conn, state, tenant=ONE)
    before = await everything(conn)
    held = await JOB_SAMPLE.held(conn, key)
    assert await STORE.claim(conn, "w1", 9, now=after(10**9)) == []
    for verb in WORKERS:
        with pytest.raises(ClaimLost):
            await STORE.move_one(conn, Move(verb=verb, claim=held, fault=FAULT))
    with pytest.raises(ClaimLost):
        await STORE.progress(conn, held, 1)
    assert await everything(conn) == before


# -- people ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "failed", "running"])
async def test_a_cancel_is_in_the_row_at_once(conn: Connection, state: str) -> None:
    """J-29: from queued, failed and running; the event says who, and whom it was taken from."""
    key = await JOB_SAMPLE.bring(conn, state, tenant=ONE)
    before = await job(conn, key)
    await STORE.cancel(conn, key, by="ana", now=after(20))
    row = await job(conn, key)
    assert {name: row[name] for name in row if row[name] != before[name]} == {
        "status": "canceled",
        "finished_at": after(20),
        "updated_at": after(20),
    } | ({"worker_id": None} if state == "running" else {})
    (*_, event) = await told(conn, key)
    assert (event["prev_status"], event["next_status"]) == (state, "canceled")
    expected = {"verb": "cancel", "attempt": before["attempt"], "fence": before["fence"], "by": "ana"}
    assert event["detail_json"] == expected | ({"worker": "w1"} if state == "running" else {})
    assert await STORE.claim(conn, "w1", 1, now=after(10**8)) == []


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("first", ["finish", "cancel"])
async def test_of_a_cancel_and_a_finish_that_race_exactly_one_wins(
    conn: Connection, connect: Any, first: str, commits: bool
) -> None:
    """J-15, J-29, J-32: both orders, forced by the row's lock; a first one that rolls back has not won."""
    held, second, watcher = await begin(conn), await connect(), await connect()

    def finish(on: Connection) -> Any:
        return answer(STORE.move_one(on, decide(JOB, held, Done("done"))))

    def cancel(on: Connection) -> Any:
        return answer(STORE.cancel(on, held.id, by="ana"))

    one, other = (finish, cancel) if first == "finish" else (cancel, finish)
    async with asyncio.TaskGroup() as group, conn.transaction(force_rollback=not commits):
        assert await one(conn) is None
        waiting = group.create_task(other(second))
        await until_blocked(watcher, by=conn)
    late = waiting.result()
    wins = first if commits else {"finish": "cancel", "cancel": "finish"}[first]
    if not commits:
        assert late is None
    elif first == "finish":
        assert isinstance(late, IllegalEdge)
        assert (late.state, late.verb) == ("succeeded", "cancel")
    else:
        assert isinstance(late, ClaimLost)
    expected = {"finish": "succeeded", "cancel": "canceled"}[wins]
    assert (await job(conn, held.id))["status"] == expected
    assert await hops(conn, held.id) == [(None, "queued"), ("queued", "running"), ("running", expected)]


async def test_a_cancel_that_waited_for_a_retry_tells_where_the_job_really_came_from(
    conn: Connection, connect: Any
) -> None:
    """J-29, J-32: the row changed under it from running to failed; both happened, in that order."""
    held, second, watcher = await begin(conn), await connect(), await connect()
    async with asyncio.TaskGroup() as group, conn.transaction():
        await end(conn, held, BROKEN)
        waiting = group.create_task(STORE.cancel(second, held.id, by="ana"))
        await until_blocked(watcher, by=conn)
    assert waiting.done()
    assert (await hops(conn, held.id))[-2:] == [("running", "failed"), ("failed", "canceled")]
    (*_, event) = await told(conn, held.id)
    assert (event["detail_json"]["attempt"], event["detail_json"].get("worker")) == (1, None)


async def test_a_cancel_that_waited_for_a_claim_takes_the_job_from_its_new_worker(
    conn: Connection, connect: Any
) -> None:
    """J-15, J-29, J-32: and the worker's finish then finds nothing."""
    key, second, watcher = await enqueue(conn), await connect(), await connect()
    async with asyncio.TaskGroup() as group, conn.transaction():
        held = await claim(conn)
        group.create_task(STORE.cancel(second, key, by="ana"))
        await until_blocked(watcher, by=conn)
    assert await hops(conn, key) == [(None, "queued"), ("queued", "running"), ("running", "canceled")]
    (*_, event) = await told(conn, key)
    assert (event["detail_json"]["worker"], event["detail_json"]["fence"]) == ("w1", 1)
    assert isinstance(await answer(STORE.move_one(conn, decide(JOB, held, Done()))), ClaimLost)


async def test_a_finish_that_waited_for_the_reaping_finds_nothing(conn: Connection, connect: Any) -> None:
    """J-15, J-27: and a reaping passes over a row whose finish is just being written."""
    held, second, watcher = await begin(conn), await connect(), await connect()
    async with asyncio.TaskGroup() as group, conn.transaction():
        (lost,) = await STORE.held_by(conn, ["w1"])
        await STORE.move(conn, [decide_lost(JOB, lost)], by="leader", now=after(60))
        late = group.create_task(answer(STORE.move_one(second, decide(JOB, held, Done()))))
        await until_blocked(watcher, by=conn)
    assert isinstance(late.result(), ClaimLost)
    held = await claim(conn, "w2", seconds=61)
    async with conn.transaction():
        await end(conn, held, Done(), 70)
        assert await STORE.held_by(second, ["w2"]) == []
    assert (await verbs(conn, held.id))[-4:] == ["lose", "claim", "claim", "finish"]


async def test_two_requeues_that_race_are_one(conn: Connection, connect: Any) -> None:
    """J-30, J-31, J-32"""
    key, second, watcher = await JOB_SAMPLE.bring(conn, "dead_letter"), await connect(), await connect()
    async with asyncio.TaskGroup() as group, conn.transaction():
        await STORE.requeue(conn, key, by="ana")
        late = group.create_task(answer(STORE.requeue(second, key, by="bob")))
        await until_blocked(watcher, by=conn)
    assert isinstance(late.result(), IllegalEdge)
    assert (late.result().state, late.result().verb) == ("queued", "requeue")
    assert (await verbs(conn, key)).count("requeue") == 1


@pytest.mark.parametrize("state", ["dead_letter", "failed"])
async def test_a_requeue_gives_all_runs_back_and_says_who_asked(conn: Connection, state: str) -> None:
    """J-14, J-28, J-30: the last error stays, the fence too."""
    held = await begin(conn, limit=2)
    for place in (1, 2):
        await STORE.move_one(conn, Move(verb="retry", claim=held, fault=FAULT), now=after(20 * place))
        if place == 1 or state == "dead_letter":
            held = await claim(conn, seconds=20 * place)
    if state == "dead_letter":
        await end(conn, held, BROKEN, 50)
    before = await job(conn, held.id)
    assert (before["status"], before["attempt"]) == (state, 2)
    await STORE.requeue(conn, held.id, by="ana", now=after(99))
    row = await job(conn, held.id)
    changed = {name: row[name] for name in row if row[name] != before[name]}
    assert changed == {
        "status": "queued",
        "attempt": 0,
        "run_at": after(99),
        "started_at": None,
        "updated_at": after(99),
    } | ({"finished_at": None} if state == "dead_letter" else {})
    assert row["last_error_message"] == "it broke"
    (*_, event) = await told(conn, held.id)
    detail = event["detail_json"]
    assert (event["prev_status"], event["next_status"]) == (state, "queued")
    assert (detail["by"], detail["attempt_before"], detail["attempt"]) == ("ana", 2, 0)


async def test_a_requeued_dead_letter_runs_as_often_again(conn: Connection) -> None:
    """J-22, J-30: six and six."""
    assert await _drive(conn, backoff="none") == [0] * 5
    key = await one(conn, "select id from job")
    await STORE.requeue(conn, key, by="ana", now=after(100))
    for place in range(6):
        held = await claim(conn, seconds=100)
        assert (held.attempts, held.fence) == (place, 7 + place)
        await end(conn, held, BROKEN, 100)
    assert (await job(conn, key))["status"] == "dead_letter"
    assert await STORE.claim(conn, "w1", 1, now=after(10**8)) == []


async def test_a_requeue_by_a_filter_answers_how_many_and_leaves_the_others(conn: Connection) -> None:
    """J-30: by status, type, queue and organisation, in any combination."""
    for place in range(12):
        kind, tenant, queue = "ab"[place % 2], (ONE, TWO)[place // 2 % 2], ("default", "q")[place // 4 % 2]
        await enqueue(conn, kind=kind, tenant=tenant, queue=queue)
    claims = await STORE.claim(conn, "w1", 99, queues=("default", "q"), now=after(1))
    await STORE.move(conn, [Move(verb="exhaust", claim=one, fault=FAULT) for one in claims], now=after(2))
    letters = ("dead_letter",)
    count = STORE.requeue_where
    assert await count(conn, Filter(states=("failed", "succeeded")), by="ana") == 0
    assert await count(conn, Filter(kind="a", tenant=ONE, queue="q", states=letters), by="ana") == 1
    assert await count(conn, Filter(kind="a", tenant=TWO), by="ana") == 3
    assert await count(conn, Filter(tenant=TWO, states=letters), by="ana") == 3
    assert await one(conn, "select count(*) from job where status = 'queued'") == 7
    said = "select count(*) from job_event where detail_json ->> 'by' = 'ana' and next_status = 'queued'"
    assert await one(conn, said) == 7
    assert await count(conn, Filter(states=letters)) == 5
    assert await count(conn, Filter()) == 0


async def test_a_cancel_by_a_filter_takes_what_its_state_allows(conn: Connection) -> None:
    """J-29"""
    done = await JOB_SAMPLE.bring(conn, "succeeded", tenant=ONE)
    waiting = [await enqueue(conn), await enqueue(conn, tenant=TWO)]
    assert await STORE.cancel_where(conn, Filter(tenant=ONE), by="ana") == 1
    assert [(await job(conn, key))["status"] for key in (done, *waiting)] == [
        "succeeded",
        "canceled",
        "queued",
    ]


async def test_a_cancel_rings_for_the_workers_and_a_requeue_for_all(conn: Connection, connect: Any) -> None:
    """J-29, J-30: a running handler is told without waiting for a poll."""
    key = await JOB_SAMPLE.bring(conn, "running")
    letter = await JOB_SAMPLE.bring(conn, "dead_letter")
    ear = await connect()
    await ear.execute("listen holdfast_job")
    await ear.execute("listen holdfast_job_cancel")
    await STORE.cancel(conn, key)
    await STORE.requeue(conn, letter)
    heard = [note.channel async for note in ear.notifies(timeout=20, stop_after=2)]
    assert heard == ["holdfast_job_cancel", "holdfast_job"]


def test_every_state_meets_every_verb_in_the_conformance_suite() -> None:
    """J-28, J-31, J-32: tests/engine/test_conformance.py runs `job` against this table, written by hand."""
    assert JOB_SAMPLE in SAMPLES
    assert JOB_SAMPLE.ledger is JOB
    assert JOB_SAMPLE.legal == {
        "enqueue": ((), "queued"),
        "claim": (("queued", "failed"), "running"),
        "finish": (("running",), "succeeded"),
        "retry": (("running",), "failed"),
        "exhaust": (("running",), "dead_letter"),
        "reject": (("running",), "dead_letter"),
        "snooze": (("running",), "queued"),
        "release": (("running",), "queued"),
        "lose": (("running",), "failed"),
        "cancel": (("queued", "failed", "running"), "canceled"),
        "requeue": (("dead_letter", "failed"), "queued"),
    }


@pytest.mark.parametrize(
    ("state", "verb"),
    [
        *((state, "cancel") for state in TERMINAL),
        *((state, "requeue") for state in ("queued", "running", "succeeded", "canceled")),
    ],
)
async def test_an_order_that_the_state_does_not_allow_names_state_and_verb(
    conn: Connection, state: str, verb: str
) -> None:
    """J-28, J-31: 409, and the row and its events stay as they were."""
    key = await JOB_SAMPLE.bring(conn, state, tenant=ONE)
    before = await everything(conn)
    order = STORE.cancel if verb == "cancel" else STORE.requeue
    for tenant in (None, ONE):
        with pytest.raises(IllegalEdge) as refused:
            await order(conn, key, tenant=tenant, by="ana")
        assert (refused.value.state, refused.value.verb) == (state, verb)
        assert (refused.value.code, refused.value.status) == ("ILLEGAL_EDGE", 409)
        assert state in str(refused.value)
        assert verb in str(refused.value)
    assert await everything(conn) == before


# -- events and time -------------------------------------------------------------------------------------


async def test_a_whole_life_is_told_hop_by_hop(conn: Connection) -> None:
    """J-9, J-21, J-30, J-32, J-36: nothing is told twice, and nothing is left out."""
    held = await begin(conn, limit=1)
    await STORE.progress(conn, held, 10, "reading", now=after(11))
    await end(conn, held, Snooze(5), 12)
    held = await claim(conn, seconds=20)
    await end(conn, held, BROKEN, 30)
    held = await claim(conn, seconds=40)
    await end(conn, held, BROKEN, 50)
    await STORE.requeue(conn, held.id, by="ana", now=after(60))
    held = await claim(conn, seconds=70)
    await STORE.move_one(conn, Move(verb="release", claim=held), now=after(80))
    held = await claim(conn, seconds=90)
    await STORE.move_one(conn, decide_lost(JOB, held), now=after(100))
    held = await claim(conn, seconds=110)
    await end(conn, held, Done(), 120)
    said = [
        (event["verb"], event["prev_status"], event["next_status"]) for event in await told(conn, held.id)
    ]
    assert said == [
        ("enqueue", None, "queued"),
        ("claim", "queued", "running"),
        ("progress", "running", "running"),
        ("snooze", "running", "queued"),
        ("claim", "queued", "running"),
        ("retry", "running", "failed"),
        ("claim", "failed", "queued"),
        ("claim", "queued", "running"),
        ("exhaust", "running", "failed"),
        ("exhaust", "failed", "dead_letter"),
        ("requeue", "dead_letter", "queued"),
        ("claim", "queued", "running"),
        ("release", "running", "queued"),
        ("claim", "queued", "running"),
        ("lose", "running", "failed"),
        ("claim", "failed", "queued"),
        ("claim", "queued", "running"),
        ("finish", "running", "succeeded"),
    ]
    words = set(await column(conn, "select unnest(enum_range(null::job_status))::text"))
    assert {hop[2] for hop in said} <= words
    events = await STORE.timeline(conn, held.id)
    assert [(event.detail["verb"], event.prev, event.next) for event in events] == said
    assert [event.seq for event in events] == sorted(event.seq for event in events)


async def test_times_never_go_back_along_the_events_even_if_the_clock_does(conn: Connection) -> None:
    """J-35: from the first claim on every reading is earlier than the one before."""
    await enqueue(conn)
    held = await claim(conn, seconds=100)
    await STORE.progress(conn, held, 10, now=after(50))
    await STORE.move_one(conn, Move(verb="retry", claim=held, fault=FAULT), now=after(40))
    held = await claim(conn, seconds=40)
    await STORE.move_one(conn, Move(verb="snooze", claim=held), now=after(30))
    held = await claim(conn, seconds=30)
    await STORE.move_one(conn, decide_lost(JOB, held), now=after(20))
    held = await claim(conn, seconds=20)
    await STORE.move_one(conn, Move(verb="exhaust", claim=held, fault=FAULT), now=after(10))
    assert (await job(conn, held.id))["finished_at"] == after(100)
    await STORE.requeue(conn, held.id, now=after(5))
    held = await claim(conn, seconds=5)
    await STORE.move_one(conn, Move(verb="finish", claim=held), now=after(1))
    row, events = await job(conn, held.id), await told(conn, held.id)
    assert [event["ts"] for event in events] == [NOW] + [after(100)] * (len(events) - 1)
    assert row["finished_at"] == row["updated_at"] == row["started_at"] == events[-1]["ts"]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


@pytest.mark.parametrize("ending", ["finish", "exhaust", "reject", "cancel"])
async def test_finished_at_is_the_time_of_the_event_that_finished_the_job(
    conn: Connection, ending: Verb
) -> None:
    """J-35: also by the database's own clock, and inside a long transaction."""
    await STORE.enqueue(conn, item())
    async with conn.transaction():
        (held,) = await STORE.claim(conn, "w1", 1)
        await STORE.move_one(conn, Move(verb=ending, claim=held, fault=FAULT))
    row, events = await job(conn, held.id), await told(conn, held.id)
    assert row["finished_at"] == row["updated_at"] == events[-1]["ts"]
    assert row["started_at"] == events[1]["ts"] < events[-1]["ts"]  # no frozen clock of the transaction


async def test_progress_is_an_event_and_bumps_updated_at_only(conn: Connection) -> None:
    """J-36: running → running, with the stage in its detail."""
    held = await begin(conn)
    before = await job(conn, held.id)
    await STORE.progress(conn, held, 40.5, "reading", now=after(20))
    row = await job(conn, held.id)
    assert {name: row[name] for name in row if row[name] != before[name]} == {"updated_at": after(20)}
    (*_, event) = await told(conn, held.id)
    assert (event["prev_status"], event["next_status"], event["ts"]) == ("running", "running", after(20))
    assert event["detail_json"] == {
        "verb": "progress",
        "attempt": 0,
        "fence": 1,
        "worker": "w1",
        "progress": 40.5,
        "stage": "reading",
    }


async def test_the_newest_stage_is_shown_and_not_merely_the_newest_event(conn: Connection) -> None:
    """J-36: stage and percent each by the newest event that has one, also after the end of the job."""

    async def shown() -> tuple[Any, Any]:
        row = await STORE.get(conn, held.id)
        return row.stage, row.progress

    held = await begin(conn)
    assert await shown() == (None, None)
    await STORE.progress(conn, held, 10, "reading", now=after(11))
    await STORE.progress(conn, held, 90, now=after(12))
    assert await shown() == ("reading", 90)
    await STORE.progress(conn, held, stage="writing", now=after(12))
    assert await shown() == ("writing", 90)
    await end(conn, held, BROKEN, 13)
    await end(conn, await claim(conn, seconds=20), Done(), 30)
    assert await shown() == ("writing", 90)


@pytest.mark.parametrize("percent", [-1, 101, -0.001, 100.001, float("nan"), float("inf")])
async def test_progress_outside_0_to_100_is_refused(conn: Connection, percent: float) -> None:
    """J-36 and "Bad input": nothing is written; both ends of the range are fine."""
    held = await begin(conn)
    before = await everything(conn)
    with pytest.raises(InvalidInput, match="percent"):
        await STORE.progress(conn, held, percent)
    assert await everything(conn) == before
    for fine in (0, 100):
        await STORE.progress(conn, held, fine, now=after(20))


async def test_every_statement_of_the_store_sets_updated_at_and_no_trigger_does(conn: Connection) -> None:
    """J-37"""
    said: list[str] = []

    async def moved(verb: str, seconds: float) -> None:
        assert (await job(conn, held.id))["updated_at"] == after(seconds), verb
        said.append(verb)

    held = await begin(conn)
    await moved("claim", 10)
    await STORE.progress(conn, held, 1, now=after(11))
    await moved("progress", 11)
    for place, verb in enumerate(("snooze", "release", "retry", "lose")):
        await STORE.move_one(conn, Move(verb=verb, claim=held, fault=FAULT), now=after(20 + 10 * place))
        await moved(verb, 20 + 10 * place)
        held = await claim(conn, seconds=25 + 10 * place)
    for place, verb in enumerate(("reject", "exhaust")):
        await STORE.move_one(conn, Move(verb=verb, claim=held, fault=FAULT), now=after(60 + 10 * place))
        await moved(verb, 60 + 10 * place)
        await STORE.requeue(conn, held.id, now=after(62 + 10 * place))
        await moved("requeue", 62 + 10 * place)
        held = await claim(conn, seconds=65 + 10 * place)
    await STORE.move_one(conn, Move(verb="finish", claim=held), now=after(90))
    await moved("finish", 90)
    held = await begin(conn)
    await STORE.cancel(conn, held.id, now=after(91))
    await moved("cancel", 91)
    assert set(said) == {str(edge.verb) for edge in JOB.edges} - {"enqueue"} | {"progress"}
    triggers = "select tgname from pg_trigger where tgrelid = 'job'::regclass and not tgisinternal"
    assert await column(conn, triggers) == ["trg_job__edges"]  # it refuses, and sets nothing


# -- reading ---------------------------------------------------------------------------------------------


async def _some_of_everything(conn: Connection) -> None:
    """A job of each state, type, queue and organisation, made an hour apart."""
    place = 0
    for tenant in (ONE, TWO):
        for state in JOB.states:
            key = await JOB_SAMPLE.bring(conn, state, tenant=tenant, kind=f"kind:{state}")
            await conn.execute(
                "update job set created_at = %s, queue = %s, run_at = '2999-01-01Z' where id = %s",
                [NOW + timedelta(hours=place), f"q{place % 2}", key],
            )
            place += 1


async def test_a_list_is_filtered_by_status_type_queue_time_and_organisation(conn: Connection) -> None:
    """J-43"""
    await _some_of_everything(conn)

    async def found(**which: Any) -> list[Row]:
        return list((await STORE.find(conn, Filter(**which))).rows)

    assert len(await found()) == 12
    for state in JOB.states:
        assert {row.state for row in await found(states=(state,))} == {state}
        assert [row.tenant for row in await found(states=(state,))] == [TWO, ONE]
    assert {row.kind for row in await found(kind="kind:failed")} == {"kind:failed"}
    assert len(await found(states=("queued", "running"))) == 4
    assert {row.columns["queue"] for row in await found(queue="q1")} == {"q1"}
    assert len(await found(queue="q1")) == 6
    assert {row.tenant for row in await found(tenant=str(ONE))} == {ONE}
    late = [row.created for row in await found(created_after=NOW + timedelta(hours=9))]
    early = [row.created for row in await found(created_before=NOW + timedelta(hours=2))]
    assert (min(late), max(early)) == (NOW + timedelta(hours=9), NOW + timedelta(hours=1))
    assert (len(late), len(early)) == (3, 2)
    (row,) = await found(states=("failed",), kind="kind:failed", queue="q1", tenant=TWO)
    assert (row.state, row.tenant) == ("failed", TWO)
    assert await found(states=("failed",), kind="kind:queued") == []


async def test_pages_are_newest_first_and_stable_while_rows_are_added_and_moved(conn: Connection) -> None:
    """J-43: each job that was there when the first page was read comes exactly once."""
    for second in (0, 1, 1, 2):  # equal times as well
        await STORE.enqueue_many(conn, [item()] * 6, now=after(second))
        await STORE.enqueue_many(conn, [item(tenant=TWO)] * 6, now=after(second))
    mine = set(await column(conn, "select id from job where org_id = %s", ONE))
    seen: list[Row] = []
    cursor = None
    for _ in range(9):
        page = await STORE.find(conn, Filter(tenant=ONE), limit=5, cursor=cursor)
        seen += page.rows
        await STORE.enqueue_many(conn, [item(), item(tenant=TWO)], now=after(99))
        await STORE.claim(conn, "w1", 3, now=after(100))
        if (cursor := page.cursor) is None:
            break
    order = [(row.created, row.id) for row in seen]
    assert order == sorted(order, reverse=True)
    assert len(seen) == len(mine) == 24
    assert {row.id for row in seen} == mine


async def test_counts_dead_letters_and_the_next_retry_are_those_of_one_organisation(
    conn: Connection,
) -> None:
    """J-43: the time of the next retry is `due` while failed."""
    await _some_of_everything(conn)
    await enqueue(conn)
    counted: Counter[str] = Counter()
    for count in await STORE.count(conn, Filter(tenant=ONE)):
        counted[count.state] += count.rows
    assert counted == dict.fromkeys(JOB.states, 1) | {"queued": 2}
    (letter,) = (await STORE.find(conn, Filter(tenant=ONE, states=("dead_letter",)))).rows
    assert (letter.kind, letter.tenant, letter.finished is not None) == ("kind:dead_letter", ONE, True)
    assert letter.error is not None
    assert "it broke" in letter.error
    held = await claim(conn)
    await end(conn, held, BROKEN, 20)
    assert (await STORE.get(conn, held.id)).due == after(21)


async def test_a_timeline_goes_on_from_where_it_was_left(conn: Connection) -> None:
    """J-43: in the order of seq."""
    held = await begin(conn)
    for percent in range(10):
        await STORE.progress(conn, held, percent, now=after(10 + percent))
    whole = await STORE.timeline(conn, held.id)
    parts, after_seq = [], 0
    while part := await STORE.timeline(conn, held.id, after=after_seq, limit=5):
        parts += part
        after_seq = part[-1].seq
    assert parts == whole
    assert [event.detail.get("progress") for event in whole] == [None, None, *range(10)]


async def test_another_organisations_job_reads_as_not_found(conn: Connection) -> None:
    """J-43, J-44: by get, timeline, cancel and requeue, in any state; as if the id had never been."""
    for state in JOB.states:
        key = await JOB_SAMPLE.bring(conn, state, tenant=ONE)
        before = await everything(conn)
        for asked in (STORE.get, STORE.timeline, STORE.cancel, STORE.requeue):
            foreign = await answer(asked(conn, key, tenant=TWO))
            unknown = await answer(asked(conn, uuid4(), tenant=TWO))
            assert isinstance(foreign, NotFound)
            assert isinstance(unknown, NotFound)
            assert str(foreign).replace(str(key), "") == str(unknown).replace(str(unknown.fields["id"]), "")
            assert (foreign.code, foreign.status) == ("NOT_FOUND", 404)
        assert await everything(conn) == before
        assert (await STORE.get(conn, key, tenant=ONE)).state == state
        assert await STORE.timeline(conn, key, tenant=str(ONE)) != []
        await conn.execute("delete from job")


async def test_orders_by_a_filter_reach_the_rows_of_one_organisation_only(conn: Connection) -> None:
    """J-43, J-44"""
    mine, theirs = await enqueue(conn), await enqueue(conn, tenant=TWO)
    assert await STORE.cancel_where(conn, Filter(tenant=ONE)) == 1
    assert [(await job(conn, key))["status"] for key in (mine, theirs)] == ["canceled", "queued"]
    assert (await STORE.find(conn, Filter(tenant=uuid4()))).rows == ()
    assert await STORE.count(conn, Filter(tenant=uuid4())) == []


# -- bad input that is not about enqueue -----------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 101, -1, True, 1.5, "5", None])
async def test_a_limit_outside_1_to_100_is_refused(conn: Connection, limit: Any) -> None:
    """J-43 and "Bad input": both ends are fine."""
    with pytest.raises(InvalidInput, match=r"^limit"):
        await STORE.find(conn, limit=limit)
    for fine in (1, 100):
        assert (await STORE.find(conn, limit=fine)).rows == ()


@pytest.mark.parametrize("state", ["done", "QUEUED", "", "cancelled", "running'; drop table job; --"])
async def test_an_unknown_status_is_refused_wherever_one_is_named(conn: Connection, state: str) -> None:
    """J-43 and "Bad input": one wrong word beside a right one as well; nothing is written."""
    await enqueue(conn)
    before = await everything(conn)
    for which in (Filter(states=(state,)), Filter(states=("queued", state))):
        for asked in (STORE.find, STORE.count, STORE.cancel_where, STORE.requeue_where):
            with pytest.raises(InvalidInput, match="state"):
                await asked(conn, which)
    assert await everything(conn) == before


@pytest.mark.parametrize(
    "cursor", ["", "x", "bm9uc2Vuc2U=", "WzEsMl0=", "\ud800", "W10=", "e30=", "a" * 5000]
)
async def test_a_broken_cursor_is_refused(conn: Connection, cursor: str) -> None:
    """J-43 and "Bad input" """
    with pytest.raises(InvalidInput, match="cursor"):
        await STORE.find(conn, cursor=cursor)


@pytest.mark.parametrize("id", ["", "1", 7, None, "11111111-1111-4111-8111-11111111111g", "\x00", b"x"])
async def test_an_id_that_is_no_uuid_is_refused(conn: Connection, id: Any) -> None:
    """J-44 and "Bad input": ids of jobs and of organisations."""
    key = await enqueue(conn)
    before = await everything(conn)
    for asked in (STORE.get, STORE.timeline, STORE.cancel, STORE.requeue):
        with pytest.raises(InvalidInput, match="UUID"):
            await asked(conn, id)
        if id is not None:
            with pytest.raises(InvalidInput, match="org_id"):
                await asked(conn, key, tenant=id)
    if id is not None:
        for asked in (STORE.find, STORE.count, STORE.cancel_where, STORE.requeue_where):
            with pytest.raises(InvalidInput, match="org_id"):
                await asked(conn, Filter(tenant=id))
    assert await everything(conn) == before


@pytest.mark.parametrize("name", ["created_after", "created_before"])
async def test_a_time_without_a_zone_is_refused(conn: Connection, name: str) -> None:
    """J-43 and "Bad input" """
    for moment in (NOW.replace(tzinfo=None), "2030-01-01T00:00:00Z"):
        with pytest.raises(InvalidInput, match=name):
            await STORE.find(conn, Filter(**{name: moment}))


async def test_an_error_code_alone_may_be_empty_and_is_kept(conn: Connection) -> None:
    """J-25: what a failing run says is never refused."""
    held = await begin(conn)
    await STORE.move_one(conn, Move(verb="reject", claim=held, fault=Fault(code="", message="")))
    row = await job(conn, held.id)
    assert (row["last_error_code"], row["last_error_message"]) == ("", "")
