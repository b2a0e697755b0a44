"""Gives changes the accents that `clean` has removed, for people to read. Pure.

Snapshots and events hold clean texts, because their hashes must not depend on accents. The versions hold the
texts as they were extracted, so the spelling is looked up there by the clean text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from holdfast.apps.schedules.canonical import canonical
from holdfast.apps.schedules.shifts import clean, shifts
from holdfast.apps.schedules.values import Change, Event, Json, Refusal, Shift

Changed = TypeVar("Changed", Change, Event)
Spellings = Mapping[tuple[str, str], str]  # by field and clean text
_PLACE = ("street", "postal_area", "city")


def with_accents(
    changes: Sequence[Changed], before: Json, after: Json, company_words: Sequence[str]
) -> tuple[Changed, ...]:
    """Return the changes with names and places as the payloads before and after them spell them.

    Each side is looked up in its own payload first. A text that neither has stays clean.
    """
    if not changes:
        return ()
    old, new = (_spellings(payload, company_words) for payload in (before, after))
    olds, news = {**new, **old}, {**old, **new}
    return tuple(replace(one, old=_spelled(one.old, olds), new=_spelled(one.new, news)) for one in changes)


def _spelled(shift: Shift | None, spellings: Spellings) -> Shift | None:
    if shift is None:
        return None
    texts = {name: getattr(shift, name) for name in ("customer_name", *_PLACE)}
    return msgspec.structs.replace(
        shift, **{name: spellings.get((name, text), text) for name, text in texts.items()}
    )


def _spellings(payload: Json, company_words: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return how a payload spells its clean texts; of two spellings of one text, that with accents."""
    try:
        day = canonical(payload)
    except Refusal:  # no version yet, or one that another program wrote
        return {}
    found: dict[tuple[str, str], str] = {}
    for entry in day["entries"]:
        (shift,) = shifts({**day, "entries": [entry]}, company_words)
        name = _words(entry["title"])
        place = _words(entry.get("address", "")) | _words(entry["location"])
        for field, words in (("customer_name", name), *((part, place) for part in _PLACE)):
            text: str = getattr(shift, field)
            spelled = " ".join(words.get(word, word) for word in text.split())
            if spelled != text or (field, text) not in found:
                found[field, text] = spelled
    return found


def _words(text: str) -> dict[str, str]:
    """Return the words of a text by their clean form; none where a word becomes several."""
    plain, spelled = clean(text).split(), unicodedata.normalize("NFC", clean(text, accents=True)).split()
    return dict(zip(plain, spelled, strict=True)) if len(plain) == len(spelled) else {}
