"""Events have ids that follow from what happened, and each happening is recorded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from uuid import UUID

import pytest
from hypothesis import given, settings

from holdfast.apps.schedules.diff import diff
from holdfast.apps.schedules.events import NAMESPACE, event_id, record, slot_of
from holdfast.apps.schedules.shifts import value_hash
from holdfast.apps.schedules.values import Change, Event, Shift, Slot
from schedules.meanings import DAY, DAYS, SESSION, START, USER, session, shift

MARIE = shift()


def recorded(
    changes: Sequence[Change], taken: Mapping[Slot, UUID] | None = None, by: UUID = SESSION
) -> tuple[list[Event], list[Event]]:
    return record(changes, user_id=USER, day=DAY, session_id=by, detected_at=START, taken=taken or {})


def slot(event: Event) -> Slot:
    return Slot(
        location_fingerprint=event.location_fingerprint,
        type=event.type,
        old_hash=event.old_hash,
        new_hash=event.new_hash,
    )


def held(*observations: Sequence[Event]) -> dict[Slot, UUID]:
    """What the database holds after these events."""
    return {slot(event): event.session_id for events in observations for event in events}


def test_an_event_id_is_that_of_its_vector() -> None:
    """S-45, part of: every vector of the document holds."""
    assert UUID("7571be9d-25fa-59c7-94fb-294c7400da0c") == NAMESPACE
    (event,), missing = recorded(diff([], [MARIE]).changes)
    assert str(event.id) == "0e27eb93-1526-5f09-96bc-81ae5f883ff5"
    assert missing == [event]


def test_an_event_carries_what_is_known_of_its_change() -> None:
    """S-42, S-43, S-45: both whole values, their hashes, and when and by whom it was detected."""
    moved = shift("10:00-18:00")
    ((event,), _) = recorded([Change("shift_time_changed", MARIE, moved)])
    assert event == Event(
        id=event_id(USER, DAY, slot(event)),
        user_id=USER,
        schedule_date=DAY,
        type="shift_time_changed",
        location_fingerprint=moved.location_fingerprint,
        customer_fingerprint=moved.customer_fingerprint,
        old_hash=value_hash(MARIE),
        new_hash=value_hash(moved),
        old=MARIE,
        new=moved,
        detected_at=START,
        session_id=SESSION,
    )


def test_fingerprints_are_those_of_the_new_shift_and_of_the_old_one_when_it_is_gone() -> None:
    """S-43."""
    there = shift(name="Anna Lind", place="Storgatan 3 Askim")
    (moved, gone), _ = recorded(
        [Change("shift_relocated", MARIE, there), Change("shift_removed", MARIE, None)]
    )
    assert (moved.location_fingerprint, moved.customer_fingerprint) == (
        there.location_fingerprint,
        there.customer_fingerprint,
    )
    assert (gone.location_fingerprint, gone.customer_fingerprint) == (
        MARIE.location_fingerprint,
        MARIE.customer_fingerprint,
    )
    assert gone.new_hash == value_hash(None)


@pytest.mark.parametrize("name", [field.name for field in fields(Slot)])
def test_an_id_follows_from_every_part_of_its_slot(name: str) -> None:
    """S-45: user, date, place, type and both hashes."""
    parts = {"location_fingerprint": "a", "type": "shift_added", "old_hash": "b", "new_hash": "c"}
    known = event_id(USER, DAY, Slot(**parts))
    assert event_id(USER, DAY, Slot(**parts | {name: "shift_removed"})) != known
    assert event_id(USER + 1, DAY, Slot(**parts)) != known
    assert event_id(USER, DAY.replace(day=3), Slot(**parts)) != known


def test_a_change_of_nothing_into_nothing_is_none() -> None:
    """S-43: there would be no place to record it at."""
    with pytest.raises(ValueError, match="without an old and a new value"):
        slot_of(Change("shift_added", None, None))


def test_two_equal_shifts_on_one_day_give_two_events() -> None:
    """S-44, proof: the second is the next occurrence of the first."""
    events, missing = recorded(diff([], [MARIE, MARIE]).changes)
    assert missing == events
    assert [event.new_hash for event in events] == [value_hash(MARIE), value_hash(MARIE, 1)]
    assert [event.old_hash for event in events] == [value_hash(None), value_hash(None, 1)]
    assert len({event.id for event in events}) == 2
    assert all(event.new == MARIE for event in events)


def test_a_session_that_runs_again_adds_no_event() -> None:
    """S-44: its own slots are its events already, with the same ids."""
    changes = diff([], [MARIE, MARIE, shift(name="Anna Lind")]).changes
    events, missing = recorded(changes)
    again, nothing = recorded(changes, held(missing))
    assert nothing == []
    assert again == events


def test_the_same_change_by_another_session_is_another_event() -> None:
    """S-44: ten to eleven to ten to eleven gives three events."""
    ten, eleven = shift("10:00-12:00"), shift("11:00-13:00")
    taken: dict[Slot, UUID] = {}
    found: list[Event] = []
    for number, (old, new) in enumerate([(ten, eleven), (eleven, ten), (ten, eleven)], 1):
        _, missing = recorded(diff([old], [new]).changes, taken, session(number))
        taken |= held(missing)
        found += missing
    assert len({event.id for event in found}) == 3
    assert [event.old_hash for event in found] == [value_hash(ten), value_hash(eleven), value_hash(ten, 1)]


def test_the_slots_of_others_are_passed_over_and_gaps_are_filled() -> None:
    """S-44: three equal changes between the slots of this session and of others."""
    change = Change("shift_added", None, MARIE)
    mine, other = session(1), session(2)
    taken = {slot_of(change, 0): other, slot_of(change, 2): mine, slot_of(change, 3): other}
    events, missing = recorded([change] * 3, taken, mine)
    assert [slot(event) for event in events] == [slot_of(change, n) for n in (1, 2, 4)]
    assert [slot(event) for event in missing] == [slot_of(change, n) for n in (1, 4)]


def test_different_changes_do_not_share_their_count() -> None:
    """S-44: only equal events walk."""
    one, other = Change("shift_added", None, MARIE), Change("shift_added", None, shift("10:00-18:00"))
    events, _ = recorded([one, other, one])
    assert [slot(event) for event in events] == [slot_of(one), slot_of(other), slot_of(one, 1)]


@settings(deadline=None)
@given(DAYS, DAYS)
def test_no_two_events_of_an_observation_share_a_slot(old: list[Shift], new: list[Shift]) -> None:
    """S-44, S-45: so the database takes them all, and in the order of the changes."""
    changes = diff(old, new).changes
    events, missing = recorded(changes)
    assert missing == events
    assert len({slot(event) for event in events}) == len({event.id for event in events}) == len(changes)
    assert [(event.type, event.old, event.new) for event in events] == [
        (change.type, change.old, change.new) for change in changes
    ]
