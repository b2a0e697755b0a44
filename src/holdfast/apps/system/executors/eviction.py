"""StreamEviction: rows of a stream that are older than a limit are deleted, batch after batch in one job.

Where a table is append-only its gate is opened for the transaction of a batch and no longer. Where rows
belong together, or a record has to stay true, they go together: the declaration of the stream says how.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

from psycopg.errors import ForeignKeyViolation
from psycopg.sql import SQL, Composable, Composed

from holdfast.apps.system.bench import Bench, Connection, Run
from holdfast.apps.system.executors import eviction_queries as queries
from holdfast.apps.system.executors import flush_queries, retention_queries
from holdfast.apps.system.parameters import StreamEviction
from holdfast.apps.system.registry import Declared, Definition
from holdfast.apps.system.source import name
from holdfast.errors import Conflict, InvalidInput

LONGEST = 1e11  # seconds, which is before any calendar of the database begins


@dataclass(kw_only=True)
class Stream:
    """A stream as it is now, and how far its eviction has come."""

    declared: Declared
    definition: Definition
    kind: str
    given: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def table(self) -> Composable:
        return name(self.definition.schema, self.definition.name)

    @property
    def query(self) -> Composed:
        """The statement that removes a batch."""
        declared = self.declared
        together = [name(one) for one in declared.whole or declared.key]
        time, time_type = name(declared.time or ""), SQL(flush_queries.TIME_TYPE[self.kind])
        conditions: list[Composable] = [SQL(queries.OLD).format(time=time, type=time_type)]
        if declared.where:
            conditions.append(SQL("({})").format(SQL(declared.where)))
        return SQL(queries.EVICT).format(
            table=self.table,
            time=time,
            type=time_type,
            picked=SQL(", ").join(SQL("t.{}").format(one) for one in together),
            columns=SQL(", ").join(SQL("t.{}").format(one) for one in together),
            named=SQL(", ").join(together),
            conditions=SQL(" and ").join(conditions),
        )


def target(params: StreamEviction) -> str:
    """The stream, of which there is one maintainer at a time."""
    return params.table


async def check(params: StreamEviction, bench: Bench) -> None:
    """Refuses what is no stream, and one whose table is not there or lacks what tells its age."""
    declared = bench.registry.stream(params.table)
    async with bench.database.connection() as conn:
        await stream_of(conn, bench, declared)


async def run(params: StreamEviction, run: Run) -> str:
    """Deletes what is older than the limit; answers how many rows that were."""
    bench, gone = run.bench, 0
    declared = bench.registry.stream(params.table)
    conn = await bench.database.connect("eviction")
    try:
        stream = await stream_of(conn, bench, declared)
        seconds = min(float(params.ttl_seconds), LONGEST)
        cursor = await conn.execute(retention_queries.LIMIT[stream.kind], {"seconds": seconds})
        ((limit,),) = await cursor.fetchall()
        stream.given = {"limit": limit, "since": queries.FIRST[stream.kind], "batch": params.batch_size}
        while batch := await _batch(conn, bench, stream):
            gone += batch
            await run.progress(gone, None, "rows")
    except ForeignKeyViolation as error:
        message = f"its rows are referred to: {error.diag.message_primary}"
        raise Conflict(what=declared.table, message=message) from None
    finally:
        await asyncio.shield(conn.close())
    return f"{gone} row{'' if gone == 1 else 's'}"


async def _batch(conn: Connection, bench: Bench, stream: Stream) -> int:
    """Deletes one batch; answers how many rows that were, 0 when nothing is left."""
    declared = stream.declared
    async with conn.transaction():
        await conn.execute(retention_queries.PATIENT)
        await conn.execute(SQL(retention_queries.HOLD).format(table=stream.table))
        await bench.registry.must_be(conn, declared, stream.definition)
        if declared.gate:
            await conn.execute(queries.OPEN, {"gate": declared.gate})
        if declared.evict:
            ((gone,),) = await (await conn.execute(declared.evict, stream.given)).fetchall()
            return gone
        ((gone, last),) = await (await conn.execute(stream.query, stream.given)).fetchall()
    if last is not None:
        stream.given["since"] = last
    return gone


async def stream_of(conn: Connection, bench: Bench, declared: Declared) -> Stream:
    """A stream by what the catalogue says now; `NotFound` without a table."""
    definition = await bench.registry.fresh(conn, declared)
    if declared.time is None:
        message = f"{declared.name} is declared without a time: nobody knows how old its rows are"
        raise InvalidInput(field="table", message=message)
    bench.registry.must_have(declared, definition, (*declared.key, *declared.whole, declared.time))
    found = next(column.type for column in definition.columns if column.name == declared.time)
    kind = queries.KINDS.get(re.sub(r"\(\d\)", "", found))
    if kind is None:
        known = ", ".join(queries.KINDS)
        message = f"{declared.table}.{declared.time} is {found}, and a time is one of {known}"
        raise InvalidInput(field="table", message=message)
    return Stream(declared=declared, definition=definition, kind=kind)
