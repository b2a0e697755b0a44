"""The live schema of `job` and `job_event` is the seed's and the listed additions, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL, Identifier

from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.jobs.tables import metadata
from holdfast.db import embedded, migrate

Database = psycopg.Connection[tuple[Any, ...]]
Eventually = Callable[[Callable[[], object]], None]
TemporaryHome = Callable[[], AbstractContextManager[Path]]

COLUMNS = """
select attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
where attrelid = %s::regclass and attnum > 0
order by attnum
"""

INDEXES = """
select relname, replace(pg_get_indexdef(indexrelid), current_schema() || '.', '')
from pg_index join pg_class on oid = indexrelid
where indrelid = %s::regclass
"""

# PostgreSQL 18 lists NOT NULL here, too; COLUMNS has it.
CONSTRAINTS = """
select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass and contype <> 'n'
"""

TRIGGERS = """
select tgname, replace(pg_get_triggerdef(oid), current_schema() || '.', ''), tgenabled
from pg_trigger where tgrelid = %s::regclass and not tgisinternal
"""

FUNCTIONS = """
select proname, prosecdef, provolatile, proconfig
from pg_proc where pronamespace = quote_ident(current_schema())::regnamespace and proname like 'job%'
order by proname
"""

POLICIES = """
select policyname, tablename, roles, cmd from pg_policies where schemaname = current_schema() order by 1
"""

SECURITY = """
select relname, relrowsecurity, relforcerowsecurity from pg_class
where relnamespace = current_schema()::regnamespace and relkind = 'r' order by 1
"""

EVERYTHING = """
select 'table', relname::text from pg_class
where relnamespace = current_schema()::regnamespace and relkind <> 'i'
union all
select 'function', proname::text from pg_proc where pronamespace = current_schema()::regnamespace
union all
select 'type', typname::text from pg_type
where typnamespace = current_schema()::regnamespace and typrelid = 0 and typelem = 0
order by 1, 2
"""

BEFORE = """
select c.relname, c.relkind, c.relacl, c.relrowsecurity, n.nspacl
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where n.nspname = current_schema() order by 1
"""

ENUMS = """
create type job_status as enum ('queued', 'running', 'succeeded', 'failed', 'canceled', 'dead_letter');
create type job_backoff_policy as enum ('none', 'fixed', 'exp');
"""

# The seed names the columns and two types; the rest is what such a table has.
OLD_JOBS = """
create table jobs (
    id uuid primary key default gen_random_uuid(),
    status text not null default 'pending',
    stage text,
    progress integer not null default 0,
    result jsonb,
    error text,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now()
);
create index idx_jobs_status on jobs (status);
create index idx_jobs_created_at on jobs (created_at desc);
"""

JOBS_TABLES = """
select relnamespace::regnamespace || '.' || relname from pg_class
where relkind in ('r', 'v') and relname like 'jobs%' and relnamespace::regnamespace::text !~ 'system$'
order by 1
"""

INSERT = "insert into job (org_id, type, status, finished_at) values (gen_random_uuid(), 'a', %s, %s)"

STATUSES = ("queued", "running", "succeeded", "failed", "canceled", "dead_letter")
ENDS = ("succeeded", "canceled", "dead_letter")


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def bare_server(temporary_home: TemporaryHome) -> Iterator[str]:
    """A server of the test's own, which has never heard of our roles."""
    with temporary_home() as home, embedded.acquire(home, options={"fsync": "off"}) as lease:
        yield lease.url


def of_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def acting_as(url: str, role: str) -> str:
    """The same database for a session that starts as another role."""
    return make_conninfo(url, options=f"-c role={role}")


def names_to(db: Database, query: LiteralString, table: str) -> dict[str, Any]:
    found = db.execute(query, [table]).fetchall()
    return {name: rest[0] if len(rest) == 1 else tuple(rest) for name, *rest in found}


