"""Archives in a folder, and in a bucket on a server that checks signatures (Y-25, Y-26, Y-31, Y-34)."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.apps.system.backups import make_folder
from holdfast.apps.system.joblog import JobLog
from holdfast.apps.system.places import Archive, Folder, open_archive
from holdfast.db.settings import Settings
from holdfast.errors import MissingExtra, NotAllowed, SettingsError
from system.buckets import ACCESS, SECRET, Server, serving

QUICK = (0.0, 0.0, 0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with serving() as server:
        yield server


@pytest.fixture(params=["folder", "s3", "plain s3"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """An archive of each kind; the last one's server knows no conditions."""
    if request.param == "folder":
        return open_archive((tmp_path / "archive").as_uri())
    server: Server = request.getfixturevalue("server")
    server.conditional = request.param == "s3"
    return open_archive(server.url, QUICK)


async def test_what_was_put_is_there_whole_and_listed(archive: Archive, tmp_path: Path) -> None:
    """Y-25: bytes or a file, by whatever way they are asked for."""
    await archive.put("job/a.parquet", b"whole")
    await archive.put("job/b ö.parquet", io.BytesIO(b"x" * 3_000_000))
    for number in range(5):
        await archive.put(f"tasks/{number}", b"")
    assert await archive.get("job/a.parquet") == b"whole"
    with await archive.open("job/b ö.parquet") as file:
        assert len(file.read()) == 3_000_000
    assert (await archive.local("job/a.parquet", tmp_path)).read_bytes() == b"whole"
    assert await archive.list("job") == ["job/a.parquet", "job/b ö.parquet"]
    assert await archive.list() == ["job/a.parquet", "job/b ö.parquet", *(f"tasks/{n}" for n in range(5))]
    assert await archive.exists("job/a.parquet")
    assert not await archive.exists("job")
    assert await archive.delete("job/a.parquet")
    assert not await archive.delete("job/a.parquet")
    assert await archive.list("job") == ["job/b ö.parquet"]
    assert await archive.list("none") == []


async def test_files_and_folders_are_readable_by_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    """Y-34: archived payloads, backups and traces. A folder that is there keeps the mode that it has."""
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    settings = Settings(profile="test", system_backup_roots=(there / "srv" / "backups",))
    before = os.umask(0)
    try:
        archive = open_archive((there / "srv" / "archive").as_uri())
        await archive.put("job/a.parquet", b"secret")
        await archive.replace("job/manifest.json", b"{}", None)
        JobLog(there / "logs" / "deep" / "jobs.log").write("FL-4fK2mZ0q", "INFO", "x")
        make_folder(settings, there / "srv" / "backups" / "daily" / "first")
    finally:
        os.umask(before)
    made = [path for path in there.rglob("*") if not path.is_symlink()]
    assert {path.name for path in made} >= {"a.parquet", "manifest.json", ".lock", "jobs.log", "srv", "daily"}
    open_to_others = {str(path): oct(path.stat().st_mode) for path in made if path.stat().st_mode & 0o077}
    assert open_to_others == {}
    assert there.stat().st_mode & 0o777 == 0o755


async def test_nothing_is_overwritten(archive: Archive) -> None:
    """Y-25."""
    await archive.put("job/a", b"first")
    with pytest.raises(FileExistsError):
        await archive.put("job/a", b"second")
    assert await archive.get("job/a") == b"first"
    assert await archive.sweep("job") == 0


async def test_a_file_that_is_not_there_is_not_found(archive: Archive, tmp_path: Path) -> None:
    """Y-25."""
    for ask in (archive.get("job/none"), archive.open("job/none"), archive.local("job/none", tmp_path)):
        with pytest.raises(FileNotFoundError):
            await ask
    assert await archive.look("job/none") is None


async def test_a_replacement_takes_the_place_of_what_was_seen_alone(archive: Archive) -> None:
    """Y-31: two writers cannot lose an update of the manifest."""
    assert await archive.replace("job/manifest.json", b"1", None)
    assert not await archive.replace("job/manifest.json", b"2", None)
    seen = await archive.look("job/manifest.json")
    assert seen is not None
    assert seen.body == b"1"
    assert await archive.replace("job/manifest.json", b"2", seen.version)
    assert not await archive.replace("job/manifest.json", b"3", seen.version)
    assert await archive.get("job/manifest.json") == b"2"
    assert not await archive.replace("job/none", b"x", seen.version)
    assert await archive.list("job") == ["job/manifest.json"]


@pytest.mark.parametrize("archive", ["folder", "s3"], indirect=True)
async def test_of_many_that_replace_at_once_one_is_heard(archive: Archive) -> None:
    """Y-31."""
    await archive.replace("job/manifest.json", b"0", None)
    seen = await archive.look("job/manifest.json")
    assert seen is not None
    tries = [archive.replace("job/manifest.json", f"by {n}".encode(), seen.version) for n in range(20)]
    assert sum(await asyncio.gather(*tries)) == 1


@pytest.mark.parametrize(
    "key",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../x",
        "/x",
        "a//x",
        "a/",
        ".x",
        "a/.x.part",
        "x\0",
        "x\ny",
        "a\\b",
        "x" * 1001,
    ],
    ids=lambda key: ascii(key[:12]),
)
async def test_a_key_that_leads_out_is_refused(archive: Archive, key: str) -> None:
    """Y-34."""
    for act in (
        archive.put(key, b""),
        archive.get(key),
        archive.delete(key),
        archive.replace(key, b"", None),
    ):
        with pytest.raises(NotAllowed):
            await act


