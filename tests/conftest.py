"""What every test may ask for: one embedded PostgreSQL for the whole run, and databases of a test's own.

All xdist workers share the server. Its home is made by the first process of the run and removed by it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from holdfast.db import embedded, pool
from holdfast.db.settings import Settings

HOME = "_HOLDFAST_TEST_HOME"  # not a setting, so it must not look like one
SERVER = "_HOLDFAST_TEST_SERVER"  # another server to test on; see oldest.py
OPTIONS = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}

Connect = Callable[[], Awaitable[pool.Connection]]
Eventually = Callable[[Callable[[], object]], None]
TemporaryHome = Callable[[], AbstractContextManager[Path]]


MEMORY = Path("/dev/shm")  # files in memory: a database a test is thousands of files
ENOUGH = 4 * 2**30  # bytes


def make_home() -> Path:
    """A folder that the server's user can reach also when we are root, which pytest's own are not."""
    quick = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH
    home = Path(tempfile.mkdtemp(prefix="holdfast-test-", dir=MEMORY if quick else None))
    home.chmod(0o755)
    return home


def remove_home(home: Path) -> None:
    """Stop the home's server and remove its data, wherever they are, and the home."""
    embedded.stop(home)
    shutil.rmtree(embedded.status(home).data.parent, ignore_errors=True)
    shutil.rmtree(home)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: takes minutes; runs only when asked for, by `-m soak`")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell does to what runs behind it
        signal.signal(signal.SIGINT, signal.default_int_handler)  # else none of ours could be interrupted
    if HOME not in os.environ:
        os.environ[HOME] = str(make_home())
        config.add_cleanup(lambda: remove_home(Path(os.environ.pop(HOME))))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "soak" not in config.getoption("markexpr", ""):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a soak test: ask for it by -m soak"))


@pytest.fixture(scope="session")
def temporary_home() -> TemporaryHome:
    """`with temporary_home() as home`: a home for an embedded server of the test's own."""

    @contextmanager
    def temporary_home() -> Iterator[Path]:
        home = make_home()
        try:
            yield home
        finally:
            remove_home(home)

    return temporary_home


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of the run's server, as its superuser: our embedded one, or the one that was named."""
    if named := os.environ.get(SERVER):
        yield named
        return
    with embedded.acquire(Path(os.environ[HOME]), options=OPTIONS) as lease:
        yield lease.url


@pytest.fixture
def empty_database_url(postgres: str) -> Iterator[str]:
    """The URL of a fresh database without any table."""
    yield from _fresh_database(postgres, "template0")


@pytest.fixture
def database_url(postgres: str, _migrated: str) -> Iterator[str]:
    """The URL of a fresh database to which every migration was applied."""
    yield from _fresh_database(postgres, _migrated)


@pytest.fixture
def settings(database_url: str) -> Settings:
    """Settings for that database with short intervals; change them by dataclasses.replace."""
    return Settings(
        database_url=database_url,
        profile="test",
        heartbeat_interval=0.2,
        worker_timeout=30.0,
        leader_term=1.0,
        shutdown_timeout=5.0,
        poll_interval=0.05,
        min_retry_seconds=0.0,
    )


@pytest.fixture
async def connect(settings: Settings) -> AsyncIterator[Connect]:
    """`await connect()`: another autocommitting connection in UTC; all are closed at the end."""
    opened: list[pool.Connection] = []

    async def connect() -> pool.Connection:
        assert settings.database_url
        opened.append(await pool.connect(settings, settings.database_url, purpose="test"))
        return opened[-1]

    yield connect
    for connection in opened:
        await connection.close()


@pytest.fixture
async def conn(connect: Connect) -> pool.Connection:
    """One such connection."""
    return await connect()


@pytest.fixture
def eventually() -> Eventually:
    """`eventually(condition)`: for what gives no signal to wait for; fails after 20 seconds."""

    def eventually(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it did not happen within 20 seconds"
            time.sleep(0.02)

    return eventually


@pytest.fixture(scope="session")
def _migrated(postgres: str) -> str:
    """The name of the template with all migrations, made once a run: under a lock, renamed when complete."""
    from holdfast.db.migrate import upgrade

    with (Path(os.environ[HOME]) / "template.lock").open("w") as lock, _administer(postgres) as server:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not server.execute("select 1 from pg_database where datname = 'migrated'").fetchone():
            server.execute("create database unfinished template template0")
            upgrade(_url_of(postgres, "unfinished"))
            server.execute("alter database unfinished rename to migrated")
    return "migrated"


def _fresh_database(postgres: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    create = SQL("create database {} template {} strategy file_copy")
    create = create.format(Identifier(name), Identifier(template))
    drop = SQL("drop database {} with (force)").format(Identifier(name))
    with _administer(postgres) as server:
        server.execute(create)
    yield _url_of(postgres, name)
    with _administer(postgres) as server:
        server.execute(drop)


def _administer(postgres: str) -> psycopg.Connection:
    return psycopg.connect(postgres, autocommit=True)


def _url_of(postgres: str, database: str) -> str:
    return postgres.replace("@/holdfast?", f"@/{database}?")
