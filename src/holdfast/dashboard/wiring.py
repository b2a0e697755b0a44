"""Where the nodes and the wires of a lifecycle go: geometry, and nothing that is drawn.

Columns are ranks: what waits stands left, what a worker has in the middle by its distance from enqueue, the
ends right. Wires run along one axis at a time. Each has ports of its own on its nodes and a lane of its own
in every gutter between columns, so that no two lie on one another; wires that skip a column go round above
(backward) or below (forward). Labels stand beside the right ports of the column left of a gutter.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

from holdfast.dashboard.ranks import columns, pairs
from holdfast.dashboard.svg import Point
from holdfast.engine.lifecycle import PERSONAL, Lifecycle

NODE_WIDTH, NODE_HEIGHT, ROW_GAP = 136.0, 60.0, 30.0
LETTER, LINE = 6.5, 13.0  # the width of a letter of a label, and the height of its line
PORT, LANE, TRACK = 22.0, 13.0, 15.0  # the room that a port, a lane and a track take
ARROW = 16.0  # the room that the head of an arrow takes before its node
MARGIN = 14.0
ENTRANCE = 74.0  # left of the first column: where new rows come from
BRUTE = 6  # lanes of a gutter of which every order is tried

Side = Literal["left", "right"]
Heading = Literal["up", "down", "beside"]


@dataclass(frozen=True)
class Node:
    """A state, as a box."""

    state: str
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> Point:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(frozen=True)
class Wire:
    """A change of state, as a line from port to port, with the lines of its label and where they stand."""

    frm: str
    to: str
    verbs: tuple[str, ...]
    points: tuple[Point, ...]
    label: tuple[str, ...]
    label_at: Point
    joins: bool = False  # it ends on another wire, which leads on to the same state

    @property
    def personal(self) -> bool:
        """Whether only a person does this."""
        return _personal(self.verbs)


@dataclass(frozen=True)
class Plan:
    """The whole picture. `entrance` is where new rows come in."""

    width: float
    height: float
    nodes: tuple[Node, ...]
    wires: tuple[Wire, ...]
    entrance: tuple[Point, Point]


@dataclass
class _Port:
    """One end of a wire on a side of a node."""

    state: str
    side: Side
    heading: Heading
    other: str
    lines: int = 0
    y: float = 0.0


@dataclass
class _Part:
    """What one wire does in one gutter: a piece along a lane, and pieces that lead to it from both sides."""

    gutter: int
    ends: list[tuple[Callable[[], float], Side]]
    x: float = 0.0

    def span(self) -> tuple[float, float]:
        heights = [height() for height, _ in self.ends]
        return min(heights), max(heights)


@dataclass
class _Link:
    """A wire while it is being planned."""

    frm: str
    to: str
    verbs: tuple[str, ...]
    start: _Port
    end: _Port
    parts: list[_Part] = field(default_factory=list[_Part])
    track: _Track | None = None

    @property
    def label(self) -> tuple[str, ...]:
        return _lines(self.verbs)


@dataclass
class _Track:
    """A way round the columns: above them or below."""

    above: bool
    reach: int
    y: float = 0.0


@lru_cache(maxsize=64)
def plan(lifecycle: Lifecycle) -> Plan:
    """The picture of a lifecycle; the same for every look at it."""
    return _Planner(lifecycle).plan()


class _Planner:
    """Makes one plan: ports, heights, lanes, and then the points of each wire."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self.columns = columns(lifecycle)
        self.column = {state: place for place, states in enumerate(self.columns) for state in states}
        self.tracks: list[_Track] = []
        self.ports: list[_Port] = []
        self.links = self._links()

    def plan(self) -> Plan:
        heights = {state: self._height(state) for state in self.column}
        above = [track for track in self.tracks if track.above]
        below = [track for track in self.tracks if not track.above]
        top = MARGIN + TRACK * len(above) + (TRACK / 2 if above else 0)
        tall = max(sum(heights[s] + ROW_GAP for s in states) - ROW_GAP for states in self.columns)
        boxes = self._boxes(heights, top, tall)
        for place, track in enumerate(sorted(above, key=lambda track: -track.reach)):
            track.y = MARGIN + TRACK * place
        for place, track in enumerate(sorted(below, key=lambda track: track.reach)):
            track.y = top + tall + TRACK * (place + 1)
        self._set_ports(boxes, heights)
        starts = self._set_lanes()
        nodes = tuple(
            Node(state, starts[self.column[state]], boxes[state], NODE_WIDTH, heights[state])
            for state in self.column
        )
        height = top + tall + TRACK * len(below) + (TRACK / 2 if below else 0) + MARGIN
        by_state = {node.state: node for node in nodes}
        first = by_state[self.lifecycle.initial]
        door = ((MARGIN, first.middle[1]), (first.x, first.middle[1]))
        wires = _joined([self._wire(link, by_state) for link in self.links])
        return Plan(starts[-1], height, nodes, wires, door)

    # -- what is connected -------------------------------------------------------------------------

    def _links(self) -> list[_Link]:
        links: list[_Link] = []
        shared: dict[tuple[object, ...], tuple[_Port, _Track, _Part]] = {}
        for (frm, to), verbs in pairs(self.lifecycle).items():
            here, there = self.column[frm], self.column[to]
            forward = there > here
            far = abs(there - here) > 1
            heading: Heading = "beside" if not far else "down" if forward else "up"
            lines = len(_lines(verbs))
            start = self._port(frm, "right" if there >= here else "left", heading, to, lines)
            link = _Link(frm, to, verbs, start, start)
            links.append(link)
            if far:
                self._go_round(link, heading, shared)
                continue
            link.end = self._port(to, "left" if forward else "right", "beside", frm, lines)
            left: Side = "left" if there >= here else "right"
            right: Side = "right" if forward else "left"
            link.parts = [_Part(min(here, there), [(_at(link.start), left), (_at(link.end), right)])]
        return links

    def _go_round(
        self, link: _Link, heading: Heading, shared: dict[tuple[object, ...], tuple[_Port, _Track, _Part]]
    ) -> None:
        """Leads a wire round the columns between; wires that mean the same share the way from there."""
        here, there = self.column[link.frm], self.column[link.to]
        forward = there > here
        sides: tuple[Side, Side] = ("left", "right") if forward else ("right", "left")
        key = (link.to, forward, _personal(link.verbs) if forward else link.verbs)
        if key not in shared:
            end = self._port(link.to, "left" if forward else "right", heading, link.frm, len(link.label))
            track = _Track(above=not forward, reach=abs(there - here))
            self.tracks.append(track)
            gutter = there - 1 if forward else there
            shared[key] = end, track, _Part(gutter, [(_at(track), sides[0]), (_at(end), sides[1])])
        link.end, link.track, last_part = shared[key]
        link.track.reach = max(link.track.reach, abs(there - here))
        first = _Part(
            here if forward else here - 1, [(_at(link.start), sides[0]), (_at(link.track), sides[1])]
        )
        link.parts = [first, last_part]

    def _port(self, state: str, side: Side, heading: Heading, other: str, lines: int) -> _Port:
        port = _Port(state, side, heading, other, lines if side == "right" else 0)
        self.ports.append(port)
        return port

    # -- how high everything is --------------------------------------------------------------------

    def _side(self, state: str, side: Side) -> list[_Port]:
        return [port for port in self.ports if port.state == state and port.side == side]

    def _height(self, state: str) -> float:
        sides = (self._side(state, "left"), self._side(state, "right"))
        return max(NODE_HEIGHT, *(sum(map(_room, ports)) + 8 for ports in sides))

    def _boxes(self, heights: Mapping[str, float], top: float, tall: float) -> dict[str, float]:
        """The upper edge of every node: columns are centred on one line."""
        boxes: dict[str, float] = {}
        for states in self.columns:
            whole = sum(heights[state] + ROW_GAP for state in states) - ROW_GAP
            y = top + (tall - whole) / 2
            for state in states:
                boxes[state] = y
                y += heights[state] + ROW_GAP
        return boxes

    def _set_ports(self, boxes: Mapping[str, float], heights: Mapping[str, float]) -> None:
        middle = {state: boxes[state] + heights[state] / 2 for state in boxes}
        order = {"up": -1, "beside": 0, "down": 1}
        for state, side in itertools.product(self.column, ("left", "right")):
            ports = self._side(state, side)
            ports.sort(key=lambda port: (order[port.heading], middle[port.other]))
            y = middle[state] - sum(map(_room, ports)) / 2
            for port in ports:
                port.y = y + _room(port) / 2
                y += _room(port)
        for link in self.links:
            if link.track is None and link.start.side != link.end.side:
                left, right = sorted((link.start, link.end), key=lambda port: port.side)
                box = boxes[left.state], boxes[left.state] + heights[left.state]
                self._level(left, right.y, *box)

    def _level(self, port: _Port, y: float, top: float, bottom: float) -> None:
        """Moves a port to the height of its other end, where that is near and nobody is in the way."""
        others = [other.y for other in self._side(port.state, port.side) if other is not port]
        if abs(port.y - y) < PORT and top + 8 <= y <= bottom - 8 and all(abs(y - at) >= 13 for at in others):
            port.y = y

    # -- where the lanes are -----------------------------------------------------------------------

    def _set_lanes(self) -> list[float]:
        """The left edge of every column, and of what is right of the last; sets the place of every lane."""
        x = MARGIN + ENTRANCE
        starts: list[float] = []
        for gutter in range(len(self.columns)):
            starts.append(x)
            x += NODE_WIDTH
            parts = _unique(part for link in self.links for part in link.parts if part.gutter == gutter)
            labels = [
                line
                for link in self.links
                for line in link.label
                if self.column[_labelled(link).state] == gutter
            ]
            room = max((len(line) * LETTER + 14 for line in labels), default=0.0)
            for place, part in enumerate(_ordered(parts)):
                part.x = x + room + ARROW + LANE * place
            last = gutter == len(self.columns) - 1
            x += room + LANE * len(parts) + (MARGIN if last else 2 * ARROW) + (ARROW if parts and last else 0)
        return [*starts, x]

    def _wire(self, link: _Link, nodes: Mapping[str, Node]) -> Wire:
        start, end = (_edge(nodes[port.state], port) for port in (link.start, link.end))
        points = [start]
        y = start[1]
        for part in link.parts:
            points.append((part.x, y))
            y = link.track.y if link.track and part is link.parts[0] else end[1]
            points.append((part.x, y))
        points.append(end)
        shown = _labelled(link)
        at = _edge(nodes[shown.state], shown)
        return Wire(link.frm, link.to, link.verbs, _straight(points), link.label, (at[0] + 9, at[1]))


