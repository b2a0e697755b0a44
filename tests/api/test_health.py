"""Whether it is alive, and whether it can answer."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from api.kit import Served, api_of, served_app, serving
from holdfast import Holdfast, Settings
from holdfast.api import health
from holdfast.api.app import build
from holdfast.db import embedded
from holdfast.db.migrate import upgrade


@pytest.fixture(autouse=True)
def _asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "KEPT", -1.0)


def test_it_is_ready_when_it_is(served: Served) -> None:
    """C-71"""
    client = served.client(None)
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ok"}


def test_it_is_not_ready_while_migrations_are_pending(served: Served) -> None:
    """C-5, C-71"""
    client = served.client(None)
    for spoil, mend in (
        (
            "update holdfast_version set version_num = '0001'",
            "update holdfast_version set version_num = '9999'",
        ),
        ("delete from holdfast_version", "insert into holdfast_version values ('9999')"),
        ("alter table holdfast_version rename to gone", "alter table gone rename to holdfast_version"),
    ):
        served.query(spoil)
        response = client.get("/readyz")
        assert (response.status_code, response.json()["code"]) == (503, "NOT_READY"), spoil
        assert "migrations are pending" in response.json()["detail"]
        assert client.get("/healthz").status_code == 200
        served.query(mend)
        assert client.get("/readyz").status_code == 200


def test_it_is_not_ready_when_the_pool_cannot_answer_within_a_second(served: Served) -> None:
    """C-71"""
    client = served.client(None)
    served.query("alter table holdfast_version rename to version_")
    served.query("create function pause() returns text language sql as $$ select pg_sleep(20)::text $$")
    served.query("create view holdfast_version as select pause() as version_num")
    began = time.monotonic()
    response = client.get("/readyz")
    assert (response.status_code, response.json()["detail"]) == (503, "the database does not answer")
    assert time.monotonic() - began < 5
    assert client.get("/healthz").status_code == 200


def test_it_is_not_ready_while_its_application_is_not_open(settings: Settings) -> None:
    with serving(build(Holdfast(settings).site, [])) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200
        response = httpx.get(f"{url}/readyz")
        assert (response.status_code, response.json()["code"]) == (503, "NOT_READY")


def test_it_is_not_ready_while_the_database_is_stopped(temporary_home: Any, eventually: Any) -> None:
    with temporary_home() as home:
        lease = embedded.acquire(home)
        upgrade(lease.url)
        settings = Settings(database_url=lease.url, profile="test", db_acquire_timeout_seconds=0.5)
        with served_app(settings, api_of(Holdfast(settings))) as served:
            client = served.client("reader")
            assert client.get("/readyz").status_code == client.get("/api/me").status_code == 200
            lease.release()
            embedded.stop(home)
            assert client.get("/readyz").json()["detail"] == "the database does not answer"
            away = client.get("/api/me")
            assert (away.status_code, away.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
            assert client.get("/healthz").status_code == 200
            with embedded.acquire(home):
                eventually(lambda: client.get("/readyz").status_code == 200)
                eventually(lambda: client.get("/api/me").status_code == 200)


def test_asking_often_does_not_tire_the_database(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "KEPT", 60.0)
    client = served.client(None)
    assert client.get("/readyz").status_code == 200
    served.query("alter table holdfast_version rename to gone")
    assert client.get("/readyz").status_code == 200
