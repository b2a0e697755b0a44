"""The live schema of the connectors is the seed's and the listed additions, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import CheckViolation, ForeignKeyViolation, UniqueViolation
from psycopg.sql import SQL, Identifier

from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.tables import metadata
from holdfast.db import migrate

Database = psycopg.Connection[tuple[Any, ...]]

TABLES = (
    "tenants",
    "providers",
    "connections",
    "sync_jobs",
    "signals",
    "oauth_states",
    "webhook_delivery",
)
MOMENT, NOW = "timestamp with time zone", "now()"

COLUMNS = """
select attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid)
from pg_attribute left join pg_attrdef on adrelid = attrelid and adnum = attnum
where attrelid = %s::regclass and attnum > 0
order by attnum
"""

INDEXES = """
select relname, regexp_replace(
    replace(pg_get_indexdef(indexrelid), current_schema() || '.', ''), '\\s+', ' ', 'g')
from pg_index join pg_class on oid = indexrelid
where indrelid = %s::regclass
"""

# PostgreSQL 18 lists NOT NULL here, too; COLUMNS has it.
CONSTRAINTS = """
select conname, pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass and contype <> 'n'
"""

TRIGGERS = """
select tgname, replace(pg_get_triggerdef(oid), current_schema() || '.', '')
from pg_trigger where tgrelid = %s::regclass and not tgisinternal
"""

POLICIES = """
select policyname, roles, cmd, qual, with_check from pg_policies
where schemaname = current_schema() and tablename = %s order by 1
"""

SECURITY = "select relrowsecurity, relforcerowsecurity from pg_class where oid = %s::regclass"

TENANT = UUID(int=1)

ADD_CONNECTION: LiteralString = """
insert into connections (id, tenant_id, provider_slug, external_id) values (%s, %s, %s, %s)
"""
ADD_JOB: LiteralString = """
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status)
values (gen_random_uuid(), %s, %s, %s, %s, %s)
"""
ADD_SIGNAL: LiteralString = """
insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)
values (gen_random_uuid(), %s, %s, %s, 'issue_created', now(), '{}')
"""
ADD_DELIVERY: LiteralString = """
insert into webhook_delivery (provider_slug, connection_id, tenant_id, delivery_id, body_sha256, verification)
values (%s, %s, %s, gen_random_uuid()::text, '', 'signature')
"""
ADD_STATE: LiteralString = """
insert into oauth_states (id, tenant_id, provider, state, expires_at)
values (gen_random_uuid(), %s, 'github', gen_random_uuid()::text, now())
"""


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into tenants (id, name) values (%s, 'one')", [TENANT])
        yield connection


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


def names_to(db: Database, query: LiteralString, table: str) -> dict[str, Any]:
    found = db.execute(query, [table]).fetchall()
    return {name: rest[0] if len(rest) == 1 else tuple(rest) for name, *rest in found}


def add_connection(db: Database, tenant: UUID = TENANT, provider: str = "github", name: str = "octo") -> UUID:
    made = uuid4()
    db.execute(ADD_CONNECTION, [made, tenant, provider, name])
    return made


def count(db: Database, table: str) -> int:
    row = db.execute(SQL("select count(*) from {}").format(Identifier(table))).fetchone()
    assert row
    return row[0]


# -- columns -------------------------------------------------------------------------------------------


def test_the_tables_of_the_seed_have_its_columns_and_then_ours(db: Database) -> None:
    """C-7, C-11, C-73: types, defaults and whether a column may be empty, in order."""
    assert db.execute(COLUMNS, ["tenants"]).fetchall() == [
        ("id", "uuid", True, None),
        ("name", "text", False, None),
        ("created_at", MOMENT, True, NOW),
    ]
    assert db.execute(COLUMNS, ["providers"]).fetchall() == [
        ("slug", "text", True, None),
        ("display_name", "text", True, None),
        ("auth_type", "text", True, None),
        ("created_at", MOMENT, True, NOW),
        ("updated_at", MOMENT, True, NOW),
        ("cooldown_until", MOMENT, False, None),
    ]
    assert db.execute(COLUMNS, ["connections"]).fetchall() == [
        ("id", "uuid", True, None),
        ("tenant_id", "uuid", True, None),
        ("provider_slug", "text", True, None),
        ("external_id", "text", True, None),
        ("display_name", "text", False, None),
        ("status", "text", True, "'active'::text"),
        ("scopes", "text[]", False, None),
        ("access_token_ciphertext", "bytea", False, None),
        ("refresh_token_ciphertext", "bytea", False, None),
        ("expires_at", MOMENT, False, None),
        ("metadata", "jsonb", False, None),
        ("created_at", MOMENT, True, NOW),
        ("updated_at", MOMENT, True, NOW),
        ("token_key_id", "text", False, None),
    ]
    assert db.execute(COLUMNS, ["sync_jobs"]).fetchall() == [
        ("id", "uuid", True, None),
        ("tenant_id", "uuid", True, None),
        ("provider_slug", "text", True, None),
        ("connection_id", "uuid", True, None),
        ("job_type", "text", True, None),
        ("status", "text", True, "'queued'::text"),
        ("priority", "smallint", True, "0"),
        ("attempts", "integer", True, "0"),
        ("scheduled_at", MOMENT, True, NOW),
        ("retry_after", MOMENT, False, None),
        ("started_at", MOMENT, False, None),
        ("finished_at", MOMENT, False, None),
        ("cursor", "jsonb", False, None),
        ("error", "jsonb", False, None),
        ("created_at", MOMENT, True, NOW),
        ("updated_at", MOMENT, True, NOW),
        ("worker_id", "text", False, None),
        ("fence", "bigint", True, "0"),
        ("max_attempts", "integer", True, "10"),
    ]
    assert db.execute(COLUMNS, ["signals"]).fetchall() == [
        ("id", "uuid", True, None),
        ("tenant_id", "uuid", True, None),
        ("provider_slug", "text", True, None),
        ("connection_id", "uuid", True, None),
        ("kind", "text", True, None),
        ("occurred_at", MOMENT, True, None),
        ("received_at", MOMENT, True, NOW),
        ("payload", "jsonb", True, None),
        ("dedupe_key", "text", False, None),
        ("created_at", MOMENT, True, NOW),
        ("updated_at", MOMENT, True, NOW),
    ]


def test_the_states_of_oauth_and_the_inbox_have_their_columns(db: Database) -> None:
    """C-49, C-63, C-64"""
    assert db.execute(COLUMNS, ["oauth_states"]).fetchall() == [
        ("id", "uuid", True, None),
        ("tenant_id", "uuid", True, None),
        ("provider", "text", True, None),
        ("state", "text", True, None),
        ("code_verifier", "text", False, None),
        ("expires_at", MOMENT, True, None),
        ("created_at", MOMENT, True, NOW),
        ("updated_at", MOMENT, True, NOW),
        ("consumed_at", MOMENT, False, None),
        ("redirect_uri", "text", False, None),
    ]
    assert db.execute(COLUMNS, ["webhook_delivery"]).fetchall() == [
        ("provider_slug", "text", True, None),
        ("connection_id", "uuid", False, None),
        ("tenant_id", "uuid", True, None),
        ("delivery_id", "text", True, None),
        ("headers", "jsonb", True, "'{}'::jsonb"),
        ("payload", "jsonb", False, None),
        ("body_sha256", "text", True, None),
        ("verification", "text", True, None),
        ("received_at", MOMENT, True, NOW),
        ("processed_at", MOMENT, False, None),
        ("attempts", "integer", True, "0"),
        ("error", "jsonb", False, None),
    ]


# -- constraints and indexes ---------------------------------------------------------------------------

OF_TENANT = "FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE"
OF_PROVIDER = "FOREIGN KEY (provider_slug) REFERENCES providers(slug)"
OF_CONNECTION = "FOREIGN KEY (connection_id) REFERENCES connections(id) ON DELETE CASCADE"
OF_SCOPE = (
    "FOREIGN KEY (connection_id, tenant_id, provider_slug)"
    " REFERENCES connections(id, tenant_id, provider_slug) ON DELETE CASCADE"
)


def among(column: str, words: str) -> str:
    listed = ", ".join(f"'{word}'::text" for word in words.split())
    return f"CHECK (({column} = ANY (ARRAY[{listed}])))"


def test_the_constraints_tie_each_row_to_one_tenant_and_one_provider(db: Database) -> None:
    """C-14, C-15"""
    assert names_to(db, CONSTRAINTS, "tenants") == {"tenants_pkey": "PRIMARY KEY (id)"}
    assert names_to(db, CONSTRAINTS, "providers") == {"providers_pkey": "PRIMARY KEY (slug)"}
    assert names_to(db, CONSTRAINTS, "connections") == {
        "connections_pkey": "PRIMARY KEY (id)",
        "uq_connections_scope": "UNIQUE (id, tenant_id, provider_slug)",
        "connections_tenant_id_fkey": OF_TENANT,
        "connections_provider_slug_fkey": OF_PROVIDER,
        "ck_connections_status": among("status", "active paused revoked error"),
    }
    assert names_to(db, CONSTRAINTS, "sync_jobs") == {
        "sync_jobs_pkey": "PRIMARY KEY (id)",
        "sync_jobs_tenant_id_fkey": OF_TENANT,
        "sync_jobs_provider_slug_fkey": OF_PROVIDER,
        "sync_jobs_connection_id_fkey": OF_CONNECTION,
        "fk_sync_jobs_scope": OF_SCOPE,
        "ck_sync_jobs_status": among("status", "queued running succeeded failed completed"),
        "sync_jobs_max_attempts_check": "CHECK ((max_attempts >= 1))",
    }
    assert names_to(db, CONSTRAINTS, "signals") == {
        "signals_pkey": "PRIMARY KEY (id)",
        "signals_tenant_id_fkey": OF_TENANT,
        "signals_provider_slug_fkey": OF_PROVIDER,
        "signals_connection_id_fkey": OF_CONNECTION,
        "fk_signals_scope": OF_SCOPE,
    }
    assert names_to(db, CONSTRAINTS, "oauth_states") == {
        "oauth_states_pkey": "PRIMARY KEY (id)",
        "oauth_states_tenant_id_fkey": OF_TENANT,
    }
    assert names_to(db, CONSTRAINTS, "webhook_delivery") == {
        "webhook_delivery_pkey": "PRIMARY KEY (provider_slug, tenant_id, delivery_id)",
        "webhook_delivery_provider_slug_fkey": OF_PROVIDER,
        "webhook_delivery_tenant_id_fkey": OF_TENANT,
        "fk_webhook_delivery_scope": OF_SCOPE,
        "webhook_delivery_verification_check": among("verification", "operator signature shared_secret oidc"),
    }


def own_indexes(db: Database, table: str) -> dict[str, str]:
    """The indexes that are no constraint's, each without its own name and its table's."""
    found = names_to(db, INDEXES, table)
    plain = {
        name: re.sub(rf"CREATE (UNIQUE )?INDEX {name} ON {table} USING btree ", r"\1", text)
        for name, text in found.items()
    }
    return {name: text for name, text in plain.items() if not re.search("_pkey$|^uq_", name)}


def test_the_indexes_are_the_seeds_the_lanes_and_those_of_duties_and_lists(db: Database) -> None:
    """C-21, C-29, C-58, C-69, C-73, C-78: by name and by definition."""
    due = "metadata #>> '{sync,next_run_at}'::text[]"
    spelled = r"'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$'::text"
    assert own_indexes(db, "tenants") == own_indexes(db, "providers") == {}
    assert own_indexes(db, "connections") == {
        "idx_connections_tenant_provider_external": "UNIQUE (tenant_id, provider_slug, external_id)",
        "idx_connections_tenant_id": "(tenant_id)",
        "idx_connections_due": f"(( CASE WHEN (({due}) ~ {spelled}) THEN ({due}) ELSE NULL::text END)"
        """ COLLATE "C" NULLS FIRST, created_at, id) WHERE (status = 'active'::text)""",
        "idx_connections_expires_at": "(expires_at)"
        " WHERE ((status = 'active'::text) AND (refresh_token_ciphertext IS NOT NULL))",
    }
    waiting, failed = "(status = 'queued'::text)", "(status = 'failed'::text)"
    assert own_indexes(db, "sync_jobs") == {
        "idx_sync_jobs_status_scheduled_priority": "(status, scheduled_at, priority DESC)",
        "idx_sync_jobs_tenant_provider_status_scheduled": "(tenant_id, provider_slug, status, scheduled_at)",
        "idx_sync_jobs_connection_status_scheduled": "(connection_id, status, scheduled_at)",
        "idx_sync_jobs_connection_type_status": "UNIQUE (connection_id, job_type)"
        " WHERE (status = ANY (ARRAY['queued'::text, 'running'::text]))",
        "idx_sync_jobs_lane_fresh": "(priority DESC, scheduled_at, id)"
        f" WHERE ({waiting} AND (retry_after IS NULL))",
        "idx_sync_jobs_lane_retry": "(priority DESC, retry_after, id)"
        f" WHERE ({waiting} AND (retry_after IS NOT NULL))",
        "idx_sync_jobs_lane_failed": "(priority DESC, retry_after, id)"
        f" WHERE ({failed} AND (retry_after IS NOT NULL))",
        "idx_sync_jobs_worker": "(worker_id) WHERE (status = 'running'::text)",
        "idx_sync_jobs_created_at": "(created_at)",
        "idx_sync_jobs_tenant_created": "(tenant_id, created_at)",
        "idx_sync_jobs_scheduled": "(scheduled_at, id)",
        "idx_sync_jobs_tenant_scheduled": "(tenant_id, scheduled_at, id)",
    }
    assert own_indexes(db, "signals") == {
        "idx_signals_tenant_provider_occurred": "(tenant_id, provider_slug, occurred_at DESC)",
        "idx_signals_tenant_kind_occurred": "(tenant_id, kind, occurred_at DESC)",
        "idx_signals_connection_occurred": "(connection_id, occurred_at DESC)",
        "idx_signals_tenant_provider_dedupe": "(tenant_id, provider_slug, dedupe_key)",
        "idx_signals_occurred_at": "(occurred_at DESC)",
        "idx_signals_tenant_occurred": "(tenant_id, occurred_at DESC)",
        "idx_signals_received_at": "(received_at)",
    }
    assert own_indexes(db, "oauth_states") == {
        "idx_oauth_states_tenant_provider_state": "UNIQUE (tenant_id, provider, state)",
        "idx_oauth_states_expires_at": "(expires_at)",
        "idx_oauth_states_provider_state": "(provider, state)",
    }
    assert own_indexes(db, "webhook_delivery") == {
        "idx_webhook_delivery_pending": "(connection_id, received_at) WHERE (processed_at IS NULL)",
        "idx_webhook_delivery_received_at": "(received_at)",
        "idx_webhook_delivery_tenant_received": "(tenant_id, received_at)",
        "idx_webhook_delivery_processed_at": "(processed_at) WHERE (processed_at IS NOT NULL)",
    }


def test_migrations_and_metadata_agree(empty_database_url: str) -> None:
    """C-4: tests/db compares what both make, predicates and collations included."""
    migrate.upgrade(empty_database_url)
    assert migrate.check(empty_database_url, metadata) == []
    assert set(TABLES) <= set(metadata.tables)


def test_an_index_that_cannot_be_compared_is_missed_when_it_is_gone(
    empty: Database, empty_database_url: str
) -> None:
    """C-21: a collation is not read back, so of this index only its absence is told."""
    migrate.upgrade(empty_database_url)
    empty.execute("drop index idx_connections_due")
    told = migrate.check(empty_database_url, metadata)
    assert told == ["idx_connections_due on connections is missing or different"]


# -- triggers, policies and grants ---------------------------------------------------------------------


def test_every_table_with_a_time_of_its_last_change_has_the_trigger_that_moves_it(db: Database) -> None:
    """C-8: also for SQL that is not ours."""
    for table in TABLES:
        wanted = {}
        if "updated_at" in {column for column, *_ in db.execute(COLUMNS, [table])}:
            runs = "FOR EACH ROW EXECUTE FUNCTION update_updated_at_column()"
            name = f"update_{table}_updated_at"
            wanted = {name: f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} {runs}"}
        assert names_to(db, TRIGGERS, table) == wanted, table
    db.execute("update providers set created_at = 'epoch', updated_at = 'epoch'")
    moved = db.execute("select bool_and(updated_at > now() - interval '1 minute') from providers")
    assert moved.fetchone() == (True,)


def test_row_security_is_on_everywhere_and_the_policies_ask_for_the_tenant(db: Database) -> None:
    """C-13, C-69: a tenant's role sees its own rows; workers see all; nobody else sees any."""
    mine = "(SELECT (NULLIF(current_setting('holdfast.org_id'::text, true), ''::text))::uuid AS \"nullif\")"
    tenant, worker = ["holdfast_tenant"], ["holdfast_worker"]

    def plain(text: str | None) -> str | None:
        return text and re.sub(r"\s+", " ", text).replace("( SELECT", "(SELECT")

    own = f"(tenant_id = {mine})"
    wanted = {
        "tenants": [
            ("tenants_tenant_select", tenant, "SELECT", f"(id = {mine})", None),
            ("tenants_worker", worker, "SELECT", "true", None),
        ],
        "providers": [
            ("providers_tenant_select", tenant, "SELECT", "true", None),
            ("providers_worker", worker, "ALL", "true", "true"),
        ],
        "sync_jobs": [
            (
                "sync_jobs_tenant_insert",
                tenant,
                "INSERT",
                None,
                f"({own} AND (status = 'queued'::text)"
                " AND (job_type = ANY (ARRAY['full'::text, 'incremental'::text, 'webhook'::text]))"
                " AND isfinite(created_at) AND isfinite(updated_at) AND isfinite(scheduled_at))",
            ),
            ("sync_jobs_tenant_select", tenant, "SELECT", own, None),
            (
                "sync_jobs_tenant_update",
                tenant,
                "UPDATE",
                f"({own} AND (status = ANY (ARRAY['queued'::text, 'running'::text, 'failed'::text])))",
                f"({own} AND (status = ANY (ARRAY['queued'::text, 'failed'::text]))"
                " AND ((attempts >= 0) AND (attempts <= 1000000)))",
            ),
            ("sync_jobs_worker", worker, "ALL", "true", "true"),
        ],
    } | {
        table: [
            (f"{table}_tenant_select", tenant, "SELECT", own, None),
            (f"{table}_worker", worker, "ALL", "true", "true"),
        ]
        for table in ("connections", "signals", "oauth_states", "webhook_delivery")
    }
    for table in TABLES:
        assert db.execute(SECURITY, [table]).fetchone() == (True, False), table
        found = db.execute(POLICIES, [table]).fetchall()
        assert [(*row[:3], plain(row[3]), plain(row[4])) for row in found] == wanted[table], table


