"""The scheduler's tick on a real database: who gets a job and when, whoever else is at work."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from holdfast.apps.connectors import tick_queries
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.rounds import Rounds, Ticked
from holdfast.apps.connectors.schedule import Draw
from holdfast.apps.connectors.sync_state import moment_text
from holdfast.apps.connectors.tick import BATCH, duty, find, lanes, tick
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.engine.store import Store
from holdfast.engine.values import Item
from holdfast.runtime import pulse

Connect = Callable[[], Awaitable[Connection]]
Log = pytest.LogCaptureFixture

STORE = Store(SYNC_JOBS)
TENANT = UUID("7d9f3a52-6f0e-4a62-9a0e-0c1f1f1f0001")
DAY = datetime(2026, 3, 1, tzinfo=UTC)


def at(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return DAY.replace(hour=hour, minute=minute, second=second)


def text(hour: int, minute: int = 0, second: int = 0) -> str:
    return moment_text(at(hour, minute, second))


def steady(low: float, high: float) -> float:
    """Dice that always fall in the middle: 90 seconds of 900."""
    return (low + high) / 2


CREATED, NOW = at(9), at(12, 7)


@pytest.fixture(autouse=True)
async def _tenant(conn: Connection) -> None:
    await conn.execute("insert into tenants (id, name) values (%s, 'ours')", [TENANT])


async def connect_one(
    conn: Connection,
    sync: Any = None,
    *,
    created: datetime | str = CREATED,
    status: str = "active",
    metadata: Any = None,
    provider: str = "github",
    name: str | None = None,
) -> UUID:
    """A connection with this `sync`, or these metadata."""
    if metadata is None and sync is not None:
        metadata = {"sync": sync}
    link = uuid4()
    await conn.execute(
        "insert into connections (id, tenant_id, provider_slug, external_id, status, metadata, created_at)"
        " values (%s, %s, %s, %s, %s, %s, %s)",
        [
            link,
            TENANT,
            provider,
            name or str(link),
            status,
            None if metadata is None else Jsonb(metadata),
            created,
        ],
    )
    return link


async def connect_many(conn: Connection, count: int, due: str | None, name: str = "many") -> None:
    await conn.execute(
        """
        insert into connections (id, tenant_id, provider_slug, external_id, metadata, created_at)
        select gen_random_uuid(), %(tenant)s, 'github', %(name)s || n,
            case when %(due)s::text is null then '{}'
            else jsonb_build_object('sync', jsonb_build_object('next_run_at', %(due)s::text)) end,
            '2026-03-01 09:00Z'::timestamptz + make_interval(secs => n / 3)
        from generate_series(1, %(count)s) as n
        """,
        {"tenant": TENANT, "count": count, "due": due, "name": name},
    )


async def add_job(
    conn: Connection,
    connection: UUID,
    status: str = "queued",
    *,
    kind: str = "incremental",
    finished: datetime | str | None = None,
) -> UUID:
    link = uuid4()
    await conn.execute(
        "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, finished_at)"
        " select %s, tenant_id, provider_slug, id, %s, %s, %s from connections where id = %s",
        [link, kind, status, finished, connection],
    )
    return link


async def all_of(conn: Connection, query: LiteralString, *params: Any) -> list[Any]:
    return await (await conn.execute(query, params)).fetchall()


async def one_of(conn: Connection, query: LiteralString, *params: Any) -> Any:
    ((value,),) = await all_of(conn, query, *params)
    return value


async def sync_of(conn: Connection, link: UUID) -> Any:
    return await one_of(conn, "select metadata -> 'sync' from connections where id = %s", link)


async def jobs_of(conn: Connection, link: UUID, status: str = "queued") -> list[datetime]:
    """When the connection's incremental jobs of a status are scheduled."""
    found = await all_of(
        conn,
        "select scheduled_at from sync_jobs where connection_id = %s and job_type = 'incremental'"
        " and status = %s order by scheduled_at",
        link,
        status,
    )
    return [scheduled for (scheduled,) in found]


async def run(conn: Connection, settings: Settings, now: datetime = NOW, draw: Draw = steady) -> Ticked:
    return await tick(conn, STORE, settings, now=now, draw=draw)


def rounds(conn: Connection, settings: Settings, now: datetime = NOW) -> Rounds:
    return Rounds(conn, STORE, settings, now, now, steady)


REFUSE_BAD = """
create function refuse() returns trigger language plpgsql as $$
begin
    if new.external_id like 'bad%' then raise exception 'no write to %', new.external_id; end if;
    return new;
end
$$;
create trigger refuse before update on connections for each row execute function refuse()
"""


# -- what a tick writes ----------------------------------------------------------------------------------


