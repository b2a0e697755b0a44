"""UserCleanup: whoever is erased is gone from every ledger, table and archive; nobody else is touched."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import Settings
from holdfast.apps.schedules import days
from holdfast.apps.schedules.canonical import lock_key
from holdfast.apps.system import archive_edits, manifest
from holdfast.apps.system.bench import Run, target_lock
from holdfast.apps.system.executors import erase, flush
from holdfast.apps.system.parameters import Flush, UserCleanup
from holdfast.db.pool import Connection
from holdfast.errors import Conflict, InvalidInput
from holdfast.runtime.app import App, Table
from runtime.support import running, until, until_true
from schedules.recorded import DAY, at, entry, observe
from system.kit import stage
from system.safe import LooseRun
from system.subjects import ANNA, BO, filled, flushed, mark, mentions

USER, OTHER = 4242424242, 4343434343
WAIT = """
select array_agg(wait_event order by wait_event) = %s from pg_stat_activity
where datname = current_database() and wait_event_type = 'Lock'
"""


@pytest.mark.parametrize("word", ["org_id", "tenant_id"])
async def test_with_cascade_no_table_and_no_archive_file_knows_the_subject(
    settings: Settings, word: str
) -> None:
    """Y-30: an organisation is one subject under both names; every column and every file was read."""
    async with stage(settings) as staged:
        await filled(staged)
        await flushed(staged)
        assert len(await mentions(staged, ANNA)) > 25
        others = await mentions(staged, BO)
        given = {"subject": {word: str(ANNA).upper()}, "cascade": True}
        done = await staged.run("user_cleanup", given, key=f"erase {ANNA}")
        assert done.state == "completed", done.columns["exception_trace"]
        assert await mentions(staged, ANNA) == {}
        assert await mentions(staged, BO) == others
        message = done.columns["message"]
        assert "2 called off; 2 archived rows (job 1, sync_jobs 1); " in message
        assert f"without a column for {word}: " in message
        for name in ("tasks", "system_jobs", "capture_session", "providers"):
            assert name in message.partition("without a column")[2]
        assert done.payload["subject"] == {word: "erased"}
        again = await staged.run("user_cleanup", given)
        assert again.columns["message"].startswith("0 rows; without")


async def test_without_cascade_nothing_is_erased_while_work_is_open_and_the_counts_are_told(
    settings: Settings,
) -> None:
    """Y-30: unfinished work, connections and archived rows stand in the way, each by its table."""
    async with stage(settings) as staged:
        await filled(staged)
        await flushed(staged)
        before = await mentions(staged, ANNA)
        done = await staged.run("user_cleanup", {"subject": {"org_id": str(ANNA)}})
        assert (done.state, done.attempts) == ("failed", 0)
        assert done.columns["message"] == (
            "the subject: has connections 1, job 1, sync_jobs 1, the archive of job 1,"
            " the archive of sync_jobs 1: nothing was erased; with cascade that goes as well"
        )
        after = await mentions(staged, ANNA)
        assert after.pop("system.jobs.parameters") == 1
        assert after == before


async def test_without_cascade_somebody_who_is_done_with_is_erased(settings: Settings) -> None:
    """Y-30: finished work goes, with its events, tokens and entries of the audit."""
    async with stage(settings) as staged:
        await filled(staged, states=("succeeded",))
        await staged.do("delete from connections where tenant_id = %s", ANNA)
        others = await mentions(staged, BO)
        done = await staged.run("user_cleanup", {"subject": {"tenant_id": str(ANNA)}})
        assert done.state == "completed", done.columns["message"]
        assert await mentions(staged, ANNA) == {}
        assert await mentions(staged, BO) == others


async def test_a_user_is_erased_from_the_schedules_by_their_own_way(
    settings: Settings, conn: Connection
) -> None:
    """Y-30, S-57: versions and events go by `schedule_ingest.erase` alone; evicted days as well."""
    for user in (USER, OTHER):
        await observe(conn, user, [entry("09:00", title=f"user {user}")], at=at(0), images=2)
        await observe(conn, user, [entry("10:00", title=f"user {user}")], at=at(1))
        await observe(
            conn, user, [entry("11:00", title=f"user {user}")], at=at(2), day=DAY + timedelta(days=1)
        )
    async with stage(settings) as staged:
        await staged.run("stream_eviction", {"table": "schedule_event", "ttl_seconds": 60})
        for user in (USER, OTHER):
            await observe(conn, user, [entry("12:00", title=f"user {user}")], at=at(3))
        await staged.do("insert into holdfast_audit (who, action, tenant) values ('x', 'y', %s)", str(USER))
        before = await mentions(staged, OTHER)
        refused = await staged.run("user_cleanup", {"subject": {"user_id": USER}})
        assert "the subject: has schedule_notification 4" in refused.columns["message"]
        done = await staged.run("user_cleanup", {"subject": {"user_id": str(USER)}, "cascade": True})
        assert done.state == "completed", done.columns["exception_trace"]
        assert await mentions(staged, USER) == {}
        assert await mentions(staged, OTHER) == before
        assert (await days.verify(conn)).problems == ()
        assert "capture_image 2" in done.columns["message"]
        told = done.columns["message"].partition("without a column")[2]
        assert "capture_image" not in told
        assert "job" in told


async def test_a_running_handler_is_told_and_its_late_answer_changes_nothing(
    settings: Settings, conn: Connection
) -> None:
    """Y-30: open work is called off through its store, and nobody waits for it."""
    async with stage(settings) as staged:
        begun, stopped = asyncio.Event(), asyncio.Event()

        @staged.app.handler("slow")
        async def slow(_: Any) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                stopped.set()
                raise

        await staged.app.enqueue("job", "slow", {"text": mark(ANNA)}, tenant=ANNA)
        async with running(staged.worker(ledgers=["job", "system_jobs"])):
            await until_true(begun.is_set)
            made = await staged.create("user_cleanup", {"subject": {"org_id": str(ANNA)}, "cascade": True})
            await until(conn, "select status = 'completed' from system.jobs where id = %s", made)
            await until_true(stopped.is_set)
        assert await mentions(staged, ANNA) == {}


async def test_a_file_that_no_manifest_names_is_settled_first(settings: Settings) -> None:
    """Y-30, Y-25: a flush that was cut off must not bring the subject back."""
    async with stage(settings) as staged:
        await filled(staged, states=("succeeded",))
        await staged.do("delete from connections")
        await flushed(staged)
        for table in ("job", "sync_jobs"):
            await staged.bench.archive.delete(manifest.key_of(table))
        assert await manifest.tables(staged.bench.archive) == []
        refused = await staged.run("user_cleanup", {"subject": {"org_id": str(ANNA)}})
        assert "the archive of job 1" in refused.columns["message"]
        done = await staged.run("user_cleanup", {"subject": {"org_id": str(ANNA)}, "cascade": True})
        assert done.state == "completed"
        assert await mentions(staged, ANNA) == {}
        assert (await manifest.read(staged.bench.archive, "job")).rows == 1


async def test_an_erasure_waits_while_one_of_its_ledgers_is_being_maintained(settings: Settings) -> None:
    """Y-17, Y-30: a flush might just be writing a row of the subject into a file."""
    async with stage(settings) as staged:
        await filled(staged, ANNA)
        made = await staged.create("user_cleanup", {"subject": {"org_id": str(ANNA)}, "cascade": True})
        async with target_lock(staged.bench, "job") as lock:
            assert lock
            await staged.drain()
            job = await staged.job(made)
            assert (job.state, job.attempts) == ("queued", 0)
            assert "INFO waits: job is taken" in staged.lines(made)
        await staged.do("update system.jobs set run_at = 0")
        await staged.drain()
        assert (await staged.job(made)).state == "completed"


async def test_the_log_does_not_say_whose_erasure_waits(settings: Settings) -> None:
    """Y-17, Y-18, Y-30: nobody takes a name out of jobs.log."""
    async with stage(settings) as staged:
        params = UserCleanup(subject={"org_id": str(ANNA)})
        made = await staged.create("user_cleanup", {"subject": {"tenant_id": str(ANNA).upper()}})
        async with target_lock(staged.bench, erase.target(params)) as lock:
            assert lock
            await staged.drain()
            assert "INFO waits: its target is taken" in staged.lines(made)
        await staged.do("update system.jobs set run_at = 0")
        await staged.drain()
        assert (await staged.job(made)).state == "completed"
        assert await mentions(staged, ANNA) == {}


@pytest.mark.parametrize(
    ("word", "type", "value"), [("org_id", "uuid", str(ANNA)), ("user_id", "bigint", USER)]
)
async def test_what_the_database_says_of_a_subject_reaches_neither_the_log_nor_the_job(
    settings: Settings, word: str, type: str, value: Any
) -> None:
    """Y-10, Y-30: a trigger, or the detail of an error, has the name; the rest of it is told."""
    own = Table(name="own.project", kind="user", subjects={word: "whose"})
    async with stage(settings, apps=[App(name="own", tables=(own,))]) as staged:
        await staged.do(
            f"create schema own; create table own.project (id bigint primary key, whose {type});"
            " create function own.refuse() returns trigger language plpgsql as $$ begin"
            " raise exception 'Project of % stays', upper(old.whose::text)"
            " using detail = 'whose=(' || old.whose || ')';"
            " end $$;"
            " create trigger refuse before delete on own.project for each row execute function own.refuse()"
        )
        await staged.do("insert into own.project values (1, %s)", value)
        failed = await staged.run("user_cleanup", {"subject": {word: value}}, max_retries=0)
        assert failed.state == "failed"
        assert failed.columns["message"].startswith("RaiseException: Project of erased stays")
        assert "whose=(erased)" in failed.columns["exception_trace"]
        assert any("Project of erased stays" in line for line in staged.lines())
        known = await mentions(staged, UUID(value) if word == "org_id" else value)
        assert known == {"own.project.whose": 1, "system.jobs.parameters": 1}


async def test_a_subject_that_is_none_is_not_told_in_the_log(settings: Settings) -> None:
    """Y-18, Y-30: a job that plain SQL has put in may name somebody by what is no id."""
    async with stage(settings) as staged:
        await staged.do(
            "insert into system.jobs (id, job_type, status, max_retries, parameters) values"
            """ ('UC-bysql001', 'user_cleanup', 'queued', 0, '{"subject": {"org_id": "anna@example.org"}}')"""
        )
        await staged.drain()
        job = await staged.job("UC-bysql001")
        assert job.columns["message"] == "InvalidInput: subject: org_id must be a UUID"
        assert await mentions(staged, "anna@example.org") == {"system.jobs.parameters": 1}


async def test_archived_jobs_that_were_to_erase_the_subject_forget_whom(settings: Settings) -> None:
    """Y-30: that they did is kept, in the archive as in the table; other jobs stay as they are."""
    async with stage(settings) as staged:
        await filled(staged)
        for org in (ANNA, BO):
            asked = {"subject": {"org_id": str(org)}}
            refused = await staged.run("user_cleanup", asked, key=f"erase {org}")
            assert refused.state == "failed"
        others = await mentions(staged, BO)
        flushing = await staged.run("flush", {"ledger": "system_jobs", "older_than_hours": 0})
        assert flushing.columns["message"] == "2 rows to 1 file"
        assert "archive system.jobs rows.parquet" in await mentions(staged, ANNA)
        done = await staged.run("user_cleanup", {"subject": {"tenant_id": str(ANNA)}, "cascade": True})
        assert done.state == "completed", done.columns["exception_trace"]
        assert await mentions(staged, ANNA) == {}
        left = await mentions(staged, BO)
        assert left.pop("archive system.jobs rows.parquet") == 1
        assert left == {name: others[name] for name in others if not name.startswith("system.jobs.")}
        assert (await manifest.read(staged.bench.archive, "system.jobs")).rows == 2


@pytest.mark.parametrize(
    "where",
    ["rewritten", "others forgotten", "the archive", "archive forgotten", "finishing", "forgotten"],
)
async def test_an_erasure_that_fails_near_its_end_is_tried_again_and_knows_whom_to_erase(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Y-11, Y-30: it forgets whom in the very transaction that ends it; what fails after that is too late."""
    fails = iter([OSError("the archive does not answer")])

    async def once(name: str) -> None:
        if name == where and (error := next(fails, None)):
            raise error

    run, rewrite = erase.run, archive_edits.rewrite_with

    async def watched(params: UserCleanup, job: Run) -> Any:
        return await run(params, job, once)

    async def rewriting(*given: Any) -> int:
        await once("the archive")
        return await rewrite(*given)

    async with stage(settings) as staged:
        await filled(staged)
        given = {"subject": {"org_id": str(ANNA)}}
        assert (await staged.run("user_cleanup", given)).state == "failed"
        await staged.run("flush", {"ledger": "system_jobs", "older_than_hours": 0})
        assert "archive system.jobs rows.parquet" in await mentions(staged, ANNA)
        monkeypatch.setattr(erase, "run", watched)
        monkeypatch.setattr(archive_edits, "rewrite_with", rewriting)
        made = await staged.create("user_cleanup", given | {"cascade": True}, key=f"erase {ANNA}")
        async with running(staged.worker()):
            await until(conn, "select finished_at is not null from system.jobs where id = %s", made)
        done = await staged.job(made)
        assert next(fails, None) is None
        assert (done.state, done.attempts) == ("completed", 0 if where == "forgotten" else 1)
        assert done.payload["subject"] == {"org_id": "erased"}
        assert await mentions(staged, ANNA) == {}


