"""`job` in the hands of real workers: how often it runs, who loses it, what its handlers may see and write.

At the end of every test each job must be what its events tell.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID, uuid4

import psycopg
import pytest
from msgspec import Struct
from psycopg.sql import SQL, Identifier

from holdfast import Cancel, Context, Done, Fail, Filter, Holdfast, Item, Retry, Settings, Snooze, SyncContext
from holdfast.apps.jobs.ledger import JOB
from holdfast.db import embedded, pool, supervisor
from holdfast.db.migrate import upgrade
from holdfast.db.pool import Connection
from holdfast.db.settings import load
from holdfast.engine.decide import decide
from holdfast.engine.store import Store
from holdfast.errors import ClaimLost, IllegalEdge, InvalidInput, NotAllowed, NotFound
from runtime.jobs import (
    ONE,
    TWO,
    agree,
    answer,
    everything,
    hops,
    job,
    rows,
    runs_of,
    told,
    until_blocked,
    until_job,
    verbs,
    wait_for,
)
from runtime.support import (
    AT_A_GATE,
    PATIENCE,
    Gate,
    Process,
    column,
    cut,
    drain,
    make_tables,
    one,
    present,
    until,
    until_true,
    worker_of,
    working,
)

Start = Callable[..., Process]

STORE = Store(JOB)
JOBS = {"ledgers": ["job"]}
LETTER = [("running", "failed"), ("failed", "dead_letter")]
SOON = {"job_backoff_base": 0.001, "job_backoff_cap": 0.002}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Those of every test, but a failed job is due again almost at once."""
    return replace(settings, **SOON)


@pytest.fixture(autouse=True)
async def _the_record_agrees(conn: Connection) -> AsyncIterator[None]:
    """J-32, J-34, J-35: whatever a test did, the events tell the rows."""
    yield
    await agree(conn)


async def add(conn: Connection, kind: str, payload: Any = None, **options: Any) -> UUID:
    """Enqueues a job without asking its handler; answers with its id."""
    item = Item(**({"kind": kind, "payload": payload, "tenant": ONE} | options))
    return (await STORE.enqueue(conn, item)).id


async def grant_traces(conn: Connection) -> None:
    """Lets tenants write to the tables that handlers leave traces in."""
    await conn.execute("grant select, insert on effects, runs to holdfast_tenant")


# -- how often -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["none", "fixed", "exp"])
async def test_a_job_that_always_fails_runs_six_times_by_any_policy_and_six_times_again_after_a_requeue(
    app: Holdfast, conn: Connection, policy: str
) -> None:
    """J-9, J-19, J-21, J-22, J-30: then dead_letter with attempt five."""
    runs: list[tuple[int, int]] = []

    @app.handler("fails")
    async def fails(ctx: Context) -> None:
        runs.append((ctx.attempt, ctx.fence))
        raise ValueError(f"run {ctx.attempt}")

    key = await add(conn, "fails", backoff=policy)
    async with working(app, **JOBS):
        row = await until_job(conn, key, "dead_letter")
        assert runs == [(run, run) for run in range(1, 7)]
        assert (row["attempt"], row["last_error_code"]) == (5, "ValueError")
        assert row["last_error_message"] == "ValueError: run 6"
        assert (await hops(conn, key))[-2:] == LETTER

        assert await app.requeue("job", key, by="ana") == 1
        await until(conn, "select fence = 12 and status = 'dead_letter' from job")
    assert runs[6:] == [(run, 6 + run) for run in range(1, 7)]
    assert await runs_of(conn, key) == 12
    (event,) = [event["detail_json"] for event in await told(conn, key) if event["verb"] == "requeue"]
    assert (event["by"], event["attempt_before"], event["attempt"]) == ("ana", 5, 0)


async def test_a_limit_of_zero_is_one_run(app: Holdfast, conn: Connection) -> None:
    """J-21, J-22: said by the caller, or by the handler for its callers."""
    runs: list[str] = []

    @app.handler("fails", limit=0)
    async def fails(payload: str) -> None:
        runs.append(payload)
        raise ValueError

    keys = [await add(conn, "fails", "asked", limit=0)]
    keys.append((await app.enqueue("job", "fails", "declared", tenant=ONE)).id)
    async with working(app, **JOBS):
        for key in keys:
            assert (await until_job(conn, key, "dead_letter"))["attempt"] == 0
    assert sorted(runs) == ["asked", "declared"]


async def test_the_settings_of_the_backoff_reach_the_worker(database_url: str, conn: Connection) -> None:
    """J-23: base, cap and jitter by their variables; the policy of each job chooses."""
    variables = {"BASE": "100s", "CAP": "250s", "JITTER": "0"}
    environ = {f"HOLDFAST_JOB_BACKOFF_{name}": value for name, value in variables.items()}
    environ |= {"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_PROFILE": "test"}
    settings = load(environ | {"HOLDFAST_MIN_RETRY_SECONDS": "50s"}, dotenv=None)
    assert settings.warnings == ()
    waits = "select extract(epoch from run_at - updated_at)::float from job where id = %s"
    async with Holdfast(settings) as app:

        @app.handler("fails")
        async def fails() -> None:
            raise ValueError

        keys = {policy: await add(conn, "fails", backoff=policy) for policy in ("exp", "fixed", "none")}
        for exp in (100, 200, 250, 250):
            await drain(app, **JOBS)
            assert (await job(conn, keys["exp"]))["status"] == "failed"
            assert await one(conn, waits, keys["exp"]) == exp
            assert await one(conn, waits, keys["fixed"]) == 100
            assert await one(conn, waits, keys["none"]) == 50  # never less than the smallest wait
            await conn.execute("update job set run_at = now() where status = 'failed'")  # time passes


async def test_jitter_is_a_tenth_by_default_and_the_first_wait_a_second(
    database_url: str, conn: Connection
) -> None:
    """J-23: what a worker writes when nobody set anything."""
    plain = load({"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_PROFILE": "test"}, dotenv=None)
    async with Holdfast(plain) as app:

        @app.handler("fails")
        async def fails() -> None:
            raise ValueError

        await STORE.enqueue_many(conn, [Item(kind="fails", tenant=ONE)] * 40)
        await drain(app, **JOBS)
    query = "select distinct extract(epoch from run_at - updated_at)::float from job where attempt = 1"
    waits = await column(conn, query)
    assert len(waits) > 1
    assert all(0.9 <= wait <= 1.1 for wait in waits)


async def test_no_policy_and_no_handler_lets_a_failing_job_run_again_at_once(
    database_url: str, conn: Connection
) -> None:
    """By default a bad run is followed by a wait, also where the row or the handler asks for none."""
    plain = load({"HOLDFAST_DATABASE_URL": database_url, "HOLDFAST_PROFILE": "test"}, dotenv=None)
    async with Holdfast(plain) as app:

        @app.handler("fails")
        async def fails() -> None:
            raise ValueError

        @app.handler("at once")
        async def at_once() -> Retry:
            return Retry("again", after=0)

        await add(conn, "fails", backoff="none", limit=100)
        await add(conn, "at once", limit=100)
        await drain(app, **JOBS)
    waits = await column(conn, "select extract(epoch from run_at - updated_at)::float from job")
    assert waits == [0.5, 0.5]


