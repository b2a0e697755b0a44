"""The embedded server's ground: its folders, its user, its programs, wherever they must be."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import psycopg
import pytest

from holdfast.db import cluster, embedded
from holdfast.errors import DatabaseUnavailable, MissingExtra

TemporaryHome = Callable[[], AbstractContextManager[Path]]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")

CLIENT = """
import sys
from pathlib import Path
from holdfast.db import embedded

with embedded.acquire(Path(sys.argv[1])):
    print("ready")
"""


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


@pytest.fixture
def elsewhere(temporary_home: TemporaryHome, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for /var/lib/holdfast."""
    with temporary_home() as folder:
        monkeypatch.setattr(cluster, "SHARED", folder / "shared")
        yield folder / "shared"


def acquire(home: Path) -> embedded.Lease:
    return embedded.acquire(home, options={"fsync": "off"})


def query(url: str, text: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def test_data_of_another_version_are_refused_untouched(home: Path):
    with acquire(home):
        version = embedded.status(home).data / "PG_VERSION"
    embedded.stop(home)
    version.write_text("17\n")
    try:
        with pytest.raises(DatabaseUnavailable, match="made by PostgreSQL 17, the embedded one is 18"):
            acquire(home)
    finally:
        version.write_text("18\n")


def test_without_the_wheel_the_error_names_the_extra(home: Path, monkeypatch: pytest.MonkeyPatch):
    def find_nothing(name: str) -> None:
        return None

    monkeypatch.setattr(cluster.importlib.util, "find_spec", find_nothing)
    with pytest.raises(MissingExtra, match=r"holdfast\[embedded\]"):
        acquire(home)


@pytest.mark.parametrize("name", ["sp ace", 'quo"te,comma', "per%cent?&=#", "ü" * 60])
def test_a_home_may_have_any_name_and_any_length(fresh_home: Path, name: str):
    home = fresh_home / name
    with acquire(home) as lease:
        assert query(lease.url, "select 1") == 1
        socket = (home / "postgres" / "socket").resolve()
        assert stat.S_IMODE(socket.stat().st_mode) == 0o700
    embedded.stop(home)
    if (home / "postgres" / "socket").is_symlink():
        shutil.rmtree(socket)


@as_root
def test_a_socket_folder_of_somebody_else_is_refused(fresh_home: Path):
    home = fresh_home / ("long" * 30)
    with acquire(home):
        socket = (home / "postgres" / "socket").readlink()
    embedded.stop(home)
    os.chown(socket, 65534, 65534)
    try:
        with pytest.raises(DatabaseUnavailable, match="belongs to somebody else"):
            acquire(home)
    finally:
        shutil.rmtree(socket)


@as_root
def test_root_runs_it_as_an_unprivileged_user(home: Path):
    with acquire(home):
        pid = embedded.status(home).pid
        uids = psutil.Process(pid).uids()
        assert 0 not in uids
        assert embedded.status(home).data.stat().st_uid == uids.real


@as_root
def test_a_home_that_the_servers_user_cannot_reach_has_its_data_elsewhere(elsewhere: Path, tmp_path: Path):
    home = tmp_path / "home"
    tmp_path.chmod(0o700)
    with acquire(home) as lease:
        query(lease.url, "create table kept as select 44 as answer")
        data = embedded.status(home).data
        assert data.is_relative_to(elsewhere)
        assert (home / "postgres" / "data").is_symlink()
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
    with acquire(home) as lease:
        assert query(lease.url, "select answer from kept") == 44
    embedded.stop(home)
    shutil.rmtree(elsewhere)
    assert embedded.status(home).running is False
    with pytest.raises(DatabaseUnavailable, match="nothing was changed"):
        acquire(home)


@as_root
def test_data_that_became_unreachable_are_not_replaced_by_empty_ones(fresh_home: Path):
    with acquire(fresh_home):
        pass
    embedded.stop(fresh_home)
    fresh_home.chmod(0o700)
    with pytest.raises(DatabaseUnavailable, match="cannot enter"):
        acquire(fresh_home)


@as_root
def test_programs_that_the_servers_user_cannot_run_are_copied(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    def cannot_run(*_: object) -> bool:
        return False

    monkeypatch.setattr(cluster, "_runs", cannot_run)
    for _ in range(2):
        with acquire(home):
            program = psutil.Process(embedded.status(home).pid).exe()
            assert Path(program).is_relative_to(elsewhere)
        embedded.stop(home)
    assert len(list(elsewhere.iterdir())) == 1


@as_root
def test_an_ordinary_user_has_a_server_of_their_own_and_root_may_help(fresh_home: Path):
    interpreter = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    os.chown(fresh_home, 65534, 65534)
    command = [interpreter, "-c", CLIENT, str(fresh_home)]
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    probe = [interpreter, "-c", "import psycopg, holdfast.db.embedded"]
    nobody = {"user": 65534, "group": 65534, "extra_groups": [], "env": environment, "cwd": "/"}
    if subprocess.run(probe, capture_output=True, check=False, **nobody).returncode:
        pytest.skip("no Python here that an ordinary user can run with our packages")
    for _ in range(2):  # the second time after root has been there
        done = subprocess.run(command, capture_output=True, check=True, input="", text=True, **nobody)
        assert done.stdout.startswith("ready")
        with acquire(fresh_home) as lease:
            assert query(lease.url, "select 1") == 1
            assert psutil.Process(embedded.status(fresh_home).pid).uids().real == 65534
        embedded.stop(fresh_home)
