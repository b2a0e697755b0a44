"""Who may see and write what in `job` and `job_event`: by plain SQL, as the roles themselves.

The owner and superusers pass row security by, so nothing here is tried as one of them that is about tenants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RestrictViolation
from psycopg.sql import SQL, Identifier

from holdfast.apps.jobs.ledger import JOB
from holdfast.db.pool import Connection
from holdfast.engine.store import Store
from holdfast.engine.values import Fault, Filter, Item, Move
from holdfast.errors import NotAllowed, NotFound

Database = psycopg.Connection[tuple[Any, ...]]

TENANT, WORKER = "holdfast_tenant", "holdfast_worker"
ONE, TWO = UUID(int=1), UUID(int=2)

ADD: LiteralString = "insert into job (org_id, type) values (%s, 'a') returning id"
TELL: LiteralString = "insert into job_event (job_id, next_status) values (%s, 'queued')"

# Job and event in one statement, as the engine writes them: one for each organisation that is named.
ENQUEUE: LiteralString = """
with moved as (
    insert into job (org_id, type) select org, 'a' from unnest(%s::uuid[]) as org returning id
)
insert into job_event (job_id, next_status) select id, 'queued' from moved
"""

SET_ORG: LiteralString = "select set_config('holdfast.org_id', %s, true)"


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    """A connection of the owner, who is free of row security."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@contextmanager
def acting(db: Database, role: str, org: UUID | str | None = None) -> Iterator[Database]:
    """One transaction as that role, for that organisation."""
    with db.transaction():
        db.execute(SQL("set local role {}").format(Identifier(role)))
        if org is not None:
            db.execute(SET_ORG, [str(org)])
        yield db


def add(db: Database, org: UUID) -> UUID:
    """A job with its first event, by the owner."""
    row = db.execute(ADD, [org]).fetchone()
    assert row
    db.execute(TELL, row)
    return row[0]


def count(db: Database, table: str) -> int:
    row = db.execute(SQL("select count(*) from {}").format(Identifier(table))).fetchone()
    assert row
    return row[0]


# -- the record is append-only -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "verb"),
    [
        ("update job_event set next_status = 'succeeded'", "update"),
        ("update job_event set detail_json = detail_json", "update"),
        ("delete from job_event", "delete"),
        ("truncate job_event", "truncate"),
        ("truncate job cascade", "truncate"),
    ],
)
def test_not_even_the_owner_changes_what_was_told(db: Database, statement: LiteralString, verb: str) -> None:
    """J-33"""
    add(db, ONE)
    before = db.execute("table job_event").fetchall()
    with pytest.raises(RestrictViolation, match=f"^job_event is append-only: {verb} is refused"):
        db.execute(statement)
    assert db.execute("table job_event").fetchall() == before
    assert count(db, "job") == 1


def test_deleting_a_job_removes_its_events_and_no_others(db: Database) -> None:
    """J-33"""
    gone, stays = add(db, ONE), add(db, ONE)
    db.execute("delete from job where id = %s", [gone])
    assert db.execute("select job_id from job_event").fetchall() == [(stays,)]


def test_a_job_and_its_events_cannot_be_parted_inside_one_transaction(db: Database) -> None:
    """J-33: a job that was deleted is gone for good, unless all of it is rolled back."""
    job = add(db, ONE)
    with db.transaction(force_rollback=True):
        db.execute("delete from job where id = %s", [job])
        assert count(db, "job_event") == 0
    assert count(db, "job") == count(db, "job_event") == 1


def test_a_temporary_table_does_not_stand_in_for_the_jobs(db: Database) -> None:
    """J-33: an empty one would say that every job is gone."""
    add(db, ONE)
    db.execute("create temp table job (id uuid)")
    assert count(db, "job") == 0
    with pytest.raises(RestrictViolation):
        db.execute("delete from job_event")


def test_the_switch_of_eviction_lets_deletes_pass_for_one_transaction(db: Database) -> None:
    """J-33"""
    first, second = add(db, ONE), add(db, ONE)
    with db.transaction():
        db.execute("set local holdfast.evict = 'on'")
        db.execute("delete from job_event where job_id = %s", [first])
    assert db.execute("select job_id from job_event").fetchall() == [(second,)]
    assert count(db, "job") == 2
    with pytest.raises(RestrictViolation):
        db.execute("delete from job_event")


@pytest.mark.parametrize("statement", ["update job_event set ts = now()", "truncate job_event"])
def test_the_switch_of_eviction_lets_nothing_else_pass(db: Database, statement: LiteralString) -> None:
    """J-33"""
    add(db, ONE)
    with db.transaction():
        db.execute("set local holdfast.evict = 'on'")
        with pytest.raises(RestrictViolation), db.transaction():
            db.execute(statement)