def test_job_has_the_columns_of_the_seed_and_what_execution_needs(db: Database) -> None:
    """J-45"""
    moment = "timestamp with time zone"
    assert db.execute(COLUMNS, ["job"]).fetchall() == [
        ("id", "uuid", True, "gen_random_uuid()"),
        ("org_id", "uuid", True, None),
        ("type", "character varying(100)", True, None),
        ("status", "job_status", True, "'queued'::job_status"),
        ("attempt", "integer", True, "0"),
        ("max_attempts", "integer", True, "5"),
        ("backoff_policy", "job_backoff_policy", True, "'exp'::job_backoff_policy"),
        ("priority", "integer", True, "0"),
        ("idempotency_key", "character varying(255)", False, None),
        ("requested_by", "character varying(255)", False, None),
        ("created_at", moment, True, "now()"),
        ("updated_at", moment, True, "now()"),
        ("started_at", moment, False, None),
        ("finished_at", moment, False, None),
        ("last_error_code", "character varying(64)", False, None),
        ("last_error_message", "character varying(2048)", False, None),
        ("queue", "text", True, "'default'::text"),
        ("run_at", moment, True, "now()"),
        ("payload", "jsonb", False, None),
        ("worker_id", "text", False, None),
        ("fence", "bigint", True, "0"),
        ("traceparent", "text", False, None),
    ]


def test_job_event_has_the_columns_of_the_seed_and_an_order(db: Database) -> None:
    """J-34, J-45"""
    assert db.execute(COLUMNS, ["job_event"]).fetchall() == [
        ("id", "uuid", True, "gen_random_uuid()"),
        ("job_id", "uuid", True, None),
        ("ts", "timestamp with time zone", True, "now()"),
        ("prev_status", "character varying(50)", False, None),
        ("next_status", "character varying(50)", True, None),
        ("detail_json", "jsonb", False, None),
        ("seq", "bigint", True, None),
    ]
    identity = (
        "select attname, attidentity from pg_attribute where attidentity <> '' and attrelid = %s::regclass"
    )
    assert names_to(db, identity, "job_event") == {"seq": "a"}
    assert names_to(db, identity, "job") == {}


def test_the_enums_have_their_words_in_order(db: Database) -> None:
    """J-45"""
    row = db.execute(
        "select enum_range(null::job_status)::text, enum_range(null::job_backoff_policy)::text"
    ).fetchone()
    assert row == ("{queued,running,succeeded,failed,canceled,dead_letter}", "{none,fixed,exp}")


def test_the_constraints_are_the_seeds(db: Database) -> None:
    """J-45"""
    ends = ", ".join(f"'{state}'::job_status" for state in ENDS)
    assert names_to(db, CONSTRAINTS, "job") == {
        "pk_job": "PRIMARY KEY (id)",
        "ck_job__status_finished_at_consistency": "CHECK (((finished_at IS NOT NULL)"
        f" = (status = ANY (ARRAY[{ends}]))))",
    }
    assert names_to(db, CONSTRAINTS, "job_event") == {
        "pk_job_event": "PRIMARY KEY (id)",
        "fk_job_event_job_job_id": "FOREIGN KEY (job_id) REFERENCES job(id) ON DELETE CASCADE",
    }


def test_the_indexes_are_the_seeds_the_lane_and_the_held_rows(db: Database) -> None:
    """J-45"""
    on = "ON job USING btree"
    waiting = "status = ANY (ARRAY['queued'::job_status, 'failed'::job_status])"
    assert names_to(db, INDEXES, "job") == {
        "pk_job": f"CREATE UNIQUE INDEX pk_job {on} (id)",
        "idx_job__job_org_id": f"CREATE INDEX idx_job__job_org_id {on} (org_id)",
        "idx_job__org_id_created_at_desc": f"CREATE INDEX idx_job__org_id_created_at_desc {on}"
        " (org_id, created_at DESC)",
        "idx_job__org_id_idempotency_key": f"CREATE UNIQUE INDEX idx_job__org_id_idempotency_key {on}"
        " (org_id, idempotency_key) WHERE (idempotency_key IS NOT NULL)",
        "idx_job__status_created_at": f"CREATE INDEX idx_job__status_created_at {on} (status, created_at)",
        "idx_job__created_at": f"CREATE INDEX idx_job__created_at {on} (created_at)",
        "idx_job__claimable": f"CREATE INDEX idx_job__claimable {on} (queue, priority DESC, run_at)"
        f" WHERE ({waiting})",
        "idx_job__claimable_by_type": f"CREATE INDEX idx_job__claimable_by_type {on}"
        f" (queue, type, priority DESC, run_at) WHERE ({waiting})",
        "idx_job__held": f"CREATE INDEX idx_job__held {on} (worker_id)"
        " WHERE (status = 'running'::job_status)",
    }
    on = "ON job_event USING btree"
    assert names_to(db, INDEXES, "job_event") == {
        "pk_job_event": f"CREATE UNIQUE INDEX pk_job_event {on} (id)",
        "idx_job_event__job_id_ts": f"CREATE INDEX idx_job_event__job_id_ts {on} (job_id, ts)",
        "idx_job_event__ts": f"CREATE INDEX idx_job_event__ts {on} (ts)",
    }


