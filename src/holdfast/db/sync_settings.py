"""The settings of connections to outside accounts: how they are kept in step, and what their providers need.

What belongs to one provider is set by a variable with its name in it: HOLDFAST_OAUTH_GITHUB_CLIENT_ID.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.db import parsers
from holdfast.db.parsers import Spec, setting

LEAST_INTERVAL, MOST_INTERVAL = 60, 604_800  # seconds between two syncs of one connection
WHOLE = parsers.at_least(1)


@dataclass(frozen=True, kw_only=True)
class SyncSettings:
    """How connections are kept in step; durations are seconds."""

    sync_tick_seconds: float = setting(
        parsers.between(10, 300), 60.0, "how often a worker looks which connections are due: 10 to 300"
    )
    sync_default_interval_seconds: int = setting(
        parsers.at_least(LEAST_INTERVAL), 900, "seconds between two syncs of a connection that says nothing"
    )
    sync_max_interval_seconds: int = setting(
        parsers.within(LEAST_INTERVAL, MOST_INTERVAL),
        86400,
        "the longest interval that a connection may ask for",
    )
    sync_jitter_min: float = setting(parsers.share, 0.0, "the least share of its interval that a sync waits")
    sync_jitter_max: float = setting(
        parsers.share, 0.2, "the largest share of its interval that a sync waits"
    )
    sync_concurrency: int = setting(WHOLE, 10, "how many syncs a worker runs at once, at least 1")
    sync_max_run_seconds: float = setting(parsers.seconds, 300.0, "a sync that runs for longer is stopped")
    sync_max_items: int = setting(WHOLE, 1000, "how many items one run of a sync may bring, about")
    sync_single_flight: bool = setting(parsers.flag, False, "true: one sync of a connection at a time")
    sync_backoff_base_seconds: float = setting(parsers.seconds, 5.0, "the first wait of a failed sync")
    sync_backoff_max_seconds: float = setting(parsers.seconds, 900.0, "the longest wait of a failed sync")
    sync_backoff_jitter: float = setting(
        parsers.share, 0.1, "the share by which a failed sync waits longer, by chance: 0 to 1"
    )
    token_refresh_tick_seconds: float = setting(
        parsers.seconds, 3600.0, "how often tokens that will soon end are looked for"
    )
    token_refresh_lead_seconds: float = setting(
        parsers.seconds, 600.0, "a token that ends within this time is refreshed"
    )
    token_refresh_concurrency: int = setting(WHOLE, 4, "how many tokens are refreshed at once")
    token_refresh_jitter: float = setting(
        parsers.share, 0.1, "the share by which that look comes earlier or later, by chance: 0 to 1"
    )
    crypto_key: str | None = setting(
        parsers.text,
        None,
        "the key that stored tokens are sealed with: base64 of 32 bytes (openssl rand -base64 32)",
        secret=True,
    )
    crypto_old_keys: tuple[str, ...] = setting(
        parsers.words, (), "keys of former times, with commas between: read, never written", secret=True
    )
    oauth_state_ttl_seconds: float = setting(
        parsers.seconds, 600.0, "how long somebody may take to authorise a connection"
    )
    oauth_redirect_uris: tuple[str, ...] = setting(
        parsers.redirects, (), "where a provider may send people back to, with commas between"
    )
    webhook_tolerance_seconds: float = setting(
        parsers.seconds, 300.0, "how far the time of a signed webhook may be off"
    )
    webhook_rate_per_minute: int = setting(
        WHOLE, 300, "webhooks of one provider for one tenant from one address in a minute"
    )
    webhook_max_bytes: int = setting(parsers.at_least(1024), 1048576, "the largest body of a webhook")
    trusted_proxies: tuple[str, ...] = setting(
        parsers.networks,
        ("127.0.0.1/32", "::1/128"),
        "networks whose X-Forwarded-For and -Proto are believed, with commas between; none for nobody's",
    )
    retain_sync_jobs_days: int = setting(WHOLE, 30, "a finished sync job is kept for this many days")
    retain_deliveries_days: int = setting(WHOLE, 14, "a processed webhook is kept for this many days")
    retain_signals_days: int = setting(WHOLE, 365, "a signal is kept for this many days")


@dataclass(frozen=True, kw_only=True)
class ProviderSettings:
    """What is set for one provider; what is None is as for all, or as the provider publishes it."""

    client_id: str | None = setting(parsers.text, None, "the id of your application at the provider")
    client_secret: str | None = setting(parsers.text, None, "its secret", secret=True)
    webhook_secret: str | None = setting(
        parsers.secret, None, "what its webhooks are signed with", secret=True
    )
    webhook_old_secrets: tuple[str, ...] = setting(
        parsers.secrets, (), "secrets that are still accepted, with commas between", secret=True
    )
    webhook_audience: str | None = setting(parsers.text, None, "the audience of signed tokens (gmail)")
    webhook_max_bytes: int | None = setting(parsers.at_least(1024), None, "the largest body of its webhooks")
    backoff_base: float | None = setting(parsers.seconds, None, "the first wait of a failed sync")
    backoff_max: float | None = setting(parsers.seconds, None, "the longest wait of a failed sync")
    backoff_jitter: float | None = setting(parsers.share, None, "the share by which it waits longer")
    api_url: str | None = setting(parsers.base_url, None, "where its API is, if not where it publishes it")
    auth_url: str | None = setting(parsers.base_url, None, "where its authorisation is, likewise")


NAMES: Mapping[str, str] = {
    "client_id": "HOLDFAST_OAUTH_{}_CLIENT_ID",
    "client_secret": "HOLDFAST_OAUTH_{}_CLIENT_SECRET",
    "webhook_secret": "HOLDFAST_WEBHOOK_{}_SECRET",
    "webhook_old_secrets": "HOLDFAST_WEBHOOK_{}_OLD_SECRETS",
    "webhook_audience": "HOLDFAST_WEBHOOK_{}_AUDIENCE",
    "webhook_max_bytes": "HOLDFAST_WEBHOOK_{}_MAX_BYTES",
    "backoff_base": "HOLDFAST_SYNC_BACKOFF_{}_BASE_SECONDS",
    "backoff_max": "HOLDFAST_SYNC_BACKOFF_{}_MAX_SECONDS",
    "backoff_jitter": "HOLDFAST_SYNC_BACKOFF_{}_JITTER",
    "api_url": "HOLDFAST_CONNECTOR_{}_API_URL",
    "auth_url": "HOLDFAST_CONNECTOR_{}_AUTH_URL",
}
_SLUG = "([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*?)"
_PATTERNS = {name: re.compile(variable.format(_SLUG)) for name, variable in NAMES.items()}
_SPECS: Mapping[str, Spec] = {one.name: one.metadata["spec"] for one in dataclasses.fields(ProviderSettings)}


def describe_provider() -> list[tuple[str, str]]:
    """Every variable of a provider, with <SLUG> for its name, and its meaning."""
    return [(variable.format("<SLUG>"), _SPECS[name].meaning) for name, variable in NAMES.items()]


def is_of_a_provider(variable: str) -> bool:
    """Whether a variable sets something for one provider."""
    return _of(variable) is not None


def _of(variable: str) -> tuple[str, str] | None:
    """The setting and the provider's slug that a variable names."""
    for name, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(variable):
            return name, found[1].lower()
    return None