async def test_a_job_that_still_waits_keeps_whom_to_erase_until_its_own_end(settings: Settings) -> None:
    """Y-30: whoever made it may have seen what came after the other had looked."""
    async with stage(settings) as staged:
        await filled(staged, ANNA)
        given = {"subject": {"org_id": str(ANNA)}, "cascade": True}
        waiting = await staged.create("user_cleanup", given, queue="later")
        assert (await staged.run("user_cleanup", given)).state == "completed"
        assert (await staged.job(waiting)).payload["subject"] == {"org_id": str(ANNA)}
        await staged.app.enqueue("job", "mail", tenant=ANNA)
        await staged.drain(queues=["later"])
        done = await staged.job(waiting)
        assert done.columns["message"].startswith("1 rows (job 1); 1 called off")
        assert await mentions(staged, ANNA) == {}


async def test_a_flush_that_comes_late_does_not_bring_the_subject_back(settings: Settings) -> None:
    """Y-25, Y-30: it had lost its target; its file is looked for again before the archive is rewritten."""
    async with stage(settings) as staged:
        await filled(staged)
        locked, go, committed, enter = (asyncio.Event() for _ in range(4))

        async def flushing(name: str) -> None:
            if name == "locked":
                locked.set()
                await go.wait()
            if name == "committed":
                committed.set()
                await enter.wait()

        async def erasing(name: str) -> None:
            if name == "settled":
                go.set()
                await committed.wait()

        late: Any = LooseRun(staged.bench, "FL-loose000")
        flushed_late = asyncio.ensure_future(
            flush.run(Flush(ledger="job", older_than_hours=1), late, flushing)
        )
        await locked.wait()
        params = UserCleanup(subject={"org_id": str(ANNA)}, cascade=True)
        async with target_lock(staged.bench, erase.target(params)) as lock:
            run: Any = LooseRun(staged.bench, "UC-loose000", lock)
            assert "1 archived rows (job 1)" in str(await erase.run(params, run, erasing))
        enter.set()
        with pytest.raises(Conflict, match="is gone, and is not entered"):
            await flushed_late
        assert await mentions(staged, ANNA) == {}
        assert (await manifest.read(staged.bench.archive, "job")).rows == 1


