"""Every route as everybody: no one, with a wrong token, as a reader, an actor, an admin, and as tenants.

The table is compared with the routes that there are, so that a new one without an expectation fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from api.kit import A, B, Served, api_of, served_app
from holdfast import Holdfast, Settings
from holdfast.api import limits

NOBODY = ("nobody", "garbage", "half", "expired", "revoked")
OPERATORS = ("reader", "actor", "admin")
EVERYBODY = (*NOBODY, *OPERATORS, "tenant reader", "tenant", "other tenant")


@dataclass(frozen=True)
class Access:
    """Who gets what. Whoever is not named gets 403, and nobody in particular 401."""

    done: tuple[str, ...]
    missing: tuple[str, ...] = ()  # for whom it is not there
    status: int = 200

    def expected(self, who: str) -> int:
        if who in self.done:
            return self.status
        if who in NOBODY:
            return 401
        return 404 if who in self.missing else 403


OPEN = Access(EVERYBODY)
READ = Access((*OPERATORS, "tenant reader", "tenant", "other tenant"))
READ_ROW = Access((*OPERATORS, "tenant reader", "tenant"), missing=("other tenant",))
READ_PLAIN = Access(OPERATORS, missing=("tenant reader", "tenant", "other tenant"))
ACT = Access(("actor", "admin", "tenant", "other tenant"))
ACT_ROW = Access(("actor", "admin", "tenant"), missing=("other tenant",))
OPERATE = Access(OPERATORS)
OPERATE_ACT = Access(("actor", "admin"))
ADMIN = Access(("admin",))


@dataclass(frozen=True)
class Try:
    """A request for a route, and who may make it."""

    access: Access
    path: Callable[[Served], str] | str
    body: Any = None
    params: dict[str, Any] | None = None


def row(rest: str = "", ledger: str = "job") -> Callable[[Served], str]:
    """The address of a row of tenant A that was just made."""
    return lambda served: f"/api/ledgers/{ledger}/rows/{served.enqueue(ledger)}{rest}"


def dead_row(served: Served) -> str:
    """The address of a row of tenant A that can be requeued."""
    key = served.bury(served.enqueue("job"))
    return f"/api/ledgers/job/rows/{key}/requeue"


def new_token(served: Served) -> str:
    made = served.client("admin").post("/api/tokens", json={"name": "short-lived"})
    return f"/api/tokens/{made.json()['id']}"


MADE = 201
FILTER = {"filter": {"kind": "nothing-like-it"}}
SHORT = {"seconds": 0.05}
JOB = "/api/ledgers/{ledger}"

TRIES: dict[tuple[str, str], list[Try]] = {
    ("GET", "/healthz"): [Try(OPEN, "/healthz")],
    ("HEAD", "/healthz"): [Try(OPEN, "/healthz")],
    ("GET", "/readyz"): [Try(OPEN, "/readyz")],
    ("HEAD", "/readyz"): [Try(OPEN, "/readyz")],
    ("GET", "/openapi.json"): [Try(OPEN, "/openapi.json")],
    ("HEAD", "/openapi.json"): [Try(OPEN, "/openapi.json")],
    ("GET", "/metrics"): [Try(OPERATE, "/metrics")],
    ("GET", "/api/me"): [Try(READ, "/api/me")],
    ("GET", "/api/overview"): [Try(READ, "/api/overview")],
    ("GET", "/api/workers"): [Try(OPERATE, "/api/workers")],
    ("GET", "/api/audit"): [Try(OPERATE, "/api/audit")],
    ("GET", "/api/tokens"): [Try(ADMIN, "/api/tokens")],
    ("POST", "/api/tokens"): [Try(Access(("admin",), status=MADE), "/api/tokens", {"name": "x"})],
    ("DELETE", "/api/tokens/{id}"): [Try(ADMIN, new_token)],
    ("GET", "/api/ledgers"): [Try(READ, "/api/ledgers")],
    ("GET", JOB): [Try(READ, "/api/ledgers/job"), Try(READ_PLAIN, "/api/ledgers/tasks")],
    ("GET", f"{JOB}/stats"): [
        Try(READ, "/api/ledgers/job/stats"),
        Try(READ_PLAIN, "/api/ledgers/tasks/stats"),
    ],
    ("PUT", f"{JOB}/pause"): [
        Try(OPERATE_ACT, "/api/ledgers/job/pause"),
        Try(OPERATE_ACT, "/api/ledgers/tasks/pause"),
    ],
    ("DELETE", f"{JOB}/pause"): [Try(OPERATE_ACT, "/api/ledgers/job/pause")],
    ("GET", f"{JOB}/rows"): [
        Try(READ, "/api/ledgers/job/rows"),
        Try(READ_PLAIN, "/api/ledgers/tasks/rows"),
        Try(READ_ROW, "/api/ledgers/job/rows", params={"tenant": A}),
    ],
    ("POST", f"{JOB}/rows"): [
        Try(
            Access(("actor", "admin", "tenant"), status=MADE),
            "/api/ledgers/job/rows",
            {"kind": "x", "tenant": A},
        ),
        Try(
            Access(("actor", "admin", "other tenant"), status=MADE),
            "/api/ledgers/job/rows",
            {"kind": "x", "tenant": B},
        ),
        Try(
            Access(("actor", "admin"), missing=("tenant", "other tenant"), status=MADE),
            "/api/ledgers/tasks/rows",
            {"kind": "x"},
        ),
    ],
    ("POST", f"{JOB}/rows/batch"): [
        Try(
            Access(("actor", "admin", "tenant"), status=MADE),
            "/api/ledgers/job/rows/batch",
            {"items": [{"kind": "x", "tenant": A}]},
        )
    ],
    ("GET", f"{JOB}/rows/{{id}}"): [Try(READ_ROW, row()), Try(READ_PLAIN, row(ledger="tasks"))],
    ("GET", f"{JOB}/rows/{{id}}/timeline"): [Try(READ_ROW, row("/timeline"))],
    ("GET", f"{JOB}/rows/{{id}}/explain"): [Try(READ_ROW, row("/explain"))],
    ("GET", f"{JOB}/rows/{{id}}/wait"): [Try(READ_ROW, row("/wait"), params=SHORT)],
    ("GET", f"{JOB}/stream"): [
        Try(READ, "/api/ledgers/job/stream", params=SHORT),
        Try(READ_PLAIN, "/api/ledgers/tasks/stream", params=SHORT),
    ],
    ("POST", f"{JOB}/rows/{{id}}/cancel"): [Try(ACT_ROW, row("/cancel"))],
    ("POST", f"{JOB}/rows/{{id}}/requeue"): [Try(ACT_ROW, dead_row)],
    ("POST", f"{JOB}/cancel"): [Try(ACT, "/api/ledgers/job/cancel", FILTER)],
    ("POST", f"{JOB}/requeue"): [Try(ACT, "/api/ledgers/job/requeue", FILTER)],
}


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that lets wrong credentials be tried often."""
    monkeypatch.setattr(limits, "FAILURES", 100_000)
    with served_app(settings, api_of(Holdfast(settings))) as served:
        yield served


