"""What Prometheus sees of schedules beyond what it sees of any ledger. No user is ever a label.

How many sessions are pending, and how many messages are not sent, `holdfast_rows` tells already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, LiteralString, get_args

from prometheus_client.core import Metric
from psycopg.rows import dict_row

from holdfast.api.metrics import FAMILIES, Declared
from holdfast.api.site import Site
from holdfast.apps.schedules import metrics_queries as queries
from holdfast.apps.schedules.facts import KNOWN
from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.apps.schedules.values import EventType
from holdfast.engine.store import Connection
from holdfast.runtime import pulse

MOST = 100_000  # lost attempts that are counted

METRICS: Mapping[str, Declared] = {
    "holdfast_captures_oldest_pending_seconds": Declared(
        "gauge", "Age of the oldest session that no worker has taken; 0 when there is none."
    ),
    "holdfast_captures_lost_total": Declared(
        "counter", "Leases that ran out: sessions that were taken from a silent worker, or given up."
    ),
    "holdfast_captures_ended_total": Declared(
        "counter", "How attempts at sessions have ended.", ("outcome",)
    ),
    "holdfast_schedule_events_total": Declared("counter", "Changes of days that were recorded.", ("type",)),
}
FACTS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # by metric: the fact, and all its labels
    "holdfast_captures_ended_total": ("ended", KNOWN),
    "holdfast_schedule_events_total": ("event", get_args(EventType)),
}


async def collect(site: Site) -> Iterable[Metric]:
    """Everything, for one scrape."""
    families: dict[str, Any] = {
        name: FAMILIES[one.type](name, one.help, labels=one.labels) for name, one in METRICS.items()
    }
    async with site.connection() as conn:
        oldest = await _rows(conn, queries.OLDEST_PENDING)
        ((lost,),) = [row.values() for row in await _rows(conn, queries.LOST, {"most": MOST})]
        totals = await pulse.totals(conn)
    seconds = max((row["seconds"] for row in oldest), default=0.0)
    families["holdfast_captures_oldest_pending_seconds"].add_metric((), max(0.0, seconds))
    families["holdfast_captures_lost_total"].add_metric((), lost)
    for name, (fact, labels) in FACTS.items():
        counts = dict.fromkeys(labels, 0)  # every label is there from the beginning: none begins at 1
        for total in totals:
            if total.ledger == SESSIONS and total.fact == fact and total.label in counts:
                counts[total.label] += total.count
        for label, count in counts.items():
            families[name].add_metric((label,), count)
    return families.values()


async def _rows(
    conn: Connection, query: LiteralString, params: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(query, params)
        return await cursor.fetchall()