def granted(db: Database, role: str, table: str, privilege: str) -> set[str]:
    query = """
        select column_name from information_schema.column_privileges
        where grantee = %s and table_name = %s and privilege_type = %s and table_schema = current_schema()
    """
    return {column for (column,) in db.execute(query, [role, table, privilege])}


def all_columns(db: Database, table: str) -> set[str]:
    return {column for column, *_ in db.execute(COLUMNS, [table])}


def test_a_tenant_may_read_no_token_and_no_secret_of_an_authorisation(db: Database) -> None:
    """C-57, C-64: by columns, whatever the policies say."""
    hidden = {
        "connections": {"access_token_ciphertext", "refresh_token_ciphertext", "token_key_id"},
        "oauth_states": {"state", "code_verifier", "redirect_uri"},
    }
    for table in TABLES:
        seen = granted(db, "holdfast_tenant", table, "SELECT")
        assert seen == all_columns(db, table) - hidden.get(table, set()), table
        written = {what: granted(db, "holdfast_tenant", table, what) for what in ("INSERT", "UPDATE")}
        if table != "sync_jobs":
            assert written == {"INSERT": set(), "UPDATE": set()}, table
    for secret in ("fence", "tenant_id", "connection_id", "provider_slug", "job_type", "cursor"):
        assert secret not in granted(db, "holdfast_tenant", "sync_jobs", "UPDATE")
    kept = all_columns(db, "sync_jobs") - granted(db, "holdfast_tenant", "sync_jobs", "INSERT")
    assert kept == {
        *("attempts", "retry_after", "started_at", "finished_at", "error"),
        *("worker_id", "fence"),
    }


