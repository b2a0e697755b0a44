"""The settings of schedules: how captures become days, and how the messages about them are sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from holdfast.db import parsers
from holdfast.db.parsers import choice, setting

WHOLE = parsers.at_least(1)
COMPANY_WORDS = ("ab", "hb", "stadservice", "stadtjanst", "stadning")
_BUCKET = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/?(\?\S*)?"
_HINT = (
    "must be a folder like file:///srv/captures or a bucket like s3://captures?endpoint=https://r2.example"
)


def _lasting(least: float) -> Callable[[str], float]:
    """A duration that is not too short."""

    def parse(text: str) -> float:
        found = parsers.seconds(text)
        if found < least:
            raise ValueError(f"must be at least {least:g} s, not {text!r}")
        return found

    return parse


def _name(text: str) -> str:
    """The name of an extractor; whether there is one is judged where users' own ones are known."""
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", text):
        raise ValueError(f"must be a name like sample, fixture, noise or ocr, not {text!r}")
    return text


def _object_store(text: str) -> str:
    """Where pictures are. A refused text is not repeated, as somebody may have put a password into it."""
    if text.startswith("file:"):
        if not re.fullmatch(r"file:///[^?#\0]*", text):
            raise ValueError(_HINT)
    elif not re.fullmatch(_BUCKET, text):
        raise ValueError(_HINT)
    return text


def _zone(text: str) -> str:
    """A time zone that this machine knows by name."""
    try:
        ZoneInfo(text)
    except (KeyError, ValueError, OSError):  # it reads a file, which may be a folder, too
        raise ValueError(f"must be a time zone like Europe/Stockholm, not {text!r}") from None
    return text


def _company_words(text: str) -> tuple[str, ...]:
    """Single words, as names are compared word by word; `none` stands for no word at all."""
    if text.lower() == "none":
        return ()
    found = parsers.words(text)
    if not found or not all(word.isalnum() for word in found):
        raise ValueError(f"must be words of letters, with commas between, or none, not {text!r}")
    return found


def _target(text: str) -> str:
    """Where messages are posted to. A refused text is not repeated: such addresses are often secrets."""
    try:
        parts = urlsplit(text)
        good = bool(re.fullmatch(r"https?://[^\s#]+", text) and parts.hostname and parts.port != 0)
    except ValueError:  # a port that is none
        good = False
    if not good:
        raise ValueError("must be a URL like https://bot.example/messages, without a fragment")
    return text


def _token(text: str) -> str:
    """A token goes into a path, so nothing else may be in it."""
    if not re.fullmatch(r"[0-9]{1,20}:[A-Za-z0-9_-]{8,128}", text):
        raise ValueError("must be a bot's token, which is a number, a colon and letters")
    return text


