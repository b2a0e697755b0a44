"""Brings what was read into the one spelling that is hashed and kept. Pure: no clock, no file, no database.

Two readings of one day that differ only in spelling (a time, blanks, case, the order of lines) are equal
afterwards, and doing it twice changes nothing. All rules are Unicode's own: no locale has a say.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from datetime import date
from typing import cast

from holdfast.apps.schedules.values import Entry, Json, Payload, Refusal

MOST_ENTRIES = 200  # of one day: pairing old with new takes the square of it
MOST_TEXT = 500  # characters of a title, a location or an address
MOST_QUOTED = 40  # characters of a wrong value that an error repeats
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{1,2})[:. ]([0-9]{1,2})")


def canonical(payload: Json) -> Payload:
    """The day in its one spelling; `Refusal` says which value of which entry is none. Other keys are dropped.

    >>> line = {"start": "9.0", "end": "18 00", "title": " Marie  Sjöberg ", "location": "BILLDAL", "x": 1}
    >>> canonical({"schedule_date": "2026-03-02", "entries": [line]})["entries"]
    [{'start': '09:00', 'end': '18:00', 'title': 'Marie Sjöberg', 'location': 'Billdal'}]
    """
    if not isinstance(payload, dict):
        raise _refusal("payload_not_object", f"the day is {_shown(payload)}, not an object")
    given = cast("dict[str, Json]", payload)
    day = _day(given.get("schedule_date"))
    entries = given.get("entries")
    if not isinstance(entries, list):
        raise _refusal("entries_invalid", f"entries is {_shown(entries)}, not a list")
    if len(cast("list[Json]", entries)) > MOST_ENTRIES:
        raise _refusal("entries_invalid", f"entries has more than {MOST_ENTRIES} lines for one day")
    found = [_entry(number, line) for number, line in enumerate(cast("list[Json]", entries), 1)]
    return {"schedule_date": day.isoformat(), "entries": sorted(found, key=_order)}


def day_of(payload: Payload) -> date:
    """The day that a canonical payload is about."""
    return date.fromisoformat(payload["schedule_date"])


def canonical_json(value: Json) -> str:
    """The text that is hashed: sorted keys, no blanks, and letters as they are.

    >>> canonical_json({"b": "ö", "a": [1, None]})
    '{"a":[1,null],"b":"ö"}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str) -> str:
    """SHA-256 of a text in UTF-8, as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def payload_hash(payload: Payload) -> str:
    """What tells one version of a day from the next."""
    return digest(canonical_json(payload))


def lock_key(user_id: int, day: date) -> int:
    """The advisory lock under which a user's day is written: 64 bits with sign, as PostgreSQL wants them.

    >>> lock_key(42, date(2026, 3, 2))
    -6751161748863970986
    """
    hashed = hashlib.sha256(f"{user_id}:{day.isoformat()}".encode()).digest()
    return int.from_bytes(hashed[:8], "big", signed=True)


def collapsed(text: str) -> str:
    """A text with single blanks between its words, in Unicode's composed form.

    Controls and halves of surrogate pairs are dropped: PostgreSQL cannot store NUL or half a character, and
    one of them in a title must not make a whole day unreadable.

    >>> collapsed(" Marie\\t Sj\\x00o\\u0308berg ")
    'Marie Sjöberg'
    """
    if not text.isprintable():  # most are, and then every sign stays
        kept = (
            " " if sign.isspace() else "" if unicodedata.category(sign) in ("Cc", "Cs") else sign
            for sign in text
        )
        text = "".join(kept)
    return unicodedata.normalize("NFC", " ".join(text.split()))


def title_case(text: str) -> str:
    """Small letters with a capital after each blank and hyphen, and nowhere else.

    A letter whose capital is not one letter that leads back to it (ß, ŉ) stays small, or doing it again would
    change the text again.

    >>> title_case("VÄSTRA frölunda-NORD o'hara ßen")
    "Västra Frölunda-Nord O'hara ßen"
    """
    small = text.lower()
    starts = (before in " -" for before in " " + small)
    return "".join(_capital(sign) if start else sign for sign, start in zip(small, starts, strict=False))


def _capital(sign: str) -> str:
    capital = sign.title()
    return capital if len(capital) == 1 and capital.lower() == sign else sign


def _place(text: str) -> str:
    """A location or an address: its case tells nothing. Composed again: case can take a letter apart."""
    return unicodedata.normalize("NFC", title_case(collapsed(text)))


def _day(value: Json) -> date:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass  # no such day in the calendar
    raise _refusal("schedule_date_invalid", f"schedule_date is {_shown(value)}, not a date like 2026-03-02")


def _entry(number: int, line: Json) -> Entry:
    if not isinstance(line, dict):
        raise _refusal("entries_invalid", f"entry {number} is {_shown(line)}, not an object")
    given = cast("dict[str, Json]", line)
    entry: Entry = {
        "start": _time(number, "start", given),
        "end": _time(number, "end", given),
        "title": _text(number, "title", given),
        "location": _place(_text(number, "location", given)),
    }
    address = given.get("address")
    if address is not None and not isinstance(address, str):
        raise _refusal("field_blank", f"the address of entry {number} is {_shown(address)}, not a text")
    if address and not _blank(text := collapsed(address)):
        entry["address"] = _place(_short(number, "address", text))
    return entry


def _time(number: int, field: str, line: dict[str, Json]) -> str:
    value = line.get(field)
    if isinstance(value, str) and (found := _TIME.fullmatch(collapsed(value))):
        hour, minute = int(found[1]), int(found[2])
        if hour < 24 and minute < 60:
            return f"{hour:02}:{minute:02}"
    raise _refusal("time_invalid", f"the {field} of entry {number} is {_shown(value)}, not a time like 09:00")


def _text(number: int, field: str, line: dict[str, Json]) -> str:
    value = line.get(field)
    text = collapsed(value) if isinstance(value, str) else ""
    if _blank(text):
        what = "blank" if isinstance(value, str) else f"{_shown(value)}, not a text"
        raise _refusal("field_blank", f"the {field} of entry {number} is {what}")
    return _short(number, field, text)


def _short(number: int, field: str, text: str) -> str:
    if len(text) > MOST_TEXT:
        raise _refusal(
            "field_too_long", f"the {field} of entry {number} has more than {MOST_TEXT} characters"
        )
    return text


def _blank(text: str) -> bool:
    """Whether there is nothing to see; marks of zero width are nothing."""
    return all(sign == " " or unicodedata.category(sign) == "Cf" for sign in text)


def _order(entry: Entry) -> tuple[str, ...]:
    """By time, title and location; the rest tells apart what is equal there, or its order would be chance."""
    title, location = entry["title"], entry["location"]
    folded = (title.casefold(), location.casefold())
    return (entry["start"], entry["end"], *folded, title, location, entry.get("address", ""))


def _shown(value: Json) -> str:
    """A wrong value as an error may repeat it: short, and in characters that can be stored."""
    match value:
        case None:
            return "missing"
        case str():
            return ascii(value) if len(value) <= MOST_QUOTED else f"{value[:MOST_QUOTED]!a}…"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "no JSON"


def _refusal(code: str, sentence: str) -> Refusal:
    return Refusal(code, sentence, "layout")
