"""Where a page of a list ended, as text that a caller hands back. Pure.

A cursor names the keys of the last row that was shown, and is good for the same filters only. A mark over
both finds what was changed on the way: another place, a time that no row has. It is no secret, and needs to
be none: whoever computes one himself only says where to go on among what he may see anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn, cast
from uuid import UUID

from holdfast.errors import InvalidInput

VERSION = 1
LONGEST, LARGEST = 1000, 500  # characters of a cursor, bytes of what it says
UUIDS = ("id", "tenant_id", "connection_id")


def encode(keys: Mapping[str, Any], filters: Mapping[str, Any]) -> str:
    """The cursor of a row. A key whose name ends in `_at` is a time; `id` and some `_id` are UUIDs.

    >>> from uuid import UUID
    >>> cursor = encode({"slug": "github", "id": UUID(int=7)}, {"status": None})
    >>> decode(cursor, {})["id"]
    UUID('00000000-0000-0000-0000-000000000007')
    """
    plain = {name: _plain(value) for name, value in keys.items()}
    told = {"version": VERSION, "keys": plain, "filters": _mark(filters, plain)}
    text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def decode(text: str, filters: Mapping[str, Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """The keys of a cursor that was given out for these filters, or `InvalidInput`.

    `names` are those that it must have, where the caller says so.
    """
    keys = _keys(_read(text), filters)
    if names and sorted(names) != sorted(keys):
        _refuse("is one of another list")
    return {name: _typed(name, value) for name, value in keys.items()}


def _refuse(message: str) -> NoReturn:
    raise InvalidInput(field="cursor", message=message) from None


def _read(text: str) -> Any:
    if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance]
        _refuse("must not be empty: leave it out for the first page")
    if len(text) > LONGEST:
        _refuse(f"must have at most {LONGEST} characters")
    try:
        # Both alphabets: some clients write what they read in the other one.
        data = base64.b64decode(text.replace("-", "+").replace("_", "/").encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        _refuse("is not base64")
    if len(text) % 4:  # too much padding is read without a word
        _refuse("is not base64")
    if len(data) > LARGEST:
        _refuse(f"says more than {LARGEST} bytes")
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError:
        _refuse("is not UTF-8")
    except (ValueError, RecursionError):
        _refuse("is not JSON")


def _keys(told: Any, filters: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(told, dict):
        _refuse("is not one that a page gave out")
    said = cast("dict[str, Any]", told)
    version, keys = said.get("version"), said.get("keys")
    if type(version) is not int or version != VERSION:  # True == 1, and 1.0 == 1
        _refuse(f"is not of version {VERSION}")
    if not isinstance(keys, dict) or not keys:
        _refuse("is not one that a page gave out")
    keys = cast("dict[str, Any]", keys)
    if said.get("filters") != _mark(filters, keys):
        _refuse("belongs to other filters, or was changed: begin at the first page")
    return keys


def _typed(name: str, value: Any) -> Any:
    if not isinstance(value, str) or "\x00" in value:
        _refuse(f"has no text for {name}")
    if name in UUIDS:
        try:
            key = UUID(value)
        except ValueError:
            _refuse(f"has no UUID for {name}")
        if not key.int:
            _refuse(f"has no row's UUID for {name}")
        return key
    if name.endswith("_at"):
        return _moment(name, value)
    return value


def _moment(name: str, value: str) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            _refuse(f"has no time with a zone for {name}")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        _refuse(f"has no time for {name}")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value if value is None or isinstance(value, str | int) else str(value)


def _mark(filters: Mapping[str, Any], keys: Mapping[str, Any]) -> str:
    """What tells one place in one list from another; a filter that is not set is as good as none."""
    given = {name: _listed(value) for name, value in filters.items() if value is not None}
    told = json.dumps([given, dict(keys)], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in cast("Sequence[Any]", value)]
    return _plain(value)
