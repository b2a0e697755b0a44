"""From boxes to shifts: columns, lines, cards, and what each line of a card is."""

from __future__ import annotations

import doctest
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.schedules import layout
from holdfast.apps.schedules.layout import Box, cards, columns, entries, lines, text_of

CARD = ("09:00–18:00", "Marie Sjöberg", "Valebergsvägen 316", "Billdal")  # noqa: RUF001
SHIFT = {
    "start": "09:00",
    "end": "18:00",
    "title": "Marie Sjöberg",
    "location": "Billdal",
    "address": "Valebergsvägen 316",
}


def box(text: str = "x", x: float = 0, y: float = 0, w: float = 60, h: float = 20) -> Box:
    return Box(text, x, y, w, h)


def stack(*texts: str, x: float = 0, y: float = 0, pitch: float = 30) -> list[Box]:
    """The lines of a card below a heading, so that none of them is the first of the picture."""
    return [box(text, x, y + at * pitch, 10 * len(text)) for at, text in enumerate(texts)]


def only(*texts: str) -> dict[str, Any]:
    """The one shift of a card that stands below a heading."""
    (entry,) = entries([box("Schema", y=-200), *stack(*texts)])
    return dict(entry)


@pytest.mark.parametrize(
    ("w", "gap", "found"),
    [(60, 120, 1), (60, 120.5, 2), (100, 180, 1), (100, 180.5, 2), (10, 100, 1)],
)
def test_a_new_column_begins_where_centres_are_far_apart(w: float, gap: float, found: int) -> None:
    """S-23: more than the greater of 120 and 1.8 times the median width."""
    assert len(columns([box(x=50, w=w), box(x=50 + gap, w=w)])) == found


def test_columns_go_by_centres_and_the_median_not_by_edges_and_the_mean() -> None:
    """S-23: one long line makes the threshold no wider, and reaches into no other column."""
    long = box("long", x=0, w=600)  # its centre is at 300
    left = [box(x=270, y=at * 30) for at in range(3)]
    right = [box(x=500, y=at * 30) for at in range(3)]
    assert [len(column) for column in columns([long, *right, *left])] == [4, 3]


@pytest.mark.parametrize(("h", "gap", "found"), [(10, 8, 1), (10, 8.5, 2), (20, 12, 1), (20, 12.5, 2)])
def test_boxes_of_about_one_height_are_one_line(h: float, gap: float, found: int) -> None:
    """S-23: within the greater of 8 and 0.6 times the median height."""
    assert len(lines([box("a", 0, 0, h=h), box("b", 100, gap, h=h)])) == found


def test_a_slanted_picture_is_not_one_long_line() -> None:
    """S-23: near to the line's first box, not to its last one."""
    assert len(lines([box(x=at * 80, y=at * 10) for at in range(4)])) == 2


def test_a_line_is_read_from_left_to_right() -> None:
    """S-23."""
    (line,) = lines([box("Sjöberg", 200, 0), box("Marie", 100, 4), box(" 09:00 ", 0, 2)])
    assert text_of(line) == "09:00 Marie Sjöberg"


@pytest.mark.parametrize(("h", "gap", "found"), [(10, 24, 1), (10, 24.5, 2), (20, 36, 1), (20, 36.5, 2)])
def test_a_new_card_begins_after_a_gap(h: float, gap: float, found: int) -> None:
    """S-23: more than the greater of 24 and 1.8 times the median height, from edge to edge."""
    assert len(cards([box(h=h), box(y=h + gap, h=h)])) == found


def test_a_gap_begins_below_the_lowest_box_so_far() -> None:
    """S-23: a tall box at the side holds its card together."""
    assert len(cards([box("tall", h=100), box("a", 100, 0), box("b", 100, 120), box("c", 100, 145)])) == 1


def test_nothing_gives_nothing() -> None:
    """S-23."""
    assert (columns([]), lines([]), cards([]), entries([])) == ([], [], [], [])


