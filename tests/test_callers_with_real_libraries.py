"""Enqueue inside the caller's own transaction, on a real PostgreSQL, by every library that we support."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import asyncpg
import django
import django.conf
import psycopg
import psycopg2
import psycopg2.extras
import psycopg_pool
import pytest
import sqlalchemy
from django.db import connection as django_connection
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row, tuple_row
from psycopg.sql import SQL, Identifier
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import Holdfast, Item, Settings
from holdfast.engine import callers
from holdfast.engine.values import Options
from holdfast.errors import IdempotencyConflict, InvalidInput

ORG = UUID("11111111-1111-4111-8111-111111111111")
PATIENCE = 30  # seconds
Watcher = psycopg.AsyncConnection[Any]


@dataclass
class Caller:
    """A library, spoken to in one way: its connection, and how it ends a transaction and runs SQL."""

    conn: Any
    sync: bool
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    ask: Callable[[str], Awaitable[list[Any]]]
    app: Holdfast

    async def enqueue(self, kind: str = "mail", payload: Any = None, **options: Any) -> Any:
        given = {"tenant": ORG, "conn": self.conn} | options
        if self.sync:
            return self.app.enqueue_sync("job", kind, payload, **given)
        return await self.app.enqueue("job", kind, payload, **given)

    async def enqueue_many(self, *items: Item, **options: Any) -> Any:
        given = {"conn": self.conn} | options
        if self.sync:
            return self.app.enqueue_many_sync("job", items, **given)
        return await self.app.enqueue_many("job", items, **given)

    async def usable(self) -> None:
        assert [tuple(row) for row in await self.ask("select 1")] == [(1,)]


def item(kind: str = "mail", **fields: Any) -> Item:
    return Item(kind=kind, **{"tenant": ORG, **fields})


def later(function: Callable[..., Any], *given: Any) -> Callable[[], Awaitable[None]]:
    """A sync function as one that can be awaited."""

    async def call() -> None:
        function(*given)

    return call


# -- the libraries ---------------------------------------------------------------------------------------

Way = Callable[[str, AsyncExitStack], Awaitable[dict[str, Any]]]
WAYS: dict[str, Way] = {}
ALONE: dict[str, Way] = {}  # the same, where every statement commits itself


def way(ways: dict[str, Way], name: str) -> Callable[[Way], Way]:
    def add(function: Way) -> Way:
        ways[name] = function
        return function

    return add


def psycopg_way(autocommit: bool, **how: Any) -> Way:
    async def connect(url: str, stack: AsyncExitStack) -> dict[str, Any]:
        conn = await psycopg.AsyncConnection.connect(url, autocommit=autocommit, **how)
        stack.push_async_callback(conn.close)

        async def ask(text: str) -> list[Any]:
            async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:
                await cursor.execute(text.encode())
                return await cursor.fetchall() if cursor.description else []

        return {"conn": conn, "sync": False, "commit": conn.commit, "rollback": conn.rollback, "ask": ask}

    return connect


WAYS["psycopg, async"] = psycopg_way(False)
WAYS["psycopg, async, with cursors and rows of its own"] = psycopg_way(
    False, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
)
ALONE["psycopg, async"] = psycopg_way(True)


@way(WAYS, "psycopg, async, in a block")
async def psycopg_block(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    given = await psycopg_way(True)(url, stack)
    block = given["conn"].transaction()
    await block.__aenter__()

    async def commit() -> None:
        await block.__aexit__(None, None, None)

    async def rollback() -> None:
        undo = psycopg.Rollback(block)
        await block.__aexit__(psycopg.Rollback, undo, None)

    return given | {"commit": commit, "rollback": rollback}


@way(WAYS, "psycopg, sync")
async def psycopg_sync(url: str, stack: AsyncExitStack, **how: Any) -> dict[str, Any]:
    conn = psycopg.connect(url, **how)
    stack.callback(conn.close)
    return dbapi(conn)


@way(ALONE, "psycopg, sync")
async def psycopg_sync_alone(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    return await psycopg_sync(url, stack, autocommit=True)


@way(WAYS, "psycopg2")
async def psycopg2_way(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    conn = psycopg2.connect(url)
    stack.callback(conn.close)
    return dbapi(conn)


@way(WAYS, "psycopg2, with rows of its own")
async def psycopg2_rows(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    conn = psycopg2.connect(url, cursor_factory=psycopg2.extras.NamedTupleCursor)
    stack.callback(conn.close)
    return dbapi(conn)


@way(ALONE, "psycopg2")
async def psycopg2_alone(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    given = await psycopg2_way(url, stack)
    given["conn"].autocommit = True
    return given


def dbapi(conn: Any) -> dict[str, Any]:
    async def ask(text: str) -> list[Any]:
        with conn.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetchall() if cursor.description else []

    ends = {"commit": later(conn.commit), "rollback": later(conn.rollback)}
    return {"conn": conn, "sync": True, "ask": ask, **ends}


@way(WAYS, "asyncpg")
async def asyncpg_way(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    conn = await asyncpg.connect(url)
    stack.push_async_callback(conn.close)
    return await asyncpg_block(conn)


@way(WAYS, "asyncpg, of a pool, that makes JSON itself")
async def asyncpg_pool(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    async def tell(conn: Any) -> None:
        await conn.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=1, max_size=1, init=tell))
    return await asyncpg_block(await stack.enter_async_context(pool.acquire()))


async def asyncpg_block(conn: Any) -> dict[str, Any]:
    block = conn.transaction()
    await block.start()
    ends = {"commit": block.commit, "rollback": block.rollback}
    return {"conn": conn, "sync": False, "ask": conn.fetch, **ends}


@way(ALONE, "asyncpg")
async def asyncpg_alone(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    conn = await asyncpg.connect(url)
    stack.push_async_callback(conn.close)
    return {"conn": conn, "sync": False, "ask": conn.fetch, "commit": None, "rollback": None}


def sqlalchemy_way(driver: str, kind: str, **how: Any) -> Way:
    async def connect(url: str, stack: AsyncExitStack) -> dict[str, Any]:
        engine = sqlalchemy.create_engine(
            sqlalchemy.make_url(url).set(drivername=f"postgresql+{driver}"), **how
        )
        stack.callback(engine.dispose)
        match kind:
            case "Connection":
                conn: Any = engine.connect()
            case "Session":
                conn = Session(engine)
            case _:
                conn = scoped_session(sessionmaker(engine))
        stack.callback(conn.close)

        async def ask(text: str) -> list[Any]:
            result = conn.execute(sqlalchemy.text(text))
            return list(result) if result.returns_rows else []

        ends = {"commit": later(conn.commit), "rollback": later(conn.rollback)}
        return {"conn": conn, "sync": True, "ask": ask, **ends}

    return connect


def sqlalchemy_async_way(driver: str, kind: str, **how: Any) -> Way:
    async def connect(url: str, stack: AsyncExitStack) -> dict[str, Any]:
        engine = create_async_engine(sqlalchemy.make_url(url).set(drivername=f"postgresql+{driver}"), **how)
        stack.push_async_callback(engine.dispose)
        match kind:
            case "AsyncConnection":
                conn: Any = await stack.enter_async_context(engine.connect())
            case "AsyncSession":
                conn = await stack.enter_async_context(AsyncSession(engine))
            case _:
                conn = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "this test")
                stack.push_async_callback(conn.remove)

        async def ask(text: str) -> list[Any]:
            result = await conn.execute(sqlalchemy.text(text))
            return list(result) if result.returns_rows else []

        return {"conn": conn, "sync": False, "ask": ask, "commit": conn.commit, "rollback": conn.rollback}

    return connect


for driver in ("psycopg", "psycopg2"):
    for kind in ("Connection", "Session", "scoped_session"):
        WAYS[f"SQLAlchemy, {driver}, {kind}"] = sqlalchemy_way(driver, kind)
    ALONE[f"SQLAlchemy, {driver}"] = sqlalchemy_way(driver, "Connection", isolation_level="AUTOCOMMIT")
for driver in ("psycopg", "asyncpg"):
    for kind in ("AsyncConnection", "AsyncSession", "async_scoped_session"):
        WAYS[f"SQLAlchemy, {driver}, {kind}"] = sqlalchemy_async_way(driver, kind)
    ALONE[f"SQLAlchemy, async, {driver}"] = sqlalchemy_async_way(
        driver, "AsyncSession", isolation_level="AUTOCOMMIT"
    )


def django_database(url: str, stack: AsyncExitStack, alias: str = "default") -> Any:
    """Django's connection, led to the database of this test."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(DATABASES={"default": {}}, USE_TZ=True, LOGGING_CONFIG=None)
        django.setup()
    given = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    place = {ours: given[theirs] for ours, theirs in names.items()}
    place["ENGINE"] = "django.db.backends.postgresql"
    connections.settings[alias] = connections.configure_settings({"default": place})["default"]
    connections[alias] = connections.create_connection(alias)
    # Django refuses to wait inside an event loop; a test may.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    stack.callback(os.environ.pop, "DJANGO_ALLOW_ASYNC_UNSAFE")
    stack.callback(connections[alias].close)
    return django_connection if alias == "default" else connections[alias]


