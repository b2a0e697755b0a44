"""Page cursors: what they say, and what is refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.connectors import cursors
from holdfast.errors import InvalidInput

ID = UUID(int=7)
MOMENT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
KEYS = {"occurred_at": MOMENT, "id": ID}
FILTERS = {"tenant_id": UUID(int=1), "kind": "issue_created", "status": None}


def packed(told: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(told).encode()).decode()


def told(**changed: Any) -> dict[str, Any]:
    """What a right cursor says, with changes."""
    said = json.loads(base64.urlsafe_b64decode(cursors.encode(KEYS, FILTERS)))
    return {name: value for name, value in (said | changed).items() if value is not ...}


def keys(**changed: Any) -> str:
    """A cursor with other keys and the right mark, as if it had been given out."""
    wrong = told()["keys"] | changed
    return packed({"version": 1, "keys": wrong, "filters": cursors._mark(FILTERS, wrong)})


def edited(**changed: Any) -> str:
    """One that was given out, with other keys."""
    said = told()
    return packed(said | {"keys": said["keys"] | changed})


def refused(text: Any, filters: Mapping[str, Any] = FILTERS, names: tuple[str, ...] = ()) -> str:
    with pytest.raises(InvalidInput) as caught:
        cursors.decode(text, filters, names)
    assert caught.value.field == "cursor"
    return caught.value.fields["message"]


def test_a_cursor_is_padded_base64_of_a_version_and_the_keys() -> None:
    """C-68"""
    text = cursors.encode(KEYS, FILTERS)
    assert len(text) % 4 == 0
    said = json.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    assert said["version"] == 1
    assert said["keys"] == {"occurred_at": "2026-03-01T12:00:00.123456+00:00", "id": str(ID)}


def test_a_cursor_brings_back_the_very_keys() -> None:
    """C-68: to the microsecond, else rows would be told twice or not at all."""
    assert cursors.decode(cursors.encode(KEYS, FILTERS), FILTERS, ("id", "occurred_at")) == KEYS


@given(
    moment=st.datetimes(max_value=datetime(2026, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    id=st.uuids().filter(lambda one: one.int > 0),
    name=st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=30),
)
def test_every_key_comes_back_as_it_was(moment: datetime, id: UUID, name: str) -> None:
    """C-68: also one of long ago, as an account brings what happened years before."""
    every = {"occurred_at": moment, "id": id, "provider": name}
    assert cursors.decode(cursors.encode(every, {}), {}) == every


def test_the_other_alphabet_is_read_as_well() -> None:
    """C-68"""
    text = cursors.encode({"provider": "ÿþý>>>???", "id": ID}, {})
    other = text.replace("-", "+").replace("_", "/")
    assert other != text
    assert cursors.decode(other, {}) == cursors.decode(text, {})


def test_a_filter_that_is_not_set_and_one_that_is_not_there_are_the_same() -> None:
    """C-68"""
    text = cursors.encode(KEYS, FILTERS)
    assert cursors.decode(text, {"kind": "issue_created", "tenant_id": str(UUID(int=1))}) == KEYS


def test_a_time_in_another_zone_is_the_same_filter() -> None:
    """C-68"""
    text = cursors.encode(KEYS, {"occurred_after": MOMENT})
    elsewhere = MOMENT.astimezone(timezone(timedelta(hours=5)))
    assert cursors.decode(text, {"occurred_after": elsewhere}) == KEYS


@pytest.mark.parametrize(
    "filters",
    [
        {},
        FILTERS | {"kind": "pr_merged"},
        FILTERS | {"tenant_id": UUID(int=2)},
        FILTERS | {"status": "active"},
        FILTERS | {"occurred_after": MOMENT},
    ],
)
def test_other_filters_refuse_the_cursor(filters: dict[str, Any]) -> None:
    """C-68: another tenant is another filter."""
    assert "other filters" in refused(cursors.encode(KEYS, FILTERS), filters)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must not be empty"),
        (None, "must not be empty"),
        ("A" * 1001, "at most 1000 characters"),
        ("not base64!", "is not base64"),
        ("abc", "is not base64"),
        (cursors.encode(KEYS, FILTERS).rstrip("=") + "=", "is not base64"),
        (" " + cursors.encode(KEYS, FILTERS), "is not base64"),
        ("é", "is not base64"),
        (packed({"version": 1, "keys": {"id": "x" * 500}}), "says more than 500 bytes"),
        (base64.b64encode(b"\xff\xfe{}").decode(), "is not UTF-8"),
        (base64.b64encode(b"{not json").decode(), "is not JSON"),
        (base64.b64encode(b"[" * 450).decode(), "is not JSON"),
        (packed([]), "is not one that a page gave out"),
        (packed("text"), "is not one that a page gave out"),
        (packed(told(version=2)), "is not of version 1"),
        (packed(told(version="1")), "is not of version 1"),
        (packed(told(version=True)), "is not of version 1"),
        (packed(told(version=1.0)), "is not of version 1"),
        (packed(told(version=...)), "is not of version 1"),
        (packed(told(keys=...)), "is not one that a page gave out"),
        (packed(told(keys={})), "is not one that a page gave out"),
        (packed(told(keys=[1])), "is not one that a page gave out"),
        (packed(told(filters=...)), "other filters"),
        (packed(told(filters=7)), "other filters"),
        (keys(id=str(UUID(int=0))), "has no row's UUID for id"),
        (keys(id="7"), "has no UUID for id"),
        (keys(id=7), "has no text for id"),
        (keys(id=None), "has no text for id"),
        (keys(occurred_at="yesterday"), "has no time for occurred_at"),
        (keys(occurred_at="2026-03-01T12:00:00"), "no time with a zone"),
        (keys(occurred_at="0001-01-01T00:00:00+14:00"), "has no time for occurred_at"),
        (edited(occurred_at="9999-12-31T23:59:59+00:00"), "was changed"),
        (edited(occurred_at="2027-03-02T12:00:00.123456+00:00"), "was changed"),
        (edited(occurred_at="2025-02-28T12:00:00.123456+00:00"), "was changed"),
        (edited(id=str(UUID(int=8))), "was changed"),
        (edited(more="x"), "was changed"),
        (keys(provider="a\x00b"), "has no text for provider"),
    ],
)
def test_anything_else_is_refused(text: Any, message: str) -> None:
    """The row of "Bad input" about page cursors, one by one."""
    assert message in refused(text)


def test_a_row_of_a_time_far_away_has_a_cursor_that_goes_on_from_there() -> None:
    """C-68: rows are scheduled, clocks are wrong, and none is skipped; nobody else can name such a time."""
    for year in (1, 1970, 2024, 2031, 9999):
        far = {"occurred_at": MOMENT.replace(year=year), "id": ID}
        assert cursors.decode(cursors.encode(far, FILTERS), FILTERS) == far


def test_a_cursor_of_another_list_is_refused_where_the_names_are_told() -> None:
    """C-68"""
    other = cursors.encode({"created_at": MOMENT, "id": ID}, {})
    assert "another list" in refused(other, {}, ("occurred_at", "id"))
    assert "another list" in refused(cursors.encode({"id": ID}, {}), {}, ("occurred_at", "id"))


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode()))
def test_whatever_comes_is_a_cursor_or_refused(text: str) -> None:
    """C-68: never another error."""
    with pytest.raises(InvalidInput):
        cursors.decode(text, FILTERS)