def client(served: Served, who: str) -> httpx.Client:
    match who:
        case "nobody":
            return served.client(None)
        case "garbage":
            return served.client(None, Authorization="Bearer hf_xxxxxxxx_" + "x" * 43)
        case "half":  # an id that there is, with the secret of another
            text = served.tokens["admin"][:12] + served.tokens["actor"][12:]
            return served.client(None, Authorization=f"Bearer {text}")
        case _:
            return served.client(who)


def test_every_route_has_an_expectation(settings: Settings) -> None:
    app = api_of(Holdfast(settings))
    known = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in app.state.routes.every
        for method in route.methods
    }
    assert known == set(TRIES)
    described = {(method.upper(), path) for path, one in app.openapi()["paths"].items() for method in one}
    assert described == {place for place in known if place[1] != "/openapi.json" and place[0] != "HEAD"}


def test_every_route_as_everybody(served: Served) -> None:
    wrong: list[str] = []
    for who in EVERYBODY:
        with client(served, who) as here:
            for (method, route), tries in TRIES.items():
                for one in tries:
                    path = one.path if isinstance(one.path, str) else one.path(served)
                    response = here.request(method, path, json=one.body, params=one.params)
                    expected = one.access.expected(who)
                    if who == "other tenant" and one.params == {"tenant": A}:
                        expected = 403  # a filter that names another
                    if response.status_code != expected:
                        wrong.append(f"{who}: {method} {path}: {response.status_code}, not {expected}")
                    if response.status_code >= 400 and method != "HEAD":
                        assert response.headers["content-type"] == "application/problem+json", route
                    if response.status_code == 401:
                        assert response.headers["www-authenticate"].startswith("Bearer"), route
    assert wrong == []


def test_an_operator_within_a_tenant_is_like_one_of_it(served: Served) -> None:
    mine, theirs = served.enqueue("job"), served.enqueue("job", tenant=B)
    operator = served.client("admin", **{"X-Tenant-Id": A})
    assert operator.get("/api/me").json()["tenant"] == A
    assert operator.get(f"/api/ledgers/job/rows/{mine}").status_code == 200
    assert operator.get(f"/api/ledgers/job/rows/{theirs}").status_code == 404
    assert [one["id"] for one in operator.get("/api/ledgers/job/rows").json()["rows"]] == [mine]
    assert [one["name"] for one in operator.get("/api/ledgers").json()["ledgers"]] == ["job"]
    assert operator.get("/api/ledgers/tasks").status_code == 404
    assert operator.put("/api/ledgers/job/pause").status_code == 403
    made = operator.post("/api/ledgers/job/rows", json={"kind": "x"}).json()["id"]
    assert served.client("admin").get(f"/api/ledgers/job/rows/{made}").json()["tenant"] == A


def test_a_tenant_cannot_choose_another(served: Served) -> None:
    for name in (B, "nobody"):
        assert served.client("tenant", **{"X-Tenant-Id": name}).get("/api/me").status_code == 403
    assert served.client("tenant", **{"X-Tenant-Id": A}).get("/api/me").status_code == 200


def test_a_tenant_that_cannot_be_is_a_clear_refusal(served: Served) -> None:
    for name in ("not a uuid", "", "x" * 300, "%00"):
        response = served.client("admin", **{"X-Tenant-Id": name}).get("/api/ledgers/job/rows")
        assert response.status_code == 400, name
        assert response.json()["code"] == "INVALID_INPUT"


def test_other_credentials_are_nobodys(served: Served) -> None:
    for header in ("", "Basic YTpi", "Bearer", "bearer x", "Bearer a.b.c", "Bearer hf_", "x" * 5000):
        response = served.client(None, Authorization=header).get("/api/me")
        assert response.status_code == 401, header
