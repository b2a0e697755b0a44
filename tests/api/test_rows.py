"""Rows over HTTP: enqueue, list, get, timeline, explain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.kit import A, B, Served
from holdfast.engine.lifecycle import PERSONAL

ROWS, TASKS = "/api/ledgers/job/rows", "/api/ledgers/tasks/rows"


def test_what_is_enqueued_is_found(served: Served) -> None:
    client = served.client("actor")
    body = {
        "kind": "mail",
        "payload": {"to": ["ana", "ö"], "n": 1.5, "deep": {"x": None}},
        "key": "one",
        "priority": 7,
        "run_at": "2099-01-01T00:00:00.5+02:00",
        "limit": 9,
        "backoff": "fixed",
        "queue": "slow",
        "tenant": A,
    }
    made = client.post(ROWS, json=body)
    assert made.status_code == 201
    assert made.json()["created"] is True
    assert made.headers["location"] == f"{ROWS}/{made.json()['id']}"
    row = client.get(made.headers["location"]).json()
    assert row["id"] == made.json()["id"]
    assert (row["ledger"], row["kind"], row["state"]) == ("job", "mail", "queued")
    assert (row["payload"], row["tenant"], row["limit"]) == (body["payload"], A, 9)
    assert row["due"] == "2098-12-31T22:00:00.500000Z"
    assert (row["ended"], row["actions"]) == (False, ["cancel"])
    assert row["columns"]["requested_by"] == "token:actor"
    assert row["columns"]["queue"] == "slow"
    (first,) = client.get(f"{made.headers['location']}/timeline").json()["events"]
    assert (first["prev"], first["next"], first["detail"]["by"]) == (None, "queued", "token:actor")


def test_a_repeated_key_answers_with_the_first_row(served: Served) -> None:
    client = served.client("actor")
    one = client.post(ROWS, json={"kind": "mail", "tenant": A, "key": "k"})
    two = client.post(ROWS, json={"kind": "mail", "tenant": A}, headers={"Idempotency-Key": "k"})
    assert (one.status_code, two.status_code) == (201, 200)
    assert two.json() == {"id": one.json()["id"], "created": False}
    assert client.post(ROWS, json={"kind": "mail", "tenant": B, "key": "k"}).status_code == 201
    other = client.post(ROWS, json={"kind": "another", "tenant": A, "key": "k"})
    assert (other.status_code, other.json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    both = client.post(ROWS, json={"kind": "m", "tenant": A, "key": "k"}, headers={"Idempotency-Key": "x"})
    assert (both.status_code, both.json()["field"]) == (400, "key")
    same = client.post(ROWS, json={"kind": "mail", "tenant": A, "key": "k"}, headers={"Idempotency-Key": "k"})
    assert same.status_code == 200


def test_a_batch_is_all_or_nothing_and_answers_in_its_order(served: Served) -> None:
    client = served.client("actor")
    items: list[dict[str, Any]] = [{"kind": "a", "key": "k"}, {"kind": "b"}, {"kind": "a", "key": "k"}]
    done = client.post(f"{TASKS}/batch", json={"items": items})
    assert done.status_code == 201
    receipts = done.json()["receipts"]
    assert [one["created"] for one in receipts] == [True, True, False]
    assert receipts[0]["id"] == receipts[2]["id"]
    assert client.post(f"{TASKS}/batch", json={"items": items[:1]}).status_code == 200
    wrong = client.post(f"{TASKS}/batch", json={"items": [{"kind": "c"}, {"kind": " "}]})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "items[1].type")
    assert len(client.get(TASKS).json()["rows"]) == 2
    for count, status in ((0, 400), (1000, 201), (1001, 400)):
        items = [{"kind": "many"}] * count
        assert client.post(f"{TASKS}/batch", json={"items": items}).status_code == status, count


def test_pages_follow_one_another_without_a_gap(served: Served) -> None:
    client = served.client("reader")
    added = [served.enqueue(priority=n) for n in range(7)]
    found: list[str] = []
    cursor = None
    while True:
        page = client.get(TASKS, params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["rows"]) <= 3
        assert "columns" not in page["rows"][0]
        found += [row["id"] for row in page["rows"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == added[::-1]
    assert client.get(TASKS, params={"cursor": "nonsense"}).json()["field"] == "cursor"


def test_filters_mean_what_they_say(served: Served) -> None:
    client = served.client("reader")
    a, b = served.enqueue("job", kind="x"), served.enqueue("job", kind="y", tenant=B, queue="slow")
    dead = served.bury(served.enqueue("job", kind="x"))
    now = client.get("/api/overview").json()["now"]

    def found(**params: Any) -> set[str]:
        response = client.get(ROWS, params=params)
        assert response.status_code == 200, response.text
        return {row["id"] for row in response.json()["rows"]}

    assert found() == {a, b, dead}
    assert found(kind="x") == {a, dead}
    assert found(state="queued") == {a, b}
    assert found(state=["queued", "dead_letter"], kind="x") == {a, dead}
    assert found(tenant=B) == found(queue="slow") == {b}
    assert found(code="BOOM") == found(finished_after="2020-01-01T00:00:00Z") == {dead}
    assert found(created_after=now) == found(created_before="2020-01-01T00:00:00Z") == set()
    assert found(created_before=now) == {a, b, dead}
    assert found(finished_before="2020-01-01T00:00:00Z", owner="nobody") == set()


def test_a_filter_that_fits_no_ledger_is_refused(served: Served) -> None:
    client = served.client("reader")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (ROWS, {"state": "done"}, "state"),
        (TASKS, {"queue": "slow"}, "queue"),
        (TASKS, {"tenant": A}, "tenant"),
        (TASKS, {"code": "X"}, "code"),
        (ROWS, {"tenant": "x"}, "org_id"),
        (ROWS, {"kind": "a\x00b"}, "kind"),
        (ROWS, {"limit": 0}, "limit"),
        (ROWS, {"limit": 101}, "limit"),
        (ROWS, {"limit": "many"}, "limit"),
        (ROWS, {"created_after": "yesterday"}, "created_after"),
        (ROWS, {"created_after": "2020-01-01T00:00:00"}, "created_after"),
        (ROWS, {"created_after": "1700000000"}, "created_after"),
        (ROWS, {"created_after": "0001-01-01T00:00:00+23:59"}, "created_after"),
        (ROWS, {"colour": "red"}, "colour"),
        (f"{ROWS}/x", {}, "id"),
    ]
    for path, params, field in wrong:
        response = client.get(path, params=params)
        assert (response.status_code, response.json().get("field")) == (400, field), (path, params)


def test_a_body_that_is_not_right_is_refused_and_says_where(served: Served) -> None:
    client = served.client("actor")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "type"),
        ({"kind": "", "tenant": A}, "kind"),
        ({"kind": 5, "tenant": A}, "kind"),
        ({"kind": " a ", "tenant": A}, "type"),
        ({"kind": "a" * 101, "tenant": A}, "type"),
        ({"kind": "a\x00", "tenant": A}, "kind"),
        ({"kind": "a"}, "org_id"),
        ({"kind": "a", "tenant": "x"}, "org_id"),
        ({"kind": "a", "tenant": A, "priority": 2**31}, "priority"),
        ({"kind": "a", "tenant": A, "priority": "7"}, "priority"),
        ({"kind": "a", "tenant": A, "priority": 1.5}, "priority"),
        ({"kind": "a", "tenant": A, "priority": True}, "priority"),
        ({"kind": "a", "tenant": A, "delay": -1}, "delay"),
        ({"kind": "a", "tenant": A, "delay": 1e12}, "delay"),
        ({"kind": "a", "tenant": A, "run_at": "soon"}, "run_at"),
        ({"kind": "a", "tenant": A, "run_at": 5}, "run_at"),
        ({"kind": "a", "tenant": A, "run_at": "2030-01-01T00:00:00"}, "run_at"),
        ({"kind": "a", "tenant": A, "delay": 1, "run_at": "2030-01-01T00:00:00Z"}, "delay"),
        ({"kind": "a", "tenant": A, "limit": -1}, "limit"),
        ({"kind": "a", "tenant": A, "backoff": "never"}, "backoff"),
        ({"kind": "a", "tenant": A, "extras": {"org_id": B}}, "org_id"),
        ({"kind": "a", "tenant": A, "extras": []}, "extras"),
        ({"kind": "a", "tenant": A, "colour": "red"}, "colour"),
        ({"kind": "a", "tenant": A, "payload": {"a": "\x00"}}, "payload"),
        ({"kind": "a", "tenant": A, "payload": "x" * (1024 * 1024)}, "payload"),
    ]
    for body, field in wrong:
        response = client.post(ROWS, json=body)
        assert (response.status_code, response.json().get("field")) == (400, field), (body, response.text)
    assert client.get(ROWS).json()["rows"] == []


def test_json_that_is_made_to_hurt_is_refused(served: Served) -> None:
    client = served.client("actor")
    head = '{"kind": "a", "payload": '
    wrong = [
        "{",
        "",
        "null",
        "[]",
        "5",
        "\xff",
        head + "NaN}",
        head + "Infinity}",
        head + "1e999}",
        head + "[-1e999]}",
        '{"kind": "a", "delay": NaN}',
        '{"kind": "a", "delay": 1e999}',
        '{"kind": "a", "priority": 1e999}',
        '{"kind": "a", "priority": ' + "9" * 5000 + "}",
        head + "9" * 5000 + "}",
        head + r'"\ud800"}',
        head + r'{"\udfff": 1}}',
        r'{"kind": "\ud800"}',
        r'{"kind": "a", "key": "\udc00"}',
        r'{"kind": "a", "extras": {"\ud800": 1}}',
        r'{"kind": "a", "\ud800": 1}',
        head + "[" * 201 + "]" * 201 + "}",
        head + "[" * 100_000 + "]" * 100_000 + "}",
        head + '{"a":' * 100_000 + "1" + "}" * 100_000 + "}",
        "[" * 100_000,
    ]
    for text in wrong:
        content = text.encode("latin-1") if text == "\xff" else text.encode()
        response = client.post(TASKS, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 400, (text[:60], response.text)
        assert response.json()["code"] == "INVALID_INPUT", text[:60]
    plain = client.post(TASKS, content='{"kind": "a"}', headers={"Content-Type": "text/plain"})
    assert plain.status_code == 400
    assert client.get(TASKS).json()["rows"] == []


def test_large_and_deep_payloads_come_back_as_they_were(served: Served) -> None:
    client = served.client("actor")
    deep: Any = 1
    for _ in range(199):
        deep = [deep]
    for payload in (deep, 10**400, 0.1, [], {}, "", False, None, "\u2028 \U0001f600 </script>", ["ä"] * 1000):
        text = json.dumps({"kind": "a", "payload": payload})
        made = client.post(TASKS, content=text, headers={"Content-Type": "application/json"})
        assert made.status_code == 201, made.text
        row = client.get(f"{TASKS}/{made.json()['id']}")
        assert row.status_code == 200, row.text
        assert row.json()["payload"] == payload
    assert client.get(TASKS).status_code == 200


def test_what_is_not_there_is_not_found(served: Served) -> None:
    client = served.client("admin")
    nowhere = "00000000-0000-4000-8000-000000000000"
    for path in (
        "/api/ledgers/nothing",
        "/api/ledgers/nothing/rows",
        "/api/ledgers/a%00b",
        f"{ROWS}/{nowhere}",
        f"{ROWS}/{nowhere}/timeline",
        f"{ROWS}/{nowhere}/explain",
        f"{ROWS}/{nowhere}/wait",
        f"/api/ledgers/job/stream?id={nowhere}",
    ):
        response = client.get(path)
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND"), path


def test_a_timeline_has_pages(served: Served) -> None:
    client = served.client("actor")
    key = served.enqueue("job")
    client.post(f"{ROWS}/{key}/cancel", json={"reason": "not needed"})
    first = client.get(f"{ROWS}/{key}/timeline", params={"limit": 1}).json()
    assert [event["next"] for event in first["events"]] == ["queued"]
    rest = client.get(f"{ROWS}/{key}/timeline", params={"after": first["after"]}).json()
    (event,) = rest["events"]
    assert (event["prev"], event["next"], rest["after"]) == ("queued", "canceled", None)
    assert (event["detail"]["by"], event["detail"]["reason"]) == ("token:actor", "not needed")
    none = client.get(f"{TASKS}/{served.enqueue()}/timeline")
    assert (none.status_code, none.json()["field"]) == (400, "ledger")


def test_a_ledger_is_described(served: Served) -> None:
    client = served.client("reader")
    job, tasks, *_ = client.get("/api/ledgers").json()["ledgers"]
    assert (job["name"], job["tenants"], job["queues"], job["journal"]) == ("job", True, True, True)
    assert (tasks["name"], tasks["tenants"], tasks["queues"], tasks["journal"]) == (
        "tasks",
        False,
        False,
        False,
    )
    whole = client.get("/api/ledgers/tasks").json()
    assert {state["name"]: state["actions"] for state in whole["states"]} == {
        "pending": ["cancel"],
        "claimed": ["cancel"],
        "running": ["cancel"],
        "completed": [],
        "failed": ["requeue"],
        "dead_letter": ["requeue"],
    }
    assert whole["columns"]["kind"] == ["type"]
    assert {
        "verb": "claim",
        "meaning": "a worker takes the row",
        "from": ["pending"],
        "via": [],
        "to": "claimed",
    } in (whole["edges"])
    assert whole["diagram"].startswith("stateDiagram-v2")
    assert set(PERSONAL) >= {action for state in whole["states"] for action in state["actions"]}


def test_a_row_is_explained(served: Served) -> None:
    client = served.client("reader")
    told = client.get(f"{TASKS}/{served.enqueue()}/explain").json()
    assert told["code"] == "NO_WORKERS"
    assert told["sentence"]
    assert isinstance(told["facts"], dict)


def test_statistics_and_the_overview_agree(served: Served) -> None:
    client = served.client("reader")
    served.enqueue()
    stats = client.get("/api/ledgers/tasks/stats").json()
    assert {one["state"]: one["rows"] for one in stats["states"]}["pending"] == 1
    assert stats["exact"] is True
    assert stats["waiting_since"] is not None
    assert stats["oldest_wait"] >= 0
    assert len(stats["pace"]["minutes"]) == 60
    overview = client.get("/api/overview").json()
    (tasks,) = [one for one in overview["ledgers"] if one["ledger"] == "tasks"]
    assert tasks["states"] == stats["states"]
    assert (overview["workers"], overview["leader"]) == ([], None)


def test_a_hundred_watchers_of_the_overview_cost_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.reads.KEPT", 60.0)
    first = served.client("reader").get("/api/overview").json()
    assert served.client("admin").get("/api/overview").json()["now"] == first["now"]
    tenant = served.client("tenant").get("/api/overview").json()
    assert tenant["now"] != first["now"]
    assert [one["ledger"] for one in tenant["ledgers"]] == ["job", "sync_jobs"]


def test_a_tenant_that_no_ledger_can_have_sees_nothing(served: Served) -> None:
    client = served.client("admin", **{"X-Tenant-Id": "a word"})
    assert client.get("/api/overview").json()["ledgers"] == []
    assert client.get("/api/ledgers").json()["ledgers"] == []
    assert client.get("/api/ledgers/job/stats").json()["field"] == "org_id"


def test_a_tenant_sees_the_ledgers_whose_rows_it_can_have(served: Served) -> None:
    for tenant, seen in ((A, ["job", "sync_jobs"]), ("42", ["capture_session", "schedule_notification"])):
        client = served.client("admin", **{"X-Tenant-Id": tenant})
        assert [one["name"] for one in client.get("/api/ledgers").json()["ledgers"]] == seen
        assert [one["ledger"] for one in client.get("/api/overview").json()["ledgers"]] == seen
        for name in seen:
            assert client.get(f"/api/ledgers/{name}/stats").status_code == 200, name
