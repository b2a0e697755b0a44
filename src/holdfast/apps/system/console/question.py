"""What a question becomes: our own statement with parameters. Pure.

Of the console's text nothing is left but values, and they are parameters. Columns are looked up among those
that we know, and every other word of the statement stands in `queries`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, LiteralString, assert_never

from psycopg.sql import SQL, Composable, Composed, Identifier, Placeholder

from holdfast.apps.system.console import queries
from holdfast.apps.system.console.statements import (
    COLUMNS,
    All,
    Among,
    Between,
    Column,
    Compare,
    Condition,
    Either,
    IsNull,
    Like,
    Not,
    Order,
    Select,
    ShowJobs,
    Value,
)
from holdfast.apps.system.legacy import Record
from holdfast.apps.system.types import JobType

SHOWN = ("id", "job_type", "status", "retry_count", "created_at", "finished_at", "message")
SHOWN_ROWS = 100  # of SHOW JOBS without a LIMIT
COUNTED = "count"


@dataclass(frozen=True, slots=True)
class Query:
    """A statement, its parameters in their order, and what its answer looks like.

    `times` are the places of columns with milliseconds since 1970. `most`: one row more is read than this,
    to know whether there are more; None: whoever asked has set the limit.
    """

    statement: Composed
    values: tuple[Value, ...]
    headings: tuple[str, ...]
    times: tuple[int, ...]
    most: int | None


def query(asked: Select | ShowJobs, table: str, most: int, legacy: Sequence[Record] = ()) -> Query:
    """The statement that answers a question about `table`, of which at most `most` rows are wanted.

    `legacy` are old records that are shown beside the rows, with a column that tells them.
    """
    made = _Values()
    match asked:
        case ShowJobs():
            columns, cap = tuple(Column(name, name) for name in SHOWN), SHOWN_ROWS
        case Select():
            columns, cap = asked.columns, most
    source: Composable = Identifier(*table.split("."))
    cap = None if asked.limit is not None else cap
    if columns is None:
        where = _where(made, asked.where)
        limit = made.put(1 if asked.limit is None else asked.limit)
        counting = SQL(queries.COUNT).format(table=source, condition=where, limit=limit)
        return Query(counting, made.values, (COUNTED,), (), None)
    shown, headings = [_column(made, column) for column in columns], [column.heading for column in columns]
    order_by = queries.NEWEST
    if legacy:
        source = _fill(queries.WITH_LEGACY, table=source, records=made.put(_told(legacy)))
        shown, headings = [*shown, SQL(queries.LEGACY_COLUMN)], [*headings, "legacy"]
        order_by = queries.NEWEST_WITH_LEGACY
    listed = _join(queries.BETWEEN_ITEMS, shown)
    where = _where(made, asked.where)
    order = _order(made, asked.order if isinstance(asked, Select) else (), order_by)
    limit = made.put(asked.limit if asked.limit is not None else (cap or 0) + 1)
    reading = SQL(queries.ROWS).format(
        columns=listed, table=source, condition=where, order=order, limit=limit
    )
    times = tuple(place for place, column in enumerate(columns) if column.kind == "time")
    return Query(reading, made.values, tuple(headings), times, cap)


def _told(legacy: Sequence[Record]) -> str:
    """Old records as JSON; a number that PostgreSQL has no place for is left out."""
    told = [{**asdict(one), "job_type": _type_word(one)} for one in legacy]
    return json.dumps([{name: value for name, value in one.items() if _has_place(value)} for one in told])


def _type_word(record: Record) -> str:
    return record.type_word if record.job_type is JobType.UNKNOWN else str(record.job_type)


def _has_place(value: Any) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63


class _Values:
    """The parameters so far. Their places are their numbers, so parts are made in the order of the text."""

    def __init__(self) -> None:
        self._values: list[Value] = []

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(self._values)

    def put(self, value: Value) -> Placeholder:
        self._values.append(value)
        return Placeholder()


def _fill(text: LiteralString, **parts: Composable) -> Composable:
    return SQL(text).format(**parts)


def _join(between: LiteralString, parts: list[Composable]) -> Composable:
    return SQL(between).join(parts)


def _column(made: _Values, column: Column) -> Composable:
    known = Identifier(next(name for name in COLUMNS if name == column.real))
    if column.field is None:
        return _fill(queries.COLUMN, column=known)
    return _fill(queries.FIELD, column=known, field=made.put(column.field))


def _where(made: _Values, condition: Condition | None) -> Composable:
    return SQL(queries.ALWAYS) if condition is None else _condition(made, condition)


def _condition(made: _Values, condition: Condition) -> Composable:
    match condition:
        case All(conditions=parts):
            return _group(made, queries.ALL, parts)
        case Either(conditions=parts):
            return _group(made, queries.EITHER, parts)
        case Not(condition=within):
            return _fill(queries.NOT, condition=_condition(made, within))
        case _:
            return _comparison(made, condition)


def _group(made: _Values, between: LiteralString, parts: tuple[Condition, ...]) -> Composable:
    return _fill(queries.GROUP, conditions=_join(between, [_condition(made, part) for part in parts]))


def _comparison(made: _Values, condition: Compare | Among | Like | Between | IsNull) -> Composable:
    column = _column(made, condition.column)
    match condition:
        case Compare(sign=sign, value=value):
            return _fill(queries.COMPARE[sign], column=column, value=made.put(value))
        case Among(values=values, negated=negated):
            listed = _join(queries.BETWEEN_ITEMS, [made.put(value) for value in values])
            return _fill(queries.AMONG[negated], column=column, values=listed)
        case Like(pattern=pattern, how=how, negated=negated):
            return _fill(queries.LIKE[how, negated], column=column, pattern=made.put(pattern))
        case Between(low=low, high=high, negated=negated):
            return _fill(queries.BETWEEN[negated], column=column, low=made.put(low), high=made.put(high))
        case IsNull(negated=negated):
            return _fill(queries.IS_NULL[negated], column=column)
        case _:
            assert_never(condition)


def _order(made: _Values, order: tuple[Order, ...], newest: LiteralString) -> Composable:
    if not order:
        return SQL(newest)
    parts = [
        _fill(queries.ORDER[part.descending, part.nulls_first], column=_column(made, part.column))
        for part in order
    ]
    return _join(queries.BETWEEN_ITEMS, parts)
