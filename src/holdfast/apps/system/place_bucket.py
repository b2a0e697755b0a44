"""An archive in a bucket of a store that speaks S3."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from holdfast.apps.system.place_keys import Kept, Step, checked, is_key, sum_of, unwatched, wrong
from holdfast.errors import NotAllowed
from holdfast.runtime.buckets import open_bucket

if TYPE_CHECKING:
    from obstore import PutMode

T = TypeVar("T")

WAITS = (0.5, 2.0, 8.0)  # seconds before the second, third and fourth try
ONE_PIECE = 64 * 2**20  # bytes: what is larger goes into a bucket in parts


class Bucket:
    """A bucket of a store that speaks S3, or what is below a prefix of it.

    A put there is whole or nothing. A server that knows no conditions (If-Match, If-None-Match) is looked at
    before it is written to: two writers are then kept apart by the locks on what they work on alone.
    """

    def __init__(
        self, name: str, prefix: str, options: dict[str, str], waits: Sequence[float] = WAITS
    ) -> None:
        self.waits = waits
        self._store = open_bucket(
            name, options, what="an archive in a bucket", extra="system", wrong=wrong, prefix=prefix or None
        )

    async def put(self, key: str, body: bytes | BinaryIO, step: Step = unwatched) -> None:  # noqa: ARG002
        """Published in one step, unless the key is taken."""
        size = len(body) if isinstance(body, bytes) else body.seek(0, io.SEEK_END)
        if size <= ONE_PIECE and await self._create(key, _bytes(body)):
            return
        if await self.exists(key):
            raise FileExistsError(errno.EEXIST, "is in the archive already", key)
        await self._put(key, body, "overwrite")

    async def _create(self, key: str, body: bytes) -> bool:
        """False where the server cannot. A key with the same bytes is our own try, whose answer was lost."""
        from obstore import exceptions

        try:
            await self._put(key, body, "create")
        except exceptions.AlreadyExistsError:
            if await self.get(key) != body:
                raise FileExistsError(errno.EEXIST, "is in the archive already", key) from None
        except exceptions.NotSupportedError:
            return False
        return True

    async def get(self, key: str) -> bytes:
        """The bytes of an object."""
        kept = await self.look(key)
        if kept is None:
            raise FileNotFoundError(errno.ENOENT, "is not in the archive", key)
        return kept.body

    async def open(self, key: str) -> BinaryIO:
        """A copy of the object that has no name, and is gone when it is closed."""
        import obstore

        async def fetch() -> BinaryIO:
            copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
            try:
                async for piece in (await obstore.get_async(self._store, checked(key))).stream():
                    await asyncio.to_thread(copy.write, piece)
            except BaseException:
                copy.close()
                raise
            copy.seek(0)
            return cast("BinaryIO", copy)

        return await self._patiently(fetch, key)

    async def local(self, key: str, folder: Path) -> Path:
        """The path of a copy, which may be there already: what has a key is never changed."""
        path = folder / checked(key).replace("/", "%")
        if not path.exists():
            draft = path.with_suffix(".part")
            with await self.open(key) as source, draft.open("wb") as copy:
                await asyncio.to_thread(shutil.copyfileobj, source, copy, 2**20)
            draft.rename(path)
        return path

    async def look(self, key: str) -> Kept | None:
        """The bytes, and the tag that the server gave them."""
        import obstore

        async def look() -> Kept:
            answer = await obstore.get_async(self._store, checked(key))
            body = bytes(await answer.bytes_async())
            return Kept(body, answer.meta["e_tag"] or sum_of(body))

        try:
            return await self._patiently(look, key)
        except FileNotFoundError:
            return None

    async def replace(self, key: str, body: bytes, seen: str | None) -> bool:
        """By a put that has a condition; where the server knows none, after a look."""
        from obstore import exceptions

        try:
            await self._put(key, body, "create" if seen is None else {"e_tag": seen})
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            return False
        except exceptions.NotSupportedError:
            kept = await self.look(key)
            if (kept and kept.version) != seen:
                return False
            await self._put(key, body, "overwrite")
        return True

    async def delete(self, key: str) -> bool:
        """Removes an object."""
        import obstore

        if not await self.exists(key):
            return False
        with contextlib.suppress(FileNotFoundError):
            await self._patiently(lambda: obstore.delete_async(self._store, checked(key)), key)
        return True

    async def list(self, below: str = "") -> list[str]:
        """The keys below a prefix."""
        import obstore

        async def collect() -> list[str]:
            list_stream = obstore.list(  # pyright: ignore[reportUnknownMemberType]
                self._store, prefix=below and checked(below)
            )
            found = await list_stream.collect_async()
            return sorted(meta["path"] for meta in found if is_key(meta["path"]))

        return await self._patiently(collect, below)

    async def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        import obstore

        try:
            await self._patiently(lambda: obstore.head_async(self._store, checked(key)), key)
        except FileNotFoundError:
            return False
        return True

    async def sweep(self, below: str) -> int:  # noqa: ARG002 (a folder needs it)
        """Nothing: a put that was ended has left nothing that has a key."""
        return 0

    async def _put(self, key: str, body: bytes | BinaryIO, mode: PutMode) -> None:
        import obstore

        def rewound() -> bytes | BinaryIO:
            if not isinstance(body, bytes):
                body.seek(0)
            return body

        async def put() -> None:
            await obstore.put_async(self._store, checked(key), rewound(), mode=mode)

        await self._patiently(put, key)

    async def _patiently(self, act: Callable[[], Awaitable[T]], key: str) -> T:
        """Tries again after each of the waits, as long as the fault is one that may pass.

        What the server said is not repeated: some repeat there what they were sent.
        """
        from obstore import exceptions

        told = (
            exceptions.AlreadyExistsError,
            exceptions.PreconditionError,
            exceptions.NotSupportedError,
        )
        for wait in (*self.waits, None):
            try:
                return await act()
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, "is not in the archive", key) from None
            except told:
                raise
            except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
                raise NotAllowed(message=f"the bucket of the archive refuses us {key!a}") from None
            except (exceptions.BaseError, OSError) as error:
                if "501" in str(error) and "NotImplemented" in str(error).replace(" ", ""):
                    raise exceptions.NotSupportedError("conditions") from None
                if wait is None:
                    what = f"the bucket of the archive does not answer as it should ({type(error).__name__})"
                    raise OSError(errno.EIO, what, key) from None
            await asyncio.sleep(wait)
        raise AssertionError("the last try answers or raises")


def _bytes(body: bytes | BinaryIO) -> bytes:
    if isinstance(body, bytes):
        return body
    body.seek(0)
    return body.read()
