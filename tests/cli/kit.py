"""What the tests of the command line share: the command, an application, and the shapes of their fixtures."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


Run = Callable[..., Done]
Start = Callable[..., subprocess.Popen[str]]
Query = Callable[..., list[tuple[Any, ...]]]


# A process of its own for every command, forked from one that has done the imports: they take a second,
# and a command a tenth of that.
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["holdfast.cli.program", "holdfast.cli.stage", "holdfast.engine.doctor"])


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
