"""Which extractors there are, and the one that the settings choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from holdfast.apps.schedules.fixture import SAMPLE, Fixture
from holdfast.apps.schedules.noise import Noise
from holdfast.apps.schedules.values import Extractor
from holdfast.db.settings import Settings
from holdfast.errors import SettingsError

Make = Callable[[Settings], Extractor]

NAME = "HOLDFAST_SCHEDULES_EXTRACTOR"


def _sample(_: Settings) -> Extractor:
    return Fixture(SAMPLE)


def _fixture(settings: Settings) -> Fixture:
    path = settings.schedules_fixture_path
    if path is None:
        problem = f"{NAME}={settings.schedules_extractor} needs HOLDFAST_SCHEDULES_FIXTURE_PATH"
        raise SettingsError(title="some settings are wrong:", problems=[problem])
    return Fixture(path)


def _noise(settings: Settings) -> Extractor:
    return Noise(_fixture(settings), settings.schedules_noise_seed)


def _ocr(settings: Settings) -> Extractor:
    from holdfast.apps.schedules.objects import open_store
    from holdfast.apps.schedules.ocr import Ocr
    from holdfast.apps.schedules.reader import Tesseract

    url = settings.schedules_object_store
    if url is None:
        raise SettingsError(
            title="some settings are wrong:", problems=[f"{NAME}=ocr needs HOLDFAST_SCHEDULES_OBJECT_STORE"]
        )
    return Ocr(open_store(url), Tesseract.found(), company_words=settings.schedules_company_words)


EXTRACTORS: Mapping[str, Make] = MappingProxyType(
    {"sample": _sample, "fixture": _fixture, "noise": _noise, "ocr": _ocr}
)


def make(settings: Settings, own: Mapping[str, Make] = MappingProxyType({})) -> Extractor:
    """The extractor that the settings name, one of the user's `own` or one of ours.

    One of the user's own takes the place of ours if it has its name.
    """
    return chosen(settings, own)(settings)


def chosen(settings: Settings, own: Mapping[str, Make] = MappingProxyType({})) -> Make:
    """What makes that extractor: known before anything is looked for that it needs."""
    known = {**EXTRACTORS, **own}
    name = settings.schedules_extractor
    if name not in known:
        problem = f"{NAME} is {name!r}, and there is only {', '.join(sorted(known))}"
        raise SettingsError(title="some settings are wrong:", problems=[problem])
    return known[name]
