"""A wrong declaration raises one error that lists everything that is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge, Lifecycle, mermaid
from holdfast.engine.roles import (
    Attempts,
    Column,
    Due,
    Idempotency,
    Journal,
    Key,
    Lane,
    Order,
    RowLease,
    Tenant,
    TextError,
    Times,
    uuid7,
)
from holdfast.engine.store import Store
from holdfast.errors import LedgerError
from ledgers import ERRANDS, PARCELS, SAMPLES, TASKS, Connection, Sample

EDGES = (
    Edge("enqueue", to="new"),
    Edge("claim", frm=("new",), to="busy"),
    Edge("finish", frm=("busy",), to="done"),
    Edge("reject", frm=("busy",), to="bad"),
    Edge("lose", frm=("busy",), to="new"),
)
RETRY = (Edge("retry", frm=("busy",), to="new"), Edge("exhaust", frm=("busy",), to="bad"))


def declare(**changes: Any) -> Ledger:
    """A small ledger that is right, but for the changes."""
    right: dict[str, Any] = {
        "name": "chores",
        "table": "chores",
        "states": ("new", "busy", "done", "bad"),
        "ends": ("done", "bad"),
        "edges": EDGES,
        "lanes": (Lane("all", order=("created_at",)),),
        "times": Times(created="created_at"),
        "owner": "owner",
        "errors": TextError("error"),
    }
    return Ledger(**(right | changes))


def problems(**changes: Any) -> tuple[str, ...]:
    with pytest.raises(LedgerError) as wrong:
        declare(**changes)
    return wrong.value.problems


def without(verb: str) -> tuple[Edge, ...]:
    return tuple(edge for edge in EDGES if edge.verb != verb)


def test_a_right_declaration_is_silent() -> None:
    assert declare().to("claim") == "busy"


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "Chores!"}, "the name 'Chores!' must be lower case"),
    ({"name": "c" * 41}, "at most 40"),
    ({"table": "a.b.c"}, "must be `table` or `schema.table`"),
    ({"table": ".chores"}, "must be `table` or `schema.table`"),
    ({"table": "items"}, "the table 'items' has a name that our statements use"),
    ({"table": "lane_all"}, "the table 'lane_all' has a name that our statements use"),
    (
        {"journal": Journal("told", "row", "seq", "at", "prev", "next", "detail")},
        "the table 'told' has a name",
    ),
    ({"state_type": "text); drop table x; --"}, "is not the name of a PostgreSQL type"),
    ({"key": Key("id", "uuid[]")}, "'uuid[]' is not the name of a PostgreSQL type"),
    ({"extras": (Column("a", "a b;"),)}, "'a b;' is not the name of a PostgreSQL type"),
    ({"tenant": Tenant("org", "")}, "'' is not the name of a PostgreSQL type"),
    ({"edges": without("enqueue")}, "there is no 'enqueue' edge"),
    ({"edges": without("claim")}, "there is no 'claim' edge"),
    ({"edges": without("finish")}, "there is no 'finish' edge"),
    ({"edges": without("lose")}, "there is no 'lose' edge"),
    ({"edges": without("reject")}, "there is no 'reject' edge"),
    ({"edges": (*EDGES, Edge("fly", frm=("new",), to="done"))}, "unknown verb 'fly'"),  # type: ignore[arg-type]
    ({"edges": (*EDGES, Edge("cancel", frm=("nowhere",), to="bad"))}, "names the state 'nowhere'"),
    ({"edges": (*EDGES, Edge("cancel", frm=("new",), via=("void",), to="bad"))}, "names the state 'void'"),
    ({"edges": (*EDGES, Edge("cancel", to="bad"))}, "comes from nowhere"),
    ({"edges": (*EDGES, Edge("cancel", frm=("new", "new"), to="bad"))}, "'cancel' from 'new' has several"),
    ({"edges": (*EDGES, Edge("enqueue", to="busy"))}, "a new row needs one state"),
    ({"edges": (*EDGES, Edge("lose", frm=("done",), to="bad"))}, "the 'lose' edges lead to several states"),
    ({"edges": (*EDGES, Edge("claim", frm=("busy",), to="busy"))}, "in 'busy', which workers hold"),
    ({"ends": ("done", "bad", "busy")}, "'busy' is both held and an end"),
    ({"ends": ("bad",)}, "'finish' leads to 'done', which is not among the ends"),
    ({"ends": ("done", "bad", "gone")}, "the end 'gone' is not among the states"),
    ({"states": ("new", "busy", "done", "bad", "new")}, "a state is listed twice"),
    ({"states": ("new", "busy", "done", "bad", "50%")}, "the state '50%' must not contain %"),
    (
        {"states": ("new", "busy", "done", "bad", "\x00")},
        r"the state '\x00' must not contain a NUL character",
    ),
    ({"table": "50%"}, "the table '50%' must be `table` or `schema.table`, each of 1 to 63 bytes without %"),
    ({"table": "a\x00"}, r"the table 'a\x00' must be"),
    ({"journal": Journal("50%", "row", "seq", "at", "prev", "next", "detail")}, "the table '50%' must be"),
    (
        {"edges": (*without("lose"), Edge("lose", frm=("new",), to="bad"))},
        "a row in 'busy' that loses its worker stays there for ever",
    ),
    ({"edges": (*EDGES, *RETRY), "errors": None}, "a 'retry' edge but no error column"),
    ({"edges": (*EDGES, *RETRY), "due": Due("due")}, "a 'retry' edge needs `attempts`"),
    ({"edges": (*EDGES, RETRY[0]), "attempts": Attempts("n", 3)}, "and an 'exhaust' edge"),
    ({"edges": (*EDGES, *RETRY), "attempts": Attempts("n", 3)}, "retry need a `due` column"),
    ({"edges": (*EDGES, Edge("snooze", frm=("busy",), to="new"))}, "snooze need a `due` column"),
    ({"attempts": Attempts("n", -1)}, "the limit of attempts must not be negative"),
    ({"lease": RowLease("at", 0)}, "the lease must last longer than 0 seconds"),
    ({"lanes": ()}, "there is no lane"),
    ({"lanes": (Lane("a", order=("x",)), Lane("a", order=("y",)))}, "two lanes have the same name"),
    ({"lanes": (Lane("A b", order=("x",)),)}, "the lane's name 'A b'"),
    ({"lanes": (Lane("a", order=("x",), states=("done",)),)}, "takes rows in 'done', from which no 'claim'"),
    ({"lanes": (Lane("a", order=()),)}, "the lane 'a' has no order"),
    ({"lanes": (Lane("a", order=("x upwards",)),)}, "cannot read the order 'x upwards'"),
    ({"lanes": (Lane("a", order=("x",)), Lane("b", order=("x", "y")))}, "orders of different length"),
    ({"lanes": (Lane("a", order=("x",)), Lane("b", order=("x desc",)))}, "run in different directions"),
    ({"due": Due("later")}, "the lane 'all' ignores 'later'"),
    ({"owner": "created_at"}, "the column 'created_at' is both owner and created"),
    ({"payload": ("a", "a")}, "the column 'a' is both payload and payload"),
    ({"owner": ""}, "owner: '' cannot be the name of a column"),
    ({"owner": "x" * 64}, "cannot be the name of a column"),
    ({"owner": "100%"}, "owner: '100%' cannot be the name of a column"),
    ({"idempotency": Idempotency("k", repeat="touch")}, "repeat='touch' needs keys that we make and an"),
    (
        {
            "idempotency": Idempotency("k", repeat="touch"),
            "journal": Journal("told_of", "row", "seq", "at", "prev", "next", "detail"),
        },
        "repeat='touch' would write an event",
    ),
    (
        {"idempotency": Idempotency("k", repeat="touch", within=("new",))},
        "repeat='touch' fits no key that is unique within",
    ),
    ({"idempotency": Idempotency("k", within=("nowhere",))}, "names the state 'nowhere'"),
    ({"idempotency": Idempotency("k", scope=("owner",))}, "has the scope 'owner', which no enqueue fills"),
]


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_a_wrong_declaration_says_what_is_wrong(changes: dict[str, Any], sentence: str) -> None:
    found = problems(**changes)
    assert any(sentence in problem for problem in found), found


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(LedgerError) as wrong:
        declare(
            name="Bad Name",
            table="a.b.c",
            edges=(*without("lose"), Edge("cancel", frm=("nowhere",), to="bad")),
            lanes=(Lane("A", order=("x sideways",)),),
            owner="created_at",
            lease=RowLease("at", -1),
        )
    assert len(wrong.value.problems) >= 7
    for sentence in ("Bad Name", "a.b.c", "'lose'", "'nowhere'", "'A'", "sideways", "created_at", "lease"):
        assert sentence in str(wrong.value)
    assert str(wrong.value).startswith("the ledger 'Bad Name' is declared wrongly:\n  - ")


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("a", Order("a")),
        ("a asc", Order("a")),
        ("a DESC", Order("a", descending=True)),
        ("a nulls last", Order("a", nulls_last=True)),
        ("a desc nulls last", Order("a", descending=True, nulls_last=True)),
    ],
)
def test_an_order_is_a_column_and_a_direction(text: str, order: Order) -> None:
    assert Order.parse(text) == order


@pytest.mark.parametrize("text", ["", "a b", "a desc b", "a desc nulls first", "a, b"])
def test_an_order_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Order.parse(text)


def test_new_keys_are_of_version_seven_and_grow_with_time() -> None:
    keys = [uuid7() for _ in range(1000)]
    assert {key.version for key in keys} == {7}
    assert {key.variant for key in keys} == {"specified in RFC 4122"}
    assert len(set(keys)) == 1000
    times = [key.int >> 80 for key in keys]
    assert times == sorted(times)


# -- the lifecycle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_the_lifecycle_answers_as_the_table_of_edges_says(sample: Sample) -> None:
    lifecycle = sample.ledger.lifecycle
    for state in sample.ledger.states:
        legal = {verb for verb, (frm, _) in sample.legal.items() if state in frm}
        assert set(lifecycle.verbs(state)) == legal
        for verb in legal:
            edge = lifecycle.edge(verb, state)
            assert edge is not None
            assert edge.to == sample.legal[verb][1]


def test_the_states_of_tasks_play_their_parts() -> None:
    lifecycle = TASKS.lifecycle
    assert (lifecycle.initial, lifecycle.waiting) == ("pending", ("pending",))
    assert (lifecycle.held, lifecycle.running) == (("claimed", "running"), "running")
    assert lifecycle.edge("finish", "pending") is None


def test_hops_pass_every_station() -> None:
    edge = Edge("enqueue", via=("new", "checked"), to="queued")
    assert edge.hops(None) == ((None, "new"), ("new", "checked"), ("checked", "queued"))


def test_the_diagram_shows_every_edge_once_with_its_verbs() -> None:
    lines = mermaid(ERRANDS.lifecycle).splitlines()
    assert lines[0] == "stateDiagram-v2"
    assert "    [*] --> queued: enqueue" in lines
    assert "    running --> failed: retry, exhaust, reject, lose" in lines
    assert "    failed --> queued: claim, requeue" in lines
    assert "    dead_letter --> [*]" in lines
    assert len(lines) == len(set(lines))


def test_an_empty_lifecycle_misses_every_edge_that_is_needed() -> None:
    missing = Lifecycle((), (), ()).problems()
    assert [problem.split("'")[1] for problem in missing] == ["enqueue", "claim", "finish", "reject"]


# -- names that could collide with ours ------------------------------------------------------------------

AWKWARD_DDL = '''
create schema "My Schema";
create table "My Schema"."select" (
    key bigint generated always as identity primary key,
    "t" text not null, "now" jsonb, "prev" text not null, "m" text, "unique_0" text unique,
    "due" timestamptz, "rank_0" timestamptz not null,
    "clock" int not null default 0, "fence" bigint not null default 0,
    "delay" text, "user's ""own""" text
);
create table "My Schema"."order" (
    "seq" bigint generated always as identity,
    "key" bigint, "at" timestamptz, "prev" text, "next" text, "detail" jsonb
);
'''

AWKWARD = Ledger(
    name="awkward",
    table="My Schema.select",
    key=Key("key", "bigint"),
    kind="t",
    payload="now",
    state="prev",
    states=("it's", 'so "named"', "do\\ne", "bad"),
    ends=("do\\ne", "bad"),
    edges=(
        Edge("enqueue", to="it's"),
        Edge("claim", frm=("it's",), to='so "named"'),
        Edge("finish", frm=('so "named"',), to="do\\ne"),
        Edge("retry", frm=('so "named"',), to="it's"),
        Edge("exhaust", frm=('so "named"',), to="bad"),
        Edge("reject", frm=('so "named"',), to="bad"),
        Edge("lose", frm=('so "named"',), to="it's"),
        Edge("cancel", frm=("it's", 'so "named"'), to="bad"),
    ),
    lanes=(
        Lane("now", empty=("due",), order=("rank_0",)),
        Lane("due", filled=("due",), due="due", order=("due",)),
    ),
    owner="m",
    fence="fence",
    due=Due("due"),
    attempts=Attempts("clock", limit=2),
    errors=TextError("delay"),
    extras=(Column('user\'s "own"', "text"),),
    idempotency=Idempotency("unique_0", repeat="return"),
    times=Times(created="rank_0"),
    journal=Journal(
        "My Schema.order", row="key", seq="seq", at="at", prev="prev", next="next", detail="detail"
    ),
)


@pytest.fixture
def database_url(ledgers_url: str) -> str:
    return ledgers_url


@pytest.fixture
async def passing(conn: Connection) -> AsyncIterator[Connection]:
    """A connection in a transaction that is rolled back: its tables are gone after the test."""
    async with conn.transaction(force_rollback=True):
        yield conn


async def test_a_table_whose_words_are_those_of_our_statements_works_all_the_same(
    passing: Connection,
) -> None:
    await passing.execute(AWKWARD_DDL)
    sample = Sample(ledger=AWKWARD, legal={})
    store = Store(AWKWARD)
    item = sample.item(key="k", extras={'user\'s "own"': "x"})
    first, again = await store.enqueue_many(passing, [item, item])
    assert (again.id, again.created) == (first.id, False)
    assert (await store.enqueue(passing, item)).id == first.id
    (claim,) = await store.claim(passing, "w1", 1)
    await store.progress(passing, claim, 1)
    assert await store.heartbeat(passing, [claim]) == {first.id}
    row = await store.get(passing, first.id)
    assert (row.state, row.payload, row.columns["t"], row.columns['user\'s "own"']) == (
        'so "named"',
        {"n": 1},
        "demo",
        "x",
    )
    await store.cancel(passing, first.id)
    told = await passing.execute('select prev, next from "My Schema"."order"')
    assert await told.fetchall() == [
        (None, "it's"),
        ("it's", 'so "named"'),
        ('so "named"', 'so "named"'),
        ('so "named"', "bad"),
    ]


async def test_a_qualified_table_may_have_any_name(passing: Connection) -> None:
    schema = (await (await passing.execute("select current_schema()")).fetchone() or ("",))[0]
    await passing.execute("alter table parcels rename to items")
    store = Store(replace(PARCELS, table=f"{schema}.items"))
    receipt = await store.enqueue(passing, Sample(ledger=PARCELS, legal={}).item())
    assert [claim.id for claim in await store.claim(passing, "w1", 1)] == [receipt.id]


async def test_a_rule_that_the_table_does_not_have_is_told_and_not_tried_for_ever(
    passing: Connection,
) -> None:
    """A trigger that drops rows silently: nothing is inserted, and nothing stands in the way."""
    await passing.execute(AWKWARD_DDL)
    await passing.execute(
        "create function drop_it() returns trigger language plpgsql as 'begin return null; end';"
        ' create trigger t before insert on "My Schema"."select" for each row execute function drop_it()'
    )
    with pytest.raises(Exception, match="awkward: a row is refused"):
        await Store(AWKWARD).enqueue(passing, Sample(ledger=AWKWARD, legal={}).item(key="k"))
