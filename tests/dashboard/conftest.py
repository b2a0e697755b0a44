"""`served`: the API with its dashboard on a real port; `visit`: somebody who has logged in there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest

from api.kit import Served, served_app
from dashboard.kit import Visitor
from holdfast import Holdfast, Settings

Visit = Callable[..., Visitor]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody is slowed down by their rate."""
    return dataclasses.replace(settings, api_rate=100_000)


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    """A server of the built-in ledgers."""
    with served_app(settings, Holdfast(settings).web()) as served:
        yield served


@pytest.fixture
def visit(served: Served) -> Visit:
    """`visit("reader")`: a browser of theirs, logged in; None for nobody."""
    return lambda who="admin": Visitor(served, who)
