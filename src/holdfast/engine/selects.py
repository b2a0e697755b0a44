"""How rows are read, as SQL: every role by its common name, times as moments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from psycopg.sql import SQL, Composable, Identifier

from holdfast.engine import effects, sql
from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import CodeError, JsonError, TextError, TraceError
from holdfast.engine.words import COMMA, FROM_MOMENT, TO_MOMENT, Words, named


class Selects(Words):
    """Pages, keys and counts. Filled once for each set of conditions, and kept."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.rows = cache(self._rows)
        self.keys = cache(self._keys)
        self.counts = cache(self._counts)

    def _rows(self, shape: tuple[str, ...]) -> bytes:
        ledger = self.ledger
        newest = (
            SQL("t.{} desc").format(Identifier(name)) for name in (ledger.times.created, ledger.key.column)
        )
        return self.render(
            sql.ROWS,
            row=self._row(),
            conditions=self._conditions(shape),
            order=COMMA.join(newest),
        )

    def _keys(self, shape: tuple[str, ...]) -> bytes:
        return self.render(sql.KEYS, conditions=self._conditions(shape))

    def _counts(self, shape: tuple[str, ...]) -> bytes:
        return self.render(sql.COUNTS, kind=self.kind(), conditions=self._conditions(shape))

    def _conditions(self, shape: tuple[str, ...]) -> Composable:
        ledger = self.ledger
        created = Identifier(ledger.times.created)
        moment = SQL(FROM_MOMENT[ledger.times.kind])
        known: Mapping[str, Composable] = {
            "id": SQL("t.{} = %(id)s").format(self.key),
            "states": SQL("t.{} = any(%(states)s::{}[])").format(self.state, SQL(self.state_type())),
            "kind": SQL("{} = %(kind)s").format(self.kind()),
            "owner": SQL("{} = %(owner)s").format(self.holder()),
            "queue": SQL("t.{} = %(queue)s").format(Identifier(ledger.queue or "")),
            "tenant": SQL("t.{} = %(tenant)s").format(
                Identifier(ledger.tenant.name if ledger.tenant else "")
            ),
            "created_after": SQL("t.{} >= {}").format(
                created, moment.format(SQL("%(created_after)s::timestamptz"))
            ),
            "created_before": SQL("t.{} < {}").format(
                created, moment.format(SQL("%(created_before)s::timestamptz"))
            ),
            "after_key": SQL("t.{} > %(after_key)s").format(self.key),
            "cursor": SQL("(t.{}, t.{}) < ({}, %(before_key)s::{})").format(
                created, self.key, moment.format(SQL("%(before)s::timestamptz")), SQL(self.key_type())
            ),
        }
        return SQL(" and ").join([known[name] for name in shape] or [SQL("true")])

    def _row(self) -> Composable:
        """The fields of a `Row`: every role by its common name, times as moments."""
        ledger, times = self.ledger, self.ledger.times
        limit = ledger.attempts.limit if ledger.attempts else None
        fields: dict[str, Composable] = {
            "id": SQL("t.{}").format(self.key),
            "kind": self.kind(),
            "state": SQL("t.{}::text").format(self.state),
            "payload": self.payload(),
            "owner": SQL("t.{}::text").format(Identifier(ledger.owner)),
            "fence": effects.column_of(ledger.fence) if ledger.fence else SQL("null::bigint"),
            "attempts": effects.column_of(ledger.attempts.column) if ledger.attempts else SQL("null::int"),
            "limit": effects.column_of(limit) if isinstance(limit, str) else SQL("{}::int").format(limit),
            "error": self._error(),
            "columns": SQL("to_jsonb(t.*)"),
        }
        moments = {
            "due": ledger.due and ledger.due.column,
            "created": times.created,
            "updated": times.updated,
        }
        moments |= {"claimed": times.claimed, "started": times.started, "finished": times.finished}
        for name, column in moments.items():
            moment = SQL(TO_MOMENT[times.kind])
            fields[name] = moment.format(effects.column_of(column)) if column else SQL("null::timestamptz")
        return named(fields)

    def _error(self) -> Composable:
        match self.ledger.errors:
            case None:
                return SQL("null::text")
            case TextError(column=column):
                return effects.column_of(column)
            case JsonError(column=column):
                return SQL("t.{} ->> 'message'").format(Identifier(column))
            case CodeError(code=code, message=message):
                return SQL("nullif(concat_ws(': ', t.{}, t.{}), '')").format(
                    *map(Identifier, (code, message))
                )
            case TraceError(message=message):
                return effects.column_of(message)