def _lines(verbs: tuple[str, ...]) -> tuple[str, ...]:
    """A label, on two lines where it is long."""
    if len(verbs) < 3:
        return (", ".join(verbs),)
    half = (len(verbs) + 1) // 2
    return f"{', '.join(verbs[:half])},", ", ".join(verbs[half:])


def _personal(verbs: Iterable[str]) -> bool:
    return set(verbs) <= set(PERSONAL)


def _joined(wires: list[Wire]) -> tuple[Wire, ...]:
    """The wires, with those that end in one port cut where they meet the one that comes from farthest."""
    cut: list[Wire] = []
    for wire in wires:
        same = [other for other in wires if other.points[-1] == wire.points[-1]]
        longest = max(same, key=lambda other: abs(other.points[1][0] - wire.points[-1][0]))
        if wire is longest:
            cut.append(wire)
            continue
        shown = wire.label if wire.label_at != longest.label_at else ()
        cut.append(replace(wire, points=wire.points[:3], label=shown, joins=True))
    return tuple(cut)


def _labelled(link: _Link) -> _Port:
    """The port beside which the label stands: the one on the right side of its node."""
    return link.start if link.start.side == "right" else link.end


def _room(port: _Port) -> float:
    return PORT + (LINE + 9) * max(0, port.lines - 1) if port.side == "right" else PORT - 4


