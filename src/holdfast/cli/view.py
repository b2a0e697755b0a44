"""How `holdfast up` looks: one calm screen in a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.snapshot import WORKING_ROWS, Seen, Snapshot, Throughput
from holdfast.engine.ledger import Ledger
from holdfast.runtime.presence import Present

BLOCKS = " ▁▂▃▄▅▆▇█"
SUMMARY_SECONDS = 5.0
FRAME_LINES = 19  # what the screen needs beside the rows that ended last
FRAME_COLUMNS = 4


class Screen:
    """The live view of a terminal; redrawn in place, and only when something was looked at."""

    def __init__(self, console: Console, below: str) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self.last_line = below

    def start(self) -> None:
        self.live.start()

    def say(self, text: str) -> None:
        """What stands below the screen from the next look on."""
        self.last_line = text

    def show(self, now: Snapshot | None, speed: Throughput) -> None:
        """Draws what was seen; None: the database did not answer."""
        if now is None:
            away = Text("the database does not answer; trying again", style="yellow")
            self.live.update(Panel(away, box=box.ROUNDED), refresh=True)
            return
        below = Text(self.last_line, style="dim", no_wrap=True, overflow="ellipsis")
        rows = max(3, min(12, self.console.height - FRAME_LINES - len(now.counts) - len(now.workers)))
        self.live.update(Group(draw(now, speed, rows, self.console.width), below), refresh=True)

    def stop(self) -> None:
        self.live.stop()


class Lines:
    """The same as plain lines: one for each row that ended, and a summary now and then."""

    def __init__(self, since: datetime) -> None:
        self.since = since
        self.told: set[str] = set()
        self.summed = 0.0

    def start(self) -> None:
        """Nothing to prepare."""

    def say(self, text: str) -> None:
        """Said at once."""
        output.line(text)
        output.flush()

    def show(self, now: Snapshot | None, speed: Throughput) -> None:
        """Prints what has ended since the last look, and the summary when it is time."""
        if now is None:
            output.line("the database does not answer; trying again")
            return
        for seen in reversed(now.finished):
            name, finished = f"{seen.ledger.name} {seen.row.id} {seen.row.fence}", seen.row.finished
            if name not in self.told and finished and finished > self.since:
                self.told.add(name)
                output.line(ending(seen))
        clock = speed.seen[-1][0] if speed.seen else 0.0
        if clock - self.summed >= SUMMARY_SECONDS:
            self.summed = clock
            output.line(summary(now, speed))
        output.flush()

    def stop(self) -> None:
        """Nothing to put away."""


def ending(seen: Seen) -> str:
    """One row that has ended, in one line."""
    row = seen.row
    when = output.moment(row.finished or row.created, "seconds")
    words = [when, seen.ledger.name, str(row.id), row.kind, row.state, seen.took, seen.trouble]
    return output.readable(" ".join(word for word in words if word))


def summary(now: Snapshot, speed: Throughput) -> str:
    """Everything in one line."""
    ledgers = [
        f"{ledger.name}: "
        + (", ".join(f"{count} {state}" for state, count in states.items() if count) or "empty")
        for ledger, states in now.counts
    ]
    workers = f"{len(now.workers)} worker{'s' if len(now.workers) != 1 else ''}"
    return f"{'; '.join(ledgers)} · {speed.rate:.1f}/s · {workers}"


# -- the screen ------------------------------------------------------------------------------------------


def draw(now: Snapshot, speed: Throughput, rows: int, width: int) -> RenderableType:
    """The whole screen; its height does not change from one look to the next."""
    return Group(
        _panel("Ledgers", _counts(now, width - FRAME_COLUMNS), speed_line(speed)),
        _panel("At work", _grid((_working(seen) for seen in now.working[:WORKING_ROWS]), WORKING_ROWS)),
        _panel("Last finished", _grid((_finished(seen) for seen in now.finished[:rows]), rows)),
        _panel("Workers", _grid((_worker(one) for one in now.workers), max(1, len(now.workers)))),
    )


def speed_line(speed: Throughput) -> Text:
    """The throughput as a number and as a small hill."""
    steps = speed.steps[-40:]
    top = max(steps, default=0) or 1
    hill = "".join(BLOCKS[min(8, round(8 * step / top))] for step in steps)
    return Text.assemble((f"{speed.rate:5.1f} finished/s ", "bold"), (hill, "green"))


def _panel(title: str, *parts: RenderableType) -> Panel:
    return Panel(Group(*parts), title=title, title_align="left", border_style="dim", box=box.ROUNDED)


def _counts(now: Snapshot, width: int) -> Table:
    """A line for each ledger; where not all states have room, those without rows are left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    room = width - 2 - max((len(ledger.name) for ledger, _ in now.counts), default=0)
    for ledger, states in now.counts:
        parts = {
            state: Text.assemble((f"{count} ", "bold" if count else "dim"), _shade(ledger, state, count))
            for state, count in states.items()
        }
        line = Text("  ").join(parts.values())
        if line.cell_len > room:
            line = Text("  ").join(part for state, part in parts.items() if states[state])
        grid.add_row(Text(ledger.name, style="bold"), line)
    return grid


def _shade(ledger: Ledger, state: str, count: int) -> Text:
    return output.shade(ledger, state) if count else Text(state, style="dim")


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


def _working(seen: Seen) -> Sequence[Text]:
    row = seen.row
    since = row.started or row.claimed
    lasts = f"{max(0.0, (datetime.now(UTC) - since).total_seconds()):.1f} s" if since else ""
    again = f"run {row.attempts + 1}" if row.attempts else ""
    far = f"{row.progress:.0f} %" if row.progress is not None else ""
    words = Text(output.readable("  ".join(word for word in (again, row.stage, far) if word)), style="dim")
    return *_name(seen), output.shade(seen.ledger, row.state), Text(lasts), words


def _finished(seen: Seen) -> Sequence[Text]:
    row = seen.row
    trouble = Text(output.readable(seen.trouble), style="dim")
    state = output.shade(seen.ledger, row.state)
    return *_name(seen), state, Text(seen.took), trouble


def _worker(one: Present) -> Sequence[Text]:
    beat = f"heartbeat {one.silent:.0f} s ago"
    leads = Text("leads", style="bold yellow") if one.leads else Text("")
    return Text(one.id), Text(f"{one.pool_size} slots"), Text(beat, style="dim"), leads


def _name(seen: Seen) -> Sequence[Text]:
    row = seen.row
    return Text(seen.ledger.name), Text("…" + str(row.id)[-8:], style="dim"), Text(output.readable(row.kind))