@dataclass(frozen=True, kw_only=True)
class ScheduleSettings:
    """How schedules are read, compared and told; durations are seconds."""

    schedules_poll_seconds: float = setting(
        parsers.seconds, 5.0, "how often the loop looks for a capture session", "WORKER_POLL_SECONDS"
    )
    schedules_idle_timeout_seconds: int = setting(
        parsers.at_least(0), 25, "a session is complete when its newest image is this many seconds old"
    )
    schedules_idle_log_every: int = setting(
        WHOLE, 12, "of the looks that find nothing, the first is logged, and then each one of so many"
    )
    schedules_concurrency: int = setting(WHOLE, 4, "how many sessions a worker processes at once, at least 1")
    schedules_lease_timeout_seconds: float = setting(
        parsers.seconds, 300.0, "a session whose worker was silent for this long is taken over"
    )
    schedules_heartbeat_seconds: float = setting(
        parsers.seconds, 10.0, "how often the lease of a session is renewed; less than a third of its timeout"
    )
    schedules_max_lost: int = setting(WHOLE, 5, "a session that lost this many workers in a row is given up")
    schedules_user_order: bool = setting(
        parsers.flag, False, "true: a session waits while an older one of its user is not done"
    )
    schedules_extractor: str = setting(
        _name, "fixture", "what reads a session: fixture, noise, ocr, sample, or the name of one of your own"
    )
    schedules_fixture_path: Path | None = setting(  # noqa: RUF009 (a Path is immutable)
        parsers.path,
        None,
        "the file that fixture and noise read, or a folder of them; without it they leave sessions alone",
    )
    schedules_noise_seed: int = setting(
        parsers.at_least(0), 0, "what the noise follows from: equal seeds give equal noise"
    )
    schedules_object_store: str | None = setting(
        _object_store, None, "where the images are: file:///folder or s3://bucket?endpoint=…&region=…"
    )
    schedules_summary_threshold: int = setting(
        WHOLE, 3, "so many changes of one session, or more, are told in one message, at least 1"
    )
    schedules_timezone: str | None = setting(
        _zone,
        None,
        "the users' time zone, like Europe/Stockholm: messages say today, and past days are quiet",
    )
    schedules_company_words: tuple[str, ...] = setting(
        _company_words, COMPANY_WORDS, "words that are no part of a customer's name, with commas between"
    )
    schedules_delivery: Literal["off", "log", "file", "webhook", "telegram", "own"] = choice(
        "off",
        ("off", "log", "file", "webhook", "telegram", "own"),
        "how messages are sent: off (by another service), log, file, webhook, telegram, or own (your sender)",
    )
    schedules_delivery_poll_seconds: float = setting(
        _lasting(1), 3.0, "how often pending messages are looked for, at least 1"
    )
    schedules_delivery_batch: int = setting(
        parsers.within(1, 100), 20, "how many messages are sent between two looks: 1 to 100"
    )
    schedules_delivery_timeout_seconds: float = setting(
        parsers.seconds, 10.0, "a send that takes longer has failed for now"
    )
    schedules_delivery_max_attempts: int = setting(
        WHOLE, 5, "how often a message is tried before it has failed, at least 1"
    )
    schedules_delivery_file: Path | None = setting(  # noqa: RUF009 (a Path is immutable)
        parsers.path, None, "the file that delivery by file appends to, one JSON line for each message"
    )
    schedules_delivery_url: str | None = setting(
        _target, None, "where delivery by webhook posts to", secret=True
    )
    schedules_delivery_secret: str | None = setting(
        parsers.secret, None, "what the bodies of webhooks are signed with (HMAC-SHA256)", secret=True
    )
    schedules_telegram_token: str | None = setting(
        _token, None, "the token of the bot that delivers by telegram", secret=True
    )
    schedules_telegram_url: str = setting(
        parsers.base_url, "https://api.telegram.org", "where Telegram's Bot API is"
    )


_NEEDS = {  # a way of delivery, and the setting that it cannot do without
    "file": "schedules_delivery_file",
    "webhook": "schedules_delivery_url",
    "telegram": "schedules_telegram_token",
}


def schedule_contradictions(
    settings: ScheduleSettings, longest_transaction: float, wrong: Collection[str]
) -> list[str]:
    """What each setting allows, but not the two together; a setting that is `wrong` anyway is left out.

    `longest_transaction`: seconds after which the server ends a transaction in which nothing happens.
    """
    problems: list[str] = []
    beat, lease = settings.schedules_heartbeat_seconds, settings.schedules_lease_timeout_seconds
    if 3 * beat >= lease and not {"schedules_heartbeat_seconds", "schedules_lease_timeout_seconds"} & {
        *wrong
    }:
        problems.append(
            f"HOLDFAST_SCHEDULES_HEARTBEAT_SECONDS ({beat:g}s) must be less than a third of "
            f"HOLDFAST_SCHEDULES_LEASE_TIMEOUT_SECONDS ({lease:g}s), or a pause costs a session its lease"
        )
    if (
        settings.schedules_extractor == "ocr"
        and not settings.schedules_object_store
        and "schedules_object_store" not in wrong
    ):
        problems.append("HOLDFAST_SCHEDULES_EXTRACTOR=ocr needs HOLDFAST_SCHEDULES_OBJECT_STORE")
    return problems + _delivery_contradictions(settings, longest_transaction, wrong)


def _delivery_contradictions(
    settings: ScheduleSettings, longest_transaction: float, wrong: Collection[str]
) -> list[str]:
    way, timeout = settings.schedules_delivery, settings.schedules_delivery_timeout_seconds
    problems: list[str] = []
    needed = _NEEDS.get(way)
    if needed and needed not in wrong and getattr(settings, needed) is None:
        problems.append(f"HOLDFAST_SCHEDULES_DELIVERY={way} needs HOLDFAST_{needed.upper()}")
    compared = {"schedules_delivery_timeout_seconds", "db_idle_in_transaction_seconds"}
    if way != "off" and timeout >= longest_transaction and not compared & {*wrong}:
        problems.append(
            f"HOLDFAST_SCHEDULES_DELIVERY_TIMEOUT_SECONDS ({timeout:g}s) must be less than "
            f"HOLDFAST_DB_IDLE_IN_TRANSACTION_SECONDS ({longest_transaction:g}s): a message is locked "
            "while it is sent"
        )
    return problems
