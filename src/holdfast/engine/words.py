"""The words that all statements of a ledger share: its names, its clock, and small fragments of SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import LiteralString

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import PERSONAL, Verb
from holdfast.engine.roles import Lane, Order

COMMA = SQL(", ")

# What an item has beside its columns. The + keeps these names apart from any column of a user's table.
PAYLOAD, DELAY, RUN_AT, NOW, UNIQUE = "+payload", "+delay", "+run_at", "+now", "+unique_"

# Where time is counted in milliseconds the clock is late and a due time is not early, never the reverse.
CLOCK: Mapping[str, LiteralString] = {
    "timestamptz": "coalesce(%(now)s::timestamptz, clock_timestamp())",
    "timestamp": "coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC'",
    "epoch_ms": "floor(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint",
}
LATER: Mapping[str, LiteralString] = {
    "timestamptz": "{} + make_interval(secs => {})",
    "timestamp": "{} + make_interval(secs => {})",
    "epoch_ms": "{} + ceil({} * 1000)::bigint",
}
FROM_MOMENT: Mapping[str, LiteralString] = {
    "timestamptz": "{}",
    "timestamp": "{} at time zone 'UTC'",
    "epoch_ms": "ceil(extract(epoch from {}) * 1000)::bigint",
}
FIRST_TIME: Mapping[str, LiteralString] = {
    "timestamptz": "'-infinity'",
    "timestamp": "'-infinity'",
    "epoch_ms": "-9223372036854775807",
}
WAITED: Mapping[str, LiteralString] = {
    "timestamptz": "extract(epoch from (select now from clock)"
    " - greatest(least({}, (select now from clock)), 'epoch'))::float8",
    "timestamp": "extract(epoch from (select now from clock)"
    " - greatest(least({}, (select now from clock)), 'epoch'))::float8",
    "epoch_ms": "((select now from clock)"
    " - greatest(least({}, (select now from clock)), 0)) / 1000.0::float8",
}
# As people read it: what no calendar of theirs has, like infinity, is the first or the last day of it.
TO_MOMENT: Mapping[str, LiteralString] = {
    "timestamptz": "case when {0} is not null then"
    " greatest(least({0}, '9999-12-31 23:59:59.999999Z'), '0001-01-01 00:00:00Z') end",
    "timestamp": "case when {0} is not null then"
    " greatest(least({0}, '9999-12-31 23:59:59.999999'), '0001-01-01 00:00:00') end at time zone 'UTC'",
    "epoch_ms": "case when {0} is not null then"
    " to_timestamp(greatest(least({0}, 253402300799999), -62135596800000) / 1000.0) end",
}


class Words:
    """A ledger's own names as SQL. In every fragment `t` is the row."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.table = Identifier(*ledger.table.split("."))
        self.key = Identifier(ledger.key.column)
        self.state = Identifier(ledger.state)
        self.clock = SQL(CLOCK[ledger.times.kind])

    def state_type(self) -> LiteralString:
        return self.ledger.state_type  # pyright: ignore[reportReturnType]  checked by the declaration

    def key_type(self) -> LiteralString:
        return self.ledger.key.type  # pyright: ignore[reportReturnType]  checked by the declaration

    def kind(self) -> Composable:
        kind = self.ledger.kind
        return (
            SQL("t.{}::text").format(Identifier(kind)) if kind else SQL("{}::text").format(self.ledger.name)
        )

    def payload(self) -> Composable:
        match self.ledger.payload:
            case None:
                return SQL("null::jsonb")
            case str(column):
                return effects.column_of(column)
            case columns:
                pairs = (SQL("{}, t.{}").format(Literal(name), Identifier(name)) for name in columns)
                return SQL("jsonb_build_object({})").format(COMMA.join(pairs))

    def due(self) -> Composable:
        """When the row may be claimed, or NULL."""
        assert self.ledger.due
        columns = [effects.column_of(name) for name in self.ledger.due.columns]
        return columns[0] if len(columns) == 1 else SQL("greatest({}, {})").format(*columns)

    def queue(self) -> Composable:
        """The queue that a row is in."""
        queue = effects.column_of(self.ledger.queue or "")
        return SQL("coalesce({}, 'default')").format(queue) if self.ledger.queue_null else queue

    def fence(self) -> Composable:
        if self.ledger.fence:
            return effects.column_of(self.ledger.fence)
        if self.ledger.owner is None:
            return SQL("0::bigint")
        token = SQL("coalesce(substring(t.{} from '/([0-9]{{1,18}})$')::bigint, 0)")
        return token.format(Identifier(self.ledger.owner))

    def holder(self) -> Composable:
        """The id of the worker that holds a row; where the owner is the fence, its part before the token."""
        if self.ledger.owner is None:
            return SQL("null::text")
        owner = Identifier(self.ledger.owner)
        if self.ledger.fence:
            return SQL("t.{}::text").format(owner)
        return SQL("regexp_replace(t.{}, '/[0-9]+$', '')").format(owner)

    def owner(self) -> Composable:
        """Who holds a row, as the row has it."""
        owner = self.ledger.owner
        return SQL("t.{}::text").format(Identifier(owner)) if owner else SQL("null::text")

    def attempts(self, none: LiteralString) -> tuple[Composable, Composable]:
        """How often a row was tried, and how often it may be."""
        attempts, tries = self.ledger.attempts, self.ledger.tries
        if tries:
            return SQL("({})::int").format(tries.count), SQL("{}::int").format(tries.limit)
        if attempts is None:
            return SQL(none), SQL("null::int")
        limit = attempts.limit
        return (
            effects.column_of(attempts.column),
            effects.column_of(limit) if isinstance(limit, str) else SQL("{}::int").format(limit),
        )

    def answer(self) -> Composable:
        """The fields of a `Claimed`, from an alias t that has the row's columns."""
        attempts, limit = self.attempts("0")
        fields: dict[str, Composable] = {
            "id": SQL("t.{}").format(self.key),
            "kind": self.kind(),
            "payload": SQL("({})::text").format(self.payload()),
            "state": SQL("t.{}::text").format(self.state),
            "owner": self.owner(),
            "fence": self.fence(),
            "attempts": attempts,
            "limit": limit,
        }
        for name, column in self.claim_extras().items():
            fields[name] = SQL("t.{}{}").format(Identifier(column), SQL("::text" if name == "policy" else ""))
        return named(fields)

    def claim_extras(self) -> dict[str, str]:
        """What a claim knows beyond the common fields: how its row waits, whose it is, and its trace."""
        tenant = self.ledger.tenant
        maybe = {"policy": self.ledger.policy, "tenant": tenant and tenant.name, "trace": self.ledger.trace}
        return {name: column for name, column in maybe.items() if column}

    def guard(self) -> Composable:
        """What proves that the row is still the claim's."""
        if self.ledger.owner is None:
            return SQL("true")  # the lock that the transaction holds
        owner = SQL("t.{} is not distinct from m.owner").format(Identifier(self.ledger.owner))
        if self.ledger.fence is None:
            return owner
        return SQL("t.{} = m.fence and {}").format(Identifier(self.ledger.fence), owner)

    def guard_types(self) -> dict[str, str]:
        if self.ledger.owner is None:
            return {}
        return {"owner": "text"} | ({"fence": "int8"} if self.ledger.fence else {})

    def told_columns(self) -> tuple[str, ...]:
        """What a move answers with: the key, and what the events tell of the row."""
        ledger = self.ledger
        if ledger.journal is None:
            return (ledger.key.column,)
        maybe = (
            ledger.key.column,
            ledger.attempts and ledger.attempts.column,
            ledger.fence,
            ledger.due and ledger.due.column,
            ledger.times.updated,
        )
        return tuple(name for name in maybe if name)

    def whose(self) -> dict[str, str]:
        """What the first event of a row tells for good: what it is, and whose."""
        tenant = self.ledger.tenant
        maybe = {"kind": self.ledger.kind, "tenant": tenant and tenant.name}
        return {name: column for name, column in maybe.items() if column}

    def facts(self, verb: str, *more: Composable, due: bool) -> Composable:
        """What every event tells: the names and values of a JSON object."""
        ledger = self.ledger
        facts: list[Composable] = [SQL("'verb', {}::text").format(Literal(verb))]
        if ledger.attempts:
            facts.append(SQL("'attempt', t.{}").format(Identifier(ledger.attempts.column)))
        if ledger.fence:
            facts.append(SQL("'fence', t.{}").format(Identifier(ledger.fence)))
        if verb in ("enqueue", *PERSONAL):  # who asked; where nobody is named, who is logged in
            facts.append(SQL("'by', session_user::text"))
        if verb == "enqueue":
            facts += [SQL("{}, t.{}").format(Literal(n), Identifier(c)) for n, c in self.whose().items()]
        if due and ledger.due:
            facts.append(SQL("'run_at', t.{}").format(Identifier(ledger.due.column)))
        return COMMA.join((*facts, *more))

    def same(self, one: LiteralString, other: LiteralString) -> Composable:
        """That two rows are one piece of work, and `other` is in a state in which it must be alone."""
        rule = self.ledger.idempotency
        assert rule
        names = (*rule.scope, rule.column)
        alike = (SQL("{1}{0} = {2}{0}").format(Identifier(name), SQL(other), SQL(one)) for name in names)
        return SQL(" and ").join((*alike, among(SQL(other) + self.state, rule.within)))

    def singly(self, alias: LiteralString) -> Composable:
        """What tells such pieces of work apart: rows that lack a part of it are all different."""
        rule = self.ledger.idempotency
        assert rule
        names = [SQL(alias) + Identifier(name) for name in (*rule.scope, rule.column)]
        lacking = SQL(" or ").join(SQL("{} is null").format(name) for name in names)
        whole = SQL("(case when {} then {} end)").format(lacking, SQL(alias) + self.key)
        return COMMA.join((*names, whole))

    def enters(self, verb: Verb, states: Iterable[str]) -> bool:
        """Whether `verb` brings rows from one of these states among those of which there may be one only."""
        rule = self.ledger.idempotency
        if rule is None or self.ledger.to(verb) not in rule.within:
            return False
        return any(state not in rule.within for state in states)

    def journal_names(self) -> dict[str, Composable]:
        journal = self.ledger.journal
        assert journal
        names = {name: Identifier(getattr(journal, name)) for name in ("row", "at", "prev", "next", "detail")}
        return {"journal": Identifier(*journal.table.split(".")), "key": self.key, **names}

    def arrays(self, types: Mapping[str, str]) -> Composable:
        """unnest's arguments: one array parameter a column, in their order. Binary: text is slow to write."""
        return COMMA.join(
            SQL("{}::{}[]").format(SQL(safe(f"%({array(place)})b")), SQL(safe(kind)))
            for place, kind in enumerate(types.values())
        )

    def render(self, template: LiteralString, **holes: Composable) -> bytes:
        fixed = {"table": self.table, "key": self.key, "state": self.state, "clock": self.clock}
        return SQL(template).format(**(fixed | holes)).as_bytes(None)


