"""One run of a row: its handler is called, and what has to be written about the row comes out of it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg

from holdfast.db.database import Database
from holdfast.engine.decide import decide
from holdfast.engine.intake import absorb
from holdfast.engine.outcomes import Crashed, Ending, Snooze
from holdfast.engine.reading import MESSAGE_LENGTH
from holdfast.engine.store import Connection
from holdfast.engine.values import Claimed, Fault, Move
from holdfast.errors import ClaimLost, DatabaseAuthError, DatabaseUnavailable, HoldfastError, NotFound
from holdfast.runtime.context import Context, Finishing
from holdfast.runtime.execute import Places, execute
from holdfast.runtime.handlers import Handler, Handlers
from holdfast.runtime.processes import crash_of
from holdfast.runtime.pulse import Tally
from holdfast.runtime.share import Share

log = logging.getLogger("holdfast.worker")

# InternalError: the server is read-only for a moment, as during a fail-over.
LOSSES = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.InternalError,
    DatabaseUnavailable,
    DatabaseAuthError,
)
# What says nothing about a run, by SQLSTATE: connections, a server that only reads for now, our own silence,
# conflicts, no memory or room for us, locks, a server that goes down, a disk that stumbles. Not a full one:
# that would be tried without end.
PASSING = ("08", "25006", "25P03", "25P04", "40", "53200", "53300", "55P03", "57P", "58030")
# What is about the row itself, though psycopg has it in one class with losses: limits of an index or a
# statement, and whatever a trigger calls a wrong state.
OWN = ("54", "55000")
# What is about the session or a statement that it has prepared, though psycopg has it in one class with wrong
# SQL: a statement that is missing or there twice, and one whose table has been altered since (by the function
# that says so, as the code is shared with what a trigger may raise).
SESSION = ("26", "42P05")
STALE_PLAN = "RevalidateCachedQuery"
# What a run meets that another transaction stood in the way of, by SQLSTATE. It costs the row no attempt.
CONFLICTS = ("40001", "40P01", "55P03")
MAX_CONFLICTS = 10  # of one row, in one worker: then one counts, for the row may be to blame after all
MAX_REMEMBERED = 10_000  # rows whose conflicts are counted
FIRST_PAUSE, LAST_PAUSE = 1.0, 5.0  # seconds before a row is given back whose transaction has failed
LAST_DELAY = 30.0  # seconds until a row is due again that has met conflicts
NO_PRIVILEGE = psycopg.errors.InsufficientPrivilege.__name__


def passes(error: BaseException) -> bool:
    """Whether the database was away, or another stood in the way. What else it refuses it would again."""
    if isinstance(error, psycopg.InterfaceError | DatabaseUnavailable):
        return True
    lost = isinstance(error, psycopg.OperationalError | psycopg.InternalError)
    return lost and (not error.sqlstate or error.sqlstate.startswith(PASSING))


def is_loss(error: BaseException) -> bool:
    """Whether this is about the database or the session, and not about what was written."""
    if not isinstance(error, psycopg.Error):
        return isinstance(error, LOSSES)
    state = error.sqlstate or ""
    if state.startswith(SESSION) or error.diag.source_function == STALE_PLAN:
        return True
    return isinstance(error, LOSSES) and not state.startswith(OWN)


class Runner:
    """Runs the rows of one ledger, each by its handler."""

    def __init__(
        self, share: Share, database: Database, handlers: Handlers, places: Places, tally: Tally
    ) -> None:
        self.store = share.store
        self.ledger = share.store.ledger
        self.backoff = share.backoff
        self.min_wait = database.settings.min_retry_seconds
        self.database = database
        self.handlers = handlers
        self.places = places
        self.tally = tally
        self._pause = FIRST_PAUSE
        self._conflicts: dict[Any, int] = {}  # by row
        self.put_off_until = 0.0  # on the monotonic clock: when the last row is due again that met a conflict

    async def run(self, claim: Claimed, context: Context, finishing: Finishing) -> Move | None:
        """What is still to be written when the handler has answered; None: nothing, it has been."""
        handler = self._handler(claim)
        try:
            ending = await self._execute(handler, claim, context)
            if await self._ended_itself(context):
                return None
            if context.finished and not isinstance(ending, Crashed):
                ending = Crashed(code="COMMIT_FAILED", message="the handler's transaction did not commit")
            if isinstance(ending, Crashed) and self._is_uncounted_conflict(claim, ending.sqlstate):
                return await self._release(claim, finishing, ending.message)
            move = self._decide(handler, claim, self._advised(ending, finishing))
            if move.then or (finishing.conn is not None and move.verb in ("finish", "snooze")):
                return await self._finish_in_transaction(handler, finishing, move)
            if move.verb == "release" and finishing.failed:
                await self._wait(finishing)
            return move
        except ClaimLost as lost:
            if not await self._ended_itself(context):
                await self._tell_loss(claim, lost)
            return None

    @property
    def _releases(self) -> bool:
        return bool(self.ledger.lifecycle.of("release"))

    def _is_uncounted_conflict(self, claim: Claimed, sqlstate: str | None) -> bool:
        """Whether a run that ended by this costs no attempt. Counts the conflicts of the row."""
        met = self._conflicts.pop(claim.id, 0)
        if sqlstate not in CONFLICTS or not self._releases or met == MAX_CONFLICTS:
            return False
        if len(self._conflicts) == MAX_REMEMBERED:  # others have run these rows since
            self._conflicts.clear()
        self._conflicts[claim.id] = met + 1
        return True

    async def _release(self, claim: Claimed, finishing: Finishing, reason: str) -> Move:
        """Give a row back that could not be run for a reason that lies outside of it, to be run later.

        Where the ledger knows no later, it keeps its slot for a while instead.
        """
        fault = Fault(code="CONFLICT", message=absorb(reason, MESSAGE_LENGTH))
        log.warning(
            "%s %s: released without counting the attempt: %s", self.ledger.name, claim.id, fault.message
        )
        if not self.ledger.lifecycle.of("snooze"):
            await self._wait(finishing)
            return Move(verb="release", claim=claim, fault=fault)
        delay = min(FIRST_PAUSE * 2 ** (self._conflicts[claim.id] - 1), LAST_DELAY)
        self.put_off_until = max(self.put_off_until, time.monotonic() + delay)
        return Move(verb="snooze", claim=claim, delay=delay, fault=fault)

    def crashed(self, claim: Claimed, error: BaseException) -> Move:
        """What is written about a run that ended by this."""
        return self._decide(self._handler(claim), claim, crash_of(error))

    def _handler(self, claim: Claimed) -> Handler:
        handler = self.handlers.find(self.ledger.name, claim.kind)
        assert handler, "the pump starts no row without one"
        return handler

    async def _execute(self, handler: Handler, claim: Claimed, context: Context) -> Ending:
        """The run itself, with its time taken: also of one that is called off."""
        began = time.monotonic()
        try:
            return await execute(handler, claim, context, self.places)
        finally:
            self.tally.ran(self.ledger.name, claim.kind, time.monotonic() - began)

    def _advised(self, ending: Ending, finishing: Finishing) -> Ending:
        """A handler whose tenant may not touch a table is told what would help."""
        if not (isinstance(ending, Crashed) and finishing.confined and ending.code == NO_PRIVILEGE):
            return ending
        role = self.ledger.tenant and self.ledger.tenant.role
        advice = f"ctx.transaction() acts as {role}: grant it the table, or ask for confined=False"
        return replace(ending, message=f"{ending.message} ({advice})")

    def _decide(self, handler: Handler, claim: Claimed, ending: Ending) -> Move:
        if isinstance(ending, Crashed):
            said = absorb(ending.message, MESSAGE_LENGTH)  # a log takes no more than a column does
            trace = ending.trace and absorb(ending.trace)
            log.warning("%s %s: %s", self.ledger.name, claim.id, said, extra={"trace": trace})
        try:
            return decide(self.ledger, claim, ending, handler.backoff or self.backoff, min_wait=self.min_wait)
        except Exception as error:  # an answer that makes no sense is a bad run, not the worker's end
            return decide(self.ledger, claim, crash_of(error), self.backoff, min_wait=self.min_wait)

    async def _ended_itself(self, context: Context) -> bool:
        """Whether the handler has written its own end, and that was committed; then it is told."""
        if context.finished is None:
            return False
        with suppress(psycopg.Error, *LOSSES):  # unheard of, a bad run is said, which finds no row
            async with self.database.connection() as conn:
                if await self.is_there(conn, context.finished):
                    self.tally.tell(self.store, [context.finished], frozenset([context.job.id]))
                    return True
        return False

    async def _tell_loss(self, claim: Claimed, lost: ClaimLost) -> None:
        fate = "unknown"
        with suppress(*LOSSES):
            async with self.database.connection() as conn:
                fate = await self.fate(conn, claim)
        log.warning("%s %s: %s; %s", self.ledger.name, claim.id, lost, fate)

    async def _finish_in_transaction(self, handler: Handler, finishing: Finishing, move: Move) -> Move | None:
        """Writes the end of the run where the handler wrote: both commit, or neither."""
        if getattr(finishing.conn, "_num_transactions", 1) > 1:  # the finish would go with it
            message = "the handler left a transaction of its own open"
            return self._decide(handler, move.claim, Crashed(code="COMMIT_FAILED", message=message))
        finishing.ending = True
        try:
            conn = await finishing.open(confined=bool(finishing.confined))
            await finishing.unconfine()
            await self.store.move_one(conn, move)
            await finishing.commit()
            self._pause = FIRST_PAUSE
            self.tally.tell(self.store, [move], frozenset([move.claim.id]))
        except ClaimLost:
            raise
        except (psycopg.Error, HoldfastError) as error:
            if isinstance(error, psycopg.Error) and self._is_uncounted_conflict(move.claim, error.sqlstate):
                return await self._release(move.claim, finishing, f"{type(error).__name__}: {error}")
            if passes(error) and self._releases and not self.ledger.lifecycle.of("retry"):
                # It is no fault of the row, which has one run: given back, unless it was written after all.
                log.warning("%s %s: the finish is unheard (%s)", self.ledger.name, move.claim.id, error)
                await self._wait(finishing)
                return self._decide(handler, move.claim, Snooze(seconds=0))
            # Refused, or the answer was lost: say a bad run, which finds no row if it was written after all.
            message = f"the transaction of the handler did not commit: {error}"
            return self._decide(handler, move.claim, Crashed(code="COMMIT_FAILED", message=message))
        return None

    async def _wait(self, finishing: Finishing) -> None:
        """Keeps a row for a while that will be given back, as the next claim would have it at once again.

        What its transaction has locked is let go before.
        """
        finishing.ending = False
        await finishing.close()
        pause, self._pause = self._pause, min(2 * self._pause, LAST_PAUSE)
        await asyncio.sleep(pause)

    # -- what became of a row ------------------------------------------------------------------------

    async def fate(self, conn: Connection, claim: Claimed) -> str:
        """What became of a row that was ours."""
        try:
            row = await self.store.get(conn, claim.id)
        except NotFound:
            return "gone"
        except LOSSES:
            raise
        except psycopg.Error as error:  # for the log alone: it holds nobody up
            return f"unknown ({error})"
        if row.state in self.ledger.ends:
            return row.state
        held = row.state in self.ledger.lifecycle.held and row.owner != claim.owner
        return f"transferred to {row.owner}" if held else f"unexpected: it is {row.state}"

    async def is_there(self, conn: Connection, finish: Move) -> bool:
        """Whether a row is as this finish made it, and not as another claim did."""
        try:
            row = await self.store.get(conn, finish.claim.id)
        except NotFound:
            return False
        return row.state == self.ledger.to("finish") and row.fence in (None, finish.claim.fence)
