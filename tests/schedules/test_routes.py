"""Schedules over HTTP: captures, days as they are and were, messages, erasing; and nobody sees another's.

S-4, S-51, S-54 and S-57 as the API tells them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from api.kit import Served
from holdfast import Settings
from schedules.face import (
    ANA,
    BOB,
    DAY_PLACE,
    ELEVEN,
    NIGHT,
    SCHOOL,
    TEN,
    fail,
    messages,
    place,
    seen,
    serving,
    story,
    write,
)
from schedules.recorded import DAY, at, forge

CAPTURES = place("captures")


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    with serving(settings) as served:
        yield served


def ask(served: Served, path: str, who: str = "reader", status: int = 200, **params: Any) -> Any:
    response = served.client(who).get(path, params=params)
    assert response.status_code == status, response.text
    return response.json()


def send(served: Served, path: str, body: Any = None, who: str = "actor", status: int = 200) -> Any:
    response = served.client(who).post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


def hours(shifts: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["start"], one["end"]) for one in shifts]


def audit(served: Served) -> list[tuple[Any, ...]]:
    return served.query("select who, action, row_id, tenant, rows from holdfast_audit order by id")


# -- captures --------------------------------------------------------------------------------------------


def test_a_capture_is_added_with_its_pictures_in_their_order(served: Served) -> None:
    body = {
        "user_id": ANA,
        "images": [{"r2_key": "a/2.jpg", "telegram_message_id": 7}, {"r2_key": "a/1.jpg"}],
    }
    response = served.client("actor").post(CAPTURES, json=body)
    assert response.status_code == 201
    made = response.json()
    assert response.headers["location"] == place("captures", made["id"])
    assert made == ask(served, response.headers["location"])
    assert (made["user_id"], made["state"], made["images"], made["attempts"]) == (ANA, "pending", 2, 0)
    pictures = [(one["sequence"], one["r2_key"], one["telegram_message_id"]) for one in made["pictures"]]
    assert pictures == [(1, "a/2.jpg", 7), (2, "a/1.jpg", None)]
    assert (made["version"], made["events"], made["claims"]) == (None, [], [])
    assert audit(served) == [("token:actor", "capture add", made["id"], str(ANA), 1)]


@pytest.mark.parametrize(
    "images",
    [
        pytest.param([{"r2_key": "taken.jpg"}], id="a key of another session"),
        pytest.param([{"r2_key": "twice.jpg"}, {"r2_key": "twice.jpg"}], id="a key twice"),
        pytest.param(
            [{"r2_key": f"{n}.jpg", "telegram_message_id": 7} for n in (1, 2)], id="a message twice"
        ),
    ],
)
def test_a_picture_that_is_there_already_adds_nothing(served: Served, images: list[dict[str, Any]]) -> None:
    """S-4."""
    send(served, CAPTURES, {"user_id": BOB, "images": [{"r2_key": "taken.jpg"}]}, status=201)
    problem = send(served, CAPTURES, {"user_id": ANA, "images": images}, status=409)
    assert problem["code"] == "CONFLICT"
    assert "there already" in problem["detail"]
    assert served.query("select user_id from schedule_ingest.capture_session") == [(BOB,)]
    assert [row[1] for row in audit(served)] == ["capture add"]


WRONG_CAPTURES: dict[str, tuple[Any, str]] = {
    "nobody's": ({}, "user_id"),
    "a text": ({"user_id": "42"}, "user_id"),
    "a fraction": ({"user_id": 42.0}, "user_id"),
    "a truth": ({"user_id": True}, "user_id"),
    "too large": ({"user_id": 2**63}, "user_id"),
    "without a key": ({"user_id": 42, "images": [{}]}, "images[0].r2_key"),
    "an empty key": ({"user_id": 42, "images": [{"r2_key": ""}]}, "images[0].r2_key"),
    "a blank key": ({"user_id": 42, "images": [{"r2_key": " "}]}, "images[0].r2_key"),
    "a zero byte": ({"user_id": 42, "images": [{"r2_key": "a\0"}]}, "images[0].r2_key"),
    "half a letter": ({"user_id": 42, "images": [{"r2_key": "\ud800"}]}, "images[0].r2_key"),
    "a long key": ({"user_id": 42, "images": [{"r2_key": "x" * 1025}]}, "images[0].r2_key"),
    "a message beyond": (
        {"user_id": 42, "images": [{"r2_key": "a", "telegram_message_id": 2**63}]},
        "images[0].telegram_message_id",
    ),
    "too many": ({"user_id": 42, "images": [{"r2_key": "a"}] * 101}, "images"),
    "a field too many": ({"user_id": 42, "state": "done"}, "state"),
}


def test_a_capture_that_cannot_be_is_refused_by_its_field(served: Served) -> None:
    client = served.client("actor", **{"Content-Type": "application/json"})
    for name, (body, field) in WRONG_CAPTURES.items():
        response = client.post(CAPTURES, content=json.dumps(body))
        assert response.status_code == 400, (name, response.text)
        assert (response.json()["code"], response.json()["field"]) == ("INVALID_INPUT", field), name
    assert served.query("select count(*) from schedule_ingest.capture_session") == [(0,)]


def test_a_capture_tells_all_that_came_of_it(served: Served) -> None:
    told = story(served)
    first = ask(served, place("captures", told.first))
    assert (first["state"], first["images"], first["schedule_date"]) == ("done", 2, str(DAY))
    assert [one["outcome"] for one in first["claims"]] == ["done"]
    assert (first["version"]["version"], len(first["version"]["payload"]["entries"])) == (1, 2)
    assert [one["type"] for one in first["events"]] == ["shift_added", "shift_added"]
    assert [one["status"] for one in first["notifications"]] == ["pending", "pending"]
    third = ask(served, place("captures", told.third))
    assert [one["outcome"] for one in third["claims"]] == ["unchanged"]
    assert (third["version"], third["events"], third["schedule_date"]) == (None, [], None)


# -- days ------------------------------------------------------------------------------------------------


def test_a_day_is_told_as_it_is_and_as_it_was(served: Served) -> None:
    """S-54: the day now or at time T."""
    told = story(served)
    now = ask(served, DAY_PLACE)
    assert (now["version"], now["at"], now["session_id"]) == (2, None, str(told.third))
    assert hours(now["shifts"]) == [("11:00", "12:00"), ("22:00", "06:00")]
    assert now["shifts"][0]["street"] == "Valebergsvagen"
    assert [one["title"] for one in now["payload"]["entries"]] == [ELEVEN["title"], NIGHT["title"]]
    before = ask(served, DAY_PLACE, at=at(5).isoformat())
    assert (before["version"], before["session_id"]) == (1, str(told.first))
    assert hours(before["shifts"]) == [("10:00", "12:00"), ("13:00", "15:00")]
    assert ask(served, DAY_PLACE, at=at(-1).isoformat(), status=404)["code"] == "NOT_FOUND"


def test_days_are_listed_page_by_page_the_latest_first(served: Served) -> None:
    story(served)
    every = ask(served, place("days"))["days"]
    assert [(one["user_id"], one["version"], one["shifts"]) for one in every] == [(BOB, 1, 1), (ANA, 2, 2)]
    first = ask(served, place("days"), limit=1)
    rest = ask(served, place("days"), limit=1, cursor=first["next_cursor"])
    assert first["days"] + rest["days"] == every
    assert rest["next_cursor"] is None
    assert [one["user_id"] for one in ask(served, place("days"), user_id=ANA)["days"]] == [ANA]
    assert ask(served, place("days"), since="2026-03-03")["days"] == []
    assert len(ask(served, place("days"), since=str(DAY), until=str(DAY))["days"]) == 2


def test_a_history_tells_versions_events_messages_and_the_sessions_behind_them(served: Served) -> None:
    """S-54: history."""
    told = story(served)
    history = ask(served, f"{DAY_PLACE}/history")
    assert [one["version"] for one in history["versions"]] == [1, 2]
    types = [one["type"] for one in history["events"]]
    assert types[:2] == ["shift_added", "shift_added"]
    assert sorted(types[2:]) == ["shift_added", "shift_removed", "shift_time_changed"]
    assert [one["type"] for one in history["notifications"]] == ["event", "event", "summary"]
    assert {one["id"] for one in history["captures"]} >= {str(told.first), str(told.second)}
    moved = next(one for one in history["events"] if one["type"] == "shift_time_changed")
    assert (moved["old"]["start"], moved["new"]["start"]) == ("10:00", "11:00")
    assert history["cut"] is False


def test_two_versions_are_told_side_by_side(served: Served) -> None:
    """S-54: diff."""
    story(served)
    found = ask(served, f"{DAY_PLACE}/versions/1/compare/2")
    assert (found["one"]["version"], found["other"]["version"]) == (1, 2)
    assert {(one["mark"], tuple(one["differs"])) for one in found["lines"]} == {
        ("changed", ("start",)),
        ("removed", ()),
        ("added", ()),
    }
    assert sorted(one["type"] for one in found["changes"]) == [
        "shift_added",
        "shift_removed",
        "shift_time_changed",
    ]
    backward = ask(served, f"{DAY_PLACE}/versions/2/compare/1")
    assert {one["mark"] for one in backward["lines"]} == {"changed", "removed", "added"}
    assert ask(served, f"{DAY_PLACE}/versions/1/compare/9", status=404)["code"] == "NOT_FOUND"


def test_a_day_is_verified_and_rebuilt_from_its_events(served: Served) -> None:
    """S-54: verify and rebuild."""
    told = story(served)
    assert ask(served, f"{DAY_PLACE}/verify") == {
        "true": True,
        "versions": 2,
        "events": 5,
        "notifications": 3,
        "found": 0,
        "problems": [],
    }
    wrong = "update schedule_ingest.day_snapshot set snapshot_payload = '[]' where user_id = %s"
    served.query(wrong, ANA)
    found = ask(served, f"{DAY_PLACE}/verify")
    assert found["true"] is False
    assert found["problems"][0]["schedule_date"] == str(DAY)
    assert ask(served, place("days", BOB, DAY, "verify"))["true"] is True
    assert served.client("reader").post(f"{DAY_PLACE}/rebuild").status_code == 403
    rebuilt = send(served, f"{DAY_PLACE}/rebuild")
    assert (hours(rebuilt["shifts"]), rebuilt["session_id"]) == (
        [("11:00", "12:00"), ("22:00", "06:00")],
        str(told.third),
    )
    assert ask(served, f"{DAY_PLACE}/verify")["true"] is True
    assert audit(served) == [("token:actor", "schedule rebuild", f"{ANA}/{DAY}", str(ANA), 1)]


def test_a_record_that_contradicts_itself_is_a_conflict_and_no_mistake_of_the_server(served: Served) -> None:
    story(served)
    forged = (
        "update schedule_ingest.schedule_event set old_value = new_value where event_type = 'shift_removed'"
    )
    write(served, lambda conn: forge(conn, forged.replace("new_value where", "'{\"start\": 1}' where")))
    for path in (f"{DAY_PLACE}/history", f"{DAY_PLACE}/rebuild"):
        method = "POST" if path.endswith("rebuild") else "GET"
        response = served.client("actor").request(method, path)
        assert (response.status_code, response.json()["code"]) == (409, "CONFLICT"), path


WRONG_QUESTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no number": (place("days", "x", DAY), {}, "user_id"),
    "a number beyond": (place("days", 2**63, DAY), {}, "user_id"),
    "no day of the calendar": (place("days", ANA, "2026-02-30"), {}, "date"),
    "a date without dashes": (place("days", ANA, "20260302"), {}, "date"),
    "a bare number": (place("days", ANA, "0"), {}, "date"),
    "a week": (place("days", ANA, "2026-W10-1"), {}, "date"),
    "no time": (DAY_PLACE, {"at": "yesterday"}, "at"),
    "a time without a zone": (DAY_PLACE, {"at": "2026-03-02T10:00"}, "at"),
    "another calendar's date": (place("days"), {"since": "03/02/2026"}, "since"),
    "a user who is no number": (place("days"), {"user_id": "me"}, "user_id"),
    "a page too long": (place("days"), {"limit": 101}, "limit"),
    "no cursor": (place("days"), {"cursor": "x"}, "cursor"),
    "no parameter": (place("days"), {"order": "up"}, "order"),
    "version nought": (f"{DAY_PLACE}/versions/0/compare/1", {}, "one"),
    "a version beyond": (f"{DAY_PLACE}/versions/1/compare/{2**31}", {}, "other"),
    "no uuid": (place("captures", "x"), {}, "id"),
}


def test_what_cannot_be_asked_is_refused_by_its_field(served: Served) -> None:
    client = served.client("reader")
    for name, (path, params, field) in WRONG_QUESTIONS.items():
        response = client.get(path, params=params)
        assert response.status_code == 400, (name, response.text)
        assert (response.json()["code"], response.json()["field"]) == ("INVALID_INPUT", field), name


def test_a_time_at_the_edge_of_the_calendar_is_no_mistake_of_the_server(served: Served) -> None:
    story(served)
    edges = {"0001-01-01T00:00:00Z": 404, "9999-12-31T23:59:59Z": 200}
    beyond = {"0001-01-01T00:00:00+14:00": 400, "9999-12-31T23:59:59-14:00": 400}
    for when, status in (edges | beyond).items():
        response = served.client("reader").get(DAY_PLACE, params={"at": when})
        assert response.status_code == status, (when, response.text)


# -- messages --------------------------------------------------------------------------------------------


def test_a_message_is_told_with_its_tries_and_sent_again(served: Served) -> None:
    """S-51: a failed message can be sent again by a person."""
    story(served)
    message = fail(served, messages(served)[0], "503 at noon", "503 again")
    path = place("notifications", message)
    found = ask(served, path)
    assert (found["status"], found["attempts"], found["error"]) == ("failed", 2, "503 again")
    assert [one["error"] for one in found["tries"]] == ["503 at noon", "503 again"]
    again = send(served, f"{path}/resend", {"reason": "the server is back"})
    assert (again["status"], again["next_at"]) == ("pending", None)
    problem = send(served, f"{path}/resend", status=409)
    assert problem["code"] == "ILLEGAL_EDGE"
    assert audit(served) == [("token:actor", "requeue", message, None, 1)]


def test_a_message_whose_id_another_program_chose_is_told_and_sent_again(served: Served) -> None:
    """S-50: any text is an id, also one with a slash."""
    story(served)
    served.query(
        "update schedule_ingest.schedule_notification set notification_id = 'bot/42/x'"
        " where notification_id = %s",
        messages(served)[0],
    )
    path = place("notifications", fail(served, "bot/42/x", "503"))
    assert ask(served, path)["id"] == "bot/42/x"
    assert send(served, f"{path}/resend")["status"] == "pending"
    assert ask(served, "/api/schedules/notifications/bot/42/x")["status"] == "pending"
    page = served.client("reader").get(place("notifications", "bot/42/x", root="/schedules"))
    assert (page.status_code, "bot/42/x" in page.text) == (200, True)


def test_a_message_that_there_is_not_is_not_found(served: Served) -> None:
    for name in ("f" * 64, "a/b", "resend"):
        assert ask(served, place("notifications", name), status=404)["code"] == "NOT_FOUND"
        assert send(served, place("notifications", name, "resend"), status=404)["code"] == "NOT_FOUND"
    assert ask(served, place("captures", uuid4()), status=404)["code"] == "NOT_FOUND"


# -- who -------------------------------------------------------------------------------------------------


def of_ana(served: Served) -> list[tuple[str, str]]:
    """Everything of Ana's that there is an address for, and how it is asked for."""
    told = story(served)
    message = fail(served, messages(served)[0], "x")
    return [
        ("GET", place("captures", told.first)),
        ("GET", DAY_PLACE),
        ("GET", f"{DAY_PLACE}/history"),
        ("GET", f"{DAY_PLACE}/versions/1/compare/2"),
        ("GET", f"{DAY_PLACE}/verify"),
        ("POST", f"{DAY_PLACE}/rebuild"),
        ("GET", place("notifications", message)),
        ("POST", place("notifications", message, "resend")),
    ]


