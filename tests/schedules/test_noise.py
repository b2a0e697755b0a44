"""Noise changes how a day is written and never what it says."""

from __future__ import annotations

import copy
import doctest
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.schedules import noise
from holdfast.apps.schedules.canonical import canonical, payload_hash
from holdfast.apps.schedules.noise import Noise, noisy
from holdfast.apps.schedules.values import Refusal
from schedules.test_fixture import SESSION

DAY: dict[str, Any] = {
    "schedule_date": "2026-03-02",
    "entries": [
        {
            "start": "08:05",
            "end": "10:30",
            "title": "Marie Sjöberg Städservice",
            "location": "Västra Frölunda",
        },
        {
            "start": "11:00",
            "end": "13:00",
            "title": "Askims skola",
            "location": "Askim",
            "address": "Kyrkväg 12",
        },
        {
            "start": "14:00",
            "end": "16:05",
            "title": "AB Kontor",
            "location": "Mölndal-Kållered",
            "address": "",
        },
        {"start": "14:00", "end": "16:05", "title": "ab kontor", "location": "Mölndal-Kållered"},
    ],
}
TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["Straße ßen", "ŉ ǰ ΐ", "İzmir \u0131I", "ΟΔΟΣ οδοσ", "ǆ ǅ", "e\u0301 -ö", "a\u2003b\tc", "\u1e9e", "K"]
)
TIMES = st.sampled_from(
    ["09:00", "9:0", "18.00", "10 00", "00:00", "23:59", "24:00", "9:75", "noon", "", " 9:00"]
)
ENTRIES = st.fixed_dictionaries(
    {"start": TIMES | TEXTS, "end": TIMES, "title": TEXTS, "location": TEXTS},
    optional={"address": TEXTS | st.none() | st.integers(), "further": TEXTS},
)
DAYS = st.fixed_dictionaries(
    {"schedule_date": st.just("2026-03-02"), "entries": st.lists(ENTRIES | st.none(), max_size=4)}
)


def verdict(payload: Any) -> str:
    """The hash of a day, or the code with which it is refused."""
    try:
        return payload_hash(canonical(payload))
    except Refusal as refusal:
        return refusal.code


def test_the_same_seed_gives_the_same_noise() -> None:
    """S-21. The last one is pinned: another version of Python must not make other noise."""
    assert [noisy(DAY, seed) for seed in range(20)] == [noisy(DAY, seed) for seed in range(20)]
    random.seed(1)  # what others do with chance is no matter
    assert [entry["start"] for entry in noisy(DAY, 3)["entries"]] == ["14:00", "11.00", "08.05", "14:0"]


def test_twenty_noise_seeds_give_one_hash_and_a_real_change_under_twenty_more_exactly_one_other() -> None:
    """S-21, S-26."""
    changed = copy.deepcopy(DAY)
    changed["entries"][0]["end"] = "10:31"
    before = {verdict(noisy(DAY, seed)) for seed in range(20)}
    after = {verdict(noisy(changed, seed)) for seed in range(20, 40)}
    assert before == {verdict(DAY)}
    assert after == {verdict(changed)}
    assert before != after


@pytest.mark.parametrize("place", ["Straße", "ŉ", "ǰ-ΐ", "İzmir", "ΟΔΟΣ οδοσ", "ǅ", "\u1e9e"])
def test_letters_that_do_not_survive_a_change_of_case_are_spared(place: str) -> None:
    """S-21: the capital of ß is SS, which leads back to ss."""
    odd = {**DAY, "entries": [DAY["entries"][1] | {"location": place, "address": f"{place} 5"}]}
    assert {verdict(noisy(odd, seed)) for seed in range(40)} == {verdict(odd)}


def test_every_kind_of_change_occurs() -> None:
    """S-21: times, spaces, case and order."""
    days = [noisy(DAY, seed)["entries"] for seed in range(200)]
    first = [next(entry for entry in day if entry["title"].split()[0] == "Marie") for day in days]
    assert {entry["start"] for entry in first} == {"08:05", "08.05", "08 05", "8:05", "08:5"}
    titles = {entry["title"] for entry in first}
    assert titles >= {"Marie Sjöberg Städservice", "Marie  Sjöberg  Städservice"}
    assert any(title.startswith(" ") for title in titles)
    assert any(title.endswith(" ") for title in titles)
    places = {entry["location"].replace("  ", " ").strip() for entry in first}
    assert places == {"Västra Frölunda", "västra frölunda", "VÄSTRA FRÖLUNDA"}
    assert any(entry["location"].startswith(" ") for entry in first)
    addresses = {entry["address"].strip() for day in days for entry in day if "address" in entry}
    assert addresses >= {"kyrkväg 12", "KYRKVÄG 12", "Kyrkväg  12", ""}
    assert len({tuple(entry["end"][:2] for entry in day) for day in days}) > 4


def test_what_came_in_is_not_changed() -> None:
    """S-21."""
    given = copy.deepcopy(DAY)
    noisy(given, 5)
    assert given == DAY


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        "day",
        [],
        {},
        {"entries": None},
        {"entries": "09:00"},
        {"entries": [None, 1, "x", []], "a": 1},
    ],
    ids=repr,
)
def test_what_is_no_day_stays_as_it_is(payload: Any) -> None:
    """S-21: noise mends no fault and makes none."""
    found = noisy(payload, 3)
    if isinstance(payload, dict) and isinstance(payload.get("entries"), list):
        assert sorted(map(repr, found.pop("entries"))) == sorted(map(repr, payload["entries"]))
        payload = {name: value for name, value in payload.items() if name != "entries"}
    assert found == payload


@given(DAYS, st.integers(0, 2**32))
def test_any_day_is_judged_alike_under_any_noise(payload: Any, seed: int) -> None:
    """S-21: every seed canonicalises to the same hash, whatever the letters; a refused day stays refused."""
    assert noisy(payload, seed) == noisy(payload, seed)
    spelled, plain = verdict(noisy(payload, seed)), verdict(payload)
    # Of several faults the first is told, and noise may change which entry comes first.
    assert spelled == plain or (len(payload["entries"]) > 1 and len(spelled) < 64 and len(plain) < 64)


async def test_noise_is_laid_over_what_another_extractor_reads() -> None:
    """S-21, S-22."""

    class Inner:
        needs_images = True

        async def extract(self, session: Any, images: Any) -> Any:
            assert (session, images) == (SESSION, ["a picture"])
            return DAY

    extractor = Noise(Inner(), 4)
    assert extractor.needs_images
    assert await extractor.extract(SESSION, ["a picture"]) == noisy(DAY, 4) != DAY  # type: ignore[list-item]


def test_the_examples_are_true() -> None:
    assert doctest.testmod(noise) == doctest.TestResults(0, 1)
