"""What the commands of `holdfast schedules` share: the app at work, and the users and days that are typed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import application, options
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.engine.store import Connection
    from holdfast.platform import Holdfast

User = Annotated[str, typer.Argument(metavar="USER", help="The user's id, a whole number.")]
OfDay = Annotated[str, typer.Argument(metavar="DATE", help="The day, like 2026-03-02.")]
SPELLING = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def load(spec: str | None) -> Holdfast:
    """The application that is named, else the built-in apps."""
    found = application.load(spec)
    application.settle(found)
    return found


@asynccontextmanager
async def opened(app: Holdfast) -> AsyncGenerator[Connection]:
    """A connection of an application at work."""
    async with app, app.database.connection() as conn:
        yield conn


def user_of(text: str, field: str = "USER") -> int:
    """The user that somebody typed.

    >>> user_of("42")
    42
    """
    from holdfast.engine import intake

    return intake.typed(field, "bigint", text)


def day_of(text: str, field: str = "DATE") -> date:
    """The day that somebody typed, in the one spelling that cannot be mistaken.

    >>> day_of("2026-03-02")
    datetime.date(2026, 3, 2)
    """
    try:
        if SPELLING.fullmatch(text):
            return date.fromisoformat(text)
    except ValueError:
        pass
    raise InvalidInput(field=field, message=f"must be a day like 2026-03-02, not {text!r}")


def time_of(text: str | None, field: str) -> datetime | None:
    """The time that somebody typed, which must have a zone."""
    from holdfast.engine import intake

    when = options.time_of(field, text)
    return None if when is None else intake.aware(field, when)
