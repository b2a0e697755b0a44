"""The life of one row, drawn to scale as SVG: a line for each state, spans over time, events as marks.

A wait that would leave no room for the rest is cut short and drawn with a visible break; everything else
shares one scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from markupsafe import Markup

from holdfast.dashboard import phrases, svg
from holdfast.dashboard.svg import tag
from holdfast.dashboard.tones import Tone, tone
from holdfast.engine.ledger import Ledger
from holdfast.engine.values import Event, Row

WIDTH, LEFT, RIGHT = 900.0, 118.0, 26.0
LINE, TOP, BOTTOM = 34.0, 14.0, 34.0
LETTER = 6.4  # the width of a letter
LONG = 4.0  # a wait is long when it lasts this many times as long as all that is not
BREAK = 124.0  # how wide a long wait is drawn
MOST_BREAKS = 4
LEAST = 3.0  # how wide the shortest span is drawn, to be seen at all
STEPS = (  # seconds between two ticks
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200),
    *(1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000),
)
NEAR = 74.0  # how near two ticks may stand


@dataclass(frozen=True)
class Span:
    """A state over a time. `waits`: nobody has it; `open`: it lasts still; `ahead`: it is in the future."""

    state: str
    start: datetime
    end: datetime
    waits: bool = False
    open: bool = False
    ahead: bool = False

    @property
    def seconds(self) -> float:
        return max(0.0, (self.end - self.start).total_seconds())


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment: a state began, or something `within` it."""

    state: str
    at: datetime
    told: str
    within: bool = False


@dataclass(frozen=True)
class Story:
    """What is to be drawn."""

    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    kept: bool = True  # the journal tells it; else only the row's own times do


@dataclass(frozen=True)
class Piece:
    """A span on paper. `cut`: it is drawn shorter than the scale would have it."""

    span: Span
    x: float
    width: float
    cut: bool


def told_by_events(ledger: Ledger, row: Row, events: Sequence[Event], now: datetime) -> Story:
    """The story that a journal tells."""
    spans: list[Span] = []
    marks: list[Mark] = []
    for event, after in itertools.zip_longest(events, events[1:]):
        at = phrases.aware(event.at)
        marks.append(Mark(event.next, at, _told(event), within=event.prev == event.next))
        if after is None or event.next != after.next or event.next != after.prev:
            start = spans[-1].end if spans else at
            spans.append(Span(event.next, start, phrases.aware(after.at) if after else at))
    return Story(_until_now(ledger, row, spans, now), tuple(marks))


def told_by_row(ledger: Ledger, row: Row, now: datetime) -> Story:
    """The story that the row's own times tell: where there is no journal, earlier runs are forgotten."""
    life = ledger.lifecycle
    claimed = life.of("claim")[0].to
    times: list[tuple[datetime, str]] = [(phrases.aware(row.created), life.initial)]
    before = [(row.claimed, claimed), (row.started, life.running)]
    times += [(phrases.aware(at), state) for at, state in before if at is not None]
    last = row.finished or (row.updated if row.state not in (state for _, state in times) else None)
    if last is not None:
        times.append((phrases.aware(last), row.state))
    elif row.state == life.initial and len(times) > 1:
        times.append((phrases.aware(row.updated or times[-1][0]), row.state))
    times.sort(key=lambda one: one[0])
    spans = [Span(state, at, then) for (at, state), (then, _) in itertools.pairwise(times)]
    spans.append(Span(times[-1][1], times[-1][0], times[-1][0]))
    marks = tuple(Mark(state, at, state) for at, state in times)
    return Story(_until_now(ledger, row, spans, now), marks, kept=False)


def _until_now(ledger: Ledger, row: Row, spans: list[Span], now: datetime) -> tuple[Span, ...]:
    """The spans, the last one up to the present where the row has not ended, and to its due time."""
    held = ledger.lifecycle.held
    spans = [replace(span, waits=span.state not in held) for span in spans]
    if not spans or row.state in ledger.ends:
        return tuple(spans)
    last = spans[-1]
    spans[-1] = replace(last, end=max(last.end, now), open=True)
    due = phrases.aware(row.due) if row.due else None
    if due and due > now and row.state in ledger.lifecycle.waiting:
        spans.append(Span(row.state, spans[-1].end, due, waits=True, ahead=True))
    return tuple(spans)


