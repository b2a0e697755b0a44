"""The pictures of docs/connectors.md, made of some accounts at work. `make screenshots` puts them there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from api.kit import A, B, Served, on, served_app
from browser.conftest import DESK, PHONE, Open
from browser.test_pictures import shoot
from dashboard.accounts import CURSOR, account, add_job, deliver
from holdfast import Holdfast, Settings
from holdfast.apps.connectors import Signal, signals, sync_state
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.service import clock
from holdfast.db.pool import Connection

pytestmark = pytest.mark.browser
MOST = 600_000  # bytes of all pictures together
ERROR = '{"code": "TRANSIENT", "message": "jira answered 503 to GET /ex/jira/11f2/rest/api/3/search"}'
KINDS = ("issue_created", "pr_opened", "code_pushed", "issue_closed", "pr_merged", "release_published")


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    """The connectors on a port; no worker, so that nothing moves while a picture is taken."""
    with served_app(settings, Holdfast(settings).web()) as served:
        yield served


async def some_accounts(conn: Connection, served: Served) -> Link:
    """Accounts in every mood, for two tenants; answers with the one that has most to tell."""
    later = sync_state.moment_text(await clock(conn) + timedelta(minutes=4))
    main = await account(conn, served, name="octo-org", external_id="9919", due=540)
    for ago, kind in (
        ("46 min", "full"),
        ("31 min", "incremental"),
        ("16 min", "incremental"),
        ("1 min", "webhook"),
    ):
        await add_job(conn, main, type=kind, ago=ago)
    for name, provider, due in (("Acme workspace", "slack", 700), ("ana@acme.example", "gmail", 310)):
        await add_job(conn, await account(conn, served, name=name, provider=provider, due=due), ago="6 min")
    jira = await account(conn, served, name="acme.atlassian.net", provider="jira", due=120)
    await add_job(conn, jira, ago="3 h")
    await add_job(conn, jira, ago="12 min", status="failed", attempts=4, error=ERROR)
    cool: dict[str, Any] = {"cursor": CURSOR, "cooldown_until": later}
    drive = await account(conn, served, name="bo@shop.example", provider="google_drive", tenant=B, sync=cool)
    await add_job(conn, drive, ago="20 min")
    await account(conn, served, name="Support chat", provider="zoho_cliq", tenant=B, sync={}, due=30)
    await account(conn, served, name="Team calendar", provider="google_calendar", tenant=B, status="paused")
    await account(conn, served, name="old-org", tenant=B, status="error")
    now = await clock(conn)
    told = [
        Signal(
            kind=kind,
            occurred_at=now - timedelta(minutes=7 * n + 2),
            payload={"repository": "octo-org/harbour", "number": 40 + n, "title": "It leaks at high tide"},
            dedupe_key=f"github:{kind}:{7100 + n}:2026-01-31T1{n}:00:00Z",
        )
        for n, kind in enumerate(KINDS)
    ]
    async with conn.transaction():
        await signals.store(conn, main, told)
    await deliver(conn, main, "72d3162e-cc78-11e3-81ab-4c9367dc0958", done=True)
    await deliver(conn, main, "8d1f8a10-cc78-11e3-9f3e-2b6fdc6d5c11", error="the payload has no repository")
    await deliver(conn, main, "9b7e2c44-cc78-11e3-8d5a-5f0cb0a7d3e2")
    await deliver(conn, None, "a4c0b7f2-cc78-11e3-90cd-7bb1f2d4a6f9", tenant=A)
    return main


def test_pictures_of_connectors_are_taken_and_nothing_sticks_out(
    served: Served, visit: Open, folder: Path
) -> None:
    main = on(served.settings, lambda conn: some_accounts(conn, served))
    one = f"/connectors/connections/{main.id}"
    looks: list[tuple[str, dict[str, Any], list[tuple[str, str, int | None]]]] = [
        (
            "",
            {"viewport": DESK},
            [
                ("connections", "/connectors", None),
                ("connection", one, 1180),
                ("inbox", "/connectors/inbox", 720),
            ],
        ),
        ("dark-", {"viewport": DESK, "color_scheme": "dark"}, [("connections", "/connectors", None)]),
        ("phone-", {"viewport": PHONE}, [("connection", one, 1500)]),
    ]
    bytes_ = 0
    for prefix, options, pages in looks:
        page = visit(**options)
        for name, path, height in pages:
            page.goto(path)
            expect(page.locator("#live-state")).to_have_text("live")
            bytes_ += shoot(page, folder, prefix + name, height=height)
    assert bytes_ < MOST
