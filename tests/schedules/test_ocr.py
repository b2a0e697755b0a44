"""From pictures to a day: drawn by a browser and read by tesseract; and by a reader of written boxes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast.apps.schedules.canonical import canonical, payload_hash
from holdfast.apps.schedules.layout import Box
from holdfast.apps.schedules.objects import Folder, open_store
from holdfast.apps.schedules.ocr import Ocr
from holdfast.apps.schedules.reader import Tesseract
from holdfast.apps.schedules.shifts import shifts
from holdfast.apps.schedules.values import Image, Refusal, Session
from holdfast.errors import SettingsError
from schedules.buckets import ACCESS, SECRET, serving
from schedules.pictures import CARDS, Drawing, drawn

SESSION = Session(
    id=UUID("00000000-0000-4000-8000-000000000001"), user_id=42, created_at=datetime(2026, 3, 1, tzinfo=UTC)
)
HEADING = "Måndag 2 mars"
ANNA = ("09:00–12:00", "Anna Lindberg", "Gatan 5", "Askim")  # noqa: RUF001
BO = ("13:00–14:00", "Bo Ek", "Gatan 9", "Askim")  # noqa: RUF001


def images(keys: Sequence[str]) -> list[Image]:
    return [
        Image(
            id=UUID(int=at), sequence=at, r2_key=key, telegram_message_id=None, created_at=SESSION.created_at
        )
        for at, key in enumerate(keys, 1)
    ]


class Written:
    """A reader of pictures whose bytes are texts already: cards, with lines, as JSON."""

    async def read(self, image: bytes) -> list[Box]:
        if image == b"damaged":
            raise Refusal("image_unreadable", "it is damaged")
        cards = json.loads(image)
        return [
            Box(line, 20, 200 * above + 30 * at, 10 * len(line), 20)
            for above, card in enumerate(cards)
            for at, line in enumerate(card)
        ]


async def written(
    folder: Path, *pictures: Sequence[Sequence[str]], session: Session = SESSION, names: Sequence[str] = ()
) -> Any:
    """What is read from pictures of cards of lines, in the order in which they are given."""
    keys = names or [f"{at}.png" for at, _ in enumerate(pictures)]
    for key, picture in zip(keys, pictures, strict=True):
        (folder / key).write_text(json.dumps(picture))
    return await Ocr(Folder(folder), Written()).extract(session, images(keys))


async def refusal(folder: Path, *pictures: Sequence[Sequence[str]]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await written(folder, *pictures)
    return caught.value


async def test_a_day_is_read_from_its_pictures(tmp_path: Path) -> None:
    """S-23: the payload of a fixture, which the next step takes as it is."""
    assert await written(tmp_path, [[HEADING], ANNA], [BO]) == {
        "schedule_date": "2026-03-02",
        "entries": [
            {
                "start": "09:00",
                "end": "12:00",
                "title": "Anna Lindberg",
                "location": "Askim",
                "address": "Gatan 5",
            },
            {"start": "13:00", "end": "14:00", "title": "Bo Ek", "location": "Askim", "address": "Gatan 9"},
        ],
    }
    assert Ocr(Folder(tmp_path), Written()).needs_images


async def test_pictures_are_read_in_the_order_of_their_sequence(tmp_path: Path) -> None:
    """S-23: whatever the order in which they come."""

    class Noting(Folder):
        asked: list[str] = []  # noqa: RUF012 (one store in this test)

        async def get(self, key: str) -> bytes:
            self.asked.append(key)
            return json.dumps([[HEADING], ANNA]).encode()

    store = Noting(tmp_path)
    await Ocr(store, Written()).extract(SESSION, images(["b", "c", "a"])[::-1])
    assert store.asked == ["b", "c", "a"]


async def test_the_date_is_that_of_the_picture_and_never_of_its_name(tmp_path: Path) -> None:
    """S-24: pictures without one inherit it; a year that is left out is the nearest to the capture."""
    names = ["2025-12-24.png", "IMG 3 maj 2024.png"]
    found = await written(tmp_path, [ANNA], [[HEADING], BO], names=names)
    assert found["schedule_date"] == "2026-03-02"
    late = replace(SESSION, created_at=datetime(2025, 12, 30, tzinfo=UTC))
    assert (await written(tmp_path, [["1 januari"], BO], session=late))["schedule_date"] == "2026-01-01"


async def test_a_date_that_columns_cut_in_two_is_found_over_the_whole_width(tmp_path: Path) -> None:
    """S-24."""

    class Wide:
        async def read(self, image: bytes) -> list[Box]:
            heading = [Box("Måndag 2", 0, 0, 80, 20), Box("mars 2026", 700, 0, 80, 20)]
            return heading + [Box(line, 0, 200 + 30 * at, 90, 20) for at, line in enumerate(ANNA)]

    (tmp_path / "a.png").write_bytes(b"")
    found = await Ocr(Folder(tmp_path), Wide()).extract(SESSION, images(["a.png"]))
    assert found["schedule_date"] == "2026-03-02"


async def test_two_dates_in_one_session_fail_it(tmp_path: Path) -> None:
    """S-24; bad input: `dates_disagree`."""
    found = await refusal(tmp_path, [[HEADING], ANNA], [["Tisdag 3 mars"], BO])
    assert (found.code, found.stage) == ("dates_disagree", "layout")


async def test_a_session_without_a_date_fails(tmp_path: Path) -> None:
    """S-24; bad input: `date_not_found`."""
    found = await refusal(tmp_path, [ANNA], [BO])
    assert (found.code, found.stage) == ("date_not_found", "layout")


@pytest.mark.parametrize("pictures", [[], [[]], [[[HEADING]]], [[[HEADING], ["Inga pass"]], [["09:41"]]]])
async def test_a_session_in_which_no_shift_was_read_fails_and_clears_no_day(
    tmp_path: Path, pictures: list[Any]
) -> None:
    """S-24; bad input: `ocr_empty`."""
    found = await refusal(tmp_path, *pictures)
    assert (found.code, found.stage) == ("ocr_empty", "layout")


async def test_a_shift_on_several_pictures_is_one(tmp_path: Path) -> None:
    """S-25: with the company words of the settings."""
    again = ("09:02–12:00", "Anna Lindberg GmbH", "Gatan 5", "Askim")  # noqa: RUF001
    found = await written(tmp_path, [[HEADING], ANNA], [again, BO])
    assert [entry["title"] for entry in found["entries"]] == ["Anna Lindberg GmbH", "Bo Ek"]
    within = ("10:00–11:00", "Lindberg GmbH A", "Askim")  # noqa: RUF001
    for at, picture in enumerate([[[HEADING], ANNA], [within]]):
        (tmp_path / f"{at}.png").write_text(json.dumps(picture))
    for company, count in ((["ab"], 2), (["gmbh"], 1)):
        ocr = Ocr(Folder(tmp_path), Written(), company_words=company)
        assert len((await ocr.extract(SESSION, images(["0.png", "1.png"])))["entries"]) == count


async def test_which_picture_it_was_is_told(tmp_path: Path) -> None:
    """Bad input: `image_unreadable`, `image_not_found` and `image_key_invalid` end the session. S-23."""
    (tmp_path / "a.png").write_text(json.dumps([[HEADING], ANNA]))
    (tmp_path / "b.png").write_bytes(b"damaged")
    ocr = Ocr(Folder(tmp_path), Written())
    for key, code in (
        ("b.png", "image_unreadable"),
        ("c.png", "image_not_found"),
        ("../c", "image_key_invalid"),
    ):
        with pytest.raises(Refusal, match=code) as caught:
            await ocr.extract(SESSION, images(["a.png", key]))
        assert repr(key) in caught.value.sentence
        assert caught.value.stage == "ocr"


async def test_what_was_read_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S-53: ocr.completed and layout.shifts_detected, with the session and its user."""
    with caplog.at_level(logging.INFO, "holdfast.schedules"):
        await written(tmp_path, [[HEADING], ANNA], [ANNA, BO])
    done, found = (vars(record) for record in caplog.records)
    known = {"session_id": str(SESSION.id), "correlation_id": str(SESSION.id), "user_id": 42}
    assert done.items() >= {"event": "ocr.completed", "images": 2, "boxes": 13, **known}.items()
    assert found.items() >= {"event": "layout.shifts_detected", "seen": 3, "shifts": 2, **known}.items()
    assert found["schedule_date"] == "2026-03-02"


