"""The embedded server: shared, stopped by its last user, and not fooled by what killed processes leave."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from holdfast.db import embedded
from holdfast.errors import DatabaseUnavailable

Eventually = Callable[[Callable[[], object]], None]
TemporaryHome = Callable[[], AbstractContextManager[Path]]

# Takes a lease, says so, and keeps it until its standard input ends.
CLIENT = """
import os, sys
from pathlib import Path
from holdfast.db import embedded

lease = embedded.acquire(Path(sys.argv[1]), options={"fsync": "off"})
print("ready", embedded.status(Path(sys.argv[1])).pid, flush=True)
if sys.argv[2:] == ["fork"]:
    child = os.fork()
    if child:
        print(child, flush=True)
sys.stdin.read()
lease.release()
"""


class Client:
    """A process that uses the home's server."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(home), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def server(self) -> int:
        """Wait until it has its lease; the pid of the server that it uses."""
        ready, pid = self.line().split()
        assert ready == "ready"
        return int(pid)

    def leave(self) -> None:
        self.process.communicate("")
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def shared_home(temporary_home: TemporaryHome) -> Iterator[Path]:
    with temporary_home() as home:
        yield home


@pytest.fixture
def home(shared_home: Path) -> Iterator[Path]:
    """A home whose data may be there already, with no server running."""
    yield shared_home
    embedded.stop(shared_home)


@pytest.fixture
def fresh_home(temporary_home: TemporaryHome) -> Iterator[Path]:
    with temporary_home() as home:
        yield home


def acquire(home: Path) -> embedded.Lease:
    return embedded.acquire(home, options={"fsync": "off"})


def query(url: str, text: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def has_stopped(home: Path) -> Callable[[], bool]:
    return lambda: not embedded.status(home).running


def kill_server_and_supervisor(pid: int) -> None:
    server = psutil.Process(pid)
    doomed = [psutil.Process(server.ppid()), server, *server.children(recursive=True)]
    for process in doomed:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(doomed, timeout=20)


def test_it_is_postgresql_18_tuned_and_in_utc_without_a_port(home: Path):
    names = ["max_connections", "timezone", "synchronous_commit", "listen_addresses", "server_encoding"]
    with acquire(home) as lease:
        values = [query(lease.url, f"show {name}") for name in names]
        assert values == ["200", "UTC", "on", "", "UTF8"]
        assert str(query(lease.url, "show server_version")).startswith("18.")
        assert query(lease.url, "select current_user || ' ' || current_database()") == "holdfast holdfast"
        assert query(lease.url, "select usesuper from pg_user where usename = current_user") is True


def test_options_of_the_start_reach_the_server(home: Path):
    with embedded.acquire(home, options={"fsync": "off", "max_connections": "33"}) as lease:
        assert query(lease.url, "show max_connections") == "33"


def test_two_processes_share_one_server_and_the_last_one_out_stops_it(home: Path, eventually: Eventually):
    first, second = Client(home), Client(home)
    assert first.server() == second.server()
    first.leave()
    assert embedded.status(home).running
    second.leave()
    eventually(has_stopped(home))


def test_several_leases_in_one_process_count_each(home: Path, eventually: Eventually):
    first, second = acquire(home), acquire(home)
    first.release()
    first.release()
    assert query(second.url, "select 1") == 1
    second.release()
    eventually(has_stopped(home))


def test_when_all_clients_are_killed_the_server_stops_and_the_data_survive(
    home: Path, eventually: Eventually
):
    with acquire(home) as lease:
        query(lease.url, "create table if not exists survivors as select 42 as answer")
        clients = [Client(home), Client(home)]
        for client in clients:
            client.server()
    for client in clients:
        client.kill()
    eventually(has_stopped(home))
    with acquire(home) as lease:
        assert query(lease.url, "select answer from survivors") == 42


def test_a_forked_child_does_not_keep_a_killed_clients_lease(home: Path, eventually: Eventually):
    client = Client(home, "fork")
    client.server()
    child = psutil.Process(int(client.line()))
    client.process.kill()
    client.process.wait()
    try:
        assert child.is_running()
        eventually(has_stopped(home))
    finally:
        child.kill()
        client.process.communicate()


def test_after_all_were_killed_the_next_start_recovers_whoever_has_the_old_pid(home: Path):
    client = Client(home)
    pid = client.server()
    with acquire(home) as lease:
        query(lease.url, "create table if not exists recovered as select 43 as answer")
    kill_server_and_supervisor(pid)
    client.kill()
    status = embedded.status(home)
    assert not status.running
    place = home / "postgres"
    for stale in (status.data / "postmaster.pid", place / "socket" / ".s.PGSQL.5432.lock"):
        lines = stale.read_text().split("\n")
        stale.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    with acquire(home) as lease:
        assert query(lease.url, "select answer from recovered") == 43


def test_a_server_whose_supervisor_was_killed_is_taken_over(home: Path, eventually: Eventually):
    first = Client(home)
    pid = first.server()
    psutil.Process(psutil.Process(pid).ppid()).kill()
    second = Client(home)
    assert second.server() == pid
    first.leave()
    assert embedded.status(home).running
    second.leave()
    eventually(has_stopped(home))


def test_a_server_that_was_killed_comes_back_while_somebody_uses_it(home: Path, eventually: Eventually):
    def answers() -> bool:
        try:
            return query(lease.url, "select 1") == 1
        except psycopg.OperationalError:
            return False

    with acquire(home) as lease:
        pid = embedded.status(home).pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: embedded.status(home).pid not in (None, pid) and answers())
    eventually(has_stopped(home))


