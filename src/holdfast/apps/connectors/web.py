"""What the app serves."""

from pathlib import Path

from holdfast.api.web import Link, Web
from holdfast.apps.connectors import metrics, pages
from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.routes import connect, connections, found, providers, tenants, webhooks

WEB = Web(
    routers=(tenants.router, connections.router, found.router, connect.router, webhooks.router),
    open_routers=(providers.open_router, connect.open_router, webhooks.open_router),
    pages=pages.ROUTERS,
    links=(Link("Connectors", "/connectors", ledger=SYNC_JOBS.name),),
    templates=str(Path(__file__).parent / "templates"),
    metrics=metrics.collect,
)
