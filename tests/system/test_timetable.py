"""The timetable: jobs that the leader makes by itself, each once in its period."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Settings
from holdfast.apps.system import duties
from holdfast.db.settings import load
from holdfast.engine.values import Item
from holdfast.errors import InvalidInput, SettingsError
from runtime.support import until
from system.kit import Stage, stage

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
DAY = timedelta(days=1)


async def tick(here: Stage, now: datetime) -> int:
    async with here.app.database.connection() as conn:
        return await duties.tick(conn, here.bench, now=now)


async def keys(here: Stage) -> list[str]:
    rows = await here.rows("select idempotency_key as key from system.jobs order by created_at, id")
    return [row["key"] for row in rows]


async def test_nothing_is_done_by_itself_until_it_is_set(settings: Settings) -> None:
    """Y-39: there is not even a duty for it."""
    async with stage(settings) as here:
        assert [duty.name for duty in duties.all_of(here.bench)] == ["queue system jobs"]
        assert await tick(here, NOON) == 0


async def test_every_line_of_the_timetable_is_done_once_in_its_period(settings: Settings) -> None:
    """Y-39: even if the first has already finished; in the next period once more."""
    asked: dict[str, Any] = {
        "system_retention": (("tasks", 7 * 86400.0),),
        "system_eviction": (("signals", 90 * 86400.0),),
        "system_backup": ("system",),
    }
    async with stage(settings, **asked) as here:
        assert {duty.name for duty in duties.all_of(here.bench)} == {"queue system jobs", "timetable"}
        assert await tick(here, NOON) == 3
        assert sorted(await keys(here)) == [
            "BK:system:2026-03-02T00:00Z",
            "RT:tasks:2026-03-02T00:00Z",
            "SE:signals:2026-03-02T00:00Z",
        ]
        await here.do("update system.jobs set status = 'completed', finished_at = 1")
        assert await tick(here, NOON + timedelta(hours=11)) == 0
        assert await tick(here, NOON + DAY) == 3
        given = await here.rows("select parameters from system.jobs where job_type = 'retention'")
        assert {row["parameters"]["retention_hours"] for row in given} == {168}


async def test_two_leaders_make_one_job(settings: Settings) -> None:
    """Y-6, Y-39: the key decides, not the lead."""
    async with stage(settings, system_retention=(("tasks", 86400.0),)) as here:
        made = await asyncio.gather(*(tick(here, NOON) for _ in range(5)))
        assert sum(made) == 1
        assert len(await keys(here)) == 1


async def test_what_cannot_be_done_is_told_and_keeps_nothing_else_from_being_done(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Y-39: a name that is not declared, for instance."""
    async with stage(settings, system_retention=(("nothing", 1.0), ("tasks", 86400.0))) as here:
        assert await tick(here, NOON) == 1
        assert "the timetable's retention of nothing is refused" in caplog.text


