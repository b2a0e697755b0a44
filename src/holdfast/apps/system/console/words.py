"""The words of the console: a text becomes tokens, each with its place. Pure. Never guesses.

Comments are refused and not skipped: what an administrator reads is then what is done. Only the letters of
ASCII change their case, so that no other letter can be taken for one of a keyword's.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from holdfast.errors import SyntaxRefused

Kind = Literal["word", "number", "string", "quoted", "sign", "end"]

LONGEST = 20_000  # characters of a statement: a person types it, and every value of it is a parameter
SHOWN = 40  # characters of what was found, in a message
WIDTH = 100  # characters of the line over the caret

# Nothing is tried twice: what was taken is not given back, so a text costs what its length says.
_TOKEN = re.compile(
    r"""(?P<blank>\s+)
    |(?P<comment>--|/\*)
    |(?P<number>[+-]?(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?![\w$-]))
    |(?P<word>\w[\w$]*+(?:-[\w$]++)*+)
    |(?P<string>'(?:[^']++|'')*+')
    |(?P<quoted>"(?:[^"]++|"")*+")
    |(?P<open>['"])
    |(?P<sign>->>|<>|!=|<=|>=|[(),;*=<>.])
    |(?P<strange>.)""",
    re.VERBOSE | re.DOTALL,
)
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number, a text in quotes, a sign, or the end; `start` counts characters from 0.

    `text` is how it was written, `value` what it means: without quotes, words as they are.
    """

    kind: Kind
    text: str
    value: str
    start: int

    @property
    def keyword(self) -> str:
        """The word in capitals, or the sign; empty for what is in quotes, which is never a keyword."""
        if self.kind == "word":
            return self.text.upper() if self.text.isascii() else ""
        return self.text if self.kind == "sign" else ""


class Place(NamedTuple):
    """Where in a text something is; both count from 1."""

    line: int
    column: int


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a statement, one after the other, the last one being the end; or `SyntaxRefused`.

    >>> [token.text for token in tokens("KILL JOB FL-4fK2mZ0q;")]
    ['KILL', 'JOB', 'FL-4fK2mZ0q', ';', '']
    """
    if len(text) > LONGEST:
        told = f"the statement is too long: {len(text):,} characters, at most {LONGEST:,} are read"
        raise refusal(text, LONGEST, told)
    if unstorable := _UNSTORABLE.search(text):
        told = f"found the character U+{ord(unstorable[0]):04X}, which no text of the database has"
        raise refusal(text, unstorable.start(), told)
    for found in _TOKEN.finditer(text):
        match found.lastgroup:
            case "blank":
                continue
            case "word" | "number" | "string" | "quoted" | "sign" as kind:
                yield Token(kind, found[0], _value(kind, found[0]), found.start())
            case kind:
                raise _unreadable(text, found.start(), str(kind), found[0])
    yield Token("end", "", "", len(text.rstrip()))


def _value(kind: Kind, text: str) -> str:
    if kind in ("string", "quoted"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


def _unreadable(text: str, start: int, kind: str, found: str) -> SyntaxRefused:
    match kind:
        case "open":
            told = f"the quote {found} that begins here has no end"
            return refusal(text, start, told, (f"{found}…{found}, with {found * 2} for one inside",))
        case "comment":
            return refusal(text, start, f"found a comment ({found}): there are none here, leave it out")
        case _:
            return refusal(text, start, f"found {shown(found)}, which is no part of any statement here")


def folded(name: str) -> str:
    """A name that is not in quotes, as it is meant: in small letters.

    >>> folded("System"), folded("ÄB")
    ('system', 'Äb')
    """
    return name.translate(_LOWER)


# -- refusals --------------------------------------------------------------------------------------------


def refusal(text: str, start: int, message: str, allowed: Sequence[str] = ()) -> SyntaxRefused:
    """An error about the character at `start`, which counts from 0; `allowed`: the forms that fit there."""
    line, column = place(text, start)
    if allowed:
        message = f"{message}; allowed here: {listed(allowed)}"
    return SyntaxRefused(
        message=message, position=start + 1, line=line, column=column, allowed=tuple(allowed)
    )


def listed(allowed: Sequence[str]) -> str:
    """Forms in one line."""
    return " | ".join(allowed)


def shown(text: str) -> str:
    """What was found, in quotes and not too long; what would move a cursor is shown and not obeyed.

    >>> shown("DROP"), shown("a" * 50) == "'" + "a" * 40 + "…'"
    ("'DROP'", True)
    """
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


def place(text: str, start: int) -> Place:
    """The line and the column of a character, both from 1.

    >>> place("SELECT *\\nFROM x", 14)
    Place(line=2, column=6)
    """
    before = text[:start]
    return Place(before.count("\n") + 1, start - (before.rfind("\n") + 1) + 1)


def caret(text: str, position: int) -> str:
    """The line that a refusal is about, and below it a caret; `position` counts from 1, as the error's does.

    A long line is cut around the place. What would move the cursor is shown and not obeyed.

    >>> print(caret("SHOW JOB", 6))
    SHOW JOB
         ^
    """
    start = min(max(position - 1, 0), len(text))
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start)
    line = text[first : last if last >= 0 else len(text)]
    column = start - first
    cut = max(0, column - WIDTH // 2)
    head = "…" if cut else ""
    tail = "…" if len(line) > cut + WIDTH else ""
    before = head + "".join(map(_visible, line[cut:column]))
    after = "".join(map(_visible, line[column : cut + WIDTH])) + tail
    return f"{before}{after}\n{' ' * sum(map(_cells, before))}^"


def _visible(character: str) -> str:
    if character == "\t":
        return " "
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode()


def _cells(character: str) -> int:
    """How many places of a terminal's line a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


# -- typing a statement ----------------------------------------------------------------------------------


def unfinished(text: str) -> str | None:
    """What a statement that is typed line by line waits for: a closing quote, the semicolon, or nothing.

    What cannot be read waits for nothing: it is to be refused at once.

    >>> unfinished("SHOW JOBS"), unfinished("BACKUP SCHEMA s TO 'a;"), unfinished("SHOW JOBS;")
    (';', "'", None)
    """
    if len(text) > LONGEST:
        return None
    for found in _TOKEN.finditer(text):
        match found.lastgroup:
            case "open":
                return found[0]
            case "comment" | "strange":
                return None
            case "sign" if found[0] == ";":
                return None
            case _:
                pass
    return ";"
