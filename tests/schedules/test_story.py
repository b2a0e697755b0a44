"""What is told of iterations."""

from __future__ import annotations

import logging

import pytest

from holdfast.apps.schedules.story import Iterations


async def nobody() -> list[object]:
    return []


async def test_of_idle_iterations_the_first_and_each_twelfth_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S-53: one with sessions begins the count anew, and ends when its last session does."""
    told = Iterations(12, nobody)  # type: ignore[arg-type]
    with caplog.at_level(logging.INFO, "holdfast.schedules"):
        for _ in range(25):
            told.heard(0)
        assert caplog.messages.count("iteration.start iteration=3") == 1
        assert len(caplog.messages) == 6
        caplog.clear()
        told.heard(2)
        told.ended()
        told.heard(0)  # one still runs: no iteration of its own
        assert caplog.messages == ["iteration.start iteration=4"]
        told.ended()
        assert caplog.messages[-1] == "iteration.end iteration=4 sessions=2"
        told.heard(0)
        assert caplog.messages[-1] == "iteration.end iteration=5 sessions=0"
        told.heard(OSError("connection\nlost"))
        reason = "error.type=OSError error.message=connection lost error.stage=db"
        assert caplog.messages[-1] == f"iteration.error iteration=5 {reason}"
