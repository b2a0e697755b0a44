"""Who may see and write what of the connectors: by plain SQL and by the engine, as the roles themselves.

The owner and superusers pass row security by, so nothing here is tried as one of them that is about tenants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import ForeignKeyViolation, InsufficientPrivilege, InvalidTextRepresentation
from psycopg.sql import SQL, Identifier

from holdfast.apps.connectors import connections, crypto, signals, tenants
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import Signal
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from holdfast.engine.tenants import confine
from holdfast.engine.values import Filter, Item
from holdfast.errors import NotFound

Database = psycopg.Connection[tuple[Any, ...]]

TENANT, WORKER = "holdfast_tenant", "holdfast_worker"
ONE, TWO = UUID(int=1), UUID(int=2)
SET_ORG: LiteralString = "select set_config('holdfast.org_id', %s, true)"

SEEN = ("tenants", "connections", "sync_jobs", "signals", "oauth_states", "webhook_delivery")

WORLD: LiteralString = """
insert into tenants (id, name) values (%(tenant)s, 'a tenant');
insert into connections (id, tenant_id, provider_slug, external_id, access_token_ciphertext, token_key_id)
values (%(connection)s, %(tenant)s, 'github', 'octo', 'sealed', 'k');
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type)
values (%(job)s, %(tenant)s, 'github', %(connection)s, 'full');
insert into signals (id, tenant_id, provider_slug, connection_id, kind, occurred_at, payload)
values (%(signal)s, %(tenant)s, 'github', %(connection)s, 'issue_created', now(), '{}');
insert into oauth_states (id, tenant_id, provider, state, code_verifier, expires_at)
values (gen_random_uuid(), %(tenant)s, 'github', 'state', 'verifier', now());
insert into webhook_delivery (provider_slug, connection_id, tenant_id, delivery_id, body_sha256, verification)
values ('github', %(connection)s, %(tenant)s, 'd', '', 'signature');
"""


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """A connection of the owner to a world of two tenants; ids are the tenant's number and a letter's."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        for tenant in (ONE, TWO):
            params = {"tenant": tenant, "connection": of("c", tenant), "job": of("f", tenant)}
            with psycopg.ClientCursor(connection) as cursor:
                cursor.execute(WORLD, params | {"signal": of("a", tenant)})
        yield connection


def of(letter: str, tenant: UUID) -> UUID:
    return UUID(int=int(letter, 16) << 64 | tenant.int)


@contextmanager
def acting(db: Database, role: str, tenant: UUID | str | None = None) -> Iterator[Database]:
    """One transaction as that role, for that tenant."""
    with db.transaction():
        db.execute(SQL("set local role {}").format(Identifier(role)))
        if tenant is not None:
            db.execute(SET_ORG, [str(tenant)])
        yield db


def count(db: Database, table: str) -> int:
    row = db.execute(SQL("select count(*) from {}").format(Identifier(table))).fetchone()
    assert row
    return row[0]


# -- reading -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", SEEN)
def test_a_tenant_sees_its_own_rows_and_no_other(db: Database, table: str) -> None:
    """C-13"""
    whose = Identifier("id" if table == "tenants" else "tenant_id")
    with acting(db, TENANT, ONE):
        found = db.execute(SQL("select {} from {}").format(whose, Identifier(table))).fetchall()
        assert found == [(ONE,)]
    for nobody in (None, "", uuid4()):
        with acting(db, TENANT, nobody):
            assert count(db, table) == 0
    assert count(db, table) == 2


def test_everybody_reads_the_catalogue_and_no_tenant_writes_it(db: Database) -> None:
    """C-8"""
    with acting(db, TENANT):
        assert count(db, "providers") == 8
    for statement in ("update providers set display_name = 'x'", "delete from providers"):
        with pytest.raises(InsufficientPrivilege), acting(db, TENANT, ONE):
            db.execute(statement)


def test_a_setting_that_is_no_uuid_is_refused(db: Database) -> None:
    """C-72"""
    with pytest.raises(InvalidTextRepresentation), acting(db, TENANT, "everyone"):
        count(db, "connections")


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("connections", "access_token_ciphertext"),
        ("connections", "refresh_token_ciphertext"),
        ("connections", "token_key_id"),
        ("oauth_states", "state"),
        ("oauth_states", "code_verifier"),
    ],
)
def test_a_tenant_reads_no_token_not_even_its_own_sealed_one(db: Database, table: str, column: str) -> None:
    """C-57: nor asks for one by a condition."""
    for query in ("select {1} from {0}", "select id from {0} where {1} is not null", "select * from {0}"):
        with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, TENANT, ONE):
            db.execute(SQL(query).format(Identifier(table), Identifier(column)))


