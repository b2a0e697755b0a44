"""What the connectors ask of the engine, on a table that is not theirs: none of it knows `sync_jobs`.

Visits to houses: a time of their own beside that of the next try, one open visit of each kind a house, errors
as JSON with some of their history, and columns that a filter may name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from holdfast.engine.decide import decide
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.outcomes import Fail, Retry, Snooze
from holdfast.engine.roles import Attempts, Column, Due, Idempotency, JsonError, Key, Lane, Times
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Filter, Item, Move
from holdfast.errors import IdempotencyConflict, InvalidInput, LedgerError
from ledgers import NOW, Connection, after
from runtime.support import column, one, until

TABLE = """
create table visits (
    number bigint generated always as identity primary key,
    house text not null,
    purpose text not null,
    floor integer,
    since date,
    stage text not null check (stage in ('planned', 'there', 'done', 'off')),
    visitor text,
    turn bigint not null default 0,
    notes jsonb,
    planned_for timestamptz not null,
    again_at timestamptz,
    tries integer not null default 0,
    trouble jsonb,
    made_at timestamptz not null,
    begun_at timestamptz,
    over_at timestamptz
);
create unique index visits_open on visits (house, purpose) where stage in ('planned', 'there');
create index visits_first on visits (planned_for) where stage = 'planned' and again_at is null;
create index visits_again on visits (again_at) where stage = 'planned' and again_at is not null;
"""

VISITS = Ledger(
    name="visits",
    table="visits",
    key=Key("number", "bigint"),
    kind="purpose",
    payload="notes",
    state="stage",
    states=("planned", "there", "done", "off"),
    ends=("done", "off"),
    edges=(
        Edge("enqueue", to="planned"),
        Edge("claim", frm=("planned",), to="there"),
        Edge("finish", frm=("there",), to="done"),
        Edge("retry", frm=("there",), to="planned"),
        Edge("exhaust", frm=("there",), to="off"),
        Edge("reject", frm=("there",), to="off"),
        Edge("snooze", frm=("there",), to="planned"),
        Edge("release", frm=("there",), to="planned"),
        Edge("lose", frm=("there",), to="planned"),
        Edge("cancel", frm=("planned", "there"), to="off"),
        Edge("requeue", frm=("off",), to="planned"),
    ),
    lanes=(
        Lane("first", empty=("again_at",), due="planned_for", order=("planned_for",)),
        Lane("again", filled=("again_at",), due="again_at", order=("again_at",)),
    ),
    owner="visitor",
    fence="turn",
    extras=(Column("house", "text"), Column("floor", "integer"), Column("since", "date")),
    due=Due("again_at", first="planned_for"),
    attempts=Attempts("tries", limit=20, counts="starts"),
    errors=JsonError("trouble"),
    times=Times(created="made_at", started="begun_at", finished="over_at"),
    idempotency=Idempotency("purpose", scope=("house",), within=("planned", "there")),
)
STORE = Store(VISITS)
Connect = Callable[[], Awaitable[Connection]]
BLOCKED = (
    "select true from pg_locks join pg_stat_activity using (pid) where not granted"
    " and datname = current_database()"
)


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    found = await connect()
    await found.execute(TABLE)
    return found


def visit(house: str = "elm", purpose: str = "meter", **more: Any) -> Item:
    return Item(kind=purpose, extras={"house": house, **more.pop("extras", {})}, **more)


async def add(conn: Connection, *args: Any, store: Store = STORE, **more: Any) -> int:
    return (await store.enqueue(conn, visit(*args, **more), now=NOW)).id


async def row(conn: Connection, number: int) -> dict[str, Any]:
    return await one(conn, "select to_jsonb(v) from visits as v where number = %s", number)


async def due_times(conn: Connection, number: int) -> tuple[Any, Any]:
    """(first, next), in seconds after the lent clock."""
    seconds = "extract(epoch from {} - %(now)s)::float"
    query = f"select {seconds.format('planned_for')}, {seconds.format('again_at')} from visits "
    asked = {"now": NOW, "number": number}
    (found,) = await (await conn.execute((query + "where number = %(number)s").encode(), asked)).fetchall()
    return found


async def claimed(conn: Connection, at: float, store: Store = STORE) -> list[int]:
    return [claim.id for claim in await store.claim(conn, "w1", 10, now=after(at))]


async def taken(conn: Connection, at: float, store: Store = STORE) -> Claimed:
    (claim,) = await store.claim(conn, "w1", 10, now=after(at))
    return claim


# -- Due(first=) -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "first"),
    [({}, 0), ({"delay": 30.0}, 30), ({"run_at": NOW + timedelta(seconds=40)}, 40)],
    ids=["at once", "delay", "run_at"],
)
async def test_an_enqueue_fills_the_first_time_and_leaves_the_next_empty(
    conn: Connection, given: dict[str, Any], first: float
) -> None:
    """C-28: alone and among others; it is claimed at that time, and not before."""
    number = await add(conn, "elm", **given)
    others = [visit("oak"), visit("ash", **given), visit("fir", delay=5.0)]
    many = [receipt.id for receipt in await STORE.enqueue_many(conn, others, now=NOW)]
    assert await due_times(conn, number) == await due_times(conn, many[1]) == (first, None)
    assert [await due_times(conn, many[place]) for place in (0, 2)] == [(0, None), (5, None)]
    await conn.execute("delete from visits where number <> %s", [number])
    if first:
        assert await claimed(conn, first - 0.001) == []
    assert await claimed(conn, first) == [number]


async def test_rows_that_are_copied_in_have_a_first_time_too(conn: Connection) -> None:
    """It is never NULL, though COPY computes nothing."""
    plain = replace(VISITS, idempotency=None)
    assert await Store(plain).copy(conn, [visit("elm"), visit("oak")], now=NOW) == 2
    assert [await due_times(conn, n) for n in await column(conn, "select number from visits")] == [
        (0, None)
    ] * 2


@pytest.mark.parametrize(
    ("outcome", "wait"), [(Retry("no", after=7.0), 7), (Snooze(9), 9)], ids=["retry", "snooze"]
)
async def test_a_wait_is_written_to_the_next_time_and_the_first_stays(
    conn: Connection, outcome: Any, wait: float
) -> None:
    """C-28: and the claim after it clears the wait."""
    number = await add(conn, delay=30.0)
    claim = await taken(conn, 100)
    await STORE.move_one(conn, decide(VISITS, claim, outcome), now=after(100))
    assert await due_times(conn, number) == (30, 100 + wait)
    assert await claimed(conn, 99 + wait) == []
    assert await claimed(conn, 100 + wait) == [number]
    assert await due_times(conn, number) == (30, None)


@pytest.mark.parametrize("verb", ["release", "lose"])
async def test_what_is_given_back_is_due_as_it_was_at_first(conn: Connection, verb: Any) -> None:
    number = await add(conn, delay=30.0)
    claim = await taken(conn, 40)
    await STORE.move_one(conn, Move(verb=verb, claim=claim), now=after(41))
    assert await due_times(conn, number) == (30, None)
    assert await claimed(conn, 41) == [number]


async def test_a_requeue_keeps_the_first_time_and_forgets_the_next(conn: Connection) -> None:
    number = await add(conn, delay=30.0)
    claim = await taken(conn, 40)
    await STORE.move_one(conn, decide(VISITS, claim, Fail("no")), now=after(41))
    await conn.execute("update visits set again_at = %s", [after(1000)])
    await STORE.requeue(conn, number, now=after(50))
    assert await due_times(conn, number) == (30, None)
    assert await claimed(conn, 50) == [number]


@pytest.mark.parametrize(("first", "next"), [(100, 10), (10, 100)])
async def test_a_row_with_two_times_waits_for_both(conn: Connection, first: float, next: float) -> None:
    """C-28: others' SQL may write any pair of them."""
    number = await add(conn)
    await conn.execute("update visits set planned_for = %s, again_at = %s", [after(first), after(next)])
    assert await claimed(conn, 99) == []
    assert await claimed(conn, 100) == [number]


