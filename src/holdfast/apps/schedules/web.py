"""What the app serves."""

from pathlib import Path

from holdfast.api.web import Link, Web
from holdfast.apps.schedules import metrics, pages
from holdfast.apps.schedules.ledger import SESSIONS
from holdfast.apps.schedules.routes import captures, days, notifications, users

WEB = Web(
    routers=(captures.router, days.router, notifications.router, users.router),
    pages=pages.ROUTERS,
    links=(Link("Schedules", "/schedules", ledger=SESSIONS),),
    templates=str(Path(__file__).parent / "templates"),
    metrics=metrics.collect,
)
