"""`holdfast schedules`: captures come in from the shell, and days come of them (S-54)."""

from __future__ import annotations

import getpass
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from cli.kit import Done, Query, Run, Show, Start

ME = f"cli:{getpass.getuser()}"
DAY = "2999-03-02"  # never over, in whatever zone
Saw = Callable[..., str]


def entry(start: str, end: str = "18:00", title: str = "Marie Sjöberg") -> dict[str, str]:
    return {"start": start, "end": end, "title": title, "location": "Billdal"}


@pytest.fixture
def folder(folder: Path) -> Path:
    """With a place for what the extractor reads."""
    (folder / "days").mkdir()
    return folder


@pytest.fixture
def environment(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """What the extractor reads are files of the test's own folder."""
    return {**environment, "HOLDFAST_SCHEDULES_FIXTURE_PATH": str(folder / "days")}


@pytest.fixture
def saw(holdfast: Run, folder: Path) -> Saw:
    """`saw(42, entry("09:00"))`: the user's day was captured like this, and processed; the session's id."""

    def saw(user: int, *entries: dict[str, str], day: str = DAY) -> str:
        written = {"schedule_date": day, "entries": entries}
        (folder / "days" / f"{user}.json").write_text(json.dumps(written))
        key = holdfast("schedules", "add", str(user)).out.strip()
        done = holdfast("schedules", "run-once")
        assert (done.code, done.err) == (0, "")
        assert done.out.split()[0] == key
        return key

    return saw


def fails(done: Done, code: int, said: str) -> None:
    assert (done.code, done.out) == (code, ""), done
    assert said in done.err
    assert len(done.err.splitlines()) == 1


# -- captures --------------------------------------------------------------------------------------------


def test_a_capture_is_added_with_its_pictures(holdfast: Run, query: Query) -> None:
    """S-54, S-3, S-4: in their order, with the messages that brought them, all or nothing."""
    arguments = ("42", "a.png", "b.png", "--message-id", "7", "--message-id", "8")
    key = holdfast("schedules", "add", *arguments).out.strip()
    images = (
        "select session_id::text, sequence, r2_key, telegram_message_id from schedule_ingest.capture_image"
    )
    assert query(images + " order by sequence") == [(key, 1, "a.png", 7), (key, 2, "b.png", 8)]
    told = holdfast("schedules", "add", "42", "--json").data
    added = "select user_id, state::text from schedule_ingest.capture_session where id = %s"
    assert query(added, told["id"]) == [(42, "pending")]
    sessions = "select count(*) from schedule_ingest.capture_session"
    again = holdfast("schedules", "add", "42", "c.png", "a.png")
    fails(again, 5, "'a.png'")
    assert query(sessions) == [(2,)], "nothing of it was added"
    shown = holdfast("schedules", "capture", key)
    assert shown.code == 0
    for word in ("a.png", "b.png", "pending", "42"):
        assert word in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x",), "USER: 'x' is not a whole number"),
        ((str(2**63),), "out of range"),
        (("42", "a.png", "--message-id", "1", "--message-id", "2"), "--message-id: give one for each"),
        (("42", " "), "r2_key"),
        (("42", "a.png", "--message-id", str(2**70)), "out of range"),
    ],
)
def test_a_capture_that_cannot_be_is_refused(
    holdfast: Run, query: Query, arguments: tuple[str, ...], said: str
) -> None:
    fails(holdfast("schedules", "add", *arguments), 2, said)
    assert query("select * from schedule_ingest.capture_session") == []


def test_one_session_is_processed_at_a_time(holdfast: Run, folder: Path, query: Query) -> None:
    """S-54, S-10: any that is pending, the oldest first; what changed nothing is told as such."""
    (folder / "days" / "42.json").write_text(json.dumps({"schedule_date": DAY, "entries": [entry("09:00")]}))
    first, second = (holdfast("schedules", "add", "42").out.strip() for _ in range(2))
    assert holdfast("schedules", "run-once").out == f"{first} done\n"
    states = "select id::text, state::text from schedule_ingest.capture_session order by created_at"
    assert query(states) == [(first, "done"), (second, "pending")]
    told = holdfast("schedules", "run-once", "--json").data
    assert told == {"session": second, "outcome": "unchanged", "state": "done", "error": None}
    nothing = holdfast("schedules", "run-once")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no session is pending\n")
    assert holdfast("schedules", "run-once", "--json").data is None


