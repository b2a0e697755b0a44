"""The end of a run as a pure decision: outcome and row in, move out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import assert_never

from holdfast.engine import intake
from holdfast.engine.backoff import Backoff
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Verb
from holdfast.engine.outcomes import Cancel, Crashed, Done, Ending, Fail, Retry, Snooze
from holdfast.engine.values import Claimed, Fault, Item, Json, Move
from holdfast.errors import InvalidInput

LOST = Fault(code="WORKER_LOST", message="worker lost")


def decide(
    ledger: Ledger,
    claim: Claimed,
    ending: Ending,
    backoff: Backoff | None = None,
    draw: Callable[[], float] = random.random,
    *,
    min_wait: float = 0.0,
) -> Move:
    """What becomes of a claimed row whose run ended so. Waits by `backoff`, or else by the ledger's own.

    `min_wait` is the smallest number of seconds between a bad run and the next, however the wait is chosen.
    """
    backoff = backoff or ledger.backoff
    match ending:
        case Done(result, then):
            return _finish(ledger, claim, result, then)
        case Snooze(seconds):
            return _snooze(ledger, claim, _wait(seconds))
        case Fail(reason, code, trace, facts):
            fault = Fault(code=str(code), message=str(reason), trace=trace, facts=facts)
            return Move(verb="reject", claim=claim, fault=fault)
        case Cancel(reason):
            fault = Fault(code="CANCELLED", message=reason)
            allowed = claim.state in ledger.lifecycle.allowed("cancel")
            return Move(verb="cancel" if allowed else "reject", claim=claim, fault=fault)
        case Retry(reason, after, code, facts):
            fault = Fault(code=str(code), message=str(reason), facts=facts)
            return _bad_run(ledger, claim, fault, after, backoff, draw, min_wait)
        case Crashed(code, message, trace):
            fault = Fault(code=code, message=message, trace=trace)
            return _bad_run(ledger, claim, fault, None, backoff, draw, min_wait)
        case _:
            assert_never(ending)


def decide_lost(ledger: Ledger, claim: Claimed, answered: str | None = None) -> Move | None:
    """What becomes of a row whose worker is gone. A run that had begun counts; one that had not does not.

    `answered`: when that worker was last heard of, for people. None: the row is left to the next claim, which
    takes such rows where there is no 'lose' edge.
    """
    if not ledger.lifecycle.of("lose"):
        if ledger.tries is None or claim.attempts < ledger.tries.limit:
            return None
        told = f"gave up after {ledger.tries.limit} worker{'s' if ledger.tries.limit > 1 else ''}"
        return Move(verb="exhaust", claim=claim, fault=Fault(code=LOST.code, message=told))
    began = claim.state == ledger.lifecycle.running
    ended = ledger.to("lose") in ledger.ends
    last = began and not ended and ledger.attempts is not None and _last(ledger, claim)
    verb: Verb = "exhaust" if last and ledger.lifecycle.of("exhaust") else "lose"
    return Move(verb=verb, claim=claim, fault=_loss(claim, answered) if ended else LOST)


def _loss(claim: Claimed, answered: str | None) -> Fault:
    """Why a row has ended with its worker: who that was, and since when it is silent."""
    trace = f"{claim.owner} {f'last answered at {answered}' if answered else 'is unknown to us'}"
    return Fault(code=LOST.code, message=f"{LOST.message}: {claim.owner or 'nobody'}", trace=trace)


def _finish(ledger: Ledger, claim: Claimed, result: Json, then: tuple[Item, ...]) -> Move:
    """A result goes into the journal as JSON; one that is not JSON would spoil the batch, and never fits."""
    if isinstance(result, str) and ("finish" in ledger.beside or ledger.summarised):
        return Move(verb="finish", claim=claim, result=intake.absorb(result), then=then)
    if ledger.journal is None or result is None:
        return Move(verb="finish", claim=claim, then=then)
    try:
        text = intake.payload_text(result)
    except InvalidInput as error:
        fault = Fault(code="RESULT_NOT_JSON", message=f"the result {error.fields['message']}")
        return Move(verb="reject", claim=claim, fault=fault)
    return Move(verb="finish", claim=claim, result=json.loads(text or "null"), then=then)


def _wait(seconds: float) -> float:
    """What a handler asked for, within what a due time can hold."""
    return min(max(0.0, seconds), intake.LONGEST_WAIT)


def _last(ledger: Ledger, claim: Claimed) -> bool:
    return ledger.at_limit(claim.attempts, claim.limit)


def _bad_run(
    ledger: Ledger,
    claim: Claimed,
    fault: Fault,
    after: float | None,
    backoff: Backoff,
    draw: Callable[[], float],
    min_wait: float,
) -> Move:
    if not ledger.lifecycle.of("retry"):
        verb: Verb = "exhaust" if ledger.lifecycle.of("exhaust") else "reject"
        return Move(verb=verb, claim=claim, fault=fault)
    if _last(ledger, claim):
        return Move(verb="exhaust", claim=claim, fault=fault)
    delay = backoff.delay(_exponent(ledger, claim), draw, claim.policy) if after is None else _wait(after)
    return Move(verb="retry", claim=claim, fault=fault, delay=max(delay, min_wait))


def _exponent(ledger: Ledger, claim: Claimed) -> int:
    if ledger.tries:
        return claim.attempts
    counts = ledger.attempts.counts if ledger.attempts else "runs"
    return claim.attempts + 1 if counts == "runs" else claim.attempts


def _snooze(ledger: Ledger, claim: Claimed, delay: float) -> Move:
    if ledger.lifecycle.of("snooze"):
        return Move(verb="snooze", claim=claim, delay=delay)
    if delay == 0 and ledger.lifecycle.of("release"):  # not now, and no time to wait for: given back
        return Move(verb="release", claim=claim)
    message = f"the handler answered snooze, which {ledger.name} does not have"
    return Move(verb="reject", claim=claim, fault=Fault(code="NO_EDGE", message=message))
