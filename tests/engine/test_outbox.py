"""A ledger without an owner column: a claim is a lock, held by the transaction that tells the row's end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from psycopg.sql import SQL

from doctoring import ailing, examine
from holdfast.engine.decide import decide
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge, Verb
from holdfast.engine.outcomes import Cancel, Crashed, Done, Ending, Fail, Retry, Snooze
from holdfast.engine.roles import Attempts, Idempotency, Journal, Lane, RowLease, TextError
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Filter, Item, Move
from holdfast.errors import (
    ClaimLost,
    IdempotencyConflict,
    IllegalEdge,
    InvalidInput,
    LedgerError,
    NotFound,
)
from holdfast.runtime.duties import Patience, sweeps
from ledgers import NOW, Connection, after
from outbox import CARDS, STORE, TABLE, card, stages, tries
from runtime.support import Gate, one, until

Connect = Callable[[], Awaitable[Connection]]
FOREIGN = "select name from cards where stage = 'waiting' order by written_at, name limit %s"
LOCKED = SQL(FOREIGN + " for update skip locked")
WAITS = (
    "select true from pg_locks join pg_stat_activity using (pid) where not granted"
    " and datname = current_database()"
)


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    found = await connect()
    await found.execute(TABLE)
    return found


async def add(conn: Connection, *names: str) -> None:
    """Cards that were written one after the other."""
    for place, name in enumerate(names):
        await STORE.enqueue(conn, card(name), now=after(place))


async def take(conn: Connection, limit: int = 1, at: float = 100, store: Store = STORE) -> list[str]:
    return [claim.id for claim in await store.claim(conn, "w1", limit, now=after(at))]


async def taken(conn: Connection, at: float = 100) -> Claimed:
    (claim,) = await STORE.claim(conn, "w1", 1, now=after(at))
    return claim


async def ended(conn: Connection, ending: Ending, at: float = 100) -> Verb:
    """Takes the first card and tells its end; answers with the verb that was written."""
    async with conn.transaction():
        move = decide(CARDS, await taken(conn, at), ending)
        await STORE.move_one(conn, move, now=after(at))
    return move.verb


# -- the claim -------------------------------------------------------------------------------------------


async def test_a_claim_locks_the_first_row_and_writes_nothing(conn: Connection) -> None:
    await add(conn, "first", "second")
    version = "select xmin::text || to_jsonb(c)::text from cards as c where name = 'first'"
    before = await one(conn, version)
    async with conn.transaction():
        claim = await taken(conn)
        assert (claim.id, claim.kind, claim.state) == ("first", "cards", "waiting")
        assert (claim.owner, claim.fence, claim.attempts, claim.limit) == (None, 0, 0, 3)
        assert claim.payload == '{"words": "hello", "receiver": "ana"}'
        assert claim.waited == 100
    assert await one(conn, version) == before


async def test_two_connections_pass_over_what_the_other_has_locked(
    conn: Connection, connect: Connect
) -> None:
    await add(conn, "a", "b", "c")
    other, third = await connect(), await connect()
    async with conn.transaction(), other.transaction(), third.transaction():
        assert await take(conn) == ["a"]
        assert await take(other, 2) == ["b", "c"]
        assert await take(third, 10) == []


async def test_a_lock_ends_with_its_transaction_however_that_ends(conn: Connection, connect: Connect) -> None:
    await add(conn, "a")
    for ends in ("commit", "rollback", "a dead session"):
        holder = await connect()
        await holder.execute("begin")
        assert await take(holder) == ["a"], ends
        assert await take(conn) == [], ends
        if ends == "a dead session":
            await conn.execute("select pg_terminate_backend(%s, 10000)", [holder.info.backend_pid])
        else:
            await holder.execute(SQL(ends))
        assert await take(conn) == ["a"], ends


async def test_another_program_and_we_pass_over_each_others_rows(conn: Connection, connect: Connect) -> None:
    await add(conn, "a", "b", "c")
    foreign = await connect()
    async with conn.transaction(), foreign.transaction():
        assert await (await foreign.execute(LOCKED, [1])).fetchall() == [("a",)]
        assert await take(conn) == ["b"]
        assert await (await foreign.execute(LOCKED, [10])).fetchall() == [("a",), ("c",)]
        await foreign.execute("update cards set stage = 'sent', sent_at = now() where name = 'a'")
    assert await take(conn, 10) == ["b", "c"]


@pytest.mark.parametrize(
    "ending", [Retry("busy", after=50.0), Done(), Fail("no")], ids=["put off", "sent", "back"]
)
async def test_a_row_that_is_told_while_a_claim_looks_at_it_is_not_taken(
    conn: Connection, connect: Connect, ending: Ending
) -> None:
    """What a claim read before it had the lock may be old news: it looks again when it has it."""
    await add(conn, "a", "b")
    gate = Gate(await connect())
    await gate.close()
    await conn.execute("""
        create function gate() returns boolean language plpgsql as $$ begin
            perform pg_advisory_lock_shared(7); perform pg_advisory_unlock_shared(7); return true;
        end $$
    """)
    (lane,) = CARDS.lanes
    assert lane.where
    slow = Store(replace(CARDS, lanes=(replace(lane, where=lane.where + SQL(" and gate()")),)))
    holder, late = await connect(), await connect()
    await holder.execute("begin")
    claim = await taken(holder)
    async with asyncio.TaskGroup() as group, late.transaction():
        looking = group.create_task(slow.claim(late, "w2", 1, now=after(101)))
        await until(conn, WAITS)
        await STORE.move_one(holder, decide(CARDS, claim, ending), now=after(101))
        await holder.execute("commit")
        await gate.open()
        assert [found.id for found in await looking] == ["b"]
    if isinstance(ending, Retry):
        assert [(found.id, found.attempts) for found in await STORE.claim(conn, "w1", 1, now=after(151))] == [
            ("a", 1)
        ]


# -- moves -----------------------------------------------------------------------------------------------

LEGAL: dict[tuple[str, Verb], str] = {
    ("waiting", "finish"): "sent",
    ("waiting", "retry"): "waiting",
    ("waiting", "exhaust"): "back",
    ("waiting", "reject"): "back",
    ("waiting", "cancel"): "back",
}
PERSONS: dict[tuple[str, Verb], str] = {("waiting", "cancel"): "back", ("back", "requeue"): "waiting"}
BY_WORKERS: tuple[Verb, ...] = (
    *("finish", "retry", "exhaust", "reject", "cancel"),
    *("start", "snooze", "release", "lose", "requeue"),
)


async def put(conn: Connection, stage: str) -> Claimed:
    """A card in this stage, and the claim of somebody who took it while it waited."""
    await add(conn, "a")
    async with conn.transaction():
        claim = await taken(conn)
    sent = NOW if stage == "sent" else None
    await conn.execute("update cards set stage = %s, sent_at = %s", [stage, sent])
    return claim


@pytest.mark.parametrize("stage", CARDS.states)
@pytest.mark.parametrize("verb", BY_WORKERS)
async def test_a_worker_moves_a_row_along_its_edges_only(conn: Connection, verb: Verb, stage: str) -> None:
    """With the row beside that the verb writes; a move that finds no row writes none."""
    claim = await put(conn, stage)
    move = Move(verb=verb, claim=claim, delay=5, fault=Fault(code="LATE", message="no train"), result="ok")
    moved = await STORE.move(conn, [move], now=after(100))
    if (stage, verb) in LEGAL:
        assert moved == {"a"}
        said = "ok" if verb == "finish" else "late: no train"
        assert await tries(conn, "a") == [(said, verb == "retry")]
    else:
        assert moved == frozenset()
        assert await tries(conn, "a") == []
        with pytest.raises(ClaimLost):
            await STORE.move_one(conn, move)
    assert await stages(conn) == {"a": LEGAL.get((stage, verb), stage)}


@pytest.mark.parametrize("stage", CARDS.states)
@pytest.mark.parametrize("verb", ["cancel", "requeue"])
async def test_a_person_moves_a_row_along_its_edges_only(conn: Connection, verb: Verb, stage: str) -> None:
    await put(conn, stage)
    order = STORE.cancel if verb == "cancel" else STORE.requeue
    if (stage, verb) in PERSONS:
        await order(conn, "a", by="ana")
    else:
        with pytest.raises(IllegalEdge):
            await order(conn, "a", by="ana")
    assert await stages(conn) == {"a": PERSONS.get((stage, verb), stage)}
    with pytest.raises(NotFound):
        await order(conn, "nobody")


async def test_only_a_row_that_ended_well_has_the_time_of_its_end(conn: Connection) -> None:
    await add(conn, "a", "b", "c")
    assert await ended(conn, Done()) == "finish"
    assert await ended(conn, Fail("no such house")) == "reject"
    await STORE.cancel(conn, "c")
    rows = await (await conn.execute("select name, sent_at from cards order by name")).fetchall()
    assert rows == [("a", after(100)), ("b", None), ("c", None)]
    assert (await STORE.get(conn, "a")).finished == after(100)


async def test_a_row_that_is_being_told_is_called_off_afterwards_or_not_at_all(
    conn: Connection, connect: Connect
) -> None:
    """A cancel waits for the lock: what was sent stays sent, what was put off is called off."""
    for ending, stage in ((Done(), "sent"), (Retry("busy"), "back")):
        await conn.execute("delete from cards")
        await add(conn, "a")
        holder, person = await connect(), await connect()
        await holder.execute("begin")
        move = decide(CARDS, await taken(holder), ending)
        cancelling = asyncio.create_task(STORE.cancel(person, "a"))
        await until(conn, WAITS)
        await STORE.move_one(holder, move, now=after(100))
        await holder.execute("commit")
        if stage == "sent":
            with pytest.raises(IllegalEdge):
                await cancelling
        else:
            await cancelling
        assert await stages(conn) == {"a": stage}


# -- tries -----------------------------------------------------------------------------------------------


async def test_bad_runs_wait_ever_longer_and_the_last_one_ends_the_row(conn: Connection) -> None:
    """The wait is written beside; others go first meanwhile."""
    await add(conn, "a")
    assert await ended(conn, Retry("busy"), at=100) == "retry"
    assert await take(conn, at=159) == []
    await add(conn, "b")
    assert await take(conn, at=159) == ["b"]
    await conn.execute("delete from cards where name = 'b'")
    assert await ended(conn, Crashed("ValueError", "oh"), at=160) == "retry"
    assert await take(conn, at=160 + 119) == []
    assert await ended(conn, Crashed("ValueError", "oh"), at=160 + 120) == "exhaust"
    assert await stages(conn) == {"a": "back"}
    said = [("retry: busy", True), ("valueerror: oh", True), ("valueerror: oh", False)]
    assert await tries(conn, "a") == said
    row = await STORE.get(conn, "a")
    assert (row.attempts, row.limit, row.owner, row.error) == (2, 3, None, None)


async def test_a_requeued_row_has_all_its_tries_again(conn: Connection) -> None:
    await add(conn, "a")
    for at in (100, 200):
        await ended(conn, Retry("busy"), at=at)
    await STORE.cancel(conn, "a", reason="enough")
    await STORE.requeue(conn, "a")
    assert (await STORE.get(conn, "a")).attempts == 0
    assert await ended(conn, Retry("busy"), at=201) == "retry"
    assert (await STORE.get(conn, "a")).attempts == 1


@pytest.mark.parametrize(
    ("ending", "verb", "said"),
    [
        (Done("a receipt"), "finish", "a receipt"),
        (Done({"not": "a text"}), "finish", None),
        (Done(), "finish", None),
        (Retry("b" * 5000), "retry", None),
        (Fail("never", code="GONE"), "reject", "gone: never"),
        (Cancel("not mine"), "cancel", "cancelled: not mine"),
        (Snooze(5), "reject", "no_edge: the handler answered snooze, which cards does not have"),
        (Snooze(0), "reject", "no_edge: the handler answered snooze, which cards does not have"),
        (Crashed("TIMEOUT", "timed out"), "retry", "timeout: timed out"),
    ],
)
async def test_every_ending_has_a_verb_and_is_told_beside(
    conn: Connection, ending: Ending, verb: Verb, said: str | None
) -> None:
    await add(conn, "a")
    assert await ended(conn, ending) == verb
    ((found, _),) = await tries(conn, "a")
    if isinstance(ending, Retry):
        assert found
        assert found.startswith("retry: bbb")
        assert len(found) < 5000
    else:
        assert found == said


# -- what people see -------------------------------------------------------------------------------------


async def test_nobody_holds_anything_and_every_look_works(conn: Connection) -> None:
    await add(conn, "a", "b")
    await conn.execute("begin")
    claim = await taken(conn)
    assert await STORE.held(conn) == {}
    assert await STORE.expired(conn, now=after(10_000)) == []
    assert await STORE.heartbeat(conn, [claim]) == {"a"}
    await STORE.progress(conn, claim, 50, "half")
    await STORE.move_one(conn, decide(CARDS, claim, Done()), now=after(100))
    assert await STORE.heartbeat(conn, [claim]) == frozenset()
    with pytest.raises(ClaimLost):
        await STORE.progress(conn, claim, 60)
    await conn.execute("commit")
    assert {stat.state: stat.rows for stat in await STORE.depth(conn) if stat.rows} == {
        "waiting": 1,
        "sent": 1,
    }
    assert [row.id for row in (await STORE.find(conn, Filter(states=("sent",)))).rows] == ["a"]
    assert (await STORE.find(conn, Filter(owner="w1"))).rows == ()
    assert await STORE.ahead(conn, "b", kinds=["cards"], now=after(100)) == 0
    assert await STORE.head(conn, now=after(100)) == after(1)


async def test_a_locked_row_tells_who_has_it(conn: Connection, connect: Connect) -> None:
    await add(conn, "a")
    holder = await connect()
    async with holder.transaction():
        await taken(holder)
        touch = await STORE.touched(conn, "a")
        assert touch
        assert (touch.locked, touch.pid) == (True, holder.info.backend_pid)
    touch = await STORE.touched(conn, "a")
    assert touch
    assert not touch.locked


async def test_no_sweep_touches_an_outbox(conn: Connection) -> None:
    """A lock ends with its worker: there is nothing to give back, whoever is gone, and however long."""
    await add(conn, "a")
    before = await one(conn, "select to_jsonb(c)::text from cards as c")
    patience = Patience(timeout=0, nameless=0)
    for duty in sweeps([STORE], patience, every=1.0):
        assert await duty.run(conn, "w1") == 0, duty.name
    assert await one(conn, "select to_jsonb(c)::text from cards as c") == before


async def test_a_person_may_order_by_a_filter(conn: Connection) -> None:
    await add(conn, "a", "b")
    assert await STORE.cancel_where(conn, Filter(states=("waiting",)), by="ana", reason="old") == 2
    assert await tries(conn, "b") == [("cancelled: cancelled", False)]
    assert await STORE.requeue_where(conn, Filter()) == 2
    assert set((await stages(conn)).values()) == {"waiting"}


# -- new rows --------------------------------------------------------------------------------------------


async def test_whoever_adds_a_row_names_it_and_a_repeat_is_the_row_that_is_there(conn: Connection) -> None:
    made = await STORE.enqueue(conn, card("a"))
    again = await STORE.enqueue(conn, card("a", words="other words"))
    assert (made.id, made.created, again.id, again.created) == ("a", True, "a", False)
    many = await STORE.enqueue_many(conn, [card("b"), card("a"), card("b")])
    assert [(one.id, one.created) for one in many] == [("b", True), ("a", False), ("b", False)]
    assert await one(conn, "select words from cards where name = 'a'") == "hello"


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (Item(payload={"receiver": "ana"}), "key"),
        (Item(key="", payload={"receiver": "ana"}), "name"),
        (Item(key="nul\0", payload={"receiver": "ana"}), "name"),
        (Item(key="a", kind="letter"), "kind"),
        (Item(key="a", delay=5.0), "delay"),
        (Item(key="a", limit=5), "limit"),
    ],
    ids=["no name", "an empty one", "an odd one", "a kind", "a delay", "a limit"],
)
async def test_what_an_outbox_cannot_take_is_refused(conn: Connection, item: Item, field: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        await STORE.enqueue(conn, item)
    assert wrong.value.fields["field"] == field
    with pytest.raises(InvalidInput):
        await STORE.copy(conn, [card("a")])


async def test_two_that_add_one_row_at_once_add_one(conn: Connection, connect: Connect) -> None:
    other = await connect()
    await conn.execute("begin")
    first = await STORE.enqueue(conn, card("a"))
    adding = asyncio.create_task(STORE.enqueue(other, card("a")))
    watch = await connect()
    await until(watch, WAITS)
    await conn.execute("commit")
    assert (first.created, (await adding).created) == (True, False)


# -- doctor ----------------------------------------------------------------------------------------------


async def test_doctor_finds_an_outbox_healthy(conn: Connection) -> None:
    """It asks for no owner, no fence, no lease, no index of held rows, and no default of a key."""
    diagnosis = await examine(conn, CARDS)
    assert ailing(diagnosis) == []
    assert [(lane.lane, lane.served) for lane in diagnosis.lanes] == [("waiting", True)]
    assert "no owner column: a claim is a lock, and ends with its worker" in [
        finding.what for finding in diagnosis.findings
    ]


async def test_doctor_still_tells_what_an_outbox_misses(conn: Connection) -> None:
    await conn.execute("drop index cards_waiting")
    (finding,) = ailing(await examine(conn, CARDS))
    assert finding.remedy_sql
    await conn.execute(SQL(finding.remedy_sql))  # type: ignore[arg-type]
    assert ailing(await examine(conn, CARDS)) == []
    unnamed = replace(CARDS, idempotency=None)
    (finding,) = ailing(await examine(conn, unnamed))
    assert "the column name (key) has no default" in finding.what
    await conn.execute(
        "alter table cards drop constraint sent, add check ((sent_at is null) = (stage = 'sent'))"
    )
    assert any("sent_at" in finding.what for finding in ailing(await examine(conn, CARDS)))


# -- declarations ----------------------------------------------------------------------------------------


def edges(*more: Edge, without: Iterable[str] = ()) -> tuple[Edge, ...]:
    return (*(edge for edge in CARDS.edges if edge.verb not in without), *more)


LOCK = "without an owner column a claim is a lock"
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a fence": ({"fence": "turn"}, LOCK),
    "a lease": ({"lease": RowLease("at", 60)}, LOCK),
    "a claim that moves": (
        {
            "states": (*CARDS.states, "held"),
            "edges": edges(Edge("claim", frm=("waiting",), to="held"), without=["claim"]),
        },
        LOCK,
    ),
    "an owner": ({"owner": "who"}, "fits no ledger with an owner column"),
    "no reject": ({"edges": edges(without=["reject"])}, "there is no 'reject' edge"),
    "no count": ({"tries": None}, "a 'retry' edge needs `attempts`"),
    "two counts": ({"attempts": Attempts("n", 3)}, "either `attempts` or `tries` counts the runs"),
    "no place for the wait": ({"beside": {}}, "retry need a `due` column"),
    "no place for the error": ({"beside": {}}, "a 'retry' edge but no error column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_says_what_is_wrong(name: str) -> None:
    changes, sentence = WRONG[name]
    with pytest.raises(LedgerError) as wrong:
        replace(CARDS, **changes)
    assert any(sentence in problem for problem in wrong.value.problems), wrong.value.problems


def test_an_outbox_needs_no_edge_for_lost_workers_and_one_run_may_be_all() -> None:
    once = replace(
        CARDS, edges=edges(without=["retry", "exhaust", "cancel", "requeue"]), tries=None, beside={}
    )
    assert once.lifecycle.held == ()
    assert once.lifecycle.waiting == ("waiting",)
    claim = Claimed(
        id="a", kind="cards", payload=None, state="waiting", owner=None, fence=0, attempts=0, limit=None
    )
    assert decide(once, claim, Retry("busy")).verb == "reject"


# -- with more columns -----------------------------------------------------------------------------------

WITH_MORE = """
alter table cards add queue text not null default 'default', add kind text, add trouble text,
    add n integer not null default 0, add due_at timestamptz;
