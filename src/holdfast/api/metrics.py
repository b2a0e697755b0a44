"""What Prometheus sees: the state of every ledger and worker now, and what workers did since the beginning.

Everything comes from the database, so every server tells the same, and none has to be asked in particular;
only the pool is the serving process's own. A part that fails, or takes too long, is left out and named in
`holdfast_scrape_error`; the others are told. A tenant is never a label.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import time
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Literal

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from holdfast.api.site import Site
from holdfast.api.web import Web
from holdfast.engine.store import Connection, Store
from holdfast.runtime import overview, pauses, presence, pulse
from holdfast.runtime.app import App
from holdfast.runtime.presence import Present

log = logging.getLogger("holdfast.metrics")

CONTENT_TYPE = CONTENT_TYPE_LATEST
EACH, ALL = 2.0, 8.0  # seconds for one part, and for all: Prometheus waits for ten
INFINITE = float("inf")
OURS = "holdfast"  # the app that is told where what fails is the platform itself


@dataclass(frozen=True)
class Declared:
    """One metric: what it is, what it tells, and by what."""

    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


_BY_KIND = ("ledger", "kind")
METRICS: Mapping[str, Declared] = {
    "holdfast_build_info": Declared("gauge", "The version that serves.", ("version", "python")),
    "holdfast_scrape_error": Declared(
        "gauge", "1 for a part that could not be told this time.", ("app", "ledger")
    ),
    "holdfast_rows": Declared("gauge", "Rows in each state.", ("ledger", "state")),
    "holdfast_rows_exact": Declared("gauge", "1 when rows were counted, 0 for estimates.", ("ledger",)),
    "holdfast_oldest_waiting_seconds": Declared(
        "gauge", "How long the row that is next has been due; 0 when none is.", ("ledger",)
    ),
    "holdfast_paused": Declared(
        "gauge", 'What is paused; the queue "" means the whole ledger.', ("ledger", "queue")
    ),
    "holdfast_workers": Declared("gauge", "Workers that have a row."),
    "holdfast_worker_slots": Declared("gauge", "Handlers that a worker runs at once.", ("worker",)),
    "holdfast_worker_held": Declared("gauge", "Rows that a worker holds.", ("worker",)),
    "holdfast_worker_silent_seconds": Declared("gauge", "Age of a worker's heartbeat.", ("worker",)),
    "holdfast_leader": Declared("gauge", "1 for the worker that leads.", ("worker",)),
    "holdfast_claims_total": Declared("counter", "Rows that were claimed.", _BY_KIND),
    "holdfast_finishes_total": Declared("counter", "Rows that were finished.", _BY_KIND),
    "holdfast_retries_total": Declared("counter", "Bad runs after which a row waits.", _BY_KIND),
    "holdfast_dead_letters_total": Declared(
        "counter", "Rows that ended badly and will not run again by themselves.", _BY_KIND
    ),
    "holdfast_moves_total": Declared("counter", "What workers wrote about rows.", (*_BY_KIND, "verb")),
    "holdfast_failures_total": Declared("counter", "Bad runs by the code of error.", ("ledger", "code")),
    "holdfast_wait_seconds": Declared("histogram", "How long rows were due until claimed.", _BY_KIND),
    "holdfast_run_seconds": Declared("histogram", "How long handlers ran.", _BY_KIND),
    "holdfast_pool_connections": Declared(
        "gauge", "Connections of this process's pool, idle or used.", ("state",)
    ),
    "holdfast_pool_connections_limit": Declared("gauge", "Most connections that the pool may have."),
    "holdfast_pool_waiting": Declared("gauge", "Requests that wait for a connection."),
    "holdfast_pool_requests_total": Declared("counter", "Connections asked for."),
    "holdfast_pool_queued_total": Declared("counter", "Requests that had to wait."),
    "holdfast_pool_wait_seconds_total": Declared("counter", "Time that requests waited."),
    "holdfast_pool_errors_total": Declared("counter", "What went wrong in the pool.", ("what",)),
}

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
FAMILIES: Mapping[str, type[Family]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Board:
    """What is told in one scrape. Made anew for each."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {
            name: FAMILIES[one.type](name, one.help, labels=one.labels) for name, one in METRICS.items()
        }
        self._missing: set[tuple[str, str]] = set()

    def miss(self, app: str, ledger: str) -> None:
        """A part is not told this time; said once, however much of it is missing."""
        if (app, ledger) not in self._missing:
            self._missing.add((app, ledger))
            self.tell("holdfast_scrape_error", 1, app, ledger)

    def tell(self, name: str, value: float, *labels: str) -> None:
        """One number of a gauge or a counter."""
        family = self.families[name]
        assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
        family.add_metric(labels, value)

    def tell_buckets(self, name: str, labels: Sequence[str], counts: Mapping[str, int], total: float) -> None:
        """A histogram, from what each bucket counts for itself."""
        family = self.families[name]
        assert isinstance(family, HistogramMetricFamily)
        below = 0
        buckets: list[tuple[str, float]] = []
        for bound in sorted({*map(float, counts), INFINITE}):
            last = bound == INFINITE
            below += counts.get("+Inf" if last else f"{bound:g}", 0)
            buckets.append(("+Inf" if last else str(bound), below))
        family.add_metric(labels, buckets, total)


