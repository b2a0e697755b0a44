"""The extractor `noise`: writes a day differently and says the same, as a reader of pictures would."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

from holdfast.apps.schedules.canonical import collapsed, title_case
from holdfast.apps.schedules.values import Extractor, Image, Json, Session

TIME = re.compile(r"([0-9]{1,2})[:. ]([0-9]{1,2})")


class Noise:
    """Another extractor's day under the noise of a seed."""

    def __init__(self, inner: Extractor, seed: int) -> None:
        self.inner = inner
        self.seed = seed

    @property
    def needs_images(self) -> bool:
        """What the other extractor needs."""
        return self.inner.needs_images

    async def extract(self, session: Session, images: Sequence[Image]) -> Json:
        """The other extractor's day, written differently."""
        return noisy(await self.inner.extract(session, images), self.seed)


def noisy(payload: Json, seed: int) -> Json:
    """The same day in another spelling; a seed always gives the same one.

    What is no day, or no text, stays as it is: noise must not mend a fault, nor hide it.

    >>> noisy({"schedule_date": "2026-03-02", "entries": [{"start": "09:05", "title": "Askims skola"}]}, 5)
    {'schedule_date': '2026-03-02', 'entries': [{'start': '9:05', 'title': ' Askims  skola '}]}
    """
    if not isinstance(payload, dict):
        return payload
    day = cast("dict[str, Json]", payload)
    if not isinstance(day.get("entries"), list):
        return day
    dice = Dice(seed)
    return {**day, "entries": dice.shuffled([_entry(entry, dice) for entry in day["entries"]])}


class Dice:
    """Chance that follows from a seed, the same in every version of Python: only `random()` promises that."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 (noise, not a secret)

    def one_of(self, choices: Sequence[Any]) -> Any:
        """One of the choices."""
        return choices[int(self._random.random() * len(choices))]

    def shuffled(self, things: Sequence[Any]) -> list[Any]:
        """The things in another order."""
        left, order = list(things), list[Any]()
        while left:
            order.append(left.pop(int(self._random.random() * len(left))))
        return order


def _entry(entry: Json, dice: Dice) -> Json:
    if not isinstance(entry, dict):
        return entry
    spelled = dict(cast("dict[str, Json]", entry))
    for name, spell in SPELLINGS.items():
        if isinstance(spelled.get(name), str):
            spelled[name] = spell(spelled[name], dice)
    return spelled


def _time(text: str, dice: Dice) -> str:
    """HH:MM, HH.MM, HH MM, H:MM or HH:M; the last two where a zero can be left out."""
    found = TIME.fullmatch(text)
    if not found:
        return text
    hour, minute = map(int, found.groups())
    if hour > 23 or minute > 59:
        return text
    spellings = [f"{hour:02}{sign}{minute:02}" for sign in ":. "]
    spellings += [f"{hour}:{minute:02}", f"{hour:02}:{minute}"]
    return dice.one_of(spellings)


def _spaced(text: str, dice: Dice) -> str:
    """With spaces doubled, before or behind."""
    inside, before, behind = (dice.one_of((False, True)) for _ in range(3))
    if not text.strip():
        return text
    return " " * before + (text.replace(" ", "  ") if inside else text) + " " * behind


def _cased(text: str, dice: Dice) -> str:
    """In small letters, capitals or title case, with spaces.

    Some letters do not survive the way through capitals (ß becomes SS): then the case stays.
    """
    changed = dice.one_of((str.lower, str.upper, title_case))(text)
    same = title_case(collapsed(changed)) == title_case(collapsed(text))
    return _spaced(changed if same else text, dice)


SPELLINGS: dict[str, Callable[[str, Dice], str]] = {
    "start": _time,
    "end": _time,
    "title": _spaced,
    "location": _cased,
    "address": _cased,
}
