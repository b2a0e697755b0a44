"""What Prometheus sees of system jobs, and of what they have put away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.kit import Served, on
from holdfast import Settings
from holdfast.apps.system import manifest, metrics
from holdfast.apps.system.manifest import Entry
from holdfast.apps.system.metrics import METRICS
from holdfast.apps.system.parameters import TYPES
from holdfast.apps.system.places import archive_of
from holdfast.apps.system.types import STATUSES
from holdfast.db.pool import Connection
from system.face import put, serving

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def served(settings: Settings, tmp_path: Path) -> Iterator[Served]:
    with serving(settings, tmp_path) as served:
        yield served


def scrape(served: Served) -> dict[str, Samples]:
    """The samples of each of our metrics, by the values of their labels."""
    response = served.client("reader").get("/metrics")
    assert response.status_code == 200
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            if sample.name in METRICS:
                labels = tuple(sample.labels[name] for name in METRICS[sample.name].labels)
                found.setdefault(sample.name, {})[labels] = sample.value
            assert not (family.name == "holdfast_scrape_error" and sample.labels["app"] == "system"), sample
    return found


def test_jobs_are_counted_by_type_and_status_from_zero_on(served: Served) -> None:
    told = scrape(served)["holdfast_system_jobs"]
    assert told == {(str(kind), status): 0 for kind in TYPES for status in STATUSES}
    for _ in range(2):
        put(served, "flush", "running")
    put(served, "vacuum", "failed")
    told = scrape(served)["holdfast_system_jobs"]
    assert (told["flush", "running"], told["unknown", "failed"], told["backup", "queued"]) == (2, 1, 0)


def test_the_oldest_that_waits_and_the_last_that_was_completed_tell_their_age(served: Served) -> None:
    """For alerts: nobody does what waits, or the last good backup is too old."""
    told = scrape(served)
    assert told["holdfast_system_oldest_waiting_seconds"] == {(): 0}
    assert "holdfast_system_last_completed_seconds" not in told
    ((now,),) = served.query("select floor(extract(epoch from clock_timestamp()) * 1000)::bigint")
    put(served, created_at=now - 60_000)
    put(served, status="running", created_at=now - 600_000)
    for minutes, status in ((10, "completed"), (5, "completed"), (1, "failed")):
        asked = {"schema": "public", "tables": None}
        put(served, "backup", status, finished_at=now - minutes * 60_000, parameters=asked)
    told = scrape(served)
    assert 60 <= told["holdfast_system_oldest_waiting_seconds"][()] < 120
    assert list(told["holdfast_system_last_completed_seconds"]) == [("backup", "public")]
    assert 300 <= told["holdfast_system_last_completed_seconds"]["backup", "public"] < 360


def test_each_schema_and_ledger_tells_the_age_of_its_own_last_job(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For alerts: a schema whose backups fail is not hidden by another's, nor by a backup of one table."""
    ((now,),) = served.query("select floor(extract(epoch from clock_timestamp()) * 1000)::bigint")
    for minutes, kind, asked in (
        (500, "backup", {"schema": "public"}),
        (5, "backup", {"schema": "public", "tables": ["job"]}),
        (10, "backup", {"schema": "system", "tables": None}),
        (20, "flush", {"ledger": "job"}),
        (30, "compact", {"ledger": None, "table": "job_event"}),
        (40, "user_cleanup", {"subject": {"org_id": "who?"}}),
    ):
        finished = now - minutes * 60_000
        put(served, kind, "completed", created_at=finished, finished_at=finished, parameters=asked)
    told = scrape(served)["holdfast_system_last_completed_seconds"]
    assert {which: int(seconds // 60) for which, seconds in told.items()} == {
        ("backup", "public"): 500,
        ("backup", ""): 5,
        ("backup", "system"): 10,
        ("flush", "job"): 20,
        ("compact", "job_event"): 30,
        ("user_cleanup", ""): 40,
    }
    monkeypatch.setattr(metrics, "TARGETS", 2)
    told = scrape(served)["holdfast_system_last_completed_seconds"]
    assert list(told) == [("backup", ""), ("backup", "system")], "their number has an end"


def test_the_archive_is_counted_and_asked_once_a_minute(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = Entry(
        path="job/1.parquet", kind="rows", table="job", key="id", rows=7, bytes=99, sha256="", columns=()
    )

    async def write(_: Connection) -> None:
        archive = archive_of(served.settings)
        await manifest.update(archive, "job", lambda seen: manifest.entered(seen, [entry]))

    assert "holdfast_archive_rows" not in scrape(served)
    on(served.settings, write)
    assert "holdfast_archive_rows" not in scrape(served), "what was told a moment ago is told again"
    monkeypatch.setattr(metrics, "FRESH", 0)
    told = scrape(served)
    assert told["holdfast_archive_rows"] == {("job",): 7}
    assert told["holdfast_archive_files"] == {("job",): 1}
    assert told["holdfast_archive_bytes"] == {("job",): 99}


def test_an_archive_that_does_not_answer_takes_nothing_else_along(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "FRESH", 0)
    folder = served.settings.home / "archive" / "job"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("broken")
    assert scrape(served)["holdfast_system_jobs"]
