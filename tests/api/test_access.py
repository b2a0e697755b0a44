"""Every route as everybody: no one, with a wrong token, as a reader, an actor, an admin, and as tenants.

The table is compared with the routes that there are, so that a new one without an expectation fails.
"""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date as calendar
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.kit import A, B, Served, api_of, served_app
from holdfast import Holdfast, Settings
from holdfast.api import limits
from holdfast.db.settings import ProviderSettings

NOBODY = ("nobody", "garbage", "half", "expired", "revoked")
OPERATORS = ("reader", "actor", "admin")
EVERYBODY = (*NOBODY, *OPERATORS, "tenant reader", "tenant", "other tenant")


@dataclass(frozen=True)
class Access:
    """Who gets what. Whoever is not named gets 403, and nobody in particular 401."""

    done: tuple[str, ...]
    missing: tuple[str, ...] = ()  # for whom it is not there
    status: int = 200
    refused: int = 403

    def expected(self, who: str) -> int:
        if who in self.done:
            return self.status
        if who in NOBODY:
            return 401
        return 404 if who in self.missing else self.refused


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


def connection(rest: str = "") -> Callable[[Served], str]:
    """The address of a connection of tenant A that was just made."""

    def make(served: Served) -> str:
        made = uuid.uuid4()
        served.query(
            "insert into connections (id, tenant_id, provider_slug, external_id)"
            " values (%s, %s, 'github', %s)",
            made,
            A,
            str(made),
        )
        return f"/api/connectors/connections/{made}{rest}"

    return make


def of_connection(table: str) -> Callable[[Served], str]:
    """The address of a job, a signal or a delivery of tenant A that was just made."""
    columns = {
        "jobs": ("sync_jobs", "id, job_type", "gen_random_uuid(), 'full'"),
        "signals": ("signals", "id, kind, occurred_at, payload", "gen_random_uuid(), 'x', now(), '{}'"),
    }

    def make(served: Served) -> str:
        link = connection()(served).rpartition("/")[2]
        name, fields, values = columns[table]
        ((made,),) = served.query(
            f"insert into {name} (tenant_id, provider_slug, connection_id, {fields})"
            f" values (%s, 'github', %s, {values}) returning id",
            A,
            link,
        )
        return f"/api/connectors/{table}/{made}"

    return make


def delivery(served: Served) -> str:
    """The address of a webhook for tenant A that has just come."""
    made = str(uuid.uuid4())
    served.query(
        "insert into webhook_delivery (provider_slug, tenant_id, delivery_id, body_sha256, verification)"
        " values ('github', %s, %s, '', 'operator')",
        A,
        made,
    )
    return f"/api/connectors/deliveries/github/{made}"


def new_connection(served: Served) -> str:
    served.query("delete from connections where provider_slug = 'zoho_cliq'")
    return "/api/connectors/connections"


def capture(served: Served) -> str:
    """The address of a session that has just come. No tenant here is its user, whose tenants are numbers."""
    ((made,),) = served.query(
        "insert into schedule_ingest.capture_session (user_id) values (42) returning id"
    )
    return f"/api/schedules/captures/{made}"


NEW_YEAR = calendar(2030, 1, 1)


def day(rest: str = "") -> Callable[[Served], str]:
    """The address of a day of which two versions were just kept."""

    def make(served: Served) -> str:
        ((known,),) = served.query("select count(*) from schedule_ingest.day_schedule")
        date = str(NEW_YEAR + timedelta(days=known))
        for version in (1, 2):
            session = capture(served).rpartition("/")[2]
            taken = "update schedule_ingest.capture_session set state = 'processing' where id = %s"
            served.query(taken, session)
            payload = f'{{"schedule_date": "{date}", "entries": []}}'
            served.query(
                "insert into schedule_ingest.schedule_version values"
                " (42, %s, %s, %s, %s::text::jsonb, %s::text)",
                *(date, version, session, payload, str(version)),
            )
        return f"/api/schedules/days/42/{date}{rest}"

    return make


def message(rest: str = "") -> Callable[[Served], str]:
    """The address of a message that could not be sent."""

    def make(served: Served) -> str:
        name = uuid.uuid4().hex
        served.query(
            "insert into schedule_ingest.schedule_notification (notification_id, user_id, schedule_date,"
            " source_session_id, status, notification_type, message, event_ids)"
            " values (%s, 42, '2030-01-31', gen_random_uuid(), 'failed', 'event', 'x', '[]')",
            name,
        )
        return f"/api/schedules/notifications/{name}{rest}"

    return make


