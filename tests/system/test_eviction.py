"""StreamEviction: old rows of a stream go, in one job; what a record needs to stay true is kept."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from psycopg.errors import InsufficientPrivilege, RestrictViolation

from holdfast import Settings
from holdfast.apps.schedules import days
from holdfast.db.pool import Connection
from holdfast.engine import verify
from holdfast.errors import Conflict, InvalidInput, NotFound
from holdfast.runtime.app import App, Table
from schedules.recorded import DAY, at, entry, forge, observe
from system.kit import Stage, stage

ANA, BO = 42, 43
LONG = 60.0  # seconds: far less than the age of anything that is recorded here
ORG = uuid4()


async def worked(staged: Stage, count: int) -> None:
    """Jobs that were run to their ends, good and bad, each with its events."""

    @staged.app.handler("mail")
    async def mail(number: int) -> None:
        if number % 5 == 0:
            raise ValueError(number)

    for number in range(count):
        await staged.app.enqueue("job", "mail", number, tenant=ORG, limit=0)
    await staged.drain(ledgers=["job"])


async def aged(conn: Connection, interval: str = "1 day") -> None:
    """Makes events old, as only a superuser can."""
    await forge(conn, f"update job_event set ts = ts - interval '{interval}'")
    await forge(
        conn,
        f"update job set finished_at = finished_at - interval '{interval}',"
        f" started_at = started_at - interval '{interval}'",
    )


async def test_eviction_of_a_full_stream_ends_in_one_job_without_a_retry_and_leaves_the_last_event_of_all(
    settings: Settings, conn: Connection
) -> None:
    """Y-29: only of finished jobs; and what is left of the record is still found true."""
    async with stage(settings) as staged:
        await worked(staged, 20)
        waiting = await staged.app.enqueue("job", "other", tenant=ORG)
        await aged(conn)
        before = await staged.one("select count(*) from job_event")
        last = await staged.rows("select distinct on (job_id) * from job_event order by job_id, seq desc")
        done = await staged.run(
            "stream_eviction", {"table": "job_event", "ttl_seconds": LONG, "batch_size": 7}
        )
        assert (done.state, done.attempts) == ("completed", 0)
        assert done.columns["message"] == f"{before - 21} rows"
        assert sum("progress" in line for line in staged.lines(str(done.id))) >= 1
        left = await staged.rows("select * from job_event order by job_id")
        assert left == last
        assert waiting.id in {row["job_id"] for row in left}
        report = await verify.verify(staged.app.stores["job"], conn)
        assert (report.rows, report.lies) == (21, ())
        again = await staged.run("stream_eviction", {"table": "job_event", "ttl_seconds": LONG})
        assert again.columns["message"] == "0 rows"


async def test_a_job_that_ended_lately_or_runs_again_keeps_all_of_its_events(
    settings: Settings, conn: Connection
) -> None:
    """Y-29: a record is cut as a whole or not at all; what follows the end that was left is replayed."""
    async with stage(settings) as staged:
        await worked(staged, 6)  # 0 and 5 are dead letters
        await aged(conn)
        dead = await staged.rows("select id from job where status = 'dead_letter' order by id")
        await staged.app.stores["job"].requeue(conn, dead[0]["id"])
        count = "select count(*) from job_event where job_id = %s"
        kept = await staged.one(count, dead[0]["id"])
        await staged.run("stream_eviction", {"table": "job_event", "ttl_seconds": LONG})
        assert await staged.one(count, dead[0]["id"]) == kept
        assert await staged.one(count, dead[1]["id"]) == 1
        await staged.app.stores["job"].requeue(conn, dead[1]["id"])
        await staged.drain(ledgers=["job"])
        report = await verify.verify(staged.app.stores["job"], conn)
        assert (report.rows, report.lies) == (6, ())
        await forge(conn, "delete from job_event where prev_status is null")
        assert (await verify.verify(staged.app.stores["job"], conn)).found == 1  # no end begins that record


async def test_the_gate_is_open_for_the_eviction_alone(settings: Settings, conn: Connection) -> None:
    """Y-29: a transaction-local switch, that only the owner's right to delete makes useful."""
    async with stage(settings) as staged:
        await worked(staged, 3)
        await aged(conn)
        await staged.run("stream_eviction", {"table": "job_event", "ttl_seconds": LONG})
        with pytest.raises(RestrictViolation, match="append-only"):
            await staged.do("delete from job_event")
        async with conn.transaction(force_rollback=True):
            await conn.execute("set local role holdfast_worker")
            await conn.execute("select set_config('holdfast.evict', 'on', true)")
            with pytest.raises(InsufficientPrivilege):
                await conn.execute("delete from job_event")


