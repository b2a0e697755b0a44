"""`served`: the API on a real port, with a token for everybody."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from api.kit import Served, api_of, served_app
from holdfast import Holdfast, Settings


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Nobody is slowed down by their rate, unless the test wants it."""
    return dataclasses.replace(settings, api_rate=100_000)


@pytest.fixture
def served(settings: Settings) -> Iterator[Served]:
    """A server of the built-in ledgers: its URL, its database, and tokens."""
    with served_app(settings, api_of(Holdfast(settings))) as served:
        yield served