def test_a_worker_may_do_its_work_and_no_more(db: Database) -> None:
    """C-33: nothing that says whose a row is."""
    everything = "select privilege_type from information_schema.table_privileges where grantee = %s"
    everything += " and table_name = %s and table_schema = current_schema() order by 1"
    wanted = {
        "tenants": "SELECT",
        "providers": "INSERT SELECT UPDATE",
        "connections": "SELECT",
        "sync_jobs": "DELETE INSERT SELECT",
        "signals": "DELETE INSERT SELECT",
        "oauth_states": "DELETE SELECT",
        "webhook_delivery": "DELETE INSERT SELECT",
    }
    for table in TABLES:
        found = db.execute(everything, ["holdfast_worker", table]).fetchall()
        assert " ".join(word for (word,) in found) == wanted[table], table
    whose = {"id", "tenant_id", "provider_slug", "connection_id", "external_id", "job_type", "created_at"}
    assert not whose & granted(db, "holdfast_worker", "connections", "UPDATE")
    assert not whose & granted(db, "holdfast_worker", "sync_jobs", "UPDATE")
    rewritten = granted(db, "holdfast_worker", "webhook_delivery", "UPDATE")
    assert rewritten == {"connection_id", "processed_at", "attempts", "error"}


# -- the seed's scenarios ------------------------------------------------------------------------------


