"""The API as an ASGI application: every route, what surrounds them, and their description."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI

from holdfast.api import auth, description, health, ledgers, problems, rows, streams, system
from holdfast.api.health import Readiness
from holdfast.api.jwts import Jwts
from holdfast.api.limits import Limits
from holdfast.api.middleware import Around, Bodies
from holdfast.api.reads import Reads
from holdfast.api.routes import Routes
from holdfast.api.site import Site
from holdfast.api.watch import Watch
from holdfast.api.web import Web

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]


def build(site: Site, webs: Sequence[Web], *, lifespan: Lifespan | None = None) -> FastAPI:
    """The application that serves a site, with what its apps add. Fits below any root path."""
    app = FastAPI(
        title="Holdfast",
        version=version("holdfast"),
        description=description.TEXT,
        openapi_tags=description.TAGS,
        docs_url=None,  # the dashboard has a page for it
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        generate_unique_id_function=description.operation_id,
    )
    app.state.site = site
    app.state.limits = Limits(site.settings.api_rate)
    app.state.jwts = Jwts(site.settings)
    app.state.reads = Reads(site)
    app.state.watch = Watch(site)
    app.state.readiness = Readiness(site)
    app.state.routes = Routes(app)
    problems.handle(app)
    app.add_middleware(Bodies, most=site.settings.api_body_bytes)
    app.add_middleware(Around, routes=app.state.routes)
    own = (health.router, system.router, system.scraped, ledgers.router, rows.router)
    for router in (*own, rows.orders, streams.router):
        app.include_router(router)
    for web in webs:
        for router in web.routers:
            app.include_router(router, prefix="/api", dependencies=[Depends(auth.reader)])
        for router in web.open_routers:
            app.include_router(router)
    description.describe(app)
    return app
