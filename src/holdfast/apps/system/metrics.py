"""What Prometheus sees of system jobs beyond what it sees of any ledger: by type, and what is archived."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, LiteralString

from prometheus_client.core import Metric
from psycopg.rows import dict_row

from holdfast.api.metrics import FAMILIES, Declared
from holdfast.api.site import Site
from holdfast.apps.system import metrics_queries as queries
from holdfast.apps.system.archive_query import Archived, archived
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.places import archive_of
from holdfast.apps.system.types import STATUSES, TYPES, JobType, stored_type
from holdfast.db.system_settings import archive_url
from holdfast.engine.store import Connection
from holdfast.errors import HoldfastError

log = logging.getLogger("holdfast.metrics")

MOST = 100_000  # jobs that are counted
TARGETS = 1000  # types with their targets that are told: those that were completed last
LONG = 127  # characters of a target: a name has no more
PATIENCE = 1.0  # seconds that the archive has for its answer
FRESH = 60.0  # seconds that an answer of the archive is told again: a bucket is far away

METRICS: Mapping[str, Declared] = {
    "holdfast_system_jobs": Declared("gauge", "System jobs by type and status.", ("type", "status")),
    "holdfast_system_oldest_waiting_seconds": Declared(
        "gauge", "Age of the oldest system job that has not ended and does not run; 0 when there is none."
    ),
    "holdfast_system_last_completed_seconds": Declared(
        "gauge",
        "How long ago a job of the type was last completed for the target, as far as rows are kept.",
        ("type", "target"),
    ),
    "holdfast_archive_files": Declared("gauge", "Archived files.", ("table",)),
    "holdfast_archive_rows": Declared("gauge", "Archived rows.", ("table",)),
    "holdfast_archive_bytes": Declared("gauge", "Size of the archived files.", ("table",)),
}


async def collect(site: Site) -> Iterable[Metric]:
    """Everything, for one scrape."""
    families: dict[str, Any] = {
        name: FAMILIES[one.type](name, one.help, labels=one.labels) for name, one in METRICS.items()
    }
    table = site.stores[NAME].ledger.table
    async with site.connection() as conn:
        jobs = await _rows(conn, queries.JOBS, table)
        completed = await _rows(conn, queries.COMPLETED, table)
        (clock,) = await _rows(conn, queries.OLDEST, table)
    _tell_jobs(families, jobs)
    _tell_ages(families, completed, clock)
    for one in await ARCHIVES.look(site):
        for what in ("files", "rows", "bytes"):
            families[f"holdfast_archive_{what}"].add_metric((one.table,), getattr(one, what))
    return families.values()


def _tell_jobs(families: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> None:
    counts = Counter({(kind, status): 0 for kind in TYPES for status in STATUSES})  # none begins at 1
    for row in jobs:
        counts[stored_type(row["type"]), row["status"]] += row["count"]
    for (kind, status), count in counts.items():
        families["holdfast_system_jobs"].add_metric((str(kind), status), count)


def _tell_ages(
    families: Mapping[str, Any], completed: Sequence[Mapping[str, Any]], clock: Mapping[str, Any]
) -> None:
    latest: dict[tuple[JobType, str], int] = {}
    for row in completed:
        which = stored_type(row["type"]), row["target"]
        latest[which] = max(latest.get(which, 0), row["completed"] or 0)
    for (kind, target), when in latest.items():
        seconds = max(0.0, (clock["now"] - when) / 1000)
        families["holdfast_system_last_completed_seconds"].add_metric((str(kind), target), seconds)
    oldest = clock["now"] if clock["oldest"] is None else clock["oldest"]
    seconds = max(0.0, (clock["now"] - oldest) / 1000)
    families["holdfast_system_oldest_waiting_seconds"].add_metric((), seconds)


async def _rows(conn: Connection, query: LiteralString, table: str) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(queries.of(query, table), {"most": MOST, "targets": TARGETS, "long": LONG})
        return await cursor.fetchall()


class Archives:
    """What archives have told last: they are asked once a minute, however often somebody scrapes."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, Sequence[Archived]]] = {}

    async def look(self, site: Site) -> Sequence[Archived]:
        """What is archived; nothing while the archive does not answer, and the rest is told."""
        url = archive_url(site.settings)
        when, told = self._told.get(url, (float("-inf"), ()))
        if time.monotonic() - when < FRESH:
            return told
        try:
            async with asyncio.timeout(PATIENCE):
                told = await archived(archive_of(site.settings))
        except (OSError, HoldfastError) as error:  # TimeoutError is an OSError
            log.warning("the archive is left out: %s: %s", type(error).__name__, error)
            told = ()
        self._told[url] = (time.monotonic(), told)
        return told


ARCHIVES = Archives()
