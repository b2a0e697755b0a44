"""What counts as a change of a day, and what is known of the day afterwards."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.apps.schedules.canonical import canonical
from holdfast.apps.schedules.diff import diff, distance
from holdfast.apps.schedules.shifts import shifts, sort_key
from holdfast.apps.schedules.values import Change, EventType, Shift
from schedules.meanings import DAYS, kinds, shift

ASKIM = "Storgatan 3 Askim"

EXAMPLES: dict[EventType, tuple[list[Shift], list[Shift]]] = {
    "shift_added": ([], [shift()]),
    "shift_removed": ([shift()], []),
    "shift_time_changed": ([shift("10:00-12:00")], [shift("11:00-13:00")]),
    "shift_relocated": ([shift()], [shift(place=ASKIM)]),
    "shift_retitled": ([shift()], [shift(name="Anna Lind")]),
    "shift_reclassified": ([shift()], [shift(kind="OFFICE")]),
}


@pytest.mark.parametrize("kind", EXAMPLES)
def test_each_of_the_six_event_types_arises_from_its_example_and_only_from_it(kind: EventType) -> None:
    """S-40, proof: exactly that one event, with both whole shifts."""
    old, new = EXAMPLES[kind]
    found = diff(old, new)
    assert found.changes == (Change(kind, old[0] if old else None, new[0] if new else None),)
    assert found.snapshot == tuple(new)
    others = [name for name, example in EXAMPLES.items() if kinds(diff(*example).changes) != [kind]]
    assert sorted(others) == sorted(EXAMPLES.keys() - {kind})


def test_the_first_observation_adds_every_shift() -> None:
    """S-42, proof."""
    day = [shift("10:00-12:00"), shift(), shift(name="Anna Lind")]
    found = diff([], day)
    assert kinds(found.changes) == ["shift_added"] * 3
    assert found.snapshot == tuple(sorted(day, key=sort_key))


def test_an_empty_day_removes_every_shift() -> None:
    """S-41, proof."""
    found = diff([shift(), shift(), shift(place=ASKIM)], [])
    assert kinds(found.changes) == ["shift_removed"] * 3
    assert found.snapshot == ()


@settings(deadline=None)
@given(DAYS, st.randoms(use_true_random=False))
def test_reordering_gives_no_event(day: list[Shift], chance: random.Random) -> None:
    """S-41, proof: an equal day in any order is no news, and stays as it is known."""
    shuffled = list(day)
    chance.shuffle(shuffled)
    found = diff(day, shuffled)
    assert found.changes == ()
    assert found.snapshot == tuple(sorted(day, key=sort_key))


@settings(deadline=None)
@given(DAYS, DAYS, st.randoms(use_true_random=False))
def test_the_order_of_either_side_does_not_matter(
    old: list[Shift], new: list[Shift], chance: random.Random
) -> None:
    """S-40: the same two days always differ by the same changes, in the same order."""
    olds, news = list(old), list(new)
    chance.shuffle(olds)
    chance.shuffle(news)
    assert diff(olds, news) == diff(old, new)


@settings(deadline=None)
@given(DAYS, DAYS)
def test_every_shift_of_both_days_is_used_once(old: list[Shift], new: list[Shift]) -> None:
    """S-40, S-46: the day afterwards has as many shifts as the new one, and each is known or seen."""
    found = diff(old, new)
    count = {kind: kinds(found.changes).count(kind) for kind in ("shift_added", "shift_removed")}
    assert len(old) - count["shift_removed"] == len(new) - count["shift_added"]
    assert len(found.snapshot) == len(new)
    assert set(found.snapshot) <= set(old) | set(new)
    assert list(found.snapshot) == sorted(found.snapshot, key=sort_key)
    assert diff(found.snapshot, new).changes == ()


def test_within_a_customer_and_place_time_is_told_before_name_and_name_before_kind() -> None:
    """S-40: one event per pair, and it carries the whole shifts, so nothing is lost."""
    known = shift("10:00-12:00", "Marie Sjoberg", kind="UNKNOWN")
    all_three = shift("11:00-12:00", "Sjoberg M", kind="OFFICE")
    assert diff([known], [all_three]).changes == (Change("shift_time_changed", known, all_three),)
    both = shift("10:00-12:00", "Sjoberg M", kind="OFFICE")
    assert diff([known], [both]).changes == (Change("shift_retitled", known, both),)


def test_another_customer_at_the_same_time_and_place_is_a_retitling() -> None:
    """S-40: the third stage; the second, a customer elsewhere at the same time, comes first."""
    known = shift(name="Anna Lind")
    there = shift(name="Anna Lind", place=ASKIM)
    here = shift(name="Marie Sjoberg")
    found = diff([known], [there, here])
    assert found.changes == (Change("shift_relocated", known, there), Change("shift_added", None, here))


def test_changes_of_one_stage_come_in_the_order_of_the_day() -> None:
    """S-40: as the new shifts are sorted, whatever was known."""
    names = [
        "Eva Berg",
        "Ulf Dahl",
        "Bo Ek",
        "Ida Falk",
        "Per Gran",
        "Siv Holm",
        "Jan Ivarsson",
        "Ann Jonsson",
    ]
    old = [shift(f"{20 - at:02}:00-21:00", name) for at, name in enumerate(names)]
    new = [shift(f"{at + 10:02}:00-21:30", name) for at, name in enumerate(names)]
    found = diff(old, new).changes
    assert kinds(found) == ["shift_time_changed"] * len(names)
    assert [change.new for change in found] == new
    moved = diff(new, [shift(f"{at + 10:02}:00-21:30", name, ASKIM) for at, name in enumerate(names)]).changes
    assert kinds(moved) == ["shift_relocated"] * len(names)
    assert [change.old for change in moved] == new


def test_removed_shifts_come_before_added_ones() -> None:
    """S-40, S-41: moved and re-timed at once is one gone and one new."""
    known, seen = shift("10:00-12:00"), shift("13:00-15:00", place=ASKIM)
    assert diff([known], [seen]).changes == (
        Change("shift_removed", known, None),
        Change("shift_added", None, seen),
    )


def test_one_of_two_equal_shifts_moved_gives_one_time_change() -> None:
    """S-41, proof: the other one stays what it was."""
    twin, moved = shift("10:00-12:00"), shift("11:00-13:00")
    for new in ([twin, moved], [moved, twin]):
        found = diff([twin, twin], new)
        assert found.changes == (Change("shift_time_changed", twin, moved),)
        assert found.snapshot == (twin, moved)


def test_twins_are_counted() -> None:
    """S-41: one of two equal shifts that goes is one removal, and a third that comes is one more."""
    twin = shift()
    assert diff([twin, twin], [twin]).changes == (Change("shift_removed", twin, None),)
    assert diff([twin, twin], [twin] * 3).changes == (Change("shift_added", None, twin),)


def test_duplicates_are_paired_by_the_nearest_time() -> None:
    """S-40: the least difference of start and end first, whatever the order."""
    early, late = shift("08:00-10:00"), shift("14:00-16:00")
    moved = shift("13:30-16:00")
    assert diff([early, late], [moved]).changes == (
        Change("shift_time_changed", late, moved),
        Change("shift_removed", early, None),
    )


def test_equally_near_duplicates_are_paired_by_their_order() -> None:
    """S-40: ties by sort key."""
    early, late = shift("08:00-10:00"), shift("10:00-12:00")
    between = shift("09:00-11:00")
    assert diff([late, early], [between]).changes == (
        Change("shift_time_changed", early, between),
        Change("shift_removed", late, None),
    )
    assert diff([between], [late, early]).changes == (
        Change("shift_time_changed", between, early),
        Change("shift_added", None, late),
    )


def test_what_stays_equal_is_never_given_away_to_a_namesake() -> None:
    """S-40, S-41: of two spellings at one time the equal one is the pair, though the other sorts first."""
    known, namesake = shift(name="Sjoberg M"), shift(name="Marie Sjoberg")
    assert sort_key(namesake) < sort_key(known)
    assert diff([known], [namesake, known]).changes == (Change("shift_added", None, namesake),)


def test_a_shift_over_midnight_is_paired_by_the_circle() -> None:
    """S-41, proof: 23:50 is nearer to 00:10 than 12:00 is, and end before start is a shift."""
    night, noon, moved = shift("23:50-06:00"), shift("12:00-18:00"), shift("00:10-06:00")
    assert diff([noon, night], [noon, moved]).changes == (Change("shift_time_changed", night, moved),)
    other = shift("00:20-06:00")
    assert diff([noon, night], [other]).changes == (
        Change("shift_time_changed", night, other),
        Change("shift_removed", noon, None),
    )


@pytest.mark.parametrize(
    ("one", "other", "minutes"),
    [
        ("23:50-06:00", "00:10-06:00", 20),
        ("00:00-00:00", "12:00-12:00", 1440),
        ("00:00-00:00", "12:01-11:59", 1438),
        ("09:00-18:00", "09:05-17:30", 35),
        ("09:00-18:00", "09:00-18:00", 0),
        ("-", "-", 0),
        ("-18:00", "09:00-18:00", 720),
        ("9:00-18:00", "25:00-18:00", 720),
    ],
)
def test_times_lie_on_a_circle(one: str, other: str, minutes: int) -> None:
    """S-40: and what is no time, as a foreign snapshot may hold, is far from all others."""
    assert distance(shift(one), shift(other)) == distance(shift(other), shift(one)) == minutes


def test_an_end_that_is_the_start_is_allowed() -> None:
    """S-41: a picture may show one time only."""
    known, seen = shift("12:00-12:00"), shift("12:00-13:00")
    assert diff([known], [seen]).changes == (Change("shift_time_changed", known, seen),)


def test_a_spelling_wobble_changes_neither_snapshot_nor_events() -> None:
    """S-46, proof: the same place and customer, misread; what was known stays."""
    known = shift(place="Valebergsvagen 316 Billdal")
    wobble = shift(place="Valebergsvagen 3I6 Bi11dal", code="427 38")
    assert wobble != known
    for _ in range(2):
        found = diff([known], [wobble])
        assert found.changes == ()
        assert found.snapshot == (known,)


def test_an_address_change_makes_an_event() -> None:
    """S-28, S-40: the half of "an address change makes a version and an event" that is no matter of rows."""

    def day(address: str) -> tuple[Shift, ...]:
        line = {"start": "09:00", "end": "18:00", "title": "Marie Sjöberg", "location": "Billdal"}
        return shifts(canonical({"schedule_date": "2026-03-02", "entries": [line | {"address": address}]}))

    assert kinds(diff(day("Storgatan 3"), day("Storgatan 5")).changes) == ["shift_relocated"]


def titled(*titles: str, start: str = "09:00") -> tuple[Shift, ...]:
    """Shifts at one place and time, read from their titles; the place alone has no type."""
    lines = [{"start": start, "end": "18:00", "title": title, "location": "Billdal"} for title in titles]
    return shifts(canonical({"schedule_date": "2026-03-02", "entries": lines}))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Anna Lind", "Anna Lind skola"),  # added
        ("Anna Lind", "Kontor: Anna Lind"),
        ("Anna Lind", "Anna Lind (hemstädning)"),
        ("Marie Sjöberg kontor", "Marie Sjöberg"),  # removed
        ("Askims skola", "Askims kontor"),  # replaced
        ("Askimsskolan", "Askimskontoret"),
        ("Anna Lind hemma", "Kontorsstädning Anna Lind"),
        ("Lind-Skola Bo", "Lind Bo"),
        ("Skolan", "Kontoret"),
    ],
)
def test_a_type_that_is_written_in_the_title_is_a_reclassification(before: str, after: str) -> None:
    """S-40: at one place and time, if the names are equal without the words of the types."""
    (known,), (seen,) = titled(before), titled(after)
    assert known.shift_type != seen.shift_type
    for old, new in ((known, seen), (seen, known)):
        found = diff([old], [new])
        assert found.changes == (Change("shift_reclassified", old, new),)
        assert found.snapshot == (new,)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Anna Lind", "Bo Lind skola"),
        ("Anna Lind kontor", "Anna Berg skola"),
        ("Anna Lind kontor", "Anna Lind kontoret"),  # the same type
        ("Anna Lind", "Anna Lind Hemström"),  # a name that begins like a word of a type
        ("Anna Lund", "Anna Lundhem"),
        ("Askimsskolan", "Kontoret"),
        ("Marie Sjöberg kontor", "Sjöberg M. skola"),
    ],
)
def test_names_that_differ_by_more_than_the_type_are_a_retitling(before: str, after: str) -> None:
    """S-40: whatever the types are."""
    (known,), (seen,) = titled(before), titled(after)
    for old, new in ((known, seen), (seen, known)):
        assert diff([old], [new]).changes == (Change("shift_retitled", old, new),)


def test_another_type_at_another_time_is_a_removal_and_an_addition() -> None:
    """S-40, S-41: only a shift that stays where and when it is can change its type."""
    (known,), (seen,) = titled("Anna Lind"), titled("Anna Lind skola", start="10:00")
    assert diff([known], [seen]).changes == (
        Change("shift_removed", known, None),
        Change("shift_added", None, seen),
    )


def test_shifts_at_one_place_and_time_are_paired_by_their_names_without_the_type() -> None:
    """S-40: whatever their order is, and the same type before another one."""
    anna, bo = titled("Anna Lind", "Bo Ek")
    anna_school, bo_office = titled("Skola Anna Lind", "Bo Ek kontor")[::-1]
    found = diff([anna, bo], [anna_school, bo_office]).changes
    assert set(found) == {
        Change("shift_reclassified", anna, anna_school),
        Change("shift_reclassified", bo, bo_office),
    }
    (cia,) = titled("Aina Dahl")
    assert diff([anna, bo], [cia, bo_office]).changes == (
        Change("shift_reclassified", bo, bo_office),
        Change("shift_retitled", anna, cia),
    )
    office, school = titled("Anna Lind kontor", "Anna Lind skola")
    home, same_office = titled("Anna Lind hem", "Anna Lind kontoret")
    assert set(diff([office, school], [home, same_office]).changes) == {
        Change("shift_retitled", office, same_office),
        Change("shift_reclassified", school, home),
    }
