"""What the tests of archives share: a bench of all built-in ledgers, finished rows, and what files have.

`program` at the end is the process that the crash tests end: it stops itself at a step, and says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from psycopg.rows import dict_row

from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.schedules.ledger import CAPTURE_SESSIONS, NOTIFICATIONS
from holdfast.apps.system import manifest as manifests
from holdfast.apps.system import parquet
from holdfast.apps.system.bench import Bench, Run, log_of, target_lock
from holdfast.apps.system.executors import compact, flush
from holdfast.apps.system.ledger import SYSTEM_JOBS
from holdfast.apps.system.parameters import Compact, Flush
from holdfast.apps.system.places import Archive, Step, unwatched
from holdfast.apps.system.registry import SchemaRegistry, declared_by
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db.database import open_database
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.store import Store

LEDGERS = (JOB, TASKS, SYNC_JOBS, CAPTURE_SESSIONS, NOTIFICATIONS, SYSTEM_JOBS)
OLD = "now() - interval '30 days'"
ORG, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"

# Finished rows of every ledger, `%(count)s` of each; those of `job` have events, and a message a try.
ACCOUNT = f"""
insert into tenants (id, name) values ('{ORG}', 'ours');
insert into providers (slug, display_name, auth_type) values ('p', 'P', 'oauth2');
insert into connections (id, tenant_id, provider_slug, external_id)
values ('{ORG}', '{ORG}', 'p', 'x');
"""
FINISHED: Mapping[str, str] = {
    "job": f"""
        with made as (
            insert into job (org_id, type, status, payload, finished_at, started_at, last_error_message)
            select (array['{ORG}', '{OTHER}'])[1 + n %% 2]::uuid, 'mail',
                (array['succeeded', 'canceled'])[1 + n %% 3 / 2]::job_status,
                jsonb_build_object('n', n, 'text', 'ö "quoted" 😀', 'deep', array[1.50, null]),
                {OLD} + n * interval '1 microsecond', {OLD}, E'two\\nlines'
            from generate_series(1, %(count)s) as n returning id
        )
        insert into job_event (job_id, prev_status, next_status, detail_json)
        select id, null, 'queued', null::jsonb from made
        union all select id, 'running', 'succeeded', '{{"a": [1]}}' from made
    """,
    "tasks": f"""
        insert into tasks (type, status, payload, completed_at, idempotency_key)
        select 'mail', 'completed', jsonb_build_object('n', n), ({OLD})::timestamp, 'k' || n
        from generate_series(1, %(count)s) as n
    """,
    "sync_jobs": f"""
        insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, finished_at)
        select gen_random_uuid(), '{ORG}', 'p', '{ORG}', 'full',
            (array['succeeded', 'completed'])[1 + n %% 2], {OLD}
        from generate_series(1, %(count)s) as n
    """,
    "capture_session": f"""
        insert into schedule_ingest.capture_session (id, user_id, state, created_at)
        select gen_random_uuid(), n, 'done', {OLD} from generate_series(1, %(count)s) as n
    """,
    "schedule_notification": f"""
        with made as (
            insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date,
                source_session_id, status, notification_type, message, event_ids, created_at, sent_at)
            select 'n' || n, n, date '2026-03-02' + n, gen_random_uuid(), 'sent', 'event', 'hello', '["a"]',
                {OLD}, {OLD} from generate_series(1, %(count)s) as n returning notification_id
        )
        insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at)
        select notification_id, 1, now() from made
    """,
    "system_jobs": """
        insert into system.jobs (id, job_type, status, message, created_at, updated_at, finished_at)
        select 'FL-' || lpad(n::text, 8, '0'), 'flush', 'completed', '0 rows', 1700000000000 + n,
            1700000000000 + n, 1700000000000 + n from generate_series(1, %(count)s) as n
    """,
}


async def finish(conn: Connection, ledger: str, count: int = 10) -> None:
    """Adds finished rows, old enough to go."""
    if ledger == "sync_jobs":
        await conn.execute(ACCOUNT)
    await conn.execute(FINISHED[ledger], {"count": count})  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Lone(Run):
    """A run without a job of its own: nobody can take it away."""

    notes: list[str] = field(default_factory=list[str])

    async def still_ours(self) -> None:
        pass

    def note(self, text: str, level: str = "INFO") -> None:
        self.notes.append(f"{level} {text}")


@dataclass
class Place:
    """A bench, and what tests ask of it and of its archive."""

    bench: Bench

    @property
    def archive(self) -> Archive:
        return self.bench.archive

    def run(self, id: str = "FL-aaaaaaaa") -> Lone:
        nothing = cast("Any", None)
        return Lone(bench=self.bench, id=id, context=nothing, lock=nothing)

    async def flush(self, ledger: str = "job", step: Step = unwatched, **params: Any) -> str:
        given = Flush(ledger=ledger, **params)
        await flush.check(given, self.bench)
        return await flush.run(given, self.run(), step)

    async def compact(self, ledger: str = "job", step: Step = unwatched, **params: Any) -> str:
        given = Compact(**{"ledger": ledger, "indexes": False, **params})
        await compact.check(given, self.bench)
        return await compact.run(given, self.run("CO-aaaaaaaa"), step)

    async def rows(self, table: str = "job", of: str | None = None) -> list[dict[str, Any]]:
        """What the archive has of a table, as psycopg would give it."""
        found: list[dict[str, Any]] = []
        for entry in (await manifests.read(self.archive, table)).files:
            if entry.table == (of or table):
                with await manifests.opened(self.archive, entry) as file:
                    here = list(parquet.natural_rows(file))
                    assert len(here) == entry.rows
                    found += here
        return found

    async def whole(self, table: str = "job") -> None:
        """Nothing is in the archive but what the manifest names."""
        manifest = await manifests.read(self.archive, table)
        folder = manifests.folder_of(table)
        named = {entry.path for entry in manifest.files}
        if named or await self.archive.exists(manifests.key_of(table)):
            named |= {manifests.key_of(table)}
        assert set(await self.archive.list(folder)) == named
        assert await self.archive.sweep(folder) == 0
        assert manifest.gone == ()


@asynccontextmanager
async def place(settings: Settings, url: str, ledgers: tuple[Ledger, ...] = LEDGERS) -> AsyncIterator[Place]:
    """A bench on the test's database, with its archive at an address."""
    home = Path(url.removeprefix("file://")).parent if url.startswith("file:") else settings.home
    fitted = replace(settings, system_archive=url, system_log=home / "jobs.log")
    stores = {ledger.name: Store(ledger) for ledger in ledgers}
    async with open_database(fitted) as database:
        yield Place(
            Bench(
                ground=SimpleNamespace(settings=fitted, database=database, stores=stores, apps=()),
                registry=SchemaRegistry(declared_by((), stores, ())),
                log=log_of(fitted),
            )
        )


async def table_rows(conn: Connection, table: str) -> list[dict[str, Any]]:
    """What a table has."""
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(f"select * from {table}")  # type: ignore[arg-type]
        return await cursor.fetchall()


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether these are the same rows, in whatever order."""
    return sorted(map(repr, one)) == sorted(map(repr, other))


def digest(rows: list[dict[str, Any]]) -> str:
    """A sum of what rows have, in whatever order."""
    return hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def program(told: dict[str, Any]) -> None:
    """Flushes or compacts, and stops for ever at a step, once it has said so."""
    met = 0

    async def step(name: str) -> None:
        nonlocal met
        if name == told["step"]:
            met += 1
            if met == told.get("time", 1):
                say(f"at {name}")
                await asyncio.Event().wait()

    settings = Settings(database_url=told["database"], profile="test")
    async with place(settings, told["archive"]) as here, target_lock(here.bench, "job") as lock:
        assert lock is not None
        await getattr(here, told["work"])("job", step, **told["params"])
    say("done")


if __name__ == "__main__":
    asyncio.run(program(json.loads(sys.argv[1])))