def test_a_session_that_fails_is_told_with_its_error(holdfast: Run, folder: Path) -> None:
    """S-18, S-54: the exit code says so, too."""
    (folder / "days" / "42.json").write_text('{"schedule_date": "2026-02-30", "entries": []}')
    key = holdfast("schedules", "add", "42").out.strip()
    done = holdfast("schedules", "run-once")
    assert (done.code, done.out) == (1, f"{key} failed\n")
    assert done.err.splitlines()[-1].startswith("schedule_date_invalid: ")  # the log is above
    shown = holdfast("schedules", "capture", key, "--json").data
    assert (shown["state"], shown["claims"][0]["outcome"]) == ("failed", "failed")
    assert shown["error"].startswith("schedule_date_invalid: ")
    requeued = holdfast("requeue", "capture_session", key)
    assert requeued.code == 0
    told = holdfast("schedules", "run-once", "--json")
    assert (told.code, told.data["session"], told.data["state"]) == (1, key, "failed")


def test_the_loop_processes_sessions_until_it_is_told_to_stop(
    holdfast: Run, start: Start, folder: Path
) -> None:
    """S-52, S-53: its log is JSON, a line an event, on stdout; it opens no port; it stops in good order."""
    (folder / "days" / "default.json").write_text(json.dumps({"schedule_date": DAY, "entries": []}))
    key = holdfast("schedules", "add", "42").out.strip()
    quick = {"HOLDFAST_SCHEDULES_IDLE_TIMEOUT_SECONDS": "0", "HOLDFAST_SCHEDULES_POLL_SECONDS": "0.1"}
    process = start("schedules", "loop", env=quick)
    assert process.stdout is not None
    told: list[dict[str, Any]] = []
    for line in process.stdout:
        told.append(json.loads(line))
        if told[-1].get("event") == "iteration.end" and told[-1].get("sessions"):
            break
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    told += [json.loads(line) for line in rest.splitlines()]
    events = [one["event"] for one in told if one.get("session_id") == key]
    assert events[0] == "session.finalized"
    assert "session.processed" in events
    assert {one["correlation_id"] for one in told if one.get("session_id") == key} == {key}
    assert holdfast("schedules", "capture", key, "--json").data["state"] == "done"


# -- the day ---------------------------------------------------------------------------------------------


def test_a_day_is_shown_now_and_at_a_time(holdfast: Run, saw: Saw, query: Query) -> None:
    """S-54: with its shifts; at a time, what was known then."""
    first = saw(42, entry("09:00"))
    ((then,),) = query("select max(detected_at)::text from schedule_ingest.schedule_event")
    saw(42, entry("10:00"), entry("12:00", title="Bo Ek"))
    shown = holdfast("schedules", "day", "42", DAY)
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown.out.splitlines()]
    assert ["version", "2"] in lines
    assert lines[-2:] == [
        ["10:00", "18:00", "Marie Sjoberg", "UNKNOWN", "Billdal"],
        ["12:00", "18:00", "Bo Ek", "UNKNOWN", "Billdal"],
    ]
    told = holdfast("schedules", "day", "42", DAY, "--at", then, "--json").data
    assert (told["version"], told["session_id"], told["schedule_date"]) == (1, first, DAY)
    assert [one["start"] for one in told["shifts"]] == ["09:00"]
    assert told["payload"]["entries"] == [entry("09:00")]
    fails(holdfast("schedules", "day", "42", DAY, "--at", "2026-01-01T00:00:00Z"), 4, "no day of user 42")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("day", "42", "2026-02-30"), 2, "DATE: must be a day like 2026-03-02, not '2026-02-30'"),
        (("day", "42", "20260302"), 2, "DATE: must be a day"),
        (("day", "42", "2026-W10-1"), 2, "DATE: must be a day"),
        (("day", "me", DAY), 2, "USER: 'me' is not a whole number"),
        (("day", "42", DAY, "--at", "noon"), 2, "--at: must be a time"),
        (("day", "42", DAY, "--at", "2026-03-01T12:00:00"), 2, "--at: must have a time zone"),
        (("day", "42", DAY), 4, f"no day of user 42 with the id {DAY}"),
        (("day", "--", "-5", DAY), 4, "no day of user -5"),
        (("days", "me"), 2, "USER"),
        (("days", "--since", "x"), 2, "--since: must be a day"),
        (("days", "--cursor", "x"), 2, "--cursor: is not one that a page gave out"),
        (("history", "42", DAY), 4, "no day of user 42"),
        (("diff", "42", DAY, "1", "2"), 4, "no version of user 42"),
        (("rebuild", "42", DAY), 4, "no day of user 42"),
        (("verify", "42", DAY), 4, "no day of user 42"),
        (("capture", "x"), 2, "ID: 'x' is not a UUID"),
        (("capture", str(uuid4())), 4, "no capture with the id"),
        (("notification", "x"), 4, "no notification with the id x"),
        (("notifications", "--status", "lost"), 2, "--status: must be one of pending, sent, failed"),
        (("resend", "x"), 4, "no schedule_notification with the id x"),
        (("erase", "42"), 2, "--yes: is needed here"),
    ],
)
def test_what_is_not_there_or_cannot_be_read_is_one_sentence(
    holdfast: Run, arguments: tuple[str, ...], code: int, said: str
) -> None:
    fails(holdfast("schedules", *arguments), code, said)


