"""Settings: what can be set, read once at the door and frozen. May use psycopg.conninfo. Never logs.

The class `Settings` is the one table: every line is a setting with its parser, its default and its
meaning, and its variable is `HOLDFAST_` and its name in capitals. `load`, `describe` and docs/settings.md
follow from it.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.db import parsers
from holdfast.db.dotenv import read_dotenv
from holdfast.db.parsers import Spec, choice, setting
from holdfast.db.schedule_settings import ScheduleSettings, schedule_contradictions
from holdfast.db.sync_settings import (
    ProviderSettings,
    SyncSettings,
    is_of_a_provider,
    read_providers,
    sync_contradictions,
)
from holdfast.db.system_settings import SystemSettings, system_contradictions
from holdfast.errors import SettingsError

PREFIX = "HOLDFAST_"


@dataclass(frozen=True, kw_only=True)
class Settings(SystemSettings, ScheduleSettings, SyncSettings):
    """Everything that can be set; durations are seconds. The connection URLs stay out of its repr."""

    database_url: str | None = setting(
        parsers.url,
        None,
        "where the database is; without it the embedded PostgreSQL under HOLDFAST_HOME is used",
        "DATABASE_URL",
        "POBLYSH_DATABASE_URL",
        secret=True,
    )
    database_direct_url: str | None = setting(
        parsers.url, None, "a way past the pooler to the same database, for LISTEN", secret=True
    )
    database_pooler: Literal["none", "transaction"] = choice(
        "none",
        ("none", "transaction"),
        "what stands before the database: none, or a pooler like PgBouncer in transaction mode",
    )
    schema: str | None = setting(
        parsers.identifier, None, "the schema of our tables; without it the connection's search_path decides"
    )
    profile: Literal["local", "test", "dev", "prod"] = choice(
        "local",
        ("local", "test", "dev", "prod"),
        "local, test, dev or prod; migrations run by themselves on local and test only",
        "POBLYSH_PROFILE",
    )
    home: Path = setting(  # noqa: RUF009 (a Path is immutable)
        parsers.path, Path(".holdfast"), "the folder of the embedded PostgreSQL and its data"
    )
    db_max_connections: int = setting(
        parsers.at_least(2), 10, "most connections in a process's pool, at least 2"
    )
    db_acquire_timeout_seconds: float = setting(parsers.seconds, 5.0, "longest wait for a connection")
    db_startup_seconds: float = setting(
        parsers.seconds, 30.0, "how long a start waits for a database that cannot be reached"
    )
    db_idle_seconds: float = setting(parsers.seconds, 600.0, "an unused connection is closed after this")
    db_max_lifetime_seconds: float = setting(parsers.seconds, 1800.0, "a connection is replaced after this")
    db_statement_timeout_seconds: float = setting(parsers.seconds, 30.0, "the server ends a longer statement")
    db_idle_in_transaction_seconds: float = setting(
        parsers.seconds, 300.0, "the server ends a connection that sits idle in a transaction for longer"
    )
    heartbeat_interval: float = setting(parsers.seconds, 10.0, "how often a worker says that it is alive")
    worker_timeout: float = setting(
        parsers.seconds,
        30.0,
        "a worker silent for this long is gone; more than twice the heartbeat interval",
        "WORKER_TIMEOUT",
    )
    loop_warning_seconds: float = setting(
        parsers.seconds, 5.0, "a handler that blocks the event loop of its worker for this long is logged"
    )
    leader_term: float = setting(
        parsers.seconds, 30.0, "how long a leader leads without renewal; more than the heartbeat interval"
    )
    shutdown_timeout: float = setting(
        parsers.seconds, 30.0, "how long a stopping worker waits for its handlers"
    )
    poll_interval: float = setting(
        parsers.seconds, 1.0, "how often a worker looks for work when no doorbell rings"
    )
    concurrency: int = setting(
        parsers.at_least(1), 10, "how many handlers a worker runs at once, per ledger, at least 1"
    )
    apps: tuple[str, ...] = setting(
        parsers.words,
        (),
        "the built-in apps that a worker runs, with commas between: connectors, schedules, system; or all",
    )
    job_backoff_base: float = setting(
        parsers.seconds,
        1.0,
        "the first wait of a failed job, doubled with each retry where its policy is exp",
    )
    job_backoff_cap: float = setting(parsers.seconds, 60.0, "the longest wait of a failed job")
    job_backoff_jitter: float = setting(
        parsers.share, 0.1, "the share by which a failed job waits longer or shorter, by chance: 0 to 1"
    )
    min_retry_seconds: float = setting(
        parsers.seconds_or_zero, 0.5, "the smallest wait between a bad run of a row and its next; 0 for none"
    )
    max_progress_events: int = setting(
        parsers.at_least(1), 1000, "progress events that one run of a row writes at most, at least 1"
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = choice(
        "INFO",
        ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        "the least level that is logged: DEBUG, INFO, WARNING, ERROR or CRITICAL",
    )
    log_format: Literal["text", "json"] = choice(
        "text", ("text", "json"), "text for people, json for log collectors"
    )
    host: str = setting(parsers.host, "127.0.0.1", "the address that `holdfast serve` listens on")
    port: int = setting(parsers.port, 8321, "the port that `holdfast serve` listens on; 0 takes a free one")
    api_rate: int = setting(
        parsers.at_least(1), 50, "requests that one token may make in a second; bursts of twice as many pass"
    )
    api_body_bytes: int = setting(
        parsers.at_least(1024), 2 * 2**20, "the largest body of a request, in bytes"
    )
    api_connections: int = setting(
        parsers.at_least(16),
        2000,
        "connections that `holdfast serve` has open at once; less where the system allows fewer descriptors",
    )
    api_request_seconds: float = setting(
        parsers.seconds,
        30.0,
        "how long a request, with its body, may take to arrive (then it gets 408), and a client may"
        " read nothing of a response",
    )
    tenant_max_priority: int = setting(
        parsers.at_least(0),
        100,
        "the highest priority that a tenant's token may give a row; the lowest is this number below 0",
    )
    tenant_max_attempts: int = setting(
        parsers.at_least(0), 25, "the largest attempt limit that a tenant's token may give a row"
    )
    session_hours: int = setting(parsers.at_least(1), 12, "how long a login to the dashboard lasts, in hours")
    jwt_secret: str | None = setting(
        parsers.jwt_secret,
        None,
        "the shared secret of HS256 tokens, of at least 32 bytes; not in profile prod",
        secret=True,
    )
    jwt_jwks_url: str | None = setting(
        parsers.web_url, None, "where the public keys of RS256 tokens are, as a JSON Web Key Set"
    )
    jwt_issuer: str | None = setting(parsers.text, None, "the issuer (iss) that a JWT must name")
    jwt_audience: str | None = setting(parsers.text, None, "the audience (aud) that a JWT must name")
    providers: Mapping[str, ProviderSettings] = field(default_factory=dict[str, ProviderSettings])
    warnings: tuple[str, ...] = ()

    def provider(self, slug: str) -> ProviderSettings:
        """What is set for one provider of connections."""
        return self.providers.get(slug, ProviderSettings())


_SPECS: dict[str, Spec] = {
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
        default: object = getattr(Settings, name)
        spec = _SPECS[name]
        if isinstance(default, tuple):
            default = ", ".join(map(str, default)) or None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
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
    values["providers"], wrong_ones = read_providers(variables)
    settings = dataclasses.replace(Settings(), **values, warnings=tuple(warnings))  # type: ignore[arg-type]
    problems += [*wrong_ones, *_contradictions(settings, wrong)]
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
    problems += sync_contradictions(settings, wrong)
    problems += schedule_contradictions(settings, settings.db_idle_in_transaction_seconds, wrong)
    problems += system_contradictions(settings, wrong)
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
        if is_of_a_provider(variable):
            continue
        nearest = difflib.get_close_matches(variable, _VARIABLES, n=1, cutoff=0.0)
        warnings.append(f"{variable} is not a setting; the nearest is {nearest[0]}")
    return warnings
