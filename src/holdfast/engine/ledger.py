"""The declaration of a ledger: how a table of yours maps to the engine.

A ledger is plain, frozen data. It is checked as a whole when it is made, so that a wrong declaration says
everything that is wrong with it before a single row is touched. `doctor` compares it with the live table.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from holdfast.engine import sql
from holdfast.engine.lifecycle import VERBS, Edge, Lifecycle, Verb
from holdfast.errors import LedgerError

TimeKind = Literal["timestamptz", "timestamp", "epoch_ms"]
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]*(\.[A-Za-z_][A-Za-z0-9_ ]*)?(\(\d+\))?")


def uuid7() -> UUID:
    """A new time-ordered UUID: neighbours in time are neighbours in the index."""
    millis = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    number = (millis & (1 << 48) - 1) << 80 | tail
    number = number & ~(0xF << 76) | 7 << 76
    return UUID(int=number & ~(0x3 << 62) | 0x2 << 62)


@dataclass(frozen=True)
class Key:
    """The primary key. `make` draws a new one; without it the column's default does."""

    column: str = "id"
    type: str = "uuid"
    make: Callable[[], Any] | None = None


UUID_KEY = Key("id", "uuid", uuid7)


@dataclass(frozen=True)
class Order:
    """One column of a lane's order."""

    column: str
    descending: bool = False
    nulls_last: bool = False

    @staticmethod
    def parse(text: str) -> Order:
        """Reads `priority desc`, `created_at`, `priority desc nulls last`.

        >>> Order.parse("priority desc")
        Order(column='priority', descending=True, nulls_last=False)
        """
        column, *words = text.split()
        rest = " ".join(words).lower()
        if rest not in ("", "asc", "desc", "nulls last", "asc nulls last", "desc nulls last"):
            raise ValueError(f"cannot read the order {text!r}: write a column, then desc or nothing")
        return Order(column, "desc" in rest.split(), "nulls last" in rest)


@dataclass(frozen=True)
class Lane:
    """One index-backed way into the rows that may be claimed now.

    A lane takes the rows in `states` (default: all that may be claimed) with `empty` columns NULL, `filled`
    columns not NULL and, when `due` is given, that time reached. The order must be one that an index has.
    Lanes are merged column by column: a claim of n takes the n best of all lanes together.
    """

    name: str
    order: tuple[str, ...]
    states: tuple[str, ...] = ()
    due: str | None = None
    empty: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(Order.parse(text) for text in self.order)


@dataclass(frozen=True)
class Due:
    """When a row may be claimed. `cleared`: NULL means at once, and a claim clears it."""

    column: str
    cleared: bool = True


@dataclass(frozen=True)
class Attempts:
    """How runs are counted, and how many there may be.

    counts = "runs": runs that have ended; the limit is the number of runs.
    counts = "retries": retries that were granted; the limit is the number of retries.
    counts = "starts": claims, given back by snooze and release; the limit is the number of runs.
    """

    column: str
    limit: str | int
    counts: Literal["runs", "retries", "starts"] = "runs"


@dataclass(frozen=True)
class Times:
    """The columns that tell when, and their type. `first_start`: `started` is the first run's."""

    created: str
    updated: str | None = None
    claimed: str | None = None
    started: str | None = None
    finished: str | None = None
    kind: TimeKind = "timestamptz"
    first_start: bool = False


@dataclass(frozen=True)
class TextError:
    """One column with the text of the last error."""

    column: str
    length: int | None = None
    cleared_by_finish: bool = False


@dataclass(frozen=True)
class CodeError:
    """A class of error in one column, a text in another, each cut to its length in characters."""

    code: str
    message: str
    code_length: int | None = None
    message_length: int | None = None
    cleared_by_finish: bool = True


@dataclass(frozen=True)
class JsonError:
    """One jsonb column: {code, message}."""

    column: str
    cleared_by_finish: bool = True


@dataclass(frozen=True)
class TraceError:
    """A summary in one column and the whole trace in another."""

    message: str
    trace: str
    cleared_by_finish: bool = True


Errors = TextError | CodeError | JsonError | TraceError


@dataclass(frozen=True)
class Idempotency:
    """What makes two enqueues one, and what the second gets.

    The unique index is on (*scope, column); `partial`: it leaves NULL keys out; `within`: it covers these
    states only. repeat = "touch": the existing row, whose `updated` moves; "return": the existing row,
    untouched; "refuse": IdempotencyConflict; "ignore": nothing, and no id.
    """

    column: str
    scope: tuple[str, ...] = ()
    partial: bool = False
    within: tuple[str, ...] = ()
    repeat: Literal["touch", "return", "refuse", "ignore"] = "return"


