"""When a connection is due, and when it is due again. Pure: the clock and the dice are given.

A connection's runs lie on a grid: every interval from its anchor on. However late the look comes, one run is
due, that of the grid's last point, and the next one is the point after it. The jitter delays a run, but moves
no point of the grid; only the first run of all moves the grid, so that many new connections spread out.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.apps.connectors.sync_state import SyncState
from holdfast.db.settings import Settings

Draw = Callable[[float, float], float]  # a number between two


@dataclass(frozen=True, kw_only=True)
class Due:
    """A run is due since `due_at`; its job waits until `scheduled_at`, `jitter_seconds` later."""

    due_at: datetime
    scheduled_at: datetime
    next_run_at: datetime
    jitter_seconds: int


@dataclass(frozen=True)
class NotDue:
    """Nothing is due before `until`. `first`: there was no run yet, and the first one is to move the grid."""

    until: datetime
    first: bool = False


def decide(
    now: datetime,
    state: SyncState,
    created_at: datetime,
    last_finished: datetime | None,
    ever: bool,
    settings: Settings,
    draw: Draw = random.uniform,
) -> Due | NotDue:
    """Whether a run is due now, for which point of the grid, and when the next one is.

    `last_finished` is when the last incremental job succeeded, `ever` whether there is one of any state; both
    matter only where the state has no next time.
    """
    interval = timedelta(seconds=state.interval_seconds)
    anchor = _anchor(state, created_at, last_finished, interval)
    # Old jobs are cleared away; the jitter that was noted tells of them still.
    first = not ever and state.next_run_at is None and state.last_jitter_seconds is None
    if now < anchor:
        return NotDue(anchor, first)
    due_at = anchor + (now - anchor) // interval * interval
    jitter = _jitter(state.interval_seconds, settings, draw)
    wait = timedelta(seconds=jitter)
    return Due(
        due_at=due_at,
        scheduled_at=due_at + wait,
        next_run_at=due_at + interval + (wait if first else timedelta()),
        jitter_seconds=jitter,
    )


def _anchor(
    state: SyncState, created_at: datetime, last_finished: datetime | None, interval: timedelta
) -> datetime:
    if state.next_run_at is not None:
        return state.next_run_at
    if last_finished is not None:
        return last_finished + interval
    return state.first_activated_at or created_at


def _jitter(interval_seconds: int, settings: Settings, draw: Draw) -> int:
    """Whole seconds, by chance."""
    return round(interval_seconds * draw(settings.sync_jitter_min, settings.sync_jitter_max))