def test_a_tenant_inserted_by_id_and_name_gets_its_created_at(db: Database) -> None:
    """C-7"""
    insert = "insert into tenants (id, name) values (%s, 'two')"
    row = db.execute(insert + " returning created_at > now() - interval '1 minute'", [uuid4()])
    assert row.fetchone() == (True,)


def test_a_second_tenant_with_the_same_id_is_a_primary_key_violation(db: Database) -> None:
    """C-7"""
    with pytest.raises(UniqueViolation, match="tenants_pkey"):
        db.execute("insert into tenants (id, name) values (%s, 'again')", [TENANT])


def test_a_new_provider_is_inserted_and_its_times_are_set(db: Database) -> None:
    """C-7"""
    row = db.execute(
        "insert into providers (slug, display_name, auth_type) values ('asana', 'Asana', 'oauth2')"
        " returning created_at = updated_at and created_at > now() - interval '1 minute'"
    )
    assert row.fetchone() == (True,)


def test_a_second_provider_github_is_a_primary_key_violation(db: Database) -> None:
    """C-7"""
    with pytest.raises(UniqueViolation, match="providers_pkey"):
        db.execute("insert into providers (slug, display_name, auth_type) values ('github', 'G', 'oauth2')")


def test_the_migration_puts_the_eight_providers_in_as_the_catalogue_has_them(db: Database) -> None:
    """C-9"""
    found = db.execute("select slug, display_name, auth_type from providers").fetchall()
    assert sorted(found) == sorted((p.slug, p.display_name, p.auth_type) for p in PROVIDERS)
    assert len(found) == 8


