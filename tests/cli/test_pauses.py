"""`holdfast pause` and `holdfast resume`, and that the audit tells who ordered what."""

from __future__ import annotations

import getpass
from uuid import uuid4

import pytest

from cli.kit import Query, Run, Start
from conftest import Eventually

ME = f"cli:{getpass.getuser()}"
AUDIT = "select who, action, ledger, row_id, rows, detail from holdfast_audit order by id"


def test_a_paused_ledger_rests_until_it_is_resumed(
    holdfast: Run, start: Start, query: Query, eventually: Eventually
) -> None:
    done = holdfast("pause", "tasks", "--reason", "the mail server rests")
    assert (done.code, done.err) == (0, "")
    assert done.out == "tasks is paused: what runs goes on, and nothing more is taken\n"
    query("insert into tasks (type, payload) values ('double', '4')")
    done = holdfast("worker", "--app", "shop:app", "--until-idle")
    assert done.code == 0
    assert query("select status::text from tasks") == [("pending",)]
    start("worker", "--app", "shop:app")
    eventually(lambda: query("select 1 from workers"))
    again = holdfast("pause", "tasks")
    assert again.out.startswith("tasks was paused already, since ")
    assert again.out.endswith(f"Z by {ME}: the mail server rests\n")
    assert holdfast("pause", "tasks", "--json").data["changed"] is False
    assert "tasks" in holdfast("top").out
    assert "all paused" in holdfast("top").out
    done = holdfast("resume", "tasks")
    assert done.out.startswith("tasks goes on; it was paused since ")
    eventually(lambda: query("select 1 from tasks where status = 'completed'"))
    assert holdfast("resume", "tasks").out == "tasks was not paused\n"


def test_a_queue_is_paused_alone(holdfast: Run, query: Query) -> None:
    told = holdfast("pause", "job", "bulk", "--json").data
    assert (told["ledger"], told["queue"], told["paused"], told["changed"]) == ("job", "bulk", True, True)
    assert query("select ledger, queue, by from holdfast_pause") == [("job", "bulk", ME)]
    assert holdfast("resume", "job").out.splitlines()[0] == "job was not paused"
    assert "job, queue bulk is still paused, since" in holdfast("resume", "job").out
    assert holdfast("pause", "job").code == 0
    done = holdfast("resume", "job", "bulk")
    first, second = done.out.splitlines()
    assert first.startswith("job, queue bulk goes on; it was paused since ")
    assert second.startswith("job is still paused, since ")
    told = holdfast("resume", "job", "--json").data
    assert (told["paused"], told["changed"]) == (False, True)
    assert holdfast("resume", "job", "--json").data == {
        "ledger": "job",
        "queue": None,
        "paused": False,
        "changed": False,
        "since": None,
    }


def test_the_audit_tells_who_paused_cancelled_and_requeued(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type) values ('a'), ('a'), ('b')")
    ((row,),) = query("select id::text from tasks where type = 'b'")
    assert holdfast("pause", "tasks", "--by", "ana", "--reason", "no more").code == 0
    assert holdfast("resume", "tasks", "--by", "ana").code == 0
    assert holdfast("cancel", "tasks", row, "--reason", "wrong").code == 0
    assert holdfast("cancel", "tasks", str(uuid4())).code == 4  # nothing was done
    assert holdfast("cancel", "tasks", "--kind", "a", "--dry-run").code == 0
    assert holdfast("cancel", "tasks", "--kind", "a", "--yes").code == 0
    assert holdfast("requeue", "tasks", "--state", "failed", "--yes", "--by", "bo").code == 0
    assert query(AUDIT) == [
        ("cli:ana", "pause", "tasks", None, None, {"reason": "no more", "changed": True}),
        ("cli:ana", "resume", "tasks", None, None, {"changed": True}),
        (ME, "cancel", "tasks", row, 1, {"reason": "wrong"}),
        (ME, "cancel", "tasks", None, 2, {"filter": {"kind": "a"}}),
        ("cli:bo", "requeue", "tasks", None, 3, {"filter": {"states": ["failed"]}}),
    ]


@pytest.mark.parametrize("arguments", [("--kind", "a", "--yes"), ()])
def test_a_login_that_may_not_write_the_audit_may_order_all_the_same(
    holdfast: Run, query: Query, database_url: str, arguments: tuple[str, ...]
) -> None:
    query("insert into tasks (type) values ('a')")
    ((row,),) = query("select id::text from tasks")
    name = f"clerk_{uuid4().hex[:8]}"
    query(f"create role {name} login password 'clerk' in role holdfast_worker")
    try:
        url = database_url.replace("://holdfast:", f"://{name}:").replace(
            database_url.split("://")[1].split(":")[1].split("@")[0], "clerk", 1
        )
        done = holdfast("cancel", "tasks", *(arguments or (row,)), env={"HOLDFAST_DATABASE_URL": url})
        assert (done.code, done.out, done.err) == (0, "1 cancelled\n", "")
        assert query("select status::text from tasks") == [("failed",)]
        assert query("select count(*) from holdfast_audit") == [(0,)]
    finally:
        query(f"drop owned by {name}")
        query(f"drop role {name}")
