"""The lifecycle of a ledger as SVG: the states with how many rows are in them, and what leads where."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from markupsafe import Markup

from holdfast.dashboard import phrases, svg
from holdfast.dashboard.svg import Point, tag
from holdfast.dashboard.tones import MEANING, tone
from holdfast.dashboard.wiring import LINE, Node, Plan, Wire, plan
from holdfast.engine.lifecycle import Lifecycle
from holdfast.engine.values import Stat

HEAD = 7.0  # the length of an arrow's head


def draw(lifecycle: Lifecycle, stats: Mapping[str, Stat], href: Callable[[str], str], *, name: str) -> Markup:
    """The picture, with a link on every node. `stats` are by state; `name` is the ledger's."""
    drawn = plan(lifecycle)
    counts = ", ".join(f"{state}: {_count(stats.get(state))}" for state in lifecycle.states)
    return tag(
        "svg",
        tag("title", f"The lifecycle of {name}", id="lifecycle-title"),
        tag("desc", f"Rows by state: {counts}. The list below tells what leads where.", id="lifecycle-desc"),
        *(_wire(wire) for wire in drawn.wires),
        _door(drawn),
        *(_label(wire) for wire in drawn.wires),
        *(_node(node, lifecycle, stats.get(node.state), href) for node in drawn.nodes),
        viewBox=f"0 0 {svg.number(drawn.width)} {svg.number(drawn.height)}",
        width=drawn.width,
        height=drawn.height,
        class_="diagram",
        role="group",
        aria_labelledby="lifecycle-title lifecycle-desc",
    )


def _node(node: Node, lifecycle: Lifecycle, stat: Stat | None, href: Callable[[str], str]) -> Markup:
    meant = tone(lifecycle, node.state)
    x, y = node.middle
    shown = _count(stat)
    told = f"{node.state}: {shown} {'row' if shown == '1' else 'rows'}, {MEANING[meant]}"
    return tag(
        "a",
        tag("title", told),
        tag("rect", x=node.x, y=node.y, width=node.width, height=node.height, rx=9, class_="box"),
        tag("text", node.state, x=x, y=y - 5, class_="state", text_anchor="middle"),
        tag("text", shown, x=x, y=y + 16, class_="count", text_anchor="middle"),
        href=href(node.state),
        class_=f"node {meant}" + ("" if stat and stat.rows else " empty"),
        aria_label=told,
    )


def _wire(wire: Wire) -> Markup:
    *before, end = wire.points
    if wire.joins:
        return tag("g", tag("path", d=svg.rounded(wire.points), fill="none"), class_=_class(wire))
    return tag(
        "g",
        tag("path", d=svg.rounded((*before, _short(before[-1], end))), fill="none"),
        tag("polygon", points=svg.polyline(_head(before[-1], end))),
        class_=_class(wire),
    )


def _class(wire: Wire) -> str:
    return "wire personal" if wire.personal else "wire"


def _door(drawn: Plan) -> Markup:
    start, end = drawn.entrance
    return tag(
        "g",
        tag("circle", cx=start[0] + 4, cy=start[1], r=4),
        tag("path", d=svg.rounded(((start[0] + 8, start[1]), _short(start, end))), fill="none"),
        tag("polygon", points=svg.polyline(_head(start, end))),
        tag("text", "enqueue", x=start[0] + 14, y=start[1] - 6),
        class_="wire door",
    )


def _label(wire: Wire) -> Markup:
    """The verbs of a wire: above it, and the second line below it."""
    x, y = wire.label_at
    heights = (y - 5, y + LINE - 2)
    lines = (tag("text", line, x=x, y=at) for line, at in zip(wire.label, heights, strict=False))
    return tag("g", *lines, class_="verbs personal" if wire.personal else "verbs")


def _short(before: Point, end: Point) -> Point:
    """Where a line ends that has an arrow's head."""
    if before[1] == end[1]:
        return end[0] - HEAD + 1 if end[0] > before[0] else end[0] + HEAD - 1, end[1]
    return end


def _head(before: Point, end: Point) -> tuple[Point, Point, Point]:
    back = -HEAD if end[0] > before[0] else HEAD
    return end, (end[0] + back, end[1] - 4), (end[0] + back, end[1] + 4)


def _count(stat: Stat | None) -> str:
    return phrases.count(stat.rows, exact=stat.exact) if stat else "0"
