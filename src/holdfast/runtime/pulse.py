"""What workers did, in numbers: counted by each worker, kept by the minute and since the beginning.

Statistics, not accounts: each worker tells its numbers every few seconds. Those of a worker that is killed
are lost, and when the answer to a commit is lost on the way its numbers are told twice.

The facts in `holdfast_pulse`, each for a ledger and a kind (the minutes are for all kinds together, told as
kind ""; so is a kind that nobody has a handler for):

- `waited`, by the bucket of seconds that a row was due before it was claimed. Their sum is all claims.
- `ran`, by the bucket of seconds that a run of a handler took.
- `moved`, by the verb that was written about a row, like finish or retry.
- `dead`: rows that ended badly and will not run again by themselves.
- `failed`, by the code of the error of a run that ended badly.

An app may tell facts of its own there; they are in its own words.

The label of a bucket is its upper bound in seconds, "+Inf" for the last one; each bucket counts its own rows
and has the sum of their seconds.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from psycopg import AsyncConnection, DataError, ProgrammingError
from psycopg.rows import class_row, tuple_row

from holdfast.engine.intake import absorb
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Verb
from holdfast.engine.store import Store
from holdfast.engine.values import Move
from holdfast.runtime import queries

Connection = AsyncConnection[Any]
log = logging.getLogger("holdfast.worker")
Place = tuple[str, str, str, str]  # ledger, kind, fact, label

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)  # seconds
LABELS = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")
BAD_ENDS: tuple[Verb, ...] = ("exhaust", "reject")
BAD: tuple[Verb, ...] = ("retry", *BAD_ENDS, "lose")
CODES, CODE_LENGTH, OTHER = 64, 64, "OTHER"  # how many codes one worker tells, how long, and what of the rest
KEPT = 48  # hours that the minutes are kept
KEPT_CODES = 500  # codes of failure of a ledger, over all its kinds


class Tally:
    """The numbers of one worker that are not told yet. May be used from any thread.

    `knows(ledger, kind)` is true where there is a handler: any other kind is anybody's word, and would fill
    the table.
    """

    def __init__(self, knows: Callable[[str, str], object]) -> None:
        self._knows = knows
        self._numbers: dict[Place, tuple[int, float]] = {}
        self._codes: set[str] = set()
        self._lock = threading.Lock()

    def claimed(self, ledger: str, kind: str, waited: float) -> None:
        """A row was taken that had been due for so many seconds."""
        self._add(ledger, kind, "waited", _bucket(waited), waited)

    def ran(self, ledger: str, kind: str, seconds: float) -> None:
        """A run of a handler has ended, in whatever way."""
        self._add(ledger, kind, "ran", _bucket(seconds), seconds)

    def moved(self, ledger: str, kind: str, verb: Verb, code: str | None, *, ended: bool = False) -> None:
        """A move was written; `code` is that of the error. `ended`: also a lost row has come to its end."""
        self._add(ledger, kind, "moved", verb)
        if verb in BAD_ENDS or (verb == "lose" and ended):
            self._add(ledger, kind, "dead")
        if code is not None:
            self._add(ledger, kind, "failed", self._code(code))

    def wrote(self, ledger: Ledger, moves: Iterable[Move], moved: Collection[Any]) -> None:
        """Some moves were tried, and these keys answered: those moves were written."""
        lost_is_over = any(edge.to in ledger.ends for edge in ledger.lifecycle.of("lose"))
        for move in moves:
            if move.claim.id in moved:
                code = move.fault.code if move.fault and move.verb in BAD else None
                self.moved(ledger.name, move.claim.kind, move.verb, code, ended=lost_is_over)

    def tell(
        self, store: Store, moves: Sequence[Move], moved: Collection[Any], by: str | None = None
    ) -> None:
        """The same, also to whoever hears of the ledger."""
        self.wrote(store.ledger, moves, moved)
        if store.witness and moved:
            store.witness.wrote([move for move in moves if move.claim.id in moved], by)

    async def flush(self, conn: Connection) -> int:
        """Tells the numbers to the database; answers how many. When that fails they wait for the next time.

        When it fails although the database has taken them, they are told twice.
        """
        with self._lock:
            numbers, self._numbers = self._numbers, {}
        if not numbers:
            return 0
        columns = zip(*((*place, *number) for place, number in numbers.items()), strict=True)
        names = ("ledgers", "kinds", "facts", "labels", "counts", "sums")
        try:
            await conn.execute(queries.PULSE, dict(zip(names, map(list, columns), strict=True)))
        except BaseException:
            for (ledger, kind, fact, label), (count, total) in numbers.items():
                self._add(ledger, kind, fact, label, total, count)
            raise
        return len(numbers)

    def _add(
        self, ledger: str, kind: str, fact: str, label: str = "", amount: float = 0.0, times: int = 1
    ) -> None:
        place = (ledger, kind if self._knows(ledger, kind) else "", fact, label)
        with self._lock:
            count, total = self._numbers.get(place, (0, 0.0))
            self._numbers[place] = (count + times, total + amount)

    def _code(self, code: str) -> str:
        code = absorb(code, CODE_LENGTH) or OTHER
        with self._lock:
            if code not in self._codes and len(self._codes) >= CODES:
                return OTHER
            self._codes.add(code)
        return code


def _bucket(seconds: float) -> str:
    return LABELS[bisect_left(BOUNDS, seconds)]


# -- reading ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Percentiles:
    """Of how many, and in how many seconds half of them, 95 and 99 of a hundred were through.

    Read from the counts of buckets, so they are as exact as the buckets are narrow. None: of nothing.
    """

    count: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True)
class Minute:
    """What happened in a minute: rows taken, finished, put off after a bad run, and ended badly for good."""

    at: datetime
    claimed: int
    finished: int
    retried: int
    dead: int


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The last minutes of a ledger, the present one last; in them, how long rows waited to be taken
    (`latency`) and ran (`run_time`), and how often which code of failure came, the most frequent first.
    """

    minutes: tuple[Minute, ...]
    latency: Percentiles
    run_time: Percentiles
    failures: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Total:
    """One number since the beginning; see the head of this module for what facts and labels there are."""

    ledger: str
    kind: str
    fact: str
    label: str
    count: int
    sum: float