def test_a_second_queued_job_of_a_type_is_refused_and_others_are_not(db: Database) -> None:
    """C-26, C-32: a full one beside an incremental one; and one that has ended blocks nothing."""
    one = add_connection(db)
    for kind, status in (("incremental", "queued"), ("full", "running"), ("webhook", "queued")):
        db.execute(ADD_JOB, [TENANT, "github", one, kind, status])
        for again in ("queued", "running"):
            with pytest.raises(UniqueViolation, match="idx_sync_jobs_connection_type_status"):
                db.execute(ADD_JOB, [TENANT, "github", one, kind, again])
    for status in ("succeeded", "failed", "completed"):
        for _ in range(2):
            db.execute(ADD_JOB, [TENANT, "github", one, "incremental", status])
    db.execute("update sync_jobs set status = 'completed' where job_type = 'incremental'")
    db.execute(ADD_JOB, [TENANT, "github", one, "incremental", "queued"])


@pytest.mark.parametrize(
    ("table", "statement", "refusal"),
    [
        ("connections", "update connections set status = 'gone'", "ck_connections_status"),
        ("sync_jobs", "update sync_jobs set status = 'done'", "ck_sync_jobs_status"),
        ("sync_jobs", "update sync_jobs set max_attempts = 0", "sync_jobs_max_attempts_check"),
        ("webhook_delivery", "update webhook_delivery set verification = 'none'", "verification_check"),
    ],
)
def test_a_word_that_nobody_knows_is_refused(
    db: Database, table: str, statement: LiteralString, refusal: str
) -> None:
    """C-16, C-28, C-52"""
    one = add_connection(db)
    db.execute(ADD_JOB, [TENANT, "github", one, "full", "queued"])
    db.execute(ADD_DELIVERY, ["github", one, TENANT])
    assert count(db, table) == 1
    with pytest.raises(CheckViolation, match=refusal):
        db.execute(statement)


