"""The events of one row, folded one at a time, and compared with the row at the end. Pure.

Times are the numbers that the database stores (microseconds, or the ledger's milliseconds): they are compared
exactly, and no date is too odd to be told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.engine import reading
from holdfast.engine.effects import writes_error
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import FENCED, VERBS, Edge, Verb
from holdfast.engine.roles import CodeError, JsonError, TextError

LONGEST = 80  # characters of a text that a lie quotes
NEVER = -(2**63) - 1  # before every number of the database
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's
RESTORE = "restore"  # no verb of a lifecycle: says that a row came back from a backup, and with which fence


@dataclass(frozen=True)
class Lie:
    """Where a journal and its row do not agree: at the event `seq`, or at the end of all events (None)."""

    id: Any
    seq: int | None
    what: str


class Told(msgspec.Struct, gc=False):
    """The error in the detail of an event."""

    code: str | None = None
    message: str | None = None


class Detail(msgspec.Struct, gc=False):
    """What the detail of an event says of its move. More may stand there."""

    verb: str
    attempt: int | None = None
    fence: int | None = None
    worker: str | None = None
    error: Told | None = None
    progress: float | None = None
    kind: str | None = None
    tenant: Any = None


class Facts(msgspec.Struct, gc=False):
    """A row as the database has it."""

    key: Any
    state: str
    owner: str | None = None
    attempts: int | None = None
    fence: int | None = None
    started: int | None = None
    finished: int | None = None
    code: str | None = None
    message: str | None = None
    kind: str | None = None
    tenant: str | None = None


class Leap(msgspec.Struct, frozen=True, kw_only=True):
    """One edge from one state: its hops, and what it does to the facts of a row."""

    verb: str
    next: str
    rest: tuple[str, ...]  # the states after `next`, where the edge has several hops
    step: int = 0
    resets: bool = False
    claims: bool = False
    starts: bool = False
    frees: bool = False
    forgets_start: bool = False
    ends: bool = False
    errs: bool = False
    clears_error: bool = False
    stays: bool = False  # a progress: nothing changes
    lifts: bool = False  # a restore: the fence is what it was before, so that it never goes back
    fenced: bool = False  # only the worker that holds the row may say it, and is named


class Rules:
    """A ledger as what its events may say: every edge from every state, ready to be looked up."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.leaps: dict[tuple[str, str | None], Leap] = {
            (edge.verb, state): _leap(ledger, edge, state)
            for edge in ledger.edges
            for state in edge.frm or (None,)
        }
        running = ledger.lifecycle.running
        self.leaps["progress", running] = Leap(
            verb="progress", next=running, rest=(), stays=True, fenced=True
        )
        for state in ledger.states if ledger.fence else ():
            self.leaps[RESTORE, state] = Leap(verb=RESTORE, next=state, rest=(), stays=True, lifts=True)
        self.decode = msgspec.json.Decoder(Detail).decode
        self.first_start = ledger.times.first_start
        self.has_start, self.has_end = ledger.times.started is not None, ledger.times.finished is not None
        self.first_attempt = 0 if ledger.attempts else None
        self.first_fence = 0 if ledger.fence else None
        errors = ledger.errors
        self.has_code = isinstance(errors, CodeError | JsonError)
        limited = isinstance(errors, CodeError) and errors.message_length
        limited = limited or (isinstance(errors, TextError) and errors.length)
        self.told_length = None if limited else reading.MESSAGE_LENGTH

    def moment(self, at: int | None) -> str:
        """A time as people read it."""
        if at is None:
            return "never"
        micros, start = at, EPOCH
        if self.ledger.times.kind == "epoch_ms":
            micros, start = at * 1000, datetime(1970, 1, 1, tzinfo=UTC)
        try:
            return (start + timedelta(microseconds=micros)).isoformat().replace("+00:00", "Z")
        except OverflowError:
            return "infinity" if at > 0 else "-infinity"


def _leap(ledger: Ledger, edge: Edge, state: str | None) -> Leap:
    """The edge from one state, with everything that the engine's statement does besides."""
    verb, times = edge.verb, ledger.times
    begins: Verb = "start" if ledger.lifecycle.of("start") else "claim"
    ends = edge.to in ledger.ends
    goes_back = verb not in ("claim", "start") and not ends
    _, first, *rest = (state, *edge.via, edge.to)
    return Leap(
        verb=verb,
        next=first,
        rest=tuple(rest),
        step=ledger.step(verb, state) if ledger.attempts else 0,
        resets=verb == "requeue",
        claims=verb == "claim",
        starts=verb == begins,
        frees=goes_back or (ends and not ledger.owner_kept),
        forgets_start=goes_back and (verb == "requeue" or not times.first_start),
        ends=ends,
        errs=writes_error(ledger, verb),
        fenced=verb in FENCED and verb != "lose",  # rows that name nobody are given back, too
        clears_error=verb == "finish" and ledger.errors is not None and ledger.errors.cleared_by_finish,
    )