def test_job_event_has_its_two_triggers_and_job_the_one_of_its_edges(db: Database) -> None:
    """J-33, J-37"""
    runs = "EXECUTE FUNCTION job_event_append_only()"
    assert names_to(db, TRIGGERS, "job_event") == {
        "trg_job_event__append_only": (
            "CREATE TRIGGER trg_job_event__append_only BEFORE DELETE OR UPDATE ON job_event"
            f" FOR EACH ROW {runs}",
            "O",
        ),
        "trg_job_event__no_truncate": (
            "CREATE TRIGGER trg_job_event__no_truncate BEFORE TRUNCATE ON job_event"
            f" FOR EACH STATEMENT {runs}",
            "O",
        ),
    }
    assert set(names_to(db, TRIGGERS, "job")) == {"trg_job__edges"}


def test_the_functions_look_in_their_own_schema_and_last_among_temporary_tables(
    empty: Database, empty_database_url: str
) -> None:
    """J-33, J-39"""
    migrate.upgrade(empty_database_url, schema="Cell 7")
    empty.execute('set search_path = "Cell 7"')
    path = 'search_path="Cell 7", pg_temp'
    assert empty.execute(FUNCTIONS).fetchall() == [
        ("job_event_append_only", True, "v", ["row_security=off", path]),
        ("job_is_visible", False, "v", [path]),
        ("job_refuse_status", False, "v", ["search_path=pg_catalog, pg_temp"]),
    ]


def test_row_security_is_enabled_and_not_forced_with_policies_for_the_two_roles(db: Database) -> None:
    """J-38, J-39, J-40, J-41"""
    assert db.execute(SECURITY).fetchall() == [
        ("connections", True, False),
        ("holdfast_audit", True, False),
        ("holdfast_pause", True, False),
        ("holdfast_pulse", True, False),
        ("holdfast_session", True, False),
        ("holdfast_token", True, False),
        ("holdfast_version", False, False),
        ("job", True, False),
        ("job_event", True, False),
        ("oauth_states", True, False),
        ("providers", True, False),
        ("signals", True, False),
        ("sync_jobs", True, False),
        ("tasks", False, False),
        ("tenants", True, False),
        ("webhook_delivery", True, False),
        ("workers", False, False),
    ]
    tenant, worker = ["holdfast_tenant"], ["holdfast_worker"]
    of_connectors = ("tenants", "providers", "connections", "sync_jobs", "signals", "oauth_states")
    policies = db.execute(POLICIES).fetchall()
    assert [row for row in policies if row[1] not in (*of_connectors, "webhook_delivery")] == [
        ("holdfast_pause_worker", "holdfast_pause", worker, "SELECT"),
        ("holdfast_pulse_worker", "holdfast_pulse", worker, "ALL"),
        ("job_event_tenant_insert", "job_event", tenant, "INSERT"),
        ("job_event_tenant_select", "job_event", tenant, "SELECT"),
        ("job_event_worker_insert", "job_event", worker, "INSERT"),
        ("job_event_worker_select", "job_event", worker, "SELECT"),
        ("job_tenant_insert", "job", tenant, "INSERT"),
        ("job_tenant_select", "job", tenant, "SELECT"),
        ("job_tenant_update", "job", tenant, "UPDATE"),
        ("job_worker_select", "job", worker, "SELECT"),
        ("job_worker_update", "job", worker, "UPDATE"),
    ]


