"""How rows move, as SQL: claims by their lanes, and the verbs about rows that are held."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import LiteralString

from psycopg.sql import SQL, Composable, Identifier, Literal

from holdfast.engine import effects, sql
from holdfast.engine.lifecycle import FENCED, PERSONAL, Edge, Verb
from holdfast.engine.roles import JsonError, Lane, error_columns
from holdfast.engine.words import (
    COMMA,
    FIRST_TIME,
    LATER,
    TO_MOMENT,
    WAITED,
    Words,
    lane_name,
    literals,
    order_by,
    standing,
)


class Moves(Words):
    """Claims and moves. Each writes the events of what it moves, where the ledger has a journal."""

    @cached_property
    def claim(self) -> bytes:
        return self._claim(by_kind=False)

    @cached_property
    def claim_of_kinds(self) -> bytes:
        """The claim of a worker that leaves other kinds: rows of those must not slow it down."""
        return self._claim(by_kind=True) if self.ledger.kind_indexed else self.claim

    def _claim(self, *, by_kind: bool) -> bytes:
        ledger = self.ledger
        return self.render(
            sql.CLAIM if ledger.owner else sql.TAKE,
            lanes=SQL(",\n").join(self._lane(lane, by_kind=by_kind) for lane in ledger.lanes),
            union=SQL(" union all ").join(map(self._picks, ledger.lanes)),
            rank=self._rank(ledger.lanes[0]),
            sets=effects.sets(ledger, "claim"),
            returning=COMMA.join(map(effects.column_of, dict.fromkeys(self.claim_columns()))),
            journal=self._journal("claim", ledger.lifecycle.of("claim"), SQL("picked"))
            + self._beside("claim"),
            answer=self.answer(),
        )

    def _picks(self, lane: Lane) -> Composable:
        """What a claim takes of a lane."""
        if not self.enters("claim", lane.states or self.ledger.lifecycle.claimable):
            return SQL(sql.PICKS).format(lane_name(lane))
        return SQL(sql.PICKS_SINGLY).format(
            single=self.singly("t."),
            lane=lane_name(lane),
            table=self.table,
            key=self.key,
            rank=self._rank(lane),
        )

    def _rank(self, lane: Lane) -> Composable:
        """The order in which the rows of all lanes are taken."""
        ranks = [order_by(_rank(place), order) for place, order in enumerate(lane.orders)]
        return COMMA.join(([TURN] if self._in_turn() else []) + ranks)

    def _in_turn(self) -> bool:
        return any(lane.turn for lane in self.ledger.lanes)

    def _lane(self, lane: Lane, *, by_kind: bool) -> Composable:
        """One way into the claimable rows, as the CTE that picks and locks them."""
        return SQL(sql.LANE_BY_SEARCHES if self.ledger.queue or by_kind else sql.LANE).format(
            name=lane_name(lane),
            key=self.key,
            state=self.state,
            table=self.table,
            ranks=self._ranks(lane),
            waited=self._waited(lane),
            conditions=SQL(" and ").join((*self._lane_conditions(lane), *self._not_in_hand(lane))),
            **self._searches(lane, by_kind=by_kind),
        )

    def _searches(self, lane: Lane, *, by_kind: bool) -> dict[str, Composable]:
        """What is searched one by one, the condition of each search, and its order.

        `between` and the kind in the order mean the same as `=` alone, but only the index that is led by the
        kind has that order. With `=`, and with statistics that know of one kind, the planner takes the other
        index, and filters out every row of that kind.
        """
        searches: list[Composable] = []
        search: list[Composable] = []
        order = [order_by(effects.column_of(order.column), order) for order in lane.orders]
        if self.ledger.queue:
            searches.append(SQL("unnest(%(queues)s::text[]) as q (name)"))
            search.append(SQL("{} = q.name").format(self.queue()))
        if by_kind and self.ledger.kind:
            kind = effects.column_of(self.ledger.kind)
            searches.append(SQL("unnest(%(kinds)s::text[]) as k (name)"))
            search.append(SQL("{} between k.name and k.name").format(kind))
            order.insert(0, kind)
        return {
            "searches": COMMA.join(searches),
            "search": SQL(" and ").join(search),
            "order": COMMA.join(order),
        }

    def _ranks(self, lane: Lane) -> Composable:
        """What the rows of a lane are ordered by, under names that all lanes share."""
        ranks = [
            SQL("{} as {}").format(effects.column_of(order.column), _rank(place))
            for place, order in enumerate(lane.orders)
        ]
        turn = [SQL("{} as {}").format(lane.turn, TURN)] if self._in_turn() else []
        return COMMA.join(turn + ranks)

    @cached_property
    def head(self) -> bytes:
        """Since when the rows wait that would be claimed next."""
        lanes = self.ledger.lanes
        moment = SQL(TO_MOMENT[self.ledger.times.kind]).format(SQL("min(lane.since)"))
        since = ((lane, SQL("{} as since").format(self._since(lane))) for lane in lanes)
        form = sql.PEEK_QUEUES if self.ledger.queue else sql.PEEK
        return self.render(sql.HEAD, moment=moment, **self._peeks(form, since))

    @cached_property
    def ahead(self) -> bytes:
        """Which place a row has among those that would be claimed next."""
        lanes = self.ledger.lanes
        keys = ((lane, SQL("t.{} as key, {}").format(self.key, self._ranks(lane))) for lane in lanes)
        by_kind = self.ledger.kind_indexed
        form = sql.PEEK_BY_SEARCHES if self.ledger.queue or by_kind else sql.PEEK
        return self.render(sql.AHEAD, rank=self._rank(lanes[0]), **self._peeks(form, keys, by_kind=by_kind))

    @cached_property
    def due_kinds(self) -> bytes:
        """The kinds of the rows that would be claimed next."""
        kinds = ((lane, SQL("{} as kind").format(self.kind())) for lane in self.ledger.lanes)
        form = sql.PEEK_QUEUES if self.ledger.queue else sql.PEEK
        return self.render(sql.DUE_KINDS, **self._peeks(form, kinds))

    def _peeks(
        self, form: LiteralString, what: Iterable[tuple[Lane, Composable]], *, by_kind: bool = False
    ) -> dict[str, Composable]:
        """The lanes as a claim sees them, but without its locks: of each row, `what`."""
        lanes = self.ledger.lanes
        return {
            "lanes": SQL(",\n").join(self._peek(form, lane, told, by_kind=by_kind) for lane, told in what),
            "union": SQL(" union all ").join(SQL(sql.PICKS).format(lane_name(lane)) for lane in lanes),
        }

    def _peek(self, form: LiteralString, lane: Lane, what: Composable, *, by_kind: bool) -> Composable:
        return SQL(form).format(
            name=lane_name(lane),
            queues=Identifier(f"queues_{lane.name}"),
            standing=SQL(" and ").join(standing(self.ledger, lane, "t.")),
            table=self.table,
            queue=self.queue(),
            what=what,
            conditions=SQL(" and ").join((*self._lane_conditions(lane), *self._bounds(lane))),
            **self._searches(lane, by_kind=by_kind),
        )

    def _not_in_hand(self, lane: Lane) -> Iterable[Composable]:
        """Where a claim may take rows from a worker, it takes none from the worker that asks.

        Nor a row of an outbox about which that one could not write, however first it is.
        """
        taken = set(lane.states or self.ledger.lifecycle.claimable) & set(self.ledger.lifecycle.held)
        if taken or self.ledger.owner is None:
            yield SQL("t.{} <> all(%(in_hand)s::{}[])").format(self.key, SQL(self.key_type()))

    def _bounds(self, lane: Lane) -> Iterable[Composable]:
        """Where nothing is locked the planner forgets what the index says of NULL, and picks another one."""
        if lane.due:
            yield SQL("t.{} >= {}").format(Identifier(lane.due), SQL(FIRST_TIME[self.ledger.times.kind]))

    def _waited(self, lane: Lane) -> Composable:
        """For how many seconds a row could have been taken; what no calendar has counts as long ago."""
        return SQL(WAITED[self.ledger.times.kind]).format(self._since(lane))

    def _since(self, lane: Lane) -> Composable:
        """Since when a row of this lane can be taken."""
        times = self.ledger.times
        came = lane.due or times.updated or times.created
        return SQL("greatest(t.{}, t.{})").format(Identifier(came), Identifier(times.created))

    def _lane_conditions(self, lane: Lane) -> Iterable[Composable]:
        yield from standing(self.ledger, lane, "t.")
        if lane.due:
            yield SQL("t.{} <= (select now from clock)").format(Identifier(lane.due))
        first = self.ledger.due and self.ledger.due.first
        if first and first != lane.due:
            yield SQL("t.{} <= (select now from clock)").format(Identifier(first))
        if self.enters("claim", lane.states or self.ledger.lifecycle.claimable):
            yield SQL(sql.NO_TWIN).format(table=self.table, same=self.same("t.", "twin."))
        if self.ledger.kind and not self.ledger.kind_indexed:
            yield SQL("(%(kinds)s::text[] is null or t.{} = any(%(kinds)s::text[]))").format(
                Identifier(self.ledger.kind)
            )
        if lane.where:
            yield lane.where

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
            *self.claim_extras().values(),
            *self.told_columns(),
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
        return self._orders(SQL("true"))

    @cached_property
    def own_orders(self) -> Mapping[Verb, bytes]:
        """The same about the rows of one tenant."""
        tenant = self.ledger.tenant
        if tenant is None:
            return {}
        return self._orders(SQL("t.{} = %(tenant)s").format(Identifier(tenant.name)))

    def _orders(self, whose: Composable) -> Mapping[Verb, bytes]:
        lifecycle = self.ledger.lifecycle
        return {verb: self._move(verb, None, whose) for verb in PERSONAL if lifecycle.of(verb)}

    def _held_from(self, verb: Verb) -> tuple[str, ...]:
        lifecycle = self.ledger.lifecycle
        held = lifecycle.held if self.ledger.owner else lifecycle.claimable
        return tuple(state for state in lifecycle.allowed(verb) if state in held)

    def _beside(self, verb: Verb) -> Composable:
        """What a verb writes into tables that are not the ledger's."""
        written = self.ledger.beside.get(verb)
        return SQL(",\n") + SQL(written) if written else SQL("")

    def _move(self, verb: Verb, guard: Composable | None, whose: Composable | None = None) -> bytes:
        ledger = self.ledger
        states = self._held_from(verb) if guard else ledger.lifecycle.allowed(verb)
        types = self.move_types(verb, fenced=guard is not None)
        later = SQL(LATER[ledger.times.kind]).format(SQL("clock.now"), SQL("m.delay"))
        before = self._before(verb) if guard is None else dict[str, str]()
        allowed, singly = guard or whose or SQL("true"), SQL("")
        if guard is None and self.enters(verb, states):
            allowed += SQL(" and ") + SQL(sql.NO_TWIN).format(table=self.table, same=self.same("t.", "twin."))
            created = Identifier(ledger.times.created)
            singly = SQL(sql.SINGLY).format(
                table=self.table, key=self.key, created=created, single=self.singly("one.")
            )
        return self.render(
            sql.MOVE if guard and len(states) == 1 else sql.MOVE_LOCKED,
            arrays=self.arrays(types),
            names=COMMA.join(Identifier(name) for name in types),
            prev=SQL("{}::text").format(Literal(states[0])),
            before=SQL("").join(
                SQL(", t.{} as {}").format(Identifier(column), Identifier(f"before_{fact}"))
                for fact, column in before.items()
            ),
            due=later if "delay" in types else SQL("clock.now"),
            guard=allowed,
            singly=singly,
            states=literals(states),
            sets=effects.sets(ledger, verb),
            returning=COMMA.join(effects.column_of(name) for name in self.told_columns()),
            journal=self._journal(verb, ledger.lifecycle.of(verb), SQL("moves"), before) + self._beside(verb),
        )

    @cached_property
    def twin(self) -> bytes | None:
        """The row that stands in the way of one; None where none can."""
        rule = self.ledger.idempotency
        if rule is None or not rule.within:
            return None
        kind = Identifier(self.ledger.kind) if self.ledger.kind else None
        return self.render(
            sql.TWIN,
            kind=SQL("twin.{}::text").format(kind) if kind else Literal(self.ledger.name),
            same=self.same("t.", "twin."),
        )

    def _before(self, verb: Verb) -> Mapping[str, str]:
        """What the event of a person's order tells of the row before it: fact -> column."""
        ledger = self.ledger
        if ledger.journal is None:
            return {}
        if verb == "requeue":
            return {"attempt_before": ledger.attempts.column} if ledger.attempts else {}
        return {"worker": ledger.owner} if ledger.owner else {}

    def move_types(self, verb: Verb, *, fenced: bool) -> Mapping[str, str]:
        """The arrays that a move takes, and the types of their elements."""
        types = {"key": self.ledger.key.type}
        if fenced:
            types |= self.guard_types()
        if verb in effects.LATER and (self.ledger.due or verb in self.ledger.beside):
            types["delay"] = "float8"
        if verb == "finish" and (verb in self.ledger.beside or self.ledger.summarised):
            types["result"] = "text"
        if verb in self.ledger.beside and verb in effects.FAULTY:
            types["reason"] = "text"
        if effects.writes_error(self.ledger, verb):
            kind = "jsonb" if isinstance(self.ledger.errors, JsonError) else "text"
            types |= {f"error_{n}": kind for n, _ in enumerate(error_columns(self.ledger.errors))}
        if self.ledger.journal:
            types["detail"] = "jsonb"
        return types

    @cached_property
    def progress(self) -> bytes | None:
        """An event that leaves the row where it is; None where there is no journal to tell it to.

        Nor where the row is locked: it would wait for the end of the run that tells it.
        """
        if self.ledger.journal is None or self.ledger.owner is None:
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

    def _journal(
        self, verb: str, edges: Sequence[Edge], source: Composable, before: Mapping[str, str] | None = None
    ) -> Composable:
        if self.ledger.journal is None:
            return SQL("")
        hops = (
            SQL("({}::text, {}, {}::text, {}::text)").format(*map(Literal, (start, step, *hop)))
            for edge in edges
            for start in edge.frm
            for step, hop in enumerate(edge.hops(start))
        )
        updated = self.ledger.times.updated
        earlier = (
            SQL("{}, m.{}").format(Literal(fact), Identifier(f"before_{fact}")) for fact in before or {}
        )
        due = verb != "progress" and effects.sets_due(self.ledger, edges[0].verb)
        return SQL(sql.JOURNAL).format(
            hops=COMMA.join(hops),
            facts=self.facts(verb, *earlier, due=due),
            source=source,
            moment=effects.column_of(updated) if updated else SQL("m.now"),
            extra=SQL("%(detail)s::jsonb") if verb == "claim" else SQL("m.detail"),
            **self.journal_names(),
        )


TURN = Identifier("rank_turn")


def _rank(place: int) -> Identifier:
    return Identifier(f"rank_{place}")
