"""How rows are read, as SQL: every role by its common name, times as moments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property

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
        self.row = cache(self._one)
        self.verify = cache(self._verify)
        self.last_key = cache(self._last_key)
        self.states = cache(self._states)

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

    def _one(self, shape: tuple[str, ...]) -> bytes:
        """One row, with what the journal alone knows of it."""
        journal = self.ledger.journal
        if journal is None:
            return self.rows(shape)
        names = self.journal_names() | {"of": Identifier(journal.row), "seq": Identifier(journal.seq)}
        finished = SQL("{}").format(self.ledger.to("finish"))
        return self.render(
            sql.ROW,
            **(names | {"row": self._row(), "conditions": self._conditions(shape), "finished": finished}),
        )

    @cached_property
    def events(self) -> bytes | None:
        """The timeline of one row; None where there is no journal."""
        journal = self.ledger.journal
        if journal is None:
            return None
        moment = SQL(TO_MOMENT[self.ledger.times.kind]).format(SQL("e.{}").format(Identifier(journal.at)))
        names = self.journal_names() | {"of": Identifier(journal.row), "seq": Identifier(journal.seq)}
        return self.render(sql.EVENTS, moment=moment, **names)

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
            "until_key": SQL("t.{} <= %(until_key)s").format(self.key),
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
            "tenant": SQL("t.{}").format(Identifier(ledger.tenant.name))
            if ledger.tenant
            else SQL("null::text"),
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
                # A message of ours may begin with its class already.
                told = SQL(
                    "case when starts_with(t.{1}, t.{0} || ':') then t.{1}::text"
                    " else nullif(concat_ws(': ', t.{0}, t.{1}), '') end"
                )
                return told.format(Identifier(code), Identifier(message))
            case TraceError(message=message):
                return effects.column_of(message)

    def _verify(self, shape: tuple[str, ...]) -> bytes:
        """Rows with their events, for `verify`; times as the numbers that they are stored as."""
        journal = self.ledger.journal
        assert journal
        facts = self._facts()
        names = self.journal_names() | {"of": Identifier(journal.row), "seq": Identifier(journal.seq)}
        return self.render(
            sql.VERIFY,
            facts=named(facts),
            nothing=COMMA.join([SQL("null")] * len(facts)),
            conditions=self._conditions(shape),
            **names,
        )

    def _last_key(self, shape: tuple[str, ...]) -> bytes:
        return self.render(sql.LAST_KEY, conditions=self._conditions(shape))

    def _states(self, shape: tuple[str, ...]) -> bytes:
        """How many rows are in each state, and since when the oldest has been there at all."""
        oldest = SQL("min(t.{})").format(Identifier(self.ledger.times.created))
        moment = SQL(TO_MOMENT[self.ledger.times.kind]).format(oldest)
        return self.render(sql.STATES, oldest=moment, conditions=self._conditions(shape))

    def _facts(self) -> dict[str, Composable]:
        """What the events of a row must lead to."""
        ledger, times = self.ledger, self.ledger.times
        code, message = self._fault()
        columns = {"attempts": ledger.attempts and ledger.attempts.column, "fence": ledger.fence}
        columns |= {"started": times.started, "finished": times.finished}
        return {
            "key": SQL("t.{}").format(self.key),
            "state": SQL("t.{}::text").format(self.state),
            "owner": self.holder(),
            **{
                name: effects.column_of(column) if column else SQL("null::bigint")
                for name, column in columns.items()
            },
            "code": code,
            "message": message,
        }

    def _fault(self) -> tuple[Composable, Composable]:
        """The class and the text of the last error, each where it has a place of its own."""
        nowhere = SQL("null::text")
        match self.ledger.errors:
            case None:
                return nowhere, nowhere
            case TextError(column=message) | TraceError(message=message):
                return nowhere, effects.column_of(message)
            case JsonError(column=column):
                code, message = (
                    SQL("t.{} ->> {}").format(Identifier(column), n) for n in ("code", "message")
                )
                return code, message
            case CodeError(code=code, message=message):
                return effects.column_of(code), effects.column_of(message)
