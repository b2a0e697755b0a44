"""The embedded PostgreSQL: one server for all processes of a home. May use psycopg. Never trusts a pid.

A client holds a lease as long as it uses the server. The first client prepares the data folder and starts
a supervisor; the supervisor stops the server when the last lease has gone, also when its holders were
killed. `supervisor.py` tells which lock means what. Everything is under `<home>/postgres`:

    data/  socket/  password  log  keep  lease  supervisor.lock  server.lock
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from urllib.parse import quote

import psycopg

from holdfast.db import supervisor
from holdfast.db.cluster import ENVIRONMENT, prepare
from holdfast.db.supervisor import data_folder, is_held, server_lock, server_pid, socket_folder, try_lock
from holdfast.errors import DatabaseUnavailable

START_SECONDS = 60.0
RECOVERY_SECONDS = 600.0  # for a server that answers, and says that it is replaying its log after a crash
LOG_BYTES = 16 * 2**20
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


class Lease:
    """The right to use the server; `release` it, or leave its `with`, or end the process."""

    def __init__(self, url: str, descriptor: int) -> None:
        self.url = url
        self._descriptor: int | None = descriptor
        _leases.add(self)

    def release(self) -> None:
        """Let go; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a copy that some child may have
            os.close(descriptor)

    def forget(self) -> None:
        """Close this process's copy only: in a forked child the lease remains the parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _forget_all() -> None:
    for lease in list(_leases):
        lease.forget()


os.register_at_fork(after_in_child=_forget_all)


@dataclass(frozen=True, slots=True)
class Status:
    """What `holdfast db status` tells; the pid is for people, nothing is decided by it."""

    running: bool
    kept: bool
    url: str | None
    pid: int | None
    version: str | None
    data: Path


def acquire(home: Path, *, options: Mapping[str, str] = NO_OPTIONS) -> Lease:
    """Start the home's server, or join it, and wait until it answers; blocks, up to START_SECONDS.

    `options` are server settings for a start; a server that runs already keeps its own.
    """
    place = _make_place(home)
    deadline = time.monotonic() + START_SECONDS
    # A supervisor that is stopping its server holds the lease until both have gone.
    while (descriptor := try_lock(place / "lease", fcntl.LOCK_SH)) is None:
        if time.monotonic() > deadline:
            raise DatabaseUnavailable(
                message=f"the embedded PostgreSQL in {place} does not stop{_log(place)}"
            )
        time.sleep(0.02)
    try:
        return Lease(_await_server(place, options), descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def start(home: Path) -> Status:
    """Start the server and keep it running until `stop`, also when nobody uses it."""
    with acquire(home):
        (_place(home) / "keep").touch(mode=0o600)
        return status(home)


def stop(home: Path, timeout: float = 30) -> bool:
    """Stop the server, also under clients that still use it; False when it was not running."""
    place = _check_place(home)
    (place / "keep").unlink(missing_ok=True)
    deadline = time.monotonic() + timeout
    was_running = False
    while place.exists() and _is_alive(place):
        was_running = True
        left = deadline - time.monotonic()
        if left < 0 or not supervisor.stop_server(place, left):
            raise DatabaseUnavailable(
                message=f"the embedded PostgreSQL in {place} did not stop in {timeout:g} seconds{_log(place)}"
            )
        time.sleep(0.02)
    return was_running


def status(home: Path) -> Status:
    """Whether the server runs, and where; changes nothing."""
    place = _check_place(home)
    running = place.exists() and is_held(server_lock(place))
    version = data_folder(place) / "PG_VERSION"
    return Status(
        running=running,
        kept=(place / "keep").exists(),
        url=_url(place) if running else None,
        pid=server_pid(place) if running else None,
        version=version.read_text().strip() if version.exists() else None,
        data=data_folder(place),
    )


def _place(home: Path) -> Path:
    return Path(os.path.realpath(home)) / "postgres"


def _make_place(home: Path) -> Path:
    """The folder of the server; only its owner may look into it (as root: the server may pass through)."""
    place = _place(home)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir(mode=0o700, exist_ok=True)
        if place.stat().st_uid == os.geteuid():
            place.chmod(0o711 if os.geteuid() == 0 else 0o700)
    except OSError as error:
        raise _unusable(place, str(error)) from error
    return _check_place(home)


def _check_place(home: Path) -> Path:
    """The folder of the server, which may not exist yet but is nobody else's."""
    place = _place(home)
    try:
        owner = place.stat().st_uid
    except FileNotFoundError:
        return place
    except OSError as error:
        raise _unusable(place, str(error)) from error
    if owner != os.geteuid() != 0:
        raise _unusable(place, f"it belongs to the user with the id {owner}")
    return place


