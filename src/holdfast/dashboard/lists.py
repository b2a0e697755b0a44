"""What lists of any app share: filters out of a query, and turning pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from starlette.datastructures import FormData

from holdfast.dashboard import forms
from holdfast.engine import intake

Pairs = list[tuple[str, str]]
PAGE = 25  # rows of a list
LONGEST = 255  # characters of a text in a filter


@dataclass(frozen=True)
class Asked:
    """What a query asks for: its texts without blanks around them, and none that are empty."""

    pairs: Pairs

    @classmethod
    def of(cls, query: Iterable[tuple[str, str]]) -> Asked:
        return cls([(name, value.strip()) for name, value in query if value.strip()])

    @property
    def cursor(self) -> str | None:
        return dict(self.pairs).get("cursor")

    def text(self, name: str) -> str | None:
        value = forms.text(FormData(dict(self.pairs)), name, LONGEST)
        return None if value is None else intake.clean_text(name, value)

    def moment(self, name: str) -> datetime | None:
        return forms.moment(FormData(dict(self.pairs)), name)

    def uuid(self, name: str) -> UUID | None:
        value = self.text(name)
        return None if value is None else uuid_of(name, value)

    def number(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else intake.typed(name, "bigint", value)

    def shown(self, name: str) -> str:
        """As a field of the filter shows it, right or wrong."""
        return dict(self.pairs).get(name, "")

    def only(self, names: Sequence[str]) -> Pairs:
        """What it says of these."""
        return [(name, value) for name, value in self.pairs if name in names]


def uuid_of(name: str, text: str) -> UUID:
    """The UUID that a text means, or `InvalidInput`."""
    return intake.typed(name, "uuid", text)


@dataclass(frozen=True)
class Turn:
    """The queries of the page before this one and of the page after it; None where there is none."""

    back: Pairs | None
    on: Pairs | None


def turn(asked: Asked, cursor: str | None) -> Turn:
    """How to go on from a page that ended at a cursor, and back: the last pages on the way are remembered."""
    kept = [(name, value) for name, value in asked.pairs if name not in ("cursor", "before")]
    way = forms.trail(asked.pairs)
    here = [asked.cursor] if asked.cursor else []
    on = back = None
    if cursor is not None:
        on = [*kept, ("cursor", cursor), *(("before", one) for one in (way + here)[-forms.TRAIL :])]
    if here:
        *earlier, last = way or [""]
        before = [("before", one) for one in earlier]
        back = [*kept, *([("cursor", last)] if last else []), *before]
    return Turn(back, on)
