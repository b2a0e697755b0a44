"""The providers over HTTP: for everybody, since nothing about them is anybody's secret."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.apps.connectors.answers import Provider, Providers, connectable
from holdfast.apps.connectors.catalogue import PROVIDERS
from holdfast.apps.connectors.routes.common import TAG, Service

open_router = APIRouter(prefix="/api/connectors", tags=[TAG])


@open_router.get("/providers", summary="List the providers")
async def list_providers(service: Service) -> Providers:
    """What can be connected, and how. For everybody."""
    slugs = sorted({*(one.slug for one in PROVIDERS), *service.known})
    known = [service.provider(slug) for slug in slugs]
    return Providers(providers=[Provider.of(one, connectable=connectable(service, one)) for one in known])
