"""Enqueue, list, show, cancel, requeue: the life of a row from the shell."""

from __future__ import annotations

import json
import re
from uuid import UUID, uuid4

import pytest

from cli.kit import Query, Run

ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
ENDED = "insert into tasks (type, status, attempts, completed_at, last_error) values "


def test_enqueue_prints_the_id_of_the_row_that_it_added(holdfast: Run, query: Query) -> None:
    done = holdfast(
        "enqueue",
        "tasks",
        "mail",
        '{"to": "ana"}',
        "--priority",
        "7",
        "--limit",
        "2",
        "--key",
        "k",
        "--delay",
        "1h",
    )
    assert (done.code, done.err) == (0, "")
    assert query(
        "select id, type, payload, priority, max_retries, idempotency_key, status::text from tasks"
    ) == [(UUID(done.out.strip()), "mail", {"to": "ana"}, 7, 2, "k", "pending")]
    assert query("select next_retry_at > now() + interval '50 minutes' from tasks") == [(True,)]


def test_a_repeated_key_answers_with_the_first_row(holdfast: Run, query: Query) -> None:
    first = holdfast("enqueue", "tasks", "mail", "1", "--key", "k", "--json").data
    again = holdfast("enqueue", "tasks", "mail", "-", "--key", "k", "--json", feed="2").data
    assert first["created"] is True
    assert again == {"ledger": "tasks", "id": first["id"], "created": False}
    assert query("select payload from tasks") == [(1,)]


def test_enqueue_reads_the_payload_from_standard_input(holdfast: Run, query: Query) -> None:
    assert (
        holdfast("enqueue", "tasks", "mail", "-", "--run-at", "2030-01-31T12:00:00+01:00", feed='["ü"]').code
        == 0
    )
    assert query("select payload, next_retry_at::text from tasks") == [(["ü"], "2030-01-31 11:00:00")]


def test_list_shows_rows_in_pages_newest_first(holdfast: Run, query: Query) -> None:
    query(
        "insert into tasks (type, created_at) "
        "select 'k' || n, now() - make_interval(secs => n) from generate_series(1, 3) as n"
    )
    query(ENDED + "('other', 'failed', 1, now(), 'boom [bold]\x1b[2J')")
    page = holdfast("list", "tasks", "--state", "pending", "--limit", "2", "--json").data
    rest = holdfast("list", "tasks", "--state", "pending", "--cursor", page["cursor"], "--json").data
    assert [row["kind"] for row in page["rows"] + rest["rows"]] == ["k1", "k2", "k3"]
    assert rest["cursor"] is None
    assert ISO.fullmatch(page["rows"][0]["created"])


def test_list_goes_on_from_page_to_page_until_it_has_what_was_asked_for(holdfast: Run, query: Query) -> None:
    query(
        "insert into tasks (type, created_at) "
        "select 'k' || n, now() - make_interval(secs => n) from generate_series(1, 230) as n"
    )
    page = holdfast("list", "tasks", "--limit", "210", "--json").data
    rest = holdfast("list", "tasks", "--limit", "1000", "--cursor", page["cursor"], "--json").data
    assert [row["kind"] for row in page["rows"] + rest["rows"]] == [f"k{n}" for n in range(1, 231)]
    assert (len(page["rows"]), rest["cursor"]) == (210, None)
    assert holdfast("list", "tasks", "--limit", "230", "--json").data["cursor"] is None


@pytest.mark.parametrize("limit", ["0", "1001"])
def test_a_limit_outside_of_one_to_a_thousand_is_refused(holdfast: Run, limit: str) -> None:
    done = holdfast("list", "tasks", "--limit", limit)
    assert (done.code, done.err) == (2, f"holdfast: --limit: must lie between 1 and 1000, not {limit}\n")


def test_list_is_a_plain_table_when_nobody_looks(holdfast: Run, query: Query) -> None:
    query(ENDED + "('other', 'failed', 1, now(), 'boom [bold]\x1b[2J' || repeat('!', 300))")
    query("insert into tasks (type) values ('k')")
    done = holdfast("list", "tasks", "--limit", "1")
    assert "there are more: --cursor " in done.err
    assert len(done.out.splitlines()) == 2
    done = holdfast("list", "tasks", "--kind", "other", "--state", "failed", "--state", "dead_letter")
    heading, row = done.out.splitlines()
    assert heading.split() == ["ID", "KIND", "STATE", "RUNS", "CREATED", "NOTE"]
    assert row.split()[1:4] == ["other", "failed", "1/3"]
    assert ISO.fullmatch(row.split()[4])
    assert "boom [bold]\\x1b[2J" + "!" * 300 in row
    assert not done.err


