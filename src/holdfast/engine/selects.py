"""How rows are read, as SQL: every role by its common name, times as moments."""

from __future__ import annotations

from functools import cache, cached_property

from psycopg.sql import SQL, Composable, Identifier, Literal, Placeholder

from holdfast.engine import effects, sql
from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import CodeError, JsonError, TextError, TraceError
from holdfast.engine.words import COMMA, FROM_MOMENT, TO_MOMENT, Words, among, literals, named


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
        self.stats = cache(self._stats)
        self.depth = cache(self._depth)
        self.changes = cache(self._changes)

    def _rows(self, shape: tuple[str, ...]) -> bytes:
        ledger = self.ledger
        newest = (
            SQL("t.{} desc").format(Identifier(name)) for name in (ledger.times.created, ledger.key.column)
        )
        # Rows are picked by their keys: what is told of a row is made for those of the page alone.
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
        # Where times never go back they are an order as well, and the one that an index has.
        newest = SQL("e.{} desc, e.{} desc" if self.ledger.times.updated else "e.{1} desc")
        told = {
            "row": self._row(),
            "conditions": self._conditions(shape),
            "finished": Literal(self.ledger.to("finish")),
            "newest": newest.format(Identifier(journal.at), Identifier(journal.seq)),
        }
        return self.render(sql.ROW, **(names | told))

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
        created, finished = Identifier(ledger.times.created), Identifier(ledger.times.finished or "")
        moment = SQL(FROM_MOMENT[ledger.times.kind])
        known: dict[str, Composable] = {
            "id": SQL("t.{} = %(id)s").format(self.key),
            "state": SQL("t.{} = %(state)s::{}").format(self.state, SQL(self.state_type())),
            "states": SQL("t.{} = any(%(states)s::{}[])").format(self.state, SQL(self.state_type())),
            "code": SQL("{} = %(code)s").format(self._fault()[0]),
            "kind": SQL("{} = %(kind)s").format(self.kind()),
            "owner": SQL("{} = %(owner)s").format(self.holder()),
            "key": SQL("t.{}::text = %(key)s").format(
                Identifier(ledger.idempotency.column if ledger.idempotency else "")
            ),
            "queue": SQL("{} = %(queue)s").format(self.queue()),
            "tenant": SQL("t.{} = %(tenant)s").format(
                Identifier(ledger.tenant.name if ledger.tenant else "")
            ),
            "created_after": SQL("t.{} >= {}").format(created, moment.format(_moment("created_after"))),
            "created_before": SQL("t.{} < {}").format(created, moment.format(_moment("created_before"))),
            "finished_after": SQL("t.{} >= {}").format(finished, moment.format(_moment("finished_after"))),
            "finished_before": SQL("t.{} < {}").format(finished, moment.format(_moment("finished_before"))),
            "after_key": SQL("t.{} > %(after_key)s").format(self.key),
            "until_key": SQL("t.{} <= %(until_key)s").format(self.key),
            "cursor": SQL("(t.{}, t.{}) < ({}, %(before_key)s::{})").format(
                created, self.key, moment.format(SQL("%(before)s::timestamptz")), SQL(self.key_type())
            ),
        }
        known |= {
            f"extra_{extra.name}": SQL("t.{} = {}").format(
                Identifier(extra.name), Placeholder(f"extra_{extra.name}")
            )
            for extra in ledger.extras
        }
        return SQL(" and ").join([known[name] for name in shape] or [SQL("true")])

    def _row(self) -> Composable:
        """The fields of a `Row`: every role by its common name, times as moments."""
        ledger, times = self.ledger, self.ledger.times
        attempts, limit = self.attempts("null::int")
        fields: dict[str, Composable] = {
            "id": SQL("t.{}").format(self.key),
            "kind": self.kind(),
            "state": SQL("t.{}::text").format(self.state),
            "payload": self.payload(),
            "owner": self.owner(),
            "fence": effects.column_of(ledger.fence) if ledger.fence else SQL("null::bigint"),
            "attempts": attempts,
            "limit": limit,
            "error": self._error(),
            "columns": self._columns(),
            "tenant": SQL("t.{}").format(Identifier(ledger.tenant.name))
            if ledger.tenant
            else SQL("null::text"),
            "trace": effects.column_of(ledger.trace) if ledger.trace else SQL("null::text"),
        }
        moments = {"created": times.created, "updated": times.updated, "claimed": times.claimed}
        moments |= {"started": times.started, "finished": times.finished}
        moment = SQL(TO_MOMENT[times.kind])
        fields["due"] = moment.format(self.due()) if ledger.due else SQL("null::timestamptz")
        for name, column in moments.items():
            fields[name] = moment.format(effects.column_of(column)) if column else SQL("null::timestamptz")
        return named(fields)

    def _columns(self) -> Composable:
        """The whole row as it is, but for a payload that is told already and may be large."""
        payload = self.ledger.payload
        if isinstance(payload, str):
            return SQL("to_jsonb(t.*) - {}").format(Literal(payload))
        return SQL("to_jsonb(t.*)")

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
            case TraceError(message=message, summary=True):
                well = Literal(self.ledger.to("finish"))
                return SQL("case when t.{} <> {} then t.{} end").format(self.state, well, Identifier(message))
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

    @cached_property
    def hidden(self) -> bytes:
        """Whether policies decide which rows are seen."""
        return self.render(sql.HIDDEN, name=Literal(self.table.as_string(None)))

    def _last_key(self, shape: tuple[str, ...]) -> bytes:
        return self.render(sql.LAST_KEY, conditions=self._conditions(shape))

    def _stats(self, shape: tuple[str, ...]) -> bytes:
        """How many rows are in each state, since when the oldest is there, and since when one is due."""
        return self.render(sql.STATS, conditions=self._conditions(shape), **self._oldest())

    def _depth(self, shape: tuple[str, ...]) -> bytes:
        """The same of one state, of a limited number of rows."""
        due = self.ledger.due
        times = self.ledger.times
        maybe = (self.ledger.state, times.created, due and times.updated, *(due.columns if due else ()))
        names = dict.fromkeys(name for name in maybe if name)
        columns = COMMA.join(effects.column_of(name) for name in names)
        return self.render(sql.DEPTH, columns=columns, conditions=self._conditions(shape), **self._oldest())

    def _oldest(self) -> dict[str, Composable]:
        """When the oldest row was made, and since when one that waits is due."""
        ledger, created = self.ledger, effects.column_of(self.ledger.times.created)
        moment = SQL(TO_MOMENT[ledger.times.kind])
        due = SQL("null::timestamptz")
        if ledger.due:
            came = effects.column_of(ledger.times.updated or ledger.times.created)
            never = ledger.due.first or not ledger.due.cleared  # is it NULL
            since = self.due() if never else SQL("coalesce({}, {})").format(self.due(), came)
            waiting = among(SQL("t.") + self.state, ledger.lifecycle.waiting)
            due = moment.format(SQL("(min({}) filter (where {}))").format(since, waiting))
        return {"oldest": moment.format(SQL("min({})").format(created)), "due": due}

    @cached_property
    def size(self) -> bytes:
        """How large the table is, in bytes."""
        name = SQL("{}::regclass").format(Literal(self.table.as_string(None)))
        return self.render(sql.SIZE, name=name)

    @cached_property
    def held(self) -> bytes:
        """How many rows each worker holds."""
        held = among(SQL("t.") + self.state, self.ledger.lifecycle.held)
        return self.render(sql.HELD, holder=self.holder(), held=held)

    @cached_property
    def marks(self) -> bytes:
        """Of some rows, what changes when they do."""
        ledger, times = self.ledger, self.ledger.times
        columns = [ledger.state, ledger.owner, ledger.fence, times.updated, times.finished]
        columns += [ledger.attempts and ledger.attempts.column, ledger.due and ledger.due.column]
        facts: list[Composable] = [effects.column_of(name) for name in dict.fromkeys(columns) if name]
        if journal := ledger.journal:
            names = {"of": Identifier(journal.row), "seq": Identifier(journal.seq), **self.journal_names()}
            facts.append(SQL(sql.LAST_EVENT).format(**names))
        return self.render(sql.MARKS, facts=COMMA.join(facts), key_type=SQL(self.key_type()))

    @cached_property
    def touched(self) -> bytes:
        """The state of a row now, and the open transaction that has touched it."""
        return self.render(sql.TOUCHED)

    @cached_property
    def held_since(self) -> bytes | None:
        """When a row was taken, where its journal alone knows."""
        journal, times = self.ledger.journal, self.ledger.times
        if journal is None:
            return None
        return self.render(
            sql.HELD_SINCE,
            moment=SQL(TO_MOMENT[times.kind]).format(SQL("max(e.{})").format(Identifier(journal.at))),
            held=literals(self.ledger.lifecycle.held),
            of=Identifier(journal.row),
            **self.journal_names(),
        )

    def _changes(self, shape: tuple[str, ...]) -> bytes:
        """The events of all rows since a moment."""
        journal, kind = self.ledger.journal, self.ledger.times.kind
        assert journal
        names = self.journal_names() | {"of": Identifier(journal.row), "seq": Identifier(journal.seq)}
        return self.render(
            sql.CHANGES,
            moment=SQL(TO_MOMENT[kind]).format(SQL("e.{}").format(Identifier(journal.at))),
            since=SQL(FROM_MOMENT[kind]).format(SQL("%(since)s::timestamptz")),
            conditions=self._conditions(shape),
            **names,
        )

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
            "kind": self.kind(),
            "tenant": SQL("t.{}::text").format(Identifier(ledger.tenant.name))
            if ledger.tenant
            else SQL("null::text"),
        }

    def _fault(self) -> tuple[Composable, Composable]:
        """The class and the text of the last error, each where it has a place of its own."""
        nowhere = SQL("null::text")
        match self.ledger.errors:
            case None:
                return nowhere, nowhere
            case TextError(column=message, coded=True):
                column = effects.column_of(message)
                return SQL("split_part({}, ': ', 1)").format(column), column
            case TextError(column=message) | TraceError(message=message):
                return nowhere, effects.column_of(message)
            case JsonError(column=column):
                code, message = (
                    SQL("t.{} ->> {}").format(Identifier(column), n) for n in ("code", "message")
                )
                return code, message
            case CodeError(code=code, message=message):
                return effects.column_of(code), effects.column_of(message)


def _moment(name: str) -> Composable:
    return SQL("{}::timestamptz").format(Placeholder(name))
