"""Reads a `.env` file: KEY=VALUE lines. Uses nothing. Never expands variables, never shows a value."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(
    r"""
    (?:export\s+)? (?P<key>[A-Za-z_][A-Za-z0-9_]*) \s*=\s*
    (?: '(?P<literal>[^']*)'                   # as it stands
      | "(?P<quoted>(?:[^"\\]|\\.)*)"          # with \n \t \" \\
      | (?!['"])(?P<bare>(?:[^\s\#]|(?<=\S)\#|[ \t]+(?=[^\s\#]))*)   # up to a space and #
    ) (?:\s+\#.*|\s*)
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


def read_dotenv(path: Path) -> tuple[dict[str, str], list[str]]:
    """The variables of the file, and a sentence for every line that is wrong; a missing file is empty."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}, []
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        return {}, [f"{path} cannot be read: {reason}"]
    variables: dict[str, str] = {}
    problems: list[str] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if match := _LINE.fullmatch(stripped):
            variables[match["key"]] = _value(match)
        else:
            problems.append(f"{path} line {number} is not KEY=VALUE (quotes around a value must be closed)")
    return variables, problems


def _value(match: re.Match[str]) -> str:
    if match["quoted"] is not None:
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match["quoted"])
    return match["literal"] if match["literal"] is not None else match["bare"]
