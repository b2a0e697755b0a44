"""The extractor that reads files, and how an extractor is chosen by its name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from holdfast.apps.schedules import reader
from holdfast.apps.schedules.canonical import canonical
from holdfast.apps.schedules.extractors import EXTRACTORS, make
from holdfast.apps.schedules.fixture import SAMPLE, Fixture
from holdfast.apps.schedules.noise import Noise
from holdfast.apps.schedules.ocr import Ocr
from holdfast.apps.schedules.values import Image, Refusal, Session
from holdfast.db.settings import Settings
from holdfast.errors import SettingsError

SESSION = Session(
    id=UUID("00000000-0000-4000-8000-000000000001"), user_id=42, created_at=datetime(2026, 3, 1, tzinfo=UTC)
)
DAY: dict[str, Any] = {"schedule_date": "2026-03-02", "entries": []}


def put(path: Path, title: str) -> None:
    path.write_text(json.dumps(DAY | {"title": title}))


async def read(path: Path, session: Session = SESSION) -> Any:
    return await Fixture(path).extract(session, [])


async def refusal(path: Path) -> str:
    with pytest.raises(Refusal) as caught:
        await read(path)
    assert caught.value.stage == "ocr"
    return caught.value.code


async def test_the_sample_day_is_read_by_its_name() -> None:
    """It is a day without fault."""
    found = await make(Settings(schedules_extractor="sample")).extract(SESSION, [])
    assert found == json.loads(SAMPLE.read_text())
    assert len(canonical(found)["entries"]) == 3


async def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    """S-20."""
    path = tmp_path / "day.json"
    put(path, "old")
    fixture = Fixture(path)
    assert (await fixture.extract(SESSION, []))["title"] == "old"
    put(path, "new")
    assert (await fixture.extract(SESSION, []))["title"] == "new"


async def test_a_folder_is_asked_for_the_session_then_its_user_then_everybody(tmp_path: Path) -> None:
    """S-20: the path may be a folder."""
    put(tmp_path / "default.json", "everybody")
    assert (await read(tmp_path))["title"] == "everybody"
    put(tmp_path / "42.json", "user")
    assert (await read(tmp_path))["title"] == "user"
    put(tmp_path / f"{SESSION.id}.json", "session")
    assert (await read(tmp_path))["title"] == "session"
    assert (await read(tmp_path, replace(SESSION, user_id=7)))["title"] == "session"
    other = replace(SESSION, id=UUID(int=9), user_id=7)
    assert (await read(tmp_path, other))["title"] == "everybody"


async def test_a_faulty_file_is_told_and_the_next_one_is_not_taken_instead(tmp_path: Path) -> None:
    """S-20: a day of somebody else must not stand in for a broken one."""
    put(tmp_path / "default.json", "everybody")
    (tmp_path / "42.json").write_text("{")
    assert await refusal(tmp_path) == "payload_not_json"


@pytest.mark.parametrize("name", ["none.json", "no/such/folder.json", "file.json/below.json", "empty"])
async def test_a_missing_file_fails_as_fixture_missing(tmp_path: Path, name: str) -> None:
    """Bad input, S-20: fixture file missing."""
    (tmp_path / "file.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    assert await refusal(tmp_path / name) == "fixture_missing"


async def test_a_file_that_cannot_be_opened_fails_as_fixture_missing(tmp_path: Path) -> None:
    """Bad input, S-20: here a link that leads to itself, which stops root, too."""
    path = tmp_path / "day.json"
    path.symlink_to(path)
    assert await refusal(path) == "fixture_missing"


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"noon", b"\xff\xfe\xff", b'{"a": NaN}', b'{"a": 1} 2', b"[" * 100_000, b"9" * 5000],
    ids=["empty", "cut", "word", "bytes", "nan", "more", "deep", "digits"],
)
async def test_what_is_no_json_fails_as_payload_not_json(tmp_path: Path, text: bytes) -> None:
    """Bad input, S-20: no JSON."""
    path = tmp_path / "day.json"
    path.write_bytes(text)
    assert await refusal(path) == "payload_not_json"


@pytest.mark.parametrize("text", ["[]", "null", "1", '"2026-03-02"', "true"])
async def test_what_is_no_object_fails_as_payload_not_object(tmp_path: Path, text: str) -> None:
    """Bad input, S-20: no object."""
    path = tmp_path / "day.json"
    path.write_text(text)
    assert await refusal(path) == "payload_not_object"


def test_the_settings_choose_an_extractor_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-22."""
    monkeypatch.setattr(reader.Tesseract, "found", reader.Tesseract)  # it may not be on this machine
    settings = Settings(schedules_fixture_path=tmp_path, schedules_noise_seed=7)
    fixture = make(settings)
    assert isinstance(fixture, Fixture)
    assert fixture.path == tmp_path
    noise = make(replace(settings, schedules_extractor="noise"))
    assert isinstance(noise, Noise)
    assert isinstance(noise.inner, Fixture)
    assert (noise.inner.path, noise.seed) == (tmp_path, 7)
    ocr = make(
        replace(
            settings,
            schedules_extractor="ocr",
            schedules_object_store=tmp_path.as_uri(),
            schedules_company_words=("gmbh",),
        )
    )
    assert isinstance(ocr, Ocr)
    assert ocr.company_words == ("gmbh",)
    assert (fixture.needs_images, noise.needs_images, ocr.needs_images) == (False, False, True)


def test_an_unknown_name_stops_the_start_and_says_which_there_are() -> None:
    """S-22; bad input: unknown extractor."""
    with pytest.raises(SettingsError, match="'scan', and there is only fixture, noise, ocr, own, sample"):
        make(Settings(schedules_extractor="scan"), {"own": lambda settings: Fixture(SAMPLE)})


def test_ocr_without_an_object_store_stops_the_start() -> None:
    """S-23."""
    with pytest.raises(SettingsError, match="HOLDFAST_SCHEDULES_OBJECT_STORE"):
        make(Settings(schedules_extractor="ocr"))


def test_ocr_without_its_program_stops_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S-23."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="needs the program tesseract: apt-get install tesseract-ocr"):
        make(Settings(schedules_extractor="ocr", schedules_object_store=tmp_path.as_uri()))


async def test_users_register_an_extractor_of_their_own() -> None:
    """S-22: chosen by its name, made from the settings, and it goes before one of ours with that name."""

    class Own:
        needs_images = False

        def __init__(self, settings: Settings) -> None:
            self.seed = settings.schedules_noise_seed

        async def extract(self, session: Session, images: Sequence[Image]) -> Any:
            return DAY | {"seed": self.seed, "session": session.id}

    for name in ("own", "fixture"):
        found = make(Settings(schedules_extractor=name, schedules_noise_seed=5), {name: Own})
        assert await found.extract(SESSION, []) == DAY | {"seed": 5, "session": SESSION.id}
    assert sorted(EXTRACTORS) == ["fixture", "noise", "ocr", "sample"]
