"""How messages are sent: which sender is set, and what the end of a send means for its row (S-50, S-51)."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import resource
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast.apps.schedules import senders
from holdfast.apps.schedules.senders import (
    FileSender,
    LogSender,
    Passing,
    Permanent,
    Sender,
    deliver,
    make,
    told,
)
from holdfast.apps.schedules.sending import TelegramSender, WebhookSender
from holdfast.apps.schedules.values import Notice
from holdfast.db.settings import Settings
from holdfast.engine.outcomes import Done, Fail, Retry
from holdfast.errors import MissingExtra, SettingsError

NOTICE = Notice(
    id="fb257a52e34f817737f8c34d49b7bf8c4387aa4497d1a20e9b5290b762cf1631",
    user_id=42,
    schedule_date=date(2026, 3, 2),
    session_id=UUID("00000000-0000-4000-8000-000000000001"),
    type="event",
    message="New shift added on 2026-03-02 09:00\N{EN DASH}18:00 in Mölndal",
    event_ids=(UUID("0e27eb93-1526-5f09-96bc-81ae5f883ff5"),),
)
TOLD = {
    "notification_id": NOTICE.id,
    "user_id": 42,
    "schedule_date": "2026-03-02",
    "source_session_id": "00000000-0000-4000-8000-000000000001",
    "notification_type": "event",
    "message": NOTICE.message,
    "event_ids": ["0e27eb93-1526-5f09-96bc-81ae5f883ff5"],
}


class Own:
    """A user's own sender, which ends as it is told."""

    def __init__(self, end: BaseException | None = None) -> None:
        self.end, self.sent = end, list[Notice]()

    async def send(self, notice: Notice) -> None:
        if self.end is not None:
            raise self.end
        self.sent.append(notice)


class Silent:
    """A sender that never comes to an end, and tells when it began and when it was stopped."""

    def __init__(self) -> None:
        self.began, self.stopped = asyncio.Event(), False

    async def send(self, notice: Notice) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped = True


async def ended(end: BaseException) -> Done | Retry | Fail:
    return await deliver(Own(end), NOTICE, 10)


# -- what the end of a send means --------------------------------------------------------------------------


async def test_a_send_that_returns_is_done() -> None:
    """S-50"""
    own = Own()
    assert await deliver(own, NOTICE, 10) == Done()
    assert own.sent == [NOTICE]


async def test_a_passing_failure_is_tried_again_when_its_receiver_wishes_or_by_the_backoff() -> None:
    """S-51"""
    assert await ended(Passing("busy")) == Retry("busy", after=None, code="send_failed")
    assert await ended(Passing("busy", 17.5)) == Retry("busy", after=17.5, code="send_failed")


@pytest.mark.parametrize(
    ("asked", "waits"), [(0.0, 1.0), (-5.0, 1.0), (86400.0, 3600.0), (math.inf, 3600.0), (math.nan, None)]
)
async def test_a_wish_to_wait_is_obeyed_within_bounds(asked: float, waits: float | None) -> None:
    """S-51: nobody can stop the messages of a user for ever, nor be asked in a tight loop."""
    assert await ended(Passing("busy", asked)) == Retry("busy", after=waits, code="send_failed")


async def test_a_permanent_failure_is_not_tried_again() -> None:
    """S-51"""
    assert await ended(Permanent("gone")) == Fail("gone", code="send_refused")


