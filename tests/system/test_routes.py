"""System jobs over HTTP: made, listed, called off, made again; their log; archive, backups and console.

Y-4, Y-37, Y-38 and Y-40 as the API tells them, and every row of bad input.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from api.kit import A, Served, streaming, working
from holdfast import Settings
from holdfast.apps.system.bench import log_of
from holdfast.apps.system.parameters import TYPES
from holdfast.apps.system.places import Folder
from system.face import ENDS, JOBS, LEGACY, application, audit, jobs, put, serving, tell

FLUSH = {"type": "flush", "parameters": {"ledger": "job"}}
EVERYTHING = [
    ("GET", "/api/system/types", None),
    ("GET", JOBS, None),
    ("POST", JOBS, FLUSH),
    ("GET", f"{JOBS}/FL-4fK2mZ0q", None),
    ("POST", f"{JOBS}/FL-4fK2mZ0q/cancel", None),
    ("POST", f"{JOBS}/FL-4fK2mZ0q/retry", None),
    ("GET", f"{JOBS}/FL-4fK2mZ0q/logs", None),
    ("GET", f"{JOBS}/FL-4fK2mZ0q/logs/stream", None),
    ("GET", "/api/system/archive", None),
    ("GET", "/api/system/backups", None),
    ("POST", "/api/system/sql", {"statement": "SHOW JOBS"}),
]


@pytest.fixture
def served(settings: Settings, tmp_path: Path) -> Iterator[Served]:
    with serving(settings, tmp_path) as served:
        yield served


def ask(served: Served, path: str, code: int = 200, **params: Any) -> Any:
    response = served.client("reader").get(path, params=params)
    assert response.status_code == code, response.text
    return response.json()


def send(served: Served, path: str, body: Any = None, who: str = "actor", status: int = 200) -> Any:
    response = served.client(who).post(path, json=body)
    assert response.status_code == status, response.text
    if status >= 400:
        assert response.headers["content-type"] == "application/problem+json"
    return response.json()


def lines(served: Served, id: str) -> list[str]:
    return [line.text for line in log_of(served.settings).lines(id)]


# -- making ----------------------------------------------------------------------------------------------


def test_a_job_is_made_with_its_place_its_lines_and_its_entry_in_the_audit(served: Served) -> None:
    """Y-38, Y-5: it is queued, and who asked is in the log and in the record."""
    body = {**FLUSH, "key": "nightly", "max_retries": 0, "queue": "night", "priority": 7}
    response = served.client("actor").post(JOBS, json=body)
    assert response.status_code == 201, response.text
    made = response.json()
    assert response.headers["location"] == f"{JOBS}/{made['id']}"
    assert made == ask(served, response.headers["location"])
    told = {name: made[name] for name in ("type", "status", "key", "max_retries", "queue", "priority")}
    assert told == {
        "type": "flush",
        "status": "queued",
        "key": "nightly",
        "max_retries": 0,
        "queue": "night",
        "priority": 7,
    }
    assert made["parameters"] == {"ledger": "job", "older_than_hours": 24, "batch_rows": 50000}
    assert (made["message"], made["exception_trace"], made["actions"]) == (None, None, ["cancel"])
    assert datetime.fromisoformat(made["created_at"]).tzinfo is not None
    assert lines(served, made["id"]) == ["new", "queued by token:actor"]
    assert audit(served) == [("token:actor", "system run", made["id"], 1)]


def test_a_type_is_read_in_any_case_and_spelling(served: Served) -> None:
    """Y-2."""
    for word in ("Flush", "FLUSH"):
        made = send(served, JOBS, {**FLUSH, "type": word}, status=201)
        assert made["type"] == "flush"
    body = {"type": "StreamEviction", "parameters": {"table": "signals", "ttl_seconds": 60}}
    assert send(served, JOBS, body, "admin", 201)["type"] == "stream_eviction"


WRONG: dict[str, tuple[dict[str, Any], int, str, str | None]] = {
    "an unknown type": ({"type": "vacuum"}, 400, "INVALID_INPUT", "job_type"),
    "Unknown": ({"type": "Unknown"}, 400, "INVALID_INPUT", "job_type"),
    "an array": ({**FLUSH, "parameters": []}, 400, "INVALID_INPUT", "parameters"),
    "a text": ({**FLUSH, "parameters": "job"}, 400, "INVALID_INPUT", "parameters"),
    "a number": ({**FLUSH, "parameters": 1}, 400, "INVALID_INPUT", "parameters"),
    "null": ({**FLUSH, "parameters": None}, 400, "INVALID_INPUT", "parameters"),
    "an unknown field": (
        {"type": "flush", "parameters": {"ledger": "job", "older": 1}},
        400,
        "INVALID_INPUT",
        "older",
    ),
    "a missing field": ({"type": "flush", "parameters": {}}, 400, "INVALID_INPUT", "ledger"),
    "a wrong type": ({"type": "flush", "parameters": {"ledger": 1}}, 400, "INVALID_INPUT", "ledger"),
    "no time": (
        {"type": "retention", "parameters": {"ledger": "job", "retention_hours": 0}},
        400,
        "INVALID_INPUT",
        "retention_hours",
    ),
    "no life": (
        {"type": "stream_eviction", "parameters": {"table": "signals", "ttl_seconds": 0}},
        400,
        "INVALID_INPUT",
        "ttl_seconds",
    ),
    "an empty batch": (
        {"type": "retention", "parameters": {"ledger": "job", "retention_hours": 1, "batch_size": 0}},
        400,
        "INVALID_INPUT",
        "batch_size",
    ),
    "no size": (
        {"type": "compact", "parameters": {"ledger": "job", "target_file_size_mb": 0}},
        400,
        "INVALID_INPUT",
        "target_file_size_mb",
    ),
    "too many retries": ({**FLUSH, "max_retries": 256}, 400, "INVALID_INPUT", "max_retries"),
    "fewer than none": ({**FLUSH, "max_retries": -1}, 400, "INVALID_INPUT", "max_retries"),
    "an empty key": ({**FLUSH, "key": ""}, 400, "INVALID_INPUT", "key"),
    "a field that is none": ({**FLUSH, "state": "running"}, 400, "INVALID_INPUT", "state"),
    "an undeclared table": (
        {"type": "flush", "parameters": {"ledger": "pg_class"}},
        400,
        "INVALID_INPUT",
        "ledger",
    ),
    "a stream job on a ledger": (
        {"type": "stream_eviction", "parameters": {"table": "job", "ttl_seconds": 1}},
        400,
        "INVALID_INPUT",
        "table",
    ),
    "a flush of a stream": (
        {"type": "flush", "parameters": {"ledger": "job_event"}},
        400,
        "INVALID_INPUT",
        "ledger",
    ),
    "a cleanup of ours": ({"type": "cleanup", "parameters": {"table": "job"}}, 400, "INVALID_INPUT", "table"),
    "another operation": (
        {"type": "cleanup", "parameters": {"table": "parcels", "operation": "truncate"}},
        400,
        "INVALID_INPUT",
        "operation",
    ),
    "no subject": ({"type": "user_cleanup", "parameters": {"subject": {}}}, 400, "INVALID_INPUT", None),
    "two subjects": (
        {"type": "user_cleanup", "parameters": {"subject": {"org_id": A, "user_id": 1}}},
        400,
        "INVALID_INPUT",
        None,
    ),
    "a place outside": (
        {"type": "backup", "parameters": {"schema": "system", "backup_location": "/etc/backup"}},
        403,
        "NOT_ALLOWED",
        None,
    ),
    "a way up": (
        {"type": "backup", "parameters": {"schema": "system", "backup_location": "a/../../b"}},
        403,
        "NOT_ALLOWED",
        None,
    ),
    "a zero byte in a ledger": (
        {"type": "flush", "parameters": {"ledger": "job\0"}},
        400,
        "INVALID_INPUT",
        "ledger",
    ),
    "a zero byte in a schema": (
        {"type": "backup", "parameters": {"schema": "a\0", "backup_location": "a"}},
        400,
        "INVALID_INPUT",
        None,
    ),
    "half a letter in a schema": (
        {"type": "backup", "parameters": {"schema": "a\ud800", "backup_location": "a"}},
        400,
        "INVALID_INPUT",
        None,
    ),
    "a zero byte in a subject": (
        {"type": "user_cleanup", "parameters": {"subject": {"user_id": "a\0"}}},
        400,
        "INVALID_INPUT",
        None,
    ),
    "half a letter in a place": (
        {"type": "restore", "parameters": {"backup_location": "\ud800", "target_schema": "copy"}},
        400,
        "INVALID_INPUT",
        None,
    ),
    "no backup": (
        {"type": "restore", "parameters": {"backup_location": "nothing", "target_schema": "copy"}},
        400,
        "INVALID_BACKUP",
        None,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_job_is_refused_by_its_field_and_nothing_is_written(served: Served, name: str) -> None:
    """Y-38 and the table of bad input: no job, no file, no entry, nothing in the log."""
    body, status, code, field = WRONG[name]
    response = served.client("admin", **{"Content-Type": "application/json"}).post(
        JOBS, content=json.dumps(body)
    )
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert field is None or response.json()["field"] == field
    assert (jobs(served), audit(served), log_of(served.settings).lines()) == ([], [], [])


def test_a_refused_type_is_told_all_eight(served: Served) -> None:
    told = send(served, JOBS, {"type": "vacuum"}, status=400)["detail"]
    assert all(str(kind) in told for kind in TYPES)


def test_a_declared_table_that_is_not_there_is_not_found(served: Served) -> None:
    body = {"type": "compact", "parameters": {"table": "parcels"}}
    assert send(served, JOBS, body, "admin", 404)["code"] == "NOT_FOUND"
    assert jobs(served) == []


def test_a_key_of_an_active_job_is_refused_with_the_id_and_status_of_that_job(served: Served) -> None:
    """Y-6."""
    first = send(served, JOBS, {**FLUSH, "key": "once"}, status=201)["id"]
    problem = send(served, JOBS, {**FLUSH, "key": "once"}, status=409)
    assert problem["code"] == "IDEMPOTENCY_CONFLICT"
    assert problem["details"] == {"id": first, "status": "queued"}
    assert len(jobs(served)) == 1
    send(served, f"{JOBS}/{first}/cancel")
    assert send(served, JOBS, {**FLUSH, "key": "once"}, status=201)["id"] != first


# -- who -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path", "body"), EVERYTHING)
def test_a_tenant_is_refused_everywhere(served: Served, method: str, path: str, body: Any) -> None:
    """Y-37: whoever is no operator gets NotAllowed, and so does an operator who means one tenant."""
    for client in (served.client("tenant"), served.client("admin", **{"X-Tenant-Id": A})):
        response = client.request(method, path, json=body)
        assert (response.status_code, response.json()["code"]) == (403, "NOT_ALLOWED"), response.text
    assert served.client(None).request(method, path, json=body).status_code == 401
    assert (jobs(served), audit(served)) == ([], [])


def test_reading_needs_read_making_needs_act_and_what_cannot_be_taken_back_needs_admin(
    served: Served,
) -> None:
    """Y-37, Y-38."""
    send(served, JOBS, FLUSH, "reader", 403)
    ended = put(served, "retention", "failed", parameters={"ledger": "job", "retention_hours": 1})
    for kind, parameters in (
        ("retention", {"ledger": "job", "retention_hours": 1}),
        ("stream_eviction", {"table": "signals", "ttl_seconds": 1}),
        ("cleanup", {"table": "parcels"}),
        ("user_cleanup", {"subject": {"org_id": A}}),
        ("restore", {"backup_location": "a", "target_schema": "b"}),
    ):
        problem = send(served, JOBS, {"type": kind, "parameters": parameters}, "actor", 403)
        assert problem["code"] == "NOT_ALLOWED"
    send(served, f"{JOBS}/{ended}/cancel", who="reader", status=403)
    send(served, f"{JOBS}/{ended}/retry", who="reader", status=403)
    send(served, f"{JOBS}/{ended}/retry", who="actor", status=403)
    send(served, "/api/system/sql", {"statement": "SHOW JOBS"}, "actor", 403)
    assert jobs(served) == [("retention", "failed")]
    assert send(served, f"{JOBS}/{ended}/retry", who="admin", status=201)["type"] == "retention"


# -- lists and single jobs -------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_and_filtered_by_everything(served: Served) -> None:
    """Y-38: type, status, key, queue and time."""
    old = put(served, created_at=1_000_000_000_000, idempotency_key="old", status="failed")
    late = put(served, "backup", "queued", queue="night", created_at=1_500_000_000_000)
    new = put(served, "compact", "running", created_at=1_700_000_000_000)

    def found(**params: Any) -> list[str]:
        return [one["id"] for one in ask(served, JOBS, **params)["jobs"]]

    assert found() == [new, late, old]
    assert found(type="Backup") == [late]
    assert found(status="FAILED") == [old]
    assert found(status=["failed", "running"]) == [new, old]
    assert found(key="old") == [old]
    assert found(queue="night") == [late]
    assert found(queue="default") == [new, old]
    assert found(created_after="2017-07-14T02:40:00Z") == [new, late]
    assert found(created_before="2017-07-14T02:40:00Z") == [old]
    first = ask(served, JOBS, limit=2)
    assert [one["id"] for one in first["jobs"]] == [new, late]
    assert found(cursor=first["next_cursor"]) == [old]
    assert ask(served, JOBS, limit=3)["next_cursor"] is None
    for name, wrong in (("type", "vacuum"), ("status", "gone"), ("cursor", "x"), ("created_after", "now")):
        assert ask(served, JOBS, 400, **{name: wrong})["code"] == "INVALID_INPUT"
    assert ask(served, JOBS, 400, x=1)["field"] == "x"


def test_old_records_are_listed_after_the_jobs_marked_as_legacy(served: Served) -> None:
    """Y-43: filtered and turned as the others, and nothing can be ordered about them."""
    served.query(LEGACY)
    new = put(served, "flush", "failed")

    def found(**params: Any) -> list[tuple[str, bool]]:
        return [(one["id"], one["legacy"]) for one in ask(served, JOBS, **params)["jobs"]]

    assert found() == [(new, False), ("2", True), ("1", True), ("0", True)]
    assert found(type="flush", status="failed") == [(new, False), ("2", True)]
    assert found(queue="default", created_before="1970-01-01T00:00:02Z") == [("1", True)]
    pages: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = ask(served, JOBS, limit=1, **cursor)
        pages += [one["id"] for one in page["jobs"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert pages == [new, "2", "1", "0"]
    old = ask(served, JOBS, limit=100)["jobs"][2]
    assert (old["type"], old["status"], old["message"]) == ("backup", "completed", "12 rows")
    assert (old["parameters"], old["created_at"], old["actions"]) == (
        {"arg0": "a"},
        "1970-01-01T00:00:01Z",
        [],
    )
    assert ask(served, JOBS, 400, cursor="legacy-x")["field"] == "cursor"


def test_a_job_tells_its_message_and_whole_trace_in_todays_words(served: Served) -> None:
    """Y-4, Y-40: times are ISO 8601; `message` alone, and none of the old fields."""
    trace = "\n".join(f"line {number}" for number in range(1000))
    job = put(
        served,
        "flush",
        "failed",
        message="no space left",
        exception_trace=trace,
        created_at=1_893_456_000_123,
        retry_count=3,
    )
    told = ask(served, f"{JOBS}/{job}")
    assert (told["message"], told["exception_trace"], told["retry_count"]) == ("no space left", trace, 3)
    assert told["created_at"] == "2030-01-01T00:00:00.123000Z"
    assert told["actions"] == ["retry"]
    assert not {"result", "error_message"} & set(told)
    (listed,) = ask(served, JOBS)["jobs"]
    assert "exception_trace" not in listed


def test_a_type_that_nobody_knows_is_shown_as_unknown(served: Served) -> None:
    """Y-3."""
    job = put(served, "vacuum_full")
    assert [ask(served, f"{JOBS}/{job}")[name] for name in ("type", "type_word")] == [
        "unknown",
        "vacuum_full",
    ]


def test_a_running_job_tells_how_far_it_has_come(served: Served) -> None:
    job = put(served, status="running")
    assert ask(served, f"{JOBS}/{job}")["progress"] is None
    tell(served, job, "progress 40% 4000 of 10000 rows")
    told = ask(served, f"{JOBS}/{job}")["progress"]
    assert told == {"done": 4000, "total": 10000, "what": "rows", "percent": 40.0}


@pytest.mark.parametrize("rest", ["", "/logs", "/logs/stream", "/cancel", "/retry"])
def test_a_malformed_id_is_400_and_an_unknown_one_404(served: Served, rest: str) -> None:
    method = "POST" if rest in ("/cancel", "/retry") else "GET"
    for job, status in (("nonsense", 400), ("FL-x", 400), ("FL-4fK2mZ0q", 404)):
        response = served.client("admin").request(method, f"{JOBS}/{job}{rest}")
        assert response.status_code == status, (job, response.text)


# -- orders ----------------------------------------------------------------------------------------------


def test_a_job_is_called_off_once_and_who_did_it_is_told(served: Served) -> None:
    """Y-15, Y-38: also one that runs; a second time it is told that it has ended."""
    job = put(served, status="running")
    told = send(served, f"{JOBS}/{job}/cancel", {"reason": "too early"})
    assert (told["status"], told["message"]) == ("cancelled", "cancelled by token:actor")
    assert told["finished_at"] is not None
    assert lines(served, job) == ["cancelled by token:actor: too early"]
    problem = send(served, f"{JOBS}/{job}/cancel", status=409)
    assert problem["code"] == "ILLEGAL_EDGE"
    assert "cancelled" in problem["detail"]
    assert audit(served) == [("token:actor", "cancel", job, 1)]


def test_a_job_that_has_ended_is_made_again_and_stays_as_it_is(served: Served) -> None:
    """Y-13: a copy with a new id; one that goes on is not copied."""
    old = put(served, "flush", "failed", parameters={"ledger": "tasks"}, queue="night", max_retries=9)
    response = served.client("actor").post(f"{JOBS}/{old}/retry")
    assert response.status_code == 201, response.text
    new = response.json()
    assert response.headers["location"] == f"{JOBS}/{new['id']}"
    assert (new["status"], new["queue"], new["max_retries"]) == ("queued", "night", 9)
    assert new["parameters"]["ledger"] == "tasks"
    assert ask(served, f"{JOBS}/{old}")["status"] == "failed"
    assert send(served, f"{JOBS}/{new['id']}/retry", status=409)["code"] == "ILLEGAL_EDGE"
    assert audit(served) == [("token:actor", "system retry", new["id"], 1)]


# -- the log ---------------------------------------------------------------------------------------------


def test_the_log_of_a_job_is_read_and_read_on(served: Served) -> None:
    """Y-18, Y-38."""
    job, other = put(served), put(served)
    tell(served, job, "new", "queued by ana")
    tell(served, other, "new")
    first = ask(served, f"{JOBS}/{job}/logs")
    assert [(line["id"], line["level"], line["text"]) for line in first["lines"]] == [
        (job, "INFO", "new"),
        (job, "INFO", "queued by ana"),
    ]
    assert ask(served, f"{JOBS}/{job}/logs", after=first["cursor"])["lines"] == []
    tell(served, job, "boom", level="ERROR")
    second = ask(served, f"{JOBS}/{job}/logs", after=first["cursor"])
    assert [(line["level"], line["text"]) for line in second["lines"]] == [("ERROR", "boom")]
    assert len(ask(served, f"{JOBS}/{job}/logs", limit=1)["lines"]) == 1
    assert ask(served, f"{JOBS}/{job}/logs", code=400, after="x")["field"] == "after"


def test_the_log_outlives_the_row(served: Served) -> None:
    tell(served, "FL-4fK2mZ0q", "completed: 3 rows")
    assert [line["text"] for line in ask(served, f"{JOBS}/FL-4fK2mZ0q/logs")["lines"]] == [
        "completed: 3 rows"
    ]


def test_lines_are_streamed_as_they_come_and_end_with_the_job(served: Served) -> None:
    job = put(served, status="running")
    tell(served, job, "started on worker-1 (attempt 1)")
    with streaming(served.client("reader"), f"{JOBS}/{job}/logs/stream") as stream:
        first = stream.until("line")
        assert first.data["text"] == "started on worker-1 (attempt 1)"
        tell(served, job, "progress 10% 1 of 10 rows")
        assert stream.until("line").data["text"] == "progress 10% 1 of 10 rows"
        tell(served, job, "completed: 10 rows")
        served.query(
            "update system.jobs set status = 'completed', finished_at = created_at where id = %s", job
        )
        assert [sent.event for sent in stream.rest()] == ["line", "end"]
    with streaming(
        served.client("reader"), f"{JOBS}/{job}/logs/stream", headers={"Last-Event-ID": first.id or ""}
    ) as stream:
        assert [sent.data["text"] for sent in stream.rest()[:-1]] == [
            "progress 10% 1 of 10 rows",
            "completed: 10 rows",
        ]
    waiting = put(served)
    with streaming(served.client("reader"), f"{JOBS}/{waiting}/logs/stream?seconds=0.2") as stream:
        assert stream.rest() == []


# -- types, archive, backups, the console ----------------------------------------------------------------


def test_the_types_tell_what_they_need_as_json_schemas(served: Served) -> None:
    types = {one["type"]: one for one in ask(served, "/api/system/types")["types"]}
    assert list(types) == [str(kind) for kind in TYPES]
    flush = types["flush"]
    assert (flush["prefix"], flush["final"], types["user_cleanup"]["final"]) == ("FL", False, True)
    assert flush["parameters"]["required"] == ["ledger"]
    assert flush["parameters"]["properties"]["older_than_hours"]["default"] == 24
    assert flush["parameters"]["additionalProperties"] is False


def test_a_flush_done_by_a_worker_is_in_the_archive(served: Served) -> None:
    """Y-38: made here, done there, and told by the manifests."""
    pytest.importorskip("pyarrow")
    assert ask(served, "/api/system/archive")["tables"] == []
    served.enqueue("job", "report")
    served.query("update job set status = 'running'")
    served.query("update job set status = 'succeeded', finished_at = now() - interval '2 days'")
    made = send(served, JOBS, FLUSH, status=201)["id"]
    with (
        working(application(served.settings), ledgers=["system_jobs"]),
        streaming(served.client("reader"), f"{JOBS}/{made}/logs/stream") as stream,
    ):
        told = [sent.data["text"] for sent in stream.rest() if sent.event == "line"]
    assert told[-1].startswith("completed: 1 row"), told
    shown = ask(served, f"{JOBS}/{made}")
    assert (shown["status"], shown["progress"]) == ("completed", None)
    assert shown["message"].startswith("1 row")
    found = {one["table"]: one for one in ask(served, "/api/system/archive")["tables"]}
    assert (found["job"]["rows"], found["job"]["files"]) == (1, 1)
    assert found["job"]["bytes"] > 0


def test_an_archive_that_does_not_answer_is_503_with_a_sentence(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-38: a bucket may be away; that is no mistake of ours."""

    async def away(*_: Any) -> list[str]:
        raise OSError(errno.EIO, "503 from the bucket", "job/manifest.json")

    monkeypatch.setattr(Folder, "list", away)
    told = ask(served, "/api/system/archive", 503)
    assert (told["code"], told["detail"]) == (
        "UNAVAILABLE",
        "the archive does not answer: 503 from the bucket",
    )


