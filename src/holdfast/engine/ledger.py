"""The declaration of a ledger: how a table of yours maps to the engine.

A ledger is plain, frozen data. It is checked as a whole when it is made, so that a wrong declaration says
everything that is wrong with it before a single row is touched. `doctor` compares it with the live table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, LiteralString

from holdfast.engine import sql
from holdfast.engine.backoff import BACKOFF, Backoff
from holdfast.engine.lifecycle import VERBS, Edge, Lifecycle, Verb
from holdfast.engine.roles import (
    UUID_KEY,
    Attempts,
    Column,
    Due,
    Errors,
    Idempotency,
    Journal,
    Key,
    Lane,
    Order,
    RowLease,
    Tenant,
    Times,
    Tries,
    error_columns,
)
from holdfast.errors import LedgerError

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
TYPE = re.compile(r"[A-Za-z_][A-Za-z0-9_ ]*(\.[A-Za-z_][A-Za-z0-9_ ]*)?(\(\d+\))?")


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """A table whose rows are work.

    Without a `fence` column the owner column is the fence: each claim writes a token of its own there.
    Without an `owner` column either, a claim is a row lock, held by the transaction that tells the row's
    end: an outbox that others may drain, too.
    `payload` is one jsonb column, or a tuple of plain columns that together are the payload.
    `owner_kept`: a row that has ended still names who ran it. `cancelled_text`: what a cancel writes as the
    error, None where the state says it all. `unknown_kind`: a row whose kind has no handler is left for
    another worker, or rejected by a worker made for this ledger (it is named, or a handler names it).
    `kind_indexed`: each lane also has an index that is led by the kind (behind the queue), so that rows of
    other kinds do not slow down a claim of some kinds. `unserved`: why no worker serves it under the settings
    of its app. `requester`: the column for who asked. `trace`: the
    column for the trace (a W3C traceparent) that a row belongs to. `lengths`: how many characters a column
    takes. `defaults`: what the table itself puts into columns that an enqueue leaves out; where all are
    known, a bulk of unlike items is one statement. `backoff` is how long bad runs wait, unless their handler
    says otherwise; `policy` is a column that names one of none, fixed and exp for each row,
    and `policy_type` that column's type. `beside` is what a verb writes into tables of your own, in the
    statement that moves the row: a CTE that reads `moved` (the rows' keys) and `moves`, or for a claim
    `picked`. `tries` counts bad runs where no column does. `queue_null`: a row without a queue is in the
    queue `default`. `door`: how rows are added, in a few words, where not by everybody's enqueue.
    """

    name: str
    table: str
    states: tuple[str, ...]
    ends: tuple[str, ...]
    edges: tuple[Edge, ...]
    lanes: tuple[Lane, ...]
    times: Times
    owner: str | None
    state: str = "status"
    state_type: str = "text"
    key: Key = UUID_KEY
    kind: str | None = "type"
    payload: str | tuple[str, ...] | None = "payload"
    fence: str | None = None
    due: Due | None = None
    attempts: Attempts | None = None
    tries: Tries | None = None
    errors: Errors | None = None
    idempotency: Idempotency | None = None
    journal: Journal | None = None
    lease: RowLease | None = None
    priority: str | None = None
    queue: str | None = None
    queue_null: bool = False
    tenant: Tenant | None = None
    requester: str | None = None
    trace: str | None = None
    policy: str | None = None
    policy_type: str = "text"
    extras: tuple[Column, ...] = ()
    lengths: Mapping[str, int] = field(default_factory=dict[str, int])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    backoff: Backoff = BACKOFF
    owner_kept: bool = False
    cancelled_text: str | None = "cancelled"
    unknown_kind: Literal["reject", "leave"] = "leave"
    kind_indexed: bool = False
    unserved: str | None = None
    door: str | None = None
    beside: Mapping[Verb, LiteralString] = field(default_factory=dict[Verb, LiteralString])
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

    @property
    def summarised(self) -> bool:
        """Whether a row that ended well has a summary of it."""
        return bool(getattr(self.errors, "summary", False))

    def to(self, verb: Verb) -> str:
        """The state that `verb` leads to; all edges of a verb lead to one."""
        return self.lifecycle.of(verb)[0].to

    def at_limit(self, attempts: int, limit: int | None) -> bool:
        """Whether a run that ends badly now was the last one allowed."""
        if self.tries:
            return attempts + 1 >= self.tries.limit
        if self.attempts is None or limit is None:
            return True
        return (attempts + 1 if self.attempts.counts == "runs" else attempts) >= limit

    def step(self, verb: str, prev: str | None) -> int:
        """What `verb` adds to the count of attempts of a row that was in `prev`; requeue begins at 0."""
        if self.attempts is None:
            return 0
        began = int(prev == self.lifecycle.running)
        match self.attempts.counts, verb:
            case "runs", "finish" | "retry" | "exhaust" | "reject" | "lose":
                return began
            case "retries", "retry":
                return 1
            case "retries", "lose" if self.to("lose") not in self.ends:
                return began
            case "starts", "claim":
                return 1
            case "starts", "snooze" | "release":
                return -1
            case _:
                return 0

    def columns(self) -> Iterable[tuple[str, str]]:
        """Every (role, column) that the declaration names."""
        yield "key", self.key.column
        yield "state", self.state
        if self.owner is not None:
            yield "owner", self.owner
        for role in ("kind", "fence", "priority", "queue", "requester", "policy", "trace"):
            if name := getattr(self, role):
                yield role, name
        if self.tenant:
            yield "tenant", self.tenant.name
        for name in (self.payload,) if isinstance(self.payload, str) else self.payload or ():
            yield "payload", name
        for role in ("created", "updated", "claimed", "started", "finished"):
            if name := getattr(self.times, role):
                yield role, name
        for name in self.due.columns if self.due else ():
            yield "due", name
        if self.attempts:
            yield "attempts", self.attempts.column
            if isinstance(self.attempts.limit, str):
                yield "limit", self.attempts.limit
        for name in error_columns(self.errors):
            yield "error", name
        if self.idempotency and self.idempotency.column not in (self.kind, self.key.column):
            yield "idempotency key", self.idempotency.column
        if self.lease:
            yield "lease", self.lease.column
        for extra in self.extras:
            yield "extra", extra.name

    def _problems(self) -> Iterable[str]:
        if not NAME.fullmatch(self.name):
            yield f"the name {self.name!r} must be lower case letters, digits and _, at most 40"
        for table in (self.table, *((self.journal.table,) if self.journal else ())):
            parts = table.split(".")
            if not 1 <= len(parts) <= 2 or not all(map(_can_be_name, parts)):
                said = "must be `table` or `schema.table`, each of 1 to 63 bytes without % and NUL"
                yield f"the table {table!r} {said}"
            if table in sql.NAMES or table.startswith("lane_"):
                yield f"the table {table!r} has a name that our statements use: write it as `schema.{table}`"
        further = (*self.extras, self.tenant) if self.tenant else self.extras
        for word in (self.key.type, self.state_type, self.policy_type, *(column.type for column in further)):
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
        if self.errors is None and edges.of("retry") and "retry" not in self.beside:
            yield "there is a 'retry' edge but no error column: nobody would know why a run failed"
        if edges.of("retry") and not ((self.attempts or self.tries) and edges.of("exhaust")):
            yield "a 'retry' edge needs `attempts` and an 'exhaust' edge: else it retries for ever"
        later: tuple[Verb, ...] = ("retry", "snooze")
        if self.due is None and (late := [v for v in later if edges.of(v) and v not in self.beside]):
            yield f"{' and '.join(late)} need a `due` column: else the row comes back at once"
        if self.tenant and (self.tenant.role is None) != (self.tenant.setting is None):
            yield "the tenant needs both a role and a setting, or neither: one alone confines nobody"
        if self.lease is not None and self.lease.seconds <= 0:
            yield "the lease must last longer than 0 seconds"
        if self.lease is not None and not 0 < (self.lease.every or 1e-9) <= self.lease.seconds / 3:
            yield "a lease must be renewed three times before it ends: `every` is too long"
        if self.owner is None and (edges.held or self.fence or self.lease):
            yield "without an owner column a claim is a lock: it leads from a state to itself, unfenced"
        if self.owner is not None and edges.of("claim") and not edges.held:
            yield "a 'claim' edge that leads from a state to itself fits no ledger with an owner column"
        if self.kind_indexed and self.kind is None:
            yield "`kind_indexed` needs a `kind` column"
        if self.attempts and self.tries:
            yield "either `attempts` or `tries` counts the runs, not both"
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
                if state not in self.lifecycle.claimable:
                    yield f"the lane {lane.name!r} takes rows in {state!r}, from which no 'claim' edge leads"
            if not lane.order:
                yield f"the lane {lane.name!r} has no order"
            taken = set(lane.states or self.lifecycle.claimable) & set(self.lifecycle.held)
            if taken and lane.where is None:
                told = ", ".join(map(repr, sorted(taken)))
                yield f"the lane {lane.name!r} takes rows in {told}, which workers hold: say `where`"
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
            if not _can_be_name(column):
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


def _can_be_name(name: str) -> bool:
    """Whether a table or column may have this name; psycopg takes % for a placeholder."""
    return bool(name) and not {"\x00", "%"} & set(name) and len(name.encode()) <= 63
