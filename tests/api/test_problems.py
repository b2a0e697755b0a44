"""What goes wrong: always the same shape, never a word of what nobody foresaw."""

from __future__ import annotations

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from fastapi import APIRouter

from api.kit import Served, api_of, served_app
from holdfast import Holdfast, Settings
from holdfast.api import problems
from holdfast.errors import HoldfastError, IllegalEdge, InvalidInput, NotAllowed, NotFound, SchemaOutdated

FIELDS = ("type", "title", "status", "code", "detail", "trace_id")


def test_every_problem_has_the_same_shape(served: Served) -> None:
    admin = served.client("admin")
    key = served.bury(served.enqueue("job"))
    found = {
        400: admin.get("/api/ledgers/job/rows", params={"limit": 0}),
        401: served.client(None).get("/api/me"),
        403: served.client("reader").post("/api/tokens", json={"name": "x"}),
        404: admin.get("/nowhere"),
        405: admin.patch("/api/me"),
        409: admin.post(f"/api/ledgers/job/rows/{key}/cancel"),
        413: admin.post("/api/tokens", content=b"x" * 3_000_000),
    }
    for status, response in found.items():
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"
        problem = response.json()
        assert tuple(problem)[:6] == FIELDS
        assert problem["status"] == status
        assert problem["type"] == f"urn:holdfast:problem:{problem['code'].lower()}"
        assert problem["title"] == problems.TITLES[status]
        assert problem["detail"]
        assert problem["trace_id"] == response.headers["x-trace-id"]
        assert len(problem["trace_id"]) == 32
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"
    assert [one.json()["code"] for one in found.values()] == [
        "INVALID_INPUT",
        "NOT_ALLOWED",
        "NOT_ALLOWED",
        "NOT_FOUND",
        "METHOD_NOT_ALLOWED",
        "ILLEGAL_EDGE",
        "TOO_LARGE",
    ]
    assert found[405].headers["allow"] == "GET"
    assert admin.patch("/api/ledgers/job/pause").headers["allow"] == "DELETE, PUT"
    assert admin.patch("/api/ledgers/job/rows").headers["allow"] == "GET, POST"


def test_everything_that_is_wrong_is_told_at_once(served: Served) -> None:
    body = {"items": [{"kind": "a", "delay": "x"}, {"kind": 5, "colour": 1}]}
    problem = served.client("actor").post("/api/ledgers/tasks/rows/batch", json=body).json()
    assert [one["field"] for one in problem["errors"]] == [
        "items[0].delay",
        "items[1].kind",
        "items[1].colour",
    ]
    assert problem["field"] == "items[0].delay"
    assert problem["detail"].startswith("items[0].delay: ")


def test_a_trace_goes_on(served: Served) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    client = served.client("actor", traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    made = client.post("/api/ledgers/tasks/rows", json={"kind": "x"})
    assert made.headers["x-trace-id"] == trace
    row = client.get(f"/api/ledgers/tasks/rows/{made.json()['id']}").json()
    assert row["trace"].split("-")[1] == trace
    other = served.client("actor", traceparent="nonsense").get("/api/me").headers["x-trace-id"]
    assert other != trace


class Surprise(Exception):
    pass


def _broken(settings: Settings) -> object:
    app = api_of(Holdfast(settings))
    router = APIRouter()
    errors: dict[str, Exception] = {
        "surprise": Surprise("password=hunter2"),
        "base": HoldfastError(message="hunter2"),
        "outdated": SchemaOutdated(current="1", head="2"),
        "invalid": InvalidInput(field="a\ud800", message="b\ud800\x00"),
        "missing": NotFound(what="x", id="\udc00"),
        "refused": NotAllowed(message="no"),
        "edge": IllegalEdge(verb="cancel", what="x", id=1, state="y", allowed="z"),
    }

    @router.get("/broken/{which}")
    async def broken(which: str) -> None:
        raise errors[which]

    app.include_router(router)
    return app


def test_an_unforeseen_error_tells_nothing_but_its_trace(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with served_app(settings, _broken(settings)) as served, caplog.at_level(logging.ERROR):
        client = served.client(None)
        for which in ("surprise", "base"):
            response = client.get(f"/broken/{which}")
            assert (response.status_code, response.json()["code"]) == (500, "INTERNAL")
            assert "hunter2" not in response.text
            assert "Surprise" not in response.text
            assert response.json()["trace_id"] == response.headers["x-trace-id"]
        assert "hunter2" in caplog.text  # the log may know
        found = {
            "outdated": (503, "SCHEMA_OUTDATED"),
            "invalid": (400, "INVALID_INPUT"),
            "missing": (404, "NOT_FOUND"),
            "refused": (403, "NOT_ALLOWED"),
            "edge": (409, "ILLEGAL_EDGE"),
        }
        for which, expected in found.items():
            response = client.get(f"/broken/{which}")
            assert (response.status_code, response.json()["code"]) == expected


def test_a_database_that_does_not_answer_is_a_503(settings: Settings) -> None:
    hasty = dataclasses.replace(
        settings, db_max_connections=2, db_acquire_timeout_seconds=0.3, db_statement_timeout_seconds=3.0
    )
    with served_app(hasty, api_of(Holdfast(hasty))) as served, ThreadPoolExecutor(6) as threads:
        with psycopg.connect(settings.database_url or "") as locking:
            locking.execute("lock table tasks")
            ask = lambda _: served.client("reader").get("/api/ledgers/tasks/rows")  # noqa: E731
            answers = list(threads.map(ask, range(6)))
        assert {(one.status_code, one.json()["code"]) for one in answers} == {(503, "DATABASE_UNAVAILABLE")}
        details = {one.json()["detail"] for one in answers}
        assert any("connection" in detail for detail in details)  # who got none
        assert any("in time" in detail for detail in details)  # whose statement took too long
        assert served.client("reader").get("/api/ledgers/tasks/rows").status_code == 200
