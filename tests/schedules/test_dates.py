"""The day that pictures are about: months in two languages, weekdays first, and years that are left out."""

from __future__ import annotations

import doctest
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.schedules import dates
from holdfast.apps.schedules.dates import MONTHS, WEEKDAYS, date_in, date_of, is_heading
from holdfast.apps.schedules.values import Refusal

NEAR = date(2026, 3, 1)
DAY = date(2026, 3, 2)  # a Monday


@pytest.mark.parametrize(
    "line",
    [
        "Måndag 2 mars 2026",
        "måndag den 2 mars",
        "Mån 2 mar",
        "MANDAG 2 MARS",
        "Monday, March 2, 2026",
        "Monday March 2nd",
        "Mon 2 Mar 2026",
        "the 2nd of March",
        "Mar. 2",
        "2:a mars",
        "2mars",
        "2026-03-02",
        "Schema för måndag 2 mars, vecka 10",
        "Mandag 2 mars 2026 4G 87%",
    ],
)
def test_a_date_is_read_in_swedish_and_in_english(line: str) -> None:
    """S-24."""
    assert date_in([line], NEAR) == DAY


@pytest.mark.parametrize(
    "line",
    [
        "",
        "mars",
        "Marsvägen 2",
        "30 februari",
        "0 mars",
        "32 mars 2026",
        "2/3",
        "12 marsvin",
        "kl 09:00",
        "IMG_2026-03-02.png",
        "2026-03-02T10:00",
        "2026-13-02",
        "2–8 mars",  # noqa: RUF001
        "2 - 8 mars 2026",
        "March 2–8, 2026",  # noqa: RUF001
        "March 2-8",
    ],
)
def test_what_names_no_day_is_no_date(line: str) -> None:
    """S-24: nor is a week."""
    assert date_in([line], NEAR) is None


@pytest.mark.parametrize(("word", "month"), sorted(MONTHS.items()))
def test_every_month_is_known(word: str, month: int) -> None:
    """S-24."""
    expected = date(2025, month, 15)
    assert date_in([f"15 {word} 2025"], NEAR) == date_in([f"{word.title()} 15, 2025"], NEAR) == expected


@pytest.mark.parametrize(("word", "weekday"), sorted(WEEKDAYS.items()))
def test_every_weekday_is_known(word: str, weekday: int) -> None:
    """S-24: it goes before another date, and one that does not fit makes the date unsure."""
    lines = ["Ändrat 28 februari", f"{word} {2 + weekday} mars"]
    assert date_in(lines, NEAR) == date(2026, 3, 2 + weekday)
    assert date_in([f"{word} {3 + weekday} mars"], NEAR) is None


def test_a_line_with_a_weekday_is_preferred() -> None:
    """S-24: below the heading there may be other dates; and a heading goes before a text with a weekday."""
    assert date_in(["1 mars", "Måndag 2 mars", "3 mars"], NEAR) == DAY
    assert date_in(["Uppdaterad fre 27 feb", "Måndag 2 mars"], NEAR) == DAY
    assert date_in(["Nyckel lämnas 5 mars", "2 mars"], NEAR) == DAY


@pytest.mark.parametrize(
    ("line", "near", "found"),
    [
        ("31 december", date(2026, 1, 1), date(2025, 12, 31)),
        ("1 januari", date(2025, 12, 31), date(2026, 1, 1)),
        ("1 juli", date(2026, 1, 2), date(2026, 7, 1)),
        ("29 februari", date(2027, 12, 1), date(2028, 2, 29)),
        ("29 februari", date(2026, 3, 1), None),
        ("29 februari", date(2025, 3, 1), None),
        ("2 mars 2031", date(2026, 3, 1), date(2031, 3, 2)),
        ("1 jan", date(1, 1, 1), date(1, 1, 1)),
        ("31 dec", date(9999, 12, 31), date(9999, 12, 31)),
    ],
)
def test_a_year_that_is_left_out_is_the_nearest_to_the_capture(
    line: str, near: date, found: date | None
) -> None:
    """S-24: and one that is not near is read wrongly."""
    assert date_in([line], near) == found


@given(st.dates(date(2001, 1, 1), date(2090, 1, 1)), st.integers(-170, 170))
def test_any_day_within_half_a_year_is_found_without_its_year(near: date, days: int) -> None:
    """S-24."""
    day = date.fromordinal(near.toordinal() + days)
    weekday = ["Måndag", "Tisdag", "Onsdag", "Torsdag", "Fredag", "Lördag", "Söndag"][day.weekday()]
    month = next(word for word, number in MONTHS.items() if number == day.month)
    assert date_in([f"{day.day} {month}"], near) == day
    assert date_in([f"{weekday} {day.day} {month}"], near) == day
    assert date_in([f"{month} {day.day}, {day.year}"], near) == day


def test_two_dates_in_one_session_disagree() -> None:
    """S-24; bad input: `dates_disagree`, on one picture or on two, and both are named."""
    for pictures in (
        [["Måndag 2 mars", "Tisdag 3 mars"]],
        [["Måndag 2 mars"], [], ["Tisdag 3 mars"]],
        [["Måndag 2 mars"], ["3 mars"]],
        [["i dag är det 2 mars"], ["i dag är det 3 mars"]],
    ):
        with pytest.raises(Refusal, match="2026-03-02 and 2026-03-03") as caught:
            date_of(pictures, NEAR)
        assert (caught.value.code, caught.value.stage) == ("dates_disagree", "layout")


def test_pictures_without_a_date_inherit_it() -> None:
    """S-24: also one on which only a text names some other day."""
    assert date_of([[], ["Måndag 2 mars"], ["Askims skola"]], NEAR) == DAY
    assert date_of([["Nyckel lämnas 5 mars"], ["Måndag 2 mars"]], NEAR) == DAY
    assert date_of([["Måndag 2 mars"], ["Monday March 2"]], NEAR) == DAY
    assert date_of([[], []], NEAR) is None
    assert date_of([], NEAR) is None


@pytest.mark.parametrize(
    "line", ["2 mars", "Måndag", "Idag", "Vecka 10", "Mon, 2 Mar 2026", "v 10 måndag 2 mars"]
)
def test_a_heading_says_nothing_but_a_date(line: str) -> None:
    """S-24."""
    assert is_heading(line)


@pytest.mark.parametrize("line", ["", "Tor", "Son", "Maj Berg 12", "09:00", "316", "Måndag Berg", "–"])  # noqa: RUF001
def test_a_name_is_no_heading(line: str) -> None:
    """S-24: it would be missing in its card."""
    assert not is_heading(line)


def test_the_examples_are_true() -> None:
    assert doctest.testmod(dates) == doctest.TestResults(0, 2)
