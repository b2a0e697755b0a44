"""How `holdfast up` and `holdfast top` look: one calm screen in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli import figures, output
from holdfast.cli.snapshot import NEWEST, Seen, Snapshot
from holdfast.engine.values import Stat
from holdfast.runtime.overview import LedgerView
from holdfast.runtime.presence import Present

SUMMARY_SECONDS = 5.0
BORDERS = 2  # lines of a panel beside its rows
FRAME_COLUMNS = 4
FEW = 4  # rows at work, where those that ended are shown, too
MOST_ENDED = 12
MOST_WORKERS = 8
HILL = 30  # minutes
AWAY = "the database does not answer; trying again"


class Screen:
    """The live view of a terminal; redrawn in place, and only when something was looked at.

    `full` takes the whole terminal and gives it back at the end. `ended`: rows that ended are shown.
    """

    def __init__(self, console: Console, below: Sequence[str], *, full: bool, ended: bool) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, screen=full, vertical_overflow="crop")
        self.below = list(below)
        self.ended = ended

    def start(self) -> None:
        self.live.start()

    def say(self, text: str) -> None:
        """What stands in the last line from the next look on."""
        self.below[-1] = text

    def show(self, now: Snapshot | None) -> None:
        """Draws what was seen; None: the database did not answer."""
        if now is None:
            self.live.update(Panel(Text(AWAY, style="yellow"), box=box.ROUNDED), refresh=True)
            return
        below = [
            Text(output.readable(line), style="dim", no_wrap=True, overflow="ellipsis") for line in self.below
        ]
        self.live.update(Group(*self._panels(now), *below), refresh=True)

    def _panels(self, now: Snapshot) -> list[RenderableType]:
        """All panels; their height does not change from one look to the next."""
        workers = [*_workers(now)]
        fixed = 2 * len(now.overview.ledgers) + max(1, len(workers)) + len(self.below) + 3 * BORDERS
        room = self.console.height - fixed - 1
        width = self.console.width - FRAME_COLUMNS
        working = FEW if self.ended else max(3, min(NEWEST, room))
        ended = max(3, min(MOST_ENDED, room - FEW - BORDERS)) if self.ended else 0
        panels = [
            panel(
                "Ledgers", *(line for view in now.overview.ledgers for line in ledger(view, now.now, width))
            ),
            panel("At work", _grid((_working(seen, now.now) for seen in now.working[:working]), working)),
        ]
        if ended:
            panels.append(panel("Last finished", _grid(map(_finished, now.finished[:ended]), ended)))
        return [*panels, panel("Workers", _grid(workers, max(1, len(workers))))]

    def stop(self) -> None:
        self.live.stop()


class Lines:
    """The same as plain lines: one for each row that ended, and a summary now and then."""

    def __init__(self, since: datetime) -> None:
        self.since = since
        self.told: set[str] = set()
        self.summed: datetime | None = None

    def start(self) -> None:
        """Nothing to prepare."""

    def say(self, text: str) -> None:
        """Said at once."""
        output.line(text)
        output.flush()

    def show(self, now: Snapshot | None) -> None:
        """Prints what has ended since the last look, and the summary when it is time."""
        if now is None:
            output.line(AWAY)
            return
        for seen in reversed(now.finished):
            name, finished = f"{seen.ledger.name} {seen.row.id} {seen.row.fence}", seen.row.finished
            if name not in self.told and finished and finished > self.since:
                self.told.add(name)
                output.line(ending(seen))
        if self.summed is None or (now.now - self.summed).total_seconds() >= SUMMARY_SECONDS:
            self.summed = now.now
            output.line(summary(now))
        output.flush()

    def stop(self) -> None:
        """Nothing to put away."""


def ending(seen: Seen) -> str:
    """One row that has ended, in one line."""
    row = seen.row
    when = output.moment(row.finished or row.created, "seconds")
    took = "" if seen.took is None else figures.lasting(seen.took)
    words = [when, seen.ledger.name, str(row.id), row.kind, row.state, took, seen.trouble]
    return output.readable(" ".join(word for word in words if word))


def summary(now: Snapshot) -> str:
    """Everything in one line."""
    ledgers = [
        f"{view.ledger.name}: "
        + (", ".join(f"{_count(stat)} {stat.state}" for stat in view.stats if stat.rows) or "empty")
        for view in now.overview.ledgers
    ]
    rate = sum(figures.each_minute(view.pace, now.now) for view in now.overview.ledgers if view.pace)
    workers = len(now.overview.workers)
    return f"{'; '.join(ledgers)} · {rate:.0f} finished/min · {workers} worker{'s' if workers != 1 else ''}"


def print_once(now: Snapshot) -> None:
    """Everything, for a pipe or for one look: ledgers, workers, and the rows at work."""
    width = output.console().width
    for view in now.overview.ledgers:
        for line in ledger(view, now.now, width, hilly=output.terminal()):
            output.show(line)
    output.line("")
    headings = ("WORKER", "HELD", "SLOTS", "HEARTBEAT", "LEADS", "SERVES")
    output.table(
        headings,
        [
            (
                one.id,
                now.overview.load.get(one.id, 0),
                one.pool_size,
                f"{figures.lasting(one.silent)} ago",
                "leads" if one.leads else "",
                " ".join(one.serves),
            )
            for one in now.overview.workers
        ],
    )
    output.line("")
    lines = [
        (
            seen.ledger.name,
            seen.row.id,
            seen.row.kind,
            output.shade(seen.ledger, seen.row.state),
            figures.lasting(seen.since(now.now)),
            seen.row.owner,
            far(seen),
        )
        for seen in now.working
    ]
    output.table(("LEDGER", "ID", "KIND", "STATE", "FOR", "HELD BY", "HOW FAR"), lines)


def far(seen: Seen) -> str:
    """How far a row at work has come, in words."""
    row = seen.row
    again = f"run {row.attempts + 1}" if row.attempts else ""
    percent = f"{row.progress:.0f} %" if row.progress is not None else ""
    return "  ".join(word for word in (again, row.stage, percent) if word)


# -- the panels ------------------------------------------------------------------------------------------


def panel(title: str, *parts: RenderableType) -> Panel:
    """Something with a frame and a title."""
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim", box=box.ROUNDED)


def ledger(view: LedgerView, now: datetime, width: int, *, hilly: bool = True) -> tuple[Text, Text]:
    """A ledger in two lines: how many rows in which state, and how they fare."""
    name = Text(f"{view.ledger.name}  ", style="bold")
    parts = {
        stat.state: Text.assemble(
            (f"{_count(stat)} ", "bold" if stat.rows else "dim"),
            output.shade(view.ledger, stat.state) if stat.rows else (stat.state, "dim"),
        )
        for stat in view.stats
    }
    line = Text("  ").join(parts.values())
    if name.cell_len + line.cell_len > width:  # where not all have room, states without rows are left out
        line = Text("  ").join(parts[stat.state] for stat in view.stats if stat.rows)
    counts = Text.assemble(name, line)
    counts.no_wrap, counts.overflow = True, "ellipsis"
    fares = Text("  ").join([Text("  ", end=""), *_fares(view, now, hilly)])
    fares.no_wrap, fares.overflow = True, "ellipsis"
    return counts, fares


def _fares(view: LedgerView, now: datetime, hilly: bool) -> Iterable[Text]:
    if view.trouble:
        yield Text(output.readable(view.trouble), style="red")
        return
    for one in view.paused:
        yield Text(f"{f'queue {one.queue}' if one.queue else 'all'} paused", style="bold yellow")
    wait = view.oldest_wait(now)
    yield Text("nothing waits" if wait is None else f"oldest waits {figures.lasting(wait)}", style="dim")
    if view.pace is None:
        return
    yield Text(f"{figures.each_minute(view.pace, now):,.0f} finished/min")
    for name, found in (("waited", view.pace.latency), ("ran", view.pace.run_time)):
        if found.count:
            yield Text(f"p95 {name} {figures.lasting(found.p95)}", style="dim")
    if hilly:
        yield Text(figures.hill([minute.finished for minute in view.pace.minutes[-HILL:]]), style="green")


def _count(stat: Stat) -> str:
    return figures.count(stat.rows, exact=stat.exact)


def _grid(rows: Iterable[Sequence[Text]], height: int) -> Table:
    """Rows of cells, filled up with empty lines."""
    grid = Table.grid(padding=(0, 2), expand=True)
    lines = [*rows]
    width = max((len(line) for line in lines), default=1)
    for place in range(width):
        grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if place == width - 1 else None)
    for line in lines:
        grid.add_row(*line)
    for _ in range(height - len(lines)):
        grid.add_row(Text(" "))
    return grid


def _working(seen: Seen, now: datetime) -> Sequence[Text]:
    row = seen.row
    lasts = "" if (since := seen.since(now)) is None else figures.lasting(since)
    words = (far(seen), f"by {row.owner}" if row.owner else "")
    told = Text(output.readable("  ".join(word for word in words if word)), style="dim")
    return *_name(seen), output.shade(seen.ledger, row.state), Text(lasts), told


def _finished(seen: Seen) -> Sequence[Text]:
    row = seen.row
    took = "" if seen.took is None else figures.lasting(seen.took)
    trouble = Text(output.readable(seen.trouble), style="dim")
    return *_name(seen), output.shade(seen.ledger, row.state), Text(took), trouble


def _workers(now: Snapshot) -> Iterable[Sequence[Text]]:
    every = now.overview.workers
    for one in every[:MOST_WORKERS]:
        yield _worker(one, now.overview.load.get(one.id, 0))
    if len(every) > MOST_WORKERS:
        yield (Text(f"… and {len(every) - MOST_WORKERS} more", style="dim"),)


def _worker(one: Present, load: int) -> Sequence[Text]:
    beat = Text(f"heartbeat {figures.lasting(one.silent)} ago", style="dim")
    leads = Text("leads", style="bold yellow") if one.leads else Text("")
    return Text(one.id), Text(f"{load}/{one.pool_size} slots"), beat, Text(" ".join(one.serves)), leads


def _name(seen: Seen) -> Sequence[Text]:
    row = seen.row
    return Text(seen.ledger.name), Text("…" + str(row.id)[-8:], style="dim"), Text(output.readable(row.kind))