create table card_events (
    seq bigint generated always as identity, card text not null, at timestamptz not null,
    prev text, next text not null, detail jsonb
);
"""


def fuller() -> Ledger:
    """An outbox that uses what other ledgers do: kinds, queues, errors, a journal."""
    return replace(
        CARDS,
        kind="kind",
        queue="queue",
        errors=TextError("trouble", coded=True, cleared_by_requeue=True, cleared_by_finish=True),
        journal=Journal("card_events", "card", "seq", "at", "prev", "next", "detail"),
    )


async def test_an_outbox_may_have_kinds_queues_errors_and_a_journal(conn: Connection) -> None:
    await conn.execute(WITH_MORE)
    store = Store(fuller())
    for name, kind, queue in (("a", "post", "default"), ("b", "mail", "default"), ("c", "post", "slow")):
        item = replace(card(name), kind=kind, queue=queue)
        await store.enqueue(conn, item, now=NOW)
    assert [c.id for c in await store.claim(conn, "w", 9, now=after(9))] == ["a", "b"]
    assert [c.id for c in await store.claim(conn, "w", 9, kinds=["mail"], now=after(9))] == ["b"]
    (slow,) = await store.claim(conn, "w", 9, queues=["slow"], now=after(9))
    assert slow.id == "c"
    async with conn.transaction():
        (claim,) = await store.claim(conn, "w", 1, now=after(9))
        await store.progress(conn, claim, 50)
        await store.move_one(conn, decide(store.ledger, claim, Fail("none", code="GONE")), now=after(9))
    assert (await store.get(conn, "a")).error == "gone: none"
    assert [row.id for row in (await store.find(conn, Filter(code="gone"))).rows] == ["a"]
    await store.requeue(conn, "a", by="ana")
    assert (await store.get(conn, "a")).error is None
    told = [(event.prev, event.next) for event in await store.timeline(conn, "a")]
    assert told == [(None, "waiting"), ("waiting", "back"), ("back", "waiting")]


async def test_the_only_lane_may_name_its_states(conn: Connection) -> None:
    await add(conn, "a")
    named = replace(CARDS, lanes=(Lane("waiting", states=("waiting",), order=("written_at", "name")),))
    assert await take(conn, store=Store(named)) == ["a"]


async def test_an_idempotency_rule_on_the_key_may_refuse_or_ignore(conn: Connection) -> None:
    await add(conn, "a")
    ignoring = Store(replace(CARDS, idempotency=Idempotency("name", repeat="ignore")))
    assert (await ignoring.enqueue(conn, card("a"))).created is False
    refusing = Store(replace(CARDS, idempotency=Idempotency("name", repeat="refuse")))
    with pytest.raises(IdempotencyConflict):
        await refusing.enqueue(conn, card("a"))