async def test_a_worker_does_not_run_a_failed_job_before_its_time(app: Holdfast, conn: Connection) -> None:
    """J-20, J-23: it polls and is rung for, and leaves it until the job is due."""
    runs: list[int] = []

    @app.handler("fails once")
    async def fails_once(ctx: Context) -> Retry | None:
        runs.append(ctx.attempt)
        return Retry("later", after=3600) if ctx.attempt == 1 else None

    app.handler("note")(lambda payload: None)
    key = await add(conn, "fails once")
    async with working(app, **JOBS):
        row = await until_job(conn, key, "failed")
        assert row["run_at"] - row["updated_at"] == timedelta(hours=1)
        assert row["finished_at"] is None
        for _ in range(3):  # other work is claimed by turns in which this one was not
            await until_job(conn, await add(conn, "note", priority=-1), "succeeded")
        assert runs == [1]
        await conn.execute("update job set run_at = now() where id = %s", [key])
        row = await until_job(conn, key, "succeeded")
    assert (runs, row["attempt"], row["last_error_message"]) == ([1, 2], 1, None)


# -- how it ends -----------------------------------------------------------------------------------------


class Parcel(Struct):
    weight: int


async def test_what_can_never_work_is_a_dead_letter_after_one_run(app: Holdfast, conn: Connection) -> None:
    """J-7, J-24: Fail, a type without a handler, and a payload that does not decode; two events each."""
    runs: list[str] = []

    @app.handler("never")
    async def never() -> Fail:
        runs.append("never")
        return Fail("no such address", code="ADDRESS")

    @app.handler("parcel")
    async def parcel(parcel: Parcel) -> None:
        runs.append("parcel")

    keys = {
        "ADDRESS": await add(conn, "never"),
        "VALIDATION_ERROR": await add(conn, "parcel", {"weight": "heavy"}),
    }
    foreign = await add(conn, "of another worker")
    await drain(app, **JOBS)
    left = await job(conn, foreign)  # it may have a handler elsewhere
    assert (left["status"], left["fence"], await runs_of(conn, foreign)) == ("queued", 0, 0)
    for code, key in keys.items():
        row = await job(conn, key)
        assert (row["status"], row["attempt"], row["last_error_code"]) == ("dead_letter", 0, code)
        assert (await hops(conn, key))[2:] == LETTER
        assert await runs_of(conn, key) == 1
    messages = {code: (await job(conn, key))["last_error_message"] for code, key in keys.items()}
    assert messages["ADDRESS"] == "no such address"
    assert "$.weight" in messages["VALIDATION_ERROR"]
    assert runs == ["never"]


async def test_a_payload_is_checked_at_enqueue_where_the_handler_is_known(
    app: Holdfast, conn: Connection
) -> None:
    """J-7: with the path inside the payload; an unknown type may be somebody else's."""

    @app.handler("parcel")
    async def parcel(parcel: Parcel) -> None: ...

    with pytest.raises(InvalidInput, match=r"\$\.weight"):
        await app.enqueue("job", "parcel", {"weight": "heavy"}, tenant=ONE)
    items = [Item(kind="parcel", payload={"weight": weight}, tenant=ONE) for weight in (1, "heavy")]
    with pytest.raises(InvalidInput, match=r"items\[1\].*\$\.weight"):
        await app.enqueue_many("job", items)
    assert await everything(conn) == ([], [])
    receipt = await app.enqueue("job", "unheard of", {"weight": "heavy"}, tenant=ONE)
    assert (await job(conn, receipt.id))["status"] == "queued"


async def test_retry_after_overrides_the_policy_and_the_cap(app: Holdfast, conn: Connection) -> None:
    """J-24"""

    @app.handler("busy")
    async def busy() -> Retry:
        return Retry("busy", after=7200, code="BUSY")

    for policy in ("none", "fixed", "exp"):
        key = await add(conn, "busy", backoff=policy)
        await drain(app, **JOBS)
        row = await job(conn, key)
        assert row["run_at"] - row["updated_at"] == timedelta(hours=2)
        assert (row["status"], row["last_error_code"], row["attempt"]) == ("failed", "BUSY", 1)


async def test_an_error_of_a_million_characters_does_not_keep_a_run_from_failing(
    app: Holdfast, conn: Connection
) -> None:
    """J-25: with NULs and half surrogates; 2048 clean characters and a code of 64 are stored."""
    long_name = type("E" * 100, (Exception,), {})

    @app.handler("fails", limit=0)
    async def fails() -> None:
        raise long_name("a\x00\ud800" * 400_000)

    key = await add(conn, "fails", limit=0)
    await drain(app, **JOBS)
    row = await job(conn, key)
    assert (row["status"], row["last_error_code"]) == ("dead_letter", "E" * 64)
    assert len(row["last_error_message"]) == 2048
    assert row["last_error_message"] == ("E" * 100 + ": " + "a��" * 1000)[:2048]


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_run_past_its_time_limit_has_the_code_timeout(
    app: Holdfast, conn: Connection, place: str
) -> None:
    """J-25: an ordinary bad run, with its retry."""

    async def in_loop() -> None:
        await asyncio.Event().wait()

    def in_thread(ctx: SyncContext) -> None:
        assert ctx.cancelled.wait(PATIENCE)

    app.handler("slow", timeout=0.2)(in_loop if place == "loop" else in_thread)
    key = await add(conn, "slow", limit=1)
    async with working(app, **JOBS):
        row = await until_job(conn, key, "dead_letter")
    assert (row["last_error_code"], row["last_error_message"]) == ("TIMEOUT", "timed out after 0.2 s")
    assert (row["attempt"], await runs_of(conn, key)) == (1, 2)


async def test_a_result_is_read_with_its_job(app: Holdfast, conn: Connection) -> None:
    """J-16, J-17: returned plainly or as Done; in a list it is left out."""

    @app.handler("plain")
    async def plain() -> dict[str, Any]:
        return {"rows": [1, 2], "name": "ü"}

    @app.handler("done")
    async def done() -> Done:
        return Done([None, True])

    keys = [await add(conn, "plain"), await add(conn, "done")]
    await drain(app, **JOBS)
    found = [await app.get("job", key, tenant=ONE) for key in keys]
    assert [row.result for row in found] == [{"rows": [1, 2], "name": "ü"}, [None, True]]
    assert {row.state for row in found} == {"succeeded"}
    assert {row.result for row in (await app.find("job")).rows} == {None}
    (*_, event) = await app.timeline("job", keys[0])
    assert event.detail["result"] == {"rows": [1, 2], "name": "ü"}