def test_show_tells_everything_of_a_row(holdfast: Run, query: Query) -> None:
    query(ENDED + "('other', 'dead_letter', 3, now(), 'boom')")
    query("update tasks set payload = '{\"to\": \"ana\"}', idempotency_key = 'k-1'")
    ((row,),) = query("select id::text from tasks")
    told = holdfast("show", "tasks", row, "--json").data
    assert (told["ledger"], told["id"], told["state"], told["attempts"]) == ("tasks", row, "dead_letter", 3)
    assert (told["payload"], told["error"], told["allowed"]) == ({"to": "ana"}, "boom", ["requeue"])
    assert told["columns"]["idempotency_key"] == "k-1"
    assert all(ISO.fullmatch(told[name]) for name in ("created", "updated", "finished"))
    shown = holdfast("show", "tasks", row)
    assert shown.code == 0
    for words in (
        row,
        "dead_letter",
        "3/3",
        "boom",
        "idempotency_key",
        "k-1",
        '"to": "ana"',
        told["created"][:19],
    ):
        assert words in shown.out


JOB = "01a1e242-ae29-70ca-8be5-05fbbe85cef8"
ORG = "00000000-0000-4000-8000-00000000000a"


def test_list_tells_the_retries_of_a_job_and_when_it_is_due_if_it_was_put_off(
    holdfast: Run, query: Query
) -> None:
    query(f"insert into job (org_id, type) values ('{ORG}', 'now')")
    query(f"insert into job (org_id, type, run_at) values ('{ORG}', 'later', '2999-01-31T12:00:00Z')")
    done = holdfast("list", "job", "--tenant", ORG)
    heading, *rows = done.out.splitlines()
    assert heading.split() == ["ID", "KIND", "STATE", "RETRIES", "CREATED", "NOTE"]
    told = {row.split()[1]: row.split()[3:4] + row.split()[5:] for row in rows}
    assert told == {"now": ["0/5"], "later": ["0/5", "due", "2999-01-31T12:00:00Z"]}


def test_show_tells_everything_of_a_job(holdfast: Run, query: Query) -> None:
    query(
        "insert into job (id, org_id, type, status, requested_by, idempotency_key, last_error_code, "
        "last_error_message, payload) "
        "values (%s, %s, 'a', 'running', 'ana', 'k-1', 'TIMEOUT', 'too slow', '{\"page\": 7}')",
        JOB,
        ORG,
    )
    query(
        "insert into job_event (job_id, next_status, detail_json) "
        'values (%s, \'running\', \'{"stage": "indexing", "progress": 66.5}\')',
        JOB,
    )
    shown = holdfast("show", "job", JOB).out
    facts = dict(re.findall(r"^(\w+) +(\S.*)$", shown, re.MULTILINE))
    assert (facts["tenant"], facts["stage"], facts["progress"]) == (ORG, "indexing", "66.5 %")
    assert (facts["attempts"], facts["error"]) == ("0/5 retries", "TIMEOUT: too slow")
    assert (facts["requested_by"], facts["backoff_policy"], facts["queue"]) == ("ana", "exp", "default")
    assert (facts["idempotency_key"], facts["allowed"]) == ("k-1", "cancel")
    assert not {"org_id", "type", "status", "run_at", "last_error_code", "last_error_message"} & set(facts)
    assert 'payload\n{\n  "page": 7\n}' in shown
    query("update job set status = 'running' where status = 'queued'")
    query("update job set status = 'succeeded', finished_at = now()")
    query(
        "insert into job_event (job_id, next_status, detail_json) "
        "values (%s, 'succeeded', '{\"result\": [1, 2]}')",
        JOB,
    )
    assert holdfast("show", "job", JOB).out.endswith("result\n[\n  1,\n  2\n]\n")
    told = holdfast("show", "job", JOB, "--json").data
    assert (told["tenant"], told["result"], told["stage"], told["progress"]) == (
        ORG,
        [1, 2],
        "indexing",
        66.5,
    )


