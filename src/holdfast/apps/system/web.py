"""What the app serves."""

from pathlib import Path

from holdfast.api.web import Link, Web
from holdfast.apps.system import metrics, pages
from holdfast.apps.system.ledger import NAME
from holdfast.apps.system.routes import jobs, kept, logs

WEB = Web(
    routers=(jobs.router, logs.router, kept.router),
    pages=pages.ROUTERS,
    links=(Link("System", "/system", ledger=NAME),),
    templates=str(Path(__file__).parent / "templates"),
    metrics=metrics.collect,
)
