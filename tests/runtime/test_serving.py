"""Which rows a worker takes by default: those that its application has handlers for, and no others."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Item, Settings
from holdfast.apps.connectors.app import app as connectors_app
from holdfast.apps.schedules import intake
from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, SettingsError
from holdfast.runtime.worker import Worker
from ledgers import ORG
from runtime.support import ERRANDS, drain, one, until, working

FOREIGN = "report of another application"


def served(worker: Worker) -> list[str]:
    return [share.store.ledger.name for share in worker.shares]


async def enqueue(app: Holdfast, conn: Connection, ledger: str, kind: str = FOREIGN) -> Any:
    item = Item(kind=kind, payload=None, tenant=ORG if ledger == "job" else None)
    return (await app.store(ledger).enqueue(conn, item)).id


async def states(conn: Connection, table: str, state: str = "status", kind: str = "type") -> dict[str, str]:
    query = f"select {kind}, {state}::text from {table}"  # names of this module
    return dict(await (await conn.execute(query)).fetchall())  # type: ignore[arg-type]


async def handle_errands(app: Holdfast) -> None:
    @app.handler("walk", ledger="errands")
    async def walk() -> None: ...


async def test_a_worker_with_handlers_for_its_own_table_touches_no_other(
    app: Holdfast, conn: Connection
) -> None:
    await handle_errands(app)
    job = await enqueue(app, conn, "job")
    await enqueue(app, conn, "tasks")
    await enqueue(app, conn, "errands", "walk")
    await enqueue(app, conn, "errands", FOREIGN)
    worker = app.worker()
    await worker.run(until_idle=True)
    assert await states(conn, "errands", "stage", "what") == {"walk": "over", FOREIGN: "waiting"}
    assert await states(conn, "job") == {FOREIGN: "queued"}
    assert await one(conn, "select count(*) from job_event where job_id = %s", job) == 1
    assert await states(conn, "tasks") == {FOREIGN: "pending"}
    assert served(worker) == ["errands"]


async def test_a_handler_for_every_ledger_takes_its_kind_and_leaves_the_others(
    app: Holdfast, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in `tasks`. What is left is logged once for each kind, and shown by explain and the overview."""

    @app.handler("mail")
    async def mail() -> None: ...

    rows = {name: await enqueue(app, conn, name) for name in ("job", "tasks", "errands")}
    for name in rows:
        await enqueue(app, conn, name, "mail")
    await enqueue(app, conn, "job")
    with caplog.at_level(logging.WARNING, "holdfast.worker"):
        async with working(app):
            await until(conn, "select count(*) = 1 from job where status = 'succeeded'")
            await until(conn, "select count(*) = 1 from tasks where status = 'completed'")
            await until(conn, "select count(*) = 1 from errands where stage = 'over'")
            explained = {name: (await app.explain(name, key)).code for name, key in rows.items()}
            views = {view.ledger.name: view.kinds_without_handler for view in (await app.overview()).ledgers}
            beat = "select last_heartbeat > %s from workers"
            for _ in range(3):  # it has looked again meanwhile
                await until(conn, beat, await one(conn, "select clock_timestamp()"))
    assert set(explained.values()) == {"NO_WORKER_FOR_KIND"}
    assert {name: views[name] for name in rows} == dict.fromkeys(rows, (FOREIGN,))
    assert await states(conn, "job") == {FOREIGN: "queued", "mail": "succeeded"}
    assert await states(conn, "tasks") == {FOREIGN: "pending", "mail": "completed"}
    assert await states(conn, "errands", "stage", "what") == {FOREIGN: "waiting", "mail": "over"}
    left = [record.getMessage() for record in caplog.records if FOREIGN in record.getMessage()]
    assert sorted(text.partition(":")[0] for text in left) == ["errands", "job", "tasks"]


async def test_kinds_that_a_worker_is_limited_to_are_left_where_it_has_no_handler_for_them(
    app: Holdfast, conn: Connection
) -> None:
    """A kind of one ledger says nothing about the same word in another."""

    @app.handler("mail", ledger="tasks")
    async def mail() -> None: ...

    @app.handler("pay", ledger="job")
    async def pay() -> None: ...

    for name in ("job", "tasks"):
        await enqueue(app, conn, name, "mail")
    await drain(app, kinds=["mail"])
    assert await states(conn, "job") == {"mail": "queued"}
    assert await states(conn, "tasks") == {"mail": "completed"}


@pytest.mark.parametrize("way", ["named", "declared"])
async def test_a_worker_of_tasks_rejects_what_no_handler_knows(
    app: Holdfast, conn: Connection, way: str
) -> None:
    """T-22, for the worker that was made for `tasks`: by name, or by a handler of that ledger."""

    @app.handler("mail", ledger="tasks" if way == "declared" else None)
    async def mail() -> None: ...

    await enqueue(app, conn, "tasks")
    await enqueue(app, conn, "job")
    await drain(app, ledgers=["tasks"] if way == "named" else None)
    assert await states(conn, "tasks") == {FOREIGN: "failed"}
    assert await states(conn, "job") == {FOREIGN: "queued"}


