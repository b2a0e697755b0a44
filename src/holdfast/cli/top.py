"""`holdfast top`: ledgers, workers and the rows at work, live."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import application, options, output
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.cli.snapshot import Snapshot
    from holdfast.platform import Holdfast

SHORTEST = 0.1  # seconds between two looks
QUITS = b"qQ\x04"  # q, Q, Ctrl-D


def top(
    every: Annotated[str, typer.Option(metavar="DURATION", help="How often to look.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Look once, and print what was seen.")] = False,
    app: options.App = None,
    json: options.Json = False,
) -> None:
    """Show ledgers, workers and the rows at work, live; q or Ctrl-C quits. In a pipe it looks once."""
    seconds = options.seconds_of("--every", every)
    if seconds is None or seconds < SHORTEST:
        raise InvalidInput(field="--every", message=f"must be at least {SHORTEST:g} seconds, not {every!r}")
    found = application.load(app)
    application.settle(found)
    if once or json or not output.terminal():
        application.run(_look_once(found, json))
    else:
        application.run(_watch(found, seconds))


async def _look_once(app: Holdfast, json: bool) -> None:
    from holdfast.cli import snapshot, view

    async with app:
        now = await snapshot.take(app, working=snapshot.NEWEST, finished=0)
    if json:
        output.data(_told(now))
    else:
        view.print_once(now)


async def _watch(app: Holdfast, seconds: float) -> None:
    from holdfast.cli import snapshot
    from holdfast.cli.view import Screen
    from holdfast.runtime.worker import stopping_on_signals

    stop = asyncio.Event()
    below = ["≈ is an estimate; q quits"]
    screen = Screen(output.console(), below, full=True, ended=False)
    async with app:
        screen.start()
        try:
            with stopping_on_signals(stop.set, "nobody looks any more"), _listening(stop.set):
                while not stop.is_set():
                    try:
                        screen.show(await snapshot.take(app, working=snapshot.NEWEST, finished=0))
                    except application.losses():
                        screen.show(None)
                    await _pause(stop, seconds)
        finally:
            screen.stop()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


@contextmanager
def _listening(stop: Callable[[], None]) -> Generator[None]:
    """Calls `stop` when somebody types q; keys come at once, and are not shown."""
    if not sys.stdin.isatty():
        yield
        return
    number, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(number)

    def read() -> None:
        typed = os.read(number, 64)
        if not typed or any(key in QUITS for key in typed):
            stop()

    tty.setcbreak(number)
    loop.add_reader(number, read)
    try:
        yield
    finally:
        loop.remove_reader(number)
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _told(now: Snapshot) -> dict[str, Any]:
    from holdfast.cli.stats import describe

    seen = now.overview
    return {
        "now": seen.now,
        "leader": seen.leader,
        "ledgers": [describe(view, seen.now) for view in seen.ledgers],
        "workers": [{**_plain(one), "held": seen.load.get(one.id, 0)} for one in seen.workers],
        "working": [
            {
                "ledger": one.ledger.name,
                "id": one.row.id,
                "kind": one.row.kind,
                "state": one.row.state,
                "owner": one.row.owner,
                "seconds": one.since(seen.now),
                "stage": one.row.stage,
                "progress": one.row.progress,
            }
            for one in now.working
        ],
    }


def _plain(value: Any) -> dict[str, Any]:
    return output.plain(value)
