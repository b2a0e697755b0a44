"""System jobs in a real browser: one is started, its lines come while one looks, and it is killed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from api.kit import Served, served_app, working
from browser.conftest import DESK, PHONE, Open
from browser.test_dashboard import PRESSED, SMALL, STICKING, fits
from holdfast import Settings
from holdfast.api.auth import COOKIE
from system.face import application, put, tell
from system.kit import fitted

pytestmark = pytest.mark.browser
SIZES = [pytest.param(DESK, id="desk"), pytest.param(PHONE, id="phone")]


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    return fitted(settings, tmp_path)


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    """The application on a port, with a worker of system jobs."""
    with (
        served_app(settings, application(settings).web()) as served,
        working(application(settings), ledgers=["system_jobs"], queues=["default"]),
    ):
        yield served


@pytest.mark.parametrize("size", SIZES)
def test_a_job_is_started_by_its_form_and_its_end_is_seen(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    """Y-38, by a person who looks: the worker's lines come without a reload."""
    page = visit("actor", viewport=size)
    page.goto("/system")
    expect(page.locator("#rows")).to_contain_text("No job yet.")
    page.get_by_role("link", name="Start a job").click()
    assert fits(page)
    page.get_by_role("link", name="Compact").click()
    page.get_by_label("Ledger").select_option("tasks")
    page.get_by_label("Target file size mb").fill("64")
    page.get_by_role("button", name="Compact").click()
    expect(page.get_by_text("The job is made.")).to_be_visible()
    expect(page.locator("#heading")).to_contain_text("completed")
    expect(page.locator("#lines")).to_contain_text("queued by token:actor")
    expect(page.locator("#lines")).to_contain_text("completed")
    assert fits(page)
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("This is a new job, like CO-")).to_be_visible()
    expect(page.locator("#heading")).to_contain_text("completed")


def test_what_is_wrong_is_shown_beside_its_field_and_what_was_typed_stays(
    served: Served, browser: Browser
) -> None:
    """The page is a refusal, of which the browser itself complains: so this one has a window of its own."""
    with browser.new_context(base_url=served.url, viewport=PHONE) as context:
        context.add_cookies([{"name": COOKIE, "value": served.session("actor"), "url": served.url}])
        page = context.new_page()
        page.goto("/system/new/compact")
        page.get_by_label("Ledger").select_option("tasks")
        page.get_by_label("Target file size mb").fill("-1")
        page.get_by_role("button", name="Compact").click()
        expect(page.locator("#field-target_file_size_mb-fault")).to_be_in_viewport()
        expect(page.get_by_label("Target file size mb")).to_have_attribute("aria-invalid", "true")
        expect(page.get_by_label("Ledger")).to_have_value("tasks")
        assert fits(page)


@pytest.mark.parametrize("size", SIZES)
def test_lines_and_the_bar_come_while_one_looks_and_a_kill_ends_it(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    """Y-15: in a queue that nobody serves, so that nobody else moves it."""
    job = put(served, status="running", queue="elsewhere", node_id="worker-1", updated_at=4_000_000_000_000)
    page = visit("actor", viewport=size)
    page.goto(f"/system/jobs/{job}")
    expect(page.locator("#live-state")).to_have_text("live")
    page.evaluate("window.marked = true")
    for share in (10, 20, 30):
        tell(served, job, f"progress {share}% {share} of 100 rows")
        expect(page.locator("#lead progress")).to_have_attribute("value", f"{share}.0")
    tell(served, job, "\n".join(f"line {number}" for number in range(100)))
    expect(page.locator("#lines li").last).to_be_in_viewport()
    expect(page.locator("#lines li").last).to_have_text(re.compile("line 99"))
    page.locator("#lines").evaluate("box => { box.scrollTop = -800; }")
    tell(served, job, "one more")
    expect(page.locator("#lines li").last).to_have_text(re.compile("one more"))
    assert page.locator("#lines").evaluate("box => box.scrollTop") < -100, "whoever reads above stays there"
    assert fits(page)
    page.get_by_label("Why, for the record").fill("enough")
    page.get_by_role("button", name="Kill").click()
    expect(page.locator("#heading")).to_contain_text("cancelled")
    expect(page.locator("#lines")).to_contain_text("cancelled by token:actor: enough")


def test_what_cannot_be_taken_back_is_confirmed(served: Served, visit: Open) -> None:
    page = visit("admin")
    page.goto("/system/new/retention")
    page.get_by_label("Ledger").select_option("job")
    page.get_by_label("Retention hours").fill("24")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="do you mean it?")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    expect(page).to_have_title("Retention? · Holdfast")
    page.get_by_label("I mean it").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.locator("#heading")).to_contain_text("completed")
    expect(page.locator("#lead")).to_contain_text("0 rows")


def test_every_page_works_without_scripts(served: Served, visit: Open) -> None:
    job = put(served, status="running", queue="elsewhere", updated_at=4_000_000_000_000)
    tell(served, job, "progress 5% 5 of 100 rows")
    page = visit("actor", java_script_enabled=False)
    page.goto(f"/system/jobs/{job}")
    expect(page.locator("#lines li")).to_have_count(1)
    tell(served, job, "progress 6% 6 of 100 rows")
    page.get_by_role("link", name="Refresh").click()
    page.reload()
    expect(page.locator("#lines li")).to_have_count(2)


@pytest.mark.parametrize("size", SIZES)
def test_every_page_fits_and_can_be_pressed(served: Served, visit: Open, size: dict[str, int]) -> None:
    job = put(
        served,
        "flush",
        "failed",
        message="x" * 300,
        exception_trace="y" * 3000,
        parameters={"ledger": "z" * 120},
    )
    tell(served, job, "w" * 2000)
    page = visit("admin", viewport=size)
    paths = ["/system", f"/system/jobs/{job}", "/system/new", "/system/archive", "/system/backups"]
    kinds = (
        "flush",
        "cleanup",
        "retention",
        "stream_eviction",
        "user_cleanup",
        "compact",
        "backup",
        "restore",
    )
    for path in [*paths, *(f"/system/new/{kind}" for kind in kinds)]:
        page.goto(path)
        assert fits(page), path
        assert page.evaluate(STICKING) == [], path
        if size == PHONE:
            assert page.evaluate(SMALL, PRESSED) == [], path