def test_cancel_calls_rows_off_one_by_one(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type) values ('a'), ('b')")
    query(ENDED + "('c', 'completed', 1, now(), null)")
    ids = dict(query("select type, id::text from tasks"))
    done = holdfast("cancel", "tasks", ids["a"])
    assert (done.code, done.out, done.err) == (0, "1 cancelled\n", "")
    done = holdfast("cancel", "tasks", ids["c"], ids["b"], str(uuid4()), "--json")
    assert done.data == {"ledger": "tasks", "verb": "cancel", "count": 1, "ids": [ids["b"]]}
    problems = [json.loads(line)["code"] for line in done.err.splitlines()]
    assert (done.code, problems) == (5, ["ILLEGAL_EDGE", "NOT_FOUND"])
    assert query("select type, status::text from tasks order by type") == [
        ("a", "failed"),
        ("b", "failed"),
        ("c", "completed"),
    ]


def test_one_id_that_is_none_stops_a_cancel_before_anything_is_done(holdfast: Run, query: Query) -> None:
    query("insert into tasks (type) values ('a')")
    ((row,),) = query("select id::text from tasks")
    done = holdfast("cancel", "tasks", row, "17")
    assert (done.code, done.out, done.err) == (2, "", "holdfast: id: '17' is not a UUID\n")
    assert query("select status::text from tasks") == [("pending",)]


def test_requeue_by_filter_counts_asks_and_changes(holdfast: Run, query: Query) -> None:
    query(
        ENDED + "('a', 'dead_letter', 3, now(), 'x'), ('a', 'failed', 1, now(), 'x'), "
        "('b', 'failed', 1, now(), 'x')"
    )
    dry = holdfast("requeue", "tasks", "--kind", "a", "--dry-run")
    assert (dry.code, dry.out) == (0, "2 would be requeued\n")
    unsure = holdfast("requeue", "tasks", "--kind", "a")
    assert unsure.code == 2
    assert "--yes: is needed here to requeue 2 rows" in unsure.err
    assert query("select count(*) from tasks where status = 'pending'") == [(0,)]
    sure = holdfast("requeue", "tasks", "--kind", "a", "--yes", "--json")
    assert sure.data == {"ledger": "tasks", "verb": "requeue", "count": 2, "dry_run": False}
    assert query("select type, attempts from tasks where status = 'pending'") == [("a", 0), ("a", 0)]


def test_cancel_by_filter_leaves_what_its_state_protects(holdfast: Run, query: Query) -> None:
    query(ENDED + "('a', 'completed', 1, now(), null)")
    query("insert into tasks (type) values ('a'), ('a'), ('b')")
    done = holdfast("cancel", "tasks", "--kind", "a", "--yes")
    assert (done.code, done.out) == (0, "2 cancelled\n")
    done = holdfast("cancel", "tasks", "--state", "completed", "--yes", "--json")
    assert done.data["count"] == 0
    assert holdfast("requeue", "tasks", "--state", "failed", "--yes").out == "2 requeued\n"
    assert holdfast("requeue", "tasks", query("select id::text from tasks limit 1")[0][0]).code == 5


def test_a_dry_run_on_a_full_table_does_not_count_it(holdfast: Run, query: Query) -> None:
    query(
        "insert into tasks (type, status, payload, completed_at) "
        "select 'old', 'failed', to_jsonb(repeat('x', 1000)), now() from generate_series(1, 60000)"
    )
    query("analyze tasks")
    dry = holdfast("requeue", "tasks", "--kind", "old", "--dry-run")
    assert (dry.code, dry.err) == (0, "")
    assert re.fullmatch(r"≈[\d,]+ would be requeued\n", dry.out)
    told = holdfast("requeue", "tasks", "--kind", "old", "--dry-run", "--json").data
    assert (told["exact"], told["dry_run"]) == (False, True)
    assert 50_000 < told["count"] < 70_000
    refused = holdfast("requeue", "tasks", "--kind", "old")
    assert (refused.code, refused.out) == (2, "")
    assert "to requeue ≈" in refused.err
    assert query("select distinct status::text from tasks") == [("failed",)]