@dataclass(frozen=True)
class Journal:
    """A table that gets one event for every hop of every row, in the statement that moves the row."""

    table: str
    row: str
    at: str
    prev: str
    next: str
    detail: str


@dataclass(frozen=True)
class RowLease:
    """A lease per row: `column` is refreshed while the row is worked on, and ends after `seconds`."""

    column: str
    seconds: float


@dataclass(frozen=True)
class Column:
    """A further column that an enqueue may fill."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A table whose rows are work.

    Without a `fence` column the owner column is the fence: each claim writes a token of its own there.
    `payload` is one jsonb column, or a tuple of plain columns that together are the payload.
    `owner_kept`: a row that has ended still names who ran it. `cancelled_text`: what a cancel writes as the
    error, None where the state says it all. `unknown_kind`: a row whose kind has no handler is rejected, or
    left for another worker.
    """

    name: str
    table: str
    states: tuple[str, ...]
    ends: tuple[str, ...]
    edges: tuple[Edge, ...]
    lanes: tuple[Lane, ...]
    times: Times
    owner: str
    state: str = "status"
    state_type: str = "text"
    key: Key = UUID_KEY
    kind: str | None = "type"
    payload: str | tuple[str, ...] | None = "payload"
    fence: str | None = None
    due: Due | None = None
    attempts: Attempts | None = None
    errors: Errors | None = None
    idempotency: Idempotency | None = None
    journal: Journal | None = None
    lease: RowLease | None = None
    priority: str | None = None
    queue: str | None = None
    tenant: Column | None = None
    extras: tuple[Column, ...] = ()
    owner_kept: bool = False
    cancelled_text: str | None = "cancelled"
    unknown_kind: Literal["reject", "leave"] = "reject"
    lifecycle: Lifecycle = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lifecycle", Lifecycle(self.states, self.ends, self.edges))
        if problems := list(self._problems()):
            raise LedgerError(title=f"the ledger {self.name!r} is declared wrongly:", problems=problems)

    @property
    def channel(self) -> str:
        """The doorbell's channel: rung when rows were added."""
        return f"holdfast_{self.name}"

    @property
    def cancel_channel(self) -> str:
        """The channel that tells workers to look whether their rows were called off."""
        return f"holdfast_{self.name}_cancel"

    def to(self, verb: Verb) -> str:
        """The state that `verb` leads to; all edges of a verb lead to one."""
        return self.lifecycle.of(verb)[0].to

    def at_limit(self, attempts: int, limit: int | None) -> bool:
        """Whether a run that ends badly now was the last one allowed."""
        if self.attempts is None or limit is None:
            return True
        return (attempts + 1 if self.attempts.counts == "runs" else attempts) >= limit

    def columns(self) -> Iterable[tuple[str, str]]:
        """Every (role, column) that the declaration names."""
        yield "key", self.key.column
        yield "state", self.state
        yield "owner", self.owner
        for role in ("kind", "fence", "priority", "queue"):
            if name := getattr(self, role):
                yield role, name
        if self.tenant:
            yield "tenant", self.tenant.name
        for name in (self.payload,) if isinstance(self.payload, str) else self.payload or ():
            yield "payload", name
        for role in ("created", "updated", "claimed", "started", "finished"):
            if name := getattr(self.times, role):
                yield role, name
        if self.due:
            yield "due", self.due.column
        if self.attempts:
            yield "attempts", self.attempts.column
            if isinstance(self.attempts.limit, str):
                yield "limit", self.attempts.limit
        for name in error_columns(self.errors):
            yield "error", name
        if self.idempotency:
            yield "idempotency key", self.idempotency.column
        if self.lease:
            yield "lease", self.lease.column
        for extra in self.extras:
            yield "extra", extra.name

    def _problems(self) -> Iterable[str]:
        if not NAME.fullmatch(self.name):
            yield f"the name {self.name!r} must be lower case letters, digits and _, at most 40"
        if not 1 <= len(self.table.split(".")) <= 2 or not all(self.table.split(".")):
            yield f"the table {self.table!r} must be `table` or `schema.table`"
        for table in (self.table, *((self.journal.table,) if self.journal else ())):
            if table in sql.NAMES or table.startswith("lane_"):
                yield f"the table {table!r} has a name that our statements use: write it as `schema.{table}`"
        further = (*self.extras, self.tenant) if self.tenant else self.extras
        for word in (self.key.type, self.state_type, *(column.type for column in further)):
            if not TYPE.fullmatch(word):
                yield f"{word!r} is not the name of a PostgreSQL type"
        yield from self.lifecycle.problems()
        yield from self._edge_problems()
        yield from self._lane_problems()
        yield from self._column_problems()

    def _edge_problems(self) -> Iterable[str]:
        edges = self.lifecycle
        for verb in VERBS:
            targets = {edge.to for edge in edges.of(verb)}
            if len(targets) > 1:
                listed = ", ".join(sorted(targets))
                yield f"the {verb!r} edges lead to several states ({listed}): one is needed"
        if self.errors is None and edges.of("retry"):
            yield "there is a 'retry' edge but no error column: nobody would know why a run failed"
        if edges.of("retry") and not (self.attempts and edges.of("exhaust")):
            yield "a 'retry' edge needs `attempts` and an 'exhaust' edge: else it retries for ever"
        if self.due is None and (late := [v for v in ("retry", "snooze") if edges.of(v)]):
            yield f"{' and '.join(late)} need a `due` column: else the row comes back at once"
        if self.lease is not None and self.lease.seconds <= 0:
            yield "the lease must last longer than 0 seconds"
        if self.attempts and isinstance(self.attempts.limit, int) and self.attempts.limit < 0:
            yield "the limit of attempts must not be negative"

    def _lane_problems(self) -> Iterable[str]:
        if not self.lanes:
            yield "there is no lane: without one no row can be found to claim"
        if len({lane.name for lane in self.lanes}) < len(self.lanes):
            yield "two lanes have the same name"
        for lane in self.lanes:
            if not NAME.fullmatch(lane.name):
                yield f"the lane's name {lane.name!r} must be lower case letters, digits and _"
            if self.due and self.due.column not in (lane.due, *lane.empty):
                yield f"the lane {lane.name!r} ignores {self.due.column!r}: make it `due` or `empty`"
            for state in lane.states:
                if state not in self.lifecycle.waiting:
                    yield f"the lane {lane.name!r} takes rows in {state!r}, from which no 'claim' edge leads"
            if not lane.order:
                yield f"the lane {lane.name!r} has no order"
            try:
                _ = lane.orders
            except ValueError as error:
                yield f"the lane {lane.name!r}: {error}"
        if len({len(lane.order) for lane in self.lanes}) > 1:
            yield "the lanes have orders of different length: they are merged column by column"
        elif self.lanes and not list(self._broken_orders()):
            directions = {tuple((o.descending, o.nulls_last) for o in lane.orders) for lane in self.lanes}
            if len(directions) > 1:
                yield "the lanes' orders run in different directions: they are merged column by column"

    def _broken_orders(self) -> Iterable[str]:
        for lane in self.lanes:
            for text in lane.order:
                try:
                    Order.parse(text)
                except ValueError:
                    yield text

    def _column_problems(self) -> Iterable[str]:
        seen: dict[str, str] = {}
        for role, column in self.columns():
            if not column or {"\x00", "%"} & set(column) or len(column.encode()) > 63:
                yield f"{role}: {column!r} cannot be the name of a column"
            if column in seen:
                yield f"the column {column!r} is both {seen[column]} and {role}"
            seen[column] = role
        if self.idempotency and self.idempotency.repeat == "touch":
            if self.key.make is None or self.times.updated is None:
                yield "repeat='touch' needs keys that we make and an `updated` column"
            if self.journal:
                yield "repeat='touch' would write an event for a row that did not move: use 'return'"
            if self.idempotency.within:
                yield "repeat='touch' fits no key that is unique within some states only: use 'refuse'"
        if self.idempotency:
            fillable = {name for role, name in self.columns() if role in ("kind", "queue", "tenant", "extra")}
            for name in self.idempotency.scope:
                if name not in fillable:
                    yield f"the idempotency rule has the scope {name!r}, which no enqueue fills"
            for state in self.idempotency.within:
                if state not in self.states:
                    yield f"the idempotency rule names the state {state!r}, which is not among the states"


def error_columns(errors: Errors | None) -> tuple[str, ...]:
    """The columns that an error is written to, in the order of `error_values`."""
    match errors:
        case None:
            return ()
        case TextError(column=column) | JsonError(column=column):
            return (column,)
        case CodeError(code=code, message=message):
            return code, message
        case TraceError(message=message, trace=trace):
            return message, trace