@pytest.mark.parametrize("what", ["job", "connections"])
async def test_without_cascade_what_comes_after_the_look_stays_and_is_told(
    settings: Settings, what: str
) -> None:
    """Y-30: work that was enqueued meanwhile is not deleted, nor an account that was connected."""
    async with stage(settings) as staged:
        await filled(staged, states=("succeeded",))
        await staged.do("delete from connections")
        params = UserCleanup(subject={"org_id": str(ANNA)})

        async def step(name: str) -> None:
            if name == "cancelled" and what == "job":  # after the look, before the deletion
                await staged.app.enqueue("job", "mail", tenant=ANNA)
            if name == "without job" and what == "connections":
                await staged.do(
                    "insert into connections (id, tenant_id, provider_slug, external_id)"
                    " values (gen_random_uuid(), %s, 'slack', 'new')",
                    ANNA,
                )

        async with target_lock(staged.bench, erase.target(params)) as lock:
            run: Any = LooseRun(staged.bench, "UC-loose000", lock)
            with pytest.raises(Conflict, match=f"has {what} 1 that came meanwhile, and stay"):
                await erase.run(params, run, step)
        count = f"select count(*) from {what} where {'org_id' if what == 'job' else 'tenant_id'} = %s"
        assert await staged.one(count, ANNA) == 1
        assert await staged.one("select count(*) from tenants where id = %s", ANNA) == 1
        assert (
            await staged.one("select count(*) from job where org_id = %s and status = 'succeeded'", ANNA) == 0
        )