@way(ALONE, "Django")
async def django_alone(url: str, stack: AsyncExitStack) -> dict[str, Any]:
    return dbapi(django_database(url, stack))


def django_way(alias: str) -> Way:
    async def connect(url: str, stack: AsyncExitStack) -> dict[str, Any]:
        conn = django_database(url, stack, alias)
        block = transaction.atomic(using=alias)
        block.__enter__()

        async def commit() -> None:
            block.__exit__(None, None, None)

        async def rollback() -> None:
            block.__exit__(ValueError, ValueError(), None)

        return dbapi(conn) | {"commit": commit, "rollback": rollback}

    return connect


WAYS["Django"] = django_way("default")
WAYS["Django, by an alias"] = django_way("other")


# -- what a test gets ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _url(postgres: str, _migrated: str) -> Iterator[str]:
    """One database for all tests, with a rule of its own: one for each would take longer than they do."""
    word = f"callers_{uuid4().hex}"
    url, name = urlsplit(postgres)._replace(path=f"/{word}").geturl(), Identifier(word)
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(SQL("create database {} template {}").format(name, Identifier(_migrated)))
        with psycopg.connect(url, autocommit=True) as own:
            own.execute("alter table job add constraint not_so_high check (priority < 100)")
        yield url
        server.execute(SQL("drop database {} with (force)").format(name))


