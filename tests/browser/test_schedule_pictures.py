"""The pictures of docs/schedules.md, made of a few days of work. `make screenshots` puts them there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from api.kit import Served, on, served_app
from browser.conftest import DESK, PHONE, Open
from browser.test_pictures import shoot
from holdfast import Holdfast, Settings
from holdfast.db.pool import Connection
from holdfast.runtime.overview import clock
from schedules.face import ANA, BOB, ELEVEN, NIGHT, SCHOOL, TEN, fail, messages, place
from schedules.recorded import DAY, observe, session

pytestmark = pytest.mark.browser
MOST = 800_000  # bytes of all pictures together
OFFICE = {**NIGHT, "start": "08:00", "end": "09:30", "title": "Kontor Hamnen", "location": "Göteborg"}


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    """The schedules on a port; no worker, so that nothing moves while a picture is taken."""
    with served_app(settings, Holdfast(settings).web()) as served:
        yield served


async def some_days(conn: Connection) -> Any:
    """Days of two users, one of which has changed; answers with the session that changed it."""
    now = await clock(conn)
    ago = lambda minutes: now - timedelta(minutes=minutes)  # noqa: E731
    for days in range(1, 5):
        shown: list[dict[str, str]] = [TEN, SCHOOL] if days % 2 else [OFFICE, TEN, NIGHT]
        await observe(conn, ANA, shown, at=ago(600 + days), day=DAY + timedelta(days=days), images=2)
    await observe(conn, BOB, [SCHOOL], at=ago(340), images=1)
    await observe(conn, ANA, [OFFICE, TEN], at=ago(300), images=2)
    await observe(conn, ANA, [OFFICE, TEN, SCHOOL], at=ago(120), images=2)
    changed = await observe(conn, ANA, [OFFICE, ELEVEN, NIGHT], at=ago(12), images=3)
    await session(conn, BOB, created=ago(0.2), images=2)
    waiting = await session(conn, ANA, created=ago(2), images=1)
    await conn.execute(
        "update schedule_ingest.capture_session set state = 'failed', locked_by = null, locked_at = null,"
        " error = 'dates_disagree: the pictures show 2026-03-02 and 2026-03-03' where id = %s",
        (waiting,),
    )
    await conn.execute(
        "update schedule_ingest.schedule_notification set status = 'sent', sent_at = created_at"
        " + interval '2 seconds' where created_at < now() - interval '100 minutes'"
    )
    await conn.execute(
        "insert into schedule_ingest.notification_attempt (notification_id, attempt, tried_at)"
        " select notification_id, 1, sent_at from schedule_ingest.schedule_notification where status = 'sent'"
    )
    await conn.execute("insert into schedule_ingest.capture_session (user_id) values (44)")
    return changed


def test_pictures_of_schedules_are_taken_and_nothing_sticks_out(
    served: Served, visit: Open, folder: Path
) -> None:
    changed = on(served.settings, some_days)
    fail(served, messages(served)[-1], "the server answered 503", "the server answered 403")
    day = place("days", ANA, date.isoformat(DAY), root="/schedules")
    capture = place("captures", changed, root="/schedules")
    looks: list[tuple[str, dict[str, Any], list[tuple[str, str, int | None]]]] = [
        (
            "",
            {"viewport": DESK},
            [
                ("captures", "/schedules", 720),
                ("capture", capture, 900),
                ("day", day, 1300),
                ("messages", "/schedules/notifications", 620),
            ],
        ),
        ("dark-", {"viewport": DESK, "color_scheme": "dark"}, [("day", day, 900)]),
        ("phone-", {"viewport": PHONE}, [("day", day, 1500)]),
    ]
    bytes_ = 0
    for prefix, options, pages in looks:
        page = visit(**options)
        for name, path, height in pages:
            page.goto(path)
            expect(page.locator("#live-state")).to_have_text("live")
            bytes_ += shoot(page, folder, prefix + name, height=height)
    assert bytes_ < MOST
