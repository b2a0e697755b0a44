"""How rows come into a ledger: grouped into few statements, and told apart by their idempotency keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import Any

from psycopg import AsyncConnection, DataError, IntegrityError
from psycopg.errors import ProgramLimitExceeded
from psycopg.rows import dict_row, tuple_row

from holdfast.engine import intake, reading
from holdfast.engine.ledger import Ledger
from holdfast.engine.statements import Statements
from holdfast.engine.values import Item, Receipt
from holdfast.engine.words import PAYLOAD, UNIQUE, array
from holdfast.errors import HoldfastError, IdempotencyConflict, InvalidInput

Connection = AsyncConnection[Any]
Columns = dict[str, Any]  # one row: column -> value
Rows = Mapping[int, Columns]  # rows by their place in the caller's list
Shape = tuple[tuple[str, ...], tuple[str, ...]]  # the columns filled, and those the payload is spread over
Identity = tuple[str, ...]
REFUSED = (
    DataError,
    IntegrityError,
    ProgramLimitExceeded,
)  # what the database says of a row it will not take
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
            except REFUSED as error:
                raise reading.refused(error) from None
        return sum(len(rows) for rows in groups.values())

    def _fixed(self, moment: Any) -> Columns:
        """What every new row has alike, whatever the defaults of its columns."""
        ledger = self.ledger
        fixed: Columns = {ledger.state: ledger.lifecycle.initial, ledger.times.created: moment}
        if ledger.times.updated:
            fixed[ledger.times.updated] = moment
        if ledger.due and not ledger.due.cleared:
            fixed[ledger.due.column] = moment
        return fixed

    def _column(self, name: str) -> str:
        return str(self.ledger.payload) if name == PAYLOAD else name

    def checked(self, items: Iterable[Item]) -> Iterable[Columns]:
        for place, item in enumerate(items):
            try:
                yield intake.columns_of(self.ledger, item)
            except InvalidInput as error:
                raise InvalidInput(
                    field=f"items[{place}].{error.field}", message=error.fields["message"]
                ) from None

    async def add(
        self, conn: Connection, rows: list[Columns], by: str | None, now: datetime | None
    ) -> list[Receipt]:
        rule = self.ledger.idempotency
        answers: dict[int, Receipt] = {}
        waiting = dict(enumerate(rows))
        groups = self._groups(waiting)
        looks_up = rule is not None and rule.repeat != "touch"
        scope: AbstractAsyncContextManager[Any] = (
            conn.transaction() if looks_up or len(groups) > 1 else nullcontext()
        )
        async with scope:
            # A row that stood in the way may be gone before we look at it: then the way is free, try again.
            for _ in range(ROUNDS):
                if not waiting:
                    break
                for shape, group in self._groups(waiting).items():
                    answers |= await self._insert(conn, shape, group, by, now)
                waiting = {place: row for place, row in waiting.items() if place not in answers}
                answers |= self._repeats(rows, answers)
                waiting = {place: row for place, row in waiting.items() if place not in answers}
                if waiting and looks_up:
                    answers |= await self._existing(conn, waiting)
                    waiting = {place: row for place, row in waiting.items() if place not in answers}
            if waiting:
                what = f"{self.ledger.name}: a row is refused that breaks no rule of the declaration"
                raise HoldfastError(message=f"{what}; compare both by `holdfast doctor`")
        return [answers[place] for place in range(len(rows))]

    def _groups(self, rows: Rows) -> dict[Shape, dict[int, Columns]]:
        """Rows that fill the same columns go into one statement; of those with one identity the first.

        In the order of their identities: then of two bulks with the same keys one waits, and never both.
        """
        groups: dict[Shape, dict[int, Columns]] = {}
        seen: set[Identity] = set()
        for place, row in sorted(rows.items(), key=lambda one: self._identity(one[1]) or ()):
            identity = self._identity(row)
            if identity is not None:
                if identity in seen:
                    continue
                seen.add(identity)
            shape: Shape = (tuple(row), intake.spread_of(self.ledger, row.get(PAYLOAD)))
            groups.setdefault(shape, {})[place] = row
        return groups

    def _identity(self, row: Mapping[str, Any]) -> Identity | None:
        rule = self.ledger.idempotency
        if rule is None or row.get(rule.column) is None:
            return None
        return tuple(str(row.get(name)) for name in (*rule.scope, rule.column))

    async def _insert(
        self,
        conn: Connection,
        shape: Shape,
        group: Rows,
        by: str | None,
        now: datetime | None,
    ) -> dict[int, Receipt]:
        columns, spread = shape
        params: Columns = {
            array(place): [row[name] for row in group.values()] for place, name in enumerate(columns)
        }
        params |= {"now": now, "detail": json.dumps({"by": intake.absorb(by)}) if by else None}
        try:
            async with conn.cursor(row_factory=dict_row) as cursor:
                await cursor.execute(self.sql.enqueue(columns, spread), params)
                found = await cursor.fetchall()
        except REFUSED as error:
            raise reading.refused(error) from None
        return self._receipts(group, found)

    def _receipts(self, group: Rows, found: Sequence[Mapping[str, Any]]) -> dict[int, Receipt]:
        key = self.ledger.key.column
        if len(found) == len(group):  # none is missing: they come back in the order in which they went in
            answers = zip(group.items(), (row[key] for row in found), strict=True)
            return {place: Receipt(own, row.get(key, own) == own) for (place, row), own in answers}
        if self.ledger.key.make:
            made = {row[key] for row in found}
            return {place: Receipt(row[key], True) for place, row in group.items() if row[key] in made}
        inserted = {self._found_identity(row): row[key] for row in found}
        identities = {place: self._identity(row) for place, row in group.items()}
        return {place: Receipt(inserted[own], True) for place, own in identities.items() if own in inserted}

    def _found_identity(self, row: Mapping[str, Any]) -> Identity:
        return tuple(str(value) for name, value in row.items() if name.startswith(UNIQUE))

    def _repeats(self, rows: Sequence[Columns], answers: Mapping[int, Receipt]) -> dict[int, Receipt]:
        """A key that came twice in one bulk: the later ones get the id of the first."""
        firsts: dict[Identity, Receipt] = {}
        repeats: dict[int, Receipt] = {}
        for place, row in enumerate(rows):
            identity = self._identity(row)
            if identity is None:
                continue
            if place in answers:
                firsts.setdefault(identity, answers[place])
            elif identity in firsts:
                repeats[place] = Receipt(firsts[identity].id, False)
        return repeats

    async def _existing(self, conn: Connection, waiting: Rows) -> dict[int, Receipt]:
        rule = self.ledger.idempotency
        assert rule
        if rule.repeat == "ignore":
            return {place: Receipt(None, False) for place in waiting}
        columns = (*rule.scope, rule.column)
        params = {
            array(place): [row.get(name) for row in waiting.values()] for place, name in enumerate(columns)
        }
        async with conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(self.sql.existing(), params)
            found = {row["place"]: row for row in await cursor.fetchall()}
        receipts: dict[int, Receipt] = {}
        for number, (place, row) in enumerate(waiting.items(), start=1):
            standing = found.get(number)
            if standing is None:
                continue
            kind = row.get(self.ledger.kind) if self.ledger.kind else standing["kind"]
            if rule.repeat == "refuse" or standing["kind"] != kind:
                raise IdempotencyConflict(
                    what=self.ledger.name,
                    key=row[rule.column],
                    id=standing["key"],
                    detail=f"{standing['kind']}, {standing['state']}",
                )
            receipts[place] = Receipt(standing["key"], False)
        return receipts
