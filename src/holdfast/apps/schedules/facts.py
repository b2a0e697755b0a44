"""What the workers of this process have counted of schedules, told to the database now and then.

Statistics, not accounts: those of a process that is killed are lost, and so they cost no session a wait for
a row that all of them would write. The facts, in `holdfast_pulse`:

- `ended`, by how an attempt at a session has ended: done, unchanged, superseded, failed.
- `event`, by the type of a change that was recorded.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.apps.schedules.values import Event
from holdfast.engine.store import Connection
from holdfast.runtime import pulse
from holdfast.runtime.duties import FLUSH_EVERY, Duty

Ended = Literal["done", "unchanged", "superseded", "failed"]
KNOWN: tuple[str, ...] = get_args(Ended)


class Facts:
    """Numbers that are not told yet. May be used from any thread."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def ended(self, how: str, events: Iterable[Event] = ()) -> None:
        """An attempt has ended so, and these changes were recorded. Any other word is not counted."""
        if how not in KNOWN:
            return
        with self._lock:
            self._counts["ended", how] += 1
            self._counts.update(("event", event.type) for event in events)

    async def flush(self, conn: Connection) -> int:
        """Tells the numbers to the database; answers how many. When that fails they wait."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return 0
        try:
            await pulse.tell(conn, SESSIONS, "", {place: (count, 0.0) for place, count in counts.items()})
        except BaseException:
            with self._lock:
                self._counts.update(counts)
            raise
        return len(counts)


def duty(facts: Facts) -> Duty:
    """Tells the numbers every few seconds, and what is left when the worker stops."""

    async def telling(conn: Connection, _: str) -> int:
        return await facts.flush(conn)

    return Duty(name="tell schedules", every=FLUSH_EVERY, run=telling, by_all=True, at_the_end=True)
