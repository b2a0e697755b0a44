"""What may be enqueued: every field is checked here, before a statement is sent. Pure.

A wrong item raises `InvalidInput`, which names the field and says what would be right. Texts that come
from a failing run are the exception: they are cleaned and cut, never refused, so that a run can fail.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from psycopg import Error
from psycopg.adapt import PyFormat, Transformer

from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import CodeError, Column, Errors, JsonError, TextError, TraceError
from holdfast.engine.values import Fault, Item
from holdfast.engine.words import DELAY, PAYLOAD, RUN_AT
from holdfast.errors import InvalidInput

INT2, INT4, INT8 = (range(-(2**bits), 2**bits) for bits in (15, 31, 63))
INTEGERS = {
    **dict.fromkeys(("smallint", "int2"), INT2),
    **dict.fromkeys(("integer", "int", "int4"), INT4),
    **dict.fromkeys(("bigint", "int8"), INT8),
}
MAX_PAYLOAD_BYTES = 1024 * 1024
MAX_DEPTH = 200  # of a payload or a result: less than any reader of JSON can take
LONGEST_WAIT = 100 * 365 * 86400.0
POLICIES = ("none", "fixed", "exp")


def columns_of(ledger: Ledger, item: Item, by: str | None = None) -> dict[str, Any]:
    """The item as columns and their values; what is not given is left to the column's default."""
    found: dict[str, Any] = {}
    if ledger.key.make:
        drawn = ledger.key.make(item.kind) if ledger.key.by_kind else ledger.key.make()
        found[ledger.key.column] = stored(ledger.key.column, ledger.key.type, drawn)
    if ledger.requester and by:
        found[ledger.requester] = by
    if ledger.trace and item.trace:
        found[ledger.trace] = fitting(ledger, ledger.trace, item.trace)
    _kind(ledger, item, found)
    _key(ledger, item, found)
    _numbers(ledger, item, found)
    _when(ledger, item, found)
    _place(ledger, item, found)
    if (body := payload_text(item.payload)) is not None:
        if ledger.payload is None:
            raise InvalidInput(field="payload", message=f"{ledger.name} has no payload: leave it out")
        if not isinstance(ledger.payload, str):
            spread_of(ledger, body)
        found[PAYLOAD] = body
    return found


def requester(ledger: Ledger, by: str | None) -> str | None:
    """Who asks, as it is stored: checked where it fills a column, else cleaned for the journal."""
    if not by:
        return None
    return fitting(ledger, ledger.requester, by) if ledger.requester else absorb(by)


def spread_of(ledger: Ledger, body: str | None) -> tuple[str, ...]:
    """The columns that a payload is spread over, where the ledger keeps it so; empty otherwise."""
    if body is None or ledger.payload is None or isinstance(ledger.payload, str):
        return ()
    fields = json.loads(body)
    if not isinstance(fields, dict):
        raise InvalidInput(field="payload", message="must be an object: its fields are columns here")
    names = tuple(str(name) for name in fields)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if unknown := [name for name in names if name not in ledger.payload]:
        known = ", ".join(ledger.payload)
        raise InvalidInput(field="payload", message=f"has no column for {unknown[0]!r}: columns are {known}")
    return names


def _kind(ledger: Ledger, item: Item, found: dict[str, Any]) -> None:
    if ledger.kind is None:
        if item.kind not in (None, ledger.name):
            raise InvalidInput(field="kind", message=f"{ledger.name} has one kind only: leave it out")
        return
    if item.kind is None or not (bare := fitting(ledger, ledger.kind, item.kind).strip()):
        raise InvalidInput(field=ledger.kind, message="must not be empty")
    if bare != item.kind:
        raise InvalidInput(field=ledger.kind, message=f"{item.kind!r} has blanks around it")
    found[ledger.kind] = item.kind


def _key(ledger: Ledger, item: Item, found: dict[str, Any]) -> None:
    if item.key is None and ledger.idempotency and ledger.idempotency.column == ledger.key.column:
        raise InvalidInput(field="key", message=f"is needed: it is the {ledger.key.column} of the new row")
    if item.key is None:
        return
    if ledger.idempotency is None or ledger.idempotency.column == ledger.kind:
        raise InvalidInput(field="key", message=f"{ledger.name} has no idempotency key")
    if not fitting(ledger, ledger.idempotency.column, item.key):
        raise InvalidInput(field=ledger.idempotency.column, message="must not be empty: leave it out instead")
    found[ledger.idempotency.column] = item.key


