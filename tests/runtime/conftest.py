"""An open app on the test's database, and worker processes that do not outlive their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Settings
from holdfast.db.pool import Connection
from runtime.support import ERRANDS, Gate, Process, make_tables

Start = Callable[..., Process]


@pytest.fixture
async def app(settings: Settings, conn: Connection) -> AsyncIterator[Holdfast]:
    """An app with the ledgers tasks and errands, and the tables that handlers leave traces in."""
    await make_tables(conn)
    async with Holdfast(settings, ledgers=[ERRANDS]) as app:
        yield app


@pytest.fixture
async def traces(conn: Connection) -> None:
    """The same tables, for tests that need no app of their own."""
    await make_tables(conn)


@pytest.fixture
async def gate(connect: Callable[[], Any]) -> Gate:
    """A closed gate."""
    gate = Gate(await connect())
    await gate.close()
    return gate


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    """`start("--concurrency", "2", heartbeat_interval=0.5)`: a worker process; killed at the end."""
    started: list[Process] = []
    short = {"heartbeat_interval": 0.5, "worker_timeout": 3, "leader_term": 1.0, "shutdown_timeout": 5}

    def start(*options: str, url: str = database_url, **settings: Any) -> Process:
        log = tmp_path / f"worker-{len(started)}.log"
        started.append(Process(url, log, options, {**short, "poll_interval": 0.1} | settings))
        return started[-1]

    yield start
    for process in started:
        process.kill()