@pytest.mark.parametrize("table", [*SEEN, "providers"])
def test_a_role_without_policies_sees_nothing_whatever_it_was_granted(db: Database, table: str) -> None:
    """C-13: every role but the owner is bound."""
    stranger = Identifier(f"stranger_{uuid4().hex}")
    with db.transaction(force_rollback=True):
        db.execute(SQL("create role {}").format(stranger))
        db.execute(SQL("grant all on {} to {}").format(Identifier(table), stranger))
        db.execute(SQL("set local role {}").format(stranger))
        db.execute(SET_ORG, [str(ONE)])
        assert count(db, table) == 0


# -- writing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [table for table in SEEN if table != "sync_jobs"])
def test_a_tenant_writes_syncs_and_nothing_else(db: Database, table: str) -> None:
    """C-13"""
    name = Identifier(table)
    whose = Identifier("id" if table == "tenants" else "tenant_id")
    statements = [
        SQL("update {} set {} = %s").format(name, whose),
        SQL("delete from {} where {} = %s").format(name, whose),
        SQL("insert into {} ({}) values (%s)").format(name, whose),
    ]
    for statement in statements:
        with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, TENANT, ONE):
            db.execute(statement, [ONE])
    with pytest.raises(InsufficientPrivilege), acting(db, TENANT, ONE):
        db.execute(SQL("truncate {} cascade").format(name))


ADD: LiteralString = """
insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, scheduled_at)
values (gen_random_uuid(), %s, 'github', %s, 'incremental', %s, %s)
"""


@pytest.mark.parametrize(
    ("tenant", "connection", "status", "when", "refusal"),
    [
        (TWO, of("c", TWO), "queued", "now", InsufficientPrivilege),
        (ONE, of("c", TWO), "queued", "now", ForeignKeyViolation),
        (ONE, of("c", ONE), "running", "now", InsufficientPrivilege),
        (ONE, of("c", ONE), "succeeded", "now", InsufficientPrivilege),
        (ONE, of("c", ONE), "queued", "infinity", InsufficientPrivilege),
    ],
)
def test_a_tenant_adds_queued_syncs_of_its_own_connections_only(
    db: Database, tenant: UUID, connection: UUID, status: str, when: str, refusal: type[Exception]
) -> None:
    """C-14"""
    with pytest.raises(refusal), acting(db, TENANT, ONE):
        db.execute(ADD, [tenant, connection, status, when])
    with acting(db, TENANT, ONE):
        db.execute(ADD, [ONE, of("c", ONE), "queued", "now"])
    assert count(db, "sync_jobs") == 3


def test_a_tenant_adds_jobs_of_the_types_that_there_are(db: Database) -> None:
    """C-14, C-28: nobody would ever take one of another type."""
    made_up = ADD.replace("'incremental'", "'nonsense'")
    with pytest.raises(InsufficientPrivilege), acting(db, TENANT, ONE):
        db.execute(made_up, [ONE, of("c", ONE), "queued", "now"])
    with acting(db, TENANT, ONE):
        for kind in ("'webhook'", "'incremental'"):
            db.execute(ADD.replace("'incremental'", kind), [ONE, of("c", ONE), "queued", "now"])


@pytest.mark.parametrize(
    "change",
    [
        "tenant_id = '00000000-0000-0000-0000-000000000002'",
        "connection_id = gen_random_uuid()",
        "job_type = 'webhook'",
        "cursor = '1'",
        "priority = 9",
        "fence = 9",
        "max_attempts = 99",
        "status = 'running'",
        "status = 'succeeded'",
        "status = 'completed'",
        "attempts = -1",
        "attempts = 1000001",
    ],
)
def test_a_tenant_says_nothing_about_how_a_sync_went(db: Database, change: LiteralString) -> None:
    """C-44: it cancels and requeues."""
    with pytest.raises(InsufficientPrivilege), acting(db, TENANT, ONE):
        db.execute("update sync_jobs set " + change)