def test_users_never_see_each_others_days(served: Served) -> None:
    """To another user, and to a tenant that is no user, nothing of this is there."""
    for method, path in of_ana(served):
        for who in ("bob", "tenant"):
            response = served.client(who).request(method, path)
            assert response.status_code == 404, (who, path, response.text)
        within = served.client("admin", **{"X-Tenant-Id": str(BOB)}).request(method, path)
        assert within.status_code == 404, path
        assert served.client("ana").request(method, path).status_code == 200, path
    assert [one["user_id"] for one in ask(served, place("days"), "bob")["days"]] == [BOB]
    assert ask(served, place("days"), "bob", 404, user_id=ANA)["code"] == "NOT_FOUND"
    assert ask(served, place("days"), "tenant", 404)["code"] == "NOT_FOUND"


def test_a_user_adds_captures_of_their_own_alone(served: Served) -> None:
    mine = send(served, CAPTURES, {}, "ana", 201)
    assert mine["user_id"] == ANA
    assert send(served, CAPTURES, {"user_id": ANA}, "ana", 201)["user_id"] == ANA
    assert send(served, CAPTURES, {"user_id": BOB}, "ana", 403)["code"] == "NOT_ALLOWED"
    assert send(served, CAPTURES, {}, "ana reads", 403)["code"] == "NOT_ALLOWED"
    assert send(served, CAPTURES, {"user_id": ANA}, "tenant", 404)["code"] == "NOT_FOUND"
    assert served.query("select distinct user_id from schedule_ingest.capture_session") == [(ANA,)]


