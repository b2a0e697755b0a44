"""The registry: what is declared, what the catalogue says of it, and that nothing stale is ever used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from holdfast import Settings
from holdfast.apps.system.bench import OURS, bench_of
from holdfast.apps.system.registry import declared_by
from holdfast.apps.system.types import PREFIXES, JobType
from holdfast.db.pool import Connection
from holdfast.errors import InvalidInput, NotFound
from holdfast.platform import APPS, Holdfast
from holdfast.runtime.app import App, Table
from runtime.support import running, until_true
from system.archiving import finish
from system.kit import stage

NOTES = Table(name="own.notes", kind="user", time="at", subjects={"user_id": "author"})
OWN = App(name="own", tables=(NOTES,))
MAKE = "create schema own; create table own.notes (id bigint primary key, at timestamptz, author bigint)"


async def test_all_ledgers_and_four_streams_are_built_in(settings: Settings) -> None:
    """Y-22: with the column that tells their age, and the one that tells whose they are."""
    async with stage(settings) as staged:
        known = staged.bench.registry.declared
        assert {one.name for one in known.values() if one.kind == "ledger"} == {*staged.app.stores}
        assert {one.name: one.time for one in known.values() if one.kind == "stream"} == {
            "job_event": "ts",
            "signals": "received_at",
            "webhook_delivery": "received_at",
            "schedule_event": "detected_at",
        }
        assert {name: dict(known[name].subjects) for name in ("job", "sync_jobs", "capture_session")} == {
            "job": {"org_id": "org_id"},
            "sync_jobs": {"tenant_id": "tenant_id"},
            "capture_session": {"user_id": "user_id"},
        }
        assert known["job"].dead == ("dead_letter",)
        assert all(one.builtin for one in known.values())


async def test_every_table_of_the_database_is_declared_and_every_declared_column_is_there(
    settings: Settings, conn: Connection
) -> None:
    """Y-22: so that an erasure asks all of them, and nobody drops one of ours."""
    async with stage(settings) as staged:
        registry, seen = staged.bench.registry, set[int]()
        for one in registry.declared.values():
            definition = await registry.definition(conn, one)
            seen.add(definition.oid)
            registry.must_have(one, definition, (*one.key, *one.whole, *one.subjects.values()))
        rows = await staged.rows(
            "select c.oid::bigint as oid, c.oid::regclass::text as name from pg_class as c"
            " join pg_namespace as n on n.oid = c.relnamespace where c.relkind in ('r', 'p')"
            " and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'"
        )
        assert [row["name"] for row in rows if row["oid"] not in seen] == []


async def test_a_users_table_is_one_declaration_and_may_be_called_by_its_bare_name(
    settings: Settings,
) -> None:
    """Y-22"""
    async with stage(settings, apps=[OWN]) as staged:
        registry = staged.bench.registry
        assert registry.table("notes") is registry.table("own.notes")
        assert (registry.table("notes").builtin, registry.table("notes").kind) == (False, "user")
        assert registry.table("schedule_ingest.capture_session").name == "capture_session"
        with pytest.raises(InvalidInput, match=r"is not declared: there are .*job_event"):
            registry.table("nowhere")


@pytest.mark.parametrize("name", ["job", "schedule_ingest.schedule_event", "system.jobs", "holdfast_token"])
async def test_nobody_can_give_one_of_our_tables_another_meaning(settings: Settings, name: str) -> None:
    """Y-22, Y-28"""
    app = Holdfast(settings, apps=[App(name="own", tables=(Table(name=name, kind="user"),))])
    with pytest.raises(InvalidInput, match="declared twice"):
        declared_by(app.apps, app.stores, OURS)
    assert [one.name for one in APPS] == [*OURS]


async def test_definitions_come_from_the_catalogue_and_are_kept(settings: Settings, conn: Connection) -> None:
    """Y-23: joined with the declaration; one that is not there is not found, and is not kept as such."""
    async with stage(settings, apps=[OWN]) as staged:
        registry = staged.bench.registry
        notes = registry.table("notes")
        with pytest.raises(NotFound):
            await registry.definition(conn, notes)
        await staged.do(MAKE)
        found = await registry.definition(conn, notes)
        assert [(one.name, one.type) for one in found.columns] == [
            ("id", "bigint"),
            ("at", "timestamp with time zone"),
            ("author", "bigint"),
        ]
        await staged.do("alter table own.notes add column more text")
        assert await registry.definition(conn, notes) is found  # nobody has said anything
        assert len((await registry.fresh(conn, notes)).columns) == 4


@pytest.mark.parametrize(
    "change",
    [
        "alter table own.notes rename column at to seen",
        "alter table own.notes alter column author type text",
        "alter table own.notes drop column author",
        "drop table own.notes; create table own.notes (id bigint primary key, at timestamptz, author bigint)",
    ],
)
async def test_whatever_changes_a_table_changes_its_fingerprint(
    settings: Settings, conn: Connection, change: str
) -> None:
    """Y-24: oid and all columns."""
    async with stage(settings, apps=[OWN]) as staged:
        await staged.do(MAKE)
        registry = staged.bench.registry
        notes = registry.table("notes")
        known = await registry.definition(conn, notes)
        await registry.must_be(conn, notes, known)
        await staged.do(change)
        with pytest.raises(InvalidInput, match="was changed meanwhile"):
            await registry.must_be(conn, notes, known)


async def test_a_column_renamed_by_psql_is_seen_before_the_next_destructive_act(
    settings: Settings, conn: Connection
) -> None:
    """Y-24: a stale definition is reloaded, never used."""
    own = App(name="own", tables=(Table(name="own.seen", kind="stream", time="at"),))
    async with stage(settings, apps=[own]) as staged:
        await staged.do("create schema own; create table own.seen (id bigint primary key, at timestamptz)")
        await staged.do(
            "insert into own.seen select n, now() - interval '1 day' from generate_series(1, 9) as n"
        )
        await staged.bench.registry.definition(conn, staged.bench.registry.table("seen"))
        made = await staged.create("stream_eviction", {"table": "seen", "ttl_seconds": 60})
        await conn.execute("alter table own.seen rename column at to born")
        await conn.execute("alter table own.seen add column at timestamptz")
        await conn.execute("alter table own.seen drop column at")
        await staged.drain()
        job = await staged.job(made)
        assert job.state == "failed"
        assert "own.seen has no column at" in job.columns["message"]
        assert await staged.one("select count(*) from own.seen") == 9
        await conn.execute("alter table own.seen rename column born to at")
        assert (await staged.run("stream_eviction", {"table": "seen", "ttl_seconds": 60})).columns[
            "message"
        ] == "9 rows"


async def test_a_dropped_table_leaves_the_cache_of_every_process(
    settings: Settings, conn: Connection
) -> None:
    """Y-23, Y-24: our own statements announce themselves by a doorbell."""
    async with stage(settings, apps=[OWN]) as staged, Holdfast(staged.app.settings, apps=[OWN]) as other:
        await staged.do(MAKE)
        ear = other.worker(ledgers=["tasks"])
        registry = next(bell.__self__ for _, bell in ear.bells if hasattr(bell, "__self__"))  # type: ignore[attr-defined]
        notes = registry.table("notes")
        await registry.definition(conn, notes)
        async with running(ear):
            await until_true(lambda: notes.name not in registry._known)  # it listens, and may have missed one
            await registry.definition(conn, notes)
            assert notes.name in registry._known
            await staged.run("cleanup", {"table": "notes"})
            await until_true(lambda: notes.name not in registry._known)
            with pytest.raises(NotFound):
                await registry.definition(conn, notes)


async def test_an_announcement_is_heard_when_its_transaction_commits(settings: Settings) -> None:
    """Y-24: and forgets what this process had kept at once."""
    async with stage(settings, apps=[OWN]) as staged:
        await staged.do(MAKE)
        registry = bench_of(staged.app).registry
        async with staged.app.database.connection() as conn:
            await registry.definition(conn, registry.table("notes"))
            async with conn.transaction():
                await registry.announce(conn)
            assert registry._known == {}


async def test_a_table_of_another_schema_is_never_taken_for_ours(
    settings: Settings, conn: Connection, tmp_path: Path
) -> None:
    """Y-24, Y-26, Y-28: `practice.tasks` is a copy to practise with; it is refused, and says what is ours."""
    mine = App(name="shopping", tables=(Table(name="orders", kind="user"),))
    await conn.execute(
        "create schema practice; create table practice.tasks (like tasks including all);"
        " create table orders (id int primary key); create table practice.orders (id int primary key)"
    )
    await finish(conn, "tasks", 5)
    wishes: list[tuple[str, dict[str, Any], str]] = [
        ("retention", {"ledger": "practice.tasks", "retention_hours": 1}, "ledger: .* tasks is public.tasks"),
        ("flush", {"ledger": "practice.tasks"}, "ledger: 'practice.tasks' is none of ours"),
        ("compact", {"table": "practice.tasks"}, "table: 'practice.tasks' is none of ours"),
        ("stream_eviction", {"table": "practice.signals", "ttl_seconds": 60}, "signals is public.signals"),
        ("cleanup", {"table": "practice.orders"}, "orders is public.orders"),
    ]
    async with stage(settings, tmp_path, apps=[mine]) as staged:
        for kind, given, message in wishes:
            with pytest.raises(InvalidInput, match=message):
                await staged.create(kind, given)
            made = f"{PREFIXES[JobType(kind)]}-plainsql"
            await staged.do(
                "insert into system.jobs (id, job_type, parameters) values (%s, %s, %s)",
                made,
                kind,
                Jsonb(given),
            )
            await staged.do("update system.jobs set status = 'queued' where id = %s", made)
            await staged.drain()
            done = await staged.job(made)
            assert (done.state, done.attempts) == ("failed", 0)
            assert "is none of ours" in done.columns["message"]
        assert await staged.one("select count(*) from tasks") == 5
        assert await staged.one("select to_regclass('orders')::text") == "orders"
        await staged.do("drop table orders")  # its archive may be left, and is not another's either
        with pytest.raises(InvalidInput, match=r"orders is public\.orders"):
            await staged.create("cleanup", {"table": "practice.orders"})
        done = await staged.run("cleanup", {"table": "public.orders"})
        assert done.columns["message"] == "0 tables, 0 files of its archive"
        done = await staged.run("retention", {"ledger": "public.tasks", "retention_hours": 1})
        assert done.columns["message"] == "5 rows"
