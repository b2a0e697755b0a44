"""What a handler is given beside its payload."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import cached_property
from typing import Any

from psycopg import AsyncConnection, AsyncTransaction, Error, Rollback
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.sql import SQL, Composed, Literal

from holdfast import tracing
from holdfast.db import connection
from holdfast.db.database import Database
from holdfast.db.pool import current_worker, session_name
from holdfast.db.settings import Settings
from holdfast.engine import tenants
from holdfast.engine.decide import decide
from holdfast.engine.ledger import Ledger
from holdfast.engine.outcomes import Done
from holdfast.engine.store import Store
from holdfast.engine.values import Claimed, Move
from holdfast.errors import ClaimLost, InvalidInput
from holdfast.runtime import queries

Log = logging.LoggerAdapter[logging.Logger]
logger = logging.getLogger("holdfast.job")
ROLLBACK_SECONDS = 2.0  # for the end of a handler's transaction; then its connection is closed


class Context:
    """The run of one row: who it is, and what its handler may do.

    `job` is the claimed row, `cancelled` is set when the row was called off or given to somebody else (an
    async handler is cancelled as well; a sync one has to look), `log` names the job in every line.
    """

    def __init__(self, store: Store, claim: Claimed, database: Database, finishing: Finishing) -> None:
        self.store = store
        self.job = claim
        self.finished: Move | None = None  # the end of the run, when the handler has written it itself
        self._database = database
        self._finishing = finishing
        self._progress_events = 0

    @cached_property
    def cancelled(self) -> threading.Event:
        """Set when nobody wants the answer any more."""
        return threading.Event()

    @cached_property
    def log(self) -> Log:
        """A logger whose lines name the ledger, the job and its trace, also where the log is not ours."""
        told = {"ledger": self.store.ledger.name, "job": str(self.job.id)}
        if trace := tracing.trace_id():
            told["trace_id"] = trace
        return logging.LoggerAdapter(logger, told)

    @property
    def ending(self) -> bool:
        """Whether the handler has answered, and its answer is being written."""
        return self._finishing.ending

    @property
    def attempt(self) -> int:
        """The number of this run, from 1."""
        attempts = self.store.ledger.attempts
        return self.job.attempts + (0 if attempts and attempts.counts == "starts" else 1)

    @property
    def fence(self) -> int:
        """The number of this claim. Pass it on to systems that can refuse a lower one than they have seen."""
        return self.job.fence

    async def progress(self, percent: float | None = None, stage: str | None = None) -> None:
        """Writes an event that tells how far the run has come; raises `ClaimLost` when the row is not ours.

        One run writes at most HOLDFAST_MAX_PROGRESS_EVENTS of them; after that only the claim is checked.
        """
        limit = self._database.settings.max_progress_events
        self._progress_events += 1
        if self._progress_events > limit:
            if self._progress_events == limit + 1:
                self.log.warning("progress events limited to %d in one run; writing no more", limit)
            async with self._database.connection() as conn:
                held = await self.store.heartbeat(conn, [self.job])
            if self.job.id not in held:
                raise ClaimLost(what=self.store.ledger.name, id=self.job.id, fence=self.job.fence)
            return
        async with self._database.connection() as conn:
            await self.store.progress(conn, self.job, percent, stage)
        self.log.info("%s%s", stage or "progress", "" if percent is None else f" {percent:g}%")

    async def transaction(self, *, confined: bool = True, writes: bool = True) -> AsyncConnection[Any]:
        """The connection of the transaction that finishes this job.

        What is written on it commits together with the finish, or not at all: when the handler answers
        `Done` or `Snooze` and the claim still holds, both are committed; otherwise both are rolled back.
        Where a ledger has no `snooze` edge a `Snooze(0)` gives the row back, and nothing is kept.
        Where the ledger's tenants have a role, the transaction acts as the job's tenant and sees what that
        one may see; `confined=False` acts as the worker itself. `writes=False`: it is only read there, so
        that nothing is lost where the end of an outbox's row is written in another transaction.
        """
        return await self._finishing.open(confined=confined, writes=writes)

    async def finish(self, conn: AsyncConnection[Any], outcome: Done | None = None) -> None:
        """Writes that this job is done, in a transaction of the handler's own; raises `ClaimLost`.

        For work that cannot be done in `transaction()`, as it needs several tries, or a connection of its
        own kind. Both commit together, or neither: say it last, and commit. What the handler answers or
        raises after that commit changes nothing; without a commit it is a bad run.
        """
        if conn.autocommit and conn.info.transaction_status is TransactionStatus.IDLE:
            raise InvalidInput(field="conn", message="must be in a transaction")
        move = decide(self.store.ledger, self.job, outcome or Done())
        if move.verb != "finish":
            raise InvalidInput(field="result", message=move.fault.message if move.fault else "is no result")
        self._finishing.leave()
        await self.store.move_one(conn, move)
        self.finished = move

    def when_committed(self, tell: Callable[[], None]) -> None:
        """Calls `tell` when the transaction of this run has been committed, and never if it has not."""
        self._finishing.afterwards.append(tell)


def transaction_limits(settings: Settings, worker: str | None, seconds: float | None) -> Composed:
    """The statement that opens a handler's transaction: whose it is, and its timeouts.

    It may wait for a lock for half as long as a statement, or a run (`seconds`), may take: a wait must not be
    taken for a slow statement or a slow handler.
    """
    longest = min(settings.db_statement_timeout_seconds, seconds or math.inf)
    return SQL(queries.HANDLER_LIMITS).format(
        name=Literal(session_name("pool", worker)),
        idle=Literal(_idle_limit(settings)),
        lock=Literal(_milliseconds(longest / 2)),
    )


def _idle_limit(settings: Settings) -> int:
    """Twice the worker timeout: it is renewed every third, by a loop that may be blocked for one whole."""
    return _milliseconds(min(2 * settings.worker_timeout, settings.db_idle_in_transaction_seconds))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000) or 1  # 0 would be no limit at all


class Finishing:
    """The transaction of one run, opened when its handler first asks for it. Ended by the pump alone."""

    def __init__(
        self,
        database: Database,
        places: asyncio.Semaphore,
        ledger: Ledger,
        claim: Claimed,
        conn: AsyncConnection[Any] | None = None,
        *,
        seconds: float | None = None,
    ) -> None:
        self.conn = conn  # of a transaction that is somebody else's to end, if given
        self.afterwards: list[Callable[[], None]] = []
        self.ending = False  # whether the end of the run is being written
        self.confined: bool | None = None  # whether it acts as the job's tenant; None before it is open
        self.writes = False  # whether the handler may have written there
        self._ledger = ledger
        self._claim = claim
        self._seconds = seconds  # how long the run may take
        self._is_confined = False
        self._left = False  # whether the handler ends the run in another transaction
        self._database = database
        self._places = places
        self._over = False
        self._transaction: AbstractAsyncContextManager[AsyncTransaction] | None = None
        self._opened = 0.0  # when, on the monotonic clock
        self._relaxed = False

    @cached_property
    def _stack(self) -> AsyncExitStack:
        return AsyncExitStack()

    @cached_property
    def _opening(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def open(self, *, confined: bool, writes: bool = True) -> AsyncConnection[Any]:
        """The connection, in its transaction."""
        self.writes = self.writes or writes
        rule = self._ledger.tenant
        confined = bool(confined and rule and rule.setting)
        async with self._opening:  # a handler may ask from several tasks of its own
            if self._over:
                raise InvalidInput(field="transaction", message="is over, as the run is")
            if self._left:
                raise InvalidInput(field="transaction", message="cannot be had beside finish()")
            if self.confined not in (None, confined):
                raise InvalidInput(field="confined", message="must be the same in every call of one run")
            self.confined = confined
            if self.conn is None:
                await self._stack.enter_async_context(self._places)
                conn = await self._stack.enter_async_context(self._database.connection())
                transaction = conn.transaction()
                await transaction.__aenter__()
                self.conn, self._transaction, self._opened = conn, transaction, time.monotonic()
                settings, worker = self._database.settings, current_worker.get()
                limits = transaction_limits(settings, worker, self._seconds)
                await conn.execute(limits, prepare=False)
            if confined and not self._is_confined:
                await tenants.confine(self.conn, self._ledger, self._claim.tenant)
                self._is_confined = True
            return self.conn

    async def keep_alive(self) -> None:
        """Keep the server from ending a transaction that sits idle while its handler computes.

        Its limit is short, for workers that have died. A transaction that has been open for as long as any
        session may sit idle is given that limit instead: its handler may hang.
        """
        conn, settings = self.conn, self._database.settings
        if conn is None or self._transaction is None or self._relaxed or conn.lock.locked():
            return  # there is none, or it is in use
        if conn.info.transaction_status is not TransactionStatus.INTRANS:
            return
        if conn.info.pipeline_status is not PipelineStatus.OFF:
            return  # we would be told of errors that are the handler's
        longest = settings.db_idle_in_transaction_seconds
        with suppress(Error):  # the handler, or the end of the run, meets it as well
            if time.monotonic() - self._opened < longest:
                await conn.execute("")
            else:
                self._relaxed = True
                limits = {"relaxed": str(_milliseconds(longest)), "limit": str(_idle_limit(settings))}
                await conn.execute(queries.RELAX, limits)

    def leave(self) -> None:
        """The run ends in another transaction: what was written in this one would be lost."""
        if self.conn is not None:
            raise InvalidInput(field="conn", message="must not be given beside transaction(): answer Done()")
        self._left = True

    @property
    def failed(self) -> bool:
        """Whether it was opened, and can only be rolled back."""
        return self.conn is not None and self.conn.info.transaction_status is not TransactionStatus.INTRANS

    async def unconfine(self) -> None:
        """Gives the transaction back the role that it began with, whatever the handler made of it."""
        if self.conn is not None:
            await tenants.unconfine(self.conn)

    async def commit(self) -> None:
        """Ends the transaction well."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            await transaction.__aexit__(None, None, None)
        self.tell()

    def tell(self) -> None:
        """Says to whoever wants to know that it was committed."""
        for tell in self.afterwards:
            tell()

    def over(self) -> None:
        """The run has ended: whoever of its handler still asks is refused."""
        self._over = True

    async def close(self) -> None:
        """Rolls back, unless it was committed, and gives the connection back."""
        if self.confined is None and "_opening" not in self.__dict__:
            self._over = True
            return  # nobody ever asked for it
        async with self._opening:
            self._over = True
            await self._end()

    async def _end(self) -> None:
        transaction, self._transaction = self._transaction, None
        conn, self.conn = self.conn, None
        if isinstance(conn, connection.Connection):
            conn.deadline = ROLLBACK_SECONDS  # it may have been lost in silence, and the row with it
        try:
            if transaction is not None:
                await transaction.__aexit__(Rollback, Rollback(), None)
            if conn is not None:
                await self._database.reset(conn)  # what the handler has set is not for the next one
            if isinstance(conn, connection.Connection):
                conn.deadline = None
        except Error as error:  # the server is away, or the handler left a transaction of its own open
            logger.warning("the handler's connection is thrown away: %s", error)
            if conn is not None:
                await conn.close()  # the server rolls back by itself
        finally:
            await self._stack.aclose()


class SyncContext:
    """The context of a handler that runs in a thread: the same, without the transaction."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self.job = context.job
        self.attempt = context.attempt
        self.fence = context.fence
        self.cancelled = context.cancelled
        self.log = context.log
        self._context = context
        self._loop = loop

    def progress(self, percent: float | None = None, stage: str | None = None) -> None:
        """Tells how far the run has come; raises `ClaimLost` when the row is no longer ours."""
        telling = self._context.progress(percent, stage)
        asyncio.run_coroutine_threadsafe(telling, self._loop).result()
