"""How rows come into a ledger: grouped into few statements, and told apart by their idempotency keys.

Nothing here waits: what is to be sent is yielded as a `Query`, and its rows come back. `callers` sends it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, Error
from psycopg.rows import tuple_row

from holdfast.engine import intake, reading
from holdfast.engine.callers import Found, Query, Steps, all_or_none
from holdfast.engine.ledger import Ledger
from holdfast.engine.statements import Statements
from holdfast.engine.values import Item, Receipt
from holdfast.engine.words import DELAY, PAYLOAD, RUN_AT, UNIQUE, array
from holdfast.errors import HoldfastError, IdempotencyConflict, InvalidInput, NotAllowed

Connection = AsyncConnection[Any]
Columns = dict[str, Any]  # one row: column -> value
Rows = Mapping[int, Columns]  # rows by their place in the caller's list
Shape = tuple[tuple[str, ...], tuple[str, ...]]  # the columns filled, and those the payload is spread over
Groups = Mapping[Shape, Rows]
Identity = tuple[str, ...]
# The classes of SQLSTATE by which a database refuses a row: bad values, broken constraints, limits passed.
REFUSALS = ("22", "23", "54")
NO_PRIVILEGE = "42501"  # also what row level security says to a row of another tenant
ROUNDS = 100  # far more often than rows can vanish between an insert and the look at what stood in its way


class Adder:
    """Adds rows to one ledger. Items that fill the same columns go into one statement."""

    def __init__(self, ledger: Ledger, statements: Statements) -> None:
        self.ledger = ledger
        self.sql = statements

    async def copy(self, conn: Connection, items: Iterable[Item], now: datetime | None) -> int:
        """Writes items by COPY inside the caller's transaction."""
        if self.ledger.journal:
            raise InvalidInput(field="items", message=f"{self.ledger.name} has a journal: use enqueue_many")
        groups: dict[tuple[str, ...], list[Columns]] = {}
        for found in self.checked(items):
            groups.setdefault(tuple(found), []).append(found)
        for shape in groups:
            reading.must_be_plain(self.ledger, shape)
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(self.sql.moment, {"now": now})
            ((moment,),) = await cursor.fetchall()
            fixed = self._fixed(moment)
            try:
                for shape, rows in groups.items():
                    columns = (*(self._column(name) for name in shape), *fixed)
                    async with cursor.copy(self.sql.copy(columns)) as copy:
                        for row in rows:
                            await copy.write_row((*row.values(), *fixed.values()))
            except Error as error:
                if refusal := refused(error):
                    raise refusal from None
                raise
        return sum(len(rows) for rows in groups.values())

    def _fixed(self, moment: Any) -> Columns:
        """What every new row has alike, whatever the defaults of its columns."""
        ledger = self.ledger
        fixed: Columns = {ledger.state: ledger.lifecycle.initial, ledger.times.created: moment}
        if ledger.times.updated:
            fixed[ledger.times.updated] = moment
        if ledger.due and (ledger.due.first or not ledger.due.cleared):
            fixed[ledger.due.columns[0]] = moment
        return fixed

    def _column(self, name: str) -> str:
        return str(self.ledger.payload) if name == PAYLOAD else name

    def checked(self, items: Iterable[Item], by: str | None = None) -> Iterator[Columns]:
        """The columns of each item; what is wrong with one is told with its place."""
        for place, item in enumerate(items):
            where = f"items[{place}]"
            if not isinstance(item, Item):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InvalidInput(field=where, message=f"must be an Item, not {type(item).__name__}")
            try:
                yield intake.columns_of(self.ledger, item, by)
            except InvalidInput as error:
                raise InvalidInput(field=f"{where}.{error.field}", message=error.fields["message"]) from None

    def add_one(self, item: Item, by: str | None, now: datetime | None) -> Steps[list[Receipt]]:
        """One row. Without a key this is one statement, and no savepoint."""
        by = intake.requester(self.ledger, by)
        return self._add([intake.columns_of(self.ledger, item, by)], by, now)

    def add_many(self, items: Iterable[Item], by: str | None, now: datetime | None) -> Steps[list[Receipt]]:
        """All rows or none; the answers are in the order of the items."""
        by = intake.requester(self.ledger, by)
        return self._add(list(self.checked(items, by)), by, now)

    def _add(self, rows: list[Columns], by: str | None, now: datetime | None) -> Steps[list[Receipt]]:
        groups = self._groups(dict(enumerate(rows)))
        steps = self._rounds(rows, groups, {"now": now, "detail": json.dumps({"by": by}) if by else None})
        # Without a key nothing can stand in the way of a single row, and one statement is a whole by itself.
        looks_up = self._looks_up and (len(rows) > 1 or any(map(self._identity, rows)))
        return all_or_none(steps) if len(groups) > 1 or looks_up else steps

    @property
    def _looks_up(self) -> bool:
        """Whether a repeated key is answered by a second statement."""
        return self.ledger.idempotency is not None and self.ledger.idempotency.repeat != "touch"

    def _rounds(self, rows: list[Columns], groups: Groups, common: Mapping[str, Any]) -> Steps[list[Receipt]]:
        answers: dict[int, Receipt] = {}
        # A row that stood in the way may be gone before we look at it: then the way is free, try again.
        for _ in range(ROUNDS):
            for shape, group in groups.items():
                answers |= yield from self._insert(shape, group, common)
            answers |= self._repeats(rows, answers)
            if (waiting := _without(rows, answers)) and self._looks_up:
                answers |= yield from self._existing(waiting)
                waiting = _without(rows, answers)
            if not waiting:
                return [answers[place] for place in range(len(rows))]
            groups = self._groups(waiting)
        what = f"{self.ledger.name}: a row is refused that breaks no rule of the declaration"
        raise HoldfastError(message=f"{what}; compare both by `holdfast doctor`")

    def _groups(self, rows: Rows) -> Groups:
        """Rows that fill the same columns go into one statement; of those with one identity the first.

        In the order of their identities: then of two bulks with the same keys one waits, and never both.
        """
        chosen: dict[int, Columns] = {}
        seen: set[Identity] = set()
        for place, row in sorted(rows.items(), key=lambda one: self._identity(one[1]) or ()):
            identity = self._identity(row)
            if identity is not None:
                if identity in seen:
                    continue
                seen.add(identity)
            chosen[place] = row
        groups: dict[Shape, dict[int, Columns]] = {}
        for place, row in self._alike(chosen).items():
            shape: Shape = (tuple(row), intake.spread_of(self.ledger, row.get(PAYLOAD)))
            groups.setdefault(shape, {})[place] = row
        return groups

    def _alike(self, rows: Rows) -> Rows:
        """The rows with what some leave out filled in, where the ledger tells what the table puts there."""
        shapes = {tuple(row) for row in rows.values()}
        if len(shapes) < 2 or not self.ledger.defaults:
            return rows
        used = {name for shape in shapes for name in shape}
        pads = {name: value for name, value in self._pads().items() if name in used}
        names = [name for name in self.sql.types if name in used]
        return {
            place: {name: row.get(name, pads.get(name)) for name in names if name in row or name in pads}
            for place, row in rows.items()
        }

    def _pads(self) -> Columns:
        """What a row has in the columns that it leaves out, as far as the ledger tells."""
        defaults = dict(self.ledger.defaults)
        pads: Columns = {DELAY: None, RUN_AT: None}
        if isinstance(self.ledger.payload, str) and self.ledger.payload in defaults:
            pads[PAYLOAD] = intake.payload_text(defaults.pop(self.ledger.payload))
        return pads | defaults

    def _identity(self, row: Mapping[str, Any]) -> Identity | None:
        rule = self.ledger.idempotency
        if rule is None or row.get(rule.column) is None:
            return None
        return tuple(str(row.get(name)) for name in (*rule.scope, rule.column))

    def _insert(self, shape: Shape, group: Rows, common: Mapping[str, Any]) -> Steps[dict[int, Receipt]]:
        columns, spread = shape
        params = {array(place): [row[name] for row in group.values()] for place, name in enumerate(columns)}
        try:
            found = yield Query(self.sql.enqueue(columns, spread), {**params, **common})
        except Exception as error:
            if refusal := refused(error):
                raise refusal from None
            raise
        return self._receipts(group, found)

    def _receipts(self, group: Rows, found: Found) -> dict[int, Receipt]:
        key = self.ledger.key.column
        keys = [reading.key_of(self.ledger, row[key]) for row in found]
        if len(found) == len(group):  # none is missing: they come back in the order in which they went in
            answers = zip(group.items(), keys, strict=True)
            return {place: Receipt(own, row.get(key, own) == own) for (place, row), own in answers}
        if self.ledger.key.make:
            made = set(keys)
            return {place: Receipt(row[key], True) for place, row in group.items() if row[key] in made}
        inserted = dict(zip(map(self._found_identity, found), keys, strict=True))
        identities = {place: self._identity(row) for place, row in group.items()}
        return {place: Receipt(inserted[own], True) for place, own in identities.items() if own in inserted}

    def _found_identity(self, row: Mapping[str, Any]) -> Identity:
        return tuple(str(value) for name, value in row.items() if name.startswith(UNIQUE))

    def _repeats(self, rows: Sequence[Columns], answers: Mapping[int, Receipt]) -> dict[int, Receipt]:
        """A key that came twice in one bulk: the later ones get the id of the first."""
        firsts: dict[Identity, int] = {}
        repeats: dict[int, Receipt] = {}
        for place, row in enumerate(rows):
            identity = self._identity(row)
            if identity is None:
                continue
            if place in answers:
                firsts.setdefault(identity, place)
            elif (first := firsts.get(identity)) is not None:
                self._must_be_alike(row, rows[first], answers[first])
                repeats[place] = Receipt(answers[first].id, False)
        return repeats

    def _must_be_alike(self, row: Columns, first: Columns, receipt: Receipt) -> None:
        """One key means one piece of work: not two of different kinds."""
        rule, kind = self.ledger.idempotency, self.ledger.kind
        if rule and kind and row[kind] != first[kind]:
            detail = f"{first[kind]}, {self.ledger.lifecycle.initial}"
            raise IdempotencyConflict(
                what=self.ledger.name, key=row[rule.column], id=receipt.id, detail=detail
            )

    def _existing(self, waiting: Rows) -> Steps[dict[int, Receipt]]:
        rule = self.ledger.idempotency
        assert rule
        if rule.repeat == "ignore":
            return {place: Receipt(None, False) for place in waiting}
        columns = (*rule.scope, rule.column)
        params = {
            array(place): [row.get(name) for row in waiting.values()] for place, name in enumerate(columns)
        }
        standing_there = yield Query(self.sql.existing(), params)
        found = {row["place"]: row for row in standing_there}
        receipts: dict[int, Receipt] = {}
        for number, (place, row) in enumerate(waiting.items(), start=1):
            standing = found.get(number)
            if standing is None:
                continue
            key = reading.key_of(self.ledger, standing["key"])
            kind = row.get(self.ledger.kind) if self.ledger.kind else standing["kind"]
            if rule.repeat == "refuse" or standing["kind"] != kind:
                raise IdempotencyConflict(
                    what=self.ledger.name,
                    key=row[rule.column],
                    id=key,
                    detail=f"{standing['kind']}, {standing['state']}",
                )
            receipts[place] = Receipt(key, False)
        return receipts


def _without(rows: Sequence[Columns], answers: Mapping[int, Receipt]) -> dict[int, Columns]:
    """The rows that have no answer yet."""
    return {place: row for place, row in enumerate(rows) if place not in answers}


def refused(error: BaseException) -> InvalidInput | NotAllowed | None:
    """What the database said of a row that it would not take; None for any other error.

    Libraries wrap one another's errors. The innermost is the driver's, and tells most.
    """
    found, cause = None, error
    while cause is not None:
        state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        found = cause if str(state)[:2] in REFUSALS or state == NO_PRIVILEGE else found
        cause = cause.__cause__
    if found is None:
        return None
    told = getattr(found, "diag", found)
    field = getattr(told, "column_name", None) or getattr(told, "constraint_name", None) or "item"
    said = getattr(told, "message_primary", None) or getattr(told, "message", None) or str(found)
    if NO_PRIVILEGE in (getattr(found, "sqlstate", None), getattr(found, "pgcode", None)):
        return NotAllowed(message=said)
    return InvalidInput(field=field, message=said)
