"""Two traps of idempotency keys that only another connection can lay: a winner whom the snapshot does not
show, and a row that stood in the way and is gone before it is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.errors import SerializationFailure

from holdfast.apps.jobs.ledger import JOB
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from holdfast.engine.values import Item
from holdfast.engine.verify import verify
from ledgers import JOB_SAMPLE, ORG
from runtime.jobs import until_blocked

Connect = Callable[[], Awaitable[Connection]]


@pytest.fixture
def store() -> Store:
    return Store(JOB)


def item(key: str | None = "k", **changes: Any) -> Item:
    return JOB_SAMPLE.item(key=key, **changes)


async def ids(conn: Connection) -> list[UUID]:
    return [key for (key,) in await (await conn.execute("select id from job order by created_at")).fetchall()]


# -- a winner that the snapshot does not show ---------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
async def test_a_winner_that_the_snapshot_does_not_show_is_a_serialization_failure(
    conn: Connection, connect: Connect, store: Store, many: bool
) -> None:
    """J-3, J-4, J-6: 40001 comes to the caller as it is; trying again answers with the winner's id."""
    other = await connect()
    winners: list[UUID] = []

    async def add() -> UUID:
        if many:
            return (await store.enqueue_many(other, [item(None), item("k")]))[1].id
        return (await store.enqueue(other, item())).id

    async def too_late() -> None:
        async with other.transaction():
            await other.execute("set transaction isolation level repeatable read")
            await other.execute("select count(*) from job")  # the snapshot is taken
            winners.append((await store.enqueue(conn, item())).id)
            await add()

    with pytest.raises(SerializationFailure) as refused:
        await too_late()
    assert (type(refused.value), refused.value.sqlstate) == (SerializationFailure, "40001")
    assert await ids(conn) == winners
    async with other.transaction():
        await other.execute("set transaction isolation level repeatable read")
        assert await add() == winners[0]
    assert (await verify(store, conn)).lies == ()


async def test_the_callers_transaction_survives_a_winner_that_it_cannot_see(
    conn: Connection, connect: Connect, store: Store
) -> None:
    """J-6: what was done before is kept, if the caller goes on."""
    other = await connect()
    async with other.transaction():
        await other.execute("set transaction isolation level repeatable read")
        before = await store.enqueue(other, item(None))
        winner = await store.enqueue(conn, item())
        with pytest.raises(SerializationFailure):
            await store.enqueue(other, item())
        after = await store.enqueue(other, item(None))
    assert set(await ids(conn)) == {before.id, winner.id, after.id}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_a_winner_that_commits_while_we_wait_for_it_is_no_other_case(
    conn: Connection, connect: Connect, store: Store, level: str
) -> None:
    """J-3, J-4: the insert waits for the winner, and is told 40001 when it has committed."""
    first, other = await connect(), await connect()

    async def late() -> None:
        async with other.transaction():
            await other.execute(f"set transaction isolation level {level}".encode())
            await store.enqueue(other, item())

    async with first.transaction():
        winner = await store.enqueue(first, item())
        losing = asyncio.create_task(late())
        await until_blocked(conn, first)
    with pytest.raises(SerializationFailure):
        await losing
    receipt = await store.enqueue(other, item())
    assert (receipt.id, receipt.created) == (winner.id, False)


# -- a row that is gone before it is looked at --------------------------------------------------------------


@pytest.fixture
def second(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else, who can act between two steps of an enqueue."""
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("set lock_timeout = '5s'")
        yield other


@pytest.fixture
def between(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], list[int]]:
    """`between(act)`: does `act` before each look at what stood in the way; the list grows with the looks."""

    def between(act: Callable[[], object]) -> list[int]:
        looks: list[int] = []
        look = store.sql.existing

        def spied() -> bytes:
            looks.append(len(looks))
            act()
            return look()

        monkeypatch.setattr(store.sql, "existing", spied)
        return looks

    return between


Between = Callable[[Callable[[], object]], list[int]]


@pytest.mark.parametrize("inside", [False, True])
async def test_an_enqueue_starts_over_when_what_stood_in_its_way_was_deleted_meanwhile(
    conn: Connection, store: Store, second: psycopg.Connection[Any], between: Between, inside: bool
) -> None:
    """J-3, J-4: the insert met a row, the look does not find it: the key is free, and a new row is made."""
    old = await store.enqueue(conn, item())
    looks = between(lambda: second.execute("delete from job where id = %s", [old.id]))
    if inside:
        async with conn.transaction():
            new = await store.enqueue(conn, item(), by="ana")
    else:
        new = await store.enqueue(conn, item(), by="ana")
    assert new.created
    assert new.id != old.id
    assert looks == [0]
    assert await ids(conn) == [new.id]
    assert await JOB_SAMPLE.events(conn) == [(None, "queued")]
    assert (await verify(store, conn)).lies == ()


async def test_a_bulk_starts_over_with_the_rows_whose_way_is_free_now(
    conn: Connection, store: Store, second: psycopg.Connection[Any], between: Between
) -> None:
    """J-3, J-4: of three keys one was new, one stays taken, one is freed meanwhile; the order is kept."""
    stays, goes = await store.enqueue(conn, item("stays")), await store.enqueue(conn, item("goes"))
    looks = between(lambda: second.execute("delete from job where id = %s", [goes.id]))
    items = [item("goes"), item("new"), item("stays"), item(None), item("goes")]
    receipts = await store.enqueue_many(conn, items)
    assert [receipt.created for receipt in receipts] == [True, True, False, True, False]
    assert receipts[2].id == stays.id
    assert receipts[4].id == receipts[0].id != goes.id
    assert looks == [0]
    assert set(await ids(conn)) == {receipt.id for receipt in receipts}
    assert (await verify(store, conn)).lies == ()


async def test_another_may_take_the_key_again_before_we_look(
    conn: Connection, store: Store, second: psycopg.Connection[Any], between: Between
) -> None:
    """J-3, J-4: what is answered is what is there now."""
    old = await store.enqueue(conn, item())
    made: list[UUID] = []

    def replaced() -> None:
        second.execute("delete from job where id = %s", [old.id])
        made.append(Store(JOB).enqueue_sync(second, item()).id)

    between(replaced)
    receipt = await store.enqueue(conn, item())
    assert (receipt.id, receipt.created) == (made[0], False)
    assert await ids(conn) == made


def test_the_same_holds_on_a_connection_that_is_not_async(
    database_url: str, store: Store, second: psycopg.Connection[Any], between: Between
) -> None:
    """J-3, J-4, J-6"""
    with psycopg.connect(database_url) as conn:
        old = store.enqueue_sync(conn, item(tenant=ORG))
        conn.commit()
        between(lambda: second.execute("delete from job where id = %s", [old.id]))
        new = store.enqueue_sync(conn, item(tenant=ORG))
        assert new.created
    assert second.execute("select id from job").fetchall() == [(new.id,)]