async def pace(conn: Connection, ledger: str, *, minutes: int = 60, now: datetime | None = None) -> Pace:
    """What happened in a ledger in the last minutes."""
    params = {"ledger": ledger, "minutes": minutes, "now": now}
    async with conn.cursor(row_factory=class_row(Minute)) as cursor:
        await cursor.execute(queries.MINUTES, params)
        per_minute = await cursor.fetchall()
    told: dict[str, dict[str, int]] = {"waited": {}, "ran": {}, "failed": {}}
    async with conn.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(queries.FACTS, params)
        for fact, label, count in await cursor.fetchall():
            told[fact][label] = count
    return Pace(
        minutes=tuple(per_minute),
        latency=percentiles(told["waited"]),
        run_time=percentiles(told["ran"]),
        failures=tuple(told["failed"].items()),
    )


async def tell(
    conn: Connection, ledger: str, kind: str, numbers: Mapping[tuple[str, str], tuple[int, float]]
) -> None:
    """Adds an app's own numbers: by fact and label, how many and their sum. A refusal is only told."""
    params = {
        "ledgers": [ledger] * len(numbers),
        "kinds": [kind] * len(numbers),
        "facts": [fact for fact, _ in numbers],
        "labels": [label for _, label in numbers],
        "counts": [count for count, _ in numbers.values()],
        "sums": [total for _, total in numbers.values()],
    }
    try:
        async with conn.transaction():
            await conn.execute(queries.PULSE, params)
    except (ProgrammingError, DataError) as error:  # nobody stops working for the sake of its statistics
        log.warning("the statistics are not kept: %s", error.diag.message_primary)


async def totals(conn: Connection) -> list[Total]:
    """Everything since the beginning, for those who make their own rates of it."""
    async with conn.cursor(row_factory=class_row(Total)) as cursor:
        await cursor.execute(queries.TOTALS)
        return await cursor.fetchall()


async def forget(conn: Connection, *, hours: int = KEPT, now: datetime | None = None) -> int:
    """Removes the minutes that are older, and codes of failure beyond the most frequent; answers how many."""
    old = await conn.execute(queries.FORGET, {"hours": hours, "now": now})
    rare = await conn.execute(queries.FORGET_CODES, {"most": KEPT_CODES})
    return old.rowcount + rare.rowcount


def percentiles(buckets: Mapping[str, int]) -> Percentiles:
    """The percentiles of some counts by the labels of their buckets.

    >>> percentiles({"0.1": 50, "0.25": 50})
    Percentiles(count=100, p50=0.1, p95=0.235, p99=0.247)
    """
    counts = [buckets.get(label, 0) for label in LABELS]
    total = sum(counts)
    if not total:
        return Percentiles(0)
    return Percentiles(total, *(round(_quantile(counts, total * part), 6) for part in (0.5, 0.95, 0.99)))


def _quantile(counts: Iterable[int], rank: float) -> float:
    """The value at a rank, as if the values of a bucket lay evenly in it; the last one tells its begin."""
    below = 0
    edges = pairwise((0.0, *BOUNDS))
    for count in counts:
        low, high = next(edges, (BOUNDS[-1], BOUNDS[-1]))
        if count and below + count >= rank:
            return low + (high - low) * (rank - below) / count
        below += count
    return BOUNDS[-1]
