"""The grammar of WHERE: OR of AND of NOT of a comparison, or brackets. Pure."""

from __future__ import annotations

from typing import cast

from holdfast.apps.system.console.literals import pattern, value
from holdfast.apps.system.console.reader import Reader
from holdfast.apps.system.console.statements import (
    All,
    Among,
    Between,
    Column,
    Compare,
    Comparison,
    Condition,
    Either,
    IsNull,
    Like,
    Not,
    Pattern,
    Value,
)

SIGNS = ("=", "<>", "!=", "<", "<=", ">", ">=")
NEGATABLE = ("IN", "LIKE", "ILIKE", "BETWEEN")
FORMS = (
    *SIGNS,
    "[NOT] IN (…)",
    "[NOT] LIKE '…'",
    "[NOT] ILIKE '…'",
    "[NOT] BETWEEN … AND …",
    "IS [NOT] NULL",
)


def condition(reader: Reader) -> Condition:
    """Conditions joined by OR."""
    found = [_all(reader)]
    while reader.took("OR"):
        found.append(_all(reader))
    return found[0] if len(found) == 1 else Either(tuple(found))


def _all(reader: Reader) -> Condition:
    found = [_one(reader)]
    while reader.took("AND"):
        found.append(_one(reader))
    return found[0] if len(found) == 1 else All(tuple(found))


def _one(reader: Reader) -> Condition:
    first = reader.token
    if reader.took("NOT"):
        reader.deeper(first)
        negated = Not(_one(reader))
        reader.depth -= 1
        return negated
    if reader.took("("):
        reader.deeper(first)
        within = condition(reader)
        reader.need(")", allowed=("AND", "OR", ")"))
        reader.depth -= 1
        return within
    return _comparison(reader, reader.column())


def _comparison(reader: Reader, column: Column) -> Condition:
    if reader.took("IS"):
        negated = reader.took("NOT")
        reader.need("NULL", allowed=("NULL",) if negated else ("NULL", "NOT NULL"))
        return IsNull(column, negated)
    if reader.at(*SIGNS):
        sign = reader.take().keyword
        return Compare(column, cast("Comparison", "<>" if sign == "!=" else sign), value(reader, column))
    negated = reader.took("NOT")
    match reader.need(*NEGATABLE, allowed=NEGATABLE if negated else FORMS):
        case "IN":
            return Among(column, _values(reader, column), negated)
        case "BETWEEN":
            low = value(reader, column)
            reader.need("AND")
            return Between(column, low, value(reader, column), negated)
        case how:
            return Like(column, pattern(reader, column), cast("Pattern", how), negated)


def _values(reader: Reader, column: Column) -> tuple[Value, ...]:
    reader.need("(")
    found = [value(reader, column)]
    while reader.took(","):
        found.append(value(reader, column))
    reader.need(")", allowed=(",", ")"))
    return tuple(found)
