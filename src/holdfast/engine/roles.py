"""The roles that the columns of a table may have: the words of a ledger's declaration. Plain, frozen data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from psycopg.sql import Composable

TimeKind = Literal["timestamptz", "timestamp", "epoch_ms"]


def uuid7() -> UUID:
    """A new time-ordered UUID: neighbours in time are neighbours in the index."""
    millis = time.time_ns() // 1_000_000
    tail = int.from_bytes(os.urandom(10), "big")
    number = (millis & (1 << 48) - 1) << 80 | tail
    number = number & ~(0xF << 76) | 7 << 76
    return UUID(int=number & ~(0x3 << 62) | 0x2 << 62)


@dataclass(frozen=True)
class Key:
    """The primary key. `make` draws a new one; without it the column's default does.

    `by_kind`: it is told the kind of the new row, as such keys tell it.
    """

    column: str = "id"
    type: str = "uuid"
    make: Callable[..., Any] | None = None
    by_kind: bool = False


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
    Lanes are merged column by column: a claim of n takes the n best of all lanes together, but all of a lower
    `turn` before any of a higher. `where` is a further condition on the row `t`, for what no column tells; it
    may read `(select now from clock)`. The rows that it passes over are read at every claim: keep them few.
    `why` says to people what they wait for.
    """

    name: str
    order: tuple[str, ...]
    states: tuple[str, ...] = ()
    due: str | None = None
    empty: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    turn: int = 0
    where: Composable | None = None
    why: str = ""

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(Order.parse(text) for text in self.order)


@dataclass(frozen=True)
class Due:
    """When a row may be claimed. `cleared`: NULL means at once, and a claim clears it.

    `first`: the column for when a row is due at first, where the table keeps it apart from the time of its
    next run. It is never NULL and stays as an enqueue wrote it.
    """

    column: str
    cleared: bool = True
    first: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.first, self.column) if self.first else (self.column,)


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
class Tries:
    """How often a row was tried in vain, where a table of its own tells: `count` is SQL over the row `t`.

    A run that would be the `limit`th in vain is the last one.
    """

    count: Composable
    limit: int


@dataclass(frozen=True)
class Times:
    """The columns that tell when, and their type.

    `first_start`: `started` is the first run's. `finished_well`: `finished` is of rows that ended well alone.
    """

    created: str
    updated: str | None = None
    claimed: str | None = None
    started: str | None = None
    finished: str | None = None
    kind: TimeKind = "timestamptz"
    first_start: bool = False
    finished_well: bool = False


@dataclass(frozen=True)
class TextError:
    """One column with the text of the last error; `coded`: after its class, as `worker_lost: …`.

    `cleared_by_requeue`: a row that waits again has none.
    """

    column: str
    length: int | None = None
    coded: bool = False
    cleared_by_finish: bool = False
    cleared_by_requeue: bool = False


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
    """One jsonb column: {code, message}, and what the handler tells beside.

    With `history` also when and after how many attempts, and the same of the last so many bad runs.
    """

    column: str
    history: int = 0
    cleared_by_finish: bool = True


@dataclass(frozen=True)
class TraceError:
    """A summary in one column and the whole trace in another.

    `summary`: a row that ended well has what its handler answered there, if that is a text.
    """

    message: str
    trace: str
    cleared_by_finish: bool = True
    summary: bool = False


Errors = TextError | CodeError | JsonError | TraceError


@dataclass(frozen=True)
class Idempotency:
    """What makes two enqueues one, and what the second gets.

    The unique index is on (*scope, column); `partial`: it leaves NULL keys out; `within`: it covers these
    states only. repeat = "touch": the existing row, whose `updated` moves; "return": the existing row,
    untouched; "refuse": IdempotencyConflict; "ignore": nothing, and no id.
    Where `column` is the ledger's kind there is no key to give: of each kind there is one row a scope. Where
    it is the ledger's key, every caller names the row that it adds.
    """

    column: str
    scope: tuple[str, ...] = ()
    partial: bool = False
    within: tuple[str, ...] = ()
    repeat: Literal["touch", "return", "refuse", "ignore"] = "return"


@dataclass(frozen=True)
class Journal:
    """A table that gets one event for every hop of every row, in the statement that moves the row.

    `row` refers to the row, `seq` counts the events (an identity column), `at` is for people, `prev` and
    `next` are states, `detail` is jsonb.
    """

    table: str
    row: str
    seq: str
    at: str
    prev: str
    next: str
    detail: str


@dataclass(frozen=True)
class RowLease:
    """A lease per row: `column` is refreshed while the row is worked on, and ends after `seconds`.

    `every` is how often, in seconds: three times in a lease at least.
    """

    column: str
    seconds: float
    every: float | None = None


@dataclass(frozen=True)
class Column:
    """A further column that an enqueue may fill; with `choices` by one of these words only."""

    name: str
    type: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tenant:
    """Whose row it is. `role` and `setting`: how the database itself confines a transaction to one tenant.

    The role's policies compare the column with the setting; both are set for one transaction only.
    """

    name: str
    type: str
    role: str | None = None
    setting: str | None = None


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