def test_a_terminated_supervisor_stops_the_server_in_good_order(home: Path, eventually: Eventually):
    with acquire(home):
        pid = embedded.status(home).pid
        psutil.Process(psutil.Process(pid).ppid()).terminate()
        eventually(has_stopped(home))
    assert "database system is shut down" in (home / "postgres" / "log").read_text().splitlines()[-1]


def test_six_processes_that_start_at_once_on_an_empty_home_share_one_server(fresh_home: Path):
    clients = [Client(fresh_home) for _ in range(6)]
    assert len({client.server() for client in clients}) == 1
    for client in clients:
        client.leave()


def test_a_start_that_was_killed_while_it_made_the_data_leaves_nothing_half(
    fresh_home: Path, eventually: Eventually
):
    place = fresh_home / "postgres"
    client = Client(fresh_home)
    eventually(lambda: list(place.glob("init-*/data/base")))
    client.kill()
    assert not (place / "data").exists()
    with acquire(fresh_home) as lease:
        assert query(lease.url, "select 1") == 1
    assert not list(place.glob("init-*"))


def test_start_keeps_it_running_until_stop(home: Path):
    assert embedded.status(home).running is False
    started = embedded.start(home)
    assert (started.running, started.kept, started.version) == (True, True, "18")
    client = Client(home)
    client.server()
    client.leave()
    again = embedded.status(home)
    assert again == started
    assert again.url
    assert query(again.url, "select 1") == 1
    assert embedded.stop(home) is True
    stopped = embedded.status(home)
    assert (stopped.running, stopped.kept, stopped.url, stopped.pid) == (False, False, None, None)
    assert embedded.stop(home) is False


def test_stop_works_under_clients_and_the_next_one_starts_anew(home: Path):
    with acquire(home):
        assert embedded.stop(home)
        with acquire(home) as lease:
            assert query(lease.url, "select 1") == 1


def test_status_and_stop_of_a_home_that_is_not_there_change_nothing(tmp_path: Path):
    home = tmp_path / "nowhere"
    assert embedded.status(home).running is False
    assert embedded.stop(home) is False
    assert not home.exists()


def test_folders_are_closed_and_a_password_is_needed(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    with acquire(home) as lease:
        place = home / "postgres"
        for folder in (place / "data", place / "socket"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE(place.stat().st_mode) & 0o066 == 0
        for file in ("password", "log", "lease", "supervisor.lock"):
            assert stat.S_IMODE((place / file).stat().st_mode) == 0o600
        password = (place / "password").read_text()
        assert len(password) >= 32
        with pytest.raises(psycopg.OperationalError, match="no password supplied"):
            psycopg.connect(lease.url.replace(f":{password}@", "@"))
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            psycopg.connect(lease.url.replace(password, "guess"))


def test_a_server_that_dies_at_its_start_is_told_with_the_end_of_its_log(home: Path):
    with pytest.raises(DatabaseUnavailable, match=r"did not start(.|\n)*invalid value for parameter"):
        embedded.acquire(home, options={"max_connections": "many"})


def test_a_server_whose_home_was_deleted_still_stops_with_its_last_client(temporary_home: TemporaryHome):
    with temporary_home() as home:
        client = Client(home)
        server = psutil.Process(client.server())
        (home / "postgres").rename(home / "gone")
        client.leave()
        server.wait(20)


def test_threads_of_one_process_may_start_it_together(home: Path):
    with ThreadPoolExecutor(4) as threads:
        leases = list(threads.map(lambda _: acquire(home), range(4)))
    assert len({lease.url for lease in leases}) == 1
    for lease in leases:
        lease.release()
