"""Several pages of a provider as one of ours, and the parts of what a provider says."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from connectors.kit import page
from holdfast.apps.connectors.protocol import Page, Permanent, RateLimited, Transient, Unauthorized
from holdfast.apps.connectors.providers import paging, shape
from holdfast.apps.connectors.providers.paging import Cursor, Outdated, begin, turned, walk
from holdfast.apps.connectors.providers.shape import part, parts, words

LATE = (RateLimited(message="too much"), Transient(message="not now"))


class Listing:
    """A provider's listing of pages 0, 1, 2 …, each with one signal; a page may raise instead, once."""

    def __init__(self, count: int, **raised: Exception) -> None:
        self.count, self.raised = count, raised
        self.asked: list[Any] = []

    async def __call__(self, cursor: Cursor) -> Page:
        self.asked.append(cursor.get("page"))
        number = int(cursor.get("page", "0"))
        if error := self.raised.pop(f"p{number}", None):
            raise error
        last = number + 1 == self.count
        following = {"end": True} if last else turned(cursor, page=str(number + 1))
        return page(f"s{number}", cursor=following, more=not last)


def names(found: Page) -> list[str | None]:
    return [one.dedupe_key for one in found.signals]


async def test_all_pages_are_read_when_they_are_few() -> None:
    """C-36: one call, one page of ours."""
    found = await walk(Listing(3), {}, 10)
    assert (names(found), found.next_cursor, found.has_more) == (["s0", "s1", "s2"], {"end": True}, False)


async def test_a_walk_ends_with_enough_signals_or_after_a_minute() -> None:
    """C-37: what is left is for the follow-up, so that a run is never stopped with everything lost."""
    found = await walk(Listing(5), {}, 2)
    assert (names(found), found.next_cursor, found.has_more) == (["s0", "s1"], {"page": "2"}, True)
    ticks = iter((0.0, 59.0, 60.0))
    found = await walk(Listing(5), {}, 100, clock=lambda: next(ticks))
    assert (names(found), found.has_more) == (["s0", "s1"], True)


@pytest.mark.parametrize("error", LATE)
async def test_a_passing_failure_keeps_what_was_read_and_is_raised_by_the_next_call(error: Exception) -> None:
    """C-36: of the page that failed there is nothing, and its cursor is where the next call begins."""
    listing = Listing(3, p1=error)
    found = await walk(listing, {}, 10)
    assert (names(found), found.next_cursor, found.has_more) == (["s0"], {"page": "1"}, True)
    with pytest.raises(type(error)):
        await walk(Listing(3, p1=error), {"page": "1"}, 10)


@pytest.mark.parametrize("error", [Permanent(message="no"), Unauthorized(message="who?")])
async def test_any_other_failure_is_raised_at_once(error: Exception) -> None:
    """C-36: a new token or a person is needed, and the whole call is made again."""
    with pytest.raises(type(error)):
        await walk(Listing(3, p1=error), {}, 10)


async def test_an_outdated_place_begins_its_listing_anew_once_and_not_for_ever() -> None:
    """C-76: page tokens end; a listing that never keeps one is a failure that somebody sees."""
    listing = Listing(3, p2=Outdated(message="forgotten"))
    found = await walk(listing, {"page": "2", "since": 7}, 10)
    assert names(found) == ["s0", "s1", "s2"]
    assert listing.asked == ["2", None, "1", "2"]
    partial = await walk(Listing(3, p2=Outdated(message="forgotten")), {"page": "2", "since": 7}, 1)
    assert partial.next_cursor == {"since": 7, "again": True, "page": "1"}
    with pytest.raises(Outdated):
        await walk(Listing(3, p1=Outdated(message="forgotten")), partial.next_cursor, 10)


def test_a_cursor_has_the_values_that_it_must_have_or_is_refused() -> None:
    """C-34: it may come from a person."""
    assert begin({"since": 7, "more": None}, "x", since=int, token=str | None) == {"since": 7, "more": None}
    for wrong in (None, 7, [], {}, {"since": "7"}, {"since": 7, "token": 7}, {"since": 7, "page": 7}):
        with pytest.raises(Permanent, match="no cursor of x: reset it"):
            begin(wrong, "x", since=int, token=str | None)


def test_parts_have_their_shape_or_are_refused() -> None:
    """C-36: what is missing is empty, what is something else is no answer."""
    assert part({"a": None}, "a", "b") == {}
    assert (parts({}, "a"), words({"a": None}, "a")) == ([], [])
    assert (parts({"a": [{}]}, "a"), words({"a": ["x"]}, "a")) == ([{}], ["x"])
    for odd in ({"a": 7}, {"a": "x"}, {"a": [7]}, {"a": [None]}):
        for read in (part, parts, words):
            with pytest.raises(ValueError, match="no"):
                read(odd, "a")


def test_the_examples_are_true() -> None:
    assert doctest.testmod(shape).failed == doctest.testmod(paging).failed == 0
