"""Retention: exactly the finished rows past the limit go, of every ledger, and what else is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Settings
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.system.bench import bench_of
from holdfast.apps.system.executors.retention import ended
from holdfast.apps.tasks import app as tasks
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, NotFound
from ledgers import PARCELS
from schedules import kit as captures
from schedules.kit import day, entry
from system.kit import Stage, fitted, stage

OLD, NEW = "now() - interval '3 days'", "now() - interval '1 hour'"
DAY = {"retention_hours": 24}
UTC: dict[str, str] = {
    "tasks": "({}) at time zone 'UTC'",
    "system.jobs": "floor(extract(epoch from {}) * 1000)::bigint",
}

JOB = """
insert into job (org_id, type, status, created_at, updated_at, finished_at, idempotency_key)
select gen_random_uuid(), 'mail', s.status::job_status, {at}, {at},
    case when s.status in ('succeeded', 'canceled', 'dead_letter') then {at} end, s.status || '{tag}'
from unnest(enum_range(null::job_status)::text[]) as s (status)
"""
TASKS = """
insert into tasks (type, status, created_at, updated_at, completed_at)
select 'mail', s.status::task_status, {at}, {at}, case when s.status = 'completed' then {at} end
from unnest(enum_range(null::task_status)::text[]) as s (status)
"""
SYSTEM = """
insert into system.jobs (id, job_type, status, created_at, updated_at, run_at, finished_at)
select 'FL-{tag}' || lpad(n::text, 5, '0'), 'flush', s, {at}, {at}, 9999999999999,
    case when s in ('completed', 'failed', 'cancelled') then {at} end
from unnest(array['new', 'queued', 'retrying', 'completed', 'failed', 'cancelled'])
    with ordinality as s (s, n)
"""


async def filled(staged: Stage, statement: str, table: str) -> None:
    """Rows of every state, old and new."""
    for at, tag in ((OLD, "OLD"), (NEW, "NEW")):
        await staged.do(statement.format(at=UTC.get(table, "{}").format(at), tag=tag))


async def known(staged: Stage, table: str) -> dict[str, tuple[str, bool]]:
    """The state of every row, and whether it is old, by its key."""
    limit = UTC.get(table, "{}").format("now() - interval '1 day'")
    query = f"select id::text, status::text, created_at < {limit} as old from {table}"
    return {row["id"]: (row["status"], row["old"]) for row in await staged.rows(query)}


@pytest.mark.parametrize(
    ("ledger", "statement", "table", "kept", "dead"),
    [
        ("job", JOB, "job", ["failed", "queued", "running"], ["dead_letter"]),
        ("tasks", TASKS, "tasks", ["claimed", "pending", "running"], ["dead_letter", "failed"]),
        ("system_jobs", SYSTEM, "system.jobs", ["new", "queued", "retrying"], []),
    ],
)
async def test_retention_deletes_exactly_the_finished_rows_past_the_limit_and_spares_dead_letters_unless_told(
    settings: Settings, ledger: str, statement: str, table: str, kept: list[str], dead: list[str]
) -> None:
    """Y-27: by the ledger's own times, of all three kinds; never an unfinished row, nor the running job."""
    async with stage(settings) as staged:
        await filled(staged, statement, table)
        if ledger == "system_jobs":  # nobody runs what is not meant to run
            await staged.do("update system.jobs set queue = 'another'")
        before = await known(staged, table)
        spared = {one for one, (state, old) in before.items() if not old or state in kept + dead}
        rows = len(before) - len(spared)
        assert rows
        done = await staged.run("retention", {"ledger": ledger, **DAY})
        assert (done.state, done.columns["message"]) == ("completed", f"{rows} row{'s' * (rows > 1)}")
        assert (await known(staged, table)).keys() & before.keys() == spared
        assert str(done.id) in await known(staged, "system.jobs")
        last = await staged.run("retention", {"ledger": ledger, **DAY, "include_dead_letter": True})
        assert last.columns["message"] == f"{len(dead)} row{'' if len(dead) == 1 else 's'}"
        spared = {one for one, (state, old) in before.items() if not old or state in kept}
        assert (await known(staged, table)).keys() & before.keys() == spared


