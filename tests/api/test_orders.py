"""Orders over HTTP: cancel, requeue, bulks with a dry run, pause; each is in the audit, with who and why."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from api.kit import A, B, Served

ROWS = "/api/ledgers/job/rows"


def audit(served: Served, action: str) -> list[dict[str, Any]]:
    """The entries of an action, the newest first."""
    entries = served.client("reader").get("/api/audit").json()["entries"]
    return [entry for entry in entries if entry["action"] == action]


def test_cancel_and_requeue_answer_with_the_row_and_are_audited(served: Served) -> None:
    client = served.client("actor")
    key = served.enqueue("job")
    done = client.post(f"{ROWS}/{key}/cancel", json={"reason": "mistake"})
    assert (done.status_code, done.json()["state"], done.json()["actions"]) == (200, "canceled", [])
    again = client.post(f"{ROWS}/{key}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "ILLEGAL_EDGE")
    dead = served.bury(served.enqueue("job"))
    back = client.post(f"{ROWS}/{dead}/requeue")
    assert (back.status_code, back.json()["state"]) == (200, "queued")
    (cancelled,), (requeued,) = audit(served, "cancel"), audit(served, "requeue")
    assert cancelled["who"] == requeued["who"] == "token:actor"
    assert (cancelled["ledger"], cancelled["row_id"], cancelled["rows"]) == ("job", key, 1)
    assert cancelled["detail"] == {"reason": "mistake"}
    assert cancelled["trace_id"] == done.headers["x-trace-id"]
    assert requeued["row_id"] == dead


def test_a_tenants_action_is_audited_although_its_role_cannot_write_there(served: Served) -> None:
    key = served.enqueue("job")
    assert served.client("tenant").post(f"{ROWS}/{key}/cancel").status_code == 200
    (entry,) = audit(served, "cancel")
    assert (entry["who"], entry["tenant"], entry["row_id"]) == ("token:tenant", A, key)


def test_an_action_whose_audit_cannot_be_written_is_not_done(served: Served) -> None:
    key = served.enqueue("job")
    served.query("alter table holdfast_audit add constraint no check (false) not valid")
    for who in ("actor", "tenant"):
        assert served.client(who).post(f"{ROWS}/{key}/cancel").status_code == 500
    served.query("alter table holdfast_audit drop constraint no")
    assert served.client("reader").get(f"{ROWS}/{key}").json()["state"] == "queued"


@pytest.mark.parametrize(("verb", "state"), [("cancel", "canceled"), ("requeue", "queued")])
def test_a_bulk_does_what_its_dry_run_counted(served: Served, verb: str, state: str) -> None:
    client = served.client("actor")
    meant = [served.enqueue("job", kind="x") for _ in range(3)]
    others = [served.enqueue("job", kind="y"), served.enqueue("job", kind="x", tenant=B)]
    if verb == "requeue":
        for key in (*meant, *others):
            served.bury(key)
    body: dict[str, Any] = {"filter": {"kind": "x", "tenant": A}, "reason": "tidying"}
    url = f"/api/ledgers/job/{verb}"
    dry = client.post(url, json=body | {"dry_run": True})
    assert dry.json() == {"rows": 3, "dry_run": True, "exact": True}
    assert audit(served, verb) == []
    done = client.post(url, json=body)
    assert done.json() == {"rows": 3, "dry_run": False, "exact": True}
    assert client.post(url, json=body | {"dry_run": True}).json()["rows"] == 0
    assert {client.get(f"{ROWS}/{key}").json()["state"] for key in meant} == {state}
    assert state not in {client.get(f"{ROWS}/{key}").json()["state"] for key in others}
    (entry,) = audit(served, verb)
    assert (entry["who"], entry["rows"], entry["row_id"]) == ("token:actor", 3, None)
    assert entry["detail"] == {"filter": {"kind": "x", "tenant": A}, "reason": "tidying"}
    timeline = client.get(f"{ROWS}/{meant[0]}/timeline").json()["events"]
    assert (timeline[-1]["detail"]["by"], timeline[-1]["detail"]["reason"]) == ("token:actor", "tidying")


def test_a_bulk_of_everything_must_say_so(served: Served) -> None:
    client = served.client("actor")
    served.enqueue("job")
    for body in ({}, {"filter": {}}, {"filter": {}, "dry_run": True}, {"filter": {"state": []}}):
        response = client.post("/api/ledgers/job/cancel", json=body)
        assert (response.status_code, response.json()["field"]) == (400, "filter"), body
    assert client.post("/api/ledgers/job/cancel", json={"all": True, "dry_run": True}).json()["rows"] == 1
    assert client.post("/api/ledgers/job/cancel", json={"all": True}).json()["rows"] == 1


def test_a_bulk_over_states_that_forbid_it_changes_nothing(served: Served) -> None:
    client = served.client("actor")
    served.bury(served.enqueue("job"))
    for dry in (True, False):
        body = {"filter": {"state": ["dead_letter", "succeeded"]}, "dry_run": dry}
        assert client.post("/api/ledgers/job/cancel", json=body).json()["rows"] == 0
    wrong = client.post("/api/ledgers/job/cancel", json={"filter": {"state": ["lost"]}})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "state")
    typed = client.post("/api/ledgers/job/cancel", json={"filter": {"state": "queued"}})
    assert (typed.status_code, typed.json()["field"]) == (400, "filter.state")


def test_a_bulk_that_fails_is_in_the_audit_without_a_count(served: Served) -> None:
    served.enqueue("job", kind="x")
    served.query("alter table job_event add constraint no check (false) not valid")
    response = served.client("actor").post("/api/ledgers/job/cancel", json={"filter": {"kind": "x"}})
    assert response.status_code == 500
    (entry,) = audit(served, "cancel")
    assert (entry["rows"], entry["detail"]["error"]) == (None, "CheckViolation")


def test_pause_and_resume(served: Served) -> None:
    client = served.client("actor")
    paused = client.put("/api/ledgers/job/pause", params={"reason": "deploy"})
    assert paused.json() == {"ledger": "job", "queue": None, "paused": True, "changed": True}
    assert client.put("/api/ledgers/job/pause").json()["changed"] is False
    assert client.put("/api/ledgers/job/pause", params={"queue": "slow"}).json()["changed"] is True
    (told,) = [p for p in client.get("/api/ledgers/job/stats").json()["paused"] if p["queue"] is None]
    assert (told["by"], told["reason"]) == ("token:actor", "deploy")
    assert client.get(f"{ROWS}/{served.enqueue('job')}/explain").json()["code"] in ("PAUSED", "NO_WORKERS")
    assert client.delete("/api/ledgers/job/pause").json()["changed"] is True
    assert client.delete("/api/ledgers/job/pause").json()["changed"] is False
    assert [entry["detail"]["changed"] for entry in audit(served, "pause")] == [True, False, True]
    assert [entry["detail"]["changed"] for entry in audit(served, "resume")] == [False, True]
    for path in ("/api/ledgers/tasks/pause?queue=slow", "/api/ledgers/job/pause?queue="):
        assert client.put(path).status_code == 400, path


def test_the_audit_has_pages(served: Served) -> None:
    client = served.client("actor")
    for _ in range(5):
        client.put("/api/ledgers/job/pause")
    first = client.get("/api/audit", params={"limit": 3}).json()
    rest = client.get("/api/audit", params={"limit": 3, "before": first["before"]}).json()
    numbers = [entry["id"] for entry in (*first["entries"], *rest["entries"])]
    assert numbers == sorted(numbers, reverse=True)
    assert (len(numbers), rest["before"]) == (5, None)


def test_a_bulk_by_further_columns_moves_those_rows_alone(served: Served) -> None:
    """C-44: the failed jobs of one connection or provider, by the class of their error; audited."""
    mine, other = (str(uuid4()) for _ in range(2))
    served.query(f"insert into tenants (id) values ('{A}')")
    for connection in (mine, other):
        served.query(
            "insert into connections (id, tenant_id, provider_slug, external_id) "
            f"values ('{connection}', '{A}', 'github', '{connection}')"
        )
        served.query(
            "insert into sync_jobs (id, tenant_id, provider_slug, connection_id, job_type, status, error) "
            f"values (gen_random_uuid(), '{A}', 'github', '{connection}', 'full', 'failed', "
            "jsonb_build_object('code', 'TIMEOUT'))"
        )
    client, url = served.client("actor"), "/api/ledgers/sync_jobs/requeue"
    body = {"filter": {"extras": {"connection_id": mine}, "code": "TIMEOUT"}}
    assert client.post(url, json=body).json()["rows"] == 1
    assert client.post(url, json={"filter": {"extras": {"provider_slug": "github"}}}).json()["rows"] == 1
    assert audit(served, "requeue")[-1]["detail"]["filter"] == body["filter"]
    for wrong in ({"colour": "red"}, {"connection_id": "nonsense"}):
        refused = client.post(url, json={"filter": {"extras": wrong}})
        assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_INPUT")
