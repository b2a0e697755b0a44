"""`metadata.sync` as anybody may have written it: what is read, what counts as missing, what is refused."""

from __future__ import annotations

import doctest
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.connectors import sync_state
from holdfast.apps.connectors.sync_state import SyncState, checked_interval, moment_text, read, read_moment
from holdfast.db.settings import Settings, load
from holdfast.errors import InvalidInput, SettingsError

SETTINGS = Settings()
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
TEXT = "2026-03-01T12:00:00.000000Z"

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones)  # noqa: DTZ001
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("interval_seconds", "next_run_at", "last_jitter_seconds", "first_activated_at", "cooldown_until")


def keys(metadata: Any, settings: Settings = SETTINGS) -> list[str]:
    return [flaw.key for flaw in read(metadata, settings)[1]]


# -- times -----------------------------------------------------------------------------------------------


@given(moments)
def test_a_moment_is_always_27_characters_and_reads_as_itself(moment: datetime) -> None:
    """C-17."""
    assert len(moment_text(moment)) == 27
    assert read_moment(moment_text(moment)) == moment


@given(moments, moments)
def test_the_order_of_the_texts_is_the_order_of_the_times(one: datetime, other: datetime) -> None:
    """C-17."""
    assert (moment_text(one) < moment_text(other)) == (one < other)


def test_a_time_without_a_zone_is_no_moment() -> None:
    """C-17."""
    with pytest.raises(ValueError, match="without a zone"):
        moment_text(datetime(2026, 3, 1))  # noqa: DTZ001


OTHER_SPELLINGS = [
    "2026-03-01T12:00:00Z",
    "2026-03-01T12:00:00.000Z",
    "2026-03-01T12:00:00.000000+00:00",
    "2026-03-01T13:00:00.000000+01:00",
    "2026-03-01 12:00:00.000000Z",
    "2026-03-01T12:00:00.000000z",
    "2026-03-01T12:00:00.000000",
    "20260301T120000.000000Z",
    "2026-W09-7T12:00:00.000000Z",
    "2026-13-01T12:00:00.000000Z",
    "2026-02-30T12:00:00.000000Z",
    "2026-03-01T24:00:00.000000Z",
    "2026-03-01T12:00:60.000000Z",
    "9999-99-99T99:99:99.999999Z",
    "0000-00-00T00:00:00.000000Z",
    "0001-01-01T00:00:00.000000+14:00",
    "٢٠٢٦-03-01T12:00:00.000000Z",
    "2026-03-01T12:00:00.000000Z\n",
    " 2026-03-01T12:00:00.000000Z",
    "now",
    "",
    1772366400,
    1772366400.5,
    True,
    [TEXT],
    {"at": TEXT},
]


@pytest.mark.parametrize("value", OTHER_SPELLINGS, ids=repr)
def test_any_other_spelling_of_a_time_counts_as_missing_and_is_told(value: Any) -> None:
    """C-17."""
    assert read_moment(value) is None
    for key in ("next_run_at", "first_activated_at", "cooldown_until"):
        state, (flaw,) = read({"sync": {key: value}}, SETTINGS)
        assert state == SyncState(interval_seconds=900)
        assert flaw.key == key
        assert str(flaw).startswith(f"{key} must be a time like 2030-01-31T12:00:00.000000Z, not ")


# -- reading ---------------------------------------------------------------------------------------------


def test_everything_that_is_well_written_is_read() -> None:
    """C-16."""
    sync = {
        "interval_seconds": 1800,
        "next_run_at": TEXT,
        "last_jitter_seconds": 0,
        "first_activated_at": "2026-02-01T00:00:00.000001Z",
        "cursor": {"since": [1, None]},
        "cooldown_until": TEXT,
        "mine": "stays",
    }
    assert read({"sync": sync, "team": "blue"}, SETTINGS) == (
        SyncState(
            interval_seconds=1800,
            next_run_at=NOON,
            last_jitter_seconds=0,
            first_activated_at=datetime(2026, 2, 1, microsecond=1, tzinfo=UTC),
            cursor={"since": [1, None]},
            cooldown_until=NOON,
        ),
        (),
    )


@pytest.mark.parametrize("metadata", [None, {}, {"sync": None}, {"sync": {}}, {"sync": dict.fromkeys(KEYS)}])
def test_what_says_nothing_is_no_flaw(metadata: Any) -> None:
    """C-16: all keys are optional."""
    assert read(metadata, SETTINGS) == (SyncState(interval_seconds=900), ())


@pytest.mark.parametrize("sync", ["soon", [], ["next_run_at"], 7, True, False, 0, ""], ids=repr)
def test_a_sync_that_is_no_object_is_treated_as_empty_and_told(sync: Any) -> None:
    """C-17."""
    state, (flaw,) = read({"sync": sync, "team": "blue"}, SETTINGS)
    assert state == SyncState(interval_seconds=900)
    assert str(flaw) == f"sync must be an object, not {sync!r}"


