"""Pages that stay true while somebody looks: a browser hears when what its page shows has changed.

A page says how to take the fingerprint of what it shows: `@shown(fingerprint)`. While browsers watch it, the
fingerprint is taken once a second, on a connection that is given back at once, and once for all browsers that
watch the same thing for the same tenant. The browser then fetches the page again; see static/live.js.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from fastapi import APIRouter, Request, routing
from psycopg_pool import PoolClosed, PoolTimeout
from starlette.routing import compile_path

from holdfast.api import auth
from holdfast.api.auth import Here, Reader
from holdfast.api.caller import Caller
from holdfast.api.reads import Reads
from holdfast.api.site import Site
from holdfast.api.streams import EventStream
from holdfast.api.watch import Shared
from holdfast.dashboard.dress import digest
from holdfast.errors import HoldfastError, NotFound

EVERY = 1.0  # seconds between two looks
STILL = 15.0  # seconds after which a silent stream says that it is there
SESSION = 30.0  # seconds between two looks at the session
ATTRIBUTE = "holdfast_shown"
AWAY = (psycopg.Error, PoolTimeout, PoolClosed, OSError)
TROUBLE = (HoldfastError, *AWAY)

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is watched: a page by its parameters and its query, as a reader of one tenant, or all, sees it."""

    site: Site
    reads: Reads
    caller: Caller
    params: Mapping[str, str]
    query: Pairs


Fingerprint = Callable[[Look], Awaitable[Any]]


def shown(fingerprint: Fingerprint) -> Callable[[Endpoint], Endpoint]:
    """Says how to take the fingerprint of what a page shows: anything that JSON, or `str`, can tell."""

    def note(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, ATTRIBUTE, fingerprint)
        return endpoint

    return note


class Scene(Shared):
    """One thing that browsers watch. A message is the fingerprint, first of all the present one."""

    def __init__(self, fingerprint: Fingerprint, look: Look, on_empty: Callable[[], object]) -> None:
        super().__init__(EVERY, on_empty)
        self._fingerprint, self._look = fingerprint, look
        self._known: str | None = None

    async def look(self) -> None:
        try:
            found = digest(await self._fingerprint(self._look))
        except NotFound:  # the row is gone: the page itself says so better
            found = "gone"
        for box in self.boxes:
            if box.fresh or found != self._known:
                box.put(found)
            box.fresh = False
        self._known = found


class Scenes:
    """Everything that browsers watch in this process."""

    def __init__(self, routers: Iterable[APIRouter]) -> None:
        self._routers = tuple(routers)
        self._scenes: dict[Any, Scene] = {}

    @cached_property
    def _pages(self) -> list[tuple[re.Pattern[str], Fingerprint]]:
        """The pages that can be watched."""
        # Newer versions keep an included router as it is, and flatten it here.
        flatten: Any = getattr(routing, "iter_route_contexts", list)
        routes = [route for router in self._routers for route in flatten(router.routes)]
        found = ((route, getattr(getattr(route, "endpoint", None), ATTRIBUTE, None)) for route in routes)
        return [(compile_path(route.path)[0], fingerprint) for route, fingerprint in found if fingerprint]

    def find(self, path: str) -> tuple[Fingerprint, Mapping[str, str], Pairs]:
        """How the page at this address is watched, and its parameters; or `NotFound`."""
        try:
            parts = urlsplit(path)
        except ValueError:
            raise NotFound(what="live page", id=path[:200]) from None
        for pattern, fingerprint in self._pages:
            if found := pattern.match(unquote(parts.path)):
                return fingerprint, found.groupdict(), tuple(parse_qsl(parts.query))
        raise NotFound(what="live page", id=path[:200])

    def scene(self, fingerprint: Fingerprint, look: Look) -> Scene:
        """The one scene that everybody watches who watches this for this tenant."""
        key = (fingerprint, look.caller.tenant, tuple(sorted(look.params.items())), look.query)
        found = self._scenes.get(key)
        if found is None:
            found = self._scenes[key] = Scene(fingerprint, look, lambda: self._scenes.pop(key, None))
        return found


router = APIRouter(include_in_schema=False)


@router.get("/live", response_class=EventStream)
async def live(request: Request, caller: Reader, site: Here, path: str = "/", since: str = "") -> EventStream:
    """Server-sent events: `changed` when the page at `path` shows something else than it did `since`.

    It is looked at once before the stream begins: whoever may not see it is told so, as the page itself does.
    """
    scenes: Scenes = request.app.state.scenes
    fingerprint, params, query = scenes.find(path)
    reader = replace(caller, who="", scope="read", token_id=None)
    look = Look(site=site, reads=request.app.state.reads, caller=reader, params=params, query=query)
    with suppress(*AWAY):  # the stream will look again
        await fingerprint(look)
    stream = _stream(request, lambda: scenes.scene(fingerprint, look), since)
    return EventStream(stream, request.app.state.limits.streams, caller)


async def _stream(request: Request, scene: Callable[[], Scene], since: str) -> AsyncGenerator[bytes]:
    with scene().box() as box:  # made when the stream has a place, or it would stay without a box for ever
        yield b"retry: 2000\n: watching\n\n"
        asked = time.monotonic()
        while True:
            found = await box.get(STILL)
            if found not in (None, since):
                since = found
                yield f"event: changed\ndata: {found}\n\n".encode()
            else:
                yield b": still here\n\n"
            if time.monotonic() - asked > SESSION:
                asked = time.monotonic()
                if not await _still_known(request):
                    yield b"event: gone\ndata: the session has ended\n\n"
                    return


async def _still_known(request: Request) -> bool:
    """Whether the session, or the token, is still good. A database that is away does not end it."""
    try:
        return await auth.still_known(request) is not None
    except TROUBLE:
        return True