def test_the_second_revision_makes_nothing_else(empty: Database, empty_database_url: str) -> None:
    """J-45, J-48: no asset, no sidecar_ref, no partitions."""
    migrate.upgrade(empty_database_url, "0001")
    before = set(empty.execute(EVERYTHING).fetchall())
    migrate.upgrade(empty_database_url, "0002")
    assert sorted(set(empty.execute(EVERYTHING).fetchall()) - before) == [
        ("function", "job_event_append_only"),
        ("function", "job_is_visible"),
        ("table", "job"),
        ("table", "job_event"),
        ("table", "job_event_seq_seq"),
        ("type", "job_backoff_policy"),
        ("type", "job_status"),
    ]
    kinds = "select relkind from pg_class where relname in ('job', 'job_event')"
    assert empty.execute(kinds).fetchall() == [("r",), ("r",)]


def test_migrations_and_metadata_agree_and_the_metadata_has_both_tables(empty_database_url: str) -> None:
    """J-45"""
    migrate.upgrade(empty_database_url)
    assert migrate.check(empty_database_url, metadata) == []
    assert {"job", "job_event"} <= set(metadata.tables)


@pytest.mark.parametrize("status", STATUSES)
def test_each_status_accepts_exactly_one_of_finished_and_not(db: Database, status: str) -> None:
    """J-16, J-20, J-28"""
    accepted, refused = ("now", None) if status in ENDS else (None, "now")
    db.execute(INSERT, [status, accepted])
    with pytest.raises(psycopg.errors.CheckViolation, match="ck_job__status_finished_at_consistency"):
        db.execute(INSERT, [status, refused])


def test_a_plain_update_of_the_status_is_refused_where_no_edge_or_hop_of_the_ledger_leads(
    db: Database,
) -> None:
    """Every status to every other, as the owner of the table."""
    paths = [(state, *edge.via, edge.to) for edge in JOB.edges for state in edge.frm]
    allowed = {(path[0], path[-1]) for path in paths} | {hop for path in paths for hop in pairwise(path)}
    change = "update job set status = %s, finished_at = %s"
    found: set[tuple[str, str]] = set()
    for frm in STATUSES:
        for to in STATUSES:
            db.execute("delete from job")
            db.execute(INSERT, [frm, "now" if frm in ENDS else None])
            try:
                db.execute(change, [to, "now" if to in ENDS else None])
                found.add((frm, to))
            except psycopg.errors.CheckViolation:
                assert db.execute("select status from job").fetchone() == (frm,)
    assert found == allowed | {(status, status) for status in STATUSES}
    db.execute("delete from job")
    db.execute(INSERT, ["queued", None])
    with pytest.raises(
        psycopg.errors.CheckViolation, match="cannot change from queued to succeeded: no edge"
    ):
        db.execute(change, ["succeeded", "now"])


def test_a_key_is_one_job_within_its_organisation_and_no_key_never_collides(db: Database) -> None:
    """J-3"""
    insert = "insert into job (org_id, type, idempotency_key) values (%s, 'a', %s)"
    one, two = uuid4(), uuid4()
    for row in [(one, "k"), (two, "k"), (one, None), (one, None)]:
        db.execute(insert, row)
    with pytest.raises(psycopg.errors.UniqueViolation, match="idx_job__org_id_idempotency_key"):
        db.execute(insert, (one, "k"))


def test_down_to_the_first_revision_leaves_what_was_there_before(
    empty: Database, empty_database_url: str
) -> None:
    """J-42, J-47: tables, functions, enums, policies and grants go; the roles stay."""
    migrate.upgrade(empty_database_url, "0001")
    empty.execute("insert into tasks (type) values ('a')")

    def seen() -> list[Any]:
        state = empty.execute(BEFORE).fetchall(), empty.execute(EVERYTHING).fetchall()
        ours = "select count(*) from pg_shdepend where refobjid = any(array(select oid from pg_roles where"
        ours += " rolname like 'holdfast\\_%')) and dbid = (select oid from pg_database"
        ours += " where datname = current_database())"
        return [*state, empty.execute(ours).fetchall()]

    # Taking a grant back leaves an ACL that says what its absence said: so compare after the first round.
    migrate.upgrade(empty_database_url)
    migrate.downgrade(empty_database_url, "0001")
    first = seen()
    assert first[2] == [(0,)]
    migrate.upgrade(empty_database_url)
    migrate.downgrade(empty_database_url, "0001")
    assert seen() == first
    assert empty.execute("select count(*) from tasks").fetchone() == (1,)
    roles = "select rolname from pg_roles where rolname in ('holdfast_tenant', 'holdfast_worker') order by 1"
    assert empty.execute(roles).fetchall() == [("holdfast_tenant",), ("holdfast_worker",)]