@pytest.mark.parametrize("value", ["off", "", "ON ", "true"])
def test_the_switch_of_eviction_has_one_word(db: Database, value: str) -> None:
    """J-33"""
    add(db, ONE)
    with db.transaction():
        db.execute("select set_config('holdfast.evict', %s, true)", [value])
        with pytest.raises(RestrictViolation), db.transaction():
            db.execute("delete from job_event")


@pytest.mark.parametrize("role", [TENANT, WORKER])
@pytest.mark.parametrize(
    "statement",
    [
        "delete from job",
        "truncate job cascade",
        "update job_event set next_status = 'queued'",
        "delete from job_event",
        "truncate job_event",
        "select from job_event for update",
    ],
)
def test_neither_role_deletes_or_rewrites(db: Database, role: str, statement: LiteralString) -> None:
    """J-33, J-39, J-41: the switch of eviction is none of theirs."""
    add(db, ONE)
    with acting(db, role, ONE):
        db.execute("set local holdfast.evict = 'on'")
        with pytest.raises(InsufficientPrivilege, match="permission denied"), db.transaction():
            db.execute(statement)
    assert count(db, "job") == count(db, "job_event") == 1


def test_who_may_delete_but_not_see_the_job_cannot_delete_its_events(db: Database) -> None:
    """J-33: to the caller the job is invisible; the guard looks as the owner."""
    add(db, ONE)
    db.execute("grant delete on job_event to holdfast_tenant")
    db.execute("create policy slip on job_event to holdfast_tenant using (true)")
    with acting(db, TENANT):
        assert (count(db, "job"), count(db, "job_event")) == (0, 1)
        with pytest.raises(RestrictViolation), db.transaction():
            db.execute("delete from job_event")


@pytest.mark.parametrize("role", [TENANT, WORKER])
def test_the_guard_cannot_be_borrowed_to_ask_which_ids_exist(db: Database, role: str) -> None:
    """J-44"""
    ask = "create trigger ask before delete on probe for each row execute function job_event_append_only()"
    with acting(db, role):
        db.execute("create temp table probe (job_id uuid)")
        with pytest.raises(InsufficientPrivilege, match="denied for function"), db.transaction():
            db.execute(ask)


# -- tenants -------------------------------------------------------------------------------------------


def test_a_tenant_sees_its_own_jobs_and_their_events_only(db: Database) -> None:
    """J-39, J-40"""
    own, _ = add(db, ONE), add(db, TWO)
    with acting(db, TENANT, ONE):
        assert db.execute("select id, org_id from job").fetchall() == [(own, ONE)]
        assert db.execute("select job_id from job_event").fetchall() == [(own,)]


def test_a_tenant_without_the_setting_sees_nothing_and_inserts_nothing(db: Database) -> None:
    """J-39"""
    job = add(db, ONE)
    for org in (None, ""):
        with acting(db, TENANT, org):
            assert count(db, "job") == count(db, "job_event") == 0
            assert db.execute("update job set status = 'canceled', finished_at = now()").rowcount == 0
        with pytest.raises(InsufficientPrivilege, match="row-level security"), acting(db, TENANT, org):
            db.execute(ADD, [ONE])
        with pytest.raises(InsufficientPrivilege, match="row-level security"), acting(db, TENANT, org):
            db.execute(TELL, [job])


def test_nothing_is_left_of_a_tenant_after_its_transaction(db: Database) -> None:
    """J-39: once set on a connection the setting reads '' ever after, which is nobody and no error."""
    add(db, ONE)
    with acting(db, TENANT, ONE):
        assert count(db, "job") == 1
    assert db.execute("select current_setting('holdfast.org_id', true)").fetchone() == ("",)
    with acting(db, TENANT):
        assert count(db, "job") == count(db, "job_event") == 0


def test_a_setting_that_is_no_uuid_is_refused(db: Database) -> None:
    """J-39"""
    add(db, ONE)
    with pytest.raises(psycopg.errors.InvalidTextRepresentation), acting(db, TENANT, "everyone"):
        count(db, "job")


def test_a_tenant_adds_a_job_and_its_event_in_one_statement(db: Database) -> None:
    """J-2, J-39: the event's check sees the job that the same statement inserted."""
    with acting(db, TENANT, ONE):
        assert db.execute(ENQUEUE, [[ONE]]).rowcount == 1
    with acting(db, TENANT, ONE):
        assert db.execute(ENQUEUE, [[ONE] * 500]).rowcount == 500
        assert count(db, "job") == count(db, "job_event") == 501


