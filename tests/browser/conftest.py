"""A real browser on a real server: Debian's chromium, a worker, and a shop whose work can be held up."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from api.kit import Served, served_app, working
from browser.shop import Gates, shop
from holdfast import Settings

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 812}
FOLDER = "HOLDFAST_SCREENSHOTS"  # where the pictures go; no setting: it is for these tests

Open = Callable[..., Page]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "browser: needs a browser; runs only when asked for, by `-m browser`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "browser" not in config.getoption("markexpr", ""):
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="uses a browser: ask for it by make test-browser"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's chromium, without a window."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return dataclasses.replace(settings, api_rate=100_000, worker_timeout=5.0, heartbeat_interval=1.0)


@pytest.fixture
def gates() -> Gates:
    """What holds handlers up until a test lets them go."""
    return Gates()


@pytest.fixture
def served(settings: Settings, gates: Gates) -> Iterator[Served]:
    """The shop on a port, with a worker."""
    with (
        served_app(settings, shop(settings, gates).web()) as served,
        working(shop(settings, gates), concurrency=4),
    ):
        try:
            yield served
        finally:
            gates.open_all()


@pytest.fixture
def visit(browser: Browser, served: Served) -> Iterator[Open]:
    """`visit("admin", viewport=PHONE)`: a page of somebody who has logged in by the form; None for nobody.

    What a script or the browser complains about fails the test.
    """
    with ExitStack() as stack:
        complaints: list[str] = []

        def visit(who: str | None = "admin", **options: object) -> Page:
            context: BrowserContext = browser.new_context(
                base_url=served.url,
                **{"viewport": DESK, **options},  # type: ignore[arg-type]
            )
            stack.callback(context.close)
            context.set_default_timeout(15_000)
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
            if who is not None:
                page.goto("/login")
                page.get_by_label("Token").fill(served.tokens[who])
                page.get_by_role("button", name="Log in").click()
                expect(page.get_by_role("link", name="Overview")).to_be_visible()
            return page

        yield visit
        assert complaints == []


@pytest.fixture(scope="session")
def folder() -> Path:
    """Where pictures are put."""
    found = Path(os.environ.get(FOLDER, "build/screenshots"))
    found.mkdir(parents=True, exist_ok=True)
    return found