def test_what_has_ended_well_is_out_of_a_tenants_reach(db: Database) -> None:
    """C-44"""
    db.execute("update sync_jobs set status = 'succeeded', finished_at = now()")
    with acting(db, TENANT, ONE):
        assert db.execute("update sync_jobs set status = 'queued'").rowcount == 0


async def test_the_engine_serves_a_tenant_confined_by_the_database(conn: Connection, db: Database) -> None:
    """C-44, C-70: it reads, enqueues, cancels and requeues its own syncs, and finds no other."""
    store = Store(SYNC_JOBS)
    item = Item(
        kind="incremental",
        tenant=ONE,
        priority=10,
        extras={"connection_id": of("c", ONE), "provider_slug": "github"},
    )
    async with conn.transaction():
        await confine(conn, SYNC_JOBS, ONE)
        receipt = await store.enqueue(conn, item)
        again = await store.enqueue(conn, item)
        assert (receipt.created, again.created, again.id) == (True, False, receipt.id)
        page = await store.find(conn, Filter())
        assert {row.id for row in page.rows} == {receipt.id, of("f", ONE)}
        await store.cancel(conn, receipt.id)
        assert (await store.get(conn, receipt.id)).state == "failed"
        await store.requeue(conn, receipt.id)
        assert (await store.get(conn, receipt.id)).state == "queued"
        for verb in (store.cancel, store.requeue):
            with pytest.raises(NotFound):
                await verb(conn, of("f", TWO))
        with pytest.raises(NotFound):
            await store.get(conn, of("f", TWO))


async def test_a_tenant_may_list_its_own_signals_confined(conn: Connection, db: Database) -> None:
    """C-69"""
    async with conn.transaction():
        await confine(conn, SYNC_JOBS, ONE)
        page = await signals.find(conn, None)
        assert [item.id for item in page.items] == [of("a", ONE)]
        assert (await tenants.get(conn, ONE)).name == "a tenant"
        with pytest.raises(NotFound):
            await signals.get(conn, of("a", TWO))


# -- workers -------------------------------------------------------------------------------------------


async def test_a_worker_under_its_own_role_does_all_of_its_work(conn: Connection, db: Database) -> None:
    """C-37, C-39, C-54, C-62, C-78: for every tenant."""
    store = Store(SYNC_JOBS)
    ring = crypto.Keyring(lambda: b"k" * 32)
    scope: Any = {"tenant_id": ONE, "provider": "github", "external_id": "octo"}
    async with conn.transaction():
        await conn.execute("set local role holdfast_worker")
        claimed = await store.claim(conn, "w", limit=10)
        assert {claim.tenant for claim in claimed} == {ONE, TWO}
        link = await connections.lock(conn, of("c", ONE))
        assert link is not None
        assert await connections.lock_shared(conn, of("c", TWO)) is not None
        signal = Signal(kind="issue_created", occurred_at=datetime.now(UTC), payload={})
        assert await signals.store(conn, link, [signal]) == 1
        await connections.merge_sync(conn, link.id, {"cursor": 1})
        sealed = ring.seal("t", **scope)
        changed = await connections.update_tokens_status(
            conn, link.id, access=sealed.data, key_id=sealed.key_id, status="paused", expires_at=None
        )
        assert changed is not None
        assert changed.status == "paused"
        await conn.execute("update webhook_delivery set processed_at = now(), attempts = 1, error = '{}'")
        follow_up = Item(
            kind="incremental",
            tenant=TWO,
            extras={"connection_id": of("c", TWO), "provider_slug": "github"},
        )
        assert (await store.enqueue(conn, follow_up)).created
        for table in ("signals", "oauth_states", "webhook_delivery", "sync_jobs"):
            await conn.execute(SQL("delete from {}").format(Identifier(table)))


@pytest.mark.parametrize(
    "statement",
    [
        "update connections set tenant_id = tenant_id",
        "update connections set external_id = 'x'",
        "delete from connections",
        "delete from tenants",
        "update tenants set name = 'x'",
        "update sync_jobs set connection_id = connection_id",
        "update signals set payload = '{}'",
        "update webhook_delivery set payload = '{}'",
        "truncate signals",
    ],
)
def test_a_worker_changes_nothing_that_says_whose_a_row_is_or_what_came(
    db: Database, statement: LiteralString
) -> None:
    """C-14"""
    with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, WORKER):
        db.execute(statement)
