"""How rows come in, as SQL: inserts of just the columns that a call fills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects, sql
from holdfast.engine.ledger import Ledger
from holdfast.engine.words import (
    COMMA,
    DELAY,
    FROM_MOMENT,
    LATER,
    NOW,
    PAYLOAD,
    RUN_AT,
    UNIQUE,
    Words,
    item,
    literals,
)


class Inserts(Words):
    """Enqueue, and the look at what stood in its way. Filled once for each set of columns, and kept."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.enqueue = cache(self._enqueue)
        self.existing = cache(self._existing)
        self.copy = cache(self._copy)

    def types(self) -> Mapping[str, str]:
        """The columns that an enqueue may fill, and the types of their parameters."""
        ledger = self.ledger
        types = {ledger.key.column: ledger.key.type, DELAY: "float8", RUN_AT: "timestamptz"}
        for column in (ledger.kind, ledger.queue, ledger.idempotency and ledger.idempotency.column):
            if column:
                types[column] = "text"
        for column in (ledger.priority, ledger.attempts and ledger.attempts.limit):
            if isinstance(column, str):
                types[column] = "int4"
        if ledger.tenant:
            types[ledger.tenant.name] = ledger.tenant.type
        if ledger.payload:
            types[PAYLOAD] = "jsonb"
        return types | {extra.name: extra.type for extra in ledger.extras}

    def _enqueue(self, shape: tuple[str, ...], payload: tuple[str, ...]) -> bytes:
        """An insert of the columns in `shape`; `payload` names those that the payload is spread over."""
        ledger = self.ledger
        columns = dict(self._values(shape, payload))
        return self.render(
            sql.ENQUEUE,
            arrays=self.arrays({name: self.types()[name] for name in shape}),
            names=COMMA.join(Identifier(name) for name in shape),
            columns=COMMA.join(Identifier(name) for name in columns),
            values=COMMA.join(columns.values()),
            conflict=self._conflict(),
            returning=self._identity(),
            journal=self._journal_new(),
            channel=Literal(ledger.channel),
        )

    def _values(self, shape: tuple[str, ...], payload: tuple[str, ...]) -> Iterable[tuple[str, Composable]]:
        ledger, now, body = self.ledger, item(NOW), item(PAYLOAD)
        for name in shape:
            if name not in (PAYLOAD, DELAY, RUN_AT):
                yield name, item(name)
        if isinstance(ledger.payload, str) and PAYLOAD in shape:
            yield ledger.payload, body
        for name in payload:
            spread = SQL("(jsonb_populate_record(null::{}, {})).{}")
            yield name, spread.format(self.table, body, Identifier(name))
        if ledger.due and DELAY in shape:
            yield ledger.due.column, SQL(LATER[ledger.times.kind]).format(now, item(DELAY))
        if ledger.due and RUN_AT in shape:
            yield ledger.due.column, SQL(FROM_MOMENT[ledger.times.kind]).format(item(RUN_AT))
        if ledger.due and not ledger.due.cleared and not {DELAY, RUN_AT} & set(shape):
            yield ledger.due.column, now
        yield ledger.state, SQL("{}::{}").format(Literal(ledger.lifecycle.initial), SQL(self.state_type()))
        yield ledger.times.created, now
        if ledger.times.updated:
            yield ledger.times.updated, now

    def _identity(self) -> Composable:
        """What tells an enqueued row from the others: its key and the columns of its idempotency rule."""
        rule = self.ledger.idempotency
        columns = (*rule.scope, rule.column) if rule else ()
        told = self.told_columns() if self.ledger.journal else (self.ledger.key.column,)
        named = [effects.column_of(name) for name in told]
        if rule:
            named += [
                SQL("t.{}::text as {}").format(Identifier(name), Identifier(f"{UNIQUE}{place}"))
                for place, name in enumerate(columns)
            ]
        return COMMA.join(named)

    def _conflict(self) -> Composable:
        rule = self.ledger.idempotency
        if rule is None:
            return SQL("")
        target = COMMA.join(Identifier(name) for name in (*rule.scope, rule.column))
        if rule.repeat == "touch":
            assert self.ledger.times.updated
            return SQL(sql.TOUCH).format(target=target, updated=Identifier(self.ledger.times.updated))
        conditions = self._rule_conditions(SQL(""))
        predicate = SQL(" where {}").format(SQL(" and ").join(conditions)) if conditions else SQL("")
        return SQL(sql.NOTHING).format(target=target, predicate=predicate)

    def _rule_conditions(self, alias: Composable) -> list[Composable]:
        rule = self.ledger.idempotency
        assert rule
        conditions: list[Composable] = []
        if rule.partial:
            conditions.append(SQL("{}{} is not null").format(alias, Identifier(rule.column)))
        if rule.within:
            conditions.append(SQL("{}{} in ({})").format(alias, self.state, literals(rule.within)))
        return conditions

    def _existing(self) -> bytes:
        rule = self.ledger.idempotency
        assert rule
        types = self.types()
        columns = (*rule.scope, rule.column)
        match = (SQL("t.{0} = i.{0}").format(Identifier(name)) for name in columns)
        return self.render(
            sql.EXISTING,
            kind=self.kind(),
            arrays=self.arrays({name: types[name] for name in columns}),
            names=COMMA.join(Identifier(name) for name in columns),
            match=SQL(" and ").join(match),
            predicate=SQL(" and ").join([SQL("true"), *self._rule_conditions(SQL("t."))]),
        )

    @cached_property
    def moment(self) -> bytes:
        """The clock, for rows whose columns are written as they are."""
        return self.render(sql.MOMENT)

    def _copy(self, columns: tuple[str, ...]) -> bytes:
        return self.render(sql.COPY, columns=COMMA.join(Identifier(name) for name in columns))

    def _journal_new(self) -> Composable:
        if self.ledger.journal is None:
            return SQL("")
        (edge,) = self.ledger.lifecycle.of("enqueue")
        hops = (
            SQL("({}, {}::text, {}::text)").format(*map(Literal, (step, *hop)))
            for step, hop in enumerate(edge.hops(None))
        )
        return SQL(sql.JOURNAL_NEW).format(
            hops=COMMA.join(hops), facts=self.facts("enqueue", due=False), **self.journal_names()
        )