def system_job(rest: str = "", *, ended: bool = False) -> Callable[[Served], str]:
    """The address of a system job that was just made."""

    def path(served: Served) -> str:
        made, end = f"FL-{secrets.token_hex(4)}", ("failed", 1) if ended else ("queued", None)
        served.query(
            "insert into system.jobs (id, job_type, parameters, status, finished_at)"
            " values (%s, 'flush', '{\"ledger\": \"tasks\"}', %s, %s)",
            made,
            *end,
        )
        return f"/api/system/jobs/{made}{rest}"

    return path


MADE = 201
ASKED = 202
FILTER = {"filter": {"kind": "nothing-like-it"}}
SHORT = {"seconds": 0.05}
JOB = "/api/ledgers/{ledger}"
CONNECTORS = "/api/connectors"
SCHEDULES = "/api/schedules"
SYSTEM = "/api/system"
DAY = f"{SCHEDULES}/days/{{user_id}}/{{date}}"
NO_USERS = ("tenant reader", "tenant", "other tenant")
READ_USER = Access(OPERATORS, missing=NO_USERS)
ACT_USER = Access(("actor", "admin"), missing=("tenant", "other tenant"))

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
    ("GET", f"{CONNECTORS}/providers"): [Try(OPEN, f"{CONNECTORS}/providers")],
    ("GET", f"{CONNECTORS}/callback/{{provider}}"): [
        Try(Access(EVERYBODY, status=400), f"{CONNECTORS}/callback/github")  # without a state
    ],
    ("POST", f"{CONNECTORS}/webhooks/{{provider}}/{{tenant_id}}"): [
        Try(Access(("actor", "admin"), status=ASKED, refused=401), f"{CONNECTORS}/webhooks/github/{A}", {})
    ],
    ("POST", f"{CONNECTORS}/webhooks/{{provider}}"): [
        Try(Access(("actor", "admin"), status=ASKED), f"{CONNECTORS}/webhooks/github", {})
    ],
    ("GET", f"{CONNECTORS}/webhook-secrets/{{provider}}"): [Try(ACT, f"{CONNECTORS}/webhook-secrets/github")],
    ("GET", f"{CONNECTORS}/tenants"): [Try(OPERATE, f"{CONNECTORS}/tenants")],
    ("POST", f"{CONNECTORS}/tenants"): [
        Try(Access(("actor", "admin"), status=MADE), f"{CONNECTORS}/tenants", {"name": "x"})
    ],
    ("GET", f"{CONNECTORS}/tenants/{{id}}"): [Try(READ_ROW, f"{CONNECTORS}/tenants/{A}")],
    ("GET", f"{CONNECTORS}/connections"): [
        Try(READ, f"{CONNECTORS}/connections"),
        Try(OPERATE, f"{CONNECTORS}/connections", params={"all_tenants": "true"}),
    ],
    ("POST", f"{CONNECTORS}/connections"): [
        Try(
            Access(("actor", "admin", "tenant", "other tenant"), status=MADE),
            new_connection,
            {"provider": "zoho_cliq", "external_id": "x"},
        )
    ],
    ("GET", f"{CONNECTORS}/connections/{{id}}"): [Try(READ_ROW, connection())],
    ("PATCH", f"{CONNECTORS}/connections/{{id}}"): [Try(ACT_ROW, connection(), {"interval_seconds": 900})],
    ("DELETE", f"{CONNECTORS}/connections/{{id}}"): [
        Try(Access(("actor", "admin", "tenant"), missing=("other tenant",), status=204), connection())
    ],
    ("GET", f"{CONNECTORS}/connections/{{id}}/cursor"): [Try(READ_ROW, connection("/cursor"))],
    ("PUT", f"{CONNECTORS}/connections/{{id}}/cursor"): [Try(ACT_ROW, connection("/cursor"), {"cursor": 1})],
    **{
        ("POST", f"{CONNECTORS}/connections/{{id}}/{verb}"): [Try(ACT_ROW, connection(f"/{verb}"))]
        for verb in ("reset-cursor", "pause", "resume", "disconnect")
    },
    **{
        ("POST", f"{CONNECTORS}/connections/{{id}}/{verb}"): [
            Try(
                Access(("actor", "admin", "tenant"), missing=("other tenant",), status=ASKED),
                connection(f"/{verb}"),
            )
        ]
        for verb in ("sync", "full-sync")
    },
    ("GET", f"{CONNECTORS}/jobs"): [Try(READ, f"{CONNECTORS}/jobs")],
    ("GET", f"{CONNECTORS}/jobs/{{id}}"): [Try(READ_ROW, of_connection("jobs"))],
    ("GET", f"{CONNECTORS}/signals"): [Try(READ, f"{CONNECTORS}/signals")],
    ("GET", f"{CONNECTORS}/signals/{{id}}"): [Try(READ_ROW, of_connection("signals"))],
    ("GET", f"{CONNECTORS}/deliveries"): [Try(READ, f"{CONNECTORS}/deliveries")],
    ("GET", f"{CONNECTORS}/deliveries/{{provider}}/{{id}}"): [Try(READ_ROW, delivery)],
    ("POST", f"{CONNECTORS}/deliveries/replay"): [
        Try(
            ACT,
            f"{CONNECTORS}/deliveries/replay",
            {"provider": "github", "received_after": "2030-01-01T00:00:00Z"},
        )
    ],
    ("POST", f"{CONNECTORS}/connect/{{provider}}"): [Try(ACT, f"{CONNECTORS}/connect/github")],
    ("POST", f"{SCHEDULES}/captures"): [
        Try(replace(ACT_USER, status=MADE), f"{SCHEDULES}/captures", {"user_id": 42})
    ],
    ("GET", f"{SCHEDULES}/captures/{{id}}"): [Try(READ_USER, capture)],
    ("GET", f"{SCHEDULES}/days"): [Try(READ_USER, f"{SCHEDULES}/days")],
    ("GET", DAY): [Try(READ_USER, day())],
    ("GET", f"{DAY}/history"): [Try(READ_USER, day("/history"))],
    ("GET", f"{DAY}/versions/{{one}}/compare/{{other}}"): [Try(READ_USER, day("/versions/1/compare/2"))],
    ("GET", f"{DAY}/verify"): [Try(READ_USER, day("/verify"))],
    ("POST", f"{DAY}/rebuild"): [Try(ACT_USER, day("/rebuild"))],
    ("GET", f"{SCHEDULES}/notifications/{{id}}"): [Try(READ_USER, message())],
    ("POST", f"{SCHEDULES}/notifications/{{id}}/resend"): [Try(ACT_USER, message("/resend"))],
    ("DELETE", f"{SCHEDULES}/users/{{user_id}}"): [Try(ADMIN, f"{SCHEDULES}/users/42")],
    ("GET", f"{SYSTEM}/types"): [Try(OPERATE, f"{SYSTEM}/types")],
    ("GET", f"{SYSTEM}/archive"): [Try(OPERATE, f"{SYSTEM}/archive")],
    ("GET", f"{SYSTEM}/backups"): [Try(OPERATE, f"{SYSTEM}/backups")],
    ("POST", f"{SYSTEM}/sql"): [Try(ADMIN, f"{SYSTEM}/sql", {"statement": "show jobs"})],
    ("GET", f"{SYSTEM}/jobs"): [Try(OPERATE, f"{SYSTEM}/jobs")],
    ("POST", f"{SYSTEM}/jobs"): [
        Try(
            replace(OPERATE_ACT, status=MADE),
            f"{SYSTEM}/jobs",
            {"type": "flush", "parameters": {"ledger": "tasks"}},
        ),
        Try(  # what is gone for good
            replace(ADMIN, status=MADE),
            f"{SYSTEM}/jobs",
            {"type": "retention", "parameters": {"ledger": "tasks", "retention_hours": 1}},
        ),
    ],
    ("GET", f"{SYSTEM}/jobs/{{id}}"): [Try(OPERATE, system_job())],
    ("GET", f"{SYSTEM}/jobs/{{id}}/logs"): [Try(OPERATE, system_job("/logs"))],
    ("GET", f"{SYSTEM}/jobs/{{id}}/logs/stream"): [
        Try(OPERATE, system_job("/logs/stream", ended=True), params=SHORT)
    ],
    ("POST", f"{SYSTEM}/jobs/{{id}}/cancel"): [Try(OPERATE_ACT, system_job("/cancel"))],
    ("POST", f"{SYSTEM}/jobs/{{id}}/retry"): [
        Try(replace(OPERATE_ACT, status=MADE), system_job("/retry", ended=True))
    ],
}


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """A server that lets wrong credentials be tried often, and knows both tenants."""
    monkeypatch.setattr(limits, "FAILURES", 100_000)
    github = ProviderSettings(client_id="x", client_secret="y", webhook_secret="a secret of webhooks")
    uris = ("https://app.example/callback",)
    settings = replace(settings, providers={"github": github}, oauth_redirect_uris=uris, home=tmp_path)
    with served_app(settings, api_of(Holdfast(settings))) as served:
        served.query("insert into tenants (id, name) values (%s, 'A'), (%s, 'B')", A, B)
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
                    within = {"X-Tenant-Id": A} if who in OPERATORS and path.startswith(CONNECTORS) else None
                    response = here.request(method, path, json=one.body, params=one.params, headers=within)
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
    assert [one["name"] for one in operator.get("/api/ledgers").json()["ledgers"]] == ["job", "sync_jobs"]
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
