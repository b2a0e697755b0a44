"""The end of a run as a pure decision: every outcome on every kind of ledger."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.engine.backoff import Backoff
from holdfast.engine.decide import decide, decide_lost
from holdfast.engine.intake import LONGEST_WAIT
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Verb
from holdfast.engine.outcomes import Cancel, Crashed, Done, Ending, Fail, Retry, Snooze, outcome_of
from holdfast.engine.values import Claimed, Fault
from ledgers import ERRANDS, PARCELS, PERMITS, SYNCS, TASKS

STEADY = Backoff(jitter=0)


def claimed(ledger: Ledger, attempts: int = 0, limit: int | None = 3, state: str | None = None) -> Claimed:
    return Claimed(
        id=1,
        kind="demo",
        payload=None,
        state=state or ledger.lifecycle.running,
        owner="w1",
        fence=1,
        attempts=attempts,
        limit=limit,
    )


BAD = Crashed("BROKEN", "it broke", "Traceback")
SAID = Fault(code="BROKEN", message="it broke", trace="Traceback")

# (ledger, attempts so far, limit, how the run ended, the verb that follows)
DECISIONS: list[tuple[Ledger, int, int | None, Ending, Verb]] = [
    # tasks count runs that have ended: the limit is the number of runs.
    (TASKS, 0, 3, Done(), "finish"),
    (TASKS, 0, 3, BAD, "retry"),
    (TASKS, 1, 3, BAD, "retry"),
    (TASKS, 2, 3, BAD, "exhaust"),
    (TASKS, 0, 1, BAD, "exhaust"),
    (TASKS, 0, 0, BAD, "exhaust"),
    (TASKS, 2, 3, Retry(), "exhaust"),
    (TASKS, 9, 3, Fail("no"), "reject"),
    (TASKS, 9, 3, Snooze(5), "snooze"),
    (TASKS, 0, 3, Cancel(), "cancel"),
    # errands count retries that were granted: the limit is the number of retries.
    (ERRANDS, 0, 5, BAD, "retry"),
    (ERRANDS, 4, 5, BAD, "retry"),
    (ERRANDS, 5, 5, BAD, "exhaust"),
    (ERRANDS, 0, 0, BAD, "exhaust"),
    (ERRANDS, 0, 5, Fail("no"), "reject"),
    (ERRANDS, 0, 5, Cancel(), "cancel"),
    # syncs count starts, this one included.
    (SYNCS, 1, 2, BAD, "retry"),
    (SYNCS, 2, 2, BAD, "exhaust"),
    (SYNCS, 1, 1, BAD, "exhaust"),
    (SYNCS, 2, 2, Snooze(1), "snooze"),
    # permits have no second run, no snooze, and cannot be called off once begun.
    (PERMITS, 0, None, Done(), "finish"),
    (PERMITS, 0, None, BAD, "reject"),
    (PERMITS, 0, None, Retry(), "reject"),
    (PERMITS, 0, None, Snooze(5), "reject"),
    (PERMITS, 0, None, Cancel(), "reject"),
]


@pytest.mark.parametrize(
    ("ledger", "attempts", "limit", "ending", "verb"),
    DECISIONS,
    ids=[f"{led.name}-{n}of{most}-{type(end).__name__}" for led, n, most, end, _ in DECISIONS],
)
def test_an_outcome_becomes_the_verb_that_the_ledger_has_for_it(
    ledger: Ledger, attempts: int, limit: int | None, ending: Ending, verb: Verb
) -> None:
    """T-17, T-22, T-25."""
    claim = claimed(ledger, attempts, limit)
    move = decide(ledger, claim, ending)
    assert (move.verb, move.claim) == (verb, claim)
    assert (move.fault is None) == (verb in ("finish", "snooze"))


def test_a_fault_says_what_the_handler_said() -> None:
    claim = claimed(TASKS)
    assert decide(TASKS, claim, BAD).fault == SAID
    assert decide(TASKS, claim, Fail("no", code="NEVER", trace="t")).fault == Fault(
        code="NEVER", message="no", trace="t"
    )
    assert decide(TASKS, claim, Retry("busy", code="BUSY")).fault == Fault(code="BUSY", message="busy")
    assert decide(TASKS, claim, Cancel("not needed")).fault == Fault(code="CANCELLED", message="not needed")
    assert "snooze" in (decide(PERMITS, claimed(PERMITS), Snooze(1)).fault or SAID).message


@pytest.mark.parametrize(
    ("ledger", "state", "attempts", "limit", "verb"),
    [
        (TASKS, "running", 1, 3, "lose"),
        (TASKS, "running", 2, 3, "exhaust"),
        (TASKS, "claimed", 2, 3, "lose"),
        (TASKS, "claimed", 0, 0, "lose"),
        (ERRANDS, "running", 4, 5, "lose"),
        (ERRANDS, "running", 5, 5, "exhaust"),
        (SYNCS, "running", 9, 10, "lose"),
        (SYNCS, "running", 10, 10, "exhaust"),
        (PARCELS, "moving", 1, 2, "exhaust"),
        (PERMITS, "processing", 0, None, "lose"),
    ],
)
def test_a_lost_row_comes_back_until_its_runs_are_used_up(
    ledger: Ledger, state: str, attempts: int, limit: int | None, verb: Verb
) -> None:
    """T-33."""
    move = decide_lost(ledger, claimed(ledger, attempts, limit, state))
    assert move.verb == verb
    assert move.fault == Fault(code="WORKER_LOST", message="worker lost")


# -- waits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attempts", [0, 1, 5, 11, 12, 5000])
def test_full_jitter_stays_within_its_bounds_over_ten_thousand_draws(attempts: int) -> None:
    """T-20: uniform between 0 and min(cap, base x 2^attempts), attempts after the increment."""
    draw = random.Random(attempts).random
    bound = min(3600.0, 2.0 ** min(attempts + 1, 100))
    claim = claimed(TASKS, attempts, limit=100_000)
    delays = [decide(TASKS, claim, BAD, draw=draw).delay for _ in range(10_000)]
    assert 0 <= min(delays) <= 0.01 * bound
    assert 0.99 * bound <= max(delays) <= bound
    tenths = [sum(n * bound / 10 <= delay < (n + 1) * bound / 10 for delay in delays) for n in range(10)]
    assert all(850 < count < 1150 for count in tenths)


@pytest.mark.parametrize(
    ("ledger", "attempts", "delay"),
    [(TASKS, 0, 2), (TASKS, 1, 4), (ERRANDS, 0, 1), (ERRANDS, 3, 8), (SYNCS, 1, 2), (PARCELS, 0, 2)],
)
def test_the_wait_doubles_with_each_run(ledger: Ledger, attempts: int, delay: float) -> None:
    """T-20 counts after the increment, the first seed's ledger before it."""
    assert decide(ledger, claimed(ledger, attempts, 99), BAD, STEADY).delay == delay


