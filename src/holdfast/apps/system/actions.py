"""What people may do with system jobs: make one, call it off, make it again. The log hears of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.apps.system import executors, parameters
from holdfast.apps.system.bench import Bench, Connection
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.types import JobType, read_id, read_type
from holdfast.engine.values import Item, Row
from holdfast.errors import IllegalEdge, InvalidInput

TRIES = 5  # at an id that nobody has
SAME_ID = "jobs_pkey"
Noted = Callable[[Connection, str], Awaitable[object]]  # writes beside a new job, in its transaction


@dataclass(frozen=True, kw_only=True)
class Made:
    """A job that was just made."""

    id: str
    type: JobType
    status: str = "queued"


async def create(
    bench: Bench,
    kind: str,
    given: Any,
    *,
    by: str | None = None,
    key: str | None = None,
    max_retries: int | None = None,
    queue: str | None = None,
    priority: int | None = None,
    noted: Noted | None = None,
) -> Made:
    """Makes a job, or says why not; then nothing is written."""
    job_type = read_type(kind)
    if job_type is JobType.UNKNOWN:
        raise InvalidInput(field="job_type", message="unknown jobs cannot be made: they have no prefix")
    limit = bench.settings.system_max_retries if max_retries is None else max_retries
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= 255:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidInput(field="max_retries", message=f"must lie between 0 and 255, not {limit!r}")
    params = parameters.read(job_type, given)
    await executors.check(job_type, params, bench)
    item = Item(
        kind=str(job_type),
        payload=parameters.told(params),
        key=key,
        limit=limit,
        queue=queue,
        priority=priority,
    )
    made = Made(id=await _enqueue(bench, item, by, noted), type=job_type)
    if witness := bench.stores[NAME].witness:
        witness.added([(made.id, str(job_type))], by)
    return made


async def _enqueue(bench: Bench, item: Item, by: str | None, noted: Noted | None) -> str:
    """The id of the new row; one that somebody has already is drawn again."""
    store = bench.stores[NAME]
    for left in reversed(range(TRIES)):
        try:
            async with bench.database.connection() as conn, conn.transaction():
                made = str((await store.enqueue(conn, item, by=by)).id)
                if noted:
                    await noted(conn, made)
                return made
        except InvalidInput as error:
            if error.field != SAME_ID or not left:
                raise
    raise AssertionError("the last try answers or raises")


async def cancel(bench: Bench, id: str, *, by: str | None = None, reason: str | None = None) -> Row:
    """Calls a job off, and answers with it as it is then."""
    key, store = read_id(id), bench.stores[NAME]
    async with bench.database.connection() as conn:
        await store.cancel(conn, key, by=by, reason=reason)
        return await store.get(conn, key)


async def show(bench: Bench, id: str) -> Row:
    """One job, or `NotFound`."""
    async with bench.database.connection() as conn:
        return await bench.stores[NAME].get(conn, read_id(id))


async def retry(bench: Bench, id: str, *, by: str | None = None, noted: Noted | None = None) -> Made:
    """A new job with the type and the parameters of one that has ended."""
    row = await show(bench, id)
    ends = bench.stores[NAME].ledger.ends
    if row.state not in ends:
        raise IllegalEdge(verb="retry", what="job", id=row.id, state=row.state, allowed=", ".join(ends))
    queue, priority = row.columns["queue"], row.columns["priority"]
    return await create(
        bench,
        row.kind,
        row.payload,
        by=by,
        max_retries=row.limit,
        queue=queue,
        priority=priority,
        noted=noted,
    )
