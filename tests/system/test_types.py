"""The words of `system.jobs`: types, states, and ids."""

from __future__ import annotations

import doctest
import multiprocessing
import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from holdfast.apps.system import types
from holdfast.apps.system.types import (
    ALPHABET,
    PREFIXES,
    STATUSES,
    TYPES,
    JobType,
    new_id,
    read_id,
    read_status,
    read_type,
    stored_type,
    type_of_id,
)
from holdfast.errors import InvalidInput

EIGHT = "flush, cleanup, retention, stream_eviction, user_cleanup, compact, backup, restore"
SPELT = {
    JobType.FLUSH: ["flush", "Flush", "FLUSH", " flush "],
    JobType.STREAM_EVICTION: [
        "stream_eviction",
        "StreamEviction",
        "stream-eviction",
        "STREAM_EVICTION",
        "stream eviction",
        "streamEviction",
        "STREAMEVICTION",
    ],
    JobType.USER_CLEANUP: ["UserCleanup", "user-cleanup", "User_Cleanup"],
    JobType.RESTORE: ["Restore", "RESTORE"],
}


def test_the_eight_types_have_the_prefixes_of_the_seed_and_unknown_has_none() -> None:
    """Y-1, Y-2: stored in lower snake case."""
    assert {kind.value: kind.short_prefix for kind in JobType} == {
        "flush": "FL",
        "cleanup": "CL",
        "retention": "RT",
        "stream_eviction": "SE",
        "user_cleanup": "UC",
        "compact": "CO",
        "backup": "BK",
        "restore": "RS",
        "unknown": None,
    }
    assert ", ".join(TYPES) == EIGHT


def test_ten_thousand_ids_per_type_match_the_format_and_the_prefix_of_their_type() -> None:
    """Y-1: eight characters each, so at most 13 in all."""
    for kind in TYPES:
        drawn = [new_id(kind) for _ in range(10_000)]
        assert all(re.fullmatch(rf"{kind.short_prefix}-[0-9A-Za-z]{{8}}", one) for one in drawn)
        assert {type_of_id(one) for one in drawn} == {kind}
        assert [read_id(one) for one in drawn] == drawn
        assert max(map(len, drawn)) <= 13


def test_a_million_ids_in_several_processes_are_unique() -> None:
    """Y-1: no process repeats what another has drawn.

    Each type has 62**8 ids, about 2.2 * 10**14. Of 125,000 for each of the eight types, two agree in one of
    3,500 such runs, and two pairs do in one of 20 million; a shared source would repeat thousands. So one
    pair may pass here. In the table it does not: the primary key refuses it, and another id is drawn.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=spawn) as processes:
        drawn = Counter(processes.map(new_id, [*TYPES] * 125_000, chunksize=31_250))
    assert drawn.total() == 1_000_000
    assert len(drawn) >= 999_999


def test_every_character_is_as_likely_at_every_place() -> None:
    """Y-1: chi squared over 62 characters stays far below what a bias of one part in ten would give."""
    ids = [new_id("flush")[3:] for _ in range(40_000)]
    for place in range(8):
        seen = Counter(one[place] for one in ids)
        expected = len(ids) / len(ALPHABET)
        # 61 degrees of freedom: 61 on average, above 150 in less than one of 10**8 runs.
        assert sum((seen[character] - expected) ** 2 / expected for character in ALPHABET) < 150


@pytest.mark.parametrize(("kind", "spelt"), SPELT.items(), ids=[*SPELT])
def test_a_type_is_read_in_any_case_and_both_spellings(kind: JobType, spelt: list[str]) -> None:
    """Y-2."""
    assert {read_type(text) for text in spelt} == {kind}
    assert {stored_type(text) for text in spelt} == {kind}
    assert new_id(spelt[-1]).startswith(PREFIXES[kind])


@pytest.mark.parametrize(
    "bad", ["Unknown", "unknown", "", " ", "vacuum", "FL", "bac\u212aup", "flu\nsh", None, 7, []]
)
def test_another_type_is_refused_and_the_eight_are_listed(bad: object) -> None:
    """Y-3: Unknown cannot be created either, as it has no prefix."""
    with pytest.raises(InvalidInput, match=EIGHT) as refused:
        read_type(bad)
    assert refused.value.field == "job_type"
    assert stored_type(bad) is JobType.UNKNOWN
    if isinstance(bad, str):
        with pytest.raises(InvalidInput):
            new_id(bad)


def test_what_was_given_is_repeated_in_ascii_and_not_at_full_length() -> None:
    """Y-3: an error is shown on terminals and kept in logs."""
    with pytest.raises(InvalidInput) as refused:
        read_type("\x1b[31m" + "x" * 10_000)
    assert "\x1b" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_status_is_read_in_any_case_and_both_spellings() -> None:
    """Y-2, Y-42: the old Running, Completed, Failed and Cancelled keep their meaning."""
    for status in STATUSES:
        assert {read_status(text) for text in (status, status.upper(), status.title())} == {status}
    assert {read_status(text) for text in ("canceled", "Cancelled", "CANCELED")} == {"cancelled"}
    for bad in ("", "pending", "done", "running;", None, 1):
        with pytest.raises(InvalidInput, match=", ".join(STATUSES)) as refused:
            read_status(bad)
        assert refused.value.field == "status"


@pytest.mark.parametrize(
    "text", ["FL-4fK2mZ0q", " FL-4fK2mZ0q\n", "'FL-4fK2mZ0q'", '"FL-4fK2mZ0q"', "' FL-4fK2mZ0q '"]
)
def test_an_id_is_read_bare_and_in_quotes(text: str) -> None:
    """Y-1, Y-36."""
    assert read_id(text) == "FL-4fK2mZ0q"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "''",
        "'",
        "FL-",
        "FL-12345",
        "FL-12345678901",
        "fl-4fK2mZ0q",
        "F-4fK2mZ0q",
        "FLX-4fK2mZ0q",
        "FL-4fK2mZ0_",
        "FL_4fK2mZ0q",
        "'FL-4fK2mZ0q",
        "'FL-4fK2mZ0q\"",
        "FL-4fK2mZ0q x",
        "FL-\u0664fK2mZ0q",
        "FL-4fK2mZ\x00q",
        None,
        7,
    ],
)
def test_a_malformed_id_is_refused(bad: object) -> None:
    """Y-1: with an example of a right one."""
    with pytest.raises(InvalidInput, match="FL-4fK2mZ0q") as refused:
        read_id(bad)
    assert refused.value.field == "id"


def test_the_id_of_a_type_that_nobody_knows_is_an_id() -> None:
    """Y-3: a row of a later version is shown, and can be asked for."""
    assert read_id("ZZ-123456") == "ZZ-123456"
    assert type_of_id("ZZ-123456") is JobType.UNKNOWN


def test_the_examples_are_true() -> None:
    """Y-2."""
    assert doctest.testmod(types).failed == 0
