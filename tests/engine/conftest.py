"""The tests on the sample ledgers share one database per process: it has the tables of all samples, and each
test finds them empty. A database of its own for each of several hundred tests would take longer than they."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ledgers import ledger_database


@pytest.fixture(scope="session")
def _ledger_database(postgres: str) -> Iterator[Callable[[], str]]:
    with ledger_database(postgres) as emptied:
        yield emptied


@pytest.fixture
def ledgers_url(_ledger_database: Callable[[], str]) -> str:
    """The URL of a database with the empty tables of all samples; a module takes it as its `database_url`."""
    return _ledger_database()