class Replay:
    """The events of one row, folded: `fold` takes the next one, `compare` asks if they led to the row."""

    __slots__ = (
        *("rules", "row", "seq", "at", "state", "attempts", "fence", "owner", "started", "finished"),
        *("code", "message", "verb", "left", "began", "told", "kind", "tenant", "cut"),
    )

    def __init__(self, rules: Rules, row: Facts) -> None:
        self.rules, self.row = rules, row
        self.seq = self.at = self.began = NEVER
        self.state: str | None = None
        self.attempts, self.fence = rules.first_attempt, rules.first_fence
        self.owner: str | None = None
        self.started: int | None = None
        self.finished: int | None = None
        self.code: str | None = None
        self.message: str | None = None
        self.kind: str | None = None
        self.tenant: Any = None
        self.told: Detail | None = None
        self.verb = ""  # of the last move, which began with the event `began`
        self.left: tuple[str, ...] = ()  # the states that it has still to come to
        self.cut = False  # what was before the first event is not told any more

    def fold(self, seq: int, at: int | None, prev: str | None, next: str, detail: str | None) -> Lie | None:
        """Takes one event, or says why it cannot be true."""
        if detail is None:
            return self._lie(seq, "has no detail")
        try:
            told = self.rules.decode(detail)
        except (msgspec.MsgspecError, RecursionError) as error:
            return self._lie(seq, f"has a detail that cannot be read: {error}")
        if prev != self.state and self._begins_with_its_end(told, at, next):
            self.seq, self.at, self.state = seq, at or 0, next
            return None
        if prev != self.state:
            return self._lie(seq, f"says {_hop(prev, next)}, but {self._was()}")
        if seq <= self.seq:
            return self._lie(seq, f"follows event {self.seq}, and its number is not greater")
        if at is None or at < self.at:
            return self._lie(
                seq, f"is dated {self._moment(at)}, before event {self.seq} ({self._moment(self.at)})"
            )
        if self.left:
            wrong = self._go_on(at, next, told)
        elif (leap := self.rules.leaps.get((told.verb, prev))) is None or leap.next != next:
            wrong = self._no_edge(told.verb, prev, next)
        elif told.worker != self.owner and self._speaks_for_another(leap, told):
            wrong = f"was written by {_quoted(told.worker)}, but {self._held()}"
        else:
            wrong = self._apply(leap, seq, at, told)
        if wrong is not None:
            return self._lie(seq, wrong)
        self.seq, self.at, self.state = seq, at, next
        return None

    def _begins_with_its_end(self, told: Detail, at: int | None, next: str) -> bool:
        """Takes an end as the first event: of a row that has ended, an eviction leaves the last event alone.

        It tells the count and the fence. When the row began, whose it is and of what it failed is not told
        any more, and not compared; nor is when it ended, where a restore came after that.
        """
        edges = self.rules.ledger.edges
        ends = {edge.to for edge in edges if told.verb in (edge.verb, RESTORE)}
        if self.state is not None or at is None or next not in ends & set(self.rules.ledger.ends):
            return False
        self.cut, self.attempts, self.fence = True, told.attempt, told.fence
        self.finished = self.row.finished if told.verb == RESTORE else at
        return True

    def _speaks_for_another(self, leap: Leap, told: Detail) -> bool:
        """Whether a worker writes that does not hold the row. Where the owner is the fence, tokens differ."""
        if leap.claims or self.state is None or self.fence is None:
            return False
        return told.worker is not None or leap.fenced

    def _apply(self, leap: Leap, seq: int, at: int, told: Detail) -> str | None:
        """What a move does to the facts; or what is wrong with its numbers."""
        if leap.claims and self.fence is not None:
            self.fence += 1
        if leap.lifts and told.fence is not None and self.fence is not None:
            if told.fence <= self.fence:
                return f"is a restore that takes the fence from {self.fence} to {told.fence}"
            self.fence = told.fence
        if self.attempts is not None:
            self.attempts = 0 if leap.resets else self.attempts + leap.step
        if told.attempt != self.attempts or told.fence != self.fence:
            return self._numbers(told)
        if leap.stays:
            return (
                None
                if told.progress is None or 0 <= told.progress <= 100
                else "is a progress beyond 0 to 100"
            )
        if self.state is None:
            self.kind, self.tenant = told.kind, told.tenant
        if leap.claims:
            if told.worker is None:
                return "is a claim that names no worker"
            self.owner = told.worker
        elif leap.frees:
            self.owner = None
        if leap.starts and (self.started is None or not self.rules.first_start):
            self.started = at
        elif leap.forgets_start:
            self.started = None
        if leap.errs:
            self.code, self.message = (told.error.code, told.error.message) if told.error else (None, None)
        elif leap.clears_error:
            self.code = self.message = None
        self.finished = at if leap.ends else None
        self.verb, self.left, self.began, self.told = leap.verb, leap.rest, seq, told
        return None

    def _go_on(self, at: int, next: str, told: Detail) -> str | None:
        """The further hops of a move were written by the same statement: they tell the same, at one time."""
        if told.verb != self.verb or next != self.left[0]:
            said = f"says {_quoted(told.verb)}: {_hop(self.state, next)}"
            return f"{said}, but the {self.verb} of event {self.began} must go on to {self.left[0]}"
        if at != self.at:
            of = f"the {self.verb} of event {self.began} ({self._moment(self.at)})"
            return f"is dated {self._moment(at)}, and belongs to {of}"
        if told.attempt != self.attempts or told.fence != self.fence:
            return self._numbers(told)
        if self.told is not None and (told.worker, told.error) != (self.told.worker, self.told.error):
            return f"tells another worker or error than event {self.began}, with which it was written"
        self.left = self.left[1:]
        return None

    def compare(self) -> Lie | None:
        """Takes the row itself, after its last event, or says what the events did not lead to."""
        row = self.row
        if self.state is None:
            return self._lie(None, f"the row is {_quoted(row.state)}, and has no event at all")
        if self.left:
            what = f"the {self.verb} of event {self.began} never came to {self.left[0]}"
            return self._lie(None, f"{what}: the events end in {self.state}")
        if row.state != self.state:
            return self._lie(None, f"the row says {_quoted(row.state)}, its events end in {self.state}")
        for name, found, folded in self._facts():
            if found != folded:
                show = self._moment if name in ("start", "end") else _quoted
                what = f"the {name} of the row is {show(found)}, its events say {show(folded)}"
                return self._lie(None, what)
        return None

    def _facts(self) -> Iterable[tuple[str, Any, Any]]:
        """What both the row and its events know: by name, as the row has it, as the events lead to it."""
        row, rules = self.row, self.rules
        if self.kind is not None:
            yield "kind", row.kind, self.kind
        if self.tenant is not None:
            yield "tenant", row.tenant, str(self.tenant)
        yield "count of attempts", row.attempts, self.attempts
        yield "fence", row.fence, self.fence
        if not self.cut:
            yield "owner", row.owner, self.owner
        yield "end", row.finished, self.finished if rules.has_end else None
        if self.cut:
            return
        yield "start", row.started, self.started if rules.has_start else None
        yield "class of error", row.code, self.code if rules.has_code else None
        yield "error", row.message and row.message[: rules.told_length], self.message

    # -- words ---------------------------------------------------------------------------------------

    def _lie(self, seq: int | None, what: str) -> Lie:
        return Lie(self.row.key, seq, what if seq is None else f"event {seq} {what}")

    def _was(self) -> str:
        return "the row had no event before" if self.state is None else f"the row was {self.state}"

    def _held(self) -> str:
        return "nobody held the row" if self.owner is None else f"the row was held by {_quoted(self.owner)}"

    def _no_edge(self, verb: str, prev: str | None, next: str) -> str:
        said = f"says {_quoted(verb)}: {_hop(prev, next)}"
        if verb not in VERBS and verb not in ("progress", RESTORE):
            return f"{said}, but there is no such verb"
        leap = self.rules.leaps.get((verb, prev))
        if leap is None:
            return f"{said}, but {verb} is not allowed from {prev or 'nothing'}"
        return f"{said}, but {verb} leads from {prev or 'nothing'} to {leap.next}"

    def _numbers(self, told: Detail) -> str:
        name, found, folded = "fence", told.fence, self.fence
        if told.attempt != self.attempts:
            name, found, folded = "attempt", told.attempt, self.attempts
        return f"says {name} {_quoted(found)}, but {_quoted(folded)} is what the events before it lead to"

    def _moment(self, at: int | None) -> str:
        return self.rules.moment(at)


def _hop(prev: str | None, next: str) -> str:
    return f"{_quoted(prev)} → {_quoted(next)}"


def _quoted(value: object) -> str:
    """A value in a sentence: words as they are, other texts in quotes and cut."""
    if value is None:
        return "nothing"
    text = str(value)
    if text.replace("_", "").isalnum() and len(text) <= LONGEST:
        return text
    return repr(text if len(text) <= LONGEST else text[:LONGEST] + "…")