def test_a_handler_may_choose_its_own_wait() -> None:
    """T-20: `Retry(after=...)` overrides the backoff, within what a time can hold."""
    claim = claimed(TASKS)
    for asked, delay in ((0, 0), (7.5, 7.5), (-3, 0), (float("inf"), LONGEST_WAIT), (1e300, LONGEST_WAIT)):
        assert decide(TASKS, claim, Retry(after=asked)).delay == delay
        assert decide(TASKS, claim, Snooze(asked)).delay == delay
    assert decide(TASKS, claim, Retry(after=float("nan"))).delay == 0


def test_a_bad_run_waits_for_the_smallest_wait_whatever_is_asked_for() -> None:
    for asked in (BAD, Retry(after=0), Retry(after=0.1)):
        assert decide(TASKS, claimed(TASKS), asked, draw=lambda: 0.0, min_wait=0.5).delay == 0.5
    assert decide(TASKS, claimed(TASKS), Retry(after=7.5), min_wait=0.5).delay == 7.5
    assert decide(TASKS, claimed(TASKS), Snooze(0), min_wait=0.5).delay == 0


@pytest.mark.parametrize(
    ("backoff", "exponent", "low", "high"),
    [
        (Backoff(base=5, cap=900, jitter=0), 0, 5, 5),
        (Backoff(base=5, cap=900, jitter=0), 10, 900, 900),
        (Backoff(base=10, jitter=0.1), 1, 18, 22),
        (Backoff(cap=60, jitter=0.5), 10, 30, 60),
        (Backoff(factor=1), 50, 0, 1),
        (Backoff(factor=10), 400, 0, 3600),
        (Backoff(factor=3, jitter=0), 100_000, 3600, 3600),
        (Backoff(base=0), 3, 0, 0),
    ],
)
def test_a_backoff_is_a_bound_that_grows_to_its_cap(
    backoff: Backoff, exponent: int, low: float, high: float
) -> None:
    assert backoff.delay(exponent, lambda: 0.0) == pytest.approx(low)
    assert backoff.delay(exponent, lambda: 1 - 1e-12) == pytest.approx(high)


# -- answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [Done(1), Retry(), Fail("no"), Snooze(1), Cancel()])
def test_an_outcome_is_taken_as_it_is_and_all_else_is_a_result(outcome: Any) -> None:
    assert outcome_of(outcome) is outcome
    for result in (None, 0, "text", {"a": 1}, [Done()]):
        assert outcome_of(result) == Done(result)


@dataclass
class Receipt:
    number: int


@pytest.mark.parametrize(
    ("result", "stored"), [(None, None), (0, 0), ({"a": [1]}, {"a": [1]}), (Receipt(7), {"number": 7})]
)
def test_a_result_is_kept_as_json_where_there_is_a_journal(result: Any, stored: Any) -> None:
    assert decide(ERRANDS, claimed(ERRANDS), Done(result)).result == stored
    assert decide(TASKS, claimed(TASKS), Done(result)).verb == "finish"


@pytest.mark.parametrize("result", [object(), float("nan"), "a\x00b", "\ud800", "x" * 2_000_000])
def test_a_result_that_the_journal_cannot_keep_is_a_permanent_failure(result: Any) -> None:
    """It would spoil the statement of the whole batch; where no journal keeps it, it does no harm."""
    move = decide(ERRANDS, claimed(ERRANDS), Done(result))
    assert (move.verb, move.fault and move.fault.code) == ("reject", "RESULT_NOT_JSON")
    assert decide(TASKS, claimed(TASKS), Done(result)).verb == "finish"