@pytest.mark.parametrize(
    "key", [f"{ANA}/a.png", f"captures/{ANA}/2026/a.png", f"captures/{ANA}/{BOB}.png", f"x/{ANA}/{BOB}/a.png"]
)
def test_a_user_adds_pictures_of_their_own(served: Served, key: str) -> None:
    """S-54: the first number in the path of a key says whose it is."""
    assert send(served, CAPTURES, {"images": [{"r2_key": key}]}, "ana", 201)["user_id"] == ANA


@pytest.mark.parametrize(
    "key",
    [
        f"captures/{BOB}/a.png",
        f"captures/{BOB}/{ANA}/a.png",
        f"captures/{BOB}/a.png/{ANA}",
        f"{ANA}/../{BOB}/a.png",
        f"captures/{ANA}/./a.png",
        f"captures//{ANA}/a.png",
        f"/captures/{ANA}/a.png",
        f"captures/0{ANA}/a.png",
        f"captures/x{ANA}/a.png",
        "a.png",
    ],
)
def test_a_user_adds_no_pictures_that_are_somebody_elses(served: Served, key: str) -> None:
    """S-54: nor any whose key does not say whose they are; an operator may."""
    images = [{"r2_key": f"{ANA}/mine.png"}, {"r2_key": key}]
    problem = send(served, CAPTURES, {"images": images}, "ana", 403)
    assert problem["code"] == "NOT_ALLOWED"
    assert f"{ANA} is the first number" in problem["detail"]
    assert served.query("select count(*) from schedule_ingest.capture_session") == [(0,)]
    assert send(served, CAPTURES, {"user_id": ANA, "images": images}, "actor", 201)["user_id"] == ANA


