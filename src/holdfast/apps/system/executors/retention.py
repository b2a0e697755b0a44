"""Retention: finished rows of a ledger that are older than a limit are deleted, in batches.

Never an unfinished row, and never one that waits for a person unless that is asked for. A row to which others
refer, by a foreign key that does not cascade or by what the ledger's app says, stays: what was left is told.
Events of a journal go with their rows by cascade. A removed row frees its idempotency key.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from psycopg.errors import ForeignKeyViolation, LockNotAvailable
from psycopg.sql import SQL, Composable, Composed

from holdfast.apps.system.bench import Bench, Connection, Run
from holdfast.apps.system.executors import flush_queries
from holdfast.apps.system.executors import retention_queries as queries
from holdfast.apps.system.parameters import Retention
from holdfast.apps.system.registry import Declared, Definition, Reference
from holdfast.apps.system.source import name
from holdfast.engine.ledger import Ledger
from holdfast.engine.words import safe
from holdfast.errors import Conflict, InvalidInput

LONGEST = 1e11  # seconds, which is before any calendar of the database begins
TRIES = 3  # at a batch of which others have just begun to refer to a row
MOST = 1_000_000  # rows that are counted of those that stay


@dataclass(frozen=True, kw_only=True)
class Old:
    """A ledger as it is now, and how its old rows are told: `keeps` is what makes one stay."""

    declared: Declared
    definition: Definition
    states: tuple[str, ...]
    finished: Composed
    keeps: tuple[Composable, ...]

    @property
    def table(self) -> Composable:
        return name(self.definition.schema, self.definition.name)

    def render(self, template: Any, *conditions: Composable) -> Composed:
        """A statement over the rows that meet all conditions."""
        key = _ledger(self.declared).key
        joined = SQL(" and ").join([self.finished, *conditions])
        return SQL(template).format(
            table=self.table, key=name(key.column), type=SQL(safe(key.type)), conditions=joined
        )


def target(params: Retention) -> str:
    """The ledger, of which there is one maintainer at a time."""
    return params.ledger


async def check(params: Retention, bench: Bench) -> None:
    """Refuses what is no ledger, and one whose table is not there or lacks what tells its age."""
    declared = bench.registry.ledger(params.ledger)
    async with bench.database.connection() as conn:
        await old_of(conn, bench, declared, dead=params.include_dead_letter)


async def run(params: Retention, run: Run) -> str:
    """Deletes what was finished before the limit; answers how many rows that were."""
    declared = run.bench.registry.ledger(params.ledger)
    gone = 0
    conn = await run.bench.database.connect("retention")
    try:
        old = await old_of(conn, run.bench, declared, dead=params.include_dead_letter)
        given = await _given(conn, old, params)
        while True:
            picked, deleted = await _batch(conn, run.bench, old, given)
            gone += deleted
            if picked < params.batch_size:
                break
            await run.progress(gone, None, "rows")
        left = await _staying(conn, old, given)
    finally:
        await asyncio.shield(conn.close())
    rows = f"{gone} row{'' if gone == 1 else 's'}"
    return f"{rows}; {left} stay, as others refer to them" if left else rows


async def _given(conn: Connection, old: Old, params: Retention) -> dict[str, Any]:
    ledger = _ledger(old.declared)
    seconds = min(params.retention_hours * 3600.0, LONGEST)
    cursor = await conn.execute(queries.LIMIT[ledger.times.kind], {"seconds": seconds})
    ((limit,),) = await cursor.fetchall()
    return {
        "limit": limit,
        "states": list(old.states),
        "claimable": [state for state in ledger.ends if state in ledger.lifecycle.claimable],
        "batch": params.batch_size,
        "most": MOST,
    }


async def _batch(conn: Connection, bench: Bench, old: Old, given: dict[str, Any]) -> tuple[int, int]:
    """Deletes one batch; answers how many rows were found, and how many of them went."""
    pick, delete = (old.render(template, *old.keeps) for template in (queries.PICK, queries.DELETE))
    for left in reversed(range(TRIES)):
        try:
            async with conn.transaction():
                await conn.execute(queries.PATIENT)
                await conn.execute(SQL(queries.HOLD).format(table=old.table))
                await bench.registry.must_be(conn, old.declared, old.definition)
                keys = [key for (key,) in await (await conn.execute(pick, given)).fetchall()]
                return len(keys), (await conn.execute(delete, given | {"keys": keys})).rowcount
        except ForeignKeyViolation as error:
            if not left:
                message = f"its rows are referred to: {error.diag.message_primary}"
                raise Conflict(what=old.declared.table, message=message) from None
        except LockNotAvailable:
            if not left:
                raise
    raise AssertionError("the last try answers or raises")


async def _staying(conn: Connection, old: Old, given: dict[str, Any]) -> int:
    """How many old rows something keeps; others refer to them."""
    if not old.keeps:
        return 0
    kept = SQL("not ({})").format(SQL(" and ").join(old.keeps))
    async with conn.transaction():
        await conn.execute(queries.PATIENT)
        ((count,),) = await (await conn.execute(old.render(queries.STAYING, kept), given)).fetchall()
    return count


async def old_of(conn: Connection, bench: Bench, declared: Declared, *, dead: bool) -> Old:
    """How the old rows of a ledger are told, by what the catalogue says now; `NotFound` without a table."""
    ledger, registry = _ledger(declared), bench.registry
    definition = await registry.fresh(conn, declared)
    states = tuple(state for state in ledger.ends if dead or state not in declared.dead)
    if not states:
        message = f"every end of {declared.name} waits for a person: say include_dead_letter to delete those"
        raise InvalidInput(field="include_dead_letter", message=message)
    times = [one for one in (ledger.times.finished, ledger.times.updated, ledger.times.created) if one]
    registry.must_have(declared, definition, (*declared.key, ledger.state, *times))
    finished = SQL(queries.OLD).format(
        state=name(ledger.state),
        state_type=SQL(safe(ledger.state_type)),
        times=SQL(", ").join(SQL("t.{}").format(name(one)) for one in times),
        time_type=SQL(flush_queries.TIME_TYPE[ledger.times.kind]),
    )
    references = await registry.references(conn, definition)
    keeps = [_unreferred(one) for one in references if not one.cascades]
    cursor = await conn.execute(flush_queries.OWN_REFERENCES, {"oid": definition.oid})
    for columns, keys in await cursor.fetchall():
        own = Reference(
            name="itself",
            schema=definition.schema,
            table=definition.name,
            columns=tuple(columns),
            keys=tuple(keys),
            cascades=False,
        )
        keeps.append(_unreferred(own))
    if declared.where:
        keeps.append(SQL("({})").format(SQL(declared.where)))
    return Old(
        declared=declared,
        definition=definition,
        states=states,
        finished=SQL(" and ").join([finished, *ended(ledger)]),
        keeps=tuple(keeps),
    )


def _unreferred(one: Reference) -> Composed:
    """That no row of the referring table names the row t."""
    return SQL(flush_queries.NOT_REFERRED).format(
        table=name(one.schema, one.table),
        columns=SQL(", ").join(SQL("r.{}").format(name(column)) for column in one.columns),
        keys=SQL(", ").join(SQL("t.{}").format(name(column)) for column in one.keys),
    )


def ended(ledger: Ledger) -> list[Composed]:
    """Conditions under which a row in one of the ends is not claimed again by itself."""
    again = {state for state in ledger.ends if state in ledger.lifecycle.claimable}
    return [
        SQL(queries.NOT_DUE).format(
            state=name(ledger.state),
            state_type=SQL(safe(ledger.state_type)),
            lane=SQL(" and ").join(
                [
                    *(SQL(queries.EMPTY).format(column=name(column)) for column in lane.empty),
                    *(SQL(queries.FILLED).format(column=name(column)) for column in lane.filled),
                    SQL("true"),
                ]
            ),
        )
        for lane in ledger.lanes
        if again & set(lane.states or ledger.lifecycle.claimable)
    ]


def _ledger(declared: Declared) -> Ledger:
    assert declared.ledger is not None
    return declared.ledger