async def test_without_cascade_an_account_that_is_connected_right_after_the_look_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-30: between the look and the deletion of the same table."""
    delete, look, at_work = erase._delete, erase._must_have_no_more, list[str]()  # pyright: ignore[reportPrivateUsage]
    async with stage(settings) as staged:
        await filled(staged, ANNA, states=("succeeded",))
        await staged.do("delete from connections")

        async def deletes(*given: Any) -> int:
            at_work.append(given[2].declared.name)
            return await delete(*given)

        async def looks(*given: Any) -> None:
            await look(*given)
            if at_work[-1] == "connections" and at_work.count("connections") == 1:
                await staged.do(
                    "insert into connections (id, tenant_id, provider_slug, external_id)"
                    " values (gen_random_uuid(), %s, 'slack', 'new') on conflict do nothing",
                    ANNA,
                )

        monkeypatch.setattr(erase, "_delete", deletes)
        monkeypatch.setattr(erase, "_must_have_no_more", looks)
        refused = await staged.run("user_cleanup", {"subject": {"org_id": str(ANNA)}})
        assert "has connections 1 that came meanwhile, and stay" in refused.columns["message"]
        assert await staged.one("select count(*) from connections") == 1


async def done_with(conn: Connection) -> None:
    """A user whose day is known, with nothing open."""
    await observe(conn, USER, [entry("09:00", title="x")], at=at(0))
    await conn.execute("delete from schedule_ingest.schedule_notification")


async def test_without_cascade_a_session_that_comes_after_the_look_stays_with_all_of_its_user(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-57, Y-30: the app's own statement waits for a day that is being written, and would take it along."""
    await done_with(conn)
    writing = await connect()
    async with stage(settings) as staged:
        before = await mentions(staged, USER)
        async with writing.transaction():
            await writing.execute("select pg_advisory_xact_lock(%s)", [lock_key(USER, DAY)])
            erasing = asyncio.create_task(staged.run("user_cleanup", {"subject": {"user_id": USER}}))
            await until(conn, WAIT, ["advisory"])
            await conn.execute(
                "insert into schedule_ingest.capture_session (id, user_id, state, created_at)"
                " values (gen_random_uuid(), %s, 'pending', now())",
                [USER],
            )
        refused = await erasing
        assert "has capture_session 1 that came meanwhile, and stay" in refused.columns["message"]
        after = await mentions(staged, USER)
        assert after.pop("system.jobs.parameters") == 1
        assert after == before | {"schedule_ingest.capture_session.user_id": 2}


