"""What the app of test_mount.py serves: found by its module's name, and by nothing else."""

from __future__ import annotations

from fastapi import APIRouter, Request

from holdfast.api.auth import Actor, Here
from holdfast.api.web import Link, Web

orders = APIRouter(prefix="/shop", tags=["shop"])
hooks = APIRouter(prefix="/hooks", tags=["shop"])
pages = APIRouter(tags=["shop"])


@orders.get("/parcels")
async def parcels(site: Here) -> dict[str, list[str]]:
    """For whoever may read."""
    return {"ledgers": list(site.stores)}


@orders.post("/parcels")
async def send(caller: Actor) -> dict[str, str]:
    """For whoever may act."""
    return {"by": caller.who}


@hooks.post("/shop")
async def hook(request: Request) -> dict[str, int]:
    """For everybody: it would look at a signature."""
    return {"bytes": len(await request.body())}


@hooks.post("/acting")
async def acting(caller: Actor) -> dict[str, str]:
    """For whoever may act, like a page's form: outside /api a cookie is enough, if it comes from us."""
    return {"by": caller.who}


@pages.get("/shop")
async def page() -> dict[str, str]:
    """A page of the dashboard."""
    return {"page": "shop"}


WEB = Web(routers=(orders,), open_routers=(hooks,), pages=(pages,), links=(Link("Shop", "/shop"),))
