"""What the tests of the command line share: the command, an application, and the shapes of their fixtures."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMAND = (sys.executable, "-m", "holdfast.cli")

APP = """
import asyncio, threading, time
from holdfast import Fail, Holdfast

app = Holdfast()
bare = Holdfast()
text = "not an application"

@app.handler("double")
async def double(number: int) -> int:
    return number * 2

@app.handler("broken")
async def broken() -> Fail:
    return Fail("this can never work")

@app.handler("slow")
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)

@app.handler("stuck")
def stuck() -> None:
    time.sleep(600)

@app.handler("stubborn")
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@app.handler("compute", place="process")
def compute(number: int) -> int:
    return sum(range(number))
"""


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its standard output, which is JSON and nothing else."""
        return json.loads(self.out)


class Terminal:
    """A command in a terminal of its own: what it shows there, and what is typed."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        look = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env={**environment, **look},
            cwd=folder,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self.printed = b""

    @property
    def raw(self) -> str:
        """All that was sent to the terminal so far."""
        return self.printed.decode(errors="replace")

    @property
    def text(self) -> str:
        """The same without colours and moves of the cursor."""
        return ESCAPES.sub("", self.raw)

    def until(self, words: str, *, after: int = 0) -> None:
        """Reads until these words have been shown, which must be soon; `after` so many characters of text."""
        deadline = time.monotonic() + 30
        while words not in self.text[after:]:
            assert time.monotonic() < deadline, f"{words!r} was not shown: {self.text[-2000:]}"
            self._read(0.2)

    def type(self, keys: bytes) -> None:
        """What somebody types."""
        os.write(self._ours, keys)

    def end(self) -> int:
        """Reads to the end, and answers with the exit code."""
        deadline = time.monotonic() + 30
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end: {self.text[-2000:]}"
            self._read(0.05)
        while self._read(0):
            pass
        return self.process.returncode

    def settings(self) -> list[object]:
        """How the terminal treats keys now."""
        return termios.tcgetattr(self.theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], seconds)
        if ready:
            self.printed += os.read(self._ours, 65536)
        return bool(ready)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C then reaches the command
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs these tests may be deaf to it


Run = Callable[..., Done]
Start = Callable[..., subprocess.Popen[str]]
Show = Callable[..., Terminal]
Query = Callable[..., list[tuple[Any, ...]]]


# A process of its own for every command, forked from one that has done the imports: they take a second,
# and a command a tenth of that.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    ["holdfast.cli.program", "holdfast.cli.stage", "holdfast.engine.doctor", "holdfast.api.tokens"]
)


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, feed: str) -> Done:
    """Runs one command to its end, in a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        streams = [Path(place) / name for name in ("in", "out", "err")]
        streams[0].write_text(feed)
        process = _forks.Process(target=_enter, args=(list(arguments), dict(environment), folder, streams))
        process.start()
        process.join(120)
        assert process.exitcode is not None, f"{arguments} did not end"
        said = Done(process.exitcode, streams[1].read_text(), streams[2].read_text())
        process.close()
    return said


def _enter(arguments: list[str], environment: dict[str, str], folder: Path, streams: list[Path]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", 1)
    from holdfast.cli.program import main

    sys.exit(main(arguments))
