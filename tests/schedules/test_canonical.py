"""The one spelling of a day: what is equal in it, what is refused, and what its hashes are."""

from __future__ import annotations

import doctest
import importlib
import json
import random
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.apps.schedules.canonical import canonical, canonical_json, day_of, lock_key, payload_hash
from holdfast.apps.schedules.values import Refusal

DAY = "2026-03-02"


def line(**changes: Any) -> dict[str, Any]:
    """An entry that is right in every field; None takes a field away."""
    entry = {"start": "09:00", "end": "18:00", "title": "Marie Sjöberg Städservice", "location": "Billdal"}
    return {name: value for name, value in (entry | changes).items() if value is not None}


def day(*lines: Any, **changes: Any) -> dict[str, Any]:
    return {"schedule_date": DAY, "entries": list(lines), **changes}


def only(**changes: Any) -> dict[str, Any]:
    """The one entry of a day, canonical."""
    (entry,) = canonical(day(line(**changes)))["entries"]
    return dict(entry)


TEXTS = st.text(st.characters(), max_size=12)
SPELLED_TIMES = st.builds(
    lambda hour, sign, minute: f"{hour}{sign}{minute}",
    st.integers(0, 23),
    st.sampled_from(":. "),
    st.integers(0, 59),
)
WRITTEN = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cf", "Z")), min_size=1, max_size=8)
LINES = st.fixed_dictionaries(
    {
        "start": SPELLED_TIMES,
        "end": SPELLED_TIMES,
        "title": st.tuples(TEXTS, WRITTEN, TEXTS).map("".join),
        "location": st.tuples(TEXTS, WRITTEN, TEXTS).map("".join),
    },
    optional={"address": TEXTS | st.none(), "other": st.integers()},
)
DAYS = st.builds(lambda lines: day(*lines), st.lists(LINES, max_size=5))


@settings(deadline=None)
@given(DAYS)
def test_canonicalising_twice_changes_nothing(payload: dict[str, Any]) -> None:
    """S-26, proof: whatever letters there are; and the text of it is one that PostgreSQL takes."""
    once = canonical(payload)
    assert canonical(once) == once
    assert canonical(json.loads(canonical_json(once))) == once
    assert not any("\x00" in text for entry in once["entries"] for text in dict(entry).values())
    canonical_json(once).encode()


@settings(deadline=None)
@given(DAYS, st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter(payload: dict[str, Any], chance: random.Random) -> None:
    """S-26: entries are sorted, and nothing but equal entries ties."""
    shuffled = list(payload["entries"])
    chance.shuffle(shuffled)
    assert canonical(day(*shuffled)) == canonical(payload)


def test_other_keys_are_dropped_and_those_of_the_form_stay() -> None:
    """S-26: at both levels; an address stays only if there is one."""
    payload = day(line(address="Valebergsvägen 316 Billdal", confidence=0.9), line(start="08:00"), page=1)
    assert canonical(payload) == {
        "schedule_date": DAY,
        "entries": [
            {"start": "08:00", "end": "18:00", "title": "Marie Sjöberg Städservice", "location": "Billdal"},
            {
                "start": "09:00",
                "end": "18:00",
                "title": "Marie Sjöberg Städservice",
                "location": "Billdal",
                "address": "Valebergsvägen 316 Billdal",
            },
        ],
    }


@pytest.mark.parametrize(
    "spelling", ["09:00", "9:00", "09.00", "9.0", "09 00", "9:0", "09:0", " 9:00 ", "9\u00a000"]
)
def test_each_time_spelling_gives_the_same_minute(spelling: str) -> None:
    """S-27, proof: one or two digits, one of three signs, one or two digits."""
    assert only(start=spelling, end="18.00")["start"] == "09:00"
    assert only(start="10 00", end=spelling)["end"] == "09:00"


@pytest.mark.parametrize(("spelling", "time"), [("0:0", "00:00"), ("23.59", "23:59"), ("7 5", "07:05")])
def test_the_first_and_the_last_minute_of_a_day_are_times(spelling: str, time: str) -> None:
    """S-27: 0 to 23 and 0 to 59."""
    assert only(start=spelling)["start"] == time


@pytest.mark.parametrize(
    "wrong",
    [
        *("25:00", "9:75", "9:60", "24:00", "noon", "", "09:00:00", "9-00", "900", "009:00", "9:000"),
        *("-1:00", "9 : 00", "٠٩:٠٠", "９:00", 900, 9.0, True, None, ["09:00"]),  # noqa: RUF001
    ],
)
@pytest.mark.parametrize("field", ["start", "end"])
def test_what_is_no_time_is_refused_and_names_entry_and_field(field: str, wrong: Any) -> None:
    """S-27; bad input: `time_invalid`."""
    with pytest.raises(Refusal, match=rf"^time_invalid: the {field} of entry 2 is ") as refused:
        canonical(day(line(), line(**{field: wrong}) | {field: wrong}))
    assert (refused.value.code, refused.value.stage) == ("time_invalid", "layout")


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, "2026-02-30", "02/03/2026", 20260302, "2026-3-2", "20260302", "2026-W10-1", "0000-01-01"),
        *(" 2026-03-02", "2026-03-02T00:00", "2026-03-02\n", "٢٠٢٦-٠٣-٠٢", "", [], True),
    ],
)
def test_what_is_no_date_is_refused(wrong: Any) -> None:
    """S-20, S-26; bad input: `schedule_date_invalid`, for anything but YYYY-MM-DD."""
    with pytest.raises(Refusal, match=r"^schedule_date_invalid: schedule_date is ") as refused:
        canonical(day(line(), schedule_date=wrong))
    assert (refused.value.code, refused.value.stage) == ("schedule_date_invalid", "layout")


