"""Reads what is asked for: in a read-only transaction, within a time, and no more than can be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg.errors import QueryCanceled
from psycopg.sql import SQL, Identifier

from holdfast.apps.system.console import queries
from holdfast.apps.system.console.question import Query
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.db.database import Database

LONGEST = 10.0  # seconds that the server may take for one step of an answer
STEP = 500  # rows that are fetched at once
LARGEST = 32 * 2**20  # characters of one answer: whole traces can be long, and all of it is in memory


async def rows(
    database: Database, query: Query, *, longest: float = LONGEST, largest: int = LARGEST
) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows of an answer, and whether there are more."""
    found: list[tuple[Any, ...]] = []
    size = 0
    try:
        async with database.connection() as conn, conn.transaction():
            await conn.execute(queries.READ_ONLY)
            await conn.execute(queries.TIMEOUT, {"milliseconds": str(round(longest * 1000))})
            async with conn.cursor(name="holdfast_console") as cursor:
                await cursor.execute(query.statement, query.values)
                while size <= largest and (step := await cursor.fetchmany(STEP)):
                    found += step
                    size += sum(len(str(value)) for row in step for value in row)
                cut = size > largest and bool(await cursor.fetchmany(1))
    except QueryCanceled:
        told = f"took longer than {longest:g} seconds and was ended: ask for less"
        raise InvalidInput(field="statement", message=told) from None
    if query.most is not None and len(found) > query.most:
        return found[: query.most], True
    return found, cut


async def active(database: Database, table: str, kind: str, names: tuple[str, ...]) -> tuple[str, str] | None:
    """The id and the status of the job of this type that is active for a target, by any of its names."""
    question = SQL(queries.ACTIVE).format(table=Identifier(*table.split(".")))
    async with database.connection() as conn:
        cursor = await conn.execute(question, {"type": kind, "names": list(names)})
        return await cursor.fetchone()
