"""PostgreSQL's own programs: found by their version, run without a shell, told where by their environment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.apps.system import programs
from holdfast.apps.system.programs import Program, ProgramFailed, find_programs, reach
from holdfast.db.pool import Connection
from holdfast.db.settings import Settings
from holdfast.errors import MissingExtra
from runtime.support import until

URL = "postgresql://ana:open-sesame@127.0.0.1:1/nowhere"


def program(folder: Path, name: str, text: str) -> Path:
    """A small program of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def command_line(pid: int) -> bytes:
    """What everybody sees of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def install(folder: Path, version: str) -> Path:
    """Programs that say they are of this version."""
    for name in ("pg_dump", "pg_restore"):
        program(folder, name, f'echo "{name} (PostgreSQL) {version}"')
    return folder


def test_the_programs_nearest_to_the_server_are_taken(tmp_path: Path) -> None:
    """Y-34: of several its own or the next: older ones refuse it, newer ones may write what is new to it."""
    folders = [
        install(tmp_path / version, version) for version in ("15.4 (Debian 15.4-1)", "17.1", "16devel")
    ]
    assert find_programs(150004, folders=folders).version == 15
    assert find_programs(160004, folders=folders[:2]).folder == tmp_path / "17.1"
    assert find_programs(170000, folders=folders).version == 17
    assert find_programs(150004, dumped=16, folders=folders).version == 16


def test_programs_older_than_the_server_are_missing(tmp_path: Path) -> None:
    """Bad input: `MissingExtra` says what is there, what is needed and what to install."""
    with pytest.raises(
        MissingExtra, match=r"pg_restore 18 or newer.*newest here are 15.*postgresql-client-18"
    ):
        find_programs(180001, folders=[install(tmp_path / "old", "15.4")])
    with pytest.raises(MissingExtra, match="17 or newer"):
        find_programs(150001, dumped=17, folders=[tmp_path / "old"])


@pytest.mark.parametrize("broken", ["exit 1", "echo nonsense", "echo 'pg_restore (PostgreSQL) 18'; exit 3"])
def test_a_folder_that_lacks_one_of_both_has_none(tmp_path: Path, broken: str) -> None:
    """Bad input: a program that is missing, or does not run, is none."""
    folder = install(tmp_path / "bin", "18.1")
    program(folder, "pg_restore", broken)
    with pytest.raises(MissingExtra, match="found none: install"):
        find_programs(180001, folders=[folder, tmp_path])
    (folder / "pg_restore").unlink()
    with pytest.raises(MissingExtra, match="found none"):
        find_programs(180001, folders=[folder])


async def test_the_programs_of_this_machine_know_this_server(conn: Connection) -> None:
    """Y-34: the embedded server brings its own."""
    found = find_programs(conn.info.server_version)
    assert found.version >= conn.info.server_version // 10_000
    assert (found.folder / "pg_dump").exists()


async def test_arguments_come_through_as_they_are(tmp_path: Path) -> None:
    """Y-34: no shell reads them."""
    odd = ['--schema="it\'s; touch here $HOME"', "`id`", "a b"]
    path = program(tmp_path, "told", 'for word in "$@"; do echo "$word"; done')
    async with Program(path, odd, reach(URL, name="test")) as running:
        said = b"".join([chunk async for chunk in running.chunks()])
        await running.ended()
    assert said.decode().splitlines() == odd


async def test_the_environment_tells_where_the_server_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-34: host, user, database and password go by the environment; nothing else of ours is passed on."""
    monkeypatch.setenv("HOLDFAST_CRYPTO_KEY", "not for others")
    path = program(tmp_path, "told", "env")
    async with Program(path, [], reach(URL, name="test", dbname="scratch")) as running:
        said = b"".join([chunk async for chunk in running.chunks()]).decode().splitlines()
        await running.ended()
    assert {"PGHOST=127.0.0.1", "PGPORT=1", "PGUSER=ana", "PGPASSWORD=open-sesame"} <= set(said)
    assert {"PGDATABASE=scratch", "PGAPPNAME=test"} <= set(said)
    assert not [line for line in said if line.startswith("HOLDFAST")]
    assert "open-sesame" not in repr(reach(URL, name="test"))


async def test_what_a_program_says_is_shown_without_the_password(tmp_path: Path) -> None:
    """Y-34: neither log nor message may have it, so the error has not."""
    path = program(tmp_path, "fails", 'echo "no entry for $PGUSER with $PGPASSWORD" >&2; exit 3')
    async with Program(path, [], reach(URL, name="test")) as running:
        with pytest.raises(ProgramFailed, match=r"fails failed \(3\): no entry for ana with \*\*\*"):
            await running.ended()


async def test_a_program_that_says_much_is_not_held_up(tmp_path: Path) -> None:
    """Its words are read while it works; of very many the last ones are kept."""
    path = program(tmp_path, "talks", "yes 'a complaint' | head -c 3000000 >&2; echo the end >&2; exit 1")
    async with Program(path, [], reach(URL, name="test")) as running:
        with pytest.raises(ProgramFailed) as failure:
            await running.ended()
    assert str(failure.value).endswith("the end")
    assert len(str(failure.value)) < 2 * programs.SAID


async def test_a_program_ends_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Y-15: who is called off leaves no program behind, also none that does not listen."""
    monkeypatch.setattr(programs, "GRACE", 0.1)
    for text in ("exec sleep 1000", "trap '' TERM; echo ready; while :; do sleep 0.05; done"):
        path = program(tmp_path, "stays", text)
        with pytest.raises(asyncio.CancelledError):
            async with Program(path, [], reach(URL, name="test")) as running:
                raise asyncio.CancelledError
        assert running.process.returncode is not None
        with pytest.raises(ProcessLookupError):
            os.kill(running.process.pid, 0)


async def test_no_password_is_in_the_process_list(settings: Settings, conn: Connection, connect) -> None:
    """Y-34 "no password is in parameters, log, message or process list": looked at while pg_dump works."""
    assert settings.database_url
    url = settings.database_url.replace("postgresql://holdfast@", "postgresql://holdfast:open-sesame@")
    server = reach(url, name="holdfast backup")
    (secret,) = server.secrets
    found = find_programs(conn.info.server_version)
    await conn.execute("create table busy ()")
    other = await connect()
    async with other.transaction():
        await other.execute("lock table busy in access exclusive mode")
        async with Program(found.folder / "pg_dump", ["--format=custom", "--table=busy"], server) as dumping:
            await until(
                conn, "select count(*) > 0 from pg_locks where not granted and relation = 'busy'::regclass"
            )
            shown = command_line(dumping.process.pid)
            assert b"pg_dump" in shown
            assert secret.encode() not in shown