@pytest.mark.parametrize("who", ["ana", "actor"])
def test_nobody_puts_words_into_the_outbox(served: Served, who: str) -> None:
    """S-48: a message that no session has caused would be delivered, and the record would not be true."""
    told = {
        "payload": {"notification_type": "event", "message": "Call this number", "event_ids": []},
        "key": "x",
        "tenant": str(ANA),
        "extras": {"schedule_date": DAY.isoformat(), "source_session_id": str(uuid4())},
    }
    problem = send(served, "/api/ledgers/schedule_notification/rows", told, who, 400)
    assert "is filled by the worker that reads sessions" in problem["detail"]
    assert messages(served) == []


def test_erase_leaves_no_row_of_the_user_and_touches_no_other(served: Served) -> None:
    """S-57, by an admin alone."""
    told = story(served)
    fail(served, messages(served)[0], "x")
    others = everything_of(served, BOB)
    path = place("users", ANA)
    for who in ("reader", "actor", "ana", "bob", "tenant"):
        assert served.client(who).delete(path).status_code == 403, who
    elsewhere = served.client("admin", **{"X-Tenant-Id": str(BOB)}).delete(path)
    assert elsewhere.status_code == 404
    gone = served.client("admin").delete(path)
    assert gone.status_code == 200, gone.text
    assert gone.json()["rows"] == sum(gone.json()["tables"].values()) > 10
    assert {rows for _, rows in everything_of(served, ANA)} == {0}
    assert everything_of(served, BOB) == others
    assert served.client("admin").delete(path).json()["rows"] == 0
    assert ask(served, place("captures", told.first), status=404)["code"] == "NOT_FOUND"
    assert next(row[:4] for row in audit(served)) == ("token:admin", "schedule erase", str(ANA), str(ANA))