def pieces(spans: Sequence[Span], width: float) -> tuple[Piece, ...]:
    """Where the spans lie within a width: to one scale, but for the long ones."""
    long = long_ones(spans)
    whole = sum(span.seconds for place, span in enumerate(spans) if place not in long)
    room = width - BREAK * len(long)
    tiny = {
        place
        for place, span in enumerate(spans)
        if place not in long and (not whole or span.seconds / whole * room < LEAST)
    }
    room -= LEAST * len(tiny)
    whole = sum(span.seconds for place, span in enumerate(spans) if place not in long | tiny)
    drawn: list[Piece] = []
    x = 0.0
    for place, span in enumerate(spans):
        part = BREAK if place in long else LEAST if place in tiny else max(0.0, room) * span.seconds / whole
        drawn.append(Piece(span, x, part, place in long))
        x += part
    return tuple(drawn)


def long_ones(spans: Sequence[Span]) -> frozenset[int]:
    """Which waits are cut short: the longest first, for as long as one leaves no room for the rest."""
    waits = [place for place, span in enumerate(spans) if span.waits]
    long: set[int] = set()
    for place in sorted(waits, key=lambda place: -spans[place].seconds):
        rest = sum(span.seconds for other, span in enumerate(spans) if other not in long and other != place)
        if rest <= 0 or spans[place].seconds <= LONG * rest or len(long) >= MOST_BREAKS:
            break
        long.add(place)
    return frozenset(long)


def ticks(drawn: Sequence[Piece]) -> tuple[tuple[float, str], ...]:
    """Where the scale has its ticks, and what they say.

    Each stretch between two breaks begins with the time of day, and goes on with the time since then.
    """
    scaled = [piece for piece in drawn if not piece.cut and piece.width > LEAST]
    if not scaled:
        return ()
    wide = max(scaled, key=lambda piece: piece.width)
    rate = wide.width / wide.span.seconds  # pixels in a second
    step = next((step for step in STEPS if step * rate >= NEAR), STEPS[-1])
    found: list[tuple[float, str]] = []
    for cut, group in itertools.groupby(drawn, key=lambda piece: piece.cut):
        if not cut:
            found += _ticks(list(group), rate, step)
    return tuple(found)