async def test_people_see_when_a_row_is_due(conn: Connection) -> None:
    """The next time where there is one, else the first."""
    number = await add(conn, delay=30.0)
    assert (await STORE.get(conn, number)).due == after(30)
    claim = await taken(conn, 40)
    await STORE.move_one(conn, decide(VISITS, claim, Snooze(20)), now=after(40))
    assert (await STORE.get(conn, number)).due == after(60)


# -- JsonError(history=) ---------------------------------------------------------------------------------


async def failed_runs(conn: Connection, history: int, runs: int) -> list[dict[str, Any]]:
    """The error after each of so many bad runs, a hundred seconds apart, each of which waits one second."""
    store = Store(replace(VISITS, errors=JsonError("trouble", history=history)))
    number, found = await add(conn, store=store), list[dict[str, Any]]()
    for run in range(1, runs + 1):
        claim = await taken(conn, 100 * run, store)
        outcome = Retry(f"run {run}", after=1.0, code=f"E{run}", facts={"seen": run})
        await store.move_one(conn, decide(store.ledger, claim, outcome), now=after(100 * run))
        found.append((await row(conn, number))["trouble"])
    return found


def run_of(n: int) -> dict[str, Any]:
    """What is told of the n-th run."""
    return {
        "code": f"E{n}",
        "message": f"run {n}",
        "seen": n,
        "attempts": n,
        "backoff_seconds": 1,
        "timestamp": after(100 * n).isoformat(),
    }


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        (1, [[1], [2], [3], [4], [5]]),
        (2, [[1], [1, 2], [2, 3], [3, 4], [4, 5]]),
        (3, [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]),
    ],
)
async def test_an_error_tells_of_the_last_so_many_runs(
    conn: Connection, history: int, kept: list[list[int]]
) -> None:
    """C-41: the last one whole, and in the order of time those before it; one run is a history of one."""
    for error, runs in zip(await failed_runs(conn, history, 5), kept, strict=True):
        assert error == {**run_of(runs[-1]), "history": [run_of(run) for run in runs]}


