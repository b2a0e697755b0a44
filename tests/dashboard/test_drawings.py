"""Charts, the lifecycle and the timeline are drawn true: to scale, and nothing lies on something else."""

from __future__ import annotations

import doctest
import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

import holdfast.dashboard
from holdfast.dashboard import charts, diagram, ranks, timeline, wiring
from holdfast.dashboard.svg import Point
from holdfast.dashboard.timeline import BREAK, LEAST, Piece, Span
from holdfast.dashboard.tones import TONES, tone
from holdfast.engine.ledger import Ledger
from holdfast.engine.lifecycle import Edge, Lifecycle
from holdfast.engine.values import Event, Row, Stat
from holdfast.runtime.pulse import Minute, Percentiles
from ledgers import ERRANDS, JOB, PARCELS, PERMITS, SYNCS, TASKS

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEDGERS = [JOB, TASKS, PARCELS, ERRANDS, SYNCS, PERMITS]
# One that nobody has: many states, several that wait and are held, edges of every direction.
CROWD = Lifecycle(
    states=("new", "ready", "later", "taken", "warm", "hot", "done", "spoilt", "lost", "off"),
    ends=("done", "spoilt", "lost", "off"),
    edges=(
        Edge("enqueue", to="ready"),
        Edge("claim", frm=("ready", "later"), to="taken"),
        Edge("start", frm=("taken",), to="hot"),
        Edge("finish", frm=("hot",), to="done"),
        Edge("retry", frm=("hot",), to="later"),
        Edge("exhaust", frm=("hot", "taken"), to="spoilt"),
        Edge("reject", frm=("taken", "hot"), to="spoilt"),
        Edge("snooze", frm=("hot",), to="later"),
        Edge("release", frm=("taken", "hot"), to="ready"),
        Edge("lose", frm=("taken", "hot"), to="lost"),
        Edge("cancel", frm=("new", "ready", "later", "warm", "taken", "hot"), to="off"),
        Edge("requeue", frm=("spoilt", "lost", "off"), to="ready"),
    ),
)
LIVES = [pytest.param(ledger.lifecycle, id=ledger.name) for ledger in LEDGERS]
LIVES.append(pytest.param(CROWD, id="crowd"))
MODULES = [
    f"holdfast.dashboard.{module.name}" for module in pkgutil.iter_modules(holdfast.dashboard.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


# -- what states mean ------------------------------------------------------------------------------------


def test_colours_follow_from_the_edges_and_not_from_names() -> None:
    assert {state: tone(JOB.lifecycle, state) for state in JOB.states} == {
        "queued": "waiting",
        "running": "held",
        "succeeded": "good",
        "failed": "again",
        "canceled": "off",
        "dead_letter": "bad",
    }
    assert tone(TASKS.lifecycle, "failed") == "bad", "a cancelled task is no other than a rejected one"
    assert [tone(PARCELS.lifecycle, state) for state in PARCELS.states] == ["waiting", "held", "good", "bad"]
    assert tone(SYNCS.lifecycle, "failed") == "bad", "an end, although it may be claimed again"


# -- the lifecycle ---------------------------------------------------------------------------------------


def segments(points: tuple[Point, ...]) -> Iterator[tuple[Point, Point]]:
    return itertools.pairwise(points)


@pytest.mark.parametrize("life", LIVES)
def test_every_state_has_its_place_and_no_two_share_one(life: Lifecycle) -> None:
    plan = wiring.plan(life)
    assert sorted(node.state for node in plan.nodes) == sorted(life.states)
    for one, other in itertools.combinations(plan.nodes, 2):
        apart = (
            one.x + one.width < other.x
            or other.x + other.width < one.x
            or one.y + one.height < other.y
            or other.y + other.height < one.y
        )
        assert apart, (one, other)
    for node in plan.nodes:
        assert node.x >= 0
        assert node.x + node.width <= plan.width
        assert node.y >= 0
        assert node.y + node.height <= plan.height


@pytest.mark.parametrize("life", LIVES)
def test_what_waits_stands_left_and_ends_stand_right(life: Lifecycle) -> None:
    found = ranks.columns(life)
    assert found[0][0] == life.initial
    assert set(found[-1]) == set(life.ends)
    held = [state for column in found[1:-1] for state in column]
    assert set(held) == set(life.held) - set(life.ends)
    assert [TONES.index(tone(life, state)) for state in found[-1]] == sorted(
        TONES.index(tone(life, state)) for state in found[-1]
    )


@pytest.mark.parametrize("life", LIVES)
def test_every_edge_is_drawn_from_its_node_to_its_node_along_the_axes(life: Lifecycle) -> None:
    plan = wiring.plan(life)
    nodes = {node.state: node for node in plan.nodes}
    drawn = {(wire.frm, wire.to): set(wire.verbs) for wire in plan.wires}
    wanted: dict[tuple[str, str], set[str]] = {}
    for edge in life.edges:
        for frm in edge.frm:
            wanted.setdefault((frm, edge.to), set()).add(edge.verb)
    assert drawn == wanted
    for wire in plan.wires:
        (x, y), (end_x, end_y) = wire.points[0], wire.points[-1]
        start, end = nodes[wire.frm], nodes[wire.to]
        assert x in (start.x, start.x + start.width)
        assert start.y < y < start.y + start.height
        if not wire.joins:
            assert end_x in (end.x, end.x + end.width)
            assert end.y < end_y < end.y + end.height
        assert all(one[0] == two[0] or one[1] == two[1] for one, two in segments(wire.points))


@pytest.mark.parametrize("life", LIVES)
def test_no_wire_runs_through_a_node(life: Lifecycle) -> None:
    plan = wiring.plan(life)
    for wire, node in itertools.product(plan.wires, plan.nodes):
        for (x, y), (to_x, to_y) in segments(wire.points):
            left, right, top, bottom = min(x, to_x), max(x, to_x), min(y, to_y), max(y, to_y)
            outside = (
                right <= node.x
                or left >= node.x + node.width
                or bottom <= node.y
                or top >= node.y + node.height
            )
            assert outside, (wire, node)


@pytest.mark.parametrize("life", LIVES)
def test_no_two_wires_lie_on_one_another(life: Lifecycle) -> None:
    for one, other in itertools.combinations(wiring.plan(life).wires, 2):
        for a, b in itertools.product(segments(one.points), segments(other.points)):
            for axis in (0, 1):  # the one along which both run, at the same height of the other axis
                along = 1 - axis
                level = a[0][axis] == a[1][axis] and b[0][axis] == b[1][axis]
                if not level or abs(a[0][axis] - b[0][axis]) > 2:
                    continue
                shared = min(max(p[along] for p in a), max(p[along] for p in b)) - max(
                    min(p[along] for p in a), min(p[along] for p in b)
                )
                assert shared <= 1, (one, other)


@pytest.mark.parametrize("life", LIVES)
def test_no_label_lies_on_another_or_on_a_node(life: Lifecycle) -> None:
    plan = wiring.plan(life)
    boxes: list[tuple[float, float, float, float]] = []
    for wire in plan.wires:
        for place, line in enumerate(wire.label):
            x, y = wire.label_at
            base = y - 5 if place == 0 else y + wiring.LINE - 2
            boxes.append((x, base - 9, x + len(line) * 5.5, base + 2))
    nodes = [(node.x, node.y, node.x + node.width, node.y + node.height) for node in plan.nodes]
    for one, other in [*itertools.combinations(boxes, 2), *itertools.product(boxes, nodes)]:
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart, (one, other)


def test_the_lifecycle_tells_its_counts_and_links_to_them() -> None:
    stats = {
        "queued": Stat(state="queued", rows=3),
        "succeeded": Stat(state="succeeded", rows=5_000_000, exact=False),
    }
    picture = diagram.draw(JOB.lifecycle, stats, lambda state: f"/x?state={state}&y=1", name="<job>")
    tree = ElementTree.fromstring(str(picture))
    links = {link.get("href"): link for link in tree.iter("a")}
    assert set(links) == {f"/x?state={state}&y=1" for state in JOB.states}
    assert [text.text for text in links["/x?state=succeeded&y=1"].iter("text")] == [
        "succeeded",
        "≈ 5,000,000",
    ]
    assert links["/x?state=queued&y=1"].get("class") == "node waiting"
    assert "empty" in (links["/x?state=failed&y=1"].get("class") or "")
    assert tree.find("title").text == "The lifecycle of <job>"  # type: ignore[union-attr]


# -- the timeline ----------------------------------------------------------------------------------------


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def spans(*lengths: float, waits: str = "") -> list[Span]:
    """Spans one after the other; those whose place has a w in `waits` are waits."""
    found: list[Span] = []
    start = 0.0
    for place, length in enumerate(lengths):
        found.append(Span(f"s{place}", at(start), at(start + length), waits=waits[place : place + 1] == "w"))
        start += length
    return found


def row(ledger: Ledger = JOB, **changes: object) -> Row:
    common = Row(
        id=1,
        kind="demo",
        state=ledger.lifecycle.initial,
        payload=None,
        owner=None,
        fence=0,
        attempts=0,
        limit=3,
        due=None,
        created=NOON,
        updated=None,
        claimed=None,
        started=None,
        finished=None,
        error=None,
        columns={},
    )
    return replace(common, **changes)  # type: ignore[arg-type]


def event(seq: int, seconds: float, prev: str | None, next: str, verb: str, **detail: object) -> Event:
    return Event(seq=seq, at=at(seconds), prev=prev, next=next, detail={"verb": verb, **detail})


def test_spans_are_drawn_to_one_scale_without_gaps() -> None:
    drawn = timeline.pieces(spans(1, 2, 5), 800)
    assert [piece.width for piece in drawn] == pytest.approx([100, 200, 500])
    assert [piece.x for piece in drawn] == pytest.approx([0, 100, 300])
    assert not any(piece.cut for piece in drawn)


def test_a_long_wait_is_cut_and_the_rest_keeps_its_scale() -> None:
    drawn = timeline.pieces(spans(3600, 1, 3, waits="w"), BREAK + 400)
    assert [piece.cut for piece in drawn] == [True, False, False]
    assert [piece.width for piece in drawn] == pytest.approx([BREAK, 100, 300])


def test_a_long_run_is_never_cut() -> None:
    drawn = timeline.pieces(spans(0.01, 3600, 1, waits="w-w"), 800)
    assert not any(piece.cut for piece in drawn)
    assert drawn[1].width == pytest.approx(800 - 2 * LEAST)


def test_the_shortest_span_can_be_seen_and_all_fit() -> None:
    drawn = timeline.pieces(spans(0, 100, 0.001, 50), 600)
    assert min(piece.width for piece in drawn) == LEAST
    assert sum(piece.width for piece in drawn) == pytest.approx(600)
    assert drawn[1].width == pytest.approx(2 * drawn[3].width)


def test_nothing_but_moments_can_be_drawn() -> None:
    assert [piece.width for piece in timeline.pieces(spans(0, 0), 600)] == [LEAST, LEAST]
    assert timeline.ticks(timeline.pieces(spans(0, 0), 600)) == ()


def test_ticks_stand_where_their_time_is() -> None:
    drawn = timeline.pieces(spans(2, 8), 1000)
    found = {text: x for x, text in timeline.ticks(drawn)}
    assert found["12:00:00"] == 0
    assert found["+5 s"] == pytest.approx(500)
    assert all(far - near >= 60 for near, far in itertools.pairwise(sorted(found.values())))


def test_ticks_behind_a_break_tell_the_true_time() -> None:
    drawn = timeline.pieces(spans(3600, 4, waits="w"), BREAK + 400)
    assert timeline.ticks(drawn) == (
        (pytest.approx(BREAK), "13:00:00"),
        (pytest.approx(BREAK + 100), "+1 s"),
        (pytest.approx(BREAK + 200), "+2 s"),
        (pytest.approx(BREAK + 300), "+3 s"),
        (pytest.approx(BREAK + 400), "+4 s"),
    )


def test_a_journal_tells_the_story_of_every_run() -> None:
    events = [
        event(1, 0, None, "queued", "enqueue"),
        event(2, 1, "queued", "running", "claim"),
        event(3, 2, "running", "running", "progress", stage="reading", progress=50),
        event(4, 3, "running", "failed", "retry"),
        event(5, 13, "failed", "queued", "claim"),
        event(6, 13, "queued", "running", "claim"),
        event(7, 15, "running", "succeeded", "finish"),
    ]
    ended = row(state="succeeded", finished=at(15))
    story = timeline.told_by_events(JOB, ended, events, at(99))
    assert [(span.state, span.seconds, span.waits) for span in story.spans] == [
        ("queued", 1, True),
        ("running", 2, False),
        ("failed", 10, True),
        ("queued", 0, True),
        ("running", 2, False),
        ("succeeded", 0, True),
    ]
    assert [mark.within for mark in story.marks] == [False, False, True, False, False, False, False]
    assert "reading; 50 %" in story.marks[2].told
    assert timeline.told(story).startswith("queued for 1 s, then running for 2 s, then failed for 10 s")


def test_a_row_that_has_not_ended_lasts_until_now_and_is_due_later() -> None:
    events = [event(1, 0, None, "queued", "enqueue")]
    story = timeline.told_by_events(JOB, row(due=at(100)), events, at(10))
    assert [(span.seconds, span.open, span.ahead) for span in story.spans] == [
        (10, True, False),
        (90, False, True),
    ]
    assert timeline.told(story) == "queued for 10 s until now, then due in 1 min 30 s."


def test_without_a_journal_the_rows_own_times_tell_what_they_can() -> None:
    ended = row(TASKS, state="completed", claimed=at(2), started=at(3), finished=at(7), updated=at(7))
    story = timeline.told_by_row(TASKS, ended, at(99))
    assert [(span.state, span.seconds) for span in story.spans] == [
        ("pending", 2),
        ("claimed", 1),
        ("running", 4),
        ("completed", 0),
    ]
    assert not story.kept
    waiting = timeline.told_by_row(TASKS, row(TASKS), at(5))
    assert [(span.state, span.seconds, span.open) for span in waiting.spans] == [("pending", 5, True)]
    again = row(TASKS, claimed=at(1), started=at(2), updated=at(4), due=at(60))
    story = timeline.told_by_row(TASKS, again, at(10))
    assert [(span.state, span.seconds) for span in story.spans] == [
        ("pending", 1),
        ("claimed", 1),
        ("running", 2),
        ("pending", 6),
        ("pending", 50),
    ]


@pytest.mark.parametrize("ledger", LEDGERS, ids=lambda ledger: ledger.name)
@pytest.mark.parametrize("known", range(2**4))
def test_a_row_of_any_state_with_any_of_its_times_can_be_drawn(ledger: Ledger, known: int) -> None:
    names = ("claimed", "started", "finished", "updated")
    times = {name: at(3 * n) for n, name in enumerate(names) if known >> n & 1}
    for state in ledger.states:
        story = timeline.told_by_row(ledger, row(ledger, state=state, **times), at(60))
        tree = ElementTree.fromstring(str(timeline.draw(ledger, story, name="x")))
        assert tree.find("title") is not None
        assert all(one.end <= two.start for one, two in itertools.pairwise(story.spans))


def test_marks_lie_inside_the_picture() -> None:
    events = [event(n, n % 7, "running", "running", "progress") for n in range(1, 50)]
    story = timeline.told_by_events(JOB, row(state="running"), events, at(50))
    picture = ElementTree.fromstring(str(timeline.draw(JOB, story, name="x")))
    width = float((picture.get("viewBox") or "").split()[2])
    for circle in picture.iter("circle"):
        assert 0 <= float(circle.get("cx") or -1) <= width


def test_a_moment_where_two_spans_meet_belongs_to_the_one_of_its_state() -> None:
    drawn = timeline.pieces(spans(1, 0, 1), 600)
    assert timeline.at(at(1), drawn, "s0") == pytest.approx(drawn[0].width)
    assert timeline.at(at(1), drawn, "s2") == pytest.approx(drawn[2].x)
    assert timeline.at(at(-5), drawn) == 0
    assert timeline.at(at(99), drawn) == pytest.approx(600)


def test_a_piece_knows_its_span() -> None:
    (piece,) = timeline.pieces(spans(4), 100)
    assert piece == Piece(spans(4)[0], 0, 100, False)


# -- charts ----------------------------------------------------------------------------------------------


def minute(n: int, finished: int = 0, retried: int = 0, dead: int = 0) -> Minute:
    return Minute(at=NOON + timedelta(minutes=n), claimed=0, finished=finished, retried=retried, dead=dead)


def test_bars_stand_on_one_another_to_one_scale() -> None:
    drawn = charts.bars([minute(0, finished=10, retried=5, dead=5), minute(1), minute(2, finished=5)])
    assert charts.ceiling(20) == 20
    assert [bar.kind for bar in drawn] == ["finished", "retried", "dead", "finished"]
    assert [bar.height for bar in drawn] == pytest.approx([32, 16, 16, 16])
    assert drawn[0].y + drawn[0].height == charts.HEIGHT
    assert drawn[1].y + drawn[1].height == pytest.approx(drawn[0].y)
    assert drawn[2].y == pytest.approx(0)
    assert drawn[3].x > drawn[0].x + drawn[0].width


def test_an_empty_hour_has_no_bars_and_says_so() -> None:
    picture = charts.throughput([minute(n) for n in range(60)], name="job", id="x")
    tree = ElementTree.fromstring(str(picture))
    assert tree.findall("rect") == []
    assert "0 finished" in (tree.findtext("desc") or "")


def test_percentiles_lie_in_their_order_on_the_scale() -> None:
    picture = charts.strip(Percentiles(9, 0.01, 0.5, 20.0), name="wait", id="x")
    tree = ElementTree.fromstring(str(picture))
    marks = [float(one.get("x") or 0) for one in tree.findall("rect") if one.get("class") == "mark"]
    assert marks == sorted(marks)
    assert len(marks) == 3
    assert charts.place(0.1) - charts.place(0.01) == pytest.approx(charts.place(10) - charts.place(1))
    assert charts.strip(Percentiles(0), name="wait", id="x").count("<rect") == 0