async def collect(site: Site) -> bytes:
    """Everything, in Prometheus' text format (`CONTENT_TYPE`)."""
    board, pages = Board(), list[bytes]()
    end = time.monotonic() + ALL
    board.tell("holdfast_build_info", 1, version("holdfast"), platform.python_version())
    _tell_pool(board, site.database.pool.get_stats())
    async with _part(board, end, ALL, app=OURS), site.connection() as conn:
        await _tell_database(board, end, site.stores.values(), conn)
    taken = {family.name for family in board.families.values()}
    for app in site.apps:
        async with _part(board, end, app=app.name):
            families = await _of_app(site, app, taken)
            pages.append(_written(families))
            taken |= {family.name for family in families}
    return b"".join([_written(board.families.values()), *pages])


@asynccontextmanager
async def _part(
    board: Board, end: float, seconds: float = EACH, *, app: str = "", ledger: str = ""
) -> AsyncGenerator[None]:
    """Something that may fail, or take longer than it may, and then is told of as missing."""
    try:
        async with asyncio.timeout(min(seconds, max(0.0, end - time.monotonic()))):
            yield
    except Exception as error:
        said = "it took too long" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        log.warning("the metrics of %s are left out: %s", ledger or app, said)
        board.miss(app, ledger)


def _written(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Given(list(families)))
    return generate_latest(registry)


