"""The dashboard in a real browser: an operator at work, at a desk and by phone, with and without scripts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from api.kit import B, Served
from browser.conftest import DESK, PHONE, Open
from browser.shop import Gates

pytestmark = pytest.mark.browser
SIZES = [pytest.param(DESK, id="desk"), pytest.param(PHONE, id="phone")]
MARKED = "window.marked === true"  # set before, and gone with a reload


def dead_letters(served: Served, count: int = 3) -> list[str]:
    found = [
        served.enqueue("job", "invoice:print", payload={"number": 0}, tenant=B, queue="nobody")
        for _ in range(count)
    ]
    return [served.bury(one) for one in found]


def fits(page: Page) -> bool:
    """Whether nothing sticks out sideways."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("size", SIZES)
def test_an_operator_filters_opens_a_row_and_cancels_it(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    waiting = served.enqueue("job", "invoice:print", payload={"number": 3}, delay=3600)
    served.enqueue("job", "film:cut", payload={"title": "x"}, queue="nobody")
    page = visit("actor", viewport=size)
    page.get_by_role("link", name=re.compile("job")).first.click()
    expect(page).to_have_title("job · Holdfast")
    page.get_by_role("checkbox", name="queued").check()
    page.get_by_label("type", exact=True).fill("invoice:print")
    page.get_by_role("button", name="Filter").click()
    rows = page.locator("a.row-link")
    expect(rows).to_have_count(1)
    assert "state=queued" in page.url
    assert fits(page)
    rows.first.click()
    expect(page.locator("#heading")).to_contain_text("queued")
    expect(page.locator("#explain")).to_contain_text("due")
    assert fits(page)
    page.get_by_label("Why, for the record").fill("paid in cash")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("The row is cancelled.")).to_be_visible()
    expect(page.locator("#heading")).to_contain_text("canceled")
    expect(page.locator("#events")).to_contain_text("by token:actor; paid in cash")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert served.query("select status::text from job where id = %s", waiting) == [("canceled",)]


@pytest.mark.parametrize("size", SIZES)
def test_an_operator_requeues_dead_letters_after_a_preview(
    served: Served, visit: Open, size: dict[str, int]
) -> None:
    dead_letters(served)
    page = visit(viewport=size)
    page.goto("/ledgers/job")
    node = page.locator("svg.diagram a", has_text="dead_letter")
    expect(node).to_contain_text("3")
    node.click()
    expect(page.locator("a.row-link")).to_have_count(3)
    page.get_by_role("link", name="Requeue…").click()
    expect(page.get_by_role("heading", name="Requeue 3 rows?")).to_be_visible()
    assert fits(page)
    page.get_by_label("Why, for the record").fill("mended")
    page.get_by_role("button", name="Requeue 3 rows").click()
    expect(page.get_by_text("3 rows requeued.")).to_be_visible()
    expect(page.get_by_text("No row fits this filter.")).to_be_visible()
    assert served.query("select count(*) from job where status = 'queued'") == [(3,)]


@pytest.mark.parametrize("size", SIZES)
def test_a_job_finishes_before_ones_eyes_without_a_reload(
    served: Served, gates: Gates, visit: Open, size: dict[str, int]
) -> None:
    film = served.enqueue("job", "film:cut", payload={"title": "tide"})
    page = visit(viewport=size)
    page.goto(f"/ledgers/job/rows/{film}")
    page.evaluate("window.marked = true")
    expect(page.locator("#live-state")).to_have_text("live")
    expect(page.locator("progress")).to_have_attribute("value", "10.0")
    page.locator("#raw summary").click()
    page.get_by_label("Why, for the record").fill("perhaps")
    page.evaluate("scrollTo(0, 150)")
    before = page.evaluate("scrollY")

    gates.open("tide 1")
    expect(page.locator("progress")).to_have_attribute("value", "60.0")
    expect(page.locator("#explain")).to_contain_text("cutting")
    expect(page.get_by_label("Why, for the record")).to_have_value("perhaps")
    expect(page.get_by_label("Why, for the record")).to_be_focused()
    expect(page.locator("#raw")).to_have_attribute("open", "")
    assert page.evaluate("scrollY") == before

    page.get_by_label("Why, for the record").fill("")
    gates.open("tide 2")
    expect(page.locator("#heading")).to_contain_text("succeeded")
    expect(page.locator("#result pre")).to_contain_text('"minutes": 94')
    expect(page.locator("#events")).to_contain_text("finish")
    expect(page.get_by_label("Why, for the record")).to_be_focused()  # its form is left alone, until then:
    page.get_by_label("Why, for the record").blur()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.locator("#raw")).to_have_attribute("open", "")
    assert page.evaluate(MARKED), "the document is the same"


