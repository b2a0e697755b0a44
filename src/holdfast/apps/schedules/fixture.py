"""The extractors `fixture` and `sample`: a day that lies ready in a JSON file, for trials and for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from holdfast.apps.schedules.values import Image, Json, Refusal, Session

SAMPLE = Path(__file__).with_name("sample_day.json")


class Fixture:
    """Answers with the day of a file, or of a folder's file for the session, for its user or for everybody.

    The file is read anew each time, so that a changed one counts at once.
    """

    needs_images = False

    def __init__(self, path: Path) -> None:
        self.path = path

    async def extract(self, session: Session, images: Sequence[Image]) -> Json:  # noqa: ARG002 (the protocol)
        """The object in the file; what it says is judged later, where every extractor's answer is."""
        return await asyncio.to_thread(self._read, session)

    def _read(self, session: Session) -> Json:
        for path in self._candidates(session):
            try:
                return _parsed(path.read_bytes(), path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                why = error.strerror or type(error).__name__
                raise Refusal("fixture_missing", f"{path} cannot be read: {why}") from None
        raise Refusal("fixture_missing", self._nowhere(session))

    def _candidates(self, session: Session) -> list[Path]:
        if not self.path.is_dir():
            return [self.path]
        return [self.path / f"{name}.json" for name in (session.id, session.user_id, "default")]

    def _nowhere(self, session: Session) -> str:
        if not self.path.is_dir():
            return f"there is no file {self.path}"
        return f"{self.path} has none of {session.id}.json, {session.user_id}.json and default.json"


def _parsed(text: bytes, path: Path) -> Json:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal("payload_not_json", f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Refusal("payload_not_object", f"{path} is JSON, but no object")
    return found  # pyright: ignore[reportUnknownVariableType]


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")
