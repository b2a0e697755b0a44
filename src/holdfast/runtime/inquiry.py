"""What has to be known to say why a row does not run. Reads, and locks nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from psycopg import AsyncConnection

from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store
from holdfast.engine.values import Json, Row, Touch
from holdfast.runtime import pauses, presence
from holdfast.runtime.overview import clock
from holdfast.runtime.pauses import Pause
from holdfast.runtime.presence import Present

Connection = AsyncConnection[Any]
MOST = 1000  # rows that are counted before one


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a decision needs. `now` is the database's, `since` is when its worker took the row.

    `ahead` is how many rows that are due stand before it, up to 1,000; None: it does not stand there at all.
    """

    ledger: Ledger
    row: Row
    settings: Settings
    now: datetime
    workers: Sequence[Present] = ()
    paused: Sequence[Pause] = ()
    since: datetime | None = None
    held: Mapping[str, int] = field(default_factory=dict[str, int])
    ahead: int | None = 0
    touch: Touch | None = None

    @property
    def queue(self) -> str | None:
        """The row's queue; None where there are no queues."""
        return self.row.columns.get(self.ledger.queue) if self.ledger.queue else None

    @property
    def holder(self) -> str | None:
        """The worker that holds the row; where the owner is the fence, a claim has a number behind it."""
        owner = self.row.owner
        return owner if owner is None or self.ledger.fence else re.sub(r"/[0-9]+$", "", owner)

    @property
    def living(self) -> list[Present]:
        """The workers that are not silent for too long."""
        return [one for one in self.workers if one.silent <= self.settings.worker_timeout]

    @property
    def serving(self) -> list[Present]:
        """Those of them that serve the ledger."""
        return [one for one in self.living if self.ledger.name in (*one.serves, *one.shares)]

    @property
    def near(self) -> list[Present]:
        """Those of them that serve the row's queue."""
        return [one for one in self.serving if self.queue is None or self.queue in self.queues(one)]

    @property
    def able(self) -> list[Present]:
        """Those of them that have a handler for its kind."""
        return [one for one in self.near if self.row.kind in self.kinds(one)]

    # A worker that does not tell what it takes, as older ones do not, may take everything.

    def queues(self, worker: Present) -> Sequence[str]:
        """The queues of the ledger that a worker serves."""
        return self._share(worker).get("queues", [self.queue or ""])

    def kinds(self, worker: Present) -> Sequence[str]:
        """The kinds of the ledger that a worker takes and has handlers for."""
        return self._share(worker).get("kinds", [self.row.kind])

    def slots(self, worker: Present) -> int:
        """How many rows of the ledger a worker takes at once."""
        return self._share(worker).get("slots", worker.pool_size)

    def _share(self, worker: Present) -> Mapping[str, Any]:
        return worker.shares.get(self.ledger.name, {})


async def gather(conn: Connection, store: Store, row: Row, settings: Settings) -> Facts:
    """Asks what matters for a row in this state, and nothing else."""
    ledger = store.ledger
    facts = Facts(ledger=ledger, row=row, settings=settings, now=await clock(conn))
    if row.state in ledger.lifecycle.held:
        since = await store.held_since(conn, row)
        return replace(facts, workers=await presence.fleet(conn), since=since)
    if row.state not in ledger.lifecycle.waiting:
        return facts
    paused = [one for one in await pauses.paused(conn) if one.ledger == ledger.name]
    facts = replace(facts, workers=await presence.fleet(conn), paused=paused)
    held = await store.held(conn)
    return replace(
        facts,
        held={holder or "": rows for holder, rows in held.items()},
        ahead=await _ahead(conn, store, facts),
        touch=await store.touched(conn, row.id),
    )


async def _ahead(conn: Connection, store: Store, facts: Facts) -> int | None:
    """How many rows would be claimed before this one by the workers that can take it."""
    queues = {facts.queue or ""} | {name for one in facts.able for name in facts.queues(one)}
    queues -= {one.queue for one in facts.paused}
    kinds = {facts.row.kind} | {name for one in facts.able for name in facts.kinds(one)}
    return await store.ahead(conn, facts.row.id, kinds=sorted(kinds), queues=sorted(queues), limit=MOST)


def moment(ledger: Ledger, value: Json) -> datetime | None:
    """A time as the row's own JSON has it; None for none, and for what no calendar has."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value / 1000, UTC)
        told = datetime.fromisoformat(value or "")
    except (ValueError, OverflowError, OSError):
        return None
    return told.replace(tzinfo=UTC) if ledger.times.kind == "timestamp" else told
