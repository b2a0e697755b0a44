"""Functions that run in a process of their own: found by name, in a module that is quick to import."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from holdfast.engine.outcomes import Retry


def square(number: int) -> int:
    return number * number


def divides(number: int) -> float:
    return number / 0


def ask_to_retry(_: Any) -> Retry:
    return Retry("not yet", after=3600)


def ends_its_process(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps_long() -> None:
    time.sleep(3600)
