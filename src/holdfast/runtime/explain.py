"""Why is this row not running? One sentence with the facts; `inquiry` asks for them, here they are judged.

Each reason is a function that answers when it holds. The first that does is the answer, so their order is
that of what has to be mended first.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection

from holdfast.db.settings import Settings
from holdfast.engine.lifecycle import PERSONAL
from holdfast.engine.store import Store
from holdfast.engine.values import Json, Row
from holdfast.runtime.inquiry import MOST, Facts, gather, moment
from holdfast.runtime.presence import Present

Connection = AsyncConnection[Any]
LISTED = 8  # names that a sentence lists
ERROR_LENGTH = 200  # characters of an error that a sentence tells
NEVER = 9999  # the year that stands for infinity
START_ONE = "`holdfast worker` starts one"
START_FOR = "`holdfast worker --ledger"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why a row is where it is: a stable code, a sentence for people, and its facts for programs."""

    code: str
    sentence: str
    facts: Mapping[str, Json]


async def explain(conn: Connection, store: Store, row: Row, settings: Settings) -> Explanation:
    """Says what keeps a row from running, on a connection that sees everything."""
    facts = await gather(conn, store, row, settings)
    if facts.touch is not None and facts.touch.state != row.state:  # it moved while we looked
        facts = await gather(conn, store, await store.get(conn, row.id), settings)
    return judge(facts)


def judge(facts: Facts) -> Explanation:
    """The first reason that holds."""
    return next(found for reason in REASONS if (found := reason(facts)) is not None)


# -- rows that no worker waits for -----------------------------------------------------------------------


def _ended(facts: Facts) -> Explanation | None:
    row, lifecycle = facts.row, facts.ledger.lifecycle
    if row.state not in lifecycle.ends:
        return None
    done = row.state in {edge.to for edge in lifecycle.of("finish")}
    ended = row.finished or row.updated
    may = [verb for verb in PERSONAL if row.state in lifecycle.allowed(verb)]
    if "requeue" in may:
        rest = f"`holdfast requeue {shlex.join((facts.ledger.name, str(row.id)))}` lets it run again"
    else:
        rest = "nothing is left to do" if done else "no requeue leads from there: enqueue it anew"
    said = f": {_brief(row.error)}" if row.error and not done else ""
    when = f" {ago(facts, ended)}" if ended else ""
    return _told("ENDED", f"it ended as {row.state}{when}{said}; {rest}", facts, ended=ended, may=may)


def _held(facts: Facts) -> Explanation | None:
    row, ledger, holder = facts.row, facts.ledger, facts.holder
    if row.state not in ledger.lifecycle.held:
        return None
    worker = next((one for one in facts.workers if one.id == holder), None)
    if why := _lost(facts, worker):
        rest = (
            _given_back(facts, worker) if facts.living else f"no worker is alive to give it back: {START_ONE}"
        )
        return _told("HELD_BY_LOST", f"{why}; {rest}", facts, worker=holder, since=facts.since)
    if worker is None:
        sentence = f"{holder}, which is none of our workers, holds it, and its lease is not over"
        return _told("HELD", sentence, facts, worker=holder, since=facts.since)
    held = (
        f"{holder} has held it for {age(_since(facts, facts.since))}" if facts.since else f"{holder} holds it"
    )
    heard = f"said {age(worker.silent)} ago that it is alive"
    far = "".join((f", {row.stage}" if row.stage else "", f", {row.progress:g}%" if row.progress else ""))
    sentence = f"{held}{far}, and {heard}"
    return _told("HELD", sentence, facts, worker=holder, since=facts.since, heartbeat_seconds=worker.silent)


def _lost(facts: Facts, worker: Present | None) -> str | None:
    """Why the worker that holds a row will not finish it, if that is so."""
    lease = facts.ledger.lease
    if facts.holder is None:
        return f"it stands as {facts.row.state} and names no worker"
    renewed = moment(facts.ledger, facts.row.columns.get(lease.column)) if lease else None
    alive = lease is not None and renewed is not None and _since(facts, renewed) <= lease.seconds
    if alive and not facts.ledger.lifecycle.of("lose"):  # then the lease alone counts
        return None
    if worker is None:
        return f"its worker {facts.holder} is gone"
    if worker.silent > facts.settings.worker_timeout:
        return f"its worker {facts.holder} has been silent for {age(worker.silent)}"
    if lease and not alive:
        return f"the lease of {facts.holder} was not renewed for more than {age(lease.seconds)}"
    return None


