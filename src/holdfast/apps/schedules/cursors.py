"""Where a page of a list ended, as text that a caller hands back. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from holdfast.engine import intake
from holdfast.errors import InvalidInput

LONGEST = 500  # characters
Read = Callable[[Any], Any]


def encode(*keys: date | datetime | UUID | str | int) -> str:
    """The cursor of the last row that was shown.

    >>> decode(encode(date(2026, 3, 2), 42), (day, number))
    (datetime.date(2026, 3, 2), 42)
    """
    plain = [key.isoformat() if isinstance(key, date) else str(key) for key in keys]
    return base64.urlsafe_b64encode(json.dumps(plain, separators=(",", ":")).encode()).decode()


def decode(text: str, kinds: Sequence[Read]) -> tuple[Any, ...]:
    """The keys of a cursor, each as what it was; `InvalidInput` for a text that no page gave out."""
    try:
        if len(text) > LONGEST:
            raise ValueError
        keys = json.loads(base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True))
        return tuple(read(key) for read, key in zip(kinds, keys, strict=True))
    except (ValueError, TypeError, RecursionError, binascii.Error, InvalidInput):
        raise InvalidInput(field="cursor", message="is not one that a page gave out") from None


def day(text: Any) -> date:
    """A day of a cursor."""
    return date.fromisoformat(text)


def moment(text: Any) -> datetime:
    """A time of a cursor."""
    return intake.aware("cursor", datetime.fromisoformat(text))


def number(text: Any) -> int:
    """A user of a cursor."""
    return intake.typed("cursor", "bigint", text)


def uuid(text: Any) -> UUID:
    """The id of a session in a cursor."""
    return intake.typed("cursor", "uuid", text)


def words(text: Any) -> str:
    """The id of a message in a cursor."""
    return intake.clean_text("cursor", text)
