"""How rows come in, as SQL: inserts of just the columns that a call fills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects, sql
from holdfast.engine.intake import INTEGERS
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
    safe,
)

# What all libraries send alike. All else goes as text, and the server casts it: they differ in what they take
# for a date, and some make JSON of whatever they are given.
SENT_AS_IT_IS = {"uuid", "text", *INTEGERS}
# A text is assigned to these and not cast: a cast would silently cut it.
CUT_BY_A_CAST = ("varchar", "character", "char", "bpchar")


class Inserts(Words):
    """Enqueue, and the look at what stood in its way. Filled once for each set of columns, and kept."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.enqueue = cache(self._enqueue)
        self.existing = cache(self._existing)
        self.copy = cache(self._copy)

    @cached_property
    def types(self) -> Mapping[str, str]:
        """The columns that an enqueue may fill, and their types."""
        ledger = self.ledger
        types = {ledger.key.column: ledger.key.type, DELAY: "float8", RUN_AT: "timestamptz"}
        key = ledger.idempotency and ledger.idempotency.column
        for column in (ledger.kind, ledger.queue, key, ledger.requester, ledger.trace):
            if column:
                types[column] = "text"
        if ledger.policy:
            types[ledger.policy] = ledger.policy_type
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
            arrays=self.arrays({name: self._sent_as(name) for name in shape}),
            names=COMMA.join(Identifier(name) for name in shape),
            items=COMMA.join(SQL("{} as {}").format(self._given(name), Identifier(name)) for name in shape),
            columns=COMMA.join(Identifier(name) for name in columns),
            values=COMMA.join(columns.values()),
            conflict=self._conflict(),
            returning=COMMA.join([*map(effects.column_of, self._told()), *self._identity()]),
            answer=COMMA.join(
                [effects.column_of(ledger.key.column), *map(effects.column_of, self._unique())]
            ),
            journal=self._journal_new(),
            channel=Literal(ledger.channel),
        )

    def _sent_as(self, name: str) -> str:
        kind = self.types[name]
        return kind if name in (DELAY, RUN_AT) or kind.lower() in SENT_AS_IT_IS else "text"

    def _given(self, name: str) -> Composable:
        """What was sent for a column, in a type that the column takes."""
        kind = self.types[name]
        if self._sent_as(name) == kind or kind.lower().startswith(CUT_BY_A_CAST):
            return item(name)
        return SQL("i.{}::{}").format(Identifier(name), SQL(safe(kind)))

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
        if ledger.due and (moments := self._moments(shape)):
            first = SQL("coalesce({})").format(COMMA.join(moments)) if len(moments) > 1 else moments[0]
            yield ledger.due.columns[0], first
        yield ledger.state, SQL("{}::{}").format(Literal(ledger.lifecycle.initial), SQL(self.state_type()))
        yield ledger.times.created, now
        if ledger.times.updated:
            yield ledger.times.updated, now

    def _moments(self, shape: tuple[str, ...]) -> list[Composable]:
        """What may say when a row is due; the first that a row has counts."""
        ledger, kind = self.ledger, self.ledger.times.kind
        moments: list[Composable] = []
        if RUN_AT in shape:
            moments.append(SQL(FROM_MOMENT[kind]).format(item(RUN_AT)))
        if DELAY in shape:
            moments.append(SQL(LATER[kind]).format(item(NOW), item(DELAY)))
        if ledger.due and (ledger.due.first or not ledger.due.cleared):
            moments.append(item(NOW))
        return moments

    def _told(self) -> Iterable[str]:
        """The columns that the answer and the first event need."""
        whose = self.whose().values() if self.ledger.journal else ()
        return dict.fromkeys((*self.told_columns(), *whose))

    def _identity(self) -> list[Composable]:
        """What tells a new row from others where we do not make its key: its idempotency rule's columns."""
        return [
            SQL("t.{}::text as {}").format(Identifier(name), Identifier(unique))
            for unique, name in self._unique().items()
        ]

    def _unique(self) -> dict[str, str]:
        rule = self.ledger.idempotency
        if rule is None or self.ledger.key.make:
            return {}
        return {f"{UNIQUE}{place}": name for place, name in enumerate((*rule.scope, rule.column))}

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
        columns = (*rule.scope, rule.column)
        match = (SQL("t.{} = {}").format(Identifier(name), self._given(name)) for name in columns)
        return self.render(
            sql.EXISTING,
            kind=self.kind(),
            arrays=self.arrays({name: self._sent_as(name) for name in columns}),
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
            hops=COMMA.join(hops), facts=self.facts("enqueue", due=True), **self.journal_names()
        )
