"""What a verb does to the columns of a row, beside its state: one function a role, in the words of the edges.

Every function answers with the fragments `column = value` of the UPDATE. In them `t` is the row, `m` the
move that is written: its key, the state the row came from (`prev`), the clock (`now`), the next due time.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Verb
from holdfast.engine.roles import error_columns

LATER: tuple[Verb, ...] = ("retry", "snooze")
FAULTY: tuple[Verb, ...] = ("retry", "exhaust", "reject", "lose", "cancel")

NULL, NOW, DUE = SQL("null"), SQL("m.now"), SQL("m.due")


def sets(ledger: Ledger, verb: Verb) -> Composable:
    """The whole SET list of a verb."""
    state = _set(ledger.state, Literal(ledger.to(verb)))
    rest = (
        *_owner(ledger, verb),
        *_fence(ledger, verb),
        *_due(ledger, verb),
        *_times(ledger, verb),
        *_attempts(ledger, verb),
        *_errors(ledger, verb),
        *_lease(ledger, verb),
    )
    return SQL(", ").join((state, *rest))


def touch(ledger: Ledger) -> Composable:
    """The SET list of a move that leaves the row where it is."""
    column = ledger.times.updated
    return _set(column, NOW) if column else _set(ledger.state, column_of(ledger.state))


def writes_error(ledger: Ledger, verb: Verb) -> bool:
    """Whether the verb stores why."""
    return (
        ledger.errors is not None
        and verb in FAULTY
        and not (verb == "cancel" and ledger.cancelled_text is None)
    )


def column_of(name: str) -> Composable:
    return SQL("t.{}").format(Identifier(name))


def _set(name: str, value: Composable) -> Composable:
    return SQL("{} = {}").format(Identifier(name), value)


def _goes_back(ledger: Ledger, verb: Verb) -> bool:
    """Whether the row leaves its worker and waits again."""
    return verb not in ("claim", "start") and ledger.to(verb) not in ledger.ends


def _ends(ledger: Ledger, verb: Verb) -> bool:
    return ledger.to(verb) in ledger.ends


def _leaves_end(ledger: Ledger, verb: Verb) -> bool:
    """Whether the row may have ended before, and is now worked on again."""
    return any(state in ledger.ends for state in ledger.lifecycle.allowed(verb))


def _owner(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if verb == "claim":
        yield _set(ledger.owner, SQL("%(owner)s"))
    elif _goes_back(ledger, verb) or (_ends(ledger, verb) and not ledger.owner_kept):
        yield _set(ledger.owner, NULL)


def _fence(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if verb == "claim" and ledger.fence:
        yield _set(ledger.fence, SQL("{} + 1").format(column_of(ledger.fence)))


def _due(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.due is None:
        return
    if verb in LATER:
        yield _set(ledger.due.column, DUE)
    elif ledger.due.cleared and verb != "start":
        yield _set(ledger.due.column, NULL)
    elif _goes_back(ledger, verb):
        yield _set(ledger.due.column, NOW)


def _times(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    times = ledger.times
    if times.claimed and verb == "claim":
        yield _set(times.claimed, NOW)
    elif times.claimed and _goes_back(ledger, verb):
        yield _set(times.claimed, NULL)
    if times.started:
        yield from _started(ledger, times.started, verb)
    if times.finished and _ends(ledger, verb):
        yield _set(times.finished, NOW)
    elif times.finished and (_goes_back(ledger, verb) or _leaves_end(ledger, verb)):
        yield _set(times.finished, NULL)
    if times.updated:
        yield _set(times.updated, NOW)


def _started(ledger: Ledger, column: str, verb: Verb) -> Iterable[Composable]:
    begins: Verb = "start" if ledger.lifecycle.of("start") else "claim"
    first = ledger.times.first_start
    if verb == begins:
        now = SQL("coalesce({}, m.now)").format(column_of(column)) if first else NOW
        yield _set(column, now)
    elif _goes_back(ledger, verb) and (verb == "requeue" or not first):
        yield _set(column, NULL)


def _attempts(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.attempts is None:
        return
    column = ledger.attempts.column
    if verb == "requeue":
        yield _set(column, SQL("0"))
    elif (step := _step(ledger, verb)) is not None:
        yield _set(column, SQL("{} {}").format(column_of(column), step))


def _step(ledger: Ledger, verb: Verb) -> Composable | None:
    assert ledger.attempts is not None
    match ledger.attempts.counts, verb:
        case "runs", "finish" | "retry" | "exhaust" | "reject" | "lose":
            return _if_it_ran(ledger, verb)
        case "retries", "retry":
            return SQL("+ 1")
        case "retries", "lose" if not _ends(ledger, verb):
            return _if_it_ran(ledger, verb)
        case "starts", "claim":
            return SQL("+ 1")
        case "starts", "snooze" | "release":
            return SQL("- 1")
        case _:
            return None


def _if_it_ran(ledger: Ledger, verb: Verb) -> Composable:
    """One run more, but not for a row whose handler had not begun."""
    running = ledger.lifecycle.running
    if set(ledger.lifecycle.allowed(verb)) == {running}:
        return SQL("+ 1")
    return SQL("+ (m.prev = {})::int").format(Literal(running))


def _errors(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.errors is None:
        return
    for place, column in enumerate(error_columns(ledger.errors)):
        if writes_error(ledger, verb):
            yield _set(column, SQL("m.{}").format(Identifier(f"error_{place}")))
        elif verb == "finish" and ledger.errors.cleared_by_finish:
            yield _set(column, NULL)


def _lease(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.lease is None:
        return
    yield _set(ledger.lease.column, NOW if verb in ("claim", "start") else NULL)
