"""How a message reaches its user: senders, which one is set, and what the end of a send means.

A send may happen twice: a process can die between the send and the note of it, and what timed out may have
arrived. Whoever receives tells repetitions by the id of the notification, which is the same in every try.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import math
import os
import stat
import time
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from holdfast.apps.schedules.values import Notice
from holdfast.db.settings import Settings
from holdfast.engine.outcomes import Done, Fail, Retry
from holdfast.errors import MissingExtra, SettingsError

LOCK_PATIENCE = 1.0  # seconds
LEAST_WAIT, LONGEST_WAIT = 1.0, 3600.0  # seconds: a receiver's wish to wait is obeyed within these
LONGEST_REASON = 1000  # characters

log = logging.getLogger(__name__)
T = TypeVar("T")


class Passing(Exception):
    """The send failed for now and is worth another try, after `after` seconds where the receiver said so."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.after = reason, after


class Permanent(Exception):
    """The send failed and would always fail."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Sender(Protocol):
    """Brings one message to its user.

    >>> class Printer:
    ...     async def send(self, notice: Notice) -> None:
    ...         print(notice.user_id, notice.message)
    """

    async def send(self, notice: Notice) -> None:
        """Returns when the message is with its receiver; raises `Passing` or `Permanent` when it is not.

        Any other exception counts as passing.
        """
        ...


def told(notice: Notice) -> dict[str, Any]:
    """A notice as JSON, named as the columns of its table: what files and webhooks get."""
    return {
        "notification_id": notice.id,
        "user_id": notice.user_id,
        "schedule_date": notice.schedule_date.isoformat(),
        "source_session_id": str(notice.session_id),
        "notification_type": notice.type,
        "message": notice.message,
        "event_ids": [str(event) for event in notice.event_ids],
    }


class LogSender:
    """Says each message in the log, for trying things out."""

    async def send(self, notice: Notice) -> None:
        """Logs the message; fails for now when nobody would hear it, as it must not count as sent then."""
        if not log.isEnabledFor(logging.INFO):
            raise Passing("the log leaves out INFO, at which messages are said")
        session = str(notice.session_id)
        extra = {"event": "notification.sent", **told(notice)}
        extra |= {"session_id": session, "correlation_id": session}
        del extra["message"]  # is what is said
        log.info("%s", notice.message, extra=extra)


class FileSender:
    """Appends each message to a file, as one line of JSON; several processes may share the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def send(self, notice: Notice) -> None:
        """Returns when the line is on the disk."""
        line = json.dumps(told(notice), ensure_ascii=False).encode() + b"\n"
        try:
            await asyncio.to_thread(_append, self.path, line)
        except OSError as error:
            raise Passing(
                f"{self.path} cannot be written: {error.strerror or type(error).__name__}"
            ) from None


def _lock(file: int) -> None:
    """Waits a little for whoever else writes; a thread that waited for ever would be missed elsewhere."""
    until = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(None, "somebody else keeps it locked") from None
            time.sleep(0.01)


def _append(path: Path, line: bytes) -> None:
    """Appends a whole line or nothing. A half one, left behind by a power cut, is ended first."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _lock(file)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise Permanent(f"{path} is no regular file")
        size = found.st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line
        try:
            if os.write(file, line) < len(line):
                raise OSError(None, "there is no room for the whole line")
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
    if size == 0:
        _keep_name(path.parent)


def _keep_name(folder: Path) -> None:
    """Brings the name of a new file to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(settings: Settings, own: Sender | None = None) -> Sender | None:
    """The sender that is set, or None when another service sends; `own` is the one of the user's program.

    Raises `SettingsError` for what it needs and has not, and `MissingExtra` when there is no HTTP.
    """
    way = settings.schedules_delivery
    if own is not None and way != "own":
        log.warning("a sender was given, but HOLDFAST_SCHEDULES_DELIVERY is %s: it is not used", way)
    match way:
        case "off":
            return None
        case "own":
            return own if own is not None else _refuse("DELIVERY=own needs a sender, given to the app")
        case "log":
            if settings.log_level not in ("DEBUG", "INFO"):
                _refuse(
                    f"DELIVERY=log needs HOLDFAST_LOG_LEVEL to be INFO or DEBUG, not {settings.log_level}"
                )
            return LogSender()
        case "file":
            path = _needed(settings.schedules_delivery_file, "DELIVERY_FILE")
            if path.is_dir() or not path.parent.is_dir():
                _refuse("DELIVERY_FILE must be a file in a folder that exists")
            return FileSender(path)
        case "webhook" | "telegram":
            return _over_http(settings)


def _over_http(settings: Settings) -> Sender:
    try:
        from holdfast.apps.schedules import sending
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        what = f"delivery by {settings.schedules_delivery}"
        raise MissingExtra(what=what, extra="schedules") from None
    patience = settings.schedules_delivery_timeout_seconds
    if settings.schedules_delivery == "telegram":
        token = _needed(settings.schedules_telegram_token, "TELEGRAM_TOKEN")
        name, address = "TELEGRAM_URL", settings.schedules_telegram_url
    else:
        token, name = None, "DELIVERY_URL"
        address = _needed(settings.schedules_delivery_url, name)
    try:
        if token is not None:
            return sending.TelegramSender(token, url=address, patience=patience)
        return sending.WebhookSender(address, secret=settings.schedules_delivery_secret, patience=patience)
    except ValueError:  # has not the address in it, which may be a secret
        return _refuse(f"{name} is no address that can be asked")


def _needed(value: T | None, name: str) -> T:
    return value if value is not None else _refuse(f"{name} must be set")


def _refuse(problem: str) -> NoReturn:
    raise SettingsError(
        title="messages cannot be sent as it is set:", problems=[f"HOLDFAST_SCHEDULES_{problem}"]
    )


async def deliver(sender: Sender, notice: Notice, timeout: float) -> Done | Retry | Fail:
    """Sends one message within `timeout` seconds and says what came of it; a failure is not raised."""
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            await sender.send(notice)
    except Permanent as failed:
        return Fail(_short(failed.reason), code="send_refused")
    except Passing as failed:
        return Retry(_short(failed.reason), after=_bounded(failed.after), code="send_failed")
    except Exception as error:
        if limit.expired():
            return Retry(f"the send took longer than {timeout:g} s", code="send_timed_out")
        log.exception("the sender of messages failed", extra={"notification_id": notice.id})
        return Retry(_short(f"{type(error).__name__}: {error}"), code="sender_error")
    return Done()


def _short(reason: str) -> str:
    return reason[:LONGEST_REASON]


def _bounded(after: float | None) -> float | None:
    if after is None or math.isnan(after):
        return None
    return min(max(after, LEAST_WAIT), LONGEST_WAIT)