async def test_a_new_connection_is_due_at_once_and_its_next_run_carries_the_jitter(
    conn: Connection, settings: Settings
) -> None:
    """C-20, C-22, C-24, C-25."""
    link = await connect_one(conn)
    assert await run(conn, settings, at(9, 0, 30)) == Ticked(scheduled=1)
    assert await sync_of(conn, link) == {
        "first_activated_at": text(9),
        "next_run_at": text(9, 16, 30),
        "last_jitter_seconds": 90,
    }
    ((job,),) = await all_of(conn, "select to_jsonb(j) from sync_jobs as j")
    assert job["connection_id"] == str(link)
    assert (job["tenant_id"], job["provider_slug"]) == (str(TENANT), "github")
    assert (job["job_type"], job["status"], job["priority"]) == ("incremental", "queued", 30)
    assert datetime.fromisoformat(job["scheduled_at"]) == at(9, 1, 30)
    assert (job["cursor"], job["attempts"], job["retry_after"]) == (None, 0, None)


async def test_the_next_tick_finds_nothing_to_do(conn: Connection, settings: Settings) -> None:
    """C-21: neither while the job waits, nor when it has ended before its time."""
    link = await connect_one(conn)
    await run(conn, settings)
    assert await run(conn, settings, NOW + timedelta(hours=5)) == Ticked()
    await conn.execute("update sync_jobs set status = 'succeeded', finished_at = %s", [NOW])
    assert await run(conn, settings, NOW + timedelta(minutes=5)) == Ticked()
    assert await run(conn, settings, NOW + timedelta(minutes=20)) == Ticked(scheduled=1)
    assert len(await jobs_of(conn, link)) == 1


async def test_the_database_has_the_clock_when_nobody_lends_one(conn: Connection, settings: Settings) -> None:
    """C-23."""
    link = await connect_one(conn, created="now")
    later = await connect_one(conn, {"next_run_at": "2999-01-01T00:00:00.000000Z"})
    assert await tick(conn, STORE, settings) == Ticked(scheduled=1, skipped=1)
    assert await one_of(
        conn,
        "select (metadata #>> '{sync,next_run_at}')::timestamptz - now()"
        " between interval '14 minutes' and interval '19 minutes' from connections where id = %s",
        link,
    )
    assert await jobs_of(conn, later) == []


@pytest.mark.parametrize(
    ("now", "due", "following"), [(at(10, 20), at(10, 15), text(10, 30)), (at(13, 7), at(13), text(13, 15))]
)
@pytest.mark.parametrize("noted", [True, False])
async def test_downtime_gives_exactly_one_job(
    conn: Connection, settings: Settings, now: datetime, due: datetime, following: str, noted: bool
) -> None:
    """C-23: finished 10:00, restart 10:20 gives 10:15 and 10:30; restart 13:07 gives 13:00 and 13:15."""
    sync = {"next_run_at": text(10, 15), "last_jitter_seconds": 7} if noted else {"last_jitter_seconds": 7}
    link = await connect_one(conn, sync)
    await add_job(conn, link, "succeeded", finished=at(9, 30))
    await add_job(conn, link, "completed", finished=at(10))
    await add_job(conn, link, "failed", finished=at(10, 10))
    await add_job(conn, link, "succeeded", kind="full", finished=at(10, 12))
    settings = replace(settings, sync_jitter_max=0.0)
    for expected in (1, 0, 0):
        assert (await run(conn, settings, now)).scheduled == expected
    assert await jobs_of(conn, link) == [due]
    sync = await sync_of(conn, link)
    assert (sync["next_run_at"], sync["last_jitter_seconds"]) == (following, 0)


async def test_a_success_that_is_not_long_ago_is_waited_out_and_the_time_is_noted(
    conn: Connection, settings: Settings
) -> None:
    """C-23: once noted, the connection does not stand at the head of every tick."""
    link = await connect_one(conn, {})
    await add_job(conn, link, "succeeded", finished=at(12))
    assert await run(conn, settings, NOW) == Ticked(skipped=1)
    assert await jobs_of(conn, link) == []
    assert await sync_of(conn, link) == {"first_activated_at": text(9), "next_run_at": text(12, 15)}
    assert await run(conn, settings, NOW) == Ticked()
    assert await run(conn, settings, at(12, 15)) == Ticked(scheduled=1)
    assert (await sync_of(conn, link))["next_run_at"] == text(12, 30)


async def test_a_success_at_no_time_at_all_does_not_count(conn: Connection, settings: Settings) -> None:
    """C-23."""
    link = await connect_one(conn, {"last_jitter_seconds": 7})
    await add_job(conn, link, "succeeded", finished="infinity")
    assert await run(conn, settings) == Ticked(scheduled=1)
    assert (await sync_of(conn, link))["next_run_at"] == text(12, 15)