async def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    """Y-34: to read or to write; the folder itself may be reached by one."""
    real, outside = tmp_path / "real", tmp_path / "outside"
    real.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(b"of somebody else")
    (tmp_path / "archive").symlink_to(real)
    (real / "up").symlink_to(outside)
    (real / "link").symlink_to(outside / "secret")
    archive = Folder(tmp_path / "archive")
    await archive.put("job/a", b"ours")
    assert await archive.get("job/a") == b"ours"
    for act in (
        archive.get("up/secret"),
        archive.get("link"),
        archive.put("up/new", b""),
        archive.delete("up/secret"),
    ):
        with pytest.raises(NotAllowed):
            await act
    assert (outside / "secret").exists()
    assert await archive.list() == ["job/a"]


async def test_an_unfinished_file_is_none_and_is_swept(tmp_path: Path) -> None:
    """Y-25: it is written under a temporary name and synced before it is published."""
    archive = Folder(tmp_path / "archive")
    seen: list[list[str]] = []

    async def step(name: str) -> None:
        assert name == "written"
        seen.append(await archive.list("job"))
        (unfinished,) = (tmp_path / "archive" / "job").iterdir()
        assert unfinished.read_bytes() == b"whole"
        assert unfinished.name.startswith(".")

    await archive.put("job/a", b"whole", step)
    assert seen == [[]]
    (tmp_path / "archive" / "job" / ".b.123.part").write_bytes(b"half")
    assert await archive.list() == ["job/a"]
    assert await archive.sweep("job") == 1
    assert sorted(path.name for path in (tmp_path / "archive" / "job").iterdir()) == ["a"]


async def test_a_writer_whose_unfinished_file_was_swept_publishes_nothing(tmp_path: Path) -> None:
    """Y-25: it was given up meanwhile."""
    archive = Folder(tmp_path / "archive")

    async def step(_: str) -> None:
        await archive.sweep("job")

    with pytest.raises(FileNotFoundError):
        await archive.put("job/a", b"whole", step)
    assert await archive.list() == []


@pytest.mark.parametrize("fault", [500, 503, 429])
async def test_a_fault_of_a_bucket_that_passes_is_tried_again(server: Server, fault: int) -> None:
    """Y-26."""
    archive = open_archive(server.url, QUICK)
    server.faults = [fault] * 3
    await archive.put("job/a", b"whole")
    server.faults = [fault] * 3
    assert await archive.get("job/a") == b"whole"
    server.faults = [fault] * 4
    with pytest.raises(OSError, match="does not answer") as caught:
        await archive.list()
    assert SECRET not in str(caught.value)


async def test_an_answer_that_got_lost_does_no_harm(server: Server) -> None:
    """Y-25: the second try finds its own bytes, or that the replacement was made already."""
    archive = open_archive(server.url, QUICK)
    server.faults = ["lose"]
    await archive.put("job/a", b"whole")
    assert await archive.get("job/a") == b"whole"
    server.faults = ["lose"]
    assert not await archive.replace("job/manifest.json", b"1", None), "so it is looked at again"
    assert await archive.get("job/manifest.json") == b"1"


async def test_a_bucket_that_refuses_us_says_nothing_of_secrets(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Y-34."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    with pytest.raises(NotAllowed) as caught:
        await open_archive(server.url, QUICK).get("job/a")
    assert all(word not in str(caught.value) for word in (ACCESS, SECRET, "wrong-secret"))


async def test_what_is_beside_the_prefix_of_a_bucket_is_not_ours(server: Server) -> None:
    """Y-34."""
    server.objects["other/job/a"] = b"of somebody else"
    archive = open_archive(server.url, QUICK)
    await archive.put("job/a", b"ours")
    assert await archive.list() == ["job/a"]
    assert set(server.objects) == {"other/job/a", "cold/rows/job/a"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/folder",
        "file://host/folder",
        "file:folder",
        "file:///folder?a=b",
        "http://127.0.0.1/bucket",
        "s3://",
        "s3://key:secret@bucket",
        "s3://bucket/../up",
        "s3://bucket?endpoint=ftp://host",
        "s3://bucket?endpoint=https://key:secret@host",
        "s3://bucket?secret_access_key=secret",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Y-34: without a word of what could be a secret."""
    with pytest.raises(SettingsError, match="HOLDFAST_SYSTEM_ARCHIVE") as caught:
        open_archive(url)
    assert "key:secret" not in str(caught.value)


def test_a_bucket_without_its_library_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Y-26: and a folder does without."""
    for name in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, name, None)
    assert isinstance(open_archive("file:///folder"), Folder)
    with pytest.raises(MissingExtra, match=r"holdfast\[system\]"):
        open_archive("s3://bucket")


def test_processes_that_replace_at_once_lose_no_update(tmp_path: Path) -> None:
    """Y-31: eight processes add to one manifest."""
    code = (
        "import asyncio, sys; from holdfast.apps.system import manifest as m\n"
        "from holdfast.apps.system.places import open_archive\n"
        "from holdfast.apps.system.manifest import Entry, entered, update\n"
        "entry = Entry(path=sys.argv[2], kind='rows', table='t', key='id', rows=1, bytes=1, sha256='',\n"
        "    columns=())\n"
        "asyncio.run(update(open_archive(sys.argv[1]), 't', lambda seen: entered(seen, [entry])))"
    )
    url = (tmp_path / "archive").as_uri()
    started = [
        subprocess.Popen([sys.executable, "-c", code, url, f"f{n}"], env=dict(os.environ)) for n in range(8)
    ]
    assert [process.wait(60) for process in started] == [0] * 8
    from holdfast.apps.system import manifest

    found = asyncio.run(manifest.read(open_archive(url), "t"))
    assert sorted(entry.path for entry in found.files) == [f"f{n}" for n in range(8)]
