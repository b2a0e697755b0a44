"""The closed list of kinds, and values that the database can store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.connectors.normal import KINDS, cut, known, moment, reading, stamp, storable
from holdfast.apps.connectors.protocol import Permanent, Signal, Transient
from holdfast.db.pool import Connection

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def signal(kind: str, **more: Any) -> Signal:
    return Signal(kind=kind, occurred_at=NOON, **{"payload": {}, **more})


def test_the_kinds_are_these_and_no_others() -> None:
    """C-74: a closed list."""
    listed = """
        issue_created issue_updated issue_closed issue_reopened issue_resolved issue_comment
        pr_opened pr_closed pr_merged pr_reopened pr_updated pr_review code_pushed release_published
        message_posted message_updated message_deleted reaction_added
        file_created file_updated file_deleted file_moved
        calendar_event_created calendar_event_updated calendar_event_deleted
        email_received email_sent email_updated email_deleted
    """
    assert set(listed.split()) == KINDS


def test_an_unknown_kind_is_dropped_with_one_line_and_its_neighbours_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C-74: no signal, one log line."""
    caplog.set_level("INFO", logger="holdfast.connectors")
    kept = known([signal("issue_created"), signal("issue_exploded"), signal("pr_opened")])
    assert [one.kind for one in kept] == ["issue_created", "pr_opened"]
    assert [record.getMessage() for record in caplog.records] == [
        "a signal of the kind 'issue_exploded' is no signal"
    ]


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
    max_leaves=20,
)


@given(JSONS)
def test_what_is_storable_is_strict_json_in_utf_8_without_nul(value: Any) -> None:
    """C-73: whatever somebody sends, the text of it is one that PostgreSQL takes."""
    clean = storable(value)
    text = json.dumps(clean, allow_nan=False, ensure_ascii=False)
    assert "\\u0000" not in text
    text.encode()
    assert storable(clean) == clean


async def test_nasty_payloads_and_keys_are_stored_by_postgresql(conn: Connection) -> None:
    """C-73: NUL, halves of a pair, NaN and depth do not hold up what comes after."""
    deep: Any = "bottom"
    for _ in range(500):
        deep = [deep]
    nasty = {"nul": "a\x00b", "half": "\ud83d", "pair": "\ud83d\ude00", "nan": float("nan"), "deep": deep}
    (clean,) = known([signal("issue_created", payload={**nasty, "k\x00": 1}, dedupe_key="x\x00\udc00y")])
    cursor = await conn.execute(
        "select %s::jsonb, %s::text", [json.dumps(clean.payload, allow_nan=False), clean.dedupe_key]
    )
    row = await cursor.fetchone()
    assert row is not None
    stored, key = row
    assert stored["nul"] == "ab"
    assert stored["pair"] == "\N{GRINNING FACE}"
    assert stored["half"] == "\N{REPLACEMENT CHARACTER}"
    assert stored["nan"] is None
    assert stored["k"] == 1
    assert key == "x\N{REPLACEMENT CHARACTER}y"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00Z"),
        ("2026-03-01T13:00:00+01:00", "2026-03-01T12:00:00Z"),
        ("2026-03-01T12:00:00.500Z", "2026-03-01T12:00:00.500000Z"),
        ("2026-03-01T12:00:00", "2026-03-01T12:00:00Z"),
        (1772366400, "2026-03-01T12:00:00Z"),
        (1772366400.25, "2026-03-01T12:00:00.250000Z"),
        (NOON, "2026-03-01T12:00:00Z"),
    ],
)
def test_a_time_has_one_spelling_however_it_came(given: Any, expected: str) -> None:
    """C-76: a key has the fact's own time, and both ways must spell it alike."""
    assert stamp(given) == expected
    assert moment(given).tzinfo is UTC


@pytest.mark.parametrize("given", [None, True, "", "soon", [], 1e30, -1e30, float("nan")])
def test_what_is_no_time_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r".*"):
        moment(given)


def test_a_text_is_cut_and_what_is_none_is_none() -> None:
    assert cut("abc", 2) == "ab"
    assert cut(None) is None
    assert cut(7) is None


def test_a_shape_that_is_not_as_documented_is_the_error_that_the_reader_chose() -> None:
    """C-36: and what was read is not quoted by it."""
    for broken in ({}, {"id": None}, {"id": "secret"}, None, []):
        with pytest.raises(Transient) as caught, reading(Transient(message="unreadable")):
            int(broken["id"])  # type: ignore[index, call-overload]
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
    with pytest.raises(Permanent, match="itself"), reading(Transient(message="unreadable")):
        raise Permanent(message="itself")
