"""What is cleared away, what is not, and that it goes in batches by an index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, LiteralString
from uuid import UUID, uuid4

import pytest

from holdfast.apps.connectors import retain_queries
from holdfast.apps.connectors.retain import BATCH, Retained, duty, retain
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings

Connect = Callable[[], Awaitable[Connection]]

TENANT, LINK = UUID(int=1), UUID(int=2)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = Retained(jobs=0, deliveries=0, states=0, signals=0)


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


@pytest.fixture(autouse=True)
async def _connection(conn: Connection) -> None:
    await conn.execute("insert into tenants (id, name) values (%s, 'ours')", [TENANT])
    await conn.execute(
        "insert into connections (id, tenant_id, provider_slug, external_id) values (%s, %s, 'github', 'x')",
        [LINK, TENANT],
    )


async def add_job(
    conn: Connection,
    status: str,
    finished: datetime | None,
    *,
    scheduled: datetime | None = None,
    retry: datetime | None = None,
    kind: str = "incremental",
) -> UUID:
    id = uuid4()  # noqa: A001
    await conn.execute(
        "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, scheduled_at,"
        " retry_after, finished_at, updated_at) values (%s, %s, 'github', %s, %s, %s, %s, %s, %s, %s)",
        [
            id,
            TENANT,
            LINK,
            kind,
            status,
            scheduled or finished or ago(days=90),
            retry,
            finished,
            ago(days=90),
        ],
    )
    return id


async def add_delivery(conn: Connection, name: str, received: datetime, processed: datetime | None) -> None:
    await conn.execute(
        "insert into webhook_delivery (provider_slug, tenant_id, connection_id, delivery_id, body_sha256,"
        " verification, received_at, processed_at) values ('github', %s, %s, %s, '', 'signature', %s, %s)",
        [TENANT, LINK, name, received, processed],
    )


async def add_state(conn: Connection, name: str, expires: datetime, consumed: datetime | None = None) -> None:
    await conn.execute(
        "insert into oauth_states (id, tenant_id, provider, state, expires_at, consumed_at)"
        " values (gen_random_uuid(), %s, 'github', %s, %s, %s)",
        [TENANT, name, expires, consumed],
    )


async def add_signal(conn: Connection, name: str, received: datetime, occurred: datetime) -> None:
    await conn.execute(
        "insert into signals (id, tenant_id, provider_slug, connection_id, kind, payload, received_at,"
        " occurred_at, dedupe_key) values (%s, %s, 'github', %s, 'code_pushed', '{}', %s, %s, %s)",
        [uuid4(), TENANT, LINK, received, occurred, name],
    )


async def column(conn: Connection, query: LiteralString) -> list[Any]:
    return [value for (value,) in await (await conn.execute(query)).fetchall()]


async def test_finished_jobs_go_when_they_are_old_enough(conn: Connection, settings: Settings) -> None:
    """C-78."""
    for status in ("succeeded", "completed", "failed"):
        await add_job(conn, status, ago(days=30, seconds=1))
    kept = {await add_job(conn, status, ago(days=29, hours=23)) for status in ("succeeded", "failed")}
    kept.add(await add_job(conn, "succeeded", ago(days=1), scheduled=ago(days=40)))
    assert await retain(conn, settings, now=NOW) == replace(NOTHING, jobs=3)
    assert set(await column(conn, "select id from sync_jobs")) == kept
    assert await retain(conn, settings, now=NOW) == NOTHING


async def test_what_has_not_ended_is_never_too_old(conn: Connection, settings: Settings) -> None:
    """C-78, C-30: nor is a failed job that somebody has given a time to be tried again."""
    old = ago(days=90)
    kept = {
        await add_job(conn, "queued", None, scheduled=old),
        await add_job(conn, "running", None, scheduled=old, kind="full"),
        await add_job(conn, "failed", old, retry=old),
    }
    nameless = await add_job(conn, "failed", None, scheduled=old)  # foreign SQL gave it no end
    assert await retain(conn, settings, now=NOW) == replace(NOTHING, jobs=1)
    assert set(await column(conn, "select id from sync_jobs")) == kept
    assert nameless not in kept


async def test_unprocessed_deliveries_are_never_removed(conn: Connection, settings: Settings) -> None:
    """C-78."""
    await add_delivery(conn, "waiting", ago(days=900), None)
    await add_delivery(conn, "done late", ago(days=900), ago(days=13))
    await add_delivery(conn, "done", ago(days=15), ago(days=14, seconds=1))
    assert await retain(conn, settings, now=NOW) == replace(NOTHING, deliveries=1)
    assert await column(conn, "select delivery_id from webhook_delivery order by 1") == [
        "done late",
        "waiting",
    ]


async def test_states_of_authorisation_go_a_day_after_their_end(conn: Connection, settings: Settings) -> None:
    """C-78, C-64: until then somebody who comes late is told why."""
    await add_state(conn, "dead", ago(days=1, seconds=1))
    await add_state(conn, "used and dead", ago(days=2), ago(days=2))
    await add_state(conn, "late", ago(hours=23))
    await add_state(conn, "used", NOW + timedelta(minutes=5), NOW)
    assert await retain(conn, settings, now=NOW) == replace(NOTHING, states=2)
    assert await column(conn, "select state from oauth_states order by 1") == ["late", "used"]


async def test_signals_go_by_the_time_when_they_came(conn: Connection, settings: Settings) -> None:
    """C-78: the first sync of an account brings what happened years ago."""
    await add_signal(conn, "old", ago(days=366), ago(days=366))
    await add_signal(conn, "told late", ago(days=364), ago(days=3000))
    assert await retain(conn, settings, now=NOW) == replace(NOTHING, signals=1)
    assert await column(conn, "select dedupe_key from signals") == ["told late"]


async def test_each_has_its_own_age(conn: Connection, settings: Settings) -> None:
    """C-78."""
    settings = replace(settings, retain_sync_jobs_days=2, retain_deliveries_days=4, retain_signals_days=6)
    for days in (1, 3, 5, 7):
        await add_job(conn, "succeeded", ago(days=days))
        await add_delivery(conn, str(days), ago(days=days), ago(days=days))
        await add_signal(conn, str(days), ago(days=days), NOW)
    assert await retain(conn, settings, now=NOW) == Retained(jobs=3, deliveries=2, states=0, signals=1)


async def test_what_is_much_goes_in_batches(conn: Connection, settings: Settings) -> None:
    """C-78: all of it, in statements of a bounded size."""
    await conn.execute(
        "insert into signals (id, tenant_id, provider_slug, connection_id, kind, payload, received_at,"
        " occurred_at) select gen_random_uuid(), %s, 'github', %s, 'code_pushed', '{}', %s, %s"
        " from generate_series(1, %s)",
        [TENANT, LINK, ago(days=400), ago(days=400), 2 * BATCH + 5],
    )
    cursor = await conn.execute(retain_queries.SIGNALS, {"horizon": ago(days=365), "limit": BATCH})
    assert cursor.rowcount == BATCH
    assert await retain(conn, settings, now=NOW) == replace(NOTHING, signals=BATCH + 5)


async def test_what_somebody_holds_waits_for_the_next_time(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-78: a job that is being requeued, a delivery that is being replayed."""
    held = await add_job(conn, "failed", ago(days=90))
    await add_job(conn, "failed", ago(days=90))
    await add_delivery(conn, "held", ago(days=90), ago(days=90))
    other = await connect()
    async with other.transaction():
        await other.execute(
            "update sync_jobs set status = 'queued', finished_at = null where id = %s", [held]
        )
        await other.execute("update webhook_delivery set processed_at = null")
        assert await retain(conn, settings, now=NOW) == replace(NOTHING, jobs=1)
    assert await retain(conn, settings, now=NOW) == NOTHING
    assert await column(conn, "select id from sync_jobs") == [held]
    assert await column(conn, "select delivery_id from webhook_delivery") == ["held"]