def test_lists_and_counts_follow_and_the_focus_stays(served: Served, gates: Gates, visit: Open) -> None:
    served.enqueue("tasks", "thumbnail", payload={"name": "first"}, delay=3600)
    page = visit()
    page.goto("/ledgers/tasks")
    page.evaluate("window.marked = true")
    expect(page.locator("#live-state")).to_have_text("live")
    link = page.locator("a.row-link").first
    link.focus()
    page.locator("#edges summary").click()
    link.focus()
    before = link.get_attribute("href")
    served.enqueue("tasks", "thumbnail", payload={"name": "second"})
    expect(page.locator("a.row-link")).to_have_count(2)
    expect(page.locator("svg.diagram a", has_text="running")).to_contain_text("1")
    assert page.evaluate("document.activeElement.getAttribute('href')") == before
    expect(page.locator("#edges")).to_have_attribute("open", "")
    gates.open("second")
    expect(page.locator("svg.diagram a", has_text="completed")).to_contain_text("1")
    assert page.evaluate(MARKED)


def test_the_overview_follows(served: Served, visit: Open) -> None:
    page = visit()
    page.goto("/")
    page.evaluate("window.marked = true")
    expect(page.locator("#workers")).to_contain_text("leads")
    served.enqueue("tasks", "mail:send", payload={"to": "x"})
    tasks = page.locator("section", has=page.get_by_role("heading", name="tasks"))
    expect(tasks.get_by_role("link", name="1 completed")).to_be_visible()
    served.client().put("/api/ledgers/tasks/pause", params={"reason": "a look"})
    expect(tasks.get_by_text("a look")).to_be_visible()
    assert page.evaluate(MARKED)


def test_the_page_says_when_it_is_cut_off_and_comes_back(served: Served, browser: Browser) -> None:
    context = browser.new_context(base_url=served.url)  # of its own: here the browser may complain
    page = context.new_page()
    page.goto("/login")
    page.get_by_label("Token").fill(served.tokens["reader"])
    page.route("**/live?**", lambda route: route.abort())
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("#live-state")).to_have_text("reconnecting…")
    page.unroute("**/live?**")
    expect(page.locator("#live-state")).to_have_text("live", timeout=15_000)
    context.close()


def test_a_hidden_page_does_not_watch(served: Served, visit: Open) -> None:
    page = visit()
    page.goto("/ledgers/tasks")
    expect(page.locator("#live-state")).to_have_text("live")
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide % "true" + tell)
    expect(page.locator("#live-state")).to_have_text("paused")
    served.enqueue("tasks", "mail:send", payload={"to": "x"}, delay=3600)
    page.wait_for_timeout(1500)  # there is nothing to wait for: nothing may happen
    expect(page.locator("a.row-link")).to_have_count(0)
    page.evaluate(hide % "false" + tell)
    expect(page.locator("a.row-link")).to_have_count(1)
    expect(page.locator("#live-state")).to_have_text("live")


def test_a_session_that_ends_leads_to_the_login(served: Served, visit: Open) -> None:
    page = visit()
    page.goto("/ledgers/tasks")
    expect(page.locator("#live-state")).to_have_text("live")
    served.query("delete from holdfast_session")
    served.enqueue("tasks", "mail:send", payload={"to": "x"})
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.get_by_label("Token").fill(served.tokens["admin"])
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(re.compile("/ledgers/tasks$"))


