"""How the service starts on its database: one pool for all, migrations where they may run, and its health."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any, Literal

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from api.kit import api_of
from connectors import kit
from connectors.door import TENANT, house
from connectors.kit import Stop, page
from holdfast import Holdfast, Settings
from holdfast.api import health
from holdfast.apps.connectors.service import Connectors
from holdfast.db import database as databases
from holdfast.db import migrate
from holdfast.db import pool as pools
from holdfast.db.database import open_database, prepare
from holdfast.db.pool import Connection
from holdfast.errors import DatabaseAuthError, DatabaseUnavailable, SchemaOutdated
from runtime.support import until_true

Profile = Literal["local", "test", "dev", "prod"]
URL = "/api/connectors"
NOT_THE_WORKERS = {"holdfast pool", "holdfast test"}
OPEN = (
    "select split_part(application_name, ' [', 1) as application_name from pg_stat_activity"
    " where datname = current_database()"
)
SCHEMA = """
select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text
from pg_class as c join pg_attribute as a on a.attrelid = c.oid
where c.relnamespace = 'public'::regnamespace and a.attnum > 0
union all select 'index', i.tablename, i.indexname, i.indexdef, '' from pg_indexes as i
where i.schemaname = 'public'
union all select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), ''
from pg_constraint where connamespace = 'public'::regnamespace
union all select 'function', proname, '', prosrc, '' from pg_proc where pronamespace = 'public'::regnamespace
order by 1, 2, 3, 4
"""


def asked(url: str, query: str) -> list[Any]:
    """What the database itself says."""
    with psycopg.connect(url, autocommit=True) as db:
        return db.execute(query.encode()).fetchall()


def everything(url: str) -> dict[str, list[Any]]:
    """Every row of every table, with the transaction that wrote it and the place where it lies."""
    tables = asked(url, "select relname from pg_class where relkind = 'r' and relnamespace = 2200")
    return {
        name: asked(url, f'select xmin::text, ctid::text, t::text from "{name}" as t order by 2')
        for (name,) in tables
    }


# -- one pool --------------------------------------------------------------------------------------------


async def test_a_valid_database_url_gives_one_pool_that_routes_and_workers_share(
    settings: Settings, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-1: opened once, at the start; while it is used up, a run waits for it as a request does."""
    opened: list[pools.Pool] = []
    really = pools.open_pool

    async def open_pool(settings: Settings, url: str) -> pools.Pool:
        opened.append(await really(settings, url))
        return opened[-1]

    monkeypatch.setattr(pools, "open_pool", open_pool)
    small = replace(settings, db_max_connections=2, db_acquire_timeout_seconds=20.0)
    async with house(small, conn) as here:
        link = await here.link(tenant=TENANT, provider="shop")
        worker, client = here.worker(concurrency=1), here.client("tenant")
        assert (await client.get(f"{URL}/connections")).status_code == 200  # also makes the routes' service
        pool = here.app.database.pool
        assert opened == [pool]
        served = here.api.state.connectors_desk.service
        for user in (worker, worker.pumps[0], here.app.site, served, Connectors.of(here.app)):
            assert database_of(user).pool is pool

        async with pools.acquire(pool), pools.acquire(pool):
            job = await here.add(link)
            async with asyncio.timeout(30):
                running = asyncio.create_task(worker.run(until_idle=True))
                await here.until_job(job, "running")
                request = asyncio.create_task(client.get(f"{URL}/connections"))
                await until_true(lambda: pool.get_stats()["requests_waiting"] >= 2)
            assert not request.done()
            assert here.script.calls == []  # the handler has no connection to read its account with
        assert (await request).status_code == 200
        async with asyncio.timeout(30):
            await running
        assert (await here.job(job))["status"] == "succeeded"
        assert opened == [pool]
    assert pool.closed


def database_of(user: Any) -> databases.Database:
    found = getattr(user, "database", None) or user._database
    assert isinstance(found, databases.Database)
    return found


