"""schemathesis over the description of the API: all that it can think of, and nothing that it finds."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest

from api.kit import A, Served, api_of, served_app
from holdfast import Holdfast, Settings
from holdfast.api import limits
from holdfast.db.settings import ProviderSettings
from schedules.face import ANA, BOB, fail, story
from schedules.face import messages as messages_of
from schedules.recorded import DAY
from system.face import put

SECRET = "only schemathesis and the server know it"
TRIES = 10  # for each operation, in each way

# Addresses lead to ledgers and rows that there are, mostly. What fits one ledger need not fit another: a
# filter by queue, a tenant, a state's name. There, a request that fits the description may be refused.
CONFIGURATION = """
[auth.openapi.bearer]
bearer = "{token}"

[phases.stateful.generation]
max-examples = 10

[dictionaries.ledgers]
values = ["job", "tasks"]

[dictionaries.rows]
values = {rows}

[dictionaries.connections]
values = {connections}

[dictionaries.users]
values = {users}

[dictionaries.strangers]
values = [7]

[dictionaries.dates]
values = {dates}

[dictionaries.captures]
values = {captures}

[dictionaries.messages]
values = {messages}

[dictionaries.system_jobs]
values = {jobs}

[dictionaries.providers]
values = ["github", "zoho-cliq"]

[parameters]
"path.ledger" = {{ dictionary = "ledgers", probability = 0.9 }}
"path.provider" = {{ dictionary = "providers", probability = 0.8 }}
"path.user_id" = {{ dictionary = "users", probability = 0.8 }}
"path.date" = {{ dictionary = "dates", probability = 0.8 }}

[[operations]]
include-path-regex = "/rows/"
parameters = {{ "path.id" = {{ dictionary = "rows", probability = 0.8 }} }}

[[operations]]
include-path-regex = "/api/connectors/connections/"
parameters = {{ "path.id" = {{ dictionary = "connections", probability = 0.8 }} }}

[[operations]]
include-path-regex = "/api/connectors/"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "501"]

[[operations]]
include-path-regex = "/api/schedules/captures/"
parameters = {{ "path.id" = {{ dictionary = "captures", probability = 0.8 }} }}

[[operations]]
include-path-regex = "/api/schedules/notifications/"
parameters = {{ "path.id" = {{ dictionary = "messages", probability = 0.8 }} }}

[[operations]]
include-path-regex = "/api/schedules/users/"
parameters = {{ "path.user_id" = {{ dictionary = "strangers", probability = 1.0 }} }}

[[operations]]
include-path-regex = "/api/schedules/"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409"]

[[operations]]
include-path-regex = "/api/system/jobs/"
parameters = {{ "path.id" = {{ dictionary = "system_jobs", probability = 0.8 }} }}

[[operations]]
include-path-regex = "/api/system/"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409"]

[[operations]]
include-path-regex = "/api/ledgers/.ledger./.+"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409"]
"""

# A stream would never end by itself, a tenant that there is not would hide all rows, and a body made of what
# no ledger has would be refused before anything happens. What is meant to be wrong stays as it is.
HOOKS = f"""
import schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path.endswith(("/wait", "/stream")):
        seconds = (case.query or {{}}).get("seconds", 30)
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 1 <= seconds:
            case.query = {{**(case.query or {{}}), "seconds": 0.05 if seconds <= 60 else seconds}}
    job = (case.path_parameters or {{}}).get("ledger") == "job"
    if case.headers and case.headers.pop("X-Tenant-Id", None) is not None and job:
        case.headers["X-Tenant-Id"] = {A!r}
    if case.path.startswith("/api/connectors"):
        case.headers = {{**(case.headers or {{}}), "X-Tenant-Id": {A!r}}}
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive or not isinstance(case.body, dict):
        return
    for body in (case.body, case.body.get("filter"), *(case.body.get("items") or ())):
        if isinstance(body, dict) and case.path.startswith("/api/ledgers"):
            body.pop("extras", None)
            for name in () if job else ("queue", "tenant", "backoff", "code"):
                body.pop(name, None)
            if job and body.get("tenant") or "/rows" in case.path and job and "kind" in body:
                body["tenant"] = {A!r}
            if body.get("delay") is not None:
                body.pop("run_at", None)
"""


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Served]:
    """A server that lets wrong credentials be tried often, and an admin whose token cannot be revoked."""
    monkeypatch.setattr(limits, "FAILURES", 100_000)
    github = ProviderSettings(client_id="x", client_secret="y", webhook_secret="a secret of webhooks")
    uris = ("https://app.example/callback",)
    settings = dataclasses.replace(
        settings,
        home=tmp_path / "home",
        jwt_secret=SECRET,
        providers={"github": github},
        oauth_redirect_uris=uris,
    )
    with served_app(settings, api_of(Holdfast(settings))) as served:
        yield served


def test_schemathesis_finds_nothing(served: Served, tmp_path: Path) -> None:
    rows = [served.enqueue("job", kind="x", tenant=A) for _ in range(2)]
    rows += [served.bury(served.enqueue("job")), served.enqueue(), served.enqueue()]
    connections = [str(uuid.uuid4()) for _ in range(4)]
    served.query("insert into tenants (id, name) values (%s, 'A')", A)
    for one in connections:
        served.query(
            "insert into connections (id, tenant_id, provider_slug, external_id)"
            " values (%s, %s, 'zoho_cliq', %s)",
            one,
            A,
            one,
        )
    told = story(served)
    messages = [fail(served, one) for one in messages_of(served)]
    claims = {"sub": "schemathesis", "scope": "admin", "operator": True, "exp": int(time.time()) + 3600}
    written = CONFIGURATION.format(
        rows=json.dumps(rows),
        connections=json.dumps(connections),
        users=json.dumps([ANA, BOB]),
        dates=json.dumps([str(DAY)]),
        captures=json.dumps([str(one) for one in (told.first, told.second, told.third)]),
        messages=json.dumps(messages),
        jobs=json.dumps([put(served, status=status) for status in ("queued", "running", "failed")]),
        token=jwt.encode(claims, SECRET, "HS256"),
    )
    (tmp_path / "schemathesis.toml").write_text(written)
    (tmp_path / "hooks.py").write_text(HOOKS)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{served.url}/openapi.json"]
    command += ["--checks", "all", "--max-examples", str(TRIES), "--seed", "1", "--continue-on-failure"]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    paths = served.client(None).get("/openapi.json").json()["paths"]
    assert f"Tested: {sum(map(len, paths.values()))}\n" in done.stdout
