"""What lists of any app share: filters out of a query, turning pages, and the page itself: `list_page`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from fastapi import Request
from fastapi.responses import HTMLResponse
from starlette.datastructures import FormData

from holdfast.api.caller import Caller
from holdfast.api.site import Site
from holdfast.dashboard import forms
from holdfast.dashboard.dress import page, request_path
from holdfast.dashboard.live import Fingerprint, Look
from holdfast.engine import intake
from holdfast.errors import InvalidInput

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


# -- the page --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Found:
    """Some rows of a list, or what was asked wrongly.

    `marks` tell what is shown of the rows, so that a change is seen. `more` is what else the template needs.
    """

    now: datetime | None = None
    items: Sequence[object] = ()
    cursor: str | None = None
    marks: Sequence[object] = ()
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])
    wrong: InvalidInput | None = None

    @property
    def mark(self) -> list[Any]:
        """What the page shows."""
        return [self.marks, self.cursor is None]


Find = Callable[[Site, Caller, Asked], Awaitable[Found]]


async def list_page(
    request: Request,
    template: str,
    caller: Caller,
    site: Site,
    find: Find,
    filters: Sequence[str],
    **context: Any,
) -> HTMLResponse:
    """The page of a list, whose template extends `listing.html`."""
    asked = Asked.of(request.query_params.multi_items())
    found = await _found(find, site, caller, asked)
    return page(
        request,
        template,
        caller,
        status=400 if found.wrong else 200,
        shown=found.mark,
        found=found,
        asked=asked,
        here=request_path(request),
        turn=turn(asked, found.cursor),
        filtered=bool(asked.only(filters)),
        everybody=caller.tenant is None,
        **found.more,
        **context,
    )


def mark_of(find: Find) -> Fingerprint:
    """The fingerprint of a list: `@shown(mark_of(find))`."""

    async def fingerprint(look: Look) -> Any:
        return (await _found(find, look.site, look.caller, Asked.of(look.query))).mark

    return fingerprint


async def _found(find: Find, site: Site, caller: Caller, asked: Asked) -> Found:
    try:
        return await find(site, caller, asked)
    except InvalidInput as error:
        return Found(wrong=error)