# -- whose a row is ------------------------------------------------------------------------------------


def test_two_tenants_may_have_the_same_account_and_one_may_not_have_it_twice(db: Database) -> None:
    """C-11"""
    other = uuid4()
    db.execute("insert into tenants (id) values (%s)", [other])
    add_connection(db)
    add_connection(db, other)
    add_connection(db, provider="slack")
    with pytest.raises(UniqueViolation, match="idx_connections_tenant_provider_external"):
        add_connection(db)


def test_a_row_that_names_another_tenants_or_providers_connection_is_refused(db: Database) -> None:
    """C-14: jobs, signals and deliveries alike."""
    other = uuid4()
    db.execute("insert into tenants (id) values (%s)", [other])
    one = add_connection(db)
    for tenant, provider, connection in (
        (other, "github", one),
        (TENANT, "slack", one),
        (TENANT, "github", uuid4()),
        (uuid4(), "github", one),
        (TENANT, "nobody", one),
    ):
        with pytest.raises(ForeignKeyViolation):
            db.execute(ADD_JOB, [tenant, provider, connection, "full", "queued"])
        with pytest.raises(ForeignKeyViolation):
            db.execute(ADD_SIGNAL, [tenant, provider, connection])
        with pytest.raises(ForeignKeyViolation):
            db.execute(ADD_DELIVERY, [provider, connection, tenant])
    db.execute(ADD_DELIVERY, ["github", None, other])  # one that no connection matched is no wrong one