# The real thing.

DRAWINGS = {
    "light": Drawing(),
    "dark": Drawing(dark=True),
    "small": Drawing(scale=1),
    "sharp": Drawing(scale=3),
    "english": Drawing(heading="Monday, March 2"),
    "columns": Drawing(columns=2, width=900, height=420),
    "jpeg": Drawing(format="jpeg"),
    "top": Drawing(height=420),
    "bottom": Drawing(height=420, scroll=220),
    "cut": Drawing(height=262),
    "empty": Drawing(cards=()),
    "tuesday": Drawing(heading="Tisdag 3 mars 2026"),
}
EXPECTED = [
    ("08:00", "10:30", "Marie Sjoberg", "Valebergsvagen", "316", "427 38", "Billdal", "HOME_VISIT"),
    ("11:00", "13:00", "Askims Skola", "Askims Kyrkvag", "12", "436 51", "Askim", "SCHOOL"),
    ("14:00", "16:15", "Kontor Molndal", "Kyrkogatan", "3", "431 37", "Molndal", "OFFICE"),
    ("22:30", "01:00", "Bo Berg", "Storgatan", "5", "", "Kallered", "HOME_VISIT"),
]


class Remembering:
    """The program, asked once for each picture of this module: it takes a second."""

    def __init__(self, program: Tesseract) -> None:
        self.program = program
        self.known: dict[bytes, list[Box]] = {}

    async def read(self, image: bytes) -> list[Box]:
        if image not in self.known:
            self.known[image] = await self.program.read(image)
        return self.known[image]


