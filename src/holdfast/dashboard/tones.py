"""What a state means to somebody who looks, told by the edges of its lifecycle and never by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.engine.lifecycle import Lifecycle

Tone = Literal["waiting", "again", "held", "good", "bad", "off"]
TONES: tuple[Tone, ...] = get_args(Tone)


@dataclass(frozen=True)
class Mood:
    """One word for how something does, its colour, and what it means."""

    word: str
    tone: Tone
    meaning: str


MEANING: Mapping[Tone, str] = {
    "waiting": "waits for a worker",
    "again": "waits to run again",
    "held": "a worker has it",
    "good": "ended well",
    "bad": "needs a person",
    "off": "called off",
}


def tone(lifecycle: Lifecycle, state: str) -> Tone:
    """What a state means.

    An end is good where a finish leads to it, called off where nothing but a cancel does, and bad else. A
    state that is no end waits, the first time or again after a bad run, or a worker has it.
    """
    if state in lifecycle.ends:
        verbs = {edge.verb for edge in lifecycle.edges if edge.to == state}
        return "good" if "finish" in verbs else "off" if verbs == {"cancel"} else "bad"
    if state in lifecycle.held:
        return "held"
    retried = any(edge.to == state for edge in lifecycle.of("retry"))
    return "again" if retried and state != lifecycle.initial else "waiting"
