"""Small charts as SVG: what was done minute by minute, and how long things took. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.dashboard import phrases
from holdfast.dashboard.svg import tag
from holdfast.runtime.pulse import Minute, Percentiles

WIDTH, HEIGHT = 360.0, 64.0
KINDS = ("finished", "retried", "dead")  # from the bottom up
SHORTEST, LONGEST = 0.001, 3600.0  # seconds: the ends of the scale of durations
DECADES = (
    (0.001, "1 ms"),
    (0.01, ""),
    (0.1, "0.1 s"),
    (1.0, ""),
    (10.0, "10 s"),
    (100.0, ""),
    (1000.0, "17 min"),
)


@dataclass(frozen=True)
class Bar:
    """One part of a minute's column."""

    kind: str
    x: float
    y: float
    width: float
    height: float


def bars(minutes: Sequence[Minute]) -> tuple[Bar, ...]:
    """The columns of a chart: each minute's finished, retried and dead rows on one another, to one scale."""
    edge = most(minutes)
    step = WIDTH / max(1, len(minutes))
    drawn: list[Bar] = []
    for place, minute in enumerate(minutes):
        y = HEIGHT
        for kind in KINDS:
            height = HEIGHT * getattr(minute, kind) / edge
            y -= height
            if height:
                drawn.append(Bar(kind, place * step + step * 0.12, y, step * 0.76, height))
    return tuple(drawn)


def ceiling(most: int) -> int:
    """The next round number: what the upper edge of a chart means.

    >>> ceiling(0), ceiling(7), ceiling(23), ceiling(1234)
    (1, 10, 25, 1500)
    """
    if most <= 1:
        return 1
    unit = 10 ** int(math.log10(most))
    if unit == 1:
        return next(step for step in (2, 5, 10) if most <= step)
    return next(int(unit * step) for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if most <= unit * step)


def most(minutes: Sequence[Minute]) -> int:
    """What the upper edge of the chart means."""
    return ceiling(max((_total(minute) for minute in minutes), default=0))


def throughput(minutes: Sequence[Minute], *, name: str, id: str) -> Markup:
    """What was done in the last minutes. The numbers beside it say the same in words."""
    told = told_throughput(minutes)
    return tag(
        "svg",
        tag("title", f"Throughput of {name}, by the minute", id=f"{id}-title"),
        tag("desc", f"{told} The upper edge is {most(minutes):,} in a minute.", id=f"{id}-desc"),
        tag("path", d=f"M0 .5H{WIDTH:g}M0 {HEIGHT / 2:g}H{WIDTH:g}", class_="grid"),
        *(
            tag("rect", x=bar.x, y=bar.y, width=bar.width, height=bar.height, class_=bar.kind)
            for bar in bars(minutes)
        ),
        tag("path", d=f"M0 {HEIGHT - 0.5:g}H{WIDTH:g}", class_="base"),
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        preserveAspectRatio="none",
        class_="chart",
        role="img",
        aria_labelledby=f"{id}-title {id}-desc",
    )


def told_throughput(minutes: Sequence[Minute]) -> str:
    """The same in words."""
    sums = {kind: sum(getattr(minute, kind) for minute in minutes) for kind in KINDS}
    told = ", ".join(f"{sums[kind]:,} {kind}" for kind in KINDS)
    return f"In {len(minutes)} minutes {told}."


def place(seconds: float) -> float:
    """Where a duration lies on the scale, which is logarithmic, from 0 to 1.

    >>> place(0.001), place(0.0001), place(7200)
    (0.0, 0.0, 1.0)
    """
    held = min(max(seconds, SHORTEST), LONGEST)
    return math.log(held / SHORTEST) / math.log(LONGEST / SHORTEST)


def strip(percentiles: Percentiles, *, name: str, id: str) -> Markup:
    """Percentiles of durations on a logarithmic scale: a band from p50 to p99, and a mark for each."""
    told = told_percentiles(percentiles)
    marks: list[Markup] = []
    if percentiles.p50 is not None and percentiles.p95 is not None and percentiles.p99 is not None:
        low, mid, high = (WIDTH * place(s) for s in (percentiles.p50, percentiles.p95, percentiles.p99))
        marks = [
            tag("rect", x=low, y=6, width=max(1.5, high - low), height=8, rx=3, class_="band"),
            *(
                tag("rect", x=x - 1.25, y=3, width=2.5, height=14, rx=1, class_="mark")
                for x in (low, mid, high)
            ),
        ]
    ticks = "".join(f"M{WIDTH * place(seconds):.1f} 2V18" for seconds, _ in DECADES)
    return tag(
        "svg",
        tag("title", name, id=f"{id}-title"),
        tag("desc", told, id=f"{id}-desc"),
        tag("path", d=ticks, class_="grid"),
        tag("path", d=f"M0 10H{WIDTH:g}", class_="base"),
        *marks,
        viewBox=f"0 0 {WIDTH:g} 20",
        preserveAspectRatio="none",
        class_="strip",
        role="img",
        aria_labelledby=f"{id}-title {id}-desc",
    )


def told_percentiles(percentiles: Percentiles) -> str:
    """The same in words."""
    if not percentiles.count:
        return "Nothing in the last hour."
    found = (percentiles.p50, percentiles.p95, percentiles.p99)
    half, most, nearly = (phrases.duration(seconds) for seconds in found)
    told = f"Half within {half}, 95 of 100 within {most}, 99 of 100 within {nearly}"
    return f"{told}; {percentiles.count:,} in the last hour."


def _total(minute: Minute) -> int:
    return minute.finished + minute.retried + minute.dead
