"""Makes the day out of its events, now or as it was known at a time. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from typing import ClassVar
from uuid import UUID

from holdfast.apps.schedules.shifts import sort_key
from holdfast.apps.schedules.values import Event, Shift
from holdfast.errors import HoldfastError


class ReplayError(HoldfastError):
    """{sentence}

    The events of a day contradict one another: `event_id` takes away what no earlier one brought.
    """

    code: ClassVar[str] = "REPLAY"
    sentence: str
    event_id: UUID

    def __init__(self, *, sentence: str, event_id: UUID) -> None:
        super().__init__(sentence=sentence, event_id=event_id)


def replay(events: Iterable[Event], origin: Iterable[Shift] = ()) -> tuple[Shift, ...]:
    """The day after all these events, in the order of `sort_key`; they are of one day, and come in any order.

    `origin` is the day before them, where earlier ones were evicted.

    Observation by observation: first all old values go, then the new ones come. Event by event, a shift that
    takes another's place would depend on which of the two is first.
    """
    day: Counter[Shift] = Counter(origin)
    for _, group in groupby(sorted(events, key=_order), key=_observation):
        observed = list(group)
        for event in observed:
            if event.old is not None:
                _take(day, event, event.old)
        day.update(event.new for event in observed if event.new is not None)
    return tuple(sorted(day.elements(), key=sort_key))


def as_of(events: Iterable[Event], at: datetime) -> tuple[Shift, ...]:
    """The day as it was known at that time, what was detected in that very moment included."""
    return replay(event for event in events if event.detected_at <= at)


def _take(day: Counter[Shift], event: Event, old: Shift) -> None:
    if not day[old]:
        what = f"{old.start} to {old.end} of {old.customer_name or 'unknown customer'}"
        raise ReplayError(
            sentence=f"event {event.id} ({event.type}) takes away {what}, which is not there at that time",
            event_id=event.id,
        )
    day[old] -= 1


def _observation(event: Event) -> tuple[datetime, str]:
    return event.detected_at, str(event.session_id)


def _order(event: Event) -> tuple[datetime, str, str]:
    """Within an observation by id, so that a contradiction is always told of the same event."""
    return (*_observation(event), str(event.id))
