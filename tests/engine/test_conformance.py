"""What every ledger promises, ours and a user's own: one suite, run on each sample.

A new built-in ledger joins by an entry in `SAMPLES`; nothing here names a ledger but where a feature is one
ledger's alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.lifecycle import FENCED, VERBS, Verb
from holdfast.engine.outcomes import Crashed
from holdfast.engine.roles import CodeError, JsonError, TextError, error_columns
from holdfast.engine.values import Claimed, Filter, Move, Row
from holdfast.errors import ClaimLost, IdempotencyConflict, IllegalEdge, InvalidInput, NotFound
from ledgers import (
    ERRANDS_SAMPLE,
    FAULT,
    JOB_SAMPLE,
    NOW,
    PARCELS_SAMPLE,
    PERMITS_SAMPLE,
    SAMPLES,
    SYNCS_SAMPLE,
    TASKS_SAMPLE,
    Connection,
    Sample,
    after,
    claim_all,
    every_sample,
    json_of,
    over,
)

LONG = 2e6  # seconds: later than any wait that a test asked for
PERSONS: tuple[Verb, ...] = ("cancel", "requeue")


@pytest.fixture
def database_url(ledgers_url: str) -> str:
    return ledgers_url


async def claim_one(sample: Sample, conn: Connection, owner: str = "w1", at: float = 10) -> Claimed:
    (claim,) = await claim_all(sample, conn, owner, 1, at)
    return claim


def forgetful(claim: Claimed) -> Claimed:
    """The claim as others find it: only the one who took the row was told how long it had waited."""
    assert claim.waited > 0
    return msgspec.structs.replace(claim, waited=0.0)


# -- every state meets every verb ------------------------------------------------------------------------


def pairs(*, legal: bool) -> list[Any]:
    """(sample, state, verb, by) for every verb that is said of a row; `by`: who says it."""
    found: list[Any] = []
    for sample in SAMPLES:
        for state in sample.ledger.states:
            for verb in VERBS[1:]:
                frm, _ = sample.legal.get(verb, ((), ""))
                held = sample.ledger.lifecycle.held
                speakers = {"cancel": ("a person", "its handler"), "requeue": ("a person",)}
                for by in speakers.get(verb, ("a worker",)):
                    allowed = state in frm and (by != "its handler" or state in held)
                    if allowed == legal:
                        found.append(
                            pytest.param(sample, state, verb, by, id=f"{sample}-{state}-{verb}-{by}")
                        )
    return found


async def say(sample: Sample, conn: Connection, verb: Verb, by: str, key: Any) -> Any:
    """Says a verb; answers with the key of the row that it moved."""
    store, now = sample.store(), after(LONG)
    if verb == "claim":
        claims = await store.claim(conn, "w2", 1, now=now)
        return claims[0].id if claims else None
    if by == "a person":
        await (store.cancel if verb == "cancel" else store.requeue)(conn, key, by="ana", now=now)
        return key
    claim = await sample.held(conn, key)
    if verb == "start":
        started = await store.start(conn, [claim], now=now)
        return started[0].id if started and sample.ledger.lifecycle.of("start") else None
    await store.move_one(conn, Move(verb=verb, claim=claim, fault=FAULT, delay=60), now=now)
    return key


@pytest.mark.parametrize(("sample", "state", "verb", "by"), pairs(legal=True))
async def test_a_legal_verb_moves_that_row_alone_and_the_journal_tells_each_hop_once(
    conn: Connection, sample: Sample, state: str, verb: Verb, by: str
) -> None:
    """T-8, T-12, T-15, T-19, T-21, T-22, T-25, T-27, T-28: the legal pairs, and the columns that follow."""
    store = sample.store()
    key, _bystander = await sample.bring(conn, state), await sample.bring(conn, state)
    if verb == "claim" and state in sample.ledger.ends:
        await sample.update(conn, key, retry_after=NOW)  # only somebody else's SQL makes an end claimable
    before, told = await sample.rows(conn), await sample.told(conn)
    old = {key: await store.get(conn, key) for key in before}

    moved = await say(sample, conn, verb, by, key)

    rows = await sample.rows(conn)
    assert [key for key in rows if rows[key] != before[key]] == [moved]
    assert rows[moved][sample.ledger.state] == sample.legal[verb][1]
    events = (await sample.told(conn))[len(told) :]
    assert {event["job_id"] for event in events} <= {str(moved)}
    hops = tuple((event["prev_status"], event["next_status"]) for event in events)
    assert hops == sample.hops.get((state, verb), ())
    columns_follow(sample, verb, old[moved], await store.get(conn, moved))


def columns_follow(sample: Sample, verb: Verb, old: Row, new: Row) -> None:
    """The columns beside the state, as DESIGN tells them."""
    ledger, times, now = sample.ledger, sample.ledger.times, after(LONG)
    ended, begun = new.state in ledger.ends, old.state == ledger.lifecycle.running
    back = not ended and verb not in ("claim", "start")
    # Owner and fence.
    if verb == "claim":
        assert new.owner == "w2" or (new.owner or "").startswith("w2/")
    elif verb == "start" or (ended and ledger.owner_kept):
        assert new.owner == old.owner
    else:
        assert new.owner is None
    if ledger.fence:
        assert new.fence == (old.fence or 0) + (verb == "claim")
    # The count of attempts, and when the row may be claimed.
    if ledger.attempts:
        counted = sample.steps.get(verb, 0) if begun or verb == "claim" else 0
        assert new.attempts == (0 if verb == "requeue" else (old.attempts or 0) + counted)
    if ledger.due and verb in ("retry", "snooze"):
        assert new.due == now + timedelta(seconds=60)
    elif ledger.due and ledger.due.cleared:
        assert new.due is None
    elif ledger.due:
        assert new.due == (now if back else old.due)
    # Times.
    if times.finished:
        assert new.finished == (now if ended else None)
    if times.claimed:
        assert new.claimed == (now if verb == "claim" else None if back else old.claimed)
    if times.started:
        starts = verb == ("start" if ledger.lifecycle.of("start") else "claim")
        if times.first_start:
            assert new.started == (None if verb == "requeue" else old.started or (now if starts else None))
        else:
            assert new.started == (now if starts else None if back else old.started)
    assert new.created == old.created
    # Why.
    faulty = verb in ("retry", "exhaust", "reject", "lose")
    if verb == "cancel" and ledger.cancelled_text:
        faulty = True
    if faulty:
        assert new.error
        assert "it broke" in new.error or verb == "cancel"
    elif verb == "finish" and ledger.errors and ledger.errors.cleared_by_finish:
        assert new.error is None
    else:
        assert new.error == old.error
    if ledger.lease:
        column = new.columns[ledger.lease.column]
        assert (column is not None) == (verb == "claim")


@pytest.mark.parametrize(("sample", "state", "verb", "by"), pairs(legal=False))
async def test_an_illegal_verb_changes_no_column_tells_nothing_and_is_answered_by_its_type(
    conn: Connection, sample: Sample, state: str, verb: Verb, by: str
) -> None:
    """T-14 and "Bad input": the claim names the right owner and fence, the state is wrong."""
    key = await sample.bring(conn, state)
    before, told = await sample.rows(conn), await sample.told(conn)

    if by == "a person":
        with pytest.raises(IllegalEdge) as refused:
            await say(sample, conn, verb, by, key)
        assert (refused.value.verb, refused.value.state) == (verb, state)
    elif verb in ("claim", "start"):
        assert await say(sample, conn, verb, by, key) is None
    else:
        with pytest.raises(ClaimLost):
            await say(sample, conn, verb, by, key)

    assert await sample.rows(conn) == before
    assert await sample.told(conn) == told


@every_sample
async def test_an_unknown_id_is_not_found_by_any_verb_of_a_person(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    unknown = {"uuid": "00000000-0000-4000-8000-000000000000", "integer": 2**31 - 1, "text": "nobody"}
    key = unknown[sample.ledger.key.type]
    for verb in (store.get, store.cancel, store.requeue):
        with pytest.raises(NotFound):
            await verb(conn, key)


@over(lambda sample: sample.ledger.key.type == "integer")
@pytest.mark.parametrize("key", [2**31, 2**63 - 1, -(2**31) - 1])
async def test_a_whole_number_beyond_the_keys_type_is_refused(
    conn: Connection, sample: Sample, key: int
) -> None:
    store = sample.store()
    for verb in (store.get, store.cancel, store.requeue):
        with pytest.raises(InvalidInput):
            await verb(conn, key)


# -- enqueue and its keys --------------------------------------------------------------------------------


@every_sample
async def test_a_new_row_is_in_its_first_state_and_is_told_once(conn: Connection, sample: Sample) -> None:
    """T-1."""
    store = sample.store()
    receipt = await store.enqueue(conn, sample.item(), now=NOW)
    assert receipt.created
    row = await store.get(conn, receipt.id)
    assert (row.state, row.created, row.payload) == (sample.legal["enqueue"][1], NOW, row.payload)
    assert (row.attempts or 0, row.owner, row.started, row.finished, row.error) == (0, None, None, None, None)
    assert sample.body.items() <= row.payload.items()
    assert await sample.events(conn) == list(sample.hops.get((None, "enqueue"), ()))


@over(lambda sample: sample.ledger.idempotency.repeat in ("touch", "return"))
async def test_a_repeated_key_gets_the_first_row_whatever_became_of_it(
    conn: Connection, sample: Sample
) -> None:
    """T-2, T-5, T-27: the key stays taken in every state, also by a row that was called off."""
    store = sample.store()
    for place, state in enumerate(sample.ledger.states):
        key = await sample.bring(conn, state, key=f"k{place}")
        before, told = await sample.rows(conn), await sample.told(conn)
        again = await store.enqueue(
            conn, sample.item(key=f"k{place}", payload={"other": 1}, delay=9), now=after(99)
        )
        assert (again.id, again.created) == (key, False)
        rows = await sample.rows(conn)
        if sample.ledger.idempotency.repeat == "touch":
            assert rows[key].pop("updated_at") != before[key].pop("updated_at")
        assert rows == before
        assert await sample.told(conn) == told
        await sample.update(conn, key, **{sample.ledger.state: sample.ledger.ends[0]} | ended(sample))


def ended(sample: Sample) -> dict[str, Any]:
    """What the checks of a sample's table ask of a row that has ended."""
    if sample in (ERRANDS_SAMPLE, JOB_SAMPLE):
        return {"finished_at": NOW, "worker_id": None}
    return {}


