"""The lifecycle of a ledger as data: its edges, and what follows from them.

An edge is one allowed change of state. Everything that asks "may this happen?" reads the table of edges:
the guards in the SQL, the events, the buttons, the diagram, and the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Verb = Literal[
    "enqueue",
    "claim",
    "start",
    "finish",
    "retry",
    "exhaust",
    "reject",
    "snooze",
    "release",
    "lose",
    "cancel",
    "requeue",
]
VERBS: tuple[Verb, ...] = get_args(Verb)

MEANING: Mapping[Verb, str] = {
    "enqueue": "a row is added",
    "claim": "a worker takes the row",
    "start": "its handler is about to be called",
    "finish": "the handler answered Done",
    "retry": "a bad run with runs left",
    "exhaust": "a bad run, the last one allowed",
    "reject": "no handler, or an error that no retry can mend",
    "snooze": "the handler asked to be called again later",
    "release": "the worker stops and gives the row back",
    "lose": "the worker is gone",
    "cancel": "a person called it off",
    "requeue": "a person lets it run again",
}

# The verbs that a worker says about a row that it holds: each names the fence of its claim.
FENCED: tuple[Verb, ...] = (
    "start",
    "finish",
    "retry",
    "exhaust",
    "reject",
    "snooze",
    "release",
    "lose",
)
# The verbs that a person says about any row: each is guarded by the state alone.
PERSONAL: tuple[Verb, ...] = ("cancel", "requeue")


@dataclass(frozen=True)
class Edge:
    """One allowed change of state.

    `via` names states that the row passes on the way within one statement: the row is written once, the
    journal gets one event for each hop.

    >>> Edge("exhaust", frm=("running",), via=("failed",), to="dead_letter").hops("running")
    (('running', 'failed'), ('failed', 'dead_letter'))
    """

    verb: Verb
    frm: tuple[str, ...] = ()
    to: str = ""
    via: tuple[str, ...] = ()

    def hops(self, start: str | None) -> tuple[tuple[str | None, str], ...]:
        """The (previous, next) pairs that the journal records when the row was in `start`."""
        stations = (start, *self.via, self.to)
        return tuple((stations[i], stations[i + 1] or "") for i in range(len(stations) - 1))


@dataclass(frozen=True)
class Lifecycle:
    """All edges of a ledger, and the questions that they answer."""

    states: tuple[str, ...]
    ends: tuple[str, ...]
    edges: tuple[Edge, ...]

    def of(self, verb: Verb) -> tuple[Edge, ...]:
        """The edges of one verb, in the order of their declaration."""
        return tuple(edge for edge in self.edges if edge.verb == verb)

    def allowed(self, verb: Verb) -> tuple[str, ...]:
        """The states from which `verb` may be said."""
        return tuple(state for edge in self.of(verb) for state in edge.frm)

    def verbs(self, state: str) -> tuple[Verb, ...]:
        """What may happen to a row in `state`."""
        return tuple(verb for verb in VERBS if state in self.allowed(verb))

    def edge(self, verb: Verb, state: str) -> Edge | None:
        """The edge that `verb` takes from `state`, or None when there is none."""
        return next((edge for edge in self.of(verb) if state in edge.frm), None)

    @property
    def claimable(self) -> tuple[str, ...]:
        """The states from which a worker may claim."""
        return self.allowed("claim")

    @property
    def waiting(self) -> tuple[str, ...]:
        """Those in which every row waits to be claimed. In an end, only a row that a lane leads to does; of
        those that are held, only one whose worker is gone.
        """
        return tuple(state for state in self.claimable if state not in (*self.ends, *self.held))

    @property
    def initial(self) -> str:
        """The state of a new row."""
        return self.of("enqueue")[0].to

    @property
    def running(self) -> str:
        """The state in which a handler runs: after `start`, or after `claim` where there is no start."""
        return (self.of("start") or self.of("claim"))[0].to

    @property
    def held(self) -> tuple[str, ...]:
        """The states in which a row belongs to a worker. None, where a claim is a lock and leaves its row."""
        taking = (edge for verb in ("claim", "start") for edge in self.of(verb))
        return tuple(dict.fromkeys(edge.to for edge in taking if edge.frm != (edge.to,)))

    def problems(self) -> list[str]:
        """What is wrong with these edges, as sentences; empty when nothing is."""
        found = [*self._unknown_words(), *self._duplicates()]
        found += [
            f"there is no {verb!r} edge: without it {why}"
            for verb, why in REQUIRED.items()
            if not self.of(verb)
        ]
        if not self.of("lose") and not set(self.held) <= set(self.claimable):
            found.append("there is no 'lose' edge: without it the rows of a vanished worker stay for ever")
        if found:
            return found
        if len(self.of("enqueue")) > 1:
            found.append("there are several 'enqueue' edges: a new row needs one state")
        if len({edge.to for edge in self.of("claim")}) > 1:
            found.append("the 'claim' edges lead to several states: a claimed row needs one")
        if overlap := sorted(set(self.held) & set(self.ends)):
            found.append(f"{_words(overlap)} is both held and an end")
        found += [
            f"'finish' leads to {edge.to!r}, which is not among the ends {_words(self.ends)}"
            for edge in self.of("finish")
            if edge.to not in self.ends
        ]
        found += [
            f"a row in {state!r} that loses its worker stays there for ever: add a 'lose' edge from it"
            for state in self.held
            if state not in (*self.allowed("lose"), *self.claimable)
        ]
        return found

    def _unknown_words(self) -> Iterable[str]:
        for edge in self.edges:
            if edge.verb not in VERBS:
                yield f"unknown verb {edge.verb!r}: verbs are {', '.join(VERBS)}"
            for word in (*edge.frm, *edge.via, edge.to):
                if word not in self.states:
                    yield f"the edge {edge.verb!r} names the state {word!r}, which is not among the states"
            if edge.verb != "enqueue" and not edge.frm:
                yield f"the edge {edge.verb!r} to {edge.to!r} comes from nowhere: give `frm`"
        for word in self.ends:
            if word not in self.states:
                yield f"the end {word!r} is not among the states"

    def _duplicates(self) -> Iterable[str]:
        for state in self.states:
            if "%" in state or "\x00" in state:
                yield f"the state {state!r} must not contain {'%' if '%' in state else 'a NUL character'}"
        if len(set(self.states)) < len(self.states):
            yield "a state is listed twice"
        for verb in VERBS:
            states = self.allowed(verb)
            for state in sorted({s for s in states if states.count(s) > 1}):
                yield f"{verb!r} from {state!r} has several edges: which one is meant?"


REQUIRED: Mapping[Verb, str] = {
    "enqueue": "no state of a new row is known",
    "claim": "no worker can take a row",
    "finish": "no row ever ends",
    "reject": "a row without a handler stays for ever",
}


def _words(states: Iterable[str]) -> str:
    return ", ".join(repr(state) for state in states)


def mermaid(lifecycle: Lifecycle) -> str:
    """The lifecycle as a Mermaid state diagram, for docs and for `holdfast ledger diagram`."""
    lines = ["stateDiagram-v2"]
    labels: dict[tuple[str, str], list[str]] = {}
    for edge in lifecycle.edges:
        for start in edge.frm or ("[*]",):
            for prev, following in edge.hops(start):
                verbs = labels.setdefault((prev or "[*]", following), [])
                if edge.verb not in verbs:
                    verbs.append(edge.verb)
    lines += [
        f"    {prev} --> {following}: {', '.join(verbs)}" for (prev, following), verbs in labels.items()
    ]
    lines += [f"    {end} --> [*]" for end in lifecycle.ends]
    return "\n".join(lines) + "\n"