def test_a_tenant_adds_nothing_for_another(db: Database) -> None:
    """J-39: one foreign row in a bulk spoils all of it."""
    for orgs in ([TWO], [ONE, TWO], [TWO, ONE]):
        with pytest.raises(InsufficientPrivilege, match="row-level security"), acting(db, TENANT, ONE):
            db.execute(ENQUEUE, [orgs])
    assert count(db, "job") == count(db, "job_event") == 0


@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_tenant_adds_queued_jobs_only(db: Database, status: str) -> None:
    """J-1, J-39"""
    with pytest.raises(InsufficientPrivilege, match="row-level security"), acting(db, TENANT, ONE):
        db.execute("insert into job (org_id, type, status) values (%s, 'a', %s)", [ONE, status])


@pytest.mark.parametrize(
    "column", ["attempt", "started_at", "finished_at", "last_error_code", "worker_id", "fence"]
)
def test_a_tenant_fills_the_columns_of_an_enqueue_only(db: Database, column: str) -> None:
    """J-39"""
    insert = SQL("insert into job (org_id, type, {}) values (%s, 'a', default)").format(Identifier(column))
    with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, TENANT, ONE):
        db.execute(insert, [ONE])


def test_a_tenant_cancels_and_requeues_its_own_and_finds_no_other(db: Database) -> None:
    """J-29, J-30, J-39"""
    own, other = add(db, ONE), add(db, TWO)
    cancel = "update job set status = 'canceled', finished_at = now(), worker_id = null, updated_at = now()"
    requeue = (
        "update job set status = 'queued', finished_at = null, started_at = null, attempt = 0,"
        " run_at = now(), updated_at = now(), worker_id = null"
    )
    for status, statement in (("failed", cancel), ("dead_letter", requeue)):
        db.execute("alter table job disable trigger trg_job__edges")
        db.execute(
            "update job set status = %s, finished_at = case when %s = 'dead_letter' then now() end",
            [status, status],
        )
        db.execute("alter table job enable trigger trg_job__edges")
        with acting(db, TENANT, ONE):
            assert db.execute("select id from job for no key update").fetchall() == [(own,)]
            assert db.execute(statement).rowcount == 1
            assert db.execute("update job set status = 'queued' where id = %s", [other]).rowcount == 0
    assert db.execute("select status from job where id = %s", [other]).fetchone() == ("dead_letter",)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("org_id = '00000000-0000-0000-0000-000000000002'", "permission denied"),
        ("type = 'b'", "permission denied"),
        ("payload = '{}'", "permission denied"),
        ("idempotency_key = 'k'", "permission denied"),
        ("requested_by = 'me'", "permission denied"),
        ("priority = 9", "permission denied"),
        ("max_attempts = 9", "permission denied"),
        ("fence = 9", "permission denied"),
        ("last_error_code = 'X'", "permission denied"),
        ("status = 'running'", "row-level security"),
        ("status = 'succeeded', finished_at = now()", "row-level security"),
    ],
)
def test_a_tenant_changes_nothing_else(db: Database, change: LiteralString, refusal: str) -> None:
    """J-39"""
    add(db, ONE)
    with pytest.raises(InsufficientPrivilege, match=refusal), acting(db, TENANT, ONE):
        db.execute("update job set " + change)


def test_a_tenant_tells_of_its_own_jobs_only(db: Database) -> None:
    """J-40"""
    own, other = add(db, ONE), add(db, TWO)
    with acting(db, TENANT, ONE):
        db.execute(TELL, [own])
    for job in (other, uuid4()):
        with pytest.raises(InsufficientPrivilege, match="row-level security"), acting(db, TENANT, ONE):
            db.execute(TELL, [job])
    assert db.execute("select count(*) from job_event where job_id = %s", [other]).fetchone() == (1,)


def test_a_tenants_temporary_table_does_not_stand_in_for_the_jobs(db: Database) -> None:
    """J-40: one with the other's id would make the other's job its own."""
    other = add(db, TWO)
    with acting(db, TENANT, ONE):
        db.execute("create temp table job (id uuid)")
        db.execute("insert into pg_temp.job values (%s)", [other])
        with pytest.raises(InsufficientPrivilege, match="row-level security"), db.transaction():
            db.execute(TELL, [other])