def test_a_card_with_a_time_is_a_shift_and_one_without_is_none() -> None:
    """S-23."""
    found = entries([*stack("Mina pass", "12 dagar kvar"), *stack(*CARD, y=200), *stack("Logga ut", y=500)])
    assert found == [SHIFT]


def test_a_single_time_means_that_it_ends_when_it_starts() -> None:
    """S-23."""
    assert only("09:00", *CARD[1:]) == SHIFT | {"end": "09:00"}


def test_cards_in_two_columns_are_shifts_of_their_own() -> None:
    """S-23: side by side, they are not one line of text each."""
    other = ("10.30 - 12.00", "Askims skola", "Kyrkväg 12", "Askim")
    found = entries([*stack(*CARD, y=100), *stack(*other, x=600, y=100)])
    assert [(entry["title"], entry["start"], entry["end"]) for entry in found] == [
        ("Marie Sjöberg", "09:00", "18:00"),
        ("Askims skola", "10:30", "12:00"),
    ]


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("09:00 – 18:00", "09:00", "18:00"),  # noqa: RUF001
        ("09:00-18:00", "09:00", "18:00"),
        ("kl. 9.00 till 18.00", "09:00", "18:00"),
        ("9:05 to 18:00 (9 h)", "09:05", "18:00"),
        ("O9:0O—l8:00", "09:00", "18:00"),
        ("|0:00 - 18:00", "10:00", "18:00"),
        ("22:00-06:00", "22:00", "06:00"),
        ("18:00–24:00", "18:00", "00:00"),  # noqa: RUF001
    ],
)
def test_times_are_read_in_many_spellings(text: str, start: str, end: str) -> None:
    """S-23: also as a reader of pictures gets them wrong."""
    assert only(text, *CARD[1:]) == SHIFT | {"start": start, "end": end}


def test_a_time_that_is_none_is_told_so_that_the_day_is_refused() -> None:
    """S-23: a shift without its end would be a shift that is wrong."""
    assert only("09:00-29:00", *CARD[1:])["end"] == "29:00"


@pytest.mark.parametrize("text", ["Rum 2.14", "125.50 kr", "12.75 kr", "v1.10.3", "2.3.2026", "10:30:55"])
def test_other_numbers_are_no_times(text: str) -> None:
    """S-23: what has a colon goes before what has a point."""
    assert (only(CARD[0], CARD[1], text)["start"], only(CARD[0], text)["title"]) == ("09:00", text)


@pytest.mark.parametrize(
    ("below", "address", "location"),
    [
        (["Valebergsvägen 316", "Billdal"], "Valebergsvägen 316", "Billdal"),
        (["Valebergsvägen 316, 427 38 Billdal"], "Valebergsvägen 316, 427 38 Billdal", "Billdal"),
        (["Valebergsvägen 316", "427 38 Billdal"], "Valebergsvägen 316 427 38 Billdal", "Billdal"),
        (["Storgatan 5, 2 tr", "Västra Frölunda"], "Storgatan 5, 2 tr", "Västra Frölunda"),
        (["Gatan 5, 421 30 Västra Frölunda", "Ring"], "Gatan 5, 421 30 Västra Frölunda", "Västra Frölunda"),
        (["Billdal", "Valebergsvägen 316"], "Valebergsvägen 316", "Billdal"),
        (["Askim", "Ta med nyckel"], None, "Askim"),
        ([], None, ""),
    ],
)
def test_what_stands_below_the_title_is_address_and_location(
    below: list[str], address: str | None, location: str
) -> None:
    """S-23."""
    found = only(CARD[0], CARD[1], *below)
    assert (found["title"], found.get("address"), found["location"]) == (CARD[1], address, location)


