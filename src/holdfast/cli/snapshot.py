"""What the live view shows: the ledgers, the rows and the workers at one moment."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Connection
from holdfast.engine.values import Filter, Row
from holdfast.errors import NotFound
from holdfast.platform import Holdfast
from holdfast.runtime import presence
from holdfast.runtime.presence import Present

NEWEST = 100  # rows that are looked through for those that ended last
WORKING_ROWS = 4  # that are shown at work
WINDOW = 30.0  # seconds that the throughput is told for


@dataclass(frozen=True)
class Seen:
    """A row and the ledger that it is in."""

    ledger: Ledger
    row: Row

    @property
    def trouble(self) -> str:
        """The first line of the error of a row that did not end well."""
        row = self.row
        return row.error.splitlines()[0] if row.error and row.state != self.ledger.to("finish") else ""

    @property
    def took(self) -> str:
        """How long it was from its start, the first one where the ledger keeps that, to its end."""
        row = self.row
        if not row.started or not row.finished:
            return ""
        return f"{max(0.0, (row.finished - row.started).total_seconds()):.2f} s"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Rows by ledger and state, those at work, those that ended last, and who is there.

    `ended` and `waiting` count over all ledgers.
    """

    counts: Sequence[tuple[Ledger, Mapping[str, int]]]
    working: Sequence[Seen]
    finished: Sequence[Seen]
    workers: Sequence[Present]
    ended: int
    waiting: int


async def take(app: Holdfast) -> Snapshot:
    """Looks once at every ledger."""
    counts: list[tuple[Ledger, dict[str, int]]] = []
    working: list[Seen] = []
    finished: list[Seen] = []
    async with app.database.connection() as conn:
        for store in app.stores.values():
            ledger = store.ledger
            states = dict.fromkeys(ledger.states, 0)
            for count in await store.count(conn):
                states[count.state] = states.get(count.state, 0) + count.rows
            counts.append((ledger, states))
            held = await store.find(conn, Filter(states=ledger.lifecycle.held), limit=NEWEST)
            ends = await store.find(conn, Filter(states=ledger.ends), limit=NEWEST)
            working += [Seen(ledger, row) for row in held.rows]
            finished += [Seen(ledger, row) for row in ends.rows]
        working.sort(key=lambda seen: seen.row.started or seen.row.created)
        working[:WORKING_ROWS] = [await _closer(app, conn, seen) for seen in working[:WORKING_ROWS]]
        workers = await presence.fleet(conn)
    return Snapshot(
        counts=counts,
        working=working,
        finished=sorted(finished, key=lambda seen: seen.row.finished or seen.row.created, reverse=True),
        workers=workers,
        ended=sum(states[state] for ledger, states in counts for state in ledger.ends),
        waiting=sum(states[state] for ledger, states in counts for state in ledger.lifecycle.waiting),
    )


async def _closer(app: Holdfast, conn: Connection, seen: Seen) -> Seen:
    """The row with how far it has come, which only a journal knows; unless it is gone meanwhile."""
    if seen.ledger.journal is None:
        return seen
    with suppress(NotFound):
        now = await app.get(seen.ledger.name, seen.row.id, conn=conn)
        return Seen(seen.ledger, replace(seen.row, stage=now.stage, progress=now.progress))
    return seen


@dataclass
class Throughput:
    """How many rows ended, seen over the last seconds."""

    seen: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def note(self, now: float, ended: int) -> None:
        """Remembers how many had ended at `now`, on a clock of seconds."""
        self.seen.append((now, ended))
        while self.seen and now - self.seen[0][0] > WINDOW:
            self.seen.popleft()

    @property
    def rate(self) -> float:
        """Rows that ended in a second, on average."""
        if len(self.seen) < 2:
            return 0.0
        (begin, first), (end, last) = self.seen[0], self.seen[-1]
        return max(0.0, (last - first) / (end - begin)) if end > begin else 0.0

    @property
    def steps(self) -> list[int]:
        """How many ended between each look and the next."""
        return [max(0, later[1] - earlier[1]) for earlier, later in pairwise(self.seen)]
