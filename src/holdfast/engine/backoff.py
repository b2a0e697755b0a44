"""How long a row waits between a bad run and the next."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How long to wait before the next run, in seconds.

    jitter = "full": anything between 0 and the bound, so that many failures spread out; a number: the
    bound, give or take that share of it.

    >>> Backoff(jitter=0).delay(3)
    8.0
    """

    base: float = 1.0
    cap: float = 3600.0
    factor: float = 2.0
    jitter: Literal["full"] | float = "full"

    def delay(
        self, exponent: int, draw: Callable[[], float] = random.random, policy: str | None = None
    ) -> float:
        """The wait for the given exponent; `draw` gives a number in [0, 1).

        A row's own policy comes first: none waits for nothing, fixed for the base, exp as above.

        >>> [Backoff(jitter=0).delay(3, policy=policy) for policy in ("none", "fixed", "exp")]
        [0.0, 1.0, 8.0]
        """
        if policy == "none":
            return 0.0
        exponent = 0 if policy == "fixed" else exponent
        try:
            bound = min(self.cap, self.base * self.factor**exponent)
        except OverflowError:
            bound = self.cap
        if self.jitter == "full":
            return bound * draw()
        return min(self.cap, bound * (1 + self.jitter * (2 * draw() - 1)))


BACKOFF = Backoff()