async def test_batches_go_on_until_nothing_is_left_and_nothing_to_do_is_completed_with_0_rows(
    settings: Settings,
) -> None:
    """Y-27: in batches with a commit each, without using up a retry; events go with their jobs by cascade."""
    async with stage(settings) as staged:
        for _ in range(5):
            await filled(staged, JOB.replace("s.status || '{tag}'", "null"), "job")
        await staged.do(
            "insert into job_event (job_id, ts, next_status, detail_json) select id, created_at, 'queued',"
            " '{}' from job"
        )
        done = await staged.run("retention", {"ledger": "job", "batch_size": 3, **DAY})
        assert (done.columns["message"], done.attempts) == ("10 rows", 0)
        assert await staged.one("select count(*) from job_event where next_status = 'queued'") == 50
        assert any("progress" in line for line in staged.lines(str(done.id)))
        again = await staged.run("retention", {"ledger": "job", "batch_size": 3, **DAY})
        assert (again.state, again.columns["message"]) == ("completed", "0 rows")


async def test_a_removed_row_frees_its_idempotency_key(settings: Settings) -> None:
    """Y-27"""
    async with stage(settings) as staged:
        org = uuid4()
        first = await staged.app.enqueue("job", "mail", tenant=org, key="once")
        await staged.do("update job set status = 'running'")
        await staged.do(f"update job set status = 'succeeded', finished_at = {OLD}, created_at = {OLD}")
        assert not (await staged.app.enqueue("job", "mail", tenant=org, key="once")).created
        assert (await staged.run("retention", {"ledger": "job", **DAY})).columns["message"] == "1 row"
        second = await staged.app.enqueue("job", "mail", tenant=org, key="once")
        assert second.created
        assert second.id != first.id


async def test_a_failed_sync_with_a_time_to_be_tried_again_has_not_ended(settings: Settings) -> None:
    """Y-27: also where dead letters may go."""
    async with stage(settings) as staged:
        await syncs(staged, "succeeded", "failed", "queued")
        await staged.do(
            "update sync_jobs set retry_after = now() + interval '1 hour' where status = 'failed'"
        )
        await syncs(staged, "failed")
        done = await staged.run("retention", {"ledger": "sync_jobs", **DAY, "include_dead_letter": True})
        assert done.columns["message"] == "2 rows"
        rows = await staged.rows("select status, retry_after is null as never from sync_jobs order by 1")
        assert [tuple(row.values()) for row in rows] == [("failed", False), ("queued", True)]


async def syncs(staged: Stage, *states: str) -> None:
    """Old syncs in these states, each of a connection of its own."""
    for state in states:
        tenant, link = uuid4(), uuid4()
        await staged.do("insert into tenants (id) values (%s)", tenant)
        await staged.do(
            "insert into connections (id, tenant_id, provider_slug, external_id)"
            " values (%s, %s, 'slack', 'x')",
            *(link, tenant),
        )
        await staged.do(
            "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status,"
            f" created_at, finished_at) values (%s, %s, 'slack', %s, 'full', %s, {OLD}, {OLD})",
            *(uuid4(), tenant, link, state),
        )


