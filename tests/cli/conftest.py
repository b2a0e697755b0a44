"""The command line as users have it: real processes on a real database, and never a traceback."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cli.kit import APP, COMMAND, Done, Query, Run, Show, Start, Terminal, run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the commands are run: an application is in it."""
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@pytest.fixture
def bare_environment(folder: Path) -> dict[str, str]:
    """No settings at all but a home; `folder` is the working folder."""
    kept = {name: value for name, value in os.environ.items() if "HOLDFAST" not in name}
    kept.pop("DATABASE_URL", None)
    return {**kept, "HOLDFAST_HOME": str(folder / "home"), "COLUMNS": "120"}


@pytest.fixture
def environment(bare_environment: dict[str, str], database_url: str) -> dict[str, str]:
    """The settings of a command: the test's database, short intervals."""
    return {
        **bare_environment,
        "HOLDFAST_DATABASE_URL": database_url,
        "HOLDFAST_PROFILE": "test",
        "HOLDFAST_POLL_INTERVAL": "50ms",
        "HOLDFAST_MIN_RETRY_SECONDS": "0",
        "HOLDFAST_PORT": "0",
    }


@pytest.fixture
def holdfast(folder: Path, request: pytest.FixtureRequest) -> Run:
    """`holdfast("list", "tasks")` runs a command to its end; `env=` adds settings, `feed=` is its input.

    With `bare=True` no database is set up for it.
    """

    def holdfast(
        *arguments: str, env: dict[str, str] | None = None, feed: str = "", bare: bool = False
    ) -> Done:
        base: dict[str, str] = request.getfixturevalue("bare_environment" if bare else "environment")
        done = run(arguments, base | (env or {}), folder, feed)
        assert "Traceback" not in done.out + done.err
        return done

    return holdfast


@pytest.fixture
def start(folder: Path, environment: dict[str, str]) -> Iterator[Start]:
    """`start("worker", …)` starts a command and leaves it running, until the test has ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment | (env or {}),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def terminal(folder: Path, environment: dict[str, str]) -> Iterator[Show]:
    """`terminal("top")` starts a command in a terminal of its own."""
    opened: list[Terminal] = []

    def terminal(*arguments: str, env: dict[str, str] | None = None) -> Terminal:
        opened.append(Terminal(arguments, environment | (env or {}), folder))
        return opened[-1]

    yield terminal
    for one in opened:
        one.close()


@pytest.fixture
def query(database_url: str) -> Iterator[Query]:
    """`query("select …")`: what the database itself says."""
    with psycopg.connect(database_url, autocommit=True) as conn:

        def query(text: str, *values: Any) -> list[tuple[Any, ...]]:
            cursor = conn.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

        yield query
