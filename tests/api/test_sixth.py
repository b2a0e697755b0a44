"""A user's own tables over HTTP, in their own words: nothing here was written for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api.kit import A, B, Served, api_of, served_app, streaming
from holdfast import Holdfast, Settings
from ledgers import ERRANDS, ERRANDS_DDL, PARCELS, PARCELS_DDL, PERMITS, PERMITS_DDL, SYNCS, SYNCS_DDL

LEDGERS = (PARCELS, ERRANDS, SYNCS, PERMITS)
ITEMS: dict[str, dict[str, Any]] = {
    "parcels": {"kind": "letter", "payload": {"to": "ana"}},
    "errands": {"kind": "walk", "tenant": A, "extras": {"requested_by": "ben"}, "queue": "slow"},
    "syncs": {"kind": "mail", "priority": 3},
    "permits": {"payload": {"applicant": "ana", "floors": 3, "drawn_on": "2030-01-31"}},
}


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    with served_app(settings, api_of(Holdfast(settings, ledgers=LEDGERS))) as served:
        for table in (PARCELS_DDL, ERRANDS_DDL, SYNCS_DDL, PERMITS_DDL):
            served.query(table)
        yield served


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda ledger: ledger.name)
def test_everything_works_on_a_users_own_table(served: Served, ledger: Any) -> None:
    client = served.client("actor")
    url = f"/api/ledgers/{ledger.name}"
    cancelled, initial = ledger.to("cancel"), ledger.lifecycle.initial
    key = client.post(f"{url}/rows", json=ITEMS[ledger.name]).json()["id"]
    row = client.get(f"{url}/rows/{key}").json()
    assert (row["id"], row["state"], row["ledger"]) == (key, initial, ledger.name)
    assert row["actions"] == ["cancel"]
    assert [one["id"] for one in client.get(f"{url}/rows").json()["rows"]] == [key]
    assert client.get(f"{url}/rows/{key}/explain").json()["code"] == "NO_WORKERS"
    stats = client.get(f"{url}/stats").json()
    assert {one["state"]: one["rows"] for one in stats["states"]}[initial] == 1
    assert client.get(url).json()["table"] == ledger.table
    body = {"filter": {"state": [initial]}, "dry_run": True}
    assert client.post(f"{url}/cancel", json=body).json()["rows"] == 1
    with streaming(client, f"{url}/stream", params={"id": key, "seconds": 20}) as stream:
        assert stream.until("row").data["state"] == initial
        assert client.post(f"{url}/rows/{key}/cancel").json()["state"] == cancelled
        assert stream.until("row").data["state"] == cancelled
        assert stream.until("end")
    assert client.get(f"{url}/rows/{key}/wait").json()["ended"] is True
    allowed = cancelled in ledger.lifecycle.allowed("requeue")
    assert client.post(f"{url}/rows/{key}/requeue").status_code == (200 if allowed else 409)
    with streaming(client, f"{url}/stream", params={"seconds": 0.3}) as stream:
        assert {sent.event for sent in stream.rest()} <= {"stats", "event"}


def test_an_enqueue_that_is_ignored_has_no_id(served: Served) -> None:
    client = served.client("actor")
    for status, made in ((201, True), (200, False)):
        response = client.post("/api/ledgers/permits/rows", json={"key": "n1", "payload": {"floors": 1}})
        assert (response.status_code, response.json()["created"]) == (status, made)
    assert response.json()["id"] is None
    assert "location" not in response.headers


def test_what_a_column_cannot_hold_is_a_clear_refusal(served: Served) -> None:
    client = served.client("actor")
    wrong: list[tuple[str, Any]] = [
        ("permits", {"payload": {"floors": "many"}}),
        ("permits", {"payload": {"drawn_on": "no day"}}),
        ("permits", {"payload": {"colour": "red"}}),
        ("permits", {"payload": [1]}),
        ("permits", {"kind": "other"}),
        ("errands", {"kind": "a", "tenant": A, "extras": {"requested_by": {"a": [1]}}}),
        ("errands", {"kind": "a" * 101, "tenant": A}),
        ("syncs", {"kind": "a", "priority": 40_000}),
        ("parcels", {"kind": "a", "priority": 1}),
    ]
    for ledger, body in wrong:
        response = client.post(f"/api/ledgers/{ledger}/rows", json=body)
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_INPUT"), (ledger, body)
    for ledger, key in (("parcels", "x"), ("parcels", "9" * 5000), ("parcels", "99999999999")):
        assert client.get(f"/api/ledgers/{ledger}/rows/{key}").status_code == 400
    assert client.get("/api/ledgers/permits/rows/nothing").status_code == 404


def test_tenants_are_kept_apart_where_the_database_does_not_do_it(served: Served) -> None:
    mine, theirs = (served.enqueue("errands", kind="walk", tenant=one) for one in (A, B))
    client, url = served.client("tenant"), "/api/ledgers/errands"
    assert [one["id"] for one in client.get(f"{url}/rows").json()["rows"]] == [mine]
    for method, rest in (("GET", ""), ("GET", "/timeline"), ("GET", "/explain"), ("POST", "/cancel")):
        assert client.request(method, f"{url}/rows/{theirs}{rest}").status_code == 404
    assert client.get(f"{url}/rows", params={"tenant": B}).status_code == 403
    assert client.post(f"{url}/rows", json={"kind": "walk", "tenant": B}).status_code == 403
    assert client.post(f"{url}/cancel", json={"all": True}).json()["rows"] == 1
    assert served.client("admin").get(f"{url}/rows/{theirs}").json()["state"] == "queued"
    names = [one["name"] for one in client.get("/api/ledgers").json()["ledgers"]]
    assert names == ["job", "sync_jobs", "errands"]
    overview = client.get("/api/overview").json()
    assert [one["ledger"] for one in overview["ledgers"]] == names
    with streaming(client, f"{url}/stream", headers={"Last-Event-ID": "1.1"}) as stream:
        stream.next()
        assert {stream.until("event").data["id"] for _ in range(2)} == {mine}


def test_a_table_that_is_not_there_does_not_hide_the_others(served: Served) -> None:
    served.query("drop table parcels")
    overview = served.client("reader").get("/api/overview").json()
    trouble = {one["ledger"]: one["trouble"] for one in overview["ledgers"]}
    assert trouble.pop("parcels")
    assert set(trouble.values()) == {None}
