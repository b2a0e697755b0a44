"""Clears away what nobody will ask for any more: old jobs, deliveries, states of authorisation, and signals.

In batches, each a transaction of its own: a long one would hold back the clean-up of the whole database.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString

from holdfast.apps.connectors import retain_queries as queries
from holdfast.db.settings import Settings
from holdfast.engine.store import Connection
from holdfast.runtime import overview
from holdfast.runtime.app import Ground
from holdfast.runtime.duties import Duty

EVERY = 3600.0  # seconds
BATCH = 1000  # rows in one statement
STATES_DAYS = 1  # that a state of authorisation is kept after its end, so that one is told "expired"


@dataclass(frozen=True, kw_only=True)
class Retained:
    """How many rows were removed."""

    jobs: int
    deliveries: int
    states: int
    signals: int

    @property
    def total(self) -> int:
        return self.jobs + self.deliveries + self.states + self.signals


async def retain(conn: Connection, settings: Settings, *, now: datetime | None = None) -> Retained:
    """Removes whatever is older than its setting says. `conn` commits by itself."""
    clock = now or await overview.clock(conn)

    async def clear(query: LiteralString, days: int) -> int:
        removed, horizon = 0, clock - timedelta(days=days)
        while True:
            cursor = await conn.execute(query, {"horizon": horizon, "limit": BATCH})
            removed += cursor.rowcount
            if cursor.rowcount < BATCH:
                return removed

    return Retained(
        jobs=await clear(queries.JOBS, settings.retain_sync_jobs_days),
        deliveries=await clear(queries.DELIVERIES, settings.retain_deliveries_days),
        states=await clear(queries.STATES, STATES_DAYS),
        signals=await clear(queries.SIGNALS, settings.retain_signals_days),
    )


def duty(ground: Ground) -> Duty:
    """The duty to clear away."""

    async def run(conn: Connection, _: str) -> int:
        return (await retain(conn, ground.settings)).total

    return Duty(name="retain connectors", every=EVERY, run=run, by_all=True)