@over(lambda sample: sample.ledger.idempotency.repeat == "refuse")
async def test_a_repeated_key_is_refused_while_the_first_row_is_active_and_free_afterwards(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    first = await store.enqueue(conn, sample.item(key="k"), now=NOW)
    for _ in ("queued", "running"):
        before = await sample.rows(conn)
        with pytest.raises(IdempotencyConflict) as refused:
            await store.enqueue_many(conn, [sample.item(), sample.item(key="k")], now=NOW)
        assert (refused.value.fields["id"], refused.value.fields["key"]) == (first.id, "k")
        assert await sample.rows(conn) == before
        if not (claims := await claim_all(sample, conn)):
            break
    await store.move(
        conn, [Move(verb="finish", claim=claim) for claim in claims or [await sample.held(conn, first.id)]]
    )
    second = await store.enqueue(conn, sample.item(key="k"), now=NOW)
    assert second.created
    assert second.id != first.id


@over(lambda sample: sample.ledger.idempotency.repeat == "ignore")
async def test_a_repeated_key_is_ignored_and_gets_no_id(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    first = await store.enqueue(conn, sample.item(key="k"), now=NOW)
    before = await sample.rows(conn)
    again = await store.enqueue(conn, sample.item(key="k", payload={"floors": 9}), now=after(5))
    assert (first.created, again.id, again.created) == (True, None, False)
    assert await sample.rows(conn) == before


@every_sample
async def test_no_key_never_collides(conn: Connection, sample: Sample) -> None:
    """T-3."""
    receipts = await sample.store().enqueue_many(conn, [sample.item()] * 3, now=NOW)
    assert len({receipt.id for receipt in receipts}) == 3
    assert all(receipt.created for receipt in receipts)


@pytest.mark.parametrize(
    ("sample", "other"),
    [
        (TASKS_SAMPLE, {"kind": "another"}),
        (SYNCS_SAMPLE, {"kind": "another"}),
        (ERRANDS_SAMPLE, {"tenant": "22222222-2222-4222-8222-222222222222"}),
    ],
    ids=str,
)
async def test_the_same_key_in_another_scope_is_another_row(
    conn: Connection, sample: Sample, other: dict[str, Any]
) -> None:
    """T-3."""
    store = sample.store()
    first = await store.enqueue(conn, sample.item(key="k"), now=NOW)
    second = await store.enqueue(conn, sample.item(key="k", **other), now=NOW)
    assert second.created
    assert second.id != first.id


@pytest.mark.parametrize("sample", [PARCELS_SAMPLE, ERRANDS_SAMPLE], ids=str)
async def test_the_same_key_with_another_kind_is_a_conflict_where_the_kind_is_no_scope(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    first = await store.enqueue(conn, sample.item(key="k"), now=NOW)
    before, told = await sample.rows(conn), await sample.told(conn)
    with pytest.raises(IdempotencyConflict) as refused:
        await store.enqueue_many(
            conn, [sample.item(key="new"), sample.item(key="k", kind="another")], now=NOW
        )
    assert refused.value.fields["id"] == first.id
    assert await sample.rows(conn) == before
    assert await sample.told(conn) == told


@every_sample
async def test_a_bulk_answers_in_its_own_order_and_one_key_twice_is_one_row(
    conn: Connection, sample: Sample
) -> None:
    """T-7 and "bulk with one key twice": items of several shapes, a repeat of an old row among them."""
    store = sample.store()
    old = await store.enqueue(conn, sample.item(key="old"), now=NOW)
    repeated = sample.ledger.idempotency.repeat != "refuse"
    keys = ["b", None, "a", "b", "old" if repeated else "c", None, "a"]
    body = sample.body | ({"floors": 7} if sample is PERMITS_SAMPLE else {"more": 7})
    items = [sample.item(key=key, payload=body if place % 2 else None) for place, key in enumerate(keys)]
    receipts = await store.enqueue_many(conn, items, by="ana", now=NOW)

    assert [receipt.created for receipt in receipts] == [True, True, True, False, not repeated, True, False]
    assert receipts[3].id == receipts[0].id
    assert receipts[6].id == receipts[2].id
    if repeated:
        assert receipts[4].id == (None if sample.ledger.idempotency.repeat == "ignore" else old.id)
    rows = await sample.rows(conn)
    assert len(rows) == (5 if repeated else 6)
    for receipt, key in zip(receipts, keys, strict=True):
        if receipt.id is not None:
            assert rows[receipt.id][sample.ledger.idempotency.column] == key
    assert (await store.get(conn, receipts[1].id)).payload.items() >= body.items()
    if sample.ledger.journal:
        assert await sample.events(conn) == [(None, "queued")] * 5


@every_sample
async def test_racing_duplicates_make_one_row_that_all_of_them_get(
    conn: Connection, connect: Any, sample: Sample
) -> None:
    """T-5: two hundred racing enqueues, twenty at a time, released together."""
    store, barrier = sample.store(), asyncio.Barrier(20)
    connections = [await connect() for _ in range(20)]

    async def race(own: Connection, key: str) -> Any:
        await barrier.wait()
        try:
            return await store.enqueue(own, sample.item(key=key))
        except IdempotencyConflict as conflict:
            assert sample.ledger.idempotency.repeat == "refuse"
            return conflict

    for turn in range(10):
        answers = await asyncio.gather(*(race(own, f"k{turn}") for own in connections))
        receipts = [answer for answer in answers if not isinstance(answer, IdempotencyConflict)]
        (winner,) = [receipt.id for receipt in receipts if receipt.created]
        others = {answer.fields["id"] for answer in answers if isinstance(answer, IdempotencyConflict)}
        others |= {receipt.id for receipt in receipts if not receipt.created}
        assert others == {None if sample.ledger.idempotency.repeat == "ignore" else winner}
    assert len(await sample.rows(conn)) == 10
    assert len(await sample.events(conn)) == (10 if sample.ledger.journal else 0)


async def until_blocked(conn: Connection, by: Connection) -> None:
    """Waits until some connection waits for a lock that `by` holds."""
    query = "select from pg_stat_activity where %s = any(pg_blocking_pids(pid))"
    async with asyncio.timeout(20):
        while not (await conn.execute(query, [by.info.backend_pid])).rowcount:
            pass


@every_sample
async def test_bulks_with_the_same_keys_in_another_order_do_not_deadlock(
    conn: Connection, connect: Any, sample: Sample
) -> None:
    store, other = sample.store(), await connect()
    async with asyncio.TaskGroup() as group, conn.transaction(force_rollback=True):
        await store.enqueue(conn, sample.item(key="a"))
        keys = [sample.item(key=key) for key in ("b", "a")]
        bulk = group.create_task(store.enqueue_many(other, keys))
        await until_blocked(await connect(), by=conn)
        await store.enqueue(conn, sample.item(key="b"))
    assert [receipt.created for receipt in bulk.result()] == [True, True]


@every_sample
async def test_an_enqueue_joins_the_callers_transaction(conn: Connection, sample: Sample) -> None:
    """T-7."""
    async with conn.transaction(force_rollback=True):
        await sample.store().enqueue_many(conn, [sample.item(key="a"), sample.item()])
        assert len(await sample.rows(conn)) == 2
    assert await sample.rows(conn) == {}
    assert await sample.told(conn) == []


@over(lambda sample: sample.ledger.journal is None and isinstance(sample.ledger.payload, str))
async def test_copied_rows_are_like_enqueued_ones(conn: Connection, sample: Sample) -> None:
    """T-7: by COPY, in the ledger's own first state and by the same clock, whatever the columns' defaults."""
    store = sample.store()
    one = await store.enqueue(conn, sample.item(), now=NOW)
    assert await store.copy(conn, [sample.item(), sample.item(payload=None)] * 50, now=NOW) == 100
    rows = await sample.rows(conn)
    first = rows.pop(one.id)
    key, body = sample.ledger.key.column, sample.ledger.payload
    same = {name: value for name, value in first.items() if name not in (key, body)}
    for row in rows.values():
        assert {name: value for name, value in row.items() if name not in (key, body)} == same
    assert Counter(str(row[body]) for row in rows.values()) == {str(sample.body): 50, str(sample.nothing): 50}


@over(lambda sample: sample.ledger.journal is None and isinstance(sample.ledger.payload, str))
async def test_a_copy_with_one_bad_item_writes_nothing(conn: Connection, sample: Sample) -> None:
    with pytest.raises(InvalidInput, match=r"items\[1\]"):
        await sample.store().copy(conn, [sample.item(), sample.item(kind=" ")])
    with pytest.raises(InvalidInput, match="COPY"):
        await sample.store().copy(conn, [sample.item(), sample.item(key="k")])
    assert await sample.rows(conn) == {}


# -- claims ----------------------------------------------------------------------------------------------


@every_sample
async def test_a_claim_names_its_owner_and_carries_what_the_handler_needs(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    receipt = await store.enqueue(conn, sample.item(), now=NOW)
    (claim,) = await store.claim(conn, "w1", 5, now=after(1))
    row = await sample.row(conn, receipt.id)
    assert (claim.id, claim.state) == (receipt.id, sample.legal["claim"][1])
    assert claim.kind == (sample.kind or sample.ledger.name)
    assert claim.owner == row[sample.ledger.owner]
    assert json_of(claim.payload).items() >= sample.body.items()
    assert claim.attempts == sample.steps.get("claim", 0)
    assert claim.fence == 1 if sample.ledger.fence else claim.fence > 0
    assert await store.claim(conn, "w2", 5, now=after(1)) == []


@every_sample
async def test_rows_are_claimed_oldest_first_and_answered_in_that_order(
    conn: Connection, sample: Sample
) -> None:
    """T-9, T-11."""
    store, ids = sample.store(), {}
    moments = list(range(120))
    random.Random(4).shuffle(moments)
    for moment in moments:
        ids[moment] = (await store.enqueue(conn, sample.item(), now=after(moment))).id
    # With these the planner joins by hash, which keeps no order.
    await conn.execute("set enable_nestloop = off; set enable_mergejoin = off")
    for batch in (range(7), range(7, 100), range(100, 120)):
        claims = await store.claim(conn, "w1", len(batch), now=after(1000))
        assert [claim.id for claim in claims] == [ids[moment] for moment in batch]


@over(lambda sample: sample.ledger.priority)
async def test_higher_priority_goes_first_and_time_decides_between_equals(
    conn: Connection, sample: Sample
) -> None:
    """T-9, T-11."""
    store, ids = sample.store(), {}
    places = [(priority, moment) for priority in (-1, 0, 5) for moment in range(6)]
    random.Random(5).shuffle(places)
    for priority, moment in places:
        item = sample.item(priority=priority)
        ids[priority, moment] = (await store.enqueue(conn, item, now=after(moment))).id
    expected = [ids[place] for place in sorted(places, key=lambda place: (-place[0], place[1]))]
    got: list[Any] = []
    for size in (4, 1, 9, 100):
        got += [claim.id for claim in await store.claim(conn, "w1", size, now=after(100))]
    assert got == expected


@over(lambda sample: sample.ledger.priority and len(sample.ledger.lanes) > 1)
@pytest.mark.parametrize("urgent", ["fresh", "retry"])
async def test_the_better_row_goes_first_whichever_lane_it_is_in(
    conn: Connection, sample: Sample, urgent: str
) -> None:
    """T-9: a due retry before a fresh row of lower priority, and the other way round."""
    store = sample.store()
    high, low = (9, 1) if urgent == "fresh" else (1, 9)
    fresh = await store.enqueue(conn, sample.item(priority=high), now=NOW)
    late = await store.enqueue(conn, sample.item(priority=low, delay=5), now=NOW)
    expected = [fresh.id, late.id] if urgent == "fresh" else [late.id, fresh.id]
    (first,) = await store.claim(conn, "w1", 1, now=after(5))
    (second,) = await store.claim(conn, "w1", 1, now=after(5))
    assert [first.id, second.id] == expected


@over(lambda sample: len(sample.ledger.lanes) > 1)
async def test_a_batch_over_several_lanes_is_answered_in_one_order(conn: Connection, sample: Sample) -> None:
    """T-9, T-11."""
    store, expected = sample.store(), []
    for moment in range(10):
        waits = {"delay": moment} if moment % 2 else {}
        now = NOW if moment % 2 else after(moment)
        expected.append((await store.enqueue(conn, sample.item(**waits), now=now)).id)
    assert [claim.id for claim in await store.claim(conn, "w1", 4, now=after(50))] == expected[:4]
    assert [claim.id for claim in await store.claim(conn, "w1", 99, now=after(50))] == expected[4:]


@over(lambda sample: sample.ledger.due)
@pytest.mark.parametrize("how", ["delay", "run_at", "retry", "snooze"])
@pytest.mark.parametrize("seconds", [10, 10.0004])
async def test_no_row_is_claimed_a_moment_early_and_each_is_at_its_moment(
    conn: Connection, sample: Sample, how: str, seconds: float
) -> None:
    """T-6, T-8, T-20: also between two milliseconds, where a table counts no finer."""
    store = sample.store()
    if how == "delay":
        await store.enqueue(conn, sample.item(delay=seconds), now=NOW)
    elif how == "run_at":
        await store.enqueue(conn, sample.item(run_at=after(seconds)), now=NOW)
    else:
        await store.enqueue(conn, sample.item(), now=NOW)
        claim = await claim_one(sample, conn, at=0)
        verb: Verb = "retry" if how == "retry" else "snooze"
        await store.move_one(conn, Move(verb=verb, claim=claim, delay=seconds, fault=FAULT), now=NOW)
    moment = timedelta(microseconds=1)
    early = after(seconds) - moment
    assert await store.claim(conn, "w1", 1, now=early) == []
    at = (
        after(seconds)
        if sample.ledger.times.kind != "epoch_ms"
        else after(seconds) + timedelta(milliseconds=1)
    )
    assert len(await store.claim(conn, "w1", 1, now=at)) == 1


@every_sample
async def test_eight_claimers_over_ten_thousand_rows_take_each_once_and_leave_none(
    conn: Connection, connect: Any, sample: Sample
) -> None:
    """T-10."""
    store, taken = sample.store(), Counter[Any]()
    items = (sample.item() for _ in range(10_000))
    ids = {receipt.id for receipt in await store.enqueue_many(conn, items)}
    barrier = asyncio.Barrier(8)

    async def drain(own: Connection, owner: str) -> None:
        await barrier.wait()
        while taken.total() < 10_000:
            taken.update([claim.id for claim in await store.claim(own, owner, 97)])

    connections = [await connect() for _ in range(8)]
    await asyncio.gather(*(drain(own, f"w{n}") for n, own in enumerate(connections)))
    assert taken.keys() == ids
    assert set(taken.values()) == {1}
    states = Counter(row[sample.ledger.state] for row in (await sample.rows(conn)).values())
    assert states == {sample.legal["claim"][1]: 10_000}


@over(lambda sample: sample.ledger.kind)
async def test_a_worker_may_be_limited_to_some_kinds(conn: Connection, sample: Sample) -> None:
    """T-13."""
    store = sample.store()
    one, two, three = sample.kinds
    ids = {kind: (await store.enqueue(conn, sample.item(kind=kind), now=NOW)).id for kind in sample.kinds}
    assert await store.claim(conn, "w1", 9, kinds=[], now=after(1)) == []
    claims = await store.claim(conn, "w1", 9, kinds=[one, three], now=after(1))
    assert {claim.id for claim in claims} == {ids[one], ids[three]}
    assert [claim.id for claim in await store.claim(conn, "w1", 9, now=after(1))] == [ids[two]]


@over(lambda sample: sample.ledger.queue)
async def test_a_worker_takes_from_its_queues_only_the_best_over_all_of_them_first(
    conn: Connection, sample: Sample
) -> None:
    store, ids = sample.store(), []
    for place, (queue, priority) in enumerate([("x", 1), ("y", 3), ("x", 2), ("z", 9), (None, 0)]):
        item = sample.item(queue=queue, priority=priority)
        ids.append((await store.enqueue(conn, item, now=after(place))).id)
    claims = await store.claim(conn, "w1", 9, queues=("x", "y", "x"), now=after(10))
    assert [claim.id for claim in claims] == [ids[1], ids[2], ids[0]]
    assert [claim.id for claim in await store.claim(conn, "w1", 9, now=after(10))] == [ids[4]]


@every_sample
async def test_a_row_that_somebody_has_locked_is_passed_over(
    conn: Connection, connect: Any, sample: Sample
) -> None:
    """T-10: a claim waits for nobody."""
    store, other = sample.store(), await connect()
    first, second = [r.id for r in await store.enqueue_many(conn, [sample.item()] * 2, now=NOW)]
    async with other.transaction():
        (held,) = await store.claim(other, "w1", 1, now=after(1))
        (claim,) = await store.claim(conn, "w2", 2, now=after(1))
    assert {held.id, claim.id} == {first, second}


# -- zombies ---------------------------------------------------------------------------------------------

WORKER_VERBS: tuple[Verb, ...] = (*FENCED, "cancel")


@over(lambda sample: sample.comes_back)
@pytest.mark.parametrize("way", [("lose",), ("reject", "requeue")], ids="+".join)
async def test_a_worker_that_lost_its_row_changes_nothing_even_under_the_same_worker_id(
    conn: Connection, sample: Sample, way: tuple[Verb, ...]
) -> None:
    """T-14: the old claim says every verb, makes progress and shows life; the row is the new claim's."""
    store = sample.store()
    key = (await store.enqueue(conn, sample.item(), now=NOW)).id
    old = await claim_one(sample, conn)
    for verb in way:
        if verb == "requeue":
            await store.requeue(conn, key, now=after(11))
        else:
            await store.move_one(conn, Move(verb=verb, claim=old, fault=FAULT), now=after(11))
    new = await claim_one(sample, conn, at=20)
    assert (new.id, new.state) == (old.id, old.state)
    before, told = await sample.rows(conn), await sample.told(conn)

    for verb in WORKER_VERBS[1:]:
        with pytest.raises(ClaimLost):
            await store.move_one(conn, Move(verb=verb, claim=old, fault=FAULT, delay=1), now=after(21))
    with pytest.raises(ClaimLost):
        await store.progress(conn, old, 50, "half", now=after(21))
    assert await store.heartbeat(conn, [old], now=after(21)) == frozenset()
    if sample.ledger.lifecycle.of("start"):
        assert await store.start(conn, [old], now=after(21)) == []

    assert await sample.rows(conn) == before
    assert await sample.told(conn) == told
    await store.move_one(conn, Move(verb="finish", claim=new), now=after(22))


@every_sample
async def test_a_claim_of_another_worker_is_no_claim(conn: Connection, sample: Sample) -> None:
    """T-14: the fence is right, the owner is not."""
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    claim = await claim_one(sample, conn)
    for owner in ("w2", None):
        with pytest.raises(ClaimLost):
            await store.move_one(conn, Move(verb="finish", claim=changed(claim, owner=owner)))
    if sample.ledger.fence:
        with pytest.raises(ClaimLost):
            await store.move_one(conn, Move(verb="finish", claim=changed(claim, fence=claim.fence + 1)))
    await store.move_one(conn, Move(verb="finish", claim=claim))


@every_sample
async def test_one_lost_row_in_a_batch_leaves_the_others_written(conn: Connection, sample: Sample) -> None:
    """T-26."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 6, now=NOW)
    claims = await claim_all(sample, conn)
    verbs: list[Verb] = ["finish", "finish", "reject", "release", "finish", "reject"]
    lost = [claims[1], claims[5]]
    await store.move(conn, [Move(verb="release", claim=claim) for claim in lost], now=after(11))
    moves = [Move(verb=verb, claim=claim, fault=FAULT) for verb, claim in zip(verbs, claims, strict=True)]
    moved = await store.move(conn, moves, now=after(12))
    assert moved == {claim.id for claim in claims} - {claim.id for claim in lost}
    for place, claim in enumerate(claims):
        verb: Verb = "release" if claim in lost else verbs[place]
        assert await sample.state(conn, claim.id) == sample.legal[verb][1]


@over(lambda sample: sample.comes_back)
async def test_an_old_and_a_new_claim_of_one_row_in_one_batch_are_judged_apart(
    conn: Connection, sample: Sample
) -> None:
    """T-26: a worker that lost a row and got it again may end both runs at once."""
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    old = await claim_one(sample, conn)
    await store.move_one(conn, Move(verb="lose", claim=old, fault=FAULT), now=after(11))
    again = await store.claim(conn, "w1", 1, now=after(20))
    if sample.ledger.lifecycle.of("start"):
        started = await store.start(conn, [changed(old, state=again[0].state), *again], now=after(20))
        assert [claim.fence for claim in started] == [claim.fence for claim in again]
    told = await sample.told(conn)
    moves = [Move(verb="finish", claim=claim, result={"by": claim.fence}) for claim in (old, *again, old)]
    await store.move(conn, moves, now=after(21))
    events = (await sample.told(conn))[len(told) :]
    assert len(events) == (1 if sample.ledger.journal else 0)
    assert [event["detail_json"]["result"] for event in events] == [{"by": again[0].fence}] * len(events)


@every_sample
async def test_a_cancelled_running_row_stays_as_it_is_when_its_handler_returns(
    conn: Connection, sample: Sample
) -> None:
    """T-27: the late finish changes nothing, and the key stays taken or free as the rule says."""
    store = sample.store()
    key = (await store.enqueue(conn, sample.item(key="k"), now=NOW)).id
    claim = await claim_one(sample, conn)
    if claim.state not in sample.legal["cancel"][0]:
        with pytest.raises(IllegalEdge):
            await store.cancel(conn, key)
        return
    await store.cancel(conn, key, by="ana", now=after(11))
    before, told = await sample.rows(conn), await sample.told(conn)
    for verb in WORKER_VERBS:
        assert (
            await store.move(conn, [Move(verb=verb, claim=claim, fault=FAULT)], now=after(12)) == frozenset()
        )
    assert await sample.rows(conn) == before
    assert await sample.told(conn) == told
    if sample.ledger.idempotency.repeat in ("touch", "return"):
        assert (await store.enqueue(conn, sample.item(key="k"))).id == key


@every_sample
async def test_ends_and_the_next_claim_go_in_one_commit(conn: Connection, sample: Sample) -> None:
    """T-26."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 4)
    claims = await claim_all(sample, conn, limit=2)
    moves = [Move(verb="finish", claim=claims[0]), Move(verb="reject", claim=claims[1], fault=FAULT)]
    async with conn.transaction(force_rollback=True):
        moved, more = await store.turn(conn, moves, "w1", 1)
    assert moved == {claim.id for claim in claims}
    assert [await sample.state(conn, claim.id) for claim in (*claims, *more)] == [
        *[claim.state for claim in claims],
        sample.legal["enqueue"][1],
    ]


# -- counting runs ---------------------------------------------------------------------------------------


async def runs_until_it_ends(
    sample: Sample, conn: Connection, key: Any, end: Callable[[Claimed], Move], most: int = 30
) -> int:
    """Runs a row, always ending badly, until it is no longer claimable; answers how often it ran."""
    for run in range(most):
        claims = await claim_all(sample, conn, at=LONG * (run + 1))
        if not claims:
            return run
        (claim,) = claims
        assert claim.id == key
        await sample.store().move_one(conn, end(claim), now=after(LONG * (run + 1)))
    raise AssertionError("it runs for ever")


def badly(sample: Sample) -> Callable[[Claimed], Move]:
    return lambda claim: decide(sample.ledger, claim, Crashed("BROKEN", "it broke"))


@over(lambda sample: sample.comes_back)
async def test_a_row_that_always_fails_runs_as_often_as_its_limit_says_and_again_after_a_requeue(
    conn: Connection, sample: Sample
) -> None:
    """T-17, T-21, T-28: three runs of a task at the default limit, six of an errand, and all again."""
    store = sample.store()
    key = (await store.enqueue(conn, sample.item(), now=NOW)).id
    assert await runs_until_it_ends(sample, conn, key, badly(sample)) == sample.runs
    row = await store.get(conn, key)
    assert row.state in sample.ledger.ends
    assert (
        row.attempts
        == {"tasks": 3, "parcels": 2, "errands": 5, "job": 5, "syncs": 10, "permits": None}[str(sample)]
    )
    await store.requeue(conn, key, now=NOW)
    assert (await store.get(conn, key)).attempts in (0, None)
    assert await runs_until_it_ends(sample, conn, key, badly(sample)) == sample.runs


@over(lambda sample: sample.ledger.attempts and sample.comes_back)
async def test_a_row_that_kills_every_worker_comes_to_an_end_by_the_same_count(
    conn: Connection, sample: Sample
) -> None:
    """T-33."""
    key = (await sample.store().enqueue(conn, sample.item(), now=NOW)).id

    def lost(claim: Claimed) -> Move:
        return decide_lost(sample.ledger, claim)

    assert await runs_until_it_ends(sample, conn, key, lost) == sample.runs
    row = await sample.store().get(conn, key)
    assert row.state in sample.ledger.ends
    assert "worker lost" in (row.error or "")


@pytest.mark.parametrize(
    ("sample", "limit", "runs"),
    [
        (TASKS_SAMPLE, 0, 1),
        (TASKS_SAMPLE, 1, 1),
        (TASKS_SAMPLE, 2, 2),
        (ERRANDS_SAMPLE, 0, 1),
        (ERRANDS_SAMPLE, 1, 2),
        (SYNCS_SAMPLE, 0, 1),
        (SYNCS_SAMPLE, 1, 1),
        (SYNCS_SAMPLE, 2, 2),
    ],
    ids=str,
)
async def test_the_rows_own_limit_counts(conn: Connection, sample: Sample, limit: int, runs: int) -> None:
    """T-17: zero and one are both one run of a task."""
    key = (await sample.store().enqueue(conn, sample.item(limit=limit), now=NOW)).id
    assert await runs_until_it_ends(sample, conn, key, badly(sample)) == runs


@over(lambda sample: sample.ledger.attempts)
async def test_snooze_and_release_do_not_count_as_runs_and_the_fence_still_grows(
    conn: Connection, sample: Sample
) -> None:
    """T-16, T-25."""
    store, fences = sample.store(), []
    key = (await store.enqueue(conn, sample.item(), now=NOW)).id
    verbs: tuple[Verb, ...] = ("snooze", "release") * 8
    for place, verb in enumerate(verbs):
        claim = await claim_one(sample, conn, at=100 * place)
        fences.append(claim.fence)
        await store.move_one(conn, Move(verb=verb, claim=claim, delay=50), now=after(100 * place))
        assert (await store.get(conn, key)).attempts == 0
    assert fences == sorted(set(fences))
    assert await runs_until_it_ends(sample, conn, key, badly(sample)) == sample.runs


# -- recovery --------------------------------------------------------------------------------------------


@every_sample
async def test_the_rows_of_a_worker_are_those_that_it_holds_and_no_others(
    conn: Connection, connect: Any, sample: Sample
) -> None:
    """T-32, T-34: also where its id begins another's; a locked row is left for later."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 6, now=NOW)
    mine = await claim_all(sample, conn, "host-1", 3)
    await claim_all(sample, conn, "host-11", 2)
    await store.move(conn, [Move(verb="finish", claim=mine[0])], now=after(11))
    held = await store.held_by(conn, ["host-1", "host-9"])
    assert sorted(held, key=lambda claim: claim.id) == sorted(
        (forgetful(claim) for claim in mine[1:]), key=lambda claim: claim.id
    )
    other = await connect()
    async with other.transaction():
        await store.move(other, [Move(verb="finish", claim=mine[1])])
        assert [claim.id for claim in await store.held_by(conn, ["host-1"])] == [mine[2].id]
    lost = [decide_lost(sample.ledger, claim) for claim in held]
    assert await store.move(conn, lost, now=after(12)) == {mine[2].id}


@over(lambda sample: sample.ledger.lifecycle.of("start"))
async def test_a_row_whose_run_had_not_begun_comes_back_without_a_count(
    conn: Connection, sample: Sample
) -> None:
    """T-33: the sweep keeps a claimed row uncounted, even at its limit."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item(limit=1)] * 2, now=NOW)
    claimed, running = await store.claim(conn, "w1", 2, now=NOW)
    (running,) = await store.start(conn, [running], now=NOW)
    held = await store.held_by(conn, ["w1"])
    assert await store.move(conn, [decide_lost(sample.ledger, claim) for claim in held], now=after(1)) == {
        claimed.id,
        running.id,
    }
    rows = [await store.get(conn, claim.id) for claim in (claimed, running)]
    assert [(row.state, row.attempts) for row in rows] == [("pending", 0), ("dead_letter", 1)]


@every_sample
async def test_orphans_are_rows_of_unknown_workers_held_too_long(conn: Connection, sample: Sample) -> None:
    """T-35."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 3, now=NOW)
    ghost = await claim_one(sample, conn, "ghost", at=10)
    known = await claim_one(sample, conn, "known", at=10)

    async def orphans(at: float, alive: tuple[str, ...] = ("known",)) -> list[Any]:
        found = await store.orphans(conn, alive, orphaned=30, nameless=600, now=after(at))
        return [claim.id for claim in found]

    assert await orphans(40) == []
    assert await orphans(40.002) == [ghost.id]
    assert set(await orphans(41, ())) == {ghost.id, known.id}
    (found,) = await store.orphans(conn, ["known"], orphaned=30, nameless=600, now=after(41))
    assert found == forgetful(ghost)
    assert await store.move(conn, [decide_lost(sample.ledger, found)], now=after(41)) == {ghost.id}
    assert await orphans(41) == []


@every_sample
async def test_a_row_that_was_just_claimed_is_no_orphan_however_old_it_is(
    conn: Connection, sample: Sample
) -> None:
    """T-35: a worker may register and claim between the look at the workers and the look at the rows."""
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    first = await claim_one(sample, conn, at=10)
    await store.move_one(conn, Move(verb="release", claim=first), now=after(20))
    await claim_one(sample, conn, "new", at=5000)
    assert await store.orphans(conn, [], orphaned=30, nameless=600, now=after(5029)) == []
    assert len(await store.orphans(conn, [], orphaned=30, nameless=600, now=after(5031))) == 1


@pytest.mark.parametrize("sample", [TASKS_SAMPLE, PARCELS_SAMPLE, SYNCS_SAMPLE], ids=str)
async def test_a_held_row_that_names_nobody_is_an_orphan_after_a_longer_time(
    conn: Connection, sample: Sample
) -> None:
    """T-35."""
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    claim = await claim_one(sample, conn, at=10)
    await sample.update(conn, claim.id, **{sample.ledger.owner: None})
    assert await store.orphans(conn, [], orphaned=30, nameless=600, now=after(609)) == []
    (found,) = await store.orphans(conn, [], orphaned=30, nameless=600, now=after(611))
    assert (found.id, found.owner) == (claim.id, None)
    assert await store.move(conn, [decide_lost(sample.ledger, found)], now=after(611)) == {claim.id}
    assert await sample.state(conn, claim.id) == sample.legal["lose"][1]


@every_sample
async def test_a_lease_in_the_row_lasts_its_seconds_and_is_renewed_by_signs_of_life(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 2, now=NOW)
    kept, left = await claim_all(sample, conn, at=0)
    before = await sample.rows(conn)
    assert await store.heartbeat(conn, [kept], now=after(500)) == {kept.id}
    if sample.ledger.lease is None:
        assert await store.expired(conn, now=after(LONG)) == []
        assert await sample.rows(conn) == before
        return
    assert await store.expired(conn, now=after(600)) == []
    assert [claim.id for claim in await store.expired(conn, now=after(601))] == [left.id]
    await store.progress(conn, kept, 10, now=after(700))
    assert [claim.id for claim in await store.expired(conn, now=after(1299))] == [left.id]
    found = await store.expired(conn, now=after(1301))
    assert await store.move(conn, [decide_lost(sample.ledger, claim) for claim in found]) == {
        kept.id,
        left.id,
    }
    assert await store.expired(conn, now=after(9999)) == []


@every_sample
async def test_signs_of_life_are_answered_with_the_claims_that_hold(conn: Connection, sample: Sample) -> None:
    """T-36."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 3, now=NOW)
    claims = await claim_all(sample, conn)
    await store.move_one(conn, Move(verb="finish", claim=claims[0]))
    await store.move_one(conn, Move(verb="lose", claim=claims[1], fault=FAULT), now=after(11))
    assert await store.heartbeat(conn, claims) == {claims[2].id}
    assert await store.heartbeat(conn, []) == frozenset()


@every_sample
async def test_progress_leaves_the_row_where_it_is_and_is_told_to_the_journal(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    await store.enqueue(conn, sample.item(), now=NOW)
    claim = await claim_one(sample, conn)
    before, told = await sample.row(conn, claim.id), await sample.told(conn)
    await store.progress(conn, claim, 40, "half\x00way", now=after(11))
    row = await sample.row(conn, claim.id)
    changed = {name for name in row if row[name] != before[name]}
    lease = {sample.ledger.lease.column} if sample.ledger.lease else set[str]()
    assert changed == ({"updated_at"} if sample.ledger.journal else lease)
    events = (await sample.told(conn))[len(told) :]
    assert [(e["prev_status"], e["next_status"]) for e in events] == (
        [("running", "running")] if sample.ledger.journal else []
    )
    for event in events:
        assert event["detail_json"] == {
            "verb": "progress",
            "attempt": 0,
            "fence": 1,
            "worker": "w1",
            "progress": 40,
            "stage": "half\ufffdway",
        }
    for percent in (-1, 100.5, float("nan")):
        with pytest.raises(InvalidInput):
            await store.progress(conn, claim, percent)


# -- people ----------------------------------------------------------------------------------------------


@every_sample
async def test_a_filter_means_every_row_that_it_names_and_no_other(conn: Connection, sample: Sample) -> None:
    """T-28, T-29: each filter alone, by find, by count, by cancel and by requeue."""
    store, ledger = sample.store(), sample.ledger
    kinds = sample.kinds if ledger.kind else (None, None)
    ids = [(await store.enqueue(conn, sample.item(kind=kinds[n % 2]), now=after(n))).id for n in range(8)]
    filters: dict[str, tuple[Filter, list[Any]]] = {
        "everything": (Filter(), ids),
        "since": (Filter(created_after=after(5)), ids[5:]),
        "until": (Filter(created_before=after(5)), ids[:5]),
        "state": (Filter(states=(sample.legal["enqueue"][1], ledger.ends[0])), ids),
    }
    if ledger.kind:
        filters["kind"] = (Filter(kind=kinds[1]), ids[1::2])
    for which, expected in filters.values():
        page = await store.find(conn, which)
        assert [row.id for row in page.rows] == expected[::-1]
        assert sum(count.rows for count in await store.count(conn, which)) == len(expected)
        assert await store.cancel_where(conn, which, by="ana", now=after(20)) == len(expected)
        cancelled = await store.find(conn, Filter(states=(sample.legal["cancel"][1],)))
        assert [row.id for row in cancelled.rows] == expected[::-1]
        for key in ids:
            await sample.update(conn, key, **back_to_the_start(sample))


def back_to_the_start(sample: Sample) -> dict[str, Any]:
    columns = {sample.ledger.state: sample.legal["enqueue"][1]}
    return columns | ({sample.ledger.times.finished: None} if sample.ledger.times.finished else {})


@every_sample
async def test_bulk_orders_move_what_their_state_allows_and_skip_the_rest(
    conn: Connection, sample: Sample
) -> None:
    """T-28: more rows than one statement takes, some of them ended."""
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 2100, now=NOW)
    done = await claim_all(sample, conn, limit=3)
    await store.move(conn, [Move(verb="finish", claim=claim) for claim in done], now=after(11))
    running = await claim_all(sample, conn, limit=2)
    stays = 0 if running[0].state in sample.legal["cancel"][0] else 2
    assert await store.cancel_where(conn, Filter(), now=after(12)) == 2097 - stays
    assert await store.cancel_where(conn, Filter(), now=after(12)) == 0
    again = 2097 - stays if sample.legal["cancel"][1] in sample.legal["requeue"][0] else 0
    assert await store.requeue_where(conn, Filter(), now=after(13)) == again
    states = Counter(row[sample.ledger.state] for row in (await sample.rows(conn)).values())
    assert states[sample.legal["finish"][1]] == 3
    assert states[sample.legal["enqueue"][1] if again else sample.legal["cancel"][1]] == 2097 - stays


@every_sample
async def test_an_order_to_rows_in_a_state_that_does_not_exist_is_refused(
    conn: Connection, sample: Sample
) -> None:
    store = sample.store()
    for verb in (store.find, store.count, store.cancel_where, store.requeue_where):
        with pytest.raises(InvalidInput, match="nonsense"):
            await verb(conn, Filter(states=("nonsense",)))


@over(lambda sample: sample.ledger.tenant and sample.ledger.queue)
async def test_filters_know_owners_queues_and_tenants(conn: Connection, sample: Sample) -> None:
    store, other = sample.store(), "22222222-2222-4222-8222-222222222222"
    await store.enqueue(conn, sample.item(), now=NOW)
    claim = await claim_one(sample, conn, "w7")
    queued = await store.enqueue(conn, sample.item(queue="x"), now=NOW)
    theirs = await store.enqueue(conn, sample.item(tenant=other), now=NOW)
    for which, key in (
        (Filter(owner="w7"), claim.id),
        (Filter(queue="x"), queued.id),
        (Filter(tenant=other.upper()), theirs.id),
    ):
        assert [row.id for row in (await store.find(conn, which)).rows] == [key]
    with pytest.raises(InvalidInput, match="org_id"):
        await store.find(conn, Filter(tenant="not a uuid"))


@every_sample
async def test_filters_by_owner_find_the_rows_of_that_worker(conn: Connection, sample: Sample) -> None:
    store = sample.store()
    await store.enqueue_many(conn, [sample.item()] * 3, now=NOW)
    claims = await claim_all(sample, conn, "w7", 2)
    page = await store.find(conn, Filter(owner="w7"))
    assert {row.id for row in page.rows} == {claim.id for claim in claims}


@every_sample
async def test_pages_show_each_row_once_newest_first_also_where_times_are_equal(
    conn: Connection, sample: Sample
) -> None:
    """T-29."""
    store = sample.store()
    for moment in (0, 0.25, 0.25, 3):
        await store.enqueue_many(conn, [sample.item()] * 17, now=after(moment))
    seen: list[Row] = []
    cursor = None
    while True:
        page = await store.find(conn, limit=10, cursor=cursor)
        seen += page.rows
        assert len(page.rows) <= 10
        await store.enqueue(conn, sample.item(), now=after(99))  # newer rows do not shift the pages
        if (cursor := page.cursor) is None:
            break
    assert len({row.id for row in seen}) == len(seen) == 68
    assert [row.created for row in seen] == sorted((row.created for row in seen), reverse=True)


@every_sample
async def test_a_broken_cursor_or_limit_is_refused(conn: Connection, sample: Sample) -> None:
    for cursor in ("", "x", "bm9uc2Vuc2U=", "WzEsMl0=", "\ud800", "W10="):
        with pytest.raises(InvalidInput, match="cursor"):
            await sample.store().find(conn, cursor=cursor)
    for limit in (0, 101, -1):
        with pytest.raises(InvalidInput, match="limit"):
            await sample.store().find(conn, limit=limit)


@every_sample
async def test_counts_are_by_state_and_kind(conn: Connection, sample: Sample) -> None:
    """T-29."""
    store, kind = sample.store(), sample.kind or sample.ledger.name
    await store.enqueue_many(conn, [sample.item()] * 5, now=NOW)
    await claim_all(sample, conn, limit=2)
    if sample.ledger.kind:
        await store.enqueue(conn, sample.item(kind=sample.kinds[0]), now=NOW)
    counted = {(count.state, count.kind): count.rows for count in await store.count(conn)}
    first, running = sample.legal["enqueue"][1], sample.ledger.lifecycle.running
    assert counted == {(first, kind): 3, (running, kind): 2} | (
        {(first, sample.kinds[0]): 1} if sample.ledger.kind else {}
    )


@every_sample
async def test_an_error_is_stored_in_the_ledgers_own_shape_whatever_it_holds(
    conn: Connection, sample: Sample
) -> None:
    """The last line of "Bad input": U+0000, half surrogates and megabytes are absorbed."""
    store, ledger = sample.store(), sample.ledger
    await store.enqueue(conn, sample.item(), now=NOW)
    claim = await claim_one(sample, conn)
    nasty = "a\x00b\ud800c" + "x" * 3_000_000
    fault = replace(FAULT, code="C\x00" + "c" * 100, message=nasty, trace=nasty)
    await store.move_one(conn, Move(verb="reject", claim=claim, fault=fault))
    row = await sample.row(conn, claim.id)
    stored = [row[name] for name in error_columns(ledger.errors)]
    clean = "a\ufffdb\ufffdc" + "x" * 3_000_000
    match ledger.errors:
        case TextError(length=length):
            assert stored == [clean[:length]]
        case JsonError():
            assert stored == [{"code": "C\ufffd" + "c" * 100, "message": clean}]
        case CodeError():
            assert stored == ["C\ufffd" + "c" * 62, clean[:2048]]
            (*_, event) = await sample.told(conn)
            assert event["detail_json"]["error"]["message"] == clean[:2048]
        case _:
            assert stored == [clean, clean]