@pytest.mark.parametrize("result", [{"t": object()}, float("nan"), "a\x00", {"x" * 2_000_000: 1}])
async def test_a_result_that_is_not_json_is_a_permanent_failure(
    app: Holdfast, conn: Connection, result: Any
) -> None:
    """J-17: after one run, also when the handler had a transaction; its writes are rolled back."""
    await grant_traces(conn)

    @app.handler("odd")
    async def odd(ctx: Context) -> Any:
        own = await ctx.transaction()
        await own.execute("insert into effects (task) values (%s)", [ctx.job.id])
        return result

    key = await add(conn, "odd")
    await drain(app, **JOBS)
    row = await job(conn, key)
    assert (row["status"], row["last_error_code"]) == ("dead_letter", "RESULT_NOT_JSON")
    assert (await app.get("job", key)).result is None
    assert await runs_of(conn, key) == 1
    assert await column(conn, "select task from effects") == []


async def test_a_snoozed_job_comes_back_uncounted_and_keeps_its_first_start(
    app: Holdfast, conn: Connection
) -> None:
    """J-14, J-26"""

    @app.handler("not yet", limit=0)
    async def not_yet(ctx: Context) -> Snooze | None:
        assert ctx.attempt == 1
        return Snooze(0.001) if ctx.fence < 4 else None

    key = await add(conn, "not yet", limit=0)
    async with working(app, **JOBS):
        row = await until_job(conn, key, "succeeded")
    assert (row["attempt"], row["fence"]) == (0, 4)
    starts = [event["ts"] for event in await told(conn, key) if event["next_status"] == "running"]
    assert (len(starts), row["started_at"]) == (4, starts[0])


async def test_an_orderly_stop_gives_the_job_back_uncounted(settings: Settings, conn: Connection) -> None:
    """J-26: running → queued, due now, and the next worker runs it."""
    begun, hold = asyncio.Event(), True

    async with Holdfast(replace(settings, shutdown_timeout=0.1)) as app:

        @app.handler("long")
        async def long() -> None:
            begun.set()
            if hold:
                await asyncio.Event().wait()

        key = await add(conn, "long")
        async with working(app, **JOBS) as worker:
            await wait_for(begun)
        row = await job(conn, key)
        assert (row["status"], row["worker_id"], row["attempt"], row["fence"]) == ("queued", None, 0, 1)
        assert row["run_at"] == row["updated_at"]
        (*_, event) = await told(conn, key)
        assert (event["verb"], event["detail_json"]["worker"]) == ("release", worker.id)
        hold = False
        await drain(app, **JOBS)
        assert ((await job(conn, key))["status"], (await job(conn, key))["fence"]) == ("succeeded", 2)


async def test_a_handler_that_calls_its_job_off_leaves_it_canceled(app: Holdfast, conn: Connection) -> None:
    """J-29: by the system, not only by a user."""

    @app.handler("moot")
    async def moot() -> Cancel:
        return Cancel("nobody needs it")

    key = await add(conn, "moot")
    await drain(app, **JOBS)
    assert (await job(conn, key))["status"] == "canceled"
    assert (await hops(conn, key))[-1] == ("running", "canceled")


# -- what a worker takes ---------------------------------------------------------------------------------


async def test_a_worker_never_holds_more_jobs_than_it_has_slots(app: Holdfast, conn: Connection) -> None:
    """J-12: counted by the database after every single claim; each running row has a handler."""
    await conn.execute("""
        create table most (held int);
        create function count_held() returns trigger language plpgsql as $$ begin
            insert into most select count(*) from job where status = 'running';
            return null;
        end $$;
        create trigger count_held after update on job for each statement execute function count_held();
    """)
    at_work, doors = set[int](), [asyncio.Event() for _ in range(12)]

    @app.handler("gated")
    async def gated(number: int) -> None:
        at_work.add(number)
        await doors[number].wait()
        at_work.discard(number)

    for number in range(12):
        await add(conn, "gated", number)
    async with working(app, **JOBS, concurrency=3):
        for door in doors:
            full = min(3, sum(not one.is_set() for one in doors))
            await until_true(lambda full=full: len(at_work) == full)
            assert await one(conn, "select count(*) from job where status = 'running'") <= 3
            door.set()
        await until(conn, "select count(*) = 12 from job where status = 'succeeded'")
    assert await one(conn, "select max(held) from most") == 3


async def test_a_worker_serves_its_queues_and_types_and_leaves_the_others_alone(
    app: Holdfast, conn: Connection
) -> None:
    """J-8, J-13: a type that it was not told to serve is not rejected, though it has no handler here."""
    ran: list[str] = []

    @app.handler("note")
    async def note(payload: str) -> None:
        ran.append(payload)

    @app.handler("other")
    async def other(payload: str) -> None:
        ran.append("other " + payload)

    async def enqueue(name: str, kind: str = "note", **options: Any) -> None:
        await add(conn, kind, name, **options)

    await enqueue("mail low", queue="mail", priority=1)
    await enqueue("default")
    await enqueue("bulk high", queue="bulk", priority=5)
    await enqueue("mail high", queue="mail", priority=9)
    await enqueue("mail", kind="other", queue="mail", priority=9)
    await enqueue("mail", kind="unheard of", queue="mail", priority=9)
    await drain(app, **JOBS, queues=["mail", "bulk"], kinds=["note"], concurrency=1)
    assert ran == ["mail high", "bulk high", "mail low"]
    assert await one(conn, "select count(*) from job where status = 'queued' and fence = 0") == 3
    await drain(app, **JOBS)
    assert ran[3:] == ["default"]


async def test_a_worker_runs_the_jobs_of_every_organisation(app: Holdfast, conn: Connection) -> None:
    """J-41, J-43: one worker for all; the job says whose it is."""
    seen: list[UUID] = []

    @app.handler("whose")
    async def whose(ctx: Context) -> None:
        seen.append(ctx.job.tenant)

    orgs = [uuid4() for _ in range(5)]
    for org in orgs:
        await add(conn, "whose", tenant=org)
    await drain(app, **JOBS)
    assert sorted(seen) == sorted(orgs)
    for org in orgs:
        (count,) = await app.count("job", Filter(tenant=org))
        assert (count.state, count.rows) == ("succeeded", 1)


# -- progress --------------------------------------------------------------------------------------------


