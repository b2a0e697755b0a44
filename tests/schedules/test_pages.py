"""The pages of schedules: captures, days with their versions and events, messages; and orders about them.

S-51, S-54 and S-57 as people see them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest

from api.kit import Served
from dashboard.kit import Page, Visitor, events
from holdfast import Settings
from holdfast.dashboard import live
from schedules.face import (
    ANA,
    BOB,
    ELEVEN,
    NIGHT,
    TEN,
    Story,
    fail,
    messages,
    place,
    seen,
    serving,
    story,
    write,
)
from schedules.recorded import DAY, at, forge, session

LIST, DAYS, NOTICES = "/schedules", "/schedules/days", "/schedules/notifications"
Visit = Callable[..., Visitor]


def path(*parts: Any) -> str:
    return place(*parts, root="/schedules")


DAY_PAGE = path("days", ANA, DAY)


@pytest.fixture
def served(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(live, "EVERY", 0.05)
    with serving(settings) as served:
        yield served


@pytest.fixture
def visit(served: Served) -> Visit:
    return lambda who="reader": Visitor(served, who)


def rows(page: Page) -> list[str]:
    """What the lines of the page's list say."""
    return [one.words for body in page.every("tbody") for one in body.every("tr")]


def part(page: Page, id: str) -> Page | Any:
    return page.one(None, id=id)


# -- lists -----------------------------------------------------------------------------------------------


def test_captures_are_listed_newest_first_and_filtered(served: Served, visit: Visit) -> None:
    told = story(served)
    page = visit().get(LIST)
    links = [str(one["href"]) for one in page.every("a", class_="row-link")]
    assert links == [path("captures", one) for one in (told.bobs, told.third, told.second, told.first)]
    assert [line.split()[1] for line in rows(page)] == [str(BOB), *[str(ANA)] * 3]
    assert len(rows(visit().get(f"{LIST}?user={BOB}"))) == 1
    assert rows(visit().get(f"{LIST}?state=failed")) == []
    assert "No session fits this filter." in visit().get(f"{LIST}?state=failed").words
    for wrong in ("state=gone", "user=ana", "user=9999999999999999999", "cursor=x"):
        assert visit().get(f"{LIST}?{wrong}", 400).every(role="alert"), wrong


def test_pages_are_turned_and_turned_back(served: Served, visit: Visit) -> None:
    async def add(conn: Any) -> None:
        for minutes in range(30):
            await session(conn, ANA, created=at(minutes))

    write(served, add)
    ana = visit()
    first = ana.get(LIST)
    second = ana.get(str(first.one("a", rel="next")["href"]))
    assert (len(rows(first)), len(rows(second))) == (25, 5)
    assert not second.every("a", rel="next")
    assert rows(ana.get(str(second.one("a", rel="prev")["href"])))[0] == rows(first)[0]


def test_days_are_listed_and_filtered_by_user_and_date(served: Served, visit: Visit) -> None:
    story(served)
    assert len(rows(visit().get(DAYS))) == 2
    assert len(rows(visit().get(f"{DAYS}?user={ANA}"))) == 1
    assert "Monday 2 March 2026" in rows(visit().get(f"{DAYS}?since={DAY}&until={DAY}"))[0]
    assert rows(visit().get(f"{DAYS}?since={DAY + timedelta(days=1)}")) == []
    assert visit().get(f"{DAYS}?since=tomorrow", 400).every(role="alert")


def test_empty_lists_say_what_comes_there(visit: Visit) -> None:
    assert "holdfast schedules add USER IMAGE_KEY" in visit().get(LIST).words
    assert "No day is known yet." in visit().get(DAYS).words
    assert "No message yet." in visit().get(NOTICES).words
    assert f"holdfast schedules add {ANA} IMAGE_KEY" in visit("ana").get(LIST).words


# -- one capture -----------------------------------------------------------------------------------------


def test_a_capture_shows_its_pictures_claims_and_what_it_changed(served: Served, visit: Visit) -> None:
    told = story(served)
    page = visit().get(path("captures", told.second))
    assert f"{told.second}/1.png" in part(page, "pictures").words
    assert "done" in part(page, "claims").words
    changed = part(page, "events").words
    assert "time changed" in changed
    assert "10:00–12:00" in changed and "11:00–12:00" in changed  # noqa: RUF001, PT018
    assert "22:00–06:00 (+1 day)" in changed  # noqa: RUF001
    assert "3 shifts updated" in part(page, "messages").words
    assert "Version 2" in part(page, "payload").words
    assert not page.every("button", value="cancel")
    unchanged = visit().get(path("captures", told.third))
    assert "Nothing: the day means what it meant before." in unchanged.words
    assert "unchanged" in part(unchanged, "claims").words