def test_the_title_may_stand_beside_the_time_or_above_it() -> None:
    """S-23."""
    assert only("09:00–18:00 Marie Sjöberg", *CARD[2:]) == SHIFT  # noqa: RUF001
    assert only(CARD[1], CARD[0], *CARD[2:]) == SHIFT
    assert only("Start 09:00", "Slut 18:00", *CARD[2:])["end"] == "18:00"


@pytest.mark.parametrize("heading", ["Måndag 2 mars 2026", "Idag", "Mon 2 Mar"])
def test_a_heading_close_to_a_card_is_no_part_of_it(heading: str) -> None:
    """S-23, S-24."""
    assert only(heading, *CARD) == SHIFT


@pytest.mark.parametrize("bar", [["09:41"], ["09:41 Telia 4G"], ["09:41", "Måndag 2 mars"]])
def test_the_clock_of_the_telephone_is_no_shift(bar: list[str]) -> None:
    """S-23: at the top of nearly every picture."""
    assert entries([*stack(*bar), *stack(*CARD, y=200)]) == [SHIFT]
    assert entries([*stack(*CARD), *stack("09:41", y=400)]) == [SHIFT]


def test_a_line_with_one_time_that_is_not_at_the_top_is_not_lost() -> None:
    """S-23: perhaps its end could not be read; the day is refused then, not read without it."""
    found = entries([*stack(*CARD), *stack("19:00 Bo Berg", y=400)])
    assert found[1] == {"start": "19:00", "end": "19:00", "title": "Bo Berg", "location": ""}


def test_a_time_range_without_any_text_is_not_lost() -> None:
    """S-23, S-25: a card that is cut off by the edge; another picture may show the rest of it."""
    found = entries([*stack(*CARD), *stack("19:00–20:00", y=400)])  # noqa: RUF001
    assert found[1] == {"start": "19:00", "end": "20:00", "title": "", "location": ""}


def test_cards_without_a_gap_between_them_are_still_two_shifts() -> None:
    """S-23: with the time first in each card, and with the time last."""
    second = ("19:00–20:00", "Bo Berg", "Askim")  # noqa: RUF001
    first_times = entries([box("Schema", y=-200), *stack(*CARD, *second)])
    last_times = entries([box("Schema", y=-200), *stack(*CARD[1:], CARD[0], *second[1:], second[0])])
    assert first_times == last_times
    assert [entry["title"] for entry in first_times] == ["Marie Sjöberg", "Bo Berg"]
    assert first_times[0] == SHIFT


def test_a_break_within_a_card_is_no_shift() -> None:
    """S-23."""
    assert only(*CARD, "Rast 12:00–12:30") == SHIFT  # noqa: RUF001


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_boxes_does_not_matter(chance: random.Random) -> None:
    """S-23."""
    boxes = [*stack("Schema", "Måndag 2 mars"), *stack(*CARD, y=200), *stack(*CARD, x=600, y=200)]
    shuffled = boxes[:]
    chance.shuffle(shuffled)
    assert entries(shuffled) == entries(boxes) == [SHIFT, SHIFT]


NUMBERS = st.integers(-50, 2000)
TEXTS = st.sampled_from(["09:00", "10:00-11:00", "Måndag", "2 mars", "x", "", "  ", "3B", "|"])
BOXES = st.builds(Box, TEXTS | st.text(max_size=5), NUMBERS, NUMBERS, st.integers(0, 500), st.integers(0, 90))


@given(st.lists(BOXES, max_size=12))
def test_any_boxes_give_entries_of_texts(boxes: list[Box]) -> None:
    """S-23: whatever a reader takes a picture for, nothing breaks, and no box is in two columns or lines."""
    assert sum(map(len, columns(boxes))) == sum(map(len, lines(boxes))) == len(boxes)
    for entry in entries(boxes):
        assert {"start", "end", "title", "location"} <= entry.keys()
        assert all(isinstance(value, str) for value in entry.values())


def test_the_examples_are_true() -> None:
    assert doctest.testmod(layout) == doctest.TestResults(0, 1)
