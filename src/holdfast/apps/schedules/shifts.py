"""Reads the meaning out of a canonical day: who is visited, where, and what kind of work it is.

A fingerprint stands for a customer or a place whatever the reader of a picture made of its spelling. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from holdfast.apps.schedules.canonical import canonical_json, collapsed, digest, title_case
from holdfast.apps.schedules.values import Entry, Json, Payload, Refusal, Shift

COMPANY_WORDS: tuple[str, ...] = ("ab", "hb", "stadservice", "stadtjanst", "stadning")

# Three digits, two digits; a country may stand before them.
_POSTAL_CODE = re.compile(r"(?:\bse?-)?(?<![0-9])([0-9]{3}) ?([0-9]{2})(?![0-9])", re.IGNORECASE)
# The words from which `_type` reads a type, with their endings, in a clean name. `hem` also begins and ends
# surnames (Hemström, Lundhem), so it counts only as a whole word or in a known compound.
_TYPE_WORDS = re.compile(
    r"-?(?:skola\w*|kontor\w*|\bhem(?:ma|met)?s?\b|\bhem(?:besok|hjalp|stad|tjanst|vard)\w*)-?", re.IGNORECASE
)
_LETTER = r"[^\W\d_]"
_BETWEEN_LETTERS = re.compile(rf"(?<={_LETTER})[01](?={_LETTER})")
_HYPHENS = {ord(sign): "-" for sign in "‐‒–—―−"}  # noqa: RUF001 that they look alike is the point
_APOSTROPHES = {ord(sign): "'" for sign in "’‘ʼ´`"}  # noqa: RUF001
_SEPARATORS = {ord(sign): " " for sign in ".,;/\\()[]{}&+_\N{FRACTION SLASH}"}  # words stand on both sides
_SIGNS = {ord("|"): "l", ord("I"): "i"} | _HYPHENS | _APOSTROPHES | _SEPARATORS
_LOOKALIKES = str.maketrans({"0": "o", "1": "l", "i": "l", "|": "l"})


class Address(NamedTuple):
    """The parts of an address; a part that was not found is empty."""

    street: str = ""
    number: str = ""
    postal_code: str = ""
    postal_area: str = ""
    city: str = ""


def shifts(payload: Payload, company_words: Sequence[str] = COMPANY_WORDS) -> tuple[Shift, ...]:
    """What the entries of a canonical day mean, in the order of `sort_key`."""
    words = _folded_words(tuple(company_words))
    return tuple(sorted((_shift(entry, words) for entry in payload["entries"]), key=sort_key))


def sort_key(shift: Shift) -> tuple[str, ...]:
    """By time, then customer, then place; the rest makes it total, so that only equal shifts tie."""
    return (
        shift.start,
        shift.end,
        shift.customer_name,
        shift.city,
        shift.street,
        shift.street_number,
        shift.postal_code,
        shift.postal_area,
        shift.shift_type,
        shift.customer_fingerprint,
        shift.location_fingerprint,
    )


def to_json(shift: Shift) -> dict[str, str]:
    """A shift as a snapshot or an event keeps it."""
    return msgspec.to_builtins(shift)


def from_json(value: Json) -> Shift:
    """A shift out of a snapshot or an event; further keys are no matter, a missing one is a `Refusal`."""
    try:
        return msgspec.convert(value, Shift)
    except msgspec.ValidationError as error:
        raise Refusal("shift_invalid", f"a stored value is no shift: {error}", "diff") from None


def value_text(shift: Shift | None) -> str:
    """The text of a value that is hashed; that of no value is `null`."""
    return canonical_json(None if shift is None else to_json(shift))


def value_hash(shift: Shift | None, occurrence: int = 0) -> str:
    """What tells values apart; an equal event that happens again has the next occurrence.

    >>> value_hash(None)[:8], value_hash(None, 1)[:8]
    ('74234e98', '903b6741')
    """
    return digest(value_text(shift) + (f"#{occurrence}" if occurrence else ""))


def location_fingerprint(street: str, number: str, area_or_city: str) -> str:
    """A place, whatever a reader of pictures took for o, 0, i, l, 1 or a bar in its spelling.

    >>> location_fingerprint("Valebergsvägen", "3I6", "Bi11dal")[:8]
    '209c0128'
    """
    return digest("|".join(_alike(part) for part in (street, number, area_or_city)))


def customer_fingerprint(title: str, company_words: Sequence[str] = COMPANY_WORDS) -> str:
    """A customer, by the longest word and the first letters of the others, in whatever order they stand.

    >>> customer_fingerprint("Marie Sjöberg Städservice") == customer_fingerprint("Sjöberg M.")
    True
    """
    return _customer(clean(title), _folded_words(tuple(company_words)))


def clean(text: str, *, accents: bool = False) -> str:
    """A text without what readers of pictures get wrong: no accents, no other signs, one case.

    With `accents` they stay, for people to read; what is compared or hashed has none.

    >>> clean("|ars  SJ0BERG-Öst (kontor) - O'Hara")
    "Lars Sjoberg-Ost Kontor O'hara"
    """
    plain = collapsed(text).translate(_SIGNS)
    if not accents:
        plain = without_accents(plain).translate(_SIGNS)  # accents may hide signs
    kept = "".join(sign for sign in plain if sign.isalnum() or sign in " -'")
    kept = _BETWEEN_LETTERS.sub(lambda found: "o" if found[0] == "0" else "i", kept)
    words = (word for word in kept.split() if any(sign.isalnum() for sign in word))
    return title_case(" ".join(words))


def without_accents(text: str) -> str:
    """The letters without what stands above or below them; ligatures and wide forms as plain ones.

    >>> without_accents("Älvängen, São ﬁve")
    'Alvangen, Sao five'
    """
    if text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(sign for sign in apart if not unicodedata.combining(sign)))


def address_of(text: str, hint: str = "") -> Address:
    """The parts of an address; `hint` is the city, if it is known from elsewhere.

    >>> address_of("Kyrkogatan 3 43137 MOLNDAL")
    Address(street='Kyrkogatan', number='3', postal_code='431 37', postal_area='Molndal', city='Molndal')
    """
    code, before, after = _split(text)
    words = clean(before).split()
    area, city = clean(after), clean(hint)
    at = next((place for place in reversed(range(len(words))) if _has_digit(words[place])), None)
    number = "" if at is None else words[at].upper()
    trailing = [] if at is None else words[at + 1 :]
    city = city or area or " ".join(trailing[-2:])
    if code and not area:
        area = city
    return Address(" ".join(words[:at]), number, code, area, city)


def _split(text: str) -> tuple[str, str, str]:
    """The postal code, what stands before it, and what after it: the last one, if several numbers look so."""
    plain = without_accents(collapsed(text))
    found = list(_POSTAL_CODE.finditer(plain))
    if not found:
        return "", plain, ""
    last = found[-1]
    return f"{last[1]} {last[2]}", plain[: last.start()], plain[last.end() :]


def _shift(entry: Entry, company_words: frozenset[str]) -> Shift:
    address = entry.get("address", "")
    name = clean(entry["title"])
    place = address_of(address, entry["location"])
    return Shift(
        start=entry["start"],
        end=entry["end"],
        customer_name=_without_company(name, company_words),
        customer_fingerprint=_customer(name, company_words),
        street=place.street,
        street_number=place.number,
        postal_code=place.postal_code,
        postal_area=place.postal_area,
        city=place.city,
        location_fingerprint=location_fingerprint(
            place.street, place.number, place.postal_area or place.city
        ),
        shift_type=_type(f"{entry['title']} {address} {entry['location']}", place),
    )


def _type(text: str, place: Address) -> str:
    folded = without_accents(text).lower()
    if "skola" in folded:
        return "SCHOOL"
    if "kontor" in folded:
        return "OFFICE"
    if "hem" in folded or (place.street and place.number):
        return "HOME_VISIT"
    return "UNKNOWN"


def name_without_type(shift: Shift) -> str:
    """Return the customer's name without the words of a type, in lower case.

    `Askims Skola` and `Askimskontoret` are both `askims`.
    """
    return " ".join(_TYPE_WORDS.sub(" ", shift.customer_name).lower().split())


def _without_company(name: str, company_words: frozenset[str]) -> str:
    """A cleaned name without the words of its company, unless there are no others."""
    return " ".join(word for word in name.split() if word.lower() not in company_words) or name


def _customer(name: str, company_words: frozenset[str]) -> str:
    words = [word for word in name.lower().split() if word not in company_words]
    parts = " ".join(words).replace("'", "").replace("-", " ").split()
    tokens = [part for part in parts if part not in company_words]
    if not tokens:
        return digest("")
    surname = max(tokens, key=len)  # the first of the longest
    tokens.remove(surname)
    return digest(f"{surname}|{''.join(sorted(token[0] for token in tokens))}")


def _alike(part: str) -> str:
    folded = without_accents(part).lower().translate(_LOOKALIKES)
    return "".join(sign for sign in folded if sign.isalnum())


@lru_cache(maxsize=16)  # a program has one set of them, and asks for it with every day
def _folded_words(words: tuple[str, ...]) -> frozenset[str]:
    return frozenset(part for word in words for part in clean(word).lower().split())


def _has_digit(word: str) -> bool:
    return any(sign.isdigit() for sign in word)