def _unusable(place: Path, reason: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        message=f"{place} cannot be used for the embedded PostgreSQL: {reason}; "
        "set HOLDFAST_HOME to a folder of your own"
    )


def _is_alive(place: Path) -> bool:
    return is_held(server_lock(place)) or is_held(place / "supervisor.lock")


def _await_server(place: Path, options: Mapping[str, str]) -> str:
    """Wait for an answer; start a supervisor whenever there is none. The caller has a lease."""
    begun = time.monotonic()
    child: subprocess.Popen[bytes] | None = None
    while True:
        lock = try_lock(place / "supervisor.lock")
        if lock is not None:
            try:
                if child is not None and child.wait() != 0:
                    raise DatabaseUnavailable(
                        message=f"the embedded PostgreSQL in {place} did not start{_log(place)}"
                    )
                child = _start_supervisor(place, lock, options)
            finally:
                os.close(lock)
        answer = _ask(place)
        if answer is None:
            return _url(place)
        waited = time.monotonic() - begun
        if waited > (RECOVERY_SECONDS if "starting up" in answer or "recovery" in answer else START_SECONDS):
            raise DatabaseUnavailable(
                message=f"the embedded PostgreSQL in {place} is not ready after {waited:.0f} seconds: "
                f"{answer}{_log(place)}"
            )
        time.sleep(0.03)


def _start_supervisor(place: Path, lock: int, options: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Prepare the ground, and start the supervisor with our lock in its hands."""
    postgres = prepare(place, options, lock)
    log = place / "log"
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(place / "log.1")
    descriptor = supervisor.open_private(log, os.O_WRONLY | os.O_APPEND)
    settings = [f"{name}={value}" for name, value in options.items()]
    try:
        # By path, isolated and without site-packages: it must not depend on where we were started.
        child = subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                "-I",
                "-S",
                supervisor.__file__,
                str(place),
                str(lock),
                str(postgres),
                *settings,
            ],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            pass_fds=[lock],
            start_new_session=True,
            env=ENVIRONMENT,
            cwd="/",
        )
    finally:
        os.close(descriptor)
    threading.Thread(target=child.wait, daemon=True).start()  # so that it never stays behind as a zombie
    return child


def _ask(place: Path) -> str | None:
    """None when the server answers a connection, else why not."""
    try:
        if socket_folder(place).stat().st_uid != data_folder(place).stat().st_uid:
            return f"{socket_folder(place)} belongs to somebody else"
        psycopg.connect(_url(place), connect_timeout=5).close()
    except (psycopg.OperationalError, OSError) as error:
        return str(error)
    return None


def _url(place: Path) -> str:
    password = (place / "password").read_text()
    host = quote(str(socket_folder(place)), safe="/")
    return f"postgresql://holdfast:{password}@/holdfast?host={host}&port={supervisor.PORT}"


def _log(place: Path) -> str:
    """The end of the server's log, as the end of a message."""
    try:
        lines = (place / "log").read_text(errors="replace").splitlines()[-12:]
    except OSError:
        return ""
    return "".join(f"\n  {line}" for line in (f"the end of {place / 'log'}:", *lines))