async def test_what_was_activated_first_later_than_created_keeps_its_time(
    conn: Connection, settings: Settings
) -> None:
    """C-22, C-25."""
    link = await connect_one(conn, {"first_activated_at": text(12, 3)})
    assert await run(conn, settings, at(12)) == Ticked(skipped=1)
    assert await run(conn, settings) == Ticked(scheduled=1)
    sync = await sync_of(conn, link)
    assert (sync["first_activated_at"], sync["next_run_at"]) == (text(12, 3), text(12, 19, 30))


@pytest.mark.parametrize("status", ["paused", "revoked", "error"])
async def test_only_active_connections_are_scheduled(
    conn: Connection, settings: Settings, status: str
) -> None:
    """C-21, C-22: also when it ceases to be active after it was found."""
    link = await connect_one(conn, status=status)
    assert await run(conn, settings) == Ticked()
    assert await rounds(conn, settings).page([link]) == Ticked(skipped=1)
    assert await rounds(conn, settings).page([uuid4()]) == Ticked(skipped=1)  # gone altogether
    assert await sync_of(conn, link) is None


async def test_the_job_and_its_time_are_written_by_one_transaction(
    conn: Connection, settings: Settings
) -> None:
    """C-20: the seed's scenario."""
    await conn.execute(
        """
        create table seen (what text, transaction xid8);
        create function note() returns trigger language plpgsql as $$
        begin insert into seen values (tg_table_name, pg_current_xact_id()); return null; end $$;
        create trigger note after update on connections for each row execute function note();
        create trigger note after insert on sync_jobs for each row execute function note();
        """
    )
    for _ in range(3):
        await connect_one(conn)
    await run(conn, settings)
    assert await all_of(
        conn, "select count(*), count(distinct what), count(distinct transaction) from seen"
    ) == [(6, 2, 1)]