@pytest.mark.parametrize("status", ["running", "succeeded", "failed", "dead_letter"])
def test_a_tenant_does_not_tell_how_a_run_ended(db: Database, status: str) -> None:
    """J-32, J-39: it enqueues, cancels and requeues, and those events are all that it writes."""
    job = add(db, ONE)
    with pytest.raises(InsufficientPrivilege, match="row-level security"), acting(db, TENANT, ONE):
        db.execute("insert into job_event (job_id, next_status) values (%s, %s)", [job, status])


@pytest.mark.parametrize("role", [TENANT, WORKER])
def test_the_order_of_events_is_the_databases(db: Database, role: str) -> None:
    """J-34: no role writes `seq`, not even by overriding it."""
    job = add(db, ONE)
    insert = (
        "insert into job_event (job_id, next_status, seq) overriding system value values (%s, 'queued', 1)"
    )
    with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, role, ONE):
        db.execute(insert, [job])


@pytest.mark.parametrize("table", ["workers", "tasks"])
def test_a_tenant_sees_none_of_the_other_tables(db: Database, table: str) -> None:
    """J-39"""
    with pytest.raises(InsufficientPrivilege), acting(db, TENANT, ONE):
        count(db, table)


def test_the_owner_is_free_of_row_security(db: Database) -> None:
    """J-38"""
    add(db, ONE)
    add(db, TWO)
    assert count(db, "job") == count(db, "job_event") == 2


def test_a_role_without_policies_sees_nothing_whatever_it_was_granted(db: Database) -> None:
    """J-38: every role but the owner is bound."""
    add(db, ONE)
    stranger = Identifier(f"stranger_{uuid4().hex}")
    with db.transaction(force_rollback=True):
        db.execute(SQL("create role {}").format(stranger))
        db.execute(SQL("grant select on job, job_event to {}").format(stranger))
        db.execute(SQL("set local role {}").format(stranger))
        db.execute(SET_ORG, [str(ONE)])
        assert count(db, "job") == count(db, "job_event") == 0


def test_both_roles_own_nothing_cannot_log_in_and_pass_nothing_by(db: Database) -> None:
    """J-41, J-42"""
    roles = "rolname in ('holdfast_tenant', 'holdfast_worker')"
    owned = "select from pg_shdepend join pg_roles on oid = refobjid where deptype = 'o' and " + roles
    assert db.execute(owned).fetchall() == []
    flags = (
        "select rolname, rolcanlogin, rolsuper, rolbypassrls, rolcreaterole, rolcreatedb from pg_roles where "
    )
    assert db.execute(flags + roles + " order by 1").fetchall() == [
        (TENANT, False, False, False, False, False),
        (WORKER, False, False, False, False, False),
    ]


# -- workers -------------------------------------------------------------------------------------------


def test_a_worker_claims_and_finishes_for_every_tenant_and_tells_of_it(db: Database) -> None:
    """J-41"""
    ids = {add(db, ONE), add(db, TWO)}
    claim = "update job set status = 'running', worker_id = 'w', fence = fence + 1, started_at = now(),"
    claim += " updated_at = now() where id = any(%s) and status = 'queued' returning id"
    finish = "update job set status = 'succeeded', worker_id = null, finished_at = now(), updated_at = now(),"
    finish += " last_error_code = null, last_error_message = null, attempt = 0, run_at = now()"
    finish += " where worker_id = 'w' and fence = 1 returning id"
    tell = "insert into job_event (job_id, ts, prev_status, next_status, detail_json)"
    tell += " values (%s, now(), 'running', 'succeeded', '{}')"
    with acting(db, WORKER):
        picked = db.execute("select id from job for no key update skip locked").fetchall()
        assert {job for (job,) in picked} == ids
        assert {job for (job,) in db.execute(claim, [list(ids)])} == ids
        assert {job for (job,) in db.execute(finish)} == ids
        for job in ids:
            db.execute(tell, [job])
        assert count(db, "job_event") == 4


def test_a_worker_adds_no_job(db: Database) -> None:
    """J-41"""
    with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, WORKER, ONE):
        db.execute(ADD, [ONE])


@pytest.mark.parametrize(
    "column",
    [
        "id",
        "org_id",
        "type",
        "payload",
        "idempotency_key",
        "requested_by",
        "created_at",
        "queue",
        "priority",
        "max_attempts",
        "backoff_policy",
    ],
)
def test_a_worker_does_not_change_what_was_asked_for(db: Database, column: str) -> None:
    """J-41"""
    add(db, ONE)
    with pytest.raises(InsufficientPrivilege, match="permission denied"), acting(db, WORKER, ONE):
        db.execute(SQL("update job set {0} = {0}").format(Identifier(column)))


