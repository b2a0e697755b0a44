"""How much one caller may ask for: buckets of tokens, and counted places. Per process, in memory."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager

from holdfast.api.problems import TooMany, Unavailable

KNOWN = 10_000  # callers that are remembered; the one that was silent longest is forgotten first
FAILURES = 10  # wrong credentials that one address may bring in a minute, before it must wait
STREAMS = 200  # open streams of one process
WAITS = 1000  # long polls of one process


class Buckets:
    """A bucket of tokens for every key: `rate` come back in a second, and it holds `burst`."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when

    def wait(self, key: str) -> float:
        """Seconds until a token is there; 0 when there is one."""
        return max(0.0, (1 - self._level(key)) / self._rate)

    def take(self, key: str) -> None:
        """Takes a token, if there is one."""
        self._levels[key] = (max(0.0, self._level(key) - 1), self._clock())
        self._levels.move_to_end(key)
        if len(self._levels) > KNOWN:
            self._levels.popitem(last=False)

    def _level(self, key: str) -> float:
        level, then = self._levels.get(key, (self._burst, 0.0))
        return min(self._burst, level + (self._clock() - then) * self._rate)


class Places:
    """So many at once, and no more; of one caller a quarter of them, so that nobody shuts the others out."""

    def __init__(self, most: int, what: str) -> None:
        self.most, self._what = most, what
        self.taken = 0
        self._of: Counter[str] = Counter()

    @contextmanager
    def one(self, key: str) -> Generator[None]:
        """A place for the length of a `with`; `Unavailable` when all, or all of this caller, are taken."""
        share = max(1, self.most // 4)
        if self.taken >= self.most:
            raise Unavailable(message=f"{self._what}: all {self.most} places are taken, try again later")
        if self._of[key] >= share:
            raise Unavailable(message=f"{self._what}: all {share} places of one caller are taken")
        self.taken += 1
        self._of[key] += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._of[key] -= 1
            if not self._of[key]:
                del self._of[key]


class Limits:
    """All limits of one process."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._calls = Buckets(rate, 2 * rate, clock)
        self._failures = Buckets(FAILURES / 60, FAILURES, clock)
        self.streams = Places(STREAMS, "streams")
        self.waits = Places(WAITS, "long polls")

    def call(self, key: str) -> None:
        """Counts a request; `TooMany` when there were too many of this caller."""
        if wait := self._calls.wait(key):
            raise TooMany(message="too many requests", wait=wait)
        self._calls.take(key)

    def failed(self, address: str) -> None:
        """Counts a wrong credential; `TooMany` when this address has brought too many.

        Good ones are never refused for it: others may come from the same address.
        """
        if wait := self._failures.wait(address):
            raise TooMany(message="too many wrong credentials", wait=wait)
        self._failures.take(address)
