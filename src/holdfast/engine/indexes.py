"""Which index serves what: the key, the idempotency rule, every lane, and the rows that workers hold.

The planner is asked, not imitated: it plans each search as if the table were large. An index serves a search
when the plan neither sorts nor filters nor reads the table from end to end, or when the index that the search
needs is there although the planner prefers another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from psycopg import Error
from psycopg.errors import InvalidColumnReference
from psycopg.sql import SQL, Composable, Identifier

from holdfast.engine import queries
from holdfast.engine.ledger import Ledger
from holdfast.engine.needs import NOW, Finding, missing, raw, statement
from holdfast.engine.queries import Connection, LiveTable, words
from holdfast.engine.roles import Lane, Order
from holdfast.engine.words import COMMA, Words, among, order_by, standing

AND = SQL(" and ")
NO_ROW = "no row can be there"


@dataclass(frozen=True)
class LanePlan:
    """How PostgreSQL would walk a lane, in one line. `served`: by an index alone."""

    lane: str
    plan: str
    served: bool


class Indexes:
    """The indexes of one ledger's table, live and proposed."""

    def __init__(self, conn: Connection, ledger: Ledger, live: LiveTable) -> None:
        self.conn = conn
        self.ledger = ledger
        self.live = live
        self.table = Identifier(*ledger.table.split("."))
        self.state = Identifier(ledger.state)
        self.lanes: list[LanePlan] = []
        self.taken = set(live.taken)
        # Building one on a partitioned table cannot be done concurrently.
        partitioned = live.found is not None and live.found.kind == "p"
        self.concurrently = SQL("" if partitioned else " concurrently")

    async def findings(self) -> AsyncIterator[Finding]:
        for finding in (*self._broken(), *self._key()):
            yield finding
        async for finding in self._rule():
            yield finding
        for lane in self.ledger.lanes:
            for by_kind in (False, True) if self.ledger.kind_indexed else (False,):
                async for finding in self._lane(lane, by_kind):
                    yield finding
        async for finding in self._held():
            yield finding

    # -- one row, one key ----------------------------------------------------------------------------

    def _broken(self) -> Iterator[Finding]:
        for index in self.live.indexes:
            if not index.valid and self.live.found:
                name = Identifier(self.live.found.schema, index.name)
                yield Finding(
                    severity="warning",
                    what=f"the index {index.name} is invalid: building it failed, or still goes on",
                    promise_lost="it costs every write and serves no search",
                    remedy_sql=statement(queries.DROP_INDEX, concurrently=self.concurrently, index=name),
                )

    def _key(self) -> Iterator[Finding]:
        key = self.ledger.key.column
        if not any(
            index.valid and index.unique and list(index.columns) == [key] for index in self.live.indexes
        ):
            yield missing(
                f"no unique index on {key}, the key",
                "two rows may have one key, and every move reads the whole table",
                self._create([Identifier(key)], (key, "key"), unique=True),
            )

    async def _rule(self) -> AsyncIterator[Finding]:
        """The unique index of the idempotency rule: the insert itself tells whether one fits."""
        rule = self.ledger.idempotency
        if rule is None:
            return
        names = (*rule.scope, rule.column)
        conditions = [SQL("{} is not null").format(Identifier(rule.column))] if rule.partial else []
        conditions += [among(self.state, rule.within)] if rule.within else []
        remedy = self._create(
            [Identifier(name) for name in names], (rule.column, "key"), conditions, unique=True
        )
        verdict = await self._arbiter(names, conditions) if self._has(names) else False
        if verdict is False:
            yield missing(
                f"no unique index on ({', '.join(names)}), which the idempotency rule needs; where rows"
                " share a key already, one of them must give it up first",
                "every enqueue fails, with a key or without",
                remedy,
            )
        wide = [one for one in self.live.indexes if one.unique and set(one.columns) == set(names)]
        if rule.within and wide:
            yield missing(
                f"the index {wide[0].name} is unique over all states, and the rule over some only: drop it",
                "an enqueue whose key is used by a row in another state never returns",
                None,
            )

    async def _arbiter(self, names: Iterable[str], conditions: list[Composable]) -> bool | None:
        columns = [Identifier(name) for name in names]
        query = SQL(queries.ARBITER).format(
            table=self.table,
            columns=COMMA.join(columns),
            nulls=COMMA.join(SQL("null") for _ in columns),
            predicate=_where(conditions),
        )
        try:
            async with self.conn.transaction():
                await self.conn.execute(query)
        except InvalidColumnReference:
            return False
        except Error:
            return None
        return True

    # -- searches ------------------------------------------------------------------------------------

    async def _lane(self, lane: Lane, by_kind: bool) -> AsyncIterator[Finding]:
        gone = sorted({name for name in self._lane_columns(lane, by_kind) if name not in self.live.columns})
        name = f"{lane.name} by {self.ledger.kind}" if by_kind else lane.name
        line, served, judged = f"cannot be planned without {', '.join(gone)}", False, True
        if not gone:
            try:
                line, served = await self._lane_plan(lane, by_kind)
                judged = line != NO_ROW
            except Error as error:
                line, judged = f"cannot be planned: {error.diag.message_primary or error}", False
        keys = self._lane_index(lane, by_kind)
        if judged and not served and not gone:
            own = await self._fitting(keys, standing(self.ledger, lane))
            line, served = (f"{line}, although {own} is there", True) if own else (line, False)
        self.lanes.append(LanePlan(name, line, served))
        if judged and not served:
            yield missing(
                f"no index serves the lane {name}: {line}",
                "rows of other kinds slow down claims" if by_kind else "claims slow down as the table grows",
                self._create(map(_ordered, keys), tuple(name.split()), standing(self.ledger, lane)),
            )

    async def _lane_plan(self, lane: Lane, by_kind: bool) -> tuple[str, bool]:
        """The plan of a lane's own select."""
        conditions, orders = standing(self.ledger, lane), [_ordered(order) for order in lane.orders]
        if by_kind:
            kind = self._kind()
            conditions.append(SQL("t.{0} between 'x' and 'x'").format(kind))
            orders.insert(0, kind)
        if self.ledger.queue and not self.ledger.queue_null:
            conditions.append(SQL("t.{} = 'default'").format(Identifier(self.ledger.queue)))
        if lane.due:
            now = SQL(NOW[self.ledger.times.kind])
            conditions.append(SQL("t.{} <= (select {})").format(Identifier(lane.due), now))
        order = SQL(" order by {}").format(COMMA.join(orders))
        ranks = [order.column for order in lane.orders]
        leaders = {self.ledger.state, *lane.empty, *lane.filled} - {*ranks, lane.due}
        return await self._plan(conditions, order, sorted(leaders), ranks[0])

    async def _plan(
        self,
        conditions: list[Composable],
        order: Composable,
        leaders: Iterable[str],
        first: str | None = None,
    ) -> tuple[str, bool]:
        """The plan of a search; `leaders` must stand before `first` where an index has them as columns."""
        query = SQL(queries.PLAN).format(table=self.table, conditions=AND.join(conditions), order=order)
        async with self.conn.transaction():
            ((answer,),) = await words(self.conn, query)
        line, served, searched = read_plan(answer["Plan"])
        for index in self.live.indexes:
            columns = list(index.columns)
            end = columns.index(first) if first in columns else 1
            if late := [name for name in leaders if index.name in searched and name in columns[end:]]:
                return f"{line}, which is not led by {', '.join(late)}", False
        return line, served

    def _kind(self) -> Identifier:
        return Identifier(self.ledger.kind or "")

    def _lane_columns(self, lane: Lane, by_kind: bool) -> list[str]:
        """The columns without which the index of a lane cannot be."""
        kind = self.ledger.kind if by_kind else None
        maybe = (self.ledger.state, self.ledger.queue, kind, *lane.empty, *lane.filled, lane.due)
        return [*(name for name in maybe if name), *(order.column for order in lane.orders)]

    def _lane_index(self, lane: Lane, by_kind: bool) -> list[Order]:
        """The keys of the index that a lane needs."""
        led = self.ledger.queue and not self.ledger.queue_null
        keys = [Order(self.ledger.queue or "")] if led else []
        keys += [Order(self.ledger.kind or "")] if by_kind else []
        keys += lane.orders
        if lane.due and lane.due not in [order.column for order in lane.orders]:
            keys.append(Order(lane.due))
        return keys

    async def _fitting(self, keys: list[Order], conditions: list[Composable]) -> str | None:
        """Return the name of an index that begins with these keys and has these rows, and no others.

        On a small table the planner may prefer another index to the one that was made for a search.
        """
        wanted = [(key.column, 0 if not key.descending else 1 if key.nulls_last else 3) for key in keys]
        rows = AND.join(conditions)
        for index in self.live.indexes:
            found = list(zip(index.columns, index.options, strict=True))[: len(wanted)]
            if index.valid and found == wanted and index.predicate:
                indexed = raw(index.predicate)
                if await self._implies(rows, indexed) and await self._implies(indexed, rows):
                    return index.name
        return None

    async def _implies(self, condition: Composable, other: Composable) -> bool:
        """Whether the planner can prove that `other` holds wherever `condition` does."""
        query = SQL(queries.COUNTEREXAMPLE).format(table=self.table, condition=condition, other=other)
        async with self.conn.transaction(force_rollback=True):
            await self.conn.execute(queries.CONSULT_CONSTRAINTS)
            ((answer,),) = await words(self.conn, query)
        return read_plan(answer["Plan"])[0] == NO_ROW

    async def _held(self) -> AsyncIterator[Finding]:
        """Recovery looks for the rows that some workers hold: few among very many."""
        owner = self.ledger.owner
        if owner is None:
            return
        held = among(self.state, self.ledger.lifecycle.held)
        if self._has((owner, self.ledger.state)):
            try:
                line, served = await self._plan([held], SQL(""), [self.ledger.state])
                # Where a row that has ended names nobody, an index on the owner alone is as good.
                if not served and not self.ledger.owner_kept:
                    mine = SQL("{} = 'x'").format(Words(self.ledger).holder())
                    line, served = await self._plan([mine], SQL(""), [owner])
                served = served or await self._fitting([Order(owner)], [held]) is not None
            except Error:
                return
        else:
            line, served = "a column is not there", False
        if not served:
            yield Finding(
                severity="warning",
                what=f"no index leads to the rows that workers hold: {line}",
                promise_lost="giving back the work of a dead worker reads the whole table",
                remedy_sql=self._create([Identifier(owner)], ("held",), [held]),
            )

    # -- proposals -----------------------------------------------------------------------------------

    def _has(self, names: Iterable[str]) -> bool:
        return all(name in self.live.columns for name in names)

    def _create(
        self,
        columns: Iterable[Composable],
        name: tuple[str, ...],
        conditions: list[Composable] | None = None,
        *,
        unique: bool = False,
    ) -> str:
        return statement(
            queries.CREATE_INDEX,
            unique=SQL("unique " if unique else ""),
            concurrently=self.concurrently,
            name=Identifier(self._free_name(name)),
            table=self.table,
            columns=COMMA.join(columns),
            predicate=_where(conditions or []),
        )

    def _free_name(self, words: tuple[str, ...]) -> str:
        """A name that no table or index of the schema has, within PostgreSQL's 63 bytes."""
        stem = "_".join(("idx", self.ledger.table.split(".")[-1], *words))
        names = (stem.encode()[:60].decode(errors="ignore") + end for end in ("", *map(str, range(2, 100))))
        name = next(name for name in names if name not in self.taken)
        self.taken.add(name)
        return name


def read_plan(plan: dict[str, Any]) -> tuple[str, bool, set[str]]:
    """A plan as one line, whether an index alone answers it, and the indexes that are searched by a value."""
    found = list(_nodes(plan))
    scans = [node for node in found if "Relation Name" in node]
    sorts = [node["Node Type"] for node in found if node["Node Type"].endswith("Sort")]
    served = bool(scans) and not sorts and all("Index Name" in n and "Filter" not in n for n in scans)
    line = ", ".join(dict.fromkeys(map(_scan, scans)))
    searched = {node.get("Index Name", "") for node in scans if "Index Cond" in node}
    return " of ".join([*sorts, line]) if scans else NO_ROW, served, searched


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _scan(node: dict[str, Any]) -> str:
    if "Index Name" not in node:
        return f"{node['Node Type']} on {node['Relation Name']}"
    filtered = f", filtered by {node['Filter']}" if "Filter" in node else ""
    return f"{node['Node Type']} using {node['Index Name']} on {node['Relation Name']}{filtered}"


def _where(conditions: list[Composable]) -> Composable:
    return SQL(" where {}").format(AND.join(conditions)) if conditions else SQL("")


def _ordered(order: Order) -> Composable:
    return order_by(Identifier(order.column), order)
