"""What Prometheus sees of connections and webhooks. No tenant, address or secret is ever a label.

What is so now comes from the database, so every server tells the same. How webhooks proved themselves is
counted by the process that they came to, as each server is asked by itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any, LiteralString

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from psycopg.rows import dict_row

from holdfast.api.metrics import FAMILIES, Declared
from holdfast.api.site import Site
from holdfast.apps.connectors import sql, sync_state
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.service import clock
from holdfast.apps.connectors.signatures import Reason, Way
from holdfast.engine.store import Connection
from holdfast.runtime import pulse

BOUNDS = (0.0001, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5)  # seconds

METRICS: Mapping[str, Declared] = {
    "holdfast_connections": Declared("gauge", "Connections in each status.", ("provider", "status")),
    "sync_scheduler_backlog_gauge": Declared("gauge", "Connections that are due and have no job yet."),
    "sync_scheduler_jobs_scheduled_total": Declared(
        "counter", "Jobs that were scheduled.", ("provider_slug",)
    ),
    "sync_scheduler_jitter_seconds": Declared("histogram", "By how much scheduled jobs were spread."),
    "sync_scheduler_tick_duration_ms": Declared("histogram", "How long a look for due connections took."),
    "rate_limited_total": Declared("counter", "How often a provider said: too often.", ("provider",)),
    "rate_limited_connections": Declared(
        "gauge", "Connections that wait since their provider said: too often.", ("provider",)
    ),
    "rate_limited_backoff_seconds": Declared(
        "gauge", "How long the longest of them still waits.", ("provider",)
    ),
    "holdfast_webhook_deliveries_pending": Declared(
        "gauge", "Deliveries that wait to be processed.", ("provider",)
    ),
    "holdfast_webhook_deliveries_unmatched": Declared(
        "gauge", "Deliveries for which no connection was found, or several.", ("provider",)
    ),
    "holdfast_webhook_oldest_pending_seconds": Declared(
        "gauge", "How long the first of those that wait has waited.", ("provider",)
    ),
    "signature_verification_success_total": Declared(
        "counter", "Webhooks that proved themselves to this process.", ("provider", "way")
    ),
    "signature_verification_failure_total": Declared(
        "counter", "Webhooks that did not: missing, malformed, wrong, replay.", ("provider", "reason")
    ),
    "signature_verification_replay_reject_total": Declared(
        "counter", "Webhooks whose time is too far off.", ("provider",)
    ),
    "signature_verification_seconds": Declared("histogram", "How long the proof took.", ("provider",)),
}


class Meters:
    """What one process has counted at its door since it began."""

    def __init__(self) -> None:
        self.successes: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.took: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(BOUNDS) + 1))
        self.sums: Counter[str] = Counter()

    def accepted(self, provider: str, way: Way) -> None:
        """A webhook has proved itself."""
        self.successes[provider, way] += 1

    def refused(self, provider: str, reason: Reason) -> None:
        """A webhook has not."""
        self.failures[provider, reason] += 1

    def verified_in(self, provider: str, seconds: float) -> None:
        """Finding that out took so long."""
        self.took[provider][bisect_left(BOUNDS, seconds)] += 1
        self.sums[provider] += seconds  # pyright: ignore[reportArgumentType]


METERS = Meters()


async def collect(site: Site) -> Iterable[Metric]:
    """Everything, for one scrape."""
    families: dict[str, Any] = {
        name: FAMILIES[one.type](name, one.help, labels=one.labels) for name, one in METRICS.items()
    }
    async with site.connection() as conn:
        await _tell_connections(families, conn)
        await _tell_deliveries(families, conn)
        _tell_totals(families, await pulse.totals(conn))
    _tell_door(families, METERS)
    return families.values()


async def _tell_connections(families: Mapping[str, GaugeMetricFamily], conn: Connection) -> None:
    for row in await _rows(conn, sql.COUNT_CONNECTIONS):
        families["holdfast_connections"].add_metric((row["provider"], row["status"]), row["count"])
    for row in await _rows(conn, sql.OVERDUE):
        families["sync_scheduler_backlog_gauge"].add_metric((), row["count"])
    for row in await _rows(conn, sql.COOLING):
        families["rate_limited_connections"].add_metric((row["provider"],), row["count"])
        if (until := sync_state.read_moment(row["until"])) is not None:
            seconds = (until - await clock(conn)).total_seconds()
            families["rate_limited_backoff_seconds"].add_metric((row["provider"],), max(0.0, seconds))


async def _tell_deliveries(families: Mapping[str, GaugeMetricFamily], conn: Connection) -> None:
    for row in await _rows(conn, sql.WAITING):
        if row["unmatched"]:
            families["holdfast_webhook_deliveries_unmatched"].add_metric((row["provider"],), row["count"])
        else:
            families["holdfast_webhook_deliveries_pending"].add_metric((row["provider"],), row["count"])
            families["holdfast_webhook_oldest_pending_seconds"].add_metric((row["provider"],), row["seconds"])


def _tell_totals(families: Mapping[str, Any], totals: Iterable[pulse.Total]) -> None:
    """What leaders and workers have counted."""
    counts = {name: dict.fromkeys(pulse.LABELS, 0) for name in ("jitter", "tick")}
    sums = dict.fromkeys(counts, 0.0)
    for total in totals:
        if total.ledger != SYNC_JOBS.name:
            continue
        if total.fact == "scheduled":
            families["sync_scheduler_jobs_scheduled_total"].add_metric((total.label,), total.count)
        elif total.fact == "rate_limited":
            families["rate_limited_total"].add_metric((total.label,), total.count)
        elif total.fact in counts:
            counts[total.fact][total.label] += total.count
            sums[total.fact] += total.sum
    for name, fact, factor in (
        ("sync_scheduler_jitter_seconds", "jitter", 1),
        ("sync_scheduler_tick_duration_ms", "tick", 1000),
    ):
        below = accumulate(counts[fact].values())
        bounds = (*(f"{bound * factor:g}" for bound in pulse.BOUNDS), "+Inf")
        families[name].add_metric((), list(zip(bounds, below, strict=True)), sums[fact] * factor)


def _tell_door(families: Mapping[str, Any], meters: Meters) -> None:
    successes: CounterMetricFamily = families["signature_verification_success_total"]
    failures: CounterMetricFamily = families["signature_verification_failure_total"]
    replays: CounterMetricFamily = families["signature_verification_replay_reject_total"]
    took: HistogramMetricFamily = families["signature_verification_seconds"]
    for labels, count in meters.successes.items():
        successes.add_metric(labels, count)
    for labels, count in meters.failures.items():
        failures.add_metric(labels, count)
        if labels[1] == "replay":
            replays.add_metric(labels[:1], count)
    for provider, counts in meters.took.items():
        below = accumulate(counts)
        took.add_metric(
            (provider,), list(zip((*map(str, BOUNDS), "+Inf"), below, strict=True)), meters.sums[provider]
        )


async def _rows(conn: Connection, query: LiteralString) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query)
        return await cursor.fetchall()
