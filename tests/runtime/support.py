"""What the tests of the runtime share: workers inside the test, workers as real processes, and waiting.

Nothing here sleeps and hopes: `until` asks the database until a deadline; handlers wait at a `Gate`, which
is an advisory lock that the test holds.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from holdfast import Edge, Holdfast, Item, Lane, Ledger
from holdfast.db.pool import Connection
from holdfast.engine.roles import Attempts, Due, Key, TextError, Times
from holdfast.runtime.worker import Worker

PATIENCE = 60.0  # seconds until a wait fails its test: much, since a busy machine is slow and not wrong
PATH = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])

# Whether so many listen, in this database.
LISTENING = (
    "select count(*) >= %s from pg_stat_activity"
    " where query ilike 'listen%%' and datname = current_database()"
)
# Whoever waits for an advisory lock of this database, and not of that of a test beside.
AT_A_GATE = (
    "select count(*) > 0 from pg_locks where locktype = 'advisory' and not granted"
    " and database = (select oid from pg_database where datname = current_database())"
)

# -- a second ledger, whose words are its own --------------------------------------------------------

ERRANDS = Ledger(
    name="errands",
    table="errands",
    key=Key("number", "bigint"),
    state="stage",
    states=("waiting", "doing", "over", "bad"),
    ends=("over", "bad"),
    edges=(
        Edge("enqueue", to="waiting"),
        Edge("claim", frm=("waiting",), to="doing"),
        Edge("finish", frm=("doing",), to="over"),
        Edge("retry", frm=("doing",), to="waiting"),
        Edge("exhaust", frm=("doing",), to="bad"),
        Edge("reject", frm=("doing",), to="bad"),
        Edge("snooze", frm=("doing",), to="waiting"),
        Edge("release", frm=("doing",), to="waiting"),
        Edge("lose", frm=("doing",), to="waiting"),
        Edge("cancel", frm=("waiting", "doing"), to="bad"),
        Edge("requeue", frm=("bad",), to="waiting"),
    ),
    lanes=(Lane("due", due="due_at", order=("due_at",)),),
    owner="holder",
    fence="claim_number",
    kind="what",
    payload="details",
    due=Due("due_at", cleared=False),
    attempts=Attempts("tries", limit=5),
    errors=TextError("trouble"),
    times=Times(created="made_at", claimed="taken_at"),
)

ERRANDS_TABLE = """
create table errands (
    number bigint generated always as identity primary key, what text not null, details jsonb,
    stage text not null, holder text, claim_number bigint not null default 0,
    made_at timestamptz not null default now(), taken_at timestamptz,
    due_at timestamptz not null default now(), tries int not null default 0, trouble text
);
create index errands_due on errands (due_at) where stage = 'waiting';
create index errands_held on errands (holder) where stage = 'doing';
"""

# What handlers leave behind: `runs` is written at once, `effects` in the transaction of the job.
TRACES = """
create table runs (
    n bigint generated always as identity, task uuid, event text not null, worker text, pid int,
    at timestamptz not null default clock_timestamp()
);
create table effects (task uuid not null, note text);
"""

# -- asking the database -----------------------------------------------------------------------------


async def until(
    conn: Connection, query: str, *params: Any, within: float = PATIENCE, every: float = 0.01
) -> Any:
    """Asks until the answer's first column is true, `every` so many seconds; answers with it."""
    deadline = time.monotonic() + within
    while True:
        row = await (await conn.execute(query, params)).fetchone()
        if row and row[0]:
            return row[0]
        assert time.monotonic() < deadline, f"not within {within:g} s: {query} {params}"
        await asyncio.sleep(every)


async def until_true(condition: Callable[[], object]) -> None:
    """Waits for something in this process that gives no signal."""
    deadline = time.monotonic() + PATIENCE
    while True:
        if condition():
            return
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s"
        await asyncio.sleep(0.01)


async def one(conn: Connection, query: str, *params: Any) -> Any:
    """The first column of the first row."""
    row = await (await conn.execute(query, params)).fetchone()
    return row[0] if row else None


async def column(conn: Connection, query: str, *params: Any) -> list[Any]:
    """The first column of every row."""
    return [row[0] for row in await (await conn.execute(query, params)).fetchall()]


async def task(conn: Connection, task_id: Any) -> dict[str, Any]:
    """A row of `tasks` by its names."""
    cursor = await conn.cursor(row_factory=dict_row).execute("select * from tasks where id = %s", (task_id,))
    row = await cursor.fetchone()
    assert row
    return row