async def test_progress_is_read_with_the_job_and_a_wrong_one_is_refused_in_the_handler(
    app: Holdfast, conn: Connection
) -> None:
    """J-36 and "Bad input": 101 and -1 raise InvalidInput there, and cost nothing else."""
    shown: list[tuple[Any, Any]] = []
    refused: list[InvalidInput] = []

    @app.handler("steps")
    async def steps(ctx: Context) -> None:
        for percent, stage in ((10, "reading"), (60, None), (None, "writing"), (80, None)):
            await ctx.progress(percent, stage)
            row = await app.get("job", ctx.job.id)
            shown.append((row.stage, row.progress))
        for wrong in (101, -1):
            try:
                await ctx.progress(wrong, "wrong")
            except InvalidInput as error:
                refused.append(error)

    key = await add(conn, "steps")
    await drain(app, **JOBS)
    assert shown == [("reading", 10), ("reading", 60), ("writing", 60), ("writing", 80)]
    assert [error.field for error in refused] == ["percent", "percent"]
    row = await app.get("job", key)
    assert (row.state, row.stage, row.progress) == ("succeeded", "writing", 80)
    assert (await verbs(conn, key)).count("progress") == 4


async def test_a_sync_handler_reports_its_progress_too(app: Holdfast, conn: Connection) -> None:
    """J-36"""

    @app.handler("steps")
    def steps(ctx: SyncContext) -> None:
        ctx.progress(50, "half")
        with pytest.raises(InvalidInput):
            ctx.progress(101)

    key = await add(conn, "steps")
    await drain(app, **JOBS)
    assert (await app.get("job", key)).stage == "half"


async def test_progress_of_a_job_that_was_called_off_changes_nothing(app: Holdfast, conn: Connection) -> None:
    """J-15, J-36: fenced; a handler that goes on all the same gets ClaimLost."""
    begun, ended, lost = asyncio.Event(), asyncio.Event(), list[ClaimLost]()

    @app.handler("steps")
    async def steps(ctx: Context) -> None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            await ctx.progress(50, "too late")
        except ClaimLost as error:
            lost.append(error)
        ended.set()

    key = await add(conn, "steps")
    async with working(app, **JOBS):
        await wait_for(begun)
        await app.cancel("job", key)
        before = await everything(conn)
        await wait_for(ended)
    assert [error.fields["id"] for error in lost] == [key]
    assert await everything(conn) == before


