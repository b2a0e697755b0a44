"""The pages of connectors in a real browser: syncing, pausing, filtering, replaying; by phone, too."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.sync_api import expect

from api.kit import Served, on, served_app, working
from browser.conftest import DESK, PHONE, Open
from browser.shop import Gates
from browser.test_dashboard import fits
from dashboard.accounts import account, add_job
from holdfast import Holdfast, Settings
from holdfast.apps.connectors import (
    Account,
    Connector,
    Delivery,
    Page,
    Permanent,
    Provider,
    Signal,
    WebhookResult,
    inbox,
)
from holdfast.apps.connectors import app as connectors_app
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.db.pool import Connection
from holdfast.engine.store import Store

pytestmark = pytest.mark.browser
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SIZES = [pytest.param(DESK, id="desk"), pytest.param(PHONE, id="phone")]


def hub(gates: Gates) -> type[Connector]:
    """A GitHub of our own: a sync waits at a gate, and a poisoned webhook fails until it is mended."""

    class Hub(Connector):
        provider = Provider(slug="github", display_name="GitHub", auth_type="oauth2", scopes=("repo",))

        async def sync(self, account: Account, cursor: Any) -> Page:
            await gates.passed(account.external_id)
            told = self._told("issue_created", f"issue {account.external_id}")
            return Page(signals=(told,), next_cursor={"page": (cursor or {"page": 0})["page"] + 1})

        def external_ids(self, headers: Mapping[str, str], payload: Any) -> Sequence[str]:
            return [payload["account"]] if "account" in payload else []

        async def handle_webhook(self, account: Account, delivery: Delivery) -> WebhookResult:
            if delivery.payload.get("poison") and account.display_name != "mended":
                raise Permanent(message="the payload has no repository")
            return WebhookResult(signals=(self._told("code_pushed", delivery.id),))

        def _told(self, kind: str, key: str) -> Signal:
            return Signal(kind=kind, occurred_at=NOON, payload={"what": key}, dedupe_key=key)

    return Hub


def application(settings: Settings, gates: Gates) -> Holdfast:
    return Holdfast(settings, apps=[connectors_app(hub(gates))])


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return dataclasses.replace(settings, sync_tick_seconds=300)


@pytest.fixture
def served(settings: Settings, gates: Gates) -> Iterator[Served]:
    """The connectors on a port, with a worker."""
    with (
        served_app(settings, application(settings, gates).web()) as served,
        working(application(settings, gates), ledgers=["sync_jobs"], concurrency=4),
    ):
        try:
            yield served
        finally:
            gates.open_all()


def make(served: Served, **how: Any) -> Link:
    """A connection that is not due."""
    return on(served.settings, lambda conn: account(conn, served, **{"sync": {}, "due": 3600, **how}))


def send(served: Served, link: Link, id: str, payload: Any, *, matched: bool = True) -> None:
    """A webhook, as the door stores it; a worker drains it at once."""

    async def receive(conn: Connection) -> None:
        await inbox.receive(
            conn,
            Store(SYNC_JOBS),
            provider=link.provider,
            tenant_id=link.tenant_id,
            link=link if matched else None,
            delivery_id=id,
            headers={"x-github-event": "push"},
            payload=payload,
            body_sha256="0" * 64,
            verification="signature",
        )

    on(served.settings, receive)


@pytest.mark.parametrize("size", SIZES)
def test_a_sync_finishes_before_ones_eyes(
    served: Served, gates: Gates, visit: Open, size: dict[str, int]
) -> None:
    make(served, name="Acme & Sons", external_id="acme")
    page = visit("actor", viewport=size)
    page.get_by_role("link", name="Connectors").click()
    expect(page).to_have_title("Connections · Holdfast")
    expect(page.locator("tbody tr")).to_contain_text("new")
    assert fits(page)
    page.locator("a.row-link").click()
    expect(page.locator("#live-state")).to_have_text("live")
    page.evaluate("window.marked = true")
    assert fits(page)
    page.get_by_role("button", name="Sync now").click()
    expect(page.get_by_text("A sync is asked for.")).to_be_visible()
    expect(page.locator("#live-state")).to_have_text("live")
    expect(page.locator("#jobs")).to_contain_text("running")
    page.evaluate("window.marked = true")
    gates.open("acme")
    expect(page.locator("#jobs")).to_contain_text("succeeded")
    expect(page.locator("#heading")).to_contain_text("healthy")
    expect(page.locator("#signals")).to_contain_text("issue_created")
    expect(page.locator("#cursor pre")).to_contain_text('"page": 1')
    assert page.evaluate("window.marked === true"), "the document is the same"
    assert fits(page)


@pytest.mark.parametrize("size", SIZES)
def test_a_connection_is_paused_resumed_and_disconnected_after_a_question(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    link = make(served)
    page = visit("actor", viewport=size)
    page.goto(f"/connectors/connections/{link.id}")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#heading")).to_contain_text("paused")
    expect(page.get_by_role("button", name="Sync now")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#heading")).to_contain_text("new")
    page.get_by_role("link", name="Disconnect…").click()
    expect(page.get_by_role("heading", name="Disconnect the account?")).to_be_visible()
    assert fits(page)
    page.get_by_role("button", name="Disconnect").click()
    expect(page.locator("#heading")).to_contain_text("disconnected")
    assert fits(page)
    assert served.query("select status from connections") == [("revoked",)]


def test_the_cursor_is_edited_and_what_is_typed_survives_a_change(
    served: Served, gates: Gates, visit: Open
) -> None:
    link = make(served, external_id="typed")
    page = visit("actor")
    page.goto(f"/connectors/connections/{link.id}")
    expect(page.locator("#live-state")).to_have_text("live")
    page.get_by_text("Change it").click()
    field = page.get_by_label("Cursor, as JSON")
    field.fill('{"page": ')
    served.client("admin").post(
        f"/api/connectors/connections/{link.id}/sync", headers={"X-Tenant-Id": str(link.tenant_id)}
    )
    gates.open("typed")
    expect(page.locator("#jobs")).to_contain_text("succeeded")
    expect(field).to_have_value('{"page": ')
    field.fill('{"page": 40}')
    page.get_by_role("button", name="Set the cursor").click()
    expect(page.get_by_text("The cursor is set.")).to_be_visible()
    expect(page.locator("#cursor pre")).to_contain_text('"page": 40')
    page.get_by_label("Seconds between two syncs").fill("120")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.locator("#facts")).to_contain_text("2 min")


@pytest.mark.parametrize("size", SIZES)
def test_signals_are_filtered_and_show_their_payload_on_demand(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    link = make(served, name="Acme & Sons")
    page = visit("reader", viewport=size)
    page.goto("/connectors/signals")
    expect(page.locator("#live-state")).to_have_text("live")
    send(served, link, "push-1", {})
    expect(page.locator("#rows")).to_contain_text("code_pushed")  # by itself
    page.get_by_label("Kind").select_option("issue_created")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("No signal fits this filter.")).to_be_visible()
    page.get_by_label("Kind").select_option("code_pushed")
    page.get_by_label("Provider").select_option("github")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("a.row-link")).to_have_count(1)
    expect(page.locator("main")).not_to_contain_text('"what"')
    assert fits(page)
    page.keyboard.press("j")
    expect(page.locator("a.row-link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("pre")).to_contain_text('"what": "push-1"')
    assert fits(page)


@pytest.mark.parametrize("size", SIZES)
def test_webhooks_that_failed_are_replayed_one_and_all(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    link = make(served, name="Acme", external_id="acme")
    page = visit("actor", viewport=size)
    page.goto("/connectors/inbox")
    expect(page.locator("#live-state")).to_have_text("live")
    for name in ("first", "second"):
        send(served, link, name, {"poison": True})
    send(served, link, "lost", {"account": "acme"}, matched=False)
    expect(page.locator(".badge", has_text="failed")).to_have_count(2)
    expect(page.locator(".badge", has_text="unmatched")).to_have_count(1)
    assert fits(page)
    served.query("update connections set display_name = 'mended'")
    page.get_by_role("button", name="Replay first").click()
    expect(page.get_by_text("1 delivery is to be processed once more.")).to_be_visible()
    expect(page.locator(".badge", has_text="processed")).to_have_count(1)
    page.get_by_role("link", name="Replay…").click()
    page.get_by_label("Provider").select_option("github")
    page.get_by_label("Came until").fill("2099-01-31T12:00:00")
    page.get_by_role("button", name="Count them").click()
    expect(page.get_by_role("heading", name="Replay 3 webhooks?")).to_be_visible()
    assert fits(page)
    page.get_by_role("button", name="Replay all of them").click()
    expect(page.get_by_text("3 deliveries are to be processed once more.")).to_be_visible()
    expect(page.locator(".badge", has_text="processed")).to_have_count(3)
    page.locator("a.row-link").first.click()
    expect(page.locator("h1")).to_have_text("Webhook of github")
    expect(page.locator("main")).to_contain_text("x-github-event")
    assert fits(page)


def test_it_all_works_without_scripts(served: Served, visit: Open) -> None:
    link = make(served, name="Acme")
    on(served.settings, lambda conn: add_job(conn, link))
    page = visit("actor", java_script_enabled=False)
    page.goto("/connectors")
    page.locator("a.row-link").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#heading")).to_contain_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#heading")).to_contain_text("healthy")
    expect(page.get_by_role("table", name=re.compile("The last sync jobs"))).to_be_visible()
