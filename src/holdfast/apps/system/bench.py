"""What an executor stands on: the bench that all share, and the run of one job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import AsyncConnection
from psycopg.sql import SQL, Identifier

from holdfast.apps.system import bench_queries as queries
from holdfast.apps.system.joblog import JobLog, Level
from holdfast.apps.system.registry import SchemaRegistry, declared_by
from holdfast.db import system_settings
from holdfast.db.database import Database
from holdfast.db.settings import Settings
from holdfast.engine.outcomes import Done
from holdfast.engine.store import Store
from holdfast.errors import ClaimLost, DatabaseUnavailable
from holdfast.runtime.app import Ground
from holdfast.runtime.context import Context

if TYPE_CHECKING:
    from holdfast.apps.system.places import Archive

Connection = AsyncConnection[Any]
EVERY = 1.0  # seconds between two lines of progress
OURS = ("jobs", "tasks", "connectors", "schedules", "system")  # the apps whose tables nobody may drop


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all executors share."""

    ground: Ground
    registry: SchemaRegistry
    log: JobLog

    @property
    def settings(self) -> Settings:
        return self.ground.settings

    @property
    def database(self) -> Database:
        """The open database: a bench may be made before that."""
        return self.ground.database

    @property
    def stores(self) -> Mapping[str, Store]:
        return self.ground.stores

    @cached_property
    def archive(self) -> Archive:
        """Where archived rows are; `MissingExtra` where nobody could read or write them."""
        from holdfast.apps.system.places import archive_of

        return archive_of(self.settings)


def bench_of(ground: Ground) -> Bench:
    """The bench of an application; what it has is used when that is open."""
    settings = ground.settings  # read first: the ledgers are fitted to them
    return Bench(
        ground=ground,
        registry=SchemaRegistry(
            declared_by(ground.apps, ground.stores, OURS),
            {app.name: app.erasures for app in ground.apps if app.erasures},
        ),
        log=log_of(settings),
    )


def log_of(settings: Settings) -> JobLog:
    """The log that these settings mean."""
    path = system_settings.log_path(settings)
    return JobLog(path, max_bytes=settings.system_log_bytes, files=settings.system_log_files)


@dataclass(kw_only=True)
class Run:
    """The run of one job. `told` is what it has done so far, for the line of a job that is called off."""

    bench: Bench
    id: str
    context: Context
    lock: Connection
    told: str = ""
    _next: float = field(default=0.0, init=False)

    async def progress(self, done: int, total: int | None, what: str) -> None:
        """Tells how far it is, at a safe point: raises `ClaimLost` when the job is no longer ours.

        A line is written each second at most, and at the end.
        """
        self.told = f"{done} {what}"
        await self.still_ours()
        if time.monotonic() >= self._next or done == total:
            self._next = time.monotonic() + EVERY
            share = f" {100 * done / total:.0f}%" if total else ""
            of = f" of {total}" if total is not None else ""
            self.note(f"progress{share} {done}{of} {what}")

    async def still_ours(self) -> None:
        """Raises `ClaimLost` unless we hold the job, `DatabaseUnavailable` when its target's lock is lost."""
        store, claim = self.context.store, self.context.job
        async with self.bench.database.connection() as conn:
            held = await store.heartbeat(conn, [claim])
        if claim.id not in held:
            raise ClaimLost(what=store.ledger.name, id=claim.id, fence=claim.fence)
        await must_be_held(self.lock, "its target")

    async def hold(self, conn: Connection) -> None:
        """Keeps the job ours until the transaction ends, or raises `ClaimLost`: for what cannot be undone.

        Whoever would cancel it, or give it up for lost, waits for that end.
        """
        claim, ledger = self.context.job, self.context.store.ledger
        assert ledger.owner
        assert ledger.fence
        query = SQL(queries.HOLD).format(
            table=Identifier(*ledger.table.split(".")),
            key=Identifier(ledger.key.column),
            owner=Identifier(ledger.owner),
            fence=Identifier(ledger.fence),
            state=Identifier(ledger.state),
        )
        ours = {"id": claim.id, "owner": claim.owner, "fence": claim.fence}
        states = list(ledger.lifecycle.held)
        if await (await conn.execute(query, ours | {"states": states})).fetchone() is None:
            raise ClaimLost(what=ledger.name, id=claim.id, fence=claim.fence)

    async def finish(self, conn: Connection, told: str) -> None:
        """Writes that the job is done, in the transaction that does it: so that nobody can say otherwise."""
        await self.context.finish(conn, Done(told))

    def note(self, text: str, level: Level = "INFO") -> None:
        """One more line in the log."""
        self.bench.log.write(self.id, level, text)


@asynccontextmanager
async def target_lock(bench: Bench, target: str) -> AsyncGenerator[Connection | None]:
    """Keeps a target to oneself for the length of a run; None when somebody else has it.

    A lock of a transaction on a connection of its own: it goes with the process, whatever becomes of that,
    and a pooler does not mind. Nothing else happens in that transaction, so that it holds up no VACUUM.
    """
    async with await bench.database.connect("system job") as conn, conn.transaction():
        await conn.execute(queries.PATIENT)
        taken = await (await conn.execute(queries.LOCK, {"target": f"holdfast system {target}"})).fetchone()
        yield conn if taken and taken[0] else None


async def must_be_held(lock: Connection, what: str) -> None:
    """`DatabaseUnavailable` when the connection of a lock is lost: another may have by now what it kept."""
    try:
        await lock.execute(queries.HELD)
    except psycopg.Error:
        raise DatabaseUnavailable(message=f"the connection is lost that kept {what} to us") from None


async def own_connection(bench: Bench, purpose: str) -> Connection:
    """An autocommitting connection without a limit for its statements: VACUUM and large scans take long."""
    conn = await bench.database.connect(purpose)
    try:
        await conn.execute(queries.UNLIMITED)
    except BaseException:
        await asyncio.shield(conn.close())
        raise
    return conn
