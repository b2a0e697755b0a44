"""The manifest: a file counts only when it names it (Y-25, Y-31)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.apps.system import manifest as manifests
from holdfast.apps.system.manifest import ColumnType, Entry
from holdfast.apps.system.places import Archive, open_archive
from holdfast.errors import Conflict


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return open_archive((tmp_path / "archive").as_uri())


def entry(path: str, rows: int = 1, sha256: str = "") -> Entry:
    columns = (ColumnType("id", "uuid"), ColumnType("a b", "timestamp with time zone"))
    return Entry(
        path=path, kind="rows", table="t", key="id", rows=rows, bytes=2, sha256=sha256, columns=columns
    )


async def test_a_manifest_reads_back_as_it_was_written(archive: Archive) -> None:
    """Y-25: and a table of which nothing is archived has one without files."""
    assert await manifests.read(archive, "t") == manifests.Manifest(table="t")
    written = await manifests.update(archive, "t", lambda seen: manifests.entered(seen, [entry("t/a", 3)]))
    assert await manifests.read(archive, "t") == written
    assert (written.rows, written.bytes, written.version) == (3, 2, 1)


async def test_many_updates_at_once_are_all_heard(archive: Archive) -> None:
    """Y-31: nobody's update is lost."""

    async def enter(number: int) -> None:
        await manifests.update(archive, "t", lambda seen: manifests.entered(seen, [entry(f"t/{number}")]))

    await asyncio.gather(*(enter(number) for number in range(12)))
    assert len((await manifests.read(archive, "t")).files) == 12


async def test_an_update_that_is_repeated_changes_nothing(archive: Archive) -> None:
    """Y-25: its first answer may have got lost."""
    for _ in range(2):
        await manifests.update(archive, "t", lambda seen: manifests.entered(seen, [entry("t/a")]))
    assert len((await manifests.read(archive, "t")).files) == 1


async def test_what_is_exchanged_is_gone_until_it_is_removed(archive: Archive) -> None:
    """Y-31."""
    await archive.put("t/a", b"aa")
    await manifests.update(archive, "t", lambda seen: manifests.entered(seen, [entry("t/a"), entry("t/b")]))
    await manifests.update(
        archive, "t", lambda seen: manifests.exchanged(seen, [entry("t/a")], [entry("t/c")])
    )
    manifest = await manifests.read(archive, "t")
    assert [one.path for one in manifest.files] == ["t/b", "t/c"]
    assert manifest.gone == ("t/a",)
    assert await manifests.remove_gone(archive, "t") == 1
    assert (await manifests.read(archive, "t")).gone == ()
    assert not await archive.exists("t/a")


@pytest.mark.parametrize("table", ["job", "system.jobs", "a/b", "../up", ".hidden", 'My "Table" %', "täble"])
async def test_every_name_of_a_table_has_a_folder_of_its_own(archive: Archive, table: str) -> None:
    """Y-34: and no name leads out of the archive."""
    await manifests.update(archive, table, lambda seen: manifests.entered(seen, [entry("x/a")]))
    assert await manifests.tables(archive) == [table]
    assert (await manifests.read(archive, table)).table == table


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"table": "t", "files": 7}', b"\xff"])
async def test_a_manifest_that_cannot_be_read_is_told_and_never_replaced(
    archive: Archive, body: bytes
) -> None:
    """Y-25: rows would be forgotten."""
    await archive.put(manifests.key_of("t"), body)
    with pytest.raises(Conflict, match="cannot be read"):
        await manifests.update(archive, "t", lambda seen: manifests.entered(seen, [entry("t/a")]))
    assert await archive.get(manifests.key_of("t")) == body


async def test_a_manifest_of_a_newer_version_is_refused(archive: Archive) -> None:
    """Y-25."""
    await archive.put(manifests.key_of("t"), b'{"table": "t", "version": 2}')
    with pytest.raises(Conflict, match="newer"):
        await manifests.read(archive, "t")


async def test_a_file_that_is_not_what_its_entry_says_is_refused(archive: Archive) -> None:
    """Y-25: by its sum."""
    await archive.put("t/a", b"ab")
    with pytest.raises(Conflict, match="not what its manifest says"):
        await manifests.opened(archive, entry("t/a", sha256="0" * 64))
