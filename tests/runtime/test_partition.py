"""A network that is silent: connections stay open, and nothing comes through."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Context, Holdfast, Settings
from holdfast.db.pool import Connection
from holdfast.runtime import presence
from runtime.support import (
    PATIENCE,
    Process,
    add,
    column,
    one,
    until,
    until_task,
    until_true,
    working,
)

Start = Callable[..., Process]
INSERT = "insert into tasks (type) values (%s) returning id"


class Proxy:
    """Between workers and the server: accepts and keeps connections, and forwards while it is `open`."""

    def __init__(self, server: str, database: str, login: str) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.server = server
        self.database = database
        self.login = login
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._port = 0

    @property
    def url(self) -> str:
        return f"postgresql://{self.login}@127.0.0.1:{self._port}/{self.database}?sslmode=disable"

    async def run(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._port = self._listener.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._tasks.append(asyncio.create_task(self._carry(reader, writer)))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.open.wait()
        from_server, to_server = await asyncio.open_unix_connection(self.server)
        self._writers.append(to_server)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._forward(reader, to_server))
            both.create_task(self._forward(from_server, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self.open.wait()
                writer.write(data)
        await self.open.wait()  # an end is not forwarded either
        writer.close()

    async def close(self) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[Proxy]:
    given = conninfo_to_dict(database_url)
    server = Path(str(given["host"])) / f".s.PGSQL.{given.get('port') or 5432}"
    proxy = Proxy(str(server), str(given["dbname"]), f"{given['user']}:{given['password']}")
    await proxy.run()
    yield proxy
    proxy.open.set()
    await proxy.close()


async def test_a_worker_that_reaches_no_database_stops_its_handlers_and_comes_back_under_a_new_id(
    settings: Settings, proxy: Proxy, conn: Connection, traces: None
) -> None:
    events: list[str] = []
    door = asyncio.Event()
    begun = asyncio.Semaphore(0)

    def handler_of(app: Holdfast, kind: str, **options: bool) -> None:
        @app.handler(kind, **options)  # type: ignore[arg-type]
        async def handle(ctx: Context) -> None:
            if kind == "writes":
                own = await ctx.transaction()
                await own.execute("insert into effects (task) values (%s)", (ctx.job.id,))
            if ctx.fence > 1:
                return  # the second run
            begun.release()
            try:
                await asyncio.to_thread(ctx.cancelled.wait, PATIENCE)
                events.append(f"{kind}: told")
                await door.wait()
                events.append(f"{kind}: went on")
            except asyncio.CancelledError:
                events.append(f"{kind}: cancelled")
                raise

    short = replace(settings, database_url=proxy.url, worker_timeout=4.0)
    async with Holdfast(short) as app:
        handler_of(app, "waits")
        handler_of(app, "writes")
        handler_of(app, "stays", cancel_when_lost=False)
        app.handler("note")(lambda payload: None)
        ids = [await add(app, kind) for kind in ("waits", "writes", "stays")]
        async with working(app, ledgers=["tasks"]) as worker:
            for _ in ids:
                await begun.acquire()
            old = worker.id
            proxy.open.clear()
            began = time.monotonic()
            await until_true(lambda: len(events) == 3)
            assert time.monotonic() - began < 4.0 + 10
            assert sorted(events) == ["stays: told", "waits: cancelled", "writes: cancelled"]
            assert await column(conn, "select task from effects") == []

            proxy.open.set()
            await until(conn, "select true from workers where id <> %s", old)
            door.set()
            note = await add(app, "note")
            assert (await until_task(conn, note, "completed"))["worker_id"] == worker.id != old
            for task_id in ids:  # the leader, or the worker itself, has let them run again
                row = await until_task(conn, task_id, "completed")
                assert (row["worker_id"], row["fence"]) == (worker.id, 2)
            await until_true(lambda: "stays: went on" in events)
    assert await column(conn, "select task from effects") == [ids[1]]


async def test_a_worker_with_a_silent_database_stops_in_time(
    start: Start, proxy: Proxy, conn: Connection, traces: None
) -> None:
    """With a handler at work that has a transaction open, and with nothing to do."""
    busy = start("--concurrency", "1", url=proxy.url, shutdown_timeout=2, worker_timeout=600)
    await one(conn, INSERT, "sleeps after its effect")
    await until(conn, "select true from runs where event = 'written'")
    idle = start(url=proxy.url, shutdown_timeout=2, worker_timeout=600)
    serving = (
        "select count(*) = 2 from pg_stat_activity where application_name like 'holdfast worker tasks%%'"
    )
    await until(conn, serving + " and datname = current_database()")
    proxy.open.clear()
    began = time.monotonic()
    for process in (busy, idle):
        process.ask_to_stop()
    codes = [await process.ended() for process in (busy, idle)]
    assert time.monotonic() - began < 2 + 20  # a few seconds, on a machine that has nothing else to do
    assert codes == [1, 0]


async def test_a_worker_that_is_stopped_while_its_first_election_is_not_answered_ends_at_once(
    settings: Settings, proxy: Proxy, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, elect = threading.Event(), presence.elect

    async def unanswered(*given: Any) -> bool:  # in the keeper's thread
        proxy.open.clear()
        asked.set()
        return await elect(*given)

    monkeypatch.setattr(presence, "elect", unanswered)
    # As they are, a statement has 30 seconds, and the call some more.
    async with Holdfast(replace(settings, database_url=proxy.url)) as app:
        app.handler("note")(lambda payload: None)
        worker = app.worker(ledgers=["tasks"])
        running = asyncio.ensure_future(worker.run())
        await until_true(asked.is_set)
        began = time.monotonic()
        worker.stop()
        assert await running == 0
        assert time.monotonic() - began < 20