def test_a_connection_cannot_be_given_to_another_tenant_with_what_it_has_brought(db: Database) -> None:
    """C-14"""
    other = uuid4()
    db.execute("insert into tenants (id) values (%s)", [other])
    one = add_connection(db)
    db.execute(ADD_SIGNAL, [TENANT, "github", one])
    with pytest.raises(ForeignKeyViolation, match="fk_signals_scope"):
        db.execute("update connections set tenant_id = %s", [other])


@pytest.mark.parametrize("gone", ["delete from connections", "delete from tenants"])
def test_deleting_a_tenant_or_a_connection_takes_along_what_was_theirs(
    db: Database, gone: LiteralString
) -> None:
    """C-15"""
    one = add_connection(db)
    db.execute(ADD_JOB, [TENANT, "github", one, "full", "running"])
    db.execute(ADD_SIGNAL, [TENANT, "github", one])
    db.execute(ADD_DELIVERY, ["github", one, TENANT])
    db.execute(ADD_STATE, [TENANT])
    db.execute(gone)
    for table in ("connections", "sync_jobs", "signals", "webhook_delivery"):
        assert count(db, table) == 0, table
    assert count(db, "oauth_states") == (0 if "tenants" in gone else 1)


def test_a_provider_that_is_in_use_cannot_be_deleted(db: Database) -> None:
    """C-15"""
    add_connection(db)
    with pytest.raises(ForeignKeyViolation, match="connections_provider_slug_fkey"):
        db.execute("delete from providers where slug = 'github'")
    db.execute("delete from providers where slug = 'slack'")


