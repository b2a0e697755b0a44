"""Fills the holes of `sql` for one ledger. Pure: a declaration goes in, bytes that PostgreSQL runs come out.

Statements whose columns depend on the call (enqueue, find) are filled once for each shape and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from typing import LiteralString

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects, sql
from holdfast.engine.ledger import (
    CodeError,
    JsonError,
    Lane,
    Ledger,
    Order,
    TextError,
    TraceError,
    error_columns,
)
from holdfast.engine.lifecycle import FENCED, PERSONAL, Edge, Verb

COMMA = SQL(", ")

# What an item has beside its columns. The + keeps these names apart from any column of a user's table.
PAYLOAD, DELAY, RUN_AT, NOW = "+payload", "+delay", "+run_at", "+now"

CLOCK: Mapping[str, LiteralString] = {
    "timestamptz": "coalesce(%(now)s::timestamptz, clock_timestamp())",
    "timestamp": "coalesce(%(now)s::timestamptz, clock_timestamp()) at time zone 'UTC'",
    "epoch_ms": "(extract(epoch from coalesce(%(now)s::timestamptz, clock_timestamp())) * 1000)::bigint",
}
LATER: Mapping[str, LiteralString] = {
    "timestamptz": "{} + make_interval(secs => {})",
    "timestamp": "{} + make_interval(secs => {})",
    "epoch_ms": "{} + ({} * 1000)::bigint",
}
FROM_MOMENT: Mapping[str, LiteralString] = {
    "timestamptz": "{}",
    "timestamp": "{} at time zone 'UTC'",
    "epoch_ms": "(extract(epoch from {}) * 1000)::bigint",
}
TO_MOMENT: Mapping[str, LiteralString] = {
    "timestamptz": "{}",
    "timestamp": "{} at time zone 'UTC'",
    "epoch_ms": "to_timestamp({} / 1000.0)",
}


class Statements:
    """The SQL of one ledger, ready to be sent. Values are always parameters."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.table = Identifier(*ledger.table.split("."))
        self.key = Identifier(ledger.key.column)
        self.state = Identifier(ledger.state)
        self.clock = SQL(CLOCK[ledger.times.kind])
        self.enqueue = cache(self._enqueue)
        self.existing = cache(self._existing)
        self.copy = cache(self._copy)
        self.rows = cache(self._rows)
        self.keys = cache(self._keys)
        self.counts = cache(self._counts)

    # -- what goes in --------------------------------------------------------------------------------

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
        return self._render(
            sql.ENQUEUE,
            arrays=self._arrays({name: self.types()[name] for name in shape}),
            names=COMMA.join(Identifier(name) for name in shape),
            columns=COMMA.join(Identifier(name) for name in columns),
            values=COMMA.join(columns.values()),
            conflict=self._conflict(),
            returning=self._identity(),
            journal=self._journal_new(),
            channel=Literal(ledger.channel),
        )

    def _values(self, shape: tuple[str, ...], payload: tuple[str, ...]) -> Iterable[tuple[str, Composable]]:
        ledger, now, body = self.ledger, _item(NOW), _item(PAYLOAD)
        for name in shape:
            if name not in (PAYLOAD, DELAY, RUN_AT):
                yield name, _item(name)
        if isinstance(ledger.payload, str) and PAYLOAD in shape:
            yield ledger.payload, body
        for name in payload:
            spread = SQL("(jsonb_populate_record(null::{}, {})).{}")
            yield name, spread.format(self.table, body, Identifier(name))
        if ledger.due and DELAY in shape:
            yield ledger.due.column, SQL(LATER[ledger.times.kind]).format(now, _item(DELAY))
        if ledger.due and RUN_AT in shape:
            yield ledger.due.column, SQL(FROM_MOMENT[ledger.times.kind]).format(_item(RUN_AT))
        yield ledger.state, SQL("{}::{}").format(Literal(ledger.lifecycle.initial), SQL(self._state_type()))
        yield ledger.times.created, now
        if ledger.times.updated:
            yield ledger.times.updated, now

    def _state_type(self) -> LiteralString:
        return self.ledger.state_type  # pyright: ignore[reportReturnType]  checked by the declaration

    def _identity(self) -> Composable:
        """What tells an enqueued row from the others: its key and the columns of its idempotency rule."""
        rule = self.ledger.idempotency
        columns = (*rule.scope, rule.column) if rule else ()
        named = [SQL("t.{} as key").format(self.key)]
        if self.ledger.journal:
            named += [effects.column_of(name) for name in self._told_columns()]
        if rule:
            named += [
                SQL("t.{}::text as {}").format(Identifier(name), Identifier(f"unique_{place}"))
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
            conditions.append(SQL("{}{} in ({})").format(alias, self.state, _literals(rule.within)))
        return conditions

    def _existing(self) -> bytes:
        rule = self.ledger.idempotency
        assert rule
        types = self.types()
        columns = (*rule.scope, rule.column)
        match = (SQL("t.{0} = i.{0}").format(Identifier(name)) for name in columns)
        return self._render(
            sql.EXISTING,
            returning=self._identity(),
            kind=self._kind(),
            arrays=self._arrays({name: types[name] for name in columns}),
            names=COMMA.join(Identifier(name) for name in columns),
            match=SQL(" and ").join(match),
            predicate=SQL(" and ").join([SQL("true"), *self._rule_conditions(SQL("t."))]),
        )

    def _copy(self, columns: tuple[str, ...]) -> bytes:
        return self._render(sql.COPY, columns=COMMA.join(Identifier(name) for name in columns))

    # -- claim ---------------------------------------------------------------------------------------

    @cached_property
    def claim(self) -> bytes:
        ledger = self.ledger
        ranks = [Identifier(f"rank_{place}") for place in range(len(ledger.lanes[0].order))]
        rank = zip(ranks, ledger.lanes[0].orders, strict=True)
        return self._render(
            sql.CLAIM,
            lanes=SQL(",\n").join(self.lane(lane) for lane in ledger.lanes),
            union=SQL(" union all ").join(
                SQL("select * from {}").format(_lane_name(lane)) for lane in ledger.lanes
            ),
            rank=COMMA.join(_order(name, order) for name, order in rank),
            sets=effects.sets(ledger, "claim"),
            returning=COMMA.join(effects.column_of(name) for name in self._claim_columns()),
            journal=self._journal("claim", ledger.lifecycle.of("claim"), SQL("picked")),
            answer=self._answer(),
        )

    def lane(self, lane: Lane) -> Composable:
        """One way into the claimable rows, as the CTE that picks and locks them."""
        ledger = self.ledger
        ranks = (
            SQL("{} as {}").format(effects.column_of(order.column), Identifier(f"rank_{place}"))
            for place, order in enumerate(lane.orders)
        )
        order = (_order(effects.column_of(order.column), order) for order in lane.orders)
        return SQL(sql.LANE_BY_QUEUE if ledger.queue else sql.LANE).format(
            name=_lane_name(lane),
            key=self.key,
            state=self.state,
            table=self.table,
            queue=Identifier(ledger.queue or ""),
            ranks=COMMA.join(ranks),
            conditions=SQL(" and ").join(self._lane_conditions(lane)),
            order=COMMA.join(order),
        )

    def _lane_conditions(self, lane: Lane) -> Iterable[Composable]:
        states = lane.states or self.ledger.lifecycle.waiting
        yield SQL("t.{} in ({})").format(self.state, _literals(states))
        for name in lane.empty:
            yield SQL("t.{} is null").format(Identifier(name))
        for name in lane.filled:
            yield SQL("t.{} is not null").format(Identifier(name))
        if lane.due:
            yield SQL("t.{} <= (select now from clock)").format(Identifier(lane.due))
        if self.ledger.kind:
            yield SQL("(%(kinds)s::text[] is null or t.{} = any(%(kinds)s::text[]))").format(
                Identifier(self.ledger.kind)
            )

    def _claim_columns(self) -> tuple[str, ...]:
        ledger = self.ledger
        payload = (ledger.payload,) if isinstance(ledger.payload, str) else ledger.payload or ()
        limit = ledger.attempts.limit if ledger.attempts else None
        maybe = (
            ledger.key.column,
            ledger.kind,
            *payload,
            ledger.state,
            ledger.owner,
            ledger.fence,
            ledger.attempts and ledger.attempts.column,
            limit if isinstance(limit, str) else None,
        )
        return tuple(name for name in maybe if name)

    def _answer(self) -> Composable:
        """The fields of a `Claimed`, from an alias t that has the row's columns."""
        ledger = self.ledger
        limit = ledger.attempts.limit if ledger.attempts else None
        fields: Mapping[str, Composable] = {
            "id": SQL("t.{}").format(self.key),
            "kind": self._kind(),
            "payload": SQL("({})::text").format(self._payload()),
            "state": SQL("t.{}::text").format(self.state),
            "owner": SQL("t.{}::text").format(Identifier(ledger.owner)),
            "fence": self._fence(),
            "attempts": effects.column_of(ledger.attempts.column) if ledger.attempts else SQL("0"),
            "limit": effects.column_of(limit) if isinstance(limit, str) else SQL("{}::int").format(limit),
        }
        return _fields(fields)

    def _kind(self) -> Composable:
        kind = self.ledger.kind
        return (
            SQL("t.{}::text").format(Identifier(kind)) if kind else SQL("{}::text").format(self.ledger.name)
        )

    def _payload(self) -> Composable:
        match self.ledger.payload:
            case None:
                return SQL("null::jsonb")
            case str(column):
                return effects.column_of(column)
            case columns:
                pairs = (SQL("{}, t.{}").format(Literal(name), Identifier(name)) for name in columns)
                return SQL("jsonb_build_object({})").format(COMMA.join(pairs))

    def _fence(self) -> Composable:
        if self.ledger.fence:
            return effects.column_of(self.ledger.fence)
        token = SQL("coalesce(substring(t.{} from '/([0-9]{{1,18}})$')::bigint, 0)")
        return token.format(Identifier(self.ledger.owner))

    # -- moves ---------------------------------------------------------------------------------------

    @cached_property
    def moves(self) -> Mapping[Verb, bytes]:
        """What a worker says about its rows: guarded by fence and owner."""
        verbs: tuple[Verb, ...] = (*FENCED, "cancel")
        return {verb: self._move(verb, self.guard()) for verb in verbs if self._held_from(verb)}

    @cached_property
    def orders(self) -> Mapping[Verb, bytes]:
        """What a person says about any row: guarded by its state."""
        lifecycle = self.ledger.lifecycle
        return {verb: self._move(verb, None) for verb in PERSONAL if lifecycle.of(verb)}

    def _held_from(self, verb: Verb) -> tuple[str, ...]:
        held = self.ledger.lifecycle.held
        return tuple(state for state in self.ledger.lifecycle.allowed(verb) if state in held)

    def _move(self, verb: Verb, guard: Composable | None) -> bytes:
        ledger = self.ledger
        states = self._held_from(verb) if guard else ledger.lifecycle.allowed(verb)
        types = self.move_types(verb, fenced=guard is not None)
        later = SQL(LATER[ledger.times.kind]).format(SQL("clock.now"), SQL("m.delay"))
        return self._render(
            sql.MOVE if len(states) == 1 else sql.MOVE_LOCKED,
            arrays=self._arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            prev=SQL("{}::text").format(Literal(states[0])),
            due=later if "delay" in types else SQL("clock.now"),
            guard=guard or SQL("true"),
            states=_literals(states),
            sets=effects.sets(ledger, verb),
            returning=COMMA.join(effects.column_of(name) for name in self._told_columns()),
            journal=self._journal(verb, ledger.lifecycle.of(verb), SQL("moves")),
        )

    def move_types(self, verb: Verb, *, fenced: bool) -> Mapping[str, str]:
        """The arrays that a move takes, and the types of their elements."""
        types = {"key": self.ledger.key.type}
        if fenced:
            types |= self._guard_types()
        if verb in effects.LATER and self.ledger.due:
            types["delay"] = "float8"
        if effects.writes_error(self.ledger, verb):
            kind = "jsonb" if isinstance(self.ledger.errors, JsonError) else "text"
            types |= {f"error_{n}": kind for n, _ in enumerate(error_columns(self.ledger.errors))}
        if self.ledger.journal:
            types["detail"] = "jsonb"
        return types

    def guard(self) -> Composable:
        """What proves that the row is still the claim's."""
        owner = SQL("t.{} is not distinct from m.owner").format(Identifier(self.ledger.owner))
        if self.ledger.fence is None:
            return owner
        return SQL("t.{} = m.fence and {}").format(Identifier(self.ledger.fence), owner)

    def _guard_types(self) -> dict[str, str]:
        return {"owner": "text"} | ({"fence": "int8"} if self.ledger.fence else {})

    @cached_property
    def progress(self) -> bytes | None:
        """An event that leaves the row where it is; None where there is no journal to tell it to."""
        if self.ledger.journal is None:
            return None
        running = self.ledger.lifecycle.running
        types = {"key": self.ledger.key.type, **self._guard_types(), "detail": "jsonb"}
        return self._render(
            sql.MOVE,
            arrays=self._arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            prev=SQL("{}::text").format(Literal(running)),
            due=SQL("clock.now"),
            guard=self.guard(),
            states=_literals((running,)),
            sets=effects.touch(self.ledger),
            returning=COMMA.join(effects.column_of(name) for name in self._told_columns()),
            journal=self._journal("progress", (Edge("start", frm=(running,), to=running),), SQL("moves")),
        )

    # -- events --------------------------------------------------------------------------------------

    def _told_columns(self) -> tuple[str, ...]:
        ledger = self.ledger
        maybe = (ledger.key.column, ledger.attempts and ledger.attempts.column, ledger.fence)
        return tuple(name for name in maybe if name)

    def _facts(self, verb: str, *, due: bool) -> Composable:
        ledger = self.ledger
        facts: list[Composable] = [SQL("'verb', {}::text").format(Literal(verb))]
        if ledger.attempts:
            facts.append(SQL("'attempt', t.{}").format(Identifier(ledger.attempts.column)))
        if ledger.fence:
            facts.append(SQL("'fence', t.{}").format(Identifier(ledger.fence)))
        if due:
            facts.append(SQL("'run_at', m.due"))
        return COMMA.join(facts)

    def _journal(self, verb: str, edges: Iterable[Edge], source: Composable) -> Composable:
        if self.ledger.journal is None:
            return SQL("")
        hops = (
            SQL("({}::text, {}, {}::text, {}::text)").format(*map(Literal, (start, step, *hop)))
            for edge in edges
            for start in edge.frm
            for step, hop in enumerate(edge.hops(start))
        )
        return SQL(sql.JOURNAL).format(
            hops=COMMA.join(hops),
            facts=self._facts(verb, due=verb in effects.LATER),
            source=source,
            extra=SQL("%(detail)s::jsonb") if verb == "claim" else SQL("m.detail"),
            **self._journal_names(),
        )

    def _journal_new(self) -> Composable:
        if self.ledger.journal is None:
            return SQL("")
        (edge,) = self.ledger.lifecycle.of("enqueue")
        hops = (
            SQL("({}, {}::text, {}::text)").format(*map(Literal, (step, *hop)))
            for step, hop in enumerate(edge.hops(None))
        )
        return SQL(sql.JOURNAL_NEW).format(
            hops=COMMA.join(hops), facts=self._facts("enqueue", due=False), **self._journal_names()
        )

    def _journal_names(self) -> dict[str, Composable]:
        journal = self.ledger.journal
        assert journal
        names = {name: Identifier(getattr(journal, name)) for name in ("row", "at", "prev", "next", "detail")}
        return {"journal": Identifier(*journal.table.split(".")), "key": self.key, **names}

    # -- leases --------------------------------------------------------------------------------------

    @cached_property
    def still_held(self) -> bytes:
        types = {"key": self.ledger.key.type, **self._guard_types()}
        lease = self.ledger.lease
        return self._render(
            sql.RENEW if lease else sql.STILL_HELD,
            arrays=self._arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            guard=self.guard(),
            states=_literals(self.ledger.lifecycle.held),
            lease=Identifier(lease.column if lease else ""),
        )

    @cached_property
    def held_by(self) -> bytes:
        return self._sweep(sql.HELD_BY)

    @cached_property
    def orphans(self) -> bytes:
        return self._sweep(sql.ORPHANS)

    @cached_property
    def expired(self) -> bytes:
        return self._sweep(sql.EXPIRED)

    def _sweep(self, template: LiteralString) -> bytes:
        ledger = self.ledger
        since = ledger.times.claimed or ledger.times.started or ledger.times.updated or ledger.times.created
        before = SQL(LATER[ledger.times.kind])
        return self._render(
            template,
            answer=self._answer(),
            states=_literals(ledger.lifecycle.held),
            owner=Identifier(ledger.owner),
            holder=self._holder(),
            since=effects.column_of(since),
            lease=Identifier(ledger.lease.column if ledger.lease else ""),
            clock_minus_orphaned=before.format(self._now(), SQL("-%(orphaned)s::float8")),
            clock_minus_nameless=before.format(self._now(), SQL("-%(nameless)s::float8")),
            clock_minus_lease=before.format(
                self._now(), Literal(-float(ledger.lease.seconds if ledger.lease else 0))
            ),
        )

    def _now(self) -> Composable:
        return SQL("(select {})").format(self.clock)

    def _holder(self) -> Composable:
        """The id of the worker that holds a row; where the owner is the fence, its first part."""
        owner = Identifier(self.ledger.owner)
        if self.ledger.fence:
            return SQL("t.{}::text").format(owner)
        return SQL("split_part(t.{}, '/', 1)").format(owner)

    # -- reading -------------------------------------------------------------------------------------

    def _rows(self, shape: tuple[str, ...]) -> bytes:
        ledger = self.ledger
        newest = (
            SQL("t.{} desc").format(Identifier(name)) for name in (ledger.times.created, ledger.key.column)
        )
        return self._render(
            sql.ROWS,
            row=self._row(),
            conditions=self._conditions(shape),
            order=COMMA.join(newest),
        )

    def _keys(self, shape: tuple[str, ...]) -> bytes:
        return self._render(sql.KEYS, conditions=self._conditions(shape))

    def _counts(self, shape: tuple[str, ...]) -> bytes:
        return self._render(sql.COUNTS, kind=self._kind(), conditions=self._conditions(shape))

    def _conditions(self, shape: tuple[str, ...]) -> Composable:
        ledger = self.ledger
        created = Identifier(ledger.times.created)
        moment = SQL(FROM_MOMENT[ledger.times.kind])
        known: Mapping[str, Composable] = {
            "id": SQL("t.{} = %(id)s").format(self.key),
            "states": SQL("t.{} = any(%(states)s::{}[])").format(self.state, SQL(self._state_type())),
            "kind": SQL("{} = %(kind)s").format(self._kind()),
            "owner": SQL("{} = %(owner)s").format(self._holder()),
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
                created, self.key, moment.format(SQL("%(before)s::timestamptz")), SQL(self._key_type())
            ),
        }
        return SQL(" and ").join([known[name] for name in shape] or [SQL("true")])

    def _key_type(self) -> LiteralString:
        return self.ledger.key.type  # pyright: ignore[reportReturnType]  checked by the declaration

    def _row(self) -> Composable:
        """The fields of a `Row`: every role by its common name, times as moments."""
        ledger, times = self.ledger, self.ledger.times
        limit = ledger.attempts.limit if ledger.attempts else None
        fields: dict[str, Composable] = {
            "id": SQL("t.{}").format(self.key),
            "kind": self._kind(),
            "state": SQL("t.{}::text").format(self.state),
            "payload": self._payload(),
            "owner": SQL("t.{}::text").format(Identifier(ledger.owner)),
            "fence": effects.column_of(ledger.fence) if ledger.fence else SQL("null::bigint"),
            "attempts": effects.column_of(ledger.attempts.column) if ledger.attempts else SQL("null::int"),
            "limit": effects.column_of(limit) if isinstance(limit, str) else SQL("{}::int").format(limit),
            "error": self._error(),
            "columns": SQL("to_jsonb(t)"),
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
        return _fields(fields)

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

    # -- rendering -----------------------------------------------------------------------------------

    def _arrays(self, types: Mapping[str, str]) -> Composable:
        """unnest's arguments: one array parameter a column, in their order."""
        return COMMA.join(
            SQL("{}::{}[]").format(SQL(_safe(f"%({array(place)})s")), SQL(_safe(kind)))
            for place, kind in enumerate(types.values())
        )

    def _render(self, template: LiteralString, **holes: Composable) -> bytes:
        fixed = {"table": self.table, "key": self.key, "state": self.state, "clock": self.clock}
        return SQL(template).format(**(fixed | holes)).as_bytes(None)


def array(place: int) -> str:
    """The name of the parameter that fills the column in this place of an unnest."""
    return f"a{place}"


def _lane_name(lane: Lane) -> Identifier:
    return Identifier(f"lane_{lane.name}")


def _item(name: str) -> Composable:
    return SQL("i.{}").format(Identifier(name))


def _safe(word: str) -> LiteralString:
    """A type or parameter name that the declaration has checked."""
    return word  # pyright: ignore[reportReturnType]


def _fields(fields: Mapping[str, Composable]) -> Composable:
    return COMMA.join(SQL("{} as {}").format(value, Identifier(name)) for name, value in fields.items())


def _literals(words: Iterable[str]) -> Composable:
    return COMMA.join(Literal(word) for word in words)


def _order(what: Composable, order: Order) -> Composable:
    direction = SQL(" desc") if order.descending else SQL("")
    return what + direction + (SQL(" nulls last") if order.nulls_last else SQL(""))