async def test_without_cascade_a_session_cannot_begin_again_after_the_look(
    settings: Settings, conn: Connection, connect: Any
) -> None:
    """S-57, Y-30: who wants that waits, and finds nothing."""
    await done_with(conn)
    writing, beginning = await connect(), await connect()
    async with stage(settings) as staged:
        await conn.execute(
            "insert into schedule_ingest.capture_session (id, user_id, state, created_at, error)"
            " values (%s, %s, 'failed', now(), 'x')",
            [failed := uuid4(), USER],
        )
        async with writing.transaction():
            await writing.execute("select pg_advisory_xact_lock(%s)", [lock_key(USER, DAY)])
            erasing = asyncio.create_task(staged.run("user_cleanup", {"subject": {"user_id": USER}}))
            await until(conn, WAIT, ["advisory"])
            again = asyncio.create_task(
                beginning.execute(
                    "update schedule_ingest.capture_session set state = 'pending', error = null"
                    " where id = %s",
                    [failed],
                )
            )
            await until(conn, WAIT, ["advisory", "transactionid"])
        done = await erasing
        assert done.state == "completed", done.columns["message"]
        assert (await again).rowcount == 0
        assert await mentions(staged, USER) == {}


async def test_a_users_own_tables_go_in_the_order_of_their_foreign_keys(settings: Settings) -> None:
    """Y-22, Y-30: what refers without a cascade goes before what it refers to; an undeclared one is told."""
    whose = {"tenant_id": "org"}
    tables = [
        Table(name=f"own.{name}", kind="user", subjects=whose) for name in ("project", "issue", "remark")
    ]
    async with stage(settings, apps=[App(name="own", tables=tuple(tables))]) as staged:
        await staged.do("create schema own; create table own.project (id bigint primary key, org uuid)")
        for child, parent in (("issue", "project"), ("remark", "issue")):
            await staged.do(
                f"create table own.{child} (id bigint primary key, org text,"
                f" of bigint references own.{parent})"
            )
        for number, org in enumerate((ANNA, BO)):
            await staged.do("insert into own.project values (%s, %s)", number, org)
            await staged.do("insert into own.issue values (%s, %s, %s)", number, str(org), number)
            await staged.do("insert into own.remark values (%s, %s, %s)", number, str(org).upper(), number)
        await staged.do("create table own.secret (of bigint references own.remark)")
        await staged.do("insert into own.secret values (0)")
        given = {"subject": {"org_id": str(ANNA)}}
        refused = await staged.run("user_cleanup", given)
        assert refused.state == "failed"
        assert "secret" in refused.columns["message"]
        await staged.do("truncate own.secret")
        done = await staged.run("user_cleanup", given)
        assert done.columns["message"].startswith("3 rows (issue 1, project 1, remark 1)")
        assert await mentions(staged, ANNA) == {}
        assert await staged.one("select count(*) from own.remark") == 1


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "subject"),
        ({"subject": {}}, "subject"),
        ({"subject": {"org_id": str(ANNA), "user_id": 1}}, "subject"),
        ({"subject": {"email": "anna@example.org"}}, "subject"),
        ({"subject": {"org_id": ""}}, "subject"),
        ({"subject": {"org_id": "anna"}}, "subject"),
        ({"subject": {"org_id": 42}}, "subject"),
        ({"subject": {"tenant_id": "x' or true --"}}, "subject"),
        ({"subject": {"user_id": "anna"}}, "subject"),
        ({"subject": {"user_id": str(ANNA)}}, "subject"),
        ({"subject": {"user_id": 2**63}}, "subject"),
        ({"subject": {"user_id": "1\x00"}}, "subject"),
        ({"subject": {"user_id": 1.5}}, "subject"),
        ({"subject": {"user_id": None}}, "subject"),
        ({"subject": "anna"}, "subject"),
        ({"subject": {"user_id": 1}, "cascade": "yes"}, "cascade"),
        ({"subject": {"user_id": 1}, "all": True}, "all"),
    ],
)
async def test_a_subject_that_cannot_be_one_makes_no_job(
    settings: Settings, given: dict[str, Any], field: str
) -> None:
    """Section 3: none, two, or one of the wrong type."""
    async with stage(settings) as staged:
        with pytest.raises(InvalidInput) as caught:
            await staged.create("user_cleanup", given)
        assert caught.value.field.startswith(field)
        assert await staged.one("select count(*) from system.jobs") == 0


async def test_somebody_of_whom_nothing_is_known_is_erased_at_once(settings: Settings) -> None:
    """Y-30: idempotent; nothing to do is completed."""
    async with stage(settings) as staged:
        for subject in ({"org_id": str(uuid4())}, {"user_id": -7}, {"tenant_id": UUID(int=0).hex}):
            done = await staged.run("user_cleanup", {"subject": subject, "cascade": True})
            assert done.state == "completed"
            assert done.columns["message"].startswith("0 rows; without")