def test_the_days_are_listed_page_by_page(holdfast: Run, saw: Saw) -> None:
    """S-54: the latest first, everybody's or one user's."""
    saw(42, entry("09:00"))
    saw(42, day="2999-03-05")
    saw(43, entry("09:00"), entry("10:00", title="Bo Ek"))
    lines = [line.split() for line in holdfast("schedules", "days").out.splitlines()]
    assert lines[0] == ["DAY", "USER", "VERSION", "SHIFTS", "SEEN", "SESSION"]
    assert [line[:4] for line in lines[1:]] == [
        ["2999-03-05", "42", "1", "0"],
        [DAY, "43", "1", "2"],
        [DAY, "42", "1", "1"],
    ]
    page = holdfast("schedules", "days", "--limit", "1", "--json").data
    assert [one["schedule_date"] for one in page["days"]] == ["2999-03-05"]
    more = holdfast("schedules", "days", "--json", "--cursor", page["cursor"]).data
    assert ([one["user_id"] for one in more["days"]], more["cursor"]) == ([43, 42], None)
    mine = holdfast("schedules", "days", "42", "--until", DAY, "--json").data["days"]
    assert [(one["schedule_date"], one["shifts"]) for one in mine] == [(DAY, 1)]
    assert holdfast("schedules", "days", "--since", "2999-03-06", "--json").data["days"] == []


def test_the_history_of_a_day_is_shown(holdfast: Run, saw: Saw) -> None:
    """S-54: versions, events, messages, captures."""
    first, second = saw(42, entry("09:00")), saw(42, entry("10:00"))
    shown = holdfast("schedules", "history", "42", DAY).out
    for words in (
        *("versions", "events", "messages", "captures", first, second),
        *("09:00 to 18:00 Marie Sjoberg, Billdal → 10:00 to 18:00 Marie Sjoberg, Billdal", "time changed"),
        f"On {DAY} Billdal shift moved 09:00 → 10:00",
    ):
        assert words in shown
    told = holdfast("schedules", "history", "42", DAY, "--json").data
    assert [one["version"] for one in told["versions"]] == [1, 2]
    assert [one["type"] for one in told["events"]] == ["shift_added", "shift_time_changed"]
    assert (told["events"][0]["old"], told["events"][0]["new"]["start"]) == (None, "09:00")
    assert UUID(told["events"][0]["id"])
    assert len(told["events"][0]["old_value_hash"]) == 64
    assert [one["status"] for one in told["notifications"]] == ["pending", "pending"]
    assert [one["id"] for one in told["captures"]] == [first, second]
    assert told["cut"] is False


def test_two_versions_are_shown_side_by_side(holdfast: Run, saw: Saw) -> None:
    """S-54: what is the same, what has changed, and what it means."""
    saw(42, entry("09:00"), entry("12:00", title="Bo Ek"))
    saw(42, entry("10:00"), entry("12:00", title="Bo Ek"), entry("19:00", "20:00", "Cia Lo"))
    shown = holdfast("schedules", "diff", "42", DAY, "1", "2").out
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()]
    assert lines[0] == ["VERSION 1", "VERSION 2", "DIFFERS"]
    assert lines[1][0] == "changed"
    assert lines[1][-1] == "start"
    assert [line[0] for line in lines[2:4]] == ["same", "added"]
    assert "time changed" in shown
    told = holdfast("schedules", "diff", "42", DAY, "2", "1", "--json").data
    assert (told["one"]["version"], told["other"]["version"]) == (2, 1)
    assert [one["mark"] for one in told["lines"]] == ["changed", "same", "removed"]
    assert [one["type"] for one in told["changes"]] == ["shift_time_changed", "shift_removed"]


# -- verify and rebuild ----------------------------------------------------------------------------------


