"""The values that go in and come out of the engine: frozen, named, and without behaviour of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from holdfast.engine.lifecycle import Verb

Json = Any  # what json.loads may give


@dataclass(frozen=True, kw_only=True)
class Item:
    """One piece of work to enqueue. What is left None gets the column's own default.

    `delay` is in seconds; `run_at` is an aware datetime; at most one of both. `limit` is the ledger's
    limit of attempts, in the ledger's own meaning. `backoff` is how the row waits between bad runs: none,
    fixed or exp, where the ledger has a column for it. `trace` is a W3C traceparent, and is kept where the
    ledger has a column for it.
    """

    kind: str | None = None
    payload: Any = None
    key: str | None = None
    priority: int | None = None
    delay: float | None = None
    run_at: datetime | None = None
    limit: int | None = None
    backoff: str | None = None
    queue: str | None = None
    tenant: Any = None
    trace: str | None = None
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Options(TypedDict, total=False):
    """What an `Item` says beside its kind and payload, as keywords of an enqueue."""

    key: str | None
    priority: int | None
    delay: float | None
    run_at: datetime | None
    limit: int | None
    backoff: str | None
    queue: str | None
    tenant: Any
    trace: str | None
    extras: Mapping[str, Any]


@dataclass(frozen=True)
class Receipt:
    """The answer to an enqueue: the row's id, and whether this call made it."""

    id: Any
    created: bool


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """A row in the hands of a worker. `owner` and `fence` prove the claim; every later write names them.

    `waited` is how long it was due before it was taken, in seconds.
    """

    id: Any
    kind: str
    payload: str | None
    state: str
    owner: str | None
    fence: int
    attempts: int
    limit: int | None
    policy: str | None = None
    tenant: Any = None
    trace: str | None = None
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a ledger as people see it: the roles by their common names, the rest in `columns`.

    What the journal knows beyond the row, `result`, `stage` and `progress`, is there when one row is asked
    for, and None in a list.
    """

    id: Any
    kind: str
    state: str
    payload: Json
    owner: str | None
    fence: int | None
    attempts: int | None
    limit: int | None
    due: datetime | None
    created: datetime
    updated: datetime | None
    claimed: datetime | None
    started: datetime | None
    finished: datetime | None
    error: str | None
    columns: Mapping[str, Json]
    tenant: Any = None
    trace: str | None = None
    result: Json = None
    stage: str | None = None
    progress: float | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """One hop of a row, as its journal tells it. `seq` is the order; `at` is for people."""

    seq: int
    at: datetime
    prev: str | None
    next: str
    detail: Mapping[str, Json]


@dataclass(frozen=True, kw_only=True)
class Change(Event):
    """One hop of any row of a ledger, told with the row's id."""

    id: Any


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why a run ended badly: a class of error, a text for people, and the trace where there is one.

    `facts` are JSON that is kept where the ledger keeps its errors as JSON.
    """

    code: str
    message: str
    trace: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state that is to be written: the verb, the claim that allows it, what goes with it.

    `then` is further work, to be enqueued in the same transaction.
    """

    verb: Verb
    claim: Claimed
    delay: float = 0.0
    fault: Fault | None = None
    result: Json = None
    then: tuple[Item, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which rows are meant. Everything that is given must hold. `code` is the class of the last error.

    `extras` are values of the further columns that an enqueue may fill. `key` is an idempotency key.
    """

    states: tuple[str, ...] = ()
    kind: str | None = None
    key: str | None = None
    owner: str | None = None
    queue: str | None = None
    tenant: Any = None
    extras: Mapping[str, Any] = field(default_factory=dict[str, Any])
    code: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None
    finished_after: datetime | None = None
    finished_before: datetime | None = None


@dataclass(frozen=True)
class Page:
    """Some rows, newest first, and the cursor of the next page (None: there is none)."""

    rows: tuple[Row, ...]
    cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Stat:
    """How many rows are in a state, since when the oldest of them was made, and since when one is due.

    `exact`: they were counted; else the number is the planner's estimate, and `oldest` and `due` are those of
    the rows that were looked at, if any.
    """

    state: str
    rows: int
    oldest: datetime | None = None
    due: datetime | None = None
    exact: bool = True


@dataclass(frozen=True, kw_only=True)
class Touch:
    """The state of a row now, and the open transaction that has touched it: `pid` None for a prepared one."""

    state: str
    locked: bool
    pid: int | None = None
    program: str | None = None
    login: str | None = None
    session: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many rows of one kind are in one state."""

    state: str
    kind: str
    rows: int
