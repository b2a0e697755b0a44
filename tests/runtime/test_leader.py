"""The lead: one at most, handed over at once by an orderly stop, within one term by a crash."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import Holdfast, Settings
from holdfast.db import pool
from holdfast.db.pool import Connection
from holdfast.runtime import presence, queries
from holdfast.runtime.duties import Duty, guarded
from holdfast.runtime.presence import Identity
from holdfast.runtime.worker import Worker
from runtime.support import (
    LISTENING,
    Process,
    column,
    one,
    present,
    until,
    until_task,
    until_true,
    worker_of,
    working,
)

TERM = 30.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEADERS = "select id from workers where is_leader"


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


async def register(conn: Connection, *ids: str, now: datetime | None = NOW) -> None:
    for task_id in ids:
        who = Identity(id=task_id, hostname="host", pool_size=1, version="1", serves=())
        await presence.register(conn, who, now=now)


# -- elections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "rounds"), [(2, 200), (20, 100)])
async def test_workers_that_elect_at_once_never_make_two_leaders(
    connect: Callable[[], Any], workers: int, rounds: int
) -> None:
    """T-38, T-39: each round begins with the last lease expired; one wins, one flag stands."""
    conns = [await connect() for _ in range(workers)]
    await register(conns[0], *(f"w{n}" for n in range(workers)))
    barrier = asyncio.Barrier(workers)

    async def stand(number: int, now: datetime) -> bool:
        await barrier.wait()
        return await presence.elect(conns[number], f"w{number}", TERM, now=now)

    for turn in range(rounds):
        now = later(turn * (TERM + 1))
        results = await asyncio.gather(*(stand(number, now) for number in range(workers)))
        winners = [f"w{number}" for number, won in enumerate(results) if won]
        assert len(winners) == 1
        assert await column(conns[0], LEADERS) == winners


async def test_an_expired_leader_does_not_extend_its_lease_beside_a_new_one(conn: Connection) -> None:
    """T-39: the seed's UPDATE would; the old flag is cleared by the new leader's election."""
    await register(conn, "a", "b")
    assert await presence.elect(conn, "a", TERM, now=NOW)
    assert not await presence.elect(conn, "b", TERM, now=later(TERM - 0.001))
    assert await presence.elect(conn, "b", TERM, now=later(TERM))
    assert await column(conn, LEADERS) == ["b"]
    assert not await presence.elect(conn, "a", TERM, now=later(TERM + 1))
    assert await column(conn, LEADERS) == ["b"]
    assert await one(conn, "select leader_until from workers where id = 'a'") is None


async def test_a_leader_extends_its_own_lease_and_says_that_it_lives(conn: Connection) -> None:
    """T-38, T-39: the term is 30 s from each renewal; last_heartbeat moves as well."""
    await register(conn, "a", "b")
    assert await presence.elect(conn, "a", TERM, now=NOW)
    assert await presence.elect(conn, "a", TERM, now=later(10))
    assert not await presence.elect(conn, "b", TERM, now=later(39.9))
    lease = "select leader_until, last_heartbeat from workers where id = 'a'"
    row = await (await conn.execute(lease)).fetchone()
    assert row == (later(40).replace(tzinfo=None), later(10).replace(tzinfo=None))
    assert await presence.elect(conn, "b", TERM, now=later(40))


async def test_a_worker_without_a_row_cannot_lead(conn: Connection) -> None:
    """T-36: a worker that was given up does not win elections."""
    await register(conn, "a")
    assert not await presence.elect(conn, "ghost", TERM, now=NOW)
    assert await column(conn, LEADERS) == []


async def test_a_leader_that_resigns_is_followed_at_once(conn: Connection) -> None:
    """T-40: nobody waits for the end of its term."""
    await register(conn, "a", "b")
    assert await presence.elect(conn, "a", TERM, now=NOW)
    await presence.resign(conn, "b")  # it does not lead: nothing happens
    assert await column(conn, LEADERS) == ["a"]
    await presence.resign(conn, "a")
    assert await presence.elect(conn, "b", TERM, now=later(1))


async def test_a_term_is_counted_from_the_end_of_the_wait_for_the_lock(
    conn: Connection, connect: Callable[[], Any]
) -> None:
    """T-39, §4: the time before the wait would give a lease that is partly or wholly over."""
    await register(conn, "a", now=None)
    holder, own = await connect(), await connect()
    await holder.execute("begin")
    await holder.execute(queries.ELECTION)
    election = asyncio.create_task(presence.elect(own, "a", TERM))
    await until(conn, "select true from pg_locks where not granted and pid = %s", own.info.backend_pid)
    waited = await one(conn, "select clock_timestamp() at time zone 'UTC'")
    await holder.execute("commit")
    assert await election
    until_then = await one(conn, "select leader_until from workers where id = 'a'")
    assert until_then > waited + timedelta(seconds=TERM)


# -- a process that is frozen on the way --------------------------------------------------------------


class Wire:
    """Between a client and the server: lets so many of the client's messages through, then nothing more."""

    def __init__(self) -> None:
        self.left: int | None = None  # None: everything goes through
        self.frozen, self.thawed = asyncio.Event(), asyncio.Event()

    def freeze_after(self, messages: int) -> None:
        self.left = messages
        if messages == 0:
            self.frozen.set()

    def thaw(self) -> None:
        self.left = None
        self.thawed.set()

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    async def messages(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The client's side: the first message has no type, all others are type, length, body."""
        with suppress(asyncio.IncompleteReadError):
            head = await reader.readexactly(4)
            writer.write(head + await reader.readexactly(_length(head)))
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(_length(head[1:]))
                if self.left == 0:
                    await self.thawed.wait()
                writer.write(head + body)
                if self.left is not None:
                    self.left -= 1
                    if self.left == 0:
                        self.frozen.set()


def _length(head: bytes) -> int:
    return int.from_bytes(head, "big") - 4


@asynccontextmanager
async def wired(settings: Settings) -> AsyncIterator[tuple[Wire, Connection]]:
    """A connection whose wire can be frozen."""
    wire, folder = Wire(), Path(tempfile.mkdtemp(prefix="hf"))
    carrying: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []
    assert settings.database_url
    given = conninfo_to_dict(settings.database_url)
    name = f".s.PGSQL.{given.get('port') or 5432}"

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, server = await asyncio.open_unix_connection(Path(str(given["host"])) / name)
        writers.extend((writer, server))
        carrying.append(asyncio.create_task(wire.messages(reader, server)))
        carrying.append(asyncio.create_task(wire.answers(answers, writer)))

    server = await asyncio.start_unix_server(accept, folder / name)
    url = make_conninfo(settings.database_url, host=str(folder), sslmode="disable", gssencmode="disable")
    try:
        async with await pool.connect(settings, url, purpose="test") as conn:
            try:
                yield wire, conn
            finally:
                wire.thaw()
    finally:
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)
        for writer in writers:
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        shutil.rmtree(folder)


