"""A turn is one transaction: the ends of some runs and the next claim, or neither."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast.apps.tasks.ledger import TASKS
from holdfast.db.pool import Connection
from holdfast.engine import sql
from holdfast.engine.store import Store
from holdfast.engine.values import Item, Move

STORE = Store(TASKS)
Connect = Callable[[], Awaitable[Connection]]
PREPARE_THRESHOLD = 5  # uses of a statement before psycopg prepares it
REFUSE_AT_COMMIT = """
create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not at commit'; end $$;
create constraint trigger refuse after update on tasks deferrable initially deferred
    for each row when (new.status = 'completed') execute function refuse();
"""
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


async def test_a_failed_turn_leaves_every_statement_usable(conn: Connection, connect: Connect) -> None:
    """psycopg prepares a statement at its sixth use. Where an earlier one of the same turn fails, the server
    skips that: the connection must not go on as if it had been prepared.
    """
    for _ in range(9):
        await STORE.enqueue(conn, Item(kind="x"))
    *done, locked, behind, later = await STORE.start(conn, await STORE.claim(conn, "w", 8))
    assert len(done) == PREPARE_THRESHOLD
    for claim in done:
        await STORE.turn(conn, [Move(verb="finish", claim=claim)], "w", 0)
    await conn.execute("set lock_timeout = '50ms'")
    other = await connect()
    async with other.transaction():
        await other.execute("select from tasks where id = %s for update", (locked.id,))
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await STORE.turn(
                conn, [Move(verb="retry", claim=locked), Move(verb="finish", claim=behind)], "w", 1
            )
    finishes = [Move(verb="finish", claim=claim) for claim in (behind, later)]
    assert await STORE.move(conn, finishes[:1]) == {behind.id}
    moved, claims = await STORE.turn(conn, [*finishes[1:], Move(verb="retry", claim=locked)], "w", 1)
    assert (moved, len(claims)) == ({later.id, locked.id}, 1)


async def test_a_turn_whose_first_statement_fails_leaves_every_statement_usable(
    conn: Connection, running: list[Move], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then no transaction is open that could be rolled back."""

    class Mended(Store):
        async def _send_moves(self, *args: Any) -> Any:
            monkeypatch.undo()  # after the first statement was sent
            return await super()._send_moves(*args)

    for _ in range(PREPARE_THRESHOLD - 1):  # and one claim has been made
        await STORE.turn(conn, [], "w", 0)
    monkeypatch.setattr(sql, "BEGIN", "begin isolation level unheard_of")
    with pytest.raises(psycopg.errors.SyntaxError):
        await Mended(TASKS).turn(conn, [], "w", 0)
    moved, claims = await STORE.turn(conn, running, "w", 1)
    assert (len(moved), len(claims)) == (2, 1)


async def test_a_turn_that_is_refused_at_its_commit_says_why_however_late_it_is_read(
    conn: Connection, running: list[Move]
) -> None:
    """The answer to the commit is there before the client has sent everything, as its loop is busy."""
    await conn.execute(REFUSE_AT_COMMIT)

    async def keep_the_loop_busy() -> None:
        while True:
            time.sleep(0.02)  # noqa: ASYNC251 (that is the point)
            await asyncio.sleep(0)

    busy = asyncio.create_task(keep_the_loop_busy())
    try:
        with pytest.raises(psycopg.errors.RaiseException, match="not at commit"):
            await STORE.turn(conn, running, "w", 1)
    finally:
        busy.cancel()
    assert await states(conn) == ["running", "running", "pending"]
    await conn.execute("drop trigger refuse on tasks")
    assert len((await STORE.turn(conn, running, "w", 1))[0]) == 2