def test_several_schemas_of_one_database_stand_apart(empty: Database, empty_database_url: str) -> None:
    """J-38, J-47"""
    for schema in ("one", "two"):
        migrate.upgrade(empty_database_url, schema=schema)
    job = "insert into {}.job (org_id, type) values (gen_random_uuid(), 'a') returning id"
    event = "insert into {}.job_event (job_id, next_status) values (%s, 'queued')"
    for schema in map(Identifier, ("one", "two")):
        row = empty.execute(SQL(job).format(schema)).fetchone()
        empty.execute(SQL(event).format(schema), row)
        with pytest.raises(psycopg.errors.RestrictViolation):
            empty.execute(SQL("delete from {}.job_event").format(schema))
    # The guard of one schema is not answered by the tables of another.
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        empty.execute("insert into one.job_event (job_id, next_status) select id, 'queued' from two.job")
    migrate.downgrade(empty_database_url, "base", schema="one")
    assert empty.execute("delete from two.job returning true").fetchall() == [(True,)]
    assert empty.execute("select from two.job_event").fetchall() == []


def test_enums_made_by_hand_are_used_and_outlive_a_downgrade(
    empty: Database, empty_database_url: str
) -> None:
    """J-47"""
    empty.execute(ENUMS)
    migrate.upgrade(empty_database_url)
    empty.execute("insert into job (org_id, type) values (gen_random_uuid(), 'a')")
    migrate.downgrade(empty_database_url, "base")
    assert empty.execute(EVERYTHING).fetchall() == [("type", "job_backoff_policy"), ("type", "job_status")]


def test_an_enum_that_a_users_table_has_come_to_need_outlives_a_downgrade(
    empty: Database, empty_database_url: str
) -> None:
    """J-47"""
    migrate.upgrade(empty_database_url)
    empty.execute("create table mine (status job_status)")
    migrate.downgrade(empty_database_url, "base")
    assert empty.execute(EVERYTHING).fetchall() == [("table", "mine"), ("type", "job_status")]
    migrate.upgrade(empty_database_url)


@pytest.mark.parametrize("name", ["job_status", "job_backoff_policy"])
def test_another_enum_of_that_name_stops_the_upgrade(
    empty: Database, empty_database_url: str, name: str
) -> None:
    """J-47"""
    empty.execute(SQL("create type {} as enum ('open', 'done')").format(Identifier(name)))
    with pytest.raises(migrate.MigrationError, match=rf"the type {name} exists .* with other values"):
        migrate.upgrade(empty_database_url)
    assert empty.execute(EVERYTHING).fetchall() == [("type", name)]


# -- the old table `jobs` ------------------------------------------------------------------------------


def test_an_old_empty_jobs_is_dropped_and_system_jobs_is_left_alone(
    empty: Database, empty_database_url: str
) -> None:
    """J-46"""
    empty.execute("create schema system; set search_path = system;" + OLD_JOBS + "reset search_path")
    empty.execute(OLD_JOBS)
    empty.execute("insert into jobs default values; delete from jobs")
    migrate.upgrade(empty_database_url)
    assert empty.execute(JOBS_TABLES).fetchall() == []
    assert empty.execute("select count(*) from system.jobs_legacy").fetchone() == (0,)


def test_an_old_jobs_with_rows_is_renamed(empty: Database, empty_database_url: str) -> None:
    """J-46"""
    empty.execute(OLD_JOBS + "insert into jobs (result) values ('{}')")
    migrate.upgrade(empty_database_url)
    assert empty.execute(JOBS_TABLES).fetchall() == [("public.jobs_superseded",)]
    assert empty.execute("select result from jobs_superseded").fetchall() == [({},)]


def test_an_old_jobs_that_a_view_needs_is_renamed_though_it_is_empty(
    empty: Database, empty_database_url: str
) -> None:
    """J-46"""
    empty.execute(OLD_JOBS + "create view jobs_today as select * from jobs")
    migrate.upgrade(empty_database_url)
    assert empty.execute(JOBS_TABLES).fetchall() == [("public.jobs_superseded",), ("public.jobs_today",)]


