"""`doctor` on the ledger of many tenants: as the logins that work on it, and as one that may mend it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from psycopg import AsyncConnection
from psycopg.errors import InsufficientPrivilege
from psycopg.sql import SQL, Identifier

from doctoring import ailing, broken, examine, mend, only, run
from holdfast.apps.jobs.ledger import JOB
from holdfast.apps.tasks.ledger import TASKS
from holdfast.db import pool
from holdfast.db.settings import Settings
from holdfast.engine.ledger import Ledger
from holdfast.engine.roles import Tenant

Connection = AsyncConnection[Any]
Login = Callable[..., Awaitable[Connection]]

NEW_ROLES = "select rolname from pg_roles where starts_with(rolname, %s)"


@pytest.fixture
async def role(conn: Connection) -> AsyncIterator[str]:
    """A name for roles of the test's own: those that begin with it are gone afterwards."""
    name = "shop_" + conn.info.dbname[-20:]
    yield name
    await conn.execute("reset role")
    for (found,) in await (await conn.execute(NEW_ROLES, [name])).fetchall():
        await conn.execute(SQL("drop owned by {0}; drop role {0}").format(Identifier(found)))


@pytest.fixture
async def login(conn: Connection, role: str, settings: Settings) -> AsyncIterator[Login]:
    """`await login("holdfast_worker")`: a connection as a new login that was granted these roles."""
    opened: list[Connection] = []

    async def login(*granted: str) -> Connection:
        await run(conn, f"create role {role} login password 'secret'")
        await run(conn, *(f"grant {one} to {role}" for one in granted))
        assert settings.database_url
        url = re.sub(r"//[^@]*@", f"//{role}:secret@", settings.database_url)
        opened.append(await pool.connect(settings, url, purpose="test"))
        return opened[-1]

    yield login
    for one in opened:
        await one.close()


def confined_by(role: str) -> Ledger:
    return replace(JOB, tenant=Tenant("org_id", "uuid", role=role, setting="holdfast.org_id"))


# -- logins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger", [JOB, TASKS], ids=lambda ledger: ledger.name)
async def test_a_workers_login_as_documented_finds_all_well(login: Login, ledger: Ledger) -> None:
    diagnosis = await examine(await login("holdfast_worker", "holdfast_tenant"), ledger)
    assert ailing(diagnosis) == []
    assert all(lane.served for lane in diagnosis.lanes)
    cannot = [finding.what for finding in diagnosis.findings if "cannot enqueue" in finding.what]
    # holdfast_tenant may enqueue jobs, and nobody but the owner tasks.
    assert cannot == ([] if ledger is JOB else ["this login cannot enqueue: it may not insert into tasks"])


async def test_a_worker_that_may_not_act_as_the_tenants_role_is_warned_and_granted_it(
    conn: Connection, login: Login, role: str
) -> None:
    worker = await login("holdfast_worker")
    diagnosis = await examine(worker, JOB)
    assert diagnosis.healthy
    told = only(ailing(diagnosis), "warning")
    assert told.what == f"the login {role} may not act as holdfast_tenant"
    assert told.promise_lost
    assert "ctx.transaction()" in told.promise_lost
    fine = [finding for finding in diagnosis.findings if "cannot enqueue" in finding.what]
    assert [(one.severity, one.remedy_sql) for one in fine] == [("fine", None)]
    await mend(conn, diagnosis)
    assert ailing(await examine(worker, JOB)) == []


async def test_a_member_without_the_right_to_set_the_role_is_warned_and_granted_it(
    conn: Connection, login: Login, role: str
) -> None:
    if conn.info.server_version < 160_000:
        pytest.skip("PostgreSQL 16 began to grant SET apart")
    worker = await login("holdfast_worker")
    await run(conn, f"grant holdfast_tenant to {role} with set false")
    diagnosis = await examine(worker, JOB)
    only(ailing(diagnosis), "warning")
    await mend(conn, diagnosis)
    assert ailing(await examine(worker, JOB)) == []


