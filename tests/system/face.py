"""What tests of routes and pages share: a server with its files in a folder, and jobs as they are left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from api.kit import Served, served_app
from holdfast import Holdfast, Settings
from holdfast.apps.system.bench import log_of
from holdfast.apps.system.joblines import Level
from holdfast.apps.system.types import new_id
from holdfast.runtime.app import App, Table
from system.kit import fitted

JOBS = "/api/system/jobs"
OURS = App(name="shop", tables=(Table(name="parcels", kind="user", key=("id",), time="at"),))
ENDS = ("completed", "failed", "cancelled")

# What a `system.jobs` that was there before leaves behind, in its own words; the oldest without a time.
LEGACY = """
create table system.jobs_legacy (
    id text, job_type text, status text, result text, error_message text, parameters jsonb,
    created_at numeric);
insert into system.jobs_legacy values
    ('0', 'Mystery', 'Odd', null, null, null, null),
    ('1', 'Backup', 'Completed', '12 rows', null, '["a"]', 1000),
    ('2', 'Flush', 'Failed', null, 'no space', '{}', 2000);
"""


def application(settings: Settings) -> Holdfast:
    """The built-in apps, and a user's own with a table that may be dropped."""
    return Holdfast(settings, apps=[OURS])


@contextmanager
def serving(settings: Settings, folder: Path, **changes: Any) -> Iterator[Served]:
    """The whole application on a port, with a token for everybody; no worker."""
    settings = fitted(dataclasses.replace(settings, api_rate=100_000), folder, **changes)
    with served_app(settings, application(settings).web()) as served:
        yield served


def put(served: Served, kind: str = "flush", status: str = "queued", **columns: Any) -> str:
    """A job as somebody has left it."""
    known = (
        kind if kind in ("flush", "backup", "restore", "retention", "user_cleanup", "compact") else "flush"
    )
    row: dict[str, Any] = {"id": new_id(known), "job_type": kind, "status": status, **columns}
    row["parameters"] = Jsonb(row.get("parameters", {"ledger": "job"}))
    if status in ENDS:
        row.setdefault("finished_at", 1_893_456_000_000)
    if status == "running":
        row.setdefault("node_id", "worker-1")
    names, marks = ", ".join(row), ", ".join("%s" for _ in row)
    served.query(f"insert into system.jobs ({names}) values ({marks})", *row.values())
    return row["id"]


def tell(served: Served, id: str, *texts: str, level: Level = "INFO") -> None:
    """Lines of a job in the log."""
    for text in texts:
        log_of(served.settings).write(id, level, text)


def jobs(served: Served) -> list[tuple[Any, ...]]:
    return served.query("select job_type, status from system.jobs order by created_at, id")


def audit(served: Served) -> list[tuple[Any, ...]]:
    return served.query(
        "select who, action, row_id, rows from holdfast_audit where action <> 'login' order by id"
    )