def test_the_record_is_verified_and_a_snapshot_rebuilt(holdfast: Run, saw: Saw, query: Query) -> None:
    """S-54, S-46: replay against snapshot; the snapshot from the events; it is in the audit."""
    saw(42, entry("09:00"))
    saw(42, entry("10:00"))
    saw(43, entry("09:00"))
    true = holdfast("schedules", "verify")
    assert (true.code, true.err) == (0, "")
    assert true.out == "2 days, 3 versions, 3 events, 3 messages: the record is true\n"
    query("update schedule_ingest.day_snapshot set snapshot_payload = '[]' where user_id = 42")
    wrong = holdfast("schedules", "verify")
    assert wrong.code == 6
    assert wrong.out.splitlines() == [
        f"42 {DAY}: the snapshot lacks 10:00 to 18:00 Marie Sjoberg, which the events have brought",
        "2 days, 3 versions, 3 events, 3 messages: 1 thing is not true",
    ]
    told = holdfast("schedules", "verify", "42", DAY, "--json")
    assert (told.code, told.data["true"], told.data["days"], told.data["found"]) == (6, False, 1, 1)
    assert told.data["problems"][0]["user_id"] == 42
    assert holdfast("schedules", "verify", "43").code == 0
    rebuilt = holdfast("schedules", "rebuild", "42", DAY, "--by", "ana")
    assert (rebuilt.code, "10:00" in rebuilt.out) == (0, True)
    assert holdfast("schedules", "verify", "--json").data["true"] is True
    assert holdfast("schedules", "rebuild", "42", DAY, "--json").data["shifts"][0]["start"] == "10:00"
    audit = "select who, action, row_id from holdfast_audit order by id"
    assert query(audit) == [
        ("cli:ana", "schedule rebuild", f"42/{DAY}"),
        (ME, "schedule rebuild", f"42/{DAY}"),
    ]


# -- messages and erasure --------------------------------------------------------------------------------


def test_a_failed_message_can_be_sent_again_by_a_person(holdfast: Run, saw: Saw, query: Query) -> None:
    """S-51: it is pending again; one that has not failed is refused."""
    saw(42, entry("09:00"))
    (message,) = holdfast("schedules", "notifications", "--json").data["notifications"]
    refused = holdfast("schedules", "resend", message["id"])
    fails(refused, 5, "it is pending")
    query("update schedule_ingest.schedule_notification set status = 'failed'")
    query("insert into schedule_ingest.notification_attempt values (%s, 1, now(), 'HTTP 403')", message["id"])
    failed = holdfast("schedules", "notifications", "--status", "failed").out
    assert f"{message['message']} (HTTP 403)" in failed
    shown = holdfast("schedules", "notification", message["id"])
    assert (shown.code, "HTTP 403" in shown.out) == (0, True)
    done = holdfast("schedules", "resend", message["id"], "--reason", "they are back")
    assert (done.code, done.out) == (0, f"{message['id']} will be sent again\n")
    told = holdfast("schedules", "notification", message["id"], "--json").data
    assert (told["status"], told["tries"][0]["error"]) == ("pending", "HTTP 403")
    assert query("select who, action, ledger, row_id from holdfast_audit") == [
        (ME, "requeue", "schedule_notification", message["id"])
    ]
    assert holdfast("schedules", "notifications", "43", "--json").data["notifications"] == []


def test_erase_removes_a_user_and_no_other(holdfast: Run, saw: Saw, query: Query) -> None:
    """S-57: for good, and the audit keeps that it was done."""
    saw(42, entry("09:00"))
    saw(43, entry("09:00"))
    refused = holdfast("schedules", "erase", "42", "--json")
    assert (refused.code, json.loads(refused.err)["field"]) == (2, "--yes")
    gone = holdfast("schedules", "erase", "42", "--yes", "--json").data
    assert (gone["user_id"], gone["tables"]["schedule_version"], gone["rows"]) == (
        42,
        1,
        sum(gone["tables"].values()),
    )
    fails(holdfast("schedules", "day", "42", DAY), 4, "no day of user 42")
    assert holdfast("schedules", "day", "43", DAY).code == 0
    assert holdfast("schedules", "erase", "42", "--yes").out == "0 rows of user 42 were removed\n"
    assert query("select who, action, row_id, rows from holdfast_audit order by id") == [
        (ME, "schedule erase", "42", gone["rows"]),
        (ME, "schedule erase", "42", 0),
    ]


def test_erase_asks_at_a_terminal(holdfast: Run, saw: Saw, terminal: Show) -> None:
    """S-57: a no leaves everything as it is."""
    saw(42, entry("09:00"))
    asked = terminal("schedules", "erase", "42")
    asked.until("remove every row of user 42 for good?")
    asked.type(b"n\n")
    assert asked.end() == 1
    assert holdfast("schedules", "day", "42", DAY).code == 0
    again = terminal("schedules", "erase", "42")
    again.until("for good?")
    again.type(b"y\n")
    assert again.end() == 0
    assert "rows of user 42 were removed" in again.text
    assert holdfast("schedules", "day", "42", DAY).code == 4


def test_nothing_that_was_read_moves_a_terminals_cursor(holdfast: Run, saw: Saw, query: Query) -> None:
    """What pictures and other programs say is shown, and not obeyed."""
    saw(42, entry("09:00", title="Ada"))
    query("alter table schedule_ingest.schedule_notification disable trigger user")
    query("update schedule_ingest.schedule_notification set message = E'\\x1b[2Jgone'")
    for arguments in (("notifications",), ("history", "42", DAY)):
        shown = holdfast("schedules", *arguments)
        assert "\x1b" not in shown.out
        assert "gone" in shown.out