def read_providers(variables: Mapping[str, str]) -> tuple[dict[str, ProviderSettings], list[str]]:
    """What is set for providers, and what is wrong with it."""
    found: dict[str, dict[str, object]] = {}
    problems: list[str] = []
    for variable in sorted(variables):
        if (place := _of(variable)) is None:
            continue
        name, slug = place
        text = variables[variable].strip()
        try:
            found.setdefault(slug, {})[name] = _SPECS[name].parse(text)
        except ValueError as error:
            problems.append(f"{variable} {error if text else 'is set but empty: unset it or fill it'}")
    settings = {slug: ProviderSettings(**values) for slug, values in found.items()}  # type: ignore[arg-type]
    return settings, problems


def sync_contradictions(settings: SyncSettings, wrong: Collection[str]) -> list[str]:
    """What each setting allows, but not the two together; a setting that is `wrong` anyway is left out."""
    problems: list[str] = []
    default, most = settings.sync_default_interval_seconds, settings.sync_max_interval_seconds
    if default > most and not {"sync_default_interval_seconds", "sync_max_interval_seconds"} & set(wrong):
        problems.append(
            f"HOLDFAST_SYNC_DEFAULT_INTERVAL_SECONDS ({default}) must not be more than "
            f"HOLDFAST_SYNC_MAX_INTERVAL_SECONDS ({most})"
        )
    low, high = settings.sync_jitter_min, settings.sync_jitter_max
    if low > high and not {"sync_jitter_min", "sync_jitter_max"} & set(wrong):
        problems.append(
            f"HOLDFAST_SYNC_JITTER_MIN ({low:g}) must not be more than HOLDFAST_SYNC_JITTER_MAX ({high:g})"
        )
    return problems
