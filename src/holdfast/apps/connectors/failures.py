"""What becomes of a run that went wrong: whether it is tried again, when, and what its error tells.

Messages are written for people and say nothing that came from a provider's data: of an error that nobody
foresaw, only its class and the place where it was raised are told.
"""

from __future__ import annotations

import logging
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast.apps.connectors import catalogue, connections, sync_state
from holdfast.apps.connectors.connections import Link
from holdfast.apps.connectors.ledger import INCREMENTAL, SYNC_JOBS
from holdfast.apps.connectors.protocol import (
    ConnectorError,
    Json,
    NotSetUp,
    Permanent,
    RateLimited,
    Unauthorized,
)
from holdfast.apps.connectors.service import clock
from holdfast.db.settings import Settings
from holdfast.engine.outcomes import Fail, Retry
from holdfast.engine.store import Connection
from holdfast.errors import (
    DatabaseUnavailable,
    DecryptionError,
    HoldfastError,
    MissingExtra,
    SettingsError,
)
from holdfast.runtime import pulse

log = logging.getLogger("holdfast.connectors")
Draw = Callable[[], float]  # a number in [0, 1)

LONGEST_HINT = 86_400.0  # seconds: a provider that asks for more is asked again once a day
LONGEST_MESSAGE = 500  # characters


class TimedOut(HoldfastError):
    """timed out after {seconds:g} s"""

    code = "TIMEOUT"


FINAL = (Unauthorized, Permanent, DecryptionError)  # nothing that comes by itself will mend these
TELLING = (TimedOut, DatabaseUnavailable, MissingExtra, SettingsError)  # ours: their messages hold no data


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a provider's failed syncs wait, in seconds: first, longest, and the share of chance."""

    base: float
    most: float
    jitter: float

    @classmethod
    def of(cls, settings: Settings, slug: str | None) -> Pace:
        """The provider's own pace, or that of all."""
        own = settings.provider(slug or "")
        return cls(
            base=settings.sync_backoff_base_seconds if own.backoff_base is None else own.backoff_base,
            most=settings.sync_backoff_max_seconds if own.backoff_max is None else own.backoff_max,
            jitter=settings.sync_backoff_jitter if own.backoff_jitter is None else own.backoff_jitter,
        )


def wait(pace: Pace, attempts: int, hint: float | None = None, draw: Draw = random.random) -> float:
    """Seconds until the next run, after so many starts; never shorter than the provider's hint.

    >>> wait(Pace(base=5, most=900, jitter=0.1), 3, draw=lambda: 0.0)
    20.0
    """
    doublings = min(max(attempts - 1, 0), 64)  # more would not fit a float, and reach any limit all the same
    grown = min(pace.base * 2.0**doublings, pace.most)
    effective = max(grown, min(hint or 0.0, LONGEST_HINT))
    return effective + draw() * pace.jitter * effective


def hint(limit: RateLimited) -> float | None:
    """The provider's own hint in seconds, within bounds; None when there is none, or none that can be.

    >>> hint(RateLimited(message="", retry_after_seconds=float("inf")))
    86400.0
    """
    given: Any = limit.retry_after_seconds
    if isinstance(given, bool) or not isinstance(given, int | float) or given != given:  # NaN is no number
        return None
    return float(min(max(given, 0), LONGEST_HINT))


def is_final(error: Exception) -> bool:
    """Whether trying again is of no use. What this process was not told, another may know."""
    return isinstance(error, FINAL) and not isinstance(error, NotSetUp)


def outcome(
    error: Exception,
    pace: Pace,
    attempts: int,
    *,
    secrets: Sequence[str | None] = (),
    draw: Draw = random.random,
) -> Retry | Fail:
    """The end of a run that raised: a retry after its wait, or a failure for good."""
    told = fault(error, secrets)
    code, reason = told["code"], told["message"]
    facts = {name: value for name, value in told.items() if name not in ("code", "message")}
    if is_final(error):
        return Fail(reason, code=code, facts=facts)
    hinted = hint(error) if isinstance(error, RateLimited) else None
    return Retry(reason, after=wait(pace, attempts, hinted, draw), code=code, facts=facts)


def fault(error: Exception, secrets: Sequence[str | None] = ()) -> dict[str, Json]:
    """An error as it is stored: code, message, of what type it is, and whether it was a matter of rate."""
    limited = isinstance(error, RateLimited)
    if isinstance(error, (ConnectorError, DecryptionError, *TELLING)):
        code, said, detail = error.code, _clean(str(error), secrets), _detail(error)
    else:
        code, place = type(error).__name__, where(error)
        said, detail = f"{code} at {place}", {"type": "unexpected", "place": place}
    return {"code": code, "message": said, "sync_error": detail, "is_rate_limited": limited}


def _detail(error: HoldfastError) -> Mapping[str, Json]:
    if isinstance(error, RateLimited):
        return {"type": "rate_limited", "retry_after_seconds": hint(error), "shared": bool(error.shared)}
    return {"type": error.code.lower()}


def scrubbed(error: ConnectorError, secrets: Sequence[str | None]) -> ConnectorError:
    """The error, or where it tells one of these secrets, the same without."""
    told = str(error)
    if _clean(told, secrets) == told[:LONGEST_MESSAGE]:
        return error
    return type(error)(**(error.fields | {"message": _clean(told, secrets)}))


def _clean(text: str, secrets: Sequence[str | None]) -> str:
    """The text without any of these secrets: a connector may be anybody's."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text[:LONGEST_MESSAGE]


def where(error: BaseException) -> str:
    """The place where an error was raised, as folder/file.py:line."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    return f"{'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}"


# -- cool-downs ------------------------------------------------------------------------------------------


async def cool_down(
    conn: Connection, settings: Settings, link: Link, limit: RateLimited, seconds: float
) -> None:
    """Keeps the connection's other jobs, or all of its provider's, from calling for so long.

    In the caller's transaction. A longer wait that stands there already stays.
    """
    current = await connections.lock(conn, link.id)
    until = await clock(conn) + timedelta(seconds=seconds)
    if current is not None:
        state, _ = sync_state.read(current.metadata, settings)
        if state.cooldown_until is None or state.cooldown_until < until:
            patch = {"cooldown_until": sync_state.moment_text(until)}
            await connections.merge_sync(conn, link.id, patch)
    if limit.shared:
        await catalogue.cool_down(conn, link.provider, until)
    numbers = {("rate_limited", link.provider): (1, seconds)}
    await pulse.tell(conn, SYNC_JOBS.name, INCREMENTAL, numbers)
