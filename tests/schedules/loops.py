"""Workers of schedules as real processes: `holdfast schedules loop` with the fixture as its extractor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.support import PATIENCE, not_outliving


class Loop:
    """One such process, and what it says."""

    def __init__(self, popen: subprocess.Popen[Any], out: Path) -> None:
        self.popen = popen
        self.out = out

    @property
    def pid(self) -> int:
        return self.popen.pid

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> int:
        self.popen.terminate()
        return self.popen.wait(PATIENCE)

    def said(self) -> list[dict[str, Any]]:
        """Its lines; one that is being written is left out."""
        lines = self.out.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def events(self) -> list[str]:
        return [line["event"] for line in self.said() if "event" in line]


@contextmanager
def loop(url: str, folder: Path, name: str = "loop", **settings: Any) -> Iterator[Loop]:
    """`holdfast schedules loop` on a database, with these settings of schedules."""
    names = {
        "poll_seconds": 0.05,
        "idle_timeout_seconds": 0,
        "lease_timeout_seconds": 1,
        "heartbeat_seconds": 0.2,
        "extractor": "fixture" if "fixture_path" in settings else "sample",
    }
    told = {f"HOLDFAST_SCHEDULES_{key.upper()}": str(value) for key, value in (names | settings).items()}
    own = {
        "HOLDFAST_DATABASE_URL": url,
        "HOLDFAST_PROFILE": "test",
        "HOLDFAST_HEARTBEAT_INTERVAL": "0.2",
        "HOLDFAST_WORKER_TIMEOUT": "1",
        "HOLDFAST_LEADER_TERM": "1",
    }
    out = folder / f"{name}.log"
    with out.open("w") as stream:
        popen = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "schedules", "loop"],
            env=os.environ | own | told,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    with not_outliving(popen):
        yield Loop(popen, out)