def test_a_day_without_a_date_is_refused() -> None:
    """Bad input: the key may be missing altogether; S-26."""
    with pytest.raises(Refusal, match="schedule_date_invalid: schedule_date is missing"):
        canonical({"entries": []})


@pytest.mark.parametrize("wrong", [None, [], "text", 1, 1.5, True, [day()]])
def test_what_is_no_object_is_no_day(wrong: Any) -> None:
    """Bad input: `payload_not_object`; S-26."""
    with pytest.raises(Refusal) as refused:
        canonical(wrong)
    assert (refused.value.code, refused.value.stage) == ("payload_not_object", "layout")


@pytest.mark.parametrize("wrong", [None, {}, "text", 3, True])
def test_entries_are_a_list(wrong: Any) -> None:
    """Bad input: `entries_invalid`; S-26."""
    with pytest.raises(Refusal) as refused:
        canonical({"schedule_date": DAY, "entries": wrong})
    assert (refused.value.code, refused.value.stage) == ("entries_invalid", "layout")


@pytest.mark.parametrize("wrong", [None, [], "text", 3])
def test_an_entry_is_an_object(wrong: Any) -> None:
    """Bad input: `entries_invalid`, and it says which one; S-26."""
    with pytest.raises(Refusal, match=r"^entries_invalid: entry 2 is "):
        canonical(day(line(), wrong))


def test_an_empty_day_is_a_day() -> None:
    """S-26: no entries at all are a day off, as far as the spelling is concerned."""
    assert canonical(day()) == {"schedule_date": DAY, "entries": []}


@pytest.mark.parametrize("field", ["title", "location"])
@pytest.mark.parametrize("wrong", ["", "  ", "\t\n", "\u00a0", "\x00", "\ud800", "\u200b\ufeff", 5, [], None])
def test_a_blank_title_or_location_is_refused(field: str, wrong: Any) -> None:
    """S-27; bad input: `field_blank`, also for what only seems to be a text; names entry and field."""
    with pytest.raises(Refusal, match=rf"^field_blank: the {field} of entry 2 is ") as refused:
        canonical(day(line(), line() | {field: wrong}))
    assert (refused.value.code, refused.value.stage) == ("field_blank", "layout")


@pytest.mark.parametrize("blank", ["", "   ", "\u200b", "\x00", None])
def test_a_blank_address_is_left_out(blank: Any) -> None:
    """S-27, S-28: and the hash is that of a day that never had the key."""
    payload = canonical(day(line() | {"address": blank}))
    assert "address" not in payload["entries"][0]
    assert payload_hash(payload) == payload_hash(canonical(day(line())))


def test_an_address_that_is_no_text_is_refused() -> None:
    """Bad input: it would be lost silently; S-27."""
    with pytest.raises(Refusal, match="field_blank: the address of entry 1 is a number, not a text"):
        canonical(day(line(address=316)))


def test_a_title_keeps_its_case_and_loses_its_blanks() -> None:
    """S-27: any of Unicode's blanks."""
    assert only(title=" marie \t SJÖBERG\u00a0\n ab ")["title"] == "marie SJÖBERG ab"


@pytest.mark.parametrize(
    ("spelled", "right"),
    [
        ("BILLDAL", "Billdal"),
        ("  västra   FRÖLUNDA ", "Västra Frölunda"),
        ("upplands-VÄSBY", "Upplands-Väsby"),
        ("o'hara", "O'hara"),
        ("kyrkogatan 3B 431 37 mölndal", "Kyrkogatan 3b 431 37 Mölndal"),
        ("ßtraße ŉs ǆ İz", "ßtraße ŉs ǅ İz"),  # what has no capital of one letter stays small
    ],
)
def test_places_are_in_title_case(spelled: str, right: str) -> None:
    """S-27: a word starts after a blank or a hyphen; location and address alike."""
    entry = only(location=spelled, address=spelled)
    assert (entry["location"], entry["address"]) == (right, right)


def test_letters_are_composed() -> None:
    """S-26: one letter may be written as two signs; that is spelling, not meaning."""
    apart = line(title="Sjo\u0308berg", location="Mo\u0308lndal", address="A\u030aby 1")
    assert canonical(day(apart)) == canonical(day(line(title="Sjöberg", location="Mölndal", address="Åby 1")))


def test_what_postgresql_cannot_store_is_dropped_from_texts() -> None:
    """S-26: NUL, other controls and halves of surrogate pairs."""
    dirty = only(title="Ma\x00rie\x07 Sjö\ud83dberg\ude00", location="Bill\x00dal", address="Väg\udc00 1")
    assert dirty == line(title="Marie Sjöberg", location="Billdal", address="Väg 1")


