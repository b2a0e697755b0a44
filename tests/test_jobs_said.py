"""What the guide says of the record beyond its requirements: who, why, of which error, and for whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from holdfast.apps.jobs.ledger import JOB
from holdfast.engine.store import Store
from holdfast.engine.values import Fault, Filter, Item, Move
from holdfast.engine.verify import hidden, verify
from holdfast.errors import InvalidInput
from ledgers import FAULT, JOB_SAMPLE, NOW, TASKS_SAMPLE, after

Connection = AsyncConnection[Any]
ONE, TWO = UUID(int=1), UUID(int=2)


async def details(conn: Connection, key: UUID) -> list[dict[str, Any]]:
    return [dict(event.detail) for event in await Store(JOB).timeline(conn, key)]


async def test_every_order_tells_who_gave_it_and_why(conn: Connection) -> None:
    """J-34: where nobody is named, the login of the database."""
    store = Store(JOB)
    (login,) = await (await conn.execute("select session_user::text")).fetchone() or ("",)
    for by in (None, "ana"):
        key = (await store.enqueue(conn, Item(kind="a", tenant=ONE), by=by)).id
        await store.cancel(conn, key, by=by, reason="a mistake")
        first, last = await details(conn, key)
        assert (first["by"], first["kind"], first["tenant"]) == (by or login, "a", str(ONE))
        assert (last["by"], last["reason"]) == (by or login, "a mistake")
    dead = await JOB_SAMPLE.bring(conn, "dead_letter")
    await store.requeue(conn, dead, reason="the bank is back")
    assert (await details(conn, dead))[-1]["reason"] == "the bank is back"


async def test_the_dead_letters_of_one_outage_are_found_by_error_and_time(conn: Connection) -> None:
    """J-30, J-43"""
    store = Store(JOB)
    for code, seconds in (("BANK", 10), ("BANK", 5000), ("OTHER", 10)):
        await store.enqueue(conn, Item(kind="a", tenant=ONE), now=NOW)
        (claim,) = await store.claim(conn, "w", 1, now=after(1))
        move = Move(verb="reject", claim=claim, fault=Fault(code=code, message="x"))
        await store.move_one(conn, move, now=after(seconds))
    outage = Filter(code="BANK", finished_after=NOW, finished_before=NOW + timedelta(hours=1))
    assert len((await store.find(conn, outage)).rows) == 1
    assert len((await store.find(conn, Filter(code="BANK"))).rows) == 2
    assert await store.requeue_where(conn, outage) == 1
    with pytest.raises(InvalidInput, match="code"):
        await TASKS_SAMPLE.store().find(conn, Filter(code="BANK"))


LIES = {
    "another organisation": ("update job set org_id = '00000000-0000-0000-0000-000000000002'", "tenant"),
    "another type": ("update job set type = 'b'", "kind"),
    "no worker": (
        "update job_event set detail_json = detail_json - 'worker' where detail_json ->> 'verb' = 'exhaust'",
        "was written by nothing",
    ),
    "another error in the second hop": (
        "update job_event set detail_json = jsonb_set(detail_json, '{error,message}', '\"x\"')"
        " where next_status = 'dead_letter'",
        "another worker or error",
    ),
    "too much progress": (
        "update job_event set detail_json = detail_json || '{\"progress\": 900}'"
        " where detail_json ->> 'verb' = 'progress'",
        "progress",
    ),
    "a detail that nobody can read": (
        "update job_event set detail_json = detail_json ||"
        " jsonb_build_object('deep', (repeat('[', 5000) || repeat(']', 5000))::jsonb)"
        " where prev_status is null",
        "cannot be read",
    ),
}


@pytest.mark.parametrize("what", LIES)
async def test_verify_names_it(conn: Connection, what: str) -> None:
    """J-32, J-34"""
    change, words = LIES[what]
    store = Store(JOB)
    await store.enqueue(conn, Item(kind="a", tenant=ONE), now=NOW)
    (claim,) = await store.claim(conn, "w", 1, now=after(1))
    await store.progress(conn, claim, 50, now=after(2))
    await store.move_one(conn, Move(verb="exhaust", claim=claim, fault=FAULT), now=after(3))
    assert (await verify(store, conn)).lies == ()
    async with conn.transaction(force_rollback=True):
        await conn.execute("set local session_replication_role = replica")
        await conn.execute(change)
        (lie,) = (await verify(store, conn)).lies
    assert words in lie.what


async def test_a_plain_update_along_an_edge_writes_no_event_and_verify_reports_it(conn: Connection) -> None:
    store = Store(JOB)
    await store.enqueue(conn, Item(kind="a", tenant=ONE))
    await conn.execute("update job set status = 'canceled', finished_at = now()")
    (lie,) = (await verify(store, conn)).lies
    assert "the row says canceled, its events end in queued" in lie.what


def run(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_PROFILE": "test"}
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


async def test_who_sees_no_row_is_not_told_that_the_record_is_true(
    conn: Connection, database_url: str
) -> None:
    """J-39: row level security hides the rows, and the program says so."""
    store = Store(JOB)
    await store.enqueue(conn, Item(kind="a", tenant=ONE))
    assert not await hidden(store, conn)
    joint = "&" if "?" in database_url else "?"
    tenant = f"{database_url}{joint}options=-c%20role%3Dholdfast_tenant"
    done = run(tenant, "job", "verify", "--all")
    assert (done.returncode, "row level security hides the rows of job" in done.stderr) == (7, True)


async def test_the_command_line_requeues_by_error_and_tells_why(conn: Connection, database_url: str) -> None:
    """J-30, J-44: `--code`, `--reason`, and ids of one organisation."""
    dead = await JOB_SAMPLE.bring(conn, "dead_letter")
    wrong = run(database_url, "requeue", "job", str(dead), "--tenant", str(TWO))
    assert wrong.returncode == 4
    assert run(database_url, "show", "job", str(dead), "--tenant", str(TWO)).returncode == 4
    rows = json.loads(run(database_url, "list", "job", "--code", "BROKEN", "--json").stdout)["rows"]
    assert [row["id"] for row in rows] == [str(dead)]
    done = run(
        database_url, "requeue", "job", "--code", "BROKEN", "--yes", "--reason", "mended", "--by", "ana"
    )
    assert (done.returncode, done.stdout) == (0, "1 requeued\n")
    last = (await details(conn, dead))[-1]
    assert (last["verb"], last["by"], last["reason"]) == ("requeue", "ana", "mended")
