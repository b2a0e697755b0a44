"""What entries mean: customer, place, kind of work, and the fingerprints that outlive a misread letter."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.apps.schedules.canonical import canonical, digest
from holdfast.apps.schedules.shifts import (
    COMPANY_WORDS,
    Address,
    address_of,
    clean,
    customer_fingerprint,
    from_json,
    location_fingerprint,
    shifts,
    sort_key,
    to_json,
    value_hash,
    value_text,
)
from holdfast.apps.schedules.values import Refusal, Shift

VALEBERGSVAGEN = "209c01288fb1b544b649a725aa0bd39b76e3e8cc5383ee587bba41ca86400af3"
SJOBERG = "361c59db473c7816dc58ed0736a0ea78eaef295f8d98b64b80dab947c05acb76"
EXAMPLE = Shift(
    start="09:00",
    end="18:00",
    customer_name="Marie Sjoberg",
    customer_fingerprint=SJOBERG,
    street="Valebergsvagen",
    street_number="316",
    postal_code="",
    postal_area="",
    city="Billdal",
    location_fingerprint=VALEBERGSVAGEN,
    shift_type="HOME_VISIT",
)


def read(*lines: dict[str, str], words: tuple[str, ...] = COMPANY_WORDS) -> tuple[Shift, ...]:
    """The shifts of a day whose entries differ from the example as the lines say."""
    entry = {
        "start": "09:00",
        "end": "18:00",
        "title": "Marie Sjöberg Städservice",
        "location": "Billdal",
        "address": "Valebergsvägen 316 Billdal",
    }
    return shifts(
        canonical({"schedule_date": "2026-03-02", "entries": [entry | one for one in lines]}), words
    )


def one(**changes: str) -> Shift:
    (shift,) = read(changes)
    return shift


def test_a_shift_is_eleven_texts() -> None:
    """S-33: from title, address and location of a canonical entry."""
    assert one() == EXAMPLE
    assert len(to_json(EXAMPLE)) == 11
    assert all(isinstance(text, str) for text in to_json(EXAMPLE).values())


def test_every_vector_of_a_shift_holds() -> None:
    """S-37, S-38, S-39, part of: every vector of the document holds."""
    assert digest("valebergsvagen|3l6|bllldal") == VALEBERGSVAGEN == one().location_fingerprint
    assert digest("sjoberg|m") == SJOBERG == one().customer_fingerprint
    assert value_hash(None) == "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"
    assert value_hash(None, 1) == "903b6741168cb5141782f75b6c4ec6345409554f0a7d2e1fcd62fb1de108f191"
    assert value_hash(one()) == "e56cf0a6a7c108e3b1a92a5d8e562aaafba9ed558c0eeba84c6b34b80cdc421d"


def test_an_occurrence_is_written_behind_the_text() -> None:
    """S-39: only from the second on."""
    assert value_text(None) == "null"
    assert value_hash(EXAMPLE, 0) == digest(value_text(EXAMPLE))
    assert value_hash(EXAMPLE, 2) == digest(value_text(EXAMPLE) + "#2")


def test_a_reader_tolerates_further_keys() -> None:
    """S-33: another writer of the snapshot may keep more."""
    assert from_json(to_json(EXAMPLE) | {"confidence": 0.9}) == EXAMPLE


@pytest.mark.parametrize("wrong", [None, [], "text", {}, {"start": "09:00"}, to_json(EXAMPLE) | {"end": 18}])
def test_what_is_no_shift_is_refused(wrong: Any) -> None:
    """S-33: with a code, so that a broken snapshot is told as such."""
    with pytest.raises(Refusal, match=r"^shift_invalid: ") as refused:
        from_json(wrong)
    assert refused.value.stage == "diff"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("  Marie \t Sjöberg ", "Marie Sjoberg"),
        ("Bi|ldal", "Billdal"),
        ("BIlldal", "Billdal"),
        ("Ingrid", "Ingrid"),
        ("Sj0berg", "Sjoberg"),
        ("L1nd", "Lind"),
        ("0stra 10 B1", "0stra 10 B1"),  # not between letters
        ("Åkeröd é ñ", "Akerod E N"),
        ("Anna-Karin O'Hara", "Anna-Karin O'hara"),
        ("Anna–Karin O’Hara", "Anna-Karin O'hara"),  # noqa: RUF001 the printer's dash and apostrophe
        ("Sjöberg, M. (hem) #7!", "Sjoberg M Hem 7"),
        ("- * Marie", "Marie"),
        ("S:t Eriksgatan", "St Eriksgatan"),
        ("?!", ""),
    ],
)
def test_a_text_is_cleaned(text: str, cleaned: str) -> None:
    """S-34: what readers of pictures get wrong, accents, other signs and case."""
    assert clean(text) == cleaned


@settings(deadline=None)
@given(st.text(st.characters(), max_size=20))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    """S-34: whatever letters there are."""
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Marie Sjöberg Städservice AB", "Marie Sjoberg"),
        ("AB Marie STÄDTJÄNST Sjöberg hb städning", "Marie Sjoberg"),
        ("Abel Hbson", "Abel Hbson"),  # words, not beginnings
        ("Städservice AB", "Stadservice Ab"),  # nothing else would be left
    ],
)
def test_names_lose_the_company_words_unless_nothing_would_be_left(title: str, name: str) -> None:
    """S-34."""
    assert one(title=title).customer_name == name


def test_company_words_are_a_setting() -> None:
    """S-34, S-38: in any spelling; a word with a hyphen is one, too."""
    (shift,) = read({"title": "Marie Sjöberg Städ-Firma Oy AB"}, words=("OY", "städ-firma"))
    assert shift.customer_name == "Marie Sjoberg Ab"
    assert shift.customer_fingerprint == digest("sjoberg|am")


@pytest.mark.parametrize(
    ("text", "hint", "parts"),
    [
        ("Valebergsvägen 316 Billdal", "", ("Valebergsvagen", "316", "", "", "Billdal")),
        ("Valebergsvägen 316 Billdal", "Billdal", ("Valebergsvagen", "316", "", "", "Billdal")),
        ("Kyrkogatan 3 43137 MOLNDAL", "", ("Kyrkogatan", "3", "431 37", "Molndal", "Molndal")),
        ("Kyrkogatan 3 431 37 Mölndal", "", ("Kyrkogatan", "3", "431 37", "Molndal", "Molndal")),
        ("Kyrkogatan 3, SE-431 37 Mölndal", "", ("Kyrkogatan", "3", "431 37", "Molndal", "Molndal")),
        ("Kyrkogatan 3 431 37 Mölndal", "Göteborg", ("Kyrkogatan", "3", "431 37", "Molndal", "Goteborg")),
        ("Kyrkogatan 3 431 37", "Mölndal", ("Kyrkogatan", "3", "431 37", "Molndal", "Molndal")),
        ("Stora Nygatan 12b", "Göteborg", ("Stora Nygatan", "12B", "", "", "Goteborg")),
        ("Valebergsvägen 316 427 38 Billdal", "", ("Valebergsvagen", "316", "427 38", "Billdal", "Billdal")),
        ("Storgatan 100 12 431 37 Mölndal", "", ("Storgatan 100", "12", "431 37", "Molndal", "Molndal")),
        ("Storgatan 3 vid Norra Billdal", "", ("Storgatan", "3", "", "", "Norra Billdal")),
        ("Storgatan 3,Billdal", "", ("Storgatan", "3", "", "", "Billdal")),
        ("Storgatan", "Billdal", ("Storgatan", "", "", "", "Billdal")),
        ("431 37 Mölndal", "", ("", "", "431 37", "Molndal", "Molndal")),
        ("Storgatan 123456", "Billdal", ("Storgatan", "123456", "", "", "Billdal")),
        ("", "Billdal", ("", "", "", "", "Billdal")),
        ("", "", ("", "", "", "", "")),
    ],
)
def test_an_address_has_its_parts(text: str, hint: str, parts: tuple[str, ...]) -> None:
    """S-35: the code in the middle, the number last before it, the city from the hint if there is one."""
    assert address_of(text, hint) == Address(*parts)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"title": "Askims SKOLA"}, "SCHOOL"),
        ({"address": "Kontorsvägen 3", "title": "Askims skola"}, "SCHOOL"),
        ({"location": "Skolan i Billdal", "title": "Kontoret"}, "SCHOOL"),
        ({"title": "Kontoret hemma"}, "OFFICE"),
        ({"address": "Kontorsgatan 3"}, "OFFICE"),
        ({"title": "Hemtjänst", "address": ""}, "HOME_VISIT"),
        ({"address": "Storgatan 3"}, "HOME_VISIT"),
        ({"address": "Storgatan"}, "UNKNOWN"),
        ({"address": "3"}, "UNKNOWN"),
        ({"address": ""}, "UNKNOWN"),
    ],
)
def test_the_kind_of_work_is_read_from_the_words(changes: dict[str, str], kind: str) -> None:
    """S-36: school before office before home; a street with a number is a home."""
    assert one(**changes).shift_type == kind


@pytest.mark.parametrize(
    "place", [("Valebergsvägen", "3I6", "Bi11dal"), ("VALEBERGSVAGEN", "3|6", "BILLDAL")]
)
def test_a_place_outlives_misread_letters(place: tuple[str, str, str]) -> None:
    """S-37: o and 0, and all that looks like an l."""
    assert location_fingerprint(*place) == VALEBERGSVAGEN


def test_a_zero_and_an_o_are_one_in_a_place() -> None:
    """S-37: wherever they stand, in numbers as well."""
    assert location_fingerprint("0stra Gatan", "1O", "M0lndal") == digest("ostragatan|lo|molndal")


def test_other_digits_and_parts_are_other_places() -> None:
    """S-37: 3 is not 5, and the parts stay apart."""
    places = [
        ("Storgatan", "3", "Billdal"),
        ("Storgatan", "5", "Billdal"),
        ("Storgatan3", "", "Billdal"),
        ("Storgatan", "3", "Askim"),
    ]
    assert len({location_fingerprint(*place) for place in places}) == len(places)


def test_a_place_is_named_by_the_postal_area_before_the_city() -> None:
    """S-37: the city of another hint changes nothing when there is an area."""
    address = "Kyrkogatan 3 431 37 Mölndal"
    here, there = one(address=address, location="Mölndal"), one(address=address, location="Göteborg")
    assert here.location_fingerprint == there.location_fingerprint
    assert here.city != there.city


@pytest.mark.parametrize(
    "title",
    ["Marie Sjöberg", "Sjöberg M.", "M.Sjöberg", "SJOBERG marie AB", "Sj0berg, M", "Mats  Sjöberg HB"],
)
def test_a_customer_is_the_longest_word_and_the_others_initials(title: str) -> None:
    """S-38: in any order, case and company."""
    assert customer_fingerprint(title) == SJOBERG


def test_customers_differ_by_word_or_initials() -> None:
    """S-38: the first of two longest words is the surname; initials are sorted."""
    assert customer_fingerprint("Karl Sjöberg") == digest("sjoberg|k")
    assert customer_fingerprint("Bo Anna-Maria Lindberg") == digest("lindberg|abm")
    assert customer_fingerprint("Anna Lind") == digest("anna|l")
    assert customer_fingerprint("Sjöberg") == digest("sjoberg|")


@pytest.mark.parametrize("title", ["", "?!", "AB", "Städservice HB"])
def test_no_word_at_all_is_the_fingerprint_of_nothing(title: str) -> None:
    """S-38: SHA-256 of the empty text."""
    assert customer_fingerprint(title) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_change_of_case_in_a_title_alone_means_nothing() -> None:
    """S-28: another version, but the same shift."""
    assert one(title="MARIE SJÖBERG städservice") == one()


LINES = st.fixed_dictionaries(
    {
        "start": st.sampled_from(["08:00", "09:00"]),
        "end": st.sampled_from(["10:00", "18:00"]),
        "title": st.sampled_from(["Marie Sjöberg", "Sjöberg M.", "Askims skola", "!"]),
        "address": st.sampled_from(["", "Storgatan 3", "Kyrkogatan 3 431 37 Mölndal"]),
    }
)


@settings(deadline=None)
@given(st.lists(LINES, max_size=8), st.randoms(use_true_random=False))
def test_shifts_are_sorted_whatever_the_order_of_the_day(
    lines: list[dict[str, str]], chance: random.Random
) -> None:
    """S-33: nothing but equal shifts ties, so that a day has one form."""
    shuffled = list(lines)
    chance.shuffle(shuffled)
    found = read(*lines)
    assert found == read(*shuffled)
    assert list(found) == sorted(found, key=sort_key)


def test_the_sort_key_knows_every_field() -> None:
    """S-33: two shifts that differ anywhere never tie."""
    for name in to_json(EXAMPLE):
        assert sort_key(msgspec.structs.replace(EXAMPLE, **{name: "?"})) != sort_key(EXAMPLE)
