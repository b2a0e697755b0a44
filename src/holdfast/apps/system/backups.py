"""What a backup is on disk: a folder with a dump and a manifest, and where such folders may lie.

    <location>/<schema>.dump.zst    the dump
    <location>/manifest.json        what it holds, and the sum of every file: written last

A folder without a manifest is no backup. The manifest begins with the sum of all that follows in it, so that
not one byte of a backup can change unseen. Nothing here knows a database.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath

import msgspec

from holdfast.apps.system.place_folder import make_private
from holdfast.db.settings import Settings
from holdfast.db.system_settings import backup_roots
from holdfast.errors import InvalidBackup, MissingExtra, NotAllowed, TargetExists

MANIFEST = "manifest.json"
VERSION = 1
LEVEL = 3  # of zstd: as quick as the disk, and a fifth of the size
CHUNK = 2**20
DEEPEST = 4  # folders below a root that are looked into for backups
LONGEST, LONGEST_PATH = 240, 4000  # bytes that a name, and a whole path, may have: what we add must fit, too
RANDOM = 5  # letters: what tells the partial folders of one place apart
_RANDOM = re.compile(rf"(?<=.)\.[0-9a-f]{{{RANDOM}}}$")
_HEAD = re.compile(rb'\{\n  "sum": "([0-9a-f]{64})",\n')


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table of which the backup has the rows: how many, and a sum over their values in any order."""

    name: str
    rows: int
    checksum: str


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the backup."""

    name: str
    bytes: int
    sha256: str


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """An extension that the schema cannot do without."""

    name: str
    schema: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds, and what it needs.

    `without_rows`: tables of which it has the shape alone. `owners` and `granted`: the roles that own
    something, and those that may do something. `naming`: functions, none of ours, whose text names the
    schema, so that they fit no other.
    """

    version: int
    created_at: str
    job: str
    holdfast: str
    revision: str | None
    server: int
    program: int
    database: str
    schema: str
    compression: str
    tables: tuple[Table, ...]
    without_rows: tuple[str, ...]
    files: tuple[File, ...]
    extensions: tuple[Extension, ...] = ()
    owners: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    naming: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """The rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def summary(self, place: Path) -> str:
        """The message of the job that made it."""
        return f"{self.rows} rows of {len(self.tables)} tables, {self.bytes} bytes, in {place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInfo:
    """A backup as people see it; `problem` says why it cannot be used, as far as its manifest tells."""

    location: Path
    name: str
    manifest: Manifest | None
    problem: str | None = None


# -- where -------------------------------------------------------------------------------------------


def resolve_location(settings: Settings, text: str) -> Path:
    """The folder that a location means, or `NotAllowed`: it lies below a root, and no link leads there.

    A relative one is below the first root. The roots themselves may be links: an administrator set them.
    """
    given = PurePosixPath(text)
    if not text.strip() or "\0" in text or ".." in given.parts or text.startswith("~"):
        raise NotAllowed(message=f"{text!r} is no place for a backup: name a folder, without ..")
    roots = backup_roots(settings)
    wanted = Path(given) if given.is_absolute() else roots[0] / given
    for root in roots:
        real = Path(os.path.realpath(root))
        for start in (root, real):
            if wanted.is_relative_to(start) and wanted != start:
                place = real / wanted.relative_to(start)
                if any(part.startswith(".") for part in place.relative_to(real).parts):
                    raise NotAllowed(message=f"{text!r} is hidden: name a folder that begins with no dot")
                _refuse_impossible(text, real, place)
                if Path(os.path.realpath(place)) != place:
                    raise NotAllowed(message=f"{text!r} leads through a link: name the folder itself")
                return place
    listed = ", ".join(map(str, roots))
    raise NotAllowed(message=f"{text!r} is not in a folder for backups: they lie below {listed}")


def new_location(settings: Settings, text: str) -> Path:
    """The folder for a new backup: free, where it will be found again, and inside no other backup."""
    place = resolve_location(settings, text)
    for root in backup_roots(settings):
        real = Path(os.path.realpath(root))
        if not place.is_relative_to(real):
            continue
        parts = place.relative_to(real).parts
        if len(parts) > DEEPEST:
            raise NotAllowed(
                message=f"{text!r} lies too deep: backups are looked for {DEEPEST} folders below {root}"
            )
        for above in (real.joinpath(*parts[:depth]) for depth in range(1, len(parts))):
            if os.path.lexists(above / MANIFEST):
                raise NotAllowed(message=f"{text!r} is inside another backup, {above}: name another place")
    refuse_taken(place)
    return place


def _refuse_impossible(text: str, root: Path, place: Path) -> None:
    """`NotAllowed` for what no file system takes: names that are too long, folders below a file."""
    try:
        names = [os.fsencode(part) for part in place.relative_to(root).parts]
    except UnicodeEncodeError:
        raise NotAllowed(message=f"{text!r} cannot be the name of a folder") from None
    if max(map(len, names)) > LONGEST or len(os.fsencode(place)) > LONGEST_PATH:
        raise NotAllowed(
            message=f"{text[:40]!r}… is too long: a folder's name may have {LONGEST} bytes, and all of them "
            f"together {LONGEST_PATH}"
        )
    for above in place.parents:
        if above == root:
            break
        if os.path.lexists(above) and not above.is_dir():
            raise NotAllowed(message=f"{text!r} lies below {above}, which is no folder")


def refuse_taken(place: Path) -> None:
    """`TargetExists` when something is at a place already; an empty folder is nothing."""
    try:
        taken = not place.is_dir() or next(place.iterdir(), None) is not None
    except FileNotFoundError:
        return
    if taken and (place / MANIFEST).exists():
        raise TargetExists(
            message=f"{place} holds a backup, and no backup is overwritten: name another place"
        )
    if taken and place.exists():
        raise TargetExists(message=f"{place} is there already, and not empty: name another place")


@contextmanager
def partial(settings: Settings, place: Path) -> Generator[Path]:
    """A new folder for a backup that has no name yet: beside its place, so that naming it is one step.

    Nobody else has one of this name, and all can tell that we live: `is_living`.
    """
    folder = place.with_name(f".{place.name}.{secrets.token_hex(3)[:RANDOM]}.partial")
    make_folder(settings, folder)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _hold(descriptor)
        yield folder
    finally:
        os.close(descriptor)


def is_living(folder: Path) -> bool:
    """Whether a process still writes to a partial folder, whatever became of its connections."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:  # gone, or no folder at all
        return False
    try:
        return not _hold(descriptor)
    finally:
        os.close(descriptor)


