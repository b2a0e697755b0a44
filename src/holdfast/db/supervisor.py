"""The small process that holds the embedded PostgreSQL. Uses the standard library only. Never initialises.

Run as `python supervisor.py PLACE LOCK_FD POSTGRES [name=value …]` by `embedded.py`, in a session of its
own. Who is alive is told by locks, which the kernel lets go however a process ends; a pid is used only to
send a signal, and only while the lock beside it is held:

    lease            shared: every client.  Exclusive: the supervisor, once the last client has gone
    supervisor.lock  exclusive: the supervisor (taken by the client that starts it, and handed over)
    server.lock      exclusive: PostgreSQL and every process of it (inherited), beside the data folder

A server that was killed is started again while anybody uses it. A supervisor that was killed leaves the
server running; the next one waits on `server.lock`, and so takes the orphan over.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

PORT = 5432  # names the socket only: the server does not listen on TCP
STOP_SECONDS = 60.0
RESTART_SECONDS = 1.0


def open_private(path: Path, flags: int = os.O_RDWR) -> int:
    """Open or make a file that is nobody else's; made by root it belongs to the folder's owner."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if os.geteuid() == 0:
        folder = path.parent.stat()
        os.fchown(descriptor, folder.st_uid, folder.st_gid)
    return descriptor


def try_lock(path: Path, mode: int = fcntl.LOCK_EX) -> int | None:
    """A descriptor that holds the lock, or None when somebody else does."""
    descriptor = open_private(path)
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: Path) -> bool:
    """Whether somebody holds the lock exclusively."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def data_folder(place: Path) -> Path:
    """Where the data really are: `data` may be a link to a folder that the server's user can reach."""
    return Path(os.path.realpath(place / "data"))


def server_lock(place: Path) -> Path:
    return data_folder(place).parent / "server.lock"


def socket_folder(place: Path) -> Path:
    return Path(os.path.realpath(place / "socket"))


def server_pid(place: Path) -> int | None:
    """The pid that the server wrote; it means something only while `server.lock` is held."""
    try:
        return int((data_folder(place) / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None


def remove_traces(place: Path) -> None:
    """Remove what a killed server left; only while it is certain that no server runs.

    PostgreSQL would look whether a process with the old pid exists, and refuse when another one has it now.
    """
    (data_folder(place) / "postmaster.pid").unlink(missing_ok=True)
    for name in (f".s.PGSQL.{PORT}", f".s.PGSQL.{PORT}.lock"):
        (socket_folder(place) / name).unlink(missing_ok=True)


def stop_server(place: Path, timeout: float, how: int = signal.SIGINT) -> bool:
    """Ask the server to stop (SIGINT: at once and orderly) and wait for its end; False when time is up."""
    deadline = time.monotonic() + timeout
    asked: set[int] = set()
    while is_held(server_lock(place)):
        pid = server_pid(place)
        if pid is not None and pid not in asked:
            asked.add(pid)
            try:
                os.kill(pid, how)
            except ProcessLookupError:
                asked.discard(pid)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Supervisor:
    """One server's keeper, from its start until the last client has left."""

    def __init__(self, place: Path, postgres: str, options: list[str]) -> None:
        self.place = place
        self.stopping = threading.Event()
        self.child: subprocess.Popen[bytes] | None = None
        socket = str(socket_folder(place)).replace('"', '""')
        fixed = [
            f"port={PORT}",
            "listen_addresses=",
            f'unix_socket_directories="{socket}"',
            "unix_socket_permissions=0700",
        ]
        self.command = [postgres, "-D", str(data_folder(place))]
        for option in (*options, *fixed):
            self.command += ["-c", option]

    def run(self) -> int:
        """Keep the server running; returns its exit code once it has ended for good."""
        signal.signal(signal.SIGTERM, self.on_signal)
        threading.Thread(target=self.stop_after_the_last_client, daemon=True).start()
        while True:
            self.child = self.start()
            code = self.child.wait() if self.child else 0
            if self.stopping.is_set() or code >= 0:  # it was told to stop, or could not start
                return 0 if self.stopping.is_set() else code
            remove_traces(self.place)
            time.sleep(RESTART_SECONDS)

    def start(self) -> subprocess.Popen[bytes] | None:
        """Start PostgreSQL, which inherits the lock; waits as long as an older server's processes live."""
        descriptor = open_private(server_lock(self.place))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if self.stopping.is_set():
                return None
            remove_traces(self.place)
            owner = data_folder(self.place).stat()
            root = os.geteuid() == 0
            return subprocess.Popen(  # noqa: S603
                self.command,
                pass_fds=[descriptor],
                user=owner.st_uid if root else None,
                group=owner.st_gid if root else None,
                extra_groups=[] if root else None,
            )
        finally:
            os.close(descriptor)

    def stop_after_the_last_client(self) -> None:
        lease = open_private(self.place / "lease")
        fcntl.flock(lease, fcntl.LOCK_EX)
        if (self.place / "keep").exists():
            os.close(lease)  # `holdfast db stop` will end the server
        else:
            self.stop()  # the lock stays with us to the end: a new client waits for it, then starts anew

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=self.stop, daemon=True).start()

    def stop(self) -> None:
        self.stopping.set()
        for how in (
            signal.SIGINT,
            signal.SIGQUIT,
        ):  # in good order; else without a last checkpoint, still safe
            if self.child:
                self.child.send_signal(how)  # reaches it also when somebody has deleted its folder
            if stop_server(self.place, STOP_SECONDS, how):
                break


def main(arguments: list[str]) -> int:
    # The second argument is the descriptor of supervisor.lock: it was handed over, and stays open.
    place, _lock, postgres, *options = arguments
    return Supervisor(Path(place), postgres, options).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
