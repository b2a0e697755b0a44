"""docs/connectors.md says what the connectors do: its example runs, and its tables are complete."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from api.kit import serving
from connectors.servers.base import Asked, Reply, Server, route
from holdfast import Settings
from holdfast.apps.connectors import retain
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.normal import KINDS
from holdfast.apps.connectors.pages import views
from test_docs import blocks

PAGE = Path(__file__).parent.parent / "docs" / "connectors.md"
TOKEN, SECRET = "harbour-token-4711", "a secret of the harbour"


def ticket(number: int, *, closed: bool = False, minute: int = 0) -> dict[str, Any]:
    return {"id": number, "closed": closed, "changed": f"2026-01-31T12:{minute:02}:00+00:00"}


class Tickets(Server):
    """The harbour master's API: two tickets on the first page, one on the second."""

    @route("GET", "/tickets")
    def tickets(self, request: Asked) -> Reply:
        if request.token != TOKEN:
            return Reply({"error": "who are you?"}, 401)
        every = [ticket(1, minute=1), ticket(2, minute=2), ticket(1, closed=True, minute=3)]
        new = [one for one in every if one["changed"] > request.query.get("since", "")]
        return Reply({"tickets": new[:2], "more": len(new) > 2})


class Shell:
    """Commands as the guide writes them, in the folder where its program lies."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self.settings = folder, settings

    def __call__(self, *command: str, feed: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.cli", *command],
            env={**os.environ, **self.settings},
            cwd=self.folder,
            input=feed,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout + done.stderr
        return done.stdout.strip()


def test_a_connector_of_ones_own_polls_and_takes_webhooks(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C-35, C-39: fifty lines and a loopback server; what came by poll is not told again by webhook."""
    (code,) = (one for one in blocks(PAGE, "python") if one.startswith("# harbour.py"))
    assert len([line for line in code.splitlines() if line.strip()]) <= 50
    (tmp_path / "harbour.py").write_text(code)
    with Tickets() as server:
        settings = {
            "HOLDFAST_DATABASE_URL": database_url,
            "HOLDFAST_HOME": str(tmp_path),
            "HOLDFAST_PROFILE": "test",
            "HOLDFAST_POLL_INTERVAL": "50ms",
            "HOLDFAST_CONNECTOR_HARBOUR_API_URL": server.url,
            "HOLDFAST_WEBHOOK_HARBOUR_SECRET": SECRET,
            "HOLDFAST_APP": "harbour:app",
        }
        holdfast = Shell(tmp_path, **settings)
        tenant = holdfast("connect", "tenant", "add", "Ada & Co")
        account = ("--tenant", tenant, "--external-id", "quay-7", "--token-from-stdin")
        link = holdfast("connect", "add", "harbour", *account, feed=f"{TOKEN}\n")
        job = holdfast("connect", "sync", link)
        assert job in holdfast("list", "sync_jobs")
        holdfast("worker", "--app", "harbour:app", "--ledger", "sync_jobs", "--until-idle")
        told = json.loads(holdfast("connect", "signals", "--payload", "--json"))["signals"]
        kinds = [(one["kind"], one["payload"]["id"]) for one in told]
        assert kinds == [("issue_closed", 1), ("issue_updated", 2), ("issue_updated", 1)]
        assert json.loads(holdfast("connect", "cursor", link)) == ticket(1, minute=3)["changed"]
        assert json.loads(holdfast("connect", "show", link, "--json"))["health"]["failures"] == 0

        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        secret = holdfast("connect", "webhook-secret", "harbour", "--tenant", tenant)
        with serving(_web(tmp_path, monkeypatch)) as url:
            address = f"{url}/api/connectors/webhooks/harbour/{tenant}"
            for one in (ticket(2, minute=2), ticket(2, closed=True, minute=9)):
                assert _send(address, secret, {"quay": "quay-7", "ticket": one}) == 202
            assert _send(address, "another secret", {"quay": "quay-7", "ticket": ticket(3)}) == 401
        holdfast("worker", "--app", "harbour:app", "--ledger", "sync_jobs", "--until-idle")
        told = json.loads(holdfast("connect", "signals", "--json"))["signals"]
        assert [one["dedupe_key"] for one in told][:2] == [
            "harbour:issue_closed:2:2026-01-31T12:09:00+00:00",
            "harbour:issue_closed:1:2026-01-31T12:03:00+00:00",
        ]
        assert len(told) == 4
        states = json.loads(holdfast("connect", "inbox", "--json"))["deliveries"]
        assert [one["status"] for one in states] == ["processed", "processed"]


def _web(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    import importlib

    found = importlib.import_module("harbour")
    monkeypatch.delitem(sys.modules, "harbour")
    return found.app.web()


def _send(address: str, secret: str, payload: Any) -> int:
    """A webhook as Standard Webhooks has it."""
    body, stamp = json.dumps(payload).encode(), str(int(time.time()))
    name = hashlib.sha256(body).hexdigest()
    content = f"{name}.{stamp}.".encode() + body
    signature = base64.b64encode(hmac.new(secret.encode(), content, hashlib.sha256).digest()).decode()
    headers = {"webhook-id": name, "webhook-timestamp": stamp, "webhook-signature": f"v1,{signature}"}
    return httpx.post(address, content=body, headers=headers).status_code


def test_the_query_of_the_guide_runs(database_url: str) -> None:
    (query,) = blocks(PAGE, "sql")
    with psycopg.connect(database_url) as conn:
        assert conn.execute(query.encode()).fetchall() == []


def test_a_worker_without_handlers_of_its_own_serves_connectors(database_url: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"^   ```python\n(.*?)^   ```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "sync.py").write_text(re.sub(r"^   ", "", code, flags=re.MULTILINE))
    holdfast = Shell(tmp_path, HOLDFAST_DATABASE_URL=database_url, HOLDFAST_HOME=str(tmp_path))
    holdfast("worker", "--app", "sync:app", "--ledger", "sync_jobs", "--until-idle")


def test_every_provider_kind_and_mood_is_in_a_table() -> None:
    page = PAGE.read_text()
    for provider in PROVIDERS:
        assert re.search(rf"^\| `{provider.slug}` \|", page, re.MULTILINE), provider.slug
    named = set(re.findall(r"`(\w+)`", page.split("| about | kinds |")[1].split("\n\n")[0]))
    assert named == KINDS
    moods = [views.HEALTHY, views.NEW, views.FAILING, views.COOLING, *views.RESTING.values()]
    for mood in moods:
        assert re.search(rf"^\| {mood.word} \| \S", page, re.MULTILINE), mood.word


def test_the_times_that_rows_are_kept_are_the_defaults_of_the_settings() -> None:
    table = PAGE.read_text().split("| rows | kept for | setting |")[1].split("\n\n")[0]
    listed = {name: int(days) for days, name in re.findall(r"\| (\d+) days? \| `HOLDFAST_(\w+)` \|", table)}
    kept = ("retain_sync_jobs_days", "retain_deliveries_days", "retain_signals_days")
    assert listed == {name.upper(): getattr(Settings, name) for name in kept}
    assert f"| {retain.STATES_DAYS} day |" in table