async def test_signals_go_by_when_they_came_and_deliveries_only_when_they_were_processed(
    settings: Settings,
) -> None:
    """Y-22, Y-29"""
    async with stage(settings) as staged:
        tenant, link = uuid4(), uuid4()
        await staged.do("insert into tenants (id) values (%s)", tenant)
        await staged.do(
            "insert into connections (id, tenant_id, provider_slug, external_id)"
            " values (%s, %s, 'slack', 'x')",
            *(link, tenant),
        )
        await staged.do(
            "insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at,"
            " received_at, payload) select gen_random_uuid(), %s, 'slack', %s, 'said',"
            " now() - interval '9 years',"
            " now() - n * interval '1 hour', '{}' from generate_series(0, 9) as n",
            *(tenant, link),
        )
        await staged.do(
            "insert into webhook_delivery (provider_slug, tenant_id, delivery_id, body_sha256, verification,"
            " received_at, processed_at) select 'slack', %s, n::text, 'x', 'signature',"
            " now() - interval '1 day', case when n %% 2 = 0 then now() end from generate_series(1, 8) as n",
            tenant,
        )
        done = await staged.run("stream_eviction", {"table": "signals", "ttl_seconds": 4.5 * 3600})
        assert done.columns["message"] == "5 rows"
        assert await staged.one("select min(received_at) > now() - interval '5 hours' from signals")
        done = await staged.run("stream_eviction", {"table": "webhook_delivery", "ttl_seconds": 60})
        assert done.columns["message"] == "4 rows"
        assert await staged.one("select count(processed_at) from webhook_delivery") == 0


async def recorded(conn: Connection) -> None:
    """Two days of ana, of which one has changed often, and one of bo."""
    for minute, start in enumerate(("09:00", "10:00", "09:00", "11:00", "10:00")):
        await observe(conn, ANA, [entry(start), entry("12:00", title="Bo Ek")], at=at(minute))
    await observe(conn, ANA, [entry("07:00")], at=at(9), day=DAY + timedelta(days=1))
    await observe(conn, BO, [entry("07:00"), entry("08:00", title="C"), entry("09:00", title="D")])


async def test_the_record_of_schedules_stays_true_when_its_events_are_evicted(
    settings: Settings, conn: Connection
) -> None:
    """Y-29, S-46: a day's events go together, and what they led to is kept as the origin of later ones."""
    await recorded(conn)
    known = await days.day(conn, ANA, DAY)
    async with stage(settings) as staged:
        job = {"table": "schedule_event", "ttl_seconds": LONG, "batch_size": 3}
        done = await staged.run("stream_eviction", job)
        assert (done.columns["message"], done.attempts) == ("10 rows", 0)
        assert await staged.one("select count(*) from schedule_ingest.schedule_event") == 0
        assert await staged.one("select count(*) from schedule_ingest.day_origin") == 3
        report = await days.verify(conn)
        assert (report.days, report.events, report.problems) == (3, 0, ())
        assert await days.day(conn, ANA, DAY) == known
        assert await days.rebuild(conn, ANA, DAY) == known
        assert (await days.day(conn, ANA, DAY, at=at(60))).shifts == known.shifts
        with pytest.raises(Conflict, match="evicted"):
            await days.day(conn, ANA, DAY, at=at(1))
        # A late session goes on from there, with the same places and ids that events had before.
        for minute, start in enumerate(("09:00", "11:00", "10:00"), 20):
            await observe(conn, ANA, [entry(start)], at=at(minute))
        assert (await days.verify(conn)).problems == ()
        assert (await days.rebuild(conn, ANA, DAY)).shifts == (await days.day(conn, ANA, DAY)).shifts
        assert (await staged.run("stream_eviction", job)).columns["message"] == "4 rows"
        assert (await days.verify(conn)).problems == ()
        await forge(conn, "update schedule_ingest.day_snapshot set snapshot_payload = '[]'")
        assert (await days.verify(conn)).found == 3


