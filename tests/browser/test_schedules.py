"""Schedules in a real browser: a capture becomes a day, changes are marked, messages are sent again."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from playwright.sync_api import expect

from api.kit import Served, served_app, working
from browser.conftest import DESK, PHONE, Open
from browser.shop import Gates
from browser.test_dashboard import PRESSED, SMALL, STICKING, fits
from holdfast import Holdfast, Settings
from holdfast.apps.schedules.app import app as schedules_app
from holdfast.apps.schedules.senders import Permanent
from holdfast.apps.schedules.values import Image, Notice, Session
from schedules.face import ANA, ELEVEN, NIGHT, SCHOOL, TEN, fail, messages, place, story
from schedules.recorded import DAY

pytestmark = pytest.mark.browser
SIZES = [pytest.param(DESK, id="desk"), pytest.param(PHONE, id="phone")]
ALBUM: dict[str, list[dict[str, str]]] = {"first.jpg": [TEN, SCHOOL], "second.jpg": [ELEVEN, NIGHT]}
DAY_PAGE = place("days", ANA, DAY, root="/schedules")


class Album:
    """Reads a picture by its name, when its gate is open."""

    needs_images = True

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    async def extract(self, session: Session, images: Sequence[Image]) -> Any:
        await self._gates.passed(images[0].r2_key)
        return {"schedule_date": str(DAY), "entries": ALBUM[images[0].r2_key]}


class Post:
    """Sends nothing until its gate is open."""

    def __init__(self, gates: Gates) -> None:
        self._gates, self.open = gates, False

    async def send(self, notice: Notice) -> None:
        await self._gates.passed("post")
        if not self.open:
            raise Permanent("the server answered 403")


@pytest.fixture
def post(gates: Gates) -> Post:
    return Post(gates)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return dataclasses.replace(
        settings,
        schedules_extractor="album",
        schedules_idle_timeout_seconds=0,
        schedules_poll_seconds=0.1,
        schedules_delivery="own",
        schedules_delivery_poll_seconds=1.0,
    )


@pytest.fixture
def served(settings: Settings, gates: Gates, post: Post) -> Iterator[Served]:
    """The schedules on a port, with a worker."""

    class Albums:
        needs_images = True

        def __call__(self, _: Settings) -> Album:
            return Album(gates)

    def application() -> Holdfast:
        return Holdfast(settings, apps=[schedules_app(extractors={"album": Albums()}, sender=post)])

    with (
        served_app(settings, application().web()) as served,
        working(application(), ledgers=["capture_session", "schedule_notification"]),
    ):
        try:
            yield served
        finally:
            gates.open_all()


def capture(served: Served, picture: str) -> str:
    """A session of Ana's with this picture."""
    body = {"user_id": ANA, "images": [{"r2_key": picture}]}
    made = served.client("actor").post("/api/schedules/captures", json=body)
    assert made.status_code == 201, made.text
    return made.json()["id"]


@pytest.mark.parametrize("size", SIZES)
def test_a_capture_becomes_a_day_before_ones_eyes(
    served: Served, gates: Gates, visit: Open, size: dict[str, int]
) -> None:
    page = visit("actor", viewport=size)
    page.get_by_role("link", name="Schedules").click()
    expect(page).to_have_title("Captures · Holdfast")
    expect(page.locator("#rows")).to_contain_text("No session yet.")
    expect(page.locator("#live-state")).to_have_text("live")
    capture(served, "first.jpg")
    expect(page.locator("tbody tr")).to_contain_text("processing")
    assert fits(page)
    page.locator("a.row-link").click()
    expect(page.locator("#claims")).to_contain_text("under way")
    expect(page.locator("#live-state")).to_have_text("live")
    page.evaluate("window.marked = true")
    gates.open("first.jpg")
    expect(page.locator("#heading")).to_contain_text("done")
    expect(page.locator("#events li")).to_have_count(2)
    assert page.evaluate("window.marked === true"), "the document is the same"
    assert fits(page)
    page.locator("#events").get_by_role("link", name="Monday 2 March 2026").click()
    expect(page.locator("#shifts")).to_contain_text("Marie Sjoberg")
    assert fits(page)


@pytest.mark.parametrize("size", SIZES)
def test_a_change_is_marked_and_the_day_before_it_can_be_seen(
    served: Served, gates: Gates, visit: Open, size: dict[str, int]
) -> None:
    gates.open("first.jpg")
    capture(served, "first.jpg")
    page = visit("actor", viewport=size)
    page.goto("/schedules/days")
    page.get_by_role("link", name=str(DAY)).first.click()
    expect(page.locator("#versions")).to_contain_text("There is one only")
    expect(page.locator("#live-state")).to_have_text("live")
    page.evaluate("window.marked = true")
    gates.open("second.jpg")
    capture(served, "second.jpg")
    expect(page.locator("#heading")).to_contain_text("version 2")
    expect(page.locator(".sides del")).to_have_text("10:00")
    expect(page.locator(".sides ins")).to_have_text("11:00")
    expect(page.locator("#events li")).to_have_count(5)
    assert page.evaluate("window.marked === true"), "the document is the same"
    assert fits(page)
    page.locator("#events a.quiet-link").first.click()
    expect(page.get_by_role("note")).to_contain_text("As it was known at")
    expect(page.locator("#shifts")).to_contain_text("Kyrkskolan")
    page.get_by_role("link", name="Show it now").click()
    expect(page.locator("#shifts")).not_to_contain_text("Kyrkskolan")
    page.get_by_label("beside version").select_option("1")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#versions")).to_contain_text("Nothing: only the wording differs.")
    page.get_by_role("link", name="Verify").click()
    expect(page.get_by_role("status").filter(has_text="The record is true")).to_be_visible()


def test_a_message_that_failed_is_sent_again(served: Served, gates: Gates, post: Post, visit: Open) -> None:
    """S-51, by a person who looks."""
    gates.open("first.jpg")
    gates.open("post")
    capture(served, "first.jpg")
    page = visit("actor")
    page.goto("/schedules/notifications?status=failed")
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text("the server answered 403")
    post.open = True
    page.get_by_role("button", name=re.compile("^Resend: ")).first.click()
    expect(page.get_by_text("The message is to be sent again.")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Status").select_option("sent")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("a.row-link").click()
    expect(page.locator("#tries li")).to_have_count(2)
    expect(page.locator("#heading")).to_contain_text("sent")


def test_lists_are_walked_by_keys_and_every_page_fits_a_thumb(served: Served, visit: Open) -> None:
    told = story(served)
    fail(served, messages(served)[0], "x" * 300, "y" * 300)
    page = visit("actor", viewport=PHONE)
    page.goto("/schedules")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "user"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/schedules/captures/{told.third}$"))
    one = place("notifications", messages(served)[0], root="/schedules")
    paths = [
        "/schedules",
        "/schedules/days",
        "/schedules/notifications",
        DAY_PAGE,
        f"{DAY_PAGE}?verify=1",
        one,
    ]
    for path in [*paths, place("captures", told.first, root="/schedules")]:
        page.goto(path)
        assert page.evaluate(STICKING) == [], path
        assert page.evaluate(SMALL, PRESSED) == [], path
