"""What a verb does to the columns of a row, beside its state: one function a role, in the words of the edges.

Every function answers with the fragments `column = value` of the UPDATE. In them `t` is the row, `m` the
move that is written: its key, the state the row came from (`prev`), the clock (`now`), the next due time.
"""

from __future__ import annotations

from collections.abc import Iterable

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Verb
from holdfast.engine.roles import JsonError, error_columns

LATER: tuple[Verb, ...] = ("retry", "snooze")
FAULTY: tuple[Verb, ...] = ("retry", "exhaust", "reject", "lose", "cancel")

NULL, DUE = SQL("null"), SQL("m.due")
LAST = 2**31 - 2  # a count that can still grow


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
    return _set(column, now(ledger)) if column else _set(ledger.state, column_of(ledger.state))


def now(ledger: Ledger) -> Composable:
    """The time of a move. Where a journal tells it, never before the last: also if the clock steps back."""
    if ledger.journal and ledger.times.updated:
        return SQL("greatest(m.now, {})").format(column_of(ledger.times.updated))
    return SQL("m.now")


def sets_due(ledger: Ledger, verb: Verb) -> bool:
    """Whether the verb says when the row may be claimed next."""
    return any(True for _ in _due(ledger, verb))


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
    if ledger.owner is None:
        return
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
        yield _set(ledger.due.column, SQL("m.now"))


def _times(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    times = ledger.times
    if times.claimed and verb == "claim":
        yield _set(times.claimed, now(ledger))
    elif times.claimed and _goes_back(ledger, verb):
        yield _set(times.claimed, NULL)
    if times.started:
        yield from _started(ledger, times.started, verb)
    if times.finished and _ends(ledger, verb) and (verb == "finish" or not times.finished_well):
        yield _set(times.finished, now(ledger))
    elif times.finished and (_goes_back(ledger, verb) or _leaves_end(ledger, verb)):
        yield _set(times.finished, NULL)
    if times.updated:
        yield _set(times.updated, now(ledger))


def _started(ledger: Ledger, column: str, verb: Verb) -> Iterable[Composable]:
    begins: Verb = "start" if ledger.lifecycle.of("start") else "claim"
    first = ledger.times.first_start
    if verb == begins:
        moment = now(ledger)
        yield _set(column, SQL("coalesce({}, {})").format(column_of(column), moment) if first else moment)
    elif _goes_back(ledger, verb) and (verb == "requeue" or not first):
        yield _set(column, NULL)


def _attempts(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.attempts is None:
        return
    column = ledger.attempts.column
    steps = {ledger.step(verb, state) for state in ledger.lifecycle.allowed(verb)}
    if verb == "requeue":
        yield _set(column, SQL("0"))
    elif steps == {0, 1}:  # one run more, but not for a row whose handler had not begun
        counts = SQL("{} + (m.prev = {})::int").format(column_of(column), Literal(ledger.lifecycle.running))
        yield _set(column, counts)
    elif verb == "claim" and 1 in steps:  # a count at the end of its type keeps no other row from a claim
        yield _set(column, SQL("least({}, {}) + 1").format(column_of(column), LAST))
    elif steps != {0}:
        yield _set(column, SQL("{} + 1" if steps == {1} else "{} - 1").format(column_of(column)))


def _errors(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.errors is None:
        return
    for place, column in enumerate(error_columns(ledger.errors)):
        if writes_error(ledger, verb):
            yield _set(column, _told(ledger, verb, column, SQL("m.{}").format(Identifier(f"error_{place}"))))
        elif verb == "finish" and ledger.summarised and place == 0:
            yield _set(column, SQL("m.result"))
        elif getattr(ledger.errors, f"cleared_by_{verb}", False):
            yield _set(column, NULL)


def _told(ledger: Ledger, verb: Verb, column: str, error: Composable) -> Composable:
    """The error as it is stored; where the column keeps a history, with the errors before it."""
    errors = ledger.errors
    if not (isinstance(errors, JsonError) and errors.history):
        return error
    facts: list[Composable] = [SQL("'timestamp', to_jsonb(m.now)")]
    if ledger.attempts:
        facts.append(SQL("'attempts', {}").format(column_of(ledger.attempts.column)))
    if verb == "retry":
        facts.append(SQL("'backoff_seconds', m.delay"))
    whole = SQL("({} || jsonb_build_object({}))").format(error, SQL(", ").join(facts))
    return SQL(
        "{0} || jsonb_build_object('history', jsonb_path_query_array("
        "coalesce({1}, '{{}}'), {2}) || jsonb_build_array({0}))"
    ).format(
        whole,
        column_of(column),
        SQL("{}::jsonpath").format(f"$.history[last - {errors.history - 2} to last]"),
    )


def _lease(ledger: Ledger, verb: Verb) -> Iterable[Composable]:
    if ledger.lease is None:
        return
    yield _set(ledger.lease.column, now(ledger) if verb in ("claim", "start") else NULL)