async def test_days_that_changed_lately_that_are_being_written_or_are_not_true_keep_their_events(
    settings: Settings, conn: Connection
) -> None:
    """Y-29: what is not true is not made to look true."""
    await recorded(conn)
    job = {"table": "schedule_event", "ttl_seconds": LONG}
    count = "select count(*) from schedule_ingest.schedule_event where user_id = %s"
    async with stage(settings) as staged:
        ((now,),) = await (await conn.execute("select now()")).fetchall()
        await observe(conn, BO, [entry("06:00")], at=now)
        await forge(
            conn,
            "update schedule_ingest.day_snapshot set snapshot_payload = '[]' where user_id = %s"
            " and schedule_date = %s",
            *(ANA, DAY),
        )
        kept = await staged.one(count, BO)
        assert (await staged.run("stream_eviction", job)).columns["message"] == "1 row"
        assert (await staged.one(count, BO), await staged.one(count, ANA)) == (kept, 6)
        await days.rebuild(conn, ANA, DAY)
        async with conn.transaction():
            key = "select pg_advisory_xact_lock(%s)"
            await conn.execute(key, [days.lock_key(ANA, DAY)])
            assert (await staged.run("stream_eviction", job)).columns["message"] == "0 rows"
        assert (await staged.run("stream_eviction", job)).columns["message"] == "6 rows"


async def test_messages_stay_as_long_as_the_events_that_they_tell_of(
    settings: Settings, conn: Connection
) -> None:
    """Y-27, S-48: retention of messages follows the eviction of events, and the record stays true."""
    await recorded(conn)
    await conn.execute(
        "update schedule_ingest.schedule_notification set status = 'sent', sent_at = now() - interval '1 day'"
    )
    async with stage(settings) as staged:
        job = {"ledger": "schedule_notification", "retention_hours": 1}
        done = await staged.run("retention", job)
        rows = await staged.one("select count(*) from schedule_ingest.schedule_notification")
        assert done.columns["message"] == f"0 rows; {rows} stay, as others refer to them"
        assert (await days.verify(conn)).problems == ()
        await staged.run("stream_eviction", {"table": "schedule_event", "ttl_seconds": LONG})
        assert (await staged.run("retention", job)).columns["message"] == f"{rows} rows"
        assert (await days.verify(conn)).problems == ()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"table": "signals", "ttl_seconds": 0}, "ttl_seconds"),
        ({"table": "signals", "ttl_seconds": 60, "batch_size": -1}, "batch_size"),
        ({"table": "signals"}, "ttl_seconds"),
        ({"table": "job", "ttl_seconds": 60}, "table"),
        ({"table": "tenants", "ttl_seconds": 60}, "table"),
        ({"table": "pg_class", "ttl_seconds": 60}, "table"),
        ({"table": "untimed", "ttl_seconds": 60}, "table"),
    ],
)
async def test_what_is_no_stream_makes_no_job(settings: Settings, given: dict[str, Any], field: str) -> None:
    """Section 3: says why, and nothing is written."""
    own = App(name="own", tables=(Table(name="untimed", kind="stream", time="at"),))
    async with stage(settings, apps=[own]) as staged:
        await staged.do("create table untimed (id bigint primary key, at text)")
        with pytest.raises(InvalidInput) as caught:
            await staged.create("stream_eviction", given)
        assert caught.value.field == field
        assert await staged.one("select count(*) from system.jobs") == 0


async def test_a_users_own_stream_is_one_declaration_whatever_its_times_are(settings: Settings) -> None:
    """Y-22: a table that is not there is not found."""
    tables = [Table(name=f"own.seen_{kind}", kind="stream", time="at") for kind in ("tz", "plain", "ms")]
    async with stage(settings, apps=[App(name="own", tables=tuple(tables))]) as staged:
        with pytest.raises(NotFound):
            await staged.create("stream_eviction", {"table": "seen_tz", "ttl_seconds": 60})
        await staged.do("create schema own")
        for kind, column, old in (
            ("tz", "timestamptz", "now() - n * interval '1 minute'"),
            ("plain", "timestamp(3)", "(now() at time zone 'UTC') - n * interval '1 minute'"),
            ("ms", "bigint", "floor(extract(epoch from now()) * 1000)::bigint - n * 60000"),
        ):
            await staged.do(f"create table own.seen_{kind} (id bigint primary key, at {column})")
            await staged.do(f"insert into own.seen_{kind} select n, {old} from generate_series(0, 9) as n")
            given = {"table": f"own.seen_{kind}", "ttl_seconds": 270, "batch_size": 2}
            assert (await staged.run("stream_eviction", given)).columns["message"] == "5 rows"
