"""A turn is one transaction: the ends of some runs and the next claim, or neither."""

import psycopg
import pytest

from holdfast.apps.tasks.ledger import TASKS
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from holdfast.engine.values import Item, Move

STORE = Store(TASKS)
STATES = "select status::text from tasks order by created_at, id"


async def states(conn: Connection) -> list[str]:
    return [row[0] for row in await (await conn.execute(STATES)).fetchall()]


@pytest.fixture
async def running(conn: Connection) -> list[Move]:
    """Two tasks that run, to be finished, and one that waits."""
    for _ in range(2):
        await STORE.enqueue(conn, Item(kind="x", priority=1))
    await STORE.enqueue(conn, Item(kind="x"))
    claims = await STORE.start(conn, await STORE.claim(conn, "w", 2))
    return [Move(verb="finish", claim=claim) for claim in claims]


async def test_a_turn_finishes_and_claims(conn: Connection, running: list[Move]) -> None:
    moved, claims = await STORE.turn(conn, running, "w", 5)
    assert moved == {move.claim.id for move in running}
    assert [claim.kind for claim in claims] == ["x"]
    assert await states(conn) == ["completed", "completed", "claimed"]


async def test_a_turn_whose_claim_is_refused_finishes_nothing(conn: Connection, running: list[Move]) -> None:
    with pytest.raises(psycopg.Error, match="LIMIT must not be negative"):
        await STORE.turn(conn, running, "w", -1)
    assert await states(conn) == ["running", "running", "pending"]
    moved, _ = await STORE.turn(conn, running, "w", 0)  # the connection is as good as before
    assert len(moved) == 2


async def test_moves_of_several_verbs_are_written_together_or_not_at_all(
    conn: Connection, running: list[Move]
) -> None:
    finish, other = running
    bad = Move(verb="retry", claim=other.claim, delay=float("nan"))
    with pytest.raises(psycopg.Error):
        await STORE.move(conn, [finish, bad])
    assert await states(conn) == ["running", "running", "pending"]


async def test_a_turn_joins_the_transaction_that_it_is_taken_in(
    conn: Connection, running: list[Move]
) -> None:
    async with conn.transaction(force_rollback=True):
        moved, claims = await STORE.turn(conn, running, "w", 5)
        assert (len(moved), len(claims)) == (2, 1)
    assert await states(conn) == ["running", "running", "pending"]