def test_an_old_jobs_stays_when_the_new_name_is_taken(empty: Database, empty_database_url: str) -> None:
    """J-46"""
    empty.execute(OLD_JOBS + "insert into jobs default values; create table jobs_superseded (id int)")
    migrate.upgrade(empty_database_url)
    assert empty.execute(JOBS_TABLES).fetchall() == [("public.jobs",), ("public.jobs_superseded",)]
    assert empty.execute("select count(*) from jobs").fetchone() == (1,)
    assert not migrate.pending(empty_database_url)


@pytest.mark.parametrize(
    "change",
    [
        "alter table jobs add owner text",
        "alter table jobs drop stage",
        "alter table jobs rename stage to step",
        "alter table jobs alter result type text",
        "alter table jobs alter id drop default, alter id type text",
        "alter table jobs rename to work; create view jobs as select * from work",
    ],
)
def test_a_foreign_jobs_is_left_alone(
    empty: Database, empty_database_url: str, change: LiteralString
) -> None:
    """J-46"""
    empty.execute(OLD_JOBS)
    empty.execute(change)
    before = empty.execute(COLUMNS, ["jobs"]).fetchall()
    migrate.upgrade(empty_database_url)
    assert empty.execute(JOBS_TABLES).fetchall() == [("public.jobs",)]
    assert empty.execute(COLUMNS, ["jobs"]).fetchall() == before


def test_an_installation_in_its_own_schema_leaves_the_old_jobs_alone(
    empty: Database, empty_database_url: str
) -> None:
    """J-46"""
    empty.execute(OLD_JOBS)
    migrate.upgrade(empty_database_url, schema="cell_7")
    assert empty.execute(JOBS_TABLES).fetchall() == [("public.jobs",)]


def test_a_row_that_comes_while_the_upgrade_waits_is_kept(
    empty: Database, empty_database_url: str, eventually: Eventually
) -> None:
    """J-46: the table is locked before it is looked at."""
    empty.execute(OLD_JOBS)
    waiting = "select from pg_locks where not granted and relation = 'jobs'::regclass"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(empty_database_url) as writer:
        writer.execute("insert into jobs default values")
        upgrading = pool.submit(migrate.upgrade, empty_database_url)
        eventually(lambda: empty.execute(waiting).fetchone() is not None)
        writer.commit()
        upgrading.result(60)
    assert empty.execute("select count(*) from jobs_superseded").fetchone() == (1,)


def test_rows_that_an_old_snapshot_cannot_see_are_kept(empty: Database, empty_database_url: str) -> None:
    """J-46: by the compiled SQL, in a session that repeats its reads."""
    empty.execute(OLD_JOBS)
    with psycopg.connect(empty_database_url) as session:
        session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        session.execute("select")
        empty.execute("insert into jobs default values")
        session.execute(migrate.sql().encode())
        session.commit()
    assert empty.execute("select count(*) from jobs_superseded").fetchone() == (1,)


# -- roles ---------------------------------------------------------------------------------------------


@pytest.fixture
def builder(empty: Database) -> Iterator[str]:
    """A role that may create in the schema, and is neither a superuser nor its owner.

    `schedule_ingest` and `system`, which are never elsewhere, an administrator has made for it.
    """
    name = f"builder_{uuid4().hex}"
    role = Identifier(name)
    empty.execute(SQL("create role {}").format(role))
    empty.execute(SQL("grant create on schema public to {}").format(role))
    for schema in ("schedule_ingest", "system"):
        empty.execute(SQL("create schema {} authorization {}").format(Identifier(schema), role))
    yield name
    empty.execute(SQL("drop owned by {}").format(role))
    empty.execute(SQL("drop role {}").format(role))


def test_an_ordinary_owner_installs_where_the_roles_are_there_already(
    db: Database, empty: Database, empty_database_url: str, builder: str
) -> None:
    """J-38, J-42"""
    url = acting_as(empty_database_url, builder)
    migrate.upgrade(url)
    owner = "select distinct tableowner from pg_tables where schemaname = 'public'"
    assert empty.execute(owner).fetchall() == [(builder,)]
    with psycopg.connect(url) as session:
        job = session.execute("insert into job (org_id, type) values (%s, 'a') returning id", [uuid4()])
        session.execute("insert into job_event (job_id, next_status) values (%s, 'queued')", job.fetchone())
        session.commit()
        with pytest.raises(psycopg.errors.RestrictViolation):
            session.execute("delete from job_event")
        session.rollback()
        session.execute("delete from job")
        assert session.execute("select from job_event").fetchall() == []
    migrate.downgrade(url, "base")


