"""What leads where in a lifecycle, and in which column each state stands. Pure."""

from __future__ import annotations

from holdfast.dashboard.tones import TONES, tone
from holdfast.engine.lifecycle import VERBS, Lifecycle


def columns(lifecycle: Lifecycle) -> tuple[tuple[str, ...], ...]:
    """The states by rank: what waits, then what is held by its distance from enqueue, then the ends."""
    far = distances(lifecycle)
    late = len(lifecycle.states)
    ends = [state for state in lifecycle.states if state in lifecycle.ends]
    held = [state for state in lifecycle.held if state not in ends]
    front = [state for state in lifecycle.states if state not in ends and state not in held]
    front.sort(key=lambda state: (state != lifecycle.initial, far.get(state, late)))
    ends.sort(key=lambda state: TONES.index(tone(lifecycle, state)))
    ranks = sorted({far.get(state, late) for state in held})
    between = [tuple(state for state in held if far.get(state, late) == rank) for rank in ranks]
    return tuple(column for column in (tuple(front), *between, tuple(ends)) if column)


def pairs(lifecycle: Lifecycle) -> dict[tuple[str, str], tuple[str, ...]]:
    """The verbs that lead from one state to another."""
    found: dict[tuple[str, str], list[str]] = {}
    for edge in sorted(lifecycle.edges, key=lambda edge: VERBS.index(edge.verb)):
        for frm in edge.frm:
            if frm != edge.to and edge.verb not in found.setdefault((frm, edge.to), []):
                found[frm, edge.to].append(edge.verb)
    return {pair: tuple(verbs) for pair, verbs in found.items() if verbs}


def distances(lifecycle: Lifecycle) -> dict[str, int]:
    """How many moves a new row is away from each state at least."""
    far, edge_of = {lifecycle.initial: 0}, list(pairs(lifecycle))
    waiting = [lifecycle.initial]
    for state in waiting:
        for frm, to in edge_of:
            if frm == state and to not in far:
                far[to] = far[state] + 1
                waiting.append(to)
    return far