def _ticks(stretch: Sequence[Piece], rate: float, step: float) -> Iterable[tuple[float, str]]:
    origin = stretch[0].span.start
    last = stretch[0].x
    yield last, origin.strftime("%H:%M:%S")
    for piece in stretch:
        begin = (piece.span.start - origin).total_seconds()
        first = int(begin // step) + 1
        for number in range(first, int((begin + piece.span.seconds) / step) + 1):
            x = piece.x + (number * step - begin) * rate
            if x - last >= NEAR - 1 and piece.width > LEAST:
                last = x
                yield x, f"+{phrases.duration(number * step)}"


def draw(ledger: Ledger, story: Story, *, name: str) -> Markup:
    """The picture."""
    states = list(dict.fromkeys(span.state for span in story.spans))
    drawn = pieces(story.spans, WIDTH - LEFT - RIGHT)
    height = TOP + LINE * len(states) + BOTTOM
    colour: Callable[[str], Tone] = lambda state: tone(ledger.lifecycle, state)  # noqa: E731
    return tag(
        "svg",
        tag("title", f"Timeline of {name}", id="timeline-title"),
        tag("desc", told(story), id="timeline-desc"),
        *(_line(place, state) for place, state in enumerate(states)),
        *_scale(drawn, height),
        *_steps(drawn, states),
        *(_piece(piece, states, colour(piece.span.state)) for piece in drawn),
        *(_mark(mark, drawn, states, colour(mark.state)) for mark in story.marks),
        *_present(drawn, height),
        viewBox=f"0 0 {WIDTH:g} {svg.number(height)}",
        class_="timeline",
        role="img",
        aria_labelledby="timeline-title timeline-desc",
    )


def told(story: Story) -> str:
    """The same in words."""
    return ", then ".join(_in_words(span) for span in story.spans) + "."


def _in_words(span: Span) -> str:
    length = phrases.duration(span.seconds)
    if span.ahead:
        return f"due in {length}"
    return f"{span.state} for {length}{' until now' if span.open else ''}" if span.seconds else span.state


def _line(place: int, state: str) -> Markup:
    y = TOP + LINE * place + LINE / 2
    return tag(
        "g",
        tag("text", phrases.clip(state, 16), x=LEFT - 12, y=y + 4, text_anchor="end", class_="state"),
        tag("path", d=f"M{LEFT:g} {y:g}H{WIDTH - RIGHT:g}", class_="rail"),
    )


def _piece(piece: Piece, states: Sequence[str], colour: Tone) -> Markup:
    x, y = LEFT + piece.x, TOP + LINE * states.index(piece.span.state) + 8
    words = "span ahead" if piece.span.ahead else "span open" if piece.span.open else "span"
    length = phrases.duration(piece.span.seconds)
    inside = [
        tag("title", _in_words(piece.span)),
        tag("rect", x=x, y=y, width=max(LEAST, piece.width), height=LINE - 16, rx=4),
    ]
    room = piece.width - 20
    if piece.cut:
        middle = x + piece.width - 22
        zigzag = ((middle - 7, y - 3), (middle - 1, y + 6), (middle - 7, y + 12), (middle - 1, y + LINE - 13))
        other = [(at + 6, height) for at, height in reversed(zigzag)]
        inside.append(tag("polygon", points=svg.polyline((*zigzag, *other)), class_="break"))
        room -= 30
    if len(length) * LETTER < room:
        anchor = {"x": x + 11, "text_anchor": "start"} if piece.cut else {"x": x + piece.width / 2}
        inside.append(tag("text", length, y=y + 13, class_="length", **({"text_anchor": "middle"} | anchor)))
    return tag("g", *inside, class_=f"{words} {colour}")


def _steps(drawn: Sequence[Piece], states: Sequence[str]) -> Iterable[Markup]:
    """The thin lines that lead from one state to the next."""
    for before, after in itertools.pairwise(drawn):
        first, second = (TOP + LINE * states.index(one.span.state) + LINE / 2 for one in (before, after))
        if first != second:
            yield tag("path", d=f"M{svg.number(LEFT + after.x)} {first:g}V{second:g}", class_="step")


def _mark(mark: Mark, drawn: Sequence[Piece], states: Sequence[str], colour: Tone) -> Markup:
    x, y = LEFT + at(mark.at, drawn, mark.state), TOP + LINE * states.index(mark.state) + LINE / 2
    title = tag("title", f"{phrases.moment(mark.at, precise=True)} UTC: {mark.told}")
    if mark.within:
        below = y + LINE / 2 - 7
        corners = ((x, below), (x - 3.5, below + 6), (x + 3.5, below + 6))
        return tag("g", title, tag("polygon", points=svg.polyline(corners)), class_=f"within {colour}")
    return tag("g", title, tag("circle", cx=x, cy=y, r=4.5), class_=f"mark {colour}")


def at(when: datetime, drawn: Sequence[Piece], state: str | None = None) -> float:
    """Where a moment lies; of two pieces that meet there, the one of the state."""
    inside = [piece for piece in drawn if piece.span.start <= when <= piece.span.end]
    chosen = next((piece for piece in inside if piece.span.state == state), inside[0] if inside else None)
    if chosen is None:
        return 0.0 if not drawn or when < drawn[0].span.start else drawn[-1].x + drawn[-1].width
    share = (when - chosen.span.start).total_seconds() / chosen.span.seconds if chosen.span.seconds else 0.0
    return chosen.x + chosen.width * share


def _scale(drawn: Sequence[Piece], height: float) -> Iterable[Markup]:
    bottom = height - BOTTOM + 4
    for x, text in ticks(drawn):
        spot = svg.number(LEFT + x)
        yield tag("path", d=f"M{spot} {TOP - 4:g}V{bottom:g}", class_="tick")
        yield tag("text", text, x=LEFT + x, y=bottom + 16, text_anchor="middle", class_="tick")


def _present(drawn: Sequence[Piece], height: float) -> Iterable[Markup]:
    for piece in drawn:
        if piece.span.open:
            x = LEFT + piece.x + piece.width
            yield tag("path", d=f"M{svg.number(x)} {TOP - 8:g}V{height - BOTTOM + 4:g}", class_="now")
            yield tag("text", "now", x=x, y=height - 4, text_anchor="middle", class_="now")


def _told(event: Event) -> str:
    verb = event.detail.get("verb")
    told = f"{verb}: {event.prev} → {event.next}" if event.prev else f"{verb}: {event.next}"
    extra = phrases.note(event)
    return phrases.clip(f"{told}. {extra}" if extra else told, 200)
