"""Parts of what a provider has said, in the shape that it documents; ValueError when they have another.

A part that is missing or null is an empty one: providers leave out what they have nothing to say of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from holdfast.apps.connectors.http import as_object

Thing = Mapping[str, Any]


def part(thing: Thing, *names: str) -> dict[str, Any]:
    """An object inside an object, or deeper.

    >>> part({"a": {"b": {"c": 1}}}, "a", "b")
    {'c': 1}
    """
    found: Thing = thing
    for name in names:
        value = found.get(name)
        inner = {} if value is None else as_object(value)
        if inner is None:
            raise ValueError("this is no object")
        found = inner
    return dict(found)


def parts(thing: Thing, name: str) -> list[dict[str, Any]]:
    """A list of objects inside an object."""
    items = _list(thing, name)
    if not all(isinstance(item, dict) for item in items):
        raise ValueError("these are no objects")
    return items


def words(thing: Thing, name: str) -> list[str]:
    """A list of texts inside an object."""
    items = _list(thing, name)
    if not all(isinstance(item, str) for item in items):
        raise ValueError("these are no texts")
    return items


def _list(thing: Thing, name: str) -> list[Any]:
    value = thing.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError("this is no list")
    return cast("list[Any]", value)
