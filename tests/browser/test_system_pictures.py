"""The pictures of the pages of system jobs, of a night of maintenance. `make screenshots` puts them there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from api.kit import Served, on
from browser.conftest import DESK, PHONE, Open
from browser.test_pictures import shoot
from holdfast import Settings
from holdfast.apps.system import backups, manifest
from holdfast.apps.system.bench import log_of
from holdfast.apps.system.manifest import ColumnType, Entry
from holdfast.apps.system.places import archive_of
from holdfast.db.pool import Connection
from system.face import put, serving

pytestmark = pytest.mark.browser
MOST = 1_000_000  # bytes of all pictures together
SHOWN_AS = """([from, to]) => {
  const all = document.querySelectorAll(".place, .fault");
  for (const one of all) one.textContent = one.textContent.replace(from, to);
}"""  # where a test has its files is nobody's business
NODE = "worker-a-4711-k3x9q2"
TRACE = """Traceback (most recent call last):
  File "holdfast/apps/system/executors/flush.py", line 88, in run
    await archive.put(key, file)
  File "holdfast/apps/system/place_folder.py", line 61, in put
    os.fsync(file.fileno())
OSError: [Errno 28] No space left on device"""


@pytest.fixture
def served(settings: Settings, tmp_path: Path) -> Iterator[Served]:
    """The application on a port; no worker, so that nothing moves while a picture is taken."""
    with serving(settings, tmp_path) as served:
        yield served


def ago(minutes: float) -> datetime:
    return datetime.now(UTC) - timedelta(minutes=minutes)


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def job(
    served: Served, kind: str, status: str, minutes: float, took: float | None = None, **more: Any
) -> str:
    """A job that was made so many minutes ago, and took so many seconds."""
    made = ago(minutes)
    times: dict[str, Any] = {"created_at": ms(made), "updated_at": ms(made)}
    if took is not None:
        times |= {"started_at": ms(made) + 40, "node_id": NODE}
        times |= {"finished_at": ms(made) + int(took * 1000)} if status not in ("running", "retrying") else {}
    elif status == "cancelled":
        times["finished_at"] = ms(made) + 9000
    return put(served, kind, status, **times, **more)


def night(served: Served) -> tuple[str, str]:
    """Jobs as a night leaves them; answers with the one that runs, and one that failed."""
    dump = "2026-11-16/system"
    job(
        served,
        "backup",
        "completed",
        700,
        21.4,
        message="48,210 rows of 9 tables, 3.1 MB",
        parameters={"schema": "system", "backup_location": dump},
        idempotency_key="BK:system:2026-11-16T00:00Z",
    )
    job(
        served,
        "retention",
        "completed",
        640,
        3.2,
        message="1,204 rows deleted",
        parameters={"ledger": "tasks", "retention_hours": 720},
    )
    job(
        served,
        "compact",
        "completed",
        300,
        12.9,
        message="31 files to 4; 2 indexes made smaller",
        parameters={"ledger": "job"},
    )
    job(
        served,
        "user_cleanup",
        "cancelled",
        190,
        message="cancelled by ana",
        parameters={"subject": {"org_id": "7f0c0a52-3f4e-4a5e-9a57-0d4f1f0a3b11"}, "cascade": True},
    )
    failed = job(
        served,
        "flush",
        "failed",
        90,
        42.0,
        message="OSError: [Errno 28] No space left on device",
        exception_trace=TRACE,
        retry_count=3,
        parameters={"ledger": "sync_jobs", "older_than_hours": 24},
    )
    served.query(
        "insert into workers (id, hostname, started_at, last_heartbeat, pool_size, serves) values"
        " (%s, 'worker-a', (now() - interval '3 h') at time zone 'UTC', now() at time zone 'UTC', 4, %s)",
        *(NODE, ["system_jobs"]),
    )
    running = job(
        served,
        "flush",
        "running",
        2,
        100.0,
        parameters={"ledger": "job", "older_than_hours": 24, "batch_rows": 50000},
    )
    job(served, "restore", "queued", 0.3, parameters={"backup_location": dump, "target_schema": "rehearsal"})
    log, begun = log_of(served.settings), ago(2)
    texts = ["new", "queued by token:ana", f"started on {NODE} (attempt 1)"]
    texts += [f"progress {share}% {share * 4000} of 400000 rows" for share in range(5, 70, 4)]
    for place, text in enumerate(texts):
        log.write(running, "INFO", text, begun + timedelta(seconds=place * 4))
    for place, (level, text) in enumerate(
        (
            ("INFO", f"started on {NODE} (attempt 1)"),
            ("WARN", "retry 1 of 3 in 0.1 s: OSError: [Errno 28] No space left on device"),
            ("INFO", f"started on {NODE} (attempt 4)"),
            ("ERROR", f"failed: OSError: [Errno 28] No space left on device\n{TRACE}"),
        )
    ):
        log.write(failed, level, text, ago(90) + timedelta(seconds=place * 3))  # type: ignore[arg-type]
    return running, failed


def archive(served: Served) -> None:
    """Manifests of three archived tables."""

    async def write(_: Connection) -> None:
        for table, files, rows in (("job", 4, 1_200_000), ("tasks", 2, 340_118), ("sync_jobs", 11, 20_400)):
            entries = [
                Entry(
                    path=f"{table}/{n}.parquet",
                    kind="rows",
                    table=table,
                    key="id",
                    rows=rows // files,
                    bytes=rows // files * 61,
                    sha256="0" * 64,
                    columns=(ColumnType("id", "uuid"),),
                    first=ago(60 * 24 * 90),
                    last=ago(60 * 26),
                )
                for n in range(files)
            ]
            await manifest.update(
                archive_of(served.settings),
                table,
                lambda seen, entries=entries: manifest.entered(seen, entries),
            )

    on(served.settings, write)


def dumps(served: Served) -> None:
    """Two backups, and one that somebody has touched."""
    roots = served.settings.home / "backups"
    for name, schema, minutes, size in (
        ("2026-11-16/system", "system", 700, 3_104_020),
        ("2026-11-16/schedule_ingest", "schedule_ingest", 699, 18_733_551),
    ):
        folder = roots / name
        folder.mkdir(parents=True)
        tables = tuple(backups.Table(name=f"t{n}", rows=size // 900, checksum="0") for n in range(9))
        backups.write_manifest(
            folder,
            backups.Manifest(
                version=1,
                created_at=ago(minutes).isoformat(),
                job="BK-4fK2mZ0q",
                holdfast="0.1",
                revision="0007",
                server=170000,
                program=170000,
                database="holdfast",
                schema=schema,
                compression="zstd",
                tables=tables,
                without_rows=(),
                files=(backups.File(name=f"{schema}.dump.zst", bytes=size, sha256="0" * 64),),
            ),
        )
    broken = roots / "2026-11-01" / "system"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text('{"version": 1}')


def test_pictures_of_system_jobs_are_taken_and_nothing_sticks_out(
    served: Served, visit: Open, folder: Path
) -> None:
    running, failed = night(served)
    archive(served)
    dumps(served)
    one = f"/system/jobs/{running}"
    looks: list[tuple[str, dict[str, Any], list[tuple[str, str, int | None]]]] = [
        (
            "",
            {"viewport": DESK},
            [
                ("system-jobs", "/system", 820),
                ("system-job", one, 1100),
                ("system-failed", f"/system/jobs/{failed}", 1300),
                ("system-archive", "/system/archive", 520),
                ("system-backups", "/system/backups", 620),
                ("system-form", "/system/new/retention", 900),
            ],
        ),
        ("dark-", {"viewport": DESK, "color_scheme": "dark"}, [("system-job", one, 1000)]),
        ("phone-", {"viewport": PHONE}, [("system-job", one, 1500)]),
    ]
    bytes_ = 0
    for prefix, options, pages in looks:
        page = visit(**options)
        for name, path, height in pages:
            page.goto(path)
            if page.locator("#live-state").count():
                expect(page.locator("#live-state")).to_have_text("live")
            page.evaluate(SHOWN_AS, [str(served.settings.home), "/srv/holdfast"])
            bytes_ += shoot(page, folder, prefix + name, height=height)
    assert bytes_ < MOST