@pytest.mark.parametrize("messages", range(13))
async def test_a_process_that_freezes_in_an_election_does_not_keep_the_others_from_electing(
    settings: Settings, conn: Connection, messages: int
) -> None:
    """T-39, T-40: wherever its messages stop, the server has done all of the election or nothing of it."""
    await register(conn, "frozen", "other", now=None)
    held = (
        "select from pg_locks where locktype = 'advisory' and granted"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    done = "select exists (select from workers where id = 'frozen' and is_leader)"
    async with wired(settings) as (wire, own):
        for _ in range(6):  # psycopg prepares what it has seen five times
            assert await presence.elect(own, "frozen", TERM)
        await presence.resign(own, "frozen")
        wire.freeze_after(messages)
        election = asyncio.create_task(presence.elect(own, "frozen", TERM))
        await until_true(lambda: wire.frozen.is_set() or election.done())
        await until(conn, f"select ({done}) or not exists ({held})")
        async with asyncio.timeout(5):
            took = await presence.elect(conn, "other", TERM)
        assert took is not await one(conn, done)
        wire.thaw()
        assert await election is not took


# -- leaders in time ---------------------------------------------------------------------------------


async def test_an_orderly_stop_hands_the_lead_over_at_once(settings: Settings, conn: Connection) -> None:
    """T-40: with a term of a minute and a try every twenty seconds, the other leads within a second."""
    long = replace(settings, leader_term=60)
    async with Holdfast(long) as app, working(app) as second:
        await present(conn, second)
        await until(conn, "select true from workers where is_leader and id = %s", second.id)
        async with working(app) as first:
            await present(conn, first)
            await until(conn, LISTENING, 2)
            second.stop()
            await until(conn, "select not exists (select from workers where id = %s)", second.id)
            gone = await one(conn, "select clock_timestamp() at time zone 'UTC'")
            await until(conn, "select true from workers where is_leader and id = %s", first.id, within=10)
            elected = await one(conn, "select leader_until - interval '60 s' from workers where is_leader")
    assert elected - gone < timedelta(seconds=1)


async def test_a_lead_that_is_not_renewed_is_taken_when_its_term_ends(
    settings: Settings, conn: Connection
) -> None:
    """T-40: a crash is made good within one term, not at the next third of ours."""
    await register(conn, "crashed", now=None)
    assert await presence.elect(conn, "crashed", 2.0)
    async with (
        Holdfast(replace(settings, leader_term=300, worker_timeout=600)) as app,
        working(app) as worker,
    ):
        await until(conn, "select true from workers where is_leader and id = %s", worker.id, within=20)
        elected = await one(conn, "select leader_until - interval '300 s' from workers where is_leader")
        ended = await one(conn, "select last_heartbeat + interval '2 s' from workers where id = 'crashed'")
    assert timedelta(0) <= elected - ended < timedelta(seconds=1)


async def test_a_killed_leader_is_replaced_within_one_term(
    traces: None, start: Callable[..., Process], conn: Connection
) -> None:
    """T-40: real processes, kill -9."""
    term = {"leader_term": 3, "heartbeat_interval": 1, "worker_timeout": 30}
    first = start(**term)
    leader = await worker_of(conn, first)
    await until(conn, "select true from workers where is_leader and id = %s", leader)
    second = start(**term)
    follower = await worker_of(conn, second)
    first.kill()
    killed = await one(conn, "select clock_timestamp() at time zone 'UTC'")
    await until(conn, "select true from workers where is_leader and id = %s", follower)
    elected = await one(conn, "select leader_until - interval '3 s' from workers where is_leader")
    assert elected - killed < timedelta(seconds=3.5)
    assert await column(conn, LEADERS) == [follower]


async def test_a_leader_that_slept_past_its_term_does_no_duty_before_it_is_elected_again(
    traces: None, start: Callable[..., Process], conn: Connection
) -> None:
    """T-40: also after a pause longer than its lease; seen by a dead worker that stays unburied."""
    sleeper = start(leader_term=1, worker_timeout=60)
    old = await worker_of(conn, sleeper)
    await until(conn, "select true from workers where is_leader and id = %s", old)
    # A dead worker is buried by the leader, so duties do work here.
    await register(conn, "ghost 1")
    await until(conn, "select not exists (select from workers where id = 'ghost 1')")

    sleeper.freeze()
    follower = start(leader_term=600, worker_timeout=600)
    new = await worker_of(conn, follower)
    await until(conn, "select true from workers where is_leader and id = %s", new)
    follower.freeze()
    await conn.execute("delete from workers where hostname = 'host'")
    await register(conn, "ghost 2")
    sleeper.thaw()
    slept = await one(conn, "select last_heartbeat from workers where id = %s", old)
    awake = "select last_heartbeat > %s + interval '2 s' from workers where id = %s"
    await until(conn, awake, max(slept, await one(conn, "select now() at time zone 'UTC'")), old)
    task_id = await one(conn, "insert into tasks (type) values ('note') returning id")
    await until_task(conn, task_id, "completed")
    assert await one(conn, "select count(*) from workers where id = 'ghost 2'") == 1
    assert await column(conn, LEADERS) == [new]

    await conn.execute("update workers set leader_until = now() - interval '1 s' where id = %s", (new,))
    await until(conn, "select not exists (select from workers where id = 'ghost 2')")
    assert await column(conn, LEADERS) == [old]
    follower.thaw()


async def test_the_first_try_is_at_the_start(settings: Settings, conn: Connection) -> None:
    """T-40: a worker that begins alone leads before its first claim."""
    async with Holdfast(replace(settings, leader_term=600)) as app, working(app) as worker:
        await present(conn, worker)
        await until_true(lambda: worker.keeper.leads)
        assert await column(conn, LEADERS) == [worker.id]


async def test_a_leader_renews_its_lease_before_each_term_ends(settings: Settings, conn: Connection) -> None:
    """T-40: a try every third of a term, so that the lead does not change hands while its leader lives."""
    await conn.execute("""
        create table gaps (at timestamp);
        create function note_gap() returns trigger language plpgsql as $$ begin
            insert into gaps values (new.last_heartbeat);
            return null;
        end $$;
        create trigger note_gap after update on workers for each row
            when (old.is_leader and (not new.is_leader or new.last_heartbeat >= old.leader_until))
            execute function note_gap();
    """)
    async with Holdfast(replace(settings, leader_term=3)) as app, working(app) as worker:
        await until(conn, "select true from workers where is_leader and id = %s", worker.id)
        first = await one(conn, "select leader_until from workers")
        await until(conn, "select leader_until > %s + interval '6 s' from workers", first)
        assert await column(conn, "select at from gaps") == []


async def test_a_duty_that_takes_longer_than_a_term_goes_on_while_its_leader_leads(
    settings: Settings, conn: Connection
) -> None:
    """T-40: every renewal of the lead is one of what it is doing; another's failing duty ends nobody."""
    went_on, cut_off = asyncio.Event(), asyncio.Event()

    async def long(on: Connection, leader: str) -> int:
        try:
            for _ in range(30):  # three terms
                await on.execute("select pg_sleep(0.1)")
            went_on.set()
        except asyncio.CancelledError:
            cut_off.set()
            raise
        return 1

    async def broken(_: Connection, leader: str) -> int:
        raise KeyError("no such thing")

    duties = [Duty(name="long", every=0.1, run=long), Duty(name="broken", every=0.1, run=broken)]
    async with Holdfast(settings) as app:
        worker = Worker(app.database, app.worker().shares, app.handlers, duties=[*map(guarded, duties)])
        run = asyncio.create_task(worker.run())
        await present(conn, worker)
        await until_true(lambda: went_on.is_set() or cut_off.is_set())
        assert not cut_off.is_set()
        worker.stop()
        await run