async def test_without_a_history_only_the_last_error_is_kept(conn: Connection) -> None:
    """Neither when nor after how many attempts: there is no one to compare it with."""
    assert (await failed_runs(conn, 0, 2))[-1] == {"code": "E2", "message": "run 2", "seen": 2}


@pytest.mark.parametrize("history", [1, 3])
@pytest.mark.parametrize(
    "odd", ['"text"', "7", "null", "[]", '[{"history": [1]}]', '{"history": "x"}', '{"history": {}}', "{}"]
)
async def test_an_error_that_others_have_written_does_not_stop_the_next(
    conn: Connection, history: int, odd: str
) -> None:
    """C-41: whatever stands there, the new one is told last."""
    store = Store(replace(VISITS, errors=JsonError("trouble", history=history)))
    number = await add(conn, store=store)
    await conn.execute("update visits set trouble = %s::jsonb", [odd])
    claim = await taken(conn, 1, store)
    await store.move_one(conn, decide(store.ledger, claim, Fail("no", code="E")), now=after(1))
    error = (await row(conn, number))["trouble"]
    assert (error["code"], error["history"][-1]["code"]) == ("E", "E")
    assert len(error["history"]) <= history


async def test_a_good_end_clears_the_history_and_a_wait_keeps_it(conn: Connection) -> None:
    store = Store(replace(VISITS, errors=JsonError("trouble", history=3)))
    await failed_runs(conn, 3, 2)
    claim = await taken(conn, 1000, store)
    await store.move_one(conn, decide(store.ledger, claim, Snooze(1)), now=after(1000))
    assert [run["code"] for run in (await row(conn, claim.id))["trouble"]["history"]] == ["E1", "E2"]
    claim = await taken(conn, 2000, store)
    await store.move_one(conn, Move(verb="finish", claim=claim), now=after(2000))
    assert (await row(conn, claim.id))["trouble"] is None


# -- Filter.extras ---------------------------------------------------------------------------------------