def test_a_capture_is_cancelled_and_requeued(served: Served, visit: Visit) -> None:
    ((waiting,),) = served.query(
        "insert into schedule_ingest.capture_session (user_id) values (%s) returning id", ANA
    )
    place_of, ana = path("captures", waiting), visit("ana")
    page = ana.follow(ana.submit(place_of, place_of, verb="cancel", reason="the wrong picture"))
    assert "The session is cancelled." in page.words
    assert "failed" in part(page, "heading").words
    assert "cancelled" in part(page, "error").words
    again = ana.follow(ana.submit(place_of, place_of, verb="requeue"))
    assert "pending" in part(again, "heading").words
    assert ana.submit(place_of, place_of, verb="explode").status_code == 400
    assert not visit("reader").get(place_of).every("form", class_="orders")
    said = served.query(
        "select action, tenant, detail ->> 'reason' from holdfast_audit where action <> 'login'"
    )
    assert said == [("cancel", str(ANA), "the wrong picture"), ("requeue", str(ANA), None)]


# -- one day ---------------------------------------------------------------------------------------------


def test_a_day_shows_shifts_versions_events_and_messages(served: Served, visit: Visit) -> None:
    """S-54: history and diff."""
    story(served)
    page = visit().get(DAY_PAGE)
    assert "Monday 2 March 2026" in page.one("h1").words
    shifts = [one.words for one in part(page, "shifts").every("tr")][1:]
    assert shifts[0].startswith("11:00–12:00 Marie Sjoberg Valebergsvagen 316, Billdal")  # noqa: RUF001
    sides = list(part(page, "versions").every("tr"))[1:]
    assert [one["class"] for one in sides] == ["again", "bad", "good"]
    (gone,), (come,) = list(sides[0].every("del")), list(sides[0].every("ins"))
    assert (gone.words, come.words) == ("10:00", "11:00")
    assert len(list(part(page, "events").every("li"))) == 5
    assert len(list(part(page, "messages").every("li"))) == 3
    assert not part(page, "messages").words.count("Resend")


def test_a_day_is_shown_as_it_was_at_the_time_of_an_event(served: Served, visit: Visit) -> None:
    """S-54: the day at time T."""
    story(served)
    ana = visit()
    links = [str(one["href"]) for one in ana.get(DAY_PAGE).every("a", class_="quiet-link")]
    then = ana.get(links[0])
    assert "10:00–12:00" in part(then, "shifts").words  # noqa: RUF001
    assert "As it was known at 2026-03-01 08:00:00.000 UTC." in then.words
    assert then.one("input", name="at")["value"] == "2026-03-01T08:00:00"
    assert "11:00–12:00" in part(ana.get(links[-1]), "shifts").words  # noqa: RUF001
    ana.get(f"{DAY_PAGE}?at=2026-03-01T07:59", 404)
    wrong = ana.get(f"{DAY_PAGE}?at=yesterday", 400)
    assert "at: is no time" in wrong.one("p", class_="wrong").words
    assert "11:00–12:00" in part(wrong, "shifts").words  # noqa: RUF001


def test_any_two_versions_stand_side_by_side(served: Served, visit: Visit) -> None:
    story(served)
    seen(served, [ELEVEN, NIGHT, {**TEN, "address": "Valebergsvägen 318 Billdal"}], 40)
    ana = visit()
    chosen = [one["value"] for one in ana.get(DAY_PAGE).every("option") if "selected" in one.attributes]
    assert chosen == ["2", "3"]
    page = ana.get(f"{DAY_PAGE}?one=3&other=1")
    assert [one["value"] for one in page.every("option") if "selected" in one.attributes] == ["3", "1"]
    same = ana.get(f"{DAY_PAGE}?one=1&other=1")
    assert "Nothing: only the wording differs." in part(same, "versions").words
    ana.get(f"{DAY_PAGE}?one=9", 404)
    assert ana.get(f"{DAY_PAGE}?one=x", 400).every(role="alert")


def test_a_day_with_one_version_says_so(served: Served, visit: Visit) -> None:
    story(served)
    page = visit().get(path("days", BOB, DAY))
    assert "There is one only" in part(page, "versions").words
    assert not page.every("select")