def _given_back(facts: Facts, worker: Present | None) -> str:
    """By when a lost row comes back: the leader sweeps twice a heartbeat, and must be elected first."""
    if not facts.ledger.lifecycle.of("lose"):
        lease = age(facts.ledger.lease.seconds) if facts.ledger.lease else "its worker"
        return f"the next claim takes it over when its lease of {lease} has run out"
    if facts.holder is None:
        return "the leader gives it back after twice the longest time limit of its handlers"
    wait = facts.settings.heartbeat_interval / 2
    if not any(one.leads for one in facts.living):
        wait += facts.settings.leader_term
    if worker is None:  # it may just have registered: its rows are left alone for a while
        held = _since(facts, facts.since) if facts.since else 0.0
        wait += max(0.0, facts.settings.worker_timeout - held)
    return f"the leader gives the row back within {age(wait)}"


def _unclaimable(facts: Facts) -> Explanation | None:
    """A state that is neither an end nor claimable."""
    row, ledger = facts.row, facts.ledger
    may = ledger.lifecycle.verbs(row.state)
    if row.state not in ledger.lifecycle.waiting:
        sentence = f"nothing is claimed from {row.state}: {_listed(may) or 'nothing'} may happen to it there"
        return _told("NOT_CLAIMABLE", sentence, facts, may=list(may))
    return None


# -- rows that wait --------------------------------------------------------------------------------------


def _paused(facts: Facts) -> Explanation | None:
    holding = [one for one in facts.paused if one.queue in (None, facts.queue)]
    if not holding:
        return None
    first, name = holding[0], facts.ledger.name
    what = f"the ledger {name}" if first.queue is None else f"the queue {first.queue} of {name}"
    since = (
        f"{first.since:%H:%M}" if first.since.date() == facts.now.date() else f"{first.since:%Y-%m-%d %H:%M}"
    )
    by = f" by {first.by}" if first.by else ""
    why = f" ({first.reason})" if first.reason else ""
    lets = "lets" if len(holding) == 1 else "let"
    also = f", and so is its queue {holding[1].queue}" if len(holding) > 1 else ""
    commands = " and ".join(
        f"`holdfast resume {shlex.join(filter(None, (name, one.queue)))}`" for one in holding
    )
    sentence = f"{what} is paused since {since} UTC{by}{why}{also}; {commands} {lets} it run"
    told = {"queue": first.queue, "since": first.since, "by": first.by, "reason": first.reason}
    return _told("PAUSED", sentence, facts, **told)


def _not_due(facts: Facts) -> Explanation | None:
    row, due = facts.row, facts.row.due
    if due is None or due <= facts.now:
        return None
    when = (
        "it is never due" if due.year == NEVER else f"it is due in {age((due - facts.now).total_seconds())}"
    )
    if _failed_before(facts):
        failed = f" that failed {ago(facts, row.updated)}" if row.updated else ""
        sentence = f"it waits for its retry: the run{failed} said {_brief(row.error)}; {when}"
    else:
        sentence = f"it waits for its time: {when}"
    return _told("NOT_DUE", sentence, facts, due=due, error=row.error, attempts=row.attempts)


def _failed_before(facts: Facts) -> bool:
    """Whether the row waits for a retry, by its state, or where that does not tell, by its count of runs."""
    ledger, row = facts.ledger, facts.row
    retry = {edge.to for edge in ledger.lifecycle.of("retry")}
    if row.error is None or row.state not in retry:
        return False
    return row.state != ledger.lifecycle.initial or bool(row.attempts)


def _no_worker(facts: Facts) -> Explanation | None:
    ledger = facts.ledger.name
    if facts.ledger.unserved and not facts.serving:
        sentence = f"no worker serves {ledger}: {facts.ledger.unserved}"
        return _told("NO_WORKER_FOR_LEDGER", sentence, facts, workers=len(facts.living))
    if not facts.living:
        silent = f" ({count(len(facts.workers), 'is', 'are')} silent)" if facts.workers else ""
        return _told(
            "NO_WORKERS", f"no worker is alive{silent}: {START_ONE}", facts, silent=len(facts.workers)
        )
    if not facts.serving:
        others = _listed(sorted({name for one in facts.living for name in one.serves}))
        there = count(len(facts.living), "worker serves", "workers serve")
        sentence = f"no worker serves {ledger}: {there} {others or 'no ledger'}; {START_FOR} {ledger}` would"
        return _told("NO_WORKER_FOR_LEDGER", sentence, facts, workers=len(facts.living))
    there = count(len(facts.serving), "worker serves", "workers serve")
    if not facts.near:
        queues = sorted({name for one in facts.serving for name in facts.queues(one)})
        sentence = f"no worker serves the queue {facts.queue!r}: {there} {ledger}, with {_listed(queues)}"
        told = {"queue": facts.queue, "workers": len(facts.serving), "queues": queues}
        return _told("NO_WORKER_FOR_QUEUE", sentence, facts, **told)
    if not facts.able:
        kinds = sorted({name for one in facts.near for name in facts.kinds(one)})
        there = count(len(facts.near), "worker serves", "workers serve")
        with_ = f"with {_listed(kinds)}" if kinds else "with no handler at all"
        sentence = f"no worker has a handler for {facts.row.kind!r}: {there} {ledger}, {with_}"
        told = {"kind": facts.row.kind, "workers": len(facts.near), "kinds": kinds}
        return _told("NO_WORKER_FOR_KIND", sentence, facts, **told)
    return None