@pytest.mark.parametrize("metadata", ["text", [1], 7, True], ids=repr)
def test_metadata_that_are_no_object_are_treated_as_empty_and_told(metadata: Any) -> None:
    """C-17."""
    assert keys(metadata) == ["metadata"]


@pytest.mark.parametrize("value", [-1, 1.0, "3", True, [], {}], ids=repr)
def test_a_jitter_that_is_no_whole_number_of_seconds_counts_as_missing(value: Any) -> None:
    """C-16."""
    state, (flaw,) = read({"sync": {"last_jitter_seconds": value}}, SETTINGS)
    assert (state.last_jitter_seconds, flaw.key) == (None, "last_jitter_seconds")


def test_every_flaw_is_told_and_what_is_well_written_beside_it_is_read() -> None:
    """C-17, C-18."""
    broken: dict[str, Any] = dict.fromkeys(KEYS, "?")
    state, flaws = read({"sync": {**broken, "cursor": "c1"}}, SETTINGS)
    assert state == SyncState(interval_seconds=900, cursor="c1")
    assert [flaw.key for flaw in flaws] == list(KEYS)


def test_a_long_value_is_told_in_few_words() -> None:
    """C-18: what anybody may have written does not fill the log."""
    _, (flaw,) = read({"sync": {"interval_seconds": "9" * 100_000}}, SETTINGS)
    assert len(str(flaw)) < 200


@given(
    st.one_of(
        json_values, st.fixed_dictionaries({"sync": st.dictionaries(st.sampled_from(KEYS), json_values)})
    )
)
def test_nothing_that_json_can_say_breaks_the_reading(metadata: Any) -> None:
    """C-17."""
    state, flaws = read(metadata, SETTINGS)
    assert 60 <= state.interval_seconds <= 86400
    assert state.last_jitter_seconds is None or state.last_jitter_seconds >= 0
    assert {flaw.key for flaw in flaws} <= {"metadata", "sync", *KEYS}


# -- intervals -------------------------------------------------------------------------------------------

WRONG_INTERVALS = [59, 86401, 0, -900, "900", 900.5, 900.0, True, [900], {"seconds": 900}, 10**30, ""]


@pytest.mark.parametrize("value", WRONG_INTERVALS, ids=repr)
def test_an_interval_that_is_out_of_range_or_no_whole_number_is_refused(value: Any) -> None:
    """C-18: for the stored one the default is used, and told."""
    state, (flaw,) = read({"sync": {"interval_seconds": value}}, SETTINGS)
    assert (state.interval_seconds, flaw.key) == (900, "interval_seconds")


@pytest.mark.parametrize("value", [*WRONG_INTERVALS, None], ids=repr)
def test_a_caller_hears_which_interval_would_be_right(value: Any) -> None:
    """C-19."""
    with pytest.raises(InvalidInput, match="interval_seconds: must be a whole number of seconds") as caught:
        checked_interval(value, SETTINGS)
    assert caught.value.field == "interval_seconds"
    assert "from 60 to 86400, not" in str(caught.value)


@pytest.mark.parametrize("value", [60, 61, 900, 86400])
def test_an_interval_within_the_range_is_taken(value: int) -> None:
    """C-16, C-19: the bounds are included."""
    assert checked_interval(value, SETTINGS) == value
    state, flaws = read({"sync": {"interval_seconds": value}}, SETTINGS)
    assert (state.interval_seconds, flaws) == (value, ())


def test_an_override_of_7200_with_a_limit_of_3600_reads_as_900() -> None:
    """C-18: the seed's example."""
    settings = replace(SETTINGS, sync_max_interval_seconds=3600)
    state, (flaw,) = read({"sync": {"interval_seconds": 7200}}, settings)
    assert state.interval_seconds == 900
    assert str(flaw) == "interval_seconds must be a whole number of seconds from 60 to 3600, not 7200"


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(sync_state).failed == 0


@pytest.mark.parametrize(
    ("text", "right"), [("59", False), ("60", True), ("604800", True), ("604801", False)]
)
def test_the_longest_interval_lies_between_a_minute_and_a_week(text: str, right: bool) -> None:
    """Section 2.3: 60..604800."""
    variables = {"HOLDFAST_SYNC_MAX_INTERVAL_SECONDS": text, "HOLDFAST_SYNC_DEFAULT_INTERVAL_SECONDS": "60"}
    if right:
        assert load(variables, dotenv=None).sync_max_interval_seconds == int(text)
    else:
        with pytest.raises(SettingsError, match="HOLDFAST_SYNC_MAX_INTERVAL_SECONDS must be a whole number"):
            load(variables, dotenv=None)