def test_a_day_is_verified_and_written_anew(served: Served, visit: Visit) -> None:
    """S-54: verify and rebuild."""
    story(served)
    ana = visit("ana")
    assert (
        "The record is true: 5 events give the day, and 2 versions are whole."
        in ana.get(f"{DAY_PAGE}?verify=1").words
    )
    served.query("update schedule_ingest.day_snapshot set snapshot_payload = '[]' where user_id = %s", ANA)
    assert "The record is not true" in ana.get(f"{DAY_PAGE}?verify=1").words
    assert "None: the day is free." in ana.get(DAY_PAGE).words
    page = ana.follow(ana.submit(DAY_PAGE, DAY_PAGE))
    assert "The day is written anew from its events." in page.words
    assert "11:00–12:00" in part(page, "shifts").words  # noqa: RUF001
    assert not visit("ana reads").get(DAY_PAGE).every("form", method="post", class_="stack")


def test_a_day_that_others_have_spoilt_is_shown_and_can_be_written_anew(served: Served, visit: Visit) -> None:
    story(served)
    served.query("update schedule_ingest.day_snapshot set snapshot_payload = '[7]' where user_id = %s", ANA)
    bad = """update schedule_ingest.schedule_version set payload = '{"odd": true}' where version = 1"""
    write(served, lambda conn: forge(conn, bad))
    ana = visit("ana")
    page = ana.get(DAY_PAGE, 409)
    assert len(page.every("p", class_="wrong")) == 2, "one of the day, one of its versions"
    assert "11:00–12:00" in part(ana.follow(ana.submit(DAY_PAGE, DAY_PAGE)), "shifts").words  # noqa: RUF001


# -- messages --------------------------------------------------------------------------------------------


def test_a_failed_message_is_sent_again_from_wherever_it_is_seen(served: Served, visit: Visit) -> None:
    """S-51: a failed message can be sent again by a person."""
    told = story(served)
    message = messages(served)[-1]
    at_home = path("notifications", message)
    ana = visit("ana")
    for page in (NOTICES, f"{NOTICES}?status=failed", DAY_PAGE, path("captures", told.second), at_home):
        served.query("delete from schedule_ingest.notification_attempt")
        fail(served, message, "503 at noon", "403 for good")
        assert "403 for good" in ana.get(page).words, page
        sent = ana.submit(page, at_home)
        assert sent.headers["location"] == page
        assert "The message is to be sent again." in ana.follow(sent).words
        assert served.query(
            "select status from schedule_ingest.schedule_notification where notification_id = %s", message
        ) == [("pending",)]
    fail(served, message)
    assert ana.submit(at_home, at_home, back="https://evil.example/").headers["location"] == "/"
    assert not visit("ana reads").get(NOTICES).every("form", class_="inline", action=at_home)


def test_a_message_shows_every_try(served: Served, visit: Visit) -> None:
    story(served)
    message = fail(served, messages(served)[0], "503 at noon", "403 for good")
    page = visit().get(path("notifications", message))
    tries = [one.words for one in part(page, "tries").every("li")]
    assert ["503 at noon" in tries[0], "tried again" in tries[0]] == [True, True]
    assert ["403 for good" in tries[1], "given up" in tries[1]] == [True, True]
    assert "New shift added on 2026-03-02" in page.words
    served.query(
        "update schedule_ingest.schedule_notification set status = 'sent', sent_at = now()"
        " where notification_id = %s",
        messages(served)[1],
    )
    sent = visit().get(path("notifications", messages(served)[1]))
    assert "Another program has sent it." in sent.words


# -- who -------------------------------------------------------------------------------------------------


def pages_of(told: Story, message: str) -> list[str]:
    return [path("captures", told.first), DAY_PAGE, path("notifications", message)]


def test_users_never_see_each_others_days(served: Served, visit: Visit) -> None:
    """Neither by address nor by filter; and to a tenant that is no user there is nothing at all."""
    told = story(served)
    message = fail(served, messages(served)[0], "x")
    ana, bob, stranger = visit("ana"), visit("bob"), visit("tenant")
    for page in pages_of(told, message):
        ana.get(page)
        bob.get(page, 404)
        stranger.get(page, 404)
        key = bob.get(LIST).every("input", name="form_key")[0]["value"]
        refused = bob.client.post(page, data={"form_key": key, "verb": "requeue"})
        assert refused.status_code == 404, page
    for page in (LIST, DAYS, NOTICES):
        assert {line for line in rows(bob.get(page)) if f"User {ANA}" in line} == set()
        assert len(rows(bob.get(page))) == 1, page
        assert not bob.get(page).every("input", name="user")
        bob.get(f"{page}?user={ANA}", 404)
        stranger.get(page, 404)
    menu = [link.words for link in bob.get(LIST).every("nav", class_="menu")[0].every("a")]
    assert menu == ["Overview", "capture_session", "schedule_notification", "Schedules", "API"]
    assert bob.client.get("/live", params={"path": DAY_PAGE}).status_code == 404


