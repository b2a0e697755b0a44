"""What no column tells: turns and conditions of lanes, tables beside, tries, errors with their class.

On a table that is not ours: repairs that a workshop takes in. A repair that is in hand has a lease, and when
that is over the next one who claims takes it over; there is no column of ours but the mechanic's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL

from doctoring import ailing, examine
from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge, Verb
from holdfast.engine.outcomes import Crashed, Done, Ending, Fail, Retry, Snooze
from holdfast.engine.roles import Attempts, Lane, RowLease, TextError, Times, Tries
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Fault, Filter, Item, Move
from holdfast.errors import ClaimLost, IllegalEdge, InvalidInput, LedgerError
from holdfast.runtime.duties import Patience, sweeps
from ledgers import NOW, Connection, after
from runtime.support import column, one

Connect = Callable[[], Awaitable[Connection]]

TABLE: LiteralString = """
create table repairs (
    id uuid primary key default gen_random_uuid(),
    bike text not null,
    stage text not null default 'brought' check (stage in ('brought', 'in_hand', 'mended', 'scrapped')),
    mechanic text,
    since timestamptz,
    trouble varchar(60),
    brought_at timestamptz not null default now(),
    constraint held check ((mechanic is not null) = (stage = 'in_hand')),
    constraint told check ((trouble is not null) = (stage = 'scrapped'))
);
create index repairs_brought on repairs (brought_at, id) where stage = 'brought';
create index repairs_in_hand on repairs (brought_at, id) where stage = 'in_hand';
create index repairs_held on repairs (mechanic) where stage = 'in_hand';
create table parts (bike text primary key, there boolean not null);
create table visits (
    n bigint generated always as identity primary key,
    repair uuid not null references repairs on delete cascade,
    who text,
    began timestamptz not null,
    ended timestamptz,
    how text
);
"""

LEASE = 60.0
THERE: LiteralString = "not exists (select from parts as p where p.bike = t.bike and not p.there)"
LOST: LiteralString = (
    "select count(*) from visits as v where v.repair = t.id and coalesce(v.how, 'lost') = 'lost'"
)
STALE: LiteralString = "t.since < (select now from clock) - make_interval(secs => 60)"
BEGUN: LiteralString = """gone as (
    update visits as v set ended = m.now, how = 'lost'
    from moved as t join picked as m on m.key = t.id where v.repair = t.id and v.ended is null
),
begun as (
    insert into visits (repair, who, began)
    select t.id, %(worker)s, m.now from moved as t join picked as m on m.key = t.id
)"""
ENDED: LiteralString = """ended as (
    update visits as v set ended = m.now, how = """
OF_IT: LiteralString = """
    from moved as t join moves as m on m.key = t.id where v.repair = t.id and v.ended is null
)"""

REPAIRS = Ledger(
    name="repairs",
    table="repairs",
    kind=None,
    payload=("bike",),
    state="stage",
    states=("brought", "in_hand", "mended", "scrapped"),
    ends=("mended", "scrapped"),
    edges=(
        Edge("enqueue", to="brought"),
        Edge("claim", frm=("brought",), to="in_hand"),
        Edge("claim", frm=("in_hand",), to="in_hand"),
        Edge("finish", frm=("in_hand",), to="mended"),
        Edge("exhaust", frm=("in_hand",), to="scrapped"),
        Edge("reject", frm=("in_hand",), to="scrapped"),
        Edge("release", frm=("in_hand",), to="brought"),
        Edge("cancel", frm=("brought",), to="scrapped"),
        Edge("requeue", frm=("scrapped",), to="brought"),
    ),
    lanes=(
        Lane(
            "brought",
            states=("brought",),
            order=("brought_at", "id"),
            where=SQL(THERE),
            why="until its parts are there",
        ),
        Lane("stale", states=("in_hand",), order=("brought_at", "id"), turn=1, where=SQL(STALE)),
    ),
    owner="mechanic",
    lease=RowLease("since", seconds=LEASE, every=5),
    tries=Tries(SQL(LOST), limit=3),
    errors=TextError("trouble", length=60, coded=True, cleared_by_requeue=True),
    times=Times(created="brought_at"),
    cancelled_text="fetched unmended",
    beside={
        "claim": BEGUN,
        "finish": ENDED + "coalesce(m.result, 'mended')" + OF_IT,
        "exhaust": ENDED + "m.reason" + OF_IT,
        "reject": ENDED + "m.reason" + OF_IT,
        "release": ENDED + "'released'" + OF_IT,
        "requeue": "forgiven as (update visits as v set how = 'old' from moved as t where v.repair = t.id)",
    },
)
STORE = Store(REPAIRS)


@pytest.fixture
async def conn(connect: Connect) -> Connection:
    found = await connect()
    await found.execute(TABLE)
    return found


async def add(conn: Connection, *bikes: str) -> list[Any]:
    """Bikes that were brought one after the other."""
    items = [(Item(payload={"bike": bike}), after(place)) for place, bike in enumerate(bikes)]
    return [(await STORE.enqueue(conn, item, now=now)).id for item, now in items]


async def claim(
    conn: Connection, limit: int = 1, at: float = 100, who: str = "w1", store: Store = STORE, **how: Any
) -> list[Claimed]:
    return await store.claim(conn, who, limit, now=after(at), **how)


async def claimed(conn: Connection, limit: int = 9, at: float = 100, **how: Any) -> list[str]:
    """The bikes that a claim takes, in its order."""
    taken = await claim(conn, limit, at, **how)
    return [await one(conn, "select bike from repairs where id = %s", one_.id) for one_ in taken]


async def visits(conn: Connection) -> list[tuple[Any, ...]]:
    """Who began, when it ended in seconds of the lent clock, and how."""
    query = "select who, extract(epoch from ended - %s)::float, how from visits order by n"
    return await (await conn.execute(query, [NOW])).fetchall()


async def ended(conn: Connection, ending: Ending, at: float = 110) -> Verb:
    (held,) = await claim(conn, at=at)
    move = decide(REPAIRS, held, ending)
    await STORE.move_one(conn, move, now=after(at))
    return move.verb


# -- where and turn --------------------------------------------------------------------------------------


async def test_rows_for_which_the_condition_does_not_hold_are_passed_over(conn: Connection) -> None:
    """By claims and by what tells how many are ahead; when it holds, they are first again."""
    _, second, _ = await add(conn, "red", "blue", "green")
    await conn.execute("insert into parts values ('red', false)")
    assert await STORE.ahead(conn, second, kinds=["repairs"], now=after(100)) == 0
    assert await claimed(conn, 1) == ["blue"]
    await conn.execute("update parts set there = true")
    assert await claimed(conn) == ["red", "green"]


async def test_all_of_a_lower_turn_go_before_any_of_a_higher(conn: Connection) -> None:
    """However old these are; of one turn, the order decides."""
    await add(conn, "oldest", "older")
    await claim(conn, 9, at=0)
    await add(conn, "new", "newer")
    assert await claimed(conn, 1, at=200) == ["new"]
    assert await claimed(conn, 2, at=200) == ["newer", "oldest"]
    assert await claimed(conn, 9, at=200) == ["older"]


async def test_turns_count_also_for_the_place_in_line(conn: Connection) -> None:
    (stale,) = await add(conn, "old")
    await claim(conn, at=0)
    (new,) = await add(conn, "new")
    asked: dict[str, Any] = {"kinds": ["repairs"], "now": after(200)}
    assert await STORE.ahead(conn, new, **asked) == 0
    assert await STORE.ahead(conn, stale, **asked) == 1
    assert await STORE.head(conn, now=after(200)) == NOW


async def test_lanes_of_one_turn_are_merged_as_ever(conn: Connection) -> None:
    first, second = REPAIRS.lanes
    merged = Store(replace(REPAIRS, lanes=(first, replace(second, turn=0))))
    await add(conn, "oldest")
    await claim(conn, at=0)
    await add(conn, "new")
    await conn.execute("update repairs set brought_at = brought_at + interval '1 s' where bike = 'new'")
    assert await claimed(conn, 9, at=200, store=merged) == ["oldest", "new"]


# -- a held state that may be claimed --------------------------------------------------------------------


async def test_a_held_row_is_taken_over_when_its_lease_is_over_and_not_before(conn: Connection) -> None:
    await add(conn, "red")
    (first,) = await claim(conn, at=100)
    assert await claim(conn, at=160, who="w2") == []
    (second,) = await claim(conn, at=160.1, who="w2")
    assert first.owner
    assert second.owner
    assert (first.owner.split("/")[0], second.owner.split("/")[0]) == ("w1", "w2")
    assert await visits(conn) == [("w1", pytest.approx(160.1), "lost"), ("w2", None, None)]


async def test_who_lost_its_lease_writes_nothing_also_if_it_claims_the_row_again(conn: Connection) -> None:
    """Each claim has its own number: a worker does not pass the guard of its own older claim."""
    await add(conn, "red")
    (first,) = await claim(conn, at=100)
    (second,) = await claim(conn, at=200)
    assert first.fence != second.fence
    assert first.owner != second.owner
    for verb in ("finish", "reject", "release", "exhaust"):
        fault = Fault(code="LATE", message="late")
        assert await STORE.move(conn, [Move(verb=verb, claim=first, fault=fault)]) == frozenset()
    assert await STORE.heartbeat(conn, [first], now=after(210)) == frozenset()
    with pytest.raises(ClaimLost):
        await STORE.progress(conn, first)
    assert len(await visits(conn)) == 2
    await STORE.move_one(conn, Move(verb="finish", claim=second), now=after(220))
    assert await one(conn, "select stage from repairs") == "mended"
    assert (await visits(conn))[1] == ("w1", 220, "mended")


async def test_a_heartbeat_keeps_the_lease_and_the_state(conn: Connection) -> None:
    await add(conn, "red")
    (held,) = await claim(conn, at=100)
    assert await STORE.heartbeat(conn, [held], now=after(150)) == {held.id}
    assert await claim(conn, at=200, who="w2") == []
    assert len(await claim(conn, at=211, who="w2")) == 1


async def test_what_is_in_hand_is_left_out_though_its_lease_is_over(conn: Connection) -> None:
    """A worker that slept through its lease does not take over from itself what it still works on."""
    await add(conn, "red", "blue")
    held, _ = await claim(conn, 2, at=100)
    assert await claimed(conn, 9, at=300, in_hand=[held.id]) == ["blue"]
    assert await claimed(conn, 9, at=300) == ["red"]


async def test_a_row_that_is_held_does_not_wait(conn: Connection) -> None:
    """Statistics count it among those that are worked on."""
    await add(conn, "red", "blue")
    await claim(conn, 1)
    assert REPAIRS.lifecycle.waiting == ("brought",)
    assert set(REPAIRS.lifecycle.claimable) == {"brought", "in_hand"}
    assert REPAIRS.lifecycle.held == ("in_hand",)
    assert await STORE.held(conn) == {"w1": 1}


async def test_sweeps_leave_stale_rows_to_the_next_claim_until_too_many_were_lost(conn: Connection) -> None:
    """Whoever is dead: only the lease counts. The third lost worker is the last."""
    await add(conn, "red")
    duties = sweeps([STORE], Patience(timeout=0.0, nameless=0.0), every=1.0)

    async def sweep() -> int:
        return sum([await duty.run(conn, "leader") for duty in duties])

    for number in range(3):
        await conn.execute("update repairs set since = now() - interval '61 s' where stage = 'in_hand'")
        assert await sweep() == 0, number
        assert len(await STORE.claim(conn, f"w{number}", 1)) == 1
        assert await sweep() == 0, number
    await conn.execute("update repairs set since = now() - interval '61 s'")
    assert await sweep() == 1
    row = (await STORE.find(conn, Filter())).rows[0]
    assert (row.state, row.error) == ("scrapped", "worker_lost: gave up after 3 workers")
    assert [how for _, _, how in await visits(conn)] == [
        "lost",
        "lost",
        "worker_lost: gave up after 3 workers",
    ]
    assert await sweep() == 0


@pytest.mark.parametrize(
    ("attempts", "limit", "verb"),
    [(0, 3, None), (2, 3, None), (3, 3, "exhaust"), (4, 3, "exhaust"), (1, 1, "exhaust")],
)
def test_a_lost_row_without_a_lose_edge_is_given_up_at_its_limit(
    attempts: int, limit: int, verb: Verb | None
) -> None:
    ledger = replace(REPAIRS, tries=Tries(SQL(LOST), limit=limit))
    move = decide_lost(ledger, one_claim(attempts))
    assert (move and move.verb) == verb
    if move:
        assert move.fault
        assert move.fault.message == ("gave up after 1 worker" if limit == 1 else "gave up after 3 workers")
    assert decide_lost(replace(REPAIRS, tries=None), one_claim(attempts)) is None


def one_claim(attempts: int) -> Claimed:
    return Claimed(
        id="x",
        kind="repairs",
        payload=None,
        state="in_hand",
        owner="w1/1",
        fence=1,
        attempts=attempts,
        limit=3,
    )


# -- beside and tries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "stage", "how"),
    [
        (Done(), "mended", "mended"),
        (Done("polished"), "mended", "polished"),
        (Done({"cost": 5}), "mended", "mended"),
        (Fail("no such frame", code="GONE"), "scrapped", "gone: no such frame"),
        (Retry("busy"), "scrapped", "retry: busy"),
        (Crashed("ValueError", "oh"), "scrapped", "valueerror: oh"),
        (Snooze(0), "brought", "released"),
        (Snooze(5), "scrapped", "no_edge: the handler answered snooze, which repairs does not have"),
    ],
    ids=str,
)
async def test_a_move_and_what_it_writes_beside_are_one_statement(
    conn: Connection, ending: Ending, stage: str, how: str
) -> None:
    await add(conn, "red")
    await ended(conn, ending)
    assert await one(conn, "select stage from repairs") == stage
    assert await visits(conn) == [("w1", 110, how)]


async def test_what_cannot_be_written_beside_is_no_move_either(conn: Connection) -> None:
    await add(conn, "red")
    (held,) = await claim(conn)
    await conn.execute("alter table visits add check (how <> 'polished')")
    with pytest.raises(psycopg.errors.CheckViolation):
        await STORE.move(conn, [Move(verb="finish", claim=held, result="polished")])
    assert await one(conn, "select stage from repairs") == "in_hand"


async def test_several_moves_at_once_write_each_its_own_row_beside(conn: Connection) -> None:
    await add(conn, "red", "blue", "green")
    red, blue, green = await claim(conn, 3)
    fault = Fault(code="GONE", message="no wheel")
    moves = [
        Move(verb="finish", claim=red, result="polished"),
        Move(verb="reject", claim=blue, fault=fault),
        Move(verb="finish", claim=green),
    ]
    assert len(await STORE.move(conn, moves, now=after(130))) == 3
    assert [how for _, _, how in await visits(conn)] == ["polished", "gone: no wheel", "mended"]


async def test_a_count_beside_is_what_the_claim_tells_and_the_page_shows(conn: Connection) -> None:
    (number,) = await add(conn, "red")
    for count in range(3):
        (held,) = await claim(conn, at=100 * (count + 1))
        assert (held.attempts, held.limit) == (count, 3)
    row = await STORE.get(conn, number)
    assert (row.attempts, row.limit) == (3, 3)


async def test_a_person_that_lets_it_run_again_forgives_what_was_lost(conn: Connection) -> None:
    (number,) = await add(conn, "red")
    for at in (100, 200):
        await claim(conn, at=at)
    (held,) = await claim(conn, at=300)
    await STORE.move_one(conn, Move(verb="reject", claim=held, fault=Fault(code="BAD", message="rust")))
    await STORE.requeue(conn, number, by="ana")
    row = await STORE.get(conn, number)
    assert (row.state, row.error, row.attempts) == ("brought", None, 0)
    assert set(await column(conn, "select how from visits")) == {"old"}


# -- errors with their class -----------------------------------------------------------------------------


async def test_the_class_of_an_error_is_told_before_it_and_can_be_filtered_by(conn: Connection) -> None:
    first, _ = await add(conn, "red", "blue")
    await ended(conn, Fail("no such frame", code="GONE"))
    await ended(conn, Fail("x" * 100, code="RUST"))
    assert (await STORE.get(conn, first)).error == "gone: no such frame"
    assert await column(conn, "select length(trouble) from repairs order by brought_at") == [19, 60]
    for code, bikes in (("gone", ["red"]), ("rust", ["blue"]), ("x", []), ("go", [])):
        found = await STORE.find(conn, Filter(code=code))
        assert [row.columns["bike"] for row in found.rows] == bikes, code
    plain = Store(replace(REPAIRS, errors=TextError("trouble")))
    with pytest.raises(InvalidInput, match="no column for the class"):
        await plain.find(conn, Filter(code="gone"))


async def test_a_cancel_tells_its_reason_where_errors_have_a_class(conn: Connection) -> None:
    red, blue = await add(conn, "red", "blue")
    await STORE.cancel(conn, red, reason="sold")
    await STORE.cancel(conn, blue)
    assert (await STORE.get(conn, red)).error == "cancelled: sold"
    assert (await STORE.get(conn, blue)).error == "cancelled: fetched unmended"
    with pytest.raises(IllegalEdge):
        await STORE.cancel(conn, red)


@pytest.mark.parametrize(
    ("cleared", "verb"), [("cleared_by_requeue", "requeue"), ("cleared_by_finish", "finish")]
)
async def test_an_error_is_cleared_by_what_is_said_to_clear_it(
    conn: Connection, cleared: str, verb: Verb
) -> None:
    await conn.execute("alter table repairs drop constraint told")
    for clears in (True, False):
        await conn.execute("delete from repairs")
        errors = TextError("trouble", **{cleared: clears})
        store = Store(replace(REPAIRS, errors=errors))
        (number,) = await add(conn, "red")
        if verb == "requeue":
            await store.cancel(conn, number)
            await store.requeue(conn, number)
        else:
            await conn.execute("update repairs set trouble = 'fetched unmended'")
            (held,) = await claim(conn, store=store)
            await store.move_one(conn, Move(verb="finish", claim=held))
        assert (await store.get(conn, number)).error == (None if clears else "fetched unmended")


# -- doctor ----------------------------------------------------------------------------------------------


async def test_doctor_finds_it_healthy_and_both_lanes_have_their_index(conn: Connection) -> None:
    await conn.execute("alter table repairs drop constraint held, drop constraint told")
    diagnosis = await examine(conn, REPAIRS)
    assert ailing(diagnosis) == []
    assert [(lane.lane, lane.served) for lane in diagnosis.lanes] == [("brought", True), ("stale", True)]


async def test_doctor_misses_the_index_of_a_lane_with_a_condition(conn: Connection) -> None:
    await conn.execute("drop index repairs_in_hand")
    diagnosis = await examine(conn, REPAIRS)
    assert {lane.lane: lane.served for lane in diagnosis.lanes} == {"brought": True, "stale": False}


# -- declarations ----------------------------------------------------------------------------------------

BROUGHT, OVERDUE = REPAIRS.lanes
RETRY = Edge("retry", frm=("in_hand",), to="brought")
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a lane to held rows without a condition": (
        {"lanes": (BROUGHT, replace(OVERDUE, where=None))},
        "the lane 'stale' takes rows in 'in_hand', which workers hold: say `where`",
    ),
    "a lane to all rows without a condition": (
        {"lanes": (Lane("all", order=("brought_at",)),)},
        "the lane 'all' takes rows in 'in_hand', which workers hold: say `where`",
    ),
    "neither a lose edge nor a claim of held rows": (
        {"edges": tuple(e for e in REPAIRS.edges if e.frm != ("in_hand",) or e.verb != "claim")},
        "there is no 'lose' edge",
    ),
    "a lease that is renewed too seldom": (
        {"lease": RowLease("since", seconds=60, every=20.1)},
        "a lease must be renewed three times before it ends",
    ),
    "a lease that is never renewed": (
        {"lease": RowLease("since", seconds=60, every=-1)},
        "a lease must be renewed three times before it ends",
    ),
    "two counts": (
        {"attempts": Attempts("n", 3)},
        "either `attempts` or `tries` counts the runs, not both",
    ),
    "a retry without a count": (
        {"edges": (*REPAIRS.edges, RETRY), "tries": None},
        "a 'retry' edge needs `attempts` and an 'exhaust' edge",
    ),
    "a retry without a time": ({"edges": (*REPAIRS.edges, RETRY)}, "retry need a `due` column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_says_what_is_wrong(name: str) -> None:
    changes, sentence = WRONG[name]
    with pytest.raises(LedgerError) as wrong:
        replace(REPAIRS, **changes)
    assert any(sentence in problem for problem in wrong.value.problems), wrong.value.problems


def test_a_retry_whose_wait_is_written_beside_needs_no_column_for_it() -> None:
    beside: dict[Verb, LiteralString] = {**REPAIRS.beside, "retry": ENDED + "m.reason" + OF_IT}
    with_retry = replace(REPAIRS, edges=(*REPAIRS.edges, RETRY), beside=beside, errors=None)
    assert decide(with_retry, one_claim(0), Retry("busy")).verb == "retry"
    assert decide(with_retry, one_claim(2), Retry("busy")).verb == "exhaust"


def test_every_third_of_a_lease_is_often_enough() -> None:
    assert replace(REPAIRS, lease=RowLease("since", seconds=60, every=20)).lease