def _at(end: _Port | _Track) -> Callable[[], float]:
    return lambda: end.y


def _edge(node: Node, port: _Port) -> Point:
    return (node.x if port.side == "left" else node.x + node.width), port.y


def _unique(parts: Iterable[_Part]) -> list[_Part]:
    return list({id(part): part for part in parts}.values())


def _ordered(parts: list[_Part]) -> Sequence[_Part]:
    """The lanes of a gutter from left to right, in an order with few crossings."""
    if len(parts) <= BRUTE:
        return min(itertools.permutations(parts), key=_crossings, default=())
    order = sorted(parts, key=lambda part: part.span())
    improved = True
    while improved:
        improved = False
        for place in range(len(order) - 1):
            swapped = [*order]
            swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
            if _crossings(swapped) < _crossings(order):
                order, improved = swapped, True
    return order


def _crossings(order: Sequence[_Part]) -> float:
    """How often the wires of a gutter cross, and a lot for those that would lie on one another."""
    found = 0.0
    for place, part in enumerate(order):
        low, high = part.span()
        for other_place, other in enumerate(order):
            if other is part:
                continue
            for height, side in other.ends:
                reaches = place < other_place if side == "left" else place > other_place
                found += reaches and low < height() < high
                found += 20 * (reaches and any(abs(height() - mine()) < 5 for mine, _ in part.ends))
    return found


def _straight(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points without those that lie on a straight line between their neighbours."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) > 1 and (
            kept[-2][0] == kept[-1][0] == point[0] or kept[-2][1] == kept[-1][1] == point[1]
        ):
            kept[-1] = point
        else:
            kept.append(point)
    return tuple(kept)