async def test_only_the_columns_that_a_worker_lacks_are_granted(
    conn: Connection, login: Login, role: str
) -> None:
    await conn.execute("revoke update (fence, worker_id) on job from holdfast_worker, holdfast_tenant")
    await conn.execute("revoke insert (ts) on job_event from holdfast_worker, holdfast_tenant")
    worker = await login("holdfast_worker", "holdfast_tenant")
    diagnosis = await examine(worker, JOB)
    assert [(finding.what, finding.remedy_sql) for finding in ailing(diagnosis)] == [
        (
            f"the role {role} lacks update (worker_id, fence) on job",
            f'grant update ("worker_id", "fence") on "public"."job" to "{role}";',
        ),
        (
            f"the role {role} lacks insert (ts) on job_event",
            f'grant insert ("ts") on "public"."job_event" to "{role}";',
        ),
    ]
    await mend(conn, diagnosis)
    assert ailing(await examine(worker, JOB)) == []
    with pytest.raises(InsufficientPrivilege):
        await worker.execute("update job set org_id = gen_random_uuid()")


async def test_a_login_without_any_grant_is_granted_what_a_worker_has(
    conn: Connection, login: Login, role: str
) -> None:
    stranger = await login()
    reading, telling = [one for one in ailing(await examine(stranger, JOB)) if one.severity == "missing"]
    written = "status, worker_id, fence, updated_at, started_at, finished_at, run_at, attempt"
    found = re.fullmatch(rf"the role {role} lacks select, update \((.*)\) on job", reading.what)
    assert found
    columns = {"last_error_code", "last_error_message", *written.split(", ")}
    assert set(found[1].split(", ")) == columns
    assert "lacks insert (job_id, ts, prev_status, next_status, detail_json) on job_event" in telling.what


# -- confinement -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["job", "job_event"])
async def test_a_table_without_row_level_security_gets_it(conn: Connection, table: str) -> None:
    finding = only(await broken(conn, f"alter table {table} disable row level security", ledger=JOB))
    assert finding.what == f"row level security is off on {table}"
    assert finding.promise_lost == "a tenant sees the rows of all others"


@pytest.mark.parametrize(("power", "told"), [("bypassrls", "has BYPASSRLS"), ("superuser", "is a superuser")])
async def test_a_role_that_no_policy_binds_loses_its_power(
    conn: Connection, role: str, power: str, told: str
) -> None:
    found = await broken(conn, f"create role {role} nologin {power}", ledger=confined_by(role))
    assert only(found).what == f"the role {role} {told}, so no policy binds it"


async def test_a_tenants_role_that_is_not_there_is_made(conn: Connection, role: str) -> None:
    finding = only(await broken(conn, ledger=confined_by(role)))
    assert f"there is no role {role}" in finding.what


async def test_a_ledger_that_declares_no_role_needs_no_row_level_security(conn: Connection) -> None:
    await conn.execute("alter table job disable row level security")
    assert ailing(await examine(conn, replace(JOB, tenant=Tenant("org_id", "uuid")))) == []


# -- the rest of job -------------------------------------------------------------------------------------


async def test_the_migrated_job_is_healthy_without_a_warning(conn: Connection) -> None:
    assert ailing(await examine(conn, JOB)) == []


async def test_a_default_of_an_enum_is_compared_as_its_word(conn: Connection) -> None:
    await conn.execute("alter table job alter backoff_policy set default 'fixed'")
    told = only(ailing(await examine(conn, JOB)), "warning")
    assert told.promise_lost == "a bulk of unlike items gets exp, a single one fixed"


async def test_the_policy_may_be_a_text(conn: Connection) -> None:
    await conn.execute(
        "alter table job alter backoff_policy drop default, alter backoff_policy type text,"
        " alter backoff_policy set default 'exp'"
    )
    assert ailing(await examine(conn, JOB)) == []
    assert ailing(await examine(conn, replace(JOB, policy_type="text"))) == []


async def test_a_policy_of_another_type_than_declared_is_named(conn: Connection) -> None:
    finding = only(ailing(await examine(conn, replace(JOB, policy_type="text"))))
    assert "backoff_policy (policy) is job_backoff_policy, and should be text" in finding.what
    assert finding.remedy_sql is None


async def test_a_policy_whose_type_is_not_there_gets_it(conn: Connection) -> None:
    await conn.execute(
        "alter table job alter backoff_policy drop default, alter backoff_policy type text,"
        " alter backoff_policy set default 'exp'"
    )
    finding = only(await broken(conn, "drop type job_backoff_policy", ledger=JOB))
    assert finding.remedy_sql == "create type job_backoff_policy as enum ('none', 'fixed', 'exp');"
