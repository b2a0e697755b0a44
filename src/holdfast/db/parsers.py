"""How the text of a setting is read: each parser answers with the value or says what would be right."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class Spec:
    parse: Callable[[str], object]
    meaning: str
    aliases: tuple[str, ...]


def setting(parse: Callable[[str], T], default: T, meaning: str, *aliases: str, secret: bool = False) -> T:
    return field(default=default, repr=not secret, metadata={"spec": Spec(parse, meaning, aliases)})


def choice(default: Word, words: tuple[Word, ...], meaning: str, *aliases: str) -> Word:
    def parse(text: str) -> Word:
        for word in words:
            if word.lower() == text.lower():
                return word
        raise ValueError(f"must be one of {', '.join(words)}, not {text!r}")

    return setting(parse, default, meaning, *aliases)


# The parsers: each returns the value or raises ValueError with what would be right.


def url(text: str) -> str:
    url = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", text)
    if not url.startswith("postgresql://"):
        raise ValueError("must be a URL like postgresql://user:password@host:5432/database")
    try:
        port = str(conninfo_to_dict(url).get("port", ""))
        if not re.fullmatch(r"[0-9,]*", port):  # libpq finds out only when it connects
            raise ValueError
    except (psycopg.Error, ValueError):  # their text may quote a part of the password
        raise ValueError(
            f"is no valid URL: {redacted(url)} (special characters in a password are written as %40 for @, "
            "%3A for :, %2F for /)"
        ) from None
    return url


def identifier(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text):
        raise ValueError(f"must be a name of a-z, 0-9 and _, at most 63 long, not {text!r}")
    return text


def path(text: str) -> Path:
    if not text:
        raise ValueError("must be a path")
    return Path(text).expanduser()


def at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise ValueError(f"must be a whole number of at least {least}, not {text!r}")
        return int(text)

    return parse


def within(least: int, most: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return parse


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|)", text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise ValueError(f"must be a duration above 0, like 10, 2.5, 500ms, 10s, 2m or 1h, not {text!r}")
    return seconds


def seconds_or_zero(text: str) -> float:
    return 0.0 if re.fullmatch(r"0{1,9}(\.0{1,9})?\s*(ms|s|m|h|)", text) else seconds(text)


def share(text: str) -> float:
    if not re.fullmatch(r"0?\.[0-9]{1,9}|[01](\.0{1,9})?", text):
        raise ValueError(f"must be a share between 0 and 1, like 0.1, not {text!r}")
    return float(text)


def text(text: str) -> str:
    return text


def flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def between(least: float, most: float) -> Callable[[str], float]:
    """A duration within bounds."""

    def parse(text: str) -> float:
        found = seconds(text)
        if not least <= found <= most:
            raise ValueError(f"must lie between {least:g} and {most:g} seconds, not {text!r}")
        return found

    return parse


def words(text: str) -> tuple[str, ...]:
    """Several, with commas between them."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def networks(text: str) -> tuple[str, ...]:
    found = () if text.lower() == "none" else words(text)
    for word in found:
        try:
            ipaddress.ip_network(word)
        except ValueError:
            raise ValueError(f"must be networks like 10.0.0.0/8, with commas between, not {word!r}") from None
    return found


def redirects(text: str) -> tuple[str, ...]:
    found = words(text)
    for word in found:
        if not re.fullmatch(
            r"https://[^/\s#]+[^\s#]*|http://(localhost|127\.0\.0\.1)(:\d+)?(/[^\s#]*)?", word
        ):
            raise ValueError(f"must be https URLs without a fragment, with commas between, not {word!r}")
    return found


def secret(text: str) -> str:
    if len(text) < 8:
        raise ValueError("must have at least 8 characters")
    return text


def secrets(text: str) -> tuple[str, ...]:
    return tuple(secret(word) for word in words(text))


def host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", text):
        raise ValueError(f"must be an address or a host's name, like 127.0.0.1, not {text!r}")
    return text


def port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(f"must be a port between 0 and 65535, not {text!r}")
    return int(text)


def jwt_secret(text: str) -> str:
    if len(text.encode()) < 32:
        raise ValueError("must have at least 32 bytes: a shorter one can be guessed")
    return text


def web_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+\S*", text):
        raise ValueError(f"must be a URL like https://login.example/keys.json, not {text!r}")
    return text


def base_url(text: str) -> str:
    """Where paths are added to: with anything behind the path they would become a part of that."""
    if not re.fullmatch(r"https?://[^/\s?#@]+(/[^\s?#]*)?", text):
        raise ValueError("must be a URL like https://api.example/v1, without a user, a query and a fragment")
    return text


# Greedy up to the last @: a password that was not percent-encoded may contain any character.
_PASSWORD = re.compile(r"(://[^:/?#@\[]*):(?:.*@|(?!\d+(?:[/?#,]|$)).*)", re.DOTALL)
_PASSWORD_OPTION = re.compile(r"\b((?:ssl)?password\s*=\s*)('[^']*'|[^&\s]*)", re.IGNORECASE)


def redacted(url: str) -> str:
    """The URL with *** for its password, fit for logs and errors, also when it is malformed.

    >>> redacted("postgresql://ada:secret@db.example/work")
    'postgresql://ada:***@db.example/work'
    """
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(_hide, url))


def _hide(match: re.Match[str]) -> str:
    return f"{match[1]}:***" + ("@" if match[0].endswith("@") else "")
