"""How rows move, as SQL: claims by their lanes, and the verbs about rows that are held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects, sql
from holdfast.engine.lifecycle import FENCED, PERSONAL, Edge, Verb
from holdfast.engine.roles import JsonError, Lane, error_columns
from holdfast.engine.words import COMMA, LATER, Words, lane_name, literals, order_by, standing


class Moves(Words):
    """Claims and moves. Each writes the events of what it moves, where the ledger has a journal."""

    @cached_property
    def claim(self) -> bytes:
        ledger = self.ledger
        ranks = [Identifier(f"rank_{place}") for place in range(len(ledger.lanes[0].order))]
        rank = zip(ranks, ledger.lanes[0].orders, strict=True)
        return self.render(
            sql.CLAIM,
            lanes=SQL(",\n").join(self.lane(lane) for lane in ledger.lanes),
            union=SQL(" union all ").join(SQL(sql.PICKS).format(lane_name(lane)) for lane in ledger.lanes),
            rank=COMMA.join(order_by(name, order) for name, order in rank),
            sets=effects.sets(ledger, "claim"),
            returning=COMMA.join(effects.column_of(name) for name in self.claim_columns()),
            journal=self._journal("claim", ledger.lifecycle.of("claim"), SQL("picked")),
            answer=self.answer(),
        )

    def lane(self, lane: Lane) -> Composable:
        """One way into the claimable rows, as the CTE that picks and locks them."""
        ledger = self.ledger
        ranks = (
            SQL("{} as {}").format(effects.column_of(order.column), Identifier(f"rank_{place}"))
            for place, order in enumerate(lane.orders)
        )
        order = (order_by(effects.column_of(order.column), order) for order in lane.orders)
        return SQL(sql.LANE_BY_QUEUE if ledger.queue else sql.LANE).format(
            name=lane_name(lane),
            key=self.key,
            state=self.state,
            table=self.table,
            queue=Identifier(ledger.queue or ""),
            ranks=COMMA.join(ranks),
            conditions=SQL(" and ").join(self._lane_conditions(lane)),
            order=COMMA.join(order),
        )

    def _lane_conditions(self, lane: Lane) -> Iterable[Composable]:
        yield from standing(self.ledger, lane, "t.")
        if lane.due:
            yield SQL("t.{} <= (select now from clock)").format(Identifier(lane.due))
        if self.ledger.kind:
            yield SQL("(%(kinds)s::text[] is null or t.{} = any(%(kinds)s::text[]))").format(
                Identifier(self.ledger.kind)
            )

    def claim_columns(self) -> tuple[str, ...]:
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
        return self.render(
            sql.MOVE if len(states) == 1 else sql.MOVE_LOCKED,
            arrays=self.arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            prev=SQL("{}::text").format(Literal(states[0])),
            due=later if "delay" in types else SQL("clock.now"),
            guard=guard or SQL("true"),
            states=literals(states),
            sets=effects.sets(ledger, verb),
            returning=COMMA.join(effects.column_of(name) for name in self.told_columns()),
            journal=self._journal(verb, ledger.lifecycle.of(verb), SQL("moves")),
        )

    def move_types(self, verb: Verb, *, fenced: bool) -> Mapping[str, str]:
        """The arrays that a move takes, and the types of their elements."""
        types = {"key": self.ledger.key.type}
        if fenced:
            types |= self.guard_types()
        if verb in effects.LATER and self.ledger.due:
            types["delay"] = "float8"
        if effects.writes_error(self.ledger, verb):
            kind = "jsonb" if isinstance(self.ledger.errors, JsonError) else "text"
            types |= {f"error_{n}": kind for n, _ in enumerate(error_columns(self.ledger.errors))}
        if self.ledger.journal:
            types["detail"] = "jsonb"
        return types

    @cached_property
    def progress(self) -> bytes | None:
        """An event that leaves the row where it is; None where there is no journal to tell it to."""
        if self.ledger.journal is None:
            return None
        running = self.ledger.lifecycle.running
        types = {"key": self.ledger.key.type, **self.guard_types(), "detail": "jsonb"}
        return self.render(
            sql.MOVE,
            arrays=self.arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            prev=SQL("{}::text").format(Literal(running)),
            due=SQL("clock.now"),
            guard=self.guard(),
            states=literals((running,)),
            sets=effects.touch(self.ledger),
            returning=COMMA.join(effects.column_of(name) for name in self.told_columns()),
            journal=self._journal("progress", (Edge("start", frm=(running,), to=running),), SQL("moves")),
        )

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
            facts=self.facts(verb, due=verb in effects.LATER),
            source=source,
            extra=SQL("%(detail)s::jsonb") if verb == "claim" else SQL("m.detail"),
            **self.journal_names(),
        )
