"""One shift of those that several pictures show: S-25."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.schedules import merge
from holdfast.apps.schedules.merge import merged
from holdfast.apps.schedules.values import Entry


def shift(
    start: str = "09:00",
    end: str = "12:00",
    title: str = "Marie Sjöberg",
    location: str = "Billdal",
    address: str = "Valebergsvägen 316",
) -> Entry:
    entry: Entry = {"start": start, "end": end, "title": title, "location": location}
    if address:
        entry["address"] = address
    return entry


def both(one: Entry, other: Entry) -> list[Entry]:
    """What two pictures give; which of them is the first must not matter, but for the order and for ties."""
    found = merged([[one], [other]])
    assert len(merged([[other], [one]])) == len(found)
    return found


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("09:00", "12:00", ["09:00–12:00"]),  # noqa: RUF001
        ("08:57", "12:02", ["08:57–12:02"]),  # noqa: RUF001
        ("09:03", "12:02", ["09:00–12:02"]),  # noqa: RUF001
        ("09:05", "12:00", ["09:00–12:00"]),  # noqa: RUF001
        ("09:04", "12:02", ["09:00–12:00", "09:04–12:02"]),  # noqa: RUF001
        ("13:00", "14:00", ["09:00–12:00", "13:00–14:00"]),  # noqa: RUF001
    ],
)
def test_the_same_place_and_nearly_the_same_time_is_one_shift(start: str, end: str, found: list[str]) -> None:
    """S-25: at most five minutes, start and end together; the earliest start and the latest end."""
    told = both(shift(), shift(start, end, title="Bo Berg"))
    assert [f"{entry['start']}–{entry['end']}" for entry in told] == found  # noqa: RUF001


def test_minutes_are_counted_round_the_clock() -> None:
    """S-25: over midnight, the earlier start is the one of the evening."""
    (one,) = both(shift("23:58", "00:01"), shift("00:01", "23:59", title="Bo Berg"))
    assert (one["start"], one["end"]) == ("23:58", "00:01")
    (other,) = both(shift("22:00", "23:59"), shift("22:00", "00:02", title="Bo Berg"))
    assert (other["start"], other["end"]) == ("22:00", "00:02")


@pytest.mark.parametrize(
    ("outer", "inner", "one"),
    [
        (("09:00", "12:00"), ("10:00", "11:00"), True),
        (("09:00", "12:00"), ("09:00", "09:00"), True),
        (("22:00", "06:00"), ("23:00", "05:00"), True),
        (("22:00", "06:00"), ("01:00", "02:00"), True),
        (("00:00", "23:00"), ("20:00", "21:00"), True),
        (("09:00", "12:00"), ("11:00", "13:00"), False),
        (("22:00", "06:00"), ("05:00", "07:00"), False),
        (("09:00", "12:00"), ("22:00", "06:00"), False),
    ],
)
def test_the_same_customer_within_a_longer_time_is_one_shift(
    outer: tuple[str, str], inner: tuple[str, str], one: bool
) -> None:
    """S-25: one range contains the other, also over midnight; elsewhere, if the place was read wrongly."""
    found = both(shift(*outer), shift(*inner, title="Sjöberg M.", location="Askim", address=""))
    assert len(found) == (1 if one else 2)
    assert (found[0]["start"], found[0]["end"]) == outer


def test_other_customers_within_a_longer_time_are_shifts_of_their_own() -> None:
    """S-25."""
    assert len(both(shift(), shift("10:00", "11:00", title="Bo Berg"))) == 2


def test_the_longer_name_and_the_longer_address_are_kept() -> None:
    """S-25: whichever picture has them."""
    one = shift(title="Sjöberg M.", address="Valebergsvägen 316 427 38 Billdal")
    other = shift(title="Marie Sjöberg Städservice", address="Valebergsvägen 3I6")
    (found,) = both(one, other)
    assert found["title"] == "Marie Sjöberg Städservice"
    assert found["address"] == "Valebergsvägen 316 427 38 Billdal"


def test_a_kind_of_work_that_one_picture_tells_is_kept() -> None:
    """S-25: a type other than UNKNOWN, also where the longer name no longer tells it."""
    one = shift(title="Askims skola", location="Askim", address="")
    other = shift(title="Askims sko|a norra", location="Askim", address="")
    assert both(one, other)[0]["title"] == merged([[other], [one]])[0]["title"] == "Askims skola"


def test_what_was_not_read_is_taken_from_the_other_picture() -> None:
    """S-25: of a card that the edge cuts off; the customer tells, or the time if nothing else was left."""
    for cut in (shift(location="", address=""), shift(title="", location="", address="")):
        assert both(shift(), cut) == merged([[cut], [shift()]]) == [shift()]


def test_what_says_nothing_agrees_with_nobody() -> None:
    """S-25: two without a place are not at the same one, nor are two without a name of one customer."""
    assert len(both(shift(title="Bo Berg", location="", address=""), shift(location="", address=""))) == 2
    assert len(both(shift(title=""), shift("10:00", "11:00", title="", location="Askim", address=""))) == 2
    assert len(both(shift(), shift("12:00", "13:00", title="", location="", address=""))) == 2


def test_what_one_picture_shows_twice_is_there_twice() -> None:
    """S-25: shifts merge over pictures, one to one."""
    twins = [shift(), shift()]
    assert merged([twins]) == twins
    assert merged([twins, twins]) == twins
    assert merged([[shift()], twins]) == twins


def test_the_nearest_one_is_merged_first() -> None:
    """S-25: two shifts follow closely at one place, and each finds its own."""
    early, late = shift("09:00", "09:02"), shift("09:02", "09:04")
    assert merged([[early, late], [late, early]]) == [early, late]
    assert merged([[early, late], [late]]) == [early, late]


def test_a_shift_that_tells_more_than_its_time_goes_before_one_that_does_not() -> None:
    """S-25: though the time of the latter is nearer."""
    bare, whole = shift(title="", location="", address=""), shift("09:02")
    assert merged([[bare, whole], [shift()]]) == [bare, shift()]


def test_three_pictures_that_overlap_give_each_shift_once() -> None:
    """S-25: as somebody scrolls through a day, in the order of the pictures."""
    day = [
        shift(f"{hour:02}:00", f"{hour:02}:45", title=f"Kund {name}") for hour, name in enumerate("ABCDE", 8)
    ]
    assert merged([day[:3], day[2:4], day[3:]]) == day


def test_a_time_that_is_none_is_left_for_the_refusal() -> None:
    """S-25, S-27."""
    odd = shift(end="29:00")
    assert merged([[odd], [shift()]]) == [odd, shift()]


def test_company_words_are_those_of_the_settings() -> None:
    """S-25, S-38."""
    pages = [[shift(title="Sjöberg")], [shift("10:00", "11:00", title="Sjöberg GmbH", location="Askim")]]
    assert len(merged(pages)) == 2
    assert len(merged(pages, ["gmbh"])) == 1


MINUTES = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02}:{minute % 60:02}")
SHIFTS = st.builds(
    shift,
    MINUTES,
    MINUTES,
    st.sampled_from(["Marie Sjöberg", "Bo Berg", ""]),
    st.sampled_from(["Billdal", "Askim"]),
)


@given(st.lists(SHIFTS, max_size=4), st.lists(SHIFTS, max_size=4))
def test_merging_loses_no_shift_and_invents_no_text(one: list[Any], other: list[Any]) -> None:
    """S-25: and seeing the same picture again changes nothing."""
    found = merged([one, other])
    assert max(len(one), len(other)) <= len(found) <= len(one) + len(other)
    texts = {text for entry in (*one, *other) for text in entry.values()}
    assert {text for entry in found for text in entry.values()} <= texts
    assert merged([one, one]) == one


def test_the_examples_are_true() -> None:
    assert doctest.testmod(merge) == doctest.TestResults(0, 2)
