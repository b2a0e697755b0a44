"""Whoever wants to hear what was committed: a journal that is no table, like a log file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.engine.lifecycle import Verb
from holdfast.engine.values import Claimed, Move


@dataclass(frozen=True, kw_only=True)
class Witness:
    """Hears what happened to the rows of a ledger, after its commit. Returns quickly and never raises.

    `added`: (id, kind) of new rows, and by whom. `began`: claims whose handlers begin. `wrote`: the ends of
    runs, and by whom where it was not their worker. `ordered`: what a person said, of which rows, who, why.
    """

    added: Callable[[Sequence[tuple[Any, str]], str | None], None]
    began: Callable[[Sequence[Claimed]], None]
    wrote: Callable[[Sequence[Move], str | None], None]
    ordered: Callable[[Verb, Collection[Any], str | None, str | None], None]
