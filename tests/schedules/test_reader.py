"""The program that reads pictures: what it is given, what it answers, and what it must not do."""

from __future__ import annotations

import asyncio
import doctest
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.apps.schedules import reader
from holdfast.apps.schedules.layout import Box
from holdfast.apps.schedules.reader import Tesseract, Word, phrases, words
from holdfast.apps.schedules.values import Refusal
from holdfast.errors import SettingsError
from schedules.buckets import SECRET
from schedules.pictures import Drawing, drawn, huge_png

PICTURE = huge_png(8)


@dataclass(frozen=True)
class Gallery:
    """Two pictures, as bytes and as files of a folder."""

    folder: Path
    pictures: dict[str, bytes]


@pytest.fixture(scope="module")
def tesseract() -> Tesseract:
    try:
        return Tesseract.found()
    except SettingsError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    folder = tmp_path_factory.mktemp("gallery")
    pictures = drawn({"light": Drawing(), "jpeg": Drawing(format="jpeg")})
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)
    return Gallery(folder, pictures)


async def test_a_picture_without_text_has_no_boxes(tesseract: Tesseract) -> None:
    """S-23."""
    assert await tesseract.read(PICTURE) == []


@pytest.mark.parametrize("image", [b"", b"%PDF-1.7", b"GIF89a", b"\x89PNG", b"RIFF\0\0\0\0WAVE", b"P1 1 1 0"])
async def test_what_is_no_picture_is_not_given_to_the_program(image: bytes, tmp_path: Path) -> None:
    """Bad input: `image_unreadable`. S-23."""
    started, program = stand_in(tmp_path, "exit 1")
    with pytest.raises(Refusal, match="image_unreadable"):
        await Tesseract(str(program)).read(image)
    assert not started.exists()


async def test_a_list_of_files_is_not_read_for_its_files(tesseract: Tesseract, gallery: Gallery) -> None:
    """Bad input: `image_unreadable`. The program would open each file that such a text names. S-23."""
    with pytest.raises(Refusal, match="image_unreadable"):
        await tesseract.read(str(gallery.folder / "light.png").encode())


@pytest.mark.parametrize("name", ["light", "jpeg"])
async def test_a_damaged_picture_is_unreadable(tesseract: Tesseract, gallery: Gallery, name: str) -> None:
    """Bad input: `image_unreadable`: half a picture must not give half a day. S-23."""
    whole = gallery.pictures[name]
    for image in (whole[: len(whole) // 2], whole[:20], whole[:400] + b"/etc/hosts\n" * 100):
        with pytest.raises(Refusal, match="image_unreadable"):
            await tesseract.read(image)


async def test_a_picture_that_takes_too_much_memory_is_unreadable(
    tesseract: Tesseract, gallery: Gallery
) -> None:
    """Bad input: `image_unreadable`: 2 MB that need 400; a usual one is read under the same limit. S-23."""
    confined = Tesseract(tesseract.command[0], memory=400 * 2**20)
    assert await confined.read(gallery.pictures["light"])
    with pytest.raises(Refusal, match="image_unreadable"):
        await confined.read(huge_png(10_000))


def stand_in(folder: Path, script: str) -> tuple[Path, Path]:
    """A program in the place of tesseract, and the file where it notes its process when it starts."""
    started, program = folder / "started", folder / "program"
    program.write_text(f"#!/bin/sh\necho $$ > {started}.new\nmv {started}.new {started}\n{script}\n")
    program.chmod(0o755)
    return started, program


def runs(started: Path) -> bool:
    try:
        os.kill(int(started.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_picture_that_takes_too_long_is_unreadable(tmp_path: Path) -> None:
    """Bad input: `image_unreadable`; and the program is ended. S-23."""
    started, program = stand_in(tmp_path, "exec sleep 600")
    with pytest.raises(Refusal, match="image_unreadable: reading it took more than 1 s"):
        await Tesseract(str(program), seconds=1).read(PICTURE)
    assert not runs(started)


async def test_whoever_is_cancelled_ends_the_program(tmp_path: Path) -> None:
    """S-16, S-23: a worker that stops, or has lost its lease, leaves nothing running."""
    started, program = stand_in(tmp_path, "exec sleep 600")
    reading = asyncio.create_task(Tesseract(str(program)).read(PICTURE))
    async with asyncio.timeout(20):
        while not started.exists():  # noqa: ASYNC110 (a file gives no signal)
            await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not runs(started)


async def test_the_program_gets_none_of_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-23."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", SECRET)
    _, program = stand_in(tmp_path, f"env > {tmp_path / 'env'}")
    assert await Tesseract(str(program)).read(PICTURE) == []
    assert SECRET not in (tmp_path / "env").read_text()
    assert "OMP_THREAD_LIMIT=1" in (tmp_path / "env").read_text()


def test_a_language_that_is_not_installed_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-23: without Swedish, every å would be read as something else."""
    _, program = stand_in(tmp_path, "echo eng")
    program.rename(tmp_path / "tesseract")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SettingsError, match="tesseract's data for swe: apt-get install"):
        Tesseract.found()
    assert "eng" in Tesseract.found(["eng"]).command


def table(*rows: tuple[str, int, int, int, float]) -> str:
    """The program's table of a picture that is 1000 high: text, line, left, top and how sure it is."""
    told = ["level\t…", "1\t1\t0\t0\t0\t0\t0\t0\t780\t1000\t-1\t", "2\t1\t1\t0\t0\t0\t9\t9\t9\t9\t-1\t"]
    for text, line, x, y, sure in rows:
        told.append(f"5\t1\t1\t1\t{line}\t1\t{x}\t{y}\t{10 * len(text)}\t20\t{sure}\t{text}")
    return "\n".join([*told, ""])


def test_words_of_one_line_are_phrases() -> None:
    """S-23: what stands far apart is not one."""
    told = table(
        ("Sjöberg", 1, 60, 100, 90.5),
        ("Marie", 1, 0, 100, 96),
        ("4G", 1, 400, 100, 60),
        ("a\tb", 2, 25, 200, 95),
    )
    boxes = [Box("Marie Sjöberg", 0, 100, 130, 20), Box("4G", 400, 100, 20, 20), Box("a\tb", 25, 200, 30, 20)]
    assert phrases(words(told)) == boxes
    tall = [Word(("1",), "b", 30, 8, 10, 14), Word(("1",), "a", 0, 0, 10, 20)]
    assert phrases(tall) == [Box("a b", 0, 0, 40, 22)]
    assert phrases(words(table())) == phrases(words("")) == []


def test_words_that_are_unsure_or_cut_off_are_left_out() -> None:
    """S-23: lines and icons; and a line that touches the upper or the lower edge."""
    told = table(
        ("|", 1, 0, 100, 12),
        ("Ek", 2, 0, 200, 30),
        ("a", 3, 0, 970, 96),
        ("cut", 3, 20, 980, 96),
        ("line", 3, 60, 970, 96),
        ("low", 4, 0, 979, 96),
        ("top", 5, 0, 0, 96),
    )
    assert [word.text for word in words(told)] == ["Ek", "low"]


def test_the_examples_are_true() -> None:
    assert doctest.testmod(reader) == doctest.TestResults(0, 1)
