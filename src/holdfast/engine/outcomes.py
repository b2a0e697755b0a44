"""What a handler answers. A value, matched once (`decide`): raising is for what nobody foresaw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.values import Item, Json


@dataclass(frozen=True)
class Done:
    """The work is done. `result` is kept where the ledger has a place for it.

    `then` is further work for the same ledger, enqueued in the transaction that ends this row: both happen,
    or neither. The row has ended by then, so its key is free.
    """

    result: Json = None
    then: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Retry:
    """This run failed; try again, after `after` seconds instead of the backoff where given.

    `facts` are JSON that is kept where the ledger keeps its errors as JSON.
    """

    reason: str = "the handler asked for a retry"
    after: float | None = None
    code: str = "RETRY"
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True)
class Fail:
    """This can never work: no retry. `facts` as for `Retry`."""

    reason: str
    code: str = "FAILED"
    trace: str | None = None
    facts: Mapping[str, Json] = field(default_factory=dict[str, Json])


@dataclass(frozen=True)
class Snooze:
    """Not now: call me again in `seconds`. Costs no attempt."""

    seconds: float


@dataclass(frozen=True)
class Cancel:
    """The handler itself calls the work off."""

    reason: str = "cancelled by its handler"


@dataclass(frozen=True)
class Crashed:
    """What the runtime makes of an exception, a time-out or a lost process: an ordinary bad run.

    `sqlstate` is that of an error of the database.
    """

    code: str
    message: str
    trace: str | None = None
    sqlstate: str | None = None


Outcome = Done | Retry | Fail | Snooze | Cancel
Ending = Outcome | Crashed


def outcome_of(answer: Any) -> Outcome:
    """A handler may return an outcome, or anything else, which is then the result of `Done`."""
    return answer if isinstance(answer, Outcome) else Done(answer)