@pytest.fixture
def database_url(_url: str) -> str:
    """That database, empty."""
    with psycopg.connect(_url, autocommit=True) as own:
        own.execute("delete from job")
    return _url


@pytest.fixture
def app(settings: Settings) -> Holdfast:
    """An application that nobody has opened."""
    return Holdfast(settings)


@pytest.fixture
async def watcher(database_url: str) -> AsyncIterator[Watcher]:
    """Somebody else, who sees what is committed."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as conn:
        yield conn


@asynccontextmanager
async def opened(way: Way, url: str, app: Holdfast) -> AsyncIterator[Caller]:
    async with AsyncExitStack() as stack:
        yield Caller(**await way(url, stack), app=app)


@pytest.fixture(params=list(WAYS))
async def caller(request: pytest.FixtureRequest, database_url: str, app: Holdfast) -> AsyncIterator[Caller]:
    """Each library in turn, inside a transaction or about to begin one."""
    async with opened(WAYS[request.param], database_url, app) as found:
        yield found


@pytest.fixture(params=list(ALONE))
async def alone(request: pytest.FixtureRequest, database_url: str, app: Holdfast) -> AsyncIterator[Caller]:
    """Each library in turn, where there is no transaction."""
    async with opened(ALONE[request.param], database_url, app) as found:
        yield found


async def seen(watcher: Watcher) -> tuple[int, int]:
    """How many jobs and events there are for others."""
    query = "select (select count(*) from job), (select count(*) from job_event)"
    (counts,) = await (await watcher.execute(query)).fetchall()
    return counts


async def rung(watcher: Watcher) -> int:
    """How often the doorbell rang; what came before this call, and no more, is counted."""
    await watcher.execute("notify the_end")
    bells = 0
    async with asyncio.timeout(PATIENCE):
        async for bell in watcher.notifies():
            if bell.channel == "the_end":
                return bells
            bells += bell.channel == "holdfast_job"
    raise AssertionError


# -- one row ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_row_and_its_first_event_are_there_after_the_commit_and_not_before(
    caller: Caller, watcher: Watcher, key: str | None
) -> None:
    """J-1, J-2, J-6, J-34, J-35: also where the enqueue is the first thing that is said on the connection."""
    receipt = await caller.enqueue("mail", {"to": ["ana", None]}, key=key, by="ana")
    assert receipt.created
    assert type(receipt.id) is UUID
    await caller.usable()
    assert await seen(watcher) == (0, 0)
    await caller.commit()
    query = """
        select id, status::text, attempt, fence, started_at, finished_at, payload, idempotency_key,
            requested_by, backoff_policy::text, queue, priority, max_attempts,
            created_at = updated_at, run_at = created_at
        from job
    """
    (row,) = await (await watcher.execute(query)).fetchall()
    body = {"to": ["ana", None]}
    assert row == (
        *(receipt.id, "queued", 0, 0, None, None, body, key, "ana"),
        *("exp", "default", 0, 5, True, True),
    )
    query = """
        select job_id, prev_status, next_status, detail_json - 'run_at',
            ts = created_at, (detail_json ->> 'run_at')::timestamptz = run_at
        from job_event join job on job.id = job_id
    """
    (event,) = await (await watcher.execute(query)).fetchall()
    detail = {"verb": "enqueue", "attempt": 0, "fence": 0, "by": "ana", "kind": "mail", "tenant": str(ORG)}
    assert event == (receipt.id, None, "queued", detail, True, True)


@pytest.mark.parametrize("key", [None, "k"])
async def test_after_a_rollback_there_is_neither_row_nor_event(
    caller: Caller, watcher: Watcher, key: str | None
) -> None:
    """J-2, J-6."""
    await watcher.execute("listen holdfast_job; listen the_end")
    await caller.enqueue(key=key)
    await caller.enqueue_many(item(), item("other", key="k2"))
    await caller.rollback()
    assert await seen(watcher) == (0, 0)
    assert await rung(watcher) == 0


async def test_every_option_reaches_its_column(caller: Caller, watcher: Watcher) -> None:
    """J-7."""
    receipt = await caller.enqueue(
        "mail", "hello", key="k", priority=-3, delay=90, limit=0, backoff="none", queue="slow"
    )
    await caller.commit()
    query = """
        select id, payload, idempotency_key, priority, max_attempts, backoff_policy::text, queue,
            extract(epoch from run_at - created_at)::int
        from job
    """
    (row,) = await (await watcher.execute(query)).fetchall()
    assert row == (receipt.id, "hello", "k", -3, 0, "none", "slow", 90)


# -- keys ------------------------------------------------------------------------------------------------


async def test_a_repeated_key_gets_the_first_job_and_the_transaction_goes_on(
    caller: Caller, watcher: Watcher
) -> None:
    """J-3, J-4: a repeat of a row that is committed, and of one that is not."""
    old = await caller.app.store("job").enqueue(watcher, item(key="old"))
    again = await caller.enqueue(key="old")
    assert (again.id, again.created) == (old.id, False)
    new = await caller.enqueue(key="new")
    twice = await caller.enqueue(key="new")
    assert (new.created, twice.id, twice.created) == (True, new.id, False)
    elsewhere = await caller.enqueue(key="new", tenant=UUID(int=5))
    assert elsewhere.created
    await caller.usable()
    await caller.commit()
    assert await seen(watcher) == (3, 3)


async def test_a_repeat_with_another_kind_is_a_conflict_and_the_transaction_goes_on(
    caller: Caller, watcher: Watcher
) -> None:
    """J-5: what was done before stays, and what is done after counts."""
    first = await caller.enqueue(key="k")
    for _ in range(3):
        with pytest.raises(IdempotencyConflict) as refused:
            await caller.enqueue("another", key="k")
        assert (refused.value.fields["id"], refused.value.fields["key"]) == (first.id, "k")
        with pytest.raises(IdempotencyConflict):
            await caller.enqueue_many(item(), item("another", key="k"), item(delay=5))
        await caller.usable()
    await caller.enqueue()
    await caller.commit()
    assert await seen(watcher) == (2, 2)


# -- bad input -------------------------------------------------------------------------------------------


async def test_bad_input_writes_nothing_and_the_transaction_goes_on(caller: Caller, watcher: Watcher) -> None:
    """J-6 and "Bad input": what we refuse, and what the table refuses."""
    await caller.enqueue(key="good")
    with pytest.raises(InvalidInput, match="requested_by"):
        await caller.enqueue(by="x" * 256)
    with pytest.raises(InvalidInput) as refused:
        await caller.enqueue_many(item(), item(run_at="tomorrow"))
    assert refused.value.field == "items[1].run_at"
    await caller.usable()
    with pytest.raises(InvalidInput) as refused:
        await caller.enqueue(key="k", priority=100)
    assert refused.value.field == "not_so_high"
    assert "violates check constraint" in str(refused.value)
    with pytest.raises(InvalidInput) as refused:
        await caller.enqueue_many(item(), item(priority=100), item(key="k"))
    assert refused.value.field == "not_so_high"
    await caller.usable()
    await caller.enqueue()
    await caller.commit()
    assert await seen(watcher) == (2, 2)


async def test_an_error_that_is_not_about_the_row_stays_the_librarys_own(caller: Caller) -> None:
    body = "begin perform pg_sleep(9); return new; end"
    await caller.ask(f"create function slow() returns trigger language plpgsql as '{body}'")
    await caller.ask("create trigger slow before insert on job for each row execute function slow()")
    await caller.ask("set local statement_timeout = 100")
    with pytest.raises(Exception, match="statement timeout") as failed:
        await caller.enqueue(key="k")
    assert not isinstance(failed.value, InvalidInput)
    await caller.rollback()


# -- bulks -----------------------------------------------------------------------------------------------


async def test_a_bulk_is_all_there_or_not_at_all(caller: Caller, watcher: Watcher) -> None:
    """J-4, J-6: items of many shapes, a key twice, answers in their order."""
    old = await caller.app.store("job").enqueue(watcher, item(key="old"))
    items = [
        item(key="b", payload=1),
        item("print", delay=60),
        item(key="a", queue="slow", limit=1),
        item(key="b"),
        item(key="old", priority=9),
        item(backoff="fixed"),
    ]
    receipts = await caller.enqueue_many(*items, by="ana")
    assert [receipt.created for receipt in receipts] == [True, True, True, False, False, True]
    assert receipts[3].id == receipts[0].id
    assert receipts[4].id == old.id
    assert await seen(watcher) == (1, 1)
    await caller.commit()
    assert await seen(watcher) == (5, 5)
    query = "select id, type, queue, max_attempts, backoff_policy::text, payload from job where id <> %s"
    rows = {row[0]: row[1:] for row in await (await watcher.execute(query, [old.id])).fetchall()}
    assert rows == {
        receipts[0].id: ("mail", "default", 5, "exp", 1),
        receipts[1].id: ("print", "default", 5, "exp", None),
        receipts[2].id: ("mail", "slow", 1, "exp", None),
        receipts[5].id: ("mail", "default", 5, "fixed", None),
    }
    assert await caller.enqueue_many() == []


# -- the doorbell ----------------------------------------------------------------------------------------


async def test_the_doorbell_rings_with_the_commit_and_once(caller: Caller, watcher: Watcher) -> None:
    """J-6."""
    await watcher.execute("listen holdfast_job; listen the_end")
    await caller.enqueue()
    await caller.enqueue(key="k")
    await caller.enqueue_many(item(), item(key="k2", delay=1))
    await caller.enqueue(key="k")
    assert await rung(watcher) == 0
    await caller.commit()
    assert await rung(watcher) == 1


# -- without a transaction -------------------------------------------------------------------------------


async def test_without_a_transaction_all_is_committed_at_once_or_nothing(
    alone: Caller, watcher: Watcher
) -> None:
    """J-6: and the connection is left as it was."""
    first = await alone.enqueue(key="k")
    assert await seen(watcher) == (1, 1)
    assert (await alone.enqueue(key="k")).id == first.id
    with pytest.raises(IdempotencyConflict):
        await alone.enqueue_many(item(), item("another", key="k"))
    with pytest.raises(InvalidInput, match="not_so_high"):
        await alone.enqueue_many(item(), item(priority=100, key="k2"))
    with pytest.raises(InvalidInput, match="not_so_high"):
        await alone.enqueue(priority=100)
    await alone.enqueue_many(item(), item(delay=3))
    assert await seen(watcher) == (3, 3)
    await alone.enqueue()
    assert await seen(watcher) == (4, 4)
    left = "datname = current_database() and state like 'idle in transaction%'"
    assert not (await watcher.execute(f"select from pg_stat_activity where {left}")).rowcount


# -- what is one library's alone -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["psycopg, async", "psycopg, async, in a block", "asyncpg"])
async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_transaction_usable(
    database_url: str, app: Holdfast, watcher: Watcher, name: str
) -> None:
    async with opened(WAYS[name], database_url, app) as caller, watcher.transaction(force_rollback=True):
        await app.enqueue("job", "mail", tenant=ORG, key="k", conn=watcher)
        await caller.enqueue()
        waiting = asyncio.create_task(caller.enqueue(key="k"))
        blocked = (
            "select from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"
            " and datname = current_database()"
        )
        async with asyncio.timeout(PATIENCE):
            while not (await watcher.execute(blocked)).rowcount:
                pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await caller.usable()
        await caller.commit()
    assert await seen(watcher) == (1, 1)


async def test_django_is_told_of_an_error_that_broke_its_transaction(
    database_url: str, app: Holdfast
) -> None:
    """A block that can only be rolled back does not end as if it had been committed."""
    async with AsyncExitStack() as stack:
        conn = django_database(database_url, stack)
        with transaction.atomic():
            with pytest.raises(InvalidInput):
                app.enqueue_sync("job", "mail", tenant=ORG, priority=100, conn=conn)
            with pytest.raises(TransactionManagementError):
                app.enqueue_sync("job", "mail", tenant=ORG, conn=conn)
        with transaction.atomic():
            app.enqueue_sync("job", "mail", tenant=ORG, conn=conn)
        with conn.cursor() as cursor:
            cursor.execute("select count(*) from job")
            assert cursor.fetchone() == (1,)


async def test_two_hundred_racing_enqueues_of_one_key_make_one_job_and_one_first_event(
    database_url: str, app: Holdfast, watcher: Watcher
) -> None:
    """J-4: fifty connections of two libraries, four calls each, released together; all get one id."""
    barrier = asyncio.Barrier(50)

    async def race(conn: Any) -> list[Any]:
        await barrier.wait()
        return [await app.enqueue("job", "mail", tenant=ORG, key="k", conn=conn) for _ in range(4)]

    async with AsyncExitStack() as stack:
        racers: list[Any] = []
        for _ in range(25):
            own = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
            racers.append(await stack.enter_async_context(own))
            racers.append(await asyncpg.connect(database_url))
            stack.push_async_callback(racers[-1].close)
        answers = [receipt for some in await asyncio.gather(*map(race, racers)) for receipt in some]
    assert len(answers) == 200
    assert len({receipt.id for receipt in answers}) == 1
    assert sum(receipt.created for receipt in answers) == 1
    assert await seen(watcher) == (1, 1)


# -- the wrong connection --------------------------------------------------------------------------------


async def test_a_connection_that_leads_to_another_schema_is_refused(
    caller: Caller, settings: Settings, watcher: Watcher
) -> None:
    stranger = replace(caller, app=Holdfast(replace(settings, schema="cell_7")))
    for enqueue in (stranger.enqueue, lambda: stranger.enqueue_many(item())):
        with pytest.raises(InvalidInput, match="leads to the schema public, and HOLDFAST_SCHEMA is cell_7"):
            await enqueue()
    await caller.usable()
    await caller.commit()
    assert await seen(watcher) == (0, 0)


async def test_a_connection_of_the_other_kind_is_told_the_right_method(caller: Caller) -> None:
    async def wrong() -> None:
        if caller.sync:
            await caller.app.enqueue("job", "mail", tenant=ORG, conn=caller.conn)
        else:
            caller.app.enqueue_sync("job", "mail", tenant=ORG, conn=caller.conn)

    right = "use enqueue_sync or enqueue_many_sync" if caller.sync else "await enqueue or enqueue_many"
    with pytest.raises(InvalidInput, match=right) as refused:
        await wrong()
    assert refused.value.field == "conn"


async def test_what_is_no_connection_is_refused_with_what_would_be(database_url: str, app: Holdfast) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    pool = psycopg_pool.ConnectionPool(database_url, open=False)
    for wrong in (engine, pool, database_url, object(), Holdfast):
        with pytest.raises(InvalidInput, match="psycopg's AsyncConnection, asyncpg's Connection"):
            await app.enqueue("job", "mail", tenant=ORG, conn=wrong)
        with pytest.raises(InvalidInput, match=r"SQLAlchemy's Session, .* Django's connection"):
            app.enqueue_sync("job", "mail", tenant=ORG, conn=wrong)
    with pytest.raises(InvalidInput, match=r"no connection that we know, but builtins\.NoneType"):
        app.enqueue_sync("job", "mail", tenant=ORG, conn=None)
    with engine.connect() as conn, pytest.raises(InvalidInput, match=r"leads to sqlite\+pysqlite"):
        app.enqueue_sync("job", "mail", tenant=ORG, conn=conn)
    engine.dispose()


async def test_the_handlers_type_is_checked_before_the_row_is_written(
    caller: Caller, watcher: Watcher
) -> None:
    """J-7: where the process that enqueues knows the handler; a kind that it does not know is accepted."""

    @caller.app.handler("mail", limit=7)
    def send(address: str) -> None:
        raise AssertionError(address)

    with pytest.raises(InvalidInput, match="payload"):
        await caller.enqueue("mail", {"not": "a text"})
    with pytest.raises(InvalidInput) as refused:
        await caller.enqueue_many(item(payload="ana"), item(payload=5))
    assert refused.value.field.startswith("items[1].payload")
    await caller.enqueue("mail", "ana")
    await caller.enqueue("unknown", {"any": "thing"})
    await caller.commit()
    rows = await (await watcher.execute("select type, max_attempts from job order by type")).fetchall()
    assert rows == [("mail", 7), ("unknown", 5)]


# -- the examples ----------------------------------------------------------------------------------------

PAGE = (Path(__file__).parent.parent / "docs" / "enqueue.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
async def test_each_example_of_the_docs_is_a_program_that_commits_its_order_with_its_job(
    database_url: str, watcher: Watcher, tmp_path: Path, place: int
) -> None:
    await watcher.execute("create table if not exists orders (number int); truncate orders")
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", EXAMPLES[place]),
        env={**os.environ, "DATABASE_URL": database_url, "HOLDFAST_HOME": str(tmp_path)},
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await run.communicate()
    assert run.returncode == 0, said.decode()
    number = 18 if "enqueue_many_sync" in EXAMPLES[place] else 17
    assert await (await watcher.execute("select number from orders")).fetchall() == [(number,)]
    query = "select idempotency_key, payload from job where type = 'invoice:send'"
    assert await (await watcher.execute(query)).fetchall() == [(f"order-{number}", {"number": number})]


def test_the_docs_name_every_connection_and_every_option() -> None:
    for _, name in (*callers.SYNC, *callers.ASYNC):
        assert name in PAGE or name in ("BaseDatabaseWrapper", "ConnectionProxy", "PoolConnectionProxy"), name
    for name in Options.__annotations__:
        assert f"`{name}`" in PAGE, name