def test_backups_are_listed_and_a_broken_one_says_so(served: Served) -> None:
    assert ask(served, "/api/system/backups") == {"backups": []}
    folder = served.settings.home / "backups" / "broken"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (found,) = ask(served, "/api/system/backups")["backups"]
    assert (found["name"], found["schema"], found["rows"]) == ("broken", None, None)
    assert "manifest.json" in found["problem"]


def test_a_statement_of_the_console_is_said_over_http(served: Served) -> None:
    """Y-35, Y-37, Y-4: columns, rows and a message; who asked is in the log, and times are ISO 8601."""
    job = put(served, created_at=1_893_456_000_123)
    sql = "/api/system/sql"
    shown = send(
        served, sql, {"statement": f"select id, created_at from system.jobs where id = '{job}'"}, "admin"
    )
    assert (shown["columns"], shown["rows"]) == (["id", "created_at"], [[job, "2030-01-01T00:00:00.123Z"]])
    assert shown["message"] == "1 row"
    assert audit(served) == []
    killed = send(served, sql, {"statement": f"kill job {job};"}, "admin")
    assert killed["rows"] == [[job, "cancelled"]]
    assert lines(served, job) == ["cancelled by token:admin"]
    assert audit(served) == [("token:admin", "system sql", None, 1)]
    refused = send(served, sql, {"statement": "select * from system.jobs; drop table job"}, "admin", 400)
    assert refused["code"] == "SYNTAX_REFUSED"
    assert refused["details"] == {"position": 28}
    assert send(served, sql, {"statement": ""}, "admin", 400)["field"] == "statement"
    long = f"select id from system.jobs where id = '{'x' * 19_000}'"
    assert send(served, sql, {"statement": long}, "admin")["rows"] == [], "as long as a terminal may say it"
    assert send(served, sql, {"statement": long + " " * 1000}, "admin", 400)["field"] == "statement"
    far = put(served, created_at=2**62)
    told = send(served, sql, {"statement": f"select created_at from system.jobs where id = '{far}'"}, "admin")
    assert told["rows"] == [[2**62]], "a time that no calendar has"
    assert send(served, sql, {"statement": f"kill job {job}"}, "admin", 409)["code"] == "ILLEGAL_EDGE"
    assert audit(served)[-1] == ("token:admin", "system sql", None, None)


def test_every_end_may_be_made_again_and_nothing_else(served: Served) -> None:
    for status in ("new", "queued", "running", "retrying", *ENDS):
        job = put(served, status=status)
        assert ask(served, f"{JOBS}/{job}")["actions"] == (["retry"] if status in ENDS else ["cancel"])
