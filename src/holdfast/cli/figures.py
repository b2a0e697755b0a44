"""Numbers as people read them: counts, durations, rates. `stats`, `top` and `up` tell them alike."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.runtime.pulse import Pace, Percentiles

BLOCKS = " ▁▂▃▄▅▆▇█"
NOTHING = "-"
LONG = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def count(rows: int, *, exact: bool = True) -> str:
    """How many; an estimate says so, and has no more digits than it deserves.

    >>> count(1234), count(1234567, exact=False)
    ('1,234', '≈1,230,000')
    """
    if exact:
        return f"{rows:,}"
    last = max(0, len(str(rows)) - 3)
    return f"≈{round(rows, -last):,}"


def lasting(seconds: float | None) -> str:
    """A duration; None is a dash.

    >>> lasting(0.0042), lasting(1.26), lasting(75), lasting(93784)
    ('4 ms', '1.3 s', '1 min 15 s', '1 d 2 h')
    """
    if seconds is None:
        return NOTHING
    if seconds < 0.0995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    for size, unit, part, smaller in LONG:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // part:.0f} {smaller}"
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def percentiles(found: Percentiles) -> str:
    """Half, nineteen of twenty, and ninety-nine of a hundred took no longer."""
    if not found.count:
        return NOTHING
    told = (("p50", found.p50), ("p95", found.p95), ("p99", found.p99))
    return "  ".join(f"{name} {lasting(value)}" for name, value in told)


def each_minute(pace: Pace, now: datetime) -> float:
    """Rows that ended well in the last sixty seconds: this minute, and the rest of the one before."""
    if not pace.minutes:
        return 0.0
    last = pace.minutes[-1]
    gone = min(60.0, max(0.0, (now - last.at).total_seconds()))
    before = pace.minutes[-2].finished if len(pace.minutes) > 1 else 0
    return last.finished + before * (1 - gone / 60)


def hill(steps: Sequence[int]) -> str:
    """Numbers as a small hill.

    >>> hill([0, 1, 2, 4])
    ' ▂▄█'
    """
    top = max(steps, default=0) or 1
    return "".join(BLOCKS[min(8, round(8 * step / top))] for step in steps)
