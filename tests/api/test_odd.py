"""What is odd, but happens: connections that are used again, ids with a slash, a schema that is too old."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest

from api.kit import A, Served, api_of, served_app, streaming
from holdfast import Holdfast, Key, Settings
from holdfast.api import limits, streams
from holdfast.engine import looks
from ledgers import PARCELS, PARCELS_DDL

NOTES_DDL = PARCELS_DDL.replace("parcels", "notes")
NOTES = replace(PARCELS, name="notes", table="notes", key=Key(PARCELS.key.column, "text"))


def test_a_large_request_does_not_lend_its_trace_to_the_next_of_its_connection(served: Served) -> None:
    """uvicorn reads on in the context of whoever it stopped reading for."""
    with served.client("admin") as client:
        body = {"kind": "demo", "payload": "x" * 300_000}
        assert client.post("/api/ledgers/tasks/rows", json=body).status_code == 201
        ids = [client.get("/api/me").headers["x-trace-id"] for _ in range(3)]
        assert len(set(ids)) == 3
        row = client.post("/api/ledgers/tasks/rows", json={"kind": "demo"})
        assert row.headers["x-trace-id"] not in ids
        trace = served.query("select traceparent from tasks where id = %s", row.json()["id"])[0][0]
        assert trace.split("-")[1] == row.headers["x-trace-id"]


def test_whoever_only_looks_whether_it_is_there_may_ask_by_head(served: Served) -> None:
    for path in ("/healthz", "/readyz"):
        answer = served.client(None).head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_a_tenant_may_be_spelled_in_capitals(served: Served) -> None:
    headers = {"X-Tenant-Id": A.upper()}
    assert served.client("tenant reader").get("/api/me", headers=headers).json()["tenant"] == A


@pytest.fixture
def noted(settings: Settings) -> Iterator[Served]:
    with served_app(settings, api_of(Holdfast(settings, ledgers=[NOTES]))) as served:
        yield served


def test_a_ledger_whose_table_is_not_there_is_a_clear_503_and_the_others_go_on(noted: Served) -> None:
    client = noted.client("reader")
    problem = client.get("/api/ledgers/notes/rows")
    assert (problem.status_code, problem.json()["code"]) == (503, "UNAVAILABLE")
    assert "holdfast doctor" in problem.json()["detail"]
    assert client.get("/api/ledgers/tasks/rows").status_code == 200
    assert client.get("/api/overview").status_code == 200


def test_a_schema_that_is_too_old_is_told_as_such(served: Served) -> None:
    served.query("update holdfast_version set version_num = '0002'")
    served.query("alter table holdfast_token rename to holdfast_token_gone")
    try:
        problem = served.client("reader").get("/api/me")
        assert (problem.status_code, problem.json()["code"]) == (503, "NOT_READY")
        assert "migrations are pending" in problem.json()["detail"]
    finally:
        served.query("alter table holdfast_token_gone rename to holdfast_token")


def test_a_tenant_of_a_large_table_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row level security makes other plans of the statements that estimate."""
    monkeypatch.setattr(looks, "SMALL", 0)
    monkeypatch.setattr(looks, "COUNTED", 20)
    items = [{"kind": "demo", "tenant": A}] * 500
    assert (
        served.client("actor").post("/api/ledgers/job/rows/batch", json={"items": items}).status_code == 201
    )
    served.query(
        "update job set status = 'canceled', finished_at = now() where id in (select id from job limit 9)"
    )
    served.query("analyze job")
    for who, truth in (("tenant", {"queued": 491, "canceled": 9}), ("other tenant", {})):
        client = served.client(who)
        assert client.get("/api/overview").status_code == 200
        stats = client.get("/api/ledgers/job/stats").json()
        for one in stats["states"]:
            assert abs(one["rows"] - truth.get(one["state"], 0)) <= 50, (who, one)
        dry = client.post("/api/ledgers/job/cancel", json={"all": True, "dry_run": True}).json()
        assert abs(dry["rows"] - truth.get("queued", 0)) <= 50


def test_a_revoked_token_loses_its_stream_also_where_wrong_tokens_are_tried(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "RECHECK", 0.2)
    with streaming(served.client("reader"), "/api/ledgers/tasks/stream", params={"seconds": 30}) as stream:
        stream.next()
        key = served.tokens["reader"].split("_")[1]
        for _ in range(limits.FAILURES + 2):
            served.client(None, Authorization="Bearer hf_xxxxxxxx_" + "x" * 43).get("/api/me")
        assert served.client("admin").delete(f"/api/tokens/{key}").status_code == 200
        assert stream.rest() is not None  # it ends by itself, long before its time


def test_an_id_with_a_slash_is_found_where_location_says(noted: Served) -> None:
    noted.query(NOTES_DDL)
    column = NOTES.key.column
    noted.query(f"alter table notes alter column {column} drop identity")
    noted.query(f"alter table notes alter column {column} type text using {column}::text")
    noted.query(f"alter table notes alter column {column} set default 'k/' || gen_random_uuid() || '?#%'")
    client = noted.client("actor")
    made = client.post("/api/ledgers/notes/rows", json={"kind": "letter"})
    assert made.status_code == 201, made.text
    place = made.headers["location"]
    assert place.endswith(quote(made.json()["id"], safe=""))
    assert client.get(place).json()["id"] == made.json()["id"]
    for part in ("explain", "wait?seconds=0"):
        assert client.get(f"{place}/{part}").status_code == 200
    assert client.post(f"{place}/cancel").status_code == 200
    assert client.get(f"{place}/cancel").status_code == 405