async def until_task(conn: Connection, task_id: Any, status: str, within: float = PATIENCE) -> dict[str, Any]:
    """Waits until the task has this status."""
    await until(conn, "select true from tasks where id = %s and status = %s", task_id, status, within=within)
    return await task(conn, task_id)


async def add(app: Holdfast, kind: str, payload: Any = None, **options: Any) -> Any:
    """Enqueues a task without asking its handler; answers with its id."""
    async with app.database.connection() as conn:
        item = Item(kind=kind, payload=payload, **options)
        return (await app.store("tasks").enqueue(conn, item)).id


async def add_many(app: Holdfast, kind: str, count: int) -> None:
    """Enqueues many tasks with the payload 0, 1, 2 …"""
    async with app.database.connection() as conn:
        await app.store("tasks").copy(conn, (Item(kind=kind, payload=n) for n in range(count)))


class Gate:
    """A door that handlers wait at, in any process: an advisory lock that the test holds until `open`."""

    WAIT = "select pg_advisory_lock_shared(7), pg_advisory_unlock_shared(7)"

    def __init__(self, conn: Connection) -> None:
        self.conn = conn

    async def close(self) -> None:
        await self.conn.execute("select pg_advisory_lock(7)")

    async def open(self) -> None:
        await self.conn.execute("select pg_advisory_unlock(7)")


# -- workers inside the test -------------------------------------------------------------------------


@asynccontextmanager
async def working(app: Holdfast, **options: Any) -> AsyncIterator[Worker]:
    """A worker at work for the length of the block; stopped orderly at its end."""
    worker = app.worker(**options)
    async with running(worker):
        yield worker


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[asyncio.Task[int]]:
    """The same for a worker that was made already."""
    work = asyncio.create_task(worker.run())
    try:
        yield work
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await work


async def drain(app: Holdfast, **options: Any) -> int:
    """Works until there is nothing to do."""
    async with asyncio.timeout(PATIENCE):
        return await app.worker(**options).run(until_idle=True)


async def present(conn: Connection, worker: Worker) -> None:
    """Waits until the worker has its row."""
    await until(conn, "select true from workers where id = %s", worker.id)


# -- workers as processes ----------------------------------------------------------------------------


@contextmanager
def not_outliving(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """Ends a process with the block, and with ours: politely first, by its id, however the block ends."""

    def end() -> None:
        if process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:  # also when we are interrupted while we wait
            process.kill()
            process.wait()

    atexit.register(end)
    try:
        yield process
    finally:
        end()
        atexit.unregister(end)


def shown(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Shows a measurement to whoever runs the test, also without -s."""
    with capsys.disabled():
        sys.stdout.write(f"\n{text}\n")


class Process:
    """A worker process: `python -m runtime.program`, with the handlers of that module."""

    def __init__(self, url: str, log: Path, options: Sequence[str], settings: Mapping[str, Any]) -> None:
        variables = {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
        with log.open("w") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "runtime.program", *options],
                env=os.environ
                | {"PYTHONPATH": PATH, "HOLDFAST_DATABASE_URL": url, "HOLDFAST_PROFILE": "test"}
                | {"HOLDFAST_MIN_RETRY_SECONDS": "0"}
                | variables,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.log = log
        self.pid = self.popen.pid

    def freeze(self) -> None:
        """SIGSTOP, and waits until every thread has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        states = Path(f"/proc/{self.pid}/task")
        while any(_state(thread / "stat") != "T" for thread in states.iterdir()):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def ask_to_stop(self) -> None:
        self.popen.terminate()

    def end(self, within: float = PATIENCE) -> int:
        """Waits for its end; the exit code."""
        return self.popen.wait(within)

    async def ended(self, within: float = PATIENCE) -> int:
        return await asyncio.to_thread(self.end, within)

    def said(self) -> str:
        return self.log.read_text()


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "T"  # a thread that has ended stands still as well


async def worker_of(conn: Connection, process: Process, other_than: str = "") -> str:
    """The id under which a process is registered."""
    query = "select id from workers where id like %s and id <> %s"
    return await until(conn, query, f"%-{process.pid}-%", other_than)


async def cut(conn: Connection, purpose: str = "%") -> int:
    """Ends every connection of Holdfast to this database, or those of one purpose; answers how many."""
    query = """
        select count(pg_terminate_backend(pid)) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid()
            and application_name like %s and application_name not like 'holdfast test%%'
    """
    return await one(conn, query, f"holdfast {purpose}%")


async def make_tables(conn: Connection, schema: str | None = None) -> None:
    """The tables of TRACES and ERRANDS."""
    if schema:
        await conn.execute(SQL("set search_path to {}").format(Identifier(schema)))
    await conn.execute(TRACES)
    await conn.execute(ERRANDS_TABLE)