def test_an_error_is_short_and_can_be_stored() -> None:
    """Bad input: what was wrong is repeated, but neither whole nor in signs that no column takes; S-27."""
    with pytest.raises(Refusal) as refused:
        canonical(day(line(start="\x00\ud800" + "x" * 5000)))
    text = str(refused.value)
    assert len(text) < 200
    assert text.isprintable()
    text.encode()


def test_entries_are_sorted_by_times_then_title_and_place_without_case() -> None:
    """S-27: 'b' comes after 'A' and before 'C'."""
    lines = [
        line(start="10:00", title="x"),
        line(title="C"),
        line(title="b", location="Z"),
        line(title="B", location="A"),
        line(title="A"),
        line(end="17:00", title="z"),
    ]
    found = [(entry["title"], entry["location"]) for entry in canonical(day(*lines))["entries"]]
    assert found == [
        ("z", "Billdal"),
        ("A", "Billdal"),
        ("B", "A"),
        ("b", "Z"),
        ("C", "Billdal"),
        ("x", "Billdal"),
    ]


def test_entries_that_differ_only_in_case_or_address_have_one_order_too() -> None:
    """S-26, S-27: or the hash would depend on the order in which they were read."""
    lines = [line(title="a"), line(title="A"), line(address="Väg 2"), line(address="Väg 1"), line()]
    assert canonical(day(*lines)) == canonical(day(*reversed(lines)))


def test_an_address_is_part_of_the_hash() -> None:
    """S-28: an address that changes alone makes a version."""
    one, other = (canonical(day(line(address=text))) for text in ("Väg 1", "Väg 2"))
    assert len({payload_hash(one), payload_hash(other), payload_hash(canonical(day(line())))}) == 3


def test_a_change_of_case_in_a_title_makes_another_hash_and_one_in_a_place_does_not() -> None:
    """S-28: a version for the first, none for the second."""
    known = payload_hash(canonical(day(line())))
    assert payload_hash(canonical(day(line(title="marie sjöberg städservice")))) != known
    assert payload_hash(canonical(day(line(location="BILLDAL")))) == known


def test_the_hash_of_a_payload_is_that_of_its_vector() -> None:
    """S-29, part of: every vector of the document holds."""
    payload = canonical(
        day(line(start="9.0", end="18 00", title=" Marie  Sjöberg Städservice", location="BILLDAL"))
    )
    text = (
        '{"entries":[{"end":"18:00","location":"Billdal","start":"09:00",'
        '"title":"Marie Sjöberg Städservice"}],"schedule_date":"2026-03-02"}'
    )
    assert canonical_json(payload) == text
    assert payload_hash(payload) == "7a7e3d6e12ab76723b143817f01677bcd234a44f78ab05389aefb2b5606527e4"


def test_what_is_no_number_has_no_json() -> None:
    """S-29: NaN is no JSON, so it cannot be hashed as if it were."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


def test_the_lock_of_a_day_is_that_of_its_vector() -> None:
    """S-30, part of: every vector of the document holds."""
    assert lock_key(42, date(2026, 3, 2)) == -6751161748863970986
    assert day_of(canonical(day())) == date(2026, 3, 2)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.dates())
def test_a_lock_key_fits_into_64_bits(user_id: int, when: date) -> None:
    """S-30: whoever it is and whenever."""
    assert -(2**63) <= lock_key(user_id, when) < 2**63


@pytest.mark.parametrize("name", ["canonical", "shifts", "diff", "events", "replay", "messages"])
def test_the_examples_of_a_pure_module_are_true(name: str) -> None:
    """What their docstrings show: S-26, S-35, S-49."""
    assert doctest.testmod(importlib.import_module(f"holdfast.apps.schedules.{name}")).failed == 0


def test_a_day_of_more_lines_than_any_day_has_is_refused() -> None:
    """Bad input: `entries_invalid`; S-26: pairing old with new takes the square of their number."""
    line = {"start": "09:00", "end": "10:00", "title": "Marie", "location": "Billdal"}
    whole = {"schedule_date": "2026-03-02", "entries": [line] * 200}
    assert len(canonical(whole)["entries"]) == 200
    with pytest.raises(Refusal, match=r"^entries_invalid: entries has more than 200 lines"):
        canonical(whole | {"entries": [line] * 201})


@pytest.mark.parametrize("field", ["title", "location", "address"])
def test_a_text_that_no_card_has_is_refused(field: str) -> None:
    """Bad input: `field_too_long`; S-27: cleaning takes time, and the worker has others to look after."""
    line = {"start": "09:00", "end": "10:00", "title": "Marie", "location": "Billdal"}
    assert canonical({"schedule_date": "2026-03-02", "entries": [line | {field: "a" * 500}]})
    with pytest.raises(Refusal, match=rf"^field_too_long: the {field} of entry 1 has more than 500"):
        canonical({"schedule_date": "2026-03-02", "entries": [line | {field: "a" * 501}]})