def _hold(descriptor: int) -> bool:
    """Takes the lock of an open folder; False when another has it. Some file systems know no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def whole(folder: Path) -> Path:
    """The place that a partial folder was for."""
    name = folder.name.removeprefix(".").removesuffix(".partial")
    return folder.with_name(_RANDOM.sub("", name))


def partials(place: Path) -> list[Path]:
    """What runs that never ended have left beside a place."""
    return sorted(place.parent.glob(".*.partial")) if place.parent.is_dir() else []


def make_folder(settings: Settings, folder: Path) -> None:
    """Makes a folder that is ours alone, and those above it up to the root, which may be there."""
    for root in backup_roots(settings):
        if folder.is_relative_to(os.path.realpath(root)):
            make_private(Path(root))
    missing = [folder, *(above for above in folder.parents if not above.exists())]
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=one != folder)


def remove(folder: Path) -> None:
    """Removes a folder with all that is in it; a link is not followed."""
    if folder.is_symlink() or not folder.is_dir():
        folder.unlink(missing_ok=True)
    else:
        shutil.rmtree(folder)


# -- writing -----------------------------------------------------------------------------------------


class Writer:
    """A file of a backup while it is written: `write` takes plain bytes, `close` answers with its sum."""

    def __init__(self, folder: Path, name: str, compression: str) -> None:
        self.name = name
        self.taken = 0  # bytes, before compression
        self._sum = hashlib.sha256()
        self._size = 0
        descriptor = os.open(
            folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        self._file = os.fdopen(descriptor, "wb")
        self._packer = _compressor() if compression == "zstd" else None

    def write(self, chunk: bytes) -> None:
        self.taken += len(chunk)
        self._put(self._packer.compress(chunk) if self._packer else chunk)

    def close(self) -> File:
        """The end: all of it is on the disk."""
        if self._packer:
            self._put(self._packer.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return File(name=self.name, bytes=self._size, sha256=self._sum.hexdigest())

    def abandon(self) -> None:
        """Lets the file go, as far as it is."""
        self._file.close()

    def _put(self, packed: bytes) -> None:
        self._file.write(packed)
        self._sum.update(packed)
        self._size += len(packed)


def require_zstd() -> None:
    """`MissingExtra` where nothing can be compressed."""
    try:
        import zstandard  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise MissingExtra(what="a backup with the compression zstd", extra="system") from None


def _compressor():
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest, which makes the folder a backup; all is on the disk when it returns."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=2)[2:] + b"\n"  # without its "{\n"
    text = b'{\n  "sum": "' + hashlib.sha256(body).hexdigest().encode() + b'",\n' + body
    descriptor = os.open(
        folder / MANIFEST, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def publish(folder: Path, place: Path) -> None:
    """Gives a finished folder its name, in one step; `TargetExists` when another was quicker."""
    try:
        folder.rename(place)
    except OSError:
        refuse_taken(place)
        raise
    sync_folder(place.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading -----------------------------------------------------------------------------------------


def read_manifest(place: Path) -> Manifest:
    """The manifest, whole and of a version that we know, or `InvalidBackup`. Looks at no other file."""
    try:
        with _opened(place, MANIFEST) as file:
            raw = file.read()
    except FileNotFoundError:
        raise InvalidBackup(message=f"{place} holds no backup: there is no {MANIFEST}") from None
    changed = InvalidBackup(message=f"{place / MANIFEST} is not what was written: a byte of it has changed")
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise changed from None
    if version > VERSION:
        raise InvalidBackup(
            message=f"{place} was made by a newer Holdfast (its manifest has version {version}, and this one "
            f"knows {VERSION}): restore it with that"
        )
    head = _HEAD.match(raw)
    if not head or hashlib.sha256(raw[head.end() :]).hexdigest().encode() != head[1]:
        raise changed
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBackup(message=f"{place / MANIFEST} cannot be read: {error}") from None
    for file in manifest.files:
        if file.name != Path(file.name).name or file.name in ("", ".", "..", MANIFEST):
            raise InvalidBackup(message=f"{place / MANIFEST} names a file that is not its own: {file.name!r}")
    return manifest


class _Versioned(msgspec.Struct):
    version: int


def verify_backup(place: Path) -> Manifest:
    """The manifest of a backup whose every file is as it was written, or `InvalidBackup` with what is not."""
    manifest = read_manifest(place)
    for file in manifest.files:
        try:
            with _opened(place, file.name) as opened:
                size = os.fstat(opened.fileno()).st_size
                same = size == file.bytes and hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
        except FileNotFoundError:
            raise InvalidBackup(message=f"{place / file.name} is missing") from None
        if not same:
            raise InvalidBackup(message=f"{place / file.name} is not what was written: its checksum differs")
    return manifest


def read_file(place: Path, file: File, compression: str) -> Generator[bytes]:
    """The plain bytes of a file; its sum is looked at once more on the way, and told at the end."""
    total, size = hashlib.sha256(), 0
    unpack = _unpacker(place / file.name) if compression == "zstd" else bytes
    with _opened(place, file.name) as opened:
        while chunk := opened.read(CHUNK):
            total.update(chunk)
            size += len(chunk)
            if plain := unpack(chunk):
                yield plain
    if size != file.bytes or total.hexdigest() != file.sha256:
        raise InvalidBackup(message=f"{place / file.name} changed while it was read: its checksum differs")


def _unpacker(path: Path) -> Callable[[bytes], bytes]:
    import zstandard

    unpacker = zstandard.ZstdDecompressor().decompressobj()

    def unpack(chunk: bytes) -> bytes:
        try:
            return unpacker.decompress(chunk)
        except zstandard.ZstdError as error:
            raise InvalidBackup(message=f"{path} cannot be unpacked: {error}") from None

    return unpack


@contextmanager
def _opened(place: Path, name: str) -> Generator[BufferedReader]:
    """A plain file of a backup: no link, no device. Closed at the end."""
    try:
        descriptor = os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(place / name) from None
    except OSError as error:
        raise InvalidBackup(message=f"{place / name} cannot be read: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InvalidBackup(message=f"{place / name} is not a file")
        yield file


def list_backups(settings: Settings) -> list[BackupInfo]:
    """Every backup below the roots, the newest first; sums of files are not computed."""
    found: list[BackupInfo] = []
    for root in backup_roots(settings):
        real = Path(os.path.realpath(root))
        for place in _places(real, DEEPEST):
            name = str(place.relative_to(real))
            try:
                found.append(BackupInfo(location=place, name=name, manifest=read_manifest(place)))
            except InvalidBackup as error:
                found.append(BackupInfo(location=place, name=name, manifest=None, problem=str(error)))
    found.sort(key=lambda info: (info.manifest.created_at if info.manifest else "", info.name), reverse=True)
    return found


def _places(folder: Path, depth: int) -> Iterable[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:  # not there, or not ours to look into
        return
    for one in inside:
        if one.name.startswith(".") or one.is_symlink() or not one.is_dir():
            continue
        if (one / MANIFEST).is_file():
            yield one
        elif depth > 1:
            yield from _places(one, depth - 1)