def array(place: int) -> str:
    """The name of the parameter that fills the column in this place of an unnest."""
    return f"a{place}"


def lane_name(lane: Lane) -> Identifier:
    return Identifier(f"lane_{lane.name}")


def item(name: str) -> Composable:
    return SQL("i.{}").format(Identifier(name))


def safe(word: str) -> LiteralString:
    """A type or parameter name that the declaration has checked."""
    return word  # pyright: ignore[reportReturnType]


def named(fields: Mapping[str, Composable]) -> Composable:
    return COMMA.join(SQL("{} as {}").format(value, Identifier(name)) for name, value in fields.items())


def literals(words: Iterable[str]) -> Composable:
    return COMMA.join(Literal(word) for word in words)


def among(column: Composable, words: Iterable[str]) -> Composable:
    """That a column has one of these words, as literals."""
    listed = tuple(words)
    if not listed:
        return SQL("false")
    if len(listed) == 1:
        return SQL("{} = {}").format(column, Literal(listed[0]))
    return SQL("{} in ({})").format(column, literals(listed))


def standing(ledger: Ledger, lane: Lane, alias: LiteralString = "") -> list[Composable]:
    """The conditions of a lane that do not change with time: those of its claim, and of its index."""

    def column(name: str) -> Composable:
        return SQL(alias) + Identifier(name)

    return [
        among(column(ledger.state), lane.states or ledger.lifecycle.claimable),
        *(SQL("{} is null").format(column(name)) for name in lane.empty),
        *(SQL("{} is not null").format(column(name)) for name in lane.filled),
    ]


def order_by(what: Composable, order: Order) -> Composable:
    direction = SQL(" desc") if order.descending else SQL("")
    return what + direction + (SQL(" nulls last") if order.nulls_last else SQL(""))
