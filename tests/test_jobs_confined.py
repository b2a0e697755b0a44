"""A role and a tenant last for one transaction: the next user of the very same connection has neither.

The pool has one connection, or is emptied until the one in question comes; that it is the same one is told by
the server's own process id. A control shows that a setting which outlived its transaction would be found.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import Any, Literal
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Retry, Settings
from holdfast.db.pool import Connection
from holdfast.engine import sql

ORG = UUID(int=7)
WHO = "select current_setting('role'), current_setting('holdfast.org_id', true), current_user::text"


async def who(conn: Connection) -> tuple[str, str | None, str]:
    """The role, the tenant and the user that a connection has."""
    ((role, tenant, user),) = await (await conn.execute(WHO)).fetchall()
    return role, tenant or None, user  # a setting that was used once is empty ever after


async def left_behind(app: Holdfast, pid: int) -> tuple[str, str | None, str]:
    """What the pooled connection with this process has when its next user comes."""
    async with AsyncExitStack() as stack:
        for _ in range(app.database.pool.max_size):
            conn = await stack.enter_async_context(app.database.connection())
            if conn.info.backend_pid == pid:
                return await who(conn)
    raise AssertionError("the connection was not given back")


def outlive(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if SET stood where SET LOCAL should."""
    lasting = sql.CONFINE.replace(", true)", ", false)")
    assert lasting.count("false") == 2
    monkeypatch.setattr(sql, "CONFINE", lasting)


Pooler = Literal["none", "transaction"]
# What ends with the transaction needs no reset. Without a pooler the connection is reset all the same; with
# one it is not, and there nothing hides a setting that outlives its transaction.
UNMASKED = pytest.mark.parametrize("pooler", ["transaction"])
EITHER = pytest.mark.parametrize("pooler", ["none", "transaction"])


# -- as_tenant ---------------------------------------------------------------------------------------------


@pytest.fixture
async def app(settings: Settings, pooler: Pooler) -> AsyncIterator[Holdfast]:
    """An app whose pool is a single connection."""
    async with Holdfast(replace(settings, db_max_connections=1, database_pooler=pooler)) as app:
        yield app


async def _plain(conn: Connection) -> None:
    await conn.execute("select count(*) from job")


async def _fails(conn: Connection) -> None:
    raise ZeroDivisionError


async def _refused_by_the_database(conn: Connection) -> None:
    with pytest.raises(Exception, match="permission denied"):
        await conn.execute("delete from job")
    raise ZeroDivisionError  # the transaction is broken: it must be rolled back


async def _savepoint_rolled_back(conn: Connection) -> None:
    with suppress(ZeroDivisionError):
        async with conn.transaction():
            await conn.execute("select set_config('holdfast.org_id', %s, true)", [str(UUID(int=8))])
            raise ZeroDivisionError


async def _savepoint_kept(conn: Connection) -> None:
    async with conn.transaction():
        await conn.execute("select count(*) from job_event")


BLOCKS = {
    "it ends well": _plain,
    "it fails": _fails,
    "the database refuses": _refused_by_the_database,
    "a savepoint is rolled back": _savepoint_rolled_back,
    "a savepoint is kept": _savepoint_kept,
}
COMMITTED = ("it ends well", "a savepoint is rolled back", "a savepoint is kept")


async def run_block(app: Holdfast, name: str) -> int:
    """Acts as a tenant; answers with the process of the connection."""
    pid = 0
    try:
        async with app.as_tenant(ORG) as conn:
            pid = conn.info.backend_pid
            assert await who(conn) == ("holdfast_tenant", str(ORG), "holdfast_tenant")
            await BLOCKS[name](conn)
            if name in COMMITTED:  # also after a savepoint the tenant is the same
                assert await who(conn) == ("holdfast_tenant", str(ORG), "holdfast_tenant")
    except ZeroDivisionError:
        assert name not in COMMITTED
    return pid


@EITHER
@pytest.mark.parametrize("name", BLOCKS)
async def test_no_tenant_outlives_its_block(app: Holdfast, name: str) -> None:
    """J-39: role and setting are gone with the transaction, however it ends."""
    async with app.database.connection() as conn:
        before = await who(conn)
    assert before[:2] == ("none", None)
    pid = await run_block(app, name)
    assert await left_behind(app, pid) == before


@UNMASKED
@pytest.mark.parametrize("name", BLOCKS)
async def test_a_tenant_that_outlived_its_block_would_be_found(
    app: Holdfast, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J-39: the control. What is rolled back takes a lasting setting with it; what commits leaves it."""
    outlive(monkeypatch)
    left = await left_behind(app, await run_block(app, name))
    assert (left[:2] == ("holdfast_tenant", str(ORG))) == (name in COMMITTED)


@EITHER
async def test_one_tenant_after_another_on_one_connection(app: Holdfast) -> None:
    """J-39: each block has its own tenant, and a block that begins inside none has none of the last."""
    pids: set[int] = set()
    for number in range(1, 6):
        async with app.as_tenant(UUID(int=number)) as conn:
            assert (await who(conn))[1] == str(UUID(int=number))
            pids.add(conn.info.backend_pid)
    assert len(pids) == 1


# -- handlers ----------------------------------------------------------------------------------------------


async def run_handler(app: Holdfast, ending: str, confined: bool = True) -> int:
    """Works one job off whose handler writes in its transaction; answers with the connection's process."""
    pids: list[int] = []

    async def handle(ctx: Context) -> Any:
        own = await ctx.transaction(confined=confined)
        pids.append(own.info.backend_pid)
        role, tenant, _ = await who(own)
        assert (role, tenant) == (("holdfast_tenant", str(ORG)) if confined else ("none", None))
        if ending == "a savepoint is rolled back":
            await _savepoint_rolled_back(own)
            assert (await who(own))[0] == ("holdfast_tenant" if confined else "none")
        if ending == "it fails":
            raise ZeroDivisionError
        return Retry("later", after=1000) if ending == "it is to be retried" else None

    app.handler("look", ledger="job")(handle)
    receipt = await app.enqueue("job", "look", tenant=ORG, limit=0)
    await app.worker(ledgers=["job"], concurrency=1).run(until_idle=True)
    well = ending in ("it ends well", "a savepoint is rolled back")
    assert (await app.get("job", receipt.id)).state == ("succeeded" if well else "dead_letter")
    (pid,) = pids
    return pid


@pytest.fixture
async def working(settings: Settings, pooler: Pooler) -> AsyncIterator[Holdfast]:
    """An app with a few connections."""
    async with Holdfast(replace(settings, db_max_connections=4, database_pooler=pooler)) as app:
        yield app


@EITHER
@pytest.mark.parametrize(
    "ending", ["it ends well", "a savepoint is rolled back", "it fails", "it is to be retried"]
)
@pytest.mark.parametrize("confined", [True, False])
async def test_no_tenant_outlives_its_run(working: Holdfast, ending: str, confined: bool) -> None:
    """J-18, J-39: the connection of a handler comes back to the pool as nobody's."""
    pid = await run_handler(working, ending, confined)
    role, tenant, user = await left_behind(working, pid)
    assert (role, tenant) == ("none", None)
    assert user != "holdfast_tenant"


@UNMASKED
@pytest.mark.parametrize("ending", ["it ends well", "a savepoint is rolled back"])
async def test_a_tenant_that_outlived_its_run_would_be_found(
    working: Holdfast, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J-39: the control. The role is given back before the finish, and the setting would stay."""
    outlive(monkeypatch)
    _, tenant, _ = await left_behind(working, await run_handler(working, ending))
    assert tenant == str(ORG)
