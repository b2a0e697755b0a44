"""Two versions side by side: which entry has become which (S-54)."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.apps.schedules.align import aligned
from holdfast.apps.schedules.values import Entry


def entry(start: str, title: str = "Ada", location: str = "Billdal", **more: str) -> Entry:
    return cast("Entry", {"start": start, "end": "18:00", "title": title, "location": location, **more})


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ([], [], []),
        ([entry("09:00")], [entry("09:00")], [("same", ())]),
        ([entry("09:00")], [entry("10:00")], [("changed", ("start",))]),
        ([entry("09:00")], [entry("09:00", title="ADA")], [("changed", ("title",))]),
        ([entry("09:00")], [entry("09:00", title="Bo")], [("changed", ("title",))]),
        ([entry("09:00")], [entry("09:00", location="Kungälv")], [("changed", ("location",))]),
        ([entry("09:00")], [entry("09:00", address="Kyrkogatan 3")], [("changed", ("address",))]),
        (
            [entry("09:00")],
            [entry("10:00", address="Kyrkogatan 3")],
            [("changed", ("start", "address"))],
        ),
        # Moved and re-timed at once: removed and added, as the diff has it.
        ([entry("09:00")], [entry("10:00", location="Kungälv")], [("removed", ()), ("added", ())]),
        ([entry("09:00")], [], [("removed", ())]),
        ([], [entry("09:00")], [("added", ())]),
        # Of two equal ones, one has moved.
        ([entry("09:00")] * 2, [entry("09:00"), entry("11:00")], [("same", ()), ("changed", ("start",))]),
    ],
)
def test_an_entry_stands_beside_what_it_has_become(
    before: list[Entry], after: list[Entry], told: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert [(line.mark, line.differs) for line in aligned(before, after)] == told


def test_an_equal_entry_is_matched_before_a_similar_one() -> None:
    """However they are ordered: what has not changed is never shown as changed."""
    lines = aligned([entry("09:00"), entry("12:00")], [entry("12:00"), entry("15:00")])
    assert [(line.mark, line.other and line.other["start"]) for line in lines] == [
        ("same", "12:00"),
        ("changed", "15:00"),
    ]


entries = some.lists(
    some.builds(
        entry,
        some.sampled_from(["09:00", "10:00", "11:00"]),
        some.sampled_from(["Ada", "Bo"]),
        some.sampled_from(["Billdal", "Kungälv"]),
    ),
    max_size=6,
)


@given(entries, entries)
def test_every_entry_is_shown_once_and_the_order_of_input_does_not_matter(
    before: list[Entry], after: list[Entry]
) -> None:
    lines = aligned(before, after)

    def ordered(found: list[Entry]) -> list[str]:
        return sorted(map(repr, found))

    assert ordered([line.one for line in lines if line.one]) == ordered(before)
    assert ordered([line.other for line in lines if line.other]) == ordered(after)
    marks = [line.mark for line in lines]
    assert [line.mark for line in aligned(before[::-1], after[::-1])].count("same") == marks.count("same")
    assert {line.mark for line in aligned(before, before[::-1])} <= {"same"}
