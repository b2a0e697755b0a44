"""`holdfast worker`: one worker process, with the handlers of the user's application."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast import tracing
from holdfast.cli import application, options, output
from holdfast.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.platform import Holdfast

ABANDONED = 1
GRACE = 0.5  # seconds that the threads of handlers get to end, once the worker has stopped


def worker(
    app: options.App = None,
    ledger: Annotated[
        list[str] | None,
        typer.Option(help="Work for this ledger; may be repeated; default: those with handlers."),
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Take only this kind; may be repeated; default: all.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="Take from this queue; may be repeated; default: default.")
    ] = None,
    concurrency: Annotated[
        list[str] | None,
        typer.Option(metavar="N|LEDGER=N", help="Handlers at once, for each ledger or for one of them."),
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when there is nothing to do.")
    ] = False,
    stop_on_eof: Annotated[bool, typer.Option("--stop-on-eof", hidden=True)] = False,
) -> None:
    """Run a worker until SIGTERM or Ctrl-C; it waits for its handlers, and gives back what did not end."""
    found = application.load(app)
    slots = _numbers(found, concurrency or [])
    _check(found, ledger, kind)
    application.settle(found, chatty=True)
    working = _work(found, ledger, slots, kind, queue or ["default"], until_idle, stop_on_eof)
    if application.run(working, tidy=False):
        raise typer.Exit(ABANDONED)


async def _work(
    app: Holdfast,
    ledgers: Sequence[str] | None,
    slots: Mapping[str, int] | None,
    kinds: Sequence[str] | None,
    queues: Sequence[str],
    until_idle: bool,
    stop_on_eof: bool,
) -> int:
    from holdfast.runtime.worker import stopping_on_signals

    async with app:
        worker = app.worker(ledgers=ledgers, concurrency=slots, kinds=kinds, queues=queues)
        worker.last_resort = lambda: end(ABANDONED)
        worker.exit = end
        with stopping_on_signals(worker.stop), _stopping_on_eof(worker.stop if stop_on_eof else None):
            return await worker.run(until_idle=until_idle)


def _numbers(app: Holdfast, texts: Sequence[str]) -> dict[str, int] | None:
    """Reads `4` and `tasks=4`; a number alone is for all ledgers that have none of their own."""
    numbers: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if equals:
            app.store(name)
        if not number.isdecimal() or int(number) < 1:
            raise InvalidInput(
                field="--concurrency", message=f"must be a whole number of at least 1, not {number!r}"
            )
        names = [name] if equals else [other for other in app.stores if other not in numbers]
        numbers |= dict.fromkeys(names, int(number))
    return numbers or None


def _check(app: Holdfast, ledgers: Sequence[str] | None, kinds: Sequence[str] | None) -> None:
    """Refuses a worker that has nothing to run."""
    for name in ledgers or ():
        app.store(name)
    if any(one.work for one in app.enabled(ledgers or ())):
        return  # an app brings its handlers, once it is opened
    handled = {kind for name in ledgers or app.stores for kind in app.handlers.kinds(name)}
    if not handled:
        raise InvalidInput(
            field="--app",
            message="has no handlers, so nothing would be run: say --app module:name, set HOLDFAST_APP, or "
            "enable built-in apps by HOLDFAST_APPS",
        )
    for kind in kinds or ():
        if kind not in handled:
            known = ", ".join(sorted(handled))
            raise InvalidInput(field="--kind", message=f"there is no handler for {kind!r}: there are {known}")


@contextmanager
def _stopping_on_eof(stop: Callable[[], None] | None) -> Generator[None]:
    """Stops when standard input closes: whoever started us has gone, however it went."""
    if stop is None:
        yield
        return
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            loop.remove_reader(sys.stdin.fileno())
            stop()

    loop.add_reader(sys.stdin.fileno(), look)
    try:
        yield
    finally:
        loop.remove_reader(sys.stdin.fileno())


def leave_behind(code: int) -> None:
    """Ends the process here and now if a handler's thread will not end: Python would wait for it for ever."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("holdfast handler")]
    for thread in threads:
        thread.join(GRACE / len(threads))
    if any(thread.is_alive() for thread in threads):
        if code != ABANDONED:
            logging.getLogger("holdfast.worker").warning("a handler outlived its run and is cut off")
        end(code)


def end(code: int) -> None:
    """Ends the process at once, whatever still runs in it."""
    tracing.finish()
    logging.shutdown()
    with suppress(OSError):
        output.flush()
    os._exit(code)
