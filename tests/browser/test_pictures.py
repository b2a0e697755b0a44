"""The pictures of docs/dashboard.md, made of a busy day. `make screenshots` puts them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from api.kit import Served
from browser.conftest import DESK, PHONE, Open
from browser.shop import STORY_ID, a_busy_day, an_hour_of_work

pytestmark = pytest.mark.browser
MOST = 1_600_000  # bytes of all pictures together
# What the browser is asked before a picture is taken: texts that lie on other texts, or are cut off.
OVERLAPS = """
() => {
    const texts = [...document.querySelectorAll('svg.diagram text, svg.timeline text')]
        .filter(one => one.checkVisibility() && one.textContent.trim());
    const boxes = texts.map(one => [one.textContent, one.getBoundingClientRect(), one.closest('svg')]);
    const found = [];
    for (let n = 0; n < boxes.length; n++) for (let m = n + 1; m < boxes.length; m++) {
        const [a, b] = [boxes[n][1], boxes[m][1]];
        if (boxes[n][2] !== boxes[m][2]) continue;
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 3) found.push([boxes[n][0], boxes[m][0]]);
    }
    return found;
}
"""


def shoot(page: Page, folder: Path, name: str, *, height: int | None = None) -> int:
    """Takes a picture of a page, of this height; answers with its size in bytes."""
    expect(page.locator("main")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    assert page.evaluate(OVERLAPS) == [], name
    path = folder / f"{name}.png"
    options: dict[str, Any] = {}
    if height is not None:
        width = page.viewport_size["width"]  # type: ignore[index]
        whole = page.evaluate("document.documentElement.scrollHeight")
        options["clip"] = {"x": 0, "y": 0, "width": width, "height": min(height, whole)}
    page.screenshot(path=path, full_page=True, animations="disabled", **options)
    return path.stat().st_size


def test_pictures_are_taken_and_nothing_overlaps(served: Served, visit: Open, folder: Path) -> None:
    an_hour_of_work(served)
    a_busy_day(served)
    dead = served.query("select id::text from job where status = 'dead_letter' order by created_at limit 1")
    served.client().put("/api/ledgers/job/pause", params={"queue": "nightly", "reason": "no paper until six"})
    bytes_ = 0
    story, row = f"/ledgers/job/rows/{STORY_ID}", f"/ledgers/job/rows/{dead[0][0]}"
    looks: list[tuple[str, dict[str, Any], list[tuple[str, str, int | None]]]] = [
        (
            "",
            {"viewport": DESK},
            [
                ("overview", "/", None),
                ("ledger", "/ledgers/job", 1180),
                ("row", story, 1130),
                ("dead-letter", row, 900),
                ("preview", "/ledgers/job/bulk/requeue?state=dead_letter", 640),
                ("reference", "/docs", 900),
                ("workers", "/workers", 520),
                ("audit", "/audit", 420),
            ],
        ),
        (
            "dark-",
            {"viewport": DESK, "color_scheme": "dark"},
            [("overview", "/", None), ("row", story, 700)],
        ),
        (
            "phone-",
            {"viewport": PHONE},
            [("overview", "/", 1500), ("ledger", "/ledgers/job", 1500), ("row", story, 1500)],
        ),
    ]
    for prefix, options, pages in looks:
        page = visit(**options)
        for name, path, height in pages:
            page.goto(path)
            if page.locator("#live-state").count():
                expect(page.locator("#live-state")).to_have_text("live")
            bytes_ += shoot(page, folder, prefix + name, height=height)
    nobody = visit(None)
    nobody.goto("/login")
    bytes_ += shoot(nobody, folder, "login", height=640)
    assert bytes_ < MOST