async def village(conn: Connection) -> dict[str, int]:
    return {
        "elm 1": await add(conn, "elm", extras={"floor": 1}),
        "elm 2": await add(conn, "elm", "boiler", extras={"floor": 2, "since": "2026-03-01"}),
        "oak 2": await add(conn, "oak", extras={"floor": 2}),
    }


@pytest.mark.parametrize(
    ("extras", "meant"),
    [
        (dict[str, Any](), ["elm 1", "elm 2", "oak 2"]),
        ({"house": "elm"}, ["elm 1", "elm 2"]),
        ({"floor": 2}, ["elm 2", "oak 2"]),
        ({"floor": "2"}, ["elm 2", "oak 2"]),
        ({"house": "elm", "floor": 2}, ["elm 2"]),
        ({"house": "ELM"}, list[str]()),
    ],
    ids=str,
)
async def test_a_filter_means_the_rows_whose_further_columns_have_these_values(
    conn: Connection, extras: dict[str, Any], meant: list[str]
) -> None:
    """C-44: to look for, to count, to call off and to let run again."""
    names = {number: name for name, number in (await village(conn)).items()}
    which = Filter(extras=extras)
    assert sorted(names[found.id] for found in (await STORE.find(conn, which)).rows) == meant
    assert sum(count.rows for count in await STORE.count(conn, which)) == len(meant)
    assert sum(stat.rows for stat in await STORE.stats(conn, which)) == len(meant)
    assert await STORE.cancel_where(conn, which, now=NOW) == len(meant)
    off = await column(conn, "select number from visits where stage = 'off'")
    assert sorted(names[number] for number in off) == meant
    assert await STORE.requeue_where(conn, which, now=NOW) == len(meant)
    assert await one(conn, "select count(*) from visits where stage = 'planned'") == 3


async def test_pages_of_a_filter_go_on_within_it(conn: Connection) -> None:
    for purpose in ("a", "b", "c"):
        for house in ("elm", "oak"):
            await add(conn, house, purpose)
    seen, cursor = list[int](), None
    while True:
        page = await STORE.find(conn, Filter(extras={"house": "elm"}), limit=1, cursor=cursor)
        seen += [found.id for found in page.rows]
        if (cursor := page.cursor) is None:
            break
    assert sorted(seen) == await column(conn, "select number from visits where house = 'elm' order by 1")


@pytest.mark.parametrize(
    ("extras", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"stage": "planned"}, "stage"),  # a column, but not one that an enqueue may fill
        ({"house) or true --": "x"}, "house) or true --"),
        ({"floor": "two"}, "floor"),
        ({"floor": 2**40}, "floor"),
        ({"house": "a\x00b"}, "house"),
    ],
    ids=str,
)
@pytest.mark.parametrize("verb", ["find", "cancel_where"])
async def test_a_filter_by_what_is_no_column_or_not_of_its_type_is_refused(
    conn: Connection, extras: dict[str, Any], field: str, verb: str
) -> None:
    """C-44, section 4: it is named, and nothing moves."""
    await village(conn)
    with pytest.raises(InvalidInput) as caught:
        await getattr(STORE, verb)(conn, Filter(extras=extras))
    assert caught.value.field == field
    assert await one(conn, "select count(*) from visits where stage = 'planned'") == 3


@pytest.mark.parametrize(
    ("extras", "field"),
    [
        ({"floor": 2.5}, "floor"),
        ({"floor": True}, "floor"),
        ({"house": 7}, "house"),
        ({"since": "never"}, "since"),
    ],
    ids=str,
)
async def test_a_filter_by_a_value_of_another_type_is_refused_and_not_made_to_fit(
    conn: Connection, extras: dict[str, Any], field: str
) -> None:
    """C-44, section 4: a bulk must not mean other rows than it says."""
    await village(conn)
    with pytest.raises(InvalidInput) as caught:
        await STORE.cancel_where(conn, Filter(extras=extras))
    assert caught.value.field == field


# -- Idempotency(column=<the kind>, within=) -------------------------------------------------------------


