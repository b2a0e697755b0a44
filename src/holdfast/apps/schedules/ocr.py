"""The extractor `ocr`: reads a day from the pictures of its session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from holdfast.apps.schedules import layout
from holdfast.apps.schedules.dates import date_of
from holdfast.apps.schedules.layout import Box
from holdfast.apps.schedules.merge import merged
from holdfast.apps.schedules.objects import Objects
from holdfast.apps.schedules.reader import Reader
from holdfast.apps.schedules.shifts import COMPANY_WORDS
from holdfast.apps.schedules.story import tell
from holdfast.apps.schedules.values import Entry, Image, Json, Refusal, Session


class Ocr:
    """Gets the pictures out of the object store, has them read, and makes one day of what they show.

    The date is one that stands in a picture. A name of a file says when it was made, not what it is about.
    """

    needs_images = True

    def __init__(
        self, objects: Objects, reader: Reader, *, company_words: Sequence[str] = COMPANY_WORDS
    ) -> None:
        self.objects = objects
        self.reader = reader
        self.company_words = company_words

    async def extract(self, session: Session, images: Sequence[Image]) -> Json:
        """The day; `Refusal` if it cannot be told, for nobody wants a guess in their schedule."""
        ordered = sorted(images, key=lambda image: image.sequence)
        pages = [await self._read(image) for image in ordered]
        _tell(session, "ocr.completed", images=len(pages), boxes=sum(map(len, pages)))
        day = _day(pages, session.created_at.date())
        seen = [layout.entries(page) for page in pages]
        entries = merged(seen, self.company_words)
        if not entries:
            raise Refusal("ocr_empty", f"no shift was found in {len(pages)} pictures", "layout")
        if day is None:
            raise Refusal("date_not_found", f"no date was found in {len(pages)} pictures", "layout")
        counts = {"seen": sum(map(len, seen)), "shifts": len(entries)}
        _tell(session, "layout.shifts_detected", schedule_date=day.isoformat(), **counts)
        return _payload(day.isoformat(), entries)

    async def _read(self, image: Image) -> list[Box]:
        picture = await self.objects.get(image.r2_key)
        try:
            return await self.reader.read(picture)
        except Refusal as refusal:
            sentence = f"picture {image.sequence}, {image.r2_key!a}: {refusal.sentence}"
            raise Refusal(refusal.code, sentence, refusal.stage) from None


def _day(pages: Sequence[Sequence[Box]], near: date) -> date | None:
    """The day that the pictures show; if no column has one, a line over all columns may."""
    columns = [[text for column in layout.columns(page) for text in _texts(column)] for page in pages]
    return date_of(columns, near) or date_of([_texts(page) for page in pages], near)


def _texts(boxes: Sequence[Box]) -> list[str]:
    return [layout.text_of(line) for line in layout.lines(boxes)]


def _payload(day: str, entries: list[Entry]) -> Json:
    return {"schedule_date": day, "entries": entries}


def _tell(session: Session, event: str, **facts: Any) -> None:
    tell(event, session=session.id, user=session.user_id, **facts)
