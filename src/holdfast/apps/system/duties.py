"""The timetable: jobs that the leader makes by itself, each once in its period. Off until it is set."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.apps.system import actions
from holdfast.apps.system import duties_queries as queries
from holdfast.apps.system.bench import Bench
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.parameters import Flush
from holdfast.apps.system.types import JobType
from holdfast.engine.store import Connection
from holdfast.engine.values import Filter
from holdfast.errors import HoldfastError, IdempotencyConflict
from holdfast.runtime.duties import Duty

log = logging.getLogger("holdfast.system")
BY = "timetable"
QUEUED_EVERY = 5.0  # seconds: how long a row that plain SQL has put in waits at most


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the timetable: what is done, to what, and in which period of time."""

    type: JobType
    target: str
    period: str
    parameters: dict[str, Any]

    @property
    def key(self) -> str:
        """One job of an entry and period."""
        return f"{self.type.short_prefix}:{self.target}:{self.period}"


def all_of(bench: Bench) -> tuple[Duty, ...]:
    """The duties of the app; the timetable is none where nothing is set."""

    async def queueing(conn: Connection, _: str) -> int:
        return await queue_new(conn, bench)

    told: dict[tuple[JobType, str], str] = {}

    async def ticking(conn: Connection, _: str) -> int:
        return await tick(conn, bench, told=told)

    settings = bench.settings
    found = [Duty(name="queue system jobs", every=QUEUED_EVERY, run=queueing)]
    if any(
        (settings.system_retention, settings.system_eviction, settings.system_flush, settings.system_backup)
    ):
        found.append(Duty(name="timetable", every=settings.system_tick_seconds, run=ticking))
    return tuple(found)


async def queue_new(conn: Connection, bench: Bench) -> int:
    """Lets jobs run that plain SQL has put in as `new`; answers how many."""
    return await bench.stores[NAME].requeue_where(conn, Filter(states=("new",)), by="the tick")


async def tick(
    conn: Connection,
    bench: Bench,
    *,
    now: datetime | None = None,
    told: dict[tuple[JobType, str], str] | None = None,
) -> int:
    """Makes the jobs that the timetable asks for now; answers how many.

    `told` remembers why a line was refused, so that it is said once until that changes.
    """
    told = {} if told is None else told
    ((clock,),) = await (await conn.execute(queries.CLOCK, {"now": now})).fetchall()
    made = 0
    async for entry in _due(conn, bench, clock):
        if (await (await conn.execute(_made(bench), {"key": entry.key})).fetchall())[0][0]:
            continue
        try:
            await actions.create(bench, entry.type, entry.parameters, by=BY, key=entry.key)
            made += 1
            told.pop((entry.type, entry.target), None)
        except IdempotencyConflict:
            pass  # another leader was quicker
        except HoldfastError as error:
            if told.get((entry.type, entry.target)) != str(error):
                told[entry.type, entry.target] = str(error)
                log.warning("the timetable's %s of %s is refused: %s", entry.type, entry.target, error)
    return made


async def _due(conn: Connection, bench: Bench, clock: datetime) -> AsyncGenerator[Entry]:
    for entry in timed(bench, clock):
        yield entry
    for name, rows in bench.settings.system_flush:
        given = {"ledger": name, "older_than_hours": bench.settings.system_flush_after / 3600}
        if await _many(conn, bench, given, int(rows)):
            period = _period(clock, max(bench.settings.system_tick_seconds, 60.0))
            yield Entry(type=JobType.FLUSH, target=name, period=period, parameters=given)


def timed(bench: Bench, clock: datetime) -> Iterator[Entry]:
    """What is asked for once in a period."""
    settings = bench.settings
    for name, seconds in settings.system_retention:
        period = _period(clock, settings.system_retention_every)
        given = {"ledger": name, "retention_hours": seconds / 3600}
        yield Entry(type=JobType.RETENTION, target=name, period=period, parameters=given)
    for name, seconds in settings.system_eviction:
        period = _period(clock, settings.system_eviction_every)
        given = {"table": name, "ttl_seconds": seconds}
        yield Entry(type=JobType.STREAM_EVICTION, target=name, period=period, parameters=given)
    for schema in settings.system_backup:
        period = _period(clock, settings.system_backup_every)
        given = {"schema": schema, "backup_location": f"{schema}-{period.replace(':', '')}"}
        yield Entry(type=JobType.BACKUP, target=schema, period=period, parameters=given)


def _period(clock: datetime, every: float) -> str:
    """The beginning of the period that a moment lies in, as people and keys write it.

    >>> _period(datetime(2026, 3, 2, 17, 30, tzinfo=UTC), 86400)
    '2026-03-02T00:00Z'
    """
    began = datetime.fromtimestamp(clock.timestamp() // every * every, UTC)
    return began.strftime("%Y-%m-%dT%H:%MZ")


async def _many(conn: Connection, bench: Bench, given: dict[str, Any], threshold: int) -> bool:
    """Whether a flush would find so many rows. One that cannot be is for `create` to refuse."""
    from holdfast.apps.system.executors import flush  # its library is heavy

    try:
        return await flush.count(conn, bench, Flush(**given), threshold) >= threshold
    except HoldfastError:
        return True


def _made(bench: Bench) -> Any:
    return queries.made(bench.stores[NAME].ledger.table)