async def test_any_other_exception_is_passing_and_its_trace_is_in_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S-51: an own sender may have a bug, and the next message goes on."""
    assert await ended(KeyError("chat")) == Retry("KeyError: 'chat'", code="sender_error")
    (line,) = caplog.records
    assert line.exc_info is not None
    assert vars(line)["notification_id"] == NOTICE.id


async def test_an_own_timeout_of_a_sender_is_not_taken_for_ours() -> None:
    assert await ended(TimeoutError("mine")) == Retry("TimeoutError: mine", code="sender_error")


async def test_a_send_that_takes_too_long_is_stopped_and_tried_again() -> None:
    """S-50: the timeout of one send."""
    silent = Silent()
    assert await deliver(silent, NOTICE, 0.01) == Retry(
        "the send took longer than 0.01 s", code="send_timed_out"
    )
    assert silent.stopped


async def test_a_worker_that_stops_stops_the_send() -> None:
    silent = Silent()
    sending = asyncio.create_task(deliver(silent, NOTICE, 10))
    await silent.began.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert silent.stopped


async def test_a_long_reason_is_cut() -> None:
    outcome = await ended(Permanent("x" * 5000))
    assert isinstance(outcome, Fail)
    assert outcome.reason == "x" * 1000


# -- which sender ------------------------------------------------------------------------------------------


def settings(**values: object) -> Settings:
    return replace(Settings(), **{f"schedules_{name}": value for name, value in values.items()})  # type: ignore[arg-type]


def test_without_a_setting_another_service_sends() -> None:
    """S-50: the table is an outbox that somebody else may drain."""
    assert make(Settings()) is None


def test_each_way_of_delivery_has_its_sender(tmp_path: Path) -> None:
    """S-50"""
    own: Sender = Own()
    assert isinstance(make(settings(delivery="log")), LogSender)
    assert isinstance(make(settings(delivery="file", delivery_file=tmp_path / "messages")), FileSender)
    assert isinstance(make(settings(delivery="webhook", delivery_url="http://x/")), WebhookSender)
    assert isinstance(make(settings(delivery="telegram", telegram_token="1:abcdefgh")), TelegramSender)
    assert make(settings(delivery="own"), own) is own


def test_an_own_sender_is_used_when_it_is_set_and_a_forgotten_setting_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert make(Settings(), Own()) is None
    assert "HOLDFAST_SCHEDULES_DELIVERY is off" in caplog.text


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"delivery": "own"}, "HOLDFAST_SCHEDULES_DELIVERY=own needs a sender, given to the app"),
        ({"delivery": "file"}, "HOLDFAST_SCHEDULES_DELIVERY_FILE must be set"),
        (
            {"delivery": "file", "delivery_file": Path("no/such/folder/messages")},
            "HOLDFAST_SCHEDULES_DELIVERY_FILE must be a file in a folder that exists",
        ),
        (
            {"delivery": "file", "delivery_file": Path("/")},
            "HOLDFAST_SCHEDULES_DELIVERY_FILE must be a file in a folder that exists",
        ),
        ({"delivery": "webhook"}, "HOLDFAST_SCHEDULES_DELIVERY_URL must be set"),
        (
            {"delivery": "webhook", "delivery_url": "https://xn--/hidden"},
            "HOLDFAST_SCHEDULES_DELIVERY_URL is no address that can be asked",
        ),
        ({"delivery": "telegram"}, "HOLDFAST_SCHEDULES_TELEGRAM_TOKEN must be set"),
        (
            {"delivery": "telegram", "telegram_token": "1:abcdefgh", "telegram_url": "https://xn--"},
            "HOLDFAST_SCHEDULES_TELEGRAM_URL is no address that can be asked",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_sender_that_lacks_what_it_needs_stops_the_start(values: dict[str, object], problem: str) -> None:
    """S-50"""
    with pytest.raises(SettingsError) as caught:
        make(settings(**values))
    assert caught.value.problems == (problem,)


def test_without_httpx_the_start_says_what_to_install() -> None:
    """S-50: in a process of its own, where nothing has imported it yet."""
    program = """
import sys
sys.modules["httpx"] = None
from dataclasses import replace
from holdfast.apps.schedules.senders import LogSender, make
from holdfast.db.settings import Settings
from holdfast.errors import MissingExtra
assert isinstance(make(replace(Settings(), schedules_delivery="log")), LogSender)
try:
    make(replace(Settings(), schedules_delivery="webhook", schedules_delivery_url="http://x/"))
except MissingExtra as missing:
    print(missing)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == str(MissingExtra(what="delivery by webhook", extra="schedules")) + "\n"


# -- the log and the file ----------------------------------------------------------------------------------