def _numbers(ledger: Ledger, item: Item, found: dict[str, Any]) -> None:
    if item.priority is not None:
        if ledger.priority is None:
            raise InvalidInput(field="priority", message=f"{ledger.name} has no priority")
        found[ledger.priority] = _int4(ledger.priority, item.priority)
    if item.limit is not None:
        column = ledger.attempts.limit if ledger.attempts else None
        if not isinstance(column, str):
            raise InvalidInput(field="limit", message=f"{ledger.name} has no limit of its own for each row")
        if _int4(column, item.limit) < 0:
            raise InvalidInput(field=column, message=f"must be 0 or more, not {item.limit}")
        found[column] = item.limit
    if item.backoff is not None:
        if ledger.policy is None:
            raise InvalidInput(
                field="backoff", message=f"{ledger.name} has no backoff of its own for each row"
            )
        found[ledger.policy] = _chosen(ledger.policy, POLICIES, item.backoff)


def _int4(field: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field=field, message=f"must be a whole number, not {value!r}")
    if value not in INT4:
        raise InvalidInput(
            field=field, message=f"must lie between {INT4.start} and {INT4.stop - 1}, not {value}"
        )
    return value


def _when(ledger: Ledger, item: Item, found: dict[str, Any]) -> None:
    if item.delay is None and item.run_at is None:
        return
    if ledger.due is None:
        raise InvalidInput(field="delay", message=f"{ledger.name} cannot wait: it has no due time")
    if item.delay is not None and item.run_at is not None:
        raise InvalidInput(field="delay", message="give delay or run_at, not both")
    if item.delay is not None:
        if isinstance(item.delay, bool) or not isinstance(item.delay, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(field="delay", message=f"must be a number of seconds, not {item.delay!r}")
        if not 0 <= item.delay <= LONGEST_WAIT:
            raise InvalidInput(
                field="delay", message=f"must be 0 or more seconds, at most 100 years, not {item.delay!r}"
            )
        if item.delay:
            found[DELAY] = float(item.delay)
    if item.run_at is not None:
        found[RUN_AT] = aware("run_at", item.run_at)


def aware(field: str, moment: datetime) -> datetime:
    """The moment in UTC, if it has a zone: a time without one means nothing to a database."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field=field, message="must have a time zone, like 2030-01-31T12:00:00+00:00")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(field=field, message="must lie in the years 1 to 9999 of UTC") from None


def _place(ledger: Ledger, item: Item, found: dict[str, Any]) -> None:
    if item.queue is not None:
        if ledger.queue is None:
            raise InvalidInput(field="queue", message=f"{ledger.name} has no queues")
        if not fitting(ledger, ledger.queue, item.queue).strip():
            raise InvalidInput(field=ledger.queue, message="must not be empty")
        found[ledger.queue] = item.queue
    if ledger.tenant is not None:
        if item.tenant is None:
            raise InvalidInput(field=ledger.tenant.name, message="must be given")
        found[ledger.tenant.name] = stored(ledger.tenant.name, ledger.tenant.type, item.tenant)
    elif item.tenant is not None:
        raise InvalidInput(field="tenant", message=f"{ledger.name} has no tenants")
    known = {extra.name: extra for extra in ledger.extras}
    for name, value in (item.extras or {}).items():
        if name not in known:
            raise InvalidInput(field=name, message=_no_extra(ledger, name))
        if value is not None:
            found[name] = _extra(ledger, known[name], value)
    rule = ledger.idempotency
    if rule and (item.key is not None or rule.column == ledger.kind):
        for name in rule.scope:
            if name not in found:
                raise InvalidInput(field=name, message="must be given: the key is unique within it only")


def _no_extra(ledger: Ledger, name: str) -> str:
    if name == ledger.requester:
        return "is filled by `by`"
    return f"is not a column that {ledger.name} lets you fill"


def _extra(ledger: Ledger, column: Column, value: Any) -> Any:
    if column.choices:
        return _chosen(column.name, column.choices, value)
    found = stored(column.name, column.type, value)
    return fitting(ledger, column.name, found) if isinstance(found, str) else found


def _chosen(field: str, choices: tuple[str, ...], word: Any) -> str:
    if word not in choices:
        raise InvalidInput(field=field, message=f"must be one of {', '.join(choices)}, not {word!r}")
    return word


def fitting(ledger: Ledger, column: str, text: str) -> str:
    """The text, if PostgreSQL can store it and the column is wide enough; it is never cut."""
    limit = ledger.lengths.get(column)
    if limit is not None and len(clean_text(column, text)) > limit:
        raise InvalidInput(field=column, message=f"must have at most {limit} characters, and has {len(text)}")
    return clean_text(column, text)


def stored(field: str, kind: str, value: Any) -> Any:
    """The value as every library can send it: as what it is where we know the type, else as a text."""
    value = typed(field, kind, value)
    if isinstance(value, str) or kind.lower() in ("uuid", *INTEGERS):
        return value
    if kind.lower() in ("json", "jsonb"):
        return payload_text(value)
    try:
        return bytes(Transformer().get_dumper(value, PyFormat.TEXT).dump(value) or b"").decode()
    except (Error, UnicodeError):
        raise InvalidInput(field=field, message=f"{value!r} is nothing that PostgreSQL can store") from None


def asked(column: Column, value: Any) -> Any:
    """What a filter asks a further column for: a UUID, a whole number or a text; else `InvalidInput`."""
    kind = column.type.lower().partition("(")[0]
    if kind not in ("uuid", "text", "varchar", "character varying", *INTEGERS):
        raise InvalidInput(field=column.name, message=f"is a {column.type}, by which no filter can ask")
    found = typed(column.name, kind, value)
    return found if kind == "uuid" or kind in INTEGERS else clean_text(column.name, found)


def typed(field: str, kind: str, value: Any) -> Any:
    """The value as what a column of that type holds, where we know the type."""
    kind = kind.lower()
    if kind == "uuid" and type(value) is not UUID:  # asyncpg has a class of its own
        try:
            return UUID(str(value))
        except ValueError:
            raise InvalidInput(field=field, message=f"{value!r} is not a UUID") from None
    if kind in INTEGERS:
        try:
            if isinstance(value, bool | float):
                raise TypeError
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(field=field, message=f"{value!r} is not a whole number") from None
        if number not in INTEGERS[kind]:
            raise InvalidInput(field=field, message=f"{value!r} is out of range")
        return number
    return clean_text(field, value) if isinstance(value, str) else value


def clean_text(field: str, text: str) -> str:
    """The text, if PostgreSQL can store it."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field=field, message=f"must be a text, not {text!r}")
    if "\x00" in text:
        raise InvalidInput(field=field, message="must not contain U+0000")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(field=field, message="must not contain half a surrogate pair") from None
    return text


def payload_text(payload: Any) -> str | None:
    """The payload as JSON text, or None for none. Takes whatever msgspec can turn into JSON.

    >>> payload_text({"to": "ana"})
    '{"to":"ana"}'
    """
    if payload is None:
        return None
    try:
        text = json.dumps(payload, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(field="payload", message="must not contain half a surrogate pair") from None
    except ValueError as error:
        reason = "it has NaN or Infinity" if "JSON compliant" in str(error) else str(error)
        raise InvalidInput(field="payload", message=f"is not JSON: {reason}") from None
    except (TypeError, RecursionError) as error:
        raise InvalidInput(field="payload", message=f"is not JSON: {error}") from None
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidInput(
            field="payload", message=f"has {size} bytes: at most {MAX_PAYLOAD_BYTES} are allowed"
        )
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise InvalidInput(field="payload", message=f"is nested more than {MAX_DEPTH} deep")
    if "\\u0000" in text and _has_nul(json.loads(text)):
        raise InvalidInput(field="payload", message="must not contain U+0000: PostgreSQL cannot store it")
    return text


def _depth(text: str) -> int:
    """How deep a JSON text is nested."""
    deepest = depth = 0
    for mark in re.findall(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark, 0)
        deepest = max(deepest, depth)
    return deepest


def _plain(value: Any) -> Any:
    """What JSON has no word for: dataclasses, Structs, dates, UUIDs by msgspec, pydantic by itself."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if dump else msgspec.to_builtins(value)


def _has_nul(value: Any) -> bool:
    match value:
        case str():
            return "\x00" in value
        case dict():
            return any(_has_nul(k) or _has_nul(v) for k, v in value.items())  # pyright: ignore[reportUnknownVariableType]
        case list():
            return any(_has_nul(v) for v in value)  # pyright: ignore[reportUnknownVariableType]
        case _:
            return False


def absorb(text: str, length: int | None = None) -> str:
    """A text that must be stored whatever it holds: cleaned of what PostgreSQL refuses, cut in characters.

    >>> absorb("a\\x00b\\ud800c", 3)
    'a\\ufffdb'
    """
    clean = str(text).replace("\x00", "\N{REPLACEMENT CHARACTER}")
    clean = clean.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return clean if length is None else clean[:length]


def error_values(errors: Errors, fault: Fault | None) -> tuple[str | None, ...]:
    """The fault as the values of the ledger's error columns, in the order of `error_columns`."""
    match errors:
        case TextError(length=length, coded=coded):
            told = fault and (f"{fault.code.lower()}: {fault.message}" if coded else fault.message)
            return (absorb(told, length) if told is not None else None,)
        case CodeError(code_length=code_length, message_length=message_length):
            if fault is None:
                return None, None
            return absorb(fault.code, code_length), absorb(fault.message, message_length)
        case JsonError():
            if fault is None:
                return (None,)
            told = {"code": absorb(fault.code), "message": absorb(fault.message)}
            return (json.dumps({**fault.facts, **told}),)
        case TraceError():
            if fault is None:
                return None, None
            return absorb(fault.message), absorb(fault.trace) if fault.trace else None
