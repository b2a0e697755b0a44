"""What the values of a condition mean, by the column that they are compared with. Pure.

Types and states are read in any spelling, times as milliseconds since 1970. A value that could never be equal
to anything in its column is refused: an empty answer would say that there is no such job.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NoReturn, assert_never

from holdfast.apps.system.console.reader import Reader, found
from holdfast.apps.system.console.statements import Column, Value
from holdfast.apps.system.console.words import Token, folded, shown
from holdfast.apps.system.types import read_status, read_type
from holdfast.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_NUMBER = 30  # characters; the largest of the database has 20
NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})")
TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9:.,]{2,20}(?:Z|[+-][0-9:]{2,8})?)?", re.IGNORECASE)
A_TIME = "a time like '2030-01-31T12:00:00Z', or milliseconds since 1970"


def value(reader: Reader, column: Column) -> Value:
    """The value that comes next, as it is compared with the column."""
    token = reader.token
    if token.keyword == "NULL":
        reader.refuse("nothing is ever equal to NULL", allowed=("IS NULL", "IS NOT NULL"))
    if token.kind not in ("string", "number") and token.keyword not in ("TRUE", "FALSE"):
        reader.refuse(_no_value(token), allowed=(_wanted(column),))
    read = _read(reader, column, token)
    reader.take()
    return read


def pattern(reader: Reader, column: Column) -> str:
    """The pattern of a LIKE; for types and states in small letters, as they are stored."""
    if column.kind == "object":
        _one_field(reader, column, reader.token)
    if column.kind not in ("text", "type", "status"):
        reader.refuse(f"LIKE is for texts, and {column.heading} is none", allowed=("= < > IN BETWEEN IS",))
    token = reader.token
    if token.kind != "string":
        reader.refuse(_no_value(token), allowed=("a pattern in single quotes",))
    if (len(token.value) - len(token.value.rstrip("\\"))) % 2:
        reader.refuse("the pattern ends with the backslash that should be before another character")
    reader.take()
    return folded(token.value) if column.kind in ("type", "status") else token.value


def _read(reader: Reader, column: Column, token: Token) -> Value:
    match column.kind:
        case "object":
            return _one_field(reader, column, token)
        case "text" | "type" | "status" as kind:
            if token.kind == "string":
                return _word(kind, token.value)
            if column.field is not None:  # JSON's own numbers and truths, as ->> writes them
                return token.text.lower()
            return reader.refuse(
                f"{column.heading} is a text, {found(token)} is none", token, (_wanted(column),)
            )
        case "number":
            number = _number(token)
            if number is None:
                reader.refuse(f"{column.heading} is a number, {found(token)} is none", token, ("a number",))
            return number
        case "time":
            moment = _number(token)
            if moment is None:
                moment = _moment(token)
            if moment is None:
                reader.refuse(f"{column.heading} is a time, {found(token)} is none", token, (A_TIME,))
            return moment
        case _:
            assert_never(column.kind)


def _one_field(reader: Reader, column: Column, token: Token) -> NoReturn:
    told = f"{column.asked} is an object: compare one of its fields"
    reader.refuse(told, token, ("parameters ->> '<field>'",))


def _word(kind: str, text: str) -> str:
    """A text; a type or a state as it is stored. One that nobody knows may be stored: in small letters."""
    try:
        match kind:
            case "type":
                return str(read_type(text))
            case "status":
                return read_status(text)
            case _:
                return text
    except InvalidInput:
        return folded(text)


def _number(token: Token) -> int | Decimal | None:
    if token.kind not in ("number", "string") or len(token.value) > LONGEST_NUMBER:
        return None
    if not NUMBER.fullmatch(token.value):
        return None
    number = Decimal(token.value)
    return int(number) if number == int(number) else number


def _moment(token: Token) -> int | Decimal | None:
    """A time in milliseconds since 1970; one without a zone is UTC's."""
    if token.kind != "string" or not TIME.fullmatch(token.value):
        return None
    try:
        when = datetime.fromisoformat(token.value)
    except ValueError:
        return None
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    micros = (aware - EPOCH) // timedelta(microseconds=1)
    return micros // 1000 if micros % 1000 == 0 else Decimal(micros) / 1000


def _no_value(token: Token) -> str:
    if token.kind in ("word", "quoted"):
        return f"found {found(token)} where a value is needed: texts are in single quotes"
    return f"found {found(token)} where a value is needed"


def _wanted(column: Column) -> str:
    match column.kind:
        case "number":
            return "a number"
        case "time":
            return A_TIME
        case "object":
            return "parameters ->> '<field>'"
        case "type" | "status" | "text":
            return f"a text in single quotes, like {shown('failed' if column.kind == 'status' else '…')}"
