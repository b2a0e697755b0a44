"""When a connection is due: the examples of the requirements, and what holds whatever the times are."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.connectors.schedule import Draw, Due, NotDue, decide
from holdfast.apps.connectors.sync_state import SyncState
from holdfast.db.settings import Settings

SETTINGS = Settings()
STEADY = replace(SETTINGS, sync_jitter_min=0.0, sync_jitter_max=0.0)
KNOWN = SyncState(interval_seconds=900, last_jitter_seconds=0)

intervals = st.integers(60, 86400)
times = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, 3, 1, hour, minute, second, tzinfo=UTC)


def of(share: float) -> Draw:
    """Dice that always fall at the same share of their range."""
    return lambda low, high: low + share * (high - low)


# -- the grid --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("restart", "due_at", "next_run_at"),
    [
        (at(10, 15), at(10, 15), at(10, 30)),
        (at(10, 20), at(10, 15), at(10, 30)),
        (at(10, 30), at(10, 30), at(10, 45)),
        (at(13, 7), at(13), at(13, 15)),
    ],
)
def test_finished_at_ten_and_restarted_later_one_run_is_due(
    restart: datetime, due_at: datetime, next_run_at: datetime
) -> None:
    """C-23: finished 10:00, restart 10:20 gives 10:15 and 10:30; restart 13:07 gives 13:00 and 13:15."""
    expected = Due(due_at=due_at, scheduled_at=due_at, next_run_at=next_run_at, jitter_seconds=0)
    assert decide(restart, KNOWN, at(9), at(10), True, STEADY) == expected
    noted = replace(KNOWN, next_run_at=at(10, 15))
    assert decide(restart, noted, at(9), None, True, STEADY) == expected


def test_nothing_is_due_before_the_anchor() -> None:
    """C-23."""
    soon = replace(KNOWN, next_run_at=at(10, 15))
    assert decide(at(10, 14, 59), soon, at(9), at(9, 55), True, SETTINGS) == NotDue(at(10, 15))
    assert decide(at(10, 14, 59), KNOWN, at(9), at(10), True, SETTINGS) == NotDue(at(10, 15))
    assert decide(at(8), KNOWN, at(9), None, True, SETTINGS) == NotDue(at(9))


def test_the_noted_time_comes_before_the_last_success_and_that_before_the_activation() -> None:
    """C-23."""
    state = replace(KNOWN, next_run_at=at(12, 1), first_activated_at=at(8, 3))
    now, finished = at(12, 10), at(11, 2)

    def due_at(state: SyncState, finished: datetime | None) -> datetime:
        answer = decide(now, state, at(7), finished, True, STEADY)
        assert isinstance(answer, Due)
        return answer.due_at

    assert due_at(state, finished) == at(12, 1)
    assert due_at(replace(state, next_run_at=None), finished) == at(12, 2)
    assert due_at(replace(state, next_run_at=None), None) == at(12, 3)
    assert due_at(replace(state, next_run_at=None, first_activated_at=None), None) == at(12)


@given(intervals, times, times)
def test_after_any_downtime_one_run_is_due_and_the_next_lies_ahead(
    interval: int, anchor: datetime, now: datetime
) -> None:
    """C-23."""
    state = SyncState(interval_seconds=interval, next_run_at=anchor, last_jitter_seconds=5)
    answer = decide(now, state, anchor, None, True, SETTINGS)
    if now < anchor:
        assert answer == NotDue(anchor)
        return
    assert isinstance(answer, Due)
    step = timedelta(seconds=interval)
    assert answer.due_at <= now < answer.next_run_at == answer.due_at + step
    assert (answer.due_at - anchor) % step == timedelta()
    after = replace(state, next_run_at=answer.next_run_at, last_jitter_seconds=answer.jitter_seconds)
    assert decide(now, after, anchor, None, True, SETTINGS) == NotDue(answer.next_run_at)


@given(intervals, times, st.lists(st.integers(0, 10**6), max_size=20))
def test_the_jitter_never_adds_up(interval: int, anchor: datetime, waits: list[int]) -> None:
    """C-24: however late each look comes, the runs stay on the grid of the first anchor."""
    state = SyncState(interval_seconds=interval, next_run_at=anchor, last_jitter_seconds=1)
    now = anchor
    for wait in waits:
        now += timedelta(seconds=wait)
        answer = decide(now, state, anchor, None, True, SETTINGS)
        if isinstance(answer, Due):
            assert (answer.next_run_at - anchor) % timedelta(seconds=interval) == timedelta()
            state = replace(state, next_run_at=answer.next_run_at)


# -- jitter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "least", "most"), [(0.0, 0.2, 0, 180), (0.05, 0.3, 45, 270), (0.0, 0.0, 0, 0)]
)
def test_jitter_over_1000_draws_stays_in_its_range(low: float, high: float, least: int, most: int) -> None:
    """C-24: 0..180, 45..270 and 0."""
    settings = replace(SETTINGS, sync_jitter_min=low, sync_jitter_max=high)
    dice, found = random.Random(7), list[int]()
    for _ in range(1000):
        answer = decide(at(12), replace(KNOWN, next_run_at=at(12)), at(9), None, True, settings, dice.uniform)
        assert isinstance(answer, Due)
        assert answer.scheduled_at - answer.due_at == timedelta(seconds=answer.jitter_seconds)
        assert answer.next_run_at == at(12, 15)
        found.append(answer.jitter_seconds)
    assert least <= min(found) <= max(found) <= most
    assert max(found) - min(found) >= (most - least) * 0.9


@pytest.mark.parametrize(("share", "jitter"), [(0.0, 0), (0.5, 90), (0.5007, 90), (1.0, 180)])
def test_the_jitter_is_whole_seconds_of_the_interval(share: float, jitter: int) -> None:
    """C-24."""
    answer = decide(at(12), replace(KNOWN, next_run_at=at(12)), at(9), None, True, SETTINGS, of(share))
    assert answer == Due(
        due_at=at(12),
        scheduled_at=at(12) + timedelta(seconds=jitter),
        next_run_at=at(12, 15),
        jitter_seconds=jitter,
    )


# -- the first run ---------------------------------------------------------------------------------------

NEW = SyncState(interval_seconds=900)


def test_a_new_connection_is_due_at_once_and_its_next_run_carries_the_jitter() -> None:
    """C-25: created 09:00:00, tick 09:00:30, J = 90 gives 09:01:30 and 09:16:30."""
    answer = decide(at(9, 0, 30), NEW, at(9), None, False, SETTINGS, of(0.5))
    assert answer == Due(
        due_at=at(9), scheduled_at=at(9, 1, 30), next_run_at=at(9, 16, 30), jitter_seconds=90
    )


def test_a_new_connection_counts_from_its_first_activation() -> None:
    """C-25."""
    activated = replace(NEW, first_activated_at=at(9, 5))
    assert decide(at(9, 4), activated, at(9), None, False, SETTINGS) == NotDue(at(9, 5), first=True)
    answer = decide(at(9, 6), activated, at(9), None, False, SETTINGS, of(0.5))
    assert isinstance(answer, Due)
    assert (answer.due_at, answer.next_run_at) == (at(9, 5), at(9, 21, 30))


def test_a_new_connection_that_waited_for_days_gets_one_run() -> None:
    """C-23, C-25: its next run lies ahead, and not in the days that are gone."""
    answer = decide(at(12, 7), NEW, at(9) - timedelta(days=3), None, False, SETTINGS, of(1.0))
    assert answer == Due(due_at=at(12), scheduled_at=at(12, 3), next_run_at=at(12, 18), jitter_seconds=180)


def test_only_the_first_run_moves_the_grid() -> None:
    """C-25: not when it has a time, when its jobs were cleared away, or when they all failed."""
    noted = replace(NEW, next_run_at=at(9))
    for state, ever in ((KNOWN, False), (NEW, True), (KNOWN, True), (noted, False)):
        answer = decide(at(9, 0, 30), state, at(9), None, ever, SETTINGS, of(0.5))
        assert isinstance(answer, Due)
        assert (answer.scheduled_at, answer.next_run_at) == (at(9, 1, 30), at(9, 15))


def test_many_new_connections_spread_out() -> None:
    """C-25."""
    dice = random.Random(7)
    answers = [decide(at(9), NEW, at(9), None, False, SETTINGS, dice.uniform) for _ in range(1000)]
    assert len({answer.next_run_at for answer in answers if isinstance(answer, Due)}) > 150


@given(intervals, times, times)
def test_a_first_run_too_is_followed_by_one_that_lies_ahead(
    interval: int, created: datetime, now: datetime
) -> None:
    """C-23, C-25."""
    answer = decide(now, SyncState(interval_seconds=interval), created, None, False, SETTINGS)
    if now < created:
        assert answer == NotDue(created, first=True)
        return
    assert isinstance(answer, Due)
    assert answer.due_at <= now < answer.next_run_at
    assert answer.next_run_at - answer.scheduled_at == timedelta(seconds=interval)