async def test_the_log_has_the_message_and_whom_it_is_for(caplog: pytest.LogCaptureFixture) -> None:
    """S-50, S-53"""
    caplog.set_level(logging.INFO, senders.__name__)
    await LogSender().send(NOTICE)
    (line,) = caplog.records
    assert line.getMessage() == NOTICE.message
    expected = {**TOLD, "session_id": str(NOTICE.session_id), "correlation_id": str(NOTICE.session_id)}
    del expected["message"]
    assert expected.items() <= vars(line).items()


async def test_a_log_that_nobody_hears_does_not_count_as_sent(caplog: pytest.LogCaptureFixture) -> None:
    """S-50: delivery marks sent only what was said."""
    caplog.set_level(logging.WARNING, senders.__name__)
    assert isinstance(await deliver(LogSender(), NOTICE, 10), Retry)
    with pytest.raises(SettingsError, match="HOLDFAST_LOG_LEVEL"):
        make(replace(settings(delivery="log"), log_level="WARNING"))


def lines(path: Path) -> list[dict[str, Any]]:
    text = path.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.decode().removesuffix("\n").split("\n")]


async def test_a_file_gets_one_line_of_json_for_each_message(tmp_path: Path) -> None:
    """S-50"""
    path = tmp_path / "messages"
    odd = replace(NOTICE, id="odd", message='two\nlines and "quotes"')
    await FileSender(path).send(NOTICE)
    await FileSender(path).send(odd)
    assert lines(path) == [TOLD, {**TOLD, "notification_id": "odd", "message": odd.message}]
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Mölndal" in path.read_text()


async def test_a_line_that_a_power_cut_left_half_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "messages"
    path.write_bytes(b'{"notification_id": "ha')
    await FileSender(path).send(NOTICE)
    half, whole, rest = path.read_text().split("\n")
    assert (half, json.loads(whole), rest) == ('{"notification_id": "ha', TOLD, "")


async def test_a_file_that_cannot_be_written_is_a_passing_failure(tmp_path: Path) -> None:
    """S-51: somebody may mend it."""
    outcome = await deliver(FileSender(tmp_path / "gone" / "messages"), NOTICE, 10)
    assert outcome == Retry(
        f"{tmp_path}/gone/messages cannot be written: No such file or directory", code="send_failed"
    )


async def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    outcome = await deliver(FileSender(tmp_path / "pipe"), NOTICE, 10)
    assert outcome == Fail(f"{tmp_path}/pipe is no regular file", code="send_refused")


SEND = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID
from datetime import date
from holdfast.apps.schedules.senders import FileSender, deliver
from holdfast.apps.schedules.values import Notice

async def main(path, name, times):
    notice = Notice(id="", user_id=1, schedule_date=date(2026, 3, 2), session_id=UUID(int=1), type="event",
                    message="m" * 5000, event_ids=())
    for number in range(times):
        print(await deliver(FileSender(Path(path)), replace(notice, id=f"{name}-{number}"), 60), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_several_processes_write_to_one_file_and_every_line_is_whole(tmp_path: Path) -> None:
    """S-50: each worker of a deployment may send."""
    path = tmp_path / "messages"
    running = [
        subprocess.Popen([sys.executable, "-c", SEND, str(path), name, "25"], stdout=subprocess.PIPE)
        for name in "abcd"
    ]
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    ids = [line["notification_id"] for line in lines(path)]
    assert sorted(ids) == sorted(f"{name}-{number}" for name in "abcd" for number in range(25))


def test_a_full_disk_leaves_no_half_line_behind(tmp_path: Path) -> None:
    """S-51: a limit of the file's size stands for the disk; the write ends in the middle of the line."""
    path = tmp_path / "messages"
    path.write_text("{}\n")
    ran = subprocess.run(
        [sys.executable, "-c", SEND, str(path), "x", "1"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert ran.stdout.startswith("Retry(")
    assert "no room for the whole line" in ran.stdout
    assert path.read_text() == "{}\n"


def test_what_receivers_are_told_is_named_as_the_columns() -> None:
    assert told(NOTICE) == TOLD