async def test_rows_that_others_refer_to_stay_and_are_counted(settings: Settings) -> None:
    """Y-27: a version without its session, or a picture, would be a lie."""
    async with stage(settings) as staged:
        for number in range(4):
            await staged.do(
                "insert into schedule_ingest.capture_session (user_id, state, created_at)"
                f" values (%s, 'processing', {OLD})",
                number,
            )
        await staged.do(
            "insert into schedule_ingest.schedule_version"
            " select user_id, '2026-03-02', 1, id, '{}', 'hash', now()"
            " from schedule_ingest.capture_session where user_id < 2"
        )
        await staged.do("update schedule_ingest.capture_session set state = 'done'")
        done = await staged.run("retention", {"ledger": "capture_session", **DAY})
        assert done.columns["message"] == "2 rows; 2 stay, as others refer to them"
        rows = await staged.rows("select user_id from schedule_ingest.capture_session order by 1")
        assert [row["user_id"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("kind", "limit", "told"),
    [
        ("retention", {"retention_hours": 24}, "1 row; 2 stay, as others refer to them"),
        ("flush", {"older_than_hours": 24}, "1 row and 1 event to 2 files"),
    ],
)
async def test_the_session_behind_a_day_stays_so_that_no_older_one_turns_the_day_back(
    settings: Settings, tmp_path: Path, kind: str, limit: dict[str, Any], told: str
) -> None:
    """Y-27, S-47: it has no version if it changed nothing, but whether another is late is seen by it."""
    async with captures.stage(fitted(settings, tmp_path)) as here:
        failed = await here.capture(read=[RuntimeError("unreadable"), day(entry("06:00"))])
        await here.work()
        first, _, last = await here.observe(*[day(entry("10:00"))] * 3)
        await here.do(
            "update schedule_ingest.capture_session set created_at = created_at - interval '3 days'"
        )
        staged = Stage(here.app, bench_of(here.app), tmp_path)
        done = await staged.run(kind, {"ledger": "capture_session", **limit})
        assert done.columns["message"] == told
        left = await here.rows("select id from schedule_ingest.capture_session order by created_at, id")
        assert [row["id"] for row in left] == [failed, first, last]
        async with here.app.database.connection() as conn:
            await here.sessions.requeue(conn, failed)
        await here.work()
        assert await here.outcomes(failed) == ["failed", "superseded"]
        assert len(await here.versions()) == 1


async def test_a_row_that_somebody_holds_is_passed_over_and_not_waited_for(
    settings: Settings, conn: Connection
) -> None:
    """Y-27: SKIP LOCKED; it is for the next run."""
    async with stage(settings) as staged:
        await filled(staged, JOB, "job")
        async with conn.transaction():
            await conn.execute("select from job where status = 'succeeded' for update")
            assert (await staged.run("retention", {"ledger": "job", **DAY})).columns["message"] == "1 row"
        assert (await staged.run("retention", {"ledger": "job", **DAY})).columns["message"] == "1 row"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"ledger": "job", "retention_hours": 0}, "retention_hours"),
        ({"ledger": "job", "retention_hours": -1}, "retention_hours"),
        ({"ledger": "job", "retention_hours": "24"}, "retention_hours"),
        ({"ledger": "job", "retention_hours": 24, "batch_size": 0}, "batch_size"),
        ({"ledger": "job"}, "retention_hours"),
        ({"retention_hours": 24}, "ledger"),
        ({"ledger": "job", "retention_hours": 24, "hours": 1}, "hours"),
        ({"ledger": "nothing", "retention_hours": 24}, "ledger"),
        ({"ledger": "job_event", "retention_hours": 24}, "ledger"),
        ({"ledger": "job; drop table job", "retention_hours": 24}, "ledger"),
    ],
)
async def test_bad_parameters_make_no_job(settings: Settings, given: dict[str, Any], field: str) -> None:
    """Section 3: `InvalidInput` names the field, and nothing is written."""
    async with stage(settings) as staged:
        with pytest.raises(InvalidInput) as caught:
            await staged.create("retention", given)
        assert caught.value.field == field
        assert await staged.one("select count(*) from system.jobs") == 0
        assert staged.lines() == []


async def test_a_declared_ledger_without_its_table_is_not_found(settings: Settings) -> None:
    """Section 3: NotFound, and no job."""
    async with stage(settings, ledgers=[PARCELS]) as staged:
        with pytest.raises(NotFound):
            await staged.create("retention", {"ledger": PARCELS.name, **DAY})
        assert await staged.one("select count(*) from system.jobs") == 0


async def test_the_longest_time_is_before_any_calendar_and_deletes_nothing(settings: Settings) -> None:
    """Y-27: a billion hours are allowed, and mean never; in every kind of time."""
    async with stage(settings) as staged:
        for ledger in ("job", "tasks", "system_jobs", "schedule_notification"):
            done = await staged.run("retention", {"ledger": ledger, "retention_hours": 1e9})
            assert (done.state, done.columns["message"]) == ("completed", "0 rows")


def test_the_lanes_of_ledgers_are_what_tells_an_end_that_is_none() -> None:
    """Y-27: only a lane leads from an end back to work."""
    assert len(ended(SYNC_JOBS)) == 1
    assert ended(tasks.APP.ledgers[0]) == []
