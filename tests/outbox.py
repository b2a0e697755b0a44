"""An outbox of the tests' own, which another program drains as well: here a claim is a row lock.

Cards to people: whoever writes one names it, tries are kept in a table beside, and no column tells an owner.
"""

from __future__ import annotations

from typing import Any, LiteralString

from psycopg.sql import SQL

from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge
from holdfast.engine.roles import Idempotency, Key, Lane, Times, Tries
from holdfast.engine.store import Store
from holdfast.engine.values import Item

TABLE: LiteralString = """
create table cards (
    name text primary key,
    receiver text not null,
    words text,
    stage text not null default 'waiting' check (stage in ('waiting', 'sent', 'back')),
    written_at timestamptz not null default now(),
    sent_at timestamptz,
    constraint sent check ((sent_at is not null) = (stage = 'sent'))
);
create table card_tries (
    n bigint generated always as identity primary key,
    card text not null references cards (name) on delete cascade,
    at timestamptz not null,
    trouble text,
    again_at timestamptz
);
create index cards_waiting on cards (written_at, name) where stage = 'waiting';
"""

TIMELY: LiteralString = """not exists (
        select from card_tries as c where c.card = t.name and c.again_at > (select now from clock)
    )"""
TRIED: LiteralString = "select count(*) from card_tries as c where c.card = t.name and c.again_at is not null"
TRY: LiteralString = """tried as (
    insert into card_tries (card, at, trouble, again_at) select t.name, m.now, """
OF_IT: LiteralString = """
    from moved as t join moves as m on m.key = t.name
)"""
FORGIVEN: LiteralString = """forgiven as (
    update card_tries as c set again_at = null from moved as t where c.card = t.name
)"""

CARDS = Ledger(
    name="cards",
    table="cards",
    key=Key("name", "text"),
    kind=None,
    payload=("receiver", "words"),
    state="stage",
    states=("waiting", "sent", "back"),
    ends=("sent", "back"),
    edges=(
        Edge("enqueue", to="waiting"),
        Edge("claim", frm=("waiting",), to="waiting"),
        Edge("finish", frm=("waiting",), to="sent"),
        Edge("retry", frm=("waiting",), to="waiting"),
        Edge("exhaust", frm=("waiting",), to="back"),
        Edge("reject", frm=("waiting",), to="back"),
        Edge("cancel", frm=("waiting",), to="back"),
        Edge("requeue", frm=("back",), to="waiting"),
    ),
    lanes=(
        Lane("waiting", order=("written_at", "name"), where=SQL(TIMELY), why="until its next try is due"),
    ),
    owner=None,
    tries=Tries(SQL(TRIED), limit=3),
    backoff=Backoff(base=60, jitter=0),
    times=Times(created="written_at", finished="sent_at", finished_well=True),
    idempotency=Idempotency("name", repeat="return"),
    beside={
        "finish": TRY + "m.result, null" + OF_IT,
        "retry": TRY + "m.reason, m.due" + OF_IT,
        "exhaust": TRY + "m.reason, null" + OF_IT,
        "reject": TRY + "m.reason, null" + OF_IT,
        "cancel": TRY + "m.reason, null" + OF_IT,
        "requeue": FORGIVEN,
    },
)
STORE = Store(CARDS)


def card(name: str, receiver: str = "ana", words: str = "hello") -> Item:
    """A card that may be enqueued."""
    return Item(key=name, payload={"receiver": receiver, "words": words})


async def tries(conn: Any, name: str) -> list[tuple[str | None, bool]]:
    """What was said at each try of a card, and whether there is to be another."""
    query = "select trouble, again_at is not null from card_tries where card = %s order by n"
    return await (await conn.execute(query, [name])).fetchall()


async def stages(conn: Any) -> dict[str, str]:
    """The stage of every card by its name."""
    return dict(await (await conn.execute("select name, stage from cards order by name")).fetchall())
