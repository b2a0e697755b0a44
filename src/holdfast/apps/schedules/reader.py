"""Reads the texts of a picture and where they stand, by the program tesseract.

Strangers send the pictures. So each is looked at first: what is no picture, the program would take for a list
of files to read. It gets none of our variables and no shell, and its time and memory are limited.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from holdfast.apps.schedules.layout import Box
from holdfast.apps.schedules.values import Refusal
from holdfast.errors import SettingsError

LANGUAGES = ("swe", "eng")
PACKAGES = "apt-get install tesseract-ocr tesseract-ocr-swe"
SECONDS = 60.0  # for one picture
MEMORY = 2 * 2**30  # bytes of address space
SURE = 30.0  # of 100: of icons and lines, read as words, the program is less sure
APART = 1.5  # heights between two words of different phrases
PASSED_ON = ("PATH", "TMPDIR", "TESSDATA_PREFIX", "LD_LIBRARY_PATH")


class Reader(Protocol):
    """Something that reads pictures: a program here, or a service elsewhere."""

    async def read(self, image: bytes) -> list[Box]:
        """The phrases in a picture; `Refusal` image_unreadable if it is none."""
        ...


class Word(NamedTuple):
    """One word of a picture; words with the same line stand in one."""

    line: tuple[str, ...]
    text: str
    x: int
    y: int
    w: int
    h: int


class Tesseract:
    """Runs the program once for each picture."""

    def __init__(
        self,
        program: str = "tesseract",
        *,
        languages: Sequence[str] = LANGUAGES,
        seconds: float = SECONDS,
        memory: int = MEMORY,
    ) -> None:
        self.command = (program, "stdin", "stdout", "-l", "+".join(languages), "--psm", "11", "tsv")
        self.seconds = seconds
        self.memory = memory

    @classmethod
    def found(cls, languages: Sequence[str] = LANGUAGES) -> Tesseract:
        """The program of this machine; `SettingsError` if it, or one of its languages, is not installed."""
        program = shutil.which("tesseract")
        if program is None:
            raise _missing("the program tesseract")
        listed = subprocess.run(  # noqa: S603 (a program of the machine, nothing of a user's)
            [program, "--list-langs"], capture_output=True, check=False, env=_environment(), timeout=30
        )
        known = listed.stdout.decode(errors="replace").split()
        if lacking := [language for language in languages if language not in known]:
            raise _missing(f"tesseract's data for {' and '.join(lacking)}")
        return cls(program, languages=languages)

    async def read(self, image: bytes) -> list[Box]:
        """The phrases in a PNG, JPEG or WebP."""
        if not is_picture(image):
            raise Refusal("image_unreadable", "it is no PNG, JPEG or WebP")
        process = await asyncio.create_subprocess_exec(
            *self.command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=_environment()
        )
        try:
            _limit(process.pid, self.memory)
            async with asyncio.timeout(self.seconds):
                out, _ = await process.communicate(image)
        except TimeoutError:
            raise Refusal("image_unreadable", f"reading it took more than {self.seconds:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise Refusal("image_unreadable", "it is damaged, or too large to be read")
        return phrases(words(out.decode(errors="replace")))


def is_picture(image: bytes) -> bool:
    """Whether the bytes begin like a PNG, a JPEG or a WebP.

    >>> is_picture(b"/etc/hosts"), is_picture(b"RIFF....WEBPVP8 ")
    (False, True)
    """
    png, jpeg = image.startswith(b"\x89PNG\r\n\x1a\n"), image.startswith(b"\xff\xd8\xff")
    return png or jpeg or (image[:4] == b"RIFF" and image[8:12] == b"WEBP")


def words(table: str) -> list[Word]:
    """The words in the program's table, without those of which it is not sure.

    Nor those of a line that touches the upper or the lower edge of the picture: it is cut off there, and a
    part of a word reads like something else.
    """
    found: list[Word] = []
    cut: set[tuple[str, ...]] = set()
    height = 0
    for row in table.split("\n")[1:]:
        # level, page, block, paragraph, line, word, left, top, width, height, confidence, text
        cells = row.split("\t", 11)
        if len(cells) != 12:
            continue
        word = Word(tuple(cells[1:5]), cells[11].strip(), *map(int, cells[6:10]))
        if cells[0] == "1":
            height = word.h
        elif cells[0] == "5" and word.text and float(cells[10]) >= SURE:
            found.append(word)
            if word.y <= 0 or word.y + word.h >= height:
                cut.add(word.line)
    return [word for word in found if word.line not in cut]


def phrases(found: Iterable[Word]) -> list[Box]:
    """The words as boxes; those that stand side by side in a line are one."""
    rows: dict[tuple[str, ...], list[list[Word]]] = {}
    for word in sorted(found, key=lambda word: (word.line, word.x)):
        row = rows.setdefault(word.line, [])
        if not row or word.x - _right(row[-1]) > APART * max(word.h, row[-1][-1].h):
            row.append([])
        row[-1].append(word)
    return [_box(phrase) for row in rows.values() for phrase in row]


def _box(phrase: Sequence[Word]) -> Box:
    x, y = min(word.x for word in phrase), min(word.y for word in phrase)
    bottom = max(word.y + word.h for word in phrase)
    return Box(" ".join(word.text for word in phrase), x, y, _right(phrase) - x, bottom - y)


def _right(phrase: Sequence[Word]) -> int:
    return max(word.x + word.w for word in phrase)


def _environment() -> dict[str, str]:
    """Only what it takes to start it; one thread, for several pictures are read at once."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return passed | {"LC_ALL": "C.UTF-8", "OMP_THREAD_LIMIT": "1"}


def _limit(process: int, memory: int) -> None:
    if hasattr(resource, "prlimit"):  # Linux has it; the time is limited in any case
        with suppress(ProcessLookupError, PermissionError):  # it may have ended already
            resource.prlimit(process, resource.RLIMIT_AS, (memory, memory))


def _missing(what: str) -> SettingsError:
    problem = f"HOLDFAST_SCHEDULES_EXTRACTOR=ocr needs {what}: {PACKAGES}"
    return SettingsError(title="some settings are wrong:", problems=[problem])