@pytest.mark.parametrize("size", SIZES)
def test_everything_works_without_javascript(
    served: Served, gates: Gates, visit: Open, size: dict[str, int]
) -> None:
    dead_letters(served, 2)
    film = served.enqueue("job", "film:cut", payload={"title": "kelp"})
    page = visit(viewport=size, java_script_enabled=False)
    page.goto("/ledgers/job")
    page.get_by_role("checkbox", name="dead_letter").check()
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("a.row-link")).to_have_count(2)
    page.get_by_role("link", name="Requeue…").click()
    page.get_by_role("button", name="Requeue 2 rows").click()
    expect(page.get_by_text("2 rows requeued.")).to_be_visible()
    page.goto(f"/ledgers/job/rows/{film}")
    page.reload()
    expect(page.locator("#heading")).to_contain_text("running")
    gates.open_all()
    assert served.client().get(f"/api/ledgers/job/rows/{film}/wait").json()["ended"]
    page.reload()
    expect(page.locator("#heading")).to_contain_text("succeeded")
    page.get_by_role("button", name="Dark colours").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_dark_is_what_the_system_says_or_what_one_chooses(visit: Open) -> None:
    def paper(page: Page) -> int:
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    page = visit(color_scheme="dark")
    assert paper(page) < 150
    page.get_by_role("button", name="Light colours").click()
    assert paper(page) > 600
    page.reload()
    assert paper(page) > 600
    page.get_by_role("button", name="Auto").click()
    assert paper(page) < 150
    assert paper(visit(color_scheme="light")) > 600


def test_the_keyboard_is_enough(served: Served, visit: Open) -> None:
    for name in ("a", "b"):
        served.enqueue("tasks", "mail:send", payload={"to": name}, delay=3600)
    page = visit()
    page.goto("/ledgers/tasks")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("type", exact=True)).to_be_focused()
    page.keyboard.type("/jk")
    expect(page.get_by_label("type", exact=True)).to_have_value("/jk")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator("a.row-link").nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator("a.row-link").nth(1)).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator("#heading")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page).to_have_title("Overview · Holdfast")


def test_a_link_from_elsewhere_finds_one_logged_in(served: Served, visit: Open) -> None:
    page = visit()
    page.goto(f"data:text/html,<a href='{served.url}/ledgers/tasks?state=pending'>a link in a mail</a>")
    page.get_by_text("a link in a mail").click()
    expect(page).to_have_title("tasks · Holdfast")
    assert page.url.endswith("?state=pending")


PRESSED = "button, .button, summary, select, .menu a, a.row-link, .chip, input:not([type=hidden])"
STICKING = """
() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('main *')]
    .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest('.scroll, .menu'))
    .map(one => one.outerHTML.slice(0, 120))
"""
SMALL = """
selector => [...document.querySelectorAll(selector)]
    .filter(one => one.checkVisibility() && !one.closest('.chip > *') && one.type !== 'checkbox')
    .map(one => [one.outerHTML.slice(0, 80), one.getBoundingClientRect().height])
    .filter(([, height]) => height < 39.5)
"""


def test_every_page_fits_a_phone_and_a_thumb(served: Served, visit: Open) -> None:
    dead = dead_letters(served, 1)[0]
    served.enqueue("tasks", "mail:send", payload={"to": "x" * 300})
    page = visit(viewport=PHONE)
    paths = ("/", "/workers", "/ledgers/job", "/ledgers/tasks", f"/ledgers/job/rows/{dead}", "/audit")
    for path in (*paths, "/tokens", "/docs", "/ledgers/job/bulk/requeue?state=dead_letter"):
        page.goto(path)
        assert page.evaluate(STICKING) == [], path
        assert page.evaluate(SMALL, PRESSED) == [], path
