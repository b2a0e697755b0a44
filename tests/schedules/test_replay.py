"""The events of a day are enough to know it, now and at any time before."""

from __future__ import annotations

import pickle
import random
from datetime import timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.events import record
from holdfast.apps.schedules.replay import ReplayError, as_of, replay
from holdfast.apps.schedules.shifts import sort_key
from holdfast.apps.schedules.values import Event, Shift, Slot
from schedules.meanings import DAY, HISTORIES, USER, event, later, session, shift

MARIE, ANNA = shift(), shift(name="Anna Lind", place="Storgatan 3 Askim")


@settings(max_examples=500, deadline=None)
@given(HISTORIES, st.randoms(use_true_random=False))
def test_replaying_the_events_gives_exactly_the_snapshot_for_500_random_days_and_their_changes(
    history: list[list[Shift]], chance: random.Random
) -> None:
    """S-44, S-46, proof: after each observation, and later for the time of each one before."""
    events: list[Event] = []
    taken: dict[Slot, UUID] = {}
    known: list[tuple[Shift, ...]] = [()]
    for number, seen in enumerate(history, 1):
        found = diff(known[-1], seen)
        _, missing = record(
            found.changes,
            user_id=USER,
            day=DAY,
            session_id=session(number),
            detected_at=later(number),
            taken=taken,
        )
        assert len(missing) == len(found.changes), "an event was swallowed"
        events += missing
        taken |= {
            Slot(
                location_fingerprint=one.location_fingerprint,
                type=one.type,
                old_hash=one.old_hash,
                new_hash=one.new_hash,
            ): one.session_id
            for one in missing
        }
        known.append(found.snapshot)
    assert len(taken) == len({one.id for one in events}) == len(events)
    chance.shuffle(events)
    assert replay(events) == known[-1]
    assert [as_of(events, later(number)) for number in range(len(known))] == known


def test_no_events_are_an_empty_day() -> None:
    """S-46."""
    assert replay([]) == ()


def test_the_day_comes_sorted() -> None:
    """S-46: as the snapshot is."""
    day = [ANNA, shift("07:00-08:00"), MARIE]
    assert replay(event("shift_added", None, one) for one in day) == tuple(sorted(day, key=sort_key))


def test_old_values_go_before_new_ones_come() -> None:
    """S-46: one shift takes the place of another in the same observation, whichever event is first."""
    ten, eleven, twelve = shift("10:00-11:00"), shift("11:00-12:00"), shift("12:00-13:00")
    first = event("shift_added", None, ten)
    for one, other in ((1, 2), (2, 1)):
        second = [
            event("shift_time_changed", ten, eleven, id=UUID(int=one), at=later(1), by=session(2)),
            event("shift_added", None, ten, id=UUID(int=other), at=later(1), by=session(2)),
        ]
        assert replay([*second, first]) == (ten, eleven)
    third = event("shift_time_changed", eleven, twelve, at=later(2), by=session(3))
    assert replay([first, third, *second]) == (ten, twelve)


def test_events_of_one_observation_cannot_take_what_it_brings_itself() -> None:
    """S-46: within a session nothing happens twice to a shift."""
    ten, eleven = shift("10:00-11:00"), shift("11:00-12:00")
    with pytest.raises(ReplayError):
        replay([event("shift_added", None, ten), event("shift_time_changed", ten, eleven)])


def test_a_moment_includes_what_was_detected_in_it() -> None:
    """S-54: and nothing of the microsecond after."""
    events = [event("shift_added", None, MARIE), event("shift_added", None, ANNA, at=later(1), by=session(2))]
    assert as_of(events, later(1)) == (ANNA, MARIE)
    assert as_of(events, later(1) - timedelta(microseconds=1)) == (MARIE,)
    assert as_of(events, later(0) - timedelta(microseconds=1)) == ()


def test_an_old_value_that_is_not_there_is_told_in_a_sentence() -> None:
    """S-46: the event, its type and the shift, so that somebody can look."""
    wrong = event("shift_removed", MARIE, None, at=later(1), by=session(2))
    with pytest.raises(ReplayError) as failed:
        replay([event("shift_added", None, ANNA), wrong])
    assert str(failed.value) == (
        f"event {wrong.id} (shift_removed) takes away 09:00 to 18:00 of Marie Sjoberg, "
        "which is not there at that time"
    )
    assert failed.value.event_id == wrong.id
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


def test_one_of_two_equal_shifts_can_go_and_a_third_cannot() -> None:
    """S-41, S-46: twins are counted."""
    added = [event("shift_added", None, MARIE, id=UUID(int=n)) for n in (1, 2)]
    gone = [event("shift_removed", MARIE, None, at=later(n), by=session(n)) for n in (2, 3, 4)]
    assert replay([*added, *gone[:1]]) == (MARIE,)
    assert replay([*added, *gone[:2]]) == ()
    with pytest.raises(ReplayError):
        replay([*added, *gone])
