"""The app `connectors`: outside accounts of many tenants, kept in step."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.apps.connectors.ledger import SYNC_JOBS
from holdfast.apps.connectors.protocol import Connector
from holdfast.runtime.app import App

EXTRA = "connectors"


@dataclass(frozen=True, kw_only=True)
class ConnectorsApp(App):
    """The app with connectors of one's own beside the built-in ones."""

    own: tuple[type[Connector], ...] = ()


def app(*own: type[Connector]) -> ConnectorsApp:
    """The app with these connectors too: `Holdfast(apps=[connectors.app(Trello)])`."""
    return ConnectorsApp(
        name="connectors",
        ledgers=(SYNC_JOBS,),
        extra=EXTRA,
        work="holdfast.apps.connectors.work",
        web="holdfast.apps.connectors.web",
        own=own,
    )


APP = app()