@pytest.fixture(scope="module")
def tesseract() -> Tesseract:
    try:
        return Tesseract.found()
    except SettingsError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def real(tesseract: Tesseract) -> Remembering:
    return Remembering(tesseract)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all the pictures."""
    folder = tmp_path_factory.mktemp("gallery")
    for name, picture in drawn(DRAWINGS).items():
        (folder / f"{name}.png").write_bytes(picture)
    return folder


async def read(real: Remembering, gallery: Path, *names: str) -> Mapping[str, Any]:
    return await Ocr(Folder(gallery), real).extract(SESSION, images([f"{name}.png" for name in names]))


def meaning(day: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The shifts as they are compared with those of yesterday: the reader may miss a ring above an a."""
    return [
        (
            shift.start,
            shift.end,
            shift.customer_name,
            shift.street,
            shift.street_number,
            shift.postal_code,
            shift.city,
            shift.shift_type,
        )
        for shift in shifts(canonical(day))
    ]


PAIRS = [["top", "bottom"], ["cut", "bottom"], ["bottom", "cut"]]


@pytest.mark.parametrize("names", [[name] for name in list(DRAWINGS)[:7]] + PAIRS, ids="+".join)
async def test_a_drawn_schedule_is_read(real: Remembering, gallery: Path, names: list[str]) -> None:
    """S-23, S-24, S-25: light and dark, of several sizes, in columns, scrolled, and with a card cut off."""
    day = await read(real, gallery, *names)
    assert day["schedule_date"] == "2026-03-02"
    assert meaning(day) == EXPECTED


async def test_folder_and_s3_stores_give_the_same_day(
    real: Remembering, gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-23: the same hash, from the picture to the canonical payload."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    names = ["top.png", "bottom.png"]
    local = await Ocr(Folder(gallery), real).extract(SESSION, images(names))
    with serving() as server:
        server.objects = {name: await Folder(gallery).get(name) for name in names}
        remote = await Ocr(open_store(server.url), real).extract(SESSION, images(names))
        assert server.asked == names
    assert payload_hash(canonical(local)) == payload_hash(canonical(remote))
    assert len(canonical(remote)["entries"]) == len(CARDS)


async def test_drawn_pictures_that_tell_no_day_fail(real: Remembering, gallery: Path) -> None:
    """S-24; bad input: `ocr_empty`, `date_not_found`, `dates_disagree`."""
    for names, code in (
        (["empty"], "ocr_empty"),
        (["bottom"], "date_not_found"),
        (["light", "tuesday"], "dates_dis"),
    ):
        with pytest.raises(Refusal, match=code):
            await read(real, gallery, *names)