def test_a_worker_has_what_its_process_needs_beside_the_jobs(db: Database) -> None:
    """J-41: presence, the version of the schema, and the other ledger."""
    db.execute("insert into tasks (type) values ('a')")
    with acting(db, WORKER):
        db.execute("insert into workers (id, hostname, pool_size) values ('w', 'here', 1)")
        assert db.execute("update workers set last_heartbeat = now()").rowcount == 1
        assert db.execute("delete from workers").rowcount == 1
        assert count(db, "holdfast_version") == 1
        assert db.execute("select true from tasks for no key update skip locked").fetchall() == [(True,)]
        assert db.execute("update tasks set status = 'claimed', worker_id = 'w'").rowcount == 1


# -- the engine's own statements -----------------------------------------------------------------------


async def act(conn: Connection, role: str, org: UUID | None = None) -> None:
    """For the rest of the transaction."""
    await conn.execute(SQL("set local role {}").format(Identifier(role)))
    if org is not None:
        await conn.execute(SET_ORG, [str(org)])


async def test_the_engines_enqueue_runs_as_a_tenant(conn: Connection) -> None:
    """J-2, J-4, J-6, J-39: one, a repeat, and a bulk with every column that an enqueue fills."""
    store = Store(JOB)
    async with conn.transaction():
        await act(conn, TENANT, ONE)
        first = await store.enqueue(conn, Item(kind="a", tenant=ONE, key="k"), by="me")
        again = await store.enqueue(conn, Item(kind="a", tenant=ONE, key="k"))
        assert (first.created, again.created, again.id) == (True, False, first.id)
        items = [
            Item(kind="a", tenant=ONE, payload={}, priority=n, limit=n, backoff="none", queue="q", key=str(n))
            for n in range(200)
        ]
        assert all(receipt.created for receipt in await store.enqueue_many(conn, items, by="me"))
    query = "select (select count(*) from job), (select count(*) from job_event)"
    assert await (await conn.execute(query)).fetchone() == (201, 201)


async def test_the_engines_enqueue_for_another_tenant_is_refused(conn: Connection) -> None:
    """J-39"""
    async with conn.transaction(force_rollback=True):
        await act(conn, TENANT, ONE)
        with pytest.raises(NotAllowed, match="row-level security"):
            await Store(JOB).enqueue(conn, Item(kind="a", tenant=TWO))


async def test_the_engines_orders_run_as_a_tenant_and_do_not_find_anothers_job(conn: Connection) -> None:
    """J-29, J-30, J-44"""
    store = Store(JOB)
    own = await store.enqueue(conn, Item(kind="a", tenant=ONE))
    other = await store.enqueue(conn, Item(kind="a", tenant=TWO))
    (claim,) = [c for c in await store.claim(conn, "w", 2) if c.id == own.id]
    await store.move_one(conn, Move(verb="reject", claim=claim, fault=Fault(code="X", message="x")))
    async with conn.transaction():
        await act(conn, TENANT, ONE)
        await store.requeue(conn, own.id, by="me")
        await store.cancel(conn, own.id, by="me")
        for order in (store.cancel, store.requeue):
            with pytest.raises(NotFound):
                await order(conn, other.id)
        assert await store.cancel_where(conn, Filter()) == 0
    assert (await store.get(conn, own.id)).state == "canceled"
    assert (await store.get(conn, other.id)).state == "running"


async def test_the_engines_worker_verbs_run_as_a_worker_for_two_tenants(conn: Connection) -> None:
    """J-9, J-21, J-36, J-41"""
    store = Store(JOB)
    for org in (ONE, TWO):
        await store.enqueue(conn, Item(kind="a", tenant=org, limit=1))
    async with conn.transaction():
        await act(conn, WORKER)
        for verb in ("snooze", "release", "retry", "lose"):
            claims = await store.claim(conn, "w", 2)
            assert len(claims) == 2
            await store.progress(conn, claims[0], 50, "half")
            assert len(await store.heartbeat(conn, claims)) == 2
            moves = [Move(verb=verb, claim=claim, fault=Fault(code="X", message="x")) for claim in claims]
            assert len(await store.move(conn, moves)) == 2
        done, failed = await store.claim(conn, "w", 2)
        assert len(await store.held_by(conn, ["w"])) == 2
        fault = Fault(code="X", message="x")
        moves = [Move(verb="finish", claim=done), Move(verb="exhaust", claim=failed, fault=fault)]
        assert await store.move(conn, moves) == {done.id, failed.id}
    assert (await store.get(conn, done.id)).state == "succeeded"
    assert (await store.get(conn, failed.id)).state == "dead_letter"