async def test_the_pool_never_has_more_connections_than_the_settings_allow(
    settings: Settings, conn: Connection
) -> None:
    """C-1: with ten runs and thirty requests at once. What a worker has beside it grows with neither:

    one connection each for its ledger, its sign of life, the election, the doorbell, and every duty.
    """
    limit = 3
    async with house(replace(settings, db_max_connections=limit), conn) as here:
        stops = [Stop() for _ in range(10)]
        here.script.syncs = [stop.then(page(f"s{n}")) for n, stop in enumerate(stops)]
        links = [await here.link(tenant=TENANT, provider="shop") for _ in stops]
        jobs = [await here.add(link) for link in links]
        seen: list[list[str]] = []

        async def look() -> None:
            seen.append([row["application_name"] for row in await here.rows(OPEN)])

        async with here.working(concurrency=10):
            for stop in stops:
                await stop.reached()
            client = here.client("tenant")
            asking = [asyncio.create_task(client.get(f"{URL}/connections")) for _ in range(30)]
            for stop in stops:
                stop.go()
                await look()
            for answer in await asyncio.gather(*asking):
                assert answer.status_code == 200
            await look()
            for job in jobs:
                await here.until_job(job, "succeeded")
        assert max(names.count("holdfast pool") for names in seen) == limit
        ours = [Counter(names) for names in seen]
        beside = {name for names in ours for name in names if name.startswith("holdfast ")} - NOT_THE_WORKERS
        assert beside
        assert all(names[name] <= 1 for names in ours for name in beside), beside
        fixed = {"holdfast worker sync_jobs", "holdfast heartbeat", "holdfast election", "holdfast doorbell"}
        assert all(name in fixed or name.startswith("holdfast duty ") for name in beside), beside


async def test_a_request_that_gets_no_connection_in_time_is_503(settings: Settings, conn: Connection) -> None:
    """C-1, C-71: after HOLDFAST_DB_ACQUIRE_TIMEOUT_SECONDS, and not for ever; then it answers again."""
    paths = [f"{URL}/{name}" for name in ("connections", "jobs", "signals", "deliveries")]
    async with house(replace(settings, db_max_connections=2, db_acquire_timeout_seconds=1.5), conn) as here:
        pool, client = here.app.database.pool, here.client("tenant")
        async with pools.acquire(pool), pools.acquire(pool):
            began = time.monotonic()
            answers = await asyncio.gather(*map(client.get, paths))
            assert 1.5 <= time.monotonic() - began < 15
            for answer in answers:
                assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
                assert "within 1.5 seconds" in answer.json()["detail"]
                assert "all 2 connections are in use" in answer.json()["detail"]
            with pytest.raises(DatabaseUnavailable, match="HOLDFAST_DB_MAX_CONNECTIONS"):
                async with here.app.database.connection():
                    pytest.fail("nothing was free")
        for path in paths:
            assert (await client.get(path)).status_code == 200


def test_ten_connections_and_five_seconds_if_nothing_is_said() -> None:
    """C-1: how many, how long one waits for them, how long an idle one and the oldest one stay."""
    usual = Settings()
    assert (usual.db_max_connections, usual.db_acquire_timeout_seconds) == (10, 5)
    assert (usual.db_idle_seconds, usual.db_max_lifetime_seconds) == (600, 1800)


async def test_the_pool_is_made_as_the_settings_say(settings: Settings) -> None:
    """C-1: all four of them."""
    said = replace(
        settings,
        db_max_connections=7,
        db_acquire_timeout_seconds=1.5,
        db_idle_seconds=33.0,
        db_max_lifetime_seconds=44.0,
    )
    async with Holdfast(said) as app:
        pool = app.database.pool
        assert (pool.max_size, pool.timeout, pool.max_idle, pool.max_lifetime) == (7, 1.5, 33.0, 44.0)