async def test_a_ledger_that_nothing_is_done_for_cannot_be_served(app: Holdfast) -> None:
    await handle_errands(app)
    with pytest.raises(InvalidInput, match="job has no handler here"):
        app.worker(ledgers=["job"])


async def test_the_rows_of_lost_workers_are_recovered_in_ledgers_that_are_not_served(
    app: Holdfast, conn: Connection
) -> None:
    await handle_errands(app)
    lost = (
        "insert into job (org_id, type, status, worker_id, fence, updated_at)"
        " values (%s, %s, 'running', 'gone', 1, now() - interval '1 hour') returning id"
    )
    key = await one(conn, lost, ORG, FOREIGN)
    async with working(app):
        await until(conn, "select status = 'failed' from job where id = %s", key)


# -- apps ------------------------------------------------------------------------------------------------


async def test_an_unrelated_worker_reads_no_capture_session(settings: Settings, conn: Connection) -> None:
    """Neither where nothing says how sessions are read nor where the app is not enabled; explain says why."""
    local = replace(settings, profile="local", schedules_idle_timeout_seconds=0)
    async with Holdfast(local) as app:

        @app.handler("mail")
        async def mail() -> None: ...

        session = await intake.add(conn, app.store(SESSIONS), 42, [])
        await enqueue(app, conn, "tasks", "mail")
        await drain(app)
        assert await states(conn, "tasks") == {"mail": "completed"}
        assert await one(conn, "select count(*) from schedule_ingest.schedule_version") == 0
        assert await one(conn, "select state::text from schedule_ingest.capture_session") == "pending"
        async with working(app) as worker:
            await until(conn, "select true from workers where id = %s", worker.id)
            found = await app.explain(SESSIONS, session)
    assert found.code == "NO_WORKER_FOR_LEDGER"
    assert (
        "HOLDFAST_SCHEDULES_EXTRACTOR is fixture, and HOLDFAST_SCHEDULES_FIXTURE_PATH is not set"
        in found.sentence
    )


async def test_an_app_runs_where_it_is_enabled(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    """By HOLDFAST_APPS, by the application, or by the name of one of its ledgers."""
    async with Holdfast(settings) as app:
        assert served(app.worker()) == []
        assert served(app.worker(ledgers=["sync_jobs"])) == ["sync_jobs"]
    async with Holdfast(replace(settings, apps=("connectors",))) as app:
        assert served(app.worker()) == ["sync_jobs"]
    with caplog.at_level(logging.INFO, "holdfast"):
        async with Holdfast(replace(settings, apps=("all",))) as app:
            assert served(app.worker()) == ["sync_jobs", "system_jobs"]
    assert "capture_session is left alone: HOLDFAST_SCHEDULES_EXTRACTOR is fixture" in caplog.text
    async with Holdfast(replace(settings, apps=("all",), schedules_extractor="sample")) as app:
        assert served(app.worker()) == ["sync_jobs", "capture_session", "system_jobs"]
    async with Holdfast(settings, apps=[connectors_app()]) as app:
        assert served(app.worker()) == ["sync_jobs"]
    with pytest.raises(SettingsError, match="HOLDFAST_APPS: there is no app 'conectors'"):
        async with Holdfast(replace(settings, apps=("conectors",))) as app:
            app.worker()


async def test_a_fixture_needs_its_path(settings: Settings, tmp_path: Path) -> None:
    """The sample day has a name of its own."""
    for name in ("fixture", "noise"):
        async with Holdfast(replace(settings, schedules_extractor=name)) as app:
            with pytest.raises(
                InvalidInput, match=f"no handler here: HOLDFAST_SCHEDULES_EXTRACTOR is {name}, and"
            ):
                app.worker(ledgers=[SESSIONS])
        known = replace(settings, schedules_extractor=name, schedules_fixture_path=tmp_path)
        async with Holdfast(known) as app:
            assert served(app.worker(ledgers=[SESSIONS])) == [SESSIONS]


async def test_handlers_of_a_disabled_app_do_not_run_beside_those_of_a_user(
    settings: Settings,
) -> None:
    """A handler for the ledger of an app that is not enabled brings that handler's kind alone."""
    async with Holdfast(settings, ledgers=[ERRANDS]) as app:

        @app.handler("own", ledger="sync_jobs")
        async def own() -> None: ...

        (share,) = app.worker().shares
        assert share.store.ledger.name == "sync_jobs"
        assert share.claimed_kinds(app.worker().handlers) == ["own"]
