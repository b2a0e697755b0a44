"""An archive in a local folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from holdfast.apps.system.place_keys import Kept, Step, checked, sum_of, unwatched, wrong
from holdfast.db.supervisor import open_private
from holdfast.errors import NotAllowed

UNFINISHED = ".part"  # how the name of what is not yet whole ends; it begins with a dot
LOCK = ".lock"


class Folder:
    """A local folder; it is made when something is first written."""

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise wrong("must name its folder from the root on: file:///folder")
        self.root = root

    async def put(self, key: str, body: bytes | BinaryIO, step: Step = unwatched) -> None:
        """Written and synced under a temporary name, then linked to its own, which overwrites nothing."""
        draft, path = await asyncio.to_thread(self._write, checked(key), body)
        await step("written")
        await asyncio.to_thread(self._publish, draft, path)

    async def get(self, key: str) -> bytes:
        """The bytes of a file."""
        return await asyncio.to_thread(self._read, checked(key))

    async def open(self, key: str) -> BinaryIO:
        """The file itself: who has it open goes on reading it after it is removed."""
        return await asyncio.to_thread(self._open, checked(key))

    async def local(self, key: str, folder: Path) -> Path:  # noqa: ARG002 (a bucket needs it)
        """The path of the file itself."""
        return await asyncio.to_thread(self._found, checked(key))

    async def look(self, key: str) -> Kept | None:
        """The bytes, whose sum is their version."""
        with contextlib.suppress(FileNotFoundError):
            body = await self.get(key)
            return Kept(body, sum_of(body))
        return None

    async def replace(self, key: str, body: bytes, seen: str | None) -> bool:
        """By a rename, while no other process of this machine does the same."""
        return await asyncio.to_thread(self._replace, checked(key), body, seen)

    async def delete(self, key: str) -> bool:
        """Removes a file, and its folder with the last one."""
        return await asyncio.to_thread(self._delete, checked(key))

    async def list(self, below: str = "") -> list[str]:
        """The keys below a folder."""
        return await asyncio.to_thread(lambda: sorted(self._walk(below, unfinished=False)))

    async def exists(self, key: str) -> bool:
        """Whether there is such a file."""
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(self._found, checked(key))
            return True
        return False

    async def sweep(self, below: str) -> int:
        """Removes unfinished files."""

        def sweep() -> int:
            strays = [self.root / name for name in self._walk(below, unfinished=True)]
            for stray in strays:
                stray.unlink(missing_ok=True)
            return len(strays)

        return await asyncio.to_thread(sweep)

    def _place(self, key: str) -> Path:
        """Where the file of a key is or will be; no link leads out of the root."""
        root = self.root.resolve()
        path = root / key
        if not path.parent.resolve().is_relative_to(root) or path.is_symlink():
            raise NotAllowed(message=f"{key!a} leads out of the archive")
        return path

    def _found(self, key: str) -> Path:
        path = self._place(key)
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileNotFoundError(errno.ENOENT, "is no file of the archive", key)
        return path

    def _open(self, key: str) -> BinaryIO:
        return self._found(key).open("rb")

    def _read(self, key: str) -> bytes:
        return self._found(key).read_bytes()

    def _write(self, key: str, body: bytes | BinaryIO) -> tuple[Path, Path]:
        path = self._place(key)
        make_private(path.parent)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(6)}{UNFINISHED}")
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_EXCL), "wb") as file:
            if isinstance(body, bytes):
                file.write(body)
            else:
                body.seek(0)
                shutil.copyfileobj(body, file, 2**20)
            file.flush()
            os.fsync(file.fileno())
        return draft, path

    def _publish(self, draft: Path, path: Path) -> None:
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            draft.unlink()
            raise
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            # A file system without links: keys are drawn at random, so that a look is enough.
            if path.exists():
                raise FileExistsError(errno.EEXIST, "is in the archive already", path.name) from None
            draft.rename(path)
        else:
            draft.unlink()
        _sync(path.parent)

    def _replace(self, key: str, body: bytes, seen: str | None) -> bool:
        path = self._place(key)
        make_private(path.parent)
        with os.fdopen(open_private(self.root / LOCK), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            there = sum_of(path.read_bytes()) if path.exists() else None
            if there != seen:
                return False
            draft, _ = self._write(key, body)
            draft.replace(path)
            _sync(path.parent)
        return True

    def _delete(self, key: str) -> bool:
        path = self._place(key)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        _sync(path.parent)
        if path.parent != self.root.resolve():
            with contextlib.suppress(OSError):  # something is in it
                path.parent.rmdir()
        return True

    def _walk(self, below: str, *, unfinished: bool) -> Iterator[str]:
        root = self.root.resolve()
        top = self._place(checked(below)) if below else root
        for folder, folders, names in os.walk(top):  # does not follow links
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                hidden = name.startswith(".")
                path = Path(folder) / name
                ours = hidden == unfinished and (not hidden or name.endswith(UNFINISHED))
                if ours and not path.is_symlink():
                    yield path.relative_to(root).as_posix()


def make_private(folder: Path) -> None:
    """Makes a folder and those above it that are missing, for their owner alone, and syncs their names.

    A folder that is there keeps its mode. `mkdir(parents=True)` would give the mode to the last one alone.
    """
    missing = takewhile(lambda one: not one.exists(), (folder, *folder.parents))
    for one in reversed(list(missing)):
        one.mkdir(mode=0o700, exist_ok=True)
        _sync(one.parent)


def _sync(folder: Path) -> None:
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # removed with its last file meanwhile
        return
    try:
        os.fsync(number)
    finally:
        os.close(number)