async def test_beyond_its_limit_of_events_progress_only_checks_the_claim(
    settings: Settings, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[ClaimLost] = []
    async with Holdfast(replace(settings, max_progress_events=3)) as app:

        @app.handler("steps")
        async def steps(ctx: Context) -> None:
            for percent in range(9):
                await ctx.progress(percent, "copying")
            await app.cancel("job", ctx.job.id)
            try:
                await ctx.progress(100)
            except ClaimLost as error:
                lost.append(error)
                raise

        key = await add(conn, "steps")
        await drain(app, **JOBS)
    assert [error.fields["id"] for error in lost] == [key]
    assert (await verbs(conn, key)).count("progress") == 3
    assert [line.message for line in caplog.records if "progress events" in line.message] == [
        "progress events limited to 3 in one run; writing no more"
    ]


# -- effects ---------------------------------------------------------------------------------------------


async def test_effect_and_finish_commit_together(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """J-18: another connection never sees the one without the other, nor without the event."""
    await grant_traces(conn)
    watcher, seen = await connect(), list[Any]()
    query = """
        select status::text, (select count(*) from effects), (select count(*) from job_event) from job
    """

    @app.handler("effect")
    async def effect(ctx: Context) -> None:
        own = await ctx.transaction()
        await own.execute("insert into effects (task) values (%s)", [ctx.job.id])
        seen.extend(await (await watcher.execute(query)).fetchall())

    await add(conn, "effect")
    await drain(app, **JOBS)
    seen.extend(await (await watcher.execute(query)).fetchall())
    assert seen == [("running", 0, 2), ("succeeded", 1, 3)]


@pytest.mark.parametrize("ending", [ValueError("broken"), Retry(after=3600), Fail("never"), Cancel()])
async def test_a_run_that_did_not_succeed_leaves_no_effect(
    app: Holdfast, conn: Connection, ending: Any
) -> None:
    """J-18: the row is decided all the same."""
    await grant_traces(conn)

    @app.handler("effect")
    async def effect(ctx: Context) -> Any:
        own = await ctx.transaction()
        await own.execute("insert into effects (task) values (%s)", [ctx.job.id])
        if isinstance(ending, Exception):
            raise ending
        return ending

    key = await add(conn, "effect", limit=0 if isinstance(ending, Exception) else 5)
    await drain(app, **JOBS)
    assert (await job(conn, key))["status"] in ("failed", "dead_letter", "canceled")
    assert await column(conn, "select task from effects") == []


@pytest.mark.parametrize("moment", ["after the write", "in the commit"])
async def test_a_connection_that_is_cut_leaves_neither_and_the_next_run_does_both(
    app: Holdfast, conn: Connection, connect: Callable[[], Any], moment: str
) -> None:
    """J-18: between the handler's write and the finish; and when the commit itself has begun."""
    await grant_traces(conn)
    holder, begun = await connect(), asyncio.Event()
    await conn.execute("""
        create function wait_in_commit() returns trigger language plpgsql as $$ begin
            perform pg_advisory_xact_lock_shared(8);
            return null;
        end $$;
        create constraint trigger wait_in_commit after update on job deferrable initially deferred
            for each row when (new.status = 'succeeded' and new.fence = 1) execute function wait_in_commit();
    """)
    backends: list[int] = []

    @app.handler("effect")
    async def effect(ctx: Context) -> None:
        own = await ctx.transaction()
        await own.execute("insert into effects (task, note) values (%s, %s)", [ctx.job.id, str(ctx.attempt)])
        backends.append(own.info.backend_pid)
        if ctx.attempt == 1 and moment == "after the write":
            await conn.execute("select pg_terminate_backend(%s, 20000)", [own.info.backend_pid])
        begun.set()

    await holder.execute("select pg_advisory_lock(8)")
    key = await add(conn, "effect")
    async with working(app, **JOBS):
        await wait_for(begun)
        if moment == "in the commit":
            await until_blocked(conn, by=holder)
            assert (await job(conn, key))["status"] == "running"
            await conn.execute("select pg_terminate_backend(%s, 20000)", [backends[0]])
        row = await until_job(conn, key, "succeeded")
    assert (row["attempt"], row["fence"]) == (1, 2)
    assert await column(conn, "select note from effects") == ["2"]
    codes = [event["detail_json"].get("error", {}).get("code") for event in await told(conn, key)]
    assert "COMMIT_FAILED" in codes


async def test_a_server_that_dies_in_the_middle_leaves_neither_or_both(temporary_home: Any) -> None:
    """J-18: without a checkpoint, while some have written and not finished and others are anywhere."""
    total, waiting = 300, 4
    with temporary_home() as home:
        lease = embedded.acquire(home)
        await asyncio.to_thread(upgrade, lease.url)
        settings = Settings(
            database_url=lease.url,
            profile="test",
            heartbeat_interval=0.5,
            worker_timeout=60,
            leader_term=2,
            **SOON,
        )
        conn = await pool.connect(settings, lease.url, purpose="test")
        await make_tables(conn)
        await grant_traces(conn)
        door, written = asyncio.Event(), set[int]()
        async with Holdfast(settings) as app:

            @app.handler("effect")
            async def effect(number: int, ctx: Context) -> None:
                own = await ctx.transaction()
                await own.execute("insert into effects (task) values (%s)", [ctx.job.id])
                if number < waiting:
                    written.add(number)
                    await door.wait()

            bulk = [Item(kind="effect", payload=n, tenant=ONE, limit=1000, priority=-n) for n in range(total)]
            await STORE.enqueue_many(conn, bulk)
            async with working(app, **JOBS, concurrency=8):
                await until(conn, "select count(*) >= 50 from effects")
                assert written == set(range(waiting))
                await conn.close()
                await asyncio.to_thread(_die_and_come_back, home, lease)
                conn = await pool.connect(settings, lease.url, purpose="test")
                torn = """
                    select count(*) from job where (status = 'succeeded')
                        <> (1 = (select count(*) from effects where task = job.id))
                """
                assert await one(conn, torn) == 0
                assert await one(conn, "select count(*) from job where status = 'succeeded'") < total
                door.set()
                await until(conn, "select count(*) = %s from job where status = 'succeeded'", total)
        assert await one(conn, torn) == 0
        assert await one(conn, "select count(*) from effects") == total
        assert await one(conn, "select min(fence) from job where (payload #>> '{}')::int < %s", waiting) >= 2
        await agree(conn)
        await conn.close()


def _die_and_come_back(home: Path, lease: embedded.Lease) -> None:
    """The server crashes (SIGQUIT: at once, nothing is written any more) and is started again."""
    lease.release()
    assert supervisor.stop_server(home / "postgres", 30, signal.SIGQUIT)
    again = embedded.acquire(home)
    assert again.url == lease.url
    with psycopg.connect(again.url) as conn:
        conn.execute("select 1")


# -- calling off -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["loop", "thread"])
async def test_a_canceled_job_stays_canceled_when_its_handler_returns_later(
    app: Holdfast, conn: Connection, place: str
) -> None:
    """J-15, J-29: the handler is told, by cancellation or by ctx.cancelled; what it says then is dropped."""
    begun, ended, told_of = threading.Event(), threading.Event(), list[bool]()

    async def in_loop(ctx: Context) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told_of.append(ctx.cancelled.is_set())
        ended.set()
        return "done all the same"

    def in_thread(ctx: SyncContext) -> str:
        begun.set()
        told_of.append(ctx.cancelled.wait(PATIENCE))
        ended.set()
        return "done all the same"

    app.handler("long")(in_loop if place == "loop" else in_thread)
    app.handler("note")(lambda payload: None)
    key = await add(conn, "long")
    async with working(app, **JOBS):
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        assert await app.cancel("job", key, tenant=ONE, by="ana") == 1
        before = await job(conn, key)
        assert before["status"] == "canceled"  # at once, without waiting for the worker
        assert await asyncio.to_thread(ended.wait, PATIENCE)
        await until_job(conn, await add(conn, "note"), "succeeded")  # a turn later
        assert await job(conn, key) == before
    assert told_of == [True]
    assert (await hops(conn, key))[-1] == ("running", "canceled")
    assert (await app.get("job", key)).result is None


async def test_a_job_that_was_called_off_and_its_effect_go_together(
    settings: Settings, conn: Connection
) -> None:
    """J-15, J-18, J-29: the cancel waits for no handler, and the handler's commit finds no row."""
    wrote, door, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    await make_tables(conn)
    await grant_traces(conn)
    async with Holdfast(replace(settings, heartbeat_interval=600, worker_timeout=3600)) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> None:
            own = await ctx.transaction()
            await own.execute("insert into effects (task) values (%s)", [ctx.job.id])
            wrote.set()
            while not door.is_set():  # told of the cancel, it goes on
                with suppress(asyncio.CancelledError):
                    await door.wait()
            ended.set()

        key = await add(conn, "effect")
        async with working(app, **JOBS):
            await wait_for(wrote)
            await app.cancel("job", key)
            door.set()
            await wait_for(ended)
    assert (await job(conn, key))["status"] == "canceled"
    assert await column(conn, "select task from effects") == []


@pytest.mark.parametrize("state", ["queued", "failed"])
async def test_a_job_that_waits_is_called_off_and_never_runs(
    app: Holdfast, conn: Connection, state: str
) -> None:
    """J-29, J-31: a second cancel is refused by its type."""
    runs: list[int] = []

    @app.handler("later")
    async def later(ctx: Context) -> Retry:
        runs.append(ctx.attempt)
        return Retry(after=0.001)

    if state == "queued":
        key = await add(conn, "later", delay=3600)
    else:
        key = await add(conn, "later")
        (held,) = await STORE.claim(conn, "gone", 1)
        await STORE.move_one(conn, decide(JOB, held, Retry(after=3600)))
    await app.cancel("job", key, by="ana")
    await conn.execute("update job set run_at = now()")
    await drain(app, **JOBS)
    assert runs == []
    row = await job(conn, key)
    assert (row["status"], row["attempt"]) == ("canceled", int(state == "failed"))
    with pytest.raises(IllegalEdge, match="cancel"):
        await app.cancel("job", key)


async def test_a_handler_in_another_process_is_told_that_its_job_was_called_off(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """J-29: long before its gate opens, and its worker goes on with other jobs."""
    process = start("--ledgers", "job", heartbeat_interval=60, worker_timeout=600, leader_term=120)
    worker = await worker_of(conn, process)
    key = await add(conn, "gated")
    waits = AT_A_GATE.replace("> 0", "= %s")
    await until(conn, waits, 1)
    await STORE.cancel(conn, key, by="ana")
    await until(conn, waits, 0)  # nobody waits at the gate any more, which is still closed
    before = await everything(conn)
    follow = await add(conn, "note")
    await until_job(conn, follow, "succeeded")
    await gate.open()
    assert await rows(conn, "select * from job where id = %s", key) == before[0]
    (*_, event) = await told(conn, key)
    assert (event["verb"], event["detail_json"]["worker"], event["detail_json"]["by"]) == (
        "cancel",
        worker,
        "ana",
    )
    assert await column(conn, "select event from runs order by n") == ["begin", "begin"]


# -- zombies and crashes ---------------------------------------------------------------------------------


async def test_a_frozen_worker_whose_job_was_finished_elsewhere_changes_nothing(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """J-15, J-27: SIGSTOP past the lease, another finishes, SIGCONT: no column, no event."""
    key = await add(conn, "first run waits")
    zombie = start("--ledgers", "job")
    old = await worker_of(conn, zombie)
    await until(conn, "select true from runs where event = 'begin' and pid = %s", zombie.pid)
    zombie.freeze()

    other = start("--ledgers", "job")
    new = await worker_of(conn, other)
    row = await until_job(conn, key, "succeeded")
    assert (row["attempt"], row["fence"]) == (1, 2)
    before = await everything(conn)
    (lost,) = [event["detail_json"] for event in await told(conn, key) if event["verb"] == "lose"]
    assert (lost["worker"], lost["by"], lost["error"]["code"]) == (old, new, "WORKER_LOST")

    zombie.thaw()
    reborn = await worker_of(conn, zombie, other_than=old)
    await gate.open()  # too late: the first run has been called off
    other.ask_to_stop()
    assert await other.ended() == 0
    assert await everything(conn) == before
    follow = await add(conn, "note")
    await until_job(conn, follow, "succeeded")
    assert (await told(conn, follow))[-1]["detail_json"]["worker"] == reborn
    assert await job(conn, key) == row


async def test_a_frozen_worker_cannot_commit_its_effect_when_it_wakes(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """J-15, J-18: its transaction was open when it was frozen; the effect there is the other's, once."""
    await grant_traces(conn)
    key = await add(conn, "first run waits after its effect")
    zombie = start("--ledgers", "job")
    old = await worker_of(conn, zombie)
    await until(conn, "select true from runs where event = 'written' and pid = %s", zombie.pid)
    zombie.freeze()
    other = start("--ledgers", "job")
    new = await worker_of(conn, other)
    await until_job(conn, key, "succeeded")
    before = await everything(conn)
    await gate.open()  # its handler returns as soon as it wakes, and wants to finish
    zombie.thaw()
    await worker_of(conn, zombie, other_than=old)
    left = "select count(*) = 0 from pg_stat_activity where state like 'idle in transaction%%'"
    await until(conn, f"{left} and datname = current_database()")
    assert await column(conn, "select note from effects") == [new]
    assert await everything(conn) == before


@pytest.mark.parametrize("killed", ["leader", "follower"])
async def test_the_job_of_a_killed_worker_runs_again_within_the_timeout_plus_one_reap(
    traces: None, start: Start, conn: Connection, gate: Gate, killed: str
) -> None:
    """J-27: kill -9 in a handler; also when the leader, who gives it back, does not serve jobs itself."""
    beat, timeout, term = 1.0, 2.2, 1.1
    beats = {"heartbeat_interval": beat, "worker_timeout": timeout, "leader_term": term}
    leader = start("--ledgers", "job" if killed == "leader" else "tasks", **beats)
    await worker_of(conn, leader)
    await until(conn, "select true from workers where is_leader")
    victim = leader if killed == "leader" else start("--ledgers", "job", **beats)
    lost = await worker_of(conn, victim)
    key = await add(conn, "first run waits")
    await until(conn, "select true from runs where event = 'begin' and pid = %s", victim.pid)
    survivor = start("--ledgers", "job", **beats)
    heir = await worker_of(conn, survivor)
    died = await one(conn, "select clock_timestamp()")
    victim.kill()

    row = await until_job(conn, key, "succeeded")
    assert (row["attempt"], row["fence"], row["last_error_code"]) == (1, 2, None)
    (event,) = [event for event in await told(conn, key) if event["verb"] == "lose"]
    reap = beat / 2
    slack = 1.0  # of a busy machine
    assert event["ts"] - died < timedelta(seconds=timeout + reap + slack)
    assert (event["prev_status"], event["next_status"]) == ("running", "failed")
    detail = event["detail_json"]
    assert (detail["worker"], detail["error"]["code"], detail["attempt"]) == (lost, "WORKER_LOST", 1)
    assert detail["by"] == (heir if killed == "leader" else await worker_of(conn, leader))
    ends = [event["detail_json"].get("worker") for event in await told(conn, key)]
    assert ends[-1] == heir


async def test_a_job_that_kills_its_worker_every_time_ends_in_the_dead_letters_after_six_runs(
    traces: None, start: Start, conn: Connection
) -> None:
    """J-22, J-27: six dead workers; its innocent neighbours succeed."""
    beats = {"heartbeat_interval": 0.3, "worker_timeout": 1.2, "leader_term": 0.6, "poll_interval": 0.1}
    leader = start("--ledgers", "tasks", **beats)
    by = await worker_of(conn, leader)
    key = await add(conn, "kills its worker", priority=1)
    innocent = [await add(conn, "note") for _ in range(5)]
    victims = [start("--ledgers", "job", "--concurrency", "1", **beats) for _ in range(6)]
    assert [await victim.ended() for victim in victims] == [-9] * 6
    row = await until_job(conn, key, "dead_letter")
    assert (row["attempt"], row["fence"], row["last_error_code"]) == (5, 6, "WORKER_LOST")
    assert (await hops(conn, key))[-2:] == LETTER
    lost = [event["detail_json"] for event in await told(conn, key) if "error" in event["detail_json"]]
    assert [detail["attempt"] for detail in lost] == [1, 2, 3, 4, 5, 5, 5]
    assert {detail["by"] for detail in lost} == {by}
    assert len({detail["worker"] for detail in lost}) == 6
    assert await runs_of(conn, key) == 6
    start("--ledgers", "job", **beats)
    for other in innocent:
        await until_job(conn, other, "succeeded")
    assert (await job(conn, key))["status"] == "dead_letter"


async def test_killed_between_write_and_finish_neither_is_there(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """J-18, J-27: kill -9 of a process after its confined write; a second one then does both, once."""
    await grant_traces(conn)
    key = await add(conn, "gated effect")
    first = start("--ledgers", "job")
    await until(conn, "select true from runs where event = 'written' and pid = %s", first.pid)
    first.kill()
    assert await column(conn, "select task from effects") == []
    second = start("--ledgers", "job")
    await until(conn, "select true from runs where event = 'written' and pid = %s", second.pid)
    assert await column(conn, "select task from effects") == []
    await gate.open()
    row = await until_job(conn, key, "succeeded")
    assert (row["attempt"], await column(conn, "select task from effects")) == (1, [key])
    assert (await verbs(conn, key)).count("lose") == 1


async def test_a_worker_process_that_is_asked_to_stop_gives_its_job_back(
    traces: None, start: Start, conn: Connection, gate: Gate
) -> None:
    """J-26: SIGTERM; uncounted, due now, and another process runs it."""
    process = start("--ledgers", "job", shutdown_timeout=0.2)
    key = await add(conn, "first run waits")
    await until(conn, "select true from runs where event = 'begin'")
    process.ask_to_stop()
    await process.ended()
    row = await job(conn, key)
    assert (row["status"], row["attempt"], row["fence"], row["worker_id"]) == ("queued", 0, 1, None)
    assert (await verbs(conn, key))[-1] == "release"
    await gate.open()
    start("--ledgers", "job")
    assert (await until_job(conn, key, "succeeded"))["fence"] == 2


async def test_ends_that_outlive_their_connection_are_told_once(settings: Settings, conn: Connection) -> None:
    """J-15, J-32: every connection is cut while handlers run; each ran once and each end has one event."""
    door, runs = asyncio.Event(), list[int]()
    async with Holdfast(replace(settings, worker_timeout=60)) as app:

        @app.handler("gated")
        async def gated(number: int) -> int:
            runs.append(number)
            await door.wait()
            return number

        for number in range(12):
            await add(conn, "gated", number)
        async with working(app, **JOBS, concurrency=6) as worker:
            await present(conn, worker)
            await until(conn, "select count(*) = 6 from job where status = 'running'")
            assert await cut(conn) >= 3
            door.set()
            await until(conn, "select count(*) = 12 from job where status = 'succeeded'")
    assert sorted(runs) == list(range(12))
    assert await one(conn, "select count(*) from job_event where next_status = 'succeeded'") == 12
    assert await one(conn, "select sum(fence) from job") == 12


# -- handlers and tenants --------------------------------------------------------------------------------


async def test_a_handlers_transaction_sees_its_own_organisation_only(app: Holdfast, conn: Connection) -> None:
    """J-39, J-40, J-43: by the database's own policies; also on a connection that served another before."""
    seen: dict[UUID, list[Any]] = {}

    @app.handler("look")
    async def look(ctx: Context) -> None:
        own = await ctx.transaction()
        seen[ctx.job.tenant] = [
            await column(own, "select distinct org_id from job"),
            await one(own, "select count(distinct job_id) from job_event"),
            await one(own, "select current_user"),
        ]

    for org in (ONE, TWO, TWO):
        await add(conn, "look", tenant=org)
    await drain(app, **JOBS, concurrency=1)
    assert seen == {ONE: [[ONE], 1, "holdfast_tenant"], TWO: [[TWO], 2, "holdfast_tenant"]}
    assert await one(conn, "select count(*) from job where status = 'succeeded'") == 3
    async with app.database.connection() as own:  # nothing is left of it on a connection of the pool
        assert await one(own, "select current_user = session_user")
        assert not await one(own, "select current_setting('holdfast.org_id', true)")
        assert await one(own, "select count(*) from job") == 3


async def test_a_handler_enqueues_a_follow_up_that_commits_with_its_finish(
    app: Holdfast, conn: Connection, connect: Callable[[], Any]
) -> None:
    """J-2, J-6, J-18, J-39: confined, in the handler's own transaction; after a bad run there is none."""
    watcher, before = await connect(), list[int]()

    @app.handler("first")
    async def first(ctx: Context) -> None:
        own = await ctx.transaction()
        await app.enqueue("job", "follow", ctx.attempt, tenant=ctx.job.tenant, conn=own, by="first")
        await app.enqueue("job", "follow", ctx.attempt, tenant=ctx.job.tenant, conn=own, key="once")
        before.append(await one(watcher, "select count(*) from job where type = 'follow'"))
        if ctx.attempt == 1:
            raise ValueError("after its enqueue")

    @app.handler("follow")
    async def follow(payload: int) -> None: ...

    key = await add(conn, "first", tenant=TWO)
    async with working(app, **JOBS):
        await until_job(conn, key, "succeeded")
        await until(conn, "select count(*) = 2 from job where type = 'follow' and status = 'succeeded'")
    assert before == [0, 0]
    follows = await rows(
        conn, "select org_id, payload, requested_by from job where type = 'follow' order by 3"
    )
    assert follows == [
        {"org_id": TWO, "payload": 2, "requested_by": "first"},
        {"org_id": TWO, "payload": 2, "requested_by": None},
    ]


async def test_a_handler_is_refused_anothers_job(app: Holdfast, conn: Connection) -> None:
    """J-39, J-44: it cannot enqueue for another, nor find, cancel or read what is another's."""
    theirs = await add(conn, "never", tenant=TWO, delay=3600)
    answers: list[Any] = []

    @app.handler("reads")
    async def reads(ctx: Context) -> None:
        own = await ctx.transaction()
        for asked in (app.get, app.timeline, app.cancel, app.requeue):
            answers.append(await answer(asked("job", theirs, conn=own)))
        answers.append((await app.find("job", Filter(tenant=TWO), conn=own)).rows)

    @app.handler("writes")
    async def writes(ctx: Context) -> None:
        await app.enqueue("job", "follow", tenant=TWO, conn=await ctx.transaction())

    reading, writing = await add(conn, "reads"), await add(conn, "writes", limit=0)
    await drain(app, **JOBS)
    assert [type(found) for found in answers[:4]] == [NotFound] * 4
    assert answers[4] == ()
    assert (await job(conn, reading))["status"] == "succeeded"
    row = await job(conn, writing)
    assert (row["status"], row["last_error_code"]) == ("dead_letter", "NotAllowed")
    assert "row-level security" in row["last_error_message"]
    assert await column(conn, "select id from job where org_id = %s", TWO) == [theirs]


async def test_a_table_that_was_not_granted_is_refused_with_advice(app: Holdfast, conn: Connection) -> None:
    """J-39: the last error says what to grant, or how to act as the worker; neither is a secret."""

    @app.handler("effect")
    async def effect(ctx: Context) -> None:
        own = await ctx.transaction()
        await own.execute("insert into effects (task) values (%s)", [ctx.job.id])

    @app.handler("unconfined")
    async def unconfined(ctx: Context) -> None:
        own = await ctx.transaction(confined=False)
        await own.execute("insert into effects (task, note) select %s, current_user", [ctx.job.id])
        assert await one(own, "select count(distinct org_id) from job") == 2

    refused, free = await add(conn, "effect", limit=0), await add(conn, "unconfined", tenant=TWO)
    await drain(app, **JOBS)
    row = await job(conn, refused)
    assert (row["status"], row["last_error_code"]) == ("dead_letter", "InsufficientPrivilege")
    for word in ("permission denied for table effects", "holdfast_tenant", "grant", "confined=False"):
        assert word in row["last_error_message"]
    assert (await job(conn, free))["status"] == "succeeded"
    assert await rows(conn, "select task, note = session_user as worker from effects") == [
        {"task": free, "worker": True}
    ]

    await grant_traces(conn)
    await app.requeue("job", refused, tenant=ONE)
    await drain(app, **JOBS)
    assert (await job(conn, refused))["status"] == "succeeded"
    assert set(await column(conn, "select task from effects")) == {free, refused}


async def test_a_run_is_confined_or_not_but_not_both(app: Holdfast, conn: Connection) -> None:
    """J-39: a second call that asks otherwise is refused, and names the argument."""
    refused: list[str] = []

    @app.handler("both")
    async def both(ctx: Context) -> None:
        first = await ctx.transaction()
        assert await ctx.transaction() is first
        try:
            await ctx.transaction(confined=False)
        except InvalidInput as error:
            refused.append(error.field)

    key = await add(conn, "both")
    await drain(app, **JOBS)
    assert (refused, (await job(conn, key))["status"]) == (["confined"], "succeeded")


@pytest.fixture
def plain_worker(postgres: str) -> Iterator[str]:
    """A login that owns nothing and is a member of both roles; answers with its name."""
    name = f"worker_{uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as server:
        server.execute(
            SQL("create role {} login password 'plain' in role holdfast_worker, holdfast_tenant").format(
                Identifier(name)
            )
        )
        yield name
        server.execute(SQL("drop role {}").format(Identifier(name)))


async def test_a_worker_that_owns_nothing_runs_the_jobs_of_all_and_each_is_confined(
    settings: Settings, conn: Connection, plain_worker: str
) -> None:
    """J-18, J-36, J-38, J-39, J-41: as a login of the two roles, with row security in force throughout."""
    await make_tables(conn)
    await conn.execute("grant insert on effects to holdfast_tenant")
    assert settings.database_url
    parts = urlsplit(settings.database_url)
    netloc = f"{plain_worker}:plain@{parts.netloc.rpartition('@')[2]}"
    url = urlunsplit(parts._replace(netloc=netloc))
    keys = [await add(conn, "effect", tenant=org) for org in (ONE, TWO)]
    keys.append(await add(conn, "fails", limit=0))
    seen: dict[UUID, list[UUID]] = {}
    async with Holdfast(replace(settings, database_url=url)) as app:

        @app.handler("effect")
        async def effect(ctx: Context) -> str:
            await ctx.progress(50, "half")
            own = await ctx.transaction()
            seen[ctx.job.tenant] = await column(own, "select distinct org_id from job")
            await own.execute("insert into effects (task, note) select %s, session_user", [ctx.job.id])
            await app.enqueue("job", "follow", tenant=ctx.job.tenant, conn=own)
            return "done"

        @app.handler("follow")
        async def follow() -> None: ...

        @app.handler("fails")
        async def fails(ctx: Context) -> None:
            await (await ctx.transaction(confined=False)).execute("delete from job")

        async with working(app, **JOBS):
            await until(conn, "select count(*) = 4 from job where status = 'succeeded'")
            row = await until_job(conn, keys[2], "dead_letter")
        with pytest.raises(NotAllowed):
            await app.enqueue("job", "effect", tenant=ONE)
    assert seen == {ONE: [ONE], TWO: [TWO]}
    assert row["last_error_code"] == "InsufficientPrivilege"
    assert await column(conn, "select distinct note from effects") == [plain_worker]
    assert set(await column(conn, "select task from effects")) == set(keys[:2])


async def test_as_tenant_without_an_organisation_is_not_allowed(app: Holdfast, conn: Connection) -> None:
    """J-39 and "Bad input": no identity, an empty one, one that is no UUID, a ledger without tenants."""
    for nobody in (None, ""):
        with pytest.raises(NotAllowed) as refused:
            async with app.as_tenant(nobody):
                raise AssertionError
        assert (refused.value.code, refused.value.status) == ("NOT_ALLOWED", 401)
    for wrong in ("x", 7, "*"):
        with pytest.raises(InvalidInput, match="org_id"):
            async with app.as_tenant(wrong):
                raise AssertionError
    with pytest.raises(InvalidInput, match="tasks"):
        async with app.as_tenant(ONE, "tasks"):
            raise AssertionError


async def test_as_tenant_reads_and_orders_what_is_its_own(app: Holdfast, conn: Connection) -> None:
    """J-39, J-43, J-44: without any filter of ours; an error rolls back what was done."""
    mine, theirs = await add(conn, "a"), await add(conn, "a", tenant=TWO)
    async with app.as_tenant(ONE) as own:
        assert [row.id for row in (await app.find("job", conn=own)).rows] == [mine]
        assert [count.rows for count in await app.count("job", conn=own)] == [1]
        assert isinstance(await answer(app.get("job", theirs, conn=own)), NotFound)
        assert isinstance(await answer(app.cancel("job", theirs, conn=own)), NotFound)
        assert await app.cancel("job", Filter(), by="ana", conn=own) == 1
    assert [(await job(conn, key))["status"] for key in (mine, theirs)] == ["canceled", "queued"]
    with suppress(ZeroDivisionError):
        async with app.as_tenant(TWO) as own:
            await app.cancel("job", theirs, conn=own)
            raise ZeroDivisionError
    assert (await job(conn, theirs))["status"] == "queued"


async def test_with_a_tenant_the_apps_verbs_do_not_find_anothers_job(app: Holdfast, conn: Connection) -> None:
    """J-44: get, timeline, cancel and requeue; and a filter cannot reach past the tenant either."""
    theirs = await add(conn, "a", tenant=TWO)
    before = await everything(conn)
    for asked in (app.get, app.timeline, app.cancel, app.requeue):
        assert isinstance(await answer(asked("job", theirs, tenant=ONE)), NotFound)
    assert await app.cancel("job", Filter(), tenant=ONE) == 0
    assert await app.requeue("job", Filter(kind="a"), tenant=ONE) == 0
    assert await everything(conn) == before
    assert (await app.get("job", theirs, tenant=TWO)).id == theirs


async def test_a_filter_that_names_another_organisation_does_not_outvote_the_tenant(
    app: Holdfast, conn: Connection
) -> None:
    """J-39, J-44: the tenant is the verified identity; the filter may come from a request's body."""
    await add(conn, "a", tenant=TWO)
    before = await everything(conn)
    said = await answer(app.cancel("job", Filter(tenant=TWO), tenant=ONE))
    assert said == 0 or isinstance(said, (InvalidInput, NotAllowed, NotFound))
    assert await everything(conn) == before


async def test_the_apps_reads_refuse_bad_input_and_write_nothing(app: Holdfast, conn: Connection) -> None:
    """J-43 and "Bad input": limit, status, cursor and ids, as a caller of the app meets them."""
    key = await add(conn, "a")
    before = await everything(conn)
    wrong = [
        app.find("job", limit=0),
        app.find("job", limit=101),
        app.find("job", Filter(states=("done",))),
        app.find("job", cursor="nonsense"),
        app.find("job", Filter(tenant="x")),
        app.count("job", Filter(states=("done",))),
        app.get("job", "x"),
        app.get("job", key, tenant="x"),
        app.timeline("job", "x"),
        app.cancel("job", "x"),
        app.requeue("job", 7),
        app.cancel("job", Filter(states=("done",))),
        app.get("jobs", key),
    ]
    for asked in wrong:
        refused = await answer(asked)
        assert isinstance(refused, InvalidInput)
        assert (refused.code, refused.status) == ("INVALID_INPUT", 400)
    assert isinstance(await answer(app.get("job", uuid4())), NotFound)
    assert await everything(conn) == before
