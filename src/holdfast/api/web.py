"""What an app adds to the web: its routes, its pages, and its metrics. The app's module `web` has a `WEB`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from fastapi import APIRouter
from prometheus_client.core import Metric

from holdfast.api.site import Site


@dataclass(frozen=True)
class Link:
    """A page in the dashboard's menu. `path` is below the dashboard's own root, like `/connections`.

    `ledger`: only for those for whom there is this ledger.
    """

    title: str
    path: str
    ledger: str | None = None


@dataclass(frozen=True, kw_only=True)
class Web:
    """What one app serves.

    `routers` are JSON below /api, `pages` are HTML below the dashboard's root: for callers that may read,
    unless a route asks for more. `open_routers` are for nobody in particular, like signed webhooks: they
    prove their callers themselves. `templates` is a folder of Jinja templates. `metrics` answers with what
    Prometheus shall see.
    """

    routers: tuple[APIRouter, ...] = ()
    pages: tuple[APIRouter, ...] = ()
    open_routers: tuple[APIRouter, ...] = ()
    links: tuple[Link, ...] = ()
    templates: str | None = None
    metrics: Callable[[Site], Awaitable[Iterable[Metric]]] | None = None