def test_what_others_wrote_is_shown_as_it_is(served: Served, visit: Visit) -> None:
    told, odd = story(served), "code: <img src=x>"
    served.query("update schedule_ingest.schedule_notification set message = %s", odd)
    fail(served, messages(served)[0], odd)
    forged = "update schedule_ingest.capture_session set state = 'failed', error = %s where id = %s"
    write(served, lambda conn: forge(conn, forged, odd, told.first))
    forged = "update schedule_ingest.capture_attempt set outcome = 'x', worker = %s where session_id = %s"
    write(served, lambda conn: forge(conn, forged, odd, told.first))
    forged = "update schedule_ingest.schedule_version set payload = payload || %s::text::jsonb"
    write(served, lambda conn: forge(conn, forged, json.dumps({"more": odd})))
    for page in (LIST, DAYS, NOTICES, *pages_of(told, messages(served)[0])):
        assert not [image for image in visit().get(page).every("img") if image["src"] == "x"], page


def test_there_is_no_such_thing(served: Served, visit: Visit) -> None:
    story(served)
    nothing = [
        path("captures", uuid4()),
        path("captures", "x"),
        path("days", ANA, "2026-02-30"),
        path("days", ANA, "20260302"),
        path("days", "ana", DAY),
        path("days", 2**64, DAY),
        path("days", ANA, "2030-01-01"),
        path("notifications", "a/b"),
        path("notifications", "a%00b"),
    ]
    ana = visit()
    answers = {one: ana.client.get(one).status_code for one in nothing}
    assert {one: status for one, status in answers.items() if status not in (400, 404)} == {}


# -- while somebody looks --------------------------------------------------------------------------------


def changes(served: Served, told: Story) -> dict[str, Callable[[], Any]]:
    """By page: what makes it another one."""

    def add() -> None:
        served.query("insert into schedule_ingest.capture_session (user_id) values (%s)", ANA)

    def take(id: UUID) -> None:
        served.query("insert into schedule_ingest.capture_attempt values (%s, 2, 'w', now())", id)

    message = messages(served)[0]
    return {
        LIST: add,
        f"{LIST}?state=pending": add,
        DAYS: lambda: seen(served, [TEN], 50),
        DAY_PAGE: lambda: seen(served, [ELEVEN], 60),
        NOTICES: lambda: fail(served, message, "x"),
        path("captures", told.first): lambda: take(told.first),
        path("notifications", messages(served)[1]): lambda: fail(served, messages(served)[1], "x"),
    }


def test_a_page_hears_when_what_it_shows_has_changed(served: Served, visit: Visit) -> None:
    """The page and its watch take the same fingerprint, and another one after a change."""
    told = story(served)
    ana = visit()
    for page, change in changes(served, told).items():
        shown = ana.get(page).one("html")["data-shown"]
        address = f"/live?path={quote(page, safe='')}&since="
        with events(ana.client, f"{address}old") as found:
            assert next(found) == ("changed", shown), page
        with events(ana.client, f"{address}{shown}") as found:
            change()
            now = ana.get(page).one("html")["data-shown"]
            assert now != shown, page
            assert ("changed", now) in found, page  # after all that one change has written, if it was seen


# -- as rows of any ledger -------------------------------------------------------------------------------


def test_sessions_and_messages_are_rows_of_ledgers_like_any_other(served: Served, visit: Visit) -> None:
    """Lists, rows, timelines and orders of any ledger are there for these, too."""
    told = story(served)
    message = fail(served, messages(served)[0], "x")
    ana = visit("ana")
    for ledger, key, lines in (("capture_session", told.first, 3), ("schedule_notification", message, 3)):
        assert len(rows_of(ana.get(f"/ledgers/{ledger}"))) == lines
        facts = part(ana.get(f"/ledgers/{ledger}/rows/{key}"), "facts").words
        assert (facts.count(str(key)), "in vain" in facts) == (1, True)
        assert served.client("ana").get(f"/api/ledgers/{ledger}/rows/{key}/explain").status_code == 200
        assert visit("bob").client.get(f"/ledgers/{ledger}/rows/{key}").status_code == 404
        assert visit("tenant").client.get(f"/ledgers/{ledger}").status_code in (400, 404)


def rows_of(page: Page) -> list[str]:
    return [str(one["href"]) for one in page.every("a", class_="row-link")]