def _locked(facts: Facts) -> Explanation | None:
    touch = facts.touch
    if touch is None or not touch.locked:
        return None
    if touch.pid is None:
        who = "a prepared transaction"
    else:
        named = ", ".join(filter(None, (touch.program, touch.login, touch.session)))
        who = f"an open transaction of pid {touch.pid}" + (f" ({named})" if named else "")
    since = f" {age(touch.seconds)} ago" if touch.seconds is not None else ""
    began = f", begun{since}," if since else ""
    sentence = f"{who}{began} has touched it: workers pass over it until that one ends"
    told = {"pid": touch.pid, "program": touch.program, "login": touch.login, "seconds": touch.seconds}
    return _told("LOCKED", sentence, facts, **told)


def _laneless(facts: Facts) -> Explanation | None:
    """A row that a claim of all workers would not see."""
    if facts.ahead is not None:
        return None
    name = facts.ledger.name
    all_states = facts.ledger.lifecycle.claimable
    leading = (lane for lane in facts.ledger.lanes if facts.row.state in (lane.states or all_states))
    passed = [lane for lane in leading if lane.why]
    if passed:
        return _told("PASSED_OVER", f"it is passed over {passed[0].why}", facts)
    sentence = f"no lane of {name} leads to it, although it is {facts.row.state}: see `holdfast doctor`"
    return _told("NOT_CLAIMABLE", sentence, facts)


def _full(facts: Facts) -> Explanation | None:
    free = [one for one in facts.able if facts.held.get(one.id, 0) < facts.slots(one)]
    if free:
        return None
    slots = sum(facts.slots(one) for one in facts.able)
    could = count(len(facts.able), "worker", "workers")
    behind = f"; {_before(facts.ahead)}" if facts.ahead else ""
    taken = f"all {slots:,} slots are" if slots > 1 else "its only slot is"
    sentence = f"{could} could take it, but {taken} taken{behind}"
    return _told("WORKERS_FULL", sentence, facts, workers=len(facts.able), slots=slots, ahead=facts.ahead)


def _behind(facts: Facts) -> Explanation | None:
    if not facts.ahead:
        return None
    could = count(len(facts.able), "worker takes", "workers take")
    return _told("BEHIND_OTHERS", f"{_before(facts.ahead)}; {could} them", facts, ahead=facts.ahead)


def _due(facts: Facts) -> Explanation | None:
    row = facts.row
    since = row.due or row.updated or row.created
    wait = facts.settings.poll_interval
    due = f"it is due since {age(_since(facts, since))}"
    sentence = f"nothing stands in its way: {due}, and a worker takes it within {age(wait)}"
    return _told("DUE", sentence, facts, due=since, workers=len(facts.able))


REASONS: tuple[Callable[[Facts], Explanation | None], ...] = (
    _ended,
    _held,
    _unclaimable,
    _paused,
    _not_due,
    _no_worker,
    _locked,
    _laneless,
    _full,
    _behind,
    _due,
)

# -- words -----------------------------------------------------------------------------------------------


def age(seconds: float) -> str:
    """A length of time in one unit, as people say it.

    >>> [age(seconds) for seconds in (0.2, 12.3, 185, 7300, 200000)]
    ['0.2 s', '12 s', '3 min', '2 h', '2 d']
    """
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} d"


def ago(facts: Facts, then: datetime) -> str:
    """How long ago a moment was."""
    return f"{age(_since(facts, then))} ago"


def count(number: int, one: str, many: str) -> str:
    """A number with its noun.

    >>> count(1, "row", "rows"), count(2000, "row", "rows")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {one if number == 1 else many}"


def _since(facts: Facts, then: datetime) -> float:
    return (facts.now - then).total_seconds()


def _before(ahead: int | None) -> str:
    if ahead == MOST:
        return f"{MOST:,} rows or more that are due stand before it"
    rows = count(ahead or 0, "row that is due stands", "rows that are due stand")
    return f"{rows} before it"


def _brief(error: str | None) -> str:
    """The first words of an error, on one line."""
    words = " ".join((error or "nothing").split())
    return words if len(words) <= ERROR_LENGTH else words[:ERROR_LENGTH] + "…"


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - LISTED:,} more" if len(every) > LISTED else ""
    return ", ".join(every[:LISTED]) + more


def _told(code: str, sentence: str, facts: Facts, **told: Json) -> Explanation:
    """The explanation, with times as texts."""
    plain = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in told.items()
        if value is not None
    }
    return Explanation(code=code, sentence=sentence, facts={"state": facts.row.state} | plain)