async def test_neither_the_job_nor_its_time_is_there_when_one_of_them_fails(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-20, C-22: the failure is told with the connection, and ends nothing."""
    await conn.execute(REFUSE_BAD)
    bad = await connect_one(conn, {"next_run_at": text(12)}, name="bad")
    good = await connect_one(conn, {"next_run_at": text(12)})
    assert await run(conn, settings) == Ticked(scheduled=1, failed=1)
    assert (await jobs_of(conn, bad), await sync_of(conn, bad)) == ([], {"next_run_at": text(12)})
    assert len(await jobs_of(conn, good)) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == f"connection {bad} could not be scheduled: no write to bad"


async def test_a_job_that_the_database_refuses_leaves_the_time_as_it_was(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-20, C-22: what the database says of whole rows stays out of the log."""
    await conn.execute("alter table sync_jobs add constraint odd check (connection_id::text = 'secret')")
    link = await connect_one(conn, {"next_run_at": text(12)})
    assert await run(conn, settings) == Ticked(failed=1)
    assert await sync_of(conn, link) == {"next_run_at": text(12)}
    assert str(link) in caplog.text
    assert "Failing row" not in caplog.text


async def test_a_connection_of_no_time_at_all_fails_alone(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-22."""
    for created in ("infinity", "-infinity"):
        await connect_one(conn, created=created)
    await connect_many(conn, 2 * BATCH, None)
    assert await run(conn, settings) == Ticked(scheduled=2 * BATCH, failed=2)
    assert caplog.text.count("could not be scheduled") == 2


async def test_tokens_and_all_else_of_a_connection_are_left_alone(
    conn: Connection, settings: Settings
) -> None:
    """C-17."""
    link = await connect_one(conn)
    await conn.execute("update connections set access_token_ciphertext = '\\x01', scopes = '{repo}'")
    before = (await all_of(conn, "select to_jsonb(c) - 'metadata' - 'updated_at' from connections as c"))[0]
    await run(conn, settings)
    after = (await all_of(conn, "select to_jsonb(c) - 'metadata' - 'updated_at' from connections as c"))[0]
    assert before == after
    assert len(await jobs_of(conn, link)) == 1


# -- what stands in the way ------------------------------------------------------------------------------


async def test_a_second_queued_incremental_job_is_refused_by_the_index_and_the_tick_carries_on(
    conn: Connection, settings: Settings
) -> None:
    """C-26: the seed's scenario, also when the job came after the connection was found."""
    busy = await connect_one(conn, {"next_run_at": text(12), "last_jitter_seconds": 7})
    free = await connect_one(conn, {"next_run_at": text(12, 1)})
    await add_job(conn, busy)
    with pytest.raises(psycopg.errors.UniqueViolation, match="idx_sync_jobs_connection_type_status"):
        await add_job(conn, busy)
    assert await rounds(conn, settings).page([busy, free]) == Ticked(scheduled=1, skipped=1)
    assert len(await jobs_of(conn, busy)) == len(await jobs_of(conn, free)) == 1


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_a_refused_insert_leaves_next_run_at_unchanged_and_a_cleaned_interval_is_saved(
    conn: Connection, settings: Settings, status: str
) -> None:
    """C-26."""
    noted = {"next_run_at": text(11), "last_jitter_seconds": 7, "first_activated_at": text(9)}
    link = await connect_one(conn, {**noted, "interval_seconds": 59, "mine": 1})
    odd = {"next_run_at": "noon", "last_jitter_seconds": -1, "first_activated_at": text(9)}
    other = await connect_one(conn, {**odd, "interval_seconds": 59})
    await add_job(conn, link, status)
    await add_job(conn, other, status)
    assert await rounds(conn, settings).page([link, other]) == Ticked(skipped=2, repaired=2)
    assert await sync_of(conn, link) == {**noted, "interval_seconds": 900, "mine": 1}
    assert await sync_of(conn, other) == {**odd, "interval_seconds": 900}


@pytest.mark.parametrize("status", ["queued", "running"])
async def test_a_connection_that_is_still_busy_is_passed_over(
    conn: Connection, settings: Settings, status: str
) -> None:
    """C-21."""
    link = await connect_one(conn, {"next_run_at": text(11)})
    await add_job(conn, link, status)
    assert await run(conn, settings) == Ticked()
    assert await sync_of(conn, link) == {"next_run_at": text(11)}


@pytest.mark.parametrize("kind", ["full", "webhook"])
async def test_a_job_of_another_type_stands_in_nobody_s_way(
    conn: Connection, settings: Settings, kind: str
) -> None:
    """C-32: the seed's scenario, from the scheduler's side."""
    link = await connect_one(conn)
    await add_job(conn, link, "running", kind=kind)
    assert await run(conn, settings) == Ticked(scheduled=1)


@pytest.mark.parametrize("status", ["completed", "succeeded", "failed"])
async def test_a_completed_incremental_job_does_not_block_the_next_one(
    conn: Connection, settings: Settings, status: str
) -> None:
    """C-26: the seed's scenario."""
    link = await connect_one(conn, {"next_run_at": text(12)})
    await add_job(conn, link, status, finished=at(11))
    assert await run(conn, settings) == Ticked(scheduled=1)
    assert len(await jobs_of(conn, link)) == 1


# -- whoever else is at work -----------------------------------------------------------------------------


async def test_two_ticks_at_once_create_one_job_and_no_error(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-27."""
    await connect_many(conn, 300, None)
    await connect_many(conn, 300, text(12), "due")
    conns = [await connect() for _ in range(4)]
    start = asyncio.Barrier(len(conns))

    async def ticking(own: Connection) -> Ticked:
        await start.wait()
        return await run(own, settings)

    ticked = sum(await asyncio.gather(*map(ticking, conns)), start=Ticked())
    assert (ticked.scheduled, ticked.failed) == (600, 0)
    assert await one_of(conn, "select count(*) from sync_jobs") == 600
    assert await run(conn, settings) == Ticked()


async def test_a_tick_passes_over_what_another_is_about_to_schedule(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-22, C-27: it does not wait for it, before, during or after the other's commit."""
    ids = [await connect_one(conn, {"next_run_at": text(12)}) for _ in range(3)]
    ids += [await connect_one(conn) for _ in range(3)]
    other = await connect()
    async with other.transaction():
        assert await rounds(other, settings).page(ids) == Ticked(scheduled=6)
        assert await run(conn, settings) == Ticked(skipped=6)
    assert await rounds(conn, settings).page(ids) == Ticked(skipped=6)
    assert await one_of(conn, "select count(*) from sync_jobs") == 6


@pytest.mark.parametrize("locks", [True, False], ids=["locks the connection", "moves the job alone"])
async def test_a_tick_during_a_finish_neither_blocks_nor_doubles(
    conn: Connection, connect: Connect, settings: Settings, locks: bool
) -> None:
    """C-27, C-37."""
    link = await connect_one(conn, {"next_run_at": text(12), "last_jitter_seconds": 7})
    free = await connect_one(conn, {"next_run_at": text(12)})
    await add_job(conn, link, "running")
    finisher = await connect()
    async with finisher.transaction():
        if locks:
            await finisher.execute("select from connections where id = %s for no key update", [link])
        await finisher.execute("update sync_jobs set status = 'succeeded', finished_at = %s", [NOW])
        assert await run(conn, settings) == Ticked(scheduled=1)
        assert await rounds(conn, settings).page([link]) == Ticked(
            skipped=1
        )  # found before the job was there
    assert (await jobs_of(conn, link), len(await jobs_of(conn, free))) == ([], 1)
    assert await sync_of(conn, link) == {"next_run_at": text(12), "last_jitter_seconds": 7}
    assert await run(conn, settings) == Ticked(scheduled=1)
    assert len(await jobs_of(conn, link)) == 1


async def test_a_finish_that_writes_the_cursor_meanwhile_does_not_lose_it(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-17, C-37: what the tick writes, it writes into the row that it has locked."""
    link = await connect_one(conn, {"next_run_at": text(12), "cursor": "old"})
    finisher = await connect()
    async with finisher.transaction():
        await finisher.execute(
            "update connections set metadata = jsonb_set(metadata, '{sync,cursor}', '\"new\"') where id = %s",
            [link],
        )
        assert await run(conn, settings) == Ticked(skipped=1)
    assert await run(conn, settings) == Ticked(scheduled=1)
    assert (await sync_of(conn, link))["cursor"] == "new"


async def test_a_job_that_somebody_is_about_to_add_is_not_waited_for(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-22, C-27: the unique index would have the tick wait for the other's commit."""
    link = await connect_one(conn, {"next_run_at": text(12)})
    free = [await connect_one(conn, {"next_run_at": text(12)}) for _ in range(3)]
    other = await connect()
    item = Item(kind="incremental", tenant=TENANT, extras={"connection_id": link, "provider_slug": "github"})
    async with other.transaction():
        assert (await STORE.enqueue(other, item)).created
        assert await run(conn, settings) == Ticked(scheduled=3, skipped=1)
    assert await run(conn, settings) == Ticked()
    assert [len(await jobs_of(conn, one)) for one in (link, *free)] == [1, 1, 1, 1]
    assert await sync_of(conn, link) == {"next_run_at": text(12)}


async def test_the_tick_leaves_no_setting_behind(conn: Connection, settings: Settings) -> None:
    """C-1: a connection behind a pooler is somebody else's after each transaction."""
    await connect_one(conn)
    query = "select name, setting from pg_settings where name ~ 'timeout|^enable' order by name"
    before = await all_of(conn, query)
    await run(conn, settings)
    assert before == await all_of(conn, query)


async def test_a_stop_ends_after_the_current_transaction(conn: Connection, settings: Settings) -> None:
    """C-27."""
    await connect_many(conn, 3 * BATCH, None)
    drawn = 0

    def stopping(low: float, high: float) -> float:
        nonlocal drawn
        drawn += 1
        if drawn == BATCH + 5:  # in the middle of the second transaction
            ticking.cancel()
        return low

    ticking = asyncio.ensure_future(run(conn, settings, draw=stopping))
    with pytest.raises(asyncio.CancelledError):
        await ticking
    assert await one_of(conn, "select count(*) from sync_jobs") == 2 * BATCH
    assert await run(conn, settings) == Ticked(scheduled=BATCH)


async def test_a_stop_also_ends_what_is_done_one_by_one(conn: Connection, settings: Settings) -> None:
    """C-27: after the transaction of one connection, not after those of a whole page."""
    await conn.execute(REFUSE_BAD)
    await connect_many(conn, 10, text(11))
    await connect_one(conn, {"next_run_at": text(12)}, name="bad")
    drawn = 0

    def stopping(low: float, high: float) -> float:
        nonlocal drawn
        drawn += 1
        if drawn == 11 + 3:  # all together in vain, and then each alone
            ticking.cancel()
        return low

    ticking = asyncio.ensure_future(run(conn, settings, draw=stopping))
    with pytest.raises(asyncio.CancelledError):
        await ticking
    assert await one_of(conn, "select count(*) from sync_jobs") == 3


async def test_a_connection_that_is_lost_is_told_to_whoever_runs_the_tick(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-22: a failure of the database is not one of each connection."""
    await connect_many(conn, 2 * BATCH, None)
    own = await connect()

    def breaking(low: float, high: float) -> float:
        own.pgconn.finish()
        return low

    with pytest.raises(psycopg.OperationalError):
        await run(own, settings, draw=breaking)
    assert await one_of(conn, "select count(*) from sync_jobs") == 0


async def test_a_worker_of_few_rights_can_tick(conn: Connection, settings: Settings) -> None:
    """C-20: as the role for workers, that may do no more than it must."""
    await connect_one(conn)
    await connect_one(conn, {"next_run_at": text(12)})
    await conn.execute("set role holdfast_worker")
    assert await run(conn, settings) == Ticked(scheduled=2)


# -- nobody starves --------------------------------------------------------------------------------------


async def test_those_without_a_time_come_first_and_then_the_longest_overdue(
    conn: Connection, settings: Settings
) -> None:
    """C-21."""
    expected = [
        await connect_one(conn, created=at(8)),
        await connect_one(conn, {"next_run_at": "soon"}, created=at(9)),
        await connect_one(conn, created=at(10)),
        await connect_one(conn, {"next_run_at": text(10)}, created=at(11)),
        await connect_one(conn, {"next_run_at": text(11)}, created=at(8)),
        await connect_one(conn, {"next_run_at": text(11)}, created=at(9)),
        await connect_one(conn, {"next_run_at": moment_text(NOW)}),
    ]
    await connect_one(conn, {"next_run_at": moment_text(NOW + timedelta(microseconds=1))})
    found = [place.id for lane in lanes(NOW, settings) for place in await find(conn, lane, lane.begin)]
    assert found == expected


async def test_600_busy_or_failing_connections_do_not_starve_the_601st(
    conn: Connection, settings: Settings
) -> None:
    """C-21."""
    await conn.execute(REFUSE_BAD)
    for due in (None, text(9)):
        await connect_many(conn, 300, due, f"bad {due}")
        await connect_many(conn, 300, due, f"busy {due}")
    await conn.execute(
        "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status)"
        " select gen_random_uuid(), tenant_id, provider_slug, id, 'incremental', 'running'"
        " from connections where external_id like 'busy%'"
    )
    new = await connect_one(conn, created=at(12))
    due = await connect_one(conn, {"next_run_at": text(12)})
    assert await run(conn, settings) == Ticked(scheduled=2, failed=600)
    assert len(await jobs_of(conn, new)) == len(await jobs_of(conn, due)) == 1


async def test_locked_connections_do_not_starve_the_others(
    conn: Connection, connect: Connect, settings: Settings
) -> None:
    """C-21, C-22."""
    await connect_many(conn, 2 * BATCH, None, "held")
    await connect_many(conn, 2 * BATCH, None)
    holder = await connect()
    async with holder.transaction():
        await holder.execute("select from connections where external_id like 'held%' for update")
        assert await run(conn, settings) == Ticked(scheduled=2 * BATCH, skipped=2 * BATCH)
    assert await run(conn, settings) == Ticked(scheduled=2 * BATCH)


async def test_one_tick_schedules_ten_thousand_connections(conn: Connection, settings: Settings) -> None:
    """C-21: those without a time and those that are due, whose times are often the same."""
    await connect_many(conn, 5_000, None)
    await connect_many(conn, 5_000, text(11), "due")
    assert await run(conn, settings) == Ticked(scheduled=10_000)
    assert await all_of(
        conn, "select count(*), count(distinct connection_id) from sync_jobs where status = 'queued'"
    ) == [(10_000, 10_000)]
    assert await one_of(
        conn, "select min(metadata #>> '{sync,next_run_at}') > %s from connections", moment_text(NOW)
    )
    assert await run(conn, settings) == Ticked()


PLANS = """
insert into connections (id, tenant_id, provider_slug, external_id, status, metadata, created_at)
select gen_random_uuid(), '7d9f3a52-6f0e-4a62-9a0e-0c1f1f1f0001', 'github', 'c' || n,
    case when n % 2 = 0 then 'active' else 'paused' end,
    case when n % 6 = 0 then '{}' else jsonb_build_object('sync', jsonb_build_object('next_run_at',
        to_char(timestamp '2026-03-01 12:00' + make_interval(secs => (n - 10000) % 7200),
            'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))) end,
    '2026-03-01 09:00Z'::timestamptz + make_interval(secs => n)
from generate_series(1, 24000) as n;
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status)
select gen_random_uuid(), tenant_id, provider_slug, id, 'incremental',
    (array['queued', 'running', 'succeeded', 'succeeded', 'failed'])[1 + n % 5]
from (select *, row_number() over () as n from connections) as c;
"""


@pytest.mark.parametrize("analyzed", [True, False])
async def test_a_page_is_read_by_the_index_and_costs_a_page(
    conn: Connection, settings: Settings, analyzed: bool
) -> None:
    """C-21: 12 000 active ones among as many paused, and a job for each."""
    await conn.execute("alter table connections set (autovacuum_enabled = off)")
    await conn.execute("alter table sync_jobs set (autovacuum_enabled = off)")
    await conn.execute(PLANS)
    if analyzed:
        await conn.execute("vacuum analyze connections, sync_jobs")
    for lane in lanes(NOW, settings):
        middle = await find(conn, lane, lane.begin)
        for place in (lane.begin, *middle[-1:]):
            params = {**place.__dict__, "until": lane.until, "limit": BATCH}
            plan = await explain(conn, lane.query, params)
            assert "idx_connections_due" in plan, plan
            assert "Seq Scan" not in plan.replace("Seq Scan on providers", ""), plan
            assert "Sort" not in plan, plan
            (buffers,) = re.findall(r"^  Buffers: shared hit=(\d+)", plan, re.MULTILINE)[:1]
            assert int(buffers) < 3_000, plan  # a probe for each connection that is passed, and no more
            for query in (tick_queries.LOCK, tick_queries.HISTORY):
                plan = await explain(conn, query, {"ids": [each.id for each in middle]})
                assert "Seq Scan" not in plan, plan


async def explain(conn: Connection, query: LiteralString, params: dict[str, Any]) -> str:
    async with conn.transaction():
        await conn.execute(tick_queries.UNSORTED)
        await conn.execute(query, params)  # so that everything is in memory
        found = await conn.execute("explain (analyze, buffers, timing off) " + query, params)
        return "\n".join(line for (line,) in await found.fetchall())


# -- what is mended --------------------------------------------------------------------------------------


async def test_an_override_of_7200_with_a_limit_of_3600_is_stored_as_900_and_warned_of(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-18: the seed's scenario."""
    settings = replace(settings, sync_max_interval_seconds=3600)
    link = await connect_one(conn, {"interval_seconds": 7200, "next_run_at": text(12)})
    assert await run(conn, settings) == Ticked(scheduled=1, repaired=1)
    sync = await sync_of(conn, link)
    assert (sync["interval_seconds"], sync["next_run_at"]) == (900, text(12, 15))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(link) in record.getMessage()
    assert (
        "interval_seconds must be a whole number of seconds from 60 to 3600, not 7200" in record.getMessage()
    )


@pytest.mark.parametrize("value", [59, 86401, "900", 900.5, True, [], "soon"], ids=repr)
async def test_an_interval_that_cannot_be_used_is_stored_as_the_default(
    conn: Connection, settings: Settings, value: Any
) -> None:
    """C-18."""
    link = await connect_one(conn, {"interval_seconds": value, "next_run_at": text(12)})
    assert await run(conn, settings) == Ticked(scheduled=1, repaired=1)
    assert (await sync_of(conn, link))["interval_seconds"] == 900


async def test_an_interval_that_was_never_set_is_not_stored_and_one_of_its_own_is_kept(
    conn: Connection, settings: Settings
) -> None:
    """C-16."""
    usual = await connect_one(conn, {"next_run_at": text(12)})
    own = await connect_one(conn, {"next_run_at": text(12), "interval_seconds": 60})
    assert await run(conn, settings) == Ticked(scheduled=2)
    assert "interval_seconds" not in await sync_of(conn, usual)
    sync = await sync_of(conn, own)
    assert (sync["interval_seconds"], sync["next_run_at"], sync["last_jitter_seconds"]) == (
        60,
        text(12, 8),
        6,
    )


async def test_a_malformed_sync_object_is_repaired_and_its_siblings_survive(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-17."""
    flawed = """
    {"team": {"n": 1.10, "big": 12345678901234567890.123, "none": null},
     "sync": {"interval_seconds": "fast", "next_run_at": "2026-03-01T12:00:00Z", "last_jitter_seconds": -3,
              "first_activated_at": 0, "cooldown_until": "later", "cursor": {"at": 1.50}, "mine": [1e400]}}
    """
    link = await connect_one(conn)
    await conn.execute("update connections set metadata = %s::jsonb", [flawed])
    assert await run(conn, settings) == Ticked(scheduled=1, repaired=1)
    found = await one_of(conn, "select metadata::text from connections where id = %s", link)
    assert '{"n": 1.10, "big": 12345678901234567890.123, "none": null}' in found
    assert '"cursor": {"at": 1.50}' in found
    assert '"mine": [1000' in found
    sync = json.loads(found)["sync"]
    del sync["cursor"], sync["mine"]
    assert sync == {
        "interval_seconds": 900,
        "next_run_at": text(12, 16, 30),
        "last_jitter_seconds": 90,
        "first_activated_at": text(9),
    }
    (record,) = caplog.records
    for key in ("interval_seconds", "next_run_at", "last_jitter_seconds", "first_activated_at", "cooldown"):
        assert key in record.getMessage()


@pytest.mark.parametrize("sync", ["text", [], 7, True, [{"next_run_at": 1}]], ids=repr)
async def test_a_sync_that_is_no_object_becomes_one(conn: Connection, settings: Settings, sync: Any) -> None:
    """C-17."""
    link = await connect_one(conn, metadata={"team": "blue", "sync": sync})
    assert await run(conn, settings) == Ticked(scheduled=1, repaired=1)
    metadata = await one_of(conn, "select metadata from connections where id = %s", link)
    assert metadata["team"] == "blue"
    assert set(metadata["sync"]) == {"first_activated_at", "next_run_at", "last_jitter_seconds"}


@pytest.mark.parametrize("metadata", ["text", [1, 2], 7], ids=repr)
async def test_metadata_that_are_no_object_become_one(
    conn: Connection, settings: Settings, metadata: Any
) -> None:
    """C-17."""
    link = await connect_one(conn, metadata=metadata)
    assert await run(conn, settings) == Ticked(scheduled=1, repaired=1)
    assert set(await one_of(conn, "select metadata from connections where id = %s", link)) == {"sync"}


@pytest.mark.parametrize("metadata", [{"sync": None}, {"sync": {"next_run_at": None}}, {}], ids=repr)
async def test_a_null_is_filled_in_without_a_word(
    conn: Connection, settings: Settings, caplog: Log, metadata: Any
) -> None:
    """C-17."""
    link = await connect_one(conn, metadata=metadata)
    assert await run(conn, settings) == Ticked(scheduled=1)
    assert (await sync_of(conn, link))["next_run_at"] == text(12, 16, 30)
    assert caplog.records == []


SPELLINGS = [
    "2026-03-01T12:00:00Z",
    "2026-03-01T12:00:00.000000+00:00",
    "2999-01-01 00:00",
    "9999-99-99T99:99:99.999999Z",
    "2999-02-30T00:00:00.000000Z",
    "0000-00-00T00:00:00.000000Z",
    "2026-03-01T12:00:00.000000Z\n",
    "",
    1772366400,
    {"at": 1},
]


@pytest.mark.parametrize("spelling", SPELLINGS, ids=repr)
async def test_a_next_run_at_in_another_spelling_is_repaired_not_starved(
    conn: Connection, settings: Settings, caplog: Log, spelling: Any
) -> None:
    """C-17: also one that has the right form and is no time."""
    link = await connect_one(conn, {"next_run_at": spelling, "last_jitter_seconds": 5})
    await add_job(conn, link, "succeeded", finished=at(11))
    assert await run(conn, settings) == Ticked(scheduled=1, repaired=1)
    assert (await sync_of(conn, link))["next_run_at"] == text(12, 15)
    assert str(link) in caplog.text


async def test_another_spelling_is_repaired_and_told_once_also_when_nothing_is_due(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-17."""
    link = await connect_one(conn, {"next_run_at": "2026-03-01 12:00", "last_jitter_seconds": 5})
    await add_job(conn, link, "succeeded", finished=at(12))
    assert await run(conn, settings) == Ticked(skipped=1, repaired=1)
    assert await run(conn, settings) == Ticked()
    assert (await sync_of(conn, link))["next_run_at"] == text(12, 15)
    assert len(caplog.records) == 1


async def test_a_time_that_lies_far_ahead_is_left_alone(
    conn: Connection, settings: Settings, caplog: Log
) -> None:
    """C-23: somebody may have meant it."""
    sync = {"next_run_at": "2999-01-01T00:00:00.000000Z", "first_activated_at": text(9)}
    link = await connect_one(conn, sync)
    assert await run(conn, settings) == Ticked(skipped=1)
    assert await sync_of(conn, link) == sync
    assert caplog.records == []


# -- the duty and its numbers ----------------------------------------------------------------------------


async def test_a_worker_ticks_as_often_as_the_settings_say(conn: Connection, settings: Settings) -> None:
    """C-21."""
    settings = replace(settings, sync_tick_seconds=30.0)
    ground: Any = SimpleNamespace(settings=settings, stores={"sync_jobs": STORE})
    await connect_one(conn)
    ticking = duty(ground)
    assert (ticking.name, ticking.every, ticking.by_all) == ("schedule", 30.0, True)
    assert [await ticking.run(conn, "w1"), await ticking.run(conn, "w1")] == [1, 0]


async def told(conn: Connection, fact: str) -> dict[str, tuple[int, float]]:
    totals = [total for total in await pulse.totals(conn) if total.fact == fact]
    assert {(total.ledger, total.kind) for total in totals} <= {("sync_jobs", "incremental")}
    return {total.label: (total.count, total.sum) for total in totals}


async def test_what_ticks_did_is_told_to_the_statistics(conn: Connection, settings: Settings) -> None:
    """C-27: jobs by provider, their jitter, and how long a tick took."""
    for provider in ("github", "github", "slack"):
        await connect_one(conn, {"next_run_at": text(12)}, provider=provider)
    await run(conn, settings)
    await run(conn, settings)
    assert await told(conn, "scheduled") == {"github": (2, 0.0), "slack": (1, 0.0)}
    assert await told(conn, "jitter") == {"300": (3, 270.0)}
    assert sum(count for count, _ in (await told(conn, "tick")).values()) == 2


async def test_a_tick_goes_on_without_statistics(conn: Connection, settings: Settings, caplog: Log) -> None:
    """C-27."""
    await connect_one(conn)
    await conn.execute("drop table holdfast_pulse")
    assert await run(conn, settings) == Ticked(scheduled=1)
    assert "statistics are not kept" in caplog.text


async def test_who_only_sends_webhooks_is_not_asked(conn: Connection, settings: Settings) -> None:
    """C-9, C-21: a webhook-only provider has nothing to poll."""
    silent, asked = await connect_one(conn), await connect_one(conn)
    await conn.execute("update connections set provider_slug = 'zoho_cliq' where id = %s", [silent])
    assert (await run(conn, settings)).scheduled == 1
    assert (len(await jobs_of(conn, silent)), len(await jobs_of(conn, asked))) == (0, 1)