async def test_a_worker_of_few_rights_can_clear_away(conn: Connection, settings: Settings) -> None:
    """C-78: as the role for workers, by the database's own clock, and as a duty."""
    await add_job(conn, "succeeded", datetime(2020, 1, 1, tzinfo=UTC))
    await add_delivery(conn, "old", ago(days=0), datetime(2020, 1, 1, tzinfo=UTC))
    await add_state(conn, "old", datetime(2020, 1, 1, tzinfo=UTC))
    await add_signal(conn, "old", datetime(2020, 1, 1, tzinfo=UTC), NOW)
    await conn.execute("set role holdfast_worker")
    ground: Any = SimpleNamespace(settings=settings)
    clearing = duty(ground)
    assert (clearing.name, clearing.every, clearing.by_all) == ("retain connectors", 3600.0, True)
    assert [await clearing.run(conn, "w1"), await clearing.run(conn, "w1")] == [4, 0]


FULL = """
create temporary table times as
select '2026-03-01 12:00Z'::timestamptz - n * interval '1 minute' as at, connections.*
from connections, generate_series(1, 20000) as n;
insert into sync_jobs (
    id, tenant_id, provider_slug, connection_id, job_type, status, scheduled_at, finished_at
)
select gen_random_uuid(), tenant_id, provider_slug, id, 'incremental', 'succeeded', at, at from times;
insert into signals (
    id, tenant_id, provider_slug, connection_id, kind, payload, received_at, occurred_at
)
select gen_random_uuid(), tenant_id, provider_slug, id, 'code_pushed', '{}', at, at from times;
"""


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        (retain_queries.JOBS, "scheduled_at < "),
        (retain_queries.SIGNALS, "received_at < "),
    ],
    ids=["jobs", "signals"],
)
async def test_what_is_young_is_not_read(conn: Connection, query: LiteralString, condition: str) -> None:
    """C-78: on a full table the look for what is old costs next to nothing when nothing is."""
    await conn.execute(FULL)
    await conn.execute("analyze sync_jobs, signals")
    params = {"horizon": ago(days=30), "limit": BATCH}
    found = await conn.execute("explain " + query, params)
    plan = "\n".join(line for (line,) in await found.fetchall())
    assert f"Index Cond: ({condition}" in plan, plan
    assert "Seq Scan" not in plan, plan
