"""Settings: what can be set, read once at the door and frozen. May use psycopg.conninfo. Never logs.

The class `Settings` is the one table: every line is a setting with its parser, its default and its
meaning, and its variable is `HOLDFAST_` and its name in capitals. `load`, `describe` and docs/settings.md
follow from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from holdfast.db.dotenv import read_dotenv
from holdfast.errors import SettingsError

PREFIX = "HOLDFAST_"

T = TypeVar("T")
Word = TypeVar("Word", bound=str)


@dataclass(frozen=True, slots=True)
class _Spec:
    parse: Callable[[str], object]
    meaning: str
    aliases: tuple[str, ...]


def _setting(parse: Callable[[str], T], default: T, meaning: str, *aliases: str, secret: bool = False) -> T:
    return field(default=default, repr=not secret, metadata={"spec": _Spec(parse, meaning, aliases)})


def _choice(default: Word, words: tuple[Word, ...], meaning: str, *aliases: str) -> Word:
    def parse(text: str) -> Word:
        for word in words:
            if word.lower() == text.lower():
                return word
        raise ValueError(f"must be one of {', '.join(words)}, not {text!r}")

    return _setting(parse, default, meaning, *aliases)


# The parsers: each returns the value or raises ValueError with what would be right.


def _url(text: str) -> str:
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


def _identifier(text: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", text):
        raise ValueError(f"must be a name of a-z, 0-9 and _, at most 63 long, not {text!r}")
    return text


def _path(text: str) -> Path:
    if not text:
        raise ValueError("must be a path")
    return Path(text).expanduser()


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise ValueError(f"must be a whole number of at least {least}, not {text!r}")
        return int(text)

    return parse


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|)", text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise ValueError(f"must be a duration above 0, like 10, 2.5, 500ms, 10s, 2m or 1h, not {text!r}")
    return seconds


def _share(text: str) -> float:
    if not re.fullmatch(r"0?\.[0-9]{1,9}|[01](\.0{1,9})?", text):
        raise ValueError(f"must be a share between 0 and 1, like 0.1, not {text!r}")
    return float(text)


def _text(text: str) -> str:
    return text


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", text):
        raise ValueError(f"must be an address or a host's name, like 127.0.0.1, not {text!r}")
    return text


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise ValueError(f"must be a port between 0 and 65535, not {text!r}")
    return int(text)


def _jwt_secret(text: str) -> str:
    if len(text.encode()) < 32:
        raise ValueError("must have at least 32 bytes: a shorter one can be guessed")
    return text


def _web_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+\S*", text):
        raise ValueError(f"must be a URL like https://login.example/keys.json, not {text!r}")
    return text


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set; durations are seconds. The connection URLs stay out of its repr."""

    database_url: str | None = _setting(
        _url,
        None,
        "where the database is; without it the embedded PostgreSQL under HOLDFAST_HOME is used",
        "DATABASE_URL",
        "POBLYSH_DATABASE_URL",
        secret=True,
    )
    database_direct_url: str | None = _setting(
        _url, None, "a way past the pooler to the same database, for LISTEN", secret=True
    )
    database_pooler: Literal["none", "transaction"] = _choice(
        "none",
        ("none", "transaction"),
        "what stands before the database: none, or a pooler like PgBouncer in transaction mode",
    )
    schema: str | None = _setting(
        _identifier, None, "the schema of our tables; without it the connection's search_path decides"
    )
    profile: Literal["local", "test", "dev", "prod"] = _choice(
        "local",
        ("local", "test", "dev", "prod"),
        "local, test, dev or prod; migrations run by themselves on local and test only",
        "POBLYSH_PROFILE",
    )
    home: Path = _setting(  # noqa: RUF009 (a Path is immutable)
        _path, Path(".holdfast"), "the folder of the embedded PostgreSQL and its data"
    )
    db_max_connections: int = _setting(_at_least(2), 10, "most connections in a process's pool, at least 2")
    db_acquire_timeout_seconds: float = _setting(_seconds, 5.0, "longest wait for a connection")
    db_idle_seconds: float = _setting(_seconds, 600.0, "an unused connection is closed after this")
    db_max_lifetime_seconds: float = _setting(_seconds, 1800.0, "a connection is replaced after this")
    db_statement_timeout_seconds: float = _setting(_seconds, 30.0, "the server ends a longer statement")
    db_idle_in_transaction_seconds: float = _setting(
        _seconds, 300.0, "the server ends a connection that sits idle in a transaction for longer"
    )
    heartbeat_interval: float = _setting(_seconds, 10.0, "how often a worker says that it is alive")
    worker_timeout: float = _setting(
        _seconds, 30.0, "a worker silent for this long is gone; more than twice the heartbeat interval"
    )
    leader_term: float = _setting(
        _seconds, 30.0, "how long a leader leads without renewal; more than the heartbeat interval"
    )
    shutdown_timeout: float = _setting(_seconds, 30.0, "how long a stopping worker waits for its handlers")
    poll_interval: float = _setting(_seconds, 1.0, "how often a worker looks for work when no doorbell rings")
    concurrency: int = _setting(
        _at_least(1), 10, "how many handlers a worker runs at once, per ledger, at least 1"
    )
    job_backoff_base: float = _setting(
        _seconds, 1.0, "the first wait of a failed job, doubled with each retry where its policy is exp"
    )
    job_backoff_cap: float = _setting(_seconds, 60.0, "the longest wait of a failed job")
    job_backoff_jitter: float = _setting(
        _share, 0.1, "the share by which a failed job waits longer or shorter, by chance: 0 to 1"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = _choice(
        "INFO",
        ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        "the least level that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL",
    )
    log_format: Literal["text", "json"] = _choice(
        "text", ("text", "json"), "text for people, json for log collectors"
    )
    host: str = _setting(_host, "127.0.0.1", "the address that `holdfast serve` listens on")
    port: int = _setting(_port, 8321, "the port that `holdfast serve` listens on; 0 takes a free one")
    api_rate: int = _setting(
        _at_least(1), 50, "requests that one token may make in a second; bursts of twice as many pass"
    )
    api_body_bytes: int = _setting(_at_least(1024), 2 * 2**20, "the largest body of a request, in bytes")
    session_hours: int = _setting(_at_least(1), 12, "how long a login to the dashboard lasts, in hours")
    jwt_secret: str | None = _setting(
        _jwt_secret,
        None,
        "the shared secret of HS256 tokens, of at least 32 bytes; not in profile prod",
        secret=True,
    )
    jwt_jwks_url: str | None = _setting(
        _web_url, None, "where the public keys of RS256 tokens are, as a JSON Web Key Set"
    )
    jwt_issuer: str | None = _setting(_text, None, "the issuer (iss) that a JWT must name")
    jwt_audience: str | None = _setting(_text, None, "the audience (aud) that a JWT must name")
    warnings: tuple[str, ...] = ()


_SPECS: dict[str, _Spec] = {
    f.name: f.metadata["spec"] for f in dataclasses.fields(Settings) if "spec" in f.metadata
}
_VARIABLES: dict[str, str] = {PREFIX + name.upper(): name for name in _SPECS}


class Row(NamedTuple):
    """One setting as the documentation shows it."""

    name: str
    default: str
    meaning: str


def describe() -> list[Row]:
    """Every setting, in the order of the class; the meaning names its aliases."""
    rows: list[Row] = []
    for variable, name in _VARIABLES.items():
        default, spec = getattr(Settings, name), _SPECS[name]
        shown = "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
        also = f" (also read from {' and '.join(spec.aliases)})" if spec.aliases else ""
        rows.append(Row(variable, shown, spec.meaning + also))
    return rows


def load(
    environ: Mapping[str, str] = os.environ,
    dotenv: Path | None = Path(".env"),
    known: Collection[str] = (),
) -> Settings:
    """Read the settings from the environment and `.env`; what is wrong is raised in one SettingsError.

    `known` has further names, or prefixes of names, that begin with HOLDFAST_ and are read elsewhere.

    >>> load({"HOLDFAST_POLL_INTERVAL": "500ms"}, dotenv=None).poll_interval
    0.5
    """
    variables, problems = read_dotenv(dotenv) if dotenv else ({}, [])
    variables = {**variables, **environ}
    warnings = _unknown(variables, known)
    values: dict[str, object] = {}
    wrong: set[str] = set()
    for variable, name in _VARIABLES.items():
        found = [spelling for spelling in (variable, *_SPECS[name].aliases) if spelling in variables]
        if not found:
            continue
        chosen, text = found[0], variables[found[0]].strip()
        warnings += [
            f"{chosen} is used; {other} is also set, to something else"
            for other in found[1:]
            if variables[other].strip() != text
        ]
        try:
            values[name] = _SPECS[name].parse(text)
        except ValueError as error:
            wrong.add(name)
            problems.append(f"{chosen} {error if text else 'is set but empty: unset it or fill it'}")
    settings = dataclasses.replace(Settings(), **values, warnings=tuple(warnings))  # type: ignore[arg-type]
    problems += _contradictions(settings, wrong)
    if problems:
        raise SettingsError(title="some settings are wrong:", problems=problems)
    return settings


def _contradictions(settings: Settings, wrong: Collection[str]) -> list[str]:
    """What each setting allows, but not the two together; a setting that is `wrong` anyway is left out."""
    beat, worker, term = settings.heartbeat_interval, settings.worker_timeout, settings.leader_term
    problems: list[str] = []
    if worker <= 2 * beat and not {"worker_timeout", "heartbeat_interval"}.intersection(wrong):
        problems.append(
            f"HOLDFAST_WORKER_TIMEOUT ({worker:g}s) must be more than twice "
            f"HOLDFAST_HEARTBEAT_INTERVAL ({beat:g}s), or one lost heartbeat ends a worker"
        )
    if term <= beat and not {"leader_term", "heartbeat_interval"}.intersection(wrong):
        problems.append(
            f"HOLDFAST_LEADER_TERM ({term:g}s) must be more than "
            f"HOLDFAST_HEARTBEAT_INTERVAL ({beat:g}s), or a leader cannot renew in time"
        )
    if settings.schema and settings.database_pooler == "transaction":
        problems.append(
            "HOLDFAST_SCHEMA cannot be pinned through a pooler in transaction mode: unset it, and set the "
            "search_path of the role (ALTER ROLE … SET search_path = …)"
        )
    if settings.jwt_secret and settings.profile == "prod":
        problems.append(
            "HOLDFAST_JWT_SECRET is for profiles other than prod: whoever checks such tokens can also make "
            "them. Set HOLDFAST_JWT_JWKS_URL"
        )
    if settings.jwt_jwks_url and not (settings.jwt_issuer and settings.jwt_audience):
        problems.append(
            "HOLDFAST_JWT_JWKS_URL needs HOLDFAST_JWT_ISSUER and HOLDFAST_JWT_AUDIENCE, or tokens that were "
            "made for others are taken"
        )
    return problems


def _unknown(variables: Mapping[str, str], known: Collection[str]) -> list[str]:
    """A warning for every HOLDFAST_ name that nobody reads: most often a slip of the pen."""
    warnings: list[str] = []
    for variable in sorted(variables):
        if not variable.startswith(PREFIX) or variable in _VARIABLES or variable.startswith(tuple(known)):
            continue
        nearest = difflib.get_close_matches(variable, _VARIABLES, n=1, cutoff=0.0)
        warnings.append(f"{variable} is not a setting; the nearest is {nearest[0]}")
    return warnings


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