# -- credentials -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["user", "password", "no password"])
async def test_wrong_credentials_stop_the_start_with_a_message_that_names_authentication(
    database_url: str, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """C-3: at once; for which user, on which host, what to check, and never the password."""
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    given = conninfo_to_dict(database_url)
    right = f"{given['user']}:{given['password']}@"
    user = "ada" if wrong == "user" else given["user"]
    secret = {"user": str(given["password"]), "password": "letmein", "no password": ""}[wrong]
    url = database_url.replace(right, f"{user}:{secret}@" if secret else f"{user}@")
    assert url != database_url
    monkeypatch.setattr(asyncio, "sleep", never)  # a second try would wait
    with pytest.raises(DatabaseAuthError) as caught:
        async with Holdfast(Settings(database_url=url, profile="test")):
            pytest.fail("it started")
    told = str(caught.value)
    assert told.startswith(f"authentication failed for the user {user} on {given['host']}: check ")
    assert "HOLDFAST_DATABASE_URL" in told
    assert not secret or secret not in told


async def never(seconds: float) -> None:
    pytest.fail(f"it waited {seconds} s for another try")


async def test_an_unknown_database_stops_the_start_without_another_try(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-3: 3D000; the sentence names it."""
    monkeypatch.setattr(asyncio, "sleep", never)
    url = postgres.replace("@/holdfast?", "@/nowhere?")
    with pytest.raises(DatabaseAuthError, match="there is no database nowhere"):
        async with Holdfast(Settings(database_url=url, profile="test")):
            pytest.fail("it started")


async def test_a_fault_that_passes_during_the_start_does_not_stop_it(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-2: a server that is full now is asked again after 100, 200, 400 and 800 ms, and lets it in then."""
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute("create role crowded login password 'crowded' connection limit 0")
        admin.execute("grant pg_read_all_data to crowded")
        waits: list[float] = []

        async def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 4:
                admin.execute("alter role crowded connection limit -1")

        given = conninfo_to_dict(database_url)
        url = database_url.replace(f"{given['user']}:{given['password']}@", "crowded:crowded@")
        settings = Settings(database_url=url, profile="test")
        try:
            with monkeypatch.context() as patched:
                patched.setattr(pools.asyncio, "sleep", wait)
                async with Holdfast(settings) as app:
                    assert waits == [0.1, 0.2, 0.4, 0.8]
                    async with app.database.connection() as conn:
                        assert conn.info.user == "crowded"
        finally:
            ended = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = 'crowded'"
            admin.execute(ended)
            admin.execute("drop owned by crowded")
            admin.execute("drop role crowded")


# -- migrations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["local", "test"])
async def test_the_local_profile_migrates_an_empty_database_at_start(
    empty_database_url: str, profile: Profile
) -> None:
    """C-4, scenario: all pending migrations, and then it works."""
    assert migrate.current(empty_database_url) is None
    settings = Settings(database_url=empty_database_url, profile=profile, crypto_key=kit.KEY)
    async with Holdfast(settings) as app:
        assert migrate.current(empty_database_url) == migrate.head()
        assert not migrate.pending(empty_database_url)
        async with app.database.connection() as conn:
            found = await (await conn.execute("select slug from providers order by 1")).fetchall()
        assert len(found) == 8


async def test_the_local_profile_migrates_an_old_database_at_start(empty_database_url: str) -> None:
    """C-4: one that stopped before the connectors keeps what it has."""
    migrate.upgrade(empty_database_url, "0003")
    task = "insert into tasks (type) values ('old') returning id, created_at"
    (before,) = asked(empty_database_url, task)
    async with Holdfast(Settings(database_url=empty_database_url, profile="local")):
        assert migrate.current(empty_database_url) == migrate.head()
    assert asked(empty_database_url, "select id, created_at from tasks") == [before]


async def test_migrating_again_at_head_changes_neither_schema_nor_data(
    settings: Settings, conn: Connection
) -> None:
    """C-4, scenario: no row is even written anew, by a start or by the command."""
    async with kit.stage(settings, conn) as stage:
        stage.script.syncs = [page("a", cursor="c1")]
        link = await stage.link()
        await stage.add(link)
        await stage.deliver(link, "d1")
        await stage.work()
    await conn.execute("update providers set display_name = 'Our GitHub' where slug = 'github'")
    url = str(settings.database_url)
    schema, rows = asked(url, SCHEMA), everything(url)
    assert len(rows["signals"]) == 2
    assert len(rows["providers"]) == 9
    migrate.upgrade(url)
    async with Holdfast(replace(settings, profile="local")), open_database(settings) as database:
        await prepare(database)
    assert asked(url, SCHEMA) == schema
    assert everything(url) == rows


@pytest.mark.parametrize("revision", [None, "0003"])
@pytest.mark.parametrize("profile", ["dev", "prod"])
async def test_elsewhere_an_old_schema_stops_the_start_and_is_left_as_it_is(
    empty_database_url: str, profile: Profile, revision: str | None
) -> None:
    """C-4, C-5: nothing is migrated and nothing claimed; the sentence says what to run, and then it starts.

    The requirement would have the service start and not be ready. It does not start at all.
    """
    if revision:
        migrate.upgrade(empty_database_url, revision)
        asked(empty_database_url, "insert into tasks (type) values ('old') returning id")
    before, rows = asked(empty_database_url, SCHEMA), everything(empty_database_url)
    app = Holdfast(Settings(database_url=empty_database_url, profile=profile, crypto_key=kit.KEY))
    with pytest.raises(SchemaOutdated, match="run `holdfast db upgrade`") as caught:
        async with app:
            pytest.fail("it started")
    assert caught.value.fields == {"current": revision or "none", "head": migrate.head()}
    assert asked(empty_database_url, SCHEMA) == before
    assert everything(empty_database_url) == rows
    migrate.upgrade(empty_database_url)
    async with app:
        assert not migrate.pending(empty_database_url)


# -- health ----------------------------------------------------------------------------------------------


async def answered(api: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://doors") as client:
        return await client.get(path)


@pytest.fixture
def _asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "KEPT", -1.0)


@pytest.mark.usefixtures("_asked_each_time")
async def test_health_is_a_word_for_everybody(settings: Settings, conn: Connection) -> None:
    """C-71: no token is needed, and nothing else is told: neither the version nor single checks."""
    async with house(settings, conn) as here:
        for path in ("/healthz", "/readyz"):
            answer = await here.client().get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.usefixtures("_asked_each_time")
@pytest.mark.parametrize("profile", ["test", "prod"])
async def test_a_running_service_is_not_ready_while_its_schema_is_old(
    settings: Settings, conn: Connection, profile: Profile
) -> None:
    """C-5, C-71: 503 until head is reached, and the detail names both revisions; it is alive meanwhile."""
    async with house(replace(settings, profile=profile), conn) as here:
        client = here.client()
        head = migrate.head()
        await conn.execute("update holdfast_version set version_num = '0003'")
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
        problem = answer.json()
        assert (problem["code"], problem["detail"]) == (
            "NOT_READY",
            f"migrations are pending: the database is at 0003, and {head} is needed",
        )
        assert "details" not in problem
        assert (await client.get("/healthz")).status_code == 200
        await conn.execute("update holdfast_version set version_num = %s", [head])
        assert (await client.get("/readyz")).status_code == 200


@pytest.mark.usefixtures("_asked_each_time")
async def test_a_running_service_whose_tables_are_gone_says_that_it_is_not_ready(
    empty_database_url: str, settings: Settings
) -> None:
    """C-5: a route that needs a table of an old schema is 503, and no error of ours."""
    migrate.upgrade(empty_database_url)
    there = replace(settings, database_url=empty_database_url, api_rate=100_000)
    async with (
        await pools.connect(there, empty_database_url, purpose="test") as conn,
        house(there, conn) as here,
    ):
        client = here.client("tenant")
        assert (await client.get(f"{URL}/connections")).status_code == 200
        await asyncio.to_thread(migrate.downgrade, empty_database_url, "0003")
        answer = await client.get(f"{URL}/connections")
        assert (answer.status_code, answer.json()["code"]) == (503, "NOT_READY")
        assert (await client.get("/readyz")).status_code == 503


@pytest.mark.usefixtures("_asked_each_time")
async def test_a_pool_without_a_free_connection_is_not_ready_and_alive(
    settings: Settings, conn: Connection
) -> None:
    """C-71: 503 within about a second."""
    async with house(replace(settings, db_max_connections=2), conn) as here:
        pool, client = here.app.database.pool, here.client()
        async with pools.acquire(pool), pools.acquire(pool):
            answer = await client.get("/readyz")
            assert (answer.status_code, answer.json()["code"]) == (503, "NOT_READY")
            assert answer.json()["detail"] == "the database does not answer"
            assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


async def test_an_api_that_is_served_on_an_old_schema_does_not_open(empty_database_url: str) -> None:
    """C-5: served, the application is opened by its lifespan, which is refused like any start."""
    app = Holdfast(Settings(database_url=empty_database_url, profile="prod", crypto_key=kit.KEY))
    api = api_of(app)
    with pytest.raises(SchemaOutdated):
        async with api.router.lifespan_context(api):
            pytest.fail("it opened")
    assert (await answered(api, "/readyz")).status_code == 503
    assert (await answered(api, "/healthz")).status_code == 200
