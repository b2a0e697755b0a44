"""What `holdfast up` does: starts the database, a worker and the dashboard, shows them, and stops all."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from holdfast import logs
from holdfast.cli import application, output
from holdfast.cli.serve import doorway, must_be_installed
from holdfast.cli.snapshot import Snapshot, take
from holdfast.cli.view import FEW, MOST_ENDED, Lines, Screen
from holdfast.db import embedded
from holdfast.db.parsers import redacted
from holdfast.errors import HoldfastError, MissingExtra
from holdfast.platform import Holdfast

if TYPE_CHECKING:
    from holdfast.cli.server import Server

LOOK_SECONDS = 0.5
CALM = 10  # a look that took long is followed by a pause of this many times its length
ENOUGH = 30  # waiting rows; no more demo work is added above
EVERY_END = 1000  # rows that ended; more than can be new at one look
LOG_BYTES = 16 * 2**20
MARGIN = 10.0  # seconds that a stopping worker, or server, gets beyond its own time


class Stage:
    """One `holdfast up`, from its first line to its last."""

    def __init__(self, app: Holdfast, spec: str, *, feeds: bool, ends_after: float | None) -> None:
        self.app = app
        self.spec = spec
        self.feeds = feeds
        self.ends_after = ends_after
        self.settings = app.settings
        self.log_path = self.settings.home / "holdfast.log"
        self.stop = asyncio.Event()
        self.worker: asyncio.subprocess.Process
        self.server: Server | None = None
        self.name = _own_name()
        self.view: Screen | Lines = Lines(datetime.now(UTC))
        self.last: Snapshot | None = None

    async def run(self) -> int:
        """Starts everything, waits, stops everything; answers with the exit code."""
        async with self.app:
            self._listen_to_signals()
            with _open_log(self.log_path) as log:
                logs.configure(self.settings.log_level, self.settings.log_format, log)
                web = await self._open_web()
                self._introduce(web)
                if output.terminal():
                    self.view = self._screen(web)
                self.worker = await self._start_worker(log)
                self.view.start()
                try:
                    complaint = await self._watch_over()
                finally:
                    self.view.stop()
                    application.settle(self.app)
        if complaint:
            output.error(f"holdfast: {complaint} ({self.log_path} tells more)")
        await self._say_goodbye()
        return 1 if complaint else 0

    # -- starting ------------------------------------------------------------------------------------

    async def _open_web(self) -> dict[str, str]:
        """Takes a port for the dashboard, a free one if ours is taken; answers with how to come in."""
        try:
            must_be_installed()
        except MissingExtra as missing:
            return {"dashboard": f"is not here: {missing}"}
        from holdfast.cli.server import Server, address, listen

        note = ""
        try:
            bound = listen(self.settings.host, self.settings.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            bound = listen(self.settings.host, 0)
            note = f" (port {self.settings.port} is taken)"
        self.server = Server(self.app, bound)
        told = await doorway(self.app, address(bound), creates_token=True)
        return {**told, "dashboard": told["dashboard"] + note}

    def _screen(self, web: dict[str, str]) -> Screen:
        below = [f"{name} {web[name]}" for name in ("dashboard", "token") if name in web]
        below.append(f"Ctrl-C stops; in another terminal: {self.name} top" if self.feeds else "Ctrl-C stops")
        return Screen(output.console(), below, full=False, ended=True)

    def _introduce(self, web: dict[str, str]) -> None:
        url = self.settings.database_url
        place = f"PostgreSQL at {redacted(url)}" if url else "an embedded PostgreSQL (`holdfast db url`)"
        lines = [
            f"Holdfast {version('holdfast')} is running: a worker with the handlers of {self.spec}",
            f"  database  {place}",
            *([] if url else [f"  data      {embedded.status(self.settings.home).data}"]),
            f"  log       {self.log_path}",
            *(f"  {name:9} {value}" for name, value in web.items()),
            "  stop      Ctrl-C" + (f", or by itself after {self.ends_after:g} s" if self.ends_after else ""),
            *(self._invitation() if self.feeds else ()),
        ]
        output.line("\n".join(lines))
        output.flush()

    def _invitation(self) -> list[str]:
        """What to try next, in another terminal, in words that work there."""
        tries = {
            "top": "everything, live",
            "list job": "the jobs; --state dead_letter: those that need you",
            "show job ID": "all there is to know of one",
            "job timeline ID": "everything that happened to it",
            "requeue job ID": "let it run again",
        }
        lines = [(f"  {self.name} {command}", meaning) for command, meaning in tries.items()]
        width = max(len(command) for command, _ in lines)
        return [
            "Demo jobs and tasks come now. Try, in another terminal, in this folder:",
            *(f"{command:{width}}  {meaning}" for command, meaning in lines),
        ]

    async def _start_worker(self, log: TextIO) -> asyncio.subprocess.Process:
        """A process of its own, away from the terminal's Ctrl-C; it stops when we are gone."""
        command = [sys.executable, "-m", "holdfast.cli", "worker", "--app", self.spec, "--stop-on-eof"]
        every = {} if self.settings.apps else {"HOLDFAST_APPS": "all"}
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **every},
        )

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stop.is_set():
            output.error(f"second {number.name}: dying at once; the next leader will give the rows back")
            with suppress(ProcessLookupError, AttributeError):
                self.worker.kill()
            os._exit(128 + number)
        self.stop.set()

    # -- running -------------------------------------------------------------------------------------

    async def _watch_over(self) -> str | None:
        """Shows everything until somebody wants to stop, and then until the worker has stopped."""
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look())
            others = [group.create_task(self._ends_by_itself()), group.create_task(self._notice_its_end())]
            if self.feeds:
                others.append(group.create_task(self._feed()))
            serving = group.create_task(self._serve())
            try:
                await self.stop.wait()
                for task in others:
                    task.cancel()
            finally:
                complaint = await self._stop_worker()
                if self.server:
                    self.server.stop()
                complaint = await serving or complaint
                looking.cancel()
        await self._look_once()
        return complaint

    async def _serve(self) -> str | None:
        """Serves until it is told to stop; answers with what did not go in good order."""
        if self.server is None:
            return None
        try:
            await self.server.run_here()
        except HoldfastError as error:
            self.stop.set()
            return str(error)
        return None

    async def _ends_by_itself(self) -> None:
        if self.ends_after is not None:
            await asyncio.sleep(self.ends_after)
            self.stop.set()

    async def _notice_its_end(self) -> None:
        await self.worker.wait()
        self.stop.set()

    async def _look(self) -> None:
        """Looks at everything again and again, the more seldom the longer a look takes.

        One that failed took its time waiting for a connection: it was no work for the database.
        """
        while True:
            before = time.monotonic()
            seen = await self._look_once()
            took = time.monotonic() - before
            await asyncio.sleep(max(LOOK_SECONDS, CALM * took if seen else 0))

    async def _look_once(self) -> bool:
        """Shows what there is; False: the database did not answer."""
        try:
            self.last = await take(
                self.app, working=FEW, finished=MOST_ENDED if output.terminal() else EVERY_END
            )
            self.view.show(self.last)
        except application.losses():
            self.view.show(None)
            return False
        return True

    async def _feed(self) -> None:
        """Adds demo work: some at once, then a little now and then, never more than is worked off."""
        from holdfast.demo import items, jobs

        count = 8
        while True:
            if self.last is None or self.last.waiting < ENOUGH:
                with suppress(*application.losses()):
                    await self.app.enqueue_many("job", jobs((count + 1) // 2), by="demo")
                    await self.app.enqueue_many("tasks", items(count), by="demo")
            await asyncio.sleep(random.uniform(0.8, 2.4))  # noqa: S311
            count = random.randint(1, 4)  # noqa: S311

    # -- stopping ------------------------------------------------------------------------------------

    async def _stop_worker(self) -> str | None:
        """Asks the worker to stop and waits for it; answers with what did not go in good order."""
        if self.worker.returncode is not None:
            return f"the worker ended by itself, with exit code {self.worker.returncode}"
        self.view.say("stopping: the worker ends what it has begun (Ctrl-C again: at once)")
        self.worker.terminate()
        try:
            async with asyncio.timeout(self.settings.shutdown_timeout + MARGIN):
                code = await self.worker.wait()
        except TimeoutError:
            self.worker.kill()
            code = await self.worker.wait()
        # One that was still starting dies by the signal, and holds nothing.
        return None if code in (0, -signal.SIGTERM) else f"the worker stopped with exit code {code}"

    async def _say_goodbye(self) -> None:
        if self.settings.database_url is None:
            patience = time.monotonic() + MARGIN
            while (now := embedded.status(self.settings.home)).running and not now.kept:
                if time.monotonic() > patience:
                    break
                await asyncio.sleep(0.05)
            if now.kept:
                output.line("stopped; PostgreSQL goes on until `holdfast db stop`")
            elif now.running:
                output.line("stopped; PostgreSQL goes on, because another process uses it")
            else:
                output.line("stopped, and PostgreSQL with it; the data stays")
        else:
            output.line("stopped")


def _own_name() -> str:
    """How this program is called from here: `make up` does not ask for a PATH that knows it."""
    called = Path(sys.argv[0])
    found = shutil.which("holdfast")
    unknown = called.name == "holdfast" and (found is None or Path(found).resolve() != called.resolve())
    return str(called) if unknown else "holdfast"


def _open_log(path: Path) -> TextIO:
    """The log, for appending; a very long one is put aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("a", buffering=1)