async def test_a_refusal_is_told_once_until_its_reason_changes(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-39: a log that says the same every minute is read by nobody."""
    async with stage(settings, system_retention=(("nothing", 60.0),)) as here:
        ticking = next(duty for duty in duties.all_of(here.bench) if duty.name == "timetable")

        async def heard() -> int:
            caplog.clear()
            async with here.app.database.connection() as conn:
                await ticking.run(conn, "me")
            return caplog.text.count("is refused")

        async def otherwise(*_: Any, **__: Any) -> None:
            raise InvalidInput(field="ledger", message="is another matter")

        assert [await heard() for _ in range(3)] == [1, 0, 0]
        monkeypatch.setattr(duties.actions, "create", otherwise)
        assert [await heard() for _ in range(2)] == [1, 0]


async def test_a_ledger_with_many_finished_rows_is_flushed_and_one_with_few_is_not(
    settings: Settings,
) -> None:
    """Y-39: by a threshold; young rows do not count, and neither do those that wait for a person."""
    async with stage(settings, system_flush=(("tasks", 10.0),), system_flush_after=3600.0) as here:
        async with here.app.database.connection() as conn:
            await here.app.stores["tasks"].copy(conn, [Item(kind="x")] * 30)
        end = (
            "update tasks set status = %s,"
            " completed_at = (now() at time zone 'utc') - make_interval(hours => %s)"
        )
        for status, hours in (("completed", 0), ("failed", 5), ("pending", 5)):
            await here.do(end, status, hours)
            assert await tick(here, NOON) == 0
        await here.do(end + " where id in (select id from tasks order by id limit 9)", "completed", 5)
        assert await tick(here, NOON) == 0
        await here.do(end + " where id in (select id from tasks order by id limit 10)", "completed", 5)
        assert await tick(here, NOON) == 1
        assert await keys(here) == ["FL:tasks:2026-03-02T12:00Z"]
        await here.drain()
        assert await here.one("select count(*) from tasks") == 20
        assert await tick(here, NOON + DAY) == 0


async def test_the_leader_keeps_the_timetable(settings: Settings) -> None:
    """Y-39: without anybody's doing."""
    asked: dict[str, Any] = {"system_retention": (("tasks", 86400.0),), "system_tick_seconds": 0.05}
    async with stage(settings, **asked) as here:
        worker = here.worker()
        running = asyncio.create_task(worker.run())
        async with here.app.database.connection() as conn:
            await until(conn, "select count(*) > 0 from system.jobs where status = 'completed'")
        worker.stop()
        await running
        assert await here.one("select count(*) from system.jobs") == 1


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("RETENTION", "job", "like job=30d"),
        ("RETENTION", "job=0d", "duration"),
        ("RETENTION", "job=30d,job=7d", "names job twice"),
        ("RETENTION", "job=30", "with its unit, like"),
        ("RETENTION", "job=30ms", "with its unit, like"),
        ("EVICTION", "signals=90", "with its unit, like"),
        ("EVICTION", "signals=soon", "duration"),
        ("FLUSH", "job=0", "at least 1"),
        ("BACKUP_EVERY", "10s", "at least 60 s"),
        ("BACKUP_ROOTS", "backups", "from the root on"),
        ("ARCHIVE", "ftp://x", "must be a folder like"),
        ("MAX_RETRIES", "256", "from 0 to 255"),
        ("CONCURRENCY", "0", "at least 1"),
        ("LOG_BYTES", "10", "at least 1024"),
    ],
)
def test_a_wrong_setting_stops_the_start_and_says_what_would_be_right(
    name: str, text: str, told: str
) -> None:
    """Y-21, Y-34, Y-39."""
    with pytest.raises(SettingsError, match=told):
        load({f"HOLDFAST_SYSTEM_{name}": text}, dotenv=None)


@pytest.mark.parametrize(
    "given",
    [
        {"RETENTION": "system_jobs=12h"},
        {"RETENTION": "system.jobs=2d", "BACKUP": "system", "BACKUP_EVERY": "1w"},
        {"FLUSH": "system_jobs=10", "FLUSH_AFTER": "1h", "BACKUP": "system"},
    ],
)
def test_jobs_must_stay_until_their_period_is_over(given: dict[str, str]) -> None:
    """Y-39: or a job would be made twice in it."""
    with pytest.raises(SettingsError, match="a job is made twice in its period"):
        load({f"HOLDFAST_SYSTEM_{name}": text for name, text in given.items()}, dotenv=None)


def test_jobs_that_stay_long_enough_may_be_deleted() -> None:
    """Y-39: a period that nobody uses does not count."""
    given = {"RETENTION": "system_jobs=1d, tasks=1h", "BACKUP_EVERY": "4w"}
    settings = load({f"HOLDFAST_SYSTEM_{name}": text for name, text in given.items()}, dotenv=None)
    assert settings.system_retention == (("system_jobs", 86400.0), ("tasks", 3600.0))


def test_durations_may_be_days_and_weeks() -> None:
    """Y-39."""
    settings = load({"HOLDFAST_SYSTEM_RETENTION": "job=30d, tasks=2w, sync_jobs=90m"}, dotenv=None)
    assert settings.system_retention == (("job", 2592000.0), ("tasks", 1209600.0), ("sync_jobs", 5400.0))