# -- installing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "named"),
    [
        ("create table tenants (id int)", "tenants"),
        ("create table signals (); create table connections ()", "connections, signals"),
        ("create view providers as select 1 as slug", "providers"),
        ("create sequence sync_jobs", "sync_jobs"),
        ("create type oauth_states as enum ('a')", "oauth_states"),
    ],
)
def test_something_else_of_one_of_these_names_stops_the_upgrade_and_is_left_alone(
    empty: Database, empty_database_url: str, there: LiteralString, named: str
) -> None:
    """C-4: and the sentence says what to do."""
    empty.execute(there)
    migrate.upgrade(empty_database_url, "0003")
    with pytest.raises(migrate.MigrationError) as caught:
        migrate.upgrade(empty_database_url)
    assert str(caught.value) == (
        "the migration failed and changed nothing: in this schema there is already something else of the name"
        f" {named}: rename it, or give Holdfast a schema of its own (HOLDFAST_SCHEMA)"
    )
    assert migrate.current(empty_database_url) == "0003"
    migrate.upgrade(empty_database_url, schema="Cell 7")
    assert migrate.check(empty_database_url, metadata, "Cell 7") == []


def test_migrating_again_at_head_changes_neither_schema_nor_data(db: Database, database_url: str) -> None:
    """C-4: a provider that somebody has renamed keeps its name."""
    db.execute("update providers set display_name = 'Our GitHub' where slug = 'github'")
    before = db.execute("select * from providers order by 1").fetchall()
    migrate.upgrade(database_url)
    assert db.execute("select * from providers order by 1").fetchall() == before


def test_going_back_takes_all_of_it_away(empty: Database, empty_database_url: str) -> None:
    """C-4"""
    everything = "select relname from pg_class where relnamespace = 'public'::regnamespace"
    everything += (
        " union all select proname from pg_proc where pronamespace = 'public'::regnamespace order by 1"
    )
    migrate.upgrade(empty_database_url, "0003")
    before = empty.execute(everything).fetchall()
    migrate.upgrade(empty_database_url)
    empty.execute("insert into tenants (id) values (%s)", [TENANT])
    add_connection(empty)
    migrate.downgrade(empty_database_url, "0003")
    assert empty.execute(everything).fetchall() == before
