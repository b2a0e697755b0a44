"""Several of a provider's pages as one of ours, and cursors that somebody may have written by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from types import UnionType
from typing import Any

from holdfast.apps.connectors.http import as_object
from holdfast.apps.connectors.protocol import Json, Page, Permanent, RateLimited, Signal, Transient

Cursor = dict[str, Any]
Shape = type | UnionType | tuple[type, ...]
Step = Callable[[Cursor], Awaitable[Page]]

PATIENCE = 60.0  # seconds; a run may be stopped after a few minutes, and then nothing of it would be kept


class Outdated(Permanent):
    """{message}

    The provider does not know the place in its listing any more, as such places are good for some time only.
    """


async def walk(step: Step, cursor: Cursor, most: int, clock: Callable[[], float] = time.monotonic) -> Page:
    """Takes step after step until nothing is left, `most` signals are found, or a minute has passed.

    What was read stays when a later step fails for a passing reason: the next call begins where this one
    failed, and is the one to raise. Where the cursor's `page` is outdated its listing begins anew, once.
    Steps that lead back to where one has been before would do so for ever: the first page that is led round
    keeps what it has, and the next one, which begins in the circle, raises.
    """
    found: list[Signal] = []
    begun, steps = clock(), 0
    start = _mark(cursor)
    passed = {start}
    while True:
        try:
            page = await step(cursor)
        except Outdated:
            if cursor.get("again"):
                raise
            cursor = {name: value for name, value in cursor.items() if name != "page"} | {"again": True}
            continue
        except (RateLimited, Transient):
            if not steps:
                raise
            return Page(signals=tuple(found), next_cursor=cursor, has_more=True)
        steps += 1
        found += page.signals
        cursor = page.next_cursor
        if page.has_more:
            place = _mark(cursor)
            if place == start:
                raise Transient(message="the provider's listing goes round in circles")
            if place in passed:
                return Page(signals=tuple(found), next_cursor=cursor, has_more=True)
            passed.add(place)
        if not page.has_more or len(found) >= most or clock() - begun >= PATIENCE:
            return Page(signals=tuple(found), next_cursor=cursor, has_more=page.has_more)


def _mark(cursor: Json) -> str:
    """What tells one place from another."""
    return json.dumps(cursor, sort_keys=True)


def begin(cursor: Json, provider: str, **shapes: Shape) -> Cursor:
    """The cursor, whose values must be of these types; `Permanent` when it is none of ours."""
    found = as_object(cursor)
    shapes = {"page": str | None, **shapes}
    if found is None or not all(isinstance(found.get(name), shape) for name, shape in shapes.items()):
        raise foreign(provider)
    return found


def foreign(provider: str) -> Permanent:
    """For a cursor that nobody here has written."""
    return Permanent(message=f"this is no cursor of {provider}: reset it")


def turned(cursor: Cursor, **values: Json) -> Cursor:
    """The cursor of the next page: the same with these values, without those that are None."""
    return {name: value for name, value in {**cursor, **values}.items() if value is not None}
