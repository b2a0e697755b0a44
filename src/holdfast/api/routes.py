"""The routes that there are, as data: for the names of traces, and for what a 405 must say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import FastAPI, routing
from starlette.routing import compile_path
from starlette.types import Scope

OTHER = "(no route)"


@dataclass(frozen=True)
class Route:
    """A path with holes, and what may be done there (nothing: whatever lies below answers itself)."""

    path: str
    methods: frozenset[str]
    pattern: re.Pattern[str]


class Routes:
    """All routes of an application, found when the first request comes: until then some may be added."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    @cached_property
    def every(self) -> tuple[Route, ...]:
        return tuple(_routes(self._app))

    def name(self, scope: Scope) -> str:
        """The path of the route that answers, with its holes."""
        found = list(self._at(scope))
        fitting = (route.path for route in found if scope["method"] in route.methods or not route.methods)
        return next(fitting, found[0].path if found else OTHER)

    def methods(self, scope: Scope) -> list[str]:
        """What may be done at this address; one that is named means more than a hole that it fits."""
        found = list(self._at(scope))
        fewest = min((route.path.count("{") for route in found), default=0)
        return sorted({method for one in found if one.path.count("{") == fewest for method in one.methods})

    def _at(self, scope: Scope) -> Iterator[Route]:
        path = address(scope) or "/"
        return (route for route in self.every if route.pattern.match(path))


def address(scope: Scope) -> str:
    """The path below where the application is mounted, as routing sees it."""
    path, root = scope["path"], scope.get("root_path", "")
    below = path.removeprefix(root)
    return below if below in ("", path) or below.startswith("/") else path


def _routes(app: FastAPI) -> Iterator[Route]:
    # Newer versions keep an included router as it is, and flatten it here.
    flatten: Any = getattr(routing, "iter_route_contexts", None)
    for route in flatten(app.routes) if flatten else app.routes:
        path, methods = getattr(route, "path", None), getattr(route, "methods", None)
        if path is None:
            continue
        pattern = compile_path(path)[0] if methods else re.compile("^" + re.escape(path.rstrip("/")) + "/")
        yield Route(path, frozenset(methods or ()), pattern)