def everything_of(served: Served, user: int) -> list[tuple[str, int]]:
    """How many rows a user has, by table."""
    own = ("capture_session", "day_schedule", "schedule_version", "day_snapshot")
    tables = [*own, "schedule_event", "schedule_notification"]
    told = [(name, f"select count(*) from schedule_ingest.{name} where user_id = {user}") for name in tables]
    of_session = "select count(*) from schedule_ingest.{} join schedule_ingest.capture_session as s"
    told += [
        (name, f"{of_session.format(name)} on s.id = session_id where s.user_id = {user}")
        for name in ("capture_image", "capture_attempt")
    ]
    return [(name, served.query(query)[0][0]) for name, query in told]


def test_ids_of_another_spelling_name_the_same_user(served: Served) -> None:
    story(served)
    padded = served.client("admin", **{"X-Tenant-Id": "042"})
    assert [one["user_id"] for one in padded.get(place("days")).json()["days"]] == [ANA]
    assert padded.get(DAY_PLACE).status_code == 200


def test_a_new_version_is_there_at_once(served: Served) -> None:
    story(served)
    seen(served, [TEN, SCHOOL], 40)
    assert ask(served, DAY_PLACE)["version"] == 3
    assert UUID(ask(served, DAY_PLACE)["session_id"])
