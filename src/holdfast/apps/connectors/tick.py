"""The scheduler's tick: finds the connections that are due, and has each given one incremental job.

What is due is found in SQL, page by page in the order of an index, and never all at once. A page that has
been looked at is behind us whatever became of it, so nobody who is busy or fails stands in another's way.
"""

from __future__ import annotations

import logging
import random
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import LiteralString
from uuid import UUID

from psycopg.rows import class_row

from holdfast.apps.connectors import tick_queries as queries
from holdfast.apps.connectors.ledger import INCREMENTAL, SYNC_JOBS
from holdfast.apps.connectors.rounds import Rounds, Ticked, rows
from holdfast.apps.connectors.schedule import Draw
from holdfast.apps.connectors.sync_state import moment_text
from holdfast.db.settings import Settings
from holdfast.engine.store import Connection, Store
from holdfast.runtime import pulse
from holdfast.runtime.app import Ground
from holdfast.runtime.duties import Duty

log = logging.getLogger("holdfast.connectors")

BATCH = 128  # connections in one page and one transaction


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a connection stands in the order of the index."""

    due: str
    created: str
    id: UUID


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A stretch of the index: what comes after `begin`, up to the time `until`."""

    query: LiteralString
    begin: Place
    until: str


async def tick(
    conn: Connection,
    store: Store,
    settings: Settings,
    *,
    now: datetime | None = None,
    draw: Draw = random.uniform,
) -> Ticked:
    """Schedules every connection that is due by now. `conn` commits by itself; tests lend clock and dice."""
    ((clock,),) = await rows(conn, queries.CLOCK, {"now": now})
    rounds = Rounds(conn, store, settings, clock, now, draw)
    began, ticked = time.monotonic(), Ticked()
    for lane in lanes(clock, settings):
        place: Place | None = lane.begin
        while place is not None:
            page = await find(conn, lane, place)
            ticked += await rounds.page([each.id for each in page])
            place = page[-1] if len(page) == BATCH else None
    await _tell(conn, rounds, time.monotonic() - began)
    return ticked


def duty(ground: Ground) -> Duty:
    """The duty to tick. Of every worker, as a leader may lack the extra, or your own connectors."""
    store, settings = ground.stores[SYNC_JOBS.name], ground.settings

    async def run(conn: Connection, _: str) -> int:
        return (await tick(conn, store, settings)).scheduled

    return Duty(name="schedule", every=settings.sync_tick_seconds, run=run, by_all=True)


def lanes(now: datetime, settings: Settings) -> tuple[Lane, ...]:
    """What has no time, then what is due; last, what can hardly be meant.

    A text may have the right form and be no time all the same, like 9999-99-99T99:99:99.999999Z. Nothing that
    we write is further away than two intervals, so what is further is looked at, too: a time is left alone,
    and what is none is repaired.
    """
    far = moment_text(now + 2 * timedelta(seconds=settings.sync_max_interval_seconds))
    return (
        Lane(query=queries.NEVER, begin=_before_all(""), until=""),
        Lane(query=queries.BETWEEN, begin=_before_all(""), until=moment_text(now)),
        Lane(query=queries.BETWEEN, begin=_before_all(far), until="~"),  # "~" comes after every digit
    )


def _before_all(due: str) -> Place:
    return Place(due=due, created="-infinity", id=UUID(int=0))


async def find(conn: Connection, lane: Lane, place: Place) -> Sequence[Place]:
    """The next connections of a lane, those that are busy left out."""
    async with conn.transaction(), conn.cursor(row_factory=class_row(Place)) as cursor:
        await conn.execute(queries.UNSORTED)
        await cursor.execute(lane.query, {**asdict(place), "until": lane.until, "limit": BATCH})
        return await cursor.fetchall()


async def _tell(conn: Connection, rounds: Rounds, seconds: float) -> None:
    """Adds to what workers did: jobs `scheduled` by provider, their `jitter` and the `tick` by bucket."""
    numbers = {("scheduled", slug): (count, 0.0) for slug, count in rounds.jobs.items()}
    timed = [
        ("tick", seconds, 1),
        *(("jitter", float(wait), count) for wait, count in rounds.jitters.items()),
    ]
    for fact, amount, times in timed:
        label = pulse.LABELS[bisect_left(pulse.BOUNDS, amount)]
        count, total = numbers.get((fact, label), (0, 0.0))
        numbers[fact, label] = (count + times, total + times * amount)
    await pulse.tell(conn, SYNC_JOBS.name, INCREMENTAL, numbers)