def test_an_old_jobs_of_another_role_is_left_alone(
    db: Database, empty: Database, empty_database_url: str, builder: str
) -> None:
    """J-46"""
    empty.execute(OLD_JOBS)
    migrate.upgrade(acting_as(empty_database_url, builder))
    assert empty.execute(JOBS_TABLES).fetchall() == [("public.jobs",)]


def test_who_may_not_create_roles_is_told_what_an_administrator_must_run(bare_server: str) -> None:
    """J-42"""
    with psycopg.connect(bare_server, autocommit=True) as server:
        server.execute("create role builder")
        server.execute("create database app owner builder")
    url = acting_as(of_database(bare_server, "app"), "builder")
    with pytest.raises(migrate.MigrationError) as caught:
        migrate.upgrade(url)
    statements = (
        "create role holdfast_tenant nologin; create role holdfast_worker nologin; "
        "grant holdfast_tenant, holdfast_worker to builder"
    )
    assert str(caught.value) == (
        "the migration failed and changed nothing: the role holdfast_tenant is missing and builder may not"
        f" create roles: an administrator must first run `{statements}`"
    )
    with psycopg.connect(bare_server, autocommit=True) as server:
        server.execute(statements)
    migrate.upgrade(url)
    assert may_act(of_database(bare_server, "app"), "builder") == ["holdfast_tenant", "holdfast_worker"]


def test_two_databases_of_one_server_migrate_at_once(bare_server: str, eventually: Eventually) -> None:
    """J-42, J-47: roles are the server's, so one finds them being made by the other.

    The owner may create roles and is no superuser: both databases also grant him the right to SET ROLE.
    """
    blocked = "select from pg_locks where not granted"
    with psycopg.connect(bare_server, autocommit=True) as server:
        server.execute("create role builder createrole")
        for name in ("one", "two"):
            server.execute(SQL("create database {} owner builder").format(Identifier(name)))
        one, two = (acting_as(of_database(bare_server, name), "builder") for name in ("one", "two"))
        with ThreadPoolExecutor(1) as pool, psycopg.connect(one) as first:
            first.execute(migrate.sql().encode())
            second = pool.submit(migrate.upgrade, two)
            eventually(lambda: server.execute(blocked).fetchone() is not None)
            first.commit()
            second.result(60)
    for url in (one, two):
        assert migrate.check(url, metadata) == []
        assert may_act(url, "builder") == ["holdfast_tenant", "holdfast_worker"]
        with psycopg.connect(url) as session:
            login = "select rolname, rolcanlogin, rolsuper, rolbypassrls from pg_roles where rolname in"
            login += " ('holdfast_tenant', 'holdfast_worker') order by 1"
            assert session.execute(login).fetchall() == [
                ("holdfast_tenant", False, False, False),
                ("holdfast_worker", False, False, False),
            ]


def may_act(url: str, user: str) -> list[str]:
    """Which of our roles this user may SET LOCAL ROLE to, in a session that is wholly his."""
    allowed: list[str] = []
    with psycopg.connect(make_conninfo(url, options="")) as session:
        session.execute(SQL("set session authorization {}").format(Identifier(user)))
        for role in ("holdfast_tenant", "holdfast_worker"):
            with session.transaction():
                session.execute(SQL("set local role {}").format(Identifier(role)))
                session.execute("select from job")
                allowed.append(role)
    return allowed


def test_what_a_migration_could_not_do_is_told(
    empty_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """J-46: the notice of the server reaches whoever upgrades."""
    with psycopg.connect(empty_database_url, autocommit=True) as db:
        db.execute(
            "create table public.jobs (id uuid, status text, stage text, progress int, result jsonb,"
            " error text, created_at timestamptz, updated_at timestamptz)"
        )
        db.execute("insert into public.jobs (status) values ('old')")
        db.execute("create table public.jobs_superseded ()")
    migrate.upgrade(empty_database_url)
    assert "the old table public.jobs stays as it is: the name jobs_superseded is taken" in caplog.text