async def test_there_is_one_open_row_of_each_kind_in_a_scope(conn: Connection) -> None:
    """C-26, C-32: a second enqueue answers with the first, and writes nothing; another kind is free."""
    number = await add(conn)
    before = await row(conn, number)
    again = await STORE.enqueue(conn, visit(payload={"n": 2}, delay=5.0), now=after(9))
    assert (again.id, again.created) == (number, False)
    assert await row(conn, number) == before
    assert await add(conn, "elm", "boiler") != number
    assert await add(conn, "oak") != number
    assert await claimed(conn, 10)
    running = await STORE.enqueue(conn, visit(), now=after(10))
    assert (running.id, running.created) == (number, False)


@pytest.mark.parametrize("verb", ["finish", "reject"])
async def test_a_row_that_has_ended_stands_in_nobodys_way(conn: Connection, verb: Any) -> None:
    """Scenario: completed jobs do not block new ones; nor do failed ones."""
    number = await add(conn)
    claim = await taken(conn, 1)
    await STORE.move_one(conn, Move(verb=verb, claim=claim, fault=decide(VISITS, claim, Fail("no")).fault))
    receipt = await STORE.enqueue(conn, visit(), now=after(2))
    assert receipt.created
    assert receipt.id != number


async def test_of_a_bulk_with_repeats_each_is_one_row(conn: Connection) -> None:
    """Among themselves, and with what is there; the answers are in the order of the items."""
    number = await add(conn)
    items = [visit("oak"), visit(), visit("oak"), visit("elm", "boiler"), visit("oak", "boiler")]
    receipts = await STORE.enqueue_many(conn, items, now=after(1))
    assert [receipt.created for receipt in receipts] == [True, False, False, True, True]
    assert receipts[1].id == number
    assert receipts[2].id == receipts[0].id
    assert await one(conn, "select count(*) from visits") == 4


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (visit(key="k"), "key"),
        (Item(kind="meter"), "house"),
        (Item(kind="meter", extras={"house": None}), "house"),
        (Item(extras={"house": "elm"}), "purpose"),
    ],
    ids=["a key", "no scope", "an empty scope", "no kind"],
)
async def test_there_is_no_key_to_give_and_the_scope_must_be_given(
    conn: Connection, item: Item, field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await STORE.enqueue(conn, item)
    assert caught.value.field == field
    assert await one(conn, "select count(*) from visits") == 0


@pytest.mark.parametrize("commits", [True, False])
async def test_two_enqueues_at_once_make_one_row(conn: Connection, connect: Connect, commits: bool) -> None:
    """The second waits for the first: its row is the answer, or its place is free."""
    other, watcher = await connect(), await connect()
    async with conn.transaction(force_rollback=not commits):
        first = await STORE.enqueue(conn, visit(), now=NOW)
        second = asyncio.create_task(STORE.enqueue(other, visit(), now=NOW))
        await until(watcher, BLOCKED)
    receipt = await second
    assert receipt.created is not commits
    assert (receipt.id == first.id) is commits
    assert await one(conn, "select count(*) from visits") == 1


async def test_a_row_comes_back_only_to_a_place_that_is_free(conn: Connection) -> None:
    """C-44: else the conflict names who has it; in bulk it is passed over, and one of two goes."""
    numbers: list[int] = []
    for _ in range(2):
        numbers.append(await add(conn))
        await STORE.cancel(conn, numbers[-1], now=NOW)
    active = await add(conn)
    with pytest.raises(IdempotencyConflict) as caught:
        await STORE.requeue(conn, numbers[0])
    assert caught.value.fields["id"] == active
    assert await STORE.requeue_where(conn, Filter(states=("off",))) == 0
    await STORE.move_one(conn, Move(verb="finish", claim=await taken(conn, 1)))
    assert await STORE.requeue_where(conn, Filter(states=("off",))) == 1
    assert await column(conn, "select number from visits where stage = 'planned'") == [numbers[1]]


def test_a_declaration_whose_scope_is_no_column_of_its_own_is_refused() -> None:
    """Nobody could fill it."""
    with pytest.raises(LedgerError, match="house"):
        replace(VISITS, extras=())