class _Given:
    """Families that are there already, as prometheus_client wants to be given them."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


async def _of_app(site: Site, app: App, taken: set[str]) -> list[Metric]:
    web: Web | None = getattr(import_module(app.web), "WEB", None) if app.web else None
    if web is None or web.metrics is None:
        return []
    families = list(await web.metrics(site))
    for name in (family.name for family in families):
        if name in taken:
            raise ValueError(f"there is a metric {name} already")
    return families


# -- what the database knows -----------------------------------------------------------------------------


async def _tell_database(board: Board, end: float, stores: Iterable[Store], conn: Connection) -> None:
    workers = await _fleet(board, end, conn)
    paused: Sequence[pauses.Pause] = ()
    async with _part(board, end, app=OURS):
        paused = await pauses.paused(conn)
    for pause in paused:
        board.tell("holdfast_paused", 1, pause.ledger, pause.queue or "")
    held: Counter[str] = Counter()
    for store in stores:
        name = store.ledger.name
        async with _part(board, end, ledger=name):
            held.update(await _tell_ledger(board, conn, store))
    if workers is not None:
        _tell_workers(board, workers, held)
    async with _part(board, end, app=OURS):
        _tell_totals(board, await pulse.totals(conn))


async def _fleet(board: Board, end: float, conn: Connection) -> Sequence[Present] | None:
    """The workers; None when nobody knows, which is not the same as none."""
    async with _part(board, end, app=OURS):
        return await presence.fleet(conn)
    return None


async def _tell_ledger(board: Board, conn: Connection, store: Store) -> Mapping[str, int]:
    """One ledger, of which all is told or nothing; answers with how many rows each worker holds."""
    name = store.ledger.name
    held, stats, now = await store.held(conn), await store.depth(conn), await overview.clock(conn)
    since = await overview.waiting_since(conn, store, stats, now)
    rows = {stat.state: stat.rows for stat in stats}
    for state in store.ledger.states:
        board.tell("holdfast_rows", rows.get(state, 0), name, state)
    board.tell("holdfast_rows_exact", all(stat.exact for stat in stats), name)
    waited = (now - since).total_seconds() if since else 0.0
    board.tell("holdfast_oldest_waiting_seconds", max(0.0, waited), name)
    return {holder or "": count for holder, count in held.items()}


def _tell_workers(board: Board, workers: Sequence[Present], held: Mapping[str, int]) -> None:
    board.tell("holdfast_workers", len(workers))
    for worker in workers:
        board.tell("holdfast_worker_slots", worker.pool_size, worker.id)
        board.tell("holdfast_worker_held", held.get(worker.id, 0), worker.id)
        board.tell("holdfast_worker_silent_seconds", max(0.0, worker.silent), worker.id)
        board.tell("holdfast_leader", worker.leads, worker.id)


# By the fact that a worker counts, and its label where only one of them is meant.
COUNTERS = {
    "holdfast_claims_total": ("waited", None),
    "holdfast_finishes_total": ("moved", "finish"),
    "holdfast_retries_total": ("moved", "retry"),
    "holdfast_dead_letters_total": ("dead", None),
}
HISTOGRAMS = {"holdfast_wait_seconds": "waited", "holdfast_run_seconds": "ran"}


def _tell_totals(board: Board, totals: Sequence[pulse.Total]) -> None:
    """What workers counted. A kind that has moved at all has all of its counters: none begins at 1."""
    kinds = sorted({(total.ledger, total.kind) for total in totals})
    for name, (fact, label) in COUNTERS.items():
        counts: Counter[tuple[str, str]] = Counter()
        for total in totals:
            if total.fact == fact and label in (None, total.label):
                counts[total.ledger, total.kind] += total.count
        for place in kinds:
            board.tell(name, counts[place], *place)
    failures: Counter[tuple[str, str]] = Counter()
    for total in totals:
        if total.fact == "moved":
            board.tell("holdfast_moves_total", total.count, total.ledger, total.kind, total.label)
        elif total.fact == "failed":
            failures[total.ledger, total.label] += total.count
    for (ledger, code), count in failures.items():
        board.tell("holdfast_failures_total", count, ledger, code)
    for name, fact in HISTOGRAMS.items():
        _tell_histogram(board, name, [total for total in totals if total.fact == fact])


def _tell_histogram(board: Board, name: str, totals: Iterable[pulse.Total]) -> None:
    buckets: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys(pulse.LABELS, 0))
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for total in totals:
        buckets[total.ledger, total.kind][total.label] = total.count
        sums[total.ledger, total.kind] += total.sum
    for place, counts in buckets.items():
        board.tell_buckets(name, place, counts, sums[place])


def _tell_pool(board: Board, stats: Mapping[str, int]) -> None:
    size, idle = stats.get("pool_size", 0), stats.get("pool_available", 0)
    board.tell("holdfast_pool_connections", idle, "idle")
    board.tell("holdfast_pool_connections", max(0, size - idle), "used")
    board.tell("holdfast_pool_connections_limit", stats.get("pool_max", 0))
    board.tell("holdfast_pool_waiting", stats.get("requests_waiting", 0))
    board.tell("holdfast_pool_requests_total", stats.get("requests_num", 0))
    board.tell("holdfast_pool_queued_total", stats.get("requests_queued", 0))
    board.tell("holdfast_pool_wait_seconds_total", stats.get("requests_wait_ms", 0) / 1000)
    for what in ("requests_errors", "connections_errors", "connections_lost", "returns_bad"):
        board.tell("holdfast_pool_errors_total", stats.get(what, 0), what)
